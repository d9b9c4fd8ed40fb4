// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package fault

import (
	"cmp"
	"os"
	"runtime"
	"sync"
	"testing"
	"time"
)

// Options configure a Soak.
type Options struct {
	Callers int           // goroutines that call the function; zero means 8
	For     time.Duration // zero means 10 s

	// HeapSlope bounds the growth of the heap after garbage collection, in bytes a minute. Zero
	// means 1 MiB; a negative value removes the bound.
	HeapSlope int64

	// Goroutines and Files bound the growth of the numbers of goroutines and of open files, in all
	// of the time. Zero means 2; a negative value removes the bound. Only Linux counts files.
	Goroutines, Files int
}

const (
	soakSamples = 40
	warmUp      = soakSamples / 4 // samples that do not count
)

// A sample is a measurement at a time.
type sample struct{ seconds, heap, goroutines, files float64 }

// Soak calls f over and over from several goroutines, with the number of the caller, and fails t if f
// returns an error, or if heap, goroutines or open files grow. The growth is the slope of the
// regression line through samples after a warm-up.
func Soak(t testing.TB, o Options, f func(caller int) error) {
	t.Helper()
	duration := cmp.Or(o.For, 10*time.Second)
	stop := make(chan struct{})
	failed := make(chan error, 1)
	var wg sync.WaitGroup
	for i := range cmp.Or(o.Callers, 8) {
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				if err := f(i); err != nil {
					select {
					case failed <- err:
					default:
					}
					return
				}
			}
		})
	}
	samples, err := takeSamples(duration, failed)
	close(stop)
	wg.Wait()
	if err == nil {
		select {
		case err = <-failed: // of the last calls
		default:
		}
	}
	if err != nil {
		t.Fatalf("fault: soak: function failed: %v", err)
	}
	o.check(t, samples[warmUp:])
}

// takeSamples measures until the end of the time or an error.
func takeSamples(d time.Duration, failed <-chan error) ([]sample, error) {
	start := time.Now()
	var samples []sample
	for i := range soakSamples {
		timer := time.NewTimer(time.Until(start.Add(d * time.Duration(i+1) / soakSamples)))
		select {
		case <-timer.C:
		case err := <-failed:
			timer.Stop()
			return nil, err
		}
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		samples = append(samples, sample{time.Since(start).Seconds(), float64(m.HeapAlloc),
			float64(runtime.NumGoroutine()), float64(countFiles())})
	}
	return samples, nil
}

// countFiles returns the number of open files, or zero if the system has no list of them.
func countFiles() int {
	list, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return 0
	}
	return len(list)
}

// check compares the samples with the bounds.
func (o Options) check(t testing.TB, samples []sample) {
	t.Helper()
	length := samples[len(samples)-1].seconds - samples[0].seconds
	for _, b := range []struct {
		what  string
		value func(s sample) float64
		limit float64
		time  float64 // of the growth
	}{
		{"bytes of heap a minute", func(s sample) float64 { return s.heap }, float64(cmp.Or(o.HeapSlope, 1<<20)), 60},
		{"goroutines", func(s sample) float64 { return s.goroutines }, float64(cmp.Or(o.Goroutines, 2)), length},
		{"open files", func(s sample) float64 { return s.files }, float64(cmp.Or(o.Files, 2)), length},
	} {
		growth := slope(samples, b.value) * b.time
		t.Logf("fault: soak: growth %.0f %s", growth, b.what)
		if b.limit >= 0 && growth > b.limit {
			t.Errorf("fault: soak: growth %.0f %s, want at most %.0f", growth, b.what, b.limit)
		}
	}
}

// slope returns the slope of the regression line, by second.
func slope(samples []sample, value func(s sample) float64) float64 {
	n := float64(len(samples))
	var x, y, xx, xy float64
	for _, s := range samples {
		v := value(s)
		x, y, xx, xy = x+s.seconds, y+v, xx+s.seconds*s.seconds, xy+s.seconds*v
	}
	return (n*xy - x*y) / (n*xx - x*x)
}
