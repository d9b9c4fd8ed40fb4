// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package accp_test

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"regexp"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coder/websocket"
	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/accp"
	"github.com/fivewire/fivewire/accp/profile"
	"github.com/fivewire/fivewire/conformance/fault"
	"github.com/fivewire/fivewire/internal/kit"
	"github.com/fivewire/fivewire/internal/race"
	"github.com/fivewire/fivewire/store"
)

// A userServer is a server whose principals are named in a header.
type userServer struct {
	*accp.Server
	seq map[string]int64 // last number by session
}

func newUserServer(t testing.TB, o accp.ServerOptions) *userServer {
	t.Helper()
	o.Auth.Authenticator = accp.AuthenticatorFunc(func(r *http.Request) (*accp.Principal, error) {
		return &accp.Principal{ID: r.Header.Get("User")}, nil
	})
	o.Logger = slog.New(slog.DiscardHandler)
	s, err := accp.NewServer("server", &o)
	require.NoError(t, err)
	s.Handle("req", "echo", accp.HandlerFunc(func(_ context.Context, w *accp.ReplyWriter, m *accp.Message) error {
		return w.SendResult(m.Params)
	}))
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	return &userServer{Server: s, seq: map[string]int64{}}
}

// post sends the next frame of a session. After the answer, the numbers continue behind it.
func (s *userServer) post(user, sid, body string) *httptest.ResponseRecorder {
	s.seq[sid] += 2
	return s.postFrame(user, frame(body, s.seq[sid]-1, "sid:"+sid))
}

func (s *userServer) postFrame(user string, f []byte) *httptest.ResponseRecorder {
	return s.serve(context.Background(), user, f)
}

// postUntil sends a frame over a connection that is cut off by the end of ctx.
func (s *userServer) postUntil(ctx context.Context, user string, f []byte) {
	defer func() { _ = recover() }() // of a response that is cut off
	s.serve(ctx, user, f)
}

func (s *userServer) serve(ctx context.Context, user string, f []byte) *httptest.ResponseRecorder {
	r := httptest.NewRequestWithContext(ctx, http.MethodPost, accp.FramesPath, strings.NewReader(string(f)))
	r.Header.Set("Content-Type", accp.MediaType)
	r.Header.Set("User", user)
	w := httptest.NewRecorder()
	s.ServeHTTP(w, r)
	return w
}

// used returns the use and the limit of a resource in a scope.
func (s *userServer) used(resource, scope string) (used, limit int64) {
	for _, u := range s.Usage() {
		if u.Resource == resource && u.Scope == scope {
			return u.Used, u.Limit
		}
	}
	return -1, -1
}

// The counted bytes of sessions are close to those of the heap.
func TestUsageCountsMemoryOfSessions(t *testing.T) {
	if race.Enabled {
		t.Skip("the race detector allocates")
	}
	for name, run := range map[string]func(s *userServer){
		"calls": func(s *userServer) {
			for i := range 3000 {
				require.Equal(t, 200, s.post("a", "s1", fmt.Sprintf("req:echo{k:%d}", i)).Code)
			}
		},
		"long messages": func(s *userServer) {
			for range 60 {
				require.Equal(t, 200, s.post("a", "s1", "req:echo{k:"+strings.Repeat("x", 20000)+"}").Code)
			}
		},
		"many values": func(s *userServer) {
			for range 40 {
				require.Equal(t, 200, s.post("a", "s1", "wait:x{k:["+strings.Repeat("1,", 3000)+"1]}").Code)
			}
		},
		"idle sessions": func(s *userServer) {
			for i := range 900 {
				require.Equal(t, 200, s.post("a", fmt.Sprint("s", i), "req:echo{}").Code)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newUserServer(t, accp.ServerOptions{Session: accp.SessionOptions{Budget: accp.BudgetOff},
				Limits: accp.Limits{MaxMemoryPerPrincipal: 200 << 20, MaxMemory: -1}})
			s.post("a", "s", "req:echo{}")
			before := kit.Heap()
			run(s)
			got := kit.Heap() - before
			used, _ := s.used("memory", "all")
			kept, _ := s.used("outcomes", "all")
			used += kept
			t.Logf("%d bytes counted, %d bytes of heap", used, got)
			require.Less(t, got, 2*used, "%s: heap, counted %d", name, used)
			runtime.KeepAlive(s)
		})
	}
}

// A session without messages holds its id.
func TestLongSessionIDsAreCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newUserServer(t, accp.ServerOptions{})
		for i := range 10 {
			id, clock := fmt.Sprint(strings.Repeat("x", 60_000), i), time.Now().Unix()
			frame := fmt.Appendf(nil, "@peer>wait:x{}[mid:%012x,seq:1,ts:%d,sid:%s,ttl:1]", i, clock-10, id)
			require.Equal(t, 204, s.postFrame("a", frame).Code, "the frame has expired, so the session keeps its id alone")
		}
		used, _ := s.used("memory", "all")
		require.Greater(t, used, int64(10*60_000))
	})
}

// A session that is full drops its oldest checkpoints and answers on.
func TestSessionMemoryIsBounded(t *testing.T) {
	s := newUserServer(t, accp.ServerOptions{Limits: accp.Limits{MaxMemoryPerSession: 256 << 10}})
	first := ""
	for i := range 1000 {
		require.Equal(t, 200, s.post("a", "s1", fmt.Sprintf("req:echo{k:%d}", i)).Code, i)
		used, limit := s.used("memory", "session")
		require.LessOrEqual(t, used, limit)
		if session, _ := s.Session("s1"); first == "" && len(session.Checkpoints()) > 0 {
			first = session.Checkpoints()[0].ID
		}
	}
	session, ok := s.Session("s1")
	require.True(t, ok)
	list := session.Checkpoints()
	require.NotEmpty(t, list)
	_, err := session.Resolve(t.Context(), "warm."+first)
	require.ErrorIs(t, err, accp.ErrRefExpired)
	_, err = session.Resolve(t.Context(), "cold."+first+"_facts")
	require.ErrorIs(t, err, accp.ErrRefExpired)
	for _, cp := range list {
		_, err = session.Resolve(t.Context(), "cold."+cp.ID)
		require.NoError(t, err)
	}
	_, err = session.Resolve(t.Context(), "warm.cp999999")
	require.ErrorIs(t, err, accp.ErrRefNotFound)
	require.NoError(t, session.End(t.Context(), nil))
	used, _ := s.used("memory", "session")
	require.Less(t, used, int64(8<<10), "an ended session holds nothing")
	require.Equal(t, 200, s.postFrame("a", frame("req:echo{}", 1, "sid:s1")).Code, "its id names a new one")
}

