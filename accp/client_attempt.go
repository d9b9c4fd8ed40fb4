// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package accp

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/fivewire/fivewire/internal/httpx"
)

// An attempt is one call and its progress.
type attempt struct {
	progress
	ctx       context.Context
	m         *Message
	encode    func() (*SendResult, error) // replaces Session.Send, if not nil
	call      *call                       // over WebSocket, while its frames are queued for the first time
	chain     string                      // of the first frame
	timeout   time.Duration
	yield     func(*Message, error) bool // nil: for the last answer only
	last      *Message
	chunks    indices // of the yielded chunks
	isYielded bool    // a yielded message cannot be withdrawn
	isStopped bool    // the loop has ended
}

func (c *Client) newAttempt(ctx context.Context, m *Message, timeout time.Duration) *attempt {
	a := &attempt{ctx: ctx, m: m, timeout: timeout}
	a.maximum = max(1, c.opts.Retry.MaxAttempts)
	switch m.Intent {
	case IntentQry, IntentSync, IntentComp, IntentAck, IntentCancel:
		a.isFree = true
	}
	return a
}

// number returns the frames of a message.
func (a *attempt) number(s *Session, m *Message) (*SendResult, error) {
	if a.encode != nil {
		return a.encode()
	}
	return s.Send(a.ctx, m)
}

// deliver yields an answer, but no chunk twice. It returns false at the end of the loop.
func (a *attempt) deliver(m *Message) (bool, error) {
	if e := ErrorFromMessage(m); e != nil {
		return false, e
	}
	v, _ := m.Params.Get("chunk_index")
	if index, isInt := v.Int(); isInt && index >= 0 && m.Intent == IntentStream {
		if !a.chunks.add(index) {
			return true, nil
		}
	} else {
		a.isYielded = true
	}
	a.last = m
	a.isStopped = a.yield != nil && !a.yield(m, nil)
	return !a.isStopped, nil
}

// Indices are a set of numbers. It is small if they arrive nearly in order.
type indices struct {
	below int64 // has all from 0
	more  map[int64]bool
}

// add adds a number and reports whether it is a new one.
func (s *indices) add(n int64) bool {
	if n < s.below || s.more[n] {
		return false
	}
	if s.more == nil {
		s.more = map[int64]bool{}
	}
	for s.more[n] = true; s.more[s.below]; s.below++ {
		delete(s.more, s.below)
	}
	return true
}

// exchange sends the message of an attempt in a session until it is answered or fails permanently.
func (c *Client) exchange(a *attempt, s *Session) error {
	for {
		sent, err := c.transport.send(a, s, a.next())
		switch {
		case errors.Is(err, errUnsent) && a.waits+1 < a.maximum:
			if err = c.pause(a, 0, err); err != nil {
				return err
			}
			continue
		case err != nil:
			return err
		case sent.Dropped:
			return ErrCancelled
		case len(sent.Frames) == 0:
			return nil
		}
		a.chain = cmp.Or(a.chain, sent.Message.Chain())
		a.nextFrame()
		isRepeated := false
		if isRepeated, err = c.deliverFrames(a, s, sent); !isRepeated {
			return err
		}
	}
}

// next returns the message of the next frame: the first time as it is, later in its chain.
func (a *attempt) next() *Message {
	if a.chain == "" {
		return a.m
	}
	m := inChain(a.m, a.chain)
	if a.mayHaveRun {
		m = m.clone()
		m.Meta.Ext = m.Meta.Ext.Set("try", Int(int64(a.frames+1)))
	}
	return m
}

// deliverFrames posts the frames of a message, again as long as ACCP-D29 permits it. It reports whether a new
// frame is to be sent.
func (c *Client) deliverFrames(a *attempt, s *Session, sent *SendResult) (isRepeated bool, err error) {
	for first := 0; first < len(sent.Frames); {
		a.posts++
		done, err := c.transport.transmit(a, s, sent, first)
		if err == nil {
			return false, nil
		}
		if done > first {
			first, a.posts = done, 1
		}
		f, after, code, isInvited := a.failure(err)
		if code == ErrDuplicate && a.isLost && first < len(sent.Frames)-1 {
			first, a.posts = first+1, 0 // the receipt of a part
			continue
		}
		switch a.progress.next(f, code, isInvited) {
		case moveEnd:
			return false, a.lost(code, err)
		case moveNewFrame:
			return true, nil
		case moveRepair:
			a.repaired = true
			if isRepaired, rerr := c.repair(a, s, code); rerr != nil || !isRepaired {
				return false, cmp.Or(rerr, err)
			}
			return true, nil
		case moveLater:
			return true, c.pause(a, after, err)
		}
		if err := c.pause(a, after, err); err != nil {
			return false, err
		}
	}
	return false, nil
}

