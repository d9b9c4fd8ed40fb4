// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package accp_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coder/websocket"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/accp"
	"github.com/fivewire/fivewire/accp/profile"
	"github.com/fivewire/fivewire/internal/wsconn"
)

// A body that does not arrive does not hold the connection, even if no handler reads it.
func TestSlowBodies(t *testing.T) {
	d := newDesk(t, &accp.ServerOptions{Timing: accp.Timing{ReadTimeout: 300 * time.Millisecond}})
	addr := strings.TrimPrefix(d.ts.URL, "http://")
	var conns []net.Conn
	for _, start := range []string{
		"POST /accp/v1/frames HTTP/1.1\r\nContent-Type: application/accp\r\nContent-Length: 1000",
		"POST /accp/v1/frames HTTP/1.1\r\nContent-Type: application/accp\r\nTransfer-Encoding: chunked",
		"POST /accp/v1/frames HTTP/1.1\r\nContent-Type: text/plain\r\nContent-Length: 1000",
		"PUT /accp/v1/frames HTTP/1.1\r\nContent-Type: application/accp\r\nContent-Length: 1000",
		"POST /elsewhere HTTP/1.1\r\nContent-Length: 1000",
		"POST /accp/v1/ws HTTP/1.1\r\nContent-Length: 1000",
	} {
		c, err := net.Dial("tcp", addr)
		require.NoError(t, err)
		defer c.Close()
		_, err = fmt.Fprintf(c, "%s\r\nHost: localhost\r\n\r\n@a>req", start)
		require.NoError(t, err)
		require.NoError(t, c.SetReadDeadline(time.Now().Add(5*time.Second)))
		conns = append(conns, c)
	}
	for i, c := range conns {
		_, err := io.Copy(io.Discard, c)
		require.False(t, os.IsTimeout(err), "connection %d is kept", i)
	}
	// A handler may take longer than a body.
	d.Handle("req", "long", accp.HandlerFunc(func(ctx context.Context, w *accp.ReplyWriter, m *accp.Message) error {
		select {
		case <-time.After(600 * time.Millisecond):
			return w.SendResult(nil)
		case <-ctx.Done():
			return ctx.Err()
		}
	}))

	m, err := d.http(t, nil).Call(t.Context(), msg("req", "long"), nil)
	require.NoError(t, err)
	require.Equal(t, accp.IntentDone, m.Intent)
}

// A stalled reader of a stream is disconnected, over both bindings, and the handler receives an
// error.
func TestPeersThatDoNotRead(t *testing.T) {
	sendErr := make(chan error, 1)
	d := newDesk(t, &accp.ServerOptions{Timing: accp.Timing{WriteTimeout: 200 * time.Millisecond}, Session: accp.SessionOptions{Budget: accp.BudgetOff}})
	d.Handle("req", "flood", accp.HandlerFunc(func(ctx context.Context, w *accp.ReplyWriter, m *accp.Message) error {
		for i := int64(0); ; i++ {
			if err := w.Send(chunk(m.Op, i, 1<<40, accp.String(strings.Repeat("x", 60000)))); err != nil {
				sendErr <- err
				return err
			}
		}
	}))

	addr := strings.TrimPrefix(d.ts.URL, "http://")
	f := string(frame("req:flood{}", 1))
	c, err := net.Dial("tcp", addr)
	require.NoError(t, err)
	defer c.Close()
	require.NoError(t, c.(*net.TCPConn).SetReadBuffer(64<<10)) // less to fill
	_, err = fmt.Fprintf(c, "POST /accp/v1/frames HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/accp\r\nContent-Length: %d\r\n\r\n%s", len(f), f)
	require.NoError(t, err)
	require.Error(t, <-sendErr)

	ws, _, err := websocket.Dial(t.Context(), "ws://"+addr+accp.WebSocketPath, &websocket.DialOptions{HTTPClient: d.client})
	require.NoError(t, err)
	defer func() { _ = ws.CloseNow() }()
	r := accp.NewRegistry()
	require.NoError(t, ws.Write(t.Context(), websocket.MessageText, frame("sync:registry{hash:"+r.Hash()[:12]+"|v:1}", 1)))
	// Its answer has number 2.
	require.NoError(t, ws.Write(t.Context(), websocket.MessageText, frame("req:flood{}", 3)))
	require.Error(t, <-sendErr)
}

// A peer that reads slowly gets a long answer whole, since WriteTimeout bounds the time without progress.
func TestPeerThatReadsSlowly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, err := accp.NewServer("server", &accp.ServerOptions{Auth: accp.Auth{AllowAnonymous: true}})
		require.NoError(t, err)
		s.Handle("req", "long", accp.HandlerFunc(func(_ context.Context, w *accp.ReplyWriter, _ *accp.Message) error {
			return w.SendResult(accp.Params{text("data", strings.Repeat("x", 2<<20))})
		}))
		p := newPipe()
		stop := p.serve(s)
		c, there := net.Pipe()
		p.conns <- there
		f := frame("req:long{}", 1)
		_, err = fmt.Fprintf(c, "POST /accp/v1/frames HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/accp\r\nContent-Length: %d\r\n\r\n%s", len(f), f)
		require.NoError(t, err)
		n, buf := 0, make([]byte, 32<<10)
		for err = error(nil); err == nil; {
			var read int
			read, err = io.ReadFull(c, buf)
			n += read
			time.Sleep(time.Second)
		}
		require.Greater(t, n, 2<<20)
		require.NoError(t, s.Close())
		stop()
	})
}

