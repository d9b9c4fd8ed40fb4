// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package a2e_test

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/a2e"
	"github.com/fivewire/fivewire/a2e/a2etest"
	"github.com/fivewire/fivewire/a2e/env"
	"github.com/fivewire/fivewire/a2e/env/envtest"
	"github.com/fivewire/fivewire/a2e/memory"
	"github.com/fivewire/fivewire/a2e/planning"
	"github.com/fivewire/fivewire/conformance/fault"
	"github.com/fivewire/fivewire/store"
)

// serveDurable passes a request to a process and returns the status and the body. It reads a stream
// until it is idle.
func serveDurable(p *durableProcess, method, path, secret, body string) (status int, text string) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	r := httptest.NewRequest(method, "http://a2e.test"+path, strings.NewReader(body)).WithContext(ctx)
	r.Header.Set("X-Session-Id", secret)
	w := httptest.NewRecorder()
	done := make(chan struct{})
	go func() {
		defer close(done)
		p.handler.ServeHTTP(w, r)
	}()
	if method == http.MethodGet {
		synctest.Wait()
		cancel()
	}
	<-done
	return w.Code, w.Body.String()
}

// openDurable opens a session with its handshake, and returns its secret.
func openDurable(t *testing.T, p *durableProcess, caps string) string {
	status, text := serveDurable(p, "POST", "/session", "", `{"a2e":"1.0","type":"handshake/req","id":"h1","ts":1,"agent_id":"t","agent_caps":[`+caps+`,"resume"]}`)
	require.Equal(t, 200, status, text)
	_, rest, _ := strings.Cut(text, `"session_id":"`)
	return rest[:32]
}

func post(t *testing.T, p *durableProcess, secret string, lines ...string) {
	status, text := serveDurable(p, "POST", "/send", secret, strings.Join(lines, "\n"))
	require.Equal(t, 200, status, text)
}

func request(msgType, id, members string) string {
	return `{"a2e":"1.0","type":"` + msgType + `","id":"` + id + `","ts":1,` + members + `}`
}

// durably runs f with a process whose store has faults. The function of f starts another one.
func durably(t *testing.T, rules []fault.Rule, f func(t *testing.T, db store.Store, p *durableProcess, next func() *durableProcess), plugins ...*a2e.Plugin) {
	synctest.Test(t, func(t *testing.T) {
		db, e := store.NewMemory(), &effects{started: map[string]int{}, done: map[string]int{}}
		next := func() *durableProcess {
			p := newDurableProcess(t, db, e, a2e.Persistence{InstanceID: "one"}, rules, plugins...)
			rules = nil
			t.Cleanup(func() { _ = p.host.Close() })
			time.Sleep(time.Second)
			return p
		}
		f(t, db, next(), next)
	})
}

// A request whose answer is stored is not answered again, although the host failed before it had
// removed the request.
func TestStoredAnswerIsTheOnlyOne(t *testing.T) {
	rules := []fault.Rule{{Action: fault.ErrorBefore, Op: "ack", Match: "a2e/in/"}}
	durably(t, rules, func(t *testing.T, db store.Store, p *durableProcess, next func() *durableProcess) {
		secret := openDurable(t, p, `"tools"`)
		post(t, p, secret, request("tool/call/req", "c1", `"tool_name":"work","arguments":{"id":"x"}`),
			request("ping", "p1", `"x":1`))
		time.Sleep(time.Second)
		_, text := serveDurable(p, "GET", "/stream", secret, "")
		require.Equal(t, 1, strings.Count(text, `"req_id":"c1"`), text)
		p.kill()
		p = next()
		_, text = serveDurable(p, "GET", "/stream", secret, "")
		require.Zero(t, strings.Count(text, `"req_id":"c1"`), text)
		require.Zero(t, strings.Count(text, `"req_id":"p1"`), text)
		post(t, p, secret, request("tool/call/req", "c2", `"tool_name":"work","arguments":{"id":"y"}`))
		time.Sleep(time.Second)
		_, text = serveDurable(p, "GET", "/stream", secret, "")
		require.Contains(t, text, "id: 4\n", "the numbers go on")
		require.Contains(t, text, `"req_id":"c2"`)
	})
}

