// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package accp_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/accp"
	"github.com/fivewire/fivewire/store"
)

// The numbers of a session end at 2^63-1 (ACCP-D20). A request whose answer needs a higher number
// is answered without a session (ACCP-D52, ACCP-D53), and its handler does not run.
func TestNumbersThatEnd(t *testing.T) {
	s, err := accp.NewServer("server", &accp.ServerOptions{Auth: accp.Auth{AllowAnonymous: true}})
	require.NoError(t, err)
	calls := 0
	s.Handle("req", "work", accp.HandlerFunc(func(_ context.Context, w *accp.ReplyWriter, _ *accp.Message) error {
		calls++
		return w.SendResult(nil)
	}))

	post := func(f []byte) (int, string) {
		r := httptest.NewRequest(http.MethodPost, accp.FramesPath, strings.NewReader(string(f)))
		r.Header.Set("Content-Type", accp.MediaType)
		w := httptest.NewRecorder()
		s.ServeHTTP(w, r)
		return w.Code, strings.TrimSuffix(w.Body.String(), "\n")
	}
	code, body := post(lastFrame("req:work{}", math.MaxInt64-1, "cid:c1"))
	require.Equal(t, http.StatusOK, code)
	require.Contains(t, body, ",seq:9223372036854775807,")
	require.Equal(t, 1, calls)

	for _, sid := range []string{"", "sid:s1"} {
		more := []string{"cid:c1"}
		if sid != "" {
			more = append(more, sid)
		}
		for i, f := range []string{"req:work{}", "req:nobody{}", "sync:registry{hash:abcdef|v:9}", "done:work{}"} {
			// A session takes its first frame with any number, and none after it.
			code, body := post(lastFrame(f, math.MaxInt64, more...))
			require.Equal(t, http.StatusBadRequest, code, f)
			want := "@server>fail:error{code:E9999|msg:internal_error|retry:true|schema:ER}[mid:"
			if sid != "" && i > 0 {
				want = "@server>fail:error{code:E3002|msg:duplicate|retry:false|schema:ER}[mid:"
			}
			require.True(t, strings.HasPrefix(body, want), "%s: %s", f, body)
			require.Regexp(t, `,seq:1,ts:[0-9]+,cid:c1,aid:[0-9a-f]{12}\]$`, body, f)
		}
	}
	require.Equal(t, 1, calls, "no work for which there is no answer")
	code, body = post(lastFrame("fail:error{code:E9999|schema:ER}", math.MaxInt64))
	require.Equal(t, http.StatusNoContent, code, "errors are never answered to fail frames")
	require.Empty(t, body)
	code, _ = post(lastFrame("ack:work{}", math.MaxInt64))
	require.Equal(t, http.StatusNoContent, code)
	code, _ = post(lastFrame("cancel:work{}", math.MaxInt64, "cid:c1"))
	require.Equal(t, http.StatusNoContent, code, "no error goes into a chain that has ended (ACCP-D28)")
	code, body = post(lastFrame("req:work{k:1}", math.MaxInt64, "part:1/2"))
	require.Equal(t, http.StatusBadRequest, code)
	require.Contains(t, body, "code:E9999")
	require.NoError(t, s.Shutdown(t.Context()))
}

// lastFrame is frame for the highest numbers.
func lastFrame(body string, seq int64, more ...string) []byte {
	meta := fmt.Sprintf("mid:%012x,seq:%d,ts:%d", math.MaxInt64-seq, seq, time.Now().Unix())
	return []byte("@a>" + body + "[" + strings.Join(append([]string{meta}, more...), ",") + "]")
}

// A message of several frames needs a number for each (ACCP-D38).
func TestPartsAtTheLastNumbers(t *testing.T) {
	for left := range int64(4) {
		s := session(t, nil)
		receive(t, s, lastFrame("ping:heartbeat{}", math.MaxInt64-left))
		long := func(k string) accp.Param { return text(k, strings.Repeat("abcdef ", 90)) }
		sent, err := s.Send(t.Context(), msg("req", "a", long("k"), long("l")))
		if left < 2 {
			require.ErrorIs(t, err, accp.ErrInternal, "%d left", left)
			continue
		}
		require.NoError(t, err)
		require.Len(t, sent.Frames, 2)
		require.Contains(t, string(sent.Frames[1]), fmt.Sprintf(",seq:%d,", int64(math.MaxInt64)-left+2))
	}
}

