// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package lines

import (
	"io"
	"strings"
	"sync"
	"testing"
	"testing/iotest"

	"github.com/stretchr/testify/require"
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
		{"at the limit, CR counted", "1234\r\r\n12345\r\r\n", 5, []item{{"1234\r", nil}, {"", ErrTooLong}}},
		{"over the limit", "123456\na\n", 5, []item{{"", ErrTooLong}, {"a", nil}}},
		{"far over the limit", strings.Repeat("x", 100_000) + "\na\n", 5, []item{{"", ErrTooLong}, {"a", nil}}},
		{"twice over the limit", "123456\n123456\na\n", 5, []item{{"", ErrTooLong}, {"", ErrTooLong}, {"a", nil}}},
		{"over the limit, unterminated", "a\n123456", 5, []item{{"a", nil}, {"", ErrTooLong}}},
		{"over the limit by a CR, unterminated", "12345\r", 5, []item{{"", ErrTooLong}}},
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

func TestWriterConcurrent(t *testing.T) {
	var out strings.Builder
	w := NewWriter(&out, 64)
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() {
			for range 100 {
				if err := w.WriteLine([]byte("0123456789")); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	require.Equal(t, strings.Repeat("0123456789\n", 1600), out.String())
}
