// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package fivewire_test

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/internal/testkit"
)

// guideHeadings are the headings of each guide, in this order.
var guideHeadings = []string{"Concepts", "First server", "First client", "Production checklist",
	"Errors and what to do", "Several processes", "Interop"}

// interruptible is the context of the programs of guides.
const interruptible = "signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)"

// A guideProgram is a program of a guide. With an output it ends by itself, and
// otherwise at an interrupt.
type guideProgram struct {
	name, body, output string
	listens            string // its address, or empty

	cmd            *exec.Cmd
	stdout, stderr bytes.Buffer
}

// Each guide has the headings of guideHeadings, and programs of at most 20 lines. The
// servers and clients of a guide run together, as printed except for the ports.
func TestGuides(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("processes cannot be interrupted")
	}
	for _, protocol := range protocols {
		t.Run(protocol, func(t *testing.T) {
			t.Parallel()
			text, err := os.ReadFile(filepath.Join(protocol, "README.md"))
			require.NoError(t, err)
			require.Equal(t, guideHeadings, headings(string(text)))
			runGuide(t, readGuide(t, string(text)))
		})
	}
}

// The commands of each guide run in their order, as printed except for the port. They have no comments, which an
// interactive zsh takes for arguments.
func TestGuideCommands(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("the commands are those of a Unix shell")
	}
	for protocol, wants := range map[string][]string{
		"arc":   {"SOME TEXT\n"},
		"a2e":   {`"name":"count_words"`, `"words":2`, `out {"a2e":"1.0","type":"tool/list/req"`},
		"altar": {`{"TEXT":"HELLO"}`},
		"accp":  {"tokens: header", `"op":"tool"`},
		"air":   {"note 018fde3a-1234-7abc-8def-aabbccddeeff from "},
	} {
		t.Run(protocol, func(t *testing.T) {
			t.Parallel()
			text, err := os.ReadFile(filepath.Join(protocol, "README.md"))
			require.NoError(t, err)
			block := regexp.MustCompile("(?s)```sh\n(.*?)```").FindStringSubmatch(string(text))
			require.NotNil(t, block)
			bin, addr := t.TempDir(), testkit.FreeAddress(t)
			script := regexp.MustCompile(`(?m)^go install (\S+)@latest$`).ReplaceAllStringFunc(block[1], func(line string) string {
				goIn(t, ".", "build", "-o", bin, strings.TrimSuffix(strings.Fields(line)[2], "@latest"))
				return ""
			})
			script = strings.ReplaceAll(script, "localhost:8080", addr)
			script = strings.ReplaceAll(script, protocol+" serve ", protocol+" serve -addr "+addr+" ")
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			cmd := exec.CommandContext(ctx, "sh", "-ec", script+"\nwait")
			cmd.Dir, cmd.Env = t.TempDir(), append(os.Environ(), "PATH="+bin+":"+os.Getenv("PATH"))
			cmd.WaitDelay = time.Second
			out, err := cmd.CombinedOutput()
			require.NoError(t, err, "%s", out)
			for _, want := range wants {
				require.Contains(t, string(out), want)
			}
			require.NotContains(t, block[1], "#")
		})
	}
}

// headings returns the headings of the second level.
func headings(text string) (list []string) {
	for _, m := range regexp.MustCompile(`(?m)^## (.*)$`).FindAllStringSubmatch(text, -1) {
		list = append(list, m[1])
	}
	return list
}

// readGuide returns the programs of a guide, with free ports.
func readGuide(t *testing.T, text string) []*guideProgram {
	t.Helper()
	addrs := testkit.FreeAddresses(t, 2)
	for i, port := range []string{"8080", "8081"} {
		text = strings.ReplaceAll(text, "localhost:"+port, addrs[i])
	}
	var programs []*guideProgram
	clients := 0
	for i, m := range regexp.MustCompile("(?s)```go\n(.*?)```").FindAllStringSubmatch(text, -1) {
		require.LessOrEqual(t, strings.Count(m[1], "\n"), 20, m[1])
		body, output, _ := strings.Cut(m[1], "// Output: ")
		p := &guideProgram{name: "program-" + strconv.Itoa(i), body: body, output: output}
		if listens := regexp.MustCompile(`(?:HTTPServer\(|Addr: |Listen\("tcp", )"([^"]+)"`).FindStringSubmatch(body); listens != nil {
			p.listens = listens[1]
		} else if output != "" {
			clients++
		}
		programs = append(programs, p)
	}
	require.NotEmpty(t, programs)
	require.NotEmpty(t, programs[0].listens, "the first program is no server")
	require.Empty(t, programs[0].output)
	require.Positive(t, clients, "no client has an output")
	return programs
}

// buildGuide builds the programs within this module and returns their folder.
func buildGuide(t *testing.T, programs []*guideProgram) string {
	t.Helper()
	dir, err := os.MkdirTemp(".", "_guide-")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	bin := t.TempDir()
	args := []string{"build", "-o", bin + string(filepath.Separator)}
	for _, p := range programs {
		at := filepath.Join(dir, p.name)
		require.NoError(t, os.Mkdir(at, 0o777))
		main := newMain(p.body, "ctx, stop := "+interruptible+"\n\tdefer stop()\n\t_ = ctx")
		require.NoError(t, os.WriteFile(filepath.Join(at, "main.go"), []byte(main), 0o666))
		args = append(args, "./"+filepath.ToSlash(at))
	}
	out, err := exec.CommandContext(t.Context(), "go", args...).CombinedOutput()
	require.NoError(t, err, "%s", out)
	return bin
}

// runGuide starts the programs in their order, waits for those with an output, and
// interrupts the others.
func runGuide(t *testing.T, programs []*guideProgram) {
	bin := buildGuide(t, programs)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	for _, p := range programs {
		p.cmd = exec.CommandContext(ctx, filepath.Join(bin, p.name))
		p.cmd.Env = append(os.Environ(), "TOKEN=open-sesame", "SECRET=a-secret-of-32-bytes-for-webhooks")
		p.cmd.Stdout, p.cmd.Stderr = &p.stdout, &p.stderr
		require.NoError(t, p.cmd.Start())
		t.Cleanup(func() {
			_ = p.cmd.Process.Kill() // has no effect after the end
			_ = p.cmd.Wait()
			if t.Failed() {
				t.Logf("%s:\n%s%s", p.name, p.stdout.Bytes(), p.stderr.Bytes())
			}
		})
		if p.listens != "" {
			require.NoError(t, waitListening(ctx, p.listens), "%s does not listen", p.name)
		}
	}
	for _, p := range programs {
		if p.output != "" {
			require.NoError(t, p.cmd.Wait(), "%s", p.name)
			require.Equal(t, strings.TrimSpace(p.output), strings.TrimSpace(p.stdout.String()))
		}
	}
	for i := len(programs) - 1; i >= 0; i-- {
		if p := programs[i]; p.output == "" {
			require.NoError(t, p.cmd.Process.Signal(os.Interrupt))
			require.NoError(t, p.cmd.Wait(), "%s does not end at an interrupt", p.name)
		}
	}
}

// waitListening returns when a program accepts connections at an address.
func waitListening(ctx context.Context, addr string) error {
	for {
		c, err := (&net.Dialer{}).DialContext(ctx, "tcp", addr)
		if err == nil {
			return c.Close()
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", ctx.Err(), err)
		case <-time.After(10 * time.Millisecond):
		}
	}
}
