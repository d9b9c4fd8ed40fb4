// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package accp_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/accp"
)

// pipeline reads the scenario of five agents and ten hops of the draft's appendix A
// (ACCP-168): at each hop a frame, and the context that a session then holds.
func pipeline(t *testing.T) (hops []struct {
	Frame   string
	Context []string
}) {
	t.Helper()
	data, err := os.ReadFile("testdata/appendix_a.json")
	require.NoError(t, err)
	var file struct {
		Scenarios []struct {
			ID   string
			Hops []struct {
				Frame   string
				Context []string
			}
		}
	}
	require.NoError(t, json.Unmarshal(data, &file))
	for _, s := range file.Scenarios {
		if s.ID == "A5" {
			return s.Hops
		}
	}
	t.Fatal("no scenario A5")
	return nil
}

// A session that receives the frames of the pipeline makes a checkpoint after every
// done, and its context is at each hop what the scenario says (ACCP-086, ACCP-087,
// ACCP-088, ACCP-089, ACCP-D40, ACCP-D61).
func TestPipelineOfAppendixA(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		time.Sleep(time.Until(time.Unix(1714000000, 0)))
		s, err := accp.NewSession("harness", "", nil)
		require.NoError(t, err)
		for _, key := range []string{"q3_table", "summary_v1", "summary_v2"} {
			require.NoError(t, s.Put(t.Context(), accp.ScopeCold, key, accp.String("the raw result, long and never in a context"), 0))
		}
		made := 0
		var ids []string
		for i, hop := range pipeline(t) {
			v := s.ModelContext(1<<20, 0)
			require.False(t, v.IsCut, "hop %d", i+1)
			sum := len(v.Lines) - 1
			for _, line := range v.Lines {
				sum += accp.ApproxCounter{}.Count(line)
			}
			require.Equal(t, max(0, sum), v.Tokens)
			lines := v.Lines
			f := hop.Frame
			for k, id := range ids {
				f = strings.ReplaceAll(f, fmt.Sprint("$warm.cp", k+1), "$warm."+id)
			}
			r := receive(t, s, []byte(f))
			if r.Message.Intent == accp.IntentDone {
				made++
				ids = append(ids, r.Checkpoint.ID)
				require.NotNil(t, r.Checkpoint)
				require.Equal(t, []string{"done"}, r.Checkpoint.Trigger)
				require.LessOrEqual(t, r.Checkpoint.SummaryTokens, 100)
				require.Less(t, r.Checkpoint.HotTokensAfter, r.Checkpoint.HotTokensBefore)
			} else {
				require.Nil(t, r.Checkpoint)
			}
			require.NotContains(t, strings.Join(lines, ""), "raw result", "cold values stay out (ACCP-125)")
		}
		require.Equal(t, made, len(s.Checkpoints()))
		require.GreaterOrEqual(t, made, 4)
		v := s.ModelContext(150, 0)
		require.LessOrEqual(t, v.Tokens, 150)
		require.Empty(t, s.ModelContext(0, 0).Lines)
	})
}

