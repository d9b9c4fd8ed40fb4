// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package learn_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/fivewire/fivewire/a2e"
	"github.com/fivewire/fivewire/a2e/a2etest"
	"github.com/fivewire/fivewire/a2e/learn"
	"github.com/fivewire/fivewire/a2e/tools"
	"github.com/fivewire/fivewire/internal/kit"
	"github.com/fivewire/fivewire/store"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

type refiner struct{ value int }

func (r *refiner) Adapt(_ context.Context, component, strategy string) (string, error) {
	return component + " by " + strategy, nil
}

func (r *refiner) Plan(_ context.Context, component, _ string) ([]json.RawMessage, error) {
	if component == "none" {
		return nil, nil
	}
	return []json.RawMessage{json.RawMessage(`{"new_value":2}`)}, nil
}

func (r *refiner) Review(context.Context, json.RawMessage) (*learn.RefinementReviewResponse, error) {
	return &learn.RefinementReviewResponse{Approved: true, RiskLevel: "low"}, nil
}

func (r *refiner) Apply(_ context.Context, proposal json.RawMessage) (int64, int64, func(context.Context) error, error) {
	if string(proposal) == "{}" {
		return 0, 0, nil, errors.New("nothing to do")
	}
	old := r.value
	r.value = 2
	return 1, 0, func(context.Context) error { r.value = old; return nil }, nil
}

func connect(t *testing.T, opts *learn.Options) *learn.Client {
	o := &a2e.HostOptions{}
	if opts.Recorder != nil {
		o.Middleware = []a2e.Middleware{opts.Recorder.Middleware}
	}
	c, err := learn.NewClient(a2etest.Connect(t, a2etest.NewHost(t, o).AddPlugin(a2etest.Must(learn.NewPlugin(opts))), nil))
	require.NoError(t, err)
	return c
}

func feedback(change func(*learn.Feedback)) *learn.FeedbackRequest {
	f := new(learn.Feedback)
	f.Polarity, f.Score = learn.PolarityPositive, 0.5
	if change != nil {
		change(f)
	}
	return &learn.FeedbackRequest{Feedbacks: []learn.Feedback{*f}}
}

// Feedback and experience are kept, statistics come from the recorder (A2E-109,
// A2E-110, A2E-111).
func TestRecord(t *testing.T) {
	kv := store.NewMemory()
	r := &refiner{}
	c := connect(t, &learn.Options{Store: kv, Recorder: &learn.Recorder{}, Adapter: r, MaxBatch: 2, RejectEnvSource: true})
	ctx := t.Context()
	resp, err := c.RecordFeedback(ctx, feedback(nil), nil)
	require.NoError(t, err)
	require.EqualValues(t, 1, resp.Recorded)
	require.InDelta(t, 0.5, *resp.NewScore, 0)
	for _, change := range []func(*learn.Feedback){
		func(f *learn.Feedback) { f.Source = "env" },
		func(f *learn.Feedback) { f.Score = 1.5 },
		func(f *learn.Feedback) { f.Confidence = new(-1.0) },
	} {
		_, err = c.RecordFeedback(ctx, feedback(change), nil)
		require.ErrorIs(t, err, a2e.ErrSchemaViolation)
	}
	// Feedback that the client's check refuses is also refused by the host: see the vectors. A
	// correction is required, and its span has two ends.
	records, err := kv.Read(ctx, "a2e/learn/feedback", 0, 0)
	require.NoError(t, err)
	require.Len(t, records, 1)
	stored, err := c.RecordExperience(ctx, &learn.ExperienceRequest{Experiences: []learn.Experience{{Reward: 1}, {Step: 2}}}, nil)
	require.NoError(t, err)
	require.EqualValues(t, 2, stored.Stored)
	_, err = c.RecordExperience(ctx, &learn.ExperienceRequest{Experiences: make([]learn.Experience, 3)}, nil)
	require.ErrorIs(t, err, a2e.ErrSchemaViolation)
	stats, err := c.GetStats(ctx, &learn.StatsRequest{ComponentName: "learn/experience/req"}, nil)
	require.NoError(t, err)
	require.Len(t, stats.Components, 1)
	p := stats.Components[0]
	require.EqualValues(t, 2, p.CallsTotal)
	require.EqualValues(t, 1, p.CallsFailed)
	adapted, err := c.Adapt(ctx, &learn.AdaptRequest{ComponentName: "x", Strategy: "ppo"}, nil)
	require.NoError(t, err)
	require.Equal(t, "x by ppo", adapted.Message)
	_, err = c.Adapt(ctx, &learn.AdaptRequest{Strategy: "magic"}, nil)
	require.ErrorIs(t, err, a2e.ErrSchemaViolation)
	_, err = c.PlanRefinement(ctx, nil, nil)
	require.ErrorIs(t, err, a2e.ErrUnsupported)
}

