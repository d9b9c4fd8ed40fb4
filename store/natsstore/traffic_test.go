// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package natsstore_test

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/store"
)

// Traffic is the load of services on a store: they create keys, count, append work to a queue under
// an id and do it once. It continues whatever happens to the servers, and records the acknowledged
// operations.
type traffic struct {
	stores []store.Store
	ctx    context.Context // ends the traffic, never a call in the middle

	mu       sync.Mutex
	created  map[string]string // acknowledged keys and their values
	counted  int               // acknowledged increments
	unclear  int               // increments with an error: made or not
	appended map[string]uint64 // acknowledged records by id
	done     map[string]int    // how often the work of an id was done
	faults   []string          // what must not happen
	errs     map[string]int

	made atomic.Int64 // acknowledged calls
}

func newTraffic(ctx context.Context, stores ...store.Store) *traffic {
	return &traffic{
		stores: stores, ctx: ctx, created: map[string]string{}, appended: map[string]uint64{}, done: map[string]int{}, errs: map[string]int{},
	}
}

func (tr *traffic) note(f func()) {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	f()
}

func (tr *traffic) failed(err error) { tr.note(func() { tr.errs[err.Error()]++ }) }

func (tr *traffic) wrong(format string, args ...any) {
	tr.note(func() { tr.faults = append(tr.faults, fmt.Sprintf(format, args...)) })
}

// run continues until the context of the traffic ends.
func (tr *traffic) run() {
	var wg sync.WaitGroup
	for i, s := range tr.stores {
		for _, work := range []func(int, store.Store){tr.create, tr.count, tr.produce, tr.consume} {
			wg.Go(func() { work(i, s) })
		}
	}
	wg.Wait()
}

func (tr *traffic) create(i int, s store.Store) {
	for n := 0; tr.ctx.Err() == nil; n++ {
		key, value := fmt.Sprintf("key/%d/%d", i, n), fmt.Sprint(i, "-", n)
		if _, err := s.Create(context.Background(), key, []byte(value), 0); err != nil {
			tr.failed(err)
			if errors.Is(err, store.ErrExists) {
				tr.wrong("Create of %s, which nobody else creates: %v", key, err)
			}
			continue
		}
		tr.made.Add(1)
		tr.note(func() { tr.created[key] = value })
		if e, err := s.Get(context.Background(), key); err == nil && string(e.Value) != value {
			tr.wrong("Get of %s returns %q", key, e.Value)
		} else if errors.Is(err, store.ErrNotFound) {
			tr.wrong("Get of %s, which was created: %v", key, err)
		}
	}
}

func (tr *traffic) count(_ int, s store.Store) {
	_, _ = s.Create(context.Background(), "n", []byte("0"), 0)
	for tr.ctx.Err() == nil {
		e, err := s.Get(context.Background(), "n")
		if err != nil {
			tr.failed(err)
			continue
		}
		n, _ := strconv.Atoi(string(e.Value))
		switch _, err := s.Update(context.Background(), "n", []byte(strconv.Itoa(n+1)), e.Revision, 0); {
		case err == nil:
			tr.made.Add(1)
			tr.note(func() { tr.counted++ })
		case !errors.Is(err, store.ErrConflict):
			tr.failed(err)
			tr.note(func() { tr.unclear++ })
		}
	}
}

// produce appends with an id until the record is acknowledged.
func (tr *traffic) produce(i int, s store.Store) {
	for n := 0; tr.ctx.Err() == nil; n++ {
		id := fmt.Sprintf("%d-%d", i, n)
		for {
			seq, err := s.Append(context.Background(), "queue", id, []byte(id), time.Hour)
			if err == nil || errors.Is(err, store.ErrDuplicate) {
				tr.made.Add(1)
				tr.note(func() { tr.appended[id] = seq })
				break
			}
			tr.failed(err)
			if tr.ctx.Err() != nil {
				return
			}
		}
	}
}

// consume does the work of the queue, which the consumers share.
func (tr *traffic) consume(_ int, s store.Store) {
	for tr.ctx.Err() == nil {
		if err := s.Wait(tr.ctx, "queue", 0); err != nil {
			continue
		}
		tr.drain(s)
	}
}

// drain does what is in the queue now.
func (tr *traffic) drain(s store.Store) {
	records, err := s.Read(context.Background(), "queue", 0, 5)
	if err != nil {
		tr.failed(err)
		return
	}
	for _, r := range records {
		// The caller that creates the claim does the work. Without a response, the work is not done
		// here, and the claim shows at the end that another caller may have done it.
		switch _, err := s.Create(context.Background(), "claim/"+r.ID, nil, time.Hour); {
		case err == nil:
			tr.note(func() { tr.done[r.ID]++ })
		case !errors.Is(err, store.ErrExists):
			tr.failed(err)
			continue
		}
		if err := s.Ack(context.Background(), "queue", r.Seq); err != nil {
			tr.failed(err)
		} else {
			tr.made.Add(1)
		}
	}
}

// check compares the stored state with the acknowledged operations.
func (tr *traffic) check(t *testing.T, s store.Store) {
	t.Helper()
	ctx := t.Context()
	for {
		records, err := s.Read(ctx, "queue", 0, 1)
		require.NoError(t, err)
		if len(records) == 0 {
			break
		}
		tr.drain(s)
	}
	require.Empty(t, tr.faults)
	there := map[string]string{}
	for e, err := range s.List(ctx, "key/") {
		require.NoError(t, err)
		there[e.Key] = string(e.Value)
	}
	for key, value := range tr.created {
		if there[key] != value {
			t.Errorf("key %s was acknowledged with %q and is %q", key, value, there[key])
		}
	}
	e, err := s.Get(ctx, "n")
	require.NoError(t, err)
	n, err := strconv.Atoi(string(e.Value))
	require.NoError(t, err)
	if n < tr.counted || n > tr.counted+tr.unclear {
		t.Errorf("counted to %d, want %d and up to %d more", n, tr.counted, tr.unclear)
	}
	claims := map[string]bool{}
	for e, err := range s.List(ctx, "claim/") {
		require.NoError(t, err)
		claims[e.Key] = true
	}
	for id, seq := range tr.appended {
		if tr.done[id] > 1 {
			t.Errorf("the work of %s was done %d times", id, tr.done[id])
		}
		if !claims["claim/"+id] {
			t.Errorf("record %s was acknowledged at %d and never seen", id, seq)
		}
		if got, err := s.Append(ctx, "queue", id, nil, 0); !errors.Is(err, store.ErrDuplicate) || got != seq {
			t.Errorf("id %s: position %d, error %v, want %d and a duplicate", id, got, err, seq)
		}
	}
	t.Logf("%d keys, counted to %d (%d unclear), %d records, errors %v", len(tr.created), n, tr.unclear, len(tr.appended), tr.errs)
}
