// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"context"
	"encoding/json"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/arc"
)

// The README describes the words, agents, tools, contracts and principals of the fixtures.
func TestREADMENamesFixtures(t *testing.T) {
	text, err := os.ReadFile("README.md")
	require.NoError(t, err)
	_, fixtures, ok := strings.Cut(string(text), "## Fixtures\n")
	require.True(t, ok)
	names := arcFixtures
	s, err := arc.NewServer(&arc.ServerOptions{Auth: arc.Auth{AllowAnonymous: true}})
	require.NoError(t, err)
	defer func() { require.NoError(t, s.Shutdown(context.Background())) }()
	arcFixtureAgents(s)
	for _, agent := range s.Agents() {
		names = append(names, agent.ID)
	}
	for _, d := range a2eTools().Definitions() {
		names = append(names, d.Name)
	}
	var manifest struct{ Contracts []struct{ Name string } }
	require.NoError(t, json.Unmarshal([]byte(altarManifest), &manifest))
	for _, c := range manifest.Contracts {
		names = append(names, c.Name)
	}
	for id := range altarIdentities {
		names = append(names, id)
	}
	require.Greater(t, len(names), 30)
	for _, name := range names {
		require.Contains(t, fixtures, "`"+name+"`")
	}
}
