// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package a2e_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/a2e"
	"github.com/fivewire/fivewire/a2e/a2etest"
	"github.com/fivewire/fivewire/store"
)

// A measuredStore counts the bytes in the streams of a store.
type measuredStore struct {
	store.Store
	mu      sync.Mutex
	streams map[string]map[uint64]int
}

func (m *measuredStore) Append(ctx context.Context, stream, id string, value []byte, ttl time.Duration) (uint64, error) {
	pos, err := m.Store.Append(ctx, stream, id, value, ttl)
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.streams[stream] == nil {
		m.streams[stream] = map[uint64]int{}
	}
	m.streams[stream][pos] = len(value)
	return pos, err
}

func (m *measuredStore) Ack(ctx context.Context, stream string, seqs ...uint64) error {
	m.mu.Lock()
	for _, seq := range seqs {
		delete(m.streams[stream], seq)
	}
	m.mu.Unlock()
	return m.Store.Ack(ctx, stream, seqs...)
}

func (m *measuredStore) Expire(ctx context.Context, stream string, ttl time.Duration) error {
	time.AfterFunc(ttl, func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		delete(m.streams, stream)
	})
	return m.Store.Expire(ctx, stream, ttl)
}

func (m *measuredStore) bytes() (n int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, stream := range m.streams {
		for _, size := range stream {
			n += size
		}
	}
	return n
}

// boundedly runs f with two processes on one store, with limits and two callers.
func boundedly(t *testing.T, limits a2e.Limits, plugin func() *a2e.Plugin, f func(t *testing.T, db *measuredStore, one, two *durableProcess)) {
	synctest.Test(t, func(t *testing.T) {
		db := &measuredStore{Store: store.NewMemory(), streams: map[string]map[uint64]int{}}
		var processes [2]*durableProcess
		for i := range processes {
			h := a2etest.NewHost(t, &a2e.HostOptions{Persistence: a2e.Persistence{Store: db}, Limits: limits,
				Auth: a2e.Auth{Authenticator: a2etest.Must(a2e.APIKeyAuthenticator(map[string]*a2e.Principal{"greedy": {ID: "greedy"}, "modest": {ID: "modest"}}))}}, plugin())
			processes[i] = &durableProcess{host: h, handler: a2etest.Must(a2e.NewHTTPHandler(h, &a2e.HTTPHandlerOptions{AllowedHosts: []string{"a2e.test"}}))}
		}
		time.Sleep(time.Second)
		f(t, db, processes[0], processes[1])
		for _, p := range processes {
			require.NoError(t, p.host.Close())
			for _, u := range p.host.Usage() {
				require.Zero(t, u.Used, "%+v", u)
			}
		}
	})
}

// openAs opens a session of a caller, or returns an error.
func openAs(p *durableProcess, token string) (secret string, err error) {
	status, text := serveDurable(p, "POST", "/session", "", request("handshake/req", "h1", `"agent_id":"t","auth_token":"`+token+`","agent_caps":["demo","resume"]`))
	_, rest, ok := strings.Cut(text, `"session_id":"`)
	if status != 200 || !ok {
		return "", errors.New(text)
	}
	_, answer := serveDurable(p, "GET", "/stream", rest[:32], "")
	if !strings.Contains(answer, `"accepted_caps"`) || strings.Contains(answer, `"ok":false`) {
		return "", errors.New(answer)
	}
	return rest[:32], nil
}

func stored(p *durableProcess) (all int64) {
	for _, u := range p.host.Usage() {
		if u.Resource == "storage" && u.Scope == "all" {
			all = u.Used
		}
	}
	return all
}

