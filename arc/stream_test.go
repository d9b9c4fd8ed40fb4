// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package arc

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/arc/internal/wire"
	"github.com/fivewire/fivewire/internal/race"
	"github.com/fivewire/fivewire/internal/sse"
)

// readAll reads a stream to its end.
func readAll(r *streamReader) (text string, events int, err error) {
	for {
		ev, err := r.Next()
		if err != nil {
			return text, events, err
		}
		events++
		text += ev.Text
	}
}

func chunkEvent(text string) string {
	return `event: stream` + "\n" + `data: {"chatId":"c1","message":{"role":"agent","parts":[{"type":"TextPart","content":"` + text + `"}]}}` + "\n\n"
}

const doneEvent = "event: done\ndata: {\"chatId\":\"c1\",\"status\":\"ACTIVE\",\"done\":true}\n\n"

func TestStreamReader(t *testing.T) {
	boom := errors.New("boom")
	for _, tt := range []struct {
		name   string
		body   io.Reader
		text   string
		events int
		err    error
	}{
		{"whole", strings.NewReader(chunkEvent("a ") + chunkEvent("b") + doneEvent), "a b", 3, io.EOF},
		{"byte by byte", iotest.OneByteReader(strings.NewReader(chunkEvent("é") + doneEvent)), "é", 2, io.EOF},
		{"cut off", strings.NewReader(chunkEvent("a") + "event: done\ndata: {"), "a", 1, ErrTruncated},
		{"empty", strings.NewReader(""), "", 0, ErrTruncated},
		{"connection lost", io.MultiReader(strings.NewReader(chunkEvent("a")), iotest.ErrReader(boom)), "a", 1, boom},
		{"connection cut", io.MultiReader(strings.NewReader(chunkEvent("a")), iotest.ErrReader(io.ErrUnexpectedEOF)), "a", 1, ErrTruncated},
		{"duplicate member", strings.NewReader("event: stream\ndata: {\"message\":1,\"message\":2}\n\n"), "", 0, ErrMalformedEvent},
		{"message of no kind", strings.NewReader("event: stream\ndata: {\"message\":[1]}\n\n"), "", 0, ErrMalformedEvent},
		{"array", strings.NewReader("event: chat\ndata: [1]\n\n"), "", 0, ErrMalformedEvent},
		{"chunk without message", strings.NewReader("event: stream\ndata: {\"message\":null}\n\n" + doneEvent), "", 1, io.EOF},
		{"text and bare part (ARC-D28)", strings.NewReader("event: stream\ndata: {\"message\":\"a\"}\n\nevent: stream\ndata: {\"message\":{\"type\":\"text\",\"content\":\"b\"}}\n\n" + doneEvent), "ab", 3, io.EOF},
		{"unreadable done ends all the same", strings.NewReader("event: done\ndata: {\n\n" + chunkEvent("late")), "", 1, io.EOF},
		{"done without its empty line (ARC-D27)", strings.NewReader(strings.TrimSuffix(doneEvent, "\n\n")), "", 1, io.EOF},
		{"nested chat of the site (ARC-D20)", strings.NewReader("data: {\"chat\":{\"chatId\":\"c9\",\"message\":{\"role\":\"agent\",\"parts\":[{\"type\":\"text\",\"content\":\"x\"}]}}}\n\n" + doneEvent), "x", 2, io.EOF},
	} {
		t.Run(tt.name, func(t *testing.T) {
			text, events, err := readAll(newStreamReader(tt.body, 0, nil))
			require.ErrorIs(t, err, tt.err)
			require.Equal(t, tt.text, text)
			require.Equal(t, tt.events, events)
		})
	}
	_, _, err := readAll(newStreamReader(strings.NewReader(chunkEvent(strings.Repeat("x", 100))), 99, nil))
	require.ErrorIs(t, err, ErrTooLarge)
	require.ErrorIs(t, ErrTruncated, io.ErrUnexpectedEOF)
}

