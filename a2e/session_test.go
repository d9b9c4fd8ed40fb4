// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package a2e_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/a2e"
	"github.com/fivewire/fivewire/a2e/a2etest"
	"github.com/fivewire/fivewire/a2e/internal/plugin"
	"github.com/fivewire/fivewire/a2e/mcp"
	"github.com/fivewire/fivewire/store"
)

// sleeping returns a host whose requests last until the end of their context, and a function that
// returns the started ones.
func sleeping(t *testing.T, opts *a2e.HostOptions) (*a2e.Host, func() []string) {
	var mu sync.Mutex
	var began []string
	h := a2etest.NewHost(t, opts).AddPlugin(&a2e.Plugin{Name: "demo", Capability: "demo", Routes: []a2e.Route{
		a2e.NewRoute("demo/sleep/req", func(ctx context.Context, call *a2e.Call, r *sleep) (*struct{}, error) {
			mu.Lock()
			began = append(began, call.Message.ID)
			mu.Unlock()
			select {
			case <-time.After(time.Duration(r.Ms) * time.Millisecond):
			case <-ctx.Done():
			}
			return nil, nil
		})}})
	return h, func() []string {
		synctest.Wait()
		mu.Lock()
		defer mu.Unlock()
		return append([]string(nil), began...)
	}
}

type sleep struct {
	Ms      int64 `json:"ms,omitzero" jsonmap:"always"`
	Timeout int64 `json:"timeout,omitzero" jsonmap:"default=30"`
}

func (s *sleep) TimeLimit() time.Duration { return time.Duration(s.Timeout) * time.Second }

// A waiting call whose time limit expires never starts, even if the running call expires at the
// same moment (A2E-D28).
func TestOverdueCallsNeverStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, began := sleeping(t, &a2e.HostOptions{Limits: a2e.Limits{MaxConcurrentPerSession: 1}})
		r := open(t, h)
		r.shake(`"demo"`)
		for i := range 3 {
			r.send(message("demo/sleep/req", fmt.Sprint(i), `,"ms":60000,"timeout":5`))
		}
		for i := range 3 {
			m := r.next()
			require.Equal(t, fmt.Sprint(i), m.ReqID())
			require.Equal(t, a2e.ReasonDeadline, wireError(t, m).Reason)
		}
		require.Equal(t, []string{"0"}, began())
		r.send(message("demo/sleep/req", "3", `,"ms":1`))
		require.Equal(t, "demo/sleep/resp", r.next().Type)
	})
}

// A session that ends by its third refused handshake leaves no request without
// answer and starts none, where requests are served before the handshake (A2E-D21,
// A2E-D22).
func TestRefusedHandshakesEndWork(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, began := sleeping(t, &a2e.HostOptions{Auth: a2e.Auth{SkipHandshake: true}, Limits: a2e.Limits{MaxConcurrentPerSession: 1}})
		r := open(t, h)
		r.send(message("demo/sleep/req", "0", `,"ms":60000`))
		r.send(message("demo/sleep/req", "1", `,"ms":60000`))
		for range 3 {
			r.shake(`"nothing"`)
		}
		for i := range 2 {
			m := r.next()
			require.Equal(t, fmt.Sprint(i), m.ReqID())
			require.Equal(t, a2e.ReasonShutdown, wireError(t, m).Reason)
		}
		_, err := r.in.ReadByte()
		require.Error(t, err)
		require.Equal(t, []string{"0"}, began())
	})
}

// No id of a request is that of an event in the books of the session.
func TestEventsShareNoIDs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		h, began := sleeping(t, nil)
		h.AddPlugin(&a2e.Plugin{Name: "more", Capability: "demo", Routes: []a2e.Route{
			a2e.NewEventRoute("demo/note/event", func(context.Context, *a2e.Call, *a2e.EventBody) error { <-release; return nil })}})
		r := open(t, h)
		r.shake(`"demo","cancel"`)
		r.send(message("demo/note/event", "e", ""))
		for _, id := range []string{`\u00001`, `\ufffd1`, `1`} {
			r.send(message("demo/sleep/req", id, `,"ms":1`))
			require.Equal(t, "demo/sleep/resp", r.next().Type)
			r.send(message("invoke/cancel", "c", `,"req_id":"`+id+`"`))
		}
		require.Len(t, began(), 3)
		close(release)
	})
}

