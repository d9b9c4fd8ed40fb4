// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package seen

import (
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fivewire/fivewire/internal/bench/pair"
)

// A mapRing is the floor of two windows: a map and a ring of 10,000 pairs of keys.
type mapRing struct {
	mu   sync.Mutex
	m    map[[16]byte]struct{}
	ring [20_000][16]byte
	i    int
}

func (r *mapRing) add(a, b [16]byte) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.addLocked(a)
	r.addLocked(b)
}

func (r *mapRing) addLocked(k [16]byte) {
	if _, ok := r.m[k]; !ok {
		if r.i >= len(r.ring) {
			delete(r.m, r.ring[r.i%len(r.ring)])
		}
		r.ring[r.i%len(r.ring)] = k
		r.m[k] = struct{}{}
	}
	r.i++
}

// benchKeys returns the keys of an operation.
func benchKeys(i int64) (a, b [16]byte) {
	binary.LittleEndian.PutUint64(a[:], uint64(i)*0x9e3779b97f4a7c15)
	binary.LittleEndian.PutUint64(b[:], uint64(i)*0xbf58476d1ce4e5b9)
	return a, b
}

// newBench returns an operation that adds a key to each of two windows. It takes a millisecond on their clock,
// and its keys stay for 10,000 operations.
func newBench() func(i int64) error {
	one, two := New(Options{PerScope: -1}), New(Options{PerScope: -1})
	var clock atomic.Int64
	one.now, two.now = clock.Load, clock.Load
	principals := make([]string, 64)
	for i := range principals {
		principals[i] = fmt.Sprint("did:example:principal-", i)
	}
	return func(int64) error {
		i := clock.Add(1)
		a, b := benchKeys(i)
		until := time.UnixMilli(i + 9_000)
		return errors.Join(one.Add(principals[i%64], "thread", a, until), two.Add(principals[i%64], "", b, until))
	}
}

func BenchmarkPairAdd(b *testing.B) {
	for _, callers := range []int{1, 64} {
		b.Run(fmt.Sprintf("callers=%d", callers), func(b *testing.B) {
			r := &mapRing{m: map[[16]byte]struct{}{}}
			var n atomic.Int64
			pair.RatioCallers(b, callers, newBench(), func(int64) error {
				r.add(benchKeys(n.Add(1)))
				return nil
			})
		})
	}
}

// The base is one caller.
func BenchmarkPairAddCallers(b *testing.B) {
	op := newBench()
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
