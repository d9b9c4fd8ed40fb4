// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package air_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/fivewire/fivewire/air"
	"github.com/fivewire/fivewire/internal/testkit"
	"github.com/fivewire/fivewire/store"
)

// A slow handler reports each call and returns the error that the test sends.
type slow struct {
	called chan *air.Delivery
	answer chan error
}

func (h *slow) ServeAIR(_ context.Context, d *air.Delivery) error {
	h.called <- d
	return <-h.answer
}

func (w *world) slowInbox(t *testing.T, id *air.Identity, kv store.Store) (*air.Inbox, *slow) {
	t.Helper()
	h := &slow{make(chan *air.Delivery, 10), make(chan error)}
	in, err := air.NewInbox(id, h, &air.InboxOptions{Resolver: w.resolver(t), Persistence: air.Persistence{Store: kv}, Timing: air.Timing{HandlerTimeout: 10 * time.Second}})
	require.NoError(t, err)
	t.Cleanup(func() { _ = in.Close() })
	return in, h
}

// A frozen store is that of a process that no longer runs once it is frozen.
type frozen struct {
	store.Store
	isFrozen atomic.Bool
}

var errFrozen = fmt.Errorf("the process is frozen: %w", store.ErrClosed)

func (f *frozen) check() error {
	if f.isFrozen.Load() {
		return errFrozen
	}
	return nil
}

func (f *frozen) Get(ctx context.Context, key string) (store.Entry, error) {
	if err := f.check(); err != nil {
		return store.Entry{}, err
	}
	return f.Store.Get(ctx, key)
}

func (f *frozen) Create(ctx context.Context, key string, value []byte, ttl time.Duration) (store.Revision, error) {
	if err := f.check(); err != nil {
		return 0, err
	}
	return f.Store.Create(ctx, key, value, ttl)
}

func (f *frozen) Update(ctx context.Context, key string, value []byte, rev store.Revision, ttl time.Duration) (store.Revision, error) {
	if err := f.check(); err != nil {
		return 0, err
	}
	return f.Store.Update(ctx, key, value, rev, ttl)
}

func (f *frozen) Delete(ctx context.Context, key string, rev store.Revision) error {
	if err := f.check(); err != nil {
		return err
	}
	return f.Store.Delete(ctx, key, rev)
}

var errHandler = errors.New("the handler failed")

// A copy is no final replay before the first copy has been handled: that one can still fail, and
// then the copy is delivered (AIR-085, AIR-D46, AIR-D58).
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
			short, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			o := in.Receive(short, data, false)
			require.Equal(t, air.ClassLater, o.Class)
			require.Equal(t, http.StatusInternalServerError, o.Err.HTTPStatus())
			wg.Go(func() { second = in.Receive(context.Background(), data, false) })
			synctest.Wait()
			h.answer <- errHandler
			wg.Wait()
			for _, o := range []*air.ReceiveResult{first, second} { // a copy has the outcome of the first one
				require.ErrorIs(t, o.Err, air.ErrRelay)
				require.Equal(t, air.ClassLater, o.Class)
			}
			wg.Go(func() { first = in.Receive(context.Background(), data, false) })
			<-h.called
			wg.Go(func() { second = in.Receive(context.Background(), twin, false) })
			synctest.Wait()
			h.answer <- nil
			wg.Wait()
			require.Nil(t, first.Err)
			require.Nil(t, second.Delivery)
			require.Equal(t, air.ClassDone, second.Class)
			for _, copied := range [][]byte{data, twin} {
				o := in.Receive(t.Context(), copied, false)
				require.Equal(t, http.StatusConflict, o.Err.HTTPStatus())
				require.True(t, o.Final)
			}
		})
	})
}

