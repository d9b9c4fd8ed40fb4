// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package air_test

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/fivewire/fivewire/air"
)

// Each row changes one thing of a good envelope (AIR-043, AIR-047). The three columns are what the
// three profiles say to it ("" is valid).
func TestDecodeProfiles(t *testing.T) {
	const (
		ok   = air.Code("")
		bad  = air.ErrInvalidEnvelope
		null = air.ErrNullForbidden
		none = air.ErrEmptyArray
	)
	base := strings.Replace(unsigned, `"body"`, `"signature":null,"body"`, 1)
	tests := []struct {
		name, old, new          string
		spec, interop, deployed air.Code
	}{
		{"as it is", "", "", ok, ok, ok},
		{"unknown member (AIR-D29, AIR-132)", `{"id"`, `{"x":{"y":[]},"id"`, ok, ok, ok},
		{"unknown member in the price", `"currency"`, `"x":1,"currency"`, ok, ok, ok},
		{"unknown member that is null", `{"id"`, `{"x":null,"id"`, null, null, ok},
		{"in_reply_to null (AIR-055, AIR-D20)", `{"id"`, `{"in_reply_to":null,"id"`, null, ok, ok},
		{"nested in_reply_to null", `"description"`, `"in_reply_to":null,"description"`, null, null, ok},
		{"empty list in the body (AIR-D28)", `"description"`, `"x":[{"y":[]}],"description"`, none, none, ok},
		{"empty object in the body", `"description"`, `"x":{},"description"`, ok, ok, ok},
		{"version 7 id (AIR-D21)", "00000001-0021-4000", "00000001-0021-7000", bad, ok, ok},
		{"other variant", "4000-9000", "4000-c000", bad, ok, ok},
		{"upper-case id", "026aa6ead519", "026AA6EAD519", bad, bad, ok},
		{"id of another shape", "00000001-0021-4000-9000-026aa6ead519", "thread-1", bad, bad, ok},
		{"empty id", "00000001-0021-4000-9000-026aa6ead519", "", bad, bad, bad},
		{"id of 256 characters", "00000001-0021-4000-9000-026aa6ead519", strings.Repeat("é", 256), bad, bad, ok},
		{"id of 257 characters", "00000001-0021-4000-9000-026aa6ead519", strings.Repeat("é", 257), bad, bad, bad},
		{"NUL in the id", "00000001-0021-4000-9000-026aa6ead519", `a\u0000`, bad, bad, bad},
		{"id is a number", `"00000001-0021-4000-9000-026aa6ead519"`, "1", bad, bad, bad},
		{"no id", `"id"`, `"ID"`, bad, bad, bad},
		{"bad in_reply_to", `{"id"`, `{"in_reply_to":"x y","id"`, bad, bad, ok},
		{"in_reply_to is a number", `{"id"`, `{"in_reply_to":7,"id"`, bad, bad, bad},
		{"no from", `"from"`, `"From"`, bad, bad, bad},
		{"other method (AIR-D32)", "did:wba:agentidentityregistry.org:agents:AIR-S1EN", "did:web:agentidentityregistry.org:agents:AIR-S1EN", bad, bad, ok},
		{"no AIR ID", "AIR-S1EN-D3RA-GNT0", "bob", bad, bad, ok},
		{"no DID", "did:wba:agentidentityregistry.org:agents:AIR-S1EN-D3RA-GNT0", "bob", bad, bad, bad},
		{"fragment in the DID", "AIR-S1EN-D3RA-GNT0", "AIR-S1EN-D3RA-GNT0#key-1", bad, bad, ok},
		{"no to", `"to"`, `"To"`, bad, bad, bad},
		{"seconds only (AIR-D22)", "09:00:00.000Z", "09:00:00Z", bad, bad, ok},
		{"nine digits", "09:00:00.000Z", "09:00:00.123456789Z", bad, bad, ok},
		{"ten digits", "09:00:00.000Z", "09:00:00.1234567890Z", bad, bad, bad},
		{"point without digits", "09:00:00.000Z", "09:00:00.Z", bad, bad, bad},
		{"offset", "09:00:00.000Z", "09:00:00.000+00:00", bad, bad, bad},
		{"lower case z", "09:00:00.000Z", "09:00:00.000z", bad, bad, bad},
		{"space for T", "2026-05-28T09", "2026-05-28 09", bad, bad, bad},
		{"leap second", "09:00:00.000Z", "09:00:60.000Z", bad, bad, bad},
		{"hour 24", "T09:00:00.000Z", "T24:00:00.000Z", bad, bad, bad},
		{"no such day", "2026-05-28T09", "2026-04-31T09", bad, bad, bad},
		{"leap day", "2026-05-28T09", "2028-02-29T09", ok, ok, ok},
		{"month 0", "2026-05-28T09", "2026-00-28T09", bad, bad, bad},
		{"no thread", `"thread_id"`, `"thread"`, bad, bad, bad},
		{"empty nonce", `"n-1"`, `""`, bad, bad, bad},
		{"nonce of 256", `"n-1"`, `"` + strings.Repeat("é", 256) + `"`, ok, ok, ok},
		{"nonce of 257", `"n-1"`, `"` + strings.Repeat("é", 257) + `"`, bad, bad, bad},
		{"nonce is null", `"n-1"`, `null`, null, null, bad},
		{"signature is a list (AIR-D15)", `"signature":null`, `"signature":[1]`, bad, bad, bad},
		{"body is a string", `"body":{`, `"body":"x","b":{`, bad, bad, bad},
		{"no type", `"type"`, `"Type"`, bad, bad, bad},
		{"type is a number", `"type":"Offer"`, `"type":1`, bad, bad, bad},
		{"unregistered type (AIR-D26)", `"type":"Offer"`, `"type":"offer"`, air.ErrUnsupportedBody, air.ErrUnsupportedBody, ok},
		{"no description", `"description"`, `"d"`, bad, bad, ok},
		{"no price", `"price"`, `"p"`, bad, bad, ok},
		{"price is a number", `"price":{`, `"price":5,"p":{`, bad, bad, ok},
		{"negative amount (AIR-D25)", "9007199254740993", "-1", bad, bad, ok},
		{"minus zero", "9007199254740993", "-0", ok, ok, ok},
		{"amount is a string", "9007199254740993", `"5"`, bad, bad, ok},
		{"amount beyond 64 bits", "9007199254740993", strings.Repeat("9", 100), ok, ok, ok},
		{"currency in lower case", "USD", "usd", bad, bad, ok},
		{"currency of four letters", "USD", "USDT", bad, bad, ok},
		{"expires_at without milliseconds", "10:00:00.000Z", "10:00:00Z", bad, bad, ok},
		{"no expires_at", `"expires_at"`, `"e"`, bad, bad, ok},
		{"Counter without in_reply_to (AIR-038)", `"type":"Offer"`, `"type":"Counter"`, bad, bad, ok},
		{"Withdraw without withdrawn_id", `"type":"Offer"`, `"type":"Withdraw"`, bad, bad, ok},
		{"encrypted without its members (AIR-157)", `"type":"Offer"`, `"type":"encrypted"`, bad, bad, ok},
		{"names with escapes", `"nonce"`, `"\u006eonce"`, ok, ok, ok},
		{"no body", `"body"`, `"Body"`, bad, bad, bad},
		{"DIDComm wrapper (AIR-107)", base, `{"protected":"x","recipients":[{}],"ciphertext":"y"}`, bad, bad, bad},
		{"list", base, `[]`, bad, bad, bad},
		{"text", base, `"x"`, bad, bad, bad},
		{"float before null", `{"id"`, `{"x":null,"y":1e2,"id"`, air.ErrFloatForbidden, air.ErrFloatForbidden, air.ErrFloatForbidden},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			text := strings.Replace(base, tt.old, tt.new, 1)
			require.True(t, tt.old == "" || text != base)
			for p, want := range map[air.Profile]air.Code{air.ProfileSpec: tt.spec, air.ProfileInterop: tt.interop, air.ProfileDeployed: tt.deployed} {
				e, err := air.DecodeEnvelope([]byte(text), &air.DecodeOptions{Profile: p})
				if want == "" {
					require.NoError(t, err, p)
					require.NotNil(t, e.Body())
					continue
				}
				require.ErrorIs(t, err, want, p)
				require.Nil(t, e)
			}
		})
	}
	_, err := air.DecodeEnvelope([]byte(base), &air.DecodeOptions{MaxMessage: len(base) - 1})
	require.ErrorIs(t, err, air.ErrTooLarge)
	_, err = air.DecodeEnvelope([]byte(base), &air.DecodeOptions{MaxMessage: len(base)})
	require.NoError(t, err)
}

