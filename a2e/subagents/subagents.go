// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package subagents

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"runtime/debug"
	"slices"
	"sync"
	"time"

	"github.com/fivewire/fivewire/a2e"
)

// Statuses of a subagent (A2E-133).
const (
	StatusReady      = "READY"
	StatusRunning    = "RUNNING"
	StatusWaiting    = "WAITING"
	StatusCompleted  = "COMPLETED"
	StatusFailed     = "FAILED"
	StatusCancelled  = "CANCELLED"
	StatusTerminated = "TERMINATED"
)

// A Runner does the tasks of subagents. It returns the result, a JSON object, and
// must stop soon when ctx ends.
type Runner interface {
	Run(ctx context.Context, agent *Agent, task *Task) (json.RawMessage, error)
}

// A RunnerFunc is a function as a [Runner].
type RunnerFunc func(ctx context.Context, agent *Agent, task *Task) (json.RawMessage, error)

// Run calls f.
func (f RunnerFunc) Run(ctx context.Context, agent *Agent, task *Task) (json.RawMessage, error) {
	return f(ctx, agent, task)
}

// Options adjusts the plugin. The zero value is right for production.
type Options struct {
	// Name is the name of the plugin. Empty means "multi_agent".
	Name string

	// MaxAgents bounds the subagents of a session that are not terminated, or whose runner continues. Zero
	// means 32; a negative value removes the bound. Their configurations, tasks, results and messages may have 16 MiB in
	// all, within the Limits of the host.
	MaxAgents int

	// MaxDepth bounds how deep subagents have subagents. Zero means 4; a negative value removes
	// the bound.
	MaxDepth int

	// MaxRunTime bounds one task. Zero means 10 min; a negative value removes the bound. A shorter
	// TimeoutSeconds of a config, which is 600 unless it names another, bounds it instead.
	MaxRunTime time.Duration

	// Logger gets the errors and panics of the runner. Nil means slog.Default().
	Logger *slog.Logger
}

func (o *Options) withDefaults() Options {
	var d Options
	if o != nil {
		d = *o
	}
	d.Name = cmp.Or(d.Name, Capability)
	d.MaxAgents = cmp.Or(d.MaxAgents, 32)
	d.MaxDepth = cmp.Or(d.MaxDepth, 4)
	d.MaxRunTime = cmp.Or(d.MaxRunTime, 10*time.Minute)
	d.Logger = cmp.Or(d.Logger, slog.Default())
	if d.MaxRunTime < 0 {
		d.MaxRunTime = math.MaxInt64 / 2 // ends with the session
	}
	return d
}

// NewPlugin returns a plugin that serves both families of messages, with subagents that live as
// long as their session. It fails without a runner.
func NewPlugin(runner Runner, opts *Options) (*a2e.Plugin, error) {
	if runner == nil {
		return nil, errors.New("subagents: no runner")
	}
	k := &keeper{runner: runner, opts: opts.withDefaults()}
	return &a2e.Plugin{
		Name: k.opts.Name, Capability: Capability, Types: Types(),
		Open:  func(s *a2e.Session) (any, error) { return &crew{session: s}, nil },
		Close: func(state any) { state.(*crew).end() },
		Routes: append([]a2e.Route{
			a2e.NewRoute("multi_agent/spawn", k.spawn),
			a2e.NewRoute("multi_agent/delegate", k.delegate),
			a2e.NewRoute("multi_agent/await", k.await),
			a2e.NewRoute("multi_agent/list", k.list),
			a2e.NewRoute("multi_agent/terminate", k.terminate),
		}, k.treeRoutes()...),
	}, nil
}

type keeper struct {
	runner Runner
	opts   Options
}

// A crew holds the subagents of one session.
type crew struct {
	session *a2e.Session
	work    sync.WaitGroup

	mu     sync.Mutex
	closed bool
	agents []*agent
	size   int // bytes of the configurations, running tasks, results and messages
}

const (
	maxBytes  = 16 << 20 // of a crew
	textBytes = 16       // that a text of a list needs besides its JSON
)

// An agent is one subagent. Its fields are guarded by the mu of its crew.
type agent struct {
	id     string
	config Config
	size   int // bytes of config
	parent *agent
	depth  int

	status  string
	steps   int // tasks so far
	cancel  context.CancelFunc
	done    chan struct{} // closed when its runner has returned; nil before the first task
	task    *taskState    // nil before the first task
	result  json.RawMessage
	err     string
	mailbox mailbox
}

// A taskState is the end of a task of an agent, whose next task may have begun before the waiting requests see it.
type taskState struct {
	agent   *agent
	isFinal chan struct{} // closed when the task has a result or was cancelled
	status  string        // from then on, as the others
	result  json.RawMessage
	err     string
}

