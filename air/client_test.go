// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package air_test

import (
	"bytes"
	"context"
	"errors"
	"math"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/air"
	"github.com/fivewire/fivewire/air/airtest"
	"github.com/fivewire/fivewire/air/registry"
	"github.com/fivewire/fivewire/air/relay"
	"github.com/fivewire/fivewire/store"
)

// Send fills in empty fields and writes the specified envelope (AIR-031, AIR-032, AIR-034..036,
// AIR-039..041, AIR-089, AIR-133).
func TestSend(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, nil)
		alice, bob := w.join(t, 1), w.join(t, 2)
		var sent http.Header
		w.setFail(func(r *http.Request) error {
			if r.Method == "POST" {
				sent = r.Header.Clone()
			}
			return nil
		})
		c := w.client(t, alice, air.ClientOptions{Secrets: func(origin string) string {
			return map[string]string{"https://relay.example": "abc"}[origin]
		}})
		r, err := c.Send(t.Context(), &air.Draft{To: bob.DID(), Body: offer(5)}, nil)
		require.NoError(t, err)
		require.Equal(t, 202, r.Status)
		require.NotEqual(t, http.StatusOK, r.Status)
		require.Equal(t, "v1", sent.Get("X-A2A-Version"))
		require.Equal(t, "application/json", sent.Get("Content-Type"))
		require.Equal(t, "abc", sent.Get("X-Agent-Secret"))
		require.Contains(t, sent.Get("User-Agent"), air.ConformanceLabel())

		e := r.Envelope
		require.Regexp(t, `^[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$`, e.ID)
		require.Regexp(t, `^[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab]`, e.ThreadID)
		require.Regexp(t, `^[A-Za-z0-9_-]{22}$`, e.Nonce)
		require.Equal(t, alice.DID(), e.From)
		require.Equal(t, air.FormatTime(time.Now()), e.Timestamp)
		wire := e.Bytes()
		canonical, err := air.Canonicalize(wire)
		require.NoError(t, err)
		require.Equal(t, string(canonical), string(wire))
		require.NotContains(t, string(wire), "in_reply_to")

		in := w.inbox(t, bob, air.InboxOptions{})
		require.Equal(t, 1, in.drain(t))
		require.Equal(t, air.FormSpec, in.got[0].Form)
		require.Equal(t, e.ID, in.got[0].Envelope.ID)
	})
}

