// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package altar

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"time"

	"github.com/fivewire/fivewire/altar/internal/core"
	"github.com/fivewire/fivewire/internal/budget"
	"github.com/fivewire/fivewire/internal/strictjson"
)

// do does what follows from a step. The shard must be locked, or all shards. Messages are queued here, so that each
// connection gets them in the order of the steps.
func (h *Host) do(sh *shard, now time.Time, e *core.Effect) {
	switch e.Kind {
	case core.GiveMessage:
		h.give(sh, e)
	case core.RefuseCall:
		h.refuseEffect(sh, now, e)
	case core.SendCall:
		h.sendCall(sh, callOf(e.Call), connOf(e.Runtime), now)
	case core.SendCancel:
		h.sendCancel(sh, callOf(e.Call), connOf(e.Runtime), e.Text)
	case core.SendCredit:
		h.sendIn(sh, connOf(e.Runtime), &StreamCredit{InvocationID: e.Call.ID(), SessionID: callOf(e.Call).sessionID, Credit: e.N}, budget.Hold{}, false)
	case core.AskRuntime:
		h.send(connOf(e.Runtime), &RequestFulfillment{SessionID: e.Session.ID})
	case core.AnnounceEnd:
		h.announceEnd(e.Session, e.Text)
	case core.JudgeCall:
		h.judged = append(h.judged, e.Call)
	case core.ChooseRuntime:
		h.chooseLater(sh, e)
	default:
		h.doRecord(sh, now, e)
	}
}

// doRecord does what concerns the ledger, the audit and the log.
func (h *Host) doRecord(sh *shard, now time.Time, e *core.Effect) {
	switch e.Kind {
	case core.ClaimCall:
		h.claimCall(sh, now, callOf(e.Call), e.Data)
	case core.RecordCall:
		h.recordCall(sh, now, callOf(e.Call))
	case core.AbandonCall:
		h.abandonCall(callOf(e.Call))
	case core.ProlongSession:
		h.prolong(sessionOf(e.Session))
	case core.ExpireSession:
		s := sessionOf(e.Session)
		sh.after = append(sh.after, func() { h.background(func() { h.expire(s) }) })
	case core.AuditCall, core.FinishCall:
		h.audit(sh, now, h.callRecord(e, now), nil)
	case core.AuditReplay:
		h.auditReplay(sh, now, e)
	case core.AuditSession:
		s := sessionOf(e.Session)
		h.audit(sh, now, &AuditRecord{Operation: e.Text, SessionID: e.Session.ID, Error: errorOf(e.Data)}, s.endedBy)
	case core.DropMessage:
		h.opts.Logger.DebugContext(h.ctx, "altar: message dropped", "reason", e.Text)
	}
}

// errorOf returns the error of an effect.
func errorOf(data any) *Error {
	err, _ := data.(error)
	e, _ := errors.AsType[*Error](err)
	return e
}

// give queues a message of a call for one of its connections.
func (h *Host) give(sh *shard, e *core.Effect) {
	a := attachmentOf(e.Reader)
	switch m := e.Data.(type) {
	case *StreamChunk:
		if a.corr != "" {
			own := *m
			own.header = header{CorrelationID: a.corr}
			m = &own
		}
		h.sendIn(sh, a.hc, m, budget.Hold{}, e.IsTaken)
	case *ToolResult:
		if m.CorrelationID != a.corr {
			own := *m
			own.header = header{CorrelationID: a.corr}
			m = &own
		}
		h.sendResult(sh, sessionOf(e.Session), a.hc, m)
	}
}

// sendResult queues the final result of a call. If its peer does not read, the result is charged to
// the session until it is sent; the record of the call has it, too.
func (h *Host) sendResult(sh *shard, s *session, hc *hostConn, m *ToolResult) {
	var hold budget.Hold
	if s != nil && !hc.out.hasSpace(hc.queueLimit(), weight(m)) {
		var err error
		if hold, err = h.scope(s).Reserve(budget.Memory, int64(weight(m))); err != nil {
			m = &ToolResult{InvocationID: m.InvocationID, Error: errSlowConsumer(), header: m.header}
		}
	}
	h.sendIn(sh, hc, m, hold, false)
}

