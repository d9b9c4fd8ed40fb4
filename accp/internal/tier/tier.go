// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

// Package tier has the rules of the context of a session: hot messages, checkpoints with their addresses, the
// summaries that a peer announces, and the view of a model. Its functions do no I/O and read no clock.
package tier

import (
	"encoding/hex"
	"slices"
	"strings"
)

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

// Triggers of checkpoints, in their order.
const (
	triggerDone = "done"
	TriggerHot  = "hot_tokens"
	triggerEsc  = "esc"
	triggerComp = "comp"
)

// A Message is in hot state.
type Message struct {
	Text     string `json:"text"` // its frames, joined by line feeds
	Tokens   int    `json:"tokens"`
	Facts    string `json:"-"` // one a line, unless the message comes from a record
	HasFacts bool   `json:"-"`
}

// A Summary is a text with its address.
type Summary struct {
	ID     string `json:"id"`
	Text   string `json:"text"`
	Tokens int    `json:"tokens"`
}

// A Checkpoint is a part of the history.
type Checkpoint struct {
	Summary Summary  `json:"summary"`
	Hash    string   `json:"hash"` // of the frames
	Trigger []string `json:"trigger"`
	Frames  int      `json:"frames"`           // messages
	Refined Summary  `json:"refined,omitzero"` // with an empty ID if there is none
	Until   int64    `json:"until,omitzero"`   // when its contents expire, in Unix milliseconds; 0: never
	Bytes   int64    `json:"bytes"`            // of its contents
	Cold    Cold     `json:"-"`                // its contents, unless a store has them
}

// Cold has the contents of a checkpoint.
type Cold struct {
	Frames []string
	Facts  string // canonical text of the list of facts
}

// An Announcement is the address of a checkpoint and its summary.
type Announcement struct {
	Hash    string `json:"hash"`
	ID      string `json:"id"`
	Summary string `json:"summary"`
}

// A State has the tiers of a session, without the contents that a store has.
type State struct {
	Hot         []Message      `json:"hot"`
	Used        int            `json:"used"`        // tokens of hot state
	Checkpoints []*Checkpoint  `json:"checkpoints"` // each is not changed
	Peers       []Announcement `json:"peers"`
	Dropped     []string       `json:"dropped"` // ids of removed checkpoints
	Void        []string       `json:"void"`    // ids of several contents

	byID      map[string]*Checkpoint // by the ids of both summaries
	hotBytes  int
	infoBytes int64         // of Checkpoints and Peers
	stored    int64         // bytes of the contents of Checkpoints
	removed   []*Checkpoint // memory of the result of Apply
}

// A Change is the change of a state by one message or one checkpoint.
type Change struct {
	Before       *Checkpoint   `json:"before,omitempty"` // of the messages before Hot
	BeforeTokens int           `json:"beforetokens,omitzero"`
	Hot          *Message      `json:"hot,omitempty"`
	After        *Checkpoint   `json:"after,omitempty"` // of Hot, too
	AfterTokens  int           `json:"aftertokens,omitzero"`
	Maximum      int           `json:"maximum,omitzero"` // number of checkpoints
	Refine       string        `json:"refine,omitzero"`  // id of a checkpoint
	Refined      *Summary      `json:"refined,omitempty"`
	Peer         *Announcement `json:"peer,omitempty"`
	Void         string        `json:"void,omitzero"`
	Drop         bool          `json:"drop,omitzero"` // the oldest checkpoint
}

// Apply changes the state and returns the checkpoints that were removed, in memory of the state: the caller clears the list
// before the next call.
func (s *State) Apply(c *Change) (dropped []*Checkpoint) {
	dropped = s.removed[:0]
	if c.Void != "" {
		s.Void = appendBounded(s.Void, maxIDs, c.Void)
	}
	if c.Peer != nil {
		s.announce(*c.Peer)
	}
	if c.Before != nil {
		dropped = s.commit(dropped, c.Before, c.BeforeTokens, c.Maximum)
	}
	if c.Hot != nil {
		s.Hot = append(s.Hot, *c.Hot)
		s.Used += c.Hot.Tokens
		s.hotBytes += c.Hot.size()
	}
	if c.After != nil {
		dropped = s.commit(dropped, c.After, c.AfterTokens, c.Maximum)
	}
	if c.Drop && len(s.Checkpoints) > 0 {
		dropped = append(dropped, s.drop())
	}
	if c.Refined != nil {
		s.refine(c.Refine, *c.Refined)
	}
	if s.removed = dropped[:0]; len(dropped) == 0 {
		return nil
	}
	return dropped
}

