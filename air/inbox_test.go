// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package air_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/air"
	"github.com/fivewire/fivewire/store"
)

func TestLongestHandlerTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, nil)
		alice, bob := w.join(t, 1), w.join(t, 2)
		in, err := air.NewInbox(bob, air.HandlerFunc(func(ctx context.Context, _ *air.Delivery) error {
			time.Sleep(time.Hour)
			return ctx.Err()
		}), &air.InboxOptions{Resolver: w.resolver(t), Timing: air.Timing{HandlerTimeout: math.MaxInt64}})
		require.NoError(t, err)
		status, answer, _ := do(t, in, "POST", "/", string(signedOffer(t, alice, bob.DID(), nil)))
		require.Equal(t, 200, status, answer)
	})
}

func TestInboxAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, nil)
		alice, bob := w.join(t, 1), w.join(t, 2)
		in := w.inbox(t, bob, air.InboxOptions{Auth: air.Auth{PushSecret: "s3cret"}})
		good := string(signedOffer(t, alice, bob.DID(), nil))
		post := func(body string, headers ...string) (int, string) {
			status, answer, _ := do(t, in, "POST", "/", body, append([]string{"X-Agent-Secret", "s3cret"}, headers...)...)
			return status, answer
		}
		status, answer, header := do(t, in, "GET", "/", "")
		require.Equal(t, 405, status)
		require.Equal(t, "POST, OPTIONS", header.Get("Allow"))
		require.Contains(t, answer, `"error":"Bad Request"`)
		status, answer, _ = do(t, in, "POST", "/", good)
		require.Equal(t, 401, status)
		require.Contains(t, answer, `"error":"Unauthorized"`)

		status, _ = post(strings.Repeat(" ", air.DefaultMaxMessage+1))
		require.Equal(t, 413, status)
		status, _ = post(good, "Content-Type", "application/didcomm-encrypted+json") // AIR-107, AIR-D70
		require.Equal(t, 400, status)
		require.Zero(t, w.registry.LookupCount())
		status, answer = post(good, "Content-Type", "application/json; charset=utf-8")
		require.Equal(t, 200, status, answer)
		require.Contains(t, answer, `"status":"delivered"`)
		require.Equal(t, 1, in.count())
		status, answer = post(good)
		require.Equal(t, 409, status)
		require.JSONEq(t, `{"error":"Replay","detail":"the nonce or the id was seen before"}`, answer)
	})
}

// A hook may open a wrapper; what is in it is checked like anything else (AIR-108).
func TestInboxUnwraps(t *testing.T) {
	w := newWorld(t, nil)
	alice, bob := w.join(t, 1), w.join(t, 2)
	in := w.inbox(t, bob, air.InboxOptions{Unwrap: func(contentType string, body []byte) ([]byte, error) {
		inner, ok := strings.CutPrefix(string(body), "wrapped:")
		if !ok {
			return nil, errors.New("secret path /etc/x")
		}
		return []byte(inner), nil
	}})
	good := string(signedOffer(t, alice, bob.DID(), nil))
	status, answer, _ := do(t, in, "POST", "/", "other:"+good, "Content-Type", "application/x-wrapped")
	require.Equal(t, 400, status)
	require.NotContains(t, answer, "/etc/x") // AIR-124
	status, _, _ = do(t, in, "POST", "/", "wrapped:"+good, "Content-Type", "application/x-wrapped")
	require.Equal(t, 200, status)
}

// A handler that fails has not received the envelope; one that refuses has (section
// e). The thread goes back with it.
func TestHandlerErrors(t *testing.T) {
	for _, durable := range []bool{false, true} {
		t.Run(fmt.Sprint("durable ", durable), func(t *testing.T) {
			w := newWorld(t, nil)
			alice, bob := w.join(t, 1), w.join(t, 2)
			opts := air.InboxOptions{}
			if durable {
				opts.Persistence.Store = store.NewMemory()
			}
			threads := newThreads(t, bob.DID())
			opts.Persistence.ThreadStore = threads
			in := w.inbox(t, bob, opts)
			data := signedOffer(t, alice, bob.DID(), nil)
			e, err := air.DecodeEnvelope(data, nil)
			require.NoError(t, err)
			state := func() air.ThreadState {
				th, err := threads.Get(t.Context(), e.ThreadID, alice.DID())
				require.NoError(t, err)
				return th.State
			}
			in.fail(errors.New("the database at 10.0.0.1 is down"))
			status, answer, _ := do(t, in, "POST", "/", string(data))
			require.Equal(t, 500, status)
			require.JSONEq(t, `{"error":"Relay Error"}`, answer)
			require.Equal(t, air.ThreadPending, state())
			o := in.Receive(t.Context(), data, true)
			require.False(t, o.Final)
			in.fail(air.ErrUnauthorized) // of a client call
			status, _, _ = do(t, in, "POST", "/", string(data))
			require.Equal(t, 500, status)

			in.fail(nil)
			status, _, _ = do(t, in, "POST", "/", string(data))
			require.Equal(t, 200, status)
			require.Equal(t, air.ThreadOffered, state())

			in.fail(air.Reject(air.ErrUnsupportedBody, "not here"))
			data = signedOffer(t, alice, bob.DID(), nil)
			o = in.Receive(t.Context(), data, true)
			require.ErrorIs(t, o.Err, air.ErrUnsupportedBody)
			require.True(t, o.Final)
			o = in.Receive(t.Context(), data, true)
			require.ErrorIs(t, o.Err, air.ErrReplay)
			require.True(t, o.Final)
		})
	}
}

