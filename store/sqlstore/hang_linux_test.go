// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package sqlstore_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/store"
)

// serverProcesses are the process of PostgreSQL and its children.
func serverProcesses(t *testing.T, dir string) (pids []int) {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(dir, "data", "postmaster.pid"))
	require.NoError(t, err)
	first, _, _ := strings.Cut(string(data), "\n")
	server, err := strconv.Atoi(first)
	require.NoError(t, err)
	pids = append(pids, server)
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	require.NoError(t, err)
	for _, path := range stats {
		text, err := os.ReadFile(path)
		if err != nil {
			continue // ended since
		}
		var state string
		var parent int
		_, rest, _ := strings.Cut(string(text), ") ")
		if _, err := fmt.Sscan(rest, &state, &parent); err == nil && parent == server {
			pid, err := strconv.Atoi(filepath.Base(filepath.Dir(path)))
			require.NoError(t, err)
			pids = append(pids, pid)
		}
	}
	return pids
}

// TestServerHangs: while all processes of PostgreSQL are stopped, every call without a deadline ends
// as unknown, and afterwards the store works again.
func TestServerHangs(t *testing.T) {
	d := postgres(t)
	dir := os.Getenv("FIVEWIRE_POSTGRES_DIR")
	if dir == "" {
		t.Skip("needs to stop PostgreSQL: FIVEWIRE_POSTGRES_DIR is not set")
	}
	d.opts.OutageTimeout = time.Second
	s := d.open(t)
	rev, err := s.Create(t.Context(), "k", nil, 0)
	require.NoError(t, err)
	_, err = s.Append(t.Context(), "s", "before", nil, 0)
	require.NoError(t, err)
	calls := map[string]func() error{
		"get":    func() error { _, err := s.Get(t.Context(), "k"); return err },
		"create": func() error { _, err := s.Create(t.Context(), "new", nil, 0); return err },
		"update": func() error { _, err := s.Update(t.Context(), "k", nil, rev, 0); return err },
		"delete": func() error { return s.Delete(t.Context(), "new", 0) },
		"append": func() error { _, err := s.Append(t.Context(), "s", "id", nil, 0); return err },
		"read":   func() error { _, err := s.Read(t.Context(), "s", 0, 0); return err },
		"ack":    func() error { return s.Ack(t.Context(), "other", 1) },
		"expire": func() error { return s.Expire(t.Context(), "other", time.Hour) },
		"wait":   func() error { return s.Wait(t.Context(), "s", 0) },
		"list": func() error {
			for _, err := range s.List(t.Context(), "") {
				return err
			}
			return nil
		},
	}
	pids := serverProcesses(t, dir)
	require.Greater(t, len(pids), 3)
	signal := func(how syscall.Signal) {
		for _, pid := range pids {
			_ = syscall.Kill(pid, how)
		}
	}
	t.Cleanup(func() { signal(syscall.SIGCONT) })
	signal(syscall.SIGSTOP)
	type result struct {
		name string
		err  error
		took time.Duration
	}
	results := make(chan result, len(calls))
	for name, call := range calls {
		go func() {
			start := time.Now()
			err := call()
			results <- result{name, err, time.Since(start)}
		}()
	}
	for range calls {
		select {
		case r := <-results:
			require.ErrorIs(t, r.err, store.ErrUnknown, r.name)
			require.Less(t, r.took, 5*time.Second, r.name)
		case <-time.After(10 * time.Second):
			t.Fatal("a call hangs with the server")
		}
	}
	signal(syscall.SIGCONT)
	require.Eventually(t, func() bool {
		_, err := s.Append(t.Context(), "s", "after", nil, 0)
		return err == nil
	}, 20*time.Second, 50*time.Millisecond)
	for _, name := range []string{"get", "read", "list", "wait", "ack", "expire"} {
		require.NoError(t, calls[name](), name)
	}
}
