// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package otelarc_test

import (
	"context"
	"io"
	"iter"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
	"go.uber.org/goleak"

	"github.com/fivewire/fivewire/arc"
	"github.com/fivewire/fivewire/arc/arctest"
	"github.com/fivewire/fivewire/arc/otelarc"
	"github.com/fivewire/fivewire/arc/webhook"
	"github.com/fivewire/fivewire/internal/telemetry/telemetrytest"
	"github.com/fivewire/fivewire/store"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A recorder has the spans and the metrics of a program.
type recorder struct {
	*telemetrytest.Recorder
	tel *otelarc.Telemetry
}

func newRecorder(t *testing.T) *recorder {
	t.Helper()
	r := &recorder{Recorder: telemetrytest.New()}
	tel, err := otelarc.New(&otelarc.Options{TracerProvider: r.Traces, MeterProvider: r.Meters})
	require.NoError(t, err)
	r.tel = tel
	return r
}

const secret = arc.WebhookSecret("a-secret-of-the-webhooks-of-the-test")

// newServer returns a server whose webhooks go to a receiver with spans.
func (r *recorder) newServer(t *testing.T, p arc.Persistence, received chan<- string) *arc.Server {
	t.Helper()
	receiver, err := webhook.NewReceiver(r.tel.NotificationHandler(arc.NotificationHandlerFunc(func(_ context.Context, n *arc.Notification) error {
		received <- string(n.Event)
		return nil
	})), []arc.WebhookSecret{secret}, nil)
	require.NoError(t, err)
	w := &arc.WebhookOptions{Transport: handlerTransport{receiver}, Secrets: func(context.Context, string, string) ([]arc.WebhookSecret, error) {
		return []arc.WebhookSecret{secret}, nil
	}}
	arctest.ExactWebhooks(w, func(context.Context, string, string) ([]netip.Addr, error) {
		return []netip.Addr{netip.MustParseAddr("203.0.114.1")}, nil
	})
	s, err := arc.NewServer(&arc.ServerOptions{Auth: arc.Auth{AllowAnonymous: true}, Persistence: p, Webhook: w,
		Middleware: []arc.Middleware{r.tel.Middleware()}, Logger: slog.New(slog.DiscardHandler)})
	require.NoError(t, err)
	return s
}

type handlerTransport struct{ h http.Handler }

func (h handlerTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, err
	}
	in := httptest.NewRequestWithContext(r.Context(), r.Method, r.URL.String(), strings.NewReader(string(body)))
	in.Header = r.Header
	w := httptest.NewRecorder()
	h.h.ServeHTTP(w, in)
	return w.Result(), nil
}

func (r *recorder) newClient(t *testing.T, mem *arctest.Server) *arc.Client {
	t.Helper()
	c, err := arc.NewClient(mem.URL, "planner-01", &arc.ClientOptions{HTTPClient: mem.HTTPClient, Interceptors: []arc.Interceptor{r.tel.Interceptor()},
		StreamInterceptors: []arc.StreamInterceptor{r.tel.StreamInterceptor()}})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, c.Close()) })
	return c
}