// Close and Shutdown wait for sessions that have just ended and whose handlers and
// states have not.
func TestHostWaitsForEndedSessions(t *testing.T) {
	for name, stop := range map[string]func(*a2e.Host) error{
		"close":    (*a2e.Host).Close,
		"shutdown": func(h *a2e.Host) error { return h.Shutdown(context.Background()) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var closed atomic.Bool
				h := a2etest.NewHost(t, nil).AddPlugin(&a2e.Plugin{Name: "demo", Capability: "demo",
					Open:  func(*a2e.Session) (any, error) { return "state", nil },
					Close: func(any) { time.Sleep(400 * time.Millisecond); closed.Store(true) },
					Routes: []a2e.Route{a2e.NewRoute("demo/stay/req", func(context.Context, *a2e.Call, *struct{}) (*struct{}, error) {
						time.Sleep(500 * time.Millisecond) // ignores its context
						return nil, nil
					})}})
				r := open(t, h)
				r.shake(`"demo"`)
				r.send(message("demo/stay/req", "0", ""))
				synctest.Wait()
				r.send(message("shutdown", "1", `,"timeout":0`))
				require.Equal(t, a2e.ReasonShutdown, wireError(t, r.next()).Reason)
				synctest.Wait()
				require.Empty(t, h.Sessions())
				require.NoError(t, stop(h))
				require.True(t, closed.Load())
			})
		})
	}
}

// A plugin that panics outside a request affects neither the host nor the other plugins (A2E-D51).
func TestPluginsPanicAtTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var closed atomic.Int32
		plugin := func(name string, panics bool) *a2e.Plugin {
			return &a2e.Plugin{Name: name, Capability: "demo",
				Open: func(*a2e.Session) (any, error) { return name, nil },
				Close: func(any) {
					closed.Add(1)
					if panics {
						panic("as told")
					}
				},
				Snapshot: &a2e.PluginSnapshot{
					Save:    func(context.Context, any) (json.RawMessage, error) { panic("as told") },
					Restore: func(context.Context, any, json.RawMessage) error { return nil },
				},
				Routes: []a2e.Route{a2e.NewRoute("demo/"+name+"/req", func(context.Context, *a2e.Call, *struct{}) (*struct{}, error) { return nil, nil })}}
		}
		h := a2etest.NewHost(t, &a2e.HostOptions{Persistence: a2e.Persistence{Snapshots: store.NewMemory()}}).AddPlugin(plugin("one", true)).AddPlugin(plugin("two", true))
		c := a2etest.Connect(t, h, nil)
		for _, name := range []string{"one", "two"} {
			_, err := c.Call(t.Context(), "demo/"+name+"/req", &struct{}{}, nil)
			require.NoError(t, err)
		}
		require.NoError(t, c.Close())
		require.NoError(t, h.Close())
		require.EqualValues(t, 2, closed.Load())
	})
}

// A state that a snapshot cannot be restored into is closed, whatever the plugin does
// about it (A2E-148).
func TestRestorePanics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		opened, closed := 0, 0
		kept := store.NewMemory()
		require.NoError(t, plugin.Place{KV: kept, Key: "key"}.Save(t.Context(), "demo", json.RawMessage("{}")))
		h := a2etest.NewHost(t, &a2e.HostOptions{Persistence: a2e.Persistence{Snapshots: kept, SnapshotKey: func(*a2e.Session) string { return "key" }}}).AddPlugin(&a2e.Plugin{
			Name: "demo", Capability: "demo",
			Open:  func(*a2e.Session) (any, error) { opened++; return "state", nil },
			Close: func(any) { closed++ },
			Snapshot: &a2e.PluginSnapshot{
				Save:    func(context.Context, any) (json.RawMessage, error) { return nil, nil },
				Restore: func(context.Context, any, json.RawMessage) error { panic("as told") },
			},
			Routes: []a2e.Route{a2e.NewRoute("demo/ask/req", func(context.Context, *a2e.Call, *struct{}) (*struct{}, error) { return nil, nil })}})
		c := a2etest.Connect(t, h, nil)
		for range 2 {
			_, err := c.Call(t.Context(), "demo/ask/req", &struct{}{}, nil)
			require.ErrorIs(t, err, a2e.ErrRuntime)
		}
		require.NoError(t, c.Close())
		require.NoError(t, h.Close())
		require.Equal(t, 2, opened)
		require.Equal(t, 2, closed)
		_, err := plugin.Place{KV: kept, Key: "key"}.Load(t.Context(), "demo")
		require.NoError(t, err, "nothing is overwritten")
	})
}

