// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package a2e_test

import (
	"context"
	"slices"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/a2e"
	"github.com/fivewire/fivewire/a2e/a2etest"
	"github.com/fivewire/fivewire/a2e/catalogue"
	"github.com/fivewire/fivewire/a2e/tools"
)

type object struct {
	ProcID string `json:"proc_id,omitzero" jsonmap:"always"`
}

// laneHost serves ordinary, waiting and control requests that run for a second, and records their
// starts.
func laneHost(t *testing.T, limits a2e.Limits) (h *a2e.Host, starts func() []string) {
	var mu sync.Mutex
	var started []string
	route := func(name string, waiting, control bool) a2e.Route {
		r := a2e.NewRoute("demo/"+name+"/req", func(_ context.Context, call *a2e.Call, _ *object) (*struct{}, error) {
			mu.Lock()
			started = append(started, call.Message.ID)
			mu.Unlock()
			time.Sleep(time.Second)
			return nil, nil
		})
		r.Waiting, r.Control = waiting, control
		return r
	}
	h = a2etest.NewHost(t, &a2e.HostOptions{Limits: limits})
	h.AddPlugin(&a2e.Plugin{Name: "demo", Capability: "demo", Routes: []a2e.Route{
		route("run", false, false), route("wait", true, false), route("stop", false, true)}})
	return h, func() []string {
		synctest.Wait()
		mu.Lock()
		defer mu.Unlock()
		list := slices.Clone(started)
		slices.Sort(list) // starts of one instant
		started = nil
		return list
	}
}

// Waiting requests take no slot and control requests overtake the queue, except the requests about
// the same object or, without one, of the same capability (A2E-D55).
func TestLanesStartApart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, starts := laneHost(t, a2e.Limits{MaxConcurrentPerSession: 1, MaxWaiting: 2})
		r := open(t, h)
		r.shake(`"demo"`)
		r.send(message("demo/stop/req", "s0", ``)) // nothing is queued
		r.send(message("demo/wait/req", "w1", ``))
		r.send(message("demo/run/req", "r1", ``))
		r.send(message("demo/wait/req", "w2", ``))
		require.Equal(t, []string{"r1", "s0", "w1", "w2"}, starts())
		r.send(message("demo/run/req", "r2", `,"proc_id":"p","x":{"y":["q"]}`))
		r.send(message("demo/stop/req", "s1", `,"proc_id":"p"`))
		r.send(message("demo/stop/req", "s2", `,"proc_id":"q"`))
		r.send(message("demo/stop/req", "s3", `,"proc_id":"other"`))
		r.send(message("demo/stop/req", "s4", ``))
		r.send(message("demo/wait/req", "w3", ``))
		require.Equal(t, []string{"s3"}, starts())
		e := wireError(t, r.next())
		require.Equal(t, "w3", e.ReqID)
		require.Equal(t, "overloaded", e.Reason)
		time.Sleep(time.Second)
		require.Equal(t, []string{"r2", "s1", "s2", "s4"}, starts())
	})
}

// At most 16 control requests of a session run; more wait, up to the bound of the queue.
func TestControlRequestsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, starts := laneHost(t, a2e.Limits{QueueLimitPerSession: 3})
		r := open(t, h)
		r.shake(`"demo"`)
		for i := range 20 {
			r.send(message("demo/stop/req", "s"+strconv.Itoa(i), `,"proc_id":"p`+strconv.Itoa(i)+`"`))
			synctest.Wait()
		}
		require.Len(t, starts(), 16)
		require.Equal(t, "s19", wireError(t, r.next()).ReqID)
		time.Sleep(time.Second)
		require.Equal(t, []string{"s16", "s17", "s18"}, starts())
	})
}

// The deadline of the caller is the time limit of the request, if the request names none (A2E-D28).
func TestCallWritesTheDeadlineOfItsCaller(t *testing.T) {
	for name, c := range map[string]struct {
		limit   a2e.Limit
		timeout time.Duration
		ctx     time.Duration
		want    string
	}{
		"option":       {0, 2500 * time.Millisecond, time.Hour, "3"},
		"context":      {0, 0, 1500 * time.Millisecond, "2"},
		"at least one": {0, time.Hour, time.Millisecond, "1"},
		"as set":       {7, 2 * time.Second, time.Hour, "7"},
		"default":      {0, 40 * time.Second, time.Hour, "30"},
		"no deadline":  {0, 0, 0, "30"},
	} {
		synctest.Test(t, func(t *testing.T) {
			sent := make(chan string, 1)
			ctx, cancel := context.WithCancel(t.Context())
			if c.ctx > 0 {
				ctx, cancel = context.WithTimeout(t.Context(), c.ctx)
			}
			defer cancel()
			h := a2etest.NewHost(t, nil)
			h.AddPlugin(&a2e.Plugin{Name: "tools", Capability: "tools", Routes: []a2e.Route{
				a2e.NewRoute("tool/call/req", func(_ context.Context, call *a2e.Call, r *tools.CallRequest) (*tools.CallResponse, error) {
					sent <- strconv.FormatInt(int64(r.TimeLimit()/time.Second), 10)
					return &tools.CallResponse{Data: tools.Result{Success: true}}, nil
				})}})
			client := a2etest.Connect(t, h, &a2e.ClientOptions{Types: catalogue.Types()})
			request := &tools.CallRequest{ToolName: "x", Timeout: c.limit}
			_, err := client.Call(ctx, "tool/call/req", request, &a2e.CallOptions{Timeout: c.timeout})
			require.NoError(t, err, name)
			require.Equal(t, c.want, <-sent, name)
			require.Equal(t, c.limit, request.Timeout, "the request is not changed")
		})
	}
}
