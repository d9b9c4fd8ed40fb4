// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package air_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/air"
	"github.com/fivewire/fivewire/internal/retry"
	"github.com/fivewire/fivewire/store"
)

// letters returns the envelope ids of the dead letters.
func letters(t *testing.T, in *air.Inbox) (ids []string) {
	t.Helper()
	for d, err := range in.DeadLetters(t.Context()) {
		require.NoError(t, err)
		ids = append(ids, d.EnvelopeID)
	}
	return ids
}

// Without a Store a dead letter is in memory, and its envelope stays at the relay (AIR-D76).
func TestDeadLetterWithoutStoreStaysAtRelay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, nil)
		alice, bob := w.join(t, 1), w.join(t, 2)
		in := w.inbox(t, bob, air.InboxOptions{})
		data := signedOffer(t, alice, bob.DID(), nil)
		push(t, w.relay, bob.AIRID(), data)
		time.Sleep(301 * time.Second)
		for range 2 {
			require.Zero(t, in.drain(t))
			require.Equal(t, []string{idOf(t, data)}, letters(t, in.Inbox))
			require.Len(t, pull(t, w.relay, "/inbox/"+bob.AIRID()+"/pull").Envelopes, 1)
		}
		for d, err := range in.DeadLetters(t.Context()) {
			require.NoError(t, err)
			o, err := in.Redeliver(t.Context(), d.ID)
			require.NoError(t, err)
			require.Equal(t, air.ClassDone, o.Class)
			_, err = in.Redeliver(t.Context(), d.ID)
			require.ErrorIs(t, err, store.ErrNotFound)
		}
		require.Zero(t, in.drain(t)) // done, so acknowledged
		require.Empty(t, pull(t, w.relay, "/inbox/"+bob.AIRID()+"/pull").Envelopes)
		require.Equal(t, 1, in.count())
	})
}

// Beyond the bound of a sender, mail is not acknowledged, and other senders are not affected (AIR-D76).
func TestDeadLettersAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, nil)
		alice, bob, carol := w.join(t, 1), w.join(t, 2), w.join(t, 3)
		in := w.inbox(t, bob, air.InboxOptions{Persistence: air.Persistence{Store: store.NewMemory(), SingleInstance: true}})
		old := func(d *air.Draft) { d.Time = time.Now().Add(-time.Hour) }
		for range 1000 {
			o := in.Receive(t.Context(), signedOffer(t, alice, bob.DID(), old), true)
			require.Equal(t, air.ClassHeld, o.Class)
			require.True(t, o.Final)
		}
		o := in.Receive(t.Context(), signedOffer(t, alice, bob.DID(), old), true)
		require.Equal(t, air.ClassLater, o.Class)
		require.False(t, o.Final)
		require.Equal(t, air.ClassHeld, in.Receive(t.Context(), signedOffer(t, carol, bob.DID(), old), true).Class)
		require.Len(t, letters(t, in.Inbox), 1001)

		// The Offer of a Withdraw may be one that has no room (AIR-D77).
		withdraw := signedOffer(t, alice, bob.DID(), func(d *air.Draft) { d.Body = &air.Withdraw{WithdrawnID: air.NewID()} })
		require.Equal(t, air.ClassLater, in.Receive(t.Context(), withdraw, true).Class)
		time.Sleep(4 * time.Minute)
		require.NoError(t, in.Discard(t.Context(), listed(t, in)[0].ID))
		require.Equal(t, air.ClassLater, in.Receive(t.Context(), withdraw, true).Class)
		time.Sleep(7 * time.Minute)
		require.Equal(t, air.ClassRefused, in.Receive(t.Context(), withdraw, true).Class)
		require.Equal(t, air.ClassHeld, in.Receive(t.Context(), signedOffer(t, alice, bob.DID(), old), true).Class)
		withdraw = signedOffer(t, alice, bob.DID(), func(d *air.Draft) { d.Body = &air.Withdraw{WithdrawnID: air.NewID()} })
		require.Equal(t, air.ClassLater, in.Receive(t.Context(), withdraw, true).Class)
		time.Sleep(11 * time.Minute)
		require.Equal(t, air.ClassLater, in.Receive(t.Context(), withdraw, true).Class)
	})
}

