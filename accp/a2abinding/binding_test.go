// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package a2abinding_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/a2aproject/a2a-go/v2/a2a"
	"github.com/a2aproject/a2a-go/v2/a2aclient"
	"github.com/a2aproject/a2a-go/v2/a2acompat/a2av0"
	grpc0 "github.com/a2aproject/a2a-go/v2/a2agrpc/v0"
	grpc1 "github.com/a2aproject/a2a-go/v2/a2agrpc/v1"
	"github.com/a2aproject/a2a-go/v2/a2asrv"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"

	"github.com/fivewire/fivewire/accp"
	"github.com/fivewire/fivewire/accp/a2abinding"
	"github.com/fivewire/fivewire/accp/internal/bindingtest"
	"github.com/fivewire/fivewire/accp/internal/bridge"
	"github.com/fivewire/fivewire/accp/profile"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A desk is an agent behind a handler of the SDK.
type desk struct {
	agent     *accp.Server
	handler   a2asrv.RequestHandler
	cancelled chan struct{} // gets a value when a handler's context ended
}

func newDesk(t *testing.T) *desk {
	agent, _, err := bindingtest.NewServer()
	require.NoError(t, err)
	d := &desk{agent: agent, cancelled: make(chan struct{}, 8)}
	agent.Handle(accp.IntentReq, profile.OpAnalyze, accp.HandlerFunc(func(_ context.Context, w *accp.ReplyWriter, m *accp.Message) error {
		data, _ := m.Params.Get("data")
		return w.SendResult(accp.Params{{Key: "findings", Value: data}})
	}))

	agent.Handle(accp.IntentReq, profile.OpGenerate, accp.HandlerFunc(func(ctx context.Context, w *accp.ReplyWriter, m *accp.Message) error {
		words := strings.Fields(m.Params.Text("data"))
		for i, word := range words {
			chunk, err := accp.NewMessage(accp.IntentStream, m.Op, profile.SchemaStream, profile.Chunk{Index: int64(i), Data: accp.String(word), Final: i == len(words)-1 && word != "stop"})
			if err != nil {
				return err
			}
			if err := w.Send(chunk); err != nil {
				return err
			}
			if word == "hold" {
				<-ctx.Done()
				d.cancelled <- struct{}{}
				return ctx.Err()
			}
		}
		return nil
	}))

	agent.Handle(accp.IntentReq, profile.OpApprove, accp.HandlerFunc(func(_ context.Context, w *accp.ReplyWriter, _ *accp.Message) error {
		if err := w.Send(&accp.Message{Intent: accp.IntentAck, Op: profile.OpApprove}); err != nil {
			return err
		}
		return w.Send(&accp.Message{Intent: accp.IntentWait, Op: profile.OpApprove, Params: accp.Params{{Key: "reason", Value: accp.String("signature")}}})
	}))

	agent.Handle(accp.IntentReq, profile.OpNotify, accp.HandlerFunc(func(_ context.Context, w *accp.ReplyWriter, _ *accp.Message) error {
		return w.Send(&accp.Message{Intent: accp.IntentAck, Op: profile.OpNotify})
	}))
	agent.Handle(accp.IntentReq, profile.OpReject, accp.HandlerFunc(func(context.Context, *accp.ReplyWriter, *accp.Message) error { return accp.ErrPolicyDenied }))
	agent.Handle(accp.IntentReq, profile.OpExecute, accp.HandlerFunc(func(context.Context, *accp.ReplyWriter, *accp.Message) error {
		return errors.New("secret path /var/lib")
	}))

	executor, err := a2abinding.NewExecutor(agent)
	require.NoError(t, err)
	d.handler = a2asrv.NewHandler(executor)
	return d
}

// An over is a transport between a client and a desk.
type binding struct {
	name    string
	connect func(t *testing.T, handler a2asrv.RequestHandler) *a2aclient.Client
}

