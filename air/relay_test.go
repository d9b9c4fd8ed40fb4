// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package air_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/air"
	"github.com/fivewire/fivewire/air/airtest"
	"github.com/fivewire/fivewire/air/relay"
	"github.com/fivewire/fivewire/store"
)

type pullAnswer struct {
	Envelopes []json.RawMessage
	Cursor    string
	HasMore   bool `json:"has_more"`
}

func pull(t testing.TB, h http.Handler, path string) pullAnswer {
	t.Helper()
	status, body, _ := do(t, h, "GET", path, "")
	require.Equal(t, 200, status, body)
	var a pullAnswer
	require.NoError(t, json.Unmarshal([]byte(body), &a))
	return a
}

func push(t testing.TB, h http.Handler, box string, data []byte) {
	t.Helper()
	status, body, _ := do(t, h, "POST", "/inbox/"+box, string(data))
	require.Equal(t, 202, status, body)
}

func idOf(t testing.TB, data []byte) string {
	t.Helper()
	e, err := air.DecodeEnvelope(data, &air.DecodeOptions{Profile: air.ProfileDeployed})
	require.NoError(t, err)
	return e.ID
}

func ackBody(ids ...string) string {
	data, _ := json.Marshal(map[string]any{"envelope_ids": ids})
	return string(data)
}

// Routes, methods and invalid requests, in the order of the checks (AIR-117, AIR-122, AIR-D60,
// AIR-D67).
func TestRelayRefuses(t *testing.T) {
	w := newWorld(t, nil)
	alice, bob := w.join(t, 1), w.join(t, 2)
	relay := newRelay(t, &relay.ServerOptions{Directory: relay.NewStaticDirectory(bob.DID()), Auth: relay.Auth{AllowAnonymous: true}, Limits: relay.Limits{MaxMessage: 4096}})
	box := "/inbox/" + bob.AIRID()
	good := string(signedOffer(t, alice, bob.DID(), nil))
	wrong := string(signedOffer(t, bob, alice.DID(), nil))
	replace := func(old, new string) string { return strings.Replace(good, old, new, 1) }
	tests := []struct {
		name, method, path, body string
		status                   int
	}{
		{"no path", "GET", "/", "", 404},
		{"unknown path", "POST", "/mail/x", good, 404},
		{"too long", "GET", box + "/pull/more", "", 404},
		{"no recipient", "POST", "/inbox/", good, 404},
		{"bad escape", "POST", "/inbox/%252", good, 404},
		{"GET to push", "GET", box, "", 405},
		{"POST to pull", "POST", box + "/pull", "", 405},
		{"GET to ack", "GET", box + "/ack", "", 405},
		{"POST to health", "POST", "/health", "", 405},
		{"health", "GET", "/health", "", 200},
		{"unknown mailbox", "POST", "/inbox/" + alice.AIRID(), good, 404},
		{"no mailbox name", "POST", "/inbox/bob", good, 404},
		{"same AIR ID of another registry", "GET", "/pull/did:wba:evil.example:agents:" + bob.AIRID(), "", 404},
		{"empty", "POST", box, "", 400},
		{"no object", "POST", box, "[]", 400},
		{"duplicate in the body", "POST", box, replace(`"description"`, `"a":1,"a":2,"description"`), 400},
		{"float in the body", "POST", box, replace(`"description"`, `"a":1.5,"description"`), 400},
		{"top-level null", "POST", box, replace(`{`, `{"x":null,`), 400},
		{"no id", "POST", box, replace(`"id"`, `"di"`), 400},
		{"signature null", "POST", box, `{"signature":null,` + replace(`"signature"`, `"other"`)[1:], 400},
		{"no signature", "POST", box, replace(`"signature"`, `"other"`), 400},
		{"no type", "POST", box, replace(`"type"`, `"typ"`), 400},
		{"for another agent", "POST", box, wrong, 400},
		{"too large", "POST", box, good + strings.Repeat(" ", 4096), 413},
		{"ack of nothing", "POST", box + "/ack", ackBody(), 400},
		{"ack of a number", "POST", box + "/ack", `{"envelope_ids":[1]}`, 400},
		{"ack of a string", "POST", box + "/ack", `{"envelope_ids":"x"}`, 400},
		{"ack of a list", "POST", "/ack/" + bob.AIRID(), `["x"]`, 400},
		{"ack of too many", "POST", box + "/ack", ackBody(strings.Split(strings.Repeat("x,", 500), ",")...), 400},
		{"unknown cursor", "GET", box + "/pull?since=c99", "", 400},
		{"no cursor", "GET", box + "/pull?since=", "", 400},
		{"cursor in another spelling", "GET", box + "/pull?since=c007", "", 400},
		{"limit of 0", "GET", box + "/pull?limit=0", "", 400},
		{"deployed cursor that is none", "GET", "/pull/" + bob.AIRID() + "?since=abc&limit=x", "", 200},
		{"null inside the body", "POST", box, replace(`"description"`, `"a":null,"b":[],"description"`), 202},
		{"in_reply_to null", "POST", box, replace(`{`, `{"in_reply_to":null,`), 202},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			status, body, header := do(t, relay, tt.method, tt.path, tt.body)
			require.Equal(t, tt.status, status, body)
			require.Equal(t, "application/json", header.Get("Content-Type"))
			if status == 405 {
				require.Regexp(t, "^(GET|POST), OPTIONS$", header.Get("Allow"))
			}
			if status >= 400 {
				var e struct{ Error string }
				require.NoError(t, json.Unmarshal([]byte(body), &e))
				require.NotEmpty(t, e.Error)
			}
		})
	}
}

