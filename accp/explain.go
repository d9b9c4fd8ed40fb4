// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package accp

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"unicode/utf8"
)

// logFrame logs a frame in readable form at debug level (ACCP-D63).
func (s *Session) logFrame(ctx context.Context, event string, frame []byte) {
	if !s.logger.Enabled(ctx, slog.LevelDebug) {
		return
	}
	c := s.codec
	_ = s.guarded(ctx, func() error {
		s.logger.DebugContext(ctx, "accp: frame "+event, "session", s.id,
			"frame", c.explain(frame, s.opts.Redactor, s.opts.TokenCounter))
		return nil
	})
}

// Explain returns a readable description of a frame in several lines: sender, intent, each param
// with its type, the metadata, and the token counts against their limits. For an invalid frame it
// describes the error and, if the lenient reader accepts the text, the strict form.
func (c *Codec) Explain(frame []byte) string { return c.explain(frame, nil, nil) }

func (c *Codec) explain(frame []byte, redact func(string, Value) Value, counter TokenCounter) string {
	var b strings.Builder
	m, err := c.DecodeRaw(frame)
	if err != nil {
		if redact != nil {
			return err.Error() // the text may contain values that the redactor must replace
		}
		fmt.Fprintf(&b, "no frame: %v\n", err)
		if fixed := c.repair(frame); fixed != nil {
			fmt.Fprintf(&b, "perhaps meant: %s\n", fixed)
		}
		return b.String()
	}
	if _, xerr := c.expand(m); xerr != nil {
		fmt.Fprintf(&b, "schema: %v\n", xerr)
	}
	fmt.Fprintf(&b, "%s: %s (%s) %s\n", visible(m.From), m.Intent, m.Intent.description(), visible(m.Op))
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
	var f tree
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

// explainValue formats a value for a person.
func explainValue(v Value) string {
	switch v.kind {
	case KindNull:
		return "null"
	case KindString:
		// Escaped, so that a value cannot imitate the params after it.
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

// visible writes characters that must not appear raw in a frame as \u{…} (ACCP-D64). Spaces are
// unchanged.
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

// repair returns the strict form of a frame that only the lenient reader accepts. It returns nil if the lenient reader
// rejects it.
func (c *Codec) repair(frame []byte) []byte {
	lenient := *c
	lenient.Lenient = true
	m, err := lenient.DecodeRaw(frame)
	if err != nil {
		return nil
	}
	out, err := c.AppendRaw(nil, m)
	if err != nil {
		return nil
	}
	return out
}

// Render returns a message as text for a model, in the order of importance of the draft: sender,
// intent, and the params by their full names. To keep values of $cold out of the context, pass the
// message with its references ([ReceiveResult.Unresolved]). All of the text is untrusted: each
// value is marked with its sender and key, and invisible characters are written as escapes
// (ACCP-D64).
func Render(m *Message) string {
	if m == nil {
		return ""
	}
	var b strings.Builder
	fmt.Fprintf(&b, "[%s] %s %s", visible(m.From), m.Intent.description(), visible(m.Op))
	for _, p := range m.Params.sorted() {
		if p.Key != keySchema {
			fmt.Fprintf(&b, "\n%s: %s", visible(p.Key), explainValue(p.Value))
		}
	}
	return b.String()
}