// refuseEffect answers a call that does not run.
func (h *Host) refuseEffect(sh *shard, now time.Time, e *core.Effect) {
	a, err := attachmentOf(e.Reader), errorOf(e.Data)
	if e.IsNew {
		h.audit(sh, now, &AuditRecord{Operation: "call.refused", SessionID: e.Session.ID, InvocationID: e.Text, CorrelationID: a.corr,
			Contract: a.contract, Error: err}, a.hc)
	}
	of := header{RequestID: a.request, CorrelationID: a.corr}
	if e.IsAtOnce || a.hc.isPeer() {
		h.refuseCall(sh, a.hc, e.Text, of, err)
	} else {
		h.sendRefusal(a.hc, e.Text, of, err)
	}
}

// sendCall sends a call to its Runtime (ALT-116).
func (h *Host) sendCall(sh *shard, c *hostCall, rt *hostConn, now time.Time) {
	out := &c.sent
	if out.InvocationID != "" { // another Runtime may still have the message
		out = new(ToolCall)
	}
	*out = ToolCall{
		InvocationID: c.ID(), SessionID: c.sessionID, ToolName: rt.toolName(c.Contract), Parameters: c.normal, Metadata: c.metadata,
		header: header{CorrelationID: c.first.corr},
	}
	if rt.can(capDeadlines) {
		out.TimeoutMS = c.Rest(now).Milliseconds()
	}
	if c.TakesCredit() {
		credit := c.Stream.Credit()
		out.Credit = &credit
	}
	if rt.via != nil {
		h.forwardCall(c, rt, out)
		return
	}
	h.sendIn(sh, rt, out, budget.Hold{}, false)
}

func (h *Host) sendCancel(sh *shard, c *hostCall, rt *hostConn, reason string) {
	if rt.can(capCancellation) {
		m := &CancelCall{InvocationID: c.ID(), SessionID: c.sessionID, Reason: reason, header: header{CorrelationID: c.first.corr}}
		h.sendIn(sh, rt, m, budget.Hold{}, false)
	}
}

// callRecord returns the audit record of a call.
func (h *Host) callRecord(e *core.Effect, now time.Time) *AuditRecord {
	if h.opts.Audit == nil {
		return nil
	}
	c := callOf(e.Call)
	r := &AuditRecord{Operation: e.Text, Principal: c.principal.Name, Tenant: c.principal.Tenant, SessionID: c.sessionID,
		InvocationID: c.ID(), CorrelationID: c.first.corr, Contract: c.Contract, Error: errorOf(e.Data)}
	if rt := c.Runtime(); rt != nil {
		r.RuntimeID = rt.ID
	}
	if e.Reader != nil {
		r.CorrelationID = attachmentOf(e.Reader).corr
	}
	if e.Kind == core.FinishCall {
		r.Operation, r.Bytes, r.Chunks = "call.done", int64(len(c.normal)), e.N
		if !c.Start().IsZero() {
			r.Duration = now.Sub(c.Start())
		}
	}
	return r
}

func (h *Host) auditReplay(sh *shard, now time.Time, e *core.Effect) {
	h.audit(sh, now, &AuditRecord{Operation: "call.replayed", Principal: e.Session.Principal.Name, Tenant: e.Session.Principal.Tenant,
		SessionID: e.Session.ID, InvocationID: e.Text, CorrelationID: attachmentOf(e.Reader).corr, Contract: e.Record.Run.Value().Contract,
		RuntimeID: e.Record.Run.Value().RuntimeID}, nil)
}

// hostMessages makes the messages of a shard.
type hostMessages struct {
	slab []StreamChunk // to be used
}

// Fault implements [core.Messages].
func (hostMessages) Fault(cause core.Cause, c *core.Call) any {
	switch cause {
	case core.CauseUnexpected:
		return Errorf(ErrInternal, reasonUnexpectedStream,
			"the contract %s does not have streaming set, but the Runtime sent a part of a stream", c.Contract)
	case core.CauseNotFulfilled:
		return Errorf(ErrToolNotFound, ReasonNotFulfilled, "no Runtime fulfils the tool %s in this session", c.Contract)
	case core.CauseRuntimeDown:
		return Errorf(ErrRuntimeUnavailable, ReasonRuntimeDown, "the Runtime of the tool %s is not connected", c.Contract)
	case core.CauseOverloaded:
		return errRuntimesFull(callOf(c))
	case core.CauseDeadline:
		return Errorf(ErrExecutionTimeout, ReasonDeadline, "the tool %s did not finish in time", c.Contract)
	}
	return causeErrors[cause]()
}