// A pushed copy of a refused move is refused again, because its sender would take a replay for a delivery.
func TestCopyOfARefusedMove(t *testing.T) {
	eachStore(t, func(t *testing.T, st func() store.Store) {
		w := newWorld(t, nil)
		alice, bob := w.join(t, 1), w.join(t, 2)
		in := w.inbox(t, bob, air.InboxOptions{Persistence: air.Persistence{Store: st()}})
		data := signedOffer(t, alice, bob.DID(), func(d *air.Draft) { d.Body = &air.Withdraw{WithdrawnID: air.NewID()} })
		first := in.Receive(t.Context(), data, false)
		require.Equal(t, air.ClassRefused, first.Class)
		second := in.Receive(t.Context(), data, false)
		require.Equal(t, first.Err.Code, second.Err.Code)
		require.NotEqual(t, air.ErrReplay, second.Err.Code)
	})
}

// That holds as long as a copy passes the clock, also without a Store and for a fresh form. A copy of a move that was
// handled is a replay, whatever followed it.
func TestLateCopyOfARefusedMove(t *testing.T) {
	eachStore(t, func(t *testing.T, st func() store.Store) {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, nil)
			alice, bob := w.join(t, 1), w.join(t, 2)
			in := w.inbox(t, bob, air.InboxOptions{Persistence: air.Persistence{Store: st()}})
			thread, offerID, withdrawID := air.NewID(), air.NewID(), air.NewID()
			form := func(id string, body air.Body) []byte {
				return signedOffer(t, alice, bob.DID(), func(d *air.Draft) { d.ID, d.ThreadID, d.Body = id, thread, body })
			}
			offered, withdrawn := offer(5), &air.Withdraw{WithdrawnID: air.NewID()}
			require.Nil(t, in.Receive(t.Context(), form(offerID, offered), false).Err)
			data := form(withdrawID, withdrawn)
			first := in.Receive(t.Context(), data, false)
			require.ErrorIs(t, first.Err, air.ErrUnknownMessage)
			for range 4 {
				time.Sleep(time.Minute)
				for _, copied := range [][]byte{data, form(withdrawID, withdrawn)} {
					o := in.Receive(t.Context(), copied, false)
					require.ErrorIs(t, o.Err, air.ErrUnknownMessage)
					require.Equal(t, air.ClassRefused, o.Class)
				}
				require.ErrorIs(t, in.Receive(t.Context(), form(offerID, offered), false).Err, air.ErrReplay)
			}
			require.Nil(t, in.Receive(t.Context(), form(air.NewID(), &air.Withdraw{WithdrawnID: offerID}), false).Err)
			require.ErrorIs(t, in.Receive(t.Context(), form(offerID, offered), false).Err, air.ErrReplay)
		})
	})
}

// A pushed move that the handler rejects does not count for its recipient, as for its sender, until a copy of it is answered as a
// replay.
func TestRejectedMoveDoesNotCount(t *testing.T) {
	eachStore(t, func(t *testing.T, st func() store.Store) {
		for _, isRepeated := range []bool{false, true} {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, nil)
				alice, bob := w.join(t, 1), w.join(t, 2)
				threads := newThreads(t, bob.DID())
				in := w.inbox(t, bob, air.InboxOptions{Persistence: air.Persistence{Store: st(), ThreadStore: threads}})
				thread := air.NewID()
				receive := func(id, replyTo string, body air.Body) *air.ReceiveResult {
					return in.Receive(t.Context(), signedOffer(t, alice, bob.DID(), func(d *air.Draft) {
						d.ID, d.ThreadID, d.InReplyTo, d.Body = id, thread, replyTo, body
					}), false)
				}
				in.fail(air.Reject(air.ErrUnauthorized, "not wanted"))
				require.ErrorIs(t, receive(air.NewID(), "", offer(5)).Err, air.ErrUnauthorized)
				in.fail(nil)
				require.Equal(t, air.ThreadOffered, receive(air.NewID(), "", offer(6)).Delivery.Thread.State)

				c := w.client(t, bob, air.ClientOptions{ThreadStore: threads})
				_, err := c.NewNegotiation(alice.DID(), thread, false).Counter(t.Context(), "", air.MinorUnits(7, "USD"), time.Now().Add(time.Hour))
				require.NoError(t, err)
				own, err := threads.Get(t.Context(), thread, alice.DID())
				require.NoError(t, err)
				in.fail(air.Reject(air.ErrUnauthorized, "not wanted"))
				id, counter := air.NewID(), &air.Counter{Price: air.MinorUnits(4, "USD"), Expires: time.Now().Add(time.Hour)}
				require.ErrorIs(t, receive(id, own.LastMessageID, counter).Err, air.ErrUnauthorized)
				in.fail(nil)
				time.Sleep(time.Minute)
				if isRepeated {
					require.ErrorIs(t, receive(id, own.LastMessageID, counter).Err, air.ErrReplay)
					require.Nil(t, receive(air.NewID(), "", &air.Withdraw{WithdrawnID: id}).Err)
					return
				}
				o := receive(air.NewID(), own.LastMessageID, &air.Accept{Price: air.MinorUnits(7, "USD")})
				require.Nil(t, o.Err)
				require.Equal(t, air.ThreadAccepted, o.Delivery.Thread.State)
				require.ErrorIs(t, receive(id, own.LastMessageID, counter).Err, air.ErrThreadClosed)
			})
		}
	})
}

