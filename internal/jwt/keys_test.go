// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package jwt

import (
	"bytes"
	"cmp"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"log/slog"
	"math/big"
	"strings"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/internal/jwt/jwttest"
)

func publish(f *fixture, keys ...string) {
	f.issuer.Handle(jwttest.KeysPath, jwttest.Document(`{"keys":[`+strings.Join(keys, ",")+`]}`))
}

// sign returns a token of any algorithm.
func sign(t *testing.T, f *fixture, alg jose.SignatureAlgorithm, keyID string, key any) string {
	t.Helper()
	claims, err := json.Marshal(f.issuer.Claims(nil))
	require.NoError(t, err)
	s, err := jose.NewSigner(jose.SigningKey{Algorithm: alg, Key: key}, (&jose.SignerOptions{}).WithHeader("kid", keyID))
	require.NoError(t, err)
	signed, err := s.Sign(claims)
	require.NoError(t, err)
	token, err := signed.CompactSerialize()
	require.NoError(t, err)
	return token
}

// jwk returns a public key with changed members; nil removes one.
func jwk(t *testing.T, keyID string, key crypto.Signer, change map[string]any) string {
	t.Helper()
	data, err := json.Marshal(jose.JSONWebKey{Key: key.Public(), KeyID: keyID})
	require.NoError(t, err)
	members := map[string]any{}
	require.NoError(t, json.Unmarshal(data, &members))
	for name, value := range change {
		members[name] = value
		if value == nil {
			delete(members, name)
		}
	}
	data, err = json.Marshal(members)
	require.NoError(t, err)
	return string(data)
}

type signers struct {
	p256, p384, p521 *ecdsa.PrivateKey
	rsa              *rsa.PrivateKey
	ed               ed25519.PrivateKey
}

func newSigners(t *testing.T) *signers {
	t.Helper()
	s := &signers{}
	for curve, key := range map[elliptic.Curve]**ecdsa.PrivateKey{
		elliptic.P256(): &s.p256, elliptic.P384(): &s.p384, elliptic.P521(): &s.p521,
	} {
		k, err := ecdsa.GenerateKey(curve, rand.Reader)
		require.NoError(t, err)
		*key = k
	}
	var err error
	s.rsa, err = rsa.GenerateKey(rand.Reader, 2048)
	require.NoError(t, err)
	_, s.ed, err = ed25519.GenerateKey(rand.Reader)
	require.NoError(t, err)
	return s
}

func TestVerifyAlgorithms(t *testing.T) {
	s := newSigners(t)
	f := newFixture(t, Options[Token]{MinRefreshInterval: time.Hour})
	keys := map[string]crypto.Signer{"p256": s.p256, "p384": s.p384, "p521": s.p521, "rsa": s.rsa, "ed": s.ed}
	var list []string
	for id, k := range keys {
		list = append(list, jwk(t, id, k, map[string]any{"use": "sig", "key_ops": []string{"sign", "verify"}}))
	}
	publish(f, list...)
	for _, tt := range []struct {
		alg jose.SignatureAlgorithm
		id  string
	}{
		{jose.ES256, "p256"}, {jose.ES384, "p384"}, {jose.ES512, "p521"}, {jose.EdDSA, "ed"}, {jose.RS256, "rsa"},
		{jose.RS384, "rsa"}, {jose.RS512, "rsa"}, {jose.PS256, "rsa"}, {jose.PS384, "rsa"}, {jose.PS512, "rsa"},
	} {
		f.accepts(t, sign(t, f, tt.alg, tt.id, keys[tt.id]), string(tt.alg))
		for other := range keys {
			if other != tt.id {
				f.refuses(t, sign(t, f, tt.alg, other, keys[tt.id]), fmt.Sprintf("%s under the kid %s", tt.alg, other))
			}
		}
	}
}

