// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package a2e_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"reflect"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/a2e"
	"github.com/fivewire/fivewire/a2e/a2etest"
	"github.com/fivewire/fivewire/internal/kit"
	"github.com/fivewire/fivewire/internal/testkit"
)

type recorder struct {
	How string `json:"how,omitzero" jsonmap:"always"`
}

// answering returns a plugin that answers demo/ask/req.
func answering(f func(ctx context.Context, call *a2e.Call, r *recorder) (*recorder, error)) *a2e.Plugin {
	return &a2e.Plugin{Name: "demo", Capability: "demo", Routes: []a2e.Route{a2e.NewRoute("demo/ask/req", f)}}
}

func repeating() *a2e.Plugin {
	return answering(func(_ context.Context, _ *a2e.Call, r *recorder) (*recorder, error) { return r, nil })
}

func TestNewHostRefusesOpenConfigurations(t *testing.T) {
	for name, auth := range map[string]a2e.Auth{"nothing": {}, "no handshake": {SkipHandshake: true}} {
		_, err := a2e.NewHost(&a2e.HostOptions{Auth: auth})
		require.Error(t, err, name)
	}
	for _, keys := range []map[string]*a2e.Principal{nil, {"": {ID: "a"}}, {"a": {ID: "a"}, "": {ID: "b"}}, {"k": nil}, {"k": {}}} {
		_, err := a2e.APIKeyAuthenticator(keys)
		require.Error(t, err)
	}
	_, err := a2e.NewHost(nil)
	require.ErrorContains(t, err, "AllowAnonymous")
	_, err = a2e.NewClient(nil, nil)
	require.Error(t, err)
	_, err = a2e.NewHTTPHandler(nil, nil)
	require.Error(t, err)
	_, err = a2e.NewWebSocketHandler(nil, nil)
	require.Error(t, err)
}

// Each number of the options may be 0 and -1.
func TestOptionsAcceptZeroAndNegativeNumbers(t *testing.T) {
	testkit.Numbers(t, func() *a2e.HostOptions { return &a2e.HostOptions{} }, func(t *testing.T, o *a2e.HostOptions) {
		synctest.Test(t, func(t *testing.T) {
			h := a2etest.NewHost(t, o, repeating())
			c := a2etest.Connect(t, h, nil)
			_, err := c.Call(t.Context(), "demo/ask/req", &recorder{}, nil)
			require.NoError(t, err)
			require.NoError(t, c.Close())
			require.NoError(t, h.Close())
		})
	})
	testkit.Numbers(t, func() *a2e.ClientOptions { return &a2e.ClientOptions{} }, func(t *testing.T, o *a2e.ClientOptions) {
		synctest.Test(t, func(t *testing.T) {
			c := a2etest.Connect(t, a2etest.NewHost(t, nil, repeating()), o)
			_, err := c.Call(t.Context(), "demo/ask/req", &recorder{}, nil)
			require.NoError(t, err)
		})
	})
}

// A panic of any function of the options fails one request and nothing else.
func TestPanickingOptionFailsOneRequest(t *testing.T) {
	base := func() *a2e.HostOptions {
		return &a2e.HostOptions{Auth: a2e.Auth{Authenticator: a2e.AuthenticatorFunc(
			func(context.Context, *a2e.HandshakeRequest) (*a2e.Principal, error) {
				return &a2e.Principal{ID: "ann"}, nil
			})}}
	}
	testkit.Hooks(t, base, func(t *testing.T, o *a2e.HostOptions, hook *testkit.Hook) {
		hook.Left.Store(0)
		h := a2etest.NewHost(t, o, repeating())
		r := open(t, h)
		if hook.Path != "Auth.Authenticator" {
			r.shake(`"demo"`)
		}
		hook.Left.Store(1)
		switch hook.Path {
		case "Auth.Authenticator":
			require.False(t, *r.shake(`"demo"`).Body.(*a2e.HandshakeResponse).OK)
			require.True(t, *r.shake(`"demo"`).Body.(*a2e.HandshakeResponse).OK)
		case "Fallback":
			r.send(message("other/ask/req", "1", ""))
			require.Equal(t, a2e.ReasonInternal, wireError(t, r.next()).Reason)
		default:
			r.send(message("demo/ask/req", "1", ""))
			if hook.Path == "Auth.Authorizer" || hook.Path == "Middleware" {
				require.Equal(t, a2e.ReasonInternal, wireError(t, r.next()).Reason)
			} else {
				require.Equal(t, "demo/ask/resp", r.next().Type)
			}
		}
		r.send(message("demo/ask/req", "2", ""))
		require.Equal(t, "demo/ask/resp", r.next().Type)
		require.NoError(t, h.Close())
	}, reflect.TypeFor[a2e.AuthenticatorFunc](), reflect.TypeFor[a2e.AuthorizerFunc](), reflect.TypeFor[a2e.HandlerFunc]())
}

