// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package arc_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/arc"
	"github.com/fivewire/fivewire/arc/arctest"
	"github.com/fivewire/fivewire/internal/race"
	"github.com/fivewire/fivewire/store"
)

// byName authenticates callers by the value of the header Authorization.
var byName = arc.Auth{Authenticator: arc.AuthenticatorFunc(func(_ context.Context, r *arc.ServerRequest) (*arc.Principal, error) {
	return &arc.Principal{ID: r.Authorization, Scopes: strings.Fields(arc.ScopesFullCaller)}, nil
})}

// serveAs sends a request of a principal and returns the result or the error.
func serveAs(t *testing.T, s *arc.Server, principal, method, target, params string) (*arc.Result, *arc.Error) {
	t.Helper()
	rec := post(s, call(method, target, params), "Authorization", principal)
	if res := answer(t, rec); res.Error != nil {
		require.NotEmpty(t, rec.Header().Get("Retry-After"))
		require.Equal(t, http.StatusServiceUnavailable, rec.Code)
		return nil, res.Error
	}
	return result(t, rec, method), nil
}

// fill repeats f until it is refused over a bound, and returns how often it succeeded.
func fill(t *testing.T, resource, scope string, f func(i int) *arc.Error) int {
	t.Helper()
	for i := range 1000 {
		if err := f(i); err != nil {
			require.Equal(t, arc.ErrAgentCapacityExceeded, err.Code)
			require.Contains(t, string(err.Details), fmt.Sprintf(`"resource":%q,"scope":%q`, resource, scope))
			return i
		}
	}
	t.Fatalf("no bound for %s of %s", resource, scope)
	return 0
}

func usageOf(s *arc.Server, resource, scope string) arc.Usage {
	for _, u := range s.Usage() {
		if u.Resource == resource && u.Scope == scope {
			return u
		}
	}
	return arc.Usage{}
}

func requireNothingUsed(t *testing.T, s *arc.Server) {
	t.Helper()
	for _, u := range s.Usage() {
		require.Zero(t, u.Used, "%+v", u)
	}
}

const large = 1 << 20

// largeMessage is the params of a request with a message of one MiB.
func largeMessage(key string) string {
	return fmt.Sprintf(`{%q:%s}`, key, hello(strings.Repeat("x", large)))
}

func cancelAs(t *testing.T, s *arc.Server, principal, id string) {
	t.Helper()
	_, err := serveAs(t, s, principal, "task.cancel", "a", fmt.Sprintf(`{"taskId":%q}`, id))
	require.Nil(t, err)
	synctest.Wait()
}

// The bytes of tasks are bounded for each principal, and those of ended tasks are no reason to
// refuse new ones.
func TestLedgerBoundsBytesOfTasks(t *testing.T) {
	for name, isDurable := range map[string]bool{"memory": false, "storage": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				o := arc.ServerOptions{Auth: byName, Limits: arc.Limits{MaxMemoryPerPrincipal: 8 * large, MaxStoragePerPrincipal: 8 * large}}
				if isDurable {
					o.Persistence.Store = store.NewMemory()
				}
				s := newServer(t, &o)
				s.HandleTasks("a", arctest.ScriptedTask(arctest.WaitCanceled()))
				var ids []string
				create := func(int) *arc.Error {
					res, err := serveAs(t, s, "p1", "task.create", "a", largeMessage("initialMessage"))
					if err == nil {
						ids = append(ids, res.Task.ID)
					}
					return err
				}
				n := fill(t, name, "principal", create)
				require.GreaterOrEqual(t, n, 6)
				require.LessOrEqual(t, n, 7)
				u := usageOf(s, name, "principal")
				require.EqualValues(t, 8*large, u.Limit)
				require.GreaterOrEqual(t, u.Used, int64(n*large))
				require.LessOrEqual(t, u.Used, u.Limit)
				_, err := serveAs(t, s, "p2", "task.create", "a", largeMessage("initialMessage"))
				require.Nil(t, err, "another principal has its own room")

				cancelAs(t, s, "p1", ids[0])
				cancelAs(t, s, "p1", ids[1])
				require.Equal(t, u.Used, usageOf(s, name, "principal").Used+memoryOfRuns(name, 2), "ended tasks are kept")
				require.Nil(t, create(0), "an ended task is evicted")
				fault(t, post(s, call("task.info", "a", fmt.Sprintf(`{"taskId":%q}`, ids[0])), "Authorization", "p1"), arc.ErrTaskNotFound)
				require.Equal(t, arc.TaskCanceled, taskOf(t, s, "a", ids[1], "Authorization", "p1").Status, "the oldest one is evicted")

				for _, id := range ids[2:] {
					cancelAs(t, s, "p1", id)
				}
				time.Sleep(25 * time.Hour) // TaskRetention
				require.Less(t, usageOf(s, name, "all").Used, int64(2*large), "the task of p2 is left")
				require.NoError(t, s.Close())
				requireNothingUsed(t, s)
			})
		})
	}
}

