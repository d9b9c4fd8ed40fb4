// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"time"
)

// A direction is one way of a connection: bytes in transit and bytes that arrived, at most window.
type direction struct {
	n        *network
	from, to string
	id       int

	mu       sync.Mutex // guards all below
	pending  int        // bytes in transit and arrived
	queue    []segment  // in transit
	buf      []byte     // arrived
	arrival  time.Duration
	isClosed bool // no more sends
	isSilent bool // sends are lost
	isEnd    bool // the end has arrived
	err      error
	changed  chan struct{} // closed at each change
}

// A segment is the bytes of one send.
type segment struct {
	b      []byte
	isLast bool
}

func newDirection(n *network, from, to string, id int) *direction {
	return &direction{n: n, from: from, to: to, id: id, changed: make(chan struct{})}
}

// raiseLocked wakes readers and writers. d.mu must be held.
func (d *direction) raiseLocked() {
	close(d.changed)
	d.changed = make(chan struct{})
}

func (d *direction) fail(err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.err == nil {
		d.err = err
		d.raiseLocked()
	}
}

func (d *direction) silence() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.isSilent = true
}

// send sends bytes when the window has space, and then the end if isLast.
func (d *direction) send(b []byte, limit *deadline, isLast bool) (int, error) {
	for {
		d.mu.Lock()
		switch {
		case d.err != nil:
			err := d.err
			d.mu.Unlock()
			return 0, err
		case d.isClosed:
			d.mu.Unlock()
			return 0, net.ErrClosed
		case isLast || d.pending == 0 || d.pending+len(b) <= window:
			d.pending += len(b)
			d.isClosed = isLast
			d.queue = append(d.queue, segment{b, isLast})
			delay := d.delayLocked()
			d.mu.Unlock()
			time.AfterFunc(delay, d.deliver)
			return len(b), nil
		}
		changed := d.changed
		d.mu.Unlock()
		select {
		case <-changed:
		case <-limit.done():
			return 0, os.ErrDeadlineExceeded
		}
	}
}

// delayLocked returns the delay of a segment, which arrives after the earlier ones. d.mu must be held.
func (d *direction) delayLocked() time.Duration {
	w := d.n.w
	now := w.Now()
	delay := w.between(minLatency, maxLatency, "segment", d.from, d.to, fmt.Sprint(d.id))
	delay = w.moment(max(delay, d.arrival+1-now))
	d.arrival = now + delay
	return delay
}

// deliver puts the next segment into the buffer of the reader. A blocked one is tried again later.
func (d *direction) deliver() {
	w := d.n.w
	isBlocked := d.n.isBlocked(d.from, d.to)
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case d.isSilent || d.err != nil:
		return
	case isBlocked:
		time.AfterFunc(w.moment(stallDelay), d.deliver)
		return
	}
	next := d.queue[0]
	d.queue = d.queue[1:]
	w.Event(d.to, "deliver", d.from, fmt.Sprint(len(next.b), " ", next.isLast))
	d.buf = append(d.buf, next.b...)
	d.isEnd = next.isLast
	d.raiseLocked()
}

// read takes arrived bytes.
func (d *direction) read(b []byte, limit *deadline) (int, error) {
	for {
		d.mu.Lock()
		switch {
		case len(d.buf) > 0 && len(b) > 0:
			n := copy(b, d.buf)
			d.buf = d.buf[n:]
			d.pending -= n
			d.raiseLocked()
			d.mu.Unlock()
			return n, nil
		case d.err != nil || len(b) == 0:
			err := d.err
			d.mu.Unlock()
			return 0, err
		case d.isEnd:
			d.mu.Unlock()
			return 0, io.EOF
		}
		changed := d.changed
		d.mu.Unlock()
		select {
		case <-changed:
		case <-limit.done():
			return 0, os.ErrDeadlineExceeded
		}
	}
}

// A deadline is that of reads or writes.
type deadline struct {
	mu    sync.Mutex
	timer *time.Timer
	end   chan struct{}
}

func newDeadline() *deadline { return &deadline{end: make(chan struct{})} }

func (l *deadline) done() <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.end
}

func (l *deadline) set(t time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.timer != nil {
		l.timer.Stop()
	}
	select {
	case <-l.end:
		l.end = make(chan struct{})
	default:
	}
	if t.IsZero() {
		return
	}
	ch := l.end
	end := sync.OnceFunc(func() { close(ch) })
	if d := time.Until(t); d > 0 {
		l.timer = time.AfterFunc(d, end)
		return
	}
	end()
}
