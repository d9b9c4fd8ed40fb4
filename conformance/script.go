// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"runtime/debug"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	"github.com/fivewire/fivewire/internal/strictjson"
)

// A Script runs the operations that end in "script": steps in order
// against one fresh fixture, in virtual time. Its method [Script.Run] is an [Op]:
//
//	"serve_script": conformance.Script{Start: start, Open: openServer}.Run,
//
// An Op that reads the start time from the input makes the Script itself and
// returns the results of Run.
type Script struct {
	// Start is where the fixture's clock stands when the script begins. It lies
	// after the year 2000, where the clock of a bubble begins. Zero leaves the
	// clock there.
	Start time.Time

	// OwnReferences names references like ${ID} that the operation replaces by itself.
	// Any other reference to something that no step before has remembered fails
	// the case.
	OwnReferences []string

	// Open makes the fixture and returns the function that runs a step. It is
	// called inside the bubble, so that everything that it starts lives in virtual
	// time. A function registered with t.Cleanup runs at the end of the script,
	// still in the bubble; every goroutine must have ended then.
	//
	// The input is that of the case; its member steps is read by Run.
	Open func(t *testing.T, in *Input) (Step, error)

	// Live makes a fixture that runs in real time, for instance in another process. It is
	// used if there is no Open.
	Live func(t T, in *Input) (Step, error)

	// Settle repeats a step of a Live fixture whose answer is not the wanted one
	// until the time has passed, if the step says that it is repeatable (see
	// [Input.Repeatable]). Work that a step causes may end after its answer: a script with
	// another answer than the wanted one starts again up to twice, with a pause before
	// each step. Zero disables both, and then the Step reads the member "at".
	// With Settle, times that a case fixes match all times.
	Settle time.Duration
}

// maxAt is a century in milliseconds. Some more of them are a negative Duration.
const maxAt int64 = 100 * 366 * 24 * 3600 * 1000

// A Step runs one step of a script and returns its answer, which is compared at
// once with the same step of want.steps. The clock is at the time of the member
// "at" (milliseconds since the start; without it the clock stays), and
// everything that was due by then has run. Like an [Op], a Step reads every
// member of its input but "at". It calls [synctest.Wait] where it has to wait
// until the work that it caused is done.
type Step func(step *Input) (Answer, error)

// Run runs the steps and compares each answer. It is an [Op].
func (s Script) Run(t T, in *Input) (Answer, error) {
	if in.run.feed != nil {
		return nil, s.serve(t, in)
	}
	steps := in.Objects("steps")
	if err := in.Err(); err != nil {
		return nil, err
	}
	wanted, err := wantedSteps(in.run.want, len(steps))
	if err != nil {
		return nil, err
	}
	in.run.script = true
	if s.Open == nil && s.Live != nil {
		return nil, s.live(t, in, wanted)
	}
	return nil, s.bubble(t, func(t *testing.T) error { return s.run(t, in, steps, wanted) })
}

// bubble runs f in virtual time, from the start of the script.
func (s Script) bubble(t T, f func(*testing.T) error) error {
	test, ok := t.(*testing.T)
	switch {
	case s.Open == nil:
		return errors.New("the script has no Open")
	case !ok:
		return fmt.Errorf("a script in virtual time needs a test: %w", errors.ErrUnsupported)
	}
	err := errors.New("the script ended the test instead of returning an error")
	synctest.Test(test, func(t *testing.T) {
		defer func() {
			if p := recover(); p != nil {
				err = fmt.Errorf("panic: %v\n%s", p, debug.Stack())
			}
		}()
		if !s.Start.IsZero() {
			ahead := time.Until(s.Start)
			if ahead < 0 {
				err = fmt.Errorf("the script starts at %v, before the clock of the bubble", s.Start)
				return
			}
			time.Sleep(ahead)
		}
		err = f(t)
	})
	return err
}

// live runs the steps in real time.
func (s Script) live(t T, in *Input, wanted []strictjson.Value) error {
	in.run.isLive = s.Settle > 0
	err := s.liveSteps(t, in, wanted, 0, false)
	var m *Mismatch
	for pause := s.Settle / 8; pause > 0 && pause < s.Settle && errors.As(err, &m); pause *= 4 {
		between := pause
		if hasMoments(in.value.Get("steps")) {
			between = 0
		}
		t.Logf("again, with %v before each step: %v", between, err)
		err = s.liveSteps(t, in, wanted, between, true)
	}
	return err
}

// hasMoments reports whether a step of a script runs just before a moment, so that pauses would change the answer.
func hasMoments(steps strictjson.Value) bool {
	for e := steps.Elements(); e.Next(); {
		if isJustBefore(e.Value) {
			return true
		}
	}
	return false
}