// Envelopes come again until they are acknowledged, byte for byte, and only handed-out ones can be
// acknowledged (AIR-092..094, AIR-096, AIR-D61, AIR-D62).
func TestRelayRedelivers(t *testing.T) {
	eachStore(t, func(t *testing.T, st func() store.Store) {
		w := newWorld(t, &relay.ServerOptions{Limits: relay.Limits{RateLimit: -1, AddressRateLimit: -1}, Persistence: relay.Persistence{Store: st()}})
		alice, bob := w.join(t, 1), w.join(t, 2)
		box := "/inbox/" + bob.AIRID()
		var mails [][]byte
		for range 5 {
			mails = append(mails, append([]byte(" \n"), signedOffer(t, alice, bob.DID(), nil)...))
			push(t, w.relay, bob.AIRID(), mails[len(mails)-1])
		}
		push(t, w.relay, bob.AIRID(), mails[0]) // the same bytes are stored once
		first := pull(t, w.relay, box+"/pull?limit=2")
		require.True(t, first.HasMore)
		require.Len(t, first.Envelopes, 2)
		status, body, _ := do(t, w.relay, "POST", box+"/ack", ackBody(idOf(t, mails[1]), idOf(t, mails[4]), "unknown"))
		require.Equal(t, 200, status)
		require.JSONEq(t, `{"status":"acked","acked_count":1,"requested":3}`, body)
		rest := pull(t, w.relay, box+"/pull?since="+first.Cursor)
		require.False(t, rest.HasMore)
		require.Len(t, rest.Envelopes, 3)
		repeated := pull(t, w.relay, box+"/pull?since="+rest.Cursor)
		require.Len(t, repeated.Envelopes, 4)
		for i, want := range []int{0, 2, 3, 4} {
			require.Equal(t, strings.TrimSpace(string(mails[want])), string(repeated.Envelopes[i]))
		}
		push(t, w.relay, bob.AIRID(), mails[1]) // acknowledged, still known
		require.Len(t, pull(t, w.relay, box+"/pull").Envelopes, 4)

		// Another envelope may not keep one out by taking its id.
		twin := append([]byte("\t"), mails[0]...)
		push(t, w.relay, bob.AIRID(), twin)
		require.Len(t, pull(t, w.relay, box+"/pull").Envelopes, 5)
		status, body, _ = do(t, w.relay, "POST", "/ack/"+bob.DID(), ackBody(idOf(t, twin)))
		require.Equal(t, 200, status)
		require.Contains(t, body, `"acked_count":1`)
		require.Len(t, pull(t, w.relay, box+"/pull").Envelopes, 3)
	})
}

// eachStore runs a test with state in the memory of its owner alone, and in a store
// that others might see.
func eachStore(t *testing.T, test func(t *testing.T, st func() store.Store)) {
	t.Run("private", func(t *testing.T) { test(t, func() store.Store { return nil }) })
	t.Run("shared", func(t *testing.T) { test(t, func() store.Store { return store.NewMemory() }) })
}

// Unacknowledged envelopes expire, counted from queueing (AIR-D64).
func TestRelayForgets(t *testing.T) {
	eachStore(t, func(t *testing.T, st func() store.Store) {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, &relay.ServerOptions{Limits: relay.Limits{QueueLimitPerSession: 2}, Persistence: relay.Persistence{Store: st()}})
			alice, bob := w.join(t, 1), w.join(t, 2)
			data := signedOffer(t, alice, bob.DID(), nil)
			box := "/inbox/" + bob.AIRID() + "/pull"
			push(t, w.relay, bob.AIRID(), data)
			time.Sleep(7*24*time.Hour - time.Second)
			require.Len(t, pull(t, w.relay, box).Envelopes, 1)
			push(t, w.relay, bob.AIRID(), data) // known to the end
			push(t, w.relay, bob.AIRID(), signedOffer(t, alice, bob.DID(), nil))
			require.Len(t, pull(t, w.relay, box).Envelopes, 2)
			time.Sleep(2 * time.Second)
			require.Len(t, pull(t, w.relay, box).Envelopes, 1)
			push(t, w.relay, bob.AIRID(), data) // and then there is room, and it is new
			require.Len(t, pull(t, w.relay, box).Envelopes, 2)
		})
	})
}