// Close returns within 1 s and Shutdown with its context, although handlers ignore the ends of their
// contexts.
func TestHostEndsAlthoughHandlersIgnoreContexts(t *testing.T) {
	for name, stop := range map[string]func(*a2e.Host) error{
		"close": (*a2e.Host).Close,
		"shutdown": func(h *a2e.Host) error {
			ctx, cancel := context.WithCancel(context.Background())
			cancel()
			if err := h.Shutdown(ctx); !errors.Is(err, context.Canceled) {
				return fmt.Errorf("shutdown: %w", err)
			}
			return nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := a2etest.NewHost(t, nil).AddPlugin(&a2e.Plugin{Name: "demo", Capability: "demo", Routes: []a2e.Route{
					a2e.NewRoute("demo/tidy/req", func(ctx context.Context, _ *a2e.Call, _ *struct{}) (*struct{}, error) {
						<-ctx.Done()
						time.Sleep(time.Minute)
						return nil, nil
					})}})
				limit := time.Second
				if name == "shutdown" {
					limit = 0
				}
				for range 3 {
					r := open(t, h)
					r.shake(`"demo"`)
					r.send(message("demo/tidy/req", "0", ""))
				}
				synctest.Wait()
				start := time.Now()
				require.NoError(t, stop(h))
				require.Equal(t, limit, time.Since(start))
				require.ErrorIs(t, h.Ready(), a2e.ErrClosed)
				time.Sleep(2 * time.Second)
				require.Len(t, h.Stuck(), 3, "handlers that ignore their contexts are listed (A2E-D58)")
				require.Equal(t, "demo/tidy/req", h.Stuck()[0].Type)
				time.Sleep(time.Minute)
				require.Empty(t, h.Stuck())
			})
		})
	}
}

// The states of an ended session are closed although a handler ignores the end of its context, and another state is
// slow to close (A2E-D58).
func TestStatesEndAlthoughHandlersIgnoreContexts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		closed := make(chan time.Time, 2)
		route := func(name string, d time.Duration) *a2e.Plugin {
			return &a2e.Plugin{Name: name, Capability: "demo", Open: func(*a2e.Session) (any, error) { return name, nil },
				Close: func(any) { closed <- time.Now() },
				Routes: []a2e.Route{a2e.NewRoute("demo/"+name+"/req", func(_ context.Context, call *a2e.Call, _ *struct{}) (*struct{}, error) {
					call.PluginState()
					time.Sleep(d)
					return nil, nil
				})}}
		}
		slow := route("slow", 0)
		slow.Close = func(any) { time.Sleep(time.Hour) }
		h := a2etest.NewHost(t, nil, route("deaf", time.Hour), route("quick", 0), slow)
		r := open(t, h)
		r.shake(`"demo"`)
		for _, name := range []string{"quick", "slow"} {
			r.send(message("demo/"+name+"/req", name, ""))
			r.next()
		}
		r.send(message("demo/deaf/req", "2", ""))
		synctest.Wait()
		start := time.Now()
		r.send(message("shutdown", "3", `,"timeout":0`))
		for range 2 {
			require.LessOrEqual(t, (<-closed).Sub(start), time.Second)
		}
		require.Empty(t, h.Sessions())
		time.Sleep(2 * time.Hour)
	})
}

// An answer names its request, whatever id the handler set.
func TestAnswersNameTheirRequest(t *testing.T) {
	type demoResponse struct {
		ReqID string `json:"req_id,omitzero" jsonmap:"always"`
	}
	h := a2etest.NewHost(t, nil).AddPlugin(&a2e.Plugin{Name: "demo", Capability: "demo", Routes: []a2e.Route{
		a2e.NewRoute("demo/told/req", func(context.Context, *a2e.Call, *struct{}) (*demoResponse, error) {
			return &demoResponse{ReqID: "of another"}, nil
		})}})
	r := open(t, h)
	r.shake(`"demo"`)
	r.send(message("demo/told/req", "mine", ""))
	require.Equal(t, "mine", r.next().ReqID())
}

// The request of a host fails at once if the answer is invalid (A2E-D37).
func TestInvalidAnswerToTheHost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		failed := make(chan error, 1)
		h := a2etest.NewHost(t, nil).AddPlugin(a2etest.Must(mcp.NewBridge(mcp.ConnectorFunc(nil), nil)).Plugin()).AddPlugin(&a2e.Plugin{Name: "demo", Capability: "demo", Routes: []a2e.Route{
			a2e.NewRoute("demo/back/req", func(ctx context.Context, call *a2e.Call, _ *struct{}) (*struct{}, error) {
				_, err := call.Session.Call(ctx, "mcp/sample/req", &mcp.SampleRequest{})
				failed <- err
				return nil, nil
			})}})
		r := open(t, h)
		r.shake(`"demo","mcp"`)
		for _, answer := range []string{"mcp/sample/resp", "error"} {
			start := time.Now()
			r.send(message("demo/back/req", answer, ""))
			request := r.next()
			require.Equal(t, "mcp/sample/req", request.Type)
			r.send(message(answer, "a", `,"req_id":"`+request.ID+`","role":7`))
			require.ErrorIs(t, <-failed, a2e.ErrInvalidResponse)
			require.Zero(t, time.Since(start))
			require.Equal(t, "demo/back/resp", r.next().Type)
		}
		require.Zero(t, h.Stats().Dropped)
	})
}
