// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package accp_test

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/fivewire/fivewire/accp"
	"github.com/fivewire/fivewire/accp/internal/hook"
)

// A modelFrame is a frame by its parts. Its text is canonical.
type modelFrame struct {
	from, intent, op string
	params           map[string]string // canonical values; delta.x and state.x are members of a map
	mid              string
	seq, ts, ttl     int64
	cid, sid         string
}

func (f *modelFrame) chain() string {
	if f.cid != "" {
		return f.cid
	}
	return f.mid
}

var shortKeys = map[string]string{"message": "msg", "retryable": "retry", "version": "v"}

// body returns the frame without metadata. Its keys are in the order of their short forms.
func (f *modelFrame) body() string {
	params, inner := map[string]string{}, map[string][]string{}
	for _, key := range slices.Sorted(maps.Keys(f.params)) {
		if name, member, ok := strings.Cut(key, "."); ok {
			inner[name] = append(inner[name], member+":"+f.params[key])
			params[name] = "{" + strings.Join(inner[name], ",") + "}"
			continue
		}
		short := key
		if s := shortKeys[key]; s != "" && (key == "version" || f.op == "error") {
			short = s
		}
		params[short] = f.params[key]
	}
	var list []string
	for _, key := range slices.Sorted(maps.Keys(params)) {
		list = append(list, key+":"+params[key])
	}
	return fmt.Sprintf("@%s>%s:%s{%s}", f.from, f.intent, f.op, strings.Join(list, "|"))
}

func (f *modelFrame) text() string {
	meta := fmt.Sprintf("mid:%s,seq:%d,ts:%d", f.mid, f.seq, f.ts)
	for _, m := range [][2]string{{"cid", f.cid}, {"sid", f.sid}} {
		if m[1] != "" {
			meta += "," + m[0] + ":" + m[1]
		}
	}
	if f.ttl > 0 {
		meta += fmt.Sprintf(",ttl:%d", f.ttl)
	}
	return f.body() + "[" + meta + "]"
}

// A modelHot is a message in hot state.
type modelHot struct {
	text, line string
	facts      [][2]string // entity:relationship and value
	tokens     int
}

// A modelCheckpoint has the parts of a checkpoint that are compared.
type modelCheckpoint struct {
	id, summary, trigger string
	frames               int
}

// A model is a session in plain maps, written from the reference.
type model struct {
	self        string
	isStarted   bool
	high        int64
	last        map[string]int64
	seen        map[string]bool
	cancelled   map[string]bool
	version     int64
	state       map[string]string
	undo        func(f *modelFrame) // of the last own change of the state
	hot         []modelHot
	hotTokens   int
	checkpoints []modelCheckpoint

	lines  []string // of the view
	isOpen bool     // the view
}

func newModel(self string) *model {
	return &model{self: self, last: map[string]int64{}, seen: map[string]bool{}, cancelled: map[string]bool{}, state: map[string]string{}}
}

// restart drops the parts that a session does not store (ACCP-D71).
func (m *model) restart() { m.undo, m.isOpen = nil, false }

// receive returns the outcome, the reason of a drop, or the code of an error, in the order of ACCP-D27.
func (m *model) receive(f *modelFrame, now int64) string {
	switch {
	case f.sid != "" && f.sid != "s1", f.from == m.self, f.ttl > 0 && f.ts-now > 300:
		return "E5001"
	}
	isExpired, isRepeated := f.ttl > 0 && now > f.ts+f.ttl, m.seen[f.mid]
	last, found := m.last[f.from]
	isOrdered := (!found || f.seq > last) && (!m.isStarted || f.seq <= m.high+1)
	isUsed := isOrdered || (!found || f.seq > last) && m.high+1 < f.seq && f.seq <= m.high+1001 && !isExpired
	switch {
	case isExpired && isRepeated:
		return "ttl"
	case isRepeated:
		return "E3002"
	}
	m.seen[f.mid] = true
	if isUsed {
		m.isStarted, m.high, m.last[f.from] = true, max(m.high, f.seq), f.seq
	}
	switch {
	case isExpired:
		return "ttl"
	case !isOrdered:
		return "E3003"
	case f.intent == "cancel" && f.cid == "":
		return "E1001"
	case m.cancelled[f.chain()]:
		return "cancelled"
	}
	if code := m.receiveState(f); code != "" {
		return code
	}
	m.add(f)
	if f.intent == "cancel" {
		m.cancelled[f.chain()] = true
		return "cancel"
	}
	return "delivered"
}

// receiveState applies ACCP-D45 and ACCP-D46.
func (m *model) receiveState(f *modelFrame) string {
	if m.undo != nil && f.intent == "fail" && f.params["code"] == "E3002" {
		m.undo(f)
	}
	if f.intent != "sync" || f.op != "state" {
		return ""
	}
	v, _ := strconv.ParseInt(f.params["version"], 10, 64)
	next, isWhole := map[string]string{}, true
	for key := range f.params {
		isWhole = isWhole && !strings.HasPrefix(key, "delta.")
	}
	if !isWhole {
		next = maps.Clone(m.state)
	}
	for key, value := range f.params {
		_, member, ok := strings.Cut(key, ".")
		if ok {
			next[member] = value
		}
	}
	maps.DeleteFunc(next, func(_, value string) bool { return value == "~" })
	base := f.params["base"]
	switch {
	case isWhole && v == m.version && maps.Equal(next, m.state):
		return ""
	case isWhole && (v < m.version || v == m.version && stateDigest(next) < stateDigest(m.state)), !isWhole && v <= m.version:
		return "E3002"
	case !isWhole && (v != m.version+1 || base != "" && base != baseOf(m.state)):
		return "E3003"
	}
	m.version, m.state = v, next
	return ""
}

