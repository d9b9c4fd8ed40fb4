// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package altar

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/fivewire/fivewire/altar/internal/ledger"
	"github.com/fivewire/fivewire/internal/strictjson"
	"github.com/fivewire/fivewire/internal/testkit"
	"github.com/fivewire/fivewire/store"
)

// A faulty store fails, or is slow, where a test wants it to.
type faulty struct {
	store.Store
	mu    sync.Mutex
	fault func(op, key string) error
	after func(op, key string) error // done, but the answer is lost
	delay time.Duration
}

func (f *faulty) at(ctx context.Context, op, key string) error {
	f.mu.Lock()
	fault, delay := f.fault, f.delay
	f.mu.Unlock()
	if delay > 0 {
		select {
		case <-time.After(delay):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	if fault != nil {
		return fault(op, key)
	}
	return nil
}

// done is called when something was done.
func (f *faulty) done(op, key string) error {
	f.mu.Lock()
	after := f.after
	f.mu.Unlock()
	if after != nil {
		return after(op, key)
	}
	return nil
}

func (f *faulty) lose(after func(op, key string) error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.after = after
}

func (f *faulty) set(fault func(op, key string) error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.fault = fault
}

var errDown = errors.New("the store is down")

func (f *faulty) Get(ctx context.Context, key string) (store.Entry, error) {
	if err := f.at(ctx, "get", key); err != nil {
		return store.Entry{}, err
	}
	e, err := f.Store.Get(ctx, key)
	return e, errors.Join(err, f.done("get", key))
}

func (f *faulty) Create(ctx context.Context, key string, v []byte, ttl time.Duration) (store.Revision, error) {
	if err := f.at(ctx, "create", key); err != nil {
		return 0, err
	}
	rev, err := f.Store.Create(ctx, key, v, ttl)
	return rev, errors.Join(err, f.done("create", key))
}

func (f *faulty) Update(ctx context.Context, key string, v []byte, rev store.Revision, ttl time.Duration) (store.Revision, error) {
	if err := f.at(ctx, "update", key); err != nil {
		return 0, err
	}
	rev, err := f.Store.Update(ctx, key, v, rev, ttl)
	return rev, errors.Join(err, f.done("update", key))
}

func (f *faulty) Delete(ctx context.Context, key string, rev store.Revision) error {
	if err := f.at(ctx, "delete", key); err != nil {
		return err
	}
	return f.Store.Delete(ctx, key, rev)
}

// A lifetime is one run of a Host on a store, with a Runtime and a client.
type lifetime struct {
	t    *testing.T
	h    *Host
	runs *atomic.Int64
	own  *faulty // its way to the store
}

// live starts a Host of an ID on a store that is shared. Its Runtime counts the
// calls that it runs, all lives of a test together.
func live(t *testing.T, st store.Store, id string, runs *atomic.Int64, opts HostOptions) *lifetime {
	f := &faulty{Store: st}
	opts.ID, opts.Persistence.Store = id, f
	l := &lifetime{t: t, h: testHost(t, &opts), runs: runs, own: f}
	rt := testRuntime("r-"+id, nil)
	add := rt.names["math/add"].tool
	count := func(tool Handler) Handler {
		return HandlerFunc(func(ctx context.Context, call *ToolCall) (any, error) {
			runs.Add(1)
			return tool.ServeALTAR(ctx, call)
		})
	}
	rt.names["math/add"].tool = count(add)
	rt.names["wait"].tool = count(rt.names["wait"].tool)
	rt.names["get"].tool = HandlerFunc(func(ctx context.Context, call *ToolCall) (any, error) {
		runs.Add(1)
		t := time.NewTimer(10 * time.Second)
		defer t.Stop()
		select {
		case <-t.C:
		case <-ctx.Done():
		}
		return id, ctx.Err()
	})
	conn, err := l.h.Dial(testService)
	require.NoError(t, err)
	done := make(chan struct{})
	ctx, stop := context.WithCancel(context.Background())
	go func() {
		defer close(done)
		_ = rt.Run(ctx, conn)
	}()
	t.Cleanup(func() { _ = conn.Close(); stop(); <-done })
	synctest.Wait()
	return l
}

// die cuts the Host off from the store, as a crash does, and closes it then.
func (l *lifetime) die() {
	l.own.set(func(string, string) error { return store.ErrClosed })
	require.NoError(l.t, l.h.Close())
}

func call(id, tool, params string) *ToolCall {
	return &ToolCall{InvocationID: id, SessionID: "s", ToolName: tool, Parameters: json.RawMessage(params)}
}

// ALT-073, ALT-D22, ALT-D24: a Host that is started again has its sessions, the
// outcomes of its calls and the owners of runtime ids; calls in flight have
// failed, unless they may run again.
func TestRestart(t *testing.T) {
	for _, heir := range []string{"h", "other"} {
		t.Run(heir, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				st, runs := store.NewMemory(), new(atomic.Int64)
				a := live(t, st, "h", runs, HostOptions{})
				w := connect(t, a.h, testUser)
				w.send(&CreateSession{SessionID: "s", TTLSeconds: 600, Metadata: map[string]string{"k": "v"}})
				created := next[*SessionCreated](w)
				require.Equal(t, int64(600), created.TTLSeconds)
				w.send(&CreateSession{SessionID: "gone"})
				next[*SessionCreated](w)
				w.send(&DestroySession{SessionID: "gone"})
				next[*SessionDestroyed](w)
				w.send(call("done", "math/add", `{"a":1,"b":2}`))
				require.Equal(t, json.RawMessage("3"), next[*ToolResult](w).Payload)
				w.send(call("stream", "count", `{"n":3}`))
				for range 4 {
					next[*StreamChunk](w)
				}
				w.send(call("flight", "wait", `{"ms":5000}`))
				w.send(call("pinned", "r-h/get", `{"key":"k"}`))
				w.send(call("again", "get", `{"key":"k"}`))
				w.send(call("ticks", "ticks", `{}`))
				synctest.Wait()
				require.Equal(t, int64(4), runs.Load())
				a.die()

				b := live(t, st, heir, runs, HostOptions{})
				w = connect(t, b.h, testUser)
				w.send(call("done", "math/add", `{"b":2.0,"a":1}`))
				require.Equal(t, json.RawMessage("3"), next[*ToolResult](w).Payload)
				w.send(call("done", "math/add", `{"a":1,"b":3}`))
				require.ErrorIs(t, next[*ToolResult](w).Error, reasonInvocationIDReused)
				w.send(call("done", "math/add", `{"a":1}`))
				require.ErrorIs(t, next[*ToolResult](w).Error, reasonInvocationIDReused, "before the parameters are judged")
				w.send(&ToolCall{InvocationID: "stream", SessionID: "s", ToolName: "count", Parameters: json.RawMessage(`{"n":3}`), ResumeFrom: 2})
				require.Equal(t, int64(2), next[*StreamChunk](w).ChunkID)
				require.True(t, next[*StreamChunk](w).IsFinal)
				w.send(&ToolCall{InvocationID: "new", SessionID: "s", ToolName: "count", Parameters: json.RawMessage(`{"n":3}`), ResumeFrom: 2})
				require.ErrorIs(t, next[*ToolResult](w).Error, reasonUnknownInvocation)

				start := time.Now()
				for _, c := range []*ToolCall{call("flight", "wait", `{"ms":5000}`), call("pinned", "r-h/get", `{"key":"k"}`), call("ticks", "ticks", `{}`)} {
					w.send(c)
					require.ErrorIs(t, next[*ToolResult](w).Error, ReasonDisconnected)
				}
				if heir == "h" {
					require.Zero(t, time.Since(start), "nobody else can be it")
				} else {
					require.Less(t, time.Since(start), 18*time.Second, "15 s of the lease, 1.5 s of a cached answer and 1 s of a poll")
				}
				require.Equal(t, int64(4), runs.Load(), "nothing ran")
				w.send(call("again", "get", `{"key":"k"}`))
				require.Equal(t, json.RawMessage(`"`+heir+`"`), next[*ToolResult](w).Payload)
				require.Equal(t, int64(5), runs.Load())

				w.send(call("x", "fail", `{}`))
				w.send(&ListTools{SessionID: "gone"})
				for range 2 { // in any order
					m, err := w.conn.Receive()
					require.NoError(t, err)
					if e, ok := m.(*ErrorMessage); ok {
						require.ErrorIs(t, e.Err, ReasonUnknownSession)
					} else {
						require.ErrorIs(t, m.(*ToolResult).Error, ErrExecutionFailed)
					}
				}
				for _, id := range []string{"s", "gone"} {
					w.send(&CreateSession{SessionID: id})
					require.NotEqual(t, id, next[*SessionCreated](w).SessionID)
				}
				thief := connect(t, b.h, &Principal{ID: "thief"})
				thief.send(call("done", "math/add", `{"a":1,"b":2}`))
				require.ErrorIs(t, next[*ToolResult](thief).Error, ReasonUnknownSession)
				thief = connect(t, b.h, &Principal{ID: "thief"})
				_ = thief.conn.Send(&AnnounceRuntime{RuntimeID: "r-h", ProtocolVersion: ProtocolVersion})
				require.ErrorIs(t, next[*ErrorMessage](thief).Err, reasonRuntimeIDTaken)
				sh := b.h.shardOf("s")
				b.h.lock(sh)
				require.Equal(t, "v", sessionOf(sh.core.Find("s")).info().Metadata["k"])
				b.h.unlock(sh)

				time.Sleep(10 * time.Minute)
				w.send(call("late", "math/add", `{"a":1,"b":2}`))
				require.ErrorIs(t, next[*ToolResult](w).Error, ReasonUnknownSession, "its time is over")
			})
		})
	}
}

