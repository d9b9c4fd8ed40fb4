// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package jwt

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/go-jose/go-jose/v4"
	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/internal/strictjson"
)

// wycheproof is a file of cases of the project Wycheproof.
type wycheproof struct {
	NumberOfTests int
	TestGroups    []struct {
		Comment         string
		Public, Private json.RawMessage // a key or a key set
		Tests           []struct {
			TCID   int `json:"tcId"`
			Result string
			JWS    json.RawMessage
			JWE    json.RawMessage
		}
	}
}

// text returns the text of a JSON string, or other JSON as it is.
func (c *wycheproof) text(raw json.RawMessage) string {
	if s, ok := strictjson.Value(raw).Text(); ok {
		return s
	}
	return string(raw)
}

// Every case has the result of the corpus, except those listed with a reason.
func TestWycheproof(t *testing.T) {
	dir := os.Getenv("FIVEWIRE_TESTDATA")
	if dir == "" {
		t.Skip("FIVEWIRE_TESTDATA is not set")
	}
	const symmetric = "HS256, HS384 and HS512 are always refused"
	for _, tt := range []struct {
		file                     string
		total, accepted, refused int // cases; accepted and refused as the corpus has it
		differences              map[string][]int
	}{
		{"json_web_signature.json", 401, 32, 355, map[string][]int{
			symmetric:                         {1, 348, 352, 357, 358, 359, 372, 373, 376, 377},
			"the key is for PS256, not PS384": {346, 350},
			"the key is for ES521, which is not an algorithm": {347, 351},
		}},
		{"json_web_key.json", 26, 1, 21, map[string][]int{symmetric: {2, 13, 14, 15}}},
		{"json_web_crypto.json", 83, 2, 77, map[string][]int{
			symmetric:                            {1, 48},
			"encrypted tokens are not supported": {50, 67},
		}},
	} {
		data, err := os.ReadFile(filepath.Join(dir, "jose", tt.file))
		require.NoError(t, err)
		var c wycheproof
		require.NoError(t, json.Unmarshal(data, &c))
		reasons := map[int]string{}
		for reason, ids := range tt.differences {
			for _, id := range ids {
				reasons[id] = reason
			}
		}
		total, accepted, refused := 0, 0, 0
		for _, g := range c.TestGroups {
			keys := g.Public
			if len(keys) == 0 {
				keys = g.Private
			}
			for _, test := range g.Tests {
				total++
				got := "invalid"
				raw := test.JWS
				if raw == nil {
					raw = test.JWE
				}
				if wycheproofAccepts(t, keys, c.text(raw)) {
					got = "valid"
				}
				reason, isListed := reasons[test.TCID]
				delete(reasons, test.TCID)
				if (got != test.Result) != isListed {
					t.Errorf("%s %d (%s): got %s, want %s, listed difference %q",
						tt.file, test.TCID, g.Comment, got, test.Result, reason)
				}
				if got == test.Result && got == "valid" {
					accepted++
				} else if got == test.Result {
					refused++
				}
			}
		}
		require.Empty(t, reasons, tt.file)
		require.Equal(t, c.NumberOfTests, total, tt.file)
		require.Equal(t, fmt.Sprint(tt.total, tt.accepted, tt.refused), fmt.Sprint(total, accepted, refused), tt.file)
	}
}

func wycheproofAccepts(t *testing.T, keys json.RawMessage, token string) bool {
	t.Helper()
	if strictjson.Value(keys).Get("keys") == nil {
		keys = fmt.Appendf(nil, `{"keys":[%s]}`, keys)
	}
	set, err := parseKeys(keys)
	require.NoError(t, err)
	parsed, _, err := parseForm(token)
	if err != nil {
		require.ErrorIs(t, err, ErrInvalid)
		return false
	}
	s := source{issuer: Issuer{URL: home, Audience: "api"}}
	require.NoError(t, s.init())
	if parsed.jws, err = jose.ParseSignedCompact(token, s.algorithms); err != nil {
		return false
	}
	isValid, _ := set.verify(parsed)
	return isValid
}
