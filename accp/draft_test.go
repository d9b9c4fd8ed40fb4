// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package accp_test

import (
	"errors"
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/fivewire/fivewire/accp"
)

// A draftReader reads the grammar of section 3.1 of the draft, rule by rule, and nothing else. It shares no
// code with the package. A value is a text, with the escapes removed, a []any or a map[string]any.
type draftReader struct{ rest string }

// A draftFrame is the content of a frame.
type draftFrame struct {
	from, intent, op string
	payload, meta    map[string]any
}

type draftError string

// readDraft reads frame = header body [metadata].
func readDraft(text string) (f draftFrame, err error) {
	defer func() {
		if p, ok := recover().(draftError); ok {
			err = errors.New(string(p))
		}
	}()
	r := &draftReader{text}
	r.expect("@")
	f.from = r.match(`[A-Za-z0-9_]+`)
	r.expect(">")
	f.intent = r.match(`[A-Za-z]+`)
	r.expect(":")
	f.op = r.match(`[A-Za-z0-9_]+`)
	r.expect("{")
	f.payload = r.pairs("|", "}")
	if strings.HasPrefix(r.rest, "[") {
		r.expect("[")
		f.meta = r.pairs(",", "]")
	}
	if r.rest != "" {
		panic(draftError("text after the frame: " + r.rest))
	}
	return f, nil
}

func (r *draftReader) expect(token string) {
	rest, ok := strings.CutPrefix(r.rest, token)
	if !ok {
		panic(draftError(fmt.Sprintf("want %q at %q", token, r.rest)))
	}
	r.rest = rest
}

// match reads the longest text that a pattern matches.
func (r *draftReader) match(pattern string) string {
	text := regexp.MustCompile("^(?:" + pattern + ")").FindString(r.rest)
	if text == "" {
		panic(draftError(fmt.Sprintf("want %s at %q", pattern, r.rest)))
	}
	r.rest = r.rest[len(text):]
	return text
}

// list reads items up to the closing bracket.
func (r *draftReader) list(separator, end string, item func()) {
	for first := true; !strings.HasPrefix(r.rest, end); first = false {
		if !first {
			r.expect(separator)
		}
		item()
	}
	r.expect(end)
}

// pairs reads key ":" value up to the closing bracket.
func (r *draftReader) pairs(separator, end string) map[string]any {
	out := map[string]any{}
	r.list(separator, end, func() {
		key := r.match(`[A-Za-z0-9_]+`)
		r.expect(":")
		out[key] = r.value()
	})
	return out
}

// value reads value = typed-literal / array / map / ref / null.
func (r *draftReader) value() any {
	switch {
	case strings.HasPrefix(r.rest, "["):
		r.expect("[")
		out := []any{}
		r.list(",", "]", func() { out = append(out, r.value()) })
		return out
	case strings.HasPrefix(r.rest, "{"):
		r.expect("{")
		return r.pairs(",", "}")
	case strings.HasPrefix(r.rest, "$"):
		r.expect("$")
		return "$" + r.match(`[A-Za-z][A-Za-z0-9_]*(\.[A-Za-z0-9_]+)*`)
	case strings.HasPrefix(r.rest, "~"):
		r.expect("~")
		return nil
	}
	const delimiters = `@>:{}\[\]|,$~\\`
	text := r.match(`(?:\\[` + delimiters + `]|[^` + delimiters + `\x00-\x20\x7f-\x{10ffff}])+`)
	return regexp.MustCompile(`\\(.)`).ReplaceAllString(text, "$1")
}

// inDraft returns a value as a draftReader reads it in the portable form (ACCP-D03).
func inDraft(v accp.Value) any {
	switch v.Kind() {
	case accp.KindNull:
		return nil
	case accp.KindArray:
		out := []any{}
		for _, x := range v.Elements() {
			out = append(out, inDraft(x))
		}
		return out
	case accp.KindMap:
		return paramsInDraft(v.Entries())
	case accp.KindRef:
		name, _ := v.Ref()
		return "$" + name
	case accp.KindBool:
		b, _ := v.Bool()
		return fmt.Sprint(b)
	case accp.KindString:
		text, _ := v.Text()
		return strings.ReplaceAll(text, " ", "_")
	}
	text, _ := v.Number()
	return text
}

func paramsInDraft(p accp.Params) map[string]any {
	out := map[string]any{}
	for _, x := range p {
		out[x.Key] = inDraft(x.Value)
	}
	return out
}

// A reader of the draft alone reads every portable frame, of the codec and of sessions (ACCP-D03).
func TestPortableFramesFollowTheDraft(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := messages().Draw(t, "message")
		frame, err := (&accp.Codec{Portable: true}).AppendRaw(nil, m)
		if errors.Is(err, accp.ErrInvalidType) {
			return // a text without a portable form
		}
		require.NoError(t, err)
		f, err := readDraft(string(frame))
		require.NoError(t, err, "%s", frame)
		require.Equal(t, []string{m.From, string(m.Intent), m.Op}, []string{f.from, f.intent, f.op}, "%s", frame)
		require.Equal(t, paramsInDraft(m.Params), f.payload, "%s", frame)
		require.Equal(t, m.Meta != nil, f.meta != nil)
	})
	s := session(t, &accp.SessionOptions{Portable: true})
	for i := range 20 {
		m := msg("req", "plan", text("task", strings.Repeat("two words: [a] {b} | @c, $d ~ \\ > ", i+1)))
		sent, err := s.Send(t.Context(), m)
		require.NoError(t, err)
		joined := ""
		for _, frame := range sent.Frames {
			f, err := readDraft(string(frame))
			require.NoError(t, err, "%s", frame)
			require.Contains(t, f.meta, "mid")
			piece, _ := f.payload["task"].(string)
			joined += piece
		}
		require.Equal(t, strings.ReplaceAll(m.Params.Text("task"), " ", "_"), joined)
	}
	for _, refused := range []string{"@a>req:x{a:b c}", "@a>req:x{a:}", "@a>req:x{a:b:c}", `@a>req:x{a:\n}`, "@a>req:x{a:1}]", "@a>req:x{a:[1}"} {
		_, err := readDraft(refused)
		require.Error(t, err, refused)
	}
}

// The guide has the outcome of each example frame of the draft: read strictly, leniently, and received by a
// lenient session without other frames.
func TestGuideHasTheOutcomesOfDraftFrames(t *testing.T) {
	outcome := func(err error) string {
		var e *accp.Error
		if errors.As(err, &e) {
			return string(e.Code)
		}
		return "ok"
	}
	table := "strict  lenient  session  frame\n"
	for _, tt := range draftFrames {
		_, strict := new(accp.Codec).Decode([]byte(tt.frame))
		_, lenient := (&accp.Codec{Lenient: true}).Decode([]byte(tt.frame))
		s, err := accp.NewSession("server", "s1", &accp.SessionOptions{Lenient: true})
		require.NoError(t, err)
		_, received := s.Receive(t.Context(), []byte(tt.frame))
		table += fmt.Sprintf("%-7s %-8s %-8s %s\n", outcome(strict), outcome(lenient), outcome(received), tt.frame)
	}
	guide, err := os.ReadFile("README.md")
	require.NoError(t, err)
	require.Contains(t, string(guide), table, "want:\n%s", table)
}
