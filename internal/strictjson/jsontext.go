// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package strictjson

import (
	"bytes"
	"encoding/binary"
	stdjson "encoding/json"
	"errors"
	"io"
	"reflect"
	"unicode/utf8"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	jsonv1 "github.com/go-json-experiment/json/v1"
)

// grammarError returns the defect of data apart from duplicate names and bounds, or nil.
func grammarError(data []byte, loneSurrogates bool) *Error {
	dec := jsontext.NewDecoder(bytes.NewBuffer(data), jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(loneSurrogates))
	_, err := dec.ReadValue()
	if err == nil {
		end := dec.InputOffset()
		if _, err = dec.ReadToken(); err == io.EOF {
			return nil
		}
		return &Error{Kind: Trailing, Offset: int(end)}
	}
	e := &Error{Kind: Syntax, Offset: len(data)}
	var se *jsontext.SyntacticError
	if errors.As(err, &se) {
		e.Offset, e.Pointer = int(se.ByteOffset), string(se.JSONPointer)
	}
	if e.Offset >= jsontextDepth && depth(data[:e.Offset]) >= jsontextDepth {
		e.Kind, e.Pointer = Depth, ""
	}
	return e
}

// depth returns how deep the brackets of a text are nested at its end. The text is
// a part of a valid one.
func depth(data []byte) int {
	d := 0
	for i := 0; i < len(data); i++ {
		switch data[i] {
		case '"':
			i = stringEnd(data, i) - 1
		case '{', '[':
			d++
		case '}', ']':
			d--
		}
	}
	return d
}

// pointerAt returns the JSON Pointer to the member whose name begins at an offset of a
// text with valid grammar.
func pointerAt(data []byte, offset int) string {
	dec := jsontext.NewDecoder(bytes.NewBuffer(data), jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true))
	for dec.InputOffset() <= int64(offset) {
		if _, err := dec.ReadToken(); err != nil {
			return ""
		}
	}
	return string(dec.StackPointer())
}

// jsontextDepth is the nesting beyond which jsontext gives up.
const jsontextDepth = 10000

// AppendString appends s as a JSON string with the least escaping. Bytes that
// are not UTF-8 become U+FFFD.
func AppendString[T ~string | ~[]byte](dst []byte, s T) []byte {
	dst, _ = AppendText(dst, s)
	return dst
}

// AppendText is [AppendString] and reports whether s is UTF-8.
func AppendText[T ~string | ~[]byte](dst []byte, s T) (out []byte, isUTF8 bool) {
	start := len(dst)
	dst = append(append(dst, '"'), s...)
	if isPlain(dst[start+1:]) {
		return append(dst, '"'), true
	}
	dst, err := jsontext.AppendQuote(dst[:start], s) // the error only says that bytes were replaced
	return dst, err == nil
}

// isPlain reports whether a text is ASCII that needs no escapes. It reads eight bytes at a time.
func isPlain(b []byte) bool {
	i := 0
	for ; i+8 <= len(b); i += 8 {
		if isSpecial(binary.LittleEndian.Uint64(b[i:])) {
			return false
		}
	}
	for _, c := range b[i:] {
		if c < ' ' || c == '"' || c == '\\' || c >= utf8.RuneSelf {
			return false
		}
	}
	return true
}

// isSpecial reports whether a quote, a backslash, a control character or a byte outside of ASCII is among eight bytes.
func isSpecial(w uint64) bool {
	q, e := w^(lows*'"'), w^(lows*'\\')
	return ((q-lows)|(e-lows)|(w-lows*' ')|w)&highs != 0
}

// appendText appends the text of a valid quoted string, lone surrogates as U+FFFD.
func appendText(dst, quoted []byte) []byte {
	dst, _ = jsontext.AppendUnquote(dst, quoted) // the error only says that surrogates were replaced
	return dst
}

// exact keeps numbers that meet an interface, or a field made for them, as their
// text. Its functions never hand a value back undone: how to say that differs
// between releases of the package.
var exact = json.WithUnmarshalers(json.JoinUnmarshalers(
	json.UnmarshalFromFunc(func(d *jsontext.Decoder, p *any) error {
		v, err := d.ReadValue()
		if err == nil {
			*p = Value(v).Any()
		}
		return err
	}),
	json.UnmarshalFromFunc(func(d *jsontext.Decoder, n *stdjson.Number) error {
		v, err := d.ReadValue()
		switch {
		case err != nil:
			return err
		case Value(v).Kind() == '0':
			*n = stdjson.Number(v)
		case Value(v).Kind() != 'n':
			return errors.New("want a number")
		}
		return nil
	}),
))

// rules are those of encoding/json, but names match exactly. By its own rules the
// package can read no Duration, no list into an array of another length, and no
// struct that has anything wrong with the tag of a single field.
var rules = json.JoinOptions(
	jsonv1.DefaultOptionsV1(),
	json.MatchCaseInsensitiveNames(false),
	jsontext.AllowInvalidUTF8(true),
	exact,
)

// Decode stores a checked value in what dst points to, by the rules of
// encoding/json with these differences: names of members match fields only
// exactly; a number that meets an any becomes a [stdjson.Number], so that it stays
// exact; a [stdjson.Number] takes no string; and an any gets a new value, also
// where it holds a pointer. A named type whose underlying type is any is left to
// encoding/json, which makes a float64 of numbers. The error names the value that does not
// fit, and its place.
func Decode(v Value, dst any) error {
	if p := reflect.ValueOf(dst); p.Kind() != reflect.Pointer || p.IsNil() {
		return errors.New("strictjson: the target of Decode is not a pointer")
	}
	return json.Unmarshal(v, dst, rules)
}

// FaultOf returns the value that [Decode] could not store: the names and positions that lead to it,
// separated by points, and the Go type that it does not fit. They are empty for an error of a type that
// decodes itself.
func FaultOf(err error) (path, goType string) {
	var e *jsonv1.UnmarshalTypeError
	if !errors.As(err, &e) {
		return "", ""
	}
	return e.Field, e.Type.String()
}
