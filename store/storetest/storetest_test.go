// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package storetest

import (
	"bytes"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	faultkit "github.com/fivewire/fivewire/conformance/fault"
	"github.com/fivewire/fivewire/internal/race"
	"github.com/fivewire/fivewire/store"
)

func memory(*testing.T) store.Store { return store.NewMemory() }

// same store again: what is reopened or shared in the process is the process.
func sameStore(_ *testing.T, s store.Store) store.Store { return s }

func TestMemory(t *testing.T) {
	Suite{Virtual: true, Peer: sameStore, Reopen: sameStore}.Run(t, memory)
}

func TestFaultStoreWithoutRules(t *testing.T) {
	Suite{Virtual: true}.Run(t, func(t *testing.T) store.Store {
		plan := &faultkit.Plan{}
		t.Cleanup(plan.Close)
		return faultkit.Store(store.NewMemory(), plan)
	})
}

func TestMemoryInRealTime(t *testing.T) {
	t.Parallel() // it mostly waits
	if testing.Short() {
		t.Skip("waits for the clock")
	}
	Run(t, memory)
}

// TestSub: a view is a store as good as what is below it.
func TestSub(t *testing.T) {
	const prefix = "a view/"
	Suite{Virtual: true, behind: len(prefix)}.Run(t, func(t *testing.T) store.Store {
		s := store.NewMemory()
		for _, key := range []string{"a view", "a view.", "a view0", "k", "s"} { // neighbours
			_, err := s.Create(t.Context(), key, []byte("not of the view"), 0)
			require.NoError(t, err)
			_, err = s.Append(t.Context(), key, "id", []byte("not of the view"), 0)
			require.NoError(t, err)
		}
		return store.Sub(s, prefix)
	})
}

// faultsEnv makes a run of the test binary one that has to fail: its value is
// the name of the fault, or "all".
const faultsEnv = "STORETEST_FAULT"

// TestFaulty is run by TestFaults in another process.
func TestFaulty(t *testing.T) {
	which := os.Getenv(faultsEnv)
	if which == "" {
		t.Skip("is for TestFaults")
	}
	for _, f := range faults {
		if which != f.name && (which != "all" || f.alone) {
			continue
		}
		f.suite.Virtual = true
		f.suite.Seed = 1
		t.Run(f.name, func(t *testing.T) {
			f.suite.Run(t, func(*testing.T) store.Store { return f.make(store.NewMemory()) })
		})
	}
}

var failedTest = regexp.MustCompile(`(?m)^\s*--- FAIL: TestFaulty/(.*) \(`)

// runFaulty returns the names of the tests that failed, as fault/group/test.
func runFaulty(t *testing.T, which string) (failed map[string]bool, out string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestFaulty$", "-test.short", "-test.v", "-test.timeout=5m")
	cmd.Env = append(os.Environ(), faultsEnv+"="+which)
	var buf bytes.Buffer
	cmd.Stdout, cmd.Stderr = &buf, &buf
	var exit *exec.ExitError
	require.ErrorAs(t, cmd.Run(), &exit, "the suite passes broken engines:\n%s", &buf)
	failed = map[string]bool{}
	for _, m := range failedTest.FindAllStringSubmatch(buf.String(), -1) {
		failed[m[1]] = true
	}
	return failed, buf.String()
}

// TestFaults proves that the suite detects each faulty engine.
func TestFaults(t *testing.T) {
	if race.Enabled {
		t.Skip("tests of the suite that fail have no races of interest")
	}
	t.Parallel()
	failedOfAll, outOfAll := runFaulty(t, "all")
	require.True(t, strings.Contains(outOfAll, "--- PASS: TestFaulty/sound "), "the suite does not get to its end: %s", outOfAll[max(0, len(outOfAll)-4000):])
	for _, f := range faults {
		t.Run(f.name, func(t *testing.T) {
			failed, out := failedOfAll, outOfAll
			if f.alone {
				failed, out = runFaulty(t, f.name)
			}
			prefix := strings.ReplaceAll(f.name, " ", "_") + "/"
			var all []string
			for name := range failed {
				if name, ok := strings.CutPrefix(name, prefix); ok && strings.Contains(name, "/") {
					all = append(all, name)
				}
			}
			t.Logf("noticed by %q", all)
			if len(f.fails) == 0 {
				require.Empty(t, all)
				return
			}
			if !f.alone {
				require.True(t, strings.Contains(out, "--- FAIL: TestFaulty/"+strings.TrimSuffix(prefix, "/")), "not noticed")
			}
			for _, name := range f.fails {
				require.Contains(t, all, name)
			}
		})
	}
}

func BenchmarkMemory(b *testing.B) {
	Benchmark(b, func(*testing.B) store.Store { return store.NewMemory() })
}
