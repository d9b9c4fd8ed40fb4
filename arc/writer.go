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
		w.key("parts")
		w.parts(m.Parts)
	}
	w.optText("timestamp", string(m.Timestamp))
	w.optText("agentId", m.AgentID)
	w.extra(at, m.Extra)
	w.close()
}

func (w *writer) parts(ps []Part) {
	w.b = append(w.b, '[')
	for i := range ps {
		if i > 0 {
			w.b = append(w.b, ',')
		}
		w.part(&ps[i])
	}
	w.b = append(w.b, ']')
}

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
	if a.Parts != nil {
		w.key("parts")
		w.parts(a.Parts)
	}
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
	if t.Messages != nil {
		w.key("messages")
		w.b = append(w.b, '[')
		for i := range t.Messages {
			if i > 0 {
				w.b = append(w.b, ',')
			}
			w.message(&t.Messages[i])
		}
		w.b = append(w.b, ']')
	}
	if t.Artifacts != nil {
		w.key("artifacts")
		w.b = append(w.b, '[')
		for i := range t.Artifacts {
			if i > 0 {
				w.b = append(w.b, ',')
			}
			w.artifact(&t.Artifacts[i])
		}
		w.b = append(w.b, ']')
	}
	w.optNumber("messageCount", t.MessageCount)
	w.optNumber("artifactCount", t.ArtifactCount)
	w.optText("completedAt", string(t.CompletedAt))
	w.optText("canceledAt", string(t.CanceledAt))
	w.optText("failedAt", string(t.FailedAt))
	w.optText("reason", t.Reason)
	if t.Error != nil {
		w.key("error")
		w.error(t.Error)
	}
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

func (w *writer) chat(c *Chat) {
	at := w.open()
	w.text("chatId", c.ID)
	w.optText("status", string(c.Status))
	if c.Message != nil {
		w.key("message")
		w.message(c.Message)
	}
	if c.Participants != nil {
		w.key("participants")
		w.strings(c.Participants)
	}
	w.optText("createdAt", string(c.CreatedAt))
	w.optText("updatedAt", string(c.UpdatedAt))
	w.optText("closedAt", string(c.ClosedAt))
	w.optText("reason", c.Reason)
	w.optRaw("metadata", c.Metadata)
	w.extra(at, c.Extra)
	w.close()
}

func (w *writer) strings(list []string) {
	w.b = append(w.b, '[')
	for i, s := range list {
		if i > 0 {
			w.b = append(w.b, ',')
		}
		w.b = strictjson.AppendString(w.b, s)
	}
	w.b = append(w.b, ']')
}

func (w *writer) events(list []Event) {
	w.b = append(w.b, '[')
	for i, e := range list {
		if i > 0 {
			w.b = append(w.b, ',')
		}
		w.b = strictjson.AppendString(w.b, e)
	}
	w.b = append(w.b, ']')
}

func (w *writer) subscription(s *Subscription) {
	at := w.open()
	w.text("subscriptionId", s.ID)
	w.text("taskId", s.TaskID)
	w.text("callbackUrl", s.CallbackURL)
	w.key("events")
	w.events(s.Events)
	w.text("createdAt", string(s.CreatedAt))
	w.flag("active", s.Active)
	w.extra(at, s.Extra)
	w.close()
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
