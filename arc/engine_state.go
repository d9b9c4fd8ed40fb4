// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package arc

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/fivewire/fivewire/arc/internal/engine"
	"github.com/fivewire/fivewire/arc/internal/wire"
	"github.com/fivewire/fivewire/internal/lease"
	"github.com/fivewire/fivewire/internal/strictjson"
	"github.com/fivewire/fivewire/store"
)

// taskState is everything about a task but its messages and artifacts. It has
// the same size however long the task is, so that an event costs the same.
type taskState struct {
	engine.Task[TaskStatus]
	id           string
	agent        string // the handling agent
	principal    string // the owner
	requestAgent string // the requesting agent
	traceID      string
	fault        *Error
	priority     Priority
	hasMetadata  bool            // under a separate key, so that an event does not write it again
	caller       json.RawMessage // the principal, for a run in another process
	last         uint64          // position of the newest item, see readItems
	input        uint64          // position of the last message of a task.send among the items
	followed     uint64          // number of subscriptions made

	// first is the initial message, until the next write of the state: a task is
	// created by one write, and any process can then add the message to the items.
	first json.RawMessage

	// unqueued are the newest events, numbered from unqueuedFrom, that may not be queued for the
	// subscribers. The process that takes the task over queues them.
	unqueued     json.RawMessage
	unqueuedFrom uint64
}

// The keys of a task in the store.
func taskItems(id string) string       { return itemsPrefix + id }
func taskMetadata(id string) string    { return "arc/metadata/" + id }
func subsPrefix(taskID string) string  { return "arc/sub/" + taskID + "/" }
func subKey(taskID, sub string) string { return subsPrefix(taskID) + sub }

const (
	taskPrefix  = "arc/task/"
	itemsPrefix = "arc/items/"
)

func (w *writer) number(name string, n int64) {
	w.key(name)
	w.b = appendInt(w.b, n)
}

func (w *writer) optCount(name string, n uint64) {
	if n > 0 {
		w.number(name, int64(n))
	}
}

func (w *writer) optFlag(name string, v bool) {
	if v {
		w.flag(name, v)
	}
}

func (w *writer) moment(name string, t time.Time) {
	if !t.IsZero() {
		w.number(name, t.UnixNano())
	}
}

// write writes the state for the store.
func (st *taskState) write(w *writer) {
	w.open()
	w.text("id", st.id)
	w.text("agent", st.agent)
	w.optText("principal", st.principal)
	w.text("requestAgent", st.requestAgent)
	w.optText("traceId", st.traceID)
	w.text("status", string(st.Status))
	w.optText("previous", string(st.Previous))
	w.moment("created", st.Created)
	w.moment("updated", st.Updated)
	w.moment("paused", st.Paused)
	w.moment("moved", st.Moved)
	w.moment("ended", st.Ended)
	w.optText("reason", st.Reason)
	w.optText("canceledBy", st.CanceledBy)
	w.optError(st.fault)
	w.optText("priority", string(st.priority))
	w.optFlag("metadata", st.hasMetadata)
	w.number("messages", int64(st.Messages))
	w.number("artifacts", int64(st.Artifacts))
	w.number("bytes", st.Bytes)
	w.number("events", int64(st.Events))
	w.optText("owner", string(st.Owner))
	w.optText("required", st.Required)
	w.optCount("last", st.last)
	w.optCount("input", st.input)
	w.optCount("inputs", uint64(st.Inputs))
	w.optFlag("journaled", st.IsJournaled)
	w.optFlag("parked", st.IsParked)
	w.optRaw("caller", st.caller)
	w.optCount("followed", st.followed)
	if st.first != nil { // written by us, or read from here
		w.key("first")
		w.b = append(w.b, st.first...)
	}
	if st.unqueued != nil {
		w.number("unqueuedFrom", int64(st.unqueuedFrom))
		w.key("unqueued")
		w.b = append(w.b, st.unqueued...)
	}
	w.close()
}

// A stored object is taken apart member by member: texts, numbers and times.
type storedReader struct{ v strictjson.Value }

func readStored(b []byte) (storedReader, error) {
	v, err := wire.Check(b)
	if err == nil && !v.IsObject() {
		err = errShape
	}
	if err != nil {
		return storedReader{}, fmt.Errorf("arc: stored state: %w", err)
	}
	return storedReader{v}, nil
}

func (r storedReader) text(name string) string {
	s, _ := r.v.Get(name).Text()
	return s
}

func (r storedReader) number(name string) int64 {
	n, _ := r.v.Get(name).Int()
	return n
}

func (r storedReader) moment(name string) time.Time {
	n, ok := r.v.Get(name).Int()
	if !ok {
		return time.Time{}
	}
	return time.Unix(0, n).UTC()
}

func (r storedReader) flag(name string) bool {
	b, _ := r.v.Get(name).Bool()
	return b
}

