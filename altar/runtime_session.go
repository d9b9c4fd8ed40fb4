// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package altar

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fivewire/fivewire/internal/guard"
	"github.com/fivewire/fivewire/internal/life"
	"github.com/fivewire/fivewire/internal/randid"
	"github.com/fivewire/fivewire/internal/sendq"
)

// A runtimeSession is the Runtime's side of one connection (section e).
type runtimeSession struct {
	*link
	r     *Runtime
	slots chan struct{}     // nil: no bound
	jobs  chan *runtimeCall // to goroutines that have nothing to do
	idle  atomic.Int32      // how many there are

	tools   *life.Life
	onReady func() // called by the goroutine that reads, like receive, and again at the first call
	isUsed  bool   // a call was received; used by receive
	reason  error  // the last message, if it is an error that belongs to the connection (ALT-D06); used by receive
	renewal *renewal

	mu           sync.Mutex
	calls        map[string]*runtimeCall // by invocation id
	running      int
	ready        bool
	cause        error // why this side ended the connection
	draining     bool
	withdraw     string        // request id of the withdrawal
	drained      chan struct{} // closed when withdrawn and no call is left
	lastReceived time.Time
	ctx          context.Context // parent of those of the calls
}

var (
	errHandshake = errors.New("altar: Runtime not accepted within HandshakeTimeout")
	errSilent    = errors.New("altar: Host silent for three heartbeats")
)

func (r *Runtime) session(conn Conn, tools *life.Life) *runtimeSession {
	s := &runtimeSession{link: newLink(conn, r.opts.Logger, sendq.Options{WriteTimeout: r.opts.Timing.WriteTimeout}), r: r, tools: tools, onReady: func() {}, jobs: make(chan *runtimeCall), calls: make(map[string]*runtimeCall), drained: make(chan struct{})}
	s.renewal = newRenewal(r.opts.TokenSource, conn, s.link, r.opts.Logger)
	if r.opts.MaxConcurrent > 0 {
		s.slots = make(chan struct{}, r.opts.MaxConcurrent)
	}
	return s
}

func (s *runtimeSession) run(ctx context.Context) error {
	calls, stop := context.WithCancelCause(context.WithoutCancel(ctx))
	defer stop(errCancelled)
	s.ctx, s.lastReceived = calls, time.Now()
	var own sync.WaitGroup
	defer own.Wait()
	defer s.close()
	t := time.AfterFunc(s.r.opts.Timing.HandshakeTimeout, s.handshakeOver)
	defer t.Stop()
	readDone := make(chan struct{})
	own.Go(func() { s.beat(readDone) })
	own.Go(func() { s.drain(ctx, readDone) })
	err := s.authenticate(ctx)
	if err != nil {
		close(readDone)
		return err
	}
	own.Go(func() { s.renewal.run(calls, readDone) })
	capabilities := []string{capStreaming, capCancellation, capDeadlines, capSessionEvents, capHeartbeat, capCredit, capStanding}
	if s.r.opts.DisableStanding {
		capabilities = capabilities[:6]
	}
	if s.r.opts.Level == 1 {
		capabilities = slices.DeleteFunc(capabilities, func(c string) bool { return c == capStreaming || c == capCredit })
	}
	s.post(&AnnounceRuntime{RuntimeID: s.r.id, Language: "go", ProtocolVersion: s.r.opts.ProtocolVersion, Capabilities: capabilities,
		Metadata: s.r.opts.Metadata, header: header{RequestID: randid.UUID4()}})
	if s.direct != nil {
		err = s.receivePushed()
	} else {
		err = guard.Call("connection", s.read)
	}
	close(readDone)
	if ctx.Err() != nil {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return cmp.Or(s.cause, err)
}

// authenticate sends the first token of a token source.
func (s *runtimeSession) authenticate(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, s.r.opts.Timing.HandshakeTimeout)
	defer cancel()
	return s.renewal.send(ctx)
}

