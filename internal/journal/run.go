// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package journal

import (
	"cmp"
	"context"
	"crypto/sha256"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/fivewire/fivewire/internal/guard"
	"github.com/fivewire/fivewire/internal/state"
)

// RunOptions configure one run.
type RunOptions struct {
	// ParkAfter is the time of a wait after which the run is parked while its process lives, for
	// handlers whose side effects all are in steps. Zero or less means never.
	ParkAfter time.Duration

	// OnWait, if set, is called before and after each wait, on its goroutine.
	OnWait func(isWaiting bool)
}

// A Run is the journal of one run, for its handler. Its methods are safe for concurrent use. Occurrences
// of one name are counted: the handler has to use the same names again when it runs again. Work
// in other goroutines than that of an Await or a Sleep counts as work in a Step only.
type Run struct {
	t      *Table
	id     string
	stream string
	o      RunOptions
	rerun  func() // of a parked run; nil if open
	ctx    context.Context
	cancel context.CancelCauseFunc
	notice chan struct{} // of inputs; capacity 1
	lock   chan struct{} // full during an append or a read; capacity 1
	timer  *time.Timer   // of the end of a parked run
	renew  *time.Timer   // of the time to live

	mu      sync.Mutex      // guards all below
	history                 // changed with lock too
	active  map[string]bool // names in use
	uses    map[string]int  // of names, without failures
	waits   []*entry        // in progress
	steps   int             // in progress
}

// newRun returns a run whose lock is held.
func (t *Table) newRun(ctx context.Context, id string, o RunOptions, rerun func()) *Run {
	r := &Run{t: t, id: id, stream: t.stream(id), o: o, rerun: rerun, notice: make(chan struct{}, 1),
		lock: make(chan struct{}, 1), history: newHistory(rerun != nil), active: map[string]bool{}, uses: map[string]int{}}
	r.ctx, r.cancel = context.WithCancelCause(ctx)
	r.timer, r.renew = time.AfterFunc(never, r.fire), time.AfterFunc(never, r.renewTTL)
	r.lock <- struct{}{}
	return r
}

// loadLocked adds r to its table and reads the journal. r.lock must be held.
func (r *Run) loadLocked() error {
	err := fmt.Errorf("%w: run %q", ErrBusy, r.id)
	if r.t.add(r) {
		err = r.syncLocked(r.ctx, toEnd)
	}
	if err != nil {
		r.end(err)
		return err
	}
	if r.count == 0 {
		r.expires = time.Now().Add(keep)
	}
	r.renew.Reset(max(0, min(keep/2, time.Until(r.expires)-keep/2)))
	if r.rerun == nil {
		return nil
	}
	context.AfterFunc(r.ctx, func() { r.end(nil) })
	if r.isWaiting() {
		r.timer.Reset(r.left())
	}
	return nil
}

// end ends the context of r with a cause, and reports whether r was in its table.
func (r *Run) end(cause error) bool {
	isPresent := r.t.remove(r)
	r.cancel(cause)
	r.timer.Stop()
	r.renew.Stop()
	return isPresent
}

// Context returns the context of the handler. It ends with the cause ErrParked when the run is parked.
func (r *Run) Context() context.Context { return r.ctx }

// Close ends the run in this process. It logs the entries that the handler did not use, if it could.
func (r *Run) Close() {
	isWhole := r.ctx.Err() == nil
	r.end(ErrClosed)
	r.mu.Lock()
	var names []string
	for key, e := range r.entries {
		if !e.isUsed && (e.Type == typeStep || e.Type == typeSleep || e.Type == typeItem) {
			names = append(names, key)
		}
	}
	r.mu.Unlock()
	if isWhole && len(names) > 0 {
		slices.Sort(names)
		r.t.logger.WarnContext(r.ctx, "journal: entries not used: program changed", "run", r.id,
			"count", len(names), "keys", names[:min(len(names), 10)])
	}
}

// Step returns the recorded result of a name, or runs f and records its result. An error of f is not
// recorded. If the process fails before the result is recorded, f runs again with the same stepID, which
// other services can take as an idempotency key.
func (r *Run) Step(ctx context.Context, name string,
	f func(ctx context.Context, stepID string) ([]byte, error)) (data []byte, err error) {
	c, err := r.begin(ctx, nameKey(name))
	if err != nil {
		return nil, err
	}
	defer c.end(&err)
	e := &entry{Type: typeStep, Name: []byte(name), key: c.key}
	stored, err := r.find(e)
	if stored == nil && err == nil {
		stored, err = r.runStep(c.ctx, e, f)
	}
	if err != nil {
		return nil, err
	}
	return r.take(stored), nil
}

