// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package planning

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/fivewire/fivewire/a2e"
)

// Options adjusts the plugin. The zero value is right for production.
type Options struct {
	// Name is the name of the plugin. Empty means "planning".
	Name string

	// MaxPlans and MaxTasks bound the plans and the tasks of a session. Zero means 100 plans and
	// 10,000 tasks; a negative value removes the bound. They may have 16 MiB in all, within the Limits of the host.
	MaxPlans, MaxTasks int
}

// columns are those of a plan that names none (A2E-129).
func columns() []string { return []string{"backlog", "todo", "in_progress", "done"} }

// NewPlugin returns a plugin that keeps plans for the time of a session, and from
// one session to the next where the host keeps snapshots (A2E-148).
func NewPlugin(opts *Options) (*a2e.Plugin, error) {
	p := &planner{}
	if opts != nil {
		p.opts = *opts
	}
	p.opts.Name = cmp.Or(p.opts.Name, Capability)
	p.opts.MaxPlans = cmp.Or(p.opts.MaxPlans, 100)
	p.opts.MaxTasks = cmp.Or(p.opts.MaxTasks, 10000)
	return &a2e.Plugin{
		Name: p.opts.Name, Capability: Capability, Types: Types(),
		Open:     func(s *a2e.Session) (any, error) { return &desk{session: s}, nil },
		Snapshot: &a2e.PluginSnapshot{Save: save, Restore: restore},
		Routes: []a2e.Route{
			a2e.NewRoute("planning/plan/create", p.create),
			a2e.NewRoute("planning/plan/list", p.list),
			a2e.NewRoute("planning/task/add", p.add),
			a2e.NewRoute("planning/task/update", p.update),
			a2e.NewRoute("planning/task/list", p.tasks),
			a2e.NewRoute("planning/plan/board", p.board),
		},
	}, nil
}

type planner struct{ opts Options }

// A desk holds the plans of one session.
type desk struct {
	session *a2e.Session

	mu    sync.Mutex
	plans []*plan
	made  int // tasks
	size  int // bytes of plans
}

// maxBytes bounds the plans of a session.
const maxBytes = 16 << 20

// The bytes that a plan or task, and a text of a list, need besides their texts, and those of the longest id of a task.
const (
	itemBytes = 256
	textBytes = 16
	idBytes   = 24
)

type plan struct {
	id, name string
	columns  []string
	tasks    []*task
	byID     map[string]*task
}

// add adds a task.
func (p *plan) add(t *task) {
	if p.byID == nil {
		p.byID = map[string]*task{}
	}
	p.tasks, p.byID[t.id] = append(p.tasks, t), t
}

type task struct {
	id, title, status, description, assignee string
	deps                                     []string
	metadata                                 json.RawMessage
}

func (p *plan) size() int { return itemBytes + len(p.name) + listSize(p.columns) }

func (t *task) size() int {
	texts := len(t.id) + len(t.title) + len(t.status) + len(t.description) + len(t.assignee)
	return itemBytes + texts + listSize(t.deps) + len(t.metadata)
}

func listSize(list []string) (n int) {
	for _, s := range list {
		n += textBytes + len(s)
	}
	return n
}

// copyList copies a list and its texts, which share the memory of a message.
func copyList(list []string) []string {
	list = slices.Clone(list)
	for i, s := range list {
		list[i] = strings.Clone(s)
	}
	return list
}

// copy returns a copy that does not keep the message of its texts.
func (t *task) copy() *task {
	own := *t
	for _, s := range []*string{&own.title, &own.status, &own.description, &own.assignee} {
		*s = strings.Clone(*s)
	}
	own.deps, own.metadata = copyList(t.deps), bytes.Clone(t.metadata)
	return &own
}

// growLocked adds n bytes, or fails. d.mu must be held.
func (d *desk) growLocked(n int) error {
	if n > 0 && d.size+n > maxBytes {
		return newError(a2e.ReasonOverloaded, "the plans of the session are too large")
	}
	d.size += n
	return nil
}