// A relay with Alone does not store handed-out positions: after a restart, an acknowledgement
// counts once the envelope was handed out again.
func TestRelayAlone(t *testing.T) {
	st := store.NewMemory()
	one := newWorld(t, &relay.ServerOptions{Persistence: relay.Persistence{Store: st, SingleInstance: true}})
	alice, bob := one.join(t, 1), one.join(t, 2)
	box := "/inbox/" + bob.AIRID()
	data := signedOffer(t, alice, bob.DID(), nil)
	push(t, one.relay, bob.AIRID(), data)
	require.Len(t, pull(t, one.relay, box+"/pull").Envelopes, 1)
	ack := func(w *world) string {
		status, body, _ := do(t, w.relay, "POST", box+"/ack", ackBody(idOf(t, data)))
		require.Equal(t, 200, status)
		return body
	}
	for e, err := range st.List(t.Context(), "") {
		require.NoError(t, err)
		t.Errorf("%s was written", e.Key)
	}
	two := newWorld(t, &relay.ServerOptions{Persistence: relay.Persistence{Store: st, SingleInstance: true}}) // the next process
	require.Contains(t, ack(two), `"acked_count":0`)
	push(t, two.relay, bob.AIRID(), data)
	require.Len(t, pull(t, two.relay, box+"/pull").Envelopes, 1)
	require.Contains(t, ack(two), `"acked_count":1`)
	require.Empty(t, pull(t, two.relay, box+"/pull").Envelopes)
}

// Two relays on one store act as one, and a new process knows the positions that the old one handed
// out.
func TestRelaysShareAStore(t *testing.T) {
	st := store.NewMemory()
	one := newWorld(t, &relay.ServerOptions{Limits: relay.Limits{RateLimit: -1, AddressRateLimit: -1}, Persistence: relay.Persistence{Store: st}})
	two := newWorld(t, &relay.ServerOptions{Limits: relay.Limits{RateLimit: -1, AddressRateLimit: -1}, Persistence: relay.Persistence{Store: st}})
	alice, bob := one.join(t, 1), one.join(t, 2)
	box := "/inbox/" + bob.AIRID()
	var ids []string
	for i := range 6 {
		data := signedOffer(t, alice, bob.DID(), nil)
		ids = append(ids, idOf(t, data))
		push(t, []*world{one, two}[i%2].relay, bob.AIRID(), data)
	}
	a := pull(t, one.relay, box+"/pull?limit=4")
	for _, n := range []string{"4", "0"} { // a relay has seen some of them only in the store
		status, body, _ := do(t, two.relay, "POST", box+"/ack", ackBody(ids...))
		require.Equal(t, 200, status)
		require.Contains(t, body, `"acked_count":`+n)
	}
	require.Len(t, pull(t, two.relay, box+"/pull?since="+a.Cursor).Envelopes, 2)
	three := newWorld(t, &relay.ServerOptions{Persistence: relay.Persistence{Store: st}})
	_, body, _ := do(t, three.relay, "POST", box+"/ack", ackBody(ids...))
	require.Contains(t, body, `"acked_count":2`)
	require.Empty(t, pull(t, one.relay, box+"/pull").Envelopes)
}

// A short page of another relay does not lower the stored position.
func TestRelaysKeepHandedOutPosition(t *testing.T) {
	st := store.NewMemory()
	relayOf := func() *world { return newWorld(t, &relay.ServerOptions{Persistence: relay.Persistence{Store: st}}) }
	one, two, three := relayOf(), relayOf(), relayOf()
	alice, bob := one.join(t, 1), one.join(t, 2)
	box := "/inbox/" + bob.AIRID()
	var ids []string
	for range 4 {
		data := signedOffer(t, alice, bob.DID(), nil)
		ids = append(ids, idOf(t, data))
		push(t, one.relay, bob.AIRID(), data)
	}
	require.Len(t, pull(t, one.relay, box+"/pull").Envelopes, 4)
	require.Len(t, pull(t, two.relay, box+"/pull?limit=2").Envelopes, 2)
	_, body, _ := do(t, three.relay, "POST", box+"/ack", ackBody(ids...))
	require.Contains(t, body, `"acked_count":4`)
}

// An id that is used again through another relay is acknowledged as with one relay (AIR-D61), and
// envelopes acknowledged by another relay do not count again.
func TestRelaysShareAnID(t *testing.T) {
	st := store.NewMemory()
	one := newWorld(t, &relay.ServerOptions{Persistence: relay.Persistence{Store: st}})
	two := newWorld(t, &relay.ServerOptions{Persistence: relay.Persistence{Store: st}})
	alice, bob := one.join(t, 1), one.join(t, 2)
	box := "/inbox/" + bob.AIRID()
	data := signedOffer(t, alice, bob.DID(), nil)
	push(t, one.relay, bob.AIRID(), data)
	pull(t, one.relay, box+"/pull")
	push(t, two.relay, bob.AIRID(), append([]byte(" "), data...))
	require.Len(t, pull(t, two.relay, box+"/pull").Envelopes, 2)
	for i, h := range []http.Handler{one.relay, two.relay} {
		_, body, _ := do(t, h, "POST", box+"/ack", ackBody(idOf(t, data)))
		require.Contains(t, body, fmt.Sprintf(`"acked_count":%d`, 1-i))
		require.Empty(t, pull(t, h, box+"/pull").Envelopes)
	}
}

// A counting store counts how much was read.
type counting struct {
	store.Store
	records atomic.Int64
}

func (c *counting) Read(ctx context.Context, stream string, after uint64, limit int) ([]store.Record, error) {
	recs, err := c.Store.Read(ctx, stream, after, limit)
	c.records.Add(int64(len(recs)))
	return recs, err
}

