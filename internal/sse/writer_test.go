// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package sse

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// response is a response writer in memory, without deadlines.
type response struct {
	mu      sync.Mutex
	header  http.Header
	status  int
	writes  []string
	flushes int

	onWrite func(p []byte) (int, error) // nil: everything is taken at once
	onFlush func() error
}

func newResponse() *response { return &response{header: http.Header{}} }

func (r *response) Header() http.Header { return r.header }

func (r *response) WriteHeader(status int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.status = status
}

func (r *response) Write(p []byte) (n int, err error) {
	n = len(p)
	if r.onWrite != nil {
		n, err = r.onWrite(p)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if err == nil {
		r.writes = append(r.writes, string(p))
	}
	return n, err
}

func (r *response) FlushError() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.flushes++
	if r.onFlush != nil {
		return r.onFlush()
	}
	return nil
}

func (r *response) text() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return strings.Join(r.writes, "")
}

// counts returns the status, and how often something was written and flushed.
func (r *response) counts() (status, writes, flushes int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.status, len(r.writes), r.flushes
}

// send sends one event with the given data.
func send(t *testing.T, w *Writer, data string) {
	t.Helper()
	require.NoError(t, w.Send(t.Context(), "", "", []byte(data)))
}

func TestWriterBegins(t *testing.T) {
	tests := []struct {
		name  string
		begin func(t *testing.T, w *Writer)
		want  string
	}{
		{"with an event", func(t *testing.T, w *Writer) { send(t, w, "x") }, "data: x\n\n"},
		{"with a comment", func(t *testing.T, w *Writer) { require.NoError(t, w.Comment(t.Context(), "ready")) }, ": ready\n\n"},
		{"with nothing", func(t *testing.T, w *Writer) { require.NoError(t, w.Start()) }, ""},
		{"with a keep-alive", func(*testing.T, *Writer) { time.Sleep(15 * time.Second) }, ": hb\n\n"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				res := newResponse()
				res.header.Set("Content-Type", "application/json") // a default of the server's
				w := NewWriter(res, &WriterOptions{
					ContentType: "text/event-stream; charset=utf-8", KeepAlive: 15 * time.Second, KeepAliveText: "hb",
				})
				synctest.Wait()
				require.False(t, w.Started())
				status, _, _ := res.counts()
				require.Zero(t, status)
				tt.begin(t, w)
				synctest.Wait()
				require.True(t, w.Started())
				status, _, flushes := res.counts()
				require.Equal(t, 200, status)
				require.Equal(t, 1, flushes)
				require.Equal(t, tt.want, res.text())
				require.Equal(t, http.Header{
					"Content-Type":      {"text/event-stream; charset=utf-8"},
					"Cache-Control":     {"no-cache"},
					"X-Accel-Buffering": {"no"},
				}, res.header)
				require.NoError(t, w.Close())
			})
		})
	}
}

// A failure before the first event is answered in another way.
func TestWriterClosedBeforeItBegins(t *testing.T) {
	res := newResponse()
	w := NewWriter(res, nil)
	require.NoError(t, w.Close())
	require.False(t, w.Started())
	require.Empty(t, res.header)
	require.Zero(t, res.status)
	require.Empty(t, res.text())
}

func TestWriterKeepAlive(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		res := newResponse()
		w := NewWriter(res, &WriterOptions{KeepAlive: 15 * time.Second})
		time.Sleep(10 * time.Second)
		send(t, w, "x")
		time.Sleep(15*time.Second - 1)
		synctest.Wait()
		require.Equal(t, "data: x\n\n", res.text(), "the silence began with the event")
		time.Sleep(time.Nanosecond)
		synctest.Wait()
		require.Equal(t, "data: x\n\n: keep-alive\n\n", res.text())
		time.Sleep(30 * time.Second)
		synctest.Wait()
		require.Equal(t, "data: x\n\n"+strings.Repeat(": keep-alive\n\n", 3), res.text())
		require.NoError(t, w.Close())
		before := res.text()
		time.Sleep(time.Hour)
		require.Equal(t, before, res.text(), "nothing after Close")
	})
}

