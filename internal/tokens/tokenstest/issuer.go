// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

// Package tokenstest holds the test suite of verifiers that stand on package
// tokens, and an issuer of tokens that needs no network, so that it works in the
// virtual time of testing/synctest.
package tokenstest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"math/big"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"
)

// A Network is the HTTP servers of a test, by host. It is an [http.RoundTripper].
type Network struct {
	mu    sync.Mutex
	hosts map[string]http.Handler // by scheme and host; guarded by mu
	asked []string                // the URLs of all requests; guarded by mu
}

// Serve lets a handler answer for a scheme and host, such as https://login.example.
func (n *Network) Serve(origin string, h http.Handler) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.hosts == nil {
		n.hosts = map[string]http.Handler{}
	}
	n.hosts[origin] = h
}

// Asked returns the URLs of all requests since it was called last.
func (n *Network) Asked() []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	asked := n.asked
	n.asked = nil
	return asked
}

// Client returns a client of the network, which sets no timeout.
func (n *Network) Client() *http.Client { return &http.Client{Transport: n} }

// RoundTrip answers a request. A handler that leaves the context of its request
// to end has not answered.
func (n *Network) RoundTrip(r *http.Request) (*http.Response, error) {
	n.mu.Lock()
	n.asked = append(n.asked, r.URL.String())
	h := n.hosts[r.URL.Scheme+"://"+r.URL.Host]
	n.mu.Unlock()
	if h == nil {
		return nil, fmt.Errorf("nobody listens at %s", r.URL.Host)
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	if err := r.Context().Err(); err != nil {
		return nil, err
	}
	return w.Result(), nil
}

// An Issuer is an authorization server in a [Network].
type Issuer struct {
	URL string

	mu   sync.Mutex
	docs map[string]http.Handler // by path; guarded by mu
}

// NewIssuer returns an issuer at a URL without a path, whose keys are published
// at /keys.
func NewIssuer(n *Network, url string, keys ...*Key) *Issuer {
	i := &Issuer{URL: url, docs: map[string]http.Handler{}}
	i.Discovery(url, url+"/keys")
	i.Publish(keys...)
	n.Serve(url, i)
	return i
}

// ServeHTTP answers a request.
func (i *Issuer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	i.mu.Lock()
	h := i.docs[r.URL.Path]
	i.mu.Unlock()
	if h == nil {
		h = http.NotFoundHandler()
	}
	h.ServeHTTP(w, r)
}

// The paths of an [Issuer].
const (
	DiscoveryPath = "/.well-known/openid-configuration"
	KeysPath      = "/keys"
)

// Handle lets a handler answer for a path until that is changed again, and
// returns what puts the present one back.
func (i *Issuer) Handle(path string, h http.HandlerFunc) (restore func()) {
	i.mu.Lock()
	defer i.mu.Unlock()
	before := i.docs[path]
	i.docs[path] = h
	return func() {
		i.mu.Lock()
		defer i.mu.Unlock()
		i.docs[path] = before
	}
}

// Down makes every path of the issuer answer with h.
func (i *Issuer) Down(h http.HandlerFunc) (up func()) {
	a, b := i.Handle(DiscoveryPath, h), i.Handle(KeysPath, h)
	return func() { a(); b() }
}

// Discovery sets what the discovery document says.
func (i *Issuer) Discovery(issuer, keysURL string) {
	i.Handle(DiscoveryPath, document(fmt.Sprintf(`{"issuer":%q,"jwks_uri":%q}`, issuer, keysURL)))
}

// Publish sets the keys.
func (i *Issuer) Publish(keys ...*Key) {
	list := []map[string]string{}
	for _, k := range keys {
		list = append(list, k.JWK())
	}
	text, _ := json.Marshal(map[string]any{"keys": list})
	i.Handle(KeysPath, document(string(text)))
}

func document(text string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write([]byte(text))
	}
}

// Claims returns the claims of a token for the audience api that is good for an
// hour, and more claims over them: nil deletes one.
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

// NewKey makes a key.
func NewKey(t testing.TB, id string) *Key {
	t.Helper()
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return &Key{ID: id, private: k}
}

// JWK returns the public key as a JSON Web Key.
func (k *Key) JWK() map[string]string {
	point, err := k.private.PublicKey.Bytes() // 4, x, y
	if err != nil {
		panic(err) // a key of P-256 has them
	}
	return map[string]string{"kty": "EC", "crv": "P-256", "kid": k.ID, "x": B64(point[1:33]), "y": B64(point[33:])}
}

// Sign returns a token with a header and claims, each JSON text or what becomes
// such. Of a nil header it makes the usual one.
func (k *Key) Sign(header, claims any) string {
	if header == nil {
		header = map[string]any{"alg": "ES256", "kid": k.ID}
	}
	text := B64(encoded(header)) + "." + B64(encoded(claims))
	return text + "." + B64(k.signature(text))
}

// signature returns the two numbers of a signature, in 32 bytes each.
func (k *Key) signature(text string) []byte {
	sum := sha256.Sum256([]byte(text))
	r, s, err := ecdsa.Sign(rand.Reader, k.private, sum[:])
	if err != nil {
		panic(err) // a key of P-256 signs any hash
	}
	both := make([]byte, 64)
	r.FillBytes(both[:32])
	s.FillBytes(both[32:])
	return both
}

// Verifies reports whether the key made a signature of a text.
func (k *Key) Verifies(text string, signature []byte) bool {
	if len(signature) != 64 {
		return false
	}
	sum := sha256.Sum256([]byte(text))
	return ecdsa.Verify(&k.private.PublicKey, sum[:], new(big.Int).SetBytes(signature[:32]), new(big.Int).SetBytes(signature[32:]))
}

func encoded(v any) []byte {
	switch v := v.(type) {
	case string:
		return []byte(v)
	default:
		text, err := json.Marshal(v)
		if err != nil {
			panic(err) // a test gave something else than it says
		}
		return text
	}
}

// B64 encodes bytes as JWTs do.
func B64(b []byte) string { return base64.RawURLEncoding.EncodeToString(b) }