// Everything that is wrong with a draft is refused before anything is sent.
func TestSendRefuses(t *testing.T) {
	w := newWorld(t, nil)
	alice, bob := w.join(t, 1), w.join(t, 2)
	raw := func(text string) air.Body { return &air.Raw{Type: "note", JSON: []byte(text)} }
	big := offer(5)
	big.Description = strings.Repeat("x", 2049)
	tests := []struct {
		name  string
		draft air.Draft
		opts  air.ClientOptions
		seal  bool
		want  air.Code
	}{
		{name: "no body", want: air.ErrInvalidEnvelope},
		{name: "name of another agent", draft: air.Draft{From: bob.DID(), Body: offer(1)}, want: air.ErrInvalidEnvelope},
		{name: "description too long", draft: air.Draft{Body: big}, want: air.ErrInvalidEnvelope},
		{name: "reply without its message", draft: air.Draft{Body: &air.Accept{Price: air.MinorUnits(1, "USD")}}, want: air.ErrInvalidEnvelope},
		{name: "Offer as an answer", draft: air.Draft{InReplyTo: air.NewID(), Body: offer(1)}, want: air.ErrInvalidEnvelope},
		{name: "bad currency", draft: air.Draft{Body: &air.Offer{Price: air.MinorUnits(1, "usd"), Expires: time.Now()}}, want: air.ErrInvalidEnvelope},
		{name: "unregistered body", draft: air.Draft{Body: raw(`{"type":"note"}`)}, want: air.ErrUnsupportedBody},
		{name: "unregistered body, sealed", draft: air.Draft{Body: raw(`{"type":"note"}`)}, seal: true, want: air.ErrUnsupportedBody},
		{name: "float", draft: air.Draft{Body: raw(`{"type":"note","x":1.5}`)}, opts: air.ClientOptions{BodyTypes: []string{"note"}}, want: air.ErrFloatForbidden},
		{name: "null", draft: air.Draft{Body: raw(`{"type":"note","x":null}`)}, opts: air.ClientOptions{BodyTypes: []string{"note"}}, want: air.ErrNullForbidden},
		{name: "empty list", draft: air.Draft{Body: raw(`{"type":"note","x":[]}`)}, opts: air.ClientOptions{BodyTypes: []string{"note"}}, want: air.ErrEmptyArray},
		{name: "smuggled member", draft: air.Draft{Body: raw(`{"type":"note"},"to":"x"`)}, opts: air.ClientOptions{BodyTypes: []string{"note"}}, want: air.ErrInvalidJSON},
		{name: "names that sort differently", draft: air.Draft{Body: raw("{\"type\":\"note\",\"\ue000\":1,\"😀\":2}")}, opts: air.ClientOptions{BodyTypes: []string{"note"}}, want: air.ErrAmbiguousKeyOrder},
		{name: "the same, sealed", draft: air.Draft{Body: raw("{\"type\":\"note\",\"x\":{\"\ue000\":1,\"😀\":2}}")}, opts: air.ClientOptions{BodyTypes: []string{"note"}}, seal: true, want: air.ErrAmbiguousKeyOrder},
		{name: "malformed move, sealed", draft: air.Draft{Body: &air.Raw{JSON: []byte(`{"type":"Offer"}`)}}, opts: air.ClientOptions{BodyTypes: []string{air.AnyBodyType}}, seal: true, want: air.ErrInvalidEnvelope},
		{name: "malformed move of another type, sealed", draft: air.Draft{Body: &air.Raw{Type: "note", JSON: []byte(`{"type":"Offer"}`)}}, opts: air.ClientOptions{BodyTypes: []string{"note"}}, seal: true, want: air.ErrInvalidEnvelope},
		{name: "box in a box", draft: air.Draft{Body: raw(`{"type":"encrypted"}`)}, opts: air.ClientOptions{BodyTypes: []string{air.AnyBodyType}}, seal: true, want: air.ErrUnsupportedBody},
		{name: "reply without its message, sealed", draft: air.Draft{Body: &air.Decline{}}, seal: true, want: air.ErrInvalidEnvelope},
		{name: "Offer as an answer, sealed", draft: air.Draft{InReplyTo: air.NewID(), Body: offer(1)}, seal: true, want: air.ErrInvalidEnvelope},
		{name: "too large", draft: air.Draft{Body: offer(1)}, opts: air.ClientOptions{MaxMessage: 100}, want: air.ErrTooLarge},
		{name: "in clear", draft: air.Draft{Body: offer(1)}, opts: air.ClientOptions{RequireSealed: true}, want: air.ErrInvalidEnvelope},
		{name: "not UTF-8", draft: air.Draft{Nonce: "\xff", Body: offer(1)}, want: air.ErrInvalidJSON},
		{name: "answers an empty thread", draft: air.Draft{InReplyTo: air.NewID(), Body: &air.Decline{}}, opts: air.ClientOptions{ThreadStore: newThreads(t, alice.DID())}, want: air.ErrConflict},
		{name: "policy", draft: air.Draft{Body: offer(1)}, seal: true, opts: air.ClientOptions{KeyPolicy: air.KeyPolicyFunc(func(context.Context, string, *air.PublicKey) error { return air.ErrKeyRefused })}, want: air.ErrBadKey},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			tt.draft.To = bob.DID()
			c := w.client(t, alice, tt.opts)
			_, err := c.Send(t.Context(), &tt.draft, &air.SendOptions{Seal: tt.seal})
			require.ErrorIs(t, err, tt.want)
			for _, r := range w.requests {
				require.NotContains(t, r, "POST")
			}
		})
	}
}

// An agent whose key the registry does not have starts nothing (AIR-022..024).
func TestVerifySelf(t *testing.T) {
	w := newWorld(t, nil)
	alice, bob := w.join(t, 1), w.join(t, 2)
	stranger, err := air.GenerateIdentity(airtest.DID(airIDOf(3)))
	require.NoError(t, err)
	draft := &air.Draft{To: bob.DID(), Body: offer(1)}
	_, err = w.client(t, stranger, air.ClientOptions{}).Send(t.Context(), draft, nil)
	require.ErrorIs(t, err, air.ErrNotFound)
	require.ErrorContains(t, err, "the sender")
	rotated, err := alice.Rotate(make([]byte, 32))
	require.NoError(t, err)
	_, err = w.client(t, rotated, air.ClientOptions{}).Send(t.Context(), draft, nil)
	require.ErrorIs(t, err, air.ErrBadKey)
	_, err = w.client(t, rotated, air.ClientOptions{DisableSelfCheck: true}).Send(t.Context(), draft, nil)
	require.NoError(t, err)
	w.registry.PutDocument(stranger.AIRID(), airtest.Document(stranger.DID(), "z", ""))
	_, err = w.client(t, stranger, air.ClientOptions{}).Send(t.Context(), draft, nil)
	require.ErrorIs(t, err, air.ErrBadKey)
	w.registry.SetFailure(500)
	_, err = w.client(t, alice, air.ClientOptions{}).Send(t.Context(), draft, nil)
	require.ErrorIs(t, err, air.ErrResolveFailed)
	require.ErrorContains(t, err, "the sender")
}

