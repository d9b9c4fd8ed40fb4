// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/conformance"
	"github.com/fivewire/fivewire/internal/race"
)

const baseline = "../../testdata/known-failures.json"

// conform runs the command in codec mode against a testee with a fault.
func conform(t *testing.T, fault string, args ...string) (status int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	args = slices.Concat([]string{"codec", "-baseline", baseline}, args, []string{"--"}, self("TestTestee", fault))
	status = run(args, nil, &out, &errs)
	return status, out.String(), errs.String()
}

// The packages of this module pass in codec mode.
func TestCodecOwnPackages(t *testing.T) {
	start := time.Now()
	status, stdout, stderr := conform(t, "none", "-o", "json")
	require.Equal(t, exitPassed, status, stdout+stderr)
	if !race.Enabled {
		require.Less(t, time.Since(start), 10*time.Second)
	}
	var report struct {
		OK                          bool
		Subject, Mode               string
		Passed, Failed, Unsupported int
	}
	require.NoError(t, json.Unmarshal([]byte(stdout), &report))
	require.True(t, report.OK)
	require.Equal(t, []string{"broken 1", "codec"}, []string{report.Subject, report.Mode})
	require.Greater(t, report.Passed, 3500)
}

// A testee with a mistake fails a case that names the broken requirement.
func TestCodecFindsFaults(t *testing.T) {
	for _, tt := range []struct{ fault, protocol, ops, requirement, suite string }{
		{"last duplicate wins", "arc", "decode_request", "ARC-D01", ""},
		{"id through a float", "arc", "decode_request", "ARC-D02", ""},
		{"ignores the version", "arc", "decode_request", "ARC-D06", ""},
		{"accepts a low-order key", "air", "to_x25519", "AIR-D31", ""},
		{"SSE with LF only", "arc", "sse_decode", "ARC-D25", ""},
		{"done after an error", "arc", "sse_encode", "ARC-D22", ""},
		{"never answers", "air", "canonicalize", "AIR-D05", "rules"},
	} {
		t.Run(tt.fault, func(t *testing.T) {
			timeout := "30s" // the start of a process may take long on a busy machine
			if tt.fault == "never answers" {
				timeout = "5s"
			}
			args := []string{"-protocol", tt.protocol, "-op", tt.ops, "-timeout", timeout, "-o", "json"}
			if tt.suite != "" {
				args = append(args, "-suite", tt.suite)
			}
			status, stdout, stderr := conform(t, tt.fault, args...)
			require.Equal(t, exitFailed, status, stderr)
			var report struct {
				Requirements []conformance.RequirementReport
			}
			require.NoError(t, json.Unmarshal([]byte(stdout), &report))
			verdicts := map[string]conformance.Status{}
			for _, q := range report.Requirements {
				verdicts[q.ID] = q.Verdict
			}
			require.Equal(t, conformance.StatusFailed, verdicts[tt.requirement], verdicts)
			status, stdout, stderr = conform(t, "none", "-protocol", tt.protocol, "-op", tt.ops)
			require.Equal(t, exitPassed, status, stdout+stderr)
		})
	}
}

