// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package accp

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"hash"
	"io"
	"strconv"
	"time"

	"github.com/fivewire/fivewire/internal/guard"
	"github.com/fivewire/fivewire/internal/streamlog"
)

// streamID returns the id of the stream of a request.
func streamID(k outcomeKey) string {
	return strconv.Quote(k.Principal) + hex.EncodeToString(k.Digest[:]) + k.ID
}

// publish lets other processes follow the messages of a handler that answers by more than one.
func (s *responder) publish(r *recorder) {
	r.mu.Lock()
	isFirst := r.streams != nil && !r.isPublic && !r.isAnswered
	r.isPublic = r.isPublic || isFirst
	r.mu.Unlock()
	if !isFirst {
		return
	}
	_ = s.life.Go("stream", func(ctx context.Context) {
		if err := r.copyTo(ctx, r.streams, r.key); err != nil {
			s.log.WarnContext(ctx, "accp: stream not published", "operation", r.key.ID, "err", err)
		}
	})
}

// copyTo appends the messages to a stream until the handler has returned. A stream without a complete answer is
// removed, because the request may run again.
func (r *recorder) copyTo(ctx context.Context, streams *streamlog.Table, k outcomeKey) error {
	w, err := streams.Create(ctx, streamID(k), k.Principal, streamlog.Options{Grace: -1, Retention: -1})
	if err != nil {
		return err
	}
	for sent := 0; ; {
		data, changed, isAnswered := r.after(sent)
		for line := range bytes.Lines(data) {
			if _, err := w.Append(ctx, bytes.Clone(line)); err != nil {
				w.Cut(err)
				return err
			}
		}
		sent += len(data)
		if changed == nil && isAnswered {
			return w.Finish(ctx, nil)
		} else if changed == nil {
			w.Cut(io.ErrUnexpectedEOF)
			return streams.Remove(ctx, streamID(k))
		}
		select {
		case <-changed:
		case <-ctx.Done():
			w.Cut(context.Cause(ctx))
			return context.Cause(ctx)
		}
	}
}

// A remoteRun follows the handler of a request in another process.
type remoteRun struct {
	end    context.CancelFunc // of the context of the request, when the whole answer was sent
	cancel context.CancelFunc
	timer  *time.Timer   // starts the goroutine, unless this process claims the request first
	done   chan struct{} // closed at the end of the goroutine

	// The fields below belong to the goroutine until stop.
	sent    int       // bytes of the answer
	sum     hash.Hash // of them
	isWhole bool
}

const (
	firstLook = 50 * time.Millisecond // for the stream, after which the delay doubles
	lastLook  = time.Second
)

// followElsewhere sends the messages that the handler of a repeated request sends in another process, until stop. The
// returned context ends when the whole answer was sent. Without a store, and for another request, there is nothing to
// follow, and the run is nil.
func (e *exchange) followElsewhere(ctx context.Context, streams *streamlog.Table, k outcomeKey) (until context.Context, _ *remoteRun) {
	if streams == nil || !k.isTry && !k.isTransaction {
		return ctx, nil
	}
	r := &remoteRun{done: make(chan struct{}), sum: sha256.New()}
	following, cancel := context.WithCancel(ctx)
	until, r.end = context.WithCancel(ctx)
	r.cancel = cancel
	r.timer = time.AfterFunc(firstLook, func() {
		defer close(r.done)
		_ = guard.Call("stream", func() error {
			r.follow(following, e, streams, k)
			return nil
		})
		if r.isWhole {
			r.end()
		}
	})
	return until, r
}

// stop waits for the end of the goroutine, or prevents its start. It reports whether the whole answer was sent.
func (r *remoteRun) stop() (isWhole bool) {
	if r == nil {
		return false
	}
	r.cancel()
	if r.timer.Stop() {
		close(r.done)
	}
	<-r.done
	return r.isWhole
}

// unsent returns the rest of an outcome. If another run than the followed one made it, that is the whole outcome.
func (r *remoteRun) unsent(data []byte) []byte {
	if r == nil || r.sent == 0 || r.sent > len(data) {
		return data
	}
	if sum := sha256.Sum256(data[:r.sent]); !bytes.Equal(sum[:], r.sum.Sum(nil)) {
		return data
	}
	return data[r.sent:]
}

// close ends the goroutine and the context.
func (r *remoteRun) close() {
	if r != nil {
		r.stop()
		r.end()
	}
}

// follow sends the messages of the stream of a request once it exists. A stream that cannot be read, and a
// connection that fails, leave the answer to the outcome.
func (r *remoteRun) follow(ctx context.Context, e *exchange, streams *streamlog.Table, k outcomeKey) {
	var in *streamlog.Reader
	for delay := firstLook; ; delay = min(2*delay, lastLook) {
		var err error
		in, err = streams.Read(ctx, streamID(k), k.Principal, 0)
		if err == nil {
			break
		} else if !errors.Is(err, streamlog.ErrUnknown) {
			return
		}
		timer := time.NewTimer(delay)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return
		}
	}
	defer in.Close()
	for buf := []streamlog.Item(nil); ; {
		items, err := in.Next(ctx, buf)
		if err != nil {
			r.isWhole = errors.Is(err, io.EOF)
			return
		}
		for _, item := range items {
			if e.replay(item.Data) != nil {
				return
			}
			r.sent += len(item.Data)
			r.sum.Write(item.Data)
		}
		buf = items
	}
}
