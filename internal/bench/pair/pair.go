// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

// Package pair measures two implementations in turns.
//
// On a shared machine whose speed changes by the second, the ratio of two times
// that were taken one after the other is worth little. The median of the ratios
// of many short batches, which the two run in turns, is steady: a slow moment
// hits both sides of a ratio alike.
package pair

import (
	"slices"
	"sync"
	"testing"
	"time"
)

const (
	batch        = 2 * time.Millisecond  // how long a batch is to take
	batchCaller  = 4 * time.Millisecond  // the same for operations that may wait
	batchCallers = 30 * time.Millisecond // and for several callers at a time

	round     = 400 * time.Millisecond // the least time of one iteration of a benchmark
	minTurns  = 7                      // the least number of ratios of it
	maxTurns  = 2000                   // and the most
	perCaller = 16                     // operations of one caller in a batch, so that all take part
)

// Ratio reports, as the metric "ratio", how many times as long as base the
// function f takes. Both do n operations when they are called; see [Loop]. The
// metrics "ns/f" and "ns/base" are the median times of one operation.
//
// One iteration of the benchmark takes 0.4 seconds and yields a ratio that is
// mostly good enough: -benchtime 1x.
func Ratio(b *testing.B, f, base func(n int)) {
	b.Helper()
	ratio(b, batch, 1, f, base)
}

// RatioCallers is [Ratio] for operations that may wait, for a network or for each
// other, and that c goroutines do at a time. Its batches are longer, so that
// starting the goroutines and waiting for the last of them do not count. An
// operation gets the number that it has in its batch; its error fails the
// benchmark.
func RatioCallers(b *testing.B, c int, f, base func(seq int64) error) {
	b.Helper()
	target := batchCaller
	if c > 1 {
		target = batchCallers
	}
	ratio(b, target, perCaller*c, callers(b, c, f), callers(b, c, base))
}

// Loop makes a batch of an operation.
func Loop(op func()) func(n int) {
	return func(n int) {
		for range n {
			op()
		}
	}
}

// ratio measures with batches of at least so many operations.
func ratio(b *testing.B, target time.Duration, minOps int, f, base func(n int)) {
	b.Helper()
	size(f, target, minOps) // warms both up
	size(base, target, minOps)
	nf, nb := size(f, target, minOps), size(base, target, minOps)
	budget := max(round, 30*target)
	var ratios, fs, bases []float64
	for b.Loop() {
		turns := 0
		for begin := time.Now(); turns < minTurns || time.Since(begin) < budget && turns < maxTurns; turns++ {
			var tf, tb float64
			if turns%2 == 0 { // neither always comes second
				tf, tb = per(f, nf), per(base, nb)
			} else {
				tb, tf = per(base, nb), per(f, nf)
			}
			ratios, fs, bases = append(ratios, tf/tb), append(fs, tf), append(bases, tb)
		}
	}
	b.ReportMetric(0, "ns/op") // is not printed: it would be the time of a round
	b.ReportMetric(median(ratios), "ratio")
	b.ReportMetric(median(fs), "ns/f")
	b.ReportMetric(median(bases), "ns/base")
}

// size returns how many operations of f take about the time of target.
func size(f func(int), target time.Duration, minOps int) int {
	if minOps > perCaller && time.Duration(minOps)*timed(f, 4)/4 > 10*target {
		minOps /= perCaller // slow operations: one per caller must do
	}
	for n := minOps; ; n *= 2 {
		if d := timed(f, n); d > target/2 {
			return max(minOps, int(float64(n)*float64(target)/float64(d)))
		}
	}
}

func timed(f func(int), n int) time.Duration {
	begin := time.Now()
	f(n)
	return time.Since(begin)
}

func per(f func(int), n int) float64 { return float64(timed(f, n).Nanoseconds()) / float64(n) }

func median(v []float64) float64 {
	slices.Sort(v)
	return v[len(v)/2]
}

// callers turns one operation into a function that does n of them from c
// goroutines.
func callers(b *testing.B, c int, op func(seq int64) error) func(n int) {
	return func(n int) {
		errs := make([]error, c)
		var wg sync.WaitGroup
		for k := 1; k < c; k++ {
			wg.Go(func() { errs[k] = each(k, n, c, op) })
		}
		errs[0] = each(0, n, c, op) // a single caller needs no goroutine
		wg.Wait()
		for _, err := range errs {
			if err != nil {
				b.Fatal(err)
			}
		}
	}
}

// each does every c-th of n operations.
func each(first, n, c int, op func(seq int64) error) error {
	for i := first; i < n; i += c {
		if err := op(int64(i)); err != nil {
			return err
		}
	}
	return nil
}
