// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package altar

import (
	"cmp"
	"crypto/sha256"
	"encoding/json"
	"time"

	"github.com/fivewire/fivewire/altar/internal/core"
	"github.com/fivewire/fivewire/internal/budget"
	"github.com/fivewire/fivewire/internal/strictjson"
)

// An outcome is the record of an ended call (ALT-D22). It keeps no buffer larger than its payload,
// and of the parameters only a fingerprint.
type outcome struct {
	s                 *session
	id                string
	print             fingerprint
	attempt           int       // of another Host, see [ForwardedCall]
	contract, runtime string    // for the audit
	rt                *hostConn // that owes a final message, or nil
	result            *ToolResult
	stream            *core.Stream // ended, if there is no result
	endedAt           time.Time
	size              int  // as counted
	isShort           bool // only the use of the id is known

	prev, next [2]*outcome // in the lists of the table and of its principal
}

// A fingerprint identifies the tool and the parameters of a call.
type fingerprint struct {
	tool string
	sum  [sha256.Size]byte // of the parameters, see appendIdentity
}

// fingerprint returns that of a call. It is called without h.mu.
func (h *Host) fingerprint(tool string, params json.RawMessage) fingerprint {
	buf, ok := h.scratch.Get().(*[]byte)
	if !ok {
		buf = new([]byte)
	}
	text := appendIdentity((*buf)[:0], strictjson.Value(params))
	f := fingerprint{tool, sha256.Sum256(text)}
	if cap(text) <= 64<<10 {
		*buf = text
		h.scratch.Put(buf)
	}
	return f
}

const (
	costWhole = 128 // bytes that an outcome counts besides its payload
	costShort = 16  // without a payload and a fingerprint
)

// An outcomeTable holds the outcomes of all principals, which count their payload and costWhole. Beyond
// its limit the principal that holds most loses its oldest payloads, then its oldest fingerprints,
// then its oldest ids. Bookkeeping never refuses a call.
type outcomeTable struct {
	limit  int64
	total  int64
	n      int
	list   outcomeList // in order of end
	shares map[principal]*share
}

// A share is the part of a principal in an outcomeTable.
type share struct {
	total int64
	list  outcomeList // in order of end
	bulky *outcome    // the first that may have a payload
	whole *outcome    // the first that may have a fingerprint
}

// An outcomeList is a list by the pointers with this index.
type outcomeList struct{ first, last *outcome }

func (l *outcomeList) push(o *outcome, i int) {
	o.prev[i], o.next[i] = l.last, nil
	if l.last != nil {
		l.last.next[i] = o
	} else {
		l.first = o
	}
	l.last = o
}

func (l *outcomeList) remove(o *outcome, i int) {
	if o.prev[i] != nil {
		o.prev[i].next[i] = o.next[i]
	} else {
		l.first = o.next[i]
	}
	if o.next[i] != nil {
		o.next[i].prev[i] = o.prev[i]
	} else {
		l.last = o.prev[i]
	}
	o.prev[i], o.next[i] = nil, nil
}

// add counts an outcome.
func (l *outcomeTable) add(o *outcome) {
	sh := l.shares[o.s.principal]
	if sh == nil {
		sh = &share{}
		l.shares[o.s.principal] = sh
	}
	l.list.push(o, 0)
	sh.list.push(o, 1)
	sh.bulky, sh.whole = cmp.Or(sh.bulky, o), cmp.Or(sh.whole, o)
	l.n++
	l.total += int64(o.size)
	sh.total += int64(o.size)
}

func (l *outcomeTable) resize(o *outcome, size int) {
	l.total += int64(size - o.size)
	l.shares[o.s.principal].total += int64(size - o.size)
	o.size = size
}

func (l *outcomeTable) remove(o *outcome) {
	sh := l.shares[o.s.principal]
	if sh.bulky == o {
		sh.bulky = o.next[1]
	}
	if sh.whole == o {
		sh.whole = o.next[1]
	}
	l.resize(o, 0)
	l.list.remove(o, 0)
	sh.list.remove(o, 1)
	l.n--
	if sh.list.first == nil {
		delete(l.shares, o.s.principal)
	}
}

// largest returns the share of the principal that holds most.
func (l *outcomeTable) largest() (max *share) {
	for _, sh := range l.shares {
		if max == nil || sh.total > max.total {
			max = sh
		}
	}
	return max
}

// shrink frees memory of the oldest outcome of a share that has any, and reports false if only ids
// are left.
func (l *outcomeTable) shrink(sh *share) bool {
	for o := sh.bulky; o != nil; o = sh.bulky {
		if sh.bulky = o.next[1]; o.size > costWhole {
			o.result, o.stream = &ToolResult{InvocationID: o.id, Error: errNotRetained()}, nil
			l.resize(o, costWhole)
			return true
		}
	}
	for o := sh.whole; o != nil; o = sh.whole {
		if sh.whole = o.next[1]; !o.isShort {
			o.print, o.result, o.stream, o.isShort = fingerprint{}, nil, nil, true
			l.resize(o, costShort)
			return true
		}
	}
	return false
}

// boundOutcomes enforces the limit of the table.
func (h *Host) boundOutcomes() {
	l, target := &h.outcomes, h.outcomes.limit
	for l.total > target {
		for sh := l.largest(); ; {
			if !l.shrink(sh) {
				h.forget(sh.list.first)
			}
			if len(l.shares) > 64 { // the search for the largest one takes time
				target = l.limit - l.limit/64
			}
			if len(l.shares) <= 64 || l.total <= target || sh.list.first == nil {
				break
			}
		}
	}
}

