// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/fivewire/fivewire/accp"
	"github.com/fivewire/fivewire/accp/accptest"
	"github.com/fivewire/fivewire/store"
)

// accpStart is where the clock of every script of the protocol begins.
var accpStart = time.Unix(1714000000, 0)

// accpIDs returns a source of message ids: a prefix and a counter in hex.
func accpIDs(prefix string) func() string {
	n := 0
	return func() string {
		n++
		return fmt.Sprintf("%s%0*x", prefix, 12-len(prefix), n)
	}
}

// accpStep turns an error of the package into the answer err of a step.
func accpStep(a Answer, err error) (Answer, error) {
	var e *accp.Error
	if errors.As(err, &e) {
		return Answer{"err": string(e.Code)}, nil
	}
	return a, err
}

func accpFrames(s *accp.SendResult) []string {
	frames := []string{}
	if s != nil {
		for _, f := range s.Frames {
			frames = append(frames, string(f))
		}
	}
	return frames
}

// accpDesk is the fixture of a session script.
type accpDesk struct {
	s         *accp.Session
	self, sid string
	opts      accp.SessionOptions
	private   store.Store
	summaries *Input             // of the summarizer, or nil
	kill      context.CancelFunc // ends the process
}

func openACCPSession(t *testing.T, in *Input) (Step, error) {
	d := &accpDesk{private: store.NewMemory(), self: in.StringOr("self", "server"), sid: in.StringOr("sid", "s1"), kill: func() {}}
	t.Cleanup(func() { d.kill() })
	d.opts = accp.SessionOptions{Lenient: accpLenient(in), Persistence: accp.Persistence{Store: d.private},
		DisableAutoCheckpoint: !in.BoolOr("autoCheckpoint", true)}
	accptest.SetIDs(&d.opts, accpIDs("ac"))
	d.opts.FrameLimits.MaxFrame = in.IntOr("frameLimit", 0)
	switch scope := in.StringOr("seqScope", "session"); scope {
	case "session":
	case "sender":
		d.opts.SeqPerSender = true
	default:
		in.Fail("seqScope", "unknown scope %q", scope)
	}
	switch budget := in.StringOr("budget", "split"); budget {
	case "split":
	case "enforce":
		d.opts.Budget = accp.BudgetEnforce
	case "off":
		d.opts.Budget = accp.BudgetOff
	default:
		in.Fail("budget", "unknown word %q", budget)
	}
	if in.BoolOr("store", true) {
		d.opts.Persistence.SharedStore = store.NewMemory()
	}
	if in.Has("summarizer") {
		d.summaries = in.Object("summarizer")
	}
	d.opts.MaxCheckpoints = in.IntOr("maxCheckpoints", 0)
	d.opts.Summaries.AdoptFromPeer = in.BoolOr("adopt", false)
	r, err := accpRegistry(in)
	if err != nil {
		return nil, err
	}
	d.opts.Registry = r
	return d.step, d.open()
}

// open opens the session on the stores of the fixture, in a new process.
func (d *accpDesk) open() error {
	d.kill()
	life, kill := context.WithCancel(context.Background())
	d.kill = kill
	if d.summaries != nil {
		d.opts.Summaries.Summarizer = accpSummarizer(life, d.summaries)
	}
	s, err := accp.NewSession(d.self, d.sid, &d.opts)
	d.s = s
	return err
}

// accpSummarizer answers each call with a text after a time, unless its process ends before.
func accpSummarizer(life context.Context, in *Input) func(context.Context, []accp.Fact, []string, int) (string, error) {
	delay, text := time.Duration(in.Int64Or("delay", 0))*time.Millisecond, in.String("text")
	return func(ctx context.Context, _ []accp.Fact, _ []string, _ int) (string, error) {
		select {
		case <-time.After(delay):
			return text, nil
		case <-ctx.Done():
			return "", ctx.Err()
		case <-life.Done():
			return "", life.Err()
		}
	}
}