// Two Hosts on one store get the same calls at the same time: each runs once, and
// both clients get the outcome.
func TestTwoHostsRace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st, runs := store.NewMemory(), new(atomic.Int64)
		lives := []*lifetime{live(t, st, "a", runs, HostOptions{}), live(t, st, "b", runs, HostOptions{})}
		var wires []*wire
		for _, l := range lives {
			wires = append(wires, connect(t, l.h, testUser))
		}
		wires[0].session("s")
		const n = 200
		var wg sync.WaitGroup
		for _, w := range wires {
			wg.Go(func() {
				for i := range n {
					w.send(call(fmt.Sprint("i", i), "math/add", fmt.Sprintf(`{"a":%d,"b":1}`, i)))
				}
			})
			wg.Go(func() {
				got := make(map[string]string)
				for range n {
					r := next[*ToolResult](w)
					if r.Error != nil {
						t.Error(r.Error)
					}
					got[r.InvocationID] = string(r.Payload)
				}
				for i := range n {
					if got[fmt.Sprint("i", i)] != fmt.Sprint(i+1) {
						t.Error(i, got[fmt.Sprint("i", i)])
					}
				}
			})
		}
		wg.Wait()
		require.Equal(t, int64(n), runs.Load())
	})
}

// A repeat at another Host waits for the outcome. Cancelling the repeat does not cancel the call.
func TestRepeatAtOtherHost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st, runs := store.NewMemory(), new(atomic.Int64)
		a, b := live(t, st, "a", runs, HostOptions{}), live(t, st, "b", runs, HostOptions{})
		wa, wb := connect(t, a.h, testUser), connect(t, b.h, testUser)
		wa.session("s")
		wait := call("i", "wait", `{"ms":20000}`)
		wa.send(wait)
		synctest.Wait()
		wb.send(wait)
		wb.send(call("i", "wait", `{"ms":1}`))
		require.ErrorIs(t, next[*ErrorMessage](wb).Err, reasonInvocationIDReused)
		time.Sleep(time.Second)
		wb.send(&CancelCall{InvocationID: "i", SessionID: "s"})
		require.ErrorIs(t, next[*ToolResult](wb).Error, ReasonCancelled)
		wb.send(wait)
		require.Equal(t, json.RawMessage(`"waited"`), next[*ToolResult](wa).Payload)
		require.Equal(t, json.RawMessage(`"waited"`), next[*ToolResult](wb).Payload)
		require.Equal(t, int64(1), runs.Load())
		require.Zero(t, b.h.Stats().InFlight)

		// The other Host fails while a caller waits.
		wait = call("j", "wait", `{"ms":50000}`)
		wa.send(wait)
		synctest.Wait()
		wb.send(wait)
		synctest.Wait()
		a.die()
		require.ErrorIs(t, next[*ToolResult](wb).Error, ReasonDisconnected)
		require.Equal(t, int64(2), runs.Load())
	})
}

