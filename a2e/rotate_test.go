// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package a2e_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/a2e"
)

// Audit files begin anew when they are full; the oldest go (A2E-146).
func TestRotatingFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit")
	f, err := a2e.OpenRotatingFile(path, 10, 2)
	require.NoError(t, err)
	for _, line := range []string{"one\n", "two\n", "three\n", "a line that is longer\n", "four\n"} {
		_, err := f.Write([]byte(line))
		require.NoError(t, err)
	}
	require.NoError(t, f.Close())
	require.NoError(t, f.Close())
	_, err = f.Write([]byte("x"))
	require.ErrorIs(t, err, os.ErrClosed)
	read := func(suffix string) string {
		data, err := os.ReadFile(path + suffix)
		require.NoError(t, err)
		return string(data)
	}
	require.Equal(t, "four\n", read(""))
	require.Equal(t, "a line that is longer\n", read(".1"))
	require.Equal(t, "three\n", read(".2"))
	_, err = os.Stat(path + ".3")
	require.ErrorIs(t, err, os.ErrNotExist)
	f, err = a2e.OpenRotatingFile(path, 0, 0)
	require.NoError(t, err)
	sink := a2e.AuditLog(f, nil)
	sink(a2e.AuditRecord{ReqID: "r"})
	require.NoError(t, f.Close())
	require.True(t, strings.HasPrefix(read(""), "four\n{"))
	_, err = a2e.OpenRotatingFile(filepath.Join(path, "no", "folder"), 0, 0)
	require.Error(t, err)
}
