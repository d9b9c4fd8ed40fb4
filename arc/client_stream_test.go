// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package arc

import (
	"context"
	"fmt"
	"io"
	"iter"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/fivewire/fivewire/internal/race"
)

// collect ranges over a stream to its end.
func collect(events iter.Seq2[*ChatEvent, error]) (text string, done bool, err error) {
	for ev, fault := range events {
		if fault != nil {
			return text, done, fault
		}
		text += ev.Text
		done = done || ev.Done
	}
	return text, done, nil
}

func startStream(c *Client, ctx context.Context, opts *CallOptions) iter.Seq2[*ChatEvent, error] {
	return c.StreamChat(ctx, "b", &StartChatParams{InitialMessage: UserText("x")}, opts)
}

func stream(text string) reaction {
	return chunked(reply(200, mediaTypeStream+"; charset=utf-8", text))
}

// ARC-D11, ARC-D22 to ARC-D24, ARC-D27: how streams begin and end.
func TestClientStream(t *testing.T) {
	chat := `{"type":"chat","chat":{"chatId":"c1","status":"CLOSED","message":{"role":"agent","parts":[{"type":"TextPart","content":"all"}]}}}`
	broken := func(req *http.Request, body []byte) (*http.Response, error) {
		resp, err := stream("")(req, body)
		resp.Body = io.NopCloser(io.MultiReader(strings.NewReader(chunkEvent("a")), errReader{reset()}))
		return resp, err
	}
	tests := []struct {
		name   string
		do     reaction
		text   string
		want   error
		status int
	}{
		{name: "complete", do: stream(chunkEvent("a ") + chunkEvent("b") + doneEvent), text: "a b"},
		{name: "more after done", do: stream(chunkEvent("a") + doneEvent + chunkEvent("b")), text: "a"},
		{name: "cut", do: stream(chunkEvent("a")), text: "a", want: ErrTruncated},
		{name: "cut is no end of input", do: stream(chunkEvent("a")), text: "a", want: io.ErrUnexpectedEOF},
		{name: "empty", do: stream(""), want: ErrTruncated},
		{name: "connection lost", do: broken, text: "a", want: syscall.ECONNRESET},
		{name: "malformed", do: stream(chunkEvent("a") + "event: stream\ndata: {\n\n"), text: "a", want: ErrMalformedEvent},
		{name: "too large", do: stream(chunkEvent("a") + chunkEvent(strings.Repeat("x", 3000))), text: "a", want: ErrTooLarge},
		{name: "error", do: stream(chunkEvent("a") + "event: error\ndata: {\"error\":{\"code\":-43003}}\n\n" + doneEvent), text: "a", want: ErrChatTimeout},
		{name: "JSON", do: ok(chat), text: "all"},
		{name: "JSON acknowledgment", do: ok(`{"success":true}`), want: ErrInvalidResult}, // of chat.start: ARC-D31 is about chat.message
		{name: "JSON error", do: arcFault(404, ErrAgentNotFound), want: ErrAgentNotFound},
		{name: "JSON for another", do: reply(200, MediaType, `{"arc":"1.0","id":"x","responseAgent":"b","targetAgent":"a","result":{}}`), want: ErrIDMismatch},
		{name: "JSON too large", do: reply(200, MediaType, strings.Repeat(" ", 3000)), want: ErrTooLarge},
		{name: "not ARC", do: reply(200, MediaType, `{}`), want: ErrVersionMismatch},
		{name: "HTML", do: reply(200, "text/html", "<p>"), status: 200},
		{name: "no type", do: reply(502, "", "bad"), status: 502},
		{name: "failed stream", do: chunked(reply(500, mediaTypeStream, chunkEvent("a")+doneEvent)), status: 500},
		{name: "failed stream that says why", do: chunked(reply(500, mediaTypeStream, "event: error\ndata: {\"error\":{\"code\":-43006}}\n\n")), want: ErrChatBufferOverflow},
		{name: "redirect", do: reply(302, "", "", "Location", "/x"), want: ErrRedirect},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			p := &peer{do: []reaction{tt.do}}
			c := newTestClient(t, p, &ClientOptions{Limits: ClientLimits{MaxEvent: 2000, MaxMessage: 2000}})
			text, done, err := collect(startStream(c, t.Context(), nil))
			require.Equal(t, tt.text, text)
			var h *HTTPError
			if tt.status != 0 {
				require.ErrorAs(t, err, &h)
				require.Equal(t, tt.status, h.Status)
			} else {
				require.ErrorIs(t, err, tt.want)
			}
			require.Equal(t, err == nil, done)
			require.Equal(t, "text/event-stream, application/arc+json", p.sent[0].Header.Get("Accept"))
			require.Contains(t, p.bodies[0], `"stream":true`)
			require.Len(t, p.sent, 1)
		})
	}
}