func TestDialRefusesPlainConnectionsToOtherHosts(t *testing.T) {
	to := &http.Client{Transport: &http.Transport{DialContext: func(context.Context, string, string) (net.Conn, error) {
		t.Error("dialed")
		return nil, errors.New("no")
	}}}
	_, err := a2e.DialHTTP(t.Context(), "http://host.example", &a2e.HTTPDialOptions{HTTPClient: to})
	require.ErrorContains(t, err, "host.example")
	_, err = a2e.DialWebSocket(t.Context(), "ws://host.example", &a2e.WebSocketDialOptions{HTTPClient: to})
	require.ErrorContains(t, err, "host.example")
}

// A client whose request is refused in a shutdown reaches another server, not this one on the same connection.
func TestShutdownEndsConnections(t *testing.T) {
	h := a2etest.NewHost(t, nil)
	kit.CheckLeaves(t, a2etest.Must(a2e.NewHTTPHandler(h, nil)), "/session", h.Shutdown)
}

func TestHTTPHandlerRefusesRepeatedHeaders(t *testing.T) {
	x := a2etest.Must(a2e.NewHTTPHandler(a2etest.NewHost(t, nil), nil))
	for _, name := range []string{"X-Session-Id", "Last-Event-Id", "Authorization", "Origin", "Content-Type"} {
		r := httptest.NewRequest(http.MethodPost, "/session", nil)
		r.Header[name] = []string{"a", "b"}
		w := httptest.NewRecorder()
		x.ServeHTTP(w, r)
		require.Equal(t, http.StatusBadRequest, w.Code, name)
	}
}

// The ReadTimeout of the server is not extended.
func TestHTTPHandlerKeepsReadTimeoutOfServer(t *testing.T) {
	h := a2etest.NewHost(t, nil)
	web := a2etest.Must(a2e.NewHTTPHandler(h, nil))
	testkit.ServeSlowBody(t, web, 300*time.Millisecond, "POST /session HTTP/1.1\r\nHost: localhost\r\n")
	require.NoError(t, h.Close())
}

// A message that the host refuses fails its call, and the session continues.
func TestDialHTTPContinuesAfterRefusedMessage(t *testing.T) {
	h := a2etest.NewHost(t, &a2e.HostOptions{Limits: a2e.Limits{MaxMessage: 1000}}, repeating())
	web := httptest.NewServer(a2etest.Must(a2e.NewHTTPHandler(h, nil)))
	defer web.Close()
	c := a2etest.Must(a2e.NewClient(dialHTTP(t, web.URL), &a2e.ClientOptions{Capabilities: []string{"demo"}}))
	_, err := c.Connect(t.Context())
	require.NoError(t, err)
	_, err = c.Call(t.Context(), "demo/ask/req", &recorder{How: strings.Repeat("x", 2000)}, nil)
	require.ErrorIs(t, err, a2e.ErrTooLarge)
	_, err = c.Call(t.Context(), "demo/ask/req", &recorder{}, nil)
	require.NoError(t, err)
	start := time.Now()
	require.NoError(t, c.Close())
	require.Less(t, time.Since(start), 900*time.Millisecond, "without the delay of a reconnection")
	require.NoError(t, h.Close())
}

func TestClientCloseReturnsWithinSecondIfHostIsSilent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := connected(t, func(*a2e.Message) []string { return nil })
		start := time.Now()
		require.NoError(t, c.Close())
		require.LessOrEqual(t, time.Since(start), time.Second)
	})
}

