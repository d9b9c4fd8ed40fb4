// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

// Package strictjson is the one reader of JSON that comes from outside.
//
// [Check] looks at a whole text once and either refuses it, naming the kind of
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
// Nothing is lost on the way: values keep their text, numbers included, and
// names are compared as they are, upper and lower case told apart.
//
// The grammar, the search for duplicate names and the quoting are those of the
// jsontext package, which is about to become part of the standard library. As
// its API may still change, jsontext.go is the only file that knows it. It decides
// about every text that a scanner of this package (scan.go) does not find valid at
// first glance; a fuzz test holds the scanner to finding nothing valid that
// jsontext refuses.
package strictjson
