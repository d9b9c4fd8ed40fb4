// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

// Package strictjson is the one reader of JSON that comes from outside.
//
// [Check] reads a whole text once and either refuses it, naming the kind of
// fault and where it is, or returns it as a [Value]: text that is known to be
// exactly one JSON value in valid UTF-8, with no member name twice in an object
// and no deeper than allowed. A Value is then read without checking anything
// again, by walking over it:
//
//	v, err := strictjson.Check(body, strictjson.Options{MaxDepth: 128})
//	...
//	for m := v.Members(); m.Next(); {
//		switch string(m.Name) {
//		case "id":
//			id, ok := m.Value.Text()
//	...
//
// Nothing is lost: values keep their text, numbers included, and
// names are compared as they are, with upper and lower case distinguished.
//
// A [Cursor] reads and checks in the same pass. It is the faster way for texts whose
// form is known, and also bounds the names of an object.
//
// The grammar and the quoting are those of the jsontext package, which is about to
// become part of the standard library. As its API may still change, jsontext.go is
// the only file that knows it. A fuzz test holds the scanner of this package
// (scan.go) to accepting exactly the texts that jsontext accepts; jsontext names what
// is wrong with the others.
package strictjson
