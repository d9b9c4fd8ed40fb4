// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package arc

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/fivewire/fivewire/arc/internal/wire"
)

// A peer is an http.RoundTripper that answers each exchange with the next reaction of its list, and
// records the requests.
type peer struct {
	mu      sync.Mutex
	do      []func(req *http.Request, body []byte) (*http.Response, error)
	sent    []*http.Request
	bodies  []string
	at      []time.Time
	nothing error // the error of a request whose body is not read
}

func (p *peer) RoundTrip(req *http.Request) (*http.Response, error) {
	defer func() {
		if req.Body != nil {
			_ = req.Body.Close()
		}
	}()
	p.mu.Lock()
	n := len(p.sent)
	p.sent, p.at = append(p.sent, req), append(p.at, time.Now())
	p.mu.Unlock()
	if n >= len(p.do) {
		return nil, errors.New("test: no answer is left")
	}
	if p.do[n] == nil {
		return nil, p.nothing
	}
	var body []byte
	if req.Body != nil {
		var err error
		if body, err = io.ReadAll(req.Body); err != nil {
			return nil, err
		}
	}
	p.mu.Lock()
	p.bodies = append(p.bodies, string(body))
	p.mu.Unlock()
	return p.do[n](req, body)
}

type reaction = func(req *http.Request, body []byte) (*http.Response, error)

// reply answers with a text, in which ${ID} stands for the id of the request.
func reply(status int, media, text string, header ...string) reaction {
	return func(req *http.Request, body []byte) (*http.Response, error) {
		sent, _ := wire.Check(body)
		text := strings.ReplaceAll(text, "${ID}", string(sent.Get("id")))
		h := http.Header{"Content-Type": {media}}
		for i := 0; i < len(header); i += 2 {
			h.Set(header[i], header[i+1])
		}
		return &http.Response{StatusCode: status, Header: h, Body: io.NopCloser(strings.NewReader(text)),
			ContentLength: int64(len(text)), Request: req}, nil
	}
}

func result(text string) string {
	return `{"arc":"1.0","id":${ID},"responseAgent":"b","targetAgent":"a","result":` + text + `,"error":null}`
}

func fault(code Code) string {
	return fmt.Sprintf(`{"arc":"1.0","id":${ID},"responseAgent":"b","targetAgent":"a","result":null,"error":{"code":%d,"message":"m"}}`, code)
}

func ok(text string) reaction         { return reply(200, MediaType, result(text)) }
func arcFault(s int, c Code) reaction { return reply(s, MediaType, fault(c)) }
func fails(err error) reaction {
	return func(*http.Request, []byte) (*http.Response, error) { return nil, err }
}
func task(id, status string) string {
	return `{"type":"task","task":{"taskId":"` + id + `","status":"` + status + `"}}`
}
func refusedDial() error {
	return &net.OpError{Op: "dial", Net: "tcp", Err: os.NewSyscallError("connect", syscall.ECONNREFUSED)}
}
func reset() error {
	return &net.OpError{Op: "read", Net: "tcp", Err: os.NewSyscallError("read", syscall.ECONNRESET)}
}
func infoOf(id string) *TaskInfoParams { return &TaskInfoParams{TaskID: id} }

func newTestClient(t *testing.T, p http.RoundTripper, opts *ClientOptions) *Client {
	t.Helper()
	var o ClientOptions
	if opts != nil {
		o = *opts
	}
	o.HTTPClient = &http.Client{Transport: p}
	c, err := NewClient("https://b.test/arc", "a", &o)
	require.NoError(t, err)
	return c
}

// ARC-001: plain http stays on this machine.
func TestNewClient(t *testing.T) {
	tests := []struct {
		endpoint string
		http     bool
		want     string // part of the error
	}{
		{endpoint: "https://b.test/arc"},
		{endpoint: "https://b.test:8443"},
		{endpoint: "http://localhost:80/arc"},
		{endpoint: "http://app.localhost/arc"},
		{endpoint: "http://127.0.0.1:1/arc"},
		{endpoint: "http://127.9.9.9/arc"},
		{endpoint: "http://[::1]:1/arc"},
		{endpoint: "http://b.test/arc", http: true},
		{endpoint: "http://b.test/arc", want: "must be https"},
		{endpoint: "http://localhost.evil.test/arc", want: "must be https"},
		{endpoint: "http://127.0.0.1.evil.test/arc", want: "must be https"},
		{endpoint: "http://10.0.0.1/arc", want: "must be https"},
		{endpoint: "ftp://b.test/arc", http: true, want: "scheme"},
		{endpoint: "/arc", want: "absolute"},
		{endpoint: "https://", want: "absolute"},
		{endpoint: "https://u:p@b.test/arc", want: "userinfo"},
		{endpoint: "https://b.test/arc#x", want: "fragment"},
		{endpoint: "https://b.test/%zz", want: "endpoint"},
	}
	for _, tt := range tests {
		t.Run(tt.endpoint, func(t *testing.T) {
			c, err := NewClient(tt.endpoint, "a", &ClientOptions{AllowInsecure: tt.http})
			if tt.want == "" {
				require.NoError(t, err)
				require.NoError(t, c.Close())
				return
			}
			require.ErrorContains(t, err, tt.want)
		})
	}
	_, err := NewClient("https://b.test", "", nil)
	require.ErrorIs(t, err, ErrInvalidAgentID)
	_, err = NewClient("https://b.test", "a\nb", nil)
	require.ErrorIs(t, err, ErrInvalidAgentID)
}

