// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package mcpbinding

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/fivewire/fivewire/accp"
)

// frameKey is where a client puts the req:tool frame of a call, without name and
// arguments: its envelope, and further params.
const frameKey = "accp/frame"

// AddTools adds tools to an MCP server, which agent answers as [NewToolHandler] says. It
// panics if a tool has no input schema of type object, as the SDK does.
func AddTools(to *mcp.Server, agent *accp.Server, tools ...*mcp.Tool) {
	for _, t := range tools {
		to.AddTool(t, NewToolHandler(agent))
	}
}

// NewToolHandler returns a handler of MCP tool calls that agent answers: each call is given
// to it as a req:tool frame, usually for [accp.NewToolHandler], and the frames that it
// answers with are the result. A frame of intent fail makes it an error of the
// tool, so that the model sees it.
//
// Sessions, limits and middleware are those of agent. Its Authorize is asked with a
// request that carries the header of the MCP request; its context ends when the
// call is cancelled. Arguments are not validated against the schema of the tool.
func NewToolHandler(agent *accp.Server) mcp.ToolHandler {
	return func(ctx context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		frame, err := requestFrame(req)
		if err != nil {
			return nil, &jsonrpc.Error{Code: jsonrpc.CodeInvalidParams, Message: err.Error()}
		}
		r, err := http.NewRequestWithContext(ctx, http.MethodPost, "mcp://"+accp.FramesPath, bytes.NewReader(frame))
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
		case http.StatusNoContent: // its time to live is over, or its chain cancelled
			return nil, &jsonrpc.Error{Code: jsonrpc.CodeInternalError, Message: "accp: the request has no answer"}
		case http.StatusRequestEntityTooLarge:
			return nil, &jsonrpc.Error{Code: jsonrpc.CodeInvalidParams, Message: "accp: the arguments are too large for a frame"}
		default:
			return nil, &jsonrpc.Error{Code: jsonrpc.CodeInternalError, Message: "accp: the agent cannot answer"}
		}
		var frames [][]byte
		for s := accp.NewScanner(&w.body, w.body.Len()+1); ; {
			f, err := s.Next()
			if err == io.EOF {
				return ToolResult(frames...)
			}
			if err != nil {
				return nil, &jsonrpc.Error{Code: jsonrpc.CodeInternalError, Message: "accp: the answer was cut off"}
			}
			frames = append(frames, bytes.Clone(f))
		}
	}
}

// requestFrame makes the req:tool frame of a call. Its errors are for the peer.
func requestFrame(req *mcp.CallToolRequest) ([]byte, error) {
	raw := req.Params.Arguments
	if len(raw) == 0 {
		raw = []byte("{}")
	}
	arguments, err := accp.FromJSON(raw)
	if err != nil {
		return nil, fmt.Errorf("accp: arguments: %w", err)
	}
	m := &accp.Message{From: "mcp_client", Meta: envelope(1)}
	if rest, ok := req.Params.Meta[frameKey].(string); ok {
		var c accp.Codec
		if m, err = c.DecodeEnvelope([]byte(rest)); err != nil {
			return nil, fmt.Errorf("accp: _meta[%q]: %w", frameKey, err)
		}
	} else if info := req.ClientInfo(); info != nil {
		if name := agentID(info.Name); name != "" {
			m.From = name
		}
	}
	m.Intent, m.Op = accp.IntentReq, accp.OpTool
	m.Params = m.Params.Set("schema", accp.String(accp.SchemaTool)).
		Set("tool_name", accp.String(req.Params.Name)).
		Set("arguments", arguments)
	frame, err := new(accp.Codec).Encode(m)
	if err != nil {
		return nil, fmt.Errorf("accp: the call does not fit a frame: %w", err)
	}
	return frame, nil
}

// agentID makes an agent-id of a name that people chose, or "".
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

// A recorder keeps the answer of an agent.
type recorder struct {
	header http.Header
	status int
	body   bytes.Buffer
}

// serve asks the agent. A stream that it cuts off shows as status 500.
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
	agent.ServeFrames(w, r)
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
