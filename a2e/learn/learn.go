// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package learn

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/fivewire/fivewire/a2e"
	"github.com/fivewire/fivewire/store"
)

// An Adapter changes a component according to its recorded data. An empty name means all
// components.
type Adapter interface {
	Adapt(ctx context.Context, component, strategy string) (message string, err error)
}

// A Refiner proposes, reviews and applies changes of components. A proposal is an object whose
// members the Refiner defines.
type Refiner interface {
	Plan(ctx context.Context, component, scope string) (proposals []json.RawMessage, err error)
	Review(ctx context.Context, proposal json.RawMessage) (*RefinementReviewResponse, error)

	// Apply makes a change and returns the numbers of applied and failed edits, and a function that
	// reverts the change. Apply must refuse a change that cannot be reverted (A2E-112). Only the principal that applied
	// a change reverts it, one of its last 100 and in the same process. A function that fails may be called again.
	Apply(ctx context.Context, proposal json.RawMessage) (applied, failed int64, undo func(context.Context) error, err error)
}

// Options adjusts the plugin. The zero value is right for one process.
type Options struct {
	// Name is the name of the plugin. Empty means "learning".
	Name string

	// Store keeps feedback and experience, in streams with the prefix "a2e/learn/". Nil keeps none. The scores and the
	// refinements are in the memory of the process.
	Store store.Log

	// Retention is the lifetime of feedback and experience in the store. Zero means 30 days; a
	// negative value keeps them without end.
	Retention time.Duration

	// Adapter and Refiner serve the requests of these kinds, which are
	// unsupported without them.
	Adapter Adapter
	Refiner Refiner

	// Recorder is where the statistics come from; see [Recorder].
	Recorder *Recorder

	// RejectEnvSource refuses feedback of agents with the source env. Otherwise it is recorded with
	// the additional member via, which tells it from feedback of the host.
	RejectEnvSource bool

	// MaxBatch bounds the entries of one request. Zero means 1000; a negative value removes the
	// bound.
	MaxBatch int
}

// Streams of the store.
const (
	feedbackStream   = "a2e/learn/feedback"
	experienceStream = "a2e/learn/experience"
)

// NewPlugin returns a plugin that records feedback and experience and reports statistics of
// components.
func NewPlugin(opts *Options) (*a2e.Plugin, error) {
	k := &keeper{histories: map[string][]*refinement{}, ratings: map[rating]mean{}, dimensions: map[string]int{}}
	if opts != nil {
		k.opts = *opts
	}
	k.opts.Name = cmp.Or(k.opts.Name, Capability)
	k.opts.Retention = max(cmp.Or(k.opts.Retention, 30*24*time.Hour), 0) // 0 is no end to the store
	k.opts.MaxBatch = cmp.Or(k.opts.MaxBatch, 1000)
	k.opts.Recorder = cmp.Or(k.opts.Recorder, &Recorder{})
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
	}, nil
}

// Bounds of the refinements that can be rolled back.
const (
	maxHistory = 100  // of an owner
	maxOwners  = 1000 // a new owner displaces the owner with the oldest last refinement
)

type keeper struct {
	opts Options

	mu         sync.Mutex               // guards everything below
	histories  map[string][]*refinement // by owner, each by time
	ratings    map[rating]mean
	dimensions map[string]int // of ratings, by owner
}

// A refinement is an applied change of components.
type refinement struct {
	id      string
	at      time.Time
	applied int64

	// guarded by the mutex of the keeper
	undone bool
	undo   func(context.Context) error // nil while it runs, and after it
}

// keep records the value at position i of a request, once even if the request is repeated. Agents
// choose the ids of their requests, so the ids of two sessions may be equal. A session without
// handshake has no id that distinguishes it.
func (k *keeper) keep(ctx context.Context, stream string, call *a2e.Call, i int, v json.RawMessage) error {
	if k.opts.Store == nil {
		return nil // nothing reads it
	}
	session := call.Session.ID()
	id := session + "/" + call.Message.ID + "/" + strconv.Itoa(i)
	if session == "" || len(id) > store.MaxKey {
		id = ""
	}
	_, err := k.opts.Store.Append(ctx, stream, id, v, k.opts.Retention)
	if errors.Is(err, store.ErrDuplicate) {
		return nil
	}
	return err
}

func (k *keeper) feedback(ctx context.Context, call *a2e.Call, r *FeedbackRequest) (*FeedbackResponse, error) {
	if k.opts.MaxBatch > 0 && len(r.Feedbacks) > k.opts.MaxBatch {
		return nil, a2e.SchemaViolation("feedbacks", a2e.ReasonValue)
	}
	for i := range r.Feedbacks {
		if r.Feedbacks[i].Source != "env" {
			continue
		}
		if k.opts.RejectEnvSource {
			return nil, a2e.SchemaViolation("feedbacks["+strconv.Itoa(i)+"].source", a2e.ReasonValue)
		}
		if err := r.Feedbacks[i].Extra.Set("via", "agent"); err != nil {
			return nil, err
		}
	}
	resp := &FeedbackResponse{}
	for i := range r.Feedbacks {
		raw, err := a2e.EncodeModel(&r.Feedbacks[i])
		if err != nil {
			return nil, err
		}
		if err := k.keep(ctx, feedbackStream, call, i, raw); err != nil {
			return nil, err
		}
		resp.Recorded++
	}
	resp.NewScore = k.score(call.Session, r.Feedbacks)
	return resp, nil
}

