// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package natsstore

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

const (
	sweepBatch  = 500
	verifyBatch = 16     // with their values
	sweepMost   = 20_000 // what one pass remembers before it removes it
)

// trySweep sweeps unless another process does, and returns how long it took.
func (s *Store) trySweep() time.Duration {
	began := time.Now()
	if !s.lease() {
		return 0
	}
	n, err := s.sweepLogs(s.life)
	if err == nil {
		var keys int
		keys, err = s.sweepKeys(s.life)
		n += keys
	}
	took := time.Since(began)
	if err != nil && s.life.Err() == nil {
		s.opts.Logger.WarnContext(s.life, "natsstore: sweep", "err", err)
	} else if n > 0 {
		s.opts.Logger.DebugContext(s.life, "natsstore: swept", "removed", n, "took", took)
	}
	return took
}

// lease makes sure that one process sweeps at a time. Two at once would do
// nothing wrong, only twice the work.
func (s *Store) lease() bool {
	subject, life := s.kv.prefix+"sweep", max(s.opts.SweepInterval/2, time.Second)
	now := s.clock.now()
	m, err := s.fetch(s.life, s.kv, lastOf(subject))
	if err != nil || isThere(m, now) {
		return false
	}
	last := uint64(0)
	if m != nil {
		last = m.seq
	}
	_, err = s.put(s.life, subject, nil, life, last)
	return err == nil
}

// A find is what a sweep has found in one stream.
type find struct {
	dead []*mark // by their own ttl
}

// scan calls f for each message of an area, with its value if isWhole. It may see the state of a lagging
// replica.
func (s *Store) scan(ctx context.Context, a *area, isWhole bool, f func(m *stored) error) error {
	size := uint64(sweepBatch)
	if isWhole {
		size = verifyBatch
	}
	info, err := s.info(ctx, a, "", 0)
	if err != nil {
		return err
	}
	consumer, err := s.js.OrderedConsumer(ctx, a.name, jetstream.OrderedConsumerConfig{
		HeadersOnly:       !isWhole,
		InactiveThreshold: time.Minute,
	})
	if err != nil {
		return fmt.Errorf("natsstore: scan: %w", err)
	}
	for last, pending := uint64(0), info.messages; last < info.lastSeq && pending > 0; {
		batch, err := consumer.Fetch(int(min(size, pending)), jetstream.FetchMaxWait(time.Second))
		if err != nil {
			return fmt.Errorf("natsstore: scan: %w", err)
		}
		got := 0
		var fault error
		for msg := range batch.Messages() { // to its end, or its goroutine stays
			meta, err := msg.Metadata()
			if fault != nil || err != nil {
				fault = errors.Join(fault, err)
				continue
			}
			got, pending, last = got+1, meta.NumPending, meta.Sequence.Stream
			fault = f(&stored{subject: msg.Subject(), seq: last, at: meta.Timestamp.UnixNano(), header: msg.Headers(), value: msg.Data()})
		}
		if err := batch.Error(); err != nil && !errors.Is(err, context.DeadlineExceeded) {
			fault = errors.Join(fault, err)
		}
		if fault = errors.Join(fault, ctx.Err()); fault != nil {
			return fmt.Errorf("natsstore: scan: %w", fault)
		}
		if got == 0 {
			return errors.New("natsstore: scan: no message arrives")
		}
	}
	return nil
}

// sweepLogs scans all logs once and removes expired messages. The leader confirms each one found.
func (s *Store) sweepLogs(ctx context.Context) (removed int, err error) {
	finds, n, now := map[string]*find{}, 0, s.clock.now()
	flush := func() error {
		for stream, f := range finds {
			count, err := s.sweepStream(ctx, stream, f)
			removed += count
			if err != nil {
				return err
			}
		}
		clear(finds)
		n = 0
		return nil
	}
	err = s.scan(ctx, s.log, false, func(m *stored) error {
		if n += s.find(finds, m, now); n < sweepMost {
			return nil
		}
		return flush()
	})
	if err == nil {
		err = flush()
	}
	return removed, err
}

// sweepKeys removes deleted and expired keys that the servers do not remove. An expired message
// stays expired, and newer messages are not touched.
func (s *Store) sweepKeys(ctx context.Context) (removed int, err error) {
	var removals []func() error
	flush := func() error {
		defer func() { removals = removals[:0] }()
		removed += len(removals)
		return together(removals...)
	}
	err = s.scan(ctx, s.kv, false, func(m *stored) error {
		if isThere(m, s.clock.now()) || m.header.Get(ttlHeader) != "" {
			return nil
		}
		removals = append(removals, func() error { return s.purge(ctx, s.kv, m.subject, m.seq+1) })
		if len(removals) < ackAtOnce {
			return nil
		}
		return flush()
	})
	if err == nil && len(removals) > 0 {
		err = flush()
	}
	return removed, err
}

// find notes m if it may have to go, and returns how much it noted.
func (s *Store) find(finds map[string]*find, m *stored, now int64) int {
	kind, rest, _ := strings.Cut(strings.TrimPrefix(m.subject, s.log.prefix), ".")
	stream, _, _ := strings.Cut(rest, ".")
	f := finds[stream]
	if f == nil {
		f = &find{}
	}
	switch kind {
	case "m": // enough to look
	case "r", "a":
		k := s.markOf(m)
		if alive(k.own, now) {
			return 0
		}
		f.dead = append(f.dead, k)
	default:
		return 0
	}
	finds[stream] = f
	return 1
}

// sweepStream removes the expired messages of one stream.
func (s *Store) sweepStream(ctx context.Context, stream string, f *find) (removed int, err error) {
	l, err := s.lifetimes(ctx, stream)
	if err != nil {
		return 0, err
	}
	if n := len(l.steps); n > 0 && l.steps[n-1].until <= l.now {
		if err := s.clearBelow(ctx, stream, l.seq); err != nil {
			return 0, err
		}
		if l.steps[n-1].at <= l.now-int64(s.opts.lingers) {
			// Every running call has read the message by now.
			if err := s.removeExpired(ctx, stream, "a.", l, l.seq); err != nil {
				return removed, err
			}
			if err := s.remove(ctx, s.log, l.seq); err != nil {
				return removed, err
			}
			removed++
		}
	}
	var removals []func() error
	for _, k := range f.dead {
		if !l.alive(k.seq, k.own) {
			removals = append(removals, func() error { return s.remove(ctx, s.log, k.at) })
		}
	}
	for len(removals) > 0 {
		n := min(len(removals), ackAtOnce)
		if err := together(removals[:n]...); err != nil {
			return removed, err
		}
		removed += n
		removals = removals[n:]
	}
	return removed, nil
}