// runStep runs f and records its result.
func (r *Run) runStep(ctx context.Context, e *entry, f func(context.Context, string) ([]byte, error)) (*entry, error) {
	if err := r.move(func() { r.steps++ }); err != nil {
		return nil, err
	}
	defer r.endStep()
	opening, _, err := r.append(ctx, &entry{Type: typeOpening, key: typeOpening})
	if err == nil {
		err = r.record(ctx)
	}
	var stored *entry
	if err == nil {
		stored, err = r.find(e) // there is space for the result, or the next owner has recorded it
	}
	if stored != nil || err != nil {
		return stored, err
	}
	sum := sha256.Sum256([]byte(opening.Writer + "/" + e.key))
	err = guard.Call("step", func() (err error) {
		e.data, err = f(ctx, fmt.Sprintf("%x", sum[:16]))
		return err
	})
	if err != nil {
		return nil, err
	}
	stored, _, err = r.append(ctx, e)
	return stored, err
}

// Await returns the next input: the n-th call returns the n-th delivered input. While there is
// none it waits. A second Await at once is an error. The end of ctx is not recorded.
func (r *Run) Await(ctx context.Context) (data []byte, err error) {
	c, err := r.begin(ctx, "await")
	if err != nil {
		return nil, err
	}
	defer c.end(&err)
	e := &entry{Type: typeAwait, N: c.n, key: c.key}
	isOver := func(ctx context.Context) (bool, error) {
		if r.input(c.n) != nil {
			return true, nil
		}
		err := r.sync(ctx, toEnd)
		return r.input(c.n) != nil, err
	}
	hasInput, err := isOver(c.ctx)
	if err == nil && !hasInput {
		err = r.wait(c.ctx, e, never, isOver)
	}
	if err == nil {
		err = r.resume(c.ctx, e)
	}
	if err != nil {
		return nil, err
	}
	return r.take(r.input(c.n)), nil
}

// Sleep waits for d. When the handler runs again, it waits for the rest.
func (r *Run) Sleep(ctx context.Context, name string, d time.Duration) (err error) {
	c, err := r.begin(ctx, nameKey(name))
	if err != nil {
		return err
	}
	defer c.end(&err)
	e := &entry{Type: typeSleep, Name: []byte(name), key: c.key, End: time.Now().Add(d), Length: d}
	stored, err := r.find(e)
	if stored == nil && err == nil {
		stored, _, err = r.append(c.ctx, e)
	}
	if err != nil {
		return err
	}
	if left := stored.left(); left > 0 {
		err = r.wait(c.ctx, stored, left, nil)
	}
	if err == nil {
		err = r.resume(c.ctx, stored)
	}
	return err
}

// Emit adds an item once, and returns its number among the items of its kind. With an id, it is added unless
// the run has an item of that kind and id. Without one, each call adds an item, but a call that the
// handler makes again finds an item of the same data. After an error the item may be added.
func (r *Run) Emit(ctx context.Context, kind, id string, data []byte) (n int, first bool, err error) {
	if err := r.acquire(ctx); err != nil {
		return 0, false, err
	}
	defer r.release()
	base := "item:" + state.Join(kind, id)
	if id == "" {
		base = fmt.Sprintf("data:%s/%x", state.Join(kind), sha256.Sum256(data))
	}
	c, err := r.begin(ctx, base)
	if err != nil {
		return 0, false, err
	}
	defer c.end(&err)
	e := &entry{Type: typeItem, Kind: kind, Name: []byte(id), key: c.key, data: data}
	if id != "" {
		e.key = base
	}
	stored, first, err := r.appendLocked(c.ctx, e)
	if err != nil {
		return 0, false, err
	}
	return stored.N, first, nil
}

func nameKey(name string) string { return "name:" + state.Join(name) }

// A call is one use of a name by the handler. Its end counts it unless it failed.
type call struct {
	ctx context.Context // ends with the run too
	n   int             // occurrence
	key string
	end func(err *error)
}

