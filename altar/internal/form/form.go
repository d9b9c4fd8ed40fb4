// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

// Package form reads JSON objects whose members are all known: contracts, manifests
// and tool definitions of other formats.
package form

import (
	"bytes"
	"errors"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/fivewire/fivewire/internal/strictjson"
)

// Check reads untrusted text as an object. The reason is empty if it is one.
func Check(data []byte, depth int) (v strictjson.Value, reason string) {
	v, err := strictjson.Check(data, strictjson.Options{MaxDepth: depth})
	if err != nil {
		return nil, Refusal(err, data, depth)
	}
	if !v.IsObject() {
		return nil, "not_an_object"
	}
	return v, ""
}

// Refusal returns the reason for which strictjson refused a text with an error.
func Refusal(err error, data []byte, depth int) string {
	var refusal *strictjson.Error
	if !errors.As(err, &refusal) {
		return "malformed_json"
	}
	switch refusal.Kind {
	case strictjson.UTF8:
		return "invalid_unicode"
	case strictjson.Duplicate:
		return "duplicate_key"
	case strictjson.Depth:
		return "too_deep"
	case strictjson.TooLarge, strictjson.Count:
		return "message_too_large"
	case strictjson.Syntax:
		// An unpaired surrogate has a separate reason: check whether it is the only defect.
		_, err = strictjson.Check(data, strictjson.Options{MaxDepth: depth, LoneSurrogates: true})
		if err == nil {
			return "invalid_unicode"
		}
		if errors.As(err, &refusal) && (refusal.Kind == strictjson.Duplicate || refusal.Kind == strictjson.Depth) {
			return "invalid_unicode"
		}
	}
	return "malformed_json"
}

// A Reader reads members of checked objects and keeps the first failure.
type Reader struct {
	Reason string // empty without a failure
	Path   string // JSON Pointer to the culprit
}

// Failed reports whether there was a failure.
func (r *Reader) Failed() bool { return r.Reason != "" }

// Fail notes a failure, unless there was one before.
func (r *Reader) Fail(reason, path string) {
	if r.Reason == "" {
		r.Reason, r.Path = reason, path
	}
}

// Fields refuses all members but the allowed ones.
func (r *Reader) Fields(v strictjson.Value, path string, allowed ...string) {
	for m := v.Members(); m.Next(); {
		if name := string(m.Name); !slices.Contains(allowed, name) {
			r.Fail("unknown_field", Pointer(path, name))
		}
	}
}

// Get returns a member, nil if it is absent or null.
func (r *Reader) Get(v strictjson.Value, path, name string, required bool) strictjson.Value {
	m := v.Get(name)
	if !m.Absent() {
		return m
	}
	if required {
		r.Fail("missing_field", path+"/"+name)
	}
	return nil
}

// Text reads a string.
func (r *Reader) Text(v strictjson.Value, path, name string, required bool) (string, bool) {
	m := r.Get(v, path, name, required)
	if m == nil {
		return "", false
	}
	s, ok := m.Text()
	if !ok {
		r.Fail("wrong_type", path+"/"+name)
	}
	return s, ok
}

// Flag reads an optional boolean.
func (r *Reader) Flag(v strictjson.Value, path, name string) bool {
	m := r.Get(v, path, name, false)
	if m == nil {
		return false
	}
	b, ok := m.Bool()
	if !ok {
		r.Fail("wrong_type", path+"/"+name)
	}
	return b
}

// Array reads the elements of an array.
func (r *Reader) Array(v strictjson.Value, path, name string, required bool) []strictjson.Value {
	m := r.Get(v, path, name, required)
	if m == nil {
		return nil
	}
	if !m.IsArray() {
		r.Fail("wrong_type", path+"/"+name)
		return nil
	}
	var list []strictjson.Value
	for e := m.Elements(); e.Next(); {
		list = append(list, e.Value)
	}
	return list
}

// Object reads an optional object, nil if it is absent.
func (r *Reader) Object(v strictjson.Value, path, name string) strictjson.Value {
	m := r.Get(v, path, name, false)
	if m != nil && !m.IsObject() {
		r.Fail("wrong_type", path+"/"+name)
		return nil
	}
	return m
}

// Pointer appends a member name to a JSON Pointer.
func Pointer(path, name string) string {
	if strings.ContainsAny(name, "~/") {
		name = strings.NewReplacer("~", "~0", "/", "~1").Replace(name)
	}
	return path + "/" + name
}

// PointerIndex appends an index to a JSON Pointer.
func PointerIndex(path string, i int) string { return path + "/" + strconv.Itoa(i) }

// Position returns the line and the column, from 1, of the value at a JSON Pointer or, if it is
// missing, of the value around it. In a text that is not valid, all results are those of the
// defect, whose pointer may be unknown. A column counts code points.
func Position(data []byte, pointer string) (line, column int, at string) {
	var offset int
	v, err := strictjson.Check(data, strictjson.Options{})
	if refused, ok := errors.AsType[*strictjson.Error](err); ok {
		offset, pointer = min(refused.Offset, len(data)), refused.Pointer
	} else {
		offset = bytes.Index(data, v)
		for token := range strings.SplitSeq(strings.TrimPrefix(pointer, "/"), "/") {
			child, at := find(v, strings.NewReplacer("~1", "/", "~0", "~").Replace(token))
			if child == nil {
				break
			}
			v = child
			offset += at
		}
	}
	before := string(data[:offset])
	column = utf8.RuneCountInString(before[strings.LastIndexByte(before, '\n')+1:]) + 1
	return strings.Count(before, "\n") + 1, column, pointer
}

// find returns a member or an element and its place in the text of v. Between two values a text
// has white space, commas and colons only, so that the first occurrence of a value is the value.
func find(v strictjson.Value, token string) (child strictjson.Value, at int) {
	for m := v.Members(); m.Next(); at += len(m.Value) {
		at += bytes.Index(v[at:], m.Key) + len(m.Key)
		at += bytes.Index(v[at:], m.Value)
		if string(m.Name) == token {
			return m.Value, at
		}
	}
	index := 0
	for e := v.Elements(); e.Next(); at += len(e.Value) {
		if index == 0 {
			at = 1
		}
		at += bytes.Index(v[at:], e.Value)
		if strconv.Itoa(index) == token {
			return e.Value, at
		}
		index++
	}
	return nil, 0
}