// Each way to break the protocol of the command ends with one clear sentence.
func TestErrors(t *testing.T) {
	stale := filepath.Join(t.TempDir(), "stale.json")
	require.NoError(t, os.WriteFile(stale, []byte(
		`[{"id":"air-keys-001","package":"mine","ref":"AIR-D12","reason":"not yet"}]`), 0o600))
	other := filepath.Join(t.TempDir(), "other.json")
	require.NoError(t, os.WriteFile(other, []byte(
		`[{"id":"air-keys-999","package":"mine","ref":"AIR-D12","reason":"not yet"}]`), 0o600))
	keys := []string{"-protocol", "air", "-suite", "keys"}
	for _, tt := range []struct {
		name, fault string
		args        []string
		status      int
		sentence    string
	}{
		{"unknown operation", "unknown operation", keys, exitNotRun, `the testee announces the unknown operation "sing" of air; there are: air_id, `},
		{"crash", "crashes", keys, exitFailed, "the testee crashed: exit status 7\n    standard error:\n    something went wrong"},
		{"crash too often", "crashes", []string{"-protocol", "air", "-timeout", "5s"}, exitFailed, "the testee ended 4 times, it is not started again: "},
		{"hang", "hangs", append([]string{"-op", "air_id", "-timeout", "3s"}, keys...), exitFailed, "no answer within 3s"},
		{"no JSON", "no JSON", keys, exitFailed, "the testee wrote a line that is not a JSON object: here is the answer"},
		{"stale baseline", "none", append([]string{"-baseline", stale}, keys...), exitFailed, "this case is listed as a known failure (mine, AIR-D12: not yet), but it passes"},
		{"baseline of another set", "none", append([]string{"-baseline", other}, keys...), exitFailed, "the known failure air-keys-999 is not a case of any folder"},
		{"missing baseline", "none", append([]string{"-baseline", "none.json"}, keys...), exitNotRun, "-baseline: open none.json: no such file"},
		{"nothing supported", "no low-order operation", []string{"-protocol", "air", "-op", "to_x25519"}, exitFailed, "no case ran: the implementation supports none of them"},
		{"empty selection", "none", []string{"-protocol", "air", "-op", "decode_request"}, exitNotRun, "-op decode_request: no case has it"},
		{"scripts only", "none", []string{"-op", "inbox_script"}, exitNotRun, "the selection is empty: "},
		{"unknown protocol", "none", []string{"-protocol", "ark"}, exitNotRun, "-protocol ark: no case has it"},
		{"report", "none", []string{"-report", "x.pdf"}, exitNotRun, "-report x.pdf: the name must end in"},
		{"not supported", "no low-order operation", append([]string{"-require", "all"}, keys...), exitFailed, "not supported, but -require all is set: "},
	} {
		t.Run(tt.name, func(t *testing.T) {
			status, stdout, stderr := conform(t, tt.fault, tt.args...)
			require.Equal(t, tt.status, status, stdout+stderr)
			require.Contains(t, stdout+stderr, tt.sentence)
		})
	}
	for _, tt := range []struct {
		sentence string
		args     []string
	}{
		{"a mode is missing", nil},
		{`unknown mode "codek"`, []string{"codek"}},
		{"from its standard input", []string{"vector", "recording"}},
		{"the command of the implementation is missing", []string{"codec"}},
		{"the testee cannot be started: ", []string{"codec", "--", "./no-such-program"}},
		{"the testee ended before its input did", []string{"codec", "--", "true"}},
	} {
		var out, errs bytes.Buffer
		require.Equal(t, exitNotRun, run(tt.args, nil, &out, &errs))
		require.Contains(t, errs.String(), tt.sentence)
	}
}

// A run follows the requirements of a release: it omits later ones, and prints its texts.
func TestRequirementsOfRelease(t *testing.T) {
	file := filepath.Join(t.TempDir(), "air.json")
	require.NoError(t, os.WriteFile(file, []byte(
		`{"protocol":"air","requirements":[{"id":"AIR-147","text":"an early text"}],"decisions":[]}`), 0o600))
	points := []string{"-protocol", "air", "-suite", "points", "-op", "to_x25519", "-requirements"}
	status, stdout, stderr := conform(t, "none", append(points, file, "-o", "json")...)
	require.Equal(t, exitPassed, status, stdout+stderr)
	require.Contains(t, stdout, `"passed": 12`)
	require.Contains(t, stdout, "an early text")
	require.Contains(t, stdout, "3 cases did not run: their requirements are later than "+file)
	status, _, stderr = conform(t, "none", append(points, "v99.0.0")...)
	require.Equal(t, exitNotRun, status)
	require.Contains(t, stderr, `-requirements: no requirements of air are frozen as "v99.0.0"`)
}

