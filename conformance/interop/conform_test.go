// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package interop_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// An implementation in Python passes the cases of its operations, and the JSON report
// names it.
func TestConformPythonTestee(t *testing.T) {
	testAIRTestee(t, filepath.Join(peers(t, "python"), "python", "bin", "python"), filepath.Join("peers", "python", "air_testee.py"))
}

// The same holds for an implementation in JavaScript.
func TestConformNodeTestee(t *testing.T) {
	peers(t, "node")
	testAIRTestee(t, filepath.Join(peersDir(), "bin", "node"), filepath.Join("peers", "node", "air_testee.mjs"))
}

func testAIRTestee(t *testing.T, command ...string) {
	t.Helper()
	report := filepath.Join(t.TempDir(), "report.json")
	args := append([]string{"run", "github.com/fivewire/fivewire/conformance/cmd/conform", "codec",
		"-op", "canonicalize,sign,verify", "-require", "all", "-report", report, "--"}, command...)
	out, err := exec.Command("go", args...).CombinedOutput()
	require.NoError(t, err, string(out))
	text, err := os.ReadFile(report)
	require.NoError(t, err)
	require.Contains(t, string(text), fmt.Sprintf(`"subject": %q`, filepath.Base(command[1])+" 1"))
}