// cut ends the connection for a reason, which Run returns.
func (s *runtimeSession) cut(cause error) {
	s.mu.Lock()
	s.cause = cmp.Or(s.cause, cause)
	s.mu.Unlock()
	s.close()
}

func (s *runtimeSession) handshakeOver() {
	s.mu.Lock()
	ready := s.ready
	s.mu.Unlock()
	if !ready {
		s.cut(errHandshake)
	}
}

// drain withdraws the tools when ctx ends, waits for the calls and closes.
func (s *runtimeSession) drain(ctx context.Context, readDone chan struct{}) {
	select {
	case <-readDone:
		return
	case <-ctx.Done():
	}
	s.mu.Lock()
	s.draining = true
	ready := s.ready
	if ready {
		s.withdraw = randid.UUID4()
	}
	s.mu.Unlock()
	if ready {
		s.post(&FulfillTools{SessionID: allSessions, ToolNames: []string{}, Replace: true, header: header{RequestID: s.withdraw}})
		t := time.NewTimer(s.r.opts.Timing.DrainTimeout)
		defer t.Stop()
		select {
		case <-s.drained:
			flush, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.r.opts.Timing.DrainTimeout)
			defer cancel()
			s.finish(flush, goodbyeEnd)
			select {
			case <-readDone:
			case <-t.C:
			}
		case <-readDone:
		case <-t.C:
			s.r.opts.Logger.WarnContext(ctx, "altar: calls in flight aborted", "runtime", s.r.id)
		}
	}
	_ = s.conn.Close()
}

// checkDrained is called with mu held.
func (s *runtimeSession) checkDrained() {
	if s.draining && s.withdraw == "" && s.running == 0 {
		select {
		case <-s.drained:
		default:
			close(s.drained)
		}
	}
}

func (s *runtimeSession) beat(readDone chan struct{}) {
	tick := time.NewTicker(s.r.opts.Timing.Heartbeat)
	defer tick.Stop()
	for {
		select {
		case <-readDone:
			return
		case <-tick.C:
		}
		s.mu.Lock()
		silent := time.Since(s.lastReceived)
		s.mu.Unlock()
		if silent/3 >= s.r.opts.Timing.Heartbeat {
			s.cut(errSilent)
			return
		}
		s.post(&Ping{})
	}
}

// read handles received messages until the connection ends.
func (s *runtimeSession) read() error {
	for {
		m, err := s.conn.Receive()
		if err == nil {
			err = s.receive(m)
		} else {
			err = s.receiveError(err)
		}
		if err != nil {
			return err
		}
	}
}

// receivePushed is read for a connection in this process.
func (s *runtimeSession) receivePushed() error {
	end := make(chan error, 1)
	s.direct.push(func(m Message) bool {
		err := s.receive(m)
		if err != nil {
			end <- err
		}
		return err == nil
	}, func() { end <- s.receiveError(io.EOF) })
	return <-end
}

// receiveError handles an error of receiving. It returns the reason if the connection has end.
func (s *runtimeSession) receiveError(err error) error {
	var bad *badFrame
	switch {
	case errors.As(err, &bad):
		s.broken(bad)
		return nil
	case errors.Is(err, io.EOF):
		err = fmt.Errorf("altar: connection closed by the Host: %w", io.ErrUnexpectedEOF)
	}
	return because(s.reason, err)
}

// receive handles a message. An error ends the connection.
func (s *runtimeSession) receive(m Message) error {
	s.reason = connectionError(s.reason, m)
	s.mu.Lock()
	s.lastReceived = time.Now()
	ready := s.ready
	s.mu.Unlock()
	switch {
	case s.renewal.take(m):
		return nil
	case ready:
		return s.handle(m)
	}
	return s.handshake(m)
}

