// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package testkit

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/fivewire/fivewire/internal/race"
)

// RequireLess requires that work costs less with many things than some times what it costs with few. The function returns the
// time of the work with n things. A busy machine can make any one of the times long, but not all of twenty. With the race
// detector the test is skipped.
func RequireLess(t *testing.T, times int, few, many int, cost func(n int) time.Duration) {
	t.Helper()
	if race.Enabled {
		t.Skip("measures time")
	}
	for range 20 {
		if cost(many) < time.Duration(times)*cost(few) {
			return
		}
	}
	t.Fatalf("%d things cost more than %d times what %d cost", many, times, few)
}

// RequiredNamesAreLinear requires that the required names of the schema of an object cost read at most as much as its
// properties do.
func RequiredNamesAreLinear(t *testing.T, read func(schema string) error) {
	t.Helper()
	var properties, required []string
	for i := range 20_000 {
		properties = append(properties, fmt.Sprintf(`"p%d":{"type":"string"}`, i))
		required = append(required, fmt.Sprintf(`"p%d"`, i))
	}
	RequireLess(t, 3, 0, len(required), func(n int) time.Duration {
		names := strings.Join(required[:n], ",")
		start := time.Now()
		if err := read(`{"type":"object","properties":{` + strings.Join(properties, ",") + `},"required":[` + names + `]}`); err != nil {
			t.Fatal(err)
		}
		return time.Since(start)
	})
}
