// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package air_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
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
	"github.com/fivewire/fivewire/air/airtest"
	"github.com/fivewire/fivewire/air/relay"
	"github.com/fivewire/fivewire/internal/kit"
	"github.com/fivewire/fivewire/internal/race"
	"github.com/fivewire/fivewire/internal/retry"
	"github.com/fivewire/fivewire/store"
)

// A runner is an agent that runs, and its deliveries.
type runner struct {
	*air.Agent
	run chan error // the result of Run

	mu  sync.Mutex
	got []*air.Delivery
}

func (r *runner) list() []*air.Delivery {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.got
}

// agent starts an agent whose handler calls f, if that is not nil.
func (w *world) agent(t *testing.T, id *air.Identity, opts air.AgentOptions, f func(r *runner, d *air.Delivery) error) *runner {
	t.Helper()
	if opts.Resolver == nil {
		opts.Resolver = w.resolver(t)
	}
	opts.HTTPClient = w.http()
	r := &runner{run: make(chan error, 1)}
	var err error
	r.Agent, err = air.NewAgent(id, air.HandlerFunc(func(_ context.Context, d *air.Delivery) error {
		r.mu.Lock()
		r.got = append(r.got, d)
		r.mu.Unlock()
		if f != nil {
			return f(r, d)
		}
		return nil
	}), &opts)
	require.NoError(t, err)
	t.Cleanup(func() { _ = r.Close() })
	go func() { r.run <- r.Run(context.Background()) }()
	return r
}

// Two agents negotiate over a relay that they find in their documents, and a shutdown ends Run and
// everything else.
func TestAgentsNegotiate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newSigningWorld(t, "")
		alice := w.agent(t, w.join(t, 1), air.AgentOptions{}, nil)
		bobID := w.join(t, 2)
		bob := w.agent(t, bobID, air.AgentOptions{Persistence: air.Persistence{Store: store.NewMemory()}}, func(r *runner, d *air.Delivery) error {
			_, err := r.NewNegotiation(d.Envelope.From, d.Envelope.ThreadID, true).Accept(context.Background())
			return err
		})
		receipt, err := alice.Send(t.Context(), bobID.DID(), offer(5), &air.SendOptions{Seal: true})
		require.NoError(t, err)
		require.Equal(t, 202, receipt.Status)
		time.Sleep(20 * time.Second)
		require.Len(t, bob.list(), 1)
		require.True(t, bob.list()[0].Sealed)
		require.Len(t, alice.list(), 1)
		require.Equal(t, air.ThreadAccepted, alice.list()[0].Thread.State)
		for _, a := range []*runner{alice, bob} {
			require.NoError(t, a.Shutdown(t.Context()))
			require.ErrorIs(t, <-a.run, air.ErrClosed)
			require.ErrorIs(t, a.Run(t.Context()), air.ErrClosed)
			_, err = a.Send(t.Context(), bobID.DID(), offer(5), nil)
			require.ErrorIs(t, err, air.ErrClosed)
			require.ErrorIs(t, a.Inbox.Ready(), air.ErrClosed)
		}
	})
}

// A shutdown lets a handler of pulled mail end, acknowledges the mail, and no longer fetches.
func TestAgentShutdownWaitsForHandler(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, nil)
		alice := w.join(t, 1)
		bobID := w.join(t, 2)
		bob := w.agent(t, bobID, air.AgentOptions{}, func(*runner, *air.Delivery) error {
			time.Sleep(3 * time.Second)
			return nil
		})
		push(t, w.relay, bobID.AIRID(), signedOffer(t, alice, bobID.DID(), nil))
		for len(bob.list()) == 0 {
			time.Sleep(100 * time.Millisecond)
		}
		require.NoError(t, bob.Shutdown(t.Context()))
		require.Empty(t, pull(t, w.relay, "/inbox/"+bobID.AIRID()+"/pull").Envelopes, "mail is handed out again")
		require.ErrorIs(t, <-bob.run, air.ErrClosed)

		late := w.agent(t, bobID, air.AgentOptions{}, func(*runner, *air.Delivery) error {
			time.Sleep(time.Minute)
			return nil
		})
		push(t, w.relay, bobID.AIRID(), signedOffer(t, alice, bobID.DID(), nil))
		for len(late.list()) == 0 {
			time.Sleep(100 * time.Millisecond)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		before := time.Now()
		require.ErrorIs(t, late.Shutdown(ctx), context.DeadlineExceeded)
		require.Less(t, time.Since(before), 10*time.Second)
		time.Sleep(time.Minute)
	})
}

