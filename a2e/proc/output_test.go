// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

//go:build unix

package proc

import (
	"bytes"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// The bytes that a pipe holds at the end of its process are read, also by a reader that was slow, and
// although another process has the pipe open.
func TestOutputOfEndedProcessIsComplete(t *testing.T) {
	r, w, err := os.Pipe()
	require.NoError(t, err)
	defer w.Close()
	want := bytes.Repeat([]byte("0123456\n"), 7000)
	_, err = w.Write(want)
	require.NoError(t, err)
	o := newOutput(r)
	o.finish()
	o.end = time.Now()
	require.NoError(t, r.SetReadDeadline(o.end))
	var got []byte
	o.pieces(func(piece []byte) { got = append(got, piece...) })
	require.Equal(t, want, got)
}

func TestPieceEndsWithLineOrCharacter(t *testing.T) {
	for text, want := range map[string]string{"": "", "a\nb": "a\n", "a\n": "a\n", "ab": "ab", "aä": "aä", "a\xc3": "a", "\xe2\x82": "",
		"a\xff": "a\xff", "a\n\xc3": "a\n", "\x80\x80\x80\x80": "\x80\x80\x80\x80"} {
		require.Equal(t, want, string(wholePart([]byte(text))), "%q", text)
	}
}
