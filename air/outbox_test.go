// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package air_test

import (
	"context"
	"crypto"
	"errors"
	"io"
	"iter"
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
	"github.com/fivewire/fivewire/air/relay"
	"github.com/fivewire/fivewire/conformance/fault"
	"github.com/fivewire/fivewire/store"
)

var errStore = errors.New("store failed")

// A failingStore fails in the selected operations.
type failingStore struct {
	store.Store
	failsGet, failsChange, failsAck atomic.Bool
}

func (f *failingStore) Get(ctx context.Context, key string) (store.Entry, error) {
	if f.failsGet.Load() {
		return store.Entry{}, errStore
	}
	return f.Store.Get(ctx, key)
}

func (f *failingStore) Create(ctx context.Context, key string, value []byte, ttl time.Duration) (store.Revision, error) {
	if f.failsChange.Load() {
		return 0, errStore
	}
	return f.Store.Create(ctx, key, value, ttl)
}

// queuedIDs returns the ids of the queued and of the failed messages.
func queuedIDs(t *testing.T, c *air.Client) (queued, failed []string) {
	t.Helper()
	list, err := c.Outbox(t.Context())
	require.NoError(t, err)
	for _, m := range list {
		if m.Failed.IsZero() {
			queued = append(queued, m.ID)
		} else {
			failed = append(failed, m.ID)
		}
	}
	return queued, failed
}

// A message whose context ends behind the delivery of another one in its thread is in the outbox, as after
// every failed delivery.
func TestOutboxHasMessageThatWaited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, nil)
		alice, bob := w.join(t, 1), w.join(t, 2)
		c := w.client(t, alice, air.ClientOptions{Outbox: store.NewMemory(), BodyTypes: []string{"note"}})
		draft := func() *air.Draft {
			return &air.Draft{ID: air.NewID(), To: bob.DID(), ThreadID: "00000000-0000-4000-8000-000000000001",
				Body: &air.Raw{Type: "note", JSON: []byte(`{"type":"note"}`)}}
		}
		w.setFail(func(r *http.Request) error {
			if r.Method == http.MethodPost {
				time.Sleep(3 * time.Second)
			}
			return nil
		})
		first := make(chan error, 1)
		go func() {
			_, err := c.Send(t.Context(), draft(), nil)
			first <- err
		}()
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		second := draft()
		_, err := c.Send(ctx, second, nil)
		require.ErrorIs(t, err, air.ErrDeliveryFailed)
		require.NoError(t, <-first)
		queued, _ := queuedIDs(t, c)
		require.Equal(t, []string{second.ID}, queued)
		n, err := c.Resend(t.Context())
		require.NoError(t, err)
		require.Equal(t, 1, n)
	})
}

// damage gives a stored record the format of a later version. It returns the key and the value.
func damage(t *testing.T, kv store.KV, prefix string) (key string, value []byte) {
	t.Helper()
	for e, err := range kv.List(t.Context(), prefix) {
		require.NoError(t, err)
		key, value = e.Key, append([]byte{2}, e.Value[1:]...)
		_, err = kv.Update(t.Context(), key, value, e.Revision, 0)
		require.NoError(t, err)
		return key, value
	}
	t.Fatal("no record")
	return key, value
}

// A message that this version cannot read, for example one of a later version, stays in the store and stops no other one.
func TestUnreadableMessageStopsNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, nil)
		alice, bob := w.join(t, 1), w.join(t, 2)
		kv := store.NewMemory()
		c := w.client(t, alice, air.ClientOptions{Outbox: kv, BodyTypes: []string{"note"}})
		send := func() (id string, err error) {
			d := &air.Draft{ID: air.NewID(), To: bob.DID(), Body: &air.Raw{Type: "note", JSON: []byte(`{"type":"note"}`)}}
			_, err = c.Send(t.Context(), d, nil)
			return d.ID, err
		}
		w.setFail(func(r *http.Request) error {
			if r.Method == http.MethodPost {
				return errors.New("unreachable")
			}
			return nil
		})
		_, err := send()
		require.ErrorIs(t, err, air.ErrDeliveryFailed)
		key, value := damage(t, kv, "air/outbox/")
		time.Sleep(2 * time.Second) // the index is read again
		queued, err := send()
		require.ErrorIs(t, err, air.ErrDeliveryFailed)

		list, err := c.Outbox(t.Context())
		require.ErrorContains(t, err, key)
		require.ErrorContains(t, err, "format 2, want format 1")
		require.Len(t, list, 1)
		require.Equal(t, queued, list[0].ID)
		w.setFail(nil)
		time.Sleep(2 * time.Second)
		_, err = send()
		require.NoError(t, err)
		n, err := c.Resend(t.Context())
		require.ErrorContains(t, err, key)
		require.Equal(t, 1, n)
		e, err := kv.Get(t.Context(), key)
		require.NoError(t, err)
		require.Equal(t, value, e.Value)
	})
}

// Retry sends a message again that was queued for too long.
func TestRetryOfExpiredMessage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, nil)
		alice, bob := w.join(t, 1), w.join(t, 2)
		c := w.client(t, alice, air.ClientOptions{Outbox: store.NewMemory(), BodyTypes: []string{"note"}})
		w.setFail(func(r *http.Request) error {
			if r.Method == http.MethodPost {
				return errors.New("unreachable")
			}
			return nil
		})
		d := &air.Draft{ID: air.NewID(), To: bob.DID(), Body: &air.Raw{Type: "note", JSON: []byte(`{"type":"note"}`)}}
		_, err := c.Send(t.Context(), d, nil)
		require.ErrorIs(t, err, air.ErrDeliveryFailed)
		w.setFail(nil)
		time.Sleep(31 * 24 * time.Hour)
		_, failed := queuedIDs(t, c)
		require.Equal(t, []string{d.ID}, failed)
		n, err := c.Resend(t.Context())
		require.NoError(t, err)
		require.Zero(t, n)
		require.NoError(t, c.Retry(t.Context(), d.ID))
		n, err = c.Resend(t.Context())
		require.NoError(t, err)
		require.Equal(t, 1, n)
	})
}

