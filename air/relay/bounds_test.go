// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/air"
	"github.com/fivewire/fivewire/internal/kit"
	"github.com/fivewire/fivewire/internal/race"
	"github.com/fivewire/fivewire/internal/testkit"
	"github.com/fivewire/fivewire/store"
)

// A farStore keeps nothing in this process.
type farStore struct {
	store.Store
	seq atomic.Uint64
}

func (s *farStore) Append(context.Context, string, string, []byte, time.Duration) (uint64, error) {
	return s.seq.Add(1), nil
}

func (*farStore) Read(context.Context, string, uint64, int) ([]store.Record, error) { return nil, nil }

// The index takes at most 256 bytes for each envelope in a store elsewhere, however large that is:
// it keeps no envelope alive (AIR-D86).
func TestIndexIsSmall(t *testing.T) {
	if race.Enabled {
		t.Skip("the race detector needs memory")
	}
	const count, size = 5_000, 60_000
	srv := newServer(t, ServerOptions{Limits: Limits{MaxStorage: -1, MaxStoragePerPrincipal: -1, MaxStoragePerSession: -1, QueueLimitPerSession: -1},
		Persistence: Persistence{Store: &farStore{}}})
	base := signedSample(t, 1<<10)
	original, err := newMail(base)
	require.NoError(t, err)
	id := original.id
	push := func(i int) {
		data := bytes.Replace(base, []byte(id), fmt.Appendf(nil, "%s%012d", id[:24], i), 1)
		m, err := newMail(append(data, bytes.Repeat([]byte(" "), size-len(data))...))
		require.NoError(t, err)
		_, err = srv.boxes.push(t.Context(), "AIR-TEST-0000-0001", m)
		require.NoError(t, err)
	}
	push(0)
	before := kit.Heap()
	for i := 1; i <= count; i++ {
		push(i)
	}
	require.LessOrEqual(t, (kit.Heap()-before)/count, int64(256))
	runtime.KeepAlive(srv)
}

// The known ids of acknowledged envelopes are bounded in all, and the oldest are the first to go. Queued
// envelopes stay known.
func TestHistoryIsBounded(t *testing.T) {
	b := newBoxes(nil, time.Hour)
	mem := newMemory(100)
	b.store = mem
	push := func(box string, n int) uint64 {
		id := fmt.Sprint("id", n)
		seq, err := b.push(t.Context(), box, &mail{id: id, from: "from", data: []byte(id)})
		require.NoError(t, err)
		return seq
	}
	first := push("queued", 0)
	for i := range 300 {
		box := fmt.Sprint("box", i%2)
		push(box, i)
		_, _, err := b.pull(t.Context(), box, 0, 1)
		require.NoError(t, err)
		n, err := b.ack(t.Context(), box, []string{fmt.Sprint("id", i)})
		require.NoError(t, err)
		require.Equal(t, 1, n)
		push("queued", i+1)
	}
	require.Len(t, mem.seqs, 100)
	require.Equal(t, first, push("queued", 0), "a copy of queued mail is stored again")
	require.EqualValues(t, 301, b.open["queued"].count.Load())
}