// open locks the plans of a session, which may grow by n bytes until the returned function unlocks them.
func open(call *a2e.Call, n int) (*desk, func(), error) {
	d := call.PluginState().(*desk)
	if err := d.session.Reserve(int64(n)); err != nil {
		return nil, nil, err
	}
	d.mu.Lock()
	before := d.size
	return d, func() {
		grown := d.size - before
		d.mu.Unlock()
		_ = d.session.Reserve(int64(grown - n))
	}, nil
}

func newError(reason, text string) error {
	err := a2e.Errorf(a2e.ErrRuntime, "%s", text)
	err.Reason, err.Retryable = reason, false
	return err
}

// findLocked returns the plan with that id. d.mu must be held.
func (d *desk) findLocked(id string) (*plan, error) {
	if i := slices.IndexFunc(d.plans, func(p *plan) bool { return p.id == id }); i >= 0 {
		return d.plans[i], nil
	}
	return nil, newError("unknown_plan", "there is no such plan")
}

// firstColumn returns the status of new tasks of a plan, or an empty text if there is no such plan.
func (d *desk) firstColumn(planID string) string {
	d.mu.Lock()
	defer d.mu.Unlock()
	n, err := d.findLocked(planID)
	if err != nil {
		return ""
	}
	return n.columns[0]
}

// selectLocked returns the plan with that id, or all plans if id is empty. d.mu must be held.
func (d *desk) selectLocked(id string) ([]*plan, error) {
	if id == "" {
		return d.plans, nil
	}
	p, err := d.findLocked(id)
	if err != nil {
		return nil, err
	}
	return []*plan{p}, nil
}

func (p *planner) create(_ context.Context, call *a2e.Call, r *PlanCreateRequest) (*PlanCreateResponse, error) {
	n := &plan{name: strings.Clone(r.Name), columns: copyList(r.Columns)}
	if len(n.columns) == 0 {
		n.columns = columns()
	}
	d, unlock, err := open(call, n.size())
	if err != nil {
		return nil, err
	}
	defer unlock()
	if p.opts.MaxPlans > 0 && len(d.plans) >= p.opts.MaxPlans {
		return nil, newError("too_many_plans", "the session has too many plans")
	}
	n.id = "plan-" + strconv.Itoa(len(d.plans)+1)
	if err := d.growLocked(n.size()); err != nil {
		return nil, err
	}
	d.plans = append(d.plans, n)
	return &PlanCreateResponse{Success: true, PlanID: n.id, Columns: n.columns}, nil
}

func (p *planner) list(_ context.Context, call *a2e.Call, _ *PlanListRequest) (*PlanListResponse, error) {
	d, unlock, err := open(call, 0)
	if err != nil {
		return nil, err
	}
	defer unlock()
	resp := &PlanListResponse{}
	for _, n := range d.plans {
		resp.Plans = append(resp.Plans, Plan{PlanID: n.id, Name: n.name, Columns: n.columns})
	}
	return resp, nil
}

func (p *planner) add(_ context.Context, call *a2e.Call, r *TaskAddRequest) (*TaskAddResponse, error) {
	status := cmp.Or(*r.Status, call.PluginState().(*desk).firstColumn(r.PlanID))
	t := &task{title: r.Title, status: status, description: r.Description, assignee: r.Assignee, deps: r.Deps, metadata: r.Metadata}
	d, unlock, err := open(call, t.size()+idBytes)
	if err != nil {
		return nil, err
	}
	defer unlock()
	n, err := d.findLocked(r.PlanID)
	if err != nil {
		return nil, err
	}
	if p.opts.MaxTasks > 0 && d.made >= p.opts.MaxTasks {
		return nil, newError("too_many_tasks", "the session has too many tasks")
	}
	if err := n.checkDeps("", r.Deps); err != nil {
		return nil, err
	}
	t.id = "task-" + strconv.Itoa(d.made+1)
	t = t.copy()
	if err := d.growLocked(t.size()); err != nil {
		return nil, err
	}
	d.made++
	n.add(t)
	return &TaskAddResponse{Success: true, TaskID: t.id, Status: t.status}, nil
}