// The owner can discard a letter that the options of the inbox refuse.
func TestDiscardDespiteStricterOptions(t *testing.T) {
	w := newWorld(t, nil)
	alice, bob := w.join(t, 1), w.join(t, 2)
	kv := store.NewMemory()
	in := w.inbox(t, bob, air.InboxOptions{Persistence: air.Persistence{Store: kv}})
	data := signedOffer(t, alice, bob.DID(), func(d *air.Draft) { d.Body = &air.Raw{Type: "note", JSON: []byte(`{"type":"note"}`)} })
	require.Equal(t, air.ClassHeld, in.Receive(t.Context(), data, true).Class)
	require.NoError(t, in.Shutdown(t.Context()))
	in = w.inbox(t, bob, air.InboxOptions{Persistence: air.Persistence{Store: kv}, Limits: air.Limits{MaxMessage: len(data) - 1}})
	require.NoError(t, in.Discard(t.Context(), listed(t, in)[0].ID))
	require.Empty(t, listed(t, in))
}

// A Withdraw finds the dead letter of its Offer although a slow store has listed the letters without it (AIR-D77).
func TestDeadLettersChangeDuringList(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, nil)
		alice, bob := w.join(t, 1), w.join(t, 2)
		kv := &slowStore{Store: store.NewMemory(), signal: make(chan struct{})}
		in := w.inbox(t, bob, air.InboxOptions{Persistence: air.Persistence{Store: kv, SingleInstance: true}})
		id, threadID := air.NewID(), air.NewID()
		old := func(d *air.Draft) { d.Time = time.Now().Add(-time.Hour) }
		withdraw := signedOffer(t, alice, bob.DID(), func(d *air.Draft) {
			d.ThreadID, d.Body = threadID, &air.Withdraw{WithdrawnID: id}
		})
		require.Equal(t, air.ClassLater, in.Receive(t.Context(), withdraw, true).Class)
		time.Sleep(10 * time.Minute)
		kv.delay.Store(int64(3 * time.Second))
		first, second := make(chan air.Class, 1), make(chan air.Class, 1)
		go func() {
			first <- in.Receive(t.Context(), signedOffer(t, alice, bob.DID(), func(d *air.Draft) {
				old(d)
				d.ID, d.ThreadID = id, threadID
			}), true).Class
		}()
		time.Sleep(2 * time.Second)
		kv.isSlow.Store(true)
		go func() { second <- in.Receive(t.Context(), withdraw, true).Class }()
		synctest.Wait()
		kv.isSlow.Store(false)
		require.Equal(t, air.ClassHeld, <-first)
		kv.signal <- struct{}{}
		require.Equal(t, air.ClassHeld, <-second)
		require.Len(t, letters(t, in.Inbox), 2)
	})
}

// A dead letter that this version cannot read stays in the store and stops no other one.
func TestUnreadableLetterStopsNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, nil)
		alice, bob := w.join(t, 1), w.join(t, 2)
		kv := store.NewMemory()
		in := w.inbox(t, bob, air.InboxOptions{Persistence: air.Persistence{Store: kv, SingleInstance: true}})
		old := func(d *air.Draft) { d.Time = time.Now().Add(-time.Hour) }
		require.True(t, in.Receive(t.Context(), signedOffer(t, alice, bob.DID(), old), true).Final)
		key, value := damage(t, kv, "air/inbox/"+bob.DID()+"/dead/")
		time.Sleep(2 * time.Minute) // the index is read again
		data := signedOffer(t, alice, bob.DID(), old)
		require.True(t, in.Receive(t.Context(), data, true).Final)

		var ids []string
		var last error
		for d, err := range in.DeadLetters(t.Context()) {
			require.NoError(t, last, "the error comes last")
			if last = err; err == nil {
				ids = append(ids, d.EnvelopeID)
			}
		}
		require.Equal(t, []string{idOf(t, data)}, ids)
		require.ErrorContains(t, last, key)
		require.ErrorContains(t, last, "format 2, want format 1")
		e, err := kv.Get(t.Context(), key)
		require.NoError(t, err)
		require.Equal(t, value, e.Value)
	})
}

