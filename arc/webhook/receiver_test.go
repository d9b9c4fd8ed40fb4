// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package webhook

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/http/httptest"
	"reflect"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/arc"
	"github.com/fivewire/fivewire/arc/internal/signature"
	"github.com/fivewire/fivewire/internal/testkit"
)

// pythonSignature signs like the Python SDK: the text with a space after commas and
// colons, and escapes.
func pythonSignature(body []byte) string {
	text := strings.NewReplacer(`":`, `": `, `,"`, `, "`, "é", `\u00e9`, "😀", `\ud83d\ude00`).Replace(string(body))
	return Sign([]byte(secret), []byte(text))
}

const secret = arc.WebhookSecret("s3cret")

func notificationRequest(t testing.TB, id arc.ID, at time.Time) []byte {
	t.Helper()
	params, err := json.Marshal(arc.Notification{TaskID: "t", Event: arc.EventTaskCompleted, Timestamp: arc.NewTimestamp(at),
		Data: arc.NotificationData{Status: "COMPLETED", Message: "done"}})
	require.NoError(t, err)
	body, err := arc.AppendRequest(nil, &arc.Request{ID: id, Method: arc.MethodTaskNotification, RequestAgent: "worker-01", TargetAgent: "ui-01", TraceID: "wf", Params: params})
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
	return http.Header{"Content-Type": {arc.MediaType}, signature.HeaderSignature: {Sign([]byte(secret), body)}}
}

func TestReceiverHookThatPanicsFailsOneDelivery(t *testing.T) {
	var log *testkit.Log
	base := func() *ReceiverOptions {
		log = &testkit.Log{}
		return &ReceiverOptions{Logger: log.Logger()}
	}
	ok := arc.NotificationHandlerFunc(func(context.Context, *arc.Notification) error { return nil })
	testkit.Hooks(t, base, func(t *testing.T, o *ReceiverOptions, h *testkit.Hook) {
		r, err := NewReceiver(ok, []arc.WebhookSecret{secret}, o)
		require.NoError(t, err)
		body := notificationRequest(t, `"n-1"`, time.Now())
		for range 2 {
			require.Equal(t, http.StatusInternalServerError, post(r, body, signed(body)).Code)
		}
		require.Contains(t, log.String(), "panicked: "+h.Path)
		require.Contains(t, log.String(), "stack=")
	}, reflect.TypeFor[arc.AuthenticatorFunc]())
}

// The id of a notification from a clock that is ahead is kept for as long as its time is accepted (ARC-D43).
func TestReceiverRemembersNotificationFromFuture(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := 0
		h := arc.NotificationHandlerFunc(func(context.Context, *arc.Notification) error {
			n++
			return nil
		})
		r, err := NewReceiver(h, []arc.WebhookSecret{secret}, nil)
		require.NoError(t, err)
		body := notificationRequest(t, `"n-1"`, time.Now().Add(5*time.Minute))
		require.Equal(t, 200, post(r, body, signed(body)).Code)
		time.Sleep(24*time.Hour + 4*time.Minute)
		require.Equal(t, 200, post(r, body, signed(body)).Code)
		require.Equal(t, 1, n)
		time.Sleep(2 * time.Minute)
		require.Equal(t, 401, post(r, body, signed(body)).Code)
	})
}

// With the longest MaxAge, the id of a notification from a clock that is ahead is kept, too.
func TestReceiverRemembersWithLongestMaxAge(t *testing.T) {
	n := 0
	h := arc.NotificationHandlerFunc(func(context.Context, *arc.Notification) error {
		n++
		return nil
	})
	r, err := NewReceiver(h, []arc.WebhookSecret{secret}, &ReceiverOptions{MaxAge: math.MaxInt64})
	require.NoError(t, err)
	body := notificationRequest(t, `"n-1"`, time.Now().Add(time.Minute))
	for range 2 {
		require.Equal(t, 200, post(r, body, signed(body)).Code)
	}
	require.Equal(t, 1, n)
}

