// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package probe_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/fivewire/fivewire/air"
	"github.com/fivewire/fivewire/air/airtest"
	"github.com/fivewire/fivewire/air/probe"
	"github.com/fivewire/fivewire/air/relay"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	alice = "AIR-A11C-E000-0001"
	bob   = "AIR-B0B0-0000-0002"
)

// A world has a registry with two agents.
type world struct {
	*airtest.Network
	alice, bob *air.Identity
}

func newWorld(t *testing.T) *world {
	n, err := airtest.NewNetwork(nil)
	require.NoError(t, err)
	t.Cleanup(n.Close)
	w := &world{Network: n}
	w.alice, err = n.RegisterAgent(alice)
	require.NoError(t, err)
	w.bob, err = n.RegisterAgent(bob)
	require.NoError(t, err)
	return w
}

// serve moves the inbox of bob to a handler.
func (w *world) serve(t *testing.T, path string, h http.Handler) {
	srv := httptest.NewServer(h)
	t.Cleanup(srv.Close)
	w.Registry.Register(w.bob, srv.URL+path)
}

func (w *world) resolver(t *testing.T) *air.Resolver {
	r, err := w.Resolver()
	require.NoError(t, err)
	t.Cleanup(func() { _ = r.Close() })
	return r
}

// probe probes bob.
func (w *world) probe(t *testing.T, id *air.Identity, bodyTypes ...string) *probe.Report {
	r, err := probe.Probe(t.Context(), w.bob.DID(), &probe.Options{Resolver: w.resolver(t), Identity: id, BodyTypes: bodyTypes, AllowLoopback: true})
	require.NoError(t, err)
	require.Equal(t, w.bob.PublicKey().String(), r.Key)
	require.True(t, r.HasClock)
	require.Less(t, r.Clock.Abs(), time.Hour)
	return r
}

func TestProbeOpenRelay(t *testing.T) {
	w := newWorld(t)
	r := w.probe(t, nil)
	require.Equal(t, probe.KindRelay, r.Kind)
	require.Equal(t, []air.Dialect{air.DialectSpec, air.DialectDeployed}, r.Dialects)
	require.True(t, r.IsOpen)
	require.False(t, r.NeedsSecret)
	require.Contains(t, strings.Join(r.Advice, "\n"), "every caller can pull")
}

// A probe leaves no mail.
func TestProbeGuardedRelay(t *testing.T) {
	w := newWorld(t)
	srv, err := relay.NewServer(&relay.ServerOptions{AnyRecipient: true, Auth: relay.Auth{PushSecret: "p", InboxSecret: func(string) string { return "s" }}})
	require.NoError(t, err)
	defer srv.Close()
	w.serve(t, "/inbox/"+bob, srv)
	r := w.probe(t, w.alice, "note")
	require.Equal(t, probe.KindRelay, r.Kind)
	require.Len(t, r.Dialects, 2)
	require.False(t, r.IsOpen)
	require.True(t, r.NeedsSecret)
	require.Equal(t, []string{"set ClientOptions.Secrets for this origin"}, r.Advice)
	require.Zero(t, srv.Stats().Queued)
}

// A probe finds the bodies and the forms of an inbox, and delivers nothing.
func TestProbeInbox(t *testing.T) {
	for _, tt := range []struct {
		profile air.Profile
		forms   []air.Form
	}{
		{air.ProfileInterop, []air.Form{air.FormSpec, air.FormDeployed}},
		{air.ProfileSpec, []air.Form{air.FormSpec}},
	} {
		w := newWorld(t)
		handler := air.HandlerFunc(func(context.Context, *air.Delivery) error {
			t.Error("delivered")
			return nil
		})
		in, err := air.NewInbox(w.bob, handler, &air.InboxOptions{Resolver: w.resolver(t), Profile: tt.profile, BodyTypes: []string{"note"}})
		require.NoError(t, err)
		defer in.Close()
		w.serve(t, "/inbox", in)
		r := w.probe(t, w.alice, "note", "invoice")
		require.Equal(t, probe.KindInbox, r.Kind)
		require.Empty(t, r.Dialects)
		require.Equal(t, []string{"Offer", "encrypted", "note"}, r.Bodies)
		require.Equal(t, tt.forms, r.Forms)
		require.Empty(t, w.probe(t, nil).Forms)
		for m := range in.DeadLetters(t.Context()) {
			t.Error(m)
		}
	}
}

