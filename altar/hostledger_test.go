// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package altar

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/store"
)

const callPrefix = "altar/once/"

// intents returns when what the store holds of calls expires, by session and
// invocation id.
func intents(t *testing.T, st store.Store) map[string]time.Time {
	all := map[string]time.Time{}
	for e, err := range st.List(t.Context(), callPrefix) {
		require.NoError(t, err)
		all[strings.Replace(strings.TrimPrefix(e.Key, callPrefix), "/call/", "/", 1)] = e.Expires
	}
	return all
}

// ALT-D22: the record of a call of a failed Host expires, even if the end of its session is
// unknown, but not before an outcome would expire.
func TestIntentsExpire(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st, runs := store.NewMemory(), new(atomic.Int64)
		opts := HostOptions{Timing: Timing{SlidingSessionTTL: true, SessionTTL: 2 * time.Hour}}
		a := live(t, st, "a", runs, opts)
		w := connect(t, a.h, testUser)
		w.session("s")
		w.session("ended")
		start := time.Now()
		w.send(call("i", "wait", `{"ms":50000}`))
		w.send(call("left", "wait", `{"ms":50000}`))
		w.send(&ToolCall{InvocationID: "j", SessionID: "ended", ToolName: "wait", Parameters: json.RawMessage(`{"ms":50000}`)})
		synctest.Wait()
		require.Len(t, intents(t, st), 3)
		w.send(&DestroySession{SessionID: "ended"})
		synctest.Wait()
		a.die()
		for id, expires := range intents(t, st) {
			// A minute is what the contract allows.
			if id != "ended/j" {
				require.Greater(t, expires.Sub(start), time.Minute+5*time.Minute, id)
			}
			require.Less(t, expires.Sub(start), 75*time.Minute, id)
		}

		b := live(t, st, "b", runs, opts)
		w = connect(t, b.h, testUser)
		time.Sleep(time.Minute + 5*time.Minute)
		w.send(call("i", "wait", `{"ms":50000}`))
		require.ErrorIs(t, next[*ToolResult](w).Error, ReasonDisconnected, "it may have run until now")
		time.Sleep(75 * time.Minute)
		require.Empty(t, intents(t, st))
		for _, id := range []string{"i", "left"} {
			w.send(call(id, "wait", `{"ms":1}`)) // other parameters
			require.Nil(t, next[*ToolResult](w).Error, "the id is new")
		}
	})
}

// The same for streams, which have no end as long as chunks come: what is known of
// them is kept all the time.
func TestIntentOfLongStream(t *testing.T) {
	for name, fault := range map[string]func(op, key string) error{
		"": nil,
		"answers lost": func(op, key string) error {
			if op == "update" && strings.HasPrefix(key, callPrefix) {
				return errDown
			}
			return nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				st, runs := store.NewMemory(), new(atomic.Int64)
				opts := HostOptions{Timing: Timing{SlidingSessionTTL: true}, Persistence: Persistence{ResultTTL: 20 * time.Second}}
				a, b := live(t, st, "a", runs, opts), live(t, st, "b", runs, opts)
				wa, wb := connect(t, a.h, testUser), connect(t, b.h, testUser)
				wa.session("s")
				ticks := &ToolCall{InvocationID: "i", SessionID: "s", ToolName: "ticks", Parameters: json.RawMessage(`{}`), CollectChunks: true}
				for i, id := range []string{"i", "j", "k"} {
					own := *ticks
					own.InvocationID = id
					wa.send(&own)
					synctest.Wait()
					require.Len(t, intents(t, st), i+1)
				}
				a.own.lose(fault)
				for n := range 4 {
					time.Sleep(20 * time.Minute)
					wb.send(&ToolCall{InvocationID: fmt.Sprint(n), SessionID: "s", ToolName: "math/add", Parameters: json.RawMessage(`{"a":1,"b":2}`)})
					require.Nil(t, next[*ToolResult](wb).Error, "so that the session lives")
					for _, id := range []string{"i", "j", "k"} {
						expires, ok := intents(t, st)["s/"+id]
						require.True(t, ok)
						require.Greater(t, time.Until(expires), 30*time.Minute)
						require.Less(t, time.Until(expires), 75*time.Minute)
					}
				}
				a.own.lose(nil)
				runs.Store(0)

				// One call ends, one is repeated at another Host, and then the Host fails.
				wa.send(&CancelCall{InvocationID: "i", SessionID: "s"})
				require.ErrorIs(t, next[*ToolResult](wa).Error, ReasonCancelled)
				wb.send(ticks)
				require.ErrorIs(t, next[*ToolResult](wb).Error, ReasonCancelled)
				repeat := *ticks
				repeat.InvocationID = "j"
				wb.send(&repeat)
				synctest.Wait()
				a.die()
				require.ErrorIs(t, next[*ToolResult](wb).Error, ReasonDisconnected)
				time.Sleep(75 * time.Minute)
				require.Empty(t, intents(t, st))
			})
		})
	}
}

