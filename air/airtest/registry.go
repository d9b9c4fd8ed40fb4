// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package airtest

import (
	"crypto/ed25519"
	"crypto/rand"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/fivewire/fivewire/air"
	"github.com/fivewire/fivewire/air/internal/name"
	"github.com/fivewire/fivewire/air/registry"
	"github.com/fivewire/fivewire/internal/guard"
	"github.com/fivewire/fivewire/internal/strictjson"
)

// A Registry is a test double of the Agent Identity Registry. It serves the DID documents of its
// agents and the public API with the responses that the published clients read. Scores are fixed.
// The zero value is an empty registry. All methods are safe for concurrent use.
type Registry struct {
	// KeyUpdates accepts a public_key in an update. The published registry does not.
	KeyUpdates bool

	// MaxRegistrations bounds the registrations per hour; the published registry allows five per
	// address. Zero means no bound.
	MaxRegistrations int

	mu           sync.Mutex
	agents       map[string]*agent // by AIR ID
	attestations []*registry.Attestation
	status       int
	lookups      int
	hour         time.Time
	registered   int // in that hour
}

// An agent is an entry of the registry.
type agent struct {
	airID, did, creator, name, secret string
	key                               *air.PublicKey // nil: no document
	services                          []registry.Service
	document                          []byte         // served instead of a generated one
	entry                             map[string]any // members of the entry as registered and updated
	created, updated                  time.Time
}

// Document returns a DID document in the format of the registry. An empty endpoint omits the inbox.
func Document(did, publicKey, endpoint string) []byte {
	var services []registry.Service
	if endpoint != "" {
		services = []registry.Service{{ID: did + "#a2a-inbox", Type: name.ServiceInbox, Endpoint: endpoint}}
	}
	return document(did, publicKey, services)
}

func document(did, publicKey string, services []registry.Service) []byte {
	key := did + "#key-1"
	if services == nil {
		services = []registry.Service{}
	}
	return encode(object{
		"@context": []string{"https://www.w3.org/ns/did/v1", "https://w3id.org/security/suites/ed25519-2020/v1"},
		"id":       did,
		"verificationMethod": []object{{
			"id": key, "type": "Ed25519VerificationKey2020", "controller": did, "publicKeyMultibase": publicKey,
		}},
		"authentication":  []string{key},
		"assertionMethod": []string{key},
		"service":         services,
	})
}

type object = map[string]any

func encode(v any) []byte {
	text, err := guard.Encode(v)
	if err != nil {
		panic(err) // v has texts, numbers and lists of them only
	}
	return text
}

// putLocked returns the agent with an AIR ID, and adds it if missing. r.mu must be held.
func (r *Registry) putLocked(airID string) *agent {
	if r.agents == nil {
		r.agents = make(map[string]*agent)
	}
	a := r.agents[airID]
	if a == nil {
		now := time.Now()
		a = &agent{airID: airID, did: DID(airID), name: airID, entry: object{}, created: now, updated: now}
		r.agents[airID] = a
	}
	return a
}

// Register registers an agent or replaces its entry.
func (r *Registry) Register(id *air.Identity, endpoint string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	a := r.putLocked(id.AIRID())
	a.did, a.creator, a.key, a.document, a.services = id.DID(), id.DID(), id.PublicKey(), nil, nil
	if endpoint != "" {
		a.services = []registry.Service{{ID: id.DID() + "#a2a-inbox", Type: name.ServiceInbox, Endpoint: endpoint}}
	}
}

// PutDocument serves any document for an AIR ID.
func (r *Registry) PutDocument(airID string, document []byte) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.putLocked(airID).document = document
}

// Secret returns the secret for changes of an agent's entry, and creates a missing one.
func (r *Registry) Secret(airID string) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	a := r.putLocked(airID)
	if a.secret == "" {
		a.secret = newSecret()
	}
	return a.secret
}

// SetFailure sets the status of all further responses; zero restores normal service.
func (r *Registry) SetFailure(status int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.status = status
}

// LookupCount returns the number of requests for documents.
func (r *Registry) LookupCount() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.lookups
}

// A refusal is an error response of the registry.
type refusal struct {
	status int
	body   object
}

func refuse(status int, text string) *refusal { return &refusal{status, object{"error": text}} }

