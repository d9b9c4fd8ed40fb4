// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package wire_test

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/a2e/internal/wire"
)

func TestEqualJSON(t *testing.T) {
	for _, tt := range []struct {
		a, b string
		want bool
	}{
		{`{"a":1,"b":[2.0,"é"]}`, `{"b":[2,"\u00e9"],"a":1.0}`, true}, {`{"a":1}`, `{"a":1,"b":2}`, false}, {`[1]`, `[1,2]`, false},
		{`[1,2]`, `[1]`, false}, {`null`, `false`, false}, {`true`, `true`, true}, {`{"a":1}`, `{"b":1}`, false}, {`{`, `{`, false},
		{`100000000000000000000001`, `100000000000000000000000`, false},
	} {
		require.Equal(t, tt.want, wire.EqualJSON(json.RawMessage(tt.a), json.RawMessage(tt.b)), "%s %s", tt.a, tt.b)
	}
}
