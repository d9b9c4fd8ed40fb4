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
	"strconv"
	"strings"
	"sync"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/fivewire/fivewire/accp"
	"github.com/fivewire/fivewire/accp/internal/bridge"
	"github.com/fivewire/fivewire/accp/internal/hook"
	"github.com/fivewire/fivewire/accp/profile"
)

// NewClient returns a client that calls the tools of an MCP server as agent self. The caller closes
// the MCP session. HTTPClient and Header of the options are not used. [accp.Client.Call] of a
// req:tool message (see [profile.ToolCall]) returns the done:tool message. Errors are those of the
// frames, and:
//
//   - an unknown tool is [accp.ErrToolNotFound],
//   - rejected arguments are [accp.ErrToolSchema],
//   - a tool error of a server without ACCP is [accp.ErrToolExecFailed],
//   - a lost connection is [accp.ErrTimeout],
//   - an unresolved reference in the arguments is [accp.ErrRefNotFound] or a related
//     code, and nothing is sent.
//
// Cancelling a call cancels it at the server. [accp.Client.SyncRegistry] adds the schemas in the
// instructions of the server; call it first.
func NewClient(session *mcp.ClientSession, self string, opts *accp.ClientOptions) (*accp.Client, error) {
	if session == nil {
		return nil, errors.New("accp: new client: no MCP session")
	}
	var o accp.ClientOptions
	if opts != nil {
		o = *opts
	}
	t := &transport{mcp: session, last: map[string]int64{}, sessions: map[string]*progress{}, stores: map[string]*accp.Session{}, perSender: o.Session.SeqPerSender,
		codec: accp.Codec{Lenient: o.Session.Lenient, FrameLimits: o.Session.FrameLimits}}
	o.HTTPClient = &http.Client{Transport: t}
	o.Header = nil
	c, err := accp.NewClient("http://localhost"+accp.FramesPath, self, &o)
	if err != nil {
		return nil, err
	}
	for _, s := range hook.Sessions(c).([]*accp.Session) {
		t.stores[s.ID()] = s
	}
	t.codec.Registry = c.Session().Registry()
	return c, nil
}

// A transport answers the frames that an [accp.Client] posts over MCP.
type transport struct {
	mcp       *mcp.ClientSession
	stores    map[string]*accp.Session // the sessions of the client by id; they resolve references
	codec     accp.Codec
	perSender bool

	mu       sync.Mutex
	last     map[string]int64     // number of the last frame by sender, if each counts its own
	sessions map[string]*progress // by session id
}

// A progress is that of one session of the client, which has one exchange at a time.
type progress struct {
	greet bool          // the registry of the server was delivered
	next  int64         // the next number for the agent behind the server, 0 if any
	parts *accp.Message // the received parts, with the metadata of the first
}

