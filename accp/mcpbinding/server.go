// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package mcpbinding

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/http"
	"strings"

	"github.com/google/jsonschema-go/jsonschema"
	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/fivewire/fivewire/accp"
	"github.com/fivewire/fivewire/accp/internal/bridge"
	"github.com/fivewire/fivewire/accp/internal/hook"
	"github.com/fivewire/fivewire/accp/profile"
)

// frameKey is the _meta key for the req:tool frame of a call without name and arguments.
const frameKey = "accp/frame"

// AddTools adds tools to an MCP server; agent answers them as in [NewToolHandler]. Like the SDK, it
// panics if the input schema of a tool is not of type object.
func AddTools(to *mcp.Server, agent *accp.Server, tools ...*mcp.Tool) error {
	for _, t := range tools {
		h, err := NewToolHandler(agent, t)
		if err != nil {
			return err
		}
		to.AddTool(t, h)
	}
	return nil
}

// NewToolHandler returns a handler of the calls of an MCP tool. It passes each call to agent as a req:tool
// frame, usually for [profile.NewToolHandler]. A call that a [NewClient] made is answered by frames, any
// other by the plain result: a string as it is, another value as JSON, a map also as structured content,
// and a fail frame as a tool error with its code, which the model sees (ACCP-D57).
//
// Arguments that violate the input schema of the tool are [accp.ErrToolSchema], and no handler runs.
// Sessions, limits and middleware are those of agent. The request for its authorizer carries the
// header of the MCP request; its context ends when the call is cancelled.
func NewToolHandler(agent *accp.Server, tool *mcp.Tool) (mcp.ToolHandler, error) {
	if agent == nil || tool == nil {
		return nil, errors.New("accp: new tool handler: no server or no tool")
	}
	validate, err := validator(tool)
	if err != nil {
		return nil, fmt.Errorf("accp: new tool handler: input schema of %s: %w", tool.Name, err)
	}
	return func(ctx context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		frame, sender, err := requestFrame(req)
		if err != nil {
			return nil, &jsonrpc.Error{Code: jsonrpc.CodeInvalidParams, Message: err.Error()}
		}
		invalid := validate(req.Params.Arguments)
		frames, err := ask(ctx, agent, req, frame, invalid)
		if err != nil {
			return nil, err
		}
		if _, ok := req.Params.Meta[frameKey]; ok {
			return ToolResult(frames...)
		}
		return plainResult(ctx, sender, frames, invalid)
	}, nil
}

// validator returns a function that checks arguments against the input schema of a tool.
func validator(tool *mcp.Tool) (func(json.RawMessage) error, error) {
	if tool.InputSchema == nil {
		return func(json.RawMessage) error { return nil }, nil
	}
	data, err := json.Marshal(tool.InputSchema)
	if err != nil {
		return nil, err
	}
	var schema jsonschema.Schema
	if err := json.Unmarshal(data, &schema); err != nil {
		return nil, err
	}
	resolved, err := schema.Resolve(nil)
	if err != nil {
		return nil, err
	}
	return func(arguments json.RawMessage) error {
		value := any(map[string]any{})
		if len(arguments) > 0 {
			if err := json.Unmarshal(arguments, &value); err != nil {
				return err
			}
		}
		return resolved.Validate(value)
	}, nil
}

// ask passes a frame to the agent and returns the answering frames. With invalid arguments the agent
// refuses the call.
func ask(ctx context.Context, agent *accp.Server, req *mcp.CallToolRequest, frame []byte, invalid error) ([][]byte, error) {
	called := ctx
	if invalid != nil {
		called = hook.WithRefusal(ctx, accp.Errorf(accp.ErrToolSchema, "arguments: %v", invalid))
	}
	r, err := http.NewRequestWithContext(called, http.MethodPost, "http://localhost"+accp.FramesPath, bytes.NewReader(frame))
	if err != nil {
		return nil, err
	}
	if req.Extra != nil && req.Extra.Header != nil {
		r.Header = req.Extra.Header.Clone()
	}
	r.Header.Set("Content-Type", accp.MediaType)
	w := &recorder{header: http.Header{}}
	w.serve(agent, r)
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	switch w.status {
	case http.StatusOK, http.StatusBadRequest:
	case http.StatusNoContent: // the time to live is exceeded, or the chain cancelled
		return nil, &jsonrpc.Error{Code: jsonrpc.CodeInternalError, Message: "accp: the request has no answer"}
	case http.StatusRequestEntityTooLarge:
		return nil, &jsonrpc.Error{Code: jsonrpc.CodeInvalidParams, Message: "accp: the arguments are too large for a frame"}
	default:
		return nil, &jsonrpc.Error{Code: jsonrpc.CodeInternalError, Message: "accp: the agent cannot answer"}
	}
	var frames [][]byte
	for f, err := range accp.ScanFrames(&w.body, w.body.Len()+1) {
		if err != nil {
			return nil, &jsonrpc.Error{Code: jsonrpc.CodeInternalError, Message: "accp: the answer was cut off"}
		}
		frames = append(frames, bytes.Clone(f))
	}
	return frames, nil
}

