// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

// Package state has the form of all stored state: keys, values, and changes that have an answer.
package state

import (
	"bytes"
	"crypto/sha256"
	"encoding/base32"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"
)

// Format is the first byte of every stored value.
const Format = 1

// maxPart bounds a part in bytes, so that a prefix and four parts fit a key.
const maxPart = 200

var errTruncated = errors.New("stored value: no line before its data")

// Join returns the parts with a slash between them. A part that is longer than
// 200 bytes, holds a slash or NUL, is not UTF-8, or begins with "~" is replaced
// by "~" and the base32 form of the first 20 bytes of its SHA-256. Different
// lists of parts of one length have different keys.
func Join(parts ...string) string {
	var b strings.Builder
	size := len(parts)
	for _, p := range parts {
		size += len(p)
	}
	b.Grow(size)
	for i, p := range parts {
		if i > 0 {
			b.WriteByte('/')
		}
		if isPlain(p) {
			b.WriteString(p)
			continue
		}
		sum := sha256.Sum256([]byte(p))
		b.WriteByte('~')
		b.WriteString(base32.StdEncoding.EncodeToString(sum[:20]))
	}
	return b.String()
}

func isPlain(part string) bool {
	return len(part) <= maxPart && !strings.HasPrefix(part, "~") && !strings.ContainsAny(part, "/\x00") &&
		utf8.ValidString(part)
}

// Value returns data behind the format byte.
func Value(data string) []byte {
	return append([]byte{Format}, data...)
}

// Data returns the data of a stored value without a copy. It fails if the
// value does not begin with the format byte.
func Data(value []byte) ([]byte, error) {
	if len(value) == 0 {
		return nil, fmt.Errorf("stored value: no format byte, want format %d", Format)
	}
	if value[0] != Format {
		return nil, fmt.Errorf("stored value: format %d, want format %d", value[0], Format)
	}
	return value[1:], nil
}

// Encode returns the JSON text of v behind the format byte.
func Encode(v any) ([]byte, error) {
	text, err := json.Marshal(v)
	return append([]byte{Format}, text...), err
}

// Decode reads a value of Encode.
func Decode(value []byte, v any) error {
	data, err := Data(value)
	if err != nil {
		return err
	}
	return unmarshal(data, v)
}

func unmarshal(text []byte, v any) error {
	err := json.Unmarshal(text, v)
	if err != nil {
		return fmt.Errorf("stored value: %w", err)
	}
	return nil
}

// EncodeWith returns the format byte, the JSON text of head as a line, and data. The text must not fail.
func EncodeWith(head any, data []byte) []byte {
	line, err := json.Marshal(head)
	if err != nil {
		panic(err)
	}
	b := append(make([]byte, 0, len(line)+len(data)+2), Format)
	return append(append(append(b, line...), '\n'), data...)
}

// DecodeWith reads a value of EncodeWith. The data shares the memory of value.
func DecodeWith(value []byte, head any) (data []byte, err error) {
	value, err = Data(value)
	if err != nil {
		return nil, err
	}
	line, data, isWhole := bytes.Cut(value, []byte{'\n'})
	if !isWhole {
		return nil, errTruncated
	}
	return data[:len(data):len(data)], unmarshal(line, head)
}
