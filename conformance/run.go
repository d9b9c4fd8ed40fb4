// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/fivewire/fivewire/internal/strictjson"
)

// Options adjusts [Run]. Nil is like the zero value.
type Options struct {
	// KnownFailures are the cases that are known to fail. They still run; one
	// that passes fails the run, and so does one that is in no folder.
	KnownFailures []KnownFailure

	// Parallel is the number of cases that run at once. Zero means 1. With a
	// [testing.T] it is always 1.
	Parallel int
}

// Run runs every case of the set and returns the results. With a [testing.T] each case
// is a subtest <protocol>/<suite>/<id> of t, and t fails unless [Report.Passed].
// A fault of the set, a set without cases, and a case of a protocol that is not among
// protocols make the run fail.
func Run(t T, set *Set, protocols []Protocol, opts *Options) *Report {
	if opts == nil {
		opts = &Options{}
	}
	r := &Report{Started: time.Now().UTC().Truncate(time.Second)}
	for _, err := range runFaults(set, protocols, opts.KnownFailures) {
		r.Errors = append(r.Errors, err.Error())
	}
	x := executor{protocols: make(map[string]Protocol), failures: make(map[string]string)}
	for _, p := range protocols {
		x.protocols[p.Name] = p
	}
	for _, k := range opts.KnownFailures {
		x.failures[k.ID] = k.String()
	}
	if test, ok := t.(*testing.T); ok {
		x.runSubtests(test, set, r)
	} else {
		x.runAll(t, set, r, max(1, opts.Parallel))
	}
	r.Seconds = time.Since(r.Started).Seconds()
	return r
}

// runSubtests runs each case as a subtest.
func (x executor) runSubtests(t *testing.T, set *Set, r *Report) {
	t.Helper()
	for _, fault := range r.Errors {
		t.Error(fault)
	}
	for _, protocol := range groups(set.cases, func(c *Case) string { return c.Protocol }) {
		t.Run(protocol[0].Protocol, func(t *testing.T) {
			for _, suite := range groups(protocol, func(c *Case) string { return c.Suite }) {
				t.Run(suite[0].Suite, func(t *testing.T) {
					for _, c := range suite {
						t.Run(c.ID, func(t *testing.T) { x.runSubtest(t, c, r) })
					}
				})
			}
		})
	}
	if len(r.Results) == 0 && len(set.cases) > 0 {
		// A misspelt name in -run must not look like success.
		fault := fmt.Sprintf("none of the %d cases has run: -run or -skip leaves none of them", len(set.cases))
		r.Errors = append(r.Errors, fault)
		t.Error(fault)
	}
}

func (x executor) runSubtest(t *testing.T, c *Case, r *Report) {
	var res Result
	defer func() {
		r.Results = append(r.Results, res)
		switch res.Status {
		case StatusFailed:
			t.Errorf("%s: %s (%s)\n%s", c.Source, c.Doc, c.Ref, res.Message)
		case StatusKnownFailure:
			t.Logf("known failure: %s\n%s", res.Reason, res.Message)
		case StatusUnsupported:
			t.Logf("not supported: %s", res.Message)
		}
	}()
	x.execute(t, c, &res)
}

// runAll runs the cases, up to n of them at once.
func (x executor) runAll(t T, set *Set, r *Report, n int) {
	results := make([]Result, len(set.cases))
	next := make(chan int)
	var workers sync.WaitGroup
	for range min(n, len(set.cases)) {
		workers.Go(func() {
			for i := range next {
				ct := &caseT{partT: partT{T: t}, name: set.cases[i].ID}
				x.execute(ct, set.cases[i], &results[i])
				ct.finish()
				if s := results[i].Status; s == StatusFailed || s == StatusKnownFailure {
					results[i].Log = ct.log
				}
			}
		})
	}
	for i := range set.cases {
		next <- i
	}
	close(next)
	workers.Wait()
	r.Results = results
}

// A partT is a [T] that ends before the T inside of it.
type partT struct {
	T
	isRepeated, isPassed bool

	mu       sync.Mutex
	cleanups []func()
}

// A caseT is the [T] of one case. It keeps the last logged lines.
type caseT struct {
	partT
	name string
	log  []string // guarded by mu
}

// maxLog bounds the lines that a case logs, and maxLogLine the bytes of a line.
const (
	maxLog     = 100
	maxLogLine = 16 << 10
)

func (t *caseT) Name() string { return t.name }

func (t *caseT) Logf(format string, args ...any) {
	line := shorten(fmt.Sprintf(format, args...), maxLogLine)
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.log) == maxLog {
		t.log = append(t.log[:0], t.log[1:]...)
	}
	t.log = append(t.log, line)
}

func (t *partT) Cleanup(f func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.cleanups = append(t.cleanups, f)
}

func (t *partT) finish() {
	for _, f := range slices.Backward(t.cleanups) {
		f()
	}
}

// runFaults returns the faults that are found before any case runs.
func runFaults(set *Set, protocols []Protocol, failures []KnownFailure) []error {
	faults := set.Errors()
	if len(set.cases) == 0 {
		faults = append(faults, errors.New("there are no vectors to run"))
	}
	names := make(map[string]bool)
	for _, p := range protocols {
		if names[p.Name] {
			faults = append(faults, fmt.Errorf("protocol %q was given twice", p.Name))
		}
		names[p.Name] = true
	}
	ids := make(map[string]bool)
	for _, c := range set.cases {
		ids[c.ID] = true
	}
	for _, k := range failures {
		if !ids[k.ID] {
			faults = append(faults, fmt.Errorf("the known failure %s is not a case of any folder", k.ID))
		}
	}
	return faults
}

