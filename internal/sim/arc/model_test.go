// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package arc

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/fivewire/fivewire/arc"
	"github.com/fivewire/fivewire/internal/sim"
)

// A model has what clients know: acknowledged operations and their answers.
//
//	T1 A task keeps its messages and its final state.
//	T2 An acknowledged input is a message of the task from then on, once.
//	T3 Inputs are consumed once and in order.
//	T4 Two minutes after the faults a task is in a final state or waits for input.
//	   It fails if its handler fails, and if it was interrupted before its first step, unless these run again.
//	T5 A call or a shutdown ends at the latest 5 s after its deadline.
//	T6 A task has an artifact for each consumed input, in order, and once.
//	T7 A handler passes a sleep no earlier than its length after the first run began it.
//	N1 An acknowledged subscription gets the end of its task, N2 once per request.
//	C1 A chat has one order of turns, in which each acknowledged message has its answer. A repeat of a message
//	   whose answer was not stored is another turn.
//	C2 A stream is a prefix of the answer, and a complete one is the answer.
//	C3 After an acknowledged end no message is answered.
//	B1 What a server holds is within its limits. After the retention the store has nothing of an ended task.
type model struct {
	sim     *sim.World
	isRerun bool // interrupted tasks without a step, too

	mu    sync.Mutex // guards all below
	count int
	tasks []*task
	chats []*chat
	naps  map[string]time.Time // the beginning of each
}

type task struct {
	id           string
	inputs       int
	isFailing    bool
	acked        []string
	requested    int  // subscriptions
	isSubscribed bool // by an acknowledged one
	seen         *arc.Task
	ends         []arc.Event
}

type chat struct {
	id        string
	exchanges []exchange // acknowledged
	turns     [][]arc.Message
	isEnding  bool          // its end was requested
	endTime   time.Duration // when that was acknowledged
}

// An exchange is an acknowledged message of a chat.
type exchange struct {
	start, end   time.Duration
	text, answer string
}

func newModel(w *sim.World) *model { return &model{sim: w, naps: map[string]time.Time{}} }

// beginNap returns the time at which the first run of a task began its sleep i.
func (m *model) beginNap(id string, i int) time.Time {
	key := fmt.Sprint(id, " ", i)
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.naps[key].IsZero() {
		m.naps[key] = time.Now()
	}
	return m.naps[key]
}

func (m *model) next(name string) string {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.count++
	return fmt.Sprint(name, m.count)
}

func (m *model) created(id string, inputs int, isFailing bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.tasks = append(m.tasks, &task{id: id, inputs: inputs, isFailing: isFailing})
}

func (m *model) acknowledge(t *task, input string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	t.acked = append(t.acked, input)
}

// A snapshot is the knowledge about a task before a request reads it.
type snapshot struct {
	seen  *arc.Task
	acked []string
}

func (m *model) before(t *task) snapshot {
	m.mu.Lock()
	defer m.mu.Unlock()
	return snapshot{t.seen, slices.Clone(t.acked)}
}

func isEnded(s arc.TaskStatus) bool {
	return s == arc.TaskCompleted || s == arc.TaskFailed || s == arc.TaskCanceled
}

// read holds a read task to T1, T2 and T3.
func (m *model) read(t *task, old snapshot, got *arc.Task) {
	var inputs, answers []string
	for _, msg := range got.Messages[min(1, len(got.Messages)):] {
		if text, isAnswer := strings.CutPrefix(msg.Text(), "got "); isAnswer {
			answers = append(answers, text)
		} else {
			inputs = append(inputs, msg.Text())
		}
	}
	if seen := old.seen; seen != nil {
		for i, msg := range seen.Messages {
			if i >= len(got.Messages) || got.Messages[i].Text() != msg.Text() {
				m.sim.Failf("T1", "", "task %s has %d messages, and had %d: %q is missing", t.id, len(got.Messages), len(seen.Messages), msg.Text())
				break
			}
		}
		if isEnded(seen.Status) && got.Status != seen.Status {
			m.sim.Failf("T1", "", "task %s was %s, is %s", t.id, seen.Status, got.Status)
		}
	}
	for _, text := range old.acked {
		if !slices.Contains(inputs, text) {
			m.sim.Failf("T2", "", "task %s (%s) lost input %s, has %q", t.id, got.Status, text, inputs)
		}
	}
	for i, text := range inputs {
		if slices.Contains(inputs[:i], text) {
			m.sim.Failf("T2", "", "task %s has input %s twice", t.id, text)
		}
	}
	if len(answers) > len(inputs) || !slices.Equal(answers, inputs[:len(answers)]) {
		m.sim.Failf("T3", "", "task %s consumed %q of inputs %q", t.id, answers, inputs)
	}
	if got.Status == arc.TaskCompleted && len(answers) != t.inputs {
		m.sim.Failf("T3", "", "task %s is completed after %q, want %d inputs", t.id, answers, t.inputs)
	}
	m.readArtifacts(t, got, answers)
	m.mu.Lock()
	defer m.mu.Unlock()
	if t.seen == nil || len(got.Messages) >= len(t.seen.Messages) {
		t.seen = got
	}
}

