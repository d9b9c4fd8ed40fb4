// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package memory

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/store"
)

func newTestWrites(t testing.TB, k *keeper, from, to int) (writes []numberedWrite) {
	for i := from; i < to; i++ {
		_, w, err := k.newWrite(fmt.Appendf(nil, `{"key":{"k":%d},"content":"word w%d","tier":"semantic"}`, i, i))
		require.NoError(t, err)
		writes = append(writes, numberedWrite{w, i})
	}
	return writes
}

func countWords(t testing.TB, s *shelf, word string) int64 {
	found, err := byIndex(t.Context(), []*shelf{s}, &RetrieveRequest{Query: word, Limit: 1000}, queryWords(word))
	require.NoError(t, err)
	require.EqualValues(t, found.Total, len(found.Entries))
	return found.Total
}

// A shelf finds what another one over the same store has changed, also more than the news have room for.
func TestShelfFollowsManyChanges(t *testing.T) {
	kv, k, o := store.NewMemory(), &keeper{}, &Options{MaxEntries: 1000, MaxBytes: 1 << 20}
	a, b := newShelf(kv, "shelf", true), newShelf(kv, "shelf", true)
	require.Zero(t, countWords(t, b, "word"))
	for _, n := range []int{1, 100, 128, 129, 300} {
		_, err := a.store(t.Context(), newTestWrites(t, k, 0, n), o, math.MaxInt64)
		require.NoError(t, err)
		require.EqualValues(t, n, countWords(t, b, "word"))
		require.EqualValues(t, n, countWords(t, a, "word"))
	}
	require.NoError(t, kv.Delete(t.Context(), "shelf/news", 0)) // as if it had expired
	_, err := b.forget(t.Context(), hashes([]json.RawMessage{json.RawMessage(`{"k":7}`)}), nil, k.position()|1)
	require.NoError(t, err)
	require.EqualValues(t, 299, countWords(t, a, "word"))
	_, err = a.store(t.Context(), newTestWrites(t, k, 300, 301), o, math.MaxInt64)
	require.NoError(t, err)
	require.EqualValues(t, 300, countWords(t, b, "word"))
}

// A write over a row that another process has written since keeps the position of the row.
func TestShelfWritesOverAnotherProcess(t *testing.T) {
	kv, k, o := store.NewMemory(), &keeper{}, &Options{MaxEntries: 1000, MaxBytes: 1 << 20}
	a, b := newShelf(kv, "shelf", true), newShelf(kv, "shelf", true)
	require.Zero(t, countWords(t, a, "word"))
	first := newTestWrites(t, k, 1, 2)
	_, err := b.store(t.Context(), first, o, math.MaxInt64)
	require.NoError(t, err)
	second := newTestWrites(t, k, 1, 2)
	require.NoError(t, a.lock(t.Context()))
	require.NoError(t, a.apply(t.Context(), []write{second[0].write})) // without the news
	a.unlock()
	e, err := kv.Get(t.Context(), a.rowKey(first[0].hash))
	require.NoError(t, err)
	d, _, ok := readRow(first[0].hash, e)
	require.True(t, ok)
	require.Equal(t, first[0].position, d.position)
	require.Greater(t, d.stamp, first[0].stamp)
	for _, s := range []*shelf{a, b} {
		require.EqualValues(t, 1, countWords(t, s, "word"))
		require.Empty(t, s.doubtful)
	}
}

// An entry that has lost the tag since is not removed by it.
func TestForgetByTagReadsTheEntryAgain(t *testing.T) {
	kv, k, o := store.NewMemory(), &keeper{}, &Options{MaxEntries: 1000, MaxBytes: 1 << 20}
	put := func(s *shelf, tag string) write {
		_, w, err := k.newWrite(fmt.Appendf(nil, `{"key":{"k":1},"content":1,"tier":"semantic","tags":[%q]}`, tag))
		require.NoError(t, err)
		_, err = s.store(t.Context(), []numberedWrite{{w, 0}}, o, math.MaxInt64)
		require.NoError(t, err)
		return w
	}
	a, b := newShelf(kv, "shelf", true), newShelf(kv, "shelf", true)
	w := put(a, "red")
	d := a.index.docs[0]
	put(b, "blue")
	removal := write{document: document{hash: w.hash, revision: d.revision, stamp: d.stamp | 1}}
	removal.selects = func(text []byte) bool { return slices.Contains(tagsOf(text), "red") }
	require.NoError(t, a.lock(t.Context()))
	require.NoError(t, a.apply(t.Context(), []write{removal}))
	a.unlock()
	_, err := kv.Get(t.Context(), a.rowKey(w.hash))
	require.NoError(t, err)
	removal.selects = nil
	require.NoError(t, a.write(t.Context(), &removal))
	require.True(t, removal.isDone)
	_, err = kv.Get(t.Context(), a.rowKey(w.hash))
	require.ErrorIs(t, err, store.ErrNotFound)
}

// contendedKV has a conflict with another process at each of the first writes.
type contendedKV struct {
	store.KV
	n int // conflicts
}

func (c *contendedKV) Create(ctx context.Context, key string, value []byte, ttl time.Duration) (store.Revision, error) {
	if c.n > 0 {
		c.n--
		return 0, store.ErrConflict
	}
	return c.KV.Create(ctx, key, value, ttl)
}

