// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package accp_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/fivewire/fivewire/accp"
	"github.com/fivewire/fivewire/accp/profile"
	"github.com/fivewire/fivewire/internal/race"
)

// drawLong draws a string or an array that may be longer than a frame.
func drawLong(t *rapid.T) accp.Value {
	long := rapid.StringOfN(rapid.SampledFrom([]rune("ab7._ ,|é\n\u200b😀")), 0, 600, -1)
	if rapid.Bool().Draw(t, "isText") {
		return accp.String(rapid.OneOf(long, rapid.StringOfN(rapid.RuneFrom([]rune("12345")), 100, 1500, -1)).Draw(t, "text"))
	}
	var list []accp.Value
	for _, s := range rapid.SliceOfN(rapid.StringN(0, 20, -1), 0, 60).Draw(t, "list") {
		list = append(list, accp.String(s))
	}
	return accp.Array(list...)
}

// Messages above the bytes and values of a frame travel in parts within these limits, and arrive equal
// (ACCP-D73).
func TestLongMessagesArriveInParts(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		limits := accp.FrameLimits{MaxFrame: rapid.IntRange(200, 500).Draw(t, "frame"), MaxValues: rapid.IntRange(14, 60).Draw(t, "values")}
		options := accp.SessionOptions{FrameLimits: limits, Budget: accp.BudgetOff, MaxMemory: -1}
		a, err := accp.NewSession("server", "s1", &options)
		require.NoError(t, err)
		b, err := accp.NewSession("peer", "s1", &options)
		require.NoError(t, err)
		m := msg("req", "review")
		if rapid.Bool().Draw(t, "schema") {
			m.Params = append(m.Params, text("schema", "TC"))
		}
		for i := range rapid.IntRange(1, 4).Draw(t, "params") {
			m.Params = append(m.Params, accp.Param{Key: fmt.Sprint([]string{"a", "result", "t", "z"}[i]), Value: drawLong(t)})
		}
		sent, err := a.Send(context.Background(), m)
		if err != nil {
			require.ErrorIs(t, err, accp.ErrBudgetExceeded)
			require.EqualValues(t, 0, a.Stats().Sent, "no number is used")
			return
		}
		for i, frame := range sent.Frames {
			require.LessOrEqual(t, len(frame), limits.MaxFrame)
			r, err := b.Receive(context.Background(), frame)
			require.NoError(t, err, "%s", frame)
			if i < len(sent.Frames)-1 {
				require.Equal(t, accp.OutcomePending, r.Outcome)
				continue
			}
			for _, p := range m.Params {
				got, _ := r.Message.Params.Get(p.Key)
				require.True(t, got.Equal(p.Value), p.Key)
			}
			require.Empty(t, r.Message.Meta.Ext)
		}
	})
}

// Results of tools and tables arrive whole over both transports, and the texts that the session keeps of
// them fit its bounds (ACCP-D73).
func TestLongResults(t *testing.T) {
	price, err := accp.Decimal("19.95")
	require.NoError(t, err)
	var rows []accp.Value
	count, pages := 10_000, 2800
	if race.Enabled {
		count, pages = 2000, 600
	}
	for i := range count {
		rows = append(rows, accp.Array(accp.Int(int64(i)), accp.String("name"), accp.Bool(true), accp.Null(), accp.Int(7), price))
	}
	page := strings.Repeat("one page of text. ", 80)
	values := map[string]accp.Value{
		"page": accp.String(page), "long": accp.String(strings.Repeat(page, pages)), "table": accp.Array(rows...)}
	d := newDesk(t, nil)
	ran := 0
	d.Handle(accp.IntentReq, profile.OpTool, profile.NewToolHandler(map[string]profile.ToolFunc{
		"get": func(_ context.Context, p accp.Params) (accp.Value, error) {
			ran++
			return values[p.Text("name")], nil
		}}))
	for name, c := range map[string]caller{"http": d.http(t, nil), "websocket": d.dial(t, nil)} {
		for what, v := range values {
			ran = 0
			call := msg("req", "tool", text("schema", "TC"), text("tool_name", "get"),
				accp.Param{Key: "arguments", Value: accp.Map(text("name", what))})
			r, err := c.Call(t.Context(), call, nil)
			require.NoError(t, err, "%s %s", name, what)
			got, _ := r.Params.Get("result")
			require.True(t, got.Equal(v), "%s %s", name, what)
			require.Equal(t, 1, ran)
			r, err = c.Call(t.Context(), msg("req", "echo", accp.Param{Key: "data", Value: v}), nil)
			require.NoError(t, err, "%s %s", name, what)
			got, _ = r.Params.Get("data")
			require.True(t, got.Equal(v), "%s %s", name, what)
		}
	}
}