// A key is replaced while the agent and its relay run: Run continues, mail sealed to the old key is opened,
// and the peers verify the new signature.
func TestAgentRotatesKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newSigningWorld(t, "")
		aliceID, bobID := w.join(t, 1), w.join(t, 2)
		alice := w.agent(t, aliceID, air.AgentOptions{}, nil)
		var published *air.Identity
		publish := errors.New("the registry is closed")
		bob := w.agent(t, bobID, air.AgentOptions{PublishKey: func(_ context.Context, next *air.Identity) error {
			if publish != nil {
				return publish
			}
			published = next
			w.registry.Register(next, w.endpoint(next))
			return nil
		}}, nil)
		_, err := alice.Send(t.Context(), bobID.DID(), offer(1), &air.SendOptions{Seal: true})
		require.NoError(t, err)
		time.Sleep(10 * time.Second)
		require.Len(t, bob.list(), 1)

		seed := make([]byte, 32)
		_, _ = rand.Read(seed)
		require.ErrorIs(t, bob.Rotate(t.Context(), seed), publish)
		require.Error(t, bob.Rotate(t.Context(), seed[:31]))
		publish = nil
		require.NoError(t, bob.Rotate(t.Context(), seed))
		require.NotEqual(t, bobID.PublicKey().String(), published.PublicKey().String())
		for _, a := range []struct {
			from, to *runner
			did      string
		}{{alice, bob, bobID.DID()}, {bob, alice, aliceID.DID()}} { // alice seals to the old key
			before := len(a.to.list())
			_, err = a.from.Send(t.Context(), a.did, offer(2), &air.SendOptions{Seal: true})
			require.NoError(t, err)
			time.Sleep(15 * time.Second)
			require.Len(t, a.to.list(), before+1)
		}
		time.Sleep(2 * time.Minute)
		_, err = alice.Send(t.Context(), bobID.DID(), offer(3), &air.SendOptions{Seal: true})
		require.NoError(t, err)
		time.Sleep(10 * time.Second)
		require.Len(t, bob.list(), 3)
		select {
		case err := <-bob.run:
			t.Fatal(err)
		default:
		}
	})
}

// A push meets a rotation of its sender: the recipient has looked up the old key less than five seconds ago, the registry has
// the new key before the sender uses it, or the first attempt was signed with the old key.
func TestPushDuringRotation(t *testing.T) {
	for _, c := range []struct{ rotate, send time.Duration }{
		{time.Second, 2 * time.Second}, // after the message that makes the recipient look up the key
		{2 * time.Minute, 2*time.Minute + time.Second},
		{2 * time.Minute, 2*time.Minute - time.Second},
	} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, nil)
			aliceID, bobID := w.join(t, 1), w.join(t, 2)
			bob := w.agent(t, bobID, air.AgentOptions{Direct: true}, nil)
			w.registry.Register(bobID, "https://direct.example/")
			alice := w.agent(t, aliceID, air.AgentOptions{Persistence: air.Persistence{Store: store.NewMemory()},
				PublishKey: func(_ context.Context, next *air.Identity) error {
					w.registry.Register(next, w.endpoint(next))
					time.Sleep(c.rotate / 30)
					return nil
				}}, nil)
			isDown := false
			w.direct = http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
				if isDown {
					isDown = false
					rw.WriteHeader(http.StatusServiceUnavailable)
					return
				}
				bob.Handler().ServeHTTP(rw, r)
			})
			_, err := alice.Send(t.Context(), bobID.DID(), offer(1), nil)
			require.NoError(t, err)
			time.AfterFunc(c.rotate, func() {
				require.NoError(t, alice.Rotate(context.Background(), bytes.Repeat([]byte{7}, 32)))
			})
			time.Sleep(c.send)
			isDown = c.send < c.rotate
			_, err = alice.Send(t.Context(), bobID.DID(), offer(2), nil)
			require.NoError(t, err)
			require.Len(t, bob.list(), 2)
			queued, failed := queuedIDs(t, alice.Client)
			require.Empty(t, append(queued, failed...))
			time.Sleep(time.Minute) // the rotation has ended
		})
	}
}

