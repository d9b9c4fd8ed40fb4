// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package discovery

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/big"
	"net/url"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/fivewire/fivewire/arc"
	"github.com/fivewire/fivewire/arc/internal/wire"
	"github.com/fivewire/fivewire/internal/guard"
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
	LastUpdated arc.Timestamp

	// Members of the second shape only.
	AgentID string
	Methods []string

	Extra arc.Extra // everything else
}

// A CardProvider is the organization that offers an agent.
type CardProvider struct {
	Organization string `json:"organization"`
	Contact      string `json:"contact,omitempty"`
	Website      string `json:"website,omitempty"`
}

// CardCapabilities are the abilities of an agent beyond plain calls.
type CardCapabilities struct {
	Streaming         bool `json:"streaming"`
	PushNotifications bool `json:"pushNotifications"`
	FileUpload        bool `json:"fileUpload"`
	Multimodal        bool `json:"multimodal"`
}

// A CardSkill is something that an agent is good at.
type CardSkill struct {
	Name        string `json:"name"`
	Description string `json:"description"`
}

// ErrInvalidCard reports text that is not an agent card, or an invalid card.
var ErrInvalidCard = errors.New("arc: invalid agent card")

var cardMembers = []string{"name", "description", "version", "url", "provider", "visibility", "capabilities", "authentication",
	"skills", "metadata", "agentId", "methods", "apiUrl"}

// DecodeAgentCard reads an agent card of the published schema, or one of the
// Python SDK, where apiUrl replaces the URL and agentId a missing name. Members of
// a wrong type are ignored; [AgentCard.Validate] reports them.
func DecodeAgentCard(data []byte) (*AgentCard, error) {
	v, err := wire.Check(data)
	if err != nil || !v.IsObject() {
		return nil, fmt.Errorf("%w: not a JSON object", ErrInvalidCard)
	}
	text := func(v strictjson.Value, name string) string { s, _ := v.Get(name).Text(); return s }
	c := &AgentCard{Name: text(v, "name"), Description: text(v, "description"), Version: text(v, "version"), URL: text(v, "url"),
		Visibility: text(v, "visibility"), AgentID: text(v, "agentId")}
	if c.Name == "" && c.AgentID == "" {
		return nil, fmt.Errorf("%w: neither name nor agentId", ErrInvalidCard)
	}
	c.Name, c.URL = cmp.Or(c.Name, c.AgentID), cmp.Or(c.URL, text(v, "apiUrl"))
	p, abilities, auth, m := v.Get("provider"), v.Get("capabilities"), v.Get("authentication"), v.Get("metadata")
	flag := func(name string) bool { b, _ := abilities.Get(name).Bool(); return b }
	c.Provider = CardProvider{text(p, "organization"), text(p, "contact"), text(p, "website")}
	c.Capabilities = CardCapabilities{flag("streaming"), flag("pushNotifications"), flag("fileUpload"), flag("multimodal")}
	c.AuthSchemes, c.AuthScopes = wire.Texts(auth.Get("schemes")), wire.Texts(auth.Get("scopes"))
	for e := v.Get("skills").Elements(); e.Next(); {
		if name, ok := e.Value.Text(); ok { // some builders list names only
			c.Skills = append(c.Skills, CardSkill{Name: name})
		} else {
			c.Skills = append(c.Skills, CardSkill{text(e.Value, "name"), text(e.Value, "description")})
		}
	}
	c.Tags, c.Category, c.LastUpdated = wire.Texts(m.Get("tags")), text(m, "category"), arc.Timestamp(text(m, "lastUpdated"))
	if n := m.Get("popularity"); n.Kind() == '0' {
		c.Popularity = json.Number(n)
	}
	c.Methods = wire.Texts(v.Get("methods"))
	for m := v.Members(); m.Next(); {
		if !slices.Contains(cardMembers, string(m.Name)) {
			if c.Extra == nil {
				c.Extra = arc.Extra{}
			}
			c.Extra[string(m.Name)] = slices.Clone(json.RawMessage(m.Value))
		}
	}
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
		fault(!json.Valid([]byte(c.Popularity)) || !between0And5(c.Popularity), "metadata.popularity must be a number from 0 to 5")
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
func (c AgentCard) MarshalJSON() ([]byte, error) {
	type authentication struct {
		Schemes []string `json:"schemes"`
		Scopes  []string `json:"scopes"`
	}
	type metadata struct {
		Tags        []string      `json:"tags"`
		Category    string        `json:"category,omitempty"`
		Popularity  json.Number   `json:"popularity,omitempty"`
		LastUpdated arc.Timestamp `json:"lastUpdated,omitempty"`
	}
	card := struct {
		Name           string           `json:"name"`
		Description    string           `json:"description"`
		Version        string           `json:"version"`
		URL            string           `json:"url"`
		Provider       CardProvider     `json:"provider"`
		Visibility     string           `json:"visibility"`
		Capabilities   CardCapabilities `json:"capabilities"`
		Authentication *authentication  `json:"authentication,omitempty"`
		Skills         []CardSkill      `json:"skills,omitempty"`
		Metadata       *metadata        `json:"metadata,omitempty"`
		AgentID        string           `json:"agentId,omitempty"`
		Methods        []string         `json:"methods,omitempty"`
	}{Name: c.Name, Description: c.Description, Version: c.Version, URL: c.URL, Provider: c.Provider,
		Visibility: c.Visibility, Capabilities: c.Capabilities, Skills: c.Skills, AgentID: c.AgentID, Methods: c.Methods}
	if len(c.AuthSchemes)+len(c.AuthScopes) > 0 {
		card.Authentication = &authentication{append([]string{}, c.AuthSchemes...), append([]string{}, c.AuthScopes...)}
	}
	if len(c.Tags) > 0 || c.Category != "" || c.Popularity != "" || c.LastUpdated != "" {
		card.Metadata = &metadata{append([]string{}, c.Tags...), c.Category, c.Popularity, c.LastUpdated}
	}
	b, err := guard.Encode(card)
	if err != nil {
		return nil, fmt.Errorf("arc: agent card: %w", err)
	}
	b = b[:len(b)-1]
	for _, name := range slices.Sorted(maps.Keys(c.Extra)) {
		if slices.Contains(cardMembers, name) || !json.Valid(c.Extra[name]) {
			return nil, fmt.Errorf("arc: agent card: extra member %q is not JSON or has a reserved name", name)
		}
		b = append(append(strictjson.AppendString(append(b, ','), name), ':'), c.Extra[name]...)
	}
	return append(b, '}'), nil
}

// Card fetches the agent card of one of the endpoints. Cards are not kept.
func (d *Client) Card(ctx context.Context, endpoint string) (*AgentCard, error) {
	for _, u := range d.endpoints {
		if u.String() != endpoint {
			continue
		}
		ctx, cancel := d.bounded(ctx)
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
