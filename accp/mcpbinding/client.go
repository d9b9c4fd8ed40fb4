// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package mcpbinding

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/fivewire/fivewire/accp"
)

// NewClient returns a client that calls the tools of an MCP server as agent self.
// The MCP session stays the caller's to close. HTTPClient and Header of the options
// are not used. [accp.Client.Call] of a req:tool message (see [accp.ToolCall])
// returns the done:tool message; the errors are those of the frames, and:
//
//   - a tool that the server does not have is [accp.ErrToolNotFound],
//   - arguments that it refuses are [accp.ErrToolSchema],
//   - an error of a tool of a server without ACCP is [accp.ErrToolExecFailed],
//   - a lost connection is [accp.ErrTimeout],
//   - a reference in the arguments that the session cannot resolve is
//     [accp.ErrRefNotFound] or its relatives, and nothing is sent.
//
// A call that is cancelled is cancelled at the server. [accp.Client.Hello] takes over
// what the instructions of the server announce; it comes before the first call.
func NewClient(session *mcp.ClientSession, self string, opts *accp.ClientOptions) (*accp.Client, error) {
	var o accp.ClientOptions
	if opts != nil {
		o = *opts
	}
	t := &transport{mcp: session, perSender: o.Session.SeqPerSender, codec: accp.Codec{Lenient: o.Session.Lenient, Limits: o.Session.Limits}}
	o.HTTPClient = &http.Client{Transport: t}
	o.Header = nil
	c, err := accp.NewClient("http://mcp.invalid"+accp.FramesPath, self, &o)
	if err != nil {
		return nil, err
	}
	t.session = c.Session()
	t.codec.Registry = t.session.Registry()
	return c, nil
}

// A transport answers the frames that an [accp.Client] posts by way of MCP. It opens
// no HTTP connection.
type transport struct {
	mcp       *mcp.ClientSession
	session   *accp.Session
	codec     accp.Codec
	perSender bool

	mu    sync.Mutex
	last  int64 // number of the last frame that was written for the server, if it counts its own
	greet bool  // its registry was given out
}

// RoundTrip answers one frame.
func (t *transport) RoundTrip(r *http.Request) (*http.Response, error) {
	frame, err := io.ReadAll(r.Body)
	r.Body.Close()
	if err != nil {
		return nil, err
	}
	m, err := t.codec.Decode(frame)
	if err != nil {
		return nil, err // cannot be: the session wrote it
	}
	frames, failed, err := t.answer(r.Context(), m)
	if err != nil {
		return nil, err
	}
	res := &http.Response{
		StatusCode: http.StatusOK, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, Request: r,
		Header: http.Header{"Content-Type": {accp.MediaType}},
		Body:   io.NopCloser(bytes.NewReader(append(bytes.Join(frames, []byte{'\n'}), '\n'))),
	}
	if failed {
		res.StatusCode = http.StatusBadRequest
	}
	return res, nil
}

// answer returns the frames that answer m. Its error means that there are none.
func (t *transport) answer(ctx context.Context, m *accp.Message) (frames [][]byte, failed bool, err error) {
	switch {
	case m.Intent == accp.IntentReq && m.Op == accp.OpTool:
		return t.call(ctx, m)
	case m.Intent == accp.IntentSync && m.Op == accp.OpRegistry:
		if f := t.registry(); f != nil {
			return [][]byte{f}, false, nil
		}
		fallthrough
	case m.Intent == accp.IntentCancel: // MCP cancels a call when its context ends
		return t.own(m, &accp.Message{Intent: accp.IntentAck, Op: m.Op})
	}
	return t.fail(m, accp.ErrInvalidIntent, "")
}

// registry returns the frame in the instructions of the server, once.
func (t *transport) registry() []byte {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.greet {
		return nil
	}
	t.greet = true
	if init := t.mcp.InitializeResult(); init != nil {
		return hello(init.Instructions)
	}
	return nil
}

// call calls a tool.
func (t *transport) call(ctx context.Context, m *accp.Message) ([][]byte, bool, error) {
	params, err := t.resolve(ctx, m.Params)
	if err != nil {
		return t.fail(m, codeOf(err), "")
	}
	called := *m
	called.Params = params
	name, arguments, err := accp.CallOf(&called)
	if err != nil {
		return t.fail(m, codeOf(err), "")
	}
	rest := *m
	rest.Params = nil
	for _, p := range m.Params {
		if p.Key != "tool_name" && p.Key != "arguments" {
			rest.Params = append(rest.Params, p)
		}
	}
	head, err := t.codec.Encode(&rest)
	if err != nil {
		return t.fail(m, codeOf(err), "")
	}
	res, err := t.mcp.CallTool(ctx, &mcp.CallToolParams{Name: name, Arguments: arguments, Meta: mcp.Meta{frameKey: string(head)}})
	var rpc *jsonrpc.Error
	switch {
	case ctx.Err() != nil:
		return nil, false, ctx.Err()
	case errors.As(err, &rpc):
		return t.fail(m, t.refusal(ctx, rpc, name), rpc.Message)
	case err != nil:
		return nil, false, fmt.Errorf("accp: tools/call: %w", err)
	}
	if frames := Frames(res); len(frames) > 0 {
		return frames, res.IsError && len(frames) == 1, nil
	}
	return t.plain(m, res)
}

// resolve replaces the references in the arguments. Of all else they stay: it is not
// sent to the tool.
func (t *transport) resolve(ctx context.Context, params accp.Params) (accp.Params, error) {
	args, ok := params.Get("arguments")
	if !ok {
		return params, nil
	}
	args, err := t.resolveIn(ctx, args)
	if err != nil {
		return nil, err
	}
	return append(accp.Params(nil), params...).Set("arguments", args), nil
}

