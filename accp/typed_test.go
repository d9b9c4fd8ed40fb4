// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package accp

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// The short forms that typedKey knows are those of the schemas.
func TestTypedKeys(t *testing.T) {
	typed := map[string]bool{"amount": true, "chunk_index": true, "total_chunks": true, "is_final": true, "code": true, "retryable": true}
	n := 0
	for _, code := range []string{SchemaTransaction, SchemaStream, SchemaError} {
		s := builtin().byCode[code]
		for key, form := range s.keys {
			if typed[form.full] {
				require.Equal(t, form.full, typedKey(code, key), "%s %s", code, key)
				n++
			}
		}
	}
	require.Equal(t, 12, n)
}