// ARC-013, ARC-174, ARC-178, ARC-D11, ARC-D64: what goes out, and nothing else.
func TestClientRequest(t *testing.T) {
	p := &peer{do: []reaction{ok(task("t", "WORKING")), ok(task("t", "WORKING"))}}
	c := newTestClient(t, p, &ClientOptions{TokenSource: StaticTokenSource("tok")})
	_, err := c.GetTask(t.Context(), "b", infoOf("t"), nil)
	require.NoError(t, err)
	req, err := DecodeRequest([]byte(p.bodies[0]))
	require.NoError(t, err)
	require.Equal(t, `{"arc":"1.0","id":`+string(req.ID)+`,"method":"task.info","requestAgent":"a","targetAgent":"b",`+
		`"params":{"taskId":"t","includeMessages":true,"includeArtifacts":true}}`, p.bodies[0])
	require.Equal(t, http.Header{"Content-Type": {"application/arc+json"}, "Accept": {"application/arc+json, application/json"},
		"Accept-Encoding": {"identity"}, "Authorization": {"Bearer tok"}}, p.sent[0].Header)

	ctx := ContextWithTraceID(t.Context(), "4bf92f35-77b3-4da6-a3ce-929d0e0e4736")
	_, err = c.GetTask(ctx, "b", infoOf("t"), &CallOptions{
		Header: http.Header{"X-One": {"1"}, "Content-Type": {"text/plain"}, "authorization": {"Basic x"}},
		Extra:  Extra{"vendor": json.RawMessage(`{"k": 1}`)}, RequestID: "order-\"7\""})
	require.NoError(t, err)
	require.Contains(t, p.bodies[1], `"traceId":"4bf92f35-77b3-4da6-a3ce-929d0e0e4736"`)
	require.Contains(t, p.bodies[1], `"vendor":{"k":1}`)
	require.Contains(t, p.bodies[1], `"id":"order-\"7\"",`)
	h := p.sent[1].Header
	require.Regexp(t, `^00-4bf92f3577b34da6a3ce929d0e0e4736-[0-9a-f]{16}-01$`, h.Get("traceparent"))
	require.Equal(t, "1", h.Get("X-One"))
	require.Equal(t, []string{"application/arc+json"}, h["Content-Type"])
	require.Equal(t, []string{"Basic x"}, h["Authorization"])
}

// ARC-175: ids are unique.
func TestClientIDs(t *testing.T) {
	seen := map[string]bool{}
	c := newTestClient(t, http.RoundTripper(nil), &ClientOptions{Interceptors: []Interceptor{func(CallFunc) CallFunc {
		return func(_ context.Context, out *ClientRequest) (*Response, error) {
			seen[string(out.ID)] = true
			return &Response{Result: []byte(`{}`)}, nil
		}
	}}})
	for range 1000 {
		_, err := c.Call(t.Context(), "b", "x.y", nil, nil)
		require.NoError(t, err)
	}
	require.Len(t, seen, 1000)
}

// ARC-D64: the caller's span.
func TestClientSpan(t *testing.T) {
	const span = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	tests := []struct{ name, span, trace, wantTrace, wantHeader string }{
		{"neither", "", "", "", "^$"},
		{"span only", span, "", "0af7651916cd43dd8448eb211c80319c", "^" + span + "$"},
		{"both the same", span, "0AF7651916CD43DD8448EB211C80319C", "0AF7651916CD43DD8448EB211C80319C", "^" + span + "$"},
		{"another workflow", span, "wf", "wf", "^00-" + wire.W3CTraceID("wf") + "-[0-9a-f]{16}-01$"},
		{"no valid span", "00-zz", "", "", "^$"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			p := &peer{do: []reaction{ok(`{}`)}}
			c := newTestClient(t, p, &ClientOptions{TraceParent: func(context.Context) string { return tt.span }})
			ctx := t.Context()
			if tt.trace != "" {
				ctx = ContextWithTraceID(ctx, tt.trace)
			}
			_, err := c.Call(ctx, "b", "x.y", nil, nil)
			require.NoError(t, err)
			req, err := DecodeRequest([]byte(p.bodies[0]))
			require.NoError(t, err)
			require.Equal(t, tt.wantTrace, req.TraceID)
			require.Regexp(t, tt.wantHeader, p.sent[0].Header.Get("Traceparent"))
		})
	}
}