func TestHandlerPanics(t *testing.T) {
	w := newWorld(t, nil)
	alice, bob := w.join(t, 1), w.join(t, 2)
	in, err := air.NewInbox(bob, air.HandlerFunc(func(context.Context, *air.Delivery) error { panic("oh") }), &air.InboxOptions{Resolver: w.resolver(t)})
	require.NoError(t, err)
	o := in.Receive(t.Context(), signedOffer(t, alice, bob.DID(), nil), false)
	require.ErrorIs(t, o.Err, air.ErrRelay)
}

// A handler that ends its goroutine has failed: the message is handled again.
func TestHandlerExits(t *testing.T) {
	for _, isDurable := range []bool{false, true} {
		for _, fromRelay := range []bool{false, true} {
			t.Run(fmt.Sprintf("durable %v, from relay %v", isDurable, fromRelay), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					w := newWorld(t, nil)
					alice, bob := w.join(t, 1), w.join(t, 2)
					var records []*air.AuditRecord
					o := &air.InboxOptions{Resolver: w.resolver(t), Audit: func(_ context.Context, r *air.AuditRecord) { records = append(records, r) }}
					if isDurable {
						o.Persistence.Store = store.NewMemory()
					}
					o.Persistence.ThreadStore = newThreads(t, bob.DID())
					isFailing := true
					in, err := air.NewInbox(bob, air.HandlerFunc(func(context.Context, *air.Delivery) error {
						if isFailing {
							runtime.Goexit()
						}
						return nil
					}), o)
					require.NoError(t, err)
					data := signedOffer(t, alice, bob.DID(), nil)
					e, err := air.DecodeEnvelope(data, nil)
					require.NoError(t, err)
					var r *air.ReceiveResult
					receive := func() {
						done := make(chan struct{})
						go func() {
							defer close(done)
							r = in.Receive(t.Context(), data, fromRelay)
						}()
						<-done
					}
					receive()
					if !fromRelay {
						require.ErrorIs(t, r.Err, air.ErrRelay)
						require.False(t, r.Final)
					}
					require.Len(t, records, 1)
					require.Equal(t, "failed", records[0].Outcome)
					th, err := o.Persistence.ThreadStore.Get(t.Context(), e.ThreadID, alice.DID())
					require.NoError(t, err)
					require.Equal(t, air.ThreadPending, th.State)
					isFailing = false
					time.Sleep(time.Minute)
					receive()
					require.Nil(t, r.Err)
					require.Equal(t, air.ClassDone, r.Class)
					require.NoError(t, in.Shutdown(t.Context()))
				})
			})
		}
	}
}

// Of many copies at once exactly one is delivered, with and without a store, in one
// process and in several (AIR-085, AIR-D58).
func TestConcurrentCopies(t *testing.T) {
	for _, durable := range []bool{false, true} {
		w := newWorld(t, nil)
		alice, bob := w.join(t, 1), w.join(t, 2)
		inboxes := []*mailroom{}
		var kv store.Store
		n := 1
		if durable {
			kv, n = store.NewMemory(), 3
		}
		for range n {
			inboxes = append(inboxes, w.inbox(t, bob, air.InboxOptions{Persistence: air.Persistence{Store: kv}}))
		}
		data := signedOffer(t, alice, bob.DID(), nil)
		var wg sync.WaitGroup
		for i := range 30 {
			wg.Go(func() {
				o := inboxes[i%n].Receive(context.Background(), data, false)
				if o.Err != nil {
					require.ErrorIs(t, o.Err, air.ErrReplay)
				}
			})
		}
		wg.Wait()
		total := 0
		for _, in := range inboxes {
			total += in.count()
		}
		require.Equal(t, 1, total)
	}
}

