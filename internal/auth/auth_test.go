// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package auth_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/internal/auth"
)

type principal struct{ id string }

func idOf(p *principal) string { return p.id }

func TestKeysFindPrincipal(t *testing.T) {
	ann, bob := &principal{"ann"}, &principal{"bob"}
	given := map[string]*principal{"a1": ann, "a2": ann, "b": bob}
	keys, err := auth.NewKeys(given, idOf)
	require.NoError(t, err)
	given["c"] = bob // the table is a copy
	for key, want := range map[string]*principal{"a1": ann, "a2": ann, "b": bob, "c": nil, "": nil, "A1": nil, "a": nil} {
		require.Same(t, want, keys.Find(key), key)
	}
}

func TestNewKeysRefusesOpenTables(t *testing.T) {
	for name, keys := range map[string]map[string]*principal{
		"no key": nil, "empty key": {"": {"ann"}, "b": {"bob"}}, "nil principal": {"a": nil}, "empty id": {"a": {}},
	} {
		_, err := auth.NewKeys(keys, idOf)
		require.Error(t, err, name)
	}
}

func TestBearerReadsAuthorization(t *testing.T) {
	for header, want := range map[string]string{
		"Bearer x": "x", "bearer x": "x", "BEARER  x ": "x", "Bearer x y": "x y",
		"": "", "Bearer": "", "Bearer ": "", "Basic x": "", "x": "", " Bearer x": "",
	} {
		token, ok := auth.Bearer(header)
		require.Equal(t, want != "", ok, "%q", header)
		if ok {
			require.Equal(t, want, token)
		}
	}
}
