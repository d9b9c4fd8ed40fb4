// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package engines

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/internal/kerneltest"
	"github.com/fivewire/fivewire/store"
)

const receiverEnv = "ENGINES_RECEIVER"

func kernelsChild(ctx context.Context, s store.Store) error {
	return kerneltest.Serve(ctx, s, os.Getenv(receiverEnv))
}

// serveChild serves on a port that it prints.
func serveChild(h http.Handler) error {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	fmt.Println(l.Addr())
	return http.Serve(l, h)
}

// Three processes use every kernel of state on one store, and each second one of them is killed. Acknowledged
// work is not lost, and doubled at most as often as the kernels permit.
func TestKernelsLoseNothingWhenProcessesAreKilled(t *testing.T) {
	testKernels(t, "kill -9 each second", false, false, time.Second, func(h *history, i int) {
		h.children[i].kill()
		next := h.place.start(h.t, "kernels")
		h.mu.Lock()
		defer h.mu.Unlock()
		h.children[i] = next
	})
}

// The same, and the processes are stopped for longer than their lease in turns, so that others take their work over
// before they continue.
func TestKernelsLoseNothingWhenProcessesHang(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("cannot stop a process")
	}
	testKernels(t, "stopped for 5 s", false, true, 7*time.Second, func(h *history, i int) {
		if err := h.children[i].hang(5 * time.Second); err != nil {
			h.t.Error(err)
		}
	})
}

// The same, and the processes cannot reach their engine for longer than their lease.
func TestKernelsLoseNothingWhenProcessesAreCutOff(t *testing.T) {
	testKernels(t, "cut off from its engine for 5 s", true, true, 7*time.Second, func(h *history, i int) {
		if err := h.children[i].wire.cut(5*time.Second, toServer, toClient); err != nil {
			h.t.Error(err)
		}
	})
}

// testKernels disturbs one of three processes in each interval.
func testKernels(t *testing.T, fault string, isWired, isWriteBlocked bool, interval time.Duration, disturb func(h *history, i int)) {
	eachShared(t, func(t *testing.T, p *place) {
		d := 20 * time.Second
		if os.Getenv("FIVEWIRE_LONG") != "" {
			d = time.Minute
		} else if isWired || !p.isSQLite() {
			t.Skip("long form only: set FIVEWIRE_LONG")
		}
		if p.isWired = isWired; isWired && p.isSQLite() {
			t.Skip("SQLite has no server")
		}
		h := newHistory(t)
		h.isWriteBlocked = isWriteBlocked
		t.Setenv(receiverEnv, h.receiver.URL)
		h.start(p)
		ctx, stop := context.WithTimeout(t.Context(), d)
		defer stop()
		var load sync.WaitGroup
		for i := range 2 {
			load.Go(func() { h.jobs(ctx, i) })
			load.Go(func() { h.events(ctx, i) })
			load.Go(func() { h.calls(ctx, "repeat", i) })
			load.Go(func() { h.calls(ctx, "once", i) })
			load.Go(func() { h.messages(ctx, i) })
			load.Go(func() { h.streams(ctx, i) })
		}
		h.disturb(ctx, interval, disturb)
		load.Wait()
		recordService(t, p, "kernels of state", len(h.children), fault, h.faults, h.check())
	})
}

// A history is what the clients and the receiver of a service have seen.
type history struct {
	t        *testing.T
	place    *place
	receiver *httptest.Server

	isWriteBlocked bool // at times, for longer than a lease

	mu       sync.Mutex // guards all below
	children [3]*child
	faults   int
	received map[string][]string // ids, by kind and name
	wanted   map[string]int      // acknowledged ids 0 to n-1, by kind and name
	outcomes map[string]string   // of calls, by policy and key
	jobCount int                 // jobs
	whole    int                 // streams read to the end
	cut      int                 // streams that ended with their process
}

func newHistory(t *testing.T) *history {
	h := &history{t: t, received: map[string][]string{}, wanted: map[string]int{}, outcomes: map[string]string{}}
	h.receiver = httptest.NewServer(http.HandlerFunc(h.receive))
	t.Cleanup(h.receiver.Close)
	return h
}

// receive takes an event, a message, or the effect of a call. It takes time, so that processes are killed in the
// middle: an effect counts at its begin, the others at the end, and only while the sender lives.
func (h *history) receive(_ http.ResponseWriter, r *http.Request) {
	isEffect := r.URL.Path == "/effect"
	if !isEffect {
		h.delay(r)
	}
	if r.Context().Err() == nil {
		h.mu.Lock()
		name := r.URL.Path + " " + r.URL.Query().Get("name")
		h.received[name] = append(h.received[name], r.URL.Query().Get("id"))
		h.mu.Unlock()
	}
	if isEffect {
		h.delay(r)
	}
}

