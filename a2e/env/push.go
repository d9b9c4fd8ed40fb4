// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package env

import (
	"context"

	"github.com/fivewire/fivewire/a2e"
)

// PushState notifies an agent of a change of an episode that the agent did not cause. Agents
// without the feature flag env_push in their handshake receive nothing (A2E-106).
func PushState(ctx context.Context, s *a2e.Session, change *StatePush) error {
	if !s.HasCapability("env_push") {
		return nil
	}
	return s.Send(ctx, "env/state/push", change)
}