// A receipt that does not fit a frame, since the chain has so long a name, is an
// error frame without that name.
func TestAckThatDoesNotFit(t *testing.T) {
	s, err := accp.NewServer("server", &accp.ServerOptions{Auth: accp.Auth{AllowAnonymous: true}, Session: accp.SessionOptions{Lenient: true}})
	require.NoError(t, err)
	f := "@a>done:x{}[mid:" + strings.Repeat("m", 32700) + ",seq:1,cid:"
	f += strings.Repeat("c", 65535-len(f)) + "]"
	r := httptest.NewRequest(http.MethodPost, accp.FramesPath, strings.NewReader(f))
	r.Header.Set("Content-Type", accp.MediaType)
	w := httptest.NewRecorder()
	s.ServeHTTP(w, r)
	require.Equal(t, http.StatusBadRequest, w.Code)
	require.Contains(t, w.Body.String(), "@server>fail:error{code:E1001|")
	require.NoError(t, s.Shutdown(t.Context()))
}

// A request to an ended session is answered by an error frame.
func TestAnswerAfterTheEnd(t *testing.T) {
	kv := store.NewMemory()
	s, err := accp.NewServer("server", &accp.ServerOptions{Auth: accp.Auth{AllowAnonymous: true}, Persistence: accp.Persistence{Store: kv}})
	require.NoError(t, err)
	for _, op := range []string{"silent", "polite"} {
		s.Handle("req", op, accp.HandlerFunc(func(ctx context.Context, w *accp.ReplyWriter, _ *accp.Message) error {
			if op == "polite" {
				if err := w.SendResult(nil); err != nil {
					return err
				}
			}
			return w.Session().End(ctx, nil)
		}))

	}
	post := func(f []byte) *httptest.ResponseRecorder {
		r := httptest.NewRequest(http.MethodPost, accp.FramesPath, strings.NewReader(string(f)))
		r.Header.Set("Content-Type", accp.MediaType)
		w := httptest.NewRecorder()
		s.ServeHTTP(w, r)
		return w
	}
	w := post(frame("req:silent{}", 5, "sid:s1"))
	require.Equal(t, http.StatusBadRequest, w.Code)
	require.Regexp(t, `^@server>fail:error\{code:E9999\|.*,seq:1,ts:[0-9]+,cid:[0-9a-f]{12}\]\n$`, w.Body.String())
	require.Empty(t, sessionKeys(t, kv), "though the context of the handler ends with the session")
	w = post(frame("req:polite{}", 5, "sid:s1"))
	require.Equal(t, http.StatusOK, w.Code, w.Body.String())
	require.Contains(t, w.Body.String(), ",seq:6,", "the name began anew, and what was answered before the end is sent")
	require.NoError(t, s.Shutdown(t.Context()))
	require.Empty(t, sessionKeys(t, kv))
}

// A handler without an answer completes its request, over both bindings, so that no caller waits. Other intents without
// a result get a receipt (ACCP-D53).
func TestNoReply(t *testing.T) {
	d := newDesk(t, nil)
	result := make(chan error, 2)
	nothing := accp.HandlerFunc(func(_ context.Context, w *accp.ReplyWriter, _ *accp.Message) error {
		result <- w.Send(nil)
		return nil
	})
	for _, intent := range []accp.Intent{"req", "qry", "wait", "ack", "ping", "pong"} {
		d.Handle(intent, "nothing", nothing)
	}
	for _, intent := range []accp.Intent{"ack", "ping", "pong"} { // receipts and heartbeats
		m, err := d.http(t, nil).Call(t.Context(), msg(intent, "nothing"), nil)
		require.NoError(t, err)
		require.Nil(t, m)
		<-result
	}
	for _, c := range []caller{d.http(t, nil), d.dial(t, nil)} {
		for intent, want := range map[accp.Intent]accp.Intent{"req": "done", "qry": "done", "wait": "ack"} {
			m, err := c.Call(t.Context(), msg(intent, "nothing"), &accp.CallOptions{Timeout: 5 * time.Second})
			require.NoError(t, err)
			require.Equal(t, want, m.Intent, "%T", c)
			require.Empty(t, m.Params)
			require.ErrorContains(t, <-result, "no message")
		}
	}
	_, err := d.dial(t, nil).Call(t.Context(), nil, nil)
	require.ErrorContains(t, err, "no message")
}

