// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package mcpserver

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/fivewire/fivewire/arc"
	"github.com/fivewire/fivewire/arc/internal/front"
	"github.com/fivewire/fivewire/internal/mcpserver"
	"github.com/fivewire/fivewire/internal/strictjson"
)

// Options adjust a handler, which copies them. Authentication, limits, timeouts and origins are those of the
// arc.Server.
type Options struct {
	// Name and Version are those of the MCP server. Empty means "arc" and "1".
	Name, Version string

	// RequestAgent is the calling agent in the calls of the arc.Server. Empty means "mcp-client".
	RequestAgent string

	// MaxWait is how long a call waits for a task. Then its result is the present state, and a call with
	// the taskId continues to wait. Zero means 50 s; a negative value removes the bound.
	MaxWait time.Duration
}

// NewHandler returns an [http.Handler] that serves agents of server as tools to MCP clients, for one path. The name
// of a tool is the AgentID of its agent, which may also be a group, and is registered at server before or later.
func NewHandler(server *arc.Server, agents []arc.AgentInfo, opts *Options) (http.Handler, error) {
	if server == nil || len(agents) == 0 {
		return nil, errors.New("mcpserver: no arc.Server or no agents")
	}
	h := &handler{server: server, agents: slices.Clone(agents)}
	if opts != nil {
		h.opts = *opts
	}
	for _, a := range agents {
		if !toolName.MatchString(a.AgentID) {
			return nil, fmt.Errorf("mcpserver: %q cannot be the name of a tool", a.AgentID)
		}
	}
	h.opts.Name = cmp.Or(h.opts.Name, "arc")
	h.opts.RequestAgent = cmp.Or(h.opts.RequestAgent, "mcp-client")
	h.opts.MaxWait = cmp.Or(h.opts.MaxWait, 50*time.Second)
	next := mcpserver.Server{Name: h.opts.Name, Version: h.opts.Version}.Handler(func(r *http.Request) mcpserver.Backend {
		in, _ := r.Context().Value(front.RequestKey{}).(*arc.ServerRequest)
		return &backend{h, in}
	})
	return front.New(server, front.Options{Methods: http.MethodPost, Headers: mcpserver.CORSHeaders}, next), nil
}

// toolName is the form of the names of tools.
var toolName = regexp.MustCompile(`^[A-Za-z0-9_.-]{1,128}$`)

type handler struct {
	server *arc.Server
	agents []arc.AgentInfo
	opts   Options
}

// The schemas of each tool.
var (
	inputSchema = json.RawMessage(`{"type":"object","properties":{` +
		`"message":{"type":"string","description":"What the agent is to do, or the answer to its question."},` +
		`"data":{"type":"object","description":"Data that belong to the message."},` +
		`"taskId":{"type":"string","description":"The task to continue: alone to wait for it, with a message to answer it."},` +
		`"cancel":{"type":"boolean","description":"Cancels the task of taskId."}},"additionalProperties":false}`)
	outputSchema = json.RawMessage(`{"type":"object","properties":{"taskId":{"type":"string"},` +
		`"status":{"type":"string","enum":["SUBMITTED","WORKING","INPUT_REQUIRED","COMPLETED","FAILED","CANCELED"]},` +
		`"question":{"type":"string"},"reason":{"type":"string"},"messages":{"type":"array"},"artifacts":{"type":"array"}},` +
		`"required":["taskId","status"]}`)
)

// A backend has the tools of one request.
type backend struct {
	*handler
	in *arc.ServerRequest
}

// ListTools returns a tool for each agent.
func (b *backend) ListTools(context.Context) (list []*mcp.Tool, err error) {
	for _, a := range b.agents {
		list = append(list, &mcp.Tool{Name: a.AgentID, Title: a.Name, Description: cmp.Or(a.Description, a.Prompt),
			InputSchema: inputSchema, OutputSchema: outputSchema})
	}
	return list, nil
}

// arguments are those of a tool.
type arguments struct {
	message, taskID string
	data            json.RawMessage
	isCancel        bool
}

