// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package arc_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/arc"
	"github.com/fivewire/fivewire/arc/arctest"
	"github.com/fivewire/fivewire/arc/conversation"
	"github.com/fivewire/fivewire/arc/discovery"
)

// between connects a client with a server in memory.
func between(t *testing.T, srv *arc.Server, opts *arc.ClientOptions) *arc.Client {
	t.Helper()
	at := arctest.NewServer(t, srv)
	o := arc.ClientOptions{}
	if opts != nil {
		o = *opts
	}
	o.HTTPClient = at.HTTPClient
	c, err := arc.NewClient(at.URL, "planner-01", &o)
	require.NoError(t, err)
	return c
}

// A complete stream leaves its connection for the next one, though its end comes
// apart from the done event.
func TestClientStreamKeepsConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		at := arctest.NewServer(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.ReadAll(r.Body)
			w.Header().Set("Content-Type", arc.MediaTypeStream)
			_, _ = io.WriteString(w, "event: done\ndata: {\"chatId\":\"c\",\"status\":\"ACTIVE\",\"done\":true}\n\n")
			w.(http.Flusher).Flush()
			time.Sleep(50 * time.Millisecond)
		}))
		var conns atomic.Int32
		transport := at.HTTPClient.Transport.(*http.Transport)
		dial := transport.DialContext
		transport.DialContext = func(ctx context.Context, network, addr string) (net.Conn, error) {
			conns.Add(1)
			return dial(ctx, network, addr)
		}
		c, err := arc.NewClient(at.URL, "a", &arc.ClientOptions{HTTPClient: at.HTTPClient})
		require.NoError(t, err)
		for range 5 {
			for ev, err := range c.StreamChat(t.Context(), "b", &arc.StartChatParams{InitialMessage: arc.UserText("x")}, nil) {
				require.NoError(t, err)
				if ev.Done {
					break
				}
			}
			synctest.Wait()
		}
		require.EqualValues(t, 1, conns.Load())
	})
}

// A task from its creation over its question to its result, followed by Wait.
func TestClientWithServerTask(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv := arc.MustServer(nil)
		srv.HandleTasks("translator-02", arctest.ScriptedTask(arctest.AddMessage("Into which language?"), arctest.WaitInput("a language"),
			arctest.AddArtifact("translation", "bonjour")))
		c := between(t, srv, nil)
		ctx := t.Context()
		task, err := c.CreateTask(ctx, "translator-02", &arc.CreateTaskParams{InitialMessage: arc.UserText("hello")}, nil)
		require.NoError(t, err)
		require.Equal(t, arc.TaskSubmitted, task.Status)
		o, err := c.WaitTask(ctx, "translator-02", task.ID, nil)
		require.NoError(t, err)
		require.True(t, o.InputRequired)
		require.Equal(t, "Into which language?", o.InputRequest().Text())
		require.NoError(t, c.SendTaskInput(ctx, "translator-02", &arc.SendTaskParams{TaskID: task.ID, Message: arc.UserText("French")}, nil))
		o, err = c.WaitTask(ctx, "translator-02", task.ID, nil)
		require.NoError(t, err)
		require.False(t, o.InputRequired)
		require.Equal(t, "bonjour", o.Task.Artifacts[0].Parts[0].Content)
		_, err = c.CancelTask(ctx, "translator-02", &arc.CancelTaskParams{TaskID: task.ID}, nil)
		require.ErrorIs(t, err, arc.ErrTaskAlreadyCompleted)
		_, err = c.GetTask(ctx, "nobody", &arc.TaskInfoParams{TaskID: task.ID}, nil)
		require.ErrorIs(t, err, arc.ErrAgentNotFound)
	})
}

