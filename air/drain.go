// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package air

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/fivewire/fivewire/internal/life"
)

// Limits of a drain (AIR-D65).
const (
	maxDrainEnvelopes = 1000
	maxDrainBytes     = 16 << 20
)

// A drain is one call of Drain.
type drain struct {
	arrived   time.Time // the response to the first pull
	pages     int
	envelopes int
	bytes     int
	hasNew    bool // the handler took an envelope
	round     round
	stopped   map[replayKey]bool // threads with an envelope that did not reach the handler yet
}

// drainLocked is one drain. p.turn must be held.
func (p *Poller) drainLocked(ctx context.Context, d *drain) error {
	if !p.at.IsBehind {
		p.unsettled = memo[replayKey, struct{}]{}
	}
	p.at = p.at.Begin()
	for {
		requested := p.at.Cursor
		pg, err := p.mailbox.pull(ctx, requested)
		p.at = p.at.Answer(requested, isRefusedCursor(err))
		before := p.at
		if err == nil {
			err = p.settleLocked(ctx, pg, requested, d)
		}
		if err != nil {
			var isDropped bool
			if p.at, isDropped = before.Fail(requested); isDropped {
				p.log.WarnContext(ctx, "air: refused cursor dropped", "endpoint", p.mailbox.url, "cursor", requested)
			}
			return err
		}
		p.at = p.at.Page(requested, pg.cursor, len(pg.items) == 0, pg.more)
		if !p.at.IsBehind || p.life.Ready() != nil || d.pages >= p.opts.MaxPages || d.envelopes >= maxDrainEnvelopes || d.bytes >= maxDrainBytes {
			return nil
		}
	}
}

// settleLocked handles and acknowledges a page. A shutdown waits for that. p.turn must be held.
func (p *Poller) settleLocked(ctx context.Context, pg *page, requested string, d *drain) error {
	w, err := p.life.Start(ctx, life.Part)
	if err != nil {
		return err
	}
	defer w.Finish()
	settled, err := p.handleLocked(w, pg, requested, d)
	return errors.Join(p.mailbox.ack(w, settled), err)
}

// handleLocked passes a page to the inbox and returns the ids to acknowledge. An id with an unsettled
// envelope is held back (AIR-D79). p.turn must be held.
func (p *Poller) handleLocked(ctx context.Context, pg *page, requested string, d *drain) (settled []string, err error) {
	now := time.Now()
	if d.pages == 0 {
		d.arrived = now
	}
	d.pages++
	d.envelopes += len(pg.items)
	for i := range pg.items {
		item := &pg.items[i]
		d.bytes += len(item.data)
		item.isFinal = item.data == nil
		if item.isFinal {
			p.log.WarnContext(ctx, "air: pulled message without envelope skipped", "id", item.id)
			continue
		}
		item.env, _ = p.inbox.receiver.opener.decode(item.data, true)
	}
	p.receivePage(ctx, pg.items, &arrival{arrived: d.arrived, pulled: now, round: &d.round}, d)
	for i := range pg.items {
		item := &pg.items[i]
		d.hasNew = d.hasNew || item.isNew
		if !item.isFinal {
			p.at = p.at.Hold(p.mailbox.before(item, requested))
			p.unsettled.put(hashKey('a', item.id, "", ""), struct{}{})
		}
	}
	listed := make(map[string]bool)
	for _, item := range pg.items {
		_, isHeld := p.unsettled.get(hashKey('a', item.id, "", ""))
		if item.id != "" && !isHeld && !listed[item.id] {
			listed[item.id] = true
			settled = append(settled, item.id)
		}
	}
	return settled, ctx.Err()
}

// minWorkers is the number of envelopes that are verified at a time, so that lookups do not wait for
// handlers.
const minWorkers = maxLookups

// handlerGrace is the time of an envelope besides that of its handler: for a lookup, and for the store.
const handlerGrace = 2 * time.Minute

