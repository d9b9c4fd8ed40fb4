// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package transcript_test

import (
	"bytes"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/air"
	"github.com/fivewire/fivewire/air/airtest"
	"github.com/fivewire/fivewire/air/transcript"
)

var start = time.Date(2026, 5, 28, 9, 0, 0, 0, time.UTC)

// An author signs messages.
type author struct{ *air.Identity }

func newAuthor(t testing.TB, airID string) author {
	id, err := air.GenerateIdentity(airtest.DID(airID))
	require.NoError(t, err)
	return author{id}
}

func (a author) document(t testing.TB) *air.Document {
	doc, err := air.DecodeDocument(airtest.Document(a.DID(), a.PublicKey().String(), ""))
	require.NoError(t, err)
	return doc
}

const thread = "018fde3a-5678-7abc-9012-aabbccddeeff"

func messageID(n int) string { return fmt.Sprintf("018fde3a-1234-7abc-8def-%012d", n) }

// write returns the nth message of the thread.
func (a author) write(t testing.TB, to author, n int, at time.Time, extra, body string) *air.Envelope {
	text := fmt.Sprintf(`{"id":%q,"from":%q,"to":%q,"timestamp":%q,"thread_id":%q,"nonce":"nonce-of-message-%d",%s"body":%s}`,
		messageID(n), a.DID(), to.DID(), at.Format("2006-01-02T15:04:05.000Z"), thread, n, extra, body)
	signed, err := air.Sign([]byte(text), a.Signer(), air.FormSpec)
	require.NoError(t, err)
	e, err := air.DecodeEnvelope(signed, &air.DecodeOptions{BodyTypes: []string{air.AnyBodyType}})
	require.NoError(t, err)
	return e
}

const (
	offer  = `{"type":"Offer","description":"work <&> ` + "\u2028" + `","price":{"amount_cents":500,"currency":"USD"},"expires_at":"2026-06-28T09:00:00.000Z"}`
	accept = `{"type":"Accept","accepted_price":{"amount_cents":500,"currency":"USD"}}`
)

func reply(n int) string { return fmt.Sprintf(`"in_reply_to":%q,`, messageID(n)) }

// sealedNote returns a sealed body of the nth message.
func sealedNote(t testing.TB, from, to author, n int) string {
	sealed, err := air.Seal(to.PublicKey(), air.Binding{ID: messageID(n), From: from.DID(), To: to.DID(), ThreadID: thread}, []byte(`{"type":"note"}`))
	require.NoError(t, err)
	return string(sealed)
}

// negotiation returns a transcript of an offer, a sealed note and an agreement.
func negotiation(t testing.TB, alice, bob author) *transcript.Transcript {
	var tr transcript.Transcript
	tr.Add(start, alice.write(t, bob, 1, start, "", offer), alice.document(t))
	tr.Add(start.Add(time.Minute), alice.write(t, bob, 2, start.Add(time.Minute), "", sealedNote(t, alice, bob, 2)), alice.document(t))
	tr.Add(start.Add(time.Hour), bob.write(t, alice, 3, start.Add(time.Minute), reply(1), accept), bob.document(t))
	return &tr
}

func TestTranscriptIsVerifiedOffline(t *testing.T) {
	alice, bob := newAuthor(t, "AIR-A11C-E000-0001"), newAuthor(t, "AIR-B0B0-0000-0002")
	data, err := transcript.Append(nil, negotiation(t, alice, bob))
	require.NoError(t, err)
	tr, err := transcript.Decode(data)
	require.NoError(t, err)
	r, err := tr.Verify(nil)
	require.NoError(t, err)
	require.Equal(t, thread, r.ThreadID)
	require.Equal(t, [2]string{alice.DID(), bob.DID()}, [2]string{r.First, r.Other})
	require.Equal(t, map[string][]string{alice.DID(): {alice.PublicKey().String()}, bob.DID(): {bob.PublicKey().String()}}, r.Keys)
	require.Equal(t, air.ThreadAccepted, r.Thread.State)
	require.Equal(t, air.MinorUnits(500, "USD"), r.Thread.Agreed)
	require.Equal(t, 1, r.Sealed)
	require.Len(t, r.Envelopes, 3)
	second, err := transcript.Append(nil, tr)
	require.NoError(t, err)
	require.Equal(t, string(data), string(second))
}

