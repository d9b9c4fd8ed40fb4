// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package registry_test

import (
	"bytes"
	"context"
	"crypto"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/fivewire/fivewire/air"
	"github.com/fivewire/fivewire/air/airtest"
	"github.com/fivewire/fivewire/air/internal/name"
	"github.com/fivewire/fivewire/air/registry"
)

func TestMain(m *testing.M) {
	// The server of net/http keeps a connection for half a second whose body it refused.
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("net/http.(*conn).closeWriteAndWait"))
}

// A wire is a registry behind a transport instead of a network.
type wire struct {
	airtest.Registry

	mu       sync.Mutex
	requests []*http.Request
	bodies   []string
	before   func(*http.Request) (*http.Response, error)
	after    func(*http.Request) error // loses answers
}

func (w *wire) RoundTrip(req *http.Request) (*http.Response, error) {
	in := req.Clone(req.Context())
	var body []byte
	if req.Body != nil {
		body, _ = io.ReadAll(req.Body)
	}
	in.Body = io.NopCloser(strings.NewReader(string(body)))
	w.mu.Lock()
	w.requests, w.bodies = append(w.requests, req), append(w.bodies, string(body))
	before, after := w.before, w.after
	w.mu.Unlock()
	if before != nil {
		if res, err := before(req); res != nil || err != nil {
			return res, err
		}
	}
	rec := httptest.NewRecorder()
	w.ServeHTTP(rec, in)
	if after != nil {
		if err := after(req); err != nil {
			return nil, err
		}
	}
	return rec.Result(), nil
}

func (w *wire) client(t *testing.T) *registry.Client {
	t.Helper()
	c, err := registry.NewClient(&registry.Options{HTTPClient: &http.Client{Transport: w}})
	require.NoError(t, err)
	return c
}

func (w *wire) count() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.requests)
}

func newSeed() []byte {
	seed := make([]byte, ed25519.SeedSize)
	rand.Read(seed)
	return seed
}

func publicKey(t *testing.T, seed []byte) *air.PublicKey {
	t.Helper()
	key, err := air.NewPublicKey(ed25519.NewKeyFromSeed(seed).Public().(ed25519.PublicKey))
	require.NoError(t, err)
	return key
}

// register makes an agent as an application would.
func register(t *testing.T, c *registry.Client, name string) (*air.Identity, *registry.Registration) {
	t.Helper()
	seed := newSeed()
	r, err := c.Register(t.Context(), &registry.RegisterParams{Name: name, PublicKey: publicKey(t, seed),
		Services: []registry.Service{registry.InboxService("https://relay.example/inbox/" + name)}})
	require.NoError(t, err)
	id, err := air.NewIdentity(r.DID, seed)
	require.NoError(t, err)
	require.Equal(t, r.AIRID, id.AIRID())
	return id, r
}

