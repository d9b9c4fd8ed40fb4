// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"os"
	"regexp"
	"strconv"
	"testing"
)

func TestMain(m *testing.M) {
	if os.Getenv(instanceName) != "" {
		main()
		return
	}
	os.Exit(m.Run())
}

// One of three instances is killed during the run, and nothing is lost.
func TestRun(t *testing.T) {
	var out bytes.Buffer
	if err := run(t.Context(), []string{"-for", "6s"}, &out); err != nil {
		t.Fatalf("%v\n%s", err, out.String())
	}
	t.Log("\n" + out.String())
	found := regexp.MustCompile(`(tasks|mail) +sent (\d+), answered (\d+), lost 0, twice 0,`).FindAllStringSubmatch(out.String(), -1)
	if len(found) != 2 {
		t.Fatalf("no tally without loss:\n%s", out.String())
	}
	for _, f := range found {
		if n, err := strconv.Atoi(f[2]); err != nil || n < 10 || f[2] != f[3] {
			t.Errorf("%s: %s sent, %s answered", f[1], f[2], f[3])
		}
	}
	if !bytes.Contains(out.Bytes(), []byte("killed instance two")) {
		t.Error("nothing was killed")
	}
}