// memoryOfRuns is the memory that n running tasks need besides their content.
func memoryOfRuns(resource string, n int64) int64 {
	if resource == "storage" {
		return 0
	}
	return n * 8 << 10
}

// The messages and artifacts of a running task count as well, and a handler sees the error.
func TestLedgerBoundsItemsOfTask(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer(t, &arc.ServerOptions{Auth: byName, Limits: arc.Limits{MaxMemoryPerPrincipal: 4 * large}})
		added := 0
		s.HandleTasks("a", arc.TaskHandlerFunc(func(ctx context.Context, run *arc.TaskRun) error {
			for {
				if err := run.AddArtifact(ctx, &arc.Artifact{Parts: []arc.Part{arc.TextPart(strings.Repeat("x", large))}}); err != nil {
					return err
				}
				added++
			}
		}))
		id := createTask(t, s, "a", "x", "Authorization", "p1")
		synctest.Wait()
		require.Equal(t, 3, added)
		task := taskOf(t, s, "a", id, "Authorization", "p1")
		require.Equal(t, arc.TaskFailed, task.Status)
		require.Len(t, task.Artifacts, 3)
		require.Equal(t, arc.ErrAgentCapacityExceeded, task.Error.Code)
	})
}

// Tasks that only run have a bound in number and in memory.
func TestLedgerBoundsRunningTasks(t *testing.T) {
	for resource, limits := range map[string]arc.Limits{"items": {MaxItemsPerPrincipal: 20}, "memory": {MaxMemoryPerPrincipal: 20 * 10 << 10}} {
		synctest.Test(t, func(t *testing.T) {
			s := newServer(t, &arc.ServerOptions{Auth: byName, Limits: limits})
			s.HandleTasks("a", arctest.ScriptedTask(arctest.WaitCanceled()))
			n := fill(t, resource, "principal", func(int) *arc.Error {
				_, err := serveAs(t, s, "p1", "task.create", "a", `{"initialMessage":`+hello("x")+`}`)
				return err
			})
			require.LessOrEqual(t, n, 20+2)
			require.GreaterOrEqual(t, n, 20)
			createTask(t, s, "a", "x", "Authorization", "p2")
		})
	}
}

// ARC-D80: the defaults of the places, 256 running and 1,024 waiting tasks of a principal, 1,024 and 8,192 in all.
func TestPlacesOfDefaults(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer(t, &arc.ServerOptions{Auth: byName})
		var running atomic.Int64
		s.HandleTasks("a", arc.TaskHandlerFunc(func(ctx context.Context, _ *arc.TaskRun) error {
			running.Add(1)
			<-ctx.Done()
			return ctx.Err()
		}))
		places := []int{256 + 1024, 256 + 1024, 256 + 1024, 256 + 1024, 1024, 1024, 1024, 1024, 0}
		if race.Enabled { // which makes thousands of tasks slow
			places = places[:1]
		}
		for p, want := range places {
			n := 0
			for ; ; n++ {
				_, err := serveAs(t, s, fmt.Sprint("p", p), "task.create", "a", `{"initialMessage":`+hello("x")+`}`)
				if err != nil {
					require.Equal(t, arc.ErrAgentCapacityExceeded, err.Code)
					break
				}
			}
			require.Equal(t, want, n, p)
		}
		synctest.Wait()
		require.EqualValues(t, 256*min(len(places), 4), running.Load())
	})
}

