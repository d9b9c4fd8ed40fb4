// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package arc

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/fivewire/fivewire/arc/internal/wire"
	"github.com/fivewire/fivewire/internal/strictjson"
	"github.com/fivewire/fivewire/store"
)

// itemPage is how many items are read at a time.
const itemPage = 256

// linkLen is the length of the link before an item in a stream: the position of the item before it, or zero.
const linkLen = 8

// itemHead is the length of the link and the kind of an item of a task.
const itemHead = linkLen + 1

// appendItem appends an item to a stream, behind the one at prev, and returns its position. The item begins with room
// for the link. It becomes part of the list when a record names its position. An item with an id is appended once behind
// prev.
func appendItem(ctx context.Context, db store.Store, stream, id string, prev uint64, item []byte, ttl time.Duration) (uint64, error) {
	binary.BigEndian.PutUint64(item, prev)
	if id != "" {
		id += "/" + strconv.FormatUint(prev, 10)
	}
	seq, err := db.Append(ctx, stream, id, item, ttl)
	if errors.Is(err, store.ErrDuplicate) {
		err = nil
	}
	return seq, err
}

// readItems reads the list that ends at the position last, without links: the items that records name. Other items of
// the stream belong to changes that were not made.
func readItems(ctx context.Context, db store.Store, stream string, last uint64) (list []store.Record, err error) {
	return readItemsAfter(ctx, db, stream, 0, last)
}

// readItemsAfter reads the part of the list behind an item at the position after.
func readItemsAfter(ctx context.Context, db store.Store, stream string, after, last uint64) (list []store.Record, err error) {
	start := after
	for isWhole := last <= start; !isWhole; {
		page, err := db.Read(ctx, stream, after, itemPage)
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

// items reads the messages and artifacts of a task.
func (e *taskEngine) items(ctx context.Context, stream string, last uint64) (messages, artifacts []store.Record, err error) {
	list, err := readItems(ctx, e.db, stream, last)
	messages, artifacts = split(list)
	return messages, artifacts, err
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

func isArtifact(r store.Record) bool {
	return len(r.Value) > 0 && (r.Value[0] == itemArtifact || r.Value[0] == itemNamedArtifact)
}

// messageItem is a message as the store keeps it.
func messageItem(kind byte, m *Message) (*ready, error) {
	w := newReady()
	w.b = append(append(w.b, make([]byte, linkLen)...), kind)
	w.message(m)
	return w, w.err
}

func artifactItem(kind byte, a *Artifact) (*ready, error) {
	w := newReady()
	w.b = append(append(w.b, make([]byte, linkLen)...), kind)
	w.object("artifact", a)
	return w, w.err
}

// A replay has the items of the earlier runs of a task that the present run has not added again
// (ARC-D74).
type replay struct {
	items map[itemKey]int // without an id; their number
	names map[string]bool // ids of all artifacts; true if the present run has not added it
}

// An itemKey is the hash by which items without an id are compared: of the role and the parts of a
// message, or of the name, the description and the parts of an artifact.
type itemKey [sha256.Size]byte

func keyOf(item []byte) itemKey {
	v := strictjson.Value(item[1:])
	b := []byte{item[0]}
	for _, name := range []string{"role", "name", "description", "parts"} {
		b = append(append(b, v.Get(name)...), 0)
	}
	return sha256.Sum256(b)
}

// replayLocked returns the items of earlier runs. The lock of the task must be held.
func (r *TaskRun) replayLocked(ctx context.Context) (*replay, error) {
	if r.earlier != nil {
		return r.earlier, nil
	}
	p := &replay{items: map[itemKey]int{}, names: map[string]bool{}}
	if r.recovered {
		list, err := readItems(ctx, r.engine.db, r.task.items(), r.task.state.last)
		if err != nil {
			return nil, err
		}
		for _, rec := range list {
			p.note(rec.Value)
		}
	}
	r.earlier = p
	return p, nil
}

func (p *replay) note(item []byte) {
	if len(item) == 0 || item[0] == itemInput {
		return
	}
	if item[0] != itemNamedArtifact {
		p.items[keyOf(item)]++
	}
	if item[0] != itemMessage {
		id, _ := strictjson.Value(item[1:]).Get("artifactId").Text()
		p.names[id] = item[0] == itemNamedArtifact
	}
}

// match reports whether an earlier run has added an item without an id.
func (p *replay) match(item []byte) bool {
	key := keyOf(item)
	if p.items[key] == 0 {
		return false
	}
	p.items[key]--
	return true
}

// name returns a free id for artifact number n.
func (p *replay) name(n int) string {
	for ; ; n++ {
		id := fmt.Sprintf("artifact-%d", n)
		if _, isTaken := p.names[id]; !isTaken {
			return id
		}
	}
}

// firstID is the deduplication id of the first message, which several processes
// may add.
const firstID = "first"

// keepFirstLocked adds the initial message of a new task to its items. The creating
// process does so too, unless it exits first.
func (e *taskEngine) keepFirstLocked(ctx context.Context, t *liveTask, st *taskState) error {
	if st.first == nil {
		return nil
	}
	w := newReady()
	defer w.free()
	w.b = append(append(append(w.b, make([]byte, linkLen)...), itemInput), st.first...)
	return e.appendFirstLocked(ctx, t, st, w.b)
}

func (e *taskEngine) appendFirstLocked(ctx context.Context, t *liveTask, st *taskState, item []byte) error {
	id := ""
	if e.s.isShared { // or else the lock of the task is enough
		id = firstID
	}
	seq, err := appendItem(ctx, e.db, t.items(), id, 0, item, 0)
	if err == nil {
		st.first, st.last = nil, seq
	}
	return err
}