// update changes the named members; empty members change nothing (A2E-130).
func (p *planner) update(_ context.Context, call *a2e.Call, r *TaskUpdateRequest) (*TaskUpdateResponse, error) {
	d, unlock, err := open(call, len(r.Status)+len(r.Assignee)+listSize(r.Deps))
	if err != nil {
		return nil, err
	}
	defer unlock()
	n, err := d.findLocked(r.PlanID)
	if err != nil {
		return nil, err
	}
	t := n.byID[r.TaskID]
	if t == nil {
		return nil, newError("unknown_task", "there is no such task")
	}
	if err := n.checkDeps(t.id, r.Deps); err != nil {
		return nil, err
	}
	changed := *t
	changed.status, changed.assignee = cmp.Or(r.Status, t.status), cmp.Or(r.Assignee, t.assignee)
	if len(r.Deps) > 0 {
		changed.deps = r.Deps
	}
	if err := d.growLocked(changed.size() - t.size()); err != nil {
		return nil, err
	}
	*t = *changed.copy()
	return &TaskUpdateResponse{Success: true, TaskID: t.id}, nil
}

// checkDeps refuses dependencies of a task that name no other task of the plan, or close a cycle
// (A2E-D66). An empty id is that of a new task.
func (p *plan) checkDeps(id string, deps []string) error {
	visited := map[string]bool{}
	for i, dep := range deps {
		if p.byID[dep] == nil || id != "" && p.needs(visited, dep, id) {
			return a2e.SchemaViolation("deps["+strconv.Itoa(i)+"]", a2e.ReasonValue)
		}
	}
	return nil
}

// needs reports whether a task is another one or depends on it, directly or not. The visited tasks do not.
func (p *plan) needs(visited map[string]bool, id, other string) bool {
	for next := []string{id}; len(next) > 0; {
		id := next[len(next)-1]
		next = next[:len(next)-1]
		if id == other {
			return true
		}
		if t := p.byID[id]; t != nil && !visited[id] {
			visited[id] = true
			next = append(next, t.deps...)
		}
	}
	return false
}

// card returns the task as the answers show it.
func (t *task) card(planID string) Task {
	return Task{TaskID: t.id, Title: t.title, Status: t.status, Assignee: t.assignee, PlanID: planID, Description: t.description,
		Deps: t.deps, Metadata: t.metadata}
}

func (p *planner) tasks(_ context.Context, call *a2e.Call, r *TaskListRequest) (*TaskListResponse, error) {
	d, unlock, err := open(call, 0)
	if err != nil {
		return nil, err
	}
	defer unlock()
	plans, err := d.selectLocked(r.PlanID)
	if err != nil {
		return nil, err
	}
	resp := &TaskListResponse{}
	for _, n := range plans {
		for _, t := range n.tasks {
			if r.Status != "" && r.Status != t.status {
				continue
			}
			resp.Tasks = append(resp.Tasks, t.card(n.id))
		}
	}
	return resp, nil
}

// board groups the tasks by column; a status without a column gets an additional column at the end
// (A2E-131).
func (p *planner) board(_ context.Context, call *a2e.Call, r *PlanBoardRequest) (*PlanBoardResponse, error) {
	d, unlock, err := open(call, 0)
	if err != nil {
		return nil, err
	}
	defer unlock()
	plans, err := d.selectLocked(r.PlanID)
	if err != nil {
		return nil, err
	}
	resp := &PlanBoardResponse{}
	for _, n := range plans {
		b := Board{PlanID: n.id, Name: n.name, Columns: n.columns}
		places := map[string]int{} // of columns in b.Tasks
		add := func(column string) int {
			place, isKnown := places[column]
			if !isKnown {
				place = len(b.Tasks)
				places[column] = place
				b.Tasks = append(b.Tasks, a2e.Member[[]Task]{Name: column})
			}
			return place
		}
		for _, column := range n.columns {
			add(column)
		}
		for _, t := range n.tasks {
			place := add(t.status)
			b.Tasks[place].Value = append(b.Tasks[place].Value, t.card(""))
		}
		resp.Boards = append(resp.Boards, b)
	}
	return resp, nil
}