// AIR-163 and AIR-005: what the registry's API offers.
func TestRegisterAndLookUp(t *testing.T) {
	w := &wire{}
	c := w.client(t)
	ctx := t.Context()
	seed := newSeed()
	r, err := c.Register(ctx, &registry.RegisterParams{
		Name: "Weather <\u2028>", Description: "forecasts", PublicKey: publicKey(t, seed), CreatorName: "Ada", CreatorType: "organization",
		Capabilities: []string{"weather"}, Certifications: []string{}, OpenSource: true, CodeRepository: "https://code.example/",
		DocumentationURL: "https://docs.example/", Services: []registry.Service{registry.InboxService("https://relay.example/inbox/x")},
	})
	require.NoError(t, err)
	require.True(t, name.IsAIRID(r.AIRID))
	require.NotEmpty(t, r.Secret)
	require.True(t, r.Minted)
	require.Equal(t, airtest.DID(r.AIRID), r.DID)
	require.Equal(t, "active", r.Status)
	require.True(t, json.Valid(r.JSON))

	var sent map[string]any
	require.NoError(t, json.Unmarshal([]byte(w.bodies[0]), &sent))
	require.Equal(t, map[string]any{
		"name": "Weather <\u2028>", "description": "forecasts", "creator_name": "Ada", "creator_type": "organization", "open_source": true,
		"code_repository": "https://code.example/", "documentation_url": "https://docs.example/", "public_key": r.PublicKey,
		"capabilities": []any{"weather"}, "security_certifications": []any{},
		"service_endpoints": []any{map[string]any{"type": "A2AInbox", "serviceEndpoint": "https://relay.example/inbox/x"}},
	}, sent)
	require.Len(t, r.PublicKey, 43)
	require.Equal(t, "v1", w.requests[0].Header.Get("X-A2A-Version"))
	require.Equal(t, "https://agentidentityregistry.org/api/v1/agents/register", w.requests[0].URL.String())

	a, err := c.GetAgent(ctx, r.AIRID)
	require.NoError(t, err)
	require.Equal(t, r.AIRID, a.AIRID)
	require.Equal(t, "Weather <\u2028>", a.Name)
	require.Equal(t, registry.Creator{DID: r.DID, Name: "Ada", Type: "organization", PublicKey: r.PublicKey}, a.Creator)
	require.Equal(t, []string{"weather"}, a.Capabilities)
	require.True(t, a.Transparency.OpenSource)
	require.Equal(t, "https://code.example/", a.Transparency.CodeRepository)
	require.Equal(t, 300, a.Verification.ScoreRequired)
	require.Equal(t, a.TrustScore, a.Components.Provenance)
	created, ok := a.Created.Time()
	require.True(t, ok)
	require.WithinDuration(t, time.Now(), created, time.Minute)

	doc, err := c.GetDocument(ctx, r.AIRID)
	require.NoError(t, err)
	key, err := doc.SigningKey(r.DID)
	require.NoError(t, err)
	require.True(t, key.Equal(publicKey(t, seed)))
	e, err := doc.Inbox(r.DID, nil)
	require.NoError(t, err)
	require.Equal(t, "https://relay.example/inbox/x", e.URL)

	score, err := c.GetTrustScore(ctx, r.AIRID)
	require.NoError(t, err)
	require.Equal(t, r.AIRID, score.AIRID)
	require.Equal(t, a.TrustScore, score.Total)
	require.Equal(t, 500, score.Components.Attestations)

	n, err := c.LookupName(ctx, "Weather <\u2028>")
	require.NoError(t, err)
	require.Equal(t, []registry.NamedAgent{{AIRID: r.AIRID, Name: n.Name}}, n.Agents)
	n, err = c.LookupName(ctx, "a&b=c d")
	require.NoError(t, err)
	require.False(t, n.Exists)
	require.Equal(t, "a&b=c d", n.Name)

	h, err := c.GetHealth(ctx)
	require.NoError(t, err)
	require.Equal(t, "ok", h.Status)
}

func TestCreatorDID(t *testing.T) {
	w := &wire{}
	c := w.client(t)
	r, err := c.Register(t.Context(), &registry.RegisterParams{Name: "mine", CreatorDID: "did:key:z6Mk"})
	require.NoError(t, err)
	require.False(t, r.Minted)
	require.Equal(t, "did:key:z6Mk", r.DID)
	require.NotContains(t, w.bodies[0], "public_key")
	_, err = c.GetDocument(t.Context(), r.AIRID) // an agent without a key has no document
	require.ErrorIs(t, err, air.ErrNotFound)
	require.ErrorContains(t, err, "no public key")
}

