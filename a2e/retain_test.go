// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package a2e

import (
	"context"
	"errors"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// What a session remembers of its messages does not keep them: strings of a
// message share the memory of its whole line (A2E-153).
func TestSessionKeepsNoMessages(t *testing.T) {
	h := NewHost(&HostOptions{Fallback: HandlerFunc(func(context.Context, *Call) (any, error) { return nil, errors.New("no") })})
	h.AddPlugin(&Plugin{Name: "p", Capability: "demo"})
	s, err := h.newSession(nowhere{})
	require.NoError(t, err)
	pad := strings.Repeat("x", 1<<20)
	heap := func() int64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	before := heap()
	s.feed([]byte(`{"a2e":"1.0","type":"handshake/req","id":"h","ts":1,"agent_id":"ann","agent_caps":["cancel","demo"],"pad":"` + pad + `"}`))
	require.Equal(t, "ann", s.AgentID())
	require.True(t, s.HasCapability("cancel"))
	require.True(t, s.HasCapability("demo"))
	for i := range 50 {
		s.feed([]byte(`{"a2e":"1.0","type":"gadget/use/req","id":"` + strings.Repeat("i", i+1) + `","ts":1,"pad":"` + pad + `"}`))
	}
	require.Eventually(t, func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return len(s.calls) == 0
	}, 10*time.Second, time.Millisecond)
	require.Less(t, heap()-before, int64(10<<20))
	s.abort()
	<-s.finished
}

// nowhere is a sink without a bottom.
type nowhere struct{}

func (nowhere) put([]byte)                 {}
func (nowhere) leave([]byte)               {}
func (nowhere) help()                      {}
func (nowhere) wait(context.Context) error { return nil }
func (nowhere) finish()                    {}

// The context of a call is one like any other, whether somebody looked at it before
// it ended or only afterwards.
func TestCallContext(t *testing.T) {
	parent, cancelParent := context.WithCancel(context.WithValue(t.Context(), testKey{}, "v"))
	defer cancelParent()
	early, late, orphan := &callContext{parent: parent}, &callContext{parent: parent}, &callContext{parent: parent}
	require.Equal(t, "v", early.Value(testKey{}))
	require.NoError(t, early.Err())
	child, cancel := context.WithTimeout(early, time.Hour)
	defer cancel()
	for _, c := range []*callContext{early, late} {
		c.end(context.DeadlineExceeded)
		c.end(ErrClosed)
		<-c.Done()
		require.ErrorIs(t, c.Err(), context.Canceled)
		require.Equal(t, context.DeadlineExceeded, context.Cause(c), "the first cause counts")
	}
	<-child.Done()
	require.Equal(t, context.DeadlineExceeded, context.Cause(child))
	_, ok := late.Deadline()
	require.False(t, ok)
	done := orphan.Done()
	cancelParent()
	<-done
	require.ErrorIs(t, orphan.Err(), context.Canceled)
}

type testKey struct{}