// handshake handles messages before the Host has accepted the Runtime.
func (s *runtimeSession) handshake(m Message) error {
	switch m := m.(type) {
	case *Ping:
		s.post(&Pong{header: m.header})
	case *AcknowledgeRuntime:
		if _, err := negotiate(m.ProtocolVersion, s.r.opts.ProtocolVersion); err != nil {
			return fmt.Errorf("altar: Host version %q: %w", m.ProtocolVersion, err)
		}
		s.mu.Lock()
		s.ready = true
		s.mu.Unlock()
		s.onReady()
		if slices.Contains(m.Capabilities, capStanding) {
			s.fulfill(allSessions)
		}
	case *ErrorMessage:
		err := fmt.Errorf("altar: Runtime refused: %w", remote(m.Err))
		if s.renewal != nil && m.Err.Reason() == ReasonUnauthenticated {
			return &unrenewedError{err}
		}
		return err
	default:
		s.ignored(m, "before the handshake")
	}
	return nil
}

func (s *runtimeSession) ignored(m Message, why string) {
	s.r.opts.Logger.DebugContext(s.ctx, "altar: message ignored", "type", typeOf(m), "reason", why)
}

// broken handles an invalid frame (ALT-D06).
func (s *runtimeSession) broken(bad *badFrame) {
	s.r.opts.Logger.DebugContext(s.ctx, "altar: frame ignored", "err", bad)
	s.mu.Lock()
	ready := s.ready
	s.mu.Unlock()
	if ready && bad.Type == "ToolCall" && bad.InvocationID != "" {
		s.post(&ToolResult{InvocationID: bad.InvocationID, Error: bad.Err, header: header{CorrelationID: bad.CorrelationID}})
	}
}

// handle processes a message. An error ends the connection.
func (s *runtimeSession) handle(m Message) error {
	switch m := m.(type) {
	case *ToolCall:
		if !s.isUsed { // the next loss of a connection is the first one again
			s.isUsed = true
			s.onReady()
		}
		s.call(m)
	case *RequestFulfillment:
		s.fulfill(m.SessionID)
	case *Ping:
		s.post(&Pong{header: m.header})
	case *CancelCall:
		s.cancel(func(c *runtimeCall) bool { return c.m.InvocationID == m.InvocationID })
	case *StreamCredit:
		s.credit(m)
	case *SessionDestroyed:
		s.cancel(func(c *runtimeCall) bool { return c.m.SessionID == m.SessionID })
	case *AcknowledgeFulfillment:
		s.acknowledged(m)
	case *ErrorMessage:
		if m.RequestID == "" && m.Err.Reason() == ReasonReplaced {
			return fmt.Errorf("altar: Runtime %q: %w", s.r.id, remote(m.Err))
		}
		s.r.opts.Logger.WarnContext(s.ctx, "altar: message refused by the Host", "request_id", m.RequestID, "err", m.Err)
		s.withdrawn(m.RequestID)
	default:
		s.ignored(m, "not for a Runtime")
	}
	return nil
}

func (s *runtimeSession) fulfill(sessionID string) {
	s.mu.Lock()
	draining := s.draining
	s.mu.Unlock()
	names := []string{}
	if !draining {
		for _, t := range s.r.tools {
			if t.stream != nil && s.r.opts.Level == 1 {
				continue
			}
			names = append(names, namespaced(s.r.id, t.name))
		}
	}
	s.post(&FulfillTools{SessionID: sessionID, ToolNames: names, header: header{RequestID: randid.UUID4()}})
}

func (s *runtimeSession) acknowledged(m *AcknowledgeFulfillment) {
	for _, rejected := range m.Rejected {
		s.r.opts.Logger.WarnContext(s.ctx, "altar: tool rejected by the Host", "tool", rejected.ToolName, "session", m.SessionID, "err", rejected.Error)
	}
	s.withdrawn(m.RequestID)
}

