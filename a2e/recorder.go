// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package a2e

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"strconv"
	"sync"
	"time"

	"github.com/fivewire/fivewire/a2e/internal/wire"
	"github.com/fivewire/fivewire/internal/guard"
	"github.com/fivewire/fivewire/internal/strictjson"
)

// maxUnrecorded bounds the bytes of a recording that its writer has not taken.
const maxUnrecorded = 64 << 20

// A recorder writes the messages of a session as they pass, without secrets (A2E-D69).
type recorder struct {
	w       io.Writer
	log     *slog.Logger
	started time.Time

	mu        sync.Mutex // guards everything below
	lines     []recordedLine
	size      int // bytes of the lines
	isWriting bool
	isBroken  bool
	idle      *sync.Cond
}

// A recordedLine is a line as it passed, or the head of the recording.
type recordedLine struct {
	at   time.Duration
	dir  string // empty for the head
	text []byte
}

// newRecorder returns nil, which records nothing, without a writer.
func newRecorder(w io.Writer, role string, log *slog.Logger) *recorder {
	if w == nil {
		return nil
	}
	r := &recorder{w: w, log: log, started: time.Now()}
	r.idle = sync.NewCond(&r.mu)
	head := append([]byte(`{"a2e_record":1,"role":"`), role...)
	head = append(head, `","started":`...)
	head = strconv.AppendFloat(head, float64(r.started.UnixMicro())/1e6, 'f', -1, 64)
	r.append(recordedLine{text: append(head, "}\n"...)})
	return r
}

// record starts the recording of a new session. No lock is held.
func (s *Session) record() {
	f := s.host.opts.Record
	if f == nil {
		return
	}
	err := guard.CallApart("Record", func() error {
		s.conn.recorder = newRecorder(f(s.peer), "host", s.host.log)
		return nil
	})
	if err != nil {
		logFailure(s.ctx, s.host.log, slog.LevelWarn, "a2e: recording failed", err)
	}
}

// line records a line with or without LF, which goes "in" or "out". Another goroutine removes its secrets.
func (r *recorder) line(dir string, line []byte) {
	if r != nil {
		r.append(recordedLine{time.Since(r.started), dir, bytes.Clone(line)})
	}
}

func (r *recorder) append(l recordedLine) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.size+len(l.text) > maxUnrecorded && !r.isBroken {
		r.isBroken = true
		r.log.WarnContext(context.Background(), "a2e: recording ended", "reason", "slow_writer")
	}
	if r.isBroken {
		return
	}
	r.lines = append(r.lines, l)
	r.size += len(l.text)
	if !r.isWriting {
		r.isWriting = true
		go r.write()
	}
}

// appendTo appends the line in the form of the recording.
func (l *recordedLine) appendTo(b []byte) []byte {
	if l.dir == "" {
		return append(b, l.text...)
	}
	text, err := json.Marshal(string(redact(bytes.TrimRight(l.text, "\r\n"))))
	if err != nil {
		return b
	}
	b = strconv.AppendInt(append(b, `{"t":`...), l.at.Microseconds(), 10)
	b = append(append(append(b, `,"dir":"`...), l.dir...), `","line":`...)
	return append(append(b, text...), "}\n"...)
}

func (r *recorder) write() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for len(r.lines) > 0 && !r.isBroken {
		lines := r.lines
		r.lines, r.size = nil, 0
		r.mu.Unlock()
		err := guard.CallApart("recording writer", func() error {
			var b []byte
			for i := range lines {
				b = lines[i].appendTo(b)
			}
			_, err := r.w.Write(b)
			return err
		})
		r.mu.Lock()
		if err != nil {
			r.isBroken = true
			logFailure(context.Background(), r.log, slog.LevelWarn, "a2e: recording ended", err)
		}
	}
	r.isWriting = false
	r.idle.Broadcast()
}

// flush waits for the writer, at most for limit.
func (r *recorder) flush(limit time.Duration) {
	if r == nil {
		return
	}
	isLate := false
	timer := time.AfterFunc(limit, func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		isLate = true
		r.idle.Broadcast()
	})
	defer timer.Stop()
	r.mu.Lock()
	defer r.mu.Unlock()
	for r.isWriting && !isLate {
		r.idle.Wait()
	}
}

// A recordedConn records what is written to a connection.
type recordedConn struct {
	io.ReadWriteCloser
	recorder *recorder
	lines    lineSplitter
}

func (c *recordedConn) Write(b []byte) (int, error) {
	_, _ = c.lines.write(b, func(line []byte) error {
		c.recorder.line("out", line)
		return nil
	})
	return c.ReadWriteCloser.Write(b)
}

// secretNames are the members whose values are secrets (A2E-151).
var secretNames = [...]string{"auth_token", "access_token", "token", "api_key", "authorization", "password", "secret", "credentials", "headers", "env"}

// redact returns a message with "***" in place of its secrets, or of an invalid line that may
// have some.
func redact(line []byte) []byte {
	v, err := wire.CheckJSON(line)
	if err != nil {
		for _, name := range secretNames {
			if bytes.Contains(line, []byte(name)) {
				return []byte("***")
			}
		}
		return line
	}
	msgType, _ := v.Get("type").Text()
	return appendRedacted(nil, v, msgType == "toolkit/configure/req", false)
}

// appendRedacted appends a value. The configuration of a toolkit is a secret.
func appendRedacted(dst []byte, v strictjson.Value, isToolkit, isSecret bool) []byte {
	switch {
	case v.IsObject():
		dst = append(dst, '{')
		for m := v.Members(); m.Next(); {
			dst = append(append(dst, m.Key...), ':')
			dst = append(appendRedacted(dst, m.Value, isToolkit, isSecret || isSecretName(m.Name, isToolkit)), ',')
		}
		return append(bytes.TrimSuffix(dst, []byte(",")), '}')
	case v.IsArray():
		dst = append(dst, '[')
		for e := v.Elements(); e.Next(); {
			dst = append(appendRedacted(dst, e.Value, isToolkit, isSecret), ',')
		}
		return append(bytes.TrimSuffix(dst, []byte(",")), ']')
	case isSecret && string(v) != `""`:
		return append(dst, `"***"`...)
	}
	return append(dst, v...)
}

func isSecretName(name []byte, isToolkit bool) bool {
	for _, secret := range secretNames {
		if bytes.EqualFold(name, []byte(secret)) {
			return true
		}
	}
	return isToolkit && string(name) == "config"
}
