// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"encoding/binary"
	"errors"
)

// A span is a range of positions, both ends included. The elements of spans are sorted and
// disjoint.
type (
	span  struct{ from, to uint64 }
	spans []span
)

func (s spans) covers(x span) bool {
	for i := len(s) - 1; i >= 0; i-- { // usually the last one
		if s[i].from <= x.from {
			return x.to <= s[i].to
		}
	}
	return false
}

// with returns the union with x.
func (s spans) with(x span) spans {
	var out spans
	for _, y := range s {
		switch {
		case y.to+1 < x.from:
			out = append(out, y)
		case x.to+1 < y.from:
			if x.to != 0 {
				out = append(out, x)
				x = span{1<<64 - 1, 0}
			}
			out = append(out, y)
		default:
			x = span{min(x.from, y.from), max(x.to, y.to)}
		}
	}
	if x.to != 0 {
		out = append(out, x)
	}
	return out
}

// grow is like with, and reuses the memory of s.
func (s spans) grow(x span) spans {
	if n := len(s); n > 0 && s[n-1].from <= x.from && x.from <= s[n-1].to+1 {
		s[n-1].to = max(s[n-1].to, x.to)
		return s
	}
	return s.with(x)
}

func (s spans) bytes() []byte {
	b := make([]byte, 0, 2*len(s)*binary.MaxVarintLen64)
	for _, x := range s {
		b = binary.AppendUvarint(b, x.from)
		b = binary.AppendUvarint(b, x.to)
	}
	return b
}

func parseSpans(b []byte) (s spans, err error) {
	for len(b) > 0 {
		from, n := binary.Uvarint(b)
		if n <= 0 {
			return nil, errors.New("air: reading positions: invalid record")
		}
		to, k := binary.Uvarint(b[n:])
		if k <= 0 || to < from {
			return nil, errors.New("air: reading positions: invalid record")
		}
		s = append(s, span{from, to})
		b = b[n+k:]
	}
	return s, nil
}