// A push to a full mailbox does not read all of it, and an acknowledgement does not read the
// envelopes in between. All limits hold if every envelope has the same id.
func TestMailboxIsReadSparingly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // however slow the machine is
		for _, sameID := range []bool{false, true} {
			for _, alone := range []bool{false, true} {
				st := &counting{Store: store.NewMemory()}
				const maxQueued = 100
				w := newWorld(t, &relay.ServerOptions{Limits: relay.Limits{QueueLimitPerSession: maxQueued, RateLimit: -1, AddressRateLimit: -1}, Persistence: relay.Persistence{Store: st, SingleInstance: alone}})
				alice, bob := w.join(t, 1), w.join(t, 2)
				box := "/inbox/" + bob.AIRID()
				base := signedOffer(t, alice, bob.DID(), nil)
				id := idOf(t, base)
				idAt := func(n int) string {
					if sameID {
						return id
					}
					return id[:len(id)-4] + fmt.Sprint(1000+n)
				}
				envelope := func(n int) []byte {
					return append(bytes.Repeat([]byte(" "), n), strings.Replace(string(base), id, idAt(n), 1)...)
				}
				for i := range maxQueued {
					push(t, w.relay, bob.AIRID(), envelope(i))
				}
				st.records.Store(0)
				for i := range maxQueued {
					status, _, _ := do(t, w.relay, "POST", box, string(envelope(maxQueued+i)))
					require.Equal(t, 429, status)
				}
				require.LessOrEqual(t, st.records.Load(), int64(10*maxQueued))
				if sameID {
					continue
				}
				require.Len(t, pull(t, w.relay, box+"/pull?limit=200").Envelopes, maxQueued)
				st.records.Store(0)
				_, body, _ := do(t, w.relay, "POST", box+"/ack", ackBody(idAt(1), idAt(50), idAt(51), idAt(98)))
				require.Contains(t, body, `"acked_count":4`)
				require.LessOrEqual(t, st.records.Load(), int64(20))
				var all []string
				for i := range maxQueued {
					all = append(all, idAt(i))
				}
				_, body, _ = do(t, w.relay, "POST", box+"/ack", ackBody(all...))
				require.Contains(t, body, `"acked_count":96`)
				require.Empty(t, pull(t, w.relay, box+"/pull").Envelopes)
			}
		}
	})
}

// Mail cannot be read or deleted without the secret (AIR-D64, AIR-091).
func TestRelaySecrets(t *testing.T) {
	w := newWorld(t, nil)
	bob := w.join(t, 2)
	srv := newRelay(t, &relay.ServerOptions{Auth: relay.Auth{InboxSecret: func(r string) string {
		if r == bob.AIRID() {
			return "mine"
		}
		return ""
	}}})
	for _, path := range []string{"/inbox/" + bob.AIRID() + "/pull", "/pull/" + bob.AIRID(), "/pull/" + bob.DID(), "/pull/" + bob.AIRID() + "?stream=1"} {
		for _, secret := range []string{"", "min", "mine2"} {
			status, _, _ := do(t, srv, "GET", path, "", "X-Agent-Secret", secret)
			require.Equal(t, 401, status, path)
		}
	}
	status, _, _ := do(t, srv, "GET", "/pull/"+bob.DID(), "", "X-Agent-Secret", "mine")
	require.Equal(t, 200, status)
	status, _, _ = do(t, srv, "POST", "/ack/"+bob.DID(), ackBody("x"))
	require.Equal(t, 401, status)

	// A mailbox without a secret is closed, also to callers of this machine (AIR-D64).
	status, _, _ = do(t, srv, "GET", "/pull/"+airIDOf(9), "")
	require.Equal(t, 401, status)
	srv = newRelay(t, &relay.ServerOptions{Auth: relay.Auth{AllowAnonymous: true}})
	status, _, _ = do(t, srv, "GET", "/pull/"+airIDOf(9), "")
	require.Equal(t, 200, status)
}

func TestRelayRateLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, &relay.ServerOptions{Limits: relay.Limits{RateLimit: 2}})
		alice, bob, carol := w.join(t, 1), w.join(t, 2), w.join(t, 3)
		try := func(from *air.Identity) (int, string) {
			status, _, h := do(t, w.relay, "POST", "/inbox/"+bob.AIRID(), string(signedOffer(t, from, bob.DID(), nil)))
			return status, h.Get("Retry-After")
		}
		time.Sleep(20500 * time.Millisecond)
		for range 2 {
			status, _ := try(alice)
			require.Equal(t, 202, status)
		}
		status, after := try(alice)
		require.Equal(t, 429, status)
		require.Equal(t, "40", after)
		status, _ = try(carol)
		require.Equal(t, 202, status)
		time.Sleep(39499 * time.Millisecond)
		status, after = try(alice)
		require.Equal(t, 429, status)
		require.Equal(t, "1", after)
		time.Sleep(time.Millisecond)
		status, _ = try(alice)
		require.Equal(t, 202, status)
		require.Len(t, pull(t, w.relay, "/inbox/"+bob.AIRID()+"/pull").Envelopes, 4) // earlier mail is kept
	})
}

