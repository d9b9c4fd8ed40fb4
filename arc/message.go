// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package arc

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/fivewire/fivewire/arc/internal/wire"
	"github.com/fivewire/fivewire/internal/guard"
	"github.com/fivewire/fivewire/internal/jsonmap"
	"github.com/fivewire/fivewire/internal/randid"
	"github.com/fivewire/fivewire/internal/strictjson"
)

// ProtocolVersion is the protocol version that this package speaks.
const ProtocolVersion = "1.0"

// The media types of the HTTP binding (ARC-004, ARC-005).
const (
	MediaType       = "application/arc+json"
	mediaTypeStream = "text/event-stream"
)

// The nine standard methods (ARC-070).
const (
	MethodTaskCreate       = "task.create"
	MethodTaskSend         = "task.send"
	MethodTaskInfo         = "task.info"
	MethodTaskCancel       = "task.cancel"
	MethodTaskSubscribe    = "task.subscribe"
	MethodTaskNotification = "task.notification"
	MethodChatStart        = "chat.start"
	MethodChatMessage      = "chat.message"
	MethodChatEnd          = "chat.end"
)

// An ID correlates a response with its request. It is the JSON token itself, a
// string with its quotes or a number, so that it goes back byte for byte as it
// came (ARC-D02). The zero value stands for no id.
type ID string

// NewID returns a fresh random id.
func NewID() ID {
	var array [32]byte
	return ID(append(randid.Append(append(array[:0], `"req-`...)), '"'))
}

// Equal reports whether two ids are the same: strings by their text, numbers by
// their exact decimal value, never a string and a number.
func (id ID) Equal(other ID) bool {
	if id == other {
		return true
	}
	a, err1 := wire.Check([]byte(id))
	b, err2 := wire.Check([]byte(other))
	if err1 != nil || err2 != nil || a.Kind() != b.Kind() {
		return false
	}
	switch a.Kind() {
	case '"':
		x, _ := a.Text()
		y, _ := b.Text()
		return x == y
	case '0':
		return strictjson.EqualNumbers(a, b)
	}
	return false
}

// A Request asks an agent to run a method (section 3).
type Request struct {
	ID           ID
	Method       string
	RequestAgent string          // the calling agent
	TargetAgent  string          // the requested agent or group
	TraceID      string          // the workflow; empty means none
	Params       json.RawMessage // an object

	// Extra holds members that the specification does not define. They are
	// read and written, and mean nothing to this package (ARC-014).
	Extra Extra
}

// A Response answers a [Request] (section 3). Exactly one of Result and Error is
// set.
type Response struct {
	ID            ID // "null" where the peer could not read the request's id
	ResponseAgent string
	TargetAgent   string
	TraceID       string
	Result        json.RawMessage // an object
	Error         *Error

	Extra Extra
}

// Extra holds the members of an object that this package does not know, by
// name, as JSON text.
type Extra map[string]json.RawMessage

// A Timestamp is a time in a message: RFC 3339 text. A received time keeps its
// text (ARC-D63). The zero value means absent.
type Timestamp string

// NewTimestamp returns t in UTC, its fraction without trailing zeros.
func NewTimestamp(t time.Time) Timestamp {
	return Timestamp(t.UTC().Format(time.RFC3339Nano))
}

// Time returns the moment, in UTC. It accepts what peers send: any offset or none
// (then UTC), lower-case t and z, and fractions of any length, of which nine
// digits count.
func (ts Timestamp) Time() (time.Time, error) { return wire.ParseTime(string(ts)) }

// A Role is the sender of a [Message].
type Role string

// The roles of section 7.
const (
	RoleUser   Role = "user"
	RoleAgent  Role = "agent"
	RoleSystem Role = "system"
)

// A Message is one turn of a conversation (section 7).
type Message struct {
	Role      Role      `json:"role"`
	Parts     []Part    `json:"parts"`
	Timestamp Timestamp `json:"timestamp,omitempty"` // time of sending; empty if unknown
	AgentID   string    `json:"agentId,omitempty"`   // which agent said it; optional, used by some peers
	Extra     Extra     `json:"-" jsonmap:"extra"`
}

// MarshalJSON writes the message as section 7 has it.
func (m Message) MarshalJSON() ([]byte, error) { return jsonmap.Append(nil, &m) }

