// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package a2e_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"sync"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/a2e"
	"github.com/fivewire/fivewire/a2e/a2etest"
	"github.com/fivewire/fivewire/a2e/tools"
	"github.com/fivewire/fivewire/internal/bench/floor"
	"github.com/fivewire/fivewire/internal/bench/pair"
	"github.com/fivewire/fivewire/internal/race"
)

// benchLines returns n messages of about 300 bytes, of a type of the catalogue or of an unknown
// type.
func benchLines(n int, catalogued bool) []byte {
	var b bytes.Buffer
	name := "tool/call/req"
	if !catalogued {
		name = "gadget/use/req"
	}
	for i := range n {
		fmt.Fprintf(&b, `{"a2e":"1.0","type":%q,"id":"%032x","ts":1716886800.%03d,"session_id":"finance-analyzer-01","tool_name":"web_search",`+
			`"arguments":{"query":"quarterly revenue by region and every risk","max":%d,"exact":true,"lang":"en",`+
			`"cursor":"c-%06d"},"correlation_id":"%032x","streaming":false,"timeout":30}`+"\n", name, i, i%1000, i%50, i, i)
	}
	return b.Bytes()
}

func splitValidate(in []byte) {
	r := bufio.NewScanner(bytes.NewReader(in))
	for r.Scan() {
		if !floor.Valid(r.Bytes()) {
			panic("floor")
		}
	}
}

func readAll(codec *a2e.Codec, in []byte) {
	r := a2e.NewLineReader(bytes.NewReader(in), codec)
	for {
		line, err := r.Next()
		if errors.Is(err, io.EOF) {
			return
		}
		if err != nil {
			panic(err)
		}
		_, err = codec.Decode(line)
		if err != nil {
			panic(err)
		}
	}
}

func BenchmarkRead300B(b *testing.B) {
	codec := a2e.NewCodec(tools.Types()...)
	for _, known := range []bool{true, false} {
		in := benchLines(512, known)
		b.Run(fmt.Sprintf("lib=sdk/typed=%t", known), func(b *testing.B) {
			b.ReportAllocs()
			b.SetBytes(int64(len(in)))
			for b.Loop() {
				readAll(codec, in)
			}
		})
	}
}

func BenchmarkPairRead300B(b *testing.B) {
	codec := a2e.NewCodec(tools.Types()...)
	for _, known := range []bool{true, false} {
		in := benchLines(512, known)
		b.Run(fmt.Sprintf("lib=sdk/typed=%t", known), func(b *testing.B) {
			pair.Ratio(b, pair.Loop(func() { readAll(codec, in) }), pair.Loop(func() { splitValidate(in) }))
		})
	}
}

// Allocation counts need no quiet machine.
func TestAllocs(t *testing.T) {
	if race.Enabled {
		t.Skip("the race detector empties pools")
	}
	codec := a2e.NewCodec(tools.Types()...)
	for known, most := range map[bool]float64{true: 2, false: 1} {
		line := bytes.TrimSuffix(benchLines(1, known), []byte{'\n'})
		require.LessOrEqual(t, testing.AllocsPerRun(200, func() {
			if _, err := codec.Decode(line); err != nil {
				panic(err)
			}
		}), most, "typed %t", known)
	}
	m, err := codec.Decode(bytes.TrimSuffix(benchLines(1, true), []byte{'\n'}))
	require.NoError(t, err)
	buf := make([]byte, 0, 1024)
	require.LessOrEqual(t, testing.AllocsPerRun(200, func() {
		if _, err := codec.Append(buf, m); err != nil {
			panic(err)
		}
	}), 0.0)
}

// A call costs both ends together at most 14 allocations, not counting the request of the caller.
func TestCallAllocs(t *testing.T) {
	if race.Enabled {
		t.Skip("the race detector empties pools")
	}
	agent, host := net.Pipe()
	serve(t, echoHost(), host)
	c := a2etest.Must(a2e.NewClient(agent, &a2e.ClientOptions{Token: "s3cret", Capabilities: []string{"tools"}, Types: tools.Types()}))
	defer c.Close()
	_, err := c.Connect(t.Context())
	require.NoError(t, err)
	r := &tools.CallRequest{ToolName: "echo", Arguments: json.RawMessage(`{"seq":1}`), Timeout: 30}
	require.LessOrEqual(t, testing.AllocsPerRun(2000, func() {
		if _, err := c.Call(context.Background(), "tool/call/req", r, nil); err != nil {
			panic(err)
		}
	}), 14.0)
}

// The base checks the strings and the raw part, and copies them.
func BenchmarkPairWrite300B(b *testing.B) {
	codec := a2e.NewCodec(tools.Types()...)
	m, err := codec.Decode(bytes.TrimSuffix(benchLines(1, true), []byte{'\n'}))
	require.NoError(b, err)
	body := m.Body.(*tools.CallRequest)
	var buf, base []byte
	pair.Ratio(b, pair.Loop(func() { buf, _ = codec.Append(buf[:0], m) }), pair.Loop(func() {
		o := append(append(base[:0], `{"a2e":"1.0","type":"`...), m.Type...)
		o = append(append(o, `","id":"`...), m.ID...)
		o = append(append(o, `","ts":`...), m.TS...)
		o = append(append(o, `,"session_id":"`...), body.SessionID...)
		o = append(append(o, `","tool_name":"`...), body.ToolName...)
		o = append(append(o, `","arguments":`...), body.Arguments...)
		o = append(append(o, `,"correlation_id":"`...), body.CorrelationID...)
		o = strconv.AppendBool(append(o, `","streaming":`...), body.Streaming)
		o = strconv.AppendInt(append(o, `,"timeout":`...), int64(body.Timeout), 10)
		base = append(o, '}')
		if !utf8.Valid(base) || !floor.Valid(body.Arguments) {
			panic("floor")
		}
	}))
}

