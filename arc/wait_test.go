// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package arc

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/arc/internal/wire"
)

// A taskPeer answers task.info according to the elapsed time, and records the time of each request.
type taskPeer struct {
	begin     time.Time
	states    []phase
	fail      map[int]reaction // by number of the request
	subscribe reaction
	polls     []time.Duration
	whole     []bool
	sub       string
}

type phase struct {
	after  time.Duration
	object string // with its braces open
}

func (p *taskPeer) RoundTrip(req *http.Request) (*http.Response, error) {
	body, err := io.ReadAll(req.Body)
	if err != nil {
		return nil, err
	}
	_ = req.Body.Close()
	r, err := DecodeRequest(body)
	if err != nil {
		return nil, err
	}
	if r.Method == MethodTaskSubscribe {
		p.sub = string(r.Params)
		return p.subscribe(req, body)
	}
	v, err := wire.Check(r.Params)
	if err != nil {
		return nil, err
	}
	whole, _ := v.Get("includeMessages").Bool()
	p.whole = append(p.whole, whole)
	p.polls = append(p.polls, time.Since(p.begin).Round(time.Millisecond))
	if f := p.fail[len(p.polls)]; f != nil {
		return f(req, body)
	}
	now := ""
	for _, s := range p.states {
		if time.Since(p.begin) >= s.after {
			now = s.object
		}
	}
	messages := ""
	if whole {
		messages = `,"messages":[{"role":"agent","parts":[{"type":"TextPart","content":"say more"}]},{"role":"user","parts":[]}]`
	}
	return ok(`{"type":"task","task":{"taskId":"t","updatedAt":"2024-01-15T10:30:00Z"`+messages+`,`+now+`}}`)(req, body)
}

const ms = time.Millisecond

// Polling backs off, starts again at the shortest interval after a change, and requests the whole
// task only at its end.
func TestWait(t *testing.T) {
	tests := []struct {
		name   string
		states []phase
		polls  []time.Duration
		whole  []bool
		input  bool
		is     []error
		text   string
	}{
		{name: "over already", states: []phase{{0, `"status":"COMPLETED"`}}, polls: []time.Duration{0}, whole: []bool{true}},
		{name: "moves", states: []phase{{0, `"status":"SUBMITTED"`}, {time.Second, `"status":"WORKING"`}, {2 * time.Second, `"status":"COMPLETED"`}},
			polls: []time.Duration{0, 200 * ms, 500 * ms, 950 * ms, 1625 * ms, 1825 * ms, 2125 * ms, 2125 * ms},
			whole: []bool{true, false, false, false, false, false, false, true}},
		{name: "input", states: []phase{{0, `"status":"WORKING"`}, {ms, `"status":"INPUT_REQUIRED"`}},
			polls: []time.Duration{0, 200 * ms, 200 * ms}, whole: []bool{true, false, true}, input: true},
		{name: "failed", states: []phase{{0, `"status":"FAILED","error":{"code":-42005,"message":"slow"}`}},
			polls: []time.Duration{0}, whole: []bool{true}, is: []error{ErrTaskExecutionFailed, ErrTaskTimeout}, text: `arc: task "t" failed: arc: slow (-42005)`},
		{name: "failed without error", states: []phase{{0, `"status":"FAILED","reason":"a\nb"`}},
			polls: []time.Duration{0}, whole: []bool{true}, is: []error{ErrTaskExecutionFailed}, text: `arc: task "t" failed: "a\nb"`},
		{name: "canceled", states: []phase{{0, `"status":"CANCELED"`}},
			polls: []time.Duration{0}, whole: []bool{true}, is: []error{ErrTaskAlreadyCanceled}, text: `arc: task "t" was canceled`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := &taskPeer{begin: time.Now(), states: tt.states}
				var seen []TaskStatus
				o, err := newTestClient(t, p, nil).WaitTask(t.Context(), "b", "t", &WaitOptions{OnUpdate: func(t *Task) { seen = append(seen, t.Status) }})
				require.Equal(t, tt.polls, p.polls)
				require.Equal(t, tt.whole, p.whole)
				require.Equal(t, tt.input, o.InputRequired)
				require.Equal(t, "say more", o.InputRequest().Text())
				require.Equal(t, o.Task.Status, seen[len(seen)-1])
				require.Len(t, seen, len(tt.states))
				if tt.is == nil {
					require.NoError(t, err)
					return
				}
				var te *TaskError
				require.ErrorAs(t, err, &te)
				require.EqualError(t, err, tt.text)
				for _, is := range tt.is {
					require.ErrorIs(t, err, is)
				}
			})
		})
	}
}

