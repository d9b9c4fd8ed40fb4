// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package lines

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// calls is a stream that remembers its write calls.
type calls struct {
	mu   sync.Mutex
	all  []string
	busy bool

	before func(p []byte) (int, error) // runs before a write is remembered
}

func (c *calls) Write(p []byte) (n int, err error) {
	c.mu.Lock()
	if c.busy {
		panic("two write calls at a time")
	}
	c.busy = true
	c.mu.Unlock()
	n = len(p)
	if c.before != nil {
		n, err = c.before(p)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.busy = false
	if err == nil {
		c.all = append(c.all, string(p))
	}
	return n, err
}

func (c *calls) list() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return append([]string(nil), c.all...)
}

func TestWriterOneCallALine(t *testing.T) {
	var out calls
	w := NewWriter(&out, 0)
	line := []byte("a")
	require.NoError(t, w.WriteLine(line))
	line[0] = 'x' // no reference is kept
	require.NoError(t, w.WriteLine(nil))
	require.NoError(t, w.WriteLine([]byte("b\r")))
	require.Equal(t, []string{"a\n", "\n", "b\r\n"}, out.list())
}

func TestWriterRefusesLineBreak(t *testing.T) {
	var out calls
	w := NewWriter(&out, 0)
	require.Equal(t, ErrLineBreak, w.WriteLine([]byte("a\nb")))
	require.Equal(t, ErrLineBreak, w.WriteLine([]byte("a\n")))
	require.NoError(t, w.WriteLine([]byte("c")))
	require.Equal(t, []string{"c\n"}, out.list())
}

// slow is a stream whose every write takes a second of virtual time.
func slow() *calls {
	return &calls{before: func(p []byte) (int, error) {
		time.Sleep(time.Second)
		return len(p), nil
	}}
}

func TestWriterCoalesces(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		out := slow()
		w := NewWriter(out, 0)
		begin := time.Now()
		var wg sync.WaitGroup
		write := func(line string, took time.Duration) {
			wg.Go(func() {
				if err := w.WriteLine([]byte(line)); err != nil {
					t.Error(err)
				}
				if d := time.Since(begin); d != took {
					t.Errorf("%s was written after %s, not %s", line, d, took)
				}
			})
			synctest.Wait()
		}
		write("first", time.Second)
		for i := range 50 {
			write(fmt.Sprint("more", i), 2*time.Second)
		}
		time.Sleep(1500 * time.Millisecond)
		synctest.Wait()
		write("last", 3*time.Second)
		wg.Wait()
		all := out.list()
		require.Len(t, all, 3)
		require.Equal(t, "first\n", all[0])
		require.Equal(t, 50, strings.Count(all[1], "\n"))
		require.True(t, strings.HasPrefix(all[1], "more0\nmore1\n"), "in the order of the calls")
		require.Equal(t, "last\n", all[2])
	})
}

func TestWriterBound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		out := slow()
		w := NewWriter(out, 20)
		var wg sync.WaitGroup
		for range 7 {
			wg.Go(func() {
				if err := w.WriteLine([]byte("123456789")); err != nil {
					t.Error(err)
				}
			})
			synctest.Wait()
		}
		wg.Wait()
		for _, call := range out.list() {
			require.LessOrEqual(t, len(call), 20)
		}
		require.Len(t, out.list(), 4) // 1 and three times 2

		big := bytes.Repeat([]byte("x"), 100)
		require.NoError(t, w.WriteLine(big), "one line alone may be longer")
		require.Equal(t, string(big)+"\n", out.list()[4])
	})
}

