// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package a2e

import (
	"encoding/json"
	"reflect"
	"strings"
	"time"

	"github.com/fivewire/fivewire/internal/jsonmap"
)

// bodyOf returns body, or for a nil pointer a new model.
func bodyOf(body any) any {
	if v := reflect.ValueOf(body); v.Kind() == reflect.Pointer && v.IsNil() {
		return reflect.New(v.Type().Elem()).Interface()
	}
	return body
}

// memberOf returns the field of the body for a member, or the zero Value. It also finds the common
// members in models of applications.
func memberOf(body any, name string) reflect.Value {
	v := reflect.ValueOf(body)
	if v.Kind() != reflect.Pointer || v.IsNil() {
		return reflect.Value{}
	}
	return jsonmap.Field(v, name)
}

// heldBytes returns the memory of a decoded value besides its own: of its texts and lists. Raw JSON shares the memory of
// its message.
func heldBytes(v reflect.Value) (n int) {
	switch v.Kind() {
	case reflect.String:
		n = v.Len()
	case reflect.Pointer:
		if !v.IsNil() {
			n = int(v.Type().Elem().Size()) + heldBytes(v.Elem())
		}
	case reflect.Struct:
		for i := range v.NumField() {
			n += heldBytes(v.Field(i))
		}
	case reflect.Slice:
		elem := v.Type().Elem()
		if elem.Kind() == reflect.Uint8 {
			return 0
		}
		n = v.Len() * int(elem.Size())
		for i := range v.Len() {
			n += heldBytes(v.Index(i))
		}
	case reflect.Map:
		n = v.Len() * int(v.Type().Key().Size()+v.Type().Elem().Size())
		for w := v.MapRange(); w.Next(); {
			n += heldBytes(w.Key()) + heldBytes(w.Value())
		}
	}
	return n
}

// setReqID sets the request that a message answers (A2E-034).
func setReqID(m *Message, id string) {
	if v := memberOf(m.Body, "req_id"); v.Kind() == reflect.String {
		v.SetString(id)
		return
	}
	_ = m.Extra.Set("req_id", id)
}

// wantsEvents reports whether a request has the member streaming set (A2E-070).
func wantsEvents(m *Message) bool {
	v := memberOf(m.Body, "streaming")
	if v.Kind() == reflect.Pointer {
		v = v.Elem()
	}
	return v.Kind() == reflect.Bool && v.Bool()
}

// A timeLimited request names the time limit of its call (A2E-D28).
type timeLimited interface {
	TimeLimit() time.Duration
}

// timeLimit returns the time limit of a request, 0 for none.
func timeLimit(body any) time.Duration {
	if b, ok := body.(timeLimited); ok {
		return b.TimeLimit()
	}
	return 0
}

// orderedMembers are the members that orderKeys reads.
var orderedMembers = [...]string{"memory_id", "plan_id", "episode_id", "episode_ids", "proc_id"}

// orderKeys returns the keys of the objects that a request uses. Requests with a common key do not
// run at the same time (A2E-D27).
func orderKeys(m *Message) []string {
	if m.typ != nil && !m.typ.model.ordered && m.Extra.object() == nil {
		return nil
	}
	var keys []string
	for _, name := range orderedMembers[:3] {
		if s := textMember(m, name); s != "" {
			keys = append(keys, name+":"+s)
		}
	}
	if v := memberOf(m.Body, "episode_ids"); v.IsValid() {
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
	v := memberOf(m.Body, name)
	if !v.IsValid() {
		s, _ := m.Extra.Text(name)
		return s
	}
	if v.Kind() == reflect.Pointer {
		v = v.Elem()
	}
	if v.Kind() == reflect.String {
		return v.String()
	}
	return ""
}

// errorMessage returns err as an error message to the peer.
func errorMessage(err *Error) *Message {
	text := clip(strings.ToValidUTF8(err.Message, ""), 1000)
	return NewMessage(typeError, &ErrorBody{ReqID: err.ReqID, Code: string(err.Code), Message: text,
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

// received returns an error message of the peer as an error with Remote set.
func (b *ErrorBody) received() *Error {
	e := &Error{Code: Code(b.Code), Message: b.Message, Details: b.Detail, Retryable: b.Retryable,
		Capability: b.CapabilityName, ReqID: b.ReqID, Remote: true}
	if m, err := ParseMembers(b.Detail); err == nil {
		e.Field, _ = m.Text("field")
		e.Reason, _ = m.Text("reason")
	}
	return e
}

// Err returns the error message as an [*Error].
func (b *ErrorBody) Err() error { return b.received() }