// ALT-D19: a session that is destroyed at one Host is over at all of them.
func TestDestroyedElsewhere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st, runs := store.NewMemory(), new(atomic.Int64)
		a, b := live(t, st, "a", runs, HostOptions{}), live(t, st, "b", runs, HostOptions{})
		wa, wb := connect(t, a.h, testUser), connect(t, b.h, testUser)
		wa.session("s")
		wb.send(call("i", "wait", `{"ms":20000}`))
		wa.send(call("j", "math/add", `{"a":1,"b":2}`))
		next[*ToolResult](wa)
		synctest.Wait()
		wb2 := connect(t, b.h, testUser)
		wb2.send(&DestroySession{SessionID: "s"})
		require.Equal(t, "destroyed", next[*SessionDestroyed](wb2).Reason)
		require.ErrorIs(t, next[*ToolResult](wb).Error, reasonSessionDestroyed)
		synctest.Wait()
		require.Empty(t, a.h.sessionIDs())
		wa.send(call("k", "math/add", `{"a":1,"b":2}`))
		require.ErrorIs(t, next[*ToolResult](wa).Error, ReasonUnknownSession)
	})
}

// ALT-D19, sliding: use at one Host prolongs the session at the other.
func TestSlidingElsewhere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st, runs := store.NewMemory(), new(atomic.Int64)
		opts := HostOptions{Timing: Timing{SlidingSessionTTL: true, SessionTTL: time.Minute}}
		a, b := live(t, st, "a", runs, opts), live(t, st, "b", runs, opts)
		wa, wb := connect(t, a.h, testUser), connect(t, b.h, testUser)
		wa.session("s")
		for i := range 5 {
			w := []*wire{wa, wb}[i%2]
			time.Sleep(50 * time.Second)
			w.send(call(fmt.Sprint("i", i), "math/add", `{"a":1,"b":2}`))
			require.Nil(t, next[*ToolResult](w).Error)
		}
		time.Sleep(61 * time.Second)
		for _, w := range []*wire{wa, wb} {
			w.send(call("late", "math/add", `{"a":1,"b":2}`))
			require.ErrorIs(t, next[*ToolResult](w).Error, ReasonUnknownSession)
		}
	})
}