func TestWaitLongTask(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &taskPeer{begin: time.Now(), states: []phase{{0, `"status":"WORKING"`}, {time.Hour, `"status":"COMPLETED"`}}}
		_, err := newTestClient(t, p, nil).WaitTask(t.Context(), "b", "t", nil)
		require.NoError(t, err)
		require.Less(t, len(p.polls), 380, "every 10 s")
		require.Less(t, time.Since(p.begin), time.Hour+11*time.Second)

		ctx, cancel := context.WithCancelCause(t.Context())
		why := errors.New("enough")
		time.AfterFunc(30*time.Second, func() { cancel(why) })
		p = &taskPeer{begin: time.Now(), states: []phase{{0, `"status":"WORKING"`}}}
		_, err = newTestClient(t, p, nil).WaitTask(ctx, "b", "t", nil)
		require.ErrorIs(t, err, why)
		require.Equal(t, 30*time.Second, time.Since(p.begin))
	})
}

// Close ends a wait between two polls.
func TestCloseEndsWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &taskPeer{begin: time.Now(), states: []phase{{0, `"status":"WORKING"`}},
			subscribe: ok(`{"type":"task","subscription":{"subscriptionId":"s"}}`)}
		c := newTestClient(t, p, nil)
		time.AfterFunc(time.Second, func() { require.NoError(t, c.Close()) })
		_, err := c.WaitTask(t.Context(), "b", "t", &WaitOptions{Watcher: &testWatcher{}, WatchPollInterval: time.Hour})
		require.ErrorIs(t, err, ErrClosed)
		require.Equal(t, time.Second, time.Since(p.begin))
	})
}

// Temporary failures are retried, permanent ones are returned.
func TestWaitFailures(t *testing.T) {
	done := []phase{{0, `"status":"WORKING"`}, {time.Minute, `"status":"COMPLETED"`}}
	every := func(f reaction) map[int]reaction {
		m := map[int]reaction{}
		for i := range 100 {
			m[i] = f
		}
		return m
	}
	some := func(f reaction) map[int]reaction {
		return map[int]reaction{1: f, 2: f, 3: f, 5: f, 6: f, 7: f, 8: f, 9: f}
	}
	tests := []struct {
		name     string
		fail     map[int]reaction
		want     error
		attempts int // zero: not compared
	}{
		{"network", some(fails(reset())), nil, 0},
		{"busy", some(arcFault(503, ErrAgentNotAvailable)), nil, 0},
		{"bad gateway", some(reply(502, "text/html", "")), nil, 0},
		{"rate", some(arcFault(429, ErrRateLimitExceeded)), nil, 0},
		{"too often", every(arcFault(503, ErrAgentNotAvailable)), ErrAgentNotAvailable, 6},
		{"not found", some(arcFault(200, ErrTaskNotFound)), ErrTaskNotFound, 1},
		{"not allowed", some(arcFault(403, ErrInsufficientScope)), ErrInsufficientScope, 1},
		{"no task", some(ok(`{}`)), ErrInvalidResult, 1},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := &taskPeer{begin: time.Now(), states: done, fail: tt.fail}
				o, err := newTestClient(t, p, &ClientOptions{Retry: &RetryPolicy{MaxAttempts: -1}}).WaitTask(t.Context(), "b", "t", nil)
				require.ErrorIs(t, err, tt.want)
				if tt.attempts != 0 {
					require.Len(t, p.polls, tt.attempts)
				} else {
					require.Equal(t, TaskCompleted, o.Task.Status)
				}
			})
		})
	}
}

