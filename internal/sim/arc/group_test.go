// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package arc

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/fivewire/fivewire/arc"
	"github.com/fivewire/fivewire/internal/sim"
)

// instances are the agents of each server in the profile of a group. The first agent is unhealthy at times.
var instances = []string{"agent-a", "agent-b"}

// operateServer changes the health of an agent of a server, lists the tasks there, watches one, or replaces the server.
func (w *world) operateServer(ctx context.Context, c *sim.Client, t *task) {
	p, ok := w.servers[c.IntN(servers)].Instance().(*process)
	switch n := c.IntN(5); {
	case !ok:
	case n == 4:
		w.replace(c)
	case n == 0:
		p.SetHealthy(instances[0], c.IntN(2) == 0)
	case n == 1:
		w.list(ctx, p)
	case n == 2 && c.IntN(4) == 0:
		for l, err := range p.DeadLetters(ctx) {
			if err == nil {
				_ = p.Redeliver(ctx, l.ID)
			}
		}
	case t == nil:
	case c.IntN(3) == 0:
		_, _ = repeat(w, c, "subscribe", func(client *arc.Client, o *arc.CallOptions) (*arc.Subscription, error) {
			return client.SubscribeTask(ctx, agent, &arc.SubscribeParams{TaskID: t.id, CallbackURL: hookURL + removed}, o)
		})
	case c.IntN(2) == 0:
		w.watch(ctx, p, t)
	default:
		w.readPages(ctx, c, t)
	}
}

// replace shuts a server down in order and starts another one in its place, as a deployment does. It holds the shutdown to
// T5.
func (w *world) replace(c *sim.Client) {
	node := w.servers[c.IntN(servers)]
	p, ok := node.Instance().(*process)
	if !ok {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Duration(c.IntN(10_000))*time.Millisecond)
	defer cancel()
	start := time.Now()
	if err := p.Shutdown(ctx); err != nil {
		_ = p.Server.Close() // it ends work that honors its context
	}
	w.checkTime(ctx, "shutdown", start)
	node.Crash()
	node.Restart()
}

// readPages reads the messages of a task in pages of two, and holds them to T1: the task has them in that order.
func (w *world) readPages(ctx context.Context, c *sim.Client, t *task) {
	read := func(p *arc.TaskInfoParams) (*arc.Task, error) {
		return repeat(w, c, "page", func(client *arc.Client, o *arc.CallOptions) (*arc.Task, error) {
			return client.GetTask(ctx, agent, p, o)
		})
	}
	after, limit := int64(0), int64(2)
	var pages []arc.Message
	for {
		page, err := read(&arc.TaskInfoParams{TaskID: t.id, OmitArtifacts: true, MessagesAfter: &after, MessagesLimit: &limit})
		if err != nil {
			return
		}
		pages = append(pages, page.Messages...)
		after += limit
		if n, err := page.MessageCount.Int64(); err != nil || after >= n {
			break
		}
	}
	got, err := read(&arc.TaskInfoParams{TaskID: t.id, OmitArtifacts: true})
	if err != nil {
		return
	}
	for i, m := range pages {
		if i >= len(got.Messages) || got.Messages[i].Text() != m.Text() {
			w.Failf("T1", "", "task %s has %d messages, and pages with %d: %q is missing", t.id, len(got.Messages), len(pages), m.Text())
		}
	}
}

// heal makes all agents healthy. Calls for the tasks of one that is not are refused (ARC-D47).
func (w *world) heal() {
	w.isHealed.Store(true)
	for _, s := range w.servers {
		if p, ok := s.Instance().(*process); ok && w.broken.isGroup {
			p.SetHealthy(instances[0], true)
		}
	}
}

// The paths of receivers that refuse notifications: the first one until all agents are healthy, the second one
// permanently, which ends its subscriptions.
const refusing, removed = "refusing", "removed"

func (w *world) serveHook(rw http.ResponseWriter, r *http.Request) {
	switch {
	case r.URL.Path == "/"+removed:
		rw.WriteHeader(http.StatusGone)
	case r.URL.Path == "/"+refusing && !w.isHealed.Load():
		rw.WriteHeader(http.StatusBadRequest)
	default:
		w.receivers.ServeHTTP(rw, r)
	}
}

// redeliver sends all dead letters again.
func (w *world) redeliver() {
	if !w.broken.isGroup {
		return
	}
	ctx := context.Background()
	p, ok := w.servers[0].Instance().(*process)
	if !ok {
		w.Failf("start", "", "no server")
		return
	}
	for l, err := range p.DeadLetters(ctx) {
		if err == nil {
			err = p.Redeliver(ctx, l.ID)
		}
		if err != nil {
			w.Failf("N1", "", "dead letters: %v", err)
		}
	}
}

