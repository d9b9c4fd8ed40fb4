// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package a2etest

import (
	"io"
	"testing"

	"github.com/fivewire/fivewire/internal/kit"
)

// A PeerStep is one thing that a scripted peer does. A step that fails ends the script and fails the test.
type PeerStep = kit.Step

// Receive waits for the next line, which must contain a text.
func Receive(want string) PeerStep { return kit.Receive(want) }

// Send sends a line.
func Send(text string) PeerStep { return kit.Send(text) }

// Answer sends the result of f for the message that was received last.
func Answer(f func(received string) string) PeerStep { return kit.Answer(f) }

// Cut cuts the connection.
func Cut() PeerStep { return kit.Cut() }

// NewPeer returns a connection to a host, or to an agent, that follows a script.
func NewPeer(t testing.TB, steps ...PeerStep) io.ReadWriteCloser {
	t.Helper()
	return kit.Lines(t, "a2etest", steps...)
}
