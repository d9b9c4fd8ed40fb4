// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package altar

import (
	"context"
	"encoding/json"
	"errors"
	"iter"
	"slices"
	"time"

	"github.com/fivewire/fivewire/altar/internal/core"
)

// A Cluster forwards calls to Runtimes connected to other Hosts, so that a client of one Host can
// call the tools of all Hosts. A Host uses it only if no local Runtime can accept a call at
// once. Forwarded calls are validated and authorized by the first Host: the connected Hosts trust
// each other, and each has a unique ID. A call goes only to Hosts with the same contract.
//
// An implementation calls [Host.ServeForwarded], [Host.RuntimeOffers] and
// [Host.EndForwardedSession] of the other Host.
type Cluster interface {
	// Offers yields the Runtimes of all other Hosts, always in the same order, at once and after every
	// change, until ctx ends. The Host ranges over it once, or again if the sequence ends early.
	Offers(ctx context.Context) iter.Seq[[]RuntimeOffer]

	// Forward runs a call at the Host of an offer, and yields the messages of its ServeForwarded: a
	// ToolResult, or StreamChunks that end with the final chunk. An error comes once and last. An
	// [*Error] means that the other Host refused the call and that it did not run. After any other
	// error, or an end without a final message, the outcome is unknown.
	//
	// The end of ctx cancels the call at the other Host; [CancelReason] returns the reason. A
	// Cluster that loses its connection may repeat the request with Join set.
	Forward(ctx context.Context, to RuntimeOffer, call *ForwardedCall) iter.Seq2[Message, error]

	// SessionEnded notifies the other Hosts of the end of a session with forwarded calls. The
	// reason is "destroyed" or "expired". It must not block. If the notification is lost, the
	// session ends at the other Hosts when its lifetime expires.
	SessionEnded(sessionID, reason string)
}

// A RuntimeOffer is a Runtime and the contracts that it fulfils.
type RuntimeOffer struct {
	HostID    string
	RuntimeID string

	// Contracts are those that the Runtime fulfils, in the order of the manifest, and Digests those of
	// the contracts: lower-case hex SHA-256. A Host does not use an offer whose digest differs from
	// that of the contract in its manifest (ALT-D39).
	Contracts, Digests []string
}

// A ForwardedCall is a call that one Host forwards to another.
type ForwardedCall struct {
	HostID        string // that forwards it
	RuntimeID     string // that is to run it
	Contract      string
	ToolName      string // as the client wrote it
	InvocationID  string
	SessionID     string
	SessionTTL    time.Duration // what is left of the session
	Principal     string        // owner of the session, and its tenant
	Tenant        string
	Parameters    json.RawMessage // in normal form
	Metadata      map[string]string
	CorrelationID string
	Timeout       time.Duration // what is left of the allotted time; zero: that of the contract
	Attempt       int           // 0, or 1 after a failover (ALT-D24)

	// Join asks for a call that was forwarded before, from chunk ResumeFrom
	// on. It never starts one.
	Join       bool
	ResumeFrom int64
}

// A ForwardCancelledError is the cause with which the context of a forwarded call
// ends. Its reason is one of those of CancelCall (ALT-D32).
type ForwardCancelledError struct{ Reason string }

// Error includes the reason.
func (e *ForwardCancelledError) Error() string { return "altar: call cancelled: " + e.Reason }

// CancelReason returns why a forwarded call was cancelled, or nothing if ctx has
// not ended or ended for another reason than [ForwardCancelledError].
func CancelReason(ctx context.Context) string {
	var e *ForwardCancelledError
	if errors.As(context.Cause(ctx), &e) {
		return e.Reason
	}
	return ""
}

// errNoEnd reports a forwarded call whose final message did not come.
var errNoEnd = errors.New("altar: forwarded call: missing final message")

// A forwarding is a call of this Host that runs at another.
type forwarding struct {
	to     core.Offer
	cancel context.CancelCauseFunc
	gate   *creditGate // of a stream: what is taken from the other Host
}

// remoteConn returns a connection to a Runtime of another Host, for one call.
func (h *Host) remoteConn(o core.Offer) *hostConn {
	hc := &hostConn{h: h, role: roleRuntime, remote: &forwarding{to: o, gate: newCreditGate(0)}, capabilities: []string{CapCancellation, CapCredit}}
	hc.runtime = core.Runtime{ID: o.RuntimeID, IsConnected: true, TakesCredit: true, Data: hc}
	return hc
}