// A call that cannot be recorded does not run; a finished call is answered.
func TestStoreFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st, runs := store.NewMemory(), new(atomic.Int64)
		a := live(t, st, "a", runs, HostOptions{Persistence: Persistence{StoreTimeout: time.Second}})
		w := connect(t, a.h, testUser)
		down := func(op, prefix string) {
			a.own.set(func(o, key string) error {
				if (op == "" || op == o) && strings.HasPrefix(key, prefix) {
					return errDown
				}
				return nil
			})
		}
		down("", "altar/session")
		w.send(&CreateSession{SessionID: "s"})
		require.ErrorIs(t, next[*ErrorMessage](w).Err, ErrInternal)
		w.send(call("i", "math/add", `{"a":1,"b":2}`))
		require.ErrorIs(t, next[*ToolResult](w).Error, ErrInternal)
		w.send(&ListTools{SessionID: "s"})
		require.ErrorIs(t, next[*ErrorMessage](w).Err, ErrInternal)
		w.send(&CancelCall{SessionID: "s", InvocationID: "i"})
		a.own.set(nil)
		w.session("s")

		down("create", "altar/once/")
		w.send(call("i", "math/add", `{"a":1,"b":2}`))
		require.ErrorIs(t, next[*ToolResult](w).Error, ErrInternal)
		require.Zero(t, runs.Load())
		a.own.set(nil)
		w.send(call("i", "math/add", `{"a":1,"b":2}`))
		require.Equal(t, json.RawMessage("3"), next[*ToolResult](w).Payload)

		down("update", "altar/once/")
		w.send(call("j", "math/add", `{"a":1,"b":2}`))
		require.Equal(t, json.RawMessage("3"), next[*ToolResult](w).Payload)
		require.Equal(t, int64(2), runs.Load())
		w.send(call("j", "math/add", `{"a":1,"b":2}`))
		require.Equal(t, json.RawMessage("3"), next[*ToolResult](w).Payload)
		a.own.set(func(op, key string) error {
			if op == "update" && !strings.HasPrefix(key, "altar/lease/") {
				return errDown
			}
			return nil
		})
		w.send(&DestroySession{SessionID: "s"})
		require.ErrorIs(t, next[*ErrorMessage](w).Err, ErrInternal)
		require.Equal(t, []string{"s"}, a.h.sessionIDs(), "it lives on")
		time.Sleep(6 * time.Minute)
		a.own.set(nil)
		w.send(call("j", "math/add", `{"a":1,"b":2}`))
		require.Equal(t, json.RawMessage("3"), next[*ToolResult](w).Payload, "the outcome is recorded late")
		require.Equal(t, int64(2), runs.Load())

		// A repeat at another Host gets the outcome after the store has recovered.
		b := live(t, st, "b", runs, HostOptions{})
		wb := connect(t, b.h, testUser)
		down("update", "altar/once/")
		w.send(call("k", "math/add", `{"a":1,"b":2}`))
		require.Equal(t, json.RawMessage("3"), next[*ToolResult](w).Payload)
		wb.send(call("k", "math/add", `{"a":1,"b":2}`))
		time.Sleep(time.Minute)
		a.own.set(nil)
		require.Equal(t, json.RawMessage("3"), next[*ToolResult](wb).Payload)
		require.Equal(t, int64(3), runs.Load())

		down("", "altar/runtime")
		rt := connect(t, a.h, testService)
		_ = rt.conn.Send(&AnnounceRuntime{RuntimeID: "r", ProtocolVersion: ProtocolVersion})
		require.ErrorIs(t, next[*ErrorMessage](rt).Err, ErrInternal)
	})
}