func TestUpdate(t *testing.T) {
	w := &wire{}
	resolver, err := air.NewResolver(&air.ResolverOptions{HTTPClient: &http.Client{Transport: w}})
	require.NoError(t, err)
	c, err := registry.NewClient(&registry.Options{HTTPClient: &http.Client{Transport: w}, Resolver: resolver})
	require.NoError(t, err)
	id, r := register(t, c, "one")
	old, err := resolver.Resolve(t.Context(), id.DID())
	require.NoError(t, err)
	text := "new"
	yes := true
	u, err := c.Update(t.Context(), r.AIRID, r.Secret, &registry.UpdateParams{Description: &text, OpenSource: &yes, CodeRepository: &text,
		DocumentationURL: &text, Capabilities: []string{}, Certifications: []string{"x"}, Services: []registry.Service{registry.InboxService("https://other.example/i")}})
	require.NoError(t, err)
	require.Equal(t, 7, u.Fields)
	a, err := c.GetAgent(t.Context(), r.AIRID)
	require.NoError(t, err)
	require.Equal(t, "new", a.Description)
	require.Empty(t, a.Capabilities)
	require.Equal(t, []string{"x"}, a.Security.Certifications)
	// The resolver has forgotten the document.
	doc, err := resolver.Resolve(t.Context(), id.DID())
	require.NoError(t, err)
	require.NotEqual(t, old.JSON(), doc.JSON())
	e, err := doc.Inbox(id.DID(), nil)
	require.NoError(t, err)
	require.Equal(t, "https://other.example/i", e.URL)

	_, err = c.Update(t.Context(), r.AIRID, "wrong", &registry.UpdateParams{Description: &text})
	require.ErrorIs(t, err, air.ErrUnauthorized)
	before := w.count()
	_, err = c.Update(t.Context(), r.AIRID, r.Secret, &registry.UpdateParams{})
	require.ErrorIs(t, err, air.ErrBadRequest)
	_, err = c.Update(t.Context(), r.AIRID, "", &registry.UpdateParams{Description: &text})
	require.ErrorIs(t, err, air.ErrBadRequest)
	_, err = c.Update(t.Context(), "../x", r.Secret, &registry.UpdateParams{Description: &text})
	require.ErrorIs(t, err, air.ErrBadAIRID)
	_, err = c.Update(t.Context(), r.AIRID, r.Secret, &registry.UpdateParams{Services: []registry.Service{{Endpoint: "x"}}})
	require.ErrorIs(t, err, registry.ErrBadServiceType)
	_, err = c.Update(t.Context(), r.AIRID, r.Secret, &registry.UpdateParams{Services: []registry.Service{{Type: "x"}}})
	require.ErrorIs(t, err, air.ErrBadEndpoint)
	require.Equal(t, before, w.count(), "what cannot succeed is not sent")
}

// The test double refuses requests that the client never sends (AIR-163).
func TestServicesAreAnArray(t *testing.T) {
	w := &wire{}
	rec := httptest.NewRecorder()
	w.ServeHTTP(rec, httptest.NewRequest(http.MethodPost, "/api/v1/agents/register",
		strings.NewReader(`{"name":"x","creator_did":"did:key:z","service_endpoints":{"type":"A2AInbox"}}`)))
	require.Equal(t, http.StatusBadRequest, rec.Code)
	_, err := w.client(t).Register(t.Context(), &registry.RegisterParams{Name: "x", CreatorDID: "did:key:z", Services: []registry.Service{}})
	require.NoError(t, err)
	require.Contains(t, w.bodies[0], `"service_endpoints":[]`)
}

func TestList(t *testing.T) {
	w := &wire{}
	c := w.client(t)
	for range 7 {
		register(t, c, "many")
	}
	p, err := c.List(t.Context(), 3, 5)
	require.NoError(t, err)
	require.Equal(t, []int{7, 3, 5, 2}, []int{p.Total, p.Limit, p.Offset, len(p.Agents)})
	p, err = c.List(t.Context(), 0, 0)
	require.NoError(t, err)
	require.Equal(t, 20, p.Limit)
	n := 0
	for a, err := range c.ListAll(t.Context()) {
		require.NoError(t, err)
		require.True(t, name.IsAIRID(a.AIRID))
		n++
	}
	require.Equal(t, 7, n)
	for range c.ListAll(t.Context()) {
		break
	}
	w.SetFailure(http.StatusNotFound)
	for a, err := range c.ListAll(t.Context()) {
		require.Nil(t, a)
		require.ErrorIs(t, err, air.ErrNotFound)
	}
}

