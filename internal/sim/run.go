// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"bufio"
	"cmp"
	crand "crypto/rand"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/cryptotest"
	"testing/synctest"
	"time"

	"github.com/fivewire/fivewire/internal/race"
)

var (
	seedFlag   = flag.String("seed", "", "run this seed only")
	keepFlag   = flag.String("keep", "", "inject only these faults, ids with commas between")
	eventsFlag = flag.Int("events", 200, "print so many events of a failing seed")
	onlyFlag   = flag.String("only", "", "judge this invariant only")
	firstFlag  = flag.Uint64("first", 0, "run this seed before the others")
	shrinkFlag = flag.Bool("shrink", false, "remove faults from a failing seed while it still fails")
)

const (
	compareEvery = 10  // seeds: one of them is run twice
	maxRepeats   = 4   // of a run, two of which have to be equal
	maxAttempts  = 400 // runs of a shrink
	gcPercent    = 400 // a run has a small heap
)

// A result is what is left of a run.
type result struct {
	failure *Failure
	events  []event
	faults  []injected
	calls   int
	answers int // of calls
}

// run makes one run of a seed. A fault is injected if keep permits it; nil means all.
func run(t *testing.T, seed uint64, f func(w *World), keep func(id string) bool) (res result) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	defer debug.SetGCPercent(debug.SetGCPercent(gcPercent))
	cryptotest.SetGlobalRandom(t, seed)
	var w *World
	outer := crand.Reader
	defer func() { crand.Reader = outer }()
	defer func() {
		if p := recover(); p != nil { // a goroutine is left, or all wait for each other
			w.Failf(leak, "", "%v", p)
		}
		slices.SortStableFunc(w.events, compareEvents)
		res = result{w.failure, w.events, w.faults, len(w.history), 0}
		for _, o := range w.history {
			if o.Err == nil {
				res.answers++
			}
		}
	}()
	synctest.Test(t, func(*testing.T) {
		w = newWorld(seed, keep)
		crand.Reader = (*reader)(w)
		f(w)
		w.close()
	})
	return res
}

// compareEvents orders the events of one nanosecond, whose order in the run depends on the runtime.
func compareEvents(a, b event) int {
	if a.at != b.at {
		return cmp.Compare(a.at, b.at)
	}
	return cmp.Or(strings.Compare(a.node, b.node), strings.Compare(a.op, b.op), strings.Compare(a.name, b.name),
		strings.Compare(a.result, b.result))
}

// Run makes one run of a seed, and reports a violated invariant as an error of t. It makes the run
// twice: two different traces are an error too.
func Run(t *testing.T, seed uint64, f func(w *World)) {
	t.Helper()
	r := runner{t: t, profile: f}
	r.run(seed, nil, true)
	r.requireSame()
}

// requireSame fails the test if more than one seed of 20 has different traces. Callers that one channel wakes at
// once can change places; another difference shows in most seeds.
func (r *runner) requireSame() {
	r.t.Helper()
	switch {
	case r.different*20 > r.compared:
		r.t.Errorf("%d of %d seeds: %s", r.different, r.compared, r.difference)
	case r.different > 0:
		r.t.Logf("%d of %d seeds: %s", r.different, r.compared, r.difference)
	}
}

