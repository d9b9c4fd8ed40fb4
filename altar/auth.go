// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package altar

import (
	"context"
	"encoding/json"
	"path"
	"slices"
	"time"

	"github.com/fivewire/fivewire/altar/internal/core"
)

// A Principal is the authenticated caller (ALT-136). Tenant and ID together own sessions and
// Runtimes. It must not be changed after it was passed to a Host.
type Principal struct {
	ID     string
	Tenant string
	Roles  []string

	// Claims are the values that a security context may claim, by the name of
	// the claim (ALT-D21). Every role may be claimed as "role" besides.
	Claims map[string][]string

	// Expires is the end of the authentication. Zero means that it does not end.
	Expires time.Time
}

// principal is the key of the objects that a Principal owns.
func (id *Principal) principal() core.Principal {
	if id == nil {
		return core.Principal{}
	}
	return core.Principal{Tenant: id.Tenant, Name: id.ID}
}

func (id *Principal) grants(claim, value string) bool {
	return slices.Contains(id.Claims[claim], value) || claim == "role" && slices.Contains(id.Roles, value)
}

// An AuthorizeRequest is the call that an [Authorizer] decides about (ALT-137, ALT-138).
type AuthorizeRequest struct {
	Principal *Principal // nil for a caller without one, see HostOptions.Auth.AllowAnonymous
	Session   SessionInfo
	Contract  *Contract

	// RuntimeID is the Runtime that the caller asked for, or empty.
	RuntimeID string

	// Parameters are those that would be dispatched, in normal form; nil if
	// they do not fit the contract, and for Listing. They must not be changed.
	Parameters json.RawMessage

	// ForListing reports that the request is for showing the tool to the caller, not for a call
	// (ALT-D31).
	ForListing bool
}

// SessionInfo tells hooks about a session.
type SessionInfo struct {
	ID              string
	SecurityContext SecurityContext // the effective one
	Metadata        map[string]string
}

// An Authorizer decides whether a call is permitted. The goroutine that reads the caller's
// connection calls it for every call, repeats included, so a slow Authorizer delays this connection
// only. Nil permits the call. An [*Error] is sent unchanged; any other error becomes
// AUTHORIZATION_FAILED denied, and its text is not sent.
type Authorizer interface {
	Authorize(ctx context.Context, r *AuthorizeRequest) error
}

// AuthorizerFunc makes an [Authorizer] of a function.
type AuthorizerFunc func(ctx context.Context, r *AuthorizeRequest) error

// Authorize calls f.
func (f AuthorizerFunc) Authorize(ctx context.Context, r *AuthorizeRequest) error { return f(ctx, r) }

// AllowAll is an [AuthorizerFunc] that lets every caller call everything.
func AllowAll(context.Context, *AuthorizeRequest) error { return nil }

// A RoleRule lets roles use tools.
type RoleRule struct {
	// Tools is a pattern of contract names as of [path.Match], such as
	// "billing/*". A pattern that is malformed matches nothing.
	Tools string

	// Roles may use them. An empty list means every caller.
	Roles []string
}

// RoleAuthorizer returns an [Authorizer] that permits the calls of at least one rule. The roles of
// a caller are those of its principal or, if the security context of the session claims a role,
// that role only (ALT-D21).
func RoleAuthorizer(rules ...RoleRule) Authorizer {
	rules = slices.Clone(rules)
	return AuthorizerFunc(func(_ context.Context, r *AuthorizeRequest) error {
		var roles []string
		if r.Principal != nil {
			roles = r.Principal.Roles
		}
		if role, ok := r.Session.SecurityContext.Claims["role"]; ok {
			roles = []string{role}
		}
		for _, rule := range rules {
			if ok, err := path.Match(rule.Tools, r.Contract.Name); err != nil || !ok {
				continue
			}
			if len(rule.Roles) == 0 || slices.ContainsFunc(rule.Roles, func(role string) bool { return slices.Contains(roles, role) }) {
				return nil
			}
		}
		return ReasonDenied
	})
}

// A FulfillmentRequest is the argument of Auth.FulfillmentAuthorizer.
type FulfillmentRequest struct {
	Principal *Principal
	RuntimeID string
	SessionID string // or "*": all live and future ones
	Contract  *Contract
}

// defaultSecurityContext is the default of Auth.SecurityContextResolver (ALT-D21). The requested
// context must name the caller itself and may claim only grants of the principal.
func defaultSecurityContext(id *Principal, requested *SecurityContext) (*SecurityContext, error) {
	p := id.principal()
	out := &SecurityContext{PrincipalID: p.Name, TenantID: p.Tenant}
	if requested == nil {
		return out, nil
	}
	if requested.PrincipalID != "" && requested.PrincipalID != p.Name {
		return nil, Errorf(ErrAuthorizationFailed, reasonPrincipalMismatch, "the security context names another principal")
	}
	if requested.TenantID != "" && requested.TenantID != p.Tenant {
		return nil, Errorf(ErrAuthorizationFailed, reasonTenantMismatch, "the security context names another tenant")
	}
	for claim, value := range requested.Claims {
		if id == nil || !id.grants(claim, value) {
			return nil, Errorf(ErrAuthorizationFailed, reasonClaimNotGranted, "the security context claims what the caller does not have")
		}
	}
	out.Claims = requested.Claims
	return out, nil
}