// Mail that is sealed to a new key before PublishKey returns is opened, relayed or pushed, also if PublishKey fails.
func TestRotateOpensMailSealedDuringPublication(t *testing.T) {
	for _, publish := range []error{nil, errors.New("no answer")} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, nil)
			aliceID, bobID := w.join(t, 1), w.join(t, 2)
			alice := w.agent(t, aliceID, air.AgentOptions{}, nil)
			var bob *runner
			bob = w.agent(t, bobID, air.AgentOptions{PublishKey: func(ctx context.Context, next *air.Identity) error {
				w.registry.Register(next, w.endpoint(next))
				_, err := alice.Send(ctx, bobID.DID(), offer(1), &air.SendOptions{Seal: true})
				require.NoError(t, err)
				time.Sleep(10 * time.Second)
				require.Len(t, bob.list(), 1)
				body, err := air.Seal(next.PublicKey(), air.Binding{ID: "11111111-1111-4111-8111-111111111111", From: aliceID.DID(),
					To: bobID.DID(), ThreadID: "22222222-2222-4222-8222-222222222222"}, []byte(`{"type":"note"}`))
				require.NoError(t, err)
				data := signedOffer(t, aliceID, bobID.DID(), func(d *air.Draft) {
					d.ID, d.ThreadID = "11111111-1111-4111-8111-111111111111", "22222222-2222-4222-8222-222222222222"
					d.Body = &air.Raw{Type: "encrypted", JSON: body}
				})
				status, text, _ := do(t, bob.Inbox, "POST", "/", string(data))
				require.Equal(t, http.StatusOK, status, text)
				return publish
			}, BodyTypes: []string{"note"}}, nil)
			require.ErrorIs(t, bob.Rotate(t.Context(), bytes.Repeat([]byte{9}, 32)), publish)
			require.Len(t, bob.list(), 2)
		})
	}
}

// A forged signature for an agent causes at most one lookup in five seconds at a relay.
func TestRelayBoundsLookupsOfForgedSignatures(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newSigningWorld(t, "")
		bobID := w.join(t, 2)
		forger, err := air.GenerateIdentity(bobID.DID())
		require.NoError(t, err)
		in := w.inbox(t, forger, air.InboxOptions{})
		p, err := air.NewPoller(in.Inbox, w.endpoint(bobID), &air.PollerOptions{HTTPClient: w.http()})
		require.NoError(t, err)
		for range 100 {
			_, err = p.Drain(t.Context())
			require.ErrorIs(t, err, air.ErrUnauthorized)
		}
		w.mu.Lock()
		lookups := 0
		for _, r := range w.requests {
			if bytes.Contains([]byte(r), []byte("did-document")) {
				lookups++
			}
		}
		w.mu.Unlock()
		require.Equal(t, 2, lookups)
	})
}

// Run continues through an outage of the registry, ends if that has no mailbox, and follows one that moves.
func TestAgentFindsMailbox(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, nil)
		alice := w.join(t, 1)
		unknown, err := air.GenerateIdentity(airtest.DID(airIDOf(9)))
		require.NoError(t, err)
		start := time.Now()
		require.ErrorIs(t, <-w.agent(t, unknown, air.AgentOptions{}, nil).run, air.ErrNotFound)
		require.Equal(t, 15*time.Second, time.Since(start))

		bobID := w.join(t, 2)
		w.registry.SetFailure(503)
		bob := w.agent(t, bobID, air.AgentOptions{}, nil)
		push(t, w.relay, bobID.AIRID(), signedOffer(t, alice, bobID.DID(), nil))
		time.Sleep(10 * time.Minute)
		w.registry.SetFailure(0)
		push(t, w.relay, bobID.AIRID(), signedOffer(t, alice, bobID.DID(), nil))
		time.Sleep(2 * time.Minute)
		require.Len(t, bob.list(), 1, "the older one is a dead letter")

		w.direct = newRelay(t, &relay.ServerOptions{})
		w.registry.Register(bobID, "https://direct.example/inbox/"+bobID.AIRID())
		push(t, w.direct, bobID.AIRID(), signedOffer(t, alice, bobID.DID(), nil))
		time.Sleep(3 * time.Minute)
		require.Len(t, bob.list(), 2)
	})
}