// offersRetry is the pause before the offers of a Cluster are requested again.
const offersRetry = time.Second

// watchOffers follows the offers of the Cluster until the Host is closed.
func (h *Host) watchOffers(ctx context.Context) {
	for ctx.Err() == nil {
		_ = h.guard("Cluster.Offers", func() error {
			for list := range h.opts.Cluster.Offers(ctx) {
				h.setOffers(list)
			}
			return nil
		})
		select {
		case <-time.After(offersRetry):
		case <-ctx.Done():
		}
	}
}

// setOffers replaces the offers of other Hosts. Held calls may go there.
func (h *Host) setOffers(list []RuntimeOffer) {
	now := h.lock()
	h.allOffers = nil
	for _, o := range list {
		h.allOffers = append(h.allOffers, core.Offer(o))
	}
	unlike := h.matchOffers()
	h.routeAgain(h.sessions.Held(), now)
	h.unlock()
	h.logUnlike(unlike)
}

// maxUnlike bounds the Hosts and contracts that are logged once.
const maxUnlike = 10_000

// matchOffers sets the offers by contract to those of the same contracts (ALT-D39). It returns the Hosts and
// contracts of the others that were not logged. h.mu must be held.
func (h *Host) matchOffers() (unlike [][2]string) {
	h.offers, unlike = core.Match(h.allOffers, h.opts.ID, func(name string) string {
		if c := h.manifest.byName[name]; c != nil {
			return c.digest
		}
		return ""
	})
	return slices.DeleteFunc(unlike, func(key [2]string) bool {
		isLogged := h.unlike[key]
		if h.unlike == nil || len(h.unlike) >= maxUnlike {
			h.unlike = make(map[[2]string]bool)
		}
		h.unlike[key] = true
		return isLogged
	})
}

func (h *Host) logUnlike(list [][2]string) {
	for _, key := range list {
		h.opts.Logger.WarnContext(h.ctx, "altar: offer of another contract not used", "host", key[0], "contract", key[1])
	}
}

// forwardCall sends a call to another Host.
func (h *Host) forwardCall(c *hostCall, rt *hostConn, now time.Time) {
	ctx, cancel := context.WithCancelCause(h.ctx)
	rt.remote.cancel = cancel
	c.s.forwarded = true
	if c.Stream != nil {
		rt.remote.gate.raise(c.Stream.Credit())
	}
	call := &ForwardedCall{
		HostID: h.opts.ID, RuntimeID: rt.runtime.ID, Contract: c.contract.Name, ToolName: c.toolName, InvocationID: c.id,
		SessionID: c.s.ID, SessionTTL: c.s.Expiry.Due().Sub(now), Principal: c.s.Principal.Name, Tenant: c.s.Principal.Tenant,
		Parameters: c.normal, Metadata: c.metadata, CorrelationID: c.corr, Timeout: c.Rest(now),
	}
	if c.HasFailedOver() {
		call.Attempt = 1
	}
	if h.closed {
		return // everything ends
	}
	_ = h.life.Go("forwarded call", func(context.Context) { h.runForward(ctx, c, rt, call) })
}

// runForward processes the messages of another Host.
func (h *Host) runForward(ctx context.Context, c *hostCall, rt *hostConn, call *ForwardedCall) {
	defer rt.remote.cancel(nil)
	end := errNoEnd
	failed := h.guard("Cluster.Forward", func() error {
		for m, err := range h.opts.Cluster.Forward(ctx, RuntimeOffer(rt.remote.to), call) {
			if err != nil {
				end = err
				return nil
			}
			if !h.forwardedAnswer(c, rt, m) {
				return nil
			}
			if chunk, ok := m.(*StreamChunk); ok && rt.remote.gate.wait(ctx, chunk.ChunkID+1) != nil {
				return nil // the call was cancelled
			}
		}
		return nil
	})
	if failed != nil {
		end = errNoEnd // a panic is no refusal
	}
	now := h.lock()
	defer h.unlock()
	rt.runtime.IsConnected = false
	if c.State() > core.Running {
		c.CloseAnswer()
		if o := h.records.Open(c.id); o != nil && o.IsOwedBy(&rt.runtime) {
			h.records.Answered(o)
		}
	}
	if !c.IsAt(&rt.runtime) {
		return
	}
	var refused *Error
	if !errors.As(end, &refused) {
		h.opts.Logger.WarnContext(h.ctx, "altar: forwarded call lost", "host", rt.remote.to.HostID, "runtime", rt.runtime.ID, "err", end)
		h.lost(c, now)
		return
	}
	c.Refuse()
	c.tried = append(c.tried, rt.remote.to)
	if next, err := h.place(c, now); err == nil {
		h.assign(c, next, now)
	} else if c.HasFailedOver() {
		h.fail(c, errDisconnected(), "", now)
	} else {
		h.turnDown(c, refused, now)
	}
}