// The state that frames leave in a session is refused over the bound, and the session continues.
func TestSessionRefusesWhatDoesNotFit(t *testing.T) {
	s := session(t, &accp.SessionOptions{MaxMemory: 1 << 20, DisableAutoCheckpoint: true})
	seq := int64(0)
	next := func(body string, more ...string) error {
		seq++
		_, err := s.Receive(t.Context(), frame(body, seq, more...))
		if err != nil {
			seq--
		}
		return err
	}
	long := strings.Repeat("x", 60000)
	var err error
	for n := 0; err == nil; n++ {
		require.Less(t, n, 20)
		err = next("wait:x{k:" + long + "}")
	}
	require.ErrorIs(t, err, accp.ErrBudgetExceeded)
	require.NoError(t, next("ack:x{}"), "a small frame fits")
	_, err = s.Send(t.Context(), msg("wait", "x", text("k", strings.Repeat("x", 600<<10))))
	require.ErrorIs(t, err, accp.ErrBudgetExceeded)
	require.ErrorIs(t, s.Put(t.Context(), accp.ScopeHot, "k", accp.String(strings.Repeat("x", 1<<20)), 0), accp.ErrBudgetExceeded)
	_, err = s.Checkpoint(t.Context())
	require.NoError(t, err)
	require.NoError(t, next("wait:x{k:"+long+"}"), "the checkpoint is dropped for it")
}

func TestPutRefusesNegativeTTL(t *testing.T) {
	s, err := accp.NewSession("a", "s", nil)
	require.NoError(t, err)
	err = s.Put(t.Context(), accp.ScopeCold, "k", accp.Int(1), -time.Second)
	require.ErrorIs(t, err, accp.ErrInvalidType)
	require.ErrorContains(t, err, "negative ttl -1s")
}

// A method that waits for another one ends with the cause of its context.
func TestWaitForSessionEndsWithCause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		plan := &fault.Plan{Rules: []fault.Rule{{Action: fault.Hang, Op: "create", Delay: time.Hour, Limit: 1}}}
		defer plan.Close()
		s, err := accp.NewSession("a", "s", &accp.SessionOptions{Persistence: accp.Persistence{Store: fault.Store(store.NewMemory(), plan)}})
		require.NoError(t, err)
		first := make(chan error)
		go func() { first <- s.Put(t.Context(), accp.ScopeCold, "k", accp.Int(1), 0) }()
		synctest.Wait()
		cause := errors.New("the user has left")
		ctx, cancel := context.WithCancelCause(t.Context())
		time.AfterFunc(time.Second, func() { cancel(cause) })
		require.ErrorIs(t, s.Put(ctx, accp.ScopeCold, "k", accp.Int(2), 0), cause)
		<-first
	})
}

func TestPutEntriesAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := session(t, &accp.SessionOptions{MaxMemory: 1 << 20})
		v := accp.String(strings.Repeat("x", 100<<10))
		put := func(key string, ttl time.Duration) error { return s.Put(t.Context(), accp.ScopeHot, key, v, ttl) }
		for range 50 {
			require.NoError(t, put("same", 0), "a replaced entry takes no more")
		}
		n := 0
		for put(fmt.Sprint("k", n), time.Hour) == nil {
			n++
		}
		require.InDelta(t, 8, n, 2)
		require.ErrorIs(t, put("more", 0), accp.ErrBudgetExceeded)
		time.Sleep(26 * time.Hour)
		require.NoError(t, put("more", 0), "expired entries are removed")
	})
}

func TestPartsAndStateAreBounded(t *testing.T) {
	s := session(t, &accp.SessionOptions{Budget: accp.BudgetOff, FrameLimits: accp.FrameLimits{MaxFrame: 1 << 20}, MaxMemory: -1})
	long := strings.Repeat("x", 900<<10)
	var err error
	n := int64(1)
	for ; err == nil; n++ {
		_, err = s.Receive(t.Context(), frame(fmt.Sprintf("req:x{k%d:%s}", n, long), n, fmt.Sprintf("part:%d/9", n)))
	}
	require.ErrorIs(t, err, accp.ErrBudgetExceeded)
	require.EqualValues(t, 4, n-2, "parts of 4 MiB")
	for v := 1; err == nil || v == 1; n++ {
		_, err = s.Receive(t.Context(), frame(fmt.Sprintf("sync:state{delta:{k%d:%s}|v:%d}", n, long, v), n))
		v++
		if errors.Is(err, accp.ErrSequenceGap) || errors.Is(err, accp.ErrDuplicate) {
			t.Fatal(err)
		}
	}
	require.ErrorIs(t, err, accp.ErrBudgetExceeded)
	version, _ := s.State()
	require.NotZero(t, version)
	require.Less(t, version, n-1)
}

// A session has at most 256 custom schemas of 256 KiB of canonical text, of both sides together. More
// of them are refused as a whole, and the session and the callers of others are served (ACCP-D48).
func TestSchemasAreBounded(t *testing.T) {
	named := func(n, fill int) accp.Schema {
		return accp.Schema{Name: fmt.Sprint("s", n), Code: fmt.Sprintf("S%d", n), Version: 1, Fields: []string{"a"},
			Defaults: accp.Params{text("a", strings.Repeat("x", fill))}}
	}
	one := named(100, 1)
	canonical, err := one.Canonical()
	require.NoError(t, err)
	// The schemas of a list have together 256 KiB.
	var long []accp.Schema
	for i := range 4 {
		long = append(long, named(100+i, 64<<10-len(canonical)+1))
	}
	var many []accp.Schema
	for i := range 256 {
		many = append(many, named(100+i, 1))
	}
	for name, list := range map[string][]accp.Schema{"number": many, "text": long} {
		t.Run(name, func(t *testing.T) {
			last, more := list[len(list)-1], named(999, 1)
			r := accp.NewRegistry()
			for _, s := range list {
				require.NoError(t, r.Register(s))
			}
			full := r.Hash()
			require.ErrorIs(t, r.Register(more), accp.ErrBudgetExceeded)
			last.Version++
			require.NoError(t, r.Register(last), "another version takes no more")

			// From a peer, alone and together with those of the session.
			one, other := accp.NewRegistry(), accp.NewRegistry()
			require.NoError(t, one.Register(more))
			require.ErrorIs(t, one.Merge(r.Delta(), r.Hash()), accp.ErrBudgetExceeded)
			require.Equal(t, []string{more.Code}, one.Codes(), "nothing is added")
			require.ErrorIs(t, r.Merge(one.Delta(), one.Hash()), accp.ErrBudgetExceeded)
			require.NoError(t, other.Merge(r.Delta(), r.Hash()))
			require.Equal(t, r.Hash(), other.Hash())
			require.NotEqual(t, full, r.Hash())
		})
	}

	srv := newUserServer(t, accp.ServerOptions{Session: accp.SessionOptions{FrameLimits: accp.FrameLimits{MaxFrame: 1 << 20, MaxValues: 1 << 20, MaxParams: 1 << 10}}})
	peer := accp.NewRegistry()
	for _, s := range many {
		require.NoError(t, peer.Register(s))
	}
	hello := func(r *accp.Registry) string {
		m := &accp.Message{From: "a", Intent: accp.IntentSync, Op: profile.OpRegistry, Params: accp.Params{
			{Key: "version", Value: accp.Int(r.Version())}, text("hash", r.Hash()[:12]), {Key: "delta", Value: r.Delta()}}}
		f, err := (&accp.Codec{FrameLimits: accp.FrameLimits{MaxFrame: 1 << 20, MaxValues: 1 << 20}}).Append(nil, m)
		require.NoError(t, err)
		return strings.TrimPrefix(string(f), "@a>")
	}
	require.Equal(t, http.StatusOK, srv.post("a", "s", hello(peer)).Code)
	for n := range 20 {
		next := accp.NewRegistry()
		require.NoError(t, next.Register(named(1000+n, 1)))
		res := srv.post("a", "s", hello(next))
		require.Equal(t, http.StatusBadRequest, res.Code)
		require.Contains(t, res.Body.String(), "code:E2003")
		require.Equal(t, http.StatusOK, srv.post("b", "honest", "req:echo{}").Code)
	}
	session, _ := srv.Session("s")
	require.Len(t, session.Registry().Codes(), 256)
	require.Equal(t, http.StatusOK, srv.post("a", "s", "req:echo{schema:S100}").Code, "the session continues")
}