// A server that refuses a probe without a secret may be an inbox.
func TestProbeGuardedInbox(t *testing.T) {
	w := newWorld(t)
	in, err := air.NewInbox(w.bob, air.HandlerFunc(func(context.Context, *air.Delivery) error { return nil }),
		&air.InboxOptions{Resolver: w.resolver(t), Auth: air.Auth{PushSecret: "p"}})
	require.NoError(t, err)
	defer in.Close()
	w.serve(t, "/inbox", in)
	r := w.probe(t, w.alice)
	require.Equal(t, probe.KindUnknown, r.Kind)
	require.Equal(t, []string{"set ClientOptions.Secrets for this origin"}, r.Advice)
}

// A relay as deployed has its own paths and errors, and keeps every object with an id.
func TestProbeDeployedRelay(t *testing.T) {
	w := newWorld(t)
	w.serve(t, "/inbox/"+w.bob.DID(), http.HandlerFunc(func(rw http.ResponseWriter, req *http.Request) {
		rw.Header().Set("Content-Type", "application/json")
		rw.Header().Set("Date", time.Now().Add(-10*time.Minute).UTC().Format(http.TimeFormat))
		switch {
		case req.Method == http.MethodGet && strings.HasPrefix(req.URL.Path, "/pull/"):
			fmt.Fprintf(rw, `{"recipient_did":%q,"messages":[],"cursor":0,"has_more":false}`, w.bob.DID())
		case req.Method == http.MethodPost:
			var body struct{ ID string }
			_ = json.NewDecoder(req.Body).Decode(&body)
			if body.ID != "" {
				t.Error("an envelope would be queued")
			}
			rw.WriteHeader(http.StatusBadRequest)
			fmt.Fprint(rw, `{"error":"missing_id"}`)
		default:
			rw.WriteHeader(http.StatusNotFound)
			fmt.Fprint(rw, `{"error":"not_found"}`)
		}
	}))
	r := w.probe(t, w.alice, "note")
	require.Equal(t, probe.KindRelay, r.Kind)
	require.Equal(t, []air.Dialect{air.DialectDeployed}, r.Dialects)
	require.InDelta(t, -600, r.Clock.Seconds(), 30)
	require.Len(t, r.Advice, 3)
	require.Contains(t, r.Advice[0], "DialectDeployed")
	require.Contains(t, r.Advice[2], "the clocks differ")
}

func TestProbeFaults(t *testing.T) {
	w := newWorld(t)
	_, err := probe.Probe(t.Context(), w.bob.DID(), nil)
	require.ErrorContains(t, err, "Resolver missing")
	ask := func(did string, allow bool) error {
		_, err := probe.Probe(t.Context(), did, &probe.Options{Resolver: w.resolver(t), AllowLoopback: allow})
		return err
	}
	require.ErrorIs(t, ask(airtest.DID("AIR-N0NE-0000-0003"), true), air.ErrNotFound)
	require.ErrorIs(t, ask(w.bob.DID(), false), air.ErrBadEndpoint)
	w.Registry.Register(w.bob, "")
	require.ErrorIs(t, ask(w.bob.DID(), true), air.ErrUnreachable)
	w.serve(t, "/inbox", http.NotFoundHandler())
	require.Equal(t, probe.KindUnknown, w.probe(t, w.alice).Kind)
}

var now = time.Date(2026, 5, 28, 9, 0, 0, 0, time.UTC)

func envelope(extra, body string) string {
	return `{"id":"018fde3a-1234-4abc-8def-aabbccddeeff","from":"` + airtest.DID(alice) + `","to":"` + airtest.DID(bob) +
		`","timestamp":"2026-05-28T09:00:00.000Z","thread_id":"018fde3a-5678-4abc-9012-aabbccddeeff","nonce":"r4nd0mN0nc3-abc123xyz789",` + extra + `"body":` + body + `}`
}

