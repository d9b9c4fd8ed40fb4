// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package fault

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"time"
)

// Listener returns a view of l whose connections have the faults of plan. The name of its operations
// is the address of l. After Crash, all its connections fail, and it accepts none.
func Listener(l net.Listener, plan *Plan) net.Listener {
	if plan == nil {
		return l
	}
	return &listener{l, plan}
}

type listener struct {
	net.Listener
	plan *Plan
}

// Accept implements [net.Listener]. A connection that a fault refuses is closed.
func (l *listener) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		name := l.Addr().String()
		if l.plan.open(context.Background(), opAccept, name) == nil {
			return wrap(c, name, l.plan), nil
		}
		_ = c.Close()
	}
}

// Dialer returns a dial function, for example for http.Transport, whose connections have the faults of plan.
// The name of its operations is the address. A nil dial is that of net.Dialer.
func Dialer(dial func(ctx context.Context, network, address string) (net.Conn, error), plan *Plan,
) func(ctx context.Context, network, address string) (net.Conn, error) {
	if dial == nil {
		dial = new(net.Dialer).DialContext
	}
	if plan == nil {
		return dial
	}
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		err := plan.open(ctx, opDial, address)
		if err != nil {
			return nil, &net.OpError{Op: "dial", Net: network, Err: err}
		}
		c, err := dial(ctx, network, address)
		if err != nil {
			return nil, err
		}
		return wrap(c, address, plan), nil
	}
}

// ReadWriteCloser returns a view of rw with the faults of plan, for example of the pipes of a child process.
// The name of its operations is empty.
func ReadWriteCloser(rw io.ReadWriteCloser, plan *Plan) io.ReadWriteCloser {
	if plan == nil {
		return rw
	}
	return newStream(rw, "", plan)
}

// open decides the beginning of a connection.
func (p *Plan) open(ctx context.Context, op, name string) error {
	ctx, release, err := p.enter(ctx)
	if err != nil {
		return err
	}
	defer release()
	d := p.decide(op, name)
	err = sleep(ctx, d.slow)
	if d.slow > 0 {
		p.addCount(Delay)
	}
	if err == nil && d.fails {
		p.addCount(d.action)
		err = sleep(ctx, d.delay)
		if err == nil {
			err = fmt.Errorf("%w: connection refused", ErrInjected)
		}
	}
	return err
}

func wrap(c net.Conn, name string, p *Plan) net.Conn {
	return &conn{Conn: c, stream: newStream(c, name, p)}
}

// A conn is a network connection with faults. Its deadlines end Delay, Hang and Pause too.
type conn struct {
	net.Conn
	stream *stream
}

func (c *conn) Read(b []byte) (int, error)  { return c.stream.Read(b) }
func (c *conn) Write(b []byte) (int, error) { return c.stream.Write(b) }
func (c *conn) Close() error                { return c.stream.Close() }

func (c *conn) SetDeadline(t time.Time) error {
	return errors.Join(c.SetReadDeadline(t), c.SetWriteDeadline(t))
}

func (c *conn) SetReadDeadline(t time.Time) error {
	err := c.Conn.SetReadDeadline(t)
	c.stream.reads.set(c.stream.ctx, t)
	return err
}

func (c *conn) SetWriteDeadline(t time.Time) error {
	err := c.Conn.SetWriteDeadline(t)
	c.stream.writes.set(c.stream.ctx, t)
	return err
}

// A deadline is the context of the calls of one direction. The cause of its end is os.ErrDeadlineExceeded, or
// that of the connection.
type deadline struct {
	mu     sync.Mutex // guards all below
	ctx    context.Context
	cancel context.CancelCauseFunc
	timer  *time.Timer // nil without a deadline
}

func newDeadline(conn context.Context) *deadline {
	d := &deadline{}
	d.ctx, d.cancel = context.WithCancelCause(conn)
	return d
}

func (d *deadline) context() context.Context {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.ctx
}

// set sets the deadline, also of a call in progress. Zero means none.
func (d *deadline) set(conn context.Context, t time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.timer != nil && !d.timer.Stop() || d.ctx.Err() != nil {
		d.ctx, d.cancel = context.WithCancelCause(conn)
	}
	d.timer = nil
	cancel := d.cancel
	left := time.Until(t)
	switch {
	case t.IsZero():
	case left <= 0:
		cancel(os.ErrDeadlineExceeded)
	default:
		d.timer = time.AfterFunc(left, func() { cancel(os.ErrDeadlineExceeded) })
	}
}

// A stream is a connection with faults. The context of its calls ends with Close.
type stream struct {
	rw     io.ReadWriteCloser
	name   string
	plan   *Plan
	ctx    context.Context
	cancel context.CancelFunc
	once   sync.Once
	reads  *deadline
	writes *deadline

	mu         sync.Mutex // of Write
	delayed    []byte     // by Reorder
	isHalfOpen bool       // Write loses its bytes
	closeErr   error
}

func newStream(rw io.ReadWriteCloser, name string, p *Plan) *stream {
	s := &stream{rw: rw, name: name, plan: p}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	s.reads, s.writes = newDeadline(s.ctx), newDeadline(s.ctx)
	return s
}