// An outcome that is too large for the engine is not kept, but that the call ran
// is.
func TestStoreTooSmall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st, runs := store.NewMemory(), new(atomic.Int64)
		a := live(t, st, "h", runs, HostOptions{})
		a.own.set(func(op, key string) error {
			if op == "update" && strings.HasPrefix(key, "altar/once/") {
				a.own.set(nil)
				return store.ErrInvalid
			}
			return nil
		})
		w := connect(t, a.h, testUser)
		w.session("s")
		w.send(call("i", "math/add", `{"a":1,"b":2}`))
		require.Equal(t, json.RawMessage("3"), next[*ToolResult](w).Payload)
		a.die()
		b := live(t, st, "h", runs, HostOptions{})
		w = connect(t, b.h, testUser)
		w.send(call("i", "math/add", `{"a":1,"b":2}`))
		require.ErrorIs(t, next[*ToolResult](w).Error, ReasonNotRetained)
		require.Equal(t, int64(1), runs.Load())
	})
}

// A slow store delays only the calls that wait for it: calls of one connection are recorded
// concurrently.
func TestStoreSlow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st, runs := store.NewMemory(), new(atomic.Int64)
		a := live(t, st, "a", runs, HostOptions{})
		w := connect(t, a.h, testUser)
		w.session("s")
		a.own.mu.Lock()
		a.own.delay = 100 * time.Millisecond
		a.own.mu.Unlock()
		start := time.Now()
		for i := range 100 {
			w.send(call(fmt.Sprint(i), "math/add", `{"a":1,"b":2}`))
		}
		w.send(&Ping{})
		next[*Pong](w)
		require.Zero(t, time.Since(start))
		w.send(call("held", "wait", `{"ms":1000}`))
		w.send(&CancelCall{SessionID: "s", InvocationID: "held"}) // before it is claimed
		for range 101 {
			if r := next[*ToolResult](w); r.InvocationID == "held" {
				require.ErrorIs(t, r.Error, ReasonCancelled)
			} else {
				require.Nil(t, r.Error)
			}
		}
		require.Equal(t, 200*time.Millisecond, time.Since(start))
		require.Equal(t, int64(100), runs.Load())
		w.send(call("held", "wait", `{"ms":1000}`))
		require.ErrorIs(t, next[*ToolResult](w).Error, ReasonCancelled, "it is recorded")

		// A session ends while calls are claimed and recorded.
		w.send(call("x", "math/add", `{"a":1,"b":2}`))
		time.Sleep(150 * time.Millisecond)
		w.send(call("y", "math/add", `{"a":1,"b":2}`))
		a.h.destroyedElsewhere("s")
		require.Nil(t, next[*ToolResult](w).Error, "it had ended before")
		require.ErrorIs(t, next[*ToolResult](w).Error, reasonSessionDestroyed)
		require.Equal(t, int64(101), runs.Load())
		time.Sleep(6 * time.Minute)
		require.Zero(t, a.h.Stats().InFlight)
		require.Zero(t, a.h.Stats().StoredResults)
	})
}

// A Host whose lease had expired sends the outcome that another Host recorded.
func TestThoughtDead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st, runs := store.NewMemory(), new(atomic.Int64)
		a, b := live(t, st, "a", runs, HostOptions{}), live(t, st, "b", runs, HostOptions{})
		wa, wb := connect(t, a.h, testUser), connect(t, b.h, testUser)
		wa.session("s")
		wa.send(call("i", "wait", `{"ms":40000}`))
		wa.send(call("j", "get", `{"key":"k"}`))
		synctest.Wait()
		a.own.set(func(_, key string) error {
			if strings.HasPrefix(key, "altar/lease/") {
				return errDown
			}
			return nil
		})
		time.Sleep(5 * time.Second)
		nextGet := make(chan *ToolResult, 1)
		go func() { nextGet <- next[*ToolResult](wa) }()
		time.Sleep(20 * time.Second)
		require.Equal(t, json.RawMessage(`"a"`), (<-nextGet).Payload)
		wb.send(call("i", "wait", `{"ms":40000}`))
		require.ErrorIs(t, next[*ToolResult](wb).Error, ReasonDisconnected)
		a.own.set(nil)
		require.ErrorIs(t, next[*ToolResult](wa).Error, ReasonDisconnected, "both say the same")
		require.Equal(t, int64(2), runs.Load())
	})
}

// Of two Hosts with the same ID, the older one refuses calls.
func TestFenced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st, runs := store.NewMemory(), new(atomic.Int64)
		a := live(t, st, "h", runs, HostOptions{})
		wa := connect(t, a.h, testUser)
		wa.session("s")
		require.NoError(t, a.h.Ready())
		b := live(t, st, "h", runs, HostOptions{})
		wb := connect(t, b.h, testUser)
		wb.send(call("i", "math/add", `{"a":1,"b":2}`))
		require.Nil(t, next[*ToolResult](wb).Error)
		time.Sleep(6 * time.Second)
		wa.send(call("j", "math/add", `{"a":1,"b":2}`))
		require.ErrorIs(t, next[*ToolResult](wa).Error, ErrInternal)
		wa.send(&CreateSession{})
		require.ErrorIs(t, next[*ErrorMessage](wa).Err, ErrInternal)
		require.ErrorContains(t, a.h.Ready(), "ID in use by another process")
		require.NoError(t, b.h.Ready())
		wb.send(call("j", "math/add", `{"a":1,"b":2}`))
		require.Nil(t, next[*ToolResult](wb).Error)
		require.NoError(t, b.h.Close())
		time.Sleep(time.Minute)
		wa.send(call("k", "math/add", `{"a":1,"b":2}`))
		require.ErrorIs(t, next[*ToolResult](wa).Error, ErrInternal, "it has stopped permanently")
	})
}

