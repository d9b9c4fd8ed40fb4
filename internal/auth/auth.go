// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

// Package auth reads access tokens and finds their principals.
package auth

import (
	"crypto/sha256"
	"errors"
	"strconv"
	"strings"
)

// Name returns the name of a principal in a budget, which no other tenant and id have, and no unauthenticated caller.
func Name(tenant, id string) string {
	if strings.ContainsAny(tenant, "/\"\x00") {
		tenant = strconv.Quote(tenant)
	}
	return tenant + "/" + id
}

// Bearer returns the token of the value of an Authorization header (RFC 6750).
func Bearer(header string) (token string, ok bool) {
	scheme, token, _ := strings.Cut(header, " ")
	token = strings.TrimSpace(token)
	return token, strings.EqualFold(scheme, "Bearer") && token != ""
}

// Keys are the principals of a fixed set of secrets. It is safe for concurrent use.
type Keys[P any] struct {
	principals map[[sha256.Size]byte]*P
}

// NewKeys returns the table of keys. An empty table, an empty key, and a principal that is nil or
// has an empty id are errors. Two keys may have the same principal.
func NewKeys[P any](keys map[string]*P, id func(*P) string) (*Keys[P], error) {
	if len(keys) == 0 {
		return nil, errors.New("API keys: no key")
	}
	k := &Keys[P]{principals: make(map[[sha256.Size]byte]*P, len(keys))}
	for key, p := range keys {
		switch {
		case key == "":
			return nil, errors.New("API keys: empty key")
		case p == nil || id(p) == "":
			return nil, errors.New("API keys: principal without ID")
		}
		k.principals[sha256.Sum256([]byte(key))] = p
	}
	return k, nil
}

// Find returns the principal of a key, or nil. The time of the search depends on the hash of the
// key only, so it does not disclose the keys of the table.
func (k *Keys[P]) Find(key string) *P { return k.principals[sha256.Sum256([]byte(key))] }