// The first program of the README runs, and its failures name the requirements that the README names.
func TestREADMEProgram(t *testing.T) {
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("no python3 here")
	}
	text, err := os.ReadFile("../../README.md")
	require.NoError(t, err)
	_, program, ok := strings.Cut(string(text), "```python\n")
	require.True(t, ok)
	program, _, _ = strings.Cut(program, "```")
	file := filepath.Join(t.TempDir(), "testee.py")
	require.NoError(t, os.WriteFile(file, []byte(program), 0o600))
	var out, errs bytes.Buffer
	args := []string{"codec", "-timeout", "30s", "-protocol", "air", "-op", "canonicalize", "-o", "json", "--", python, file}
	require.Equal(t, exitFailed, run(args, nil, &out, &errs), errs.String())
	require.Subset(t, failedRequirements(t, out.String()), []string{"AIR-D01", "AIR-D02"})
	require.Contains(t, out.String(), `"subject": "mine 1"`)
	require.Regexp(t, `"passed": [1-9]`, out.String())
}

// Each mode writes all reports and a badge.
func TestReports(t *testing.T) {
	for _, tt := range []struct{ mode, protocol, suite, requirement string }{
		{"codec", "air", "keys", "AIR-D30"}, {"server", "accp", "http", "ACCP-154"}, {"client", "altar", "runtime", "ALT-085"},
	} {
		t.Run(tt.mode, func(t *testing.T) {
			dir := t.TempDir()
			args := []string{"-suite", tt.suite, "-badge", filepath.Join(dir, "badge.svg")}
			for _, name := range []string{"r.txt", "r.json", "r.xml", "r.html"} {
				args = append(args, "-report", filepath.Join(dir, name))
			}
			var status int
			var stdout, stderr string
			switch tt.mode {
			case "codec":
				status, stdout, stderr = conform(t, "none", append(args, "-protocol", tt.protocol)...)
			case "server":
				status, stdout, stderr = conformServer(t, tt.protocol, "none", args...)
			case "client":
				status, stdout, stderr = conformClient(t, tt.protocol, "none", args...)
			}
			require.Equal(t, exitPassed, status, stdout+stderr)
			for name, want := range map[string]string{"r.txt": tt.mode + " mode", "r.json": tt.requirement, "r.xml": "<testsuites ",
				"r.html": tt.requirement, "badge.svg": tt.protocol + " conformance: "} {
				text, err := os.ReadFile(filepath.Join(dir, name))
				require.NoError(t, err)
				require.Contains(t, string(text), want, name)
			}
		})
	}
}

// The action calls the command with flags that it has.
func TestAction(t *testing.T) {
	if _, err := exec.LookPath("bash"); err != nil {
		t.Skip("no bash here")
	}
	text, err := os.ReadFile("../../action.yml")
	require.NoError(t, err)
	_, script, ok := strings.Cut(string(text), "run: |\n")
	require.True(t, ok)
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "go"), []byte("#!/bin/sh\nprintf '%s\\n' \"$@\"\n"), 0o700))
	for _, tt := range []struct {
		env  []string
		want config
	}{
		{[]string{"MODE=codec", "PROTOCOL=air", "COMMAND=python3 testee.py", "FLAGS=-require all", "BASELINE=known.json", "REPORT=a.html b.xml", "BADGE=c.svg"},
			config{mode: "codec", protocols: list{"air"}, command: []string{"bash", "-c", "python3 testee.py"}, require: "all", baseline: "known.json",
				reports: list{"a.html", "b.xml"}, badge: "c.svg", output: "text", timeout: 10 * time.Second}},
		{[]string{"MODE=server", "PROTOCOL=arc", "URL=http://127.0.0.1:1"},
			config{mode: "server", protocols: list{"arc"}, url: "http://127.0.0.1:1", command: []string{}, output: "text", timeout: 10 * time.Second}},
	} {
		cmd := exec.Command("bash", "-euo", "pipefail", "-c", script)
		cmd.Env = append(os.Environ(), "PATH="+dir+":"+os.Getenv("PATH"), "VERSION=v1", "PROTOCOL=", "COMMAND=", "URL=", "FLAGS=", "BASELINE=", "REPORT=", "BADGE=")
		cmd.Env = append(cmd.Env, tt.env...)
		out, err := cmd.Output()
		require.NoError(t, err)
		args := strings.Split(strings.TrimSuffix(string(out), "\n"), "\n")
		require.Equal(t, []string{"run", "github.com/fivewire/fivewire/conformance/cmd/conform@v1"}, args[:2])
		c, err := parse(args[2:], io.Discard, io.Discard)
		require.NoError(t, err)
		require.Equal(t, tt.want, *c)
	}
}

