// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package arc

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/fivewire/fivewire/arc/internal/wire"
	"github.com/fivewire/fivewire/internal/strictjson"
)

// AgentInfo is what /agent-info tells about one agent (section 5).
type AgentInfo struct {
	AgentID          string
	Name             string // used by some peers
	Description      string // used by some peers
	Capabilities     []string
	Prompt           string // what the agent is to be used for; untrusted text
	Version          string
	Status           string // "active", mostly
	Endpoint         string // the path of the ARC endpoint
	SupportedMethods []string
	Extra            Extra
}

// errAgentInfo reports an answer to /agent-info that has neither of the two forms.
var errAgentInfo = fmt.Errorf("%w: agent info", ErrInvalidResult)

// defaultEndpoint is the path that the specification recommends (ARC-003).
const defaultEndpoint = "/arc"

var agentInfoMembers = []string{"agentId", "name", "description", "capabilities", "prompt", "version", "status", "endpoints", "supportedMethods"}

// DecodeAgentInfo reads a response of /agent-info: the object of one agent, or that of
// an endpoint with several agents, whose member registeredAgents has them by their ids
// (ARC-D67). The order is that of the text.
func DecodeAgentInfo(data []byte) ([]AgentInfo, error) {
	v, err := wire.Check(data)
	if err != nil || !v.IsObject() {
		return nil, errAgentInfo
	}
	if agents := v.Get("registeredAgents"); agents.IsObject() {
		endpoint := endpointOf(v, defaultEndpoint)
		infos := []AgentInfo{}
		for m := agents.Members(); m.Next(); {
			infos = append(infos, agentInfo(m.Value, string(m.Name), endpoint))
		}
		return infos, nil
	}
	if id, _ := v.Get("agentId").Text(); id == "" {
		return nil, errAgentInfo
	}
	return []AgentInfo{agentInfo(v, "", defaultEndpoint)}, nil
}

func endpointOf(v strictjson.Value, otherwise string) string {
	if s, _ := v.Get("endpoints").Get("arc").Text(); s != "" {
		return s
	}
	return otherwise
}

func agentInfo(v strictjson.Value, id, endpoint string) AgentInfo {
	text := func(name string) string { s, _ := v.Get(name).Text(); return s }
	a := AgentInfo{AgentID: cmp.Or(text("agentId"), id), Name: text("name"), Description: text("description"), Prompt: text("prompt"),
		Version: text("version"), Status: text("status"), Endpoint: endpointOf(v, endpoint), Capabilities: wire.Texts(v.Get("capabilities")),
		SupportedMethods: wire.Texts(v.Get("supportedMethods"))}
	for m := v.Members(); m.Next(); {
		if !slices.Contains(agentInfoMembers, string(m.Name)) {
			a.Extra.keep(m.Name, m.Value)
		}
	}
	return a
}

// MarshalJSON writes the object of section 5.
func (a AgentInfo) MarshalJSON() ([]byte, error) {
	o := wire.Open(nil)
	o.Text("agentId", a.AgentID)
	o.OptText("name", a.Name)
	o.OptText("description", a.Description)
	o.Texts("capabilities", a.Capabilities)
	o.OptText("prompt", a.Prompt)
	o.Text("version", a.Version)
	o.Text("status", a.Status)
	o.Object("endpoints")
	o.Text("arc", a.Endpoint)
	o.End()
	o.Texts("supportedMethods", a.SupportedMethods)
	return closeEnvelope(o, nil, a.Extra)
}
