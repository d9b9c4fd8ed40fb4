// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

// Package ledger keeps the state that outlives a Host: sessions, fulfilments, owners of runtime ids, and the claims and
// outcomes of calls. In a store, several Hosts may share it: each holds a lease, and a call is claimed by one Host
// before it is dispatched.
package ledger

import (
	"time"

	"github.com/fivewire/fivewire/altar/internal/core"
)

// A Ledger is what a Host keeps. All methods are safe for concurrent use.
type Ledger interface {
	// CreateSession fails with store.ErrExists if the id is taken.
	CreateSession(id string, s *Session) error
	// Session returns a live session and its fulfilments, or nil.
	Session(id string) (*Session, []Fulfillment, error)
	// Prolong moves the end of a session, but never to an earlier time.
	Prolong(id string, expires time.Time) error
	EndSession(id string) error

	// Own makes a runtime id that of a principal, and reports false if it is another's.
	Own(runtimeID, name, tenant string) (isOwn bool, err error)
	// HoldOwner makes the owner of a runtime id keep it for the lifetime of tombstones and a while.
	HoldOwner(runtimeID string, more time.Duration)
	// PutFulfillment stores the contracts that a Runtime fulfils in a session, or in all for "*".
	PutFulfillment(session string, f Fulfillment) error

	// Claim begins a call. It must not block.
	Claim(c *Claim) (v Verdict, isDecided bool)
	// Record ends a claimed call, see [Call]. It must not block.
	Record(c *Claim, o Outcome) (v Verdict, isRecorded bool)

	// Run works until the Host ends.
	Run()
	// IsShared reports whether other Hosts have the same ledger.
	IsShared() bool
	// Owner returns the present lease of the Host, or "".
	Owner() string
	// Ready fails once another process has the ID of the Host.
	Ready() error
}

// A Session is what is kept of a session. It outlives it, so that its id is not used again too soon.
type Session struct {
	Name     string            `json:"name"` // of the principal
	Tenant   string            `json:"tenant"`
	TTL      int64             `json:"ttl"`     // in nanoseconds
	Expires  int64             `json:"expires"` // likewise, since 1970
	Over     bool              `json:"over"`
	Security *Security         `json:"security"`
	Metadata map[string]string `json:"metadata"`
}

// Security is the security context of a session.
type Security struct {
	PrincipalID string            `json:"principal_id,omitzero"`
	TenantID    string            `json:"tenant_id,omitzero"`
	Claims      map[string]string `json:"claims,omitzero"`
}

// A Fulfillment is the contracts that a Runtime fulfils.
type Fulfillment struct {
	RuntimeID string
	Contracts []string
}

// A Memory is a Ledger that keeps nothing: the Host has it all.
type Memory struct{}

var _ Ledger = Memory{}

// CreateSession implements [Ledger].
func (Memory) CreateSession(string, *Session) error { return nil }

// Session implements [Ledger].
func (Memory) Session(string) (*Session, []Fulfillment, error) { return nil, nil, nil }

// Prolong implements [Ledger].
func (Memory) Prolong(string, time.Time) error { return nil }

// EndSession implements [Ledger].
func (Memory) EndSession(string) error { return nil }

// Own implements [Ledger].
func (Memory) Own(string, string, string) (bool, error) { return true, nil }

// HoldOwner implements [Ledger].
func (Memory) HoldOwner(string, time.Duration) {}

// PutFulfillment implements [Ledger].
func (Memory) PutFulfillment(string, Fulfillment) error { return nil }

// Claim implements [Ledger].
func (Memory) Claim(*Claim) (Verdict, bool) { return Verdict{Result: core.ClaimGranted}, true }

// Record implements [Ledger].
func (Memory) Record(*Claim, Outcome) (Verdict, bool) {
	return Verdict{Result: core.ClaimGranted}, true
}

// Run implements [Ledger].
func (Memory) Run() {}

// Owner implements [Ledger].
func (Memory) Owner() string { return "" }

// IsShared implements [Ledger].
func (Memory) IsShared() bool { return false }

// Ready implements [Ledger].
func (Memory) Ready() error { return nil }
