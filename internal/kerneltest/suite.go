// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package kerneltest

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/conformance/fault"
	"github.com/fivewire/fivewire/internal/outbox"
	"github.com/fivewire/fivewire/internal/randid"
	"github.com/fivewire/fivewire/store"
)

// cases are the tests of the service.
var cases = []struct {
	name string
	run  func(t *testing.T, c *cluster)
}{
	{"SurvivorsTakeOver", testSurvivorsTakeOver},
	{"IdleCostIsConstant", testIdleCostIsConstant},
	{"OneSenderPerStream", testOneSenderPerStream},
	{"SurvivorSends", testSurvivorSends},
	{"RetriesLastDays", testRetriesLastDays},
	{"DeadLetters", testDeadLetters},
	{"StreamResumes", testStreamResumes},
	{"StreamRefusesPositions", testStreamRefusesPositions},
	{"StreamEndsWithProcess", testStreamEndsWithProcess},
	{"SlowReaderSlowsWriter", testSlowReaderSlowsWriter},
	{"InputReachesOwner", testInputReachesOwner},
	{"InputSurvivesCrash", testInputSurvivesCrash},
	{"WaitSurvivesDeployment", testWaitSurvivesDeployment},
	{"RerunDoublesNoItem", testRerunDoublesNoItem},
	{"FailuresAreNotOutcomes", testFailuresAreNotOutcomes},
	{"OutcomesAreBounded", testOutcomesAreBounded},
	{"OutageEndsNoProcess", testOutageEndsNoProcess},
	{"SessionGetsMessages", testSessionGetsMessages},
	{"SessionMoves", testSessionMoves},
}

// Run tests the service on an engine. The function open is called once for each process of a test and opens
// the same empty or used store each time.
func Run(t *testing.T, open func(t *testing.T) store.Store) {
	for _, tt := range cases {
		t.Run(tt.name, func(t *testing.T) {
			tt.run(t, newCluster(t, open, 2*time.Second, false))
		})
	}
}

// A cluster is the processes of a test, and the programs outside of it.
type cluster struct {
	t         *testing.T
	open      func(t *testing.T) store.Store
	prefix    string
	ttl       time.Duration
	isVirtual bool // time
	isDown    atomic.Bool
	outside   store.Store // without faults

	mu       sync.Mutex          // guards all below
	posts    map[string][]string // ids, by stream
	messages map[string][]string // ids, by session
	verdict  func(item outbox.Item) outbox.Verdict
	opening  chan struct{} // of the gate that the handler gate waits for
	runs     int           // of the step of that handler
}

func newCluster(t *testing.T, open func(t *testing.T) store.Store, ttl time.Duration, isVirtual bool) *cluster {
	c := &cluster{t: t, open: open, prefix: "kerneltest/" + randid.New("") + "/", ttl: ttl, isVirtual: isVirtual,
		posts: map[string][]string{}, messages: map[string][]string{}, opening: make(chan struct{})}
	c.outside = store.Sub(open(t), c.prefix)
	if isVirtual {
		t.Cleanup(func() { time.Sleep(2 * time.Minute) }) // changes in doubt are repeated for a minute
	}
	return c
}

// many returns a number that fits the cost of the engine.
func (c *cluster) many(virtual, other int) int {
	if c.isVirtual {
		return virtual
	}
	return other
}

// limit returns the time in which something of a duration has to be done.
func (c *cluster) limit(d time.Duration) time.Duration {
	if c.isVirtual {
		return d + time.Second
	}
	return d + 30*time.Second
}

// patient gives a process a lease that a slow engine does not end, for tests in which nothing fails.
func patient(o *options) { o.ttl = time.Minute }

// start starts a process, which ends with the test.
func (c *cluster) start(change ...func(o *options)) *process {
	c.t.Helper()
	return c.startOn(store.Sub(c.open(c.t), c.prefix), change...)
}

func (c *cluster) startOn(db store.Store, change ...func(o *options)) *process {
	c.t.Helper()
	o := options{
		ttl: c.ttl, post: c.post, receive: c.receive, noRerun: map[string]bool{"fragile": true},
		handlers: map[string]handler{"echo": echo, "gate": c.gate, "fragile": c.gate, "items": items, "none": none},
	}
	for _, f := range change {
		f(&o)
	}
	plan := &fault.Plan{Rules: []fault.Rule{{
		Action: fault.ErrorBefore, When: func(_, _ string) bool { return c.isDown.Load() }, Delay: c.ttl / 20,
	}}}
	p, err := newProcess(c.t.Context(), db, plan, o)
	require.NoError(c.t, err)
	c.t.Cleanup(p.crash)
	return p
}

