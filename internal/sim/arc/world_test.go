// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package arc

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/fivewire/fivewire/arc"
	"github.com/fivewire/fivewire/arc/webhook"
	"github.com/fivewire/fivewire/conformance/fault"
	"github.com/fivewire/fivewire/internal/sim"
	"github.com/fivewire/fivewire/store"
)

const (
	servers = 3
	agent   = "agent"
	hookURL = "http://10.0.0.9:8080/"
)

var quiet = slog.New(slog.DiscardHandler)

// A world has three servers that share a store, two clients, and the receiver of notifications.
type world struct {
	*sim.World
	*model
	broken    defect
	servers   []*sim.Node
	callers   []*sim.Node
	receivers http.Handler
	isHealed  atomic.Bool // all agents are healthy, and the receiver accepts
}

// A defect is what a broken variant does.
type defect struct {
	store   func(s store.Store) store.Store
	handler func(ctx context.Context, run *arc.TaskRun, w *world) error
	chat    arc.ChatHandlerFunc
	webhook func(rt http.RoundTripper) http.RoundTripper
	hook    func(s store.Store) store.Store // of the receiver of notifications
	call    arc.Interceptor

	hasStoreErrors bool
	isGroup        bool // the agent is a group of instances
	isSleepless    bool // handlers do not sleep
	extraUse       int64
}

func newWorld(w *sim.World, d defect) *world {
	except := []fault.Action{fault.Corrupt} // TLS makes it a cut
	if !d.hasStoreErrors {
		except = append(except, fault.ErrorBefore, fault.ErrorAfter, fault.LandLater, fault.Hang, fault.Full, fault.Conflict)
	}
	w.UseNetwork(except...)
	v := &world{World: w, model: newModel(w), broken: d}
	w.Bound("B1", func(i sim.Instance) []sim.Use {
		if p, ok := i.(*process); ok {
			return sim.Uses(p.Usage(), d.extraUse)
		}
		return nil
	})
	v.isRerun = w.Seed()/4%2 == 0
	secret := []arc.WebhookSecret{arc.WebhookSecret("0123456789abcdef0123456789abcdef")}
	var handled store.Store
	if d.hook != nil {
		handled = d.hook(store.NewMemory())
	}
	r, err := webhook.NewReceiver(arc.NotificationHandlerFunc(v.notified), secret, &webhook.ReceiverOptions{Store: handled, Logger: quiet})
	if err != nil {
		w.Failf("start", "", "%v", err)
		return v
	}
	v.receivers = r
	for i := range servers {
		v.servers = append(v.servers, w.Node(fmt.Sprint("s", i), v.startServer))
		_ = w.Sleep(context.Background(), 123_456_789)
	}
	for i := range 2 {
		v.callers = append(v.callers, w.Node(fmt.Sprint("c", i), v.startCaller))
	}
	w.Node("hook", v.startHook)
	return v
}

// A process is one start of a server.
type process struct {
	*sim.View
	*arc.Server
	end []func()
}

func (p *process) Close() {
	_ = p.Server.Close()
	for _, f := range p.end {
		f()
	}
}

