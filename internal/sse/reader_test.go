// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package sse

import (
	"errors"
	"io"
	"math"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// got is an event that has been copied out of its Reader.
type got struct {
	Name, Data, ID string
	Retry          time.Duration
}

func copied(ev Event) got { return got{ev.Name, string(ev.Data), ev.ID, ev.Retry} }

// readAll reads until the first error.
func readAll(r *Reader) (all []got, err error) {
	for {
		ev, err := r.Next()
		if err != nil {
			return all, err
		}
		all = append(all, copied(ev))
	}
}

// cut is a reader that hands out one chunk a call.
type cut [][]byte

func (c *cut) Read(p []byte) (int, error) {
	if len(*c) == 0 {
		return 0, io.EOF
	}
	n := copy(p, (*c)[0])
	if (*c)[0] = (*c)[0][n:]; len((*c)[0]) == 0 {
		*c = (*c)[1:]
	}
	return n, nil
}

func TestReaderGrammar(t *testing.T) {
	const ms = time.Millisecond
	tests := []struct {
		name string
		wire string
		want []got
	}{
		{"one event", "data: x\n\n", []got{{Data: "x"}}},
		{"name", "event: done\ndata: x\n\n", []got{{Name: "done", Data: "x"}}},
		{"name after data", "data: x\nevent: done\n\n", []got{{Name: "done", Data: "x"}}},
		{"last name wins", "event: a\nevent: b\ndata: x\n\n", []got{{Name: "b", Data: "x"}}},
		{"name of one event only", "event: a\ndata: x\n\ndata: y\n\n", []got{{Name: "a", Data: "x"}, {Data: "y"}}},
		{"name of an event without data is forgotten", "event: a\n\ndata: y\n\n", []got{{Data: "y"}}},
		{"empty name", "event: a\nevent\ndata: x\n\n", []got{{Data: "x"}}},
		{"several data lines", "data: YHOO\ndata: +2\ndata: 10\n\n", []got{{Data: "YHOO\n+2\n10"}}},
		{"empty data lines", "data\n\ndata\ndata\n\ndata:", []got{{Data: ""}, {Data: "\n"}}},
		{"data with and without blank", "data:test\n\ndata: test\n\ndata:  test\n\n", []got{{Data: "test"}, {Data: "test"}, {Data: " test"}}},
		{"colons in the value", "data:a:b: c\n\n", []got{{Data: "a:b: c"}}},
		{"comment", ": test stream\n\ndata: x\n:in between\n\n", []got{{Data: "x"}}},
		{"unknown fields", "foo: 1\nDATA: no\n data: no\ndata : no\nbar\ndata: x\n\n", []got{{Data: "x"}}},
		{"id persists", "data: a\nid: 1\n\ndata: b\n\ndata: c\nid\n\ndata: d\n\n", []got{{Data: "a", ID: "1"}, {Data: "b", ID: "1"}, {Data: "c"}, {Data: "d"}}},
		{"id without data counts", "id: 7\n\ndata: a\n\n", []got{{Data: "a", ID: "7"}}},
		{"id with NUL is ignored", "id: 1\nid: 2\x00\ndata: a\n\n", []got{{Data: "a", ID: "1"}}},
		{"retry", "retry: 1500\ndata: a\n\ndata: b\n\n", []got{{Data: "a", Retry: 1500 * ms}, {Data: "b", Retry: 1500 * ms}}},
		{"retry of digits only", "retry: 10\nretry: 1x\nretry: -1\nretry: 1.5\nretry:  3\nretry\nretry:\ndata: a\n\n", []got{{Data: "a", Retry: 10 * ms}}},
		{"CR", "event: a\rdata: x\r\rdata: y\r\r", []got{{Name: "a", Data: "x"}, {Data: "y"}}},
		{"CRLF", "event: a\r\ndata: x\r\n\r\ndata: y\r\n\r\n", []got{{Name: "a", Data: "x"}, {Data: "y"}}},
		{"mixed line ends", "data: a\r\ndata: b\rdata: c\n\r\ndata: d\n\r", []got{{Data: "a\nb\nc"}, {Data: "d"}}},
		{"LF CR are two", "data: a\n\rdata: b\r\n\n", []got{{Data: "a"}, {Data: "b"}}},
		{"byte order mark", "\xef\xbb\xbfdata: a\n\n", []got{{Data: "a"}}},
		{"one byte order mark only", "\xef\xbb\xbf\xef\xbb\xbfdata: a\n\ndata: b\n\n", []got{{Data: "b"}}},
		{"no byte order mark later", "data: a\n\n\xef\xbb\xbfdata: b\n\n", []got{{Data: "a"}}},
		{"byte order mark before a comment", "\xef\xbb\xbf: c\ndata: a\n\n", []got{{Data: "a"}}},
		{"byte order mark on a line of its own", "\xef\xbb\xbf\ndata: a\n\n", []got{{Data: "a"}}},
		{"half a byte order mark", "\xef\xbb\ndata: a\n\n", []got{{Data: "a"}}},
		{"unterminated event", "data: a\n\ndata: b\n", []got{{Data: "a"}}},
		{"unterminated line", "data: a\n\ndata: b", []got{{Data: "a"}}},
		{"bytes are kept", "data: \xff\x00\xe2\x80\xa8\n\n", []got{{Data: "\xff\x00\xe2\x80\xa8"}}},
		{"empty", "", nil},
		{"empty lines", "\n\r\n\r\n\n", nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			all, err := readAll(NewReader(strings.NewReader(tt.wire), nil))
			require.Equal(t, io.EOF, err)
			require.Equal(t, tt.want, all)

			all, err = readAll(NewReader(iotest.OneByteReader(strings.NewReader(tt.wire)), nil))
			require.Equal(t, io.EOF, err)
			require.Equal(t, tt.want, all, "byte by byte")

			for i := range len(tt.wire) {
				two := &cut{[]byte(tt.wire[:i]), []byte(tt.wire[i:])}
				all, err = readAll(NewReader(two, nil))
				require.Equal(t, io.EOF, err)
				require.Equal(t, tt.want, all, "cut at %d", i)
			}

			all, err = readAll(NewReader(iotest.DataErrReader(strings.NewReader(tt.wire)), nil))
			require.Equal(t, io.EOF, err)
			require.Equal(t, tt.want, all, "end together with data")
		})
	}
}

