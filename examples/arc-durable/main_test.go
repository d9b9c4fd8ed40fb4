// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"context"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/arc"
)

// asProgram makes the test binary the program.
const asProgram = "ARC_DURABLE_PROGRAM"

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" {
		main()
		return
	}
	os.Exit(m.Run())
}

// A process runs the program.
type process struct {
	*exec.Cmd
	url string
}

func start(t *testing.T, dir string) *process {
	t.Helper()
	exe, err := os.Executable()
	require.NoError(t, err)
	p := &process{Cmd: exec.Command(exe, "-addr", "localhost:0", "-store", filepath.Join(dir, "trips.db"),
		"-bookings", filepath.Join(dir, "bookings.txt"), "-pause", "50ms")}
	p.Env = append(os.Environ(), asProgram+"=1")
	log, err := p.StderrPipe()
	require.NoError(t, err)
	require.NoError(t, p.Start())
	t.Cleanup(p.kill)
	lines := bufio.NewScanner(log)
	for p.url == "" && lines.Scan() {
		if m := regexp.MustCompile(`url=(http://\S+)`).FindStringSubmatch(lines.Text()); m != nil {
			p.url = m[1]
		}
	}
	require.NotEmpty(t, p.url, "the program does not serve")
	go func() { _, _ = io.Copy(io.Discard, log) }()
	return p
}

// kill ends the process at once.
func (p *process) kill() {
	if p.ProcessState == nil {
		_ = p.Process.Kill()
		_ = p.Wait()
	}
}

// The task of a human survives two kills: once in its second step, and once while it waits. Each
// booking is made once.
func TestTaskSurvivesKills(t *testing.T) {
	dir := t.TempDir()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	bookings := func() []string {
		text, err := os.ReadFile(filepath.Join(dir, "bookings.txt"))
		if os.IsNotExist(err) {
			return nil
		}
		require.NoError(t, err)
		var list []string
		for line := range strings.Lines(string(text)) {
			_, what, _ := strings.Cut(strings.TrimSuffix(line, "\n"), " ")
			list = append(list, what)
		}
		return list
	}
	p := start(t, dir)
	client := func() *arc.Client {
		c, err := arc.NewClient(p.url, "you-01", nil)
		require.NoError(t, err)
		t.Cleanup(func() { _ = c.Close() })
		return c
	}
	wait := &arc.WaitOptions{MinPollInterval: 5 * time.Millisecond}
	task, err := client().CreateTask(ctx, "travel-01", &arc.CreateTaskParams{InitialMessage: arc.UserText("Oslo")}, nil)
	require.NoError(t, err)
	require.Eventually(t, func() bool { return len(bookings()) == 1 }, time.Minute, time.Millisecond)
	p.kill()

	p = start(t, dir)
	outcome, err := client().WaitTask(ctx, "travel-01", task.ID, wait)
	require.NoError(t, err)
	require.True(t, outcome.InputRequired)
	p.kill()

	p = start(t, dir)
	c := client()
	require.NoError(t, c.SendTaskInput(ctx, "travel-01", &arc.SendTaskParams{TaskID: task.ID, Message: arc.UserText("yes")}, nil))
	outcome, err = c.WaitTask(ctx, "travel-01", task.ID, wait)
	require.NoError(t, err)
	require.Equal(t, arc.TaskCompleted, outcome.Task.Status)
	require.Equal(t, "payment, ticket", outcome.Task.Artifacts[0].Parts[0].Content)
	require.Equal(t, []string{"flight to Oslo", "hotel in Oslo", "payment", "ticket"}, bookings())
}

// A program that is started twice leaves the store to the first one, whose lease it would take otherwise.
func TestSecondStartLeavesTheStore(t *testing.T) {
	l, err := net.Listen("tcp", "localhost:0")
	require.NoError(t, err)
	defer l.Close()
	file := filepath.Join(t.TempDir(), "trips.db")
	require.ErrorContains(t, run(t.Context(), []string{"-addr", l.Addr().String(), "-store", file}, io.Discard), "listen")
	require.NoFileExists(t, file)
}
