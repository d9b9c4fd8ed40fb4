// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package a2abridge

import (
	"cmp"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"encoding/asn1"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/big"
	"slices"

	"github.com/a2aproject/a2a-go/v2/a2a"
	"github.com/cyberphone/json-canonicalization/go/src/webpki.org/jsoncanonicalizer"

	"github.com/fivewire/fivewire/arc"
)

// NewCard returns the card of an agent that is served under the URLs of a [Server.JSONRPCHandler] and of a
// [Server.RESTHandler]; an empty URL is omitted. Skills are the capabilities of the agent, or else the agent itself. The
// card names no security scheme.
func NewCard(info arc.AgentInfo, jsonrpcURL, restURL string) (*a2a.AgentCard, error) {
	name := cmp.Or(info.Name, info.AgentID)
	if name == "" || jsonrpcURL == "" && restURL == "" {
		return nil, errors.New("a2abridge: card: no name or no URL")
	}
	card := &a2a.AgentCard{Name: name, Description: cmp.Or(info.Description, info.Prompt, name), Version: cmp.Or(info.Version, "1"),
		Capabilities:      a2a.AgentCapabilities{Streaming: true, PushNotifications: true},
		DefaultInputModes: []string{"text/plain", "application/json", "application/octet-stream"}}
	card.DefaultOutputModes = card.DefaultInputModes
	for _, c := range info.Capabilities {
		card.Skills = append(card.Skills, a2a.AgentSkill{ID: c, Name: c, Description: c, Tags: []string{c}})
	}
	if len(card.Skills) == 0 {
		id := cmp.Or(info.AgentID, name)
		card.Skills = []a2a.AgentSkill{{ID: id, Name: name, Description: card.Description, Tags: []string{id}}}
	}
	if jsonrpcURL != "" {
		card.SupportedInterfaces = append(card.SupportedInterfaces, a2a.NewAgentInterface(jsonrpcURL, a2a.TransportProtocolJSONRPC))
	}
	if restURL != "" {
		card.SupportedInterfaces = append(card.SupportedInterfaces, a2a.NewAgentInterface(restURL, a2a.TransportProtocolHTTPJSON))
	}
	return card, nil
}

// SignCard adds a signature to a card: a detached JWS over its canonical form (RFC 8785) without signatures. The key is an
// Ed25519 key or an ECDSA key on P-256, and keyID its name for verifiers. A card with an empty text, list or object
// is refused, because implementations differ in whether that is a part of the canonical form.
func SignCard(card *a2a.AgentCard, key crypto.Signer, keyID string) error {
	if card == nil || key == nil {
		return errors.New("a2abridge: sign card: no card or no key")
	}
	header := map[string]string{"typ": "JOSE", "kid": keyID}
	switch public := key.Public().(type) {
	case ed25519.PublicKey:
		header["alg"] = "EdDSA"
	case *ecdsa.PublicKey:
		if public.Curve != elliptic.P256() {
			return errors.New("a2abridge: sign card: the curve is not P-256")
		}
		header["alg"] = "ES256"
	default:
		return fmt.Errorf("a2abridge: sign card: a key of type %T", public)
	}
	text, err := json.Marshal(header)
	if err != nil {
		return fmt.Errorf("a2abridge: sign card: %w", err)
	}
	payload, err := canonical(card)
	if err != nil {
		return fmt.Errorf("a2abridge: sign card: %w", err)
	}
	protected := base64.RawURLEncoding.EncodeToString(text)
	sum, err := sign(key, []byte(protected+"."+base64.RawURLEncoding.EncodeToString(payload)))
	if err != nil {
		return fmt.Errorf("a2abridge: sign card: %w", err)
	}
	card.Signatures = append(card.Signatures, a2a.AgentCardSignature{Protected: protected, Signature: base64.RawURLEncoding.EncodeToString(sum)})
	return nil
}

// canonical returns the signed text of a card.
func canonical(card *a2a.AgentCard) ([]byte, error) {
	plain := *card
	plain.Signatures = nil
	text, err := json.Marshal(&plain)
	if err != nil {
		return nil, err
	}
	if text, err = jsoncanonicalizer.Transform(text); err != nil {
		return nil, err
	}
	var content any
	if err := json.Unmarshal(text, &content); err != nil {
		return nil, err
	}
	if hasEmpty(content) {
		return nil, fmt.Errorf("the card has an empty member: %s", text)
	}
	return text, nil
}

// hasEmpty reports whether decoded JSON is or has null, or an empty text, list or object.
func hasEmpty(content any) bool {
	switch v := content.(type) {
	case nil:
		return true
	case string:
		return v == ""
	case []any:
		return len(v) == 0 || slices.ContainsFunc(v, hasEmpty)
	case map[string]any:
		return len(v) == 0 || slices.ContainsFunc(slices.Collect(maps.Values(v)), hasEmpty)
	}
	return false
}

// sign returns the signature of a text as JWS has it.
func sign(key crypto.Signer, text []byte) ([]byte, error) {
	if _, ok := key.Public().(ed25519.PublicKey); ok {
		return key.Sign(rand.Reader, text, crypto.Hash(0))
	}
	sum := sha256.Sum256(text)
	der, err := key.Sign(rand.Reader, sum[:], crypto.SHA256)
	if err != nil {
		return nil, err
	}
	var pair struct{ R, S *big.Int }
	if _, err := asn1.Unmarshal(der, &pair); err != nil {
		return nil, err
	}
	out := make([]byte, 64)
	pair.R.FillBytes(out[:32])
	pair.S.FillBytes(out[32:])
	return out, nil
}