// A silentStore does not answer List, unless it is awake.
type silentStore struct {
	store.KV
	lists   atomic.Int64
	isAwake atomic.Bool
}

func (h *silentStore) List(ctx context.Context, prefix string) iter.Seq2[store.Entry, error] {
	if h.isAwake.Load() {
		return h.KV.List(ctx, prefix)
	}
	return func(yield func(store.Entry, error) bool) {
		h.lists.Add(1)
		<-ctx.Done()
		yield(store.Entry{}, ctx.Err())
	}
}

// A store that does not answer is read by one call of ResendEvery at a time.
func TestResendEveryReadsHangingStoreOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, nil)
		kv := &silentStore{KV: store.NewMemory()}
		c := w.client(t, w.join(t, 1), air.ClientOptions{Outbox: kv, ResendEvery: time.Minute})
		time.Sleep(time.Hour)
		require.EqualValues(t, 1, kv.lists.Load())
		require.NoError(t, c.Close())
	})
}

// A message stays queued if the recipient asks for a longer delay than a delivery waits, whatever the status of the answer
// (AIR-D45, AIR-D84).
func TestOutboxKeepsMessageThatIsToComeLater(t *testing.T) {
	for status, code := range map[int]air.Code{429: air.ErrRateLimited, 503: air.ErrBadGateway} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, nil)
			alice, bob := w.join(t, 1), w.join(t, 2)
			w.registry.Register(bob, "https://direct.example/")
			w.direct = http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
				rw.Header().Set("Retry-After", "600")
				rw.WriteHeader(status)
			})
			c := w.client(t, alice, air.ClientOptions{Outbox: store.NewMemory()})
			_, err := c.Send(t.Context(), &air.Draft{To: bob.DID(), Body: offer(5)}, nil)
			require.ErrorIs(t, err, code)
			queued, failed := queuedIDs(t, c)
			require.Len(t, queued, 1)
			require.Empty(t, failed)
			w.registry.Register(bob, w.endpoint(bob))
			time.Sleep(10 * time.Minute)
			n, err := c.Resend(t.Context())
			require.NoError(t, err)
			require.Equal(t, 1, n)
		})
	}
}

// A Send whose context ends behind another delivery of its thread does not wait for a store that hangs.
func TestCanceledSendLeavesHangingStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, nil)
		alice, bob := w.join(t, 1), w.join(t, 2)
		kv := &silentStore{KV: store.NewMemory()}
		kv.isAwake.Store(true)
		c := w.client(t, alice, air.ClientOptions{Outbox: kv, BodyTypes: []string{"note"}})
		w.setFail(func(r *http.Request) error {
			if r.Method != http.MethodPost {
				return nil
			}
			<-r.Context().Done()
			return r.Context().Err()
		})
		thread := air.NewID()
		send := func(ctx context.Context) error {
			_, err := c.Send(ctx, &air.Draft{To: bob.DID(), ThreadID: thread, Body: &air.Raw{Type: "note", JSON: []byte(`{"type":"note"}`)}}, nil)
			return err
		}
		first := make(chan error, 1)
		go func() { first <- send(t.Context()) }()
		time.Sleep(2 * time.Second)
		kv.isAwake.Store(false)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		begin := time.Now()
		require.Error(t, send(ctx))
		require.LessOrEqual(t, time.Since(begin), 15*time.Second)
		require.NoError(t, c.Close())
		require.Error(t, <-first)
	})
}

// A message that is discarded during a delivery does not return when that fails, and is not sent again.
func TestDiscardDuringDelivery(t *testing.T) {
	for _, resends := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, nil)
			alice, bob := w.join(t, 1), w.join(t, 2)
			c := w.client(t, alice, air.ClientOptions{Outbox: store.NewMemory(), BodyTypes: []string{"note"}})
			d := &air.Draft{ID: air.NewID(), To: bob.DID(), Body: &air.Raw{Type: "note", JSON: []byte(`{"type":"note"}`)}}
			w.setFail(func(r *http.Request) error {
				if r.Method == http.MethodPost {
					time.Sleep(3 * time.Second)
					return errors.New("unreachable")
				}
				return nil
			})
			deliver := func() error {
				_, err := c.Send(t.Context(), d, nil)
				return err
			}
			if resends {
				require.ErrorIs(t, deliver(), air.ErrDeliveryFailed)
				deliver = func() error {
					_, err := c.Resend(t.Context())
					return err
				}
			}
			results := make(chan error, 1)
			go func() { results <- deliver() }()
			synctest.Wait()
			require.NoError(t, c.Discard(t.Context(), d.ID))
			require.ErrorIs(t, <-results, air.ErrDeliveryFailed)
			queued, failed := queuedIDs(t, c)
			require.Empty(t, queued)
			require.Empty(t, failed)
		})
	}
}

// A fallibleSigner is sometimes unavailable.
type fallibleSigner struct {
	crypto.Signer
	fails *atomic.Bool
}

func (s fallibleSigner) Sign(random io.Reader, text []byte, opts crypto.SignerOpts) ([]byte, error) {
	if s.fails.Load() {
		return nil, errors.New("signer unavailable")
	}
	return s.Signer.Sign(random, text, opts)
}

