// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"encoding/binary"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/fivewire/fivewire/internal/budget"
	"github.com/fivewire/fivewire/store"
)

// The index agrees with a map with expiry times.
func TestKnownAgainstModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var k dedupIndex
		type entry struct{ seq, until int64 }
		model := make(map[mailSum]entry)
		now, ttl := int64(1000), int64(50)
		seq := uint64(0)
		for range rapid.IntRange(1, 800).Draw(t, "n") {
			now += rapid.Int64Range(0, 3).Draw(t, "pause")
			var sum mailSum
			binary.BigEndian.PutUint16(sum[:], rapid.Uint16Range(0, 300).Draw(t, "sum"))
			for s, e := range model {
				if e.until <= now {
					delete(model, s)
				}
			}
			want, ok := model[sum]
			got, found := k.seq(sum, time.Unix(0, now))
			require.Equal(t, ok, found)
			require.Equal(t, uint64(want.seq), got)
			require.Len(t, k.seqs, len(model))
			if !ok {
				seq++
				model[sum] = entry{int64(seq), now + ttl}
				k.add(sum, seq, time.Unix(0, now+ttl))
			}
		}
	})
}

func newBoxes(st store.Store, ttl time.Duration) *boxes {
	o := ServerOptions{Persistence: Persistence{Store: st, Retention: ttl}}
	o.withDefaults()
	b := &boxes{}
	b.init(&o)
	b.budget = budget.New(o.Limits.budget(o.Logger), b.evict)
	return b
}

// Mailboxes over the limit are closed, but not the only place of unexpired entries (AIR-D61). A
// caller with a closed mailbox continues with its replacement.
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
		n, err := b.ack(t.Context(), "box", []string{"id"})
		require.NoError(t, err)
		require.Equal(t, 1, n)
		visit()
		duplicate, err := b.push(t.Context(), "box", m)
		require.NoError(t, err)
		require.Equal(t, first, duplicate)
		old := b.get("box")
		time.Sleep(time.Hour)
		visit()
		require.NotContains(t, b.open, "box")
		require.True(t, old.closed)
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
