// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package storetest

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fivewire/fivewire/store"
)

// Benchmark measures the operations of servers on an engine, with one caller and with sixteen
// concurrent ones: operations per second, and the median and 99th percentile of the latency in
// microseconds. Values are of 1 KB. Each measurement opens a separate store.
func Benchmark(b *testing.B, open func(b *testing.B) store.Store) {
	ctx := context.Background()
	value := bytes.Repeat([]byte("fivewire"), 128)
	const (
		keys    = 1000
		records = 1000
	)
	// fill stores what is read later.
	fill := func(b *testing.B, s store.Store) (revs []store.Revision, seqs []uint64) {
		revs, seqs = make([]store.Revision, keys), make([]uint64, records)
		each(16, keys, func(_, i int) (err error) {
			revs[i], err = s.Create(ctx, fmt.Sprint("key/", i), value, 0)
			return err
		}, b.Error)
		for i := range seqs {
			if i%16 == 0 {
				each(16, min(16, records-i), func(_, j int) (err error) {
					seqs[i+j], err = s.Append(ctx, "filled", "", value, 0)
					return err
				}, b.Error)
			}
		}
		slices.Sort(seqs)
		if b.Failed() {
			b.FailNow()
		}
		return revs, seqs
	}
	var unique atomic.Uint64
	for _, op := range []struct {
		name string
		// do returns the operation: what the caller number c does as its turn i.
		do func(b *testing.B, s store.Store) func(c, i int) error
	}{
		{"create", func(_ *testing.B, s store.Store) func(c, i int) error {
			return func(int, int) error {
				_, err := s.Create(ctx, fmt.Sprintf("new/%024d", unique.Add(1)), value, 5*time.Minute)
				return err
			}
		}},
		{"get", func(b *testing.B, s store.Store) func(c, i int) error {
			fill(b, s)
			return func(c, i int) error {
				_, err := s.Get(ctx, fmt.Sprint("key/", (i*7919+c)%keys))
				return err
			}
		}},
		{"update", func(b *testing.B, s store.Store) func(c, i int) error {
			revs, _ := fill(b, s)
			return func(c, _ int) (err error) { // each its own
				revs[c], err = s.Update(ctx, fmt.Sprint("key/", c), value, revs[c], 0)
				return err
			}
		}},
		{"append", func(_ *testing.B, s store.Store) func(c, i int) error {
			return func(c, _ int) error { // each its own stream
				_, err := s.Append(ctx, fmt.Sprint("stream/", c), fmt.Sprint(unique.Add(1)), value, 5*time.Minute)
				return err
			}
		}},
		{"appendToOne", func(_ *testing.B, s store.Store) func(c, i int) error {
			return func(int, int) error {
				_, err := s.Append(ctx, "stream", fmt.Sprint(unique.Add(1)), value, 5*time.Minute)
				return err
			}
		}},
		{"read10", func(b *testing.B, s store.Store) func(c, i int) error {
			_, seqs := fill(b, s)
			return func(c, i int) error {
				got, err := s.Read(ctx, "filled", seqs[(i*7919+c)%(records-11)], 10)
				if err == nil && len(got) != 10 {
					err = fmt.Errorf("read: %d records, want 10", len(got))
				}
				return err
			}
		}},
	} {
		for _, callers := range []int{1, 16} {
			b.Run(fmt.Sprintf("op=%s/callers=%d", op.name, callers), func(b *testing.B) {
				do := op.do(b, open(b))
				took := make([][]time.Duration, callers)
				b.ResetTimer()
				each(callers, b.N, func(c, i int) error {
					start := time.Now()
					err := do(c, i)
					took[c] = append(took[c], time.Since(start))
					return err
				}, b.Error)
				b.StopTimer()
				all := slices.Concat(took...)
				slices.Sort(all)
				b.ReportMetric(float64(len(all))/b.Elapsed().Seconds(), "ops/s")
				b.ReportMetric(float64(all[len(all)/2].Nanoseconds())/1000, "p50-µs")
				b.ReportMetric(float64(all[len(all)*99/100].Nanoseconds())/1000, "p99-µs")
			})
		}
	}
}

// each runs n operations on the given number of concurrent callers, and reports the first error of
// each caller.
func each(callers, n int, do func(c, i int) error, report func(...any)) {
	var wg sync.WaitGroup
	for c := range callers {
		wg.Go(func() {
			for i := c; i < n; i += callers {
				if err := do(c, i); err != nil {
					report(err)
					return
				}
			}
		})
	}
	wg.Wait()
}