// errRuntimesFull returns the error of a call that no Runtime has space for.
func errRuntimesFull(c *hostCall) *Error {
	for _, hc := range c.h.fleet.order {
		if c.Session().Registry().CanTake(c.Contract, &hc.runtime) && !hc.out.hasSpace(hc.queueLimit(), len(c.normal)+sizeOf(c.metadata)) {
			return errOverloaded("RuntimeQueueLimit")
		}
	}
	return errOverloaded("MaxConcurrentPerRuntime")
}

// causeErrors make the errors of a Host.
var causeErrors = [...]func() *Error{
	core.CauseUnknownSession:   errUnknownSession,
	core.CauseSessionDestroyed: func() *Error { return Errorf(ErrSessionInvalid, reasonSessionDestroyed, "the session has ended") },
	core.CauseSessionExpired:   func() *Error { return Errorf(ErrSessionInvalid, ReasonSessionExpired, "the session has ended") },
	core.CauseReused: func() *Error {
		return formFault(reasonInvocationIDReused, "", "the invocation id was used for another call")
	},
	core.CauseInUse:        func() *Error { return formFault(reasonInvocationIDInUse, "", "the invocation id is in use elsewhere") },
	core.CauseUnknownCall:  func() *Error { return formFault(reasonUnknownInvocation, "", "there is no such call to resume") },
	core.CauseNotRetained:  errNotRetained,
	core.CauseDisconnected: errDisconnected,
	core.CauseCancelled:    func() *Error { return Errorf(ErrExecutionFailed, ReasonCancelled, "the call was cancelled") },
	core.CauseClientGone: func() *Error {
		return Errorf(ErrExecutionFailed, reasonClientGone, "the call has no waiting client")
	},
	core.CauseGap: errChunkGap,
	core.CauseResultInStream: func() *Error {
		return Errorf(ErrInternal, reasonResultAfterChunk, "the Runtime sent a result after a part of a stream")
	},
	core.CauseInvalid: errInvalidResult,
	core.CauseSlow:    errSlowConsumer,
	core.CauseTooLarge: func() *Error {
		return Errorf(ErrInternal, reasonMessageTooLarge, "the result is too large for one message")
	},
}

// Result implements [core.Messages].
func (hostMessages) Result(c *core.Call, err any) any {
	return &ToolResult{InvocationID: c.ID(), Error: errorOf(err)}
}

// Last implements [core.Messages].
func (hostMessages) Last(c *core.Call, id int64, err any) any {
	return &StreamChunk{InvocationID: c.ID(), ChunkID: id, Error: errorOf(err), IsFinal: true}
}

// Size implements [core.Messages].
func (hostMessages) Size(message any) int { return weight(message.(Message)) - itemWeight }

// Chunk implements [core.Messages].
func (ms *hostMessages) Chunk(c *core.Call, id int64, payload []byte) any {
	if len(payload) > maxKept { // of short ones a few more may stay in memory
		return &StreamChunk{InvocationID: c.ID(), ChunkID: id, Payload: payload}
	}
	if len(ms.slab) == 0 {
		ms.slab = make([]StreamChunk, 32)
	}
	m := &ms.slab[0]
	ms.slab = ms.slab[1:]
	*m = StreamChunk{InvocationID: c.ID(), ChunkID: id, Payload: payload}
	return m
}

// maxKept bounds the bytes of a result that is kept as text.
const maxKept = 256

// Keep implements [core.Messages]: the members of a result one after the other, each behind its length plus one. The
// length of an absent member is 0. The cause of an error is for the log, which has it.
func (hostMessages) Keep(dst []byte, result any) ([]byte, bool) {
	m := result.(*ToolResult)
	if weight(m)-itemWeight > maxKept {
		return dst, false
	}
	return appendError(appendKept(appendKept(dst, m.Payload), m.RuntimeMetadata), m.Error), true
}

// KeepStream implements [core.Messages]: the id of the first chunk, the number of those after it, their payloads like the
// members of a result, and the error of the last one.
func (hostMessages) KeepStream(dst []byte, s *core.Stream) []byte {
	last := s.Last().Data.(*StreamChunk)
	dst = binary.AppendUvarint(dst, uint64(s.First()))
	dst = binary.AppendUvarint(dst, uint64(s.Next()-s.First()-1))
	s.Chunks(func(id int64, payload []byte) {
		if id < s.Next()-1 {
			dst = appendKept(dst, payload)
		}
	})
	return appendError(appendKept(dst, last.Payload), last.Error)
}

