// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package arc_test

import (
	"context"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/arc"
	"github.com/fivewire/fivewire/arc/arctest"
	"github.com/fivewire/fivewire/store"
)

// crashingStore is the store of a process that crashes before it changes a key or stream that starts with at.
// The crash happens only after the flag is set.
type crashingStore struct {
	crashStore
	at  string
	now atomic.Bool
}

func (d *crashingStore) crashIfDue(name string) {
	if d.now.Load() && strings.HasPrefix(name, d.at) {
		d.crash()
	}
}

func (d *crashingStore) Update(ctx context.Context, key string, value []byte, rev store.Revision, ttl time.Duration) (store.Revision, error) {
	d.crashIfDue(key)
	return d.crashStore.Update(ctx, key, value, rev, ttl)
}

func (d *crashingStore) Create(ctx context.Context, key string, value []byte, ttl time.Duration) (store.Revision, error) {
	if d.at != inAnswer { // where that is when the answer is kept
		d.crashIfDue(key)
	}
	return d.crashStore.Create(ctx, key, value, ttl)
}

func (d *crashingStore) Append(ctx context.Context, stream, id string, value []byte, ttl time.Duration) (uint64, error) {
	d.crashIfDue(stream)
	return d.crashStore.Append(ctx, stream, id, value, ttl)
}

// A repeater has three processes: one runs the work, one crashes while it answers a request, and
// one receives the request again (ARC-D48).
type repeater struct {
	db     store.Store
	runs   *arc.Server // and answers without a memory for requests
	dying  *arc.Server
	dead   *crashingStore
	second *arc.Server
	hooks  *hooks
	chats  atomic.Int32 // messages that the handler of chats answered
}

func newRepeater(t *testing.T, diesAt string) *repeater {
	r := &repeater{db: store.NewMemory(), hooks: &hooks{once: true}}
	start := func(db store.Store, window time.Duration) *arc.Server {
		s := newServer(t, &arc.ServerOptions{Persistence: arc.Persistence{Store: db, ResultTTL: window, LeaseTTL: 3 * time.Second}, Webhook: r.hooks.options()})
		s.Register(arc.Agent{AgentInfo: arc.AgentInfo{AgentID: "a-01"},
			TaskHandler: arc.TaskHandlerFunc(func(ctx context.Context, run *arc.TaskRun) error {
				for range 2 {
					if _, err := run.WaitInput(ctx, "more"); err != nil {
						return err
					}
				}
				return nil
			}),
			ChatHandler: arc.ChatReplyFunc(func(ctx context.Context, turn *arc.ChatTurn) (*arc.Message, error) {
				messages, err := turn.History(ctx)
				if err != nil {
					return nil, err
				}
				return arc.AgentText(fmt.Sprintf("answer %d after %d", r.chats.Add(1), len(messages))), nil
			})})
		return s
	}
	r.dead = &crashingStore{crashStore: crashStore{Store: r.db}, at: diesAt}
	r.runs, r.dying, r.second = start(r.db, 0), start(r.dead, 10*time.Minute), start(r.db, 10*time.Minute)
	return r
}

// twice sends a request to the crashing process, which does not answer, and then to the other one.
func (r *repeater) twice(t *testing.T, method, params string) *httptest.ResponseRecorder {
	r.dead.now.Store(true)
	status := abandon(t, r.dying, call(method, "a-01", params))
	if r.dead.at == inAnswer {
		require.NotEqual(t, http.StatusOK, status, "an answer is given when it is stored")
	}
	second := post(r.second, call(method, "a-01", params))
	synctest.Wait()
	return second
}

// abandon sends a request to a crashing process, and waits until its lease has expired.
func abandon(t *testing.T, s *arc.Server, body string) (status int) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	req := httptest.NewRequestWithContext(ctx, http.MethodPost, "/arc", strings.NewReader(body))
	req.Header.Set("Content-Type", arc.MediaType)
	rec := httptest.NewRecorder()
	s.ServeHTTP(rec, req)
	synctest.Wait()
	time.Sleep(4 * time.Second)
	return rec.Code
}

