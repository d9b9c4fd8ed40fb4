// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package web

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// Only JSON, with any parameters, or no type at all (AIR-D70).
func TestJSONContent(t *testing.T) {
	for text, want := range map[string]bool{
		"": true, "application/json": true, "Application/JSON; charset=utf-8": true, "application/json; x": true,
		"text/plain": false, "application/didcomm-signed+json": false, "application/jsonx": false, "json": false, ";": false,
	} {
		require.Equal(t, want, JSONContent(text), text)
	}
}

func TestOriginIsLowerCaseWithoutDefaultPort(t *testing.T) {
	for text, want := range map[string]string{
		"https://Relay.Example:443/inbox?x=1": "https://relay.example", "https://relay.example:8443/": "https://relay.example:8443",
		"http://[::1]:80/x": "http://[::1]", "http://relay.example:443": "http://relay.example:443", ":": "",
	} {
		require.Equal(t, want, Origin(text), text)
	}
}
