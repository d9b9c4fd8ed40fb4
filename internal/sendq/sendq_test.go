// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package sendq

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"github.com/fivewire/fivewire/internal/guard"
	"github.com/fivewire/fivewire/internal/race"
	"github.com/fivewire/fivewire/internal/testkit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A gate is a writer that records its calls. While it is closed, calls block.
type gate struct {
	mu      sync.Mutex
	open    *sync.Cond
	shut    bool
	pass    int // calls that a closed gate lets through
	isEnded bool
	calls   []string
	last    []byte // argument of the last call
	err     error  // of all calls
}

func newGate(shut bool) *gate {
	g := &gate{shut: shut}
	g.open = sync.NewCond(&g.mu)
	return g
}

func (g *gate) Write(p []byte) (int, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for g.shut && g.pass == 0 && !g.isEnded {
		g.open.Wait()
	}
	g.pass = max(g.pass-1, 0)
	if g.isEnded {
		return 0, io.ErrClosedPipe
	}
	g.calls, g.last = append(g.calls, string(p)), p
	return len(p), g.err
}

// set closes or opens the gate.
func (g *gate) set(shut bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.shut = shut
	g.open.Broadcast()
}

// next lets one call through.
func (g *gate) next() {
	g.mu.Lock()
	g.pass = 1
	g.open.Broadcast()
	g.mu.Unlock()
	synctest.Wait()
}

// end is the OnCut function of a gate.
func (g *gate) end(error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.isEnded = true
	g.open.Broadcast()
}

func (g *gate) list() []string {
	g.mu.Lock()
	defer g.mu.Unlock()
	return append([]string(nil), g.calls...)
}

// newQueue returns a queue to a gate. A first message "-" is in a Write call if it is closed.
func newQueue(t *testing.T, shut bool, o Options) (*Queue, *gate) {
	t.Helper()
	g := newGate(shut)
	o.OnCut = g.end
	q := New(g, o)
	if shut {
		require.NoError(t, q.PutControl([]byte("-"), 0))
		synctest.Wait()
	}
	t.Cleanup(func() { q.Cut(nil) })
	return q, g
}

// later calls f in a goroutine and returns a function that reports its error, or nil and
// false while it runs.
func later(f func() error) func() (error, bool) {
	done := make(chan error, 1)
	go func() { done <- f() }()
	return func() (error, bool) {
		synctest.Wait()
		select {
		case err := <-done:
			return err, true
		default:
			return nil, false
		}
	}
}

func msg(n int) []byte { return bytes.Repeat([]byte("x"), n) }

func TestPutNeverBlocks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q, g := newQueue(t, true, Options{})
		start, n := time.Now(), 0
		for q.Put(msg(100), 0) == nil {
			n++
		}
		require.Equal(t, 1024, n, "the bound of messages")
		require.Equal(t, ErrFull, q.Put(nil, 0))
		n = 0
		for q.PutControl(msg(100), 0) == nil {
			n++
		}
		require.Equal(t, (64<<10-65)/164, n, "the reserve")
		require.Zero(t, time.Since(start))
		g.set(false)
		synctest.Wait()
		require.NoError(t, q.Put(msg(1), 0), "a queue with space accepts messages again")
	})
}

// A message that is refused leaves the queue as it is.
func TestRefusedMessageDoesNotEndSession(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q, g := newQueue(t, true, Options{MaxBytes: 200, MaxReserve: 200})
		require.NoError(t, q.Put([]byte("a"), 0))
		require.NoError(t, q.Put([]byte("b"), 0))
		require.Equal(t, ErrFull, q.Put(msg(100), 0))
		require.NoError(t, q.PutControl([]byte("c"), 0))
		require.NoError(t, q.PutControl([]byte("d"), 0))
		require.Equal(t, ErrFull, q.PutControl(msg(100), 0))
		_, err := q.Reserve(100)
		require.Equal(t, ErrFull, err)
		g.set(false)
		require.NoError(t, q.Flush(t.Context()))
		require.Equal(t, []string{"-", "ab", "cd"}, g.list())
	})
}