const (
	inAnswer = "arc/once/"
	inTask   = "arc/task/"
	inSaid   = "arc/said/"
)

func TestRepeatedSend(t *testing.T) {
	for _, at := range []string{inAnswer, inTask, "arc/items/"} {
		synctest.Test(t, func(t *testing.T) {
			r := newRepeater(t, at)
			id := createTask(t, r.runs, "a-01", "x")
			synctest.Wait()
			second := r.twice(t, "task.send", fmt.Sprintf(`{"taskId":%q,"message":%s}`, id, hello("tea")))
			result(t, second, "task.send")
			time.Sleep(4 * time.Second)
			task := taskOf(t, r.runs, "a-01", id)
			require.Equal(t, arc.TaskInputRequired, task.Status, "it waits for the second input")
			require.Len(t, task.Messages, 2)
			require.Equal(t, "tea", task.Messages[1].Text())
		})
	}
}

func TestRepeatedCancel(t *testing.T) {
	for _, at := range []string{inAnswer, inTask} {
		synctest.Test(t, func(t *testing.T) {
			r := newRepeater(t, at)
			id := createTask(t, r.runs, "a-01", "x")
			synctest.Wait()
			second := r.twice(t, "task.cancel", fmt.Sprintf(`{"taskId":%q,"reason":"no more"}`, id))
			require.Equal(t, arc.TaskCanceled, result(t, second, "task.cancel").Task.Status)
			require.Equal(t, -42003, int(fault(t, post(r.runs, call("task.cancel", "a-01", fmt.Sprintf(`{"taskId":%q}`, id))), arc.ErrTaskAlreadyCanceled).Code))
		})
	}
}

func TestRepeatedSubscribe(t *testing.T) {
	for _, at := range []string{inAnswer, inTask} {
		for _, over := range []bool{false, true} {
			synctest.Test(t, func(t *testing.T) {
				r := newRepeater(t, at)
				id := createTask(t, r.runs, "a-01", "x")
				synctest.Wait()
				end := func() {
					require.Nil(t, cancelTask(r.runs, "a-01", id).Error)
					synctest.Wait()
				}
				if over {
					end()
				}
				second := r.twice(t, "task.subscribe", fmt.Sprintf(`{"taskId":%q,"callbackUrl":"https://one.test/","events":["TASK_CANCELED"]}`, id))
				sub := result(t, second, "task.subscribe").Subscription
				require.Equal(t, !over, sub.Active)
				if !over {
					require.Len(t, storedTask(t, r.db, id).Subs, 1)
					end()
				}
				require.Equal(t, []string{"one.test TASK_CANCELED CANCELED"}, r.hooks.take())
			})
		}
	}
}

func TestRepeatedChat(t *testing.T) {
	history := func(t *testing.T, r *repeater, id string) string {
		answer := result(t, post(r.runs, call("chat.message", "a-01", fmt.Sprintf(`{"chatId":%q,"message":%s}`, id, hello("?")))), "chat.message")
		return answer.Chat.Message.Text()
	}
	for at, want := range map[string]string{
		inAnswer:    "answer 1 after 0", // what the dead one answered
		inSaid:      "answer 2 after 0", // the crash lost the first answer
		"arc/chat/": "answer 2 after 0",
	} {
		for _, chosen := range []string{"", `"chatId":"c-1",`} {
			synctest.Test(t, func(t *testing.T) {
				r := newRepeater(t, at)
				second := r.twice(t, "chat.start", fmt.Sprintf(`{%s"initialMessage":%s}`, chosen, hello("hi")))
				chat := result(t, second, "chat.start").Chat
				require.Equal(t, want, chat.Message.Text())
				require.Contains(t, history(t, r, chat.ID), "after 2")
			})
		}
		synctest.Test(t, func(t *testing.T) {
			r := newRepeater(t, at)
			id := result(t, post(r.runs, call("chat.start", "a-01", `{"initialMessage":`+hello("hi")+`}`)), "chat.start").Chat.ID
			second := r.twice(t, "chat.message", fmt.Sprintf(`{"chatId":%q,"message":%s}`, id, hello("and?")))
			text := result(t, second, "chat.message").Chat.Message.Text()
			require.Contains(t, text, "after 2")
			if at == inAnswer { // otherwise the turn had not become history
				require.Equal(t, "answer 2 after 2", text, "what was kept is answered again")
			}
			require.Contains(t, history(t, r, id), "after 4")
		})
	}
}

