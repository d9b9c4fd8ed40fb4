// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package arc

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/fivewire/fivewire/arc"
	"github.com/fivewire/fivewire/internal/sim"
	"github.com/fivewire/fivewire/store"
)

func TestSeed(t *testing.T) {
	t.Run("arc", func(t *testing.T) { sim.Seeds(t, profile(defect{})) })
	t.Run("store", func(t *testing.T) { sim.Seeds(t, profile(defect{hasStoreErrors: true})) })
	t.Run("group", func(t *testing.T) { sim.Seeds(t, profile(defect{hasStoreErrors: true, isGroup: true})) })
}

// profile lets clients create, read, cancel and subscribe to tasks, send inputs, and talk in chats.
func profile(d defect) func(*sim.World) {
	return func(s *sim.World) {
		w := newWorld(s, d)
		s.Play(40*time.Second, 3, 3*time.Second, func(c *sim.Client) { w.operate(c) })
		w.heal()
		s.Settle()
		w.redeliver()
		w.check()
		w.checkServers()
		w.checkLimit()
		w.checkRemoval()
	}
}

func (w *world) operate(c *sim.Client) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Duration(1+c.IntN(20))*time.Second)
	defer cancel()
	t, ch := w.pick(c)
	if w.broken.isGroup && c.IntN(5) == 0 {
		w.operateServer(ctx, c, t)
		return
	}
	switch n := c.IntN(10); {
	case n < 2 || t == nil:
		w.create(ctx, c)
	case n < 5:
		w.send(ctx, c, t)
	case n < 6:
		w.get(ctx, c, t)
	case n < 7 && c.IntN(4) == 0:
		_, _ = w.Call(c.ID, "cancel", func() (string, error) {
			_, err := repeat(w, c, "cancel", func(client *arc.Client, o *arc.CallOptions) (*arc.Task, error) {
				return client.CancelTask(ctx, agent, &arc.CancelTaskParams{TaskID: t.id}, o)
			})
			return "", err
		})
	case n < 8:
		w.follow(ctx, c, t)
	case ch == nil || c.IntN(3) == 0:
		w.startChat(ctx, c)
	case c.IntN(8) == 0:
		w.endChat(ctx, c, ch)
	default:
		w.say(ctx, c, ch)
	}
}

func (w *world) pick(c *sim.Client) (t *task, ch *chat) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if n := len(w.tasks); n > 0 {
		t = w.tasks[max(0, n-1-c.IntN(4))]
	}
	if n := len(w.chats); n > 0 {
		ch = w.chats[max(0, n-1-c.IntN(2))]
	}
	return t, ch
}

func (w *world) create(ctx context.Context, c *sim.Client) {
	inputs, text := c.IntN(4), ""
	isFailing := c.IntN(4) == 0
	if isFailing {
		text = " fail"
	}
	p := &arc.CreateTaskParams{InitialMessage: arc.UserText(fmt.Sprint("inputs ", inputs, text)),
		Priority: []arc.Priority{"", arc.PriorityLow, arc.PriorityUrgent}[c.IntN(3)]}
	_, _ = w.Call(c.ID, "create", func() (string, error) {
		t, err := repeat(w, c, "create", func(client *arc.Client, o *arc.CallOptions) (*arc.Task, error) {
			return client.CreateTask(ctx, agent, p, o)
		})
		if err == nil {
			w.created(t.ID, inputs, isFailing)
		}
		return "", err
	})
}

func (w *world) send(ctx context.Context, c *sim.Client, t *task) {
	text := w.next("i")
	_, err := w.Call(c.ID, "send "+text, func() (string, error) {
		return repeat(w, c, "send", func(client *arc.Client, o *arc.CallOptions) (string, error) {
			return "", client.SendTaskInput(ctx, agent, &arc.SendTaskParams{TaskID: t.id, Message: arc.UserText(text)}, o)
		})
	})
	if err == nil {
		w.acknowledge(t, text)
	}
}

func (w *world) get(ctx context.Context, c *sim.Client, t *task) error {
	_, err := w.Call(c.ID, "get", func() (string, error) {
		old := w.before(t) // a repeated request may get the stored answer of the first one
		got, err := repeat(w, c, "get", func(client *arc.Client, o *arc.CallOptions) (*arc.Task, error) {
			got, err := client.GetTask(ctx, agent, &arc.TaskInfoParams{TaskID: t.id}, o)
			if err == nil {
				w.read(t, old, got)
			}
			return got, err
		})
		if err != nil {
			if errors.Is(err, arc.ErrTaskNotFound) {
				w.Failf("T1", "", "task %s is not found", t.id)
			}
			return "", err
		}
		return string(got.Status), nil
	})
	return err
}

