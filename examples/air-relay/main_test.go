// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"log"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func Example() {
	if err := run(context.Background(), nil, os.Stdout); err != nil {
		log.Fatal(err)
	}
	// Output:
	// POST /inbox/AIR-B0B0-0000-0002: 202 {"status":"queued","envelope_id":"8c5ddaf2-7d2e-4c0b-9d3c-6a1f0a3c7b11","seq":1}
	// GET /inbox/AIR-B0B0-0000-0002/pull: 200 {"envelopes":[(the envelope)],"cursor":"end","has_more":false}
	// POST /inbox/AIR-B0B0-0000-0002/ack: 200 {"status":"acked","acked_count":1,"requested":1}
	// GET /inbox/AIR-B0B0-0000-0002/pull: 200 {"envelopes":[],"cursor":"end","has_more":false}
}

// With a store the relay keeps the mail in a file, which the next process continues. Secrets come from files.
func TestStore(t *testing.T) {
	secret := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(secret, []byte("open-sesame\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	args := []string{"-store", filepath.Join(t.TempDir(), "mail.db"), "-push-secret-file", secret, "-inbox-secret-file", secret}
	for range 2 {
		var out bytes.Buffer
		if err := run(t.Context(), args, &out); err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(out.String(), `"acked_count":1`) {
			t.Fatal(out.String())
		}
	}
	if info, err := os.Stat(args[1]); err != nil || info.Size() == 0 {
		t.Fatal(info, err)
	}
}

// It serves until its context ends, and refuses flags that make no sense.
func TestServe(t *testing.T) {
	var out bytes.Buffer
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := run(ctx, []string{"-addr", "127.0.0.1:0", "-any-recipient"}, &out); err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(out.String(), "serving on 127.0.0.1:") {
		t.Fatal(out.String())
	}
	for _, args := range [][]string{{"-no-such-flag"}, {"-addr", "nowhere:-1"}, {"-addr", "127.0.0.1:0", "-cert", "missing", "-key", "missing"},
		{"-push-secret-file", "missing"}, {"-inbox-secret-file", os.DevNull}} {
		if err := run(t.Context(), args, &out); err == nil {
			t.Fatal(args)
		}
	}
	if err := run(t.Context(), []string{"-h"}, &out); err != nil {
		t.Fatal(err)
	}
}
