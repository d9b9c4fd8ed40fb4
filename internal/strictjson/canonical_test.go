// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package strictjson_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/internal/strictjson"
)

// Two values have one canonical text exactly if they are equal.
func TestAppendCanonicalAgreesWithEqual(t *testing.T) {
	texts := []string{`{}`, `[]`, `null`, `true`, `""`, `0`, `-0`, `0e5`, `1`, `1.0`, `10e-1`, `-1`, `1e400`, `10e399`, `1e1000000000000000000000`,
		`"a"`, `"\u0061"`, `"1"`, `[1,2]`, `[2,1]`, `[1,[2]]`, `[[1],2]`, `[1,2,[]]`, `{"a":1,"b":[1.50]}`, `{ "b" : [15e-1], "\u0061":1 }`,
		`{"a":1,"b":1}`, `{"a":{"b":1}}`, `{"a":1}`, `{"a":null}`, `{"a,":1}`, `"a,"`, `9007199254740993`, `9007199254740992`}
	for _, a := range texts {
		for _, b := range texts {
			x, err := strictjson.Check([]byte(a), strictjson.Options{})
			require.NoError(t, err)
			y, err := strictjson.Check([]byte(b), strictjson.Options{})
			require.NoError(t, err)
			same := string(strictjson.AppendCanonical(nil, x)) == string(strictjson.AppendCanonical(nil, y))
			require.Equal(t, strictjson.Equal(x, y), same, "%s and %s", a, b)
		}
	}
}
