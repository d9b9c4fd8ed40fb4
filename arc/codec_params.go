// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package arc

import (
	"encoding/json"
	"slices"
	"strconv"

	"github.com/fivewire/fivewire/internal/strictjson"
)

func appendInt(b []byte, n int64) []byte { return strconv.AppendInt(b, n, 10) }

// Limits of the members that name things (section d.3 of the reference).
const (
	maxIDLen          = 256
	maxCallbackURLLen = 2048
)

// paramsOf begins to read the params of a standard method. Every fault is an
// error with code [ErrInvalidParams] but for a bad priority.
func paramsOf(text json.RawMessage) (strictjson.Value, *Error) {
	v, err := checkJSON(text)
	if err != nil || !v.IsObject() {
		return nil, fieldError(ErrInvalidParams, "params", "must be an object")
	}
	return v, nil
}

var createMembers = []string{"initialMessage", "priority", "metadata"}

func (r *reader) createTask(v strictjson.Value) *CreateTaskParams {
	f := r.object(v, createMembers)
	defer f.done()
	p := &CreateTaskParams{InitialMessage: f.needMessage(0)}
	p.Priority = Priority(f.text(1))
	switch p.Priority {
	case PriorityLow, PriorityNormal, PriorityHigh, PriorityUrgent:
	case "":
		if f.vals[1].Absent() {
			p.Priority = PriorityNormal
			break
		}
		fallthrough
	default:
		r.failWith(ErrInvalidTaskPriority, f.names[1], "must be LOW, NORMAL, HIGH or URGENT")
	}
	p.Metadata = f.any(2)
	p.Extra = f.extra
	return p
}

// messageIn and artifactIn read the value of a member.
func (r *reader) messageIn(name string, v strictjson.Value) *Message {
	r.enter(name)
	defer r.pop()
	return r.message(v)
}

func (r *reader) artifactIn(name string, v strictjson.Value) *Artifact {
	r.enter(name)
	defer r.pop()
	return r.artifact(v)
}

// failElement refuses an element of the member i.
func (f *fields) failElement(i, element int, issue string) {
	f.r.enter(f.names[i])
	f.r.enterElement(element)
	f.r.fail("", issue)
	f.r.pop()
	f.r.pop()
}

// needMessage reads a required message.
func (f *fields) needMessage(i int) *Message {
	if !f.require(i) {
		return nil
	}
	return f.r.messageIn(f.names[i], f.vals[i])
}

var sendMembers = []string{"taskId", "message"}

func (r *reader) sendTask(v strictjson.Value) *SendTaskParams {
	f := r.object(v, sendMembers)
	defer f.done()
	return &SendTaskParams{TaskID: f.id(0, maxIDLen), Message: f.needMessage(1), Extra: f.extra}
}

var infoMembers = []string{"taskId", "includeMessages", "includeArtifacts", "messagesAfter", "messagesLimit", "artifactsAfter",
	"artifactsLimit"}

func (r *reader) taskInfo(v strictjson.Value) TaskInfoParams {
	f := r.object(v, infoMembers)
	defer f.done()
	return TaskInfoParams{TaskID: f.id(0, maxIDLen), OmitMessages: !f.flag(1, true), OmitArtifacts: !f.flag(2, true),
		MessagesAfter: f.position(3, 0), MessagesLimit: f.position(4, 1), ArtifactsAfter: f.position(5, 0), ArtifactsLimit: f.position(6, 1),
		Extra: f.extra}
}

// position reads an optional integer from low to the largest that every peer can represent.
func (f *fields) position(i int, low int64) *int64 {
	v := f.vals[i]
	if v.Absent() {
		return nil
	}
	n, ok := v.Int()
	if !ok || n < low || n >= 1<<53 {
		f.misfit(i, "must be an integer of at least "+strconv.FormatInt(low, 10))
		return nil
	}
	return &n
}

var cancelMembers = []string{"taskId", "reason"}

func (r *reader) cancelTask(v strictjson.Value) *CancelTaskParams {
	f := r.object(v, cancelMembers)
	defer f.done()
	return &CancelTaskParams{TaskID: f.id(0, maxIDLen), Reason: f.text(1), Extra: f.extra}
}

var subscribeMembers = []string{"taskId", "callbackUrl", "events"}

// defaultEvents is what a subscription without events follows (ARC-100).
func defaultEvents() []Event { return []Event{EventTaskCompleted, EventTaskFailed} }

func (r *reader) subscribe(v strictjson.Value) *SubscribeParams {
	f := r.object(v, subscribeMembers)
	defer f.done()
	p := &SubscribeParams{TaskID: f.id(0, maxIDLen), CallbackURL: f.id(1, maxCallbackURLLen)}
	switch list := f.vals[2]; {
	case list.Absent():
	case !list.IsArray():
		f.misfit(2, "must be an array")
	default:
		i := 0
		for e := list.Elements(); e.Next() && r.fault == nil; i++ {
			s, ok := e.Value.Text()
			switch ev := Event(s); {
			case !ok:
				f.failElement(2, i, "must be a string")
			case !ev.isValid():
				f.failElement(2, i, "is no event")
			case !slices.Contains(p.Events, ev):
				p.Events = append(p.Events, ev)
			}
		}
	}
	if len(p.Events) == 0 {
		p.Events = defaultEvents()
	}
	p.Extra = f.extra
	return p
}

