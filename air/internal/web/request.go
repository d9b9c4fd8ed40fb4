// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package web

import (
	"crypto"
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// Headers of a signed request (AIR-D90).
const (
	signatureHeader = "Signature"
	inputHeader     = "Signature-Input"
	digestHeader    = "Content-Digest"
)

// MaxRequestAge bounds the difference of a signature's time from the clock of the relay.
const MaxRequestAge = time.Minute

var (
	inputForm = regexp.MustCompile(`^air=(\("@method" "@authority" "@path" "@query"( "content-digest")?\);created=(\d{1,12});` +
		`nonce="([A-Za-z0-9_-]{22})";keyid="([^"\\]{1,510})#key-1";alg="ed25519";tag="air-relay")$`)
	signatureForm = regexp.MustCompile(`^air=:([A-Za-z0-9+/]{86}==):$`)
)

// A SignedRequest has the signed parts of a request to a relay (RFC 9421).
type SignedRequest struct {
	Method, Authority, Path, Query string // Path and Query as in the request, without "?"
	Body                           []byte // empty for none
	DID                            string // of the agent
	Created                        int64  // Unix seconds
	Nonce                          string
}

// RequestOf returns the parts of a request with a method and a URL.
func RequestOf(method string, u *url.URL) *SignedRequest {
	host := strings.ToLower(u.Host)
	switch u.Scheme {
	case "https":
		host = strings.TrimSuffix(host, ":443")
	case "http":
		host = strings.TrimSuffix(host, ":80")
	}
	path := u.EscapedPath()
	if path == "" {
		path = "/"
	}
	return &SignedRequest{Method: method, Authority: host, Path: path, Query: u.RawQuery}
}

// params returns the signature parameters and, for a request with a body, its digest.
func (r *SignedRequest) params() (params, digest string) {
	names := `"@method" "@authority" "@path" "@query"`
	if len(r.Body) > 0 {
		sum := sha256.Sum256(r.Body)
		digest = "sha-256=:" + base64.StdEncoding.EncodeToString(sum[:]) + ":"
		names += ` "content-digest"`
	}
	return fmt.Sprintf(`(%s);created=%d;nonce="%s";keyid="%s#key-1";alg="ed25519";tag="air-relay"`,
		names, r.Created, r.Nonce, r.DID), digest
}

// base returns the signature base.
func (r *SignedRequest) base(params, digest string) string {
	b := fmt.Sprintf("\"@method\": %s\n\"@authority\": %s\n\"@path\": %s\n\"@query\": ?%s\n", r.Method, r.Authority, r.Path, r.Query)
	if digest != "" {
		b += `"content-digest": ` + digest + "\n"
	}
	return b + `"@signature-params": ` + params
}

// Sign signs the request, sets the headers and returns the signature base.
func (r *SignedRequest) Sign(h http.Header, key crypto.Signer) (base string, err error) {
	params, digest := r.params()
	base = r.base(params, digest)
	signature, err := key.Sign(nil, []byte(base), crypto.Hash(0))
	if err != nil {
		return "", err
	}
	h.Set(inputHeader, "air="+params)
	h.Set(signatureHeader, "air=:"+base64.StdEncoding.EncodeToString(signature)+":")
	if digest != "" {
		h.Set(digestHeader, digest)
	}
	return base, nil
}

// IsSigned reports whether a request has a signature.
func IsSigned(h http.Header) bool { return len(h[inputHeader]) > 0 || len(h[signatureHeader]) > 0 }

var errSignature = errors.New("the signature of the request is not valid")

// ReadSignature fills in the DID, the time and the nonce of a signature, and returns a function that
// verifies it with the key of that agent. The error is for the peer.
func (r *SignedRequest) ReadSignature(h http.Header, now time.Time) (verify func(key ed25519.PublicKey) error, err error) {
	if len(h[inputHeader]) != 1 || len(h[signatureHeader]) != 1 || len(h[digestHeader]) > 1 {
		return nil, errSignature
	}
	in, sig := inputForm.FindStringSubmatch(h.Get(inputHeader)), signatureForm.FindStringSubmatch(h.Get(signatureHeader))
	if in == nil || sig == nil || (in[2] != "") != (len(r.Body) > 0) {
		return nil, errSignature
	}
	r.Nonce, r.DID = in[4], in[5]
	r.Created, _ = strconv.ParseInt(in[3], 10, 64) // has at most 12 digits
	age := now.Sub(time.Unix(r.Created, 0))
	signature, err := base64.StdEncoding.Strict().DecodeString(sig[1])
	_, digest := r.params()
	if err != nil || age > MaxRequestAge || age < -MaxRequestAge || h.Get(digestHeader) != digest {
		return nil, errSignature
	}
	return func(key ed25519.PublicKey) error {
		if !ed25519.Verify(key, []byte(r.base(in[1], digest)), signature) {
			return errSignature
		}
		return nil
	}, nil
}