func TestMailboxIsFull(t *testing.T) {
	eachStore(t, func(t *testing.T, st func() store.Store) {
		w := newWorld(t, &relay.ServerOptions{Limits: relay.Limits{QueueLimitPerSession: 2, RateLimit: -1, AddressRateLimit: -1}, Persistence: relay.Persistence{Store: st()}})
		alice, bob := w.join(t, 1), w.join(t, 2)
		first := signedOffer(t, alice, bob.DID(), nil)
		push(t, w.relay, bob.AIRID(), first)
		push(t, w.relay, bob.AIRID(), signedOffer(t, alice, bob.DID(), nil))
		third := string(signedOffer(t, alice, bob.DID(), nil))
		status, _, h := do(t, w.relay, "POST", "/inbox/"+bob.AIRID(), third)
		require.Equal(t, 429, status)
		require.NotEmpty(t, h.Get("Retry-After"))
		pull(t, w.relay, "/inbox/"+bob.AIRID()+"/pull")
		do(t, w.relay, "POST", "/ack/"+bob.AIRID(), ackBody(idOf(t, first)))
		push(t, w.relay, bob.AIRID(), []byte(third))
	})
}

func TestRelayStoreFails(t *testing.T) {
	b := &broken{Store: store.NewMemory()}
	w := newWorld(t, &relay.ServerOptions{Persistence: relay.Persistence{Store: b}})
	alice, bob := w.join(t, 1), w.join(t, 2)
	box := "/inbox/" + bob.AIRID()
	data := string(signedOffer(t, alice, bob.DID(), nil))
	check := func(op, method, path, body string) {
		t.Helper()
		b.set(op, true)
		status, answer, _ := do(t, w.relay, method, path, body)
		require.Equal(t, 500, status, op)
		require.JSONEq(t, `{"error":"Relay Error"}`, answer)
		b.set(op, false)
	}
	check("append", "POST", box, data)
	push(t, w.relay, bob.AIRID(), []byte(data))
	check("read", "GET", box+"/pull", "")
	check("create", "GET", box+"/pull", "")
	check("get", "POST", box+"/ack", ackBody("unknown"))
	pull(t, w.relay, box+"/pull")
	check("ack", "POST", box+"/ack", ackBody(idOf(t, []byte(data))))
	// The relay repeats the failed acknowledgement in the background, and one of the two counts it.
	status, answer, _ := do(t, w.relay, "POST", box+"/ack", ackBody(idOf(t, []byte(data))))
	require.Equal(t, 200, status)
	require.Regexp(t, `"acked_count":[01],`, answer)
	require.Empty(t, pull(t, w.relay, box+"/pull").Envelopes)
}

// A narrowStore has no room for a value of more than 500 bytes.
type narrowStore struct{ store.Store }

func (n *narrowStore) Append(ctx context.Context, stream, id string, value []byte, ttl time.Duration) (uint64, error) {
	if len(value) > 500 {
		return 0, fmt.Errorf("%w: value of %d bytes", store.ErrInvalid, len(value))
	}
	return n.Store.Append(ctx, stream, id, value, ttl)
}

// An envelope that the store can never take is too large, whatever MaxMessage permits: its sender does not repeat it.
func TestRelayRefusesEnvelopeOverLimitOfStore(t *testing.T) {
	w := newWorld(t, &relay.ServerOptions{Persistence: relay.Persistence{Store: &narrowStore{store.NewMemory()}}})
	alice, bob := w.join(t, 1), w.join(t, 2)
	_, err := w.client(t, alice, air.ClientOptions{}).Send(t.Context(), &air.Draft{To: bob.DID(), Body: offer(5)}, nil)
	require.ErrorIs(t, err, air.ErrTooLarge)
	require.Zero(t, w.relay.(*relay.Server).Stats().Queued)
}

// An envelope that has no room in an empty mailbox is refused permanently.
func TestRelayRefusesEnvelopeOverLimitOfMailbox(t *testing.T) {
	w := newWorld(t, &relay.ServerOptions{Limits: relay.Limits{MaxMemoryPerSession: 100}})
	alice, bob := w.join(t, 1), w.join(t, 2)
	_, err := w.client(t, alice, air.ClientOptions{}).Send(t.Context(), &air.Draft{To: bob.DID(), Body: offer(5)}, nil)
	require.ErrorIs(t, err, air.ErrTooLarge)
}

// A relay that has less memory for responses than a mailbox holds delivers it in smaller pages.
func TestRelayDeliversInSmallPages(t *testing.T) {
	for _, dialect := range []air.Dialect{air.DialectSpec, air.DialectDeployed} {
		w := newWorld(t, &relay.ServerOptions{Persistence: relay.Persistence{Store: store.NewMemory()}, Limits: relay.Limits{MaxMemory: 200_000}})
		alice, bob := w.join(t, 1), w.join(t, 2)
		in := w.inbox(t, bob, air.InboxOptions{BodyTypes: []string{"note"}})
		for range 8 {
			push(t, w.relay, bob.AIRID(), signedOffer(t, alice, bob.DID(), func(d *air.Draft) {
				d.Body = &air.Raw{Type: "note", JSON: fmt.Appendf(nil, `{"type":"note","text":"%020000d"}`, 1)}
			}))
		}
		p, err := air.NewPoller(in.Inbox, w.endpoint(bob), &air.PollerOptions{HTTPClient: w.http(), Dialect: dialect})
		require.NoError(t, err)
		_, err = p.Drain(t.Context())
		require.NoError(t, err)
		require.Equal(t, 8, in.count())
		require.Zero(t, w.relay.(*relay.Server).Stats().Queued)
	}
}