// A push that was answered with 202 is handled by another process after a crash, until it is a dead
// letter (AIR-D80).
func TestQueuedPushSurvivesCrash(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, nil)
		alice, bob := w.join(t, 1), w.join(t, 2)
		kv := store.NewMemory()
		process := &frozen{Store: kv}
		dying, h := w.slowInbox(t, bob, process)
		data := signedOffer(t, alice, bob.DID(), nil)
		var wg sync.WaitGroup
		var status int
		var answer string
		wg.Go(func() { status, answer, _ = do(t, dying, "POST", "/", string(data)) })
		<-h.called
		start := time.Now()
		wg.Wait()
		require.Equal(t, 10*time.Second, time.Since(start))
		require.Equal(t, http.StatusAccepted, status)
		require.JSONEq(t, fmt.Sprintf(`{"status":"queued","envelope_id":%q}`, idOf(t, data)), answer)
		process.isFrozen.Store(true)
		next := w.inbox(t, bob, air.InboxOptions{Persistence: air.Persistence{Store: kv}, Limits: air.Limits{MaxAttempts: 3}})
		next.fail(errHandler)
		time.Sleep(25 * time.Second)
		require.NotEmpty(t, next.codes())
		time.Sleep(time.Minute)
		require.Equal(t, []string{idOf(t, data)}, letters(t, next.Inbox))
		status, _, _ = do(t, next, "POST", "/", string(data)) // pushed copies do not wait
		require.Equal(t, http.StatusInternalServerError, status)
		h.answer <- nil // the frozen process
	})
}

// A queued push waits for the document of its sender, also if the process was down for longer than that wait
// (AIR-D80, AIR-D81).
func TestQueuedPushWaitsForSenderAfterDowntime(t *testing.T) {
	for _, isGone := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) { queuePushOfUnknownSender(t, isGone) })
	}
}

func queuePushOfUnknownSender(t *testing.T, isGone bool) {
	w := newWorld(t, nil)
	alice, bob := w.join(t, 1), w.join(t, 2)
	kv := store.NewMemory()
	process := &frozen{Store: kv}
	dying, h := w.slowInbox(t, bob, process)
	data := signedOffer(t, alice, bob.DID(), nil)
	go func() { <-h.called }()
	require.Equal(t, air.ClassLater, dying.Receive(t.Context(), data, false).Class)
	process.isFrozen.Store(true)
	time.Sleep(20 * time.Minute)
	w.registry.PutDocument(alice.AIRID(), []byte(`{"id":"`+alice.DID()+`"}`))
	next := w.inbox(t, bob, air.InboxOptions{Persistence: air.Persistence{Store: kv}})
	time.Sleep(time.Minute)
	require.Greater(t, len(next.codes()), 1) // it is received again
	if isGone {
		time.Sleep(20 * time.Minute)
		require.NotEmpty(t, next.codes())
		time.Sleep(time.Hour)
		require.Empty(t, next.codes()) // refused after the wait
		h.answer <- nil
		return
	}
	w.registry.Register(alice, w.endpoint(alice))
	time.Sleep(3 * time.Minute)
	require.Equal(t, 1, next.count())
	h.answer <- nil // the frozen process
}

// A queued push is handled again after the failure of its first attempt, and once (AIR-D80).
func TestQueuedPushIsRetried(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, nil)
		alice, bob := w.join(t, 1), w.join(t, 2)
		in, h := w.slowInbox(t, bob, store.NewMemory())
		data := signedOffer(t, alice, bob.DID(), nil)
		go func() {
			<-h.called
			time.Sleep(20 * time.Second)
			h.answer <- errHandler
		}()
		o := in.Receive(t.Context(), data, false)
		require.Equal(t, air.ClassLater, o.Class)
		require.Nil(t, o.Err)
		require.False(t, (<-h.called).FromRelay)
		require.False(t, o.Final)
		h.answer <- nil
		synctest.Wait()
		o = in.Receive(t.Context(), data, false)
		require.Equal(t, air.ClassDone, o.Class)
		require.ErrorIs(t, o.Err, air.ErrReplay)
		time.Sleep(time.Hour)
		require.Empty(t, h.called)
	})
}