// An event is returned as soon as its empty line has arrived, whatever ends that line.
func TestReaderDoesNotWait(t *testing.T) {
	for _, end := range []string{"\n", "\r", "\r\n"} {
		pr, pw := io.Pipe()
		r := NewReader(pr, nil)
		for range 3 {
			go pw.Write([]byte("data: x" + end + end[:1]))
			ev, err := r.Next() // would hang if it needed one byte more
			require.NoError(t, err)
			require.Equal(t, "x", string(ev.Data))
			if len(end) > 1 {
				go pw.Write([]byte(end[1:]))
			}
		}
		pw.Close()
		_, err := r.Next()
		require.Equal(t, io.EOF, err)
	}
}

func TestReaderPending(t *testing.T) {
	tests := []struct {
		name string
		wire string
		want got
		ok   bool
	}{
		{"no line end", "event: done\ndata: {}", got{Name: "done", Data: "{}"}, true},
		{"line end", "event: done\ndata: {}\n", got{Name: "done", Data: "{}"}, true},
		{"CR", "event: done\rdata: {}\r", got{Name: "done", Data: "{}"}, true},
		{"name after data", "data: {}\nevent: done", got{Name: "done", Data: "{}"}, true},
		{"several lines", "data: {\ndata: }", got{Data: "{\n}"}, true},
		{"empty data line", "data: {}\ndata", got{Data: "{}\n"}, true},
		{"own id", "id: 1\n\nid: 2\ndata: {}", got{Data: "{}", ID: "2"}, true},
		{"cut reconnection time", "retry: 30\ndata: {}\nretry: 1", got{Data: "{}", Retry: 30 * time.Millisecond}, true},
		{"cut field name", "data: {}\ndat", got{Data: "{}"}, true},
		{"comment", "data: {}\n: ke", got{Data: "{}"}, true},
		{"complete", "data: {}\n\n", got{}, false},
		{"complete with CR", "data: {}\r\r", got{}, false},
		{"no data", "event: done\nid: 5\n", got{}, false},
		{"cut before data", "event: done\ndat", got{}, false},
		{"nothing", "", got{}, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := NewReader(strings.NewReader(tt.wire), nil)
			_, ok := r.Pending()
			require.False(t, ok, "before the end")
			_, err := readAll(r)
			require.Equal(t, io.EOF, err)
			for range 2 {
				ev, ok := r.Pending()
				require.Equal(t, tt.ok, ok)
				require.Equal(t, tt.want, copied(ev))
				_, err = r.Next()
				require.Equal(t, io.EOF, err)
			}
		})
	}
}