// Only permanent failures in a row end Run: the registry may fail in several ways while it starts.
func TestAgentRunOutlivesStartOfRegistry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, nil)
		alice, id := w.join(t, 1), w.join(t, 2)
		w.registry.SetFailure(503)
		bob := w.agent(t, id, air.AgentOptions{}, nil)
		time.Sleep(16 * time.Second) // lookups after 0, 5 and 15 s
		w.registry.SetFailure(404)
		time.Sleep(20 * time.Second)
		w.registry.SetFailure(0)
		_, err := w.client(t, alice, air.ClientOptions{}).Send(t.Context(), &air.Draft{To: id.DID(), Body: offer(5)}, nil)
		require.NoError(t, err)
		time.Sleep(2 * time.Minute)
		require.Empty(t, bob.run)
		require.Len(t, bob.list(), 1)
	})
}

// Two agents that push to each other, with outboxes, answer in their handlers: no answer waits for the end of the delivery that it
// proves (AIR-D56).
func TestDirectAgentsAnswerInHandlers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, nil)
		ids := []*air.Identity{w.join(t, 1), w.join(t, 2)}
		answer := func(r *runner, d *air.Delivery) (err error) {
			n := r.NewNegotiation(d.Envelope.From, d.Envelope.ThreadID, false)
			switch d.Body.(type) {
			case *air.Offer:
				_, err = n.Counter(context.Background(), "", air.MinorUnits(4, "USD"), time.Now().Add(time.Hour))
			case *air.Counter:
				_, err = n.Accept(context.Background())
			}
			return err
		}
		agents := make([]*runner, 2)
		for i, id := range ids {
			w.registry.Register(id, "https://direct.example/"+id.AIRID())
			agents[i] = w.agent(t, id, air.AgentOptions{Direct: true, Persistence: air.Persistence{Store: store.NewMemory()}}, answer)
		}
		w.direct = http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
			for i, id := range ids {
				if r.URL.Path == "/"+id.AIRID() {
					agents[i].Handler().ServeHTTP(rw, r)
				}
			}
		})
		n, start := agents[0].NewNegotiation(ids[1].DID(), "", false), time.Now()
		_, err := n.Offer(t.Context(), "", air.MinorUnits(5, "USD"), time.Now().Add(time.Hour))
		require.NoError(t, err)
		require.Zero(t, time.Since(start))
		for i, a := range agents {
			th, err := a.NewNegotiation(ids[1-i].DID(), n.ThreadID(), false).Thread(t.Context())
			require.NoError(t, err)
			require.Equal(t, air.ThreadAccepted, th.State)
			queued, failed := queuedIDs(t, a.Client)
			require.Empty(t, append(queued, failed...))
		}
	})
}

// An agent pulls with the present secret of its mailbox, which may be replaced while it runs.
func TestAgentPullsWithPresentSecret(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, nil)
		var secret atomic.Value
		secret.Store("first")
		present := func(string) string { return secret.Load().(string) }
		w.relay = newRelay(t, &relay.ServerOptions{Auth: relay.Auth{InboxSecret: present}})
		alice, bobID := w.join(t, 1), w.join(t, 2)
		bob := w.agent(t, bobID, air.AgentOptions{Secrets: present}, nil)
		for i, text := range []string{"first", "second"} {
			secret.Store(text)
			push(t, w.relay, bobID.AIRID(), signedOffer(t, alice, bobID.DID(), nil))
			time.Sleep(10 * time.Second)
			require.Len(t, bob.list(), i+1)
		}
	})
}