func TestCheckpointsAreBoundedByNumber(t *testing.T) {
	for _, kv := range []store.Store{nil, store.NewMemory()} {
		s := session(t, &accp.SessionOptions{MaxCheckpoints: 3, Persistence: accp.Persistence{Store: kv}})
		var ids []string
		for i := range int64(5) {
			ids = append(ids, receive(t, s, frame(fmt.Sprintf("done:x{k:%d}", i), i+1)).Checkpoint.ID)
		}
		require.Len(t, s.Checkpoints(), 3)
		require.Equal(t, ids[2], s.Checkpoints()[0].ID)
		_, err := s.Resolve(t.Context(), "warm."+ids[1])
		require.ErrorIs(t, err, accp.ErrRefExpired)
		b, err := s.Budget(t.Context())
		require.NoError(t, err)
		require.Equal(t, 6, b.Cold.Entries, "frames and facts")
	}
}

// The last 1,024 removed ids are known as expired, older ones are unknown.
func TestIDsOfRemovedCheckpointsAreBounded(t *testing.T) {
	s := session(t, &accp.SessionOptions{MaxCheckpoints: 1})
	var ids []string
	for i := range int64(1026) {
		ids = append(ids, receive(t, s, frame(fmt.Sprintf("done:x{k:%d}", i), i+1)).Checkpoint.ID)
	}
	_, err := s.Resolve(t.Context(), "warm."+ids[0])
	require.ErrorIs(t, err, accp.ErrRefNotFound)
	_, err = s.Resolve(t.Context(), "warm."+ids[1])
	require.ErrorIs(t, err, accp.ErrRefExpired)
}

// New sessions replace idle and ended ones, first those of the same principal; busy ones cause
// refusals for their principal only.
func TestNewSessionsReplaceIdleOnes(t *testing.T) {
	began, release := make(chan struct{}, 100), make(chan struct{})
	s := newUserServer(t, accp.ServerOptions{Limits: accp.Limits{MaxMemory: 2 << 20, MaxItems: 50, MaxConcurrentPerSession: -1}})
	s.Handle("req", "wait", accp.HandlerFunc(func(context.Context, *accp.ReplyWriter, *accp.Message) error {
		began <- struct{}{}
		<-release
		return nil
	}))
	require.Equal(t, 200, s.post("honest", "h", "req:echo{}").Code)
	for i := range 2000 {
		require.Equal(t, 200, s.post("hostile", fmt.Sprint("s", i), "req:echo{k:"+strings.Repeat("x", 100)+"}").Code, i)
		if i%10 == 0 {
			session, _ := s.Session(fmt.Sprint("s", i))
			require.NoError(t, session.End(t.Context(), nil))
		}
		for _, resource := range []string{"memory", "items"} {
			used, limit := s.used(resource, "all")
			require.LessOrEqual(t, used, limit, resource)
		}
	}
	_, ok := s.Session("h")
	require.True(t, ok, "the session of another principal stays")
	// A principal holds at most as much as stays free.
	var work sync.WaitGroup
	refused := 0
	for i := range 60 {
		s.seq["w"]++
		done := make(chan int, 1)
		work.Go(func() { done <- s.postFrame("hostile", frame("req:wait{}", 1, fmt.Sprint("sid:w", i))).Code })
		select {
		case <-began:
		case code := <-done:
			require.Equal(t, http.StatusServiceUnavailable, code)
			refused++
		}
	}
	require.NotZero(t, refused)
	for i := range 10 {
		require.Equal(t, 200, s.post("honest", fmt.Sprint("h", i), "req:echo{}").Code, "another principal is served")
	}
	close(release)
	work.Wait()
	require.Equal(t, 200, s.post("hostile", "after", "req:echo{}").Code)
}

// All that was held is released when the sessions have expired.
func TestExpiredSessionsHoldNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newUserServer(t, accp.ServerOptions{Timing: accp.Timing{SessionIdleTimeout: time.Minute},
			Persistence: accp.Persistence{Store: store.NewMemory(), SharedStore: store.NewMemory()}})
		for i := range 100 {
			require.Equal(t, 200, s.post("a", fmt.Sprint("s", i), "req:echo{k:"+strings.Repeat("x", 100)+"}").Code)
		}
		used, _ := s.used("storage", "all")
		require.NotZero(t, used)
		time.Sleep(61 * time.Second)
		require.Equal(t, 204, s.post("b", "other", "ack:x{}").Code)
		synctest.Wait()
		for resource, bound := range map[string]int64{"memory": 8 << 10, "storage": 100, "items": 1, "work": 0} {
			used, _ := s.used(resource, "all")
			require.LessOrEqual(t, used, bound, resource)
		}
	})
}

// Stored checkpoints are removed over the bound, and long texts of answers are refused.
func TestStorageOfSessionsIsBounded(t *testing.T) {
	kv, shared := store.NewMemory(), store.NewMemory()
	s := newUserServer(t, accp.ServerOptions{Limits: accp.Limits{MaxStoragePerSession: 64 << 10},
		Persistence: accp.Persistence{Store: kv, SharedStore: shared}})
	for i := range 200 {
		require.Equal(t, 200, s.post("a", "s1", fmt.Sprintf("req:echo{k:%d}", i)).Code)
		used, limit := s.used("storage", "session")
		require.LessOrEqual(t, used, limit)
	}
	session, _ := s.Session("s1")
	n := len(session.Checkpoints())
	require.Less(t, n, 100)
	b, err := session.Budget(t.Context())
	require.NoError(t, err)
	require.Equal(t, 2*n, b.Cold.Entries, "removed from the store")
	other, err := accp.NewSession("server", "s1", &accp.SessionOptions{Persistence: accp.Persistence{Store: kv}})
	require.NoError(t, err)
	require.NoError(t, other.Reload(t.Context()))
	require.Len(t, other.Checkpoints(), n)

	code := 200
	for i := 0; code == 200; i++ {
		require.Less(t, i, 1000)
		w := s.post("a", "s2", fmt.Sprintf("req:echo{k:%d%s}", i, strings.Repeat("x", 80)))
		code = w.Code
		if code != 200 {
			require.Contains(t, w.Body.String(), "E2003")
		}
	}
	require.Equal(t, 200, s.post("a", "s3", "req:echo{k:"+strings.Repeat("x", 80)+"}").Code)
}

