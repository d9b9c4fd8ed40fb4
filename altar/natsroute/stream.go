// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package natsroute

import (
	"encoding/binary"
	"errors"
	"io"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
)

// Errors of a stream.
var (
	errLost   = errors.New("natsroute: stream: other host silent")
	errClosed = errors.New("natsroute: stream: closed")
)

// maxFrames bounds the data frames of one direction in flight.
const maxFrames = 64

// A frame has a kind, two numbers and data. NATS may lose frames, so data frames are numbered from 1 and kept until
// they are acknowledged.
const (
	kindData  = 'd' // number of the frame, acknowledged frames, data
	kindAlive = 'a' // number of the last data frame, acknowledged frames
	kindAgain = 'r' // the same, and a request to send all frames again that are not acknowledged
	kindEnd   = 'e' // the same: no data follows

	headerSize = 17
)

func appendFrame(dst []byte, kind byte, number, acked uint64, data []byte) []byte {
	dst = append(dst, kind)
	dst = binary.BigEndian.AppendUint64(dst, number)
	dst = binary.BigEndian.AppendUint64(dst, acked)
	return append(dst, data...)
}

// A stream is one end of a byte stream between two Hosts.
type stream struct {
	r    *Cluster
	to   string // subject of the other end
	sub  *nats.Subscription
	in   chan *nats.Msg
	done chan struct{} // closed at the end

	mu       sync.Mutex
	sent     uint64        // data frames
	acked    uint64        // of them
	unacked  [][]byte      // frames after acked
	unread   int           // bytes of unacked
	space    chan struct{} // capacity 1: frames were acknowledged
	got      uint64        // received data frames, in order
	consumed uint64        // of them, by Read
	signed   uint64        // the last consumed that was sent
	freed    int           // bytes consumed since then
	buf      [][]byte      // received and not consumed
	rest     []byte        // of the frame that Read is in
	readable chan struct{} // capacity 1
	isEnded  bool          // the other end sends no more
	err      error         // once done is closed
	askedFor uint64        // got when frames were last requested again
	missed   int           // heartbeats
}

// newStream returns an end that can receive.
func (r *Cluster) newStream() (*stream, error) {
	s := &stream{r: r, in: make(chan *nats.Msg, 16*maxFrames), done: make(chan struct{}),
		space: make(chan struct{}, 1), readable: make(chan struct{}, 1)}
	sub, err := r.nc.ChanSubscribe(r.nc.NewInbox(), s.in)
	if err != nil {
		return nil, err
	}
	s.sub = sub
	return s, nil
}

// start makes the stream work with another end.
func (s *stream) start(to string) {
	s.to = to
	s.r.work.Go(s.run)
}

func (s *stream) publish(frame []byte) {
	if err := s.r.nc.Publish(s.to, frame); err != nil { // it is requested again
		s.r.opts.Logger.DebugContext(s.r.life, "natsroute: frame not sent", "err", err)
	}
}

// signLocked sends a frame without data. s.mu must be held.
func (s *stream) signLocked(kind byte) {
	s.signed, s.freed = s.consumed, 0
	s.publish(appendFrame(make([]byte, 0, headerSize), kind, s.sent, s.consumed, nil))
}

// run handles frames and heartbeats until the stream ends.
func (s *stream) run() {
	defer func() { _ = s.sub.Unsubscribe() }() // fails only with the connection
	tick := time.NewTicker(s.r.opts.Heartbeat / 4)
	defer tick.Stop()
	ticks := 0
	for {
		select {
		case <-s.done:
			return
		case <-s.r.life.Done():
			s.end(errClosed)
			return
		case m := <-s.in:
			s.handle(m.Data)
		case <-tick.C:
			ticks++
			s.beat(ticks)
		}
	}
}

// beat is called four times in a heartbeat.
func (s *stream) beat(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.askedFor = 0 // what was requested may be lost
	if len(s.unacked) > 0 || s.freed > 0 || n%4 == 0 {
		s.signLocked(kindAlive)
	}
	if n%4 != 0 || s.isEnded {
		return
	}
	s.missed++
	if s.missed > silence {
		s.endLocked(errLost)
	}
}