// The sender learns a new key of the recipient from a Stale Key response: the body is sealed and
// signed again (AIR-028, AIR-059, AIR-D42).
func TestStaleKeyWhenSealing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, nil)
		alice, bob := w.join(t, 1), w.join(t, 2)
		seed := bytes.Repeat([]byte{9}, 32)
		rotated, err := bob.Rotate(seed)
		require.NoError(t, err)
		w.registry.Register(bob, "https://direct.example/")
		c := w.client(t, alice, air.ClientOptions{})
		in := w.inbox(t, rotated, air.InboxOptions{})
		w.direct = in
		var bodies []string
		draft := &air.Draft{To: bob.DID(), Body: offer(5)}
		w.setFail(func(r *http.Request) error {
			if r.Method == "POST" {
				w.registry.Register(rotated, "https://direct.example/")
				bodies = append(bodies, r.URL.String())
			}
			return nil
		})
		r, err := c.Send(t.Context(), draft, &air.SendOptions{Seal: true})
		require.NoError(t, err)
		require.Len(t, bodies, 2)
		require.Equal(t, http.StatusOK, r.Status)
		require.Equal(t, 2, r.Attempts)
		require.Equal(t, []air.Code{air.ErrStaleKey}, in.codes())
		require.Equal(t, 1, in.count())
		require.True(t, in.got[0].Sealed)
		require.Equal(t, r.Envelope.ID, in.got[0].Envelope.ID)

		// Pulled mail cannot be answered, so it is opened with the retired key.
		box, err := air.Seal(bob.PublicKey(), air.Binding{ID: "00000001-0021-4000-9000-026aa6ead519", From: alice.DID(), To: bob.DID(), ThreadID: "00000001-0021-4000-9000-026aa6ead51a"},
			[]byte(`{"type":"Decline"}`))
		require.NoError(t, err)
		in = w.inbox(t, rotated, air.InboxOptions{})
		o := in.Receive(t.Context(), signedOffer(t, alice, bob.DID(), func(d *air.Draft) {
			d.ID, d.ThreadID, d.Body = "00000001-0021-4000-9000-026aa6ead519", "00000001-0021-4000-9000-026aa6ead51a", &air.Raw{JSON: box}
		}), true)
		require.ErrorIs(t, o.Err, air.ErrInvalidEnvelope) // opened: a Decline that answers nothing
	})
}

// A client that starts with a new key repeats a push to a recipient that has looked up the old key just now, and delivers it.
func TestPushAfterStartWithNewKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, nil)
		alice, bob := w.join(t, 1), w.join(t, 2)
		w.registry.Register(bob, "https://direct.example/")
		in := w.inbox(t, bob, air.InboxOptions{})
		w.direct = in
		draft := &air.Draft{To: bob.DID(), Body: offer(5)}
		_, err := w.client(t, alice, air.ClientOptions{}).Send(t.Context(), draft, nil)
		require.NoError(t, err)
		rotated, err := alice.Rotate(bytes.Repeat([]byte{9}, 32))
		require.NoError(t, err)
		w.registry.Register(rotated, w.endpoint(rotated))
		_, err = w.client(t, rotated, air.ClientOptions{}).Send(t.Context(), draft, nil)
		require.NoError(t, err)
		require.Equal(t, 2, in.count())
	})
}

// A message stays in the outbox until it is delivered, with a new form for each delivery (AIR-097..099,
// AIR-D83, AIR-D84).
func TestOutbox(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, nil)
		alice, bob := w.join(t, 1), w.join(t, 2)
		c := w.client(t, alice, air.ClientOptions{Outbox: store.NewMemory()})
		cut := errors.New("the line is cut")
		w.setFail(func(r *http.Request) error {
			if r.Method == "POST" {
				return cut
			}
			return nil
		})
		began := time.Now()
		_, err := c.Send(t.Context(), &air.Draft{To: bob.DID(), Body: offer(5)}, nil)
		require.ErrorIs(t, err, air.ErrDeliveryFailed)
		require.ErrorIs(t, err, cut)
		require.Equal(t, 15*time.Second, time.Since(began))
		var e *air.Error
		require.ErrorAs(t, err, &e)
		require.Equal(t, 5, e.Attempts)
		first, err := air.DecodeEnvelope(e.Envelope, nil)
		require.NoError(t, err)
		failed, err := c.Outbox(t.Context())
		require.NoError(t, err)
		require.Len(t, failed, 1)
		require.Equal(t, first.ID, failed[0].ID)
		require.Equal(t, 5, failed[0].Attempts)
		require.Equal(t, air.ErrDeliveryFailed, failed[0].Code)
		require.Zero(t, failed[0].Failed)
		n, err := c.Resend(t.Context())
		require.Zero(t, n)
		require.ErrorIs(t, err, air.ErrDeliveryFailed)
		w.setFail(nil)
		n, err = c.Resend(t.Context())
		require.NoError(t, err)
		require.Equal(t, 1, n)
		failed, err = c.Outbox(t.Context())
		require.NoError(t, err)
		require.Empty(t, failed)
		in := w.inbox(t, bob, air.InboxOptions{})
		require.Equal(t, 1, in.drain(t))
		require.Equal(t, first.ID, in.got[0].Envelope.ID)
		require.NotEqual(t, first.Nonce, in.got[0].Envelope.Nonce)
	})
}

