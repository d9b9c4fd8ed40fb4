// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package kernels

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/fivewire/fivewire/internal/lease"
	"github.com/fivewire/fivewire/internal/outbox"
	"github.com/fivewire/fivewire/internal/sim"
	"github.com/fivewire/fivewire/internal/state"
)

// A queues value is the model of the profile: what was accepted, sent and given up, by stream and id.
type queues struct {
	w     *sim.World
	nodes []*sim.Node

	mu       sync.Mutex // guards all below
	puts     int
	accepted map[string]bool
	sent     map[string]int
	isOver   map[string]bool // a verdict ended it
	failures map[string]int  // changes of the owner, by stream
	running  map[*sending]bool
}

// A sending is an attempt in progress.
type sending struct {
	tenure
	stream  string
	attempt context.Context
}

// A sender is one instance of a node.
type sender struct {
	epoch
	*outbox.Outbox
	m *queues
}

func (s *sender) Close() {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_ = s.Shutdown(ctx)
	s.epoch.Close()
}

// playOutbox lets three nodes put items into five streams, whose receiver fails, refuses and is late.
func playOutbox(w *sim.World) {
	m := &queues{w: w, accepted: map[string]bool{}, sent: map[string]int{}, isOver: map[string]bool{},
		failures: map[string]int{}, running: map[*sending]bool{}}
	w.OnChange(m.countFailures)
	m.nodes = startNodes(w, 3, func(v *sim.View) (sim.Instance, error) {
		e, err := acquire(v)
		if err != nil {
			return nil, err
		}
		s := &sender{e, outbox.New(v.Store, e.Lease, outbox.Options{Prefix: prefix, Logger: quiet}), m}
		s.Send("k", s.send)
		return s, nil
	})
	w.Play(time.Minute, 3, 8*time.Second, func(c *sim.Client) {
		s, ok := pick[*sender](c.Rand, m.nodes)
		if !ok {
			return
		}
		m.mu.Lock()
		m.puts++
		stream, id := fmt.Sprint("k/", c.IntN(5)), fmt.Sprint(max(1, m.puts-c.IntN(3))) // some repeat an earlier one
		m.mu.Unlock()
		ctx, cancel := context.WithTimeout(context.Background(), time.Duration(1+c.IntN(15))*time.Second)
		defer cancel()
		_, err := w.Call(c.ID, "put "+stream+" "+id, func() (string, error) { return "", s.Put(ctx, stream, id, []byte(id)) })
		if err == nil {
			m.mu.Lock()
			m.accepted[stream+" "+id] = true
			m.mu.Unlock()
		}
	})
	w.Settle()
	w.Settle()
	a, isUp := m.nodes[0].Instance().(*sender)
	b, isOtherUp := m.nodes[1].Instance().(*sender)
	if !isUp || !isOtherUp {
		m.w.Failf("X1", "", "nodes do not start")
		return
	}
	m.check(m.letters(a))
	if !isChosen(w) {
		return
	}
	m.playLetters(a)
	m.playOwn(a, b)
	m.playGone(b)
}

type senderRecord struct {
	Owner lease.Owner
	Seq   uint64
}

// countFailures counts the changes of the owner of a stream.
func (m *queues) countFailures(c sim.Change) {
	if !strings.HasPrefix(c.Key, prefix+"outbox/sender/") {
		return
	}
	var old, now senderRecord
	_ = json.Unmarshal(content(c.Old), &old)
	_ = json.Unmarshal(content(c.Value), &now)
	if old.Owner != "" && now.Owner != "" && old.Owner != now.Owner {
		m.mu.Lock()
		m.failures[c.Key]++
		m.mu.Unlock()
	}
}

// send makes one attempt and holds it to X2 and X3.
func (s *sender) send(ctx context.Context, i outbox.Item) outbox.Verdict {
	m, name := s.m, i.Stream+" "+i.ID
	a := &sending{s.tenure(), i.Stream, ctx}
	m.begin(a, i)
	r := clientOf(m.w, name, i.Attempt)
	length, n, obeys := time.Duration(r.IntN(1000))*time.Millisecond, r.IntN(100), r.IntN(4) > 0
	if i.Stream == goneStream {
		return outbox.Gone(errWork)
	}
	if r.IntN(10) == 0 {
		length *= 15
	}
	if m.w.IsCalm() {
		length, n = time.Millisecond, 0
	}
	isCut := m.w.Sleep(ctx, length) != nil
	if isCut && !obeys {
		_ = m.w.Sleep(context.Background(), length)
		isCut = false
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.running, a)
	if isCut || s.IsCrashed() {
		return outbox.Retry(0, context.Cause(ctx))
	}
	if n < 75 {
		m.sent[name]++
	}
	m.isOver[name] = m.isOver[name] || n < 80
	switch {
	case n < 75:
		return outbox.Done()
	case n < 80:
		return outbox.Dead("refused", errWork)
	case n < 92:
		return outbox.Retry(time.Duration(n)*50*time.Millisecond, errWork)
	}
	return outbox.Later(time.Duration(n)*50*time.Millisecond, errWork)
}