func TestLedgerBoundsChats(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer(t, &arc.ServerOptions{Auth: byName, Limits: arc.Limits{MaxItemsPerPrincipal: 3, MaxMemoryPerPrincipal: 8 * large}})
		s.HandleChats("a", arc.ChatReplyFunc(func(context.Context, *arc.ChatTurn) (*arc.Message, error) { return arc.AgentText("ok"), nil }))
		var ids []string
		start := func(int) *arc.Error {
			res, err := serveAs(t, s, "p1", "chat.start", "a", largeMessage("initialMessage"))
			if err == nil {
				ids = append(ids, res.Chat.ID)
			}
			return err
		}
		require.Equal(t, 3, fill(t, "items", "principal", start))
		require.Equal(t, arc.Usage{Resource: "items", Scope: "all", Used: 3, Limit: 100_000}, usageOf(s, "items", "all"))
		more := func(int) *arc.Error {
			_, err := serveAs(t, s, "p1", "chat.message", "a", fmt.Sprintf(`{"chatId":%q,"message":%s}`, ids[0], hello(strings.Repeat("x", large))))
			return err
		}
		require.Equal(t, 3, fill(t, "memory", "principal", more), "the history counts")
		full := usageOf(s, "memory", "principal").Used
		_, err := serveAs(t, s, "p2", "chat.start", "a", largeMessage("initialMessage"))
		require.Nil(t, err)

		end := func(id string) {
			_, err := serveAs(t, s, "p1", "chat.end", "a", fmt.Sprintf(`{"chatId":%q}`, id))
			require.Nil(t, err)
		}
		end(ids[0])
		require.EqualValues(t, 3, usageOf(s, "items", "all").Used, "an ended chat is no item")
		require.Equal(t, full, usageOf(s, "memory", "principal").Used, "its history is kept")
		require.Nil(t, start(0), "an ended chat is evicted")
		require.Less(t, usageOf(s, "memory", "principal").Used, full-2*large)
		fault(t, post(s, call("chat.end", "a", fmt.Sprintf(`{"chatId":%q}`, ids[0])), "Authorization", "p1"), arc.ErrChatNotFound)

		require.NotNil(t, start(0))
		time.Sleep(25 * time.Hour) // idle chats end by themselves
		require.Nil(t, start(0), "chats that have expired hold nothing")
		time.Sleep(50 * time.Hour)
		requireNothingUsed(t, s)
	})
}

// A chat whose handler fails does not exist and holds nothing.
func TestLedgerForgetsFailedChat(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, resume := range []bool{false, true} {
			s := newServer(t, &arc.ServerOptions{Auth: byName, Persistence: arc.Persistence{EnableResume: resume}})
			s.HandleChats("a", arc.ChatReplyFunc(func(context.Context, *arc.ChatTurn) (*arc.Message, error) { return nil, errors.New("x") }))
			for _, stream := range []bool{false, true} {
				rec := post(s, call("chat.start", "a", fmt.Sprintf(`{"stream":%v,"initialMessage":%s}`, stream, hello("x"))), "Authorization", "p1")
				require.NotEqual(t, http.StatusOK, rec.Code)
				synctest.Wait()
				if resume && stream { // the error can be read again
					time.Sleep(5 * time.Minute)
				}
				requireNothingUsed(t, s)
			}
		}
	})
}