// A process pauses after each conflict over a row or over the news, and writes until its context ends.
func TestShelfPausesAfterConflicts(t *testing.T) {
	for name, write := range map[string]func(context.Context, *shelf) error{
		"row": func(ctx context.Context, s *shelf) error {
			return s.write(ctx, &newTestWrites(t, &keeper{}, 0, 1)[0].write)
		},
		"news": func(ctx context.Context, s *shelf) error { return s.announce(ctx) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				kv := &contendedKV{KV: store.NewMemory(), n: 1000}
				s := newShelf(kv, "shelf", true)
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				require.ErrorIs(t, write(ctx, s), context.DeadlineExceeded)
				kv.n = 8
				started := time.Now()
				require.NoError(t, write(t.Context(), s))
				require.Zero(t, kv.n)
				require.Greater(t, time.Since(started), 100*time.Millisecond)
				require.Less(t, time.Since(started), time.Second)
			})
		})
	}
}

// lossyKV makes a change and loses the answer.
type lossyKV struct {
	store.KV
	isLossy bool
}

var errLost = errors.New("answer lost")

func (l *lossyKV) Create(ctx context.Context, key string, value []byte, ttl time.Duration) (store.Revision, error) {
	r, err := l.KV.Create(ctx, key, value, ttl)
	if l.isLossy {
		return 0, errLost
	}
	return r, err
}

func (l *lossyKV) Delete(ctx context.Context, key string, r store.Revision) error {
	err := l.KV.Delete(ctx, key, r)
	if l.isLossy {
		return errLost
	}
	return err
}

// A change whose answer was lost is found by all, and the bounds count it.
func TestShelfFindsChangesWithLostAnswers(t *testing.T) {
	for _, isShared := range []bool{false, true} {
		kv, k, o := &lossyKV{KV: store.NewMemory()}, &keeper{}, &Options{MaxEntries: 2, MaxBytes: 1 << 20}
		a := newShelf(kv, "shelf", isShared)
		b := a
		if isShared {
			b = newShelf(kv, "shelf", true)
		}
		require.Zero(t, countWords(t, b, "word"))
		kv.isLossy = true
		_, err := a.store(t.Context(), newTestWrites(t, k, 0, 2), o, math.MaxInt64)
		require.ErrorIs(t, err, errLost)
		kv.isLossy = false
		require.EqualValues(t, 2, countWords(t, a, "word"))
		refused, err := a.store(t.Context(), newTestWrites(t, k, 1, 3), o, math.MaxInt64)
		require.NoError(t, err)
		require.Equal(t, []int{2}, refused)
		require.EqualValues(t, 2, countWords(t, b, "word"))
		kv.isLossy = true
		_, err = a.forget(t.Context(), hashes([]json.RawMessage{json.RawMessage(`{"k":0}`)}), nil, k.position()|1)
		require.ErrorIs(t, err, errLost)
		kv.isLossy = false
		require.EqualValues(t, 1, countWords(t, a, "word"))
		require.EqualValues(t, 1, countWords(t, b, "word"))
	}
}

// The p99 of queries for words of at most 5,000 entries and for words of all entries.
func TestSearchOfLargeMemories(t *testing.T) {
	if os.Getenv("FIVEWIRE_LONG") == "" {
		t.Skip("fills a memory with 100,000 entries: set FIVEWIRE_LONG=1")
	}
	s := fillShelf(t, store.NewMemory(), false, 100000, 20000)
	rng := rand.New(rand.NewPCG(5, 6))
	for _, isRare := range []bool{true, false} {
		var times []time.Duration
		for len(times) < 300 {
			query := "everywhere t"
			if isRare {
				query = wordNumber(rng.IntN(10000)+10000) + " " + wordNumber(rng.IntN(10000)+10000)
			}
			started := time.Now()
			_, err := byIndex(t.Context(), []*shelf{s}, &RetrieveRequest{Query: query, Limit: 10}, queryWords(query))
			require.NoError(t, err)
			times = append(times, time.Since(started))
		}
		slices.Sort(times)
		t.Logf("words of all: %v; p50 %v, p99 %v", !isRare, times[len(times)/2], times[len(times)*99/100])
	}
}

// A muteKV refuses to announce changes.
type muteKV struct {
	store.KV
	isMute bool
}

func (m *muteKV) Update(ctx context.Context, key string, value []byte, r store.Revision, ttl time.Duration) (store.Revision, error) {
	if m.isMute && strings.HasSuffix(key, "/news") {
		return 0, context.Canceled
	}
	return m.KV.Update(ctx, key, value, r, ttl)
}

// A change that was written and not announced, such as by a canceled request, is announced by the next use of the memory.
func TestLateAnnouncement(t *testing.T) {
	kv, k, o := &muteKV{KV: store.NewMemory()}, &keeper{}, &Options{MaxEntries: 1000, MaxBytes: 1 << 20}
	a, b := newShelf(kv, "shelf", true), newShelf(kv, "shelf", true)
	_, err := a.store(t.Context(), newTestWrites(t, k, 0, 1), o, math.MaxInt64)
	require.NoError(t, err)
	require.EqualValues(t, 1, countWords(t, b, "word"))
	kv.isMute = true
	_, err = a.store(t.Context(), newTestWrites(t, k, 1, 2), o, math.MaxInt64)
	require.ErrorIs(t, err, context.Canceled)
	require.EqualValues(t, 2, countWords(t, a, "word"), "reads need no announcement")
	kv.isMute = false
	require.EqualValues(t, 2, countWords(t, a, "word"))
	require.EqualValues(t, 2, countWords(t, b, "word"))
}
