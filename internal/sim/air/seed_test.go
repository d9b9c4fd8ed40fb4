// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package air

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/fivewire/fivewire/air"
	"github.com/fivewire/fivewire/internal/sim"
	"github.com/fivewire/fivewire/store"
)

func TestSeed(t *testing.T) { t.Run("air", func(t *testing.T) { sim.Seeds(t, profile(defect{})) }) }

// profile lets agents send notes and negotiate, and rotate their keys, while the registry fails now and then.
func profile(d defect) func(*sim.World) {
	return func(s *sim.World) {
		w := newWorld(s, d)
		s.Play(50*time.Second, 3, 4*time.Second, func(c *sim.Client) { w.operate(c) })
		if d.restarts {
			for _, n := range w.agents {
				n.Crash()
				n.Restart()
			}
		}
		s.Settle()
		w.check()
	}
}

func (w *world) operate(c *sim.Client) {
	from := c.IntN(agents)
	to := (from + 1 + c.IntN(agents-1)) % agents
	p, ok := w.agents[from].Instance().(*process)
	if !ok {
		return // the agent is down
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Duration(5+c.IntN(40))*time.Second)
	defer cancel()
	switch n := c.IntN(22); {
	case n == 0:
		w.registry.SetFailure([]int{404, 503}[c.IntN(2)])
		_ = w.Sleep(c.Context, time.Duration(c.Int64N(int64(20*time.Second))))
		w.registry.SetFailure(0)
	case n == 1 && w.hash(2, "rotations") == 0:
		seed := make([]byte, 32)
		for i := range seed {
			seed[i] = byte(c.Uint64())
		}
		_, _ = w.Call(c.ID, "rotate", func() (string, error) { return "", p.Rotate(ctx, seed) })
	case n == 2:
		w.stray(ctx, c)
	case n == 3:
		w.retry(ctx, p)
	case n < 8:
		t := &thread{id: air.NewID(), from: from, to: to}
		w.model.mu.Lock()
		w.threads = append(w.threads, t)
		w.model.mu.Unlock()
		offer := &air.Offer{Price: air.MinorUnits(5, "USD"), Expires: time.Now().Add(24 * time.Hour)}
		offer.Description = []string{"", "", "", unanswered, unanswered, hopeless}[c.IntN(6)]
		isPatient := w.hash(3, "hopeless") == 0 // the moves behind a hopeless Offer wait for ten minutes
		if offer.Description == hopeless && (w.isDirect(to) || !isPatient) {
			offer.Description = unanswered // a refused push stays in the outbox of its sender
		}
		id, isSent := w.send(ctx, c, p, &air.Draft{ThreadID: t.id, Body: offer}, to)
		switch {
		case isSent && offer.Description == "":
			w.model.mu.Lock()
			t.offer = id
			w.model.mu.Unlock()
		case isSent:
			w.send(ctx, c, p, &air.Draft{ThreadID: t.id, Body: &air.Withdraw{WithdrawnID: id}}, to)
		}
	default:
		w.send(ctx, c, p, &air.Draft{ThreadID: fmt.Sprintf("%s%012d", noteThreads, c.IntN(2)),
			Body: &air.Raw{Type: noteType, JSON: []byte(`{"type":"note"}`)}}, to)
	}
}

// send sends a message, and returns its id. It is accepted if it was delivered, or is in the outbox. After a failure a caller may
// send it again with its id.
func (w *world) send(ctx context.Context, c *sim.Client, p *process, d *air.Draft, to int) (id string, isAccepted bool) {
	d.ID, d.To = air.NewID(), w.identity(to).DID()
	opts := &air.SendOptions{Seal: c.IntN(2) == 0}
	send := func(ctx context.Context, what string) (isAccepted, isQueued bool) {
		_, err := w.Call(c.ID, what+" "+d.ID, func() (string, error) {
			_, err := p.Client.Send(ctx, d, opts)
			return "", err
		})
		isQueued = errors.Is(err, air.ErrDeliveryFailed) && !p.IsCrashed()
		if err == nil || isQueued {
			w.accept(d.ID)
		}
		return err == nil || isQueued, isQueued
	}
	isAccepted, isQueued := send(ctx, "send")
	if isQueued && w.hash(2, "again") == 0 && w.hash(2, "again", d.ID) == 0 {
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		send(ctx, "again")
	}
	return d.ID, isAccepted
}