// losing is a transport that loses selected requests.
type losing struct {
	http.RoundTripper
	lose atomic.Int64 // the one with this number, counted from now
	late atomic.Bool  // after the server had it

	after func() // called with the loss, unless nil
	host  string // of the later requests, unless empty
}

var errLost = errors.New("the line is cut")

func (l *losing) RoundTrip(r *http.Request) (*http.Response, error) {
	if l.host != "" {
		r.URL.Host = l.host
	}
	if l.lose.Add(-1) != 0 {
		return l.RoundTripper.RoundTrip(r)
	}
	if l.after != nil {
		defer l.after()
	}
	if l.late.Load() {
		res, err := l.RoundTripper.RoundTrip(r)
		if err != nil {
			return nil, err
		}
		res.Body.Close()
	}
	return nil, errLost
}

// An exchange of registries that broke off is finished by the next one, wherever it
// broke off (ACCP-D48, e.6).
func TestHelloAgain(t *testing.T) {
	for lost := int64(1); lost <= 3; lost++ {
		for _, late := range []bool{false, true} {
			t.Run(fmt.Sprint(lost, late), func(t *testing.T) {
				d := newDesk(t, nil)
				line := &losing{RoundTripper: d.client.Transport}
				line.late.Store(late)
				r := accp.NewRegistry()
				require.NoError(t, r.Register(accp.Schema{Code: "NO", Name: "note", Version: 1, Fields: []string{"text"}}))
				c := d.http(t, &accp.ClientOptions{SessionID: "h1", HTTPClient: &http.Client{Transport: line}, Session: accp.SessionOptions{Registry: r}})
				line.lose.Store(lost)
				synced, err := c.SyncRegistry(t.Context())
				require.NoError(t, err, "the frame is sent again")
				require.True(t, synced)
				s, ok := d.Session("h1")
				require.True(t, ok)
				require.Equal(t, r.Hash(), s.Registry().Hash())
			})
		}
	}
}

// A state that may not have come is sent again, though this side has it already
// (ACCP-D46).
func TestSyncAgain(t *testing.T) {
	d := newDesk(t, nil)
	line := &losing{RoundTripper: d.client.Transport}
	c := d.http(t, &accp.ClientOptions{SessionID: "h1", HTTPClient: &http.Client{Transport: line}, Retry: &accp.RetryPolicy{MaxAttempts: -1}})
	want := accp.Params{text("phase", "plan")}
	require.NoError(t, c.Sync(t.Context(), accp.Params{text("phase", "begin")}))
	line.lose.Store(1)
	require.ErrorIs(t, c.Sync(t.Context(), want), errLost)
	err := c.Sync(t.Context(), want)
	if errors.Is(err, accp.ErrSequenceGap) {
		err = c.Sync(t.Context(), want)
	}
	require.NoError(t, err)
	s, ok := d.Session("h1")
	require.True(t, ok)
	_, state := s.State()
	require.Equal(t, "plan", state.Text("phase"))
	sent := c.Session().Stats().Sent
	require.NoError(t, c.Sync(t.Context(), want))
	require.Equal(t, sent, c.Session().Stats().Sent, "nothing to send")
}

// A checkpoint for a full hot state may load the state of another process; the next difference is
// relative to that state.
func TestSyncThatMakesRoom(t *testing.T) {
	kv := &flaky{Store: store.NewMemory(), fits: func(key string) bool { return strings.Contains(key, "/cold/") }}
	other := session(t, &accp.SessionOptions{Persistence: accp.Persistence{Store: kv}, DisableAutoCheckpoint: true})
	m := &meddler{Store: kv, before: func(string, string) error { return nil }}
	s := session(t, &accp.SessionOptions{Persistence: accp.Persistence{Store: m}})
	accp.SetHotLimit(s, 2)
	kv.fail.Store(true)
	receive(t, s, frame("ack:x{}", 1))
	receive(t, s, frame("ack:x{}", 2))
	kv.fail.Store(false)
	m.before = func(string, string) error {
		m.before = func(string, string) error { return nil }
		_, err := other.Sync(t.Context(), accp.Params{text("theirs", "x")})
		return err
	}
	sent, err := s.Sync(t.Context(), accp.Params{text("ours", "x")})
	require.NoError(t, err)
	require.Contains(t, string(sent.Frames[0]), "|delta:{ours:x,theirs:~}|v:2}")
}