// The five triggers (ACCP-089, ACCP-090, ACCP-091, ACCP-092, ACCP-093, ACCP-075, ACCP-076): done,
// hot state above 400 tokens, handoff, phase boundary, comp. Triggers that are due together make
// one checkpoint, which includes the frame.
func TestTriggers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for body, want := range map[string][]string{
			"done:x{k:1}":       {"done"},
			"esc:x{who:boss}":   {"esc"},
			"comp:checkpoint{}": {"comp"},
			"req:x{k:1}":        nil, "fail:x{k:1}": nil, "wait:x{}": nil, "sync:x{}": nil, "qry:x{}": nil,
			"ack:x{}": nil, "ping:x{}": nil, "pong:x{}": nil,
		} {
			s := session(t, nil)
			receive(t, s, frame("req:first{k:1}", 1))
			r := receive(t, s, frame(body, 2))
			if want == nil {
				require.Nil(t, r.Checkpoint, body)
				continue
			}
			require.Equal(t, want, r.Checkpoint.Trigger, body)
			require.Equal(t, 2, r.Checkpoint.Frames, body)
			// Sent messages count like received ones.
			s = session(t, nil)
			intent, rest, _ := strings.Cut(body, ":")
			op, _, _ := strings.Cut(rest, "{")
			sent, err := s.Send(t.Context(), msg(accp.Intent(intent), op))
			require.NoError(t, err)
			require.Equal(t, want, sent.Checkpoint.Trigger, body)
		}
		// Above 400 tokens (ACCP-090). A word of six letters is a token.
		words := func(n int) string { return "note:" + strings.Repeat("abcdef", n) }
		s := session(t, nil)
		r := receive(t, s, frame("req:x{"+words(300)+"}", 1))
		require.Nil(t, r.Checkpoint)
		before, err := s.Budget(t.Context())
		require.NoError(t, err)
		require.Greater(t, before.Hot.Used, 300)
		r = receive(t, s, frame("esc:x{"+words(120)+"}", 2))
		require.Equal(t, []string{"hot_tokens", "esc"}, r.Checkpoint.Trigger)
		require.Equal(t, 2, r.Checkpoint.Frames)
		// If adding would pass 500, what is there goes first.
		s = session(t, nil)
		receive(t, s, frame("req:x{"+words(300)+"}", 1))
		r = receive(t, s, frame("req:x{"+words(250)+"}", 2))
		require.Equal(t, []string{"hot_tokens"}, r.Checkpoint.Trigger)
		require.Equal(t, 1, r.Checkpoint.Frames)
		after, err := s.Budget(t.Context())
		require.NoError(t, err)
		require.Greater(t, after.Hot.Used, 250)
		require.Less(t, after.Hot.Used, 400)
		// A frame larger than hot state, alone: one checkpoint with it.
		s = session(t, nil)
		r = receive(t, s, frame("req:x{"+words(600)+"}", 1))
		require.Equal(t, []string{"hot_tokens"}, r.Checkpoint.Trigger)
		require.Equal(t, 1, r.Checkpoint.Frames)
		// The harness signals the end of a phase (ACCP-092).
		cp, err := s.Checkpoint(t.Context())
		require.NoError(t, err)
		require.Equal(t, []string{"phase"}, cp.Trigger)
		require.Zero(t, cp.Frames)
		require.Empty(t, cp.Facts)
		require.Empty(t, cp.Summary)
		// None of it without.
		s = session(t, &accp.SessionOptions{DisableAutoCheckpoint: true})
		require.Nil(t, receive(t, s, frame("done:x{"+words(600)+"}", 1)).Checkpoint)
	})
}