// processes returns the running agents.
func (w *world) processes() (list []*process) {
	for _, n := range w.agents {
		if p, ok := n.Instance().(*process); ok {
			list = append(list, p)
		}
	}
	return list
}

// check waits until the outboxes and the relay are empty, and holds the agents to the invariants.
func (w *world) check() {
	ctx := context.Background()
	list := w.processes()
	if len(list) < agents {
		w.Failf("start", "", "%d of %d agents run", len(list), agents)
		return
	}
	texts := map[string]string{}
	w.waitEmpty(ctx, list, texts)
	w.redeliver(ctx, list)
	w.waitEmpty(ctx, list, texts) // the answers of its handlers
	w.checkMessages(texts)
	for _, t := range w.threads {
		if w.rotated[w.identity(t.from).DID()] || w.rotated[w.identity(t.to).DID()] {
			continue
		}
		var states [2]air.Thread
		for i, side := range [][2]int{{t.from, t.to}, {t.to, t.from}} {
			var err error
			n := list[side[0]].NewNegotiation(w.identity(side[1]).DID(), t.id, false)
			if states[i], err = n.Thread(ctx); err != nil {
				w.Failf("M5", "", "thread %s: %v", t.id, err)
			}
		}
		if a, b := states[0], states[1]; a.State != b.State || a.LastMessageID != b.LastMessageID ||
			!slices.EqualFunc(a.Moves, b.Moves, func(a, b air.Move) bool { return a.ID == b.ID && a.IsOwn != b.IsOwn && a.Price == b.Price }) {
			w.Failf("M5", "", "thread %s: agent %d has %s after %s and %v, agent %d has %s after %s and %v", t.id, t.from, a.State,
				a.LastMessageID, a.Moves, t.to, b.State, b.LastMessageID, b.Moves)
		}
		if w.isNaive() && t.offer != "" && states[0].State != air.ThreadAccepted {
			w.Failf("M10", "", "thread %s between agents %d and %d: %s after %v", t.id, t.from, t.to, states[0].State, states[0].Moves)
		}
		for i, side := range [][2]int{{t.from, t.to}, {t.to, t.from}} {
			w.refuse(ctx, list[side[0]], w.identity(side[1]).DID(), t.id, states[i])
		}
	}
}

// waitEmpty waits until the outboxes and the relay are empty, and fills in the state of the messages in an outbox.
func (w *world) waitEmpty(ctx context.Context, list []*process, texts map[string]string) {
	left := w.queued(ctx, list, texts)
	for i := 0; i < 90 && (left != "" || w.isMissing()); i++ {
		_ = w.Sleep(ctx, 30*time.Second)
		left = w.queued(ctx, list, texts)
	}
	if left != "" {
		w.Failf("M4", "", "45 minutes after the faults: %s", left)
	}
}

// redeliver receives the dead letters of all agents again.
func (w *world) redeliver(ctx context.Context, list []*process) {
	w.model.mu.Lock()
	w.isRedelivered = true
	w.model.mu.Unlock()
	for _, p := range list {
		for d, err := range p.Inbox.DeadLetters(ctx) {
			if err == nil {
				_, err = p.Inbox.Redeliver(ctx, d.ID)
			}
			if err != nil && !errors.Is(err, store.ErrNotFound) { // it followed another letter
				w.Failf("M1", p.Node.Name(), "dead letter %s: %v", d.EnvelopeID, err)
			}
		}
		for d := range p.Inbox.DeadLetters(ctx) {
			w.Failf("M1", p.Node.Name(), "dead letter %s stays: %s %s", d.EnvelopeID, d.Code, d.Detail)
		}
	}
}

// queued describes the messages in transit, and fills in the state of those in an outbox.
func (w *world) queued(ctx context.Context, list []*process, texts map[string]string) (text string) {
	for i, p := range list {
		messages, err := p.Outbox(ctx)
		if err != nil {
			return err.Error()
		}
		for _, m := range messages {
			texts[m.ID] = fmt.Sprintf("%s of %s: %s, failed %v", p.Node.Name(), m.ID, m.Code, m.Failed)
			if m.Failed.IsZero() {
				text = "in the outbox of " + texts[m.ID]
			} else if m.Code == air.ErrConflict {
				w.orphan(m.ID, w.identity(i).DID())
			}
		}
	}
	if r, ok := w.relay.Instance().(*process); ok {
		if n := r.relay.Stats().Queued; n > 0 {
			text = fmt.Sprintf("%d envelopes at the relay", n)
		}
	}
	return text
}