func (w *world) follow(ctx context.Context, c *sim.Client, t *task) {
	url := hookURL
	if w.broken.isGroup && c.IntN(2) == 0 {
		url += refusing
	}
	w.subscribe(t)
	_, err := w.Call(c.ID, "subscribe", func() (string, error) {
		_, err := repeat(w, c, "subscribe", func(client *arc.Client, o *arc.CallOptions) (*arc.Subscription, error) {
			return client.SubscribeTask(ctx, agent, &arc.SubscribeParams{TaskID: t.id, CallbackURL: url,
				Events: []arc.Event{arc.EventTaskCompleted, arc.EventTaskFailed, arc.EventTaskCanceled}}, o)
		})
		return "", err
	})
	if err == nil {
		w.subscribed(t)
	}
}

func (w *world) startChat(ctx context.Context, c *sim.Client) {
	ch := &chat{id: w.next("chat")}
	text := w.next("m")
	w.mu.Lock()
	w.chats = append(w.chats, ch)
	w.mu.Unlock()
	w.exchange(c, ch, exchange{text: text}, func() (string, error) {
		got, err := repeat(w, c, "start", func(client *arc.Client, o *arc.CallOptions) (*arc.Chat, error) {
			return client.StartChat(ctx, agent, &arc.StartChatParams{ChatID: ch.id, InitialMessage: arc.UserText(text)}, o)
		})
		if err != nil {
			return "", err
		}
		return got.Message.Text(), nil
	})
}

// endChat ends a chat. The messages of later requests are refused.
func (w *world) endChat(ctx context.Context, c *sim.Client, ch *chat) {
	w.mu.Lock()
	ch.isEnding = true
	w.mu.Unlock()
	_, err := w.Call(c.ID, "end", func() (string, error) {
		_, err := repeat(w, c, "end", func(client *arc.Client, o *arc.CallOptions) (*arc.Chat, error) {
			return client.EndChat(ctx, agent, &arc.EndChatParams{ChatID: ch.id}, o)
		})
		return "", err
	})
	if err == nil {
		w.mu.Lock()
		defer w.mu.Unlock()
		ch.endTime = w.Now()
	}
}

// say sends a message and reads its answer at once or as a stream.
func (w *world) say(ctx context.Context, c *sim.Client, ch *chat) {
	text := w.next("m")
	p := &arc.ChatMessageParams{ChatID: ch.id, Message: arc.UserText(text)}
	isStream := c.IntN(2) == 0
	w.exchange(c, ch, exchange{text: text}, func() (string, error) {
		if !isStream {
			got, err := repeat(w, c, "say", func(client *arc.Client, o *arc.CallOptions) (*arc.Chat, error) {
				return client.SendChatMessage(ctx, agent, p, o)
			})
			if err != nil {
				return "", err
			}
			return got.Message.Text(), nil
		}
		n, ok := w.callers[c.ID%len(w.callers)].Instance().(*caller)
		if !ok {
			return "", errDown
		}
		return w.stream(ctx, n.clients[c.IntN(servers)], p)
	})
}

var errCut = errors.New("no end")

// stream reads an answer and holds it to C2.
func (w *world) stream(ctx context.Context, client *arc.Client, p *arc.ChatMessageParams) (string, error) {
	defer w.checkTime(ctx, "stream", time.Now())
	var b strings.Builder
	isDone := false
	for e, err := range client.StreamChatMessage(ctx, agent, p, nil) {
		if err != nil {
			return "", err
		}
		b.WriteString(e.Text)
		isDone = isDone || e.Done
		if want := "re " + p.Message.Text() + " at "; !strings.HasPrefix(b.String(), want) && !strings.HasPrefix(want, b.String()) {
			w.Failf("C2", "", "stream of %s has %q", p.Message.Text(), b.String())
		}
	}
	if !isDone {
		return "", errCut
	}
	return b.String(), nil
}