// startLocked begins a task. The mu of the crew must be held.
func (a *agent) startLocked(cancel context.CancelFunc) {
	a.status, a.cancel, a.result, a.err = StatusRunning, cancel, nil, ""
	a.done, a.task = make(chan struct{}), &taskState{agent: a, isFinal: make(chan struct{})}
	a.steps++
}

func newError(reason, text string) *a2e.Error {
	err := a2e.Errorf(a2e.ErrRuntime, "%s", text)
	err.Reason, err.Retryable, err.Capability = reason, false, Capability
	return err
}

func errTerminated() error { return newError("terminated", "the subagent has ended") }

// findLocked returns the subagent with that id. c.mu must be held.
func (c *crew) findLocked(id string) (*agent, error) {
	if i := slices.IndexFunc(c.agents, func(a *agent) bool { return a.id == id }); i >= 0 {
		return c.agents[i], nil
	}
	return nil, newError("unknown_subagent", "there is no such subagent")
}

// lock locks the crew, which may grow by n bytes until the returned function unlocks it.
func (c *crew) lock(n int) (unlock func(), err error) {
	err = c.session.Reserve(int64(n))
	if err != nil && c.removeEnded() {
		err = c.session.Reserve(int64(n))
	}
	if err != nil {
		n = 0
	}
	c.mu.Lock()
	before := c.size
	return func() {
		grown := c.size - before
		c.mu.Unlock()
		_ = c.session.Reserve(int64(grown - n))
	}, err
}

// removeEnded removes the subagents that have ended, and reports whether there were some.
func (c *crew) removeEnded() bool {
	unlock, _ := c.lock(0)
	defer unlock()
	n := len(c.agents)
	c.removeEndedLocked()
	return len(c.agents) < n
}

// growLocked adds n bytes, and removes ended subagents to find space. c.mu must be held.
func (c *crew) growLocked(n int) error {
	if c.size+n > maxBytes {
		c.removeEndedLocked()
	}
	if c.size+n > maxBytes {
		full := newError(a2e.ReasonOverloaded, "the subagents of the session are too large")
		full.Retryable = true
		return full
	}
	c.size += n
	return nil
}

// removeEndedLocked removes the subagents that have ended. c.mu must be held.
func (c *crew) removeEndedLocked() {
	c.agents = slices.DeleteFunc(c.agents, func(a *agent) bool {
		isEnded := !a.isAliveLocked()
		if isEnded {
			c.size -= a.size + len(a.result) + a.mailbox.size
		}
		return isEnded
	})
}

// add adds a subagent with a copy of a configuration.
func (k *keeper) add(c *crew, config *Config, parentID string) (*agent, error) {
	own, size, err := copyOf(config, "config") // does not retain the line
	if err != nil {
		return nil, err
	}
	size += textBytes * len(own.Capabilities)
	unlock, err := c.lock(size)
	defer unlock()
	if err != nil {
		return nil, err
	}
	alive := 0
	for _, a := range c.agents {
		if a.isAliveLocked() {
			alive++
		}
	}
	if k.opts.MaxAgents > 0 && alive >= k.opts.MaxAgents || c.closed {
		return nil, newError("too_many_subagents", "the session has too many subagents")
	}
	if k.opts.MaxAgents > 0 && len(c.agents)/8 > k.opts.MaxAgents { // ended subagents are kept up to a bound
		c.removeEndedLocked()
	}
	a := &agent{id: "sub_" + a2e.NewID()[:8], config: *own, size: size, status: StatusReady}
	if err := c.nestLocked(a, parentID); err != nil {
		return nil, err
	}
	if k.opts.MaxDepth > 0 && a.depth >= k.opts.MaxDepth {
		return nil, newError("too_deep", "subagents are nested too deep")
	}
	if err := c.growLocked(size); err != nil {
		return nil, err
	}
	c.agents = append(c.agents, a)
	return a, nil
}

// nestLocked sets the parent of an agent, if it has one. c.mu must be held.
func (c *crew) nestLocked(a *agent, parentID string) error {
	if parentID == "" {
		return nil
	}
	parent, err := c.findLocked(parentID)
	if err != nil { // the depth could be evaded
		return a2e.SchemaViolation("parent_agent_id", a2e.ReasonValue)
	}
	if parent.status == StatusTerminated {
		return errTerminated()
	}
	a.parent, a.depth = parent, parent.depth+1
	return nil
}

// isBusyLocked reports whether the runner works for the agent, which may continue after the task
// was cancelled. The mu of the crew must be held.
func (a *agent) isBusyLocked() bool {
	if a.done == nil {
		return false
	}
	select {
	case <-a.done:
		return false
	default:
		return true
	}
}

