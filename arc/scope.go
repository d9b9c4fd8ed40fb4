// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package arc

import (
	"github.com/fivewire/fivewire/arc/internal/wire"

	"encoding/json"
	"slices"
	"strings"
)

// The scopes of section 8.
const (
	ScopeAgentCaller    = "arc.agent.caller"
	ScopeAgentReceiver  = "arc.agent.receiver"
	ScopeTaskController = "arc.task.controller"
	ScopeTaskNotify     = "arc.task.notify"
	ScopeChatController = "arc.chat.controller"
)

// RequiredScopes returns the scopes that a caller of method needs, in the order
// of the matrix of section 8. Methods that are not in it go by their family, so
// that a new version of a method never needs less than the method (ARC-D51).
func RequiredScopes(method string) []string {
	switch {
	case method == MethodTaskNotification:
		return []string{ScopeTaskNotify, ScopeAgentReceiver}
	case strings.HasPrefix(method, "task."):
		return []string{ScopeTaskController, ScopeAgentCaller}
	case strings.HasPrefix(method, "chat."):
		return []string{ScopeChatController, ScopeAgentCaller}
	}
	return []string{ScopeAgentCaller}
}

// ParseScopes reads the scopes from the claims of a token, a JSON object: the first
// present claim of scope, scp, scopes and permissions, either a text with spaces or
// a list (ARC-D52).
func ParseScopes(claims json.RawMessage) []string {
	v, err := wire.Check(claims)
	if err != nil {
		return nil
	}
	for _, name := range []string{"scope", "scp", "scopes", "permissions"} {
		claim := v.Get(name)
		if claim.Absent() {
			continue
		}
		if s, ok := claim.Text(); ok {
			return strings.FieldsFunc(s, func(r rune) bool { return r == ' ' })
		}
		return wire.Texts(claim)
	}
	return nil
}

// checkScopes refuses a caller who lacks a scope that method needs. Scopes are
// compared exactly.
func checkScopes(method string, provided []string) *Error {
	required := RequiredScopes(method)
	for _, s := range required {
		if !slices.Contains(provided, s) {
			return scopeFault(required, provided)
		}
	}
	return nil
}

func scopeFault(required, provided []string) *Error {
	o := wire.Open(nil)
	o.Texts("required_scopes", required)
	o.Texts("provided_scopes", provided)
	return &Error{Code: ErrInsufficientScope, Message: ErrInsufficientScope.Message(), Details: o.Close()}
}
