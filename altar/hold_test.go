// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package altar

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/internal/race"
	"github.com/fivewire/fivewire/store"
)

// A Runtime that is replaced by a new process within the period costs no client an error: calls in
// sessions of before and after wait (ALT-D24).
func TestRedeployedRuntimeCostsNoError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := start(t, pipeTransport, nil, testRuntime("r1", nil))
		var wg sync.WaitGroup
		for i := range 60 {
			wg.Go(func() {
				time.Sleep(time.Duration(i) * 100 * time.Millisecond)
				sess, err := s.c.CreateSession(t.Context(), nil)
				require.NoError(t, err)
				got, err := CallAs[string](t.Context(), sess, "wait", waitIn{300}, nil)
				require.NoError(t, err, "call %d", i)
				require.Equal(t, "waited", got)
			})
		}
		time.Sleep(time.Second)
		s.stop[0]()
		require.NoError(t, <-s.done[0])
		time.Sleep(4 * time.Second)
		s.run(t, testRuntime("r1", nil))
		wg.Wait()
	})
}

// A tool that no Runtime ever fulfilled is refused at once, and an absent one after the period.
func TestAbsentRuntimePeriodEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := start(t, pipeTransport, nil, testRuntime("r1", nil))
		sess := newSession(t, s)
		s.stop[0]()
		require.NoError(t, <-s.done[0])
		begin := time.Now()
		_, err := sess.Call(t.Context(), "wait", waitIn{1}, nil)
		require.ErrorIs(t, err, ReasonRuntimeDown)
		require.Equal(t, 5*time.Second, time.Since(begin))
		_, err = sess.Call(t.Context(), "wait", waitIn{1}, nil)
		require.ErrorIs(t, err, ReasonRuntimeDown)
		require.Equal(t, 5*time.Second, time.Since(begin), "the period is over")
	})
}

// A Runtime may stay connected for longer than many sessions.
func TestFulfillmentsOfEndedSessionsAreForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := testHost(t, &HostOptions{ID: "h", Persistence: Persistence{Store: store.NewMemory()}})
		rt := connect(t, h, testService)
		rt.send(&AnnounceRuntime{RuntimeID: "r1", ProtocolVersion: ProtocolVersion})
		next[*AcknowledgeRuntime](rt)
		w := connect(t, h, testUser)
		for i := range 1000 {
			id := fmt.Sprint("s", i)
			w.session(id)
			next[*RequestFulfillment](rt)
			rt.send(&FulfillTools{SessionID: id, ToolNames: []string{"math/add"}})
			next[*AcknowledgeFulfillment](rt)
			w.send(&DestroySession{SessionID: id})
			next[*SessionDestroyed](w)
		}
		require.Less(t, len(h.fleet.order[0].fulfilled), 200)
	})
}

// A restarted Host knows the fulfilments of single sessions, and that a call which it held never
// ran (ALT-D47).
func TestRestartedHostWaitsForFulfilledTools(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := store.NewMemory()
		h := testHost(t, &HostOptions{ID: "h", Persistence: Persistence{Store: st}})
		rt := connect(t, h, testService)
		rt.send(&AnnounceRuntime{RuntimeID: "r1", ProtocolVersion: ProtocolVersion})
		next[*AcknowledgeRuntime](rt)
		w := connect(t, h, testUser)
		w.session("s")
		next[*RequestFulfillment](rt)
		rt.send(&FulfillTools{SessionID: "s", ToolNames: []string{"math/add"}})
		next[*AcknowledgeFulfillment](rt)
		require.NoError(t, rt.conn.Close())
		w.send(call("held", "math/add", `{"a":1,"b":2}`))
		synctest.Wait()
		require.Empty(t, intents(t, st), "a held call has no record")
		require.NoError(t, h.Close())

		h = testHost(t, &HostOptions{ID: "h", Persistence: Persistence{Store: st}})
		w = connect(t, h, testUser)
		begin := time.Now()
		w.send(call("held", "math/add", `{"a":5,"b":6}`)) // other parameters: the id is free
		var serving sync.WaitGroup
		serving.Go(func() {
			time.Sleep(3 * time.Second)
			back := connect(t, h, testService)
			back.send(&AnnounceRuntime{RuntimeID: "r1", ProtocolVersion: ProtocolVersion})
			next[*AcknowledgeRuntime](back)
			next[*RequestFulfillment](back)
			back.send(&FulfillTools{SessionID: "s", ToolNames: []string{"math/add"}})
			next[*AcknowledgeFulfillment](back)
			m := next[*ToolCall](back)
			back.send(&ToolResult{InvocationID: m.InvocationID, Payload: json.RawMessage("11")})
		})
		require.Equal(t, json.RawMessage("11"), next[*ToolResult](w).Payload)
		require.Equal(t, 3*time.Second, time.Since(begin))
		serving.Wait()
		w.send(call("none", "get", `{"key":"k"}`))
		require.ErrorIs(t, next[*ToolResult](w).Error, ReasonNotFulfilled)
	})
}

