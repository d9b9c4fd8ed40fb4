// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package registry

import (
	"time"

	"github.com/fivewire/fivewire/air"
)

// A Time is a point in time as the registry writes it.
type Time string

// Time returns the time and whether t is one, in RFC 3339 or as databases write
// it: a space instead of the T, no zone for UTC.
func (t Time) Time() (time.Time, bool) {
	for _, layout := range []string{time.RFC3339, "2006-01-02T15:04:05", "2006-01-02 15:04:05"} {
		if at, err := time.Parse(layout, string(t)); err == nil {
			return at.UTC(), true
		}
	}
	return time.Time{}, false
}

// An RawResponse is embedded in what the registry answers.
type RawResponse struct {
	// JSON is the whole answer as it came, with members that have no field here.
	JSON []byte `json:"-"`
}

func (a *RawResponse) keep(text []byte) { a.JSON = text }

// Health tells that the registry is alive.
type Health struct {
	RawResponse
	Status   string `json:"status"`
	Version  string `json:"version"`
	Registry string `json:"registry"`
}

// Components are the parts of a trust score, each from 0 to 1000.
type Components struct {
	Provenance   int `json:"provenance"`
	Behavioral   int `json:"behavioral"`
	Transparency int `json:"transparency"`
	Security     int `json:"security"`
	Attestations int `json:"peer_attestations"`
}

// A TrustScore is how far the registry trusts an agent. It is never part of an
// envelope (AIR-005).
type TrustScore struct {
	RawResponse
	AIRID        string     `json:"air_id"`
	Total        int        `json:"total_score"`
	Grade        string     `json:"grade"` // from AAA down to C
	Components   Components `json:"components"`
	CalculatedAt Time       `json:"calculated_at"`
}

// A Creator is who registered an agent.
type Creator struct {
	DID       string `json:"did"`
	Name      string `json:"name"`
	Type      string `json:"type"`       // individual or organization
	PublicKey string `json:"public_key"` // Ed25519, base64url
}

// A Verification is how far an agent is from being verified, and whether it is.
type Verification struct {
	Verified      bool `json:"verified"`
	Score         int  `json:"score"`
	ScoreRequired int  `json:"score_required"`
	Attestations  int  `json:"attestation_count"`
	Roots         int  `json:"distinct_whois_roots"`
	RootsRequired int  `json:"distinct_whois_roots_required"`
}

// A Summary is an agent as it stands in a list.
type Summary struct {
	AIRID             string `json:"air_id"`
	Name              string `json:"name"`
	Description       string `json:"description"`
	Verified          bool   `json:"verified"`
	VerificationLevel string `json:"verification_level"`
	Demo              bool   `json:"is_demo"`
	TrustScore        int    `json:"trust_score"`
	TrustGrade        string `json:"trust_grade"` // "" for an agent that has no score
	Created           Time   `json:"created"`
}

// An Agent is all that the registry tells of an agent.
type Agent struct {
	RawResponse
	Summary
	Creator      Creator  `json:"creator"`
	Capabilities []string `json:"capabilities"`
	Security     struct {
		Certifications []string `json:"certifications"`
	} `json:"security"`
	Transparency struct {
		OpenSource       bool   `json:"open_source"`
		CodeRepository   string `json:"code_repository"`
		DocumentationURL string `json:"documentation_url"`
	} `json:"transparency"`
	Verification *Verification `json:"verification_status"` // nil from older registries
	Components   *Components   `json:"components"`          // nil for an agent that has no score
	Status       string        `json:"status"`              // active or deleted
	Updated      Time          `json:"updated"`
}

// A Page is a part of the list of agents.
type Page struct {
	RawResponse
	Agents []Summary `json:"agents"`
	Total  int       `json:"total"`
	Limit  int       `json:"limit"`
	Offset int       `json:"offset"`
}

// A NameInfo is what the registry knows of a name. Names are not unique: each agent
// has an AIR ID of its own whatever it is called.
type NameInfo struct {
	RawResponse
	Name   string       `json:"name"`
	Exists bool         `json:"exists"`
	Count  int          `json:"count"`
	Agents []NamedAgent `json:"existing_agents"`
}

// NamedAgent is an agent that has a name.
type NamedAgent struct {
	AIRID string `json:"air_id"`
	Name  string `json:"name"`
}

// A Service is where an agent can be reached for something, an [air.ServiceInbox]
// for example.
type Service struct {
	ID       string `json:"id,omitempty"` // optional
	Type     string `json:"type"`
	Endpoint string `json:"serviceEndpoint"`
}

// ServiceInbox returns the service that makes an agent reachable for envelopes.
func InboxService(endpoint string) Service {
	return Service{Type: air.ServiceInbox, Endpoint: endpoint}
}

// RegisterParams describe a new agent. Name is needed, and either PublicKey, for
// which the registry makes a DID, or CreatorDID. Empty fields other than the
// texts are left out.
type RegisterParams struct {
	Name        string
	Description string

	PublicKey  *air.PublicKey
	CreatorDID string // a DID that the caller controls elsewhere

	CreatorName string
	CreatorType string // empty means individual

	Capabilities     []string
	Certifications   []string
	OpenSource       bool
	CodeRepository   string
	DocumentationURL string
	Services         []Service
}

// A Registration is a new agent.
type Registration struct {
	RawResponse
	AIRID  string `json:"air_id"`
	Secret string `json:"agent_secret"` // shown only here, needed to change the entry
	Note   string `json:"agent_secret_note"`

	DID       string `json:"creator_did"`
	Minted    bool   `json:"air_minted_did"` // the registry made the DID
	PublicKey string `json:"public_key"`     // base64url
	Resolved  *bool  `json:"did_wba_resolved"`

	Name              string   `json:"name"`
	Status            string   `json:"status"`
	VerificationLevel string   `json:"verification_level"`
	TrustScore        int      `json:"trust_score"`
	TrustGrade        string   `json:"trust_grade"`
	Created           Time     `json:"created"`
	Warnings          []string `json:"warnings"`
	Message           string   `json:"message"`
}

// UpdateParams change the entry of an agent. What is nil stays as it is; a list
// that is empty but not nil is sent as an empty list.
type UpdateParams struct {
	Description      *string
	Capabilities     []string
	Certifications   []string
	OpenSource       *bool
	CodeRepository   *string
	DocumentationURL *string
	Services         []Service
}

// An UpdateResult tells what became of a change.
type UpdateResult struct {
	RawResponse
	AIRID      string `json:"air_id"`
	Fields     int    `json:"updated_fields"` // how many were changed
	TrustScore int    `json:"trust_score"`
	TrustGrade string `json:"trust_grade"`
	Updated    Time   `json:"updated"`
	Message    string `json:"message"`
}
