// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package accp_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/fivewire/fivewire/accp"
	"github.com/fivewire/fivewire/accp/accptest"
	"github.com/fivewire/fivewire/store"
)

// A drive drives a session and its model by the same frames.
type drive struct {
	t       *rapid.T
	kv      store.Store
	session *accp.Session
	model   *model
	numbers int // of message ids
	sent    []*modelFrame
}

func (d *drive) open() {
	opts := &accp.SessionOptions{Persistence: accp.Persistence{Store: d.kv}}
	accptest.SetIDs(opts, func() string { d.numbers++; return fmt.Sprintf("%012x", 0xb00000+d.numbers) })
	var err error
	d.session, err = accp.NewSession("server", "s1", opts)
	require.NoError(d.t, err)
	require.NoError(d.t, d.session.Reload(context.Background()))
}

func (d *drive) draw(what string, n int) int { return rapid.IntRange(0, n-1).Draw(d.t, what) }

func one[T any](d *drive, what string, from ...T) T { return rapid.SampledFrom(from).Draw(d.t, what) }

// frame draws a frame of a peer: in order as a rule, else late, lost, repeated, expired, early, or of a wrong origin.
func (d *drive) frame() *modelFrame {
	if len(d.sent) > 0 && d.draw("repeat", 10) == 0 {
		return one(d, "which", d.sent...)
	}
	d.numbers++
	f := &modelFrame{from: one(d, "from", "a", "b"), mid: fmt.Sprintf("%012x", 0xa00000+d.numbers), ts: time.Now().Unix(), params: map[string]string{}}
	f.seq = max(0, d.model.high+int64(one(d, "jump", 1, 1, 1, 1, 1, 1, 0, -1, 2, 30, 1001, 1002)))
	f.intent, f.op = one(d, "intent", "req", "req", "done", "wait", "esc", "comp", "qry", "ack", "ping", "cancel", "stream", "fail", "sync", "sync", "sync"), one(d, "op", "plan", "review")
	f.cid = one(d, "cid", "", "", "c1", "c2", "c3", "c4", "c5")
	if d.draw("origin", 30) == 0 {
		f.sid, f.from = one(d, "sid", "", "s1", "s2"), one(d, "sender", "a", "server")
	}
	if d.draw("ttl", 8) == 0 {
		f.ttl, f.ts = int64(1+d.draw("life", 60)), f.ts+int64(one(d, "age", -100, -61, -30, 0, 299, 301))
	}
	for _, key := range []string{"k1", "k2", "k3"} {
		if d.draw(key, 2) == 0 {
			f.params[key] = one(d, "value", "1", "-2.5", "true", "~", "some_word", "[1,2]", "a_longer_value_of_a_few_words")
		}
	}
	switch f.intent {
	case "sync":
		d.stateFrame(f)
	case "fail":
		f.op, f.params = "error", map[string]string{"code": one(d, "code", "E3002", "E4001"), "message": "no", "schema": "ER"}
	}
	return f
}

func (d *drive) stateFrame(f *modelFrame) {
	kind := one(d, "form", "delta.", "delta.", "delta.", "state.")
	v := max(0, d.model.version+int64(one(d, "version", 1, 1, 1, 1, 0, 2, -1)))
	f.op, f.params = "state", map[string]string{"version": strconv.FormatInt(v, 10)}
	for _, key := range []string{"x", "y", "z"} {
		if d.draw(key, 2) == 0 || len(f.params) == 1 && key == "z" {
			f.params[kind+key] = one(d, "member", "one", "two", "~")
		}
	}
	if kind == "delta." && d.draw("base", 2) == 0 {
		f.params["base"] = baseOf(d.model.state)
		if d.draw("wrong", 8) == 0 {
			f.params["base"] = "ffffffff"
		}
	}
}

func (d *drive) receive() {
	f := d.frame()
	d.sent = append(d.sent, f)
	want := d.model.receive(f, time.Now().Unix())
	got := ""
	r, err := d.session.Receive(context.Background(), []byte(f.text()))
	var e *accp.Error
	switch {
	case errors.As(err, &e):
		got = string(e.Code)
	case err != nil:
		got = err.Error()
	case r.Outcome == accp.OutcomeDropped:
		got = r.Reason
	case r.Outcome == accp.OutcomeCancelled:
		got = "cancel"
	default:
		got = r.Outcome.String()
	}
	require.Equal(d.t, want, got, "%s: %v", f.text(), err)
}

