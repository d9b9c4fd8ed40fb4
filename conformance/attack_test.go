// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package conformance_test

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"text/tabwriter"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/internal/kit"
	"github.com/fivewire/fivewire/internal/race"
)

// Bounds of the cost of a hostile caller, for a server with default options.
const (
	maxHeld       = 200 << 20 // bytes of live heap above the start
	maxGoroutines = 5000
	memoryLimit   = 256 << 20
	attackers     = 16
	honestLimit   = 30 * time.Second
	maxP99        = 10 * time.Second // of honest calls, while attackers keep all processors busy
)

// An attack is what a hostile caller does to a server with default options, repeatedly, while an honest
// caller makes its calls.
type attack struct {
	name string
	// missing is the reason of a known failure: the attack succeeds, and is skipped.
	missing string
	// start starts the server.
	start func(t *testing.T) *victim
}

// A victim is a server under attack. The functions return nil, a refusal, or another error.
type victim struct {
	period  time.Duration // between honest calls; zero means 100 ms
	hostile func(ctx context.Context, attacker, n int) error
	honest  func(ctx context.Context) error
}

func attacks() []attack {
	return slices.Concat(arcAttacks, accpAttacks, altarAttacks, a2eAttacks, airAttacks)
}

// No hostile caller can fill a server with default options, or lock out another caller.
func TestDefaultServersCannotBeFilled(t *testing.T) {
	if testing.Short() || race.Enabled {
		t.Skip("measures memory for seconds")
	}
	d := 3 * time.Second
	if os.Getenv("FIVEWIRE_LONG") != "" {
		d = time.Minute
	}
	old := debug.SetMemoryLimit(memoryLimit)
	defer debug.SetMemoryLimit(old)
	var table strings.Builder
	w := tabwriter.NewWriter(&table, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "\nattack\tcalls\trefused\theld\tgoroutines\thonest calls\tp99")
	for _, a := range attacks() {
		t.Run(a.name, func(t *testing.T) {
			if a.missing != "" {
				t.Skip("known failure: ", a.missing)
			}
			fmt.Fprintln(w, run(t, a, d))
		})
	}
	require.NoError(t, w.Flush())
	t.Log(table.String())
}

// run returns a row of the table.
func run(t *testing.T, a attack, d time.Duration) string {
	v := a.start(t)
	ctx, cancel := context.WithTimeout(t.Context(), honestLimit)
	defer cancel()
	require.NoError(t, v.honest(ctx), "honest call before the attack")
	before := kit.Heap()
	attackContext, stop := context.WithTimeout(t.Context(), d)
	defer stop()
	var hostile, refused atomic.Int64
	var refusal atomic.Value // the first, as text
	var wg sync.WaitGroup
	for i := range attackers {
		wg.Go(func() {
			for n := 0; attackContext.Err() == nil; n++ {
				hostile.Add(1)
				if err := v.hostile(attackContext, i, n); err != nil && attackContext.Err() == nil {
					refused.Add(1)
					refusal.CompareAndSwap(nil, err.Error())
				}
			}
		})
	}
	var goroutines atomic.Int64
	wg.Go(func() {
		for attackContext.Err() == nil {
			goroutines.Store(max(goroutines.Load(), int64(runtime.NumGoroutine())))
			time.Sleep(10 * time.Millisecond)
		}
	})
	times, failures := callHonestly(t, attackContext, v)
	wg.Wait()
	growth := kit.Heap() - before
	for end := time.Now().Add(2 * time.Second); growth > maxHeld && time.Now().Before(end); growth = kit.Heap() - before {
		time.Sleep(100 * time.Millisecond) // servers end the calls that the end of the attack has cut off
	}
	slices.Sort(times)
	require.NotEmpty(t, times, "honest calls")
	p99 := times[len(times)*99/100]
	row := fmt.Sprintf("%s\t%d\t%d\t%d KiB\t%d\t%d\t%v", a.name, hostile.Load(), refused.Load(), growth>>10, goroutines.Load(),
		len(times), p99.Round(time.Millisecond))
	t.Log(strings.ReplaceAll(row, "\t", ", "), "first refusal:", refusal.Load())
	require.NotZero(t, hostile.Load(), "hostile calls")
	require.LessOrEqual(t, growth, int64(maxHeld), "bytes held")
	require.LessOrEqual(t, goroutines.Load(), int64(maxGoroutines), "goroutines")
	require.Empty(t, failures, "failed honest calls")
	require.LessOrEqual(t, p99, maxP99, "honest calls")
	ctx, cancel = context.WithTimeout(t.Context(), honestLimit)
	defer cancel()
	require.NoError(t, v.honest(ctx), "honest call after the attack")
	return row
}

// callHonestly makes the calls of the honest caller until ctx ends.
func callHonestly(t *testing.T, ctx context.Context, v *victim) (times []time.Duration, failures []error) {
	tick := time.NewTicker(cmp.Or(v.period, 100*time.Millisecond))
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return times, failures
		case <-tick.C:
		}
		begin := time.Now()
		call, cancel := context.WithTimeout(t.Context(), honestLimit)
		if err := v.honest(call); err != nil {
			failures = append(failures, err)
		}
		cancel()
		times = append(times, time.Since(begin))
	}
}

// serve serves until the end of the test.
func serve(t *testing.T, h http.Handler, shutdown func() error) string {
	web := httptest.NewServer(h)
	t.Cleanup(func() {
		web.CloseClientConnections()
		_ = shutdown()
		web.Close()
	})
	return web.URL
}

// hostileHTTP returns a client with a separate address.
func hostileHTTP(t *testing.T) *http.Client {
	transport := &http.Transport{DialContext: hostileDialer.DialContext, MaxIdleConnsPerHost: attackers}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport}
}

var hostileDialer = &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 2)}}