// The same id under a new nonce, and the same nonce under a new id, are replays; a
// restart forgets neither (AIR-033, AIR-042, AIR-113, AIR-114, AIR-116).
func TestReplaysSurviveARestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, nil)
		alice, bob := w.join(t, 1), w.join(t, 2)
		kv := store.NewMemory()
		id, nonce, thread := air.NewID(), air.NewNonce(), air.NewID()
		first := signedOffer(t, alice, bob.DID(), func(d *air.Draft) { d.ID, d.Nonce, d.ThreadID = id, nonce, thread })
		sameID := signedOffer(t, alice, bob.DID(), func(d *air.Draft) { d.ID = id })
		sameNonce := signedOffer(t, alice, bob.DID(), func(d *air.Draft) { d.Nonce, d.ThreadID = nonce, thread })
		opts := air.InboxOptions{Persistence: air.Persistence{Store: kv, SingleInstance: true}}
		in := w.inbox(t, bob, opts)
		require.Nil(t, in.Receive(t.Context(), first, false).Err)
		for range 2 {
			for _, data := range [][]byte{first, sameID, sameNonce} {
				o := in.Receive(t.Context(), data, true)
				require.ErrorIs(t, o.Err, air.ErrReplay)
				require.True(t, o.Final)
			}
			require.NoError(t, in.Close())
			in = w.inbox(t, bob, opts)
		}
		time.Sleep(301 * time.Second)
		for _, data := range [][]byte{first, sameID} {
			require.ErrorIs(t, in.Receive(t.Context(), data, false).Err, air.ErrStaleTimestamp)
		}
		fresh := signedOffer(t, alice, bob.DID(), func(d *air.Draft) { d.ID = id })
		require.ErrorIs(t, in.Receive(t.Context(), fresh, false).Err, air.ErrReplay)
		time.Sleep(8 * 24 * time.Hour)
		fresh = signedOffer(t, alice, bob.DID(), func(d *air.Draft) { d.ID = id }) // forgotten
		require.Nil(t, in.Receive(t.Context(), fresh, false).Err)
	})
}

// When the lease of a crashed process has expired, another process claims its envelope and
// marks it as redelivered.
func TestTakingOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, nil)
		alice, bob := w.join(t, 1), w.join(t, 2)
		kv := store.NewMemory()
		data := signedOffer(t, alice, bob.DID(), nil)
		resolver := w.resolver(t)
		stuck, started := make(chan struct{}), make(chan struct{})
		process := &frozen{Store: kv}
		dying, err := air.NewInbox(bob, air.HandlerFunc(func(context.Context, *air.Delivery) error {
			close(started)
			<-stuck // blocked, as if the process had been killed
			return nil
		}), &air.InboxOptions{Resolver: resolver, Persistence: air.Persistence{Store: process}, Timing: air.Timing{HandlerTimeout: 10 * time.Second}})
		require.NoError(t, err)
		var wg sync.WaitGroup
		wg.Go(func() { dying.Receive(context.Background(), data, true) })
		<-started
		defer dying.Close()
		process.isFrozen.Store(true)
		next := w.inbox(t, bob, air.InboxOptions{Persistence: air.Persistence{Store: kv}, Timing: air.Timing{HandlerTimeout: 10 * time.Second}})
		o := next.Receive(t.Context(), data, true)
		require.ErrorIs(t, o.Err, air.ErrReplay)
		require.False(t, o.Final) // not acknowledged: the outcome is unknown
		time.Sleep(20 * time.Second)
		o = next.Receive(t.Context(), data, true)
		require.Nil(t, o.Err)
		require.True(t, o.Delivery.Redelivered)
		require.Equal(t, air.ThreadOffered, o.Delivery.Thread.State)
		require.True(t, next.Receive(t.Context(), data, true).Final)
		close(stuck)
		wg.Wait()
	})
}

// A Withdraw waits while the handler of its Offer fails, or its process has crashed, however long that takes
// (AIR-D77).
func TestWithdrawWaitsForOffer(t *testing.T) {
	for _, name := range []string{"failure", "failure with store", "crash"} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, nil)
				alice, bob := w.join(t, 1), w.join(t, 2)
				thread, id := air.NewID(), air.NewID()
				offer := signedOffer(t, alice, bob.DID(), func(d *air.Draft) { d.ID, d.ThreadID = id, thread })
				time.Sleep(time.Second)
				withdraw := signedOffer(t, alice, bob.DID(), func(d *air.Draft) {
					d.ThreadID, d.Body = thread, &air.Withdraw{WithdrawnID: id}
				})
				var opts air.InboxOptions
				if name != "failure" {
					opts.Persistence.Store = store.NewMemory()
				}
				in := w.inbox(t, bob, opts)
				if name == "crash" {
					process := &frozen{Store: opts.Persistence.Store}
					dying, h := w.slowInbox(t, bob, process)
					var wg sync.WaitGroup
					wg.Go(func() { dying.Receive(context.Background(), offer, true) })
					<-h.called
					process.isFrozen.Store(true)
					h.answer <- nil
					wg.Wait()
				} else {
					in.fail(errHandler)
					in.Receive(t.Context(), offer, true)
				}
				for range 2 {
					o := in.Receive(t.Context(), withdraw, true)
					require.Equal(t, air.ClassLater, o.Class)
					require.ErrorIs(t, o.Err, air.ErrConflict)
					time.Sleep(11 * time.Minute)
				}
				in.fail(nil)
				require.Equal(t, air.ClassDone, in.Receive(t.Context(), offer, true).Class)
				o := in.Receive(t.Context(), withdraw, true)
				require.Nil(t, o.Err)
				require.Equal(t, air.ThreadWithdrawn, o.Delivery.Thread.State)
			})
		})
	}
}

