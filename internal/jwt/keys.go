// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package jwt

import (
	"bytes"
	"crypto"
	"crypto/rsa"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/big"
	"slices"
	"strings"
	"time"

	"github.com/go-jose/go-jose/v4"

	"github.com/fivewire/fivewire/internal/strictjson"
)

const (
	maxKeys    = 256
	maxTries   = 16   // signature checks a token and key set
	minRSABits = 2048 // NIST SP 800-131A
	maxRSABits = 8192 // bounds the time of a check
)

// A keySet is a published key set. It does not change.
type keySet struct {
	fetched time.Time // start of the fetch
	keys    []*key
	byID    map[string][]*key
	skipped map[string]int // number of unusable keys by reason
}

// A key is a usable public key.
type key struct {
	kind   string // RSA or the name of the curve
	alg    string // the permitted algorithm; empty permits all of the kind
	public any    // for go-jose
}

// A skipError is the reason for which a key is not used.
type skipError string

func (e skipError) Error() string { return string(e) }

// parseKeys reads a key set (RFC 7517, section 5). Only its outer JSON must be valid: an unusable
// key is counted and harms no other key.
func parseKeys(data []byte) (*keySet, error) {
	s := &keySet{byID: map[string][]*key{}, skipped: map[string]int{}}
	dec := json.NewDecoder(bytes.NewReader(data))
	if start, err := dec.Token(); err != nil || start != json.Delim('{') {
		return nil, errors.New("key set is not a JSON object")
	}
	found := 0
	for dec.More() {
		name, err := dec.Token()
		if err == nil && name == "keys" {
			found++
			err = s.readKeys(dec)
		} else if err == nil {
			err = dec.Decode(new(json.RawMessage))
		}
		if err != nil {
			return nil, fmt.Errorf("key set is not JSON: %w", err)
		}
	}
	_, errEnd := dec.Token()
	if _, err := dec.Token(); errEnd != nil || err != io.EOF {
		return nil, errors.New("key set is not one JSON object")
	}
	if found != 1 {
		return nil, fmt.Errorf("key set has %d members keys, want 1", found)
	}
	return s, nil
}

// readKeys reads the array of keys.
func (s *keySet) readKeys(dec *json.Decoder) error {
	if start, err := dec.Token(); err != nil || start != json.Delim('[') {
		return errors.New("keys is not an array")
	}
	for dec.More() {
		var raw json.RawMessage
		if err := dec.Decode(&raw); err != nil {
			return err
		}
		if err := s.add(raw); err != nil {
			s.skipped[err.Error()]++
		}
	}
	_, err := dec.Token()
	return err
}

// add adds a key or returns a [skipError].
func (s *keySet) add(raw []byte) error {
	if len(s.keys) == maxKeys {
		return skipError("over 256 keys")
	}
	v, err := strictjson.Check(raw, strictjson.Options{MaxDepth: maxDepth})
	if err != nil || !v.IsObject() {
		return skipError("malformed")
	}
	id, ok := text(v, "kid")
	if !ok {
		return skipError("kid")
	}
	k, err := parseKey(v)
	if err != nil {
		return err
	}
	s.keys = append(s.keys, k)
	if id != "" {
		s.byID[id] = append(s.byID[id], k)
	}
	return nil
}

// text returns a member that is absent or a string.
func text(v strictjson.Value, name string) (string, bool) {
	member := v.Get(name)
	if member.Absent() {
		return "", true
	}
	return member.Text()
}

// parseKey reads a public key that may verify signatures.
func parseKey(v strictjson.Value) (*key, error) {
	for _, name := range [...]string{"d", "p", "q", "dp", "dq", "qi", "oth", "k", "priv"} {
		if v.Get(name) != nil {
			return nil, skipError("not a public key")
		}
	}
	if use, ok := text(v, "use"); !ok || use != "" && use != "sig" {
		return nil, skipError("use")
	}
	if ops := v.Get("key_ops"); !ops.Absent() && !contains(ops, "verify") {
		return nil, skipError("key_ops")
	}
	alg, ok := text(v, "alg")
	if !ok {
		return nil, skipError("alg")
	}
	k := &key{alg: alg}
	var err error
	kty, _ := v.Get("kty").Text()
	crv, _ := v.Get("crv").Text()
	switch {
	case kty == "RSA":
		k.kind = kty
		k.public, err = parseRSA(v)
	case kty == "EC" && (crv == "P-256" || crv == "P-384" || crv == "P-521"), kty == "OKP" && crv == "Ed25519":
		k.kind = crv
		k.public, err = parseCurve(v)
	default:
		return nil, skipError("kty or crv")
	}
	if err == nil && alg != "" && kindOf(alg) != k.kind {
		err = skipError("alg")
	}
	return k, err
}

func contains(list strictjson.Value, name string) bool {
	for e := list.Elements(); e.Next(); {
		if got, ok := e.Value.Text(); ok && got == name {
			return true
		}
	}
	return false
}

