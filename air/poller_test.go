// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package air_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"log/slog"
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
	"github.com/fivewire/fivewire/internal/retry"
)

// pollerOf returns a poller without jitter whose pulls are answered with the given statuses, 0 for
// no connection, and then with empty pages. It counts the pulls.
func pollerOf(t *testing.T, opts air.PollerOptions, pulls *int, statuses ...int) *air.Poller {
	t.Helper()
	w := newWorld(t, nil)
	bob := w.join(t, 2)
	opts.HTTPClient = &http.Client{Transport: roundTripper(func(*http.Request) (*http.Response, error) {
		status := http.StatusOK
		if *pulls++; *pulls <= len(statuses) {
			status = statuses[*pulls-1]
		}
		if status == 0 {
			return nil, errors.New("no connection")
		}
		rec := httptest.NewRecorder()
		rec.WriteHeader(status)
		_, _ = rec.WriteString(`{"envelopes":[],"cursor":"end","has_more":false}`)
		return rec.Result(), nil
	})}
	airtest.SetPollerJitter(&opts, func() float64 { return 0.5 })
	p, err := air.NewPoller(w.inbox(t, bob, air.InboxOptions{}).Inbox, w.endpoint(bob), &opts)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, p.Close()) })
	return p
}

// Three consecutive refusals that cannot change end Run with their error (AIR-D87).
func TestPollerRunEndsOnPermanentError(t *testing.T) {
	for status, code := range map[int]air.Code{
		401: air.ErrUnauthorized, 403: air.ErrForbidden, 404: air.ErrNotFound, 405: air.ErrHTTP, 410: air.ErrHTTP, 451: air.ErrHTTP,
	} {
		synctest.Test(t, func(t *testing.T) {
			pulls := 0
			p := pollerOf(t, air.PollerOptions{}, &pulls, status, status, 503, status, 0, 200, status, status, status)
			start := time.Now()
			require.ErrorIs(t, p.Run(t.Context()), code)
			require.Equal(t, 9, pulls)
			require.Equal(t, (5+10+20+40+60+5+5+10)*time.Second, time.Since(start))
		})
	}
}

func TestPollerRunContinuesAfterTemporaryErrors(t *testing.T) {
	for _, status := range []int{400, 408, 425, 429, 500, 503, 302, 0} {
		synctest.Test(t, func(t *testing.T) {
			pulls := 0
			p := pollerOf(t, air.PollerOptions{}, &pulls, status, status, status, status, status, status, status, status)
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
			defer cancel()
			require.ErrorIs(t, p.Run(ctx), context.DeadlineExceeded, "status %d", status)
			require.Greater(t, pulls, 40, "status %d", status)
		})
	}
}

// Without a delay between polls, those that fail have one.
func TestPollerWithoutIntervalBacksOff(t *testing.T) {
	pulls := 0
	p := pollerOf(t, air.PollerOptions{PollInterval: -1}, &pulls, 500, 500)
	for _, want := range []time.Duration{5 * time.Second, 10 * time.Second, 0} {
		next, _ := p.Drain(t.Context())
		require.Equal(t, want, next)
	}
}

// The first failure, and each change of it, is a warning (AIR-D87).
func TestPollerLogsChangedFailures(t *testing.T) {
	var log strings.Builder
	pulls := 0
	p := pollerOf(t, air.PollerOptions{Logger: slog.New(slog.NewTextHandler(&log, nil))}, &pulls, 503, 503, 401, 401, 0, 0, 200, 0)
	for range 8 {
		_, _ = p.Drain(t.Context())
	}
	require.Equal(t, 4, strings.Count(log.String(), "level=WARN"), log.String())
	require.Equal(t, 4, strings.Count(log.String(), "err="), log.String())
}

// A drain that waits for another one ends with its own context, and Close ends both and Run.
func TestPollerCloseEndsRunAndDrains(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, nil)
		bob := w.join(t, 2)
		client := &http.Client{Transport: roundTripper(func(r *http.Request) (*http.Response, error) {
			<-r.Context().Done() // a relay that does not answer
			return nil, r.Context().Err()
		})}
		p, err := air.NewPoller(w.inbox(t, bob, air.InboxOptions{}).Inbox, w.endpoint(bob), &air.PollerOptions{HTTPClient: client})
		require.NoError(t, err)
		run := make(chan error, 1)
		go func() { run <- p.Run(t.Context()) }()
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		start := time.Now()
		_, err = p.Drain(ctx)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.Equal(t, time.Second, time.Since(start))
		require.NoError(t, p.Close())
		require.Equal(t, time.Second, time.Since(start), "Close waited")
		require.ErrorIs(t, <-run, air.ErrClosed)
		require.ErrorIs(t, p.Run(t.Context()), air.ErrClosed)
		_, err = p.Drain(t.Context())
		require.ErrorIs(t, err, air.ErrClosed)
	})
}