// The same over a connection.
func TestSyncAgainOverAConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, err := accp.NewServer("server", &accp.ServerOptions{Auth: accp.Auth{AllowAnonymous: true}})
		require.NoError(t, err)
		silent := true
		s.Handle("sync", "state", accp.HandlerFunc(func(ctx context.Context, _ *accp.ReplyWriter, _ *accp.Message) error {
			if silent {
				silent = false
				time.Sleep(2 * time.Second)
			}
			return nil
		}))

		p := newPipe()
		stop := p.serve(s)
		conn, err := accp.Dial(t.Context(), "ws://localhost"+accp.WebSocketPath, "client", &accp.ClientOptions{HTTPClient: p.client(), SessionID: "w", Timing: accp.ClientTiming{Timeout: time.Second}, Retry: &accp.RetryPolicy{MaxAttempts: -1}})
		require.NoError(t, err)
		synctest.Wait()
		want := accp.Params{text("phase", "plan")}
		frames := func() (n int64, err error) {
			before := conn.Session().Stats().Sent
			err = conn.Sync(t.Context(), want)
			return conn.Session().Stats().Sent - before, err
		}
		n, err := frames()
		require.EqualValues(t, 1, n)
		require.ErrorIs(t, err, accp.ErrTimeout)
		time.Sleep(2 * time.Second)
		n, err = frames()
		require.NoError(t, err)
		require.EqualValues(t, 1, n, "it may not have come")
		n, err = frames()
		require.NoError(t, err)
		require.Zero(t, n)
		require.NoError(t, conn.Close())
		require.NoError(t, s.Shutdown(t.Context()))
		stop()
	})
}

// While the store fails, and with a session that may no longer be used, the client
// learns which error it is, though that has no place in the order of the session.
func TestErrorsWithoutSession(t *testing.T) {
	kv := &flaky{Store: store.NewMemory()}
	denied := false
	d := newDesk(t, &accp.ServerOptions{Persistence: accp.Persistence{Store: kv}, Auth: accp.Auth{AllowAnonymous: true, Authorizer: accp.AuthorizerFunc(func(context.Context, *accp.Message) error {
		if denied {
			return errors.New("no longer")
		}
		return nil
	})}})
	c := d.http(t, &accp.ClientOptions{Retry: &accp.RetryPolicy{MaxAttempts: -1}})
	call := func() error {
		_, err := c.Call(t.Context(), msg("ping", "heartbeat"), nil)
		return err
	}
	refused := func(code accp.Code) {
		t.Helper()
		var e *accp.Error
		require.ErrorAs(t, call(), &e)
		require.Equal(t, code, e.Code)
		require.True(t, e.Remote)
	}
	require.NoError(t, call())
	kv.fail.Store(true)
	refused(accp.ErrInternal)
	kv.fail.Store(false)
	denied = true
	refused(accp.ErrPolicyDenied)
	denied = false
	refused(accp.ErrSequenceGap) // of the frames that were not taken
	require.NoError(t, call())
}

// No change of several writers of one state is lost (ACCP-D46).
func TestUpdatesOfSeveralWriters(t *testing.T) {
	d := newDesk(t, nil)
	const writers, changes = 8, 100
	var work sync.WaitGroup
	for i := range writers {
		c, err := accp.NewClient(d.ts.URL+accp.FramesPath, fmt.Sprint("writer", i), &accp.ClientOptions{
			SessionID: "shared", HTTPClient: d.client})
		require.NoError(t, err)
		work.Go(func() {
			defer c.Close()
			for range changes {
				err := c.Update(t.Context(), func(state accp.Params) (accp.Params, error) {
					v, _ := state.Get("n")
					n, _ := v.Int()
					return state.Set("n", accp.Int(n+1)), nil
				})
				if err != nil {
					t.Errorf("update: %v", err)
					return
				}
			}
		})
	}
	work.Wait()
	s, ok := d.Session("shared")
	require.True(t, ok)
	_, state := s.State()
	v, _ := state.Get("n")
	n, _ := v.Int()
	require.EqualValues(t, writers*changes, n)
}

