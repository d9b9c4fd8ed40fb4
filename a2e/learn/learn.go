// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package learn

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/fivewire/fivewire/a2e"
	"github.com/fivewire/fivewire/internal/randid"
	"github.com/fivewire/fivewire/store"
)

// An Adapter changes a component after what was recorded of it. It is asked with
// an empty name about all of them.
type Adapter interface {
	Adapt(ctx context.Context, component, strategy string) (message string, err error)
}

// A Refiner proposes, judges and makes changes of components. Proposals are free
// objects, whose form is its own.
type Refiner interface {
	Plan(ctx context.Context, component, scope string) (proposals []json.RawMessage, err error)
	Review(ctx context.Context, proposal json.RawMessage) (*RefinementReviewResponse, error)

	// Apply makes a change and returns how many edits were made and failed, and
	// what undoes it. A change without undo is none: it must not be made
	// (A2E-112).
	Apply(ctx context.Context, proposal json.RawMessage) (applied, failed int64, undo func(context.Context) error, err error)
}

// Options adjusts the plugin. The zero value is right for one process.
type Options struct {
	// Name is the name of the plugin. Empty means "learning".
	Name string

	// Store keeps feedback and experience, in streams that begin with
	// "a2e/learn/". Nil means memory of the process.
	Store store.Log

	// Retention is how long; zero means 30 days.
	Retention time.Duration

	// Adapter and Refiner serve the requests of these kinds, which are
	// unsupported without them.
	Adapter Adapter
	Refiner Refiner

	// Recorder is where the statistics come from; see [Recorder].
	Recorder *Recorder

	// AllowEnvSource accepts feedback that calls itself the environment's own.
	AllowEnvSource bool

	// MaxBatch bounds what one request brings; zero means 1000.
	MaxBatch int
}

// Streams of the store.
const (
	FeedbackStream   = "a2e/learn/feedback"
	ExperienceStream = "a2e/learn/experience"
)

// NewPlugin returns a plugin that records feedback and experience and tells how
// components do.
func NewPlugin(opts *Options) *a2e.Plugin {
	k := &keeper{undo: map[string]func(context.Context) error{}}
	if opts != nil {
		k.opts = *opts
	}
	if k.opts.Name == "" {
		k.opts.Name = Capability
	}
	if k.opts.Store == nil {
		k.opts.Store = store.NewMemory()
	}
	if k.opts.Retention <= 0 {
		k.opts.Retention = 30 * 24 * time.Hour
	}
	if k.opts.MaxBatch <= 0 {
		k.opts.MaxBatch = 1000
	}
	if k.opts.Recorder == nil {
		k.opts.Recorder = &Recorder{}
	}
	return &a2e.Plugin{
		Name: k.opts.Name, Capability: Capability, Types: Types(),
		Routes: []a2e.Route{
			a2e.NewRoute("learn/feedback/req", k.feedback),
			a2e.NewRoute("learn/experience/req", k.experience),
			a2e.NewRoute("learn/adapt/req", k.adapt),
			a2e.NewRoute("learn/stats/req", k.stats),
			a2e.NewRoute("learn/refinement/plan/req", k.plan),
			a2e.NewRoute("learn/refinement/review/req", k.review),
			a2e.NewRoute("learn/refinement/apply/req", k.apply),
			a2e.NewRoute("learn/refinement/rollback/req", k.rollback),
			a2e.NewRoute("learn/refinement/history/req", k.history),
		},
	}
}

// maxHistory bounds the refinements that can be rolled back.
const maxHistory = 100

type keeper struct {
	opts Options

	mu    sync.Mutex
	undo  map[string]func(context.Context) error // of refinements in force
	order []refinement
}

type refinement struct {
	id      string
	at      time.Time
	undone  bool
	applied int64
}

// keep records what stands at position i of a request, once if the request is made
// again. Agents choose the ids of their requests, so that those of two sessions
// may be equal; a session without handshake has no id that would tell it apart.
func (k *keeper) keep(ctx context.Context, stream string, call *a2e.Call, i int, v json.RawMessage) error {
	session := call.Session.ID()
	id := session + "/" + call.ID() + "/" + strconv.Itoa(i)
	if session == "" || len(id) > store.MaxKey {
		id = ""
	}
	_, err := k.opts.Store.Append(ctx, stream, id, v, k.opts.Retention)
	return err
}