// ALT-D22: an outcome that another Host had is forgotten everywhere at the same time.
func TestAdoptedOutcomeExpires(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st, runs := store.NewMemory(), new(atomic.Int64)
		a, b := live(t, st, "a", runs, HostOptions{}), live(t, st, "b", runs, HostOptions{})
		wa, wb := connect(t, a.h, testUser), connect(t, b.h, testUser)
		wa.session("s")
		c := call("i", "math/add", `{"a":1,"b":2}`)
		wa.send(c)
		require.Nil(t, next[*ToolResult](wa).Error)
		time.Sleep(4 * time.Minute)
		wb.send(c)
		require.Nil(t, next[*ToolResult](wb).Error)
		require.Equal(t, int64(1), runs.Load())
		time.Sleep(2 * time.Minute)
		wb.send(call("i", "math/add", `{"a":1,"b":3}`))
		require.Equal(t, json.RawMessage("4"), next[*ToolResult](wb).Payload, "the id is new")
		require.Equal(t, int64(2), runs.Load())
	})
}

// ALT-D19: a session that is destroyed while another Host reads or writes its record does not
// survive at that Host.
func TestDestroyedWhileRead(t *testing.T) {
	for _, read := range []bool{true, false} {
		t.Run(fmt.Sprint("read=", read), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				st, runs := store.NewMemory(), new(atomic.Int64)
				a, b := live(t, st, "a", runs, HostOptions{}), live(t, st, "b", runs, HostOptions{})
				wa, wb := connect(t, a.h, testUser), connect(t, b.h, testUser)
				wa.session("other")
				wb.send(call("x", "math/add", `{"a":1,"b":2}`)) // listens from now on
				next[*ToolResult](wb)
				if read {
					wa.session("s")
				}
				gate := make(chan struct{})
				b.own.lose(func(_, key string) error {
					if key == "altar/session/s" {
						<-gate
					}
					return nil
				})
				go func() {
					if read {
						_ = wb.conn.Send(call("i", "math/add", `{"a":1,"b":2}`))
					} else {
						_ = wb.conn.Send(&CreateSession{SessionID: "s"})
					}
				}()
				synctest.Wait()
				wa.send(&DestroySession{SessionID: "s"})
				next[*SessionDestroyed](wa)
				synctest.Wait()
				close(gate)
				if read {
					require.ErrorIs(t, next[*ToolResult](wb).Error, ReasonUnknownSession)
				} else {
					next[*SessionCreated](wb)
				}
				synctest.Wait()
				require.NotContains(t, b.h.sessionIDs(), "s")
				require.Zero(t, b.h.shardOf("s").core.Looks())
			})
		})
	}
}

// A deaf store does not report the ends of sessions at other Hosts.
type deaf struct{ store.Store }

func (d deaf) Wait(ctx context.Context, _ string, _ uint64) error {
	<-ctx.Done()
	return ctx.Err()
}

