// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package record

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/fivewire/fivewire/a2e/internal/wire"
	"github.com/fivewire/fivewire/internal/strictjson"
)

// Vector returns the recording as a file of conformance vectors with one case: a script for the fixture of the end that
// recorded, host or client. Times and random ids match any others, and each message is sent after those that were sent
// before it; delays below 100 ms are not kept. A text that has the form of a matcher, such as "$any", is one. It fails at a message that no step of a script can send.
func (r *Recording) Vector() ([]byte, error) {
	s := &script{names: map[string]string{}, messages: map[string]int{}, isFromPeer: map[string]bool{}, isAnswered: map[string]bool{},
		next: map[string]int64{}}
	op := "host_script"
	add := s.host
	if r.Role == RoleAgent {
		op, add = "client_script", s.agent
	}
	for _, l := range r.Lines {
		if id, ok := valueOf(l).Get("req_id").Text(); ok && !l.Sent {
			s.isAnswered[id] = true
		}
		ids := anyID.FindAllString(l.Text, -1)
		slices.Sort(ids)
		for _, text := range slices.Compact(ids) {
			if id := text[1 : len(text)-1]; isRandomID(id) {
				s.messages[id]++
			}
		}
	}
	for i := range r.Lines {
		if err := add(r.Lines, i); err != nil {
			return nil, fmt.Errorf("record: message %d: %w", i+1, err)
		}
	}
	input := map[string]any{"steps": s.steps}
	if op == "host_script" {
		input["host"] = map[string]any{"token": hidden}
	} else if s.client != nil {
		input["client"] = s.client
	}
	var out bytes.Buffer
	e := json.NewEncoder(&out)
	e.SetEscapeHTML(false)
	e.SetIndent("", " ")
	err := e.Encode(map[string]any{"format": 1, "protocol": "a2e", "suite": "recorded",
		"spec": "A2E Protocol, Message Format, version 1.0", "cases": []any{map[string]any{
			"id": "a2e-recorded-001", "doc": "recorded at " + r.Started.UTC().Format("2006-01-02 15:04:05"), "ref": "A2E-D69", "op": op,
			"in": input, "want": map[string]any{"steps": s.wants}}}})
	return out.Bytes(), err
}

// hidden replaces secrets in recordings.
const hidden = "***"

// A script is a case in the making.
type script struct {
	steps, wants []map[string]any // of the same length
	at           time.Duration    // of the last step

	names      map[string]string // of random ids, by the id
	messages   map[string]int    // number of those with a random id
	isFromPeer map[string]bool   // random ids that the peer has chosen
	isAnswered map[string]bool   // ids of messages that the peer has answered
	next       map[string]int64  // number of the next event of a call
	calls      int
	client     map[string]any // options
	isClosed   bool
}

// pause is the least delay that a script keeps. A fixture answers at once what its clock does not delay.
const pause = 100 * time.Millisecond

// step begins a step at a time, and returns its input and its answer.
func (s *script) step(at time.Duration) (input, want map[string]any) {
	input, want = map[string]any{}, map[string]any{}
	if s.isLater(at) {
		s.at = (at + time.Millisecond - 1).Truncate(time.Millisecond)
		input["at"] = s.at.Milliseconds()
	}
	s.steps, s.wants = append(s.steps, input), append(s.wants, want)
	return input, want
}

func (s *script) isLater(at time.Duration) bool { return at >= s.at+pause }

// last returns the last step.
func (s *script) last() (input, want map[string]any) {
	return s.steps[len(s.steps)-1], s.wants[len(s.wants)-1]
}

// list adds an item to a list of a step.
func list(step map[string]any, name string, item any) {
	items, _ := step[name].([]any)
	step[name] = append(items, item)
}

// receive adds a line that the recorded end has received to its step.
func (s *script) receive(kind string, lines []Line, i int) (want map[string]any) {
	s.received(valueOf(lines[i]))
	if i == 0 || lines[i-1].Sent || s.isLater(lines[i].Time) {
		s.step(lines[i].Time)
	}
	input, want := s.last()
	list(input, kind, s.named(lines[i].Text))
	return want
}

