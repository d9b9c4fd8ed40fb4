// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

// Package tier has the rules of the context of a session: hot messages, checkpoints, and the
// summaries that a peer announces. Its functions do no I/O and read no clock.
package tier

import "slices"

// Token limits of the draft, and bounds.
const (
	HotTrigger      = 400
	HotMax          = 500
	WarmMax         = 200
	SummaryMax      = 100
	lineMax         = 25
	MaxSummaryBytes = 4096
	maxIDs          = 256  // announced summaries, and void ids
	maxDropped      = 1024 // ids of removed checkpoints
	itemBytes       = 256  // of an item in addition to its texts
)

// A Message is in hot state.
type Message struct {
	Text   string // its frames, joined by line feeds
	Tokens int
}

// A Summary is a text with its address.
type Summary struct {
	ID     string
	Text   string
	Tokens int
}

// A Checkpoint is a stored part of the history.
type Checkpoint struct {
	Summary
	Hash    string // of the frames
	Trigger []string
	Frames  int     // messages
	Refined Summary // with an empty ID if there is none
	Until   int64   // when its entries expire, in Unix milliseconds; 0: never
	Bytes   int64   // of its entries
}

// An Announcement is the address of a checkpoint of a peer and its summary.
type Announcement struct{ Hash, ID, Summary string }

// A State has the tiers of a session, without the stored entries.
type State struct {
	Hot         []Message
	Used        int // tokens of hot state
	Checkpoints []Checkpoint
	Peers       []Announcement
	Dropped     []string // ids of removed checkpoints
	Void        []string // ids of several contents

	HotBytes  int
	InfoBytes int64 // of Checkpoints and Peers
	Stored    int64 // bytes of the entries of Checkpoints
}

// Add adds a message to hot state.
func (s *State) Add(m Message) {
	s.Hot = append(s.Hot, m)
	s.Used += m.Tokens
	s.HotBytes += len(m.Text) + itemBytes
}

// Triggers returns the triggers that hold after a message was added: its own, hot state above the
// limit, and those of a checkpoint that failed (ACCP-D40).
func (s *State) Triggers(isDone, isEsc, isComp bool, failed []string) (due []string) {
	for _, t := range []struct {
		name string
		now  bool
	}{{"done", isDone}, {"hot_tokens", s.Used > HotTrigger}, {"esc", isEsc}, {"comp", isComp}} {
		if t.now || slices.Contains(failed, t.name) {
			due = append(due, t.name)
		}
	}
	return due
}

// Commit replaces hot state by a checkpoint, whose reference costs some tokens. Checkpoints over the
// maximum are removed, and returned.
func (s *State) Commit(c Checkpoint, tokens, maximum int) (dropped []Checkpoint) {
	s.Hot, s.Used, s.HotBytes = nil, tokens, 0
	if i := s.index(c.ID); i >= 0 {
		s.remove(i) // the same frames again
	}
	s.Checkpoints = append(s.Checkpoints, c)
	s.InfoBytes += c.size()
	s.Stored += c.Bytes
	for len(s.Checkpoints) > maximum {
		dropped = append(dropped, s.Drop())
	}
	return dropped
}

func (c *Checkpoint) size() int64 {
	return int64(itemBytes + len(c.Text) + len(c.Refined.Text))
}

// Drop removes the oldest checkpoint.
func (s *State) Drop() Checkpoint {
	c := s.remove(0)
	s.Dropped = append(s.Dropped, c.ID)
	if c.Refined.ID != "" {
		s.Dropped = append(s.Dropped, c.Refined.ID)
	}
	s.Dropped = slices.Delete(s.Dropped, 0, max(0, len(s.Dropped)-maxDropped))
	return c
}

func (s *State) remove(i int) Checkpoint {
	c := s.Checkpoints[i]
	s.Checkpoints = slices.Delete(s.Checkpoints, i, i+1)
	s.InfoBytes -= c.size()
	s.Stored -= c.Bytes
	return c
}

func (s *State) index(id string) int {
	return slices.IndexFunc(s.Checkpoints, func(c Checkpoint) bool { return c.ID == id })
}

// Refine sets the refined summary of a checkpoint and reports whether the checkpoint exists.
func (s *State) Refine(id string, refined Summary) bool {
	i := s.index(id)
	if i < 0 || refined.ID == id {
		return false
	}
	s.InfoBytes -= s.Checkpoints[i].size()
	s.Checkpoints[i].Refined = refined
	s.InfoBytes += s.Checkpoints[i].size()
	return true
}

// Own returns the announcement of an own checkpoint by the id of its summary or of its refined one.
func (s *State) Own(id string) (Announcement, bool) {
	for _, c := range s.Checkpoints {
		switch id {
		case c.ID:
			return Announcement{Hash: c.Hash, ID: id, Summary: c.Text}, true
		case c.Refined.ID:
			return Announcement{Hash: c.Hash, ID: id, Summary: c.Refined.Text}, true
		}
	}
	return Announcement{}, false
}

// IsFree reports whether the id of a belongs to no other content.
func (s *State) IsFree(a Announcement) bool {
	if slices.Contains(s.Void, a.ID) {
		return false
	}
	if own, ok := s.Own(a.ID); ok && own != a {
		return false
	}
	for _, p := range s.Peers {
		if p.ID == a.ID && p != a {
			return false
		}
	}
	return true
}

// ByHash returns the id of the newest own checkpoint with a hash, or "".
func (s *State) ByHash(hash string) string {
	for _, c := range slices.Backward(s.Checkpoints) {
		if c.Hash == hash {
			return c.ID
		}
	}
	return ""
}

// Announced returns the newest announced summary for a hash other than that of an id.
func (s *State) Announced(hash, id string) (Announcement, bool) {
	for _, p := range slices.Backward(s.Peers) {
		if p.Hash == hash && p.ID != id {
			return p, true
		}
	}
	return Announcement{}, false
}

// Announce keeps the announcement of a peer. Its id must be free.
func (s *State) Announce(a Announcement) {
	if slices.Contains(s.Peers, a) {
		return
	}
	s.InfoBytes += itemBytes + int64(len(a.Summary))
	s.Peers = append(s.Peers, a)
	for len(s.Peers) > maxIDs {
		s.InfoBytes -= itemBytes + int64(len(s.Peers[0].Summary))
		s.Peers = slices.Delete(s.Peers, 0, 1)
	}
}

// Forbid makes an id void.
func (s *State) Forbid(id string) {
	s.Void = append(s.Void, id)
	s.Void = slices.Delete(s.Void, 0, max(0, len(s.Void)-maxIDs))
}

// Peer returns an announced summary.
func (s *State) Peer(id string) (string, bool) {
	for _, p := range s.Peers {
		if p.ID == id {
			return p.Summary, true
		}
	}
	return "", false
}

// Recount computes the sums after the lists were replaced.
func (s *State) Recount() {
	s.HotBytes, s.InfoBytes, s.Stored = 0, 0, 0
	for _, m := range s.Hot {
		s.HotBytes += len(m.Text) + itemBytes
	}
	for _, c := range s.Checkpoints {
		s.InfoBytes += c.size()
		s.Stored += c.Bytes
	}
	for _, p := range s.Peers {
		s.InfoBytes += itemBytes + int64(len(p.Summary))
	}
}
