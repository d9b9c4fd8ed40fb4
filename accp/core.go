// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package accp

import (
	"cmp"
	"context"
	"encoding/base64"
	"errors"
	"math"

	"github.com/fivewire/fivewire/accp/internal/record"
	"github.com/fivewire/fivewire/accp/internal/tier"
)

// A core is the state of a session that its record has. It changes by events only, so processes with
// the same record have the same core.
type core struct {
	started   bool  // a frame was received in order
	high      int64 // M of ACCP-D24
	last      fifo[int64]
	seen      window
	cancelled window
	changes   window // message ids of received changes of the shared state
	version   int64  // of the shared state
	state     Params
	digest    string // of the state
	bytes     int    // of the state
	tiers     tier.State
}

// An event is the change by one frame, one message or one checkpoint.
type event struct {
	Sender  string `accp:"sender,omitempty"` // of a frame with a number
	Seq     int64  `accp:"seq,omitempty"`    // the last one of a message in parts
	Exact   bool   `accp:"exact,omitempty"`  // the number replaces a higher one
	Started bool   `accp:"started,omitempty"`

	Seen      string `accp:"seen,omitempty"` // the mark of a message id
	Cancelled string `accp:"cancelled,omitempty"`

	Version int64  `accp:"version,omitempty"`
	State   *Value `accp:"state,omitempty"`
	Delta   *Value `accp:"delta,omitempty"`

	Hot        *tier.Message      `accp:"hot,omitempty"`
	Checkpoint *tier.Checkpoint   `accp:"checkpoint,omitempty"`
	HotTokens  int                `accp:"hottokens,omitempty"` // after the checkpoint
	Maximum    int                `accp:"maximum,omitempty"`   // number of checkpoints
	Refine     string             `accp:"refine,omitempty"`    // id of a checkpoint
	Refined    *tier.Summary      `accp:"refined,omitempty"`
	Peer       *tier.Announcement `accp:"peer,omitempty"`
	Void       string             `accp:"void,omitempty"`
	Drop       bool               `accp:"drop,omitempty"` // the oldest checkpoint

	Schemas *Value `accp:"schemas,omitempty"` // custom schemas, if they have changed

	basis int // number of loads before the decision
}

// apply changes the core and returns the checkpoints that were removed.
func (c *core) apply(e *event) (dropped []tier.Checkpoint) {
	c.applyNumber(e)
	if e.Seen != "" {
		c.seen.add(parseMark(e.Seen))
	}
	if e.Cancelled != "" {
		c.cancelled.add(parseMark(e.Cancelled))
	}
	switch {
	case e.State != nil:
		c.setState(e.Version, e.State.Entries())
	case e.Delta != nil:
		c.setState(e.Version, Apply(c.state, e.Delta.Entries()))
		if e.Seen != "" {
			c.changes.add(parseMark(e.Seen))
		}
	}
	if e.Void != "" {
		c.tiers.Forbid(e.Void)
	}
	if e.Peer != nil {
		c.tiers.Announce(*e.Peer)
	}
	if e.Hot != nil {
		c.tiers.Add(*e.Hot)
	}
	switch {
	case e.Checkpoint != nil:
		dropped = c.tiers.Commit(*e.Checkpoint, e.HotTokens, e.Maximum)
	case e.Drop && len(c.tiers.Checkpoints) > 0:
		dropped = []tier.Checkpoint{c.tiers.Drop()}
	}
	if e.Refined != nil {
		c.tiers.Refine(e.Refine, *e.Refined)
	}
	return dropped
}

// applyNumber takes over the number of a frame.
func (c *core) applyNumber(e *event) {
	if e.Sender == "" {
		return
	}
	c.started = c.started || e.Started
	c.high = max(c.high, e.Seq)
	if e.Exact {
		c.high = e.Seq
	}
	c.last.add(e.Sender, e.Seq)
}

// setState sets the shared state.
func (c *core) setState(version int64, p Params) {
	v := Value{kind: KindMap, list: p}
	c.version, c.state, c.bytes = version, p, v.size()
	c.digest, _ = digest(v) // the value was in a frame
}

