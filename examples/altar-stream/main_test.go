// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"regexp"
	"strconv"
	"testing"
)

// All lines arrive, and the tool waits for the reader.
func TestRun(t *testing.T) {
	var out bytes.Buffer
	if err := run(t.Context(), []string{"-lines", "20000", "-every", "1000", "-pause", "1ms"}, &out); err != nil {
		t.Fatalf("%v\n%s", err, out.String())
	}
	found := regexp.MustCompile(`20000 lines, each once and in order; tool ahead by at most (\d+) lines; heap grew by at most (-?\d+) KiB`).FindStringSubmatch(out.String())
	if found == nil {
		t.Fatalf("no result:\n%s", out.String())
	}
	if ahead, err := strconv.Atoi(found[1]); err != nil || ahead > 1000 {
		t.Errorf("the tool was %s lines ahead", found[1])
	}
	if heap, err := strconv.Atoi(found[2]); err != nil || heap > 16<<10 {
		t.Errorf("the heap grew by %s KiB", found[2])
	}
}

func TestEnds(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	var out bytes.Buffer
	if err := run(ctx, []string{"-lines", "1000"}, &out); err == nil {
		t.Error("it has not noticed the end of its context")
	}
	for _, args := range [][]string{{"-lines", "0"}, {"-nonsense"}, {"-nats", "nats://127.0.0.1:1"}} {
		if err := run(t.Context(), args, &out); err == nil {
			t.Errorf("%v is accepted", args)
		}
	}
}
