// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package arc_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strconv"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/arc"
	"github.com/fivewire/fivewire/internal/bench/floor"
	"github.com/fivewire/fivewire/internal/bench/pair"
)

// ARC-186: the benchmarks of whole calls over HTTP on loopback, client and server in one
// process, against net/http used with care: hand-written JSON, memory used again.

const (
	benchPrompt = "Please summarise the quarterly report and list every risk with its owner."
	benchEvents = 100
)

func benchHTTPClient() *http.Client {
	return &http.Client{Transport: &http.Transport{MaxIdleConns: 256, MaxIdleConnsPerHost: 256, DisableCompression: true}}
}

// benchServer serves an agent with a method, a task that waits, and a chat of 100
// events.
func benchServer(tb testing.TB) (client *arc.Client, taskID string) {
	tb.Helper()
	srv := arc.MustServer(nil)
	srv.Register(arc.Agent{
		AgentInfo: arc.AgentInfo{AgentID: "document-processor-03"},
		TaskHandler: arc.TaskHandlerFunc(func(ctx context.Context, run *arc.TaskRun) error {
			_, err := run.WaitInput(ctx, "nothing")
			return err
		}),
		ChatHandler: arc.ChatHandlerFunc(func(_ context.Context, _ *arc.ChatTurn, out *arc.ChatWriter) error {
			for range benchEvents {
				if err := out.Send(benchPrompt); err != nil {
					return err
				}
			}
			return nil
		}),
		StatelessChats: true,
		Methods: map[string]arc.Handler{"bench.echo": arc.HandlerFunc(func(_ context.Context, call *arc.Call) (any, error) {
			return call.Params, nil
		})},
	})
	ts := httptest.NewServer(srv)
	h := benchHTTPClient()
	client, err := arc.NewClient(ts.URL+"/arc", "finance-analyzer-01", &arc.ClientOptions{HTTPClient: h})
	require.NoError(tb, err)
	tb.Cleanup(func() {
		h.CloseIdleConnections()
		require.NoError(tb, srv.Close())
		ts.Close()
	})
	task, err := client.CreateTask(context.Background(), "document-processor-03", &arc.CreateTaskParams{InitialMessage: arc.UserText(benchPrompt)}, nil)
	require.NoError(tb, err)
	return client, task.ID
}

// taskInfo returns one call with typed params that reads a task.
func taskInfo(client *arc.Client, taskID string) func(int64) error {
	ctx := arc.ContextWithTraceID(context.Background(), "trace_report_20240115_abc123")
	return func(int64) error {
		task, err := client.GetTask(ctx, "document-processor-03", &arc.TaskInfoParams{TaskID: taskID}, nil)
		if err == nil && task.ID != taskID {
			err = errors.New("another task")
		}
		return err
	}
}

func streamChat(client *arc.Client) func(int64) error {
	p := &arc.StartChatParams{InitialMessage: arc.UserText("x")}
	return func(int64) error {
		n := 0
		for ev, err := range client.StreamChat(context.Background(), "document-processor-03", p, nil) {
			if err != nil {
				return err
			}
			if !ev.Done {
				n++
			}
		}
		if n != benchEvents {
			return fmt.Errorf("%d events", n)
		}
		return nil
	}
}

type lean struct {
	buf  []byte
	rd   bytes.Reader
	head floor.Head
}

func (l *lean) Close() error               { return nil }
func (l *lean) Read(p []byte) (int, error) { return l.rd.Read(p) }

var (
	leans      = sync.Pool{New: func() any { return &lean{buf: make([]byte, 0, 4096)} }}
	leanReader = sync.Pool{New: func() any { return bufio.NewReaderSize(nil, 4096) }}
	jsonType   = []string{"application/json"}
	leanHeader = http.Header{"Content-Type": jsonType}
)

func readAll(dst []byte, r io.Reader) ([]byte, error) {
	for {
		if len(dst) == cap(dst) {
			dst = append(dst, 0)[:len(dst)]
		}
		n, err := r.Read(dst[len(dst):cap(dst)])
		dst = dst[:len(dst)+n]
		if err == io.EOF {
			return dst, nil
		}
		if err != nil {
			return dst, err
		}
	}
}

