// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package a2abridge

import (
	"cmp"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/a2aproject/a2a-go/v2/a2a"
	"github.com/a2aproject/a2a-go/v2/a2asrv"

	"github.com/fivewire/fivewire/arc"
	"github.com/fivewire/fivewire/arc/internal/front"
)

// ServerOptions adjust a [Server], which copies them. The zero value is right for production.
type ServerOptions struct {
	// Tenants are the agents of the tenants that requests name. A request without a tenant is for the
	// agent of the Server, and one with another tenant is refused.
	Tenants map[string]string

	// RequestAgent is the calling agent in the calls of the arc.Server. Empty means "a2a-client".
	RequestAgent string

	// ExtendedCard is the card for authenticated callers. Nil means that there is none.
	ExtendedCard *a2a.AgentCard

	// Heartbeat is the interval of comments on an idle stream. Zero means 15 s; a negative value disables them.
	Heartbeat time.Duration
}

// A Server serves an agent of an arc.Server to A2A clients. It implements a2asrv.RequestHandler. Its
// methods are safe for concurrent use. Streams end with the arc.Server.
type Server struct {
	engine *arc.Server
	agent  string
	opts   ServerOptions
}

var _ a2asrv.RequestHandler = (*Server)(nil)

// NewServer returns a Server for the agent of engine with this id, or for a group of agents. The agent
// may be registered later.
func NewServer(engine *arc.Server, agentID string, opts *ServerOptions) (*Server, error) {
	if engine == nil || agentID == "" {
		return nil, errors.New("a2abridge: server: no arc.Server or no agent")
	}
	s := &Server{engine: engine, agent: agentID}
	if opts != nil {
		s.opts = *opts
	}
	s.opts.RequestAgent = cmp.Or(s.opts.RequestAgent, "a2a-client")
	s.opts.Heartbeat = cmp.Or(s.opts.Heartbeat, 15*time.Second)
	tenants := map[string]string{"": agentID}
	maps.Copy(tenants, s.opts.Tenants)
	s.opts.Tenants = tenants
	front.SetDialect(engine, pushDialect, encodePush)
	return s, nil
}

// A call is one request to the arc.Server.
type call struct {
	method  string
	tenant  string
	key     string // of a message
	context string
	params  any
	push    *front.Webhook // nil without one
}

// request makes the request of a call for a method of A2A.
func (s *Server) request(ctx context.Context, c call) (*arc.ServerRequest, error) {
	in := &arc.ServerRequest{Header: http.Header{}}
	if admitted, ok := ctx.Value(front.RequestKey{}).(*arc.ServerRequest); ok {
		*in = *admitted
	} else if cc, ok := a2asrv.CallContextFrom(ctx); ok { // another transport
		for name, values := range cc.ServiceParams().List() {
			in.Header[http.CanonicalHeaderKey(name)] = values
		}
	}
	if v := in.Header.Values(a2a.SvcParamVersion); len(v) != 1 || v[0] != string(a2a.Version) {
		return nil, fmt.Errorf("%w: the version is %q, not %s", a2a.ErrVersionNotSupported, strings.Join(v, ","), a2a.Version)
	}
	agent, ok := s.opts.Tenants[c.tenant]
	if !ok {
		return nil, fmt.Errorf("%w: no such tenant", a2a.ErrInvalidParams)
	}
	if list := in.Header.Values("Authorization"); len(list) == 1 {
		in.Authorization = list[0]
	}
	in.Traceparent = in.Header.Get("Traceparent")
	params, err := json.Marshal(c.params)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", a2a.ErrInvalidParams, err)
	}
	id := arc.NewID()
	if c.key != "" {
		in.RequestKey, id = "a2a/"+c.key, `"a2a"` // equal in each repetition
	}
	in.Data, err = arc.AppendRequest(nil, &arc.Request{ID: id, Method: c.method, RequestAgent: s.opts.RequestAgent, TargetAgent: agent,
		TraceID: c.context, Params: params})
	if err != nil {
		return nil, fmt.Errorf("%w: %w", a2a.ErrInvalidParams, err)
	}
	if c.push != nil {
		front.Subscribe(in, c.push)
	}
	return in, nil
}