// Two ends that both send much more than they read get through, as long as they
// read at all.
func TestMutualFlood(t *testing.T) {
	d := newDesk(t, nil)
	var got sync.WaitGroup
	h := accp.HandlerFunc(func(context.Context, *accp.ReplyWriter, *accp.Message) error { return nil })
	d.Handle("req", "flood", accp.HandlerFunc(func(ctx context.Context, w *accp.ReplyWriter, m *accp.Message) error {
		for range 300 {
			if err := w.Send(msg("wait", "flood", text("note", strings.Repeat("y", 200)))); err != nil {
				return err
			}
		}
		return w.SendResult(nil)
	}))

	c := d.dial(t, &accp.ClientOptions{Handler: h})
	for range 4 {
		got.Go(func() {
			n := 0
			for m, err := range c.Replies(t.Context(), msg("req", "flood"), nil) {
				if err != nil {
					t.Error(err)
					return
				}
				n++
				_ = m
			}
			if n != 301 {
				t.Errorf("%d messages", n)
			}
		})
		got.Go(func() {
			for range 300 {
				if _, err := c.Send(t.Context(), msg("done", "note", text("note", strings.Repeat("x", 200)))); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	got.Wait()
}

// An answer of a hostile server is an error for its client, in time and with bounded memory.
func TestHostileAnswers(t *testing.T) {
	var mu sync.Mutex
	var script func(w http.ResponseWriter, r *http.Request, seq int64) // guarded by mu
	set := func(f func(w http.ResponseWriter, r *http.Request, seq int64)) {
		mu.Lock()
		defer mu.Unlock()
		script = f
	}
	ts := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		var c accp.Codec
		m, err := c.DecodeRaw(body)
		if err != nil {
			w.WriteHeader(http.StatusTeapot)
			return
		}
		w.Header().Set("Content-Type", accp.MediaType)
		if m.Intent == accp.IntentSync {
			fmt.Fprintf(w, "@a>sync:registry{hash:%s|v:1}[mid:00000000aaaa,seq:%d,ts:0]", accp.NewRegistry().Hash()[:12], m.Meta.Seq.N+1)
			return
		}
		mu.Lock()
		answer := script
		mu.Unlock()
		answer(w, r, m.Meta.Seq.N+1)
	}))
	defer ts.Close()
	hc := &http.Client{Transport: &http.Transport{}, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	defer hc.CloseIdleConnections()
	call := func(sid string, late bool) error {
		timeout := 30 * time.Second
		if late {
			timeout = 300 * time.Millisecond
		}
		c, err := accp.NewClient(ts.URL, "client", &accp.ClientOptions{HTTPClient: hc, SessionID: sid, Timing: accp.ClientTiming{Timeout: timeout}, Retry: &accp.RetryPolicy{MaxAttempts: -1}})
		require.NoError(t, err)
		_, err = c.Call(t.Context(), msg("req", "x"), nil)
		return err
	}
	put := func(s string) func(http.ResponseWriter, *http.Request, int64) {
		return func(w http.ResponseWriter, _ *http.Request, seq int64) {
			_, _ = io.WriteString(w, strings.ReplaceAll(s, "SEQ", fmt.Sprint(seq)))
		}
	}
	meta := fmt.Sprintf("[mid:0000000000ff,seq:SEQ,ts:%d", time.Now().Unix())
	tests := []struct {
		name   string
		answer func(http.ResponseWriter, *http.Request, int64)
		want   error // nil: *accp.CallError
	}{
		{"junk", put("junk"), accp.ErrParse},
		{"bad frame", put("@a>b:c{k}[" + meta), accp.ErrParse},
		{"no envelope", put("@a>done:x{}"), accp.ErrParse},
		{"other session", put("@a>done:x{}" + meta + ",sid:other]"), accp.ErrPolicyDenied},
		{"cut off", put("@a>done:x{k:"), accp.ErrTimeout},
		{"too long", put("@a>done:x{k:" + strings.Repeat("a", 70000) + "}" + meta + "]"), accp.ErrParse},
		{"error frame under 200", put("@a>fail:error{code:E5001|schema:ER}" + meta + "]"), accp.ErrPolicyDenied},
		{"no answer", func(_ http.ResponseWriter, r *http.Request, _ int64) { <-r.Context().Done() }, accp.ErrTimeout},
		{"blank lines for ever", func(w http.ResponseWriter, r *http.Request, _ int64) {
			for r.Context().Err() == nil {
				_, _ = io.WriteString(w, "\n\n\n\n")
				_ = http.NewResponseController(w).Flush()
			}
		}, accp.ErrTimeout},
		{"stalls in the frame", func(w http.ResponseWriter, r *http.Request, _ int64) {
			_, _ = io.WriteString(w, "@a>done:x{k:")
			_ = http.NewResponseController(w).Flush()
			<-r.Context().Done()
		}, accp.ErrTimeout},
		{"stalls after an ack", func(w http.ResponseWriter, r *http.Request, seq int64) {
			put("@a>ack:x{}"+meta+"]\n")(w, r, seq)
			_ = http.NewResponseController(w).Flush()
			<-r.Context().Done()
		}, accp.ErrTimeout},
		{"breaks off", func(http.ResponseWriter, *http.Request, int64) { panic(http.ErrAbortHandler) }, accp.ErrTimeout},
		{"busy", func(w http.ResponseWriter, _ *http.Request, _ int64) {
			w.Header().Set("Content-Type", "text/html")
			w.WriteHeader(http.StatusServiceUnavailable)
		}, accp.ErrUnreachable},
		{"no such path", func(w http.ResponseWriter, _ *http.Request, _ int64) { w.WriteHeader(http.StatusNotFound) }, nil},
		{"a page", func(w http.ResponseWriter, _ *http.Request, _ int64) {
			w.Header().Set("Content-Type", "text/html")
			_, _ = io.WriteString(w, "<p>")
		}, nil},
		{"redirect", func(w http.ResponseWriter, r *http.Request, _ int64) {
			w.Header().Set("Content-Type", "text/html")
			http.Redirect(w, r, "/", http.StatusTemporaryRedirect)
		}, nil},
	}
	for i, tt := range tests {
		set(tt.answer)
		err := call(fmt.Sprint("s", i), tt.want == error(accp.ErrTimeout))
		require.Error(t, err, tt.name)
		if tt.want != nil {
			require.ErrorIs(t, err, tt.want, tt.name)
		} else {
			var e *accp.CallError
			require.ErrorAs(t, err, &e, tt.name)
		}
	}
	// A message of another chain answers no call and is not yielded.
	set(put("@a>done:x{k:1}" + meta + ",cid:foreign]"))
	c, err := accp.NewClient(ts.URL, "client", &accp.ClientOptions{HTTPClient: hc})
	require.NoError(t, err)
	m, err := c.Call(t.Context(), msg("req", "x"), nil)
	require.NoError(t, err)
	require.Nil(t, m)
	// The peer cancels the chain.
	set(put("@a>cancel:x{}" + meta + ",cid:c1]"))
	q := msg("req", "x")
	q.Meta = &accp.Meta{CID: "c1"}
	c, err = accp.NewClient(ts.URL, "client", &accp.ClientOptions{HTTPClient: hc})
	require.NoError(t, err)
	_, err = c.Call(t.Context(), q, nil)
	require.ErrorIs(t, err, accp.ErrCancelled)
}

// answerGreeting reads the greeting of a client and answers it.
func answerGreeting(ws *websocket.Conn) {
	_, _, _ = ws.Read(context.Background())
	_ = ws.Write(context.Background(), websocket.MessageText,
		[]byte("@server>sync:registry{hash:"+accp.NewRegistry().Hash()[:12]+"|v:1}[mid:00000000aaaa,seq:2,ts:0]"))
}

// pipe is a network inside a synctest bubble.
type pipe struct {
	conns chan net.Conn
	done  chan struct{}
	once  sync.Once
}

func newPipe() *pipe { return &pipe{conns: make(chan net.Conn), done: make(chan struct{})} }

func (p *pipe) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.done:
		return nil, net.ErrClosed
	}
}

