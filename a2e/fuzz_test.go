// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package a2e_test

import (
	"bytes"
	"io"
	"log/slog"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/a2e"
	"github.com/fivewire/fivewire/a2e/a2etest"
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
	h := a2etest.NewHost(f, &a2e.HostOptions{Logger: slog.New(slog.DiscardHandler), Limits: a2e.Limits{MaxMessage: 10_000}}, repeating())
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
			_, err := r.rw.Write(append(append(append(bytes.Clone(before), '\n'), message("ping", "good", "")+"\n"...), after...))
			written <- err
		}()
		for m := r.next(); m.Type != a2e.TypePong; m = r.next() {
			require.Equal(t, a2e.TypeError, m.Type)
		}
		go func() { _, _ = io.Copy(io.Discard, r.in) }()
		require.NoError(t, <-written)
	})
}
