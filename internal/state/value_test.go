// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package state_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/fivewire/fivewire/internal/state"
	"github.com/fivewire/fivewire/store"
)

func TestJoinKeepsPlainParts(t *testing.T) {
	require.Equal(t, "task/a b.c~/é", state.Join("task", "a b.c~", "é"))
	require.Equal(t, "task/", state.Join("task", ""))
}

func TestJoinReplacesOtherParts(t *testing.T) {
	for _, part := range []string{"a/b", "a\x00b", "\xff", "~a", strings.Repeat("a", 201)} {
		key := state.Join("task", part)
		require.Len(t, key, len("task/~")+32, "key of part %q", part)
		require.NoError(t, store.ValidateName("key", key))
		require.NotEqual(t, key, state.Join("task", strings.TrimPrefix(key, "task/")), "the replaced part as a part")
	}
}

func TestJoinMapsDifferentPartsToDifferentKeys(t *testing.T) {
	part := rapid.OneOf(rapid.String(), rapid.SampledFrom([]string{"", "~", "/", "a/", "~A", state.Join("/")}))
	rapid.Check(t, func(t *rapid.T) {
		a := rapid.SliceOfN(part, 2, 2).Draw(t, "a")
		b := rapid.SliceOfN(part, 2, 2).Draw(t, "b")
		same := a[0] == b[0] && a[1] == b[1]
		require.Equal(t, same, state.Join(a...) == state.Join(b...), "keys of %q and %q", a, b)
	})
}

func TestDataRejectsOtherFormats(t *testing.T) {
	data, err := state.Data(state.Value("x"))
	require.NoError(t, err)
	require.Equal(t, "x", string(data))
	_, err = state.Data([]byte{7, 'x'})
	require.EqualError(t, err, "stored value: format 7, want format 1")
	_, err = state.Data(nil)
	require.EqualError(t, err, "stored value: no format byte, want format 1")
}

func TestDecodeReadsEncode(t *testing.T) {
	value, err := state.Encode(map[string]int{"n": 1})
	require.NoError(t, err)
	require.Equal(t, "\x01{\"n\":1}", string(value))
	var m map[string]int
	require.NoError(t, state.Decode(value, &m))
	require.Equal(t, map[string]int{"n": 1}, m)
	require.EqualError(t, state.Decode([]byte("\x07{}"), &m), "stored value: format 7, want format 1")
	require.Error(t, state.Decode([]byte("\x01no"), &m))
	_, err = state.Encode(func() {})
	require.Error(t, err)
}

func TestDecodeWithReadsEncodeWith(t *testing.T) {
	value := state.EncodeWith(map[string]int{"n": 1}, []byte("a\nb"))
	require.Equal(t, "\x01{\"n\":1}\na\nb", string(value))
	var m map[string]int
	data, err := state.DecodeWith(value, &m)
	require.NoError(t, err)
	require.Equal(t, "a\nb", string(data))
	require.Equal(t, map[string]int{"n": 1}, m)
	for _, bad := range []string{"", "\x07{}\n", "\x01{}", "\x01no\n"} {
		_, err = state.DecodeWith([]byte(bad), &m)
		require.ErrorContains(t, err, "stored value: ", "%q", bad)
	}
}
