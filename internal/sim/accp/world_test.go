// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package accp

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/fivewire/fivewire/accp"
	"github.com/fivewire/fivewire/accp/profile"
	"github.com/fivewire/fivewire/conformance/fault"
	"github.com/fivewire/fivewire/internal/sim"
	"github.com/fivewire/fivewire/store"
)

const (
	servers  = 2
	agents   = 3
	endpoint = "http://accp.test" + accp.FramesPath
)

var quiet = slog.New(slog.DiscardHandler)

var errDown = errors.New("agent is down")

// A world has servers that share a store, and agents whose requests go to the servers in turn.
type world struct {
	*sim.World
	*model
	broken  defect
	agents  []*sim.Node
	servers []*sim.Node
}

// A defect is what a broken variant does.
type defect struct {
	store func(s store.Store) store.Store
	work  func(w *world, id string) error
	value func(text string) string

	answer      func(id string) string
	hasNoLimit  bool  // calls ignore their deadline
	extraChange int64 // of the state by each update

	stateText, summary func(text string) string
	hasNoLastChunk     bool
	accept             int // more times that each number is accepted
	pay                func(w *world, id string) error
	token              func(w *world, text string) string
	extraUse           int64
	extraStable        int

	hasStoreErrors bool
}

// storeErrors are the faults after which a change of the store is in doubt or was not made.
var storeErrors = []fault.Action{
	fault.ErrorBefore, fault.ErrorAfter, fault.LandLater, fault.Hang, fault.Full, fault.Conflict,
}

func newWorld(w *sim.World, d defect) *world {
	except := []fault.Action{fault.Corrupt} // TLS makes it a cut
	if !d.hasStoreErrors {
		except = append(except, storeErrors...)
	}
	w.UseNetwork(except...)
	v := &world{World: w, model: newModel(w), broken: d}
	w.Bound("A7", func(i sim.Instance) []sim.Use {
		if p, ok := i.(*process); ok {
			return sim.Uses(p.Usage(), d.extraUse)
		}
		return nil
	})
	for i := range servers {
		v.servers = append(v.servers, w.Node(fmt.Sprint("s", i), v.startServer))
		_ = w.Sleep(context.Background(), 123_456_789)
	}
	for i := range agents {
		v.agents = append(v.agents, w.Node(fmt.Sprint("c", i), v.startAgent))
	}
	return v
}

// A process is one start of a server.
type process struct {
	*accp.Server
	end func()
}

func (p *process) Close() {
	_ = p.Server.Close()
	p.end()
}

func (w *world) startServer(v *sim.View) (sim.Instance, error) {
	db := v.Store
	if w.broken.store != nil {
		db = w.broken.store(db)
	}
	s, err := accp.NewServer("desk", &accp.ServerOptions{Auth: accp.Auth{Authenticator: accp.AuthenticatorFunc(authenticate)},
		Persistence: accp.Persistence{Store: db, InstanceID: v.InstanceID()}, Logger: quiet, Middleware: []accp.Middleware{w.countNumbers},
		Session: accp.SessionOptions{MaxCheckpoints: 8, Summaries: accp.SummaryOptions{Summarizer: w.summarize, AdoptFromPeer: true}}})
	if err != nil {
		return nil, err
	}
	live := func(f accp.HandlerFunc) accp.Handler { // a crashed process does nothing
		return accp.HandlerFunc(func(ctx context.Context, out *accp.ReplyWriter, m *accp.Message) error {
			if v.IsCrashed() {
				return errDown
			}
			return f(ctx, out, m)
		})
	}
	s.Handle(accp.IntentReq, profile.OpAnalyze, live(w.serveWork))
	s.Handle(accp.IntentReq, "put", live(w.servePut))
	s.Handle(accp.IntentReq, profile.OpGenerate, live(w.serveStream))
	s.Handle(accp.IntentReq, profile.OpTransaction, live(w.servePay))
	s.Handle(accp.IntentQry, "echo", live(w.serveEcho))
	s.Handle(accp.IntentQry, "whole", live(w.serveState))
	s.Handle(accp.IntentQry, "get", live(w.serveGet))
	s.Handle(accp.IntentQry, "count", live(w.serveCount))
	end, err := v.Serve(v.Node.Name()+":80", s)
	if err != nil {
		_ = s.Close()
		return nil, err
	}
	return &process{s, end}, nil
}