// A key that breaks a rule verifies nothing, is counted, and harms no other key.
func TestKeyRules(t *testing.T) {
	s := newSigners(t)
	small, err := rsa.GenerateKey(rand.Reader, 1024)
	require.NoError(t, err)
	b64 := func(n *big.Int) string { return jwttest.B64(n.Bytes()) }
	null := json.RawMessage("null")
	large := new(big.Int).Add(new(big.Int).Lsh(big.NewInt(1), 8192), big.NewInt(1)) // 8,193 bits
	even := new(big.Int).Add(s.rsa.N, big.NewInt(1))
	for _, tt := range []struct {
		name   string
		alg    jose.SignatureAlgorithm
		key    crypto.Signer
		change map[string]any
		want   string // reason; empty for a usable key
	}{
		{"plain", jose.ES256, s.p256, nil, ""},
		{"use", jose.ES256, s.p256, map[string]any{"use": "sig", "alg": "ES256", "key_ops": []string{"verify"}}, ""},
		{"null members", jose.ES256, s.p256, map[string]any{"use": null, "key_ops": null, "alg": null}, ""},
		{"certificate", jose.ES256, s.p256, map[string]any{"x5c": []string{"AAAA"}, "x5t": "AA", "x5u": ":"}, ""},
		{"extra member", jose.RS256, s.rsa, map[string]any{"x": 1, "crv": "P-256"}, ""},
		{"padded", jose.RS256, s.rsa, map[string]any{"e": "AQAB=="}, ""},
		{"for encryption", jose.ES256, s.p256, map[string]any{"use": "enc"}, "use"},
		{"use of another type", jose.ES256, s.p256, map[string]any{"use": []string{"sig"}}, "use"},
		{"no verify", jose.ES256, s.p256, map[string]any{"key_ops": []string{"sign", "encrypt"}}, "key_ops"},
		{"empty key_ops", jose.ES256, s.p256, map[string]any{"key_ops": []string{}}, "key_ops"},
		{"key_ops string", jose.ES256, s.p256, map[string]any{"key_ops": "verify"}, "key_ops"},
		{"another curve's alg", jose.ES256, s.p256, map[string]any{"alg": "ES384"}, "alg"},
		{"unknown alg", jose.ES256, s.p256, map[string]any{"alg": "ES256K"}, "alg"},
		{"encryption alg", jose.RS256, s.rsa, map[string]any{"alg": "RSA-OAEP-256"}, "alg"},
		{"symmetric alg", jose.RS256, s.rsa, map[string]any{"alg": "HS256"}, "alg"},
		{"alg of another type", jose.RS256, s.rsa, map[string]any{"alg": 256}, "alg"},
		{"kty of another kind", jose.ES256, s.p256, map[string]any{"kty": "RSA"}, "malformed"},
		{"unknown kty", jose.ES256, s.p256, map[string]any{"kty": "NEW"}, "kty or crv"},
		{"no kty", jose.ES256, s.p256, map[string]any{"kty": nil}, "kty or crv"},
		{"another curve", jose.ES256, s.p256, map[string]any{"crv": "P-384"}, "malformed"},
		{"secp256k1", jose.ES256, s.p256, map[string]any{"crv": "secp256k1"}, "kty or crv"},
		{"X25519", jose.EdDSA, s.ed, map[string]any{"crv": "X25519"}, "kty or crv"},
		{"Ed25519 as EC", jose.EdDSA, s.ed, map[string]any{"kty": "EC"}, "kty or crv"},
		{"not on the curve", jose.ES256, s.p256, map[string]any{"x": jwttest.B64(make([]byte, 32))}, "malformed"},
		{"short x", jose.ES256, s.p256, map[string]any{"x": "AA"}, "malformed"},
		{"x is a number", jose.ES256, s.p256, map[string]any{"x": 7}, "malformed"},
		{"kid is a number", jose.ES256, s.p256, map[string]any{"kid": 7}, "kid"},
		{"private", jose.ES256, s.p256, map[string]any{"d": "AA"}, "not a public key"},
		{"symmetric", jose.ES256, s.p256, map[string]any{"kty": "oct", "k": "AAAA"}, "not a public key"},
		{"1,024 bits", jose.RS256, small, nil, "RSA size"},
		{"8,193 bits", jose.RS256, s.rsa, map[string]any{"n": b64(large)}, "RSA size"},
		{"even modulus", jose.RS256, s.rsa, map[string]any{"n": b64(even)}, "weak RSA modulus"},
		{"exponent 1", jose.RS256, s.rsa, map[string]any{"e": "AQ"}, "RSA exponent"},
		{"exponent 2", jose.RS256, s.rsa, map[string]any{"e": "Ag"}, "RSA exponent"},
		{"exponent 65536", jose.RS256, s.rsa, map[string]any{"e": "AQAA"}, "RSA exponent"},
		{"exponent 2^32+1", jose.RS256, s.rsa, map[string]any{"e": "AQAAAAE"}, "RSA exponent"},
		{"no exponent", jose.RS256, s.rsa, map[string]any{"e": nil}, "malformed"},
		{"modulus not base64", jose.RS256, s.rsa, map[string]any{"n": "+/+/"}, "malformed"},
	} {
		f := newFixture(t, Options[Token]{})
		other := f.key.JWK()
		publish(f, jwk(t, "k0", tt.key, tt.change), other)
		f.accepts(t, f.token(nil), tt.name+": the other key")
		token := sign(t, f, tt.alg, "k0", tt.key)
		if tt.want == "" {
			f.accepts(t, token, tt.name)
			require.Equal(t, 2, f.v.Stats().Keys, tt.name)
			continue
		}
		f.refuses(t, token, tt.name)
		f.refuses(t, sign(t, f, tt.alg, "", tt.key), tt.name+" without kid")
		require.Equal(t, 1, f.v.Stats().SkippedKeys, tt.name)
		require.Equal(t, map[string]int{tt.want: 1}, f.v.issuers[home].set.skipped, tt.name)
	}
}