// Every change can be rolled back, once (A2E-112).
func TestRefinement(t *testing.T) {
	r := &refiner{value: 1}
	c := connect(t, &learn.Options{Refiner: r})
	ctx := t.Context()
	plan, err := c.PlanRefinement(ctx, nil, nil)
	require.NoError(t, err)
	require.Equal(t, "ready", plan.Status)
	empty, err := c.PlanRefinement(ctx, &learn.RefinementPlanRequest{ComponentName: "none"}, nil)
	require.NoError(t, err)
	require.Equal(t, "empty", empty.Status)
	review, err := c.ReviewRefinement(ctx, &learn.RefinementReviewRequest{Proposal: plan.Proposals[0]}, nil)
	require.NoError(t, err)
	require.True(t, review.Approved)
	applied, err := c.ApplyRefinement(ctx, &learn.RefinementApplyRequest{Proposal: plan.Proposals[0]}, nil)
	require.NoError(t, err)
	require.True(t, applied.RollbackAvailable)
	require.Equal(t, 2, r.value)
	back, err := c.RollbackRefinement(ctx, &learn.RefinementRollbackRequest{RefinementID: applied.RefinementID}, nil)
	require.NoError(t, err)
	require.True(t, back.RolledBack)
	require.Equal(t, 1, r.value)
	back, err = c.RollbackRefinement(ctx, &learn.RefinementRollbackRequest{RefinementID: applied.RefinementID}, nil)
	require.ErrorContains(t, err, "nothing to roll back")
	require.False(t, back.RolledBack)
	history, err := c.ListRefinements(ctx, nil, nil)
	require.NoError(t, err)
	require.Contains(t, string(history.Entries[0]), `"rolled_back":true`)
	_, err = c.ApplyRefinement(ctx, nil, nil)
	require.ErrorIs(t, err, a2e.ErrRuntime)
	_, err = c.Adapt(ctx, nil, nil)
	require.ErrorIs(t, err, a2e.ErrUnsupported)
}

// Two agents may choose the same ids for their requests: what both say is kept, with
// handshakes or without.
func TestEqualIDsOfTwoSessions(t *testing.T) {
	const shake = `{"a2e":"1.0","type":"handshake/req","id":"h","ts":1,"agent_id":"t","agent_caps":["learning"]}`
	const record = `{"a2e":"1.0","type":"learn/experience/req","id":"a1b2c3","ts":1,"experiences":[{}]}`
	for name, lines := range map[string][]string{"handshake": {shake, record}, "none": {record}} {
		t.Run(name, func(t *testing.T) {
			kept := store.NewMemory()
			h := a2etest.Must(a2e.NewHost(&a2e.HostOptions{Auth: a2e.Auth{AllowAnonymous: true, SkipHandshake: name == "none"}})).AddPlugin(a2etest.Must(learn.NewPlugin(&learn.Options{Store: kept})))
			for range 2 {
				agent, host := a2e.Pipe()
				served := make(chan error, 1)
				go func() { served <- h.Serve(context.Background(), host) }()
				in := bufio.NewReader(agent)
				for _, line := range lines {
					_, err := io.WriteString(agent, line+"\n")
					require.NoError(t, err)
					answer, err := in.ReadString('\n')
					require.NoError(t, err)
					require.NotContains(t, answer, `"type":"error"`)
				}
				require.NoError(t, agent.Close())
				<-served
			}
			list, err := kept.Read(t.Context(), "a2e/learn/experience", 0, 10)
			require.NoError(t, err)
			require.Len(t, list, 2)
		})
	}
}

// The new score is the weighted mean of one dimension; feedback of the source env is recorded as
// that of an agent (A2E-D53, A2E-D66).
func TestScoreIsOfItsDimension(t *testing.T) {
	kv := store.NewMemory()
	c := connect(t, &learn.Options{Store: kv})
	score := func(list ...learn.Feedback) *float64 {
		resp, err := c.RecordFeedback(t.Context(), &learn.FeedbackRequest{Feedbacks: list}, nil)
		require.NoError(t, err)
		return resp.NewScore
	}
	one := func(dimension string, score, confidence float64) learn.Feedback {
		return learn.Feedback{Polarity: "neutral", Score: score, Dimension: dimension, Confidence: &confidence, Source: "env"}
	}
	require.Nil(t, score(one("a", 1, 0)))
	require.InDelta(t, 1, *score(one("a", 1, 1)), 0)
	require.InDelta(t, -1, *score(one("a", 0, 1), one("b", -1, 1)), 0)
	require.InDelta(t, 0.5, *score(one("a", 0, 0)), 0)
	records, err := kv.Read(t.Context(), "a2e/learn/feedback", 0, 0)
	require.NoError(t, err)
	require.Contains(t, string(records[0].Value), `"via":"agent"`)
	stats, err := c.GetStats(t.Context(), nil, nil)
	require.NoError(t, err)
	require.Empty(t, stats.Components)
}

