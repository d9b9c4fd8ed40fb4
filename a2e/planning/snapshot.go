// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package planning

import (
	"context"
	"encoding/json"

	"github.com/fivewire/fivewire/a2e"
)

// What a snapshot of the plans of a session holds.
type (
	savedDesk struct {
		Made  int64       `a2e:"made"`
		Plans []savedPlan `a2e:"plans"`
	}

	savedPlan struct {
		ID      string      `a2e:"plan_id,required"`
		Name    string      `a2e:"name"`
		Columns []string    `a2e:"columns"`
		Tasks   []savedTask `a2e:"tasks"`
	}

	savedTask struct {
		ID          string          `a2e:"task_id,required"`
		Title       string          `a2e:"title"`
		Status      string          `a2e:"status"`
		Description string          `a2e:"description"`
		Assignee    string          `a2e:"assignee"`
		Deps        []string        `a2e:"deps"`
		Metadata    json.RawMessage `a2e:"metadata,object"`
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
	d := state.(*desk)
	d.mu.Lock()
	defer d.mu.Unlock()
	d.made = int(in.Made)
	for _, p := range in.Plans {
		n := &plan{id: p.ID, name: p.Name, columns: p.Columns}
		if len(n.columns) == 0 {
			n.columns = columns()
		}
		for _, t := range p.Tasks {
			n.tasks = append(n.tasks, &task{t.ID, t.Title, t.Status, t.Description, t.Assignee, t.Deps, t.Metadata})
		}
		d.plans = append(d.plans, n)
	}
	return nil
}