// plainResult returns the result in frames for a host that does not speak ACCP. The data of a stream
// are its text or the list of its values. A stream that ends before its final chunk is a failure.
func plainResult(ctx context.Context, self string, frames [][]byte, invalid error) (*mcp.CallToolResult, error) {
	// The session joins the parts of messages.
	s, err := accp.NewSession(self, "", &accp.SessionOptions{DisableAutoCheckpoint: true, MaxMemory: -1,
		FrameLimits: accp.FrameLimits{MaxFrame: math.MaxInt32, MaxValues: math.MaxInt32}})
	if err != nil {
		return nil, err
	}
	var last *accp.Message
	var chunks []accp.Value
	isOpen := false // the stream has no final chunk
	for _, f := range frames {
		r, err := s.Receive(ctx, f)
		if err != nil {
			return nil, &jsonrpc.Error{Code: jsonrpc.CodeInternalError, Message: "accp: the answer is malformed"}
		}
		if r.Message == nil {
			continue
		}
		last = r.Message
		if last.Intent != accp.IntentStream {
			continue
		}
		isOpen = !bridge.IsFinal(last)
		if v, ok := last.Params.Get("data"); ok {
			chunks = append(chunks, v)
		}
	}
	var out bridge.PlainResult
	switch {
	case last == nil:
		out = bridge.PlainValue(accp.Value{}, false)
	case last.Intent == accp.IntentFail && invalid != nil:
		out = bridge.PlainError(accp.ErrToolSchema, invalid.Error())
	case last.Intent == accp.IntentEnd && isOpen:
		out = bridge.PlainError(accp.ErrToolExecFailed, strings.ToLower(accp.ErrToolExecFailed.Info().Name))
	case last.Intent == accp.IntentStream || last.Intent == accp.IntentEnd:
		out = bridge.PlainValue(joinChunks(chunks), true)
	default:
		out = bridge.Plain(last)
	}
	res := &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: out.Content[0].Text}}, IsError: out.IsError}
	if out.StructuredContent != nil {
		res.StructuredContent = out.StructuredContent
	}
	return res, nil
}

// joinChunks returns the text of chunks that are strings, or else their list.
func joinChunks(chunks []accp.Value) accp.Value {
	var b strings.Builder
	for _, v := range chunks {
		text, ok := v.Text()
		if !ok {
			return accp.Array(chunks...)
		}
		b.WriteString(text)
	}
	return accp.String(b.String())
}

// requestFrame returns the req:tool frame of a call, and its sender. Its errors are sent to the peer.
func requestFrame(req *mcp.CallToolRequest) (frame []byte, sender string, err error) {
	raw := req.Params.Arguments
	if len(raw) == 0 {
		raw = []byte("{}")
	}
	arguments, err := accp.FromJSON(raw)
	if err != nil {
		return nil, "", fmt.Errorf("accp: arguments: %w", err)
	}
	m := &accp.Message{From: "mcp_client", Meta: envelope(1)}
	if rest, ok := req.Params.Meta[frameKey].(string); ok {
		var c accp.Codec
		if m, err = c.DecodeEnvelope([]byte(rest)); err != nil {
			return nil, "", fmt.Errorf("accp: _meta[%q]: %w", frameKey, err)
		}
	} else if info := req.ClientInfo(); info != nil {
		if name := agentID(info.Name); name != "" {
			m.From = name
		}
	}
	m.Intent, m.Op = accp.IntentReq, profile.OpTool
	m.Params = m.Params.Set("schema", accp.String(profile.SchemaTool)).
		Set("tool_name", accp.String(req.Params.Name)).
		Set("arguments", arguments)
	frame, err = new(accp.Codec).Append(nil, m)
	if err != nil {
		return nil, "", fmt.Errorf("accp: the call does not fit a frame: %w", err)
	}
	return frame, m.From, nil
}

// agentID converts a name to an agent-id, or returns "".
func agentID(name string) string {
	id := strings.Map(func(r rune) rune {
		switch {
		case 'a' <= r && r <= 'z', 'A' <= r && r <= 'Z', '0' <= r && r <= '9', r == '_':
			return r
		}
		return '_'
	}, name)
	return id[:min(len(id), 64)]
}

// A recorder holds the answer of an agent.
type recorder struct {
	header http.Header
	status int
	body   bytes.Buffer
}

// serve passes a request to the agent. A truncated stream has status 500.
func (w *recorder) serve(agent *accp.Server, r *http.Request) {
	defer func() {
		switch p := recover(); p {
		case nil:
		case http.ErrAbortHandler:
			w.status = http.StatusInternalServerError
		default:
			panic(p)
		}
	}()
	agent.ServeHTTP(w, r)
}

func (w *recorder) Header() http.Header { return w.header }

func (w *recorder) WriteHeader(status int) {
	if w.status == 0 {
		w.status = status
	}
}

func (w *recorder) Write(p []byte) (int, error) {
	w.WriteHeader(http.StatusOK)
	return w.body.Write(p)
}
