// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package a2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"reflect"
	"strconv"

	"github.com/fivewire/fivewire/internal/strictjson"
)

// Lossless reports what out, which m was written as, does not say of in, which m
// was read from. Members that the catalogue knows may be null in one of them and
// absent or their default in the other, and its numbers that are floats may be
// written in another way; everything else must be the same, exactly (A2E-D11,
// A2E-D12, A2E-D18).
func Lossless(m *Message, in, out []byte) error {
	x, err := strictjson.Check(in, strictjson.Options{MaxDepth: 10000})
	if err != nil {
		return err
	}
	y, err := strictjson.Check(out, strictjson.Options{MaxDepth: 10000})
	if err != nil {
		return err
	}
	var p *plan
	if m.Body != nil {
		p = planOf(reflect.TypeOf(m.Body).Elem())
	}
	return losslessMessage(p, x, y)
}

func losslessMessage(p *plan, in, out strictjson.Value) error {
	if text, _ := out.Get("a2e").Text(); text != ProtocolVersion {
		return fmt.Errorf("a2e is %q", text)
	}
	for _, name := range []string{"type", "id", "ts"} {
		if !equalValues(in.Get(name), out.Get(name)) {
			return fmt.Errorf("%s: %s became %s", name, in.Get(name), out.Get(name))
		}
	}
	return losslessObject(p, in, out, true)
}

func losslessObject(p *plan, in, out strictjson.Value, top bool) error {
	field := func(name []byte) *field {
		if p == nil {
			return nil
		}
		if i := p.find(name, 0); i >= 0 {
			return p.fields[i]
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
			if got == nil || !equalValues(w.Value, got) {
				return fmt.Errorf("%s: %s became %s", name, w.Value, got)
			}
			continue
		}
		if err := losslessField(f, p.typ.FieldByIndex(f.index).Type, w.Value, got); err != nil {
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

func losslessField(f *field, t reflect.Type, in, out strictjson.Value) error {
	if f.alt != "" {
		in = f.other(in)
	}
	if in == nil || in.Kind() == 'n' && !(f.any && f.required) {
		return nil // the default, or nothing
	}
	return losslessValue(t, in, out)
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
		return same(equalValues(in, out))
	case t == reflect.TypeFor[Message]():
		return losslessMessage(planOf(reflect.TypeFor[EventBody]()), in, out)
	case reflect.PointerTo(t).Implements(reflect.TypeFor[members]()):
		elem := reflect.New(t).Interface().(members).elemType()
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
	case t.Kind() == reflect.Struct && isModel(t):
		return losslessObject(planOf(t), in, out, false)
	case t.Kind() == reflect.Float64:
		x, err1 := strconv.ParseFloat(string(in), 64)
		y, err2 := strconv.ParseFloat(string(out), 64)
		return same(err1 == nil && err2 == nil && x == y)
	}
	return same(equalValues(in, out))
}

// RandomLine makes a message of a type with members that the catalogue knows and
// members that it does not, at every depth.
func RandomLine(r *rand.Rand, t *Type) []byte {
	g := &generator{r}
	b := []byte(`{"a2e":"1.0","type":"` + t.Name + `","id":"i","ts":`)
	b = append(b, g.pick("0", "1716886800.125", "1e3", "12345678901234567890.123456789")...)
	b = g.object(b, t.plan, true)
	return append(b, '}')
}

type generator struct{ *rand.Rand }

func (g *generator) pick(list ...string) string { return list[g.IntN(len(list))] }

// object appends members to an open object that is not empty if top is set.
func (g *generator) object(b []byte, p *plan, top bool) []byte {
	member := func(name string, value []byte) {
		if b[len(b)-1] != '{' {
			b = append(b, ',')
		}
		b = append(append(append(b, strictjson.AppendString(nil, name)...), ':'), value...)
	}
	for _, i := range g.Perm(len(p.fields)) {
		f := p.fields[i]
		if !f.required && g.IntN(3) == 0 {
			continue
		}
		if !f.required && g.IntN(5) == 0 {
			member(f.name, []byte("null"))
			continue
		}
		member(f.name, g.field(f, p.typ.FieldByIndex(f.index).Type))
	}
	if !top && !p.keeps {
		return b
	}
	for i := range g.IntN(3) {
		member(g.pick("x", "version2", "Type", "é", "a b", `q"`, "\u2028", "null")+strconv.Itoa(i), g.any(3))
	}
	return b
}

func (g *generator) field(f *field, t reflect.Type) []byte {
	if f.min != nil || f.max != nil {
		low := 0.0
		if f.min != nil {
			low = *f.min
		}
		return strconv.AppendFloat(nil, low, 'f', -1, 64)
	}
	if f.object && t == reflect.TypeFor[json.RawMessage]() {
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
	return g.value(t)
}

func (g *generator) value(t reflect.Type) []byte {
	switch {
	case t == reflect.TypeFor[json.RawMessage]():
		return g.any(3)
	case t == reflect.TypeFor[Message]():
		b := g.object([]byte(`{"a2e":"1.0","type":"tool/event","id":"i","ts":1`), planOf(reflect.TypeFor[EventBody]()), true)
		return append(b, '}')
	case reflect.PointerTo(t).Implements(reflect.TypeFor[members]()):
		b := []byte{'{'}
		for i := range g.IntN(3) {
			if i > 0 {
				b = append(b, ',')
			}
			b = append(append(strconv.AppendQuote(b, "k"+strconv.Itoa(i)), ':'), g.value(reflect.New(t).Interface().(members).elemType())...)
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
		return append(g.object([]byte{'{'}, planOf(t), false), '}')
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