func leanEcho(w http.ResponseWriter, r *http.Request) {
	l := leans.Get().(*lean)
	defer leans.Put(l)
	var err error
	if l.buf, err = readAll(l.buf[:0], r.Body); err == nil {
		err = floor.Peel(l.buf, &l.head)
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	n, h := len(l.buf), &l.head
	b := append(append(l.buf, `{"arc":"1.0","id":`...), h.ID...)
	b = append(append(b, `,"method":`...), h.Method...)
	b = append(append(b, `,"requestAgent":`...), h.From...)
	b = append(append(b, `,"targetAgent":`...), h.To...)
	b = append(append(b, `,"traceId":`...), h.Trace...)
	b = append(append(b, `,"params":`...), h.Params...)
	l.buf = append(b, '}')
	w.Header()["Content-Type"] = jsonType
	_, _ = w.Write(l.buf[n:])
}

func leanCall(b testing.TB) func(int64) error {
	ts := httptest.NewServer(http.HandlerFunc(leanEcho))
	cl := benchHTTPClient()
	b.Cleanup(func() { cl.CloseIdleConnections(); ts.Close() })
	u, err := url.Parse(ts.URL)
	require.NoError(b, err)
	return func(seq int64) error {
		l := leans.Get().(*lean)
		defer leans.Put(l)
		l.buf = append(l.buf[:0], `{"arc":"1.0","id":"msg_abc123","method":"task.create","requestAgent":"finance-analyzer-01",`+
			`"targetAgent":"document-processor-03","traceId":"trace_report_20240115_abc123","params":{"role":"user","text":"`+benchPrompt+`","seq":`...)
		l.buf = strconv.AppendInt(l.buf, seq, 10)
		l.buf = append(l.buf, "}}"...)
		l.rd.Reset(l.buf)
		res, err := cl.Do(&http.Request{Method: "POST", URL: u, Host: u.Host, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
			Header: leanHeader, Body: l, ContentLength: int64(len(l.buf))})
		if err != nil {
			return err
		}
		defer res.Body.Close()
		n := len(l.buf)
		if l.buf, err = readAll(l.buf, res.Body); err != nil {
			return err
		}
		return floor.Peel(l.buf[n:], &l.head)
	}
}

func leanStream(b testing.TB, every int) func(int64) error {
	ts := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		l := leans.Get().(*lean)
		defer leans.Put(l)
		w.Header()["Content-Type"] = []string{"text/event-stream"}
		f := http.NewResponseController(w)
		for i := range benchEvents {
			l.buf = append(l.buf[:0], "event: stream\ndata: {\"chunkId\":"...)
			l.buf = strconv.AppendInt(l.buf, int64(i), 10)
			l.buf = append(l.buf, ",\"text\":\""+benchPrompt+"\",\"final\":"...)
			l.buf = strconv.AppendBool(l.buf, i == benchEvents-1)
			l.buf = append(l.buf, "}\n\n"...)
			_, _ = w.Write(l.buf)
			if i%every == every-1 {
				_ = f.Flush()
			}
		}
	}))
	cl := benchHTTPClient()
	b.Cleanup(func() { cl.CloseIdleConnections(); ts.Close() })
	return func(int64) error {
		res, err := cl.Post(ts.URL, "application/json", bytes.NewReader([]byte("{}")))
		if err != nil {
			return err
		}
		defer res.Body.Close()
		r := leanReader.Get().(*bufio.Reader)
		defer leanReader.Put(r)
		r.Reset(res.Body)
		for n := 0; ; {
			line, err := r.ReadSlice('\n')
			switch {
			case err == io.EOF && n == benchEvents:
				return nil
			case err != nil:
				return err
			}
			if d, ok := bytes.CutPrefix(line, []byte("data: ")); ok {
				if !floor.Valid(d) {
					return errors.New("bad JSON")
				}
				n++
			}
		}
	}
}

func BenchmarkHTTPUnary(b *testing.B) {
	for _, callers := range []int{1, 64} {
		for name, open := range map[string]func() func(int64) error{
			"sdk":         func() func(int64) error { return taskInfo(benchServer(b)) },
			"nethttpLean": func() func(int64) error { return leanCall(b) },
		} {
			b.Run(fmt.Sprintf("lib=%s/callers=%d", name, callers), func(b *testing.B) { callersOf(b, callers, open()) })
		}
	}
}

func BenchmarkHTTPStream100(b *testing.B) {
	b.Run("lib=sdk", func(b *testing.B) {
		client, _ := benchServer(b)
		callersOf(b, 1, streamChat(client))
	})
	b.Run("lib=nethttpLean", func(b *testing.B) { callersOf(b, 1, leanStream(b, 1)) })
}

func callersOf(b *testing.B, callers int, f func(int64) error) {
	for i := range 10 {
		if err := f(int64(i)); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportAllocs()
	b.ResetTimer()
	b.SetParallelism(max(1, callers/2))
	if callers == 1 {
		for i := range b.N {
			if err := f(int64(i)); err != nil {
				b.Fatal(err)
			}
		}
		return
	}
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			if err := f(1); err != nil {
				b.Error(err)
				return
			}
		}
	})
}

func BenchmarkPairHTTPUnary(b *testing.B) {
	for _, callers := range []int{1, 64} {
		b.Run(fmt.Sprintf("lib=sdk/callers=%d", callers), func(b *testing.B) {
			pair.RatioCallers(b, callers, taskInfo(benchServer(b)), leanCall(b))
		})
	}
}

// The chat of the SDK writes faster than the connection takes, so its flushes
// come together; the floor flushes each event.
func BenchmarkPairHTTPStream100(b *testing.B) {
	for _, callers := range []int{1, 64} {
		b.Run(fmt.Sprintf("lib=sdk/callers=%d", callers), func(b *testing.B) {
			client, _ := benchServer(b)
			pair.RatioCallers(b, callers, streamChat(client), leanStream(b, 1))
		})
	}
}