type errReader struct{ err error }

func (r errReader) Read([]byte) (int, error) { return 0, r.err }

// ARC-D31: a peer that only acknowledges a streamed chat.message.
func TestClientStreamAck(t *testing.T) {
	c := newTestClient(t, &peer{do: []reaction{ok(`{"success":true}`), ok(`{"n":1}`)}}, nil)
	text, done, err := collect(c.StreamChatMessage(t.Context(), "b", &ChatMessageParams{ChatID: "c1", Message: UserText("x")}, nil))
	require.NoError(t, err)
	require.True(t, done)
	require.Empty(t, text)
	_, done, err = collect(c.Stream(t.Context(), "b", "report.make", map[string]bool{"stream": true}, nil))
	require.NoError(t, err)
	require.True(t, done)
}

// ARC-D49 holds for the request of a stream, too.
func TestClientStreamRetries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &peer{do: []reaction{fails(refusedDial()), fails(refusedDial()), stream(doneEvent), fails(reset()), stream(doneEvent)}}
		c := newTestClient(t, p, nil)
		_, _, err := collect(startStream(c, t.Context(), nil))
		require.NoError(t, err)
		require.Len(t, p.sent, 3)
		_, _, err = collect(startStream(c, t.Context(), nil))
		require.ErrorIs(t, err, syscall.ECONNRESET)
		require.Len(t, p.sent, 4)
	})
}

func TestClientStreamOnce(t *testing.T) {
	p := &peer{do: []reaction{stream(doneEvent), stream(doneEvent)}}
	events := startStream(newTestClient(t, p, nil), t.Context(), nil)
	require.Empty(t, p.sent, "nothing goes out before the loop")
	_, _, err := collect(events)
	require.NoError(t, err)
	_, _, err = collect(events)
	require.ErrorIs(t, err, errStreamUsed)
	require.Len(t, p.sent, 1)
}

// slowBody yields its pieces one by one, each after a pause.
type slowBody struct {
	ctx    context.Context
	pieces []string
	pause  time.Duration
	closed atomic.Bool
}

func (b *slowBody) Read(p []byte) (int, error) {
	if len(b.pieces) == 0 {
		<-b.ctx.Done()
		return 0, b.ctx.Err()
	}
	select {
	case <-time.After(b.pause):
	case <-b.ctx.Done():
		return 0, b.ctx.Err()
	}
	n := copy(p, b.pieces[0])
	b.pieces = b.pieces[1:]
	return n, nil
}

func (b *slowBody) Close() error { b.closed.Store(true); return nil }

func slowly(pause time.Duration, out **slowBody, pieces ...string) reaction {
	return func(req *http.Request, _ []byte) (*http.Response, error) {
		*out = &slowBody{ctx: req.Context(), pieces: pieces, pause: pause}
		return &http.Response{StatusCode: 200, Header: http.Header{"Content-Type": {mediaTypeStream}}, Body: *out, ContentLength: -1}, nil
	}
}

