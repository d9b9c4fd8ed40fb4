// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package accp

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"sync"

	"github.com/fivewire/fivewire/accp/internal/order"
	"github.com/fivewire/fivewire/accp/internal/record"
	"github.com/fivewire/fivewire/accp/internal/tier"
	"github.com/fivewire/fivewire/internal/option"
	"github.com/fivewire/fivewire/internal/state"
)

// A core is the state of a session that its record has. It changes by changes only, so processes with
// the same record have the same core.
type core struct {
	numbers order.State
	shared  sharedState
	tiers   tier.State
}

// A change is an event of a session.
type change struct {
	record.Event
	shared     *sharedState // after the event; nil: unchanged
	generation int          // of the core that it is a change of
}

// apply changes the core and returns the checkpoints that were removed.
func (c *core) apply(e *change) (dropped []*tier.Checkpoint) {
	e.ApplyNumbers(&c.numbers)
	if e.shared != nil {
		c.shared = *e.shared
	}
	return c.tiers.Apply(&e.Tiers)
}

// A history is what a session remembers: its state, its record, and the targets of its checkpoints. Except for mu and the
// fields that need it, it belongs to the goroutine that has entered the session.
type history struct {
	id       string
	opts     *SessionOptions
	logger   *slog.Logger
	codec    *Codec
	registry *Registry
	refs     references
	chains   chains
	view     view
	refiner  refiner
	holds    holdings

	// mu guards the fields below. The goroutine that has entered the session reads core without mu.
	mu    sync.Mutex
	core  core
	stats Stats

	record     *record.Session // nil without a store
	generation int             // of core: how often it was restored
	recorded   string          // hash of the registry in the record
	failed     []string        // triggers of a checkpoint that failed
	hotLimit   int             // messages
	parts      *partGroup
}

// open prepares the history of a session of agent self.
func (h *history) open(self, id string, o *SessionOptions, codec *Codec) {
	h.id, h.opts, h.codec = id, o, codec
	h.logger = cmp.Or(o.Logger, slog.Default())
	h.registry = o.Registry.clone()
	h.refs = references{sid: id, retention: o.Persistence.Retention, log: h.logger, mu: &h.mu, tiers: &h.core.tiers, grants: map[string]bool{}}
	h.refs.newMemory()
	if o.Persistence.SharedStore != nil {
		h.refs.shared = entries{state.GuardKV(o.Persistence.SharedStore), "accp-shared/"}
	}
	h.holds = holdings{schemaBytes: h.registry.tables().bytes,
		memory:  meter{limit: option.Bytes(o.MaxMemory, 16<<20), size: h.memorySize},
		storage: meter{limit: option.NoBytes, size: h.storageSize}}
	// The windows take at most half of the memory: what they hold refuses no frame.
	marks := max(int(min(h.holds.memory.limit/(4*markBytes), maxSeen)), minSeen)
	h.core = core{numbers: order.New(marks, o.SeqPerSender), shared: emptyState()}
	h.hotLimit = maxHotFrames
	if db := state.Guard(o.Persistence.Store); db != nil {
		t := entries{db, "accp/"}
		h.refs.private = t
		h.record = record.New(db, record.Options{Stream: t.key(id, "session", self), Sides: t.key(id, "side", ""), Self: self,
			Keep: keepRecord(o.Persistence.Retention)})
	}
}

// forget drops the state at the end of the session.
func (h *history) forget() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.core = core{numbers: h.core.numbers.Reset(), shared: emptyState()}
	h.refs.newMemory()
	h.view.isOpen, h.view.pending = false, nil
	h.holds.entryBytes, h.holds.moved, h.holds.entries = 0, nil, nil
	h.parts, h.failed = nil, nil
}

// A restorer restores the core of a session from its record.
type restorer struct{ *history }

func (r restorer) Reset() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.core = core{numbers: r.core.numbers.Reset(), shared: emptyState()}
	r.view.isOpen, r.view.pending = false, nil
}

func (r restorer) Restore(all *record.Snapshot, hasGap bool) error {
	shared, err := stateOf(all.Version, all.State)
	if err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	numbers, err := all.Numbers(&r.core.numbers)
	if err != nil {
		return err
	}
	r.core = core{numbers: numbers, shared: shared, tiers: all.Tiers}
	r.core.tiers.Recount()
	if hasGap { // of the view
		r.view.isOpen, r.view.pending = false, nil
	}
	return r.learn(all.Schemas)
}