func TestWriterWithoutKeepAlive(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		res := newResponse()
		w := NewWriter(res, nil)
		time.Sleep(time.Hour)
		synctest.Wait()
		require.Empty(t, res.text())
		require.NoError(t, w.Close())
	})
}

// A single event goes out by itself; what comes during a write shares the next.
func TestWriterCoalesces(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		res := newResponse()
		res.onWrite = func(p []byte) (int, error) {
			time.Sleep(time.Second)
			return len(p), nil
		}
		w := NewWriter(res, nil)
		for i := range 3 {
			send(t, w, fmt.Sprint("slow", i))
			time.Sleep(2 * time.Second)
		}
		_, _, flushes := res.counts()
		require.Equal(t, 3, flushes)
		send(t, w, "first")
		synctest.Wait()
		for i := range 100 {
			send(t, w, fmt.Sprint("fast", i))
		}
		require.NoError(t, w.Close())
		_, writes, flushes := res.counts()
		require.Equal(t, 5, flushes)
		require.Equal(t, 5, writes)
		all, _ := readAll(NewReader(strings.NewReader(res.text()), nil))
		require.Len(t, all, 104)
		require.Equal(t, "fast99", all[103].Data)
	})
}

func TestWriterRefusesInvalid(t *testing.T) {
	res := newResponse()
	w := NewWriter(res, nil)
	require.ErrorIs(t, w.Send(t.Context(), "a\nb", "", nil), ErrInvalid)
	require.ErrorIs(t, w.Send(t.Context(), "", "1\n", nil), ErrInvalid)
	require.ErrorIs(t, w.Comment(t.Context(), "a\r"), ErrInvalid)
	send(t, w, "x")
	require.NoError(t, w.Close())
	require.Equal(t, "data: x\n\n", res.text())
}

func TestWriterInvalidKeepAliveText(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := NewWriter(newResponse(), &WriterOptions{KeepAlive: time.Second, KeepAliveText: "a\nb"})
		<-w.Done()
		require.ErrorIs(t, w.Close(), ErrInvalid)
	})
}

func TestWriterClose(t *testing.T) {
	res := newResponse()
	w := NewWriter(res, nil)
	send(t, w, "x")
	for range 2 {
		require.NoError(t, w.Close())
		require.ErrorIs(t, w.Send(t.Context(), "", "", []byte("late")), ErrClosed)
		require.ErrorIs(t, w.Comment(t.Context(), "late"), ErrClosed)
		require.ErrorIs(t, w.Start(), ErrClosed)
	}
	require.NoError(t, w.Err())
	require.Equal(t, "data: x\n\n", res.text(), "what was taken over is written")
	<-w.Done()
}

// stuck is a response whose writes block until release is closed.
func stuck() (res *response, release chan struct{}) {
	release = make(chan struct{})
	res = newResponse()
	res.onWrite = func(p []byte) (int, error) {
		<-release
		return len(p), nil
	}
	return res, release
}

// fill makes the next Send of w wait: one event is being written and one fills
// the room.
func fill(t *testing.T, w *Writer) {
	send(t, w, "being written")
	synctest.Wait()
	send(t, w, strings.Repeat("x", 100))
}