// An answer whose chat was not stored before the crash is not part of the history.
func TestRepeatedChatStoresItsAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var runs atomic.Int32
		servers, dead := twoForRepeats(t, "arc/chat/", func(s *arc.Server) {
			s.HandleChats("a-01", arc.ChatReplyFunc(func(ctx context.Context, turn *arc.ChatTurn) (*arc.Message, error) {
				messages, err := turn.History(ctx)
				if err != nil || len(messages) > 0 {
					return arc.AgentText(messages[len(messages)-1].Text()), err
				}
				return arc.AgentText(fmt.Sprint("run ", runs.Add(1))), nil
			}))
		})
		dead.now.Store(true)
		request := call("chat.start", "a-01", `{"chatId":"c","initialMessage":`+hello("hi")+`}`)
		abandon(t, servers[0], request)
		require.Equal(t, "run 2", result(t, post(servers[1], request), "chat.start").Chat.Message.Text())
		require.Equal(t, "run 2", chatOf(t, say(servers[1], "a-01", "c", "what was that?")).Message.Text())
	})
}

// A chat that two attempts of a request begin has the answer of one of them, and the next attempt returns it.
func TestRepeatedChatOfTwoAttempts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := store.NewMemory()
		var runs atomic.Int32
		goOn := []chan struct{}{make(chan struct{}), make(chan struct{})}
		var servers []*arc.Server
		for _, id := range []string{"first", "second"} {
			s := newServer(t, &arc.ServerOptions{Persistence: arc.Persistence{Store: db, ResultTTL: 10 * time.Minute, InstanceID: id}})
			s.HandleChats("a-01", arc.ChatReplyFunc(func(context.Context, *arc.ChatTurn) (*arc.Message, error) {
				n := runs.Add(1)
				<-goOn[n-1]
				return arc.AgentText(fmt.Sprint("run ", n)), nil
			}))
			servers = append(servers, s)
		}
		request := call("chat.start", "a-01", `{"chatId":"c","initialMessage":`+hello("hi")+`}`)
		var attempts sync.WaitGroup
		defer attempts.Wait()
		attempts.Go(func() { post(servers[0], request) })
		synctest.Wait()
		require.NoError(t, db.Delete(t.Context(), "arc/lease/first", 0))
		attempts.Go(func() { fault(t, post(servers[1], request), arc.ErrAgentNotAvailable) })
		synctest.Wait()
		require.EqualValues(t, 2, runs.Load())
		close(goOn[0])
		synctest.Wait()
		close(goOn[1])
		synctest.Wait()
		require.Equal(t, "run 1", result(t, post(servers[1], request), "chat.start").Chat.Message.Text())
	})
}

// A lossyStore makes one change of a chat and loses the answer.
type lossyStore struct {
	store.Store
	now atomic.Bool
}

func (d *lossyStore) Update(ctx context.Context, key string, value []byte, rev store.Revision, ttl time.Duration) (store.Revision, error) {
	rev, err := d.Store.Update(ctx, key, value, rev, ttl)
	if strings.HasPrefix(key, "arc/chat/") && d.now.CompareAndSwap(true, false) {
		err = store.ErrUnknown
	}
	return rev, err
}