// A caller whose sessions read nothing fills only its share of the store, whatever the number of its
// sessions; another caller is served. After the sessions and the retention everything is released.
func TestUnreadMessagesAreBoundedInStore(t *testing.T) {
	const limit = 256 << 10
	boundedly(t, a2e.Limits{MaxStoragePerPrincipal: limit}, repeating, func(t *testing.T, db *measuredStore, p, _ *durableProcess) {
		refused, opened := 0, 0
		pad := strings.Repeat("x", 10<<10)
		for i := range 100 {
			secret, err := openAs(p, "greedy")
			if err != nil {
				refused++
				continue
			}
			opened++
			for j := range 5 {
				serveDurable(p, "POST", "/send", secret, request("demo/ask/req", fmt.Sprintf("%d-%d", i, j), `"how":"`+pad+`"`))
			}
			synctest.Wait()
			require.LessOrEqual(t, stored(p), int64(limit))
			require.LessOrEqual(t, db.bytes(), limit+limit/4)
		}
		require.Greater(t, opened, 4)
		require.Positive(t, refused)
		modest, err := openAs(p, "modest")
		require.NoError(t, err)
		post(t, p, modest, request("demo/ask/req", "1", `"how":"now"`))
		time.Sleep(time.Second)
		_, text := serveDurable(p, "GET", "/stream", modest, "")
		require.Contains(t, text, `"how":"now"`)

		time.Sleep(20 * time.Minute) // the sessions were idle
		require.Empty(t, p.host.Sessions())
		require.LessOrEqual(t, stored(p), int64(limit+limit/4))
		secret, err := openAs(p, "greedy")
		require.NoError(t, err, "the messages of ended sessions are evicted")
		serveDurable(p, "DELETE", "/session", secret, "")
		time.Sleep(20 * time.Minute)
		require.Zero(t, stored(p))
		require.Less(t, db.bytes(), 4<<10)
	})
}

// Bodies that wait are bounded in the process of the session, and in one that forwards them.
func TestWaitingBodiesAreBoundedInStore(t *testing.T) {
	const limit = 256 << 10
	release := make(chan struct{})
	blocking := func() *a2e.Plugin {
		return answering(func(ctx context.Context, _ *a2e.Call, r *recorder) (*recorder, error) {
			select {
			case <-release:
			case <-ctx.Done():
			}
			return &recorder{}, nil
		})
	}
	for name, isOwner := range map[string]bool{"owner": true, "other process": false} {
		t.Run(name, func(t *testing.T) {
			boundedly(t, a2e.Limits{MaxStoragePerPrincipal: limit}, blocking, func(t *testing.T, db *measuredStore, owner, p *durableProcess) {
				release = make(chan struct{})
				if isOwner {
					p = owner
				}
				var secrets []string
				for range 4 {
					secret, err := openAs(owner, "greedy")
					require.NoError(t, err)
					secrets = append(secrets, secret)
				}
				base, pad, refused := stored(owner), strings.Repeat("x", 20<<10), 0
				for i := range 40 {
					status, text := serveDurable(p, "POST", "/send", secrets[i%4], request("demo/ask/req", fmt.Sprint(i), `"how":"`+pad+`"`))
					if status != 200 {
						require.Equal(t, 503, status)
						require.Contains(t, text, "Too many stored messages")
						refused++
					}
					time.Sleep(time.Second)
					require.LessOrEqual(t, stored(p), int64(limit))
					require.LessOrEqual(t, db.bytes(), limit+limit/4)
				}
				require.InDelta(t, 28, refused, 3)
				modest, err := openAs(p, "modest")
				require.NoError(t, err)
				post(t, p, modest, request("demo/ask/req", "1", `"how":"now"`))
				close(release)
				time.Sleep(5 * time.Second)
				require.Less(t, stored(p)-stored(owner), base+64<<10)
				post(t, p, secrets[0], request("demo/ask/req", "last", `"how":"`+pad+`"`))
				time.Sleep(5 * time.Second)
				if !isOwner {
					require.Less(t, stored(p), int64(16<<10), "only the session of the other caller")
				}
			})
		})
	}
}

// The messages of ended sessions make room for those of open ones.
func TestEndedSessionsAreEvictedFromStore(t *testing.T) {
	const limit = 256 << 10
	boundedly(t, a2e.Limits{MaxStoragePerPrincipal: limit}, repeating, func(t *testing.T, db *measuredStore, p, _ *durableProcess) {
		pad := strings.Repeat("x", 50<<10)
		for i := range 20 {
			secret, err := openAs(p, "greedy")
			require.NoError(t, err, i)
			post(t, p, secret, request("demo/ask/req", "1", `"how":"`+pad+`"`))
			time.Sleep(time.Second)
			_, text := serveDurable(p, "GET", "/stream", secret, "")
			require.Contains(t, text, pad)
			status, _ := serveDurable(p, "DELETE", "/session", secret, "")
			require.Equal(t, 200, status)
			time.Sleep(time.Second)
			require.LessOrEqual(t, stored(p), int64(limit))
			require.LessOrEqual(t, db.bytes(), limit+limit/4)
		}
		require.Greater(t, stored(p), int64(limit/2))
	})
}
