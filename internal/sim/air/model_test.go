// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package air

import (
	"errors"
	"fmt"
	"hash/fnv"
	"maps"
	"slices"
	"sync"

	"github.com/fivewire/fivewire/air"
	"github.com/fivewire/fivewire/internal/sim"
)

// A model has the accepted messages and their outcomes.
//
//	M1 An accepted message was handled or was rejected by the handler, after its owner has received the dead letters
//	   again.
//	M2 The handler does not get a message again that it took or rejected, unless it is marked as redelivered. While
//	   the clock of the store jumps, the lease of a process may end.
//	M3 A message is refused only by the handler, as a move that another one has overtaken, or because its sender has
//	   another key since.
//	M4 After the faults the outboxes and the relay become empty.
//	M5 The two parties of a negotiation agree on its state and its moves, unless one has another key.
//	M6 The handler gets the moves of one party of a negotiation in the order in which that party made them, and no move
//	   is refused because an earlier one is missing.
//	M7 The handler gets the messages of a page that have one sender and one thread in the order of their timestamps.
//	M8 The handler gets no move that follows no other.
//	M9 What an inbox or a relay holds is within its limits.
//	M10 A negotiation is concluded if all handlers return the errors of their answers.
type model struct {
	sim *sim.World

	mu       sync.Mutex // guards all below
	accepted map[string]bool
	states   map[string]*state // by id
	rotated  map[string]bool   // by DID
	threads  []*thread

	isRedelivered bool                // the dead letters
	made          map[string][]string // ids of moves, by sender and thread
	got           map[string][]string // those that a handler got, in the order of the first calls
	pages         map[string]*page    // by agent
	strays        map[string]bool     // ids of moves that follow no other
}

// A state is what the handler of a recipient did with a message.
type state struct {
	calls             int
	isFinished        bool // the handler has returned without a failure
	isHandled         bool
	isRefused, isHeld bool // isHeld: it is a dead letter
}

// A thread is a negotiation between two agents.
type thread struct {
	id       string
	from, to int
	offer    string // the id of an accepted Offer that is answered; guarded by the lock of the model
}

// noteType is the body type of a note. All other messages are moves.
const noteType = "note"

// noteThreads is the beginning of the ids of the threads of notes.
const noteThreads = "00000000-0000-4000-8000-"

// unanswered is the description of an Offer that is not answered.
const unanswered = "unanswered"

// hopeless is the description of an Offer whose handler fails until it is redelivered by its owner. It is not
// answered.
const hopeless = "hopeless"

// A kind is how the handler treats a message in the time of the faults.
type kind int

const (
	kindOK kind = iota
	kindFail
	kindPanic
	kindSlow
	kindRemote
	kindReject // always
)

func newModel(w *sim.World) *model {
	return &model{sim: w, accepted: make(map[string]bool), states: make(map[string]*state),
		rotated: make(map[string]bool), made: make(map[string][]string), got: make(map[string][]string), pages: make(map[string]*page),
		strays: make(map[string]bool)}
}

func (m *model) stateLocked(id string) *state {
	s := m.states[id]
	if s == nil {
		s = &state{}
		m.states[id] = s
	}
	return s
}

// hash returns a number from 0 to n-1 for a text and the seed.
func (m *model) hash(n int, text ...any) int {
	h := fnv.New32a()
	fmt.Fprint(h, m.sim.Seed(), text)
	return int(h.Sum32()>>8) % n
}

// called notes a call of the handler and returns how it ends.
func (m *model) called(name string, d *air.Delivery) kind {
	m.mu.Lock()
	defer m.mu.Unlock()
	id := d.Envelope.ID
	s := m.stateLocked(id)
	if s.isFinished && !d.Redelivered && !m.sim.IsClockWrong() {
		m.sim.Failf("M2", name, "%s is handled again after %d calls", id, s.calls)
	}
	s.calls++
	if m.strays[id] {
		m.sim.Failf("M8", name, "%s of thread %s follows no move", id, d.Envelope.ThreadID)
	}
	m.gotLocked(name, d.Envelope, air.BodyType(d.Body))
	m.gotOfPageLocked(name, d.Envelope)
	if _, isNote := d.Body.(*air.Raw); isNote && m.hash(10, id) == 0 {
		return kindReject
	}
	return max(0, kind(m.hash(12, id, s.calls))-7)
}

