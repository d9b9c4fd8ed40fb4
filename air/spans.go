// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package air

import (
	"encoding/binary"
	"fmt"
)

// A span is a run of positions, both ends included; spans are several, in order
// and apart.
type (
	span  struct{ from, to uint64 }
	spans []span
)

func (s spans) covers(x span) bool {
	for i := len(s) - 1; i >= 0; i-- { // mostly the last one
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

// grow is with, in the memory of s where that is enough.
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
			return nil, fmt.Errorf("air: stored positions are damaged")
		}
		to, k := binary.Uvarint(b[n:])
		if k <= 0 || to < from {
			return nil, fmt.Errorf("air: stored positions are damaged")
		}
		s = append(s, span{from, to})
		b = b[n+k:]
	}
	return s, nil
}
