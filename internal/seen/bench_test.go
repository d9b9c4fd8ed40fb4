// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package seen

import (
	"encoding/binary"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fivewire/fivewire/internal/bench/pair"
)

// A mapRing is the floor of a window: a map and a ring of 10,000 keys.
type mapRing struct {
	mu   sync.Mutex
	m    map[[16]byte]struct{}
	ring [10_000][16]byte
	i    int
}

func (r *mapRing) add(k [16]byte) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, ok := r.m[k]; !ok {
		if r.i >= len(r.ring) {
			delete(r.m, r.ring[r.i%len(r.ring)])
		}
		r.ring[r.i%len(r.ring)] = k
		r.m[k] = struct{}{}
	}
	r.i++
}

func benchKeys() [][16]byte {
	keys := make([][16]byte, 40_000)
	for i := range keys {
		binary.LittleEndian.PutUint64(keys[i][:], uint64(i)*0x9e3779b97f4a7c15)
		binary.LittleEndian.PutUint64(keys[i][8:], uint64(i)*0xbf58476d1ce4e5b9)
	}
	return keys
}

// newBenchWindow returns a window and an operation with it. An operation takes a
// millisecond on the clock of the window, and its key stays for 10,000 operations.
func newBenchWindow() (*Window, func(i int64) error) {
	w := New(Options{PerScope: -1})
	var clock atomic.Int64
	w.now = clock.Load
	keys := benchKeys()
	principals := make([]string, 64)
	for i := range principals {
		principals[i] = fmt.Sprint("did:example:principal-", i)
	}
	return w, func(int64) error {
		i := clock.Add(1)
		return w.Add(principals[i%64], "thread", keys[i%int64(len(keys))], time.UnixMilli(i+9_000))
	}
}

func BenchmarkPairAdd(b *testing.B) {
	for _, callers := range []int{1, 64} {
		b.Run(fmt.Sprintf("callers=%d", callers), func(b *testing.B) {
			_, op := newBenchWindow()
			r, keys := &mapRing{m: map[[16]byte]struct{}{}}, benchKeys()
			var n atomic.Int64
			pair.RatioCallers(b, callers, op, func(int64) error {
				r.add(keys[n.Add(1)%int64(len(keys))])
				return nil
			})
		})
	}
}

// The base is one caller.
func BenchmarkPairAddCallers(b *testing.B) {
	_, op := newBenchWindow()
	pair.Ratio(b, func(n int) {
		var wg sync.WaitGroup
		for range 64 {
			wg.Go(func() {
				for range n/64 + 1 {
					_ = op(0)
				}
			})
		}
		wg.Wait()
	}, pair.Loop(func() {
		if err := op(0); err != nil {
			b.Fatal(err)
		}
	}))
}