// UnmarshalJSON reads a message of a peer.
func (m *Message) UnmarshalJSON(b []byte) error { return unmarshal(b, m) }

// UserText returns a message of role user with one text part.
func UserText(text string) *Message { return &Message{Role: RoleUser, Parts: []Part{TextPart(text)}} }

// AgentText returns a message of role agent with one text part.
func AgentText(text string) *Message { return &Message{Role: RoleAgent, Parts: []Part{TextPart(text)}} }

// Text returns the contents of all text parts, joined without a separator. That
// is also how the text of a stream comes together (ARC-D29).
func (m *Message) Text() string {
	if m == nil {
		return ""
	}
	if len(m.Parts) == 1 {
		return m.Parts[0].text()
	}
	var b strings.Builder
	for i := range m.Parts {
		b.WriteString(m.Parts[i].text())
	}
	return b.String()
}

// A PartType is the type of the content of a [Part].
type PartType string

// The part types of section 7.
const (
	PartTypeText  PartType = "TextPart"
	PartTypeData  PartType = "DataPart"
	PartTypeFile  PartType = "FilePart"
	PartTypeImage PartType = "ImagePart"
	PartTypeAudio PartType = "AudioPart"
)

// UnmarshalText reads the short names that deployed peers use as those of the specification (ARC-D59).
func (t *PartType) UnmarshalText(b []byte) error {
	if string(b) == string(PartTypeText) {
		*t = PartTypeText
		return nil
	}
	*t = PartType(wire.PartType(string(b)))
	return nil
}

// A Part is one piece of a message or artifact (section 7). Make one with
// [TextPart], [DataPart], [FilePart], [ImagePart] or [AudioPart]; of a type that
// this package does not know everything is kept.
type Part struct {
	Type     PartType        `json:"type"`
	Content  string          `json:"content"`                   // text, or Base64 for files, images and audio
	Data     json.RawMessage `json:"-" jsonmap:"other=content"` // content other than a JSON string, as some peers send it
	MIMEType string          `json:"mimeType,omitempty"`
	Filename string          `json:"filename,omitempty"` // a label from outside, never to be used as a path

	// Members that some peers add. Numbers are exact; empty means absent.
	Size     json.Number `json:"size,omitempty"`
	Encoding string      `json:"encoding,omitempty"` // base64, utf8 or binary
	Width    json.Number `json:"width,omitempty"`
	Height   json.Number `json:"height,omitempty"`
	Duration json.Number `json:"duration,omitempty"` // seconds

	Extra Extra `json:"-" jsonmap:"extra"`
}

// MarshalJSON writes the part as section 7 has it.
func (p Part) MarshalJSON() ([]byte, error) { return jsonmap.Append(nil, &p) }

// UnmarshalJSON reads a part of a peer.
func (p *Part) UnmarshalJSON(b []byte) error { return unmarshal(b, p) }

// TextPart returns a part that holds text.
func TextPart(text string) Part { return Part{Type: PartTypeText, Content: text} }

// DataPart returns a part that holds v as JSON. It fails for values that have no
// JSON form, such as functions or infinite numbers.
func DataPart(v any) (Part, error) {
	b, err := guard.Encode(v)
	if err != nil {
		return Part{}, fmt.Errorf("arc: data part: %w", err)
	}
	return Part{Type: PartTypeData, Content: string(b), MIMEType: "application/json"}, nil
}

// FilePart returns a part that holds a file.
func FilePart(filename, mimeType string, content []byte) Part {
	p := binaryPart(PartTypeFile, mimeType, content)
	p.Filename = filename
	return p
}

// ImagePart returns a part that holds an image.
func ImagePart(mimeType string, content []byte) Part {
	return binaryPart(PartTypeImage, mimeType, content)
}

// AudioPart returns a part that holds sound.
func AudioPart(mimeType string, content []byte) Part {
	return binaryPart(PartTypeAudio, mimeType, content)
}

func binaryPart(t PartType, mimeType string, content []byte) Part {
	if mimeType == "" {
		mimeType = "application/octet-stream"
	}
	return Part{Type: t, Content: base64.StdEncoding.EncodeToString(content), MIMEType: mimeType}
}

func (p *Part) text() string {
	if p.Type != PartTypeText {
		return ""
	}
	return p.Content
}

