// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package air_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"runtime/debug"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/air"
	"github.com/fivewire/fivewire/air/airtest"
	"github.com/fivewire/fivewire/store"
)

// An id that was used before opens no way around the rules of a thread, also after
// the time for which ids are remembered (AIR-104, AIR-105, AIR-D50).
func TestThreadsKnowMessagesNotIDs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, nil)
		alice, bob := w.join(t, 1), w.join(t, 2)
		in := w.inbox(t, bob, air.InboxOptions{}) // forgets ids after five minutes
		thread, offered, declined := air.NewID(), air.NewID(), air.NewID()
		send := func(id, reply string, body air.Body) error {
			o := in.Receive(t.Context(), signedOffer(t, alice, bob.DID(), func(d *air.Draft) {
				d.ThreadID, d.ID, d.InReplyTo, d.Body = thread, id, reply, body
			}), false)
			if o.Err != nil {
				return o.Err
			}
			return nil
		}
		require.NoError(t, send(offered, "", offer(5)))
		time.Sleep(6 * time.Minute)
		require.ErrorIs(t, send(offered, offered, &air.Accept{Price: air.MinorUnits(1, "USD")}), air.ErrNotYourMove)
		time.Sleep(6 * time.Minute)
		require.NoError(t, send(declined, "", &air.Withdraw{WithdrawnID: offered}))
		for _, id := range []string{offered, declined} {
			time.Sleep(6 * time.Minute)
			require.ErrorIs(t, send(id, offered, &air.Accept{Price: air.MinorUnits(1, "USD")}), air.ErrThreadClosed)
		}
		require.Equal(t, 2, in.count())
	})
}

// A doubtful store makes its first changes of threads, and returns errors.
type doubtful struct {
	store.Store
	left atomic.Int32
}

func (d *doubtful) Create(ctx context.Context, key string, value []byte, ttl time.Duration) (store.Revision, error) {
	rev, err := d.Store.Create(ctx, key, value, ttl)
	if strings.HasPrefix(key, "air/thread/") && d.left.Add(-1) >= 0 {
		return 0, errors.New("connection reset")
	}
	return rev, err
}

// A move whose change of the thread is in doubt is handled once the store has answered, so that no later
// one overtakes it.
func TestThreadChangeInDoubt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, nil)
		alice, bob := w.join(t, 1), w.join(t, 2)
		s := &doubtful{Store: store.NewMemory()}
		s.left.Store(3)
		in := w.inbox(t, bob, air.InboxOptions{Persistence: air.Persistence{Store: s}})
		o := in.Receive(t.Context(), signedOffer(t, alice, bob.DID(), nil), true)
		require.Nil(t, o.Err)
		require.Equal(t, air.ThreadOffered, o.Delivery.Thread.State)
	})
}

// A message counts when it is delivered, also if that takes a second try, and whether
// its body was given as a value or as JSON (AIR-D56).
func TestThreadsCountWhatIsResent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, nil)
		alice, bob := w.join(t, 1), w.join(t, 2)
		threads := newThreads(t, alice.DID())
		c := w.client(t, alice, air.ClientOptions{ThreadStore: threads, Outbox: store.NewMemory()})
		raw := &air.Raw{Type: "Offer", JSON: []byte(`{"type":"Offer","description":"","price":{"amount_cents":7,"currency":"USD"},"expires_at":"2030-01-01T00:00:00.000Z"}`)}
		for i, body := range []air.Body{offer(7), raw} {
			thread := air.NewID()
			state := func() *air.Thread {
				th, err := threads.Get(t.Context(), thread, bob.DID())
				require.NoError(t, err)
				return &th
			}
			if i == 0 {
				w.setFail(func(r *http.Request) error {
					if r.Method == http.MethodPost {
						return errors.New("the line is cut")
					}
					return nil
				})
			}
			_, err := c.Send(t.Context(), &air.Draft{To: bob.DID(), ThreadID: thread, Body: body}, nil)
			if i == 0 {
				require.ErrorIs(t, err, air.ErrDeliveryFailed)
				require.Equal(t, air.ThreadPending, state().State)
				w.setFail(nil)
				n, err := c.Resend(t.Context())
				require.NoError(t, err)
				require.Equal(t, 1, n)
			} else {
				require.NoError(t, err)
			}
			require.Equal(t, air.ThreadOffered, state().State)
			require.Equal(t, air.MinorUnits(7, "USD"), state().Moves[0].Price)
		}
		r, err := c.Send(t.Context(), &air.Draft{To: bob.DID(), Body: offer(7)}, nil)
		require.NoError(t, err)
		_, err = c.SendSigned(t.Context(), r.Envelope.Bytes()) // a repetition changes nothing
		require.NoError(t, err)
		second, err := air.NewEnvelope(&air.Draft{ID: air.NewID(), From: alice.DID(), To: bob.DID(), Time: time.Now(), ThreadID: r.Envelope.ThreadID,
			Nonce: air.NewNonce(), Body: offer(8)}, alice.Signer(), nil)
		require.NoError(t, err)
		_, err = c.SendSigned(t.Context(), second.Bytes())
		require.ErrorIs(t, err, air.ErrConflict)
	})
}