// Run ends once its inbox is closed: it could not deliver anything.
func TestPollerRunEndsWithInbox(t *testing.T) {
	w := newWorld(t, nil)
	in := w.inbox(t, w.join(t, 2), air.InboxOptions{})
	require.NoError(t, in.Close())
	require.ErrorIs(t, in.poller.Run(t.Context()), air.ErrClosed)
}

// An open stream of the relay does not hold up a drain.
func TestPollerDrainsDuringStream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, nil)
		bob := w.join(t, 2)
		var silent silence
		client := &http.Client{Transport: roundTripper(func(r *http.Request) (*http.Response, error) {
			if r.URL.Query().Get("stream") == "" {
				return w.RoundTrip(r)
			}
			silent = make(silence)
			return &http.Response{StatusCode: 200, Header: http.Header{"Content-Type": {"text/event-stream"}}, Body: silent}, nil
		})}
		p, err := air.NewPoller(w.inbox(t, bob, air.InboxOptions{}).Inbox, w.endpoint(bob),
			&air.PollerOptions{HTTPClient: client, Dialect: air.DialectDeployed, EnableStream: true})
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		run := make(chan error, 1)
		go func() { run <- p.Run(ctx) }()
		synctest.Wait()
		require.NotNil(t, silent, "the poller opened no stream")
		_, err = p.Drain(t.Context())
		require.NoError(t, err)
		cancel()
		require.NoError(t, silent.Close())
		require.ErrorIs(t, <-run, context.Canceled)
	})
}

// The silence of a stream does not cut a handler off that takes longer than a stream may be silent.
func TestStreamSilenceDoesNotEndHandler(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, nil)
		alice, bob := w.join(t, 1), w.join(t, 2)
		body, events := io.Pipe()
		client := &http.Client{Transport: roundTripper(func(r *http.Request) (*http.Response, error) {
			if r.URL.Query().Get("stream") == "" {
				return w.RoundTrip(r)
			}
			context.AfterFunc(r.Context(), func() { _ = events.CloseWithError(errors.New("stream cut")) })
			return &http.Response{StatusCode: 200, Header: http.Header{"Content-Type": {"text/event-stream"}}, Body: body}, nil
		})}
		handled := make(chan error, 2)
		in, err := air.NewInbox(bob, air.HandlerFunc(func(ctx context.Context, d *air.Delivery) error {
			select {
			case <-time.After(2 * time.Minute):
			case <-ctx.Done():
			}
			handled <- context.Cause(ctx)
			return ctx.Err()
		}), &air.InboxOptions{Resolver: w.resolver(t), Timing: air.Timing{HandlerTimeout: 5 * time.Minute}})
		require.NoError(t, err)
		defer in.Close()
		p, err := air.NewPoller(in, w.endpoint(bob),
			&air.PollerOptions{HTTPClient: client, Dialect: air.DialectDeployed, EnableStream: true})
		require.NoError(t, err)
		run := make(chan error, 1)
		go func() { run <- p.Run(t.Context()) }()
		_, err = fmt.Fprintf(events, "event: envelope\ndata: {\"seq\":1,\"envelope_b64\":%q}\n\n",
			base64.StdEncoding.EncodeToString(signedOffer(t, alice, bob.DID(), nil)))
		require.NoError(t, err)
		require.NoError(t, <-handled)
		synctest.Wait()
		require.NoError(t, p.Close())
		require.ErrorIs(t, <-run, air.ErrClosed)
	})
}

// drainingInbox returns an inbox whose handler takes three seconds. The channels have a value for each start and the cause of
// each end, of up to n.
func (w *world) drainingInbox(t *testing.T, id *air.Identity, n int) (in *air.Inbox, started chan struct{}, ends chan error) {
	t.Helper()
	started, ends = make(chan struct{}, n), make(chan error, n)
	in, err := air.NewInbox(id, air.HandlerFunc(func(ctx context.Context, _ *air.Delivery) error {
		started <- struct{}{}
		_ = retry.Sleep(ctx, 3*time.Second)
		ends <- context.Cause(ctx)
		return ctx.Err()
	}), &air.InboxOptions{Resolver: w.resolver(t)})
	require.NoError(t, err)
	return in, started, ends
}

