// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package engines

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/a2e"
	"github.com/fivewire/fivewire/a2e/planning"
	"github.com/fivewire/fivewire/a2e/tools"
	"github.com/fivewire/fivewire/store"
)

// instanceEnv names the instance of a process of A2E or ACCP. Its next process takes over at once.
const instanceEnv = "ENGINES_INSTANCE"

// a2eChild serves a tool that records when it begins and when it is done, and plans.
func a2eChild(ctx context.Context, s store.Store) error {
	x, err := a2eHost(ctx, s)
	if err != nil {
		return err
	}
	return serveChild(x)
}

// a2eHost returns a handler whose host has its lease; before that, it refuses handshakes.
func a2eHost(ctx context.Context, s store.Store) (*a2e.HTTPHandler, error) {
	h, err := a2e.NewHost(&a2e.HostOptions{Auth: a2e.Auth{AllowAnonymous: true}, Logger: quiet, Limits: a2e.Limits{MaxUnauthenticatedPerAddress: -1},
		Persistence: a2e.Persistence{Store: s, InstanceID: os.Getenv(instanceEnv), LeaseTTL: time.Second}})
	if err != nil {
		return nil, err
	}
	set, err := tools.NewSet(nil)
	if err != nil {
		return nil, err
	}
	set.Add(tools.Tool{Definition: tools.Definition{Name: "work"}, Run: func(ctx context.Context, _ *a2e.Call, arguments json.RawMessage) (any, error) {
		id := string(arguments)
		if _, err := s.Append(ctx, "starts", "", []byte(id), 0); err != nil {
			return nil, err
		}
		time.Sleep(rand.N(40 * time.Millisecond))
		_, err := s.Append(ctx, "ends", "", []byte(id), 0)
		return arguments, err
	}})
	plans, err := planning.NewPlugin(nil)
	if err != nil {
		return nil, err
	}
	x, err := a2e.NewHTTPHandler(h.AddPlugin(set.Plugin()).AddPlugin(plans), nil)
	if err != nil {
		return nil, err
	}
	return x, h.WaitRecovered(ctx)
}

// A rotation sends each request to the next process.
type rotation struct {
	transport *http.Transport

	mu        sync.Mutex
	processes []*child
	next      int
}

func (r *rotation) RoundTrip(q *http.Request) (*http.Response, error) {
	r.mu.Lock()
	r.next++
	address := r.processes[r.next%len(r.processes)].address
	r.mu.Unlock()
	q = q.Clone(q.Context())
	q.URL.Host, q.Host = address, address
	return r.transport.RoundTrip(q)
}

// disturb disturbs process i and replaces it by its successor.
func (r *rotation) disturb(t *testing.T, p *place, d disturbance, i int) {
	r.mu.Lock()
	old := r.processes[i]
	r.mu.Unlock()
	next := d.apply(t, p, old, "a2e")
	r.mu.Lock()
	defer r.mu.Unlock()
	r.processes[i] = next
}

// connect connects an agent; a handshake that a kill cuts off is tried again.
func (r *rotation) connect(t *testing.T, name string) (*a2e.Client, error) {
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(100 * time.Millisecond) {
		rw, err := a2e.DialHTTP(t.Context(), "http://127.0.0.1:1", &a2e.HTTPDialOptions{HTTPClient: &http.Client{Transport: r}, Logger: quiet})
		if err != nil {
			return nil, err
		}
		c, err := a2e.NewClient(rw, &a2e.ClientOptions{AgentID: name, Capabilities: []string{"tools", "planning"},
			Types: append(tools.Types(), planning.Types()...), Logger: quiet})
		if err != nil {
			return nil, err
		}
		_, err = c.Connect(t.Context())
		if err == nil || time.Now().After(deadline) {
			return c, err
		}
		_ = c.Close()
	}
}

// An a2eAgent makes calls in one session, whatever happens to its host.
type a2eAgent struct {
	name                  string
	answered, interrupted []string // arguments of the calls
	plans                 []string // ids
}

