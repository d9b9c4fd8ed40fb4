// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"io"
	"log"
	"os"
	"path/filepath"
	"regexp"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func Example() {
	if err := run(context.Background(), []string{"-try"}, os.Stdout, io.Discard); err != nil {
		log.Fatal(err)
	}
	// Output:
	// hello: same schemas: true, custom ones: [RR]
	// chat: You said: good morning
	// report: north 1234567.5 EUR
	// transaction: 142.5 booked
	// transaction: 142.5 booked
	// stream: one word after the other
	// tool count_words: 3
	// tool fly: TOOL_NOT_FOUND
}

// watched is a log that reports when a pattern has been logged.
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
	for {
		w.mu.Lock()
		m := re.FindStringSubmatch(w.text.String())
		w.mu.Unlock()
		if m != nil {
			return m[1]
		}
		<-w.changed
	}
}

// The command serves requests with the token until its context ends.
func TestServe(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	log := &watched{changed: make(chan struct{}, 1)}
	exited := make(chan error, 1)
	go func() {
		exited <- run(ctx, []string{"-addr", "localhost:0", "-token-file", secretFile(t, "open-sesame")}, io.Discard, log)
	}()
	url := log.wait(t, `url=(http://\S+)/accp`)

	var out bytes.Buffer
	require.NoError(t, talk(t.Context(), &out, url, "open-sesame"))
	require.Contains(t, out.String(), "tool count_words: 3\n")
	require.ErrorContains(t, talk(t.Context(), io.Discard, url, "wrong"), "401")

	cancel()
	require.NoError(t, <-exited)
}

func TestUsage(t *testing.T) {
	require.Error(t, run(t.Context(), []string{"-nonsense"}, io.Discard, io.Discard))
	require.Error(t, run(t.Context(), []string{"-addr", "nowhere.invalid:1"}, io.Discard, io.Discard))
}

// secretFile returns the name of a file with a secret.
func secretFile(t *testing.T, secret string) string {
	file := filepath.Join(t.TempDir(), "secret")
	require.NoError(t, os.WriteFile(file, []byte(secret+"\n"), 0o600))
	return file
}
