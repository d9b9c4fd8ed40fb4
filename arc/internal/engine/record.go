// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/fivewire/fivewire/arc/internal/wire"
	"github.com/fivewire/fivewire/internal/jsonmap"
	"github.com/fivewire/fivewire/internal/strictjson"
	"github.com/fivewire/fivewire/store"
)

// A record is everything about a task but its messages, its artifacts and its metadata. Its size does not depend on
// their number, so that an event costs the same. A record is never changed, only replaced.
type record struct {
	ID        string `json:"id"`
	Agent     string `json:"agent"`               // the handling agent
	Principal string `json:"principal,omitempty"` // the owner
	Account   string `json:"account,omitempty"`   // of the budgets, without a principal
	Caller    string `json:"caller"`              // the requesting agent
	TraceID   string `json:"traceId,omitempty"`
	Task
	Fault       json.RawMessage `json:"fault,omitempty"` // why it failed
	Priority    string          `json:"priority,omitempty"`
	HasMetadata bool            `json:"metadata,omitempty"` // under a separate key, so that an event does not write it again
	Identity    json.RawMessage `json:"identity,omitempty"` // the principal, for a run in another process
	Last        uint64          `json:"last,omitempty"`     // position of the newest item, see readItems
	Subs        []Subscription  `json:"subs,omitempty"`
	EndedSubs   []endedSub      `json:"endedSubs,omitempty"`

	// First is the initial message, until the next change: a task is created by one write, and any process can then
	// add the message to the items.
	First json.RawMessage `json:"first,omitempty"`

	// Pending are the newest events, numbered from PendingFrom, that may not be queued for the subscribers. The
	// process that takes the task over queues them.
	Pending     []json.RawMessage `json:"pending,omitempty"`
	PendingFrom uint64            `json:"pendingFrom,omitempty"`
}

// account returns the account of the budgets.
func (r *record) account() string { return cmp.Or(r.Principal, r.Account) }

// A Subscription is a webhook that follows a task (ARC-101).
type Subscription struct {
	ID      string   `json:"id"`
	URL     string   `json:"url"`
	Target  string   `json:"target"` // the subscriber's requestAgent
	Events  []string `json:"events"`
	TraceID string   `json:"traceId,omitempty"`
	Created Moment   `json:"created,omitempty"`
	From    uint64   `json:"from,omitempty"` // number of its first event
	Size    int      `json:"size,omitempty"` // bytes that are counted for it
	Dialect *Dialect `json:"dialect,omitempty"`
	Earlier []string `json:"earlier,omitempty"` // those that it has replaced

	isStatic bool
}

// A Dialect is the form of the notifications of a subscription in another protocol.
type Dialect struct {
	Name string          `json:"name"`
	ID   string          `json:"id"` // of the subscription in that protocol, unique in the task
	Data json.RawMessage `json:"data,omitempty"`
}

// An endedSub is a subscription that has ended before its task: with status 410, or removed by its subscriber.
type endedSub struct {
	ID        string   `json:"id"`
	IsRemoved bool     `json:"removed,omitempty"`
	Earlier   []string `json:"earlier,omitempty"` // those that it had replaced
}

// The keys of a task in the store.
func taskKey(id string) string      { return taskPrefix + id }
func taskItems(id string) string    { return itemsPrefix + id }
func taskMetadata(id string) string { return prefix + "metadata/" + id }

const (
	taskPrefix  = prefix + "task/"
	itemsPrefix = prefix + "items/"
)

// The size of the first buffer for a record, and the size to which it is kept.
const (
	minBuf = 512
	maxBuf = 2 << 10
)

// encode appends the stored form.
func (r *record) encode(dst []byte) []byte {
	if dst == nil {
		dst = make([]byte, 0, minBuf)
	}
	b, _ := jsonmap.Append(dst, r) // a record has valid text only
	return b
}

func decodeRecord(b []byte) (*record, error) {
	r := new(record)
	if err := wire.DecodeStored(b, r); err != nil {
		return nil, fmt.Errorf("arc: stored task: %w", err)
	}
	return r, nil
}

// refusal is the error of a change that the machine refuses.
func (r *record) refusal(a Action, err error) error {
	full, isFull := errors.AsType[*FullError](err)
	switch {
	case errors.Is(err, ErrOwner):
		return ErrTakenOver
	case isFull && a != Send:
		return errTaskFull
	case isFull:
		o := wire.Open(nil)
		o.Text("taskId", r.ID)
		o.Int("limit", full.Limit)
		return &wire.Fault{Code: wire.MessageTooLarge, Details: o.Close()}
	}
	return TaskRefusal(r.ID, r.Status, a)
}

