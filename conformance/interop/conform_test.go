// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package interop_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// An implementation in Python passes the cases of its operations, and the JSON report
// names it.
func TestConformPythonTestee(t *testing.T) {
	python := filepath.Join(peers(t, "python"), "python", "bin", "python")
	report := filepath.Join(t.TempDir(), "report.json")
	out, err := exec.Command("go", "run", "github.com/fivewire/fivewire/conformance/cmd/conform", "codec",
		"-op", "canonicalize,sign,verify", "-require", "all", "-report", report,
		"--", python, filepath.Join("peers", "python", "air_testee.py")).CombinedOutput()
	require.NoError(t, err, string(out))
	text, err := os.ReadFile(report)
	require.NoError(t, err)
	require.Contains(t, string(text), `"subject": "air_testee.py 1"`)
}
