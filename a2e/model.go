// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package a2e

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strconv"
	"strings"

	"github.com/fivewire/fivewire/internal/jsonmap"
	"github.com/fivewire/fivewire/internal/strictjson"
)

// A model is the Go type of the members of a message.
type model struct {
	typ  reflect.Type
	make func(line []byte) (m *Message, body any, text []byte)

	ordered bool // a member names an object that requests use in order, see orderKeys
}

// modelOf returns the model T. A type that cannot be read and written panics.
func modelOf[T any]() *model {
	t := reflect.TypeFor[T]()
	err := jsonmap.Check(t)
	if t.Kind() != reflect.Struct {
		err = errors.New("not a struct")
	}
	if err != nil {
		panic(fmt.Sprintf("a2e: the model %v: %v", t, err))
	}
	m := &model{typ: t, make: makeMessage[T]}
	for _, name := range orderedMembers {
		m.ordered = m.ordered || jsonmap.Field(reflect.New(t), name).IsValid()
	}
	return m
}

// makeMessage returns a message with a body and a copy of the line that it is read from. They are
// one allocation for a short line.
func makeMessage[T any](line []byte) (m *Message, body any, text []byte) {
	if len(line) > keptLine {
		long := &struct {
			Message
			body T
		}{}
		return &long.Message, &long.body, bytes.Clone(line)
	}
	short := &struct {
		Message
		body T
		line [keptLine]byte
	}{}
	n := copy(short.line[:], line)
	return &short.Message, &short.body, short.line[:n:n]
}

const keptLine = 416

// faultError returns a fault as a schema violation.
func faultError(f *jsonmap.Fault) *Error {
	reason := ReasonValue
	switch f.Reason {
	case jsonmap.Missing:
		reason = ReasonRequired
	case jsonmap.WrongType, jsonmap.NotInteger, jsonmap.Malformed, jsonmap.BadType:
		reason = ReasonType
	}
	e := violation(f.Path, reason)
	e.Cause = f.Cause
	if f.Want != "" {
		e.Message += ", want " + clip(f.Want, 120)
	}
	if f.Got != "" {
		e.Message += ", got " + clip(f.Got, 120)
	}
	return e
}

// asFault returns an error of jsonmap as a fault.
func asFault(err error) *jsonmap.Fault {
	if err == nil {
		return nil
	}
	var f *jsonmap.Fault
	if !errors.As(err, &f) {
		f = &jsonmap.Fault{Reason: jsonmap.BadType}
	}
	return f
}

// DecodeModel reads one JSON object into a model, a struct whose fields have json tags, by the rules
// of the catalogue: required members, types, defaults. The path of the error begins with prefix. It
// is for parts of messages that are free-form on the wire but have a model.
func DecodeModel[T any](object json.RawMessage, prefix string) (*T, error) {
	dst := new(T)
	c := strictjson.NewCursor(object, unboundedNames(defaultDepth))
	f := jsonmap.Read(c, dst)
	if f == nil && c.Err() != nil {
		f = &jsonmap.Fault{Reason: jsonmap.Malformed}
	}
	if f == nil {
		return dst, nil
	}
	if prefix != "" {
		f = f.In(prefix)
	}
	return nil, faultError(f)
}

// EncodeModel writes a model as one JSON object. It is the counterpart of [DecodeModel].
func EncodeModel[T any](model *T) (json.RawMessage, error) {
	if model == nil {
		return nil, SchemaViolation("", ReasonRequired)
	}
	b, err := jsonmap.Append(nil, model)
	if f := asFault(err); f != nil {
		return nil, faultError(f)
	}
	return escape(b, 0, false), nil
}

// unboundedNames are the options of a reader that bounds the depth of a text only.
func unboundedNames(maxDepth int) strictjson.Options {
	return strictjson.Options{MaxDepth: maxDepth, MaxNames: -1, MaxName: -1}
}

// A Limit is a time limit in seconds or a number of results. Its zero value means the default of
// its message; [LimitZero] and all other negative values mean 0.
type Limit int64

// LimitZero is the [Limit] of 0.
const LimitZero Limit = -1

// ReadJSON reads a number that is not negative.
func (l *Limit) ReadJSON(c *strictjson.Cursor) *jsonmap.Fault {
	number, _ := c.Number()
	n, ok := number.Int()
	switch {
	case number == nil:
		var want int64
		return jsonmap.Read(c, &want)
	case !ok && !number.IsIntegral():
		return &jsonmap.Fault{Reason: jsonmap.NotInteger, Want: "integer", Got: "number"}
	case !ok, n < 0:
		return &jsonmap.Fault{Reason: jsonmap.OutOfRange, Want: "an integer from 0", Got: "number"}
	}
	*l = Limit(n)
	if n == 0 {
		*l = LimitZero
	}
	return nil
}

// AppendJSON appends the number.
func (l Limit) AppendJSON(b []byte) ([]byte, *jsonmap.Fault) {
	return strconv.AppendInt(b, max(int64(l), 0), 10), nil
}