// The alg of a key is the only one that it verifies.
func TestKeyRefusesOtherAlgorithmOfKind(t *testing.T) {
	s := newSigners(t)
	f := newFixture(t, Options[Token]{})
	publish(f, jwk(t, "k", s.rsa, map[string]any{"alg": "RS256"}))
	f.accepts(t, sign(t, f, jose.RS256, "k", s.rsa), "RS256")
	for _, alg := range []jose.SignatureAlgorithm{jose.RS384, jose.RS512, jose.PS256} {
		f.refuses(t, sign(t, f, alg, "k", s.rsa), string(alg))
	}
}

func TestRSAKeySizes(t *testing.T) {
	for bits, want := range map[int]bool{
		1024: false, 2047: false, 2048: true, 4096: true, 4097: true, 8192: true, 8193: false, 16384: false,
	} {
		n := new(big.Int).Lsh(big.NewInt(1), uint(bits)-1)
		n.Add(n, big.NewInt(1))
		s, err := parseKeys(fmt.Appendf(nil, `{"keys":[{"kty":"RSA","e":"AQAB","n":%q}]}`, jwttest.B64(n.Bytes())))
		require.NoError(t, err)
		require.Equal(t, want, len(s.keys) == 1, bits)
	}
}

// A key of 8,192 bits verifies. It has many small primes, because large ones take long to find.
func TestVerifyLargeRSAKey(t *testing.T) {
	one, e := big.NewInt(1), big.NewInt(65537)
	n, order := big.NewInt(1), big.NewInt(1)
	for n.BitLen() < maxRSABits-64 {
		p, err := rand.Prime(rand.Reader, 64)
		require.NoError(t, err)
		p1 := new(big.Int).Sub(p, one)
		if new(big.Int).GCD(nil, nil, p1, e).Cmp(one) == 0 && new(big.Int).GCD(nil, nil, p, n).Cmp(one) == 0 {
			n.Mul(n, p)
			order.Mul(order, p1)
		}
	}
	require.Greater(t, n.BitLen(), jose.MaxRSAModulusBits)
	f := newFixture(t, Options[Token]{})
	publish(f, fmt.Sprintf(`{"kty":"RSA","kid":"k","e":"AQAB","n":%q}`, jwttest.B64(n.Bytes())))
	claims, err := json.Marshal(f.issuer.Claims(nil))
	require.NoError(t, err)
	text := jwttest.B64([]byte(`{"alg":"RS256","kid":"k"}`)) + "." + jwttest.B64(claims)
	sum := sha256.Sum256([]byte(text))
	const sha256Info = "\x00\x30\x31\x30\x0d\x06\x09\x60\x86\x48\x01\x65\x03\x04\x02\x01\x05\x00\x04\x20"
	encoded := append([]byte(sha256Info), sum[:]...)
	size := (n.BitLen() + 7) / 8
	encoded = append(append([]byte{0, 1}, bytes.Repeat([]byte{0xff}, size-2-len(encoded))...), encoded...)
	signature := new(big.Int).Exp(new(big.Int).SetBytes(encoded), new(big.Int).ModInverse(e, order), n)
	f.accepts(t, text+"."+jwttest.B64(signature.FillBytes(make([]byte, size))), "8,192 bits")
	f.refuses(t, text+"."+jwttest.B64(new(big.Int).Add(signature, one).FillBytes(make([]byte, size))), "another signature")
}