func TestLint(t *testing.T) {
	note := func(member string) string { return envelope("", `{"type":"note",`+member+`}`) }
	for _, tt := range []struct {
		name, envelope string
		now            time.Time
		want           []string
	}{
		{"no findings", note(`"a":9007199254740991,"b":["é"]`), now, nil},
		{"not JSON", `{`, now, []string{"invalid_json: "}},
		{"a float", note(`"a":1.0`), now, []string{"float_forbidden: "}},
		{"no envelope", `{}`, now, []string{"invalid_envelope: "}},
		{"null", envelope(`"in_reply_to":null,`, `{"type":"note"}`), now, []string{"profile: null_forbidden: "}},
		{"old", note(`"a":1`), now.Add(301 * time.Second), []string{"clock: timestamp: 301 s old"}},
		{"at the limit", note(`"a":1`), now.Add(300 * time.Second), nil},
		{"a little older", note(`"a":1`), now.Add(300*time.Second + time.Millisecond), []string{"clock: timestamp: 301 s old"}},
		{"ahead", note(`"a":1`), now.Add(-31 * time.Second), []string{"clock: timestamp: 31 s ahead"}},
		{"a little ahead", note(`"a":1`), now.Add(-30*time.Second - time.Millisecond), []string{"clock: timestamp: 31 s ahead"}},
		{"a large integer", note(`"a":{"b":[1,9007199254740992]}`), now, []string{"unsafe_integer: body.a.b.1: "}},
		{"a large negative integer", note(`"a":-9007199254740992`), now, []string{"unsafe_integer: body.a: "}},
		{"a name with a line feed", note(`"a\nb":9007199254740992`), now, []string{`unsafe_integer: body.a\nb: `}},
		{"order of code points", note(`"\ue000":1,"\ud83d\ude00":2`), now, []string{"key_order: body: the orders by code points"}},
		{"order of escaped names", note(`"a":1,"a b":2`), now, []string{"key_order: body: libraries that sort escaped"}},
		{"marks", note(`"a":"x` + strings.Repeat("\u0301", 31) + `"`), now, []string{"not_nfc: ", "mark_run: body.a: "}},
		{"marks after a composed character", note(`"a":"é` + strings.Repeat("\u0316", 30) + `"`), now, []string{"not_nfc: ", "mark_run: body.a: "}},
		{"few marks", note(`"a":"x` + strings.Repeat("\u0316", 30) + `"`), now, nil},
		{"not NFC", note(`"a":"é"`), now, []string{"not_nfc: "}},
		{"not NFC, escaped", note(`"a":"\u0065\u0301"`), now, []string{"not_nfc: "}},
		{"a name that is not NFC", note(`"\u0065\u0301":1`), now, []string{"not_nfc: "}},
		{"a name that is never escaped", note(`"\u2028":1,"z":2`), now, nil},
		{"unassigned", note(`"a":"͸͹"`), now, []string{"unassigned_character: body.a: U+0378"}},
		{"unknown member", envelope(`"priority":1,`, `{"type":"note"}`), now, []string{"unknown_member: priority: "}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var got []string
			for _, f := range probe.Lint([]byte(tt.envelope), tt.now) {
				got = append(got, f.String())
			}
			require.Len(t, got, len(tt.want), "%q", got)
			for i := range got {
				require.Contains(t, got[i], tt.want[i])
			}
		})
	}
	require.Len(t, probe.Lint([]byte(note(`"a":[`+strings.Repeat("9007199254740992,", 200)+`1]`)), now), 100)
}

// Lint accepts any input.
func FuzzLint(f *testing.F) {
	f.Add([]byte(envelope("", `{"type":"note","a":["x",1,{"b":null}]}`)))
	f.Fuzz(func(t *testing.T, data []byte) {
		findings := probe.Lint(data, now)
		require.LessOrEqual(t, len(findings), 100)
		if _, err := air.Canonicalize(data); err != nil {
			require.Len(t, findings, 1)
		}
		require.False(t, bytes.Contains(fmt.Append(nil, findings), []byte("unexpected end")))
	})
}
