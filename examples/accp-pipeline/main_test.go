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

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

// The program runs to its end and shows what it is about.
func TestRun(t *testing.T) {
	defer goleak.VerifyNone(t)
	var out strings.Builder
	require.NoError(t, run(t.Context(), &out))
	for _, want := range []string{
		`  1  planner → all  `,
		`checkpoint cp1 \(done\): 5 frames of \d+ tokens become \d+ facts in \d+\n`,
		`checkpoint cp4 \(done\)`,
		`state 2: a delta of \d+ tokens instead of \d+\n`,
		`analyst looks up \$cold\.h[0-9a-f]{8}\n`,
		` 14  planner → all  `,
	} {
		require.Regexp(t, want, out.String())
	}

	// Every run counts the same, whatever the message ids.
	var again strings.Builder
	require.NoError(t, run(t.Context(), &again))
	require.Equal(t, out.String(), again.String())

	m := regexp.MustCompile(`needs (\d+) % less than text and (\d+) % less than JSON`).FindStringSubmatch(out.String())
	require.NotNil(t, m)
	for _, s := range m[1:] {
		n, err := strconv.Atoi(s)
		require.NoError(t, err)
		require.Greater(t, n, 30)
	}

	// The README of package accp says so too.
	readme, err := os.ReadFile("../../accp/README.md")
	require.NoError(t, err)
	require.Contains(t, strings.Join(strings.Fields(string(readme)), " "),
		fmt.Sprintf("takes %s percent fewer tokens than text and %s percent fewer than JSON", m[1], m[2]))

	// The totals are those of the rows.
	var sum [4]int
	row := regexp.MustCompile(`(?m)^ +\d+  \S+ → \S+ +(\d+) +(\d+) +(\d+) +(\d+)$`)
	for _, m := range row.FindAllStringSubmatch(out.String(), -1) {
		for i := range sum {
			n, err := strconv.Atoi(m[i+1])
			require.NoError(t, err)
			sum[i] += n
		}
	}
	require.Contains(t, out.String(), fmt.Sprintf("in total              %6d  %6d  %6d  %6d", sum[0], sum[1], sum[2], sum[3]))
	require.NoError(t, run(t.Context(), io.Discard))
}
