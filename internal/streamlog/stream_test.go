// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package streamlog

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"io"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"
	"weak"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/fivewire/fivewire/internal/bench/pair"
	"github.com/fivewire/fivewire/internal/lease"
	"github.com/fivewire/fivewire/internal/race"
	"github.com/fivewire/fivewire/store"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const user = "user"

var errTest = errors.New("test cause")

// number is item n of the tests; it counts 72 bytes.
func number(n uint64) []byte { return binary.BigEndian.AppendUint64(make([]byte, 0, 8), n) }

func newWriter(t testing.TB, table *Table, o Options) *Writer {
	t.Helper()
	w, err := table.Create(t.Context(), "s", user, o)
	require.NoError(t, err)
	return w
}

func newReader(t testing.TB, table *Table, after uint64) *Reader {
	t.Helper()
	r, err := table.Read(t.Context(), "s", user, after)
	require.NoError(t, err)
	return r
}

// tryAppend appends for a millisecond.
func tryAppend(t testing.TB, w *Writer, item []byte) (uint64, error) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	return w.Append(ctx, item)
}

// tryNext reads up to so many items for a minute.
func tryNext(t testing.TB, r *Reader, items uint64) ([]Item, error) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	return r.Next(ctx, make([]Item, 0, items))
}

// appendItems appends the items from to through to, and returns the number of the first that has no
// space for a millisecond.
func appendItems(t testing.TB, w *Writer, from, to uint64) uint64 {
	t.Helper()
	for n := from; n <= to; n++ {
		got, err := tryAppend(t, w, number(n))
		if errors.Is(err, context.DeadlineExceeded) {
			return n
		}
		require.NoError(t, err)
		require.Equal(t, n, got)
	}
	return to + 1
}

// readItems reads until an error or item last, checks that the items follow after without a gap, and
// returns the last number and the error.
func readItems(t testing.TB, r *Reader, after, last uint64) (uint64, error) {
	t.Helper()
	for after < last {
		items, err := tryNext(t, r, min(64, last-after))
		if err != nil {
			require.Empty(t, items)
			return after, err
		}
		require.NotEmpty(t, items)
		for _, item := range items {
			after++
			require.Equal(t, after, item.N)
			require.Equal(t, number(after), item.Data)
		}
	}
	return after, nil
}

func requireEnd(t testing.TB, r *Reader, after, last uint64, want error) {
	t.Helper()
	got, err := readItems(t, r, after, last+1)
	require.Equal(t, last, got, "last item before %v", err)
	require.Equal(t, want, err)
	for _, cause := range []error{ErrNoReader, lease.ErrLost} { // not only their text
		require.Equal(t, errors.Is(want, cause), errors.Is(err, cause), "%v is %v", err, cause)
	}
	_, err = r.Next(t.Context(), nil)
	require.Equal(t, want, err, "second Next after the end")
}

func TestReadersGetAllItemsAndEOF(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		table := New(nil, nil, "")
		w := newWriter(t, table, Options{Resumable: true})
		first := newReader(t, table, 0)
		appendItems(t, w, 1, 100)
		second := newReader(t, table, 40)
		go func() {
			time.Sleep(time.Second)
			appendItems(t, w, 101, 200)
			require.NoError(t, w.Finish(t.Context(), number(201)))
		}()
		requireEnd(t, first, 0, 201, io.EOF)
		requireEnd(t, second, 40, 201, io.EOF)
		requireEnd(t, newReader(t, table, 200), 200, 201, io.EOF)
		requireEnd(t, newReader(t, table, 201), 201, 201, io.EOF)
		<-w.Done()
		_, err := w.Append(t.Context(), nil)
		require.Equal(t, ErrClosed, err)
		require.Equal(t, ErrClosed, w.Finish(t.Context(), nil))
		w.Cut(errTest)
		requireEnd(t, newReader(t, table, 200), 200, 201, io.EOF)
	})
}

func TestCutGivesItemsThenCause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		table := New(nil, nil, "")
		w := newWriter(t, table, Options{Resumable: true})
		r := newReader(t, table, 0)
		appendItems(t, w, 1, 3)
		w.Cut(errTest)
		end := &CutError{4, errTest}
		requireEnd(t, r, 0, 3, end)
		requireEnd(t, newReader(t, table, 4), 3, 3, end)
		_, err := table.Read(t.Context(), "s", user, 5)
		require.Equal(t, ErrAhead, err)
		_, err = w.Append(t.Context(), nil)
		require.ErrorIs(t, err, errTest)
		require.Equal(t, end, w.Finish(t.Context(), nil))
	})
}

func TestReadReportsMissingPositionsAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		table := New(nil, nil, "")
		start := time.Now()
		_, err := table.Read(t.Context(), "s", user, 0)
		require.Equal(t, ErrUnknown, err)
		w := newWriter(t, table, Options{Retain: 720})
		r := newReader(t, table, 0)
		for n := uint64(1); n <= 100; n++ {
			appendItems(t, w, n, n)
			_, err := readItems(t, r, n-1, n)
			require.NoError(t, err)
		}
		_, err = table.Read(t.Context(), "s", "another", 95)
		require.Equal(t, ErrUnknown, err)
		_, err = table.Read(t.Context(), "s", user, 89)
		require.Equal(t, &GapError{90, 91}, err)
		_, err = table.Read(t.Context(), "s", user, 101)
		require.Equal(t, ErrAhead, err)
		_, err = table.Read(t.Context(), "s", user, 1<<64-1)
		require.Equal(t, ErrAhead, err)
		_, err = readItems(t, newReader(t, table, 90), 90, 100)
		require.NoError(t, err)
		_, err = table.Create(t.Context(), "s", user, Options{})
		require.Equal(t, store.ErrExists, err)
		require.Equal(t, start, time.Now())
	})
}

func TestAppendWaitsForSlowestReader(t *testing.T) {
	for name, o := range map[string]Options{
		"items": {Window: 100 * windowItem},
		"bytes": {Window: 25 * 7200, Retain: -1},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				table := New(nil, nil, "")
				w := newWriter(t, table, o)
				fast, slow := newReader(t, table, 0), newReader(t, table, 0)
				size, limit := 8, uint64(100)
				if name == "bytes" {
					size, limit = 7200-64, 25
				}
				item := make([]byte, size)
				appendUntilFull := func() (n uint64) {
					for {
						if _, err := tryAppend(t, w, item); err != nil {
							require.ErrorIs(t, err, context.DeadlineExceeded)
							return n
						}
						n++
					}
				}
				require.Equal(t, limit, appendUntilFull())
				require.Zero(t, w.Credit())
				_, err := fast.Next(t.Context(), make([]Item, 0, limit))
				require.NoError(t, err)
				require.Zero(t, appendUntilFull())
				_, err = slow.Next(t.Context(), make([]Item, 0, 5))
				require.NoError(t, err)
				require.Equal(t, uint64(5), appendUntilFull())
				fast.Close()
				slow.Close()
				<-w.Done()
			})
		})
	}
}

func TestSlowReaderIsDroppedAndStreamContinues(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		table := New(nil, nil, "")
		w := newWriter(t, table, Options{Window: 10 * windowItem, SlowTimeout: 8 * time.Second, Resumable: true})
		slow, fast := newReader(t, table, 0), newReader(t, table, 0)
		require.EqualValues(t, 11, appendItems(t, w, 1, 20))
		_, err := readItems(t, slow, 0, 4)
		require.NoError(t, err)
		_, err = readItems(t, fast, 0, 10)
		require.NoError(t, err)
		require.EqualValues(t, 15, appendItems(t, w, 11, 20))
		_, err = readItems(t, fast, 10, 14)
		require.NoError(t, err)
		start := time.Now()
		_, err = w.Append(t.Context(), number(15))
		require.NoError(t, err)
		elapsed := time.Since(start)
		require.True(t, elapsed > 7*time.Second && elapsed <= 10*time.Second, "dropped after %v", elapsed)
		_, err = slow.Next(t.Context(), nil)
		require.Equal(t, ErrSlowReader, err)
		require.EqualValues(t, 21, appendItems(t, w, 16, 20))
		resumed := newReader(t, table, 4)
		_, err = readItems(t, resumed, 4, 20)
		require.NoError(t, err)
		time.Sleep(time.Hour) // a reader without anything to take is not slow
		require.NoError(t, w.Finish(t.Context(), nil))
		requireEnd(t, resumed, 20, 20, io.EOF)
		_, err = readItems(t, fast, 14, 20)
		require.Equal(t, ErrSlowReader, err)
	})
}

func TestReaderThatLeavesIsNotWaitedFor(t *testing.T) {
	for name, leave := range map[string]func(t *testing.T, r *Reader){
		"by Close":       func(_ *testing.T, r *Reader) { r.Close() },
		"by SlowTimeout": func(t *testing.T, r *Reader) { _, _ = tryNext(t, r, 1) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				table := New(nil, nil, "")
				w := newWriter(t, table, Options{Window: 10 * windowItem, Resumable: true})
				r := newReader(t, table, 0)
				require.EqualValues(t, 11, appendItems(t, w, 1, 20))
				start := time.Now()
				go leave(t, r)
				_, err := w.Append(t.Context(), number(11))
				require.NoError(t, err)
				limit := time.Duration(0)
				if name != "by Close" {
					limit = 38 * time.Second
				}
				require.LessOrEqual(t, time.Since(start), limit)
			})
		})
	}
}