// ARC-D18: no limit in total, one for silence, which the reader's own slowness does
// not count for and a comment breaks.
func TestClientStreamIdle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var body *slowBody
		pieces := []string{chunkEvent("a")}
		for range 50 {
			pieces = append(pieces, ": keep-alive\n\n")
		}
		c := newTestClient(t, &peer{do: []reaction{slowly(50*time.Second, &body, append(pieces, doneEvent)...)}}, nil)
		begin := time.Now()
		for ev, err := range startStream(c, t.Context(), nil) {
			require.NoError(t, err)
			time.Sleep(5 * time.Minute) // slow use of ev
			_ = ev
		}
		require.Greater(t, time.Since(begin), 45*time.Minute)
		require.True(t, body.closed.Load())

		c = newTestClient(t, &peer{do: []reaction{slowly(time.Second, &body, chunkEvent("a"))}}, nil)
		begin = time.Now()
		text, done, err := collect(startStream(c, t.Context(), nil))
		require.ErrorIs(t, err, ErrTimeout)
		require.Equal(t, "a", text)
		require.False(t, done)
		require.Equal(t, 61*time.Second, time.Since(begin))
		require.True(t, body.closed.Load())

		hangs := func(req *http.Request, _ []byte) (*http.Response, error) {
			<-req.Context().Done()
			return nil, req.Context().Err()
		}
		c = newTestClient(t, &peer{do: []reaction{hangs}}, nil)
		begin = time.Now()
		_, _, err = collect(startStream(c, t.Context(), &CallOptions{Timeout: time.Second}))
		require.ErrorIs(t, err, ErrTimeout)
		require.Equal(t, time.Second, time.Since(begin))
	})
}

// Cancelling and leaving the loop both end the peer's work, and a panic does.
func TestClientStreamLeave(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	done := make(chan struct{}, 3)
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.ReadAll(r.Body)
		w.Header().Set("Content-Type", mediaTypeStream)
		_, _ = io.WriteString(w, chunkEvent("a"))
		w.(http.Flusher).Flush()
		<-r.Context().Done()
		done <- struct{}{}
	}))
	defer srv.Close()
	c, err := NewClient(srv.URL, "a", nil)
	require.NoError(t, err)
	defer c.Close()

	for ev, err := range startStream(c, t.Context(), nil) {
		require.NoError(t, err)
		require.Equal(t, "a", ev.Text)
		break
	}
	<-done

	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var last error
	for _, err := range startStream(c, ctx, nil) {
		cancel()
		last = err
	}
	require.ErrorIs(t, last, context.Canceled)
	<-done

	require.Panics(t, func() {
		for range startStream(c, t.Context(), nil) {
			panic("user")
		}
	})
	<-done
}

func withID(id, event string) string { return strings.Replace(event, "\n", "\nid: "+id+"\n", 1) }