// decode reads arguments; the paths of invalid ones are in the refusal.
func (a *arguments) decode(text json.RawMessage) *mcpserver.Refusal {
	r := &mcpserver.Refusal{Code: arc.ErrInvalidParams.Name(), Message: "the arguments do not fit the schema"}
	check := func(path, want string, ok bool, v strictjson.Value) {
		if !ok {
			r.Errors = append(r.Errors, mcpserver.Fault{Path: path, Reason: "wrong_type", Expected: want, Got: string(v)})
		}
	}
	for m := strictjson.Value(text).Members(); m.Next(); {
		var ok bool
		name := string(m.Name)
		path := "/" + strings.NewReplacer("~", "~0", "/", "~1").Replace(name)
		switch name {
		case "message":
			a.message, ok = m.Value.Text()
			check(path, "string", ok, m.Value)
		case "taskId":
			a.taskID, ok = m.Value.Text()
			check(path, "string", ok, m.Value)
		case "cancel":
			a.isCancel, ok = m.Value.Bool()
			check(path, "boolean", ok, m.Value)
		case "data":
			a.data = json.RawMessage(m.Value)
			check(path, "object", m.Value.IsObject(), m.Value)
		default:
			r.Errors = append(r.Errors, mcpserver.Fault{Path: path, Reason: "unknown_parameter"})
		}
	}
	if len(r.Errors) == 0 && a.message == "" && a.taskID == "" {
		r.Errors = append(r.Errors, mcpserver.Fault{Path: "/message", Reason: "missing_parameter", Expected: "string"})
	}
	if len(r.Errors) == 0 {
		return nil
	}
	return r
}

func (a *arguments) parts() []arc.Part {
	parts := []arc.Part{arc.TextPart(a.message)}
	if a.data != nil {
		parts = append(parts, arc.Part{Type: arc.PartTypeData, Content: string(a.data), MIMEType: "application/json"})
	}
	return parts
}

// CallTool starts, continues or cancels a task and waits for it.
func (b *backend) CallTool(ctx context.Context, c *mcpserver.Call) (*mcp.CallToolResult, error) {
	if !slices.ContainsFunc(b.agents, func(a arc.AgentInfo) bool { return a.AgentID == c.Name }) {
		return nil, mcpserver.UnknownTool(c.Name)
	}
	var a arguments
	if refusal := a.decode(c.Arguments); refusal != nil {
		return refusal.Result(), nil
	}
	message := &arc.Message{Role: arc.RoleUser, Parts: a.parts()}
	id := a.taskID
	var err error
	var in *arc.ServerRequest
	if id == "" {
		if id, err = b.create(ctx, c.Name, message); err != nil {
			return refusalOf(err)
		}
	}
	switch {
	case a.taskID != "" && a.isCancel:
		in, err = b.request(c.Name, arc.MethodTaskCancel, &arc.CancelTaskParams{TaskID: a.taskID})
	case a.taskID != "" && a.message != "":
		in, err = b.request(c.Name, arc.MethodTaskSend, &arc.SendTaskParams{TaskID: a.taskID, Message: message})
	default:
		in, err = b.request(c.Name, arc.MethodTaskInfo, &arc.TaskInfoParams{TaskID: id, OmitMessages: true, OmitArtifacts: true})
	}
	if err != nil {
		return nil, err
	}
	t, err := b.wait(ctx, in, c)
	if ctx.Err() != nil && a.taskID == "" {
		b.cancel(ctx, c.Name, id)
	}
	if err != nil {
		return refusalOf(err)
	}
	return t.result()
}

// refusalOf returns an error of the server as the result of a call.
func refusalOf(err error) (*mcp.CallToolResult, error) {
	if e, ok := errors.AsType[*arc.Error](err); ok {
		r := &mcpserver.Refusal{Code: cmp.Or(e.Code.Name(), fmt.Sprint(int64(e.Code))), Message: cmp.Or(e.Message, e.Code.Message()), Details: e.Details}
		return r.Result(), nil
	}
	return nil, err
}

// create starts a task and returns its id, even if ctx has ended.
func (b *backend) create(ctx context.Context, agent string, m *arc.Message) (string, error) {
	in, err := b.request(agent, arc.MethodTaskCreate, &arc.CreateTaskParams{InitialMessage: m})
	if err != nil {
		return "", err
	}
	res := b.server.ServeMessage(context.WithoutCancel(ctx), in, nil)
	if res.Error != nil {
		return "", res.Error
	}
	answer, err := arc.DecodeResponse(res.Data, "")
	if err != nil {
		return "", err
	}
	id, _ := strictjson.Value(answer.Result).Get("task").Get("taskId").Text()
	return id, nil
}