// overJSON is JSON-RPC of a protocol version.
func overJSON(name string, version a2a.ProtocolVersion, serve func(a2asrv.RequestHandler, ...a2asrv.TransportOption) http.Handler) binding {
	return binding{name, func(t *testing.T, handler a2asrv.RequestHandler) *a2aclient.Client {
		web := httptest.NewServer(serve(handler))
		hc := &http.Client{Transport: &http.Transport{}}
		c, err := a2aclient.NewFromEndpoints(t.Context(),
			[]*a2a.AgentInterface{{URL: web.URL, ProtocolBinding: a2a.TransportProtocolJSONRPC, ProtocolVersion: version}},
			a2aclient.WithJSONRPCTransport(hc), a2av0.WithJSONRPCTransport(a2av0.JSONRPCTransportConfig{Client: hc}))
		require.NoError(t, err)
		t.Cleanup(func() {
			_ = c.Destroy()
			hc.CloseIdleConnections()
			web.Close()
		})
		return c
	}}
}

// overGRPC is gRPC of a protocol version over a pipe in memory.
func overGRPC(name string, version a2a.ProtocolVersion, register func(a2asrv.RequestHandler, *grpc.Server),
	transport func(...grpc.DialOption) a2aclient.FactoryOption) binding {
	return binding{name, func(t *testing.T, handler a2asrv.RequestHandler) *a2aclient.Client {
		pipe := bufconn.Listen(1 << 20)
		server := grpc.NewServer()
		register(handler, server)
		served := make(chan error, 1)
		go func() { served <- server.Serve(pipe) }()
		c, err := a2aclient.NewFromEndpoints(t.Context(),
			[]*a2a.AgentInterface{{URL: "passthrough:///pipe", ProtocolBinding: a2a.TransportProtocolGRPC, ProtocolVersion: version}},
			transport(grpc.WithTransportCredentials(insecure.NewCredentials()),
				grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return pipe.DialContext(ctx) })))
		require.NoError(t, err)
		t.Cleanup(func() {
			_ = c.Destroy()
			server.Stop()
			<-served
		})
		return c
	}}
}

var (
	overHTTP   = overJSON("JSON-RPC 1.0", a2a.Version, a2asrv.NewJSONRPCHandler)
	transports = []binding{
		overHTTP,
		overJSON("JSON-RPC 0.3", a2av0.Version, a2av0.NewJSONRPCHandler),
		overGRPC("gRPC 1.0", a2a.Version, func(h a2asrv.RequestHandler, s *grpc.Server) { grpc1.NewHandler(h).RegisterWith(s) }, grpc1.WithGRPCTransport),
		overGRPC("gRPC 0.3", a2av0.Version, func(h a2asrv.RequestHandler, s *grpc.Server) { grpc0.NewHandler(h).RegisterWith(s) }, grpc0.WithGRPCTransport),
	}
)

func request(op, data string) *accp.Message {
	return &accp.Message{Intent: accp.IntentReq, Op: op, Params: accp.Params{{Key: "data", Value: accp.String(data)}}}
}

