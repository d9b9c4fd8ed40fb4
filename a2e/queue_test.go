// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package a2e_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/a2e"
	"github.com/fivewire/fivewire/a2e/a2etest"
	"github.com/fivewire/fivewire/a2e/catalogue"
	"github.com/fivewire/fivewire/a2e/tools"
)

type streaming struct {
	Streaming bool `json:"streaming,omitzero" jsonmap:"always"`
}

// flooding returns a plugin whose demo/flood/req sends events until it ends.
func flooding() *a2e.Plugin {
	return &a2e.Plugin{Name: "demo", Capability: "demo", Routes: []a2e.Route{
		a2e.NewRoute("demo/flood/req", func(ctx context.Context, call *a2e.Call, _ *streaming) (*streaming, error) {
			for {
				if err := call.Emit(a2e.EventLog, map[string]string{"x": strings.Repeat("x", 10_000)}); err != nil {
					return nil, err
				}
			}
		})}}
}

// A host reads on although the agent reads nothing and its queue is full (A2E-D56).
func TestHostReadsWhileAgentDoesNot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := a2etest.NewHost(t, &a2e.HostOptions{Timing: a2e.Timing{WriteTimeout: time.Hour}}, flooding())
		r := open(t, h)
		r.shake(`"demo"`)
		r.send(message("demo/flood/req", "1", `,"streaming":true`))
		synctest.Wait()
		for i := range 1000 { // more than the pipe holds
			r.send(message("x/y", fmt.Sprint("e", i), `,"pad":"`+strings.Repeat("x", 3000)+`"`))
		}
		for i := range 50 { // answers of the reader fit in its reserve
			r.send(message("demo/none/req", fmt.Sprint("n", i), ""))
		}
		synctest.Wait()
		require.EqualValues(t, 1000, h.Stats().Dropped)
		seen := 0
		for range 1000 {
			if m := r.next(); m.Type == "error" {
				seen++
			}
		}
		require.Equal(t, 50, seen, "all of them are answered")
	})
}

// Refusals for which even the reserve has no space delay no reader and are not lost. An agent that takes more than a
// thousand of them loses the session (A2E-D56).
func TestHostReadsOnWithRefusalsOverReserve(t *testing.T) {
	for _, refused := range []int{1000, 5000} {
		synctest.Test(t, func(t *testing.T) {
			h := a2etest.NewHost(t, &a2e.HostOptions{Timing: a2e.Timing{WriteTimeout: time.Hour}}, flooding())
			r := open(t, h)
			r.shake(`"demo"`)
			r.send(message("demo/flood/req", "1", `,"streaming":true`))
			synctest.Wait()
			for i := range refused {
				r.send(message("demo/none/req", fmt.Sprint("n", i), ""))
			}
			r.send(message("x/y", "e", ""))
			synctest.Wait()
			if refused > 1000 {
				require.Empty(t, h.Sessions())
				return
			}
			require.EqualValues(t, 1, h.Stats().Dropped, "the event behind the requests was read")
			for seen := 0; seen < refused; {
				if m := r.next(); m.Type == "error" {
					seen++
				}
			}
		})
	}
}

// An agent that reads nothing for WriteTimeout loses the session, with the cause.
func TestAgentThatReadsNothingIsCut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := a2etest.NewHost(t, &a2e.HostOptions{Timing: a2e.Timing{WriteTimeout: 5 * time.Second}}, flooding())
		r := open(t, h)
		r.shake(`"demo"`)
		start := time.Now()
		r.send(message("demo/flood/req", "1", `,"streaming":true`))
		<-r.done
		require.Equal(t, 5*time.Second, time.Since(start))
		r.done <- nil
	})
}