// One that was answered with 202 counts for its sender, and so it does for its recipient.
func TestRejectedMoveOfQueuedPushCounts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, nil)
		alice, bob := w.join(t, 1), w.join(t, 2)
		threads := newThreads(t, bob.DID())
		in, err := air.NewInbox(bob, air.HandlerFunc(func(context.Context, *air.Delivery) error {
			time.Sleep(15 * time.Second)
			return air.Reject(air.ErrUnauthorized, "not wanted")
		}), &air.InboxOptions{Resolver: w.resolver(t), Persistence: air.Persistence{Store: store.NewMemory(), ThreadStore: threads}})
		require.NoError(t, err)
		defer in.Close()
		data := signedOffer(t, alice, bob.DID(), nil)
		o := in.Receive(t.Context(), data, false)
		require.Nil(t, o.Err)
		require.Equal(t, air.ClassLater, o.Class)
		time.Sleep(time.Minute)
		th, err := threads.Get(t.Context(), o.Envelope.ThreadID, alice.DID())
		require.NoError(t, err)
		require.Equal(t, air.ThreadOffered, th.State)
		require.ErrorIs(t, in.Receive(t.Context(), data, false).Err, air.ErrReplay)
	})
}

// A copy waits no longer than the time limit of a handler, even if the handler takes longer.
func TestCopyWaitIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, nil)
		alice, bob := w.join(t, 1), w.join(t, 2)
		in, h := w.slowInbox(t, bob, nil)
		data := signedOffer(t, alice, bob.DID(), nil)
		var wg sync.WaitGroup
		wg.Go(func() { in.Receive(context.Background(), data, false) })
		<-h.called
		start := time.Now()
		o := in.Receive(context.Background(), data, false)
		require.Equal(t, http.StatusInternalServerError, o.Err.HTTPStatus())
		require.False(t, o.Final)
		require.Equal(t, 15*time.Second, time.Since(start))
		h.answer <- nil
		wg.Wait()
	})
}

// Between processes too, an envelope whose id another process is using may still be the one to
// deliver. One with its nonce and another id is not, as long as the first one may be handled again.
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
		var wg sync.WaitGroup
		wg.Go(func() { one.Receive(context.Background(), data, true) })
		<-h.called
		for _, c := range [][]byte{data, sameID, sameNonce} {
			o := two.Receive(t.Context(), c, true)
			require.ErrorIs(t, o.Err, air.ErrReplay)
			require.Equal(t, air.ClassLater, o.Class)
		}
		h.answer <- errHandler
		wg.Wait()
		two.fail(errHandler)
		time.Sleep(5 * time.Second)
		require.Equal(t, air.ClassLater, two.Receive(t.Context(), sameNonce, true).Class)
		require.ErrorIs(t, two.Receive(t.Context(), sameID, true).Err, errHandler) // it reached the handler
		two.fail(nil)
		time.Sleep(time.Minute)
		require.NotNil(t, two.Receive(t.Context(), sameID, true).Delivery)
		for _, c := range [][]byte{data, sameID, sameNonce} {
			require.Equal(t, air.ClassDone, two.Receive(t.Context(), c, true).Class)
		}
	})
}

