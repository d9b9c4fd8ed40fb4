// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package arc

import "github.com/fivewire/fivewire/internal/strictjson"

var messageMembers = []string{"role", "parts", "timestamp", "agentId"}

// message reads a message, or returns nil for a value that is not an object.
func (r *reader) message(v strictjson.Value) *Message {
	m := &Message{}
	if !r.messageInto(m, v) {
		return nil
	}
	return m
}

// messageInto reads a message into m, whose Parts may bring memory to use.
func (r *reader) messageInto(m *Message, v strictjson.Value) bool {
	f := r.object(v, messageMembers)
	defer f.done()
	if !v.IsObject() {
		return false
	}
	m.Role = f.role(0)
	m.Parts = f.parts(1, m.Parts)
	m.Timestamp = f.time(2)
	m.AgentID = f.peerText(3)
	m.Extra = f.extra
	return true
}

// role reads a required role. The usual ones need no memory.
func (f *fields) role(i int) Role {
	switch string(f.vals[i]) {
	case `"user"`:
		return RoleUser
	case `"agent"`:
		return RoleAgent
	case `"system"`:
		return RoleSystem
	}
	role := Role(f.needText(i))
	if role != RoleUser && role != RoleAgent && role != RoleSystem {
		f.r.fail(f.names[i], "must be user, agent or system")
	}
	return role
}

// parts reads the required array of parts into room, if there is any.
func (f *fields) parts(i int, dst []Part) []Part {
	if !f.require(i) {
		return nil
	}
	v := f.vals[i]
	if !v.IsArray() {
		f.misfit(i, "must be an array")
		return nil
	}
	f.r.enter(f.names[i])
	ps, ok := f.r.partList(v, dst)
	f.r.pop()
	if !ok {
		f.keep(f.names[i], v)
		return nil
	}
	if len(ps) == 0 {
		f.r.fail(f.names[i], "must not be empty")
	}
	return ps
}

// partList reads an array of parts. A lenient reader gives up on one that holds
// anything but objects.
func (r *reader) partList(v strictjson.Value, dst []Part) (ps []Part, ok bool) {
	ps = dst
	if ps == nil {
		ps = []Part{}
	}
	i := 0
	for e := v.Elements(); e.Next(); i++ {
		if r.lenient && !e.Value.IsObject() {
			return nil, false
		}
		r.enterElement(i)
		ps = append(ps, r.part(e.Value))
		r.pop()
		if r.fault != nil {
			break // the first fault decides; what follows need not be read
		}
	}
	return ps, true
}

var partMembers = []string{"type", "content", "mimeType", "filename", "size", "encoding", "width", "height", "duration"}

func (r *reader) part(v strictjson.Value) (p Part) {
	f := r.object(v, partMembers)
	defer f.done()
	if !v.IsObject() {
		return p
	}
	p.Type = f.partType(0)
	switch p.Type {
	case PartTypeText, PartTypeFile, PartTypeImage, PartTypeAudio:
		p.Content = f.needText(1)
	case PartTypeData:
		if !f.require(1) {
			break
		}
		switch f.vals[1].Kind() {
		case '"':
			p.Content, _ = r.texts.text(f.vals[1])
		case '{', '[':
			p.Data = raw(f.vals[1])
		default:
			f.misfit(1, "must be a string, an object or an array")
		}
	default:
		r.fail("type", "must be TextPart, DataPart, FilePart, ImagePart or AudioPart")
		if s, ok := r.texts.text(f.vals[1]); ok {
			p.Content = s
		} else {
			p.Data = raw(f.vals[1])
		}
	}
	p.MIMEType = f.text(2)
	p.Filename = f.text(3)
	p.Size = f.peerNumber(4)
	p.Encoding = f.peerText(5)
	p.Width, p.Height, p.Duration = f.peerNumber(6), f.peerNumber(7), f.peerNumber(8)
	p.Extra = f.extra
	return p
}

// partType reads the required type of a part. The usual one is not allocated.
func (f *fields) partType(i int) PartType {
	if string(f.vals[i]) == `"TextPart"` {
		return PartTypeText
	}
	return partType(f.needText(i))
}

// partType reads the short names that stand all over the protocol's site as
// those of the specification (ARC-D59).
func partType(s string) PartType {
	switch s {
	case "text":
		return PartTypeText
	case "data":
		return PartTypeData
	case "file":
		return PartTypeFile
	case "image":
		return PartTypeImage
	case "audio":
		return PartTypeAudio
	}
	return PartType(s)
}

var artifactMembers = []string{"artifactId", "name", "parts", "description", "mimeType", "createdAt", "version", "createdBy", "metadata"}

// artifact reads an artifact, or returns nil for a value that is not an object. Even
// a strict reader does not check its parts: they are output of the peer.
func (r *reader) artifact(v strictjson.Value) *Artifact {
	f := r.object(v, artifactMembers)
	defer f.done()
	if !v.IsObject() {
		return nil
	}
	a := &Artifact{ID: f.needText(0)}
	if a.ID == "" {
		r.fail("artifactId", "must not be empty")
	}
	a.Name = f.text(1)
	switch v := f.vals[2]; {
	case v.Absent():
	case !v.IsArray():
		f.misfit(2, "must be an array")
	default:
		var ok bool
		was := r.lenient
		r.lenient = true
		if a.Parts, ok = r.partList(v, nil); !ok {
			f.keep("parts", v)
		}
		r.lenient = was
	}
	a.Description, a.MIMEType = f.peerText(3), f.peerText(4)
	a.CreatedAt, a.Version, a.CreatedBy = f.peerTime(5), f.peerText(6), f.peerText(7)
	if v := f.vals[8]; v.IsObject() {
		a.Metadata = raw(v)
	} else if !v.Absent() {
		f.keep("metadata", v)
	}
	a.Extra = f.extra
	return a
}