func TestPSSSaltIsAsLongAsHash(t *testing.T) {
	s := newSigners(t)
	f := newFixture(t, Options[Token]{})
	publish(f, jwk(t, "k", s.rsa, nil))
	claims, err := json.Marshal(f.issuer.Claims(nil))
	require.NoError(t, err)
	for salt, want := range map[int]bool{32: true, rsa.PSSSaltLengthAuto: false, 20: false, 31: false, 64: false} {
		text := jwttest.B64([]byte(`{"alg":"PS256","kid":"k"}`)) + "." + jwttest.B64(claims)
		sum := sha256.Sum256([]byte(text))
		opts := &rsa.PSSOptions{SaltLength: salt}
		signature, err := rsa.SignPSS(rand.Reader, s.rsa, crypto.SHA256, sum[:], opts)
		require.NoError(t, err)
		_, err = f.v.Verify(t.Context(), text+"."+jwttest.B64(signature))
		require.Equal(t, want, err == nil, salt)
	}
}

// The modulus is that of a known vulnerable key (CVE-2017-15361); random ones are not affected.
func TestROCA(t *testing.T) {
	m := big.NewInt(1)
	for p := int64(2); p <= 157; p++ {
		if big.NewInt(p).ProbablyPrime(0) {
			m.Mul(m, big.NewInt(p))
		}
	}
	prime := func(k, a int64) *big.Int { // the form of the primes of these keys
		p := new(big.Int).Exp(big.NewInt(65537), big.NewInt(a), m)
		return p.Add(p, new(big.Int).Mul(m, big.NewInt(k)))
	}
	require.True(t, isROCA(new(big.Int).Mul(prime(1234567, 7654321), prime(987654321, 123))))
	for range 20 {
		k, err := rand.Prime(rand.Reader, 512)
		require.NoError(t, err)
		require.False(t, isROCA(k))
	}
}

func TestKeySetBounds(t *testing.T) {
	key := func(n int) string { return jwttest.NewKey(t, fmt.Sprint("k", n)).JWK() }
	keys := make([]string, 258)
	for n := range keys {
		keys[n] = key(n)
	}
	f := newFixture(t, Options[Token]{})
	bad := []string{
		"1", `"x"`, "[]", "null", `{"kty":"NEW","kid":"k1"}`, `{"kid":"a","kid":"b"}`, "{\"kid\":\"\xff\"}",
		strings.Repeat("[", 40) + strings.Repeat("]", 40),
	}
	publish(f, append(append(append([]string{}, bad...), f.key.JWK()), keys...)...)
	f.accepts(t, f.token(nil), "malformed keys before the key")
	require.Equal(t, Stats{Keys: 256, SkippedKeys: len(bad) + 3, Fetches: 1}, f.v.Stats())
	want := map[string]int{"malformed": len(bad) - 1, "kty or crv": 1, "over 256 keys": 3}
	require.Equal(t, want, f.v.issuers[home].set.skipped)

	pad := func(n int) string {
		return `{"keys":[` + f.key.JWK() + `],"x":"` + strings.Repeat("x", n) + `"}`
	}
	frame := len(pad(0))
	f = newFixtureWithKey(t, f.key)
	f.issuer.Handle(jwttest.KeysPath, jwttest.Document(pad(1<<20-frame)))
	f.accepts(t, f.token(nil), "1 MiB")
	f = newFixtureWithKey(t, f.key)
	f.issuer.Handle(jwttest.KeysPath, jwttest.Document(pad(1<<20-frame+1)))
	f.fails(t, f.token(nil), "over 1 MiB")
}

func newFixtureWithKey(t *testing.T, key *jwttest.Key) *fixture {
	t.Helper()
	f := newFixture(t, Options[Token]{})
	f.key = key
	f.issuer.Publish(key)
	return f
}

