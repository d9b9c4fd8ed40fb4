// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package accp_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/accp"
	"github.com/fivewire/fivewire/store"
)

// An ended session leaves no data, and its id names a new session (ACCP-D28: final until the
// session ends).
func TestEnd(t *testing.T) {
	kv, shared := store.NewMemory(), store.NewMemory()
	opts := &accp.SessionOptions{Persistence: accp.Persistence{Store: kv, SharedStore: shared}}
	s := session(t, opts)
	accp.SetReplayWindow(s, 1024)
	for i := int64(1); i <= 600; i++ { // enough for pages
		receive(t, s, frame("ping:heartbeat{}", i))
	}
	receive(t, s, frame("done:a{k:v}", 601))
	receive(t, s, frame("cancel:a{}", 602, "cid:c1"))
	receive(t, s, frame("req:a{k:v}", 603))
	sent, err := s.Send(t.Context(), msg("req", "a", text("long", strings.Repeat("x", 60))))
	require.NoError(t, err)
	_, err = s.Sync(t.Context(), accp.Params{text("k", "v")})
	require.NoError(t, err)
	require.NoError(t, s.Put(t.Context(), accp.ScopeHot, "mine", accp.Int(1), time.Hour))
	neighbour, err := accp.NewSession("server", "s1/x", opts)
	require.NoError(t, err)
	require.NoError(t, neighbour.Put(t.Context(), accp.ScopeCold, "k", accp.Int(1), 0))
	require.Greater(t, len(keysOf(t, kv)), 3)
	ctx, done := s.ChainContext(t.Context(), "c2")
	defer done()

	require.NoError(t, s.End(t.Context(), nil))
	require.Error(t, ctx.Err(), "work of its chains ends")
	require.Len(t, keysOf(t, kv), 1, "what is left is the neighbour's")
	require.Len(t, keysOf(t, shared), 1, "other sides may still need it")
	for name, err := range map[string]error{
		"receive":    second(s.Receive(t.Context(), frame("ping:heartbeat{}", 700))),
		"send":       second(s.Send(t.Context(), msg("ping", "heartbeat"))),
		"sync":       second(s.Sync(t.Context(), nil)),
		"hello":      second(s.AnnounceRegistry(t.Context())),
		"negotiate":  third(s.ReceiveRegistry(t.Context(), frame("ping:heartbeat{}", 700))),
		"checkpoint": second(s.Checkpoint(t.Context())),
		"reply":      second(s.SendError(t.Context(), accp.ErrInternal, sent.Frames[0])),
		"get":        second(s.Resolve(t.Context(), "ctx.mine")),
		"budget":     second(s.Budget(t.Context())),
		"put":        s.Put(t.Context(), accp.ScopeHot, "mine", accp.Int(1), 0),
		"refresh":    s.Reload(t.Context()),
	} {
		require.ErrorIs(t, err, accp.ErrSessionEnded, name)
		require.ErrorIs(t, err, accp.ErrInternal, name)
	}
	ctx, done = s.ChainContext(t.Context(), "c3")
	defer done()
	require.Error(t, ctx.Err())
	require.Empty(t, s.Checkpoints())
	require.Len(t, keysOf(t, kv), 1)
	require.NoError(t, s.End(t.Context(), &accp.EndSessionOptions{DeleteShared: true}), "more than once")
	require.Empty(t, keysOf(t, shared))

	s = session(t, opts)
	receive(t, s, frame("ping:heartbeat{}", 1))
	require.False(t, s.IsCancelled("c1"))
	sent, err = s.Send(t.Context(), msg("done", "a"))
	require.NoError(t, err)
	require.EqualValues(t, 2, sent.Message.Meta.Seq.N)
	require.Len(t, s.Checkpoints(), 1)
	_, err = s.Resolve(t.Context(), "ctx.mine")
	require.ErrorIs(t, err, accp.ErrRefNotFound)

	// Without a store a session drops its state.
	s = session(t, nil)
	require.NoError(t, s.Put(t.Context(), accp.ScopeHot, "mine", accp.Int(1), 0))
	require.NoError(t, s.End(t.Context(), nil))
	_, err = s.Resolve(t.Context(), "ctx.mine")
	require.ErrorIs(t, err, accp.ErrSessionEnded)
}

func third[A, B any](_ A, _ B, err error) error { return err }

func second[T any](_ T, err error) error { return err }