// A signer or a key policy that fails leaves a message queued. A key that the policy refuses does not.
func TestOutboxKeepsMessageOfFailedSignerOrPolicy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, nil)
		alice, bob := w.join(t, 1), w.join(t, 2)
		var failsSigner, failsPolicy, refuses atomic.Bool
		failsPolicy.Store(true)
		id, err := air.NewIdentityFromSigner(alice.DID(), fallibleSigner{alice.Signer(), &failsSigner})
		require.NoError(t, err)
		c := w.client(t, id, air.ClientOptions{Outbox: store.NewMemory(), BodyTypes: []string{"note"},
			KeyPolicy: air.KeyPolicyFunc(func(context.Context, string, *air.PublicKey) error {
				switch {
				case refuses.Load():
					return air.ErrKeyRefused
				case failsPolicy.Load():
					return errStore
				}
				return nil
			})})
		d := &air.Draft{ID: air.NewID(), To: bob.DID(), Body: &air.Raw{Type: "note", JSON: []byte(`{"type":"note"}`)}}
		_, err = c.Send(t.Context(), d, &air.SendOptions{Seal: true})
		require.ErrorIs(t, err, air.ErrDeliveryFailed)
		require.ErrorIs(t, err, errStore)
		failsPolicy.Store(false)
		failsSigner.Store(true)
		_, err = c.Resend(t.Context())
		require.ErrorIs(t, err, air.ErrDeliveryFailed)
		queued, _ := queuedIDs(t, c)
		require.Equal(t, []string{d.ID}, queued)
		failsSigner.Store(false)
		n, err := c.Resend(t.Context())
		require.NoError(t, err)
		require.Equal(t, 1, n)

		refuses.Store(true)
		d.ID = air.NewID()
		_, err = c.Send(t.Context(), d, &air.SendOptions{Seal: true})
		require.ErrorIs(t, err, air.ErrBadKey)
		_, failed := queuedIDs(t, c)
		require.Equal(t, []string{d.ID}, failed)
	})
}

// offerUnrecorded makes an Offer that is delivered and that the thread store of its sender, db, does not take.
func offerUnrecorded(t *testing.T, w *world, alice, bob *air.Identity) (db *failingStore, c *air.Client, n *air.Negotiation, r *air.Receipt) {
	t.Helper()
	db = &failingStore{Store: store.NewMemory()}
	threads, err := air.NewThreadStore(alice.DID(), &air.ThreadStoreOptions{Store: db})
	require.NoError(t, err)
	c = w.client(t, alice, air.ClientOptions{Outbox: store.NewMemory(), ThreadStore: threads})
	db.failsChange.Store(true)
	n = c.NewNegotiation(bob.DID(), "", false)
	r, err = n.Offer(t.Context(), "work", air.MinorUnits(5, "USD"), time.Now().Add(time.Hour))
	require.NoError(t, err)
	return db, c, n, r
}

// A delivered move that the thread store did not take stays in the outbox, and Resend records it. The
// recipient handles it once.
func TestResendRecordsDeliveredMove(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, nil)
		alice, bob := w.join(t, 1), w.join(t, 2)
		db, c, n, r := offerUnrecorded(t, w, alice, bob)
		require.Equal(t, 202, r.Status)
		queued, _ := queuedIDs(t, c)
		require.Equal(t, []string{r.Envelope.ID}, queued)
		sent, err := c.Resend(t.Context())
		require.Error(t, err)
		require.Zero(t, sent)

		db.failsChange.Store(false)
		sent, err = c.Resend(t.Context())
		require.NoError(t, err)
		require.Equal(t, 1, sent)
		queued, failed := queuedIDs(t, c)
		require.Empty(t, queued)
		require.Empty(t, failed)
		th, err := n.Thread(t.Context())
		require.NoError(t, err)
		require.Equal(t, r.Envelope.ID, th.LastMessageID)
		in := w.inbox(t, bob, air.InboxOptions{})
		require.Equal(t, 1, in.drain(t))
		time.Sleep(2 * time.Minute) // the end of changes in doubt
	})
}

// A move was delivered and not recorded, and the next delivery ends before its request. The one after that records the
// move, although the recipient answers it as a replay.
func TestResendRecordsMoveAfterFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, nil)
		alice, bob := w.join(t, 1), w.join(t, 2)
		in := w.inbox(t, bob, air.InboxOptions{})
		w.direct = in
		w.registry.Register(bob, "https://direct.example/")
		db, c, n, r := offerUnrecorded(t, w, alice, bob)
		db.failsChange.Store(false)
		db.failsGet.Store(true)
		_, err := c.Resend(t.Context())
		require.ErrorIs(t, err, air.ErrDeliveryFailed)

		db.failsGet.Store(false)
		_, err = c.Resend(t.Context())
		require.NoError(t, err)
		th, err := n.Thread(t.Context())
		require.NoError(t, err)
		require.Equal(t, r.Envelope.ID, th.LastMessageID)
		require.Equal(t, 1, in.count())
		time.Sleep(2 * time.Minute) // the end of changes in doubt
	})
}

// A move whose thread cannot be read stays queued.
func TestOutboxKeepsMoveWithoutThread(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, nil)
		alice, bob := w.join(t, 1), w.join(t, 2)
		db := &failingStore{Store: store.NewMemory()}
		threads, err := air.NewThreadStore(alice.DID(), &air.ThreadStoreOptions{Store: db})
		require.NoError(t, err)
		c := w.client(t, alice, air.ClientOptions{Outbox: store.NewMemory(), ThreadStore: threads})
		db.failsGet.Store(true)
		d := &air.Draft{ID: air.NewID(), To: bob.DID(), Body: offer(5)}
		_, err = c.Send(t.Context(), d, nil)
		require.ErrorIs(t, err, air.ErrDeliveryFailed)
		queued, _ := queuedIDs(t, c)
		require.Equal(t, []string{d.ID}, queued)
		db.failsGet.Store(false)
		n, err := c.Resend(t.Context())
		require.NoError(t, err)
		require.Equal(t, 1, n)
	})
}

// A process ends while Resend makes the first attempt for a message that was queued behind another one. The
// next process takes the replay of the recipient for the success that it is.
func TestResendAfterCrashInFirstAttempt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, nil)
		alice, bob := w.join(t, 1), w.join(t, 2)
		w.registry.Register(bob, "https://direct.example/")
		in := w.inbox(t, bob, air.InboxOptions{BodyTypes: []string{"note"}})
		w.direct = in
		db, plan := store.NewMemory(), &fault.Plan{}
		c := w.client(t, alice, air.ClientOptions{Outbox: fault.Store(db, plan), BodyTypes: []string{"note"}, Retry: &air.RetryPolicy{MaxAttempts: -1}})
		w.setFail(func(r *http.Request) error {
			if r.Method == http.MethodPost {
				return errors.New("unreachable")
			}
			return nil
		})
		for range 2 {
			_, err := c.Send(t.Context(), &air.Draft{To: bob.DID(), ThreadID: "00000000-0000-4000-8000-000000000001",
				Body: &air.Raw{Type: "note", JSON: []byte(`{"type":"note"}`)}}, nil)
			require.ErrorIs(t, err, air.ErrDeliveryFailed)
		}
		posts := 0
		w.setFail(func(r *http.Request) error {
			if r.Method == http.MethodPost {
				if posts++; posts == 2 {
					plan.Crash()
				}
			}
			return nil
		})
		_, err := c.Resend(t.Context())
		require.Error(t, err)
		require.Equal(t, 2, in.count())
		plan.Close()

		c = w.client(t, alice, air.ClientOptions{Outbox: db, BodyTypes: []string{"note"}})
		n, err := c.Resend(t.Context())
		require.NoError(t, err)
		require.Equal(t, 1, n)
		queued, failed := queuedIDs(t, c)
		require.Empty(t, queued)
		require.Empty(t, failed)
		require.Equal(t, 2, in.count())
	})
}

// Several processes of an agent that resend at the same time make one delivery of each message in all, oldest first.
func TestResendsOfProcessesShareOutbox(t *testing.T) {
	for _, fails := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, nil)
			alice, bob := w.join(t, 1), w.join(t, 2)
			db := store.NewMemory()
			var processes []*air.Client
			for range 3 {
				processes = append(processes, w.client(t, alice, air.ClientOptions{Outbox: db, BodyTypes: []string{"note"}, Retry: &air.RetryPolicy{MaxAttempts: -1}}))
			}
			var isDown atomic.Bool
			isDown.Store(true)
			var posts, parallel atomic.Int32
			w.setFail(func(r *http.Request) error {
				if r.Method != http.MethodPost {
					return nil
				}
				posts.Add(1)
				if parallel.Add(1) > 1 {
					t.Error("two processes send at the same time")
				}
				defer parallel.Add(-1)
				time.Sleep(time.Second)
				if isDown.Load() {
					return errors.New("unreachable")
				}
				return nil
			})
			for range 4 {
				_, err := processes[0].Send(t.Context(), &air.Draft{To: bob.DID(), ThreadID: "00000000-0000-4000-8000-000000000001",
					Body: &air.Raw{Type: "note", JSON: []byte(`{"type":"note"}`)}}, nil)
				require.ErrorIs(t, err, air.ErrDeliveryFailed)
			}
			posts.Store(0)
			isDown.Store(fails)
			var delivered atomic.Int32
			var wg sync.WaitGroup
			for _, c := range processes {
				wg.Go(func() {
					n, _ := c.Resend(t.Context())
					delivered.Add(int32(n))
				})
			}
			wg.Wait()
			if fails { // the first message, which blocks its thread
				require.EqualValues(t, 1, posts.Load())
				require.Zero(t, delivered.Load())
				return
			}
			require.EqualValues(t, 4, posts.Load())
			require.EqualValues(t, 4, delivered.Load())
			queued, _ := queuedIDs(t, processes[1])
			require.Empty(t, queued)
		})
	}
}

// Resend of one Agent waits for a Send of another one with the same store, leaves the message if that takes long, and makes
// the delivery itself after a crash of the other one (AIR-D84).
func TestResendWaitsForSendOfOtherAgent(t *testing.T) {
	const crash = 0
	for _, duration := range []time.Duration{10 * time.Second, time.Minute, crash} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, nil)
			alice, bob := w.join(t, 1), w.join(t, 2)
			db, plan := store.NewMemory(), &fault.Plan{}
			defer plan.Close()
			agent := func(s store.Store) *runner {
				return w.agent(t, alice, air.AgentOptions{Direct: true, BodyTypes: []string{"note"}, Persistence: air.Persistence{Store: s}}, nil)
			}
			sender, other := agent(fault.Store(db, plan)), agent(db)
			time.Sleep(time.Second) // they have leases
			var posts atomic.Int32
			w.setFail(func(r *http.Request) error {
				if r.Method != http.MethodPost || posts.Add(1) > 1 {
					return nil
				}
				if duration == crash {
					plan.Crash()
					<-r.Context().Done()
					return r.Context().Err()
				}
				time.Sleep(duration)
				return nil
			})
			sent := make(chan error, 1)
			go func() {
				_, err := sender.Send(t.Context(), bob.DID(), &air.Raw{Type: "note", JSON: []byte(`{"type":"note"}`)}, nil)
				sent <- err
			}()
			synctest.Wait()
			begin := time.Now()
			delivered, err := other.Resend(t.Context())
			require.LessOrEqual(t, time.Since(begin), 21*time.Second)
			if duration == crash {
				require.NoError(t, err)
				require.Equal(t, 1, delivered)
				require.EqualValues(t, 2, posts.Load())
				require.NoError(t, sender.Close())
				require.Error(t, <-sent)
				return
			}
			require.Equal(t, duration > 20*time.Second, errors.Is(err, air.ErrDeliveryFailed), err)
			require.Zero(t, delivered)
			require.EqualValues(t, 1, posts.Load())
			require.NoError(t, <-sent)
		})
	}
}

// Another Agent delivers a message an hour after a Send that failed and whose outcome was not stored.
func TestResendAfterOutcomeIsNotStored(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, nil)
		alice, bob := w.join(t, 1), w.join(t, 2)
		db := store.NewMemory()
		failing := &failingStore{Store: db}
		agent := func(s store.Store) *runner {
			return w.agent(t, alice, air.AgentOptions{Direct: true, BodyTypes: []string{"note"}, Persistence: air.Persistence{Store: s}}, nil)
		}
		sender, other := agent(failing), agent(db)
		time.Sleep(time.Second) // they have leases
		posts := 0
		w.setFail(func(r *http.Request) error {
			if r.Method != http.MethodPost {
				return nil
			}
			posts++
			failing.failsGet.Store(posts == 5)
			return errors.New("unreachable")
		})
		_, err := sender.Send(t.Context(), bob.DID(), &air.Raw{Type: "note", JSON: []byte(`{"type":"note"}`)}, nil)
		require.ErrorIs(t, err, air.ErrDeliveryFailed)
		failing.failsGet.Store(false)
		w.setFail(nil)
		_, err = other.Resend(t.Context())
		require.ErrorIs(t, err, air.ErrDeliveryFailed)
		time.Sleep(time.Hour)
		delivered, err := other.Resend(t.Context())
		require.NoError(t, err)
		require.Equal(t, 1, delivered)
	})
}

func (f *failingStore) Ack(ctx context.Context, stream string, seqs ...uint64) error {
	if f.failsAck.Swap(false) {
		time.AfterFunc(time.Minute, func() { _ = f.Store.Ack(context.Background(), stream, seqs...) })
		return errStore
	}
	return f.Store.Ack(ctx, stream, seqs...)
}

// An acknowledgement that fails and takes effect later leaves nothing in the index of the relay.
func TestRelayRepeatsAcknowledgementInDoubt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := &failingStore{Store: store.NewMemory()}
		w := newWorld(t, &relay.ServerOptions{Persistence: relay.Persistence{Store: db}})
		alice, bob := w.join(t, 1), w.join(t, 2)
		push(t, w.relay, bob.AIRID(), signedOffer(t, alice, bob.DID(), nil))
		in := w.inbox(t, bob, air.InboxOptions{})
		db.failsAck.Store(true)
		require.Equal(t, 1, in.drain(t))
		_, err := in.poller.Drain(t.Context())
		require.NoError(t, err)
		time.Sleep(2 * time.Minute)
		require.Zero(t, w.relay.(*relay.Server).Stats().Queued)
	})
}

// A handler answers an Offer, the answer arrives without a response, and the handler fails. Resend delivers the answer as the
// same move, since the thread keeps the Offer.
func TestAnswerOfFailedHandlerStaysValid(t *testing.T) {
	for _, hasArrived := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, nil)
			aliceID, bobID := w.join(t, 1), w.join(t, 2)
			expires, failed := time.Now().Add(time.Hour), make(chan error, 1)
			alice := w.agent(t, aliceID, air.AgentOptions{Persistence: air.Persistence{Store: store.NewMemory()}}, func(r *runner, d *air.Delivery) error {
				if len(r.list()) > 1 {
					return nil
				}
				_, err := r.NewNegotiation(d.Envelope.From, d.Envelope.ThreadID, false).Counter(t.Context(), "work", air.MinorUnits(7, "USD"), expires)
				failed <- err
				return err
			})
			bob := w.agent(t, bobID, air.AgentOptions{Direct: true, Persistence: air.Persistence{Store: store.NewMemory()}}, nil)
			w.registry.Register(bobID, "https://direct.example/")
			var isUp atomic.Bool
			var pushes atomic.Int32
			w.direct = http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
				if isUp.Load() {
					bob.Handler().ServeHTTP(rw, r)
					return
				}
				if pushes.Add(1) == 1 && hasArrived {
					bob.Handler().ServeHTTP(httptest.NewRecorder(), r)
				}
				rw.WriteHeader(http.StatusServiceUnavailable)
			})
			n := bob.NewNegotiation(aliceID.DID(), "", false)
			_, err := n.Offer(t.Context(), "work", air.MinorUnits(5, "USD"), expires)
			require.NoError(t, err)
			require.ErrorIs(t, <-failed, air.ErrDeliveryFailed)
			synctest.Wait()
			require.Greater(t, pushes.Load(), int32(1))
			isUp.Store(true)
			delivered, err := alice.Resend(t.Context())
			require.NoError(t, err)
			require.Equal(t, 1, delivered)
			own, err := alice.NewNegotiation(bobID.DID(), n.ThreadID(), false).Thread(t.Context())
			require.NoError(t, err)
			remote, err := n.Thread(t.Context())
			require.NoError(t, err)
			require.Equal(t, air.ThreadCountered, own.State)
			require.Equal(t, own.LastMessageID, remote.LastMessageID)
			require.Len(t, bob.list(), 1)
		})
	}
}

// A caller sends a message again with its id, because the first delivery had no answer: the replay that the recipient reports
// is the success of the first one, and the message keeps its place before the next one of its thread.
func TestSendOfQueuedMessageContinuesIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, nil)
		aliceID, bobID := w.join(t, 1), w.join(t, 2)
		w.registry.Register(bobID, "https://direct.example/")
		bob := w.inbox(t, bobID, air.InboxOptions{})
		var isDown atomic.Bool
		w.direct = http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
			if !isDown.Load() {
				bob.ServeHTTP(rw, r)
				return
			}
			bob.ServeHTTP(httptest.NewRecorder(), r)
			rw.WriteHeader(http.StatusServiceUnavailable)
		})
		threads := newThreads(t, aliceID.DID())
		alice := w.client(t, aliceID, air.ClientOptions{Outbox: store.NewMemory(), ThreadStore: threads, Retry: &air.RetryPolicy{MaxAttempts: -1}})
		first := &air.Draft{ID: air.NewID(), To: bobID.DID(), ThreadID: air.NewID(), Body: offer(5)}
		second := &air.Draft{ID: air.NewID(), To: bobID.DID(), ThreadID: first.ThreadID, Body: &air.Withdraw{WithdrawnID: first.ID}}
		isDown.Store(true)
		for _, d := range []*air.Draft{first, second, first} {
			_, err := alice.Send(t.Context(), d, nil)
			require.ErrorIs(t, err, air.ErrDeliveryFailed)
			queued, failed := queuedIDs(t, alice)
			require.Equal(t, first.ID, queued[0])
			require.Empty(t, failed)
		}
		list, err := alice.Outbox(t.Context())
		require.NoError(t, err)
		require.Equal(t, []int{2, 0}, []int{list[0].Attempts, list[1].Attempts})
		isDown.Store(false)
		_, err = alice.Send(t.Context(), second, nil)
		require.ErrorIs(t, err, air.ErrDeliveryFailed, "it is behind the first one")
		_, err = alice.Send(t.Context(), first, nil)
		require.NoError(t, err)
		_, err = alice.Send(t.Context(), second, nil)
		require.NoError(t, err)
		queued, failed := queuedIDs(t, alice)
		require.Empty(t, append(queued, failed...))
		for _, d := range []*air.Draft{first, second} {
			_, err = alice.Send(t.Context(), d, nil)
			require.NoError(t, err, "it was delivered before")
		}
		require.Equal(t, 2, bob.count())
		own, err := threads.Get(t.Context(), first.ThreadID, bobID.DID())
		require.NoError(t, err)
		require.Equal(t, air.ThreadWithdrawn, own.State)
	})
}