// An agent whose mailbox has moved gets the mail of a sender that has the old document still.
func TestAgentGetsMailOfFormerMailbox(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, nil)
		alice, bobID := w.join(t, 1), w.join(t, 2)
		bob := w.agent(t, bobID, air.AgentOptions{}, nil)
		var hasMoved atomic.Bool
		w.setFail(func(r *http.Request) error {
			hasMoved.CompareAndSwap(false, r.URL.Host == "direct.example")
			return nil
		})
		time.Sleep(time.Second)
		w.direct = newRelay(t, &relay.ServerOptions{})
		w.registry.Register(bobID, "https://direct.example/inbox/"+bobID.AIRID())
		for !hasMoved.Load() {
			time.Sleep(time.Second)
		}
		time.Sleep(time.Minute)
		push(t, w.relay, bobID.AIRID(), signedOffer(t, alice, bobID.DID(), nil))
		time.Sleep(time.Minute)
		require.Len(t, bob.list(), 1)
		push(t, w.direct, bobID.AIRID(), signedOffer(t, alice, bobID.DID(), nil))
		time.Sleep(10 * time.Second)
		require.Len(t, bob.list(), 2)
		require.NoError(t, bob.Shutdown(t.Context()))
		require.ErrorIs(t, <-bob.run, air.ErrClosed)
	})
}

// An agent with direct delivery waits in Run, and one without a handler too. A message that cannot be sent
// is in the outbox of the next process.
func TestAgentWithoutPolling(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, nil)
		aliceID, bobID := w.join(t, 1), w.join(t, 2)
		db := store.NewMemory()
		opts := &air.AgentOptions{Resolver: w.resolver(t), HTTPClient: w.http(), Persistence: air.Persistence{Store: db}}
		bob := w.agent(t, bobID, air.AgentOptions{Direct: true}, nil)
		w.direct = bob.Handler()
		w.registry.Register(bobID, "https://direct.example/")
		w.setFail(func(r *http.Request) error {
			if r.URL.Host == "direct.example" {
				return errors.New("the network is down")
			}
			return nil
		})
		alice, err := air.NewAgent(aliceID, nil, opts)
		require.NoError(t, err)
		_, err = alice.Send(t.Context(), bobID.DID(), offer(1), nil)
		require.ErrorIs(t, err, air.ErrDeliveryFailed)
		require.NoError(t, alice.Shutdown(t.Context()))
		w.setFail(nil)
		opts.Timing.ResendEvery = time.Minute
		alice, err = air.NewAgent(aliceID, nil, opts)
		require.NoError(t, err)
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
		defer cancel()
		require.ErrorIs(t, alice.Run(ctx), context.DeadlineExceeded)
		require.Len(t, bob.list(), 1)
		list, err := alice.Outbox(t.Context())
		require.NoError(t, err)
		require.Empty(t, list)
		require.NoError(t, alice.Close())
		require.NoError(t, bob.Close())
		require.ErrorIs(t, <-bob.run, air.ErrClosed)
	})
}

// A recipient that does not answer does not delay the mail to others in the outbox.
func TestResendServesRecipientsConcurrently(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, nil)
		aliceID, bobID, carolID := w.join(t, 1), w.join(t, 2), w.join(t, 3)
		hangs := func(path string) func(*http.Request) error {
			return func(r *http.Request) error {
				if r.Method == http.MethodPost && r.URL.Path == path {
					return errors.New("the network is down")
				}
				return nil
			}
		}
		c := w.client(t, aliceID, air.ClientOptions{Outbox: store.NewMemory(), Retry: &air.RetryPolicy{MaxAttempts: 1}})
		w.setFail(func(r *http.Request) error {
			return errors.Join(hangs("/inbox/"+bobID.AIRID())(r), hangs("/inbox/"+carolID.AIRID())(r))
		})
		for range 20 {
			_, err := c.Send(t.Context(), &air.Draft{To: bobID.DID(), Body: offer(1)}, nil)
			require.ErrorIs(t, err, air.ErrDeliveryFailed)
		}
		_, err := c.Send(t.Context(), &air.Draft{To: carolID.DID(), Body: offer(1)}, nil)
		require.ErrorIs(t, err, air.ErrDeliveryFailed)
		w.setFail(func(r *http.Request) error {
			if err := hangs("/inbox/" + bobID.AIRID())(r); err != nil {
				time.Sleep(time.Minute)
				return err
			}
			return nil
		})
		var n atomic.Int64
		go func() {
			delivered, _ := c.Resend(t.Context())
			n.Store(int64(delivered))
		}()
		time.Sleep(2 * time.Second)
		require.Len(t, pull(t, w.relay, "/inbox/"+carolID.AIRID()+"/pull").Envelopes, 1)
		time.Sleep(time.Hour)
		require.EqualValues(t, 1, n.Load())
	})
}

