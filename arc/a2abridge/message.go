// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package a2abridge

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/a2aproject/a2a-go/v2/a2a"

	"github.com/fivewire/fivewire/arc"
)

// AuthRequired is the required input of a task that waits for credentials: arc.TaskRun.WaitInput with
// it makes the task auth-required for A2A clients.
const AuthRequired = "authentication required"

// rejection is the content of the details of a rejected task.
type rejection struct {
	State a2a.TaskState `json:"a2aState"`
}

// Reject returns the error with which a task handler refuses a task: rejected for A2A clients, failed
// for ARC clients.
func Reject(reason string) error {
	details, _ := json.Marshal(rejection{a2a.TaskStateRejected}) // always possible
	return &arc.Error{Code: arc.ErrTaskExecutionFailed, Message: reason, Details: details}
}

// extras are the members of an A2A message, artifact or part that ARC does not define.
type extras struct {
	MessageID  string         `json:"messageId,omitempty"`
	Extensions []string       `json:"extensions,omitempty"`
	References []a2a.TaskID   `json:"referenceTaskIds,omitempty"`
	Metadata   map[string]any `json:"metadata,omitempty"`
	URL        a2a.URL        `json:"url,omitempty"`
}

func (x extras) encode() (e arc.Extra, err error) {
	b, err := json.Marshal(x)
	if err == nil {
		err = json.Unmarshal(b, &e)
	}
	if len(e) == 0 {
		e = nil
	}
	return e, err
}

// decodeExtras reads the members that are in order, and ignores others.
func decodeExtras(e arc.Extra) (x extras) {
	for name, dst := range map[string]any{"messageId": &x.MessageID, "extensions": &x.Extensions,
		"referenceTaskIds": &x.References, "metadata": &x.Metadata, "url": &x.URL} {
		if text, ok := e[name]; ok {
			_ = decodeExact(text, dst)
		}
	}
	return x
}

// decodeExact decodes JSON with exact numbers.
func decodeExact(text []byte, dst any) error {
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	return d.Decode(dst)
}

// toMessage returns the ARC form of a message, of role user.
func toMessage(m *a2a.Message) (*arc.Message, error) {
	extra, err := extras{MessageID: m.ID, Extensions: m.Extensions, References: m.ReferenceTasks, Metadata: m.Metadata}.encode()
	if err != nil {
		return nil, err
	}
	parts, err := toParts(m.Parts)
	return &arc.Message{Role: arc.RoleUser, Parts: parts, Extra: extra}, err
}

func toParts(list a2a.ContentParts) ([]arc.Part, error) {
	parts := []arc.Part{}
	for i, p := range list {
		part, err := toPart(p)
		if err != nil {
			return nil, fmt.Errorf("part %d: %w", i, err)
		}
		parts = append(parts, part)
	}
	return parts, nil
}

var errNoContent = errors.New("no content")

func toPart(p *a2a.Part) (arc.Part, error) {
	if p == nil {
		return arc.Part{}, errNoContent
	}
	out := arc.Part{MIMEType: p.MediaType, Filename: p.Filename}
	x := extras{Metadata: p.Metadata}
	switch c := p.Content.(type) {
	case a2a.Text:
		out.Type, out.Content = arc.PartTypeText, string(c)
	case a2a.Raw:
		out.Type, out.Content = typeOf(p.MediaType), base64.StdEncoding.EncodeToString(c)
	case a2a.Data:
		b, err := json.Marshal(c.Value)
		if err != nil {
			return arc.Part{}, err
		}
		out.Type, out.Content = arc.PartTypeData, string(b)
	case a2a.URL:
		out.Type, x.URL = arc.PartTypeFile, c
	default:
		return arc.Part{}, errNoContent
	}
	var err error
	out.Extra, err = x.encode()
	return out, err
}

func typeOf(mediaType string) arc.PartType {
	switch {
	case strings.HasPrefix(mediaType, "image/"):
		return arc.PartTypeImage
	case strings.HasPrefix(mediaType, "audio/"):
		return arc.PartTypeAudio
	}
	return arc.PartTypeFile
}

// fromMessage returns the A2A form of message number n of a task.
func fromMessage(m *arc.Message, info a2a.TaskInfo, n int) *a2a.Message {
	x := decodeExtras(m.Extra)
	out := &a2a.Message{ID: x.MessageID, ContextID: info.ContextID, TaskID: info.TaskID, Role: a2a.MessageRoleUser,
		Extensions: x.Extensions, ReferenceTasks: x.References, Metadata: x.Metadata, Parts: fromParts(m.Parts)}
	if m.Role != arc.RoleUser {
		out.Role = a2a.MessageRoleAgent
	}
	if out.ID == "" {
		out.ID = fmt.Sprintf("%s-message-%d", info.TaskID, n)
	}
	return out
}

func fromArtifact(a *arc.Artifact) *a2a.Artifact {
	x := decodeExtras(a.Extra)
	if a.Metadata != nil {
		_ = decodeExact(a.Metadata, &x.Metadata) // an object
	}
	return &a2a.Artifact{ID: a2a.ArtifactID(a.ID), Name: a.Name, Description: a.Description, Extensions: x.Extensions,
		Metadata: x.Metadata, Parts: fromParts(a.Parts)}
}

func fromParts(parts []arc.Part) a2a.ContentParts {
	out := a2a.ContentParts{}
	for i := range parts {
		p := &parts[i]
		x := decodeExtras(p.Extra)
		part := &a2a.Part{MediaType: p.MIMEType, Filename: p.Filename, Metadata: x.Metadata, Content: a2a.Text(p.Content)}
		content, err := p.Bytes()
		var data any
		switch {
		case x.URL != "":
			part.Content = x.URL
		case err != nil: // not Base64: its text
		case p.Type == arc.PartTypeData || p.Data != nil:
			if decodeExact(content, &data) == nil {
				part.Content = a2a.Data{Value: data}
			}
		case p.Type != arc.PartTypeText || p.Encoding == "base64":
			part.Content = a2a.Raw(content)
		}
		out = append(out, part)
	}
	return out
}

// stateOf returns the A2A state of a task.
func stateOf(t *arc.Task) a2a.TaskState {
	switch t.Status {
	case arc.TaskSubmitted:
		return a2a.TaskStateSubmitted
	case arc.TaskWorking:
		return a2a.TaskStateWorking
	case arc.TaskInputRequired:
		if t.Reason == AuthRequired {
			return a2a.TaskStateAuthRequired
		}
		return a2a.TaskStateInputRequired
	case arc.TaskCompleted:
		return a2a.TaskStateCompleted
	case arc.TaskCanceled:
		return a2a.TaskStateCanceled
	}
	var r rejection
	if t.Error != nil && json.Unmarshal(t.Error.Details, &r) == nil && r.State == a2a.TaskStateRejected {
		return a2a.TaskStateRejected
	}
	return a2a.TaskStateFailed
}