// The binding works over each transport of the SDK (ACCP-160, ACCP-164).
func TestConversation(t *testing.T) {
	for _, o := range transports {
		t.Run(o.name, func(t *testing.T) {
			d := newDesk(t)
			c, err := a2abinding.NewClient(o.connect(t, d.handler), "planner", &accp.ClientOptions{SessionID: "s1", Retry: &accp.RetryPolicy{MaxAttempts: -1}})
			require.NoError(t, err)

			// The registries are exchanged as over any transport: frames of all intents
			// pass.
			synced, err := c.SyncRegistry(t.Context())
			require.NoError(t, err)
			require.True(t, synced)
			_, hasSchema := c.Session().Registry().Schema("MX")
			require.True(t, hasSchema)

			// ACCP-165: req creates a task, done completes it.
			for range 3 {
				text := "two words, a | and 한글 🙂\nmore"
				answer, err := c.Call(t.Context(), request(profile.OpAnalyze, text), nil)
				require.NoError(t, err)
				require.Equal(t, accp.IntentDone, answer.Intent)
				require.Equal(t, text, answer.Params.Text("findings"))
				require.Equal(t, "s1", answer.Meta.SID)
			}
			require.NotEmpty(t, c.Session().Checkpoints())

			// ACCP-166, ACCP-150: chunks arrive one by one and in order.
			var words []string
			for v, err := range c.Stream(t.Context(), request(profile.OpGenerate, "a b c d"), nil) {
				require.NoError(t, err)
				word, _ := v.Text()
				words = append(words, word)
			}
			require.Equal(t, []string{"a", "b", "c", "d"}, words)

			// The frames after an ack.
			answer, err := c.Call(t.Context(), request(profile.OpApprove, "x"), nil)
			require.NoError(t, err)
			require.Equal(t, accp.IntentWait, answer.Intent)
			answer, err = c.Call(t.Context(), request(profile.OpNotify, "x"), nil)
			require.NoError(t, err)
			require.Equal(t, accp.IntentAck, answer.Intent)
			answer, err = c.Call(t.Context(), &accp.Message{Intent: "ping", Op: profile.OpHeartbeat}, nil)
			require.NoError(t, err)
			require.Equal(t, accp.Intent("pong"), answer.Intent)
			answer, err = c.Call(t.Context(), &accp.Message{Intent: accp.IntentAck, Op: profile.OpAnalyze, Meta: &accp.Meta{CID: "000000000001"}}, nil)
			require.NoError(t, err)
			require.Nil(t, answer) // nothing answers an ack

			for op, want := range map[string]error{profile.OpReject: accp.ErrPolicyDenied, profile.OpExecute: accp.ErrInternal, "unheard": accp.ErrInvalidIntent} {
				_, err = c.Call(t.Context(), request(op, "x"), nil)
				require.ErrorIs(t, err, want, op)
				require.NotContains(t, err.Error(), "secret")
			}
		})
	}
}

// A waiting task continues with the next frame of its chain and ends with a cancel.
func TestWaitingTask(t *testing.T) {
	d := newDesk(t)
	d.agent.Handle(accp.IntentReq, profile.OpReview, accp.HandlerFunc(func(_ context.Context, w *accp.ReplyWriter, m *accp.Message) error {
		if m.Meta.CID == "" {
			return w.Send(&accp.Message{Intent: accp.IntentWait, Op: m.Op})
		}
		return w.SendResult(accp.Params{{Key: "verdict", Value: accp.String("approved")}})
	}))

	executor, err := a2abinding.NewExecutor(d.agent)
	require.NoError(t, err)
	continued := make(chan a2a.TaskID, 16)
	client := overHTTP.connect(t, a2asrv.NewHandler(foreign{func(ctx context.Context, req *a2asrv.ExecutorContext) iter.Seq2[a2a.Event, error] {
		if req.StoredTask != nil {
			continued <- req.TaskID
		}
		return executor.Execute(ctx, req)
	}}))
	c, err := a2abinding.NewClient(client, "planner", nil)
	require.NoError(t, err)
	var tasks []a2a.TaskID
	for i, then := range []*accp.Message{
		{Intent: accp.IntentReq, Op: profile.OpReview},
		{Intent: accp.IntentCancel, Op: profile.OpReview},
		{Intent: accp.IntentReq, Op: profile.OpReview},
	} {
		first := &accp.Message{Intent: accp.IntentReq, Op: profile.OpReview}
		if i == 2 { // in parts
			for k := range 6 {
				first.Params = append(first.Params, accp.Param{Key: fmt.Sprintf("k%d", k), Value: accp.String(strings.Repeat("long words ", 8))})
			}
		}
		wait, err := c.Call(t.Context(), first, nil)
		require.NoError(t, err)
		require.Equal(t, accp.IntentWait, wait.Intent)
		then.Meta = &accp.Meta{CID: wait.Meta.CID}
		answer, err := c.Call(t.Context(), then, nil)
		require.NoError(t, err)
		if then.Intent == accp.IntentReq {
			require.Equal(t, accp.IntentDone, answer.Intent)
			require.Equal(t, wait.Meta.CID, answer.Meta.CID)
		}
		id := <-continued
		task, err := client.GetTask(t.Context(), &a2a.GetTaskRequest{ID: id})
		require.NoError(t, err)
		require.True(t, task.Status.State.Terminal())
	}

	// As a client of A2A sees it: one task, from its beginning to its end.
	for i, last := range []*accp.Message{
		{Intent: accp.IntentReq, Op: profile.OpReview, Meta: &accp.Meta{CID: "000000000001"}},
		{Intent: accp.IntentCancel, Op: profile.OpReview, Meta: &accp.Meta{CID: "000000000001"}},
	} {
		sid := fmt.Sprintf("s%d", 20+i)
		send := func(m *a2a.Message) *a2a.Task {
			res, err := client.SendMessage(t.Context(), &a2a.SendMessageRequest{Message: m})
			require.NoError(t, err)
			task, ok := res.(*a2a.Task)
			require.True(t, ok)
			return task
		}
		first := send(a2a.NewMessage(a2a.MessageRoleUser, newFrame(t, sid, 1, &accp.Message{Intent: accp.IntentReq, Op: profile.OpReview})))
		require.Equal(t, a2a.TaskStateInputRequired, first.Status.State)
		second := send(a2a.NewMessageForTask(a2a.MessageRoleUser, first, newFrame(t, sid, 3, last)))
		require.Equal(t, first.ID, second.ID)
		want := map[accp.Intent]a2a.TaskState{accp.IntentReq: a2a.TaskStateCompleted, accp.IntentCancel: a2a.TaskStateCanceled}[last.Intent]
		require.Equal(t, want, second.Status.State)
		tasks = append(tasks, second.ID)
	}
	require.NotEqual(t, tasks[0], tasks[1])
}

