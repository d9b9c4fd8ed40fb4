// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package natsstore

import (
	"context"
	"encoding/binary"
	"errors"
	"math"
	"strconv"
	"time"

	"github.com/fivewire/fivewire/store"
)

// Expire writes one message, under m. It holds for what has a lower number: so
// everything that was in the stream expires in one moment, without being
// touched. What was said earlier is part of the message, since a record that
// was dead by then does not come back.

// Such a message outlives what it ended, for longer than any call takes: a call
// may have looked for one before it was written, and write what is left of an
// acknowledged record after all else was removed. And it is looked at before
// what it is about: who then finds something that is not there any more finds
// it as it was when the call began.

// A step is one Expire.
type step struct {
	seq   uint64 // it holds for what is below
	at    int64  // what had expired by then stays expired; 0: nothing below had
	until int64
}

const (
	stepSize = 24

	// stepsMost is how many steps one message holds. Before there are more,
	// what is dead is removed, and nothing needs to be known of it any longer.
	stepsMost = 8

	// expireLingers is for how long at least a message is kept that has ended
	// everything: several times as long as a call goes on.
	expireLingers = 5 * time.Minute
)

// lifetimes are the steps of a stream, in order.
type lifetimes struct {
	seq   uint64 // of the message; 0 if there is none
	now   int64  // a moment before they were looked at
	steps []step
}

// alive reports whether what has that position and its own expiry is alive. What
// was dead before the steps were looked at is dead for good. At any later moment
// it may be that another Expire has saved it in time.
func (l lifetimes) alive(seq uint64, own int64) bool { return alive(l.expiry(seq, own), l.now) }

// expiry returns when what has that position and its own expiry expires.
func (l lifetimes) expiry(seq uint64, own int64) int64 {
	for _, st := range l.steps {
		if seq >= st.seq {
			continue
		}
		if own != 0 && own <= st.at {
			return own
		}
		own = st.until
	}
	return own
}

func (s *Store) lifetimes(ctx context.Context, stream string) (lifetimes, error) {
	now := s.clock.now()
	m, err := s.fetch(ctx, s.log, lastOf(s.log.prefix+"m."+stream))
	if err != nil || m == nil {
		return lifetimes{now: now}, err
	}
	l := lifetimesOf(m)
	l.now = now
	return l, nil
}

func lifetimesOf(m *stored) lifetimes {
	l := lifetimes{seq: m.seq}
	for b := m.value; len(b) >= stepSize; b = b[stepSize:] {
		l.steps = append(l.steps, step{
			seq:   binary.BigEndian.Uint64(b),
			at:    int64(binary.BigEndian.Uint64(b[8:])),
			until: int64(binary.BigEndian.Uint64(b[16:])),
		})
	}
	last := step{seq: m.seq, at: m.at, until: m.at}
	if ttl, _ := strconv.ParseInt(m.header.Get(lifeHeader), 10, 64); ttl > 0 {
		last.until = after(m.at, time.Duration(ttl))
	}
	l.steps = append(l.steps, last)
	return l
}

func (l lifetimes) bytes() []byte {
	var b []byte
	for _, st := range l.steps {
		b = binary.BigEndian.AppendUint64(b, st.seq)
		b = binary.BigEndian.AppendUint64(b, uint64(st.at))
		b = binary.BigEndian.AppendUint64(b, uint64(st.until))
	}
	return b
}

// Expire implements [store.Log].
func (s *Store) Expire(ctx context.Context, stream string, ttl time.Duration) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := store.ValidateTTL(ttl); err != nil {
		return err
	}
	ctx, end, err := s.enter(ctx, "stream name", stream)
	if err != nil {
		return err
	}
	defer end()
	name := digest(stream)
	subject := s.log.prefix + "m." + name
	for {
		empty, err := s.empty(ctx, name)
		if err != nil || empty {
			return err
		}
		l, err := s.lifetimes(ctx, name)
		if err != nil {
			return err
		}
		if ttl == 0 {
			l.steps = nil // what was said before makes no difference to what goes now
		} else if l, err = s.settle(ctx, name, l); err != nil {
			return err
		}
		h := lifeOf(ttl)
		h[rollupHeader] = []string{"sub"}
		seq, err := s.publish(ctx, s.log, subject, h, l.bytes(), condition{subject, l.seq})
		switch {
		case errors.Is(err, errConflict):
			continue
		case err != nil:
			return err
		case ttl == 0:
			return s.clearBelow(ctx, name, seq)
		}
		return nil
	}
}

// empty reports whether nothing is in the stream, known ids included.
func (s *Store) empty(ctx context.Context, stream string) (bool, error) {
	for _, kind := range []string{"r.", "a."} {
		m, err := s.fetch(ctx, s.log, query{seq: 1, next: s.log.prefix + kind + stream + ".*"})
		if err != nil || m != nil {
			return false, err
		}
	}
	return true, nil
}

// clearBelow removes what has a lower number than the message under m. that has
// ended it.
func (s *Store) clearBelow(ctx context.Context, stream string, seq uint64) error {
	for _, kind := range []string{"r.", "a."} {
		if err := s.purge(ctx, s.log, s.log.prefix+kind+stream+".*", seq); err != nil {
			return err
		}
	}
	return nil
}

// settle removes what is dead by the steps of a stream, as far as that makes
// them shorter, and returns those that still matter.
func (s *Store) settle(ctx context.Context, stream string, l lifetimes) (lifetimes, error) {
	if len(l.steps) == 0 {
		return l, nil
	}
	last := l.steps[len(l.steps)-1]
	one := []step{{seq: last.seq, at: math.MinInt64, until: last.until}}
	if last.until <= l.now { // and so is all below it
		l.steps = one
		return l, s.clearBelow(ctx, stream, last.seq)
	}
	if len(l.steps) < stepsMost {
		return l, nil
	}
	for _, kind := range []string{"r.", "a."} {
		if err := s.bury(ctx, stream, kind, l, 1); err != nil {
			return l, err
		}
	}
	l.steps = one
	return l, nil
}

// bury removes what is dead in one stream, of one kind and from that number on.
// Of records it is enough to look at those that l says something about; what is
// left of one may have been written later.
func (s *Store) bury(ctx context.Context, stream, kind string, l lifetimes, seq uint64) error {
	for {
		page, more, err := s.page(ctx, s.log.prefix+kind+stream+".*", seq, batchMost)
		if err != nil {
			return err
		}
		for _, m := range page {
			if kind == "r." && m.seq > l.seq {
				return nil
			}
			seq = m.seq + 1
			if k := s.markOf(m); !l.alive(k.seq, k.own) {
				if err := s.remove(ctx, s.log, m.seq); err != nil {
					return err
				}
			}
		}
		if !more {
			return nil
		}
	}
}