// finish takes the id of a sent message, which the session generates, and adds the message to the model.
func (d *drive) finish(f *modelFrame, sent *accp.SendResult) {
	meta := sent.Message.Meta
	f.mid, f.ts, f.sid = meta.MID, meta.TS.N, "s1"
	require.Equal(d.t, f.seq, meta.Seq.N)
	require.Equal(d.t, f.text(), string(sent.Frames[len(sent.Frames)-1]))
	d.model.add(f)
}

func (d *drive) send() {
	f := &modelFrame{from: "server", intent: one(d, "intent", "req", "done", "ack", "wait"), op: "plan", cid: one(d, "cid", "", "c1", "c2", "c3"), params: map[string]string{"k1": "sent"}}
	isSent := d.model.send(f)
	m := &accp.Message{Intent: accp.Intent(f.intent), Op: f.op, Params: accp.Params{text("k1", "sent")}, Meta: &accp.Meta{CID: f.cid}}
	sent, err := d.session.Send(context.Background(), m)
	require.NoError(d.t, err)
	require.Equal(d.t, isSent, !sent.Dropped)
	if isSent {
		d.finish(f, sent)
	}
}

func (d *drive) sync() {
	next := map[string]string{}
	for _, key := range []string{"x", "y", "z"} {
		if d.draw(key, 3) > 0 {
			next[key] = one(d, "member", "one", "two", "three")
		}
	}
	f := d.model.sync(next)
	sent, err := d.session.Sync(context.Background(), stateParams(next))
	require.NoError(d.t, err)
	if f == nil {
		require.Empty(d.t, sent.Frames)
		return
	}
	require.True(d.t, d.model.send(f))
	d.finish(f, sent)
}

// check compares all that a caller can see.
func (d *drive) check() {
	version, state := d.session.State()
	require.Equal(d.t, d.model.version, version)
	require.True(d.t, stateParams(d.model.state).Equal(state), "%v: %v", d.model.state, state)
	var checkpoints []modelCheckpoint
	for _, c := range d.session.Checkpoints() {
		checkpoints = append(checkpoints, modelCheckpoint{c.ID, c.Summary, strings.Join(c.Trigger, ","), c.Frames})
	}
	require.Equal(d.t, d.model.checkpoints, checkpoints)
	for _, chain := range []string{"c1", "c2", "c3", "c4", "c5"} {
		require.Equal(d.t, d.model.cancelled[chain], d.session.IsCancelled(chain), chain)
	}
}

// A session and its model give equal answers to equal frames, through losses, repetitions, restarts and jumps of the clock.
func TestSessionAgreesWithModel(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		var failure any // of rapid, which recovers it in its own goroutine
		synctest.Test(t, func(*testing.T) {
			defer func() { failure = recover() }()
			agree(rt)
		})
		if fmt.Sprintf("%T", failure) == "rapid.invalidData" {
			panic(failure) // at another line than failures, by which rapid compares tests when it shrinks one
		}
		if failure != nil {
			panic(failure)
		}
	})
}

func agree(t *rapid.T) {
	d := &drive{t: t, kv: store.NewMemory(), model: newModel("server")}
	d.open()
	actions := map[string]func(){
		"receive": d.receive, "receive again": d.receive, "receive more": d.receive, "send": d.send, "sync": d.sync,
		"restart": func() { d.open(); d.model.restart() },
		"wait":    func() { time.Sleep(time.Duration(1+d.draw("seconds", 90)) * time.Second) },
		"context": func() {
			maximum := one(d, "maximum", 100, 300, 1000)
			require.Equal(t, d.model.context(maximum, maximum/2), slices.Clone(d.session.ModelContext(maximum, 0).Lines))
		},
	}
	names := slices.Sorted(maps.Keys(actions))
	for range rapid.IntRange(1, 60).Draw(t, "steps") {
		actions[one(d, "action", names...)]()
		d.check()
	}
}