// Seeds runs a profile with the kept seeds of testdata/seeds/NAME, where NAME is the last part of
// the name of the test, and then with 300 others, or the number in SIM_SEEDS. It stops at the first
// failure. One of ten seeds is run twice to compare the traces. With -seed it runs that seed only.
func Seeds(t *testing.T, profile func(w *World)) {
	t.Helper()
	r := runner{t: t, profile: profile}
	if *seedFlag != "" {
		seed, err := strconv.ParseUint(*seedFlag, 0, 64)
		if err != nil {
			t.Fatalf("-seed: %v", err)
		}
		r.replay(seed)
		return
	}
	seeds := keptSeeds(t)
	count, first, isCompared := 300, uint64(1), true
	switch text := os.Getenv("SIM_SEEDS"); {
	case text != "":
		n, err := strconv.Atoi(text)
		if err != nil {
			t.Fatalf("SIM_SEEDS: %v", err)
		}
		count, isCompared = n, *firstFlag == 0 && n <= 2000
		if n > 2000 {
			first = uint64(time.Now().UnixNano())
		}
	case os.Getenv("FIVEWIRE_LONG") != "":
		count, first = 2000, uint64(time.Now().UnixNano())
	case race.Enabled || testing.Short():
		count = 20
	}
	if *firstFlag > 0 {
		seeds = append([]uint64{*firstFlag}, seeds...)
	}
	for i := range count {
		seeds = append(seeds, first+uint64(i))
	}
	start := time.Now()
	for i, seed := range seeds {
		if !r.run(seed, nil, isCompared && i%compareEvery == 0) {
			return
		}
	}
	r.requireSame()
	t.Logf("%d runs, %.0f runs a second, %.0f events, %.0f calls, %.0f answers and %.1f faults a run", r.runs,
		float64(r.runs)/time.Since(start).Seconds(), r.mean(r.events), r.mean(r.calls), r.mean(r.answers), r.mean(r.faults))
}

// Broken requires that one of 300 seeds finds a violation of an invariant in a profile of defective code. So the
// checker can fail. The race detector has nothing to find in code that is never run otherwise.
func Broken(t *testing.T, invariant string, profile func(w *World)) {
	t.Helper()
	if race.Enabled {
		t.Skip("runs without the race detector")
	}
	r := runner{t: t, profile: profile}
	for seed := range uint64(300) {
		if res := r.once(seed+1, nil); res.failure != nil && res.failure.Invariant == invariant {
			t.Logf("%s: seed %#x: %s", invariant, seed+1, res.failure.Text)
			return
		}
	}
	t.Errorf("no seed of 300 finds a violation of %s", invariant)
}

// keptSeeds reads the seeds that found a defect. Each line has a seed and the defect.
func keptSeeds(t *testing.T) (seeds []uint64) {
	name := t.Name()[strings.LastIndexByte(t.Name(), '/')+1:]
	file, err := os.Open(filepath.Join("testdata", "seeds", name))
	if err != nil {
		return nil
	}
	defer file.Close()
	for lines := bufio.NewScanner(file); lines.Scan(); {
		text, _, _ := strings.Cut(lines.Text(), " ")
		seed, err := strconv.ParseUint(text, 0, 64)
		if err != nil {
			t.Fatalf("%s: %v", file.Name(), err)
		}
		seeds = append(seeds, seed)
	}
	return seeds
}

// A runner makes the runs of a profile.
type runner struct {
	t       *testing.T
	profile func(w *World)

	runs, events, calls, answers, faults int

	compared, different int    // seeds
	difference          string // the last one
}

func (r *runner) mean(sum int) float64 { return float64(sum) / float64(max(1, r.runs)) }

func (r *runner) once(seed uint64, keep func(id string) bool) result {
	res := run(r.t, seed, r.profile, keep)
	r.runs++
	r.events += len(res.events)
	r.calls += res.calls
	r.answers += res.answers
	r.faults += len(res.faults)
	return res
}

// run makes one run, or two to compare their traces, and reports whether the seed holds.
func (r *runner) run(seed uint64, keep func(id string) bool, isCompared bool) bool {
	r.t.Helper()
	res := r.once(seed, keep)
	if res.failure != nil {
		r.report(seed, res)
		return false
	}
	if !isCompared || race.Enabled { // the race detector makes the order of goroutines random
		return true
	}
	r.compared++
	text, all := "", []result{res}
	for range maxRepeats { // a busy machine interrupts a goroutine in rare cases, and changes the order of two others
		next := r.once(seed, keep)
		for i := range all {
			if text = difference(all[i].events, next.events); text == "" {
				return true
			}
		}
		all = append(all, next)
	}
	r.different++
	r.difference = fmt.Sprintf("seed %#x: two runs have different traces: %s", seed, text)
	return true
}

