// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package a2e

import (
	"encoding/json"
	"reflect"
	"time"
	"unsafe"
)

// bodyField returns the field of the body that holds the member of that name and
// where it lies, or nil.
func bodyField(m *Message, name string) (*field, unsafe.Pointer) {
	body := reflect.ValueOf(m.Body)
	if body.Kind() != reflect.Pointer || body.IsNil() {
		return nil, nil
	}
	for _, f := range planOfBody(m, body).fields {
		if f.name == name {
			return f, unsafe.Add(body.UnsafePointer(), f.offset)
		}
	}
	return nil, nil
}

// planOfBody is planOf for the body of a message, without the look-up where it
// was read as its type.
func planOfBody(m *Message, body reflect.Value) *plan {
	t := body.Type().Elem()
	if m.typ != nil && m.typ.plan.typ == t {
		return m.typ.plan
	}
	return planOf(t)
}

// memberOf returns the field of the body that holds the member of that name, or
// the zero Value. Members that mean the same everywhere are found this way in
// the models of users too.
func memberOf(m *Message, name string) reflect.Value {
	f, p := bodyField(m, name)
	if f == nil {
		return reflect.Value{}
	}
	return reflect.NewAt(f.typ, p).Elem()
}

// setMember sets a text member of the body if it has it and it is empty.
func setMember(body any, name, value string) {
	f, p := bodyField(&Message{Body: body}, name)
	if f == nil || f.typ.Kind() != reflect.String {
		return
	}
	if text := (*string)(p); *text == "" {
		*text = value
	}
}

// setReqID makes a message name the request that it answers (A2E-034).
func setReqID(m *Message, id string) {
	if f, p := bodyField(m, "req_id"); f != nil && f.typ.Kind() == reflect.String {
		*(*string)(p) = id
		return
	}
	_ = m.Extra.Set("req_id", id)
}

// wantsEvents reports whether a request asks for events (A2E-070). One that
// cannot ask does not want any.
func wantsEvents(m *Message) bool {
	f, p := bodyField(m, "streaming")
	return f != nil && f.typ.Kind() == reflect.Bool && *(*bool)(p)
}

// A timeLimited request says how long its call may take (A2E-D28).
type timeLimited interface {
	TimeLimit() time.Duration
}

// timeLimit returns the time limit that a request asks for, 0 if it asks for
// none.
func timeLimit(m *Message) time.Duration {
	if b, ok := m.Body.(timeLimited); ok {
		return b.TimeLimit()
	}
	return 0
}

// orderKeys returns what a request works on that must not be worked on by two at
// a time (A2E-D27).
func orderKeys(m *Message) []string {
	if body := reflect.ValueOf(m.Body); m.Extra.text == nil && body.Kind() == reflect.Pointer && !body.IsNil() && !planOfBody(m, body).ordered {
		return nil
	}
	var keys []string
	for _, name := range [...]string{"memory_id", "plan_id", "episode_id"} {
		if s := textMember(m, name); s != "" {
			keys = append(keys, name+":"+s)
		}
	}
	if v := memberOf(m, "episode_ids"); v.IsValid() {
		if list, ok := v.Interface().([]string); ok {
			for _, s := range list {
				keys = append(keys, "episode_id:"+s)
			}
		}
	}
	if m.typ != nil && m.typ.Name == "proc/write/req" {
		if s := textMember(m, "proc_id"); s != "" {
			keys = append(keys, "proc_id:"+s)
		}
	}
	return keys
}

// textMember returns a member of the body or of the unknown members, if it is a
// string, nullable or not.
func textMember(m *Message, name string) string {
	f, p := bodyField(m, name)
	switch {
	case f == nil:
		s, _ := m.Extra.Text(name)
		return s
	case f.typ.Kind() == reflect.String:
		return *(*string)(p)
	case f.typ == reflect.TypeFor[*string]():
		if s := *(**string)(p); s != nil {
			return *s
		}
	}
	return ""
}

// errorMessage returns err as the message that tells the peer.
func errorMessage(err *Error) *Message {
	return NewMessage(TypeError, &ErrorBody{ReqID: err.ReqID, Code: string(err.Code), Message: clip(err.Message, 1000),
		Detail: err.detail(), Retryable: err.Retryable, CapabilityName: err.Capability})
}

// detail returns the detail object with field and reason in it.
func (e *Error) detail() json.RawMessage {
	var m Members
	if len(e.Details) > 0 {
		if parsed, err := ParseMembers(e.Details); err == nil {
			m = parsed
		}
	}
	if e.Field != "" && m.Get("field") == nil {
		_ = m.Set("field", e.Field)
	}
	if e.Reason != "" && m.Get("reason") == nil {
		_ = m.Set("reason", e.Reason)
	}
	out, _ := m.MarshalJSON()
	return out
}

// With adds a member to the detail of the error and returns the error.
func (e *Error) With(name string, value any) *Error {
	m, err := ParseMembers(e.Details)
	if err != nil {
		m = Members{}
	}
	if m.Set(name, value) == nil {
		e.Details, _ = m.MarshalJSON()
	}
	return e
}

// received returns the error that an error message of the peer tells of.
func (b *ErrorBody) received() *Error {
	e := &Error{Code: Code(b.Code), Message: b.Message, Details: b.Detail, Retryable: b.Retryable,
		Capability: b.CapabilityName, ReqID: b.ReqID, Remote: true}
	if m, err := ParseMembers(b.Detail); err == nil {
		e.Field, _ = m.Text("field")
		e.Reason, _ = m.Text("reason")
	}
	return e
}

// Err returns what the error message says as an [*Error].
func (b *ErrorBody) Err() error { return b.received() }
