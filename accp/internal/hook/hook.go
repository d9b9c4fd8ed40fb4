// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

// Package hook gives the packages accptest, transcript and bridge access to parts of package accp that are not API. Package
// accp sets the variables when it is initialized.
package hook

import "context"

// SetIDs sets the generator of the message ids of opts, an *accp.SessionOptions.
var SetIDs func(opts any, next func() string)

// Digest returns the digest of an accp.Value (ACCP-D36).
var Digest func(v any) (string, error)

// Address returns the hash of the frames of a checkpoint, and the digits of its id (ACCP-D40).
var Address func(frames []string, summary string) (hash, digits string)

// Hello returns the params of the sync:registry message of an *accp.Registry, with its schemas if hasDelta.
var Hello func(registry any, hasDelta bool) any

// Version returns the version of an *accp.Registry (ACCP-D47).
var Version func(registry any) int64

// Merge adds the schemas of a delta, an accp.Value, to an *accp.Registry (ACCP-D48).
var Merge func(registry, delta any, hash string) error

// ValidateEnvelope checks the envelope of an *accp.Message by an *accp.Codec (ACCP-D21).
var ValidateEnvelope func(codec, m any) error

// Canonical returns the canonical text of an accp.Schema (ACCP-D47).
var Canonical func(schema any) (string, error)

// Apply returns the params of a state after a delta, both accp.Params (ACCP-D44).
var Apply func(state, delta any) any

// Diff returns the delta between two states, all accp.Params (ACCP-D44).
var Diff func(before, after any) any

// Key returns the full and the short form of a key under a schema of an *accp.Registry (ACCP-D30).
var Key func(registry any, key, schema string) (full, short string, err error)

// Hot returns the frames of the messages in hot state of an *accp.Session.
var Hot func(session any) []string

// Sessions returns the sessions of an *accp.Client, a []*accp.Session.
var Sessions func(client any) any

// SkipGreeting lets an *accp.ClientOptions send no greeting before the first message over HTTP.
var SkipGreeting func(opts any)

type refusalKey struct{}

// WithRefusal returns a context with which a server refuses a message by err before it runs a handler.
func WithRefusal(ctx context.Context, err error) context.Context {
	return context.WithValue(ctx, refusalKey{}, err)
}

// Refusal returns the error of a context, or nil.
func Refusal(ctx context.Context) error {
	err, _ := ctx.Value(refusalKey{}).(error)
	return err
}