// The six steps (ACCP-094, ACCP-095, ACCP-096, ACCP-097, ACCP-118, ACCP-119): freeze, facts, summary, warm,
// cold, reset.
func TestSixSteps(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := session(t, &accp.SessionOptions{DisableAutoCheckpoint: true})
		frames := []string{
			string(frame("req:plan{k:1|z:{b:2,a:{c:x}}|e:{}}", 1)),
			string(frame("ack:plan{ignored:1}", 2)),
			string(frame("done:plan{k:2|schema:TA|t:x|pri:medium|src:$k}", 3)),
		}
		require.NoError(t, s.Put(t.Context(), accp.ScopeHot, "k", accp.String("resolved"), 0))
		for _, f := range frames {
			receive(t, s, []byte(f))
		}
		before, err := s.Budget(t.Context())
		require.NoError(t, err)
		cp, err := s.Checkpoint(t.Context())
		require.NoError(t, err)
		// Facts (ACCP-D41): maps are walked with ascending keys, an empty map is a value, the
		// defaults of the schema and acks have no facts, references stay, and a later fact replaces
		// the earlier one at the end.
		require.Equal(t, []accp.Fact{
			{Entity: "a", Relationship: "plan.e", Value: "{}"},
			{Entity: "a", Relationship: "plan.z.a.c", Value: "x"},
			{Entity: "a", Relationship: "plan.z.b", Value: "2"},
			{Entity: "a", Relationship: "plan.k", Value: "2"},
			{Entity: "a", Relationship: "plan.source", Value: "$k"},
			{Entity: "a", Relationship: "plan.t", Value: "x"},
		}, cp.Facts)
		require.Equal(t, "a:plan.e={}\na:plan.z.a.c=x\na:plan.z.b=2\na:plan.k=2\na:plan.source=$k\na:plan.t=x", cp.Summary)
		require.Equal(t, before.Hot.Used, cp.HotTokensBefore)
		require.Equal(t, 3, cp.Frames)

		// Warm and cold state hold the rest, and hot state refers to it.
		v, err := s.Resolve(t.Context(), "warm."+cp.ID)
		require.NoError(t, err)
		require.True(t, v.Equal(accp.String(cp.Summary)))
		v, err = s.Resolve(t.Context(), "cold."+cp.ID)
		require.NoError(t, err)
		for i, x := range v.Elements() {
			require.True(t, x.Equal(accp.String(frames[i])), "the frames are there as they came")
		}
		require.Equal(t, 3, v.Len())
		v, err = s.Resolve(t.Context(), "cold."+cp.ID+"_facts")
		require.NoError(t, err)
		require.Equal(t, 6, v.Len())
		after, err := s.Budget(t.Context())
		require.NoError(t, err)
		require.Equal(t, accp.ApproxCounter{}.Count("$warm."+cp.ID), after.Hot.Used)
		require.Equal(t, after.Hot.Used, cp.HotTokensAfter)
		require.Equal(t, []int{400, 500}, []int{after.Hot.Trigger, after.Hot.Max})
		require.Len(t, after.Warm, 1)
		require.Equal(t, []any{cp.ID, cp.SummaryTokens, 200}, []any{after.Warm[0].ID, after.Warm[0].Used, after.Warm[0].Max})
		require.Equal(t, []int{2, 0}, []int{after.Cold.Entries, after.Cold.Max})
		require.EqualValues(t, 1, s.Stats().Checkpoints)
	})
}

// A split message is one entry of the history, its frames joined by line feeds.
func TestCheckpointOfParts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := session(t, &accp.SessionOptions{DisableAutoCheckpoint: true})
		m := msg("req", "x")
		for i := range 60 {
			m.Params = append(m.Params, text(fmt.Sprintf("note%02d", i), "some words about the task at hand"))
		}
		sent, err := s.Send(t.Context(), m)
		require.NoError(t, err)
		cp, err := s.Checkpoint(t.Context())
		require.NoError(t, err)
		require.Equal(t, 1, cp.Frames)
		require.Len(t, cp.Facts, 60)
		v, err := s.Resolve(t.Context(), "cold."+cp.ID)
		require.NoError(t, err)
		require.Equal(t, 1, v.Len())
		for _, x := range v.Elements() {
			got, _ := x.Text()
			require.Equal(t, len(sent.Frames), len(strings.Split(got, "\n")))
		}
	})
}

