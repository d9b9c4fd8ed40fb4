// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package env

import (
	"github.com/fivewire/fivewire/internal/jsonmap"
	"github.com/fivewire/fivewire/internal/strictjson"
)

// CheckMember requires one action for each episode (A2E-105).
func (b *BatchStepRequest) CheckMember(name string) *jsonmap.Fault {
	if name == "actions" && len(b.Actions) != len(b.EpisodeIDs) {
		return &jsonmap.Fault{Reason: jsonmap.Invalid}
	}
	return nil
}

// ReadMember reads an empty list as an empty payload, because deployed peers write one (A2E-D20).
func (a *Action) ReadMember(name string, c *strictjson.Cursor) (isRead bool, f *jsonmap.Fault) {
	if name != "payload" || c.Kind() != '[' {
		return false, nil
	}
	if v, _, _ := c.Raw(); string(strictjson.AppendCompact(nil, v)) != "[]" {
		f = &jsonmap.Fault{Reason: jsonmap.WrongType, Want: "object", Got: "array"}
	}
	return true, f
}
