// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package fault_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/conformance/fault"
)

// A trial records the failures of a Soak.
type trial struct {
	testing.TB
	errors []string
}

func (t *trial) Helper()             {}
func (t *trial) Logf(string, ...any) {}
func (t *trial) Errorf(format string, args ...any) {
	t.errors = append(t.errors, fmt.Sprintf(format, args...))
}
func (t *trial) Fatalf(format string, args ...any) {
	t.Errorf(format, args...)
	runtime.Goexit()
}

func soak(o fault.Options, f func(caller int) error) []string {
	t := &trial{}
	done := make(chan struct{})
	go func() {
		defer close(done)
		fault.Soak(t, o, f)
	}()
	<-done
	return t.errors
}

func TestSoakFindsGrowth(t *testing.T) {
	var mu sync.Mutex
	var kept [][]byte
	var files []*os.File
	release := make(chan struct{})
	path := filepath.Join(t.TempDir(), "f")
	require.NoError(t, os.WriteFile(path, nil, 0o600))
	defer func() {
		for _, f := range files {
			f.Close()
		}
	}()
	defer close(release)
	for what, f := range map[string]func() error{
		"heap": func() error { kept = append(kept, make([]byte, 16<<10)); return nil },
		"goroutines": func() error {
			go func() { <-release }()
			return nil
		},
		"files": func() error {
			f, err := os.Open(path)
			files = append(files, f)
			return err
		},
	} {
		if what == "files" && runtime.GOOS != "linux" {
			continue
		}
		got := soak(fault.Options{Callers: 2, For: 400 * time.Millisecond}, func(int) error {
			time.Sleep(5 * time.Millisecond)
			mu.Lock()
			defer mu.Unlock()
			return f()
		})
		require.Contains(t, strings.Join(got, "\n"), what)
	}
}

func TestSoakAcceptsSteadyFunction(t *testing.T) {
	// Other tests leave connections of HTTP clients, so only the heap is judged.
	got := soak(fault.Options{For: 400 * time.Millisecond, HeapSlope: 1 << 40, Goroutines: -1, Files: -1}, func(int) error {
		time.Sleep(time.Millisecond)
		return nil
	})
	require.Empty(t, got)
}

func TestSoakReportsError(t *testing.T) {
	got := soak(fault.Options{For: time.Hour}, func(caller int) error {
		if caller == 3 {
			return errors.New("broken")
		}
		return nil
	})
	require.Len(t, got, 1)
	require.Contains(t, got[0], "broken")
}

// A call that fails after the time of the soak fails the test, too.
func TestSoakReportsErrorOfLastCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		got := soak(fault.Options{For: time.Second, HeapSlope: -1, Goroutines: -1, Files: -1}, func(int) error {
			time.Sleep(time.Minute)
			return errors.New("broken")
		})
		require.Len(t, got, 1)
		require.Contains(t, got[0], "broken")
	})
}