func TestBounds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tests := []struct {
			name string
			o    Options
			size int
			want int
		}{
			{"default bytes", Options{}, 8 << 10, (1 << 20) / (8<<10 + 64)},
			{"default messages", Options{}, 0, 1024},
			{"bytes", Options{MaxBytes: 1000}, 36, 10},
			{"messages", Options{MaxMessages: 7}, 36, 7},
			{"no bound of messages", Options{MaxMessages: -1}, 0, (1 << 20) / 64},
			{"no bounds", Options{MaxMessages: -1, MaxBytes: -1}, 100, 20000},
		}
		for _, tt := range tests {
			q, _ := newQueue(t, true, tt.o)
			n := 0
			for n < 20000 && q.Put(msg(tt.size), 0) == nil {
				n++
			}
			require.Equal(t, tt.want, n, tt.name)
			q.Cut(nil)
		}
		q, _ := newQueue(t, true, Options{MaxReserve: -1})
		for range 2000 {
			require.NoError(t, q.PutControl(msg(100), 0))
		}
	})
}

func TestMessageAboveBoundNeedsEmptyLane(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q, g := newQueue(t, true, Options{MaxBytes: 1000, MaxReserve: 300})
		r, err := q.Reserve(100)
		require.NoError(t, err)
		require.NoError(t, q.Put(msg(5000), 0), "a reservation does not prevent it")
		require.Equal(t, ErrFull, q.Put(msg(5000), 0))
		require.Equal(t, ErrFull, q.Put(msg(1), 0))
		require.NoError(t, q.Put(msg(100), r))
		require.Equal(t, ErrFull, q.PutControl(msg(300), 0))
		g.set(false)
		require.NoError(t, q.Flush(t.Context()))
		require.NoError(t, q.PutControl(msg(300), 0))
	})
}

func TestReservationKeepsSpace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q, g := newQueue(t, true, Options{MaxBytes: 1000, MaxMessages: 5})
		r, err := q.Reserve(436)
		require.NoError(t, err)
		require.NoError(t, q.Put(msg(436), 0))
		require.Equal(t, ErrFull, q.Put(nil, 0))
		require.Equal(t, ErrFull, q.Put(msg(437), r), "the message is larger than the reservation")
		require.NoError(t, q.Put(msg(436), r))
		q.Release(0)
		require.Equal(t, ErrFull, q.Put(nil, 0))
		g.set(false)
		require.NoError(t, q.Flush(t.Context()))

		g.set(true)
		require.NoError(t, q.PutControl(nil, 0))
		var all [5]Reservation
		for i := range all {
			all[i], err = q.Reserve(0)
			require.NoError(t, err)
		}
		_, err = q.Reserve(0)
		require.Equal(t, ErrFull, err, "a reservation counts as a message")
		require.Equal(t, ErrFull, q.Put(nil, 0))
		require.NoError(t, q.Put(msg(500), all[0]), "a larger message takes free space")
		q.Release(all[1])
		require.NoError(t, q.Put(nil, 0))
		require.ErrorIs(t, q.PutWait(ctxEnded(), nil, all[2]), context.Canceled)
		require.NoError(t, q.Put(nil, 0), "PutWait uses the reservation up")
		require.Equal(t, ErrFull, q.Put(nil, 0))
	})
}

func ctxEnded() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}

func TestPutWaitIsServedInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q, g := newQueue(t, true, Options{MaxBytes: 1000, Separate: true})
		require.NoError(t, q.Put(msg(800), 0))
		ctx, cancel := context.WithCancel(t.Context())
		large := later(func() error { return q.PutWait(t.Context(), msg(700), 0) })
		synctest.Wait()
		canceled := later(func() error { return q.PutWait(ctx, msg(2), 0) })
		synctest.Wait()
		small := later(func() error { return q.Write(t.Context(), msg(3), 0) })
		synctest.Wait()
		require.Equal(t, ErrFull, q.Put(nil, 0), "Put does not overtake")
		_, err := q.Reserve(0)
		require.Equal(t, ErrFull, err, "Reserve does not overtake")
		cancel()
		err, done := canceled()
		require.True(t, done)
		require.ErrorIs(t, err, context.Canceled)
		_, done = large()
		require.False(t, done)
		_, done = small()
		require.False(t, done, "a small message does not overtake a large one")
		g.set(false)
		for _, f := range []func() (error, bool){large, small} {
			err, done := f()
			require.True(t, done)
			require.NoError(t, err)
		}
		require.NoError(t, q.Flush(t.Context()))
		require.Equal(t, []string{"-", string(msg(800)), string(msg(700)), string(msg(3))}, g.list())
		require.NoError(t, q.Put(nil, 0))
	})
}

func TestPutWaitEndsWithContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q, g := newQueue(t, true, Options{MaxBytes: 100, WriteTimeout: time.Hour})
		require.ErrorIs(t, q.PutWait(ctxEnded(), nil, 0), context.Canceled)
		require.NoError(t, q.PutWait(t.Context(), nil, 0))
		for _, put := range []func(context.Context, []byte, Reservation) error{q.PutWait, q.Write} {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			start := time.Now()
			require.ErrorIs(t, put(ctx, msg(99), 0), context.DeadlineExceeded)
			require.Equal(t, time.Second, time.Since(start))
			cancel()
		}
		g.set(false)
		require.NoError(t, q.Flush(t.Context()))
		require.Equal(t, []string{"-"}, g.list(), "neither message is sent")
	})
}

func TestReleaseWakesPutWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q, _ := newQueue(t, true, Options{MaxBytes: 200})
		r, err := q.Reserve(100)
		require.NoError(t, err)
		put := later(func() error { return q.PutWait(t.Context(), msg(100), 0) })
		_, done := put()
		require.False(t, done)
		q.Release(r)
		err, done = put()
		require.True(t, done)
		require.NoError(t, err)
	})
}

func TestReserveWaitIsServedInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q, g := newQueue(t, true, Options{MaxBytes: 1000})
		require.NoError(t, q.Put(msg(800), 0))
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := q.ReserveWait(ctx, 500)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		var r Reservation
		reserved := later(func() (err error) { r, err = q.ReserveWait(t.Context(), 500); return err })
		synctest.Wait()
		put := later(func() error { return q.PutWait(t.Context(), msg(600), 0) })
		_, done := reserved()
		require.False(t, done)
		g.set(false)
		err, done = reserved()
		require.True(t, done)
		require.NoError(t, err)
		_, done = put()
		require.False(t, done, "the reservation holds the space")
		require.NoError(t, q.Put(msg(500), r))
		err, done = put()
		require.True(t, done)
		require.NoError(t, err)
		require.NoError(t, q.Close(t.Context()))
		_, err = q.ReserveWait(t.Context(), 1)
		require.ErrorIs(t, err, ErrClosed)
	})
}

// Write writes in the goroutine of its caller, from the buffer of its caller, and keeps
// nothing of it.
func TestWriteByCaller(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q, g := newQueue(t, false, Options{})
		for i := range 3 {
			m := fmt.Appendf(nil, "message %d", i)
			require.NoError(t, q.Write(t.Context(), m, 0))
			require.Len(t, g.list(), i+1, "written before Write returns")
			require.Same(t, &m[0], &g.last[0])
			clear(m)
		}
		require.Equal(t, []string{"message 0", "message 1", "message 2"}, g.list())
		require.Nil(t, q.lanes[data].free.kept)

		g.set(true)
		first := later(func() error { return q.Write(t.Context(), []byte("a"), 0) })
		_, done := first()
		require.False(t, done)
		require.NoError(t, q.Write(t.Context(), []byte("b"), 0), "another write is in progress")
		require.NoError(t, q.Put([]byte("c"), 0))
		require.NoError(t, q.PutControl([]byte("d"), 0))
		g.set(false)
		err, done := first()
		require.True(t, done)
		require.NoError(t, err)
		require.Equal(t, []string{"a", "d", "bc"}, g.list()[3:])
	})
}

func TestMessagesAreJoined(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q, g := newQueue(t, true, Options{})
		for range 20 {
			require.NoError(t, q.Put(msg(10<<10), 0))
		}
		require.NoError(t, q.Put(msg(150<<10), 0))
		require.NoError(t, q.Put(msg(1<<10), 0))
		require.NoError(t, q.Put(msg(17<<10), 0))
		require.NoError(t, q.Put(msg(2<<10), 0))
		require.NoError(t, q.Put(append(make([]byte, 0, 500<<10), msg(150<<10)...), 0))
		g.set(false)
		require.NoError(t, q.Flush(t.Context()))
		var sizes []int
		for _, call := range g.list() {
			sizes = append(sizes, len(call)>>10)
		}
		require.Equal(t, []int{0, 60, 60, 60, 20, 64, 64, 22, 1, 17, 2, 64, 64, 22}, sizes)
	})
}

