// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package natsstore

import (
	"context"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
)

// GivesUpAfter sets Options.CallTimeout of a store that nobody uses yet. To open one
// with a short time is a matter of luck.
func GivesUpAfter(s *Store, d time.Duration) { s.opts.CallTimeout = d }

// LeaveID writes what is left of an acknowledged record, as an Ack does that
// looked at it some time before.
func LeaveID(ctx context.Context, s *Store, stream, id string, seq uint64, until time.Time) error {
	h := nats.Header{seqHeader: {strconv.FormatUint(seq, 10)}, atHeader: {strconv.FormatInt(until.UnixNano(), 10)}}
	_, err := s.publish(ctx, s.log, s.log.prefix+"a."+digest(stream)+"."+digest(id), h, nil, condition{})
	return err
}

// Forgets lets a store forget what Expire said once that is over for so long.
func Forgets(opts *Options, after time.Duration) *Options {
	opts.lingers = after
	return opts
}

// Ahead lets d pass for a store, and for nobody else.
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
