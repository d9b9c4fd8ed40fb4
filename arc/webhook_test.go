// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package arc

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

const secret = WebhookSecret("s3cret")

func notificationRequest(t testing.TB, id ID, at time.Time) []byte {
	t.Helper()
	params := mustJSON(t, Notification{TaskID: "t", Event: EventTaskCompleted, Timestamp: NewTimestamp(at),
		Data: NotificationData{Status: "COMPLETED", Message: "done"}})
	body, err := AppendRequest(nil, &Request{ID: id, Method: MethodTaskNotification, RequestAgent: "worker-01", TargetAgent: "ui-01", TraceID: "wf", Params: params})
	require.NoError(t, err)
	return body
}

func post(r http.Handler, body []byte, header http.Header) *httptest.ResponseRecorder {
	req := httptest.NewRequest("POST", "/hook", strings.NewReader(string(body)))
	req.Header = header
	w := httptest.NewRecorder()
	r.ServeHTTP(w, req)
	return w
}

func signed(body []byte) http.Header {
	return http.Header{"Content-Type": {MediaType}, headerSignature: {SignWebhook([]byte(secret), body)}}
}

// ARC-113, ARC-D43: what a receiver accepts, and that it calls the handler once.
func TestWebhookReceiver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var got []*Notification
		var trace string
		fail := errors.New("not now")
		h := NotificationHandlerFunc(func(ctx context.Context, n *Notification) error {
			trace = TraceIDFromContext(ctx)
			got = append(got, n)
			err := fail
			fail = nil
			return err
		})
		r, err := NewWebhookReceiver(h, []WebhookSecret{"other", secret}, nil)
		require.NoError(t, err)
		now := time.Now()
		body := notificationRequest(t, `"n-1"`, now)

		require.Equal(t, 500, post(r, body, signed(body)).Code, "the handler failed: the sender shall come back")
		w := post(r, body, signed(body))
		require.Equal(t, 200, w.Code, "a delivery that failed is no replay")
		require.JSONEq(t, `{"success":true}`, w.Body.String())
		require.Equal(t, 200, post(r, body, signed(body)).Code)
		require.Len(t, got, 2, "handled once, and once in vain")
		require.Equal(t, "wf", trace)
		require.Equal(t, EventTaskCompleted, got[1].Event)

		for name, tt := range map[string]struct {
			body   []byte
			change func(http.Header)
			status int
		}{
			"no signature":       {body, func(h http.Header) { h.Del(headerSignature) }, 401},
			"other signature":    {body, func(h http.Header) { h.Set(headerSignature, SignWebhook([]byte("x"), body)) }, 401},
			"changed body":       {[]byte(strings.Replace(string(body), "done", "gone", 1)), nil, 401},
			"media type":         {body, func(h http.Header) { h.Set("Content-Type", "text/plain") }, 415},
			"no media type":      {body, func(h http.Header) { h.Del("Content-Type") }, 415},
			"from the future":    {notificationRequest(t, `"n-2"`, now.Add(6*time.Minute)), nil, 401},
			"too old":            {notificationRequest(t, `"n-3"`, now.Add(-25*time.Hour)), nil, 401},
			"old enough":         {notificationRequest(t, `"n-4"`, now.Add(-23*time.Hour)), nil, 200},
			"not JSON":           {[]byte("{"), nil, 400},
			"no object":          {[]byte("[1]"), nil, 400},
			"other method":       {[]byte(`{"arc":"1.0","id":1,"method":"task.info","requestAgent":"a","targetAgent":"b","params":{"taskId":"t"}}`), nil, 400},
			"bad envelope":       {[]byte(`{"arc":"2.0","params":{}}`), nil, 400},
			"bad params":         {[]byte(`{"arc":"1.0","id":1,"method":"task.notification","requestAgent":"a","targetAgent":"b","params":{}}`), nil, 400},
			"flat without event": {[]byte(`{"taskId":"t"}`), nil, 400},
		} {
			header := http.Header{"Content-Type": {"application/json"}, headerSignature: {SignWebhook([]byte(secret), tt.body)}}
			if name == "changed body" {
				header.Set(headerSignature, SignWebhook([]byte(secret), body))
			}
			if tt.change != nil {
				tt.change(header)
			}
			require.Equal(t, tt.status, post(r, tt.body, header).Code, name)
		}
		req := httptest.NewRequest("GET", "/", nil)
		w = httptest.NewRecorder()
		r.ServeHTTP(w, req)
		require.Equal(t, 405, w.Code)
		require.Equal(t, "POST", w.Header().Get("Allow"))

		// The memory of a delivery lasts as long as one may be repeated.
		time.Sleep(24*time.Hour + time.Second)
		again := notificationRequest(t, `"n-1"`, time.Now())
		require.Equal(t, 200, post(r, again, signed(again)).Code)
		require.Len(t, got, 4)
	})
}

