// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package outbox_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/fivewire/fivewire/conformance/fault"
	"github.com/fivewire/fivewire/internal/lease"
	"github.com/fivewire/fivewire/internal/outbox"
	"github.com/fivewire/fivewire/store"
)

var (
	quiet   = slog.New(slog.DiscardHandler)
	errDown = errors.New("receiver down")
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A node is one process with its view of the store.
type node struct {
	*outbox.Outbox
	t     *testing.T
	plan  *fault.Plan
	lease *lease.Lease
}

// startNode starts a process on a store, with optional changes of its options.
func startNode(t *testing.T, db store.Store, edit ...func(o *outbox.Options)) *node {
	t.Helper()
	n := &node{t: t, plan: &fault.Plan{}}
	o := outbox.Options{Prefix: "x/", Logger: quiet}
	for _, f := range edit {
		f(&o)
	}
	view := fault.Store(db, n.plan)
	var err error
	n.lease, err = lease.Acquire(t.Context(), view, lease.Options{Prefix: o.Prefix, Private: o.Private, Logger: quiet})
	require.NoError(t, err)
	n.Outbox = outbox.New(view, n.lease, o)
	t.Cleanup(n.crash)
	return n
}

// crash ends the process in the eyes of the store.
func (n *node) crash() {
	n.plan.Crash()
	ctx, cancel := context.WithTimeout(context.Background(), time.Millisecond)
	defer cancel()
	_ = n.Shutdown(ctx)
	_ = n.lease.Release(context.Background())
	n.plan.Close()
}

// stop ends the process in order.
func (n *node) stop() {
	require.NoError(n.t, n.Shutdown(context.Background()))
	require.NoError(n.t, n.lease.Release(context.Background()))
}

func (n *node) put(stream, id string) {
	n.t.Helper()
	require.NoError(n.t, n.Put(n.t.Context(), stream, id, []byte("data of "+id)))
}

// A receiver records attempts.
type receiver struct {
	mu       sync.Mutex
	verdict  func(i outbox.Item) outbox.Verdict
	attempts []outbox.Item
	times    []time.Duration
	start    time.Time
}

func newReceiver(verdict func(i outbox.Item) outbox.Verdict) *receiver {
	return &receiver{verdict: verdict, start: time.Now()}
}

func done(outbox.Item) outbox.Verdict { return outbox.Done() }

func (r *receiver) send(_ context.Context, i outbox.Item) outbox.Verdict {
	r.mu.Lock()
	r.attempts = append(r.attempts, i)
	r.times = append(r.times, time.Since(r.start))
	verdict := r.verdict
	r.mu.Unlock()
	return verdict(i)
}

// ids returns the ids of the attempts in their order.
func (r *receiver) ids() (ids []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, i := range r.attempts {
		ids = append(ids, i.ID)
	}
	return ids
}

func (n *node) letters() (list []outbox.Letter) {
	n.t.Helper()
	for l, err := range n.Dead(n.t.Context()) {
		require.NoError(n.t, err)
		list = append(list, l)
	}
	return list
}

func TestPutSendsInOrder(t *testing.T) {
	for _, isPrivate := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			db := store.NewMemory()
			n := startNode(t, db, func(o *outbox.Options) { o.Private = isPrivate })
			r := newReceiver(done)
			n.Send("k", r.send)
			var want []string
			for i := range 200 {
				want = append(want, fmt.Sprint(i))
				n.put("k/1", want[i])
			}
			synctest.Wait()
			require.Equal(t, want, r.ids())
			require.Equal(t, "data of 7", string(r.attempts[7].Data))
			require.Equal(t, "k/1", r.attempts[7].Stream)
			require.Equal(t, 1, r.attempts[7].Attempt)
			time.Sleep(11 * time.Second)
			time.Sleep(11 * time.Minute)
			for e := range db.List(t.Context(), "x/outbox/") {
				t.Errorf("entry %s left", e.Key)
			}
		})
	}
}