// liveSteps runs the steps once, with a pause before each.
func (s Script) liveSteps(t T, in *Input, wanted []strictjson.Value, pause time.Duration, isRepeated bool) error {
	in.kids, in.run.got = nil, nil
	clear(in.run.memory)
	part := &partT{T: t, isRepeated: isRepeated}
	defer part.finish()
	step, err := s.Live(part, in)
	if err != nil {
		return fmt.Errorf("opening the fixture: %w", err)
	}
	start := time.Now()
	for i, sin := range in.Objects("steps") {
		at := fmt.Sprintf("in.steps[%d]", i)
		if sin.value, err = in.run.memory.fill(at, sin.value, s.OwnReferences); err != nil {
			return err
		}
		if s.Settle > 0 && sin.Has("at") {
			sin.Int64("at")
			at, _ := liveMoment(sin.value)
			time.Sleep(time.Until(start.Add(at)))
		}
		time.Sleep(pause)
		start = start.Add(pause) // the effects of earlier steps have more time, too
		deadline := time.Now().Add(s.Settle)
		for pause := 10 * time.Millisecond; ; pause *= 2 {
			err = in.run.step(step, sin, i, wanted[i])
			var m *Mismatch
			if !errors.As(err, &m) || !sin.repeatable || time.Now().Add(pause).After(deadline) {
				break
			}
			time.Sleep(pause)
			sin.isRepeated = true
		}
		if err != nil {
			return err
		}
	}
	part.isPassed = true
	return nil
}

func (s Script) run(t *testing.T, in *Input, steps []*Input, wanted []strictjson.Value) error {
	start := time.Now()
	step, err := s.Open(t, in)
	if err != nil {
		return fmt.Errorf("opening the fixture: %w", err)
	}
	synctest.Wait()
	for i, sin := range steps {
		at := fmt.Sprintf("in.steps[%d]", i)
		if sin.value, err = in.run.memory.fill(at, sin.value, s.OwnReferences); err != nil {
			return err
		}
		if sin.Has("at") {
			ms := sin.Int64Or("at", 0)
			if ms < 0 || ms > maxAt {
				return fmt.Errorf("%s.at: want 0 to %d milliseconds, not %d", at, maxAt, ms)
			}
			due := start.Add(time.Duration(ms) * time.Millisecond)
			wait := time.Until(due)
			if wait < 0 {
				return fmt.Errorf("%s.at: lies %v before the clock", at, -wait)
			}
			time.Sleep(wait)
		}
		synctest.Wait()
		if err := in.run.step(step, sin, i, wanted[i]); err != nil {
			return err
		}
	}
	return nil
}

// step runs step i and compares its answer with the wanted one.
func (r *caseRun) step(step Step, in *Input, i int, want strictjson.Value) error {
	answer, err := step(in)
	if err != nil {
		return fmt.Errorf("in.steps[%d]: %w", i, err)
	}
	if r.err != nil {
		return r.err
	}
	if err := in.unread(); err != nil {
		return err
	}
	path := fmt.Sprintf("want.steps[%d]", i)
	g, err := normal(path, answer)
	if err != nil {
		return err
	}
	if g.object == nil {
		g.object = map[string]member{}
	}
	r.got = append(r.got[:min(i, len(r.got))], g.text()) // one of each step, the last of a repeated one
	c := comparison{memory: r.memory, isLive: r.isLive}
	c.members(path, want, g.object, false)
	return c.err()
}

func wantedSteps(want strictjson.Value, n int) ([]strictjson.Value, error) {
	if want == nil {
		return nil, errors.New("a script must have want, not wantErr")
	}
	for m := want.Members(); m.Next(); {
		if string(m.Name) != "steps" {
			return nil, fmt.Errorf("want.%s: a script wants steps only", m.Name)
		}
	}
	list := want.Get("steps")
	if !list.IsArray() {
		return nil, errors.New("want.steps: want a list")
	}
	var wanted []strictjson.Value
	for e := list.Elements(); e.Next(); {
		if !e.Value.IsObject() {
			return nil, fmt.Errorf("want.steps[%d]: want an object", len(wanted))
		}
		wanted = append(wanted, e.Value)
	}
	if len(wanted) != n {
		return nil, fmt.Errorf("want.steps has %d steps, in.steps %d", len(wanted), n)
	}
	return wanted, nil
}

// cutBody returns the body of an answer whose connection ends before all of it has arrived.
func cutBody(text []byte) io.ReadCloser {
	return io.NopCloser(io.MultiReader(bytes.NewReader(text), iotest.ErrReader(io.ErrUnexpectedEOF)))
}

// A Mismatch is the error of a case whose answer is not the wanted one.
type Mismatch struct {
	Differences []Difference
}

// Error lists the differences, one a line.
func (m *Mismatch) Error() string {
	text := ""
	for i, d := range m.Differences {
		if i > 0 {
			text += "\n"
		}
		text += d.String()
	}
	return text
}
