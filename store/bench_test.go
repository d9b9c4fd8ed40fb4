// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package store_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/internal/race"
	"github.com/fivewire/fivewire/store"
)

var payload = bytes.Repeat([]byte("x"), 1024)

const (
	boxes  = 16
	window = 330 * time.Second // how long a replay window keeps a key
)

// An engine does the two jobs of a relay: to create a key unless it exists, and
// the whole life of one envelope in the queue of a recipient.
type engine interface {
	create(key string) error // errExists if it exists
	push(box int, body []byte) error
	pull(box int) (id uint64, body []byte, err error) // the oldest that is not acknowledged
	ack(box int, id uint64) error
}

var errExists = errors.New("exists")

// memory is the engine of this package, used as any other would be.
type memory struct {
	s     store.Store
	names [boxes]string
}

func newMemory() engine {
	m := &memory{s: store.NewMemory()}
	for i := range m.names {
		m.names[i] = fmt.Sprint("box-", i)
	}
	return m
}

func (m *memory) create(key string) error {
	_, err := m.s.Create(context.Background(), key, nil, window)
	if errors.Is(err, store.ErrExists) {
		return errExists
	}
	return err
}

func (m *memory) push(box int, body []byte) error {
	_, err := m.s.Append(context.Background(), m.names[box], "", body, 0)
	return err
}

func (m *memory) pull(box int) (uint64, []byte, error) {
	records, err := m.s.Read(context.Background(), m.names[box], 0, 1)
	if err != nil || len(records) == 0 {
		return 0, nil, err
	}
	return records[0].Seq, records[0].Value, nil
}

func (m *memory) ack(box int, id uint64) error {
	return m.s.Ack(context.Background(), m.names[box], id)
}

// floor is what a map, slices and mutexes cost at the least, without order,
// without exact expiry, and with a bound on the keys.
type floor struct {
	mu   sync.Mutex
	keys map[string]int64
	ring []string
	qmu  [boxes]sync.Mutex
	q    [boxes][]floorItem
	n    atomic.Uint64
}

type floorItem struct {
	id   uint64
	body []byte
}

func newFloor() engine { return &floor{keys: map[string]int64{}} }

func (f *floor) create(key string) error {
	now := time.Now().UnixNano()
	f.mu.Lock()
	defer f.mu.Unlock()
	if expires, ok := f.keys[key]; ok && expires > now {
		return errExists
	}
	f.keys[key] = now + int64(window)
	if f.ring = append(f.ring, key); len(f.ring) > 100_000 {
		delete(f.keys, f.ring[0])
		f.ring = f.ring[1:]
	}
	return nil
}

func (f *floor) push(box int, body []byte) error {
	item := floorItem{f.n.Add(1), bytes.Clone(body)}
	f.qmu[box].Lock()
	f.q[box] = append(f.q[box], item)
	f.qmu[box].Unlock()
	return nil
}

func (f *floor) pull(box int) (uint64, []byte, error) {
	f.qmu[box].Lock()
	defer f.qmu[box].Unlock()
	if len(f.q[box]) == 0 {
		return 0, nil, nil
	}
	return f.q[box][0].id, f.q[box][0].body, nil
}

func (f *floor) ack(box int, id uint64) error {
	f.qmu[box].Lock()
	defer f.qmu[box].Unlock()
	f.q[box] = slices.DeleteFunc(f.q[box], func(item floorItem) bool { return item.id == id })
	return nil
}