// An agent with very many dimensions does not prevent the scores of others, and nothing but scores is kept without a store.
func TestScoresAreBoundedForEachOwner(t *testing.T) {
	h := a2etest.NewHost(t, nil, a2etest.Must(learn.NewPlugin(nil)))
	agent := func(id string) *learn.Client {
		return a2etest.Must(learn.NewClient(a2etest.Connect(t, h, &a2e.ClientOptions{AgentID: id})))
	}
	one, two := agent("one"), agent("two")
	before := kit.Heap()
	for i := range 20 {
		var r learn.FeedbackRequest
		for j := range 1000 {
			f := learn.Feedback{Polarity: learn.PolarityNeutral, Score: 1, Dimension: fmt.Sprint(i, "/", j), Comment: strings.Repeat("x", 1000)}
			r.Feedbacks = append(r.Feedbacks, f)
		}
		_, err := one.RecordFeedback(t.Context(), &r, nil)
		require.NoError(t, err)
	}
	require.Less(t, kit.Heap()-before, int64(10<<20))
	for _, want := range []float64{0.5, 0.25} {
		resp, err := two.RecordFeedback(t.Context(), feedback(func(f *learn.Feedback) { f.Score = 2*want - 0.5 }), nil)
		require.NoError(t, err)
		require.InDelta(t, want, *resp.NewScore, 0.001)
	}
}

// A refinement belongs to the principal that applied it: no other one sees it, rolls it back or displaces it.
func TestRefinementsAreOfTheirOwner(t *testing.T) {
	r := &refiner{value: 1}
	h := a2etest.NewHost(t, nil, a2etest.Must(learn.NewPlugin(&learn.Options{Refiner: r})))
	agent := func(id string) *learn.Client {
		return a2etest.Must(learn.NewClient(a2etest.Connect(t, h, &a2e.ClientOptions{AgentID: id})))
	}
	one, two := agent("one"), agent("two")
	change := &learn.RefinementApplyRequest{Proposal: json.RawMessage(`{"new_value":2}`)}
	applied, err := one.ApplyRefinement(t.Context(), change, nil)
	require.NoError(t, err)
	for range 101 {
		_, err = two.ApplyRefinement(t.Context(), change, nil)
		require.NoError(t, err)
	}
	history, err := two.ListRefinements(t.Context(), nil, nil)
	require.NoError(t, err)
	require.Len(t, history.Entries, 100)
	for _, entry := range history.Entries {
		require.NotContains(t, string(entry), applied.RefinementID)
	}
	rollback := &learn.RefinementRollbackRequest{RefinementID: applied.RefinementID}
	_, err = two.RollbackRefinement(t.Context(), rollback, nil)
	require.ErrorContains(t, err, "nothing to roll back")
	require.Equal(t, 2, r.value)
	_, err = agent("one").RollbackRefinement(t.Context(), rollback, nil)
	require.NoError(t, err, "in a later session, too")
	require.Equal(t, 1, r.value)
}

// A refiner whose first rollback fails or panics.
type hesitant struct {
	refiner
	undo func() error
}

func (h *hesitant) Apply(context.Context, json.RawMessage) (int64, int64, func(context.Context) error, error) {
	return 1, 0, func(context.Context) error { return h.undo() }, nil
}

// A rollback that failed can be repeated, also after a panic.
func TestFailedRollbackCanBeRepeated(t *testing.T) {
	h := &hesitant{}
	c := connect(t, &learn.Options{Refiner: h})
	applied, err := c.ApplyRefinement(t.Context(), nil, nil)
	require.NoError(t, err)
	rollback := &learn.RefinementRollbackRequest{RefinementID: applied.RefinementID}
	for _, undo := range []func() error{func() error { return errors.New("busy") }, func() error { panic("broken") }} {
		h.undo = undo
		_, err = c.RollbackRefinement(t.Context(), rollback, nil)
		require.ErrorIs(t, err, a2e.ErrRuntime)
	}
	h.undo = func() error { return nil }
	_, err = c.RollbackRefinement(t.Context(), rollback, nil)
	require.NoError(t, err)
}

// Feedback in a dimension above the bounds has no score rather than that of the last feedback.
func TestNoScoreAboveTheBounds(t *testing.T) {
	c := connect(t, &learn.Options{})
	for i := range 102 {
		r := feedback(func(f *learn.Feedback) { f.Dimension = fmt.Sprint(i) })
		r.Feedbacks = append(r.Feedbacks, r.Feedbacks[0])
		r.Feedbacks[1].Score = 0
		resp, err := c.RecordFeedback(t.Context(), r, nil)
		require.NoError(t, err)
		require.EqualValues(t, 2, resp.Recorded)
		if i < 100 {
			require.InDelta(t, 0.25, *resp.NewScore, 0)
		} else {
			require.Nil(t, resp.NewScore)
		}
	}
}

