// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

// Package name has the names of agents: AIR IDs and DIDs.
package name

import "strings"

// IsAIRID reports whether s has the form AIR-XXXX-XXXX-XXXX with groups of digits and upper-case
// letters (AIR-D30).
func IsAIRID(s string) bool {
	if len(s) != 18 || s[:4] != "AIR-" {
		return false
	}
	for i := 4; i < len(s); i++ {
		c := s[i]
		if i%5 == 3 {
			if c != '-' {
				return false
			}
		} else if c-'0' >= 10 && c-'A' >= 26 {
			return false
		}
	}
	return true
}

// AIRIDOf returns the AIR ID of a DID, "" if it has none.
func AIRIDOf(did string) string {
	if id := did[strings.LastIndexByte(did, ':')+1:]; IsAIRID(id) {
		return id
	}
	return ""
}

// ServiceInbox is the type of the service in a DID document that names an agent's inbox.
const ServiceInbox = "A2AInbox"

// A DID is the parsed name of an agent.
type DID struct {
	Host  string // the registry, such as agentidentityregistry.org
	AIRID string // the AIR ID, the last segment
}

// MaxDID bounds a DID, in bytes.
const MaxDID = 500

// ParseDID parses did:wba:host:...:AIR-ID (AIR-D32).
func ParseDID(text string) (d DID, ok bool) {
	rest, ok := strings.CutPrefix(text, "did:wba:")
	host, path, hasPath := strings.Cut(rest, ":")
	if !ok || !hasPath || len(text) > MaxDID || host == "" || len(host) > 253 || !isName(host, '.', '-') {
		return d, false
	}
	for segment := range strings.SplitSeq(path, ":") {
		if segment == "" || !isName(segment, '_', '-') {
			return d, false
		}
		d.AIRID = segment
	}
	d.Host = host
	return d, IsAIRID(d.AIRID)
}

// isName reports whether s consists of letters, digits and two other bytes.
func isName(s string, a, b byte) bool {
	for i := range len(s) {
		if c := s[i]; !isAlphanumeric(c) && c != a && c != b {
			return false
		}
	}
	return true
}

// isAlphanumeric reports whether c is an ASCII letter or digit.
func isAlphanumeric(c byte) bool { return c-'0' < 10 || c|0x20-'a' < 26 }