func TestAttest(t *testing.T) {
	w := &wire{}
	c := w.client(t)
	ctx := t.Context()
	_, subject := register(t, c, "subject")
	var secrets []string
	var first *air.Identity
	for i := range 3 {
		id, r := register(t, c, "attester")
		if i == 0 {
			first = id
		}
		a, err := c.Attest(ctx, id, r.Secret, &registry.AttestParams{Subject: subject.AIRID, Type: registry.SafetyReview, Statement: "e\u0301 <\u2028\x7f\n\">"})
		require.NoError(t, err)
		require.Equal(t, i == 2, a.VerifiedStatus.Verified)
		secrets = append(secrets, r.Secret)
	}
	list, err := c.ListAttestations(ctx, subject.AIRID)
	require.NoError(t, err)
	require.Equal(t, 3, list.Active)
	at := list.List[0]
	require.NoError(t, at.Verify(subject.AIRID, first.PublicKey()))
	require.ErrorIs(t, at.Verify(first.AIRID(), first.PublicKey()), air.ErrBadSignature)
	changed := at
	changed.Statement = "\u00e9" // another text, although it looks alike
	require.ErrorIs(t, changed.Verify(subject.AIRID, first.PublicKey()), air.ErrBadSignature)
	changed.Payload = ""
	require.ErrorIs(t, changed.Verify(subject.AIRID, first.PublicKey()), air.ErrBadSignature)
	for _, sig := range []string{"", "x", "z0", "z1", "z" + strings.Repeat("1", 100)} {
		changed = at
		changed.Signature = sig
		require.ErrorIs(t, changed.Verify(subject.AIRID, first.PublicKey()), air.ErrBadSignature)
	}
	recent, err := c.ListRecentAttestations(ctx, 2)
	require.NoError(t, err)
	require.Len(t, recent.List, 2)
	require.Equal(t, subject.AIRID, recent.List[0].Subject)

	_, err = c.Revoke(ctx, subject.AIRID, at.ID, secrets[1])
	require.ErrorIs(t, err, air.ErrUnauthorized)
	rev, err := c.Revoke(ctx, subject.AIRID, at.ID, secrets[0])
	require.NoError(t, err)
	require.True(t, rev.Revoked)
	require.False(t, rev.Standing.Verified)
	list, err = c.ListAttestations(ctx, subject.AIRID)
	require.NoError(t, err)
	require.Len(t, list.List, 2)
	require.NotEqual(t, at.ID, list.List[0].ID)
	list, err = c.ListAllAttestations(ctx, subject.AIRID)
	require.NoError(t, err)
	require.Len(t, list.List, 3)
	require.ErrorIs(t, list.List[0].Verify(subject.AIRID, first.PublicKey()), registry.ErrRevoked)
	changed = at
	changed.Revoked = rev.At
	require.ErrorIs(t, changed.Verify(subject.AIRID, first.PublicKey()), registry.ErrRevoked)
	_, err = c.Revoke(ctx, subject.AIRID, at.ID, secrets[0])
	require.ErrorIs(t, err, air.ErrConflict)
	_, err = c.Revoke(ctx, subject.AIRID, 99, secrets[0])
	require.ErrorIs(t, err, air.ErrNotFound)
	_, err = c.Attest(ctx, first, secrets[1], &registry.AttestParams{Subject: subject.AIRID, Type: registry.Dependency})
	require.ErrorIs(t, err, air.ErrUnauthorized)
	_, err = c.Attest(ctx, first, secrets[0], &registry.AttestParams{Subject: first.AIRID(), Type: registry.Dependency})
	require.ErrorIs(t, err, air.ErrConflict)
	_, err = c.Attest(ctx, first, secrets[0], &registry.AttestParams{Subject: subject.AIRID, Type: "praise"})
	require.ErrorIs(t, err, air.ErrBadRequest)
}

// A failingSigner fails, as a key in hardware may.
type failingSigner struct{ crypto.Signer }

func (failingSigner) Sign(io.Reader, []byte, crypto.SignerOpts) ([]byte, error) {
	return nil, io.ErrUnexpectedEOF
}