// A Withdraw does not wait for an Offer that is refused after the change of its sender's key (AIR-D77).
func TestWithdrawDoesNotWaitForRefusedOffer(t *testing.T) {
	for _, hasStore := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, nil)
			alice, bob := w.join(t, 1), w.join(t, 2)
			thread, id := air.NewID(), air.NewID()
			offer := signedOffer(t, alice, bob.DID(), func(d *air.Draft) { d.ID, d.ThreadID = id, thread })
			var opts air.InboxOptions
			if hasStore {
				opts.Persistence.Store = store.NewMemory()
			}
			in := w.inbox(t, bob, opts)
			in.fail(errHandler)
			require.Equal(t, air.ClassLater, in.Receive(t.Context(), offer, true).Class)
			rotated, err := alice.Rotate(make([]byte, 32))
			require.NoError(t, err)
			w.registry.Register(rotated, "")
			time.Sleep(2 * time.Minute)
			require.ErrorIs(t, in.Receive(t.Context(), offer, true).Err, air.ErrBadSignature)
			withdraw := signedOffer(t, rotated, bob.DID(), func(d *air.Draft) {
				d.ThreadID, d.Body = thread, &air.Withdraw{WithdrawnID: id}
			})
			for range 3 {
				require.Equal(t, air.ClassLater, in.Receive(t.Context(), withdraw, true).Class)
				time.Sleep(10 * time.Minute)
			}
			require.Equal(t, air.ClassRefused, in.Receive(t.Context(), withdraw, true).Class)
		})
	}
}

// A move that names an unseen message waits for ten minutes, however large an envelope may be (AIR-D77).
func TestEarlyMoveIsRefused(t *testing.T) {
	for _, limit := range []int{0, -1, 100 << 20} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, nil)
			alice, bob := w.join(t, 1), w.join(t, 2)
			in := w.inbox(t, bob, air.InboxOptions{Limits: air.Limits{MaxMessage: limit}})
			decline := signedOffer(t, alice, bob.DID(), func(d *air.Draft) { d.InReplyTo, d.Body = air.NewID(), &air.Decline{} })
			for _, want := range []air.Class{air.ClassLater, air.ClassRefused} {
				o := in.Receive(t.Context(), decline, true)
				require.Equal(t, want, o.Class)
				require.ErrorIs(t, o.Err, air.ErrConflict)
				time.Sleep(10 * time.Minute)
			}
		})
	}
}

// A Withdraw of a dead letter waits for ten minutes, becomes a dead letter, and is handled after its Offer (AIR-D77).
func TestWithdrawOfDeadLetter(t *testing.T) {
	for _, name := range []string{"failed", "failed with store", "stale", "discarded", "redelivered first"} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, nil)
				alice, bob := w.join(t, 1), w.join(t, 2)
				threadID, id := air.NewID(), air.NewID()
				offer := signedOffer(t, alice, bob.DID(), func(d *air.Draft) { d.ID, d.ThreadID = id, threadID })
				opts := air.InboxOptions{Limits: air.Limits{MaxAttempts: 1}}
				if name != "failed" {
					opts.Persistence.Store = store.NewMemory()
				}
				in := w.inbox(t, bob, opts)
				if name == "stale" {
					time.Sleep(301 * time.Second)
				} else {
					in.fail(errHandler)
				}
				require.Equal(t, air.ClassHeld, in.Receive(t.Context(), offer, true).Class)
				withdraw := signedOffer(t, alice, bob.DID(), func(d *air.Draft) {
					d.ThreadID, d.Body = threadID, &air.Withdraw{WithdrawnID: id}
				})
				for _, want := range []air.Class{air.ClassLater, air.ClassHeld} {
					o := in.Receive(t.Context(), withdraw, true)
					require.Equal(t, want, o.Class)
					require.ErrorIs(t, o.Err, air.ErrConflict)
					time.Sleep(10 * time.Minute)
				}
				in.fail(nil)
				letters := listed(t, in)
				require.Len(t, letters, 2)
				require.Empty(t, letters[0].After)
				require.Equal(t, id, letters[1].After)
				switch name {
				case "discarded":
					require.NoError(t, in.Discard(t.Context(), letters[0].ID))
					o, err := in.Redeliver(t.Context(), letters[1].ID)
					require.NoError(t, err)
					require.Equal(t, air.ClassRefused, o.Class)
					require.Empty(t, listed(t, in))
					return
				case "redelivered first":
					o, err := in.Redeliver(t.Context(), letters[1].ID)
					require.NoError(t, err)
					require.Equal(t, air.ClassHeld, o.Class)
				}
				o, err := in.Redeliver(t.Context(), letters[0].ID)
				require.NoError(t, err)
				require.Equal(t, air.ThreadOffered, o.Delivery.Thread.State)
				require.Empty(t, listed(t, in))
				got := in.got[len(in.got)-1]
				require.Equal(t, air.ThreadWithdrawn, got.Thread.State)
				require.Len(t, got.Thread.Moves, 1)
			})
		})
	}
}

