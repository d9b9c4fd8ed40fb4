// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package streamlog

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/fivewire/fivewire/conformance/fault"
	"github.com/fivewire/fivewire/internal/lease"
	"github.com/fivewire/fivewire/internal/race"
	"github.com/fivewire/fivewire/store"
)

// A world is a store, processes, streams, and readers, and a model of the streams.
type world struct {
	t         require.TestingT
	choose    func(n int) int // 0 to n-1
	db        store.Store     // nil: memory
	isFaulty  atomic.Bool
	kinds     []fault.Action
	processes []*process
	streams   []*modelStream
	steps     map[string]int
	created   int
}

// A modelStream is the history of a stream.
type modelStream struct {
	id       string
	o        Options
	w        *Writer // nil after the end and after a failure of the process
	p        *process
	appended map[uint64][][]byte // by number; a fenced writer appends other items under the same numbers
	accepted uint64              // by the current writer
	items    map[uint64][]byte   // that readers have got
	top      uint64              // the last of them
	isFinal  bool                // Finish was called
	end      error               // that readers have got
	readers  []*modelReader
}

type modelReader struct {
	r        *Reader
	p        *process
	at       uint64
	lastRead time.Time
	attached time.Time // since then nothing has kept the owner of the stream from knowing the reader
}

func newWorld(t require.TestingT, choose func(n int) int, db store.Store, kinds []fault.Action) *world {
	w := &world{t: t, choose: choose, db: db, kinds: kinds, steps: map[string]int{}}
	for range 3 {
		w.start()
	}
	w.create()
	return w
}

func (w *world) start() {
	if w.db == nil {
		w.processes = []*process{{Table: New(nil, nil, "")}}
		return
	}
	var rules []fault.Rule
	for _, k := range w.kinds {
		rules = append(rules, fault.Rule{
			Action: k, Probability: 0.1, Delay: time.Duration(1+w.choose(10)) * time.Second,
			When: func(_, _ string) bool { return w.isFaulty.Load() },
		})
	}
	p := &process{plan: &fault.Plan{Seed: uint64(w.choose(1 << 30)), Rules: rules}}
	faulty := w.isFaulty.Swap(false)
	defer w.isFaulty.Store(faulty)
	view := fault.Store(w.db, p.plan)
	var err error
	p.lease, err = lease.Acquire(context.Background(), view, lease.Options{Prefix: "x/"})
	require.NoError(w.t, err)
	p.Table = New(view, p.lease, "x/")
	w.processes = append(w.processes, p)
}

func pick[T any](w *world, list []T) T { return list[w.choose(len(list))] }

func (w *world) create() {
	w.created++
	s := &modelStream{id: fmt.Sprint(w.created), p: pick(w, w.processes)}
	s.appended, s.items = map[uint64][][]byte{}, map[uint64][]byte{}
	s.o = Options{
		Window: pick(w, []int{0, 1, 10 * windowItem, 64 * windowItem}), Retain: pick(w, []int{-1, 0, 1000, 20000}),
		SlowTimeout: pick(w, []time.Duration{0, 4 * time.Second}), Resumable: w.choose(2) == 0,
		Grace: pick(w, []time.Duration{0, -1, time.Minute}), Retention: pick(w, []time.Duration{0, -1}),
		Movable: w.choose(3) == 0,
	}
	w.open(s)
	w.streams = append(w.streams, s)
}

// open makes a writer in a process.
func (w *world) open(s *modelStream) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	writer, err := s.p.Create(ctx, s.id, user, s.o)
	if err != nil {
		return
	}
	s.w = writer
	s.accepted = writer.s.last
	if w.db != nil && writer.s.log.k == 1 && len(s.appended) > 0 { // the stream had ended and was removed
		*s = modelStream{
			id: s.id, o: s.o, p: s.p, w: writer, appended: map[uint64][][]byte{}, items: map[uint64][]byte{},
		}
	}
}

func (w *world) append(s *modelStream) {
	for range 1 + w.choose(20) {
		if s.w == nil {
			return
		}
		item := append(number(uint64(w.choose(1<<30))), make([]byte, w.choose(2)*w.choose(2000))...)
		ctx, cancel := context.WithTimeout(context.Background(), time.Millisecond)
		n, err := s.w.Append(ctx, item)
		cancel()
		switch {
		case err == nil:
			s.accepted++
			require.Equal(w.t, s.accepted, n, "number of an item")
			s.appended[n] = append(s.appended[n], item)
			w.steps["append"]++
		case errors.Is(err, context.DeadlineExceeded):
			return
		default:
			require.True(w.t, errors.Is(err, ErrNoReader) || errors.Is(err, lease.ErrLost), "Append: %v", err)
			s.w = nil
		}
	}
}

