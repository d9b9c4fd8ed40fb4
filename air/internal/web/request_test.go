// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package web

import (
	"bytes"
	"crypto/ed25519"
	"net/http"
	"net/url"
	"regexp"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A signed request verifies as it was signed, and not with another part.
func FuzzSignedRequest(f *testing.F) {
	f.Add("GET", "https://relay.example/inbox/a/pull?since=x", []byte(nil), "did:wba:a:AIR-A11C-E000-0001", int64(1_800_000_000))
	f.Add("POST", "https://Relay.example:443/inbox/%61/ack", []byte(`{"envelope_ids":[]}`), "did:x", int64(0))
	key := ed25519.NewKeyFromSeed(bytes.Repeat([]byte{7}, 32))
	public := key.Public().(ed25519.PublicKey)
	f.Fuzz(func(t *testing.T, method, target string, body []byte, did string, created int64) {
		u, err := url.Parse(target)
		if err != nil {
			return
		}
		newRequest := func() *SignedRequest {
			r := RequestOf(method, u)
			r.Body = body
			return r
		}
		signed := newRequest()
		signed.DID, signed.Created, signed.Nonce = did, created, "AAAAAAAAAAAAAAAAAAAAAA"
		h := make(http.Header)
		base, err := signed.Sign(h, key)
		require.NoError(t, err)
		now := time.Unix(created, 0)
		received := newRequest()
		verify, err := received.ReadSignature(h, now)
		if created < 0 || created >= 1e12 || !regexp.MustCompile(`^[^"\\]{1,510}$`).MatchString(did) {
			return // without a form
		}
		require.NoError(t, err)
		require.NoError(t, verify(public))
		require.Equal(t, *signed, *received)
		params, digest := received.params()
		require.Equal(t, base, received.base(params, digest))

		for _, change := range []func(r *SignedRequest){
			func(r *SignedRequest) { r.Method += "X" },
			func(r *SignedRequest) { r.Authority += "x" },
			func(r *SignedRequest) { r.Path += "x" },
			func(r *SignedRequest) { r.Query += "x" },
			func(r *SignedRequest) { r.Body = append(bytes.Clone(r.Body), 'x') },
		} {
			changed := newRequest()
			change(changed)
			verify, err := changed.ReadSignature(h, now)
			require.True(t, err != nil || verify(public) != nil)
		}
		for _, late := range []time.Duration{MaxRequestAge + time.Second, -MaxRequestAge - time.Second} {
			_, err = newRequest().ReadSignature(h, now.Add(late))
			require.Error(t, err)
		}
	})
}
