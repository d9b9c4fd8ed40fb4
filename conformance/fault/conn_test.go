// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package fault_test

import (
	"bytes"
	"context"
	"io"
	"net"
	"os"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/conformance/fault"
)

// exchange sends two messages over a connection with faults, and returns the bytes that arrived and the
// errors of the sends.
func exchange(t *testing.T, plan *fault.Plan, isListener bool) (got string, errs []error) {
	t.Helper()
	defer plan.Close()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	var dialPlan *fault.Plan
	if isListener {
		l = fault.Listener(l, plan)
	} else {
		dialPlan = plan
	}
	arrived := make(chan string, 1)
	go func() {
		c, err := l.Accept()
		if err != nil {
			arrived <- ""
			return
		}
		defer c.Close()
		data, _ := io.ReadAll(c)
		arrived <- string(data)
	}()
	c, err := fault.Dialer(nil, dialPlan)(t.Context(), "tcp", l.Addr().String())
	if err != nil {
		l.Close()
		return <-arrived, []error{err}
	}
	for _, text := range []string{"first.", "second."} {
		_, err := c.Write([]byte(text))
		errs = append(errs, err)
	}
	c.Close()
	return <-arrived, errs
}

func TestSendHasFault(t *testing.T) {
	for _, tt := range []struct {
		action fault.Action
		want   string // that arrives
		fails  [2]bool
	}{
		{fault.Drop, "second.", [2]bool{}},
		{fault.Duplicate, "first.first.second.", [2]bool{}},
		{fault.Reorder, "second.first.", [2]bool{}},
		{fault.Delay, "first.second.", [2]bool{}},
		{fault.Cut, "", [2]bool{true, true}},
		{fault.HalfClose, "", [2]bool{true, true}},
		{fault.ErrorBefore, "second.", [2]bool{true, false}},
		{fault.ErrorAfter, "first.second.", [2]bool{true, false}},
	} {
		t.Run(string(tt.action), func(t *testing.T) {
			plan := &fault.Plan{Rules: []fault.Rule{{Action: tt.action, Op: "send", Limit: 1, Delay: time.Millisecond}}}
			got, errs := exchange(t, plan, false)
			require.Equal(t, tt.want, got)
			for i, err := range errs {
				require.Equal(t, tt.fails[i], err != nil, "error of send %d: %v", i, err)
			}
			require.Equal(t, 1, plan.Count(tt.action))
			require.Len(t, plan.Log(), 1)
		})
	}
}

func TestBytesAreTruncatedAndCorrupted(t *testing.T) {
	for seed := range uint64(20) {
		got, errs := exchange(t, &fault.Plan{Seed: seed, Rules: []fault.Rule{{Action: fault.Truncate, Op: "send"}}}, false)
		require.Error(t, errs[0])
		require.Less(t, len(got), len("first."))
		require.Equal(t, "first."[:len(got)], got)
		got, errs = exchange(t, &fault.Plan{Seed: seed, Rules: []fault.Rule{{Action: fault.Corrupt, Op: "send", Limit: 1}}}, false)
		require.NoError(t, errs[0])
		differences := 0
		for i := range got {
			if got[i] != "first.second."[i] {
				differences++
			}
		}
		require.Equal(t, 1, differences, "got %q", got)
	}
}

func TestReceiveHasFault(t *testing.T) {
	for action, want := range map[fault.Action]string{
		fault.Cut: "", fault.ErrorBefore: "", fault.Delay: "first.second.",
	} {
		plan := &fault.Plan{Rules: []fault.Rule{{Action: action, Op: "receive", Limit: 1, Delay: time.Millisecond}}}
		got, _ := exchange(t, plan, true)
		require.Equal(t, want, got, "%s", action)
	}
}