func (s *stream) handle(frame []byte) {
	if len(frame) < headerSize {
		return
	}
	number, acked := binary.BigEndian.Uint64(frame[1:]), binary.BigEndian.Uint64(frame[9:])
	s.mu.Lock()
	defer s.mu.Unlock()
	s.missed = 0
	s.ackLocked(acked)
	switch frame[0] {
	case kindData:
		if number == s.got+1 {
			s.got++
			s.buf = append(s.buf, frame[headerSize:])
			signal(s.readable)
			return
		}
	case kindAgain:
		for _, f := range s.unacked {
			s.publish(f)
		}
	case kindEnd:
		if number == s.got {
			s.isEnded = true
			signal(s.readable)
			signal(s.space)
		}
	}
	if number > s.got && s.askedFor != s.got+1 { // frames are missing
		s.askedFor = s.got + 1
		s.signLocked(kindAgain)
	}
}

// ackLocked frees acknowledged frames. s.mu must be held.
func (s *stream) ackLocked(n uint64) {
	for ; s.acked < min(n, s.sent); s.acked++ {
		s.unread -= len(s.unacked[0])
		s.unacked[0] = nil
		s.unacked = s.unacked[1:]
		signal(s.space)
	}
}

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// Write implements [io.Writer]. It waits while too much is in flight.
func (s *stream) Write(p []byte) (n int, err error) {
	size := max(1, int(s.r.nc.MaxPayload())-headerSize)
	for len(p) > 0 {
		part := p[:min(len(p), size)]
		if err := s.send(part); err != nil {
			return n, err
		}
		n += len(part)
		p = p[len(part):]
	}
	return n, nil
}

func (s *stream) send(part []byte) error {
	for {
		s.mu.Lock()
		if s.err != nil {
			defer s.mu.Unlock()
			return s.err
		}
		if len(s.unacked) < maxFrames && s.unread < s.r.opts.MaxUnacked {
			s.sent++
			frame := appendFrame(make([]byte, 0, headerSize+len(part)), kindData, s.sent, s.consumed, part)
			s.unacked = append(s.unacked, frame)
			s.unread += len(frame)
			s.signed, s.freed = s.consumed, 0
			s.publish(frame)
			s.mu.Unlock()
			return nil
		}
		s.mu.Unlock()
		select {
		case <-s.space:
		case <-s.done:
		}
	}
}

// Read implements [io.Reader].
func (s *stream) Read(p []byte) (n int, err error) {
	for {
		s.mu.Lock()
		if len(s.rest) == 0 && len(s.buf) > 0 {
			s.rest = s.buf[0]
			s.buf[0] = nil
			s.buf = s.buf[1:]
			s.consumed++
			s.freed += len(s.rest) + headerSize
			if s.consumed-s.signed >= maxFrames/2 || 2*s.freed >= s.r.opts.MaxUnacked {
				s.signLocked(kindAlive)
			}
		}
		n = copy(p, s.rest)
		s.rest = s.rest[n:]
		err = s.err
		isEnded := s.isEnded
		s.mu.Unlock()
		switch {
		case n > 0 || len(p) == 0:
			return n, nil
		case isEnded:
			return 0, io.EOF
		case err != nil:
			return 0, err
		}
		select {
		case <-s.readable:
		case <-s.done:
		}
	}
}

func (s *stream) end(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.endLocked(err)
}

// endLocked ends the stream. s.mu must be held.
func (s *stream) endLocked(err error) {
	if s.err == nil {
		s.err = err
		close(s.done)
	}
}

// Close waits for the frames in flight, as long as the other end is treated as alive and has not closed, and ends both
// directions.
func (s *stream) Close() error {
	late := time.NewTimer(silence * s.r.opts.Heartbeat)
	defer late.Stop()
	for s.isBusy() {
		select {
		case <-s.space:
			continue
		case <-s.done:
		case <-late.C:
		}
		break
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err == nil {
		s.signLocked(kindEnd)
	}
	s.endLocked(errClosed)
	return nil
}

// isBusy reports whether frames are in flight.
func (s *stream) isBusy() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err == nil && !s.isEnded && len(s.unacked) > 0
}
