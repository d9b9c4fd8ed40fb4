// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/arc"
)

// watched collects the log of the server, and signals when a pattern appears.
type watched struct {
	mu      sync.Mutex
	text    bytes.Buffer
	changed chan struct{}
}

func (w *watched) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	select {
	case w.changed <- struct{}{}:
	default:
	}
	return w.text.Write(p)
}

func (w *watched) wait(t *testing.T, pattern string) string {
	t.Helper()
	re := regexp.MustCompile(pattern)
	timeout := time.After(30 * time.Second)
	for {
		w.mu.Lock()
		m := re.FindStringSubmatch(w.text.String())
		w.mu.Unlock()
		if m != nil {
			return m[1]
		}
		select {
		case <-w.changed:
		case <-timeout:
			t.Fatalf("no %s in %s", pattern, w.text.String())
		}
	}
}

// The server serves a client with a token, and ends with its context.
func TestRun(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	log := &watched{changed: make(chan struct{}, 1)}
	done := make(chan error, 1)
	go func() {
		done <- run(ctx, []string{"-addr", "localhost:0", "-token-file", secretFile(t, "open-sesame")}, log)
	}()
	url := log.wait(t, `url=(http://\S+)`)

	client, err := arc.NewClient(url, "you-01", &arc.ClientOptions{TokenSource: arc.StaticTokenSource("open-sesame")})
	require.NoError(t, err)
	defer client.Close()
	task, err := client.CreateTask(ctx, "report-01", &arc.CreateTaskParams{InitialMessage: arc.UserText("one two three")}, nil)
	require.NoError(t, err)
	wait := &arc.WaitOptions{MinPollInterval: time.Millisecond}
	outcome, err := client.WaitTask(ctx, "report-01", task.ID, wait)
	require.NoError(t, err)
	require.True(t, outcome.InputRequired)
	title := &arc.SendTaskParams{TaskID: task.ID, Message: arc.UserText("Numbers")}
	require.NoError(t, client.SendTaskInput(ctx, "report-01", title, nil))
	outcome, err = client.WaitTask(ctx, "report-01", task.ID, wait)
	require.NoError(t, err)
	require.Equal(t, "# Numbers\n\none two three\n", outcome.Task.Artifacts[0].Parts[0].Content)
	chat, err := client.StartChat(ctx, "tutor-01", &arc.StartChatParams{InitialMessage: arc.UserText("hello")}, nil)
	require.NoError(t, err)
	require.Equal(t, "(0 messages so far) You said: hello", chat.Message.Text())

	stranger, err := arc.NewClient(url, "you-01", &arc.ClientOptions{TokenSource: arc.StaticTokenSource("wrong")})
	require.NoError(t, err)
	defer stranger.Close()
	_, err = stranger.CreateTask(ctx, "report-01", &arc.CreateTaskParams{InitialMessage: arc.UserText("one")}, nil)
	require.ErrorIs(t, err, arc.ErrTokenInvalid)

	cancel()
	require.NoError(t, <-done)
}

func TestUsage(t *testing.T) {
	require.Error(t, run(t.Context(), []string{"-nonsense"}, io.Discard))
	require.Error(t, run(t.Context(), []string{"-addr", "nowhere.invalid:1"}, io.Discard))
}

// secretFile returns the name of a file with a secret.
func secretFile(t *testing.T, secret string) string {
	file := filepath.Join(t.TempDir(), "secret")
	require.NoError(t, os.WriteFile(file, []byte(secret+"\n"), 0o600))
	return file
}