var startMembers = []string{"initialMessage", "chatId", "stream", "metadata"}

func (r *reader) startChat(v strictjson.Value) *StartChatParams {
	f := r.object(v, startMembers)
	defer f.done()
	p := &StartChatParams{InitialMessage: f.needMessage(0), ChatID: f.text(1)}
	if !f.vals[1].Absent() {
		f.checkID(1, p.ChatID, maxIDLen)
	}
	p.Stream = f.flag(2, false)
	p.Metadata = f.any(3)
	p.Extra = f.extra
	return p
}

var chatMessageMembers = []string{"chatId", "message", "stream"}

func (r *reader) chatMessage(v strictjson.Value) *ChatMessageParams {
	f := r.object(v, chatMessageMembers)
	defer f.done()
	return &ChatMessageParams{ChatID: f.id(0, maxIDLen), Message: f.needMessage(1), Stream: f.flag(2, false), Extra: f.extra}
}

var endMembers = []string{"chatId", "reason"}

func (r *reader) endChat(v strictjson.Value) *EndChatParams {
	f := r.object(v, endMembers)
	defer f.done()
	return &EndChatParams{ChatID: f.id(0, maxIDLen), Reason: f.text(1), Extra: f.extra}
}

var notificationMembers = []string{"taskId", "event", "timestamp", "data"}

func (r *reader) notification(v strictjson.Value) *Notification {
	f := r.object(v, notificationMembers)
	defer f.done()
	n := &Notification{TaskID: f.id(0, maxIDLen), Event: Event(f.needText(1))}
	if !n.Event.isValid() {
		r.fail(f.names[1], "is no event")
	}
	n.Timestamp = Timestamp(f.needText(2))
	if _, err := n.Timestamp.Time(); err != nil {
		r.fail(f.names[2], "must be an RFC 3339 time")
	}
	if f.require(3) {
		r.enter("data")
		n.Data = r.notificationData(f.vals[3])
		r.pop()
	}
	n.Extra = f.extra
	return n
}

var dataMembers = []string{"status", "message", "priority", "assignedAgent", "createdAt", "startedAt", "pausedAt", "resumedAt",
	"completedAt", "failedAt", "canceledAt", "changedAt", "duration", "pauseDuration", "estimatedDuration", "artifactCount",
	"messageCount", "canceledBy", "reason", "requiredInput", "previousStatus", "error", "messageContent", "artifact"}

func (r *reader) notificationData(v strictjson.Value) (d NotificationData) {
	f := r.object(v, dataMembers)
	defer f.done()
	d.Status, d.Message = f.needText(0), f.needText(1)
	d.Priority, d.AssignedAgent = Priority(f.text(2)), f.text(3)
	for i, ts := range []*Timestamp{&d.CreatedAt, &d.StartedAt, &d.PausedAt, &d.ResumedAt, &d.CompletedAt, &d.FailedAt, &d.CanceledAt, &d.ChangedAt} {
		*ts = f.time(4 + i)
	}
	for i, n := range []*json.Number{&d.Duration, &d.PauseDuration, &d.EstimatedDuration, &d.ArtifactCount, &d.MessageCount} {
		*n = f.count(12 + i)
	}
	for i, s := range []*string{&d.CanceledBy, &d.Reason, &d.RequiredInput, &d.PreviousStatus} {
		*s = f.text(17 + i)
	}
	d.Error = f.any(21)
	if !f.vals[22].Absent() {
		d.MessageContent = r.messageIn(f.names[22], f.vals[22])
	}
	if !f.vals[23].Absent() {
		d.Artifact = r.artifactIn(f.names[23], f.vals[23])
	}
	d.Extra = f.extra
	return d
}

// normalizeParams checks the params of a method as a server does before it calls
// a handler, and returns them with defaults added, absent members that were given
// as null removed, and aliases replaced; what the specification does not define
// stays. The params of a method that is not one of the nine may be any object and
// pass unchanged. Every error is an [*Error].
func normalizeParams(method string, params json.RawMessage) (json.RawMessage, error) {
	v, fault := paramsOf(params)
	if fault != nil {
		return nil, fault
	}
	r := newReader(false)
	defer r.free()
	var write func(w *writer)
	switch method {
	case MethodTaskCreate:
		p := r.createTask(v)
		write = p.write
	case MethodTaskSend:
		p := r.sendTask(v)
		write = p.write
	case MethodTaskInfo:
		p := r.taskInfo(v)
		write = p.write
	case MethodTaskCancel:
		p := r.cancelTask(v)
		write = p.write
	case MethodTaskSubscribe:
		p := r.subscribe(v)
		write = p.write
	case MethodTaskNotification:
		p := r.notification(v)
		write = p.write
	case MethodChatStart:
		p := r.startChat(v)
		write = p.write
	case MethodChatMessage:
		p := r.chatMessage(v)
		write = p.write
	case MethodChatEnd:
		p := r.endChat(v)
		write = p.write
	default:
		return raw(v), nil
	}
	if r.fault != nil {
		return nil, r.fault
	}
	return encode(write)
}