func TestConnectionIsRefused(t *testing.T) {
	_, errs := exchange(t, &fault.Plan{Rules: []fault.Rule{{Action: fault.Drop, Op: "dial"}}}, false)
	require.ErrorIs(t, errs[0], fault.ErrInjected)
	plan := &fault.Plan{Rules: []fault.Rule{{Action: fault.Drop, Op: "accept", Limit: 1}}}
	defer plan.Close()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	go func() {
		c, err := fault.Listener(l, plan).Accept()
		if err == nil {
			_, _ = c.Write([]byte("x"))
			c.Close()
		}
	}()
	for _, want := range []string{"", "x"} {
		c, err := net.Dial("tcp", l.Addr().String())
		require.NoError(t, err)
		data, _ := io.ReadAll(c)
		require.Equal(t, want, string(data))
		c.Close()
	}
}

func TestHangEndsWithClose(t *testing.T) {
	one, other := net.Pipe()
	defer other.Close()
	plan := &fault.Plan{Rules: []fault.Rule{{Action: fault.Hang, Op: "receive", Delay: time.Hour}}}
	defer plan.Close()
	c := fault.ReadWriteCloser(one, plan)
	end := make(chan error)
	go func() {
		_, err := c.Read(make([]byte, 1))
		end <- err
	}()
	require.NoError(t, c.Close())
	require.Error(t, <-end)
}

func TestCrashCutsConnections(t *testing.T) {
	one, other := net.Pipe()
	plan := &fault.Plan{}
	c := fault.ReadWriteCloser(one, plan)
	end := make(chan error)
	go func() {
		_, err := c.Read(make([]byte, 1))
		end <- err
	}()
	go func() {
		_, err := io.Copy(&bytes.Buffer{}, other)
		end <- err
	}()
	plan.Crash()
	<-end
	_, err := c.Write([]byte("x"))
	require.Error(t, err)
	<-end
}

func TestViewsWithNilPlanAreTheirArguments(t *testing.T) {
	one, other := net.Pipe()
	defer other.Close()
	defer one.Close()
	require.Same(t, one, fault.ReadWriteCloser(one, nil))
	dial := func(context.Context, string, string) (net.Conn, error) { return one, nil }
	c, err := fault.Dialer(dial, nil)(t.Context(), "tcp", "x")
	require.NoError(t, err)
	require.Same(t, one, c)
}

// TestDeadlineEndsFault: a deadline ends a call that a fault withholds, as that of a silent peer, and the connection
// works afterwards.
func TestDeadlineEndsFault(t *testing.T) {
	for _, rule := range []fault.Rule{
		{Action: fault.Hang, Op: "send|receive", Delay: time.Hour, Limit: 3},
		{Action: fault.Delay, Op: "send|receive", Delay: 1 << 60, Limit: 3},
	} {
		synctest.Test(t, func(t *testing.T) {
			near, far := net.Pipe()
			plan := &fault.Plan{Rules: []fault.Rule{rule}}
			defer plan.Close()
			dial := func(context.Context, string, string) (net.Conn, error) { return near, nil }
			c, err := fault.Dialer(dial, plan)(t.Context(), "tcp", "address")
			require.NoError(t, err)
			defer c.Close()
			b := make([]byte, 4)
			time.AfterFunc(time.Second, func() { _ = c.SetReadDeadline(time.Now()) }) // while it reads
			_, err = c.Read(b)
			require.ErrorIs(t, err, os.ErrDeadlineExceeded)
			start := time.Now()
			require.NoError(t, c.SetDeadline(start.Add(time.Second)))
			_, err = c.Read(b)
			require.ErrorIs(t, err, os.ErrDeadlineExceeded)
			require.NoError(t, c.SetWriteDeadline(start.Add(2*time.Second)))
			_, err = c.Write(b)
			require.ErrorIs(t, err, os.ErrDeadlineExceeded)
			require.Equal(t, 2*time.Second, time.Since(start))

			require.NoError(t, c.SetDeadline(time.Time{}))
			go func() { _, _ = far.Write([]byte("text")) }()
			n, err := c.Read(b)
			require.NoError(t, err)
			require.Equal(t, "text", string(b[:n]))
		})
	}
}