// A client reads on although the host reads nothing.
func TestClientReadsWhileHostDoesNot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		agent, host := a2e.Pipe()
		c := a2etest.Must(a2e.NewClient(agent, &a2e.ClientOptions{Timing: a2e.ClientTiming{WriteTimeout: time.Hour}}))
		go func() {
			m := a2etest.Must(a2e.NewCodec().Decode(firstLine(host)))
			_, _ = io.WriteString(host, message("handshake/resp", "h", `,"req_id":"`+m.ID+`","max_parallel":4`)+"\n")
		}()
		_, err := c.Connect(t.Context())
		require.NoError(t, err)
		var pushed atomic.Int64
		c.OnMessage(func(*a2e.Message) { pushed.Add(1) })
		ctx, cancel := context.WithCancel(t.Context())
		var sending sync.WaitGroup
		for range 4 { // fill the pipe and the queue
			sending.Go(func() {
				var members a2e.Members
				_ = members.Set("text", strings.Repeat("x", 60_000))
				for c.Send(ctx, "demo/note/event", members) == nil {
				}
			})
		}
		synctest.Wait()
		for i := range 100 {
			for _, line := range []string{message("ping", fmt.Sprint("p", i), ""), message("x/y", fmt.Sprint("e", i), "")} {
				_, err := io.WriteString(host, line+"\n")
				require.NoError(t, err)
			}
		}
		synctest.Wait()
		require.EqualValues(t, 100, pushed.Load())
		cancel()
		sending.Wait()
		require.NoError(t, c.Close())
	})
}

func firstLine(r io.Reader) []byte {
	var line []byte
	for b := make([]byte, 1); ; line = append(line, b...) {
		if _, err := io.ReadFull(r, b); err != nil || b[0] == '\n' {
			return line
		}
	}
}

// The function of EmitBody runs without a lock, and the events of several goroutines are numbered
// without a gap.
func TestEmitBodyRunsWithoutLock(t *testing.T) {
	h := a2etest.NewHost(t, nil, &a2e.Plugin{Name: "demo", Capability: "demo", Routes: []a2e.Route{a2e.NewRoute("demo/ask/req", func(_ context.Context, call *a2e.Call, r *streaming) (*streaming, error) {
		var all sync.WaitGroup
		for range 8 {
			all.Go(func() {
				for range 20 {
					if err := call.EmitBody("demo/event", func(seq int64) any {
						return &a2e.EventBody{Kind: call.Session.ID(), ReqID: call.Message.ID, Data: json.RawMessage("{}"), Seq: seq}
					}); err != nil {
						t.Error(err)
					}
				}
			})
		}
		all.Wait()
		return r, nil
	})}})
	r := open(t, h)
	r.shake(`"demo"`)
	r.send(message("demo/ask/req", "1", `,"streaming":true`))
	for seq := range int64(160) {
		require.Equal(t, fmt.Sprint(seq), string(r.next().Extra.Get("seq")))
	}
	require.Equal(t, "demo/ask/resp", r.next().Type)
}

// The slot of a call that timed out is free when the host answers the cancellation, or after 5 s;
// at once if the host knows no cancellation (A2E-D38).
func TestSlotOfCanceledCall(t *testing.T) {
	for name, c := range map[string]struct {
		features string
		answer   time.Duration // of the cancellation
		want     time.Duration
	}{
		"answered":   {`,"features":["cancel"]`, 2 * time.Second, 2 * time.Second},
		"unanswered": {`,"features":["cancel"]`, 0, 5 * time.Second},
		"unknown":    {"", 0, 0},
	} {
		synctest.Test(t, func(t *testing.T) {
			agent, host := a2e.Pipe()
			client := a2etest.Must(a2e.NewClient(agent, &a2e.ClientOptions{Types: catalogue.Types()}))
			second := make(chan time.Time, 1)
			go func() {
				codec := a2e.NewCodec(catalogue.Types()...)
				n := 0
				for line := firstLine(host); len(line) > 0; line = firstLine(host) {
					m, err := codec.Decode(line)
					if err != nil {
						return // the end of the test cuts a line
					}
					answer := ""
					switch m.Type {
					case "handshake/req":
						answer = message("handshake/resp", "h", `,"req_id":"`+m.ID+`","max_parallel":1`+c.features)
					case "invoke/cancel":
						if c.answer == 0 {
							continue
						}
						time.Sleep(c.answer)
						answer = message("error", "e", `,"code":"cancelled","req_id":"`+m.ReqID()+`"`)
					case "tool/list/req":
						if n++; n == 2 {
							second <- time.Now()
							answer = message("tool/list/resp", "l", `,"req_id":"`+m.ID+`"`)
						}
					}
					_, _ = io.WriteString(host, answer+"\n")
				}
			}()
			_, err := client.Connect(t.Context())
			require.NoError(t, err)
			_, err = client.Call(t.Context(), "tool/list/req", &tools.ListRequest{}, &a2e.CallOptions{Timeout: time.Second})
			require.ErrorIs(t, err, context.DeadlineExceeded)
			start := time.Now()
			go func() { _, _ = client.Call(t.Context(), "tool/list/req", &tools.ListRequest{}, nil) }()
			require.Equal(t, c.want, (<-second).Sub(start), name)
			require.NoError(t, client.Close())
			require.NoError(t, host.Close())
		})
	}
}