// A change whose answer is lost is applied once. The repeated frame is recognized, also after the change of
// another writer and after a restart of the server. A frame that did not arrive is refused after another
// change, although the state of the peer then looks as if it had been applied (ACCP-D46).
func TestUpdateIsAppliedOnce(t *testing.T) {
	for _, isLate := range []bool{true, false} {
		for _, others := range []int{0, 1, 2} {
			for _, hasRestart := range []bool{false, true} {
				t.Run(fmt.Sprint("arrived=", isLate, ",others=", others, ",restart=", hasRestart), func(t *testing.T) {
					db := store.NewMemory()
					opts := func() *accp.ServerOptions {
						return &accp.ServerOptions{Persistence: accp.Persistence{Store: db}}
					}
					d := newDesk(t, opts())
					line := &losing{RoundTripper: d.client.Transport}
					line.late.Store(isLate)
					c := d.http(t, &accp.ClientOptions{SessionID: "h1", HTTPClient: &http.Client{Transport: line},
						Retry: &accp.RetryPolicy{Base: -1}})
					other, err := accp.NewClient(d.ts.URL+accp.FramesPath, "other", &accp.ClientOptions{SessionID: "h1", HTTPClient: d.client})
					require.NoError(t, err)
					defer other.Close()
					number := func() int {
						_, state := c.Session().State()
						v, _ := state.Get("n")
						n, _ := v.Int()
						return int(n)
					}
					increment := func(state accp.Params) (accp.Params, error) {
						v, _ := state.Get("n")
						n, _ := v.Int()
						filler := text("filler", strings.Repeat(fmt.Sprint(n), 30_000)) // the record is compacted
						return state.Set("n", accp.Int(n+1)).Set(filler.Key, filler.Value), nil
					}
					require.NoError(t, c.Update(t.Context(), increment))
					require.NoError(t, other.Update(t.Context(), increment))
					require.NoError(t, c.Update(t.Context(), increment))
					line.after = func() {
						for range others {
							require.NoError(t, other.Update(t.Context(), increment))
						}
						if hasRestart {
							line.host = newDesk(t, opts()).ts.Listener.Addr().String()
						}
					}
					line.lose.Store(1)
					require.NoError(t, c.Update(t.Context(), increment))
					line.lose.Store(0)
					want := 4 // the others came later
					if !isLate {
						want += others
					}
					require.Equal(t, want, number())
					require.NoError(t, c.Update(t.Context(), increment))
					require.Equal(t, 3+others+2, number())
				})
			}
		}
	}
}

// A change that may have been applied is repeated by the same frame only, and taken back without an answer
// (ACCP-D46).
func TestUpdateAfterErrors(t *testing.T) {
	kv := &flaky{Store: store.NewMemory()}
	d := newDesk(t, &accp.ServerOptions{Persistence: accp.Persistence{Store: kv}})
	isFailing, calls, posts := true, 0, atomic.Int64{}
	d.Handle("sync", "state", accp.HandlerFunc(func(context.Context, *accp.ReplyWriter, *accp.Message) error {
		defer func() { isFailing = false }()
		if isFailing {
			return errors.New("after the change")
		}
		return nil
	}))
	line := &losing{RoundTripper: roundTrips(func(r *http.Request) (*http.Response, error) {
		posts.Add(1)
		return d.client.Transport.RoundTrip(r)
	})}
	c := d.http(t, &accp.ClientOptions{SessionID: "h1", HTTPClient: &http.Client{Transport: line}, Retry: &accp.RetryPolicy{Base: -1}})
	next := func(accp.Params) (accp.Params, error) {
		calls++
		return accp.Params{text("call", fmt.Sprint(calls))}, nil
	}
	state := func() string {
		_, state := c.Session().State()
		return state.Text("call")
	}
	require.NoError(t, c.Update(t.Context(), next), "the repeated frame is recognized")
	require.Equal(t, 1, calls)
	require.Equal(t, "1", state())

	kv.fail.Store(true)
	posts.Store(0)
	var failed *accp.CallError
	require.ErrorAs(t, c.Update(t.Context(), next), &failed)
	require.True(t, failed.MayHaveRun)
	require.EqualValues(t, 3, posts.Load(), "of one frame")
	require.Equal(t, "1", state(), "taken back")
	kv.fail.Store(false)
	require.NoError(t, c.Update(t.Context(), next))
	require.Equal(t, fmt.Sprint(calls), state())
}

