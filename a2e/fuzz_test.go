// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package a2e_test

import (
	"bytes"
	"io"
	"log/slog"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/a2e"
	"github.com/fivewire/fivewire/a2e/a2etest"
	"github.com/fivewire/fivewire/internal/kit"
)

// The reader of the beginning of a line agrees with the reader of messages on every valid line (A2E-D06).
func FuzzHeadMembers(f *testing.F) {
	for _, line := range vectorLines(f) {
		f.Add([]byte(line))
	}
	codec := a2e.NewCodec()
	f.Fuzz(func(t *testing.T, line []byte) {
		m, err := codec.Decode(line)
		if err != nil || len(line) > 4096 {
			return
		}
		id, msgType, refID := a2e.HeadMembers(line)
		require.Equal(t, []string{m.ID, m.Type}, []string{id, msgType})
		if m.Body == nil {
			want, _ := m.Extra.Text("req_id")
			require.Equal(t, want, refID)
		}
	})
}

// Bytes that are not messages, before and after a good line, do not change its answer.
func FuzzLinesAroundMessage(f *testing.F) {
	f.Add([]byte("{"), []byte("\x00\xff"))
	f.Add([]byte("{\"a2e\":\"1.0\"}\r\n\n[1]\n"), []byte(`{"a2e":"1.0","type":`))
	f.Add(bytes.Repeat([]byte("x"), 100_000), []byte("\n\n\n"))
	codec := a2e.NewCodec()
	h := a2etest.NewHost(f, &a2e.HostOptions{Logger: slog.New(slog.DiscardHandler), Limits: a2e.Limits{MaxMessage: 10_000}}, sizes(nil))
	f.Fuzz(func(t *testing.T, before, after []byte) {
		for _, junk := range [][]byte{before, after} {
			for line := range bytes.SplitSeq(junk, []byte{'\n'}) {
				if _, err := codec.Decode(bytes.TrimSuffix(line, []byte{'\r'})); err == nil {
					return // such as a shutdown
				}
			}
		}
		r := open(t, h)
		r.shake(`"demo"`)
		written := make(chan error, 1)
		go func() {
			_, err := r.rw.Write(append(append(append(bytes.Clone(before), '\n'), message("demo/answer/req", "good", `,"text":"as sent"`)+"\n"...), after...))
			written <- err
		}()
		m := r.next()
		for ; m.Type == "error"; m = r.next() {
			require.NotEqual(t, "good", m.ReqID())
		}
		text, _ := m.Extra.Text("text")
		require.Equal(t, []string{"demo/answer/resp", "good", "as sent"}, []string{m.Type, m.ReqID(), text})
		go func() { _, _ = io.Copy(io.Discard, r.in) }()
		require.NoError(t, <-written)
	})
}

// A line above the limit is one error, costs at most the limit and 64 KiB, and does not change the next line
// (A2E-D06).
func FuzzLongLine(f *testing.F) {
	f.Add([]byte(`{"id":"a","x":"`), uint32(100_000), uint32(0))
	f.Add([]byte("\xef\xbb\xbf\r"), uint32(1), uint32(300_000))
	f.Add([]byte("  \t"), uint32(1_000_000), uint32(2_000_000))
	f.Fuzz(func(t *testing.T, head []byte, limit, more uint32) {
		limit, more = limit%(4<<20)+1, more%(4<<20)
		if bytes.IndexByte(head, '\n') >= 0 {
			return
		}
		line := &longLine{head: head, rest: int(limit+more) + 4}
		r := a2e.NewLineReader(line, &a2e.Codec{MaxMessage: int(limit)})
		line.base = kit.Heap()
		_, err := r.Next()
		require.ErrorIs(t, err, a2e.ErrTooLarge)
		next, err := r.Next()
		if limit < 2 {
			require.ErrorIs(t, err, a2e.ErrTooLarge)
		} else {
			require.NoError(t, err)
			require.Equal(t, "{}", string(next))
		}
		_, err = r.Next()
		require.ErrorIs(t, err, io.EOF)
		require.LessOrEqual(t, line.peak, int64(limit)+64<<10)
		runtime.KeepAlive(r)
	})
}

// A longLine is a stream of a long line and a short one. It measures the memory that its reader holds.
type longLine struct {
	head       []byte
	rest       int // bytes behind head
	end        []byte
	reads      int
	base, peak int64
}

func (l *longLine) Read(p []byte) (int, error) {
	if l.reads++; l.reads&(l.reads-1) == 0 || l.rest > 0 && l.rest < 2*len(p) {
		l.peak = max(l.peak, kit.Heap()-l.base)
	}
	switch {
	case len(l.head) > 0:
		n := copy(p, l.head)
		l.head = l.head[n:]
		return n, nil
	case l.rest > 0:
		n := min(l.rest, len(p))
		for i := range p[:n] {
			p[i] = 'x'
		}
		if l.rest -= n; l.rest == 0 {
			l.end = []byte("\n{}\n")
		}
		return n, nil
	case len(l.end) > 0:
		n := copy(p, l.end)
		l.end = l.end[n:]
		return n, nil
	}
	return 0, io.EOF
}
