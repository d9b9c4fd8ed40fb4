// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"context"
	"net/http"
	"time"

	"github.com/fivewire/fivewire/air"
	"github.com/fivewire/fivewire/internal/budget"
	"github.com/fivewire/fivewire/internal/retry"
	"github.com/fivewire/fivewire/internal/sse"
)

// heartbeat is the interval of comments on an idle stream.
const heartbeat = 30 * time.Second

// serveStream sends the mail and later arrivals as events until the reader disconnects, its secret or key is replaced, or
// the relay is closed. An unacknowledged envelope comes again with the next stream or pull. An error after the response has
// begun is for the audit and the log only.
func (s *Server) serveStream(w http.ResponseWriter, req *http.Request, x *call, after uint64) error {
	place, err := s.output.Scope(x.principal, "").Reserve(budget.Work, 1)
	if err != nil {
		return overBudget(err)
	}
	defer place.Release()
	ctx, cancel := context.WithCancel(req.Context())
	out := sse.NewWriter(w, &sse.WriterOptions{KeepAlive: heartbeat, KeepAliveText: "heartbeat"})
	watcherDone := make(chan struct{})
	go func() {
		defer close(watcherDone)
		select {
		case <-out.Done():
		case <-ctx.Done():
		}
		cancel()
	}()
	defer func() { <-watcherDone }()
	defer cancel()
	x.isAnswered = true
	err = out.Comment(ctx, "ready")
	for err == nil {
		after, err = s.sendPage(ctx, out, x, after)
		if err == nil && !s.mayContinue(req, x) {
			err = air.Errorf(air.ErrUnauthorized, "the secret or the key was replaced")
		}
	}
	if ctx.Err() != nil || out.Err() != nil {
		err = nil // the reader disconnected, or the relay was closed
	}
	_ = out.Close() // the error is that of the stream
	return err
}

// sendPage sends the next envelopes, or waits for them. Without room in the budget for one of them it waits a second.
func (s *Server) sendPage(ctx context.Context, out *sse.Writer, x *call, after uint64) (uint64, error) {
	mail, _, err := s.boxes.read(ctx, x.to.airID, after, s.opts.PageSize)
	if err != nil {
		return after, err
	}
	if len(mail) == 0 {
		return after, s.boxes.wait(ctx, x.to.airID, after)
	}
	mail, _, hold, err := s.reservePage(x, mail)
	if err != nil {
		return after, retry.Sleep(ctx, time.Second)
	}
	defer hold.Release()
	if err := s.boxes.hand(ctx, x.to.airID, mail); err != nil {
		return after, err
	}
	for _, rec := range mail {
		if err := out.Send(ctx, "envelope", "", mailOf(rec).appendMessage(nil)); err != nil {
			return after, err
		}
		after = rec.Seq
	}
	return after, nil
}
