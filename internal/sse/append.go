// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package sse

import (
	"bytes"
	"errors"
	"strings"
)

// ErrInvalid reports an event or comment that the format cannot carry.
var ErrInvalid = errors.New("sse: cannot be written")

const (
	errName    = invalid("line break in the event name")
	errID      = invalid("line break or NUL in the event id")
	errData    = invalid("carriage return in the data")
	errComment = invalid("line break in the comment")
)

// invalid is an [ErrInvalid] with its reason; its values are constants.
type invalid string

func (e invalid) Error() string   { return ErrInvalid.Error() + ": " + string(e) }
func (invalid) Is(err error) bool { return err == ErrInvalid }

// AppendEvent appends an event to dst: an event line unless name is empty, an id
// line unless id is empty, the data, and the empty line that ends it. Data
// without an LF, such as compact JSON, are one line; otherwise each line of the
// data gets its own, and the reader joins them again.
//
// A name or id with a CR or LF, an id with NUL and data with a CR, which would
// arrive as something else, are [ErrInvalid]; dst is then returned as it was.
func AppendEvent(dst []byte, name, id string, data []byte) ([]byte, error) {
	switch {
	case breaks(name):
		return dst, errName
	case breaks(id) || strings.IndexByte(id, 0) >= 0:
		return dst, errID
	case bytes.IndexByte(data, '\r') >= 0:
		return dst, errData
	}
	if name != "" {
		dst = append(dst, "event: "...)
		dst = append(dst, name...)
		dst = append(dst, '\n')
	}
	if id != "" {
		dst = append(dst, "id: "...)
		dst = append(dst, id...)
		dst = append(dst, '\n')
	}
	for {
		line, rest, more := bytes.Cut(data, []byte("\n"))
		dst = append(dst, "data: "...)
		dst = append(dst, line...)
		dst = append(dst, '\n')
		if !more {
			return append(dst, '\n'), nil
		}
		data = rest
	}
}

// AppendComment appends a comment and an empty line to dst, which readers skip: a keep-alive. Text
// with a CR or LF is [ErrInvalid]; dst is then returned unchanged.
func AppendComment(dst []byte, text string) ([]byte, error) {
	if breaks(text) {
		return dst, errComment
	}
	dst = append(dst, ": "...)
	dst = append(dst, text...)
	return append(dst, "\n\n"...), nil
}

func breaks(s string) bool {
	return strings.IndexByte(s, '\n') >= 0 || strings.IndexByte(s, '\r') >= 0
}
