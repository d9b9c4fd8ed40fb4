// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/store/sqlstore"
)

func TestStatus(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state.db")
	s, err := sqlstore.Open(t.Context(), path, nil)
	require.NoError(t, err)
	_, err = s.Create(t.Context(), "some key", []byte("some value"), 0)
	require.NoError(t, err)
	require.NoError(t, s.Close())
	check := func(args ...string) (int, *sqlstore.Report) {
		var out, errors bytes.Buffer
		code := run(t.Context(), args, &out, &errors)
		if code == 2 {
			require.NotEmpty(t, errors.String())
			return code, nil
		}
		var r sqlstore.Report
		require.NoError(t, json.Unmarshal(out.Bytes(), &r))
		return code, &r
	}
	before, err := os.ReadFile(path)
	require.NoError(t, err)
	code, r := check(path)
	require.Zero(t, code)
	require.Equal(t, 1, r.Entries)
	require.EqualValues(t, 1, r.Last)
	require.EqualValues(t, 1, r.Mark)

	at := bytes.Index(before, []byte("some value"))
	require.Positive(t, at)
	damaged := bytes.Clone(before)
	damaged[at] ^= 1
	require.NoError(t, os.WriteFile(path, damaged, 0o600))
	code, r = check(path)
	require.Equal(t, 1, code)
	require.Equal(t, 1, r.Damaged)
	require.Equal(t, "some key", r.Damage[0].Key)

	require.NoError(t, os.WriteFile(path, bytes.Repeat([]byte("no database "), 1000), 0o600))
	code, r = check(path)
	require.Equal(t, 1, code)
	require.Equal(t, 1, r.Damaged)

	require.NoError(t, os.WriteFile(path, before, 0o600))
	require.NoError(t, os.Truncate(path, 4096))
	code, _ = check(path)
	require.Equal(t, 1, code)

	code, _ = check(path + " missing")
	require.Equal(t, 2, code)
	code, _ = check()
	require.Equal(t, 2, code)
	var help, errs bytes.Buffer
	require.Equal(t, 2, run(t.Context(), []string{t.TempDir()}, &help, &errs))
	require.Contains(t, errs.String(), "is a directory")
	errs.Reset()
	require.Zero(t, run(t.Context(), []string{"-h"}, &help, &errs))
	require.Contains(t, help.String(), "Usage: storecheck FILE")
	require.Empty(t, errs.String())
}