// A pushed copy waits for another process, too, and has the same answer (AIR-D80).
func TestCopyWaitsForAnotherProcess(t *testing.T) {
	for _, outcome := range []error{nil, errHandler, air.Reject(air.ErrConflict, "no")} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, nil)
			alice, bob := w.join(t, 1), w.join(t, 2)
			kv := store.NewMemory()
			one, h := w.slowInbox(t, bob, kv)
			two := w.inbox(t, bob, air.InboxOptions{Persistence: air.Persistence{Store: kv}})
			data := string(signedOffer(t, alice, bob.DID(), nil))
			var wg sync.WaitGroup
			var status [2]int
			for i, in := range []*air.Inbox{one, two.Inbox} {
				wg.Go(func() { status[i], _, _ = do(t, in, http.MethodPost, "/", data, "Content-Type", "application/json") })
				if i == 0 {
					<-h.called
				}
			}
			time.Sleep(3 * time.Second)
			h.answer <- outcome
			wg.Wait()
			require.Equal(t, status[0], status[1])
			require.Zero(t, two.count())
		})
	}
}

// A process that lost its claim does not undo the work of the new owner.
func TestLateFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, nil)
		alice, bob := w.join(t, 1), w.join(t, 2)
		kv := store.NewMemory()
		process := &frozen{Store: kv}
		late, h := w.slowInbox(t, bob, process)
		data := signedOffer(t, alice, bob.DID(), nil)
		var wg sync.WaitGroup
		var o *air.ReceiveResult
		wg.Go(func() { o = late.Receive(context.Background(), data, true) })
		<-h.called
		process.isFrozen.Store(true)
		time.Sleep(20 * time.Second)
		next := w.inbox(t, bob, air.InboxOptions{Persistence: air.Persistence{Store: kv}})
		require.True(t, next.Receive(t.Context(), data, true).Delivery.Redelivered)
		process.isFrozen.Store(false)
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
		threads, err := air.NewThreadStore(bob.DID(), &air.ThreadStoreOptions{Store: kv})
		require.NoError(t, err)
		th, err := threads.Get(t.Context(), e.ThreadID, alice.DID())
		require.NoError(t, err)
		require.Equal(t, air.ThreadOffered, th.State)
	})
}

// Deliveries are marked as repeated after a crash until one is handled, however often they fail,
// and no copy waits for a failed one.
func TestAgainIsNotForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, nil)
		alice, bob := w.join(t, 1), w.join(t, 2)
		kv := store.NewMemory()
		process := &frozen{Store: kv}
		dying, h := w.slowInbox(t, bob, process)
		data := signedOffer(t, alice, bob.DID(), nil)
		var wg sync.WaitGroup
		wg.Go(func() { dying.Receive(context.Background(), data, true) })
		<-h.called
		process.isFrozen.Store(true)
		time.Sleep(20 * time.Second)
		for _, fails := range []bool{true, true, false} {
			next := w.inbox(t, bob, air.InboxOptions{Persistence: air.Persistence{Store: kv}})
			if fails {
				next.fail(errHandler)
				require.False(t, next.Receive(t.Context(), data, true).Final)
				time.Sleep(time.Minute)
				continue
			}
			require.True(t, next.Receive(t.Context(), data, true).Delivery.Redelivered)
		}
		h.answer <- nil
		wg.Wait()
	})
}