// ARC-D65: the way of a workflow, opt-in.
func TestClientPath(t *testing.T) {
	tests := []struct {
		call *Call
		want string
	}{
		{nil, "a"},
		{&Call{AgentPath: []string{"x,1", "ö y"}}, "x%2C1,%C3%B6%20y,a"},
		{&Call{AgentPath: []string{"a", "x"}}, "a,x"},
	}
	for _, tt := range tests {
		p := &peer{do: []reaction{ok(`{}`), ok(`{}`)}}
		ctx := t.Context()
		if tt.call != nil {
			ctx = context.WithValue(ctx, callKey{}, tt.call)
		}
		_, err := newTestClient(t, p, &ClientOptions{SendAgentPath: true}).Call(ctx, "b", "x.y", nil, nil)
		require.NoError(t, err)
		require.Equal(t, tt.want, p.sent[0].Header.Get("X-ARC-Path"))
		_, err = newTestClient(t, &peer{do: p.do}, nil).Call(ctx, "b", "x.y", nil, nil)
		require.NoError(t, err)
	}
}

// ARC-090 to ARC-114, ARC-D31, ARC-D32: each method with its params and its result.
func TestClientMethods(t *testing.T) {
	msg := UserText("hi")
	tests := []struct {
		method, params, result, want string
		call                         func(ctx context.Context, c *Client) (any, error)
	}{
		{"task.create", `{"initialMessage":{"role":"user","parts":[{"type":"TextPart","content":"hi"}]},"priority":"HIGH"}`,
			task("t1", "SUBMITTED"), "t1", func(ctx context.Context, c *Client) (any, error) {
				r, err := c.CreateTask(ctx, "b", &CreateTaskParams{InitialMessage: msg, Priority: PriorityHigh}, nil)
				return r.ID, err
			}},
		{"task.send", `{"taskId":"t1","message":{"role":"user","parts":[{"type":"TextPart","content":"hi"}]}}`,
			`{"success":true}`, "<nil>", func(ctx context.Context, c *Client) (any, error) {
				return nil, c.SendTaskInput(ctx, "b", &SendTaskParams{TaskID: "t1", Message: msg}, nil)
			}},
		{"task.info", `{"taskId":"t1","includeMessages":false,"includeArtifacts":true}`,
			task("t1", "WORKING"), "WORKING", func(ctx context.Context, c *Client) (any, error) {
				r, err := c.GetTask(ctx, "b", &TaskInfoParams{TaskID: "t1", OmitMessages: true}, nil)
				return r.Status, err
			}},
		{"task.cancel", `{"taskId":"t1","reason":"no"}`,
			task("t1", "CANCELED"), "CANCELED", func(ctx context.Context, c *Client) (any, error) {
				r, err := c.CancelTask(ctx, "b", &CancelTaskParams{TaskID: "t1", Reason: "no"}, nil)
				return r.Status, err
			}},
		{"task.subscribe", `{"taskId":"t1","callbackUrl":"https://a.test/cb"}`,
			`{"type":"subscription","subscription":{"subscriptionId":"s1"}}`, "s1", func(ctx context.Context, c *Client) (any, error) {
				r, err := c.SubscribeTask(ctx, "b", &SubscribeParams{TaskID: "t1", CallbackURL: "https://a.test/cb"}, nil)
				return r.ID, err
			}},
		{"chat.start", `{"initialMessage":{"role":"user","parts":[{"type":"TextPart","content":"hi"}]},"stream":false}`,
			`{"type":"chat","chat":{"chatId":"c1","message":{"role":"agent","parts":[{"type":"text","content":"yo"}]}}}`, "yo",
			func(ctx context.Context, c *Client) (any, error) {
				r, err := c.StartChat(ctx, "b", &StartChatParams{InitialMessage: msg, Stream: true}, nil)
				return r.Message.Text(), err
			}},
		{"chat.message", `{"chatId":"c1","message":{"role":"user","parts":[{"type":"TextPart","content":"hi"}]},"stream":false}`,
			`{"success":true}`, "c1", func(ctx context.Context, c *Client) (any, error) {
				r, err := c.SendChatMessage(ctx, "b", &ChatMessageParams{ChatID: "c1", Message: msg}, nil)
				return r.ID, err
			}},
		{"chat.end", `{"chatId":"c1"}`,
			`{"type":"chat","chat":{"chatId":"c1","status":"CLOSED"}}`, "CLOSED", func(ctx context.Context, c *Client) (any, error) {
				r, err := c.EndChat(ctx, "b", &EndChatParams{ChatID: "c1"}, nil)
				return r.Status, err
			}},
		{"task.notification", `{"taskId":"t1","event":"NEW_MESSAGE","timestamp":"2024-01-15T10:30:00Z","data":{"status":"WORKING","message":"m"}}`,
			`"whatever"`, "<nil>", func(ctx context.Context, c *Client) (any, error) {
				return nil, c.Notify(ctx, "b", &Notification{TaskID: "t1", Event: EventNewMessage, Timestamp: "2024-01-15T10:30:00Z",
					Data: NotificationData{Status: "WORKING", Message: "m"}}, nil)
			}},
	}
	for _, tt := range tests {
		for _, intercepted := range []bool{false, true} {
			t.Run(fmt.Sprint(tt.method, intercepted), func(t *testing.T) {
				p := &peer{do: []reaction{ok(tt.result)}}
				opts := &ClientOptions{}
				if intercepted {
					opts.Interceptors = []Interceptor{func(next CallFunc) CallFunc { return next }}
				}
				got, err := tt.call(t.Context(), newTestClient(t, p, opts))
				require.NoError(t, err)
				require.Equal(t, tt.want, fmt.Sprint(got))
				req, err := DecodeRequest([]byte(p.bodies[0]))
				require.NoError(t, err)
				require.Equal(t, tt.method, req.Method)
				require.JSONEq(t, tt.params, string(req.Params))
				_, err = wire.Normalize(req.Method, req.Params)
				require.NoError(t, err, "a server takes it")
			})
		}
	}
}

