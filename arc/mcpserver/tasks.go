// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package mcpserver

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/fivewire/fivewire/arc"
	"github.com/fivewire/fivewire/arc/internal/front"
	"github.com/fivewire/fivewire/internal/mcpserver"
)

// tasksExtension is the extension of MCP for tasks.
const tasksExtension = "io.modelcontextprotocol/tasks"

// hasTasks reports whether a client supports the tasks of MCP.
func hasTasks(client *mcp.ClientCapabilities) bool {
	if client == nil {
		return false
	}
	_, ok := client.Extensions[tasksExtension]
	return ok
}

// canElicit reports whether a client shows questions in forms.
func canElicit(client *mcp.ClientCapabilities) bool {
	return client != nil && client.Elicitation != nil && (client.Elicitation.Form != nil || client.Elicitation.URL == nil)
}

// missing returns the error for a client without a capability.
func missing(capability string) error {
	return &jsonrpc.Error{Code: mcp.CodeMissingRequiredClientCapabilities, Message: "missing required client capability",
		Data: json.RawMessage(`{"requiredCapabilities":` + capability + `}`)}
}

// taskParams are the params of the three methods.
type taskParams struct {
	mcp.ParamsBase
	TaskID         string                     `json:"taskId"`
	InputResponses map[string]json.RawMessage `json:"inputResponses"`
}

// A handle is a task of MCP, or an acknowledgment without one.
type handle struct {
	mcp.ResultBase
	ResultType string `json:"resultType"`
	*state
}

// A state is the state of a task of MCP.
type state struct {
	TaskID        string              `json:"taskId"`
	Status        string              `json:"status"`
	StatusMessage string              `json:"statusMessage,omitempty"`
	CreatedAt     arc.Timestamp       `json:"createdAt"`
	LastUpdatedAt arc.Timestamp       `json:"lastUpdatedAt"`
	TTL           *int64              `json:"ttlMs"`
	PollInterval  int64               `json:"pollIntervalMs"`
	InputRequests mcp.InputRequestMap `json:"inputRequests,omitempty"`
	Result        *mcp.CallToolResult `json:"result,omitempty"`
	Error         *jsonrpc.Error      `json:"error,omitempty"`
}

// extend adds the methods of the extension to the server of a request.
func extend(s mcpserver.Server, server *mcp.Server, b mcpserver.Backend) error {
	tasks := b.(*backend)
	add := func(method string, f func(ctx context.Context, agent string, client *mcp.ClientCapabilities, p *taskParams) (*handle, error)) error {
		return mcpserver.AddMethod(s, server, method, func(ctx context.Context, client *mcp.ClientCapabilities, p *taskParams) (*handle, error) {
			if !hasTasks(client) {
				return nil, missing(`{"extensions":{"` + tasksExtension + `":{}}}`)
			}
			if name := tasks.in.Header.Get("Mcp-Name"); name != "" && name != p.TaskID {
				return nil, &jsonrpc.Error{Code: mcp.CodeHeaderMismatch, Message: "header mismatch: Mcp-Name is not the taskId"}
			}
			agent, err := tasks.agentOf(ctx, p.TaskID)
			if err != nil {
				return nil, err
			}
			h, err := f(ctx, agent, client, p)
			return h, faultOf(err)
		})
	}
	return errors.Join(add("tasks/get", tasks.getTask), add("tasks/update", tasks.updateTask), add("tasks/cancel", tasks.cancelTask))
}

// unknownTask is the error for a task that the caller does not have.
func unknownTask() error {
	return &jsonrpc.Error{Code: jsonrpc.CodeInvalidParams, Message: "unknown task"}
}

// faultOf returns an error of the server as one of JSON-RPC.
func faultOf(err error) error {
	e, ok := errors.AsType[*arc.Error](err)
	switch {
	case !ok:
		return err
	case e.Code == arc.ErrTaskNotFound, e.Code == arc.ErrMissingField, e.Code == arc.ErrInvalidFieldFormat:
		return unknownTask()
	}
	return &jsonrpc.Error{Code: int64(e.Code), Message: e.Message, Data: e.Details}
}