// A process that starts with a key which the registry does not have sends nothing, and leaves the queued messages in the outbox.
func TestOutboxOutlivesStartWithWrongKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, nil)
		alice, bob := w.join(t, 1), w.join(t, 2)
		opts := air.ClientOptions{Outbox: store.NewMemory(), Retry: &air.RetryPolicy{MaxAttempts: -1}}
		w.setFail(func(r *http.Request) error {
			if r.Method == "POST" {
				return errors.New("unreachable")
			}
			return nil
		})
		_, err := w.client(t, alice, opts).Send(t.Context(), &air.Draft{To: bob.DID(), Body: offer(5)}, nil)
		require.ErrorIs(t, err, air.ErrDeliveryFailed)
		w.setFail(nil)
		wrong, err := air.GenerateIdentity(alice.DID())
		require.NoError(t, err)
		_, err = w.client(t, wrong, opts).Resend(t.Context())
		require.ErrorIs(t, err, air.ErrBadKey)
		n, err := w.client(t, alice, opts).Resend(t.Context())
		require.NoError(t, err)
		require.Equal(t, 1, n)
	})
}

// Nothing is sent that the outbox does not hold (AIR-D84).
func TestOutboxIsWrittenFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, nil)
		alice, bob := w.join(t, 1), w.join(t, 2)
		b := &broken{Store: store.NewMemory()}
		c := w.client(t, alice, air.ClientOptions{Outbox: b, DisableSelfCheck: true})
		b.set("create", true)
		_, err := c.Send(t.Context(), &air.Draft{To: bob.DID(), Body: offer(5)}, nil)
		require.ErrorIs(t, err, errDisk)
		require.Empty(t, w.requests)
		b.set("create", false)
		time.Sleep(2 * time.Minute)
		require.Empty(t, w.requests)
	})
}

// An Offer that has expired is not sent, also after a failed attempt (AIR-D84).
func TestExpiredOfferIsNotSent(t *testing.T) {
	for _, tt := range []struct {
		expires time.Duration
		isRaw   bool
		pushes  int
	}{{-time.Second, false, 0}, {-time.Second, true, 0}, {25 * time.Second, false, 3}, {25 * time.Second, true, 3}} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, nil)
			alice, bob := w.join(t, 1), w.join(t, 2)
			c := w.client(t, alice, air.ClientOptions{Outbox: store.NewMemory(), DisableSelfCheck: true, Retry: &air.RetryPolicy{Base: 10 * time.Second}})
			pushes := 0
			w.setFail(func(r *http.Request) error {
				if r.Method != http.MethodPost {
					return nil
				}
				pushes++
				return errors.New("the line is cut")
			})
			expires := time.Now().Add(tt.expires)
			var body air.Body = &air.Offer{Description: "work", Price: air.MinorUnits(5, "USD"), Expires: expires}
			if tt.isRaw {
				body = &air.Raw{JSON: []byte(`{"type":"Offer","description":"work","price":{"amount_cents":5,"currency":"USD"},"expires_at":"` +
					expires.UTC().Format("2006-01-02T15:04:05.000Z") + `"}`)}
			}
			_, err := c.Send(t.Context(), &air.Draft{To: bob.DID(), Body: body}, nil)
			require.ErrorIs(t, err, air.ErrExpired)
			require.Equal(t, tt.pushes, pushes)
			list, err := c.Outbox(t.Context())
			require.NoError(t, err)
			require.Len(t, list, 1)
			require.Equal(t, air.ErrExpired, list[0].Code)
			require.False(t, list[0].Failed.IsZero())
		})
	}
}

