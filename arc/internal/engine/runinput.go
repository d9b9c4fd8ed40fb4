// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/fivewire/fivewire/store"
)

// maxInputs bounds the inputs of a task.
const maxInputs = 10_000

// Errors of WaitInput.
var (
	errWaiting    = errors.New("arc: wait for input: another call waits")
	errManyInputs = fmt.Errorf("arc: wait for input: the task has had %d inputs", maxInputs)
)

// WaitInput waits for the next input and returns it, a message. Until then the task waits for the required input. If ctx
// ends first, the task continues without the input.
func (r *Run) WaitInput(ctx context.Context, required string) ([]byte, error) {
	if !r.isWaiting.CompareAndSwap(false, true) {
		return nil, errWaiting
	}
	defer r.isWaiting.Store(false)
	if r.hasInput() {
		return r.nextInput()
	}
	if r.record().Inputs >= maxInputs {
		return nil, errManyInputs
	}
	if err := r.apply(&change{Change: Change{Action: RequireInput, At: Now(), Required: required}}); err != nil {
		return nil, err
	}
	r.park()
	err := r.wait(ctx)
	if err != nil && !r.hasInput() {
		failed := r.apply(&change{Change: Change{Action: Resume, At: Now()}})
		switch {
		case failed == nil:
			return nil, errors.Join(r.unpark(), err)
		case !r.hasInput():
			_ = r.unpark()
			return nil, failed
		} // it was accepted at the last moment
	}
	if err := r.unpark(); err != nil {
		return nil, err // in a shutdown the next owner continues
	}
	return r.nextInput()
}

// park begins a wait of the handler: no shutdown waits for the run, and its place is free. unpark ends it, and with the last
// one of several the run has a place again. In a shutdown unpark returns an error.
func (r *Run) park() {
	r.waiting.Lock()
	defer r.waiting.Unlock()
	if r.waits++; r.waits == 1 {
		r.work.Park()
		r.pausePlace()
	}
}

func (r *Run) unpark() error {
	r.waiting.Lock()
	defer r.waiting.Unlock()
	if r.waits--; r.waits > 0 {
		return nil
	}
	r.resumePlace()
	return r.work.Resume()
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
	var input []byte
	err := r.e.persist(&r.work, func(ctx context.Context) (err error) {
		input, err = r.readInput(ctx, rec.Last)
		return err
	})
	if err != nil {
		return nil, err
	}
	r.t.mu.Lock()
	defer r.t.mu.Unlock()
	if input == nil {
		return nil, fmt.Errorf("arc: input %d of task %s: %w", r.consumed+1, r.t.id, store.ErrNotFound)
	}
	r.consumed++
	return input, nil
}

// readInput reads the next input of the list that ends at the position last, or returns nil. It notes the positions of
// the inputs behind it, so that no item is read more than twice.
func (r *Run) readInput(ctx context.Context, last uint64) ([]byte, error) {
	if len(r.inputs) > 0 {
		page, err := r.e.db.Read(ctx, r.t.items, r.inputs[0]-1, 1)
		if err != nil || len(page) == 0 || page[0].Seq != r.inputs[0] {
			return nil, err
		}
		r.inputs = r.inputs[1:]
		return page[0].Value[linkLen+1:], nil
	}
	list, err := r.e.readItems(ctx, r.t.items, r.readTo, last)
	if err != nil {
		return nil, err
	}
	list = slices.DeleteFunc(list, func(item store.Record) bool { return item.Value[0] != itemInput })
	if r.readTo == 0 && len(list) > 0 {
		list = list[1:] // the initial message
	}
	r.readTo = last
	if len(list) == 0 {
		return nil, nil
	}
	for _, item := range list[1:] {
		r.inputs = append(r.inputs, item.Seq)
	}
	return list[0].Value[1:], nil
}