// agentOf returns the agent to ask for a task. The agent of one tool needs no look at the task.
func (b *backend) agentOf(ctx context.Context, id string) (string, error) {
	if len(b.agents) == 1 {
		return b.agents[0].AgentID, nil
	}
	agent, group, _, err := front.TaskOf(ctx, b.server, id)
	if err != nil {
		return "", err
	}
	for _, a := range b.agents {
		if a.AgentID != "" && (a.AgentID == agent || a.AgentID == group) {
			return a.AgentID, nil
		}
	}
	return "", unknownTask()
}

// read returns the present state of a task. That of a working task is one read of the store.
func (b *backend) read(ctx context.Context, agent, id string) (t task, err error) {
	head := &arc.TaskInfoParams{TaskID: id, OmitMessages: true, OmitArtifacts: true}
	state, err := b.task(ctx, agent, arc.MethodTaskInfo, head)
	if err == nil && (state.Status == arc.TaskInputRequired || state.Status.Final()) {
		state, err = b.task(ctx, agent, arc.MethodTaskInfo, &arc.TaskInfoParams{TaskID: id})
	}
	if err == nil {
		t.add(state, func(string) {})
	}
	return t, err
}

// getTask serves tasks/get.
func (b *backend) getTask(ctx context.Context, agent string, client *mcp.ClientCapabilities, p *taskParams) (*handle, error) {
	t, err := b.read(ctx, agent, p.TaskID)
	if err != nil {
		return nil, err
	}
	if t.state.Status == arc.TaskInputRequired && !canElicit(client) {
		return nil, missing(`{"elicitation":{"form":{}}}`)
	}
	return b.handle(t, "complete")
}

// updateTask serves tasks/update. Responses to other questions than the present one are ignored.
func (b *backend) updateTask(ctx context.Context, agent string, _ *mcp.ClientCapabilities, p *taskParams) (*handle, error) {
	in, err := b.answer(ctx, agent, p.TaskID, func(n int) (response *mcp.ElicitResult, err error) {
		if text := p.InputResponses[question(n)]; text != nil && json.Unmarshal(text, &response) != nil {
			err = &jsonrpc.Error{Code: jsonrpc.CodeInvalidParams, Message: "invalid response to " + question(n)}
		}
		return response, err
	})
	if err == nil {
		err = b.do(ctx, in)
	}
	return &handle{ResultType: "complete"}, err
}

// cancelTask serves tasks/cancel. A task that has ended is left alone.
func (b *backend) cancelTask(ctx context.Context, agent string, _ *mcp.ClientCapabilities, p *taskParams) (*handle, error) {
	in, err := b.request(agent, arc.MethodTaskCancel, &arc.CancelTaskParams{TaskID: p.TaskID})
	if err == nil {
		err = b.do(ctx, in)
	}
	for _, code := range []arc.Code{arc.ErrTaskAlreadyCanceled, arc.ErrTaskAlreadyCompleted, arc.ErrInvalidTaskTransition} {
		if errors.Is(err, code) {
			err = nil
		}
	}
	return &handle{ResultType: "complete"}, err
}

// do makes a request whose result has no meaning.
func (b *backend) do(ctx context.Context, in *arc.ServerRequest) error {
	if res := b.server.ServeMessage(ctx, in, nil); res.Error != nil {
		return res.Error
	}
	return nil
}

// question returns the key of question n of a task, from 1.
func question(n int) string { return fmt.Sprintf("question-%d", n) }

// inputRequests returns the question of a task that waits.
func (t *task) inputRequests() mcp.InputRequestMap {
	return mcp.InputRequestMap{question(t.inputs): &mcp.ElicitParams{Mode: "form", Message: t.question(), RequestedSchema: answerSchema}}
}

// answerSchema is the form of an answer.
var answerSchema = json.RawMessage(`{"type":"object","properties":{"answer":{"type":"string","title":"Answer"}},"required":["answer"]}`)

// stateOf returns the state of a call that has to be repeated: its task, and its question.
func stateOf(t *task) string { return t.state.ID + "/" + question(t.inputs) }

