// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package auth_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/internal/auth"
	"github.com/fivewire/fivewire/internal/budget"
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

// Different tenants and ids never share a name, and none has that of an unauthenticated caller.
func TestPrincipalsHaveDifferentNames(t *testing.T) {
	names := map[string]bool{budget.Anonymous("2001:db8::1"): true, budget.Anonymous(""): true}
	tenants := []string{"", "a", "/", "a/b", `"`, `"a`, `b"/c`, `"a/b"`, `"a/b"/c`, "b/c", "c", "64", "\x00anonymous 2001:db8::"}
	for _, tenant := range tenants {
		for _, id := range tenants {
			name := auth.Name(tenant, id)
			require.NotContains(t, names, name, "%q %q", tenant, id)
			names[name] = true
		}
	}
}