// Silent recipients with many messages, as many as are served at a time, do not delay a message to another recipient that is
// queued after a call by ResendEvery has begun.
func TestResendEveryServesRecipientsBehindSilentOnes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, nil)
		alice, carol := w.join(t, 1), w.join(t, 2)
		c := w.client(t, alice, air.ClientOptions{Outbox: store.NewMemory(), ResendEvery: time.Minute, Retry: &air.RetryPolicy{MaxAttempts: 1}})
		defer c.Close()
		var isDown atomic.Bool
		var mu sync.Mutex
		running, maxRunning := 0, 0 // guarded by mu
		count := func(n int) int {
			mu.Lock()
			defer mu.Unlock()
			running += n
			maxRunning = max(maxRunning, running)
			return maxRunning
		}
		toCarol := "/inbox/" + carol.AIRID()
		w.setFail(func(r *http.Request) error {
			if r.Method != http.MethodPost || r.URL.Path == toCarol && !isDown.Load() {
				return nil
			}
			if !isDown.Load() {
				count(1)
				defer count(-1)
				_ = retry.Sleep(r.Context(), time.Minute)
			}
			return errors.New("the network is down")
		})
		fail := func(to string) {
			isDown.Store(true)
			defer isDown.Store(false)
			_, err := c.Send(t.Context(), &air.Draft{To: to, Body: offer(1)}, nil)
			require.ErrorIs(t, err, air.ErrDeliveryFailed)
		}
		for i := range 9 {
			silent := w.join(t, 3+i)
			for range 20 {
				fail(silent.DID())
			}
		}
		time.Sleep(90 * time.Second)
		require.Equal(t, 8, count(0), "recipients at a time")
		fail(carol.DID())
		time.Sleep(2 * time.Minute)
		require.Len(t, pull(t, w.relay, toCarol+"/pull").Envelopes, 1)
		require.Equal(t, 9, count(0), "messages to one recipient are sent one after the other")
	})
}

// However many recipients are silent, the calls by ResendEvery serve a bounded number of them at a time.
func TestResendEveryServesBoundedRecipients(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, nil)
		alice := w.join(t, 1)
		c := w.client(t, alice, air.ClientOptions{Outbox: store.NewMemory(), ResendEvery: time.Minute, BodyTypes: []string{"note"}, Retry: &air.RetryPolicy{MaxAttempts: 1}})
		var isSilent atomic.Bool
		var running atomic.Int64
		end := make(chan struct{})
		body := &air.Raw{Type: "note", JSON: []byte(`{"type":"note","text":"` + strings.Repeat("x", 10<<10) + `"}`)}
		w.setFail(func(r *http.Request) error {
			if r.Method != http.MethodPost {
				return nil
			}
			if isSilent.Load() {
				running.Add(1)
				<-end
			}
			return errors.New("the network is down")
		})
		for i := range 300 {
			_, err := c.Send(t.Context(), &air.Draft{To: w.join(t, 2+i).DID(), Body: body}, nil)
			require.ErrorIs(t, err, air.ErrDeliveryFailed)
		}
		before := kit.Heap()
		isSilent.Store(true)
		time.Sleep(40 * time.Minute)
		require.EqualValues(t, 256, running.Load())
		require.Less(t, kit.Heap()-before, int64(50<<20), "the waiting calls hold no bodies")
		close(end)
		require.NoError(t, c.Close())
	})
}