// ARC-114: of a notification's answer, only the status counts.
func TestClientNotifyStatus(t *testing.T) {
	n := &Notification{TaskID: "t", Event: EventNewMessage, Timestamp: "2024-01-15T10:30:00Z", Data: NotificationData{Status: "WORKING"}}
	p := &peer{do: []reaction{arcFault(200, ErrInternal), reply(204, "", ""), arcFault(401, ErrTokenInvalid), reply(410, "text/plain", "gone")}}
	c := newTestClient(t, p, nil)
	require.NoError(t, c.Notify(t.Context(), "b", n, nil))
	require.NoError(t, c.Notify(t.Context(), "b", n, nil))
	var h *HTTPError
	require.ErrorAs(t, c.Notify(t.Context(), "b", n, nil), &h)
	require.Equal(t, 401, h.Status)
	require.ErrorAs(t, c.Notify(t.Context(), "b", n, nil), &h)
	require.Equal(t, HTTPError{Status: 410, Body: "gone"}, *h)
}

// An error has at most 4 KiB of the text of a peer.
func TestErrorOfPeerIsCut(t *testing.T) {
	text := strings.Repeat("0123456789abcdef", 1<<16)
	c := newTestClient(t, &peer{do: []reaction{reply(502, "text/plain", text), reply(404, "text/plain", text), reply(502, "text/plain", text)}}, nil)
	n := &Notification{TaskID: "t", Event: EventNewMessage, Timestamp: "2024-01-15T10:30:00Z", Data: NotificationData{Status: "WORKING"}}
	_, callErr := c.Call(t.Context(), "b", "debug.echo", nil, nil)
	_, _, streamErr := collect(startStream(c, t.Context(), nil))
	for _, err := range []error{callErr, streamErr, c.Notify(t.Context(), "b", n, nil)} {
		var h *HTTPError
		require.ErrorAs(t, err, &h)
		require.Len(t, h.Body, 4<<10)
		require.True(t, strings.HasPrefix(text, h.Body))
	}
}

// A request that a server would reject is not sent.
func TestClientRefusesLocally(t *testing.T) {
	p := &peer{}
	c := newTestClient(t, p, nil)
	tests := []struct {
		name           string
		target, method string
		params         any
		opts           *CallOptions
		want           error
	}{
		{name: "no target", method: "x.y", want: ErrInvalidAgentID},
		{name: "control character", target: "b\x00", method: "x.y", want: ErrInvalidAgentID},
		{name: "no method", target: "b", want: ErrInvalidFieldFormat},
		{name: "params not an object", target: "b", method: "x.y", params: []int{1}, want: ErrInvalidParams},
		{name: "params not JSON", target: "b", method: "x.y", params: json.RawMessage(`{`), want: ErrInvalidParams},
		{name: "trace", target: "b", method: "x.y", opts: &CallOptions{TraceID: "a\nb"}, want: ErrInvalidTrace},
		{name: "long id", target: "b", method: "x.y", opts: &CallOptions{RequestID: strings.Repeat("x", 257)}, want: ErrInvalidFieldFormat},
		{name: "id that is not UTF-8", target: "b", method: "x.y", opts: &CallOptions{RequestID: "a\xff"}, want: ErrInvalidFieldFormat},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := c.Call(t.Context(), tt.target, tt.method, tt.params, tt.opts)
			call := "arc: " + tt.method + " " + tt.target + " at https://b.test/arc: "
			require.ErrorIs(t, err, tt.want)
			require.ErrorContains(t, err, call)
			require.False(t, asError(err).Remote)
			for _, err := range c.Stream(t.Context(), tt.target, tt.method, tt.params, tt.opts) {
				require.ErrorIs(t, err, tt.want)
				require.ErrorContains(t, err, call)
			}
		})
	}
	_, err := c.Call(t.Context(), "b", "x.y", func() {}, nil)
	require.ErrorContains(t, err, "arc: params")
	_, err = c.CreateTask(t.Context(), "b", &CreateTaskParams{InitialMessage: UserText("x"), Metadata: json.RawMessage(`{`)}, nil)
	require.ErrorContains(t, err, "metadata")
	require.Empty(t, p.sent)
}