// serveWork takes up to two seconds and answers with the id of the request.
func (w *world) serveWork(ctx context.Context, out *accp.ReplyWriter, m *accp.Message) error {
	w.CheckBounds()
	id := m.Params.Text("id")
	run := w.ran(id)
	if w.broken.work != nil {
		return w.broken.work(w, id)
	}
	if run%3 == 0 { // a repeat at the other server gets it while the handler runs
		chunk := &accp.Message{Intent: accp.IntentStream, Op: m.Op, Params: accp.Params{{Key: "schema", Value: accp.String(profile.SchemaStream)},
			{Key: "chunk_index", Value: accp.Int(0)}, {Key: "data", Value: accp.String(id)}}}
		if err := out.Send(chunk); err != nil {
			return err
		}
	}
	if err := w.Sleep(ctx, time.Duration(run%5)*400*time.Millisecond); err != nil {
		return err
	}
	if run%7 == 6 { // it may have had its effect
		return accp.ErrToolExecFailed
	}
	if w.broken.answer != nil {
		id = w.broken.answer(id)
	}
	return out.SendResult(accp.Params{{Key: "id", Value: accp.String(id)}})
}

// authenticate returns the agent, whose token is its name.
func authenticate(r *http.Request) (*accp.Principal, error) {
	return &accp.Principal{ID: r.Header.Get("Authorization")}, nil
}

// countNumbers notes the number of each message.
func (w *world) countNumbers(next accp.Handler) accp.Handler {
	return accp.HandlerFunc(func(ctx context.Context, out *accp.ReplyWriter, m *accp.Message) error {
		for range 1 + w.broken.accept {
			w.accept(m)
		}
		return next.ServeACCP(ctx, out, m)
	})
}

// summarize takes half a second.
func (w *world) summarize(ctx context.Context, facts []accp.Fact, _ []string, _ int) (string, error) {
	return fmt.Sprint(len(facts), " facts"), w.Sleep(ctx, 500*time.Millisecond)
}

// serveStream answers with chunks.
func (w *world) serveStream(ctx context.Context, out *accp.ReplyWriter, m *accp.Message) error {
	w.CheckBounds()
	id := m.Params.Text("id")
	v, _ := m.Params.Get("total")
	total, _ := v.Int()
	run := w.ran(id)
	for i := range total {
		isLast := i == total-1 || w.broken.hasNoLastChunk
		c, err := accp.NewMessage(accp.IntentStream, m.Op, profile.SchemaStream, profile.Chunk{Index: i, Data: accp.String(chunk(id, int(i))), Final: isLast})
		if err != nil {
			return err
		}
		if err := out.Send(c); err != nil || isLast {
			return err
		}
		if err := w.Sleep(ctx, time.Duration(run%4)*200*time.Millisecond); err != nil {
			return err
		}
	}
	return nil
}

// servePay takes up to two seconds and answers with a new token.
func (w *world) servePay(ctx context.Context, out *accp.ReplyWriter, m *accp.Message) error {
	id := m.Params.Text("transaction_id")
	run := w.ran(id)
	if w.broken.pay != nil {
		return w.broken.pay(w, id)
	}
	if err := w.Sleep(ctx, time.Duration(run%5)*400*time.Millisecond); err != nil {
		return err
	}
	return out.SendResult(accp.Params{{Key: "schema", Value: accp.String(profile.SchemaTransaction)},
		{Key: "transaction_id", Value: accp.String(id)}, {Key: "reference", Value: accp.String(w.next("token"))}})
}