// An answer proves that the move was delivered which it names, before the response to the delivery and without one: agents that
// push to each other can answer in their handlers, and an answer to a move of the outbox is handled at once.
func TestAnswerProvesDelivery(t *testing.T) {
	for _, hasStore := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, nil)
			ids := []*air.Identity{w.join(t, 1), w.join(t, 2)}
			agents := make([]*runner, len(ids))
			for i, id := range ids {
				var p air.Persistence
				if hasStore {
					p.Store = store.NewMemory()
				}
				agents[i] = w.agent(t, id, air.AgentOptions{Direct: true, Persistence: p}, func(r *runner, d *air.Delivery) (err error) {
					n := r.NewNegotiation(d.Envelope.From, d.Envelope.ThreadID, true)
					switch d.Body.(type) {
					case *air.Offer:
						_, err = n.Counter(t.Context(), "work", air.MinorUnits(7, "USD"), time.Now().Add(time.Hour))
					case *air.Counter:
						_, err = n.Accept(t.Context())
					}
					return err
				})
				w.registry.Register(id, "https://direct.example/"+id.AIRID())
			}
			w.direct = http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
				for i, id := range ids {
					if r.URL.Path == "/"+id.AIRID() {
						agents[i].Handler().ServeHTTP(rw, r)
					}
				}
			})
			n := agents[0].NewNegotiation(ids[1].DID(), "", false)
			_, err := n.Offer(t.Context(), "work", air.MinorUnits(5, "USD"), time.Now().Add(time.Hour))
			require.NoError(t, err)
			time.Sleep(time.Minute)
			for i, a := range agents {
				th, err := a.NewNegotiation(ids[1-i].DID(), n.ThreadID(), false).Thread(t.Context())
				require.NoError(t, err)
				require.Equal(t, air.ThreadAccepted, th.State)
				require.Len(t, th.Moves, 2)
			}
			require.Len(t, agents[0].list(), 1)
			require.Len(t, agents[1].list(), 2)
		})
	}
}

// The Offer arrives at the relay without a response. The Accept of the peer is handled although the Offer is in the outbox.
func TestAnswerToMoveOfOutbox(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, nil)
		aliceID, bobID := w.join(t, 1), w.join(t, 2)
		alice := w.agent(t, aliceID, air.AgentOptions{Persistence: air.Persistence{Store: store.NewMemory()}}, nil)
		bob := w.agent(t, bobID, air.AgentOptions{}, func(r *runner, d *air.Delivery) error {
			_, err := r.NewNegotiation(d.Envelope.From, d.Envelope.ThreadID, false).Accept(t.Context())
			return err
		})
		w.setFail(func(r *http.Request) error {
			if r.Method != http.MethodPost || !strings.HasSuffix(r.URL.Path, bobID.AIRID()) {
				return nil
			}
			body, err := io.ReadAll(r.Body)
			require.NoError(t, err)
			push(t, w.relay, bobID.AIRID(), body)
			return errors.New("no response")
		})
		n := alice.NewNegotiation(bobID.DID(), "", true)
		_, err := n.Offer(t.Context(), "work", air.MinorUnits(5, "USD"), time.Now().Add(time.Hour))
		require.ErrorIs(t, err, air.ErrDeliveryFailed)
		time.Sleep(time.Minute)
		require.Len(t, alice.list(), 1)
		require.Equal(t, air.ThreadAccepted, alice.list()[0].Thread.State)
		w.setFail(nil)
		delivered, err := alice.Resend(t.Context())
		require.NoError(t, err)
		require.Equal(t, 1, delivered)
		for _, n := range []*air.Negotiation{n, bob.NewNegotiation(aliceID.DID(), n.ThreadID(), false)} {
			th, err := n.Thread(t.Context())
			require.NoError(t, err)
			require.Equal(t, air.ThreadAccepted, th.State)
		}
	})
}

// One peer cannot fill the threads of an agent: what it opens beyond its share waits, and others are served (AIR-D92).
func TestThreadsOfPeerAreBounded(t *testing.T) {
	for name, opts := range map[string]air.ThreadStoreOptions{"memory": {}, "store": {Store: store.NewMemory()}} {
		t.Run(name, func(t *testing.T) { testThreadsOfPeer(t, &opts) })
	}
}

