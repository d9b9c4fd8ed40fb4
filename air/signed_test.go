// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package air_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
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
	"github.com/fivewire/fivewire/store"
)

// newSigningWorld returns a world whose relay opens mailboxes to signatures of their agents only.
func newSigningWorld(t *testing.T, publicURL string) *world {
	t.Helper()
	w := newWorld(t, nil)
	r, err := relay.NewServer(&relay.ServerOptions{AnyRecipient: true, Auth: relay.Auth{AllowAnonymousPush: true, Resolver: w.resolver(t), PublicURL: publicURL}})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, r.Close()) })
	w.relay = r
	return w
}

// A poller signs its requests, so that a mailbox needs no shared secret, also behind a proxy that
// changes the host, the path and the address of callers (AIR-D90).
func TestPollerSignsRequests(t *testing.T) {
	for name, publicURL := range map[string]string{"direct": "", "proxy": "https://mail.example/air"} {
		t.Run(name, func(t *testing.T) {
			w := newSigningWorld(t, publicURL)
			alice, bob := w.join(t, 1), w.join(t, 2)
			endpoint := w.endpoint(bob)
			client := w.http()
			if publicURL != "" {
				endpoint = "https://mail.example:443/air/inbox/" + bob.DID()
				client = &http.Client{Transport: roundTripper(func(r *http.Request) (*http.Response, error) {
					in := r.Clone(r.Context())
					in.URL.Host, in.Host = "backend", "backend"
					in.URL.Path = strings.TrimPrefix(in.URL.Path, "/air")
					in.URL.RawPath = strings.TrimPrefix(in.URL.RawPath, "/air")
					return w.RoundTrip(in)
				})}
			}
			in := w.inbox(t, bob, air.InboxOptions{})
			p, err := air.NewPoller(in.Inbox, endpoint, &air.PollerOptions{HTTPClient: client})
			require.NoError(t, err)
			push(t, w.relay, bob.AIRID(), signedOffer(t, alice, bob.DID(), nil))
			_, err = p.Drain(t.Context())
			require.NoError(t, err)
			require.Equal(t, 1, in.count())
			_, err = p.Drain(t.Context())
			require.NoError(t, err)
			require.EqualValues(t, 0, usageOf(t, w.relay.(*relay.Server), "items", "all"), "the mail was acknowledged")

			other := w.inbox(t, alice, air.InboxOptions{})
			p, err = air.NewPoller(other.Inbox, endpoint, &air.PollerOptions{HTTPClient: client})
			require.NoError(t, err)
			_, err = p.Drain(t.Context())
			require.ErrorIs(t, err, air.ErrUnauthorized, "a signature of another agent")
		})
	}
}

// The error of a poll has the reason of the relay, such as a wrong clock.
func TestPollErrorHasReason(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newSigningWorld(t, "")
		bob := w.join(t, 2)
		var late time.Duration
		client := &http.Client{Transport: roundTripper(func(r *http.Request) (*http.Response, error) {
			in := r.Clone(r.Context())
			in.Header["Signature-Input"] = []string{strings.Replace(in.Header.Get("Signature-Input"), fmt.Sprint("created=", time.Now().Unix()),
				fmt.Sprint("created=", time.Now().Add(-late).Unix()), 1)}
			return w.RoundTrip(in)
		})}
		p, err := air.NewPoller(w.inbox(t, bob, air.InboxOptions{}).Inbox, w.endpoint(bob), &air.PollerOptions{HTTPClient: client})
		require.NoError(t, err)
		_, err = p.Drain(t.Context())
		require.NoError(t, err)
		late = 2 * time.Minute
		_, err = p.Drain(t.Context())
		require.ErrorIs(t, err, air.ErrUnauthorized)
		require.ErrorContains(t, err, "pulling: status 401: the time of the signature differs from this clock by over a minute")
	})
}

