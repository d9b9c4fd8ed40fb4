// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io"
	"math/big"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fivewire/fivewire/a2e"
	"github.com/fivewire/fivewire/a2e/a2etest"
	"github.com/fivewire/fivewire/a2e/catalogue"
	"github.com/fivewire/fivewire/a2e/chains"
	"github.com/fivewire/fivewire/a2e/env"
	"github.com/fivewire/fivewire/a2e/env/envtest"
	"github.com/fivewire/fivewire/a2e/learn"
	a2ememory "github.com/fivewire/fivewire/a2e/memory"
	"github.com/fivewire/fivewire/a2e/planning"
	"github.com/fivewire/fivewire/a2e/subagents"
	"github.com/fivewire/fivewire/a2e/tools"
	"github.com/fivewire/fivewire/internal/guard"
	"github.com/fivewire/fivewire/internal/strictjson"
	"github.com/fivewire/fivewire/store"
)

// a2eAudit collects the records of a host.
type a2eAudit struct {
	mu      sync.Mutex
	records []*a2e.AuditRecord
}

func (a *a2eAudit) add(_ context.Context, r *a2e.AuditRecord) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.records = append(a.records, r)
}

// take returns the records since it was called last.
func (a *a2eAudit) take() ([]Answer, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	list := []Answer{}
	for i := range a.records {
		text, err := a.records[i].MarshalJSON()
		if err != nil {
			return nil, err
		}
		list = append(list, Answer{"json": json.RawMessage(text)})
	}
	a.records = nil
	return list, nil
}

// a2eHost makes the fixture host of the scripts.
func a2eHost(in *Input) (*a2e.Host, *a2eAudit) { return a2eHostOn(in, nil) }

// a2eHostOn is a2eHost with the store of a durable host.
func a2eHostOn(in *Input, db store.Store) (*a2e.Host, *a2eAudit) {
	o := in.ObjectOr("host")
	audit := &a2eAudit{}
	opts := &a2e.HostOptions{Audit: audit.add, Auth: a2e.Auth{SkipHandshake: o.Bool("withoutHandshake")},
		Timing: a2e.Timing{WriteTimeout: -1, HandshakeTimeout: -1, SessionIdleTimeout: -1}}
	if token := o.StringOr("token", "s3cret"); token != "" {
		opts.Auth.Authenticator = a2etest.KeyAuthenticator(token)
	} else {
		opts.Auth.AllowAnonymous = true
	}
	caps := o.StringsOr("caps")
	if !o.Has("caps") {
		caps = []string{"tools", "memory", "env", "test"}
	}
	limits := o.ObjectOr("limits")
	opts.Limits = a2e.Limits{MaxConcurrentPerSession: int64(o.IntOr("maxParallel", 4)),
		QueueLimitPerSession: int64(o.IntOr("maxQueue", 64)), MaxItems: int64(o.IntOr("maxSessions", 1024)),
		MaxUnauthenticated: int64(o.IntOr("maxPending", 256)), MaxUnauthenticatedPerAddress: -1,
		MaxMessage: limits.IntOr("maxBytes", 0), MaxDepth: limits.IntOr("maxDepth", 0), MaxOutput: limits.IntOr("maxOutput", 0)}
	opts.Limits.MaxWaiting = int64(o.IntOr("maxWaiting", 64))
	if o.Bool("durable") {
		opts.Persistence = a2e.Persistence{Store: db, InstanceID: "fixture"}
	}
	switch mode := o.StringOr("mode", "compat"); mode {
	case "compat":
	case "strict":
		opts.Strict = true
	default:
		o.Fail("mode", "unknown mode %q", mode)
	}
	if o.Bool("catchAll") {
		opts.Fallback = a2e.HandlerFunc(a2eCatchAll)
	}
	h := a2etest.Must(a2e.NewHost(opts))
	for _, name := range caps {
		for _, p := range a2ePlugins(name) {
			h.AddPlugin(p)
		}
	}
	if err := h.Registry().Add(catalogue.Types()...); err != nil {
		o.Fail("caps", "%v", err)
	}
	return h, audit
}

// a2eEnd closes a host and waits for handlers that ignore their contexts.
func a2eEnd(h *a2e.Host) {
	_ = h.Close()
	for len(h.Stuck()) > 0 {
		time.Sleep(time.Second)
	}
}