func (w *world) openReader(s *modelStream) {
	after := uint64(w.choose(int(s.accepted) + 3))
	if w.choose(2) == 0 {
		after = uint64(max(0, int(s.top)-w.choose(20)))
	}
	p := pick(w, w.processes)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	r, err := p.Read(ctx, s.id, user, after)
	var gap *GapError
	switch {
	case err == nil:
		s.readers = append(s.readers, &modelReader{r: r, p: p, at: after, lastRead: time.Now(), attached: time.Now()})
		w.steps["open"]++
	case errors.As(err, &gap):
		require.Equal(w.t, after+1, gap.Want)
		require.Greater(w.t, gap.First, gap.Want)
		w.steps["gap"]++
	case errors.Is(err, ErrAhead):
		require.Greater(w.t, after, s.top, "ErrAhead at a position that a reader has reached")
	}
}

// read takes items and checks S1, S2 and the errors.
func (w *world) read(s *modelStream, m *modelReader, d time.Duration) (err error) {
	ctx, cancel := context.WithTimeout(context.Background(), d)
	items, err := m.r.Next(ctx, make([]Item, 0, 1+w.choose(40)))
	cancel()
	silence := time.Since(m.lastRead)
	if w.isFaulty.Load() || silence >= 4*time.Second {
		m.attached = time.Now()
	}
	for _, item := range items {
		m.at++
		require.Equal(w.t, m.at, item.N, "S1: number")
		isSame := func(data []byte) bool { return bytes.Equal(data, item.Data) }
		require.True(w.t, slices.ContainsFunc(s.appended[m.at], isSame), "S1: item %d of %s was not appended", m.at, s.id)
		if s.items[m.at] == nil {
			s.items[m.at] = item.Data
		}
		require.Equal(w.t, s.items[m.at], item.Data, "S1: item %d differs between readers", m.at)
		s.top = max(s.top, m.at)
		w.steps["read"]++
	}
	m.lastRead = time.Now()
	if err == nil || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, fault.ErrInjected) {
		return err
	}
	var gap *GapError
	var cut *CutError
	switch {
	case errors.As(err, &gap), errors.Is(err, ErrSlowReader):
		isAttached := m.r.s != nil || time.Since(m.attached) > 5*time.Second
		require.False(w.t, isAttached && silence < 4*time.Second, "S5: %v after %v", err, silence)
	case errors.As(err, &cut), errors.Is(err, io.EOF):
		if err == io.EOF {
			require.True(w.t, s.isFinal, "S2: EOF before Finish")
		} else {
			require.GreaterOrEqual(w.t, cut.N, m.at, "S2: end before the position")
		}
		if s.end == nil {
			s.end = err
		}
		require.EqualError(w.t, err, s.end.Error(), "S2: readers get different ends")
		require.LessOrEqual(w.t, s.top, m.at, "S2: %v before the last item", err)
		w.steps["end"]++
	default:
		require.ErrorIs(w.t, err, ErrUnknown)
	}
	s.readers = slices.DeleteFunc(s.readers, func(o *modelReader) bool { return o == m })
	return err
}

// check holds the streams to S3.
func (w *world) check() {
	for _, s := range w.streams {
		if s.w == nil {
			continue
		}
		o := s.w.s.o
		limit := uint64(o.Window) + uint64(o.Retain) + 4096
		if w.db != nil {
			limit = uint64(o.Window) + ringRetain + 4096
		}
		require.LessOrEqual(w.t, heldBytes(s.w.s), limit, "S3: bytes of %s", s.id)
	}
}

// step makes one random step.
func (w *world) step() {
	s := pick(w, w.streams)
	switch n := w.choose(100); {
	case n < 35:
		w.append(s)
	case n < 75:
		if len(s.readers) > 0 {
			_ = w.read(s, pick(w, s.readers), time.Millisecond)
		}
	case n < 85:
		w.changeReaders(s)
	case n < 94:
		limit := pick(w, []time.Duration{time.Millisecond, time.Second, 20 * time.Second})
		time.Sleep(time.Duration(1+w.choose(int(limit/time.Microsecond))) * time.Microsecond)
	case n < 96:
		w.finish(s)
	case n < 97:
		w.create()
		if len(w.streams) > 4 {
			w.streams = w.streams[1:]
		}
	case w.db != nil:
		w.disturb(s)
	}
	w.check()
}

func (w *world) changeReaders(s *modelStream) {
	if w.choose(3) > 0 && len(s.readers) < 5 {
		w.openReader(s)
		return
	}
	if len(s.readers) > 0 {
		m := pick(w, s.readers)
		m.r.Close()
		s.readers = slices.DeleteFunc(s.readers, func(o *modelReader) bool { return o == m })
	}
}