func (a *a2eAgent) work(t *testing.T, r *rotation, stop <-chan struct{}) error {
	c, err := r.connect(t, a.name)
	if err != nil {
		return err
	}
	defer c.Close()
	session := c.SessionID()
	opts := &a2e.CallOptions{Timeout: 2 * time.Minute}
	client, err := tools.NewClient(c)
	if err != nil {
		return err
	}
	desk, err := planning.NewClient(c)
	if err != nil {
		return err
	}
	isStopped := func() bool {
		select {
		case <-stop:
			return len(a.answered) > 0
		default:
			return false
		}
	}
	for n := 0; !isStopped(); n++ {
		id := fmt.Sprintf(`{"id":"%s-%d"}`, a.name, n)
		resp, err := client.Call(t.Context(), &tools.CallRequest{ToolName: "work", Arguments: json.RawMessage(id), Timeout: 90}, opts)
		switch refused, _ := errors.AsType[*a2e.Error](err); {
		case err == nil && string(resp.Data.Data) != id:
			return fmt.Errorf("%s is answered with %s", id, resp.Data.Data)
		case err == nil:
			a.answered = append(a.answered, id)
		case refused != nil && refused.Reason == "interrupted":
			a.interrupted = append(a.interrupted, id)
		default:
			return fmt.Errorf("%s: %w", id, err)
		}
		if n%20 == 0 && len(a.plans) < 50 {
			plan, err := desk.CreatePlan(t.Context(), &planning.PlanCreateRequest{Name: id}, opts)
			if err == nil {
				a.plans = append(a.plans, plan.PlanID)
			} else if refused, _ := errors.AsType[*a2e.Error](err); refused == nil || refused.Reason != "interrupted" {
				return fmt.Errorf("plan of %s: %w", id, err)
			}
		}
	}
	list, err := desk.ListPlans(t.Context(), nil, opts)
	for range 5 { // there are no more kills, but under load a host may lose its lease
		if refused, _ := errors.AsType[*a2e.Error](err); refused == nil || refused.Reason != "interrupted" {
			break
		}
		list, err = desk.ListPlans(t.Context(), nil, opts)
	}
	if err != nil {
		return fmt.Errorf("list of plans: %w", err)
	}
	for _, id := range a.plans {
		if !slices.ContainsFunc(list.Plans, func(p planning.Plan) bool { return p.PlanID == id }) {
			return fmt.Errorf("%s is not among %v", id, list.Plans)
		}
	}
	if c.SessionID() != session {
		return errors.New("the session has changed")
	}
	return nil
}

// TestA2EKilled kills hosts at random while agents call them. Each request gets one answer, and no tool runs
// twice (A2E-D67). On SQLite there is one host, and its next process has the same name. Elsewhere there are
// two, behind a balancer that sends each request to the next.
func TestA2EKilled(t *testing.T) {
	eachDisturbed(t, func(t *testing.T, p *place, d disturbance) {
		isLong, isSQLite := os.Getenv("FIVEWIRE_LONG") != "", p.isSQLite()
		kills, agents, hosts := 8, 16, 1
		switch {
		case d.name != kill9.name:
			kills, hosts = d.rounds(t, 0), 2
		case isSQLite && isLong:
			kills = 200
		case isLong:
			kills, hosts = 30, 2
		case !isSQLite:
			t.Skip("long form only: set FIVEWIRE_LONG")
		}
		if hosts == 1 {
			t.Setenv(instanceEnv, "one")
		}
		s, r := p.open(t), &rotation{transport: &http.Transport{MaxIdleConnsPerHost: agents}}
		t.Cleanup(r.transport.CloseIdleConnections)
		for range hosts {
			r.processes = append(r.processes, p.start(t, "a2e"))
		}
		stop, list := make(chan struct{}), make([]a2eAgent, agents)
		var work sync.WaitGroup
		for i := range list {
			a := &list[i]
			a.name = fmt.Sprint("agent", i)
			work.Go(func() {
				if err := a.work(t, r, stop); err != nil {
					t.Errorf("%s: %v", a.name, err)
				}
			})
		}
		for n := range kills {
			time.Sleep(time.Second + rand.N(2*time.Second))
			if t.Failed() {
				break
			}
			r.disturb(t, p, d, n%hosts)
		}
		close(stop)
		work.Wait()
		starts, ends := count(t, s, "starts"), count(t, s, "ends")
		answered, interrupted := 0, 0
		for _, a := range list {
			answered, interrupted = answered+len(a.answered), interrupted+len(a.interrupted)
			for _, id := range a.answered {
				require.Equal(t, [2]int{1, 1}, [2]int{starts[id], ends[id]}, "%s is answered: starts, ends", id)
				delete(starts, id)
			}
			for _, id := range a.interrupted {
				require.LessOrEqual(t, starts[id], 1, "%s was interrupted: starts", id)
				require.LessOrEqual(t, ends[id], starts[id], id)
				delete(starts, id)
			}
		}
		require.Empty(t, starts, "calls that no agent made")
		recordService(t, p, "A2E", hosts, d.name, kills, answered)
		t.Logf("%d kills: %d calls answered, %d interrupted", kills, answered, interrupted)
	})
}
