// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package altar

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
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

// One call from client to Runtime and back. The ratio is to three goroutines
// that talk over channels.
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
			b.Run(name+"/ratio", func(b *testing.B) { pair.RatioCallers(b, callers, call, channelCalls(b)) })
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

// From session and tool to the Runtime. The ratio is to one map and ring.
func BenchmarkRoute(b *testing.B) {
	for _, sessions := range []int{10, 10_000} {
		b.Run(fmt.Sprintf("sessions=%d", sessions), func(b *testing.B) {
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
			b.ReportAllocs()
			for b.Loop() {
				route(h, ids[i%sessions], i)
				i++
			}
		})
	}
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
