// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"encoding/binary"
	"runtime"
	"sync"
)

// A reader is the source of crypto/rand in a run. The bytes depend on the seed, the time and the
// calling functions. A stream for all callers would depend on the order of the goroutines of one nanosecond:
// the end of a context, for example, wakes them in the order of a map.
type reader World

// Read implements io.Reader.
func (r *reader) Read(p []byte) (int, error) {
	var buf [8]byte
	key := callers()
	for i := 0; i < len(p); i += 8 {
		binary.LittleEndian.PutUint64(buf[:], (*World)(r).drawKey(key))
		copy(p[i:], buf[:])
	}
	return len(p), nil
}

const maxStack = 6

// stacks has the hashes of the names of the functions of stacks.
var stacks sync.Map

// callers returns a hash of the names of the calling functions, which are the same in every build.
func callers() uint64 {
	var pcs [maxStack]uintptr
	n := runtime.Callers(3, pcs[:])
	if h, ok := stacks.Load(pcs); ok {
		return h.(uint64)
	}
	h := uint64(fnvBasis)
	for frames := runtime.CallersFrames(pcs[:n]); ; {
		frame, hasMore := frames.Next()
		h = hash(h, frame.Function)
		if !hasMore {
			break
		}
	}
	stacks.Store(pcs, h)
	return h
}