// progressLocked returns the progress of the session of a message. t.mu must be held.
func (t *transport) progressLocked(m *accp.Message) *progress {
	p := t.sessions[m.Meta.SID]
	if p == nil {
		p = &progress{}
		t.sessions[m.Meta.SID] = p
	}
	return p
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
		return nil, err // unreachable: the session wrote the frame
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

// answer returns the frames that answer m. After an error there are none.
func (t *transport) answer(ctx context.Context, m *accp.Message) (frames [][]byte, failed bool, err error) {
	if i, n := partOf(m); n > 0 {
		whole := t.join(m, i, n)
		if whole == nil {
			return t.own(m, local, &accp.Message{Intent: accp.IntentAck, Op: m.Op})
		}
		m = whole
	}
	switch {
	case m.Intent == accp.IntentReq && m.Op == profile.OpTool:
		return t.call(ctx, m)
	case m.Intent == accp.IntentSync && m.Op == profile.OpRegistry:
		if f := t.registry(m); f != nil {
			return [][]byte{f}, false, nil
		}
		fallthrough
	case m.Intent == accp.IntentCancel: // MCP cancels a call when its context ends
		return t.own(m, local, &accp.Message{Intent: accp.IntentAck, Op: m.Op})
	}
	return t.fail(m, local, accp.ErrInvalidIntent, "")
}

// partOf returns the index of the part m and the number of parts, or zeros for a whole message
// (ACCP-D38).
func partOf(m *accp.Message) (i, n int) {
	a, b, ok := strings.Cut(m.Meta.Ext.Text("part"), "/")
	if !ok {
		return 0, 0
	}
	i, _ = strconv.Atoi(a)
	n, _ = strconv.Atoi(b)
	return i, n
}

// join collects the parts of a message, which a client sends in order, and returns the complete
// message or nil. MCP itself does not limit the size of a call.
func (t *transport) join(m *accp.Message, i, n int) *accp.Message {
	t.mu.Lock()
	defer t.mu.Unlock()
	p := t.progressLocked(m)
	if i == 1 || p.parts == nil {
		first, meta := *m, *m.Meta
		first.Params, first.Meta, meta.Ext = nil, &meta, nil
		for _, x := range m.Meta.Ext {
			if x.Key != "part" {
				meta.Ext = append(meta.Ext, x)
			}
		}
		p.parts = &first
	}
	for _, x := range m.Params {
		p.parts.Params = p.parts.Params.Set(x.Key, x.Value) // each part repeats the schema
	}
	if i < n {
		return nil
	}
	whole := p.parts
	p.parts = nil
	return whole
}

// registry returns the frame in the instructions of the server, once for each session.
func (t *transport) registry(m *accp.Message) []byte {
	t.mu.Lock()
	defer t.mu.Unlock()
	p := t.progressLocked(m)
	if p.greet {
		return nil
	}
	p.greet = true
	if init := t.mcp.InitializeResult(); init != nil {
		return hello(init.Instructions)
	}
	return nil
}

// call calls a tool.
func (t *transport) call(ctx context.Context, m *accp.Message) ([][]byte, bool, error) {
	params, err := resolve(ctx, t.stores[m.Meta.SID], m.Params)
	if err != nil {
		return t.fail(m, local, codeOf(err), "")
	}
	called := *m
	called.Params = params
	name, arguments, err := bridge.Call(&called)
	if err != nil {
		return t.fail(m, local, codeOf(err), "")
	}
	rest := *m
	rest.Params = nil
	for _, p := range m.Params {
		if p.Key != "tool_name" && p.Key != "arguments" {
			rest.Params = append(rest.Params, p)
		}
	}
	// The agent receives the calls only, so calls have separate numbers without gaps. Its answers
	// are in order, since the agent cannot have counted further than this side.
	t.mu.Lock()
	p := t.progressLocked(m)
	if p.next == 0 {
		p.next = m.Meta.Seq.N
	}
	meta := *m.Meta
	meta.Seq = accp.NewOptionalInt(p.next)
	t.mu.Unlock()
	rest.Meta = &meta
	head, err := t.codec.Append(nil, &rest)
	if err != nil {
		return t.fail(m, local, codeOf(err), "")
	}
	res, err := t.mcp.CallTool(ctx, &mcp.CallToolParams{
		Name: name, Arguments: arguments, Meta: mcp.Meta{frameKey: string(head)},
	})
	var rpc *jsonrpc.Error
	if !errors.As(err, &rpc) { // otherwise the agent has not received it
		t.mu.Lock()
		p.next++
		t.mu.Unlock()
	}
	switch {
	case ctx.Err() != nil:
		return nil, false, context.Cause(ctx)
	case rpc != nil:
		return t.fail(m, local, t.refusal(ctx, rpc, name), rpc.Message)
	case err != nil:
		return nil, false, fmt.Errorf("accp: tools/call: %w", err)
	}
	if frames := ExtractFrames(res); len(frames) > 0 {
		t.recordSeq(p, frames[len(frames)-1])
		return frames, res.IsError && len(frames) == 1, nil
	}
	return t.plain(ctx, m, res)
}

// maxFrames is the maximum number of frames that an answer can advance the numbers by.
const maxFrames = 1 << 16

// recordSeq records the number of an answer, if both sides share their numbers.
func (t *transport) recordSeq(p *progress, frame []byte) {
	m, err := t.codec.DecodeRaw(frame)
	if err != nil || m.Meta == nil || t.perSender {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if n := m.Meta.Seq.N; n >= p.next && n-p.next < maxFrames {
		p.next = n + 1
	}
}

// resolve replaces the references in the arguments by values of a session. Other params are not sent to the
// tool and stay unresolved.
func resolve(ctx context.Context, s *accp.Session, params accp.Params) (accp.Params, error) {
	args, ok := params.Get("arguments")
	if !ok {
		return params, nil
	}
	args, err := resolveIn(ctx, s, args)
	if err != nil {
		return nil, err
	}
	return append(accp.Params(nil), params...).Set("arguments", args), nil
}

func resolveIn(ctx context.Context, s *accp.Session, v accp.Value) (accp.Value, error) {
	switch v.Kind() {
	case accp.KindRef:
		ref, _ := v.Ref()
		return s.Resolve(ctx, ref)
	case accp.KindArray:
		var out []accp.Value
		for _, e := range v.Elements() {
			e, err := resolveIn(ctx, s, e)
			if err != nil {
				return v, err
			}
			out = append(out, e)
		}
		return accp.Array(out...), nil
	case accp.KindMap:
		var out accp.Params
		for _, p := range v.Entries() {
			e, err := resolveIn(ctx, s, p.Value)
			if err != nil {
				return v, err
			}
			out = append(out, accp.Param{Key: p.Key, Value: e})
		}
		return accp.Map(out...), nil
	}
	return v, nil
}

// refusal returns the code for a refusal of the server. MCP has one code for an unknown tool and
// for invalid arguments, so the list of tools distinguishes them.
func (t *transport) refusal(ctx context.Context, e *jsonrpc.Error, name string) accp.Code {
	switch e.Code {
	case jsonrpc.CodeMethodNotFound: // the server has no tools
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

// plain writes the frame for a result of a server without ACCP: the structured content, otherwise
// the text, otherwise the content as JSON.
func (t *transport) plain(ctx context.Context, m *accp.Message, res *mcp.CallToolResult) ([][]byte, bool, error) {
	var texts []string
	for _, c := range res.Content {
		if c, ok := c.(*mcp.TextContent); ok {
			texts = append(texts, c.Text)
		}
	}
	if res.IsError {
		text, code := strings.Join(texts, "\n"), accp.ErrToolExecFailed
		// The TypeScript and Go SDKs report invalid arguments in a result instead of a protocol
		// error.
		if strings.HasPrefix(text, "MCP error -32602: ") || strings.HasPrefix(text, `validating "arguments": `) {
			code = t.refusal(ctx, &jsonrpc.Error{Code: jsonrpc.CodeInvalidParams}, m.Params.Text("tool_name"))
		}
		return t.fail(m, t.name(), code, text)
	}
	if res.NeedsInput() {
		return t.fail(m, t.name(), accp.ErrToolExecFailed, "the tool asks for input")
	}
	var value accp.Value
	var err error
	switch {
	case res.StructuredContent != nil:
		// The SDK has decoded numbers as floats. Servers should repeat the content as text, which
		// is exact.
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
		frames, failed, ferr := t.own(m, t.name(), &accp.Message{Intent: accp.IntentDone, Op: profile.OpTool, Params: accp.Params{
			{Key: "schema", Value: accp.String(profile.SchemaTool)},
			{Key: "tool_name", Value: accp.String(m.Params.Text("tool_name"))},
			{Key: "result", Value: value},
		}})
		if ferr == nil {
			return frames, failed, nil
		}
		err = ferr
	}
	return t.fail(m, t.name(), accp.ErrToolExecFailed, "the result does not fit a frame: "+err.Error())
}

// fromAny returns the value of JSON that the SDK has decoded.
func fromAny(v any) (accp.Value, error) {
	b, err := json.Marshal(v)
	if err != nil {
		return accp.Value{}, err
	}
	return accp.FromJSON(b)
}

// maxDetail is the maximum length of a server error in a frame.
const maxDetail = 400

// fail writes an error frame. Its message is the text of the server, which models need, or else the
// name of the code.
func (t *transport) fail(m *accp.Message, from string, code accp.Code, detail string) ([][]byte, bool, error) {
	info := code.Info()
	if detail == "" {
		detail = strings.ToLower(info.Name)
	}
	if len(detail) > maxDetail {
		detail = strings.ToValidUTF8(detail[:maxDetail], "") + "…"
	}
	frames, _, err := t.own(m, from, &accp.Message{Intent: accp.IntentFail, Op: profile.OpError, Params: accp.Params{
		{Key: "code", Value: accp.String(string(code))},
		{Key: "message", Value: accp.String(strings.ToValidUTF8(detail, "�"))},
		{Key: "retryable", Value: accp.Bool(info.Retryable)},
		{Key: "schema", Value: accp.String(profile.SchemaError)},
	}})
	return frames, true, err
}

// local is the agent-id of answers to frames that are not sent to the server.
const local = "mcp"

// name returns the agent-id of a server that does not speak ACCP.
func (t *transport) name() string {
	if init := t.mcp.InitializeResult(); init != nil && init.ServerInfo != nil {
		if id := agentID(init.ServerInfo.Name); id != "" {
			return id
		}
	}
	return local
}

// own writes a frame that answers m.
func (t *transport) own(m *accp.Message, from string, out *accp.Message) ([][]byte, bool, error) {
	out.From = from
	seq := m.Meta.Seq.N + 1
	if t.perSender {
		t.mu.Lock()
		t.last[from]++
		seq = t.last[from]
		t.mu.Unlock()
	}
	out.Meta = envelope(seq)
	out.Meta.CID, out.Meta.SID = m.Chain(), m.Meta.SID
	if m.Meta.CID != "" {
		out.Meta.AID = m.Meta.MID
	}
	frame, err := t.codec.Append(nil, out)
	if err != nil && !t.perSender {
		if frames := t.inParts(m, out); frames != nil {
			return frames, false, nil
		}
	}
	return [][]byte{frame}, false, err
}

// inParts returns the frames of an answer to m that is longer than one frame, or nil.
func (t *transport) inParts(m, out *accp.Message) [][]byte {
	s, err := accp.NewSession(out.From, m.Meta.SID, &accp.SessionOptions{Lenient: t.codec.Lenient, FrameLimits: t.codec.FrameLimits,
		Registry: t.codec.Registry, DisableAutoCheckpoint: true, Budget: accp.BudgetOff, MaxMemory: -1})
	if err != nil {
		return nil
	}
	request, err := t.codec.Append(nil, &accp.Message{From: m.From, Intent: accp.IntentAck, Op: m.Op, Meta: &accp.Meta{
		MID: newID(), Seq: m.Meta.Seq, TS: m.Meta.TS, SID: m.Meta.SID}})
	if err != nil {
		return nil
	}
	if _, err := s.Receive(context.Background(), request); err != nil { // the numbers follow that of m
		return nil
	}
	part := *out
	part.Meta = &accp.Meta{CID: out.Meta.CID, AID: out.Meta.AID}
	sent, err := s.Send(context.Background(), &part)
	if err != nil {
		return nil
	}
	return sent.Frames
}