// A turn whose write had no answer is found in the store.
func TestChatWithLostAnswerOfStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := &lossyStore{Store: store.NewMemory()}
		s := newServer(t, &arc.ServerOptions{Persistence: arc.Persistence{Store: db}})
		s.HandleChats("a-01", arc.ChatReplyFunc(func(ctx context.Context, turn *arc.ChatTurn) (*arc.Message, error) {
			messages, err := turn.History(ctx)
			return arc.AgentText(fmt.Sprint("after ", len(messages))), err
		}))
		chatOf(t, startChat(s, "a-01", "c", "one"))
		db.now.Store(true)
		require.Equal(t, "after 2", chatOf(t, say(s, "a-01", "c", "two")).Message.Text())
		require.False(t, db.now.Load())
		require.Equal(t, "after 4", chatOf(t, say(s, "a-01", "c", "three")).Message.Text())
	})
}

// The instance of a group that began the chat answers again, though it is another
// one's turn.
func TestRepeatedInGroup(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := store.NewMemory()
		dead := &crashingStore{crashStore: crashStore{Store: db}, at: inAnswer}
		var servers []*arc.Server
		for _, db := range []store.Store{dead, db} {
			s := newServer(t, &arc.ServerOptions{Persistence: arc.Persistence{Store: db, ResultTTL: 10 * time.Minute, LeaseTTL: 3 * time.Second}})
			for _, id := range []string{"a-01", "a-02"} {
				s.Register(arc.Agent{AgentInfo: arc.AgentInfo{AgentID: id}, Group: "g",
					ChatHandler: arc.ChatReplyFunc(func(context.Context, *arc.ChatTurn) (*arc.Message, error) { return arc.AgentText(id), nil })})
			}
			servers = append(servers, s)
		}
		start := func(text string) string { return call("chat.start", "g", `{"initialMessage":`+hello(text)+`}`) }
		post(servers[1], start("it is now the turn of the other one"))
		dead.now.Store(true)
		abandon(t, servers[0], start("x"))
		require.Equal(t, "a-01", result(t, post(servers[1], start("x")), "chat.start").Chat.Message.Text(), "the first of the dead process")
	})
}

// A repeated task.create goes to the instance that has the task: the agent that processed the
// request does not change (ARC-D04).
func TestRepeatedCreateInGroup(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		servers, dead := twoForRepeats(t, inAnswer, func(s *arc.Server) {
			for _, id := range []string{"a-01", "a-02"} {
				s.Register(arc.Agent{AgentInfo: arc.AgentInfo{AgentID: id}, Group: "g", TaskHandler: arctest.ScriptedTask(arctest.WaitCanceled())})
			}
		})
		create := func(text string) string { return call("task.create", "g", `{"initialMessage":`+hello(text)+`}`) }
		post(servers[1], create("it is now the turn of the other one"))
		dead.now.Store(true)
		abandon(t, servers[0], create("x"))
		second := answer(t, post(servers[1], create("x")))
		require.Nil(t, second.Error)
		require.Equal(t, "a-01", second.ResponseAgent, "the first of the dead process")
	})
}

// Only one file of the engine knows the claims of requests. The others create what they make, with ids of the attempt.
func TestClaimsInOneFile(t *testing.T) {
	files, err := filepath.Glob("internal/engine/*.go")
	require.NoError(t, err)
	var found []string
	for _, name := range files {
		f, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.ImportsOnly)
		require.NoError(t, err)
		isOnce := func(i *ast.ImportSpec) bool { return strings.HasSuffix(i.Path.Value, `/internal/once"`) }
		if slices.ContainsFunc(f.Imports, isOnce) {
			found = append(found, filepath.Base(name))
		}
	}
	require.Equal(t, []string{"claims.go"}, found)
}

// twoForRepeats returns two servers of one store that detect repeated requests. The first one
// crashes at diesAt after its flag is set.
func twoForRepeats(t *testing.T, diesAt string, register func(*arc.Server)) ([]*arc.Server, *crashingStore) {
	db := store.NewMemory()
	dead := &crashingStore{crashStore: crashStore{Store: db}, at: diesAt}
	var servers []*arc.Server
	for _, db := range []store.Store{dead, db} {
		s := newServer(t, &arc.ServerOptions{Persistence: arc.Persistence{Store: db, ResultTTL: 10 * time.Minute, LeaseTTL: 3 * time.Second},
			Limits: arc.Limits{MaxSubscriptions: 2}, Webhook: (&hooks{}).options()})
		register(s)
		servers = append(servers, s)
	}
	return servers, dead
}

