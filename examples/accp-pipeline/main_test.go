// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/fivewire/fivewire/accp"
	"github.com/fivewire/fivewire/accp/accptest"
)

// testOptions returns options with message ids of four tokens: twelve random hex digits are seven
// tokens on average.
func testOptions() (opts accp.SessionOptions) {
	n := int64(1e11)
	accptest.SetIDs(&opts, func() string {
		n += 7654321
		return fmt.Sprintf("%012d", n)
	})
	return opts
}

// The program runs to its end and shows what it is about.
func TestRun(t *testing.T) {
	defer goleak.VerifyNone(t)
	var out, second strings.Builder
	for _, w := range []*strings.Builder{&out, &second} {
		synctest.Test(t, func(t *testing.T) { // the addresses of checkpoints depend on the time
			require.NoError(t, run(t.Context(), w, testOptions()))
		})
	}
	for _, want := range []string{
		`  1  planner → all  `,
		`checkpoint cp[0-9a-f]{8} \(done\): 5 frames of \d+ tokens become \d+ facts in \d+\n`,
		`state 2: a delta of \d+ tokens instead of \d+\n`,
		`analyst looks up \$cold\.h[0-9a-f]{8}\n`,
		` 14  planner → all  `,
	} {
		require.Regexp(t, want, out.String())
	}

	// Every run counts the same.
	require.Equal(t, out.String(), second.String())

	// The measurements of package accp have these figures.
	m := regexp.MustCompile(`needs (\d+) % less than text and (\d+) % less than JSON`).FindStringSubmatch(out.String())
	require.NotNil(t, m)
	page, err := os.ReadFile("../../accp/tokenizer/README.md")
	require.NoError(t, err)
	require.Contains(t, string(page), fmt.Sprintf("| the workflow of `examples/accp-pipeline`, same information | %s %% fewer | %s %% fewer |", m[1], m[2]))
	require.Regexp(t, `cost with caching( +\d+){5}\n`, out.String())

	// The totals are those of the rows.
	var sum [5]int
	row := regexp.MustCompile(`(?m)^ +\d+  \S+ → \S+ +(\d+) +(\d+) +(\d+) +(\d+) +(\d+)$`)
	for _, m := range row.FindAllStringSubmatch(out.String(), -1) {
		for i := range sum {
			n, err := strconv.Atoi(m[i+1])
			require.NoError(t, err)
			sum[i] += n
		}
	}
	require.Contains(t, out.String(), fmt.Sprintf("in total              %6d  %6d  %6d  %6d  %6d", sum[0], sum[1], sum[2], sum[3], sum[4]))
	require.NoError(t, run(t.Context(), io.Discard, testOptions()))
}