// The last part of a message in one session does not continue the waiting task of another session.
func TestPartsOfConcurrentCalls(t *testing.T) {
	d := newDesk(t)
	executor, err := a2abinding.NewExecutor(d.agent)
	require.NoError(t, err)
	received, release, continued := make(chan struct{}), make(chan struct{}), make(chan a2a.TaskID, 16)
	client := overHTTP.connect(t, a2asrv.NewHandler(foreign{func(ctx context.Context, req *a2asrv.ExecutorContext) iter.Seq2[a2a.Event, error] {
		for _, f := range a2abinding.ExtractFrames(req.Message.Parts) {
			if strings.Contains(string(f), "part:1/2") {
				close(received)
				<-release
			}
		}
		if req.StoredTask != nil {
			continued <- req.TaskID
		}
		return executor.Execute(ctx, req)
	}}))
	c, err := a2abinding.NewClient(client, "planner", &accp.ClientOptions{MaxConcurrent: 2})
	require.NoError(t, err)
	called := make(chan error, 1)
	go func() {
		m := request(profile.OpAnalyze, "x")
		for i := range 6 {
			m.Params = append(m.Params, accp.Param{Key: fmt.Sprintf("k%d", i), Value: accp.String(strings.Repeat("long words ", 8))})
		}
		_, err := c.Call(t.Context(), m, nil)
		called <- err
	}()
	<-received
	wait, err := c.Call(t.Context(), request(profile.OpApprove, "y"), nil)
	require.NoError(t, err)
	require.Equal(t, accp.IntentWait, wait.Intent)
	close(release)
	require.NoError(t, <-called)
	require.Empty(t, continued)
}

// A message that is split makes one task, with its last part.
func TestParts(t *testing.T) {
	d := newDesk(t)
	c, err := a2abinding.NewClient(overHTTP.connect(t, d.handler), "planner", nil)
	require.NoError(t, err)
	m := request(profile.OpAnalyze, "x")
	for i := range 12 {
		m.Params = append(m.Params, accp.Param{Key: fmt.Sprintf("k%d", i), Value: accp.String(strings.Repeat("long words ", 6))})
	}
	answer, err := c.Call(t.Context(), m, nil)
	require.NoError(t, err)
	require.Equal(t, "x", answer.Params.Text("findings"))
	require.Greater(t, c.Session().Stats().Sent, int64(1))
}

