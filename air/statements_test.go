// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package air_test

import (
	"context"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/air"
	"github.com/fivewire/fivewire/air/airtest"
	"github.com/fivewire/fivewire/internal/strictjson"
)

// The package documentation warns users: that plain bodies can be read (AIR-127, AIR-130, AIR-143),
// of the limits of a box (AIR-145), that relays can drop (AIR-128), of the lifetime of a replaced
// key (AIR-165), that one key has both uses (AIR-170), and that the draft may change (AIR-131).
func TestDocumentation(t *testing.T) {
	data, err := os.ReadFile("doc.go")
	require.NoError(t, err)
	text := strings.Join(strings.Fields(strings.ReplaceAll(string(data), "\n//", "\n")), " ")
	for _, sentence := range []string{
		"A body that is not sealed can be read by every relay.",
		"A sealed body still shows who writes to whom, when, and in which thread",
		"can open what was sent before",
		"A relay can drop, delay and reorder. Set a time limit for every negotiation.",
		"is trusted for up to 70 seconds more",
		"One identity key serves for signing and, in another form, for sealing.",
		"draft-1 may change before version 1",
		"draft-1-candidate",
	} {
		require.Contains(t, text, sentence)
	}
}

// An envelope has the members of the specification and no others: no trust score (AIR-005), no
// members of later versions (AIR-166), and a plain body unless sealing is requested (AIR-144). It
// goes to the relay over HTTP (AIR-088).
func TestMembersOfAnEnvelope(t *testing.T) {
	w := newWorld(t, nil)
	alice, bob := w.join(t, 1), w.join(t, 2)
	r, err := w.client(t, alice, air.ClientOptions{}).Send(t.Context(), &air.Draft{To: bob.DID(), Body: offer(1)}, nil)
	require.NoError(t, err)
	v, err := strictjson.Check(r.Envelope.Bytes(), strictjson.Options{})
	require.NoError(t, err)
	var names []string
	for m := v.Members(); m.Next(); {
		names = append(names, string(m.Name))
	}
	require.Equal(t, []string{"body", "from", "id", "nonce", "signature", "thread_id", "timestamp", "to"}, names)
	require.Equal(t, "Offer", r.Envelope.Type)
	require.Equal(t, "POST /inbox/"+bob.AIRID(), w.requests[len(w.requests)-1])
}

// A protocol on top brings its own bodies, and neither the relay nor the signature
// needs to know them (AIR-002, AIR-161).
func TestBodiesOfOtherProtocols(t *testing.T) {
	w := newWorld(t, nil)
	alice, bob := w.join(t, 1), w.join(t, 2)
	body := &air.Raw{Type: "x.example/ping", JSON: []byte(`{"type":"x.example/ping","n":18446744073709551616}`)}
	opts := air.ClientOptions{BodyTypes: []string{"x.example/ping"}}
	_, err := w.client(t, alice, opts).Send(t.Context(), &air.Draft{To: bob.DID(), Body: body}, nil)
	require.NoError(t, err)
	in := w.inbox(t, bob, air.InboxOptions{BodyTypes: []string{"x.example/ping"}})
	require.Equal(t, 1, in.drain(t))
	require.Equal(t, `{"n":18446744073709551616,"type":"x.example/ping"}`, string(in.got[0].BodyJSON))
	require.Nil(t, in.got[0].Thread)
}

// Parsing a key tests the order of a point, which costs more than a signature.
func TestDocumentParsesKeyOnce(t *testing.T) {
	id, err := air.GenerateIdentity(airtest.DID("AIR-TEST-0000-0001"))
	require.NoError(t, err)
	d, err := air.DecodeDocument(airtest.Document(id.DID(), id.PublicKey().String(), ""))
	require.NoError(t, err)
	first, err := d.SigningKey(id.DID())
	require.NoError(t, err)
	second, err := d.SigningKey(id.DID())
	require.NoError(t, err)
	require.Same(t, first, second)
	_, err = (&air.Document{ID: id.DID()}).SigningKey(id.DID())
	require.ErrorIs(t, err, air.ErrNotFound)
}

// The document of the specification (AIR-013), and a sender that follows a changed endpoint
// (AIR-164).
func TestMovingToAnotherRelay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, nil)
		alice, bob := w.join(t, 1), w.join(t, 2)
		d, err := air.DecodeDocument(airtest.Document(bob.DID(), bob.PublicKey().String(), w.endpoint(bob)))
		require.NoError(t, err)
		require.Equal(t, bob.DID(), d.ID)
		key, err := d.SigningKey(bob.DID())
		require.NoError(t, err)
		require.True(t, key.Equal(bob.PublicKey()))
		e, err := d.Inbox(bob.DID(), nil)
		require.NoError(t, err)
		require.Equal(t, w.endpoint(bob), e.URL)

		c := w.client(t, alice, air.ClientOptions{})
		send := func() string {
			_, err := c.Send(t.Context(), &air.Draft{To: bob.DID(), Body: offer(1)}, nil)
			require.NoError(t, err)
			return w.requests[len(w.requests)-1]
		}
		require.Equal(t, "POST /inbox/"+bob.AIRID(), send())
		w.registry.Register(bob, "https://other.example/inbox/"+bob.AIRID()+"?new")
		require.Equal(t, "POST /inbox/"+bob.AIRID(), send()) // cached
		time.Sleep(71 * time.Second)
		require.Equal(t, "POST /inbox/"+bob.AIRID()+"?new", send())
	})
}

// The member from has no effect before the signature has verified (AIR-129): neither a block list
// nor a key policy is called.
func TestFromIsNotBelieved(t *testing.T) {
	w := newWorld(t, nil)
	alice, bob, eve := w.join(t, 1), w.join(t, 2), w.join(t, 3)
	var checked []string
	in := w.inbox(t, bob, air.InboxOptions{
		Auth: air.Auth{KeyPolicy: air.KeyPolicyFunc(func(_ context.Context, did string, _ *air.PublicKey) error {
			checked = append(checked, did)
			return nil
		})},
		Middleware: []air.Middleware{air.BlockSenders(func(did string) bool { checked = append(checked, did); return false })},
	})
	d := &air.Draft{ID: air.NewID(), From: alice.DID(), To: bob.DID(), Time: time.Now(), ThreadID: air.NewID(), Nonce: air.NewNonce(), Body: offer(1)}
	forged, err := air.NewEnvelope(d, eve.Signer(), nil)
	require.NoError(t, err)
	require.ErrorIs(t, in.Receive(t.Context(), forged.Bytes(), false).Err, air.ErrBadSignature)
	require.Empty(t, checked)
	require.Nil(t, in.Receive(t.Context(), signedOffer(t, alice, bob.DID(), nil), false).Err)
	require.Equal(t, []string{alice.DID(), alice.DID()}, slices.Clip(checked))
}
