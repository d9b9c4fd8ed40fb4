// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package altar

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"reflect"
	"slices"
	"sync"
	"time"

	"github.com/fivewire/fivewire/altar/internal/cluster"
	"github.com/fivewire/fivewire/altar/internal/core"
	"github.com/fivewire/fivewire/internal/guard"
	"github.com/fivewire/fivewire/internal/randid"
	"github.com/fivewire/fivewire/internal/retry"
)

// A Host opens a stream to each other Host and calls the Runtimes that the other Host offers there: each is a Runtime
// like one that is connected here. The other Host has one hidden session for the calls of a stream.

// hostOffers are the Runtimes of a Host with the contracts that they fulfil: all of them, in one or more messages.
type hostOffers struct {
	Offers  []hostOffer `json:"offers"`
	Owner   string      `json:"owner,omitzero"`    // the lease of the Host
	HasMore bool        `json:"has_more,omitzero"` // in the next message
	header
}

type hostOffer struct {
	RuntimeID string   `json:"runtime_id"`
	Contracts []string `json:"contracts"`
	Digests   []string `json:"digests"` // of the contracts (ALT-D39)
}

// A forwardedCall is a call that one Host forwards to another.
type forwardedCall struct {
	Principal string          `json:"principal"` // owner of the session
	Tenant    string          `json:"tenant"`
	Runtime   string          `json:"runtime"`
	Contract  string          `json:"contract"`
	Call      json.RawMessage `json:"call"` // as text; on this side in call
	header

	call *ToolCall
}

// peers are the other Hosts.
type peers struct {
	mu   sync.Mutex
	byID map[string]*peer // guarded by mu
}

// A peer is another Host. Its fields change with all shards locked.
type peer struct {
	id       string
	stop     context.CancelFunc
	conn     *hostConn // the open stream, or nil
	owner    string    // its lease
	offers   []hostOffer
	partial  []hostOffer          // without the last message of the offer
	runtimes map[string]*hostConn // behind conn, by id
	unlike   map[string]bool      // contracts with another digest that were logged
}

// join follows the other Hosts of a network until the Host is closed.
func (h *Host) join(ctx context.Context, network cluster.Network) {
	_ = retry.Loop(ctx, retry.Policy{Logger: h.opts.Logger, Subject: "altar: cluster"}, func(ctx context.Context, _ func()) error {
		err := guard.Call("Cluster.Join", func() error {
			return network.Join(ctx, h.opts.ID, func(ids []string) { h.setPeers(ctx, network, ids) }, h.acceptPeer)
		})
		if err == nil && ctx.Err() == nil {
			err = errors.New("altar: cluster: left")
		}
		return err
	})
}

// setPeers follows the Hosts with these ids, and no others.
func (h *Host) setPeers(ctx context.Context, network cluster.Network, ids []string) {
	h.peers.mu.Lock()
	defer h.peers.mu.Unlock()
	for id, p := range h.peers.byID {
		if !slices.Contains(ids, id) {
			p.stop()
			delete(h.peers.byID, id)
		}
	}
	for _, id := range ids {
		if h.peers.byID[id] != nil || id == h.opts.ID {
			continue
		}
		own, stop := context.WithCancel(ctx)
		p := &peer{id: id, stop: stop, runtimes: make(map[string]*hostConn), unlike: make(map[string]bool)}
		h.peers.byID[id] = p
		_ = h.life.Go("peer", func(context.Context) { h.followPeer(own, network, p) })
	}
}

// followPeer keeps a stream to another Host open.
func (h *Host) followPeer(ctx context.Context, network cluster.Network, p *peer) {
	defer p.stop()
	policy := retry.Policy{Max: 2 * time.Second, Logger: h.opts.Logger, Subject: "altar: stream to Host " + p.id}
	_ = retry.Loop(ctx, policy, func(ctx context.Context, connected func()) error {
		var stream io.ReadWriteCloser
		err := guard.Call("Cluster.Open", func() (err error) {
			stream, err = network.Open(ctx, h.opts.ID, p.id)
			return err
		})
		if err != nil {
			return err
		}
		hc, err := h.admitPeer(stream)
		if err != nil {
			return err
		}
		hc.via = p
		hc.become(roleRuntime)
		h.lockAll()
		p.conn = hc
		h.unlockAll()
		connected()
		serving, cut := context.WithCancel(context.WithoutCancel(ctx))
		defer cut()
		stop := context.AfterFunc(ctx, func() {
			h.awaitEnd(p, hc)
			h.losePeer(p) // closing the stream may take long
			cut()
		})
		defer stop()
		err = h.serveConn(serving, hc)
		h.losePeer(p)
		if err == nil {
			err = io.ErrUnexpectedEOF
		}
		return err
	})
}