// ARC-113, ARC-D43: what a receiver accepts, and that it calls the handler once.
func TestReceiver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var got []*arc.Notification
		var trace string
		fail := errors.New("not now")
		h := arc.NotificationHandlerFunc(func(ctx context.Context, n *arc.Notification) error {
			trace = arc.TraceIDFromContext(ctx)
			got = append(got, n)
			err := fail
			fail = nil
			return err
		})
		r, err := NewReceiver(h, []arc.WebhookSecret{"other", secret}, nil)
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
		require.Equal(t, arc.EventTaskCompleted, got[1].Event)

		for name, tt := range map[string]struct {
			body   []byte
			change func(http.Header)
			status int
		}{
			"no signature":       {body, func(h http.Header) { h.Del(signature.HeaderSignature) }, 401},
			"other signature":    {body, func(h http.Header) { h.Set(signature.HeaderSignature, Sign([]byte("x"), body)) }, 401},
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
			header := http.Header{"Content-Type": {"application/json"}, signature.HeaderSignature: {Sign([]byte(secret), tt.body)}}
			if name == "changed body" {
				header.Set(signature.HeaderSignature, Sign([]byte(secret), body))
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

		// The receiver keeps a delivery id for 24 hours. The id is accepted again after that.
		time.Sleep(24*time.Hour + time.Second)
		second := notificationRequest(t, `"n-1"`, time.Now())
		require.Equal(t, 200, post(r, second, signed(second)).Code)
		require.Len(t, got, 4)
	})
}

// Two processors may choose the same id.
func TestReceiverTellsSendersApart(t *testing.T) {
	calls := 0
	r, err := NewReceiver(arc.NotificationHandlerFunc(func(context.Context, *arc.Notification) error { calls++; return nil }), nil, &ReceiverOptions{AllowUnsigned: true})
	require.NoError(t, err)
	header := http.Header{"Content-Type": {arc.MediaType}}
	a := notificationRequest(t, "1", time.Now())
	b := []byte(strings.Replace(string(a), "worker-01", "worker-02", 1))
	for _, body := range [][]byte{a, b, a, b} {
		require.Equal(t, 200, post(r, body, header).Code)
	}
	require.Equal(t, 2, calls)
}

// Deliveries of one notification at the same time call the handler once.
func TestReceiverAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var calls atomic.Int32
		r, err := NewReceiver(arc.NotificationHandlerFunc(func(context.Context, *arc.Notification) error {
			calls.Add(1)
			time.Sleep(time.Second)
			return nil
		}), []arc.WebhookSecret{secret}, nil)
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

// A delivery whose sender disconnects does not fail the others of its notification: one of them calls the
// handler again. A waiting one ends with its own request.
func TestReceiverHandlesNotificationAfterSenderHasDisconnected(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var calls atomic.Int32
		r, err := NewReceiver(arc.NotificationHandlerFunc(func(ctx context.Context, _ *arc.Notification) error {
			calls.Add(1)
			select {
			case <-time.After(time.Minute):
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		}), []arc.WebhookSecret{secret}, nil)
		require.NoError(t, err)
		body := notificationRequest(t, "7", time.Now())
		deliver := func(ctx context.Context) <-chan int {
			status := make(chan int, 1)
			go func() {
				req := httptest.NewRequestWithContext(ctx, "POST", "/hook", strings.NewReader(string(body)))
				req.Header = signed(body)
				w := httptest.NewRecorder()
				r.ServeHTTP(w, req)
				status <- w.Code
			}()
			synctest.Wait()
			return status
		}
		first, disconnectFirst := context.WithCancel(t.Context())
		cut := deliver(first)
		waiting, disconnectWaiting := context.WithCancel(t.Context())
		left := deliver(waiting)
		others := []<-chan int{deliver(t.Context()), deliver(t.Context())}
		disconnectWaiting()
		synctest.Wait()
		require.Equal(t, http.StatusInternalServerError, <-left)
		require.Equal(t, int32(1), calls.Load())
		disconnectFirst()
		require.Equal(t, http.StatusInternalServerError, <-cut)
		for _, status := range others {
			require.Equal(t, http.StatusOK, <-status)
		}
		require.Equal(t, int32(2), calls.Load())
	})
}

// A handler that ends its goroutine fails its delivery and the waiting ones.
func TestReceiverHandlerThatEndsItsGoroutineFailsDeliveries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, err := NewReceiver(arc.NotificationHandlerFunc(func(context.Context, *arc.Notification) error {
			time.Sleep(time.Second)
			runtime.Goexit()
			return nil
		}), []arc.WebhookSecret{secret}, nil)
		require.NoError(t, err)
		body := notificationRequest(t, "7", time.Now())
		status := make(chan int, 2)
		for range cap(status) {
			go func() { status <- post(r, body, signed(body)).Code }()
		}
		for range cap(status) {
			select {
			case code := <-status:
				require.Equal(t, http.StatusInternalServerError, code)
			case <-time.After(time.Minute):
				t.Fatal("a delivery has no response")
			}
		}
	})
}

