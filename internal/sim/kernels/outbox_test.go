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
	m.check()
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
		isEarlier := rec.Seq < r.Seq && r.Seq < i.Seq
		if isEarlier && !m.isOver[i.Stream+" "+r.ID[1:]] && isHeld(a) {
			m.w.Failf("X2", a.Node.Name(), "attempt of %s %s before the end of %s", i.Stream, i.ID, r.ID[1:])
		}
	}
}

// check holds the end of the run to X1 and X4.
func (m *queues) check() {
	s, ok := m.nodes[0].Instance().(*sender)
	if !ok {
		m.w.Failf("X1", "n0", "node does not start")
		return
	}
	dead := map[string]bool{}
	for l, err := range s.Dead(context.Background()) {
		if err != nil && !errors.Is(err, context.Canceled) {
			m.w.Failf("X1", "n0", "dead letters: %v", err)
		}
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