// A client, the handler of its server, the task and the webhook are one trace, without any content.
func TestOneTrace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRecorder(t)
		received := make(chan string, 10)
		s := r.newServer(t, arc.Persistence{}, received)
		s.HandleTasks("worker-01", r.tel.TaskHandler(arc.TaskHandlerFunc(func(ctx context.Context, run *arc.TaskRun) error {
			_, err := run.WaitInput(ctx, "a color")
			return err
		})))
		c := r.newClient(t, arctest.NewServer(t, s))
		task, err := c.CreateTask(t.Context(), "worker-01", &arc.CreateTaskParams{InitialMessage: arc.UserText("content-of-the-caller")}, nil)
		require.NoError(t, err)
		_, err = c.SubscribeTask(t.Context(), "worker-01", &arc.SubscribeParams{TaskID: task.ID, CallbackURL: "https://hooks.example/"}, nil)
		require.NoError(t, err)
		synctest.Wait() // the handler asks
		require.NoError(t, c.SendTaskInput(t.Context(), "worker-01", &arc.SendTaskParams{TaskID: task.ID, Message: arc.UserText("red")}, nil))
		require.Equal(t, "TASK_COMPLETED", <-received)
		synctest.Wait()

		const client, server, work = "client invoke_agent worker-01", "server invoke_agent worker-01", "internal invoke_agent worker-01"
		r.RequireTrace(t, client, server, work)
		spans := r.Spans()
		require.Equal(t, spans[server].SpanContext().SpanID(), spans[work].Links()[0].SpanContext.SpanID())
		require.Equal(t, spans[client].SpanContext().TraceID(), spans["consumer task.notification"].SpanContext().TraceID())
		r.RequireAttribute(t, work, "fivewire.task.id", task.ID)
		r.RequireAttribute(t, client, "gen_ai.operation.name", "invoke_agent")
		r.RequireNoContent(t, "content-of-the-caller")

		registration, err := r.tel.Observe(s)
		require.NoError(t, err)
		points, _ := r.Metrics(t)
		for _, name := range []string{"gen_ai.client.operation.duration", "gen_ai.server.request.duration", "fivewire.resource.used", "fivewire.resource.limit"} {
			require.Positive(t, points[name], name)
		}
		require.NoError(t, registration.Unregister())
	})
}

// A task that another process continues belongs to the trace of its caller.
func TestTraceOfNextProcess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRecorder(t)
		p := arc.Persistence{Store: store.NewMemory(), LeaseTTL: 3 * time.Second}
		handler := r.tel.TaskHandler(arc.TaskHandlerFunc(func(ctx context.Context, run *arc.TaskRun) error {
			if _, err := run.WaitInput(ctx, "a color"); err != nil {
				return err
			}
			if !run.Redelivered() {
				t.Error("run by the first process")
			}
			return nil
		}))
		first := r.newServer(t, p, nil)
		first.HandleTasks("worker-01", handler)
		c := r.newClient(t, arctest.NewServer(t, first))
		task, err := c.CreateTask(t.Context(), "worker-01", &arc.CreateTaskParams{InitialMessage: arc.UserText("x")}, nil)
		require.NoError(t, err)
		synctest.Wait()
		require.NoError(t, first.Close())
		id := r.Spans()["client invoke_agent worker-01"].SpanContext().TraceID()

		next := r.newServer(t, p, nil)
		next.HandleTasks("worker-01", handler)
		c = r.newClient(t, arctest.NewServer(t, next))
		require.NoError(t, c.SendTaskInput(t.Context(), "worker-01", &arc.SendTaskParams{TaskID: task.ID, Message: arc.UserText("red")}, nil))
		time.Sleep(time.Minute)
		require.Equal(t, id, r.Spans()["internal invoke_agent worker-01"].SpanContext().TraceID())
	})
}

// Streams have a span until their reader leaves, and failures have the code of their error.
func TestStreamsAndFailures(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRecorder(t)
		s := r.newServer(t, arc.Persistence{}, nil)
		s.HandleChats("poet-01", arctest.ScriptedChat("one", "two"))
		c := r.newClient(t, arctest.NewServer(t, s))
		params := &arc.StartChatParams{InitialMessage: arc.UserText("x")}
		for _, err := range c.StreamChat(t.Context(), "poet-01", params, nil) {
			require.NoError(t, err)
		}
		for range c.StreamChat(t.Context(), "poet-01", params, nil) {
			break
		}
		_, err := c.StartChat(t.Context(), "absent-01", params, nil)
		require.ErrorIs(t, err, arc.ErrAgentNotFound)
		synctest.Wait()
		r.RequireTrace(t, "client chat poet-01", "server chat poet-01")
		require.Equal(t, codes.Unset, r.Spans()["client chat poet-01"].Status().Code)
		r.RequireAttribute(t, "client chat absent-01", "error.type", arc.ErrAgentNotFound.Name())
	})
}