// An error of another host is not passed on as an error of this one (A2E-D51).
func TestHostHidesErrorsOfOtherHosts(t *testing.T) {
	h := a2etest.NewHost(t, nil, answering(func(context.Context, *a2e.Call, *recorder) (*recorder, error) {
		e := a2e.Errorf(a2e.ErrUnauthorized, "the token of another host")
		e.Remote = true
		return nil, e
	}))
	_, err := a2etest.Connect(t, h, nil).Call(t.Context(), "demo/ask/req", &recorder{}, nil)
	require.ErrorIs(t, err, a2e.ErrRuntime)
	require.NotContains(t, err.Error(), "another host")
}

// The first interceptor and the first middleware are outermost.
func TestWrappersRunInOrder(t *testing.T) {
	var order []string
	middleware := func(name string) a2e.Middleware {
		return func(next a2e.Handler) a2e.Handler {
			return a2e.HandlerFunc(func(ctx context.Context, call *a2e.Call) (any, error) {
				order = append(order, name)
				return next.ServeA2E(ctx, call)
			})
		}
	}
	interceptor := func(name string) a2e.Interceptor {
		return func(next a2e.CallFunc) a2e.CallFunc {
			return func(ctx context.Context, msgType string, body any, opts *a2e.CallOptions) (*a2e.Message, error) {
				order = append(order, name)
				return next(ctx, msgType, body, opts)
			}
		}
	}
	h := a2etest.NewHost(t, &a2e.HostOptions{Middleware: []a2e.Middleware{middleware("3"), middleware("4")}}, repeating())
	c := a2etest.Connect(t, h, &a2e.ClientOptions{Interceptors: []a2e.Interceptor{interceptor("1"), interceptor("2")}})
	_, err := c.Call(t.Context(), "demo/ask/req", &recorder{}, nil)
	require.NoError(t, err)
	require.True(t, slices.IsSorted(order), "%v", order)
	require.Len(t, order, 4)
}

// newExpiringHost returns a host whose agents are authenticated for a minute.
func newExpiringHost(t *testing.T) *a2e.Host {
	verifier := a2e.TokenVerifierFunc(func(context.Context, string) (*a2e.Principal, error) {
		return &a2e.Principal{ID: "ann", Expires: time.Now().Add(time.Minute)}, nil
	})
	return a2etest.NewHost(t, &a2e.HostOptions{Auth: a2e.Auth{Authenticator: a2e.BearerAuthenticator(verifier)}}, repeating())
}

func TestPrincipalExpiryEndsSession(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newExpiringHost(t)
		r := open(t, h)
		r.shake(`"demo"`)
		start := time.Now()
		_, err := r.in.ReadByte()
		require.ErrorIs(t, err, io.EOF)
		require.Equal(t, time.Minute, time.Since(start))
	})
}

// A machine that sleeps past the expiry of a principal serves no request of it.
func TestExpiredPrincipalIsNotServedAfterSleep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newExpiringHost(t)
		r := open(t, h)
		r.shake(`"demo"`)
		h.Sessions()[0].StopTimer()
		time.Sleep(time.Minute)
		r.send(message("demo/ask/req", "1", ""))
		_, err := r.in.ReadByte()
		require.ErrorIs(t, err, io.EOF)
	})
}

// An exit is a writer that ends its goroutine, as a failed assertion of a test does.
type exit struct{}

func (exit) Write([]byte) (int, error) { runtime.Goexit(); return 0, nil }

// A function of the options that ends its goroutine harms no session.
func TestOptionsEndTheirGoroutine(t *testing.T) {
	for _, opts := range []a2e.HostOptions{
		{Audit: func(context.Context, *a2e.AuditRecord) { runtime.Goexit() }},
		{Record: func(string) io.Writer { return exit{} }},
		{Record: func(string) io.Writer { runtime.Goexit(); return nil }},
	} {
		synctest.Test(t, func(t *testing.T) {
			r := open(t, a2etest.NewHost(t, &opts, repeating()))
			r.shake(`"demo"`)
			for _, id := range []string{"1", "2"} {
				r.send(message("demo/ask/req", id, ""))
				require.Equal(t, id, r.next().ReqID())
			}
		})
	}
}