// disturb switches faults, moves a stream whose process has failed, or fails a process.
func (w *world) disturb(s *modelStream) {
	switch w.choose(9) {
	case 0, 1, 2, 3:
		w.isFaulty.Store(!w.isFaulty.Load())
	case 4:
		w.crash(pick(w, w.processes))
	default:
		if !s.o.Movable || s.w != nil || s.end != nil || s.isFinal {
			return
		}
		s.p = pick(w, w.processes)
		w.open(s)
		if s.w == nil { // it may have ended, been removed, and begun again
			w.streams = slices.DeleteFunc(w.streams, func(o *modelStream) bool { return o == s })
			w.create()
		}
		w.steps["move"]++
	}
}

func (w *world) finish(s *modelStream) {
	if s.w == nil {
		return
	}
	if w.choose(3) == 0 {
		s.w.Cut(errTest)
		s.w = nil
		return
	}
	s.isFinal = true
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_ = s.w.Finish(ctx, nil)
	s.w = nil
}

func visible(s *stream) uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.visible
}

func (w *world) crash(p *process) {
	p.crash()
	w.processes = slices.DeleteFunc(w.processes, func(o *process) bool { return o == p })
	w.start()
	for _, s := range w.streams {
		s.readers = slices.DeleteFunc(s.readers, func(m *modelReader) bool { return m.p == p })
		if s.p == p {
			s.w = nil
		}
	}
	w.steps["crash"]++
}

// close repairs the store and checks S4 and S5: writers do not wait for readers that have left, and
// readers that read get everything.
func (w *world) close() {
	w.isFaulty.Store(false)
	time.Sleep(2 * time.Minute)
	for _, s := range w.streams {
		var m *modelReader
		if s.w != nil {
			after := visible(s.w.s)
			r, err := s.p.Read(context.Background(), s.id, user, after)
			if err == nil {
				m = &modelReader{r: r, p: s.p, at: after, lastRead: time.Now()}
			}
		}
		for _, other := range s.readers {
			other.r.Close()
		}
		s.readers = nil
		if m == nil {
			continue
		}
		last := s.accepted + 100
		for s.accepted < last && s.w != nil {
			before := s.accepted
			w.append(s)
			if s.accepted == before && s.w != nil {
				require.NoError(w.t, w.read(s, m, time.Minute), "S4, S5: neither the writer nor the reader continues")
			}
		}
		if s.w == nil {
			continue
		}
		s.isFinal = true
		require.NoError(w.t, s.w.Finish(context.Background(), nil))
		var err error
		for ; err == nil; err = w.read(s, m, time.Minute) {
		}
		require.Equal(w.t, io.EOF, err, "S5: end of %s", s.id)
		require.Equal(w.t, s.accepted, m.at, "S5: items of %s", s.id)
		w.steps["complete"]++
	}
}

func (w *world) stop() {
	for _, p := range w.processes {
		if w.db != nil {
			p.stop()
		}
	}
}

var modelKinds = map[string][]fault.Action{
	"memory":       nil,
	"stored":       {},
	"error before": {fault.ErrorBefore},
	"error after":  {fault.ErrorAfter},
	"late landing": {fault.LandLater},
	"hang":         {fault.Hang},
	"storm":        {fault.ErrorBefore, fault.ErrorAfter, fault.LandLater, fault.Hang, fault.Conflict, fault.Delay},
}

func runWorld(t require.TestingT, choose func(n int) int, name string, steps int) map[string]int {
	var db store.Store
	if modelKinds[name] != nil {
		db = store.NewMemory()
	}
	w := newWorld(t, choose, db, modelKinds[name])
	defer w.stop()
	for range steps {
		w.step()
	}
	w.close()
	return w.steps
}

// bubble is a testing.T for rapid inside a bubble, where Deadline must not be called.
type bubble struct{ *testing.T }

func TestStreamsKeepInvariants(t *testing.T) {
	steps := 100
	if race.Enabled {
		steps = 30
	}
	for name := range modelKinds {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				rapid.Check(bubble{t}, func(t *rapid.T) {
					choose := func(n int) int { return rapid.IntRange(0, n-1).Draw(t, "choice") }
					runWorld(t, choose, name, steps)
				})
			})
		})
	}
}

func TestStreamsKeepInvariantsInLongRuns(t *testing.T) {
	steps := 1000
	if os.Getenv("FIVEWIRE_LONG") != "" {
		steps = 10_000
	}
	for name := range modelKinds {
		for seed := range uint64(1) {
			t.Run(fmt.Sprintf("%s %d", name, seed), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					counts := runWorld(t, rand.New(rand.NewPCG(seed, 0)).IntN, name, steps)
					t.Log(counts)
				})
			})
		}
	}
}