// A message above the token limits is sent, counted, and logged once a session; enforced limits refuse it
// without using a number (ACCP-D37).
func TestTokenLimits(t *testing.T) {
	var log bytes.Buffer
	long := msg("req", "b", text("k", strings.Repeat("words ", 400)))
	s := session(t, &accp.SessionOptions{Logger: slog.New(slog.NewTextHandler(&log, nil))})
	for range 3 {
		sent, err := s.Send(t.Context(), long)
		require.NoError(t, err)
		require.Contains(t, sent.Budget[0].Hard, "total")
	}
	require.EqualValues(t, 3, s.Stats().OverBudget)
	require.Equal(t, 1, strings.Count(log.String(), "above the token limit"))
	s = session(t, &accp.SessionOptions{Budget: accp.BudgetEnforce})
	for _, m := range []*accp.Message{long, msg("req", "b", text("k", strings.Repeat("w", 70_000)))} {
		_, err := s.Send(t.Context(), m)
		require.ErrorIs(t, err, accp.ErrBudgetExceeded)
	}
	sent, err := s.Send(t.Context(), msg("req", "b"))
	require.NoError(t, err)
	require.EqualValues(t, 1, sent.Message.Meta.Seq.N)
}

// A message that no frames can carry is refused before a number is used (ACCP-D73).
func TestMessagesThatNoFramesCarry(t *testing.T) {
	s := session(t, &accp.SessionOptions{MaxMemory: -1})
	var entries []accp.Param
	for i := range 5000 {
		entries = append(entries, accp.Param{Key: fmt.Sprint("k", i), Value: accp.Int(1)})
	}
	for name, v := range map[string]accp.Value{
		"map":   accp.Map(entries...),
		"array": accp.Array(accp.String(strings.Repeat("x", 70_000))),
		"text":  accp.String(strings.Repeat("x", 4<<20)),
	} {
		_, err := s.Send(t.Context(), msg("req", "b", accp.Param{Key: "k", Value: v}))
		require.ErrorIs(t, err, accp.ErrBudgetExceeded, name)
		require.ErrorIs(t, err, accp.ErrTooLarge, name)
	}
	require.EqualValues(t, 0, s.Stats().Sent)
}

// A part that continues no value is refused, and the message with it (ACCP-D73).
func TestContinuationsThatAreRefused(t *testing.T) {
	first := func(body string) []byte { return frame(body, 1, "part:1/3") }
	for name, frames := range map[string][][]byte{
		"first part":     {frame("req:b{k:x}", 1, "cont:true", "part:1/2")},
		"another key":    {first("req:b{k:x}"), frame("req:b{l:y}", 2, "cont:true", "part:2/3")},
		"not the last":   {first("req:b{k:x|l:x}"), frame("req:b{k:y}", 2, "cont:true", "part:2/3")},
		"two params":     {first("req:b{k:x}"), frame("req:b{k:y|l:z}", 2, "cont:true", "part:2/3")},
		"no param":       {first("req:b{k:x}"), frame("req:b{}", 2, "cont:true", "part:2/3")},
		"another type":   {first("req:b{k:x}"), frame("req:b{k:[y]}", 2, "cont:true", "part:2/3")},
		"a number":       {first("req:b{k:1}"), frame("req:b{k:2}", 2, "cont:true", "part:2/3")},
		"a map":          {first("req:b{k:{a:1}}"), frame("req:b{k:{b:1}}", 2, "cont:true", "part:2/3")},
		"false":          {first("req:b{k:x}"), frame("req:b{k:y}", 2, "cont:false", "part:2/3")},
		"the schema":     {first("req:b{schema:TC}"), frame("req:b{schema:TC}", 2, "cont:true", "part:2/3")},
		"a value before": {first("req:b{k:x}"), frame("req:b{}", 2, "part:2/3"), frame("req:b{k:y}", 3, "cont:true", "part:3/3")},
	} {
		s := session(t, nil)
		for _, f := range slices.Clone(frames[:len(frames)-1]) {
			receive(t, s, f)
		}
		_, err := s.Receive(t.Context(), frames[len(frames)-1])
		require.ErrorIs(t, err, accp.ErrParse, name)
		r := receive(t, s, frame("req:b{}", int64(len(frames)+1)))
		require.Equal(t, accp.OutcomeDelivered, r.Outcome, name)
		require.Zero(t, r.DroppedParts, "%s: the group is gone", name)
	}
}
