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
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/arc/internal/engine"
	"github.com/fivewire/fivewire/arc/internal/signature"
	"github.com/fivewire/fivewire/arc/internal/wire"
	"github.com/fivewire/fivewire/internal/netguard"
)

func mustSender(_ testing.TB, o *WebhookOptions) *sender { return newSender(o) }

const secret = WebhookSecret("s3cret")

func notificationRequest(t testing.TB, id ID, at time.Time) []byte {
	t.Helper()
	params := mustJSON(t, Notification{TaskID: "t", Event: EventTaskCompleted, Timestamp: NewTimestamp(at),
		Data: NotificationData{Status: "COMPLETED", Message: "done"}})
	body, err := AppendRequest(nil, &Request{ID: id, Method: MethodTaskNotification, RequestAgent: "worker-01", TargetAgent: "ui-01", TraceID: "wf", Params: params})
	require.NoError(t, err)
	return body
}

// roundTrip is a transport of functions.
type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func answer(status int) *http.Response {
	return &http.Response{StatusCode: status, Header: http.Header{}, Body: io.NopCloser(strings.NewReader("ignored"))}
}

// The whole way: signed with two secrets, a token, flat, through the receiver.
func TestWebhookSenderSigns(t *testing.T) {
	var sent *http.Request
	var body []byte
	ts := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		sent = req.Clone(context.Background())
		body, _ = io.ReadAll(req.Body)
		w.WriteHeader(http.StatusOK)
	}))
	defer ts.Close()
	s := mustSender(t, &WebhookOptions{CallbackPolicy: CallbackPolicy{AllowInsecure: true, AllowPrivate: true}, WritePythonMembers: true,
		Secrets: func(_ context.Context, subscriber, _ string) ([]WebhookSecret, error) {
			require.Equal(t, "ui-01", subscriber)
			return []WebhookSecret{secret, "next"}, nil
		},
		TokenSource: func(_ context.Context, agent, _ string) (string, error) { return "tok-" + agent, nil },
	})
	defer s.http.CloseIdleConnections()
	require.NoError(t, s.check(t.Context(), ts.URL))
	d := &engine.Delivery{ID: "n-1", SubscriptionID: "sub-1", URL: ts.URL, Event: string(EventTaskCompleted), Agent: "worker-01", Target: "ui-01", TraceID: "wf", Body: notificationRequest(t, `"n-1"`, time.Now())}
	require.NoError(t, s.attempt(t.Context(), d))
	require.True(t, signature.Verify([]byte(secret), body, sent.Header.Get(signature.HeaderSignature)))
	for _, s := range []string{string(secret), "next"} {
		require.True(t, signature.VerifyStandard(sent.Header, []string{s}, time.Now(), time.Minute, body))
	}
	require.Equal(t, "Bearer tok-worker-01", sent.Header.Get("Authorization"))
	require.Equal(t, "TASK_COMPLETED", sent.Header.Get("X-ARC-Event"))
	require.Equal(t, "sub-1", sent.Header.Get("X-ARC-Subscription"))
	require.Equal(t, wire.W3CTraceID("wf"), wire.TraceOf(sent.Header.Get("Traceparent")))
	var flat struct {
		TaskID, Event, SubscriptionID, RequestAgent string
		Params                                      json.RawMessage
	}
	require.NoError(t, json.Unmarshal(body, &flat))
	require.Equal(t, "t", flat.TaskID)
	require.Equal(t, "sub-1", flat.SubscriptionID)
	require.NotEmpty(t, flat.Params)
	_, err := wire.Check(body)
	require.NoError(t, err, "no member twice")
	require.Equal(t, "{", string(flatten([]byte("{"), "s")))
}

// If the secret or token is unavailable, the attempt fails. The request is not sent
// unsigned.
func TestWebhookSenderWithoutSecret(t *testing.T) {
	never := roundTrip(func(*http.Request) (*http.Response, error) { t.Error("sent"); return answer(200), nil })
	d := &engine.Delivery{ID: "n", URL: "https://hooks.example/x", Body: []byte(`{}`)}
	s := mustSender(t, &WebhookOptions{Transport: never, Secrets: func(context.Context, string, string) ([]WebhookSecret, error) { return nil, errors.New("vault down") }})
	require.ErrorContains(t, s.attempt(t.Context(), d), "vault down")
	s = mustSender(t, &WebhookOptions{Transport: never, TokenSource: func(context.Context, string, string) (string, error) { return "", errors.New("issuer down") }})
	require.ErrorContains(t, s.attempt(t.Context(), d), "issuer down")
	d.URL = "://"
	require.Error(t, s.attempt(t.Context(), d))
}