// Texts that the shared store has removed make room for others.
func TestRemovedTextsMakeRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newUserServer(t, accp.ServerOptions{Limits: accp.Limits{MaxStoragePerSession: 64 << 10}, Timing: accp.Timing{SessionIdleTimeout: -1},
			Persistence: accp.Persistence{SharedStore: store.NewMemory(), Retention: time.Hour}})
		post := func(i int) int {
			return s.post("a", "s", fmt.Sprintf("req:echo{k:%d%s}", i, strings.Repeat("x", 80))).Code
		}
		n := 0
		for post(n) == 200 {
			require.Less(t, n, 1000)
			n++
		}
		time.Sleep(24 * time.Hour) // expired texts are stored for a day
		require.Equal(t, 400, post(n))
		time.Sleep(2 * time.Hour)
		for i := range n {
			require.Equal(t, 200, post(n+1+i))
		}
		require.Equal(t, 400, post(3*n), "the bound is as before")
	})
}

// A session that was idle for too long is absent, also before another frame arrives.
func TestExpiredSessionIsAbsent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newUserServer(t, accp.ServerOptions{Timing: accp.Timing{SessionIdleTimeout: time.Minute}})
		require.Equal(t, 200, s.post("a", "s", "req:echo{}").Code)
		time.Sleep(time.Minute)
		_, ok := s.Session("s")
		require.False(t, ok)
	})
}

// A session in use outlives any timeout, and the search for expired ones ends.
func TestShortestIdleTimeout(t *testing.T) {
	s := newUserServer(t, accp.ServerOptions{Timing: accp.Timing{SessionIdleTimeout: 1}})
	entered, release, done := make(chan struct{}), make(chan struct{}), make(chan int, 2)
	s.Handle("req", "wait", accp.HandlerFunc(func(context.Context, *accp.ReplyWriter, *accp.Message) error {
		close(entered)
		<-release
		return nil
	}))
	go func() { done <- s.post("a", "s1", "req:wait{}").Code }()
	<-entered
	require.Equal(t, 200, s.post("a", "s2", "req:echo{}").Code)
	_, ok := s.Session("s1")
	require.True(t, ok)
	close(release)
	require.Equal(t, 200, <-done)
}

// Connections are counted, and a principal over its bound does not affect another principal.
func TestConnectionsAreCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newUserServer(t, accp.ServerOptions{Limits: accp.Limits{MaxMemoryPerPrincipal: 1 << 20}})
		p := newPipe()
		stop := p.serve(s)
		dial := func(user string) (*accp.Client, error) {
			return accp.Dial(t.Context(), "ws://localhost"+accp.WebSocketPath, "client", &accp.ClientOptions{HTTPClient: p.client(),
				Header: http.Header{"User": {user}}})
		}
		var clients []*accp.Client
		for {
			c, err := dial("hostile")
			if err != nil {
				require.ErrorIs(t, err, accp.ErrUnreachable)
				break
			}
			clients = append(clients, c)
			synctest.Wait()
		}
		require.InDelta(t, 7, len(clients), 1)
		c, err := dial("honest")
		require.NoError(t, err)
		for _, c := range append(clients, c) {
			require.NoError(t, c.Close())
		}
		synctest.Wait()
		used, _ := s.used("memory", "all")
		require.Less(t, used, int64(64<<10))
		stop()
	})
}

// The session of a connection that names none is counted, and is within the bounds of its principal.
func TestNamelessSessionsAreCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newUserServer(t, accp.ServerOptions{Session: accp.SessionOptions{Budget: accp.BudgetOff}, Limits: accp.Limits{MaxMemoryPerPrincipal: 1 << 20}})
		p := newPipe()
		stop := p.serve(s)
		ws, _, err := websocket.Dial(t.Context(), "ws://localhost"+accp.WebSocketPath,
			&websocket.DialOptions{HTTPClient: p.client(), HTTPHeader: http.Header{"User": {"a"}}})
		require.NoError(t, err)
		body, highest := "sync:registry{hash:"+accp.NewRegistry().Hash()+"|v:1}", int64(0)
		for i := range int64(100) {
			require.NoError(t, ws.Write(t.Context(), websocket.MessageText, frame(body, 2*i+1)))
			_, answer, err := ws.Read(t.Context())
			require.NoError(t, err)
			require.NotContains(t, string(answer), "fail:", "the oldest checkpoints are dropped")
			used, limit := s.used("memory", "principal")
			require.LessOrEqual(t, used, limit)
			highest = max(highest, used)
			body = "wait:x{k:" + strings.Repeat("x", 20000) + "}"
		}
		require.Greater(t, highest, int64(512<<10))
		require.NoError(t, ws.CloseNow())
		synctest.Wait()
		used, _ := s.used("memory", "all")
		require.Less(t, used, int64(64<<10))
		stop()
	})
}

// Callers that open sessions and fill them at full speed do not lock out another principal.
func TestServerServesHonestCallerDuringAttack(t *testing.T) {
	s := newUserServer(t, accp.ServerOptions{Session: accp.SessionOptions{Budget: accp.BudgetOff},
		Limits: accp.Limits{MaxMemory: 8 << 20, MaxItems: 200, MaxItemsPerPrincipal: -1}})
	before := kit.Heap()
	var work sync.WaitGroup
	stop := make(chan struct{})
	long := strings.Repeat("x", 30000)
	for i := range 4 {
		work.Go(func() {
			for k := 0; ; k++ {
				select {
				case <-stop:
					return
				default:
				}
				s.postFrame("hostile", frame("req:echo{k:"+long+"}", 1, fmt.Sprintf("sid:s%d_%d", i, k)))
			}
		})
	}
	for i := range 300 {
		w := s.postFrame("honest", frame("req:echo{}", 1, fmt.Sprint("sid:h", i)))
		if w.Code != 200 {
			t.Fatalf("call %d of an honest principal: status %d, want 200", i, w.Code)
		}
	}
	close(stop)
	work.Wait()
	require.Less(t, kit.Heap()-before, int64(32<<20))
	used, limit := s.used("memory", "all")
	require.LessOrEqual(t, used, limit)
}

// A countingBody counts the bytes that are read.
type countingBody struct{ n int64 }

func (b *countingBody) Read(p []byte) (int, error) {
	b.n += int64(len(p))
	return copy(p, strings.Repeat("k:1|", len(p)/4+1)), nil
}

// The work for a request is bounded by the frame limit, and before authentication nothing is read.
func TestServerReadsNoBodyBeforeAuthentication(t *testing.T) {
	for _, tt := range []struct {
		auth   accp.Auth
		length int64
		read   int64
		status int
	}{
		{accp.Auth{Authenticator: accp.BearerAuthenticator(nil)}, 16 << 20, 0, http.StatusUnauthorized},
		{accp.Auth{Authenticator: accp.BearerAuthenticator(nil)}, -1, 0, http.StatusUnauthorized},
		{accp.Auth{AllowAnonymous: true}, 16 << 20, 0, http.StatusRequestEntityTooLarge},
		{accp.Auth{AllowAnonymous: true}, -1, 256 << 10, http.StatusRequestEntityTooLarge},
	} {
		s, err := accp.NewServer("server", &accp.ServerOptions{Auth: tt.auth, Logger: slog.New(slog.DiscardHandler)})
		require.NoError(t, err)
		body := &countingBody{}
		r := httptest.NewRequest(http.MethodPost, accp.FramesPath, body)
		r.ContentLength = tt.length
		r.Header.Set("Content-Type", accp.MediaType)
		w := httptest.NewRecorder()
		s.ServeHTTP(w, r)
		require.Equal(t, tt.status, w.Code, "%+v", tt)
		require.LessOrEqual(t, body.n, tt.read, "%+v", tt)
		require.NoError(t, s.Close())
	}
}

