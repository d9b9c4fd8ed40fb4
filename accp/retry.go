// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package accp

import (
	"context"
	"errors"
	"iter"
	"log/slog"
	"time"

	"github.com/fivewire/fivewire/internal/backoff"
)

// ErrCancelled reports a message whose chain was cancelled, by either side.
var ErrCancelled = errors.New("accp: the chain was cancelled")

// ErrTruncated reports a stream that ended before its final chunk.
var ErrTruncated = errors.New("accp: stream ended early")

// A retryPolicy says how often a message is sent whose failure may pass (ACCP-D29).
type retryPolicy struct {
	tries int
	log   *slog.Logger
}

// run yields what once yields for m. If that is an error that is worth another
// try, and nothing was yielded before it, m is sent again in its chain, with a new
// id and number but never after its time to live. Once sends a message and stores
// the chain that it sent it in.
func (p retryPolicy) run(ctx context.Context, m *Message, once func(m *Message, chain *string) iter.Seq2[*Message, error]) iter.Seq2[*Message, error] {
	return func(yield func(*Message, error) bool) {
		if m == nil {
			yield(nil, errNoMessage())
			return
		}
		started := time.Now()
		delays := backoff.Backoff{Base: 500 * time.Millisecond, Max: 8 * time.Second, Jitter: 0.2}
		for try := 1; ; try++ {
			var failed error
			var chain string
			for r, err := range once(m, &chain) {
				if err == nil {
					if e := ErrorFromMessage(r); e != nil {
						err = e
					}
				}
				if err != nil {
					failed = err
					break
				}
				try = p.tries // what was yielded cannot be taken back
				if !yield(r, nil) {
					return
				}
			}
			if failed == nil {
				return
			}
			delay := delays.Delay(try)
			ttl := time.Duration(0)
			if m.Meta != nil {
				ttl = time.Duration(min(m.Meta.TTL.N, maxSeconds)) * time.Second
			}
			if try >= p.tries || ctx.Err() != nil || !worthRetry(m, failed) || ttl > 0 && time.Since(started)+delay > ttl {
				yield(nil, failed)
				return
			}
			p.log.Info("accp: trying again", "intent", string(m.Intent), "op", m.Op, "try", try, "err", failed)
			timer := time.NewTimer(delay)
			select {
			case <-timer.C:
			case <-ctx.Done():
				timer.Stop()
				yield(nil, &Error{Code: ErrTimeout, Message: "no time for another try", Cause: errors.Join(ctx.Err(), failed)})
				return
			}
			if chain != "" {
				m = inChain(m, chain)
			}
		}
	}
}

const maxSeconds = 1 << 32 // of a time to live; more is the same as for ever

// worthRetry reports whether a failure is worth another try. A transaction is sent
// again only if its id tells the peer that it is the same one (ACCP-144, ACCP-D29).
func worthRetry(m *Message, err error) bool {
	var e *Error
	if !errors.As(err, &e) || !e.Code.Info().Retryable || errors.Is(err, ErrCancelled) || errors.Is(err, errConnClosed) {
		return false
	}
	tx := builtin().byCode[SchemaTransaction]
	if name := m.Schema(); name != SchemaTransaction && name != tx.Name {
		return true
	}
	for _, p := range m.Params {
		if tx.full(p.Key) == "transaction_id" {
			return true
		}
	}
	return false
}

// inChain returns m for another try: in the chain of the first one (ACCP-D29).
func inChain(m *Message, chain string) *Message {
	if m.Meta != nil && m.Meta.CID != "" {
		return m
	}
	out := m.clone()
	if out.Meta == nil {
		out.Meta = &Meta{}
	}
	out.Meta.CID = chain
	return out
}

// lastOf returns the last message, or nil if there is none.
func lastOf(seq iter.Seq2[*Message, error]) (*Message, error) {
	var m *Message
	for x, err := range seq {
		if err != nil {
			return nil, err
		}
		m = x
	}
	return m, nil
}

// streamOf puts the chunks among messages in order. An end that overtook chunks is
// no end, so only a complete stream ends well. An end without any chunk is an empty
// stream.
func streamOf(seq iter.Seq2[*Message, error]) iter.Seq2[Value, error] {
	return func(yield func(Value, error) bool) {
		var streams StreamAssembler
		done := false
		for m, err := range seq {
			if err != nil {
				yield(Value{}, err)
				return
			}
			if m.Intent != IntentStream && m.Intent != IntentEnd || m.Intent == IntentEnd && done {
				continue
			}
			chunks, err := streams.Add(m)
			if err != nil {
				yield(Value{}, err)
				return
			}
			for _, v := range chunks.Data {
				if !yield(v, nil) {
					return
				}
			}
			done = done || chunks.Done
		}
		if !done {
			yield(Value{}, ErrTruncated)
		}
	}
}