func listed(t *testing.T, in *mailroom) (list []air.DeadLetter) {
	t.Helper()
	for d, err := range in.DeadLetters(t.Context()) {
		require.NoError(t, err)
		list = append(list, d)
	}
	return list
}

// A window that is full refuses instead of forgetting, per sender and thread, and
// has room again to the millisecond (AIR-D43, AIR-120).
func TestReplayWindowIsFull(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, nil)
		alice, bob, carol := w.join(t, 1), w.join(t, 2), w.join(t, 3)
		in := w.inbox(t, bob, air.InboxOptions{Limits: air.Limits{MaxReplayEntries: 2}, BodyTypes: []string{"note"}})
		thread := air.NewID()
		send := func(from *air.Identity, threadID string) *air.ReceiveResult {
			return in.Receive(t.Context(), signedOffer(t, from, bob.DID(), func(d *air.Draft) {
				d.ThreadID, d.Body = threadID, &air.Raw{Type: "note", JSON: []byte(`{"type":"note"}`)}
			}), true)
		}
		time.Sleep(123 * time.Millisecond)
		require.Nil(t, send(alice, thread).Err)
		require.Nil(t, send(alice, thread).Err)
		o := send(alice, thread)
		require.ErrorIs(t, o.Err, air.ErrReplayWindowExhausted)
		require.JSONEq(t, `{"error":"Replay Window Exhausted","thread_id":"`+thread+`"}`, string(o.Err.HTTPBody()))
		require.Equal(t, 429, o.Err.HTTPStatus())
		require.False(t, o.Final)
		require.Nil(t, send(carol, thread).Err) // a thread of another sender
		require.Nil(t, send(alice, air.NewID()).Err)
		time.Sleep(300 * time.Second)
		require.ErrorIs(t, send(alice, thread).Err, air.ErrReplayWindowExhausted)
		time.Sleep(time.Millisecond)
		require.Nil(t, send(alice, thread).Err)
	})
}

// A new key of a sender is accepted once the cached document is five seconds old. A wrong signature
// causes one lookup, not one for each copy (AIR-D41, AIR-075).
func TestSenderRotatesItsKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, nil)
		alice, bob := w.join(t, 1), w.join(t, 2)
		in := w.inbox(t, bob, air.InboxOptions{})
		require.Nil(t, in.Receive(t.Context(), signedOffer(t, alice, bob.DID(), nil), false).Err)
		rotated, err := alice.Rotate(make([]byte, 32))
		require.NoError(t, err)
		w.registry.Register(rotated, "")
		data := signedOffer(t, rotated, bob.DID(), nil)
		require.ErrorIs(t, in.Receive(t.Context(), data, false).Err, air.ErrBadSignature)
		require.Equal(t, 1, w.registry.LookupCount())
		time.Sleep(5 * time.Second)
		w.registry.SetFailure(500)
		o := in.Receive(t.Context(), data, false)
		require.ErrorIs(t, o.Err, air.ErrBadGateway)
		require.False(t, o.Final)
		w.registry.SetFailure(0)
		require.Nil(t, in.Receive(t.Context(), data, false).Err)
		old := signedOffer(t, alice, bob.DID(), nil)
		for range 3 {
			require.ErrorIs(t, in.Receive(t.Context(), old, false).Err, air.ErrBadSignature)
		}
		require.Equal(t, 3, w.registry.LookupCount())
	})
}

