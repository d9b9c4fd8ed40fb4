// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package arc

import (
	"context"
	"errors"
	"slices"

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

func isArtifact(r store.Record) bool { return len(r.Value) > 0 && r.Value[0] == itemArtifact }

// messageItem is a message as the store keeps it.
func messageItem(m *Message) (*ready, error) {
	w := newReady()
	w.b = append(w.b, itemMessage)
	w.message(m)
	return w, w.err
}

func artifactItem(a *Artifact) (*ready, error) {
	w := newReady()
	w.b = append(w.b, itemArtifact)
	w.artifact(a)
	return w, w.err
}

// firstID is the deduplication id of the first message, which several processes
// may add.
const firstID = "first"

// keepFirst adds the initial message of a new task to its items. The creating
// process does so too, unless it exits first.
func (e *taskEngine) keepFirst(ctx context.Context, t *liveTask, st *taskState) error {
	if st.first == nil {
		return nil
	}
	w := newReady()
	defer w.free()
	w.b = append(append(w.b, itemMessage), st.first...)
	return e.appendFirst(ctx, t, st, w.b)
}

func (e *taskEngine) appendFirst(ctx context.Context, t *liveTask, st *taskState, item []byte) error {
	id := ""
	if e.s.shared { // or else the lock of the task is enough
		id = firstID
	}
	_, err := e.db.Append(ctx, t.items(), id, item, 0)
	if err == nil || errors.Is(err, store.ErrDuplicate) {
		st.first, err = nil, nil
	}
	return err
}

// sent reports whether a task has the input of a request that is repeated. Its
// message bears the mark of the request.
func (e *taskEngine) sent(ctx context.Context, t *liveTask, mark string) (bool, error) {
	var after uint64
	for {
		page, err := e.db.Read(ctx, t.items(), after, itemPage)
		if err != nil {
			return false, err
		}
		for _, r := range page {
			if after = r.Seq; r.ID == mark {
				return after <= t.state.input, nil
			}
		}
		if len(page) < itemPage {
			return false, nil
		}
	}
}