// ServeHTTP answers the requests of the public API, under /api/v1/.
func (r *Registry) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(time.Minute)) // not every transport has deadlines
	body, err := io.ReadAll(http.MaxBytesReader(w, req.Body, 64<<10))
	if err != nil {
		http.Error(w, "the request is too large", http.StatusRequestEntityTooLarge)
		return
	}
	r.mu.Lock()
	status, answer, refused := r.answerLocked(req, body)
	r.mu.Unlock()
	if refused != nil {
		status, answer = refused.status, encode(refused.body)
		if after, ok := refused.body["retry_after_seconds"].(int); ok {
			w.Header().Set("Retry-After", strconv.Itoa(after))
		}
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(answer) // the caller may have disconnected
}

// answerLocked routes a request. r.mu must be held.
func (r *Registry) answerLocked(req *http.Request, body []byte) (int, []byte, *refusal) {
	path, ok := strings.CutPrefix(req.URL.Path, "/api/v1/")
	parts := strings.Split(path, "/")
	if ok && len(parts) == 3 && parts[2] == "did-document" {
		r.lookups++
	}
	if r.status != 0 {
		return 0, nil, refuse(r.status, http.StatusText(r.status))
	}
	q := req.URL.Query()
	made := http.StatusOK
	var v any
	var refused *refusal
	switch route := req.Method + " " + path; {
	case !ok:
		refused = refuse(http.StatusNotFound, "Not found")
	case route == "GET health":
		v = object{"status": "ok", "version": "test", "registry": "AIR"}
	case route == "GET agents":
		v = r.listLocked(q)
	case route == "GET agents/check-name":
		v, refused = r.checkNameLocked(q.Get("name"))
	case route == "POST agents/register":
		made = http.StatusCreated
		v, refused = r.registerLocked(body)
	case route == "GET attestations/recent":
		v = r.recentLocked(q)
	case parts[0] == "agents" && len(parts) >= 2:
		return r.answerAgentLocked(req, parts, body)
	default:
		refused = refuse(http.StatusNotFound, "Not found")
	}
	if refused != nil {
		return 0, nil, refused
	}
	return made, encode(v), nil
}

// answerAgentLocked routes a request to one agent. r.mu must be held.
func (r *Registry) answerAgentLocked(req *http.Request, parts []string, body []byte) (int, []byte, *refusal) {
	a := r.agents[parts[1]]
	if a == nil {
		return 0, nil, &refusal{http.StatusNotFound, object{"error": "Agent not found", "air_id": parts[1]}}
	}
	made := http.StatusOK
	var v any
	var refused *refusal
	secret := req.Header.Get("X-Agent-Secret")
	route := req.Method + " " + strings.Join(parts[2:], "/")
	if len(parts) == 4 && parts[2] == "attestations" {
		route = req.Method + " attestations/*"
	}
	switch route {
	case "GET ":
		v = r.agentLocked(a)
	case "PUT ":
		v, refused = r.updateLocked(a, secret, body)
	case "DELETE ":
		refused = refuse(http.StatusUnauthorized, "Missing X-Admin-Key")
	case "GET trust-score":
		v = object{"air_id": a.airID, "total_score": score, "grade": grade, "components": components, "calculated_at": stamp(a.updated)}
	case "GET did-document":
		switch {
		case a.document != nil:
			return http.StatusOK, a.document, nil
		case a.key != nil:
			return http.StatusOK, document(a.did, a.key.String(), a.services), nil
		}
		refused = &refusal{http.StatusNotFound, object{"error": "Agent has no public key", "air_id": a.airID}}
	case "GET attestations":
		v = r.attestationsOfLocked(a)
	case "POST attestations":
		made = http.StatusCreated
		v, refused = r.attestLocked(a, secret, body)
	case "DELETE attestations/*":
		v, refused = r.revokeLocked(a, parts[3], secret)
	default:
		refused = refuse(http.StatusNotFound, "Not found")
	}
	if refused != nil {
		return 0, nil, refused
	}
	return made, encode(v), nil
}

// All agents have the same trust score.
const (
	score = 500
	grade = "BB"
)

var components = registry.Components{Provenance: score, Behavioral: score, Transparency: score, Security: score, Attestations: score}

func stamp(t time.Time) string { return t.UTC().Format("2006-01-02T15:04:05.000Z") }

func newSecret() string {
	b := make([]byte, 16)
	rand.Read(b) // never fails
	return hex.EncodeToString(b)
}

func newAIRID() string {
	const alphabet = "0123456789ABCDEFGHJKMNPQRSTVWXYZ" // Crockford's
	b := make([]byte, 12)
	rand.Read(b) // never fails
	for i := range b {
		b[i] = alphabet[b[i]%32]
	}
	return fmt.Sprintf("AIR-%s-%s-%s", b[:4], b[4:8], b[8:])
}

