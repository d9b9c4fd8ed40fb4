// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package air_test

import (
	"context"
	"errors"
	"net/http"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/fivewire/fivewire/air"
	"github.com/fivewire/fivewire/store"
)

// A slow handler tells when it is called and returns what it is told.
type slow struct {
	called chan *air.Delivery
	answer chan error
}

func (h *slow) ServeAIR(_ context.Context, d *air.Delivery) error {
	h.called <- d
	return <-h.answer
}

func (w *world) slowInbox(t *testing.T, id *air.Identity, kv store.KV) (*air.Inbox, *slow) {
	t.Helper()
	h := &slow{make(chan *air.Delivery, 10), make(chan error)}
	in, err := air.NewInbox(id, h, &air.InboxOptions{Resolver: w.resolver(t), Persistence: air.Persistence{Store: kv}, Timing: air.Timing{HandlerTimeout: 10 * time.Second}})
	require.NoError(t, err)
	return in, h
}

var errHandler = errors.New("the handler failed")

// Nobody is told that an envelope is a replay, for good, before its first copy has
// been handled: that can still fail, and then this was the one to deliver (AIR-085,
// AIR-D46, AIR-D58).
func TestCopyOfAFailure(t *testing.T) {
	eachStore(t, func(t *testing.T, st func() store.Store) {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, nil)
			alice, bob := w.join(t, 1), w.join(t, 2)
			in, h := w.slowInbox(t, bob, st())
			data := signedOffer(t, alice, bob.DID(), nil)
			id := idOf(t, data)
			twin := signedOffer(t, alice, bob.DID(), func(d *air.Draft) { d.ID = id })
			var first, second *air.ReceiveResult
			var wg sync.WaitGroup
			wg.Go(func() { first = in.Receive(context.Background(), data, false) })
			<-h.called
			for _, copied := range [][]byte{data, twin} {
				o := in.Receive(t.Context(), copied, true) // will be pulled again
				require.ErrorIs(t, o.Err, air.ErrReplay)
				require.False(t, o.Final)
			}
			gone, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			o := in.Receive(gone, data, false)
			require.ErrorIs(t, o.Err, air.ErrReplay)
			require.Equal(t, http.StatusInternalServerError, o.Err.HTTPStatus())
			wg.Go(func() { second = in.Receive(context.Background(), data, false) })
			synctest.Wait()
			h.answer <- errHandler
			<-h.called // the second copy takes over
			h.answer <- nil
			wg.Wait()
			require.ErrorIs(t, first.Err, air.ErrRelay)
			require.Nil(t, second.Err)
			for _, copied := range [][]byte{data, twin} {
				o := in.Receive(t.Context(), copied, false)
				require.Equal(t, http.StatusConflict, o.Err.HTTPStatus())
				require.True(t, o.Final)
			}
		})
	})
}

// A copy that came in time but waited until nothing of it is remembered any more is
// not handled for that reason: neither a second time, nor beside another copy that
// waited too (AIR-085, AIR-D43).
func TestCopyWaitsTooLong(t *testing.T) {
	eachStore(t, func(t *testing.T, st func() store.Store) {
		for answer, want := range map[error]air.Code{nil: air.ErrReplay, errHandler: air.ErrStaleTimestamp} {
			t.Run(string(want), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					w := newWorld(t, nil)
					alice, bob := w.join(t, 1), w.join(t, 2)
					in, h := w.slowInbox(t, bob, st())
					data := signedOffer(t, alice, bob.DID(), func(d *air.Draft) { d.Time = time.Now().Add(-299 * time.Second) })
					var wg sync.WaitGroup
					wg.Go(func() { in.Receive(context.Background(), data, false) })
					<-h.called
					var copies [2]*air.ReceiveResult
					for i := range copies {
						wg.Go(func() { copies[i] = in.Receive(context.Background(), data, false) })
					}
					synctest.Wait()
					time.Sleep(2 * time.Second)
					h.answer <- answer
					close(h.answer) // should there be more calls
					wg.Wait()
					require.Empty(t, h.called)
					for _, o := range copies {
						require.ErrorIs(t, o.Err, want)
						require.Equal(t, http.StatusConflict, o.Err.HTTPStatus())
						require.True(t, o.Final)
					}
				})
			})
		}
	})
}