func stateDigest(state map[string]string) string {
	d, err := hook.Digest(accp.Map(stateParams(state)...))
	if err != nil {
		panic(err)
	}
	return d
}

// baseOf returns the canonical text of the base of a change.
func baseOf(state map[string]string) string {
	out, err := new(accp.Codec).AppendValue(nil, accp.String(stateDigest(state)[:8]))
	if err != nil {
		panic(err)
	}
	return string(out)
}

func stateParams(state map[string]string) (p accp.Params) {
	for _, key := range slices.Sorted(maps.Keys(state)) {
		p = append(p, text(key, state[key]))
	}
	return p
}

// send gives a message its number. It returns false if the chain was cancelled (ACCP-D28).
func (m *model) send(f *modelFrame) bool {
	if f.cid != "" && m.cancelled[f.cid] && f.intent != "ack" && f.intent != "cancel" {
		return false
	}
	m.high++
	f.seq = m.high
	return true
}

// sync returns the message that changes the state, or nil if it is as before.
func (m *model) sync(next map[string]string) *modelFrame {
	params := map[string]string{}
	for key := range m.state {
		if _, ok := next[key]; !ok {
			params["delta."+key] = "~"
		}
	}
	for key, value := range next {
		if m.state[key] != value {
			params["delta."+key] = value
		}
	}
	if len(params) == 0 {
		return nil
	}
	before, version := m.state, m.version+1
	if params["version"] = strconv.FormatInt(version, 10); version > 1 {
		params["base"] = baseOf(m.state)
	}
	f := &modelFrame{from: m.self, intent: "sync", op: "state", params: params}
	m.undo = func(refusal *modelFrame) {
		if refusal.cid == f.mid && m.version == version {
			m.state = before // the version stays used in the record of neither side
			m.version, m.undo = version-1, nil
		}
	}
	m.state, m.version = next, version
	return f
}

// add adds a message to hot state and makes the checkpoints that are due (ACCP-D40).
func (m *model) add(f *modelFrame) {
	isContext := f.intent != "ping" && f.intent != "pong"
	h := modelHot{text: f.text()}
	if isContext {
		budget, err := accp.MeasureFrame([]byte(h.text), nil)
		if err != nil {
			panic(err)
		}
		h.tokens = budget.Total
		if f.intent != "ack" {
			h.line = f.body()
			for _, key := range slices.Sorted(maps.Keys(f.params)) {
				if key != "base" && key != "schema" {
					h.facts = append(h.facts, [2]string{fmt.Sprintf("%s:%s.%s", f.from, f.op, key), f.params[key]})
				}
			}
		}
		if m.hotTokens+h.tokens > 500 && len(m.hot) > 0 {
			m.checkpoint("hot_tokens")
		}
		m.hot, m.hotTokens = append(m.hot, h), m.hotTokens+h.tokens
		if m.isOpen && h.line != "" {
			m.lines = append(m.lines, h.line)
		}
	}
	var triggers []string
	if f.intent == "done" {
		triggers = append(triggers, "done")
	}
	if m.hotTokens > 400 {
		triggers = append(triggers, "hot_tokens")
	}
	if f.intent == "esc" || f.intent == "comp" {
		triggers = append(triggers, f.intent)
	}
	if triggers != nil && isContext {
		m.checkpoint(triggers...)
	}
}

// checkpoint replaces hot state by a summary (ACCP-D40 to ACCP-D42).
func (m *model) checkpoint(triggers ...string) {
	var frames, lines []string
	values := map[string]string{}
	for _, h := range m.hot {
		frames = append(frames, h.text)
		for _, fact := range h.facts {
			if _, ok := values[fact[0]]; ok { // a later fact moves to the end
				lines = slices.DeleteFunc(lines, func(name string) bool { return name == fact[0] })
			}
			values[fact[0]] = fact[1]
			lines = append(lines, fact[0])
		}
	}
	var kept []string
	for _, name := range slices.Backward(lines) {
		if with := slices.Insert(slices.Clone(kept), 0, name+"="+values[name]); tokens(strings.Join(with, "\n")) <= 100 {
			kept = with
		}
	}
	summary := strings.Join(kept, "\n")
	_, digits := hook.Address(frames, summary)
	id := "cp" + digits[:8]
	m.checkpoints = append(m.checkpoints, modelCheckpoint{id, summary, strings.Join(triggers, ","), len(m.hot)})
	m.hot, m.hotTokens = nil, tokens("$warm."+id)
}

func tokens(text string) int { return accp.ApproxCounter{}.Count(text) }

// context returns the lines of ACCP-D69.
func (m *model) context(maximum, keep int) []string {
	size := func(lines []string) (n int) {
		for _, line := range lines {
			n += tokens(line) + 1
		}
		return n - 1
	}
	if m.isOpen && (len(m.lines) == 0 || size(m.lines) <= maximum) {
		return m.lines
	}
	m.isOpen, m.lines = true, nil
	for _, h := range m.hot {
		if h.line != "" {
			m.lines = append(m.lines, h.line)
		}
	}
	for len(m.lines) > 0 && size(m.lines) > maximum {
		m.lines = m.lines[1:]
	}
	for _, c := range slices.Backward(m.checkpoints) {
		with := m.lines
		if c.summary != "" {
			with = append([]string{c.summary}, m.lines...)
		}
		if len(with) > 0 && size(with) > keep {
			break
		}
		m.lines = with
	}
	return m.lines
}