// A slow push has one audit record and at most one outcome. The copy in the queue has none before its next attempt and once the
// message is handled, and a second push during the handler is no refusal.
func TestQueuedPushIsReportedOnce(t *testing.T) {
	rejection := air.Reject(air.ErrUnauthorized, "not wanted")
	for name, test := range map[string]struct {
		results  []error       // of the calls of the handler, which take 20 s
		repeat   time.Duration // after which the envelope is pushed a second time; zero for none
		records  []string
		outcomes []air.Class
	}{
		"handled":              {[]error{nil}, 0, []string{"push ok "}, nil},
		"rejected":             {[]error{rejection}, 0, []string{"push failed unauthorized"}, []air.Class{air.ClassRefused}},
		"copy during the call": {[]error{nil}, 15 * time.Second, []string{"push ok ", "push ok "}, nil},
		"failed once":          {[]error{errHandler, nil}, 0, []string{"push failed relay_error", "queue ok "}, []air.Class{air.ClassLater}},
		"copy after a failure": {
			[]error{errHandler, nil}, 22 * time.Second,
			[]string{"push failed relay_error", "push ok "}, []air.Class{air.ClassLater},
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, nil)
				alice, bob := w.join(t, 1), w.join(t, 2)
				var mu sync.Mutex
				var records []string
				var outcomes []air.Class
				var log bytes.Buffer
				calls := 0
				in, err := air.NewInbox(bob, air.HandlerFunc(func(context.Context, *air.Delivery) error {
					time.Sleep(20 * time.Second)
					mu.Lock()
					defer mu.Unlock()
					calls++
					return test.results[calls-1]
				}), &air.InboxOptions{
					Resolver: w.resolver(t), Persistence: air.Persistence{Store: store.NewMemory()},
					Logger: slog.New(slog.NewTextHandler(&log, nil)),
					Audit: func(_ context.Context, r *air.AuditRecord) {
						mu.Lock()
						defer mu.Unlock()
						records = append(records, r.Operation+" "+r.Outcome+" "+r.Code)
					},
					OnOutcome: func(_ context.Context, r *air.ReceiveResult) {
						mu.Lock()
						defer mu.Unlock()
						outcomes = append(outcomes, r.Class)
					},
				})
				require.NoError(t, err)
				data, start := signedOffer(t, alice, bob.DID(), nil), time.Now()
				require.Equal(t, air.ClassLater, in.Receive(t.Context(), data, false).Class)
				if test.repeat > 0 {
					time.Sleep(test.repeat - time.Since(start))
					in.Receive(t.Context(), data, false)
				}
				time.Sleep(time.Hour)
				require.NoError(t, in.Close())
				require.Equal(t, len(test.results), calls)
				require.ElementsMatch(t, test.records, records)
				require.ElementsMatch(t, test.outcomes, outcomes)
				require.NotContains(t, log.String(), "replay")
			})
		})
	}
}

// A slow handler of one thread stops neither other threads nor their order (AIR-D78).
func TestPollerHandlesThreadsConcurrently(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, nil)
		alice, bob := w.join(t, 1), w.join(t, 2)
		var mu sync.Mutex
		handled := map[string][]string{}
		running, peak := 0, 0
		slowThread := air.NewID()
		in, err := air.NewInbox(bob, air.HandlerFunc(func(_ context.Context, d *air.Delivery) error {
			mu.Lock()
			running++
			peak = max(peak, running)
			mu.Unlock()
			if d.Envelope.ThreadID == slowThread {
				time.Sleep(30 * time.Second)
			} else {
				time.Sleep(time.Second)
			}
			mu.Lock()
			defer mu.Unlock()
			running--
			handled[d.Envelope.ThreadID] = append(handled[d.Envelope.ThreadID], d.Envelope.ID)
			return nil
		}), &air.InboxOptions{Resolver: w.resolver(t), BodyTypes: []string{"note"}})
		require.NoError(t, err)
		want := map[string][]string{}
		note := func(thread string, age time.Duration) string {
			data := signedOffer(t, alice, bob.DID(), func(d *air.Draft) {
				d.ThreadID, d.Time = thread, time.Now().Add(-age)
				d.Body = &air.Raw{Type: "note", JSON: []byte(`{"type":"note"}`)}
			})
			push(t, w.relay, bob.AIRID(), data)
			return idOf(t, data)
		}
		second := note(slowThread, time.Second)
		want[slowThread] = []string{note(slowThread, 2*time.Second), second}
		for range 20 {
			thread := air.NewID()
			want[thread] = []string{note(thread, 0)}
		}
		p, err := air.NewPoller(in, w.endpoint(bob), &air.PollerOptions{HTTPClient: w.http()})
		require.NoError(t, err)
		start := time.Now()
		_, err = p.Drain(t.Context())
		require.NoError(t, err)
		require.Less(t, time.Since(start), 65*time.Second) // the slow thread takes a minute
		require.Equal(t, want, handled)
		require.Equal(t, 8, peak)
	})
}