// A copy waits no longer than a handler may take, although the handler takes longer
// and one copy after the other fails: no caller can be held for ever.
func TestCopyDoesNotWaitForEver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, nil)
		alice, bob := w.join(t, 1), w.join(t, 2)
		in, h := w.slowInbox(t, bob, nil)
		data := signedOffer(t, alice, bob.DID(), nil)
		var wg sync.WaitGroup
		wg.Go(func() { in.Receive(context.Background(), data, false) })
		<-h.called
		start := time.Now()
		ended := make(chan *air.ReceiveResult, 2)
		for range 2 {
			wg.Go(func() { ended <- in.Receive(context.Background(), data, false) })
		}
		synctest.Wait()
		time.Sleep(8 * time.Second)
		h.answer <- errHandler
		<-h.called // one of them takes over, and the handler hangs
		o := <-ended
		require.Equal(t, http.StatusInternalServerError, o.Err.HTTPStatus())
		require.False(t, o.Final)
		require.Equal(t, 15*time.Second, time.Since(start))
		h.answer <- nil
		wg.Wait()
		require.Nil(t, (<-ended).Err)
	})
}

// The same between processes: an envelope whose id another one is just using may
// still be the one to deliver.
func TestCopyInAnotherProcess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, nil)
		alice, bob := w.join(t, 1), w.join(t, 2)
		kv := store.NewMemory()
		one, h := w.slowInbox(t, bob, kv)
		two := w.inbox(t, bob, air.InboxOptions{Persistence: air.Persistence{Store: kv}})
		thread, nonce := air.NewID(), air.NewNonce()
		data := signedOffer(t, alice, bob.DID(), func(d *air.Draft) { d.ThreadID, d.Nonce = thread, nonce })
		id := idOf(t, data)
		sameID := signedOffer(t, alice, bob.DID(), func(d *air.Draft) { d.ID = id })
		sameNonce := signedOffer(t, alice, bob.DID(), func(d *air.Draft) { d.ThreadID, d.Nonce = thread, nonce })
		for _, copied := range [][]byte{sameID, sameNonce} {
			var wg sync.WaitGroup
			wg.Go(func() { one.Receive(context.Background(), data, true) })
			<-h.called
			for _, c := range [][]byte{data, sameID, sameNonce} {
				require.False(t, two.Receive(t.Context(), c, true).Final)
				require.Equal(t, 500, two.Receive(t.Context(), c, false).Err.HTTPStatus())
			}
			h.answer <- errHandler
			wg.Wait()
			two.fail(errHandler)
			require.ErrorIs(t, two.Receive(t.Context(), copied, true).Err, errHandler) // it came to the handler
		}
	})
}

// A process that comes back after its claim has been taken over undoes nothing of
// what the other one did.
func TestLateFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, nil)
		alice, bob := w.join(t, 1), w.join(t, 2)
		kv := store.NewMemory()
		late, h := w.slowInbox(t, bob, kv)
		data := signedOffer(t, alice, bob.DID(), nil)
		var wg sync.WaitGroup
		var o *air.ReceiveResult
		wg.Go(func() { o = late.Receive(context.Background(), data, true) })
		<-h.called
		time.Sleep(20 * time.Second)
		next := w.inbox(t, bob, air.InboxOptions{Persistence: air.Persistence{Store: kv}})
		require.True(t, next.Receive(t.Context(), data, true).Delivery.Redelivered)
		h.answer <- errHandler
		wg.Wait()
		require.ErrorIs(t, o.Err, errHandler)
		require.False(t, o.Final)
		third := w.inbox(t, bob, air.InboxOptions{Persistence: air.Persistence{Store: kv}})
		for _, in := range []*air.Inbox{late, next.Inbox, third.Inbox} {
			o := in.Receive(t.Context(), data, true)
			require.ErrorIs(t, o.Err, air.ErrReplay)
			require.True(t, o.Final)
		}
		e, err := air.DecodeEnvelope(data, nil)
		require.NoError(t, err)
		th, err := third.ThreadStore().Get(t.Context(), e.ThreadID, alice.DID())
		require.NoError(t, err)
		require.Equal(t, air.ThreadOffered, th.State)
	})
}