// ---- the floor of a call: hand-written scan and append, one pending table ----

type floorConn struct {
	w       io.Writer
	wmu     sync.Mutex
	wbuf    []byte
	mu      sync.Mutex
	pending map[int64]chan struct{}
	n       int64
}

func floorMember(line []byte, key string) []byte {
	_, rest, _ := bytes.Cut(line, []byte(key))
	v, _, _ := bytes.Cut(rest, []byte{'"'})
	return v
}

func newFloorConn(rw io.ReadWriter, server bool) *floorConn {
	c := &floorConn{w: rw, pending: map[int64]chan struct{}{}}
	go func() {
		r := bufio.NewReaderSize(rw, 64<<10)
		for {
			line, err := r.ReadSlice('\n')
			if err != nil || !floor.Valid(line) {
				return
			}
			if server {
				id := floorMember(line, `"id":"`)
				i := bytes.Index(line, []byte(`"args":`)) + len(`"args":`)
				c.wmu.Lock()
				b := append(c.wbuf[:0], `{"a2e":"1.0","type":"tool/call/resp","id":"r`...)
				b = append(append(b, id...), `","ts":1716886800.25,"req_id":"`...)
				b = append(append(b, id...), `","result":`...)
				c.wbuf = append(b, line[i:]...)
				_, _ = c.w.Write(c.wbuf)
				c.wmu.Unlock()
				continue
			}
			id, _ := strconv.ParseInt(string(floorMember(line, `"req_id":"`)), 10, 64)
			c.mu.Lock()
			ch := c.pending[id]
			delete(c.pending, id)
			c.mu.Unlock()
			if ch != nil {
				ch <- struct{}{}
			}
		}
	}()
	return c
}

func (c *floorConn) call(seq int64) error {
	ch := make(chan struct{}, 1)
	c.mu.Lock()
	c.n++
	id := c.n
	c.pending[id] = ch
	c.mu.Unlock()
	c.wmu.Lock()
	b := append(c.wbuf[:0], `{"a2e":"1.0","type":"tool/call/req","id":"`...)
	b = strconv.AppendInt(b, id, 10)
	b = append(b, `","ts":1716886800.25,"tool":"echo","args":{"seq":`...)
	c.wbuf = append(strconv.AppendInt(b, seq, 10), "}}\n"...)
	_, err := c.w.Write(c.wbuf)
	c.wmu.Unlock()
	<-ch
	return err
}

func BenchmarkPairPipeCall(b *testing.B) {
	for _, over := range []string{"mem", "ospipe"} {
		for _, callers := range []int{1, 64} {
			b.Run(fmt.Sprintf("over=%s/lib=sdk/callers=%d", over, callers), func(b *testing.B) {
				pipes := func() (io.ReadWriteCloser, io.ReadWriteCloser) {
					if over == "mem" {
						return net.Pipe()
					}
					r1, w1, err := os.Pipe()
					require.NoError(b, err)
					r2, w2, err := os.Pipe()
					require.NoError(b, err)
					return a2e.Join(r1, w2), a2e.Join(r2, w1)
				}
				x, y := pipes()
				defer x.Close()
				defer y.Close()
				base := newFloorConn(x, false)
				newFloorConn(y, true)
				agent, host := pipes()
				go func() { _ = echoHost().Serve(context.Background(), host) }()
				c := a2etest.Must(a2e.NewClient(agent, &a2e.ClientOptions{Token: "s3cret", Capabilities: []string{"tools"}, Types: tools.Types()}))
				defer c.Close()
				_, err := c.Connect(context.Background())
				require.NoError(b, err)
				pair.RatioCallers(b, callers, func(seq int64) error {
					r := &tools.CallRequest{ToolName: "echo", Arguments: json.RawMessage(`{"seq":` + strconv.FormatInt(seq, 10) + `}`), Timeout: 30}
					_, err := c.Call(context.Background(), "tool/call/req", r, nil)
					return err
				}, base.call)
			})
		}
	}
}

func BenchmarkPipeCall(b *testing.B) {
	for _, callers := range []int{1, 64} {
		b.Run(fmt.Sprintf("over=mem/lib=sdk/callers=%d", callers), func(b *testing.B) {
			agent, host := net.Pipe()
			go func() { _ = echoHost().Serve(context.Background(), host) }()
			c := a2etest.Must(a2e.NewClient(agent, &a2e.ClientOptions{Token: "s3cret", Capabilities: []string{"tools"}, Types: tools.Types()}))
			defer c.Close()
			_, err := c.Connect(context.Background())
			require.NoError(b, err)
			b.ReportAllocs()
			var all sync.WaitGroup
			b.ResetTimer()
			for k := range callers {
				all.Go(func() {
					for i := k; i < b.N; i += callers {
						r := &tools.CallRequest{ToolName: "echo", Arguments: json.RawMessage(`{"seq":1}`), Timeout: 30}
						if _, err := c.Call(context.Background(), "tool/call/req", r, nil); err != nil {
							panic(err)
						}
					}
				})
			}
			all.Wait()
		})
	}
}

func BenchmarkWrite300B(b *testing.B) {
	codec := a2e.NewCodec(tools.Types()...)
	m, err := codec.Decode(bytes.TrimSuffix(benchLines(1, true), []byte{'\n'}))
	require.NoError(b, err)
	var buf []byte
	b.ReportAllocs()
	for b.Loop() {
		buf, _ = codec.Append(buf[:0], m)
	}
}