// Two processors may choose the same id.
func TestWebhookReceiverTellsSendersApart(t *testing.T) {
	calls := 0
	r, err := NewWebhookReceiver(NotificationHandlerFunc(func(context.Context, *Notification) error { calls++; return nil }), nil, &WebhookReceiverOptions{AllowUnsigned: true})
	require.NoError(t, err)
	header := http.Header{"Content-Type": {MediaType}}
	a := notificationRequest(t, "1", time.Now())
	b := []byte(strings.Replace(string(a), "worker-01", "worker-02", 1))
	for _, body := range [][]byte{a, b, a, b} {
		require.Equal(t, 200, post(r, body, header).Code)
	}
	require.Equal(t, 2, calls)
}

// Deliveries of one notification at the same time call the handler once.
func TestWebhookReceiverAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var calls atomic.Int32
		r, err := NewWebhookReceiver(NotificationHandlerFunc(func(context.Context, *Notification) error {
			calls.Add(1)
			time.Sleep(time.Second)
			return nil
		}), []WebhookSecret{secret}, nil)
		require.NoError(t, err)
		body := notificationRequest(t, "7", time.Now())
		var wg sync.WaitGroup
		for range 20 {
			wg.Go(func() {
				if w := post(r, body, signed(body)); w.Code != 200 {
					t.Error(w.Code)
				}
			})
		}
		wg.Wait()
		require.Equal(t, int32(1), calls.Load())
	})
}

// A sender that trickles its body has as long as any other request, and is then
// cut off.
func TestWebhookReceiverSlowBody(t *testing.T) {
	r, err := NewWebhookReceiver(NotificationHandlerFunc(func(context.Context, *Notification) error { return nil }), []WebhookSecret{secret}, nil)
	require.NoError(t, err)
	w := &deadlines{ResponseRecorder: httptest.NewRecorder()}
	body := notificationRequest(t, "9", time.Now())
	req := httptest.NewRequest("POST", "/hook", strings.NewReader(string(body)))
	req.Header = signed(body)
	begun := time.Now()
	r.ServeHTTP(w, req)
	require.Equal(t, 200, w.Code)
	require.Len(t, w.read, 2)
	require.WithinDuration(t, begun.Add(defaultBodyTimeout), w.read[0], 10*time.Second)
	require.True(t, w.read[1].IsZero(), "the handler may take longer")

	w = &deadlines{ResponseRecorder: httptest.NewRecorder()}
	r.ServeHTTP(w, httptest.NewRequest("PUT", "/hook", strings.NewReader("x")))
	require.Equal(t, 405, w.Code)
	require.Len(t, w.read, 1, "what is thrown away has its time too")
}

// deadlines remembers the read deadlines that were set.
type deadlines struct {
	*httptest.ResponseRecorder
	read []time.Time
}

func (d *deadlines) SetReadDeadline(t time.Time) error {
	d.read = append(d.read, t)
	return nil
}

