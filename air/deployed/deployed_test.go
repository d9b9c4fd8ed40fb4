// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package deployed_test

import (
	"bytes"
	"crypto/ed25519"
	"encoding/json"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/air"
	"github.com/fivewire/fivewire/air/deployed"
)

func TestRoundTrip(t *testing.T) {
	huge, ok := air.ParseAmount("18446744073709551616")
	require.True(t, ok)
	key := ed25519.NewKeyFromSeed(bytes.Repeat([]byte{1}, 32))
	for _, b := range []deployed.Body{
		&deployed.Text{Text: "안녕 \"x\" \u2028"},
		&deployed.Text{},
		&deployed.Offer{ItemID: "a", Value: deployed.Value{Money: air.MinorUnits(1000, "USD")}, Note: "n"},
		&deployed.Offer{ItemID: "a", Value: deployed.Value{ItemID: "b", Quantity: air.MinorUnits(2, "USD").Amount}},
		&deployed.Counter{ItemID: "a", Value: deployed.Value{Money: air.Money{Amount: huge, Currency: "KRW"}}},
		&deployed.Accept{ItemID: "a"},
		&deployed.Decline{ItemID: "a", Reason: "r"},
		&deployed.Withdraw{ItemID: "a"},
	} {
		e, err := air.NewEnvelope(&air.Draft{
			ID: "m-1", From: "did:wba:x:AIR-WBA1-ALICE0", To: "did:wba:x:AIR-WBA1-BOB000", Time: time.Unix(1e9, 0),
			ThreadID: "thread-1", Nonce: "n", Body: deployed.Encode(b),
		}, key, &air.EnvelopeOptions{Profile: air.ProfileDeployed})
		require.NoError(t, err)
		back, err := deployed.Decode(e.Body().(*air.Raw))
		require.NoError(t, err)
		require.Equal(t, b, back)
	}
	// An absent option is sent as null, which is what peers sign.
	require.JSONEq(t, `{"type":"accept","item_id":"a","note":null}`, string(deployed.Encode(&deployed.Accept{ItemID: "a"}).JSON))
}

func TestDecodeRefuses(t *testing.T) {
	for _, text := range []string{
		``, `[]`, `{}`, `{"item_id":1}`, `{"item_id":"a"}`, `{"item_id":"a","offered_value":5}`,
		`{"item_id":"a","offered_value":{"type":"cash","amount_cents":-1,"currency":"USD"}}`,
		`{"item_id":"a","offered_value":{"type":"cash","amount_cents":1}}`,
		`{"item_id":"a","offered_value":{"type":"gold"}}`,
		`{"item_id":"a","offered_value":{"type":"item","item_id":"","quantity":1}}`,
		`{"item_id":"a","offered_value":{"type":"item","item_id":"b","quantity":1.5}}`,
		`{"item_id":"a","note":7,"offered_value":{"type":"item","item_id":"b","quantity":1}}`,
	} {
		_, err := deployed.Decode(&air.Raw{Type: "offer", JSON: []byte(text)})
		require.ErrorIs(t, err, air.ErrInvalidEnvelope, text)
	}
	_, err := deployed.Decode(&air.Raw{Type: "room/msg", JSON: []byte(`{}`)})
	require.ErrorIs(t, err, air.ErrUnsupportedBody)
}

// The bodies of the 20 published vectors are all of this package.
func TestPublishedBodies(t *testing.T) {
	data, err := os.ReadFile("../../conformance/testdata/air/published-signing.json")
	require.NoError(t, err)
	var file struct {
		Cases []struct{ In struct{ Envelope string } }
	}
	require.NoError(t, json.Unmarshal(data, &file))
	require.NotEmpty(t, file.Cases)
	for _, c := range file.Cases {
		var env struct{ Body json.RawMessage }
		require.NoError(t, json.Unmarshal([]byte(c.In.Envelope), &env))
		body, err := air.DecodeBody(env.Body, air.ProfileDeployed)
		require.NoError(t, err)
		_, err = deployed.Decode(body.(*air.Raw))
		require.NoError(t, err, string(env.Body))
	}
}