// Streams that survive: the request goes out again with the same id and the last
// event's, as often in a row as was agreed, and never unasked.
func TestClientStreamResume(t *testing.T) {
	one, two, end := withID("s.1", chunkEvent("a")), withID("s.2", chunkEvent("b")), withID("s.3", doneEvent)
	idle := func(pieces ...string) reaction {
		var b *slowBody
		return slowly(time.Second, &b, pieces...)
	}
	tests := []struct {
		name  string
		limit int
		do    []reaction
		text  string
		after []string // Last-Event-ID of each request
		want  error
	}{
		{"cut twice", 1, []reaction{stream(one), stream(two), stream(end)}, "ab", []string{"", "s.1", "s.2"}, nil},
		{"silent", 1, []reaction{idle(one), stream(two + end)}, "ab", []string{"", "s.1"}, nil},
		{"no connection", 1, []reaction{stream(one), fails(refusedDial()), stream(two + end)}, "ab", []string{"", "s.1", "s.1"}, nil},
		{"no progress", 2, []reaction{stream(one), stream(""), stream(""), stream("")}, "a", []string{"", "s.1", "s.1"}, ErrTruncated},
		{"off", 0, []reaction{stream(one), stream(two + end)}, "a", []string{""}, ErrTruncated},
		{"no ids", 1, []reaction{stream(chunkEvent("a")), stream(doneEvent)}, "a", []string{""}, ErrTruncated},
		{"error event", 1, []reaction{stream(one + "event: error\ndata: {\"error\":{\"code\":-43003}}\n\n"), stream(end)}, "a", []string{""}, ErrChatTimeout},
		{"proxy without a server", 4, []reaction{stream(one), reply(502, "text/html", "x"), reply(504, "text/html", "x"), reply(503, "text/plain", "x"), stream(two + end)}, "ab", []string{"", "s.1", "s.1", "s.1", "s.1"}, nil},
		{"server that shuts down", 2, []reaction{stream(one), arcFault(503, ErrAgentNotAvailable), stream(two + end)}, "ab", []string{"", "s.1", "s.1"}, nil},
		{"overloaded for long", 2, []reaction{stream(one), arcFault(429, ErrAgentCapacityExceeded), arcFault(429, ErrAgentCapacityExceeded)}, "a",
			[]string{"", "s.1", "s.1"}, ErrAgentCapacityExceeded},
		{"failed server", 2, []reaction{stream(one), arcFault(500, ErrInternal), stream(two + end)}, "a", []string{"", "s.1"}, ErrInternal},
		{"no longer there", 1, []reaction{stream(one), arcFault(200, ErrChatTimeout)}, "a", []string{"", "s.1"}, ErrChatTimeout},
		{"gap", 1, []reaction{stream(one), stream(end)}, "a", []string{"", "s.1"}, ErrMalformedEvent},
		{"event twice", 1, []reaction{stream(one), stream(one + two + end)}, "a", []string{"", "s.1"}, ErrMalformedEvent},
		{"other stream", 1, []reaction{stream(one), stream(withID("t.2", chunkEvent("b")))}, "a", []string{"", "s.1"}, ErrMalformedEvent},
		{"no numbers", 1, []reaction{stream(one), stream(chunkEvent("b") + doneEvent)}, "a", []string{"", "s.1"}, ErrMalformedEvent},
		{"leading zero", 1, []reaction{stream(one), stream(withID("s.02", chunkEvent("b")))}, "a", []string{"", "s.1"}, ErrMalformedEvent},
		{"done without number", 1, []reaction{stream(one + doneEvent)}, "a", []string{""}, ErrMalformedEvent},
		{"whole answer", 1, []reaction{stream(one), ok(`{"type":"chat","chat":{"chatId":"c","status":"ACTIVE","message":{"role":"agent","parts":[]}}}`)},
			"a", []string{"", "s.1"}, ErrMalformedEvent},
		{"ids of another form", 2, []reaction{stream(withID("7", chunkEvent("a"))), stream(withID("s 7", chunkEvent("b")) + doneEvent)}, "ab", []string{"", "7"}, nil},
		{"numbers from the second event on", 1, []reaction{stream(chunkEvent("a") + withID("s.9", chunkEvent("b")) + withID("s.10", doneEvent))}, "ab", []string{""}, nil},
		{"error without number", 1, []reaction{stream(one + "event: error\ndata: {\"error\":{\"code\":-41002}}\n\n")}, "a", []string{""}, ErrAgentNotAvailable},
		{"malformed", 1, []reaction{stream(one + "event: stream\ndata: {\n\n"), stream(end)}, "a", []string{""}, ErrMalformedEvent},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := &peer{do: tt.do}
				text, done, err := collect(startStream(newTestClient(t, p, &ClientOptions{MaxResumes: tt.limit}), t.Context(), nil))
				require.ErrorIs(t, err, tt.want)
				require.Equal(t, tt.want == nil, done)
				require.Equal(t, tt.text, text)
				for _, b := range p.bodies {
					require.Equal(t, p.bodies[0], b)
				}
				require.Len(t, p.sent, len(tt.after))
				require.Equal(t, tt.after[len(tt.after)-1], p.sent[len(p.sent)-1].Header.Get("Last-Event-ID"))
			})
		})
	}
}