// Without a Store, a copy on a later page of a drain that lasts longer than the clock window is not
// handled again, and neither is one after an acknowledgement that failed (AIR-D74).
func TestWindowOutlivesDrain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, nil)
		alice, bob := w.join(t, 1), w.join(t, 2)
		calls := 0
		in, err := air.NewInbox(bob, air.HandlerFunc(func(context.Context, *air.Delivery) error {
			calls++
			time.Sleep(400 * time.Second)
			return nil
		}), &air.InboxOptions{Resolver: w.resolver(t), Timing: air.Timing{HandlerTimeout: time.Hour}})
		require.NoError(t, err)
		data := string(signedOffer(t, alice, bob.DID(), nil))
		pages := 0
		hc := &http.Client{Transport: roundTripper(func(r *http.Request) (*http.Response, error) {
			status, body := 200, `{}`
			if strings.HasSuffix(r.URL.Path, "/pull") {
				pages++
				body = fmt.Sprintf(`{"envelopes":[%s],"cursor":"c%d","has_more":%t}`, data, pages, pages == 1)
			} else if pages == 2 {
				status = 500 // the last acknowledgement
			}
			return &http.Response{StatusCode: status, Body: io.NopCloser(strings.NewReader(body)), Request: r}, nil
		})}
		p, err := air.NewPoller(in, w.endpoint(bob), &air.PollerOptions{HTTPClient: hc})
		require.NoError(t, err)
		_, err = p.Drain(t.Context())
		require.Error(t, err)
		time.Sleep(299 * time.Second)
		_, err = p.Drain(t.Context())
		require.NoError(t, err)
		require.Equal(t, 3, pages)
		require.Equal(t, 1, calls)
	})
}

// A Withdraw in front of its Offer, by its time or its place, waits, and does not stop the Offer; nor does forged mail with
// the names of the thread (AIR-D77, AIR-D78, AIR-129).
func TestWaitingMailDoesNotStopItsThread(t *testing.T) {
	for _, name := range []string{"withdraw", "forged"} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, nil)
				alice, bob, mallory := w.join(t, 1), w.join(t, 2), w.join(t, 3)
				in := w.inbox(t, bob, air.InboxOptions{})
				thread, id := air.NewID(), air.NewID()
				first := signedOffer(t, alice, bob.DID(), func(d *air.Draft) {
					d.ThreadID, d.Body = thread, &air.Withdraw{WithdrawnID: id}
				})
				if name == "forged" {
					push(t, w.relay, bob.AIRID(), signedOffer(t, alice, bob.DID(), nil))
					require.Equal(t, 1, in.drain(t)) // the document of alice is cached
					time.Sleep(time.Second)
					e, err := air.NewEnvelope(&air.Draft{ID: air.NewID(), From: alice.DID(), To: bob.DID(), Time: time.Now(), ThreadID: thread, Body: offer(1)},
						mallory.Signer(), nil)
					require.NoError(t, err)
					first = e.Bytes()
				}
				push(t, w.relay, bob.AIRID(), first)
				push(t, w.relay, bob.AIRID(), signedOffer(t, alice, bob.DID(), func(d *air.Draft) { d.ID, d.ThreadID = id, thread }))
				require.Equal(t, 1, in.drain(t))
				if name == "withdraw" {
					require.Equal(t, 1, in.drain(t))
					require.Equal(t, air.ThreadWithdrawn, in.got[1].Thread.State)
				}
			})
		})
	}
}

// unanswered makes the first creation of an entry, and then fails for a time.
type unanswered struct {
	store.KV
	mu    sync.Mutex
	until time.Time
}