// A sender that trickles its body is cut off after the ReadTimeout of the receiver, or
// of the http.Server if that is shorter.
func TestReceiverSlowBody(t *testing.T) {
	for name, tt := range map[string]struct{ own, server time.Duration }{
		"own": {200 * time.Millisecond, 0}, "server": {time.Minute, 200 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			r, err := NewReceiver(arc.NotificationHandlerFunc(func(context.Context, *arc.Notification) error { return nil }), nil,
				&ReceiverOptions{AllowUnsigned: true, ReadTimeout: tt.own})
			require.NoError(t, err)
			response := testkit.ServeSlowBody(t, r, tt.server, "POST / HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n")
			require.Contains(t, response, " 408 ")
		})
	}
}

// The bodies of one sender, which arrive before their signatures can be verified, fill neither the memory of the receiver
// nor keep out another sender.
func TestReceiverBoundsMemory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, err := NewReceiver(arc.NotificationHandlerFunc(func(context.Context, *arc.Notification) error { return nil }), []arc.WebhookSecret{secret}, nil)
		require.NoError(t, err)
		send := func(address string, length int64, body io.Reader) *httptest.ResponseRecorder {
			req := httptest.NewRequest(http.MethodPost, "/", body)
			req.RemoteAddr, req.ContentLength = address, length
			req.Header.Set("Content-Type", arc.MediaType)
			w := httptest.NewRecorder()
			r.ServeHTTP(w, req)
			return w
		}
		slow, end := io.Pipe()
		for range 4 {
			go send("192.0.2.1:1000", 16<<20, slow)
		}
		synctest.Wait()
		w := send("192.0.2.1:2000", 1000, strings.NewReader("{}"))
		require.Equal(t, http.StatusServiceUnavailable, w.Code)
		require.NotEmpty(t, w.Header().Get("Retry-After"))
		require.Equal(t, http.StatusUnauthorized, send("192.0.2.2:1000", 2, strings.NewReader("{}")).Code)
		require.NoError(t, end.Close())
		synctest.Wait()
		require.Equal(t, http.StatusUnauthorized, send("192.0.2.1:2000", 2, strings.NewReader("{}")).Code)
	})
}

// The flat object of the Python SDK, with the signature that this SDK computes.
func TestReceiverPython(t *testing.T) {
	body := []byte(fmt.Sprintf(`{"arc":"1.0","method":"task.notification","requestAgent":"a","taskId":"t","event":"TASK_FAILED","timestamp":%q,"data":{"status":"FAILED","message":"é, 😀: \"x\\"},"traceId":null,"subscriptionId":"s"}`, arc.NewTimestamp(time.Now())))
	header := http.Header{"Content-Type": {"application/json"}, signature.HeaderDelivery: {"d-1"}, signature.HeaderSignature: {pythonSignature(body)}}
	calls := 0
	h := arc.NotificationHandlerFunc(func(_ context.Context, n *arc.Notification) error {
		calls++
		require.Equal(t, "t", n.TaskID)
		return nil
	})
	strict, err := NewReceiver(h, []arc.WebhookSecret{secret}, nil)
	require.NoError(t, err)
	require.Equal(t, 401, post(strict, body, header).Code)
	r, err := NewReceiver(h, []arc.WebhookSecret{secret}, &ReceiverOptions{AllowPythonSignatures: true})
	require.NoError(t, err)
	require.Equal(t, 200, post(r, body, header).Code)
	require.Equal(t, 200, post(r, body, header).Code)
	require.Equal(t, 1, calls, "told apart by X-ARC-Delivery")
}

func TestReceiverOptions(t *testing.T) {
	h := arc.NotificationHandlerFunc(func(context.Context, *arc.Notification) error { panic("boom") })
	_, err := NewReceiver(h, nil, nil)
	require.Error(t, err, "no secret, no verifier")
	_, err = NewReceiver(h, []arc.WebhookSecret{""}, nil)
	require.Error(t, err)
	r, err := NewReceiver(h, nil, &ReceiverOptions{AllowUnsigned: true, MaxMessage: 300})
	require.NoError(t, err)
	body := notificationRequest(t, "1", time.Now())
	require.Equal(t, 500, post(r, body, http.Header{"Content-Type": {arc.MediaType}}).Code, "a panic is a failure of one delivery")
	require.Equal(t, 413, post(r, append(body, strings.Repeat(" ", 300)...), http.Header{"Content-Type": {arc.MediaType}}).Code)
}

