// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package registry

import (
	"time"

	"github.com/fivewire/fivewire/air"
	"github.com/fivewire/fivewire/air/internal/name"
)

// A Time is a time in the registry's format.
type Time string

// Time returns the time and whether t is valid: in RFC 3339 or in the format of databases, with a
// space instead of the T and without a zone for UTC.
func (t Time) Time() (time.Time, bool) {
	for _, layout := range []string{time.RFC3339, "2006-01-02T15:04:05", "2006-01-02 15:04:05"} {
		if at, err := time.Parse(layout, string(t)); err == nil {
			return at.UTC(), true
		}
	}
	return time.Time{}, false
}

// A RawResponse is embedded in the responses of the registry.
type RawResponse struct {
	// JSON is the whole response, including members without a field here.
	JSON []byte `json:"-"`
}

func (a *RawResponse) keep(text []byte) { a.JSON = text }

// Health is the health of the registry.
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

// A TrustScore is the trust of the registry in an agent. It is never part of an envelope (AIR-005).
type TrustScore struct {
	RawResponse
	AIRID        string     `json:"air_id"`
	Total        int        `json:"total_score"`
	Grade        string     `json:"grade"` // from AAA down to C
	Components   Components `json:"components"`
	CalculatedAt Time       `json:"calculated_at"`
}

// A Creator is the party that registered an agent.
type Creator struct {
	DID       string `json:"did"`
	Name      string `json:"name"`
	Type      string `json:"type"`       // individual or organization
	PublicKey string `json:"public_key"` // Ed25519, base64url
}

// A Verification is the progress of the verification of an agent.
type Verification struct {
	Verified      bool `json:"verified"`
	Score         int  `json:"score"`
	ScoreRequired int  `json:"score_required"`
	Attestations  int  `json:"attestation_count"`
	Roots         int  `json:"distinct_whois_roots"`
	RootsRequired int  `json:"distinct_whois_roots_required"`
}

// A Summary is an agent in a list.
type Summary struct {
	AIRID             string `json:"air_id"`
	Name              string `json:"name"`
	Description       string `json:"description"`
	Verified          bool   `json:"verified"`
	VerificationLevel string `json:"verification_level"`
	Demo              bool   `json:"is_demo"`
	TrustScore        int    `json:"trust_score"`
	TrustGrade        string `json:"trust_grade"` // "" for an agent without a score
	Created           Time   `json:"created"`
}

// An Agent is the full entry of an agent.
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
	Components   *Components   `json:"components"`          // nil for an agent without a score
	Status       string        `json:"status"`              // active or deleted
	Updated      Time          `json:"updated"`
}

// A Page is a page of the list of agents.
type Page struct {
	RawResponse
	Agents []Summary `json:"agents"`
	Total  int       `json:"total"`
	Limit  int       `json:"limit"`
	Offset int       `json:"offset"`
}

// A NameInfo lists the agents with a name. Names are not unique: each agent has its own AIR ID.
type NameInfo struct {
	RawResponse
	Name   string       `json:"name"`
	Exists bool         `json:"exists"`
	Count  int          `json:"count"`
	Agents []NamedAgent `json:"existing_agents"`
}

// A NamedAgent is an agent with a name.
type NamedAgent struct {
	AIRID string `json:"air_id"`
	Name  string `json:"name"`
}

// A Service is a published address of an agent, for example an [InboxService].
type Service struct {
	ID       string `json:"id,omitempty"` // optional
	Type     string `json:"type"`
	Endpoint string `json:"serviceEndpoint"`
}

// InboxService returns the service for an address of an inbox.
func InboxService(endpoint string) Service {
	return Service{Type: name.ServiceInbox, Endpoint: endpoint}
}

// RegisterParams describes a new agent. Name is required, and either PublicKey, for which the
// registry creates a DID, or CreatorDID. Empty fields are omitted, except texts.
type RegisterParams struct {
	Name        string
	Description string

	PublicKey  *air.PublicKey
	CreatorDID string // a DID of another method or host

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
	Secret string `json:"agent_secret"` // returned only here, required to change the entry
	Note   string `json:"agent_secret_note"`

	DID       string `json:"creator_did"`
	Minted    bool   `json:"air_minted_did"` // the registry created the DID
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

// UpdateParams changes the entry of an agent. Nil fields stay unchanged; a non-nil empty list is
// sent as an empty list.
type UpdateParams struct {
	Description      *string
	Capabilities     []string
	Certifications   []string
	OpenSource       *bool
	CodeRepository   *string
	DocumentationURL *string
	Services         []Service
}

// An UpdateResult is the result of an update.
type UpdateResult struct {
	RawResponse
	AIRID      string `json:"air_id"`
	Fields     int    `json:"updated_fields"` // number of changed fields
	TrustScore int    `json:"trust_score"`
	TrustGrade string `json:"trust_grade"`
	Updated    Time   `json:"updated"`
	Message    string `json:"message"`
}