// An operation that the testee lacks is counted, and no failure.
func TestCodecUnsupported(t *testing.T) {
	status, stdout, stderr := conform(t, "no low-order operation", "-protocol", "air", "-o", "json")
	require.Equal(t, exitPassed, status, stderr)
	var report struct{ Unsupported, Failed int }
	require.NoError(t, json.Unmarshal([]byte(stdout), &report))
	require.Equal(t, 16, report.Unsupported)
	require.Zero(t, report.Failed)
}

// A process that a testee has started ends with the testee.
func TestCodecEndsProcessGroup(t *testing.T) {
	if _, err := exec.LookPath("sleep"); err != nil {
		t.Skip("no sleep here")
	}
	file := filepath.Join(t.TempDir(), "pid")
	t.Setenv("CONFORM_TEST_PID", file)
	status, stdout, _ := conform(t, "leaves a child", "-protocol", "air", "-suite", "keys")
	require.Equal(t, exitPassed, status, stdout)
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	pid, err := strconv.Atoi(string(text))
	require.NoError(t, err)
	require.Eventually(t, func() bool { return !isRunning(pid) }, time.Minute, 10*time.Millisecond)
}

// A recording becomes a file of vectors.
func TestVector(t *testing.T) {
	const recording = `{"a2e_record":1,"role":"host","started":1}
{"t":0,"dir":"in","line":"{\"a2e\":\"1.0\",\"type\":\"ping\",\"id\":\"p1\",\"ts\":1}"}
{"t":5,"dir":"out","line":"{\"a2e\":\"1.0\",\"type\":\"pong\",\"id\":\"6690c3cb9ddc41fb8ea915ee0f61b676\",\"ts\":1,\"req_id\":\"p1\"}"}
`
	var out, errs bytes.Buffer
	require.Equal(t, exitPassed, run([]string{"vector"}, strings.NewReader(recording), &out, &errs), errs.String())
	dir := t.TempDir()
	require.NoError(t, os.MkdirAll(filepath.Join(dir, "a2e"), 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "a2e", "recorded.json"), out.Bytes(), 0o600))
	set := conformance.Open(dir)
	require.Empty(t, set.Errors())
	require.Len(t, set.Cases(), 1)
	require.Equal(t, exitNotRun, run([]string{"vector"}, strings.NewReader("{}\n"), &out, &errs))
	require.Contains(t, errs.String(), "not a recording of version 1")
}

// Requested help is output; that of a mistake is not.
func TestHelp(t *testing.T) {
	for _, args := range [][]string{{"-h"}, {"--help"}, {"help"}, {"codec", "-h"}, {"server", "-protocol", "arc", "-help"}, {"vector", "-h"}} {
		var out, errs bytes.Buffer
		require.Equal(t, exitPassed, run(args, nil, &out, &errs), args)
		require.Contains(t, out.String(), "Usage: conform codec ", args)
		require.Contains(t, out.String(), "\n  -baseline ", args)
		require.Empty(t, errs.String(), args)
	}
	for _, args := range [][]string{nil, {"codec", "-wings"}} {
		var out, errs bytes.Buffer
		require.Equal(t, exitNotRun, run(args, nil, &out, &errs), args)
		require.Contains(t, errs.String(), "Usage: conform codec ", args)
		require.Empty(t, out.String(), args)
	}
}
