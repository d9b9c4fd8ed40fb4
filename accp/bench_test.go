// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package accp_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/accp"
	"github.com/fivewire/fivewire/internal/bench/pair"
	"github.com/fivewire/fivewire/internal/race"
	"github.com/fivewire/fivewire/store"
)

const benchMeta = "[mid:49679033e07c,seq:3,ts:1714000000,cid:corr123,sid:abc-session]"

// The messages of the benchmarks, in canonical form.
var benchFrames = []struct{ name, frame string }{
	{"schedule", `@planner>req:schedule{pri:high|task:impl_auth_module|when:sprint_14|who:dev_team}` + benchMeta},
	{"findings", `@research>done:analyze{d:q3_sales|f:[rev\:-12%QoQ,ent_seg\:declining,churn\:+3.2%]|nx:strategy/plan}` + benchMeta},
	{"toolcall", `@orchestrator>req:tool{args:{max:5,q:ACCP}|cache:false|pri:urgent|retry:3|schema:TC|tool:web_search}` + benchMeta},
	{"transaction", `@payments>req:transaction{acc:acct_9876|amt:142.5|retryable:true|schema:TX|txn:txn_001}` + benchMeta},
}

const benchTask = `@planner>req:schedule{asgn:dev_team|dead:sprint_14|schema:TA|task:impl_auth_module}` + benchMeta

func TestFloor(t *testing.T) {
	var f floorFrame
	for _, s := range benchFrames {
		require.NoError(t, floorParse([]byte(s.frame), &f))
		var c accp.Codec
		m, err := c.DecodeRaw([]byte(s.frame))
		require.NoError(t, err)
		written, ok := floorAppend(nil, floorOf(m))
		require.True(t, ok)
		require.Equal(t, s.frame, string(written))
		out, err := c.Canonical([]byte(s.frame))
		require.NoError(t, err)
		require.Equal(t, s.frame, string(out), "the samples are canonical")
	}
	for _, bad := range []string{"", "a b"} {
		_, ok := floorAppend(nil, &floorMessage{From: bad, Intent: "req", Op: "x"})
		require.False(t, ok)
	}
	hard := &floorMessage{From: "a", Intent: "req", Op: "x", Params: []floorPairIn{{"s", floorValueIn{Text: "a_b {c}\n"}}, {"k", floorValueIn{Text: "1.5"}}}}
	written, ok := floorAppend(nil, hard)
	require.True(t, ok)
	require.Equal(t, `@a>req:x{k:\e1.5|s:\_a\_b_\{c\}\u{A}}`, string(written))
	for _, s := range []string{``, `@a>b:c`, `@a>b:c{k}`, `@a>b:c{k:}`, `@a>b:c{k:[1,2}`, `@a>b:c{k:v}x`, `@a>b:c{k:\x}`} {
		require.Error(t, floorParse([]byte(s), &f), s)
	}
}

// benchOps returns the operations of the benchmarks on a sample, each with its floor.
func benchOps(t testing.TB, frame string) map[string]struct{ sdk, floor func() } {
	in := []byte(frame)
	var c accp.Codec
	var f accp.Frame
	var ff floorFrame
	var out, base []byte
	m, err := c.DecodeRaw(in)
	require.NoError(t, err)
	full, err := c.Decode(in)
	require.NoError(t, err)
	require.NoError(t, floorParse(in, &ff))
	fm := floorOf(m)
	parse := func() { _ = floorParse(in, &ff) }
	write := func() { base, _ = floorAppend(base[:0], fm) }
	return map[string]struct{ sdk, floor func() }{
		"op=decode":        {func() { err = c.DecodeFrame(in, &f) }, parse},
		"op=decodeMessage": {func() { m, err = c.DecodeRaw(in) }, parse},
		"op=encode":        {func() { out, err = c.AppendRaw(out[:0], m) }, write},
		"op=encodeMessage": {func() { out, err = c.Append(out[:0], full) }, write},
	}
}

func BenchmarkCodec(b *testing.B) {
	for _, s := range benchFrames {
		for op, f := range benchOps(b, s.frame) {
			for lib, f := range map[string]func(){"sdk": f.sdk, "floor": f.floor} {
				b.Run(op+"/msg="+s.name+"/lib="+lib, func(b *testing.B) {
					b.ReportAllocs()
					b.SetBytes(int64(len(s.frame)))
					for b.Loop() {
						f()
					}
				})
			}
		}
	}
}

func BenchmarkPairCodec(b *testing.B) {
	for _, s := range benchFrames {
		for op, f := range benchOps(b, s.frame) {
			b.Run(op+"/msg="+s.name+"/lib=sdk", func(b *testing.B) { pair.Ratio(b, pair.Loop(f.sdk), pair.Loop(f.floor)) })
		}
	}
}