func (p *pipe) Close() error {
	p.once.Do(func() { close(p.done) })
	return nil
}

func (p *pipe) Addr() net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 80} }

func (p *pipe) client() *http.Client {
	return &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		here, there := net.Pipe()
		select {
		case p.conns <- there:
			return here, nil
		case <-p.done:
			return nil, net.ErrClosed
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}}}
}

// serve runs a handler on the pipe until the function it returns is called.
func (p *pipe) serve(h http.Handler) (stop func()) {
	hs := &http.Server{Handler: h}
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = hs.Serve(p)
	}()
	return func() {
		_ = hs.Close()
		<-served
	}
}

// Both sides keep an idle connection alive by pings (ACCP-159, ACCP-D50, ACCP-D56),
// and give up a silent one.
func TestHeartbeat(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPipe()
		s, err := accp.NewServer("server", &accp.ServerOptions{Auth: accp.Auth{AllowAnonymous: true}})
		require.NoError(t, err)
		stop := p.serve(s)
		c, err := accp.Dial(t.Context(), "ws://localhost"+accp.WebSocketPath, "client", &accp.ClientOptions{HTTPClient: p.client()})
		require.NoError(t, err)
		time.Sleep(time.Hour)
		synctest.Wait()
		select {
		case <-c.Done():
			t.Fatal(c.Err())
		default:
		}
		st := c.Session().Stats()
		require.InDelta(t, 240, st.Received, 6, "pings and pongs, each way")
		b, err := c.Session().Budget(t.Context())
		require.NoError(t, err)
		require.Less(t, b.Hot.Used, 200, "only the hellos")
		require.NoError(t, c.Err())
		require.NoError(t, c.Close())
		require.NoError(t, c.Close())
		require.NoError(t, c.Err(), "the own end is no error")
		_, err = c.Call(t.Context(), msg("req", "x"), nil)
		require.Error(t, err)
		require.NoError(t, s.Shutdown(t.Context()))
		stop()
	})
	synctest.Test(t, func(t *testing.T) { // a silent server
		p := newPipe()
		stop := p.serve(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			ws, err := websocket.Accept(w, r, nil)
			if err != nil {
				return
			}
			answerGreeting(ws)
			for err == nil {
				_, _, err = ws.Read(context.Background())
			}
		}))
		c, err := accp.Dial(t.Context(), "ws://localhost/", "client", &accp.ClientOptions{HTTPClient: p.client()})
		require.NoError(t, err)
		start := time.Now()
		_, err = c.Call(t.Context(), msg("req", "x"), nil)
		require.Error(t, err)
		<-c.Done()
		require.ErrorContains(t, c.Err(), "silent")
		require.LessOrEqual(t, time.Since(start), 3*time.Minute)
		require.NoError(t, c.Close())
		stop()
	})
}

