// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package arc

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"

	"github.com/fivewire/fivewire/internal/strictjson"
	"github.com/fivewire/fivewire/store"
)

// itemPage is how many items are read at a time.
const itemPage = 256

// items reads the messages and artifacts of a task.
func (e *taskEngine) items(ctx context.Context, stream string) (messages, artifacts []store.Record, err error) {
	var after uint64
	for {
		page, err := e.db.Read(ctx, stream, after, itemPage)
		if err != nil {
			return nil, nil, err
		}
		if after == 0 && !slices.ContainsFunc(page, isArtifact) {
			messages = page[:len(page):len(page)] // the usual case without copying
			if len(page) < itemPage {
				return messages, nil, nil
			}
			after = page[len(page)-1].Seq
			continue
		}
		for _, r := range page {
			if isArtifact(r) {
				artifacts = append(artifacts, r)
			} else {
				messages = append(messages, r)
			}
		}
		if len(page) < itemPage {
			return messages, artifacts, nil
		}
		after = page[len(page)-1].Seq
	}
}

// maxPage bounds the lists of a page in bytes.
const maxPage = 8 << 20

func (p *TaskInfoParams) isPaged() bool {
	return p.MessagesAfter != nil || p.MessagesLimit != nil || p.ArtifactsAfter != nil || p.ArtifactsLimit != nil
}

// page returns the part of the lists that a page has: the first element always (ARC-D79).
func (p *TaskInfoParams) page(messages, artifacts []store.Record) (m, a []store.Record) {
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
	w.b = append(w.b, kind)
	w.message(m)
	return w, w.err
}

func artifactItem(kind byte, a *Artifact) (*ready, error) {
	w := newReady()
	w.b = append(w.b, kind)
	w.artifact(a)
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
	for after := uint64(0); r.recovered; {
		page, err := r.engine.db.Read(ctx, r.task.items(), after, itemPage)
		if err != nil {
			return nil, err
		}
		for _, rec := range page {
			after = rec.Seq
			p.note(rec.Value)
		}
		if len(page) < itemPage {
			break
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
	w.b = append(append(w.b, itemInput), st.first...)
	return e.appendFirstLocked(ctx, t, st, w.b)
}

func (e *taskEngine) appendFirstLocked(ctx context.Context, t *liveTask, st *taskState, item []byte) error {
	id := ""
	if e.s.isShared { // or else the lock of the task is enough
		id = firstID
	}
	_, err := e.db.Append(ctx, t.items(), id, item, 0)
	if err == nil || errors.Is(err, store.ErrDuplicate) {
		st.first, err = nil, nil
	}
	return err
}

// hasInput reports whether a task has accepted the input with that id.
func (e *taskEngine) hasInput(ctx context.Context, t *liveTask, id string) (bool, error) {
	var after uint64
	for {
		page, err := e.db.Read(ctx, t.items(), after, itemPage)
		if err != nil {
			return false, err
		}
		for _, r := range page {
			if after = r.Seq; r.ID == id {
				return after <= t.state.input, nil
			}
		}
		if len(page) < itemPage {
			return false, nil
		}
	}
}
