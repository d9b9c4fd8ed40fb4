// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package planning

import (
	"context"
	"encoding/json"

	"github.com/fivewire/fivewire/a2e"
)

// The contents of a snapshot of the plans of a session.
type (
	savedDesk struct {
		Made  int64       `json:"made,omitzero" jsonmap:"always"`
		Plans []savedPlan `json:"plans,omitzero" jsonmap:"always"`
	}

	savedPlan struct {
		ID      string      `json:"plan_id"`
		Name    string      `json:"name,omitzero" jsonmap:"always"`
		Columns []string    `json:"columns,omitzero" jsonmap:"always"`
		Tasks   []savedTask `json:"tasks,omitzero" jsonmap:"always"`
	}

	savedTask struct {
		ID          string          `json:"task_id"`
		Title       string          `json:"title,omitzero" jsonmap:"always"`
		Status      string          `json:"status,omitzero" jsonmap:"always"`
		Description string          `json:"description,omitzero" jsonmap:"always"`
		Assignee    string          `json:"assignee,omitzero" jsonmap:"always"`
		Deps        []string        `json:"deps,omitzero" jsonmap:"always"`
		Metadata    json.RawMessage `json:"metadata,omitzero" jsonmap:"always,object"`
	}
)

func save(_ context.Context, state any) (json.RawMessage, error) {
	d := state.(*desk)
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.plans) == 0 {
		return nil, nil
	}
	out := &savedDesk{Made: int64(d.made)}
	for _, p := range d.plans {
		kept := savedPlan{ID: p.id, Name: p.name, Columns: p.columns}
		for _, t := range p.tasks {
			kept.Tasks = append(kept.Tasks, savedTask{t.id, t.title, t.status, t.description, t.assignee, t.deps, t.metadata})
		}
		out.Plans = append(out.Plans, kept)
	}
	return a2e.EncodeModel(out)
}

func restore(_ context.Context, state any, object json.RawMessage) error {
	in, err := a2e.DecodeModel[savedDesk](object, "")
	if err != nil {
		return err
	}
	made := desk{made: int(in.Made)}
	for _, p := range in.Plans {
		n := &plan{id: p.ID, name: p.Name, columns: p.Columns}
		if len(n.columns) == 0 {
			n.columns = columns()
		}
		for _, t := range p.Tasks {
			own := &task{t.ID, t.Title, t.Status, t.Description, t.Assignee, t.Deps, t.Metadata}
			n.add(own)
			made.size += own.size()
		}
		made.plans = append(made.plans, n)
		made.size += n.size()
	}
	d := state.(*desk)
	if err := d.session.Reserve(int64(made.size)); err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.made, d.plans, d.size = made.made, made.plans, made.size
	return nil
}
