// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package a2abridge_test

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"math/big"
	"testing"
	"testing/synctest"

	"github.com/a2aproject/a2a-go/v2/a2a"
	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/arc"
	"github.com/fivewire/fivewire/arc/a2abridge"
)

// signedText is the canonical form of the card of TestSignCard, by hand.
const signedText = `{"capabilities":{"pushNotifications":true,"streaming":true},"defaultInputModes":["text/plain","application/json",` +
	`"application/octet-stream"],"defaultOutputModes":["text/plain","application/json","application/octet-stream"],"description":"Grüße",` +
	`"name":"worker-01","skills":[{"description":"work","id":"work","name":"work","tags":["work"]}],"supportedInterfaces":[{"protocolBinding":"JSONRPC",` +
	`"protocolVersion":"1.0","url":"https://agents.example/a2a"}],"version":"1"}`

// A signature covers the canonical form of the card without signatures.
func TestSignCard(t *testing.T) {
	card, err := a2abridge.NewCard(arc.AgentInfo{AgentID: "worker-01", Prompt: "Grüße", Capabilities: []string{"work"}}, "https://agents.example/a2a", "")
	require.NoError(t, err)
	_, edKey, err := ed25519.GenerateKey(rand.Reader)
	require.NoError(t, err)
	ecKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	for i, key := range []crypto.Signer{edKey, ecKey} {
		require.NoError(t, a2abridge.SignCard(card, key, "key-1"))
		s := card.Signatures[i]
		header, err := base64.RawURLEncoding.DecodeString(s.Protected)
		require.NoError(t, err)
		require.JSONEq(t, `{"typ":"JOSE","kid":"key-1","alg":"`+[]string{"EdDSA", "ES256"}[i]+`"}`, string(header))
		sum, err := base64.RawURLEncoding.DecodeString(s.Signature)
		require.NoError(t, err)
		text := []byte(s.Protected + "." + base64.RawURLEncoding.EncodeToString([]byte(signedText)))
		if i == 0 {
			require.True(t, ed25519.Verify(edKey.Public().(ed25519.PublicKey), text, sum))
			continue
		}
		require.Len(t, sum, 64)
		digest := sha256.Sum256(text)
		require.True(t, ecdsa.Verify(&ecKey.PublicKey, digest[:], new(big.Int).SetBytes(sum[:32]), new(big.Int).SetBytes(sum[32:])))
	}
	rsaKey, err := rsa.GenerateKey(rand.Reader, 2048)
	require.NoError(t, err)
	require.ErrorContains(t, a2abridge.SignCard(card, rsaKey, "k"), "type")
	p384, err := ecdsa.GenerateKey(elliptic.P384(), rand.Reader)
	require.NoError(t, err)
	require.ErrorContains(t, a2abridge.SignCard(card, p384, "k"), "P-256")
	require.ErrorContains(t, a2abridge.SignCard(card, nil, "k"), "no key")
	require.ErrorContains(t, a2abridge.SignCard(nil, edKey, "k"), "no card")
}

// A card with an empty text, list or object in any place is refused, and one whose texts look like that is not.
func TestSignCardRefusesEmpty(t *testing.T) {
	_, key, err := ed25519.GenerateKey(rand.Reader)
	require.NoError(t, err)
	for _, tt := range []struct {
		name    string
		edit    func(c *a2a.AgentCard)
		isEmpty bool
	}{
		{"text", func(c *a2a.AgentCard) { c.Skills[0].Description = "" }, true},
		{"text in a list", func(c *a2a.AgentCard) { c.Skills[0].Tags = []string{"a", ""} }, true},
		{"list", func(c *a2a.AgentCard) { c.Skills = []a2a.AgentSkill{} }, true},
		{"object", func(c *a2a.AgentCard) {
			c.Capabilities.Extensions = []a2a.AgentExtension{{URI: "urn:x", Params: map[string]any{"a": map[string]any{}}}}
		}, true},
		{"object in a list", func(c *a2a.AgentCard) {
			c.Capabilities.Extensions = []a2a.AgentExtension{{URI: "urn:x", Params: map[string]any{"a": []any{map[string]any{}}}}}
		}, true},
		{"null", func(c *a2a.AgentCard) {
			c.Capabilities.Extensions = []a2a.AgentExtension{{URI: "urn:x", Params: map[string]any{"a": []any{nil}}}}
		}, true},
		{"texts of JSON", func(c *a2a.AgentCard) { c.Description = `{"a":"","b":[],"c":{},"d":null} a:[] b:{} c:null` }, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			card, err := a2abridge.NewCard(arc.AgentInfo{AgentID: "worker-01"}, "https://agents.example/a2a", "")
			require.NoError(t, err)
			tt.edit(card)
			err = a2abridge.SignCard(card, key, "k")
			if tt.isEmpty {
				require.ErrorContains(t, err, "empty member")
			} else {
				require.NoError(t, err)
			}
		})
	}
}

// An extended card is for callers that are authenticated.
func TestExtendedCard(t *testing.T) {
	eachTransport(t, func(t *testing.T, protocol a2a.TransportProtocol) {
		f := newFixture(t, nil, ask)
		c := f.clients[protocol]
		for name, want := range map[string]error{"alice": nil, "nobody": a2a.ErrUnauthenticated, "weak": a2a.ErrUnauthorized} {
			card, err := c.GetExtendedAgentCard(as(t.Context(), name), &a2a.GetExtendedAgentCardRequest{})
			if want != nil {
				require.ErrorIs(t, err, want, name)
				continue
			}
			require.NoError(t, err)
			require.Equal(t, "extended", card.Name)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, nil, ask)
		bridge, err := a2abridge.NewServer(f.engine, "worker-01", nil)
		require.NoError(t, err)
		_, err = bridge.GetExtendedAgentCard(t.Context(), &a2a.GetExtendedAgentCardRequest{})
		require.ErrorIs(t, err, a2a.ErrExtendedCardNotConfigured)
	})
}

// A card has a member for each part of the agent, and none that is empty.
func TestNewCard(t *testing.T) {
	card, err := a2abridge.NewCard(arc.AgentInfo{AgentID: "worker-01"}, "", "https://agents.example/rest")
	require.NoError(t, err)
	text, err := json.Marshal(card)
	require.NoError(t, err)
	require.NotContains(t, string(text), `""`)
	require.NotContains(t, string(text), `[]`)
	require.Equal(t, "worker-01", card.Skills[0].ID)
	require.True(t, card.Capabilities.PushNotifications)
}
