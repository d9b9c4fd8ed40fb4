// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package interop_test

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/conformance"
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
	report := conform(t, true, append([]string{"codec", "-op", "canonicalize,sign,verify", "-require", "all", "--"}, command...)...)
	require.Contains(t, report, fmt.Sprintf(`"subject": %q`, filepath.Base(command[1])+" 1"))
}

// conform runs the conform command and returns its JSON report.
func conform(t *testing.T, passes bool, args ...string) string {
	t.Helper()
	report := filepath.Join(t.TempDir(), "report.json")
	args = append([]string{"run", "github.com/fivewire/fivewire/conformance/cmd/conform", args[0], "-report", report}, args[1:]...)
	out, err := exec.Command("go", args...).CombinedOutput()
	require.Equal(t, passes, err == nil, "%v %s", err, out)
	text, err := os.ReadFile(report)
	require.NoError(t, err, string(out))
	return string(text)
}

// The server of arc-sdk differs in the listed cases, and in no others. Its media type differs in every answer, so the
// list is that of a server with the right one.
func TestConformPythonServer(t *testing.T) {
	t.Parallel() // it waits most of the time
	report := conform(t, false, "server", "-protocol", "arc", "-timeout", "1s", "-suite", "conduct", "-url", startARCFixture(t))
	require.Equal(t, conformance.StatusFailed, verdict(t, report, "ARC-004"))
	report = conform(t, true, "server", "-protocol", "arc", "-timeout", "2s", "-baseline", filepath.Join("peers", "python", "arc_known.json"),
		"-url", startARCFixture(t, "media"))
	require.Equal(t, conformance.StatusKnownFailure, verdict(t, report, "ARC-055"))
	require.Equal(t, conformance.StatusPassed, verdict(t, report, "ARC-007"))
}

// The independent host and the independent agent differ in the listed cases, and in no others.
func TestConformPythonA2E(t *testing.T) {
	for _, tt := range []struct{ mode, selection, choice, baseline, program, argument, passed string }{
		{"server", "-op", "http_script", "a2e_known.json", "a2e_host.py", "fixture", `"passed": 5,`},
		{"client", "-transport", "tcp", "a2e_agent_known.json", "a2e_agent.py", "conform", `"passed": 23,`},
	} {
		t.Run(tt.mode, func(t *testing.T) {
			t.Parallel()
			python := filepath.Join(peers(t, "python"), "python", "bin", "python")
			report := conform(t, true, tt.mode, "-protocol", "a2e", tt.selection, tt.choice, "-baseline", filepath.Join("peers", "python", tt.baseline),
				"--", python, filepath.Join("peers", "python", tt.program), tt.argument)
			require.Contains(t, report, tt.passed)
		})
	}
}

// verdict returns the verdict of a JSON report on a requirement.
func verdict(t *testing.T, report, id string) conformance.Status {
	t.Helper()
	var r struct {
		Requirements []conformance.RequirementReport
	}
	require.NoError(t, json.Unmarshal([]byte(report), &r))
	for _, q := range r.Requirements {
		if q.ID == id {
			return q.Verdict
		}
	}
	return ""
}

// startARCFixture starts a server of arc-sdk and returns its URL.
func startARCFixture(t *testing.T, args ...string) string {
	t.Helper()
	program := filepath.Join("peers", "python", "arc_fixture.py")
	cmd := exec.Command(filepath.Join(peers(t, "python"), "python", "bin", "python"), append([]string{"-W", "ignore", program}, args...)...)
	cmd.Env = append(os.Environ(), "PYTHONPYCACHEPREFIX="+filepath.Join(peersDir(), "pycache"), "PYTHONUTF8=1")
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	var started struct{ URL string }
	require.NoError(t, json.NewDecoder(out).Decode(&started))
	return started.URL
}
