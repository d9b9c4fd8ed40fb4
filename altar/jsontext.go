// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package altar

import (
	"bytes"
	"strconv"

	"github.com/fivewire/fivewire/altar/internal/form"
	"github.com/fivewire/fivewire/internal/strictjson"
)

// maxDepth bounds the nesting of every text from outside; the outermost object
// has depth 1 (ALT-D06).
const maxDepth = 64

// rawBounds returns the bounds of raw JSON at a depth of a message. They are those of a received
// message, so that a peer does not refuse JSON that an application may send.
func rawBounds(depth int) strictjson.Options {
	return strictjson.Options{MaxDepth: maxDepth - depth, MaxNames: 1000, MaxName: 1 << 10}
}

// check reads untrusted text as an object. Its reasons are those of section d of the reference. A
// depth of 0 means maxDepth.
func check(data []byte, depth int) (strictjson.Value, Reason) {
	if depth <= 0 {
		depth = maxDepth
	}
	v, reason := form.Check(data, depth)
	return v, Reason(reason)
}

// appendString appends s as a JSON string with the least escapes.
func appendString(dst []byte, s string) []byte { return strictjson.AppendString(dst, s) }

// appendText appends a checked value without white space and with the least
// escapes in its strings. Numbers stay as they are written.
func appendText(dst []byte, v []byte) []byte {
	for i := 0; i < len(v); {
		switch c := v[i]; c {
		case '"':
			end := i + 1
			escaped := false
			for {
				j := bytes.IndexByte(v[end:], '"')
				if j < 0 {
					return append(dst, v[i:]...) // not reached with a checked value
				}
				part := v[end : end+j]
				end += j + 1
				n := 0
				for len(part) > n && part[len(part)-1-n] == '\\' {
					n++
				}
				escaped = escaped || bytes.IndexByte(part, '\\') >= 0
				if n%2 == 0 {
					break
				}
			}
			if escaped {
				dst = appendValueString(dst, strictjson.Value(v[i:end]))
			} else {
				dst = append(dst, v[i:end]...)
			}
			i = end
		case ' ', '\t', '\n', '\r':
			i++
		default:
			start := i
			for i < len(v) && v[i] != '"' && v[i] > ' ' {
				i++
			}
			dst = append(dst, v[start:i]...)
		}
	}
	return dst
}

// appendValueString appends a checked string with the least escapes.
func appendValueString(dst []byte, v strictjson.Value) []byte {
	if bytes.IndexByte(v, '\\') < 0 {
		return append(dst, v...)
	}
	b, _ := v.TextBytes()
	return strictjson.AppendString(dst, b)
}

func appendInt(dst []byte, n int64) []byte { return strconv.AppendInt(dst, n, 10) }
