// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package natsroute

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nuid"

	"github.com/fivewire/fivewire/altar"
	"github.com/fivewire/fivewire/altar/internal/cluster"
	"github.com/fivewire/fivewire/altar/internal/hook"
	"github.com/fivewire/fivewire/internal/strictjson"
)

// errCaller detaches the caller from a call without ending the call.
var errCaller = errors.New("natsroute: calling host silent")

// Serve offers the Runtimes of a Host to the others and runs the calls that they forward, until ctx
// ends or the Host is closed. It returns after the last call has ended. This Cluster must be
// HostOptions.Cluster of h, and hostID its ID. Host.Shutdown finishes forwarded calls first.
func (r *Cluster) Serve(ctx context.Context, h *altar.Host, hostID string) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	defer context.AfterFunc(r.life, stop)()
	s := &server{r: r, h: hook.ClusterHost(h).(cluster.Host[altar.Message]), id: hostID, boot: nuid.Next(), refresh: make(chan struct{}, 1)}
	calls, notices := make(chan *nats.Msg, 1024), make(chan *nats.Msg, 1024)
	// Two processes with the ID of one Host are a mistake. A queue group ensures that even then a
	// call reaches only one of them.
	callSub, err := r.nc.ChanQueueSubscribe(r.callSubject(hostID), "host", calls)
	if err != nil {
		return fmt.Errorf("natsroute: %w", err)
	}
	defer func() { _ = callSub.Unsubscribe() }()
	for _, what := range []string{"over", "hello"} {
		sub, err := r.nc.ChanSubscribe(r.subject(what), notices)
		if err != nil {
			return fmt.Errorf("natsroute: %w", err)
		}
		defer func() { _ = sub.Unsubscribe() }()
	}
	var wg sync.WaitGroup
	defer wg.Wait()
	defer s.bye()
	wg.Go(func() {
		defer stop()
		s.watch(ctx)
	})
	wg.Go(func() { s.announce(ctx) })
	for {
		select {
		case <-ctx.Done():
			return nil
		case m := <-calls:
			wg.Go(func() { s.serve(ctx, m) })
		case m := <-notices:
			s.handle(m)
		}
	}
}

// A server is one Host offered to others.
type server struct {
	r    *Cluster
	h    cluster.Host[altar.Message]
	id   string
	boot string

	refresh chan struct{} // requests a full announcement

	mu     sync.Mutex
	turn   uint64    // guarded by mu
	offers []offered // guarded by mu
}

// watch keeps the offers up to date until the Host is closed.
func (s *server) watch(ctx context.Context) {
	for offers := range s.h.Offers(ctx) {
		list := make([]offered, 0, len(offers))
		for _, o := range offers {
			list = append(list, offered{o.RuntimeID, o.Contracts, o.Digests})
		}
		s.mu.Lock()
		s.turn++
		s.offers = list
		s.mu.Unlock()
		s.ask()
	}
}

func (s *server) ask() {
	select {
	case s.refresh <- struct{}{}:
	default:
	}
}

func (s *server) announce(ctx context.Context) {
	tick := time.NewTicker(s.r.opts.Heartbeat)
	defer tick.Stop()
	for {
		full := false
		select {
		case <-ctx.Done():
			return
		case <-s.refresh:
			full = true
		case <-tick.C:
		}
		s.mu.Lock()
		a := &announcement{Host: s.id, Boot: s.boot, Turn: s.turn, Full: full}
		if full {
			a.Offers = s.offers
		}
		s.mu.Unlock()
		s.say(a)
	}
}

func (s *server) bye() { s.say(&announcement{Host: s.id, Boot: s.boot, Bye: true}) }

func (s *server) say(a *announcement) {
	body, err := strictjson.Encode(a)
	if err == nil {
		err = s.r.nc.Publish(s.r.subject("offers"), body)
	}
	if err != nil {
		s.r.opts.Logger.WarnContext(s.r.life, "natsroute: announcement not sent", "err", err)
	}
}

func (s *server) handle(m *nats.Msg) {
	if m.Subject == s.r.subject("hello") {
		s.ask()
		return
	}
	var o sessionEnd
	if err := decode(m.Data, &o); err != nil {
		s.r.opts.Logger.WarnContext(s.r.life, "natsroute: invalid session end", "err", err)
		return
	}
	s.h.EndSession(o.Session, o.Reason)
}

