// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/fivewire/fivewire/air"
	"github.com/fivewire/fivewire/air/internal/exchange"
	"github.com/fivewire/fivewire/air/internal/server"
	"github.com/fivewire/fivewire/internal/bench/pair"
	"github.com/fivewire/fivewire/internal/bench/sample"
	"github.com/fivewire/fivewire/internal/race"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func signedSample(t testing.TB, size int) []byte {
	wire, err := air.Sign(sample.Envelope(size, false), ed25519.NewKeyFromSeed(bytes.Repeat([]byte{7}, 32)), air.FormSpec)
	require.NoError(t, err)
	return wire
}

func newServer(t testing.TB, opts ServerOptions) *Server {
	opts.Auth.AllowAnonymous, opts.AnyRecipient = true, opts.Directory == nil
	s, err := NewServer(&opts)
	require.NoError(t, err)
	return s
}

func loop(b *testing.B, f func()) {
	b.ReportAllocs()
	for b.Loop() {
		f()
	}
}

// A queue is what a relay does for one mailbox, below HTTP.
type queue struct {
	boxes *boxes
	box   string
	m     *mail
	ids   []string
	n     uint64
}

func newQueue(t testing.TB, srv *Server, box string) *queue {
	m, err := newMail(signedSample(t, 1<<10))
	require.NoError(t, err)
	return &queue{boxes: &srv.boxes, box: box, m: m, ids: []string{m.id}}
}

// cycle pushes an envelope, pulls and acknowledges it.
func (q *queue) cycle() error {
	ctx := context.Background()
	q.n++
	binary.BigEndian.PutUint64(q.m.data[20:], q.n) // other bytes, so that it is stored again
	if _, err := q.boxes.push(ctx, q.box, q.m); err != nil {
		return err
	}
	list, _, err := q.boxes.pull(ctx, q.box, 0, 1)
	if err != nil || len(list) != 1 {
		return fmt.Errorf("pulled %d: %w", len(list), err)
	}
	if k, err := q.boxes.ack(ctx, q.box, q.ids); err != nil || k != 1 {
		return fmt.Errorf("acknowledged %d: %w", k, err)
	}
	return nil
}

func BenchmarkRelayQueue(b *testing.B) {
	b.Run("store=memory/lib=sdk", func(b *testing.B) {
		q := newQueue(b, newServer(b, ServerOptions{}), "box")
		loop(b, func() {
			if err := q.cycle(); err != nil {
				b.Fatal(err)
			}
		})
	})
}

// mapQueue is the baseline of queues: it hashes and copies its input, and has no duplicates, deliveries
// or expiry.
type mapQueue struct {
	mu sync.Mutex
	n  int64
	q  []mapItem
}

type mapItem struct {
	id   int64
	sum  [sha256.Size]byte
	body []byte
}

func (m *mapQueue) cycle(body []byte) {
	item := mapItem{sum: sha256.Sum256(body), body: bytes.Clone(body)}
	m.mu.Lock()
	m.n++
	item.id = m.n
	m.q = append(m.q, item)
	m.mu.Unlock()
	m.mu.Lock()
	item = m.q[0]
	m.mu.Unlock()
	m.mu.Lock()
	for i, it := range m.q {
		if it.id == item.id {
			m.q = slices.Delete(m.q, i, i+1)
			break
		}
	}
	m.mu.Unlock()
}

func BenchmarkPairRelayQueue(b *testing.B) {
	b.Run("store=memory/lib=sdk", func(b *testing.B) {
		q := newQueue(b, newServer(b, ServerOptions{Persistence: Persistence{Retention: time.Second}}), "box")
		var floor mapQueue
		pair.Ratio(b, pair.Loop(func() {
			if err := q.cycle(); err != nil {
				panic(err)
			}
		}), pair.Loop(func() { floor.cycle(q.m.data) }))
	})
}

// The base is the leanest handler that reads, hashes and stores a body and answers as long an answer.
func BenchmarkPairRelayHTTP(b *testing.B) {
	relay := newServer(b, ServerOptions{Limits: Limits{RateLimit: -1, AddressRateLimit: -1, QueueLimitPerSession: -1, MaxMemoryPerSession: -1, MaxMemoryPerPrincipal: -1, MaxMemory: -1}, Persistence: Persistence{Retention: 3 * time.Second}})
	var mu sync.Mutex
	stored := make(map[[sha256.Size]byte][]byte)
	lean := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		data, _ := io.ReadAll(io.LimitReader(r.Body, server.MaxMessage))
		sum := sha256.Sum256(data)
		mu.Lock()
		stored[sum] = data
		mu.Unlock()
		w.Header().Set("Content-Type", exchange.JSONType)
		w.WriteHeader(http.StatusAccepted)
		_, _ = w.Write(data[:80])
	})
	one, two := httptest.NewServer(relay), httptest.NewServer(lean)
	defer one.Close()
	defer two.Close()
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64}}
	defer client.CloseIdleConnections()
	base := signedSample(b, 1<<10)
	m, err := newMail(base)
	require.NoError(b, err)
	id := []byte(m.id)
	var pushed atomic.Uint32
	post := func(url string) error {
		// The id changes, so that every envelope is stored.
		data := bytes.Replace(base, id, fmt.Appendf(nil, "%s%08x", id[:len(id)-8], pushed.Add(1)), 1)
		res, err := client.Post(url, exchange.JSONType, bytes.NewReader(data))
		if err != nil {
			return err
		}
		_, err = io.Copy(io.Discard, res.Body)
		if res.StatusCode != http.StatusAccepted {
			err = fmt.Errorf("status %d", res.StatusCode)
		}
		_ = res.Body.Close()
		return err
	}
	for _, callers := range []int{1, 16} {
		b.Run(fmt.Sprintf("op=push/callers=%d/lib=sdk", callers), func(b *testing.B) {
			pair.RatioCallers(b, callers, func(int64) error { return post(one.URL + "/inbox/AIR-A1B2-C3D4-E5F6") },
				func(int64) error { return post(two.URL) })
		})
	}
}

// Allocations are exact, so their goal is a test.
func TestQueueAllocations(t *testing.T) {
	if race.Enabled {
		t.Skip("the race detector allocates")
	}
	q := newQueue(t, newServer(t, ServerOptions{}), "box")
	require.NoError(t, q.cycle())
	var err error
	require.LessOrEqual(t, testing.AllocsPerRun(200, func() { err = errors.Join(err, q.cycle()) }), 4.0)
	require.NoError(t, err)
}
