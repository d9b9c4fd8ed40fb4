// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package altar

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fivewire/fivewire/internal/randid"
)

// A runtimeSession is the Runtime's side of one connection (section e).
type runtimeSession struct {
	*link
	r     *Runtime
	slots chan struct{} // nil: no bound
	jobs  chan job      // to goroutines that have nothing to do
	idle  atomic.Int32  // how many there are

	// of the goroutine that reads
	wasReady bool

	mu           sync.Mutex
	calls        map[string]*runtimeCall // by invocation id
	running      int
	ready        bool
	draining     bool
	withdraw     string        // request id of the withdrawal
	drained      chan struct{} // closed when withdrawn and no call is left
	lastReceived time.Time
	wg           *sync.WaitGroup
	ctx          context.Context // parent of those of the calls
}

func (r *Runtime) session(conn Conn) *runtimeSession {
	s := &runtimeSession{link: newLink(conn, r.opts.Logger), r: r, jobs: make(chan job), calls: make(map[string]*runtimeCall), drained: make(chan struct{})}
	if r.opts.MaxConcurrent > 0 {
		s.slots = make(chan struct{}, r.opts.MaxConcurrent)
	}
	return s
}

func (s *runtimeSession) run(ctx context.Context, wg *sync.WaitGroup) error {
	calls, stop := context.WithCancelCause(context.WithoutCancel(ctx))
	defer stop(errCancelled)
	s.ctx, s.wg, s.lastReceived = calls, wg, time.Now()
	var own sync.WaitGroup
	defer own.Wait()
	defer s.close()
	own.Go(s.write)
	if s.r.opts.Heartbeat > 0 {
		own.Go(func() { s.beat(calls) })
	}
	if s.r.opts.HandshakeTimeout > 0 {
		t := time.AfterFunc(s.r.opts.HandshakeTimeout, s.handshakeOver)
		defer t.Stop()
	}
	readDone := make(chan struct{})
	own.Go(func() { s.drain(ctx, readDone) })
	capabilities := []string{CapStreaming, CapCancellation, CapDeadlines, CapSessionEvents, CapHeartbeat}
	if s.r.opts.Level == 1 {
		capabilities = capabilities[1:]
	}
	s.post(&AnnounceRuntime{RuntimeID: s.r.id, Language: "go", ProtocolVersion: s.r.opts.ProtocolVersion, Capabilities: capabilities,
		Metadata: s.r.opts.Metadata, Header: Header{RequestID: randid.UUID4()}})
	err := s.read()
	close(readDone)
	if ctx.Err() != nil {
		return nil
	}
	return err
}