// The tiers belong to all sides of the session that share a store; the last one
// takes them along, in whatever order they end.
func TestEndOfSeveralSides(t *testing.T) {
	for range 20 {
		kv := store.NewMemory()
		var sides []*accp.Session
		var ids []string
		for _, self := range []string{"one", "one1", "two"} {
			s, err := accp.NewSession(self, "s1", &accp.SessionOptions{Persistence: accp.Persistence{Store: kv}})
			require.NoError(t, err)
			sent, err := s.Send(t.Context(), msg("done", "a", text("k", self)))
			require.NoError(t, err)
			ids = append(ids, sent.Checkpoint.ID)
			sides = append(sides, s)
		}
		require.NoError(t, sides[0].End(t.Context(), nil))
		for _, id := range ids {
			_, err := sides[1].Resolve(t.Context(), "warm."+id)
			require.NoError(t, err)
		}
		reopened, err := accp.NewSession("one1", "s1", &accp.SessionOptions{Persistence: accp.Persistence{Store: kv}})
		require.NoError(t, err)
		require.NoError(t, reopened.Reload(t.Context()))
		require.Len(t, reopened.Checkpoints(), 1)
		var wg sync.WaitGroup
		for _, s := range sides[1:] {
			wg.Go(func() {
				if err := s.End(t.Context(), nil); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		require.Empty(t, keysOf(t, kv))
	}
}

// An end that the store interrupts is repeated until it is done, also after a
// restart.
func TestEndThatFails(t *testing.T) {
	deletes := 0
	kv := store.NewMemory()
	m := &meddler{Store: kv, before: func(op, key string) error {
		if op == "delete" {
			if deletes++; deletes == 2 {
				return errBroken
			}
		}
		return nil
	}}
	opts := &accp.SessionOptions{Persistence: accp.Persistence{Store: m}}
	s := session(t, opts)
	receive(t, s, frame("done:a{k:v}", 1))
	n := 0
	for ; ; n++ {
		before := len(keysOf(t, kv))
		err := s.End(t.Context(), nil)
		if err == nil {
			break
		}
		require.ErrorIs(t, err, errBroken)
		require.Less(t, len(keysOf(t, kv)), before)
		s = session(t, opts)
	}
	require.Positive(t, n)
	require.Empty(t, keysOf(t, kv))
}

// Stored data exists for the retention and then expires; a late reference is ErrRefExpired
// (ACCP-054, ACCP-D36).
func TestKeep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		kv, shared := store.NewMemory(), store.NewMemory()
		opts := &accp.SessionOptions{Persistence: accp.Persistence{Store: kv, SharedStore: shared, Retention: time.Hour}}
		s := session(t, opts)
		long := strings.Repeat("x", 60)
		var n int64
		next := func(body string) *accp.ReceiveResult {
			n++
			return receive(t, s, frame(body, n))
		}
		first := next("done:a{k:v}").Checkpoint.ID
		sent, err := s.Send(t.Context(), msg("req", "a", text("long", long)))
		require.NoError(t, err)
		n++
		ref, ok := sent.Message.Params[0].Value.Ref()
		require.True(t, ok)
		require.NoError(t, s.Put(t.Context(), accp.ScopeCold, "k", accp.Int(1), 0))
		require.NoError(t, s.Put(t.Context(), accp.ScopeCold, "longer", accp.Int(1), 3*time.Hour))
		require.Len(t, s.Checkpoints(), 1)

		time.Sleep(40 * time.Minute)
		second := next("done:a{k:w}").Checkpoint.ID
		_, err = s.Send(t.Context(), msg("req", "a", text("long", long)))
		require.NoError(t, err)
		n++
		time.Sleep(30 * time.Minute)
		s = session(t, opts) // what has expired does not keep a session from being read
		for _, late := range []string{"cold.k", "warm." + first, "cold." + first, "cold." + first + "_facts"} {
			_, err := s.Resolve(t.Context(), late)
			require.ErrorIs(t, err, accp.ErrRefExpired, late)
		}
		for _, here := range []string{"cold.longer", "warm." + second, "cold." + second, "cold." + second + "_facts", ref} {
			_, err := s.Resolve(t.Context(), here)
			require.NoError(t, err, here)
		}
		require.NoError(t, s.Reload(t.Context()))
		cps := s.Checkpoints()
		require.Len(t, cps, 1)
		require.Equal(t, second, cps[0].ID)
		require.Equal(t, cps[0].Summary, s.ModelContext(1000, 0).Lines[0])
		time.Sleep(30 * time.Minute)
		require.Empty(t, s.Checkpoints())
		_, err = s.Resolve(t.Context(), ref)
		require.ErrorIs(t, err, accp.ErrRefExpired)

		// The session itself exists for two days after its last frame.
		time.Sleep(47 * time.Hour)
		s = session(t, opts)
		_, err = s.Receive(t.Context(), frame("ping:heartbeat{}", 1))
		require.ErrorIs(t, err, accp.ErrDuplicate)
		next("ping:heartbeat{}")
		time.Sleep(98*time.Hour + time.Second)
		require.Empty(t, keysOf(t, shared))
		require.Empty(t, keysOf(t, kv), "nothing is left for a later session of the same name")
		s, n = session(t, opts), 0
		next("done:a{}")
	})
}

