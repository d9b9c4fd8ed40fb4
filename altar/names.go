// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package altar

import (
	"strings"
	"unicode/utf8"
)

const (
	maxIdentifier   = 128
	maxContractName = 200
	maxSegments     = 8
	maxSegment      = 64
	maxInvocationID = 128
	maxTextID       = 256
)

func alnum(c byte) bool {
	return '0' <= c && c <= '9' || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z'
}

// validIdentifier reports whether s is a valid runtime id or session id (ALT-D14).
func validIdentifier(s string) bool {
	if s == "" || len(s) > maxIdentifier || !alnum(s[0]) {
		return false
	}
	for i := 1; i < len(s); i++ {
		switch c := s[i]; {
		case alnum(c), c == '.', c == '_', c == ':', c == '@', c == '-':
		default:
			return false
		}
	}
	return true
}

// validContractName reports whether s is a valid name of a contract (ALT-D14).
func validContractName(s string) bool {
	if len(s) > maxContractName {
		return false
	}
	n := 0
	for seg := range strings.SplitSeq(s, "/") {
		if n++; n > maxSegments || seg == "" || len(seg) > maxSegment || seg[0] == '.' {
			return false
		}
		for i := range len(seg) {
			if c := seg[i]; !alnum(c) && c != '_' && c != '.' && c != '-' {
				return false
			}
		}
	}
	return true
}

func validInvocationID(s string) bool {
	if s == "" || len(s) > maxInvocationID {
		return false
	}
	for i := range len(s) {
		if s[i] < 0x21 || s[i] > 0x7e {
			return false
		}
	}
	return true
}

// validText reports whether s has 1 to limit code points and no control characters.
func validText(s string, limit int) bool {
	if s == "" || utf8.RuneCountInString(s) > limit {
		return false
	}
	for i := range len(s) {
		if s[i] < 0x20 || s[i] == 0x7f {
			return false
		}
	}
	return utf8.ValidString(s)
}

// namespaced returns the name under which a Runtime serves a contract (ALT-D14).
func namespaced(runtimeID, contract string) string {
	if len(contract) > len(runtimeID) && contract[len(runtimeID)] == '/' && contract[:len(runtimeID)] == runtimeID {
		return contract
	}
	return runtimeID + "/" + contract
}

// resolveTool resolves a tool name (ALT-D14) to a contract for any Runtime, or to a contract pinned
// to one Runtime. The function has reports whether a contract exists.
func resolveTool(has func(contract string) bool, toolName string) (contract, runtimeID string, err error) {
	if has(toolName) {
		return toolName, "", nil
	}
	if id, name, ok := strings.Cut(toolName, "/"); ok && validIdentifier(id) && has(name) {
		return name, id, nil
	}
	return "", "", errUnknownContract(toolName)
}

func errUnknownContract(name string) *Error {
	return Errorf(ErrToolNotFound, ReasonUnknownContract, "no contract has the name %.*s", maxContractName, name)
}