// A pipeNet is a network in memory, whose time synctest controls.
type pipeNet struct {
	conns chan net.Conn
	done  chan struct{}
}

func (n *pipeNet) Accept() (net.Conn, error) {
	select {
	case c := <-n.conns:
		return c, nil
	case <-n.done:
		return nil, net.ErrClosed
	}
}

func (n *pipeNet) Close() error   { close(n.done); return nil }
func (n *pipeNet) Addr() net.Addr { return &net.TCPAddr{IP: net.IPv4(192, 0, 2, 1), Port: 80} }

func (n *pipeNet) dial(context.Context, string, string) (net.Conn, error) {
	client, server := net.Pipe()
	select {
	case n.conns <- server:
		return client, nil
	case <-n.done:
		return nil, net.ErrClosed
	}
}

// newPipeNet serves h until the test calls stop.
func newPipeNet(h http.Handler) (to *http.Client, stop func()) {
	n := &pipeNet{conns: make(chan net.Conn), done: make(chan struct{})}
	srv := &http.Server{Handler: h}
	served := make(chan struct{})
	go func() { defer close(served); _ = srv.Serve(n) }()
	transport := &http.Transport{DialContext: n.dial}
	return &http.Client{Transport: transport}, func() {
		_ = srv.Close()
		transport.CloseIdleConnections()
		<-served
	}
}

// A hung handler passes requests on until the first message after the handshake, and then holds all.
type hung struct {
	http.Handler
	isHung atomic.Bool
}

func (h *hung) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if h.isHung.Load() {
		_, _ = io.Copy(io.Discard, r.Body) // or net/http does not see the end of the connection
		<-r.Context().Done()
		return
	}
	h.Handler.ServeHTTP(w, r)
}