// states makes a call about a task and calls f with each of its states and their events, until f returns false.
func (s *Server) states(ctx context.Context, c call, f func(v *view, events []a2a.Event) bool) error {
	in, err := s.request(ctx, c)
	if err != nil {
		return err
	}
	v := &view{}
	for task, err := range s.engine.WatchTask(ctx, in) {
		if err != nil {
			return errorOf(c.method, err)
		}
		if !f(v, v.add(task)) {
			return nil
		}
	}
	return nil
}

func infoCall(tenant string, id a2a.TaskID) call {
	return call{method: arc.MethodTaskInfo, tenant: tenant,
		params: &arc.TaskInfoParams{TaskID: string(id), OmitMessages: true, OmitArtifacts: true}}
}

// first makes a call about a task and returns the task.
func (s *Server) first(ctx context.Context, c call) (task *a2a.Task, err error) {
	err = s.states(ctx, c, func(v *view, _ []a2a.Event) bool {
		task = v.snapshot()
		return false
	})
	return task, err
}

// GetTask implements a2asrv.RequestHandler.
func (s *Server) GetTask(ctx context.Context, req *a2a.GetTaskRequest) (*a2a.Task, error) {
	task, err := s.first(ctx, infoCall(req.Tenant, req.ID))
	if err != nil {
		return nil, err
	}
	return trim(task, req.HistoryLength), nil
}

// CancelTask implements a2asrv.RequestHandler.
func (s *Server) CancelTask(ctx context.Context, req *a2a.CancelTaskRequest) (*a2a.Task, error) {
	return s.first(ctx, call{method: arc.MethodTaskCancel, tenant: req.Tenant, params: &arc.CancelTaskParams{TaskID: string(req.ID)}})
}

// messageOf returns the message of a caller for the arc.Server.
func messageOf(m *a2a.Message) (*arc.Message, error) {
	switch {
	case m == nil || m.ID == "" || len(m.Parts) == 0:
		return nil, fmt.Errorf("%w: a message needs a messageId and parts", a2a.ErrInvalidParams)
	case m.Role != a2a.MessageRoleUser:
		return nil, fmt.Errorf("%w: the role of a message must be ROLE_USER", a2a.ErrInvalidParams)
	}
	message, err := toMessage(m)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", a2a.ErrInvalidParams, err)
	}
	return message, nil
}

// messageCall returns the call for a message.
func (s *Server) messageCall(ctx context.Context, req *a2a.SendMessageRequest) (call, error) {
	m := req.Message
	message, err := messageOf(m)
	if err != nil {
		return call{}, err
	}
	push, err := s.pushOf(req)
	if err != nil {
		return call{}, err
	}
	if m.TaskID == "" {
		params := &arc.CreateTaskParams{InitialMessage: message}
		if req.Metadata != nil {
			if params.Metadata, err = json.Marshal(req.Metadata); err != nil {
				return call{}, fmt.Errorf("%w: %w", a2a.ErrInvalidParams, err)
			}
		}
		return call{method: arc.MethodTaskCreate, tenant: req.Tenant, key: m.ID, context: m.ContextID, params: params, push: push}, nil
	}
	if m.ContextID != "" {
		task, err := s.first(ctx, infoCall(req.Tenant, m.TaskID))
		if err != nil {
			return call{}, err
		}
		if task.ContextID != m.ContextID {
			return call{}, fmt.Errorf("%w: the task has another contextId", a2a.ErrInvalidParams)
		}
	}
	return call{method: arc.MethodTaskSend, tenant: req.Tenant, key: m.ID, push: push,
		params: &arc.SendTaskParams{TaskID: string(m.TaskID), Message: message}}, nil
}

// pushOf returns the webhook of the push configuration of a message, or nil.
func (s *Server) pushOf(req *a2a.SendMessageRequest) (*front.Webhook, error) {
	if req.Config == nil || req.Config.PushConfig == nil {
		return nil, nil
	}
	agent := s.opts.Tenants[req.Tenant]
	if front.HasMethod(s.engine, agent, arc.MethodTaskCreate) && !front.HasMethod(s.engine, agent, arc.MethodTaskSubscribe) {
		return nil, a2a.ErrPushNotificationNotSupported
	}
	c := *req.Config.PushConfig
	c.ID = cmp.Or(c.ID, pushID(req.Message.ID))
	return webhookOf(&c)
}