// request makes a request to the server.
func (b *backend) request(agent, method string, params any) (*arc.ServerRequest, error) {
	text, err := json.Marshal(params)
	if err != nil {
		return nil, err
	}
	in := *b.in
	in.Data, err = arc.AppendRequest(nil, &arc.Request{ID: arc.NewID(), Method: method, RequestAgent: b.opts.RequestAgent, TargetAgent: agent,
		Params: text})
	return &in, err
}

// cancelTimeout bounds the cancelation of a task whose caller has disconnected.
const cancelTimeout = 10 * time.Second

func (b *backend) cancel(ctx context.Context, agent, id string) {
	in, err := b.request(agent, arc.MethodTaskCancel, &arc.CancelTaskParams{TaskID: id, Reason: "the caller has canceled the call"})
	if err != nil {
		return
	}
	ctx, stop := context.WithTimeout(context.WithoutCancel(ctx), cancelTimeout)
	defer stop()
	b.server.ServeMessage(ctx, in, nil)
}

// A task is the state of a task in the form of the output schema.
type task struct {
	TaskID    string         `json:"taskId"`
	Status    arc.TaskStatus `json:"status"`
	Question  string         `json:"question,omitempty"`
	Reason    string         `json:"reason,omitempty"`
	Messages  []arc.Message  `json:"messages,omitempty"` // of the agent
	Artifacts []arc.Artifact `json:"artifacts,omitempty"`
}

// wait returns the task when it has ended or waits for input, or after MaxWait.
func (b *backend) wait(ctx context.Context, in *arc.ServerRequest, c *mcpserver.Call) (t task, err error) {
	watch, stop := context.WithCancel(ctx)
	defer stop()
	for state, err := range b.server.WatchTask(watch, in) {
		if err != nil {
			if t.TaskID != "" && ctx.Err() == nil && watch.Err() != nil {
				return t, nil // it works on
			}
			return t, err
		}
		if t.TaskID == "" && b.opts.MaxWait > 0 {
			defer time.AfterFunc(b.opts.MaxWait, stop).Stop()
		}
		t.TaskID, t.Status, t.Reason, t.Question = state.ID, state.Status, state.Reason, ""
		for _, m := range state.Messages {
			if m.Role == arc.RoleAgent {
				t.Messages = append(t.Messages, m)
				c.Notify(m.Text())
			}
		}
		t.Artifacts = append(t.Artifacts, state.Artifacts...)
		if t.Status == arc.TaskInputRequired {
			t.Question, t.Reason = t.Reason, ""
		}
		if t.Status == arc.TaskInputRequired || t.Status.Final() {
			return t, nil
		}
	}
	return t, nil
}

// result returns the task as the result of a call; its text is that of the artifacts or else of the last message.
func (t *task) result() (*mcp.CallToolResult, error) {
	value, err := json.Marshal(t)
	if err != nil {
		return nil, err
	}
	res := &mcp.CallToolResult{StructuredContent: json.RawMessage(value), IsError: t.Status == arc.TaskFailed || t.Status == arc.TaskCanceled}
	add := func(text string) { res.Content = append(res.Content, &mcp.TextContent{Text: text}) }
	for _, a := range t.Artifacts {
		for _, p := range a.Parts {
			if p.Type == arc.PartTypeText || p.Type == arc.PartTypeData {
				add(p.Content)
			}
		}
	}
	switch n := len(t.Messages); {
	case t.Status == arc.TaskInputRequired:
		add(fmt.Sprintf("The agent asks: %s\nAnswer with the taskId %s.", t.Question, t.TaskID))
	case !t.Status.Final():
		add(fmt.Sprintf("The task works. Call again with the taskId %s to wait for it.", t.TaskID))
	case t.Reason != "":
		add(t.Reason)
	case len(res.Content) == 0 && n > 0:
		add(t.Messages[n-1].Text())
	case len(res.Content) == 0:
		add(string(t.Status))
	}
	return res, nil
}