// An outbox has at most 10,000 messages (AIR-D84).
func TestOutboxIsFull(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, nil)
		alice, bob := w.join(t, 1), w.join(t, 2)
		kv := store.NewMemory()
		c := w.client(t, alice, air.ClientOptions{Outbox: kv, DisableSelfCheck: true, BodyTypes: []string{"note"}})
		w.setFail(func(r *http.Request) error { return errors.New("the line is cut") })
		send := func() error {
			_, err := c.Send(t.Context(), &air.Draft{To: bob.DID(), ThreadID: "00000001-0021-4000-9000-026aa6ead51a",
				Body: &air.Raw{Type: "note", JSON: []byte(`{"type":"note"}`)}}, nil)
			return err
		}
		for range 10_000 {
			require.Error(t, send())
		}
		before := len(w.requests)
		require.ErrorIs(t, send(), air.ErrOutboxFull)
		require.Len(t, w.requests, before)
		list, err := c.Outbox(t.Context())
		require.NoError(t, err)
		require.Len(t, list, 10_000)
	})
}

// ResendEvery empties the outbox after an outage, also of sealed messages, in the order of a thread.
func TestResendEvery(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, nil)
		alice, bob := w.join(t, 1), w.join(t, 2)
		c := w.client(t, alice, air.ClientOptions{Outbox: store.NewMemory(), ResendEvery: time.Minute, BodyTypes: []string{"note"}})
		defer c.Close()
		w.registry.SetFailure(500)
		thread := air.NewID()
		var want []string
		for i := range 3 {
			id := air.NewID()
			body := &air.Raw{Type: "note", JSON: []byte(`{"type":"note"}`)}
			_, err := c.Send(t.Context(), &air.Draft{ID: id, To: bob.DID(), ThreadID: thread, Body: body}, &air.SendOptions{Seal: i == 1})
			require.Error(t, err)
			want = append(want, id)
		}
		time.Sleep(10 * time.Minute)
		w.registry.SetFailure(0)
		time.Sleep(2 * time.Minute)
		in := w.inbox(t, bob, air.InboxOptions{BodyTypes: []string{"note"}})
		require.Equal(t, 3, in.drain(t))
		var got []string
		for _, d := range in.got {
			got = append(got, d.Envelope.ID)
		}
		require.Equal(t, want, got)
		list, err := c.Outbox(t.Context())
		require.NoError(t, err)
		require.Empty(t, list)
	})
}

// A delay over the limit is returned, not waited for (AIR-D45). The end of the context ends the
// delivery.
func TestDeliveryLimits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, nil)
		alice, bob := w.join(t, 1), w.join(t, 2)
		w.registry.Register(bob, "https://direct.example/")
		w.direct = http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
			rw.Header().Set("Retry-After", "301")
			rw.WriteHeader(429)
		})
		c := w.client(t, alice, air.ClientOptions{})
		_, err := c.SendSigned(t.Context(), signedOffer(t, alice, bob.DID(), nil))
		var e *air.Error
		require.ErrorAs(t, err, &e)
		require.Equal(t, air.ErrRateLimited, e.Code)
		require.Equal(t, 301*time.Second, e.RetryAfter)
		require.Equal(t, 429, e.RemoteStatus)

		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		w.direct = http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) { rw.WriteHeader(500) })
		_, err = c.SendSigned(ctx, signedOffer(t, alice, bob.DID(), nil))
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.ErrorIs(t, err, air.ErrDeliveryFailed)

		_, err = c.SendSigned(t.Context(), []byte(unsigned))
		require.ErrorIs(t, err, air.ErrBadSignature)
		_, err = c.SendSigned(t.Context(), []byte("{"))
		require.ErrorIs(t, err, air.ErrInvalidJSON)
	})
}

// A policy with many attempts and long delays makes all of them.
func TestDeliveryMakesAllAttempts(t *testing.T) {
	for _, base := range []time.Duration{0, 3 * time.Hour, math.MaxInt64} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, nil)
			alice, bob := w.join(t, 1), w.join(t, 2)
			w.registry.Register(bob, "https://direct.example/")
			w.direct = http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) { rw.WriteHeader(503) })
			retry := &air.RetryPolicy{MaxAttempts: 30, Base: base}
			_, err := w.client(t, alice, air.ClientOptions{Retry: retry}).Send(t.Context(), &air.Draft{To: bob.DID(), Body: &air.Withdraw{WithdrawnID: air.NewID()}}, nil)
			var e *air.Error
			require.ErrorAs(t, err, &e)
			require.Equal(t, 30, e.Attempts)
			require.Equal(t, air.ErrDeliveryFailed, e.Code)
			require.NotErrorIs(t, err, context.DeadlineExceeded)

			reads := 0
			w.setFail(func(*http.Request) error {
				reads++
				return errors.New("down")
			})
			reader, err := registry.NewClient(&registry.Options{HTTPClient: w.http(), Retry: retry})
			require.NoError(t, err)
			_, err = reader.GetAgent(t.Context(), bob.AIRID())
			require.ErrorIs(t, err, air.ErrBadGateway)
			require.Equal(t, 30, reads)
		})
	}
}