// The six bodies survive writing and reading (AIR-045..053, AIR-079).
func TestBodiesRoundTrip(t *testing.T) {
	priv, _ := key(t, 1)
	money := rapid.Custom(func(t *rapid.T) air.Money {
		digits := rapid.StringMatching(`0|[1-9][0-9]{0,40}`).Draw(t, "digits")
		a, ok := air.ParseAmount(digits)
		if !ok {
			t.Fatal(digits)
		}
		return air.Money{Amount: a, Currency: rapid.StringMatching(`[A-Z]{3}`).Draw(t, "currency")}
	})
	text := rapid.StringN(0, 512, -1)
	rapid.Check(t, func(t *rapid.T) {
		at := time.UnixMilli(rapid.Int64Range(0, 4e12).Draw(t, "at")).UTC()
		canonical := func(s string) string {
			out, err := air.Canonicalize(append(append([]byte{'"'}, strings.NewReplacer(`"`, `\"`, `\`, `\\`).Replace(strings.Map(printable, s))...), '"'))
			if err != nil {
				t.Fatal(err)
			}
			return strings.NewReplacer(`\"`, `"`, `\\`, `\`).Replace(strings.Trim(string(out[1:len(out)-1]), ""))
		}
		s := canonical(text.Draw(t, "text"))
		bodies := []air.Body{
			&air.Offer{Description: s, Price: money.Draw(t, "price"), Expires: at},
			&air.Counter{Description: s, Price: money.Draw(t, "price"), Expires: at},
			&air.Accept{Price: money.Draw(t, "price")},
			&air.Decline{Reason: s},
			&air.Withdraw{WithdrawnID: air.NewID(), Reason: s},
			&air.Raw{Type: "encrypted", JSON: []byte(`{"alg":"x25519-hkdf-sha256-chacha20poly1305","ct":"BB","epk":"z6LS","nonce":"AA","type":"encrypted","v":1}`)},
			&air.Raw{Type: "note", JSON: []byte(`{"n":12345678901234567890,"type":"note"}`)},
		}
		body := rapid.SampledFrom(bodies).Draw(t, "body")
		d := &air.Draft{
			ID: air.NewID(), From: "did:wba:x.example:AIR-AAAA-AAAA-AAAA", To: "did:wba:x.example:a:b:AIR-BBBB-BBBB-BBBB",
			Time: at, ThreadID: air.NewID(), Nonce: air.NewNonce(), Body: body,
		}
		if air.BodyType(body) != "Offer" {
			d.InReplyTo = air.NewID()
		}
		e, err := air.NewEnvelope(d, priv, &air.EnvelopeOptions{BodyTypes: []string{"note"}})
		if err != nil {
			t.Fatal(err)
		}
		back, err := air.DecodeEnvelope(e.Bytes(), &air.DecodeOptions{Profile: air.ProfileSpec, BodyTypes: []string{"note"}})
		if err != nil {
			t.Fatal(err)
		}
		require.Equal(t, body, back.Body())
		require.Equal(t, at, back.Time)
		require.Equal(t, d.InReplyTo, back.InReplyTo)
	})
}

func printable(r rune) rune {
	if r < 0x20 {
		return -1
	}
	return r
}

func TestAmount(t *testing.T) {
	for _, bad := range []string{"", "-1", "00", "01", "+1", "1.0", "1e2", " 1", "１"} {
		_, ok := air.ParseAmount(bad)
		require.False(t, ok, bad)
	}
	zero, ok := air.ParseAmount("0")
	require.True(t, ok)
	require.True(t, zero == air.Amount{})
	require.True(t, zero == air.MinorUnits(0, "USD").Amount)
	require.Equal(t, "0", zero.String())
	n, ok := air.MinorUnits(1<<64-1, "USD").Amount.Uint64()
	require.True(t, ok)
	require.Equal(t, uint64(1<<64-1), n)
	big1, ok := air.ParseAmount("18446744073709551616")
	require.True(t, ok)
	_, ok = big1.Uint64()
	require.False(t, ok)
	require.Equal(t, "18446744073709551616", big1.String())
	require.Equal(t, "18446744073709551615 EUR", air.MinorUnits(1<<64-1, "EUR").String())
}

// Refused addresses of inboxes, and the URLs derived from accepted ones (AIR-016..021, AIR-D34,
// AIR-D35).
func TestEndpoints(t *testing.T) {
	for _, bad := range []string{
		"", " https://x.example/", "http://x.example/", "ftp://x.example/", "https://", "https:x.example", "https://user@x.example/", "https://:p@x.example/",
		"https://x.example/#f", "https://x.example/#", "https://localhost/", "https://a.localhost./", "https://127.0.0.1/", "https://[::1]/", "https://[::ffff:127.0.0.1]/",
		"https://10.0.0.1/", "https://192.168.1.1/", "https://172.16.0.1/", "https://169.254.1.1/", "https://0.0.0.0/", "https://[::]/", "https://224.0.0.1/",
		"https://[fe80::1]/", "https://[fd00::1]/", "https://[ff02::1]/", "https://x.example/%zz", "mailto:x@x.example", "javascript:1", "https://x.example/\n",
	} {
		_, err := air.ParseEndpoint(bad, nil)
		require.ErrorIs(t, err, air.ErrBadEndpoint, bad)
	}
	tests := []struct {
		text string
		opts air.EndpointOptions
		want air.Endpoint
	}{
		{"https://x.example", air.EndpointOptions{}, air.Endpoint{URL: "https://x.example", Pull: "https://x.example/pull", Ack: "https://x.example/ack"}},
		{"https://x.example/in/?k=v", air.EndpointOptions{}, air.Endpoint{URL: "https://x.example/in/?k=v", Pull: "https://x.example/in/pull?k=v", Ack: "https://x.example/in/ack?k=v"}},
		{"https://x.example/in//", air.EndpointOptions{}, air.Endpoint{URL: "https://x.example/in//", Pull: "https://x.example/in//pull", Ack: "https://x.example/in//ack"}},
		{"/in", air.EndpointOptions{}, air.Endpoint{URL: "https://agentidentityregistry.org/in", Pull: "https://agentidentityregistry.org/in/pull", Ack: "https://agentidentityregistry.org/in/ack"}},
		{"https://x.example/inbox/did%3Awba", air.EndpointOptions{Dialect: air.DialectDeployed}, air.Endpoint{URL: "https://x.example/inbox/did%3Awba", Pull: "https://x.example/pull/did%3Awba", Ack: "https://x.example/ack/did%3Awba"}},
		{"https://x.example/a/inbox/r/?q", air.EndpointOptions{Dialect: air.DialectDeployed}, air.Endpoint{URL: "https://x.example/a/inbox/r/?q", Pull: "https://x.example/a/pull/r?q", Ack: "https://x.example/a/ack/r?q"}},
		{"http://127.0.0.1:8080/x", air.EndpointOptions{AllowLoopback: true}, air.Endpoint{URL: "http://127.0.0.1:8080/x", Pull: "http://127.0.0.1:8080/x/pull", Ack: "http://127.0.0.1:8080/x/ack"}},
		{"https://10.0.0.1/x", air.EndpointOptions{AllowPrivate: true}, air.Endpoint{URL: "https://10.0.0.1/x", Pull: "https://10.0.0.1/x/pull", Ack: "https://10.0.0.1/x/ack"}},
	}
	for _, tt := range tests {
		e, err := air.ParseEndpoint(tt.text, &tt.opts)
		require.NoError(t, err, tt.text)
		require.Equal(t, tt.want, e, tt.text)
	}
	for _, bad := range []string{"https://x.example/", "https://x.example/inbox/", "https://x.example/inbox", "https://x.example/box/r", "https://x.example/inbox/r/more"} {
		_, err := air.ParseEndpoint(bad, &air.EndpointOptions{Dialect: air.DialectDeployed})
		require.ErrorIs(t, err, air.ErrBadEndpoint, bad)
	}
	_, err := air.ParseEndpoint("http://10.0.0.1/", &air.EndpointOptions{AllowPrivate: true, AllowLoopback: true})
	require.ErrorIs(t, err, air.ErrBadEndpoint)
}

// The error bodies on the wire, and the codes that are not sent (AIR-118..120, AIR-123, AIR-124).
func TestErrors(t *testing.T) {
	e := &air.Error{Code: air.ErrBadGateway, Message: "d", AIRID: "a", ThreadID: "t", Cause: errDisk}
	require.Equal(t, 502, e.HTTPStatus())
	require.JSONEq(t, `{"error":"Bad Gateway","detail":"d","air_id":"a","thread_id":"t"}`, string(e.HTTPBody()))
	require.ErrorIs(t, e, errDisk)
	require.Contains(t, e.Error(), "disk on fire")
	require.Equal(t, "air: stale_key", air.ErrStaleKey.Error())
	local := &air.Error{Code: air.ErrDeliveryFailed, Message: "internal"}
	require.Equal(t, 500, local.HTTPStatus())
	require.JSONEq(t, `{"error":"Relay Error"}`, string(local.HTTPBody()))
	require.Equal(t, "draft-1-candidate", air.ConformanceLabel()) // AIR-001, AIR-D66
}

func FuzzDecode(f *testing.F) {
	vectorInputs(f, func(data []byte) { f.Add(data) })
	f.Fuzz(func(t *testing.T, data []byte) {
		for _, p := range []air.Profile{air.ProfileSpec, air.ProfileInterop, air.ProfileDeployed} {
			opts := &air.DecodeOptions{Profile: p, BodyTypes: []string{air.AnyBodyType}}
			e, err := air.DecodeEnvelope(data, opts)
			if err != nil {
				var ae *air.Error
				require.ErrorAs(t, err, &ae)
				continue
			}
			require.NotNil(t, e.Body())
			second, err := air.DecodeEnvelope(e.Bytes(), opts)
			require.NoError(t, err)
			require.Equal(t, e, second)
		}
	})
}

func FuzzDocument(f *testing.F) {
	vectorInputs(f, func(data []byte) { f.Add(data) })
	f.Fuzz(func(t *testing.T, data []byte) {
		d, err := air.DecodeDocument(data)
		if err != nil {
			require.ErrorIs(t, err, air.ErrBadDocument)
			return
		}
		second, err := air.DecodeDocument(d.JSON())
		require.NoError(t, err)
		require.Equal(t, d.JSON(), second.JSON())
		if e, err := d.Inbox(d.ID, nil); err == nil {
			require.True(t, strings.HasPrefix(e.URL, "https://"))
		}
		if k, err := d.SigningKey(d.ID); err == nil {
			require.Len(t, k.Bytes(), 32)
		}
	})
}
