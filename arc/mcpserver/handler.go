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
	"net/url"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/fivewire/fivewire/arc"
	"github.com/fivewire/fivewire/arc/internal/front"
	"github.com/fivewire/fivewire/internal/mcpserver"
	"github.com/fivewire/fivewire/internal/option"
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

	// TaskDelay is how long a call waits if its client supports the tasks of MCP. Then its result is such a task.
	// Zero means 1 s; a negative value means that it does not wait.
	TaskDelay time.Duration

	// PollInterval is the interval at which clients are to read a task, in whole milliseconds. Zero and negative
	// values mean 1 s.
	PollInterval time.Duration
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
	names := map[string]bool{}
	for _, a := range agents {
		if !toolName.MatchString(a.AgentID) {
			return nil, fmt.Errorf("mcpserver: %q cannot be the name of a tool", a.AgentID)
		}
		if names[a.AgentID] {
			return nil, fmt.Errorf("mcpserver: the agent %q is listed twice", a.AgentID)
		}
		names[a.AgentID] = true
	}
	h.opts.Name = cmp.Or(h.opts.Name, "arc")
	h.opts.RequestAgent = cmp.Or(h.opts.RequestAgent, "mcp-client")
	h.opts.MaxWait = cmp.Or(h.opts.MaxWait, 50*time.Second)
	h.opts.TaskDelay = cmp.Or(h.opts.TaskDelay, time.Second)
	h.opts.PollInterval = option.Or(h.opts.PollInterval, time.Second, time.Second)
	next := mcpserver.Server{Name: h.opts.Name, Version: h.opts.Version, Extension: tasksExtension, Extend: extend}.Handler(func(r *http.Request) mcpserver.Backend {
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
	if path := a.missing(); len(r.Errors) == 0 && path != "" {
		r.Errors = append(r.Errors, mcpserver.Fault{Path: path, Reason: "missing_parameter", Expected: "string"})
	}
	if len(r.Errors) == 0 {
		return nil
	}
	return r
}

// missing returns the path of an argument that the others need, or "".
func (a *arguments) missing() string {
	switch {
	case a.isCancel && a.taskID == "":
		return "/taskId"
	case !a.isCancel && a.message == "" && (a.taskID == "" || a.data != nil):
		return "/message"
	}
	return ""
}

func (a *arguments) parts() []arc.Part {
	parts := []arc.Part{arc.TextPart(a.message)}
	if a.data != nil {
		parts = append(parts, arc.Part{Type: arc.PartTypeData, Content: string(a.data), MIMEType: "application/json"})
	}
	return parts
}

// CallTool starts, continues or cancels a task and waits for it.
func (b *backend) CallTool(ctx context.Context, c *mcpserver.Call) (mcp.Result, error) {
	if !slices.ContainsFunc(b.agents, func(a arc.AgentInfo) bool { return a.AgentID == c.Name }) {
		return nil, mcpserver.UnknownTool(c.Name)
	}
	var made *arc.Task // by this call
	var in *arc.ServerRequest
	var err error
	if c.State != "" { // a repeated call with the answer to a question
		if in, err = b.repeat(ctx, c); err != nil {
			return nil, err
		}
	} else {
		var a arguments
		if refusal := a.decode(c.Arguments); refusal != nil {
			return refusal.Result(), nil
		}
		made, in, err = b.start(ctx, c.Name, &a)
	}
	if err != nil {
		return refusalOf(err)
	}
	isTask := hasTasks(c.Client)
	limit := b.opts.MaxWait
	if isTask {
		limit = max(b.opts.TaskDelay, 1)
	}
	t, err := b.wait(ctx, in, c, limit)
	switch {
	case made != nil && ctx.Err() != nil:
		b.cancel(ctx, c.Name, made.ID)
	case made != nil && err != nil: // the caller gets its task for any reason
		if err = nil; t.state == nil {
			t.add(made, c.Notify)
		}
	}
	switch {
	case err != nil:
		return refusalOf(err)
	case isTask && !t.state.Status.Final() && (t.state.Status != arc.TaskInputRequired || canElicit(c.Client)):
		return b.handle(t, "task")
	case t.state.Status == arc.TaskInputRequired && canElicit(c.Client):
		return &mcp.CallToolResult{InputRequests: t.inputRequests(), RequestState: stateOf(&t)}, nil
	}
	return t.result()
}

// start makes the request that arguments describe, after the creation of a task without an id.
func (b *backend) start(ctx context.Context, agent string, a *arguments) (made *arc.Task, in *arc.ServerRequest, err error) {
	message := &arc.Message{Role: arc.RoleUser, Parts: a.parts()}
	id := a.taskID
	switch {
	case id == "":
		if made, err = b.create(ctx, agent, message); err != nil {
			return nil, nil, err
		}
		id = made.ID
	case a.isCancel:
		in, err = b.request(agent, arc.MethodTaskCancel, &arc.CancelTaskParams{TaskID: id})
		return nil, in, err
	case a.message != "":
		in, err = b.request(agent, arc.MethodTaskSend, &arc.SendTaskParams{TaskID: id, Message: message})
		return nil, in, err
	}
	in, err = b.info(agent, id)
	return made, in, err
}

// info makes the request for a task.
func (b *backend) info(agent, id string) (*arc.ServerRequest, error) {
	return b.request(agent, arc.MethodTaskInfo, &arc.TaskInfoParams{TaskID: id})
}

// refusalOf returns an error of the server as the result of a call.
func refusalOf(err error) (mcp.Result, error) {
	if e, ok := errors.AsType[*arc.Error](err); ok {
		r := &mcpserver.Refusal{Code: cmp.Or(e.Code.Name(), fmt.Sprint(int64(e.Code))), Message: cmp.Or(e.Message, e.Code.Message()), Details: e.Details}
		return r.Result(), nil
	}
	return nil, err
}

// create starts a task and returns it, even if ctx has ended.
func (b *backend) create(ctx context.Context, agent string, m *arc.Message) (*arc.Task, error) {
	return b.task(context.WithoutCancel(ctx), agent, arc.MethodTaskCreate, &arc.CreateTaskParams{InitialMessage: m})
}

// task makes a request whose result is a task.
func (b *backend) task(ctx context.Context, agent, method string, params any) (*arc.Task, error) {
	in, err := b.request(agent, method, params)
	if err != nil {
		return nil, err
	}
	res := b.server.ServeMessage(ctx, in, nil)
	if res.Error != nil {
		return nil, res.Error
	}
	answer, err := arc.DecodeResponse(res.Data, "")
	if err != nil {
		return nil, err
	}
	result, err := arc.DecodeResult(method, answer.Result)
	if err != nil {
		return nil, err
	}
	return result.Task, nil
}

// request makes a request to the server.
func (b *backend) request(agent, method string, params any) (*arc.ServerRequest, error) {
	return b.keyed("", agent, method, params)
}

// keyed makes a request with a key, which is one request with all others of the key.
func (b *backend) keyed(key, agent, method string, params any) (*arc.ServerRequest, error) {
	text, err := json.Marshal(params)
	if err != nil {
		return nil, err
	}
	id := arc.NewID()
	if key != "" {
		id = `"mcp"` // equal in each repetition
	}
	in := *b.in
	in.RequestKey = key
	in.Data, err = arc.AppendRequest(nil, &arc.Request{ID: id, Method: method, RequestAgent: b.opts.RequestAgent, TargetAgent: agent,
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

// A task is a task as its watcher has seen it.
type task struct {
	state  *arc.Task // with all messages of the agent and all artifacts
	inputs int       // messages of the caller
	prompt string    // the last message of the agent after those
}

// add adds a state with its new messages and artifacts, and calls notify with each message of the agent.
func (t *task) add(state *arc.Task, notify func(text string)) {
	next := *state
	next.Messages, next.Artifacts = nil, nil
	if t.state != nil {
		next.Messages, next.Artifacts = t.state.Messages, t.state.Artifacts
	}
	for _, m := range state.Messages {
		if t.prompt = ""; m.Role != arc.RoleAgent {
			t.inputs++
			continue
		}
		t.prompt = m.Text()
		next.Messages = append(next.Messages, m)
		notify(t.prompt)
	}
	next.Artifacts = append(next.Artifacts, state.Artifacts...)
	t.state = &next
}

// question returns the question of a task that waits.
func (t *task) question() string { return cmp.Or(t.prompt, t.state.Reason) }

// wait returns the task when it has ended or waits for input, after limit, or when the server ends; a negative limit is
// no bound.
func (b *backend) wait(ctx context.Context, in *arc.ServerRequest, c *mcpserver.Call, limit time.Duration) (t task, err error) {
	watch, stop := context.WithCancel(ctx)
	defer stop()
	for state, err := range b.server.WatchTask(watch, in) {
		if err != nil {
			if t.state != nil && ctx.Err() == nil && (watch.Err() != nil || errors.Is(err, arc.ErrClosed)) {
				return t, nil // it works on, after a shutdown in another process
			}
			return t, err
		}
		if t.state == nil && limit > 0 {
			defer time.AfterFunc(limit, stop).Stop()
		}
		t.add(state, c.Notify)
		if t.state.Status == arc.TaskInputRequired || t.state.Status.Final() {
			return t, nil
		}
	}
	return t, nil
}

// output is a task in the form of the output schema.
type output struct {
	TaskID    string         `json:"taskId"`
	Status    arc.TaskStatus `json:"status"`
	Question  string         `json:"question,omitempty"`
	Reason    string         `json:"reason,omitempty"`
	Messages  []arc.Message  `json:"messages,omitempty"` // of the agent
	Artifacts []arc.Artifact `json:"artifacts,omitempty"`
}

// contentOf returns a part as content, or nil.
func contentOf(task string, p *arc.Part) mcp.Content {
	data, err := p.Bytes()
	switch {
	case err != nil:
		return nil
	case p.Type == arc.PartTypeText, p.Type == arc.PartTypeData:
		return &mcp.TextContent{Text: string(data)}
	case p.Type == arc.PartTypeImage:
		return &mcp.ImageContent{MIMEType: p.MIMEType, Data: data}
	case p.Type == arc.PartTypeAudio:
		return &mcp.AudioContent{MIMEType: p.MIMEType, Data: data}
	case p.Type == arc.PartTypeFile:
		uri := "arc:/" + url.PathEscape(task) + "/" + url.PathEscape(cmp.Or(p.Filename, "file"))
		return &mcp.EmbeddedResource{Resource: &mcp.ResourceContents{URI: uri, MIMEType: p.MIMEType, Blob: data}}
	}
	return nil
}

// without returns parts without the data that their contents have: models may read structured content as text.
func without(parts []arc.Part) []arc.Part {
	parts = slices.Clone(parts)
	for i := range parts {
		switch parts[i].Type {
		case arc.PartTypeImage, arc.PartTypeAudio, arc.PartTypeFile:
			parts[i].Content = ""
		}
	}
	return parts
}

// result returns the task as the result of a call. Its content is that of the artifacts or else of the last message.
func (t *task) result() (*mcp.CallToolResult, error) {
	s := t.state
	out := output{TaskID: s.ID, Status: s.Status, Reason: s.Reason, Messages: slices.Clone(s.Messages), Artifacts: slices.Clone(s.Artifacts)}
	for i := range out.Messages {
		out.Messages[i].Parts = without(out.Messages[i].Parts)
	}
	for i := range out.Artifacts {
		out.Artifacts[i].Parts = without(out.Artifacts[i].Parts)
	}
	if s.Status == arc.TaskInputRequired {
		out.Question, out.Reason = t.question(), ""
	}
	value, err := json.Marshal(out)
	if err != nil {
		return nil, err
	}
	res := &mcp.CallToolResult{StructuredContent: json.RawMessage(value), IsError: s.Status == arc.TaskFailed || s.Status == arc.TaskCanceled}
	add := func(text string) { res.Content = append(res.Content, &mcp.TextContent{Text: text}) }
	addParts := func(parts []arc.Part) {
		for i := range parts {
			if c := contentOf(s.ID, &parts[i]); c != nil {
				res.Content = append(res.Content, c)
			}
		}
	}
	for _, a := range s.Artifacts {
		addParts(a.Parts)
	}
	switch n := len(s.Messages); {
	case s.Status == arc.TaskInputRequired:
		add(fmt.Sprintf("The agent asks: %s\nAnswer with the taskId %s.", out.Question, s.ID))
	case !s.Status.Final():
		add(fmt.Sprintf("The task works. Call again with the taskId %s to wait for it.", s.ID))
	case s.Reason != "":
		add(s.Reason)
	case len(res.Content) == 0 && n > 0:
		addParts(s.Messages[n-1].Parts)
	}
	if len(res.Content) == 0 {
		add(string(s.Status))
	}
	return res, nil
}