// A call that is left, or whose context ends, cancels the task and so the handler.
func TestCancel(t *testing.T) {
	for _, o := range transports {
		t.Run(o.name, func(t *testing.T) {
			d := newDesk(t)
			client := o.connect(t, d.handler)
			waitCancelled := func() {
				t.Helper()
				<-d.cancelled
			}
			c, err := a2abinding.NewClient(client, "planner", &accp.ClientOptions{Retry: &accp.RetryPolicy{MaxAttempts: -1}})
			require.NoError(t, err)
			for v, err := range c.Stream(t.Context(), request(profile.OpGenerate, "one hold"), nil) {
				require.NoError(t, err)
				if word, _ := v.Text(); word == "hold" {
					break
				}
			}
			waitCancelled()

			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			for _, err := range c.Stream(ctx, request(profile.OpGenerate, "hold"), nil) {
				cancel()
				if err != nil {
					require.ErrorIs(t, err, context.Canceled)
				}
			}
			waitCancelled()

			// Any client of A2A can cancel the task.
			frame := newFrame(t, "s7", 1, request(profile.OpGenerate, "hold"))
			var id a2a.TaskID
			for event, err := range client.SendStreamingMessage(t.Context(), &a2a.SendMessageRequest{Message: a2a.NewMessage(a2a.MessageRoleUser, frame)}) {
				require.NoError(t, err)
				switch e := event.(type) {
				case *a2a.TaskArtifactUpdateEvent:
					id = e.TaskID
					task, err := client.CancelTask(t.Context(), &a2a.CancelTaskRequest{ID: id})
					require.NoError(t, err)
					require.Equal(t, a2a.TaskStateCanceled, task.Status.State)
				case *a2a.TaskStatusUpdateEvent:
					require.Equal(t, a2a.TaskStateCanceled, e.Status.State)
				}
			}
			require.NotEmpty(t, id)
			waitCancelled()
		})
	}
}

// newFrame writes a frame of a session that no other part of the test uses.
func newFrame(t *testing.T, sid string, seq int64, m *accp.Message) *a2a.Part {
	t.Helper()
	out := *m
	out.From = "someone"
	meta := accp.Meta{MID: fmt.Sprintf("%012x", seq), Seq: accp.NewOptionalInt(seq), TS: accp.NewOptionalInt(1714000000), SID: sid}
	if m.Meta != nil {
		meta.CID, meta.TTL, meta.Ext = m.Meta.CID, m.Meta.TTL, m.Meta.Ext
	}
	out.Meta = &meta
	frame, err := new(accp.Codec).Append(nil, &out)
	require.NoError(t, err)
	p, err := a2abinding.FramePart(frame)
	require.NoError(t, err)
	return p
}