// A conversation.Manager and streams against the real server, whose idle chats close.
func TestClientWithServerChat(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv := arc.MustServer(nil)
		srv.HandleChats("echo-01", arc.ChatHandlerFunc(func(ctx context.Context, turn *arc.ChatTurn, out *arc.ChatWriter) error {
			if turn.Message.Text() == "slow" {
				time.Sleep(10 * time.Minute) // only keep-alives arrive
			}
			return out.Send("echo: " + turn.Message.Text())
		}))
		v, err := conversation.NewManager(between(t, srv, nil), nil)
		require.NoError(t, err)
		ctx := t.Context()
		first, err := v.Send(ctx, "echo-01", arc.UserText("one"), nil)
		require.NoError(t, err)
		require.Equal(t, "echo: one", first.Message.Text())
		text := ""
		for ev, err := range v.Stream(ctx, "echo-01", arc.UserText("slow"), nil) {
			require.NoError(t, err)
			require.Equal(t, first.ID, ev.ChatID)
			text += ev.Text
		}
		require.Equal(t, "echo: slow", text)
		require.NoError(t, v.Close(ctx))
	})
}

// ARC-012, ARC-016, ARC-173, ARC-D65: a workflow over three agents in one trace, and a circle
// refused.
func TestClientWithServerWorkflow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv := arc.MustServer(&arc.ServerOptions{Auth: arc.Auth{RejectCycles: true}})
		at := arctest.NewServer(t, srv)
		client := func(self string) *arc.Client {
			c, err := arc.NewClient(at.URL, self, &arc.ClientOptions{HTTPClient: at.HTTPClient, SendAgentPath: true})
			require.NoError(t, err)
			return c
		}
		var mu sync.Mutex
		var traces []string
		hop := func(self, next string) arc.HandlerFunc {
			c := client(self)
			return func(ctx context.Context, call *arc.Call) (any, error) {
				mu.Lock()
				traces = append(traces, self+" "+call.TraceID)
				mu.Unlock()
				if next == "" {
					return map[string]string{"end": self}, nil
				}
				res, err := c.Call(ctx, next, "hop.go", nil, nil)
				if err != nil {
					return nil, err
				}
				return res.Result, nil
			}
		}
		srv.Handle("b", "hop.go", hop("b", "c"))
		srv.Handle("c", "hop.go", hop("c", "d"))
		srv.Handle("d", "hop.go", hop("d", ""))
		srv.Handle("e", "hop.go", hop("e", "f"))
		srv.Handle("f", "hop.go", hop("f", "e"))
		ctx := arc.ContextWithTraceID(t.Context(), "wf-1")
		res, err := client("a").Call(ctx, "b", "hop.go", nil, nil)
		require.NoError(t, err)
		require.Equal(t, "wf-1", res.TraceID)
		require.JSONEq(t, `{"end":"d"}`, string(res.Result))
		require.Equal(t, []string{"b wf-1", "c wf-1", "d wf-1"}, traces)
		_, err = client("a").Call(ctx, "e", "hop.go", nil, nil)
		require.ErrorIs(t, err, arc.ErrInternal, "an error of another server is not one of this server")
	})
}

// A lossy loses the connection of every second request after it went out.
type lossy struct {
	next http.RoundTripper
	mu   sync.Mutex
	n    int
}

func (l *lossy) RoundTrip(req *http.Request) (*http.Response, error) {
	resp, err := l.next.RoundTrip(req)
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.n++; err == nil && l.n%2 == 1 {
		_ = resp.Body.Close()
		return nil, errors.New("connection lost")
	}
	return resp, err
}

// ARC-D48: with the window of the server, task.create is repeated without a second
// task.
func TestClientWithServerIdempotency(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv := arc.MustServer(&arc.ServerOptions{Persistence: arc.Persistence{ResultTTL: 10 * time.Minute}})
		var mu sync.Mutex
		started := 0
		srv.HandleTasks("b", arc.TaskHandlerFunc(func(context.Context, *arc.TaskRun) error {
			mu.Lock()
			defer mu.Unlock()
			started++
			return nil
		}))
		at := arctest.NewServer(t, srv)
		c, err := arc.NewClient(at.URL, "a", &arc.ClientOptions{Idempotent: true,
			HTTPClient: &http.Client{Transport: &lossy{next: at.HTTPClient.Transport}}})
		require.NoError(t, err)
		_, err = c.CreateTask(t.Context(), "b", &arc.CreateTaskParams{InitialMessage: arc.UserText("x")}, nil)
		require.NoError(t, err)
		synctest.Wait()
		require.Equal(t, 1, started)
	})
}

