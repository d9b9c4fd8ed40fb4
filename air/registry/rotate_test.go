// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package registry_test

import (
	"context"
	"errors"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/air"
	"github.com/fivewire/fivewire/air/registry"
)

// saved registers an agent and saves its identity.
func saved(t *testing.T, c *registry.Client) (path string, id *air.Identity, secret string) {
	t.Helper()
	id, r := register(t, c, "rotating")
	path = filepath.Join(t.TempDir(), "agent.json")
	require.NoError(t, air.SaveIdentity(path, id))
	return path, id, r.Secret
}

func load(t *testing.T, path string) *air.Identity {
	t.Helper()
	id, err := air.LoadIdentity(path)
	require.NoError(t, err)
	return id
}

func published(t *testing.T, c *registry.Client, id *air.Identity) *air.PublicKey {
	t.Helper()
	doc, err := c.GetDocument(t.Context(), id.AIRID())
	require.NoError(t, err)
	key, err := doc.SigningKey(id.DID())
	require.NoError(t, err)
	return key
}

func onlyFile(t *testing.T, path string) {
	t.Helper()
	entries, err := os.ReadDir(filepath.Dir(path))
	require.NoError(t, err)
	require.Len(t, entries, 1)
	info, err := os.Stat(path)
	require.NoError(t, err)
	require.Equal(t, fs.FileMode(0o600), info.Mode().Perm())
}

func TestRotateKey(t *testing.T) {
	w := &wire{}
	w.KeyUpdates = true
	c := w.client(t)
	path, old, secret := saved(t, c)
	id, err := c.RotateKey(t.Context(), path, secret)
	require.NoError(t, err)
	require.False(t, id.PublicKey().Equal(old.PublicKey()))
	require.True(t, published(t, c, id).Equal(id.PublicKey()))
	require.True(t, load(t, path).PublicKey().Equal(id.PublicKey()))
	onlyFile(t, path)

	second, err := c.RotateKey(t.Context(), path, secret)
	require.NoError(t, err)
	require.False(t, second.PublicKey().Equal(id.PublicKey()))
}

// The published registry keeps keys: it refuses an update without other fields.
func TestRotateFixedKey(t *testing.T) {
	w := &wire{}
	c := w.client(t)
	path, old, secret := saved(t, c)
	id, err := c.RotateKey(t.Context(), path, secret)
	require.ErrorIs(t, err, registry.ErrKeyImmutable)
	require.ErrorIs(t, err, air.ErrBadRequest)
	require.Nil(t, id)
	require.True(t, load(t, path).PublicKey().Equal(old.PublicKey()))
	require.True(t, published(t, c, old).Equal(old.PublicKey()))
	onlyFile(t, path)

	// One that knows no such field may also ignore it.
	w.before = func(req *http.Request) (*http.Response, error) {
		if req.Method == http.MethodPut {
			return answer(200, `{"updated_fields":0}`), nil
		}
		return nil, nil
	}
	_, err = c.RotateKey(t.Context(), path, secret)
	require.ErrorIs(t, err, registry.ErrKeyImmutable)
	onlyFile(t, path)
}

// Without the secret nothing is sent, so the key in the registry is known.
func TestRotateWithoutSecret(t *testing.T) {
	w := &wire{}
	c := w.client(t)
	path, _, _ := saved(t, c)
	_, err := c.RotateKey(t.Context(), path, "")
	require.ErrorIs(t, err, air.ErrBadRequest)
	require.NotErrorIs(t, err, registry.ErrKeyUnconfirmed)
	onlyFile(t, path)
}

func TestRotateRefused(t *testing.T) {
	w := &wire{}
	w.KeyUpdates = true
	c := w.client(t)
	path, old, secret := saved(t, c)
	_, err := c.RotateKey(t.Context(), path, "wrong")
	require.ErrorIs(t, err, air.ErrUnauthorized)
	require.NotErrorIs(t, err, registry.ErrKeyImmutable)
	require.True(t, load(t, path).PublicKey().Equal(old.PublicKey()))
	onlyFile(t, path)

	other, err := old.Rotate(newSeed())
	require.NoError(t, err)
	w.Register(other, "")
	_, err = c.RotateKey(t.Context(), path, secret)
	require.ErrorIs(t, err, air.ErrBadKey, "somebody else has changed the key")

	_, err = c.RotateKey(t.Context(), filepath.Join(t.TempDir(), "none"), secret)
	require.ErrorIs(t, err, fs.ErrNotExist)
	stranger, _ := register(t, c, "stranger")
	require.NoError(t, air.SaveIdentity(path+".next", stranger))
	_, err = c.RotateKey(t.Context(), path, secret)
	require.ErrorContains(t, err, "another agent")
}