// ALT-D24: an idempotent call that Close, or the end of its session, has cut off may have run. It is dispatched a second
// time, also by a Host that has not noticed the end. Its third attempt is refused, also if the second waited for a
// Runtime until Close.
func TestCutCallRunsTwiceAtMost(t *testing.T) {
	end := func(a *lifetime, _ *wire) { require.NoError(a.t, a.h.Close()) }
	destroy := func(_ *lifetime, w *wire) {
		w.send(&DestroySession{SessionID: "s"})
		next[*ToolResult](w)
		next[*SessionDestroyed](w)
	}
	for name, tt := range map[string]struct {
		cut    func(a *lifetime, w *wire)
		isHeld bool // the second attempt has no Runtime
		want   int64
	}{
		"close":            {end, false, 2},
		"end of a session": {destroy, false, 2},
		"no Runtime":       {end, true, 1},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				st, runs := store.NewMemory(), new(atomic.Int64)
				a, c := live(t, st, "a", runs, HostOptions{}), live(t, deaf{st}, "c", runs, HostOptions{})
				wa, wc := connect(t, a.h, testUser), connect(t, c.h, testUser)
				wa.session("s")
				warm := func(w *wire, id string) { // the Host learns the session
					w.send(call(id, "math/add", `{"a":1,"b":2}`))
					require.Nil(t, next[*ToolResult](w).Error)
					runs.Store(0)
				}
				warm(wc, "c")
				var b *Host
				if tt.isHeld {
					b = testHost(t, &HostOptions{ID: "b", Persistence: Persistence{Store: st}})
				} else {
					b = live(t, deaf{st}, "b", runs, HostOptions{}).h
				}
				wb := connect(t, b, testUser)
				if !tt.isHeld {
					warm(wb, "b")
				}
				repeat := call("again", "get", `{"key":"k"}`)
				wa.send(repeat)
				synctest.Wait()
				require.Equal(t, int64(1), runs.Load())
				tt.cut(a, wa)
				wb.send(repeat)
				time.Sleep(time.Second)
				require.Equal(t, tt.want, runs.Load())
				require.NoError(t, b.Close())
				wc.send(repeat)
				r := next[*ToolResult](wc)
				require.NotNil(t, r.Error)
				require.ErrorIs(t, r.Error, ReasonDisconnected)
				require.Equal(t, tt.want, runs.Load())
			})
		})
	}
}

// ALT-D24, ALT-D47: the first run of an idempotent call was forwarded to a Runtime of this Host, and is still in progress
// there when the call is repeated, since the Host that forwarded it has failed.
func TestRepeatWhileFirstRunIsHere(t *testing.T) {
	for name, tt := range map[string]struct {
		first time.Duration // of the first run
		want  error
	}{
		"ends before the lease": {time.Second, nil},
		"goes on":               {10 * time.Minute, ReasonDisconnected},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				st := store.NewMemory()
				own := &faulty{Store: st}
				m := newMesh(t, HostOptions{Persistence: Persistence{Store: own}}, "a")
				m.add(t, HostOptions{Persistence: Persistence{Store: st}}, "b")
				rt, runs := testRuntime("r", nil), new(atomic.Int64)
				rt.names["get"].tool = HandlerFunc(func(ctx context.Context, _ *ToolCall) (any, error) {
					d := time.Millisecond
					if runs.Add(1) == 1 {
						d = tt.first
					}
					time.Sleep(d)
					return "done", nil
				})
				m.attach(t, "b", rt)
				wa, wb := connect(t, m.hosts["a"], testUser), connect(t, m.hosts["b"], testUser)
				wa.session("s")
				repeat := call("i", "get", `{"key":"k"}`)
				wa.send(repeat)
				synctest.Wait()
				require.Equal(t, int64(1), runs.Load())
				own.set(func(string, string) error { return store.ErrClosed })
				wb.send(repeat)
				r := next[*ToolResult](wb)
				if tt.want != nil {
					require.ErrorIs(t, r.Error, tt.want)
					require.Equal(t, int64(1), runs.Load())
				} else {
					require.Nil(t, r.Error)
					require.Equal(t, int64(2), runs.Load())
				}
				wb.send(repeat)
				require.Equal(t, r.Error, next[*ToolResult](wb).Error)
				time.Sleep(tt.first)
			})
		})
	}
}

// A silence is a mesh in which a Host fails without the end of its streams.
type silence struct {
	*mesh
	id        string // of the Host
	hasFailed atomic.Bool
}

// Open implements [cluster.Network].
func (n *silence) Open(ctx context.Context, from, to string) (io.ReadWriteCloser, error) {
	s, err := n.mesh.Open(ctx, from, to)
	if err == nil && (from == n.id || to == n.id) {
		s = silentStream{s, &n.hasFailed}
	}
	return s, err
}

type silentStream struct {
	io.ReadWriteCloser
	hasFailed *atomic.Bool
}

func (s silentStream) Write(p []byte) (int, error) {
	if s.hasFailed.Load() {
		return len(p), nil
	}
	return s.ReadWriteCloser.Write(p)
}