func TestWriterBackPressure(t *testing.T) {
	opts := &WriterOptions{MaxPending: 100, WriteTimeout: 10 * time.Second}
	t.Run("until there is room", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			res, release := stuck()
			w := NewWriter(res, opts)
			fill(t, w)
			time.AfterFunc(time.Second, func() { close(release) })
			begin := time.Now()
			send(t, w, "y")
			require.Equal(t, time.Second, time.Since(begin))
			require.NoError(t, w.Close())
			require.True(t, strings.HasSuffix(res.text(), "data: y\n\n"))
		})
	})
	t.Run("until the context ends", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			res, release := stuck()
			w := NewWriter(res, opts)
			fill(t, w)
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			require.ErrorIs(t, w.Send(ctx, "", "", []byte("y")), context.DeadlineExceeded)
			require.NoError(t, w.Err(), "the stream goes on")
			close(release)
			require.NoError(t, w.Close())
			require.NotContains(t, res.text(), "data: y")
		})
	})
	t.Run("until the reader is too slow", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			res, release := stuck()
			w := NewWriter(res, opts)
			fill(t, w)
			begin := time.Now()
			require.ErrorIs(t, w.Send(t.Context(), "", "", []byte("y")), ErrSlow)
			require.Equal(t, 10*time.Second, time.Since(begin))
			require.ErrorIs(t, w.Send(t.Context(), "", "", nil), ErrSlow)
			close(release)
			require.ErrorIs(t, w.Close(), ErrSlow)
			require.Equal(t, "data: being written\n\n", res.text(), "nothing after the failure")
		})
	})
	t.Run("until the stream fails", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			boom := errors.New("connection reset")
			res := newResponse()
			res.onWrite = func([]byte) (int, error) {
				time.Sleep(time.Second)
				return 0, boom
			}
			w := NewWriter(res, opts)
			fill(t, w)
			require.ErrorIs(t, w.Send(t.Context(), "", "", []byte("y")), boom)
			require.ErrorIs(t, w.Close(), boom)
		})
	})
	t.Run("until the writer is closed", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			res, release := stuck()
			w := NewWriter(res, opts)
			fill(t, w)
			time.AfterFunc(time.Second, func() { w.Close() })
			require.ErrorIs(t, w.Send(t.Context(), "", "", []byte("y")), ErrClosed)
			close(release)
			require.NoError(t, w.Close())
			require.NotContains(t, res.text(), "data: y")
		})
	})
	t.Run("not for one large event", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			res := newResponse()
			w := NewWriter(res, opts)
			send(t, w, strings.Repeat("x", 10_000))
			require.NoError(t, w.Close())
			require.Len(t, res.text(), 10_000+len("data: \n\n"))
		})
	})
}

// A large event to a slow but steady reader may take longer than the write timeout, and so may the
// senders queued behind it.
func TestWriterSteadyReader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		res := newResponse()
		res.onWrite = func(p []byte) (int, error) {
			time.Sleep(8 * time.Second)
			return len(p), nil
		}
		w := NewWriter(res, &WriterOptions{WriteTimeout: 10 * time.Second, MaxPending: 100})
		big := strings.Repeat("x", 10*maxWrite-len("data: \n\n"))
		send(t, w, big)
		synctest.Wait()
		send(t, w, strings.Repeat("y", 100))
		begin := time.Now()
		send(t, w, "z")
		require.Equal(t, 80*time.Second, time.Since(begin))
		require.NoError(t, w.Close())
		require.Len(t, res.writes, 12)
	})
}

func TestWriterFailures(t *testing.T) {
	boom := errors.New("connection reset")
	tests := []struct {
		name  string
		set   func(*response)
		want  error
		match string
	}{
		{"write", func(r *response) { r.onWrite = func([]byte) (int, error) { return 0, boom } }, boom, "sse: write: connection reset"},
		{"short write", func(r *response) { r.onWrite = func(p []byte) (int, error) { return len(p) - 1, nil } }, io.ErrShortWrite, "sse: write: "},
		{"flush", func(r *response) { r.onFlush = func() error { return boom } }, boom, "sse: flush: "},
		{"panic", func(r *response) { r.onWrite = func([]byte) (int, error) { panic("out of order") } }, nil, "sse: response writer panicked: out of order"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				res := newResponse()
				tt.set(res)
				w := NewWriter(res, &WriterOptions{KeepAlive: time.Second})
				send(t, w, "x")
				<-w.Done()
				err := w.Err()
				require.ErrorContains(t, err, tt.match)
				if tt.want != nil {
					require.ErrorIs(t, err, tt.want)
				}
				require.NotErrorIs(t, err, ErrSlow)
				require.Equal(t, err, w.Send(t.Context(), "", "", []byte("y")))
				require.Equal(t, err, w.Start())
				time.Sleep(time.Minute)
				require.Equal(t, err, w.Close())
			})
		})
	}
}