// An ordinary client of A2A sees tasks in the states that the frames stand for
// (ACCP-165, ACCP-D58).
func TestOrdinaryClient(t *testing.T) {
	d := newDesk(t)
	client := overHTTP.connect(t, d.handler)
	seq := int64(0)
	send := func(m *accp.Message) (a2a.SendMessageResult, error) {
		seq++
		return client.SendMessage(t.Context(), &a2a.SendMessageRequest{Message: a2a.NewMessage(a2a.MessageRoleUser, newFrame(t, "", seq, m))})
	}
	states := map[string]a2a.TaskState{
		profile.OpAnalyze: a2a.TaskStateCompleted, profile.OpApprove: a2a.TaskStateInputRequired, profile.OpNotify: a2a.TaskStateCompleted,
		profile.OpReject: a2a.TaskStateFailed, profile.OpGenerate: a2a.TaskStateCompleted, "unheard": a2a.TaskStateFailed,
	}
	for op, want := range states {
		res, err := send(request(op, "a b c"))
		require.NoError(t, err, op)
		task, ok := res.(*a2a.Task)
		require.True(t, ok, op)
		require.Equal(t, want, task.Status.State, op)
		if op == profile.OpGenerate {
			// ACCP-166: one part for each chunk, in one artifact.
			require.Len(t, task.Artifacts, 1)
			frames := a2abinding.ExtractFrames(task.Artifacts[0].Parts)
			require.Len(t, frames, 3)
			require.Len(t, task.Artifacts[0].Parts, 3)
			for i, f := range frames {
				m, err := new(accp.Codec).Decode(f)
				require.NoError(t, err)
				require.Equal(t, accp.IntentStream, m.Intent)
				index, _ := m.Params.Get("chunk_index")
				n, _ := index.Int()
				require.EqualValues(t, i, n)
			}
			continue
		}
		frames := a2abinding.ExtractFrames(task.Status.Message.Parts)
		require.Len(t, frames, 1, op)
		require.Len(t, task.Status.Message.Parts, 1) // ACCP-164
		m, err := new(accp.Codec).DecodeEnvelope(frames[0])
		require.NoError(t, err)
		if m.Intent != accp.IntentAck {
			require.Equal(t, string(want), "TASK_STATE_"+strings.ToUpper(strings.ReplaceAll(bridge.TaskState(m.Intent), "-", "_")), op)
		}
	}

	// A stream without its final chunk fails its task.
	res, err := send(request(profile.OpGenerate, "a stop"))
	require.NoError(t, err)
	require.Equal(t, a2a.TaskStateFailed, res.(*a2a.Task).Status.State)

	// A frame without a request creates no task.
	res, err = send(&accp.Message{Intent: "ping", Op: profile.OpHeartbeat})
	require.NoError(t, err)
	require.IsType(t, &a2a.Message{}, res)
	require.Len(t, a2abinding.ExtractFrames(res.(*a2a.Message).Parts), 1)

	// A request whose time is over is dropped, and one in bad form is answered.
	late := request(profile.OpAnalyze, "x")
	late.Meta = &accp.Meta{TTL: accp.NewOptionalInt(1)}
	res, err = send(late)
	require.NoError(t, err)
	require.Equal(t, a2a.TaskStateCanceled, res.(*a2a.Task).Status.State)
	res, err = client.SendMessage(t.Context(), &a2a.SendMessageRequest{Message: a2a.NewMessage(a2a.MessageRoleUser,
		&a2a.Part{Content: a2a.Text("no frame"), Metadata: map[string]any{"contentType": "Application/ACCP; x=y"}})})
	require.NoError(t, err)
	m, err := new(accp.Codec).Decode(a2abinding.ExtractFrames(res.(*a2a.Message).Parts)[0])
	require.NoError(t, err)
	require.Equal(t, accp.ErrParse, accp.ErrorFromMessage(m).Code)
	res, err = client.SendMessage(t.Context(), &a2a.SendMessageRequest{Message: a2a.NewMessage(a2a.MessageRoleUser, newFrame(t, "forbidden", 1, request(profile.OpAnalyze, "x")))})
	require.NoError(t, err)
	m, err = new(accp.Codec).Decode(a2abinding.ExtractFrames(res.(*a2a.Task).Status.Message.Parts)[0])
	require.NoError(t, err)
	require.Equal(t, accp.ErrPolicyDenied, accp.ErrorFromMessage(m).Code)

	// Another content is refused.
	for _, p := range []*a2a.Part{
		a2a.NewTextPart("@a>req:plan{}"),
		{Content: a2a.Text("@a>req:plan{}"), Metadata: map[string]any{"mimeType": "text/plain"}},
		{Content: a2a.Text("@a>req:plan{}"), MediaType: "text/plain", Metadata: map[string]any{"mimeType": accp.MediaType}},
		a2a.NewDataPart(map[string]any{"mimeType": accp.MediaType}),
	} {
		_, err = client.SendMessage(t.Context(), &a2a.SendMessageRequest{Message: a2a.NewMessage(a2a.MessageRoleUser, p)})
		require.Error(t, err)
	}
	_, err = a2abinding.FramePart([]byte("no frame"))
	require.ErrorIs(t, err, accp.ErrParse)
}

// The authorizer decides by the caller that the transport has authenticated (ACCP-D55).
func TestAuthorize(t *testing.T) {
	d := newDesk(t)
	web := httptest.NewServer(a2asrv.NewJSONRPCHandler(d.handler))
	defer web.Close()
	plain := &http.Transport{}
	defer plain.CloseIdleConnections()
	for _, tt := range []struct {
		transport http.RoundTripper
		want      error
	}{{plain, accp.ErrPolicyDenied}, {bindingtest.WithKey{Next: plain}, nil}} {
		client, err := a2aclient.NewFromEndpoints(t.Context(), []*a2a.AgentInterface{a2a.NewAgentInterface(web.URL, a2a.TransportProtocolJSONRPC)},
			a2aclient.WithJSONRPCTransport(&http.Client{Transport: tt.transport}))
		require.NoError(t, err)
		c, err := a2abinding.NewClient(client, "planner", &accp.ClientOptions{SessionID: "forbidden"})
		require.NoError(t, err)
		_, err = c.Call(t.Context(), request(profile.OpAnalyze, "x"), nil)
		require.ErrorIs(t, err, tt.want)
		require.NoError(t, client.Destroy())
	}
}