// Whatever fails and wherever the process crashes, the key in the registry is on disk, and the next
// call completes the rotation.
func TestRotateInterrupted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lost := errors.New("the connection broke")
		isPut := func(r *http.Request) bool { return r.Method == http.MethodPut }
		isDoc := func(r *http.Request) bool { return strings.HasSuffix(r.URL.Path, "/did-document") }
		for _, tt := range []struct {
			name   string
			before func(puts int, r *http.Request) error // the request is lost
			after  func(puts int, r *http.Request) error // the answer is
			done   bool                                  // already after the first call
			err    error
		}{
			{name: "request lost", err: registry.ErrKeyUnconfirmed,
				before: func(_ int, r *http.Request) error {
					if isPut(r) {
						return lost
					}
					return nil
				}},
			{name: "answer lost", done: true,
				after: func(_ int, r *http.Request) error {
					if isPut(r) {
						return lost
					}
					return nil
				}},
			{name: "everything lost after the update", err: registry.ErrKeyUnconfirmed,
				after: func(puts int, _ *http.Request) error {
					if puts > 0 {
						return lost
					}
					return nil
				}},
			{name: "no document before", err: air.ErrBadGateway,
				before: func(puts int, r *http.Request) error {
					if isDoc(r) && puts == 0 {
						return lost
					}
					return nil
				}},
		} {
			w := &wire{}
			w.KeyUpdates = true
			c := w.client(t)
			path, old, secret := saved(t, c)
			puts := 0
			w.before = func(r *http.Request) (*http.Response, error) {
				if isPut(r) {
					puts++
				}
				if tt.before != nil {
					return nil, tt.before(puts, r)
				}
				return nil, nil
			}
			if tt.after != nil {
				w.after = func(r *http.Request) error { return tt.after(puts, r) }
			}
			id, err := c.RotateKey(t.Context(), path, secret)
			require.LessOrEqual(t, puts, 1, "%s: an update of a key is sent once", tt.name)
			w.before, w.after = nil, nil
			if tt.done {
				require.NoError(t, err, tt.name)
				require.True(t, published(t, c, old).Equal(id.PublicKey()))
				onlyFile(t, path)
				continue
			}
			require.ErrorIs(t, err, tt.err, tt.name)
			require.True(t, load(t, path).PublicKey().Equal(old.PublicKey()))
			pending := load(t, path+".next")
			id, err = c.RotateKey(t.Context(), path, secret)
			require.NoError(t, err, tt.name)
			require.True(t, id.PublicKey().Equal(pending.PublicKey()), "%s: not a third key", tt.name)
			require.True(t, published(t, c, old).Equal(id.PublicKey()))
			require.True(t, load(t, path).PublicKey().Equal(id.PublicKey()))
			onlyFile(t, path)
		}
	})
}

// Calls for one file wait for each other: no key that the registry was given is
// overwritten by another one.
func TestRotateConcurrently(t *testing.T) {
	w := &wire{}
	w.KeyUpdates = true
	c := w.client(t)
	path, old, secret := saved(t, c)
	var mu sync.Mutex
	seen := map[string]bool{old.PublicKey().String(): true}
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			id, err := c.RotateKey(t.Context(), path, secret)
			require.NoError(t, err)
			mu.Lock()
			defer mu.Unlock()
			require.False(t, seen[id.PublicKey().String()])
			seen[id.PublicKey().String()] = true
		})
	}
	wg.Wait()
	last := load(t, path)
	require.True(t, seen[last.PublicKey().String()])
	require.True(t, published(t, c, old).Equal(last.PublicKey()), "the file and the registry agree")
	onlyFile(t, path)

	// A canceled waiter changes nothing.
	began, end := make(chan struct{}), make(chan struct{})
	w.before = func(r *http.Request) (*http.Response, error) {
		if r.Method == http.MethodPut {
			close(began)
			<-end
		}
		return nil, nil
	}
	wg.Go(func() {
		_, err := c.RotateKey(t.Context(), path, secret)
		require.NoError(t, err)
	})
	<-began
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := c.RotateKey(ctx, path, secret)
	require.ErrorIs(t, err, context.Canceled)
	close(end)
	wg.Wait()
}