// A call that waits for room in the queue of a connection continues over the next one (ACCP-D75).
func TestCallsOutliveFullConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, err := accp.NewServer("server", &accp.ServerOptions{Auth: accp.Auth{AllowAnonymous: true}, Logger: slog.New(slog.DiscardHandler)})
		require.NoError(t, err)
		s.Handle(accp.IntentReq, "work", accp.HandlerFunc(func(context.Context, *accp.ReplyWriter, *accp.Message) error { return nil }))
		p, cut, isFirst := newPipe(), make(chan struct{}), atomic.Bool{}
		isFirst.Store(true)
		stop := p.serve(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if !isFirst.Swap(false) {
				s.ServeHTTP(w, r)
			} else if ws, err := websocket.Accept(w, r, nil); err == nil {
				answerGreeting(ws)
				<-cut
				_ = ws.CloseNow()
			}
		}))
		c, err := accp.NewClient("ws://localhost"+accp.WebSocketPath, "client", &accp.ClientOptions{HTTPClient: p.client(),
			Session: accp.SessionOptions{Budget: accp.BudgetOff}, Logger: slog.New(slog.DiscardHandler)})
		require.NoError(t, err)
		calls := make(chan error, 20)
		for range cap(calls) {
			go func() {
				_, err := c.Call(t.Context(), msg("req", "work", text("text", strings.Repeat("x", 60_000))), nil)
				calls <- err
			}()
		}
		synctest.Wait()
		close(cut)
		for range cap(calls) {
			assert.NoError(t, <-calls)
		}
		require.NoError(t, c.Close())
		require.NoError(t, s.Close())
		stop()
	})
}

// A call whose frame waits for room in the queue of a connection ends with its context. The frame is sent later, because a
// gap in the numbers is an error, and the chain is canceled.
func TestCallsEndDespiteFullConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, read := newPipe(), make(chan struct{})
		var received [][]byte
		stop := p.serve(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			ws, err := websocket.Accept(w, r, nil)
			if err != nil {
				return
			}
			answerGreeting(ws)
			ws.SetReadLimit(-1)
			<-read
			for {
				_, frame, err := ws.Read(context.Background())
				if err != nil {
					return
				}
				received = append(received, frame)
			}
		}))
		c, err := accp.NewClient("ws://localhost"+accp.WebSocketPath, "client", &accp.ClientOptions{HTTPClient: p.client(),
			Session: accp.SessionOptions{Budget: accp.BudgetOff}, Logger: slog.New(slog.DiscardHandler)})
		require.NoError(t, err)
		calls := make(chan error, 20)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		start := time.Now()
		for range cap(calls) {
			go func() {
				_, err := c.Call(ctx, msg("req", "work", text("text", strings.Repeat("x", 60_000))), nil)
				calls <- err
			}()
		}
		sent := 0
		for range cap(calls) {
			var e *accp.CallError
			err := <-calls
			assert.ErrorIs(t, err, context.DeadlineExceeded)
			if errors.As(err, &e) && e.MayHaveRun {
				sent++
			}
		}
		assert.Less(t, time.Since(start), 2*time.Second)
		close(read)
		time.Sleep(time.Second)
		require.NoError(t, c.Close())
		stop()
		requests, cancels := 0, 0
		for _, frame := range received {
			switch {
			case bytes.Contains(frame, []byte(">req:")):
				requests++
			case bytes.Contains(frame, []byte(">cancel:")):
				cancels++
			}
		}
		require.Equal(t, sent, requests)
		require.Equal(t, sent, cancels)
	})
}