// order reports whether the number of a received frame is in order, and whether a refused one is used
// up (ACCP-D24, ACCP-D25).
func (c *core) order(from string, n int64, perSender, isBase bool) (ok, isUsed bool) {
	last, found := c.last.get(from)
	isBase = isBase || !c.started
	high := c.high
	if perSender {
		if !found {
			return true, true
		}
		high = last
	}
	// The differences cannot overflow: no number is negative.
	switch {
	case found && n <= last:
		return false, false
	case isBase, n <= high, n-high == 1:
		return true, true
	}
	return false, n-high <= maxJump+1
}

// next returns the number of the next frame of a sender. The error reports that the session has used
// all numbers (ACCP-D20).
func (c *core) next(from string, perSender bool) (int64, error) {
	n := c.high
	if perSender {
		n, _ = c.last.get(from)
	}
	if n == math.MaxInt64 {
		return 0, errNoNumber()
	}
	return n + 1, nil
}

func errNoNumber() error {
	return fail(ErrInternal, "the sequence numbers of the session are used up")
}

// reset returns an empty core with the bounds of c.
func (c *core) reset() core {
	return core{last: fifo[int64]{max: c.last.max}, seen: window{max: c.seen.max}, cancelled: window{max: c.cancelled.max},
		changes: window{max: maxChanges}, digest: emptyDigest}
}

var emptyDigest, _ = digest(Map())

// A snapshot is a whole core in a record.
type snapshot struct {
	Started   bool
	High      int64
	Names     []string // of senders
	Numbers   []int64
	Seen      string
	Cancelled string
	Changes   string
	Version   int64
	State     Value
	Tiers     tier.State
	Schemas   Value
}

func (c *core) snapshot() snapshot {
	out := snapshot{Started: c.started, High: c.high, Names: c.last.keys(), Version: c.version, Tiers: c.tiers,
		State: Value{kind: KindMap, list: c.state}, Seen: c.seen.text(), Cancelled: c.cancelled.text(), Changes: c.changes.text()}
	for _, name := range out.Names {
		n, _ := c.last.get(name)
		out.Numbers = append(out.Numbers, n)
	}
	return out
}

// restore replaces the core by that of a snapshot.
func (c *core) restore(s *snapshot) error {
	*c = c.reset()
	c.started, c.high, c.tiers = s.Started, s.High, s.Tiers
	c.tiers.Recount()
	if len(s.Names) != len(s.Numbers) || !c.seen.setText(s.Seen) || !c.cancelled.setText(s.Cancelled) || !c.changes.setText(s.Changes) {
		return record.ErrDamaged
	}
	for i, name := range s.Names {
		c.last.add(name, s.Numbers[i])
	}
	c.setState(s.Version, s.State.Entries())
	return nil
}

// text returns the marks of a window.
func (w *window) text() string {
	var out []byte
	for _, m := range w.from(0) {
		out = append(out, m[:]...)
	}
	return base64.RawStdEncoding.EncodeToString(out)
}

// setText adds the marks of text.
func (w *window) setText(s string) bool {
	data, err := base64.RawStdEncoding.DecodeString(s)
	if err != nil || len(data)%len(mark{}) != 0 {
		return false
	}
	for ; len(data) > 0; data = data[len(mark{}):] {
		w.add(mark(data))
	}
	return true
}

// durable reports whether the session has a record.
func (s *Session) durable() bool { return s.log != nil }

