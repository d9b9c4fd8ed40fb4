// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package air

import (
	"encoding/json"

	"github.com/fivewire/fivewire/air"
)

// A page has the ids of the envelopes that an agent pulled last, and the latest of them that its handler got since.
type page struct {
	ids map[string]bool
	got map[string]*air.Envelope // by sender and thread
}

// pulled notes a page of an agent.
func (m *model) pulled(name string, envelopes []json.RawMessage) {
	p := &page{ids: map[string]bool{}, got: map[string]*air.Envelope{}}
	for _, raw := range envelopes {
		var e struct {
			ID string `json:"id"`
		}
		if json.Unmarshal(raw, &e) == nil {
			p.ids[e.ID] = true
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.pages[name] = p
}

// gotOfPageLocked holds a call of the handler to M7. m.mu must be held.
func (m *model) gotOfPageLocked(name string, e *air.Envelope) {
	p := m.pages[name]
	if p == nil || !p.ids[e.ID] || m.isRedelivered {
		return
	}
	key := e.From + e.ThreadID
	if last := p.got[key]; last != nil && e.Time.Before(last.Time) {
		m.sim.Failf("M7", name, "%s of thread %s comes after %s of the same page, which is later", e.ID, e.ThreadID, last.ID)
	}
	p.got[key] = e
}
