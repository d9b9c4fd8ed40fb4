// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

// Package catalogue has the types of all published namespaces, for programs that read all messages:
// proxies, recorders, tests.
package catalogue

import (
	"slices"

	"github.com/fivewire/fivewire/a2e"
	"github.com/fivewire/fivewire/a2e/chains"
	"github.com/fivewire/fivewire/a2e/env"
	"github.com/fivewire/fivewire/a2e/learn"
	"github.com/fivewire/fivewire/a2e/mcp"
	"github.com/fivewire/fivewire/a2e/memory"
	"github.com/fivewire/fivewire/a2e/planning"
	"github.com/fivewire/fivewire/a2e/proc"
	"github.com/fivewire/fivewire/a2e/skills"
	"github.com/fivewire/fivewire/a2e/subagents"
	"github.com/fivewire/fivewire/a2e/toolkits"
	"github.com/fivewire/fivewire/a2e/tools"
)

// Types returns the types of all published namespaces; the base types, which
// every registry has, are not among them.
func Types() []a2e.Type {
	return slices.Concat(tools.Types(), toolkits.Types(), memory.Types(), proc.Types(), env.Types(), learn.Types(),
		skills.Types(), chains.Types(), mcp.Types(), planning.Types(), subagents.Types())
}