// A refusal of a second call does not concern the first one: its key stays.
func TestRotateRefusedLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &wire{}
		c := w.client(t)
		path, _, secret := saved(t, c)
		w.before = func(r *http.Request) (*http.Response, error) {
			if r.Method == http.MethodPut {
				return nil, errors.New("lost")
			}
			return nil, nil
		}
		_, err := c.RotateKey(t.Context(), path, secret)
		require.ErrorIs(t, err, registry.ErrKeyUnconfirmed)
		pending := load(t, path+".next")
		w.before = nil
		_, err = c.RotateKey(t.Context(), path, secret)
		require.ErrorIs(t, err, registry.ErrKeyImmutable)
		require.True(t, load(t, path+".next").PublicKey().Equal(pending.PublicKey()))
	})
}

// Messages are delivered during a key rotation (AIR-028, AIR-058, AIR-059, AIR-D41, AIR-D42): a
// body sealed to the old key is answered with Stale Key, sealed again and delivered. Signatures of
// the new key verify at peers with the old document.
func TestMailAcrossRotation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &wire{}
		w.KeyUpdates = true
		boxes := map[string]http.Handler{} // direct inboxes by host
		var pushes []int
		hc := &http.Client{Transport: roundTrip(func(req *http.Request) (*http.Response, error) {
			h := boxes[req.URL.Host]
			if h == nil {
				return w.RoundTrip(req)
			}
			rec := httptest.NewRecorder()
			h.ServeHTTP(rec, req)
			pushes = append(pushes, rec.Code)
			return rec.Result(), nil
		})}
		newResolver := func() *air.Resolver {
			r, err := air.NewResolver(&air.ResolverOptions{HTTPClient: hc})
			require.NoError(t, err)
			return r
		}
		ownResolver, peerResolver := newResolver(), newResolver()
		c, err := registry.NewClient(&registry.Options{HTTPClient: hc, Resolver: peerResolver})
		require.NoError(t, err)
		a, _ := register(t, c, "a")
		path, b, secret := saved(t, c)
		w.Register(a, "https://a.example/inbox")
		w.Register(b, "https://b.example/inbox")

		var got []string
		open := func(id *air.Identity, r *air.Resolver, host string) *air.Client {
			in, err := air.NewInbox(id, air.HandlerFunc(func(_ context.Context, d *air.Delivery) error {
				got = append(got, air.BodyType(d.Body))
				return nil
			}), &air.InboxOptions{Resolver: newResolver(), BodyTypes: []string{"note"}})
			require.NoError(t, err)
			boxes[host] = in
			client, err := air.NewClient(id, &air.ClientOptions{Resolver: r, HTTPClient: hc, BodyTypes: []string{"note"}})
			require.NoError(t, err)
			return client
		}
		note := func(to *air.Identity) *air.Draft {
			return &air.Draft{To: to.DID(), Body: &air.Raw{Type: "note", JSON: []byte(`{"type":"note"}`)}}
		}
		seal := &air.SendOptions{Seal: true}
		fromA, fromB := open(a, ownResolver, "a.example"), open(b, peerResolver, "b.example")
		_, err = fromA.Send(t.Context(), note(b), seal)
		require.NoError(t, err)
		_, err = fromB.Send(t.Context(), note(a), seal)
		require.NoError(t, err)
		require.Equal(t, []int{200, 200}, pushes)
		before := w.LookupCount()

		time.Sleep(10 * time.Second) // both keep the documents for 50 s at least
		next, err := c.RotateKey(t.Context(), path, secret)
		require.NoError(t, err)
		fromB = open(next, peerResolver, "b.example")

		pushes, got = nil, nil
		r, err := fromA.Send(t.Context(), note(b), seal)
		require.NoError(t, err)
		require.Equal(t, 2, r.Attempts)
		require.Equal(t, []int{403, 200}, pushes)
		_, err = fromB.Send(t.Context(), note(a), seal)
		require.NoError(t, err)
		require.Equal(t, []int{403, 200, 200}, pushes)
		require.Equal(t, []string{"note", "note"}, got)
		// Two by the rotation, one by the client of a, one by the inbox of a, and two by the
		// new inbox and the client of b that had forgotten its own document.
		require.Equal(t, 6, w.LookupCount()-before)
	})
}

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }
