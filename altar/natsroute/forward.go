// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package natsroute

import (
	"context"
	"errors"
	"iter"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/fivewire/fivewire/altar"
	"github.com/fivewire/fivewire/altar/internal/cluster"
)

// joinMost is how often a lost call is looked for before it counts as lost.
const maxJoins = 20

// Forward implements [cluster.Cluster]. A call is sent once. After a lost frame it is joined at the
// Host that runs it, until that Host is treated as failed.
func (r *Cluster) Forward(ctx context.Context, to cluster.Offer, call *cluster.Call) iter.Seq2[altar.Message, error] {
	return func(yield func(altar.Message, error) bool) {
		f := &forwarding{r: r, to: to, call: *call, yield: yield}
		for tries := 0; ; tries++ {
			progress := f.got
			err := f.run(ctx)
			var refused *altar.Error
			switch {
			case f.isDone:
				return
			case ctx.Err() != nil:
				yield(nil, context.Cause(ctx))
				return
			case errors.As(err, &refused) && !f.call.Join, errors.Is(err, errGone), errors.Is(err, errEnded):
				yield(nil, err)
				return
			}
			if f.got > progress {
				tries = 0
			}
			if tries == maxJoins || refused != nil {
				yield(nil, errLost)
				return
			}
			r.opts.Logger.DebugContext(ctx, "natsroute: call joined again", "host", to.HostID, "err", err)
			f.call.Join = true
			select {
			case <-ctx.Done():
			case <-time.After(r.opts.Heartbeat / 4):
			}
		}
	}
}

// A forwarding is one forwarded call.
type forwarding struct {
	r      *Cluster
	to     cluster.Offer
	call   cluster.Call
	yield  func(altar.Message, error) bool
	got    int  // messages of all attempts
	isDone bool // no further message is yielded
}

// run sends the call and reads the response until it ends or is lost.
func (f *forwarding) run(ctx context.Context) error {
	r := f.r
	lost := r.peerGone(f.to.HostID)
	if lost == nil {
		if f.call.Join {
			return errGone
		}
		return unavailable()
	}
	body, err := encodeCall(&f.call, r.opts.MaxUnacked, r.nc.MaxPayload())
	if err != nil {
		return unavailable()
	}
	if int64(len(body)) > r.nc.MaxPayload() {
		return altar.Errorf(altar.ErrInvalidParameters, altar.Reason("invalid_value"), "the parameters are too long to be forwarded")
	}
	// Capacity for the frames in flight, and for heartbeats while the loop is busy.
	in := make(chan *nats.Msg, maxFrames+256)
	inbox := r.nc.NewInbox()
	sub, err := r.nc.ChanSubscribe(inbox, in)
	if err != nil {
		return unavailable()
	}
	defer func() { _ = sub.Unsubscribe() }() // fails only with the connection
	if err := r.nc.PublishMsg(&nats.Msg{Subject: r.callSubject(f.to.HostID), Reply: inbox, Data: body}); err != nil {
		return unavailable() // the call was not sent
	}
	a := &answer{forwarding: f, in: in, lost: lost}
	defer a.end()
	return a.read(ctx)
}

// unavailable refuses a call that was not sent.
func unavailable() *altar.Error {
	return altar.Errorf(altar.ErrRuntimeUnavailable, altar.ReasonDisconnected, "the host of the runtime cannot be reached")
}

// An answer is the response to one attempt.
type answer struct {
	*forwarding
	in      chan *nats.Msg
	lost    <-chan struct{}
	control string
	count   uint64 // received content frames
	used    atomic.Uint64
	signed  uint64 // the last used that consumed sent
	freed   int    // bytes consumed since then
	size    int    // of the received frame
	parts   []byte
	quit    chan struct{} // ends the heartbeats
	quiet   chan struct{} // closed when the heartbeats have ended
}

func (a *answer) read(ctx context.Context) error {
	r := a.r
	tick := time.NewTicker(r.opts.Heartbeat)
	defer tick.Stop()
	missed := 0
	for {
		select {
		case m := <-a.in:
			missed = 0
			if done, err := a.take(m); done || err != nil {
				return err
			}
		case <-tick.C:
			if missed++; missed > silence {
				return errLost
			}
		case <-a.lost:
			if r.life.Err() != nil {
				return errEnded
			}
			return errGone
		case <-ctx.Done():
			a.cancel(cluster.CancelReason(ctx))
			return context.Cause(ctx)
		}
	}
}

