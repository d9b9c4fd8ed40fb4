// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package altar

import (
	"context"
	"errors"
	"log/slog"
	"sync"
)

// linkQueue bounds the messages that wait for the Host to read.
const linkQueue = 256

// A link is the sending side of a Runtime or a client: a queue and a goroutine that sends it, so
// that the reader never waits for the writer.
type link struct {
	conn   Conn
	direct *direct // conn, if it is in this process: there is no queue then
	out    *outbox
	log    *slog.Logger

	sending sync.Mutex // instead of the queue, in process
}

func newLink(conn Conn, log *slog.Logger) *link {
	l := &link{conn: conn, out: newOutbox(), log: log}
	l.direct, _ = conn.(*direct)
	return l
}

// send queues a message. It waits while the queue is full, but not longer than
// ctx lasts.
func (l *link) send(ctx context.Context, m Message) {
	if l.direct == nil {
		l.out.waitRoomContext(ctx, linkQueue)
	}
	l.post(m)
}

// post queues a message without waiting.
func (l *link) post(m Message) {
	if l.direct != nil {
		l.sending.Lock()
		defer l.sending.Unlock()
		l.sent(l.direct.sendOwn(m))
		return
	}
	l.out.put(m)
}

// sent deals with an error of sending, and reports whether the connection is
// lost. The reader sees that too.
func (l *link) sent(err error) bool {
	if err == nil {
		return false
	}
	var unsendable *Error
	if errors.As(err, &unsendable) {
		l.log.Error("altar: a message could not be sent", "err", err)
		return false
	}
	return true
}

// write empties the queue until it ends, and closes the connection.
func (l *link) write() {
	batch, batches := l.conn.(batcher)
	var buf []Message
	for {
		var ok, lost bool
		if buf, ok = l.out.take(context.Background(), buf[:0]); !ok {
			break
		}
		if batches {
			lost = l.sent(batch.sendBatch(buf))
		} else {
			for _, m := range buf {
				lost = l.sent(l.conn.Send(m)) || lost
			}
		}
		clear(buf)
		if lost {
			l.close()
			return
		}
	}
	if !hangUp(l.conn) {
		l.close()
	}
}

// hangUp ends the sending direction of a connection, so that the peer gets all
// that was sent: closing both at once may cost what the peer has not read yet. It
// reports whether the reader will see the end, which the peer answers; if not,
// the connection must be closed.
func hangUp(conn Conn) bool {
	g, ok := conn.(interface{ hangUp() bool })
	return ok && g.hangUp()
}

func (l *link) close() {
	l.out.close()
	_ = l.conn.Close()
}