// TaskRefusal is the error of an action that a task in a state refuses (ARC-D30, ARC-D55).
func TaskRefusal(id, status string, a Action) error {
	switch status {
	case completed:
		return wire.NewFault(wire.TaskAlreadyCompleted, "taskId", id)
	case canceled:
		return wire.NewFault(wire.TaskAlreadyCanceled, "taskId", id)
	}
	return wire.NewFault(wire.InvalidTaskTransition, "taskId", id, "from", status, "to", a.LeadsTo(status))
}

var (
	// errTaskFull reports a task with too many items.
	errTaskFull = errors.New("arc: the task has too many messages and artifacts")

	// ErrTakenOver is the error of a run whose task has another owner.
	ErrTakenOver = errors.New("arc: the task was taken over by another process")
)

func noTask(id string) error { return wire.NewFault(wire.TaskNotFound, "taskId", id) }

// maxTaskBytes bounds the messages and artifacts of a task (ARC-D79).
const maxTaskBytes = 32 << 20

// An item of a task is JSON preceded by one byte, its kind, behind the link of the item.
const (
	itemMessage       = 'm' // of the handler
	itemInput         = 'i' // a message of the caller
	itemArtifact      = 'a'
	itemNamedArtifact = 'n' // an artifact whose id the handler has chosen
)

// newItem returns an item behind room for the link.
func newItem(kind byte, text []byte) []byte {
	return append(append(make([]byte, linkLen, Room+len(text)), kind), text...)
}

// linkLen is the length of the link before an item in a stream: the position of the item before it, or zero.
const linkLen = 8

// Room is the length of the head of an item, before its JSON.
const Room = linkLen + 1

// itemPage is how many items are read at a time.
const itemPage = 256

// appendItem appends an item to a stream, behind the one at prev, and returns its position. It becomes part of the
// list when a record names its position. An item with an id is appended once behind prev.
func (c *core) appendItem(ctx context.Context, stream, id string, prev uint64, item []byte, ttl time.Duration) (uint64, error) {
	binary.BigEndian.PutUint64(item, prev)
	if id != "" {
		id += "/" + strconv.FormatUint(prev, 10)
	}
	seq, err := c.db.Append(ctx, stream, id, item, ttl)
	if errors.Is(err, store.ErrDuplicate) {
		err = nil
	}
	return seq, err
}

// readItems reads the part of the list that ends at the position last and begins behind an item at the position after:
// the items that records name, without links. Other items of the stream belong to changes that were not made.
func (c *core) readItems(ctx context.Context, stream string, after, last uint64) (list []store.Record, err error) {
	start := after
	for isWhole := last <= start; !isWhole; {
		page, err := c.db.Read(ctx, stream, after, itemPage)
		if err != nil {
			return nil, err
		}
		if isWhole = len(page) < itemPage; !isWhole {
			after = page[len(page)-1].Seq
			isWhole = after >= last
		}
		if list == nil {
			list = page // the usual case without copying
		} else {
			list = append(list, page...)
		}
	}
	first := len(list)
	for i := len(list) - 1; i >= 0 && last > start; i-- {
		if r := list[i]; r.Seq == last && len(r.Value) > linkLen {
			last = binary.BigEndian.Uint64(r.Value)
			r.Value = r.Value[linkLen:]
			first--
			list[first] = r
		}
	}
	return list[first:], nil
}

func isArtifact(r store.Record) bool {
	return r.Value[0] == itemArtifact || r.Value[0] == itemNamedArtifact
}

// split returns the messages and the artifacts of a list.
func split(list []store.Record) (messages, artifacts []store.Record) {
	if !slices.ContainsFunc(list, isArtifact) {
		return list, nil
	}
	for _, r := range list {
		if isArtifact(r) {
			artifacts = append(artifacts, r)
		} else {
			messages = append(messages, r)
		}
	}
	return messages, artifacts
}

// maxPage bounds the lists of a page in bytes.
const maxPage = 8 << 20

// pageOf returns the part of the lists that a page has: the first element always (ARC-D79).
func pageOf(p *wire.TaskInfo, messages, artifacts []store.Record) (m, a []store.Record) {
	size, isEmpty := 0, true
	take := func(list []store.Record, after, limit *int64) []store.Record {
		if after != nil {
			list = list[min(int64(len(list)), *after):]
		}
		if limit != nil {
			list = list[:min(int64(len(list)), *limit)]
		}
		for i, r := range list {
			if size+len(r.Value) > maxPage && !isEmpty {
				return list[:i]
			}
			size += len(r.Value)
			isEmpty = false
		}
		return list
	}
	if !p.OmitMessages {
		m = take(messages, p.MessagesAfter, p.MessagesLimit)
	}
	if !p.OmitArtifacts {
		a = take(artifacts, p.ArtifactsAfter, p.ArtifactsLimit)
	}
	return m, a
}