// An envelope that was handled but not recorded is recorded once the store takes that.
func TestCommitFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, nil)
		alice, bob := w.join(t, 1), w.join(t, 2)
		b := &broken{Store: store.NewMemory()}
		opts := air.InboxOptions{Persistence: air.Persistence{Store: b, SingleInstance: true}, BodyTypes: []string{"note"}}
		in := w.inbox(t, bob, opts)
		data := signedOffer(t, alice, bob.DID(), func(d *air.Draft) { d.Body = &air.Raw{Type: "note", JSON: []byte(`{"type":"note"}`)} })
		in.fail(air.Reject(air.ErrUnsupportedBody, ""))
		synctest.Wait() // until there is a lease
		b.set("update", true)
		for range 2 {
			o := in.Receive(t.Context(), data, true)
			require.Error(t, o.Err)
			require.False(t, o.Final)
		}
		b.set("update", false)
		time.Sleep(time.Second)
		o := in.Receive(t.Context(), data, true)
		require.ErrorIs(t, o.Err, air.ErrReplay)
		require.True(t, o.Final)
		o = w.inbox(t, bob, opts).Receive(t.Context(), data, true)
		require.ErrorIs(t, o.Err, air.ErrReplay)
		require.True(t, o.Final)
		time.Sleep(2 * time.Minute) // the end of the changes in doubt
	})
}

// A caller that goes while its envelope is being claimed leaves no half of it.
func TestCallerGoes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, nil)
		alice, bob := w.join(t, 1), w.join(t, 2)
		ctx, cancel := context.WithCancel(t.Context())
		kv := &hooked{Store: store.NewMemory(), created: cancel}
		one := w.inbox(t, bob, air.InboxOptions{Persistence: air.Persistence{Store: kv}})
		one.fail(errHandler)
		data := signedOffer(t, alice, bob.DID(), nil)
		require.NotNil(t, one.Receive(ctx, data, false).Err)
		synctest.Wait()
		two := w.inbox(t, bob, air.InboxOptions{Persistence: air.Persistence{Store: kv}})
		o := two.Receive(t.Context(), data, false)
		require.Nil(t, o.Err)
		require.False(t, o.Delivery.Redelivered)
	})
}

// A hooked store reports every Create of a message or a pin.
type hooked struct {
	store.Store
	created func()
}

func (h *hooked) Create(ctx context.Context, key string, value []byte, ttl time.Duration) (store.Revision, error) {
	rev, err := h.Store.Create(ctx, key, value, ttl)
	if strings.Contains(key, "/i/") || strings.HasPrefix(key, "air/pin/") {
		h.created()
	}
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
	testkit.CheckInBubble(t, func(rt *rapid.T) {
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
		var inboxes []*air.Inbox
		defer func() {
			for _, in := range inboxes {
				_ = in.Close()
			}
		}()
		inboxes = make([]*air.Inbox, rapid.IntRange(1, 3).Draw(rt, "inboxes"))
		for i := range inboxes {
			inboxes[i] = start()
		}
		seen := make(map[string]bool)    // of handled messages
		forms := make(map[string]string) // the id of the message that is not done, by triple
		rt.Repeat(map[string]func(*rapid.T){
			"receive": func(rt *rapid.T) {
				pick := func(name string, n int) int { return rapid.IntRange(0, n-1).Draw(rt, name) }
				from := senders[pick("sender", 2)]
				d := &air.Draft{From: from.DID(), To: bob.DID(), ID: ids[pick("id", 3)], Nonce: nonces[pick("nonce", 3)], ThreadID: threads[pick("thread", 2)]}
				d.Time = time.Now().Add(-time.Duration(pick("age", 4)) * 100 * time.Second)
				isPulled := rapid.Bool().Draw(rt, "pulled")
				d.Body = &air.Raw{Type: "note", JSON: []byte(`{"type":"note"}`)}
				e, err := air.NewEnvelope(d, from.Signer(), &air.EnvelopeOptions{BodyTypes: []string{air.AnyBodyType}})
				require.NoError(rt, err)
				triple, id := d.From+" "+d.ThreadID+" "+d.Nonce, d.From+" "+d.ID
				isReplay := false
				for _, name := range []string{triple, id} {
					isReplay = isReplay || seen[name]
				}
				handled, answer = false, []error{nil, errHandler, air.Reject(air.ErrUnsupportedBody, "")}[pick("answer", 3)]
				o := inboxes[pick("inbox", len(inboxes))].Receive(context.Background(), e.Bytes(), isPulled)
				if owner, ok := forms[triple]; ok && owner != id && !isReplay {
					require.False(rt, handled)
					require.Equal(rt, air.ClassLater, o.Class) // until the other message with its nonce is done
					return
				}
				if isPulled && !handled && !isReplay {
					require.Equal(rt, air.ClassLater, o.Class) // too early after a failure
					forms[triple] = id
					return
				}
				require.Equal(rt, !isReplay, handled)
				if isReplay {
					require.Equal(rt, air.ClassDone, o.Class)
					require.ErrorIs(rt, o.Err, air.ErrReplay)
					require.Equal(rt, http.StatusConflict, o.Err.HTTPStatus())
					require.True(rt, o.Final)
					return
				}
				require.Equal(rt, answer == nil, o.Err == nil)
				if errors.Is(answer, errHandler) {
					require.False(rt, o.Final)
					forms[triple] = id
					return
				}
				require.True(rt, o.Final)
				seen[triple], seen[id] = true, true
				for form, owner := range forms {
					seen[form] = seen[form] || owner == id
				}
			},
			"time passes": func(rt *rapid.T) {
				time.Sleep(time.Duration(rapid.IntRange(1, 4).Draw(rt, "hundreds")) * 100 * time.Second)
			},
			"restart a process": func(rt *rapid.T) {
				i := rapid.IntRange(0, len(inboxes)-1).Draw(rt, "inbox")
				_ = inboxes[i].Close()
				inboxes[i] = start()
			},
		})
	})
}

