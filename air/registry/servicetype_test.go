// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package registry_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/air/registry"
)

// Service types (AIR-136..139).
func TestServiceTypes(t *testing.T) {
	tests := map[string]registry.ServiceType{
		"A2AInbox": {Reserved: "A2A"}, "AIRTrustScore": {Reserved: "AIR"}, "DIDCommMessaging": {Reserved: "DIDComm"}, "a2a": {},
		"https://x.example/t": {URI: true}, "http://x.example/t": {}, "https:///t": {}, "Acme.Thing": {},
	}
	for name, want := range tests {
		got, err := registry.ParseServiceType(name)
		require.NoError(t, err)
		require.Equal(t, want, got, name)
	}
	_, err := registry.ParseServiceType("")
	require.ErrorIs(t, err, registry.ErrBadServiceType)
}
