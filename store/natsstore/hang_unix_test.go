// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

//go:build unix

package natsstore_test

import (
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/internal/testkit"
	"github.com/fivewire/fivewire/store"
	"github.com/fivewire/fivewire/store/natsstore"
)

// TestServerHangs: while the server is stopped, every call without a deadline ends as unknown, even
// if other writes fill the connection. Afterwards the store works again.
func TestServerHangs(t *testing.T) {
	address := testkit.FreeAddress(t)
	server := exec.Command(os.Args[0])
	server.Env = append(os.Environ(), childDir+"="+t.TempDir(), childRound+"="+onlyServe+address)
	stdin, err := server.StdinPipe() // its end is that of the server
	require.NoError(t, err)
	require.NoError(t, server.Start())
	t.Cleanup(func() {
		_ = server.Process.Kill()
		_ = server.Wait()
		_ = stdin.Close()
	})
	var s *natsstore.Store
	require.Eventually(t, func() bool {
		s, err = natsstore.Open(t.Context(), "nats://"+address, nil)
		return err == nil
	}, time.Minute, 50*time.Millisecond)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	rev, err := s.Create(t.Context(), "k", nil, 0)
	require.NoError(t, err)
	_, err = s.Append(t.Context(), "s", "before", nil, 0)
	require.NoError(t, err)
	natsstore.GivesUpAfter(s, 2*time.Second)
	large := make([]byte, s.MaxValue())
	calls := map[string]func() error{
		"get":    func() error { _, err := s.Get(t.Context(), "k"); return err },
		"create": func() error { _, err := s.Create(t.Context(), "new", nil, 0); return err },
		"update": func() error { _, err := s.Update(t.Context(), "k", nil, rev, 0); return err },
		"delete": func() error { return s.Delete(t.Context(), "new", 0) },
		"append": func() error { _, err := s.Append(t.Context(), "s", "id", nil, 0); return err },
		"read":   func() error { _, err := s.Read(t.Context(), "s", 0, 0); return err },
		"ack":    func() error { return s.Ack(t.Context(), "other", 1000) },
		"expire": func() error { return s.Expire(t.Context(), "other", time.Hour) },
		"large":  func() error { _, err := s.Append(t.Context(), "large", "", large, 0); return err },
		"list": func() error {
			for _, err := range s.List(t.Context(), "") {
				return err
			}
			return nil
		},
	}
	const rounds = 8
	type result struct {
		name string
		err  error
	}
	results := make(chan result, rounds*len(calls))
	require.NoError(t, server.Process.Signal(syscall.SIGSTOP))
	var status syscall.WaitStatus
	_, err = syscall.Wait4(server.Process.Pid, &status, syscall.WUNTRACED, nil)
	require.NoError(t, err)
	require.True(t, status.Stopped())
	for range rounds {
		for name, call := range calls {
			go func() { results <- result{name, call()} }()
		}
	}
	for range rounds * len(calls) {
		select {
		case r := <-results:
			require.ErrorIs(t, r.err, store.ErrUnknown, r.name)
		case <-time.After(40 * time.Second):
			t.Fatal("a call hangs with the server")
		}
	}
	require.NoError(t, server.Process.Signal(syscall.SIGCONT))
	require.Eventually(t, func() bool {
		_, err := s.Append(t.Context(), "s", "after", nil, 0)
		return err == nil
	}, time.Minute, 50*time.Millisecond)
	natsstore.GivesUpAfter(s, 40*time.Second)
	for _, name := range []string{"get", "read", "list", "ack", "expire"} {
		require.NoError(t, calls[name](), name)
	}
}