func (t *transport) resolveIn(ctx context.Context, v accp.Value) (accp.Value, error) {
	switch v.Kind() {
	case accp.KindRef:
		ref, _ := v.Ref()
		return t.session.Get(ctx, ref)
	case accp.KindArray:
		var out []accp.Value
		for _, e := range v.Elements() {
			e, err := t.resolveIn(ctx, e)
			if err != nil {
				return v, err
			}
			out = append(out, e)
		}
		return accp.Array(out...), nil
	case accp.KindMap:
		var out accp.Params
		for _, p := range v.Entries() {
			e, err := t.resolveIn(ctx, p.Value)
			if err != nil {
				return v, err
			}
			out = append(out, accp.Param{Key: p.Key, Value: e})
		}
		return accp.Map(out...), nil
	}
	return v, nil
}

// refusal returns the code that a refusal of the server stands for. MCP has one code
// for a tool that is unknown and for arguments that do not fit, so the list of
// tools decides.
func (t *transport) refusal(ctx context.Context, e *jsonrpc.Error, name string) accp.Code {
	switch e.Code {
	case jsonrpc.CodeMethodNotFound: // it has no tools at all
		return accp.ErrToolNotFound
	case jsonrpc.CodeInvalidParams:
		for tool, err := range t.mcp.Tools(ctx, nil) {
			if err != nil {
				return accp.ErrInternal
			}
			if tool.Name == name {
				return accp.ErrToolSchema
			}
		}
		return accp.ErrToolNotFound
	}
	return accp.ErrInternal
}

// plain writes the frame for a result of a server that does not speak ACCP: the
// structured content, else the text, else the content as it is.
func (t *transport) plain(m *accp.Message, res *mcp.CallToolResult) ([][]byte, bool, error) {
	var texts []string
	for _, c := range res.Content {
		if c, ok := c.(*mcp.TextContent); ok {
			texts = append(texts, c.Text)
		}
	}
	if res.IsError {
		return t.fail(m, accp.ErrToolExecFailed, strings.Join(texts, "\n"))
	}
	if res.NeedsInput() {
		return t.fail(m, accp.ErrToolExecFailed, "the tool asks for input")
	}
	var value accp.Value
	var err error
	switch {
	case res.StructuredContent != nil:
		// The SDK has read its numbers as floats. Servers should give the same as
		// text too, where they are exact.
		value, err = accp.FromJSON([]byte(strings.Join(texts, "\n")))
		if k := value.Kind(); err != nil || k != accp.KindMap && k != accp.KindArray {
			value, err = fromAny(res.StructuredContent)
		}
	case len(texts) == len(res.Content):
		value = accp.String(strings.Join(texts, "\n"))
	default:
		value, err = fromAny(res.Content)
	}
	if err == nil {
		var frames [][]byte
		frames, failed, ferr := t.own(m, &accp.Message{Intent: accp.IntentDone, Op: accp.OpTool, Params: accp.Params{
			{Key: "schema", Value: accp.String(accp.SchemaTool)},
			{Key: "tool_name", Value: accp.String(m.Params.Text("tool_name"))},
			{Key: "result", Value: value},
		}})
		if ferr == nil {
			return frames, failed, nil
		}
		err = ferr
	}
	return t.fail(m, accp.ErrToolExecFailed, "the result does not fit a frame: "+err.Error())
}

// fromAny makes a value of what the SDK read from JSON.
func fromAny(v any) (accp.Value, error) {
	b, err := json.Marshal(v)
	if err != nil {
		return accp.Value{}, err
	}
	return accp.FromJSON(b)
}

// maxDetail bounds what of an error of the server goes into a frame.
const maxDetail = 400

// fail writes an error frame. What went wrong is the server's own word, which models
// need to see; without one it is the name of the code.
func (t *transport) fail(m *accp.Message, code accp.Code, detail string) ([][]byte, bool, error) {
	info := code.Info()
	if detail == "" {
		detail = strings.ToLower(info.Name)
	}
	if len(detail) > maxDetail {
		detail = strings.ToValidUTF8(detail[:maxDetail], "") + "…"
	}
	frames, _, err := t.own(m, &accp.Message{Intent: accp.IntentFail, Op: accp.OpError, Params: accp.Params{
		{Key: "code", Value: accp.String(string(code))},
		{Key: "message", Value: accp.String(strings.ToValidUTF8(detail, "�"))},
		{Key: "retryable", Value: accp.Bool(info.Retryable)},
		{Key: "schema", Value: accp.String(accp.SchemaError)},
	}})
	return frames, true, err
}

// own writes a frame in the name of the server, which answers m.
func (t *transport) own(m, out *accp.Message) ([][]byte, bool, error) {
	out.From = "mcp"
	if init := t.mcp.InitializeResult(); init != nil && init.ServerInfo != nil {
		if f := hello(init.Instructions); f != nil {
			if h, err := t.codec.Parse(f); err == nil {
				out.From = h.From // the agent behind the server
			}
		} else if id := agentID(init.ServerInfo.Name); id != "" {
			out.From = id
		}
	}
	seq := m.Meta.Seq.N + 1
	if t.perSender {
		t.mu.Lock()
		t.last++
		seq = t.last
		t.mu.Unlock()
	}
	out.Meta = envelope(seq)
	out.Meta.CID, out.Meta.SID = m.Chain(), m.Meta.SID
	if m.Meta.CID != "" {
		out.Meta.AID = m.Meta.MID
	}
	frame, err := t.codec.Encode(out)
	return [][]byte{frame}, false, err
}
