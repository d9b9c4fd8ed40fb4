// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"encoding/json"
	"slices"
	"strconv"

	"github.com/fivewire/fivewire/internal/jsonmap"
	"github.com/fivewire/fivewire/internal/strictjson"
)

// Limits of the members that name things (section d.3 of the reference).
const (
	MaxID          = 256
	MaxCallbackURL = 2048
)

// The params of the standard methods as a server checks them. Absent members have their defaults, and unknown ones are
// kept.
type (
	CreateTask struct {
		InitialMessage Message         `json:"initialMessage"`
		Priority       priority        `json:"priority,omitempty" jsonmap:"default=NORMAL"`
		Metadata       json.RawMessage `json:"metadata,omitempty" jsonmap:"object,unset"`
		Rest           jsonmap.Members
	}
	SendTask struct {
		TaskID  string  `json:"taskId"`
		Message Message `json:"message"`
		Rest    jsonmap.Members
	}
	TaskInfo struct {
		TaskID         string `json:"taskId"`
		OmitMessages   bool   `json:"includeMessages,omitempty" jsonmap:"always,not"`
		OmitArtifacts  bool   `json:"includeArtifacts,omitempty" jsonmap:"always,not"`
		MessagesAfter  *int64 `json:"messagesAfter,omitempty"`
		MessagesLimit  *int64 `json:"messagesLimit,omitempty"`
		ArtifactsAfter *int64 `json:"artifactsAfter,omitempty"`
		ArtifactsLimit *int64 `json:"artifactsLimit,omitempty"`
		Rest           jsonmap.Members
	}
	CancelTask struct {
		TaskID string  `json:"taskId"`
		Reason *string `json:"reason,omitempty"`
		Rest   jsonmap.Members
	}
	Subscribe struct {
		TaskID      string   `json:"taskId"`
		CallbackURL string   `json:"callbackUrl"`
		Events      []string `json:"events,omitempty" jsonmap:"always"`
		Rest        jsonmap.Members
	}
	StartChat struct {
		InitialMessage Message         `json:"initialMessage"`
		ChatID         *string         `json:"chatId,omitempty"`
		Stream         bool            `json:"stream,omitempty" jsonmap:"always"`
		Metadata       json.RawMessage `json:"metadata,omitempty" jsonmap:"object,unset"`
		Rest           jsonmap.Members
	}
	ChatMessage struct {
		ChatID  string  `json:"chatId"`
		Message Message `json:"message"`
		Stream  bool    `json:"stream,omitempty" jsonmap:"always"`
		Rest    jsonmap.Members
	}
	EndChat struct {
		ChatID string  `json:"chatId"`
		Reason *string `json:"reason,omitempty"`
		Rest   jsonmap.Members
	}
	Notification struct {
		TaskID    string `json:"taskId"`
		Event     string `json:"event"`
		Timestamp string `json:"timestamp"`
		Data      Data   `json:"data"`
		Rest      jsonmap.Members
	}
)

// Data are those of a notification (ARC-112 to ARC-136).
type Data struct {
	Status            string          `json:"status"`
	Message           string          `json:"message"`
	Priority          *string         `json:"priority,omitempty"`
	AssignedAgent     *string         `json:"assignedAgent,omitempty"`
	CreatedAt         *string         `json:"createdAt,omitempty"`
	StartedAt         *string         `json:"startedAt,omitempty"`
	PausedAt          *string         `json:"pausedAt,omitempty"`
	ResumedAt         *string         `json:"resumedAt,omitempty"`
	CompletedAt       *string         `json:"completedAt,omitempty"`
	FailedAt          *string         `json:"failedAt,omitempty"`
	CanceledAt        *string         `json:"canceledAt,omitempty"`
	ChangedAt         *string         `json:"changedAt,omitempty"`
	Duration          json.Number     `json:"duration,omitempty"`
	PauseDuration     json.Number     `json:"pauseDuration,omitempty"`
	EstimatedDuration json.Number     `json:"estimatedDuration,omitempty"`
	ArtifactCount     json.Number     `json:"artifactCount,omitempty"`
	MessageCount      json.Number     `json:"messageCount,omitempty"`
	CanceledBy        *string         `json:"canceledBy,omitempty"`
	Reason            *string         `json:"reason,omitempty"`
	RequiredInput     *string         `json:"requiredInput,omitempty"`
	PreviousStatus    *string         `json:"previousStatus,omitempty"`
	Error             json.RawMessage `json:"error,omitempty" jsonmap:"object,unset"`
	MessageContent    *Message        `json:"messageContent,omitempty"`
	Artifact          *Artifact       `json:"artifact,omitempty"`
	Rest              jsonmap.Members
}

