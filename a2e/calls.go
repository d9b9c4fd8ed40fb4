// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package a2e

import "iter"

// callTable holds the calls that were sent and not answered: by their ids, and in
// the order of sending. Adding, finding and removing take the same time however
// many there are.
type callTable struct {
	byID        map[string]*pending
	first, last *pending
}

func newCallTable() callTable { return callTable{byID: map[string]*pending{}} }

// get returns the call of that id, or nil.
func (t *callTable) get(id string) *pending { return t.byID[id] }

func (t *callTable) add(p *pending) {
	t.byID[p.msg.ID] = p
	if p.before = t.last; p.before != nil {
		p.before.after = p
	} else {
		t.first = p
	}
	t.last = p
}

// remove takes a call out and reports whether it was there.
func (t *callTable) remove(p *pending) bool {
	if t.byID[p.msg.ID] != p {
		return false
	}
	delete(t.byID, p.msg.ID)
	if p.before != nil {
		p.before.after = p.after
	} else {
		t.first = p.after
	}
	if p.after != nil {
		p.after.before = p.before
	} else {
		t.last = p.before
	}
	p.before, p.after = nil, nil
	return true
}

// all yields the calls in the order of sending. One may be removed once it was
// yielded.
func (t *callTable) all() iter.Seq[*pending] {
	return func(yield func(*pending) bool) {
		for p := t.first; p != nil; {
			next := p.after
			if !yield(p) {
				return
			}
			p = next
		}
	}
}
