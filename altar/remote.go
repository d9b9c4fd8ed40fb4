// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package altar

import (
	"context"
	"errors"
	"iter"
	"slices"
	"time"

	"github.com/fivewire/fivewire/altar/internal/cluster"
	"github.com/fivewire/fivewire/altar/internal/core"
)

// errNoEnd reports a forwarded call whose final message did not come.
var errNoEnd = errors.New("altar: forwarded call: missing final message")

// A clusterHost is a Host that others forward calls to.
type clusterHost struct{ h *Host }

func (c clusterHost) Offers(ctx context.Context) iter.Seq[[]cluster.Offer] {
	return c.h.runtimeOffers(ctx)
}

func (c clusterHost) Serve(ctx context.Context, call *cluster.Call) iter.Seq2[Message, error] {
	return c.h.serveForwarded(ctx, call)
}

func (c clusterHost) EndSession(sessionID, reason string) { c.h.endForwardedSession(sessionID, reason) }

// A forwarding is a call of this Host that runs at another.
type forwarding struct {
	to     core.Offer
	cancel context.CancelCauseFunc
	gate   *creditGate // of a stream: what is taken from the other Host
}

// remoteConn returns a connection to a Runtime of another Host, for one call.
func (h *Host) remoteConn(o core.Offer) *hostConn {
	hc := &hostConn{h: h, role: roleRuntime, remote: &forwarding{to: o, gate: newCreditGate(0)}, capabilities: []string{capCancellation, capCredit}}
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
func (h *Host) setOffers(list []cluster.Offer) {
	now := h.lock()
	h.allOffers = slices.Clone(list)
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
	call := &cluster.Call{
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
func (h *Host) runForward(ctx context.Context, c *hostCall, rt *hostConn, call *cluster.Call) {
	defer rt.remote.cancel(nil)
	end := errNoEnd
	failed := h.guard("Cluster.Forward", func() error {
		for m, err := range h.opts.Cluster.Forward(ctx, rt.remote.to, call) {
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

// serveForwarded is Serve of a [cluster.Host].
func (h *Host) serveForwarded(ctx context.Context, call *cluster.Call) iter.Seq2[Message, error] {
	return func(yield func(Message, error) bool) {
		m, err := forwardedMessage(call)
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
				if reason := cluster.CancelReason(ctx); reason != "" {
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

// forwardedMessage is the ToolCall of a forwarded call. It is checked like one that came
// over a wire.
func forwardedMessage(call *cluster.Call) (*ToolCall, *Error) {
	m := &ToolCall{
		InvocationID: call.InvocationID, SessionID: call.SessionID, ToolName: call.Contract, Parameters: call.Parameters,
		Metadata: call.Metadata, TimeoutMS: call.Timeout.Milliseconds(), ResumeFrom: call.ResumeFrom,
		header: header{CorrelationID: call.CorrelationID},
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
func (h *Host) guest(call *cluster.Call, now time.Time) (*session, *Error) {
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

// endForwardedSession is EndSession of a [cluster.Host].
func (h *Host) endForwardedSession(sessionID, reason string) {
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

// runtimeOffers is Offers of a [cluster.Host].
func (h *Host) runtimeOffers(ctx context.Context) iter.Seq[[]cluster.Offer] {
	return func(yield func([]cluster.Offer) bool) {
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

func (h *Host) ownOffers() []cluster.Offer {
	offers := []cluster.Offer{}
	if h.probe == nil {
		return offers
	}
	for _, rt := range h.order {
		o := cluster.Offer{HostID: h.opts.ID, RuntimeID: rt.runtime.ID}
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
