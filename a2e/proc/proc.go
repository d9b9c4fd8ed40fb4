// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

// Package proc is the namespace of processes: an agent starts programs on the host, writes their input, reads their
// output and ends them. The host permits programs, directories and variables by name, and bounds what they use.
package proc

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/fivewire/fivewire/a2e"
	"github.com/fivewire/fivewire/a2e/internal/hook"
	"github.com/fivewire/fivewire/internal/guard"
	"github.com/fivewire/fivewire/internal/option"
	"github.com/fivewire/fivewire/internal/randid"
)

// States of a process.
const (
	StateRunning  = "running"
	StateStopped  = "stopped"  // exited with 0, or stopped by request
	StateCrashed  = "crashed"  // ended otherwise
	StateTimedOut = "timedout" // killed at its time limit
)

// Options limit the programs that agents may run. The zero value permits none.
type Options struct {
	// Name is the name of the plugin. Empty means "proc".
	Name string

	// AllowedCommands lists the permitted programs, as agents name them. NewPlugin resolves each to
	// an absolute path, and fails if a program is not found. A shell must be listed like any
	// program.
	AllowedCommands []string

	// AllowedDirs are the folders in which processes may work, symbolic links
	// resolved. An empty cwd means the first. None means a process may only
	// work in the folder of the host, with an empty cwd.
	AllowedDirs []string

	// InheritedEnv names variables of the host that processes get in addition to those of the
	// request.
	InheritedEnv []string

	// AllowedEnv names the variables that a request may set. An asterisk at the end of a name
	// matches any rest, but variables by which programs load other code, such as PATH, LD_* and
	// PYTHON*, have to be named in full. Nil means LANG, LC_*, TZ, TERM, COLUMNS, LINES and NO_COLOR.
	AllowedEnv []string

	// Policy, if set, decides on each command. The lists above do not restrict the arguments: many
	// programs run others, such as find with -exec.
	Policy Policy

	// Launcher, if set, is a program with its arguments that starts each command, which follows them,
	// such as a sandbox or a container runtime. NewPlugin resolves the program to an absolute path.
	// See [Bubblewrap].
	Launcher []string

	// Limits bound each process.
	Limits Limits

	// MaxProcesses bounds the running processes of a session. Zero means 10; a negative value
	// removes the bound. A session may also have 100 ended processes whose output the agent has not read.
	MaxProcesses int

	// MaxLifetime bounds the run time of a process. Zero means 1 h; a negative value removes the
	// bound. A request may name a shorter time.
	MaxLifetime time.Duration
}

// keepEnded is the number of ended processes whose state a session keeps, and of those whose output is not sent.
const keepEnded = 100