// An answer counts while it is written.
func TestLedgerBoundsAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, isStateless := range []bool{false, true} {
			s := newServer(t, &arc.ServerOptions{Auth: byName, Limits: arc.Limits{MaxMemoryPerPrincipal: 4 * large}})
			written := 0
			s.Register(arc.Agent{AgentInfo: arc.AgentInfo{AgentID: "a"}, StatelessChats: isStateless,
				ChatHandler: arc.ChatHandlerFunc(func(_ context.Context, _ *arc.ChatTurn, out *arc.ChatWriter) error {
					for {
						if err := out.Send(strings.Repeat("x", large)); err != nil {
							return err
						}
						written++
					}
				})})
			_, err := serveAs(t, s, "p1", "chat.start", "a", `{"initialMessage":`+hello("x")+`}`)
			require.NotNil(t, err)
			require.Equal(t, arc.ErrAgentCapacityExceeded, err.Code)
			require.Equal(t, 3, written)
			requireNothingUsed(t, s)
		}
	})
}

// A piece that is refused does not count, and others may follow it.
func TestRefusedPieceIsNotCounted(t *testing.T) {
	resume := arc.Persistence{EnableResume: true}
	memory := arc.Limits{MaxMemoryPerPrincipal: 4 * large}
	tooLarge := strings.Repeat("x", 17<<20) // for an event
	for _, tt := range []struct {
		name        string
		o           arc.ServerOptions
		isStateless bool
		isStream    bool
		refused     string
		want        error
	}{
		{"answer over the memory", arc.ServerOptions{Limits: memory}, false, false, tooLarge[:8*large], arc.ErrAgentCapacityExceeded},
		{"stream over the memory", arc.ServerOptions{Limits: memory}, false, true, tooLarge[:8*large], arc.ErrAgentCapacityExceeded},
		{"resumable stream over the memory", arc.ServerOptions{Limits: arc.Limits{MaxMemoryPerPrincipal: large}, Persistence: resume},
			true, true, tooLarge[:8*large], arc.ErrAgentCapacityExceeded},
		{"event of a stream", arc.ServerOptions{Limits: arc.Limits{MaxOutput: 18 << 20}}, false, true, tooLarge, arc.ErrTooLarge},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				tt.o.Auth = byName
				s := newServer(t, &tt.o)
				s.Register(arc.Agent{AgentInfo: arc.AgentInfo{AgentID: "a"}, StatelessChats: tt.isStateless,
					ChatHandler: arc.ChatHandlerFunc(func(_ context.Context, _ *arc.ChatTurn, out *arc.ChatWriter) error {
						for range 2 {
							if err := out.Send(tt.refused); !errors.Is(err, tt.want) {
								return fmt.Errorf("not refused: %w", err)
							}
						}
						for range 40 {
							if err := out.Send(tt.refused[:10<<10]); err != nil {
								return err
							}
						}
						return nil
					})})
				rec := post(s, call("chat.start", "a", fmt.Sprintf(`{"stream":%v,"initialMessage":%s}`, tt.isStream, hello("x"))), "Authorization", "p1")
				require.Equal(t, http.StatusOK, rec.Code, rec.Body)
				require.Equal(t, 40*10<<10, strings.Count(rec.Body.String(), "xxxxxxxxxx")*10)
				require.NotContains(t, rec.Body.String(), "event: error")
			})
		})
	}
}

func TestLedgerBoundsSubscriptions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer(t, &arc.ServerOptions{Auth: byName, Timing: arc.Timing{TaskTimeout: -1, InputTimeout: -1}, Limits: arc.Limits{MaxItemsPerPrincipal: 5, MaxMemoryPerPrincipal: 8 * large},
			Webhook: &arc.WebhookOptions{Transport: deadHost{}, CallbackPolicy: arc.CallbackPolicy{AllowInsecure: true, AllowPrivate: true}}})
		s.HandleTasks("a", arctest.ScriptedTask(arctest.WaitCanceled()))
		id := createTask(t, s, "a", "x", "Authorization", "p1")
		require.Equal(t, 4, fill(t, "items", "principal", func(int) *arc.Error {
			_, err := serveAs(t, s, "p1", "task.subscribe", "a", fmt.Sprintf(`{"taskId":%q,"callbackUrl":"http://127.0.0.1/","events":["TASK_COMPLETED","TASK_CANCELED"]}`, id))
			return err
		}))
		createTask(t, s, "a", "x", "Authorization", "p2")
		cancelAs(t, s, "p1", id)
		time.Sleep(30 * time.Hour) // all attempts to deliver have failed
		require.EqualValues(t, 1, usageOf(s, "items", "all").Used, "the task of p2 is left")
	})
}