// An attempt at a silent recipient ends after a minute, or as the option requests (AIR-D80).
func TestRequestTimeout(t *testing.T) {
	for option, want := range map[time.Duration]time.Duration{0: time.Minute, 5 * time.Second: 5 * time.Second, -1: time.Hour} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, nil)
			alice, bob := w.join(t, 1), w.join(t, 2)
			w.registry.Register(bob, "https://direct.example/")
			w.setFail(func(r *http.Request) error {
				if r.URL.Host != "direct.example" {
					return nil
				}
				<-r.Context().Done()
				return r.Context().Err()
			})
			c := w.client(t, alice, air.ClientOptions{Retry: &air.RetryPolicy{MaxAttempts: 1, Timeout: option}})
			ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
			defer cancel()
			start := time.Now()
			_, err := c.SendSigned(ctx, signedOffer(t, alice, bob.DID(), nil))
			require.ErrorIs(t, err, air.ErrDeliveryFailed)
			require.Equal(t, want, time.Since(start))

			a, err := air.NewAgent(alice, nil, &air.AgentOptions{Resolver: w.resolver(t), HTTPClient: w.http(), Timing: air.Timing{RequestTimeout: option}})
			require.NoError(t, err)
			defer a.Close()
			start = time.Now()
			ctx, cancel = context.WithTimeout(t.Context(), time.Hour)
			defer cancel()
			_, err = a.Send(ctx, bob.DID(), offer(5), nil)
			require.ErrorIs(t, err, air.ErrDeliveryFailed)
			require.Equal(t, min(5*want+15*time.Second, time.Hour), time.Since(start), "five attempts")
		})
	}
}

// The cache: entries expire whatever HTTP headers say, concurrent callers share one request, and
// the number of entries is bounded (AIR-025..030, AIR-D40, AIR-D59).
func TestResolver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, nil)
		alice, bob := w.join(t, 1), w.join(t, 2)
		_, err := air.NewResolver(&air.ResolverOptions{CacheTTL: time.Minute + 1})
		require.Error(t, err)
		_, err = air.NewResolver(&air.ResolverOptions{RegistryURL: "http://agentidentityregistry.org"})
		require.ErrorIs(t, err, air.ErrBadEndpoint)
		for _, tt := range []struct {
			random float64
			ttl    time.Duration
			life   time.Duration
		}{{0, 0, 50 * time.Second}, {0.5, 0, time.Minute}, {0.999999999, 0, 70 * time.Second}, {0, 15 * time.Second, 12500 * time.Millisecond}} {
			opts := &air.ResolverOptions{HTTPClient: w.http(), CacheTTL: tt.ttl, MaxCacheEntries: 1}
			airtest.SetResolverJitter(opts, func() float64 { return tt.random })
			r, err := air.NewResolver(opts)
			require.NoError(t, err)
			before := w.registry.LookupCount()
			get := func(id *air.Identity) int {
				_, err := r.Resolve(t.Context(), id.DID())
				require.NoError(t, err)
				return w.registry.LookupCount() - before
			}
			require.Equal(t, 1, get(alice))
			time.Sleep(tt.life - time.Millisecond)
			require.Equal(t, 1, get(alice))
			time.Sleep(time.Millisecond)
			require.Equal(t, 2, get(alice))
			r.Invalidate(alice.AIRID())
			require.Equal(t, 3, get(alice))
			require.Equal(t, 4, get(bob)) // there is room for one
			require.Equal(t, 5, get(alice))
		}

		// Concurrent callers share a request. A canceled caller does not cancel the others.
		r := w.resolver(t)
		before := w.registry.LookupCount()
		w.setFail(func(req *http.Request) error {
			select {
			case <-time.After(time.Second):
				return nil
			case <-req.Context().Done():
				return req.Context().Err()
			}
		})
		var wg sync.WaitGroup
		wg.Go(func() {
			ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
			defer cancel()
			_, err := r.Resolve(ctx, alice.DID())
			require.ErrorIs(t, err, air.ErrBadGateway)
		})
		synctest.Wait()
		for range 10 {
			wg.Go(func() {
				_, err := r.Resolve(t.Context(), alice.DID())
				require.NoError(t, err)
			})
		}
		wg.Go(func() {
			ctx, cancel := context.WithTimeout(t.Context(), 700*time.Millisecond)
			defer cancel()
			_, err := r.Resolve(ctx, alice.DID())
			require.ErrorIs(t, err, context.DeadlineExceeded)
		})
		wg.Wait()
		require.Equal(t, 1, w.registry.LookupCount()-before)
		_, err = r.Resolve(t.Context(), "did:wba:x:nobody")
		require.ErrorIs(t, err, air.ErrNotFound)
	})
}

