// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package lines

import (
	"errors"
	"io"
	"math"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/internal/budget"
	"github.com/fivewire/fivewire/internal/guard"
)

// item is one answer of Next.
type item struct {
	line string
	err  error
}

// readAll reads to the end of the stream.
func readAll(r *Reader) (all []item) {
	for {
		line, err := r.Next()
		if err == io.EOF {
			return all
		}
		all = append(all, item{string(line), err})
		if err != nil && err != ErrTooLong && err != ErrUnterminated {
			return all
		}
	}
}

// A large buffer is reserved before it is used, and a line without memory is refused like one that is too long.
func TestReaderReserves(t *testing.T) {
	errFull := errors.New("full")
	var size, maxSize int
	line := func(n int) string { return strings.Repeat("x", n) + "\n" }
	in := line(10) + line(100<<10) + line(200<<10) + line(1<<20) + line(20)
	r := NewReader(strings.NewReader(in), 512<<10)
	r.SetReserve(func(n int) error {
		if n > 256<<10 {
			return errFull
		}
		size, maxSize = n, max(maxSize, n)
		return nil
	})
	for _, want := range []item{{line(10), nil}, {line(100 << 10), nil}, {line(200 << 10), nil}, {line(headSize), errFull}, {line(20), nil}} {
		got, err := r.Next()
		require.Equal(t, want.err, err)
		require.True(t, want.line == string(got)+"\n", "%d bytes", len(got))
		require.Equal(t, len(r.buf) > keepBuffer, size == len(r.buf), "%d of %d", size, len(r.buf))
	}
	require.Equal(t, 256<<10, maxSize)
	_, err := r.Next()
	require.Equal(t, io.EOF, err)
	require.Zero(t, size)
}

func TestReader(t *testing.T) {
	tests := []struct {
		name string
		wire string
		max  int
		want []item
	}{
		{"lines", "a\nb\n", 0, []item{{"a", nil}, {"b", nil}}},
		{"CRLF", "a\r\nb\r\n", 0, []item{{"a", nil}, {"b", nil}}},
		{"one CR only", "a\r\r\n", 0, []item{{"a\r", nil}}},
		{"CR inside", "a\rb\n", 0, []item{{"a\rb", nil}}},
		{"empty lines", "\n\r\n", 0, []item{{"", nil}, {"", nil}}},
		{"no line end", "a\nb", 0, []item{{"a", nil}, {"b", ErrUnterminated}}},
		{"no line end but CR", "a\nb\r", 0, []item{{"a", nil}, {"b\r", ErrUnterminated}}},
		{"nothing", "", 0, nil},
		{"byte order mark", "\xef\xbb\xbfa\n\xef\xbb\xbfb\n", 0, []item{{"a", nil}, {"\xef\xbb\xbfb", nil}}},
		{"one byte order mark only", "\xef\xbb\xbf\xef\xbb\xbfa\n", 0, []item{{"\xef\xbb\xbfa", nil}}},
		{"half a byte order mark", "\xef\xbb", 0, []item{{"\xef\xbb", ErrUnterminated}}},
		{"byte order mark alone", "\xef\xbb\xbf", 0, nil},
		{"other line ends are none", "a\u2028b\u0085c\vd\fe\n", 0, []item{{"a\u2028b\u0085c\vd\fe", nil}}},
		{"at the limit", "12345\n1234\n", 5, []item{{"12345", nil}, {"1234", nil}}},
		{"at the limit, CRLF and byte order mark not counted", "\xef\xbb\xbf12345\r\n", 5, []item{{"12345", nil}}},
		{"at the limit, CR counted", "1234\r\r\n12345\r\r\n", 5, []item{{"1234\r", nil}, {"12345\r", ErrTooLong}}},
		{"over the limit", "123456\na\n", 5, []item{{"123456", ErrTooLong}, {"a", nil}}},
		{"far over the limit", strings.Repeat("x", 100_000) + "\na\n", 5, []item{{strings.Repeat("x", headSize), ErrTooLong}, {"a", nil}}},
		{"twice over the limit", "123456\n123456\na\n", 5, []item{{"123456", ErrTooLong}, {"123456", ErrTooLong}, {"a", nil}}},
		{"over the limit, unterminated", "a\n123456", 5, []item{{"a", nil}, {"123456", ErrTooLong}}},
		{"over the limit by a CR, unterminated", "12345\r", 5, []item{{"12345\r", ErrTooLong}}},
		{"at the limit, unterminated", "12345", 5, []item{{"12345", ErrUnterminated}}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			require.Equal(t, tt.want, readAll(NewReader(strings.NewReader(tt.wire), tt.max)))
			require.Equal(t, tt.want, readAll(NewReader(iotest.OneByteReader(strings.NewReader(tt.wire)), tt.max)), "byte by byte")
			require.Equal(t, tt.want, readAll(NewReader(iotest.DataErrReader(strings.NewReader(tt.wire)), tt.max)), "end with data")
			require.Equal(t, tt.want, readAll(NewReader(iotest.HalfReader(strings.NewReader(tt.wire)), tt.max)), "halves")
		})
	}
}

