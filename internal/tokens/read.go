// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package tokens

import (
	"encoding/base64"
	"strings"

	"github.com/fivewire/fivewire/internal/strictjson"
)

// MaxToken bounds a token in bytes.
const MaxToken = 64 << 10

// read reads the claims of a token that is not verified yet. It takes the compact
// form alone: libraries also take the JSON form, in which somebody may write what
// he likes beside the claims that are signed.
func read(token string) (claims strictjson.Value, err error) {
	parts := strings.SplitN(token, ".", 4)
	if len(token) > MaxToken || len(parts) != 3 || strings.ContainsFunc(token, foreign) {
		return nil, Invalid("not a signed JWT")
	}
	header, err := object(parts[0])
	if err != nil {
		return nil, err
	}
	if header.Get("crit") != nil { // RFC 7515, 4.1.11: nothing that could stand there is understood
		return nil, Invalid("a critical header")
	}
	if typ, ok := header.Get("typ").Text(); ok && otherKind(typ) {
		return nil, Invalid("another kind of JWT")
	}
	if claims, err = object(parts[1]); err != nil {
		return nil, err
	}
	for m := claims.Members(); m.Next(); {
		for _, known := range [...]string{"iss", "aud", "exp", "nbf"} {
			if name := string(m.Name); name != known && strings.EqualFold(name, known) {
				return nil, Invalid("a claim like " + known) // which encoding/json takes for it
			}
		}
	}
	for _, name := range [...]string{"exp", "nbf"} {
		if v := claims.Get(name); !v.Absent() && v.Kind() != '0' {
			return nil, Invalid(name + " is no number") // encoding/json takes a text of digits for one
		}
	}
	return claims, nil
}

// foreign reports whether r is none of the characters of a token. Decoders pass
// over some of them.
func foreign(r rune) bool {
	return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && r != '-' && r != '_' && r != '.'
}

// object reads a part of a token.
func object(part string) (strictjson.Value, error) {
	text, err := base64.RawURLEncoding.DecodeString(part)
	if err != nil {
		return nil, Invalid("not a signed JWT")
	}
	v, err := strictjson.Check(text, strictjson.Options{MaxDepth: 32})
	if err != nil || !v.IsObject() {
		return nil, Invalid("not a JSON object in it")
	}
	return v, nil
}

// otherKind reports whether a typ header names a JWT that is no access token
// (RFC 8725, 3.11), such as one that ends a session. One that is just called JWT
// may be anything, an access token included.
func otherKind(typ string) bool {
	typ = strings.TrimPrefix(strings.ToLower(typ), "application/")
	return strings.HasSuffix(typ, "+jwt") && typ != "at+jwt"
}
