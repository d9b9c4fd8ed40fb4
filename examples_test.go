// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package fivewire_test

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Each example builds, with its tests, as the only content of an empty module, and
// describes its flags. The programs that belong together work together.
func TestExamples(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("processes cannot be interrupted")
	}
	bin := t.TempDir()
	index, err := os.ReadFile("examples/README.md")
	require.NoError(t, err)
	mains, err := filepath.Glob("examples/*/main.go")
	require.NoError(t, err)
	require.NotEmpty(t, mains)
	t.Run("each", func(t *testing.T) {
		for _, main := range mains {
			name := filepath.Base(filepath.Dir(main))
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				require.Contains(t, string(index), "["+name+"]("+name+"/)")
				dir := copyExample(t, name)
				program := filepath.Join(bin, name)
				goIn(t, dir, "build", "-o", program, ".")
				out, err := exec.CommandContext(t.Context(), program, "-h").CombinedOutput()
				require.NoError(t, err, "%s", out)
				require.Contains(t, string(out), "Usage of ")
				require.Contains(t, string(out), "  -", "no flags")
				text, err := os.ReadFile(main)
				require.NoError(t, err)
				require.Contains(t, string(text), "signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)")
				require.Contains(t, string(text), "context.AfterFunc(ctx, stop)", "a second signal ends the process")
			})
		}
	})
	if t.Failed() {
		return
	}
	for name, f := range map[string]func(*testing.T, string){
		"arc": testARCExamples, "altar": testALTARExamples, "a2e": testA2EExamples, "accp": testACCPExamples,
	} {
		t.Run("together/"+name, func(t *testing.T) { f(t, bin) })
	}
}

// copyExample copies an example into an empty module of a workspace with the modules of this repository.
func copyExample(t *testing.T, name string) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), name)
	from := filepath.Join("examples", name)
	require.NoError(t, os.CopyFS(dir, os.DirFS(from)))
	mod, err := os.ReadFile(filepath.Join(from, "go.mod"))
	if err != nil {
		mod = []byte("module x\n\ngo 1.26.0\n\nrequire " + module + " v0.0.0\n")
	}
	mod = regexp.MustCompile(`(?m)^module .*$`).ReplaceAll(mod, []byte("module example.com/user"))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "go.mod"), mod, 0o666))
	work, err := os.ReadFile("go.work")
	require.NoError(t, err)
	root, err := os.Getwd()
	require.NoError(t, err)
	own := "\t./" + from + "\n"
	text := strings.Replace(string(work), own, "", 1)
	text = regexp.MustCompile(`(?m)(\t|=> )\.(/?\S*)$`).ReplaceAllString(text, "${1}"+root+"${2}")
	text = strings.Replace(text, "use (\n", "use (\n\t.\n", 1)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "go.work"), []byte(text), 0o666))
	sums, err := os.ReadFile("go.work.sum")
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "go.work.sum"), sums, 0o666))
	return dir
}

// goIn runs the go command in a folder outside of the workspace.
func goIn(t *testing.T, dir string, args ...string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", args...)
	cmd.Dir = dir
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "go %s: %s", strings.Join(args, " "), out)
}

// startExample starts a program and returns the first match in a line of its output.
// The program must end without an error at an interrupt.
func startExample(t *testing.T, pattern, program string, args ...string) []string {
	t.Helper()
	cmd := exec.Command(program, args...)
	r, w, err := os.Pipe()
	require.NoError(t, err)
	cmd.Stdout, cmd.Stderr = w, w
	require.NoError(t, cmd.Start())
	require.NoError(t, w.Close())
	kill := time.AfterFunc(time.Minute, func() { _ = cmd.Process.Kill() })
	lines := bufio.NewScanner(r)
	t.Cleanup(func() {
		_ = cmd.Process.Signal(os.Interrupt)
		for lines.Scan() {
			t.Log(lines.Text())
		}
		require.NoError(t, cmd.Wait(), "%s does not end at an interrupt", program)
		kill.Stop()
	})
	for lines.Scan() {
		if m := regexp.MustCompile(pattern).FindStringSubmatch(lines.Text()); m != nil {
			return m
		}
	}
	t.Fatalf("%s printed no %s", program, pattern)
	return nil
}