// forwardedAnswer takes in one message from another Host, and reports whether
// more may come.
func (h *Host) forwardedAnswer(c *hostCall, rt *hostConn, m Message) bool {
	_, stray := h.stray(rt, m)
	now := h.lock()
	defer h.unlock()
	if stray {
		h.strayed(rt, c.id, now)
		return false
	}
	switch m := m.(type) {
	case *ToolResult:
		if m.InvocationID != c.id {
			return true
		}
		if m.Error != nil && m.Error.Code == ErrRuntimeUnavailable && m.Error.Reason() == ReasonDisconnected {
			return false // the remote Runtime has disconnected
		}
		own := *m
		h.toolResult(rt, &own, now)
		return false
	case *StreamChunk:
		if m.InvocationID == c.id {
			own := *m
			h.streamChunk(rt, &own, now)
			return !m.IsFinal
		}
	}
	return true
}

// The queue of messages to another Host is short, because what is in it is lost with the connection between
// the Hosts. A message of any size fits into the empty queue.
const (
	forwardedQueue      = 64
	forwardedQueueBytes = 512 << 10
)

// ServeForwarded runs a call that another Host forwards, and yields the messages of the Runtime: a
// ToolResult, or StreamChunks that end with the final chunk. An [*Error] means that the call was
// refused and did not run. Repeating the same call joins the running call, or yields its recorded
// outcome.
//
// If ctx ends with a [ForwardCancelledError], the call is cancelled. If ctx ends otherwise or the
// loop is left, the call continues for Timing.ClientGracePeriod, so that the other Host can join
// it.
func (h *Host) ServeForwarded(ctx context.Context, call *ForwardedCall) iter.Seq2[Message, error] {
	return func(yield func(Message, error) bool) {
		m, err := call.message()
		if err != nil {
			yield(nil, err)
			return
		}
		hc, closed := h.admit(nil, nil, "")
		switch {
		case closed != nil && call.Join:
			yield(nil, errNoEnd)
			return
		case closed != nil:
			yield(nil, errRuntimeDown())
			return
		}
		hc.peer, hc.limit = call, queueLimit{forwardedQueue, forwardedQueueBytes}
		defer h.release(hc)
		defer hc.detach()
		h.toolCall(hc, m)
		for {
			m, _ := hc.next(ctx)
			if m == nil {
				if reason := CancelReason(ctx); reason != "" {
					h.cancelForwarded(hc, reason)
				}
				if err := ctx.Err(); err != nil {
					yield(nil, context.Cause(ctx))
				} else {
					yield(nil, errNoEnd) // the Host is closed
				}
				return
			}
			if e, ok := m.(*ErrorMessage); ok {
				if call.Join {
					yield(nil, errNoEnd)
				} else {
					yield(nil, e.Err)
				}
				return
			}
			if !yield(m, nil) || last(m) {
				return
			}
		}
	}
}

// message is the ToolCall of a forwarded call. It is checked like one that came
// over a wire.
func (call *ForwardedCall) message() (*ToolCall, *Error) {
	m := &ToolCall{
		InvocationID: call.InvocationID, SessionID: call.SessionID, ToolName: call.Contract, Parameters: call.Parameters,
		Metadata: call.Metadata, TimeoutMS: call.Timeout.Milliseconds(), ResumeFrom: call.ResumeFrom,
		Header: Header{CorrelationID: call.CorrelationID},
	}
	if call.RuntimeID != "" {
		m.ToolName = namespaced(call.RuntimeID, call.Contract)
	}
	own, bad, err := vet(m)
	if err != nil || bad != nil {
		return nil, formFault(reasonInvalidValue, "", "the forwarded call is malformed")
	}
	return own.(*ToolCall), nil
}

