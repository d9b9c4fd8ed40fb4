// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package air_test

import (
	"context"
	"crypto/ed25519"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/air"
	"github.com/fivewire/fivewire/air/deployed"
	"github.com/fivewire/fivewire/air/registry"
	"github.com/fivewire/fivewire/air/relay"
)

// An option that is misspelt is refused, and not taken for the laxest choice.
func TestMisspeltOptions(t *testing.T) {
	var w world
	alice := w.join(t, 1)
	h := air.HandlerFunc(func(context.Context, *air.Delivery) error { return nil })
	_, err := air.NewClient(alice, &air.ClientOptions{Profile: "Spec"})
	require.ErrorContains(t, err, `unknown profile "Spec"`)
	_, err = air.NewInbox(alice, h, &air.InboxOptions{Profile: "specs"})
	require.ErrorContains(t, err, `unknown profile "specs"`)
	_, err = air.NewInbox(alice, h, &air.InboxOptions{SignatureForms: "spek"})
	require.ErrorContains(t, err, `unknown form "spek"`)
	in, err := air.NewInbox(alice, h, nil)
	require.NoError(t, err)
	_, err = air.NewPoller(in, "https://relay.example/inbox/x", &air.PollerOptions{Dialect: "deploy"})
	require.ErrorContains(t, err, `unknown dialect "deploy"`)
	_, err = air.NewAgent(alice, h, &air.AgentOptions{Dialect: "deploy"})
	require.ErrorContains(t, err, `unknown dialect "deploy"`)
	_, err = air.NewInbox(alice, h, &air.InboxOptions{Middleware: []air.Middleware{nil}})
	require.EqualError(t, err, "air: inbox: nil Middleware")
	_, err = air.NewClient(alice, &air.ClientOptions{Interceptors: []air.Interceptor{nil}})
	require.EqualError(t, err, "air: client: nil Interceptor")
	for _, id := range []*air.Identity{nil, {}} {
		_, err = air.NewClient(id, nil)
		require.ErrorContains(t, err, "client: identity missing")
		_, err = air.NewInbox(id, h, nil)
		require.ErrorContains(t, err, "inbox: identity or handler missing")
		_, err = air.NewAgent(id, h, nil)
		require.ErrorContains(t, err, "agent: identity missing")
		require.Error(t, air.SaveIdentity(t.TempDir()+"/id", id))
	}
	_, err = new(air.Identity).Rotate(make([]byte, 32))
	require.Error(t, err)
	require.Nil(t, new(air.Identity).Signer())
	_, err = air.NewInbox(alice, nil, nil)
	require.ErrorContains(t, err, "inbox: identity or handler missing")
	_, err = air.NewAgent(alice, air.HandlerFunc(nil), nil)
	require.ErrorContains(t, err, "inbox: identity or handler missing")
	_, err = air.NewIdentityFromSigner(alice.DID(), nil)
	require.ErrorIs(t, err, air.ErrBadKey)
	_, err = air.Sign([]byte("{}"), nil, air.FormSpec)
	require.ErrorIs(t, err, air.ErrBadKey)
	_, err = air.NewEnvelope(nil, nil, nil)
	require.ErrorIs(t, err, air.ErrInvalidEnvelope)
	require.ErrorContains(t, air.SaveIdentity(filepath.Join(t.TempDir(), "id.json"), nil), "no seed")

	signed := signedOffer(t, alice, alice.DID(), nil)
	_, err = air.Verify(signed, alice.PublicKey(), "")
	require.NoError(t, err)
	_, err = air.Verify(signed, alice.PublicKey(), "spek")
	require.ErrorIs(t, err, air.ErrBadSignature)
	_, err = air.DecodeEnvelope(signed, &air.DecodeOptions{Profile: "Spec"})
	require.ErrorContains(t, err, `unknown profile "Spec"`)
	_, err = air.DecodeBody([]byte(`{"type":"note"}`), "Spec")
	require.ErrorContains(t, err, `unknown profile "Spec"`)
	draft := &air.Draft{ID: air.NewID(), From: alice.DID(), To: alice.DID(), ThreadID: air.NewID(), Time: time.Now(), Body: offer(5)}
	_, err = air.NewEnvelope(draft, alice.Signer(), &air.EnvelopeOptions{Profile: "Spec"})
	require.ErrorContains(t, err, `unknown profile "Spec"`)
	_, err = air.Sign([]byte("{}"), alice.Signer(), "deploy")
	require.ErrorContains(t, err, `unknown form "deploy"`)
	doc, err := w.resolver(t).Resolve(t.Context(), alice.DID())
	require.NoError(t, err)
	_, err = doc.Inbox(alice.DID(), &air.EndpointOptions{Dialect: "deploy"})
	require.ErrorContains(t, err, `unknown dialect "deploy"`)
}