func TestCutWithoutCauseIsNoFinish(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		table := New(nil, nil, "")
		w := newWriter(t, table, Options{})
		r := newReader(t, table, 0)
		require.Positive(t, w.Credit())
		w.Cut(nil)
		require.Zero(t, w.Credit())
		requireEnd(t, r, 0, 0, &CutError{N: 1, Cause: io.ErrUnexpectedEOF})
	})
}

// A late notice does not move the reader back.
func TestLateNoticeOfReaderIsIgnored(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		table := New(nil, nil, "")
		w := newWriter(t, table, Options{Window: 10 * windowItem})
		appendItems(t, w, 1, 5)
		notify := func(at uint64) int {
			data, err := json.Marshal(notice{Key: []byte("s"), Reader: "r", At: at})
			require.NoError(t, err)
			table.receive(data)
			return w.Credit()
		}
		require.Equal(t, 7, notify(2))
		require.Equal(t, 9, notify(4))
		require.Equal(t, 9, notify(3))
		w.Cut(errTest)
	})
}

func TestRemoveLeavesOpenStream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		table := New(nil, nil, "")
		w := newWriter(t, table, Options{Resumable: true})
		require.NoError(t, table.Remove(t.Context(), "s"))
		require.EqualValues(t, 3, appendItems(t, w, 1, 2))
		require.NoError(t, w.Finish(t.Context(), nil))
		requireEnd(t, newReader(t, table, 0), 0, 2, io.EOF)
		require.NoError(t, table.Remove(t.Context(), "s"))
		_, err := table.Read(t.Context(), "s", user, 0)
		require.Equal(t, ErrUnknown, err)
	})
}

func TestAppendKeepsNoLargerBuffer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		table := New(nil, nil, "")
		w := newWriter(t, table, Options{})
		r := newReader(t, table, 0)
		for n, capacity := range []int{16, 17} {
			item := append(make([]byte, 0, capacity), number(0)...)
			_, err := w.Append(t.Context(), item)
			require.NoError(t, err)
			items, err := r.Next(t.Context(), nil)
			require.NoError(t, err)
			require.Equal(t, n == 0, &item[0] == &items[0].Data[0], "kept without a copy")
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		_, err := w.Append(ctx, number(3))
		require.ErrorIs(t, err, context.Canceled)
		require.NoError(t, w.Finish(t.Context(), nil))
		requireEnd(t, r, 2, 2, io.EOF)
	})
}

func TestReaderIsNotDroppedWithoutSlowTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		table := New(nil, nil, "")
		w := newWriter(t, table, Options{SlowTimeout: -1})
		r := newReader(t, table, 0)
		appendItems(t, w, 1, 10)
		time.Sleep(240 * time.Hour)
		require.NoError(t, w.Finish(t.Context(), nil))
		requireEnd(t, r, 0, 10, io.EOF)
	})
}

func TestItemsThatAllReadersHaveAreNotRetained(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		table := New(nil, nil, "")
		w := newWriter(t, table, Options{Retain: -1})
		r := newReader(t, table, 0)
		appendItems(t, w, 1, 10)
		_, err := readItems(t, r, 0, 6)
		require.NoError(t, err)
		appendItems(t, w, 11, 11)
		_, err = table.Read(t.Context(), "s", user, 5)
		require.Equal(t, &GapError{Want: 6, First: 7}, err)
		newReader(t, table, 6).Close()
		r.Close()
	})
}

func TestWriterWithoutReaderStopsAtRetainAndIsCutAfterGrace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		table := New(nil, nil, "")
		w := newWriter(t, table, Options{Retain: 72 * 1000, Resumable: true})
		r := newReader(t, table, 0)
		for n := uint64(1); n <= 2000; n++ {
			appendItems(t, w, n, n)
			_, err := readItems(t, r, n-1, n)
			require.NoError(t, err)
		}
		r.Close()
		start := time.Now()
		require.EqualValues(t, 3001, appendItems(t, w, 2001, 4000))
		require.Zero(t, w.Credit())
		r = newReader(t, table, 2000)
		_, err := readItems(t, r, 2000, 2500)
		require.NoError(t, err)
		r.Close()
		left := time.Now()
		require.EqualValues(t, 3501, appendItems(t, w, 3001, 4000))
		_, err = w.Append(t.Context(), number(3501))
		require.ErrorIs(t, err, ErrNoReader)
		require.Equal(t, 5*time.Minute, time.Since(left))
		require.Less(t, left.Sub(start), time.Second)
		requireEnd(t, newReader(t, table, 2500), 2500, 3500, &CutError{3501, ErrNoReader})
	})
}