type execute = func(ctx context.Context, req *a2asrv.ExecutorContext) iter.Seq2[a2a.Event, error]

// An A2A executor without ACCP.
type foreign struct{ execute execute }

func (f foreign) Execute(ctx context.Context, req *a2asrv.ExecutorContext) iter.Seq2[a2a.Event, error] {
	return f.execute(ctx, req)
}

func (f foreign) Cancel(context.Context, *a2asrv.ExecutorContext) iter.Seq2[a2a.Event, error] {
	return failing(a2a.ErrTaskNotCancelable)(nil, nil)
}

func failing(err error) execute {
	return func(context.Context, *a2asrv.ExecutorContext) iter.Seq2[a2a.Event, error] {
		return func(yield func(a2a.Event, error) bool) { yield(nil, err) }
	}
}

func TestForeignAgents(t *testing.T) {
	authenticated := make(chan struct{})
	defer close(authenticated)
	final := func(state a2a.TaskState, parts ...*a2a.Part) execute {
		return func(_ context.Context, req *a2asrv.ExecutorContext) iter.Seq2[a2a.Event, error] {
			return func(yield func(a2a.Event, error) bool) {
				var m *a2a.Message
				if parts != nil {
					m = a2a.NewMessageForTask(a2a.MessageRoleAgent, req, parts...)
				}
				isRead := yield(a2a.NewSubmittedTask(req, req.Message), nil) && yield(a2a.NewStatusUpdateEvent(req, state, m), nil)
				if isRead && state == a2a.TaskStateAuthRequired { // the execution continues
					<-authenticated
					yield(a2a.NewStatusUpdateEvent(req, a2a.TaskStateCompleted, nil), nil)
				}
			}
		}
	}
	for name, tt := range map[string]struct {
		execute execute
		want    error
	}{
		"text": {func(context.Context, *a2asrv.ExecutorContext) iter.Seq2[a2a.Event, error] {
			return func(yield func(a2a.Event, error) bool) {
				yield(a2a.NewMessage(a2a.MessageRoleAgent, a2a.NewTextPart("hello")), nil)
			}
		}, accp.ErrInvalidType},
		"text in a task":       {final(a2a.TaskStateCompleted, a2a.NewTextPart("hello")), accp.ErrInvalidType},
		"completed":            {final(a2a.TaskStateCompleted), accp.ErrInvalidType},
		"failed":               {final(a2a.TaskStateFailed), accp.ErrInternal},
		"rejected":             {final(a2a.TaskStateRejected), accp.ErrPolicyDenied},
		"wants authentication": {final(a2a.TaskStateAuthRequired), accp.ErrPolicyDenied},
		"canceled":             {final(a2a.TaskStateCanceled), accp.ErrInternal},
		"bad frame": {final(a2a.TaskStateCompleted, &a2a.Part{Content: a2a.Text("@a>done"), MediaType: accp.MediaType}),
			accp.ErrParse},
		"unsupported": {failing(a2a.ErrUnsupportedOperation), accp.ErrInvalidIntent},
		"content":     {failing(a2a.ErrUnsupportedContentType), accp.ErrInvalidType},
	} {
		t.Run(name, func(t *testing.T) {
			client := overHTTP.connect(t, a2asrv.NewHandler(foreign{tt.execute}))
			for _, perSender := range []bool{false, true} {
				c, err := a2abinding.NewClient(client, "planner", &accp.ClientOptions{Retry: &accp.RetryPolicy{MaxAttempts: -1}, Session: accp.SessionOptions{SeqPerSender: perSender}})
				require.NoError(t, err)
				for range 2 {
					_, err = c.Call(t.Context(), request(profile.OpAnalyze, "x"), nil)
					require.ErrorIs(t, err, tt.want)
				}
				answer, err := c.Call(t.Context(), &accp.Message{Intent: accp.IntentFail, Op: profile.OpAnalyze}, nil)
				require.True(t, err != nil || answer == nil)
			}
		})
	}
}