// The replay window exists as long as its session, and no longer, although its pages are written
// once.
func TestKeepOfTheWindow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		kv := store.NewMemory()
		open := func() *accp.Session {
			s := session(t, &accp.SessionOptions{Persistence: accp.Persistence{Store: kv, Retention: time.Hour}, SeqPerSender: true, DisableAutoCheckpoint: true})
			accp.SetReplayWindow(s, 1024)
			return s
		}
		s := open()
		n := int64(0)
		for range 1000 {
			n++
			receive(t, s, frame("ping:heartbeat{}", n))
		}
		for i := range 20 { // ten days, in which no page is full
			time.Sleep(12 * time.Hour)
			n++
			if i%3 == 0 {
				s = open()
			}
			receive(t, s, frame("ping:heartbeat{}", n))
		}
		s = open()
		for i := int64(1); i <= n; i++ {
			f := strings.Replace(string(frame("ping:heartbeat{}", i)), "@a>", fmt.Sprintf("@b%d>", i), 1)
			_, err := s.Receive(t.Context(), []byte(f))
			require.ErrorIs(t, err, accp.ErrDuplicate, "%d", i)
		}
		time.Sleep(99 * time.Hour)
		require.Empty(t, keysOf(t, kv))
	})
}

// Over HTTP, the end of the session of a client waits for the exchange; over WebSocket it cancels the calls.
func TestEndSessionOfBusyClient(t *testing.T) {
	for _, url := range []string{"http://localhost" + accp.FramesPath, "ws://localhost" + accp.WebSocketPath} {
		synctest.Test(t, func(t *testing.T) {
			s, err := accp.NewServer("server", &accp.ServerOptions{Auth: accp.Auth{AllowAnonymous: true}})
			require.NoError(t, err)
			s.Handle("req", "slow", accp.HandlerFunc(func(context.Context, *accp.ReplyWriter, *accp.Message) error {
				time.Sleep(time.Second)
				return nil
			}))
			p := newPipe()
			stop := p.serve(s)
			c, err := accp.NewClient(url, "client", &accp.ClientOptions{HTTPClient: p.client()})
			require.NoError(t, err)
			called := make(chan error, 1)
			go func() {
				_, err := c.Call(t.Context(), msg("req", "slow"), nil)
				called <- err
			}()
			synctest.Wait()
			start := time.Now()
			require.NoError(t, c.EndSession(t.Context(), nil))
			if url[:2] == "ws" {
				require.Zero(t, time.Since(start))
				require.ErrorIs(t, <-called, accp.ErrCancelled)
			} else {
				require.Equal(t, time.Second, time.Since(start))
				require.NoError(t, <-called)
			}
			require.NoError(t, c.Close())
			require.NoError(t, s.Close())
			stop()
		})
	}
}

// After its end the id of a session names a new one over HTTP, and its connections close.
func TestEndOfServedSessions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, err := accp.NewServer("server", &accp.ServerOptions{Auth: accp.Auth{AllowAnonymous: true}})
		require.NoError(t, err)
		p := newPipe()
		stop := p.serve(s)
		open := func() *accp.Client {
			c, err := accp.NewClient("http://localhost"+accp.FramesPath, "client", &accp.ClientOptions{HTTPClient: p.client(), Retry: &accp.RetryPolicy{MaxAttempts: -1}, SessionID: "h", MaxConcurrent: 2})
			require.NoError(t, err)
			return c
		}
		c := open()
		_, err = c.Call(t.Context(), msg("ping", "heartbeat"), nil)
		require.NoError(t, err)
		old, ok := s.Session("h")
		require.True(t, ok)
		require.NoError(t, old.End(t.Context(), nil))
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		for _, err := range c.Replies(t.Context(), msg("ping", "heartbeat"), nil) { // an exchange that runs
			require.NoError(t, err)
			cancel()
			require.ErrorIs(t, c.EndSession(ctx, nil), context.Canceled, "one of two is in use")
		}
		require.NoError(t, c.EndSession(t.Context(), nil))
		_, err = c.Call(t.Context(), msg("ping", "heartbeat"), nil)
		require.ErrorIs(t, err, accp.ErrSessionEnded)
		pong, err := open().Call(t.Context(), msg("ping", "heartbeat"), nil)
		require.NoError(t, err)
		require.EqualValues(t, 4, pong.Meta.Seq.N, "after the greeting")
		renewed, _ := s.Session("h")
		require.NotSame(t, old, renewed)

		for _, own := range []bool{false, true} {
			conn, err := accp.Dial(t.Context(), "ws://localhost"+accp.WebSocketPath, "client", &accp.ClientOptions{HTTPClient: p.client(), SessionID: "w"})
			require.NoError(t, err)
			_, err = conn.Call(t.Context(), msg("ping", "heartbeat"), nil)
			require.NoError(t, err)
			current, _ := s.Session("w")
			if own {
				current = conn.Session()
			}
			done := conn.Done()
			require.NoError(t, current.End(t.Context(), nil))
			time.Sleep(31 * time.Second) // a ping of either side
			synctest.Wait()
			select {
			case <-done:
			default:
				t.Fatal("the connection is still open")
			}
			require.NoError(t, conn.Close())
			if own { // the server's side is as it was
				s, _ := s.Session("w")
				require.NoError(t, s.End(t.Context(), nil))
			}
		}
		require.NoError(t, s.Shutdown(t.Context()))
		stop()
	})
}
