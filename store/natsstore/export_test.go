// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package natsstore

import (
	"context"
	"time"
)

// Forgets lets a store forget what Expire said once that is over for so long.
func Forgets(opts *Options, after time.Duration) *Options {
	opts.lingers = after
	return opts
}

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
