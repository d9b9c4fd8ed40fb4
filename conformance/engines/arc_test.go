// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package engines

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/arc"
	"github.com/fivewire/fivewire/store"
)

const agent = "worker-01"

// mustServer returns a server that accepts anonymous callers.
func mustServer(o *arc.ServerOptions) *arc.Server {
	o.Auth.AllowAnonymous = true
	srv, err := arc.NewServer(o)
	for attempt := 1; errors.Is(err, store.ErrUnknown) && attempt < 30; attempt++ { // slower than the lease
		srv, err = arc.NewServer(o)
	}
	if err != nil {
		panic(err)
	}
	return srv
}

// arcServer is one instance of a service: tasks with a question, tasks that
// act, and chats that count.
func arcServer(s store.Store) *arc.Server {
	srv := mustServer(&arc.ServerOptions{
		Persistence: arc.Persistence{EnableResume: true, Store: s, LeaseTTL: time.Second, ResultTTL: 10 * time.Minute},
		Webhook:     &arc.WebhookOptions{CallbackPolicy: arc.CallbackPolicy{AllowInsecure: true, AllowPrivate: true}},
	})
	tasks := arc.TaskHandlerFunc(func(ctx context.Context, run *arc.TaskRun) error {
		if run.Message().Text() == "act" {
			return act(ctx, s, run)
		}
		answer, err := run.WaitInput(ctx, "tea or coffee?")
		if err != nil {
			return err
		}
		if err := run.AddMessage(ctx, arc.AgentText("got "+answer.Text())); err != nil {
			return err
		}
		if answer.Text() != "wait" {
			return nil
		}
		<-ctx.Done()
		return ctx.Err()
	})
	chats := arc.ChatHandlerFunc(func(ctx context.Context, turn *arc.ChatTurn, out *arc.ChatWriter) error {
		history, err := turn.History(ctx)
		if err != nil {
			return err
		}
		for i := range 20 {
			if err := out.Send(fmt.Sprintf("%d.%d ", len(history), i)); err != nil {
				return err
			}
			time.Sleep(5 * time.Millisecond) // as a model does
		}
		return nil
	})
	srv.Register(arc.Agent{AgentInfo: arc.AgentInfo{AgentID: agent}, TaskHandler: tasks, ChatHandler: chats, RerunInterrupted: true})
	return srv
}

// act does what must be done once. A task that runs again after a crash may have
// done it already, and the id of the task tells.
func act(ctx context.Context, s store.Store, run *arc.TaskRun) error {
	if _, err := s.Append(ctx, "runs", "", fmt.Appendf(nil, "%s %t", run.ID(), run.Redelivered()), 0); err != nil {
		return err
	}
	time.Sleep(rand.N(20 * time.Millisecond))
	_, err := s.Append(ctx, "acts", run.ID(), []byte(run.ID()), time.Hour)
	if errors.Is(err, store.ErrDuplicate) && run.Redelivered() {
		return nil
	}
	return err
}

func arcChild(ctx context.Context, s store.Store) error {
	srv := arcServer(s)
	return serveChild(srv)
}

// instance serves it until the end of the test and returns a client.
func instance(t *testing.T, srv *arc.Server) (*arc.Client, string) {
	ts := httptest.NewServer(srv)
	t.Cleanup(func() {
		require.NoError(t, srv.Close())
		ts.CloseClientConnections()
		ts.Close()
	})
	return arcClient(t, ts.URL, nil), strings.TrimPrefix(ts.URL, "http://")
}

func arcClient(t *testing.T, url string, opts *arc.ClientOptions) *arc.Client {
	c, err := arc.NewClient(url+"/arc", "planner-01", opts)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, c.Close()) })
	return c
}

// TestARCTasks: whatever is done to a task may be done at another instance.
func TestARCTasks(t *testing.T) {
	each(t, func(t *testing.T, p *place) {
		ctx := t.Context()
		a, _ := instance(t, arcServer(p.open(t)))
		b, _ := instance(t, arcServer(p.open(t)))
		status := func(c *arc.Client, id string) arc.TaskStatus {
			task, err := c.GetTask(ctx, agent, &arc.TaskInfoParams{TaskID: id}, nil)
			require.NoError(t, err)
			return task.Status
		}
		var mu sync.Mutex
		events := map[string]int{}
		hook := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			mu.Lock()
			defer mu.Unlock()
			events[r.URL.Path]++
		}))
		t.Cleanup(hook.Close)
		for _, ending := range []string{"tea", "wait"} {
			task, err := a.CreateTask(ctx, agent, &arc.CreateTaskParams{InitialMessage: arc.UserText("ask")}, nil)
			require.NoError(t, err)
			id := task.ID
			soon(t, "the other instance shows the question", func() bool { return status(b, id) == arc.TaskInputRequired })
			_, err = b.SubscribeTask(ctx, agent, &arc.SubscribeParams{TaskID: id, CallbackURL: hook.URL + "/" + ending, Events: []arc.Event{arc.EventNewMessage}}, nil)
			require.NoError(t, err)
			require.NoError(t, b.SendTaskInput(ctx, agent, &arc.SendTaskParams{TaskID: id, Message: arc.UserText(ending)}, nil))
			var last *arc.Task
			soon(t, "the answer arrives where the task runs", func() bool {
				last, err = b.GetTask(ctx, agent, &arc.TaskInfoParams{TaskID: id}, nil)
				require.NoError(t, err)
				return len(last.Messages) == 3
			})
			require.Equal(t, "got "+ending, last.Messages[2].Text())
			if ending == "wait" {
				_, err = b.CancelTask(ctx, agent, &arc.CancelTaskParams{TaskID: id}, nil)
				require.NoError(t, err)
				soon(t, "canceled at both", func() bool { return status(a, id) == arc.TaskCanceled && status(b, id) == arc.TaskCanceled })
				continue
			}
			soon(t, "completed at both", func() bool { return status(a, id) == arc.TaskCompleted && status(b, id) == arc.TaskCompleted })
		}
		soon(t, "the webhook hears of both", func() bool {
			mu.Lock()
			defer mu.Unlock()
			return events["/tea"] > 0 && events["/wait"] > 0
		})
	})
}

