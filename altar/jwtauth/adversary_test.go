// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package jwtauth

import (
	"crypto"
	"encoding/base64"
	"encoding/json"
	"strings"
	"testing"

	"github.com/go-jose/go-jose/v4"
	"github.com/stretchr/testify/require"
)

// A signature in its JSON form may carry whatever else somebody writes into it,
// two full stops with other claims between them included: whom the token stands
// for must be read from what is signed.
func TestClaimsBesideTheSignedOnes(t *testing.T) {
	l := newLogin(t)
	key := newKey(t)
	l.publish(map[string]crypto.Signer{"k1": key})
	v, err := NewVerifier([]Issuer{{URL: l.URL, Audience: "tools"}}, nil)
	require.NoError(t, err)
	own := l.sign(t, key, "k1", jose.ES256, nil)
	_, err = v.VerifyToken(t.Context(), own)
	require.NoError(t, err)
	parts := strings.Split(own, ".")
	other := base64.RawURLEncoding.EncodeToString([]byte(`{"iss":"` + l.URL + `","sub":"admin","roles":["root"]}`))
	text, err := json.Marshal(map[string]string{"payload": parts[1], "protected": parts[0], "signature": parts[2], "x": "." + other + "."})
	require.NoError(t, err)
	id, err := v.VerifyToken(t.Context(), string(text))
	require.Nil(t, id)
	require.ErrorIs(t, err, ErrInvalid)
}