// A directory of the registry (AIR-117).
func TestRegistryDirectory(t *testing.T) {
	w := newWorld(t, nil)
	alice, bob := w.join(t, 1), w.join(t, 2)
	relay := newRelay(t, &relay.ServerOptions{Directory: relay.NewRegistryDirectory(w.resolver(t))})
	push(t, relay, bob.AIRID(), signedOffer(t, alice, bob.DID(), nil))
	status, _, _ := do(t, relay, "POST", "/inbox/"+airIDOf(77), "{}")
	require.Equal(t, 404, status)
	w.registry.PutDocument(airIDOf(5), airtest.Document(bob.DID(), "z", ""))
	status, _, _ = do(t, relay, "POST", "/inbox/"+airIDOf(5), "{}")
	require.Equal(t, 404, status)
	w.registry.SetFailure(500)
	status, body, _ := do(t, relay, "POST", "/inbox/"+airIDOf(78), "{}")
	require.Equal(t, 502, status)
	require.Contains(t, body, `"error":"Bad Gateway"`)
}

// The stream of the deployed relay over a real connection: stored mail, new mail, and its end with
// the relay.
func TestRelayStream(t *testing.T) {
	n, err := airtest.NewNetwork(&airtest.Options{Relay: relay.ServerOptions{Limits: relay.Limits{RateLimit: -1, AddressRateLimit: -1, MaxStreams: 1}}})
	require.NoError(t, err)
	defer n.Close()
	alice, err := n.RegisterAgent(airIDOf(1))
	require.NoError(t, err)
	bob, err := n.RegisterAgent(airIDOf(2))
	require.NoError(t, err)
	push(t, n.Relay, bob.AIRID(), signedOffer(t, alice, bob.DID(), nil))
	res, err := http.Get(n.RelayURL + "/pull/" + bob.DID() + "?stream=1")
	require.NoError(t, err)
	defer res.Body.Close()
	require.Equal(t, "text/event-stream", strings.Split(res.Header.Get("Content-Type"), ";")[0])
	lines := bufio.NewScanner(res.Body)
	next := func() string {
		for lines.Scan() {
			if s := lines.Text(); strings.HasPrefix(s, "data:") {
				return s
			}
		}
		return ""
	}
	require.Contains(t, next(), `"seq":1`)
	push(t, n.Relay, bob.AIRID(), signedOffer(t, alice, bob.DID(), nil))
	require.Contains(t, next(), `"seq":2`)
	second, err := http.Get(n.RelayURL + "/pull/" + bob.DID() + "?stream=1")
	require.NoError(t, err)
	second.Body.Close()
	require.Equal(t, 429, second.StatusCode)
	require.NoError(t, n.Relay.Close())
	require.Empty(t, next())
}

// A streaming poller gets mail at once, polls when the stream ends, and acknowledges everything.
func TestPollerStreams(t *testing.T) {
	n, err := airtest.NewNetwork(&airtest.Options{Relay: relay.ServerOptions{Limits: relay.Limits{RateLimit: -1, AddressRateLimit: -1}}})
	require.NoError(t, err)
	defer n.Close()
	alice, err := n.RegisterAgent(airIDOf(1))
	require.NoError(t, err)
	bob, err := n.RegisterAgent(airIDOf(2))
	require.NoError(t, err)
	resolver, err := n.Resolver()
	require.NoError(t, err)
	got := make(chan string, 10)
	in, err := air.NewInbox(bob, air.HandlerFunc(func(_ context.Context, d *air.Delivery) error {
		got <- d.Envelope.ID
		return nil
	}), &air.InboxOptions{Resolver: resolver})
	require.NoError(t, err)
	p, err := air.NewPoller(in, n.Endpoint(bob), &air.PollerOptions{
		Dialect: air.DialectDeployed, EnableStream: true, AllowLoopback: true, PollInterval: 50 * time.Millisecond,
	})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() { require.ErrorIs(t, p.Run(ctx), context.Canceled) })
	for range 5 {
		data := signedOffer(t, alice, bob.DID(), nil)
		push(t, n.Relay, bob.AIRID(), data)
		require.Equal(t, idOf(t, data), <-got)
	}
	require.Eventually(t, func() bool {
		_, body, _ := do(t, n.Relay, "GET", "/pull/"+bob.AIRID(), "")
		return strings.Contains(body, `"messages":[]`)
	}, 5*time.Second, 5*time.Millisecond)
	cancel()
	wg.Wait()
}