// A shutdown in the middle of many envelopes lets the handlers end that run, and begins no others: the rest stays at the
// relay.
func TestPollerShutdownLeavesRestAtRelay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, nil)
		alice, bob := w.join(t, 1), w.join(t, 2)
		const queued = 90
		for range queued {
			push(t, w.relay, bob.AIRID(), signedOffer(t, alice, bob.DID(), nil))
		}
		in, started, ends := w.drainingInbox(t, bob, queued)
		defer in.Close()
		p, err := air.NewPoller(in, w.endpoint(bob), &air.PollerOptions{HTTPClient: w.http()})
		require.NoError(t, err)
		run := make(chan error, 1)
		go func() { run <- p.Run(t.Context()) }()
		<-started
		start := time.Now()
		require.NoError(t, p.Shutdown(t.Context()))
		require.LessOrEqual(t, time.Since(start), 6*time.Second, "8 handlers run, and 8 verified envelopes wait for them")
		require.ErrorIs(t, <-run, air.ErrClosed)
		handled := len(ends)
		for range handled {
			require.NoError(t, <-ends)
		}
		require.Len(t, pull(t, w.relay, "/inbox/"+bob.AIRID()+"/pull?limit=200").Envelopes, queued-handled)
	})
}

// A shutdown waits for the handler of an envelope that arrived by a stream, and for its acknowledgement.
func TestPollerShutdownWaitsForHandlerOfStream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, nil)
		alice, bob := w.join(t, 1), w.join(t, 2)
		body, events := io.Pipe()
		var acks atomic.Int64
		client := &http.Client{Transport: roundTripper(func(r *http.Request) (*http.Response, error) {
			if r.Method == http.MethodPost {
				acks.Add(1)
			}
			if r.URL.Query().Get("stream") == "" {
				return w.RoundTrip(r)
			}
			context.AfterFunc(r.Context(), func() { _ = events.CloseWithError(errors.New("stream cut")) })
			return &http.Response{StatusCode: 200, Header: http.Header{"Content-Type": {"text/event-stream"}}, Body: body}, nil
		})}
		in, started, ends := w.drainingInbox(t, bob, 2)
		defer in.Close()
		p, err := air.NewPoller(in, w.endpoint(bob), &air.PollerOptions{HTTPClient: client, Dialect: air.DialectDeployed, EnableStream: true})
		require.NoError(t, err)
		run := make(chan error, 1)
		go func() { run <- p.Run(t.Context()) }()
		go func() {
			for seq := range 2 { // the second one arrives during the shutdown
				_, _ = fmt.Fprintf(events, "event: envelope\ndata: {\"seq\":%d,\"envelope_b64\":%q}\n\n", seq+1,
					base64.StdEncoding.EncodeToString(signedOffer(t, alice, bob.DID(), nil)))
			}
		}()
		<-started
		require.NoError(t, p.Shutdown(t.Context()))
		require.NoError(t, <-ends)
		require.EqualValues(t, 1, acks.Load())
		require.ErrorIs(t, <-run, air.ErrClosed)
		require.Empty(t, started, "a handler begins in the shutdown")
	})
}

// A handler that ignores the end of its context keeps its place and stops its thread, and no other mail.
func TestPollerLeavesStuckHandler(t *testing.T) {
	for _, n := range []int{8, 1} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, nil)
			alice, bob, carol := w.join(t, 1), w.join(t, 2), w.join(t, 3)
			block, got := make(chan struct{}), make(chan string, 10)
			in, err := air.NewInbox(bob, air.HandlerFunc(func(_ context.Context, d *air.Delivery) error {
				got <- d.Envelope.From
				if _, isOffer := d.Body.(*air.Offer); isOffer && d.Envelope.From == alice.DID() {
					<-block
				}
				return nil
			}), &air.InboxOptions{Resolver: w.resolver(t)})
			require.NoError(t, err)
			defer in.Close()
			p, err := air.NewPoller(in, w.endpoint(bob), &air.PollerOptions{HTTPClient: w.http(), MaxConcurrent: n})
			require.NoError(t, err)
			run := make(chan error, 1)
			go func() { run <- p.Run(t.Context()) }()
			thread := air.NewID()
			first := signedOffer(t, alice, bob.DID(), func(d *air.Draft) { d.ThreadID = thread })
			push(t, w.relay, bob.AIRID(), first)
			push(t, w.relay, bob.AIRID(), signedOffer(t, alice, bob.DID(), func(d *air.Draft) {
				d.ThreadID, d.Body, d.Time = thread, &air.Withdraw{WithdrawnID: idOf(t, first)}, time.Now().Add(time.Second)
			}))
			require.Equal(t, alice.DID(), <-got)
			push(t, w.relay, bob.AIRID(), signedOffer(t, carol, bob.DID(), nil))
			time.Sleep(4 * time.Minute)
			if n == 8 {
				require.Equal(t, carol.DID(), <-got)
			}
			require.Empty(t, got)
			close(block)
			time.Sleep(10 * time.Minute)
			require.Len(t, got, map[int]int{8: 1, 1: 2}[n], "the rest")
			require.Empty(t, pull(t, w.relay, "/inbox/"+bob.AIRID()+"/pull").Envelopes)
			require.NoError(t, p.Close())
			<-run
		})
	}
}