func (m *Message) size() int { return len(m.Text) + len(m.Facts) + itemBytes }

// IsFull reports whether hot state must become a checkpoint before a message is added (ACCP-D40).
func (s *State) IsFull(m *Message) bool { return len(s.Hot) > 0 && s.Used+m.Tokens > HotMax }

// Kinds of messages that trigger a checkpoint.
type Kinds struct{ IsDone, IsEsc, IsComp bool }

// Triggers returns the triggers that hold after a message with which hot state has a number of tokens: its own,
// hot state above the limit, and those of a checkpoint that failed (ACCP-D40).
func (k Kinds) Triggers(used int, failed []string) (due []string) {
	switch {
	case len(failed) > 0:
	case k == Kinds{} && used <= HotTrigger:
		return nil
	case k == Kinds{IsDone: true} && used <= HotTrigger:
		return onlyDone
	case k == Kinds{}:
		return OnlyHot
	}
	for _, t := range []struct {
		name string
		now  bool
	}{{triggerDone, k.IsDone}, {TriggerHot, used > HotTrigger}, {triggerEsc, k.IsEsc}, {triggerComp, k.IsComp}} {
		if t.now || slices.Contains(failed, t.name) {
			due = append(due, t.name)
		}
	}
	return due
}

// The usual triggers, which are not changed.
var onlyDone, OnlyHot = []string{triggerDone}, []string{TriggerHot}

// commit replaces hot state by a checkpoint, whose reference costs some tokens. It removes the checkpoints over
// the maximum, and appends them to dropped.
func (s *State) commit(dropped []*Checkpoint, c *Checkpoint, tokens, maximum int) []*Checkpoint {
	clear(s.Hot)
	s.Hot, s.Used, s.hotBytes = s.Hot[:0], tokens, 0
	if s.byID[c.Summary.ID] != nil { // the same frames again
		if i := s.index(c.Summary.ID); i >= 0 {
			s.remove(i)
		}
	}
	s.Checkpoints = append(s.Checkpoints, c)
	s.add(c)
	for len(s.Checkpoints) > maximum {
		dropped = append(dropped, s.drop())
	}
	return dropped
}

// add adds a checkpoint of the list to the index and the sizes.
func (s *State) add(c *Checkpoint) {
	if s.byID == nil {
		s.byID = map[string]*Checkpoint{}
	}
	s.byID[c.Summary.ID] = c
	if c.Refined.ID != "" {
		s.byID[c.Refined.ID] = c
	}
	s.infoBytes += c.size()
	s.stored += c.Bytes
}

func (c *Checkpoint) size() int64 {
	return int64(itemBytes + len(c.Summary.Text) + len(c.Refined.Text))
}

// drop removes the oldest checkpoint.
func (s *State) drop() *Checkpoint {
	c := s.remove(0)
	s.Dropped = appendBounded(s.Dropped, maxDropped, c.Summary.ID)
	if c.Refined.ID != "" {
		s.Dropped = appendBounded(s.Dropped, maxDropped, c.Refined.ID)
	}
	return c
}

// appendBounded appends x and removes the oldest elements over the maximum.
func appendBounded[T any](list []T, maximum int, x T) []T {
	if len(list) < maximum {
		return append(list, x)
	}
	var zero T
	list[0] = zero
	return append(list[1:], x) // moves the elements when the memory ends
}

func (s *State) remove(i int) *Checkpoint {
	c := s.Checkpoints[i]
	s.Checkpoints[i] = nil
	if i == 0 {
		s.Checkpoints = s.Checkpoints[1:]
	} else {
		s.Checkpoints = slices.Delete(s.Checkpoints, i, i+1)
	}
	for _, id := range []string{c.Summary.ID, c.Refined.ID} {
		if s.byID[id] == c {
			delete(s.byID, id)
		}
	}
	s.infoBytes -= c.size()
	s.stored -= c.Bytes
	return c
}

