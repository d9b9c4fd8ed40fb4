// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package accp

import (
	"slices"
	"strings"
	"sync"

	"github.com/fivewire/fivewire/accp/internal/tier"
)

const maxView = 1 << 20 // bytes of the lines of a view

// A ContextView is the context of a session for a model.
type ContextView struct {
	Lines  []string // shared: callers must not change them
	Tokens int      // of the lines, joined by line feeds
	Stable int      // number of leading lines that the last answer had
	IsCut  bool     // the call has dropped earlier lines over the maximum
}

// A view is the context that a session holds from the first call of ModelContext on.
type view struct {
	mu    sync.Mutex // serializes calls
	lines tier.View  // guarded by mu

	// The fields below are guarded by the mu of the session.
	isOpen  bool
	pending []string // frames of messages since the last call
	bytes   int      // of pending and of the lines
}

// add adds a message. The mu of the session must be held.
func (v *view) add(text string) {
	if !v.isOpen {
		return
	}
	v.pending = append(v.pending, text)
	v.bytes += len(text)
	if v.bytes > maxView {
		v.isOpen, v.pending, v.bytes = false, nil, 0 // the next call begins it
	}
}

// ModelContext returns the context of the session for a model, in at most maximum tokens by the
// counter of the session: summaries of checkpoints and the messages after them, as frames without
// metadata. It never contains values of cold state.
//
// The session holds the lines from the first call on and appends one for each message, so that each
// answer begins with the lines of the last answer and prompt caches apply. Above the maximum the lines are cut: they
// become the messages in hot state, preceded by the newest summaries that fit into keep tokens. A keep
// of zero means half of the maximum (ACCP-D68, ACCP-D69). Lines above 1 MiB are released, and the next answer begins
// again; Stable then counts fewer lines than the last answer had.
func (s *Session) ModelContext(maximum, keep int) ContextView {
	if keep <= 0 || keep > maximum {
		keep = maximum / 2
	}
	v := &s.view
	v.mu.Lock()
	defer v.mu.Unlock()
	s.mu.Lock()
	pending, isOpen := v.pending, v.isOpen
	v.pending = nil
	s.mu.Unlock()
	isCut := false
	if isOpen {
		for _, text := range pending {
			v.lines.Append(s.codec.line(text), s.opts.TokenCounter)
		}
		isCut = v.lines.Tokens() > maximum
	}
	if !isOpen || isCut {
		s.mu.Lock()
		hot, checkpoints := slices.Clone(s.core.tiers.Hot), s.checkpointsLocked()
		v.isOpen, v.pending = true, nil
		s.mu.Unlock()
		lines, summaries := make([]string, len(hot)), make([]string, len(checkpoints))
		for i, h := range hot {
			lines[i] = s.codec.line(h.Text)
		}
		for i, c := range checkpoints {
			summaries[i] = summaryLine(c)
		}
		v.lines.Begin(summaries, lines, s.opts.TokenCounter, maximum, keep)
	}
	s.mu.Lock()
	v.bytes = v.lines.Bytes()
	s.mu.Unlock()
	out := ContextView{Tokens: v.lines.Tokens(), IsCut: isCut}
	out.Lines, out.Stable = v.lines.Answer()
	return out
}

// line returns the canonical frame of a hot message without its metadata, or "" (ACCP-D68).
func (c *Codec) line(text string) string {
	w := factWriters.Get().(*factWriter)
	defer w.giveBack()
	m, _ := w.message(c, text)
	if m == nil || m.Intent == IntentAck {
		return ""
	}
	m.Meta = nil
	stored := storedCodec
	stored.Registry, stored.anyPlaces = c.Registry, false
	frame, err := stored.Append(w.text[:0], m)
	if err != nil {
		return ""
	}
	w.text = frame[:0]
	return string(frame)
}

// summaryLine returns the line of a checkpoint. A refined summary is untrusted, so its lines
// cannot imitate a frame.
func summaryLine(c *tier.Checkpoint) string {
	if c.Refined.ID == "" {
		return c.Summary.Text
	}
	lines := strings.Split(c.Refined.Text, "\n")
	for i, line := range lines {
		line = visible(line)
		if strings.HasPrefix(line, "@") {
			line = `\` + line
		}
		lines[i] = line
	}
	return strings.Join(lines, "\n")
}
