// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package sendq

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/fivewire/fivewire/internal/testkit"
)

// A window is one direction of a connection: a pipe with a bounded buffer.
type window struct {
	mu      sync.Mutex
	changed sync.Cond
	size    int
	buf     []byte
	isEnded bool
	check   func() // called by each Write
}

func newWindow(size int) *window {
	w := &window{size: size}
	w.changed.L = &w.mu
	return w
}

func (w *window) Write(p []byte) (n int, err error) {
	w.check()
	w.mu.Lock()
	defer w.mu.Unlock()
	for n < len(p) {
		for len(w.buf) == w.size && !w.isEnded {
			w.changed.Wait()
		}
		if w.isEnded {
			return n, io.ErrClosedPipe
		}
		k := min(len(p)-n, w.size-len(w.buf))
		w.buf = append(w.buf, p[n:n+k]...)
		n += k
		w.changed.Broadcast()
	}
	return n, nil
}

func (w *window) Read(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for len(w.buf) == 0 && !w.isEnded {
		w.changed.Wait()
	}
	if w.isEnded {
		return 0, io.EOF
	}
	n := copy(p, w.buf)
	w.buf = append(w.buf[:0], w.buf[n:]...)
	w.changed.Broadcast()
	return n, nil
}

func (w *window) end(error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.isEnded = true
	w.changed.Broadcast()
}

// A side is one end of a connection that sends requests and answers requests. A frame is a
// line: kind, caller, number, padding.
type side struct {
	q        *Queue
	in       *window
	peer     *side
	reserve  int // bytes reserved for a response
	response int // bytes of a response
	inline   bool
	isWrong  bool // the reader answers itself and waits for its queue

	handlers sync.WaitGroup
	pending  sync.WaitGroup // calls without a response
	failure  error
}

func newSides(t *rapid.T, isWrong bool) [2]*side {
	var sides [2]*side
	o := Options{
		MaxBytes:   rapid.IntRange(400, 1500).Draw(t, "bytes"),
		MaxReserve: rapid.IntRange(100, 500).Draw(t, "reserve"),
	}
	for i := range sides {
		s := &side{in: newWindow(rapid.IntRange(1, 600).Draw(t, "window")), isWrong: isWrong}
		s.reserve, s.response = rapid.IntRange(0, 100).Draw(t, "reserved"), rapid.IntRange(0, 200).Draw(t, "response")
		s.inline = rapid.Bool().Draw(t, "inline")
		sides[i] = s
	}
	for i, s := range sides {
		s.peer = sides[1-i]
		out := s.peer.in
		o.OnCut = out.end
		s.q = New(out, o)
		out.check = func() {
			if used, _ := usage(s.q); used[data] > o.MaxBytes || used[control] > o.MaxReserve {
				s.failure = fmt.Errorf("Q1: %d bytes are queued, want at most %d and %d", used, o.MaxBytes, o.MaxReserve)
			}
		}
	}
	return sides
}

// call sends the requests of one caller without waiting for responses.
func (s *side) call(caller, n, size int) {
	put := s.q.PutWait
	if s.inline {
		put = s.q.Write
	}
	for i := range n {
		s.pending.Add(1)
		if err := put(context.Background(), fmt.Appendf(nil, "request %d %d %s\n", caller, i, msg(size)), 0); err != nil {
			s.failure = err
			s.pending.Done()
		}
	}
}

// read is the goroutine that reads.
func (s *side) read() {
	next := map[string]int{} // number of the next request by caller
	for lines := bufio.NewScanner(s.in); lines.Scan(); {
		var kind, caller string
		var number int
		_, _ = fmt.Sscan(lines.Text(), &kind, &caller, &number)
		if kind != "request" {
			s.pending.Done()
			continue
		}
		if number != next[caller] {
			s.failure = fmt.Errorf("Q2: got request %d of caller %s, want %d", number, caller, next[caller])
		}
		next[caller]++
		response := fmt.Appendf(nil, "response 0 0 %s\n", msg(s.response))
		r, err := s.q.Reserve(s.reserve)
		switch {
		case s.isWrong:
			_ = s.q.PutWait(context.Background(), response, r)
		case err != nil:
			if s.q.PutControl([]byte("refusal 0 0\n"), 0) != nil {
				s.peer.pending.Done() // the refusal is lost
			}
		default:
			s.handlers.Go(func() { s.handle(response, r) })
		}
	}
}