func (w *world) startServer(v *sim.View) (sim.Instance, error) {
	db := v.Store
	if w.broken.store != nil {
		db = w.broken.store(db)
	}
	rt, closeIdle := v.Transport(true)
	hooks := http.RoundTripper(rt)
	if w.broken.webhook != nil {
		hooks = w.broken.webhook(hooks)
	}
	s, err := arc.NewServer(&arc.ServerOptions{
		Auth: arc.Auth{Authenticator: arc.BearerAuthenticator(arc.TokenVerifierFunc(
			func(_ context.Context, token string) (*arc.Principal, error) {
				return &arc.Principal{ID: token, Scopes: []string{arc.ScopeAgentCaller, arc.ScopeTaskController,
					arc.ScopeChatController}}, nil
			}))},
		Persistence: arc.Persistence{EnableResume: true, Store: db, InstanceID: v.InstanceID(), ResultTTL: time.Hour, TaskRetention: taskRetention},
		Limits:      w.limits(),
		Timing:      arc.Timing{InputTimeout: inputTimeout},
		Logger:      quiet,
		Webhook: &arc.WebhookOptions{CallbackPolicy: arc.CallbackPolicy{AllowInsecure: true, AllowPrivate: true},
			Transport: hooks, Secrets: func(context.Context, string, string) ([]arc.WebhookSecret, error) {
				return []arc.WebhookSecret{arc.WebhookSecret("0123456789abcdef0123456789abcdef")}, nil
			}},
	})
	if err != nil {
		return nil, err
	}
	serve := w.serveTask
	if w.broken.handler != nil {
		serve = func(ctx context.Context, run *arc.TaskRun) error { return w.broken.handler(ctx, run, w) }
	}
	chat := w.serveChat
	if w.broken.chat != nil {
		chat = w.broken.chat
	}
	ids, group := []string{agent}, ""
	if w.broken.isGroup {
		ids, group = instances, agent
	}
	for _, id := range ids {
		s.Register(arc.Agent{AgentInfo: arc.AgentInfo{AgentID: id}, Group: group, RerunInterrupted: w.isRerun, TaskHandler: arc.TaskHandlerFunc(serve),
			ChatHandler: arc.ChatHandlerFunc(chat)})
	}
	end, err := v.Serve(v.Node.Name()+":80", s)
	if err != nil {
		_ = s.Close()
		return nil, err
	}
	return &process{v, s, []func(){end, closeIdle}}, nil
}

// A hook is one start of the receiver of notifications, whose memory survives.
type hook struct{ end func() }

func (h *hook) Close() { h.end() }

func (w *world) startHook(v *sim.View) (sim.Instance, error) {
	end, err := v.Serve("10.0.0.9:8080", http.HandlerFunc(w.serveHook))
	return &hook{end}, err
}

// A caller is one start of a client, with a connection to each server.
type caller struct {
	*sim.View
	clients []*arc.Client
	end     []func()
}

func (c *caller) Close() {
	for i, client := range c.clients {
		_ = client.Close()
		c.end[i]()
	}
}

func (w *world) startCaller(v *sim.View) (sim.Instance, error) {
	c := &caller{View: v}
	interceptors := []arc.Interceptor{w.timed}
	if w.broken.call != nil {
		interceptors = append(interceptors, w.broken.call)
	}
	for i := range servers {
		rt, end := v.Transport(true)
		client, err := arc.NewClient(fmt.Sprintf("http://s%d:80/arc", i), "caller", &arc.ClientOptions{
			HTTPClient: &http.Client{Transport: rt}, TokenSource: arc.StaticTokenSource("me"), AllowInsecure: true,
			Idempotent: true, MaxResumes: 3, Logger: quiet, Timeout: 20 * time.Second, IdleTimeout: 20 * time.Second, Interceptors: interceptors,
		})
		if err != nil {
			return nil, err
		}
		c.clients, c.end = append(c.clients, client), append(c.end, end)
	}
	return c, nil
}

// limits let tasks and messages of chats wait, by turns of seeds.
func (w *world) limits() arc.Limits {
	switch w.Seed() % 4 {
	case 0:
		return arc.Limits{}
	case 1:
		return arc.Limits{MaxTasks: 1, TaskQueueLimit: 2, ChatQueueLimit: 1}
	case 2:
		return arc.Limits{MaxTasksPerPrincipal: 1, TaskQueueLimitPerPrincipal: 2}
	}
	return arc.Limits{MaxTasksPerPrincipal: 2, TaskQueueLimit: 1}
}

// nap sleeps in one of five worlds. The sleep begins in the first run that calls it.
func (w *world) nap(ctx context.Context, run *arc.TaskRun, i int) error {
	if w.Seed()%5 != 0 {
		return nil
	}
	d := time.Duration(i+1) * 300 * time.Millisecond
	begin := w.beginNap(run.ID(), i)
	err := w.retry(ctx, func() error {
		if w.broken.isSleepless {
			return nil
		}
		return run.Sleep(ctx, "nap", d)
	})
	if err == nil && time.Since(begin) < d {
		w.Failf("T7", "", "task %s slept for %v in place of %v", run.ID(), time.Since(begin), d)
	}
	return err
}

