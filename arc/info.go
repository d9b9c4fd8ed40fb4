// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package arc

import (
	"fmt"

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

// DecodeAgentInfo reads a response of /agent-info: the object of the
// specification, or a list, which peers with several agents behind one endpoint
// return (ARC-D67). The order is that of the text.
func DecodeAgentInfo(data []byte) ([]AgentInfo, error) {
	v, err := checkJSON(data)
	if err != nil || !v.IsObject() {
		return nil, errAgentInfo
	}
	r := reader{lenient: true}
	if agents := v.Get("registeredAgents"); agents.IsObject() {
		endpoint := endpointOf(v, defaultEndpoint)
		infos := []AgentInfo{}
		for m := agents.Members(); m.Next(); {
			infos = append(infos, r.agentInfo(m.Value, string(m.Name), endpoint))
		}
		return infos, nil
	}
	if id, _ := v.Get("agentId").Text(); id == "" {
		return nil, errAgentInfo
	}
	return []AgentInfo{r.agentInfo(v, "", defaultEndpoint)}, nil
}

func endpointOf(v strictjson.Value, otherwise string) string {
	if s, _ := v.Get("endpoints").Get("arc").Text(); s != "" {
		return s
	}
	return otherwise
}

func (r *reader) agentInfo(v strictjson.Value, id, endpoint string) AgentInfo {
	f := r.object(v, agentInfoMembers)
	defer f.done()
	a := AgentInfo{AgentID: f.peerText(0), Name: f.peerText(1), Description: f.peerText(2), Prompt: f.peerText(4),
		Version: f.peerText(5), Status: f.peerText(6), Endpoint: endpointOf(v, endpoint)}
	if a.AgentID == "" {
		a.AgentID = id
	}
	a.Capabilities = textsOf(f.vals[3])
	a.SupportedMethods = textsOf(f.vals[8])
	a.Extra = f.extra
	return a
}

// textsOf returns the strings of an array.
func textsOf(v strictjson.Value) []string {
	list := []string{}
	for e := v.Elements(); e.Next(); {
		if s, ok := e.Value.Text(); ok {
			list = append(list, s)
		}
	}
	return list
}

// write writes the object of the specification.
func (a *AgentInfo) write(w *writer) {
	at := w.open()
	w.text("agentId", a.AgentID)
	w.optText("name", a.Name)
	w.optText("description", a.Description)
	array(w, "capabilities", a.Capabilities, element)
	w.optText("prompt", a.Prompt)
	w.text("version", a.Version)
	w.text("status", a.Status)
	w.key("endpoints")
	w.open()
	w.text("arc", a.Endpoint)
	w.close()
	array(w, "supportedMethods", a.SupportedMethods, element)
	w.extra(at, a.Extra)
	w.close()
}

// MarshalJSON writes the object of section 5.
func (a AgentInfo) MarshalJSON() ([]byte, error) { return encode(a.write) }
