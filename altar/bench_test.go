// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package altar

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/internal/bench/floor"
	"github.com/fivewire/fivewire/internal/bench/pair"
	"github.com/fivewire/fivewire/store"
)

const benchContract = `{"name":"t","parameters":[{"name":"customer","type":"string","required":true},{"name":"amount","type":"integer","required":true},
	{"name":"rate","type":"float"},{"name":"urgent","type":"boolean"},
	{"name":"items","type":"array[object]","required":true,"properties":[{"name":"sku","type":"string","required":true},{"name":"qty","type":"integer","required":true}]},
	{"name":"note","type":"string"}]}`

const benchParams = `{"customer":"acme-0042","amount":9007199254740993,"rate":0.19,"urgent":true,` +
	`"items":[{"sku":"a-1","qty":3},{"sku":"b-2","qty":1},{"sku":"c-3","qty":12}],"note":"deliver before the end of the quarter"}`

// Validating the parameters of one call. The ratio is to a strict scan.
func BenchmarkValidateParams(b *testing.B) {
	c, err := DecodeContract([]byte(benchContract))
	require.NoError(b, err)
	v, err := newValidator(c, validation{})
	require.NoError(b, err)
	in := []byte(benchParams)
	buf := make([]byte, 0, 1024)
	run := func() {
		if _, err := v.Append(buf, in); err != nil {
			panic(err)
		}
	}
	b.Run("time", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			run()
		}
	})
	b.Run("ratio", func(b *testing.B) { pair.Ratio(b, pair.Loop(run), pair.Loop(func() { floor.Valid(in) })) })
}

// channelCalls is the floor of a Host in one process: three goroutines, no bytes.
func channelCalls(b *testing.B) func(int64) error {
	type job struct {
		id   int64
		back chan int64
	}
	toHost, toRun := make(chan job, 64), make(chan job, 64)
	go func() {
		for j := range toRun {
			j.back <- j.id
		}
	}()
	go func() {
		for j := range toHost {
			toRun <- j
		}
		close(toRun)
	}()
	b.Cleanup(func() { close(toHost) })
	chans := sync.Pool{New: func() any { return make(chan int64, 1) }}
	return func(seq int64) error {
		ch := chans.Get().(chan int64)
		toHost <- job{seq, ch}
		if got := <-ch; got != seq {
			return fmt.Errorf("%d: %d", seq, got)
		}
		chans.Put(ch)
		return nil
	}
}

// oneHop is the floor of a Host between byte streams: a caller and an answering goroutine at the ends of one
// pipe, with the same messages.
func oneHop(b *testing.B) func(int64) error {
	near, far := net.Pipe()
	a, z := NewStreamConn(near, nil), NewStreamConn(far, nil)
	b.Cleanup(func() { _, _ = a.Close(), z.Close() })
	go func() {
		for {
			m, err := z.Receive()
			if err != nil {
				return
			}
			call := m.(*ToolCall)
			_ = z.Send(&ToolResult{InvocationID: call.InvocationID, Payload: call.Parameters})
		}
	}()
	var mu sync.Mutex
	waiting := map[string]chan struct{}{}
	go func() {
		for {
			m, err := a.Receive()
			if err != nil {
				return
			}
			id := m.(*ToolResult).InvocationID
			mu.Lock()
			done := waiting[id]
			delete(waiting, id)
			mu.Unlock()
			close(done)
		}
	}()
	params := json.RawMessage(`{"a":1,"b":2}`)
	var calls atomic.Int64
	return func(int64) error {
		id, done := strconv.FormatInt(calls.Add(1), 10), make(chan struct{})
		mu.Lock()
		waiting[id] = done
		mu.Unlock()
		err := a.Send(&ToolCall{InvocationID: id, SessionID: "s", ToolName: "math/add", Parameters: params})
		if err == nil {
			<-done
		}
		return err
	}
}

