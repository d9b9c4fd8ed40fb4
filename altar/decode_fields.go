// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package altar

import (
	"github.com/fivewire/fivewire/internal/strictjson"
)

func (d *decoder) fail(reason Reason, path string) {
	if d.reason == "" {
		d.reason, d.path = reason, path
	}
}

func (d *decoder) failField(v strictjson.Value, path string) {
	if v.Absent() {
		d.fail(ReasonMissingField, path)
	} else {
		d.fail(ReasonWrongType, path)
	}
}

// get returns a field, nil if it is absent or null.
func (d *decoder) get(field int, required bool) strictjson.Value {
	v := d.fields[field]
	if !v.Absent() {
		return v
	}
	if required {
		d.fail(ReasonMissingField, "/"+fieldNames[field])
	}
	return nil
}

func (d *decoder) text(field int, required bool) string {
	v := d.get(field, required)
	if v == nil {
		return ""
	}
	b, ok := v.TextBytes()
	if !ok {
		d.fail(ReasonWrongType, "/"+fieldNames[field])
	}
	switch field {
	case fType:
		return nameOf(b)
	case fStatus: // of which there are two
		switch string(b) {
		case "success":
			return "success"
		case "error":
			return "error"
		}
	}
	return d.recent.text(field, b)
}

// recentTexts holds the last text of each field on a connection, so that equal texts of later
// messages need no allocation. It is not safe for concurrent use.
type recentTexts [fieldCount]string

// maxRecent bounds the texts that are kept.
const maxRecent = 256

func (r *recentTexts) text(field int, b []byte) string {
	if r == nil || len(b) > maxRecent {
		return string(b)
	}
	if r[field] != string(b) {
		r[field] = string(b)
	}
	return r[field]
}

// nameOf returns the name of a message.
func nameOf(b []byte) string {
	for _, name := range [...]string{"StreamChunk", "ToolCall", "ToolResult", "CancelCall", "Ping", "Pong"} {
		if name == string(b) {
			return name
		}
	}
	return string(b)
}

func (d *decoder) textID(field int) string {
	v := d.get(field, false)
	if v == nil {
		return ""
	}
	slot := field
	if field == fRequestID {
		slot = fInvocationID // a Client sends it as both
	}
	b, ok := v.TextBytes()
	s := d.recent.text(slot, b)
	switch {
	case !ok:
		d.fail(ReasonWrongType, "/"+fieldNames[field])
	case !validText(s, maxTextID):
		d.fail(ReasonInvalidValue, "/"+fieldNames[field])
		return ""
	}
	return s
}

func (d *decoder) invocationID() string {
	s := d.text(fInvocationID, true)
	if d.reason == "" && !validInvocationID(s) {
		d.fail(ReasonInvalidValue, "/invocation_id")
	}
	return s
}

func (d *decoder) flag(field int, def bool) bool {
	v := d.get(field, false)
	if v == nil {
		return def
	}
	b, ok := v.Bool()
	if !ok {
		d.fail(ReasonWrongType, "/"+fieldNames[field])
	}
	return b
}

func (d *decoder) integer(field int, min int64, required bool) int64 {
	v := d.get(field, required)
	if v == nil {
		return 0
	}
	n, ok := v.Int()
	switch {
	case v.Kind() != '0':
		d.fail(ReasonWrongType, "/"+fieldNames[field])
	case !ok || n < min:
		d.fail(ReasonInvalidValue, "/"+fieldNames[field])
	}
	return n
}

func (d *decoder) texts(field int, required bool) []string {
	return d.textList(d.get(field, required), "/"+fieldNames[field])
}

func (d *decoder) textList(v strictjson.Value, path string) []string {
	list := []string{}
	if v == nil {
		return list
	}
	if !v.IsArray() {
		d.fail(ReasonWrongType, path)
		return list
	}
	i := 0
	for e := v.Elements(); e.Next(); i++ {
		s, ok := e.Value.Text()
		if !ok {
			d.fail(ReasonWrongType, pointerIndex(path, i))
		}
		list = append(list, s)
	}
	return list
}

