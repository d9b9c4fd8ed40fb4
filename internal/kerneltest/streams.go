// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package kerneltest

import (
	"context"
	"fmt"
	"io"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/internal/lease"
	"github.com/fivewire/fivewire/internal/streamlog"
)

// count writes the numbers 1 to n.
func count(n int, delay time.Duration) func(ctx context.Context, w *streamlog.Writer) error {
	return func(ctx context.Context, w *streamlog.Writer) error {
		for i := 1; i <= n; i++ {
			if _, err := w.Append(ctx, fmt.Append(nil, i)); err != nil {
				return err
			}
			time.Sleep(delay)
		}
		return nil
	}
}

// requireNumbers requires the items after a number.
func requireNumbers(t *testing.T, items []string, after, last int) {
	t.Helper()
	var want []string
	for i := after + 1; i <= last; i++ {
		want = append(want, fmt.Sprint(i, " ", i))
	}
	require.Equal(t, want, items, "items %d to %d", after+1, last)
}

// A reader that returns, in any process, gets the rest without a gap.
func testStreamResumes(t *testing.T, c *cluster) {
	p := []*process{c.start(), c.start()}
	require.NoError(t, p[0].stream("s", "user", streamlog.Options{Resumable: true}, count(80, c.ttl/100)))
	after := 0
	for round := 0; after < 51; round++ {
		r, err := p[round%2].streams.Read(t.Context(), "s", "user", uint64(after))
		require.NoError(t, err)
		page, err := r.Next(t.Context(), make([]streamlog.Item, 0, 7))
		require.NoError(t, err)
		for _, item := range page {
			after++
			require.Equal(t, fmt.Sprint(after, " ", after), fmt.Sprint(item.N, " ", string(item.Data)))
		}
		r.Close()
	}
	for i := range p {
		items, err := p[i].read(t.Context(), "s", "user", uint64(after))
		require.Equal(t, io.EOF, err)
		requireNumbers(t, items, after, 80)
	}
}

// A position that does not exist is refused at once.
func testStreamRefusesPositions(t *testing.T, c *cluster) {
	p := []*process{c.start(), c.start()}
	done := make(chan struct{})
	o := streamlog.Options{Resumable: true, Retain: 2000, Window: 2000}
	require.NoError(t, p[0].stream("s", "user", o, func(ctx context.Context, w *streamlog.Writer) error {
		defer close(done)
		return count(400, 0)(ctx, w)
	}))
	items, err := p[0].read(t.Context(), "s", "user", 0)
	require.Equal(t, io.EOF, err)
	requireNumbers(t, items, 0, 400)
	<-done
	for i := range p {
		start := time.Now()
		_, err := p[i].read(t.Context(), "s", "user", 401)
		require.Equal(t, streamlog.ErrAhead, err)
		_, err = p[i].read(t.Context(), "s", "another", 0)
		require.Equal(t, streamlog.ErrUnknown, err)
		_, err = p[i].read(t.Context(), "t", "user", 0)
		require.Equal(t, streamlog.ErrUnknown, err)
		_, err = p[i].read(t.Context(), "s", "user", 1)
		var gap *streamlog.GapError
		require.ErrorAs(t, err, &gap)
		require.EqualValues(t, 2, gap.Want)
		require.Less(t, time.Since(start), c.limit(0))
		items, err := p[i].read(t.Context(), "s", "user", gap.First-1)
		require.Equal(t, io.EOF, err)
		requireNumbers(t, items, int(gap.First-1), 400)
	}
}

// A stream whose process has failed ends within a lease and a third.
func testStreamEndsWithProcess(t *testing.T, c *cluster) {
	p := []*process{c.start(), c.start()}
	require.NoError(t, p[0].stream("s", "user", streamlog.Options{Resumable: true}, count(1<<20, c.ttl/50)))
	r, err := p[1].streams.Read(t.Context(), "s", "user", 0)
	require.NoError(t, err)
	defer r.Close()
	next := uint64(1)
	var crashed time.Time
	for err == nil {
		var page []streamlog.Item
		page, err = r.Next(t.Context(), nil)
		for _, item := range page {
			require.Equal(t, next, item.N)
			next++
		}
		if next > 20 && crashed.IsZero() {
			p[0].crash()
			crashed = time.Now()
		}
	}
	var cut *streamlog.CutError
	require.ErrorAs(t, err, &cut)
	require.ErrorIs(t, err, lease.ErrLost)
	require.Less(t, time.Since(crashed), c.limit(c.ttl*4/3+2*time.Second))
}

// A connected reader that reads slowly slows the handler, and loses nothing.
func testSlowReaderSlowsWriter(t *testing.T, c *cluster) {
	p := []*process{c.start(), c.start()}
	for i := range p {
		const total, window = 600, 20
		var written atomic.Int64
		id := fmt.Sprint("s", i)
		o := streamlog.Options{Window: window * 256, Resumable: true}
		begin := make(chan struct{})
		require.NoError(t, p[0].stream(id, "user", o, func(ctx context.Context, w *streamlog.Writer) error {
			<-begin
			for n := 1; n <= total; n++ {
				if _, err := w.Append(ctx, fmt.Append(nil, n)); err != nil {
					return err
				}
				written.Add(1)
			}
			return nil
		}))
		r, err := p[i].streams.Read(t.Context(), id, "user", 0)
		require.NoError(t, err)
		time.Sleep(c.ttl / 4) // until the writer knows the reader
		close(begin)
		var items []string
		for err == nil {
			var page []streamlog.Item
			page, err = r.Next(t.Context(), make([]streamlog.Item, 0, 5))
			for _, item := range page {
				items = append(items, fmt.Sprint(item.N, " ", string(item.Data)))
			}
			if len(items)%100 == 0 {
				time.Sleep(c.ttl / 4)
				require.LessOrEqual(t, written.Load(), int64(len(items)+window), "items ahead of the reader")
			}
		}
		require.Equal(t, io.EOF, err)
		requireNumbers(t, items, 0, total)
		r.Close()
	}
}