// A call whose connection is lost while it gives the peer a schema continues over the next one (ACCP-D75).
func TestRepairOutlivesConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, err := accp.NewServer("server", &accp.ServerOptions{Auth: accp.Auth{AllowAnonymous: true}, Logger: slog.New(slog.DiscardHandler)})
		require.NoError(t, err)
		s.Handle(accp.IntentReq, "work", accp.HandlerFunc(func(context.Context, *accp.ReplyWriter, *accp.Message) error { return nil }))
		p, isFirst := newPipe(), atomic.Bool{}
		isFirst.Store(true)
		stop := p.serve(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if !isFirst.Swap(false) {
				s.ServeHTTP(w, r)
			} else if ws, err := websocket.Accept(w, r, nil); err == nil {
				answerGreeting(ws)
				_, _, _ = ws.Read(context.Background()) // the request
				_ = ws.Write(context.Background(), websocket.MessageText,
					[]byte("@server>fail:error{code:E1003|msg:unknown_schema|retry:false|schema:ER}[mid:00000000aaab,seq:4,ts:0,cid:c1]"))
				_, _, _ = ws.Read(context.Background()) // the second greeting
				_ = ws.CloseNow()
			}
		}))
		c, err := accp.NewClient("ws://localhost"+accp.WebSocketPath, "client", &accp.ClientOptions{HTTPClient: p.client(),
			Logger: slog.New(slog.DiscardHandler)})
		require.NoError(t, err)
		m := msg("req", "work")
		m.Meta = &accp.Meta{CID: "c1"}
		_, err = c.Call(t.Context(), m, nil)
		require.NoError(t, err)
		require.NoError(t, c.Close())
		require.NoError(t, s.Close())
		stop()
	})
}

// Frames of a hostile server on a connection end calls with an error.
func TestHostileConnections(t *testing.T) {
	run := func(name string, talk func(ctx context.Context, ws *websocket.Conn), check func(c *accp.Client, err error)) {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := newPipe()
				stop := p.serve(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					ws, err := websocket.Accept(w, r, nil)
					if err == nil {
						answerGreeting(ws)
						_, _, _ = ws.Read(context.Background()) // the request
						talk(context.Background(), ws)
						_ = ws.CloseNow()
					}
				}))
				c, err := accp.Dial(t.Context(), "ws://localhost/", "client", &accp.ClientOptions{HTTPClient: p.client(), Retry: &accp.RetryPolicy{MaxAttempts: -1}})
				require.NoError(t, err)
				q := msg("req", "x")
				q.Meta = &accp.Meta{CID: "c1"}
				_, err = c.Call(t.Context(), q, nil)
				check(c, err)
				require.NoError(t, c.Close())
				stop()
			})
		})
	}
	lost := func(c *accp.Client, err error) {
		require.ErrorIs(t, err, accp.ErrUnreachable)
		<-c.Done()
		require.Error(t, c.Err())
	}
	run("closes", func(ctx context.Context, ws *websocket.Conn) { _ = ws.Close(websocket.StatusPolicyViolation, "no") },
		func(c *accp.Client, err error) {
			lost(c, err)
			require.Equal(t, wsconn.CodeNotAllowed, accp.CloseCode(c.Err()))
		})
	run("vanishes", func(context.Context, *websocket.Conn) {}, lost)
	run("binary", func(ctx context.Context, ws *websocket.Conn) {
		_ = ws.Write(ctx, websocket.MessageBinary, []byte("x"))
		_, _, _ = ws.Read(ctx)
	}, lost)
	run("oversize", func(ctx context.Context, ws *websocket.Conn) {
		_ = ws.Write(ctx, websocket.MessageText, make([]byte, 1<<20))
	}, lost)
	write := func(ctx context.Context, ws *websocket.Conn, body string, seq int64) {
		f := fmt.Sprintf("@a>%s[mid:%012x,seq:%d,ts:%d,cid:c1]", body, seq, seq, time.Now().Unix())
		_ = ws.Write(ctx, websocket.MessageText, []byte(f))
	}
	run("junk, then an answer", func(ctx context.Context, ws *websocket.Conn) {
		_ = ws.Write(ctx, websocket.MessageText, []byte("junk"))
		_, _, _ = ws.Read(ctx) // refused
		write(ctx, ws, "done:x{}", 3)
		_, _, _ = ws.Read(ctx)
	}, func(c *accp.Client, err error) { require.NoError(t, err) })
	run("cancels", func(ctx context.Context, ws *websocket.Conn) {
		write(ctx, ws, "cancel:x{}", 3)
		_, _, _ = ws.Read(ctx)
	}, func(c *accp.Client, err error) { require.ErrorIs(t, err, accp.ErrCancelled) })
	run("fails", func(ctx context.Context, ws *websocket.Conn) {
		write(ctx, ws, "fail:error{code:E2003|schema:ER}", 3)
		_, _, _ = ws.Read(ctx)
	}, func(c *accp.Client, err error) { require.ErrorIs(t, err, accp.ErrBudgetExceeded) })
}

// A server that sends the client from one address to the next is not followed (ACCP-D79).
func TestClientFollowsNoRedirect(t *testing.T) {
	follow := func(*http.Request, []*http.Request) error { return nil }
	for _, scheme := range []string{"http", "ws"} {
		for _, user := range []*http.Client{nil, {CheckRedirect: follow}, {CheckRedirect: follow, Timeout: time.Minute}} {
			n := atomic.Int32{}
			var ts *httptest.Server
			ts = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				n.Add(1)
				http.Redirect(w, r, ts.URL, http.StatusTemporaryRedirect)
			}))
			c, err := accp.NewClient(scheme+strings.TrimPrefix(ts.URL, "http"), "a", &accp.ClientOptions{HTTPClient: user})
			require.NoError(t, err)
			_, err = c.Call(t.Context(), msg("req", "x"), nil)
			var status *accp.CallError
			require.ErrorAs(t, err, &status)
			require.Equal(t, http.StatusTemporaryRedirect, status.Status)
			require.False(t, status.MayHaveRun)
			require.EqualValues(t, 1, n.Load(), scheme)
			require.NoError(t, c.Close())
			ts.Close()
		}
	}
	http.DefaultTransport.(*http.Transport).CloseIdleConnections()
}