// make notes a message before it is sent.
func (m *model) make(from string, d *air.Draft) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if air.BodyType(d.Body) != noteType {
		m.made[from+d.ThreadID] = append(m.made[from+d.ThreadID], d.ID)
	}
}

// gotLocked notes a call of the handler and holds it to M6. m.mu must be held.
func (m *model) gotLocked(name string, e *air.Envelope, bodyType string) {
	key := e.From + e.ThreadID
	if bodyType == noteType || slices.Contains(m.got[key], e.ID) {
		return
	}
	at := slices.Index(m.made[key], e.ID)
	for _, id := range m.got[key] {
		if slices.Index(m.made[key], id) > at {
			m.sim.Failf("M6", name, "%s of thread %s comes after %s", e.ID, e.ThreadID, id)
		}
	}
	m.got[key] = append(m.got[key], e.ID)
}

func (m *model) finished(id string, isHandled bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.stateLocked(id)
	s.isFinished, s.isHandled, s.isRefused = true, s.isHandled || isHandled, s.isRefused || !isHandled
}

// outcome notes an outcome without a successful call of the handler.
func (m *model) outcome(name string, o *air.ReceiveResult) {
	if o.Envelope == nil {
		if o.Class == air.ClassRefused {
			m.sim.Failf("M3", name, "an unreadable envelope: %v", o.Err)
		}
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	id := o.Envelope.ID
	s := m.stateLocked(id)
	m.sim.Event(name, "outcome", id, string(o.Class)+" "+string(o.Err.Code))
	switch o.Class {
	case air.ClassRefused:
		isConflict := errors.Is(o.Err, air.ErrConflict) || errors.Is(o.Err, air.ErrUnknownMessage)
		isOrphan := isConflict && m.rotated[o.Envelope.From]
		if isConflict && !isOrphan {
			m.checkFirstLocked(name, o)
		}
		isMove := o.Envelope.Type != noteType && o.Envelope.Type != "encrypted"
		overtaken := isMove && (errors.Is(o.Err, air.ErrConflict) || errors.Is(o.Err, air.ErrThreadClosed) || errors.Is(o.Err, air.ErrNotYourMove))
		isRejected := errors.Is(o.Err, air.ErrBadRequest) && s.calls > 0
		isForged := m.rotated[o.Envelope.From] && errors.Is(o.Err, air.ErrBadSignature) || isOrphan
		if o.FromRelay && !isRejected && !overtaken && !isForged {
			m.sim.Failf("M3", name, "%s is refused: %v", id, o.Err)
		}
		s.isRefused = s.isRefused || isRejected || overtaken || isForged
	case air.ClassHeld:
		s.isHeld = true
	}
}

// checkFirstLocked holds a refused move to M6. m.mu must be held.
func (m *model) checkFirstLocked(name string, o *air.ReceiveResult) {
	key := o.Envelope.From + o.Envelope.ThreadID
	for _, id := range m.made[key] {
		switch {
		case id == o.Envelope.ID:
			return
		case m.accepted[id] && !slices.Contains(m.got[key], id):
			m.sim.Failf("M6", name, "%s is refused before %s: %v", o.Envelope.ID, id, o.Err)
		}
	}
}

func (m *model) rotate(did string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.rotated[did] = true
}

// orphan notes a move that the outbox of its sender has refused. If the sender has another key since, the move before
// it may be refused for that.
func (m *model) orphan(id, sender string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.rotated[sender] {
		m.stateLocked(id).isRefused = true
	}
}

// accept notes a message that Send has accepted.
func (m *model) accept(id string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.accepted[id] = true
}

// checkMessages holds the accepted messages to M1.
func (m *model) checkMessages(texts map[string]string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, id := range m.missingLocked() {
		m.sim.Failf("M1", "", "message %s is lost after %d calls of its handler; %s", id, m.stateLocked(id).calls, texts[id])
	}
}

// missingLocked returns the accepted messages without an outcome and without a dead letter, unless redelivered. m.mu
// must be held.
func (m *model) missingLocked() (ids []string) {
	for _, id := range slices.Sorted(maps.Keys(m.accepted)) {
		if s := m.stateLocked(id); !s.isHandled && !s.isRefused && (!s.isHeld || m.isRedelivered) {
			ids = append(ids, id)
		}
	}
	return ids
}

func (m *model) redelivers() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.isRedelivered
}

func (m *model) isMissing() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.missingLocked()) > 0
}