func TestAttestWithFailingSigner(t *testing.T) {
	id, err := air.GenerateIdentity("did:wba:agentidentityregistry.org:agents:AIR-TEST-0000-0001")
	require.NoError(t, err)
	id, err = air.NewIdentityFromSigner(id.DID(), failingSigner{id.Signer()})
	require.NoError(t, err)
	_, err = (&wire{}).client(t).Attest(t.Context(), id, "s", &registry.AttestParams{Subject: "AIR-TEST-0000-0002", Type: registry.Dependency})
	var e *air.Error
	require.ErrorAs(t, err, &e)
	require.ErrorIs(t, err, air.ErrBadKey)
	require.ErrorIs(t, err, io.ErrUnexpectedEOF)
}

// A signature that the published Python client (0.5.0) made, from a seed of sevens.
func TestPublishedAttestation(t *testing.T) {
	a := &registry.Attestation{Attester: "AIR-AAAA-0000-0001", Type: registry.SafetyReview, SignedAt: "2026-05-29T00:00:00Z",
		Statement: "\u00e9 \u2028 <\"\n>\x7f", Active: true,
		Signature: "z4wc2jcX2Z6wLxiruVi4VaYjRQuwFSMcECprLzvEFYfwSLo9C9yRj8zh3opth2JVLh9vHpDnvcbQZT2BerF5MSPnJ"}
	key := publicKey(t, bytes.Repeat([]byte{7}, ed25519.SeedSize))
	require.NoError(t, a.Verify("AIR-BBBB-0000-0002", key))
	require.ErrorIs(t, a.Verify("AIR-BBBB-0000-0003", key), air.ErrBadSignature)
}

func answer(status int, body string, headers ...string) *http.Response {
	rec := httptest.NewRecorder()
	for i := 0; i < len(headers); i += 2 {
		rec.Header().Set(headers[i], headers[i+1])
	}
	rec.WriteHeader(status)
	_, _ = rec.WriteString(body)
	return rec.Result()
}

func TestErrors(t *testing.T) {
	tests := []struct {
		name   string
		status int
		body   string
		code   air.Code
		text   string
	}{
		{name: "validation", status: 400, body: `{"error":"Invalid public_key","hint":"43 chars"}`, code: air.ErrBadRequest, text: "Invalid public_key: 43 chars"},
		{name: "unprocessable", status: 422, body: `{"error":"no"}`, code: air.ErrBadRequest, text: "no"},
		{name: "secret", status: 401, body: `{"error":"Invalid secret"}`, code: air.ErrUnauthorized},
		{name: "forbidden", status: 403, body: `{}`, code: air.ErrForbidden},
		{name: "gone", status: 410, body: ``, code: air.ErrNotFound},
		{name: "collision", status: 409, body: `{"error":"collision"}`, code: air.ErrConflict},
		{name: "server", status: 500, body: `<html>`, code: air.ErrBadGateway, text: "answers 500"},
		{name: "redirect", status: 302, body: ``, code: air.ErrHTTP},
		{name: "not JSON", status: 200, body: `<html>`, code: air.ErrBadDocument},
		{name: "two names", status: 200, body: `{"status":"ok","status":"bad"}`, code: air.ErrBadDocument},
		{name: "other type", status: 200, body: `{"status":7}`, code: air.ErrBadDocument},
		{name: "list", status: 200, body: `[]`, code: air.ErrBadDocument},
		{name: "huge", status: 200, body: `"` + strings.Repeat("x", 1<<20) + `"`, code: air.ErrBadDocument},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			w := &wire{before: func(*http.Request) (*http.Response, error) { return answer(tt.status, tt.body), nil }}
			_, err := w.client(t).GetHealth(t.Context())
			require.ErrorIs(t, err, tt.code)
			require.ErrorContains(t, err, tt.text)
			require.Equal(t, 1, w.count(), "a final answer is not asked for again")
		})
	}
}