// A traceId of another form has the trace id that the requests of its workflow have.
func TestForeignTraceID(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRecorder(t)
		s := r.newServer(t, arc.Persistence{}, nil)
		s.HandleTasks("worker-01", r.tel.TaskHandler(arctest.ScriptedTask()))
		mem := arctest.NewServer(t, s)
		c, err := arc.NewClient(mem.URL, "planner-01", &arc.ClientOptions{HTTPClient: mem.HTTPClient}) // without telemetry
		require.NoError(t, err)
		defer c.Close()
		_, err = c.CreateTask(arc.ContextWithTraceID(t.Context(), "workflow 7"), "worker-01", &arc.CreateTaskParams{InitialMessage: arc.UserText("x")}, nil)
		require.NoError(t, err)
		synctest.Wait()
		spans := r.Spans()
		server := spans["server invoke_agent worker-01"]
		require.Equal(t, server.SpanContext().TraceID(), spans["internal invoke_agent worker-01"].SpanContext().TraceID())
		require.True(t, server.Parent().IsRemote())

		var got trace.SpanContext
		hook := r.tel.NotificationHandler(arc.NotificationHandlerFunc(func(ctx context.Context, _ *arc.Notification) error {
			got = trace.SpanContextFromContext(ctx)
			return nil
		}))
		require.NoError(t, hook.ServeNotification(arc.ContextWithTraceID(t.Context(), "workflow 7"), &arc.Notification{}))
		require.Equal(t, server.SpanContext().TraceID(), got.TraceID())
	})
}

// An ignoring is a propagator that reads and writes nothing.
type ignoring struct{}

func (ignoring) Inject(context.Context, propagation.TextMapCarrier) {}

func (ignoring) Extract(ctx context.Context, _ propagation.TextMapCarrier) context.Context {
	return ctx
}

func (ignoring) Fields() []string { return []string{"none"} }

// Without the trace context of the header, the traceId of a request selects the trace.
func TestTraceIDWithoutPropagator(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &recorder{Recorder: telemetrytest.New()}
		var err error
		r.tel, err = otelarc.New(&otelarc.Options{TracerProvider: r.Traces, MeterProvider: r.Meters, Propagator: ignoring{}})
		require.NoError(t, err)
		s := r.newServer(t, arc.Persistence{}, nil)
		s.HandleTasks("worker-01", arctest.ScriptedTask())
		c := r.newClient(t, arctest.NewServer(t, s))
		_, err = c.CreateTask(t.Context(), "worker-01", &arc.CreateTaskParams{InitialMessage: arc.UserText("x")}, nil)
		require.NoError(t, err)
		spans := r.Spans()
		client, server := spans["client invoke_agent worker-01"], spans["server invoke_agent worker-01"]
		require.Equal(t, client.SpanContext().TraceID(), server.SpanContext().TraceID())
		require.NotEqual(t, client.SpanContext().SpanID(), server.Parent().SpanID())
	})
}