// admitPeer makes the side of this Host of a stream.
func (h *Host) admitPeer(stream io.ReadWriteCloser) (*hostConn, error) {
	limit := h.opts.Limits.MaxMessage + 64<<10 // of the ids around a call
	conn := NewStreamConn(stream, &StreamConnOptions{MaxMessage: limit, MaxOutput: limit})
	conn.(*wireConn).decode.isPeer = true
	hc, err := h.admit(conn, false, nil, "")
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return hc, nil
}

// departTime is how long a peer may take to close a connection that this Host has ended, or a departed Host to end
// its stream.
const departTime = time.Second

// awaitEnd waits for the end of the stream to a Host that has shut down: its last results may still be unread. A Host
// that has failed still offers Runtimes, or has none, and is not awaited.
func (h *Host) awaitEnd(p *peer, hc *hostConn) {
	h.lockAll()
	isAwaited := p.conn == hc && len(p.offers) == 0 && len(p.runtimes) > 0
	h.unlockAll()
	if !isAwaited {
		return
	}
	t := time.NewTimer(departTime)
	defer t.Stop()
	select {
	case <-hc.removed:
	case <-t.C:
	}
}

// losePeer takes the Runtimes of another Host out.
func (h *Host) losePeer(p *peer) {
	now := h.lockAll()
	defer h.unlockAll()
	p.conn, p.offers, p.partial = nil, nil, nil
	lost := make([]*core.Runtime, 0, len(p.runtimes))
	for _, hc := range p.runtimes {
		h.missRemote(&hc.runtime, now)
		hc.runtime.IsConnected, hc.runtime.LostAt = false, now
		lost = append(lost, &hc.runtime)
	}
	clear(p.runtimes)
	for _, rt := range lost { // none of them gets the calls of another
		h.outcomes.disconnected(rt)
		h.broadcast(now, &core.Event{Kind: core.RuntimeLost, Runtime: rt})
	}
}

// withdraw removes the fulfilments of a Runtime of another Host. All shards must be locked.
func (h *Host) withdraw(rt *core.Runtime, now time.Time) {
	h.broadcast(now, &core.Event{Kind: core.Fulfilled, Change: func(r *core.Registry) *core.Registry { return r.Without(rt) }})
}

// missRemote takes a Runtime of another Host out. Calls wait for it as for an absent one of this Host, since it may
// connect to any Host (ALT-D24). All shards must be locked.
func (h *Host) missRemote(rt *core.Runtime, now time.Time) {
	own := h.fleet.owners[rt.ID]
	absent := &core.Runtime{ID: rt.ID, LostAt: now}
	h.broadcast(now, &core.Event{Kind: core.Fulfilled, Change: func(r *core.Registry) *core.Registry {
		contracts := r.Contracts(rt)
		r = r.Without(rt)
		if len(contracts) == 0 || own != nil && own.conn != nil {
			return r
		}
		return r.Without(absent).WithAbsent(absent, contracts)
	}})
	if own == nil {
		h.rememberRuntime(rt.ID, core.Principal{}, now)
	}
}

// setOffers replaces the offers of another Host. Held calls may go there.
func (h *Host) setOffers(hc *hostConn, m *hostOffers) {
	now := h.lockAll()
	defer h.unlockAll()
	if p := hc.via; p != nil && p.conn == hc {
		p.partial = append(p.partial, m.Offers...)
		if m.HasMore {
			return
		}
		p.owner, p.offers, p.partial = m.Owner, p.partial, nil
		h.matchOffers(p, now)
	}
}

