// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package tools

import (
	"context"
	"encoding/json"

	"github.com/fivewire/fivewire/a2e"
)

// Execute runs a tool and returns its data, for nodes of chains: it is an
// Executor of package chains. A result without success is an error.
func (s *Set) Execute(ctx context.Context, call *a2e.Call, name string, input json.RawMessage) (json.RawMessage, error) {
	result, err := s.Run(ctx, call, name, input)
	if err != nil {
		return nil, err
	}
	return result.Data, result.Err()
}
