// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package a2e

import (
	"slices"
	"strings"
)

// A Kind is the role of a message type in a conversation.
type Kind int

// The kinds of message types (A2E-D14).
const (
	KindOther    Kind = iota // unknown by the name
	KindRequest              // gets exactly one answer
	KindResponse             // answers a request
	KindEvent                // an event or notification, never answered
	KindError                // the type "error"
)

// String returns the name of the kind.
func (k Kind) String() string {
	switch k {
	case KindRequest:
		return "request"
	case KindResponse:
		return "response"
	case KindEvent:
		return "event"
	case KindError:
		return "error"
	}
	return "other"
}

// Types of the base protocol.
const (
	typeHandshakeRequest  = "handshake/req"
	typeHandshakeResponse = "handshake/resp"
	typeEvent             = "invoke/event"
	typePing              = "ping"
	typePong              = "pong"
	typeShutdown          = "shutdown"
	typeError             = "error"
)

// typeCancel is the request of the cancel extension, used between ends that
// both announced it.
const typeCancel = "invoke/cancel"

// typeWindow is the event by which an agent grants output of a process (A2E-D62).
const typeWindow = "proc/window/event"

// maxName bounds type strings and message ids in bytes (A2E-D13, A2E-D14).
const maxName = 256

// A typeName is a type string taken apart.
type typeName struct {
	Namespace string // the first segment
	Verb      string // what lies between, joined by "/"
	Suffix    string // req, resp, event or push as third or later segment, else empty
	Kind      Kind
	Response  string // the type that answers it, empty if there is none
}

// parseType splits a type string. Every string can be split; [validType] reports whether it is a
// legal name for an application's type.
func parseType(name string) typeName {
	t := typeName{Kind: kindOf(name), Response: responseType(name)}
	rest := ""
	t.Namespace, rest, _ = strings.Cut(name, "/")
	if rest == "" {
		return t
	}
	i := strings.LastIndexByte(rest, '/')
	if i < 0 {
		t.Verb = rest // the second of two segments is always the verb
		return t
	}
	switch last := rest[i+1:]; last {
	case "req", "resp", "event", "push":
		t.Verb, t.Suffix = rest[:i], last
	default:
		t.Verb = rest
	}
	return t
}

// kindOf returns the kind of a type by its name. A type that is registered as a
// request without saying so in its name is [KindRequest] for its registry only.
func kindOf(name string) Kind {
	switch name {
	case typePing, typeShutdown:
		return KindRequest
	case typePong:
		return KindResponse
	case typeError:
		return KindError
	}
	i := strings.LastIndexByte(name, '/')
	if i >= 0 {
		switch name[i+1:] {
		case "req":
			return KindRequest
		case "resp":
			return KindResponse
		case "event", "push":
			return KindEvent
		}
		switch {
		case plainRequest(name):
			return KindRequest
		case strings.Count(name, "/") == 1:
			return KindEvent
		}
		return KindOther
	}
	if strings.HasPrefix(name, "SUBAGENT_") {
		switch {
		case strings.HasSuffix(name, "_REQ"):
			return KindRequest
		case strings.HasSuffix(name, "_RESP"):
			return KindResponse
		case strings.HasSuffix(name, "_EVENT"):
			return KindEvent
		}
	}
	return KindOther
}

// plainRequest reports whether name is a request of the catalogue that does not
// end in req: those of planning and multi_agent.
func plainRequest(name string) bool {
	return (strings.HasPrefix(name, "planning/") || strings.HasPrefix(name, "multi_agent/")) && capabilityOf(name) != ""
}

// responseType returns the type that answers a request type, or "" if it has
// none or name is no request.
func responseType(name string) string {
	if name == typePing {
		return typePong
	}
	if stem, ok := strings.CutSuffix(name, "/req"); ok {
		return stem + "/resp"
	}
	if stem, ok := strings.CutSuffix(name, "_REQ"); ok && catalogued(stem+"_RESP") {
		return stem + "_RESP"
	}
	if !strings.HasSuffix(name, "/resp") && plainRequest(name) {
		return name + "/resp"
	}
	return ""
}

// validType reports whether name may be registered and sent: segments of
// letters, digits, "_", "." and "-", joined by "/", at most 256 bytes.
func validType(name string) bool {
	if name == "" || len(name) > maxName {
		return false
	}
	empty := true
	for i := range len(name) {
		switch c := name[i]; {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9', c == '_', c == '.', c == '-':
			empty = false
		case c == '/' && !empty:
			empty = true
		default:
			return false
		}
	}
	return !empty
}

// capabilityOf returns the capability that a type of the published namespaces
// belongs to, or "" for base types and types that are not in the catalogue.
func capabilityOf(name string) string {
	if !catalogued(canonicalType(name)) {
		return ""
	}
	if strings.HasPrefix(name, "SUBAGENT_") {
		return "multi_agent"
	}
	namespace, _, _ := strings.Cut(name, "/")
	switch namespace {
	case "tool":
		return "tools"
	case "toolkit":
		return "toolkits"
	case "learn":
		return "learning"
	case "chain":
		return "chains"
	case "invoke", "handshake", "ping", "pong", "shutdown", "error":
		return ""
	}
	return namespace
}