// begin begins the next use of a name.
func (r *Run) begin(ctx context.Context, base string) (*call, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.ctx.Err() != nil:
		return nil, context.Cause(r.ctx)
	case r.active[base]:
		return nil, fmt.Errorf("%w: %s", ErrBusy, base)
	}
	r.active[base] = true
	n := r.uses[base] + 1
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(r.ctx, func() { cancel(context.Cause(r.ctx)) })
	return &call{ctx: ctx, n: n, key: fmt.Sprintf("%s#%d", base, n), end: func(err *error) {
		stop()
		cancel(nil)
		r.mu.Lock()
		defer r.mu.Unlock()
		delete(r.active, base)
		if *err == nil {
			r.uses[base] = n
		}
	}}, nil
}

// find returns the entry of the journal with the key of e, or nil if there is space for e.
func (r *Run) find(e *entry) (*entry, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	stored := r.entries[e.key]
	if stored == nil {
		return nil, r.fits(e)
	}
	stored.isUsed = true
	if stored.Type != e.Type {
		return nil, fmt.Errorf("%w: %s is a %s in the journal and a %s in the program", ErrChanged, e.key, stored.Type, e.Type)
	}
	return stored, nil
}

func (r *Run) input(n int) *entry {
	r.mu.Lock()
	defer r.mu.Unlock()
	if n > len(r.inputs) {
		return nil
	}
	return r.inputs[n-1]
}

func (r *Run) take(e *entry) []byte {
	r.mu.Lock()
	defer r.mu.Unlock()
	return e.take()
}

// wait records that the run waits, and waits until isOver after a notice, or for d.
func (r *Run) wait(ctx context.Context, e *entry, d time.Duration, isOver func(context.Context) (bool, error)) error {
	if err := r.startWait(ctx, e); err != nil {
		return err
	}
	defer r.move(func() { r.waits = slices.DeleteFunc(r.waits, func(w *entry) bool { return w == e }) })
	if r.o.OnWait != nil {
		r.o.OnWait(true)
		defer r.o.OnWait(false)
	}
	notice := r.notice
	if isOver == nil {
		notice = nil
	}
	limit := cmp.Or(max(0, r.o.ParkAfter), never)
	end, park := time.NewTimer(d), time.NewTicker(limit)
	defer end.Stop()
	defer park.Stop()
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-end.C:
			return nil
		case <-park.C:
			r.park()
		case <-notice:
			if ok, err := isOver(ctx); ok || err != nil {
				return err
			}
		}
	}
}

// resume records that the handler has passed a wait: a sleep, or an input if the run waits for no later one.
func (r *Run) resume(ctx context.Context, e *entry) error {
	if err := r.acquire(ctx); err != nil {
		return err
	}
	defer r.release()
	r.mu.Lock()
	work := &entry{Type: typeWork, Name: []byte(e.key), key: "past:" + e.key}
	isPast := r.sleeps[e.key] != nil
	if e.Type == typeAwait {
		if isPast = r.isWaiting() && r.last.N <= e.N; isPast {
			work = &entry{Type: typeWork, N: e.N, key: "work:" + r.last.key}
		}
	}
	r.mu.Unlock()
	if !isPast {
		return nil
	}
	_, _, err := r.appendLocked(ctx, work)
	return err
}

// move changes the waits or the steps in progress, unless the run has ended.
func (r *Run) move(change func()) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.ctx.Err() != nil {
		return context.Cause(r.ctx)
	}
	change()
	if r.t.isParking.Load() {
		r.parkLocked()
	}
	return nil
}

// startWait adds a wait, after the journal shows it.
func (r *Run) startWait(ctx context.Context, e *entry) error {
	if err := r.acquire(ctx); err != nil {
		return err
	}
	defer r.release()
	_, _, err := r.appendLocked(ctx, e)
	if err == nil {
		err = r.recordLocked(ctx, e, 0)
	}
	if err != nil {
		return err
	}
	return r.move(func() { r.waits = append(r.waits, e) })
}

// endStep removes a step, after the journal shows that the run waits, if it does.
func (r *Run) endStep() {
	if r.acquire(r.ctx) != nil {
		return
	}
	defer r.release()
	_ = r.recordLocked(r.ctx, nil, -1) // after an error the next owner runs the handler again
	_ = r.move(func() { r.steps-- })   // an error means that the run has ended
}

// record records whether the run waits, if the last entry does not show it.
func (r *Run) record(ctx context.Context) error {
	if err := r.acquire(ctx); err != nil {
		return err
	}
	defer r.release()
	return r.recordLocked(ctx, nil, 0)
}