// A text that cannot be the id of a session is unknown, although the store cannot read it.
func TestInvalidSessionIDsAreNotRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := live(t, store.NewMemory(), "h", new(atomic.Int64), HostOptions{})
		w := connect(t, l.h, testUser)
		l.own.set(func(string, string) error { return errors.New("the key is too long") })
		for _, id := range []string{"a b", "*", "a\n", strings.Repeat("x", 129)} {
			w.send(&ListTools{SessionID: id})
			require.ErrorIs(t, next[*ErrorMessage](w).Err, ReasonUnknownSession, id)
		}
		l.own.set(nil)
	})
}

// ALT-D16: an owner keeps its runtime id while it is connected and for a day.
func TestOwnersStored(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st, runs := store.NewMemory(), new(atomic.Int64)
		opts := HostOptions{Persistence: Persistence{LeaseTTL: time.Hour}, Cluster: apart{}} // five idle days
		a, b := live(t, st, "a", runs, opts), live(t, st, "b", runs, opts)
		try := func() *Error {
			w := connect(t, b.h, &Principal{ID: "thief"})
			_ = w.conn.Send(&AnnounceRuntime{RuntimeID: "r-a", ProtocolVersion: ProtocolVersion})
			m, err := w.conn.Receive()
			require.NoError(t, err)
			if e, ok := m.(*ErrorMessage); ok {
				return e.Err
			}
			return nil
		}
		time.Sleep(100 * time.Hour)
		require.ErrorIs(t, try(), reasonRuntimeIDTaken)
		a.h.lockAll()
		rt := a.h.fleet.order[0]
		a.h.unlockAll()
		rt.cut()
		time.Sleep(23 * time.Hour)
		require.ErrorIs(t, try(), reasonRuntimeIDTaken)
		time.Sleep(2 * time.Hour)
		require.Nil(t, try())
	})
}

// Malformed records in the store are rejected.
func TestStoreGarbage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st, runs := store.NewMemory(), new(atomic.Int64)
		a := live(t, st, "a", runs, HostOptions{})
		w := connect(t, a.h, testUser)
		w.session("s")
		for i, garbage := range []string{"", "[]", "{", `{"ended":true}`, `{"ended":true}` + "\n{", `{"ended":1}`} {
			id := fmt.Sprint("i", i)
			_, err := st.Create(t.Context(), ledger.CallKey("s", id), []byte(garbage), 0)
			require.NoError(t, err)
			w.send(call(id, "math/add", `{"a":1,"b":2}`))
			require.ErrorIs(t, next[*ToolResult](w).Error, ErrInternal, garbage)
		}
		_, err := st.Create(t.Context(), "altar/session/g", []byte("{"), 0)
		require.NoError(t, err)
		w.send(&ListTools{SessionID: "g"})
		require.ErrorIs(t, next[*ErrorMessage](w).Err, ErrInternal)
		_, err = st.Create(t.Context(), "altar/runtime/r", []byte("{"), 0)
		require.NoError(t, err)
		rt := connect(t, a.h, testService)
		_ = rt.conn.Send(&AnnounceRuntime{RuntimeID: "r", ProtocolVersion: ProtocolVersion})
		require.ErrorIs(t, next[*ErrorMessage](rt).Err, ErrInternal)
		require.Zero(t, runs.Load())
	})
}

// A session whose calls come from another Host, and whose clients come, too.
func TestGuestBecomesOwn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := store.NewMemory()
		m := newMesh(t, HostOptions{Persistence: Persistence{Store: st}}, "a", "b")
		m.attach(t, "b", testRuntime("rb", nil))
		wa, wb := connect(t, m.hosts["a"], testUser), connect(t, m.hosts["b"], testUser)
		wa.session("s")
		wa.send(call("i", "wait", `{"ms":1000}`))
		synctest.Wait()
		require.Zero(t, m.hosts["b"].Stats().Sessions)
		wb.send(call("i", "wait", `{"ms":1000}`)) // that is what runs here
		require.Equal(t, json.RawMessage(`"waited"`), next[*ToolResult](wa).Payload)
		require.Equal(t, json.RawMessage(`"waited"`), next[*ToolResult](wb).Payload)
		require.Equal(t, 1, m.hosts["b"].Stats().Sessions)
		require.Equal(t, uint64(1), m.hosts["b"].Stats().Dispatched)
		m.empty(t)
	})
}

