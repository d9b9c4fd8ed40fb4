// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"io"
	"os/exec"
	"path/filepath"
	"regexp"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// watched collects what the server logs, and tells when a pattern has come.
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

// The two programs talk to each other, with a token, and the server ends when it
// is told to.
func TestWithClient(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	log := &watched{changed: make(chan struct{}, 1)}
	ended := make(chan error, 1)
	go func() { ended <- run(ctx, []string{"-addr", "localhost:0", "-token", "open-sesame"}, log) }()
	url := log.wait(t, `url=(http://\S+)`)

	client := filepath.Join(t.TempDir(), "arc-client")
	out, err := exec.Command("go", "build", "-o", client, "../arc-client").CombinedOutput()
	require.NoError(t, err, "%s", out)
	out, err = exec.Command(client, "-url", url, "-token", "open-sesame", "-text", "one two three", "-title", "Numbers").CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.Regexp(t, `(?s)SUBMITTED.*INPUT_REQUIRED.*Which title.*COMPLETED.*# Numbers.*"words":3`, string(out))
	require.Contains(t, string(out), "(0 messages so far) You said: one two three\n(2 messages so far) You said: And once more.\n")

	out, err = exec.Command(client, "-url", url, "-token", "wrong").CombinedOutput()
	require.Error(t, err)
	require.Contains(t, string(out), "-44005")

	cancel()
	require.NoError(t, <-ended)
}

func TestUsage(t *testing.T) {
	require.Error(t, run(t.Context(), []string{"-nonsense"}, io.Discard))
	require.Error(t, run(t.Context(), []string{"-addr", "nowhere.invalid:1"}, io.Discard))
}