func TestReaderPendingAfterBrokenStream(t *testing.T) {
	boom := errors.New("connection reset")
	r := NewReader(io.MultiReader(strings.NewReader("data: a\n\ndata: {}\n"), iotest.ErrReader(boom)), nil)
	all, err := readAll(r)
	require.Equal(t, boom, err)
	require.Equal(t, []got{{Data: "a"}}, all)
	ev, ok := r.Pending()
	require.True(t, ok)
	require.Equal(t, "{}", string(ev.Data))
}

// An unterminated line that breaks the limit leaves nothing to be used.
func TestReaderPendingAboveLimit(t *testing.T) {
	r := NewReader(strings.NewReader("data: 0123456789\ndata"), &ReaderOptions{MaxData: 10})
	_, err := r.Next()
	require.Equal(t, io.EOF, err)
	_, ok := r.Pending()
	require.False(t, ok)
}

// The beginning of data above the limit is kept, which may name what the event is about.
func TestReaderOversize(t *testing.T) {
	for wire, want := range map[string]Event{
		"event: e\ndata: 0123456789a\n\n":     {Name: "e", Data: []byte("0123456789a")},
		"data: 01\nid: 7\ndata: 3456789a\n\n": {Data: []byte("01\n3456789a"), ID: "7"},
		"data: 0123456789\n\n":                {},
		": 012345678901234567890\n":           {},
		"data: 0123456789\ndata":              {},
	} {
		r := NewReader(strings.NewReader(wire), &ReaderOptions{MaxData: 10, MaxLine: 20})
		_, ok := r.Oversize()
		require.False(t, ok)
		_, err := readAll(r)
		ev, ok := r.Oversize()
		require.Equal(t, want, ev, wire)
		require.Equal(t, want.Data != nil, ok)
		if ok {
			require.ErrorIs(t, err, ErrTooLarge)
		}
	}
}

// An id takes effect at the end of its event, not when the stream breaks off
// before.
func TestReaderLastEventID(t *testing.T) {
	r := NewReader(strings.NewReader("id: 1\ndata: x\n\nid: 2\n\nid: 3\ndata: y\n"), nil)
	require.Empty(t, r.LastEventID())
	_, err := r.Next()
	require.NoError(t, err)
	require.Equal(t, "1", r.LastEventID())
	_, err = r.Next()
	require.Equal(t, io.EOF, err)
	require.Equal(t, "2", r.LastEventID())
}

func TestReaderRetry(t *testing.T) {
	read := func(wire string) *Reader {
		r := NewReader(strings.NewReader(wire), nil)
		_, err := readAll(r)
		require.Equal(t, io.EOF, err)
		return r
	}
	_, ok := read("data: x\n\n").Retry()
	require.False(t, ok)
	d, ok := read("retry: 0\n").Retry()
	require.True(t, ok)
	require.Zero(t, d)
	d, ok = read("retry: 250\n\n").Retry() // without an event
	require.True(t, ok)
	require.Equal(t, 250*time.Millisecond, d)
	d, ok = read("retry: 99999999999999999999999999\n").Retry()
	require.True(t, ok)
	require.Greater(t, d, 24*time.Hour*365)
	require.Less(t, d, time.Duration(math.MaxInt64))
}

func TestReaderComments(t *testing.T) {
	r := NewReader(strings.NewReader(": a\n:\n\ndata: x\n:b\n\n: cut"), nil)
	_, err := r.Next()
	require.NoError(t, err)
	require.EqualValues(t, 3, r.Comments())
}

