// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package chains

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/internal/strictjson"
)

// randomValue returns a JSON value with about n members and elements, white space among them.
func randomValue(r *rand.Rand, n int) string {
	if n <= 1 {
		return []string{`1`, `"a\u0062"`, `null`, `{ }`, `[]`, `" \" ,"`}[r.IntN(6)]
	}
	var parts []string
	isList := r.IntN(2) == 0
	for n > 0 {
		part := 1 + r.IntN(max(n/(1+r.IntN(4)), 1))
		n -= part
		text := randomValue(r, part-1)
		if !isList {
			text = fmt.Sprintf(`"%s%d" : %s`, []string{"", "n", `\u0061`}[len(parts)%3], len(parts), text)
		}
		parts = append(parts, text)
	}
	if isList {
		return "[" + strings.Join(parts, ", ") + "\n]"
	}
	return "{" + strings.Join(parts, " ,") + "}"
}

// The index of a scope finds what a walk over its text finds (A2E-D48).
func TestScopeFindsWhatAWalkFinds(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	checked := func(text string) strictjson.Value {
		v, err := strictjson.Check([]byte(text), strictjson.Options{})
		require.NoError(t, err, text)
		return v
	}
	found := 0
	for range 50 {
		s := newScope(checked(fmt.Sprintf(`{"big": %s, "x":1, "n":{"a":2}}`, randomValue(r, 3000))))
		s.add("n", checked(randomValue(r, 3000)))
		s.add("b", checked(`{"c":3}`))
		for range 100 {
			var item strictjson.Value
			if r.IntN(4) == 0 {
				item = checked(randomValue(r, 20))
			}
			path := "$." + []string{"big", "n", "x", "b", "item", "missing"}[r.IntN(6)]
			for range r.IntN(5) {
				path += "." + []string{"0", "1", "2", "a2", "n1", "7", "500", "-1", "c"}[r.IntN(9)]
			}
			want := walk(s.all(item), path)
			got := s.find(path, item)
			require.Equal(t, string(strictjson.AppendCompact(nil, want)), string(strictjson.AppendCompact(nil, got)), path)
			if want.Kind() != 'n' {
				found++
			}
		}
	}
	require.Greater(t, found, 500)
	require.Equal(t, `{"n":[7],"x":1,"item":{"y":2},"m":3}`, func() string {
		s := newScope(checked(`{"n":1,"x":1,"item":{"y":2}}`))
		s.add("n", checked(`[7]`))
		s.add("m", checked(`3`))
		return string(s.all(nil))
	}())
}