// A response writer that can neither flush nor set deadlines still serves.
func TestWriterPlainResponse(t *testing.T) {
	res := newResponse()
	w := NewWriter(struct{ http.ResponseWriter }{res}, nil)
	send(t, w, "x")
	require.NoError(t, w.Close())
	require.Equal(t, "data: x\n\n", res.text())
	require.Zero(t, res.flushes)
}

// timedResponse has deadlines; its reader takes nothing of "dead".
type timedResponse struct {
	*response
	deadlines []time.Time // guarded by response.mu
}

func (r *timedResponse) SetWriteDeadline(t time.Time) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.deadlines = append(r.deadlines, t)
	return nil
}

// deadline returns the current deadline and the number of deadlines set.
func (r *timedResponse) deadline() (time.Time, int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.deadlines[len(r.deadlines)-1], len(r.deadlines)
}

func TestWriterDeadlines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		res := &timedResponse{response: newResponse()}
		res.onWrite = func(p []byte) (int, error) {
			if string(p) != "data: dead\n\n" {
				return len(p), nil
			}
			deadline, _ := res.deadline()
			time.Sleep(time.Until(deadline))
			return 0, os.ErrDeadlineExceeded
		}
		w := NewWriter(res, &WriterOptions{WriteTimeout: 5 * time.Second, KeepAlive: time.Minute})
		d, n := res.deadline()
		require.Zero(t, d, "the server's deadline is lifted")
		require.Equal(t, 1, n)
		for i := range 3 {
			send(t, w, "x")
			synctest.Wait()
			d, n = res.deadline()
			require.Zero(t, d, "a stream at rest has none")
			require.Equal(t, 1+(i+1)*2, n, "renewed for each event")
			time.Sleep(30 * time.Second)
		}

		begin := time.Now()
		send(t, w, "dead")
		<-w.Done()
		require.Equal(t, 5*time.Second, time.Since(begin))
		require.ErrorIs(t, w.Close(), ErrSlow)
		require.ErrorIs(t, w.Close(), os.ErrDeadlineExceeded)
		d, _ = res.deadline()
		require.Equal(t, time.Now().Add(5*time.Second), d, "the end of the response is bounded, too")
	})
}

func TestWriterConcurrent(t *testing.T) {
	var mu sync.Mutex
	var out bytes.Buffer
	res := newResponse()
	res.onWrite = func(p []byte) (int, error) {
		mu.Lock()
		defer mu.Unlock()
		return out.Write(p)
	}
	w := NewWriter(res, &WriterOptions{KeepAlive: time.Microsecond, MaxPending: 256})
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for k := range 200 {
				if err := w.Send(t.Context(), "e", fmt.Sprint(i), []byte(fmt.Sprint(k))); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	var closers sync.WaitGroup
	for range 3 {
		closers.Go(func() {
			if err := w.Close(); err != nil {
				t.Error(err)
			}
		})
	}
	closers.Wait()
	all, err := readAll(NewReader(&out, nil))
	require.Equal(t, io.EOF, err)
	require.Len(t, all, 1600)
	next := map[string]int{}
	for _, ev := range all {
		require.Equal(t, fmt.Sprint(next[ev.ID]), ev.Data, "the order of each sender is kept")
		next[ev.ID]++
	}
}

func TestWriterAllocs(t *testing.T) {
	w := NewWriter(discard{}, nil)
	defer w.Close()
	ctx, data := t.Context(), []byte(`{"chatId":"c1","text":"hello"}`)
	n := testing.AllocsPerRun(1000, func() {
		if err := w.Send(ctx, "stream", "", data); err != nil {
			t.Fatal(err)
		}
	})
	require.LessOrEqual(t, n, 1.0)
}

// discard takes everything.
type discard struct{}

func (discard) Header() http.Header         { return http.Header{} }
func (discard) WriteHeader(int)             {}
func (discard) Write(p []byte) (int, error) { return len(p), nil }

// pipes is a listener whose connections are pairs of pipes, in virtual time.
type pipes struct {
	conns chan net.Conn
	done  chan struct{}
}

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.done:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error   { close(p.done); return nil }
func (p *pipes) Addr() net.Addr { return &net.UnixAddr{Name: "pipe"} }

// overHTTP serves handler to a client, with HTTP/2 if so wanted, by a server
// whose WriteTimeout is five seconds.
func overHTTP(t *testing.T, h2 bool, handler http.HandlerFunc) *http.Client {
	l := &pipes{conns: make(chan net.Conn), done: make(chan struct{})}
	var protocols http.Protocols
	protocols.SetHTTP1(!h2)
	protocols.SetUnencryptedHTTP2(h2)
	srv := &http.Server{Handler: handler, WriteTimeout: 5 * time.Second, Protocols: &protocols}
	served := make(chan struct{})
	go func() { srv.Serve(l); close(served) }()
	tr := &http.Transport{Protocols: &protocols, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		client, server := net.Pipe()
		select {
		case l.conns <- server:
			return client, nil
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}}
	t.Cleanup(func() {
		tr.CloseIdleConnections()
		srv.Close()
		<-served
	})
	return &http.Client{Transport: tr}
}

func forHTTP1And2(t *testing.T, f func(t *testing.T, h2 bool)) {
	for _, h2 := range []bool{false, true} {
		t.Run(fmt.Sprintf("http%d", map[bool]int{false: 1, true: 2}[h2]), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { f(t, h2) })
		})
	}
}

