// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package kerneltest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/internal/once"
	"github.com/fivewire/fivewire/internal/outbox"
)

// The events for one receiver are sent once, whichever process puts them.
func testOneSenderPerStream(t *testing.T, c *cluster) {
	p := []*process{c.start(patient), c.start(patient)}
	n := c.many(200, 40)
	var wg sync.WaitGroup
	for i := range p {
		wg.Go(func() {
			for j := range n / 2 {
				if err := p[i].outbox.Put(t.Context(), "hook/static", fmt.Sprint(i, " ", j), nil); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	c.wait(c.limit(2*c.ttl), "events", func() bool { return c.countPosts("hook/static") >= n })
	time.Sleep(2 * c.ttl)
	require.Equal(t, n, c.countPosts("hook/static"))
	c.requireOrder("hook/static")
}

// requireOrder requires that the events of each process arrived in order.
func (c *cluster) requireOrder(stream string) {
	c.t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	next := map[int]int{}
	for _, id := range c.posts[stream] {
		var i, j int
		_, err := fmt.Sscan(id, &i, &j)
		require.NoError(c.t, err)
		require.Equal(c.t, next[i], j, "event of process %d", i)
		next[i]++
	}
}

// The events that a failed process has put are sent by a survivor, and at most the one in flight twice.
func testSurvivorSends(t *testing.T, c *cluster) {
	first, second := c.start(), c.start()
	n := c.many(120, 24)
	isAway := true
	c.setVerdict(func(item outbox.Item) outbox.Verdict {
		if isAway && item.ID == fmt.Sprint("0 ", n/2) {
			return outbox.Retry(c.ttl/10, errAway)
		}
		return outbox.Done()
	})
	for i := range n {
		require.NoError(t, first.outbox.Put(t.Context(), "hook/static", fmt.Sprint("0 ", i), nil))
	}
	c.wait(c.limit(c.ttl), "events", func() bool { return c.countPosts("hook/static") == n/2 })
	time.Sleep(c.ttl / 2)
	first.crash()
	c.mu.Lock()
	isAway = false
	c.mu.Unlock()
	c.wait(c.limit(2*c.ttl), "events", func() bool { return c.countPosts("hook/static") >= n })
	time.Sleep(c.ttl)
	require.Equal(t, n, c.countPosts("hook/static"))
	c.requireOrder("hook/static")
	require.NoError(t, second.shutdown(t.Context()))
}

// Attempts continue for days, across restarts.
func testRetriesLastDays(t *testing.T, c *cluster) {
	if !c.isVirtual {
		t.Skip("takes days")
	}
	var attempts []int
	end := time.Now().Add(3 * 24 * time.Hour)
	c.setVerdict(func(item outbox.Item) outbox.Verdict {
		if item.ID == "0 0" {
			attempts = append(attempts, item.Attempt)
		}
		if time.Now().Before(end) {
			return outbox.Retry(time.Hour, errAway)
		}
		return outbox.Done()
	})
	slow := func(o *options) { o.ttl = 10 * time.Minute }
	p := c.start(slow)
	for i := range 10 {
		require.NoError(t, p.outbox.Put(t.Context(), "hook/static", fmt.Sprint("0 ", i), nil))
	}
	for range 6 {
		time.Sleep(12*time.Hour + time.Minute)
		require.NoError(t, p.shutdown(t.Context()))
		p = c.start(slow)
	}
	c.wait(2*time.Hour, "events", func() bool { return c.countPosts("hook/static") == 10 })
	c.requireOrder("hook/static")
	c.mu.Lock()
	defer c.mu.Unlock()
	require.InDelta(t, 73, len(attempts), 3)
	for i, attempt := range attempts {
		require.Equal(t, i+1, attempt)
	}
}

// An event that the receiver refuses is a dead letter, until it is delivered again.
func testDeadLetters(t *testing.T, c *cluster) {
	first, second := c.start(), c.start()
	isRefusing := true
	c.setVerdict(func(item outbox.Item) outbox.Verdict {
		if isRefusing && item.ID == "0 1" {
			return outbox.Dead("refused", errAway)
		}
		return outbox.Done()
	})
	for i := range 3 {
		require.NoError(t, first.outbox.Put(t.Context(), "hook/static", fmt.Sprint("0 ", i), []byte("data")))
	}
	c.wait(c.limit(c.ttl), "events", func() bool { return c.countPosts("hook/static") == 2 })
	first.crash()
	letters := c.letters(second)
	require.Len(t, letters, 1)
	require.Equal(t, "0 1", letters[0].ID)
	require.Equal(t, "refused", letters[0].Reason)
	require.Equal(t, "data", string(letters[0].Data))
	c.mu.Lock()
	isRefusing = false
	c.mu.Unlock()
	require.NoError(t, second.outbox.Redeliver(t.Context(), letters[0].Stream, letters[0].Seq))
	redelivered := func() int { return c.countPosts("hook/static", "0 1") }
	c.wait(c.limit(2*c.ttl), "redelivery", func() bool { return redelivered() > 0 })
	require.Equal(t, 1, redelivered(), "redelivered event")
	require.Equal(t, 1, c.countPosts("hook/static", "0 0"), "event before the failure")
	inFlight := c.countPosts("hook/static", "0 2")
	require.Positive(t, inFlight, "posts of the event that may be in flight at the failure")
	require.LessOrEqual(t, inFlight, c.many(1, 2), "posts of that event")
	require.Empty(t, c.letters(second))
}

func (c *cluster) letters(p *process) (letters []outbox.Letter) {
	c.t.Helper()
	for letter, err := range p.outbox.Dead(c.t.Context()) {
		require.NoError(c.t, err)
		letters = append(letters, letter)
	}
	return letters
}

// Neither a failure of the store nor overload is the outcome of a request, and no request is in the store when its job
// has ended.
func testFailuresAreNotOutcomes(t *testing.T, c *cluster) {
	p := c.start(func(o *options) { o.maxJobs = 1 })
	c.isDown.Store(true)
	ctx, cancel := context.WithTimeout(t.Context(), c.ttl/4)
	defer cancel()
	_, err := p.submit(ctx, "user", "1", "gate", "secret-params")
	require.ErrorIs(t, err, context.DeadlineExceeded)
	c.isDown.Store(false)
	id, err := p.submit(t.Context(), "user", "1", "gate", "secret-params")
	require.NoError(t, err)
	c.wait(c.limit(c.ttl), "start of the job", func() bool { return c.countRuns() == 1 })
	_, err = p.submit(t.Context(), "user", "2", "none", "secret-params")
	require.ErrorIs(t, err, errOverload)
	c.openGate()
	c.requireEnd(p, id, "open", "")
	second, err := p.submit(t.Context(), "user", "2", "none", "secret-params")
	require.NoError(t, err)
	c.requireEnd(p, second, "none", "")
	for key, want := range map[string]string{"1": id, "2": second} {
		kind := map[string]string{"1": "gate", "2": "none"}[key]
		repeated, err := c.start().submit(t.Context(), "user", key, kind, "secret-params")
		require.NoError(t, err)
		require.Equal(t, want, repeated, "id of the repeated request")
		_, err = p.submit(t.Context(), "user", key, kind, "other")
		require.ErrorIs(t, err, once.ErrReused)
	}
	for e, err := range c.outside.List(t.Context(), "") {
		require.NoError(t, err)
		require.False(t, strings.Contains(string(e.Value), "secret-params"), "parameters under %s", e.Key)
	}
}

// The outcomes of a principal are bounded in bytes, and those of another one are kept.
func testOutcomesAreBounded(t *testing.T, _ *cluster) {
	table := once.New(nil, nil, once.Options{MaxBytes: 64 << 10, Retention: 24 * time.Hour})
	defer table.Close()
	do := func(principal string, n int) error {
		k := once.Key{Principal: principal, Scope: "call", ID: fmt.Sprint(n)}
		_, _, err := table.Do(t.Context(), k, once.AtMostOnce, func(context.Context, once.Claim) (once.Result, error) {
			return once.Result{Data: make([]byte, 4<<10)}, nil
		})
		return err
	}
	require.NoError(t, do("other", 0))
	for n := range 100 {
		require.NoError(t, do("user", n))
	}
	count := 0
	for n := range 100 {
		err := do("user", n)
		if err == nil {
			count++
			continue
		}
		require.True(t, errors.Is(err, once.ErrNotRetained), "outcome %d: %v", n, err)
	}
	require.InDelta(t, 14, count, 2, "outcomes of 64 KiB")
	require.NoError(t, do("other", 0))
}