func (p *CreateTaskParams) write(w *writer) {
	at := w.open()
	w.messageOf("initialMessage", p.InitialMessage)
	w.optText("priority", string(p.Priority))
	w.optRaw("metadata", p.Metadata)
	w.extra(at, p.Extra)
	w.close()
}

func (p *SendTaskParams) write(w *writer) {
	at := w.open()
	w.text("taskId", p.TaskID)
	w.messageOf("message", p.Message)
	w.extra(at, p.Extra)
	w.close()
}

func (p *TaskInfoParams) write(w *writer) {
	at := w.open()
	w.text("taskId", p.TaskID)
	w.flag("includeMessages", !p.OmitMessages)
	w.flag("includeArtifacts", !p.OmitArtifacts)
	for i, n := range []*int64{p.MessagesAfter, p.MessagesLimit, p.ArtifactsAfter, p.ArtifactsLimit} {
		if n != nil {
			w.number(infoMembers[3+i], *n)
		}
	}
	w.extra(at, p.Extra)
	w.close()
}

func (p *CancelTaskParams) write(w *writer) {
	at := w.open()
	w.text("taskId", p.TaskID)
	w.optText("reason", p.Reason)
	w.extra(at, p.Extra)
	w.close()
}

func (p *SubscribeParams) write(w *writer) {
	at := w.open()
	w.text("taskId", p.TaskID)
	w.text("callbackUrl", p.CallbackURL)
	if len(p.Events) > 0 {
		array(w, "events", p.Events, element)
	}
	w.extra(at, p.Extra)
	w.close()
}

func (p *StartChatParams) write(w *writer) {
	at := w.open()
	w.messageOf("initialMessage", p.InitialMessage)
	w.optText("chatId", p.ChatID)
	w.flag("stream", p.Stream)
	w.optRaw("metadata", p.Metadata)
	w.extra(at, p.Extra)
	w.close()
}

func (p *ChatMessageParams) write(w *writer) {
	at := w.open()
	w.text("chatId", p.ChatID)
	w.messageOf("message", p.Message)
	w.flag("stream", p.Stream)
	w.extra(at, p.Extra)
	w.close()
}

func (p *EndChatParams) write(w *writer) {
	at := w.open()
	w.text("chatId", p.ChatID)
	w.optText("reason", p.Reason)
	w.extra(at, p.Extra)
	w.close()
}

func (n *Notification) write(w *writer) {
	at := w.open()
	n.writeMembers(w)
	w.extra(at, n.Extra)
	w.close()
}

// writeMembers writes all members but the extra ones. A webhook that speaks the
// flat dialect puts them into its envelope.
func (n *Notification) writeMembers(w *writer) {
	w.text("taskId", n.TaskID)
	w.text("event", string(n.Event))
	w.text("timestamp", string(n.Timestamp))
	w.key("data")
	n.Data.write(w)
}

func (d *NotificationData) write(w *writer) {
	at := w.open()
	w.text("status", d.Status)
	w.text("message", d.Message)
	w.optText("priority", string(d.Priority))
	w.optText("assignedAgent", d.AssignedAgent)
	w.optText("createdAt", string(d.CreatedAt))
	w.optText("startedAt", string(d.StartedAt))
	w.optText("pausedAt", string(d.PausedAt))
	w.optText("resumedAt", string(d.ResumedAt))
	w.optText("completedAt", string(d.CompletedAt))
	w.optText("failedAt", string(d.FailedAt))
	w.optText("canceledAt", string(d.CanceledAt))
	w.optText("changedAt", string(d.ChangedAt))
	w.optNumber("duration", d.Duration)
	w.optNumber("pauseDuration", d.PauseDuration)
	w.optNumber("estimatedDuration", d.EstimatedDuration)
	w.optNumber("artifactCount", d.ArtifactCount)
	w.optNumber("messageCount", d.MessageCount)
	w.optText("canceledBy", d.CanceledBy)
	w.optText("reason", d.Reason)
	w.optText("requiredInput", d.RequiredInput)
	w.optText("previousStatus", d.PreviousStatus)
	w.optRaw("error", d.Error)
	if d.MessageContent != nil {
		w.messageOf("messageContent", d.MessageContent)
	}
	if d.Artifact != nil {
		w.key("artifact")
		w.artifact(d.Artifact)
	}
	w.extra(at, d.Extra)
	w.close()
}

// messageOf writes a message under a name; without one it writes null, which the
// receiver refuses.
func (w *writer) messageOf(name string, m *Message) {
	w.key(name)
	if m == nil {
		w.b = append(w.b, "null"...)
		return
	}
	w.message(m)
}