// ALT-D24: a call whose Host has failed does not go to a Runtime behind that Host, whose failure the other Hosts of the
// cluster have not noticed. It goes to another Runtime, or waits for that one.
func TestRepeatLeavesRuntimesOfFailedHost(t *testing.T) {
	for name, other := range map[string]func(t *testing.T, m *mesh, rt *Runtime){
		"Runtime of another Host": func(t *testing.T, m *mesh, rt *Runtime) { m.attach(t, "c", rt) },
		"Runtime that comes here": func(t *testing.T, m *mesh, rt *Runtime) {
			time.AfterFunc(18*time.Second, func() { m.attach(t, "b", rt) })
		},
		"Runtime that refuses the call first": func(t *testing.T, m *mesh, rt *Runtime) {
			connect(t, m.hosts["b"], testUser).send(call("before", "get", `{"key":"k"}`)) // changes whose turn it is
			m.attach(t, "c", rt)
			connect(t, m.hosts["c"], testUser).send(call("other", "wait", `{"ms":18000}`))
			synctest.Wait()
		},
		"none":                  nil,
		"none, and a new lease": nil,
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				st := store.NewMemory()
				own := &faulty{Store: st}
				m := newMesh(t, HostOptions{})
				n := &silence{mesh: m, id: "a"}
				m.add(t, HostOptions{Cluster: n, Persistence: Persistence{Store: own}}, "a")
				for _, id := range []string{"b", "c"} {
					opts := HostOptions{Cluster: n, Persistence: Persistence{Store: st}, Limits: Limits{MaxConcurrentPerRuntime: 1}}
					m.add(t, opts, id)
				}
				ra, runs := testRuntime("ra", nil), new(atomic.Int64)
				ra.names["get"].tool = HandlerFunc(func(ctx context.Context, call *ToolCall) (any, error) {
					if call.InvocationID == "before" {
						return "ra", nil
					}
					runs.Add(1)
					<-ctx.Done()
					return nil, ctx.Err()
				})
				m.attach(t, "a", ra)
				if name == "none, and a new lease" {
					own.set(func(string, string) error { return errDown })
					time.Sleep(20 * time.Second)
					own.set(nil)
					time.Sleep(5 * time.Second)
				}
				wa, wb := connect(t, m.hosts["a"], testUser), connect(t, m.hosts["b"], testUser)
				wa.session("s")
				repeat := call("i", "get", `{"key":"k"}`)
				wa.send(repeat)
				synctest.Wait()
				require.Equal(t, int64(1), runs.Load())
				if other != nil {
					other(t, m, testRuntime("rb", nil))
				}
				n.hasFailed.Store(true)
				own.set(func(string, string) error { return store.ErrClosed })
				wb.send(repeat)
				r := next[*ToolResult](wb)
				require.Equal(t, int64(1), runs.Load())
				if other == nil {
					require.ErrorIs(t, r.Error, ReasonRuntimeDown)
					return
				}
				require.Nil(t, r.Error)
				require.Equal(t, `"rb"`, string(r.Payload))
			})
		})
	}
}

// A Host that shuts down refuses the repeat of a call whose Host has failed: another Host may run it.
func TestRepeatAtDrainingHost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st, runs := store.NewMemory(), new(atomic.Int64)
		a, b, c := live(t, st, "a", runs, HostOptions{}), live(t, st, "b", runs, HostOptions{}), live(t, st, "c", runs, HostOptions{})
		wa, wb, wc := connect(t, a.h, testUser), connect(t, b.h, testUser), connect(t, c.h, testUser)
		wa.session("s")
		wb.send(call("long", "wait", `{"ms":20000}`))
		repeat := call("i", "get", `{"key":"k"}`)
		wa.send(repeat)
		synctest.Wait()
		require.Equal(t, int64(2), runs.Load())
		a.die()
		done := make(chan error, 1)
		go func() { done <- b.h.Shutdown(t.Context()) }()
		synctest.Wait()
		wb.send(repeat)
		require.ErrorIs(t, next[*ToolResult](wb).Error, ReasonDraining)
		wc.send(repeat)
		require.Nil(t, next[*ToolResult](wc).Error)
		require.Nil(t, next[*ToolResult](wb).Error)
		require.NoError(t, wb.conn.Close())
		require.NoError(t, <-done)
	})
}

// The same at the Host that writes it, for a client that guesses the id.
func TestDestroyedWhileWritten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := live(t, store.NewMemory(), "a", new(atomic.Int64), HostOptions{})
		w, other := connect(t, a.h, testUser), connect(t, a.h, testUser)
		gate := make(chan struct{})
		a.own.lose(func(op, key string) error {
			if op == "create" && key == "altar/session/s" {
				<-gate
			}
			return nil
		})
		go func() { _ = w.conn.Send(&CreateSession{SessionID: "s"}) }()
		synctest.Wait()
		other.send(&DestroySession{SessionID: "s"})
		next[*SessionDestroyed](other)
		close(gate)
		next[*SessionCreated](w)
		require.NotContains(t, a.h.sessionIDs(), "s")
		require.Zero(t, a.h.shardOf("s").core.Looks())
		other.send(call("i", "math/add", `{"a":1,"b":2}`))
		require.ErrorIs(t, next[*ToolResult](other).Error, ReasonUnknownSession)
	})
}

