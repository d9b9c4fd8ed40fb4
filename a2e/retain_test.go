// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package a2e

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/a2e/internal/session"
	"github.com/fivewire/fivewire/internal/kit"
	"github.com/fivewire/fivewire/internal/sendq"
)

// The ids that a session records do not retain its messages: strings of a message share the memory
// of its whole line (A2E-153).
func TestSessionKeepsNoMessages(t *testing.T) {
	h := newTestHost(t, &HostOptions{Fallback: HandlerFunc(func(context.Context, *Call) (any, error) { return nil, errors.New("no") })})
	h.AddPlugin(&Plugin{Name: "p", Capability: "demo"})
	s, err := h.newSession(nil, nowhere{}, "", extensions)
	require.NoError(t, err)
	pad := strings.Repeat("x", 1<<20)
	before := kit.Heap()
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
		return s.core.InFlight() == 0
	}, 10*time.Second, time.Millisecond)
	require.Less(t, kit.Heap()-before, int64(10<<20))
	s.abort(session.EndHost)
	<-s.finished
}

// nowhere is a sink that drops everything.
type nowhere struct{}

func (nowhere) put([]byte, sendq.Reservation) error                     { return nil }
func (nowhere) putControl([]byte, bool) error                           { return nil }
func (nowhere) reserve(context.Context, int) (sendq.Reservation, error) { return 0, nil }
func (nowhere) release(sendq.Reservation)                               {}

// A stream that ends inside a message is truncated, also if the session ends by the answer to that.
func TestStreamEndsInsideLastMessage(t *testing.T) {
	isClosed := false
	err := new(conn).readLines(newLineReader(strings.NewReader(`{"a2e":"1.0","type":`), nil), func() bool { return isClosed },
		func([]byte) {}, func(*Error) { isClosed = true })
	require.ErrorIs(t, err, ErrTruncated)
}
