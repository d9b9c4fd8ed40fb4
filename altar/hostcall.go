// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package altar

import (
	"cmp"
	"crypto/sha256"
	"encoding/json"
	"hash/maphash"
	"sync"
	"time"

	"github.com/fivewire/fivewire/altar/internal/core"
	"github.com/fivewire/fivewire/altar/internal/ledger"
	"github.com/fivewire/fivewire/internal/budget"
	"github.com/fivewire/fivewire/internal/strictjson"
)

// A hostCall is one invocation in one session, from the moment that it is authorized until its outcome is forgotten
// (section e, call). The embedded call is the part of the core.
type hostCall struct {
	core.Call

	h         *Host
	contract  *contract
	sessionID string          // as the Runtime gets it
	principal core.Principal  // owner of the session
	normal    json.RawMessage // the parameters as they are dispatched
	metadata  map[string]string
	claim     *ledger.Claim

	scope  *budget.Scope
	work   budget.Hold // of one call
	memory budget.Hold // of the bytes of the call

	first   attachment       // of the first request
	request AuthorizeRequest // of the Authorizer
	sent    ToolCall         // to the first Runtime
}

func callOf(c *core.Call) *hostCall { return c.Data.(*hostCall) }

// An attachment is a connection that waits for a call.
type attachment struct {
	core.Reader
	hc            *hostConn
	corr, request string // ids of the ToolCall
	contract      string
}

func attachmentOf(r *core.Reader) *attachment { return r.Data.(*attachment) }

// newAttachment makes the connection of a ToolCall ready.
func (h *Host) attachment(a *attachment, hc *hostConn, m *ToolCall, c *contract) *attachment {
	*a = attachment{hc: hc, corr: m.CorrelationID, request: m.RequestID, contract: c.Name}
	a.Conn, a.Data = &hc.Conn, a
	if m.CollectChunks && c.Streaming {
		a.Collector = &collector{a: a, limit: h.opts.Limits.MaxMessage}
	}
	return a
}

// Reserve implements [core.Account].
func (c *hostCall) Reserve(bytes int64) any {
	work, err := c.scope.Reserve(budget.Work, 1)
	if err == nil {
		c.memory, err = c.scope.Reserve(budget.Memory, bytes)
	}
	if err != nil {
		work.Release()
		return overBudget(ErrRuntimeUnavailable, ReasonOverloaded, err)
	}
	c.work = work
	return nil
}

// Resize implements [core.Account].
func (c *hostCall) Resize(bytes int64) any {
	var err error
	if c.memory == (budget.Hold{}) { // an ended call is given again
		c.memory, err = c.scope.Reserve(budget.Memory, bytes)
	} else {
		err = c.memory.Resize(bytes)
	}
	if err != nil {
		return overBudget(ErrRuntimeUnavailable, ReasonOverloaded, err)
	}
	return nil
}

// Room implements [core.Account].
func (c *hostCall) Room() (free int64, isLow bool) { return c.scope.Room(budget.Memory) }

// Release implements [core.Account]. It frees the parameters of an ended call.
func (c *hostCall) Release() {
	c.work.Release()
	c.memory.Release()
	c.normal, c.metadata, c.request = nil, nil, AuthorizeRequest{}
}

// toolCall makes the checks of ALT-D23 up to the authorization, and passes a call to its shard. A call of another Host
// was authorized there.
func (h *Host) toolCall(hc *hostConn, m *ToolCall, from *forwardedCall) {
	id := m.SessionID
	if from != nil {
		id = hc.session.ID
	}
	sh := h.shardOf(id)
	now := h.lock(sh)
	s, c, pin, err := h.resolveCall(sh, hc, m, from)
	if err != nil || hc.isClosed.Load() {
		h.refused(sh, hc, m, c, err, now)
		h.unlock(sh)
		return
	}
	scope := h.scope(s)
	h.unlock(sh)

	call := &hostCall{h: h, contract: c, sessionID: m.SessionID, principal: s.Principal, metadata: m.Metadata, scope: scope}
	call.Contract, call.Pin, call.Account, call.Data = c.Name, pin, call, call
	normal, unfit := c.check.normalized(m.Parameters)
	call.normal = normal
	if from != nil {
		call.principal = core.Principal{Tenant: from.Tenant, Name: from.Principal}
		call.scope = h.budget.Scope(principalKey(call.principal, ""), m.SessionID)
	} else if err = h.authorize(hc, s, call, unfit == nil); err != nil {
		now = h.lock(sh)
		h.refused(sh, hc, m, c, err, now)
		h.unlock(sh)
		return
	}
	call.Print = h.fingerprint(m.ToolName, m.Parameters)
	var stream *core.Stream
	if c.Streaming {
		stream = core.NewStream(h.opts.Limits.MaxStoredChunks)
	}
	call.Stream = stream
	call.Init(core.CallLimits{
		Limit: cmp.Or(c.Timeout, h.opts.Timing.CallTimeout), Bound: time.Duration(min(m.TimeoutMS, maxTimeout.Milliseconds())) * time.Millisecond,
		IsIdempotent: c.Idempotent, IsPinned: pin != "", Params: len(normal) + sizeOf(m.Metadata),
	})
	e := core.Event{Kind: core.CallReceived, Session: &s.Session, Call: &call.Call, Conn: &hc.Conn, ID: m.InvocationID, N: m.ResumeFrom, Credit: core.NoCredit}
	e.Reader = &h.attachment(&call.first, hc, m, c).Reader
	if m.Credit != nil {
		e.Credit = *m.Credit
	}
	if unfit != nil {
		e.Data = asError(unfit)
	}
	hc.seat(sh)
	now = h.lock(sh)
	defer h.unlock(sh)
	if hc.isClosed.Load() {
		return
	}
	if h.drain.isStarted.Load() {
		e.Data = errDraining() // unless it is a repeat
	}
	h.step(sh, now, &e)
}

