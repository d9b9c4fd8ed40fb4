// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package chains

import (
	"fmt"

	"github.com/fivewire/fivewire/a2e"
)

// Kinds of a [Node] (A2E-117).
const (
	NodeSkill  = "skill"
	NodeTool   = "tool"
	NodeProc   = "proc"
	NodeBranch = "branch"
	NodeMap    = "map"
)

// Values of [Node.OnError] other than the id of a node (A2E-120).
const (
	OnErrorAbort = "abort"
	OnErrorSkip  = "skip"
)

// Validate checks the structure of a chain before anything runs (A2E-D48): first each node, then
// the entry, then the references between nodes, all of which are edges that must not form a cycle.
// Every error is an [*a2e.Error].
func Validate(nodes []Node, entry string) error {
	index := make(map[string]int, len(nodes))
	for i := range nodes {
		n := &nodes[i]
		if _, twice := index[n.NodeID]; twice || n.NodeID == "" {
			return refuse(i, "node_id", a2e.ReasonValue)
		}
		index[n.NodeID] = i
		switch n.Kind {
		case NodeSkill, NodeTool, NodeProc, NodeBranch:
		case NodeMap:
			if n.MapNode == "" {
				return refuse(i, "map_node", a2e.ReasonRequired)
			}
		default:
			return refuse(i, "kind", a2e.ReasonValue)
		}
	}
	if _, ok := index[entry]; !ok {
		err := a2e.SchemaViolation("entry_node", a2e.ReasonValue)
		err.Capability = Capability
		return err
	}
	edges := make([][]int, len(nodes))
	for i := range nodes {
		for _, r := range nodes[i].references() {
			to, ok := index[r.to]
			if !ok {
				return refuse(i, r.field, a2e.ReasonValue)
			}
			edges[i] = append(edges[i], to)
		}
	}
	if cyclic(edges) {
		err := a2e.Errorf(a2e.ErrChainCycle, "the nodes of the chain run in a circle")
		err.Capability = Capability
		return err
	}
	return nil
}

func refuse(i int, field, reason string) error {
	err := a2e.SchemaViolation(fmt.Sprintf("nodes[%d].%s", i, field), reason)
	err.Capability = Capability
	return err
}

type reference struct{ field, to string }

func (n *Node) references() []reference {
	var list []reference
	for _, r := range [...]reference{{"next_node", n.NextNode}, {"true_node", n.TrueNode}, {"false_node", n.FalseNode},
		{"map_node", n.MapNode}, {"on_error", n.OnError}} {
		if r.to == "" || r.field == "on_error" && (r.to == OnErrorAbort || r.to == OnErrorSkip) {
			continue
		}
		list = append(list, r)
	}
	return list
}

// cyclic removes nodes without incoming edges until no such node is left, and reports whether nodes
// remain.
func cyclic(edges [][]int) bool {
	in := make([]int, len(edges))
	for _, to := range edges {
		for _, j := range to {
			in[j]++
		}
	}
	var free []int
	for i, n := range in {
		if n == 0 {
			free = append(free, i)
		}
	}
	removedCount := 0
	for len(free) > 0 {
		i := free[len(free)-1]
		free = free[:len(free)-1]
		removedCount++
		for _, j := range edges[i] {
			if in[j]--; in[j] == 0 {
				free = append(free, j)
			}
		}
	}
	return removedCount < len(edges)
}