// The live sessions of all callers together are bounded, and so is what is kept
// of calls that ended (ALT-D22, ALT-D35).
func TestBounds(t *testing.T) { synctest.Test(t, testBounds) }

func testBounds(t *testing.T) {
	h := testHost(t, &HostOptions{Limits: Limits{MaxItems: 4, MaxStoredResults: 64 << 10}})
	rt := must(NewRuntime("r1", nil))
	big := strings.Repeat("x", 16<<10)
	rt.Handle("math/add", HandlerFunc(func(context.Context, *ToolCall) (any, error) { return big, nil }))
	conn, err := h.Dial(testService)
	require.NoError(t, err)
	done := make(chan struct{})
	go func() { defer close(done); _ = rt.Run(context.Background(), conn) }()
	t.Cleanup(func() { _ = conn.Close(); <-done })
	synctest.Wait()
	w := connect(t, h, testUser)
	w.session("s")
	w.session("s2")
	w.send(&CreateSession{})
	full := next[*ErrorMessage](w).Err
	require.ErrorIs(t, full, ReasonQuotaExceeded)
	require.Equal(t, "items", full.StringDetail("resource"))
	other := connect(t, h, &Principal{ID: "else"})
	other.session("s3")

	for i := range 100 {
		w.send(call(fmt.Sprint(i), "math/add", `{"a":1,"b":2}`))
		require.Nil(t, next[*ToolResult](w).Error)
		require.LessOrEqual(t, h.outcomes.records.Bytes(), int64(64<<10))
	}
	w.send(call("0", "math/add", `{"a":1,"b":2}`))
	require.ErrorIs(t, next[*ToolResult](w).Error, ReasonNotRetained, "it does not run again")
	require.Equal(t, uint64(100), h.Stats().Dispatched)
}

// An encoded outcome decodes to an equal outcome.
func TestStoredOutcome(t *testing.T) {
	h := testHost(t, nil)
	for _, o := range []struct {
		result *ToolResult
		chunks []*StreamChunk
	}{
		{result: &ToolResult{InvocationID: "i", Payload: json.RawMessage(`{"a":[1]}`)}},
		{result: &ToolResult{InvocationID: "i", Error: errDisconnected()}},
		{chunks: []*StreamChunk{{InvocationID: "i", Payload: json.RawMessage(`1`)}, {InvocationID: "i", ChunkID: 1, IsFinal: true}}},
	} {
		data := h.encodeOutcome(o.result, o.chunks)
		reread, err := decodeOutcome(data)
		require.NoError(t, err)
		result, _ := reread.Result.(*ToolResult)
		var chunks []*StreamChunk
		for _, c := range reread.Chunks {
			chunks = append(chunks, c.Data.(*StreamChunk))
		}
		require.Equal(t, string(data), string(h.encodeOutcome(result, chunks)))
		require.Len(t, chunks, len(o.chunks))
	}
	for _, garbage := range []string{"", "{", `{"type":"Pong"}`, `{"type":"StreamChunk","invocation_id":"i","chunk_id":0}`} {
		_, err := decodeOutcome([]byte(garbage))
		require.ErrorIs(t, err, errBadOutcome, garbage)
	}
}

// Two parameters have the same digest if and only if they are equal (ALT-D22).
func TestDigest(t *testing.T) {
	same := [][]string{
		{`{"a":1,"b":[true,null]}`, `{ "b" : [true, null], "a":1.0 }`, `{"\u0061":10e-1,"b":[true,null]}`},
		{`{"a":0}`, `{"a":-0}`, `{"a":0e999999999}`, `{"a":0.000}`},
		{`{"a":100}`, `{"a":1e2}`, `{"a":1E+2}`, `{"a":0.1e3}`},
		{`{"a":"1"}`}, {`{"a":[1,2]}`}, {`{"a":[12]}`}, {`{"a":[2,1]}`}, {`{"a":-100}`}, {`{"a":1e999999999}`}, {`{"a":1e-999999999}`},
		{`{"a":9007199254740993}`}, {`{"a":9007199254740992}`}, {`{"a":{}}`}, {`{"a":[]}`}, {`{"a":null}`}, {`{}`}, {`{"a":false}`},
	}
	digest := func(params json.RawMessage) string { return string(appendIdentity(nil, strictjson.Value(params))) }
	seen := make(map[string]int)
	for i, group := range same {
		for _, text := range group {
			d := digest(json.RawMessage(text))
			if k, ok := seen[d]; ok {
				require.Equal(t, k, i, text)
			}
			require.Equal(t, digest(json.RawMessage(group[0])), d, text)
			seen[d] = i
		}
	}
	numbers := rapid.SampledFrom([]string{"0", "-0", "1", "10", "1e1", "1.0", "100e-1", "-1", "0.1", "1e-1", "10.0e-2", "-0.0e5", "5e-324", "123456789012345678901234567890"})
	rapid.Check(t, func(t *rapid.T) {
		text := func(label string) string {
			return fmt.Sprintf(`{"x":%s,"y":[%s,"%s"]}`, numbers.Draw(t, label), numbers.Draw(t, label), rapid.SampledFrom([]string{"", "a"}).Draw(t, label))
		}
		a, b := text("a"), text("b")
		require.Equal(t, strictjson.Equal(strictjson.Value(a), strictjson.Value(b)), digest(json.RawMessage(a)) == digest(json.RawMessage(b)), "%s %s", a, b)
	})
}