// resolveCall finds the session and the contract of a call, and the Runtime that it is pinned to.
func (h *Host) resolveCall(sh *shard, hc *hostConn, m *ToolCall, from *forwardedCall) (s *session, c *contract, pin string, err *Error) {
	if from != nil {
		s = hc.session
	} else if err = h.clientFault(hc); err == nil {
		s = h.own(sh, hc, m.SessionID)
	}
	switch {
	case err != nil:
		return nil, nil, "", err
	case s == nil || s.IsEnded():
		return nil, nil, "", errUnknownSession()
	}
	manifest := h.manifest.Load()
	if from != nil {
		c = manifest.byName[from.Contract]
		if c == nil {
			return nil, nil, "", errUnknownContract(from.Contract)
		}
		return s, c, from.Runtime, nil
	}
	name, pin, fault := resolveTool(manifest.has, m.ToolName)
	if fault != nil {
		return nil, nil, "", asError(fault)
	}
	return s, manifest.byName[name], pin, nil
}

// authorize asks the Authorizer about a call, with the parameters if they fit the contract.
func (h *Host) authorize(hc *hostConn, s *session, c *hostCall, fits bool) *Error {
	c.request = AuthorizeRequest{Principal: hc.principal(), Session: s.info(), Contract: c.contract.Contract, RuntimeID: c.Pin}
	if fits {
		c.request.Parameters = c.normal
	}
	denied := h.guard("Authorizer", func() error { return h.opts.Auth.Authorizer.Authorize(h.ctx, &c.request) })
	if denied != nil {
		return h.refusal("Authorizer", denied, ReasonDenied, "the caller may not use the tool "+c.contract.Name+" in this session")
	}
	return nil
}

func errDraining() *Error { return Errorf(ErrInternal, ReasonDraining, "the Host is shutting down") }

// refused answers a call that was not accepted. A nil error means that no response is due.
func (h *Host) refused(sh *shard, hc *hostConn, m *ToolCall, c *contract, err *Error, now time.Time) {
	if err == nil || hc.isClosed.Load() {
		return
	}
	sh.core.Counts.Rejected++
	if h.opts.Audit != nil && err.Reason() != reasonWrongRole {
		e := &AuditRecord{Operation: "call.refused", SessionID: m.SessionID, InvocationID: m.InvocationID, CorrelationID: m.CorrelationID, Error: err}
		if c != nil {
			e.Contract = c.Name
		}
		h.audit(sh, now, e, hc)
	}
	h.refuseCall(sh, hc, m.InvocationID, m.header, err)
}

// refuseCall picks the carrier: a ToolResult would end the wrong call if this connection waits for one with that id
// (ALT-D02).
func (h *Host) refuseCall(sh *shard, hc *hostConn, id string, of header, err *Error) {
	others := hc.seated.Load() &^ (1 << sh.index)
	if hc.isPeer() {
		h.offerStale(hc) // the Runtime may have left, and the call waits for it only if the other Host knows that
	}
	switch {
	case hc.isPeer() || hc.isHTTP() && err.Reason() == ReasonDraining || sh.core.Waits(&hc.Conn, id):
		h.send(hc, &ErrorMessage{Err: err, header: of})
	case others == 0:
		h.sendRefusal(hc, id, of, err)
	default: // it may wait in another shard
		sh.after = append(sh.after, func() {
			for i := range h.shards {
				if others&(1<<i) != 0 && h.shards[i].waits(hc, id) {
					h.send(hc, &ErrorMessage{Err: err, header: of})
					return
				}
			}
			h.sendRefusal(hc, id, of, err)
		})
	}
}

// waits reports whether a connection waits for a call with an id in an unlocked shard.
func (sh *shard) waits(hc *hostConn, id string) bool {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	return sh.core.Waits(&hc.Conn, id)
}

func (h *Host) sendRefusal(hc *hostConn, id string, of header, err *Error) {
	h.send(hc, &ToolResult{InvocationID: id, Error: err, header: header{CorrelationID: of.CorrelationID}})
}

