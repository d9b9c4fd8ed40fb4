// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package arc

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/big"
	"net/url"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/fivewire/fivewire/internal/strictjson"
)

// AgentCardPath is where, below the endpoint, an agent card is served and looked
// for.
const AgentCardPath = "/.well-known/a2a-agent-card.json"

// An AgentCard presents an agent to people and to registries. It is not part of
// the specification; deployed peers publish it in two shapes, and
// [DecodeAgentCard] reads both.
type AgentCard struct {
	Name        string
	Description string
	Version     string // of the agent, as 1.2.3
	URL         string // https
	Provider    CardProvider
	Visibility  string // public or private

	Capabilities CardCapabilities
	AuthSchemes  []string // oauth2, bearer, apikey
	AuthScopes   []string
	Skills       []CardSkill

	Tags        []string
	Category    string
	Popularity  json.Number // 0 to 5; empty if absent
	LastUpdated Timestamp

	// Members of the second shape only.
	AgentID string
	Methods []string

	Extra Extra // everything else
}

// A CardProvider is the organization that offers an agent.
type CardProvider struct{ Organization, Contact, Website string }

// CardCapabilities are the abilities of an agent beyond plain calls.
type CardCapabilities struct{ Streaming, PushNotifications, FileUpload, Multimodal bool }

// A CardSkill is something that an agent is good at.
type CardSkill struct{ Name, Description string }

// ErrInvalidCard reports text that is not an agent card, or an invalid card.
var ErrInvalidCard = errors.New("arc: invalid agent card")

var cardMembers = []string{"name", "description", "version", "url", "provider", "visibility", "capabilities", "authentication",
	"skills", "metadata", "agentId", "methods", "apiUrl"}

// DecodeAgentCard reads an agent card of the published schema, or one of the
// Python SDK, where apiUrl replaces the URL and agentId a missing name. Members of
// a wrong type are ignored; [AgentCard.Validate] reports them.
func DecodeAgentCard(data []byte) (*AgentCard, error) {
	v, err := checkJSON(data)
	if err != nil || !v.IsObject() {
		return nil, fmt.Errorf("%w: not a JSON object", ErrInvalidCard)
	}
	r := reader{lenient: true}
	f := r.object(v, cardMembers)
	defer f.done()
	c := &AgentCard{Name: f.peerText(0), Description: f.peerText(1), Version: f.peerText(2), URL: f.peerText(3),
		Visibility: f.peerText(5), AgentID: f.peerText(10)}
	if c.Name == "" && c.AgentID == "" {
		return nil, fmt.Errorf("%w: neither name nor agentId", ErrInvalidCard)
	}
	if c.Name == "" {
		c.Name = c.AgentID
	}
	if api, _ := f.vals[12].Text(); c.URL == "" {
		c.URL = api
	}
	text := func(v strictjson.Value, name string) string { s, _ := v.Get(name).Text(); return s }
	flag := func(name string) bool { b, _ := f.vals[6].Get(name).Bool(); return b }
	p := f.vals[4]
	c.Provider = CardProvider{text(p, "organization"), text(p, "contact"), text(p, "website")}
	c.Capabilities = CardCapabilities{flag("streaming"), flag("pushNotifications"), flag("fileUpload"), flag("multimodal")}
	c.AuthSchemes, c.AuthScopes = textsOf(f.vals[7].Get("schemes")), textsOf(f.vals[7].Get("scopes"))
	for e := f.vals[8].Elements(); e.Next(); {
		if name, ok := e.Value.Text(); ok { // some builders list names only
			c.Skills = append(c.Skills, CardSkill{Name: name})
		} else {
			c.Skills = append(c.Skills, CardSkill{text(e.Value, "name"), text(e.Value, "description")})
		}
	}
	m := f.vals[9]
	c.Tags, c.Category, c.LastUpdated = textsOf(m.Get("tags")), text(m, "category"), Timestamp(text(m, "lastUpdated"))
	if n := m.Get("popularity"); n.Kind() == '0' {
		c.Popularity = json.Number(n)
	}
	c.Methods = textsOf(f.vals[11])
	c.Extra = f.extra
	return c, nil
}

func isCardVersion(s string) bool {
	parts := strings.Split(s, ".")
	for _, p := range parts {
		if p == "" || strings.Trim(p, "0123456789") != "" {
			return false
		}
	}
	return len(parts) == 3
}