func (k *keeper) feedback(ctx context.Context, call *a2e.Call, r *FeedbackRequest) (*FeedbackResponse, error) {
	if len(r.Feedbacks) > k.opts.MaxBatch {
		return nil, a2e.SchemaViolation("feedbacks", a2e.ReasonValue)
	}
	for i := range r.Feedbacks {
		if r.Feedbacks[i].Source == "env" && !k.opts.AllowEnvSource {
			return nil, a2e.SchemaViolation("feedbacks["+strconv.Itoa(i)+"].source", a2e.ReasonValue)
		}
	}
	resp := &FeedbackResponse{}
	for i := range r.Feedbacks {
		raw, err := a2e.EncodeModel(&r.Feedbacks[i])
		if err != nil {
			return nil, err
		}
		if err := k.keep(ctx, FeedbackStream, call, i, raw); err != nil {
			return nil, err
		}
		resp.Recorded++
	}
	if score, ok := k.opts.Recorder.score(r.Feedbacks); ok {
		resp.NewScore = &score
	}
	return resp, nil
}

func (k *keeper) experience(ctx context.Context, call *a2e.Call, r *ExperienceRequest) (*ExperienceResponse, error) {
	if len(r.Experiences) > k.opts.MaxBatch {
		return nil, a2e.SchemaViolation("experiences", a2e.ReasonValue)
	}
	resp := &ExperienceResponse{}
	for i := range r.Experiences {
		raw, err := a2e.EncodeModel(&r.Experiences[i])
		if err != nil {
			return nil, err
		}
		if err := k.keep(ctx, ExperienceStream, call, i, raw); err != nil {
			return nil, err
		}
		resp.Stored++
	}
	return resp, nil
}

func (k *keeper) adapt(ctx context.Context, _ *a2e.Call, r *AdaptRequest) (*AdaptResponse, error) {
	if k.opts.Adapter == nil {
		return nil, a2e.ErrNextPlugin
	}
	switch r.Strategy {
	case "ppo", "ucb1", "epsilon_greedy", "softmax", "custom":
	default:
		return nil, a2e.SchemaViolation("strategy", a2e.ReasonValue)
	}
	message, err := k.opts.Adapter.Adapt(ctx, r.ComponentName, r.Strategy)
	if err != nil {
		return nil, err
	}
	updated, err := k.opts.Recorder.records(r.ComponentName)
	return &AdaptResponse{Updated: updated, Message: message}, err
}

func (k *keeper) stats(_ context.Context, _ *a2e.Call, r *StatsRequest) (*StatsResponse, error) {
	list, err := k.opts.Recorder.records(r.ComponentName)
	return &StatsResponse{Components: list}, err
}

func (k *keeper) plan(ctx context.Context, _ *a2e.Call, r *RefinementPlanRequest) (*RefinementPlanResponse, error) {
	if k.opts.Refiner == nil {
		return nil, a2e.ErrNextPlugin
	}
	proposals, err := k.opts.Refiner.Plan(ctx, r.ComponentName, r.Scope)
	if err != nil {
		return nil, err
	}
	resp := &RefinementPlanResponse{PlanID: randid.New("plan-"), Proposals: proposals, Status: "ready"}
	if len(proposals) == 0 {
		resp.Status = "empty"
	}
	return resp, nil
}

func (k *keeper) review(ctx context.Context, _ *a2e.Call, r *RefinementReviewRequest) (*RefinementReviewResponse, error) {
	if k.opts.Refiner == nil {
		return nil, a2e.ErrNextPlugin
	}
	return k.opts.Refiner.Review(ctx, r.Proposal)
}

func (k *keeper) apply(ctx context.Context, _ *a2e.Call, r *RefinementApplyRequest) (*RefinementApplyResponse, error) {
	if k.opts.Refiner == nil {
		return nil, a2e.ErrNextPlugin
	}
	applied, failed, undo, err := k.opts.Refiner.Apply(ctx, r.Proposal)
	if err != nil {
		return nil, err
	}
	resp := &RefinementApplyResponse{RefinementID: randid.New("ref-"), AppliedEdits: applied, FailedEdits: failed, RollbackAvailable: undo != nil}
	k.mu.Lock()
	defer k.mu.Unlock()
	if undo != nil {
		k.undo[resp.RefinementID] = undo
	}
	if k.order = append(k.order, refinement{id: resp.RefinementID, at: time.Now(), applied: applied}); len(k.order) > maxHistory {
		delete(k.undo, k.order[0].id)
		k.order = k.order[1:]
	}
	return resp, nil
}