var errUnanswered = errors.New("no answer")

func (d *unanswered) fails() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return time.Now().Before(d.until)
}

func (d *unanswered) Get(ctx context.Context, key string) (store.Entry, error) {
	if d.fails() {
		return store.Entry{}, errUnanswered
	}
	return d.KV.Get(ctx, key)
}

func (d *unanswered) Create(ctx context.Context, key string, value []byte, ttl time.Duration) (store.Revision, error) {
	if d.fails() {
		return 0, errUnanswered
	}
	rev, err := d.KV.Create(ctx, key, value, ttl)
	if d.mu.Lock(); d.until.IsZero() {
		rev, err, d.until = 0, errUnanswered, time.Now().Add(12*time.Second)
	}
	d.mu.Unlock()
	return rev, err
}

// pushWithdraw pushes an Offer and, after a time, its Withdraw. Both are queued, and are handled in that order.
func pushWithdraw(t *testing.T, in *mailroom, alice, bob *air.Identity, wait time.Duration) {
	t.Helper()
	threadID := air.NewID()
	offer := signedOffer(t, alice, bob.DID(), func(d *air.Draft) { d.ThreadID = threadID })
	withdraw := signedOffer(t, alice, bob.DID(), func(d *air.Draft) {
		d.ThreadID, d.Body = threadID, &air.Withdraw{WithdrawnID: idOf(t, offer)}
	})
	for _, data := range [][]byte{offer, withdraw} {
		o := in.Receive(t.Context(), data, false)
		require.Equal(t, air.ClassLater, o.Class)
		require.Nil(t, o.Err, "not queued")
		time.Sleep(wait)
	}
	time.Sleep(time.Minute)
	require.Equal(t, 2, in.count())
	for i, data := range [][]byte{offer, withdraw} {
		require.Equal(t, idOf(t, data), in.got[i].Envelope.ID)
	}
}

// A pushed Withdraw waits for its Offer, which was accepted when the change of the thread was in doubt (AIR-D80).
func TestPushedWithdrawWaitsForOffer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, nil)
		alice, bob := w.join(t, 1), w.join(t, 2)
		threads, err := air.NewThreadStore(bob.DID(), &air.ThreadStoreOptions{Store: &unanswered{KV: store.NewMemory()}})
		require.NoError(t, err)
		in := w.inbox(t, bob, air.InboxOptions{Timing: air.Timing{PushWait: 5 * time.Second},
			Persistence: air.Persistence{Store: store.NewMemory(), ThreadStore: threads, SingleInstance: true}})
		pushWithdraw(t, in, alice, bob, 8*time.Second) // the thread is read again, and the Offer is not due
	})
}

// claimedLate is a store whose first creation of a claim takes 12 seconds, or fails before.
type claimedLate struct {
	store.Store
	isClaimed atomic.Bool
}

func (c *claimedLate) Create(ctx context.Context, key string, value []byte, ttl time.Duration) (store.Revision, error) {
	if strings.Contains(key, "/once/") && !c.isClaimed.Swap(true) {
		if err := retry.Sleep(ctx, 12*time.Second); err != nil {
			return 0, err
		}
	}
	return c.Store.Create(ctx, key, value, ttl)
}

// failsLate is a handler whose first call fails after 7 seconds.
func failsLate(next air.Handler) air.Handler {
	isCalled := atomic.Bool{}
	return air.HandlerFunc(func(ctx context.Context, d *air.Delivery) error {
		if isCalled.Swap(true) {
			return next.ServeAIR(ctx, d)
		}
		_ = retry.Sleep(ctx, 7*time.Second)
		return errHandler
	})
}

// A pushed Withdraw waits for its Offer, which is queued and which its thread does not have (AIR-D77): the claim of the
// Offer hangs, or its handler has failed.
func TestPushedWithdrawWaitsForQueuedOffer(t *testing.T) {
	tests := map[string]struct {
		opts air.InboxOptions
		wait time.Duration // between the two
	}{
		"claim":   {air.InboxOptions{Persistence: air.Persistence{Store: &claimedLate{Store: store.NewMemory()}}}, 0},
		"handler": {air.InboxOptions{Persistence: air.Persistence{Store: store.NewMemory()}, Middleware: []air.Middleware{failsLate}}, 3 * time.Second},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, nil)
				alice, bob := w.join(t, 1), w.join(t, 2)
				tt.opts.Timing.PushWait, tt.opts.Persistence.SingleInstance = 5*time.Second, true
				in := w.inbox(t, bob, tt.opts)
				pushWithdraw(t, in, alice, bob, tt.wait)
			})
		})
	}
}