type transportFunc func(*http.Request) (*http.Response, error)

func (f transportFunc) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// A document whose request was in flight when it was invalidated is neither returned to later
// callers nor cached (AIR-028, AIR-059).
func TestInvalidateWhileFetching(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, nil)
		alice := w.join(t, 1)
		r, err := air.NewResolver(&air.ResolverOptions{HTTPClient: &http.Client{Transport: transportFunc(func(req *http.Request) (*http.Response, error) {
			res, err := w.RoundTrip(req)
			time.Sleep(time.Second)
			return res, err
		})}})
		require.NoError(t, err)
		key := func() string {
			doc, err := r.Resolve(t.Context(), alice.DID())
			require.NoError(t, err)
			k, err := doc.SigningKey(alice.DID())
			require.NoError(t, err)
			return k.String()
		}
		var wg sync.WaitGroup
		for range 2 {
			wg.Go(func() { require.Equal(t, alice.PublicKey().String(), key()) })
		}
		synctest.Wait()
		next, err := alice.Rotate(bytes.Repeat([]byte{9}, 32))
		require.NoError(t, err)
		w.registry.Register(next, w.endpoint(next))
		r.Invalidate(alice.AIRID())
		wg.Go(func() { require.Equal(t, next.PublicKey().String(), key()) })
		time.Sleep(500 * time.Millisecond)
		require.Equal(t, next.PublicKey().String(), key())
		wg.Wait()
		require.Equal(t, next.PublicKey().String(), key())
		require.Equal(t, 2, w.registry.LookupCount())
	})
}

// A key that is unpinned during a comparison is pinned again.
func TestUnpinWhileChecking(t *testing.T) {
	w := newWorld(t, nil)
	alice, bob := w.join(t, 1), w.join(t, 2)
	kv := &hooked{Store: store.NewMemory(), created: func() {}}
	require.NoError(t, air.PinKeys(kv).AuthorizeKey(t.Context(), "did", alice.PublicKey()))
	require.ErrorIs(t, air.PinKeys(kv).AuthorizeKey(t.Context(), "did", bob.PublicKey()), air.ErrKeyRefused)
	kv.created = func() { require.NoError(t, air.UnpinKey(t.Context(), kv.Store, "did")); kv.created = func() {} }
	require.NoError(t, air.PinKeys(kv).AuthorizeKey(t.Context(), "did", bob.PublicKey()))
	require.ErrorIs(t, air.PinKeys(kv).AuthorizeKey(t.Context(), "did", alice.PublicKey()), air.ErrKeyRefused)
}