// With a webhook there are few polls. A notification only triggers a poll, and a lost one does no
// harm.
func TestWaitWatcher(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &taskPeer{begin: time.Now(), states: []phase{{0, `"status":"WORKING"`}, {time.Hour, `"status":"COMPLETED"`}},
			subscribe: ok(`{"type":"task","subscription":{"subscriptionId":"s"}}`)}
		w := &testWatcher{news: make(chan struct{}, 1)}
		time.AfterFunc(time.Hour+time.Second, func() { w.news <- struct{}{} })
		o, err := newTestClient(t, p, nil).WaitTask(t.Context(), "b", "t", &WaitOptions{Watcher: w, WatchPollInterval: 25 * time.Minute})
		require.NoError(t, err)
		require.Equal(t, TaskCompleted, o.Task.Status)
		require.Equal(t, []time.Duration{0, 25 * time.Minute, 50 * time.Minute, time.Hour + time.Second, time.Hour + time.Second}, p.polls)
		require.JSONEq(t, `{"taskId":"t","callbackUrl":"https://a.test/cb","events":["TASK_COMPLETED","TASK_FAILED","TASK_CANCELED","TASK_PAUSED"]}`, p.sub)
		require.Zero(t, w.watches)

		// Lost: the next question finds out.
		p = &taskPeer{begin: time.Now(), states: p.states, subscribe: p.subscribe}
		_, err = newTestClient(t, p, nil).WaitTask(t.Context(), "b", "t", &WaitOptions{Watcher: w})
		require.NoError(t, err)
		require.Equal(t, time.Hour, time.Since(p.begin))

		// Refused: it polls.
		p = &taskPeer{begin: time.Now(), states: p.states, subscribe: arcFault(400, ErrInvalidParams)}
		_, err = newTestClient(t, p, nil).WaitTask(t.Context(), "b", "t", &WaitOptions{Watcher: w})
		require.NoError(t, err)
		require.Greater(t, len(p.polls), 300, fmt.Sprint(len(p.polls)))

		// No such task.
		p = &taskPeer{begin: time.Now(), subscribe: arcFault(200, ErrTaskNotFound)}
		_, err = newTestClient(t, p, nil).WaitTask(t.Context(), "b", "t", &WaitOptions{Watcher: w})
		require.ErrorIs(t, err, ErrTaskNotFound)
		require.Empty(t, p.polls)
		require.Zero(t, w.watches)
	})
}

// A testWatcher counts its watches.
type testWatcher struct {
	news    chan struct{}
	watches int
}

func (w *testWatcher) Watch(string) (string, <-chan struct{}, func()) {
	w.watches++
	return "https://a.test/cb", w.news, func() { w.watches-- }
}

// A negative interval makes no request without a pause.
func TestWaitIntervalsBelowZero(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &taskPeer{states: []phase{{0, `"status":"WORKING"`}, {time.Hour, `"status":"COMPLETED"`}},
			subscribe: ok(`{"type":"task","subscription":{"subscriptionId":"s"}}`),
			fail:      map[int]reaction{3000: arcFault(200, ErrTaskNotFound)}, // ends requests without a pause
			begin:     time.Now()}
		_, err := newTestClient(t, p, nil).WaitTask(t.Context(), "b", "t", &WaitOptions{MinPollInterval: -1, MaxPollInterval: -1})
		require.NoError(t, err)
		require.InDelta(t, 365, len(p.polls), 10, "as without options")

		p.begin, p.polls = time.Now(), nil
		w := &testWatcher{news: make(chan struct{}, 1)}
		time.AfterFunc(time.Hour, func() { w.news <- struct{}{} })
		_, err = newTestClient(t, p, nil).WaitTask(t.Context(), "b", "t", &WaitOptions{Watcher: w, WatchPollInterval: -1})
		require.NoError(t, err)
		require.Equal(t, []time.Duration{0, time.Hour, time.Hour}, p.polls)
	})
}

// A peer whose pages never end fills no memory: the counts show that some are missing.
func TestWaitReadsPartOfEndlessTask(t *testing.T) {
	page := fmt.Sprintf(`{"type":"task","task":{"taskId":"t","status":"COMPLETED","messageCount":1000000,"artifactCount":0,
		"messages":[{"role":"agent","parts":[{"type":"TextPart","content":%q}]}]}}`, strings.Repeat("x", 10<<20))
	pages := 0
	c := newTestClient(t, roundTrip(func(req *http.Request) (*http.Response, error) {
		body, err := io.ReadAll(req.Body)
		if pages++; pages > 20 || err != nil {
			return nil, errors.New("no end")
		}
		return ok(page)(req, body)
	}), &ClientOptions{Retry: &RetryPolicy{MaxAttempts: -1}})
	res, err := c.WaitTask(t.Context(), "b", "t", &WaitOptions{MaxFailures: -1})
	require.NoError(t, err)
	require.Len(t, res.Task.Messages, 7)
	require.EqualValues(t, "1000000", res.Task.MessageCount)
}

// The pages of a task without messages are joined.
func TestWaitReadsPagesOfArtifacts(t *testing.T) {
	p := &peer{}
	for i := range 3 {
		p.do = append(p.do, ok(fmt.Sprintf(`{"type":"task","task":{"taskId":"t","status":"COMPLETED","messageCount":0,"artifactCount":3,
			"artifacts":[{"artifactId":"a%d","name":"n","parts":[]}]}}`, i)))
	}
	res, err := newTestClient(t, p, nil).WaitTask(t.Context(), "b", "t", &WaitOptions{MaxFailures: -1})
	require.NoError(t, err)
	require.Len(t, res.Task.Artifacts, 3)
	for i, a := range res.Task.Artifacts {
		require.Equal(t, fmt.Sprint("a", i), a.ID)
	}
}