// A rating names the feedback of one owner in one dimension.
type rating struct{ owner, dimension string }

// A mean is a weighted mean.
type mean struct{ sum, weight float64 }

// Bounds of the recorded means, whose names come from agents.
const (
	maxRatings    = 10_000
	maxDimensions = 100 // of an owner
)

// score adds feedback of the owner of a session, and returns the mean score, weighted by confidence,
// in the dimension of the last one; nil without weight, and for a dimension above the bounds (A2E-D66).
func (k *keeper) score(s *a2e.Session, list []Feedback) *float64 {
	owner := s.OwnerID()
	k.mu.Lock()
	defer k.mu.Unlock()
	var last mean
	for i := range list {
		key := rating{owner, strings.Clone(list[i].Dimension)} // does not retain the message
		m, isKnown := k.ratings[key]
		confidence := 1.0
		if c := list[i].Confidence; c != nil {
			confidence = *c
		}
		last = mean{m.sum + list[i].Score*confidence, m.weight + confidence}
		switch {
		case isKnown:
			k.ratings[key] = last
		case len(k.ratings) < maxRatings && k.dimensions[owner] < maxDimensions && len(list[i].Dimension) <= maxName:
			k.ratings[key] = last
			k.dimensions[owner]++
		default:
			last = mean{}
		}
	}
	if last.weight == 0 {
		return nil
	}
	return new(last.sum / last.weight)
}

