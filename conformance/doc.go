// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

// Package conformance runs the vectors of the five protocols: cases in JSON
// files that state, without any programming language, what an implementation
// must do. The README of this folder describes the file format and how to add a
// case.
//
// # As a test
//
// It is first a test of this module:
//
//	go test ./conformance
//	go test ./conformance -run TestVectors/arc/envelope
//	go test ./conformance -args -vectors ../more -report report.html
//	CONFORMANCE_VECTORS=../more go test -count=1 ./conformance
//
// Each case is a subtest TestVectors/<protocol>/<suite>/<id>. Further folders
// come from -vectors and from the environment variable CONFORMANCE_VECTORS; both
// take a list of folders in the path-list syntax of the platform. A relative
// folder is looked for from the working directory, which is that of the package
// while a test runs, and then from the root of the module, so that it may be
// named as it is seen from there. The flag -report writes .txt, .json, .xml
// (JUnit) or .html; a relative name counts from the root of the module. Both
// flags may be repeated.
//
// No vector is skipped silently. All of this fails the run: a folder without
// vectors, a file that does not follow the format, an unknown field, operation,
// protocol or member of the input, an id with two contents, a run without cases,
// also if it is -run that leaves none, and a case that passes although it is
// listed in testdata/known-failures.json.
//
// TestRequirements reports which requirements of each protocol are named by
// vectors, which by Go tests only, and which by nothing.
//
// # As a library
//
// Another implementation is tested by binding the operations of a protocol to
// it. Each operation is one small function:
//
//	func TestConformance(t *testing.T) {
//		mine := conformance.Protocol{Name: "arc", Ops: map[string]conformance.Op{
//			"timestamp": func(_ conformance.T, in *conformance.Input) (conformance.Answer, error) {
//				at, err := myarc.ParseTime(in.String("text"))
//				if err != nil {
//					return nil, conformance.NewFailure("bad_timestamp", err)
//				}
//				return conformance.Answer{"utc": at.String()}, nil
//			},
//			...
//		}}
//		report := conformance.Run(t, conformance.Embedded().Only("arc"), []conformance.Protocol{mine}, nil)
//		...
//	}
//
// Operations that end in "script" run steps against a fixture in virtual time;
// [Script] does everything but the fixture. An implementation that is not
// finished lists the cases that it fails in [Options], which keeps the rest
// guarded. An implementation in another language is tested through operations
// that speak with a process of it, except where scripts need its clock.
package conformance
