// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package conformance_test

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/fivewire/fivewire/conformance"
)

// A stopwatch is the implementation that this example tests. Its protocol,
// "tick", has two operations.
type stopwatch struct{ since time.Time }

func (w *stopwatch) start()                 { w.since = time.Now() }
func (w *stopwatch) elapsed() time.Duration { return time.Since(w.since) }

func parseTick(text string) (time.Duration, error) { return time.ParseDuration(text) }

// ticks binds the operations of the protocol to the stopwatch.
func ticks() conformance.Protocol {
	return conformance.Protocol{Name: "tick", Ops: map[string]conformance.Op{
		"parse": func(_ conformance.T, in *conformance.Input) (conformance.Answer, error) {
			d, err := parseTick(in.String("text"))
			if err != nil {
				return nil, conformance.NewFailure("bad_tick", err)
			}
			return conformance.Answer{"milliseconds": d.Milliseconds()}, nil
		},
		"watch_script": conformance.Script{
			Start: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC),
			Open: func(*testing.T, *conformance.Input) (conformance.Step, error) {
				var w stopwatch
				return func(step *conformance.Input) (conformance.Answer, error) {
					switch do := step.String("do"); do {
					case "start":
						w.start()
						return conformance.Answer{}, nil
					case "read":
						return conformance.Answer{"json": w.elapsed().Milliseconds()}, nil
					default:
						step.Fail("do", "unknown word %q", do)
						return nil, nil
					}
				}, nil
			},
		}.Run,
	}}
}

const tickVectors = `{"format":1,"protocol":"tick","suite":"all","spec":"Tick 1","cases":[
	{"id":"tick-all-001","doc":"seconds","ref":"§1","op":"parse","in":{"text":"1.5s"},"want":{"milliseconds":1500}},
	{"id":"tick-all-002","doc":"no unit","ref":"§1","op":"parse","in":{"text":"1.5"},"wantErr":"bad_tick"},
	{"id":"tick-all-003","doc":"an hour passes at once","ref":"§2","op":"watch_script",
		"in":{"steps":[{"do":"start"},{"do":"read","at":3600000}]},
		"want":{"steps":[{},{"json":3600000}]}}
]}`

// TestOtherImplementation is what a test of another implementation looks like.
func TestOtherImplementation(t *testing.T) {
	// conformance.Embedded() or conformance.Open("vectors") in real life.
	set := conformance.Load(fstest.MapFS{"tick/all.json": {Data: []byte(tickVectors)}}, "vectors")
	report := conformance.Run(t, set, []conformance.Protocol{ticks()}, nil)
	if !report.Passed() || report.Counts().Passed != 3 {
		t.Errorf("report: %+v", report.Counts())
	}
}

func ExampleLoad() {
	set := conformance.Load(fstest.MapFS{
		"tick/all.json":  {Data: []byte(tickVectors)},
		"tick/none.json": {Data: []byte(`{"format":1,"protocol":"tick","suite":"none","spec":"Tick 1","cases":[]}`)},
	}, "vectors")
	for _, c := range set.Cases() {
		fmt.Println(c.ID, c.Op, c.Doc)
	}
	for _, fault := range set.Errors() {
		fmt.Println("fault:", fault)
	}
	// Output:
	// tick-all-001 parse seconds
	// tick-all-002 parse no unit
	// tick-all-003 watch_script an hour passes at once
	// fault: vectors/tick/none.json: cases: the list is empty
}

func ExampleReport_WriteText() {
	report := &conformance.Report{Results: []conformance.Result{
		{ID: "tick-all-001", Protocol: "tick", Suite: "all", Status: conformance.StatusPassed},
		{ID: "tick-all-002", Protocol: "tick", Suite: "all", Status: conformance.StatusFailed, Doc: "no unit", Ref: "§1", Message: `wantErr: want "bad_tick", got "oops"`},
	}}
	var b strings.Builder
	if err := report.WriteText(&b); err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
	for line := range strings.Lines(b.String()) {
		fmt.Println(strings.Join(strings.Fields(line), " "))
	}
	// Output:
	// passed failed known not supported
	// tick 1 1 0 0
	// all 1 1 0 0
	// all 1 1 0 0
	//
	// FAILED tick-all-002: no unit (§1)
	// wantErr: want "bad_tick", got "oops"
}