// Invalid and missing documents, and those of another agent (AIR-D33, AIR-D40, AIR-083).
func TestSenderDocuments(t *testing.T) {
	w := newWorld(t, nil)
	alice, bob := w.join(t, 1), w.join(t, 2)
	in := w.inbox(t, bob, air.InboxOptions{Resolver: w.resolver(t)})
	data := signedOffer(t, alice, bob.DID(), nil)
	document := func(text string) { w.registry.PutDocument(alice.AIRID(), []byte(text)) }
	for _, text := range []string{"", "[]", "{", `{"id":1,"id":2}`, "<html>", strings.Repeat(" ", 256<<10+1)} {
		document(text)
		o := in.Receive(t.Context(), data, true)
		require.ErrorIs(t, o.Err, air.ErrBadGateway, text)
		require.False(t, o.Final)
	}
	for status, want := range map[int]air.Code{404: air.ErrNotFound, 410: air.ErrNotFound, 301: air.ErrBadGateway, 500: air.ErrBadGateway, 204: air.ErrBadGateway} {
		w.registry.SetFailure(status)
		in := w.inbox(t, bob, air.InboxOptions{Resolver: w.resolver(t)}) // an unknown agent is cached
		require.ErrorIs(t, in.Receive(t.Context(), data, false).Err, want, status)
	}
	w.registry.SetFailure(0)
	// Readable documents are cached whatever their content, so each case needs a new cache.
	did := alice.DID()
	for _, text := range []string{
		`{}`, `{"id":1}`, `{"id":"` + bob.DID() + `"}`, `{"id":"` + did + `"}`,
		`{"id":"` + did + `","verificationMethod":{}}`,
		`{"id":"` + did + `","verificationMethod":[1,{"id":"other#key-1","publicKeyMultibase":"` + alice.PublicKey().String() + `"}]}`,
		`{"id":"` + did + `","verificationMethod":[{"id":"#key-1","publicKeyMultibase":"z6Mk"},{"id":"#key-1","publicKeyMultibase":"` + alice.PublicKey().String() + `"}]}`,
		`{"id":"` + did + `","verificationMethod":[{"id":"#key-1"}]}`,
	} {
		document(text)
		in := w.inbox(t, bob, air.InboxOptions{})
		o := in.Receive(t.Context(), data, false)
		require.ErrorIs(t, o.Err, air.ErrNotFound, text)
		require.True(t, o.Final)
	}
	document(`{"id":"` + did + `","verificationMethod":[{"id":"#key-1","publicKeyMultibase":"` + alice.PublicKey().String() + `"}]}`)
	require.Nil(t, w.inbox(t, bob, air.InboxOptions{}).Receive(t.Context(), data, true).Err)
}

// An inbox whose handler ignores the end of its context holds its lease until the handler returns, and not for longer.
func TestCloseReleasesLeaseAfterStuckHandler(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, nil)
		alice, bob := w.join(t, 1), w.join(t, 2)
		db := store.NewMemory()
		in, err := air.NewInbox(bob, air.HandlerFunc(func(context.Context, *air.Delivery) error {
			time.Sleep(time.Minute)
			return nil
		}), &air.InboxOptions{Resolver: w.resolver(t), Persistence: air.Persistence{Store: db}})
		require.NoError(t, err)
		go in.Receive(t.Context(), signedOffer(t, alice, bob.DID(), nil), false)
		time.Sleep(time.Second)
		require.NoError(t, in.Close())
		leases := func() (n int) {
			for e, err := range db.List(t.Context(), "") {
				require.NoError(t, err)
				if strings.Contains(e.Key, "/lease/") {
					n++
				}
			}
			return n
		}
		time.Sleep(50 * time.Second)
		require.Equal(t, 1, leases())
		time.Sleep(20 * time.Second)
		require.Zero(t, leases())
	})
}

// MaxPullAge accepts old pulled envelopes (AIR-037, AIR-D68).
func TestPullMaxAge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, nil)
		alice, bob := w.join(t, 1), w.join(t, 2)
		_, err := air.NewInbox(bob, air.HandlerFunc(func(context.Context, *air.Delivery) error { return nil }), &air.InboxOptions{Timing: air.Timing{MaxPullAge: time.Hour}})
		require.ErrorContains(t, err, "needs a Store")
		in := w.inbox(t, bob, air.InboxOptions{Timing: air.Timing{MaxPullAge: time.Hour}, Persistence: air.Persistence{Store: store.NewMemory()}})
		data := signedOffer(t, alice, bob.DID(), nil)
		time.Sleep(59 * time.Minute)
		require.ErrorIs(t, in.Receive(t.Context(), data, false).Err, air.ErrStaleTimestamp)
		require.Nil(t, in.Receive(t.Context(), data, true).Err)
		require.ErrorIs(t, in.Receive(t.Context(), data, true).Err, air.ErrReplay)
		time.Sleep(2 * time.Minute)
		require.ErrorIs(t, in.Receive(t.Context(), data, true).Err, air.ErrReplay) // the ledger precedes the clock
		old := signedOffer(t, alice, bob.DID(), func(d *air.Draft) { d.Time = time.Now().Add(-61 * time.Minute) })
		o := in.Receive(t.Context(), old, true)
		require.ErrorIs(t, o.Err, air.ErrStaleTimestamp)
		require.Equal(t, air.ClassHeld, o.Class)
		require.True(t, o.Final)
	})
}

// Expired offers are delivered and marked, or refused (AIR-048, AIR-D54).
func TestExpiredOffers(t *testing.T) {
	w := newWorld(t, nil)
	alice, bob := w.join(t, 1), w.join(t, 2)
	late := func(d *air.Draft) {
		o := offer(5)
		o.Expires = time.Now().Add(-time.Minute)
		d.Body = o
	}
	o := w.inbox(t, bob, air.InboxOptions{}).Receive(t.Context(), signedOffer(t, alice, bob.DID(), late), false)
	require.Nil(t, o.Err)
	require.True(t, o.Delivery.Expired)
	o = w.inbox(t, bob, air.InboxOptions{RejectExpired: true}).Receive(t.Context(), signedOffer(t, alice, bob.DID(), late), false)
	require.Equal(t, 400, o.Err.HTTPStatus())
}