// receivePage receives the envelopes of a page, those of one sender and thread in the order of their
// timestamps (AIR-D77, AIR-D78). Those behind one that did not reach the handler yet wait for the next drain. A shutdown
// leaves the rest of the page at the relay, and so does a handler that does not return in time.
func (p *Poller) receivePage(ctx context.Context, items []pulled, common *arrival, d *drain) {
	order, next, ready := sequence(items)
	ready = slices.DeleteFunc(ready, func(i int) bool { return items[i].env != nil && d.stopped[items[i].thread()] })
	workers := p.opts.MaxConcurrent
	if workers > 1 {
		workers = max(workers, minWorkers)
	}
	var places [minWorkers]int
	running, done := places[:0], make(chan outcome, len(items)) // room for a handler that is left behind
	mayBegin := func() bool { return len(ready) > 0 && ctx.Err() == nil && p.life.Ready() == nil }
	patience := p.inbox.opts.Timing.HandlerTimeout + handlerGrace
	if p.stuck == nil {
		p.stuck = time.NewTimer(patience)
	}
	defer p.stuck.Stop()
	for mayBegin() || len(running) > 0 {
		p.stuck.Reset(patience)
		if len(running) < workers && mayBegin() {
			i := ready[0]
			ready, running = ready[1:], append(running, i)
			go func(o outcome) {
				defer func() { done <- o }()
				p.receiveItem(ctx, &o.item, *common)
			}(outcome{i, items[order[i]]})
			continue
		}
		select {
		case o := <-done:
			at := slices.Index(running, o.place)
			running = slices.Delete(running, at, at+1)
			items[order[o.place]] = o.item
			if o.item.isOpen {
				d.stop(&o.item)
				continue
			}
			if n := next[o.place]; n >= 0 {
				at, _ := slices.BinarySearch(ready, n)
				ready = slices.Insert(ready, at, n)
			}
		case <-p.stuck.C: // a handler ignores the end of its context, and keeps its place
			p.log.ErrorContext(ctx, "air: handler does not return", "endpoint", p.mailbox.url, "envelopes", len(running))
			for _, i := range running {
				if item := &items[order[i]]; item.env != nil {
					d.stop(item)
				}
			}
			return
		}
	}
}

// An outcome is the item at a place of the order after it was received.
type outcome struct {
	place int
	item  pulled
}

// stop keeps the rest of the thread of an envelope for a later drain.
func (d *drain) stop(item *pulled) {
	if d.stopped == nil {
		d.stopped = make(map[replayKey]bool)
	}
	d.stopped[item.thread()] = true
}

func (p *Poller) receiveItem(ctx context.Context, item *pulled, a arrival) {
	if item.isFinal {
		return
	}
	a.data, a.env, a.via, a.slots = item.data, item.env, viaPull, p.slots
	a.record = AuditRecord{Time: time.Now(), Operation: "pull", Bytes: int64(len(item.data))}
	o := p.inbox.receiver.receive(ctx, &a)
	item.isFinal, item.isNew = o.Final, o.Delivery != nil
	item.isOpen = a.isOpen
}

// sequence returns the order in which items are handled, and for each place in it the place of the next
// envelope of the same sender and thread, or -1. ready are the places without an earlier one. The places
// of such envelopes are filled with them by timestamp; an item that cannot be read keeps its place.
func sequence(items []pulled) (order, next, ready []int) {
	places := make(map[replayKey][]int)
	order, next = make([]int, len(items)), make([]int, len(items))
	for i := range items {
		order[i], next[i] = i, -1
		e := items[i].env
		if e == nil {
			ready = append(ready, i)
			continue
		}
		k := items[i].thread()
		if len(places[k]) == 0 {
			ready = append(ready, i)
		}
		places[k] = append(places[k], i)
	}
	for _, list := range places {
		byTime := slices.Clone(list)
		slices.SortStableFunc(byTime, func(a, b int) int { return items[a].env.Time.Compare(items[b].env.Time) })
		for k, place := range list {
			order[place] = byTime[k]
			if k+1 < len(list) {
				next[place] = list[k+1]
			}
		}
	}
	return order, next, ready
}