type deadHost struct{}

func (deadHost) RoundTrip(*http.Request) (*http.Response, error) { return nil, errors.New("no route") }

// The bytes of resumable streams count until they expire. Ended ones leave early, oldest first.
func TestLedgerBoundsStreams(t *testing.T) {
	for name, isDurable := range map[string]bool{"memory": false, "storage": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				o := resumable(5 * time.Minute)
				o.Auth, o.Limits = byName, arc.Limits{MaxMemoryPerPrincipal: 4 * large, MaxStoragePerPrincipal: 4 * large}
				if isDurable {
					o.Persistence.Store = store.NewMemory()
				}
				s := arc.MustServer(o)
				var release atomic.Value
				release.Store(make(chan struct{}))
				s.Register(arc.Agent{AgentInfo: arc.AgentInfo{AgentID: "a"}, StatelessChats: true,
					ChatHandler: arc.ChatHandlerFunc(func(_ context.Context, _ *arc.ChatTurn, out *arc.ChatWriter) error {
						for range 9 {
							if err := out.Send(strings.Repeat("x", 100<<10)); err != nil {
								return err
							}
						}
						<-release.Load().(chan struct{})
						return nil
					})})
				mem := arctest.NewServer(t, s)
				var streams []*arc.StreamReader
				var ids []string
				start := func(principal string) (err error) {
					body := streamed("a", fmt.Sprint("c", len(streams)), "x")
					r := arc.NewStreamReader(open(t, t.Context(), mem, body, "Authorization", principal).Body, 0, nil)
					for i := 0; i < 9 && err == nil; i++ {
						var ev *arc.ChatEvent
						if ev, err = r.Next(); err == nil && i == 0 {
							streams, ids = append(streams, r), append(ids, ev.ID)
						}
					}
					return err
				}
				end := func() {
					close(release.Swap(make(chan struct{})).(chan struct{}))
					for _, r := range streams {
						if _, _, err := readStream(r); err != nil {
							require.ErrorIs(t, err, arc.ErrAgentCapacityExceeded)
						}
					}
					synctest.Wait()
				}
				resume := func(i int) string {
					res := open(t, t.Context(), mem, streamed("a", fmt.Sprint("c", i), "x"), "Authorization", "p1", "Last-Event-ID", ids[i])
					text, err := io.ReadAll(res.Body)
					require.NoError(t, err)
					return string(text)
				}
				var err error
				for n := 0; err == nil; n++ {
					require.Less(t, n, 6, "no bound")
					err = start("p1")
				}
				require.ErrorIs(t, err, arc.ErrAgentCapacityExceeded)
				require.GreaterOrEqual(t, len(streams), 4)
				u := usageOf(s, name, "principal")
				require.EqualValues(t, 4*large, u.Limit)
				require.GreaterOrEqual(t, u.Used, int64(4*900<<10))
				require.LessOrEqual(t, u.Used, u.Limit)
				require.NoError(t, start("p2"), "another principal has its own room")
				end()

				require.GreaterOrEqual(t, usageOf(s, name, "principal").Used, int64(3*900<<10), "ended streams are retained")
				require.Contains(t, resume(0), "event: done")
				require.NoError(t, start("p1"))
				require.NoError(t, start("p1"))
				missing := 0
				for i := range 4 {
					if strings.Contains(resume(i), `"issue":"unknown"`) {
						missing++
					}
				}
				require.Contains(t, []int{1, 2}, missing, "ended streams make room")
				streams = streams[len(streams)-2:]
				end()
				time.Sleep(5*time.Minute + time.Second)
				requireNothingUsed(t, s)
			})
		})
	}
}