// serve runs one call.
func (s *server) serve(ctx context.Context, m *nats.Msg) {
	if m.Reply == "" {
		return
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var q request
	if err := decode(m.Data, &q); err != nil || q.MaxUnacked < 1 {
		s.r.opts.Logger.WarnContext(ctx, "natsroute: invalid call", "err", err)
		return // incompatible sender
	}
	c := &caller{r: s.r, to: m.Reply, maxUnacked: q.MaxUnacked, cancel: cancel, consumed: make(chan struct{}, 1)}
	if c.maxFrame = int(min(q.MaxPayload, s.r.nc.MaxPayload())) - frameRoom; c.maxFrame <= 0 {
		return
	}
	in := make(chan *nats.Msg, 64)
	control := s.r.nc.NewInbox()
	sub, err := s.r.nc.ChanSubscribe(control, in)
	if err != nil {
		return
	}
	defer func() { _ = sub.Unsubscribe() }()
	open := frame(c.to, frameOpen, 0)
	open.Reply = control
	c.publish(open)
	var wg sync.WaitGroup
	defer wg.Wait()
	quit := make(chan struct{})
	defer close(quit)
	wg.Go(func() { c.control(in, quit) })
	for msg, err := range s.h.Serve(ctx, q.call()) {
		if err != nil {
			c.fail(err)
			return
		}
		c.send(ctx, msg)
	}
	c.publish(frame(c.to, frameEnd, c.sent()))
}

// A caller is the Host that forwarded a call.
type caller struct {
	r          *Cluster
	to         string
	maxFrame   int // bytes of one frame
	maxUnacked int // bytes
	cancel     context.CancelCauseFunc
	consumed   chan struct{} // signaled when frames were consumed

	mu      sync.Mutex     // also keeps counts in order; guards everything below
	count   uint64         // content frames sent
	used    uint64         // content frames consumed by the caller
	sizes   [maxFrames]int // of the frames in flight, by number
	unacked int            // bytes of the frames in flight
}

func (c *caller) publish(m *nats.Msg) {
	if err := c.r.nc.PublishMsg(m); err != nil { // the receiver detects the gap
		c.r.opts.Logger.DebugContext(c.r.life, "natsroute: frame not sent", "err", err)
	}
}

func (c *caller) sent() uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.count
}

// control handles messages from the caller and sends heartbeats.
func (c *caller) control(in <-chan *nats.Msg, quit <-chan struct{}) {
	tick := time.NewTicker(c.r.opts.Heartbeat)
	defer tick.Stop()
	missed := 0
	for {
		select {
		case <-quit:
			return
		case <-tick.C:
			if missed++; missed > silence {
				c.cancel(errCaller)
				return
			}
			c.mu.Lock()
			c.publish(frame(c.to, frameAlive, c.count))
			c.mu.Unlock()
		case m := <-in:
			missed = 0
			if m.Header.Get(kindHeader) == controlCancel {
				c.cancel(&cluster.CancelledError{Reason: m.Header.Get(reasonHeader)})
				_ = m.Respond(nil)
				continue
			}
			if n, ok := countOf(m); ok {
				c.mu.Lock()
				c.ackLocked(n)
				c.mu.Unlock()
				select {
				case c.consumed <- struct{}{}:
				default:
				}
			}
		}
	}
}

// ackLocked records that the caller has consumed n frames. c.mu must be held.
func (c *caller) ackLocked(n uint64) {
	for c.used < min(n, c.count) {
		c.used++
		c.unacked -= c.sizes[c.used%maxFrames]
	}
}

// send sends one message as one or more frames and waits until each of them may be in flight.
// After the end of ctx it sends nothing; the loop of the caller ends next.
func (c *caller) send(ctx context.Context, m altar.Message) {
	text, err := altar.AppendMessage(nil, m)
	if err != nil {
		c.r.opts.Logger.ErrorContext(ctx, "natsroute: message not encoded", "err", err)
		return
	}
	for {
		kind, n := frameMessage, len(text)
		if n > c.maxFrame {
			kind, n = framePart, c.maxFrame
		}
		if !c.content(ctx, kind, text[:n]) || kind == frameMessage {
			return
		}
		text = text[n:]
	}
}

func (c *caller) content(ctx context.Context, kind string, data []byte) bool {
	for {
		if ctx.Err() != nil {
			return false
		}
		c.mu.Lock()
		if c.count-c.used < maxFrames && c.unacked < c.maxUnacked {
			c.count++
			c.sizes[c.count%maxFrames] = len(data)
			c.unacked += len(data)
			m := frame(c.to, kind, c.count)
			m.Data = data
			c.publish(m)
			c.mu.Unlock()
			return true
		}
		c.mu.Unlock()
		select {
		case <-c.consumed:
		case <-ctx.Done():
		}
	}
}

// fail ends the response without a final message.
func (c *caller) fail(err error) {
	var refused *altar.Error
	if !errors.As(err, &refused) {
		c.publish(frame(c.to, frameLost, c.sent()))
		return
	}
	text, err := altar.AppendMessage(nil, &altar.ErrorMessage{Err: refused})
	if err != nil || len(text) > c.maxFrame {
		c.publish(frame(c.to, frameLost, c.sent()))
		return
	}
	c.content(context.Background(), frameRefused, text)
}