// recordLocked is record for the state with a further wait or other steps. r.lock must be held.
func (r *Run) recordLocked(ctx context.Context, wait *entry, steps int) error {
	r.mu.Lock()
	for _, w := range r.waits { // an Await may wait longest
		if wait == nil || w.Type == typeAwait {
			wait = w
		}
	}
	isBusy := r.steps+steps > 0
	var e *entry
	switch {
	case r.isWaiting() && isBusy:
		e = &entry{Type: typeWork, key: "work:" + r.last.key}
	case !r.isWaiting() && !isBusy && wait != nil:
		e = &entry{Type: typeWait, N: wait.N, key: "wait:" + r.last.key}
		if wait.Type == typeSleep {
			e.Name = []byte(wait.key)
		}
	}
	r.mu.Unlock()
	if e == nil {
		return nil
	}
	_, _, err := r.appendLocked(ctx, e)
	return err
}

func (r *Run) park() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.parkLocked()
}

// parkLocked ends the context of a run that waits. r.mu must be held.
func (r *Run) parkLocked() {
	if len(r.waits) > 0 && r.steps == 0 {
		r.cancel(ErrParked)
	}
}

func (r *Run) acquire(ctx context.Context) error {
	if ctx.Err() != nil { // select may choose the lock
		return context.Cause(ctx)
	}
	select {
	case r.lock <- struct{}{}:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-r.ctx.Done():
		return context.Cause(r.ctx)
	}
}

func (r *Run) release() { <-r.lock }

// append returns the entry of the journal with the key of e, which it appends unless there is one.
func (r *Run) append(ctx context.Context, e *entry) (*entry, bool, error) {
	if err := r.acquire(ctx); err != nil {
		return nil, false, err
	}
	defer r.release()
	return r.appendLocked(ctx, e)
}

// appendLocked is append with r.lock held.
func (r *Run) appendLocked(ctx context.Context, e *entry) (stored *entry, first bool, err error) {
	stored, err = r.find(e)
	if stored != nil || err != nil {
		return stored, false, err
	}
	pos, first, err := r.t.append(ctx, r.stream, e)
	if err == nil {
		err = r.syncLocked(ctx, pos)
	}
	if err == nil {
		stored, err = r.find(e)
	}
	if err == nil && stored == nil {
		err = fmt.Errorf("journal: entry %s not retained", e.key)
	}
	return stored, first, err
}

// sync reads the journal through a position, or to its end.
func (r *Run) sync(ctx context.Context, pos uint64) error {
	if err := r.acquire(ctx); err != nil {
		return err
	}
	defer r.release()
	return r.syncLocked(ctx, pos)
}

// syncLocked is sync with r.lock held.
func (r *Run) syncLocked(ctx context.Context, pos uint64) error {
	for r.err == nil && r.pos < pos {
		page, err := state.Page(ctx, r.t.db, r.stream, r.pos, pageSize)
		if err != nil || len(page) == 0 {
			return err
		}
		r.mu.Lock()
		for i := 0; i < len(page) && r.err == nil; i++ {
			if e := r.add(page[i]); e != nil && (e.Type == typeItem || r.isBrief) {
				e.data = nil
			}
		}
		r.mu.Unlock()
	}
	return r.err
}

// renewTTL renews the time to live of the journal when half of it has passed.
func (r *Run) renewTTL() {
	err := r.t.expire(r.ctx, r.stream, keep)
	if r.ctx.Err() != nil {
		return
	}
	if err != nil {
		r.t.logger.ErrorContext(r.ctx, "journal: renewal failed", "run", r.id, "err", err)
	}
	r.renew.Reset(keep / 2)
}

// receive reads a parked run after a notice.
func (r *Run) receive() {
	if r.acquire(r.ctx) != nil {
		return
	}
	<-r.notice
	err := r.syncLocked(r.ctx, toEnd)
	isDue := err != nil || r.left() == 0
	r.release()
	if isDue && r.ctx.Err() == nil {
		r.fire()
	}
}

// fire runs the handler of a parked run again.
func (r *Run) fire() {
	if !r.end(ErrClosed) {
		return
	}
	err := guard.Call("rerun", func() error {
		r.rerun()
		return nil
	})
	if err != nil {
		r.t.logger.ErrorContext(r.ctx, "journal: rerun failed", "run", r.id, "err", err)
	}
}