func TestMiddlewareAndKeyPolicy(t *testing.T) {
	w := newWorld(t, nil)
	alice, bob, carol := w.join(t, 1), w.join(t, 2), w.join(t, 3)
	kv := store.NewMemory()
	var order []string
	note := func(name string) air.Middleware {
		return func(next air.Handler) air.Handler {
			return air.HandlerFunc(func(ctx context.Context, d *air.Delivery) error {
				order = append(order, name)
				return next.ServeAIR(ctx, d)
			})
		}
	}
	in := w.inbox(t, bob, air.InboxOptions{
		Auth:       air.Auth{KeyPolicy: air.PinKeys(kv)},
		Middleware: []air.Middleware{note("outer"), air.BlockSenders(func(did string) bool { return did == carol.DID() }), note("inner")},
	})
	require.Nil(t, in.Receive(t.Context(), signedOffer(t, alice, bob.DID(), nil), false).Err)
	require.Equal(t, []string{"outer", "inner"}, order)
	require.Nil(t, in.Receive(t.Context(), signedOffer(t, carol, bob.DID(), nil), false).Err)
	require.Equal(t, 1, in.count())

	rotated, err := alice.Rotate(make([]byte, 32))
	require.NoError(t, err)
	w.registry.Register(rotated, "")
	in = w.inbox(t, bob, air.InboxOptions{Auth: air.Auth{KeyPolicy: air.PinKeys(kv)}})
	o := in.Receive(t.Context(), signedOffer(t, rotated, bob.DID(), nil), false)
	require.ErrorIs(t, o.Err, air.ErrKeyRefused)
	require.Equal(t, 401, o.Err.HTTPStatus())
	require.NoError(t, air.UnpinKey(t.Context(), kv, alice.DID()))
	require.Nil(t, in.Receive(t.Context(), signedOffer(t, rotated, bob.DID(), nil), false).Err)
}

// broken is a store that fails on demand.
type broken struct {
	store.Store
	mu   sync.Mutex
	fail map[string]bool
}

func (b *broken) set(op string, fail bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.fail == nil {
		b.fail = map[string]bool{}
	}
	b.fail[op] = fail
}

var errDisk = errors.New("disk on fire at /var/lib")

func (b *broken) check(op string) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.fail[op] {
		return errDisk
	}
	return nil
}

func (b *broken) Create(ctx context.Context, key string, value []byte, ttl time.Duration) (store.Revision, error) {
	if err := b.check("create"); err != nil {
		return 0, err
	}
	return b.Store.Create(ctx, key, value, ttl)
}

func (b *broken) Update(ctx context.Context, key string, value []byte, rev store.Revision, ttl time.Duration) (store.Revision, error) {
	if err := b.check("update"); err != nil {
		return 0, err
	}
	return b.Store.Update(ctx, key, value, rev, ttl)
}

func (b *broken) Get(ctx context.Context, key string) (store.Entry, error) {
	if err := b.check("get"); err != nil {
		return store.Entry{}, err
	}
	return b.Store.Get(ctx, key)
}

func (b *broken) Append(ctx context.Context, stream, id string, value []byte, ttl time.Duration) (uint64, error) {
	if err := b.check("append"); err != nil {
		return 0, err
	}
	return b.Store.Append(ctx, stream, id, value, ttl)
}

func (b *broken) Read(ctx context.Context, stream string, after uint64, limit int) ([]store.Record, error) {
	if err := b.check("read"); err != nil {
		return nil, err
	}
	return b.Store.Read(ctx, stream, after, limit)
}

func (b *broken) Ack(ctx context.Context, stream string, seqs ...uint64) error {
	if err := b.check("ack"); err != nil {
		return err
	}
	return b.Store.Ack(ctx, stream, seqs...)
}

// A store that fails is 500 and nothing is lost: the envelope can come again.
func TestInboxStoreFails(t *testing.T) {
	synctest.Test(t, testInboxStoreFails)
}

