// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package arc

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	"github.com/fivewire/fivewire/internal/strictjson"
)

// A writer appends JSON. It records the first error, which is always invalid raw
// JSON of the caller.
type writer struct {
	b   []byte
	err error
}

// open begins an object and returns where, for extra.
func (w *writer) open() int {
	w.b = append(w.b, '{')
	return len(w.b) - 1
}

func (w *writer) close() { w.b = append(w.b, '}') }

func (w *writer) key(name string) {
	if w.b[len(w.b)-1] != '{' {
		w.b = append(w.b, ',')
	}
	w.b = append(w.b, '"')
	w.b = append(w.b, name...)
	w.b = append(w.b, '"', ':')
}

func (w *writer) text(name, s string) {
	w.key(name)
	w.b = strictjson.AppendString(w.b, s)
}

func (w *writer) optText(name, s string) {
	if s != "" {
		w.text(name, s)
	}
}

func (w *writer) flag(name string, v bool) {
	w.key(name)
	if v {
		w.b = append(w.b, "true"...)
	} else {
		w.b = append(w.b, "false"...)
	}
}

// raw writes JSON of the caller's, checked and without white space.
func (w *writer) raw(name string, v []byte) {
	w.key(name)
	w.value(name, v)
}

func (w *writer) value(name string, v []byte) {
	c, err := checkJSON(v)
	if err != nil {
		if w.err == nil {
			w.err = fmt.Errorf("arc: %s: %w", name, err)
		}
		return
	}
	w.b = strictjson.AppendCompact(w.b, c)
}

func (w *writer) optRaw(name string, v []byte) {
	if v != nil {
		w.raw(name, v)
	}
}

func (w *writer) optNumber(name string, n json.Number) {
	if n != "" {
		w.raw(name, []byte(n))
	}
}

// extra writes the members without a field, and values that their field cannot hold,
// into the object that starts at start. A set field has precedence.
func (w *writer) extra(start int, e Extra) {
	if len(e) == 0 {
		return
	}
	written := map[string]bool{}
	if w.err == nil {
		for m := strictjson.Value(append(slices.Clone(w.b[start:]), '}')).Members(); m.Next(); {
			written[string(m.Name)] = true
		}
	}
	for _, name := range slices.Sorted(maps.Keys(e)) {
		if written[name] {
			continue
		}
		if w.b[len(w.b)-1] != '{' {
			w.b = append(w.b, ',')
		}
		w.b = append(strictjson.AppendString(w.b, name), ':')
		w.value(name, e[name])
	}
}

func (w *writer) message(m *Message) {
	at := w.open()
	w.text("role", string(m.Role))
	if _, kept := m.Extra["parts"]; !kept {
		array(w, "parts", m.Parts, (*writer).part)
	}
	w.optText("timestamp", string(m.Timestamp))
	w.optText("agentId", m.AgentID)
	w.extra(at, m.Extra)
	w.close()
}

// array writes an array.
func array[T any](w *writer, name string, items []T, write func(*writer, *T)) {
	w.key(name)
	w.b = append(w.b, '[')
	for i := range items {
		if i > 0 {
			w.b = append(w.b, ',')
		}
		write(w, &items[i])
	}
	w.b = append(w.b, ']')
}

// optArray writes an array that is not nil.
func optArray[T any](w *writer, name string, items []T, write func(*writer, *T)) {
	if items != nil {
		array(w, name, items, write)
	}
}

// element writes a text of an array.
func element[T ~string](w *writer, s *T) { w.b = strictjson.AppendString(w.b, *s) }

func (w *writer) part(p *Part) {
	at := w.open()
	if _, kept := p.Extra["type"]; !kept {
		w.text("type", string(p.Type))
	}
	if p.Data != nil {
		w.raw("content", p.Data)
	} else if _, kept := p.Extra["content"]; !kept {
		w.text("content", p.Content)
	}
	w.optText("mimeType", p.MIMEType)
	w.optText("filename", p.Filename)
	w.optNumber("size", p.Size)
	w.optText("encoding", p.Encoding)
	w.optNumber("width", p.Width)
	w.optNumber("height", p.Height)
	w.optNumber("duration", p.Duration)
	w.extra(at, p.Extra)
	w.close()
}

func (w *writer) artifact(a *Artifact) {
	at := w.open()
	w.text("artifactId", a.ID)
	w.optText("name", a.Name)
	w.optText("description", a.Description)
	optArray(w, "parts", a.Parts, (*writer).part)
	w.optText("mimeType", a.MIMEType)
	w.optText("createdAt", string(a.CreatedAt))
	w.optText("version", a.Version)
	w.optText("createdBy", a.CreatedBy)
	w.optRaw("metadata", a.Metadata)
	w.extra(at, a.Extra)
	w.close()
}

func (w *writer) task(t *Task) {
	at := w.open()
	w.text("taskId", t.ID)
	w.text("status", string(t.Status))
	w.optText("createdAt", string(t.CreatedAt))
	w.optText("updatedAt", string(t.UpdatedAt))
	optArray(w, "messages", t.Messages, (*writer).message)
	optArray(w, "artifacts", t.Artifacts, (*writer).artifact)
	w.optNumber("messageCount", t.MessageCount)
	w.optNumber("artifactCount", t.ArtifactCount)
	w.optText("completedAt", string(t.CompletedAt))
	w.optText("canceledAt", string(t.CanceledAt))
	w.optText("failedAt", string(t.FailedAt))
	w.optText("reason", t.Reason)
	w.optError(t.Error)
	w.optText("priority", string(t.Priority))
	w.optText("assignedAgent", t.AssignedAgent)
	w.optRaw("metadata", t.Metadata)
	w.extra(at, t.Extra)
	w.close()
}

func (w *writer) error(e *Error) {
	w.open()
	w.key("code")
	w.b = appendInt(w.b, int64(e.Code))
	w.text("message", e.Message)
	w.optRaw("details", e.Details)
	w.close()
}

func (w *writer) optError(e *Error) {
	if e != nil {
		w.key("error")
		w.error(e)
	}
}

func (w *writer) chat(c *Chat) {
	at := w.open()
	w.text("chatId", c.ID)
	w.optText("status", string(c.Status))
	if c.Message != nil {
		w.key("message")
		w.message(c.Message)
	}
	optArray(w, "participants", c.Participants, element)
	w.optText("createdAt", string(c.CreatedAt))
	w.optText("updatedAt", string(c.UpdatedAt))
	w.optText("closedAt", string(c.ClosedAt))
	w.optText("reason", c.Reason)
	w.optRaw("metadata", c.Metadata)
	w.extra(at, c.Extra)
	w.close()
}

func (w *writer) subscription(s *Subscription) {
	at := w.open()
	w.subscriptionMembers(s)
	w.extra(at, s.Extra)
	w.close()
}

// subscriptionMembers writes all members but the extra ones.
func (w *writer) subscriptionMembers(s *Subscription) {
	w.text("subscriptionId", s.ID)
	w.text("taskId", s.TaskID)
	w.text("callbackUrl", s.CallbackURL)
	array(w, "events", s.Events, element)
	w.text("createdAt", string(s.CreatedAt))
	w.flag("active", s.Active)
}

// encode runs write on a fresh writer and returns its bytes.
func encode(write func(w *writer)) ([]byte, error) {
	w := writer{b: make([]byte, 0, 128)}
	write(&w)
	if w.err != nil {
		return nil, w.err
	}
	return w.b, nil
}