func TestReaderLimits(t *testing.T) {
	tests := []struct {
		name string
		wire string
		ok   bool
	}{
		{"data at the limit", "data: 0123456789\n\n", true},
		{"data over it", "data: 0123456789a\n\n", false},
		{"data over it, unterminated", "data: 0123456789a", false},
		{"lines at the limit, with the LF between them", "data: 01234\ndata: 6789\n\n", true},
		{"lines over it", "data: 01234\ndata: 6789a\n\n", false},
		{"empty line over it", "data: 0123456789\ndata\n\n", false},
		{"many empty lines at it", strings.Repeat("data\n", 11) + "\n", true},
		{"many empty lines over it", strings.Repeat("data\n", 12) + "\n", false},
		{"each event by itself", "data: 0123456789\n\ndata: 0123456789\n\n", true},
		{"comment at the line limit", ":" + strings.Repeat("c", 19) + "\ndata: x\n\n", true},
		{"comment over it", ":" + strings.Repeat("c", 20) + "\ndata: x\n\n", false},
		{"name at the line limit", "event: " + strings.Repeat("n", 13) + "\ndata: x\n\n", true},
		{"name over it", "event: " + strings.Repeat("n", 14) + "\ndata: x\n\n", false},
		{"unknown field over it", strings.Repeat("u", 21) + "\ndata: x\n\n", false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			for _, src := range []io.Reader{strings.NewReader(tt.wire), iotest.OneByteReader(strings.NewReader(tt.wire))} {
				r := NewReader(src, &ReaderOptions{MaxData: 10, MaxLine: 20})
				_, err := readAll(r)
				if tt.ok {
					require.Equal(t, io.EOF, err)
					continue
				}
				require.ErrorIs(t, err, ErrTooLarge)
				_, errRepeated := r.Next()
				require.Equal(t, err, errRepeated)
				_, ok := r.Pending()
				require.False(t, ok)
			}
		})
	}
}

// The limit is found out while the line is being read, not at its end.
func TestReaderLimitsBindEndlessLines(t *testing.T) {
	for _, begin := range []string{"data:", ":", "event: ", "x"} {
		r := NewReader(io.MultiReader(strings.NewReader(begin), endless{}), &ReaderOptions{MaxData: 1 << 20})
		_, err := r.Next()
		require.ErrorIs(t, err, ErrTooLarge)
	}
}

type endless struct{}

func (endless) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = 'x'
	}
	return len(p), nil
}

func TestReaderLargeData(t *testing.T) {
	big := strings.Repeat("0123456789abcdef", 1<<16)
	r := NewReader(strings.NewReader("data: "+big+"\n\ndata: x\n\n"), nil)
	ev, err := r.Next()
	require.NoError(t, err)
	require.Equal(t, big, string(ev.Data))
	ev, err = r.Next()
	require.NoError(t, err)
	require.Equal(t, "x", string(ev.Data))
	require.LessOrEqual(t, cap(r.data), keepData, "the space of the large event is given back")
}

func TestReaderStalledAndLyingSource(t *testing.T) {
	_, err := NewReader(counts(0), nil).Next()
	require.Equal(t, io.ErrNoProgress, err)
	for _, n := range []int{-1, 1 << 30} {
		_, err = NewReader(counts(n), nil).Next()
		require.ErrorIs(t, err, errBadRead)
	}
}

// counts is a reader that claims to have read so many bytes.
type counts int

func (n counts) Read([]byte) (int, error) { return int(n), nil }