// That a process died over an envelope is told until somebody has handled it, however
// often that fails, and nobody waits for those who failed.
func TestAgainIsNotForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, nil)
		alice, bob := w.join(t, 1), w.join(t, 2)
		kv := store.NewMemory()
		dying, h := w.slowInbox(t, bob, kv)
		data := signedOffer(t, alice, bob.DID(), nil)
		var wg sync.WaitGroup
		wg.Go(func() { dying.Receive(context.Background(), data, true) })
		<-h.called
		time.Sleep(20 * time.Second)
		for _, fails := range []bool{true, true, false} {
			next := w.inbox(t, bob, air.InboxOptions{Persistence: air.Persistence{Store: kv}})
			if fails {
				next.fail(errHandler)
				require.False(t, next.Receive(t.Context(), data, true).Final)
				continue
			}
			require.True(t, next.Receive(t.Context(), data, true).Delivery.Redelivered)
		}
		h.answer <- nil
		wg.Wait()
	})
}

// What was handled but could not be written down is written down with the next copy.
func TestCommitFails(t *testing.T) {
	w := newWorld(t, nil)
	alice, bob := w.join(t, 1), w.join(t, 2)
	b := &broken{Store: store.NewMemory()}
	in := w.inbox(t, bob, air.InboxOptions{Persistence: air.Persistence{Store: b}, BodyTypes: []string{"note"}})
	data := signedOffer(t, alice, bob.DID(), func(d *air.Draft) { d.Body = &air.Raw{Type: "note", JSON: []byte(`{"type":"note"}`)} })
	in.fail(air.ErrUnsupportedBody)
	b.set("update", true)
	for range 2 {
		o := in.Receive(t.Context(), data, true)
		require.Error(t, o.Err)
		require.False(t, o.Final)
	}
	b.set("update", false)
	o := in.Receive(t.Context(), data, true)
	require.ErrorIs(t, o.Err, air.ErrReplay)
	require.True(t, o.Final)
	o = w.inbox(t, bob, air.InboxOptions{Persistence: air.Persistence{Store: b}, BodyTypes: []string{"note"}}).Receive(t.Context(), data, true)
	require.ErrorIs(t, o.Err, air.ErrReplay)
	require.True(t, o.Final)
}

// A caller that goes while its envelope is being claimed leaves no half of it.
func TestCallerGoes(t *testing.T) {
	w := newWorld(t, nil)
	alice, bob := w.join(t, 1), w.join(t, 2)
	ctx, cancel := context.WithCancel(t.Context())
	kv := &hooked{KV: store.NewMemory(), created: cancel}
	one := w.inbox(t, bob, air.InboxOptions{Persistence: air.Persistence{Store: kv}})
	one.fail(errHandler)
	data := signedOffer(t, alice, bob.DID(), nil)
	require.NotNil(t, one.Receive(ctx, data, false).Err)
	two := w.inbox(t, bob, air.InboxOptions{Persistence: air.Persistence{Store: kv}})
	o := two.Receive(t.Context(), data, false)
	require.Nil(t, o.Err)
	require.False(t, o.Delivery.Redelivered)
}

// A hooked store tells of every Create.
type hooked struct {
	store.KV
	created func()
}

func (h *hooked) Create(ctx context.Context, key string, value []byte, ttl time.Duration) (store.Revision, error) {
	rev, err := h.KV.Create(ctx, key, value, ttl)
	h.created()
	return rev, err
}