// A page of another origin in a browser reaches no handler, unless its origin is named (ACCP-D79).
func TestServerRefusesForeignOrigins(t *testing.T) {
	const page = "https://page.example"
	for _, allowed := range [][]string{nil, {page}} {
		d := newDesk(t, &accp.ServerOptions{AllowedOrigins: allowed})
		isAllowed := allowed != nil
		for _, origin := range []string{page, "https://other.example", "null"} {
			r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, d.ts.URL+accp.FramesPath, strings.NewReader(string(frame("req:echo{}", 1))))
			require.NoError(t, err)
			r.Header.Set("Content-Type", accp.MediaType)
			r.Header.Set("Origin", origin)
			res, err := d.client.Do(r)
			require.NoError(t, err)
			require.NoError(t, res.Body.Close())
			want := http.StatusForbidden
			if isAllowed && origin == page {
				want = http.StatusOK
			}
			require.Equal(t, want, res.StatusCode, "%s, allowed %v", origin, allowed)

			ws, res, err := websocket.Dial(t.Context(), "ws"+strings.TrimPrefix(d.ts.URL, "http")+accp.WebSocketPath,
				&websocket.DialOptions{HTTPHeader: http.Header{"Origin": {origin}}})
			if want == http.StatusOK {
				require.NoError(t, err)
				require.NoError(t, ws.CloseNow())
				continue
			}
			require.Error(t, err)
			require.Equal(t, http.StatusForbidden, res.StatusCode, origin)
		}
		_, err := d.http(t, nil).Call(t.Context(), msg("req", "echo"), nil)
		require.NoError(t, err, "a caller that is no browser")
	}
}

// The call of a slow reader fails, and the connection continues.
func TestSlowReaderOfACall(t *testing.T) {
	d := newDesk(t, nil)
	c := d.dial(t, nil)
	n := 0
	var last error
	for _, err := range c.Replies(t.Context(), msg("req", "count", accp.Param{Key: "n", Value: accp.Int(20000)}), nil) {
		if err != nil {
			last = err
			break
		}
		if n == 0 {
			until(func() bool { return c.Session().Stats().Received > 5000 })
		}
		n++
	}
	require.ErrorIs(t, last, accp.ErrSlowReader)
	var failed *accp.CallError
	require.ErrorAs(t, last, &failed)
	require.True(t, failed.MayHaveRun)
	require.Greater(t, n, 4000)
	_, err := c.Call(t.Context(), msg("req", "echo"), nil)
	require.NoError(t, err)
}

// Two calls of one chain at a time would take each other's answers.
func TestOneCallOfAChain(t *testing.T) {
	d := newDesk(t, nil)
	c := d.dial(t, nil)
	q := msg("req", "slow")
	q.Meta = &accp.Meta{CID: "c1"}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() {
		_, err := c.Call(ctx, q, nil)
		done <- err
	}()
	<-d.began
	_, err := c.Call(t.Context(), q, nil)
	require.ErrorContains(t, err, "another call")
	cancel()
	require.ErrorIs(t, <-done, context.Canceled)
	_, err = c.Call(t.Context(), msg("req", "echo"), nil)
	require.NoError(t, err, "no number is missing")
}

// Close waits for running handlers, refuses new work, and cancels handlers after its deadline.
func TestClose(t *testing.T) {
	release := make(chan struct{})
	d := newDesk(t, nil)
	running := make(chan struct{}, 2)
	d.Handle("req", "wait", accp.HandlerFunc(func(ctx context.Context, w *accp.ReplyWriter, m *accp.Message) error {
		running <- struct{}{}
		<-release
		return w.SendResult(nil)
	}))

	h, c := d.http(t, &accp.ClientOptions{Retry: &accp.RetryPolicy{MaxAttempts: -1}}), d.dial(t, nil)
	got := make(chan error, 2)
	for _, x := range []caller{h, c} {
		go func() {
			_, err := x.Call(t.Context(), msg("req", "wait"), nil)
			got <- err
		}()
	}
	<-running
	<-running
	closed := make(chan error)
	go func() { closed <- d.Shutdown(t.Context()) }()
	until(func() bool {
		_, err := d.http(t, &accp.ClientOptions{Retry: &accp.RetryPolicy{MaxAttempts: -1}}).Call(t.Context(), msg("req", "echo"), nil)
		return err != nil
	})
	close(release)
	require.NoError(t, <-got)
	require.NoError(t, <-got)
	require.NoError(t, <-closed)
	<-c.Done()
	require.Equal(t, wsconn.CodeShutdown, accp.CloseCode(c.Err()))
	_, err := accp.Dial(t.Context(), "ws"+strings.TrimPrefix(d.ts.URL, "http")+accp.WebSocketPath, "x", &accp.ClientOptions{HTTPClient: d.client})
	require.ErrorIs(t, err, accp.ErrUnreachable)

	d = newDesk(t, nil)
	for _, x := range []caller{d.http(t, &accp.ClientOptions{Retry: &accp.RetryPolicy{MaxAttempts: -1}}), d.dial(t, &accp.ClientOptions{Retry: &accp.RetryPolicy{MaxAttempts: -1}})} {
		go func() {
			_, err := x.Call(t.Context(), msg("req", "slow"), nil)
			got <- err
		}()
	}
	<-d.began
	<-d.began
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	require.ErrorIs(t, d.Shutdown(ctx), context.DeadlineExceeded)
	require.Error(t, <-got)
	require.Error(t, <-got)
}