// Polling through the other failures of a relay. The outcome of a pulled envelope is reported to
// the application, not to the relay (AIR-121, AIR-D35, AIR-D48, AIR-D63, AIR-D65).
func TestPollerFaults(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, nil)
		alice, bob := w.join(t, 1), w.join(t, 2)
		in := w.inbox(t, bob, air.InboxOptions{})
		var answer string
		status := 200
		header := http.Header{}
		real := w.relay
		w.relay = http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
			if !strings.HasSuffix(r.URL.Path, "/pull") {
				real.ServeHTTP(rw, r)
				return
			}
			for k, v := range header {
				rw.Header()[k] = v
			}
			rw.WriteHeader(status)
			fmt.Fprint(rw, answer)
		})
		for _, answer = range []string{"", "[]", "{", `{"envelopes":{}}`, `{"envelopes":[1}`, `{"cursor":"x"}`, `{"envelopes":[],"cursor":7}`, `{"envelopes":[],"envelopes":[]}`, `{"envelopes":["\x"]}`} {
			_, err := in.poller.Drain(t.Context())
			require.Error(t, err, answer)
		}
		for _, status = range []int{204, 302, 404, 500} {
			next, err := in.poller.Drain(t.Context())
			require.Error(t, err)
			require.Equal(t, time.Minute, next)
		}
		status, answer = 429, ""
		header.Set("Retry-After", "120")
		next, err := in.poller.Drain(t.Context())
		require.ErrorIs(t, err, air.ErrRateLimited)
		require.Equal(t, 2*time.Minute, next)

		// An unchanged cursor ends the drain.
		status, header = 200, http.Header{}
		answer = `{"envelopes":[7],"cursor":"same","has_more":true}`
		require.Zero(t, in.drain(t))
		require.Equal(t, []air.Code{air.ErrInvalidEnvelope, air.ErrInvalidEnvelope}, in.codes())

		// An envelope that is not strict JSON does not block the others.
		status = 200
		good := string(signedOffer(t, alice, bob.DID(), nil))
		answer = `{"envelopes":[{"id":"dup","a":1,"a":2},"text",7,{"deep":` + strings.Repeat("[", 500) + strings.Repeat("]", 500) + `},` + good + `],"cursor":"c1","has_more":true}`
		pages := 0
		w.setFail(func(r *http.Request) error {
			if strings.HasSuffix(r.URL.Path, "/pull") {
				if pages++; pages > 1 {
					answer = `{"envelopes":[],"cursor":"c1","has_more":true}`
				}
			}
			return nil
		})
		require.Equal(t, 1, in.drain(t))
		require.Equal(t, 2, pages) // an empty page ends the drain whatever it says
		require.ElementsMatch(t, []air.Code{air.ErrDuplicateKey, air.ErrInvalidEnvelope, air.ErrInvalidEnvelope, air.ErrInvalidJSON}, in.codes())
	})
}

// DialectAuto finds out which relay it talks to.
func TestPollerFindsTheDialect(t *testing.T) {
	w := newWorld(t, nil)
	alice, bob := w.join(t, 1), w.join(t, 2)
	real := w.relay
	w.relay = http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.URL.Path, "/inbox/") && strings.Count(r.URL.Path, "/") > 2 {
			http.NotFound(rw, r) // as the deployed relay
			return
		}
		real.ServeHTTP(rw, r)
	})
	in := w.inbox(t, bob, air.InboxOptions{})
	p, err := air.NewPoller(in.Inbox, w.endpoint(bob), &air.PollerOptions{HTTPClient: w.http(), Dialect: air.DialectAuto})
	require.NoError(t, err)
	push(t, real, bob.AIRID(), signedOffer(t, alice, bob.DID(), nil))
	_, err = p.Drain(t.Context())
	require.NoError(t, err)
	require.Equal(t, 1, in.count())
	_, body, _ := do(t, real, "GET", "/pull/"+bob.AIRID(), "")
	require.Contains(t, body, `"messages":[]`)
	_, err = air.NewPoller(in.Inbox, "https://relay.example/box", &air.PollerOptions{Dialect: air.DialectDeployed})
	require.ErrorIs(t, err, air.ErrBadEndpoint)
}

// DialectAuto selects no dialect by the failures of a relay that starts.
func TestPollerFindsTheDialectAfterFailures(t *testing.T) {
	w := newWorld(t, nil)
	alice, bob := w.join(t, 1), w.join(t, 2)
	real, starts := w.relay, []int{404, 503}
	w.relay = http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		switch {
		case len(starts) > 0:
			rw.WriteHeader(starts[0])
			starts = starts[1:]
		case strings.HasPrefix(r.URL.Path, "/pull/"):
			http.NotFound(rw, r) // as a relay of the specification
		default:
			real.ServeHTTP(rw, r)
		}
	})
	in := w.inbox(t, bob, air.InboxOptions{})
	p, err := air.NewPoller(in.Inbox, w.endpoint(bob), &air.PollerOptions{HTTPClient: w.http(), Dialect: air.DialectAuto})
	require.NoError(t, err)
	push(t, real, bob.AIRID(), signedOffer(t, alice, bob.DID(), nil))
	_, err = p.Drain(t.Context())
	require.ErrorIs(t, err, air.ErrBadGateway)
	_, err = p.Drain(t.Context())
	require.NoError(t, err)
	require.Equal(t, 1, in.count())
}

// An acknowledgement that fails makes the relay deliver again, and the inbox not
// act again.
func TestAckFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, &relay.ServerOptions{PageSize: 2})
		alice, bob := w.join(t, 1), w.join(t, 2)
		in := w.inbox(t, bob, air.InboxOptions{})
		for range 5 {
			push(t, w.relay, bob.AIRID(), signedOffer(t, alice, bob.DID(), nil))
		}
		w.setFail(func(r *http.Request) error {
			if strings.HasSuffix(r.URL.Path, "/ack") {
				return errors.New("the line is cut")
			}
			return nil
		})
		_, err := in.poller.Drain(t.Context())
		require.Error(t, err)
		require.Equal(t, 2, in.count())
		w.setFail(nil)
		require.Equal(t, 3, in.drain(t))
		require.Equal(t, []air.Code{air.ErrReplay, air.ErrReplay}, in.codes())
		require.Empty(t, pull(t, w.relay, "/inbox/"+bob.AIRID()+"/pull").Envelopes)
	})
}