// refresh loads the record if another process may have changed it. The session must be entered.
func (s *Session) refresh(ctx context.Context) error {
	if !s.durable() || !s.dirty {
		return nil // a change by another process makes the next one a conflict
	}
	err := s.log.Load(ctx, func(kind record.Kind, data []byte) error {
		v, err := storedCodec.DecodeValue(data)
		if err != nil {
			return record.ErrDamaged
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		if kind == record.Snapshot {
			var all snapshot
			if err := Unmarshal(v.Entries(), &all); err != nil {
				return record.ErrDamaged
			}
			return cmp.Or(s.core.restore(&all), s.learnLocked(&all.Schemas))
		}
		var e event
		if err := Unmarshal(v.Entries(), &e); err != nil {
			return record.ErrDamaged
		}
		if kind == record.First {
			s.core = s.core.reset()
		}
		s.applyLocked(&e)
		return s.learnLocked(e.Schemas)
	})
	if err != nil {
		return &Error{Code: ErrInternal, Message: "reading the session", Cause: err}
	}
	s.dirty = false
	s.loads++
	s.mu.Lock()
	defer s.mu.Unlock()
	for chain := range s.running {
		if s.core.cancelled.has(markOf(chain)) {
			s.stopLocked(chain)
		}
	}
	return nil
}

// applyLocked applies an event and returns the checkpoints that were removed. s.mu must be held.
func (s *Session) applyLocked(e *event) []tier.Checkpoint {
	if e.Hot != nil {
		s.view.add(e.Hot.Text)
	}
	return s.core.apply(e)
}

// learnLocked adds the schemas of a record. s.mu must be held.
func (s *Session) learnLocked(schemas *Value) error {
	if schemas == nil || schemas.Len() == 0 {
		return nil
	}
	err := s.registry.learn(*schemas)
	s.recorded = s.registry.Hash()
	return err
}

// append records an event and applies it. It returns record.ErrConflict if another process has changed
// the record, also if the session has loaded that since the decision; the caller then decides again. The
// session must be entered.
func (s *Session) append(ctx context.Context, e *event) error {
	if e.basis != s.loads {
		return record.ErrConflict
	}
	if s.durable() {
		if hash := s.registry.Hash(); hash != s.recorded {
			schemas := s.registry.Delta()
			e.Schemas = &schemas
			defer func() { s.recorded = hash }()
		}
		if err := s.write(ctx, record.Event, e); err != nil {
			s.recorded = ""
			return err
		}
	}
	s.mu.Lock()
	dropped := s.applyLocked(e)
	s.mu.Unlock()
	for _, c := range dropped {
		s.removeEntries(ctx, &c)
	}
	if !s.durable() || !s.log.IsDue() {
		return nil
	}
	all := s.core.snapshot()
	all.Schemas = s.registry.Delta()
	if err := s.write(ctx, record.Snapshot, &all); err != nil {
		s.logger.DebugContext(ctx, "accp: record not compacted", "session", s.id, "err", err)
	}
	return nil
}

// write appends an entry to the record. After an error the record is loaded before the next change.
func (s *Session) write(ctx context.Context, kind record.Kind, entry any) error {
	params, err := Marshal(entry)
	if err != nil {
		return err
	}
	data, err := storedCodec.AppendValue(make([]byte, 0, 512), Map(params...))
	if err != nil {
		return err
	}
	if kind == record.Snapshot || s.log.IsEmpty() {
		// The key shows the record to other sides, see remove.
		err = overwrite(ctx, s.opts.Persistence.Store, s.private().key(s.id, "side", s.self), nil, 2*keepRecord(s.opts.Persistence.Retention))
	}
	switch {
	case err != nil:
	case kind == record.Snapshot:
		err = s.log.Compact(ctx, data)
	default:
		err = s.log.Append(ctx, kind, data)
	}
	if err != nil {
		s.dirty = true
	}
	if err != nil && !errors.Is(err, record.ErrConflict) {
		err = &Error{Code: ErrInternal, Message: "writing the session", Cause: err}
	}
	return err
}

// change appends the event of decide, which is called again after each change by another process. No
// event is no change. The session must be entered.
func (s *Session) change(ctx context.Context, decide func() (*event, error)) error {
	for {
		if err := s.refresh(ctx); err != nil {
			return err
		}
		basis := s.loads
		e, err := decide()
		if err != nil || e == nil {
			return err
		}
		e.basis = basis
		if err := s.append(ctx, e); !errors.Is(err, record.ErrConflict) {
			return err
		}
	}
}

// Reload loads the changes of other processes, or of an earlier one. Sending and receiving does so
// automatically. Call it before [Session.State], [Session.ModelContext], [Session.Checkpoints],
// [Session.IsCancelled] or [Session.Budget], or to detect the cancel of a chain in another process
// (see [Session.ChainContext]). Without a Store it does nothing.
func (s *Session) Reload(ctx context.Context) error {
	return s.entered(ctx, func() error {
		s.dirty = true
		return s.refresh(ctx)
	})
}
