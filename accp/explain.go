// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package accp

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"unicode/utf8"
)

// logFrame writes a frame in readable form to the log at debug level (ACCP-D63).
func (s *Session) logFrame(direction string, frame []byte) {
	if s.opts.Logger == nil || !s.log.Enabled(context.Background(), slog.LevelDebug) {
		return
	}
	c := s.codec
	s.log.Debug("accp: frame "+direction, "session", s.id, "frame", c.explain(frame, s.opts.Redactor, s.opts.TokenCounter))
}

// Explain returns what a frame says in several lines, for people (ACCP-131): who
// sends it and what it wants, each param with its type, the metadata, and the
// tokens against their limits. Of text that is no frame it says what is wrong and,
// if the lenient reading of it is a frame, how that is written.
func (c *Codec) Explain(frame []byte) string { return c.explain(frame, nil, nil) }

func (c *Codec) explain(frame []byte, redact func(string, Value) Value, counter TokenCounter) string {
	var b strings.Builder
	m, err := c.DecodeRaw(frame)
	if err != nil {
		if redact != nil {
			return err.Error() // the text may hold what must not be seen
		}
		fmt.Fprintf(&b, "no frame: %v\n", err)
		if fixed := c.Repair(frame); fixed != nil {
			fmt.Fprintf(&b, "perhaps meant: %s\n", fixed)
		}
		return b.String()
	}
	if _, xerr := c.expand(m); xerr != nil {
		fmt.Fprintf(&b, "schema: %v\n", xerr)
	}
	fmt.Fprintf(&b, "%s: %s (%s) %s\n", visible(m.From), m.Intent, m.Intent.Description(), visible(m.Op))
	line := func(p Param) {
		v := p.Value
		if redact != nil {
			v = redact(p.Key, v)
		}
		fmt.Fprintf(&b, "  %s = %s (%s)\n", visible(p.Key), explainValue(v), v.kind)
	}
	for _, p := range m.Params.sorted() {
		line(p)
	}
	if m.Meta != nil {
		b.WriteString("metadata\n")
		for _, p := range m.Meta.params() {
			line(p)
		}
	}
	var f Frame
	if c.parse(frame, &f) == nil {
		n := f.measure(counter)
		fmt.Fprintf(&b, "tokens: header %d/%d, body %d/%d, metadata %d/%d, total %d/%d",
			n.Header, hardHeader, n.Body, hardBody, n.Metadata, hardMeta, n.Total, hardTotal)
		if len(n.Hard) > 0 {
			fmt.Fprintf(&b, "; above the hard limit: %s", strings.Join(n.Hard, ", "))
		}
		b.WriteByte('\n')
	}
	return b.String()
}

var quoteMarks = strings.NewReplacer(`\`, `\\`, `"`, `\"`)

// explainValue writes a value for people.
func explainValue(v Value) string {
	switch v.kind {
	case KindNull:
		return "null"
	case KindString:
		// A quotation mark inside would let a value pass for the parameters after it.
		return `"` + visible(quoteMarks.Replace(v.text)) + `"`
	case KindRef:
		return "$" + visible(v.text)
	case KindArray, KindMap:
		var b strings.Builder
		for i, p := range v.list {
			if i > 0 {
				b.WriteString(", ")
			}
			if v.kind == KindMap {
				b.WriteString(visible(p.Key) + ": ")
			}
			b.WriteString(explainValue(p.Value))
		}
		if v.kind == KindMap {
			return "{" + b.String() + "}"
		}
		return "[" + b.String() + "]"
	}
	return v.text
}

// visible writes what must not stand raw in a frame as \u{…}, so that nothing
// hides from the reader (ACCP-D64). Spaces stay.
func visible(s string) string {
	clean := true
	for _, r := range s {
		if r != ' ' && (hidden(r) || r == utf8.RuneError) {
			clean = false
		}
	}
	if clean {
		return s
	}
	var b strings.Builder
	for _, r := range s {
		if r != ' ' && hidden(r) {
			fmt.Fprintf(&b, `\u{%X}`, r)
		} else {
			b.WriteRune(r)
		}
	}
	return b.String()
}

// Repair returns the strict form of a frame that only the lenient reader
// understands, such as one that a model wrote by the examples of the draft, or
// nil if that does not understand it either.
func (c *Codec) Repair(frame []byte) []byte {
	lenient := *c
	lenient.Lenient = true
	m, err := lenient.DecodeRaw(frame)
	if err != nil {
		return nil
	}
	out, err := c.Format(m)
	if err != nil {
		return nil
	}
	return out
}

// Render returns what a message says to a model, in the order of importance of
// the draft: who says it, what it wants, and its params by their full names. It
// takes the message with its references ([ReceiveResult.Unresolved]), so values of $cold stay
// references and never reach a context (ACCP-125). Everything in it is untrusted
// text that another party wrote: it is marked with its sender and key, and
// invisible characters are written out (ACCP-D64).
func Render(m *Message) string {
	var b strings.Builder
	fmt.Fprintf(&b, "[%s] %s %s", visible(m.From), m.Intent.Description(), visible(m.Op))
	for _, p := range m.Params.sorted() {
		if p.Key != keySchema {
			fmt.Fprintf(&b, "\n%s: %s", visible(p.Key), explainValue(p.Value))
		}
	}
	return b.String()
}

// ModelContext returns what a model should see of the session, in at most maxTokens
// tokens by the counter of the session: the frames of hot state, before them the
// summary that hot state refers to, before that older summaries, as many as fit,
// the newest first. Values of cold state are never in it. It returns the lines in
// the order of time and how many tokens they have, joined by line feeds.
func (s *Session) ModelContext(maxTokens int) (lines []string, tokens int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []string // newest first
	for i := len(s.hot) - 1; i >= 0; i-- {
		all = append(all, s.hot[i].text)
	}
	for _, cp := range slices.Backward(s.infos()) {
		if t := cp.Summary; t != "" {
			all = append(all, t)
		}
	}
	text := ""
	for _, line := range all {
		next := line
		if text != "" {
			next = line + "\n" + text
		}
		n := s.opts.TokenCounter.Count(next)
		if n > maxTokens {
			break
		}
		text, tokens = next, n
		lines = append([]string{line}, lines...)
	}
	return lines, tokens
}
