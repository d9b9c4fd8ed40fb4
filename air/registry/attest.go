// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package registry

import (
	"context"
	"crypto"
	"crypto/ed25519"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/mr-tron/base58"

	"github.com/fivewire/fivewire/air"
)

// Kinds of attestations.
const (
	IdentityVerification = "identity_verification"
	OperatorConfirmation = "operator_confirmation"
	Dependency           = "dependency"
	SafetyReview         = "safety_review"
)

// ErrRevoked is the code of the error for an attestation that is not active.
const ErrRevoked air.Code = "revoked"

// An Attestation is a statement of one agent about another, signed by the first.
type Attestation struct {
	ID            int64   `json:"id"`
	Subject       string  `json:"subject_air_id"` // "" in the list of one agent
	Attester      string  `json:"attester_air_id"`
	AttesterRoot  string  `json:"attester_whois_root"`
	Type          string  `json:"attestation_type"`
	Statement     string  `json:"statement"`
	Payload       string  `json:"signed_payload"` // "" in the list of recent ones
	Signature     string  `json:"signature_multibase"`
	SignedAt      Time    `json:"signed_at"`
	AttesterTrust int     `json:"attester_trust_at_issue"`
	Tenure        float64 `json:"tenure_multiplier_at_issue"`
	Weight        float64 `json:"weight"`
	Created       Time    `json:"created_at"`
	Revoked       Time    `json:"revoked_at"` // "" unless revoked
	Active        bool    `json:"is_active"`
}

// Verify checks the signature over the payload with the attester's key, that the payload matches the
// attestation and subject, and that the registry lists the attestation as active (AIR-D91). The error is
// [air.ErrBadKey] without a key, [air.ErrBadSignature] or [ErrRevoked].
func (a *Attestation) Verify(subject string, key *air.PublicKey) error {
	if key == nil || len(key.Bytes()) != ed25519.PublicKeySize {
		return air.Errorf(air.ErrBadKey, "the key is missing")
	}
	payload := a.payload(subject)
	if a.Payload != "" && a.Payload != string(payload) {
		return &air.Error{Code: air.ErrBadSignature, Message: "the signed text differs from the attestation"}
	}
	text, ok := strings.CutPrefix(a.Signature, "z")
	if !ok || len(text) > 90 { // the decoder is quadratic; 64 bytes are 88 characters at most
		return badSignature()
	}
	sig, err := base58.Decode(text)
	if err != nil || len(sig) != ed25519.SignatureSize || !ed25519.Verify(key.Bytes(), payload, sig) {
		return badSignature()
	}
	if isRevoked(*a) {
		return air.Errorf(ErrRevoked, "the attestation is not active")
	}
	return nil
}

func isRevoked(a Attestation) bool { return !a.Active || a.Revoked != "" }

func badSignature() error {
	return &air.Error{Code: air.ErrBadSignature, Message: "signature does not verify"}
}

// A VerifiedStatus is the verification status of a subject after a change.
type VerifiedStatus struct {
	Verified     bool `json:"verified"`
	Score        int  `json:"verification_score"`
	Roots        int  `json:"distinct_whois_roots"`
	Attestations int  `json:"attestation_count"`
}

// AttestParams describes a new attestation.
type AttestParams struct {
	Subject   string // AIR ID
	Type      string // one of the constants
	Statement string // optional

	// SignedAt is the time to sign, to the second. Zero means now.
	SignedAt time.Time
}

// An AttestResult is an attestation that the registry has accepted.
type AttestResult struct {
	RawResponse
	ID             int64          `json:"attestation_id"`
	Subject        string         `json:"subject_air_id"`
	Attester       string         `json:"attester_air_id"`
	Type           string         `json:"attestation_type"`
	SignedAt       Time           `json:"signed_at"`
	Weight         float64        `json:"weight"`
	VerifiedStatus VerifiedStatus `json:"verified_status"` // of the subject
}

// Attestations are attestations of an agent. Total and Active are their numbers at the registry, revoked ones included in
// Total.
type Attestations struct {
	RawResponse
	Subject        string         `json:"subject_air_id"`
	List           []Attestation  `json:"attestations"`
	Total          int            `json:"total"`
	Active         int            `json:"active"`
	VerifiedStatus VerifiedStatus `json:"verified_status"`
}