func TestReaderBrokenStream(t *testing.T) {
	boom := errors.New("connection reset")
	r := NewReader(io.MultiReader(strings.NewReader("a\nhal"), iotest.ErrReader(boom)), 0)
	line, err := r.Next()
	require.NoError(t, err)
	require.Equal(t, "a", string(line))
	for range 3 {
		line, err = r.Next()
		require.Equal(t, boom, err)
		require.Nil(t, line, "half a line is no line")
	}

	// A stream that itself breaks off with ErrUnexpectedEOF does not pass for
	// one that merely lacks its last line end.
	r = NewReader(io.MultiReader(strings.NewReader("hal"), iotest.ErrReader(io.ErrUnexpectedEOF)), 0)
	_, err = r.Next()
	require.Equal(t, io.ErrUnexpectedEOF, err)
	require.NotErrorIs(t, err, ErrUnterminated)
	require.ErrorIs(t, ErrUnterminated, io.ErrUnexpectedEOF)
}

type panickingReader struct{}

func (panickingReader) Read([]byte) (int, error) { panic("Read failed") }

// A panic of the stream is its error.
func TestReaderSurvivesPanicOfStream(t *testing.T) {
	r := NewReader(io.MultiReader(strings.NewReader("a\nhal"), panickingReader{}), 0)
	line, err := r.Next()
	require.NoError(t, err)
	require.Equal(t, "a", string(line))
	for range 2 {
		_, err = r.Next()
		var p *guard.PanicError
		require.ErrorAs(t, err, &p)
	}
}

func TestReaderEndStays(t *testing.T) {
	r := NewReader(strings.NewReader("a"), 0)
	_, err := r.Next()
	require.Equal(t, ErrUnterminated, err)
	for range 3 {
		_, err = r.Next()
		require.Equal(t, io.EOF, err)
	}
}

func TestReaderStalledAndLyingSource(t *testing.T) {
	_, err := NewReader(counts(0), 0).Next()
	require.Equal(t, io.ErrNoProgress, err)
	for _, n := range []int{-1, 1 << 30} {
		_, err = NewReader(counts(n), 0).Next()
		require.Equal(t, errBadRead, err)
	}
}

// counts is a reader that claims to have read so many bytes.
type counts int

func (n counts) Read([]byte) (int, error) { return int(n), nil }

// endless is a line without end.
type endless struct{}

func (endless) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = 'x'
	}
	return len(p), nil
}

// A line that is too long is reported before it ends, and costs no more memory
// than one at the limit.
func TestReaderBoundsMemory(t *testing.T) {
	const limit = 100_000
	r := NewReader(io.MultiReader(io.LimitReader(endless{}, 10_000_000), strings.NewReader("\nnext\n")), limit)
	_, err := r.Next()
	require.Equal(t, ErrTooLong, err)
	require.LessOrEqual(t, len(r.buf), max(limit, headSize)+2*minRead)
	line, err := r.Next()
	require.NoError(t, err)
	require.Equal(t, "next", string(line))

	r = NewReader(endless{}, limit)
	_, err = r.Next()
	require.Equal(t, ErrTooLong, err)
}

func TestReaderGivesBufferBack(t *testing.T) {
	big := strings.Repeat("x", 1<<20)
	r := NewReader(strings.NewReader(big+"\nsmall\n"), 0)
	line, err := r.Next()
	require.NoError(t, err)
	require.Len(t, line, len(big))
	line, err = r.Next()
	require.NoError(t, err)
	require.Equal(t, "small", string(line))
	require.Len(t, r.buf, minBuffer)
}

func TestReaderLineMayBeAppendedTo(t *testing.T) {
	r := NewReader(strings.NewReader("a\nb\n"), 0)
	line, err := r.Next()
	require.NoError(t, err)
	_ = append(line, "overwritten"...)
	line, err = r.Next()
	require.NoError(t, err)
	require.Equal(t, "b", string(line))
}