// The flat object of the Python SDK, with the signature that this SDK computes.
func TestWebhookReceiverPython(t *testing.T) {
	body := []byte(fmt.Sprintf(`{"arc":"1.0","method":"task.notification","requestAgent":"a","taskId":"t","event":"TASK_FAILED","timestamp":%q,"data":{"status":"FAILED","message":"é, 😀: \"x\\"},"traceId":null,"subscriptionId":"s"}`, NewTimestamp(time.Now())))
	header := http.Header{"Content-Type": {"application/json"}, headerDelivery: {"d-1"}, headerSignature: {SignWebhook([]byte(secret), pythonText(body))}}
	calls := 0
	h := NotificationHandlerFunc(func(_ context.Context, n *Notification) error {
		calls++
		require.Equal(t, "t", n.TaskID)
		return nil
	})
	strict, err := NewWebhookReceiver(h, []WebhookSecret{secret}, nil)
	require.NoError(t, err)
	require.Equal(t, 401, post(strict, body, header).Code)
	r, err := NewWebhookReceiver(h, []WebhookSecret{secret}, &WebhookReceiverOptions{AllowPythonSignatures: true})
	require.NoError(t, err)
	require.Equal(t, 200, post(r, body, header).Code)
	require.Equal(t, 200, post(r, body, header).Code)
	require.Equal(t, 1, calls, "told apart by X-ARC-Delivery")
}

func TestWebhookReceiverOptions(t *testing.T) {
	h := NotificationHandlerFunc(func(context.Context, *Notification) error { panic("boom") })
	_, err := NewWebhookReceiver(h, nil, nil)
	require.Error(t, err, "no secret, no verifier")
	_, err = NewWebhookReceiver(h, []WebhookSecret{""}, nil)
	require.Error(t, err)
	r, err := NewWebhookReceiver(h, nil, &WebhookReceiverOptions{AllowUnsigned: true, MaxMessage: 300})
	require.NoError(t, err)
	body := notificationRequest(t, "1", time.Now())
	require.Equal(t, 500, post(r, body, http.Header{"Content-Type": {MediaType}}).Code, "a panic is a failure of one delivery")
	require.Equal(t, 413, post(r, append(body, strings.Repeat(" ", 300)...), http.Header{"Content-Type": {MediaType}}).Code)
}

// ARC-164: with access tokens, a notification needs the scopes for it.
func TestWebhookReceiverToken(t *testing.T) {
	r, err := NewWebhookReceiver(NotificationHandlerFunc(func(context.Context, *Notification) error { return nil }), nil, &WebhookReceiverOptions{
		Authenticator: verifierFunc(func(_ context.Context, token string) (*Principal, error) {
			switch token {
			case "good":
				return &Principal{ID: "p", Scopes: []string{ScopeTaskNotify, ScopeAgentReceiver}}, nil
			case "poor":
				return &Principal{ID: "p", Scopes: []string{ScopeAgentReceiver}}, nil
			case "old":
				return nil, fmt.Errorf("jwt: %w", ErrTokenExpired)
			case "odd":
				return nil, errors.New("key server down")
			}
			return nil, ErrTokenInvalid
		})})
	require.NoError(t, err)
	body := notificationRequest(t, "1", time.Now())
	for authorization, status := range map[string]int{"Bearer good": 200, "bearer good": 200, "Bearer poor": 403, "Bearer old": 401, "Bearer x": 401, "Bearer odd": 500, "Basic good": 401, "": 401} {
		require.Equal(t, status, post(r, body, http.Header{"Content-Type": {MediaType}, "Authorization": {authorization}}).Code, authorization)
	}
}

type verifierFunc func(ctx context.Context, token string) (*Principal, error)

func (f verifierFunc) VerifyToken(ctx context.Context, token string) (*Principal, error) {
	return f(ctx, token)
}