// forget removes an outcome.
func (h *Host) forget(o *outcome) {
	if o.s.outcomes[o.id] == o {
		delete(o.s.outcomes, o.id)
	}
	if o.rt == nil {
		h.outcomes.remove(o)
	}
	h.closeOpen(o)
}

// closeOpen ends the wait for the final message of the Runtime of an ended call.
func (h *Host) closeOpen(o *outcome) {
	if o.rt == nil {
		return
	}
	delete(h.open, o.id)
	delete(o.rt.unanswered, o.id)
	o.rt = nil
	if o.s.outcomes[o.id] != o {
		h.outcomes.remove(o)
	}
}

// recordHere keeps the outcome of a call. One that is not to be repeated is kept only as long as its
// Runtime owes a final message, because the id must not be used before that.
func (h *Host) recordHere(c *hostCall, record bool, now time.Time) {
	record = record && !c.s.isEnded
	isOpen := c.open && c.rt.runtime.IsConnected
	if !record && !isOpen {
		return
	}
	o := &outcome{s: c.s, id: c.id, attempt: c.attempt, endedAt: now, size: costShort, isShort: true}
	if record {
		o.contract = c.contract.Name
		if c.rt != nil {
			o.runtime = c.rt.runtime.ID
		}
		o.print, o.result, o.stream, o.size, o.isShort = c.print, c.result, c.stream, costWhole, false
		if c.result != nil {
			o.stream, o.size = nil, costWhole+len(c.result.Payload)+len(c.result.RuntimeMetadata)
		} else if c.stream != nil {
			o.size += c.stream.Bytes()
		}
		if c.s.outcomes == nil {
			c.s.outcomes = make(map[string]*outcome)
		}
		c.s.outcomes[c.id] = o
	}
	if isOpen {
		o.rt = c.rt
		h.open[c.id] = o
		c.rt.unanswered[c.id] = o
	}
	h.outcomes.add(o)
	h.boundOutcomes()
	if !h.endedAt.IsSet() {
		h.timers.Set(&h.endedAt, now.Add(h.opts.Persistence.ResultTTL))
	}
}

// forgetCalls drops outcomes and invocation ids that were kept long enough.
func (h *Host) forgetCalls(now time.Time) {
	for o := h.outcomes.list.first; o != nil; o = h.outcomes.list.first {
		if due := o.endedAt.Add(h.opts.Persistence.ResultTTL); now.Before(due) {
			h.timers.Set(&h.endedAt, due)
			return
		}
		h.forget(o)
	}
}

// forgetSession drops the outcomes of a session that has ended, but not ids that a Runtime may
// still answer.
func (h *Host) forgetSession(s *session) {
	for _, o := range s.outcomes {
		if o.rt == nil {
			h.outcomes.remove(o)
			continue
		}
		o.print, o.result, o.stream, o.isShort = fingerprint{}, nil, nil, true
		h.outcomes.resize(o, costShort)
	}
	s.outcomes = nil
}

// repeat attaches the second request with an invocation id in its session (ALT-D22).
func (h *Host) repeat(hc *hostConn, c *hostCall, m *ToolCall, print fingerprint, now time.Time) *Error {
	if c.print != print {
		return errReused()
	}
	if hc.waiting[c.id] != nil {
		h.dropped(hc, m, "a repeat on the same connection")
		return nil
	}
	a := h.attach(hc, c, m, now)
	if a == nil {
		return errNotRetained()
	}
	e := c.event("call.joined", nil)
	e.CorrelationID = m.CorrelationID
	h.auditLocked(now, e, nil)
	h.pump(a, now)
	return nil
}

// replayOutcome answers a request with an invocation id that was used before.
func (h *Host) replayOutcome(hc *hostConn, o *outcome, m *ToolCall, print fingerprint, now time.Time) *Error {
	switch {
	case o.isShort:
		return errNotRetained()
	case o.print != print:
		return errReused()
	case hc.waiting[o.id] != nil:
		h.dropped(hc, m, "a repeat on the same connection")
		return nil
	case o.result != nil:
		h.replayed(o, m, now)
		out := *o.result
		out.Header = Header{CorrelationID: m.CorrelationID}
		h.sendResult(o.s, hc, &out)
		return nil
	}
	own := *m
	if last := o.stream.Last().Data.(*StreamChunk); m.CollectChunks && last.Error != nil {
		own.ResumeFrom = last.ChunkID // the parts are dropped anyway
	}
	c := &hostCall{h: h, s: o.s, id: o.id, stream: o.stream, state: callDone}
	a := h.attach(hc, c, &own, now)
	if a == nil {
		return errNotRetained()
	}
	h.replayed(o, m, now)
	h.pump(a, now)
	if len(c.at) > 0 { // the rest waits
		c.memory, _ = o.s.scope.Reserve(budget.Memory, 1)
		h.linger(c)
	}
	return nil
}

func (h *Host) replayed(o *outcome, m *ToolCall, now time.Time) {
	h.auditLocked(now, &AuditRecord{Operation: "call.replayed", Principal: o.s.principal.name, Tenant: o.s.principal.tenant,
		SessionID: o.s.id, InvocationID: o.id, CorrelationID: m.CorrelationID, Contract: o.contract, RuntimeID: o.runtime}, nil)
}

func errReused() *Error {
	return formFault(ReasonInvocationIDReused, "", "the invocation id was used for another call")
}

func errNotRetained() *Error {
	return Errorf(ErrInternal, ReasonNotRetained, "what the call yielded is no longer kept")
}

// superseded drops the outcome of a forwarded call of which another attempt
// comes, and reports whether it did.
func (h *Host) superseded(hc *hostConn, o *outcome) bool {
	if hc.peer == nil || hc.peer.Attempt <= o.attempt {
		return false
	}
	h.forget(o) // a late answer is not mistaken for that of another Runtime
	return true
}