// A token without kid, or with one that many keys have, costs at most 16 checks of its signature.
func TestVerifyTriesFewKeys(t *testing.T) {
	for _, id := range []string{"", "same"} {
		var before []string
		for range 15 {
			before = append(before, jwttest.NewKey(t, id).JWK())
		}
		s := newSigners(t)
		for n := range 10 { // keys of another kind do not count
			other := cmp.Or(id, fmt.Sprint("other", n))
			before = append(before, jwk(t, other, s.rsa, nil), jwk(t, other, s.p384, nil))
		}
		f := newFixture(t, Options[Token]{})
		f.key = jwttest.NewKey(t, id)
		header := map[string]any{"alg": "ES256"}
		if id != "" {
			header["kid"] = id
		}
		token := f.key.Sign(header, f.issuer.Claims(nil))
		publish(f, append(before, f.key.JWK())...)
		f.accepts(t, token, "key 16 with kid "+id)
		f = newFixtureWithKey(t, f.key)
		publish(f, append(before, jwttest.NewKey(t, id).JWK(), f.key.JWK())...)
		f.refuses(t, token, "key 17 with kid "+id)
	}
}

// The frame of a key set must be valid.
func TestKeySetRefusesOtherDocuments(t *testing.T) {
	key := jwttest.NewKey(t, "k1").JWK()
	for _, text := range []string{
		``, `[]`, `"keys"`, `{}`, `{"keys":1}`, `{"keys":null}`, `{"keys":{}}`, `{"Keys":[` + key + `]}`,
		`{"keys":[` + key + `]} x`, `{"keys":[` + key + `]} {}`,
		`{"keys":[],"keys":[` + key + `]}`, `<html>`, `{"keys":[` + key, `{"keys":[` + key + `]`,
		`{"keys":[` + key + ` ` + key + `]}`, `{"keys":[tru]}`, `{"x":tru,"keys":[]}`,
		strings.Repeat("[", 1000) + strings.Repeat("]", 1000), strings.Repeat("[", maxDocument),
	} {
		f := newFixture(t, Options[Token]{})
		f.issuer.Handle(jwttest.KeysPath, jwttest.Document(text))
		f.fails(t, f.token(nil), text[:min(len(text), 100)])
	}
	f := newFixture(t, Options[Token]{})
	publish(f)
	f.refuses(t, f.token(nil), "no key: all are withdrawn")
}

// Skipped keys are logged once, not at each fetch.
func TestSkippedKeysAreLoggedOnce(t *testing.T) {
	var log bytes.Buffer
	f := newFixture(t, Options[Token]{MinRefreshInterval: -1, Logger: slog.New(slog.NewTextHandler(&log, nil))})
	publish(f, f.key.JWK(`"use":"enc"`), f.key.JWK(), `{"kty":"EC","crv":"secp256k1","kid":"evil\nkey"}`)
	f.accepts(t, f.token(nil), "the good key")
	for n := range 3 {
		f.refuses(t, jwttest.NewKey(t, fmt.Sprint("forged", n)).Sign(nil, f.issuer.Claims(nil)), "forged")
	}
	require.Equal(t, 4, f.v.Stats().Fetches)
	require.Equal(t, 1, strings.Count(log.String(), "\n"), log.String())
	require.Contains(t, log.String(),
		`level=WARN msg="jwt: keys skipped" issuer=`+home+` count=2 reason="kty or crv: 1, use: 1"`)
}

// A key set never panics and never has an unusable key.
func FuzzKeySet(f *testing.F) {
	f.Add([]byte(`{"keys":[{"kty":"EC","crv":"P-256","x":"AA","y":"AA"},1,{"kty":"RSA","n":"AQAB","e":"AQAB"}],"x":[]}`))
	f.Add([]byte(`{"keys":[` + jwttest.NewKey(f, "k1").JWK(`"use":"sig"`) + `]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		s, err := parseKeys(data)
		if err != nil {
			return
		}
		require.True(t, json.Valid(data))
		require.LessOrEqual(t, len(s.keys), maxKeys)
		for _, k := range s.keys {
			require.True(t, (&jose.JSONWebKey{Key: k.public}).Valid())
			require.True(t, k.alg == "" || kindOf(k.alg) == k.kind)
			if public, ok := k.public.(*rsa.PublicKey); ok {
				require.GreaterOrEqual(t, public.N.BitLen(), minRSABits)
			}
		}
	})
}