func TestSeparateMessagesAreNotJoined(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q, g := newQueue(t, true, Options{Separate: true})
		want := []string{"-", "a", "bc", string(msg(200 << 10)), "d"}
		for _, m := range want[1:] {
			require.NoError(t, q.Put([]byte(m), 0))
		}
		g.set(false)
		require.NoError(t, q.Flush(t.Context()))
		require.Equal(t, want, g.list())
		require.NoError(t, q.Write(t.Context(), msg(200<<10), 0))
		require.Len(t, g.list(), 6)
	})
}

func TestControlPrecedesData(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q, g := newQueue(t, true, Options{})
		for range 4 {
			require.NoError(t, q.Put([]byte(strings.Repeat("d", 60<<10)), 0))
		}
		for range 2 {
			require.NoError(t, q.PutControl(msg(30<<10), 0))
		}
		g.set(false)
		require.NoError(t, q.Flush(t.Context()))
		var order strings.Builder
		for _, call := range g.list() {
			order.WriteByte(call[0])
		}
		require.Equal(t, "-dxdxdd", order.String(), "after a control chunk, and only then, data has its turn")
	})
}

// A cancel overtakes data, but not the request that it cancels.
func TestControlFollowsItsRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q, g := newQueue(t, true, Options{Separate: true})
		require.NoError(t, q.Put([]byte("request 1"), 0))
		first := q.Position()
		g.set(false)
		require.NoError(t, q.Flush(t.Context()))
		g.set(true)
		require.NoError(t, q.Put([]byte("data"), 0))
		synctest.Wait()
		require.NoError(t, q.Put([]byte("request 2"), 0))
		require.NoError(t, q.PutControl([]byte("cancel 2"), q.Position()))
		require.NoError(t, q.PutControl([]byte("cancel 1"), first))
		used, _ := usage(q)
		require.Equal(t, 2*72, used[control], "both are in the reserve")
		g.set(false)
		require.NoError(t, q.Flush(t.Context()))
		require.Equal(t, []string{"-", "request 1", "data", "cancel 1", "request 2", "cancel 2"}, g.list())
		require.Zero(t, q.used)
	})
}

// A peer that reads nothing costs WriteTimeout, not more.
func TestDeadPeerCostsWriteTimeout(t *testing.T) {
	for _, timeout := range []time.Duration{0, time.Minute} {
		synctest.Test(t, func(t *testing.T) {
			want := timeout
			if want == 0 {
				want = 30 * time.Second
			}
			q, g := newQueue(t, false, Options{MaxBytes: 200, WriteTimeout: timeout})
			time.Sleep(time.Hour) // an idle queue is not slow
			require.NoError(t, q.Put(nil, 0))
			synctest.Wait()
			g.set(true)
			time.Sleep(10 * time.Second)
			start := time.Now()
			inline := later(func() error { return q.Write(t.Context(), msg(10), 0) })
			synctest.Wait()
			time.Sleep(10 * time.Second)
			require.NoError(t, q.Put(msg(10), 0))
			require.Equal(t, ErrSlowReader, q.PutWait(t.Context(), msg(100), 0))
			require.Equal(t, want, time.Since(start))
			_, done := inline()
			require.True(t, done)
			require.Equal(t, ErrSlowReader, q.Put(nil, 0))
			require.Equal(t, ErrSlowReader, q.Flush(t.Context()))
			require.Equal(t, ErrSlowReader, q.Close(t.Context()))
		})
	}
}

func TestSlowPeerWithProgressIsNotCut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q, g := newQueue(t, true, Options{})
		require.NoError(t, q.Put(msg(300<<10), 0))
		for range 6 {
			time.Sleep(29 * time.Second)
			g.next()
		}
		require.Len(t, g.list(), 6)
		require.NoError(t, q.Put(msg(1), 0))
		for range 5 {
			time.Sleep(29 * time.Second)
			q.Progress()
		}
		require.NoError(t, q.Put(nil, 0))
		time.Sleep(30 * time.Second)
		synctest.Wait()
		require.Equal(t, ErrSlowReader, q.Put(nil, 0))
	})
	synctest.Test(t, func(t *testing.T) {
		q, _ := newQueue(t, true, Options{WriteTimeout: -1})
		time.Sleep(10000 * time.Hour)
		require.NoError(t, q.Put(nil, 0), "a negative time-out is off")
	})
}