// The default summary (ACCP-095, ACCP-D42): the newest facts first, a long value cut
// to its longest prefix, a line that does not fit skipped and older ones still tried.
func TestDefaultSummary(t *testing.T) {
	fact := func(key, value string) accp.Fact {
		return accp.Fact{Entity: "a", Relationship: "o." + key, Value: value}
	}
	require.Empty(t, accp.DefaultSummary(nil, nil))
	require.Equal(t, "a:o.k=v", accp.DefaultSummary([]accp.Fact{fact("k", "v")}, nil))
	words := strings.Repeat("abcdef ", 60)
	got := accp.DefaultSummary([]accp.Fact{fact("k", words)}, nil)
	require.True(t, strings.HasPrefix(got, "a:o.k=abcdef"))
	require.True(t, strings.HasSuffix(got, ".."))
	n := accp.ApproxCounter{}.Count(got)
	require.LessOrEqual(t, n, 25)
	longer := strings.TrimSuffix(got, "..") + words[len(got)-2-len("a:o.k="):][:1] + ".."
	require.Greater(t, accp.ApproxCounter{}.Count(longer), 25, "the longest prefix that fits")

	var facts []accp.Fact
	for i := range 20 {
		facts = append(facts, fact(fmt.Sprintf("k%c", 'a'+i), strings.Repeat("abcdef", 5)))
	}
	got = accp.DefaultSummary(facts, nil)
	require.LessOrEqual(t, accp.ApproxCounter{}.Count(got), 100)
	require.True(t, strings.HasSuffix(got, "a:o.kt="+strings.Repeat("abcdef", 5)), "the newest is there")
	require.NotContains(t, got, "o.ka=")

	// With a counter of one token a byte, a name alone may be too long.
	bytes := accp.TokenCounterFunc(func(s string) int { return len(s) })
	long := accp.Fact{Entity: strings.Repeat("e", 40), Relationship: "o.k", Value: "v"}
	require.Equal(t, strings.Repeat("e", 40)+":o.k=..", accp.DefaultSummary([]accp.Fact{long}, bytes))
	long.Value = ""
	require.Equal(t, strings.Repeat("e", 40)+":o.k=..", accp.DefaultSummary([]accp.Fact{long}, bytes))
	huge := accp.Fact{Entity: strings.Repeat("e", 99), Relationship: "o.k", Value: "v"}
	require.Equal(t, "a:o.old=1\na:o.new=2",
		accp.DefaultSummary([]accp.Fact{fact("old", "1"), huge, fact("new", "2")}, bytes), "skipped, and older ones tried")
	require.Equal(t, "a:o.k=éééééééé..", accp.DefaultSummary([]accp.Fact{fact("k", strings.Repeat("é", 30))},
		accp.TokenCounterFunc(func(s string) int { return 5 * strings.Count(s, "é") })), "never half a character")
}