func TestReaderAllocs(t *testing.T) {
	src := &repeat{text: []byte("event: stream\ndata: {\"chatId\":\"c1\",\"text\":\"hello\"}\n\n: keep-alive\n\nid: 4\nevent: done\ndata: {}\n\n")}
	r := NewReader(src, nil)
	for range 10 {
		_, err := r.Next()
		require.NoError(t, err)
	}
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

func TestReaderNames(t *testing.T) {
	// More names, and longer ones, than are remembered.
	var wire strings.Builder
	var want []string
	for i := range 3 * maxNames {
		name := strings.Repeat("n", 1+i*5)
		want = append(want, name, name)
		wire.WriteString(strings.Repeat("event: "+name+"\ndata: x\n\n", 2))
	}
	all, err := readAll(NewReader(strings.NewReader(wire.String()), nil))
	require.Equal(t, io.EOF, err)
	require.Len(t, all, len(want))
	for i, ev := range all {
		require.Equal(t, want[i], ev.Name)
	}
}

// reference is the algorithm of the standard, applied to a whole stream.
func reference(wire string) (all []got, lastID string) {
	wire = strings.TrimPrefix(wire, "\xef\xbb\xbf")
	var ev got
	var data, id string
	var retry time.Duration
	for {
		i := strings.IndexAny(wire, "\r\n")
		if i < 0 {
			return all, lastID // an unterminated line, and its event, are discarded
		}
		line := wire[:i]
		if strings.HasPrefix(wire[i:], "\r\n") {
			i++
		}
		wire = wire[i+1:]
		if line == "" {
			lastID = id
			if data != "" {
				all = append(all, got{ev.Name, strings.TrimSuffix(data, "\n"), lastID, retry})
			}
			data, ev = "", got{}
			continue
		}
		field, value, _ := strings.Cut(line, ":")
		value = strings.TrimPrefix(value, " ")
		switch field {
		case "event":
			ev.Name = value
		case "data":
			data += value + "\n"
		case "id":
			if !strings.Contains(value, "\x00") {
				id = value
			}
		case "retry":
			if value != "" && strings.Trim(value, "0123456789") == "" && len(value) < 10 {
				retry = 0
				for _, c := range value {
					retry = retry*10 + time.Duration(c-'0')
				}
				retry *= time.Millisecond
			}
		}
	}
}

// chunks cuts wire into pieces whose sizes come from sizes, over and over.
func chunks(wire string, sizes []int) *cut {
	var c cut
	for i := 0; len(wire) > 0; i++ {
		n := min(len(wire), 1+sizes[i%len(sizes)])
		c = append(c, []byte(wire[:n]))
		wire = wire[n:]
	}
	return &c
}

func TestReaderAgreesWithReference(t *testing.T) {
	piece := rapid.SampledFrom([]string{
		"data", "event", "id", "retry", ":", ": ", " ", "\n", "\r", "\r\n", "\n\n", "\r\r", "\r\n\r\n",
		"\xef\xbb\xbf", "x", "12", "\x00", "data: x", "event: a", "id: 9", "retry: 5", "é", strings.Repeat("long", 2000),
	})
	rapid.Check(t, func(t *rapid.T) {
		wire := strings.Join(rapid.SliceOfN(piece, 0, 60).Draw(t, "pieces"), "")
		sizes := rapid.SliceOfN(rapid.IntRange(0, 40), 1, 8).Draw(t, "sizes")
		want, lastID := reference(wire)
		r := NewReader(chunks(wire, sizes), nil)
		all, err := readAll(r)
		require.Equal(t, io.EOF, err)
		require.Equal(t, want, all)
		require.Equal(t, lastID, r.LastEventID())
	})
}

func FuzzReader(f *testing.F) {
	for _, s := range []string{
		"event: stream\ndata: {\"chatId\":\"c1\"}\n\nevent: done\ndata: {\"done\":true}\n\n",
		": keep-alive\r\n\r\nid: 4\r\nretry: 10\r\nevent:stream\r\ndata:{}\r\n\r\n",
		"\xef\xbb\xbfdata: a\rdata: b\r\rdata",
		"id: 1\x00\nid\ndata\n\n:\n\nretry: 1x\n",
	} {
		f.Add([]byte(s), byte(3), byte(0))
	}
	f.Fuzz(func(t *testing.T, wire []byte, a, b byte) {
		want, lastID := reference(string(wire))
		r := NewReader(chunks(string(wire), []int{int(a), int(b)}), nil)
		all, err := readAll(r)
		if err != io.EOF {
			require.ErrorIs(t, err, ErrTooLarge)
			return
		}
		for i := range want { // of times too long for the reference
			want[i].Retry, all[i].Retry = 0, 0
		}
		require.Equal(t, want, all)
		require.Equal(t, lastID, r.LastEventID())

		// Each event read can be written and read again.
		var out []byte
		for _, ev := range all {
			if out, err = AppendEvent(out, ev.Name, ev.ID, []byte(ev.Data)); err != nil {
				t.Fatal(err) // neither CR nor LF survives in a name
			}
		}
		reread, err := readAll(NewReader(strings.NewReader(string(out)), nil))
		require.Equal(t, io.EOF, err)
		require.Len(t, reread, len(all))
		for i := range all {
			require.Equal(t, all[i].Name, reread[i].Name)
			require.Equal(t, all[i].Data, reread[i].Data)
		}

		if ev, ok := r.Pending(); ok {
			// The same stream with its missing line ends has one event more,
			// and that is it.
			full, _ := reference(string(wire) + "\n\n")
			require.Len(t, full, len(all)+1)
			require.Equal(t, full[len(all)].Data, string(ev.Data))
			require.Equal(t, full[len(all)].Name, ev.Name)
		}
	})
}