func testInboxStoreFails(t *testing.T) {
	w := newWorld(t, nil)
	alice, bob := w.join(t, 1), w.join(t, 2)
	b := &broken{Store: store.NewMemory()}
	in := w.inbox(t, bob, air.InboxOptions{Persistence: air.Persistence{Store: b, SingleInstance: true}})
	synctest.Wait() // until there is a lease
	for _, op := range []string{"create", "get"} {
		data := signedOffer(t, alice, bob.DID(), nil)
		before := in.count()
		b.set(op, true)
		status, answer, _ := do(t, in, "POST", "/", string(data))
		require.Equal(t, http.StatusInternalServerError, status)
		require.JSONEq(t, `{"error":"Relay Error"}`, answer)
		b.set(op, false)
		status, _, _ = do(t, in, "POST", "/", string(data))
		require.Equal(t, http.StatusOK, status)
		require.Equal(t, before+1, in.count())
	}
	// It was handled, but that could not be written down: not acknowledged.
	b.set("update", true)
	data := signedOffer(t, alice, bob.DID(), nil)
	o := in.Receive(t.Context(), data, true)
	require.ErrorIs(t, o.Err, air.ErrRelay)
	require.False(t, o.Final)
	b.set("update", false)
	time.Sleep(2 * time.Minute) // the end of the changes in doubt
	o = in.Receive(t.Context(), data, true)
	require.ErrorIs(t, o.Err, air.ErrReplay)
	require.True(t, o.Final)
}

// Sealed bodies obey the same rules (AIR-D39, AIR-158).
func TestSealedBodies(t *testing.T) {
	w := newWorld(t, nil)
	alice, bob := w.join(t, 1), w.join(t, 2)
	seal := func(body string) []byte {
		return signedOffer(t, alice, bob.DID(), func(d *air.Draft) {
			box, err := air.Seal(bob.PublicKey(), air.Binding{ID: d.ID, From: d.From, To: d.To, ThreadID: d.ThreadID}, []byte(body))
			require.NoError(t, err)
			d.Body = &air.Raw{Type: "encrypted", JSON: box}
		})
	}
	const good = `{"type":"Offer","description":"d","price":{"amount_cents":1,"currency":"USD"},"expires_at":"2036-05-28T10:00:00.000Z"}`
	tests := []struct {
		body   string
		bodies []string
		want   air.Code
	}{
		{body: good},
		{body: `{"type":"text"}`, want: air.ErrUnsupportedBody},
		{body: `{"type":"text","list":[],"n":null}`, bodies: []string{"text"}},
		{body: `{"type":"text"}`, bodies: []string{air.AnyBodyType}},
		{body: `{"no":"type"}`, bodies: []string{"text"}, want: air.ErrUnsupportedBody},
		{body: `{"no":"type"}`, bodies: []string{air.AnyBodyType}},
		{body: `{"type":"encrypted"}`, bodies: []string{air.AnyBodyType}, want: air.ErrUnsupportedBody},
		{body: `{"type":"Offer"}`, bodies: []string{air.AnyBodyType}, want: air.ErrInvalidEnvelope},
		{body: `{"type":"Decline"}`, want: air.ErrInvalidEnvelope}, // without in_reply_to
	}
	for _, tt := range tests {
		in := w.inbox(t, bob, air.InboxOptions{BodyTypes: tt.bodies})
		data := seal(tt.body)
		o := in.Receive(t.Context(), data, false)
		if tt.want != "" {
			require.ErrorIs(t, o.Err, tt.want, tt.body)
			require.ErrorIs(t, in.Receive(t.Context(), data, false).Err, air.ErrReplay) // the triple is recorded
			continue
		}
		require.Nil(t, o.Err, tt.body)
		require.True(t, o.Delivery.Sealed)
		require.JSONEq(t, tt.body, string(o.Delivery.BodyJSON))
		if tt.body == good {
			require.Equal(t, air.ThreadOffered, o.Delivery.Thread.State)
		} else {
			require.Nil(t, o.Delivery.Thread)
		}
	}
}

// An envelope that can never become good, or was delivered before, is no warning, and repetitions do not fill the log (AIR-D73).
func TestRefusedEnvelopesAreNoWarnings(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		w := newWorld(t, nil)
		alice, bob := w.join(t, 1), w.join(t, 2)
		in := w.inbox(t, bob, air.InboxOptions{Logger: slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelInfo}))})
		broken := bytes.Replace(signedOffer(t, alice, bob.DID(), nil), []byte(`"signature":"z`), []byte(`"signature":"z2`), 1)
		for range 3 {
			require.Equal(t, air.ClassRefused, in.Receive(t.Context(), broken, true).Class)
		}
		require.Equal(t, 1, strings.Count(log.String(), "envelope not delivered"), log.String())
		require.Contains(t, log.String(), `level=INFO msg="air: envelope not delivered" class=refused`)
		data := signedOffer(t, alice, bob.DID(), nil)
		require.Nil(t, in.Receive(t.Context(), data, true).Err)
		require.Equal(t, air.ClassDone, in.Receive(t.Context(), data, true).Class)
		require.Contains(t, log.String(), `level=INFO msg="air: envelope not delivered" class=done`)
		require.Equal(t, air.ClassHeld, in.Receive(t.Context(), signedOffer(t, alice, bob.DID(), func(d *air.Draft) { d.Body = &air.Raw{Type: "note", JSON: []byte(`{"type":"note"}`)} }), true).Class)
		require.Contains(t, log.String(), `level=WARN msg="air: envelope not delivered" class=held`)
	})
}