// The example of the Standard Webhooks specification.
func TestStandardWebhooksExample(t *testing.T) {
	const s = WebhookSecret("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
	body := []byte(`{"test": 2432232314}`)
	h := http.Header{headerStandardID: {"msg_p5jXN8AQM9LWM0D4loKWxJek"}, headerStandardTime: {"1614265330"},
		headerStandardSignature: {"v0,AAAA v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="}}
	at := time.Unix(1614265330, 0)
	require.True(t, verifyStandard(h, []WebhookSecret{"old", s}, at, time.Minute, body))
	require.False(t, verifyStandard(h, []WebhookSecret{s}, at.Add(2*time.Minute), time.Minute, body), "stale")
	require.False(t, verifyStandard(h, []WebhookSecret{s}, at, time.Minute, append(body, ' ')))
	require.False(t, verifyStandard(h, []WebhookSecret{""}, at, time.Minute, body))
	h.Set(headerStandardSignature, strings.Repeat("v1,AAAA ", 1000))
	require.False(t, verifyStandard(h, []WebhookSecret{s}, at, time.Minute, body))
	h.Del(headerStandardTime)
	require.False(t, verifyStandard(h, []WebhookSecret{s}, at, time.Minute, body))
}

// A secret is replaced without losing a notification: the sender signs with both.
func TestSecretRotation(t *testing.T) {
	body := notificationRequest(t, "1", time.Now())
	for _, known := range []WebhookSecret{"whsec_" + WebhookSecret(base64.StdEncoding.EncodeToString([]byte("new key"))), "old"} {
		h := http.Header{"Content-Type": {MediaType}}
		sign(h, []WebhookSecret{"whsec_" + WebhookSecret(base64.StdEncoding.EncodeToString([]byte("new key"))), "old"}, "1", time.Now(), body)
		r, err := NewWebhookReceiver(NotificationHandlerFunc(func(context.Context, *Notification) error { return nil }), []WebhookSecret{known}, nil)
		require.NoError(t, err)
		require.Equal(t, 200, post(r, body, h).Code)
	}
	require.NotContains(t, fmt.Sprintf("%v %s %#v %+v", secret, secret, secret, struct{ S WebhookSecret }{secret}), "s3cret")
}

// roundTrip is a transport of functions.
type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func answer(status int) *http.Response {
	return &http.Response{StatusCode: status, Header: http.Header{}, Body: io.NopCloser(strings.NewReader("ignored"))}
}

// ARC-D44: which answers are final, how often it is tried, and when.
func TestWebhookSender(t *testing.T) {
	for name, tt := range map[string]struct {
		answers []int // 0: the connection fails
		times   []time.Duration
		want    outcome
		dead    bool
	}{
		"delivered":       {[]int{204}, []time.Duration{0}, outcomeDelivered, false},
		"second time":     {[]int{503, 200}, []time.Duration{0, 5 * time.Second}, outcomeDelivered, false},
		"third time":      {[]int{0, 408, 200}, []time.Duration{0, 5 * time.Second, 15 * time.Second}, outcomeDelivered, false},
		"given up":        {[]int{500, 429, 599, 200}, []time.Duration{0, 5 * time.Second, 15 * time.Second}, outcomeDropped, true},
		"refused":         {[]int{404, 200}, []time.Duration{0}, outcomeDropped, true},
		"redirected":      {[]int{307, 200}, []time.Duration{0}, outcomeDropped, true},
		"gone":            {[]int{410, 200}, []time.Duration{0}, outcomeGone, true},
		"gone at the end": {[]int{500, 410}, []time.Duration{0, 5 * time.Second}, outcomeGone, true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				begun := time.Now()
				var times []time.Duration
				var ids []string
				var dead []DeadLetter
				s := newWebhookSender(&WebhookOptions{NoJitter: true,
					OnDeadLetter: func(_ context.Context, l DeadLetter) { dead = append(dead, l) },
					Transport: roundTrip(func(r *http.Request) (*http.Response, error) {
						status := tt.answers[len(times)]
						times = append(times, time.Since(begun))
						ids = append(ids, r.Header.Get(headerDelivery))
						if status == 0 {
							return nil, errors.New("connection refused")
						}
						res := answer(status)
						res.Header.Set("Location", "https://elsewhere.example/")
						return res, nil
					})})
				d := &delivery{ID: "n-1", SubscriptionID: "sub-1", URL: "https://hooks.example/x", Event: EventTaskFailed, Body: []byte(`{}`)}
				require.Equal(t, tt.want, s.deliver(t.Context(), d))
				require.Equal(t, tt.times, times)
				for _, id := range ids {
					require.Equal(t, "n-1", id, "the same on every attempt (ARC-D42)")
				}
				if !tt.dead {
					require.Empty(t, dead)
					return
				}
				require.Len(t, dead, 1)
				require.Equal(t, len(times), dead[0].Attempts)
				require.Error(t, dead[0].Err)
			})
		})
	}
}