func (w *world) exchange(c *sim.Client, ch *chat, e exchange, f func() (string, error)) {
	var err error
	e.start = w.Now()
	e.answer, err = w.Call(c.ID, "say "+e.text, f)
	e.end = w.Now()
	if err == nil {
		w.mu.Lock()
		defer w.mu.Unlock()
		if ch.endTime > 0 && ch.endTime < e.start {
			w.Failf("C3", "", "chat %s: message %s was answered after the end", ch.id, e.text)
		}
		ch.exchanges = append(ch.exchanges, e)
	}
}

// check reads all tasks, ends all chats with a last message, and holds them to the invariants.
func (w *world) check() {
	c := &sim.Client{Rand: rand.New(rand.NewPCG(w.Seed(), 1)), Context: context.Background()}
	ctx := context.Background()
	for _, t := range w.tasks {
		if err := w.get(ctx, c, t); err != nil {
			w.Failf("T1", "", "task %s: %v", t.id, err)
			return
		}
		for i := 0; i < 60 && w.isOwed(t); i++ { // a notification may wait for its next attempt
			_ = w.Sleep(ctx, time.Minute)
		}
		w.checkTask(t)
	}
	for _, ch := range w.chats {
		acknowledged := ch.exchanges
		if len(acknowledged) == 0 {
			continue
		}
		ch.turns = nil
		for range 5 { // a connection that a fault has cut fails once
			if w.say(ctx, c, ch); len(ch.exchanges) > len(acknowledged) {
				break
			}
		}
		ch.exchanges = acknowledged
		if len(ch.turns) == 0 && ch.isEnding && errors.Is(w.lastError(), arc.ErrChatAlreadyClosed) {
			continue
		}
		if len(ch.turns) == 0 {
			w.Failf("C1", "", "chat %s: no turn for the last message: %v", ch.id, w.lastError())
			return
		}
		w.checkChat(ch, ch.turns[len(ch.turns)-1])
	}
}

func TestBrokenVariantsAreFound(t *testing.T) {
	variants := map[string]struct {
		invariant string
		defect    defect
	}{
		"a final state is lost":         {"T1", defect{store: without(isTask)}},
		"inputs are not stored":         {"T2", defect{store: without(isInput)}},
		"inputs are answered twice":     {"T3", defect{handler: doubled}},
		"a task waits for something":    {"T4", defect{handler: stuck}},
		"a client ignores its deadline": {"T5", defect{call: withoutDeadline}},
		"subscriptions are not stored":  {"N1", defect{store: withoutSubscriptions}},
		"notifications are sent twice":  {"N2", defect{webhook: twice, hook: without(isDelivery)}},
		"turns are not stored":          {"C1", defect{store: without(isTurn)}},
		"a piece of a stream is lost":   {"C2", defect{chat: gap}},
		"artifacts are added twice":     {"T6", defect{handler: withTwins}},
		"a task does not sleep":         {"T7", defect{isSleepless: true}},
		"a chat does not end":           {"C3", defect{call: withoutEnd}},
		"a resource is over its limit":  {"B1", defect{extraUse: 1 << 50}},
		"an ended task is not removed":  {"B1", defect{store: permanently, isGroup: true}},
	}
	for name, v := range variants {
		t.Run(name, func(t *testing.T) { sim.Broken(t, v.invariant, profile(v.defect)) })
	}
}

func doubled(ctx context.Context, run *arc.TaskRun, w *world) error {
	m, err := run.WaitInput(ctx, "more")
	if err != nil {
		return err
	}
	for range 2 {
		if err := run.AddMessage(ctx, arc.AgentText("got "+m.Text())); err != nil {
			return err
		}
	}
	return nil
}

func stuck(ctx context.Context, _ *arc.TaskRun, w *world) error {
	<-ctx.Done()
	return ctx.Err()
}

func withoutDeadline(next arc.CallFunc) arc.CallFunc {
	return func(ctx context.Context, out *arc.ClientRequest) (*arc.Response, error) {
		return next(context.WithoutCancel(ctx), out)
	}
}

// withTwins adds each artifact twice.
func withTwins(ctx context.Context, run *arc.TaskRun, w *world) error {
	if err := w.serveTask(ctx, run); err != nil {
		return err
	}
	t, err := run.Task(ctx)
	if err != nil {
		return err
	}
	for _, a := range t.Artifacts {
		if err := run.AddArtifact(ctx, &arc.Artifact{Name: a.Name, Parts: a.Parts}); err != nil {
			return err
		}
	}
	return nil
}