// A missing argument is an error of the call, not a panic.
func TestMissingArguments(t *testing.T) {
	w := newWorld(t, nil)
	alice, bob := w.join(t, 1), w.join(t, 2)
	_, err := air.NewPoller(nil, w.endpoint(bob), nil)
	require.ErrorContains(t, err, "inbox missing")
	c := w.client(t, alice, air.ClientOptions{})
	_, err = c.Send(t.Context(), nil, nil)
	require.ErrorIs(t, err, air.ErrInvalidEnvelope)
	require.ErrorIs(t, c.SendEach(t.Context(), []string{bob.DID()}, nil, nil)[0].Err, air.ErrInvalidEnvelope)

	signed := signedOffer(t, alice, bob.DID(), nil)
	e, err := air.DecodeEnvelope(signed, nil)
	require.NoError(t, err)
	for _, key := range []*air.PublicKey{nil, {}} {
		_, err = air.Verify(signed, key, "")
		require.ErrorIs(t, err, air.ErrBadKey)
		_, err = e.Verify(key, "")
		require.ErrorIs(t, err, air.ErrBadKey)
		_, err = air.Seal(key, air.Binding{ID: "1", From: "2", To: "3", ThreadID: "4"}, []byte("{}"))
		require.ErrorIs(t, err, air.ErrBadKey)
		require.False(t, alice.PublicKey().Equal(key))
	}
	for _, id := range []*air.Identity{nil, {}} {
		_, err = id.Open(e)
		require.ErrorIs(t, err, air.ErrDecryptFailed)
	}
	_, err = alice.Open(nil)
	require.ErrorIs(t, err, air.ErrDecryptFailed)
	for _, body := range []air.Body{(*air.Offer)(nil), (*air.Counter)(nil), (*air.Accept)(nil), (*air.Decline)(nil), (*air.Withdraw)(nil), (*air.Raw)(nil)} {
		_, err = air.NewEnvelope(&air.Draft{Body: body}, alice.Signer(), nil)
		require.EqualError(t, err, "air: invalid_envelope: body is missing")
		_, err = c.Send(t.Context(), &air.Draft{To: bob.DID(), Body: body}, nil)
		require.EqualError(t, err, "air: invalid_envelope: body is missing")
		require.Empty(t, air.BodyType(body))
	}
	_, err = deployed.Decode(nil)
	require.ErrorIs(t, err, air.ErrUnsupportedBody)
	_, err = relay.NewServer(&relay.ServerOptions{Auth: relay.Auth{AllowAnonymous: true}, AnyRecipient: true, Middleware: []relay.Middleware{nil}})
	require.EqualError(t, err, "air: relay: nil Middleware")

	agents, err := registry.NewClient(&registry.Options{HTTPClient: w.http()})
	require.NoError(t, err)
	_, err = agents.Register(t.Context(), nil)
	require.ErrorIs(t, err, air.ErrBadRequest)
	_, err = agents.Update(t.Context(), alice.AIRID(), "secret", nil)
	require.ErrorIs(t, err, air.ErrBadRequest)
	_, err = agents.Attest(t.Context(), alice, "secret", nil)
	require.ErrorIs(t, err, air.ErrBadAIRID)
	for _, id := range []*air.Identity{nil, {}} {
		_, err = agents.Attest(t.Context(), id, "secret", &registry.AttestParams{Subject: bob.AIRID(), Type: registry.Dependency})
		require.ErrorIs(t, err, air.ErrBadKey)
	}
	for _, key := range []*air.PublicKey{nil, {}} {
		a := &registry.Attestation{Signature: "z" + strings.Repeat("1", ed25519.SignatureSize)}
		require.ErrorIs(t, a.Verify(bob.AIRID(), key), air.ErrBadKey)
	}
}

// The threads of one agent are not those of another one, whose moves would look like those of its peers.
func TestThreadStoreOfOtherAgent(t *testing.T) {
	w := newWorld(t, nil)
	alice, bob := w.join(t, 1), w.join(t, 2)
	threads := newThreads(t, alice.DID())
	_, err := air.NewClient(bob, &air.ClientOptions{ThreadStore: threads})
	require.ErrorContains(t, err, alice.DID())
	h := air.HandlerFunc(func(context.Context, *air.Delivery) error { return nil })
	for _, handler := range []air.Handler{nil, h} {
		_, err = air.NewAgent(bob, handler, &air.AgentOptions{Persistence: air.Persistence{ThreadStore: threads}})
		require.ErrorContains(t, err, alice.DID())
	}
}
