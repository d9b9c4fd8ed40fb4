// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

// The program runs to its end and prints the expected output.
func TestRun(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	var out strings.Builder
	require.NoError(t, run(t.Context(), &out))
	for _, want := range []string{
		"TASK_COMPLETED, signed and verified",
		"Dear colleagues,",
		"A line about rain that comes word by word.",
		"the chat is CLOSED",
		"cellar-01, asked by archive-01 in trace quickstart-trace",
		"Agent not found",
		"seller got Offer, sealed: true",
		"both agree: closed_accepted",
		`event   progress {"pct":50}`,
		"answer  3 words",
		"text/upper answers HELLO",
		"text/words sends three",
		"refused: /text missing_required (expected string); /txet unknown_parameter",
		"frame   @planner>req:schedule{pri:high|task:impl_auth_module|who:dev_team}",
		"answer  2 + 3 = 5",
		"E4003 TOOL_SCHEMA_MISMATCH",
		"sent    {analysis:done}",
		"context planner:state.",
		"research:analyze.findings.churn=+3.2%",
		"state 2: analysis is done",
	} {
		require.Contains(t, out.String(), want)
	}
}
