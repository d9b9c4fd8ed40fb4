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

// RequiredNamesAreLinear requires that the required names of the schema of an object cost read at most as much as its
// properties do.
func RequiredNamesAreLinear(t *testing.T, read func(schema string) error) {
	t.Helper()
	if race.Enabled {
		t.Skip("measures time")
	}
	var properties, required []string
	for i := range 20_000 {
		properties = append(properties, fmt.Sprintf(`"p%d":{"type":"string"}`, i))
		required = append(required, fmt.Sprintf(`"p%d"`, i))
	}
	cost := func(required string) time.Duration {
		start := time.Now()
		if err := read(`{"type":"object","properties":{` + strings.Join(properties, ",") + `},"required":[` + required + `]}`); err != nil {
			t.Fatal(err)
		}
		return time.Since(start)
	}
	// A busy machine can make any one of these take long, but not all of them.
	for range 10 {
		if cost(strings.Join(required, ",")) < 3*cost("") {
			return
		}
	}
	t.Fatal("required names cost more than properties")
}