// A signature is good once, for its request, and for a minute.
func TestRelayRefusesSignatures(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newSigningWorld(t, "")
		bob := w.join(t, 2)
		var pulls, acks []*http.Request
		var bodies [][]byte
		recorder := &http.Client{Transport: roundTripper(func(r *http.Request) (*http.Response, error) {
			rec := httptest.NewRecorder()
			if r.Method == "GET" {
				pulls = append(pulls, r)
				_, _ = rec.WriteString(`{"envelopes":[{"id":"x"}],"cursor":"end","has_more":false}`)
			} else {
				body, err := io.ReadAll(r.Body)
				require.NoError(t, err)
				acks, bodies = append(acks, r), append(bodies, body)
			}
			return rec.Result(), nil
		})}
		p, err := air.NewPoller(w.inbox(t, bob, air.InboxOptions{}).Inbox, w.endpoint(bob), &air.PollerOptions{HTTPClient: recorder})
		require.NoError(t, err)
		for range 6 {
			_, err := p.Drain(t.Context())
			require.NoError(t, err)
		}
		send := func(r *http.Request, body []byte, change func(*http.Request)) int {
			in := r.Clone(t.Context())
			in.Body = io.NopCloser(bytes.NewReader(body))
			change(in)
			rec := httptest.NewRecorder()
			in.RemoteAddr = "192.0.2.1:1"
			w.relay.ServeHTTP(rec, in)
			return rec.Code
		}
		same := func(*http.Request) {}
		require.Equal(t, 200, send(pulls[0], nil, same))
		require.Equal(t, 401, send(pulls[0], nil, same), "a repeated request")
		require.Equal(t, 401, send(pulls[1], nil, func(r *http.Request) { r.URL.RawQuery = "limit=1" }))
		require.Equal(t, 401, send(pulls[1], nil, func(r *http.Request) { r.Host, r.URL.Host = "evil.example", "evil.example" }))
		require.Equal(t, 401, send(pulls[1], nil, func(r *http.Request) { r.Header.Del("Signature") }))
		require.Equal(t, 401, send(pulls[1], nil, func(r *http.Request) { r.Header["Signature"] = append(r.Header["Signature"], "x") }))
		require.Equal(t, 200, send(pulls[1], nil, same), "a refused request does not use up the nonce")
		require.Equal(t, 401, send(acks[0], []byte(ackBody("other")), same), "another body")
		require.Equal(t, 401, send(acks[0], nil, same), "no body")
		require.Equal(t, 200, send(acks[0], bodies[0], same))
		time.Sleep(time.Minute)
		require.Equal(t, 200, send(pulls[2], nil, same))
		time.Sleep(time.Second)
		require.Equal(t, 401, send(pulls[3], nil, same), "61 seconds old")
		w.registry.SetFailure(500)
		time.Sleep(2 * time.Minute)
		_, err = p.Drain(t.Context())
		require.NoError(t, err)
		require.Equal(t, 502, send(pulls[len(pulls)-1], nil, same))
	})
}

// An eventCounter is a response with a number of envelopes.
type eventCounter struct {
	http.ResponseWriter
	n atomic.Int64
}

func (c *eventCounter) Write(data []byte) (int, error) {
	c.n.Add(int64(bytes.Count(data, []byte("event: envelope"))))
	return len(data), nil
}

func (c *eventCounter) FlushError() error { return nil }