// isAliveLocked reports whether the agent counts for MaxAgents: also a terminated one whose runner continues. The mu of
// the crew must be held.
func (a *agent) isAliveLocked() bool { return a.status != StatusTerminated || a.isBusyLocked() }

// begin starts a task of an agent.
func (k *keeper) begin(c *crew, id string, task *Task) (*taskState, error) {
	own, size, err := copyOf(task, "task") // does not retain the line
	if err != nil {
		return nil, err
	}
	size += textBytes * len(own.SuccessCriteria)
	unlock, err := c.lock(size)
	defer unlock()
	if err != nil {
		return nil, err
	}
	a, err := c.findLocked(id)
	if err != nil {
		return nil, err
	}
	switch {
	case c.closed || a.status == StatusTerminated:
		return nil, errTerminated()
	case a.isBusyLocked():
		return nil, newError("busy", "the subagent has a task, or has not come to the end of one that was cancelled")
	case *a.config.MaxSteps > 0 && int64(a.steps) >= *a.config.MaxSteps:
		return nil, newError("max_steps", "the subagent has done all it may")
	}
	if err := c.growLocked(size); err != nil {
		return nil, err
	}
	c.size -= len(a.result)
	limit := k.opts.MaxRunTime
	if s := *a.config.TimeoutSeconds; s > 0 && s <= int64(limit/time.Second) {
		limit = time.Duration(s) * time.Second
	}
	ctx, cancel := context.WithTimeout(c.session.Context(), limit)
	handle := &Agent{ID: a.id, Config: a.config, keeper: k, crew: c}
	a.startLocked(cancel)
	c.work.Go(func() {
		defer cancel()
		k.run(ctx, handle, a, own, size)
	})
	started := a.task
	context.AfterFunc(ctx, func() { // the runner may ignore it
		c.mu.Lock()
		defer c.mu.Unlock()
		isSame := a.task == started // the agent may have begun its next task
		if isSame && errors.Is(ctx.Err(), context.DeadlineExceeded) {
			c.endLocked(a, nil, ctx.Err())
		}
	})
	return started, nil
}

// run does a task of size bytes. It logs an error of the runner that is not for the agent.
func (k *keeper) run(ctx context.Context, handle *Agent, a *agent, task *Task, size int) {
	var result json.RawMessage
	err := errExit
	defer func() {
		log := k.opts.Logger.With("subagent", a.id, "task", task.Name)
		switch p := recover(); {
		case p != nil:
			err = errPanic
			log.ErrorContext(ctx, "subagents: runner panicked", "panic", fmt.Sprint(p), "stack", string(debug.Stack()))
		case err != nil && ctx.Err() == nil && !errors.As(err, new(*a2e.Error)):
			log.InfoContext(ctx, "subagents: task failed", "err", err)
		}
		c := handle.crew
		unlock, full := c.lock(len(result))
		defer unlock()
		if err == nil && full != nil {
			err = errTooLarge
		}
		c.endLocked(a, result, err)
		c.size -= size
		close(a.done)
	}()
	result, err = k.runner.Run(ctx, handle, task)
	if err == nil && result != nil {
		if _, parseErr := a2e.ParseMembers(result); parseErr != nil {
			err = errResult
		}
	}
}

var (
	errExit   = errors.New("the goroutine of the runner has ended")
	errPanic  = errors.New("the runner panicked")
	errResult = errors.New("the result is not an object")

	errTooLarge = errors.New("the result is too large")
)

// endLocked ends the task of an agent that was not cancelled. c.mu must be held.
func (c *crew) endLocked(a *agent, result json.RawMessage, err error) {
	var e *a2e.Error
	switch {
	case a.status != StatusRunning:
	case errors.Is(err, errTooLarge) || err == nil && c.growLocked(len(result)) != nil:
		a.status, a.err = StatusFailed, errTooLarge.Error()
	case err == nil:
		a.status, a.result = StatusCompleted, result
	case errors.As(err, &e):
		a.status, a.err = StatusFailed, e.Message
	case errors.Is(err, context.DeadlineExceeded):
		a.status, a.err = StatusFailed, "the time of the task is over"
	default:
		a.status, a.err = StatusFailed, "the task failed"
	}
	a.finishLocked()
}

// stop ends an agent and its descendants (A2E-133), and returns the status of the agent: a cancellation does not change
// that of an agent without a running task.
func (c *crew) stop(id, status string) (string, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	a, err := c.findLocked(id)
	if err != nil {
		return "", err
	}
	c.stopTreeLocked(a, status)
	return a.status, nil
}

