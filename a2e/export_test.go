// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package a2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/big"
	"math/rand/v2"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/fivewire/fivewire/a2e/internal/wire"
	"github.com/fivewire/fivewire/internal/strictjson"
)

// Parts that are not API, for tests.
var (
	NewLineReader = newLineReader
	ParseType     = parseType
	KindOf        = kindOf
)

// StopTimer stops the timer of a session, as the sleep of a machine does.
func (s *Session) StopTimer() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.timer.Stop()
}

// Next returns the next line of valid UTF-8.
func (r *lineReader) Next() ([]byte, error) {
	line, err := r.next()
	if err != nil {
		return nil, err
	}
	return validText(line)
}

// Lossless reports the members of in, from which m was read, that are missing in out, the encoding
// of m. Members of the catalogue may be null in one of them and absent or their default in the
// other, and floats of the catalogue may have another spelling; everything else must be exactly
// equal (A2E-D11, A2E-D12, A2E-D18).
func Lossless(m *Message, in, out []byte) error {
	x, err := wire.CheckJSON(in)
	if err != nil {
		return err
	}
	y, err := wire.CheckJSON(out)
	if err != nil {
		return err
	}
	var members []member
	if m.Body != nil {
		members = membersOf(reflect.TypeOf(m.Body).Elem())
	}
	return losslessMessage(members, x, y)
}

// A member is a field of a model as its tags describe it.
type member struct {
	name     string
	typ      reflect.Type
	required bool
	object   bool // raw JSON that is an object
	unset    bool // null is the same as absent
}

// membersOf returns the members of a model.
func membersOf(t reflect.Type) (list []member) {
	for _, sf := range reflect.VisibleFields(t) {
		name, option, _ := strings.Cut(sf.Tag.Get("json"), ",")
		if name == "" || name == "-" {
			continue
		}
		options := strings.Split(sf.Tag.Get("jsonmap"), ",")
		m := member{name: name, typ: sf.Type, required: option == "" && sf.Type.Kind() != reflect.Pointer, object: slices.Contains(options, "object")}
		m.unset = m.object || slices.Contains(options, "unset") || sf.Type != reflect.TypeFor[json.RawMessage]()
		list = append(list, m)
	}
	return list
}

// keeps reports whether a model keeps unknown members.
func keeps(t reflect.Type) bool {
	sf, ok := t.FieldByName("Extra")
	return ok && sf.Type == reflect.TypeFor[Members]()
}

// An ordered is an [OrderedObject].
type ordered interface{ elem() reflect.Type }

func (o *OrderedObject[T]) elem() reflect.Type { return reflect.TypeFor[T]() }

// elemOf returns the type of the members of an [OrderedObject], or nil.
func elemOf(t reflect.Type) reflect.Type {
	if o, ok := reflect.New(t).Interface().(ordered); ok {
		return o.elem()
	}
	return nil
}

func losslessMessage(members []member, in, out strictjson.Value) error {
	if text, _ := out.Get("a2e").Text(); text != ProtocolVersion {
		return fmt.Errorf("a2e is %q", text)
	}
	for _, name := range []string{"type", "id", "ts"} {
		if !strictjson.Equal(in.Get(name), out.Get(name)) {
			return fmt.Errorf("%s: %s became %s", name, in.Get(name), out.Get(name))
		}
	}
	return losslessObject(members, in, out, true)
}