// A stream of events that breaks off is never taken for one that has ended.
func TestCutStream(t *testing.T) {
	chunk := newFrame(t, "", 2, &accp.Message{Intent: accp.IntentStream, Op: profile.OpGenerate, Meta: &accp.Meta{CID: "c"}, Params: accp.Params{
		{Key: "schema", Value: accp.String(profile.SchemaStream)}, {Key: "chunk_index", Value: accp.Int(0)}, {Key: "data", Value: accp.String("one")}}})
	info := &a2a.Task{ID: "t1", ContextID: "c1"}
	for name, abort := range map[string]bool{"ends": false, "breaks": true} {
		t.Run(name, func(t *testing.T) {
			cancelled := make(chan struct{}, 1)
			web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				var call struct {
					ID     any
					Method string
				}
				if json.NewDecoder(r.Body).Decode(&call) != nil || call.Method == "CancelTask" {
					cancelled <- struct{}{}
					w.WriteHeader(http.StatusInternalServerError)
					return
				}
				w.Header().Set("Content-Type", "text/event-stream")
				for _, e := range []a2a.Event{a2a.NewStatusUpdateEvent(info, a2a.TaskStateSubmitted, nil), a2a.NewArtifactEvent(info, chunk)} {
					b, err := json.Marshal(map[string]any{"jsonrpc": "2.0", "id": call.ID, "result": a2a.StreamResponse{Event: e}})
					if err != nil {
						panic(err)
					}
					_, _ = fmt.Fprintf(w, "data: %s\n\n", b)
				}
				_ = http.NewResponseController(w).Flush()
				if abort {
					panic(http.ErrAbortHandler)
				}
			}))
			defer web.Close()
			plain := &http.Transport{}
			defer plain.CloseIdleConnections()
			client, err := a2aclient.NewFromEndpoints(t.Context(), []*a2a.AgentInterface{a2a.NewAgentInterface(web.URL, a2a.TransportProtocolJSONRPC)},
				a2aclient.WithJSONRPCTransport(&http.Client{Transport: plain}))
			require.NoError(t, err)
			c, err := a2abinding.NewClient(client, "planner", &accp.ClientOptions{Retry: &accp.RetryPolicy{MaxAttempts: -1}, Session: accp.SessionOptions{}})
			require.NoError(t, err)
			var last error
			for _, err := range c.Replies(t.Context(), request(profile.OpGenerate, "x"), nil) {
				last = err
			}
			require.ErrorIs(t, last, accp.ErrTimeout)
			<-cancelled // no reader for the status of the task
			require.NoError(t, client.Destroy())
		})
	}
}

// An unreachable agent is a missing answer.
func TestLostConnection(t *testing.T) {
	web := httptest.NewServer(http.NotFoundHandler())
	web.Close()
	client, err := a2aclient.NewFromEndpoints(t.Context(), []*a2a.AgentInterface{a2a.NewAgentInterface(web.URL, a2a.TransportProtocolJSONRPC)})
	require.NoError(t, err)
	c, err := a2abinding.NewClient(client, "planner", &accp.ClientOptions{Retry: &accp.RetryPolicy{MaxAttempts: -1}})
	require.NoError(t, err)
	_, err = c.Call(t.Context(), request(profile.OpAnalyze, "x"), nil)
	require.ErrorIs(t, err, accp.ErrTimeout)
	require.NoError(t, client.Destroy())
}

func TestConstructorsRequireTheirPeers(t *testing.T) {
	_, err := a2abinding.NewExecutor(nil)
	require.ErrorContains(t, err, "no server")
	_, err = a2abinding.NewClient(nil, "planner", nil)
	require.ErrorContains(t, err, "no A2A client")
}
