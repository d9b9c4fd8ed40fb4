// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package interop_test

import (
	"bytes"
	"crypto/ed25519"
	"encoding/hex"
	"encoding/json"
	"net/http/httptest"
	"testing"

	"github.com/fivewire/fivewire/air"
	"github.com/fivewire/fivewire/air/airtest"
	"github.com/fivewire/fivewire/air/probe"
	"github.com/fivewire/fivewire/air/registry"
	"github.com/stretchr/testify/require"
)

// The Python package agent-identity-registry, the client of the public registry, against the fake-in that our tests
// use for it, side by side with our client: what one writes, the other reads.
func TestAIRPythonRegistryClient(t *testing.T) {
	t.Parallel()
	fake := &airtest.Registry{}
	ts := httptest.NewServer(fake)
	defer ts.Close()
	ours, err := registry.NewClient(&registry.Options{RegistryURL: ts.URL, AllowLoopback: true})
	require.NoError(t, err)
	p := python(t, "air_registry.py")
	p.do(request{"op": "connect", "url": ts.URL})
	call := func(method string, args []any, kwargs request) json.RawMessage {
		t.Helper()
		return p.do(request{"op": "call", "method": method, "args": args, "kwargs": kwargs})
	}
	fails := func(method string, args []any, kwargs request) string {
		t.Helper()
		return p.fails(request{"op": "call", "method": method, "args": args, "kwargs": kwargs}).Class
	}
	ctx := t.Context()
	key := func(b byte) (string, *air.PublicKey) {
		seed := bytes.Repeat([]byte{b}, ed25519.SeedSize)
		pub, err := air.NewPublicKey(ed25519.NewKeyFromSeed(seed).Public().(ed25519.PublicKey))
		require.NoError(t, err)
		return hex.EncodeToString(seed), pub
	}
	theirSeed, theirPub := key(1)
	_, ourPub := key(2)

	require.Equal(t, `"ok"`, member(t, call("get_health", nil, nil), "status"))
	require.Equal(t, `false`, member(t, call("check_name", []any{"Wetter"}, nil), "exists"))

	var reg struct {
		AIRID  string `json:"air_id"`
		DID    string `json:"creator_did"`
		Secret string `json:"agent_secret"`
	}
	out := call("register_agent", nil, request{"name": "Wetter", "description": "Grüße 😀", "public_key": b64(theirPub.Bytes()), "creator_name": "Example",
		"capabilities": []string{"weather"}, "open_source": true, "code_repository": "https://example.org/repo"})
	require.NoError(t, json.Unmarshal(out, &reg), "%s", out)
	require.Regexp(t, `^AIR(-[0-9A-Z]{4}){3}$`, reg.AIRID)
	require.NotEmpty(t, reg.Secret)
	require.Equal(t, `true`, member(t, call("check_name", []any{"Wetter"}, nil), "exists"))

	// The Go client finds the agent registered by Python: the entry, and the document with the keys to verify and to seal.
	agent, err := ours.GetAgent(ctx, reg.AIRID)
	require.NoError(t, err)
	require.Equal(t, "Wetter", agent.Name)
	require.Equal(t, []string{"weather"}, agent.Capabilities)
	require.True(t, agent.Transparency.OpenSource)
	doc, err := ours.GetDocument(ctx, reg.AIRID)
	require.NoError(t, err)
	found, err := doc.SigningKey(reg.DID)
	require.NoError(t, err)
	require.True(t, found.Equal(theirPub))

	// A probe says that this agent has no inbox.
	resolver, err := air.NewResolver(&air.ResolverOptions{RegistryURL: ts.URL, AllowLoopback: true})
	require.NoError(t, err)
	defer resolver.Close()
	_, err = probe.Probe(ctx, reg.DID, &probe.Options{Resolver: resolver, AllowLoopback: true})
	require.ErrorIs(t, err, air.ErrUnreachable)

	// And the other way round.
	mine, err := ours.Register(ctx, &registry.RegisterParams{Name: "Go agent", Description: "ä", PublicKey: ourPub, Capabilities: []string{"x"}})
	require.NoError(t, err)
	got := call("get_agent", []any{mine.AIRID}, nil)
	require.Equal(t, `"Go agent"`, member(t, got, "name"))
	require.Equal(t, `["x"]`, member(t, got, "capabilities"))
	document := call("get_did_document", []any{mine.AIRID}, nil)
	require.Equal(t, `"`+mine.DID+`"`, member(t, document, "id"))
	require.Contains(t, string(document), ourPub.String())
	require.Contains(t, string(call("get_trust_score", []any{mine.AIRID}, nil)), mine.AIRID)
	require.Contains(t, string(call("list_agents", nil, request{"limit": 10})), mine.AIRID)

	call("update_agent", []any{reg.AIRID}, request{"agent_secret": reg.Secret, "description": "changed", "capabilities": []string{"weather", "tide"}})
	agent, err = ours.GetAgent(ctx, reg.AIRID)
	require.NoError(t, err)
	require.Equal(t, []string{"weather", "tide"}, agent.Capabilities)
	require.Equal(t, "AuthenticationError", fails("update_agent", []any{reg.AIRID}, request{"agent_secret": "wrong", "description": "x"}))
	require.Equal(t, "AgentNotFoundError", fails("get_agent", []any{"AIR-0000-0000-0000"}, nil))
	require.Equal(t, "AgentNotFoundError", fails("get_did_document", []any{"AIR-0000-0000-0000"}, nil))
	require.Equal(t, "ValidationError", fails("register_agent", nil, request{"name": "No key"}))

	// An attestation that Python signs is one that Go verifies.
	attest := p.do(request{"op": "call", "method": "attest", "args": []any{mine.AIRID}, "seed": theirSeed, "kwargs": request{
		"attester_air_id": reg.AIRID, "attestation_type": registry.SafetyReview, "agent_secret": reg.Secret, "statement": "gut: \"ü\" \u2028 😀"}})
	require.Equal(t, `"`+mine.AIRID+`"`, member(t, attest, "subject_air_id"))
	all, err := ours.ListAttestations(ctx, mine.AIRID)
	require.NoError(t, err)
	require.Len(t, all.List, 1)
	require.NoError(t, all.List[0].Verify(mine.AIRID, theirPub))
	require.Error(t, all.List[0].Verify(mine.AIRID, ourPub))
	require.Equal(t, "gut: \"ü\" \u2028 😀", all.List[0].Statement)
	listed := call("list_attestations", []any{mine.AIRID}, nil)
	require.Contains(t, string(listed), `"is_active": true`)
	require.Contains(t, string(call("recent_attestations", nil, nil)), reg.AIRID)
	// Both sign the same text. Characters that the peer does not escape are where it leaves RFC 8785: none that ours would.
	sign := func(statement string) string {
		var s string
		p.into(&s, request{"op": "sign", "seed": theirSeed, "kwargs": request{"attester_air_id": "AIR-A", "attestation_type": registry.Dependency,
			"signed_at": "2026-01-15T10:30:00Z", "subject_air_id": "AIR-B", "statement": statement}})
		return s
	}
	seed, err := hex.DecodeString(theirSeed)
	require.NoError(t, err)
	for _, statement := range []string{"", "plain", "\"\\/\b\f\n\r\t\x00\x1f\x7f\u0085\u2028\U0010ffff", "<&>é"} {
		text, err := json.Marshal(map[string]string{"attester_air_id": "AIR-A", "attestation_type": registry.Dependency, "signed_at": "2026-01-15T10:30:00Z", "subject_air_id": "AIR-B", "statement": statement})
		require.NoError(t, err)
		signed, err := air.Sign(text, ed25519.NewKeyFromSeed(seed), air.FormDeployed)
		require.NoError(t, err)
		require.Equal(t, member(t, signed, "signature"), `"`+sign(statement)+`"`, "%q", statement)
	}
	var id int64
	require.NoError(t, json.Unmarshal([]byte(member(t, attest, "attestation_id")), &id))
	call("revoke_attestation", []any{mine.AIRID, id}, request{"agent_secret": reg.Secret})
	all, err = ours.ListAllAttestations(ctx, mine.AIRID)
	require.NoError(t, err)
	require.False(t, all.List[0].Active)

	// The registry has no operator endpoints. Without a key, the Python client raises the error itself.
	require.Equal(t, "AuthenticationError", fails("get_admin_stats", nil, nil))
	fake.SetFailure(503)
	require.Equal(t, "ServerError", fails("get_health", nil, nil))
}