// matchOffers makes the Runtimes of another Host fulfil the contracts that are the same here (ALT-D39). All shards must
// be locked.
func (h *Host) matchOffers(p *peer, now time.Time) {
	fulfilled := make(map[string][]string)
	for _, o := range p.offers {
		fulfilled[o.RuntimeID] = append(fulfilled[o.RuntimeID], h.sameContracts(p, o)...)
	}
	for id, hc := range p.runtimes { // calls that they run continue
		if names, isOffered := fulfilled[id]; !isOffered {
			h.missRemote(&hc.runtime, now)
			hc.matched = nil
			if hc.runtime.Gate.Running() == 0 {
				delete(p.runtimes, id)
				h.broadcast(now, &core.Event{Kind: core.RuntimeLost, Runtime: &hc.runtime}) // so that no shard has it
			}
		} else if len(names) == 0 && len(hc.matched) > 0 {
			h.withdraw(&hc.runtime, now)
			hc.matched = nil
		}
	}
	for _, o := range p.offers {
		names := fulfilled[o.RuntimeID]
		if len(names) == 0 {
			continue
		}
		hc := p.runtimes[o.RuntimeID]
		if hc == nil {
			hc = &hostConn{h: h, out: p.conn.out, via: p, capabilities: []string{capStreaming, capCancellation, capDeadlines, capCredit}}
			h.newRuntime(hc, o.RuntimeID, true)
			p.runtimes[o.RuntimeID] = hc
		}
		if slices.Equal(names, hc.matched) {
			continue
		}
		hc.matched = names
		h.broadcast(now, &core.Event{Kind: core.Fulfilled, Runtime: &hc.runtime, Change: func(r *core.Registry) *core.Registry {
			return r.With(&hc.runtime, names, true)
		}})
	}
}

// maxUnlike bounds the contracts of another Host that are logged once.
const maxUnlike = 10_000

// sameContracts returns the offered contracts that are the same at this Host.
func (h *Host) sameContracts(p *peer, o hostOffer) (names []string) {
	manifest := h.manifest.Load()
	for i, name := range o.Contracts {
		c := manifest.byName[name]
		switch {
		case c == nil || i >= len(o.Digests):
		case c.digest == o.Digests[i]:
			names = append(names, name)
		case !p.unlike[name] && len(p.unlike) < maxUnlike:
			p.unlike[name] = true
			h.opts.Logger.WarnContext(h.ctx, "altar: offer of another contract not used", "host", p.id, "contract", name)
		}
	}
	return names
}

// forwardCall sends a call to a Runtime of another Host. The shard of the call must be locked.
func (h *Host) forwardCall(c *hostCall, rt *hostConn, m *ToolCall) {
	s := sessionOf(c.Session())
	if s.links == nil {
		s.links = make(map[*peer]bool)
	}
	s.links[rt.via] = true
	m.RequestID = m.InvocationID // of a refusal
	h.send(rt, &forwardedCall{Principal: c.principal.Name, Tenant: c.principal.Tenant, Runtime: rt.runtime.ID, Contract: c.Contract, call: m})
}

// runtimesOf returns the Runtimes of the Host with a lease. A shard must be locked.
func (h *Host) runtimesOf(owner string) (list []*core.Runtime) {
	if owner == "" {
		return nil
	}
	h.peers.mu.Lock()
	defer h.peers.mu.Unlock()
	for _, p := range h.peers.byID {
		if p.owner != owner {
			continue
		}
		for _, hc := range p.runtimes {
			list = append(list, &hc.runtime)
		}
	}
	return list
}

// refusedByPeer routes a call again that another Host has not run.
func (h *Host) refusedByPeer(hc *hostConn, m *ErrorMessage) {
	if hc.via == nil {
		h.dropped(m, "nobody waits for it")
		return
	}
	h.toCall(hc, m.RequestID, true, nil, &core.Event{Kind: core.CallRefused, Data: m.Err})
}

// acceptPeer serves a stream that another Host has opened.
func (h *Host) acceptPeer(from string, stream io.ReadWriteCloser) {
	err := h.life.Go("stream of Host "+from, func(ctx context.Context) {
		hc, err := h.admitPeer(stream)
		if err != nil {
			return // the Host ends
		}
		hc.session = newLinkSession(h)
		hc.become(roleClient)
		h.lockAll()
		s := hc.session
		h.open(h.shardOf(s.ID), s, s.ID, time.Time{}, time.Now())
		h.accepted = append(h.accepted, hc)
		h.offer(hc)
		h.unlockAll()
		_ = h.serveConn(ctx, hc)
		now := h.lockAll()
		h.accepted = slices.DeleteFunc(h.accepted, func(o *hostConn) bool { return o == hc })
		h.step(h.shardOf(s.ID), now, &core.Event{Kind: core.SessionEnded, Session: &s.Session, Text: "destroyed"})
		h.unlockAll()
	})
	if err != nil {
		_ = stream.Close()
	}
}