// A stream outlives the server's WriteTimeout, both busy and at rest.
func TestWriterOutlivesWriteTimeout(t *testing.T) {
	forHTTP1And2(t, func(t *testing.T, h2 bool) {
		cl := overHTTP(t, h2, func(w http.ResponseWriter, r *http.Request) {
			sw := NewWriter(w, &WriterOptions{WriteTimeout: 2 * time.Second})
			defer sw.Close()
			for i := range 5 {
				time.Sleep(20 * time.Second)
				if err := sw.Send(r.Context(), "", "", []byte(fmt.Sprint(i))); err != nil {
					t.Error(err)
				}
			}
		})
		for range 2 { // the second over the same connection
			res, err := cl.Get("http://pipe/")
			require.NoError(t, err)
			all, err := readAll(NewReader(res.Body, nil))
			require.Equal(t, io.EOF, err)
			require.Len(t, all, 5)
			require.NoError(t, res.Body.Close())
		}
	})
}

// A reader that takes nothing any more is found out.
func TestWriterDropsDeadReader(t *testing.T) {
	forHTTP1And2(t, func(t *testing.T, h2 bool) {
		done := make(chan error, 1)
		cl := overHTTP(t, h2, func(w http.ResponseWriter, r *http.Request) {
			sw := NewWriter(w, &WriterOptions{WriteTimeout: 2 * time.Second})
			for sw.Send(context.WithoutCancel(r.Context()), "", "", make([]byte, 10_000)) == nil {
			}
			done <- sw.Close()
		})
		res, err := cl.Get("http://pipe/")
		require.NoError(t, err)
		begin := time.Now()
		require.ErrorIs(t, <-done, ErrSlow)
		require.Less(t, time.Since(begin), 5*time.Second)
		_, err = io.Copy(io.Discard, res.Body)
		require.Error(t, err, "the reader sees a cut stream")
		res.Body.Close()
	})
}

func TestWriterOverHTTP(t *testing.T) {
	ts := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		sw := NewWriter(w, nil)
		defer sw.Close()
		for _, name := range []string{"stream", "stream", "done"} {
			if err := sw.Send(r.Context(), name, "", []byte(`{}`)); err != nil {
				t.Error(err)
			}
		}
	}))
	defer ts.Close()
	res, err := ts.Client().Get(ts.URL)
	require.NoError(t, err)
	defer res.Body.Close()
	require.Equal(t, http.StatusOK, res.StatusCode)
	require.Equal(t, "text/event-stream", res.Header.Get("Content-Type"))
	require.Equal(t, "no-cache", res.Header.Get("Cache-Control"))
	require.Equal(t, "no", res.Header.Get("X-Accel-Buffering"))
	all, err := readAll(NewReader(res.Body, nil))
	require.Equal(t, io.EOF, err)
	require.Equal(t, []got{{Name: "stream", Data: "{}"}, {Name: "stream", Data: "{}"}, {Name: "done", Data: "{}"}}, all)
}
