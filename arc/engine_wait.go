// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package arc

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strconv"

	"github.com/fivewire/fivewire/arc/internal/engine"
	"github.com/fivewire/fivewire/arc/internal/wire"
	"github.com/fivewire/fivewire/internal/journal"
	"github.com/fivewire/fivewire/internal/strictjson"
	"github.com/fivewire/fivewire/store"
)

// WaitInput waits for the next message of the caller and returns it. Until then the task is
// INPUT_REQUIRED, and the text of required is the reason in its state and in TASK_PAUSED; a question
// to the caller is a message, added before. A waiting task survives its process: the handler runs
// again when the input comes, and the n-th WaitInput returns the n-th input.
//
// If ctx ends before the task, the task continues without the input, and WaitInput
// returns the error of ctx.
func (r *TaskRun) WaitInput(ctx context.Context, required string) (*Message, error) {
	waits := !r.hasInput()
	if waits {
		if err := r.apply(ctx, &change{action: engine.RequireInput, at: now(), required: required}); err != nil {
			return nil, err
		}
	}
	j, err := r.openJournal()
	if err != nil {
		return nil, err
	}
	r.work.Park()
	if waits {
		r.pausePlace()
		defer func() { _, _ = r.resumePlace(false) }() // always possible
	}
	data, err := j.Await(ctx)
	if err != nil {
		if err := r.apply(ctx, &change{action: engine.Resume, at: now()}); err != nil && !r.hasInput() {
			return nil, err
		} else if err == nil {
			return nil, errors.Join(r.work.Resume(), context.Cause(ctx))
		}
		data, err = j.Await(&r.work) // it was accepted at the last moment
	}
	if resumeErr := r.work.Resume(); resumeErr != nil {
		return nil, resumeErr // in a shutdown the next owner continues
	}
	if err != nil {
		return nil, err
	}
	return r.readInput(data)
}

// hasInput reports whether the next input was accepted.
func (r *TaskRun) hasInput() bool {
	r.task.mu.Lock()
	defer r.task.mu.Unlock()
	return r.task.state.Inputs > r.consumed
}

// readInput reads the input at a position among the items.
func (r *TaskRun) readInput(position []byte) (*Message, error) {
	seq, err := strconv.ParseUint(string(position), 10, 64)
	if err != nil {
		return nil, fmt.Errorf("arc: input: %w", err)
	}
	r.consume()
	if err := store.Persist(&r.work, r.reload); err != nil { // the journal does not return the input again
		return nil, err
	}
	var records []store.Record
	err = store.Persist(&r.work, func(ctx context.Context) (err error) {
		records, err = r.engine.db.Read(ctx, taskItems(r.task.id), seq-1, 1)
		return err
	})
	if err != nil || len(records) == 0 || records[0].Seq != seq {
		return nil, fmt.Errorf("arc: input %d not read: %w", seq, cmp.Or(err, store.ErrNotFound))
	}
	return itemOf(records[0])
}

// reload reads the task with an input that another process accepted.
func (r *TaskRun) reload(ctx context.Context) error {
	r.task.mu.Lock()
	defer r.task.mu.Unlock()
	_, err := r.engine.loadLocked(ctx, r.task, r.engine.s.isShared)
	return err
}

// consume counts an input.
func (r *TaskRun) consume() {
	r.task.mu.Lock()
	defer r.task.mu.Unlock()
	r.consumed++
}

// openJournal opens the journal of the run before its first use. The record has to mention it
// (ARC-D74).
func (r *TaskRun) openJournal() (*journal.Run, error) {
	r.opening.Lock()
	defer r.opening.Unlock()
	switch {
	case r.isOver:
		return nil, ErrClosed
	case r.journal != nil:
		return r.journal, nil
	}
	if err := r.noteJournal(); err != nil {
		return nil, err
	}
	j, err := r.engine.s.runs.Open(&r.work, r.task.id, journal.RunOptions{})
	if err == nil {
		r.journal = j
	}
	return j, err
}

// closeJournal closes the journal, which the handler must not open later.
func (r *TaskRun) closeJournal() {
	r.opening.Lock()
	defer r.opening.Unlock()
	r.isOver = true
	if r.journal != nil {
		r.journal.Close()
	}
}

func (r *TaskRun) noteJournal() error {
	return r.engine.s.persist(&r.base, func(ctx context.Context) error {
		r.task.mu.Lock()
		defer r.task.mu.Unlock()
		if r.task.state.IsJournaled {
			return nil
		}
		return r.engine.editLocked(ctx, r.task, func(st *taskState) error {
			if st.Owner != r.owner {
				return errTakenOver
			}
			st.IsJournaled = true
			return nil
		})
	})
}

// Step runs f once in the life of a task and returns its result, which is JSON of at most 1 MiB. If the
// process ends, the task runs again from the beginning in any process that serves the agent, and a
// Step with a kept result returns that without running f. An error of f is not kept. If the process ends
// before the result is kept, f runs again with the same stepID, which other services can take as an
// idempotency key. The n-th Step of a name has the n-th result of that name; a task has at most 10,000
// steps and inputs.
func Step[T any](ctx context.Context, r *TaskRun, name string, f func(ctx context.Context, stepID string) (T, error)) (T, error) {
	var result T
	j, err := r.openJournal()
	if err != nil {
		return result, err
	}
	data, err := j.Step(ctx, name, func(ctx context.Context, stepID string) ([]byte, error) {
		v, err := f(ctx, stepID)
		if err != nil {
			return nil, err
		}
		return strictjson.Encode(v)
	})
	if err != nil {
		return result, err
	}
	v, err := wire.Check(data)
	if err == nil {
		err = strictjson.Decode(v, &result)
	}
	if err != nil {
		return result, fmt.Errorf("arc: step %s: %w", name, err)
	}
	return result, nil
}