// runExample returns the output of a program.
func runExample(t *testing.T, program string, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	out, err := exec.CommandContext(ctx, program, args...).CombinedOutput()
	require.NoError(t, err, "%s", out)
	return string(out)
}

// secretFile returns the name of a file with a secret.
func secretFile(t *testing.T, secret string) string {
	file := filepath.Join(t.TempDir(), "secret")
	require.NoError(t, os.WriteFile(file, []byte(secret+"\n"), 0o600))
	return file
}

func testARCExamples(t *testing.T, bin string) {
	token := secretFile(t, "open-sesame")
	m := startExample(t, `url=(http://\S+)`, filepath.Join(bin, "arc-server"), "-addr", "localhost:0", "-token-file", token)
	out := runExample(t, filepath.Join(bin, "arc-client"), "-url", m[1], "-token-file", token, "-text", "one two three", "-title", "Numbers")
	require.Regexp(t, `(?s)SUBMITTED.*INPUT_REQUIRED.*Which title.*COMPLETED.*# Numbers.*"words":3`, out)
	require.Contains(t, out, "(0 messages so far) You said: one two three\n(2 messages so far) You said: And once more.\n")
}

func testALTARExamples(t *testing.T, bin string) {
	clientKey, runtimeKey := secretFile(t, "of the client"), secretFile(t, "of the Runtime")
	m := startExample(t, `^listening on http://(\S+)`, filepath.Join(bin, "altar-host"), "-addr", "127.0.0.1:0",
		"-client-key-file", clientKey, "-runtime-key-file", runtimeKey)
	url := "ws://" + m[1]
	tools := exec.Command(filepath.Join(bin, "altar-runtime"), "-url", url, "-key-file", runtimeKey)
	require.NoError(t, tools.Start())
	defer func() {
		require.NoError(t, tools.Process.Signal(os.Interrupt))
		require.NoError(t, tools.Wait(), "the Runtime does not end at an interrupt")
	}()
	client := filepath.Join(bin, "altar-client")
	for { // until the Runtime has connected
		out, err := exec.CommandContext(t.Context(), client, "-url", url, "-key-file", clientKey).CombinedOutput()
		if err == nil {
			require.Contains(t, string(out), "upper: HELLO\nword: one\nword: two\nword: three\nrefused: /text missing_required (expected string); /txet unknown_parameter\n")
			return
		}
		require.Contains(t, string(out), "TOOL_NOT_FOUND")
	}
}

// The agent starts the host as a child process.
func testA2EExamples(t *testing.T, bin string) {
	out := runExample(t, filepath.Join(bin, "a2e-agent"), filepath.Join(bin, "a2e-host"))
	require.Contains(t, out, "tool: count_words: Count the words and letters of a text\n")
	require.Contains(t, out, "result: 3 words")
	require.Contains(t, out, "process: hello\n")
}

// The table of token savings has the figures of the workflow, which depend on random ids by
// one percent.
func testACCPExamples(t *testing.T, bin string) {
	require.Contains(t, runExample(t, filepath.Join(bin, "accp-memory")), "eve: knows 9 findings\n")
	out := runExample(t, filepath.Join(bin, "accp-pipeline"))
	m := regexp.MustCompile(`needs (\d+) % less than text and (\d+) % less than JSON`).FindStringSubmatch(out)
	require.NotNil(t, m, out)
	text, err := os.ReadFile("accp/tokenizer/README.md")
	require.NoError(t, err)
	row := regexp.MustCompile("\\| the workflow of `examples/accp-pipeline`[^|]* \\| (\\d+) % fewer \\| (\\d+) % fewer \\|").FindStringSubmatch(string(text))
	require.NotNil(t, row)
	for i := range 2 {
		var got, want int
		_, err := fmt.Sscan(m[i+1]+" "+row[i+1], &got, &want)
		require.NoError(t, err)
		require.InDelta(t, want, got, 1)
	}
}