// The changes of a request that was canceled move with the session (A2E-D67).
func TestStateOfCanceledRequestIsSaved(t *testing.T) {
	plugin := notesPlugin(nil)
	plugin.Routes = append(plugin.Routes, a2e.NewRoute("notes/wait/req", func(ctx context.Context, call *a2e.Call, r *noteRequest) (*noteResponse, error) {
		call.PluginState().(*note).text = r.Text
		<-ctx.Done()
		return nil, ctx.Err()
	}))
	durably(t, nil, func(t *testing.T, db store.Store, p *durableProcess, next func() *durableProcess) {
		secret := openDurable(t, p, `"notes","cancel"`)
		post(t, p, secret, request("notes/wait/req", "c1", `"text":"changed"`))
		time.Sleep(time.Second)
		post(t, p, secret, request("invoke/cancel", "c2", `"req_id":"c1"`))
		time.Sleep(time.Second)
		p.kill()
		require.Contains(t, writeNote(t, next(), secret, "last"), `"before":"changed"`)
	}, plugin)
}

// A patient environment counts. The action "rest" takes a minute.
type patient struct{ envtest.Counter }

type patientRun struct{ env.Episode }

func (p patient) Reset(ctx context.Context, r *env.ResetRequest) (env.Episode, *env.Observation, error) {
	run, obs, err := p.Counter.Reset(ctx, r)
	return &patientRun{run}, obs, err
}

func (p patient) Restore(ctx context.Context, saved json.RawMessage) (env.Episode, error) {
	run, err := p.Counter.Restore(ctx, saved)
	return &patientRun{run}, err
}

func (r *patientRun) Step(ctx context.Context, a *env.Action) (*env.Observation, error) {
	if a.ActionType == "rest" {
		time.Sleep(time.Minute)
		return r.Observe(ctx)
	}
	return r.Episode.Step(ctx, a)
}

func (r *patientRun) Save(ctx context.Context) (json.RawMessage, error) {
	return r.Episode.(env.SnapshotSaver).Save(ctx)
}

// A step of one episode is answered and stored while that of another takes long, which continues from its last answer
// in the next process.
func TestLongStepDelaysNoOtherEpisode(t *testing.T) {
	plugin := a2etest.Must(env.NewPlugin(map[string]env.Environment{"counter": patient{}}, nil))
	durably(t, nil, func(t *testing.T, _ store.Store, p *durableProcess, next func() *durableProcess) {
		secret := openDurable(t, p, `"env"`)
		step := func(episode, action string) string {
			id := a2e.NewID()
			post(t, p, secret, request("env/step/req", id, `"episode_id":"`+episode+`","action":{"action_type":"`+action+`"}`))
			time.Sleep(time.Second)
			_, text := serveDurable(p, "GET", "/stream", secret, "")
			_, text, _ = strings.Cut(text, `"req_id":"`+id)
			return text
		}
		post(t, p, secret, request("env/reset/req", "r1", `"env_name":"counter"`), request("env/reset/req", "r2", `"env_name":"counter"`))
		time.Sleep(time.Second)
		require.Contains(t, step("ep-1", "inc"), `"count":1`)
		require.Empty(t, step("ep-1", "rest"))
		require.Contains(t, step("ep-2", "inc"), `"count":1`)
		p.kill()
		p = next()
		require.Contains(t, step("ep-1", "inc"), `"count":2`)
		require.Contains(t, step("ep-2", "inc"), `"count":2`)
		time.Sleep(time.Minute)
	}, plugin)
}