// Each refusal before and after authentication has a record.
func TestAuditRecordsRefusals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var records []*a2e.AuditRecord
		h := a2etest.NewHost(t, &a2e.HostOptions{Auth: a2e.Auth{Authenticator: a2etest.KeyAuthenticator("s3cret"),
			Authorizer: a2e.AuthorizerFunc(func(context.Context, *a2e.Call) error { return errors.New("no") })},
			Audit: func(_ context.Context, r *a2e.AuditRecord) { records = append(records, r) }}, repeating())
		r := open(t, h)
		r.send(message("handshake/req", "h0", `,"agent_id":"t","agent_caps":["demo"],"auth_token":"bad"`))
		r.next()
		r.shake(`"demo"`)
		r.send(message("demo/ask/req", "1", ""))
		require.ErrorIs(t, wireError(t, r.next()), a2e.ErrUnauthorized)
		synctest.Wait() // the last record follows its answer
		require.Len(t, records, 3)
		require.Equal(t, []string{"refused", "ok", "failed"}, []string{records[0].Outcome, records[1].Outcome, records[2].Outcome})
		require.Equal(t, "auth_failed", records[0].Code)
		require.Equal(t, "agent", records[2].Principal)
		require.EqualValues(t, 3, records[2].Seq)
		text, err := records[2].MarshalJSON()
		require.NoError(t, err)
		require.True(t, json.Valid(text))
	})
}

// The record of a call names its tool or skill, and that of another request nothing.
func TestAuditRecordNamesWhatIsCalled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var objects []string
		h := a2etest.NewHost(t, &a2e.HostOptions{Audit: func(_ context.Context, r *a2e.AuditRecord) { objects = append(objects, r.Object) }}, repeating())
		r := open(t, h)
		r.shake(`"demo"`)
		for _, msgType := range []string{"tool/call/req", "skill/call/req", "demo/ask/req"} {
			r.send(message(msgType, a2e.NewID(), `,"tool_name":"tool","name":"skill"`))
		}
		synctest.Wait()
		require.Equal(t, []string{"", "tool", "skill", ""}, objects)
	})
}

// Each handshake has the present token of the source, whose failure closes nothing.
func TestTokenSourceSuppliesTokenOfEachHandshake(t *testing.T) {
	var tokens []string
	h := a2etest.NewHost(t, &a2e.HostOptions{Auth: a2e.Auth{Authenticator: a2e.AuthenticatorFunc(
		func(_ context.Context, r *a2e.HandshakeRequest) (*a2e.Principal, error) {
			tokens = append(tokens, r.AuthToken)
			return &a2e.Principal{ID: "ann"}, nil
		})}}, repeating())
	n := 0
	c := a2etest.Connect(t, h, &a2e.ClientOptions{TokenSource: a2e.TokenSourceFunc(func(context.Context) (string, error) {
		if n++; n == 2 {
			return "", errors.New("no token")
		}
		return strconv.Itoa(n), nil
	})})
	_, err := c.Connect(t.Context())
	require.ErrorContains(t, err, "no token")
	_, err = c.Connect(t.Context())
	require.NoError(t, err)
	require.Equal(t, []string{"1", "3"}, tokens)
}

// Retry of the client applies to idempotent calls only.
func TestClientRetryRepeatsIdempotentCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		runs := 0
		h := a2etest.NewHost(t, nil, answering(func(_ context.Context, _ *a2e.Call, r *recorder) (*recorder, error) {
			if runs++; runs < 3 {
				return nil, a2e.Errorf(a2e.ErrRuntime, "not yet")
			}
			return r, nil
		}))
		c := a2etest.Connect(t, h, &a2e.ClientOptions{Retry: &a2e.RetryPolicy{MaxAttempts: 5}})
		_, err := c.Call(t.Context(), "demo/ask/req", &recorder{}, nil)
		require.ErrorIs(t, err, a2e.ErrRuntime)
		require.Equal(t, 1, runs)
		_, err = c.Call(t.Context(), "demo/ask/req", &recorder{}, &a2e.CallOptions{Idempotent: true})
		require.NoError(t, err)
		require.Equal(t, 3, runs)
	})
}