func (d *decoder) textMap(field int) map[string]string {
	v := d.get(field, false)
	if v == nil {
		return nil
	}
	return d.textObject(v, "/"+fieldNames[field])
}

func (d *decoder) textObject(v strictjson.Value, path string) map[string]string {
	if v == nil {
		return nil
	}
	if !v.IsObject() {
		d.fail(ReasonWrongType, path)
		return nil
	}
	out := map[string]string{}
	for m := v.Members(); m.Next(); {
		s, ok := m.Value.Text()
		if !ok {
			d.fail(ReasonWrongType, pointer(path, string(m.Name)))
		}
		out[string(m.Name)] = s
	}
	return out
}

func (d *decoder) memberText(v strictjson.Value, path, name string, required bool) string {
	m := v.Get(name)
	if m.Absent() {
		if required {
			d.fail(ReasonMissingField, path+"/"+name)
		}
		return ""
	}
	s, ok := m.Text()
	if !ok {
		d.fail(ReasonWrongType, path+"/"+name)
	}
	return s
}

func (d *decoder) memberFlag(v strictjson.Value, path, name string) bool {
	m := v.Get(name)
	if m.Absent() {
		return false
	}
	b, ok := m.Bool()
	if !ok {
		d.fail(ReasonWrongType, path+"/"+name)
	}
	return b
}

func (d *decoder) securityContext() *SecurityContext {
	const path = "/security_context"
	v := d.get(fSecurityContext, false)
	if v == nil {
		return nil
	}
	if !v.IsObject() {
		d.fail(ReasonWrongType, path)
		return nil
	}
	c := &SecurityContext{}
	c.PrincipalID = d.memberText(v, path, "principal_id", false)
	c.TenantID = d.memberText(v, path, "tenant_id", false)
	if claims := v.Get("claims"); !claims.Absent() {
		c.Claims = d.textObject(claims, path+"/claims")
	}
	return c
}

// objects walks over a list of objects.
func (d *decoder) objects(v strictjson.Value, path string, each func(v strictjson.Value, path string)) {
	if v == nil {
		return
	}
	if !v.IsArray() {
		d.fail(ReasonWrongType, path)
		return
	}
	i := 0
	for e := v.Elements(); e.Next(); i++ {
		at := pointerIndex(path, i)
		if !e.Value.IsObject() {
			d.fail(ReasonWrongType, at)
			continue
		}
		each(e.Value, at)
	}
}

func (d *decoder) rejected() []RejectedTool {
	out := []RejectedTool{}
	d.objects(d.get(fRejectedTools, true), "/rejected_tools", func(v strictjson.Value, path string) {
		r := RejectedTool{ToolName: d.memberText(v, path, "tool_name", true)}
		e := v.Get("error")
		if e.Absent() || !e.IsObject() {
			d.failField(e, path+"/error")
		} else {
			r.Error = d.error(e, ErrExecutionFailed, path+"/error")
		}
		out = append(out, r)
	})
	return out
}

func (d *decoder) tools() []ToolInfo {
	out := []ToolInfo{}
	d.objects(d.get(fTools, true), "/tools", func(v strictjson.Value, path string) {
		t := ToolInfo{Name: d.memberText(v, path, "name", true), Description: d.memberText(v, path, "description", false)}
		t.Parameters = d.parameters(v.Get("parameters"), path+"/parameters")
		t.Streaming = d.memberFlag(v, path, "streaming")
		runtimes := v.Get("runtimes")
		if runtimes.Absent() {
			runtimes = nil
		}
		t.Runtimes = d.textList(runtimes, path+"/runtimes")
		out = append(out, t)
	})
	return out
}

func (d *decoder) parameters(v strictjson.Value, path string) []Parameter {
	if v.Absent() {
		return nil
	}
	var out []Parameter
	d.objects(v, path, func(v strictjson.Value, path string) {
		p := Parameter{Name: d.memberText(v, path, "name", true), Type: d.memberText(v, path, "type", true)}
		p.Description = d.memberText(v, path, "description", false)
		p.Required = d.memberFlag(v, path, "required")
		p.Properties = d.parameters(v.Get("properties"), path+"/properties")
		out = append(out, p)
	})
	return out
}