// decodeTask is the inverse of write.
func decodeTask(b []byte) (*taskState, error) {
	r, err := readStored(b)
	if err != nil {
		return nil, err
	}
	st := &taskState{id: r.text("id"), agent: r.text("agent"), principal: r.text("principal"),
		requestAgent: r.text("requestAgent"), traceID: r.text("traceId"), priority: Priority(r.text("priority")), hasMetadata: r.flag("metadata"),
		last: uint64(r.number("last")), input: uint64(r.number("input")), caller: rawOf(r.v.Get("caller")), followed: uint64(r.number("followed")),
		first: rawOf(r.v.Get("first")), unqueuedFrom: uint64(r.number("unqueuedFrom")), unqueued: rawOf(r.v.Get("unqueued"))}
	st.Task = engine.Task[TaskStatus]{Status: TaskStatus(r.text("status")), Previous: TaskStatus(r.text("previous")),
		Created: r.moment("created"), Updated: r.moment("updated"), Paused: r.moment("paused"), Moved: r.moment("moved"), Ended: r.moment("ended"),
		Reason: r.text("reason"), CanceledBy: r.text("canceledBy"), Required: r.text("required"), Messages: int(r.number("messages")),
		Artifacts: int(r.number("artifacts")), Inputs: int(r.number("inputs")), Bytes: r.number("bytes"), Events: uint64(r.number("events")),
		Owner: lease.Owner(r.text("owner")), IsJournaled: r.flag("journaled"), IsParked: r.flag("parked")}
	if e := r.v.Get("error"); !e.Absent() {
		if st.fault, _ = decodeError(e); st.fault != nil {
			st.fault.Remote = false
		}
	}
	return st, nil
}

// An item of a task is JSON preceded by one byte, its kind, behind the link of the item.
const (
	itemMessage       = 'm' // of the handler
	itemInput         = 'i' // a message of the caller
	itemArtifact      = 'a'
	itemNamedArtifact = 'n' // an artifact whose id the handler has chosen
)

// writeTask writes the members of the task that every answer about it has.
func (st *taskState) writeHead(w *writer) {
	w.text("taskId", st.id)
	w.text("status", string(st.Status))
	w.stamp("createdAt", st.Created)
}

// stamp writes a time.
func (w *writer) stamp(name string, t time.Time) {
	w.key(name)
	w.b = append(w.b, '"')
	w.b = t.UTC().AppendFormat(w.b, time.RFC3339Nano)
	w.b = append(w.b, '"')
}

// accepted is the answer to task.create.
func (st *taskState) accepted() *ready {
	w := newReady()
	w.b = append(w.b, `{"type":"task","task":`...)
	w.open()
	st.writeHead(&w.writer)
	w.b = append(w.b, '}', '}')
	return w
}

// canceled is the answer to task.cancel.
func (st *taskState) canceled() *ready {
	w := newReady()
	w.b = append(w.b, `{"type":"task","task":`...)
	w.open()
	st.writeHead(&w.writer)
	w.stamp("canceledAt", st.Ended)
	w.optText("reason", st.Reason)
	w.b = append(w.b, '}', '}')
	return w
}

// info returns the response to task.info, composed of stored items. A nil item
// is omitted.
func (st *taskState) info(messages, artifacts []store.Record, p *wire.TaskInfo) *ready {
	size := 384 + len(st.Reason) + len(st.Required)
	for _, list := range [][]store.Record{messages, artifacts} {
		for _, r := range list {
			size += len(r.Value)
		}
	}
	w := newReady()
	w.b = slices.Grow(w.b, size)
	w.b = append(w.b, `{"type":"task","task":`...)
	w.open()
	st.writeHead(&w.writer)
	w.stamp("updatedAt", st.Updated)
	if !p.OmitMessages {
		array(&w.writer, "messages", messages, (*writer).item)
	}
	if !p.OmitArtifacts {
		array(&w.writer, "artifacts", artifacts, (*writer).item)
	}
	if p.IsPaged() {
		w.number("messageCount", int64(st.Messages))
		w.number("artifactCount", int64(st.Artifacts))
	}
	switch st.Status {
	case TaskInputRequired:
		w.optText("reason", st.Required)
	case TaskCompleted:
		w.stamp("completedAt", st.Ended)
	case TaskCanceled:
		w.stamp("canceledAt", st.Ended)
		w.optText("reason", st.Reason)
	case TaskFailed:
		w.stamp("failedAt", st.Ended)
		w.optText("reason", st.Reason)
		w.optError(st.fault)
	}
	w.b = append(w.b, '}', '}')
	return w
}

// item writes a stored message or artifact.
func (w *writer) item(r *store.Record) { w.b = append(w.b, r.Value[1:]...) }

// millis is a duration as notifications have it.
func millis(d time.Duration) json.Number {
	return json.Number(strconv.FormatInt(max(d.Milliseconds(), 0), 10))
}
