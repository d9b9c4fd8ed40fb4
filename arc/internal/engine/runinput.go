// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"context"
	"errors"
	"fmt"

	"github.com/fivewire/fivewire/internal/journal"
	"github.com/fivewire/fivewire/store"
)

// maxInputs bounds the inputs of a task.
const maxInputs = 10_000

// WaitInput waits for the next input and returns it, a message. Until then the task waits for the required input. If ctx
// ends first, the task continues without the input.
func (r *Run) WaitInput(ctx context.Context, required string) ([]byte, error) {
	if !r.isWaiting.CompareAndSwap(false, true) {
		return nil, journal.ErrBusy
	}
	defer r.isWaiting.Store(false)
	if r.hasInput() {
		return r.nextInput()
	}
	if r.record().Inputs >= maxInputs {
		return nil, journal.ErrTooLarge
	}
	if err := r.apply(&change{Change: Change{Action: RequireInput, At: Now(), Required: required}}); err != nil {
		return nil, err
	}
	r.work.Park()
	r.pausePlace()
	err := r.wait(ctx)
	r.resumePlace()
	if err != nil && !r.hasInput() {
		failed := r.apply(&change{Change: Change{Action: Resume, At: Now()}})
		switch {
		case failed == nil:
			return nil, errors.Join(r.work.Resume(), err)
		case !r.hasInput():
			return nil, failed
		} // it was accepted at the last moment
	}
	if err := r.work.Resume(); err != nil {
		return nil, err // in a shutdown the next owner continues
	}
	return r.nextInput()
}

// wait waits until the task has an input.
func (r *Run) wait(ctx context.Context) error {
	for {
		changed := r.t.watch() // before the record is read
		if r.hasInput() {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-r.work.Done():
			return context.Cause(&r.work)
		}
	}
}

// hasInput reports whether the next input was accepted.
func (r *Run) hasInput() bool {
	r.t.mu.Lock()
	defer r.t.mu.Unlock()
	return r.t.rec.Inputs > r.consumed
}

// nextInput returns the next accepted input.
func (r *Run) nextInput() ([]byte, error) {
	rec := r.record()
	var list []store.Record
	err := r.e.persist(&r.work, func(ctx context.Context) (err error) {
		list, err = r.e.readItems(ctx, r.t.items, r.inputAt, rec.Last)
		return err
	})
	if err != nil {
		return nil, err
	}
	r.t.mu.Lock()
	defer r.t.mu.Unlock()
	for _, item := range list {
		if item.Value[0] != itemInput {
			continue
		}
		isInitial := r.inputAt == 0
		r.inputAt = item.Seq
		if !isInitial {
			r.consumed++
			return item.Value[1:], nil
		}
	}
	return nil, fmt.Errorf("arc: input %d of task %s: %w", r.consumed+1, r.t.id, store.ErrNotFound)
}