// Shutdown hands sessions over: requests that have not started run in the next process, and plans come
// back.
func TestShutdownHandsSessionsOver(t *testing.T) {
	plans, err := planning.NewPlugin(nil)
	require.NoError(t, err)
	durably(t, nil, func(t *testing.T, db store.Store, p *durableProcess, next func() *durableProcess) {
		secret := openDurable(t, p, `"tools","planning"`)
		post(t, p, secret, request("planning/plan/create", "c1", `"name":"the plan"`))
		time.Sleep(time.Second)
		_, text := serveDurable(p, "GET", "/stream", secret, "")
		require.Contains(t, text, `"plan_id"`)
		for _, isKilled := range []bool{true, false, false} {
			if isKilled {
				p.kill()
			} else {
				require.NoError(t, p.host.Close())
			}
			p = next()
			post(t, p, secret, request("planning/plan/list", a2e.NewID(), `"x":1`))
			time.Sleep(time.Second)
			_, text = serveDurable(p, "GET", "/stream", secret, "")
			require.Contains(t, text, `"name":"the plan"`)
		}
		status, _ := serveDurable(p, "DELETE", "/session", secret, "")
		require.Equal(t, 200, status)
		time.Sleep(time.Second)
		status, _ = serveDurable(p, "POST", "/send", secret, "{}")
		require.Equal(t, 404, status)
		status, _ = serveDurable(p, "GET", "/stream", secret, "")
		require.Equal(t, 404, status)
		for e, err := range db.List(t.Context(), "a2e/") {
			require.NoError(t, err)
			require.NotContains(t, e.Key, "a2e/snapshot/", "what a session kept ends with it")
			require.NotContains(t, e.Key, "a2e/work/")
		}
		in, err := db.Read(t.Context(), "a2e/in/", 0, 1)
		require.NoError(t, err)
		require.Empty(t, in)
	}, plans)
}

// The ids of memories stay valid when a session moves to another process, and end with the session: the next one of
// the agent begins with mem-1.
func TestMemoriesMoveWithTheirSession(t *testing.T) {
	memories, err := memory.NewPlugin(&memory.Options{Store: store.NewMemory()})
	require.NoError(t, err)
	durably(t, nil, func(t *testing.T, _ store.Store, p *durableProcess, next func() *durableProcess) {
		const entry = `"memory_id":"mem-1","entries":[{"key":{"k":1},"content":"the note","tier":"episodic"}]`
		for range 2 {
			secret := openDurable(t, p, `"memory"`)
			post(t, p, secret, request("memory/init/req", a2e.NewID(), `"namespace":"notes"`))
			time.Sleep(time.Second)
			_, text := serveDurable(p, "GET", "/stream", secret, "")
			require.Contains(t, text, `"memory_id":"mem-1"`)
			for range 2 {
				post(t, p, secret, request("memory/store/req", a2e.NewID(), entry))
				post(t, p, secret, request("memory/retrieve/req", a2e.NewID(), `"memory_id":"mem-1","query":"note"`))
				time.Sleep(time.Second)
				_, text = serveDurable(p, "GET", "/stream", secret, "")
				require.Contains(t, text, `"content":"the note"`)
				p.kill()
				p = next()
			}
			status, _ := serveDurable(p, "DELETE", "/session", secret, "")
			require.Equal(t, 200, status)
		}
	}, memories)
}

// A host whose store fails takes no body: the agent sends it again.
func TestFailingStoreRefusesBodies(t *testing.T) {
	durably(t, nil, func(t *testing.T, db store.Store, p *durableProcess, next func() *durableProcess) {
		secret := openDurable(t, p, `"tools"`)
		p.kill()
		status, _ := serveDurable(p, "POST", "/send", secret, request("ping", "p1", `"x":1`))
		require.Contains(t, []int{503, 404}, status)
		p = next()
		post(t, p, secret, request("ping", "p1", `"x":1`))
		time.Sleep(time.Second)
		_, text := serveDurable(p, "GET", "/stream", secret, "")
		require.Contains(t, text, `"req_id":"p1"`)
		status, _ = serveDurable(p, "POST", "/send", strings.Repeat("0", 32), "{}")
		require.Equal(t, 404, status)
	})
}

