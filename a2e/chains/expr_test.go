// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package chains

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/internal/strictjson"
)

func TestExpressions(t *testing.T) {
	scope := strictjson.Value(`{"a":{"ok":true,"n":12345678901234567,"s":"x y","l":[10,{"k":1}],"e":[],"z":0.0}}`)
	for path, want := range map[string]string{`$.a.l.1.k`: `1`, `$.a.l.9`: `null`, `$.a.x.y`: `null`, `$`: string(scope)} {
		require.True(t, isPath(path))
		require.JSONEq(t, want, string(walk(scope, path)), path)
	}
	require.False(t, isPath("plain"))
	require.False(t, isPath("$x"))
	for condition, want := range map[string]bool{
		"": true, "$.a.ok": true, "$.a.e": false, "$.a.z": false, "$.a.none": false, "$.a.s": true, "$.a.l": true, "$.a": true,
		"$.a.n == 12345678901234567": true, "$.a.n > 12345678901234566": true, "$.a.n < 12345678901234567": false,
		"$.a.n >= 1.5": true, "$.a.n <= 1e400": true, "$.a.s == 'x y'": true, "$.a.s == x y": true, `$.a.s != "x y"`: false,
		"$.a.s > a": true, "$.a.s > 1": false, "$.a.ok >= true": false,
		`$.a.s > "a==b"`: true, `$.a.s != "=="`: true, `"a==b" == $.a.s`: false, `'x y' == $.a.s`: true, `"\">" < "<"`: true,
		"$.a.n > 12345678901234566.5": true, "$.a.n < 12345678901234567.5": true,
		"100000000000000000000001 > 100000000000000000000000": true, "1e22 <= 9999999999999999999999": false, "1e99999 > 1": true,
	} {
		got := holds(condition, func(path string) strictjson.Value { return walk(scope, path) })
		require.Equal(t, want, got, condition)
	}
}