// The spaces of a body and the characters that JSON in HTML escapes are those of the same message.
func TestSendContinuesMessageWithSpaces(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, nil)
		alice, bob := w.join(t, 1), w.join(t, 2)
		c := w.client(t, alice, air.ClientOptions{Outbox: store.NewMemory(), BodyTypes: []string{"note"}, Retry: &air.RetryPolicy{MaxAttempts: -1}})
		w.setFail(func(r *http.Request) error {
			if r.Method == http.MethodPost {
				return errors.New("unreachable")
			}
			return nil
		})
		d := &air.Draft{ID: air.NewID(), To: bob.DID(), ThreadID: air.NewID(), Body: &air.Raw{Type: "note", JSON: []byte(`{"type": "note", "text": "a < b & c"}`)}}
		for range 2 {
			_, err := c.Send(t.Context(), d, nil)
			require.ErrorIs(t, err, air.ErrDeliveryFailed)
		}
		list, err := c.Outbox(t.Context())
		require.NoError(t, err)
		require.Equal(t, 2, list[0].Attempts)
	})
}

// A message with the id of another queued one is refused, which keeps that.
func TestOutboxRefusesSecondMessageWithID(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, nil)
		alice, bob, carol := w.join(t, 1), w.join(t, 2), w.join(t, 3)
		c := w.client(t, alice, air.ClientOptions{Outbox: store.NewMemory(), Retry: &air.RetryPolicy{MaxAttempts: -1}})
		w.setFail(func(r *http.Request) error {
			if r.Method == http.MethodPost {
				return errors.New("unreachable")
			}
			return nil
		})
		id, body := air.NewID(), offer(5)
		_, err := c.Send(t.Context(), &air.Draft{ID: id, To: bob.DID(), Body: body}, nil)
		require.ErrorIs(t, err, air.ErrDeliveryFailed)
		w.setFail(nil)
		_, err = c.Send(t.Context(), &air.Draft{ID: id, To: carol.DID(), Body: body}, nil)
		require.ErrorIs(t, err, air.ErrInvalidEnvelope)
		n, err := c.Resend(t.Context())
		require.NoError(t, err)
		require.Equal(t, 1, n)
		require.Len(t, pull(t, w.relay, "/inbox/"+bob.AIRID()+"/pull").Envelopes, 1)
		_, err = c.Send(t.Context(), &air.Draft{ID: id, To: carol.DID(), Body: body}, nil)
		require.NoError(t, err)
	})
}

// A client that demands sealed bodies seals the messages that an earlier client has queued, and sends no plain envelope.
func TestRequireSealedConcernsOutbox(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, nil)
		alice, bob := w.join(t, 1), w.join(t, 2)
		opts := air.ClientOptions{Outbox: store.NewMemory(), Retry: &air.RetryPolicy{MaxAttempts: -1}}
		w.setFail(func(r *http.Request) error {
			if r.Method == http.MethodPost {
				return errors.New("unreachable")
			}
			return nil
		})
		_, err := w.client(t, alice, opts).Send(t.Context(), &air.Draft{To: bob.DID(), Body: offer(5)}, nil)
		require.ErrorIs(t, err, air.ErrDeliveryFailed)
		w.setFail(nil)
		opts.RequireSealed = true
		c := w.client(t, alice, opts)
		n, err := c.Resend(t.Context())
		require.NoError(t, err)
		require.Equal(t, 1, n)
		in := w.inbox(t, bob, air.InboxOptions{})
		require.Equal(t, 1, in.drain(t))
		require.True(t, in.got[0].Sealed)
		_, err = c.SendSigned(t.Context(), signedOffer(t, alice, bob.DID(), nil))
		require.ErrorIs(t, err, air.ErrInvalidEnvelope)
	})
}

// A slowStore yields what it had at the call of List, after the next signal, and takes time to create what is listed.
type slowStore struct {
	store.Store
	isSlow atomic.Bool
	signal chan struct{}
	delay  atomic.Int64 // of Create
}

func (s *slowStore) Create(ctx context.Context, key string, value []byte, ttl time.Duration) (store.Revision, error) {
	if strings.HasPrefix(key, "air/outbox/") || strings.Contains(key, "/dead/") {
		time.Sleep(time.Duration(s.delay.Load()))
	}
	return s.Store.Create(ctx, key, value, ttl)
}

func (s *slowStore) List(ctx context.Context, prefix string) iter.Seq2[store.Entry, error] {
	return func(yield func(store.Entry, error) bool) {
		var list []store.Entry
		for e, err := range s.Store.List(ctx, prefix) {
			if err != nil {
				yield(e, err)
				return
			}
			list = append(list, e)
		}
		if s.isSlow.Load() {
			<-s.signal
		}
		for _, e := range list {
			if !yield(e, nil) {
				return
			}
		}
	}
}

