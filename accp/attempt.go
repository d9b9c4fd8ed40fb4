// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package accp

import (
	"context"
	"errors"
	"net/http"
	"strconv"
	"time"

	"github.com/fivewire/fivewire/internal/httpx"
	"github.com/fivewire/fivewire/internal/randid"
	"github.com/fivewire/fivewire/internal/retry"
)

// A failure is the outcome of posting a frame without an answer.
type failure uint8

const (
	failFinal  failure = iota // another post fails alike
	failUnsent                // nothing was processed
	failLost                  // it may have been processed
	failCode                  // the peer answered by an error frame
)

// A move is the reaction of a client to a failure.
type move uint8

const (
	moveEnd       move = iota // the call fails
	moveSameFrame             // post the frame again, after the backoff
	moveNewFrame              // send a new frame of the chain at once
	moveLater                 // the same after the backoff
	moveRepair                // repair what the peer lacks, then send a new frame
)

// A progress is the state of a call between its posts (ACCP-D29).
type progress struct {
	maximum  int  // posts of a frame, and frames
	isFree   bool // to repeat
	isSync   bool // the caller handles E3002 and E3003
	isChange bool // the peer recognizes the frame (ACCP-D46), so a new frame waits for its refusal
	frames   int
	posts    int  // of the present frame
	waits    int  // for a backoff
	isLost   bool // a post of the present frame was lost
	repaired bool

	mayHaveRun bool
	ranBefore  bool // mayHaveRun before the present frame
}

// nextFrame begins a frame.
func (p *progress) nextFrame() {
	p.frames++
	p.posts, p.isLost, p.ranBefore = 0, false, p.mayHaveRun
}

// next returns the reaction to a failure. The code, and whether the peer invites a repetition, are
// those of an error frame.
func (p *progress) next(f failure, code Code, isInvited bool) move {
	switch f {
	case failUnsent, failLost:
		if f == failLost {
			p.isLost, p.mayHaveRun = true, true
		}
		if p.posts < p.maximum {
			return moveSameFrame
		}
		return moveEnd
	case failFinal:
		return moveEnd
	}
	isLast := p.frames >= p.maximum
	switch code {
	case ErrDuplicate:
		return p.duplicate(isInvited, isLast)
	case ErrTimeout, ErrToolExecFailed, ErrInternal:
		return p.failed(isLast)
	}
	if p.isSync && code == ErrSequenceGap {
		return moveEnd
	}
	p.mayHaveRun = p.ranBefore // the answer settles what happened to the frame
	switch {
	case isLast:
	case code == ErrSequenceGap:
		return moveNewFrame
	case (code == ErrUnknownSchema || code == ErrRefNotFound) && !p.repaired:
		return moveRepair
	}
	return moveEnd
}

// duplicate returns the reaction to E3002.
func (p *progress) duplicate(isInvited, isLast bool) move {
	if p.isSync {
		return moveEnd
	}
	p.mayHaveRun = true // without a loss, the transport has doubled the frame
	if !isLast && (isInvited || p.isLost && p.isFree) {
		return moveNewFrame
	}
	return moveEnd
}

// failed returns the reaction to an error of work that may have run.
func (p *progress) failed(isLast bool) move {
	p.mayHaveRun = true
	switch {
	case p.isChange && p.posts < p.maximum:
		return moveSameFrame
	case p.isFree && !p.isChange && !isLast:
		return moveLater
	}
	return moveEnd
}

// delay returns the next backoff: doubling, with a jitter of a fifth, and not below that of the peer.
func (p *progress) delay(r *RetryPolicy, after time.Duration) time.Duration {
	d := min(r.Base, r.Max)
	for range p.waits {
		d = min(2*d, r.Max)
	}
	p.waits++
	after = min(after, r.MaxRetryAfter)
	if d <= 0 {
		return max(after, 0)
	}
	jitter := time.Duration(randid.Rand().Int64N(int64(d)/5*2+1)) - d/5
	return max(d+jitter, after)
}

// A CallError is the error of a call. The cause is an [*Error] of this side or of the peer, or a
// failure of the transport such as [ErrUnreachable] (ACCP-D78).
type CallError struct {
	Intent     Intent
	Op         string
	Peer       string // URL without query
	Status     int    // of a response that is not a frame, such as that of a wrong URL
	MayHaveRun bool   // a handler may have run, and no later answer has settled it
	Cause      error
}

// Error returns the call and its cause.
func (e *CallError) Error() string {
	text := "accp: " + string(e.Intent) + ":" + e.Op + " at " + e.Peer
	if e.Status != 0 {
		text += ": status " + strconv.Itoa(e.Status)
	}
	return text + ": " + e.Cause.Error()
}

// Unwrap returns the cause.
func (e *CallError) Unwrap() error { return e.Cause }

// classify returns the kind of an error of a post, and the delay that the peer requests.
func classify(ctx context.Context, err error) (f failure, after time.Duration) {
	var h *httpx.Error
	var e *Error
	switch {
	case ctx.Err() != nil, errors.Is(err, ErrCancelled), errors.Is(err, ErrClosed), errors.Is(err, ErrSlowReader), errors.Is(err, ErrTooLarge):
		return failFinal, 0
	case errors.Is(err, errUnsent):
		return failUnsent, 0
	case errors.As(err, &e) && e.Remote:
		return failCode, 0
	case errors.Is(err, ErrTimeout), errors.Is(err, ErrUnreachable):
		return failLost, 0
	case e != nil || !errors.As(err, &h):
		return failFinal, 0
	case h.Status == http.StatusTooManyRequests || h.Status == http.StatusServiceUnavailable:
		return failUnsent, retry.After(retry.MarkStatus(h, h.Status, h.Header))
	case isFinalStatus(h.Status):
		return failFinal, 0
	case errors.Is(err, httpx.ErrConnect):
		return failUnsent, 0
	}
	return failLost, 0
}

// isFinalStatus reports whether a repeated request gets the same status, which is not one of a frame.
func isFinalStatus(status int) bool {
	return status == http.StatusNotImplemented || status != 0 && status < 500
}

// mayHaveArrived reports whether the peer may have the frame of a post that has failed without an answer.
func mayHaveArrived(err error) bool {
	var h *httpx.Error
	var e *Error
	return !errors.Is(err, errUnsent) && !errors.Is(err, httpx.ErrConnect) && !errors.Is(err, ErrTooLarge) &&
		!(errors.As(err, &e) && e.Remote) && !(errors.As(err, &h) && h.Status != 0)
}

// errUnsent reports a frame that did not leave this side.
var errUnsent = errors.New("accp: not sent")