// canonicalType returns the canonical spelling of a type with two published spellings, else name
// itself (A2E-D20).
func canonicalType(name string) string {
	switch name {
	case "env/spaces/req":
		return "env/space/req"
	case "env/spaces/resp":
		return "env/space/resp"
	case "env/state_push":
		return "env/state/push"
	case "mcp/sampling/req":
		return "mcp/sample/req"
	case "mcp/sampling/resp":
		return "mcp/sample/resp"
	case "mcp/roots/list/req":
		return "mcp/root/list/req"
	case "mcp/roots/list/resp":
		return "mcp/root/list/resp"
	}
	return name
}

// hostReading returns the type of an agent's message as read by a host: deployed agents send plan
// requests and sampling responses in the type of the other direction (A2E-D20).
func hostReading(name string) string {
	switch name {
	case "env/plan/resp":
		return "env/plan/req"
	case "mcp/sample/req":
		return "mcp/sample/resp"
	}
	return name
}

func catalogued(name string) bool {
	_, ok := slices.BinarySearch(catalogue[:], name)
	return ok
}

// catalogue lists the published types in byte order.
var catalogue = [...]string{
	"SUBAGENT_AWAIT_REQ",
	"SUBAGENT_AWAIT_RESP",
	"SUBAGENT_CANCEL_REQ",
	"SUBAGENT_DELEGATE_REQ",
	"SUBAGENT_DELEGATE_RESP",
	"SUBAGENT_EVENT",
	"SUBAGENT_LIST_REQ",
	"SUBAGENT_LIST_RESP",
	"SUBAGENT_MERGE_REQ",
	"SUBAGENT_MERGE_RESP",
	"SUBAGENT_MESSAGE_REQ",
	"SUBAGENT_MESSAGE_RESP",
	"SUBAGENT_SPAWN_REQ",
	"SUBAGENT_SPAWN_RESP",
	"SUBAGENT_TERMINATE_REQ",
	"chain/event",
	"chain/req",
	"chain/resp",
	"env/batch_step/req",
	"env/batch_step/resp",
	"env/close/req",
	"env/close/resp",
	"env/exp/list/req",
	"env/exp/list/resp",
	"env/observe/req",
	"env/observe/resp",
	"env/plan/req",
	"env/plan/resp",
	"env/render/req",
	"env/render/resp",
	"env/reset/req",
	"env/reset/resp",
	"env/space/req",
	"env/space/resp",
	"env/state/push",
	"env/step/req",
	"env/step/resp",
	"error",
	"handshake/req",
	"handshake/resp",
	"invoke/event",
	"learn/adapt/req",
	"learn/adapt/resp",
	"learn/experience/req",
	"learn/experience/resp",
	"learn/feedback/req",
	"learn/feedback/resp",
	"learn/refinement/apply/req",
	"learn/refinement/apply/resp",
	"learn/refinement/history/req",
	"learn/refinement/history/resp",
	"learn/refinement/plan/req",
	"learn/refinement/plan/resp",
	"learn/refinement/review/req",
	"learn/refinement/review/resp",
	"learn/refinement/rollback/req",
	"learn/refinement/rollback/resp",
	"learn/stats/req",
	"learn/stats/resp",
	"mcp/prompt/get/req",
	"mcp/prompt/get/resp",
	"mcp/prompt/list/req",
	"mcp/prompt/list/resp",
	"mcp/resource/list/req",
	"mcp/resource/list/resp",
	"mcp/resource/read/req",
	"mcp/resource/read/resp",
	"mcp/resource/subscribe/req",
	"mcp/resource/subscribe/resp",
	"mcp/root/list/req",
	"mcp/root/list/resp",
	"mcp/sample/req",
	"mcp/sample/resp",
	"mcp/server/list/req",
	"mcp/server/list/resp",
	"mcp/server/push",
	"mcp/server/register/req",
	"mcp/server/register/resp",
	"mcp/server/unregister/req",
	"mcp/server/unregister/resp",
	"memory/forget/req",
	"memory/forget/resp",
	"memory/init/req",
	"memory/init/resp",
	"memory/retrieve/req",
	"memory/retrieve/resp",
	"memory/store/req",
	"memory/store/resp",
	"multi_agent/await",
	"multi_agent/await/resp",
	"multi_agent/delegate",
	"multi_agent/delegate/resp",
	"multi_agent/list",
	"multi_agent/list/resp",
	"multi_agent/spawn",
	"multi_agent/spawn/resp",
	"multi_agent/terminate",
	"multi_agent/terminate/resp",
	"ping",
	"planning/plan/board",
	"planning/plan/board/resp",
	"planning/plan/create",
	"planning/plan/create/resp",
	"planning/plan/list",
	"planning/plan/list/resp",
	"planning/task/add",
	"planning/task/add/resp",
	"planning/task/list",
	"planning/task/list/resp",
	"planning/task/update",
	"planning/task/update/resp",
	"pong",
	"proc/kill/req",
	"proc/kill/resp",
	"proc/read/event",
	"proc/spawn/req",
	"proc/spawn/resp",
	"proc/status/req",
	"proc/status/resp",
	"proc/write/req",
	"proc/write/resp",
	"shutdown",
	"skill/call/req",
	"skill/call/resp",
	"skill/discover/req",
	"skill/discover/resp",
	"skill/event",
	"tool/call/req",
	"tool/call/resp",
	"tool/event",
	"tool/list/req",
	"tool/list/resp",
	"toolkit/configure/req",
	"toolkit/configure/resp",
	"toolkit/list/req",
	"toolkit/list/resp",
}