func (k *keeper) rollback(ctx context.Context, _ *a2e.Call, r *RefinementRollbackRequest) (*RefinementRollbackResponse, error) {
	if k.opts.Refiner == nil {
		return nil, a2e.ErrNextPlugin
	}
	resp := &RefinementRollbackResponse{RefinementID: r.RefinementID}
	k.mu.Lock()
	undo := k.undo[r.RefinementID]
	delete(k.undo, r.RefinementID) // once
	k.mu.Unlock()
	if undo == nil {
		resp.Error = "nothing to roll back"
		return resp, nil
	}
	if err := undo(ctx); err != nil {
		resp.Error = "the rollback failed"
		k.mu.Lock()
		k.undo[r.RefinementID] = undo
		k.mu.Unlock()
		return resp, nil
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	for i := range k.order {
		if k.order[i].id == r.RefinementID {
			k.order[i].undone = true
		}
	}
	resp.RolledBack = true
	return resp, nil
}

func (k *keeper) history(context.Context, *a2e.Call, *RefinementHistoryRequest) (*RefinementHistoryResponse, error) {
	if k.opts.Refiner == nil {
		return nil, a2e.ErrNextPlugin
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	resp := &RefinementHistoryResponse{}
	for _, r := range k.order {
		resp.Entries = append(resp.Entries, json.RawMessage(fmt.Sprintf(
			`{"refinement_id":%q,"applied_at":%d,"applied_edits":%d,"rolled_back":%t}`, r.id, r.at.Unix(), r.applied, r.undone)))
	}
	return resp, nil
}

// A Recorder counts calls by component and how long they take. Put its
// Middleware into the options of the host. The zero value is ready for use, by
// any number of goroutines.
type Recorder struct {
	mu    sync.Mutex
	stats map[string]*stat
}

type stat struct {
	total, failed int64
	took          time.Duration
	last          time.Time
	recent        []time.Duration // the last ones, for the percentile
	scores, rated float64
}

const (
	keepRecent    = 200
	maxComponents = 1000 // names come from agents
	maxName       = 256
)

// Middleware counts the calls of a host. The component of a tool or skill call is
// its name, of every other call its type.
func (r *Recorder) Middleware(next a2e.Handler) a2e.Handler {
	return a2e.HandlerFunc(func(ctx context.Context, call *a2e.Call) (any, error) {
		start := time.Now()
		answer, err := next.ServeA2E(ctx, call)
		name := call.Message.Type
		if s := call.StringMember("tool_name"); s != "" {
			name = s
		} else if s := call.StringMember("name"); s != "" && name == "skill/call/req" {
			name = s
		}
		r.add(name, time.Since(start), err)
		return answer, err
	})
}

func (r *Recorder) at(name string) *stat {
	if r.stats == nil {
		r.stats = map[string]*stat{}
	}
	if len(name) > maxName {
		return nil // no tool of anybody
	}
	s := r.stats[name]
	if s == nil && len(r.stats) < maxComponents {
		s = &stat{}
		r.stats[strings.Clone(name)] = s // without the message that it is part of
	}
	return s
}

func (r *Recorder) add(name string, took time.Duration, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.at(name)
	if s == nil {
		return
	}
	s.total++
	if err != nil {
		s.failed++
	}
	s.took += took
	s.last = time.Now()
	if len(s.recent) >= keepRecent {
		s.recent = s.recent[1:]
	}
	s.recent = append(s.recent, took)
}

// score returns the mean score of feedback, weighted by confidence, over what the
// recorder has seen.
func (r *Recorder) score(list []Feedback) (float64, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.at("feedback")
	if s == nil {
		return 0, false
	}
	for i := range list {
		s.scores += list[i].Score * list[i].Confidence
		s.rated += list[i].Confidence
	}
	if s.rated == 0 {
		return 0, false
	}
	return s.scores / s.rated, true
}

func (r *Recorder) records(component string) ([]json.RawMessage, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	var list []json.RawMessage
	for _, name := range slices.Sorted(maps.Keys(r.stats)) {
		if component != "" && component != name {
			continue
		}
		s := r.stats[name]
		p := &PerformanceRecord{ComponentName: name, CallsTotal: s.total, CallsSuccess: s.total - s.failed, CallsFailed: s.failed}
		if s.total > 0 {
			p.AvgDurationMs = float64(s.took.Microseconds()) / 1000 / float64(s.total)
			p.LastCalled = a2e.Seconds(s.last)
			recent := slices.Clone(s.recent)
			slices.Sort(recent)
			p.P95DurationMs = float64(recent[len(recent)*95/100].Microseconds()) / 1000
		}
		if s.rated > 0 {
			p.AvgScore = s.scores / s.rated
		}
		raw, err := a2e.EncodeModel(p)
		if err != nil {
			return nil, err
		}
		list = append(list, raw)
	}
	return list, nil
}