// failure classifies the error of a post. The code, and whether the peer invites a repetition, are those of an
// error frame.
func (a *attempt) failure(err error) (f failure, after time.Duration, code Code, isInvited bool) {
	f, after = classify(a.ctx, err)
	if f == failFinal && a.ctx.Err() != nil && mayHaveArrived(err) {
		a.mayHaveRun = true
	}
	if a.isYielded {
		a.mayHaveRun, f = a.mayHaveRun || f == failLost, failFinal
	}
	e, _ := errors.AsType[*Error](err)
	if f == failCode {
		code, isInvited = e.Code, e.isInvitation
	} else if f == failFinal && e != nil {
		a.mayHaveRun = true // the answer was malformed
	}
	return f, after, code, isInvited
}

// lost returns the error of a call that ends with err, which names the lost answer of a duplicate.
func (a *attempt) lost(code Code, err error) error {
	if code == ErrDuplicate && a.isLost && !a.isSync {
		return &Error{Code: ErrTimeout, Message: "the request arrived, and its answer was lost", Cause: err}
	}
	return err
}

// pause waits for the backoff after an error.
func (c *Client) pause(a *attempt, after time.Duration, err error) error {
	d := a.delay(c.opts.Retry, after)
	c.opts.Logger.WarnContext(a.ctx, "accp: message repeated", "operation", string(a.m.Intent)+":"+a.m.Op, "delay", d, "err", err)
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-a.ctx.Done():
		return err
	case <-c.done:
		return ErrClosed
	}
}

// repair gives the peer a schema or a checkpoint that it lacks. It reports whether this side has it.
func (c *Client) repair(a *attempt, s *Session, code Code) (bool, error) {
	if code == ErrRefNotFound {
		return s.announceAgain(a.m.Params), nil
	}
	if _, err := s.codec.resolve(a.m.Params); err != nil {
		return false, nil
	}
	_, err := c.transport.greet(a, s)
	return true, err
}

// final returns the error of a call. The end of ctx is a timeout.
func (c *Client) final(ctx context.Context, a *attempt, err error) error {
	if e, ok := errors.AsType[*CallError](err); ok {
		return e
	}
	out := &CallError{Intent: a.m.Intent, Op: a.m.Op, Peer: c.peer(), MayHaveRun: a.mayHaveRun, Cause: err}
	var h *httpx.Error
	switch {
	case c.life.Ready() != nil:
		out.Cause = ErrClosed
	case ctx.Err() != nil && (!errors.Is(err, ErrTimeout) || ctx.Err() == context.Canceled) && !errors.Is(err, ErrCancelled):
		out.Cause = &Error{Code: ErrTimeout, Message: "the context of the call has ended", Cause: errors.Join(context.Cause(ctx), err)}
	case errors.Is(err, ErrTimeout) || errors.Is(err, ErrUnreachable):
	case errors.Is(err, errUnsent):
		out.Cause = fmt.Errorf("%w: %w", ErrUnreachable, err)
	case !errors.As(err, &h):
	case errors.Is(err, httpx.ErrConnect), h.Status == http.StatusTooManyRequests, h.Status == http.StatusServiceUnavailable:
		out.Cause = fmt.Errorf("%w: %w", ErrUnreachable, err)
	case errors.Is(err, httpx.ErrTimeout):
		out.Cause = &Error{Code: ErrTimeout, Message: "no answer in time", Cause: err}
	case isFinalStatus(h.Status):
		out.Status = h.Status
	default:
		out.Cause = &Error{Code: ErrTimeout, Message: "the answer was cut off", Cause: errors.Join(ErrTruncated, err)}
	}
	return out
}