// begin notes the beginning of an attempt.
func (m *queues) begin(a *sending, i outbox.Item) {
	ctx := context.Background()
	m.mu.Lock()
	defer m.mu.Unlock()
	isHeld := func(a *sending) bool { return a.attempt.Err() == nil && a.isHeld(m.w) }
	for other := range m.running {
		if other.stream == i.Stream && isHeld(other) && isHeld(a) {
			m.w.Failf("X3", a.Node.Name(), "attempt of %s %s during another one", i.Stream, i.ID)
		}
	}
	m.running[a] = true
	var rec senderRecord
	e, _ := m.w.Data().Get(ctx, prefix+"outbox/sender/"+state.Join(i.Stream))
	_ = json.Unmarshal(content(e.Value), &rec)
	records, _ := m.w.Data().Read(ctx, prefix+"outbox/items/"+state.Join(i.Stream), 0, 10_000)
	for _, r := range records {
		isEarlier := rec.Seq < r.Seq && r.Seq < i.Seq && r.ID[0] == '=' // a redelivered letter has another id
		if isEarlier && !m.isOver[i.Stream+" "+r.ID[1:]] && isHeld(a) {
			m.w.Failf("X2", a.Node.Name(), "attempt of %s %s before the end of %s", i.Stream, i.ID, r.ID[1:])
		}
	}
}

// letters returns the dead letters.
func (m *queues) letters(s *sender) (list []outbox.Letter) {
	for l, err := range s.Dead(context.Background()) {
		if err != nil {
			m.w.Failf("X1", s.Node.Name(), "dead letters: %v", err)
			return nil
		}
		list = append(list, l)
	}
	return list
}

// check holds the end of the run to X1 and X4.
func (m *queues) check(letters []outbox.Letter) {
	dead := map[string]bool{}
	for _, l := range letters {
		dead[l.Stream+" "+l.ID] = true
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for name := range m.accepted {
		if m.sent[name] == 0 && !dead[name] {
			m.w.Failf("X1", "", "item %s is neither sent nor dead", name)
		}
	}
	duplicates := map[string]int{}
	for name, n := range m.sent {
		stream, _, _ := strings.Cut(name, " ")
		duplicates[stream] += n - 1
	}
	for stream, n := range duplicates {
		if failures := m.failures[prefix+"outbox/sender/"+state.Join(stream)]; n > failures {
			m.w.Failf("X4", "", "%d duplicates in %s after %d owner failures", n, stream, failures)
		}
	}
}

// require reports an error, unless the instance has lost its lease.
func (m *queues) require(s *sender, what string, err error) bool {
	if err != nil && !errors.Is(err, lease.ErrLost) {
		m.w.Failf("X1", s.Node.Name(), "%s: %v", what, err)
	}
	return err == nil
}

// playLetters redelivers or drops each dead letter: the former are sent, the latter are not, and no queue keeps an item.
func (m *queues) playLetters(s *sender) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	letters, want := m.letters(s), map[string]int{}
	m.mu.Lock()
	for name, n := range m.sent {
		want[name] = n
	}
	m.mu.Unlock()
	for i, l := range letters {
		err := error(nil)
		if i%2 == 0 {
			err = s.Redeliver(ctx, l.Stream, l.Seq)
			want[l.Stream+" "+l.ID]++
		} else {
			err = s.Drop(ctx, l.Stream, l.Seq)
		}
		if !m.require(s, "dead letter of "+l.Stream, err) {
			return
		}
	}
	for i := range 5 { // the sender of the last item sends those of failed calls, too
		if !m.require(s, "put", s.Put(ctx, fmt.Sprint("k/", i), "last", nil)) {
			return
		}
	}
	m.w.Settle()
	if n := len(m.letters(s)); n > 0 {
		m.w.Failf("X1", s.Node.Name(), "%d dead letters after the last one was redelivered or dropped", n)
	}
	m.mu.Lock()
	for _, l := range letters {
		if name := l.Stream + " " + l.ID; m.sent[name] != want[name] {
			m.w.Failf("X1", s.Node.Name(), "dead letter %s was sent %d times, want %d", name, m.sent[name], want[name])
		}
	}
	m.mu.Unlock()
	ctx, cancel = context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	for i := range 5 {
		stream := fmt.Sprint("k/", i)
		hasItem, err := s.Has(ctx, stream)
		items, _, errWaiting := s.Waiting(ctx, stream)
		if m.require(s, "count", errors.Join(err, errWaiting)) && (hasItem || items != 0) {
			m.w.Failf("X1", s.Node.Name(), "%d items wait in %s at the end", items, stream)
		}
	}
}

// playOwn lets two instances own a stream in turn: each item is sent once, and all of them before Close returns.
func (m *queues) playOwn(a, b *sender) {
	const stream, total = "k/owned", 6
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	for i, s := range []*sender{a, b, a} {
		if !m.require(s, "own", s.Own(ctx, stream)) {
			return
		}
		for j, putter := range []*sender{a, b} {
			id := fmt.Sprint(2*i + j)
			if !m.require(putter, "put", putter.Put(ctx, stream, id, []byte(id))) {
				return
			}
		}
	}
	if !m.require(a, "close", a.Outbox.Close(ctx, stream)) {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for i := range total {
		if n := m.sent[fmt.Sprint(stream, " ", i)]; n != 1 {
			m.w.Failf("X1", a.Node.Name(), "item %d of an owned stream was sent %d times before the end of Close, want once", i, n)
		}
	}
}

// The receiver of goneStream has ended.
const goneStream = "k/gone"

// playGone puts items into a stream whose receiver has ended: each is a dead letter.
func (m *queues) playGone(s *sender) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	accepted := map[string]bool{}
	for i := range 5 {
		id := fmt.Sprint(i)
		if m.require(s, "put", s.Put(ctx, goneStream, id, nil)) {
			accepted[id] = true
		}
	}
	m.w.Settle()
	for _, l := range m.letters(s) {
		delete(accepted, l.ID)
	}
	if len(accepted) > 0 {
		m.w.Failf("X1", s.Node.Name(), "%d items for a receiver that has ended are not dead", len(accepted))
	}
}
