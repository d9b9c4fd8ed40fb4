// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"context"
	"fmt"
	"math"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/fivewire/fivewire/internal/budget"
	"github.com/fivewire/fivewire/store"
)

// pull reads a page and hands it out.
func (b *boxes) pull(ctx context.Context, box string, after uint64, limit int) ([]store.Record, bool, error) {
	recs, more, err := b.read(ctx, box, after, limit)
	if err == nil {
		err = b.hand(ctx, box, recs)
	}
	return recs, more, err
}

// The known ids agree with a map with expiry times and a bound.
func TestMemoryAgainstModel(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		synctest.Test(t, func(t *testing.T) { checkMemory(t, r) })
	})
}

func checkMemory(t *testing.T, r *rapid.T) {
	type entry struct {
		id    string
		seq   uint64
		until time.Time
	}
	const ttl = 50 * time.Millisecond
	s := newMemory(rapid.IntRange(1, 300).Draw(r, "max"))
	var model []entry
	for range rapid.IntRange(1, 800).Draw(r, "n") {
		time.Sleep(time.Duration(rapid.IntRange(0, 3).Draw(r, "pause")) * time.Millisecond)
		id := fmt.Sprintf("%032x", rapid.IntRange(0, 300).Draw(r, "id"))
		for len(model) > 0 && !model[0].until.After(time.Now()) {
			model = model[1:]
		}
		index := slices.IndexFunc(model, func(e entry) bool { return e.id == id })
		seq, err := s.Append(t.Context(), "stream", id, nil, ttl)
		if index >= 0 {
			require.ErrorIs(r, err, store.ErrDuplicate)
			require.Equal(r, model[index].seq, seq)
			continue
		}
		require.NoError(r, err)
		model = append(model, entry{id, seq, time.Now().Add(ttl)})
		model = model[max(0, len(model)-s.max):]
		require.Len(r, s.seqs, len(model))
	}
}

func newBoxes(st store.Store, ttl time.Duration) *boxes {
	o := ServerOptions{Persistence: Persistence{Store: st, Retention: ttl}}
	o.withDefaults()
	b := &boxes{}
	b.init(&o)
	b.budget = budget.New(o.Limits.budget(o.Logger), b.evict)
	return b
}

func TestLongestRetention(t *testing.T) {
	for _, st := range []store.Store{nil, store.NewMemory()} {
		synctest.Test(t, func(t *testing.T) {
			b := newBoxes(st, math.MaxInt64)
			for _, id := range []string{"1", "2"} {
				_, err := b.push(t.Context(), "box", &mail{id: id, from: "from", data: []byte("data")})
				require.NoError(t, err)
				time.Sleep(time.Hour)
			}
			require.Equal(t, int64(2), b.get("box").count.Load())
			recs, _, err := b.pull(t.Context(), "box", 0, 10)
			require.NoError(t, err)
			require.Len(t, recs, 2)
		})
	}
}

// Mailboxes without mail are closed over the limit; their envelopes stay known (AIR-D61). A caller with
// a closed mailbox continues with its replacement.
func TestMailboxesMakeRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBoxes(nil, time.Hour)
		b.maxOpen = 3
		visit := func() {
			for i := range 50 {
				_, _, err := b.pull(t.Context(), fmt.Sprint("empty", i), 0, 1)
				require.NoError(t, err)
				require.LessOrEqual(t, len(b.open), 3)
			}
		}
		m := &mail{id: "id", from: "from", data: []byte("data")}
		first, err := b.push(t.Context(), "box", m)
		require.NoError(t, err)
		recs, _, err := b.pull(t.Context(), "box", 0, 1)
		require.NoError(t, err)
		require.Len(t, recs, 1)
		visit()
		old := b.get("box")
		n, err := b.ack(t.Context(), "box", []string{"id"})
		require.NoError(t, err)
		require.Equal(t, 1, n)
		visit()
		require.NotContains(t, b.open, "box")
		require.True(t, old.closed)
		duplicate, err := b.push(t.Context(), "box", m)
		require.NoError(t, err)
		require.Equal(t, first, duplicate)
		time.Sleep(time.Hour)
		mb, err := b.lock(t.Context(), "box")
		require.NoError(t, err)
		require.NotSame(t, old, mb)
		mb.unlock()
		duplicate, err = b.push(t.Context(), "box", m)
		require.NoError(t, err)
		require.NotEqual(t, first, duplicate)
	})
}

// The index of a relay without pushes does not keep envelopes that other relays stored and
// acknowledged.
func TestIndexForgetsWhatOthersDid(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := store.NewMemory()
		one, two := newBoxes(st, 24*time.Hour), newBoxes(st, 24*time.Hour)
		for i := range 150 {
			id := fmt.Sprint("id", i)
			_, err := one.push(t.Context(), "box", &mail{id: id, from: "from", data: []byte(id)})
			require.NoError(t, err)
			n, err := two.ack(t.Context(), "box", []string{"other"})
			require.NoError(t, err)
			require.Zero(t, n)
			_, _, err = one.pull(t.Context(), "box", 0, 1)
			require.NoError(t, err)
			n, err = one.ack(t.Context(), "box", []string{id})
			require.NoError(t, err)
			require.Equal(t, 1, n)
			time.Sleep(time.Minute)
		}
		require.LessOrEqual(t, len(two.open["box"].seqs), 62)
	})
}

// A lateStore fails the acknowledgements, and makes each of them two seconds after the failure.
type lateStore struct{ store.Store }

func (s lateStore) Ack(ctx context.Context, stream string, seqs ...uint64) error {
	<-ctx.Done() // the caller repeats it until then
	seqs = slices.Clone(seqs)
	time.AfterFunc(2*time.Second, func() { _ = s.Store.Ack(context.Background(), stream, seqs...) })
	return context.Cause(ctx)
}

// An acknowledgement that takes effect after the next use of its mailbox leaves nothing in the index.
func TestLateAckLeavesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBoxes(lateStore{store.NewMemory()}, time.Hour)
		push := func(id string) {
			_, err := b.push(t.Context(), "box", &mail{id: id, from: "from", data: []byte(id)})
			require.NoError(t, err)
		}
		push("a")
		_, _, err := b.pull(t.Context(), "box", 0, 1)
		require.NoError(t, err)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err = b.ack(ctx, "box", []string{"a"})
		require.Error(t, err)
		push("b") // builds the index with both
		require.EqualValues(t, 2, b.open["box"].count.Load())
		time.Sleep(2 * time.Minute)
		require.EqualValues(t, 1, b.open["box"].count.Load())
		recs, _, err := b.pull(t.Context(), "box", 0, 9)
		require.NoError(t, err)
		require.Len(t, recs, 1)
	})
}