// A Message is a message of a request.
type Message struct {
	Role      string  `json:"role"`
	Parts     []Part  `json:"parts"`
	Timestamp *string `json:"timestamp,omitempty"`
	Rest      jsonmap.Members
}

// A Part is a part of a message of a request.
type Part struct {
	Type     string       `json:"type"`
	Content  jsonmap.JSON `json:"content"`
	MIMEType *string      `json:"mimeType,omitempty"`
	Filename *string      `json:"filename,omitempty"`
	Rest     jsonmap.Members
}

// An Artifact is one in a notification. Its parts are output of the peer and not checked.
type Artifact struct {
	ID    string         `json:"artifactId"`
	Name  *string        `json:"name,omitempty"`
	Parts []jsonmap.JSON `json:"parts,omitzero"`
	Rest  jsonmap.Members
}

// invalid refuses the value of a member.
func invalid(issue string) *jsonmap.Fault {
	return &jsonmap.Fault{Reason: jsonmap.Invalid, Want: issue}
}

func invalidUnless(ok bool, issue string) *jsonmap.Fault {
	if ok {
		return nil
	}
	return invalid(issue)
}

func checkID(s string, limit int) *jsonmap.Fault {
	switch {
	case s == "":
		return invalid("must not be empty")
	case len(s) > limit:
		return invalid("is too long")
	case HasControl(s):
		return invalid("must not hold control characters")
	}
	return nil
}

// badPriority is the reason of a fault with a separate code (ARC-D57).
const badPriority jsonmap.Reason = "bad priority"

type priority string

// CheckMember checks the priority.
func (p *CreateTask) CheckMember(name string) *jsonmap.Fault {
	switch p.Priority {
	case "LOW", "NORMAL", "HIGH", "URGENT":
		return nil
	}
	if name != "priority" {
		return nil
	}
	return &jsonmap.Fault{Reason: badPriority, Want: "must be LOW, NORMAL, HIGH or URGENT"}
}

// CheckMember checks the id of the task.
func (p *SendTask) CheckMember(name string) *jsonmap.Fault {
	return checkNamed(name, "taskId", p.TaskID)
}

// CheckMember checks the id of the task.
func (p *CancelTask) CheckMember(name string) *jsonmap.Fault {
	return checkNamed(name, "taskId", p.TaskID)
}

// CheckMember checks the id of the chat.
func (p *ChatMessage) CheckMember(name string) *jsonmap.Fault {
	return checkNamed(name, "chatId", p.ChatID)
}

// CheckMember checks the id of the chat.
func (p *EndChat) CheckMember(name string) *jsonmap.Fault {
	return checkNamed(name, "chatId", p.ChatID)
}

func checkNamed(name, member, id string) *jsonmap.Fault {
	if name != member {
		return nil
	}
	return checkID(id, MaxID)
}

// CheckMember checks the id of the chat.
func (p *StartChat) CheckMember(name string) *jsonmap.Fault {
	if p.ChatID == nil {
		return nil
	}
	return checkNamed(name, "chatId", *p.ChatID)
}