func (s *State) index(id string) int {
	return slices.IndexFunc(s.Checkpoints, func(c *Checkpoint) bool { return c.Summary.ID == id })
}

func (s *State) refine(id string, refined Summary) {
	i := s.index(id)
	if i < 0 || refined.ID == id {
		return
	}
	c := *s.Checkpoints[i]
	if old := c.Refined.ID; s.byID[old] == s.Checkpoints[i] {
		delete(s.byID, old)
	}
	s.infoBytes -= c.size()
	s.stored -= c.Bytes
	c.Refined = refined
	s.Checkpoints[i] = &c
	s.add(&c)
}

// Own returns the announcement of an own checkpoint by the id of its summary or of its refined one, and the checkpoint.
func (s *State) Own(id string) (Announcement, *Checkpoint) {
	c := s.byID[id]
	switch {
	case c == nil:
		return Announcement{}, nil
	case id == c.Summary.ID:
		return Announcement{Hash: c.Hash, ID: id, Summary: c.Summary.Text}, c
	}
	return Announcement{Hash: c.Hash, ID: id, Summary: c.Refined.Text}, c
}

// References returns the own checkpoints to which references name, of this session by its id.
func (s *State) References(refs []string, session string) (list []Announcement) {
	for _, ref := range refs {
		id, isWarm := strings.CutPrefix(ref, "warm.")
		if own, c := s.Own(strings.TrimPrefix(id, session+".")); isWarm && c != nil {
			list = append(list, own)
		}
	}
	return list
}

// Peer returns an announced summary.
func (s *State) Peer(id string) (Announcement, bool) {
	for _, p := range s.Peers {
		if p.ID == id {
			return p, true
		}
	}
	return Announcement{}, false
}

// Free returns the id with the fewest digits that belongs to no other content, or "" (ACCP-D40, ACCP-D70). The sum is that
// of the hash and the summary.
func (s *State) Free(hash string, sum [32]byte, summary string) string {
	id := [2 + 2*len(sum)]byte{'c', 'p'}
	hex.Encode(id[2:], sum[:])
	for n := 2 + idDigits; n <= len(id); n += 4 {
		if a := (Announcement{Hash: hash, ID: string(id[:n]), Summary: summary}); s.IsFree(a) {
			return a.ID
		}
	}
	return ""
}

const idDigits = 8 // minimum of an id

// IsFree reports whether the id of a belongs to no other content.
func (s *State) IsFree(a Announcement) bool {
	if slices.Contains(s.Void, a.ID) {
		return false
	}
	if own, c := s.Own(a.ID); c != nil && own != a {
		return false
	}
	p, ok := s.Peer(a.ID)
	return !ok || p == a
}

// ByHash returns the id of the newest own checkpoint with a hash, or "".
func (s *State) ByHash(hash string) string {
	for _, c := range slices.Backward(s.Checkpoints) {
		if c.Hash == hash {
			return c.Summary.ID
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

// announce keeps the announcement of a peer. Its id is free.
func (s *State) announce(a Announcement) {
	if slices.Contains(s.Peers, a) {
		return
	}
	s.infoBytes += itemBytes + int64(len(a.Summary))
	if len(s.Peers) == maxIDs {
		s.infoBytes -= itemBytes + int64(len(s.Peers[0].Summary))
	}
	s.Peers = appendBounded(s.Peers, maxIDs, a)
}

// Recount computes the index and the sizes after the lists were replaced.
func (s *State) Recount() {
	s.hotBytes, s.infoBytes, s.stored, s.byID = 0, 0, 0, nil
	for _, m := range s.Hot {
		s.hotBytes += m.size()
	}
	for _, c := range s.Checkpoints {
		s.add(c)
	}
	for _, p := range s.Peers {
		s.infoBytes += itemBytes + int64(len(p.Summary))
	}
}

// Sizes returns the bytes of the state in memory, and of the contents of its checkpoints.
func (s *State) Sizes() (memory, contents int64) { return int64(s.hotBytes) + s.infoBytes, s.stored }