func (s *runtimeSession) handshakeOver() {
	s.mu.Lock()
	ready := s.ready
	s.mu.Unlock()
	if !ready {
		_ = s.conn.Close()
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
		s.post(&FulfillTools{SessionID: AllSessions, ToolNames: []string{}, Replace: true, Header: Header{RequestID: s.withdraw}})
		t := time.NewTimer(s.r.opts.DrainTimeout)
		defer t.Stop()
		select {
		case <-s.drained:
			s.out.end()
			select { // write closes the connection when everything is out
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

func (s *runtimeSession) beat(ctx context.Context) {
	tick := time.NewTicker(s.r.opts.Heartbeat)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.out.closed:
			return
		case <-tick.C:
		}
		s.mu.Lock()
		silent := time.Since(s.lastReceived)
		s.mu.Unlock()
		if silent >= 3*s.r.opts.Heartbeat {
			s.r.opts.Logger.Warn("altar: silent Host disconnected", "runtime", s.r.id)
			_ = s.conn.Close()
			return
		}
		s.post(&Ping{})
	}
}

// read handles received messages until the connection ends.
func (s *runtimeSession) read() error {
	for {
		m, err := s.conn.Receive()
		if err != nil {
			var bad *DecodeError
			switch {
			case errors.As(err, &bad):
				s.broken(bad)
				continue
			case errors.Is(err, io.EOF):
				return fmt.Errorf("altar: connection closed by the Host: %w", io.ErrUnexpectedEOF)
			}
			return err
		}
		s.mu.Lock()
		s.lastReceived = time.Now()
		ready := s.ready
		s.mu.Unlock()
		if p, ok := m.(*Ping); ok {
			s.post(&Pong{Header: p.Header})
			continue
		}
		if ready {
			s.handle(m)
		} else if err := s.handshake(m); err != nil {
			return err
		}
	}
}

// handshake handles messages before the Host has accepted the Runtime.
func (s *runtimeSession) handshake(m Message) error {
	switch m := m.(type) {
	case *AcknowledgeRuntime:
		if _, err := Negotiate(m.ProtocolVersion, s.r.opts.ProtocolVersion); err != nil {
			return fmt.Errorf("altar: Host version %q: %w", m.ProtocolVersion, err)
		}
		s.mu.Lock()
		s.ready = true
		s.mu.Unlock()
		s.wasReady = true
		if s.r.opts.DisableStanding {
			s.fulfill(AllSessions)
		}
	case *ErrorMessage:
		return fmt.Errorf("altar: Runtime refused: %w", m.Err)
	default:
		s.ignored(m, "before the handshake")
	}
	return nil
}

func (s *runtimeSession) ignored(m Message, why string) {
	s.r.opts.Logger.Debug("altar: message ignored", "type", m.Type(), "reason", why)
}

// broken handles an invalid frame (ALT-D06).
func (s *runtimeSession) broken(bad *DecodeError) {
	s.r.opts.Logger.Debug("altar: frame ignored", "err", bad)
	s.mu.Lock()
	ready := s.ready
	s.mu.Unlock()
	if ready && bad.Type == "ToolCall" && bad.InvocationID != "" {
		s.post(&ToolResult{InvocationID: bad.InvocationID, Error: bad.Err, Header: Header{CorrelationID: bad.CorrelationID}})
	}
}

func (s *runtimeSession) handle(m Message) {
	switch m := m.(type) {
	case *RequestFulfillment:
		s.fulfill(m.SessionID)
	case *ToolCall:
		s.call(m)
	case *CancelCall:
		s.cancel(func(c *runtimeCall) bool { return c.m.InvocationID == m.InvocationID })
	case *SessionDestroyed:
		s.cancel(func(c *runtimeCall) bool { return c.m.SessionID == m.SessionID })
	case *AcknowledgeFulfillment:
		s.acknowledged(m)
	case *ErrorMessage:
		s.r.opts.Logger.Warn("altar: message refused by the Host", "request_id", m.RequestID, "err", m.Err)
		s.withdrawn(m.RequestID)
	default:
		s.ignored(m, "not for a Runtime")
	}
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
	s.post(&FulfillTools{SessionID: sessionID, ToolNames: names, Header: Header{RequestID: randid.UUID4()}})
}

func (s *runtimeSession) acknowledged(m *AcknowledgeFulfillment) {
	for _, rejected := range m.Rejected {
		s.r.opts.Logger.Warn("altar: tool rejected by the Host", "tool", rejected.ToolName, "session", m.SessionID, "err", rejected.Error)
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

func (s *runtimeSession) cancel(which func(c *runtimeCall) bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.calls {
		if which(c) {
			c.cancel(errCancelled)
		}
	}
}

// call runs a tool, or answers with the reason for not running it.
func (s *runtimeSession) call(m *ToolCall) {
	refuse := func(e *Error) {
		s.post(&ToolResult{InvocationID: m.InvocationID, Error: e, Header: Header{CorrelationID: m.CorrelationID}})
	}
	s.mu.Lock()
	before, n := s.calls[m.InvocationID], s.running
	repeat := before != nil && !before.answered
	s.mu.Unlock()
	if repeat {
		s.ignored(m, "a repeat of a running call")
		return
	}
	t := s.r.find(m.ToolName)
	if t == nil {
		refuse(NewError(ErrToolNotFound, ReasonUnknownContract, "the Runtime has no such tool"))
		return
	}
	if t.check != nil {
		normal, err := t.check.normalized(m.Parameters)
		if err != nil {
			refuse(err.(*Error))
			return
		}
		if !bytes.Equal(normal, m.Parameters) {
			own := *m
			own.Parameters = normal
			m = &own
		}
	}
	if s.slots != nil && n >= s.r.opts.MaxConcurrent+s.r.opts.QueueLimit {
		refuse(errOverloaded())
		return
	}
	c := &runtimeCall{s: s, m: m, tool: t, start: time.Now()}
	ctx, cancel := context.WithCancelCause(s.ctx)
	c.cancel = cancel
	if m.TimeoutMS > 0 {
		c.limit = time.Duration(min(m.TimeoutMS, maxTimeout.Milliseconds())) * time.Millisecond
		c.timer = time.AfterFunc(c.limit, func() { cancel(context.DeadlineExceeded) })
	}
	s.mu.Lock()
	s.calls[m.InvocationID] = c
	s.running++
	s.mu.Unlock()
	select {
	case s.jobs <- job{ctx, c}:
	default:
		s.wg.Add(1)
		go s.work(job{ctx, c})
	}
}

// A job is a call that is to be run.
type job struct {
	ctx context.Context
	c   *runtimeCall
}

// maxIdle bounds the goroutines of a session that wait for calls. Those that stay
// have the stack already that a call needs.
const maxIdle = 16

// work runs one call after the other as long as the session lasts.
func (s *runtimeSession) work(j job) {
	defer s.wg.Done()
	for {
		s.execute(j.ctx, j.c)
		if s.idle.Add(1) > maxIdle {
			s.idle.Add(-1)
			return
		}
		j = job{} // holds nothing while it waits
		select {
		case j = <-s.jobs:
			s.idle.Add(-1)
		case <-s.ctx.Done():
			return
		}
	}
}

func (s *runtimeSession) execute(ctx context.Context, c *runtimeCall) {
	defer c.cancel(nil)
	defer func() {
		if c.timer != nil {
			c.timer.Stop()
		}
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
		case <-ctx.Done():
			c.answer(ctx, &ToolResult{InvocationID: c.m.InvocationID, Error: c.failure(ctx, ctx.Err()), Header: Header{CorrelationID: c.m.CorrelationID}})
			return
		}
	}
	c.run(ctx)
}