// ARC-D12, ARC-D13: every response has a distinct outcome.
func TestClientAnswers(t *testing.T) {
	long := strings.Repeat("x", 5000)
	big := reply(200, MediaType, result(`{"type":"task","task":{"taskId":"`+long+`","status":"WORKING"}}`))
	tests := []struct {
		name   string
		answer reaction
		want   error
		status int
	}{
		{name: "within the limit", answer: ok(task("t", "WORKING"))},
		{name: "over the announced limit", answer: big, want: ErrTooLarge},
		{name: "over the limit", answer: chunked(big), want: ErrTooLarge},
		{name: "over the limit and failed", answer: reply(500, "text/plain", long), status: 500},
		{name: "ARC error at 500", answer: arcFault(500, ErrTaskNotFound), want: ErrTaskNotFound},
		{name: "HTML", answer: reply(200, "text/html", "<html>"), want: ErrInvalidResponse},
		{name: "empty", answer: reply(204, "", ""), want: ErrInvalidResponse},
		{name: "not ARC", answer: reply(200, MediaType, `{"arc":"1.0"}`), want: ErrInvalidResponse},
		{name: "failed, not ARC", answer: reply(404, "application/json", `{"detail":"Not Found"}`), status: 404},
		{name: "failed, foreign id", answer: reply(404, MediaType, strings.ReplaceAll(fault(ErrTaskNotFound), "${ID}", `"x"`)), want: ErrIDMismatch},
		{name: "failed, unread id", answer: reply(400, MediaType, strings.ReplaceAll(fault(ErrParse), "${ID}", `"error"`)), want: ErrParse},
		{name: "no task", answer: ok(`{"type":"task"}`), want: ErrInvalidResult},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			p := &peer{do: []reaction{tt.answer}}
			c := newTestClient(t, p, &ClientOptions{Limits: ClientLimits{MaxMessage: 4500}})
			_, err := c.GetTask(t.Context(), "b", infoOf("t"), nil)
			var h *HTTPError
			switch {
			case tt.status != 0:
				require.ErrorAs(t, err, &h)
				require.Equal(t, tt.status, h.Status)
				require.LessOrEqual(t, len(h.Body), maxErrorText)
				require.NotEmpty(t, h.Body)
			default:
				require.ErrorIs(t, err, tt.want)
			}
			require.Len(t, p.sent, 1)
		})
	}
}

// chunked hides the length of an answer.
func chunked(a reaction) reaction {
	return func(req *http.Request, body []byte) (*http.Response, error) {
		resp, err := a(req, body)
		resp.ContentLength = -1
		return resp, err
	}
}

// ARC-D49 in full: what is sent again, when, and with which id.
func TestClientRetries(t *testing.T) {
	dial, lost := fails(refusedDial()), fails(reset())
	cut := func(req *http.Request, body []byte) (*http.Response, error) {
		resp, err := ok(task("t", "WORKING"))(req, body)
		resp.ContentLength += 10
		return resp, err
	}
	good := ok(task("t", "WORKING"))
	create := func(c *Client, ctx context.Context, opts *CallOptions) error {
		_, err := c.CreateTask(ctx, "b", &CreateTaskParams{InitialMessage: UserText("x")}, opts)
		return err
	}
	info := func(c *Client, ctx context.Context, opts *CallOptions) error {
		_, err := c.GetTask(ctx, "b", infoOf("t"), opts)
		return err
	}
	capabilities := func(c *Client, ctx context.Context, opts *CallOptions) error {
		_, err := c.Call(ctx, "b", "agent.getCapabilities", nil, opts)
		return err
	}
	tests := []struct {
		name     string
		call     func(*Client, context.Context, *CallOptions) error
		opts     ClientOptions
		call1    *CallOptions
		do       []reaction
		nothing  error
		attempts int
		want     error
	}{
		{name: "dial, every method", call: create, do: []reaction{dial, dial, good}, attempts: 3},
		{name: "dial, too often", call: create, do: []reaction{dial, dial, dial, good}, attempts: 3, want: syscall.ECONNREFUSED},
		{name: "no such host", call: create, do: []reaction{fails(&net.DNSError{Name: "b.test"}), good}, attempts: 2},
		{name: "proxy", call: create, do: []reaction{fails(&net.OpError{Op: "proxyconnect", Err: io.EOF}), good}, attempts: 2},
		{name: "broke before the body went out", call: create, nothing: reset(), do: []reaction{nil, good}, attempts: 1, want: syscall.ECONNRESET},
		{name: "failed before the body by no network", call: create, nothing: errors.New("no"), do: []reaction{nil, good}, attempts: 1, want: errAny},
		{name: "lost, changes something", call: create, do: []reaction{lost, good}, attempts: 1, want: syscall.ECONNRESET},
		{name: "lost, deduplicated", call: create, opts: ClientOptions{Idempotent: true}, do: []reaction{lost, lost, good}, attempts: 3},
		{name: "lost, deduplicated for this call", call: create, call1: &CallOptions{Idempotent: true}, do: []reaction{lost, good}, attempts: 2},
		{name: "lost, harmless", call: info, do: []reaction{lost, dial, good}, attempts: 3},
		{name: "lost, capabilities", call: capabilities, do: []reaction{lost, ok(`{}`)}, attempts: 2},
		{name: "lost while answering", call: info, do: []reaction{cut, good}, attempts: 2},
		{name: "lost while answering, changes something", call: create, do: []reaction{cut, good}, attempts: 1, want: io.ErrUnexpectedEOF},
		{name: "switched off", call: info, opts: ClientOptions{Retry: &RetryPolicy{MaxAttempts: -1}}, do: []reaction{dial, good}, attempts: 1, want: syscall.ECONNREFUSED},
		{name: "status", call: info, do: []reaction{reply(503, "text/plain", "busy"), good}, attempts: 1, want: errAny},
		{name: "ARC error", call: info, do: []reaction{arcFault(503, ErrAgentNotAvailable), good}, attempts: 1, want: ErrAgentNotAvailable},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := &peer{do: tt.do, nothing: tt.nothing}
				err := tt.call(newTestClient(t, p, &tt.opts), t.Context(), tt.call1)
				switch tt.want {
				case nil:
					require.NoError(t, err)
				case errAny:
					require.Error(t, err)
				default:
					require.ErrorIs(t, err, tt.want)
				}
				require.Len(t, p.sent, tt.attempts)
				for _, b := range p.bodies {
					require.Equal(t, p.bodies[0], b, "the same id")
				}
				for i, at := range p.at[1:] {
					wait := at.Sub(p.at[i])
					require.LessOrEqual(t, wait, 200*time.Millisecond<<i)
				}
			})
		})
	}
}