// A repeated subscription counts once at the process that runs the task, too.
func TestRepeatedSubscribeCounts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		servers, dead := twoForRepeats(t, inAnswer, func(s *arc.Server) { s.HandleTasks("a-01", arctest.ScriptedTask(arctest.WaitCanceled())) })
		id := createTask(t, servers[1], "a-01", "x")
		synctest.Wait()
		request := call("task.subscribe", "a-01", fmt.Sprintf(`{"taskId":%q,"callbackUrl":"https://one.test/","events":["TASK_CANCELED"]}`, id))
		dead.now.Store(true)
		abandon(t, servers[0], request)
		result(t, post(servers[1], request), "task.subscribe")
		subscribe(t, servers[1], "a-01", id, "https://two.test/", `["TASK_CANCELED"]`)
	})
}

// A chat that an answer has paused stays so when the request is repeated.
func TestRepeatedPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		servers, dead := twoForRepeats(t, inAnswer, func(s *arc.Server) {
			s.HandleChats("a-01", arc.ChatReplyFunc(func(_ context.Context, turn *arc.ChatTurn) (*arc.Message, error) {
				turn.Pause()
				return arc.AgentText("later"), nil
			}))
		})
		result(t, post(servers[1], call("chat.start", "a-01", `{"chatId":"c","initialMessage":`+hello("hi")+`}`)), "chat.start")
		request := call("chat.message", "a-01", `{"chatId":"c","message":`+hello("and?")+`}`)
		dead.now.Store(true)
		abandon(t, servers[0], request)
		require.Equal(t, arc.ChatPaused, result(t, post(servers[1], request), "chat.message").Chat.Status)
	})
}

// A repeated chat.start takes its turn in the chat that it began: it does not
// answer while another message is being answered, nor let others do so (ARC-D46).
func TestRepeatedStartTakesTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var now, maxRunning atomic.Int32
		goOn := make(chan struct{})
		servers, dead := twoForRepeats(t, inAnswer, func(s *arc.Server) {
			s.HandleChats("a-01", arc.ChatReplyFunc(func(_ context.Context, turn *arc.ChatTurn) (*arc.Message, error) {
				if n := now.Add(1); n > maxRunning.Load() {
					maxRunning.Store(n)
				}
				defer now.Add(-1)
				if !turn.First {
					<-goOn
				}
				return arc.AgentText("yes"), nil
			}))
		})
		dead.now.Store(true)
		request := call("chat.start", "a-01", `{"chatId":"c","initialMessage":`+hello("hi")+`}`)
		abandon(t, servers[0], request)
		var done sync.WaitGroup
		message := func(text string) {
			done.Go(func() {
				post(servers[1], call("chat.message", "a-01", `{"chatId":"c","message":`+hello(text)+`}`))
			})
			synctest.Wait()
		}
		message("one")
		second := make(chan string, 1)
		done.Go(func() { second <- post(servers[1], request).Body.String() })
		synctest.Wait()
		message("two")
		close(goOn)
		done.Wait()
		require.EqualValues(t, 1, maxRunning.Load())
		require.Contains(t, <-second, `"yes"`)
	})
}

func TestRepeatedChatEnd(t *testing.T) {
	for _, at := range []string{inAnswer, "arc/chat/"} {
		synctest.Test(t, func(t *testing.T) {
			r := newRepeater(t, at)
			id := result(t, post(r.runs, call("chat.start", "a-01", `{"initialMessage":`+hello("hi")+`}`)), "chat.start").Chat.ID
			second := r.twice(t, "chat.end", fmt.Sprintf(`{"chatId":%q,"reason":"enough"}`, id))
			require.Equal(t, arc.ChatClosed, result(t, second, "chat.end").Chat.Status)
			fault(t, post(r.runs, call("chat.end", "a-01", fmt.Sprintf(`{"chatId":%q}`, id))), arc.ErrChatAlreadyClosed)
		})
	}
}