// One call from client to Runtime and back. The ratio in one process is to three goroutines
// that talk over channels, and over two byte streams to a call over one of them.
func BenchmarkProxyCall(b *testing.B) {
	for _, tr := range []network{{"direct", directTransport}, {"mem", pipeTransport}, {"direct/store=memory", directTransport}} {
		rt := must(NewRuntime("r1", nil))
		rt.Handle("math/add", HandlerFunc(func(_ context.Context, call *ToolCall) (any, error) { return call.Parameters, nil }))
		opts := &HostOptions{Persistence: Persistence{ResultTTL: time.Second}, Timing: Timing{CallTimeout: time.Hour}}
		if strings.HasSuffix(tr.name, "memory") {
			opts.Persistence.Store = store.NewMemory()
		}
		s := start(b, tr.dial, opts, rt)
		sess, err := s.c.CreateSession(b.Context(), nil)
		require.NoError(b, err)
		params := json.RawMessage(`{"a":1,"b":2}`)
		call := func(int64) error {
			_, err := sess.Call(b.Context(), "math/add", params, nil)
			return err
		}
		for _, callers := range []int{1, 64} {
			name := fmt.Sprintf("over=%s/callers=%d", tr.name, callers)
			b.Run(name+"/time", func(b *testing.B) {
				b.ReportAllocs()
				var wg sync.WaitGroup
				n := b.N
				for i := range callers {
					share := n / callers
					if i < n%callers {
						share++
					}
					wg.Go(func() {
						for range share {
							if err := call(0); err != nil {
								b.Error(err)
								return
							}
						}
					})
				}
				wg.Wait()
			})
			base := channelCalls
			if tr.name == "mem" {
				base = oneHop
			}
			b.Run(name+"/ratio", func(b *testing.B) { pair.RatioCallers(b, callers, call, base(b)) })
		}
	}
}

// One hundred chunks of one call. The ratio is to a channel.
func BenchmarkStream100(b *testing.B) {
	for _, tr := range []network{{"direct", directTransport}, {"mem", pipeTransport}} {
		s := start(b, tr.dial, &HostOptions{Persistence: Persistence{ResultTTL: time.Second}}, testRuntime("r1", nil))
		sess, err := s.c.CreateSession(b.Context(), nil)
		require.NoError(b, err)
		run := func() {
			n := 0
			for _, err := range sess.Stream(b.Context(), "count", countIn{100}, nil) {
				if err != nil {
					panic(err)
				}
				n++
			}
			if n != 100 {
				panic(n)
			}
		}
		b.Run("over="+tr.name+"/time", func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				run()
			}
		})
		type event struct {
			id    int64
			text  string
			final bool
		}
		channel := func() {
			ch := make(chan event, 16)
			go func() {
				for i := range int64(100) {
					ch <- event{i, "text", i == 99}
				}
			}()
			for e := range ch {
				if e.final {
					return
				}
			}
		}
		b.Run("over="+tr.name+"/ratio", func(b *testing.B) { pair.Ratio(b, pair.Loop(run), pair.Loop(channel)) })
	}
}

// benchRoutes returns routes from a session and a tool to the Runtime, in turns through the sessions.
func benchRoutes(b *testing.B, sessions int) func() {
	h := testHost(b, nil)
	conn, err := h.Dial(testService)
	require.NoError(b, err)
	require.NoError(b, conn.Send(&AnnounceRuntime{RuntimeID: "r1", ProtocolVersion: "1.0.0"}))
	require.NoError(b, conn.Send(&FulfillTools{SessionID: allSessions, ToolNames: []string{"math/add"}}))
	client, err := h.Dial(testUser)
	require.NoError(b, err)
	go func() {
		for {
			if _, err := client.Receive(); err != nil {
				return
			}
		}
	}()
	ids := make([]string, sessions)
	for i := range ids {
		ids[i] = fmt.Sprintf("s%d", i)
		require.NoError(b, client.Send(&CreateSession{SessionID: ids[i]}))
	}
	i := 0
	return func() {
		route(h, ids[i%sessions], i)
		i++
	}
}