// serveEcho answers with the resolved text of a reference.
func (w *world) serveEcho(_ context.Context, out *accp.ReplyWriter, m *accp.Message) error {
	text := m.Params.Text("value")
	if w.broken.summary != nil {
		text = w.broken.summary(text)
	}
	return out.SendResult(accp.Params{{Key: "text", Value: accp.String(text)}})
}

// serveState answers with the state of the session.
func (w *world) serveState(ctx context.Context, out *accp.ReplyWriter, _ *accp.Message) error {
	if err := out.Session().Reload(ctx); err != nil {
		return err
	}
	text := stateText(out.Session())
	if w.broken.stateText != nil {
		text = w.broken.stateText(text)
	}
	return out.SendResult(accp.Params{{Key: "text", Value: accp.String(text)}})
}

// servePut stores a text in the warm tier of the session.
func (w *world) servePut(ctx context.Context, out *accp.ReplyWriter, m *accp.Message) error {
	id, text := m.Params.Text("id"), m.Params.Text("id")
	if w.broken.value != nil {
		text = w.broken.value(text)
	}
	if err := out.Session().Put(ctx, accp.ScopeWarm, id, accp.String(text), 0); err != nil {
		return err
	}
	return out.SendResult(accp.Params{{Key: "id", Value: accp.String(id)}})
}

// serveGet answers with a text of the warm tier.
func (w *world) serveGet(ctx context.Context, out *accp.ReplyWriter, m *accp.Message) error {
	v, err := out.Session().Resolve(ctx, "warm."+m.Params.Text("id"))
	if err != nil {
		return err
	}
	return out.SendResult(accp.Params{{Key: "text", Value: v}})
}

// serveCount answers with the number in the shared state.
func (w *world) serveCount(ctx context.Context, out *accp.ReplyWriter, m *accp.Message) error {
	if err := out.Session().Reload(ctx); err != nil {
		return err
	}
	_, state := out.Session().State()
	return out.SendResult(accp.Params{{Key: "n", Value: accp.Int(number(state))}})
}

// number returns the number in a state.
func number(state accp.Params) int64 {
	v, _ := state.Get("n")
	n, _ := v.Int()
	return n
}

// An agent is one start of an agent with a separate session.
type agent struct {
	*session
	name   string
	client *accp.Client
	out    *balancer
	end    func()
}

func (w *world) startAgent(v *sim.View) (sim.Instance, error) {
	rt, end := v.Transport(true)
	s, out := w.newSession(w.next(v.Node.Name()+"_")), &balancer{next: rt}
	c, err := accp.NewClient(endpoint, v.Node.Name(), &accp.ClientOptions{SessionID: s.id, AllowInsecure: true,
		TokenSource: accp.TokenSourceFunc(func(context.Context) (string, error) { return v.Node.Name(), nil }),
		HTTPClient:  &http.Client{Transport: out}, Logger: quiet})
	if err != nil {
		end()
		return nil, err
	}
	return &agent{s, v.Node.Name(), c, out, end}, nil
}

func (a *agent) Close() {
	_ = a.client.Close()
	a.end()
}

// A balancer sends each request to the next server.
type balancer struct {
	next      http.RoundTripper
	count     atomic.Int64
	isRefused atomic.Bool // the last request found no server
}

func (b *balancer) RoundTrip(r *http.Request) (*http.Response, error) {
	own := r.Clone(r.Context())
	own.Host = r.URL.Host
	own.URL.Host = fmt.Sprintf("s%d:80", b.count.Add(1)%servers)
	res, err := b.next.RoundTrip(own)
	dial, ok := errors.AsType[*net.OpError](err)
	b.isRefused.Store(ok && dial.Op == "dial")
	return res, err
}

// agent returns the running agent of a number, or nil.
func (w *world) agent(n int) *agent {
	a, _ := w.agents[n%len(w.agents)].Instance().(*agent)
	return a
}