// A flaky store fails as planned: before or after an operation.
type flaky struct {
	store.Store
	mu   sync.Mutex
	plan []int // 0: no failure, 1: before, 2: after
}

func (f *flaky) set(plan []int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.plan = plan
}

func (f *flaky) next() (fault int) {
	f.mu.Lock()
	defer f.mu.Unlock()
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
	err = f.do(func() (err error) { e, err = f.Store.Get(ctx, key); return err })
	return e, err
}

func (f *flaky) Create(ctx context.Context, key string, value []byte, ttl time.Duration) (rev store.Revision, err error) {
	err = f.do(func() (err error) { rev, err = f.Store.Create(ctx, key, value, ttl); return err })
	return rev, err
}

func (f *flaky) Update(ctx context.Context, key string, value []byte, old store.Revision, ttl time.Duration) (rev store.Revision, err error) {
	err = f.do(func() (err error) { rev, err = f.Store.Update(ctx, key, value, old, ttl); return err })
	return rev, err
}

func (f *flaky) Delete(ctx context.Context, key string, rev store.Revision) error {
	return f.do(func() error { return f.Store.Delete(ctx, key, rev) })
}

// Whatever fails in the store, no pulled envelope is acknowledged before it was handled. Each is
// handled eventually, and each possible repetition is marked (AIR-116, AIR-D63).
func TestInboxesWithFaults(t *testing.T) {
	w := newWorld(t, nil)
	alice, bob := w.join(t, 1), w.join(t, 2)
	testkit.CheckInBubble(t, func(rt *rapid.T) {
		kv := &flaky{Store: store.NewMemory()}
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
		defer func() {
			for _, in := range inboxes {
				_ = in.Close()
			}
		}()
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
				kv.set(rapid.SliceOfN(rapid.SampledFrom([]int{0, 0, 0, 1, 2}), 0, 8).Draw(rt, "plan"))
				answer = rapid.SampledFrom([]error{nil, errHandler}).Draw(rt, "answer")
				receive(rapid.IntRange(0, 1).Draw(rt, "inbox"), rapid.IntRange(0, 2).Draw(rt, "mail"))
				kv.set(nil)
			},
			"time passes": func(rt *rapid.T) { time.Sleep(30 * time.Second) },
			"restart a process": func(rt *rapid.T) {
				i := rapid.IntRange(0, 1).Draw(rt, "inbox")
				_ = inboxes[i].Close()
				inboxes[i] = start()
			},
		})
		answer = nil
		time.Sleep(10 * time.Minute)
		for k := range mail {
			for i := range inboxes {
				require.True(rt, receive(i, k))
			}
			require.NotZero(rt, handled[idOf(t, mail[k])])
		}
	})
}