// kindOf returns the kind of the keys of an algorithm.
func kindOf(alg string) string {
	switch alg {
	case "RS256", "RS384", "RS512", "PS256", "PS384", "PS512":
		return "RSA"
	case "ES256":
		return "P-256"
	case "ES384":
		return "P-384"
	case "ES512":
		return "P-521"
	case "EdDSA":
		return "Ed25519"
	}
	return ""
}

// parseRSA reads an RSA key. The limit of go-jose is 4,096 bits.
func parseRSA(v strictjson.Value) (*rsa.PublicKey, error) {
	n, okN := number(v, "n")
	e, okE := number(v, "e")
	switch {
	case !okN || !okE:
		return nil, skipError("malformed")
	case n.BitLen() < minRSABits || n.BitLen() > maxRSABits:
		return nil, skipError("RSA size")
	case e.BitLen() < 2 || e.BitLen() > 31 || e.Bit(0) == 0:
		return nil, skipError("RSA exponent")
	case n.Bit(0) == 0 || isROCA(n):
		return nil, skipError("weak RSA modulus")
	}
	return &rsa.PublicKey{N: n, E: int(e.Int64())}, nil
}

// number returns a member that is a base64url number, with or without padding.
func number(v strictjson.Value, name string) (*big.Int, bool) {
	encoded, ok := v.Get(name).Text()
	data, err := base64.RawURLEncoding.DecodeString(strings.TrimRight(encoded, "="))
	return new(big.Int).SetBytes(data), ok && err == nil && len(data) > 0
}

// isROCA reports whether a modulus has the form of keys that can be factored (CVE-2017-15361):
// modulo each of these primes it is a power of 65537. Other moduli have it with probability 2^-27.
func isROCA(n *big.Int) bool {
	for _, p := range [...]int64{11, 13, 17, 19, 37, 53, 61, 71, 73, 79, 97, 103, 107, 109, 127, 151, 157} {
		rest := new(big.Int).Mod(n, big.NewInt(p)).Int64()
		power := int64(1)
		for range p {
			if power == rest {
				break
			}
			power = power * 65537 % p
		}
		if power != rest {
			return false
		}
	}
	return true
}

// parseCurve reads an EC or Ed25519 key. Only the members of the key go to go-jose, so that a
// certificate does not matter.
func parseCurve(v strictjson.Value) (any, error) {
	members := map[string]json.RawMessage{}
	for _, name := range [...]string{"kty", "crv", "x", "y"} {
		if member := v.Get(name); member != nil {
			members[name] = json.RawMessage(member)
		}
	}
	data, err := json.Marshal(members)
	if err != nil {
		return nil, skipError("malformed")
	}
	var k jose.JSONWebKey
	if err := k.UnmarshalJSON(data); err != nil || !k.IsPublic() {
		return nil, skipError("malformed")
	}
	return k.Key, nil
}

// reasons lists why keys were skipped.
func (s *keySet) reasons() (total int, list []string) {
	for reason, n := range s.skipped {
		total += n
		list = append(list, fmt.Sprintf("%s: %d", reason, n))
	}
	slices.Sort(list)
	return total, list
}

// verify reports whether a key of the set signed the token, and whether the set has a key that the
// token may mean.
func (s *keySet) verify(t *token) (isValid, isKnown bool) {
	candidates := s.keys
	if t.keyID != "" {
		candidates = s.byID[t.keyID]
	}
	tries := 0
	for _, k := range candidates {
		if k.kind != kindOf(t.alg) || k.alg != "" && k.alg != t.alg {
			continue
		}
		if tries == maxTries {
			break
		}
		tries++
		if k.verify(t) {
			return true, true
		}
	}
	return false, tries > 0
}

func (k *key) verify(t *token) bool {
	public := k.public
	if strings.HasPrefix(t.alg, "PS") {
		public = pssVerifier{public.(*rsa.PublicKey)}
	}
	_, err := t.jws.Verify(public)
	return err == nil
}

// A pssVerifier verifies RSASSA-PSS with a salt as long as the hash (RFC 7518, section 3.5).
// go-jose accepts any length.
type pssVerifier struct{ key *rsa.PublicKey }

// VerifyPayload verifies a signature.
func (p pssVerifier) VerifyPayload(payload, signature []byte, alg jose.SignatureAlgorithm) error {
	var hash crypto.Hash
	switch alg {
	case jose.PS256:
		hash = crypto.SHA256
	case jose.PS384:
		hash = crypto.SHA384
	case jose.PS512:
		hash = crypto.SHA512
	default:
		return jose.ErrUnsupportedAlgorithm
	}
	h := hash.New()
	_, _ = h.Write(payload)
	return rsa.VerifyPSS(p.key, hash, h.Sum(nil), signature, &rsa.PSSOptions{SaltLength: rsa.PSSSaltLengthEqualsHash})
}