// Calls of tools that do not exist take no place from those that do.
func TestStatisticsNameExistingTools(t *testing.T) {
	recorder := &learn.Recorder{}
	set := a2etest.Must(tools.NewSet(nil))
	tools.AddTool(set, "real", "", func(context.Context, *a2e.Call, struct{}) (int, error) { return 1, nil }, nil)
	h := a2etest.NewHost(t, &a2e.HostOptions{Middleware: []a2e.Middleware{recorder.Middleware}},
		a2etest.Must(learn.NewPlugin(&learn.Options{Recorder: recorder})), set.Plugin())
	agent := a2etest.Connect(t, h, nil)
	for i := range 1001 {
		_, err := tools.CallAs[int](t.Context(), agent, fmt.Sprint("absent", i), nil, nil)
		require.ErrorIs(t, err, a2e.ErrUnknownTool)
	}
	_, err := tools.CallAs[int](t.Context(), agent, "real", nil, nil)
	require.NoError(t, err)
	c := a2etest.Must(learn.NewClient(agent))
	stats, err := c.GetStats(t.Context(), nil, nil)
	require.NoError(t, err)
	var names []string
	for _, p := range stats.Components {
		names = append(names, p.ComponentName)
	}
	require.Equal(t, []string{"real", "tool/call/req"}, names)
}

// Statistics count each call once: also one whose handler panics, and only for the plugin that answers.
func TestStatisticsCountEachCallOnce(t *testing.T) {
	recorder, isBroken := &learn.Recorder{}, true
	plugin := func(name string, fn func() error) *a2e.Plugin {
		return &a2e.Plugin{Name: name, Capability: "demo", Routes: []a2e.Route{
			a2e.NewRoute("demo/do/req", func(context.Context, *a2e.Call, *struct{}) (*struct{}, error) { return nil, fn() })}}
	}
	h := a2etest.NewHost(t, &a2e.HostOptions{Middleware: []a2e.Middleware{recorder.Middleware}, Logger: slog.New(slog.DiscardHandler)},
		a2etest.Must(learn.NewPlugin(&learn.Options{Recorder: recorder})),
		plugin("first", func() error { return a2e.ErrNextPlugin }),
		plugin("second", func() error {
			if isBroken {
				panic("broken")
			}
			return nil
		}))
	agent := a2etest.Connect(t, h, &a2e.ClientOptions{Types: []a2e.Type{a2e.TypeOf[struct{}]("demo/do/resp")}})
	_, err := a2e.CallAs[struct{}](t.Context(), agent, "demo/do/req", &struct{}{}, nil)
	require.ErrorIs(t, err, a2e.ErrRuntime)
	isBroken = false
	_, err = a2e.CallAs[struct{}](t.Context(), agent, "demo/do/req", &struct{}{}, nil)
	require.NoError(t, err)
	stats, err := a2etest.Must(learn.NewClient(agent)).GetStats(t.Context(), &learn.StatsRequest{ComponentName: "demo/do/req"}, nil)
	require.NoError(t, err)
	require.Len(t, stats.Components, 1)
	p := stats.Components[0]
	require.Equal(t, []int64{2, 1, 1}, []int64{p.CallsTotal, p.CallsSuccess, p.CallsFailed})
}

// Feedback and experience stay in the store for their retention, or without end.
func TestRetention(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for retention, want := range map[time.Duration][]int{0: {1, 0, 0}, time.Hour: {0, 0, 0}, -1: {1, 1, 1}} {
			kv := store.NewMemory()
			c := connect(t, &learn.Options{Store: kv, Retention: retention})
			_, err := c.RecordFeedback(t.Context(), feedback(nil), nil)
			require.NoError(t, err)
			_, err = c.RecordExperience(t.Context(), &learn.ExperienceRequest{Experiences: []learn.Experience{{Reward: 1}}}, nil)
			require.NoError(t, err)
			var got []int
			for _, age := range []time.Duration{29 * 24 * time.Hour, 2 * 24 * time.Hour, 1000 * 24 * time.Hour} {
				time.Sleep(age)
				for _, stream := range []string{"a2e/learn/feedback", "a2e/learn/experience"} {
					records, err := kv.Read(t.Context(), stream, 0, 0)
					require.NoError(t, err)
					got = append(got, len(records))
				}
				require.Equal(t, got[len(got)-2], got[len(got)-1])
				got = got[:len(got)-1]
			}
			require.Equal(t, want, got, retention)
		}
	})
}
