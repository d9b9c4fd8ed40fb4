// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

// Package jwttest has an issuer of tokens for tests. It needs no network, so it works in the
// virtual time of testing/synctest.
package jwttest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// The paths of an [Issuer].
const (
	DiscoveryPath = "/.well-known/openid-configuration"
	KeysPath      = "/keys"
)

// An Issuer is an authorization server. It is safe for concurrent use.
type Issuer struct {
	URL string

	mu       sync.Mutex
	handlers map[string]http.HandlerFunc // by path; guarded by mu
	requests []string                    // paths; guarded by mu
}

// NewIssuer returns an issuer with a discovery document and keys.
func NewIssuer(url string, keys ...*Key) *Issuer {
	i := &Issuer{URL: url, handlers: map[string]http.HandlerFunc{}}
	i.Handle(DiscoveryPath, Document(fmt.Sprintf(`{"issuer":%q,"jwks_uri":%q}`, url, url+KeysPath)))
	i.Publish(keys...)
	return i
}

// Client returns a client that reaches only the issuers.
func Client(issuers ...*Issuer) *http.Client { return &http.Client{Transport: transport(issuers)} }

type transport []*Issuer

// RoundTrip calls the handler of the path. A response after the end of the context is lost.
func (t transport) RoundTrip(r *http.Request) (*http.Response, error) {
	for _, i := range t {
		if path, ok := strings.CutPrefix(r.URL.String(), i.URL); ok {
			w := httptest.NewRecorder()
			i.handler(path)(w, r)
			return w.Result(), r.Context().Err()
		}
	}
	return nil, fmt.Errorf("no server at %s", r.URL.Host)
}

func (i *Issuer) handler(path string) http.HandlerFunc {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.requests = append(i.requests, path)
	if h := i.handlers[path]; h != nil {
		return h
	}
	return http.NotFound
}

// Handle sets the handler of a path.
func (i *Issuer) Handle(path string, h http.HandlerFunc) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.handlers[path] = h
}

// Fail makes a path answer with a status until the returned function is called.
func (i *Issuer) Fail(path string, status int) (restore func()) {
	i.mu.Lock()
	previous := i.handlers[path]
	i.mu.Unlock()
	i.Handle(path, func(w http.ResponseWriter, _ *http.Request) { http.Error(w, strings.Repeat("down ", 10_000), status) })
	return func() { i.Handle(path, previous) }
}

// Publish sets the key set.
func (i *Issuer) Publish(keys ...*Key) {
	list := []string{}
	for _, k := range keys {
		list = append(list, k.JWK())
	}
	i.Handle(KeysPath, Document(`{"keys":[`+strings.Join(list, ",")+`]}`))
}

// Requests returns and forgets the paths of all requests so far.
func (i *Issuer) Requests() []string {
	i.mu.Lock()
	defer i.mu.Unlock()
	list := slices.Clone(i.requests)
	i.requests = nil
	return list
}

// Document returns a handler that answers with a JSON text.
func Document(text string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write([]byte(text))
	}
}

// Claims returns the claims of a token of "caller" for the audience "api" and one hour. Claims in
// more replace them; nil removes one.
func (i *Issuer) Claims(more map[string]any) map[string]any {
	all := map[string]any{"iss": i.URL, "aud": "api", "sub": "caller", "exp": time.Now().Add(time.Hour).Unix()}
	maps.Copy(all, more)
	maps.DeleteFunc(all, func(_ string, v any) bool { return v == nil })
	return all
}

// A Key signs with ES256.
type Key struct {
	ID      string
	private *ecdsa.PrivateKey
}

// NewKey returns a new key.
func NewKey(t testing.TB, id string) *Key {
	t.Helper()
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return &Key{ID: id, private: k}
}

// JWK returns the public key. Members in more, such as `"use":"enc"`, are added.
func (k *Key) JWK(more ...string) string {
	point, err := k.private.PublicKey.Bytes() // 4, x, y
	if err != nil {
		panic(err) // a key of P-256 has them
	}
	x, y := B64(point[1:33]), B64(point[33:])
	members := append([]string{`"kty":"EC"`, `"crv":"P-256"`, `"x":"` + x + `"`, `"y":"` + y + `"`}, more...)
	if k.ID != "" {
		members = append(members, fmt.Sprintf(`"kid":%q`, k.ID))
	}
	return "{" + strings.Join(members, ",") + "}"
}

// Sign returns a token. Header and claims are JSON texts or values to be encoded; a nil header is
// the usual one.
func (k *Key) Sign(header, claims any) string {
	if header == nil {
		header = map[string]any{"alg": "ES256", "kid": k.ID}
	}
	text := B64(encode(header)) + "." + B64(encode(claims))
	sum := sha256.Sum256([]byte(text))
	r, s, err := ecdsa.Sign(rand.Reader, k.private, sum[:])
	if err != nil {
		panic(err) // a key of P-256 signs any hash
	}
	signature := make([]byte, 64)
	r.FillBytes(signature[:32])
	s.FillBytes(signature[32:])
	return text + "." + B64(signature)
}

func encode(v any) []byte {
	if text, ok := v.(string); ok {
		return []byte(text)
	}
	text, err := json.Marshal(v)
	if err != nil {
		panic(err) // a mistake in a test
	}
	return text
}

// B64 encodes bytes as in a JWT.
func B64(b []byte) string { return base64.RawURLEncoding.EncodeToString(b) }