func (r restorer) Apply(e *record.Event) error {
	c := change{Event: *e}
	r.mu.Lock()
	defer r.mu.Unlock()
	var err error
	switch {
	case e.State != "":
		c.shared, err = pointer(stateOf(e.Version, e.State))
	case e.Delta != "":
		c.shared, err = pointer(r.core.shared.after(e.Version, e.Delta))
	}
	if err != nil {
		return err
	}
	clear(r.applyLocked(&c))
	return r.learn(e.Schemas)
}

func pointer[T any](v T, err error) (*T, error) { return &v, err }

// learn adds the schemas of a record.
func (r restorer) learn(text string) error {
	if text == "" {
		return nil
	}
	delta, err := storedCodec.DecodeValue([]byte(text))
	if err != nil {
		return record.ErrDamaged
	}
	err = r.registry.learn(delta)
	r.recorded = r.registry.Hash()
	return err
}

// applyLocked applies a change and returns the checkpoints that were removed. h.mu must be held.
func (h *history) applyLocked(e *change) []*tier.Checkpoint {
	if e.Tiers.Hot != nil {
		h.view.add(e.Tiers.Hot.Text)
	}
	return h.core.apply(e)
}

// refresh loads the record if another process may have changed it. The session must be entered.
func (h *history) refresh(ctx context.Context) error {
	if h.record == nil {
		return nil
	}
	isLoaded, err := h.record.Load(ctx, restorer{h})
	if err != nil {
		return &Error{Code: ErrInternal, Message: "reading the session", Cause: err}
	}
	if isLoaded {
		h.generation++
		h.chains.stopIf(h.isCancelled)
	}
	return nil
}

// isCancelled reports whether the chain has been cancelled.
func (h *history) isCancelled(chain string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.core.numbers.Cancelled.Has(order.MarkOf(chain))
}

// canSend returns an error if an agent has used all numbers.
func (h *history) canSend(from string) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if _, ok := h.core.numbers.Next(from); !ok {
		return errNoNumber()
	}
	return nil
}

// count adds n to a counter of h.stats.
func (h *history) count(counter *int64, n int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	*counter += int64(n)
}

// commit records a change and applies it. It returns record.ErrConflict if another process has changed
// the record, also if the session has loaded that since the decision; the caller then decides again. The
// session must be entered.
func (h *history) commit(ctx context.Context, e *change) error {
	if e.generation != h.generation {
		return record.ErrConflict
	}
	if h.record != nil {
		if err := h.append(ctx, e); err != nil {
			return err
		}
	}
	h.mu.Lock()
	dropped := h.applyLocked(e)
	h.mu.Unlock()
	for _, c := range dropped {
		h.refs.remove(ctx, c)
	}
	clear(dropped)
	if h.record != nil && h.record.IsDue() {
		h.compact(ctx)
	}
	return nil
}

// append appends a change to the record.
func (h *history) append(ctx context.Context, e *change) error {
	hash := h.registry.Hash()
	if hash != h.recorded {
		text, err := storedCodec.AppendValue(nil, h.registry.delta())
		if err != nil {
			return err
		}
		e.Schemas = string(text)
	}
	err := h.record.Append(ctx, &e.Event)
	switch {
	case err == nil:
		h.recorded = hash
	case !errors.Is(err, record.ErrConflict):
		h.recorded = ""
		err = &Error{Code: ErrInternal, Message: "writing the session", Cause: err}
	}
	return err
}

// compact replaces the record by a snapshot.
func (h *history) compact(ctx context.Context) {
	c := &h.core
	all := &record.Snapshot{Version: c.shared.version, Tiers: c.tiers}
	all.SetNumbers(&c.numbers)
	state, err := storedCodec.AppendValue(nil, Value{kind: KindMap, list: c.shared.params})
	schemas, serr := storedCodec.AppendValue(nil, h.registry.delta())
	if err = errors.Join(err, serr); err == nil {
		all.State, all.Schemas = string(state), string(schemas)
		err = h.record.Compact(ctx, all)
	}
	switch {
	case errors.Is(err, record.ErrConflict): // another process may have compacted it
		h.logger.DebugContext(ctx, "accp: record not compacted", "session", h.id, "err", err)
	case err != nil:
		h.logger.WarnContext(ctx, "accp: record not compacted", "session", h.id, "err", err)
	}
}

// update commits the change of decide, which is called again after each change by another process. Nil
// is no change. The session must be entered.
func (h *history) update(ctx context.Context, decide func() (*change, error)) error {
	for {
		if err := h.refresh(ctx); err != nil {
			return err
		}
		generation := h.generation
		e, err := decide()
		if err != nil || e == nil {
			return err
		}
		e.generation = generation
		if err := h.commit(ctx, e); !errors.Is(err, record.ErrConflict) {
			return err
		}
	}
}
