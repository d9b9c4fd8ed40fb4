// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package statekey_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/fivewire/fivewire/internal/statekey"
	"github.com/fivewire/fivewire/store"
)

func TestJoinKeepsPlainParts(t *testing.T) {
	require.Equal(t, "task/a b.c~/é", statekey.Join("task", "a b.c~", "é"))
	require.Equal(t, "task/", statekey.Join("task", ""))
}

func TestJoinReplacesOtherParts(t *testing.T) {
	for _, part := range []string{"a/b", "a\x00b", "\xff", "~a", strings.Repeat("a", 201)} {
		key := statekey.Join("task", part)
		require.Len(t, key, len("task/~")+32, "key of part %q", part)
		require.NoError(t, store.ValidateName("key", key))
		require.NotEqual(t, key, statekey.Join("task", strings.TrimPrefix(key, "task/")), "the replaced part as a part")
	}
}

func TestJoinMapsDifferentPartsToDifferentKeys(t *testing.T) {
	part := rapid.OneOf(rapid.String(), rapid.SampledFrom([]string{"", "~", "/", "a/", "~A", statekey.Join("/")}))
	rapid.Check(t, func(t *rapid.T) {
		a := rapid.SliceOfN(part, 2, 2).Draw(t, "a")
		b := rapid.SliceOfN(part, 2, 2).Draw(t, "b")
		same := a[0] == b[0] && a[1] == b[1]
		require.Equal(t, same, statekey.Join(a...) == statekey.Join(b...), "keys of %q and %q", a, b)
	})
}

func TestDataRejectsOtherFormats(t *testing.T) {
	data, err := statekey.Data(statekey.Value("x"))
	require.NoError(t, err)
	require.Equal(t, "x", string(data))
	_, err = statekey.Data([]byte{7, 'x'})
	require.EqualError(t, err, "stored value: format 7, want format 1")
	_, err = statekey.Data(nil)
	require.EqualError(t, err, "stored value: no format byte, want format 1")
}

func TestDecodeReadsEncode(t *testing.T) {
	value, err := statekey.Encode(map[string]int{"n": 1})
	require.NoError(t, err)
	require.Equal(t, "\x01{\"n\":1}", string(value))
	var m map[string]int
	require.NoError(t, statekey.Decode(value, &m))
	require.Equal(t, map[string]int{"n": 1}, m)
	require.EqualError(t, statekey.Decode([]byte("\x07{}"), &m), "stored value: format 7, want format 1")
	require.Error(t, statekey.Decode([]byte("\x01no"), &m))
	_, err = statekey.Encode(func() {})
	require.Error(t, err)
}