// MarshalJSON returns the number, for encoding/json.
func (l Limit) MarshalJSON() ([]byte, error) {
	b, _ := l.AppendJSON(nil)
	return b, nil
}

// UnmarshalJSON reads a number that is not negative, for encoding/json.
func (l *Limit) UnmarshalJSON(text []byte) error { return unmarshal(text, l.ReadJSON) }

// unmarshal reads a text of encoding/json.
func unmarshal(text []byte, read func(c *strictjson.Cursor) *jsonmap.Fault) error {
	if string(text) == "null" {
		return nil
	}
	c := strictjson.NewCursor(text, unboundedNames(maxDepth))
	f := read(c)
	if c.Err() != nil {
		f = &jsonmap.Fault{Reason: jsonmap.Malformed}
	}
	if f != nil {
		return faultError(f)
	}
	return nil
}

// ReadJSON reads an object.
func (o *OrderedObject[T]) ReadJSON(c *strictjson.Cursor) *jsonmap.Fault {
	if !c.Object() {
		return readObject(c)
	}
	*o = OrderedObject[T]{}
	var first *jsonmap.Fault
	for c.Name() {
		*o = append(*o, Member[T]{Name: string(c.Key())})
		m := &(*o)[len(*o)-1]
		if f := jsonmap.Read(c, &m.Value); f != nil && first == nil {
			first = f.In(m.Name)
		}
	}
	return first
}

// readObject returns the fault of the value at c if it is not an object.
func readObject(c *strictjson.Cursor) *jsonmap.Fault {
	var object map[string]jsonmap.JSON
	return jsonmap.Read(c, &object)
}

// AppendJSON appends the members in order.
func (o OrderedObject[T]) AppendJSON(b []byte) ([]byte, *jsonmap.Fault) {
	b = append(b, '{')
	for i := range o {
		if i > 0 {
			b = append(b, ',')
		}
		var err error
		if b, err = jsonmap.Append(b, o[i].Name); err == nil {
			b, err = jsonmap.Append(append(b, ':'), &o[i].Value)
		}
		if f := asFault(err); f != nil {
			return b, f.In(o[i].Name)
		}
	}
	return append(b, '}'), nil
}

// MarshalJSON returns the object, for encoding/json.
func (o OrderedObject[T]) MarshalJSON() ([]byte, error) {
	b, f := o.AppendJSON(nil)
	if f != nil {
		return nil, faultError(f)
	}
	return b, nil
}

// UnmarshalJSON reads an object, for encoding/json.
func (o *OrderedObject[T]) UnmarshalJSON(text []byte) error { return unmarshal(text, o.ReadJSON) }

// ReadJSON reads a complete event inside a result.
func (m *Message) ReadJSON(c *strictjson.Cursor) *jsonmap.Fault {
	if c.Kind() != '{' {
		return readObject(c)
	}
	v, _, ok := c.Raw()
	if !ok {
		return &jsonmap.Fault{Reason: jsonmap.Malformed}
	}
	var e envelope
	e.walk(v)
	if err := e.check(m, nil, c, false); err != nil {
		f := &jsonmap.Fault{Reason: jsonmap.Invalid}
		switch err.Reason {
		case ReasonRequired:
			f.Reason = jsonmap.Missing
		case ReasonType:
			f.Reason = jsonmap.WrongType
		}
		return f.In(cmp.Or(err.Field, "a2e"))
	}
	body := &EventBody{}
	m.Body, m.hasOldVersion = body, e.a2e == nil
	return jsonmap.ReadRest(strictjson.NewCursor(v, unboundedNames(maxDepth)), body, (*jsonmap.Members)(&m.Extra), &e)
}

// strictFault returns the fault of the first event inside v that [Codec.Strict] refuses, or nil.
func strictFault(v reflect.Value) *jsonmap.Fault {
	switch v.Kind() {
	case reflect.Pointer:
		if !v.IsNil() {
			return strictFault(v.Elem())
		}
	case reflect.Slice:
		if v.Type() != reflect.TypeFor[[]Message]() {
			return nil
		}
		for i := range v.Len() {
			switch m := v.Index(i).Addr().Interface().(*Message); {
			case m.hasOldVersion:
				return (&jsonmap.Fault{Reason: jsonmap.Missing}).In("a2e").At(i)
			case !isHexID(m.ID):
				return (&jsonmap.Fault{Reason: jsonmap.Invalid}).In("id").At(i)
			}
		}
	case reflect.Struct:
		for field, value := range v.Fields() {
			if !field.IsExported() {
				continue
			}
			if f := strictFault(value); f != nil {
				name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
				return f.In(name)
			}
		}
	}
	return nil
}

// AppendJSON appends the message as an event inside a result.
func (m *Message) AppendJSON(b []byte) ([]byte, *jsonmap.Fault) { return m.append(b, false) }