// After a restart of the Host its client and Runtime reconnect, the session survives, calls in
// flight end once, and no call runs twice.
func TestClientSurvivesRestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := store.NewMemory()
		var mu sync.Mutex
		var h *Host
		boot := func() *Host {
			mu.Lock()
			defer mu.Unlock()
			h = testHost(t, &HostOptions{ID: "h", Persistence: Persistence{Store: st}})
			return h
		}
		dial := func(id *Principal) Dialer {
			return func(ctx context.Context) (Conn, error) {
				mu.Lock()
				defer mu.Unlock()
				return h.Dial(id)
			}
		}
		first := boot()
		rt := testRuntime("r1", nil)
		var runs atomic.Int64
		slow := rt.names["wait"].tool
		rt.names["wait"].tool = HandlerFunc(func(ctx context.Context, call *ToolCall) (any, error) {
			runs.Add(1)
			return slow.ServeALTAR(ctx, call)
		})
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- rt.RunWithReconnect(ctx, dial(testService)) }()
		synctest.Wait() // it is connected
		c := must(NewClient(dial(testUser), nil))
		sess, err := c.CreateSession(ctx, nil)
		require.NoError(t, err)
		got, err := sess.Call(ctx, "wait", waitIn{10}, &CallOptions{InvocationID: "before"})
		require.NoError(t, err)
		require.Equal(t, `"waited"`, string(got.Payload))
		flight := make(chan error, 1)
		go func() {
			_, err := sess.Call(ctx, "wait", waitIn{50_000}, &CallOptions{InvocationID: "flight"})
			flight <- err
		}()
		synctest.Wait()
		require.NoError(t, first.Close())
		time.Sleep(time.Second)
		boot()
		require.ErrorIs(t, <-flight, ReasonDisconnected)
		require.Equal(t, int64(2), runs.Load())
		got, err = sess.Call(ctx, "wait", waitIn{10}, &CallOptions{InvocationID: "before"})
		require.NoError(t, err)
		require.Equal(t, `"waited"`, string(got.Payload))
		require.Equal(t, int64(2), runs.Load(), "it is what was recorded")
		time.Sleep(time.Minute) // the Runtime is back
		sum, err := CallAs[int64](ctx, sess, "math/add", addIn{1, 2}, nil)
		require.NoError(t, err)
		require.Equal(t, int64(3), sum)
		require.NoError(t, sess.Destroy(ctx))
		require.NoError(t, c.Close())
		stop()
		require.NoError(t, <-done)
	})
}

// A panic of the store, in whatever access, fails at most one message, and no later call.
func TestPanicOfStoreFailsOneAccess(t *testing.T) {
	isLast := false
	for skip := int64(0); !isLast; skip++ {
		synctest.Test(t, func(t *testing.T) {
			db, hook := testkit.PanickingStore(store.NewMemory(), skip)
			h := testHost(t, &HostOptions{Persistence: Persistence{Store: db}})
			rt := testRuntime("r1", nil)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			go func() {
				_ = rt.RunWithReconnect(ctx, func(context.Context) (Conn, error) { return h.Dial(testService) })
			}()
			c := must(NewClient(func(context.Context) (Conn, error) { return h.Dial(testUser) }, nil))
			synctest.Wait()
			for range 3 { // the panic fails one of these at most
				if sess, err := c.CreateSession(t.Context(), nil); err == nil {
					_, _ = sess.Call(t.Context(), "math/add", addIn{1, 2}, nil)
					_ = sess.Destroy(t.Context())
				}
				time.Sleep(20 * time.Second)
			}
			isLast = hook.Count.Load() == 0
			hook.Left.Store(0)
			sess, err := c.CreateSession(t.Context(), nil)
			require.NoError(t, err, skip)
			res, err := sess.Call(t.Context(), "math/add", addIn{1, 2}, nil)
			require.NoError(t, err, skip)
			require.Equal(t, "3", string(res.Payload))
			require.NoError(t, c.Close())
		})
	}
}
