// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package air_test

import (
	"context"
	"net/http"
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

// What users must be told stands in the documentation of the package: that plain
// bodies can be read (AIR-127, AIR-130, AIR-143), what a box does not hide
// (AIR-145), that relays can drop (AIR-128), how long a key lives on (AIR-165),
// that one key does both (AIR-170), and that the draft may change (AIR-131).
func TestDocumentation(t *testing.T) {
	data, err := os.ReadFile("doc.go")
	require.NoError(t, err)
	text := strings.Join(strings.Fields(strings.ReplaceAll(string(data), "\n//", "\n")), " ")
	for _, sentence := range []string{
		"A body that is not sealed can be read by every relay on its way.",
		"A sealed body still shows who writes to whom, when, and in which thread",
		"can open what was sent before",
		"A relay can drop, delay and reorder. Set a time limit of your own",
		"is trusted for up to 70 seconds more",
		"One identity key serves for signing and, in another form, for sealing.",
		"draft-1 may change before version 1",
		"draft-1-candidate",
	} {
		require.Contains(t, text, sentence)
	}
}

// An envelope has the members of the specification and no others: no trust score
// (AIR-005), nothing that newer versions may add (AIR-166), and in clear unless
// sealing is asked for (AIR-144). It goes to the relay by HTTP (AIR-088).
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
	require.Equal(t, air.BodyTypeOffer, r.Envelope.Type)
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

// The document of the text (AIR-013), and a sender that goes where it says, as
// soon as it says something else (AIR-164).
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

// Who a message claims to be from plays no part before the signature has verified
// (AIR-129): neither a block list nor a key policy hears of it.
func TestFromIsNotBelieved(t *testing.T) {
	w := newWorld(t, nil)
	alice, bob, eve := w.join(t, 1), w.join(t, 2), w.join(t, 3)
	var asked []string
	in := w.inbox(t, bob, air.InboxOptions{
		Auth: air.Auth{KeyPolicy: air.KeyPolicyFunc(func(_ context.Context, did string, _ *air.PublicKey) error {
			asked = append(asked, did)
			return nil
		})},
		Middleware: []air.Middleware{air.BlockSenders(func(did string) bool { asked = append(asked, did); return false })},
	})
	d := &air.Draft{ID: air.NewID(), From: alice.DID(), To: bob.DID(), Time: time.Now(), ThreadID: air.NewID(), Nonce: air.NewNonce(), Body: offer(1)}
	forged, err := air.NewEnvelope(d, eve.Signer(), nil)
	require.NoError(t, err)
	require.ErrorIs(t, in.Receive(t.Context(), forged.Bytes(), false).Err, air.ErrBadSignature)
	require.Empty(t, asked)
	require.Nil(t, in.Receive(t.Context(), signedOffer(t, alice, bob.DID(), nil), false).Err)
	require.Equal(t, []string{alice.DID(), alice.DID()}, slices.Clip(asked))
}

// Trust scores are resolved apart from envelopes, where the document says.
func TestTrustScore(t *testing.T) {
	w := newWorld(t, nil)
	alice := w.join(t, 1)
	answer, status := `{"score":870,"big":18446744073709551616}`, 200
	w.direct = http.HandlerFunc(func(rw http.ResponseWriter, _ *http.Request) {
		rw.WriteHeader(status)
		_, _ = rw.Write([]byte(answer))
	})
	score := func() ([]byte, error) { return w.resolver(t).TrustScore(t.Context(), alice.DID()) }
	_, err := score()
	require.ErrorIs(t, err, air.ErrUnreachable)
	put := func(id, endpoint string) {
		w.registry.PutDocument(alice.AIRID(), []byte(`{"id":"`+id+`","service":[{"type":"AIRTrustScore","serviceEndpoint":"`+endpoint+`"}]}`))
	}
	put(alice.DID(), "https://direct.example/score")
	data, err := score()
	require.NoError(t, err)
	require.Equal(t, answer, string(data))
	for _, answer = range []string{"", "[]", `{"a":1,"a":2}`} {
		_, err = score()
		require.ErrorIs(t, err, air.ErrBadDocument)
	}
	status = 503
	_, err = score()
	require.ErrorIs(t, err, air.ErrBadGateway)
	put(alice.DID(), "http://direct.example/score")
	_, err = score()
	require.ErrorIs(t, err, air.ErrBadEndpoint)
	put("did:wba:other:"+alice.AIRID(), "https://direct.example/score")
	_, err = score()
	require.ErrorIs(t, err, air.ErrNotFound)
	_, err = w.resolver(t).TrustScore(t.Context(), airtest.DID(airIDOf(9)))
	require.ErrorIs(t, err, air.ErrNotFound)
}