// A slow request runs only once, even if another process receives it again before the response.
func TestRepeatedWhileAnswered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := store.NewMemory()
		var runs atomic.Int32
		var servers []*arc.Server
		for range 2 {
			s := newServer(t, &arc.ServerOptions{Persistence: arc.Persistence{Store: db, ResultTTL: 10 * time.Minute}})
			s.Handle("a-01", "long.work", arc.HandlerFunc(func(ctx context.Context, _ *arc.Call) (any, error) {
				runs.Add(1)
				time.Sleep(3 * time.Minute)
				return map[string]int32{"run": runs.Load()}, nil
			}))
			servers = append(servers, s)
		}
		answers := make(chan string, 2)
		ask := func(s *arc.Server) { answers <- post(s, call("long.work", "a-01", "{}")).Body.String() }
		go ask(servers[0])
		time.Sleep(2 * time.Minute)
		go ask(servers[1])
		require.Equal(t, <-answers, <-answers)
		require.EqualValues(t, 1, runs.Load())
	})
}

// Close does not wait for a request that another process is answering.
func TestCutOffWhileRepeated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		servers, _ := twoForRepeats(t, inAnswer, func(s *arc.Server) {
			s.Handle("a-01", "long.work", arc.HandlerFunc(func(context.Context, *arc.Call) (any, error) {
				time.Sleep(5 * time.Minute)
				return nil, nil
			}))
		})
		var asking sync.WaitGroup
		for _, s := range servers {
			asking.Go(func() { post(s, call("long.work", "a-01", "{}")) })
			synctest.Wait()
		}
		began := time.Now()
		require.NoError(t, servers[1].Close())
		require.Less(t, time.Since(began), time.Second)
		asking.Wait()
	})
}

// Params are compared as JSON values. An error of the store is not the answer of the next attempt.
func TestRepeatedParamsAreValues(t *testing.T) {
	for _, db := range []store.Store{nil, store.NewMemory()} {
		s := newServer(t, &arc.ServerOptions{Persistence: arc.Persistence{Store: db, ResultTTL: time.Minute}})
		n := 0
		s.Handle("a-01", "x.y", arc.HandlerFunc(func(context.Context, *arc.Call) (any, error) {
			n++
			if n == 1 {
				return nil, fmt.Errorf("arc: %w: database is locked", store.ErrUnknown)
			}
			return map[string]int{"n": n}, nil
		}))
		fault(t, post(s, call("x.y", "a-01", `{"a":1,"b":{"c":[2]}}`)), arc.ErrInternal)
		first := post(s, call("x.y", "a-01", `{"a":1,"b":{"c":[2]}}`)).Body.String()
		require.Contains(t, first, `{"n":2}`)
		require.Equal(t, first, post(s, call("x.y", "a-01", ` { "b" : {"c":[2.0]}, "\u0061":1e0}`)).Body.String())
		require.Contains(t, post(s, call("x.y", "a-01", `{"a":1,"b":{"c":[3]}}`)).Body.String(), `{"n":3}`)
	}
}

// A wait reads the present state, although the server keeps the results of its request ids.
func TestWaitWithRequestID(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := &arc.ServerOptions{Persistence: arc.Persistence{ResultTTL: time.Hour}}
		s, c := arctest.NewPair(t, &arctest.PairOptions{Server: server})
		s.HandleTasks("a-01", arctest.ScriptedTask(arctest.Sleep(time.Minute)))
		o := &arc.CallOptions{RequestID: "order-1"}
		task, err := c.CreateTask(t.Context(), "a-01", &arc.CreateTaskParams{InitialMessage: arc.UserText("x")}, o)
		require.NoError(t, err)
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
		defer cancel()
		res, err := c.WaitTask(ctx, "a-01", task.ID, &arc.WaitOptions{CallOptions: o})
		require.NoError(t, err)
		require.Equal(t, arc.TaskCompleted, res.Task.Status)
		require.Equal(t, "order-1", o.RequestID)
	})
}