// SendMessage implements a2asrv.RequestHandler. It returns the task when that has ended or waits, or at once with
// returnImmediately, and the answer of an agent that has chats and no tasks.
func (s *Server) SendMessage(ctx context.Context, req *a2a.SendMessageRequest) (a2a.SendMessageResult, error) {
	if s.isChat(req) {
		return s.chat(ctx, req)
	}
	c, err := s.messageCall(ctx, req)
	if err != nil {
		return nil, err
	}
	config := cmp.Or(req.Config, &a2a.SendMessageConfig{})
	var task *a2a.Task
	if config.ReturnImmediately {
		task, err = s.send(ctx, c, req.Message.TaskID)
	} else {
		err = s.states(ctx, c, func(v *view, _ []a2a.Event) bool {
			task = v.task
			return !isPaused(task.Status.State)
		})
	}
	if err != nil {
		return nil, err
	}
	return trim(task, config.HistoryLength), nil
}

// send makes the call for a message to a task, or to a new one without an id, and returns the task without a wait.
func (s *Server) send(ctx context.Context, c call, id a2a.TaskID) (*a2a.Task, error) {
	res, err := s.result(ctx, c)
	if err != nil {
		return nil, refusalOf(c.method, err)
	}
	if id == "" {
		id = a2a.TaskID(res.Task.ID)
	}
	return s.first(ctx, infoCall(c.tenant, id))
}

// SendStreamingMessage implements a2asrv.RequestHandler. The stream ends when the task has ended or waits.
func (s *Server) SendStreamingMessage(ctx context.Context, req *a2a.SendMessageRequest) iter.Seq2[a2a.Event, error] {
	return func(yield func(a2a.Event, error) bool) {
		if s.isChat(req) {
			answer, err := s.chat(ctx, req)
			if err != nil {
				yield(nil, err)
				return
			}
			yield(answer, nil)
			return
		}
		c, err := s.messageCall(ctx, req)
		if err == nil {
			err = s.stream(ctx, c, isPaused, yield)
		}
		if err != nil {
			yield(nil, err)
		}
	}
}

// SubscribeToTask implements a2asrv.RequestHandler. The stream begins with the task and ends with it.
func (s *Server) SubscribeToTask(ctx context.Context, req *a2a.SubscribeToTaskRequest) iter.Seq2[a2a.Event, error] {
	return func(yield func(a2a.Event, error) bool) {
		task, err := s.first(ctx, infoCall(req.Tenant, req.ID))
		if err == nil && task.Status.State.Terminal() {
			err = fmt.Errorf("%w: the task has ended", a2a.ErrUnsupportedOperation)
		}
		if err == nil {
			err = s.stream(ctx, infoCall(req.Tenant, req.ID), a2a.TaskState.Terminal, yield)
		}
		if err != nil {
			yield(nil, err)
		}
	}
}

// stream yields the events of a task up to a state.
func (s *Server) stream(ctx context.Context, c call, isEnd func(a2a.TaskState) bool, yield func(a2a.Event, error) bool) error {
	return s.states(ctx, c, func(v *view, events []a2a.Event) bool {
		for _, e := range events {
			if !yield(e, nil) {
				return false
			}
		}
		v.task.History, v.task.Artifacts = nil, nil // sent
		return !isEnd(v.task.Status.State)
	})
}

// The numbers of tasks in a page of ListTasks.
const (
	defaultPage = 50
	maxPage     = 100
)

// maxPageSize bounds the contents of the tasks in a page of ListTasks, in bytes: a page ends after the task that exceeds
// it. The tasks of one caller can be as large as its share of the store.
const maxPageSize = 16 << 20