// fingerprint returns that of parameters.
func (h *Host) fingerprint(tool string, params json.RawMessage) core.Fingerprint {
	buf, ok := h.scratch.Get().(*[]byte)
	if !ok {
		buf = new([]byte)
	}
	text := appendIdentity((*buf)[:0], strictjson.Value(params))
	sum := sha256.Sum256(text)
	text = append(append(append(text[:0], tool...), 0), sum[:]...)
	sum = sha256.Sum256(text)
	if cap(text) <= 64<<10 {
		*buf = text
		h.scratch.Put(buf)
	}
	return sum
}

// An idTable has the invocation ids in flight of all shards.
type idTable struct {
	seed  maphash.Seed
	parts [core.Shards]struct {
		mu   sync.Mutex
		byID map[string]*core.Call // guarded by mu
	}
}

func (t *idTable) part(id string) int {
	return int(maphash.String(t.seed, id) % core.Shards)
}

// Use implements [core.IDs].
func (t *idTable) Use(id string, c *core.Call) (other *core.Call) {
	p := &t.parts[t.part(id)]
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.byID == nil {
		p.byID = make(map[string]*core.Call)
	}
	if other = p.byID[id]; other == nil {
		p.byID[id] = c
	}
	return other
}

// Free implements [core.IDs].
func (t *idTable) Free(id string, c *core.Call) {
	p := &t.parts[t.part(id)]
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.byID[id] == c {
		delete(p.byID, id)
	}
}

// get returns the call with an id, or nil.
func (t *idTable) get(id string) *core.Call {
	p := &t.parts[t.part(id)]
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.byID[id]
}

// outcomes are the records of all shards.
type outcomes struct {
	h      *Host
	ttl    time.Duration
	expiry core.Timer // of the first record

	mu      sync.Mutex
	records *core.Records // guarded by mu
}

func (o *outcomes) init(h *Host) {
	o.h, o.ttl, o.records = h, h.opts.Persistence.ResultTTL, core.NewRecords(h.opts.Limits.MaxStoredResults)
	o.expiry.Event = timerFunc(o.expire)
}

// Find implements [core.Outcomes].
func (o *outcomes) Find(sc *core.RecordScope, id string, r *core.Record) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	found := o.records.Find(sc, id)
	if o.hasExpiredLocked(found) {
		found = o.records.Find(sc, id)
	}
	if found != nil {
		*r = *found
	}
	return found != nil
}

// hasExpiredLocked drops all expired records if r may be one, and reports whether it may. o.mu must be held.
func (o *outcomes) hasExpiredLocked(r *core.Record) bool {
	if r == nil || time.Since(time.Unix(0, r.EndedAt)) < o.ttl {
		return false
	}
	o.records.Expire(time.Now(), o.ttl)
	return true
}

// OwedTo implements [core.Outcomes].
func (o *outcomes) OwedTo(id string) *core.RecordScope {
	o.mu.Lock()
	defer o.mu.Unlock()
	r := o.records.Open(id)
	if o.hasExpiredLocked(r) {
		r = o.records.Open(id)
	}
	if r == nil {
		return nil
	}
	return r.Scope
}

// Add implements [core.Outcomes].
func (o *outcomes) Add(id string, r *core.Record, size int, isForRepeats bool, rt *core.Runtime) {
	o.mu.Lock()
	o.records.Add(id, r, size, isForRepeats, rt)
	isFirst := o.records.Len() == 1
	o.mu.Unlock()
	if isFirst {
		o.h.setTimer(&o.expiry, time.Unix(0, r.EndedAt).Add(o.ttl))
	}
}

// Close implements [core.Outcomes].
func (o *outcomes) Close(id string, rt *core.Runtime) {
	o.answered(id, func(of *core.Runtime) bool { return of == rt })
}

// answered notes the final message of a Runtime for an ended call, and reports whether the Runtime owed it.
func (o *outcomes) answered(id string, isOf func(rt *core.Runtime) bool) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	r := o.records.Open(id)
	if r == nil || !isOf(r.Owing()) {
		return false
	}
	o.records.Answered(r)
	return true
}

// EndScope implements [core.Outcomes].
func (o *outcomes) EndScope(sc *core.RecordScope) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.records.EndScope(sc)
}

// disconnected notes that a Runtime sends no more messages.
func (o *outcomes) disconnected(rt *core.Runtime) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.records.Disconnected(rt)
}

// expiryShare is the part of the lifetime of a record for which it may stay in memory after it: the timer locks all
// shards, so it does not fire for each record.
const expiryShare = 64

// expire drops the records of calls that ended a lifetime ago.
func (o *outcomes) expire(now time.Time) {
	o.mu.Lock()
	next, isAny := o.records.Expire(now, o.ttl)
	o.mu.Unlock()
	if isAny {
		soonest := now.Add(o.ttl / expiryShare)
		if next.Before(soonest) {
			next = soonest
		}
		o.h.setTimer(&o.expiry, next)
	}
}

func (o *outcomes) len() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.records.Len()
}
