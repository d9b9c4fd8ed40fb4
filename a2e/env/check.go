// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package env

import "github.com/fivewire/fivewire/a2e"

// CheckMember asks for one action for each episode (A2E-105).
func (b *BatchStepRequest) CheckMember(name string) (path, reason string) {
	if name == "actions" && len(b.Actions) != len(b.EpisodeIDs) {
		return "", a2e.ReasonValue
	}
	return "", ""
}