// cutting cuts each answer after some bytes, and resumed ones later.
type cutting struct {
	next http.RoundTripper
	at   int
}

func (c *cutting) RoundTrip(req *http.Request) (*http.Response, error) {
	resp, err := c.next.RoundTrip(req)
	if err == nil {
		resp.Body = &cutBody{resp.Body, c.at}
	}
	return resp, err
}

type cutBody struct {
	body interface {
		Read([]byte) (int, error)
		Close() error
	}
	left int
}

func (b *cutBody) Read(p []byte) (int, error) {
	if b.left <= 0 {
		return 0, errors.New("connection lost")
	}
	n, err := b.body.Read(p[:min(len(p), b.left)])
	b.left -= n
	return n, err
}

func (b *cutBody) Close() error { return b.body.Close() }

// Streams that survive: over connections that all break, the answer comes whole
// and each piece once.
func TestClientWithServerResume(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv := arc.MustServer(&arc.ServerOptions{Persistence: arc.Persistence{EnableResume: true}})
		runs := 0
		want := ""
		srv.HandleChats("b", arc.ChatHandlerFunc(func(ctx context.Context, _ *arc.ChatTurn, out *arc.ChatWriter) error {
			runs++
			for i := range 20 {
				time.Sleep(time.Second)
				piece := string(rune('a'+i)) + " "
				want += piece
				if err := out.Send(piece); err != nil {
					return err
				}
			}
			return nil
		}))
		at := arctest.NewServer(t, srv)
		c, err := arc.NewClient(at.URL, "a", &arc.ClientOptions{MaxResumes: 3,
			HTTPClient: &http.Client{Transport: &cutting{at.HTTPClient.Transport, 700}}})
		require.NoError(t, err)
		text, done := "", false
		for ev, err := range c.StreamChat(t.Context(), "b", &arc.StartChatParams{InitialMessage: arc.UserText("x")}, nil) {
			require.NoError(t, err)
			text += ev.Text
			done = ev.Done
		}
		require.True(t, done)
		require.Equal(t, 1, runs)
		require.Equal(t, want, text)
	})
}

// A resumable stream continues after the expiry of each token.
func TestClientWithServerResumeAfterExpiry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		auth := arc.BearerAuthenticator(arc.TokenVerifierFunc(func(_ context.Context, token string) (*arc.Principal, error) {
			life, err := time.ParseDuration(token)
			expires := start.Add(life)
			if err == nil && !time.Now().Before(expires) {
				err = arc.ErrTokenExpired
			}
			return &arc.Principal{ID: "alice", Scopes: arc.RequiredScopes(arc.MethodChatStart), Expires: expires}, err
		}))
		srv := arc.MustServer(&arc.ServerOptions{Auth: arc.Auth{Authenticator: auth}, Persistence: arc.Persistence{EnableResume: true}})
		srv.HandleChats("b", arc.ChatHandlerFunc(func(ctx context.Context, _ *arc.ChatTurn, out *arc.ChatWriter) error {
			for _, piece := range []string{"a", "b", "c"} {
				if err := out.Send(piece); err != nil {
					return err
				}
				time.Sleep(time.Hour)
			}
			return ctx.Err()
		}))
		at := arctest.NewServer(t, srv)
		refreshes := 0
		c, err := arc.NewClient(at.URL, "a", &arc.ClientOptions{MaxResumes: 1, HTTPClient: at.HTTPClient, Logger: slog.New(slog.DiscardHandler),
			TokenSource: arc.NewRefreshingTokens(func(context.Context) (string, time.Time, error) {
				refreshes++
				expires := time.Now().Add(50 * time.Minute)
				return expires.Sub(start).String(), expires, nil
			}, 0)})
		require.NoError(t, err)
		defer c.Close()
		text, done := "", false
		for ev, err := range c.StreamChat(t.Context(), "b", &arc.StartChatParams{InitialMessage: arc.UserText("x")}, nil) {
			require.NoError(t, err)
			text += ev.Text
			done = ev.Done
		}
		require.True(t, done)
		require.Equal(t, "abc", text)
		require.Equal(t, 4, refreshes)
	})
}