// A peer that lets data pass, but so slowly that the reserve remains full, is cut.
func TestFullReserveIsCut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q, _ := newQueue(t, true, Options{MaxReserve: 200})
		start := time.Now()
		time.Sleep(20 * time.Second)
		q.Progress()
		require.NoError(t, q.PutControl(msg(70), 0))
		require.Equal(t, ErrFull, q.PutControl(msg(70), 0))
		for range 6 {
			time.Sleep(9 * time.Second)
			q.Progress()
		}
		synctest.Wait()
		require.Equal(t, ErrSlowReader, q.PutControl(nil, 0))
		require.Less(t, time.Since(start), 80*time.Second)
	})
	synctest.Test(t, func(t *testing.T) {
		q, g := newQueue(t, true, Options{MaxReserve: 200})
		require.NoError(t, q.Put(msg(1), 0))
		require.NoError(t, q.PutControl(msg(70), 0))
		g.next()
		require.NoError(t, q.PutControl(nil, 0))
		require.Equal(t, ErrFull, q.PutControl(msg(70), 0))
		time.Sleep(20 * time.Second)
		q.Progress()
		time.Sleep(11 * time.Second)
		synctest.Wait()
		require.Equal(t, ErrSlowReader, q.PutControl(nil, 0), "data in progress does not count")
	})
	synctest.Test(t, func(t *testing.T) {
		q, g := newQueue(t, true, Options{MaxReserve: 200})
		require.NoError(t, q.PutControl(msg(70), 0))
		require.Equal(t, ErrFull, q.PutControl(msg(70), 0))
		require.NoError(t, q.Put(msg(1), 0))
		g.next() // now data is in the Write call
		time.Sleep(20 * time.Second)
		q.Progress()
		time.Sleep(11 * time.Second)
		synctest.Wait()
		require.Equal(t, ErrSlowReader, q.PutControl(nil, 0), "a data chunk does not empty the reserve")
	})
	synctest.Test(t, func(t *testing.T) {
		q, g := newQueue(t, true, Options{MaxReserve: 270})
		for range 6 {
			require.NoError(t, q.PutControl(msg(70), 0), "the reserve has space again")
			require.Equal(t, ErrFull, q.PutControl(msg(80), 0))
			time.Sleep(29 * time.Second)
			g.next()
		}
	})
}

func TestFlushWaitsForEarlierMessages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q, g := newQueue(t, true, Options{})
		require.NoError(t, q.Put([]byte("a"), 0))
		flush := later(func() error { return q.Flush(t.Context()) })
		_, done := flush()
		require.False(t, done)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		start := time.Now()
		require.ErrorIs(t, q.Flush(ctx), context.DeadlineExceeded)
		require.Equal(t, time.Second, time.Since(start))
		g.set(false)
		err, done := flush()
		require.True(t, done)
		require.NoError(t, err)
		require.NoError(t, q.Flush(ctxEnded()), "an empty queue is flushed")
	})
}

func TestCloseWritesAllMessages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q, g := newQueue(t, true, Options{MaxBytes: 200})
		require.NoError(t, q.Put([]byte("a"), 0))
		r, err := q.Reserve(0)
		require.NoError(t, err)
		waits := later(func() error { return q.PutWait(t.Context(), msg(100), 0) })
		synctest.Wait()
		closed := later(func() error { return q.Close(t.Context()) })
		_, done := closed()
		require.False(t, done)
		err, done = waits()
		require.True(t, done)
		require.Equal(t, ErrClosed, err)
		require.Equal(t, ErrClosed, q.Put(nil, 0))
		require.Equal(t, ErrClosed, q.Put(nil, r))
		require.Equal(t, ErrClosed, q.PutControl(nil, 0))
		_, err = q.Reserve(0)
		require.Equal(t, ErrClosed, err)
		g.set(false)
		err, done = closed()
		require.True(t, done)
		require.NoError(t, err)
		require.Equal(t, []string{"-", "a"}, g.list())
		require.False(t, g.isEnded, "the connection is not closed")
		require.NoError(t, q.Close(t.Context()))
	})
}

func TestCloseCutsWhenContextEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q, g := newQueue(t, true, Options{})
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		start := time.Now()
		require.ErrorIs(t, q.Close(ctx), context.DeadlineExceeded)
		require.Equal(t, time.Second, time.Since(start))
		require.True(t, g.isEnded)
		require.ErrorIs(t, q.Put(nil, 0), context.DeadlineExceeded, "the cause of the cut")
	})
}

func TestCutGivesItsCause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cause := errors.New("exit status 2")
		var cuts []error
		g := newGate(true)
		q := New(g, Options{MaxBytes: 100, OnCut: func(err error) {
			cuts = append(cuts, err)
			g.end(err)
		}})
		require.NoError(t, q.Put([]byte("x"), 0))
		var waits []func() (error, bool)
		for range 3 {
			waits = append(waits, later(func() error { return q.PutWait(t.Context(), msg(99), 0) }))
		}
		waits = append(waits, later(func() error { return q.Flush(t.Context()) }))
		synctest.Wait()
		q.Cut(cause)
		q.Cut(errors.New("later"))
		for _, f := range waits {
			err, done := f()
			require.True(t, done)
			require.Equal(t, cause, err)
		}
		require.Equal(t, cause, q.Put(nil, 0))
		require.Equal(t, cause, q.PutControl(nil, 0))
		require.Equal(t, []error{cause}, cuts)
		require.Empty(t, g.list())

		q = New(io.Discard, Options{MaxBytes: 100})
		_, err := q.Reserve(0)
		require.NoError(t, err)
		idle := later(func() error { return q.PutWait(t.Context(), nil, 0) })
		_, done := idle()
		require.False(t, done)
		q.Cut(cause)
		err, done = idle()
		require.True(t, done, "a cut wakes callers although nothing is written")
		require.Equal(t, cause, err)

		cuts = nil
		q = New(newGate(false), Options{OnCut: func(err error) { cuts = append(cuts, err) }})
		q.Cut(nil)
		require.Equal(t, ErrClosed, q.Write(t.Context(), nil, 0))
		require.Equal(t, []error{ErrClosed}, cuts)
	})
}

func TestCutWritesNothingMore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGate(true)
		q := New(g, Options{})
		require.NoError(t, q.Put([]byte("a"), 0))
		synctest.Wait()
		require.NoError(t, q.Put([]byte("b"), 0))
		require.NoError(t, q.PutControl([]byte("c"), 0))
		q.Cut(nil)
		g.set(false)
		synctest.Wait()
		require.Equal(t, []string{"a"}, g.list())
	})
}

func TestWriteErrorCuts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q, g := newQueue(t, false, Options{})
		g.err = errors.New("broken pipe")
		require.NoError(t, q.Put([]byte("a"), 0))
		require.Equal(t, g.err, q.Flush(t.Context()))
		require.Equal(t, g.err, q.Put(nil, 0))
		synctest.Wait() // Flush may return before OnCut is called
		require.True(t, g.isEnded)

		q = New(short{}, Options{})
		require.NoError(t, q.Write(t.Context(), []byte("ab"), 0))
		require.Equal(t, io.ErrShortWrite, q.Put(nil, 0))
	})
}

type panickingWriter struct{}

func (panickingWriter) Write([]byte) (int, error) { panic("Write failed") }

// A panic of the stream cuts the queue.
func TestPanicOfStreamCuts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var cut error
		q := New(panickingWriter{}, Options{OnCut: func(err error) { cut = err }})
		require.NoError(t, q.Put([]byte("a"), 0))
		var p *guard.PanicError
		require.ErrorAs(t, q.Flush(t.Context()), &p)
		synctest.Wait() // Flush may return before OnCut is called
		require.ErrorAs(t, cut, &p)
	})
}

// short is a writer that loses a byte of each call.
type short struct{}

func (short) Write(p []byte) (int, error) { return len(p) - 1, nil }