// appendError appends an error, if there is one, as the last member.
func appendError(dst []byte, e *Error) []byte {
	if e == nil {
		return dst
	}
	dst = appendKept(append(binary.AppendUvarint(dst, uint64(len(e.Code))+1), e.Code...), e.Details)
	if e.Remote {
		dst = append(dst, 1)
	} else {
		dst = append(dst, 0)
	}
	return append(dst, e.Message...)
}

func appendKept(dst, member []byte) []byte {
	if member == nil {
		return append(dst, 0)
	}
	return append(binary.AppendUvarint(dst, uint64(len(member))+1), member...)
}

// keptText is what is left of a text that Keep or KeepStream wrote.
type keptText []byte

func (k *keptText) number() int64 {
	n, size := binary.Uvarint(*k)
	*k = (*k)[size:]
	return int64(n)
}

func (k *keptText) member() json.RawMessage {
	n := k.number()
	if n == 0 {
		return nil
	}
	member := (*k)[: n-1 : n-1]
	*k = (*k)[n-1:]
	return json.RawMessage(member)
}

func (k *keptText) error() *Error {
	if len(*k) == 0 {
		return nil
	}
	return &Error{Code: Code(k.member()), Details: k.member(), Remote: (*k)[0] == 1, Message: string((*k)[1:])}
}

// Kept implements [core.Messages].
func (hostMessages) Kept(c *core.Call, kept string) any {
	k := keptText(kept)
	return &ToolResult{InvocationID: c.ID(), Payload: k.member(), RuntimeMetadata: k.member(), Error: k.error()}
}

// KeptStream implements [core.Messages].
func (hostMessages) KeptStream(c *core.Call, kept string) []core.Chunk {
	k := keptText(kept)
	first, n := k.number(), k.number()
	chunks := make([]core.Chunk, n, n+1)
	for i := range chunks {
		payload := k.member()
		chunks[i] = core.Chunk{ID: first + int64(i), Size: len(payload), Payload: payload}
	}
	return append(chunks, chunkOf(&StreamChunk{InvocationID: c.ID(), ChunkID: first + n, Payload: k.member(), Error: k.error(), IsFinal: true}))
}

func errNotRetained() *Error {
	return Errorf(ErrInternal, ReasonNotRetained, "what the call yielded is no longer kept")
}

func errDisconnected() *Error {
	return Errorf(ErrRuntimeUnavailable, ReasonDisconnected, "the Runtime of the call has disconnected")
}

// errOverloaded returns the error of a call over a bound that is the option of this name (ALT-D35).
func errOverloaded(limit string) *Error {
	e := Errorf(ErrRuntimeUnavailable, ReasonOverloaded, "too many calls: %s is reached", limit)
	return e.with("limit", strictjson.AppendString(nil, limit)).with("retry_after_ms", []byte("1000"))
}

func errSlowConsumer() *Error {
	return Errorf(ErrInternal, reasonSlowConsumer, "the client does not read")
}

// A collector makes one result of the chunks of a stream (ALT-D29).
type collector struct {
	a     *attachment
	limit int // bytes of a message
	parts []json.RawMessage
	size  int
	out   *ToolResult // once it is complete, or nearly too large
}

// Add implements [core.Collector].
func (l *collector) Add(chunk any) (n int, fits bool) {
	m := chunk.(*StreamChunk)
	if m.Payload != nil {
		l.parts = append(l.parts, m.Payload)
		n = len(m.Payload) + 1
		l.size += n
	}
	isLarge := l.size+1024 >= l.limit
	if isLarge || m.IsFinal {
		l.out = &ToolResult{InvocationID: m.InvocationID, Payload: joined(l.parts, l.size), header: header{CorrelationID: l.a.corr}}
	}
	return n, !isLarge || fitsMessage(l.out, l.limit)
}

// joined returns a JSON array of the parts, of about this size.
func joined(parts []json.RawMessage, size int) json.RawMessage {
	payload := append(make([]byte, 0, size+2), '[')
	for i, part := range parts {
		if i > 0 {
			payload = append(payload, ',')
		}
		payload = append(payload, part...)
	}
	return append(payload, ']')
}

// Result implements [core.Collector].
func (l *collector) Result() any { return l.out }

func fitsMessage(m *ToolResult, limit int) bool {
	out, err := appendMessage(nil, m, true)
	return err == nil && len(out) <= limit
}