var errAny = errors.New("any")

// ARC-D49: waiting as the server asks is opt-in.
func TestClientRetryAfter(t *testing.T) {
	busy := func(after string) reaction {
		return reply(429, MediaType, fault(ErrRateLimitExceeded), "Retry-After", after)
	}
	good := ok(task("t", "WORKING"))
	tests := []struct {
		name     string
		opts     ClientOptions
		do       []reaction
		attempts int
		took     time.Duration
		want     error
	}{
		{"off", ClientOptions{}, []reaction{busy("1"), good}, 1, 0, ErrRateLimitExceeded},
		{"seconds", ClientOptions{Retry: &RetryPolicy{MaxRetryAfter: 5 * time.Second}}, []reaction{busy("3"), busy("2"), good}, 3, 5 * time.Second, nil},
		{"date", ClientOptions{Retry: &RetryPolicy{MaxRetryAfter: 5 * time.Second}}, []reaction{busy("Sat, 01 Jan 2000 00:00:04 GMT"), good}, 2, 4 * time.Second, nil},
		{"too long", ClientOptions{Retry: &RetryPolicy{MaxRetryAfter: 5 * time.Second}}, []reaction{busy("6"), good}, 1, 0, ErrRateLimitExceeded},
		{"too often", ClientOptions{Retry: &RetryPolicy{MaxRetryAfter: 5 * time.Second}}, []reaction{busy("1"), busy("1"), busy("1"), good}, 3, 2 * time.Second, ErrRateLimitExceeded},
		{"beyond the deadline", ClientOptions{Retry: &RetryPolicy{MaxRetryAfter: time.Hour}, Timeout: time.Second}, []reaction{busy("2"), good}, 1, 0, ErrRateLimitExceeded},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := &peer{do: tt.do}
				begin := time.Now()
				_, err := newTestClient(t, p, &tt.opts).GetTask(t.Context(), "b", infoOf("t"), nil)
				require.ErrorIs(t, err, tt.want)
				require.Len(t, p.sent, tt.attempts)
				require.Equal(t, tt.took, time.Since(begin))
			})
		})
	}
}