// ALT-D35: many who create sessions at once get no more than one after the other.
func TestSessionQuotaWithStore(t *testing.T) {
	for _, opts := range []HostOptions{{Limits: Limits{MaxItemsPerPrincipal: 3}}, {Limits: Limits{MaxItems: 6}}} {
		synctest.Test(t, func(t *testing.T) {
			a := live(t, store.NewMemory(), "a", new(atomic.Int64), opts)
			a.own.delay = time.Second
			wires := make([]*wire, 10)
			for i := range wires {
				wires[i] = connect(t, a.h, testUser)
				go func() { _ = wires[i].conn.Send(&CreateSession{}) }()
			}
			created := 0
			for _, w := range wires {
				m, err := w.conn.Receive()
				require.NoError(t, err)
				if e, ok := m.(*ErrorMessage); ok {
					require.ErrorIs(t, e.Err, ReasonQuotaExceeded)
				} else {
					created++
				}
			}
			require.Equal(t, 3, created)
			require.Len(t, a.h.sessionIDs(), 3)
			require.Equal(t, int64(3), usage(a.h, "items", "all").Used)
			a.own.mu.Lock()
			defer a.own.mu.Unlock()
			a.own.delay = 0 // for Close
		})
	}
}

// A call whose claim could not be written may be repeated, because it has not run. This includes a
// claim that lands although the store returned no answer in time.
func TestClaimWithoutAnswer(t *testing.T) {
	for _, tool := range []string{"math/add", "get"} {
		t.Run(tool, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				st, runs := store.NewMemory(), new(atomic.Int64)
				a, b := live(t, st, "a", runs, HostOptions{}), live(t, st, "b", runs, HostOptions{})
				wa, wb := connect(t, a.h, testUser), connect(t, b.h, testUser)
				wa.session("s")
				for i, w := range []*wire{wa, wb} {
					c := call(fmt.Sprint("i", i), tool, `{"a":1,"b":2}`)
					if tool == "get" {
						c = call(c.InvocationID, tool, `{"key":"k"}`)
					}
					gate := make(chan struct{})
					a.own.set(func(op, key string) error { // nothing of claims is answered
						if strings.HasPrefix(key, callPrefix) {
							<-gate
							return errDown
						}
						return nil
					})
					a.own.lose(func(op, key string) error {
						if op == "create" && strings.HasPrefix(key, callPrefix) {
							return errDown
						}
						return nil
					})
					start := time.Now()
					wa.send(c)
					time.AfterFunc(6*time.Second, func() { close(gate) })
					require.ErrorIs(t, next[*ToolResult](wa).Error, ErrInternal)
					require.LessOrEqual(t, time.Since(start), 7*time.Second)
					a.own.set(nil)
					time.Sleep(time.Minute) // the changes in doubt land
					a.own.lose(nil)
					resume := *c
					resume.ResumeFrom = 1
					w.send(&resume)
					require.ErrorIs(t, next[*ToolResult](w).Error, reasonUnknownInvocation, "it did not run")
					w.send(c)
					require.Nil(t, next[*ToolResult](w).Error)
					require.Equal(t, int64(i+1), runs.Load())
					w.send(c)
					require.Nil(t, next[*ToolResult](w).Error)
					require.Equal(t, int64(i+1), runs.Load())
				}
			})
		})
	}
}

// A claim that was written although its answer was lost is that of the call.
func TestClaimAnswerLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st, runs := store.NewMemory(), new(atomic.Int64)
		a := live(t, st, "a", runs, HostOptions{})
		w := connect(t, a.h, testUser)
		w.session("s")
		a.own.lose(func(op, key string) error {
			if op != "get" && strings.HasPrefix(key, callPrefix) {
				return errDown
			}
			return nil
		})
		for range 2 {
			w.send(call("i", "math/add", `{"a":1,"b":2}`))
			require.Equal(t, json.RawMessage("3"), next[*ToolResult](w).Payload)
			require.Equal(t, int64(1), runs.Load())
		}
	})
}
