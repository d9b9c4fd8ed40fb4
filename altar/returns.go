// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package altar

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/fivewire/fivewire/internal/strictjson"
)

// loadReturns compiles what results of a contract must be.
func (h *Host) loadReturns(name string) (*field, error) {
	p, ok := h.opts.ResultTypes[name]
	if !ok {
		return nil, nil
	}
	p.Name = "result"
	if err := (&Contract{Name: name, Parameters: []Parameter{p}}).Validate(); err != nil {
		return nil, fmt.Errorf("altar: result type of %s: %w", name, err)
	}
	return &compile([]Parameter{p}).fields[0], nil
}

// stray reports whether a message of a Runtime violates ResultTypes. It is called without h.mu,
// because results can be long.
func (h *Host) stray(hc *hostConn, m Message) (id string, stray bool) {
	var payload json.RawMessage
	switch m := m.(type) {
	case *ToolResult:
		if m.Error != nil {
			return "", false
		}
		id, payload = m.InvocationID, m.Payload
	case *StreamChunk:
		if m.Payload == nil {
			return "", false
		}
		id, payload = m.InvocationID, m.Payload
	default:
		return "", false
	}
	h.mu.Lock()
	var want *field
	if c := callOf(h.sessions.InUse(id)); c != nil && c.IsAt(&hc.runtime) {
		want = c.contract.returns
	}
	h.mu.Unlock()
	if want == nil {
		return "", false
	}
	v, err := strictjson.Check(payload, strictjson.Options{MaxDepth: maxDepth})
	if err != nil {
		return id, true
	}
	n := normalizer{opts: validation{allowNonFinite: h.opts.AllowNonFinite, dropUnknown: h.opts.DropUnknown}}
	n.value(want, want.dims, v)
	return id, len(n.faults) > 0
}

// strayed ends a call whose Runtime answered something else than its contract
// says, so that it cannot smuggle in content either.
func (h *Host) strayed(hc *hostConn, id string, now time.Time) {
	h.stats.Dropped++
	if c := callOf(h.sessions.InUse(id)); c != nil && c.IsAt(&hc.runtime) {
		h.fail(c, errInvalidResult(), "protocol_error", now)
	}
}