// A leaving store ends a request when it has stored its body.
type leaving struct {
	store.Store
	cancel context.CancelFunc
}

func (l *leaving) Append(ctx context.Context, stream, id string, value []byte, ttl time.Duration) (uint64, error) {
	pos, err := l.Store.Append(ctx, stream, id, value, ttl)
	if l.cancel != nil && strings.HasPrefix(stream, "a2e/in/") {
		l.cancel()
	}
	return pos, err
}

// A stored body reaches the host of its session although its sender disconnects before the owner is notified.
func TestBodyOfALeavingAgent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db, e := store.NewMemory(), &effects{started: map[string]int{}, done: map[string]int{}}
		from := &leaving{Store: db}
		owner := newDurableProcess(t, db, e, a2e.Persistence{InstanceID: "one"}, nil)
		other := newDurableProcess(t, from, e, a2e.Persistence{InstanceID: "two"}, nil)
		t.Cleanup(func() { _ = owner.host.Close(); _ = other.host.Close() })
		time.Sleep(time.Second)
		secret := openDurable(t, owner, `"tools"`)
		ctx, cancel := context.WithCancel(t.Context())
		from.cancel = cancel
		r := httptest.NewRequestWithContext(ctx, "POST", "http://a2e.test/send", strings.NewReader(
			request("tool/call/req", "c1", `"tool_name":"work","arguments":{"id":"x"}`)))
		r.Header.Set("X-Session-Id", secret)
		other.handler.ServeHTTP(httptest.NewRecorder(), r)
		require.ErrorIs(t, ctx.Err(), context.Canceled)
		time.Sleep(time.Second)
		_, done := e.counts("x")
		require.Equal(t, 1, done)
	})
}

// The time limit of a request runs while its host is absent: the next host does not start an overdue one (A2E-D28).
func TestOverdueRequestIsNotStartedByNextHost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db, e := store.NewMemory(), &effects{started: map[string]int{}, done: map[string]int{}}
		owner := newDurableProcess(t, db, e, a2e.Persistence{InstanceID: "one"}, nil)
		other := newDurableProcess(t, db, e, a2e.Persistence{InstanceID: "two"}, nil)
		t.Cleanup(func() { _ = owner.host.Close(); _ = other.host.Close() })
		time.Sleep(time.Second)
		secret := openDurable(t, owner, `"tools"`)
		owner.kill()
		post(t, other, secret, request("tool/call/req", "late", `"tool_name":"work","arguments":{"id":"late"},"timeout":5`),
			request("tool/call/req", "due", `"tool_name":"work","arguments":{"id":"due"},"timeout":300`))
		time.Sleep(time.Minute)
		_, text := serveDurable(other, "GET", "/stream", secret, "")
		require.Contains(t, text, `"req_id":"late","code":"timeout"`)
		require.Contains(t, text, `"reason":"deadline"`)
		started, _ := e.counts("late")
		require.Zero(t, started)
		_, done := e.counts("due")
		require.Equal(t, 1, done)
	})
}

// WaitRecovered returns when the sessions of a failed host run in the next one (A2E-D67).
func TestWaitRecovered(t *testing.T) {
	durably(t, nil, func(t *testing.T, db store.Store, p *durableProcess, _ func() *durableProcess) {
		for range 20 {
			openDurable(t, p, `"tools"`)
		}
		p.kill()
		slow := []fault.Rule{{Action: fault.Delay, Delay: 10 * time.Millisecond}}
		next := newDurableProcess(t, db, &effects{}, a2e.Persistence{InstanceID: "one"}, slow)
		defer next.host.Close()
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		require.ErrorIs(t, next.host.WaitRecovered(ctx), context.Canceled)
		require.NoError(t, next.host.WaitRecovered(t.Context()))
		require.Len(t, next.host.Sessions(), 20)
		require.NoError(t, next.host.Close())
		require.Error(t, next.host.WaitRecovered(t.Context()))
	})
	require.NoError(t, a2etest.NewHost(t, nil).WaitRecovered(t.Context()))
}