// checkRun holds a begun run to T1: it has the task that was created.
func (w *world) checkRun(ctx context.Context, run *arc.TaskRun) {
	t, err := run.Task(ctx)
	if err != nil {
		return
	}
	isWhole := t.ID == run.ID() && (t.Priority == "" || t.Priority == run.Priority()) && len(t.Messages) > 0 && t.Messages[0].Text() == run.Message().Text()
	if !isWhole || !run.Redelivered() && len(t.Messages) > 1 && strings.HasPrefix(t.Messages[1].Text(), "got ") || run.Metadata() != nil {
		w.Failf("T1", "", "task %s begins as %+v", run.ID(), t)
	}
}

// checkServers holds servers at the end to T4: no unfinished work is left.
func (w *world) checkServers() {
	for _, s := range w.servers {
		p, ok := s.Instance().(*process)
		if !ok {
			continue
		}
		if err := errors.Join(p.Ready(), p.WaitRecovered(context.Background())); err != nil {
			w.Failf("T4", "", "server: %v", err)
		}
	}
}

const inputTimeout = 90 * time.Minute

// checkLimit holds the tasks of some seeds to T4 after the time for which they may wait for input, whatever process has them.
func (w *world) checkLimit() {
	if !w.broken.isGroup || w.Seed()%8 > 0 || w.IsFailed() {
		return
	}
	_ = w.Sleep(context.Background(), inputTimeout)
	w.Settle()
	c := &sim.Client{Rand: rand.New(rand.NewPCG(w.Seed(), 2)), Context: context.Background()}
	for _, t := range w.tasks {
		if w.get(c.Context, c, t) != nil || !isEnded(t.seen.Status) {
			w.Failf("T4", "", "task %s is %s after the time limit of its input", t.id, t.seen.Status)
		}
	}
}

const taskRetention = 3 * time.Hour

// checkRemoval holds the tasks of some seeds to B1.
func (w *world) checkRemoval() {
	if !w.broken.isGroup || w.Seed()%8 > 0 || w.IsFailed() {
		return
	}
	ctx := context.Background()
	_ = w.Sleep(ctx, taskRetention+time.Minute)
	w.Settle()
	for _, prefix := range []string{"arc/task/", "arc/work/"} {
		for e, err := range w.Data().List(ctx, prefix) {
			if prefix == "arc/task/" || !w.IsLate(e.Key) { // an index entry that has landed late stays while its lease is held
				w.Failf("B1", "", "the store has %s after the retention (%v)", e.Key, err)
			}
		}
	}
	for _, t := range w.tasks {
		if list, err := w.Data().Read(ctx, "arc/items/"+t.id, 0, 1); err != nil || len(list) > 0 {
			w.Failf("B1", "", "the store has messages of task %s after the retention (%v)", t.id, err)
		}
	}
}

// request returns a request about tasks of the group.
func request(method, params string) *arc.ServerRequest {
	return &arc.ServerRequest{Authorization: "Bearer me", Data: fmt.Appendf(nil,
		`{"arc":"1.0","id":%q,"method":%q,"requestAgent":"caller","targetAgent":%q,"params":%s}`, method, method, agent, params)}
}

// list holds the tasks at a server to T1: it lists all that were acknowledged.
func (w *world) list(ctx context.Context, p *process) {
	w.mu.Lock()
	want := slices.Clone(w.tasks)
	w.mu.Unlock()
	got := make(map[string]bool)
	for task, err := range p.ListTasks(ctx, request("task.list", "{}")) {
		if err != nil {
			return
		}
		got[task.ID] = true
	}
	for _, t := range want {
		if !got[t.id] {
			w.Failf("T1", "", "task %s is missing in a list of %d", t.id, len(got))
		}
	}
}

// watch collects what is yielded of a task until its end, and holds it to the invariants of a task that is read.
func (w *world) watch(ctx context.Context, p *process, t *task) {
	old, all := w.before(t), arc.Task{}
	for task, err := range p.WatchTask(ctx, request("task.info", fmt.Sprintf(`{"taskId":%q}`, t.id))) {
		if err != nil {
			return
		}
		all.ID, all.Status = task.ID, task.Status
		all.Messages = append(all.Messages, task.Messages...)
		all.Artifacts = append(all.Artifacts, task.Artifacts...)
		read := all
		read.Messages, read.Artifacts = slices.Clip(all.Messages), slices.Clip(all.Artifacts)
		w.read(t, old, &read)
	}
	if !isEnded(all.Status) {
		w.Failf("T1", "", "task %s is %s at the end of a sequence", t.id, all.Status)
	}
}