// A target that never answers costs the time of an attempt, not more, and ends
// with its context.
func TestWebhookSenderSilence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		silent := roundTrip(func(r *http.Request) (*http.Response, error) {
			<-r.Context().Done()
			return nil, r.Context().Err()
		})
		s := newWebhookSender(&WebhookOptions{NoJitter: true, Transport: silent})
		d := &delivery{ID: "n", URL: "https://hooks.example/x", Body: []byte(`{}`)}
		begun := time.Now()
		require.Equal(t, outcomeDropped, s.deliver(t.Context(), d))
		require.Equal(t, 45*time.Second, time.Since(begun))
		ctx, cancel := context.WithTimeout(t.Context(), 12*time.Second)
		defer cancel()
		require.Equal(t, outcomeStopped, s.deliver(ctx, d))
		ctx, cancel = context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		require.Equal(t, outcomeStopped, s.deliver(ctx, d))
	})
}

// The whole way: signed with two secrets, a token, flat, through the receiver.
func TestWebhookSenderToReceiver(t *testing.T) {
	var got *Notification
	r, err := NewWebhookReceiver(NotificationHandlerFunc(func(_ context.Context, n *Notification) error { got = n; return nil }), []WebhookSecret{secret}, nil)
	require.NoError(t, err)
	var sent *http.Request
	var body []byte
	ts := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		sent = req.Clone(context.Background())
		body, _ = io.ReadAll(req.Body)
		req.Body = io.NopCloser(strings.NewReader(string(body)))
		r.ServeHTTP(w, req)
	}))
	defer ts.Close()
	s := newWebhookSender(&WebhookOptions{CallbackPolicy: CallbackPolicy{AllowInsecure: true, AllowPrivate: true}, WritePythonMembers: true,
		Secrets: func(_ context.Context, subscriber, _ string) ([]WebhookSecret, error) {
			require.Equal(t, "ui-01", subscriber)
			return []WebhookSecret{secret, "next"}, nil
		},
		TokenSource: func(_ context.Context, agent, _ string) (string, error) { return "tok-" + agent, nil },
	})
	defer s.close()
	require.NoError(t, s.check(t.Context(), ts.URL))
	d := &delivery{ID: "n-1", SubscriptionID: "sub-1", URL: ts.URL, Event: EventTaskCompleted, Agent: "worker-01", Target: "ui-01", TraceID: "wf", Body: notificationRequest(t, `"n-1"`, time.Now())}
	require.Equal(t, outcomeDelivered, s.deliver(t.Context(), d))
	require.Equal(t, "t", got.TaskID)
	require.Equal(t, "Bearer tok-worker-01", sent.Header.Get("Authorization"))
	require.Equal(t, "TASK_COMPLETED", sent.Header.Get("X-ARC-Event"))
	require.Equal(t, "sub-1", sent.Header.Get("X-ARC-Subscription"))
	require.Equal(t, W3CTraceID("wf"), traceOf(sent.Header.Get("Traceparent")))
	var flat struct {
		TaskID, Event, SubscriptionID, RequestAgent string
		Params                                      json.RawMessage
	}
	require.NoError(t, json.Unmarshal(body, &flat))
	require.Equal(t, "t", flat.TaskID)
	require.Equal(t, "sub-1", flat.SubscriptionID)
	require.NotEmpty(t, flat.Params)
	_, err = checkJSON(body)
	require.NoError(t, err, "no member twice")
	require.Equal(t, "{", string(flatten([]byte("{"), "s")))
}

