// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package airtest

import (
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"time"

	"github.com/fivewire/fivewire/air/registry"
	"github.com/fivewire/fivewire/internal/strictjson"
)

// Requirements for the verified status.
const (
	scoreRequired = 300
	rootsRequired = 3
	weight        = 100
)

// standingLocked sums the active attestations of an agent. Every attester counts as one root. r.mu
// must be held.
func (r *Registry) standingLocked(a *agent) registry.VerifiedStatus {
	var s registry.VerifiedStatus
	roots := make(map[string]bool)
	for _, at := range r.attestations {
		if at.Subject == a.airID && at.Active {
			s.Attestations++
			s.Score += weight
			roots[at.AttesterRoot] = true
		}
	}
	s.Roots = len(roots)
	s.Verified = s.Score >= scoreRequired && s.Roots >= rootsRequired
	return s
}

func (r *Registry) attestLocked(subject *agent, secret string, body []byte) (object, *refusal) {
	v, refused := readObject(body)
	if refused != nil {
		return nil, refused
	}
	text := func(name string) string { s, _ := v.Get(name).Text(); return s }
	attester := r.agents[text("attester_air_id")]
	if attester == nil || attester.key == nil {
		return nil, refuse(http.StatusBadRequest, "Unknown attester, or one without a public key")
	}
	if refused := attester.authorized(secret); refused != nil {
		return nil, refused
	}
	if attester == subject {
		return nil, refuse(http.StatusConflict, "An agent cannot attest itself")
	}
	now := stamp(time.Now())
	at := &registry.Attestation{ID: int64(len(r.attestations) + 1), Subject: subject.airID, Attester: attester.airID,
		AttesterRoot: attester.airID + ".example", Type: text("attestation_type"), Statement: text("statement"), Signature: text("signature_multibase"),
		SignedAt: registry.Time(text("signed_at")), AttesterTrust: score, Tenure: 1, Weight: weight, Created: registry.Time(now), Active: true}
	if at.Verify(subject.airID, attester.key) != nil {
		return nil, refuse(http.StatusBadRequest, "Signature verification failed")
	}
	r.attestations = append(r.attestations, at)
	at.Payload = string(canonical(at))
	out := attestation(at)
	out["attestation_id"], out["subject_air_id"], out["verified_status"] = at.ID, at.Subject, r.standingLocked(subject)
	return out, nil
}

// canonical is the text that was signed, the members in the order of their names.
func canonical(at *registry.Attestation) []byte {
	text := []byte("{")
	for i, m := range [][2]string{{"attestation_type", at.Type}, {"attester_air_id", at.Attester}, {"signed_at", string(at.SignedAt)},
		{"statement", at.Statement}, {"subject_air_id", at.Subject}} {
		if i > 0 {
			text = append(text, ',')
		}
		text = strictjson.AppendString(append(strictjson.AppendString(text, m[0]), ':'), m[1])
	}
	return append(text, '}')
}

func attestation(at *registry.Attestation) object {
	var revoked any
	if at.Revoked != "" {
		revoked = at.Revoked
	}
	return object{"id": at.ID, "attester_air_id": at.Attester, "attester_whois_root": at.AttesterRoot, "attestation_type": at.Type,
		"statement": at.Statement, "signed_payload": at.Payload, "signature_multibase": at.Signature,
		"signed_at": at.SignedAt, "attester_trust_at_issue": at.AttesterTrust, "tenure_multiplier_at_issue": at.Tenure, "weight": at.Weight,
		"revoked_at": revoked, "is_active": at.Active, "created_at": at.Created}
}

func (r *Registry) attestationsOfLocked(a *agent) object {
	list, active := []object{}, 0
	for _, at := range r.attestations {
		if at.Subject != a.airID {
			continue
		}
		list = append(list, attestation(at))
		if at.Active {
			active++
		}
	}
	return object{"subject_air_id": a.airID, "attestations": list, "total": len(list), "active": active, "verified_status": r.standingLocked(a)}
}

func (r *Registry) recentLocked(q url.Values) object {
	limit := number(q, "limit", 50, 1, 200)
	list := []object{}
	for _, at := range slices.Backward(r.attestations) {
		if at.Active && len(list) < limit {
			one := attestation(at)
			one["subject_air_id"] = at.Subject
			delete(one, "signed_payload")
			list = append(list, one)
		}
	}
	return object{"attestations": list, "total": len(list), "limit": limit}
}

func (r *Registry) revokeLocked(subject *agent, id, secret string) (object, *refusal) {
	n, err := strconv.Atoi(id)
	if err != nil || n < 1 || n > len(r.attestations) || r.attestations[n-1].Subject != subject.airID {
		return nil, refuse(http.StatusNotFound, "Attestation not found")
	}
	at := r.attestations[n-1]
	if refused := r.agents[at.Attester].authorized(secret); refused != nil {
		return nil, refused
	}
	if !at.Active {
		return nil, refuse(http.StatusConflict, "Attestation already revoked")
	}
	at.Active, at.Revoked = false, registry.Time(stamp(time.Now()))
	return object{"revoked": true, "attestation_id": at.ID, "subject_air_id": at.Subject, "revoked_at": at.Revoked,
		"verified_status": r.standingLocked(subject)}, nil
}