// A resumed stream is a request with the present token, and the expiry of its token is a cut unless the source has no other.
func TestClientStreamResumeToken(t *testing.T) {
	one, end := withID("s.1", chunkEvent("a")), withID("s.2", doneEvent)
	expired := "event: error\ndata: {\"error\":{\"code\":-44004}}\n\n"
	for _, tt := range []struct {
		name   string
		do     []reaction
		life   time.Duration // of a token
		tokens []string      // of each request
		want   error
	}{
		{"cut", []reaction{stream(one), stream(end)}, 100 * time.Millisecond, []string{"t1", "t2"}, nil},
		{"expired in the stream", []reaction{stream(one + expired), stream(end)}, time.Hour, []string{"t1", "t2"}, nil},
		{"no other token", []reaction{stream(one + expired), stream(end)}, 0, []string{"t1"}, ErrTokenExpired},
		{"new token refused", []reaction{stream(one + expired), arcFault(401, ErrTokenExpired)}, time.Hour, []string{"t1", "t2"}, ErrTokenExpired},
		{"expired at once", []reaction{stream(expired)}, time.Hour, []string{"t1"}, ErrTokenExpired},
		{"numbered", []reaction{stream(one + withID("s.2", expired))}, time.Hour, []string{"t1"}, ErrTokenExpired},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := 0
				src := NewRefreshingTokens(func(context.Context) (string, time.Time, error) {
					n++
					return fmt.Sprint("t", n), time.Now().Add(tt.life), nil
				}, 0)
				if tt.life == 0 {
					src = StaticTokenSource("t1")
				}
				p := &peer{do: tt.do}
				_, done, err := collect(startStream(newTestClient(t, p, &ClientOptions{TokenSource: src, MaxResumes: 2}), t.Context(), nil))
				require.ErrorIs(t, err, tt.want)
				require.Equal(t, tt.want == nil, done)
				var tokens []string
				for _, r := range p.sent {
					tokens = append(tokens, strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer "))
				}
				require.Equal(t, tt.tokens, tokens)
			})
		})
	}
}

// The delay that a server requests is not a silence of the server.
func TestClientStreamWaitsForRetryAfterOverIdleTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &peer{do: []reaction{reply(503, MediaType, fault(ErrAgentNotAvailable), "Retry-After", "90"), stream(chunkEvent("a") + doneEvent)}}
		c := newTestClient(t, p, &ClientOptions{IdleTimeout: time.Minute, Retry: &RetryPolicy{MaxRetryAfter: 2 * time.Minute}})
		start := time.Now()
		text, done, err := collect(startStream(c, t.Context(), nil))
		require.NoError(t, err)
		require.True(t, done)
		require.Equal(t, "a", text)
		require.Equal(t, 90*time.Second, time.Since(start))
	})
}

func TestClientStreamInterceptors(t *testing.T) {
	p := &peer{do: []reaction{stream(chunkEvent("a") + doneEvent)}}
	upper := func(next StreamFunc) StreamFunc {
		return func(ctx context.Context, out *ClientRequest) iter.Seq2[*ChatEvent, error] {
			out.Header = http.Header{"X-Seen": {out.Method}}
			return func(yield func(*ChatEvent, error) bool) {
				for ev, err := range next(ctx, out) {
					if ev != nil {
						ev.Text = strings.ToUpper(ev.Text)
					}
					if !yield(ev, err) {
						return
					}
				}
			}
		}
	}
	c := newTestClient(t, p, &ClientOptions{StreamInterceptors: []StreamInterceptor{upper}})
	text, done, err := collect(startStream(c, t.Context(), nil))
	require.NoError(t, err)
	require.True(t, done)
	require.Equal(t, "A", text)
	require.Equal(t, "chat.start", p.sent[0].Header.Get("X-Seen"))
}

// The allocations of an event without those of HTTP.
func TestClientStreamAllocs(t *testing.T) {
	if race.Enabled {
		t.Skip("the race detector allocates")
	}
	cost := func(events int) float64 {
		text := strings.Repeat(chunkEvent("a"), events) + doneEvent
		return testing.AllocsPerRun(20, func() {
			p := &peer{do: []reaction{stream(text)}}
			if _, _, err := collect(startStream(newTestClient(t, p, nil), t.Context(), nil)); err != nil {
				t.Error(err)
			}
		})
	}
	few, many := cost(100), cost(200)
	per := (many - few) / 100
	// The event, its text, and the text that collect puts together.
	require.LessOrEqual(t, per, 3.1, fmt.Sprint(few, many))
}