func BenchmarkStore(b *testing.B) {
	for _, lib := range []struct {
		name string
		open func() engine
	}{{"memory", newMemory}, {"map", newFloor}} {
		var keys atomic.Int64
		newKey := func() string { return fmt.Sprintf("k%d-%024d", int64(1763697022000000000), keys.Add(1)) }
		b.Run("lib="+lib.name, func(b *testing.B) {
			for _, callers := range []int{1, 16} {
				// run does f in so many goroutines, each with the number of a box.
				run := func(b *testing.B, f func(box int) error) {
					b.ReportAllocs()
					b.ResetTimer()
					if callers == 1 {
						for range b.N {
							if err := f(0); err != nil {
								b.Fatal(err)
							}
						}
					} else {
						var n atomic.Int64
						b.SetParallelism(max(1, callers/2))
						b.RunParallel(func(pb *testing.PB) {
							box := int(n.Add(1)) % boxes
							for pb.Next() {
								if err := f(box); err != nil {
									b.Error(err)
									return
								}
							}
						})
					}
					b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "ops/s")
				}
				b.Run(fmt.Sprintf("op=create/callers=%d", callers), func(b *testing.B) {
					e := lib.open()
					run(b, func(int) error { return e.create(newKey()) })
				})
				b.Run(fmt.Sprintf("op=createExisting/callers=%d", callers), func(b *testing.B) {
					e := lib.open()
					key := newKey()
					require.NoError(b, e.create(key))
					run(b, func(int) error {
						if err := e.create(key); !errors.Is(err, errExists) {
							return fmt.Errorf("got %v", err)
						}
						return nil
					})
				})
				b.Run(fmt.Sprintf("op=queue/callers=%d", callers), func(b *testing.B) {
					e := lib.open()
					run(b, func(box int) error {
						if err := e.push(box, payload); err != nil {
							return err
						}
						id, body, err := e.pull(box)
						if err != nil || len(body) != len(payload) {
							return fmt.Errorf("pull: %d bytes, %w", len(body), err)
						}
						return e.ack(box, id)
					})
				})
			}
		})
	}
}