// newLinkSession makes the session for the calls of another Host, which no client can use.
func newLinkSession(h *Host) *session {
	s := &session{owner: h.budget.Scope("", "")}
	s.ID, s.IsLink, s.Data = randid.New(core.GeneratedPrefix+"link-"), true, s
	return s
}

// offer sends another Host the lease of this Host and the fulfilments of its Runtimes, at once or after the last offer is
// sent, so that many changes make few offers. That of a shutdown does not wait, since the stream ends. The shard of the
// session of the stream must be locked.
func (h *Host) offer(hc *hostConn) {
	hc.isOfferStale = true
	if !hc.isOffering || h.drain.isStarted.Load() {
		h.offerStale(hc)
	}
}

// offerAgain is called when the last offer is sent.
func (hc *hostConn) offerAgain() {
	sh := hc.h.shardOf(hc.session.ID)
	hc.h.lock(sh)
	defer hc.h.unlock(sh)
	hc.isOffering = false
	hc.h.offerStale(hc)
}

// offerStale sends an offer if the fulfilments have changed. The shard of the session of the stream must be locked.
func (h *Host) offerStale(hc *hostConn) {
	if !hc.isOfferStale {
		return
	}
	hc.isOfferStale = false
	m := hostOffers{Offers: []hostOffer{}, Owner: h.ledger.Owner()}
	if !h.drain.isStarted.Load() {
		m.Offers = h.offers(hc.session.Registry())
	}
	if !reflect.DeepEqual(hc.offered, m) {
		hc.offered, hc.isOffering = m, true
		for _, part := range m.split() {
			h.send(hc, part)
		}
	}
}

// maxOffered bounds the contracts of one message, so that it is at most 64 KiB, which the limit of a stream exceeds.
const maxOffered = 100

// split returns the messages for offers.
func (m *hostOffers) split() (list []*hostOffers) {
	part, n := &hostOffers{Offers: []hostOffer{}, Owner: m.Owner}, 0
	for _, o := range m.Offers {
		for i := 0; i < len(o.Contracts); {
			if n == maxOffered {
				part.HasMore = true
				list = append(list, part)
				part, n = &hostOffers{Owner: m.Owner}, 0
			}
			end := min(i+maxOffered-n, len(o.Contracts))
			part.Offers = append(part.Offers, hostOffer{o.RuntimeID, o.Contracts[i:end], o.Digests[i:end]})
			n += end - i
			i = end
		}
	}
	return append(list, part)
}

// offers returns the fulfilments of the Runtimes of this Host in a Registry.
func (h *Host) offers(reg *core.Registry) []hostOffer {
	byRuntime := make(map[*core.Runtime]hostOffer)
	for _, c := range h.manifest.Load().list {
		for rt := range reg.Takers(c.Name) {
			o := byRuntime[rt]
			byRuntime[rt] = hostOffer{rt.ID, append(o.Contracts, c.Name), append(o.Digests, c.digest)}
		}
	}
	list := []hostOffer{}
	for _, rt := range h.fleet.order {
		if o, ok := byRuntime[&rt.runtime]; ok {
			list = append(list, o)
		}
	}
	return list
}

// receiveForwarded runs a call of another Host.
func (h *Host) receiveForwarded(hc *hostConn, m *forwardedCall) { h.toolCall(hc, m.call, m) }

// endedElsewhere tells the Runtimes that a session of another Host has ended.
func (h *Host) endedElsewhere(hc *hostConn, m *SessionDestroyed) {
	if !hc.isPeer() {
		h.dropped(m, "nobody waits for it")
		return
	}
	sh := h.shardOf(hc.session.ID)
	h.lock(sh)
	defer h.unlock(sh)
	h.endAtRuntimes(hc.session.Registry(), m.SessionID, m.Reason)
}