// withoutEnd answers chat.end without a request.
func withoutEnd(next arc.CallFunc) arc.CallFunc {
	return func(ctx context.Context, out *arc.ClientRequest) (*arc.Response, error) {
		if out.Method != arc.MethodChatEnd {
			return next(ctx, out)
		}
		chat := &arc.Chat{ID: "c", Status: arc.ChatClosed, CreatedAt: arc.NewTimestamp(time.Now()), ClosedAt: arc.NewTimestamp(time.Now())}
		result, err := json.Marshal(map[string]any{"type": "chat", "chat": chat})
		return &arc.Response{ResponseAgent: agent, TargetAgent: "caller", Result: result}, err
	}
}

// gap streams the first piece of an answer and the last one.
func gap(_ context.Context, turn *arc.ChatTurn, out *arc.ChatWriter) error {
	for _, piece := range []string{"re ", " at 1"} {
		if err := out.Send(piece); err != nil {
			return err
		}
	}
	return nil
}

// A tripper is a function as a transport.
type tripper func(r *http.Request) (*http.Response, error)

func (f tripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// twice posts each notification twice.
func twice(rt http.RoundTripper) http.RoundTripper {
	return tripper(func(r *http.Request) (*http.Response, error) {
		second := r.Clone(r.Context())
		body, err := r.GetBody()
		if err != nil {
			return nil, err
		}
		second.Body = body
		if res, err := rt.RoundTrip(second); err == nil {
			_ = res.Body.Close()
		}
		return rt.RoundTrip(r)
	})
}

// A losing store loses some records and entries.
type losing struct {
	store.Store
	isLost func(name, id string) bool
}

func without(isLost func(name, id string) bool) func(store.Store) store.Store {
	return func(s store.Store) store.Store { return &losing{s, isLost} }
}

// isInput selects the inputs of tasks, which have ids.
func isInput(name, id string) bool {
	return strings.HasPrefix(name, "arc/items/") && id != "" && !strings.HasPrefix(id, "first")
}

func isTask(name, _ string) bool { return strings.HasPrefix(name, "arc/task/") }

// A forgetful store loses the first subscription of each task.
type forgetful struct{ store.Store }

func withoutSubscriptions(s store.Store) store.Store { return forgetful{s} }

func (f forgetful) Update(ctx context.Context, key string, value []byte, rev store.Revision, ttl time.Duration) (store.Revision, error) {
	subs := []byte(`"subs":`)
	if isTask(key, "") && bytes.Contains(value, subs) {
		if old, err := f.Store.Get(ctx, key); err == nil && !bytes.Contains(old.Value, subs) {
			return rev + 1, nil
		}
	}
	return f.Store.Update(ctx, key, value, rev, ttl)
}

// A permanent store keeps the messages of ended tasks.
type permanent struct{ store.Store }

func permanently(s store.Store) store.Store { return permanent{s} }

func (p permanent) Expire(ctx context.Context, stream string, ttl time.Duration) error {
	if strings.HasPrefix(stream, "arc/items/") {
		return nil
	}
	return p.Store.Expire(ctx, stream, ttl)
}

func isDelivery(name, _ string) bool { return strings.HasPrefix(name, "arc/webhook/") }

func isTurn(name, _ string) bool { return strings.HasPrefix(name, "arc/said/") }

func (l *losing) Append(ctx context.Context, stream, id string, value []byte, ttl time.Duration) (uint64, error) {
	if l.isLost(stream, id) {
		stream = "lost/" + stream
	}
	return l.Store.Append(ctx, stream, id, value, ttl)
}

func (l *losing) Update(ctx context.Context, key string, value []byte, rev store.Revision, ttl time.Duration) (store.Revision, error) {
	if l.isLost(key, "") {
		return rev + 1, nil
	}
	return l.Store.Update(ctx, key, value, rev, ttl)
}

func (l *losing) Create(ctx context.Context, key string, value []byte, ttl time.Duration) (store.Revision, error) {
	if l.isLost(key, "") {
		key = "lost/" + key
	}
	return l.Store.Create(ctx, key, value, ttl)
}

// lastError returns the error of the last call.
func (w *world) lastError() error {
	history := w.History()
	return history[len(history)-1].Err
}