// Each result of a handler is an answer to its request, also a message or an error that lacks a part.
func TestIncompleteAnswersReachTheirCall(t *testing.T) {
	for name, tt := range map[string]struct {
		body any
		err  error
		want string // of an error
	}{
		"nil":            {},
		"nil model":      {body: (*recorder)(nil)},
		"message":        {body: a2e.NewMessage("demo/ask/resp", nil)},
		"no code":        {err: &a2e.Error{Message: "m"}, want: "a2e: runtime_error: m"},
		"text not UTF-8": {err: a2e.Errorf(a2e.ErrTool, "%s", "exit 1: \xff\xfe!"), want: "a2e: tool_error: exit 1: !"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := a2etest.NewHost(t, nil, &a2e.Plugin{Name: "demo", Capability: "demo", Routes: []a2e.Route{{Type: a2e.TypeOf[recorder]("demo/ask/req"),
					Handler: a2e.HandlerFunc(func(context.Context, *a2e.Call) (any, error) { return tt.body, tt.err })}}})
				c := a2etest.Connect(t, h, nil)
				c.Handle("demo/back/req", func(context.Context, *a2e.Message) (any, error) { return tt.body, tt.err })
				require.NoError(t, c.Registry().Add(a2e.TypeOf[recorder]("demo/back/req")))
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				_, there := c.Call(ctx, "demo/ask/req", nil, nil)
				_, back := h.Sessions()[0].Call(ctx, "demo/back/req", nil)
				if name == "message" {
					back = nil // only hosts answer with messages
				}
				for _, err := range []error{there, back} {
					if tt.want == "" {
						require.NoError(t, err)
					} else {
						require.EqualError(t, err, tt.want)
					}
				}
			})
		})
	}
}

// A fragile text panics while "bad" is read, and while "worse" is written.
type fragile string

func (f *fragile) UnmarshalText(text []byte) error {
	if *f = fragile(text); *f == "bad" {
		panic("a secret")
	}
	return nil
}

func (f fragile) MarshalText() ([]byte, error) {
	if f == "worse" {
		panic("a secret")
	}
	return []byte(f), nil
}

type fragileBody struct {
	Text fragile `json:"text"`
}

// A method of a type of the user that panics fails one message, and is logged with its stack, on both sides.
func TestMethodsOfTypesPanic(t *testing.T) {
	var hostLog, clientLog bytes.Buffer
	p := &a2e.Plugin{Name: "demo", Capability: "demo", Routes: []a2e.Route{
		a2e.NewRoute("demo/give/req", func(_ context.Context, _ *a2e.Call, r *recorder) (*fragileBody, error) {
			return &fragileBody{Text: fragile(r.How)}, nil
		}),
		a2e.NewRoute("demo/take/req", func(_ context.Context, _ *a2e.Call, r *fragileBody) (*recorder, error) {
			return &recorder{How: string(r.Text)}, nil
		}),
	}}
	h := a2etest.NewHost(t, &a2e.HostOptions{Logger: slog.New(slog.NewTextHandler(&hostLog, nil))}, p)
	c := a2etest.Connect(t, h, &a2e.ClientOptions{Logger: slog.New(slog.NewTextHandler(&clientLog, nil)), Types: []a2e.Type{
		a2e.TypeOf[recorder]("demo/give/req"), a2e.TypeOf[fragileBody]("demo/give/resp"), a2e.TypeOf[recorder]("demo/take/req"), a2e.TypeOf[recorder]("demo/take/resp")}})

	give := func(text string) error {
		_, err := c.Call(t.Context(), "demo/give/req", &recorder{How: text}, nil)
		return err
	}
	take := func(text string) error {
		_, err := c.Call(t.Context(), "demo/take/req", &struct {
			Text string `json:"text"`
		}{text}, nil)
		return err
	}
	var refused *a2e.Error
	require.ErrorIs(t, give("bad"), a2e.ErrInvalidResponse)
	require.Contains(t, clientLog.String(), "(*fragile).UnmarshalText")
	require.ErrorAs(t, give("worse"), &refused)
	require.Equal(t, a2e.ErrRuntime, refused.Code)
	require.Contains(t, hostLog.String(), "fragile.MarshalText")
	require.ErrorAs(t, take("bad"), &refused)
	require.Equal(t, a2e.ErrSchemaViolation, refused.Code)
	require.NotContains(t, refused.Error(), "secret")
	require.Contains(t, hostLog.String(), "(*fragile).UnmarshalText")
	require.NoError(t, give("good"))
	require.NoError(t, take("good"))
}