func (r *Registry) sortedLocked() []*agent {
	list := make([]*agent, 0, len(r.agents))
	for _, a := range r.agents {
		list = append(list, a)
	}
	slices.SortFunc(list, func(a, b *agent) int { return strings.Compare(a.airID, b.airID) })
	return list
}

func number(q url.Values, name string, def, low, high int) int {
	n, err := strconv.Atoi(q.Get(name))
	if err != nil {
		return def
	}
	return min(max(n, low), high)
}

func (r *Registry) summaryLocked(a *agent) object {
	return object{"air_id": a.airID, "name": a.name, "description": or(a.entry["description"], ""), "verified": r.standingLocked(a).Verified,
		"verification_level": "self_declared", "is_demo": false, "trust_score": score, "trust_grade": grade, "created": stamp(a.created)}
}

func or(v, otherwise any) any {
	if v == nil {
		return otherwise
	}
	return v
}

func (r *Registry) listLocked(q url.Values) object {
	limit, offset := number(q, "limit", 20, 1, 100), number(q, "offset", 0, 0, 1<<30)
	all := r.sortedLocked()
	agents := []object{}
	for _, a := range all[min(offset, len(all)):min(offset+limit, len(all))] {
		agents = append(agents, r.summaryLocked(a))
	}
	return object{"agents": agents, "total": len(all), "limit": limit, "offset": offset}
}

func (r *Registry) checkNameLocked(name string) (object, *refusal) {
	if name == "" {
		return nil, refuse(http.StatusBadRequest, "Missing required query parameter: name")
	}
	found := []object{}
	for _, a := range r.sortedLocked() {
		if a.name == name {
			found = append(found, object{"air_id": a.airID, "name": a.name})
		}
	}
	return object{"name": name, "exists": len(found) > 0, "count": len(found), "existing_agents": found}, nil
}

func (r *Registry) agentLocked(a *agent) object {
	v := r.summaryLocked(a)
	var key any
	if a.key != nil {
		key = base64.RawURLEncoding.EncodeToString(a.key.Bytes())
	}
	s := r.standingLocked(a)
	v["@context"], v["type"] = "https://agentidentityregistry.org/contexts/v1", "Agent"
	v["creator"] = object{"did": a.creator, "name": a.entry["creator_name"], "type": a.entry["creator_type"], "public_key": key}
	v["capabilities"] = or(a.entry["capabilities"], []string{})
	v["security"] = object{"certifications": or(a.entry["security_certifications"], []string{})}
	v["transparency"] = object{"open_source": or(a.entry["open_source"], false), "code_repository": a.entry["code_repository"],
		"documentation_url": a.entry["documentation_url"]}
	v["verification_status"] = object{"verified": s.Verified, "score": s.Score, "score_required": scoreRequired, "attestation_count": s.Attestations,
		"distinct_whois_roots": s.Roots, "distinct_whois_roots_required": rootsRequired}
	v["status"], v["updated"], v["components"] = "active", stamp(a.updated), components
	return v
}

// entryFields has the kind of each member of an entry.
var entryFields = map[string]byte{"description": '"', "creator_name": '"', "creator_type": '"', "capabilities": '[',
	"security_certifications": '[', "open_source": 't', "code_repository": '"', "documentation_url": '"'}

// read takes over the members of a request that may be changed, and returns how
// many they were.
func (a *agent) read(v strictjson.Value, names ...string) (int, *refusal) {
	n := 0
	entry := maps.Clone(a.entry)
	for _, name := range names {
		m := v.Get(name)
		if m.Absent() {
			continue
		}
		kind := m.Kind()
		if kind == 'f' {
			kind = 't'
		}
		if kind != entryFields[name] {
			return n, refuse(http.StatusBadRequest, "Invalid "+name)
		}
		entry[name] = m.Any()
		n++
	}
	if m := v.Get("service_endpoints"); !m.Absent() {
		if !m.IsArray() { // AIR-163
			return n, refuse(http.StatusBadRequest, "service_endpoints must be an array")
		}
		var services []registry.Service
		if strictjson.Decode(m, &services) != nil || slices.ContainsFunc(services, func(s registry.Service) bool { return s.Type == "" || s.Endpoint == "" }) {
			return n, refuse(http.StatusBadRequest, "Invalid service_endpoints")
		}
		for i := range services {
			if services[i].ID == "" {
				services[i].ID = a.did + "#" + services[i].Type
			}
		}
		a.services = services
		n++
	}
	a.entry = entry
	return n, nil
}

