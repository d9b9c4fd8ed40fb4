// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package altar

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/store"
)

// Hosts on one store die, come back and lose the store for a while, as calls are
// repeated at any of them. Whatever happens, no call runs twice, and all who get
// a final answer to a call from a Host that could record it get the same one.
func TestStoreChaos(t *testing.T) {
	seeds := uint64(8)
	if os.Getenv("FIVEWIRE_LONG") != "" {
		seeds = 100
	}
	for seed := range seeds {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { storeChaos(t, rand.New(rand.NewPCG(seed, 7))) })
		})
	}
}

// lostOutcomes knows from the log which outcomes a Host could not record.
type lostOutcomes struct {
	slog.Handler
	mu  sync.Mutex
	ids map[string]bool
}

func (l *lostOutcomes) Enabled(context.Context, slog.Level) bool { return true }

func (l *lostOutcomes) Handle(_ context.Context, r slog.Record) error {
	if strings.Contains(r.Message, "outcome") {
		r.Attrs(func(a slog.Attr) bool {
			if a.Key == "invocation_id" || a.Key == "id" {
				l.mu.Lock()
				l.ids[a.Value.String()] = true
				l.mu.Unlock()
			}
			return true
		})
	}
	return nil
}

func (l *lostOutcomes) has(id string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.ids[id]
}

// A ward is one place where Hosts live, one after the other.
type ward struct {
	h    *Host
	own  *faulty
	wire *wire
	stop func()
}

func storeChaos(t *testing.T, r *rand.Rand) {
	st := store.NewMemory()
	var mu sync.Mutex
	runs := map[string]int{}       // by invocation id
	answers := map[string][]byte{} // of those that were recorded for certain
	tool := HandlerFunc(func(ctx context.Context, call *ToolCall) (any, error) {
		mu.Lock()
		runs[call.InvocationID]++
		n := len(runs)
		mu.Unlock()
		pause := time.NewTimer(time.Duration(n%7) * 300 * time.Millisecond)
		defer pause.Stop()
		select {
		case <-pause.C:
			return fmt.Sprint(call.InvocationID, " ", n), nil
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	})
	wards := make([]*ward, 3)
	boot := func(i int) {
		f := &faulty{Store: st}
		unsure := &lostOutcomes{ids: map[string]bool{}}
		w := &ward{own: f, h: testHost(t, &HostOptions{Logger: slog.New(unsure), ID: fmt.Sprint("h", i), Persistence: Persistence{Store: f, StoreTimeout: time.Second, LeaseTTL: 3 * time.Second}})}
		rt := must(NewRuntime(fmt.Sprint("r", i), nil))
		rt.Handle("math/add", tool)
		conn, err := w.h.Dial(testService)
		require.NoError(t, err)
		done := make(chan struct{})
		go func() { defer close(done); _ = rt.Run(context.Background(), conn) }()
		w.wire = connect(t, w.h, testUser)
		read := make(chan struct{})
		go func() {
			defer close(read)
			for {
				m, err := w.wire.conn.Receive()
				if err != nil {
					return
				}
				res, ok := m.(*ToolResult)
				if !ok {
					continue
				}
				if res.Error != nil && res.Error.Reason() != ReasonDisconnected || unsure.has(res.InvocationID) {
					continue // refused, or not recorded
				}
				text := append([]byte(nil), res.Payload...)
				if res.Error != nil {
					text = []byte(ReasonDisconnected)
				}
				mu.Lock()
				if before, ok := answers[res.InvocationID]; !ok {
					answers[res.InvocationID] = text
				} else if string(before) != string(text) {
					t.Errorf("%s: %s and %s", res.InvocationID, before, text)
				}
				mu.Unlock()
			}
		}()
		w.stop = func() {
			require.NoError(t, w.h.Close())
			_ = conn.Close()
			<-done
			<-read
		}
		wards[i] = w
	}
	for i := range wards {
		boot(i)
		synctest.Wait()
	}
	defer func() {
		for _, w := range wards {
			w.stop()
		}
	}()
	_, _, err := wards[0].h.ledger.Session("none") // begins
	require.NoError(t, err)
	wards[0].wire.send(&CreateSession{SessionID: "s"})
	synctest.Wait()
	for step := range 300 {
		i := r.IntN(len(wards))
		w := wards[i]
		switch p := r.IntN(100); {
		case p < 70:
			id := fmt.Sprint("i", max(0, step/4-r.IntN(4)))
			_ = w.wire.conn.Send(&ToolCall{InvocationID: id, SessionID: "s", ToolName: "math/add", Parameters: json.RawMessage(`{"a":1,"b":2}`)})
		case p < 74: // the Host fails
			w.own.set(func(string, string) error { return errDown })
			w.stop()
			boot(i)
		case p < 77: // it is stopped in good order, or nearly
			w.stop()
			boot(i)
		case p < 82: // it loses the store
			w.own.set(func(op, _ string) error {
				if op == "get" {
					return nil
				}
				return errDown
			})
		case p < 85:
			w.own.set(func(_, key string) error {
				if strings.HasPrefix(key, "altar/lease/") {
					return errDown
				}
				return nil
			})
		case p < 92:
			w.own.set(nil)
		default:
			time.Sleep(time.Duration(r.IntN(1500)) * time.Millisecond)
		}
		if r.IntN(3) == 0 {
			synctest.Wait()
		}
	}
	for _, w := range wards {
		w.own.set(nil)
	}
	time.Sleep(3 * time.Minute) // changes in doubt are repeated for a minute
	synctest.Wait()
	mu.Lock()
	defer mu.Unlock()
	for id, n := range runs {
		if n != 1 {
			t.Errorf("%s ran %d times", id, n)
		}
	}
	require.Greater(t, len(runs), 20)
	require.Greater(t, len(answers), 20)
	for _, w := range wards {
		require.Zero(t, w.h.Stats().InFlight)
	}
}