// CheckMember checks the id of the task and the numbers of a page (ARC-D79).
func (p *TaskInfo) CheckMember(name string) *jsonmap.Fault {
	n, low := (*int64)(nil), int64(0)
	switch name {
	case "taskId":
		return checkID(p.TaskID, MaxID)
	case "messagesAfter":
		n = p.MessagesAfter
	case "messagesLimit":
		n, low = p.MessagesLimit, 1
	case "artifactsAfter":
		n = p.ArtifactsAfter
	case "artifactsLimit":
		n, low = p.ArtifactsLimit, 1
	}
	if n == nil || *n >= low && *n < 1<<53 {
		return nil
	}
	return invalid("must be an integer of at least " + strconv.FormatInt(low, 10))
}

// IsPaged reports whether the request is for a page.
func (p *TaskInfo) IsPaged() bool {
	return p.MessagesAfter != nil || p.MessagesLimit != nil || p.ArtifactsAfter != nil || p.ArtifactsLimit != nil
}

// events are those of section 6.
var events = [...]string{"TASK_CREATED", "TASK_STARTED", "TASK_PAUSED", "TASK_RESUMED", "TASK_COMPLETED", "TASK_FAILED",
	"TASK_CANCELED", "NEW_MESSAGE", "NEW_ARTIFACT", "STATUS_CHANGE"}

// Events returns all events.
func Events() []string { return slices.Clone(events[:]) }

// CheckMember checks the names, and removes repeated events (ARC-D39).
func (p *Subscribe) CheckMember(name string) *jsonmap.Fault {
	switch name {
	case "taskId":
		return checkID(p.TaskID, MaxID)
	case "callbackUrl":
		return checkID(p.CallbackURL, MaxCallbackURL)
	}
	list := make([]string, 0, max(len(p.Events), 2))
	for i, ev := range p.Events {
		if !slices.Contains(events[:], ev) {
			return invalid("is no event").At(i)
		}
		if !slices.Contains(list, ev) {
			list = append(list, ev)
		}
	}
	if len(list) == 0 {
		list = append(list, "TASK_COMPLETED", "TASK_FAILED")
	}
	p.Events = list
	return nil
}

// CheckMember checks the id, the event and the time.
func (p *Notification) CheckMember(name string) *jsonmap.Fault {
	switch name {
	case "taskId":
		return checkID(p.TaskID, MaxID)
	case "event":
		return invalidUnless(slices.Contains(events[:], p.Event), "is no event")
	case "timestamp":
		return checkTime(&p.Timestamp)
	}
	return nil
}

func checkTime(s *string) *jsonmap.Fault {
	if s == nil {
		return nil
	}
	_, err := ParseTime(*s)
	return invalidUnless(err == nil, "must be an RFC 3339 time")
}

// CheckMember checks times and numbers.
func (d *Data) CheckMember(name string) *jsonmap.Fault {
	for i, member := range [...]string{"createdAt", "startedAt", "pausedAt", "resumedAt", "completedAt", "failedAt", "canceledAt", "changedAt"} {
		if name == member {
			return checkTime([...]*string{d.CreatedAt, d.StartedAt, d.PausedAt, d.ResumedAt, d.CompletedAt, d.FailedAt, d.CanceledAt, d.ChangedAt}[i])
		}
	}
	for i, member := range [...]string{"duration", "pauseDuration", "estimatedDuration", "artifactCount", "messageCount"} {
		if name == member {
			n := [...]json.Number{d.Duration, d.PauseDuration, d.EstimatedDuration, d.ArtifactCount, d.MessageCount}[i]
			return invalidUnless(n == "" || n[0] != '-' || strictjson.EqualNumbers(strictjson.Value(n), strictjson.Value("0")), "must not be negative")
		}
	}
	return nil
}