// a2ePlugins returns the plugins that serve a capability of the fixture host.
func a2ePlugins(capability string) []*a2e.Plugin {
	switch capability {
	case "tools":
		return []*a2e.Plugin{a2eTools().Plugin()}
	case "memory":
		return []*a2e.Plugin{a2etest.Must(a2ememory.NewPlugin(nil))}
	case "env":
		p := a2etest.Must(env.NewPlugin(map[string]env.Environment{"counter": envtest.Counter{}}, nil))
		p.Routes = slices.DeleteFunc(p.Routes, func(r a2e.Route) bool {
			switch r.Type.Name {
			case "env/reset/req", "env/step/req", "env/observe/req", "env/close/req", "env/space/req":
				return false
			}
			return true
		})
		return []*a2e.Plugin{p}
	case "test":
		return a2eDemo()
	case "chains":
		return []*a2e.Plugin{a2etest.Must(chains.NewPlugin(&chains.Options{Tool: a2eTools().Execute}))}
	case "planning":
		return []*a2e.Plugin{a2etest.Must(planning.NewPlugin(nil))}
	case "learning":
		return []*a2e.Plugin{a2etest.Must(learn.NewPlugin(nil))}
	case "multi_agent":
		return []*a2e.Plugin{a2etest.Must(subagents.NewPlugin(subagents.RunnerFunc(a2eRunner), nil))}
	}
	return []*a2e.Plugin{{Name: capability, Capability: capability}}
}

// a2eRunner sleeps as many milliseconds as the instruction of a task says. The
// task deaf ignores its context.
func a2eRunner(ctx context.Context, _ *subagents.Agent, task *subagents.Task) (json.RawMessage, error) {
	ms, err := strconv.ParseInt(task.Instruction, 10, 64)
	if err != nil {
		return nil, err
	}
	if task.Name == "deaf" {
		ctx = context.WithoutCancel(ctx)
	}
	if err := a2eSleep(ctx, ms); err != nil {
		return nil, err
	}
	return guard.Encode(map[string]int64{"slept": ms})
}

