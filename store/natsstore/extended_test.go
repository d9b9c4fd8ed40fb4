// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package natsstore_test

import (
	"bytes"
	"context"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/store"
	"github.com/fivewire/fivewire/store/natsstore"
	"github.com/fivewire/fivewire/store/natsstore/embedded"
)

// A holder dials connections that keep back one answer to a look.
type holder struct {
	mu      sync.Mutex
	after   int           // answers to let pass before; guarded by mu
	blocked chan struct{} // closed when a response is blocked; nil to block none; guarded by mu
	let     chan struct{} // closed to let it pass
}

func (h *holder) Dial(network, address string) (net.Conn, error) {
	conn, err := net.Dial(network, address)
	if err != nil {
		return nil, err
	}
	return &heldConn{conn, h}, nil
}

// hold keeps back the next answer but some.
func (h *holder) hold(after int) (blocked <-chan struct{}, let func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.after, h.blocked, h.let = after, make(chan struct{}), make(chan struct{})
	return h.blocked, sync.OnceFunc(func() { close(h.let) })
}

// looked tells that the server has answered so many looks, and returns when
// they may be known.
func (h *holder) looked(n int) {
	h.mu.Lock()
	h.after -= n
	blocked := h.blocked
	if blocked == nil || h.after >= 0 {
		h.mu.Unlock()
		return
	}
	h.blocked = nil
	h.mu.Unlock()
	close(blocked)
	<-h.let
}

type heldConn struct {
	net.Conn
	h *holder
}

func (c *heldConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	// Of all answers only those to a look have a header.
	if looks := bytes.Count(b[:n], []byte("HMSG ")); looks > 0 {
		c.h.looked(looks)
	}
	return n, err
}

// TestCallSeesConcurrentExtension: a call reads an entry that expires in an hour. Before the call
// continues, another store extends the entry, and more than an hour passes. The entry existed
// throughout, so the call must not treat it as expired.
func TestCallSeesConcurrentExtension(t *testing.T) {
	t.Parallel()
	srv := startEmbedded(t, &embedded.Options{SyncInterval: time.Minute, Listen: "127.0.0.1:0"})
	ctx := t.Context()
	extendKey := func(ctx context.Context, other store.Store, rev store.Revision) error {
		_, err := other.Update(ctx, "k", []byte("new"), rev, 3*time.Hour)
		return err
	}
	extendStream := func(ctx context.Context, other store.Store, _ store.Revision) error {
		return other.Expire(ctx, "s", 3*time.Hour)
	}
	for _, tt := range []struct {
		name   string
		after  int // reads of the call before the relevant one
		extend func(ctx context.Context, other store.Store, rev store.Revision) error
		call   func(t *testing.T, s store.Store, rev store.Revision, seq uint64)
		there  []string // afterwards: values of the key and of the stream
	}{
		{"Get", 0, extendKey, func(t *testing.T, s store.Store, _ store.Revision, _ uint64) {
			_, err := s.Get(ctx, "k")
			require.NoError(t, err)
		}, []string{"new", "record"}},
		{"List", 0, extendKey, func(t *testing.T, s store.Store, _ store.Revision, _ uint64) {
			n := 0
			for _, err := range s.List(ctx, "") {
				require.NoError(t, err)
				n++
			}
			require.Equal(t, 1, n)
		}, []string{"new", "record"}},
		{"Create", 0, extendKey, func(t *testing.T, s store.Store, _ store.Revision, _ uint64) {
			_, err := s.Create(ctx, "k", []byte("other"), 0)
			require.ErrorIs(t, err, store.ErrExists)
		}, []string{"new", "record"}},
		{"Update", 0, extendKey, func(t *testing.T, s store.Store, rev store.Revision, _ uint64) {
			_, err := s.Update(ctx, "k", []byte("other"), rev, 0)
			require.ErrorIs(t, err, store.ErrConflict)
		}, []string{"new", "record"}},
		{"Delete", 0, extendKey, func(t *testing.T, s store.Store, _ store.Revision, _ uint64) {
			require.NoError(t, s.Delete(ctx, "k", 0))
		}, []string{"record"}},
		{"Read", 0, extendStream, func(t *testing.T, s store.Store, _ store.Revision, seq uint64) {
			records, err := s.Read(ctx, "s", 0, 0)
			require.NoError(t, err)
			require.Len(t, records, 1)
			require.Equal(t, seq, records[0].Seq)
		}, []string{"old", "record"}},
		{"Append", 0, extendStream, func(t *testing.T, s store.Store, _ store.Revision, seq uint64) {
			got, err := s.Append(ctx, "s", "id", []byte("again"), 0)
			require.ErrorIs(t, err, store.ErrDuplicate)
			require.Equal(t, seq, got)
		}, []string{"old", "record"}},
		// Expire reads whether the stream exists, then the lifetimes.
		{"Expire", 1, extendStream, func(t *testing.T, s store.Store, _ store.Revision, _ uint64) {
			require.NoError(t, s.Expire(ctx, "s", 3*time.Hour))
		}, []string{"old", "record"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			opts := natsstore.Options{StreamPrefix: tt.name, SweepInterval: -1}
			other, _ := openOn(t, srv, &opts)
			rev, err := other.Create(ctx, "k", []byte("old"), time.Hour)
			require.NoError(t, err)
			seq, err := other.Append(ctx, "s", "id", []byte("record"), time.Hour)
			require.NoError(t, err)
			require.NoError(t, other.Expire(ctx, "s", time.Hour)) // changes nothing

			h := &holder{}
			opts.ConnOptions = []nats.Option{nats.SetCustomDialer(h)}
			s, err := natsstore.Open(ctx, srv.URL(), &opts)
			require.NoError(t, err)
			defer func() { require.NoError(t, s.Close()) }()
			blocked, let := h.hold(tt.after)
			defer let()
			var extended error
			done := make(chan struct{})
			go func() {
				defer close(done)
				<-blocked
				extended = tt.extend(ctx, other, rev)
				natsstore.Ahead(s, 90*time.Minute)
				let()
			}()
			tt.call(t, s, rev, seq)
			<-done
			require.NoError(t, extended)

			var there []string
			if entry, err := other.Get(ctx, "k"); err == nil {
				there = append(there, string(entry.Value))
			}
			records, err := other.Read(ctx, "s", 0, 0)
			require.NoError(t, err)
			for _, r := range records {
				there = append(there, string(r.Value))
			}
			require.Equal(t, tt.there, there)
		})
	}
}