// A session that is idle releases its memory for new sessions of its principal.
func TestIdleSessionsReleaseMemory(t *testing.T) {
	s := newUserServer(t, accp.ServerOptions{Limits: accp.Limits{MaxMemoryPerPrincipal: 512 << 10}})
	for i := range 300 {
		require.Equal(t, 200, s.post("a", fmt.Sprint("s", i), "req:echo{}").Code, i)
	}
	used, limit := s.used("memory", "principal")
	require.LessOrEqual(t, used, limit)
}

// A transaction runs once for its principal, in all sessions, concurrent requests and lives of the
// server. Other params are refused, and other principals have other transactions (ACCP-D72).
func TestTransactionRunsOnce(t *testing.T) {
	kv := store.NewMemory()
	var runs atomic.Int64
	open := func() *userServer {
		s := newUserServer(t, accp.ServerOptions{Persistence: accp.Persistence{Store: kv}})
		s.Handle("req", "transaction", accp.HandlerFunc(func(_ context.Context, w *accp.ReplyWriter, m *accp.Message) error {
			time.Sleep(10 * time.Millisecond)
			return w.SendResult(accp.Params{{Key: "runs", Value: accp.Int(runs.Add(1))}})
		}))
		return s
	}
	s := open()
	var work sync.WaitGroup
	for i := range 8 {
		f := frame("req:transaction{amt:1.5|schema:TX|txn:t1}", 1, fmt.Sprint("sid:s", i))
		work.Go(func() {
			if w := s.postFrame("a", f); !strings.Contains(w.Body.String(), "runs:1") {
				t.Errorf("got %s", w.Body)
			}
		})
	}
	work.Wait()
	require.EqualValues(t, 1, runs.Load())
	require.Contains(t, s.post("a", "other", "req:transaction{amt:9.5|schema:TX|txn:t1}").Body.String(), "E3002")
	invited := regexp.MustCompile(`code:E3002.*try:true`)
	require.Regexp(t, invited, s.postFrame("a", frame("req:transaction{amt:1.5|schema:TX|txn:t1}", 1, "sid:s1")).Body.String())
	require.NotRegexp(t, invited, s.postFrame("a", frame("req:transaction{amt:9.5|schema:TX|txn:t1}", 1, "sid:other")).Body.String())
	require.NoError(t, s.Close())
	s = open()
	require.Contains(t, s.post("a", "later", "req:transaction{amt:1.5|schema:TX|txn:t1}").Body.String(), "runs:1")
	require.Contains(t, s.post("b", "theirs", "req:transaction{amt:1.5|schema:TX|txn:t1}").Body.String(), "runs:2")
	require.Contains(t, s.post("a", "later", "req:echo{}").Body.String(), "done:echo")
	require.Contains(t, s.postFrame("a", frame("req:echo{}", 9, "sid:new", "try:1")).Body.String(), "E1004")
}

// The outcome of a transaction is kept for a day, or for five minutes without a store.
func TestOutcomesOfTransactionsExpire(t *testing.T) {
	for _, lifetime := range []time.Duration{24 * time.Hour, 5 * time.Minute} {
		synctest.Test(t, func(t *testing.T) {
			var o accp.ServerOptions
			if lifetime > time.Hour {
				o.Persistence.Store = store.NewMemory()
			}
			s, runs := newUserServer(t, o), 0
			s.Handle("req", "transaction", accp.HandlerFunc(func(context.Context, *accp.ReplyWriter, *accp.Message) error {
				runs++
				return nil
			}))
			for i, after := range []time.Duration{0, lifetime - time.Second, 2 * time.Second} {
				time.Sleep(after)
				require.Equal(t, 200, s.post("a", "s", "req:transaction{amt:1.5|schema:TX|txn:t1}").Code)
				require.Equal(t, 1+i/2, runs)
			}
		})
	}
}

// A transaction that no other process runs starts no goroutine that looks for its answer there.
func TestFirstRunFollowsNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var accesses, followers atomic.Int64
		kv := &flaky{Store: store.NewMemory(), fits: func(string) bool {
			stacks := make([]byte, 1<<20)
			all := strings.Split(string(stacks[:runtime.Stack(stacks, true)]), "\n\n") // this goroutine is the first
			bubble := regexp.MustCompile(`synctest bubble \d+`).FindString(all[0])
			accesses.Add(1)
			for _, g := range all {
				if strings.Contains(g, bubble+"]") && strings.Contains(g, ".followElsewhere") {
					followers.Add(1)
				}
			}
			return false
		}}
		s := newUserServer(t, accp.ServerOptions{Persistence: accp.Persistence{Store: kv}})
		s.Handle("req", "transaction", accp.HandlerFunc(func(_ context.Context, w *accp.ReplyWriter, m *accp.Message) error { return w.SendResult(nil) }))
		require.Equal(t, 200, s.post("a", "s1", "req:transaction{amt:1.5|schema:TX|txn:t1}").Code)
		kv.fail.Store(true) // the function is called by each access
		require.Equal(t, 200, s.post("a", "s1", "req:transaction{amt:1.5|schema:TX|txn:t2}").Code)
		kv.fail.Store(false)
		require.Positive(t, accesses.Load())
		require.Zero(t, followers.Load())
		require.NoError(t, s.Close())
	})
}

// A transaction whose answer cannot be sent has run: a repeat gets the answer. The caller left, or the record of the
// session was not written (ACCP-D72).
func TestUnsentAnswerOfTransactionIsRecorded(t *testing.T) {
	for name, tt := range map[string]struct {
		isLeaving bool // the caller
		answer    func(w *accp.ReplyWriter, p accp.Params) error
		want      string
	}{
		"left":              {true, (*accp.ReplyWriter).SendResult, "runs:1"},
		"store":             {false, (*accp.ReplyWriter).SendResult, "runs:1"},
		"without the error": {false, func(w *accp.ReplyWriter, p accp.Params) error { _ = w.SendResult(p); return nil }, "runs:1"},
		"refusal":           {false, func(*accp.ReplyWriter, accp.Params) error { return accp.ErrToolSchema }, "code:E4003"},
	} {
		t.Run(name, func(t *testing.T) {
			kv := &flaky{Store: store.NewMemory(), fits: func(key string) bool { return strings.Contains(key, "/session/") }}
			s := newUserServer(t, accp.ServerOptions{Persistence: accp.Persistence{Store: kv}, Timing: accp.Timing{ResumeWindow: -1}})
			ctx, disconnect := context.WithCancel(t.Context())
			defer disconnect()
			runs := int64(0)
			s.Handle("req", "transaction", accp.HandlerFunc(func(ctx context.Context, w *accp.ReplyWriter, m *accp.Message) error {
				runs++
				if tt.isLeaving && runs == 1 {
					disconnect()
					<-ctx.Done()
				}
				kv.fail.Store(!tt.isLeaving && runs == 1)
				return tt.answer(w, accp.Params{{Key: "runs", Value: accp.Int(runs)}})
			}))
			s.postUntil(ctx, "a", frame("req:transaction{amt:1.5|schema:TX|txn:t1}", 1, "sid:s1"))
			kv.fail.Store(false)
			body := s.post("a", "s2", "req:transaction{amt:1.5|schema:TX|txn:t1}").Body.String()
			require.Contains(t, body, tt.want)
			require.Equal(t, 1, strings.Count(body, "[mid:"), body)
			require.EqualValues(t, 1, runs)
		})
	}
}