// Reading is tried again, as is an update; a registration never is.
func TestRetries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := 0
		w := &wire{before: func(*http.Request) (*http.Response, error) {
			switch n++; n {
			case 1:
				return nil, errors.New("no network")
			case 2:
				return answer(503, "", "Retry-After", "7"), nil
			case 3:
				return answer(429, `{"error":"slow","retry_after_seconds":9}`), nil
			}
			return nil, nil
		}}
		c := w.client(t)
		start := time.Now()
		_, err := c.GetHealth(t.Context())
		require.NoError(t, err)
		require.Equal(t, 4, n)
		took := time.Since(start)
		require.Greater(t, took, 16*time.Second)
		require.Less(t, took, 18*time.Second)

		n = -10
		w.before = func(*http.Request) (*http.Response, error) { n++; return answer(502, ""), nil }
		_, err = c.GetHealth(t.Context())
		require.ErrorIs(t, err, air.ErrBadGateway)
		require.Equal(t, -6, n)

		n = 0
		_, err = c.Register(t.Context(), &registry.RegisterParams{Name: "x", CreatorDID: "did:key:z"})
		require.ErrorIs(t, err, air.ErrBadGateway)
		require.Equal(t, 1, n, "nobody knows whether there is an agent now")

		n = 0
		w.before = func(*http.Request) (*http.Response, error) { n++; return answer(429, "", "Retry-After", "3600"), nil }
		_, err = c.GetHealth(t.Context())
		var e *air.Error
		require.ErrorAs(t, err, &e)
		require.Equal(t, air.ErrRateLimited, e.Code)
		require.Equal(t, time.Hour, e.RetryAfter)
		require.Equal(t, 1, n)

		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		w.before = func(*http.Request) (*http.Response, error) { return nil, errors.New("no network") }
		_, err = c.GetHealth(ctx)
		require.ErrorIs(t, err, air.ErrBadGateway)
	})
}

func TestRegistrationLimit(t *testing.T) {
	w := &wire{}
	w.MaxRegistrations = 2
	c := w.client(t)
	for range 2 {
		register(t, c, "x")
	}
	_, err := c.Register(t.Context(), &registry.RegisterParams{Name: "x", CreatorDID: "did:key:z"})
	var e *air.Error
	require.ErrorAs(t, err, &e)
	require.Equal(t, air.ErrRateLimited, e.Code)
	require.Greater(t, e.RetryAfter, 59*time.Minute)
}

func TestRefusedRegistrations(t *testing.T) {
	w := &wire{}
	c := w.client(t)
	for _, p := range []*registry.RegisterParams{{}, {Name: "x"}, {Name: "x", CreatorDID: "d", Services: []registry.Service{{}}}} {
		r, err := c.Register(t.Context(), p)
		require.Error(t, err)
		require.Nil(t, r)
	}
	require.Zero(t, w.count())
	w.before = func(*http.Request) (*http.Response, error) {
		return answer(201, `{"air_id":"AIR-0000-0000-0000","name":"x"}`), nil
	}
	r, err := c.Register(t.Context(), &registry.RegisterParams{Name: "x", CreatorDID: "d"})
	require.ErrorIs(t, err, air.ErrBadDocument)
	require.Equal(t, "AIR-0000-0000-0000", r.AIRID, "what was made must not be lost")
	require.NotEmpty(t, r.JSON)
}

func TestNewClient(t *testing.T) {
	for _, base := range []string{"http://registry.example", "https://127.0.0.1", "ftp://x", "nonsense"} {
		_, err := registry.NewClient(&registry.Options{RegistryURL: base})
		require.ErrorIs(t, err, air.ErrBadEndpoint, base)
	}
	c, err := registry.NewClient(nil)
	require.NoError(t, err)
	for _, err := range []error{
		second(c.GetAgent(t.Context(), "x")), second(c.GetTrustScore(t.Context(), "x")), second(c.GetDocument(t.Context(), "x")),
		second(c.ListAttestations(t.Context(), "x")), second(c.Revoke(t.Context(), "x", 1, "s")),
		second(c.Attest(t.Context(), nil, "s", &registry.AttestParams{})),
	} {
		require.ErrorIs(t, err, air.ErrBadAIRID)
	}
}

func second[T any](_ T, err error) error { return err }

