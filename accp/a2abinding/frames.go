// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package a2abinding

import (
	"crypto/rand"
	"encoding/hex"
	"strconv"
	"strings"
	"time"

	"github.com/a2aproject/a2a-go/v2/a2a"

	"github.com/fivewire/fivewire/accp"
	"github.com/fivewire/fivewire/accp/internal/bridge"
)

// FramePart returns a frame as the part of a message or an artifact. The frame must satisfy the
// grammar.
func FramePart(frame []byte) (*a2a.Part, error) {
	if _, err := new(accp.Codec).DecodeRaw(frame); err != nil {
		return nil, err
	}
	return part(frame), nil
}

// part has the media type also in the metadata, where protocol version 0.3 has it.
func part(frame []byte) *a2a.Part {
	return &a2a.Part{Content: a2a.Text(frame), MediaType: accp.MediaType, Metadata: map[string]any{"mimeType": accp.MediaType}}
}

// ExtractFrames returns the frames among the parts of a message or an artifact, unchanged. It skips
// parts of other media types.
func ExtractFrames(parts a2a.ContentParts) (frames [][]byte) {
	for _, p := range parts {
		if p == nil {
			continue
		}
		if text, ok := p.Content.(a2a.Text); ok && isFrame(mediaType(p)) {
			frames = append(frames, []byte(text))
		}
	}
	return frames
}

// mediaType returns the media type of a part of version 1.0 or 0.3.
func mediaType(p *a2a.Part) string {
	if p.MediaType != "" {
		return p.MediaType
	}
	for _, key := range []string{"mimeType", "contentType"} {
		if typ, ok := p.Metadata[key].(string); ok {
			return typ
		}
	}
	return ""
}

// taskState returns the state of a task after a frame, or no state.
func taskState(i accp.Intent) a2a.TaskState {
	name := bridge.TaskState(i)
	if name == "" {
		return a2a.TaskStateUnspecified
	}
	return a2a.TaskState("TASK_STATE_" + strings.ToUpper(strings.ReplaceAll(name, "-", "_")))
}

// stateName returns the name of a state in texts.
func stateName(s a2a.TaskState) string {
	return strings.ToLower(strings.ReplaceAll(strings.TrimPrefix(s.String(), "TASK_STATE_"), "_", "-"))
}

func isFrame(contentType string) bool {
	t, _, _ := strings.Cut(contentType, ";")
	return strings.EqualFold(strings.TrimSpace(t), accp.MediaType)
}

// opensTask reports whether a frame starts a task: a req frame, unless it is a part and not the
// last one.
func opensTask(m *accp.Message) bool {
	if m.Intent != accp.IntentReq {
		return false
	}
	i, n := partOf(m)
	return i == n
}

// partOf returns the index of the part m and the number of parts, or zeros for a whole message
// (ACCP-D38).
func partOf(m *accp.Message) (i, n int) {
	if m.Meta == nil {
		return 0, 0
	}
	a, b, ok := strings.Cut(m.Meta.Ext.Text("part"), "/")
	if !ok {
		return 0, 0
	}
	i, _ = strconv.Atoi(a)
	n, _ = strconv.Atoi(b)
	return i, n
}

// envelope returns the metadata of a frame that answers m.
func envelope(m *accp.Message, seq int64) *accp.Meta {
	var id [6]byte
	rand.Read(id[:])
	meta := &accp.Meta{MID: hex.EncodeToString(id[:]), Seq: accp.NewOptionalInt(seq),
		TS: accp.NewOptionalInt(max(0, time.Now().Unix())), CID: m.Chain(), SID: m.Meta.SID}
	if m.Meta.CID != "" {
		meta.AID = m.Meta.MID
	}
	return meta
}