// A transaction continues after its caller was killed, and the caller's next life gets the outcome. A handler that
// returns an error after the end of its context may have had its effect, so it does not run again (ACCP-D72, ACCP-D75).
func TestTransactionOfKilledCallerRunsOnce(t *testing.T) {
	for name, tt := range map[string]struct {
		work   time.Duration
		window time.Duration
		end    func(s *userServer, disconnect func())
		want   string
	}{
		"continues":  {2 * time.Second, 0, func(_ *userServer, disconnect func()) { disconnect() }, "runs:1"},
		"window":     {time.Hour, 0, func(_ *userServer, disconnect func()) { disconnect() }, "code:E9999"},
		"no window":  {time.Hour, -1, func(_ *userServer, disconnect func()) { disconnect() }, "code:E9999"},
		"canceled":   {time.Hour, 0, func(s *userServer, _ func()) { s.postFrame("a", frame("cancel:transaction{}", 2, "sid:s1", "cid:c1")) }, "code:E9999"},
		"restarted":  {time.Hour, 0, func(s *userServer, _ func()) { _ = s.Close() }, "code:E9999"},
		"not killed": {time.Second, 0, func(*userServer, func()) {}, "runs:1"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var runs atomic.Int64
				kv := store.NewMemory()
				open := func() *userServer {
					s := newUserServer(t, accp.ServerOptions{Persistence: accp.Persistence{Store: kv}, Timing: accp.Timing{ResumeWindow: tt.window}})
					s.Handle("req", "transaction", accp.HandlerFunc(func(ctx context.Context, w *accp.ReplyWriter, _ *accp.Message) error {
						n := runs.Add(1)
						select {
						case <-time.After(tt.work):
							return w.SendResult(accp.Params{{Key: "runs", Value: accp.Int(n)}})
						case <-ctx.Done():
							return ctx.Err()
						}
					}))
					return s
				}
				s := open()
				ctx, disconnect := context.WithCancel(t.Context())
				defer disconnect()
				go s.postUntil(ctx, "a", frame("req:transaction{amt:1.5|schema:TX|txn:t1}", 1, "sid:s1", "cid:c1"))
				synctest.Wait()
				tt.end(s, disconnect)
				time.Sleep(15 * time.Second)
				if s.Ready() != nil {
					s = open()
				}
				require.Contains(t, s.post("a", "s2", "req:transaction{amt:1.5|schema:TX|txn:t1}").Body.String(), tt.want)
				require.EqualValues(t, 1, runs.Load())
				require.NoError(t, s.Close())
			})
		})
	}
}

// failsOnce returns a handler that counts its runs. The first one fails after a minute, or when it is cut off.
func failsOnce(runs *atomic.Int64) accp.Handler {
	return accp.HandlerFunc(func(ctx context.Context, w *accp.ReplyWriter, _ *accp.Message) error {
		if n := runs.Add(1); n > 1 {
			return w.SendResult(accp.Params{{Key: "runs", Value: accp.Int(n)}})
		}
		select {
		case <-time.After(time.Minute):
			return accp.ErrToolExecFailed
		case <-ctx.Done():
			return ctx.Err()
		}
	})
}

// A client that is invited to repeat a request while its handler runs gets the outcome, and nothing runs again if the
// handler ends without one: it was interrupted, or failed with an error of a retryable code. Without an invitation such
// a request runs again, since the caller permits it (ACCP-D29, ACCP-D72).
func TestInvitedRepeatIsNotRunAgain(t *testing.T) {
	single := [][]byte{frame("req:work{a:1|b:2}", 1, "sid:s1", "cid:c1")}
	parts := [][]byte{frame("req:work{a:1}", 1, "sid:s1", "part:1/2"), frame("req:work{b:2}", 2, "sid:s1", "part:2/2")}
	for name, tt := range map[string]struct {
		frames    [][]byte
		chain     string
		isShared  bool // the repeat is at another process
		isFailing bool // by itself
		isInvited bool
		isEarly   bool // the repeat arrives before the end of the first run
		runs      int64
	}{
		"interrupted":            {single, "c1", false, false, true, false, 1},
		"interrupted, shared":    {single, "c1", true, false, true, false, 1},
		"interrupted, in parts":  {parts, "0000000a0001", true, false, true, false, 1},
		"interrupted, following": {single, "c1", true, false, true, true, 1},
		"failed":                 {single, "c1", false, true, true, false, 1},
		"failed, shared":         {single, "c1", true, true, true, false, 1},
		"failed, following":      {single, "c1", true, true, true, true, 1},
		"free":                   {single, "c1", false, false, false, false, 2},
		"free, shared":           {single, "c1", true, true, false, false, 2},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var runs atomic.Int64
				o := accp.ServerOptions{}
				if tt.isShared {
					o.Persistence.Store = store.NewMemory()
				}
				open := func() *userServer {
					s := newUserServer(t, o)
					s.Handle("req", "work", failsOnce(&runs))
					return s
				}
				first := open()
				second := first
				if tt.isShared {
					second = open()
				}
				ctx, disconnect := context.WithCancel(t.Context())
				defer disconnect()
				last := len(tt.frames) - 1
				for i, f := range tt.frames {
					go first.postUntil(ctx, "a", f)
					time.Sleep(time.Duration(1+last-i) * time.Second)
				}
				require.EqualValues(t, 1, runs.Load())
				if tt.isInvited {
					require.Regexp(t, "code:E3002.*try:true", second.postFrame("a", tt.frames[last]).Body.String())
				}
				var ending sync.WaitGroup
				ending.Go(func() {
					if tt.isFailing {
						time.Sleep(2 * time.Minute)
					}
					disconnect()
					time.Sleep(time.Second)
				})
				if !tt.isEarly {
					ending.Wait()
				}
				repeat := ""
				for _, seq := range []int64{20, 22} { // the first number is out of order
					repeat = second.postFrame("a", frame("req:work{a:1|b:2}", seq, "sid:s1", "cid:"+tt.chain, "try:2")).Body.String()
				}
				if require.EqualValues(t, tt.runs, runs.Load(), repeat); tt.runs == 1 {
					require.Contains(t, repeat, "code:E9999")
				}
				ending.Wait()
				require.NoError(t, second.Close())
				require.NoError(t, first.Close())
			})
		})
	}
}