// A retained message is not a small part of a large buffer. A message that fills its buffer is
// not copied.
func TestMemoryIsNotPinned(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q, g := newQueue(t, true, Options{})
		buffer := make([]byte, 200<<10)
		put := func(m []byte) (cost int) {
			require.NoError(t, q.Put(m, 0))
			q.mu.Lock()
			defer q.mu.Unlock()
			c := q.lanes[data].chunks[len(q.lanes[data].chunks)-1]
			return cap(c.kept) + cap(c.copied)
		}
		require.Less(t, put(buffer[:99<<10]), 110<<10)
		require.Equal(t, 200<<10, put(buffer[:100<<10]))
		require.Less(t, put(buffer[:10]), 100)
		require.Less(t, put(buffer[:maxCopy]), 40<<10)
		g.set(false)
		require.NoError(t, q.Flush(t.Context()))
		q.mu.Lock()
		require.NotNil(t, q.lanes[data].free)
		require.Nil(t, q.lanes[data].free.kept)
		q.mu.Unlock()
		time.Sleep(time.Minute)
		synctest.Wait()
		q.mu.Lock()
		defer q.mu.Unlock()
		require.Nil(t, q.lanes[data].free, "an idle queue keeps no buffer")
		require.Nil(t, q.lanes[control].free)
	})
}

// usage returns the bytes by account and the messages in the data lane.
func usage(q *Queue) (used [2]int, messages int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.used, int(q.lanes[data].in - q.lanes[data].out)
}

// Messages of each lane are written in order, whatever the queue does.
func TestOrderPerLane(t *testing.T) {
	testkit.CheckInBubble(t, func(t *rapid.T) {
		g := newGate(false)
		o := Options{
			MaxBytes:    rapid.IntRange(500, 2000).Draw(t, "bytes"),
			MaxMessages: rapid.IntRange(1, 20).Draw(t, "messages"),
			MaxReserve:  rapid.IntRange(500, 2000).Draw(t, "reserve"),
			Separate:    true,
			OnCut:       g.end,
		}
		q := New(g, o)
		defer q.Cut(nil)
		var want [2][]string
		seq, open := 0, []Reservation(nil)
		message := func(lane string) []byte {
			seq++
			return fmt.Appendf(nil, "%s%d%s", lane, seq, msg(rapid.IntRange(0, 400).Draw(t, "size")))
		}
		accept := func(lane int, m []byte, err error) {
			if err == nil {
				want[lane] = append(want[lane], string(m))
			} else {
				require.Contains(t, []error{ErrFull, context.DeadlineExceeded}, err)
			}
		}
		t.Repeat(map[string]func(*rapid.T){
			"put": func(t *rapid.T) {
				m := message("d")
				accept(data, m, q.Put(m, 0))
			},
			"write": func(t *rapid.T) {
				ctx, cancel := context.WithTimeout(context.Background(), time.Millisecond)
				defer cancel()
				if m := message("d"); !g.shut {
					accept(data, m, q.Write(ctx, m, 0))
				}
			},
			"control": func(t *rapid.T) {
				m := message("c")
				accept(control, m, q.PutControl(m, 0))
			},
			"reserve": func(t *rapid.T) {
				if r, err := q.Reserve(rapid.IntRange(0, 200).Draw(t, "n")); err == nil {
					open = append(open, r)
				}
			},
			"use": func(t *rapid.T) {
				if len(open) == 0 {
					return
				}
				r, m := open[0], message("d")
				err := q.Put(m, r)
				accept(data, m, err)
				if err == nil {
					open = open[1:]
				} else {
					require.Greater(t, len(m)+overhead, int(r), "a reservation has its space")
				}
			},
			"gate": func(t *rapid.T) {
				g.set(rapid.Bool().Draw(t, "shut"))
				synctest.Wait()
			},
			"": func(t *rapid.T) {
				used, messages := usage(q)
				require.LessOrEqual(t, used[data], o.MaxBytes, "Q1")
				require.LessOrEqual(t, used[control], o.MaxReserve, "Q1")
				require.LessOrEqual(t, messages+len(open), o.MaxMessages)
			},
		})
		g.set(false)
		require.NoError(t, q.Close(context.Background()))
		var got [2][]string
		for _, call := range g.list() {
			lane := strings.IndexByte("dc", call[0])
			got[lane] = append(got[lane], call)
		}
		require.Equal(t, want, got, "Q2")
		used, messages := usage(q)
		for _, r := range open {
			used[data] -= int(r)
		}
		require.Zero(t, used)
		require.Zero(t, messages)
	})
}

