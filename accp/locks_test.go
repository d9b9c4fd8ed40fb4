// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package accp_test

import (
	"context"
	"io"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/accp"
	"github.com/fivewire/fivewire/store"
)

// useSession calls the methods of a session that do not process frames.
func useSession(s *accp.Session) {
	s.Stats()
	s.State()
	s.Checkpoints()
	s.ModelContext(100, 0)
	s.AllowSession("other")
	s.IsCancelled("chain")
	_, done := s.ChainContext(context.Background(), "chain")
	done()
}

// A hangingStore reports each call and waits for the end of hang.
type hangingStore struct {
	store.Store
	called chan string
	hang   chan struct{}
}

func (h *hangingStore) wait(name string) {
	select {
	case h.called <- name:
	default:
	}
	<-h.hang
}

func (h *hangingStore) Get(ctx context.Context, key string) (store.Entry, error) {
	h.wait("get")
	return h.Store.Get(ctx, key)
}

func (h *hangingStore) Create(ctx context.Context, key string, v []byte, ttl time.Duration) (store.Revision, error) {
	h.wait("create")
	return h.Store.Create(ctx, key, v, ttl)
}

func (h *hangingStore) Append(ctx context.Context, stream, id string, v []byte, ttl time.Duration) (uint64, error) {
	h.wait("append")
	return h.Store.Append(ctx, stream, id, v, ttl)
}

func (h *hangingStore) Read(ctx context.Context, stream string, after uint64, limit int) ([]store.Record, error) {
	h.wait("read")
	return h.Store.Read(ctx, stream, after, limit)
}

func TestSessionHoldsNoLockDuringStoreAccess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		kv := &hangingStore{Store: store.NewMemory(), called: make(chan string, 1), hang: make(chan struct{})}
		for _, start := range []func(s *accp.Session) error{
			func(s *accp.Session) error { _, err := s.Send(t.Context(), msg("done", "x")); return err },
			func(s *accp.Session) error { _, err := s.Receive(t.Context(), frame("req:x{}", 1)); return err },
			func(s *accp.Session) error { _, err := s.Checkpoint(t.Context()); return err },
			func(s *accp.Session) error { return s.Put(t.Context(), accp.ScopeHot, "k", accp.Int(1), 0) },
			func(s *accp.Session) error { _, err := s.Budget(t.Context()); return err },
			func(s *accp.Session) error { _, err := s.Resolve(t.Context(), "ctx.k"); return err },
			func(s *accp.Session) error { return s.Reload(t.Context()) },
		} {
			s, err := accp.NewSession("server", accp.NewID(), &accp.SessionOptions{Persistence: accp.Persistence{Store: kv}})
			require.NoError(t, err)
			done := make(chan error, 1)
			go func() { done <- start(s) }()
			for isDone := false; !isDone; {
				synctest.Wait() // in the store, or finished
				useSession(s)
				select {
				case kv.hang <- struct{}{}:
				case <-done:
					isDone = true
				}
			}
		}
		require.NotEmpty(t, kv.called)
	})
}

// A deafStore answers nothing about leases until the end of hang, even if the caller does not wait any longer.
type deafStore struct {
	store.Store
	called chan struct{}
	hang   chan struct{}
}

func (d *deafStore) Create(ctx context.Context, key string, v []byte, ttl time.Duration) (store.Revision, error) {
	if strings.Contains(key, "/owner/") {
		select {
		case d.called <- struct{}{}:
		default:
		}
		<-d.hang
	}
	return d.Store.Create(ctx, key, v, ttl)
}

// An operator sees the use of a server whose store hangs, and can close the server.
func TestServerWithHangingStore(t *testing.T) {
	kv := &deafStore{Store: store.NewMemory(), called: make(chan struct{}, 1), hang: make(chan struct{})}
	d := newDesk(t, &accp.ServerOptions{Persistence: accp.Persistence{Store: kv}})
	c := d.http(t, &accp.ClientOptions{Retry: &accp.RetryPolicy{MaxAttempts: -1}})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		_, err := c.Call(ctx, msg("req", "echo", text("a", "b")), nil)
		done <- err
	}()
	<-kv.called
	require.NotEmpty(t, d.Usage())
	cancel()
	require.Error(t, <-done)
	require.ErrorIs(t, d.Server.Close(), context.DeadlineExceeded)
	close(kv.hang)
}

// Close waits for a stuck handler for a second, and for the store for another one.
func TestCloseWithStuckHandlerAndStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		kv := &deafStore{Store: store.NewMemory(), called: make(chan struct{}, 1), hang: make(chan struct{})}
		s := newUserServer(t, accp.ServerOptions{Persistence: accp.Persistence{Store: kv}})
		release := make(chan struct{})
		s.Handle("qry", "stuck", accp.HandlerFunc(func(context.Context, *accp.ReplyWriter, *accp.Message) error {
			<-release
			return nil
		}))
		var posts sync.WaitGroup
		for sid, body := range map[string]string{"s1": "qry:stuck{}", "s2": "req:echo{}"} {
			f := frame(body, 1, "sid:"+sid)
			posts.Go(func() {
				defer func() { _ = recover() }() // the request is cut
				s.postFrame("a", f)
			})
		}
		synctest.Wait()
		start := time.Now()
		require.ErrorIs(t, s.Close(), context.DeadlineExceeded)
		require.Equal(t, 2*time.Second, time.Since(start))
		close(release)
		close(kv.hang)
		posts.Wait()
	})
}

// Hooks and other code of the user may use the session that calls them.
func TestHooksMayUseTheirSession(t *testing.T) {
	var s *accp.Session
	var mu sync.Mutex
	calls := map[string]int{} // guarded by mu
	isUsed := false           // guarded by mu
	use := func(name string) {
		mu.Lock()
		calls[name]++
		isFirst := s != nil && !isUsed // using the session calls the counter again
		isUsed = isUsed || isFirst
		mu.Unlock()
		if isFirst {
			useSession(s)
			mu.Lock()
			isUsed = false
			mu.Unlock()
		}
	}
	opts := &accp.SessionOptions{
		TokenCounter: counterFunc(func(text string) int { use("counter"); return len(text) / 4 }),
		Summaries: accp.SummaryOptions{Summarizer: func(context.Context, []accp.Fact, []string, int) (string, error) {
			return "summary", nil
		}},
		Redactor: func(_ string, v accp.Value) accp.Value { use("redactor"); return v },
		Logger:   slog.New(slog.NewTextHandler(io.Discard, &slog.HandlerOptions{Level: slog.LevelDebug})),
		OnWarning: func(*accp.Message, string) {
			use("warning")
			_, err := s.Send(t.Context(), msg("ack", "noted"))
			require.NoError(t, err, "a hook that informs may also send")
		},
	}
	var err error
	s, err = accp.NewSession("server", "s1", opts)
	require.NoError(t, err)
	require.NoError(t, s.AddProfile(accp.Profile{Name: "P", Validator: func(*accp.Message) error {
		use("validator")
		return nil
	}}))
	_, err = s.Send(t.Context(), msg("done", "x", text("schema", "TX"), text("currency", "x")))
	require.NoError(t, err)
	_, err = s.Receive(t.Context(), frame("done:x{schema:TX|currency:x}", 3))
	require.NoError(t, err)
	mu.Lock()
	defer mu.Unlock()
	for _, name := range []string{"counter", "redactor", "validator"} {
		require.NotZero(t, calls[name], name)
	}
	require.Equal(t, 2, calls["warning"])
}

type counterFunc func(string) int

func (f counterFunc) Count(text string) int { return f(text) }
