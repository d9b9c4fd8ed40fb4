// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

// Package signature signs and verifies requests to a relay by HTTP Message Signatures (RFC 9421, AIR-D90).
package signature

import (
	"crypto"
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"net/http"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// Headers of a signed request.
const (
	signatureHeader = "Signature"
	inputHeader     = "Signature-Input"
	digestHeader    = "Content-Digest"
)

// MaxAge bounds the difference of a signature's time from the clock of the relay.
const MaxAge = time.Minute

var (
	inputForm = regexp.MustCompile(`^air=(\("@method" "@authority" "@path" "@query"( "content-digest")?\);created=(\d{1,12});` +
		`nonce="([A-Za-z0-9_-]{22})";keyid="([^"\\]{1,510})#key-1";alg="ed25519";tag="air-relay")$`)
	signatureForm = regexp.MustCompile(`^air=:([A-Za-z0-9+/]{86}==):$`)
)

// A Request has the signed parts of a request to a relay.
type Request struct {
	Method, Authority, Path, Query string // Path and Query as in the request, without "?"
	Body                           []byte // empty for none
	DID                            string // of the agent
	Created                        int64  // Unix seconds
	Nonce                          string
}

// Of returns the parts of a request with a method and a URL.
func Of(method string, u *url.URL) *Request {
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
	return &Request{Method: method, Authority: host, Path: path, Query: u.RawQuery}
}

// digest returns the header of the digest of the body, "" for none.
func (r *Request) digest() string {
	if len(r.Body) == 0 {
		return ""
	}
	sum := sha256.Sum256(r.Body)
	return "sha-256=:" + base64.StdEncoding.EncodeToString(sum[:]) + ":"
}

// appendParams appends the signature parameters.
func (r *Request) appendParams(b []byte) []byte {
	b = append(b, `("@method" "@authority" "@path" "@query"`...)
	if len(r.Body) > 0 {
		b = append(b, ` "content-digest"`...)
	}
	b = strconv.AppendInt(append(b, `);created=`...), r.Created, 10)
	b = append(append(b, `;nonce="`...), r.Nonce...)
	b = append(append(b, `";keyid="`...), r.DID...)
	return append(b, `#key-1";alg="ed25519";tag="air-relay"`...)
}

// appendBase appends the signature base. It ends with the signature parameters.
func (r *Request) appendBase(b []byte, digest string) []byte {
	for _, part := range [...][2]string{{"method", r.Method}, {"authority", r.Authority}, {"path", r.Path}, {"query", r.Query}} {
		b = append(append(append(b, `"@`...), part[0]...), `": `...)
		if part[0] == "query" {
			b = append(b, '?')
		}
		b = append(append(b, part[1]...), '\n')
	}
	if digest != "" {
		b = append(append(append(b, `"content-digest": `...), digest...), '\n')
	}
	return r.appendParams(append(b, `"@signature-params": `...))
}

// Base returns the signature base.
func (r *Request) Base() string { return string(r.appendBase(nil, r.digest())) }

// Sign signs the request and sets the headers.
func (r *Request) Sign(h http.Header, key crypto.Signer) error {
	var array [1 << 10]byte
	digest := r.digest()
	base := r.appendBase(array[:0], digest)
	signature, err := key.Sign(nil, base, crypto.Hash(0))
	if err != nil {
		return err
	}
	var text [512]byte
	values := []string{string(r.appendParams(append(text[:0], "air="...))), "", digest}
	coded := base64.StdEncoding.AppendEncode(append(text[:0], "air=:"...), signature)
	values[1] = string(append(coded, ':'))
	h[inputHeader], h[signatureHeader] = values[0:1:1], values[1:2:2]
	if digest != "" {
		h[digestHeader] = values[2:3:3]
	}
	return nil
}

// Is reports whether a request has a signature.
func Is(h http.Header) bool { return len(h[inputHeader]) > 0 || len(h[signatureHeader]) > 0 }

var (
	errSignature = errors.New("the signature of the request is not valid")
	errTime      = errors.New("the time of the signature differs from this clock by over a minute")
)

// Read fills in the DID, the time and the nonce of a signature, and returns a function that
// verifies it with the key of that agent. The error is for the peer.
func (r *Request) Read(h http.Header, now time.Time) (verify func(key ed25519.PublicKey) error, err error) {
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
	digest := r.digest()
	if err != nil || h.Get(digestHeader) != digest {
		return nil, errSignature
	}
	if age > MaxAge || age < -MaxAge {
		return nil, errTime
	}
	return func(key ed25519.PublicKey) error {
		b := r.appendBase(nil, digest)
		b = append(b[:len(b)-len(r.appendParams(nil))], in[1]...) // as received
		if !ed25519.Verify(key, b, signature) {
			return errSignature
		}
		return nil
	}, nil
}