func (h *history) delay(r *http.Request) {
	select {
	case <-time.After(time.Duration(rand.IntN(40)) * time.Millisecond):
	case <-r.Context().Done():
	}
}

func (h *history) start(p *place) {
	h.place = p
	for i := range h.children {
		h.children[i] = p.start(h.t, "kernels")
	}
}

// disturb disturbs a process in each interval. Only disturb changes the list of processes.
func (h *history) disturb(ctx context.Context, interval time.Duration, disturb func(h *history, i int)) {
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		h.mu.Lock()
		i := h.faults % len(h.children)
		h.faults++
		h.mu.Unlock()
		disturb(h, i)
	}
}

// ask requests an operation of any process.
func (h *history) ask(operation string, args ...string) (string, error) {
	h.mu.Lock()
	address := h.children[rand.IntN(len(h.children))].address
	h.mu.Unlock()
	query := url.Values{}
	for i := 0; i < len(args); i += 2 {
		query.Set(args[i], args[i+1])
	}
	res, err := http.Get("http://" + address + "/" + operation + "?" + query.Encode())
	if err != nil {
		return "", err
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err == nil && res.StatusCode != http.StatusOK {
		err = fmt.Errorf("status %d: %s", res.StatusCode, body)
	}
	return string(body), err
}

// require repeats an operation, with the same arguments, until a process acknowledges it.
func (h *history) require(operation string, args ...string) string {
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) {
		answer, err := h.ask(operation, args...)
		if err == nil {
			return answer
		}
		if time.Now().After(deadline) {
			h.t.Errorf("%s %q: %v", operation, args, err)
			return ""
		}
	}
}

// jobs creates jobs that consume two inputs, or emit items and consume one.
func (h *history) jobs(ctx context.Context, worker int) {
	for n := 0; ctx.Err() == nil; n++ {
		kind, inputs, result := "echo", []string{"a", "b"}, "a b"
		if n%4 == 3 {
			kind, inputs, result = "items", []string{"a"}, "20"
		}
		key := fmt.Sprint(worker, "-", n)
		id := h.require("submit", "key", key, "kind", kind)
		for _, input := range inputs {
			h.require("input", "job", id, "id", input)
		}
		if n%3 == 0 && h.require("submit", "key", key, "kind", kind) != id {
			h.t.Errorf("repeated request %s has another job", key)
		}
		h.requireJob(id, result, kind == "items")
		h.mu.Lock()
		h.jobCount++
		h.mu.Unlock()
	}
}

func (h *history) requireJob(id, result string, hasItems bool) {
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) {
		var job kerneltest.Job
		if err := json.Unmarshal([]byte(h.require("job", "id", id)), &job); err != nil {
			h.t.Errorf("job %s: %v", id, err)
			return
		}
		switch {
		case !job.IsDone && time.Now().Before(deadline):
			continue
		case !job.IsDone, job.Result != result, job.Err != "":
			h.t.Errorf("job %s: %+v, want result %q", id, job, result)
		case hasItems && (job.Items["artifact"] != 21 || job.Items["progress"] != 3):
			h.t.Errorf("job %s: items %v, want 21 artifacts and 3 of progress", id, job.Items)
		}
		return
	}
}

// events puts events for a receiver, one after the other.
func (h *history) events(ctx context.Context, worker int) {
	name := fmt.Sprint("s", worker)
	for n := 0; ctx.Err() == nil; n++ {
		h.require("put", "stream", name, "id", fmt.Sprint(n))
		h.want("/event hook/"+name, n)
	}
}

// messages sends messages to a session, one after the other.
func (h *history) messages(ctx context.Context, worker int) {
	session := fmt.Sprint("session", worker)
	h.require("open", "session", session)
	for n := 0; ctx.Err() == nil; n++ {
		h.require("send", "session", session, "id", fmt.Sprint(n))
		h.want("/message "+session, n)
	}
}

func (h *history) want(name string, n int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.wanted[name] = n + 1
}