// RecentAttestations are recent attestations of all agents.
type RecentAttestations struct {
	RawResponse
	List  []Attestation `json:"attestations"`
	Total int           `json:"total"`
	Limit int           `json:"limit"`
}

// A RevokeResult is a revoked attestation.
type RevokeResult struct {
	RawResponse
	Revoked  bool           `json:"revoked"`
	ID       int64          `json:"attestation_id"`
	Subject  string         `json:"subject_air_id"`
	At       Time           `json:"revoked_at"`
	Standing VerifiedStatus `json:"verified_status"`
}

// payload is the signed text: canonical JSON of five strings, which are not normalized, unlike
// those of envelopes.
func (a *Attestation) payload(subject string) []byte {
	f := fields{} // in the order of the names
	f.text("attestation_type", a.Type)
	f.text("attester_air_id", a.Attester)
	f.text("signed_at", string(a.SignedAt))
	f.text("statement", a.Statement)
	f.text("subject_air_id", subject)
	return f.json()
}

// Attest signs an attestation and submits it. The secret is that of the attester.
func (c *Client) Attest(ctx context.Context, attester *air.Identity, secret string, p *AttestParams) (*AttestResult, error) {
	if p == nil {
		p = &AttestParams{}
	}
	if err := checkAIRID(p.Subject); err != nil {
		return nil, err
	}
	switch p.Type {
	case IdentityVerification, OperatorConfirmation, Dependency, SafetyReview:
	default:
		return nil, invalid("no such type of attestation")
	}
	if attester == nil || attester.Signer() == nil {
		return nil, air.Errorf(air.ErrBadKey, "the attester is missing")
	}
	at := p.SignedAt
	if at.IsZero() {
		at = time.Now()
	}
	a := &Attestation{Attester: attester.AIRID(), Type: p.Type, Statement: p.Statement,
		SignedAt: Time(at.UTC().Format("2006-01-02T15:04:05Z"))}
	sig, err := attester.Signer().Sign(nil, a.payload(p.Subject), crypto.Hash(0))
	if err != nil {
		return nil, &air.Error{Code: air.ErrBadKey, Message: "the signer failed", Cause: err}
	}
	f := fields{}
	f.text("attester_air_id", a.Attester)
	f.text("attestation_type", a.Type)
	f.text("signed_at", string(a.SignedAt))
	f.text("signature_multibase", "z"+base58.Encode(sig))
	f.text("statement", p.Statement)
	text, err := c.do(ctx, http.MethodPost, "/agents/"+p.Subject+"/attestations", f.json(), secret)
	if err != nil {
		return nil, err
	}
	return read[AttestResult](text)
}

// ListAttestations returns the attestations of an agent without revoked ones (AIR-D91).
func (c *Client) ListAttestations(ctx context.Context, airID string) (*Attestations, error) {
	all, err := c.ListAllAttestations(ctx, airID)
	if err != nil {
		return nil, err
	}
	all.List = slices.DeleteFunc(all.List, isRevoked)
	return all, nil
}

// ListAllAttestations returns the attestations of an agent, including revoked ones.
func (c *Client) ListAllAttestations(ctx context.Context, airID string) (*Attestations, error) {
	return getAgent[Attestations](ctx, c, airID, "/attestations")
}

// ListRecentAttestations returns recent attestations of all agents without revoked ones (AIR-D91). A limit of zero means
// the default of the registry. The published registry omits the member is_active of these, so Active is false.
func (c *Client) ListRecentAttestations(ctx context.Context, limit int) (*RecentAttestations, error) {
	path := "/attestations/recent"
	if limit > 0 {
		path += "?limit=" + strconv.Itoa(limit)
	}
	recent, err := get[RecentAttestations](ctx, c, path)
	if err != nil {
		return nil, err
	}
	recent.List = slices.DeleteFunc(recent.List, func(a Attestation) bool { return a.Revoked != "" })
	return recent, nil
}

// Revoke revokes an attestation. The secret is that of the attester.
func (c *Client) Revoke(ctx context.Context, subject string, id int64, secret string) (*RevokeResult, error) {
	if err := checkAIRID(subject); err != nil {
		return nil, err
	}
	text, err := c.do(ctx, http.MethodDelete, "/agents/"+subject+"/attestations/"+strconv.FormatInt(id, 10), nil, secret)
	if err != nil {
		return nil, err
	}
	return read[RevokeResult](text)
}