// However many processes share a store, and whatever they saw before, each of them
// takes an envelope for a replay if and only if one with its triple or its id was
// handled; nothing else is remembered (AIR-085, AIR-113..116, AIR-D43, AIR-D58).
func TestInboxesAgainstModel(t *testing.T) {
	w := newWorld(t, nil)
	bob := w.join(t, 2)
	var ids, nonces, threads []string
	for range 3 {
		ids, nonces = append(ids, air.NewID()), append(nonces, air.NewNonce())
	}
	for range 2 {
		threads = append(threads, air.NewID())
	}
	senders := []*air.Identity{w.join(t, 3), w.join(t, 4)}
	checkInVirtualTime(t, func(rt *rapid.T) {
		kv := store.NewMemory()
		resolver, err := air.NewResolver(&air.ResolverOptions{HTTPClient: w.http()})
		require.NoError(rt, err)
		var answer error
		var handled bool
		start := func() *air.Inbox {
			in, err := air.NewInbox(bob, air.HandlerFunc(func(_ context.Context, d *air.Delivery) error {
				require.False(rt, d.Redelivered)
				handled = true
				return answer
			}), &air.InboxOptions{Resolver: resolver, Persistence: air.Persistence{Store: kv}, BodyTypes: []string{air.AnyBodyType}})
			require.NoError(rt, err)
			return in
		}
		inboxes := make([]*air.Inbox, rapid.IntRange(1, 3).Draw(rt, "inboxes"))
		for i := range inboxes {
			inboxes[i] = start()
		}
		seen := make(map[string]time.Time) // what is remembered until then
		rt.Repeat(map[string]func(*rapid.T){
			"receive": func(rt *rapid.T) {
				pick := func(name string, n int) int { return rapid.IntRange(0, n-1).Draw(rt, name) }
				from := senders[pick("sender", 2)]
				d := &air.Draft{From: from.DID(), To: bob.DID(), ID: ids[pick("id", 3)], Nonce: nonces[pick("nonce", 3)], ThreadID: threads[pick("thread", 2)]}
				d.Time = time.Now().Add(-time.Duration(pick("age", 4)) * 100 * time.Second)
				d.Body = &air.Raw{Type: "note", JSON: []byte(`{"type":"note"}`)}
				e, err := air.NewEnvelope(d, from.Signer(), &air.EnvelopeOptions{BodyTypes: []string{air.AnyBodyType}})
				require.NoError(rt, err)
				triple, id := d.From+" "+d.ThreadID+" "+d.Nonce, d.From+" "+d.ID
				known := false
				for _, name := range []string{triple, id} {
					until, ok := seen[name]
					known = known || ok && !time.Now().After(until)
				}
				handled, answer = false, []error{nil, errHandler, air.ErrUnsupportedBody}[pick("answer", 3)]
				o := inboxes[pick("inbox", len(inboxes))].Receive(context.Background(), e.Bytes(), rapid.Bool().Draw(rt, "pulled"))
				require.Equal(rt, !known, handled)
				if known {
					require.ErrorIs(rt, o.Err, air.ErrReplay)
					require.Equal(rt, http.StatusConflict, o.Err.HTTPStatus())
					require.True(rt, o.Final)
					return
				}
				require.Equal(rt, answer == nil, o.Err == nil)
				if errors.Is(answer, errHandler) {
					require.False(rt, o.Final)
					return
				}
				require.True(rt, o.Final)
				seen[triple], seen[id] = d.Time.Add(300*time.Second), d.Time.Add(300*time.Second)
			},
			"time passes": func(rt *rapid.T) {
				time.Sleep(time.Duration(rapid.IntRange(1, 4).Draw(rt, "hundreds")) * 100 * time.Second)
			},
			"a process is started anew": func(rt *rapid.T) {
				inboxes[rapid.IntRange(0, len(inboxes)-1).Draw(rt, "inbox")] = start()
			},
		})
	})
}

// A flaky store fails as its plan says: before or after it has done what it was
// asked.
type flaky struct {
	store.KV
	plan []int // 0: no failure, 1: before, 2: after
}

func (f *flaky) next() (fault int) {
	if len(f.plan) > 0 {
		fault, f.plan = f.plan[0], f.plan[1:]
	}
	return fault
}