// sent adds a message that the recorded end has sent by itself.
func (s *script) sent(lines []Line, i int) error {
	message, ok := s.match("", valueOf(lines[i])).(map[string]any)
	if !ok {
		return errors.New("not a message")
	}
	if len(s.steps) == 0 || s.isLater(lines[i].Time) {
		s.step(lines[i].Time)
	}
	_, want := s.last()
	list(want, "out", map[string]any{"json": message})
	return nil
}

// host adds a line of a recording of a host.
func (s *script) host(lines []Line, i int) error {
	if lines[i].Sent {
		return s.sent(lines, i)
	}
	s.receive("lines", lines, i)
	if kind, _ := valueOf(lines[i]).Get("type").Text(); kind == "shutdown" {
		s.isClosed = true
	}
	_, want := s.last()
	if s.isClosed {
		want["closed"] = true
	}
	return nil
}

// agent adds a line of a recording of an agent.
func (s *script) agent(lines []Line, i int) error {
	m := valueOf(lines[i])
	kind, _ := m.Get("type").Text()
	id, _ := m.Get("id").Text()
	if !lines[i].Sent {
		s.event(s.receive("recv", lines, i), m, kind)
		return nil
	}
	name := ""
	switch {
	case kind == "handshake/req":
		name = "connect"
	case kind == "shutdown":
		input, _ := s.step(lines[i].Time)
		input["close"] = true
		return s.sent(lines, i)
	case strings.HasSuffix(kind, "/req"), s.isAnswered[id]:
		s.calls++
		name = "c" + strconv.Itoa(s.calls)
	case m.Get("req_id") != nil: // the answer to a request of the host
		return s.sent(lines, i)
	default:
		return fmt.Errorf("no step of a script sends %q", kind)
	}
	fields := map[string]json.RawMessage{}
	for f := m.Members(); f.Next(); {
		fields[string(f.Name)] = json.RawMessage(f.Value)
	}
	for _, name := range []string{"a2e", "type", "id", "ts"} {
		delete(fields, name)
	}
	input, _ := s.step(lines[i].Time)
	if name == "connect" {
		input[name] = s.connect(m, fields)
	} else {
		input["call"] = map[string]any{"name": name, "type": kind, "fields": fields}
	}
	s.names[id] = name
	if err := s.sent(lines, i); err != nil {
		return err
	}
	_, want := s.last()
	want["out"].([]any)[0].(map[string]any)["json"].(map[string]any)["id"] = "$set:" + name
	return nil
}

// extensions are the flags of a handshake among its capabilities, which a fixture client has as an option.
var extensions = [...]string{"batch", "resume", "cancel", "limits", "window"}

// connect returns the members of a handshake in a script, and makes the options of its client.
func (s *script) connect(m strictjson.Value, fields map[string]json.RawMessage) map[string]any {
	capabilities, flags := []string{}, []string{}
	for e := m.Get("agent_caps").Elements(); e.Next(); {
		name, _ := e.Value.Text()
		if slices.Contains(extensions[:], name) {
			flags = append(flags, name)
		} else {
			capabilities = append(capabilities, name)
		}
	}
	s.client = map[string]any{"extensions": flags}
	limits := map[string]any{}
	for option, name := range map[string]string{"maxBytes": "max_message_bytes", "maxDepth": "max_depth", "maxOutput": "max_output_bytes"} {
		if n, ok := m.Get("limits").Get(name).Int(); ok {
			limits[option] = n
		}
	}
	if len(limits) > 0 {
		s.client["limits"] = limits
	}
	return map[string]any{"agent_id": fields["agent_id"], "agent_caps": capabilities, "auth_token": fields["auth_token"]}
}

