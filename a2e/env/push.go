// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package env

import (
	"context"

	"github.com/fivewire/fivewire/a2e"
)

// PushState tells an agent what changed in an episode without its doing. Agents that
// did not ask for that, by the flag env_push in their handshake, are told
// nothing (A2E-106).
func PushState(ctx context.Context, s *a2e.Session, change *StatePush) error {
	if !s.HasCapability(a2e.FeatureEnvPush) {
		return nil
	}
	return s.Send(ctx, "env/state/push", change)
}
