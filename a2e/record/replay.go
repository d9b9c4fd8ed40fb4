// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package record

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/fivewire/fivewire/a2e/internal/wire"
	"github.com/fivewire/fivewire/internal/lines"
	"github.com/fivewire/fivewire/internal/strictjson"
)

// ReplayOptions adjusts [Replay]. The zero value is right for a program whose messages depend on those
// that it receives only.
type ReplayOptions struct {
	// Ignore are the paths of further members that may differ, such as "result.duration_ms".
	Ignore []string

	// Token replaces the token of a handshake, which a recording lacks.
	Token string
}

// A Difference is the first message that the program sends in another way than recorded.
type Difference struct {
	Line      int    // number of the message in the recording; the first is 1
	Path      string // of the first different member; empty for the whole message
	Want, Got string // JSON, the recorded one and that of the program; an empty Got is the end of the connection
}

// Error names the line, the path and both values.
func (d *Difference) Error() string {
	got := d.Got
	if got == "" {
		got = "the end of the connection"
	}
	return fmt.Sprintf("record: line %d: %s: want %s, got %s", d.Line, cmp.Or(d.Path, "the message"), clip(d.Want), clip(got))
}

func clip(s string) string {
	if len(s) > 400 {
		s = strings.ToValidUTF8(s[:400], "") + "..."
	}
	return s
}

// Replay plays the peer of the end that made a recording, over a connection with a program of the same
// role: an agent if a host recorded, a host if an agent did. Each received message is sent at its
// time, after the messages that the end had sent before it; in a bubble of testing/synctest the time is
// virtual. Replay returns nil if the program sends the recorded messages, and a [*Difference] for the
// first message that differs. Random ids are matched by their first occurrence, except that of an MCP
// server without a configured id; members with times are ignored; messages between two received ones may
// come in any order.
//
// Replay closes the connection.
func Replay(ctx context.Context, rw io.ReadWriteCloser, r *Recording, opts *ReplayOptions) error {
	if rw == nil || r == nil {
		return errors.New("record: replay: no connection or no recording")
	}
	p := &player{rw: rw, received: make(chan []byte), toActual: map[string]string{}, toRecorded: map[string]string{}}
	if opts != nil {
		p.opts = *opts
	}
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		p.read(ctx)
	}()
	defer func() {
		cancel()
		_ = rw.Close()
		<-done
	}()
	start := time.Now()
	for i := 0; i < len(r.Lines); {
		if !r.Lines[i].Sent {
			if err := wait(ctx, time.Until(start.Add(r.Lines[i].Time))); err != nil {
				return err
			}
			if err := p.send(ctx, r.Lines[i].Text); err != nil {
				return fmt.Errorf("record: replay: line %d: %w", i+1, err)
			}
			i++
			continue
		}
		end := i
		for end < len(r.Lines) && r.Lines[end].Sent {
			end++
		}
		if err := p.expect(ctx, r.Lines[i:end], i+1); err != nil {
			return err
		}
		i = end
	}
	return nil
}