func TestNewAgentRefusesOptions(t *testing.T) {
	h := air.HandlerFunc(func(context.Context, *air.Delivery) error { return nil })
	id, err := air.GenerateIdentity(airtest.DID(airIDOf(1)))
	require.NoError(t, err)
	_, err = air.NewAgent(nil, h, nil)
	require.Error(t, err)
	_, err = air.NewAgent(id, nil, &air.AgentOptions{Direct: true})
	require.Error(t, err)
	_, err = air.NewAgent(id, h, &air.AgentOptions{Timing: air.Timing{MaxPullAge: time.Hour}})
	require.ErrorContains(t, err, "Store")
	a, err := air.NewAgent(id, nil, nil)
	require.NoError(t, err)
	require.NotNil(t, a.Handler())
	require.NoError(t, a.Close())
}

// Seven thousand envelopes of unknown senders precede a good one, and each lookup takes 50 ms: the good
// one is handled within 90 s, with at most 16 lookups at a time.
func TestAgentFindsMailBehindForgedMail(t *testing.T) {
	if race.Enabled {
		t.Skip("the race detector needs memory for 7,000 envelopes")
	}
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, &relay.ServerOptions{Limits: relay.Limits{RateLimit: -1, AddressRateLimit: -1}})
		alice, bobID := w.join(t, 1), w.join(t, 2)
		base := string(signedOffer(t, alice, bobID.DID(), nil))
		box := "/inbox/" + bobID.AIRID()
		id := idOf(t, []byte(base))
		for i := range 7000 {
			forged := strings.ReplaceAll(base, alice.DID(), fmt.Sprintf("did:wba:agentidentityregistry.org:agents:AIR-FA1E-%04d-0000", i))
			forged = strings.Replace(forged, id, fmt.Sprintf("%s%06d", id[:len(id)-6], i), 1)
			addr := fmt.Sprintf("198.51.%d.%d", i%50, i%7)
			require.Equal(t, 202, relayCaller{w.relay, addr}.do("POST", box, forged).Code)
		}
		push(t, w.relay, bobID.AIRID(), signedOffer(t, alice, bobID.DID(), nil))
		var lookups gauge
		w.setFail(func(r *http.Request) error {
			if strings.HasSuffix(r.URL.Path, "/did-document") {
				defer lookups.count()()
				time.Sleep(50 * time.Millisecond)
			}
			return nil
		})
		start := time.Now()
		bob := w.agent(t, bobID, air.AgentOptions{Logger: slog.New(slog.DiscardHandler)}, nil)
		for len(bob.list()) == 0 && time.Since(start) < 10*time.Minute {
			time.Sleep(time.Second)
		}
		require.Len(t, bob.list(), 1)
		require.LessOrEqual(t, time.Since(start), 90*time.Second)
		require.LessOrEqual(t, lookups.peak.Load(), int64(16))
		t.Logf("handled after %v, %d lookups at a time", time.Since(start), lookups.peak.Load())
	})
}

// Behind a proxy, each sender of an agent has its own limits: ClientAddr names its address.
func TestAgentCountsClientAddresses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, nil)
		alice, bob := w.join(t, 1), w.join(t, 2)
		a := w.agent(t, bob, air.AgentOptions{Direct: true, Limits: air.Limits{AddressRateLimit: 1},
			ClientAddr: func(r *http.Request) string { return r.Header.Get("X-Real-Ip") }}, nil)
		var got []int
		for _, addr := range []string{"192.0.2.7", "192.0.2.7", "192.0.2.8"} {
			status, _, _ := do(t, a.Handler(), http.MethodPost, "/", string(signedOffer(t, alice, bob.DID(), nil)), "X-Real-Ip", addr)
			got = append(got, status)
		}
		require.Equal(t, []int{http.StatusOK, http.StatusTooManyRequests, http.StatusOK}, got)
	})
}