// begin begins a call. Crash of the plan closes the connection.
func (s *stream) begin(op string, direction *deadline) (context.Context, func(), decision, error) {
	direct := direction.context()
	ctx, release, err := s.plan.enter(direct)
	if err != nil {
		if errors.Is(err, ErrCrashed) {
			_ = s.Close()
		}
		return nil, nil, decision{}, s.endOf(direct, err)
	}
	d := s.plan.decide(op, s.name)
	if d.slow > 0 {
		s.plan.addCount(Delay)
		err = sleep(ctx, d.slow)
	}
	if d.fails {
		s.plan.addCount(d.action)
	}
	if err == nil && d.fails && (d.action == Hang || d.action == ErrorBefore) {
		err = sleep(ctx, d.delay)
		if err == nil {
			err = fmt.Errorf("%w: %s", ErrInjected, errorTexts[d.action])
		}
	}
	if err != nil {
		release()
		return nil, nil, d, s.endOf(direct, err)
	}
	return ctx, release, d, nil
}

// endOf returns the error of a call in a direction, which has ended if that is the reason of err.
func (s *stream) endOf(direct context.Context, err error) error {
	switch {
	case s.ctx.Err() != nil:
		return net.ErrClosed
	case direct.Err() != nil:
		return context.Cause(direct)
	}
	return err
}

// Read implements [io.Reader].
func (s *stream) Read(b []byte) (int, error) {
	for {
		ctx, release, d, err := s.begin(opReceive, s.reads)
		if err != nil {
			return 0, err
		}
		stop := context.AfterFunc(ctx, func() {
			if !errors.Is(context.Cause(ctx), os.ErrDeadlineExceeded) && s.ctx.Err() == nil { // Crash
				_ = s.Close()
			}
		})
		n, isDropped, err := s.receive(b, d)
		stop()
		holdErr := s.plan.hold(ctx)
		release()
		switch {
		case isDropped && err == nil:
			continue
		case holdErr != nil:
			return 0, holdErr
		}
		return n, err
	}
}

func (s *stream) receive(b []byte, d decision) (n int, isDropped bool, err error) {
	if d.fails && d.action == Cut {
		return 0, false, s.cut()
	}
	n, err = s.rw.Read(b)
	if !d.fails || n == 0 {
		return n, false, err
	}
	switch d.action {
	case Drop:
		return 0, true, err
	case HalfClose:
		s.halfClose()
	case Truncate:
		_ = s.cut()
		n = int(d.random % uint64(n))
	case Corrupt:
		flip(b[:n], d.random)
	case ErrorAfter:
		return 0, false, fmt.Errorf("%w: %s", ErrInjected, errorTexts[d.action])
	}
	return n, false, err
}

// Write implements [io.Writer].
func (s *stream) Write(b []byte) (int, error) {
	_, release, d, err := s.begin(opSend, s.writes)
	if err != nil {
		return 0, err
	}
	defer release()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.isHalfOpen {
		return 0, fmt.Errorf("%w: connection closed for sending", ErrInjected)
	}
	return s.sendLocked(b, d)
}

// sendLocked writes b with the fault of d. s.mu must be held.
func (s *stream) sendLocked(b []byte, d decision) (n int, err error) {
	n = len(b)
	switch {
	case !d.fails:
		err = s.flushLocked(b)
	case d.action == Drop:
	case d.action == Cut:
		return 0, s.cut()
	case d.action == HalfClose:
		s.halfClose()
		s.isHalfOpen = true
		return 0, fmt.Errorf("%w: connection closed for sending", ErrInjected)
	case d.action == Truncate:
		_ = s.flushLocked(b[:int(d.random%uint64(max(1, n)))])
		return 0, s.cut()
	case d.action == Corrupt:
		b = bytes.Clone(b)
		flip(b, d.random)
		err = s.flushLocked(b)
	case d.action == Duplicate:
		err = s.flushLocked(append(bytes.Clone(b), b...))
	case d.action == Reorder && s.delayed == nil:
		s.delayed = bytes.Clone(b)
	case d.action == ErrorAfter:
		_ = s.flushLocked(b)
		err = fmt.Errorf("%w: %s", ErrInjected, errorTexts[d.action])
	default:
		err = s.flushLocked(b)
	}
	if err != nil {
		return 0, err
	}
	return n, nil
}

// flushLocked writes b, and the bytes that Reorder has held. s.mu must be held.
func (s *stream) flushLocked(b []byte) error {
	delayed := s.delayed
	s.delayed = nil
	_, err := s.rw.Write(append(b[:len(b):len(b)], delayed...))
	return err
}

func (s *stream) cut() error {
	_ = s.Close()
	return fmt.Errorf("%w: connection cut", ErrInjected)
}

// halfClose closes the direction of sending as far as the connection has one.
func (s *stream) halfClose() {
	if c, ok := s.rw.(interface{ CloseWrite() error }); ok {
		_ = c.CloseWrite()
	}
}

func flip(b []byte, random uint64) {
	if len(b) > 0 {
		b[random/8%uint64(len(b))] ^= 1 << (random % 8)
	}
}

// Close implements [io.Closer]. Bytes that Reorder has held are sent before.
func (s *stream) Close() error {
	s.once.Do(func() {
		s.cancel()
		if s.mu.TryLock() {
			if len(s.delayed) > 0 {
				_ = s.flushLocked(nil)
			}
			s.mu.Unlock()
		}
		s.closeErr = s.rw.Close()
	})
	return s.closeErr
}