// A stream ends before the next envelope once the secret or the key of its request has been replaced (AIR-D64, AIR-D90).
func TestStreamEndsWhenAccessIsRevoked(t *testing.T) {
	for _, isSigned := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			w := newSigningWorld(t, "")
			alice, bob := w.join(t, 1), w.join(t, 2)
			var secret atomic.Pointer[string]
			first, second := "first", "second"
			secret.Store(&first)
			if !isSigned {
				w.relay = newRelay(t, &relay.ServerOptions{Auth: relay.Auth{InboxSecret: func(string) string { return *secret.Load() }}})
			}
			var request *http.Request
			p, err := air.NewPoller(w.inbox(t, bob, air.InboxOptions{}).Inbox, w.endpoint(bob), &air.PollerOptions{
				Dialect: air.DialectDeployed, EnableStream: true, AgentSecret: "first",
				HTTPClient: &http.Client{Transport: roundTripper(func(r *http.Request) (*http.Response, error) {
					if r.URL.Query().Get("stream") == "1" {
						request = r
						return nil, errors.New("recorded")
					}
					return w.RoundTrip(r)
				})}})
			require.NoError(t, err)
			run := make(chan error, 1)
			go func() { run <- p.Run(t.Context()) }()
			synctest.Wait()
			require.NoError(t, p.Close())
			<-run

			out, done := &eventCounter{ResponseWriter: httptest.NewRecorder()}, make(chan struct{})
			request = request.Clone(t.Context())
			request.RemoteAddr = "192.0.2.1:1"
			go func() {
				defer close(done)
				w.relay.ServeHTTP(out, request)
			}()
			events := func() int {
				synctest.Wait()
				return int(out.n.Load())
			}
			push(t, w.relay, bob.AIRID(), signedOffer(t, alice, bob.DID(), nil))
			require.Equal(t, 1, events())
			time.Sleep(10 * time.Minute)
			push(t, w.relay, bob.AIRID(), signedOffer(t, alice, bob.DID(), nil))
			require.Equal(t, 2, events())

			secret.Store(&second)
			next, err := bob.Rotate(bytes.Repeat([]byte{9}, 32))
			require.NoError(t, err)
			w.registry.Register(next, w.endpoint(bob))
			time.Sleep(10 * time.Minute)
			push(t, w.relay, bob.AIRID(), signedOffer(t, alice, bob.DID(), nil))
			require.Equal(t, 2, events())
			<-done
		})
	}
}

// A deafStore fails to wait for records.
type deafStore struct{ store.Store }

func (deafStore) Wait(context.Context, string, uint64) error { return errors.New("connection lost") }

// The audit and the counters of a relay have the failure of a stream, whose response has begun.
func TestEndOfStreamIsAudited(t *testing.T) {
	for _, want := range []string{"refused unauthorized", "failed relay_error"} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, nil)
			var db store.Store = store.NewMemory()
			if want == "failed relay_error" {
				db = deafStore{db}
			}
			alice, bob := w.join(t, 1), w.join(t, 2)
			var secret atomic.Pointer[string]
			first, second := "first", "second"
			secret.Store(&first)
			var record *air.AuditRecord
			r := newRelay(t, &relay.ServerOptions{
				Auth: relay.Auth{InboxSecret: func(string) string { return *secret.Load() }}, Persistence: relay.Persistence{Store: db},
				Audit: func(_ context.Context, r *air.AuditRecord) {
					if r.Operation == "stream" {
						record = r
					}
				},
			})
			var wg sync.WaitGroup
			var body string
			wg.Go(func() {
				_, body, _ = do(t, r, http.MethodGet, "/pull/"+bob.AIRID()+"?stream=1", "", "X-Agent-Secret", "first")
			})
			synctest.Wait()
			secret.Store(&second)
			push(t, r, bob.AIRID(), signedOffer(t, alice, bob.DID(), nil))
			wg.Wait()
			require.Equal(t, want, record.Outcome+" "+record.Code)
			require.NotContains(t, body, `"error"`)
			require.EqualValues(t, 1, r.Stats().Refusals[air.Code(record.Code)])
			require.Zero(t, r.Stats().Pulls)
		})
	}
}

func TestRelayRefusesWrongPublicURL(t *testing.T) {
	for _, text := range []string{"mail.example", "://", "/air"} {
		_, err := relay.NewServer(&relay.ServerOptions{AnyRecipient: true, Auth: relay.Auth{AllowAnonymous: true, PublicURL: text}})
		require.ErrorContains(t, err, "PublicURL", text)
	}
}
