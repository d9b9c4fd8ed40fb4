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

	"github.com/fivewire/fivewire/store/natsstore"
	"github.com/fivewire/fivewire/store/natsstore/embedded"
)

func TestStatus(t *testing.T) {
	dir := t.TempDir()
	s, err := embedded.Open(t.Context(), dir, nil)
	require.NoError(t, err)
	_, err = s.Create(t.Context(), "some key", []byte("some value"), 0)
	require.NoError(t, err)
	require.NoError(t, s.Close())
	check := func(args ...string) (int, *natsstore.Report) {
		var out, errors bytes.Buffer
		code := run(args, &out, &errors)
		if code == 2 {
			require.NotEmpty(t, errors.String())
			return code, nil
		}
		var r natsstore.Report
		require.NoError(t, json.Unmarshal(out.Bytes(), &r))
		return code, &r
	}
	code, r := check(dir)
	require.Zero(t, code)
	require.Equal(t, 1, r.Messages)
	blocks, err := filepath.Glob(filepath.Join(dir, "jetstream", "*", "streams", "fivewire_kv", "msgs", "*.blk"))
	require.NoError(t, err)
	require.Len(t, blocks, 1)
	data, err := os.ReadFile(blocks[0])
	require.NoError(t, err)
	data[bytes.Index(data, []byte("some value"))] ^= 1
	require.NoError(t, os.WriteFile(blocks[0], data, 0o600))
	code, r = check(dir)
	require.Equal(t, 1, code)
	require.EqualValues(t, 1, r.Damage[0].Position)
	code, _ = check()
	require.Equal(t, 2, code)
	for _, other := range []string{dir + " missing", t.TempDir(), filepath.Dir(dir), blocks[0]} {
		code, _ = check(other)
		require.Equal(t, 2, code, other)
	}
	var help, errs bytes.Buffer
	require.Zero(t, run([]string{"-h"}, &help, &errs))
	require.Contains(t, help.String(), "Usage: storecheck DIR")
	require.Empty(t, errs.String())
}