// Which answers are repeated, and after which delay.
func TestWebhookSenderDelay(t *testing.T) {
	var header http.Header
	status := 0
	s := mustSender(t, &WebhookOptions{exact: true, Transport: roundTrip(func(*http.Request) (*http.Response, error) {
		res := answer(status)
		res.Header = header
		return res, nil
	})})
	o := s.options()
	d := &engine.Delivery{ID: "n", URL: "https://hooks.example/x", Body: []byte(`{}`)}
	for _, tt := range []struct {
		status int
		after  string
		isDead bool
		want   time.Duration
	}{
		{500, "", false, 5 * time.Second}, {501, "", false, 5 * time.Second}, {408, "9", false, 5 * time.Second},
		{429, "9", false, 9 * time.Second}, {503, "2", false, 5 * time.Second}, {503, "86400", false, time.Hour},
		{301, "", true, 0}, {307, "", true, 0}, {400, "", true, 0}, {404, "", true, 0}, {410, "", true, 0},
	} {
		status, header = tt.status, http.Header{"Retry-After": {tt.after}, "Location": {"https://elsewhere.example/"}}
		err := s.attempt(t.Context(), d)
		require.ErrorIs(t, err, engine.StatusError(tt.status))
		require.Equal(t, tt.isDead, !engine.IsRetryable(err), tt.status)
		if !tt.isDead {
			require.Equal(t, tt.want, o.Delay(5*time.Second, err), tt.status)
		}
	}
	o = mustSender(t, nil).options()
	shortest, longest := time.Hour, time.Duration(0)
	for range 1000 {
		d := o.Delay(10*time.Second, nil)
		shortest, longest = min(shortest, d), max(longest, d)
	}
	require.GreaterOrEqual(t, shortest, 8*time.Second)
	require.LessOrEqual(t, longest, 12*time.Second)
	require.Less(t, shortest, longest)
}

// ARC-D45: names are resolved when a client subscribes, and the address is checked
// again when it is dialed.
func TestWebhookSenderGuard(t *testing.T) {
	names := map[string]string{"good.example": "93.184.216.34", "inside.example": "10.0.0.5"}
	s := mustSender(t, &WebhookOptions{Retry: &RetryPolicy{MaxAttempts: -1}, lookup: func(_ context.Context, _, host string) ([]netip.Addr, error) {
		if a, ok := names[host]; ok {
			return []netip.Addr{netip.MustParseAddr(a)}, nil
		}
		return nil, &net.DNSError{Err: "no answer", Name: host, IsNotFound: host == "missing.example", IsTemporary: host == "flaky.example"}
	}})
	defer s.http.CloseIdleConnections()
	require.NoError(t, s.check(t.Context(), "https://good.example/x"))
	for u, issue := range map[string]string{"https://inside.example/x": "address", "https://missing.example/x": "host", "https://127.0.0.1/x": "address",
		"http://good.example/": "scheme", "https://localhost/": "host", "https://good.example:22/": "port", "https://good.example:80/": "port", "not a url": "syntax"} {
		err := s.check(t.Context(), u)
		require.ErrorIs(t, err, ErrInvalidParams, u)
		var e *Error
		require.ErrorAs(t, err, &e)
		require.Equal(t, "callbackUrl", e.Field())
		require.JSONEq(t, `{"field":"callbackUrl","issue":"`+issue+`"}`, string(e.Details), u)
	}
	for _, u := range []string{"https://flaky.example/x", "https://good.example:443/", "https://good.example:1024/"} {
		require.NoError(t, s.check(t.Context(), u), u)
	}
	require.NoError(t, wire.CallbackPolicy{AllowInsecure: true}.Validate("http://good.example:80/"))
	require.NoError(t, wire.CallbackPolicy{AllowPrivate: true}.Validate("https://good.example:22/"))
	names["good.example"] = "127.0.0.1" // the name resolves to another address
	err := s.attempt(t.Context(), &engine.Delivery{ID: "n", URL: "https://good.example/x?key=hidden", Body: []byte(`{}`)})
	require.ErrorIs(t, err, netguard.ErrForbidden)
	require.ErrorContains(t, err, "good.example")
	require.NotContains(t, err.Error(), "hidden", "errors are logged")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, s.check(ctx, "https://missing.example/x"), context.Canceled)
}

func FuzzFlatten(f *testing.F) {
	f.Add([]byte(`{"arc":"1.0","id":1,"method":"task.notification","requestAgent":"a","targetAgent":"b","params":{"taskId":"t","event":"TASK_FAILED","timestamp":"2024-01-15T10:30:00Z","data":{"status":"FAILED","message":"m"}}}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		flat := flatten(body, "sub")
		if req, e := DecodeRequest(body); e == nil && req.Method == MethodTaskNotification {
			_, err := wire.Check(flat)
			require.NoError(t, err)
		}
	})
}

func FuzzCallbackURL(f *testing.F) {
	for _, u := range []string{"https://a.example/x", "https://[::1]/", "https://0x7f.1/", "https://a@b/#c", "https://1.2.3.4:99999/"} {
		f.Add(u)
	}
	f.Fuzz(func(t *testing.T, u string) {
		err := wire.CallbackPolicy{}.Validate(u)
		loose := wire.CallbackPolicy{AllowInsecure: true, AllowPrivate: true}.Validate(u)
		if err == nil {
			require.NoError(t, loose, "what the strict policy takes, the loose one takes")
			require.True(t, strings.HasPrefix(strings.ToLower(u), "https:"))
		}
	})
}

// A secret that is logged or formatted by mistake does not show.
func TestWebhookSecretIsHidden(t *testing.T) {
	var out bytes.Buffer
	for _, h := range []slog.Handler{slog.NewJSONHandler(&out, nil), slog.NewTextHandler(&out, nil)} {
		slog.New(h).Info("x", "secret", secret)
	}
	fmt.Fprintf(&out, "%v %s %q %+v", secret, secret, secret, struct{ Secrets []WebhookSecret }{[]WebhookSecret{secret}})
	require.NotContains(t, out.String(), string(secret))
	require.Equal(t, 6, strings.Count(out.String(), "whsec_..."))
}