func TestGrace(t *testing.T) {
	tests := map[string]struct {
		o         Options
		first     time.Duration // before the first reader
		afterward time.Duration
	}{
		"not resumable": {Options{}, 5 * time.Minute, 0},
		"resumable":     {Options{Resumable: true}, 5 * time.Minute, 5 * time.Minute},
		"given":         {Options{Grace: time.Minute}, time.Minute, time.Minute},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				table := New(nil, nil, "")
				for _, hasReader := range []bool{false, true} {
					tt.o.Retention = -1
					w, start, want := newWriter(t, table, tt.o), time.Now(), tt.first
					if hasReader {
						r := newReader(t, table, 0)
						time.Sleep(time.Hour)
						r.Close()
						start, want = time.Now(), tt.afterward
					}
					<-w.Done()
					require.Equal(t, want, time.Since(start))
					_, err := w.Append(t.Context(), nil)
					require.ErrorIs(t, err, ErrNoReader)
				}
				tt.o.Grace = -1
				w := newWriter(t, table, tt.o)
				newReader(t, table, 0).Close()
				time.Sleep(1000 * time.Hour)
				appendItems(t, w, 1, 1)
			})
		})
	}
}

func TestEndedStreamIsRetainedFromItsEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		table := New(nil, nil, "")
		w := newWriter(t, table, Options{Resumable: true, Grace: -1, Retention: time.Minute})
		appendItems(t, w, 1, 3)
		time.Sleep(time.Hour)
		require.NoError(t, w.Finish(t.Context(), nil))
		time.Sleep(time.Minute - 1)
		last := newReader(t, table, 0)
		requireEnd(t, newReader(t, table, 0), 0, 3, io.EOF) // does not extend it
		time.Sleep(time.Second)
		requireEnd(t, last, 0, 3, io.EOF)
		synctest.Wait()
		_, err := table.Read(t.Context(), "s", user, 0)
		require.Equal(t, ErrUnknown, err)

		w = newWriter(t, table, Options{}) // read once
		require.NoError(t, w.Finish(t.Context(), nil))
		requireEnd(t, newReader(t, table, 0), 0, 0, io.EOF)
		synctest.Wait()
		require.Zero(t, countStreams(table))
	})
}

// A reader that sleeps gets all pieces or an error, and io.EOF after all of them only.
func TestSleepingReaderGetsAllPiecesOrError(t *testing.T) {
	for _, pause := range []time.Duration{time.Second, 29 * time.Second, 31 * time.Second, 10 * time.Minute} {
		synctest.Test(t, func(t *testing.T) {
			table := New(nil, nil, "")
			w := newWriter(t, table, Options{Retain: 720, Window: 8 * windowItem, Resumable: true})
			go func() {
				for n := range uint64(80) {
					if _, err := w.Append(t.Context(), number(n+1)); err != nil {
						require.ErrorIs(t, err, ErrNoReader)
						return
					}
				}
				_ = w.Finish(t.Context(), nil)
			}()
			r, after := newReader(t, table, 0), uint64(0)
			for {
				items, err := r.Next(t.Context(), make([]Item, 0, 1))
				if err != nil {
					if after < 80 {
						require.NotErrorIs(t, err, io.EOF, "after item %d", after)
					}
					break
				}
				after++
				require.Equal(t, after, items[0].N)
				time.Sleep(pause)
			}
			if pause < 30*time.Second {
				require.EqualValues(t, 80, after)
			}
			time.Sleep(time.Hour)
		})
	}
}

func TestSlowReaderOfMillionItemsCostsBoundedMemory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		items := uint64(1_000_000)
		if race.Enabled {
			items /= 20
		}
		table := New(nil, nil, "")
		w := newWriter(t, table, Options{})
		r := newReader(t, table, 0)
		go func() {
			for n := uint64(1); n <= items; n++ {
				_, _ = w.Append(t.Context(), number(n))
			}
			_ = w.Finish(t.Context(), nil)
		}()
		after, peak := uint64(0), uint64(0)
		for {
			batch, err := r.Next(t.Context(), nil)
			if err != nil {
				require.Equal(t, io.EOF, err)
				break
			}
			require.Equal(t, after+1, batch[0].N)
			after += uint64(len(batch))
			peak = max(peak, heldBytes(w.s))
			time.Sleep(time.Millisecond)
		}
		require.Equal(t, items, after)
		require.LessOrEqual(t, peak, uint64(1<<20+256<<10))
	})
}

