// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package interop_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/a2aproject/a2a-go/v2/a2a"
	"github.com/a2aproject/a2a-go/v2/a2aclient"
	"github.com/a2aproject/a2a-go/v2/a2aclient/agentcard"
	"github.com/a2aproject/a2a-go/v2/a2acompat/a2av0"
	"github.com/a2aproject/a2a-go/v2/a2asrv"
	"github.com/fivewire/fivewire/accp"
	"github.com/fivewire/fivewire/accp/a2abinding"
	"github.com/fivewire/fivewire/accp/profile"
	"github.com/stretchr/testify/require"
)

// ACCP over A2A, with the official JavaScript SDK on the other side.

// a2aDesk serves an ACCP agent as an A2A agent, its card included.
func a2aDesk(t *testing.T) string {
	t.Helper()
	agent, err := accp.NewServer("desk", &accp.ServerOptions{Auth: accp.Auth{AllowAnonymous: true}})
	require.NoError(t, err)
	agent.Handle(accp.IntentReq, profile.OpClassify, accp.HandlerFunc(func(_ context.Context, w *accp.ReplyWriter, m *accp.Message) error {
		if err := w.Send(&accp.Message{Intent: accp.IntentAck, Op: m.Op}); err != nil {
			return err
		}
		if m.Params.Text("data") == "boom" {
			return accp.ErrPolicyDenied
		}
		return w.SendResult(accp.Params{{Key: "class", Value: accp.String("invoice " + m.Params.Text("data"))}})
	}))

	executor, err := a2abinding.NewExecutor(agent)
	require.NoError(t, err)
	mux := http.NewServeMux()
	handler := a2asrv.NewHandler(executor)
	mux.Handle("/a2a", a2asrv.NewJSONRPCHandler(handler))
	mux.Handle("/a2a0", a2av0.NewJSONRPCHandler(handler))
	ts := httptest.NewServer(mux)
	t.Cleanup(ts.Close)
	card := &a2a.AgentCard{Name: "desk", Description: "desk", Version: "1", Capabilities: a2a.AgentCapabilities{Streaming: true},
		DefaultInputModes: []string{"application/accp"}, DefaultOutputModes: []string{"application/accp"}, Skills: []a2a.AgentSkill{},
		SupportedInterfaces: []*a2a.AgentInterface{
			{URL: ts.URL + "/a2a0", ProtocolBinding: a2a.TransportProtocolJSONRPC, ProtocolVersion: a2av0.Version},
			a2a.NewAgentInterface(ts.URL+"/a2a", a2a.TransportProtocolJSONRPC),
		}}
	mux.Handle(a2asrv.WellKnownAgentCardPath, a2asrv.NewAgentCardHandler(a2av0.NewStaticAgentCardProducer(card)))
	return ts.URL
}

// a2aClient returns a client of the agent with the card at a URL, of protocol version 1.0 or 0.3.
func a2aClient(ctx context.Context, t *testing.T, url string) *accp.Client {
	t.Helper()
	card, err := a2aResolver.Resolve(ctx, url)
	require.NoError(t, err)
	require.NotEmpty(t, card.SupportedInterfaces)
	require.True(t, strings.HasPrefix(card.SupportedInterfaces[0].URL, url))
	ac, err := a2aclient.NewFromCard(ctx, card, a2aclient.WithJSONRPCTransport(http.DefaultClient),
		a2av0.WithJSONRPCTransport(a2av0.JSONRPCTransportConfig{Client: http.DefaultClient}))
	require.NoError(t, err)
	t.Cleanup(func() { _ = ac.Destroy() })
	c, err := a2abinding.NewClient(ac, "planner", nil)
	require.NoError(t, err)
	return c
}

var a2aResolver = &agentcard.Resolver{Client: http.DefaultClient, CardParser: a2av0.NewAgentCardParser()}

type a2aStatus struct {
	Kind   string
	TaskID string
	Final  bool
	Status struct {
		State   string
		Message *struct{ Parts []a2aPart }
	}
	Parts []a2aPart
}

type a2aPart struct {
	Kind, Text string
	Metadata   struct{ MimeType string }
}

// The JavaScript client sends frames to our executor, and something else.
func TestA2AJavaScriptClient(t *testing.T) {
	t.Parallel()
	p := node(t, "a2a.mjs")
	p.do(request{"op": "connect", "url": a2aDesk(t)})
	frame := func(data, mid string) string {
		return "@planner>req:classify{data:" + data + "}[mid:" + mid + ",seq:1,ts:1714000000,sid:js-" + mid + "]"
	}
	decode := func(parts []a2aPart) *accp.Message {
		t.Helper()
		require.Len(t, parts, 1)
		require.Equal(t, "text application/accp", parts[0].Kind+" "+parts[0].Metadata.MimeType)
		m, err := new(accp.Codec).Decode([]byte(parts[0].Text))
		require.NoError(t, err, parts[0].Text)
		return m
	}
	var task a2aStatus
	p.into(&task, request{"op": "send", "text": frame("i88", "0000000000a1"), "mimeType": "application/accp"})
	require.Equal(t, "task completed", task.Kind+" "+task.Status.State)
	m := decode(task.Status.Message.Parts)
	require.Equal(t, "desk done invoice i88", m.From+" "+string(m.Intent)+" "+m.Params.Text("class"))
	require.Equal(t, "0000000000a1", m.Meta.CID)

	var events []a2aStatus
	p.into(&events, request{"op": "stream", "text": frame("i89", "0000000000b1"), "mimeType": "application/accp"})
	var states []string
	for _, e := range events {
		states = append(states, e.Kind+" "+e.Status.State)
	}
	require.Equal(t, []string{"task submitted", "status-update working", "status-update completed"}, states)
	require.Equal(t, accp.IntentAck, decode(events[1].Status.Message.Parts).Intent)
	require.True(t, events[2].Final)
	p.into(&task, request{"op": "get", "id": events[1].TaskID})
	require.Equal(t, "completed", task.Status.State)

	p.into(&task, request{"op": "send", "text": frame("boom", "0000000000c1"), "mimeType": "application/accp"})
	require.Equal(t, "failed", task.Status.State)
	require.Equal(t, accp.IntentFail, decode(task.Status.Message.Parts).Intent)

	f := p.fails(request{"op": "send", "text": "hello", "mimeType": ""})
	require.Contains(t, f.Message, "content type")
}

// Our client asks agents of the JavaScript SDK: one that answers with frames, and those of its documentation, which do
// not speak ACCP.
func TestA2AJavaScriptServers(t *testing.T) {
	t.Parallel()
	p := node(t, "a2a.mjs")
	ask := func(kind string) (*accp.Message, error) {
		var url string
		p.into(&url, request{"op": "listen", "kind": kind})
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
		defer cancel()
		c := a2aClient(ctx, t, url)
		return c.Call(ctx, &accp.Message{Intent: accp.IntentReq, Op: profile.OpClassify, Params: accp.Params{{Key: "data", Value: accp.String("i88")}}}, nil)
	}
	m, err := ask("frames")
	require.NoError(t, err)
	require.Equal(t, "jsdesk done invoice", m.From+" "+string(m.Intent)+" "+m.Params.Text("class"))
	_, err = ask("hello")
	require.ErrorIs(t, err, accp.ErrInvalidType)
	_, err = ask("report")
	require.Error(t, err)
}