// Frames of an answer that arrive twice in one response are used once. A response of repeated frames only is
// not an answer (ACCP-D26).
func TestDoubledAnswer(t *testing.T) {
	d := newDesk(t, nil)
	var earlier []string
	change := func(lines []string) []string { return lines }
	c := d.http(t, &accp.ClientOptions{Retry: &accp.RetryPolicy{MaxAttempts: -1}, HTTPClient: &http.Client{
		Transport: roundTrips(func(r *http.Request) (*http.Response, error) {
			res, err := d.client.Transport.RoundTrip(r)
			if err != nil {
				return nil, err
			}
			body, err := io.ReadAll(res.Body)
			if err != nil {
				return nil, err
			}
			lines := change(strings.SplitAfter(string(body), "\n"))
			earlier = lines
			res.Body = io.NopCloser(strings.NewReader(strings.Join(lines, "")))
			res.ContentLength = -1
			return res, nil
		})}})
	large := msg("req", "echo", text("k", strings.Repeat("long text ", 20_000)))
	count := msg("req", "count", accp.Param{Key: "n", Value: accp.Int(3)})
	_, err := c.SyncRegistry(t.Context())
	require.NoError(t, err)

	for name, double := range map[string]func(lines []string) []string{
		"frame": func(lines []string) (out []string) {
			for _, l := range lines {
				out = append(out, l, l)
			}
			return out
		},
		"response": func(lines []string) []string { return append(lines, lines...) },
	} {
		change = double
		m, err := c.Call(t.Context(), msg("req", "echo", text("k", "short")), nil)
		require.NoError(t, err, name)
		require.Equal(t, "short", m.Params.Text("k"))
		list, err := collect(c.Stream(t.Context(), count, nil))
		require.NoError(t, err, name)
		require.Equal(t, []int64{0, 1, 2}, list)
		m, err = c.Call(t.Context(), large, nil)
		require.NoError(t, err, name)
		require.Equal(t, large.Params.Text("k"), m.Params.Text("k"), name)
	}

	old := earlier
	change = func([]string) []string { return old }
	_, err = c.Call(t.Context(), msg("req", "echo", text("k", "other")), nil)
	require.ErrorIs(t, err, accp.ErrDuplicate)
}

type roundTrips func(r *http.Request) (*http.Response, error)

func (f roundTrips) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// A request that the transport doubles gets the outcome of the copy that runs, although the other copy is refused.
// Without an outcome the error reports that the request may have run (ACCP-D29, ACCP-D72).
func TestDoubledRequest(t *testing.T) {
	for _, isKept := range []bool{true, false} {
		d := newDesk(t, nil)
		ran, proceed := make(chan struct{}, 2), make(chan struct{})
		d.Handle("req", "work", accp.HandlerFunc(func(ctx context.Context, w *accp.ReplyWriter, _ *accp.Message) error {
			ran <- struct{}{}
			if !isKept {
				return errors.New("forgotten")
			}
			select {
			case <-proceed:
			case <-ctx.Done():
				return ctx.Err()
			}
			return w.SendResult(accp.Params{text("result", "ready")})
		}))
		frames := 0
		c := d.http(t, &accp.ClientOptions{Retry: &accp.RetryPolicy{Base: -1}, HTTPClient: &http.Client{
			Transport: roundTrips(func(r *http.Request) (*http.Response, error) {
				body, err := r.GetBody()
				if err != nil {
					return nil, err
				}
				frame, err := io.ReadAll(body)
				if err != nil || !strings.Contains(string(frame), "req:work") {
					return d.client.Transport.RoundTrip(r)
				}
				if frames++; frames > 1 {
					close(proceed)
					return d.client.Transport.RoundTrip(r)
				}
				first := make(chan struct{})
				go func() {
					defer close(first)
					res, err := d.client.Post(d.ts.URL+accp.FramesPath, accp.MediaType, strings.NewReader(string(frame)))
					if err == nil {
						_ = res.Body.Close()
					}
				}()
				if <-ran; !isKept {
					<-first
				}
				return d.client.Transport.RoundTrip(r)
			})}})
		m, err := c.Call(t.Context(), msg("req", "work"), nil)
		if isKept {
			require.NoError(t, err)
			require.Equal(t, "ready", m.Params.Text("result"))
			require.Equal(t, 2, frames)
		} else {
			var failed *accp.CallError
			require.ErrorAs(t, err, &failed)
			require.ErrorIs(t, err, accp.ErrDuplicate)
			require.True(t, failed.MayHaveRun)
		}
		require.Empty(t, ran, "the handler runs once")
	}
}