// readArtifacts holds the artifacts of a task that has consumed inputs to T6.
func (m *model) readArtifacts(t *task, got *arc.Task, inputs []string) {
	var names []string
	for _, a := range got.Artifacts {
		names = append(names, a.Name)
	}
	isWhole := len(names) == len(inputs) || len(names) == len(inputs)-1 && got.Status != arc.TaskCompleted
	if !isWhole || !slices.Equal(names, inputs[:len(names)]) {
		m.sim.Failf("T6", "", "task %s (%s) has artifacts %q of inputs %q", t.id, got.Status, names, inputs)
	}
}

func (m *model) subscribe(t *task) {
	m.mu.Lock()
	defer m.mu.Unlock()
	t.requested++
}

func (m *model) subscribed(t *task) {
	m.mu.Lock()
	defer m.mu.Unlock()
	t.isSubscribed = true
}

// notified notes the end of a task.
func (m *model) notified(_ context.Context, n *arc.Notification) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, t := range m.tasks {
		if t.id == n.TaskID {
			t.ends = append(t.ends, n.Event)
		}
	}
	return nil
}

func (m *model) turn(id, _ string, history []arc.Message) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, c := range m.chats {
		if c.id == id {
			c.turns = append(c.turns, history)
		}
	}
}

// isOwed reports whether the end of a task has not been notified.
func (m *model) isOwed(t *task) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return t.isSubscribed && isEnded(t.seen.Status) && len(t.ends) == 0
}

// checkTask holds a task at the end to T4, N1 and N2.
func (m *model) checkTask(t *task) {
	status := t.seen.Status
	isIdle := isEnded(status) || status == arc.TaskInputRequired
	isInterrupted := status == arc.TaskFailed && !m.isRerun && t.seen.Error.Message == "Task interrupted" && len(t.seen.Messages) == 1
	isFailed := status == arc.TaskFailed && !isInterrupted
	if !isIdle || isFailed && !t.isFailing || status == arc.TaskCompleted && t.isFailing {
		m.sim.Failf("T4", "", "task %s is %s: %v", t.id, status, t.seen.Error)
	}
	if m.isOwed(t) {
		m.sim.Failf("N1", "", "task %s is %s, and its subscriber was not notified", t.id, status)
	}
	if len(t.ends) > t.requested {
		m.sim.Failf("N2", "", "the %d subscribers of task %s were notified of %q", t.requested, t.id, t.ends)
	}
}

// checkChat holds a chat with its final history to C1.
func (m *model) checkChat(c *chat, history []arc.Message) {
	texts := make([]string, len(history))
	for i := range history {
		texts[i] = history[i].Text()
	}
	for i, e := range c.exchanges {
		at := slices.Index(texts, e.answer) - 1
		if at < 0 || texts[at] != e.text {
			m.sim.Failf("C1", "", "chat %s: message %s with answer %q has no place in %q", c.id, e.text, e.answer, texts)
			return
		}
		if want := fmt.Sprintf("re %s at %d", e.text, at); e.answer != want {
			m.sim.Failf("C1", "", "chat %s: message %s was answered %q, want %q", c.id, e.text, e.answer, want)
		}
		for _, earlier := range c.exchanges[:i] {
			if earlier.end < e.start && slices.Index(texts, earlier.text) > at {
				m.sim.Failf("C1", "", "chat %s: %s is behind %s in %q", c.id, earlier.text, e.text, texts)
			}
		}
	}
}