// Messages arrive whole while callers of Write clear their buffers and control messages come
// between them.
func TestConcurrentUse(t *testing.T) {
	var sink bytes.Buffer
	q := New(&sink, Options{})
	line := func(i int) []byte { return append(bytes.Repeat([]byte{'a' + byte(i)}, 50), '\n') }
	var writers, controls sync.WaitGroup
	done := make(chan struct{})
	n := 0
	controls.Go(func() {
		for {
			select {
			case <-done:
				return
			default:
			}
			if q.PutControl(line(0), 0) == nil {
				n++
			}
		}
	})
	for i := range 3 {
		writers.Go(func() {
			for range 3000 {
				buf := line(1 + i)
				if err := q.Write(t.Context(), buf, 0); err != nil {
					t.Error(err)
				}
				clear(buf)
			}
		})
	}
	writers.Wait()
	close(done)
	controls.Wait()
	require.NoError(t, q.Close(t.Context()))
	lines := strings.Split(sink.String(), "\n")
	require.Len(t, lines, n+9001)
	for _, l := range lines[:len(lines)-1] {
		if l != strings.Repeat(l[:1], 50) {
			t.Fatalf("got line %q, want one letter 50 times", l)
		}
	}
}

// A burst that fills one chunk while another is written needs no memory the second time.
func TestBurstAllocatesNothing(t *testing.T) {
	if race.Enabled {
		t.Skip("the race detector allocates")
	}
	w := make(steps)
	q := New(w, Options{})
	burst := func() {
		for range 2 {
			if q.Put(msg1, 0) != nil || q.PutControl(msg1, 0) != nil {
				t.Fatal("a message is refused")
			}
		}
		for range 2 {
			<-w
		}
		if q.Put(msg1, 0) != nil {
			t.Fatal("a message is refused")
		}
		for isWriting := true; isWriting; runtime.Gosched() {
			select {
			case <-w:
			default:
			}
			q.mu.Lock()
			isWriting = q.isWriting
			q.mu.Unlock()
		}
	}
	burst()
	require.Zero(t, testing.AllocsPerRun(100, burst))
}

var msg1 = msg(300)

// steps is a writer of which each call waits until it is received.
type steps chan struct{}

func (s steps) Write(p []byte) (int, error) {
	s <- struct{}{}
	return len(p), nil
}

func TestQueueAllocatesNothing(t *testing.T) {
	if race.Enabled {
		t.Skip("the race detector allocates")
	}
	m, ctx := msg(300), context.Background()
	for name, put := range map[string]func(q *Queue) error{
		"Put":        func(q *Queue) error { return q.Put(m, 0) },
		"PutWait":    func(q *Queue) error { return q.PutWait(ctx, m, 0) },
		"Write":      func(q *Queue) error { return q.Write(ctx, m, 0) },
		"PutControl": func(q *Queue) error { return q.PutControl(m, 0) },
		"Reserve": func(q *Queue) error {
			r, _ := q.Reserve(300)
			return q.Put(m, r)
		},
	} {
		q := New(io.Discard, Options{})
		batch := func() {
			for range 100 {
				if err := put(q); err != nil {
					t.Fatal(err)
				}
			}
			for isWriting := true; isWriting; runtime.Gosched() {
				q.mu.Lock()
				isWriting = q.isWriting
				q.mu.Unlock()
			}
		}
		batch()
		require.Zero(t, testing.AllocsPerRun(100, batch), name)
	}
}

// PutControlWait waits for space in the reserve, and not for space that others have reserved in the data lane.
func TestPutControlWaitNeedsTheReserveOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGate(true)
		q := New(g, Options{MaxBytes: 1000, MaxReserve: 300, WriteTimeout: -1})
		r, err := q.ReserveWait(t.Context(), 900)
		require.NoError(t, err)
		for q.PutControl(msg(100), 0) == nil {
		}
		done := make(chan error, 1)
		go func() { done <- q.PutControlWait(t.Context(), msg(100), 0) }()
		synctest.Wait()
		require.Empty(t, done)
		ctx, cancel := context.WithCancel(t.Context())
		left := make(chan error, 1)
		go func() { left <- q.PutControlWait(ctx, msg(100), 0) }()
		synctest.Wait()
		cancel()
		require.ErrorIs(t, <-left, context.Canceled)
		g.set(false)
		require.NoError(t, <-done)
		q.Release(r)
		require.NoError(t, q.Close(t.Context()))
		g.set(true)
		require.Equal(t, ErrClosed, q.PutControlWait(t.Context(), msg(100), 0))
	})
}