// Another process empties a full mailbox of a shared store in order: the next push reads one page, not
// the mailbox, and then has room.
func TestFullMailboxOfSharedStoreIsComparedByPage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const count = 5_000
		st := &countingStore{Store: store.NewMemory()}
		one := newBoxes(st, time.Hour)
		one.max = count
		two := newBoxes(st, time.Hour)
		push := func(n int) error {
			id := fmt.Sprint("id", n)
			_, err := one.push(t.Context(), "box", &mail{id: id, from: "from", data: []byte(id)})
			return err
		}
		for n := range count {
			require.NoError(t, push(n))
		}
		time.Sleep(time.Second)
		st.records.Store(0)
		for n := range 200 {
			require.ErrorIs(t, push(count+n), air.ErrRateLimited)
			time.Sleep(100 * time.Millisecond)
		}
		require.LessOrEqual(t, st.records.Load(), int64(25*(therePage+1)))
		for range 20 {
			recs, _, err := two.pull(t.Context(), "box", 0, 100)
			require.NoError(t, err)
			var ids []string
			for _, rec := range recs {
				m := mailOf(rec)
				m.open()
				ids = append(ids, m.id)
			}
			n, err := two.ack(t.Context(), "box", ids)
			require.NoError(t, err)
			require.Equal(t, 100, n)
		}
		time.Sleep(time.Second)
		st.records.Store(0)
		require.NoError(t, push(count))
		require.LessOrEqual(t, st.records.Load(), int64(2*(therePage+1)))
		require.EqualValues(t, count-2000+1, one.open["box"].count.Load())

		// An acknowledgement of scattered ids costs a bounded number of requests.
		recs, _, err := two.pull(t.Context(), "box", 0, 3000)
		require.NoError(t, err)
		var ids []string
		for i := 0; i < len(recs); i += 10 {
			m := mailOf(recs[i])
			m.open()
			ids = append(ids, m.id)
		}
		st.reads.Store(0)
		n, err := two.ack(t.Context(), "box", ids)
		require.NoError(t, err)
		require.Equal(t, len(ids), n)
		require.LessOrEqual(t, st.reads.Load(), int64(thereReads+1))
		one.max = 3001
		for second := 0; push(10*count) != nil; second++ { // the comparison reaches each page
			require.Less(t, second, 2+3001/therePage)
			time.Sleep(time.Second)
		}
	})
}

// A countingStore counts reads and their records.
type countingStore struct {
	store.Store
	reads, records atomic.Int64
}

func (s *countingStore) Read(ctx context.Context, stream string, after uint64, limit int) ([]store.Record, error) {
	recs, err := s.Store.Read(ctx, stream, after, limit)
	s.reads.Add(1)
	s.records.Add(int64(len(recs)))
	return recs, err
}

// One address leaves half of a mailbox to others, the next half of the rest (AIR-D71).
func TestAddressLeavesRoomInMailbox(t *testing.T) {
	for _, st := range []store.Store{nil, store.NewMemory()} {
		b := newBoxes(st, time.Hour)
		b.max, b.maxBytes = 4*minShare, 1<<30
		n := 0
		fill := func(addr string, size int) (count int64) {
			for ; ; count++ {
				n++
				data := append(fmt.Appendf(nil, "id%d", n), make([]byte, size)...)
				_, err := b.push(t.Context(), "box", &mail{id: fmt.Sprint("id", n), from: "from", data: data, guest: addr})
				if err != nil {
					require.ErrorIs(t, err, air.ErrRateLimited)
					return count
				}
			}
		}
		require.EqualValues(t, 2*minShare, fill("one", 0))
		require.EqualValues(t, minShare, fill("two", 0))
		require.EqualValues(t, 0, fill("one", 0))
		_, _, err := b.pull(t.Context(), "box", 0, 2*minShare)
		require.NoError(t, err)
		var ids []string
		for i := range 2 * minShare {
			ids = append(ids, fmt.Sprint("id", i+1))
		}
		acked, err := b.ack(t.Context(), "box", ids)
		require.NoError(t, err)
		require.Equal(t, 2*minShare, acked)
		require.Len(t, b.open["box"].shares, 1)
		require.EqualValues(t, 3*minShare/2, fill("one", 0))
		require.EqualValues(t, 3*minShare/2, fill("", 0), "with a secret up to the bound")
	}
}

// The end of a relay or of a connection ends the requests in progress. The log has no error for them.
func TestEndOfRequestIsNoFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log testkit.Log
		srv := newServer(t, ServerOptions{Logger: log.Logger(), Directory: DirectoryFunc(func(ctx context.Context, _ string) (string, error) {
			<-ctx.Done()
			return "", ctx.Err()
		})})
		pull := func(ctx context.Context) {
			rec := httptest.NewRecorder()
			srv.ServeHTTP(rec, httptest.NewRequestWithContext(ctx, http.MethodGet, "/inbox/AIR-TEST-0000-0001/pull", nil))
			if rec.Code < 500 {
				t.Errorf("status %d", rec.Code)
			}
		}
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() { pull(ctx) })
		running.Go(func() { pull(t.Context()) })
		synctest.Wait()
		cancel()
		synctest.Wait()
		require.NoError(t, srv.Close())
		running.Wait()
		pull(t.Context())
		require.Equal(t, 3, strings.Count(log.String(), "level=DEBUG"), log.String())
		require.NotContains(t, log.String(), "level=ERROR")
	})
}