// Two agents negotiate through the relay and meet every rule of 8.2 and 8.3 (AIR-006..008,
// AIR-103..106, AIR-109..112, AIR-D51..AIR-D53, AIR-D56).
func TestNegotiation(t *testing.T) {
	w := newWorld(t, &relay.ServerOptions{Limits: relay.Limits{RateLimit: -1, AddressRateLimit: -1}})
	alice, bob := w.join(t, 1), w.join(t, 2)
	side := func(id *air.Identity) (*air.Client, *mailroom) {
		threads := newThreads(t, id.DID())
		return w.client(t, id, air.ClientOptions{ThreadStore: threads}), w.inbox(t, id, air.InboxOptions{Persistence: air.Persistence{ThreadStore: threads}})
	}
	ac, ain := side(alice)
	bc, bin := side(bob)
	ctx, soon := t.Context(), time.Now().Add(time.Hour)

	a := ac.NewNegotiation(bob.DID(), "", true)
	_, err := a.Accept(ctx)
	require.ErrorIs(t, err, air.ErrConflict)
	_, err = a.Offer(ctx, "a translation", air.MinorUnits(500, "USD"), soon)
	require.NoError(t, err)
	_, err = a.Offer(ctx, "again", air.MinorUnits(1, "USD"), soon)
	require.ErrorIs(t, err, air.ErrConflict)
	_, err = a.Accept(ctx)
	require.ErrorIs(t, err, air.ErrNotYourMove)
	require.Equal(t, 1, bin.drain(t))
	b := bc.NewNegotiation(alice.DID(), a.ThreadID(), false)
	_, err = b.Counter(ctx, "less", air.MinorUnits(300, "USD"), soon)
	require.NoError(t, err)
	require.Equal(t, 1, ain.drain(t))
	_, err = a.Counter(ctx, "the middle", air.MinorUnits(400, "USD"), soon)
	require.NoError(t, err)
	require.Equal(t, 1, bin.drain(t))
	_, err = b.Accept(ctx)
	require.NoError(t, err)
	require.Equal(t, 1, ain.drain(t))
	for _, n := range []*air.Negotiation{a, b} {
		th, err := n.Thread(ctx)
		require.NoError(t, err)
		require.Equal(t, air.ThreadAccepted, th.State)
		require.Equal(t, air.MinorUnits(400, "USD"), th.Agreed)
		require.Len(t, th.Moves, 3)
		_, err = n.Decline(ctx, "too late")
		require.ErrorIs(t, err, air.ErrThreadClosed)
	}

	// Crossing: both act on the same offer; the first received stands.
	a = ac.NewNegotiation(bob.DID(), "", false)
	_, err = a.Offer(ctx, "x", air.MinorUnits(5, "EUR"), soon)
	require.NoError(t, err)
	require.Equal(t, 1, bin.drain(t))
	b = bc.NewNegotiation(alice.DID(), a.ThreadID(), false)
	_, err = a.Withdraw(ctx, "changed my mind")
	require.NoError(t, err)
	_, err = b.Accept(ctx)
	require.NoError(t, err)
	require.Zero(t, ain.drain(t))
	require.Equal(t, []air.Code{air.ErrThreadClosed}, ain.codes())
	require.Zero(t, bin.drain(t))
	require.Equal(t, []air.Code{air.ErrThreadClosed}, bin.codes())

	// Another agent with the same thread id has its own thread.
	carol := w.join(t, 3)
	_, err = w.client(t, carol, air.ClientOptions{}).Send(ctx, &air.Draft{To: bob.DID(), ThreadID: a.ThreadID(), Body: offer(1)}, nil)
	require.NoError(t, err)
	require.Equal(t, 1, bin.drain(t))
	require.Equal(t, air.ThreadOffered, bin.got[len(bin.got)-1].Thread.State)

	// In a thread with oneself one can only withdraw (AIR-D72).
	self := ac.NewNegotiation(alice.DID(), "", false)
	_, err = self.Offer(ctx, "to myself", air.MinorUnits(1, "USD"), soon)
	require.NoError(t, err)
	require.Equal(t, 1, ain.drain(t))
	_, err = self.Accept(ctx)
	require.ErrorIs(t, err, air.ErrNotYourMove)
	_, err = self.Withdraw(ctx, "")
	require.NoError(t, err)

	_, err = w.client(t, alice, air.ClientOptions{}).NewNegotiation(bob.DID(), "", false).Offer(ctx, "", air.MinorUnits(1, "USD"), soon)
	require.Error(t, err)
}

// One body to many agents (section i).
func TestSendAll(t *testing.T) {
	w := newWorld(t, &relay.ServerOptions{Limits: relay.Limits{RateLimit: -1, AddressRateLimit: -1}})
	alice := w.join(t, 1)
	var to []string
	for i := range 20 {
		to = append(to, w.join(t, 10+i).DID())
	}
	to = append(to, airtest.DID(airIDOf(99)))
	results := w.client(t, alice, air.ClientOptions{}).SendEach(t.Context(), to, &air.Draft{Body: offer(1)}, &air.SendOptions{Seal: true})
	for i, r := range results {
		require.Equal(t, to[i], r.To)
		if i == 20 {
			require.ErrorIs(t, r.Err, air.ErrNotFound)
			continue
		}
		require.NoError(t, r.Err)
		require.Equal(t, to[i], r.Receipt.Envelope.To)
	}
}

// The deployed profile and dialect from end to end (AIR-D20, AIR-D27).
func TestDeployedPeers(t *testing.T) {
	w := newWorld(t, nil)
	alice, bob := w.join(t, 1), w.join(t, 2)
	c := w.client(t, alice, air.ClientOptions{Profile: air.ProfileDeployed})
	r, err := c.Send(t.Context(), &air.Draft{To: bob.DID(), Body: &air.Raw{Type: "text", JSON: []byte(`{"type":"text","text":"hi","x":null,"y":[]}`)}}, nil)
	require.NoError(t, err)
	require.Contains(t, string(r.Envelope.Bytes()), `"in_reply_to":null`)
	strict := w.inbox(t, bob, air.InboxOptions{})
	require.ErrorIs(t, strict.Receive(t.Context(), r.Envelope.Bytes(), false).Err, air.ErrNullForbidden)
	in := w.inbox(t, bob, air.InboxOptions{Profile: air.ProfileDeployed})
	p, err := air.NewPoller(in.Inbox, w.endpoint(bob), &air.PollerOptions{HTTPClient: w.http(), Dialect: air.DialectDeployed})
	require.NoError(t, err)
	_, err = p.Drain(t.Context())
	require.NoError(t, err)
	require.Equal(t, 1, in.count())
	require.Equal(t, air.FormDeployed, in.got[0].Form)
	require.Equal(t, "text", air.BodyType(in.got[0].Body))
}