// A handler that panics has a span, as a failure.
func TestPanics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRecorder(t)
		s := r.newServer(t, arc.Persistence{}, nil)
		s.Handle("worker-01", "debug.fail", arc.HandlerFunc(func(context.Context, *arc.Call) (any, error) { panic("secret") }))
		s.HandleTasks("worker-02", r.tel.TaskHandler(arc.TaskHandlerFunc(func(context.Context, *arc.TaskRun) error { panic("secret") })))
		c := r.newClient(t, arctest.NewServer(t, s))
		_, err := c.Call(t.Context(), "worker-01", "debug.fail", nil, nil)
		require.ErrorIs(t, err, arc.ErrInternal)
		_, err = c.CreateTask(t.Context(), "worker-02", &arc.CreateTaskParams{InitialMessage: arc.UserText("x")}, nil)
		require.NoError(t, err)
		synctest.Wait()
		r.RequireAttribute(t, "server debug.fail worker-01", "error.type", "panic")
		r.RequireAttribute(t, "internal invoke_agent worker-02", "error.type", "panic")
		require.Panics(t, func() {
			_ = r.tel.NotificationHandler(arc.NotificationHandlerFunc(func(context.Context, *arc.Notification) error { panic("secret") })).
				ServeNotification(t.Context(), &arc.Notification{})
		})
		require.Panics(t, func() {
			_, _ = r.tel.Interceptor()(func(context.Context, *arc.ClientRequest) (*arc.Response, error) { panic("secret") })(
				t.Context(), &arc.ClientRequest{Request: arc.Request{Method: "debug.panic"}})
		})
		require.Panics(t, func() {
			stream := r.tel.StreamInterceptor()(func(context.Context, *arc.ClientRequest) iter.Seq2[*arc.ChatEvent, error] {
				return func(func(*arc.ChatEvent, error) bool) { panic("secret") }
			})
			for range stream(t.Context(), &arc.ClientRequest{Request: arc.Request{Method: "debug.stream"}}) {
				continue
			}
		})
		r.RequireAttribute(t, "client debug.panic", "error.type", "panic")
		r.RequireAttribute(t, "client debug.stream", "error.type", "panic")
		r.RequireAttribute(t, "consumer task.notification", "error.type", "panic")
		r.RequireNoContent(t, "secret")
	})
}

// A traceId selects the trace, but not whether its spans are recorded: the sampler decides that as for a trace that begins
// here, unless the caller has sent a trace context.
func TestTraceIDIsNoSamplingDecision(t *testing.T) {
	const workflow = "4bf92f3577b34da6a3ce929d0e0e4736"
	for _, tt := range []struct {
		name, parent string
		root         sdktrace.Sampler
		want         bool
	}{
		{"root that records nothing", "", sdktrace.NeverSample(), false},
		{"root that records all", "", sdktrace.AlwaysSample(), true},
		{"root that does not record this trace", "", sdktrace.TraceIDRatioBased(0.1), false},
		{"caller that records", "00-" + workflow + "-00f067aa0ba902b7-01", sdktrace.NeverSample(), true},
		{"caller that does not record", "00-" + workflow + "-00f067aa0ba902b7-00", sdktrace.AlwaysSample(), false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tel, err := otelarc.New(&otelarc.Options{TracerProvider: sdktrace.NewTracerProvider(sdktrace.WithSampler(sdktrace.ParentBased(tt.root)))})
			require.NoError(t, err)
			var spans []trace.SpanContext
			note := func(ctx context.Context) { spans = append(spans, trace.SpanContextFromContext(ctx)) }
			ctx := arc.ContextWithTraceID(t.Context(), workflow)
			handler := tel.Middleware()(arc.HandlerFunc(func(ctx context.Context, _ *arc.Call) (any, error) {
				note(ctx)
				return nil, nil
			}))
			header := http.Header{}
			if tt.parent != "" {
				header.Set("traceparent", tt.parent)
			}
			_, err = handler.ServeARC(ctx, &arc.Call{TraceID: workflow, Header: header})
			require.NoError(t, err)
			if tt.parent == "" {
				hook := tel.NotificationHandler(arc.NotificationHandlerFunc(func(ctx context.Context, _ *arc.Notification) error {
					note(ctx)
					return nil
				}))
				require.NoError(t, hook.ServeNotification(ctx, &arc.Notification{}))
				call := tel.Interceptor()(func(ctx context.Context, _ *arc.ClientRequest) (*arc.Response, error) {
					note(ctx)
					return nil, nil
				})
				out := new(arc.ClientRequest)
				out.TraceID = workflow
				_, err = call(ctx, out)
				require.NoError(t, err)
				require.Len(t, spans, 3)
			}
			for _, span := range spans {
				require.Equal(t, workflow, span.TraceID().String())
				require.Equal(t, tt.want, span.IsSampled())
			}
		})
	}
}
