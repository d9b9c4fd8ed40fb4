// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package altar

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"math"
	"sync"
	"time"

	"github.com/fivewire/fivewire/altar/internal/transport"
	"github.com/fivewire/fivewire/internal/guard"
	"github.com/fivewire/fivewire/internal/sendq"
)

// A link is the sending side of a connection: a bounded queue, so that the goroutine that reads
// never waits for the peer.
type link struct {
	conn   Conn
	direct *direct // conn, if it is in this process: there is no queue then
	wire   frameConn
	queue  *sendq.Queue
	log    *slog.Logger

	scratch sync.Pool // of *[]byte, for frames that the queue copies
}

const (
	maxCopied = 16 << 10 // longest frame that the queue always copies

	// flushTimeout is how long a Close at once writes queued messages.
	flushTimeout = 200 * time.Millisecond
)

// newLink returns the sending side of conn. The options are those of the queue.
func newLink(conn Conn, log *slog.Logger, o sendq.Options) *link {
	l := &link{conn: conn, log: log}
	l.direct, _ = conn.(*direct)
	if l.direct != nil {
		return l
	}
	var ok bool
	if l.wire, ok = conn.(frameConn); !ok {
		l.wire = &messageWire{inner: conn, log: log}
		l.conn = l.wire
	}
	_, o.Separate = l.wire.Limit()
	o.OnCut = func(err error) {
		if errors.Is(err, sendq.ErrSlowReader) {
			log.WarnContext(context.Background(), "altar: slow reader disconnected", "err", err)
		}
		_ = l.conn.Close()
	}
	l.queue = sendq.New(l.wire, o)
	return l
}

// A messageWire is a Conn of another package, whose methods may panic, or one over HTTP.
type messageWire struct {
	inner Conn
	log   *slog.Logger
}

func (w *messageWire) Receive() (m Message, err error) {
	err = guard.Call("Conn.Receive", func() (err error) {
		m, err = w.inner.Receive()
		return err
	})
	return m, err
}

func (w *messageWire) Send(m Message) error {
	return guard.Call("Conn.Send", func() error { return w.inner.Send(m) })
}

func (w *messageWire) Close() error { return guard.Call("Conn.Close", w.inner.Close) }

func (w *messageWire) Limit() (maxOutput int, isSeparate bool) {
	if c, ok := w.inner.(*httpConn); ok {
		return c.opts.MaxOutput, true
	}
	return math.MaxInt, true
}

func (w *messageWire) HangUp(transport.Goodbye) bool {
	if c, ok := w.inner.(*httpConn); ok {
		c.drain()
	}
	return false
}

// Write sends one frame. An [*Error] concerns this message only.
func (w *messageWire) Write(frame []byte) (int, error) {
	own := bytes.Clone(frame)
	m, err := DecodeMessage(own, len(own))
	if err == nil {
		err = w.Send(m)
	}
	if unsendable := asError(err); unsendable != nil {
		w.log.ErrorContext(context.Background(), "altar: message not sent", "err", err)
		err = nil
	}
	if err != nil {
		return 0, err
	}
	return len(frame), nil
}

// put encodes a message, whose raw JSON is valid, and passes it to the queue by add. An [*Error]
// concerns the message only; any other error is the end of the connection, or of the context of add.
func (l *link) put(m Message, add func(q *sendq.Queue, frame []byte) error) error {
	buf, ok := l.scratch.Get().(*[]byte)
	if !ok {
		buf = new([]byte)
	}
	frame, err := appendFrame((*buf)[:0], l.wire, m, true)
	if err == nil {
		err = add(l.queue, frame)
	}
	if len(frame) <= maxCopied && cap(frame) <= 4*maxCopied { // else the queue may own it
		*buf = frame[:0]
		l.scratch.Put(buf)
	}
	return err
}

// send queues a message. It waits while the queue is full, but not longer than ctx lasts.
func (l *link) send(ctx context.Context, m Message) error {
	if l.direct != nil {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		return l.direct.sendOwn(m, true)
	}
	return l.put(m, func(q *sendq.Queue, frame []byte) error { return q.PutWait(ctx, frame, 0) })
}

// post queues a message of the goroutine that reads, which waits only if the reserve of the queue
// is full, too; then the connection is cut after WriteTimeout.
func (l *link) post(m Message) {
	if !l.tryPost(m) {
		_ = l.send(context.Background(), m) // ends with the connection
	}
}

// tryPost is post, but reports false instead of waiting.
func (l *link) tryPost(m Message) bool {
	if l.direct != nil {
		l.logUnsent(m, l.direct.sendOwn(m, false))
		return true
	}
	err := l.put(m, func(q *sendq.Queue, frame []byte) error {
		err := q.Put(frame, 0)
		if errors.Is(err, sendq.ErrFull) {
			err = q.PutControl(frame, math.MaxUint64) // in the order of the messages
		}
		return err
	})
	l.logUnsent(m, err)
	return !errors.Is(err, sendq.ErrFull)
}

// logUnsent logs an error that concerns a message only.
func (l *link) logUnsent(m Message, err error) {
	if asError(err) != nil {
		l.log.ErrorContext(context.Background(), "altar: message not sent", "type", typeOf(m), "err", err)
	}
}

// finish writes the queue until ctx ends, and ends the connection. The reader may still receive
// the answer of the peer to that.
func (l *link) finish(ctx context.Context, why transport.Goodbye) {
	if l.direct != nil || l.queue.Close(ctx) != nil || !l.wire.HangUp(why) {
		l.close()
	}
}

// close ends the connection at once.
func (l *link) close() {
	if l.queue != nil {
		l.queue.Cut(nil)
	}
	_ = l.conn.Close()
}