// ARC-D14: redirects stay in the origin, and so does the token.
func TestClientRedirects(t *testing.T) {
	to := func(status int, location string) reaction {
		return reply(status, "text/plain", "", "Location", location)
	}
	good := ok(task("t", "WORKING"))
	tests := []struct {
		name string
		do   []reaction
		want error
		last string
	}{
		{"slash", []reaction{to(307, "/arc/"), good}, nil, "https://b.test/arc/"},
		{"308 with the default port", []reaction{to(308, "https://B.test:443/x"), good}, nil, "https://B.test:443/x"},
		{"three", []reaction{to(307, "/1"), to(307, "/2"), to(307, "3"), good}, nil, "https://b.test/3"},
		{"four", []reaction{to(307, "/1"), to(307, "/2"), to(307, "/3"), to(307, "/4"), good}, ErrRedirect, "https://b.test/3"},
		{"other host", []reaction{to(307, "https://evil.test/arc"), good}, ErrRedirect, "https://b.test/arc"},
		{"no scheme", []reaction{to(307, "//evil.test/arc"), good}, ErrRedirect, "https://b.test/arc"},
		{"other port", []reaction{to(307, "https://b.test:444/arc"), good}, ErrRedirect, "https://b.test/arc"},
		{"downgrade", []reaction{to(307, "http://b.test/arc"), good}, ErrRedirect, "https://b.test/arc"},
		{"userinfo", []reaction{to(307, "https://u@b.test/arc"), good}, ErrRedirect, "https://b.test/arc"},
		{"GET", []reaction{to(303, "/x"), good}, ErrRedirect, "https://b.test/arc"},
		{"301", []reaction{to(301, "/x"), good}, ErrRedirect, "https://b.test/arc"},
		{"no location", []reaction{reply(307, "text/plain", ""), good}, ErrRedirect, "https://b.test/arc"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			p := &peer{do: tt.do}
			_, err := newTestClient(t, p, &ClientOptions{TokenSource: StaticTokenSource("tok")}).GetTask(t.Context(), "b", infoOf("t"), nil)
			require.ErrorIs(t, err, tt.want)
			require.Equal(t, tt.last, p.sent[len(p.sent)-1].URL.String())
			for _, b := range p.bodies {
				require.Equal(t, p.bodies[0], b)
			}
		})
	}
}

// ARC-D18, ARC-176: a timeout is distinct from a connection error, and from a cancellation by the
// user.
func TestClientTimeout(t *testing.T) {
	hangs := func(req *http.Request, _ []byte) (*http.Response, error) {
		<-req.Context().Done()
		return nil, req.Context().Err()
	}
	synctest.Test(t, func(t *testing.T) {
		c := newTestClient(t, &peer{do: []reaction{hangs, hangs, hangs, hangs}}, nil)
		begin := time.Now()
		_, err := c.GetTask(t.Context(), "b", infoOf("t"), nil)
		require.ErrorIs(t, err, ErrTimeout)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.Equal(t, time.Minute, time.Since(begin))

		_, err = c.GetTask(t.Context(), "b", infoOf("t"), &CallOptions{Timeout: time.Second})
		require.ErrorIs(t, err, ErrTimeout)
		require.Equal(t, time.Minute+time.Second, time.Since(begin))

		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		_, err = c.GetTask(ctx, "b", infoOf("t"), nil)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.NotErrorIs(t, err, ErrTimeout)

		ctx, stop := context.WithCancelCause(t.Context())
		why := errors.New("enough")
		time.AfterFunc(2*time.Hour, func() { stop(why) })
		_, err = c.GetTask(ctx, "b", infoOf("t"), &CallOptions{Timeout: -1})
		require.ErrorIs(t, err, why)
	})
}

func TestClientInterceptors(t *testing.T) {
	var log []string
	trace := func(name string) Interceptor {
		return func(next CallFunc) CallFunc {
			return func(ctx context.Context, out *ClientRequest) (*Response, error) {
				log = append(log, name+" "+out.Method+" "+string(out.Params))
				out.TargetAgent = name
				res, err := next(ctx, out)
				log = append(log, fmt.Sprint(name, " ", err))
				require.NotNil(t, res, "the response stands beside its error")
				return res, err
			}
		}
	}
	p := &peer{do: []reaction{arcFault(200, ErrTaskNotFound)}}
	c := newTestClient(t, p, &ClientOptions{Interceptors: []Interceptor{trace("outer"), trace("inner")}})
	_, err := c.CancelTask(t.Context(), "b", &CancelTaskParams{TaskID: "t"}, nil)
	require.ErrorIs(t, err, ErrTaskNotFound)
	require.Equal(t, []string{`outer task.cancel {"taskId":"t"}`, `inner task.cancel {"taskId":"t"}`,
		"inner arc: task.cancel inner at https://b.test/arc: m (-42001)", "outer arc: task.cancel inner at https://b.test/arc: m (-42001)"}, log)
	require.Contains(t, p.bodies[0], `"targetAgent":"inner"`)
}

// The error of a call names the call, the endpoint without a query, the field and the issue.
func TestClientErrorsNameTheCall(t *testing.T) {
	refusal := strings.Replace(fault(ErrInvalidParams), `"message":"m"`, `"message":"m","details":{"field":"callbackUrl","issue":"address\n"}`, 1)
	p := &peer{do: []reaction{reply(400, MediaType, refusal), reply(404, "text/plain", "not found"), reply(404, "text/plain", "not found")}}
	c, err := NewClient("https://b.test/arc?key=secret", "a", &ClientOptions{HTTPClient: &http.Client{Transport: p}})
	require.NoError(t, err)
	_, err = c.SubscribeTask(t.Context(), "b", &SubscribeParams{TaskID: "t", CallbackURL: "x"}, nil)
	require.EqualError(t, err, `arc: task.subscribe b at https://b.test/arc: m (-32602) at "callbackUrl": "address\n"`)
	_, err = c.GetTask(t.Context(), "b", infoOf("t"), nil)
	require.EqualError(t, err, "arc: task.info b at https://b.test/arc: HTTP status 404 Not Found")
	for _, err = range c.StreamChat(t.Context(), "b", &StartChatParams{InitialMessage: UserText("x")}, nil) {
	}
	require.EqualError(t, err, "arc: chat.start b at https://b.test/arc: HTTP status 404 Not Found")
}