// event adds what a received message means for the calls.
func (s *script) event(want map[string]any, m strictjson.Value, kind string) {
	id, _ := m.Get("req_id").Text()
	call := s.names[id]
	seen := map[string]any{"type": kind}
	seq, isEvent := m.Get("seq").Int()
	switch {
	case call != "" && isEvent:
		seen["seq"] = seq
		order := "ok"
		next, isKnown := s.next[id]
		switch {
		case !isKnown:
			next = seq
		case seq > next:
			order = "gap"
		case seq == next-1:
			order = "repeat"
		case seq < next:
			order = "regress"
		}
		s.next[id] = max(next, seq+1)
		list(want, "events", map[string]any{"call": call, "order": order, "jsonSubset": seen})
	case call != "" && kind == "error":
		code, _ := m.Get("code").Text()
		list(want, "done", map[string]any{"call": call, "err": map[string]any{"code": code, "remote": true}})
	case call != "":
		if data := m.Get("data"); data != nil {
			seen["data"] = json.RawMessage(data)
		}
		list(want, "done", map[string]any{"call": call, "ok": map[string]any{"jsonSubset": seen}})
	case !strings.HasSuffix(kind, "/req"):
		list(want, "push", map[string]any{"jsonSubset": seen})
	}
}

// valueOf returns a message, or null for a line without JSON, such as that of a hostile peer.
func valueOf(l Line) strictjson.Value {
	v, err := wire.CheckJSON([]byte(l.Text))
	if err != nil {
		return strictjson.Value("null")
	}
	return v
}

// received notes the random ids of the peer.
func (s *script) received(v strictjson.Value) {
	text, isText := v.Text()
	switch {
	case isText && isRandomID(text) && s.names[text] == "":
		s.isFromPeer[text] = true
	case v.IsObject():
		for m := v.Members(); m.Next(); {
			s.received(m.Value)
		}
	case v.IsArray():
		for e := v.Elements(); e.Next(); {
			s.received(e.Value)
		}
	}
}

var (
	anyID     = regexp.MustCompile(`"(?:sub_|agent-|plan-|ref-)?[0-9a-f]+"`) // a random one, and others
	requestID = regexp.MustCompile(`("req_id"\s*:\s*)"([^"\\]+)"`)
)

// named replaces ids of the recorded end by their names: the random ones, and those of requests.
func (s *script) named(line string) string {
	line = requestID.ReplaceAllStringFunc(line, func(member string) string {
		m := requestID.FindStringSubmatch(member)
		if name := s.names[m[2]]; name != "" {
			return m[1] + `"${` + name + `}"`
		}
		return member
	})
	return anyID.ReplaceAllStringFunc(line, func(text string) string {
		if id := text[1 : len(text)-1]; isRandomID(id) && s.names[id] != "" {
			return `"${` + s.names[id] + `}"`
		}
		return text
	})
}

// match returns a value with matchers for times, secrets and random ids.
func (s *script) match(name string, v strictjson.Value) any {
	text, isText := v.Text()
	switch {
	case slices.Contains(times[:], name) && v.Kind() == '0':
		return "$number"
	case isText && text == hidden:
		return "$any"
	case isText && isRandomID(text) && !s.isFromPeer[text]:
		return s.matchID(text)
	case v.IsObject():
		out := map[string]any{}
		for m := v.Members(); m.Next(); {
			out[string(m.Name)] = s.match(string(m.Name), m.Value)
		}
		return out
	case v.IsArray():
		out := []any{}
		for e := v.Elements(); e.Next(); {
			out = append(out, s.match("", e.Value))
		}
		return out
	}
	return json.RawMessage(v)
}

// matchID names a random id of the recorded end that occurs in several messages.
func (s *script) matchID(id string) string {
	if name := s.names[id]; name != "" {
		return "$get:" + name
	}
	if s.messages[id] < 2 {
		return "$string"
	}
	s.names[id] = "v" + strconv.Itoa(len(s.names)+1)
	return "$set:" + s.names[id]
}