// difference names the first event that differs, or returns an empty text.
func difference(a, b []event) string {
	n := min(len(a), len(b))
	for i := range n {
		if a[i] != b[i] {
			text := fmt.Sprintf("event %d:\n %s\n %s", i, a[i], b[i])
			if i > 0 {
				text += "\nafter"
				for _, e := range a[max(0, i-*eventsFlag/20):i] {
					text += "\n " + e.String()
				}
			}
			return text
		}
	}
	if len(a) != len(b) {
		return fmt.Sprintf("%d and %d events", len(a), len(b))
	}
	return ""
}

// replay runs one seed by the flags.
func (r *runner) replay(seed uint64) {
	var keep func(id string) bool
	if *keepFlag != "" {
		ids := strings.Split(*keepFlag, ",")
		keep = func(id string) bool { return slices.Contains(ids, id) }
	}
	if *shrinkFlag {
		r.shrink(seed)
		return
	}
	if r.run(seed, keep, true) {
		r.requireSame()
		r.t.Logf("seed %#x holds: %.0f events, %.0f calls, %.0f faults", seed, r.mean(r.events), r.mean(r.calls), r.mean(r.faults))
	}
}

// shrink reports a failing seed with the faults that it needs.
func (r *runner) shrink(seed uint64) {
	ids, res := r.minimize(seed)
	if res.failure == nil {
		r.t.Fatalf("seed %#x holds", seed)
	}
	r.report(seed, res)
	r.t.Logf("%d faults are enough: -args -seed %#x -keep '%s'", len(ids), seed, strings.Join(ids, ","))
}

// minimize removes faults from a failing seed, halves first, while the seed fails.
func (r *runner) minimize(seed uint64) (ids []string, res result) {
	res = r.once(seed, nil)
	if res.failure == nil {
		return nil, res
	}
	ids = idsOf(res.faults)
	for size := (len(ids) + 1) / 2; size > 0 && r.runs < maxAttempts; {
		isShorter := false
		for i := 0; i < len(ids) && r.runs < maxAttempts; {
			rest := slices.Delete(slices.Clone(ids), i, min(i+size, len(ids)))
			next := r.once(seed, func(id string) bool { return slices.Contains(rest, id) })
			if next.failure == nil || next.failure.Invariant != res.failure.Invariant {
				i += size
				continue
			}
			res, isShorter = next, true
			ids = idsOf(next.faults)
		}
		if size == 1 && !isShorter {
			break
		}
		size = max(1, size/2)
	}
	return ids, res
}

func idsOf(faults []injected) (ids []string) {
	for _, f := range faults {
		ids = append(ids, f.id)
	}
	return ids
}

// report prints a failure: the invariant, the faults in their order, the last events of the node
// concerned, and the command that replays the run.
func (r *runner) report(seed uint64, res result) {
	r.t.Helper()
	var b strings.Builder
	fmt.Fprintf(&b, "seed %#x violates %s: %s\n%d faults:\n", seed, res.failure.Invariant, res.failure.Text, len(res.faults))
	for _, f := range res.faults {
		fmt.Fprintf(&b, "%14.9fs %s (%s)\n", f.at.Seconds(), f.text, f.id)
	}
	events := slices.Clone(res.events)
	if node := res.failure.Node; node != "" {
		events = slices.DeleteFunc(events, func(e event) bool { return e.node != node })
	}
	events = events[max(0, len(events)-*eventsFlag):]
	fmt.Fprintf(&b, "last %d events %s:\n", len(events), cmp.Or(res.failure.Node, "of all nodes"))
	for _, e := range events {
		fmt.Fprintln(&b, e)
	}
	dir, _ := os.Getwd()
	_, below, _ := strings.Cut(filepath.ToSlash(dir), "/internal/sim")
	fmt.Fprintf(&b, "replay: go test ./internal/sim%s -run '^%s$' -args -seed %#x", below,
		strings.ReplaceAll(r.t.Name(), "/", "$/^"), seed)
	r.t.Error(b.String())
}