// A message changes while a slow store lists the messages: one that is delivered then stops no other message of its thread, and
// one that is queued then keeps its place, also if it is stored after the list.
func TestOutboxChangesDuringList(t *testing.T) {
	for _, tt := range []struct{ isDelivered, isStoredLater bool }{{true, false}, {false, false}, {false, true}} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, nil)
			alice, bob := w.join(t, 1), w.join(t, 2)
			kv := &slowStore{Store: store.NewMemory(), signal: make(chan struct{}, 1)}
			c := w.client(t, alice, air.ClientOptions{Outbox: kv, BodyTypes: []string{"note"}, Retry: &air.RetryPolicy{MaxAttempts: -1}})
			send := func(thread string) error {
				_, err := c.Send(t.Context(), &air.Draft{To: bob.DID(), ThreadID: "00000000-0000-4000-8000-" + thread,
					Body: &air.Raw{Type: "note", JSON: []byte(`{"type":"note"}`)}}, nil)
				return err
			}
			require.NoError(t, send("000000000001"))
			first, other := make(chan error, 1), make(chan error, 1)
			w.setFail(func(r *http.Request) error {
				switch {
				case r.Method != http.MethodPost:
					return nil
				case !tt.isStoredLater:
					time.Sleep(3 * time.Second)
				}
				if tt.isDelivered {
					return nil
				}
				return errors.New("unreachable")
			})
			time.Sleep(time.Minute)
			if !tt.isDelivered { // the list does not have the message
				kv.delay.Store(int64(3 * time.Second))
			}
			go func() { first <- send("000000000001") }()
			time.Sleep(2500 * time.Millisecond)
			kv.isSlow.Store(true)
			go func() { other <- send("000000000002") }()
			synctest.Wait()
			kv.isSlow.Store(false)
			kv.delay.Store(0)
			if tt.isStoredLater {
				kv.signal <- struct{}{}
			}
			require.Equal(t, tt.isDelivered, <-first == nil)
			w.setFail(nil)
			if !tt.isStoredLater {
				kv.signal <- struct{}{}
			}
			require.Equal(t, !tt.isStoredLater, <-other == nil)
			require.Equal(t, tt.isDelivered, send("000000000001") == nil)
		})
	}
}

// A handler fails after its answer was queued without a request. Another process delivers the answer in the meantime, and both
// threads have it.
func TestAnswerIsDeliveredWhileHandlerFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, nil)
		aliceID, bobID := w.join(t, 1), w.join(t, 2)
		db, resolver, expires := store.NewMemory(), w.resolver(t), time.Now().Add(time.Hour)
		threads, err := air.NewThreadStore(aliceID.DID(), &air.ThreadStoreOptions{Store: db})
		require.NoError(t, err)
		other := w.client(t, aliceID, air.ClientOptions{Outbox: db, ThreadStore: threads})
		queued := make(chan error, 1)
		alice := w.agent(t, aliceID, air.AgentOptions{Resolver: resolver, Persistence: air.Persistence{Store: db}}, func(r *runner, d *air.Delivery) error {
			if len(r.list()) > 1 {
				return nil
			}
			resolver.Invalidate(bobID.AIRID())
			w.registry.SetFailure(503)
			_, err := r.NewNegotiation(d.Envelope.From, d.Envelope.ThreadID, false).Counter(t.Context(), "work", air.MinorUnits(7, "USD"), expires)
			w.registry.SetFailure(0)
			queued <- err
			time.Sleep(500 * time.Millisecond)
			return err
		})
		bob := w.agent(t, bobID, air.AgentOptions{Direct: true}, nil)
		w.registry.Register(bobID, "https://direct.example/")
		w.direct = http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
			time.Sleep(3 * time.Second)
			bob.Handler().ServeHTTP(rw, r)
		})
		n := bob.NewNegotiation(aliceID.DID(), "", false)
		_, err = n.Offer(t.Context(), "work", air.MinorUnits(5, "USD"), expires)
		require.NoError(t, err)
		require.ErrorIs(t, <-queued, air.ErrResolveFailed)
		delivered, err := other.Resend(t.Context())
		require.NoError(t, err)
		require.Equal(t, 1, delivered)
		time.Sleep(time.Minute)
		require.Len(t, alice.list(), 2)
		own, err := threads.Get(t.Context(), n.ThreadID(), bobID.DID())
		require.NoError(t, err)
		require.Equal(t, air.ThreadCountered, own.State)
		remote, err := n.Thread(t.Context())
		require.NoError(t, err)
		require.Equal(t, own.LastMessageID, remote.LastMessageID)
	})
}