func losslessObject(members []member, in, out strictjson.Value, top bool) error {
	field := func(name []byte) *member {
		for i := range members {
			if members[i].name == string(name) {
				return &members[i]
			}
		}
		return nil
	}
	for w := in.Members(); w.Next(); {
		name := string(w.Name)
		if top && isEnvelope(w.Name) {
			continue
		}
		got := out.Get(name)
		f := field(w.Name)
		if f == nil {
			if got == nil || !strictjson.Equal(w.Value, got) {
				return fmt.Errorf("%s: %s became %s", name, w.Value, got)
			}
			continue
		}
		if err := losslessField(f, w.Value, got); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	for w := out.Members(); w.Next(); {
		if in.Get(string(w.Name)) == nil && field(w.Name) == nil && !(top && string(w.Name) == "a2e") {
			return fmt.Errorf("%s came from nowhere", w.Name)
		}
	}
	return nil
}

func losslessField(f *member, in, out strictjson.Value) error {
	if in.Kind() == 'n' && f.unset {
		return nil // the default, or nothing
	}
	// Second forms of deployed peers (A2E-D20), and the empty text of members with a default.
	switch text := string(strictjson.AppendCompact(nil, in)); {
	case f.name == "arguments" && text == "{}" && out.IsArray(), f.name == "payload" && text == "[]",
		f.name == "provider_config" && text == "false", f.name == "data" && in.Kind() == '"' && out.IsObject(),
		f.typ.Kind() == reflect.String && text == `""`:
		return nil
	}
	return losslessValue(f.typ, in, out)
}

func losslessValue(t reflect.Type, in, out strictjson.Value) error {
	same := func(ok bool) error {
		if !ok || out == nil {
			return fmt.Errorf("%s became %s", in, out)
		}
		return nil
	}
	switch {
	case t == reflect.TypeFor[json.RawMessage]():
		return same(strictjson.Equal(in, out))
	case t == reflect.TypeFor[Message]():
		return losslessMessage(membersOf(reflect.TypeFor[EventBody]()), in, out)
	case elemOf(t) != nil:
		elem := elemOf(t)
		n := 0
		for w := in.Members(); w.Next(); n++ {
			if err := losslessValue(elem, w.Value, out.Get(string(w.Name))); err != nil {
				return fmt.Errorf("%s: %w", w.Name, err)
			}
		}
		for w := out.Members(); w.Next(); n-- {
		}
		return same(n == 0)
	case t.Kind() == reflect.Pointer:
		return losslessValue(t.Elem(), in, out)
	case t.Kind() == reflect.Slice:
		y := out.Elements()
		for x := in.Elements(); x.Next(); {
			if !y.Next() {
				return same(false)
			}
			if err := losslessValue(t.Elem(), x.Value, y.Value); err != nil {
				return err
			}
		}
		return same(!y.Next())
	case t.Kind() == reflect.Struct:
		return losslessObject(membersOf(t), in, out, false)
	case t.Kind() == reflect.Float64:
		x, err1 := strconv.ParseFloat(string(in), 64)
		y, err2 := strconv.ParseFloat(string(out), 64)
		return same(err1 == nil && err2 == nil && x == y)
	}
	return same(strictjson.Equal(in, out))
}

// RandomLine makes a message of a type with members that the catalogue knows and
// members that it does not, at every depth.
func RandomLine(r *rand.Rand, t *Type) []byte {
	g := &generator{Rand: r}
	b := []byte(`{"a2e":"1.0","type":"` + t.Name + `","id":"i","ts":`)
	b = append(b, g.pick("0", "1716886800.125", "1e3", "12345678901234567890.123456789")...)
	b = g.object(b, t.model.typ, true)
	return append(b, '}')
}

type generator struct {
	*rand.Rand
	isBad bool // one member in ten has another type
}

func (g *generator) pick(list ...string) string { return list[g.IntN(len(list))] }

// object appends members to an open object that is not empty if top is set.
func (g *generator) object(b []byte, t reflect.Type, top bool) []byte {
	members := membersOf(t)
	member := func(name string, value []byte) {
		if b[len(b)-1] != '{' {
			b = append(b, ',')
		}
		b = append(append(append(b, strictjson.AppendString(nil, name)...), ':'), value...)
	}
	for _, i := range g.Perm(len(members)) {
		f := members[i]
		if !f.required && g.IntN(3) == 0 {
			continue
		}
		if !f.required && g.IntN(5) == 0 {
			member(f.name, []byte("null"))
			continue
		}
		member(f.name, g.field(f))
	}
	if !top && !keeps(t) {
		return b
	}
	for i := range g.IntN(3) {
		member(g.pick("x", "version2", "Type", "é", "a b", `q"`, "\u2028", "null")+strconv.Itoa(i), g.any(3))
	}
	return b
}

func (g *generator) field(f member) []byte {
	if g.isBad && g.IntN(10) == 0 {
		return []byte(g.pick("7", "-1", "1.5", `"x"`, "{}", "[]", "[null]", "true", "false", "1e400", "1e19"))
	}
	switch f.name {
	case "score", "confidence":
		return []byte("0.5")
	}
	if f.object && f.typ == reflect.TypeFor[json.RawMessage]() {
		return g.free(3)
	}
	if f.object {
		b := []byte{'['}
		for i := range g.IntN(3) {
			if i > 0 {
				b = append(b, ',')
			}
			b = append(b, g.free(2)...)
		}
		return append(b, ']')
	}
	return g.value(f.typ)
}

func (g *generator) value(t reflect.Type) []byte {
	switch {
	case t == reflect.TypeFor[json.RawMessage]():
		return g.any(3)
	case t == reflect.TypeFor[Message]():
		b := g.object([]byte(`{"a2e":"1.0","type":"tool/event","id":"i","ts":1`), reflect.TypeFor[EventBody](), true)
		return append(b, '}')
	case t == reflect.TypeFor[Limit]():
		return []byte(g.pick("0", "7", "3e1"))
	case elemOf(t) != nil:
		b := []byte{'{'}
		for i := range g.IntN(3) {
			if i > 0 {
				b = append(b, ',')
			}
			b = append(append(strconv.AppendQuote(b, "k"+strconv.Itoa(i)), ':'), g.value(elemOf(t))...)
		}
		return append(b, '}')
	}
	switch t.Kind() {
	case reflect.Pointer:
		return g.value(t.Elem())
	case reflect.Slice:
		b := []byte{'['}
		for i := range g.IntN(3) {
			if i > 0 {
				b = append(b, ',')
			}
			b = append(b, g.value(t.Elem())...)
		}
		return append(b, ']')
	case reflect.Struct:
		return append(g.object([]byte{'{'}, t, false), '}')
	case reflect.String:
		return []byte(g.pick(`""`, `"a"`, `"\u00e9\n\/"`, `"\ud83d\ude00"`, `"é\u2028"`, `"\u0000"`, `"a\\b"`))
	case reflect.Int64, reflect.Int:
		return []byte(g.pick("0", "-0", "7", "3e1", "9223372036854775807", "-9223372036854775808", "30.0", "1.5e1"))
	case reflect.Float64:
		return []byte(g.pick("0", "-0.0", "0.1", "1e21", "1E-7", "123456789012345678", "5e-324", "0.1000000000000000055"))
	case reflect.Bool:
		return []byte(g.pick("true", "false"))
	}
	return []byte("null")
}

// any appends a free value, with numbers that no float holds.
func (g *generator) any(depth int) []byte {
	switch g.IntN(7) {
	case 0:
		return []byte(g.pick("123456789012345678901234567890", "-0.1000000000000000000001", "1e400", "0", "-0", "1.0", "2E+5"))
	case 1:
		return g.value(reflect.TypeFor[string]())
	case 2:
		return []byte(g.pick("true", "false", "null"))
	case 3, 4:
		if depth > 0 {
			return bytes.Join([][]byte{[]byte("[ "), bytes.Join([][]byte{g.any(depth - 1), g.any(depth - 1)}, []byte(" , ")), []byte("]")}, nil)
		}
	}
	if depth > 0 {
		return g.free(depth - 1)
	}
	return []byte("{}")
}

func (g *generator) free(depth int) []byte {
	b := []byte{'{'}
	for i := range g.IntN(3) {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(append(strconv.AppendQuote(b, g.pick("a", "b", "type", "ts")+strconv.Itoa(i)), ':'), g.any(depth)...)
	}
	return append(b, '}')
}

// RandomBadLine is [RandomLine] with some members of other types.
func RandomBadLine(r *rand.Rand, t *Type) []byte {
	g := &generator{Rand: r, isBad: true}
	b := []byte(`{"a2e":"1.0","type":"` + t.Name + `","id":"i","ts":1`)
	return append(g.object(b, t.model.typ, true), '}')
}

// FirstFault returns the path and the reason of the first invalid member of a message of a type as
// [strictjson.Value.Any] returns it. It is the reference of the decoder.
func FirstFault(t *Type, message map[string]any) (path, reason string) {
	if path, reason = faultOfEnvelope(message); reason != "" {
		return path, reason
	}
	return faultOfObject(t.model.typ, message)
}

func faultOfEnvelope(message map[string]any) (path, reason string) {
	version, ok := message["a2e"]
	if !ok {
		version = message["version"]
	}
	if s, ok := version.(string); ok && s != ProtocolVersion {
		return "a2e", ReasonValue
	}
	for _, name := range envelopeNames {
		v := message[name]
		if name == "a2e" {
			v = version
		}
		s, isText := v.(string)
		_, isNumber := v.(json.Number)
		switch {
		case v == nil:
			return name, ReasonRequired
		case name == "ts" && !isNumber, name != "ts" && !isText:
			return name, ReasonType
		case name == "ts":
			if _, err := v.(json.Number).Float64(); err != nil {
				return name, ReasonValue
			}
		case isText && (s == "" || len(s) > maxName):
			return name, ReasonValue
		}
	}
	return "", ""
}

func faultOfObject(t reflect.Type, object map[string]any) (path, reason string) {
	for _, m := range membersOf(t) {
		v, isPresent := object[m.name]
		switch text, _ := json.Marshal(v); {
		case m.name == "payload" && string(text) == "[]", m.name == "provider_config" && string(text) == "false",
			m.name == "arguments" && m.typ.Kind() == reflect.Slice && string(text) == "{}",
			m.name == "data" && m.typ == reflect.TypeFor[json.RawMessage]() && string(text[:1]) == `"` && t.Name() == "ReadEvent":
			continue
		}
		if (!isPresent || v == nil) && (m.unset || !isPresent) {
			if m.required {
				return m.name, ReasonRequired
			}
			v = nil
		} else if path, reason = faultOfValue(m, m.typ, v); reason != "" {
			return joinPath(m.name, path), reason
		}
		if !fitsOthers(t.Name(), m.name, object, v) {
			return m.name, ReasonValue
		}
	}
	return "", ""
}

func joinPath(name, path string) string {
	if path == "" || path[0] == '[' {
		return name + path
	}
	return name + "." + path
}

// fitsOthers are the checks of members beyond their types.
func fitsOthers(model, name string, object map[string]any, v any) bool {
	n, _ := v.(json.Number)
	x, _ := n.Float64()
	list, _ := v.([]any)
	switch model + "." + name {
	case "Feedback.score":
		return x >= -1 && x <= 1
	case "Feedback.confidence":
		return x >= 0 && x <= 1
	case "Feedback.correction":
		return object["polarity"] != "corrective" || v != nil && v != ""
	case "Feedback.correction_span":
		return v == nil || len(list) == 2
	case "BatchStepRequest.actions":
		ids, _ := object["episode_ids"].([]any)
		return len(list) == len(ids)
	case "SpawnRequest.timeout":
		return x >= 0
	}
	return true
}

func faultOfValue(m member, t reflect.Type, v any) (path, reason string) {
	wrong := func(ok bool) (string, string) {
		if ok {
			return "", ""
		}
		return "", ReasonType
	}
	object, isObject := v.(map[string]any)
	switch {
	case t == reflect.TypeFor[json.RawMessage]():
		return wrong(isObject || !m.object)
	case t == reflect.TypeFor[Limit](), t.Kind() == reflect.Int64:
		return faultOfInteger(t, v)
	case t == reflect.TypeFor[Message]():
		if !isObject {
			return wrong(false)
		}
		if path, reason = faultOfEnvelope(object); reason != "" {
			return path, reason
		}
		return faultOfObject(reflect.TypeFor[EventBody](), object)
	case elemOf(t) != nil:
		if !isObject {
			return wrong(false)
		}
		for name, e := range object { // the tests have one bad member at most
			if path, reason = faultOfValue(m, elemOf(t), e); reason != "" {
				return joinPath(name, path), reason
			}
		}
		return "", ""
	}
	switch t.Kind() {
	case reflect.Pointer:
		return faultOfValue(m, t.Elem(), v)
	case reflect.Struct:
		if !isObject {
			return wrong(false)
		}
		return faultOfObject(t, object)
	case reflect.Slice:
		list, ok := v.([]any)
		for i, e := range list {
			if path, reason = faultOfValue(m, t.Elem(), e); reason != "" {
				return joinPath("["+strconv.Itoa(i)+"]", path), reason
			}
		}
		return wrong(ok)
	case reflect.Bool:
		_, ok := v.(bool)
		return wrong(ok)
	case reflect.String:
		_, ok := v.(string)
		return wrong(ok)
	case reflect.Float64:
		n, ok := v.(json.Number)
		if _, err := n.Float64(); ok && err != nil {
			return "", ReasonValue
		}
		return wrong(ok)
	}
	return "", "unknown type " + t.String()
}

func faultOfInteger(t reflect.Type, v any) (path, reason string) {
	n, ok := v.(json.Number)
	x, isRat := new(big.Rat).SetString(string(n))
	switch {
	case !ok, !isRat, !x.IsInt():
		return "", ReasonType
	case !x.Num().IsInt64(), t == reflect.TypeFor[Limit]() && x.Sign() < 0:
		return "", ReasonValue
	}
	return "", ""
}

// HeadMembers is headMembers.
func HeadMembers(head []byte) (id, msgType, refID string) { return headMembers(head) }

// PID returns the process id of a child.
func (c *Command) PID() int { return c.cmd.Process.Pid }