// CheckMember checks a message.
func (m *Message) CheckMember(name string) *jsonmap.Fault {
	switch name {
	case "role":
		return invalidUnless(m.Role == "user" || m.Role == "agent" || m.Role == "system", "must be user, agent or system")
	case "parts":
		return invalidUnless(len(m.Parts) > 0, "must not be empty")
	}
	return checkTime(m.Timestamp)
}

// PartType returns the name of the specification for one of the short names that stand all over the site of the
// protocol (ARC-D59).
func PartType(s string) string {
	switch s {
	case "text":
		return "TextPart"
	case "data":
		return "DataPart"
	case "file":
		return "FilePart"
	case "image":
		return "ImagePart"
	case "audio":
		return "AudioPart"
	}
	return s
}

// CheckMember checks type and content of a part, and replaces a short name of the type.
func (p *Part) CheckMember(name string) *jsonmap.Fault {
	switch name {
	case "type":
		p.Type = PartType(p.Type)
		switch p.Type {
		case "TextPart", "DataPart", "FilePart", "ImagePart", "AudioPart":
			return nil
		}
		return invalid("must be TextPart, DataPart, FilePart, ImagePart or AudioPart")
	case "content":
		kind := p.Content.Value().Kind()
		if p.Type == "DataPart" {
			return invalidUnless(kind == '"' || kind == '{' || kind == '[', "must be a string, an object or an array")
		}
		return invalidUnless(kind == '"', "must be a string")
	}
	return nil
}

// CheckMember checks the id.
func (a *Artifact) CheckMember(name string) *jsonmap.Fault {
	return invalidUnless(name != "artifactId" || a.ID != "", "must not be empty")
}

// Read reads the params of a standard method.
func Read[T any](text []byte) (*T, error) {
	p := new(T)
	if err := ReadInto(text, p); err != nil {
		return nil, err
	}
	return p, nil
}

// ReadInto is [Read] into a pointer to params.
func ReadInto(text []byte, p any) error {
	f, err := Decode(text, p)
	if f == nil && err == nil {
		return nil
	}
	code, field, issue := int64(InvalidParams), "params", "must be an object"
	if f != nil && f.Path != "" {
		field, issue = f.Path, f.Want
		switch f.Reason {
		case badPriority:
			code = InvalidTaskPriority
		case jsonmap.Missing:
			issue = "is required"
		case jsonmap.WrongType, jsonmap.NotInteger, jsonmap.OutOfRange:
			issue = "must be of type " + f.Want
		}
	}
	return FieldFault(code, field, issue)
}

// JSON appends params, a message or an artifact as JSON.
func JSON(dst []byte, v any) []byte {
	b, _ := jsonmap.Append(dst, v) // what was read can be written
	return b
}

// normalizers normalize the params of the standard methods.
var normalizers = map[string]func(params []byte) ([]byte, error){
	"task.create":       normalize[CreateTask],
	"task.send":         normalize[SendTask],
	"task.info":         normalize[TaskInfo],
	"task.cancel":       normalize[CancelTask],
	"task.subscribe":    normalize[Subscribe],
	"task.notification": normalize[Notification],
	"chat.start":        normalize[StartChat],
	"chat.message":      normalize[ChatMessage],
	"chat.end":          normalize[EndChat],
}

// Normalize checks the params of a method as a server does before it calls a handler, and returns them with defaults
// added, absent members that were given as null removed, and short names replaced; what the specification does not
// define stays. The params of a method that is not one of the nine may be any object and pass unchanged.
func Normalize(method string, params []byte) ([]byte, error) {
	if f := normalizers[method]; f != nil {
		return f(params)
	}
	v, err := Check(params)
	if err != nil || !v.IsObject() {
		return nil, FieldFault(InvalidParams, "params", "must be an object")
	}
	return v, nil
}

func normalize[T any](params []byte) ([]byte, error) {
	p, err := Read[T](params)
	if err != nil {
		return nil, err
	}
	return JSON(nil, p), nil
}