// Validate checks a card against the published schema. The error wraps
// [ErrInvalidCard] and lists every violation.
func (c *AgentCard) Validate() error {
	var issues []string
	fault := func(bad bool, issue string) {
		if bad {
			issues = append(issues, issue)
		}
	}
	within := func(s string, limit int) bool { n := utf8.RuneCountInString(s); return n >= 1 && n <= limit }
	fault(!within(c.Name, 100), "name must have 1 to 100 characters")
	fault(!within(c.Description, 500), "description must have 1 to 500 characters")
	fault(!isCardVersion(c.Version), "version must be three numbers with points")
	u, err := url.Parse(c.URL)
	fault(err != nil || u.Scheme != "https" || u.Host == "", "url must be an https URL")
	fault(c.Provider.Organization == "", "provider.organization is required")
	fault(c.Visibility != "public" && c.Visibility != "private", "visibility must be public or private")
	for _, s := range c.AuthSchemes {
		fault(!slices.Contains([]string{"oauth2", "bearer", "apikey"}, s), fmt.Sprintf("authentication scheme %q is unknown", s))
	}
	for i, s := range c.Skills {
		fault(s.Name == "", fmt.Sprintf("skills[%d] has no name", i))
	}
	if c.Popularity != "" {
		v, err := checkJSON([]byte(c.Popularity))
		fault(err != nil || v.Kind() != '0' || !between0And5(c.Popularity), "metadata.popularity must be a number from 0 to 5")
	}
	if c.LastUpdated != "" {
		_, err := c.LastUpdated.Time()
		fault(err != nil, "metadata.lastUpdated must be a timestamp")
	}
	for name := range c.Extra {
		issues = append(issues, fmt.Sprintf("member %q is unknown", name))
	}
	fault(c.AgentID != "" || len(c.Methods) > 0, "agentId and methods belong to the other shape")
	if len(issues) == 0 {
		return nil
	}
	slices.Sort(issues)
	return fmt.Errorf("%w: %s", ErrInvalidCard, strings.Join(issues, "; "))
}

// between0And5 compares exactly, without writing out a great exponent.
func between0And5(n json.Number) bool {
	if len(n) > 32 || strings.ContainsAny(string(n), "eE") {
		return false
	}
	r, ok := new(big.Rat).SetString(string(n))
	return ok && r.Sign() >= 0 && r.Cmp(big.NewRat(5, 1)) <= 0
}

// MarshalJSON writes the card in the shape of the schema.
func (c AgentCard) MarshalJSON() ([]byte, error) { return encode(c.write) }

func (c *AgentCard) write(w *writer) {
	at := w.open()
	w.text("name", c.Name)
	w.text("description", c.Description)
	w.text("version", c.Version)
	w.text("url", c.URL)
	w.key("provider")
	w.open()
	w.text("organization", c.Provider.Organization)
	w.optText("contact", c.Provider.Contact)
	w.optText("website", c.Provider.Website)
	w.close()
	w.text("visibility", c.Visibility)
	w.key("capabilities")
	w.open()
	w.flag("streaming", c.Capabilities.Streaming)
	w.flag("pushNotifications", c.Capabilities.PushNotifications)
	w.flag("fileUpload", c.Capabilities.FileUpload)
	w.flag("multimodal", c.Capabilities.Multimodal)
	w.close()
	if len(c.AuthSchemes)+len(c.AuthScopes) > 0 {
		w.key("authentication")
		w.open()
		w.key("schemes")
		w.strings(c.AuthSchemes)
		w.key("scopes")
		w.strings(c.AuthScopes)
		w.close()
	}
	if len(c.Skills) > 0 {
		w.key("skills")
		w.b = append(w.b, '[')
		for i, s := range c.Skills {
			if i > 0 {
				w.b = append(w.b, ',')
			}
			w.open()
			w.text("name", s.Name)
			w.text("description", s.Description)
			w.close()
		}
		w.b = append(w.b, ']')
	}
	if len(c.Tags) > 0 || c.Category != "" || c.Popularity != "" || c.LastUpdated != "" {
		w.key("metadata")
		w.open()
		w.key("tags")
		w.strings(c.Tags)
		w.optText("category", c.Category)
		w.optNumber("popularity", c.Popularity)
		w.optText("lastUpdated", string(c.LastUpdated))
		w.close()
	}
	w.optText("agentId", c.AgentID)
	if len(c.Methods) > 0 {
		w.key("methods")
		w.strings(c.Methods)
	}
	w.extra(at, c.Extra)
	w.close()
}

// Card fetches the agent card of one of the endpoints. Cards are not kept.
func (d *Discovery) Card(ctx context.Context, endpoint string) (*AgentCard, error) {
	for _, u := range d.endpoints {
		if u.String() != endpoint {
			continue
		}
		ctx, cancel := context.WithTimeoutCause(ctx, d.opts.Timeout, ErrTimeout)
		defer cancel()
		data, err := d.get(ctx, u, strings.TrimSuffix(u.Path, "/")+AgentCardPath)
		if err != nil {
			if ctx.Err() != nil {
				err = context.Cause(ctx)
			}
			return nil, fmt.Errorf("arc: agent card: %w", err)
		}
		return DecodeAgentCard(data)
	}
	return nil, fmt.Errorf("arc: agent card: %q is not an endpoint", endpoint)
}