func wait(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// A player is one replay.
type player struct {
	rw       io.ReadWriteCloser
	opts     ReplayOptions
	received chan []byte // closed at the end of the connection

	toActual, toRecorded map[string]string // random ids
}

func (p *player) read(ctx context.Context) {
	defer close(p.received)
	in := lines.NewReader(p.rw, maxLine)
	for {
		line, err := in.Next()
		if err != nil {
			return
		}
		if lines.Blank(line) {
			continue
		}
		select {
		case p.received <- bytes.Clone(line):
		case <-ctx.Done():
			return
		}
	}
}

// send writes a message of the peer until ctx ends.
func (p *player) send(ctx context.Context, text string) error {
	stop := context.AfterFunc(ctx, func() { _ = p.rw.Close() })
	defer stop()
	_, err := p.rw.Write(append(p.translate([]byte(text)), '\n'))
	if err != nil && ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

// expect receives messages in any order. The first has a number.
func (p *player) expect(ctx context.Context, list []Line, number int) error {
	type item struct {
		number int
		text   string
	}
	var open []item
	for i, line := range list {
		open = append(open, item{number + i, line.Text})
	}
	for len(open) > 0 {
		var got []byte
		select {
		case got = <-p.received:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		if got == nil {
			return &Difference{Line: open[0].number, Want: open[0].text}
		}
		var first *Difference
		i := slices.IndexFunc(open, func(e item) bool {
			d := p.compare(e.text, got)
			if d == nil {
				return true
			}
			// The most useful difference is that to a message of the same type.
			if d.Line = e.number; first == nil || first.Path == "type" {
				first = d
			}
			return false
		})
		if i < 0 {
			return first
		}
		open = slices.Delete(open, i, i+1)
	}
	return nil
}

// compare matches a received message with a recorded one, and learns the ids of a match.
func (p *player) compare(want string, got []byte) *Difference {
	w, err1 := wire.CheckJSON([]byte(want))
	g, err2 := wire.CheckJSON(got)
	if err1 != nil || err2 != nil {
		if want == string(got) {
			return nil
		}
		return &Difference{Want: want, Got: string(got)}
	}
	m := matcher{player: p, ids: map[string]string{}}
	if d := m.match("", w, g); d != nil {
		return d
	}
	for recorded, actual := range m.ids {
		p.toActual[recorded], p.toRecorded[actual] = actual, recorded
	}
	return nil
}

// times are the members that differ in each session.
var times = [...]string{"ts", "created_at", "updated_at", "started_at", "connected_at", "uptime_seconds", "duration_ms", "avg_duration_ms", "last_ping_ms"}

// A matcher compares two messages.
type matcher struct {
	player *player
	ids    map[string]string // that the message has first, by the recorded id
}

func (m *matcher) match(path string, want, got strictjson.Value) *Difference {
	different := &Difference{Path: path, Want: string(want), Got: string(got)}
	if m.ignores(path) {
		return nil
	}
	switch {
	case string(want) == `"***"`:
		return nil
	case want.IsObject() && got.IsObject():
		return m.matchObjects(path, want, got)
	case want.IsArray() && got.IsArray():
		return m.matchLists(path, want, got)
	case want.Kind() == '"' && got.Kind() == '"':
		a, _ := want.Text()
		b, _ := got.Text()
		if a == b || m.isSameID(a, b) {
			return nil
		}
		return different
	case strictjson.Equal(want, got):
		return nil
	}
	return different
}

func (m *matcher) matchLists(path string, want, got strictjson.Value) *Difference {
	w, g := want.Elements(), got.Elements()
	for i := 0; ; i++ {
		hasWant, hasGot := w.Next(), g.Next()
		switch {
		case hasWant != hasGot:
			return &Difference{Path: path, Want: string(want), Got: string(got)}
		case !hasWant:
			return nil
		}
		if d := m.match(path+"["+strconv.Itoa(i)+"]", w.Value, g.Value); d != nil {
			return d
		}
	}
}

func (m *matcher) matchObjects(path string, want, got strictjson.Value) *Difference {
	prefix := path
	if path != "" {
		prefix += "."
	}
	if path == "" { // the type first: it says most
		if d := m.match("type", want.Get("type"), got.Get("type")); d != nil {
			return d
		}
	}
	for w := want.Members(); w.Next(); {
		g := got.Get(string(w.Name))
		switch {
		case g != nil:
			if d := m.match(prefix+string(w.Name), w.Value, g); d != nil {
				return d
			}
		case !m.ignores(prefix + string(w.Name)):
			return &Difference{Path: prefix + string(w.Name), Want: string(w.Value), Got: "no member"}
		}
	}
	for g := got.Members(); g.Next(); {
		if want.Get(string(g.Name)) == nil && !m.ignores(prefix+string(g.Name)) {
			return &Difference{Path: prefix + string(g.Name), Want: "no member", Got: string(g.Value)}
		}
	}
	return nil
}

func (m *matcher) ignores(path string) bool {
	return slices.Contains(times[:], path[strings.LastIndexByte(path, '.')+1:]) || slices.Contains(m.player.opts.Ignore, path)
}

// isSameID reports whether two random ids stand for each other, or have both not been seen before.
func (m *matcher) isSameID(recorded, actual string) bool {
	if !isRandomID(recorded) || !isRandomID(actual) {
		return false
	}
	if other, ok := m.player.toActual[recorded]; ok {
		return other == actual
	}
	if other, ok := m.ids[recorded]; ok {
		return other == actual
	}
	if _, ok := m.player.toRecorded[actual]; ok {
		return false
	}
	m.ids[recorded] = actual
	return true
}

// isRandomID reports whether an id has the form of those that programs make: 32 hexadecimal digits, or those of a
// refinement, of an agent without a given id, and of a subagent.
func isRandomID(s string) bool {
	n := 32
	switch prefix, digits, _ := strings.Cut(s, "-"); {
	case strings.HasPrefix(s, "sub_"):
		n, s = 8, s[len("sub_"):]
	case prefix == "agent":
		n, s = 8, digits
	case prefix == "plan", prefix == "ref":
		s = digits
	}
	return len(s) == n && strings.Trim(s, "0123456789abcdef") == ""
}

// translate replaces the recorded ids of the program by its actual ones, and the token.
func (p *player) translate(line []byte) []byte {
	line = anyID.ReplaceAllFunc(line, func(text []byte) []byte {
		if actual, ok := p.toActual[string(text[1:len(text)-1])]; ok {
			return []byte(`"` + actual + `"`)
		}
		return text
	})
	if p.opts.Token != "" && bytes.Contains(line, []byte(`"handshake/req"`)) {
		token := strictjson.AppendString(nil, p.opts.Token)
		line = bytes.Replace(line, []byte(`"auth_token":"***"`), append([]byte(`"auth_token":`), token...), 1)
	}
	return line
}
