// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package form

import (
	"crypto/sha256"
	"encoding/hex"
	"regexp"
	"strings"
)

// The bounds of a name for models: its length, and the part before the hash of a rewritten name.
const (
	maxModelName    = 64
	maxModelNameCut = 55
)

var modelParameter = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_-]{0,63}$`)

// ModelName returns the name of a contract for models (ALT-D42). It depends on the name of the
// contract alone.
func ModelName(contract string) string {
	isPlain := true
	for segment := range strings.SplitSeq(contract, "/") {
		if strings.Contains(segment, "__") || strings.HasPrefix(segment, "_") || strings.HasSuffix(segment, "_") {
			isPlain = false
		}
	}
	joined := strings.ReplaceAll(contract, "/", "__")
	name := modelText(joined)
	if isPlain && name == joined && len(name) <= maxModelName {
		return name
	}
	return withHash(name, contract)
}

// ModelParameter returns the name of a parameter or property for models (ALT-D42).
func ModelParameter(name string) string {
	if modelParameter.MatchString(name) {
		return name
	}
	return withHash(modelText(name), name)
}

// modelText replaces what models do not accept in a name.
func modelText(name string) string {
	text := strings.Map(func(c rune) rune {
		switch {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', c == '_', c == '-':
			return c
		}
		return '_'
	}, name)
	if text == "" || text[0] == '-' || '0' <= text[0] && text[0] <= '9' {
		return "_" + text
	}
	return text
}

func withHash(text, name string) string {
	sum := sha256.Sum256([]byte(name))
	return text[:min(len(text), maxModelNameCut)] + "_" + hex.EncodeToString(sum[:4])
}