func (s *side) handle(response []byte, r Reservation) {
	err := s.q.Put(response, r)
	if err == ErrFull && s.inline {
		err = s.q.Write(context.Background(), response, r)
	} else if err == ErrFull {
		err = s.q.PutWait(context.Background(), response, r)
	}
	if err != nil {
		s.failure = err
	}
}

// exchange lets both sides send requests and returns how long it takes.
func exchange(t *rapid.T, sides [2]*side) time.Duration {
	var readers, callers sync.WaitGroup
	start := time.Now()
	for _, s := range sides {
		readers.Go(s.read)
		for caller := range rapid.IntRange(1, 4).Draw(t, "callers") {
			n, size := rapid.IntRange(1, 12).Draw(t, "requests"), rapid.IntRange(0, 200).Draw(t, "size")
			callers.Go(func() { s.call(caller, n, size) })
		}
	}
	callers.Wait()
	if !sides[0].isWrong {
		sides[0].pending.Wait()
		sides[1].pending.Wait()
	}
	took := time.Since(start)
	for _, s := range sides {
		s.handlers.Wait()
		s.q.Cut(nil)
	}
	readers.Wait()
	return took
}

// Two ends that both send and answer requests never block each other: all messages are
// written (Q3) in order (Q2) within the bounds (Q1), without the help of a time-out.
func TestTwoEndsNeverBlockEachOther(t *testing.T) {
	testkit.CheckInBubble(t, func(t *rapid.T) {
		sides := newSides(t, false)
		took := exchange(t, sides)
		for _, s := range sides {
			require.NoError(t, s.failure)
		}
		require.Zero(t, took, "Q3: a time-out ended the exchange")
	})
}

// The model above can find ends that block each other: it does if readers wait.
func TestTwoEndsWhoseReadersWaitBlockEachOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var sides [2]*side
		for i := range sides {
			sides[i] = &side{in: newWindow(10), response: 100, isWrong: true}
		}
		for i, s := range sides {
			s.peer = sides[1-i]
			s.peer.in.check = func() {}
			s.q = New(s.peer.in, Options{MaxBytes: 400, OnCut: func(err error) {
				s.in.end(err)
				s.peer.in.end(err)
			}})
		}
		start := time.Now()
		var all sync.WaitGroup
		for _, s := range sides {
			all.Go(s.read)
			all.Go(func() { s.call(0, 1000, 100) })
		}
		all.Wait()
		require.Equal(t, 30*time.Second, time.Since(start), "Q4: they are cut after WriteTimeout")
		require.Contains(t, []error{sides[0].q.Put(nil, 0), sides[1].q.Put(nil, 0)}, ErrSlowReader)
	})
}

// A peer that stops reading at any moment costs WriteTimeout after its last progress (Q4).
func TestDeadPeerIsCutAfterLastProgress(t *testing.T) {
	testkit.CheckInBubble(t, func(t *rapid.T) {
		g := newGate(true)
		var end time.Time
		q := New(g, Options{OnCut: func(err error) {
			end = time.Now()
			g.end(err)
		}})
		size := rapid.IntRange(1, 900<<10).Draw(t, "size")
		want := time.Now()
		require.NoError(t, q.Put([]byte(strings.Repeat("x", size)), 0))
		for _, d := range rapid.SliceOfN(rapid.Int64Range(1, 29), 0, 9).Draw(t, "pauses") {
			time.Sleep(time.Duration(d) * time.Second)
			g.next()
			if used, _ := usage(q); used[data] > 0 {
				want = time.Now()
			}
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if used, _ := usage(q); used[data] > 0 {
			require.Equal(t, 30*time.Second, end.Sub(want))
		} else {
			require.Zero(t, end)
		}
	})
}
