// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package env

import (
	"encoding/json"
	"errors"
)

// CheckMember requires one action for each episode (A2E-105).
func (b *BatchStepRequest) CheckMember(name string) error {
	if name == "actions" && len(b.Actions) != len(b.EpisodeIDs) {
		return errors.New("env: the episodes and the actions differ in number")
	}
	return nil
}

// ReadMember reads an empty list as an empty payload, because deployed peers write one (A2E-D20).
func (a *Action) ReadMember(name string, value json.RawMessage) (isRead bool) {
	var list []json.RawMessage
	return name == "payload" && json.Unmarshal(value, &list) == nil && len(list) == 0
}