// BenchmarkMemory is what the floor cannot do.
func BenchmarkMemory(b *testing.B) {
	ctx := context.Background()
	fill := func(b *testing.B, n int) store.Store {
		s := store.NewMemory()
		for i := range n {
			_, err := s.Create(ctx, "replay/"+strconv.Itoa(i*7919%n), nil, time.Hour)
			require.NoError(b, err)
		}
		for i := range 10 {
			_, err := s.Create(ctx, "task/"+strconv.Itoa(i), payload, 0)
			require.NoError(b, err)
		}
		return s
	}
	b.Run("op=get", func(b *testing.B) {
		s := fill(b, 100_000)
		b.ReportAllocs()
		for b.Loop() {
			if _, err := s.Get(ctx, "task/5"); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("op=update", func(b *testing.B) {
		s := fill(b, 100_000)
		e, err := s.Get(ctx, "task/5")
		require.NoError(b, err)
		b.ReportAllocs()
		for b.Loop() {
			if e.Revision, err = s.Update(ctx, "task/5", payload, e.Revision, time.Hour); err != nil {
				b.Fatal(err)
			}
		}
	})
	// Keys come as fast as they go, in no order.
	b.Run("op=createAndExpire", func(b *testing.B) {
		const live = 100 * time.Millisecond
		s := store.NewMemory()
		n := uint64(0)
		next := func() string { n++; return "replay/" + strconv.FormatUint(n*0x9e3779b97f4a7c15, 36) }
		for start := time.Now(); time.Since(start) < live; {
			_, err := s.Create(ctx, next(), nil, live)
			require.NoError(b, err)
		}
		b.ReportAllocs()
		for b.Loop() {
			if _, err := s.Create(ctx, next(), nil, live); err != nil {
				b.Fatal(err)
			}
		}
	})
	for _, others := range []int{0, 1000, 1_000_000} {
		b.Run(fmt.Sprintf("op=list10/others=%d", others), func(b *testing.B) {
			s := fill(b, others)
			for range s.List(ctx, "task/") {
				break // the first List sorts
			}
			b.ReportAllocs()
			for b.Loop() {
				n := 0
				for _, err := range s.List(ctx, "task/") {
					if n++; err != nil {
						b.Fatal(err)
					}
				}
				if n != 10 {
					b.Fatal(n)
				}
			}
		})
	}
	// As a relay uses it: with ids that stay known.
	b.Run("op=queueWithID", func(b *testing.B) {
		s := store.NewMemory()
		n := uint64(0)
		b.ReportAllocs()
		for b.Loop() {
			n++
			if err := cycle(s, "box", strconv.FormatUint(n, 10), time.Hour); err != nil {
				b.Fatal(err)
			}
		}
	})
	// At the head of a long stream.
	for _, length := range []int{1000, 1_000_000} {
		b.Run(fmt.Sprintf("op=queue/length=%d", length), func(b *testing.B) {
			s := store.NewMemory()
			for range length {
				_, err := s.Append(ctx, "box", "", nil, 0)
				require.NoError(b, err)
			}
			b.ReportAllocs()
			for b.Loop() {
				if err := cycle(s, "box", "", 0); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
	b.Run("op=wake", func(b *testing.B) {
		s := store.NewMemory()
		done := make(chan error)
		go func() {
			var err error
			for after := uint64(0); err == nil && after < uint64(b.N); {
				if err = s.Wait(ctx, "ping", after); err == nil {
					var records []store.Record
					records, err = s.Read(ctx, "ping", after, 1)
					after = records[0].Seq
					done <- err
				}
			}
		}()
		b.ReportAllocs()
		for range b.N {
			if _, err := s.Append(ctx, "ping", "", nil, 0); err != nil {
				b.Fatal(err)
			}
			if err := <-done; err != nil {
				b.Fatal(err)
			}
		}
	})
}

// cycle is the life of one envelope.
func cycle(s store.Store, stream, id string, ttl time.Duration) error {
	ctx := context.Background()
	if _, err := s.Append(ctx, stream, id, payload, ttl); err != nil {
		return err
	}
	records, err := s.Read(ctx, stream, 0, 1)
	if err != nil || len(records) != 1 {
		return fmt.Errorf("%d records, %w", len(records), err)
	}
	return s.Ack(ctx, stream, records[0].Seq)
}

// TestAllocations bounds the allocations that the benchmarks measure.
func TestAllocations(t *testing.T) {
	if race.Enabled {
		t.Skip("the race detector allocates for itself")
	}
	ctx := t.Context()
	var s store.Store = store.NewMemory()
	keys := make([]string, 5000)
	for i := range keys {
		keys[i] = fmt.Sprintf("replay/%024d", i)
	}
	next := 0
	key := func() string { next++; return keys[next-1] }
	rev, err := s.Create(ctx, "k", payload, 0)
	require.NoError(t, err)
	for _, tt := range []struct {
		name  string
		limit float64
		do    func() error
	}{
		{"create", 3, func() error { _, err := s.Create(ctx, key(), payload, time.Hour); return err }},
		{"create existing", 0, func() error {
			if _, err := s.Create(ctx, "k", nil, time.Hour); !errors.Is(err, store.ErrExists) {
				return fmt.Errorf("got %w", err)
			}
			return nil
		}},
		{"get", 0, func() error { _, err := s.Get(ctx, "k"); return err }},
		{"get of an absent key", 0, func() error { _, _ = s.Get(ctx, "absent"); return nil }},
		{"update", 1, func() error { rev, err = s.Update(ctx, "k", payload, rev, 0); return err }},
		{"queue", 4, func() error { return cycle(s, "box", "", 0) }},
		{"queue with ids and ttl", 4, func() error { return cycle(s, "box with ids", key(), time.Hour) }},
		{"read of nothing", 0, func() error { _, err := s.Read(ctx, "nothing", 0, 0); return err }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got := testing.AllocsPerRun(1000, func() {
				if err := tt.do(); err != nil {
					t.Error(err)
				}
			})
			if got > tt.limit {
				t.Errorf("%v allocations, want at most %v", got, tt.limit)
			}
		})
	}
}
