// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package air

import (
	"bytes"
	"crypto/ed25519"
	"net/netip"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/internal/netguard"
	"github.com/fivewire/fivewire/internal/testkit"
)

// A signed object verifies in the form in which it was signed, and in no other one; signing changes
// nothing but the signature.
func FuzzSign(f *testing.F) {
	f.Add([]byte(`{}`), true)
	f.Add([]byte(`{"a":[1,{"é":"e\u0301"}],"signature":null,"z":-0}`), false)
	f.Add([]byte(`{"sign":1,"signaturf":{"signature":2}}`), true)
	id, err := NewIdentity("did:wba:agentidentityregistry.org:agents:AIR-A11C-E000-0001", bytes.Repeat([]byte{7}, 32))
	require.NoError(f, err)
	f.Fuzz(func(t *testing.T, object []byte, isSpec bool) {
		form, other := FormDeployed, FormSpec
		if isSpec {
			form, other = FormSpec, FormDeployed
		}
		signed, err := Sign(object, id.Signer(), form)
		if err != nil {
			return
		}
		got, err := Verify(signed, id.PublicKey(), "")
		require.NoError(t, err)
		require.Equal(t, form, got)
		_, err = Verify(signed, id.PublicKey(), other)
		require.ErrorIs(t, err, ErrBadSignature)
		before, err := signingInput(object, form)
		require.NoError(t, err)
		after, err := signingInput(signed, form)
		require.NoError(t, err)
		require.Equal(t, string(before), string(after))
		canonical, err := Canonicalize(signed)
		require.NoError(t, err)
		require.Equal(t, string(signed), string(canonical))
	})
}

// A sealed body opens to its canonical form, and only with its binding.
func FuzzSealed(f *testing.F) {
	f.Add([]byte(`{"type":"note","text":"e\u0301"}`), "id", "from", "to", "thread")
	f.Add([]byte(`{"b":1, "a":[ ]}`), "i", "f", "t", "h")
	seed := bytes.Repeat([]byte{7}, ed25519.SeedSize)
	id, err := NewIdentity("did:wba:agentidentityregistry.org:agents:AIR-A11C-E000-0001", seed)
	require.NoError(f, err)
	box, err := newBoxKey(seed)
	require.NoError(f, err)
	f.Fuzz(func(t *testing.T, body []byte, envelopeID, from, to, thread string) {
		b := Binding{ID: envelopeID, From: from, To: to, ThreadID: thread}
		sealed, err := Seal(id.PublicKey(), b, body)
		if err != nil {
			return
		}
		want, err := Canonicalize(body)
		require.NoError(t, err)
		got, err := box.openBody(b, sealed)
		require.NoError(t, err)
		require.Equal(t, string(want), string(got))
		b.ID += "x"
		_, err = box.openBody(b, sealed)
		require.ErrorIs(t, err, ErrDecryptFailed)
	})
}

// oddHost matches hosts that systems take for addresses in other spellings.
var oddHost = regexp.MustCompile(`(^|\.)(0[xX][0-9a-fA-F]*|[0-9]+)$`)

// An accepted endpoint is https at a public address or at a name.
func FuzzEndpoint(f *testing.F) {
	for _, text := range []string{
		"https://relay.example/inbox/a", "/inbox/a", "https://127.1/", "https://2130706433/", "https://0x7f.1/", "https://[::ffff:10.0.0.1]/",
		"https://[64:ff9b::a00:1]/", "https://100.64.0.1/", "https://8.8.8.8./", "https://localhost./", "https://a.localhost/", "//[::]/", "http://relay.example/",
		"https://user@relay.example/", "https://relay.example/#", "https://[fe80::1%25eth0]/", "https://198.18.0.1/", "https://[2002:7f00:1::]/", "https://１２７.1/", "//0A.0", "https://example.1./", "//::1",
	} {
		f.Add(text, true)
	}
	f.Fuzz(func(t *testing.T, text string, isSpec bool) {
		o := &EndpointOptions{Dialect: DialectDeployed}
		if isSpec {
			o.Dialect = DialectSpec
		}
		e, err := parseEndpoint(text, o)
		if err != nil {
			require.ErrorIs(t, err, ErrBadEndpoint)
			return
		}
		for _, address := range []string{e.URL, e.Pull, e.Ack} {
			u, err := url.Parse(address)
			require.NoError(t, err)
			require.Equal(t, "https", u.Scheme)
			require.Nil(t, u.User)
			require.Empty(t, u.Fragment)
			host := strings.TrimSuffix(u.Hostname(), ".")
			require.NotEmpty(t, host)
			if addr, err := netip.ParseAddr(host); err == nil {
				require.True(t, netguard.Public(addr), host)
				continue
			}
			require.False(t, strings.EqualFold(host, "localhost") || strings.HasSuffix(strings.ToLower(host), ".localhost"), host)
			require.NotRegexp(t, oddHost, host)
		}
	})
}

// A full cache of documents takes another one without a walk over all of them.
func TestFullCacheCostsNoWalk(t *testing.T) {
	testkit.RequireLess(t, 20, 50, 50_000, func(entries int) time.Duration {
		r := &Resolver{opts: ResolverOptions{MaxCacheEntries: entries}, entries: map[string]cached{}}
		insert := func(n int) { r.insertLocked(strconv.Itoa(n), cached{expires: time.Now().Add(time.Hour)}) }
		for n := range entries + 1 {
			insert(n)
		}
		start := time.Now()
		for n := range 200 {
			insert(entries + 1 + n)
		}
		require.Len(t, r.entries, entries)
		return time.Since(start)
	})
}