// errBase64 reports content that should be Base64 and is not.
var errBase64 = errors.New("arc: part content is not Base64")

// Bytes returns the content of the part: decoded Base64 for files, images, audio
// and parts with that Encoding; otherwise the text, or the JSON text of inline
// data (ARC-D60).
func (p *Part) Bytes() ([]byte, error) {
	switch {
	case p.Data != nil:
		return p.Data, nil
	case p.Type == PartTypeFile, p.Type == PartTypeImage, p.Type == PartTypeAudio, p.Encoding == "base64":
		return decodeBase64(p.Content)
	}
	return []byte(p.Content), nil
}

// decodeBase64 reads the standard or the URL alphabet, but not both at once, with
// or without padding, and skips white space.
func decodeBase64(s string) ([]byte, error) {
	if strings.ContainsAny(s, " \t\r\n") {
		s = strings.Map(func(r rune) rune {
			if r == ' ' || r == '\t' || r == '\r' || r == '\n' {
				return -1
			}
			return r
		}, s)
	}
	enc := base64.RawStdEncoding
	if strings.ContainsAny(s, "-_") {
		enc = base64.RawURLEncoding
	}
	if n := len(s) - len(strings.TrimRight(s, "=")); n > 0 {
		if n > 2 || len(s)%4 != 0 {
			return nil, errBase64
		}
		s = s[:len(s)-n]
	}
	b, err := enc.DecodeString(s)
	if err != nil {
		return nil, errBase64
	}
	return b, nil
}

// DecodeData stores the JSON of a data part in what dst points to. Member names
// must match exactly; numbers that meet an empty interface stay exact as
// [json.Number].
func (p *Part) DecodeData(dst any) error {
	b, err := p.Bytes()
	if err != nil {
		return err
	}
	v, err := wire.Check(b)
	if err != nil {
		return fmt.Errorf("arc: data part: %w", err)
	}
	return strictjson.Decode(v, dst)
}

// An Artifact is something that a task produced (section 7).
type Artifact struct {
	ID          string          `json:"artifactId"`
	Name        string          `json:"name,omitempty"`
	Description string          `json:"description,omitempty"`
	Parts       []Part          `json:"parts,omitzero"`
	MIMEType    string          `json:"mimeType,omitempty"`
	CreatedAt   Timestamp       `json:"createdAt,omitempty"`
	Version     string          `json:"version,omitempty"`
	CreatedBy   string          `json:"createdBy,omitempty"`                       // used by some peers
	Metadata    json.RawMessage `json:"metadata,omitempty" jsonmap:"object,unset"` // used by some peers
	Extra       Extra           `json:"-" jsonmap:"extra"`
}

// MarshalJSON writes the artifact as section 7 has it.
func (a Artifact) MarshalJSON() ([]byte, error) { return jsonmap.Append(nil, &a) }

// UnmarshalJSON reads an artifact of a peer.
func (a *Artifact) UnmarshalJSON(b []byte) error { return unmarshal(b, a) }

var errShape = errors.New("arc: JSON of another shape")

// unmarshal reads an object of a peer. Decoding is strict about JSON and lenient about ARC.
func unmarshal[T any](b []byte, dst *T) error {
	got, err := read[T](b)
	if err == nil {
		*dst = *got
	}
	return err
}

// unmarshalNamed is unmarshal for an object with an id and a second member, both of which are strings.
func unmarshalNamed[T any](b []byte, dst *T, id, second string) error {
	v, err := wire.Check(b)
	if err != nil {
		return err
	}
	got, ok := readMember[T](v, id, second)
	if !ok {
		return errShape
	}
	*dst = *got
	return nil
}

// read reads an object of a peer. It shares no memory with the text.
func read[T any](b []byte) (*T, error) {
	got := new(T)
	return got, readInto(b, got)
}

func readInto(b []byte, dst any) error {
	f, err := wire.Decode(b, dst)
	if err == nil && f != nil {
		err = errShape
	}
	return err
}

// isText reports whether a part has text and nothing else.
func (p *Part) isText() bool {
	return p.Type == PartTypeText && p.Extra == nil && p.Data == nil && p.MIMEType == "" && p.Encoding == "" && p.Filename == "" &&
		p.Size == "" && p.Width == "" && p.Height == "" && p.Duration == ""
}