// A Summarizer refines a checkpoint while frames pass. An error, a panic, a late
// result and one of another size change nothing (ACCP-D43, ACCP-169).
func TestSummarizerDelaysNoFrame(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		type summarize = func(context.Context, []accp.Fact, []string, int) (string, error)
		var summarizer atomic.Pointer[summarize]
		use := func(f summarize) { summarizer.Store(&f) }
		s := session(t, &accp.SessionOptions{Summaries: accp.SummaryOptions{
			Summarizer: func(ctx context.Context, facts []accp.Fact, frames []string, maxTokens int) (string, error) {
				return (*summarizer.Load())(ctx, facts, frames, maxTokens)
			}}, Logger: slog.New(slog.DiscardHandler)})
		n := int64(0)
		checkpoint := func() *accp.Checkpoint {
			n++
			start := time.Now()
			cp := receive(t, s, frame(fmt.Sprintf("done:x{k:%d}", n), n)).Checkpoint
			require.Zero(t, time.Since(start), "no frame waits")
			require.Equal(t, fmt.Sprintf("a:x.k=%d", n), cp.Summary)
			return cp
		}
		last := func() accp.Checkpoint {
			all := s.Checkpoints()
			return all[len(all)-1]
		}
		use(func(_ context.Context, facts []accp.Fact, frames []string, maxTokens int) (string, error) {
			require.Equal(t, []accp.Fact{{Entity: "a", Relationship: "x.k", Value: "1"}}, facts)
			require.Len(t, frames, 1)
			require.Equal(t, 100, maxTokens)
			time.Sleep(time.Second)
			return "all is well", nil
		})
		cp := checkpoint()
		require.Nil(t, last().Refined)
		time.Sleep(2 * time.Second)
		refined := last().Refined
		require.Equal(t, "all is well", refined.Summary)
		require.Equal(t, cp.ID, last().ID)
		for id, want := range map[string]string{cp.ID: cp.Summary, refined.ID: refined.Summary} {
			v, err := s.Resolve(t.Context(), "warm."+id)
			require.NoError(t, err)
			require.True(t, v.Equal(accp.String(want)), "both ids stay valid")
		}

		failures := map[string]func(context.Context, []accp.Fact, []string, int) (string, error){
			"error": func(context.Context, []accp.Fact, []string, int) (string, error) { return "", errors.New("no model") },
			"panic": func(context.Context, []accp.Fact, []string, int) (string, error) { panic("oops") },
			"long": func(context.Context, []accp.Fact, []string, int) (string, error) {
				return strings.Repeat("word ", 200), nil
			},
			"empty": func(context.Context, []accp.Fact, []string, int) (string, error) { return "", nil },
			"bytes": func(context.Context, []accp.Fact, []string, int) (string, error) { return "\xff", nil },
			"slow": func(ctx context.Context, _ []accp.Fact, _ []string, _ int) (string, error) {
				<-ctx.Done()
				return "", ctx.Err()
			},
		}
		for name, f := range failures {
			use(f)
			checkpoint()
			time.Sleep(31 * time.Second)
			require.Nil(t, last().Refined, name)
		}

		// One call runs at a time, and at most eight checkpoints wait.
		stuck, calls := make(chan struct{}), atomic.Int32{}
		use(func(context.Context, []accp.Fact, []string, int) (string, error) {
			calls.Add(1)
			<-stuck
			return "late", nil
		})
		for range 12 {
			checkpoint()
			synctest.Wait()
		}
		require.EqualValues(t, 1, calls.Load())
		close(stuck)
		synctest.Wait()
		require.EqualValues(t, 9, calls.Load())
		// The end of the session ends the call.
		isOver := make(chan struct{})
		use(func(ctx context.Context, _ []accp.Fact, _ []string, _ int) (string, error) {
			<-ctx.Done()
			close(isOver)
			return "", ctx.Err()
		})
		checkpoint()
		synctest.Wait()
		require.NoError(t, s.End(t.Context(), nil))
		<-isOver
	})
}

// A Summarizer that ends its goroutine has failed. The next checkpoint is refined.
func TestExitOfSummarizer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		calls := 0
		s := session(t, &accp.SessionOptions{Logger: slog.New(slog.DiscardHandler), Summaries: accp.SummaryOptions{
			Summarizer: func(context.Context, []accp.Fact, []string, int) (string, error) {
				if calls++; calls == 1 {
					runtime.Goexit()
				}
				return "all is well", nil
			}}})
		for n := range int64(2) {
			receive(t, s, frame(fmt.Sprintf("done:x{k:%d}", n), n+1))
			synctest.Wait()
		}
		require.Nil(t, s.Checkpoints()[0].Refined)
		require.NotNil(t, s.Checkpoints()[1].Refined)
	})
}

// The tokens of all frames are counted, those of announcements, too.
func TestTokensOfAnnouncementsAreCounted(t *testing.T) {
	s := session(t, nil)
	id := receive(t, s, frame("done:x{k:v}", 1)).Checkpoint.ID
	sent, err := s.Send(t.Context(), msg("req", "review", accp.Param{Key: "source", Value: accp.Ref("warm." + id)}))
	require.NoError(t, err)
	require.Len(t, sent.Frames, 2)
	require.EqualValues(t, 2, s.Stats().Sent)
	require.EqualValues(t, sent.Budget[0].Total+sent.Budget[1].Total, s.Stats().TokensOut)
}