// ARC-D22: the error is reported at once, and a done event does not undo it.
func TestStreamReaderError(t *testing.T) {
	for data, want := range map[string]*Error{
		`{"chatId":"c","error":{"code":-43003,"message":"m","details":{"a":1}}}`: {Code: ErrChatTimeout, Message: "m", Details: []byte(`{"a":1}`)},
		`{"message":"boom","code":-43005}`:                                       {Code: ErrInvalidChatMessage, Message: "boom"},
		`{"error":"just text"}`:                                                  {Code: ErrInternal, Message: "just text"},
		`{"error":{"message":"no code"}}`:                                        {Code: ErrInternal, Message: "no code"},
		`{"error":{"code":7,"message":{}}}`:                                      {Code: 7},
		`oops`:                                                                   {Code: ErrInternal, Message: "oops"},
	} {
		r := newStreamReader(strings.NewReader("event: error\ndata: "+data+"\n\n"+doneEvent+doneEvent), 0, nil)
		_, err := r.Next()
		want.Remote = true
		require.Equal(t, want, err, data)
		ev, err := r.Next()
		require.NoError(t, err)
		require.True(t, ev.Done)
		_, err = r.Next()
		require.Equal(t, io.EOF, err)
	}
	r := newStreamReader(strings.NewReader("event: error\ndata: {}\n\n"+chunkEvent("late")), 0, nil)
	_, err := r.Next()
	var e *Error
	require.ErrorAs(t, err, &e)
	_, err = r.Next()
	require.Equal(t, io.EOF, err, "what follows an error is not read")
}

func TestStreamReaderIgnored(t *testing.T) {
	var got []string
	r := newStreamReader(strings.NewReader("event: ping\ndata: {}\n\ndata: 5\n\n"+doneEvent), 0, func(name string, data []byte) {
		got = append(got, name+"="+string(data))
	})
	_, events, err := readAll(r)
	require.Equal(t, io.EOF, err)
	require.Equal(t, 1, events)
	require.Equal(t, []string{"ping={}", "=5"}, got)
	require.Equal(t, "c1", r.ChatID())
}

// A reader reads a stream with two allocations an event: the event with its
// message, and its text.
func TestStreamAllocations(t *testing.T) {
	if race.Enabled {
		t.Skip("the race detector allocates")
	}
	const n = 1000
	read := func(events int) float64 {
		var body []byte
		for i := range events {
			body, _ = sse.AppendEvent(body, wire.EventChunk, "", wire.AppendText(nil, "chat-1", fmt.Sprintf("word %d ", i)))
		}
		body, _ = sse.AppendEvent(body, wire.EventDone, "", wire.AppendDone(nil, "chat-1", "ACTIVE"))
		return testing.AllocsPerRun(5, func() {
			_, got, err := countAll(newStreamReader(strings.NewReader(string(body)), 0, nil))
			if err != io.EOF || got != events+1 {
				t.Fatal(got, err)
			}
		})
	}
	require.LessOrEqual(t, (read(2*n)-read(n))/n, 2.01)
}

func countAll(r *streamReader) (length, events int, err error) {
	for {
		ev, err := r.Next()
		if err != nil {
			return length, events, err
		}
		events++
		length += len(ev.Text)
	}
}

func FuzzStreamReader(f *testing.F) {
	f.Add([]byte(chunkEvent("a")+": c\n\n"+doneEvent), 3)
	f.Add([]byte("event: error\ndata: {\"error\":{}}\n\n"+doneEvent), 1)
	f.Add([]byte("\xef\xbb\xbfdata:{\"message\":\"x\"}\r\rdata: {\"done\":true}"), 2)
	f.Fuzz(func(t *testing.T, body []byte, piece int) {
		text1, n1, err1 := readAll(newStreamReader(strings.NewReader(string(body)), 1<<16, nil))
		text2, n2, err2 := readAll(newStreamReader(&pieces{body, max(1, piece%7)}, 1<<16, nil))
		require.Equal(t, text1, text2, "how the bytes arrive does not matter")
		require.Equal(t, n1, n2)
		require.Equal(t, err1.Error(), err2.Error())
	})
}

// pieces reads n bytes at a time.
type pieces struct {
	b []byte
	n int
}

func (p *pieces) Read(b []byte) (int, error) {
	if len(p.b) == 0 {
		return 0, io.EOF
	}
	n := copy(b, p.b[:min(p.n, len(p.b))])
	p.b = p.b[n:]
	return n, nil
}
