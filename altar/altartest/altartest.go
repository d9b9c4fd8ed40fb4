// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

// Package altartest helps tests of programs that use package altar.
package altartest

import (
	"encoding/json"

	"github.com/fivewire/fivewire/altar"
	"github.com/fivewire/fivewire/altar/internal/hook"
)

// Vector runs an operation of the conformance vectors that concerns no exported
// function of package altar. An unknown operation is an error.
func Vector(op string, in json.RawMessage) (json.RawMessage, error) { return hook.Vector(op, in) }

// SessionIDs makes the Hosts with these options take the generated ids of sessions
// from next, which must be quick and must not call the Host.
func SessionIDs(opts *altar.HostOptions, next func() string) { hook.SessionIDs(opts, next) }