// BenchmarkExpand decodes a message of a schema with its keys in full and its
// defaults filled in.
func BenchmarkExpand(b *testing.B) {
	var c accp.Codec
	in := []byte(benchTask)
	b.Run("schema=TA/lib=sdk", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			_, _ = c.Decode(in)
		}
	})
}

// BenchmarkPairExpand compares that with decoding alone: the goal is 2.
func BenchmarkPairExpand(b *testing.B) {
	var c accp.Codec
	in := []byte(benchTask)
	b.Run("schema=TA/lib=sdk", func(b *testing.B) {
		pair.Ratio(b, pair.Loop(func() { _, _ = c.Decode(in) }), pair.Loop(func() { _, _ = c.DecodeRaw(in) }))
	})
}

// BenchmarkCount counts by the estimate; real vocabularies are counted in the
// package tokenizer.
func BenchmarkCount(b *testing.B) {
	for _, s := range []struct{ name, text string }{{"frame", benchFrames[0].frame}, {"nl2KB", strings.Repeat("Please schedule the task, please. ", 62)}} {
		b.Run("text="+s.name+"/lib=approx", func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				accp.ApproxCounter{}.Count(s.text)
			}
		})
	}
}

// benchPeer returns a registry with n custom schemas, the first of which has the number first.
func benchPeer(t testing.TB, first, n int) *accp.Registry {
	r := accp.NewRegistry()
	for i := first; i < first+n; i++ {
		require.NoError(t, r.Register(accp.Schema{Name: fmt.Sprint("report_", i), Code: fmt.Sprintf("R%d", 1000+i), Version: 1,
			Fields:   []string{"region", "total", "unit", "notes"},
			Defaults: accp.Params{text("unit", "EUR"), {Key: "notes", Value: accp.Array()}},
			Abbr:     map[string]string{"rg": "region", "tt": "total"}}))
	}
	return r
}

// benchRegistry returns a registry with n custom schemas and the text of its delta.
func benchRegistry(b *testing.B, n int) (*accp.Registry, []byte) {
	r := benchPeer(b, 0, n)
	c := accp.Codec{FrameLimits: accp.FrameLimits{MaxFrame: 1 << 20, MaxValues: 1 << 20, MaxParams: 1 << 10}}
	text, err := c.AppendValue(nil, r.Delta())
	require.NoError(b, err)
	return r, text
}

// BenchmarkPairMerge compares the merge of the largest registry of a peer with parsing it: the goal is 3. With
// the next merge, of one more schema, the goal is 2.2 of the first.
func BenchmarkPairMerge(b *testing.B) {
	c := accp.Codec{FrameLimits: accp.FrameLimits{MaxFrame: 1 << 20, MaxValues: 1 << 20, MaxParams: 1 << 10}}
	peer, delta := benchRegistry(b, 255)
	next, _ := benchRegistry(b, 256)
	parse := func() {
		if _, err := c.DecodeValue(delta); err != nil {
			b.Fatal(err)
		}
	}
	merge := func(peers ...*accp.Registry) func() {
		type offer struct {
			delta accp.Value
			hash  string
		}
		var offers []offer
		for _, p := range peers {
			offers = append(offers, offer{p.Delta(), p.Hash()})
		}
		return func() {
			r := accp.NewRegistry()
			for _, o := range offers {
				if err := r.Merge(o.delta, o.hash); err != nil {
					b.Fatal(err)
				}
			}
		}
	}
	first, both := pair.Loop(merge(peer)), pair.Loop(merge(peer, next))
	b.Run("op=first/lib=sdk", func(b *testing.B) { pair.Ratio(b, first, pair.Loop(parse)) })
	b.Run("op=both/lib=sdk", func(b *testing.B) { pair.Ratio(b, both, first) })
}

// A sessionPair sends messages of 300 bytes from one side of a session to the other one.
type sessionPair struct {
	a, b *accp.Session
	m    *accp.Message
}

func newSessionPair(t testing.TB, a, b accp.SessionOptions) *sessionPair {
	p := &sessionPair{m: msg("req", "schedule", text("task", "impl_auth_module"), text("priority", "high"), text("note", strings.Repeat("abc de ", 28)))}
	var err error
	p.a, err = accp.NewSession("a", "s1", &a)
	require.NoError(t, err)
	p.b, err = accp.NewSession("b", "s1", &b)
	require.NoError(t, err)
	sent, err := p.a.Send(t.Context(), p.m)
	require.NoError(t, err)
	require.InDelta(t, 300, len(sent.Frames[0]), 20)
	_, err = p.b.Receive(t.Context(), sent.Frames[0])
	require.NoError(t, err)
	return p
}

