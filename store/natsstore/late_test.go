// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package natsstore_test

import (
	"context"
	"errors"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/store"
	"github.com/fivewire/fivewire/store/natsstore"
	"github.com/fivewire/fivewire/store/natsstore/embedded"
)

// A line is the way of a client to a server. It can lose what the server sends, and end for a while.
type line struct {
	mu     sync.Mutex
	isMute bool // guarded by mu
	isCut  bool // guarded by mu
	conns  []net.Conn
}

// Dial implements nats.CustomDialer.
func (l *line) Dial(network, address string) (net.Conn, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.isCut {
		return nil, errors.New("line is cut")
	}
	conn, err := net.Dial(network, address)
	if err != nil {
		return nil, err
	}
	l.conns = append(l.conns, conn)
	return &end{conn, l}, nil
}

// set changes the line.
func (l *line) set(isMute, isCut bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.isMute, l.isCut = isMute, isCut
	for _, conn := range l.conns {
		if isCut {
			_ = conn.Close()
		}
	}
}

// An end is a connection through a line.
type end struct {
	net.Conn
	line *line
}

func (e *end) Read(b []byte) (int, error) {
	for {
		n, err := e.Conn.Read(b)
		e.line.mu.Lock()
		isMute := e.line.isMute
		e.line.mu.Unlock()
		if err != nil || !isMute {
			return n, err
		}
	}
}

// A late attempt of an Append reaches the servers when they have forgotten the id of its message, for example because the
// network was away for more than a minute. Here they know it for 100 ms, which is less than the time between two attempts.
func TestLateAttemptStoresNoSecondRecord(t *testing.T) {
	t.Parallel()
	for name, isCut := range map[string]bool{"answer is late": false, "connection is cut": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			srv := startEmbedded(t, &embedded.Options{Listen: "127.0.0.1:0"})
			var l line
			nc, err := nats.Connect(srv.URL(), nats.SetCustomDialer(&l), nats.MaxReconnects(-1), nats.ReconnectWait(10*time.Millisecond))
			require.NoError(t, err)
			t.Cleanup(nc.Close)
			s, err := natsstore.New(t.Context(), nc, nil)
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, s.Close()) })
			other, err := natsstore.Open(t.Context(), srv.URL(), nil)
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, other.Close()) })
			js, err := jetstream.New(nc)
			require.NoError(t, err)
			stream, err := js.Stream(t.Context(), "fivewire_log")
			require.NoError(t, err)
			cfg := stream.CachedInfo().Config
			cfg.Duplicates = 100 * time.Millisecond
			_, err = js.UpdateStream(t.Context(), cfg)
			require.NoError(t, err)
			if isCut {
				natsstore.GivesUpAfter(s, 3*time.Second)
			}

			l.set(true, false)
			type result struct {
				seq uint64
				err error
			}
			results := make(chan result, 1)
			go func() {
				seq, err := s.Append(context.Background(), "s", "", []byte("once"), 0)
				results <- result{seq, err}
			}()
			require.NoError(t, other.Wait(t.Context(), "s", 0))
			records, err := other.Read(t.Context(), "s", 0, 0)
			require.NoError(t, err)
			require.Len(t, records, 1)
			want := records
			l.set(isCut, isCut)
			if isCut { // the record is handled, and the rest of the call has no connection
				require.NoError(t, other.Ack(t.Context(), "s", records[0].Seq))
				want = nil
			}
			r := <-results
			if isCut {
				require.ErrorIs(t, r.err, store.ErrUnknown)
			} else {
				require.NoError(t, r.err)
				require.Equal(t, records[0].Seq, r.seq)
			}

			l.set(false, false)
			require.Eventually(t, func() bool {
				_, err := s.Append(t.Context(), "behind", "", nil, 0)
				return err == nil
			}, time.Minute, time.Millisecond)
			records, err = other.Read(t.Context(), "s", 0, 0)
			require.NoError(t, err)
			require.Equal(t, want, records)
		})
	}
}
