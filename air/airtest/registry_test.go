// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package airtest_test

import (
	"crypto/ed25519"
	"encoding/base64"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"

	"github.com/mr-tron/base58"
	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/air/airtest"
	"github.com/fivewire/fivewire/air/internal/name"
)

// ask sends one request and returns the status and the members of the answer.
func ask(t *testing.T, r *airtest.Registry, method, path, body, secret string) (int, map[string]any, http.Header) {
	t.Helper()
	req := httptest.NewRequest(method, "/api/v1/"+path, strings.NewReader(body))
	if secret != "" {
		req.Header.Set("X-Agent-Secret", secret)
	}
	rec := httptest.NewRecorder()
	r.ServeHTTP(rec, req)
	var m map[string]any
	require.NoError(t, json.Unmarshal(rec.Body.Bytes(), &m), rec.Body.String())
	return rec.Code, m, rec.Header()
}

// has fails unless the answer holds all members that the published clients need.
func has(t *testing.T, m map[string]any, names ...string) {
	t.Helper()
	for _, name := range names {
		require.Contains(t, m, name)
	}
}

func TestRegistryAnswers(t *testing.T) {
	r := &airtest.Registry{}
	priv := ed25519.NewKeyFromSeed(make([]byte, 32))
	pub := priv.Public().(ed25519.PublicKey)
	key := base64.RawURLEncoding.EncodeToString(pub)
	register := func(agent string) (id, secret string) {
		status, m, _ := ask(t, r, "POST", "agents/register", `{"name":"`+agent+`","public_key":"`+key+`=","creator_type":"individual","open_source":true}`, "")
		require.Equal(t, 201, status)
		has(t, m, "air_id", "name", "creator_did", "status", "verification_level", "trust_score", "trust_grade", "created", "agent_secret", "agent_secret_note", "message")
		require.Equal(t, key, m["public_key"])
		require.True(t, name.IsAIRID(m["air_id"].(string)))
		return m["air_id"].(string), m["agent_secret"].(string)
	}
	one, _ := register("one")
	two, secret := register("two")

	status, m, _ := ask(t, r, "GET", "health", "", "")
	require.Equal(t, 200, status)
	has(t, m, "status", "version", "registry")
	_, m, _ = ask(t, r, "GET", "agents?limit=1&offset=1", "", "")
	has(t, m, "agents", "total", "limit", "offset")
	require.EqualValues(t, 2, m["total"])
	has(t, m["agents"].([]any)[0].(map[string]any), "air_id", "name", "verification_level", "created")
	_, m, _ = ask(t, r, "GET", "agents?limit=1000&offset=99", "", "")
	require.EqualValues(t, 100, m["limit"])
	require.Empty(t, m["agents"])
	_, m, _ = ask(t, r, "GET", "agents/"+one, "", "")
	has(t, m, "air_id", "name", "creator", "security", "transparency", "verification_level", "verification_status", "status", "created", "updated")
	has(t, m["verification_status"].(map[string]any), "verified", "score", "score_required", "attestation_count", "distinct_whois_roots", "distinct_whois_roots_required")
	_, m, _ = ask(t, r, "GET", "agents/"+one+"/trust-score", "", "")
	has(t, m, "air_id", "total_score", "grade", "components", "calculated_at")
	has(t, m["components"].(map[string]any), "provenance", "behavioral", "transparency", "security", "peer_attestations")
	_, m, _ = ask(t, r, "GET", "agents/"+one+"/did-document", "", "")
	has(t, m, "@context", "id", "verificationMethod", "authentication", "assertionMethod", "service")
	require.Equal(t, 1, r.LookupCount())
	_, m, _ = ask(t, r, "GET", "agents/check-name?name=two", "", "")
	require.Equal(t, map[string]any{"name": "two", "exists": true, "count": 1.0, "existing_agents": []any{map[string]any{"air_id": two, "name": "two"}}}, m)
	status, m, _ = ask(t, r, "PUT", "agents/"+two, `{"description":"new","service_endpoints":[{"type":"A2AInbox","serviceEndpoint":"https://x.example/"}]}`, secret)
	require.Equal(t, 200, status)
	has(t, m, "air_id", "updated_fields", "trust_score", "trust_grade", "updated", "message")
	require.EqualValues(t, 2, m["updated_fields"])

	payload := `{"attestation_type":"dependency","attester_air_id":"` + two + `","signed_at":"2026-05-29T00:00:00Z","statement":"","subject_air_id":"` + one + `"}`
	attest := func(sig []byte) string {
		return `{"attester_air_id":"` + two + `","attestation_type":"dependency","signed_at":"2026-05-29T00:00:00Z","signature_multibase":"z` + base58.Encode(sig) + `","statement":""}`
	}
	status, m, _ = ask(t, r, "POST", "agents/"+one+"/attestations", attest(ed25519.Sign(priv, []byte(payload))), secret)
	require.Equal(t, 201, status, m)
	has(t, m, "attestation_id", "subject_air_id", "attester_air_id", "attestation_type", "signed_at", "attester_trust_at_issue", "tenure_multiplier_at_issue", "weight", "verified_status")
	has(t, m["verified_status"].(map[string]any), "verified", "verification_score", "distinct_whois_roots", "attestation_count")
	status, _, _ = ask(t, r, "POST", "agents/"+one+"/attestations", attest(ed25519.Sign(priv, []byte(payload+" "))), secret)
	require.Equal(t, 400, status)
	_, m, _ = ask(t, r, "GET", "agents/"+one+"/attestations", "", "")
	has(t, m, "subject_air_id", "attestations", "total", "active", "verified_status")
	has(t, m["attestations"].([]any)[0].(map[string]any), "id", "attester_air_id", "attestation_type", "signed_payload", "signature_multibase", "signed_at", "attester_trust_at_issue", "tenure_multiplier_at_issue", "weight", "is_active", "created_at")
	require.Equal(t, payload, m["attestations"].([]any)[0].(map[string]any)["signed_payload"])
	_, m, _ = ask(t, r, "GET", "attestations/recent?limit=500", "", "")
	has(t, m, "attestations", "total", "limit")
	require.EqualValues(t, 200, m["limit"])
	has(t, m["attestations"].([]any)[0].(map[string]any), "id", "subject_air_id", "attester_air_id", "attestation_type", "signed_at", "weight", "created_at")
	status, m, _ = ask(t, r, "DELETE", "agents/"+one+"/attestations/1", "", secret)
	require.Equal(t, 200, status)
	has(t, m, "revoked", "attestation_id", "subject_air_id", "revoked_at", "verified_status")
	require.NotEqual(t, r.Secret(one), r.Secret(two))
	require.NotEmpty(t, r.Secret("AIR-TEST-0000-0009"))

	for _, tt := range []struct {
		method, path, body, secret string
		status                     int
	}{
		{"GET", "nothing", "", "", 404},
		{"GET", "agents/AIR-0000-0000-0000", "", "", 404},
		{"GET", "agents/" + one + "/x", "", "", 404},
		{"POST", "agents/" + one, "", "", 404},
		{"DELETE", "agents/" + one, "", "", 401},
		{"GET", "agents/check-name", "", "", 400},
		{"POST", "agents/register", "[", "", 400},
		{"POST", "agents/register", "{}", "", 400},
		{"POST", "agents/register", `{"name":"x"}`, "", 400},
		{"POST", "agents/register", `{"name":"x","public_key":"short"}`, "", 400},
		{"POST", "agents/register", `{"name":"x","public_key":"AQAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"}`, "", 400}, // a point of low order
		{"POST", "agents/register", `{"name":"x","creator_did":"d","open_source":"yes"}`, "", 400},
		{"POST", "agents/register", `{"name":"x","creator_did":"d","service_endpoints":{}}`, "", 400},
		{"POST", "agents/register", `{"name":"x","creator_did":"d","service_endpoints":[{"type":"T"}]}`, "", 400},
		{"PUT", "agents/" + two, `{"description":"x"}`, "", 401},
		{"PUT", "agents/" + two, `{"description":"x"}`, "wrong", 401},
		{"PUT", "agents/" + two, `{}`, secret, 400},
		{"PUT", "agents/" + two, `7`, secret, 400},
		{"PUT", "agents/" + two, `{"description":7}`, secret, 400},
		{"PUT", "agents/" + two, `{"public_key":"` + key + `"}`, secret, 400}, // as published: keys are fixed
		{"POST", "agents/" + one + "/attestations", `{`, secret, 400},
		{"POST", "agents/" + one + "/attestations", `{"attester_air_id":"AIR-0000-0000-0000"}`, secret, 400},
		{"POST", "agents/" + two + "/attestations", attest(nil), secret, 409},
		{"DELETE", "agents/" + one + "/attestations/1", "", secret, 409},
		{"DELETE", "agents/" + one + "/attestations/x", "", secret, 404},
		{"POST", "agents/register", `"` + strings.Repeat("x", 64<<10) + `"`, "", 413},
	} {
		t.Run(tt.method+" "+tt.path+" "+strconv.Itoa(tt.status), func(t *testing.T) {
			if tt.status == 413 { // not an answer of the registry itself
				rec := httptest.NewRecorder()
				r.ServeHTTP(rec, httptest.NewRequest(tt.method, "/api/v1/"+tt.path, strings.NewReader(tt.body)))
				require.Equal(t, tt.status, rec.Code)
				return
			}
			status, m, _ := ask(t, r, tt.method, tt.path, tt.body, tt.secret)
			require.Equal(t, tt.status, status)
			require.NotEmpty(t, m["error"])
		})
	}
	r.MaxRegistrations = 1
	_, _ = register("three")
	status, m, h := ask(t, r, "POST", "agents/register", `{"name":"four"}`, "")
	require.Equal(t, 429, status)
	require.EqualValues(t, 3600, m["retry_after_seconds"])
	require.Equal(t, "3600", h.Get("Retry-After"))

	r.KeyUpdates = true
	status, m, _ = ask(t, r, "PUT", "agents/"+two, `{"public_key":"`+key+`"}`, secret)
	require.Equal(t, 200, status)
	require.EqualValues(t, 1, m["updated_fields"])
	status, _, _ = ask(t, r, "PUT", "agents/"+two, `{"public_key":"x"}`, secret)
	require.Equal(t, 400, status)
}