// guest returns the session of a forwarded call. It is made when its first call
// comes; no client of this Host can use it.
func (h *Host) guest(call *ForwardedCall, now time.Time) (*session, *Error) {
	p := core.Principal{Tenant: call.Tenant, Name: call.Principal}
	s := h.session(call.SessionID)
	switch {
	case s != nil && (s.Principal != p || s.Kind == core.ProbeSession),
		s == nil && (call.Join || h.sessions.IsUsed(call.SessionID, now) || call.SessionTTL <= 0 || !validIdentifier(call.SessionID)):
		return nil, errUnknownSession()
	case s == nil:
		s = h.newSession(call.SessionID, p, core.GuestSession, call.SessionTTL, now)
		if e := h.reserveSession(s, principalKey(p, "")); e != nil {
			h.timers.Stop(&s.Expiry)
			return nil, e
		}
		h.sessions.Add(&s.Session)
		h.askAll(s, now)
	case s.Kind == core.GuestSession && now.Add(call.SessionTTL).After(s.Expiry.Due()):
		h.timers.Set(&s.Expiry, now.Add(call.SessionTTL)) // it slides over there
	}
	return s, nil
}

// cancelForwarded ends a call for the Host that forwarded it.
func (h *Host) cancelForwarded(hc *hostConn, reason string) {
	now := h.lock()
	defer h.unlock()
	for _, a := range sortedWaiting(hc.waiting) {
		if a.c.State() < core.Ending {
			h.fail(a.c, Errorf(ErrExecutionFailed, ReasonCancelled, "the call was cancelled"), reason, now)
		}
	}
}

// EndForwardedSession ends what is left here of a session of another Host; see
// [Cluster]. The reason is "destroyed" or "expired".
func (h *Host) EndForwardedSession(sessionID, reason string) {
	now := h.lock()
	defer h.unlock()
	s := h.session(sessionID)
	if s == nil || s.Kind != core.GuestSession {
		return
	}
	if reason == "expired" {
		h.endSession(s, "expired", ReasonSessionExpired, nil, now)
	} else {
		h.endSession(s, "destroyed", reasonSessionDestroyed, nil, now)
	}
}

// RuntimeOffers yields the fulfilments of the connected Runtimes of this Host, at once and after
// every change, until ctx ends or the Host is closed. It requires HostOptions.Cluster: only then
// does the Host request fulfilments from each connected Runtime, in an internal session.
func (h *Host) RuntimeOffers(ctx context.Context) iter.Seq[[]RuntimeOffer] {
	return func(yield func([]RuntimeOffer) bool) {
		for ctx.Err() == nil {
			h.lock()
			list, changed := h.ownOffers(), h.offersChanged
			h.unlock()
			if !yield(list) {
				return
			}
			select {
			case <-changed:
			case <-ctx.Done():
			case <-h.ctx.Done():
				return
			}
		}
	}
}

func (h *Host) ownOffers() []RuntimeOffer {
	offers := []RuntimeOffer{}
	if h.probe == nil {
		return offers
	}
	for _, rt := range h.order {
		o := RuntimeOffer{HostID: h.opts.ID, RuntimeID: rt.runtime.ID}
		for _, c := range h.manifest.list {
			if h.probe.Registry().Has(c.Name, &rt.runtime) {
				o.Contracts, o.Digests = append(o.Contracts, c.Name), append(o.Digests, c.digest)
			}
		}
		if len(o.Contracts) > 0 {
			offers = append(offers, o)
		}
	}
	return offers
}

// noteOffers wakes who watches the offers if they may have changed. It is called
// before the lock is given back.
func (h *Host) noteOffers() {
	if h.probe == nil || h.offered0 == (offersState{h.manifest, h.probe.Registry(), h.handshakes}) {
		return
	}
	h.offered0 = offersState{h.manifest, h.probe.Registry(), h.handshakes}
	close(h.offersChanged)
	h.offersChanged = make(chan struct{})
}

// offersState holds everything that the offers of a Host depend on. The referenced objects are
// immutable.
type offersState struct {
	manifest   *contracts
	reg        *core.Registry
	handshakes uint64
}