// Sides with different counters and summarizers give an announced id the same text. An id that was
// forged to mean another text means nothing (ACCP-D40, ACCP-D70).
func TestCheckpointsAreTheSameOnBothSides(t *testing.T) {
	planner, err := accp.NewSession("planner", "s1", &accp.SessionOptions{
		TokenCounter: accp.TokenCounterFunc(func(text string) int { return len(text) / 5 })})
	require.NoError(t, err)
	worker, err := accp.NewSession("worker", "s1", &accp.SessionOptions{Summaries: accp.SummaryOptions{AdoptFromPeer: true}})
	require.NoError(t, err)
	sent, err := planner.Send(t.Context(), msg("done", "plan", text("note", strings.Repeat("abcdef", 30))))
	require.NoError(t, err)
	cp := sent.Checkpoint
	got, err := worker.Receive(t.Context(), sent.Frames[0])
	require.NoError(t, err)
	require.Equal(t, cp.Hash, got.Checkpoint.Hash)
	require.NotEqual(t, cp.ID, got.Checkpoint.ID, "another counter, another summary")
	sent, err = planner.Send(t.Context(), msg("req", "review", accp.Param{Key: "source", Value: accp.Ref("warm." + cp.ID)}))
	require.NoError(t, err)
	require.Len(t, sent.Frames, 2, "the announcement first")
	for _, f := range sent.Frames {
		got, err = worker.Receive(t.Context(), f)
		require.NoError(t, err)
	}
	require.Equal(t, cp.Summary, got.Message.Params.Text("source"))

	sent, err = planner.Send(t.Context(), msg("done", "plan", text("note", "other")))
	require.NoError(t, err)
	receive(t, worker, sent.Frames[0])
	other := sent.Checkpoint
	sent, err = planner.Send(t.Context(), msg("req", "review", accp.Param{Key: "source", Value: accp.Ref("warm.s1." + other.ID)}))
	require.NoError(t, err)
	require.Len(t, sent.Frames, 2, "the announcement of a reference that names its own session")
	receive(t, worker, sent.Frames[0])
	require.Equal(t, other.Summary, receive(t, worker, sent.Frames[1]).Message.Params.Text("source"))

	refined := worker.Checkpoints()[0].Refined
	require.NotNil(t, refined, "the summary of the peer is adopted")
	require.Equal(t, cp.ID, refined.ID)
	_, err = worker.Announce(t.Context(), "cp00000000")
	require.ErrorIs(t, err, accp.ErrRefNotFound)
	require.ErrorIs(t, worker.Put(t.Context(), accp.ScopeWarm, cp.ID, accp.String("x"), 0), accp.ErrInvalidType)
}

// The view grows by one line a message, and each answer begins with the last one unless it is cut. It
// is given up over its bound (ACCP-D68, ACCP-D69).
func TestModelContextIsStable(t *testing.T) {
	s := session(t, nil)
	last, cuts := accp.ContextView{}, 0
	for i := range int64(300) {
		intent := []string{"req", "wait", "done", "ack"}[i%4]
		receive(t, s, frame(fmt.Sprintf("%s:x{k:%d}", intent, i), i+1))
		v := s.ModelContext(200, 100)
		require.LessOrEqual(t, v.Tokens, 200)
		if v.IsCut {
			cuts++
			require.LessOrEqual(t, v.Tokens, 100)
		} else {
			require.Equal(t, len(last.Lines), v.Stable)
			require.True(t, slices.Equal(last.Lines, v.Lines[:v.Stable]))
		}
		last = v
	}
	require.Greater(t, cuts, 5)
	require.Less(t, cuts, 60)
	for i := range int64(80) {
		receive(t, s, frame("done:x{k:"+strings.Repeat("x", 20000)+"}", 301+i))
	}
	v := s.ModelContext(1<<20, 200)
	require.False(t, v.IsCut)
	require.Less(t, v.Stable, len(last.Lines))
	require.Less(t, v.Tokens, 1000, "begun again from summaries")
}