// repeat returns the request of a repeated call.
func (b *backend) repeat(ctx context.Context, c *mcpserver.Call) (*arc.ServerRequest, error) {
	id, number, _ := strings.Cut(c.State, "/question-")
	last, err := strconv.Atoi(number)
	if err != nil || c.State != id+"/"+question(last) {
		last = math.MaxInt
	}
	in, err := b.answer(ctx, c.Name, id, func(n int) (*mcp.ElicitResult, error) {
		if last > n {
			return nil, &jsonrpc.Error{Code: jsonrpc.CodeInvalidParams, Message: "unknown requestState"}
		}
		response, _ := c.Inputs[question(n)].(*mcp.ElicitResult)
		return response, nil
	})
	return in, faultOf(err)
}

// answer returns the request with which a response to the question of a task is given to it, and without one the request
// for the task. A question that is declined cancels the task.
func (b *backend) answer(ctx context.Context, agent, id string, responseTo func(question int) (*mcp.ElicitResult, error)) (*arc.ServerRequest, error) {
	t, err := b.read(ctx, agent, id)
	if err != nil {
		return nil, err
	}
	response, err := responseTo(t.inputs)
	switch {
	case err != nil:
		return nil, err
	case t.state.Status != arc.TaskInputRequired || response == nil:
		return b.info(agent, id)
	case response.Action != "accept":
		return b.request(agent, arc.MethodTaskCancel, &arc.CancelTaskParams{TaskID: id, Reason: "the question was declined"})
	}
	return b.keyed("mcp/"+stateOf(&t), agent, arc.MethodTaskSend, &arc.SendTaskParams{TaskID: id, Message: answerOf(response)})
}

// answerOf returns the content of a form: the text of its member answer, or else all of it as data.
func answerOf(r *mcp.ElicitResult) *arc.Message {
	if text, ok := r.Content["answer"].(string); ok && len(r.Content) == 1 {
		return arc.UserText(text)
	}
	var texts []arc.Part
	for _, name := range slices.Sorted(maps.Keys(r.Content)) {
		if text, ok := r.Content[name].(string); ok {
			texts = append(texts, arc.TextPart(text))
		}
	}
	part, err := arc.DataPart(r.Content)
	if err == nil {
		texts = append(texts, part)
	}
	return &arc.Message{Role: arc.RoleUser, Parts: texts}
}

// handle returns the task of MCP for a task.
func (b *backend) handle(t task, resultType string) (*handle, error) {
	s := t.state
	interval := (b.opts.PollInterval + time.Millisecond - 1).Milliseconds() // zero would be no pause
	out := &state{TaskID: s.ID, Status: "working", CreatedAt: s.CreatedAt, LastUpdatedAt: s.UpdatedAt, PollInterval: interval}
	switch s.Status {
	case arc.TaskInputRequired:
		out.Status, out.StatusMessage, out.InputRequests = "input_required", t.question(), t.inputRequests()
	case arc.TaskCanceled:
		out.Status, out.StatusMessage = "cancelled", s.Reason
	case arc.TaskCompleted, arc.TaskFailed:
		if e := s.Error; e != nil && e.Code == arc.ErrInternal {
			out.Status, out.Error = "failed", &jsonrpc.Error{Code: int64(e.Code), Message: cmp.Or(e.Message, e.Code.Message())}
			break
		}
		var err error
		out.Status = "completed"
		if out.Result, err = t.result(); err != nil {
			return nil, err
		}
	}
	out.TTL = b.ttl(s)
	return &handle{ResultType: resultType, state: out}, nil
}

// ttl returns the time from the creation of a task to its removal in ms, or nil before the end of the task is known.
func (b *backend) ttl(s *arc.Task) *int64 {
	retention := front.TaskRetention(b.server)
	created, err := s.CreatedAt.Time()
	end, failed := s.UpdatedAt.Time()
	if err != nil || failed != nil || retention <= 0 || !s.Status.Final() {
		return nil
	}
	ms := (end.Sub(created) + retention) / time.Millisecond
	return new(int64(ms))
}