// TestARCChats: a chat continues at another instance with its history, and so does the stream of an
// answer whose connection was cut.
func TestARCChats(t *testing.T) {
	each(t, func(t *testing.T, p *place) {
		ctx := t.Context()
		_, one := instance(t, arcServer(p.open(t)))
		_, two := instance(t, arcServer(p.open(t)))
		f := newFront(t)
		f.put(one)
		c := arcClient(t, f.URL, &arc.ClientOptions{MaxResumes: 5})
		read := func(turn int, stream func(yield func(*arc.ChatEvent, error) bool)) (chat string) {
			var text strings.Builder
			pieces := 0
			for ev, err := range stream {
				require.NoError(t, err)
				text.WriteString(ev.Text)
				chat = ev.ChatID
				if pieces++; pieces == 5 { // the instance is no longer in front, and the connection is cut
					if f.instance.Load() == one {
						f.put(two)
					} else {
						f.put(one)
					}
					f.CloseClientConnections()
				}
			}
			var want strings.Builder
			for i := range 20 {
				fmt.Fprintf(&want, "%d.%d ", turn, i)
			}
			require.Equal(t, want.String(), text.String())
			return chat
		}
		chat := read(0, c.StreamChat(ctx, agent, &arc.StartChatParams{InitialMessage: arc.UserText("begin")}, nil))
		for turn := range 2 {
			read(2*turn+2, c.StreamChatMessage(ctx, agent, &arc.ChatMessageParams{ChatID: chat, Message: arc.UserText("more")}, nil))
		}
		_, err := c.EndChat(ctx, agent, &arc.EndChatParams{ChatID: chat}, nil)
		require.NoError(t, err)
		f.put(one)
		_, err = c.SendChatMessage(ctx, agent, &arc.ChatMessageParams{ChatID: chat, Message: arc.UserText("too late")}, nil)
		require.Error(t, err)
	})
}

// TestARCKilled kills instances while they receive tasks. Each accepted task is done exactly once,
// or has failed without effect, because its process was killed before it stored the message of the
// task.
func TestARCKilled(t *testing.T) {
	eachDisturbed(t, func(t *testing.T, p *place, d disturbance) {
		ctx := t.Context()
		s := p.open(t)
		f := newFront(t)
		instances := []*child{p.start(t, "arc"), p.start(t, "arc")}
		f.put(instances[0].address)
		c := arcClient(t, f.URL, &arc.ClientOptions{Idempotent: true, Retry: &arc.RetryPolicy{MaxAttempts: 8}})
		stop := make(chan struct{})
		var mu sync.Mutex
		var accepted []string
		var clients sync.WaitGroup
		for range 3 {
			clients.Go(func() {
				for {
					select {
					case <-stop:
						return
					default:
					}
					task, err := c.CreateTask(ctx, agent, &arc.CreateTaskParams{InitialMessage: arc.UserText("act")}, nil)
					if err != nil {
						continue // nothing is known about it
					}
					mu.Lock()
					accepted = append(accepted, task.ID)
					mu.Unlock()
				}
			})
		}
		for round := range d.rounds(t, 4) {
			time.Sleep(50*time.Millisecond + rand.N(100*time.Millisecond))
			dies, lives := round%2, instances[1-round%2].address
			time.AfterFunc(10*time.Millisecond, func() { f.put(lives) })
			instances[dies] = d.apply(t, p, instances[dies], "arc")
		}
		close(stop)
		clients.Wait()
		require.NotEmpty(t, accepted)
		failed := map[string]bool{}
		for open := accepted; len(open) > 0; {
			soon(t, "what was accepted is over", func() bool {
				task, err := c.GetTask(ctx, agent, &arc.TaskInfoParams{TaskID: open[0]}, nil)
				if errors.Is(err, arc.ErrAgentNotAvailable) { // its lease ended while another process locked the file
					return false
				}
				require.NoError(t, err)
				if task.Status == arc.TaskFailed {
					require.ErrorIs(t, task.Error, arc.ErrTaskExecutionFailed, "%+v", task)
					require.Empty(t, task.Messages)
					failed[task.ID] = true
				}
				return task.Status.Final()
			})
			open = open[1:]
		}
		times := count(t, s, "acts")
		for _, id := range accepted {
			if failed[id] {
				require.Zero(t, times[id], "task %s", id)
				continue
			}
			require.Equal(t, 1, times[id], "task %s", id)
		}
		require.Less(t, len(failed), len(accepted))
		runs := count(t, s, "runs")
		for id := range times {
			require.LessOrEqual(t, runs[id+" false"], 1, "task %s was run twice as a new one", id)
		}
		recordService(t, p, "ARC", len(instances), d.name, d.rounds(t, 4), len(accepted))
		t.Logf("%d tasks accepted, %d of them failed, %d acts, %d runs", len(accepted), len(failed), len(times), len(runs))
	})
}