// NewPlugin returns a plugin that runs real processes. A process and its descendants end with the
// session (A2E-D52, A2E-D62). On Linux NewPlugin also ends the processes that hosts of this machine and this user
// have left behind because they were killed (A2E-D67).
func NewPlugin(opts *Options) (*a2e.Plugin, error) {
	killOrphans()
	m := &manager{paths: map[string]string{}, mark: markName + "=" + hostID(os.Getpid()) + "."}
	if opts != nil {
		m.opts = *opts
	}
	if m.opts.AllowedEnv == nil {
		m.opts.AllowedEnv = defaultEnv()
	}
	m.opts.Name = cmp.Or(m.opts.Name, Capability)
	m.opts.Limits = m.opts.Limits.withDefaults()
	m.opts.MaxProcesses = option.Count(m.opts.MaxProcesses, 10)
	m.opts.MaxLifetime = option.Duration(m.opts.MaxLifetime, time.Hour)
	for _, name := range m.opts.AllowedCommands {
		path, err := resolve(name)
		if err != nil {
			return nil, fmt.Errorf("proc: allowed program %q: %w", name, err)
		}
		m.paths[name] = path
	}
	if m.launcher = slices.Clone(m.opts.Launcher); len(m.launcher) > 0 {
		path, err := resolve(m.launcher[0])
		if err != nil {
			return nil, fmt.Errorf("proc: launcher %q: %w", m.launcher[0], err)
		}
		m.launcher[0] = path
	}
	m.launcher = append(m.opts.Limits.launcher(), m.launcher...)
	for _, root := range m.opts.AllowedDirs {
		real, err := filepath.Abs(root)
		if err == nil {
			real, err = filepath.EvalSymlinks(real)
		}
		if err != nil {
			return nil, fmt.Errorf("proc: root %q: %w", root, err)
		}
		m.roots = append(m.roots, real)
	}
	grants := a2e.NewEventRoute("proc/window/event", m.grant)
	grants.Control = true
	return &a2e.Plugin{
		Name: m.opts.Name, Capability: Capability, Types: Types(),
		Open:  func(s *a2e.Session) (any, error) { return &group{session: s, byID: map[string]*process{}}, nil },
		Close: func(state any) { state.(*group).end() },
		Routes: []a2e.Route{
			a2e.NewRoute("proc/spawn/req", m.spawn),
			a2e.NewRoute("proc/write/req", m.write),
			a2e.NewRoute("proc/kill/req", m.kill),
			{Type: a2e.TypeOf[StatusRequest]("proc/status/req"), Handler: a2e.HandlerFunc(m.status)},
			grants,
		},
	}, nil
}

type manager struct {
	opts     Options
	paths    map[string]string // program as named to its path
	launcher []string
	mark     string // the beginning of those of its processes
	roots    []string
	trees    census
}

// resolve returns the absolute path of a program.
func resolve(name string) (string, error) {
	path, err := exec.LookPath(name)
	if err != nil {
		return "", err
	}
	return filepath.Abs(path)
}

// A group holds the processes of one session.
type group struct {
	session *a2e.Session

	mu     sync.Mutex
	closed bool
	made   int
	byID   map[string]*process
	order  []*process
	work   sync.WaitGroup
}

func failure(code a2e.Code, text string) *a2e.Error {
	err := a2e.Errorf(code, "%s", text)
	err.Capability = Capability
	return err
}

func (m *manager) spawn(ctx context.Context, call *a2e.Call, r *SpawnRequest) (*SpawnResponse, error) {
	cmd, err := m.command(ctx, call.Session, r)
	if err != nil {
		return nil, err
	}
	g := call.PluginState().(*group)
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case g.closed:
		return nil, a2e.ErrClosed
	case ctx.Err() != nil: // the agent would not know the process
		return nil, context.Cause(ctx)
	}
	switch running, unsent := g.countLocked(); {
	case running >= m.opts.MaxProcesses:
		return nil, failure(a2e.ErrProcLimit, "the session has too many processes")
	case unsent >= keepEnded:
		return nil, failure(a2e.ErrProcLimit, "the output of too many ended processes is not read")
	}
	g.made++
	p := &process{id: fmt.Sprintf("proc-%d", g.made), reqID: strings.Clone(call.Message.ID), group: g, text: textOfCommand(r.Cmd), cmd: cmd,
		state: StateRunning, mark: m.mark + randid.New(""), limits: &m.opts.Limits, done: make(chan struct{})}
	if r.Window != nil && *r.Window > 0 && call.Session.HasCapability(extension) {
		p.window = newWindow(*r.Window)
	}
	if p.chain, _ = ctx.Value(chainKey{}).(*chainOutput); p.chain != nil {
		p.chain.process = p
	}
	cmd.Env = append(cmd.Env, p.mark)
	if err := p.start(r.StdinMode); err != nil {
		return &SpawnResponse{ProcID: "", Error: "the program could not be started"}, nil
	}
	cmd.Args, cmd.Env, cmd.Dir = nil, nil, "" // they share the memory of the message
	life := m.opts.MaxLifetime
	if r.Timeout > 0 && r.Timeout < int64(life/time.Second) {
		life = time.Duration(r.Timeout) * time.Second
	}
	p.timer = time.AfterFunc(life, func() { p.stop(StateTimedOut, "SIGKILL") })
	g.byID[p.id] = p
	g.order = append(g.order, p)
	g.trimLocked()
	p.onEnd = func() { m.trees.remove(p.mark) }
	m.trees.add(p.mark, func(count int) {
		if count > m.opts.Limits.MaxDescendants {
			p.exceed()
		}
	})
	g.work.Go(func() { p.run(ctx.Done()) }) // ctx ends after the answer
	context.AfterFunc(ctx, func() {
		if !hook.IsAnswered(call) { // the agent does not know the process
			p.abandon()
		}
	})
	return &SpawnResponse{ProcID: p.id, OK: true, PID: int64(cmd.Process.Pid)}, nil
}