// take handles one frame, and reports whether the response is complete.
func (a *answer) take(m *nats.Msg) (done bool, err error) {
	if m.Header.Get("Status") == "503" { // no Host is subscribed
		if a.call.Join {
			return true, errLost
		}
		return true, unavailable()
	}
	a.r.alive(a.to.HostID)
	kind := m.Header.Get(kindHeader)
	if !a.isNext(m, kind) {
		return true, errLost // something is missing
	}
	switch kind {
	case frameOpen:
		a.open(m.Reply)
	case framePart, frameMessage:
		return a.part(m.Data, kind == frameMessage)
	case frameRefused:
		msg, err := altar.DecodeMessage(m.Data, 0)
		e, ok := msg.(*altar.ErrorMessage)
		if err != nil || !ok {
			return true, errLost
		}
		return true, e.Err
	case frameLost, frameEnd:
		return true, errLost
	}
	return false, nil
}

// isNext counts a frame, and reports whether none is missing before it.
func (a *answer) isNext(m *nats.Msg, kind string) bool {
	count, ok := countOf(m)
	if kind != framePart && kind != frameMessage && kind != frameRefused {
		return ok && count == a.count
	}
	if !ok || count != a.count+1 {
		return false
	}
	a.count++
	a.size = len(m.Data)
	return true
}

// part handles a part of a message, and reports whether the response is complete.
func (a *answer) part(data []byte, isLast bool) (done bool, err error) {
	if len(a.parts)+len(data) > a.r.opts.MaxMessage {
		a.isDone = true
		a.yield(nil, errLost)
		return true, nil
	}
	if a.parts = append(a.parts, data...); !isLast {
		a.consumed()
		return false, nil
	}
	text := a.parts
	a.parts = nil
	msg, err := altar.DecodeMessage(text, 0)
	if err != nil {
		return true, errLost
	}
	return a.message(msg), nil
}

// message yields one message, and reports whether it was the last.
func (a *answer) message(m altar.Message) (done bool) {
	last := true
	if c, ok := m.(*altar.StreamChunk); ok {
		if c.ChunkID < a.call.ResumeFrom {
			a.consumed()
			return false // received before
		}
		a.call.ResumeFrom = c.ChunkID + 1
		last = c.IsFinal
	}
	a.got++
	more := a.yield(m, nil)
	a.consumed()
	a.isDone = last || !more
	return a.isDone
}

// consumed counts the received frame, and reports them when they are half of the bound.
func (a *answer) consumed() {
	n := a.used.Add(1)
	a.freed += a.size
	if n-a.signed >= maxFrames/2 || 2*a.freed >= a.r.opts.MaxUnacked {
		a.signed, a.freed = n, 0
		a.sign()
	}
}

// open starts the heartbeats of this side.
func (a *answer) open(control string) {
	if a.control != "" || control == "" {
		return
	}
	a.control, a.quit, a.quiet = control, make(chan struct{}), make(chan struct{})
	go func() {
		defer close(a.quiet)
		tick := time.NewTicker(a.r.opts.Heartbeat)
		defer tick.Stop()
		for {
			select {
			case <-a.quit:
				return
			case <-tick.C:
				a.sign()
			}
		}
	}()
}

func (a *answer) end() {
	if a.quit != nil {
		close(a.quit)
		<-a.quiet
	}
}

// sign sends a heartbeat with the number of consumed frames.
func (a *answer) sign() {
	m := frame(a.control, controlAlive, a.used.Load())
	if err := a.r.nc.PublishMsg(m); err != nil {
		a.r.opts.Logger.DebugContext(a.r.life, "natsroute: heartbeat not sent", "err", err)
	}
}

// cancel cancels the call at the other Host. If the request is lost, the call ends like a call of a
// disconnected client.
func (a *answer) cancel(reason string) {
	if a.control == "" {
		// The call may have just arrived: its first frame names the control subject.
		select {
		case m := <-a.in:
			if m.Header.Get(kindHeader) != frameOpen {
				return
			}
			a.control = m.Reply
		case <-time.After(a.r.opts.Heartbeat):
			return
		}
	}
	if reason == "" {
		return
	}
	m := &nats.Msg{Subject: a.control, Header: nats.Header{
		kindHeader: {controlCancel}, reasonHeader: {reason}, countHeader: {strconv.FormatUint(a.used.Load(), 10)},
	}}
	for range 3 {
		if _, err := a.r.nc.RequestMsg(m, a.r.opts.Heartbeat); err == nil || errors.Is(err, nats.ErrNoResponders) {
			return
		}
	}
}