func TestWriterErrors(t *testing.T) {
	boom := errors.New("broken pipe")
	tests := []struct {
		name   string
		before func([]byte) (int, error)
		want   error
	}{
		{"error", func([]byte) (int, error) { time.Sleep(time.Second); return 0, boom }, boom},
		{"short write", func(p []byte) (int, error) { time.Sleep(time.Second); return len(p) - 1, nil }, io.ErrShortWrite},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := NewWriter(&calls{before: tt.before}, 20)
				var wg sync.WaitGroup
				for range 8 { // one writes, two wait for the next call, the others for room
					wg.Go(func() {
						if err := w.WriteLine([]byte("123456789")); err != tt.want {
							t.Errorf("got %v", err)
						}
					})
				}
				wg.Wait()
				require.Equal(t, tt.want, w.WriteLine([]byte("later")))
			})
		})
	}
}

// Only the lines that an error may have cost are reported as failed.
func TestWriterErrorAfterSuccess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		boom := errors.New("broken pipe")
		n := 0
		w := NewWriter(&calls{before: func(p []byte) (int, error) {
			time.Sleep(time.Second)
			if n++; n == 3 {
				return 0, boom
			}
			return len(p), nil
		}}, 10)
		var mu sync.Mutex
		got := map[string]error{}
		var wg sync.WaitGroup
		for _, line := range []string{"1aaaaaaa", "2bbbbbbb", "3ccccccc", "4ddddddd"} {
			wg.Go(func() {
				err := w.WriteLine([]byte(line))
				mu.Lock()
				defer mu.Unlock()
				got[line] = err
			})
			synctest.Wait()
		}
		wg.Wait()
		require.Equal(t, map[string]error{"1aaaaaaa": nil, "2bbbbbbb": nil, "3ccccccc": boom, "4ddddddd": boom}, got)
	})
}

// A stream that panics makes its caller panic, but no other caller hangs.
func TestWriterPanic(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := NewWriter(&calls{before: func([]byte) (int, error) {
			time.Sleep(time.Second)
			panic("out of order")
		}}, 0)
		var wg sync.WaitGroup
		wg.Go(func() {
			defer func() {
				if p := recover(); p != "out of order" {
					t.Error(p)
				}
			}()
			w.WriteLine([]byte("a"))
		})
		synctest.Wait()
		require.Equal(t, errPanic, w.WriteLine([]byte("b")))
		wg.Wait()
		require.Equal(t, errPanic, w.WriteLine([]byte("c")))
	})
}

// Closing the stream frees the callers that it holds up.
func TestWriterFreedByClose(t *testing.T) {
	pr, pw := io.Pipe()
	w := NewWriter(pw, 0)
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			if err := w.WriteLine([]byte("x")); !errors.Is(err, io.ErrClosedPipe) {
				t.Errorf("got %v", err)
			}
		})
	}
	pr.Close()
	wg.Wait()
}

func TestWriterConcurrent(t *testing.T) {
	for _, pending := range []int{1, 64, 0} {
		var out bytes.Buffer
		w := NewWriter(&out, pending)
		var wg sync.WaitGroup
		for i := range 16 {
			wg.Go(func() {
				for k := range 200 {
					if err := w.WriteLine(fmt.Appendf(nil, "%d %d", i, k)); err != nil {
						t.Error(err)
					}
				}
			})
		}
		wg.Wait()
		var next [16]int
		r := NewReader(&out, 0)
		for range 16 * 200 {
			line, err := r.Next()
			require.NoError(t, err)
			var i, k int
			_, err = fmt.Sscanf(string(line), "%d %d", &i, &k)
			require.NoError(t, err)
			require.Equal(t, next[i], k)
			next[i]++
		}
		_, err := r.Next()
		require.Equal(t, io.EOF, err)
	}
}

func TestWriterGivesBufferBack(t *testing.T) {
	w := NewWriter(io.Discard, 0)
	require.NoError(t, w.WriteLine(make([]byte, 1<<20)))
	require.LessOrEqual(t, cap(w.pending)+cap(w.spare), 2*keepBuffer)
}

func TestWriterAllocs(t *testing.T) {
	w := NewWriter(io.Discard, 0)
	line := bytes.Repeat([]byte("x"), 300)
	require.Zero(t, testing.AllocsPerRun(1000, func() {
		if err := w.WriteLine(line); err != nil {
			t.Fatal(err)
		}
	}))
}