// ARC-164: with access tokens, a notification needs the scopes for it.
func TestReceiverToken(t *testing.T) {
	r, err := NewReceiver(arc.NotificationHandlerFunc(func(context.Context, *arc.Notification) error { return nil }), nil, &ReceiverOptions{
		Authenticator: arc.BearerAuthenticator(arc.TokenVerifierFunc(func(_ context.Context, token string) (*arc.Principal, error) {
			switch token {
			case "good":
				return &arc.Principal{ID: "p", Scopes: []string{arc.ScopeTaskNotify, arc.ScopeAgentReceiver}}, nil
			case "poor":
				return &arc.Principal{ID: "p", Scopes: []string{arc.ScopeAgentReceiver}}, nil
			case "old":
				return nil, fmt.Errorf("jwt: %w", arc.ErrTokenExpired)
			case "odd":
				return nil, errors.New("key server down")
			}
			return nil, arc.ErrTokenInvalid
		}))})
	require.NoError(t, err)
	body := notificationRequest(t, "1", time.Now())
	for authorization, status := range map[string]int{"Bearer good": 200, "bearer good": 200, "Bearer poor": 403, "Bearer old": 401, "Bearer x": 401, "Bearer odd": 500, "Basic good": 401, "": 401} {
		require.Equal(t, status, post(r, body, http.Header{"Content-Type": {arc.MediaType}, "Authorization": {authorization}}).Code, authorization)
	}
}

// A secret is replaced without losing a notification: the sender signs with both.
func TestSecretRotation(t *testing.T) {
	body := notificationRequest(t, "1", time.Now())
	for _, known := range []arc.WebhookSecret{"whsec_" + arc.WebhookSecret(base64.StdEncoding.EncodeToString([]byte("new key"))), "old"} {
		h := http.Header{"Content-Type": {arc.MediaType}}
		signature.Add(h, []string{"whsec_" + base64.StdEncoding.EncodeToString([]byte("new key")), "old"}, "1", time.Now(), body)
		r, err := NewReceiver(arc.NotificationHandlerFunc(func(context.Context, *arc.Notification) error { return nil }), []arc.WebhookSecret{known}, nil)
		require.NoError(t, err)
		require.Equal(t, 200, post(r, body, h).Code)
	}
	require.NotContains(t, fmt.Sprintf("%v %s %#v %+v", secret, secret, secret, struct{ S arc.WebhookSecret }{secret}), "s3cret")
}

func FuzzWebhook(f *testing.F) {
	f.Add([]byte(`{"arc":"1.0","id":1,"method":"task.notification","requestAgent":"a","targetAgent":"b","params":{"taskId":"t","event":"TASK_FAILED","timestamp":"2024-01-15T10:30:00Z","data":{"status":"FAILED","message":"m"}}}`))
	f.Add([]byte(`{"taskId":"t","event":"NEW_MESSAGE","timestamp":"2024-01-15T10:30:00Z","data":{"status":"s","message":"m"},"traceId":"w"}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		_ = VerifyPython([]byte("s"), body, "")
		n, _, fault := readNotification(body)
		if fault != nil {
			return
		}
		out, err := n.MarshalJSON()
		require.NoError(t, err)
		second, _, fault := readNotification(out)
		require.Nil(t, fault)
		require.Equal(t, n, second)
	})
}

// A notification whose first attempts failed arrives after newer ones, and is passed on.
func TestReceiverPassesLateNotificationsOn(t *testing.T) {
	var got []string
	r, err := NewReceiver(arc.NotificationHandlerFunc(func(_ context.Context, n *arc.Notification) error {
		got = append(got, string(n.Timestamp))
		return nil
	}), []arc.WebhookSecret{secret}, nil)
	require.NoError(t, err)
	now := time.Now().UTC()
	var want []string
	for i, age := range []time.Duration{0, time.Hour, 20 * time.Hour, time.Minute} {
		body := notificationRequest(t, arc.ID(fmt.Sprint(i)), now.Add(-age))
		require.Equal(t, http.StatusOK, post(r, body, signed(body)).Code)
		want = append(want, string(arc.NewTimestamp(now.Add(-age))))
	}
	require.Equal(t, want, got)
}
