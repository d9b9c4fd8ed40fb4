// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package accp_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
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
		for i, hop := range pipeline(t) {
			lines, tokens := s.ModelContext(1 << 20)
			lines = append(lines, hop.Frame)
			require.GreaterOrEqual(t, len(lines), len(hop.Context), "hop %d", i+1)
			require.Equal(t, hop.Context, lines[len(lines)-len(hop.Context):], "hop %d", i+1)
			require.Equal(t, accp.ApproxCounter{}.Count(strings.Join(lines[:len(lines)-1], "\n")), tokens)
			r := receive(t, s, []byte(hop.Frame))
			if r.Message.Intent == accp.IntentDone {
				made++
				require.NotNil(t, r.Checkpoint)
				require.Equal(t, []string{"done"}, r.Checkpoint.Trigger)
				require.Equal(t, fmt.Sprint("cp", made), r.Checkpoint.ID)
				require.LessOrEqual(t, r.Checkpoint.SummaryTokens, 100)
				require.Less(t, r.Checkpoint.TokensAfter, r.Checkpoint.TokensBefore)
			} else {
				require.Nil(t, r.Checkpoint)
			}
			require.NotContains(t, strings.Join(lines, ""), "raw result", "cold values stay out (ACCP-125)")
		}
		require.Equal(t, made, len(s.Checkpoints()))
		require.GreaterOrEqual(t, made, 4)
		lines, tokens := s.ModelContext(150)
		require.LessOrEqual(t, tokens, 150)
		require.NotEmpty(t, lines)
		lines, tokens = s.ModelContext(0)
		require.Empty(t, lines)
		require.Zero(t, tokens)
	})
}

// The five triggers (ACCP-089, ACCP-090, ACCP-091, ACCP-092, ACCP-093, ACCP-075,
// ACCP-076): done, hot state above
// 400 tokens, handoff, phase boundary, comp. What is due together makes one
// checkpoint, which includes the frame.
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
			// What is sent counts as what comes in.
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
		// The harness says when a phase ends (ACCP-092).
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
		// Facts: maps are walked with ascending keys, an empty map is a value, the
		// defaults of the schema and acks say nothing new, references stay, and a
		// later fact replaces the earlier one at the end (ACCP-D41).
		require.Equal(t, []accp.Fact{
			{Entity: "a", Relationship: "plan.e", Value: "{}"},
			{Entity: "a", Relationship: "plan.z.a.c", Value: "x"},
			{Entity: "a", Relationship: "plan.z.b", Value: "2"},
			{Entity: "a", Relationship: "plan.k", Value: "2"},
			{Entity: "a", Relationship: "plan.source", Value: "$k"},
			{Entity: "a", Relationship: "plan.t", Value: "x"},
		}, cp.Facts)
		require.Equal(t, "a:plan.e={};a:plan.z.a.c=x;a:plan.z.b=2;a:plan.k=2;a:plan.source=$k;a:plan.t=x", cp.Summary)
		require.Equal(t, before.Hot.Used, cp.TokensBefore)
		require.Equal(t, 3, cp.Frames)

		// Warm and cold state hold the rest, and hot state refers to it.
		v, err := s.Resolve(t.Context(), "warm.cp1")
		require.NoError(t, err)
		require.True(t, v.Equal(accp.String(cp.Summary)))
		v, err = s.Resolve(t.Context(), "cold.cp1")
		require.NoError(t, err)
		for i, x := range v.Elements() {
			require.True(t, x.Equal(accp.String(frames[i])), "the frames are there as they came")
		}
		require.Equal(t, 3, v.Len())
		v, err = s.Resolve(t.Context(), "cold.cp1_facts")
		require.NoError(t, err)
		require.Equal(t, 6, v.Len())
		after, err := s.Budget(t.Context())
		require.NoError(t, err)
		require.Equal(t, accp.ApproxCounter{}.Count("$warm.cp1"), after.Hot.Used)
		require.Equal(t, after.Hot.Used, cp.TokensAfter)
		require.Equal(t, accp.HotBudget{Used: after.Hot.Used, Trigger: 400, Max: 500}, after.Hot)
		require.Equal(t, []accp.WarmBudget{{ID: "cp1", Used: cp.SummaryTokens, Max: 200}}, after.Warm)
		require.Equal(t, accp.ColdBudget{Entries: 2}, after.Cold)
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
		v, err := s.Resolve(t.Context(), "cold.cp1")
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
	require.Equal(t, "a:o.old=1;a:o.new=2",
		accp.DefaultSummary([]accp.Fact{fact("old", "1"), huge, fact("new", "2")}, bytes), "skipped, and older ones tried")
	require.Equal(t, "a:o.k=é..", accp.DefaultSummary([]accp.Fact{fact("k", strings.Repeat("é", 3))},
		accp.TokenCounterFunc(func(s string) int { return 13 * strings.Count(s, "é") })), "never half a character")
}