// A pushed Withdraw of an Offer that was accepted with 202 and is a dead letter is refused at once. Its sender gets the
// refusal, so both sides agree, and the sender can withdraw the Offer after it is redelivered (AIR-D77).
func TestPushedWithdrawOfDeadLetter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, nil)
		alice, bob := w.join(t, 1), w.join(t, 2)
		w.registry.Register(bob, "https://direct.example/")
		threads := newThreads(t, bob.DID())
		in := w.inbox(t, bob, air.InboxOptions{Limits: air.Limits{MaxAttempts: 1}, Timing: air.Timing{PushWait: 5 * time.Second},
			Middleware:  []air.Middleware{failsLate},
			Persistence: air.Persistence{Store: store.NewMemory(), ThreadStore: threads, SingleInstance: true}})
		w.direct = in
		n := w.client(t, alice, air.ClientOptions{ThreadStore: newThreads(t, alice.DID())}).NewNegotiation(bob.DID(), "", false)
		r, err := n.Offer(t.Context(), "work", air.MinorUnits(5, "USD"), time.Now().Add(time.Hour))
		require.NoError(t, err)
		require.Equal(t, http.StatusAccepted, r.Status)
		time.Sleep(time.Minute)
		require.Equal(t, []string{r.Envelope.ID}, letters(t, in.Inbox))

		_, err = n.Withdraw(t.Context(), "")
		require.ErrorIs(t, err, air.ErrConflict)
		for d, err := range in.DeadLetters(t.Context()) {
			require.NoError(t, err)
			o, err := in.Redeliver(t.Context(), d.ID)
			require.NoError(t, err)
			require.Equal(t, air.ClassDone, o.Class)
		}
		requireState := func(want air.ThreadState) {
			own, err := n.Thread(t.Context())
			require.NoError(t, err)
			peer, err := threads.Get(t.Context(), n.ThreadID(), alice.DID())
			require.NoError(t, err)
			require.Equal(t, []air.ThreadState{want, want}, []air.ThreadState{own.State, peer.State})
		}
		requireState(air.ThreadOffered)
		_, err = n.Withdraw(t.Context(), "")
		require.NoError(t, err)
		requireState(air.ThreadWithdrawn)
	})
}

// Two forms of a Withdraw that come at different times behind a dead letter become dead letters, and leave the relay
// (AIR-D77, AIR-D79).
func TestFormsOfHeldMessageLeaveRelay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, nil)
		alice, bob := w.join(t, 1), w.join(t, 2)
		in := w.inbox(t, bob, air.InboxOptions{Limits: air.Limits{MaxAttempts: 1}, Timing: air.Timing{MaxPullAge: 24 * time.Hour},
			Persistence: air.Persistence{Store: store.NewMemory(), SingleInstance: true}})
		in.fail(errHandler)
		threadID, id := air.NewID(), air.NewID()
		offer := signedOffer(t, alice, bob.DID(), func(d *air.Draft) { d.ThreadID = threadID })
		push(t, w.relay, bob.AIRID(), offer)
		in.drain(t)
		require.Equal(t, []string{idOf(t, offer)}, letters(t, in.Inbox))
		for range 2 {
			push(t, w.relay, bob.AIRID(), signedOffer(t, alice, bob.DID(), func(d *air.Draft) {
				d.ThreadID, d.ID, d.Body = threadID, id, &air.Withdraw{WithdrawnID: idOf(t, offer)}
			}))
			for range 50 {
				in.drain(t)
				time.Sleep(6 * time.Second)
			}
		}
		for range 150 {
			in.drain(t)
			time.Sleep(6 * time.Second)
		}
		require.Empty(t, pull(t, w.relay, "/inbox/"+bob.AIRID()+"/pull").Envelopes)
	})
}