// A meddler is a store in which another process changes what the first read of some keys has returned. Prefixes of
// lists are keys too.
type meddler struct {
	store.Store
	key    string // a part of these keys
	meddle func()
	once   sync.Once
}

func (m *meddler) after(key string) {
	if strings.Contains(key, m.key) {
		m.once.Do(m.meddle)
	}
}

func (m *meddler) List(ctx context.Context, prefix string) iter.Seq2[store.Entry, error] {
	var all []store.Entry
	for e, err := range m.Store.List(ctx, prefix) {
		if err != nil {
			return func(yield func(store.Entry, error) bool) { yield(e, err) }
		}
		all = append(all, e)
	}
	if len(all) > 0 {
		m.after(prefix)
	}
	return func(yield func(store.Entry, error) bool) {
		for _, e := range all {
			if !yield(e, nil) {
				return
			}
		}
	}
}

func (m *meddler) Get(ctx context.Context, key string) (store.Entry, error) {
	e, err := m.Store.Get(ctx, key)
	if err == nil {
		m.after(key)
	}
	return e, err
}

// TestARCRecoverRace: two processes take over what a third one left, and one has
// read the list of tasks, an entry of it or a task before the other took them. Each task runs again once.
func TestARCRecoverRace(t *testing.T) {
	for name, key := range map[string]string{"list": "arc/work/dead", "entry": "/task:", "task": "arc/task/"} {
		t.Run(name, func(t *testing.T) { testARCRecoverRace(t, key) })
	}
}

func testARCRecoverRace(t *testing.T, key string) {
	ctx := t.Context()
	db := store.NewMemory()
	began := make(chan struct{})
	var runs atomic.Int64
	start := func(s store.Store, instance string) *arc.Server {
		srv := mustServer(&arc.ServerOptions{Persistence: arc.Persistence{Store: s, InstanceID: instance}})
		srv.Register(arc.Agent{AgentInfo: arc.AgentInfo{AgentID: agent}, RerunInterrupted: true, TaskHandler: arc.TaskHandlerFunc(func(ctx context.Context, run *arc.TaskRun) error {
			if run.Redelivered() {
				runs.Add(1)
			} else {
				close(began)
			}
			if instance == "slower" {
				return nil // its shutdown waits for a run
			}
			<-ctx.Done()
			return ctx.Err()
		})})
		t.Cleanup(func() { require.NoError(t, srv.Close()) })
		return srv
	}
	dead := start(db, "dead")
	c, _ := instance(t, dead)
	_, err := c.CreateTask(ctx, agent, &arc.CreateTaskParams{InitialMessage: arc.UserText("x")}, nil)
	require.NoError(t, err)
	<-began
	require.NoError(t, dead.Close())

	hasRead := false
	slower := start(&meddler{Store: db, key: key, meddle: func() {
		hasRead = true
		require.NoError(t, start(db, "faster").WaitRecovered(ctx))
	}}, "slower")
	require.NoError(t, slower.WaitRecovered(ctx))
	require.True(t, hasRead)
	soon(t, "the task runs again", func() bool { return runs.Load() > 0 })
	require.NoError(t, slower.Shutdown(ctx)) // with a second run, if WaitRecovered has begun one
	require.EqualValues(t, 1, runs.Load())
}

// count returns the number of occurrences of each value in a stream.
func count(t *testing.T, s store.Store, stream string) map[string]int {
	times := map[string]int{}
	list, err := records(t.Context(), s, stream)
	require.NoError(t, err)
	for _, text := range list {
		times[text]++
	}
	return times
}

// records returns the texts of a stream in order.
func records(ctx context.Context, s store.Store, stream string) (list []string, err error) {
	for after := uint64(0); ; {
		records, err := s.Read(ctx, stream, after, 1000)
		if err != nil || len(records) == 0 {
			return list, err
		}
		for _, r := range records {
			list = append(list, string(r.Value))
			after = r.Seq
		}
	}
}