// A Summarizer may write the summary; if it fails, panics, takes too long or writes too
// much, the default one is used and nothing is lost (ACCP-D43, ACCP-169).
func TestSummarizer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var do func(ctx context.Context, facts []accp.Fact, frames []string, most int) (string, error)
		s := session(t, &accp.SessionOptions{DisableAutoCheckpoint: true,
			Summarizer: accp.SummarizerFunc(func(ctx context.Context, facts []accp.Fact, frames []string, most int) (string, error) {
				return do(ctx, facts, frames, most)
			})})
		n := int64(0)
		checkpoint := func() *accp.Checkpoint {
			n++
			receive(t, s, frame(fmt.Sprintf("req:x{k:%d}", n), n))
			begun := time.Now()
			cp, err := s.Checkpoint(t.Context())
			require.NoError(t, err)
			require.LessOrEqual(t, time.Since(begun), 10*time.Second)
			return cp
		}
		do = func(_ context.Context, facts []accp.Fact, frames []string, most int) (string, error) {
			require.Len(t, facts, 1)
			require.Len(t, frames, 1)
			require.Equal(t, 100, most)
			facts[0].Value = "changed" // it is given copies
			return "all is well", nil
		}
		cp := checkpoint()
		require.NoError(t, cp.SummarizeErr)
		require.Equal(t, "all is well", cp.Summary)
		require.Equal(t, "1", cp.Facts[0].Value)

		failures := map[string]func(context.Context, []accp.Fact, []string, int) (string, error){
			"error": func(context.Context, []accp.Fact, []string, int) (string, error) { return "", errors.New("no model") },
			"panic": func(context.Context, []accp.Fact, []string, int) (string, error) { panic("oops") },
			"long": func(context.Context, []accp.Fact, []string, int) (string, error) {
				return strings.Repeat("word ", 200), nil
			},
			"bytes": func(context.Context, []accp.Fact, []string, int) (string, error) { return "\xff", nil },
			"slow": func(ctx context.Context, _ []accp.Fact, _ []string, _ int) (string, error) {
				<-ctx.Done()
				return "", ctx.Err()
			},
		}
		for name, f := range failures {
			do = f
			cp = checkpoint()
			require.Error(t, cp.SummarizeErr, name)
			require.Equal(t, fmt.Sprintf("a:x.k=%d", n), cp.Summary, name)
			synctest.Wait()
		}

		// While it works, frames wait and everything else goes on. One that does
		// not return is not called again, so at most one call is left behind.
		stuck, asked := make(chan struct{}), atomic.Int32{}
		do = func(context.Context, []accp.Fact, []string, int) (string, error) {
			asked.Add(1)
			<-stuck
			return "", nil
		}
		done := make(chan *accp.Checkpoint)
		go func() { done <- checkpoint() }()
		time.Sleep(time.Second)
		require.NotZero(t, s.Stats().Received)
		_, err := s.Budget(t.Context())
		require.NoError(t, err)
		require.False(t, s.IsCancelled("c"))
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		_, err = s.Receive(ctx, frame("req:x{}", n+1))
		require.ErrorIs(t, err, accp.ErrInternal)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		cancel()
		require.ErrorIs(t, (<-done).SummarizeErr, context.DeadlineExceeded)
		for range 3 {
			require.ErrorContains(t, checkpoint().SummarizeErr, "still busy")
		}
		require.EqualValues(t, 1, asked.Load())
		close(stuck)
		synctest.Wait()
		require.NoError(t, checkpoint().SummarizeErr)
		require.EqualValues(t, 2, asked.Load())
	})
}