func TestReaderLimitOutOfRange(t *testing.T) {
	for _, max := range []int{-1, math.MaxInt, math.MaxInt - 1} {
		line, err := NewReader(strings.NewReader("a\n"), max).Next()
		require.NoError(t, err)
		require.Equal(t, "a", string(line))
	}
}

func TestReaderAllocs(t *testing.T) {
	r := NewReader(&repeat{text: []byte(strings.Repeat("x", 300) + "\r\n")}, 1<<20)
	_, err := r.Next()
	require.NoError(t, err)
	require.Zero(t, testing.AllocsPerRun(1000, func() {
		if _, err := r.Next(); err != nil {
			t.Fatal(err)
		}
	}))
}

// repeat is a stream that repeats a text without end.
type repeat struct {
	text []byte
	at   int
}

func (r *repeat) Read(p []byte) (n int, err error) {
	for n < len(p) {
		c := copy(p[n:], r.text[r.at:])
		n += c
		r.at = (r.at + c) % len(r.text)
	}
	return n, nil
}

func TestBlank(t *testing.T) {
	for _, s := range []string{"", " ", "\t \r", "\r\r"} {
		require.True(t, Blank([]byte(s)), "%q", s)
	}
	for _, s := range []string{"x", " x", "\v", "\u00a0", "\n"} {
		require.False(t, Blank([]byte(s)), "%q", s)
	}
}

// reference splits the whole stream at once.
func reference(wire string, max int) (all []item) {
	wire = strings.TrimPrefix(wire, "\xef\xbb\xbf")
	for wire != "" {
		line, rest, found := strings.Cut(wire, "\n")
		wire = rest
		var err error = ErrUnterminated
		if found {
			line, err = strings.TrimSuffix(line, "\r"), nil
		}
		if max > 0 && len(line) > max {
			line, err = line[:min(len(line), headSize)], ErrTooLong
		}
		all = append(all, item{line, err})
	}
	return all
}

// chunks is a reader that hands out pieces whose sizes come from sizes, over and
// over.
type chunks struct {
	text  string
	sizes []byte
	n     int
}

func (c *chunks) Read(p []byte) (int, error) {
	if c.text == "" {
		return 0, io.EOF
	}
	size := 1
	if len(c.sizes) > 0 {
		size += int(c.sizes[c.n%len(c.sizes)])
		c.n++
	}
	n := copy(p, c.text[:min(size, len(c.text))])
	c.text = c.text[n:]
	return n, nil
}

func FuzzReader(f *testing.F) {
	for _, s := range []string{
		"{\"a\":1}\n{\"b\":2}\n",
		"{\"type\":\"Ping\"}\n\r\n  \t\n{\"a\":1}\r\n{\"b\":2}",
		"\xef\xbb\xbf{\"a\":1}\n\xef\xbb\xbf{\"b\":2}\n",
		"{\"a\":\"xxxxxxxxxxxxxxxxxxxx\"}\n{\"b\":1}\n",
		"12345678\r\n12345678\r\r\n12345678\r",
		strings.Repeat("x", 5000) + "\n" + strings.Repeat("y", 9000) + "\nz",
	} {
		f.Add(s, 16, []byte{0})
		f.Add(s, 0, []byte{6, 0, 255})
	}
	f.Fuzz(func(t *testing.T, wire string, max int, sizes []byte) {
		if max < 0 || max > math.MaxInt-minRead-2 {
			max = 0
		}
		r := NewReader(&chunks{text: wire, sizes: sizes}, max)
		require.Equal(t, reference(wire, max), readAll(r))
		_, err := r.Next()
		require.Equal(t, io.EOF, err)
	})
}

func TestMemoryHoldsItsSize(t *testing.T) {
	b := budget.New(budget.Limits{Memory: budget.Limit{Principal: 100}}, nil)
	used := func() (n int64) {
		for _, u := range b.Usage() {
			if u.Resource == "memory" && u.Scope == "all" {
				n = u.Used
			}
		}
		return n
	}
	m := &Memory{Scope: func() *budget.Scope { return b.Scope("p", "") }}
	for _, tt := range []struct {
		bytes     int
		isRefused bool
		used      int64
	}{{0, false, 0}, {101, true, 0}, {50, false, 50}, {100, false, 100}, {101, true, 100}, {20, false, 20}, {0, false, 0}, {0, false, 0}, {10, false, 10}} {
		err := m.Reserve(tt.bytes)
		require.Equal(t, tt.isRefused, err != nil, tt.bytes)
		require.Equal(t, tt.used, used(), tt.bytes)
	}
}
