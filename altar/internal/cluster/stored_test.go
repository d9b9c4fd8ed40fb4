// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/conformance/fault"
	"github.com/fivewire/fivewire/internal/lease"
	"github.com/fivewire/fivewire/store"
)

const leaseTTL = 15 * time.Second

// A host is a member of a Stored network in a test.
type host struct {
	network  *Stored
	lease    *lease.Lease
	isAway   atomic.Bool // its store fails
	stop     context.CancelFunc
	left     chan error
	accepted chan io.ReadWriteCloser

	mu    sync.Mutex
	peers []string // of each call, with commas
}

// newHost starts a Host, which leaves at the end of the test at the latest.
func newHost(t *testing.T, db store.Store, name string) *host {
	h := &host{left: make(chan error, 1), accepted: make(chan io.ReadWriteCloser, 1)}
	own := fault.Store(db, &fault.Plan{Rules: []fault.Rule{
		{Action: fault.ErrorBefore, When: func(string, string) bool { return h.isAway.Load() }},
	}})
	l, err := lease.Acquire(t.Context(), own, lease.Options{Prefix: "altar/", InstanceID: name, TTL: leaseTTL, Logger: slog.New(slog.DiscardHandler)})
	require.NoError(t, err)
	h.lease = l
	h.network = NewStored(own, func(context.Context) (*lease.Lease, error) { return l, nil })
	ctx, cancel := context.WithCancel(context.Background())
	h.stop = cancel
	go func() {
		h.left <- h.network.Join(ctx, name, func(ids []string) {
			h.mu.Lock()
			defer h.mu.Unlock()
			h.peers = append(h.peers, strings.Join(ids, ","))
		}, func(_ string, s io.ReadWriteCloser) { h.accepted <- s })
	}()
	t.Cleanup(func() {
		h.isAway.Store(false)
		cancel()
		require.NoError(t, <-h.left)
		_ = l.Release(context.Background())
		time.Sleep(time.Minute) // changes in doubt are repeated
	})
	synctest.Wait()
	return h
}

// calls returns and forgets the calls of peers.
func (h *host) calls() []string {
	synctest.Wait()
	h.mu.Lock()
	defer h.mu.Unlock()
	calls := h.peers
	h.peers = nil
	return calls
}

// connect opens a stream between two Hosts.
func connect(t *testing.T, from, to *host, name string) (near, far io.ReadWriteCloser) {
	near, err := from.network.Open(t.Context(), "", name)
	require.NoError(t, err)
	return near, <-to.accepted
}

// Hosts on a store know each other as long as they are joined, also if one restarts.
func TestStoredHostsKnowEachOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := store.NewMemory()
		a, b := newHost(t, db, "a"), newHost(t, db, "b")
		other, err := lease.Acquire(t.Context(), db, lease.Options{Prefix: "altar/", InstanceID: "o", TTL: leaseTTL})
		require.NoError(t, err)
		defer func() { require.NoError(t, other.Release(context.Background())) }()
		time.Sleep(time.Minute)
		require.Equal(t, []string{"b"}, a.calls(), "the third one has a lease and another network")
		require.Equal(t, []string{"a"}, b.calls())

		c := newHost(t, db, "c")
		require.Equal(t, []string{"b,c"}, a.calls())
		calls := c.calls()
		require.Equal(t, "a,b", calls[len(calls)-1])
		b.stop()
		require.Equal(t, []string{"c"}, a.calls(), "it says good-bye")

		c.isAway.Store(true)
		restarted := newHost(t, db, "c")
		require.Equal(t, []string{"", "c"}, a.calls(), "the streams to the former process end first")
		require.Equal(t, []string{"a"}, restarted.calls())
		restarted.isAway.Store(true)
		time.Sleep(leaseTTL + refreshInterval)
		require.Equal(t, []string{""}, a.calls(), "it has failed")
	})
}

// A stream transports any bytes in both directions. A reader that does not read stops the writer.
func TestStoredStream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := store.NewMemory()
		a, b := newHost(t, db, "a"), newHost(t, db, "b")
		_, err := a.network.Open(t.Context(), "", "c")
		require.ErrorIs(t, err, lease.ErrLost)
		sent := make([]byte, 3<<20)
		_, _ = rand.NewChaCha8([32]byte{}).Read(sent)
		for _, isBack := range []bool{false, true} {
			from, to := connect(t, a, b, "b")
			if isBack {
				from, to = to, from
			}
			var written atomic.Int64
			go func() {
				for part := range 3 << 10 {
					n, _ := from.Write(sent[part<<10 : (part+1)<<10])
					written.Add(int64(n))
				}
				_ = from.Close()
			}()
			time.Sleep(20 * time.Second)
			require.Less(t, written.Load(), int64(512<<10), "the other Host does not read")
			got, err := io.ReadAll(to)
			require.NoError(t, err, "the end follows all bytes")
			require.True(t, bytes.Equal(sent, got))
			_, err = to.Write([]byte("x"))
			require.Error(t, errors.Join(err, sleep(2*time.Minute, func() error { _, err := to.Write([]byte("x")); return err })), "the other Host does not read")
			require.NoError(t, to.Close())
		}
	})
}

// Close ends a stream in order while this end reads, as a Host does all the time.
func TestStoredStreamClosedWhileRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := store.NewMemory()
		a, b := newHost(t, db, "a"), newHost(t, db, "b")
		for range 20 { // the order of two goroutines is chance
			near, far := connect(t, a, b, "b")
			read := make(chan error, 1)
			go func() {
				_, err := near.Read(make([]byte, 1))
				read <- err
			}()
			synctest.Wait()
			_, err := near.Write([]byte("last"))
			require.NoError(t, err)
			require.NoError(t, near.Close())
			require.Error(t, <-read)
			got, err := io.ReadAll(far)
			require.NoError(t, err)
			require.Equal(t, "last", string(got))
			require.NoError(t, far.Close())
		}
	})
}

func sleep(d time.Duration, f func() error) error {
	time.Sleep(d)
	return f()
}

// A short outage of the store costs no byte. The streams of a Host that has failed end with an error.
func TestStoredStreamAfterFaults(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := store.NewMemory()
		a, b := newHost(t, db, "a"), newHost(t, db, "b")
		near, far := connect(t, a, b, "b")
		buf := make([]byte, 4)
		for i, away := range []*host{nil, a, b} {
			text := string(rune('a'+i)) + "..."
			got := make(chan error, 1)
			go func() {
				_, err := io.ReadFull(far, buf)
				got <- err
			}()
			synctest.Wait()
			if away != nil {
				away.isAway.Store(true)
			}
			time.Sleep(time.Second)
			_, err := near.Write([]byte(text))
			require.NoError(t, err)
			time.Sleep(2 * time.Second)
			if away != nil {
				away.isAway.Store(false)
			}
			require.NoError(t, <-got)
			require.Equal(t, text, string(buf))
		}

		b.isAway.Store(true)
		start := time.Now()
		_, err := near.Read(buf)
		require.Error(t, err)
		require.NotErrorIs(t, err, io.EOF)
		require.Less(t, time.Since(start), leaseTTL+5*time.Second)
		_, err = near.Write(buf)
		require.Error(t, err)
		_, err = far.Read(buf)
		require.Error(t, err, "it notices, too")
		require.NoError(t, near.Close())
		require.NoError(t, far.Close())
	})
}