// groups cuts cases into runs of equal keys, in the order in which the keys
// appear first.
func groups(cases []*Case, key func(*Case) string) [][]*Case {
	index := make(map[string]int)
	var out [][]*Case
	for _, c := range cases {
		k := key(c)
		i, ok := index[k]
		if !ok {
			i = len(out)
			index[k] = i
			out = append(out, nil)
		}
		out[i] = append(out[i], c)
	}
	return out
}

type executor struct {
	protocols map[string]Protocol
	failures  map[string]string // reasons of known failures by id
}

// execute runs one case and stores its result in res, also if the operation ends
// the goroutine.
func (x executor) execute(t T, c *Case, res *Result) {
	*res = Result{
		ID: c.ID, Protocol: c.Protocol, Suite: c.Suite, Doc: c.Doc, Ref: c.Ref, Op: c.Op, Source: c.Source,
	}
	run := &caseRun{want: c.want, memory: memory{}}
	start := time.Now()
	err := errors.New("the operation ended the test instead of returning an error")
	defer func() {
		res.Seconds = time.Since(start).Seconds()
		x.classify(c, res, run, err)
	}()
	err = x.run(t, c, run)
}

// classify turns the error of a case into its result.
func (x executor) classify(c *Case, res *Result, run *caseRun, err error) {
	reason, isKnown := x.failures[c.ID]
	switch {
	case err == nil && isKnown:
		res.Status = StatusFailed
		res.Message = "this case is listed as a known failure (" + reason + "), but it passes: take it off the list"
		return
	case err == nil:
		res.Status = StatusPassed
		return
	case errors.Is(err, errors.ErrUnsupported):
		res.Status, res.Message = StatusUnsupported, err.Error()
		return
	case isKnown:
		res.Status, res.Reason = StatusKnownFailure, reason
	default:
		res.Status = StatusFailed
	}
	res.Message = err.Error()
	var m *Mismatch
	if errors.As(err, &m) {
		res.Differences = m.Differences
	}
	res.In = indented(c.in)
	res.Want = indented(c.want)
	if c.want == nil {
		res.WantErr = indented(c.wantErr)
	}
	for _, g := range run.got {
		res.Got = append(res.Got, indented(g))
	}
}

func indented(v strictjson.Value) json.RawMessage {
	if v == nil {
		return nil
	}
	var b bytes.Buffer
	if err := json.Indent(&b, v, "", "  "); err != nil {
		return nil // not reached with a checked value
	}
	return b.Bytes()
}

// run runs one case and returns nil if it passes.
func (x executor) run(t T, c *Case, run *caseRun) error {
	p, ok := x.protocols[c.Protocol]
	if !ok {
		return fmt.Errorf("there is no implementation of protocol %q here", c.Protocol)
	}
	op, ok := p.Ops[c.Op]
	if !ok || op == nil {
		return fmt.Errorf("protocol %q has no operation %q here", c.Protocol, c.Op)
	}
	in := newInput("in", c.in, run)
	answer, err := call(t, op, in)
	if run.err != nil {
		return run.err
	}
	var failure *Failure
	if err != nil && !errors.As(err, &failure) {
		return err
	}
	if unread := in.unread(); unread != nil && (err == nil || !run.script) {
		return unread
	}
	if failure != nil {
		return refused(c, run, failure, err)
	}
	if run.script {
		return nil // every step was compared
	}
	g, err := normal("answer", answer)
	if err != nil {
		return err
	}
	run.got = append(run.got, g.text())
	if c.want == nil {
		return fmt.Errorf("want the refusal %s, got the answer %s", c.wantErr, clip(string(g.text())))
	}
	cmp := comparison{memory: run.memory}
	cmp.members("want", c.want, g.object, false)
	return cmp.err()
}

// refused compares a refusal with wantErr.
func refused(c *Case, run *caseRun, failure *Failure, err error) error {
	g, nerr := normal("failure", failure.fields())
	if nerr != nil {
		return nerr
	}
	run.got = append(run.got, g.text())
	if c.wantErr == nil || run.script {
		return fmt.Errorf("want an answer, got a refusal: %w", err)
	}
	cmp := comparison{memory: run.memory}
	if c.wantErr.IsObject() {
		cmp.members("wantErr", c.wantErr, g.object, true)
	} else if code, ok := g.object["code"]; !ok {
		cmp.differ("wantErr", string(c.wantErr), "a refusal without code")
	} else {
		cmp.plain("wantErr", c.wantErr, code.got)
	}
	if len(cmp.found) > 0 && failure.Err != nil {
		cmp.differ("the implementation's error", nothing, failure.Err.Error())
	}
	return cmp.err()
}

func (c *comparison) err() error {
	if len(c.found) == 0 {
		return nil
	}
	return &Mismatch{Differences: c.found}
}

// call runs an operation, a panic of which fails the case and not the run.
func call(t T, op Op, in *Input) (answer Answer, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v\n%s", p, debug.Stack())
		}
	}()
	return op(t, in)
}
