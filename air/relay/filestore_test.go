// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/internal/bench/pair"
	"github.com/fivewire/fivewire/store"
)

// A fileStore is the durable store of these benchmarks: each change is in a file before the method
// returns. Changes that arrive during a sync are written together by the first of them.
type fileStore struct {
	*store.Memory
	f    *os.File
	sync bool

	mu      sync.Mutex
	done    sync.Cond
	buf     []byte // not yet written
	spare   []byte
	batch   uint64 // number of the batch in buf
	written uint64 // batches up to here are in the file
	busy    bool   // a writer is active
	err     error
}

func openFileStore(t testing.TB, sync bool) *fileStore {
	f, err := os.Create(filepath.Join(t.TempDir(), "log"))
	require.NoError(t, err)
	t.Cleanup(func() { _ = f.Close() })
	s := &fileStore{Memory: store.NewMemory(), f: f, sync: sync, batch: 1}
	s.done.L = &s.mu
	return s
}

func (s *fileStore) write(op byte, name string, parts ...[]byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.buf = append(s.buf, op)
	s.buf = binary.AppendUvarint(s.buf, uint64(len(name)))
	s.buf = append(s.buf, name...)
	for _, p := range parts {
		s.buf = binary.AppendUvarint(s.buf, uint64(len(p)))
		s.buf = append(s.buf, p...)
	}
	mine := s.batch
	for s.busy && s.written < mine {
		s.done.Wait()
	}
	if s.written >= mine {
		return s.err
	}
	s.busy = true
	out := s.buf
	s.buf, s.batch = s.spare[:0], s.batch+1
	s.mu.Unlock()
	_, err := s.f.Write(out)
	if err == nil && s.sync {
		err = s.f.Sync()
	}
	s.mu.Lock()
	s.err = errors.Join(s.err, err)
	s.spare, s.written, s.busy = out, mine, false
	s.done.Broadcast()
	return s.err
}

func (s *fileStore) Create(ctx context.Context, key string, value []byte, ttl time.Duration) (store.Revision, error) {
	rev, err := s.Memory.Create(ctx, key, value, ttl)
	if err == nil {
		err = s.write('c', key, value)
	}
	return rev, err
}

func (s *fileStore) Update(ctx context.Context, key string, value []byte, rev store.Revision, ttl time.Duration) (store.Revision, error) {
	rev, err := s.Memory.Update(ctx, key, value, rev, ttl)
	if err == nil {
		err = s.write('u', key, value)
	}
	return rev, err
}

func (s *fileStore) Append(ctx context.Context, stream, id string, value []byte, ttl time.Duration) (uint64, error) {
	seq, err := s.Memory.Append(ctx, stream, id, value, ttl)
	if err == nil {
		err = s.write('a', stream, []byte(id), value)
	}
	return seq, err
}

func (s *fileStore) Ack(ctx context.Context, stream string, seqs ...uint64) error {
	if err := s.Memory.Ack(ctx, stream, seqs...); err != nil {
		return err
	}
	var array [64]byte
	b := array[:0]
	for _, seq := range seqs {
		b = binary.AppendUvarint(b, seq)
	}
	return s.write('k', stream, b)
}

// logged is the floor: a mapQueue whose pushes and acknowledgements are written to a
// file one by one.
type logged struct {
	mapQueue
	fmu  sync.Mutex
	f    *os.File
	sync bool
}

func (l *logged) write(b ...[]byte) error {
	l.fmu.Lock()
	defer l.fmu.Unlock()
	_, err := l.f.Write(bytes.Join(b, nil))
	if err == nil && l.sync {
		err = l.f.Sync()
	}
	return err
}

func (l *logged) cycle(body []byte) error {
	err := l.write([]byte("p"), body, []byte("\n"))
	l.mapQueue.cycle(body)
	return errors.Join(err, l.write([]byte("a12345678")))
}

func fileQueues(b testing.TB, sync, alone bool, callers int) (s *fileStore, each func(seq int64) error) {
	s = openFileStore(b, sync)
	relay := newServer(b, ServerOptions{Limits: Limits{QueueLimitPerSession: 1 << 30, MaxStorage: -1, MaxStoragePerPrincipal: -1, MaxStoragePerSession: -1}, Persistence: Persistence{Store: s, SingleInstance: alone}})
	free := make(chan *queue, callers)
	for i := range callers {
		free <- newQueue(b, relay, fmt.Sprint("box", i))
	}
	return s, func(int64) error {
		q := <-free
		defer func() { free <- q }()
		return q.cycle()
	}
}

func BenchmarkPairRelayQueueFile(b *testing.B) {
	for _, sync := range []bool{false, true} {
		for _, callers := range []int{1, 16} {
			for _, alone := range []bool{false, true} {
				b.Run(fmt.Sprintf("store=file/sync=%t/callers=%d/alone=%t/lib=sdk", sync, callers, alone), func(b *testing.B) {
					f, err := os.Create(filepath.Join(b.TempDir(), "floor"))
					require.NoError(b, err)
					defer f.Close()
					floor := &logged{f: f, sync: sync}
					_, each := fileQueues(b, sync, alone, callers)
					body := signedSample(b, 1<<10)
					pair.RatioCallers(b, callers, each, func(int64) error { return floor.cycle(body) })
				})
			}
		}
	}
}

func BenchmarkRelayQueueFile(b *testing.B) {
	for _, sync := range []bool{false, true} {
		for _, callers := range []int{1, 16} {
			b.Run(fmt.Sprintf("store=file/sync=%t/callers=%d/lib=sdk", sync, callers), func(b *testing.B) {
				_, each := fileQueues(b, sync, true, callers)
				var n atomic.Int64
				b.SetParallelism(max(1, callers/2))
				b.ReportAllocs()
				b.ResetTimer()
				if callers == 1 {
					for i := range b.N {
						require.NoError(b, each(int64(i)))
					}
				} else {
					b.RunParallel(func(p *testing.PB) {
						for p.Next() {
							if err := each(n.Add(1)); err != nil {
								b.Error(err)
							}
						}
					})
				}
				b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "cycles/s")
			})
		}
	}
}

// Changes that arrive during a sync share the next one. The queue of the relay holds no lock during
// a sync.
func TestFileStoreGroups(t *testing.T) {
	s, each := fileQueues(t, true, false, 8)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 5 {
				require.NoError(t, each(0))
			}
		})
	}
	wg.Wait()
	require.Greater(t, s.batch, uint64(1))
	require.Less(t, s.batch, uint64(3*8*5+8), "more batches than changes")
	require.NoError(t, s.err)
}
