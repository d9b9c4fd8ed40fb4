// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"errors"
	"maps"
	"sync"

	"github.com/fivewire/fivewire/air"
)

// Stats are counters of a [Server] since its start, and the present number of envelopes. They name no agent.
type Stats struct {
	Pushes, Pulls, Acks int64              // successful requests; a stream counts as a pull
	Refusals            map[air.Code]int64 // failed requests by the code of the error

	// Queued and QueuedBytes are the unacknowledged envelopes in mailboxes with a push or an
	// acknowledgement since the start, and Mailboxes the number of those with mail.
	Queued, QueuedBytes, Mailboxes int64
}

// stats are the counters of a relay.
type stats struct {
	mu sync.Mutex
	Stats
}

// count counts a request with its outcome.
func (s *stats) count(operation string, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil {
		var e *air.Error
		if !errors.As(err, &e) {
			e = &air.Error{Code: air.ErrRelay}
		}
		if s.Refusals == nil {
			s.Refusals = make(map[air.Code]int64)
		}
		s.Refusals[e.Code]++
		return
	}
	switch operation {
	case "push":
		s.Pushes++
	case "pull":
		s.Pulls++
	case "ack":
		s.Acks++
	}
}

// Stats returns the counters of the relay.
func (s *Server) Stats() Stats {
	s.stats.mu.Lock()
	list := s.stats.Stats
	list.Refusals = maps.Clone(list.Refusals)
	s.stats.mu.Unlock()
	for _, mb := range s.boxes.fresh() {
		if n := mb.count.Load(); n > 0 {
			list.Queued, list.QueuedBytes, list.Mailboxes = list.Queued+n, list.QueuedBytes+mb.used.Load(), list.Mailboxes+1
		}
	}
	return list
}