// Close of a client takes under 100 ms with a host of this package, and at most 1 s with one that
// never closes.
func TestClientCloseIsBounded(t *testing.T) {
	const base = "http://a.example"
	newHost := func(t *testing.T) *a2e.Host { return a2etest.NewHost(t, nil, repeating()) }
	for name, dial := range map[string]func(t *testing.T, isSilent bool) (rw io.ReadWriteCloser, hang, stop func()){
		"stdio": func(t *testing.T, isSilent bool) (io.ReadWriteCloser, func(), func()) {
			agent, host := a2e.Pipe()
			var served sync.WaitGroup
			if !isSilent {
				served.Go(func() { _ = newHost(t).Serve(context.Background(), host) })
				return agent, func() {}, served.Wait
			}
			served.Go(func() {
				m := a2etest.Must(a2e.NewCodec().Decode(firstLine(host)))
				_, _ = io.WriteString(host, message("handshake/resp", "h", `,"req_id":"`+m.ID+`","max_parallel":4`)+"\n")
			})
			return a2e.Join(onlyReader{agent}, neverClosing{agent}), func() {}, func() {
				_ = agent.Close()
				served.Wait()
				time.Sleep(5 * time.Second) // the stream closes in the background
			}
		},
		"http": func(t *testing.T, _ bool) (io.ReadWriteCloser, func(), func()) {
			h := newHost(t)
			x := &hung{Handler: a2etest.Must(a2e.NewHTTPHandler(h, &a2e.HTTPHandlerOptions{AllowedHosts: []string{"a.example"}}))}
			to, stop := newPipeNet(x)
			rw := a2etest.Must(a2e.DialHTTP(t.Context(), base, &a2e.HTTPDialOptions{HTTPClient: to, AllowInsecure: true}))
			return rw, func() { x.isHung.Store(true) }, func() { stop(); _ = h.Close() }
		},
		"websocket": func(t *testing.T, isSilent bool) (io.ReadWriteCloser, func(), func()) {
			h := newHost(t)
			to, stop := newPipeNet(a2etest.Must(a2e.NewWebSocketHandler(h, nil)))
			hang := func() {}
			if isSilent {
				inner := to.Transport.(*http.Transport)
				dial := inner.DialContext
				inner.DialContext = func(ctx context.Context, network, addr string) (net.Conn, error) {
					conn, err := dial(ctx, network, addr)
					c := &deaf{Conn: conn}
					hang = func() { c.isDeaf.Store(true) }
					return c, err
				}
			}
			rw := a2etest.Must(a2e.DialWebSocket(t.Context(), "ws://a.example", &a2e.WebSocketDialOptions{HTTPClient: to, AllowInsecure: true}))
			return rw, hang, func() { stop(); _ = h.Close() }
		},
	} {
		for _, isSilent := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/silent=%t", name, isSilent), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					rw, hang, stop := dial(t, isSilent)
					c := a2etest.Must(a2e.NewClient(rw, &a2e.ClientOptions{Capabilities: []string{"demo"}}))
					_, err := c.Connect(t.Context())
					require.NoError(t, err)
					limit := 99 * time.Millisecond
					if isSilent {
						hang()
						limit = time.Second
					}
					start := time.Now()
					require.NoError(t, c.Close())
					require.LessOrEqual(t, time.Since(start), limit)
					stop()
				})
			})
		}
	}
}

type onlyReader struct{ io.Reader }

// neverClosing is the input of a program that ignores its end.
type neverClosing struct{ io.Writer }

func (neverClosing) Close() error {
	time.Sleep(5 * time.Second)
	return nil
}

// A deaf connection loses what is written to it.
type deaf struct {
	net.Conn
	isDeaf atomic.Bool
}

func (c *deaf) Write(b []byte) (int, error) {
	if c.isDeaf.Load() {
		return len(b), nil
	}
	return c.Conn.Write(b)
}

// Pushes above the bound of their queue are dropped, counted and reported, and the client reads on (A2E-D56).
func TestPushesAboveTheBoundAreReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var reported []int
		h := a2etest.NewHost(t, &a2e.HostOptions{Logger: slog.New(slog.DiscardHandler)}, notesPlugin(nil))
		c := a2etest.Connect(t, h, &a2e.ClientOptions{Logger: slog.New(slog.DiscardHandler), OnDrop: func(_ context.Context, n int) { reported = append(reported, n) }})
		received, free := 0, make(chan struct{})
		c.OnPush("demo/push", func(*a2e.Message) {
			<-free
			received++
		})
		for range 1100 {
			require.NoError(t, h.Sessions()[0].Send(t.Context(), "demo/push", &noteRequest{}))
			synctest.Wait() // the first one runs, and does not wait
		}
		_, err := c.Call(t.Context(), "notes/write/req", &noteRequest{"x"}, nil)
		require.NoError(t, err)
		close(free)
		synctest.Wait()
		require.Equal(t, 1025, received, "one runs, and 1,024 wait")
		require.Equal(t, []int{75}, reported)
		require.EqualValues(t, 75, c.Stats().Dropped)
	})
}