// do does an operation, as planned.
func (f *flaky) do(op func() error) error {
	fault := f.next()
	if fault == 1 {
		return errDisk
	}
	err := op()
	if fault == 2 {
		return errDisk
	}
	return err
}

func (f *flaky) Get(ctx context.Context, key string) (e store.Entry, err error) {
	err = f.do(func() (err error) { e, err = f.KV.Get(ctx, key); return err })
	return e, err
}

func (f *flaky) Create(ctx context.Context, key string, value []byte, ttl time.Duration) (rev store.Revision, err error) {
	err = f.do(func() (err error) { rev, err = f.KV.Create(ctx, key, value, ttl); return err })
	return rev, err
}

func (f *flaky) Update(ctx context.Context, key string, value []byte, old store.Revision, ttl time.Duration) (rev store.Revision, err error) {
	err = f.do(func() (err error) { rev, err = f.KV.Update(ctx, key, value, old, ttl); return err })
	return rev, err
}

func (f *flaky) Delete(ctx context.Context, key string, rev store.Revision) error {
	return f.do(func() error { return f.KV.Delete(ctx, key, rev) })
}

// Whatever fails in the store, and wherever, no pulled envelope is given up before it
// was handled, each is handled in the end, and one that may have been before says so
// (AIR-116, AIR-D63).
func TestInboxesWithFaults(t *testing.T) {
	w := newWorld(t, nil)
	alice, bob := w.join(t, 1), w.join(t, 2)
	checkInVirtualTime(t, func(rt *rapid.T) {
		kv := &flaky{KV: store.NewMemory()}
		resolver, err := air.NewResolver(&air.ResolverOptions{HTTPClient: w.http()})
		require.NoError(rt, err)
		var answer error
		handled := make(map[string]int)
		start := func() *air.Inbox {
			in, err := air.NewInbox(bob, air.HandlerFunc(func(_ context.Context, d *air.Delivery) error {
				if handled[d.Envelope.ID] > 0 {
					require.True(rt, d.Redelivered)
				}
				if answer == nil {
					handled[d.Envelope.ID]++
				}
				return answer
			}), &air.InboxOptions{Resolver: resolver, Persistence: air.Persistence{Store: kv}, Timing: air.Timing{MaxPullAge: 24 * time.Hour}})
			require.NoError(rt, err)
			return in
		}
		inboxes := []*air.Inbox{start(), start()}
		var mail [][]byte
		for range 3 {
			d := &air.Draft{ID: air.NewID(), From: alice.DID(), To: bob.DID(), Time: time.Now(), ThreadID: air.NewID(), Nonce: air.NewNonce(), Body: offer(5)}
			e, err := air.NewEnvelope(d, alice.Signer(), nil)
			require.NoError(rt, err)
			mail = append(mail, e.Bytes())
		}
		receive := func(i, k int) bool {
			o := inboxes[i].Receive(context.Background(), mail[k], true)
			if o.Final {
				require.NotZero(rt, handled[idOf(t, mail[k])])
			}
			return o.Final
		}
		rt.Repeat(map[string]func(*rapid.T){
			"receive": func(rt *rapid.T) {
				kv.plan = rapid.SliceOfN(rapid.SampledFrom([]int{0, 0, 0, 1, 2}), 0, 8).Draw(rt, "plan")
				answer = rapid.SampledFrom([]error{nil, errHandler}).Draw(rt, "answer")
				receive(rapid.IntRange(0, 1).Draw(rt, "inbox"), rapid.IntRange(0, 2).Draw(rt, "mail"))
				kv.plan = nil
			},
			"time passes": func(rt *rapid.T) { time.Sleep(30 * time.Second) },
			"a process is started anew": func(rt *rapid.T) {
				inboxes[rapid.IntRange(0, 1).Draw(rt, "inbox")] = start()
			},
		})
		answer = nil
		time.Sleep(2 * time.Minute)
		for k := range mail {
			for i := range inboxes {
				require.True(rt, receive(i, k))
			}
			require.NotZero(rt, handled[idOf(t, mail[k])])
		}
	})
}