func countStreams(table *Table) int {
	table.mu.Lock()
	defer table.mu.Unlock()
	return len(table.streams)
}

// heldBytes returns the bytes that a stream holds in memory.
func heldBytes(s *stream) uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	sum := uint64(0)
	for _, e := range s.buf {
		if e.data != nil {
			sum += uint64(len(e.data) + overhead)
		}
	}
	return sum
}

func TestItemsDoNotPinLargerBuffers(t *testing.T) {
	table := New(nil, nil, "")
	w := newWriter(t, table, Options{})
	var buffers []weak.Pointer[byte]
	for range 4 {
		buf := make([]byte, 4<<20)
		_, err := w.Append(t.Context(), buf[:20])
		require.NoError(t, err)
		_, err = w.Append(t.Context(), buf[1<<20:1<<20+20])
		require.NoError(t, err)
		buffers = append(buffers, weak.Make(&buf[0]))
	}
	whole := make([]byte, 1<<10)
	_, err := w.Append(t.Context(), whole)
	require.NoError(t, err)
	final := make([]byte, 4<<20)
	buffers = append(buffers, weak.Make(&final[0]))
	require.NoError(t, w.Finish(t.Context(), final[:20]))
	runtime.GC()
	for i, b := range buffers {
		require.Nil(t, b.Value(), "buffer %d is retained", i)
	}
	items, err := newReader(t, table, 8).Next(t.Context(), nil)
	require.NoError(t, err)
	require.Same(t, &whole[0], &items[0].Data[0], "an item that fills its buffer was copied")
}

func TestAllocations(t *testing.T) {
	if race.Enabled {
		t.Skip("the race detector allocates")
	}
	table := New(nil, nil, "")
	w := newWriter(t, table, Options{})
	readers := []*Reader{newReader(t, table, 0), newReader(t, table, 0)}
	buf, item, part := make([]Item, 0, 16), make([]byte, 100), make([]byte, 100, 1000)
	measure := func(item []byte) float64 {
		return testing.AllocsPerRun(20000, func() {
			_, _ = w.Append(t.Context(), item)
			for _, r := range readers {
				_, _ = r.Next(t.Context(), buf)
			}
		})
	}
	require.Zero(t, measure(item), "allocations for an item")
	require.EqualValues(t, 1, measure(part), "allocations for a part of a buffer")
}

func TestConcurrentWritersAndReaders(t *testing.T) {
	const writers, each, readers = 4, 2000, 4
	table := New(nil, nil, "")
	w := newWriter(t, table, Options{Window: 64 * windowItem})
	var appending, reading sync.WaitGroup
	for range readers {
		r := newReader(t, table, 0)
		reading.Go(func() {
			after := uint64(0)
			for {
				items, err := r.Next(t.Context(), nil)
				if err != nil {
					require.Equal(t, io.EOF, err)
					break
				}
				for _, item := range items {
					after++
					require.Equal(t, after, item.N)
				}
			}
			require.EqualValues(t, writers*each, after)
		})
	}
	for range writers {
		appending.Go(func() {
			for range each {
				_, err := w.Append(t.Context(), []byte("x"))
				require.NoError(t, err)
			}
		})
	}
	appending.Wait()
	require.NoError(t, w.Finish(t.Context(), nil))
	reading.Wait()
}

func BenchmarkPairStream(b *testing.B) {
	const items = 100
	item, buf, ctx := make([]byte, 100), make([]Item, 0, items), b.Context()
	table := New(nil, nil, "")
	stream := func() {
		w, _ := table.Create(ctx, "s", user, Options{})
		r, _ := table.Read(ctx, "s", user, 0)
		go func() {
			for range items {
				_, _ = w.Append(ctx, item)
			}
			_ = w.Finish(ctx, nil)
		}()
		n := 0
		for got, err := r.Next(ctx, buf); err == nil; got, err = r.Next(ctx, buf) {
			n += len(got)
		}
		if n != items {
			b.Fatalf("got %d items, want %d", n, items)
		}
	}
	channel := func() {
		ch := make(chan []byte, items)
		go func() {
			for range items {
				ch <- item
			}
			close(ch)
		}()
		n := 0
		for range ch {
			n++
		}
		if n != items {
			b.Fatalf("got %d items, want %d", n, items)
		}
	}
	pair.Ratio(b, pair.Loop(stream), pair.Loop(channel))
}