// a2eSleep waits for milliseconds, or returns the error of ctx at its end.
func a2eSleep(ctx context.Context, ms int64) error {
	select {
	case <-time.After(time.Duration(ms) * time.Millisecond):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func a2eCatchAll(_ context.Context, call *a2e.Call) (any, error) {
	t := call.Message.Type
	name := t + "/resp"
	if stem, ok := strings.CutSuffix(t, "/req"); ok {
		name = stem + "/resp"
	}
	switch a2e.TypeOf[struct{}](t).Kind {
	case a2e.KindRequest, a2e.KindOther:
	default:
		return nil, nil
	}
	m := a2e.NewMessage(name, nil)
	if err := errors.Join(m.Extra.Set("req_id", call.Message.ID), m.Extra.Set("caught", t)); err != nil {
		return nil, err
	}
	return m, nil
}

type a2eGreetRequest struct {
	Name string `json:"name"`
}

type a2eGreetResponse struct {
	ReqID string `json:"req_id,omitzero" jsonmap:"always"`
	Text  string `json:"text,omitzero" jsonmap:"always"`
}

type a2eDeepResponse struct {
	ReqID string `json:"req_id,omitzero" jsonmap:"always"`
	Depth int64  `json:"depth,omitzero" jsonmap:"always"`
}

func a2eDemo() []*a2e.Plugin {
	greet := func(only, greeting string) a2e.Route {
		return a2e.NewRoute("demo/greet/req", func(_ context.Context, _ *a2e.Call, r *a2eGreetRequest) (*a2eGreetResponse, error) {
			if only != "" && r.Name != only {
				return nil, a2e.ErrNextPlugin
			}
			return &a2eGreetResponse{Text: greeting + r.Name}, nil
		})
	}
	deep := a2e.NewRoute("demo/deep/nest/op/req", func(context.Context, *a2e.Call, *struct{}) (*a2eDeepResponse, error) {
		return &a2eDeepResponse{Depth: 3}, nil
	})
	return []*a2e.Plugin{
		{
			Name: "demo", Capability: "test",
			Routes: []a2e.Route{greet("", "hello "), deep, a2e.NewRoute("demo/hold/req", a2eHold)},
			Open: func(*a2e.Session) (any, error) {
				return &a2eHolds{inside: map[string]int{}, peak: map[string]int{}}, nil
			},
		},
		{Name: "demo_hi", Capability: "test", Priority: 10, Routes: []a2e.Route{greet("vip", "welcome ")}},
	}
}

type a2eHoldRequest struct {
	PlanID string `json:"plan_id,omitzero" jsonmap:"always"`
	Ms     int64  `json:"ms,omitzero" jsonmap:"always"`
	Deaf   bool   `json:"deaf,omitzero" jsonmap:"always"`
}

type a2eHoldResponse struct {
	ReqID string `json:"req_id,omitzero" jsonmap:"always"`
	Order int64  `json:"order,omitzero" jsonmap:"always"`
	Most  int64  `json:"most,omitzero" jsonmap:"always"`
}

// a2eHolds counts the holds of one session.
type a2eHolds struct {
	mu     sync.Mutex
	count  int64          // guarded by mu, like all below
	inside map[string]int // by plan
	peak   map[string]int // by plan: the greatest number inside so far
}

// enter returns the number of the hold.
func (h *a2eHolds) enter(plan string) (order int64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.count++
	h.inside[plan]++
	h.peak[plan] = max(h.peak[plan], h.inside[plan])
	return h.count
}

// exit returns the greatest number inside so far.
func (h *a2eHolds) exit(plan string) (peak int64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.inside[plan]--
	return int64(h.peak[plan])
}

// a2eHold serves demo/hold/req.
func a2eHold(ctx context.Context, call *a2e.Call, r *a2eHoldRequest) (*a2eHoldResponse, error) {
	holds, ok := call.PluginState().(*a2eHolds)
	if !ok {
		return nil, errors.New("the session has no state")
	}
	order := holds.enter(r.PlanID)
	if r.Deaf {
		ctx = context.WithoutCancel(ctx)
	}
	err := a2eSleep(ctx, r.Ms)
	peak := holds.exit(r.PlanID)
	if err != nil {
		return nil, err
	}
	return &a2eHoldResponse{Order: order, Most: peak}, nil
}

// a2eTools are the tools of the fixture host.
func a2eTools() *tools.Set {
	s := a2etest.Must(tools.NewSet(&tools.Options{Authorizer: func(_ context.Context, _ *a2e.Call, t *tools.Definition, _ json.RawMessage) bool {
		return t.Name != "secret"
	}}))
	add := func(name, description string, idempotent bool, tags string, parameters []tools.Parameter,
		run func(ctx context.Context, call *a2e.Call, arguments json.RawMessage) (any, error)) {
		d := tools.Definition{Name: name, Description: description, Idempotent: idempotent, InputParameters: parameters}
		if tags != "" {
			d.Tags = strings.Split(tags, " ")
		}
		d.DeferLoading = name == "hidden" || name == "deaf" || name == "big"
		s.Add(tools.Tool{Definition: d, Run: run})
	}
	integer := func(name string) tools.Parameter {
		return tools.Parameter{Name: name, Type: "integer", Required: true}
	}
	failing := func(context.Context, *a2e.Call, json.RawMessage) (any, error) { return nil, errors.New("failed") }
	add("echo", "Return the arguments", true, "demo", nil, func(_ context.Context, _ *a2e.Call, arguments json.RawMessage) (any, error) {
		return arguments, nil
	})
	add("add", "Add two integers", true, "demo math", []tools.Parameter{integer("a"), integer("b")}, a2eAdd)
	add("fail", "Always fails", false, "", nil, failing)
	add("flaky", "Fails, safe to retry", true, "", nil, failing)
	add("soft_fail", "Returns an unsuccessful result", false, "", nil, func(context.Context, *a2e.Call, json.RawMessage) (any, error) {
		text, code := "soft failure", "tool_error"
		return &tools.Result{Error: &text, ErrorCode: &code}, nil
	})
	add("slow", "Sleep for ms milliseconds", true, "", []tools.Parameter{integer("ms")}, a2eSlow)
	add("stream3", "Emit three events", false, "demo", nil, func(_ context.Context, call *a2e.Call, _ json.RawMessage) (any, error) {
		err := errors.Join(
			call.Emit(a2e.EventProgress, json.RawMessage(`{"pct":50,"message":"half"}`)),
			call.Emit(a2e.EventStatus, json.RawMessage(`{"message":"working"}`)),
			call.Emit(a2e.EventLog, json.RawMessage(`{"level":"info","message":"done"}`)))
		return json.RawMessage(`{"events":3}`), err
	})
	add("panic", "Crashes", false, "", nil, func(context.Context, *a2e.Call, json.RawMessage) (any, error) {
		panic("requested by the tool panic")
	})
	add("secret", "Denied by policy", false, "", nil, failing)
	add("nil", "Returns nothing", true, "", nil, func(context.Context, *a2e.Call, json.RawMessage) (any, error) { return nil, nil })
	add("hidden", "Deferred archive tool", true, "archive", nil, func(context.Context, *a2e.Call, json.RawMessage) (any, error) {
		return json.RawMessage(`{"found":true}`), nil
	})
	add("deaf", "Sleep, ignoring everything", false, "", []tools.Parameter{integer("ms")},
		func(ctx context.Context, call *a2e.Call, arguments json.RawMessage) (any, error) {
			return a2eSlow(context.WithoutCancel(ctx), call, arguments)
		})
	add("big", "Return n bytes", false, "", []tools.Parameter{integer("n"), {Name: "event", Type: "boolean"}}, a2eBig)
	return s
}

// a2eBig returns a text of n bytes, or emits one of that size.
func a2eBig(_ context.Context, call *a2e.Call, arguments json.RawMessage) (any, error) {
	v, err := strictjson.Check(arguments, strictjson.Options{})
	if err != nil {
		return nil, err
	}
	n, ok := v.Get("n").Int()
	if !ok || n < 0 || n > 1<<20 {
		return nil, errors.New("n is out of range")
	}
	text := strings.Repeat("x", int(n))
	if event, _ := v.Get("event").Bool(); !event {
		return json.RawMessage(strictjson.AppendString(nil, text)), nil
	}
	log, err := guard.Encode(map[string]string{"level": "info", "message": text})
	if err != nil {
		return nil, err
	}
	var refused *a2e.Error
	err = call.Emit(a2e.EventLog, json.RawMessage(log))
	if errors.As(err, &refused) && refused.Reason == "too_large" {
		err = call.Emit(a2e.EventStatus, json.RawMessage(`{"message":"too_large"}`))
	}
	return json.RawMessage(`{"n":` + strconv.FormatInt(n, 10) + `}`), err
}

func a2eSlow(ctx context.Context, _ *a2e.Call, arguments json.RawMessage) (any, error) {
	v, err := strictjson.Check(arguments, strictjson.Options{})
	if err != nil {
		return nil, err
	}
	ms, ok := v.Get("ms").Int()
	if !ok || ms < 0 {
		return nil, errors.New("ms is out of range")
	}
	start := time.Now()
	if err := a2eSleep(ctx, ms); err != nil {
		return nil, err
	}
	data, err := guard.Encode(map[string]int64{"slept": ms})
	if err != nil {
		return nil, err
	}
	return &tools.Result{Success: true, Data: data, DurationMs: time.Since(start).Milliseconds()}, nil
}

// a2eLines collects the output of a connection.
type a2eLines struct {
	lines   tape[string]
	isEnded atomic.Bool
}

func (l *a2eLines) read(r io.Reader) {
	in := bufio.NewReader(r)
	for {
		line, err := in.ReadString('\n')
		if line != "" {
			l.lines.add(strings.TrimSuffix(line, "\n"))
		}
		if err != nil {
			l.isEnded.Store(true)
			return
		}
	}
}

// since returns the messages since the step before.
func (l *a2eLines) since(step *Input) []Answer {
	list := []Answer{}
	for _, line := range l.lines.since(step) {
		list = append(list, Answer{"json": json.RawMessage(line)})
	}
	return list
}

// answer is that of a step.
func (l *a2eLines) answer(step *Input) Answer {
	return Answer{"out": Default(l.since(step), []any{}), "closed": Default(l.isEnded.Load(), false)}
}

func a2eHostScript(t *testing.T, in *Input) (Step, error) {
	h, audit := a2eHost(in)
	if err := in.Err(); err != nil {
		return nil, err
	}
	agent, host := a2e.Pipe()
	out := &a2eLines{}
	var done sync.WaitGroup
	done.Go(func() { _ = h.Serve(context.Background(), host) })
	done.Go(func() { out.read(agent) })
	input := io.WriteCloser(agent)
	t.Cleanup(func() {
		a2eEnd(h)
		_ = agent.Close()
		done.Wait()
	})
	return func(step *Input) (Answer, error) {
		for _, line := range step.StringsOr("lines") {
			_, _ = io.WriteString(input, line+"\n") // a closed session takes nothing
			synctest.Wait()
		}
		if step.Bool("eof") {
			_ = agent.(interface{ CloseWrite() error }).CloseWrite()
			synctest.Wait()
		}
		answer := out.answer(step)
		if step.Bool("audit") {
			records, err := audit.take()
			if err != nil {
				return nil, err
			}
			answer["audit"] = records
		}
		return answer, nil
	}, nil
}

// a2eAdd adds integers of any size.
func a2eAdd(_ context.Context, _ *a2e.Call, arguments json.RawMessage) (any, error) {
	v, err := strictjson.Check(arguments, strictjson.Options{})
	if err != nil {
		return nil, err
	}
	sum := new(big.Int)
	for _, name := range []string{"a", "b"} {
		r, ok := new(big.Rat).SetString(string(v.Get(name)))
		if !ok || !r.IsInt() {
			return nil, errors.New("not an integer")
		}
		sum.Add(sum, r.Num())
	}
	return json.RawMessage(`{"sum":` + sum.String() + `}`), nil
}