// Of a long stream only the retained events count: 1 MiB in memory, 16 MiB in a store. Earlier ones cannot be read again.
func TestLongStreamCountsWhatIsRetained(t *testing.T) {
	for _, tt := range []struct {
		resource        string
		retained, limit int64
	}{{"memory", 1 << 20, 3 << 20}, {"storage", 16 << 20, 18 << 20}} {
		t.Run(tt.resource, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				const piece = 100 << 10
				pieces := int(2 * tt.limit / piece)
				o := arc.ServerOptions{Auth: byName, Persistence: arc.Persistence{EnableResume: true},
					Limits: arc.Limits{MaxMemoryPerPrincipal: 3 << 20, MaxStoragePerPrincipal: tt.limit}}
				if tt.resource == "storage" {
					o.Persistence.Store = store.NewMemory()
				}
				s := arc.MustServer(&o)
				s.Register(arc.Agent{AgentInfo: arc.AgentInfo{AgentID: "a"}, StatelessChats: true,
					ChatHandler: arc.ChatHandlerFunc(func(_ context.Context, _ *arc.ChatTurn, out *arc.ChatWriter) error {
						for range pieces {
							if err := out.Send(strings.Repeat("x", piece)); err != nil {
								return err
							}
						}
						return nil
					})})
				mem := arctest.NewServer(t, s)
				body := streamed("a", "c", "x")
				r := arc.NewStreamReader(open(t, t.Context(), mem, body, "Authorization", "p1").Body, 0, nil)
				text, last, err := readStream(r)
				require.NoError(t, err)
				require.Len(t, text, pieces*piece)
				used := usageOf(s, tt.resource, "principal").Used
				require.LessOrEqual(t, used, tt.retained+4<<10)
				require.Greater(t, used, tt.retained*9/10)

				stream, _, _ := strings.Cut(last.ID, ".")
				resume := func(n int) string {
					res := open(t, t.Context(), mem, body, "Authorization", "p1", "Last-Event-ID", fmt.Sprint(stream, ".", n))
					text, err := io.ReadAll(res.Body)
					require.NoError(t, err)
					return string(text)
				}
				require.True(t, strings.Contains(resume(pieces-int(tt.retained*5/4)/piece), `"issue":"gap"`))
				require.True(t, strings.HasPrefix(resume(pieces-int(tt.retained*3/4)/piece), "event: stream"))
			})
		})
	}
}

// A task is counted once and until its removal, although its caller leaves before the answer and repeats the request.
func TestRepeatedCreateIsCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var cancelRequest context.CancelFunc
		s := newServer(t, &arc.ServerOptions{Persistence: arc.Persistence{ResultTTL: time.Hour},
			OnTaskEvent: func(_ context.Context, _ string, n *arc.Notification) {
				if n.Event == arc.EventTaskCreated {
					cancelRequest()
				}
			}})
		runs := 0
		s.HandleTasks("a-01", arc.TaskHandlerFunc(func(context.Context, *arc.TaskRun) error {
			runs++
			time.Sleep(time.Minute)
			return nil
		}))
		body := call("task.create", "a-01", `{"initialMessage":`+hello(strings.Repeat("x", 1<<20))+`}`)
		send := func() *httptest.ResponseRecorder {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			cancelRequest = cancel
			req := httptest.NewRequestWithContext(ctx, http.MethodPost, "/arc", strings.NewReader(body))
			req.Header.Set("Content-Type", arc.MediaType)
			rec := httptest.NewRecorder()
			s.ServeHTTP(rec, req)
			synctest.Wait()
			return rec
		}
		send()
		used := usageOf(s, "memory", "all").Used
		require.Greater(t, used, int64(1<<20))
		require.Less(t, used, int64(2<<20))
		for range 2 {
			result(t, send(), "task.create")
			require.Equal(t, used, usageOf(s, "memory", "all").Used)
			time.Sleep(time.Second)
		}
		require.Equal(t, 1, runs)
		time.Sleep(26 * time.Hour)
		requireNothingUsed(t, s)
	})
}
