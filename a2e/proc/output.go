// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package proc

import (
	"bytes"
	"errors"
	"io"
	"os"
	"sync"
	"time"
	"unicode/utf8"
)

const (
	maxChunk   = 32 << 10               // bytes of the text of one event
	gatherTime = 5 * time.Millisecond   // after the first byte of an event
	afterExit  = 100 * time.Millisecond // for an output that outlives its process
	maxHeld    = 1 << 20                // bytes that a pipe of an ended process holds
)

// An output is a pipe from a process.
type output struct {
	f    *os.File
	rest int // bytes that may be read after the end

	mu  sync.Mutex
	end time.Time // when no more output is awaited; guarded by mu
}

func newOutput(r io.ReadCloser) *output {
	f, _ := r.(*os.File) // see exec.Cmd.StdoutPipe
	return &output{f: f, rest: maxHeld}
}

// finish makes read return the bytes that the pipe holds, and then io.EOF.
func (o *output) finish() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.end = time.Now().Add(afterExit)
	_ = o.f.SetReadDeadline(o.end)
}

// setDeadline sets the deadline of the next read, zero for none, unless the process has ended.
func (o *output) setDeadline(t time.Time) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.end.IsZero() {
		_ = o.f.SetReadDeadline(t)
	}
}

func (o *output) isFinished() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return !o.end.IsZero() && !time.Now().Before(o.end)
}

// read reads at least one byte until the deadline, or returns os.ErrDeadlineExceeded.
func (o *output) read(b []byte, deadline time.Time) (int, error) {
	if !o.isFinished() {
		o.setDeadline(deadline)
		n, err := o.f.Read(b)
		if n > 0 || !errors.Is(err, os.ErrDeadlineExceeded) || !o.isFinished() {
			return n, err
		}
	}
	n := readHeld(o.f, b[:min(len(b), o.rest)])
	o.rest -= n
	if n == 0 {
		return 0, io.EOF
	}
	return n, nil
}

// pieces calls f with the output until its end: with the bytes that arrive within gatherTime, through
// the last line feed of them, and never with a part of a character.
func (o *output) pieces(f func(piece []byte)) {
	defer o.f.Close()
	buf, n := make([]byte, maxChunk), 0
	for {
		var err error
		if n == 0 || len(wholePart(buf[:n])) == 0 {
			var m int
			m, err = o.read(buf[n:], time.Time{})
			n += m
		}
		for deadline := time.Now().Add(gatherTime); err == nil && n < len(buf); {
			var m int
			m, err = o.read(buf[n:], deadline)
			n += m
		}
		isEnd := err != nil && !errors.Is(err, os.ErrDeadlineExceeded)
		cut := len(wholePart(buf[:n]))
		if isEnd {
			cut = n
		}
		if cut > 0 {
			f(buf[:cut])
		}
		if isEnd {
			return
		}
		n = copy(buf, buf[cut:n])
	}
}

// wholePart returns text through its last line feed, or without a character that is not complete.
func wholePart(text []byte) []byte {
	if i := bytes.LastIndexByte(text, '\n'); i >= 0 {
		return text[:i+1]
	}
	return wholeCharacters(text)
}

// wholeCharacters returns text without a character at its end that is not complete.
func wholeCharacters(text []byte) []byte {
	for i := len(text) - 1; i >= max(0, len(text)-utf8.UTFMax); i-- {
		if utf8.RuneStart(text[i]) {
			if !utf8.FullRune(text[i:]) {
				return text[:i]
			}
			break
		}
	}
	return text
}