func TestTime(t *testing.T) {
	want := time.Date(2026, 5, 28, 9, 0, 0, 0, time.UTC)
	for _, text := range []registry.Time{"2026-05-28T09:00:00Z", "2026-05-28T11:00:00+02:00", "2026-05-28 09:00:00", "2026-05-28T09:00:00.000"} {
		got, ok := text.Time()
		require.True(t, ok, text)
		require.Equal(t, want, got)
	}
	_, ok := registry.Time("soon").Time()
	require.False(t, ok)
}

// Whatever the registry answers, a call returns something or refuses in terms of
// the package, and keeps the text that it read.
func FuzzAnswer(f *testing.F) {
	for _, seed := range []string{
		`{"air_id":"AIR-0000-0000-0000","name":"x","creator":{"did":"d"},"trust_score":null,"components":{"security":1},"created":"2026-05-28 09:00:00"}`,
		`{"agents":[{"air_id":"x","trust_score":5}],"total":1}`, `{"error":"x","retry_after_seconds":3}`, `{"total_score":1e400}`, `[]`, `{"a":1,"a":2}`, `{"attestations":[{"weight":0.5,"revoked_at":null}]}`,
	} {
		f.Add(200, []byte(seed))
		f.Add(429, []byte(seed))
	}
	f.Fuzz(func(t *testing.T, status int, body []byte) {
		if status < 200 || status > 499 {
			status = 200
		}
		hc := &http.Client{Transport: roundTrip(func(*http.Request) (*http.Response, error) {
			return &http.Response{StatusCode: status, Body: io.NopCloser(bytes.NewReader(body)), Header: http.Header{}}, nil
		})}
		c, err := registry.NewClient(&registry.Options{HTTPClient: hc, Retry: &air.RetryPolicy{MaxRetryAfter: time.Nanosecond}})
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		if status == http.StatusTooManyRequests {
			cancel() // what follows is not waited for
		}
		const id = "AIR-0000-0000-0000"
		check := func(err error, text []byte) {
			if err == nil {
				require.Equal(t, strings.TrimSpace(string(body)), strings.TrimSpace(string(text)))
				return
			}
			var e *air.Error
			require.ErrorAs(t, err, &e)
		}
		if a, err := c.GetAgent(ctx, id); err == nil {
			check(nil, a.JSON)
		} else {
			check(err, nil)
		}
		if p, err := c.List(ctx, 1, 0); err == nil {
			check(nil, p.JSON)
		} else {
			check(err, nil)
		}
		if a, err := c.ListAttestations(ctx, id); err == nil {
			check(nil, a.JSON)
		} else {
			check(err, nil)
		}
		_, err = c.GetDocument(ctx, id)
		if err != nil {
			check(err, nil)
		}
	})
}

// The published registry lists recent attestations without is_active. One that another registry lists as revoked is omitted.
func TestRecentAttestationsOmitRevoked(t *testing.T) {
	w := &wire{before: func(*http.Request) (*http.Response, error) {
		rec := httptest.NewRecorder()
		_, _ = rec.WriteString(`{"attestations":[{"id":1,"statement":"active"},
			{"id":2,"revoked_at":"2026-01-15T10:30:00Z","is_active":false}],"total":2,"limit":50}`)
		return rec.Result(), nil
	}}
	recent, err := w.client(t).ListRecentAttestations(t.Context(), 0)
	require.NoError(t, err)
	require.Len(t, recent.List, 1)
	require.EqualValues(t, 1, recent.List[0].ID)
}

func TestTruncatedAnswer(t *testing.T) {
	ts := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Content-Length", "100")
		_, _ = io.WriteString(w, `{"air_id":`)
	}))
	defer ts.Close()
	resolver, err := air.NewResolver(&air.ResolverOptions{RegistryURL: ts.URL, AllowLoopback: true})
	require.NoError(t, err)
	_, err = resolver.Resolve(t.Context(), "did:air:AIR-A11C-E000-0001")
	require.ErrorIs(t, err, air.ErrTruncated)
	require.ErrorIs(t, err, air.ErrBadGateway)
}