func (k *keeper) experience(ctx context.Context, call *a2e.Call, r *ExperienceRequest) (*ExperienceResponse, error) {
	if k.opts.MaxBatch > 0 && len(r.Experiences) > k.opts.MaxBatch {
		return nil, a2e.SchemaViolation("experiences", a2e.ReasonValue)
	}
	resp := &ExperienceResponse{}
	for i := range r.Experiences {
		raw, err := a2e.EncodeModel(&r.Experiences[i])
		if err != nil {
			return nil, err
		}
		if err := k.keep(ctx, experienceStream, call, i, raw); err != nil {
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
	return &AdaptResponse{Updated: k.opts.Recorder.records(r.ComponentName), Message: message}, nil
}

func (k *keeper) stats(_ context.Context, _ *a2e.Call, r *StatsRequest) (*StatsResponse, error) {
	return &StatsResponse{Components: k.opts.Recorder.records(r.ComponentName)}, nil
}

func (k *keeper) plan(ctx context.Context, _ *a2e.Call, r *RefinementPlanRequest) (*RefinementPlanResponse, error) {
	if k.opts.Refiner == nil {
		return nil, a2e.ErrNextPlugin
	}
	proposals, err := k.opts.Refiner.Plan(ctx, r.ComponentName, r.Scope)
	if err != nil {
		return nil, err
	}
	resp := &RefinementPlanResponse{PlanID: "plan-" + a2e.NewID(), Proposals: proposals, Status: "ready"}
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

func (k *keeper) apply(ctx context.Context, call *a2e.Call, r *RefinementApplyRequest) (*RefinementApplyResponse, error) {
	if k.opts.Refiner == nil {
		return nil, a2e.ErrNextPlugin
	}
	applied, failed, undo, err := k.opts.Refiner.Apply(ctx, r.Proposal)
	if err != nil {
		return nil, err
	}
	own := &refinement{id: "ref-" + a2e.NewID(), at: time.Now(), applied: applied, undo: undo}
	k.remember(call.Session.OwnerID(), own)
	return &RefinementApplyResponse{RefinementID: own.id, AppliedEdits: applied, FailedEdits: failed, RollbackAvailable: undo != nil}, nil
}

// remember adds a refinement to those of its owner.
func (k *keeper) remember(owner string, r *refinement) {
	k.mu.Lock()
	defer k.mu.Unlock()
	list := append(k.histories[owner], r)
	if len(list) > maxHistory {
		list = slices.Delete(list, 0, 1)
	}
	k.histories[owner] = list
	if len(k.histories) <= maxOwners {
		return
	}
	oldest, last := "", time.Time{}
	for other, list := range k.histories {
		if at := list[len(list)-1].at; last.IsZero() || at.Before(last) {
			oldest, last = other, at
		}
	}
	delete(k.histories, oldest)
}

func (k *keeper) rollback(ctx context.Context, call *a2e.Call, r *RefinementRollbackRequest) (*RefinementRollbackResponse, error) {
	if k.opts.Refiner == nil {
		return nil, a2e.ErrNextPlugin
	}
	resp := &RefinementRollbackResponse{RefinementID: r.RefinementID}
	own, undo := k.startUndo(call.Session.OwnerID(), r.RefinementID)
	if undo == nil {
		resp.Error = "nothing to roll back"
		return resp, nil
	}
	defer func() { // also if undo panics
		k.mu.Lock()
		defer k.mu.Unlock()
		if own.undone = resp.RolledBack; !own.undone {
			own.undo = undo
		}
	}()
	if err := undo(ctx); err != nil {
		resp.Error = "the rollback failed"
		return resp, nil
	}
	resp.RolledBack = true
	return resp, nil
}

// startUndo returns a refinement of an owner and its undo, which no other request gets until it has failed. It returns
// nil for a refinement without undo.
func (k *keeper) startUndo(owner, id string) (*refinement, func(context.Context) error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	i := slices.IndexFunc(k.histories[owner], func(r *refinement) bool { return r.id == id })
	if i < 0 {
		return nil, nil
	}
	own := k.histories[owner][i]
	undo := own.undo
	own.undo = nil
	return own, undo
}

func (k *keeper) history(_ context.Context, call *a2e.Call, _ *RefinementHistoryRequest) (*RefinementHistoryResponse, error) {
	if k.opts.Refiner == nil {
		return nil, a2e.ErrNextPlugin
	}
	owner := call.Session.OwnerID()
	k.mu.Lock()
	defer k.mu.Unlock()
	resp := &RefinementHistoryResponse{}
	for _, r := range k.histories[owner] {
		resp.Entries = append(resp.Entries, json.RawMessage(fmt.Sprintf(
			`{"refinement_id":%q,"applied_at":%d,"applied_edits":%d,"rolled_back":%t}`, r.id, r.at.Unix(), r.applied, r.undone)))
	}
	return resp, nil
}

// A Recorder records the number and duration of calls by component. Add its Middleware to the
// options of the host. The zero value is ready for use. It is safe for concurrent use.
type Recorder struct {
	mu    sync.Mutex
	stats map[string]*stat
}

type stat struct {
	total, failed int64
	took          time.Duration
	last          time.Time
	recent        []time.Duration // the last ones, for the percentile
}

const (
	keepRecent    = 200
	maxComponents = 1000 // names come from agents
	maxName       = 256
)

// errNoReturn is the error of a handler that panics or ends its goroutine.
var errNoReturn = errors.New("learn: the handler did not return")

// Middleware counts the calls of a host. The component of a call of a tool or skill that exists is
// its name, of every other call its type.
func (r *Recorder) Middleware(next a2e.Handler) a2e.Handler {
	return a2e.HandlerFunc(func(ctx context.Context, call *a2e.Call) (answer any, err error) {
		start := time.Now()
		err = errNoReturn
		defer func() {
			if !errors.Is(err, a2e.ErrNextPlugin) { // which is counted for the plugin that answers
				r.add(componentOf(call, err), time.Since(start), err)
			}
		}()
		return next.ServeA2E(ctx, call)
	})
}

func componentOf(call *a2e.Call, err error) string {
	name := call.Message.Type
	switch {
	case errors.Is(err, a2e.ErrUnknownTool) || errors.Is(err, a2e.ErrUnknownSkill):
	case name == "tool/call/req":
		return cmp.Or(call.StringMember("tool_name"), name)
	case name == "skill/call/req":
		return cmp.Or(call.StringMember("name"), name)
	}
	return name
}

// statLocked returns the statistics of a component, or nil above the bounds. r.mu must be held.
func (r *Recorder) statLocked(name string) *stat {
	if r.stats == nil {
		r.stats = map[string]*stat{}
	}
	if len(name) > maxName {
		return nil // longer than the name of any tool
	}
	s := r.stats[name]
	if s == nil && len(r.stats) < maxComponents {
		s = &stat{}
		r.stats[strings.Clone(name)] = s // does not retain the message
	}
	return s
}

func (r *Recorder) add(name string, took time.Duration, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.statLocked(name)
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

func (r *Recorder) records(component string) []PerformanceRecord {
	r.mu.Lock()
	defer r.mu.Unlock()
	var list []PerformanceRecord
	for _, name := range slices.Sorted(maps.Keys(r.stats)) {
		if component != "" && component != name {
			continue
		}
		s := r.stats[name]
		p := PerformanceRecord{ComponentName: name, CallsTotal: s.total, CallsSuccess: s.total - s.failed, CallsFailed: s.failed}
		if s.total > 0 {
			p.AvgDurationMs = float64(s.took.Microseconds()) / 1000 / float64(s.total)
			p.LastCalled = float64(s.last.UnixMicro()) / 1e6
			recent := slices.Clone(s.recent)
			slices.Sort(recent)
			p.P95DurationMs = float64(recent[len(recent)*95/100].Microseconds()) / 1000
		}
		list = append(list, p)
	}
	return list
}