// A shutdown does not wait for a relay that does not answer, so a handler has all of its time.
func TestShutdownDoesNotWaitForSilentRelay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, nil)
		alice, id := w.join(t, 1), w.join(t, 2)
		w.setFail(func(r *http.Request) error {
			if strings.HasSuffix(r.URL.Path, "/pull") {
				<-r.Context().Done()
				return r.Context().Err()
			}
			return nil
		})
		handled := make(chan error, 1)
		bob := w.agent(t, id, air.AgentOptions{}, func(*runner, *air.Delivery) error {
			time.Sleep(20 * time.Second)
			handled <- nil
			return nil
		})
		envelope := signedOffer(t, alice, id.DID(), nil)
		var pushed sync.WaitGroup
		pushed.Go(func() { bob.Inbox.Receive(t.Context(), envelope, false) })
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		defer cancel()
		begin := time.Now()
		require.NoError(t, bob.Shutdown(ctx))
		require.Equal(t, 20*time.Second, time.Since(begin))
		require.Len(t, handled, 1)
		require.ErrorIs(t, <-bob.run, air.ErrClosed)
		pushed.Wait()
	})
}

// silence is a body without data.
type silence chan struct{}

func (s silence) Read([]byte) (int, error) {
	<-s
	return 0, errors.New("stream cut")
}

func (s silence) Close() error {
	select {
	case <-s:
	default:
		close(s)
	}
	return nil
}

// A forged envelope does not delay the thread of its alleged sender, nor does a Withdraw whose clock is behind
// that of its Offer (AIR-D41, AIR-D77).
func TestPollerDoesNotWaitBehindMailThatCannotBeTaken(t *testing.T) {
	for _, c := range []struct {
		name  string
		first func(alice *air.Identity, d air.Draft, offer string) []byte
		codes []air.Code
	}{
		{"forged", func(alice *air.Identity, d air.Draft, offer string) []byte {
			d.Body = &air.Withdraw{WithdrawnID: offer}
			return bytes.Replace(signedDraft(t, alice, d), []byte(offer), []byte(air.NewID()), 1)
		}, []air.Code{air.ErrBadSignature}},
		{"behind", func(alice *air.Identity, d air.Draft, offer string) []byte {
			d.Body = &air.Withdraw{WithdrawnID: offer}
			return signedDraft(t, alice, d)
		}, []air.Code{air.ErrConflict}},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t, nil)
			alice, bob := w.join(t, 1), w.join(t, 2)
			m := w.inbox(t, bob, air.InboxOptions{})
			push(t, w.relay, bob.AIRID(), signedOffer(t, alice, bob.DID(), nil))
			require.Equal(t, 1, m.drain(t)) // the key of alice is known from now on, and may change
			id, thread := air.NewID(), air.NewID()
			d := air.Draft{ID: air.NewID(), From: alice.DID(), To: bob.DID(), Time: time.Now().Add(-time.Minute), ThreadID: thread, Nonce: air.NewNonce()}
			push(t, w.relay, bob.AIRID(), c.first(alice, d, id))
			push(t, w.relay, bob.AIRID(), signedOffer(t, alice, bob.DID(), func(d *air.Draft) { d.ID, d.ThreadID = id, thread }))
			require.Equal(t, 1, m.drain(t))
			require.Equal(t, c.codes, m.codes())
		})
	}
}

func signedDraft(t *testing.T, from *air.Identity, d air.Draft) []byte {
	return signedOffer(t, from, d.To, func(of *air.Draft) { *of = d })
}
