// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package altar

import (
	"context"
	"encoding/json"
	"io"
	"unicode/utf8"

	"github.com/fivewire/fivewire/internal/option"
	"github.com/fivewire/fivewire/internal/strictjson"
)

// Dial returns the peer's end of a connection inside this process, for a Runtime
// or a client with that identity. Messages are checked as if they came over a
// wire, but they are not written out: their JSON is shared by the sender, the Host,
// which keeps it for repeats, and the receivers, and none of them may change it.
// Send handles a message before it returns, hooks included.
func (h *Host) Dial(id *Principal) (Conn, error) {
	hc, err := h.admit(nil, true, id, "")
	if err != nil {
		return nil, err
	}
	return &direct{hc}, nil
}

type direct struct{ hc *hostConn }

// push makes the connection call handle with each message, in turn and in the goroutine that has caused it, until that
// returns false or onEnd was called. It replaces Receive.
func (d *direct) push(handle func(m Message) bool, onEnd func()) {
	out := d.hc.out
	out.startInline(func() {
		for {
			m, _, isOver := out.take()
			switch {
			case isOver:
				onEnd()
				return
			case m == nil:
				return
			}
			d.hc.resumeStalled()
			if !handle(m) {
				return // no further message is taken
			}
		}
	})
}

func (d *direct) Receive() (Message, error) {
	m, _ := d.hc.next(context.Background())
	if m == nil {
		d.hc.cut() // the peer may leave its side open
		return nil, io.EOF
	}
	return m, nil
}

func (d *direct) Send(m Message) error { return d.sendVetted(m, true) }

func (d *direct) sendVetted(m Message, waits bool) error {
	own, bad, err := vet(m)
	if err != nil {
		return err
	}
	return d.pass(own, bad, waits)
}

// sendOwn is Send for a message that no other goroutine holds: it is validated and passed on
// without a copy. The goroutine that takes the messages of the peer must not wait for space.
func (d *direct) sendOwn(m Message, waits bool) error {
	if isChecked(m) {
		return d.pass(m, nil, waits)
	}
	return d.sendVetted(m, waits)
}

// isChecked reports whether this side has checked the JSON of its message.
func isChecked(m Message) bool {
	switch m := m.(type) {
	case *ToolCall, *StreamCredit:
		return true
	case *ToolResult:
		return m.Error == nil
	case *StreamChunk:
		return m.Error == nil
	}
	return false
}

func (d *direct) pass(m Message, bad *badFrame, waits bool) error {
	if waits && isRequest(m, bad) {
		d.hc.out.waitSpace(d.hc.queueLimit(), option.Off)
	}
	if !d.hc.h.handle(d.hc, m, bad) {
		return ErrClosed
	}
	return nil
}

func (d *direct) Close() error {
	d.hc.cut()
	return nil
}

// sound reports whether a message certainly stays equal when it is encoded and decoded. It
// recognizes only the frequent messages.
func sound(m Message) bool {
	switch m := m.(type) {
	case *ToolCall:
		return soundCall(m)
	case *ToolResult:
		return m.Error == nil && soundAnswer(m.InvocationID, m.header, m.Payload) && (len(m.RuntimeMetadata) == 0 || vetJSON(m.RuntimeMetadata, true))
	case *StreamChunk:
		return m.Error == nil && m.ChunkID >= 0 && soundAnswer(m.InvocationID, m.header, m.Payload)
	}
	return false
}

func soundCall(m *ToolCall) bool {
	return m.SessionID != "" && m.ToolName != "" && validInvocationID(m.InvocationID) && vetHeader(m.header) && m.Metadata == nil &&
		utf8.ValidString(m.SessionID) && utf8.ValidString(m.ToolName) && m.TimeoutMS >= 0 && m.ResumeFrom >= 0 &&
		(m.Credit == nil || *m.Credit >= 0) && vetJSON(m.Parameters, true)
}

func soundAnswer(id string, header header, payload json.RawMessage) bool {
	return validInvocationID(id) && vetHeader(header) && vetJSON(payload, false)
}

// vet returns a message as [DecodeMessage] would after [AppendMessage].
func vet(m Message) (Message, *badFrame, error) {
	if sound(m) {
		switch m := m.(type) {
		case *ToolCall:
			own := *m
			return &own, nil, nil
		case *ToolResult:
			own := *m
			return &own, nil, nil
		case *StreamChunk:
			own := *m
			return &own, nil, nil
		}
	}
	frame, err := AppendMessage(nil, m)
	if err != nil {
		return nil, nil, err
	}
	own, err := DecodeMessage(frame, len(frame))
	if err != nil {
		bad, _ := asBadFrame(err)
		return nil, bad, nil
	}
	return own, nil, nil
}

func vetHeader(h header) bool {
	return (h.RequestID == "" || validText(h.RequestID, maxTextID)) && (h.CorrelationID == "" || validText(h.CorrelationID, maxTextID))
}

func vetJSON(data []byte, object bool) bool {
	if len(data) == 0 || data[0] <= ' ' || data[len(data)-1] <= ' ' {
		return false
	}
	v, err := strictjson.Check(data, rawBounds(1))
	return err == nil && (!object || v.IsObject())
}