// A call that waits for an absent Runtime, and then for its record in a slow store, does not fail at the time when the
// Runtime would have been given up: the Runtime is back.
func TestSlowRecordOfHeldCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := &faulty{Store: store.NewMemory()}
		s := start(t, pipeTransport, &HostOptions{Persistence: Persistence{Store: db}}, testRuntime("r1", nil))
		sess := newSession(t, s)
		s.stop[0]()
		require.NoError(t, <-s.done[0])
		done := make(chan error, 1)
		go func() {
			_, err := sess.Call(t.Context(), "math/add", addIn{1, 2}, nil)
			done <- err
		}()
		time.Sleep(4900 * time.Millisecond)
		db.set(func(_, key string) error {
			if strings.Contains(key, "/once/") {
				time.Sleep(200 * time.Millisecond)
			}
			return nil
		})
		s.run(t, testRuntime("r1", nil))
		require.NoError(t, <-done)
	})
}

// A standing Runtime that connects to a Host with many sessions costs one message.
func TestStandingRuntimeCostsOneMessage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := start(t, directTransport, &HostOptions{Limits: Limits{MaxItemsPerPrincipal: -1}})
		for i := range 2000 {
			_, err := s.c.CreateSession(t.Context(), &CreateSessionParams{ID: fmt.Sprint("n", i)})
			require.NoError(t, err)
		}
		conn := must(s.h.Dial(testService))
		require.NoError(t, conn.Send(&AnnounceRuntime{RuntimeID: "r1", ProtocolVersion: ProtocolVersion, Capabilities: []string{capStanding}}))
		require.IsType(t, &AcknowledgeRuntime{}, must(conn.Receive()))
		require.NoError(t, conn.Send(&FulfillTools{SessionID: allSessions, ToolNames: []string{"get"}}))
		require.IsType(t, &AcknowledgeFulfillment{}, must(conn.Receive()), "no request for a session before")
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		go func() {
			m := must(conn.Receive()).(*ToolCall)
			_ = conn.Send(&ToolResult{InvocationID: m.InvocationID})
		}()
		_, err := s.c.Session("n1999").Call(ctx, "get", json.RawMessage(`{"key":"k"}`), nil)
		require.NoError(t, err)
		require.NoError(t, conn.Close())
	})
}

// A Runtime whose connection is lost has its next call at most 50 ms later, with 20,000 sessions (ALT-D15).
func TestReconnectionIsShort(t *testing.T) {
	n, limit := 20_000, 50*time.Millisecond
	if race.Enabled {
		n, limit = 2000, time.Second
	}
	ran := make(chan time.Time, 100)
	rt := must(NewRuntime("r1", &RuntimeOptions{Logger: slog.New(slog.DiscardHandler)}))
	rt.Handle("get", HandlerFunc(func(context.Context, *ToolCall) (any, error) {
		ran <- time.Now()
		return nil, nil
	}))
	s := start(t, tcpTransport, &HostOptions{Limits: Limits{MaxItemsPerPrincipal: -1}})
	dial := s.dial(testService)
	var last atomic.Pointer[Conn]
	s.dial = func(*Principal) Dialer {
		return func(ctx context.Context) (Conn, error) {
			conn, err := dial(ctx)
			last.Store(&conn)
			return conn, err
		}
	}
	s.run(t, rt)
	w := connect(t, s.h, testUser)
	for i := range n {
		w.session(fmt.Sprint("n", i))
	}
	sess := s.c.Session("n17")
	shortest := time.Hour
	for i := 0; i < 10 || i < 100 && shortest > limit; i++ { // other work on the machine delays some
		call := func() {
			_, err := sess.Call(t.Context(), "get", map[string]string{"key": "k"}, nil)
			require.NoError(t, err)
		}
		call()
		<-ran
		cut := time.Now()
		_ = (*last.Load()).Close()
		require.Eventually(t, func() bool { return s.h.Stats().Runtimes == 0 || time.Since(cut) > limit }, time.Minute, 100*time.Microsecond)
		call()
		shortest = min(shortest, (<-ran).Sub(cut))
	}
	t.Logf("%v", shortest)
	require.LessOrEqual(t, shortest, limit)
}
