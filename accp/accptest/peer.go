// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package accptest

import (
	"net/http"
	"testing"

	"github.com/fivewire/fivewire/internal/kit"
)

// A PeerStep is one thing that a scripted peer does. A step that fails ends the script and fails the test.
type PeerStep = kit.Step

// Receive waits for the next request, whose body must contain a text.
func Receive(want string) PeerStep { return kit.Receive(want) }

// Send answers the request with status 200.
func Send(text string) PeerStep { return kit.Send(text) }

// Answer sends the result of f for the message that was received last.
func Answer(f func(received string) string) PeerStep { return kit.Answer(f) }

// Cut cuts the connection of the request, which gets no response.
func Cut() PeerStep { return kit.Cut() }

// SendStatus answers the request with another status, and with further fields of the header.
func SendStatus(status int, header http.Header, text string) PeerStep {
	return kit.SendStatus(status, header, text)
}

// NewPeer returns a server that answers the frames of a client by a script. See [SkipGreeting].
func NewPeer(t testing.TB, steps ...PeerStep) *Server {
	t.Helper()
	return NewServer(t, kit.HTTP(t, "accptest", steps...))
}
