// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package natsstore

import (
	"context"
	"log/slog"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
)

// GivesUpAfter sets Options.CallTimeout of a store that is not in use yet. Opening a store with a
// short timeout may fail.
func GivesUpAfter(s *Store, d time.Duration) { s.opts.CallTimeout = d }

// LeaveID writes the id of an acknowledged record, as an Ack does that read the record earlier.
func LeaveID(ctx context.Context, s *Store, stream, id string, seq uint64, until time.Time) error {
	h := nats.Header{seqHeader: {strconv.FormatUint(seq, 10)}, atHeader: {strconv.FormatInt(until.UnixNano(), 10)}}
	_, err := s.publish(ctx, s.log, s.log.prefix+"a."+digest(stream)+"."+digest(id), h, nil, condition{})
	return err
}

// Forgets sets the time after which a store removes the message of a completed Expire.
func Forgets(opts *Options, after time.Duration) *Options {
	opts.lingers = after
	return opts
}

// Clocks replaces the clocks of a store.
func Clocks(opts *Options, read func() (steady, wall int64)) *Options {
	opts.clock = read
	return opts
}

// Ahead advances the clock of one store by d.
func Ahead(s *Store, d time.Duration) { s.clock.offset.Add(int64(d)) }

// Messages is how many messages of a store the servers hold.
func Messages(ctx context.Context, s *Store) (n int, err error) {
	for _, a := range []*area{s.kv, s.log} {
		v, err := s.call(ctx, "$JS.API.STREAM.INFO."+a.name, nil)
		if err != nil {
			return 0, err
		}
		n += number[int](v.Get("state").Get("messages"))
	}
	return n, nil
}

// LoggerOf returns the logger of a store.
func LoggerOf(s *Store) *slog.Logger { return s.opts.Logger }

// SweepIntervalOf returns the interval of the sweeps of a store.
func SweepIntervalOf(s *Store) time.Duration { return s.opts.SweepInterval }
