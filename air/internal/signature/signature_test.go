// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package signature

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
		newRequest := func() *Request {
			r := Of(method, u)
			r.Body = body
			return r
		}
		signed := newRequest()
		signed.DID, signed.Created, signed.Nonce = did, created, "AAAAAAAAAAAAAAAAAAAAAA"
		h := make(http.Header)
		require.NoError(t, signed.Sign(h, key))
		now := time.Unix(created, 0)
		received := newRequest()
		verify, err := received.Read(h, now)
		if created < 0 || created >= 1e12 || !regexp.MustCompile(`^[^"\\]{1,510}$`).MatchString(did) {
			return // without a form
		}
		require.NoError(t, err)
		require.NoError(t, verify(public))
		require.Equal(t, *signed, *received)
		require.Equal(t, signed.Base(), received.Base())

		for _, change := range []func(r *Request){
			func(r *Request) { r.Method += "X" },
			func(r *Request) { r.Authority += "x" },
			func(r *Request) { r.Path += "x" },
			func(r *Request) { r.Query += "x" },
			func(r *Request) { r.Body = append(bytes.Clone(r.Body), 'x') },
		} {
			changed := newRequest()
			change(changed)
			verify, err := changed.Read(h, now)
			require.True(t, err != nil || verify(public) != nil)
		}
		for _, late := range []time.Duration{MaxAge + time.Second, -MaxAge - time.Second} {
			_, err = newRequest().Read(h, now.Add(late))
			require.Error(t, err)
		}
	})
}