func accpReceived(r *accp.ReceiveResult) Answer {
	a := Answer{}
	switch r.Outcome {
	case accp.OutcomeDelivered, accp.OutcomeCancelled:
		a["outcome"], a["message"] = "deliver", r.Message
		if r.Outcome == accp.OutcomeCancelled {
			a["outcome"] = "cancel"
		}
	case accp.OutcomeDropped:
		return Answer{"outcome": "drop", "reason": r.Reason}
	case accp.OutcomePending:
		a["outcome"], a["have"], a["of"] = "part", r.PartsReceived, r.PartsTotal
	}
	if r.DroppedParts > 0 {
		a["droppedParts"] = r.DroppedParts
	}
	return a
}

func (d *accpDesk) step(in *Input) (Answer, error) {
	ctx := context.Background()
	switch do := in.String("do"); do {
	case "receive":
		r, err := d.s.Receive(ctx, accpWire(in, "frame"))
		if err != nil {
			return accpStep(nil, err)
		}
		return Answer{"json": accpReceived(r)}, nil
	case "send":
		return d.send(ctx, in)
	case "errorReply":
		code, frame := accp.Code(in.String("code")), accpWire(in, "frame")
		sent, err := d.s.SendError(ctx, code, frame)
		return accpStep(Answer{"frames": accpFrames(sent)}, err)
	case "put":
		return d.put(ctx, in)
	case "get":
		v, err := d.s.Resolve(ctx, in.String("ref"))
		return accpStep(Answer{"json": v}, err)
	case "authorize":
		d.s.AllowSession(in.String("sid"))
		return Answer{"json": true}, nil
	case "cancelled":
		ctx, done := d.s.ChainContext(context.Background(), in.String("cid"))
		defer done()
		return Answer{"json": ctx.Err() != nil}, nil
	case "restart":
		if err := d.open(); err != nil {
			return nil, err
		}
		return accpStep(Answer{"json": true}, d.s.Reload(ctx))
	case "checkpoint", "checkpoints", "announce", "budget", "context":
		return d.tiers(ctx, in, do)
	case "state", "sync", "snapshot":
		return d.state(ctx, in, do)
	case "register", "hello", "negotiate":
		return d.registry(ctx, in, do)
	default:
		in.Fail("do", "unknown step %q", do)
		return nil, in.Err()
	}
}

func (d *accpDesk) send(ctx context.Context, in *Input) (Answer, error) {
	m, err := accpJSON[accp.Message](in, "message")
	if err != nil {
		return accpStep(nil, err)
	}
	sent, err := d.s.Send(ctx, &m)
	switch {
	case err != nil:
		return accpStep(nil, err)
	case sent.Dropped:
		return Answer{"json": Answer{"outcome": "drop", "reason": "cancelled"}}, nil
	}
	return Answer{"frames": accpFrames(sent)}, nil
}

// tiers carries out the steps that concern hot, warm and cold state.
func (d *accpDesk) tiers(ctx context.Context, in *Input, do string) (Answer, error) {
	switch do {
	case "checkpoint":
		cp, err := d.s.Checkpoint(ctx)
		if err != nil {
			return accpStep(nil, err)
		}
		a := accpCheckpoint(*cp)
		facts := [][]string{}
		for _, f := range cp.Facts {
			facts = append(facts, []string{f.Entity, f.Relationship, f.Value})
		}
		a["facts"], a["tokensBefore"], a["tokensAfter"] = facts, cp.HotTokensBefore, cp.HotTokensAfter
		return Answer{"json": a}, nil
	case "checkpoints":
		list := []Answer{}
		for _, cp := range d.s.Checkpoints() {
			list = append(list, accpCheckpoint(cp))
		}
		return Answer{"json": list}, nil
	case "context":
		v := d.s.ModelContext(in.Int("max"), in.Int("keep"))
		lines := v.Lines
		if lines == nil {
			lines = []string{}
		}
		return Answer{"json": Answer{"lines": lines, "tokens": v.Tokens, "cut": v.IsCut, "stable": v.Stable}}, nil
	case "announce":
		sent, err := d.s.Announce(ctx, in.String("id"))
		return accpStep(Answer{"frames": accpFrames(sent)}, err)
	}
	b, err := d.s.Budget(ctx)
	if err != nil {
		return accpStep(nil, err)
	}
	warm := []Answer{}
	for _, w := range b.Warm {
		warm = append(warm, Answer{"id": w.ID, "used": w.Used, "max": w.Max})
	}
	return Answer{"json": Answer{"hot": Answer{"used": b.Hot.Used, "trigger": b.Hot.Trigger, "max": b.Hot.Max},
		"warm": warm, "cold": Answer{"entries": b.Cold.Entries, "max": b.Cold.Max}}}, nil
}