// finishLocked answers the waiting requests. The mu of the crew must be held.
func (a *agent) finishLocked() {
	t := a.task
	if t == nil {
		return
	}
	select {
	case <-t.isFinal:
	default:
		t.status, t.result, t.err = a.status, a.result, a.err
		close(t.isFinal)
	}
}

// stopTreeLocked ends an agent and its descendants. c.mu must be held.
func (c *crew) stopTreeLocked(a *agent, status string) {
	if a.status == StatusRunning || status == StatusTerminated {
		a.status = status
	}
	a.finishLocked()
	if a.cancel != nil {
		a.cancel()
	}
	for _, child := range c.agents {
		if child.parent == a {
			c.stopTreeLocked(child, status)
		}
	}
}

func (c *crew) end() {
	c.mu.Lock()
	c.closed = true
	for _, a := range c.agents {
		if a.cancel != nil {
			a.cancel()
		}
	}
	c.mu.Unlock()
	c.work.Wait()
}

// wait returns an agent when its task has ended or was cancelled, whatever the runner does.
func (c *crew) wait(ctx context.Context, id string) (agent, error) {
	c.mu.Lock()
	a, err := c.findLocked(id)
	if err != nil || a.task == nil {
		defer c.mu.Unlock()
		return *cmp.Or(a, &agent{}), err
	}
	task := a.task
	c.mu.Unlock()
	return c.waitFor(ctx, task)
}

// waitFor returns the agent of a task when the task has ended or was cancelled.
func (c *crew) waitFor(ctx context.Context, task *taskState) (agent, error) {
	select {
	case <-task.isFinal:
	case <-ctx.Done():
		return agent{}, context.Cause(ctx)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	got := *task.agent
	if got.task != task {
		got.status, got.result, got.err = task.status, task.result, task.err
	}
	return got, nil
}

// cancel cancels a task, unless its agent has begun the next one.
func (c *crew) cancel(task *taskState) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if task.agent.task == task {
		c.stopTreeLocked(task.agent, StatusCancelled)
	}
}

func (k *keeper) spawn(_ context.Context, call *a2e.Call, r *SpawnRequest) (*SpawnResponse, error) {
	config := &Config{Name: r.Name, Role: &r.Role, Model: r.Model, MaxSteps: r.MaxSteps, Metadata: r.Metadata,
		MemoryScope: "shared", ToolScope: "restricted", TimeoutSeconds: new(int64(600))}
	a, err := k.add(call.PluginState().(*crew), config, "")
	if err != nil {
		return nil, err
	}
	return &SpawnResponse{SubagentID: a.id, Status: StatusReady}, nil
}

func (k *keeper) delegate(_ context.Context, call *a2e.Call, r *DelegateRequest) (*DelegateResponse, error) {
	_, err := k.begin(call.PluginState().(*crew), r.SubagentID, &Task{Name: r.TaskName, Instruction: r.Instruction, SuccessCriteria: r.SuccessCriteria})
	if err != nil {
		return nil, err
	}
	return &DelegateResponse{Status: StatusRunning}, nil
}

func (k *keeper) await(ctx context.Context, call *a2e.Call, r *AwaitRequest) (*AwaitResponse, error) {
	a, err := call.PluginState().(*crew).wait(ctx, r.SubagentID)
	if err != nil {
		return nil, err
	}
	return &AwaitResponse{SubagentID: a.id, Status: a.status, Result: a.result, Error: textOrNil(a.err)}, nil
}

func textOrNil(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}

func (k *keeper) list(_ context.Context, call *a2e.Call, _ *ListRequest) (*ListResponse, error) {
	resp := &ListResponse{}
	for _, info := range call.PluginState().(*crew).infos() {
		raw, err := a2e.EncodeModel(&info)
		if err != nil {
			return nil, err
		}
		resp.Subagents = append(resp.Subagents, raw)
	}
	return resp, nil
}

func (c *crew) infos() []Info {
	c.mu.Lock()
	defer c.mu.Unlock()
	list := []Info{}
	for _, a := range c.agents {
		info := Info{SubagentID: a.id, Name: a.config.Name, Status: a.status, Depth: int64(a.depth), Config: a.config}
		if a.parent != nil {
			info.ParentAgentID = &a.parent.id
		}
		list = append(list, info)
	}
	return list
}

func (k *keeper) terminate(_ context.Context, call *a2e.Call, r *TerminateRequest) (*TerminateResponse, error) {
	_, err := call.PluginState().(*crew).stop(r.SubagentID, StatusTerminated)
	if err != nil {
		return nil, err
	}
	return &TerminateResponse{Success: true, SubagentID: r.SubagentID}, nil
}