// abandon stops a process that the agent does not know. At the end of its time a chain does so, too, with the same cause.
func (p *process) abandon() {
	if p.chain != nil {
		p.stop(StateTimedOut, signalKill)
		return
	}
	p.stop(StateStopped, signalKill)
}

// countLocked returns the numbers of running processes, and of ended ones whose output is not sent. g.mu must be held.
func (g *group) countLocked() (running, unsent int) {
	for _, p := range g.order {
		switch {
		case p.isRunning():
			running++
		case !p.isSent.Load():
			unsent++
		}
	}
	return running, unsent
}

// maxText bounds the kept text of a command.
const maxText = 64 << 10

// textOfCommand returns the text of a command as a status shows it.
func textOfCommand(cmd []string) string {
	text := strings.Join(cmd, " ")
	return strings.ToValidUTF8(strings.Clone(text[:min(len(text), maxText)]), "")
}

// command returns the command of a request, or the error of a command that is not allowed.
func (m *manager) command(ctx context.Context, s *a2e.Session, r *SpawnRequest) (*exec.Cmd, error) {
	if len(r.Cmd) == 0 || r.Cmd[0] == "" {
		return nil, a2e.SchemaViolation("cmd", a2e.ReasonRequired)
	}
	path, ok := m.paths[r.Cmd[0]]
	if !ok {
		return nil, notAllowed("cmd[0]", "the program is not allowed here")
	}
	for i, arg := range r.Cmd {
		if strings.IndexByte(arg, 0) >= 0 {
			return nil, a2e.SchemaViolation(fmt.Sprintf("cmd[%d]", i), a2e.ReasonValue)
		}
	}
	dir, err := m.folder(r.Cwd)
	if err != nil {
		return nil, err
	}
	env, err := m.environment(r)
	if err != nil {
		return nil, err
	}
	cmd, err := m.check(ctx, s, &Command{Path: path, Args: slices.Clone(r.Cmd), Dir: dir, Env: env})
	if err == nil {
		isolate(cmd)
	}
	return cmd, err
}

// folder returns the working directory of a process. It must be inside a root after all links are
// followed.
func (m *manager) folder(cwd string) (string, error) {
	if cwd == "" {
		if len(m.roots) > 0 {
			return m.roots[0], nil
		}
		return "", nil
	}
	if !filepath.IsAbs(cwd) && len(m.roots) > 0 {
		cwd = filepath.Join(m.roots[0], cwd)
	}
	real, err := filepath.EvalSymlinks(cwd)
	if err == nil && filepath.IsAbs(real) {
		for _, root := range m.roots {
			if rel, err := filepath.Rel(root, real); err == nil && filepath.IsLocal(rel) {
				return real, nil
			}
		}
	}
	return "", notAllowed("cwd", "the folder is not allowed here")
}

// trimLocked drops the oldest ended processes above keepEnded, but those whose output is not sent. g.mu must be held.
func (g *group) trimLocked() {
	for i := 0; len(g.order) > keepEnded && i < len(g.order); {
		if p := g.order[i]; p.isSent.Load() {
			delete(g.byID, p.id)
			g.order = slices.Delete(g.order, i, i+1)
		} else {
			i++
		}
	}
}

