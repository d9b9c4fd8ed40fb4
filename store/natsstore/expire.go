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

// Expire writes one message with the subject prefix m. It applies to messages with lower numbers,
// so that the whole stream expires at one moment without other writes. The message repeats the
// earlier steps, since a record that had expired by an earlier step stays expired.

// The message is kept longer than any call takes: a call may have read the lifetimes before the
// message was written, and may write the id of an acknowledged record after all else was removed.
// Lifetimes are read before the records they apply to, so that a call that finds a record removed
// sees the state at its beginning.

// A step is one Expire.
type step struct {
	seq   uint64 // applies to lower numbers
	at    int64  // records expired by then stay expired; 0: none had expired
	until int64
}

const (
	stepSize = 24

	// stepsMost is the maximum number of steps in one message. Beyond it, expired messages are
	// removed, so that their steps are not needed.
	stepsMost = 8

	// expireLingers is the minimum time for which a message is kept that has expired a whole
	// stream: several times the duration of a call.
	expireLingers = 5 * time.Minute
)

// lifetimes are the steps of a stream, in order.
type lifetimes struct {
	seq   uint64 // of the message; 0 if there is none
	now   int64  // a moment before the steps were read
	steps []step
}

// alive reports whether a message with that position and expiry has not expired. A message that had expired before the steps were read stays expired. After l.now, another Expire
// may have extended it in time.
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
			l.steps = nil // earlier steps do not matter to messages that expire now
		} else if l, err = s.compact(ctx, name, l); err != nil {
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

// clearBelow removes messages with lower numbers than the message under m. that expired the stream.
func (s *Store) clearBelow(ctx context.Context, stream string, seq uint64) error {
	for _, kind := range []string{"r.", "a."} {
		if err := s.purge(ctx, s.log, s.log.prefix+kind+stream+".*", seq); err != nil {
			return err
		}
	}
	return nil
}

// compact removes expired messages of a stream if that shortens its steps, and returns the steps
// that still matter.
func (s *Store) compact(ctx context.Context, stream string, l lifetimes) (lifetimes, error) {
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
		if err := s.removeExpired(ctx, stream, kind, l, 1); err != nil {
			return l, err
		}
	}
	l.steps = one
	return l, nil
}

// removeExpired removes the expired messages of one kind in one stream, from seq on. Only records
// up to l.seq are affected by l; the id of an acknowledged record may have been written later.
func (s *Store) removeExpired(ctx context.Context, stream, kind string, l lifetimes, seq uint64) error {
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