// A handler that is registered as idempotent runs again for a request without an outcome: its process failed, it was
// interrupted, or it failed after the client was invited to repeat the request. Any other handler does not (ACCP-D72).
func TestIdempotentHandlerRunsAgain(t *testing.T) {
	request, transaction := "req:work{a:1}", "req:work{amt:1.5|schema:TX|txn:t1}"
	for name, tt := range map[string]struct {
		body         string
		isKilled     bool // the process of the handler
		isFailing    bool // the handler, by itself
		isIdempotent bool
		runs         int64
	}{
		"killed":                     {request, true, false, true, 2},
		"killed, once":               {request, true, false, false, 1},
		"killed transaction":         {transaction, true, false, true, 2},
		"killed transaction, once":   {transaction, true, false, false, 1},
		"cut off":                    {request, false, false, true, 2},
		"cut off, once":              {request, false, false, false, 1},
		"transaction, cut off":       {transaction, false, false, true, 2},
		"transaction, cut off, once": {transaction, false, false, false, 1},
		"failed after invitation":    {request, false, true, true, 2},
		"failed, once":               {request, false, true, false, 1},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var runs atomic.Int64
				kv := store.NewMemory()
				open := func(db store.Store) *userServer {
					s := newUserServer(t, accp.ServerOptions{Persistence: accp.Persistence{Store: db}, Timing: accp.Timing{ResumeWindow: -1}})
					handle := s.Handle
					if tt.isIdempotent {
						handle = s.HandleIdempotent
					}
					handle("req", "work", failsOnce(&runs))
					return s
				}
				line := &flaky{Store: kv}
				first, second := open(line), open(kv)
				ctx, disconnect := context.WithCancel(t.Context())
				defer disconnect()
				f := frame(tt.body, 1, "sid:s1", "cid:c1")
				go first.postUntil(ctx, "a", f)
				synctest.Wait()
				line.fail.Store(tt.isKilled)
				require.Regexp(t, "code:E3002.*try:true", second.postFrame("a", f).Body.String())
				if !tt.isFailing && !tt.isKilled {
					disconnect()
				}
				time.Sleep(2 * time.Minute)
				repeat := ""
				for _, seq := range []int64{20, 22} { // the first number is out of order
					repeat = second.postFrame("a", frame(tt.body, seq, "sid:s1", "cid:c1", "try:2")).Body.String()
				}
				want := "code:E9999"
				if tt.runs == 2 {
					want = "runs:2"
				}
				require.Contains(t, repeat, want)
				require.EqualValues(t, tt.runs, runs.Load())
				line.fail.Store(false)
				require.NoError(t, second.Close())
				require.NoError(t, first.Close())
			})
		})
	}
}

// The requests of a process that failed are taken over after its lease, or at once by a process with the same id, which
// replaces it (ACCP-D72), and by one that shares the store with no other.
func TestProcessTakesOver(t *testing.T) {
	for name, tt := range map[string]struct {
		failed, next     accp.Persistence
		minTime, maxTime time.Duration
	}{
		"default":    {accp.Persistence{}, accp.Persistence{}, 10 * time.Second, 25 * time.Second},
		"short":      {accp.Persistence{LeaseTTL: 3 * time.Second}, accp.Persistence{}, time.Second, 6 * time.Second},
		"equal id":   {accp.Persistence{InstanceID: "a"}, accp.Persistence{InstanceID: "a"}, 0, time.Second},
		"alone":      {accp.Persistence{SingleInstance: true}, accp.Persistence{SingleInstance: true}, 0, time.Second},
		"another id": {accp.Persistence{InstanceID: "a"}, accp.Persistence{InstanceID: "b"}, 10 * time.Second, 25 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var runs atomic.Int64
				open := func(p accp.Persistence, db store.Store) *userServer {
					p.Store = db
					s := newUserServer(t, accp.ServerOptions{Persistence: p, Timing: accp.Timing{ResumeWindow: -1}})
					s.HandleIdempotent("req", "work", failsOnce(&runs))
					return s
				}
				line := &flaky{Store: store.NewMemory()}
				first := open(tt.failed, line)
				ctx, disconnect := context.WithCancel(t.Context())
				defer disconnect()
				go first.postUntil(ctx, "a", frame("req:work{a:1}", 1, "sid:s1", "cid:c1"))
				synctest.Wait()
				line.fail.Store(true)
				failed := time.Now()
				second := open(tt.next, line.Store)
				for seq := int64(2); ; seq++ {
					answer := second.postFrame("a", frame("req:work{a:1}", seq, "sid:s1", "cid:c1", "try:2")).Body.String()
					if strings.Contains(answer, "runs:2") {
						break
					}
					require.Contains(t, answer, "try:true")
					time.Sleep(100 * time.Millisecond)
				}
				require.GreaterOrEqual(t, time.Since(failed), tt.minTime)
				require.LessOrEqual(t, time.Since(failed), tt.maxTime)
				line.fail.Store(false)
				time.Sleep(time.Minute)
				require.Equal(t, tt.next.InstanceID == "a", first.Ready() != nil, "a replaced process ends")
				require.NoError(t, second.Close())
				_ = first.Close()
			})
		})
	}
}

// A value that a session keeps does not hold the memory of its whole frame: values of the shared state, schemas,
// announced summaries, and the id of the session (ACCP-D76).
func TestSessionReleasesFrames(t *testing.T) {
	if race.Enabled {
		t.Skip("the race detector allocates")
	}
	const frames = 250
	junk := "|junk:" + strings.Repeat("x", 60_000)
	for name, f := range map[string]func(i int64) string{
		"state":         func(i int64) string { return fmt.Sprintf("sync:state{delta:{k%d:x}|v:%d%s}", i, i, junk) },
		"announcements": func(i int64) string { return announcement(i) + junk + "}" },
	} {
		t.Run(name, func(t *testing.T) {
			s := session(t, &accp.SessionOptions{MaxMemory: 2 << 20})
			before := kit.Heap()
			for i := int64(1); i <= frames; i++ {
				receive(t, s, frame(f(i), i))
			}
			require.Less(t, kit.Heap()-before, int64(5<<20))
			runtime.KeepAlive(s)
		})
	}
	t.Run("schemas", func(t *testing.T) {
		s := session(t, nil)
		before := kit.Heap()
		for i := range int64(frames) {
			peer := benchPeer(t, int(i), 1)
			hello, err := new(accp.Codec).AppendValue(nil, peer.Delta())
			require.NoError(t, err)
			_, _, err = s.ReceiveRegistry(t.Context(), frame(fmt.Sprintf("sync:registry{delta:%s|hash:%s|v:2%s}", hello, peer.Hash(), junk), 2*i+1))
			require.NoError(t, err)
		}
		require.Len(t, s.Registry().Codes(), frames)
		require.Less(t, kit.Heap()-before, int64(5<<20))
		runtime.KeepAlive(s)
	})
	t.Run("session ids", func(t *testing.T) {
		s := newUserServer(t, accp.ServerOptions{})
		before := kit.Heap()
		for i := range frames {
			require.Equal(t, 200, s.post("a", fmt.Sprint("s", i), "sync:registry{hash:e6ff026ba263|v:1"+junk+"}").Code)
		}
		require.Less(t, kit.Heap()-before, int64(5<<20))
	})
}