func TestTranscriptFaults(t *testing.T) {
	alice, bob, carol := newAuthor(t, "AIR-A11C-E000-0001"), newAuthor(t, "AIR-B0B0-0000-0002"), newAuthor(t, "AIR-CA20-1000-0003")
	at := start.Add(2 * time.Hour)
	for _, tt := range []struct {
		name, want string
		change     func(*transcript.Transcript)
	}{
		{"no entries", "no entries", func(tr *transcript.Transcript) { tr.Entries = nil }},
		{"a changed price", "entry 0: air: bad_signature", func(tr *transcript.Transcript) {
			tr.Entries[0].Envelope = bytes.Replace(tr.Entries[0].Envelope, []byte(":500"), []byte(":501"), 1)
		}},
		{"a changed sealed body", "entry 1: air: bad_signature", func(tr *transcript.Transcript) {
			tr.Entries[1].Envelope = alice.write(t, bob, 2, start, "", sealedNote(t, alice, bob, 2)).Bytes()
			tr.Entries[1].Envelope = bytes.Replace(tr.Entries[1].Envelope, []byte(`"nonce-of`), []byte(`"nonce_of`), 1)
		}},
		{"the key of another agent", "entry 2: air: not_found", func(tr *transcript.Transcript) { tr.Entries[2].Document = alice.document(t).JSON() }},
		{"another key of the agent", "entry 2: air: bad_signature", func(tr *transcript.Transcript) {
			tr.Entries[2].Document = airtest.Document(bob.DID(), carol.PublicKey().String(), "")
		}},
		{"a document that is none", "entry 0: air: bad_document", func(tr *transcript.Transcript) { tr.Entries[0].Document = []byte(`[]`) }},
		{"a left out offer", "entry 1: air: conflict", func(tr *transcript.Transcript) { tr.Entries = tr.Entries[1:] }},
		{"a plain answer to a sealed move", "entry 2: air: conflict", func(tr *transcript.Transcript) {
			tr.Entries[0].Envelope = alice.write(t, bob, 1, start, "", sealedNote(t, alice, bob, 1)).Bytes()
		}},
		{"the order of times", "entry 1: time before", func(tr *transcript.Transcript) { tr.Entries[1].Time = start.Add(-time.Second) }},
		{"a message from the future", "entry 0: timestamp 2026-05-28T09:00:00.000Z is after", func(tr *transcript.Transcript) {
			tr.Entries[0].Time = start.Add(-31 * time.Second)
		}},
		{"a repeated message", "entry 3: message " + messageID(2) + " is repeated", func(tr *transcript.Transcript) {
			tr.Entries = append(tr.Entries, tr.Entries[1])
			tr.Entries[3].Time = at
		}},
		{"a third party", "entry 3: from " + carol.DID(), func(tr *transcript.Transcript) {
			tr.Add(at, carol.write(t, bob, 4, start, "", `{"type":"note"}`), carol.document(t))
		}},
		{"an agent with itself", "entry 0: from " + alice.DID(), func(tr *transcript.Transcript) {
			tr.Entries = nil
			tr.Add(start, alice.write(t, alice, 1, start, "", offer), alice.document(t))
		}},
		{"a move after the end", "entry 3: air: thread_closed", func(tr *transcript.Transcript) {
			tr.Add(at, bob.write(t, alice, 4, start, reply(1), accept), bob.document(t))
		}},
		{"another thread", "entry 3: thread 018fde3a-0000", func(tr *transcript.Transcript) {
			e := bob.write(t, alice, 4, start, "", `{"type":"note"}`)
			tr.Add(at, e, bob.document(t))
			tr.Entries[3].Envelope = bytes.Replace(tr.Entries[3].Envelope, []byte("018fde3a-5678"), []byte("018fde3a-0000"), 1)
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tr := negotiation(t, alice, bob)
			tt.change(tr)
			_, err := tr.Verify(nil)
			require.ErrorContains(t, err, tt.want)
		})
	}
}

func TestDecodeFaults(t *testing.T) {
	for text, want := range map[string]string{
		`{"format":"other","entries":[]}`:                                               "format",
		`{"format":"air-transcript-1","format":"air-transcript-1","entries":[]}`:        "given twice",
		`{"format":"air-transcript-1","entries":[{"time":"yesterday"}]}`:                "time",
		`{"format":"air-transcript-1","entries":[{"time":"2026-05-28T09:00:00Z"},2]}`:   "entries",
		`{"format":"air-transcript-1","entries":[]}{"format":"air-transcript-1"}`:       "",
		`{"format":"air-transcript-1","entries":[{"time":"2026-05-28T09:00:00Z","envel`: "",
	} {
		_, err := transcript.Decode([]byte(text))
		require.ErrorContains(t, err, want, text)
	}
	_, err := transcript.Append(nil, &transcript.Transcript{Entries: []transcript.Entry{{Envelope: []byte(`{`), Document: []byte(`{}`)}}})
	require.ErrorContains(t, err, "entry 0: envelope")
}

// A decoded transcript is written and read again as it is; Verify never panics.
func FuzzDecode(f *testing.F) {
	data, err := transcript.Append(nil, negotiation(f, newAuthor(f, "AIR-A11C-E000-0001"), newAuthor(f, "AIR-B0B0-0000-0002")))
	require.NoError(f, err)
	f.Add(data)
	f.Fuzz(func(t *testing.T, data []byte) {
		tr, err := transcript.Decode(data)
		if err != nil {
			return
		}
		_, _ = tr.Verify(nil)
		text, err := transcript.Append(nil, tr)
		if err != nil {
			return // a time or a raw value that JSON has no form for
		}
		second, err := transcript.Decode(text)
		require.NoError(t, err)
		require.Equal(t, len(tr.Entries), len(second.Entries))
	})
}
