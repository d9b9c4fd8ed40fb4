// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package arc

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/fivewire/fivewire/internal/strictjson"
)

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
	Role      Role
	Parts     []Part
	Timestamp Timestamp // time of sending; empty if unknown
	AgentID   string    // which agent said it; optional, used by some peers
	Extra     Extra
}

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

// A Part is one piece of a message or artifact (section 7). Make one with
// [TextPart], [DataPart], [FilePart], [ImagePart] or [AudioPart]; of a type that
// this package does not know everything is kept.
type Part struct {
	Type     PartType
	Content  string          // text, or Base64 for files, images and audio
	Data     json.RawMessage // content other than a JSON string, as some peers send it
	MIMEType string
	Filename string // a label from outside, never to be used as a path

	// Members that some peers add. Numbers are exact; empty means absent.
	Size     json.Number
	Encoding string // base64, utf8 or binary
	Width    json.Number
	Height   json.Number
	Duration json.Number // seconds

	Extra Extra
}

// TextPart returns a part that holds text.
func TextPart(text string) Part { return Part{Type: PartTypeText, Content: text} }

// DataPart returns a part that holds v as JSON. It fails for values that have no
// JSON form, such as functions or infinite numbers.
func DataPart(v any) (Part, error) {
	b, err := strictjson.Encode(v)
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
	v, err := checkJSON(b)
	if err != nil {
		return fmt.Errorf("arc: data part: %w", err)
	}
	return strictjson.Decode(v, dst)
}

// An Artifact is something that a task produced (section 7).
type Artifact struct {
	ID          string
	Name        string
	Description string
	Parts       []Part
	MIMEType    string
	CreatedAt   Timestamp
	Version     string
	CreatedBy   string          // used by some peers
	Metadata    json.RawMessage // an object; used by some peers
	Extra       Extra
}
