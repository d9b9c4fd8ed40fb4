// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package air

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/fivewire/fivewire/internal/sse"
)

// heartbeat is how often a silent stream shows that it is alive.
const heartbeat = 30 * time.Second

// serveStream sends what is in the mailbox and what comes as events, until the
// reader goes or the relay is closed. An envelope that is not acknowledged comes
// again with the next stream or pull.
func (r *Relay) serveStream(w http.ResponseWriter, req *http.Request, to *recipient, after uint64) error {
	r.mu.Lock()
	if r.closed || r.open >= r.opts.MaxStreams {
		r.mu.Unlock()
		return &Error{Code: ErrRateLimited, Message: "too many streams", RetryAfter: 30 * time.Second}
	}
	r.open++
	r.streams.Add(1)
	r.mu.Unlock()
	defer func() {
		r.mu.Lock()
		r.open--
		r.mu.Unlock()
		r.streams.Done()
	}()
	ctx, cancel := context.WithCancel(req.Context())
	out := sse.NewWriter(w, &sse.WriterOptions{KeepAlive: heartbeat, KeepAliveText: "heartbeat"})
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		select {
		case <-r.done:
		case <-out.Done():
		case <-ctx.Done():
		}
		cancel()
	}()
	defer func() { <-ended }()
	defer cancel()
	err := out.Comment(ctx, "ready")
	for err == nil {
		after, err = r.sendPage(ctx, out, to, after)
	}
	if errors.Is(err, context.Canceled) || out.Err() != nil {
		err = nil // the reader went, or the relay was closed
	}
	if err != nil {
		r.log.ErrorContext(req.Context(), "air: stream failed", "mailbox", to.airID, "err", err)
	}
	_ = out.Close() // how it ended is known
	return nil
}

func (r *Relay) sendPage(ctx context.Context, out *sse.Writer, to *recipient, after uint64) (uint64, error) {
	mail, _, err := r.boxes.pull(ctx, to.airID, after, r.opts.PageSize)
	if err != nil {
		return after, err
	}
	for _, rec := range mail {
		if err := out.Send(ctx, "envelope", "", mailOf(rec).appendMessage(nil)); err != nil {
			return after, err
		}
		after = rec.Seq
	}
	if len(mail) == 0 {
		return after, r.boxes.wait(ctx, to.airID, after)
	}
	return after, nil
}