func (p *sessionPair) exchange(ctx context.Context) error {
	sent, err := p.a.Send(ctx, p.m)
	if err == nil {
		_, err = p.b.Receive(ctx, sent.Frames[0])
	}
	return err
}

// loop returns the exchanges of a pair of sessions.
func (p *sessionPair) loop(b *testing.B) func(n int) {
	return pair.Loop(func() {
		if err := p.exchange(b.Context()); err != nil {
			b.Fatal(err)
		}
	})
}

// BenchmarkPairSession compares sending and receiving, checkpoints included, with encoding and decoding the same message:
// the goal is 8. With a store in memory the goal is 2 of that without.
func BenchmarkPairSession(b *testing.B) {
	p := newSessionPair(b, accp.SessionOptions{}, accp.SessionOptions{})
	sent, err := p.a.Send(b.Context(), p.m)
	require.NoError(b, err)
	frame, m := sent.Frames[0], *sent.Message
	_, err = p.b.Receive(b.Context(), frame)
	require.NoError(b, err)
	var c accp.Codec
	var out []byte
	codec := pair.Loop(func() {
		out, err = c.Append(out[:0], &m)
		if err == nil {
			_, err = c.Decode(frame)
		}
	})
	stored := func() *sessionPair {
		o := accp.SessionOptions{Persistence: accp.Persistence{Store: store.NewMemory()}}
		return newSessionPair(b, o, o)
	}
	b.Run("op=exchange/lib=sdk", func(b *testing.B) { pair.Ratio(b, p.loop(b), codec) })
	b.Run("store=memory/lib=sdk", func(b *testing.B) { pair.Ratio(b, stored().loop(b), p.loop(b)) })
}

// Allocations are exact, so their goals are tests.
func TestAllocations(t *testing.T) {
	if race.Enabled {
		t.Skip("the race detector allocates")
	}
	maxAllocs := map[string]float64{"op=decode": 0, "op=decodeMessage": 3, "op=encode": 0, "op=encodeMessage": 0}
	for _, s := range benchFrames {
		for op, f := range benchOps(t, s.frame) {
			f.sdk()
			require.LessOrEqual(t, testing.AllocsPerRun(200, f.sdk), maxAllocs[op], "%s %s", op, s.name)
		}
	}
	var c accp.Codec
	in := []byte(benchTask)
	parse := testing.AllocsPerRun(200, func() { _, _ = c.DecodeRaw(in) })
	decode := testing.AllocsPerRun(200, func() { _, _ = c.Decode(in) })
	require.LessOrEqual(t, decode-parse, 2.0, "expanding a message of a schema")
	require.Zero(t, testing.AllocsPerRun(200, func() { accp.ApproxCounter{}.Count(benchTask) }))
	p := newSessionPair(t, accp.SessionOptions{}, accp.SessionOptions{})
	exchange := func() { require.NoError(t, p.exchange(t.Context())) }
	require.LessOrEqual(t, testing.AllocsPerRun(3000, exchange), 12.0, "a message sent and received, checkpoints included")
}

// A typed call over HTTP, with the outcome that its server records, both sides counted. The goal is 130.
func TestHTTPCallAllocations(t *testing.T) {
	if race.Enabled {
		t.Skip("the race detector allocates")
	}
	type order struct {
		Item  string `json:"item"`
		Count int    `json:"count"`
	}
	d := newDesk(t, nil)
	d.Handle(accp.IntentReq, "order", accp.HandlerOf(func(_ context.Context, in order) (order, error) { return in, nil }))
	c := d.http(t, nil)
	call := func() {
		if out, err := accp.CallAs[order](t.Context(), c, "order", order{"pen", 3}, nil); err != nil || out.Item != "pen" {
			t.Fatal(out, err)
		}
	}
	call()
	require.LessOrEqual(t, testing.AllocsPerRun(2000, call), 141.0)
}

// A call over WebSocket, both sides counted: the wait for a connection costs nothing while there is one.
func TestWebSocketCallAllocations(t *testing.T) {
	if race.Enabled {
		t.Skip("the race detector allocates")
	}
	c := newDesk(t, nil).dial(t, nil)
	m := &accp.Message{Intent: accp.IntentReq, Op: "echo"}
	call := func() {
		if _, err := c.Call(t.Context(), m, nil); err != nil {
			t.Fatal(err)
		}
	}
	call()
	require.LessOrEqual(t, testing.AllocsPerRun(500, call), 40.0)
}