// A handler returns the error of its answer while the peer is unavailable, and is called again. The answer is sent once, and the
// Offer is handled, after a long outage once the dead letter is redelivered.
func TestHandlerContinuesItsAnswer(t *testing.T) {
	for _, every := range []time.Duration{0, 20 * time.Second} {
		for _, outage := range []time.Duration{time.Minute, 40 * time.Minute} {
			for _, hasArrived := range []bool{false, true} {
				synctest.Test(t, func(t *testing.T) {
					w := newWorld(t, nil)
					aliceID, bobID := w.join(t, 1), w.join(t, 2)
					var alice *runner
					answers := air.Middleware(func(next air.Handler) air.Handler {
						return air.HandlerFunc(func(ctx context.Context, d *air.Delivery) error {
							_ = next.ServeAIR(ctx, d)
							n := alice.NewNegotiation(d.Envelope.From, d.Envelope.ThreadID, false)
							_, err := n.Counter(ctx, "work", air.MinorUnits(7, "USD"), time.Now().Add(24*time.Hour))
							return err
						})
					})
					alice = w.agent(t, aliceID, air.AgentOptions{Timing: air.Timing{ResendEvery: every}, Middleware: []air.Middleware{answers},
						Persistence: air.Persistence{Store: store.NewMemory()}}, nil)
					bob := w.agent(t, bobID, air.AgentOptions{Direct: true, Persistence: air.Persistence{Store: store.NewMemory()}}, nil)
					w.registry.Register(bobID, "https://direct.example/")
					end := time.Now().Add(outage)
					w.direct = http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
						if time.Now().After(end) {
							bob.Handler().ServeHTTP(rw, r)
							return
						}
						if hasArrived {
							bob.Handler().ServeHTTP(httptest.NewRecorder(), r)
						}
						rw.WriteHeader(http.StatusServiceUnavailable)
					})
					n := bob.NewNegotiation(aliceID.DID(), "", false)
					_, err := n.Offer(t.Context(), "work", air.MinorUnits(5, "USD"), time.Now().Add(24*time.Hour))
					require.NoError(t, err)
					time.Sleep(outage + 10*time.Minute)
					letters := 0
					for d, err := range alice.Inbox.DeadLetters(t.Context()) {
						require.NoError(t, err)
						o, err := alice.Inbox.Redeliver(t.Context(), d.ID)
						require.NoError(t, err)
						require.Equal(t, air.ClassDone, o.Class, o.Err)
						letters++
					}
					require.Equal(t, outage > time.Minute, letters == 1)
					require.Len(t, bob.list(), 1)
					queued, failed := queuedIDs(t, alice.Client)
					require.Empty(t, append(queued, failed...))
					own, err := alice.NewNegotiation(bobID.DID(), n.ThreadID(), false).Thread(t.Context())
					require.NoError(t, err)
					require.Equal(t, air.ThreadCountered, own.State)
				})
			}
		}
	}
}

// A slowList takes a second for a list of keys with a prefix, and counts them.
type slowList struct {
	store.Store
	prefix string
	lists  atomic.Int64
}

func (s *slowList) List(ctx context.Context, prefix string) iter.Seq2[store.Entry, error] {
	if !strings.HasPrefix(prefix, s.prefix) {
		return s.Store.List(ctx, prefix)
	}
	s.lists.Add(1)
	return func(yield func(store.Entry, error) bool) {
		select {
		case <-time.After(time.Second):
			s.Store.List(ctx, prefix)(yield)
		case <-ctx.Done():
			yield(store.Entry{}, ctx.Err())
		}
	}
}

// The outbox may be large: messages that are sent at once share one read of it, which the end of the first of them does not
// end for the others.
func TestSendsShareReadOfOutbox(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, nil)
		alice, bob := w.join(t, 1), w.join(t, 2)
		kv := &slowList{Store: store.NewMemory()}
		c := w.client(t, alice, air.ClientOptions{Outbox: kv, BodyTypes: []string{"note"}})
		send := func(ctx context.Context) error {
			_, err := c.Send(ctx, &air.Draft{To: bob.DID(), Body: &air.Raw{Type: "note", JSON: []byte(`{"type":"note"}`)}}, nil)
			return err
		}
		for _, isCut := range []bool{false, true} {
			kv.lists.Store(0)
			first, cut := context.WithCancel(t.Context())
			errs := make(chan error, 10)
			go func() { errs <- send(first) }()
			synctest.Wait()
			for range cap(errs) - 1 {
				go func() { errs <- send(t.Context()) }()
			}
			synctest.Wait()
			want := int64(1)
			if isCut {
				cut()
				require.ErrorIs(t, <-errs, context.Canceled)
				errs <- nil
				want++
			}
			for range cap(errs) {
				require.NoError(t, <-errs)
			}
			cut()
			require.Equal(t, want, kv.lists.Load())
			time.Sleep(time.Minute)
		}
	})
}

// A read of a large outbox takes long. With messages of new threads reads take at most a tenth of the time, and without other
// processes there is one a minute. A message of a thread still waits for one that another process has queued a second ago.
func TestLargeOutboxIsReadRarely(t *testing.T) {
	for _, tt := range []struct {
		isAlone, isThread bool
		maxReads          int64 // in 100 s
	}{{true, false, 2}, {true, true, 2}, {false, false, 10}, {false, true, 50}} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, &relay.ServerOptions{Limits: relay.Limits{RateLimit: -1, AddressRateLimit: -1}})
			alice, bob := w.join(t, 1), w.join(t, 2)
			kv := &slowList{Store: store.NewMemory(), prefix: "air/outbox/"}
			opts := air.AgentOptions{Direct: true, BodyTypes: []string{"note"}, Persistence: air.Persistence{Store: kv, SingleInstance: tt.isAlone}}
			a := w.agent(t, alice, opts, nil)
			time.Sleep(time.Second) // it has a lease
			d := &air.Draft{To: bob.DID(), Body: &air.Raw{Type: "note", JSON: []byte(`{"type":"note"}`)}}
			if tt.isThread {
				d.ThreadID = air.NewID()
			}
			for begin := time.Now(); time.Since(begin) < 100*time.Second; time.Sleep(100 * time.Millisecond) {
				_, err := a.Client.Send(t.Context(), d, nil)
				require.NoError(t, err)
			}
			require.LessOrEqual(t, kv.lists.Load(), tt.maxReads)
			if tt.isAlone || !tt.isThread {
				return
			}
			other := w.client(t, alice, air.ClientOptions{Outbox: kv, BodyTypes: []string{"note"}, Retry: &air.RetryPolicy{MaxAttempts: -1}})
			w.setFail(func(r *http.Request) error {
				if r.Method == http.MethodPost {
					return errors.New("unreachable")
				}
				return nil
			})
			_, err := other.Send(t.Context(), d, nil)
			require.ErrorIs(t, err, air.ErrDeliveryFailed)
			w.setFail(nil)
			time.Sleep(time.Second)
			_, err = a.Client.Send(t.Context(), d, nil)
			require.ErrorContains(t, err, "an earlier message of the thread is queued")
		})
	}
}