func readObject(body []byte) (strictjson.Value, *refusal) {
	v, err := strictjson.Check(body, strictjson.Options{})
	if err != nil || !v.IsObject() {
		return nil, refuse(http.StatusBadRequest, "Invalid JSON body")
	}
	return v, nil
}

func readKey(v strictjson.Value) (*air.PublicKey, *refusal) {
	text, _ := v.Text()
	raw, err := base64.RawURLEncoding.Strict().DecodeString(strings.TrimSuffix(text, "="))
	if err != nil || len(raw) != ed25519.PublicKeySize {
		return nil, refuse(http.StatusBadRequest, "Invalid public_key: must be 43 or 44 base64url chars")
	}
	key, err := air.NewPublicKey(raw)
	if err != nil {
		return nil, refuse(http.StatusBadRequest, "Invalid public_key")
	}
	return key, nil
}

func (r *Registry) registerLocked(body []byte) (object, *refusal) {
	v, refused := readObject(body)
	if refused != nil {
		return nil, refused
	}
	now := time.Now()
	if left := time.Hour - now.Sub(r.hour); r.MaxRegistrations > 0 {
		if left <= 0 {
			r.hour, r.registered = now, 0
		} else if r.registered >= r.MaxRegistrations {
			return nil, &refusal{http.StatusTooManyRequests, object{"error": "Rate limit exceeded", "message": "Too many registrations",
				"retry_after_seconds": int((left + time.Second - 1) / time.Second)}}
		}
		r.registered++
	}
	name, _ := v.Get("name").Text()
	if name == "" {
		return nil, refuse(http.StatusBadRequest, "Missing required field: name")
	}
	airID := newAIRID()
	a := &agent{airID: airID, did: DID(airID), name: name, secret: newSecret(), entry: object{}, created: now, updated: now}
	a.creator, _ = v.Get("creator_did").Text()
	if key := v.Get("public_key"); !key.Absent() {
		if a.key, refused = readKey(key); refused != nil {
			return nil, refused
		}
	}
	var minted any
	switch {
	case a.creator == "" && a.key == nil:
		return nil, refuse(http.StatusBadRequest, "Missing required field: creator_did or public_key")
	case a.creator == "":
		a.creator, minted = a.did, true
	}
	if _, refused := a.read(v, "description", "creator_name", "creator_type", "capabilities", "security_certifications", "open_source",
		"code_repository", "documentation_url"); refused != nil {
		return nil, refused
	}
	if r.agents == nil {
		r.agents = make(map[string]*agent)
	}
	r.agents[airID] = a
	out := object{"air_id": airID, "name": name, "creator_did": a.creator, "air_minted_did": minted, "status": "active",
		"verification_level": "self_declared", "trust_score": score, "trust_grade": grade, "created": stamp(now), "agent_secret": a.secret,
		"agent_secret_note": "Store this secret: it is not shown again", "message": "Agent registered"}
	if a.key != nil {
		out["public_key"] = base64.RawURLEncoding.EncodeToString(a.key.Bytes())
	}
	return out, nil
}

func (a *agent) authorized(secret string) *refusal {
	if secret == "" {
		return refuse(http.StatusUnauthorized, "Missing X-Agent-Secret header")
	}
	if secret != a.secret {
		return refuse(http.StatusUnauthorized, "Invalid agent secret")
	}
	return nil
}

func (r *Registry) updateLocked(a *agent, secret string, body []byte) (object, *refusal) {
	if refused := a.authorized(secret); refused != nil {
		return nil, refused
	}
	v, refused := readObject(body)
	if refused != nil {
		return nil, refused
	}
	n, refused := a.read(v, "description", "capabilities", "security_certifications", "open_source", "code_repository", "documentation_url")
	if refused != nil {
		return nil, refused
	}
	if m := v.Get("public_key"); r.KeyUpdates && !m.Absent() {
		key, refused := readKey(m)
		if refused != nil {
			return nil, refused
		}
		a.key = key
		n++
	}
	if n == 0 {
		return nil, refuse(http.StatusBadRequest, "No updatable fields provided")
	}
	a.updated = time.Now()
	return object{"air_id": a.airID, "updated_fields": n, "trust_score": score, "trust_grade": grade, "updated": stamp(a.updated), "message": "Agent updated"}, nil
}
