// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package strictjson

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// Both readers agree with JSONTestSuite: they read the valid texts, except two with a name given twice, and refuse the
// invalid ones. Of the texts that each reader may decide about, they read those in valid UTF-8 without lone surrogates.
func TestJSONTestSuite(t *testing.T) {
	files, err := filepath.Glob(filepath.Join(os.Getenv("FIVEWIRE_TESTDATA"), "JSONTestSuite", "test_parsing", "*.json"))
	require.NoError(t, err)
	if os.Getenv("FIVEWIRE_TESTDATA") == "" || len(files) == 0 {
		t.Skip("FIVEWIRE_TESTDATA has no folder JSONTestSuite")
	}
	duplicates := map[string]bool{"y_object_duplicated_key.json": true, "y_object_duplicated_key_and_value.json": true}
	counts := make(map[byte][2]int) // refused, read
	for _, f := range files {
		name := filepath.Base(f)
		data, err := os.ReadFile(f)
		require.NoError(t, err)
		_, err = Check(data, Options{MaxDepth: 1000})
		c := NewCursor(data, Options{MaxDepth: 1000})
		require.Equal(t, err == nil, c.Skip() && c.Err() == nil, "%s: the readers differ: %v, %v", name, err, c.Err())
		n := counts[name[0]]
		if err == nil {
			n[1]++
		} else {
			n[0]++
		}
		counts[name[0]] = n
		switch name[0] {
		case 'y':
			require.Equal(t, !duplicates[name], err == nil, "%s: %v", name, err)
		case 'n':
			require.Error(t, err, name)
		}
	}
	require.Equal(t, map[byte][2]int{'y': {2, 93}, 'n': {188, 0}, 'i': {24, 11}}, counts)
}
