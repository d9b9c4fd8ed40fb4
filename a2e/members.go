// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package a2e

import (
	"encoding/json"
	"fmt"
	"iter"

	"github.com/fivewire/fivewire/internal/guard"
	"github.com/fivewire/fivewire/internal/jsonmap"
	"github.com/fivewire/fivewire/internal/strictjson"
)

// Members are members of a JSON object in the order of the text, with numbers exactly as received.
// In the messages of this module they hold the members that the catalogue does not name, so that
// nothing is lost in transit.
//
// The zero value is empty and ready for use. Copies share their contents until one of them is
// changed.
type Members jsonmap.Members

// ParseMembers returns the members of a JSON object.
func ParseMembers(object []byte) (Members, error) {
	j, err := jsonmap.NewJSON(object)
	if err != nil {
		return Members{}, fmt.Errorf("a2e: members: %w", err)
	}
	if !j.Value().IsObject() {
		return Members{}, fmt.Errorf("a2e: members: not an object")
	}
	return Members(jsonmap.NewMembers(j)), nil
}

func (m Members) object() strictjson.Value { return jsonmap.Members(m).Value() }

// Get returns the text of the member of that name, or nil. It must not be changed.
func (m Members) Get(name string) json.RawMessage { return json.RawMessage(m.object().Get(name)) }

// Text returns the member of that name if it is a string.
func (m Members) Text(name string) (string, bool) { return m.object().Get(name).Text() }

// All yields the members in order.
func (m Members) All() iter.Seq2[string, json.RawMessage] {
	return func(yield func(string, json.RawMessage) bool) {
		for w := m.object().Members(); w.Next(); {
			if !yield(string(w.Name), json.RawMessage(w.Value)) {
				return
			}
		}
	}
}

// Set sets a member to JSON text as [json.RawMessage], or a value for encoding/json. A new member
// is appended.
func (m *Members) Set(name string, value any) error {
	raw, ok := value.(json.RawMessage)
	if !ok {
		var err error
		if raw, err = guard.Encode(value); err != nil {
			return fmt.Errorf("a2e: member %q: %w", name, err)
		}
	}
	out := []byte{'{'}
	found := false
	for w := m.object().Members(); w.Next(); {
		v := w.Value
		if string(w.Name) == name {
			v, found = strictjson.Value(raw), true
		}
		out = appendMember(out, w.Key, v)
	}
	if !found {
		out = appendMember(out, strictjson.AppendString(nil, name), raw)
	}
	changed, err := ParseMembers(append(out, '}'))
	if err != nil {
		return fmt.Errorf("a2e: member %q: %w", name, err)
	}
	*m = changed
	return nil
}

// MarshalJSON returns the members as an object.
func (m Members) MarshalJSON() ([]byte, error) {
	if v := m.object(); v != nil {
		return v, nil
	}
	return []byte("{}"), nil
}

// UnmarshalJSON reads an object.
func (m *Members) UnmarshalJSON(text []byte) (err error) {
	*m, err = ParseMembers(text)
	return err
}

// appendMember appends a member to an open object.
func appendMember(dst, key, value []byte) []byte {
	if dst[len(dst)-1] != '{' {
		dst = append(dst, ',')
	}
	dst = append(append(dst, key...), ':')
	return append(dst, value...)
}

// An OrderedObject is a JSON object with members of one type, in the order of the text.
type OrderedObject[T any] []Member[T]

// A Member is one member of an [OrderedObject].
type Member[T any] struct {
	Name  string
	Value T
}

// Get returns the value of the member of that name, and whether there is one.
func (o OrderedObject[T]) Get(name string) (value T, ok bool) {
	for i := range o {
		if o[i].Name == name {
			return o[i].Value, true
		}
	}
	return value, false
}