// A ReplyWriter is invalid after its handler has returned.
func TestReplyAfterReturn(t *testing.T) {
	kept := make(chan *accp.ReplyWriter, 1)
	d := newDesk(t, nil)
	d.Handle("req", "keep", accp.HandlerFunc(func(_ context.Context, w *accp.ReplyWriter, m *accp.Message) error {
		kept <- w
		require.Equal(t, m, w.ReceiveResult().Message)
		require.NotNil(t, w.Session())
		return nil
	}))

	m, err := d.http(t, nil).Call(t.Context(), msg("req", "keep"), nil)
	require.NoError(t, err)
	require.Equal(t, accp.IntentDone, m.Intent)
	require.Error(t, (<-kept).SendResult(nil))
}

// Sessions are bounded, those in use stay, and a sid is a name and no secret
// (ACCP-D55).
func TestServerSessions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, err := accp.NewServer("server", &accp.ServerOptions{Auth: accp.Auth{
			Authenticator: accp.AuthenticatorFunc(func(r *http.Request) (*accp.Principal, error) {
				return &accp.Principal{ID: r.Header.Get("User")}, nil
			}),
			Authorizer: accp.AuthorizerFunc(func(ctx context.Context, m *accp.Message) error {
				if p := accp.PrincipalFromContext(ctx); m.Meta.SID != "" && m.Meta.SID != p.ID && p.ID != "admin" {
					return errors.New("not yours")
				}
				return nil
			})}, Limits: accp.Limits{MaxItems: 2, MaxItemsPerPrincipal: -1}, Timing: accp.Timing{SessionIdleTimeout: time.Minute}})
		require.NoError(t, err)
		n := map[string]int64{}
		post := func(user, sid string) string {
			n[sid]++
			f := frame("ack:x{}", n[sid], "sid:"+sid)
			r := httptest.NewRequest(http.MethodPost, accp.FramesPath, strings.NewReader(string(f)))
			r.Header.Set("Content-Type", "Application/ACCP; charset=utf-8")
			r.Header.Set("User", user)
			w := httptest.NewRecorder()
			s.ServeHTTP(w, r)
			return fmt.Sprint(w.Code, " ", w.Body)
		}
		require.Equal(t, "204 ", post("a", "a"))
		require.Contains(t, post("a", "b"), "code:E5001")
		require.Equal(t, "204 ", post("b", "b"))
		require.Equal(t, "204 ", post("c", "c"), "a was idle for longest")
		_, ok := s.Session("a")
		require.False(t, ok)
		_, ok = s.Session("b")
		require.True(t, ok)
		time.Sleep(61 * time.Second)
		require.Equal(t, "204 ", post("c", "c"))
		_, ok = s.Session("b")
		require.False(t, ok, "b was idle for too long")
		r := httptest.NewRequest(http.MethodPost, accp.FramesPath, strings.NewReader(string(frame("req:x{}", 41))))
		r.Header.Set("Content-Type", accp.MediaType)
		r.Header.Set("User", "admin")
		w := httptest.NewRecorder()
		s.ServeHTTP(w, r)
		require.Contains(t, w.Body.String(), "seq:42", "a request without sid is a session of its own")
		require.NotContains(t, w.Body.String(), "sid:")
		require.NoError(t, s.Shutdown(t.Context()))
	})
	synctest.Test(t, func(t *testing.T) { // a connection keeps its session
		s, err := accp.NewServer("server", &accp.ServerOptions{Auth: accp.Auth{AllowAnonymous: true}, Limits: accp.Limits{MaxItems: 1, MaxItemsPerPrincipal: -1}, Timing: accp.Timing{SessionIdleTimeout: time.Minute}})
		require.NoError(t, err)
		p := newPipe()
		stop := p.serve(s)
		c, err := accp.Dial(t.Context(), "ws://localhost"+accp.WebSocketPath, "client", &accp.ClientOptions{HTTPClient: p.client(), SessionID: "w"})
		require.NoError(t, err)
		time.Sleep(time.Hour)
		h, err := accp.NewClient("http://localhost"+accp.FramesPath, "client", &accp.ClientOptions{HTTPClient: p.client(), Retry: &accp.RetryPolicy{MaxAttempts: -1}})
		require.NoError(t, err)
		_, err = h.Call(t.Context(), msg("ping", "heartbeat"), nil)
		require.ErrorIs(t, err, accp.ErrUnreachable, "there is no room")
		require.NoError(t, c.Close())
		time.Sleep(2 * time.Minute)
		_, err = h.Call(t.Context(), msg("ping", "heartbeat"), nil)
		require.NoError(t, err)
		require.NoError(t, s.Shutdown(t.Context()))
		stop()
	})
}