// calls makes calls, each twice.
func (h *history) calls(ctx context.Context, policy string, worker int) {
	for n := 0; ctx.Err() == nil; n++ {
		key := fmt.Sprint(policy, "-", worker, "-", n/2)
		outcome := h.require("call", "policy", policy, "key", key)
		h.mu.Lock()
		// The first caller waits a second for the record of its outcome. Its process may be unable to write it for longer
		// than its lease: it is cut off, or another process was stopped while it wrote to SQLite. A repeat then gets the
		// error that the outcome is lost, and never another outcome.
		isUnrecorded := h.isWriteBlocked && policy == "once" && outcome == "lost"
		if first, ok := h.outcomes[key]; ok && first != outcome && !isUnrecorded {
			h.t.Errorf("call %s: outcome %q, and before %q", key, outcome, first)
		}
		h.outcomes[key] = outcome
		h.mu.Unlock()
	}
}

// streams reads streams, in pieces and from any process.
func (h *history) streams(ctx context.Context, worker int) {
	const total = 100
	for n := 0; ctx.Err() == nil; n++ {
		id := fmt.Sprint("stream-", worker, "-", n)
		if _, err := h.ask("stream", "id", id, "n", fmt.Sprint(total)); err != nil {
			continue // unknown whether it exists; its name is not used again
		}
		h.readStream(id, total)
	}
}

func (h *history) readStream(id string, total int) {
	next := 1
	for deadline := time.Now().Add(time.Minute); ; {
		lines := bufio.NewScanner(strings.NewReader(h.require("read", "id", id, "after", fmt.Sprint(next-1))))
		last := ""
		for lines.Scan() {
			last = lines.Text()
			if last == fmt.Sprint(next, " ", next) {
				next++
			}
		}
		switch {
		case last == "end" && next == total+1:
			h.mu.Lock()
			h.whole++
			h.mu.Unlock()
			return
		case last == "cut":
			h.mu.Lock()
			h.cut++
			h.mu.Unlock()
			return
		case last == "end", strings.HasPrefix(last, "error:") && time.Now().After(deadline):
			h.t.Errorf("stream %s: %q after item %d of %d", id, last, next-1, total)
			return
		case !strings.HasPrefix(last, "error:"):
			h.t.Errorf("stream %s: item %q, want %d", id, last, next)
			return
		}
	}
}

// check waits until everything acknowledged has arrived, compares it with the acknowledged ids, and returns the number
// of these.
func (h *history) check() int {
	h.t.Helper()
	for left := h.missing(); left > 0; { // delivery continues, however large the backlog is
		before := left
		soon(h.t, fmt.Sprintf("the next of %d items that were acknowledged", left), func() bool {
			left = h.missing()
			return left < before
		})
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	events, doubled := 0, 0
	for name, n := range h.wanted {
		ids, extra := inOrder(h.received[name])
		require.GreaterOrEqual(h.t, ids, n, "%s: ids in order, of %d acknowledged", name, n)
		require.LessOrEqual(h.t, extra, h.faults, "%s: doubled by %d failures", name, h.faults)
		events, doubled = events+ids, doubled+extra
	}
	lost := 0
	for key, outcome := range h.outcomes {
		n := len(h.received["/effect "+key])
		switch {
		case strings.HasPrefix(key, "once"):
			require.LessOrEqual(h.t, n, 1, "effects of %s, whose outcome is %q", key, outcome)
		default:
			require.NotEqual(h.t, "lost", outcome, key)
			require.GreaterOrEqual(h.t, n, 1, "effects of %s", key)
		}
		if outcome == "lost" {
			lost++
		} else {
			require.NotZero(h.t, n, "effects of %s, whose outcome is %q", key, outcome)
		}
	}
	require.NotZero(h.t, h.jobCount, "jobs")
	require.NotZero(h.t, h.whole, "whole streams")
	require.NotEmpty(h.t, h.outcomes, "calls")
	h.t.Logf("%d faults: %d jobs, %d events and messages (%d doubled), %d calls (%d whose outcome is lost), %d streams (%d cut)",
		h.faults, h.jobCount, events, doubled, len(h.outcomes), lost, h.whole+h.cut, h.cut)
	return h.jobCount + events + len(h.outcomes) + h.whole
}

// missing returns the number of acknowledged items that have not arrived.
func (h *history) missing() (n int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for name, wanted := range h.wanted {
		have := map[string]bool{}
		for _, id := range h.received[name] {
			have[id] = true
		}
		for i := range wanted {
			if !have[fmt.Sprint(i)] {
				n++
			}
		}
	}
	return n
}

// inOrder returns how many of 0, 1, 2 ... are in a list in this order, and the number of other items.
func inOrder(ids []string) (n, extra int) {
	for _, id := range ids {
		if id == fmt.Sprint(n) {
			n++
		} else {
			extra++
		}
	}
	return n, extra
}