// ARC-D67: the client finds what the server tells.
func TestDiscoveryWithServer(t *testing.T) {
	srv := arc.MustServer(nil)
	srv.HandleTasks("x-01", arctest.ScriptedTask())
	srv.HandleChats("y-01", arc.ChatReplyFunc(func(context.Context, *arc.ChatTurn) (*arc.Message, error) { return arc.AgentText("hi"), nil }))
	at := arctest.NewServer(t, srv)
	d, err := discovery.NewClient(&discovery.ClientOptions{HTTPClient: at.HTTPClient}, at.URL)
	require.NoError(t, err)
	all, err := d.Agents(t.Context())
	require.NoError(t, err)
	require.Len(t, all, 2)
	found, err := d.Find(t.Context(), discovery.AgentQuery{Method: arc.MethodChatStart})
	require.NoError(t, err)
	require.Len(t, found, 1)
	require.Equal(t, "y-01", found[0].AgentID)
	require.Equal(t, at.URL, found[0].URL)
}

// The calls of a handler whose task has ended fail as canceled, not with an error that an answer about their own task has.
func TestCallsOfEndedTaskAreCanceled(t *testing.T) {
	for _, tt := range []struct {
		code arc.Code
		text string
	}{{arc.ErrTaskAlreadyCanceled, "was canceled"}, {arc.ErrTaskTimeout, "has timed out"}} {
		synctest.Test(t, func(t *testing.T) {
			remote, c := arctest.NewPair(t, nil)
			remote.HandleTasks("b-01", arctest.ScriptedTask(arctest.Sleep(time.Hour)))
			other, err := c.CreateTask(t.Context(), "b-01", &arc.CreateTaskParams{InitialMessage: arc.UserText("x")}, nil)
			require.NoError(t, err)

			s := newServer(t, &arc.ServerOptions{Timing: arc.Timing{TaskTimeout: time.Minute}})
			var calls []error
			s.HandleTasks("a-01", arc.TaskHandlerFunc(func(ctx context.Context, _ *arc.TaskRun) error {
				_, pending := c.WaitTask(ctx, "b-01", other.ID, nil)
				require.ErrorIs(t, context.Cause(ctx), tt.code)
				_, cancel := c.CancelTask(ctx, "b-01", &arc.CancelTaskParams{TaskID: other.ID}, nil)
				var stream error
				for _, stream = range c.StreamChat(ctx, "b-01", &arc.StartChatParams{InitialMessage: arc.UserText("x")}, nil) {
				}
				calls = []error{pending, cancel, stream}
				return nil
			}))
			id := createTask(t, s, "a-01", "x")
			synctest.Wait()
			if tt.code == arc.ErrTaskAlreadyCanceled {
				require.Nil(t, cancelTask(s, "a-01", id).Error)
			}
			pass(2 * time.Minute)
			require.Len(t, calls, 3)
			for _, err := range calls {
				require.NotErrorIs(t, err, tt.code)
				require.ErrorIs(t, err, context.Canceled)
				require.ErrorContains(t, err, "the task of the handler "+tt.text)
			}
			require.ErrorContains(t, calls[1], "arc: task.cancel b-01 at ")
		})
	}
}