func TestClientCallDecode(t *testing.T) {
	c := newTestClient(t, &peer{do: []reaction{ok(`{"sum":12345678901234567890}`)}}, nil)
	res, err := c.Call(t.Context(), "b", "math.add", map[string]int{"a": 1}, nil)
	require.NoError(t, err)
	var out struct{ Sum json.Number }
	require.NoError(t, res.Decode(&struct{ Sum int }{}), "names match exactly")
	var exact map[string]any
	require.NoError(t, res.Decode(&exact))
	require.Equal(t, json.Number("12345678901234567890"), exact["sum"])
	require.Empty(t, out.Sum)
	require.ErrorIs(t, (&Response{}).Decode(&exact), ErrInvalidResult)

	c = newTestClient(t, &peer{do: []reaction{ok(`{"sum":"text"}`)}}, nil)
	_, err = CallAs[struct {
		Sum int `json:"sum"`
	}](t.Context(), c, "b", "math.add", nil, nil)
	require.ErrorIs(t, err, ErrInvalidResult)
	require.ErrorContains(t, err, "arc: math.add b at https://b.test/arc: invalid result: ")
}

// The memory of requests is used again; over real connections, with answers that
// come before the request was read, and with lost ones, no request may show the
// bytes of another.
func TestClientMemory(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("X-Early") != "" {
			w.WriteHeader(500)
			return
		}
		body, _ := io.ReadAll(r.Body)
		req, err := DecodeRequest(body)
		if err != nil || r.Header.Get("X-Marker") != string(bytes.Trim(req.Params, `{}":m`)) {
			panic(http.ErrAbortHandler)
		}
		out, _ := AppendResponse(nil, &Response{ID: req.ID, ResponseAgent: "b", TargetAgent: "a", Result: req.Params})
		_, _ = w.Write(out)
	}))
	defer srv.Close()
	c, err := NewClient(srv.URL, "a", &ClientOptions{Retry: &RetryPolicy{MaxAttempts: -1}})
	require.NoError(t, err)
	defer c.Close()
	var wg sync.WaitGroup
	for g := range 8 {
		wg.Go(func() {
			for i := range 40 {
				marker := strings.Repeat(fmt.Sprintf("x%d.%d", g, i), 1+i*50)
				opts := &CallOptions{Header: http.Header{"X-Marker": {marker}}}
				if i%5 == 4 {
					opts.Header.Set("X-Early", "1")
				}
				if len(marker) > 4000 {
					marker = marker[:4000]
					opts.Header.Set("X-Marker", marker)
				}
				res, err := c.Call(t.Context(), "b", "x.y", json.RawMessage(`{"m":"`+marker+`"}`), opts)
				if i%5 == 4 {
					var h *HTTPError
					if !errors.As(err, &h) && !errors.Is(err, syscall.EPIPE) && !errors.Is(err, syscall.ECONNRESET) {
						t.Errorf("early answer: %v", err)
					}
				} else if err != nil || string(res.Result) != `{"m":"`+marker+`"}` {
					t.Errorf("%d %d: %v", g, i, err)
				}
			}
		})
	}
	wg.Wait()
}

// An HTTP client with a cookie jar or a timeout keeps them, and still has no influence on
// redirects.
func TestClientOfTheUser(t *testing.T) {
	follow := func(*http.Request, []*http.Request) error { return nil }
	for name, h := range map[string]*http.Client{"timeout": {Timeout: time.Hour}, "plain": {}} {
		t.Run(name, func(t *testing.T) {
			p := &peer{do: []reaction{ok(task("t", "WORKING")), reply(302, "", "", "Location", "https://evil.test/"), ok(task("t", "WORKING")),
				func(*http.Request, []byte) (*http.Response, error) { return nil, nil }}}
			h.Transport, h.CheckRedirect = p, follow
			c, err := NewClient("https://b.test/arc", "a", &ClientOptions{HTTPClient: h, Retry: &RetryPolicy{MaxAttempts: -1}})
			require.NoError(t, err)
			_, err = c.GetTask(t.Context(), "b", infoOf("t"), nil)
			require.NoError(t, err)
			_, err = c.GetTask(t.Context(), "b", infoOf("t"), nil)
			require.ErrorIs(t, err, ErrRedirect)
			_, err = c.GetTask(t.Context(), "b", infoOf("t"), nil)
			require.NoError(t, err)
			_, err = c.GetTask(t.Context(), "b", infoOf("t"), nil)
			require.Error(t, err, "a transport that breaks its contract")
			require.Len(t, p.sent, 4)
		})
	}
	_, _, err := collect(newTestClient(t, &peer{}, nil).Stream(t.Context(), "b", "x.y", func() {}, nil))
	require.ErrorContains(t, err, "arc: params")
}
