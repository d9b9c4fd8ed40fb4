// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"errors"
	"fmt"
	"runtime/debug"
	"testing"
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
}

// maxAt is a century in milliseconds. Some more of them are a negative Duration.
const maxAt = 100 * 366 * 24 * 3600 * 1000

// A Step runs one step of a script and returns its answer, which is compared at
// once with the same step of want.steps. The clock is at the time of the member
// "at" (milliseconds since the start; without it the clock stays), and
// everything that was due by then has run. Like an [Op], a Step reads every
// member of its input but "at". It calls [synctest.Wait] where it has to wait
// until the work that it caused is done.
type Step func(step *Input) (Answer, error)

// Run runs the steps and compares each answer. It is an [Op].
func (s Script) Run(t *testing.T, in *Input) (Answer, error) {
	steps := in.Objects("steps")
	if err := in.Err(); err != nil {
		return nil, err
	}
	wanted, err := wantedSteps(in.run.want, len(steps))
	if err != nil {
		return nil, err
	}
	in.run.script = true
	if s.Open == nil {
		return nil, errors.New("the script has no Open")
	}
	err = errors.New("the script ended the test instead of returning an error")
	synctest.Test(t, func(t *testing.T) {
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
		err = s.run(t, in, steps, wanted)
	})
	return nil, err
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
			ms := sin.Int("at")
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
		answer, err := step(sin)
		if err != nil {
			return fmt.Errorf("%s: %w", at, err)
		}
		if err := in.Err(); err != nil {
			return err
		}
		if err := sin.unread(); err != nil {
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
		in.run.got = append(in.run.got, g.text())
		c := comparison{memory: in.run.memory}
		c.members(path, wanted[i], g.object, false)
		if len(c.found) > 0 {
			return &Mismatch{Differences: c.found}
		}
	}
	return nil
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