// A page has at most 200 envelopes, whatever the option says.
func TestRelayPageHasMaximum(t *testing.T) {
	w := newWorld(t, &relay.ServerOptions{PageSize: math.MaxInt, Limits: relay.Limits{RateLimit: -1}})
	alice, bob := w.join(t, 1), w.join(t, 2)
	for range 201 {
		push(t, w.relay, bob.AIRID(), signedOffer(t, alice, bob.DID(), nil))
	}
	require.Len(t, pull(t, w.relay, "/inbox/"+bob.AIRID()+"/pull").Envelopes, 200)
}

// No request breaks the relay.
func FuzzRelayRequest(f *testing.F) {
	f.Add("POST", "/inbox/AIR-A1B2-C3D4-E5F6", []byte(`{}`))
	f.Add("GET", "/pull/AIR-A1B2-C3D4-E5F6?since=1&limit=3", []byte(``))
	f.Add("POST", "/ack/did:wba:x:AIR-A1B2-C3D4-E5F6", []byte(`{"envelope_ids":["a"]}`))
	vectorInputs(f, func(data []byte) { f.Add("POST", "/inbox/AIR-A1B2-C3D4-E5F6", data) })
	relay := newRelay(f, &relay.ServerOptions{Auth: relay.Auth{AllowAnonymous: true}, Limits: relay.Limits{RateLimit: -1, AddressRateLimit: -1}})
	f.Fuzz(func(t *testing.T, method, path string, body []byte) {
		req, err := http.NewRequest(method, "http://relay.example"+path, strings.NewReader(string(body)))
		if err != nil || req.URL.Query().Get("stream") == "1" {
			return
		}
		rec := httptest.NewRecorder()
		relay.ServeHTTP(rec, req)
		require.NotEqual(t, 500, rec.Code)
		require.True(t, json.Valid(rec.Body.Bytes()), "%q", rec.Body)
	})
}

// A relay that has lost its mail answers 400 to an old cursor (AIR-D62), and a failed pull does not
// change the cursor (AIR-D63). After repeated refusals the poller drops the cursor, as a restart
// does.
func TestPollerRelayLostCursor(t *testing.T) {
	w := newWorld(t, &relay.ServerOptions{PageSize: 2})
	alice, bob := w.join(t, 1), w.join(t, 2)
	client := w.client(t, alice, air.ClientOptions{})
	in := w.inbox(t, bob, air.InboxOptions{})
	for range 3 {
		_, err := client.Send(t.Context(), &air.Draft{To: bob.DID(), Body: offer(1)}, nil)
		require.NoError(t, err)
	}
	w.setFail(func(r *http.Request) error {
		if r.URL.Query().Has("since") {
			return errors.New("the network is down")
		}
		return nil
	})
	_, err := in.poller.Drain(t.Context())
	require.ErrorContains(t, err, "network")
	require.Equal(t, 2, in.count())
	w.setFail(nil)

	fresh := newRelay(t, &relay.ServerOptions{Auth: relay.Auth{AllowAnonymous: true}})
	defer fresh.Close()
	w.relay = fresh
	_, err = client.Send(t.Context(), &air.Draft{To: bob.DID(), Body: offer(1)}, nil)
	require.NoError(t, err)
	for range 3 {
		_, err = in.poller.Drain(t.Context())
		require.ErrorIs(t, err, air.ErrBadRequest)
		require.Equal(t, 2, in.count())
	}
	require.Equal(t, 1, in.drain(t))
	require.Equal(t, 0, in.drain(t))
}

// A poll comes every five seconds, with 20 % jitter (AIR-101, AIR-102).
func TestPollerInterval(t *testing.T) {
	w := newWorld(t, nil)
	bob := w.join(t, 1)
	in := w.inbox(t, bob, air.InboxOptions{})
	for _, tt := range []struct {
		interval time.Duration
		random   float64
		want     time.Duration
	}{{0, 0, 4 * time.Second}, {0, 0.5, 5 * time.Second}, {0, 0.75, 5500 * time.Millisecond}, {time.Second, 0, 800 * time.Millisecond}} {
		opts := &air.PollerOptions{HTTPClient: w.http(), PollInterval: tt.interval}
		airtest.SetPollerJitter(opts, func() float64 { return tt.random })
		p, err := air.NewPoller(in.Inbox, w.endpoint(bob), opts)
		require.NoError(t, err)
		next, err := p.Drain(t.Context())
		require.NoError(t, err)
		require.Equal(t, tt.want, next)
	}
	p, err := air.NewPoller(in.Inbox, w.endpoint(bob), &air.PollerOptions{HTTPClient: w.http()})
	require.NoError(t, err)
	seen := make(map[time.Duration]bool)
	for range 20 {
		next, err := p.Drain(t.Context())
		require.NoError(t, err)
		require.GreaterOrEqual(t, next, 4*time.Second)
		require.LessOrEqual(t, next, 6*time.Second)
		seen[next] = true
	}
	require.Greater(t, len(seen), 1)
}