func find(call *a2e.Call, id string) (*process, error) {
	g := call.PluginState().(*group)
	g.mu.Lock()
	defer g.mu.Unlock()
	if p := g.byID[id]; p != nil {
		return p, nil
	}
	return nil, failure(a2e.ErrUnknownProc, "there is no such process")
}

// end kills the running processes and waits for them.
func (g *group) end() {
	g.mu.Lock()
	g.closed = true
	list := slices.Clone(g.order)
	g.mu.Unlock()
	for _, p := range list {
		p.stop(StateStopped, "SIGKILL")
	}
	g.work.Wait()
}

func (m *manager) write(ctx context.Context, call *a2e.Call, r *WriteRequest) (*WriteResponse, error) {
	p, err := find(call, r.ProcID)
	if err != nil {
		return nil, err
	}
	if !p.isRunning() {
		return nil, failure(a2e.ErrProcDead, "the process has ended")
	}
	resp := &WriteResponse{ProcID: p.id, PID: int64(p.cmd.Process.Pid), OK: true}
	if err := p.write(ctx, r.Data, r.EOF); err != nil {
		resp.OK, resp.Error = false, "the input of the process is closed"
	}
	return resp, nil
}

// grant adds to the window of a process.
func (m *manager) grant(_ context.Context, call *a2e.Call, e *WindowEvent) error {
	p, err := find(call, e.ProcID)
	if err == nil && p.window != nil && e.Bytes > 0 {
		p.window.grant(e.Bytes)
	}
	return nil
}

func (m *manager) kill(_ context.Context, call *a2e.Call, r *KillRequest) (*KillResponse, error) {
	switch r.Signal {
	case "SIGTERM", "SIGKILL", "SIGINT":
	default:
		return nil, a2e.SchemaViolation("signal", a2e.ReasonValue)
	}
	p, err := find(call, r.ProcID)
	if err != nil {
		return nil, err
	}
	if !p.isRunning() {
		return nil, failure(a2e.ErrProcDead, "the process has ended")
	}
	p.stop(StateStopped, r.Signal)
	// Most processes end at once; a process that has not ended by then is reported as running.
	timer := time.NewTimer(2 * time.Second)
	defer timer.Stop()
	select {
	case <-p.done:
	case <-timer.C:
	}
	state, _ := p.now()
	return &KillResponse{OK: true, State: state}, nil
}

// status returns the state of one process, or of all processes of the session in the member procs.
func (m *manager) status(_ context.Context, call *a2e.Call) (any, error) {
	r, ok := call.Message.Body.(*StatusRequest)
	if !ok {
		return nil, a2e.ErrNextPlugin
	}
	if r.ProcID != "" {
		p, err := find(call, r.ProcID)
		if err != nil {
			return nil, err
		}
		state, _ := p.now()
		answer := a2e.NewMessage("proc/status/resp", &StatusResponse{ReqID: call.Message.ID, ProcID: p.id, Status: state})
		raw, err := p.describe()
		if err != nil {
			return nil, err
		}
		return answer, answer.Extra.Set("procs", []json.RawMessage{raw})
	}
	g := call.PluginState().(*group)
	g.mu.Lock()
	list := slices.Clone(g.order)
	g.mu.Unlock()
	procs := []json.RawMessage{}
	for _, p := range list {
		raw, err := p.describe()
		if err != nil {
			return nil, err
		}
		procs = append(procs, raw)
	}
	answer := a2e.NewMessage("proc/status/resp", &StatusResponse{ReqID: call.Message.ID, Status: "ok"})
	text, err := guard.Encode(procs)
	if err != nil {
		return nil, err
	}
	return answer, answer.Extra.Set("procs", json.RawMessage(text))
}