// A secret or token that cannot be had is a failed attempt, never an unsigned
// one.
func TestWebhookSenderWithoutSecret(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		never := roundTrip(func(*http.Request) (*http.Response, error) { t.Error("sent"); return answer(200), nil })
		d := &delivery{ID: "n", URL: "https://hooks.example/x", Body: []byte(`{}`)}
		s := newWebhookSender(&WebhookOptions{Transport: never, Secrets: func(context.Context, string, string) ([]WebhookSecret, error) { return nil, errors.New("vault down") }})
		require.Equal(t, outcomeDropped, s.deliver(t.Context(), d))
		s = newWebhookSender(&WebhookOptions{Transport: never, TokenSource: func(context.Context, string, string) (string, error) { return "", errors.New("issuer down") }})
		require.Equal(t, outcomeDropped, s.deliver(t.Context(), d))
		d.URL = "://"
		require.Equal(t, outcomeDropped, s.deliver(t.Context(), d))
	})
}

// ARC-D45: names are resolved when a client subscribes, and the address that is
// dialled is looked at again.
func TestWebhookSenderGuard(t *testing.T) {
	names := map[string]string{"good.example": "93.184.216.34", "inside.example": "10.0.0.5"}
	s := newWebhookSender(&WebhookOptions{Attempts: 1, Lookup: func(_ context.Context, _, host string) ([]netip.Addr, error) {
		if a, ok := names[host]; ok {
			return []netip.Addr{netip.MustParseAddr(a)}, nil
		}
		return nil, errors.New("no such host")
	}})
	defer s.close()
	require.NoError(t, s.check(t.Context(), "https://good.example/x"))
	for _, u := range []string{"https://inside.example/x", "https://missing.example/x", "https://127.0.0.1/x", "http://good.example/", "https://localhost/"} {
		err := s.check(t.Context(), u)
		require.ErrorIs(t, err, ErrInvalidParams, u)
		var e *Error
		require.ErrorAs(t, err, &e)
		require.Equal(t, "callbackUrl", e.Field())
	}
	names["good.example"] = "127.0.0.1" // the name changed its mind
	require.Equal(t, outcomeDropped, s.deliver(t.Context(), &delivery{ID: "n", URL: "https://good.example/x", Body: []byte(`{}`)}))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, s.check(ctx, "https://missing.example/x"), context.Canceled)
}

func FuzzWebhook(f *testing.F) {
	f.Add([]byte(`{"arc":"1.0","id":1,"method":"task.notification","requestAgent":"a","targetAgent":"b","params":{"taskId":"t","event":"TASK_FAILED","timestamp":"2024-01-15T10:30:00Z","data":{"status":"FAILED","message":"m"}}}`))
	f.Add([]byte(`{"taskId":"t","event":"NEW_MESSAGE","timestamp":"2024-01-15T10:30:00Z","data":{"status":"s","message":"m"},"traceId":"w"}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		_ = pythonText(body)
		n, _, fault := readNotification(body)
		if fault != nil {
			return
		}
		out, err := n.MarshalJSON()
		require.NoError(t, err)
		again, _, fault := readNotification(out)
		require.Nil(t, fault)
		require.Equal(t, n, again)
		_, err = checkJSON(flatten(body, "sub"))
		if req, e := DecodeRequest(body); e == nil && req.Method == MethodTaskNotification {
			require.NoError(t, err)
		}
	})
}

func FuzzCallbackURL(f *testing.F) {
	for _, u := range []string{"https://a.example/x", "https://[::1]/", "https://0x7f.1/", "https://a@b/#c", "https://1.2.3.4:99999/"} {
		f.Add(u)
	}
	f.Fuzz(func(t *testing.T, u string) {
		err := CallbackPolicy{}.Validate(u)
		loose := CallbackPolicy{AllowInsecure: true, AllowPrivate: true}.Validate(u)
		if err == nil {
			require.NoError(t, loose, "what the strict policy takes, the loose one takes")
			require.True(t, strings.HasPrefix(strings.ToLower(u), "https:"))
		}
	})
}