// state carries out the steps that concern the shared state.
func (d *accpDesk) state(ctx context.Context, in *Input, do string) (Answer, error) {
	switch do {
	case "sync":
		state, err := accpJSON[accp.Params](in, "state")
		if err != nil {
			return accpStep(nil, err)
		}
		sent, err := d.s.Sync(ctx, state)
		return accpStep(Answer{"frames": accpFrames(sent)}, err)
	case "snapshot":
		sent, err := d.s.Snapshot(ctx)
		return accpStep(Answer{"frames": accpFrames(sent)}, err)
	}
	version, state := d.s.State()
	return Answer{"json": Answer{"version": version, "data": state}}, nil
}

// registry carries out the steps that concern schemas.
func (d *accpDesk) registry(ctx context.Context, in *Input, do string) (Answer, error) {
	switch do {
	case "register":
		schema, err := accpSchema(in.Object("schema"))
		if err != nil {
			return accpStep(nil, err)
		}
		err = d.s.Registry().Register(schema)
		return accpStep(Answer{"json": Answer{"version": accptest.Version(d.s.Registry())}}, err)
	case "hello":
		sent, err := d.s.AnnounceRegistry(ctx)
		return accpStep(Answer{"frames": accpFrames(sent)}, err)
	}
	reply, isSynced, err := d.s.ReceiveRegistry(ctx, accpWire(in, "frame"))
	if err != nil {
		return accpStep(nil, err)
	}
	return Answer{"frames": accpFrames(reply), "json": Answer{"synced": isSynced, "version": accptest.Version(d.s.Registry())}}, nil
}

func (d *accpDesk) put(ctx context.Context, in *Input) (Answer, error) {
	v, err := accpJSON[accp.Value](in, "value")
	if err != nil {
		return accpStep(nil, err)
	}
	s := d.s
	if in.Has("sid") {
		if s, err = accp.NewSession("other", in.String("sid"), &accp.SessionOptions{Persistence: accp.Persistence{Store: d.private}}); err != nil {
			return nil, err
		}
	}
	err = s.Put(ctx, accp.Scope(in.String("scope")), in.String("key"), v, time.Duration(in.Int64Or("ttl", 0))*time.Second)
	return accpStep(Answer{"json": true}, err)
}

func accpCheckpoint(cp accp.Checkpoint) Answer {
	a := Answer{"id": cp.ID, "trigger": cp.Trigger, "summary": cp.Summary, "summaryTokens": cp.SummaryTokens,
		"frames": cp.Frames}
	if r := cp.Refined; r != nil {
		a["refined"] = Answer{"id": r.ID, "summary": r.Summary, "summaryTokens": r.Tokens}
	}
	return a
}

// openACCPStream is the fixture of a stream script.
func openACCPStream(*testing.T, *Input) (Step, error) {
	var c accp.Codec
	var streams accp.StreamAssembler
	return func(in *Input) (Answer, error) {
		m, err := c.Decode(accpWire(in, "frame"))
		if err != nil {
			return accpStep(nil, err)
		}
		data, isDone, err := streams.Add(m)
		if err != nil {
			return accpStep(nil, err)
		}
		if data == nil {
			data = []accp.Value{}
		}
		return Answer{"json": Answer{"deliver": data, "done": isDone}}, nil
	}, nil
}