// serveTask waits for the number of inputs in the first message, with a step before each, and answers each of them with
// a message and an artifact. At the end it fails if the first message wants that.
func (w *world) serveTask(ctx context.Context, run *arc.TaskRun) error {
	w.CheckBounds()
	if w.broken.isGroup {
		w.checkRun(ctx, run)
	}
	count, end, _ := strings.Cut(strings.TrimPrefix(run.Message().Text(), "inputs "), " ")
	n, _ := strconv.Atoi(count)
	for i := range n {
		err := w.retry(ctx, func() error {
			_, err := arc.Step(ctx, run, fmt.Sprint("work ", i), func(ctx context.Context, _ string) (int, error) {
				return i, w.Sleep(ctx, time.Duration(i)*700*time.Millisecond)
			})
			return err
		})
		if err != nil {
			return err
		}
		if err = w.nap(ctx, run, i); err != nil {
			return err
		}
		var m *arc.Message
		err = w.retry(ctx, func() (err error) {
			m, err = run.WaitInput(ctx, "more")
			return err
		})
		if err != nil {
			return err
		}
		err = w.retry(ctx, func() error { return run.AddMessage(ctx, arc.AgentText("got "+m.Text())) })
		if err != nil {
			return err
		}
		err = w.retry(ctx, func() error {
			return run.AddArtifact(ctx, &arc.Artifact{Name: m.Text(), Parts: []arc.Part{arc.TextPart(m.Text())}})
		})
		if err != nil {
			return err
		}
	}
	if end == "fail" {
		return arc.Errorf(arc.ErrTaskExecutionFailed, "as wanted")
	}
	return nil
}

// retry calls f again after failures of the store, until the task ends.
func (w *world) retry(ctx context.Context, f func() error) error {
	for {
		err := f()
		if err == nil || ctx.Err() != nil || errors.Is(err, arc.ErrTaskAlreadyCanceled) || errors.Is(err, arc.ErrTaskAlreadyCompleted) {
			return err
		}
		if w.Sleep(ctx, time.Second) != nil {
			return err
		}
	}
}

// serveChat answers a message with its place in the history.
func (w *world) serveChat(ctx context.Context, turn *arc.ChatTurn, out *arc.ChatWriter) error {
	w.CheckBounds()
	history, err := turn.History(ctx)
	if err != nil {
		return err
	}
	w.turn(turn.ChatID, turn.Message.Text(), history)
	if len(history)%6 == 4 {
		turn.Pause()
	}
	for _, piece := range []string{"re ", turn.Message.Text(), " at ", strconv.Itoa(len(history))} {
		if err := out.Send(piece); err != nil {
			return err
		}
		if err := w.Sleep(ctx, 50*time.Millisecond); err != nil {
			return err
		}
	}
	return nil
}

// timed holds calls to T5.
func (w *world) timed(next arc.CallFunc) arc.CallFunc {
	return func(ctx context.Context, out *arc.ClientRequest) (*arc.Response, error) {
		defer w.checkTime(ctx, out.Method, time.Now())
		return next(ctx, out)
	}
}

func (w *world) checkTime(ctx context.Context, name string, start time.Time) {
	limit, ok := ctx.Deadline()
	if late := min(time.Since(limit), time.Since(start)); ok && late > 5*time.Second {
		w.Failf("T5", "", "%s ended %v after its deadline", name, late)
	}
}

// repeat makes a call at several servers with one request id, until one answers.
func repeat[T any](w *world, c *sim.Client, name string, call func(client *arc.Client, o *arc.CallOptions) (T, error)) (answer T, err error) {
	id := fmt.Sprintf("%s-%d-%d", name, c.ID, c.Uint64())
	o := &arc.CallOptions{RequestID: id}
	err = errDown
	for range 1 + c.IntN(4) {
		if n, ok := w.callers[c.ID%len(w.callers)].Instance().(*caller); ok {
			answer, err = call(n.clients[c.IntN(servers)], o)
		}
		var remote *arc.Error
		if err == nil || errors.As(err, &remote) && remote.Remote && isFinal(remote) {
			return answer, err
		}
		_ = w.Sleep(context.Background(), time.Duration(c.Int64N(int64(2*time.Second))))
	}
	return answer, err
}

var errDown = errors.New("client is down")

// isFinal reports whether an error answers the request, so that it is not repeated.
func isFinal(e *arc.Error) bool {
	switch e.Code {
	case arc.ErrInternal, arc.ErrAgentNotAvailable, arc.ErrAgentTimeout, arc.ErrAgentUnreachable, arc.ErrAgentCapacityExceeded:
		return false
	}
	return true
}
