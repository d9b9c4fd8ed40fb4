// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package jwt

import (
	"encoding/base64"
	"fmt"
	"strings"
	"time"

	"github.com/go-jose/go-jose/v4"

	"github.com/fivewire/fivewire/internal/strictjson"
)

const (
	maxToken = 64 << 10 // bytes
	maxDepth = 32       // of JSON
	maxTime  = 1 << 53  // seconds; beyond, other readers round
	skew     = time.Minute
)

// registered are the claims that must not be there under a name with another case: encoding/json
// would read it as the claim.
const registered = "iss sub aud exp nbf iat cnf"

// A token has been parsed, and not yet verified.
type token struct {
	alg     string
	keyID   string // empty if the header has none
	claims  strictjson.Value
	issuer  string
	subject string
	expires time.Time
	jws     *jose.JSONWebSignature
}

func invalid(reason string) error { return fmt.Errorf("%w: %s", ErrInvalid, reason) }

// parse reads a token.
func parse(raw string) (*token, error) {
	t, payload, err := parseForm(raw)
	if err != nil {
		return nil, err
	}
	if t.claims, err = object(payload); err != nil {
		return nil, err
	}
	return t, t.readNames()
}

// parseForm reads the compact form and the header. Libraries also take the JSON forms, in which
// unsigned text may surround the claims.
func parseForm(raw string) (t *token, payload []byte, err error) {
	if len(raw) > maxToken {
		return nil, nil, invalid("over 64 KiB")
	}
	parts := strings.SplitN(raw, ".", 4)
	if len(parts) != 3 {
		return nil, nil, invalid("not a signed JWT")
	}
	var decoded [3][]byte
	for n, part := range parts {
		if decoded[n], err = decode(part); err != nil {
			return nil, nil, err
		}
	}
	header, err := object(decoded[0])
	if err != nil {
		return nil, nil, err
	}
	t = &token{}
	return t, decoded[1], t.readHeader(header)
}

// decode decodes a part in its one canonical form.
func decode(part string) ([]byte, error) {
	text, err := base64.RawURLEncoding.Strict().DecodeString(part)
	if err != nil || strings.ContainsAny(part, "\r\n") { // which the decoder skips
		return nil, invalid("not base64url")
	}
	return text, nil
}

// object checks a JSON object.
func object(text []byte) (strictjson.Value, error) {
	v, err := strictjson.Check(text, strictjson.Options{MaxDepth: maxDepth})
	if err != nil || !v.IsObject() {
		return nil, invalid("not a JSON object")
	}
	return v, nil
}

// readHeader reads the header. No critical extension (RFC 7515, section 4.1.11) is supported, nor
// the unencoded payload of RFC 7797.
func (t *token) readHeader(h strictjson.Value) error {
	var ok bool
	if t.alg, ok = h.Get("alg").Text(); !ok {
		return invalid("no algorithm")
	}
	if id := h.Get("kid"); id != nil {
		if t.keyID, ok = id.Text(); !ok {
			return invalid("kid is not a string")
		}
	}
	if h.Get("crit") != nil || h.Get("b64") != nil {
		return invalid("critical header")
	}
	if typ, _ := h.Get("typ").Text(); isOtherType(typ) {
		return invalid("another type of JWT")
	}
	return nil
}

// isOtherType reports whether a typ header names a JWT that is not an access token (RFC 8725,
// section 3.11), for example a logout token. The type JWT may be any token.
func isOtherType(typ string) bool {
	typ = strings.TrimPrefix(strings.ToLower(typ), "application/")
	return strings.HasSuffix(typ, "+jwt") && typ != "at+jwt"
}

// readNames reads issuer and subject.
func (t *token) readNames() error {
	for m := t.claims.Members(); m.Next(); {
		for name := range strings.FieldsSeq(registered) {
			if got := string(m.Name); got != name && strings.EqualFold(got, name) {
				return invalid("claim similar to " + name)
			}
		}
	}
	var ok bool
	if t.issuer, ok = t.claims.Get("iss").Text(); !ok {
		return invalid("no issuer")
	}
	if sub := t.claims.Get("sub"); sub != nil {
		if t.subject, ok = sub.Text(); !ok {
			return invalid("sub is not a string")
		}
	}
	return nil
}

// check checks audience and times.
func (t *token) check(audience string, now time.Time) error {
	if audience != AnyAudience && !t.isFor(audience) {
		return invalid("another audience")
	}
	exp, hasExp, err := t.seconds("exp")
	if err != nil {
		return err
	}
	if !hasExp {
		return invalid("no exp")
	}
	for _, name := range [...]string{"nbf", "iat"} {
		at, _, err := t.seconds(name)
		if err != nil {
			return err
		}
		if at.After(now.Add(skew)) {
			return invalid(name + " is in the future")
		}
	}
	t.expires = exp
	if !now.Before(exp) {
		t.expires = exp.Add(skew)
	}
	if !now.Before(t.expires) {
		return ErrExpired
	}
	return nil
}

// isFor reports whether the aud claim, a string or an array of strings, has the audience.
func (t *token) isFor(audience string) bool {
	aud := t.claims.Get("aud")
	if name, ok := aud.Text(); ok {
		return name == audience
	}
	found := false
	for e := aud.Elements(); e.Next(); {
		name, ok := e.Value.Text()
		if !ok {
			return false
		}
		found = found || name == audience
	}
	return found
}

// seconds returns the time of a claim, an integer.
func (t *token) seconds(name string) (at time.Time, isSet bool, err error) {
	v := t.claims.Get(name)
	if v == nil {
		return time.Time{}, false, nil
	}
	n, ok := v.Int()
	if !ok || n >= maxTime || n <= -maxTime {
		return time.Time{}, false, invalid(name + " is not an integer below 2^53")
	}
	return time.Unix(n, 0), true, nil
}