// post receives notifications.
func (c *cluster) post(_ context.Context, item outbox.Item) outbox.Verdict {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.verdict != nil {
		if v := c.verdict(item); v != outbox.Done() {
			return v
		}
	}
	c.posts[item.Stream] = append(c.posts[item.Stream], item.ID)
	return outbox.Done()
}

func (c *cluster) setVerdict(f func(item outbox.Item) outbox.Verdict) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.verdict = f
}

func (c *cluster) receive(session, id, _ string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.messages[session] = append(c.messages[session], id)
}

// countPosts returns the number of events of a stream, or of those with one of the ids.
func (c *cluster) countPosts(stream string, ids ...string) (n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, id := range c.posts[stream] {
		if len(ids) == 0 || slices.Contains(ids, id) {
			n++
		}
	}
	return n
}

func (c *cluster) countMessages(session string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.messages[session])
}

// countRuns returns how often the step of the gate has run.
func (c *cluster) countRuns() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.runs
}

func (c *cluster) openGate() {
	c.mu.Lock()
	defer c.mu.Unlock()
	close(c.opening)
}

// closeGate closes the gate again.
func (c *cluster) closeGate() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.opening, c.runs = make(chan struct{}), 0
}

// gate is a handler with a step that waits until the gate is open.
func (c *cluster) gate(ctx context.Context, j *job) (string, error) {
	data, err := j.Step(ctx, "gate", func(ctx context.Context, _ string) ([]byte, error) {
		c.mu.Lock()
		c.runs++
		opening := c.opening
		c.mu.Unlock()
		select {
		case <-opening:
			return []byte("open"), nil
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	})
	return string(data), err
}

func none(context.Context, *job) (string, error) { return "none", nil }

// echo is a handler that returns two inputs.
func echo(ctx context.Context, j *job) (string, error) {
	one, err := j.Await(ctx)
	if err != nil {
		return "", err
	}
	two, err := j.Await(ctx)
	return fmt.Sprintf("%s %s", one, two), err
}

// items is a handler that emits items, some from several goroutines, and waits for an input.
func items(ctx context.Context, j *job) (string, error) {
	var wg sync.WaitGroup
	var mu sync.Mutex
	numbers := map[int]bool{}
	var failure error
	for i := range 20 {
		wg.Go(func() {
			n, _, err := j.Emit(ctx, "artifact", "", fmt.Append(nil, i%4))
			mu.Lock()
			defer mu.Unlock()
			numbers[n] = true
			if err != nil {
				failure = err
			}
		})
	}
	wg.Wait()
	for _, text := range []string{"working", "working", "ready"} {
		if _, _, err := j.Emit(ctx, "progress", "", []byte(text)); err != nil {
			return "", err
		}
	}
	_, _, err := j.Emit(ctx, "artifact", "report", nil)
	if err == nil {
		err = failure
	}
	if err == nil {
		_, err = j.Await(ctx)
	}
	return fmt.Sprint(len(numbers)), err
}

// wait waits until a condition holds.
func (c *cluster) wait(limit time.Duration, what string, holds func() bool) {
	c.t.Helper()
	for end := time.Now().Add(limit); !holds(); time.Sleep(c.ttl / 100) {
		if time.Now().After(end) {
			c.t.Fatalf("%s: not within %v", what, limit)
		}
	}
}

// requireEnd waits for the end of a job.
func (c *cluster) requireEnd(p *process, id, result, text string) {
	c.t.Helper()
	var rec record
	c.wait(c.limit(3*c.ttl), "end of "+id, func() bool {
		var err error
		rec, err = p.get(c.t.Context(), id)
		return err == nil && rec.Owner == ""
	})
	require.Equal(c.t, result, rec.Result, "result of %s", id)
	require.Equal(c.t, text, rec.Err, "error of %s", id)
}

// submit creates a job.
func (c *cluster) submit(p *process, key, kind string) string {
	c.t.Helper()
	id, err := p.submit(c.t.Context(), "user", key, kind, "params")
	require.NoError(c.t, err)
	return id
}

// countItems returns the number of items that a job has emitted, by kind.
func (c *cluster) countItems(p *process, id string) map[string]int {
	c.t.Helper()
	counts := map[string]int{}
	for item, err := range p.runs.Read(c.t.Context(), id) {
		require.NoError(c.t, err)
		counts[item.Kind]++
	}
	return counts
}
