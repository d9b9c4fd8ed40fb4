// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package air_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"github.com/fivewire/fivewire/air"
	"github.com/fivewire/fivewire/air/airtest"
	"github.com/fivewire/fivewire/air/relay"
)

func TestMain(m *testing.M) {
	if childMain() {
		return
	}
	// The server of net/http keeps a connection for half a second whose body it refused.
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("net/http.(*conn).closeWriteAndWait"))
}

// A world is a registry and a relay behind a transport instead of a network, so
// that tests run in virtual time.
type world struct {
	registry airtest.Registry
	relay    http.Handler
	direct   http.Handler // at https://direct.example/

	mu       sync.Mutex
	requests []string
	fail     func(*http.Request) error
}

func newWorld(t *testing.T, opts *relay.ServerOptions) *world {
	t.Helper()
	if opts == nil {
		opts = &relay.ServerOptions{}
	}
	opts.Auth.AllowAnonymous = true
	srv := newRelay(t, opts)
	t.Cleanup(func() { require.NoError(t, srv.Close()) })
	return &world{relay: srv}
}

func newThreads(t *testing.T, did string) *air.ThreadStore {
	t.Helper()
	threads, err := air.NewThreadStore(did, nil)
	require.NoError(t, err)
	return threads
}

// newRelay returns a relay, open unless the options name who may use it.
func newRelay(t require.TestingT, opts *relay.ServerOptions) *relay.Server {
	o := *opts
	o.Auth.AllowAnonymousPush = o.Auth.PushSecret == ""
	if o.Auth.InboxSecret == nil {
		o.Auth.AllowAnonymous = true
	}
	o.AnyRecipient = o.Directory == nil
	srv, err := relay.NewServer(&o)
	require.NoError(t, err)
	return srv
}

func (w *world) RoundTrip(req *http.Request) (*http.Response, error) {
	w.mu.Lock()
	w.requests = append(w.requests, req.Method+" "+req.URL.RequestURI())
	fail := w.fail
	w.mu.Unlock()
	if fail != nil {
		if err := fail(req); err != nil {
			return nil, err
		}
	}
	h := w.relay
	switch req.URL.Host {
	case "agentidentityregistry.org":
		h = &w.registry
	case "direct.example":
		h = w.direct
	}
	in := req.Clone(req.Context())
	if in.Body == nil {
		in.Body = http.NoBody
	}
	in.RemoteAddr = "192.0.2.1:1"
	rec := httptest.NewRecorder()
	h.ServeHTTP(rec, in)
	return rec.Result(), nil
}

func (w *world) setFail(f func(*http.Request) error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.fail = f
}

func (w *world) http() *http.Client { return &http.Client{Transport: w} }

func (w *world) resolver(t *testing.T) *air.Resolver {
	r, err := air.NewResolver(&air.ResolverOptions{HTTPClient: w.http()})
	require.NoError(t, err)
	return r
}

func airIDOf(n int) string { return fmt.Sprintf("AIR-TEST-0000-%04d", n) }

// join registers an agent whose mailbox is at the relay.
func (w *world) join(t *testing.T, n int) *air.Identity {
	t.Helper()
	id, err := air.GenerateIdentity(airtest.DID(airIDOf(n)))
	require.NoError(t, err)
	w.registry.Register(id, w.endpoint(id))
	return id
}

func (w *world) endpoint(id *air.Identity) string {
	return "https://relay.example/inbox/" + id.AIRID()
}

func (w *world) client(t *testing.T, id *air.Identity, opts air.ClientOptions) *air.Client {
	t.Helper()
	if opts.Resolver == nil {
		opts.Resolver = w.resolver(t)
	}
	if opts.HTTPClient == nil {
		opts.HTTPClient = w.http()
	}
	c, err := air.NewClient(id, &opts)
	require.NoError(t, err)
	return c
}

// A mailroom is an inbox with its poller that records the deliveries.
type mailroom struct {
	*air.Inbox
	poller *air.Poller

	mu       sync.Mutex
	got      []*air.Delivery
	rejected []*air.ReceiveResult
	answer   error
}

func (w *world) inbox(t *testing.T, id *air.Identity, opts air.InboxOptions) *mailroom {
	t.Helper()
	m := &mailroom{}
	if opts.Resolver == nil {
		opts.Resolver = w.resolver(t)
	}
	opts.OnOutcome = func(_ context.Context, r *air.ReceiveResult) {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.rejected = append(m.rejected, r)
	}
	in, err := air.NewInbox(id, air.HandlerFunc(func(_ context.Context, d *air.Delivery) error {
		m.mu.Lock()
		defer m.mu.Unlock()
		if m.answer != nil {
			return m.answer
		}
		m.got = append(m.got, d)
		return nil
	}), &opts)
	require.NoError(t, err)
	t.Cleanup(func() { _ = in.Close() })
	m.Inbox = in
	m.poller, err = air.NewPoller(in, w.endpoint(id), &air.PollerOptions{HTTPClient: w.http()})
	require.NoError(t, err)
	return m
}

func (m *mailroom) drain(t *testing.T) int {
	t.Helper()
	before := m.count()
	_, err := m.poller.Drain(t.Context())
	require.NoError(t, err)
	return m.count() - before
}

func (m *mailroom) count() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.got)
}

// codes returns the codes of the rejections so far, and clears them.
func (m *mailroom) codes() (codes []air.Code) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, r := range m.rejected {
		codes = append(codes, r.Err.Code)
	}
	m.rejected = nil
	return codes
}

func (m *mailroom) fail(err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.answer = err
}

func offer(price uint64) *air.Offer {
	return &air.Offer{Description: "work", Price: air.MinorUnits(price, "USD"), Expires: time.Now().Add(time.Hour)}
}

// signedOffer returns a signed envelope that was never sent.
func signedOffer(t testing.TB, from *air.Identity, to string, change func(*air.Draft)) []byte {
	t.Helper()
	d := &air.Draft{ID: air.NewID(), From: from.DID(), To: to, Time: time.Now(), ThreadID: air.NewID(), Nonce: air.NewNonce(), Body: offer(5)}
	if change != nil {
		change(d)
	}
	e, err := air.NewEnvelope(d, from.Signer(), &air.EnvelopeOptions{BodyTypes: []string{air.AnyBodyType}})
	require.NoError(t, err)
	return e.Bytes()
}

// do sends one request to a handler.
func do(t rapid.TB, h http.Handler, method, path, body string, headers ...string) (int, string, http.Header) {
	t.Helper()
	req, err := http.NewRequest(method, "http://relay.example"+path, strings.NewReader(body))
	require.NoError(t, err)
	req.RemoteAddr = "192.0.2.1:1"
	for i := 0; i < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	rec := httptest.NewRecorder()
	h.ServeHTTP(rec, req)
	data, err := io.ReadAll(rec.Result().Body)
	require.NoError(t, err)
	return rec.Code, string(data), rec.Header()
}