// ListTasks implements a2asrv.RequestHandler. The newest change comes first.
func (s *Server) ListTasks(ctx context.Context, req *a2a.ListTasksRequest) (*a2a.ListTasksResponse, error) {
	size := cmp.Or(req.PageSize, defaultPage)
	if size < 1 || size > maxPage {
		return nil, fmt.Errorf("%w: the page size must be 1 to %d", a2a.ErrInvalidParams, maxPage)
	}
	after, err := decodeToken(req.PageToken)
	if err != nil {
		return nil, err
	}
	list, total, err := s.list(ctx, req, after, size+1)
	if err != nil {
		return nil, err
	}
	out := &a2a.ListTasksResponse{Tasks: []*a2a.Task{}, TotalSize: total, PageSize: size}
	for _, l := range list[:min(size, len(list))] {
		out.Tasks = append(out.Tasks, l.Task)
	}
	if size < len(list) {
		out.NextPageToken = base64.RawURLEncoding.EncodeToString([]byte(list[size-1].token))
	}
	n := cmp.Or(req.HistoryLength, new(int))
	if *n == 0 && !req.IncludeArtifacts {
		return out, nil
	}
	contents := 0
	var last string
	page := out.Tasks
	out.Tasks = page[:0]
	for _, task := range page {
		if contents > maxPageSize {
			out.NextPageToken = base64.RawURLEncoding.EncodeToString([]byte(last))
			break
		}
		last = tokenOf(task)
		err := s.states(ctx, infoCall(req.Tenant, task.ID), func(v *view, _ []a2a.Event) bool {
			contents += v.size
			task = trim(v.snapshot(), n)
			return false
		})
		switch {
		case errors.Is(err, a2a.ErrTaskNotFound): // removed since the list
			out.TotalSize--
			continue
		case err != nil:
			return nil, err
		case !req.IncludeArtifacts:
			task.Artifacts = nil
		}
		out.Tasks = append(out.Tasks, task)
	}
	return out, nil
}

// A listed task has its position in a list.
type listed struct {
	*a2a.Task
	token string
}

// list returns the first n tasks behind a position that a request selects, and the number of all that it selects.
func (s *Server) list(ctx context.Context, req *a2a.ListTasksRequest, after string, n int) (list []listed, total int, err error) {
	in, err := s.request(ctx, call{method: "task.list", tenant: req.Tenant, params: struct{}{}})
	if err != nil {
		return nil, 0, err
	}
	shorten := func() {
		slices.SortFunc(list, func(a, b listed) int { return strings.Compare(b.token, a.token) })
		clear(list[min(n, len(list)):])
		list = list[:min(n, len(list))]
	}
	for t, err := range s.engine.ListTasks(ctx, in) {
		if err != nil {
			return nil, 0, errorOf("task.list", err)
		}
		v := &view{}
		v.add(t)
		status := v.task.Status
		if req.ContextID != "" && req.ContextID != v.task.ContextID || req.Status != "" && req.Status != status.State ||
			req.StatusTimestampAfter != nil && (status.Timestamp == nil || !status.Timestamp.After(*req.StatusTimestampAfter)) {
			continue
		}
		total++
		l := listed{v.task, tokenOf(v.task)}
		if after != "" && l.token >= after {
			continue
		}
		if list = append(list, l); len(list) >= 4*n {
			shorten()
		}
	}
	shorten()
	return list, total, nil
}

// tokenOf returns the position of a task in a list: the time of its last change and its id.
func tokenOf(t *a2a.Task) string {
	var at int64
	if t.Status.Timestamp != nil {
		at = t.Status.Timestamp.UnixNano()
	}
	return fmt.Sprintf("%020d %s", at, t.ID)
}

func decodeToken(token string) (string, error) {
	b, err := base64.RawURLEncoding.DecodeString(token)
	if err != nil {
		return "", fmt.Errorf("%w: the page token is not one of this server", a2a.ErrInvalidParams)
	}
	return string(b), nil
}

// GetExtendedAgentCard implements a2asrv.RequestHandler. The caller needs the scopes of tasks.
func (s *Server) GetExtendedAgentCard(ctx context.Context, req *a2a.GetExtendedAgentCardRequest) (*a2a.AgentCard, error) {
	if s.opts.ExtendedCard == nil {
		return nil, a2a.ErrExtendedCardNotConfigured
	}
	in, err := s.request(ctx, call{method: "task.list", tenant: req.Tenant, params: struct{}{}})
	if err != nil {
		return nil, err
	}
	for _, err := range s.engine.ListTasks(ctx, in) { // admits the caller; the tasks do not matter
		if err != nil {
			return nil, errorOf("task.list", err)
		}
		break
	}
	return s.opts.ExtendedCard, nil
}