// announcement returns the begin of a valid sync:checkpoint.
func announcement(i int64) string {
	hash, summary := fmt.Sprintf("a%015x", i), fmt.Sprint("s", i)
	return fmt.Sprintf("sync:checkpoint{hash:%s|id:cp%.8x|summary:%s", hash, sha256.Sum256([]byte("["+hash+","+summary+"]")), summary)
}

// The note of announced checkpoints is bounded, since a peer can announce any number of them (ACCP-D76).
func TestAnnouncementsAreBounded(t *testing.T) {
	s := session(t, &accp.SessionOptions{MaxMemory: 2 << 20})
	for i := int64(1); i <= 2000; i++ {
		receive(t, s, frame(announcement(i)+"}", i))
	}
	require.LessOrEqual(t, s.Announced(), 512)
}

// A call holds no chunk that it has yielded.
func TestStreamReleasesChunks(t *testing.T) {
	if race.Enabled {
		t.Skip("the race detector allocates")
	}
	const chunks = 500
	d := newDesk(t, &accp.ServerOptions{Limits: accp.Limits{MaxMemoryPerSession: 2 << 20}})
	d.Handle("req", "long", accp.HandlerFunc(func(_ context.Context, w *accp.ReplyWriter, m *accp.Message) error {
		for i := range int64(chunks) {
			err := w.Send(msg("stream", "long", text("schema", "ST"), accp.Param{Key: "chunk_index", Value: accp.Int(i)},
				text("data", strings.Repeat("x", 60_000)), accp.Param{Key: "is_final", Value: accp.Bool(i == chunks-1)}))
			if err != nil {
				return err
			}
		}
		return nil
	}))
	c := d.http(t, &accp.ClientOptions{Session: accp.SessionOptions{MaxMemory: 2 << 20}})
	before, n := kit.Heap(), 0
	for _, err := range c.Stream(t.Context(), msg("req", "long"), nil) {
		require.NoError(t, err)
		if n++; n == chunks {
			require.Less(t, kit.Heap()-before, int64(12<<20))
		}
	}
	require.Equal(t, chunks, n)
}

// Each message of a stream without an index is yielded: it is not the repetition of another one.
func TestStreamMessagesWithoutIndex(t *testing.T) {
	d := newDesk(t, nil)
	d.Handle("req", "notes", accp.HandlerFunc(func(_ context.Context, w *accp.ReplyWriter, _ *accp.Message) error {
		for _, note := range []string{"a", "b"} {
			if err := w.Send(msg("stream", "notes", text("note", note))); err != nil {
				return err
			}
		}
		return w.SendResult(nil)
	}))
	var notes []string
	for m, err := range d.http(t, nil).Replies(t.Context(), msg("req", "notes"), nil) {
		require.NoError(t, err)
		notes = append(notes, m.Params.Text("note"))
	}
	require.Equal(t, []string{"a", "b", ""}, notes)
}

// A repeated transaction that has followed a run whose process failed gets the whole answer of the next run, which a third
// process makes (ACCP-D72).
func TestFollowerOfLostRunGetsWholeAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var runs atomic.Int64
		line := &flaky{Store: store.NewMemory()}
		open := func(db store.Store) *userServer {
			s := newUserServer(t, accp.ServerOptions{Persistence: accp.Persistence{Store: db}})
			s.HandleIdempotent("req", "work", accp.HandlerFunc(func(ctx context.Context, w *accp.ReplyWriter, _ *accp.Message) error {
				if runs.Add(1) > 1 {
					return w.SendResult(accp.Params{text("run", "2")})
				}
				_ = w.Send(msg("wait", "work", text("note", strings.Repeat("x", 100))))
				<-ctx.Done()
				return ctx.Err()
			}))
			return s
		}
		servers := []*userServer{open(line), open(line.Store), open(line.Store)}
		bodies := make([]string, len(servers))
		var calls sync.WaitGroup
		for i, s := range servers {
			calls.Go(func() {
				defer func() { _ = recover() }() // of a response that is cut off
				bodies[i] = s.post("a", fmt.Sprint("s", i), "req:work{amt:1.5|schema:TX|txn:t1}").Body.String()
			})
			time.Sleep(2 * time.Second)
		}
		line.fail.Store(true)
		calls.Wait()
		for _, body := range bodies[1:] {
			require.Contains(t, body, "wait:work", "followed")
			require.Contains(t, body, "done:work{run:\\e2")
		}
		require.EqualValues(t, 2, runs.Load())
		line.fail.Store(false)
		for _, s := range servers {
			require.NoError(t, s.Close())
		}
	})
}

// Shutdown waits until the outcomes of ended requests are stored, so that the next process repeats them (ACCP-D72).
func TestShutdownStoresOutcomes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var runs atomic.Int64
		kv := &flaky{Store: store.NewMemory(), fits: func(key string) bool { return strings.HasPrefix(key, "accp/once/") }}
		open := func() *userServer {
			s := newUserServer(t, accp.ServerOptions{Persistence: accp.Persistence{Store: kv}})
			s.Handle("req", "transaction", accp.HandlerFunc(func(_ context.Context, w *accp.ReplyWriter, _ *accp.Message) error {
				kv.fail.Store(runs.Add(1) == 1)
				return w.SendResult(accp.Params{{Key: "runs", Value: accp.Int(runs.Load())}})
			}))
			return s
		}
		const payment = "req:transaction{amt:1.5|schema:TX|txn:t1}"
		s := open()
		require.Contains(t, s.post("a", "s1", payment).Body.String(), "runs:1")
		time.AfterFunc(5*time.Second, func() { kv.fail.Store(false) })
		require.NoError(t, s.Shutdown(t.Context()))
		require.Contains(t, open().post("a", "s2", payment).Body.String(), "runs:1")
		require.EqualValues(t, 1, runs.Load())
	})
}

// Close ends a Shutdown that waits for a store without answers.
func TestCloseEndsShutdown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		kv := &flaky{Store: store.NewMemory(), fits: func(key string) bool { return strings.HasPrefix(key, "accp/once/") }}
		s := newUserServer(t, accp.ServerOptions{Persistence: accp.Persistence{Store: kv}})
		s.Handle("req", "transaction", accp.HandlerFunc(func(_ context.Context, w *accp.ReplyWriter, _ *accp.Message) error {
			kv.fail.Store(true)
			return w.SendResult(nil)
		}))
		s.post("a", "s1", "req:transaction{amt:1.5|schema:TX|txn:t1}")
		outcome := make(chan error, 1)
		go func() { outcome <- s.Shutdown(context.Background()) }()
		time.Sleep(time.Minute)
		require.Empty(t, outcome)
		require.NoError(t, s.Close())
		synctest.Wait()
		require.Len(t, outcome, 1)
		require.Error(t, <-outcome, "an outcome is not stored")
		time.Sleep(time.Minute) // the last attempt at the store
	})
}