// The rules of HTTP come before any frame (ACCP-153, ACCP-154, ACCP-155, ACCP-167,
// ACCP-D53): nothing answers them but a status.
func TestHTTPRules(t *testing.T) {
	d := newDesk(t, nil)
	do := func(method, path, typ, body string) *http.Response {
		r, err := http.NewRequestWithContext(t.Context(), method, d.ts.URL+path, strings.NewReader(body))
		require.NoError(t, err)
		r.Header.Set("Content-Type", typ)
		res, err := d.client.Do(r)
		require.NoError(t, err)
		t.Cleanup(func() { res.Body.Close() })
		return res
	}
	ok := string(frame("req:echo{}", 1))
	require.Equal(t, 404, do("POST", "/accp/v1/frame", accp.MediaType, ok).StatusCode)
	res := do("GET", accp.FramesPath, accp.MediaType, "")
	require.Equal(t, 405, res.StatusCode)
	require.Equal(t, "POST", res.Header.Get("Allow"))
	for _, typ := range []string{"", "text/plain", "application/accp+json", "application/json"} {
		require.Equal(t, 415, do("POST", accp.FramesPath, typ, ok).StatusCode, typ)
	}
	for _, n := range []int{65537, 65539, 1 << 20} {
		require.Equal(t, 413, do("POST", accp.FramesPath, accp.MediaType, strings.Repeat("a", n)).StatusCode)
	}
	require.Equal(t, 413, do("POST", accp.FramesPath, accp.MediaType, strings.Repeat("a", 65537)+"\n").StatusCode)
	for _, end := range []string{"", "\n", "\r\n"} {
		res = do("POST", accp.FramesPath, accp.MediaType, strings.Replace(ok, "req", "ping", 1)+end)
		require.Equal(t, 200, res.StatusCode)
		require.Equal(t, accp.MediaType, res.Header.Get("Content-Type"))
		line, err := bufio.NewReader(res.Body).ReadString('\n')
		require.NoError(t, err)
		require.Contains(t, line, "@server>pong:echo{}[")
	}
	res = do("POST", accp.FramesPath, accp.MediaType, ok+"\n\n")
	require.Equal(t, 400, res.StatusCode)
	require.Equal(t, accp.MediaType, res.Header.Get("Content-Type"))
	body, err := io.ReadAll(res.Body)
	require.NoError(t, err)
	require.Contains(t, string(body), "fail:error{code:E1001|msg:parse_error|retry:false|schema:ER}")
}

// Middleware sees every message that is handled, the first outermost.
func TestMiddleware(t *testing.T) {
	var mu sync.Mutex
	var seen []string
	note := func(name string) accp.Middleware {
		return func(next accp.Handler) accp.Handler {
			return accp.HandlerFunc(func(ctx context.Context, w *accp.ReplyWriter, m *accp.Message) error {
				mu.Lock()
				seen = append(seen, name+" "+string(m.Intent))
				mu.Unlock()
				return next.ServeACCP(ctx, w, m)
			})
		}
	}
	d := newDesk(t, &accp.ServerOptions{Middleware: []accp.Middleware{note("outer"), note("inner")}})
	_, err := d.http(t, nil).Call(t.Context(), msg("req", "echo"), nil)
	require.NoError(t, err)
	mu.Lock()
	defer mu.Unlock()
	require.Equal(t, []string{"outer req", "inner req"}, seen)
}

// Both sides of a connection may ask. The handler of a client does not answer the query of the shared state
// (ACCP-D46).
func TestServerAsksClient(t *testing.T) {
	h := accp.HandlerFunc(func(_ context.Context, w *accp.ReplyWriter, m *accp.Message) error {
		assert.Equal(t, "confirm", m.Op)
		return w.SendResult(accp.Params{text("answer", "yes")})
	})
	answered := make(chan string, 1)
	d := newDesk(t, nil)
	d.Handle("req", "start", accp.HandlerFunc(func(_ context.Context, w *accp.ReplyWriter, m *accp.Message) error {
		return errors.Join(w.Send(msg("req", "confirm")), w.Send(msg("qry", profile.OpState)))
	}))
	states := make(chan accp.Value, 1)
	d.Handle("sync", profile.OpState, accp.HandlerFunc(func(_ context.Context, _ *accp.ReplyWriter, m *accp.Message) error {
		state, _ := m.Params.Get("state")
		states <- state
		return nil
	}))

	d.Handle("done", "confirm", accp.HandlerFunc(func(_ context.Context, w *accp.ReplyWriter, m *accp.Message) error {
		answered <- m.Params.Text("answer")
		return nil
	}))

	c := d.dial(t, &accp.ClientOptions{Handler: h})
	require.NoError(t, c.Sync(t.Context(), accp.Params{text("phase", "plan")}))
	<-states
	sent, err := c.Send(t.Context(), msg("req", "start"))
	require.NoError(t, err)
	require.Len(t, sent.Frames, 1)
	require.Equal(t, "yes", <-answered)
	got := <-states
	require.Equal(t, "plan", accp.Params(got.Entries()).Text("phase"))
}
