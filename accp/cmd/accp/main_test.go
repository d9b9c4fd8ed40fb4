// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/accp"
	"github.com/fivewire/fivewire/accp/profile"
	"github.com/fivewire/fivewire/internal/command"
	"github.com/fivewire/fivewire/internal/command/commandtest"
)

// do runs the command with an input.
func do(t *testing.T, in string, args ...string) (status int, stdout, stderr string) {
	t.Helper()
	return commandtest.Do(t, program, in, args...)
}

// frames returns two frames, one a line.
func frames(t *testing.T) string {
	t.Helper()
	var text []byte
	for _, name := range []string{"search", "a name, with delimiters|{}"} {
		m, err := accp.NewMessage(accp.IntentReq, profile.OpTool, profile.SchemaTool, profile.ToolCall{
			Name: name, Arguments: accp.Map(accp.Param{Key: "limit", Value: accp.String("ten")}),
		})
		require.NoError(t, err)
		m.From = "agent1"
		text, err = (&accp.Codec{}).Append(text, m)
		require.NoError(t, err)
		text = append(text, '\n')
	}
	return string(text)
}

func TestDecodeAndEncode(t *testing.T) {
	in := frames(t)
	status, decoded, stderr := do(t, in, "decode")
	require.Equal(t, command.Done, status, stderr)
	for line := range strings.Lines(decoded) {
		var m struct{ From, Intent, Op string }
		require.NoError(t, json.Unmarshal([]byte(line), &m))
		require.Equal(t, []string{"agent1", string(accp.IntentReq), profile.OpTool}, []string{m.From, m.Intent, m.Op})
	}
	status, encoded, stderr := do(t, decoded, "encode")
	require.Equal(t, command.Done, status, stderr)
	require.Equal(t, in, encoded)
	_, encoded, _ = do(t, decoded, "encode", "-o", "json")
	require.Equal(t, 2, strings.Count(encoded, `{"frame":`))

	file := filepath.Join(t.TempDir(), "frames.txt")
	require.NoError(t, os.WriteFile(file, []byte(in), 0o600))
	_, fromFile, _ := do(t, "", "decode", file)
	require.Equal(t, decoded, fromFile)
}

func TestExplainAndCount(t *testing.T) {
	in := frames(t)
	status, stdout, stderr := do(t, in, "explain")
	require.Equal(t, command.Done, status, stderr)
	require.Contains(t, stdout, "agent1")
	status, stdout, stderr = do(t, in, "count", "-o", "json")
	require.Equal(t, command.Done, status, stderr)
	var b struct {
		Total, Header, Body, Metadata int
		Counter                       string
	}
	require.NoError(t, json.NewDecoder(strings.NewReader(stdout)).Decode(&b))
	want, err := accp.MeasureFrame([]byte(strings.SplitN(in, "\n", 2)[0]), nil)
	require.NoError(t, err)
	require.Equal(t, []int{want.Total, want.Header, want.Body, want.Metadata}, []int{b.Total, b.Header, b.Body, b.Metadata})
	require.Positive(t, b.Total)
	require.Equal(t, "ApproxCounter", b.Counter)
	_, stdout, _ = do(t, in, "count")
	require.Contains(t, stdout, " tokens: header ")
}

// A line that is wrong fails alone, and the error has its number.
func TestFailures(t *testing.T) {
	in := "no frame\n" + frames(t)
	for verb, n := range map[string]int{"decode": 2, "count": 2} {
		status, stdout, stderr := do(t, in, verb)
		require.Equal(t, command.Failed, status)
		require.Equal(t, n, strings.Count(stdout, "\n"), stdout)
		require.Contains(t, stderr, "line 1: ")
		require.NotContains(t, stderr, "line 2: ")
	}
	for verb, text := range map[string]string{"explain": "no frame", "encode": `{"from":7}`} {
		status, _, stderr := do(t, text, verb)
		require.Equal(t, command.Failed, status, verb)
		require.Contains(t, stderr, "line 1: ")
	}
	commandtest.CheckUsage(t, program, []string{"decode", "a", "b"}, []string{"count", "-portable"})
	commandtest.CheckHelp(t, program)
}