func testThreadsOfPeer(t *testing.T, opts *air.ThreadStoreOptions) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, nil)
		alice, bob, carol := w.join(t, 1), w.join(t, 2), w.join(t, 3)
		threads, err := air.NewThreadStore(bob.DID(), opts)
		require.NoError(t, err)
		var first *air.Envelope
		for n := 0; err == nil; n++ {
			require.LessOrEqual(t, n, 10_000)
			e := &air.Envelope{ID: air.NewID(), From: alice.DID(), To: bob.DID(), ThreadID: air.NewID()}
			err = threads.Note(t.Context(), e, offer(5))
			if first == nil {
				first = e
			}
		}
		require.ErrorContains(t, err, "items")
		in := w.inbox(t, bob, air.InboxOptions{Persistence: air.Persistence{ThreadStore: threads}})
		mail := signedOffer(t, alice, bob.DID(), nil)
		o := in.Receive(t.Context(), mail, false)
		require.ErrorIs(t, o.Err, air.ErrRateLimited)
		require.Equal(t, air.ClassLater, o.Class)
		require.NotZero(t, o.Err.RetryAfter)
		require.Nil(t, in.Receive(t.Context(), signedOffer(t, carol, bob.DID(), nil), false).Err)
		c := w.client(t, bob, air.ClientOptions{ThreadStore: threads})
		_, err = c.NewNegotiation(alice.DID(), "", false).Offer(t.Context(), "work", air.MinorUnits(1, "USD"), time.Now().Add(time.Hour))
		require.ErrorIs(t, err, air.ErrRateLimited)
		withdrawn := &air.Envelope{ID: air.NewID(), From: alice.DID(), To: bob.DID(), ThreadID: first.ThreadID}
		require.NoError(t, threads.Note(t.Context(), withdrawn, &air.Withdraw{WithdrawnID: first.ID}))
		require.Nil(t, in.Receive(t.Context(), mail, false).Err)
	})
}

// A thread beyond the storage of its peer is refused. A move that closes a thread is accepted, and makes room.
func TestStorageOfPeerIsBounded(t *testing.T) {
	threads, err := air.NewThreadStore(airtest.DID(airIDOf(2)), &air.ThreadStoreOptions{Store: store.NewMemory()})
	require.NoError(t, err)
	threads.BoundStorage(7680)
	open := func(n int) *air.Envelope {
		e := &air.Envelope{ID: air.NewID(), From: airtest.DID(airIDOf(n)), To: airtest.DID(airIDOf(2)), ThreadID: air.NewID()}
		err = threads.Note(t.Context(), e, offer(5))
		return e
	}
	first := open(1)
	for n := 0; err == nil; n++ {
		require.Less(t, n, 16)
		open(1)
	}
	require.ErrorContains(t, err, "storage")
	open(3)
	require.NoError(t, err, "another peer")
	withdrawal := &air.Envelope{ID: air.NewID(), From: first.From, To: first.To, ThreadID: first.ThreadID}
	require.NoError(t, threads.Note(t.Context(), withdrawal, &air.Withdraw{WithdrawnID: first.ID}))
	open(1)
	require.NoError(t, err)
	th, err := threads.Get(t.Context(), first.ThreadID, first.From)
	require.NoError(t, err)
	require.Equal(t, air.ThreadPending, th.State, "it made room")
}

// Closed threads make room for others, the oldest first.
func TestClosedThreadsMakeRoom(t *testing.T) {
	limit := debug.SetMemoryLimit(12 << 20) // a third for threads in memory
	threads, err := air.NewThreadStore(airtest.DID(airIDOf(2)), nil)
	debug.SetMemoryLimit(limit)
	require.NoError(t, err)
	amount, _ := air.ParseAmount("1" + strings.Repeat("0", 900))
	price := air.Money{Amount: amount, Currency: "USD"}
	var ids []string
	const n = 4_000 // about 7 MB
	for range n {
		e := &air.Envelope{ID: air.NewID(), From: airtest.DID(airIDOf(1)), To: airtest.DID(airIDOf(2)), ThreadID: air.NewID()}
		require.NoError(t, threads.Note(t.Context(), e, &air.Offer{Price: price}))
		withdrawal := &air.Envelope{ID: air.NewID(), From: e.From, To: e.To, ThreadID: e.ThreadID}
		require.NoError(t, threads.Note(t.Context(), withdrawal, &air.Withdraw{WithdrawnID: e.ID}))
		ids = append(ids, e.ThreadID)
	}
	rest := 0
	for i, id := range ids {
		th, err := threads.Get(t.Context(), id, airtest.DID(airIDOf(1)))
		require.NoError(t, err)
		if th.State == air.ThreadWithdrawn {
			rest++
		} else {
			require.Less(t, i, n-rest)
		}
	}
	require.Less(t, rest, n)
	require.Greater(t, rest, n/4)
}

// A rejected Offer leaves no thread behind.
func TestRejectedOfferLeavesNoThread(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, nil)
		alice, bob := w.join(t, 1), w.join(t, 2)
		db := store.NewMemory()
		in := w.inbox(t, bob, air.InboxOptions{Persistence: air.Persistence{Store: db}})
		in.answer = air.Reject(air.ErrUnauthorized, "no")
		require.ErrorIs(t, in.Receive(t.Context(), signedOffer(t, alice, bob.DID(), nil), false).Err, air.ErrUnauthorized)
		for e, err := range db.List(t.Context(), "air/thread/") {
			require.NoError(t, err)
			t.Errorf("%s is left", e.Key)
		}
	})
}