// open begins a result about a task with the members that every one has.
func (r *record) open(dst []byte) wire.Object {
	o := wire.Open(dst)
	o.Text("type", "task")
	o.Object("task")
	o.Text("taskId", r.ID)
	o.Text("status", r.Status)
	appendMoment(&o, "createdAt", r.Created)
	return o
}

// accepted is the result of task.create, which is fixed before the work begins.
func (r *record) accepted(dst []byte) []byte {
	o := (&record{ID: r.ID, Task: Task{Status: submitted, Created: r.Created}}).open(dst)
	o.End()
	return o.Close()
}

// canceled is the result of task.cancel.
func (r *record) canceled() []byte {
	o := r.open(nil)
	appendMoment(&o, "canceledAt", r.Ended)
	o.OptText("reason", r.Reason)
	o.End()
	return o.Close()
}

// info appends the result of task.info, composed of stored items.
func (r *record) info(dst []byte, messages, artifacts []store.Record, p *wire.TaskInfo) []byte {
	size := 384 + len(r.Reason) + len(r.Required) + len(r.Fault)
	for _, list := range [][]store.Record{messages, artifacts} {
		for _, item := range list {
			size += len(item.Value)
		}
	}
	if cap(dst) < size {
		dst = make([]byte, 0, size)
	}
	o := r.open(dst)
	appendMoment(&o, "updatedAt", r.Updated)
	if !p.OmitMessages {
		appendItems(&o, "messages", messages)
	}
	if !p.OmitArtifacts {
		appendItems(&o, "artifacts", artifacts)
	}
	if p.IsPaged() {
		o.Int("messageCount", int64(r.Messages))
		o.Int("artifactCount", int64(r.Artifacts))
	}
	switch r.Status {
	case inputRequired:
		o.OptText("reason", r.Required)
	case completed:
		appendMoment(&o, "completedAt", r.Ended)
	case canceled:
		appendMoment(&o, "canceledAt", r.Ended)
		o.OptText("reason", r.Reason)
	case failed:
		appendMoment(&o, "failedAt", r.Ended)
		o.OptText("reason", r.Reason)
		if r.Fault != nil {
			o.Raw("error", r.Fault)
		}
	}
	o.End()
	return o.Close()
}

func appendItems(o *wire.Object, name string, items []store.Record) {
	o.Key(name)
	o.B = append(o.B, '[')
	for i, r := range items {
		if i > 0 {
			o.B = append(o.B, ',')
		}
		o.B = append(o.B, r.Value[1:]...)
	}
	o.B = append(o.B, ']')
}

// A replay has the items of the earlier runs of a task that the present run has not added again (ARC-D74).
type replay struct {
	items map[itemHash]int // without an id; their number
	names map[string]bool  // ids of all artifacts; true if the present run has not added it
}

// An itemHash is that by which items without an id are compared: of the role and the parts of a message, or of the
// name, the description and the parts of an artifact.
type itemHash [sha256.Size]byte

func hashOf(kind byte, text []byte) itemHash {
	b := []byte{kind}
	for _, name := range []string{"role", "name", "description", "parts"} {
		b = append(append(b, strictjson.Value(text).Get(name)...), 0)
	}
	return sha256.Sum256(b)
}

func newReplay(items []store.Record) *replay {
	p := &replay{items: map[itemHash]int{}, names: map[string]bool{}}
	for _, r := range items {
		kind, text := r.Value[0], r.Value[1:]
		if kind == itemMessage || kind == itemArtifact {
			p.items[hashOf(kind, text)]++
		}
		if isArtifact(r) {
			id, _ := strictjson.Value(text).Get("artifactId").Text()
			p.names[id] = kind == itemNamedArtifact
		}
	}
	return p
}

// match reports whether an earlier run has added an item without an id.
func (p *replay) match(kind byte, text []byte) bool {
	key := hashOf(kind, text)
	if p.items[key] == 0 {
		return false
	}
	p.items[key]--
	return true
}

// use reports whether an earlier run has added an artifact with a chosen id. The second use in a run is an error.
func (p *replay) use(id string) (isEarlier bool, err error) {
	isEarlier, isTaken := p.names[id]
	if isTaken && !isEarlier {
		return false, fmt.Errorf("arc: artifact id %q used twice", id)
	}
	p.names[id] = false
	return isEarlier, nil
}

// name returns a free id for artifact number n.
func (p *replay) name(n int) string {
	for ; ; n++ {
		id := "artifact-" + strconv.Itoa(n)
		if _, isTaken := p.names[id]; !isTaken {
			return id
		}
	}
}