// withdrawn notes that no call comes any more after the withdrawal.
func (s *runtimeSession) withdrawn(requestID string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if requestID != "" && requestID == s.withdraw {
		s.withdraw = ""
		s.checkDrained()
	}
}

// credit lets a tool send more chunks. A credit for another call is dropped.
func (s *runtimeSession) credit(m *StreamCredit) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if c := s.calls[m.InvocationID]; c != nil && c.m.SessionID == m.SessionID {
		c.gate.raise(m.Credit)
	}
}

func (s *runtimeSession) cancel(which func(c *runtimeCall) bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.calls {
		if which(c) {
			c.Cancel(errCancelled)
		}
	}
}

// call runs a tool, or answers with the reason for not running it.
func (s *runtimeSession) call(m *ToolCall) {
	s.mu.Lock()
	before, n := s.calls[m.InvocationID], s.running
	repeat := before != nil && !before.answered
	s.mu.Unlock()
	if repeat {
		s.ignored(m, "a repeat of a running call")
		return
	}
	t := s.r.find(m.ToolName)
	switch {
	case t == nil:
		s.refuse(m, Errorf(ErrToolNotFound, ReasonUnknownContract, "the Runtime has no such tool"))
		return
	case t.check != nil:
		normal, err := t.check.normalized(m.Parameters)
		if err != nil {
			s.refuse(m, asError(err))
			return
		}
		if !bytes.Equal(normal, m.Parameters) {
			own := *m
			own.Parameters = normal
			m = &own
		}
	}
	if s.slots != nil && n >= s.r.opts.MaxConcurrent+s.r.opts.QueueLimit {
		s.refuse(m, errOverloaded("QueueLimit"))
		return
	}
	c := &runtimeCall{s: s, m: m, tool: t, start: time.Now()}
	if m.Credit != nil && t.stream != nil {
		c.gate.limit(*m.Credit)
	}
	if m.TimeoutMS > 0 {
		c.Timeout, c.TimeoutCause = time.Duration(min(m.TimeoutMS, maxTimeout.Milliseconds()))*time.Millisecond, context.DeadlineExceeded
	}
	if c.Start(s.ctx, s.tools, life.Request) != nil {
		return // the Runtime ends
	}
	s.mu.Lock()
	s.calls[m.InvocationID] = c
	s.running++
	s.mu.Unlock()
	select {
	case s.jobs <- c:
	default:
		if s.tools.Go("tool", func(context.Context) { s.work(c) }) != nil {
			c.Finish()
		}
	}
}

func (s *runtimeSession) refuse(m *ToolCall, e *Error) {
	s.post(&ToolResult{InvocationID: m.InvocationID, Error: e, header: header{CorrelationID: m.CorrelationID}})
}

// maxIdle bounds the goroutines of a session that wait for calls. Those that stay
// have the stack already that a call needs.
const maxIdle = 16

// work runs one call after the other as long as the session lasts.
func (s *runtimeSession) work(c *runtimeCall) {
	for {
		s.execute(c)
		if s.idle.Add(1) > maxIdle {
			s.idle.Add(-1)
			return
		}
		c = nil // holds nothing while it waits
		select {
		case c = <-s.jobs:
			s.idle.Add(-1)
		case <-s.ctx.Done():
			return
		}
	}
}

func (s *runtimeSession) execute(c *runtimeCall) {
	defer c.Finish()
	defer func() {
		s.mu.Lock()
		if s.calls[c.m.InvocationID] == c {
			delete(s.calls, c.m.InvocationID)
		}
		s.running--
		s.checkDrained()
		s.mu.Unlock()
	}()
	if s.slots != nil {
		select {
		case s.slots <- struct{}{}:
			defer func() { <-s.slots }()
		case <-c.Done():
			c.answer(&ToolResult{InvocationID: c.m.InvocationID, Error: c.failure(c, c.Err()), header: header{CorrelationID: c.m.CorrelationID}})
			return
		}
	}
	c.run()
}