// mapAndRing is the floor of a route: a name replaces the oldest one in a map and a ring of the same length, under
// a lock.
func mapAndRing(names int) func() {
	var mu sync.Mutex
	ids, ring, m := make([]string, 2*names), make([]string, names), make(map[string]struct{}, names)
	for i := range ids {
		ids[i] = fmt.Sprintf("s%d", i)
	}
	i := 0
	return func() {
		mu.Lock()
		defer mu.Unlock()
		delete(m, ring[i%names])
		ring[i%names] = ids[i%len(ids)]
		m[ring[i%names]] = struct{}{}
		i++
	}
}

// From session and tool to the Runtime. The ratio is to one map and ring, and of many sessions to few.
func BenchmarkRoute(b *testing.B) {
	few, many := benchRoutes(b, 10), benchRoutes(b, 10_000)
	b.Run("sessions=10000/time", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			many()
		}
	})
	b.Run("sessions=10000/ratio", func(b *testing.B) { pair.Ratio(b, pair.Loop(many), pair.Loop(mapAndRing(10_000))) })
	b.Run("sessions=10000/few/ratio", func(b *testing.B) { pair.Ratio(b, pair.Loop(many), pair.Loop(few)) })
}

// benchMessages are the messages of a call, and the one with the most members.
func benchMessages() map[string]string {
	const ids = `"invocation_id":"0000000000000000000000000000002a","session_id":"00000000000000000000000000000017"`
	return map[string]string{
		"ToolCall": `{"type":"ToolCall",` + ids + `,"tool_name":"orders/create","parameters":` + benchParams +
			`,"metadata":{"trace":"7f3a"},"timeout_ms":30000,"correlation_id":"req-1"}`,
		"ToolResult": `{"type":"ToolResult","invocation_id":"0000000000000000000000000000002a","status":"success","payload":` + benchParams +
			`,"runtime_metadata":{"execution_time_ms":3},"correlation_id":"req-1"}`,
		"StreamChunk": `{"type":"StreamChunk","invocation_id":"0000000000000000000000000000002a","chunk_id":7,"payload":"text of a part","is_final":false}`,
		"AnnounceRuntime": `{"type":"AnnounceRuntime","runtime_id":"r1","language":"go","protocol_version":"1.0.0",` +
			`"capabilities":["streaming","cancellation","deadlines"],"metadata":{"host":"a","pid":"17"},"request_id":"1"}`,
		"ToolList": `{"type":"ToolList","session_id":"00000000000000000000000000000017","tools":[{"name":"orders/create","description":"creates an order","parameters":` +
			`[{"name":"customer","type":"string","description":"","required":true},{"name":"items","type":"array[object]","description":"","required":true,"properties":` +
			`[{"name":"sku","type":"string","description":"","required":true}]}],"streaming":false,"runtimes":["r1","r2"]}],"request_id":"2"}`,
	}
}

// Decoding one message. The ratio is to a strict scan.
func BenchmarkDecodeMessage(b *testing.B) {
	for name, text := range benchMessages() {
		frame := []byte(text)
		run := func() {
			if _, err := DecodeMessage(frame, 0); err != nil {
				panic(err)
			}
		}
		b.Run("of="+name+"/time", func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				run()
			}
		})
		b.Run("of="+name+"/ratio", func(b *testing.B) { pair.Ratio(b, pair.Loop(run), pair.Loop(func() { floor.Valid(frame) })) })
	}
}

// Encoding one message. The ratio is to a strict scan.
func BenchmarkAppendMessage(b *testing.B) {
	for name, text := range benchMessages() {
		m, err := DecodeMessage([]byte(text), 0)
		require.NoError(b, err)
		buf := make([]byte, 0, 2048)
		run := func() {
			if _, err := AppendMessage(buf, m); err != nil {
				panic(err)
			}
		}
		b.Run("of="+name+"/time", func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				run()
			}
		})
		b.Run("of="+name+"/ratio", func(b *testing.B) { pair.Ratio(b, pair.Loop(run), pair.Loop(func() { floor.Valid([]byte(text)) })) })
	}
}
