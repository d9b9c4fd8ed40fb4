// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"context"

	"github.com/fivewire/fivewire/air"
	"github.com/fivewire/fivewire/air/internal/name"
)

// A Directory lists the agents with a mailbox at a [Server].
type Directory interface {
	// LookupDID returns the DID of the agent with that AIR ID, or [air.ErrNotFound]. Another error is
	// answered with 502 (9.1). It is called concurrently.
	LookupDID(ctx context.Context, airID string) (string, error)
}

// DirectoryFunc makes a function a [Directory].
type DirectoryFunc func(ctx context.Context, airID string) (string, error)

// LookupDID calls f.
func (f DirectoryFunc) LookupDID(ctx context.Context, airID string) (string, error) {
	return f(ctx, airID)
}

// NewStaticDirectory returns a directory of the given DIDs.
func NewStaticDirectory(dids ...string) Directory {
	byAIRID := make(map[string]string, len(dids))
	for _, did := range dids {
		byAIRID[name.AIRIDOf(did)] = did
	}
	return DirectoryFunc(func(_ context.Context, airID string) (string, error) {
		if did, ok := byAIRID[airID]; ok {
			return did, nil
		}
		return "", air.Errorf(air.ErrNotFound, "no such agent here")
	})
}

// NewRegistryDirectory returns a directory of the agents in the registry.
func NewRegistryDirectory(r *air.Resolver) Directory {
	return DirectoryFunc(func(ctx context.Context, airID string) (string, error) {
		d, err := r.Resolve(ctx, airID)
		if err != nil {
			return "", err
		}
		if name.AIRIDOf(d.ID) != airID {
			return "", air.Errorf(air.ErrNotFound, "the document is that of another agent")
		}
		return d.ID, nil
	})
}
