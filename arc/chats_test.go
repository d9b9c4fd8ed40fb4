// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package arc_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fivewire/fivewire/arc"
	"github.com/fivewire/fivewire/arc/arctest"
	"github.com/fivewire/fivewire/store"
	"github.com/stretchr/testify/require"
)

func startChat(h http.Handler, agent, id, text string) *arc.Response {
	rec := post(h, call("chat.start", agent, fmt.Sprintf(`{"chatId":%q,"initialMessage":%s}`, id, hello(text))))
	res, _ := arc.DecodeResponse(rec.Body.Bytes(), "")
	return res
}

func say(h http.Handler, agent, id, text string) *arc.Response {
	rec := post(h, call("chat.message", agent, fmt.Sprintf(`{"chatId":%q,"message":%s}`, id, hello(text))))
	res, _ := arc.DecodeResponse(rec.Body.Bytes(), "")
	return res
}

func endChat(h http.Handler, agent, id string) *arc.Response {
	rec := post(h, call("chat.end", agent, fmt.Sprintf(`{"chatId":%q}`, id)))
	res, _ := arc.DecodeResponse(rec.Body.Bytes(), "")
	return res
}

func chatOf(t testing.TB, res *arc.Response) *arc.Chat {
	t.Helper()
	require.Nil(t, res.Error)
	got, err := arc.DecodeResult("chat.start", res.Result)
	require.NoError(t, err)
	return got.Chat
}

// open begins a stream over HTTP in memory.
func open(t testing.TB, ctx context.Context, mem *arctest.Server, body string, headers ...string) *http.Response {
	t.Helper()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, mem.URL, strings.NewReader(body))
	require.NoError(t, err)
	req.Header.Set("Content-Type", arc.MediaType)
	for i := 0; i < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	res, err := mem.HTTPClient.Do(req)
	require.NoError(t, err)
	t.Cleanup(func() { _ = res.Body.Close() })
	return res
}

func streamed(agent, id, text string) string {
	return call("chat.start", agent, fmt.Sprintf(`{"chatId":%q,"stream":true,"initialMessage":%s}`, id, hello(text)))
}

// readStream reads a stream to its end: the text, the last event, the error.
func readStream(r *arc.StreamReader) (text string, last *arc.ChatEvent, err error) {
	var b strings.Builder
	for {
		ev, err := r.Next()
		if err != nil {
			if errors.Is(err, io.EOF) {
				err = nil
			}
			return b.String(), last, err
		}
		b.WriteString(ev.Text)
		last = ev
	}
}

// ARC-D35: an agent pauses a chat, and the next message resumes it.
func TestChatHistoryAndPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer(t, nil)
		s.HandleChats("a-01", arc.ChatHandlerFunc(func(ctx context.Context, turn *arc.ChatTurn, out *arc.ChatWriter) error {
			history, err := turn.History(ctx)
			if err != nil {
				return err
			}
			var messages []string
			for _, m := range history {
				require.NotEmpty(t, m.Timestamp)
				messages = append(messages, string(m.Role)+":"+m.Text())
			}
			switch turn.Message.Text() {
			case "pause":
				turn.Pause()
			case "fail":
				_ = out.Send("nobody sees this")
				return arc.Errorf(arc.ErrInvalidChatMessage, "no")
			}
			if err := out.Send(strings.Join(messages, " ")); err != nil {
				return err
			}
			if err := out.SendMessage(&arc.Message{Parts: []arc.Part{arc.ImagePart("image/png", []byte{1})}}); err != nil {
				return err
			}
			if err := out.Send("a"); err != nil {
				return err
			}
			return out.Send("b")
		}))
		c := chatOf(t, startChat(s, "a-01", "c", "one"))
		require.Equal(t, arc.RoleAgent, c.Message.Role)
		require.Len(t, c.Message.Parts, 2, "neighbouring texts become one")
		time.Sleep(time.Second)
		c = chatOf(t, say(s, "a-01", "c", "pause"))
		require.Equal(t, arc.ChatPaused, c.Status)
		require.Equal(t, "user:one agent:abab"[:18], c.Message.Text()[:18])
		require.NotEqual(t, c.CreatedAt, c.UpdatedAt)
		require.ErrorIs(t, say(s, "a-01", "c", "fail").Error, arc.ErrInvalidChatMessage)
		c = chatOf(t, say(s, "a-01", "c", "three"))
		require.Equal(t, arc.ChatActive, c.Status)
		require.NotContains(t, c.Message.Text(), "fail")
		require.Equal(t, arc.ChatClosed, chatOf(t, endChat(s, "a-01", "c")).Status)
		require.ErrorIs(t, endChat(s, "a-01", "c").Error, arc.ErrChatAlreadyClosed)
		time.Sleep(25 * time.Hour)
		require.ErrorIs(t, endChat(s, "a-01", "c").Error, arc.ErrChatNotFound)
	})
}

func TestChatTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer(t, nil)
		var mu sync.Mutex
		busy, order := 0, []string(nil)
		s.HandleChats("a-01", arc.ChatReplyFunc(func(ctx context.Context, turn *arc.ChatTurn) (*arc.Message, error) {
			mu.Lock()
			busy++
			require.Equal(t, 1, busy)
			order = append(order, turn.Message.Text())
			mu.Unlock()
			defer func() { mu.Lock(); busy--; mu.Unlock() }()
			select {
			case <-time.After(time.Second):
				return arc.AgentText("ok"), nil
			case <-ctx.Done():
				return nil, context.Cause(ctx)
			}
		}))
		var wg sync.WaitGroup
		wg.Go(func() { require.Nil(t, startChat(s, "a-01", "c", "0").Error) })
		synctest.Wait()
		require.ErrorIs(t, startChat(s, "a-01", "c", "again").Error, arc.ErrInvalidParams)
		for i := range 16 {
			wg.Go(func() { require.Nil(t, say(s, "a-01", "c", fmt.Sprint(i+1)).Error) })
			synctest.Wait()
		}
		require.ErrorIs(t, say(s, "a-01", "c", "17").Error, arc.ErrChatBufferOverflow)
		wg.Wait()
		require.Equal(t, strings.Fields("0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16"), order)

		// A caller that leaves the queue does not block the others, and an end notifies all.
		ctx, cancel := context.WithCancel(t.Context())
		in := &arc.ServerRequest{Data: []byte(call("chat.message", "a-01", `{"chatId":"c","message":`+hello("x")+`}`))}
		wg.Go(func() { require.ErrorIs(t, say(s, "a-01", "c", "x").Error, arc.ErrChatAlreadyClosed) })
		synctest.Wait()
		wg.Go(func() { require.NotNil(t, s.ServeMessage(ctx, in, nil).Error) })
		synctest.Wait()
		wg.Go(func() { require.ErrorIs(t, say(s, "a-01", "c", "z").Error, arc.ErrChatAlreadyClosed) })
		synctest.Wait()
		cancel()
		synctest.Wait()
		start := time.Now()
		require.Nil(t, endChat(s, "a-01", "c").Error)
		wg.Wait()
		require.Zero(t, time.Since(start), "nobody waits for anything")
	})
}

// A chat.start that fails leaves no chat behind (ARC-D34).
func TestChatStartFails(t *testing.T) {
	s := newServer(t, nil)
	fail := true
	s.HandleChats("a-01", arc.ChatReplyFunc(func(context.Context, *arc.ChatTurn) (*arc.Message, error) {
		if fail {
			return nil, errors.New("no")
		}
		return arc.AgentText("yes"), nil
	}))
	require.ErrorIs(t, startChat(s, "a-01", "c", "x").Error, arc.ErrInternal)
	require.ErrorIs(t, say(s, "a-01", "c", "x").Error, arc.ErrChatNotFound)
	fail = false
	require.Nil(t, startChat(s, "a-01", "c", "x").Error)
}

func TestStreamEndedByChatEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := arc.MustServer(nil)
		s.HandleChats("a-01", arc.ChatHandlerFunc(func(ctx context.Context, _ *arc.ChatTurn, out *arc.ChatWriter) error {
			if err := out.Send("one "); err != nil {
				return err
			}
			<-ctx.Done()
			require.ErrorIs(t, context.Cause(ctx), arc.ErrChatAlreadyClosed)
			return ctx.Err()
		}))
		mem := arctest.NewServer(t, s)
		res := open(t, t.Context(), mem, streamed("a-01", "c", "x"))
		r := arc.NewStreamReader(res.Body, 0, nil)
		ev, err := r.Next()
		require.NoError(t, err)
		require.Equal(t, "one ", ev.Text)
		require.Nil(t, endChat(s, "a-01", "c").Error)
		_, err = r.Next()
		require.ErrorIs(t, err, arc.ErrChatAlreadyClosed) // and then done, with CLOSED (ARC-D46)
		ev, err = r.Next()
		require.NoError(t, err)
		require.Equal(t, arc.ChatClosed, ev.Status)
	})
}

func TestKeepAlive(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := arc.MustServer(nil)
		s.HandleChats("a-01", arc.ChatHandlerFunc(func(_ context.Context, turn *arc.ChatTurn, out *arc.ChatWriter) error {
			time.Sleep(40 * time.Second)
			if turn.Message.Text() == "fail" {
				return arc.Errorf(arc.ErrChatTimeout, "slow")
			}
			return out.Send("text")
		}))
		mem := arctest.NewServer(t, s)
		for text, end := range map[string]string{"x": "event: done\n", "fail": "event: error\n"} {
			start := time.Now()
			res := open(t, t.Context(), mem, streamed("a-01", text, text))
			require.Equal(t, 15*time.Second, time.Since(start), "the first sign of life begins the stream (ARC-D26)")
			require.Equal(t, "no-cache", res.Header.Get("Cache-Control"))
			require.Equal(t, "no", res.Header.Get("X-Accel-Buffering"))
			body, err := io.ReadAll(res.Body)
			require.NoError(t, err)
			require.Equal(t, 2, strings.Count(string(body), ": keep-alive\n\n"), string(body))
			require.Contains(t, string(body), end)
			// The stream had begun, so the chat exists, whatever was received.
			require.Nil(t, endChat(s, "a-01", text).Error)
		}
	})
}

func TestStreamClientVanishes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := arc.MustServer(nil)
		var end error
		s.HandleChats("a-01", arc.ChatHandlerFunc(func(ctx context.Context, turn *arc.ChatTurn, out *arc.ChatWriter) error {
			if turn.Message.Text() == "again" {
				return out.Send("here")
			}
			if err := out.Send("one "); err != nil {
				return err
			}
			<-ctx.Done()
			end = ctx.Err()
			return end
		}))
		mem := arctest.NewServer(t, s)
		ctx, cancel := context.WithCancel(t.Context())
		res := open(t, ctx, mem, streamed("a-01", "c", "x"))
		_, err := bufio.NewReader(res.Body).ReadString('\n')
		require.NoError(t, err)
		cancel()
		synctest.Wait()
		require.ErrorIs(t, end, context.Canceled)
		// The chat keeps its state (ARC-D16) and its history.
		require.Equal(t, "here", chatOf(t, say(s, "a-01", "c", "again")).Message.Text())
	})
}

// A reader that takes nothing is dropped, and holds up nothing else.
func TestSlowReader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := arc.MustServer(&arc.ServerOptions{Timing: arc.Timing{WriteTimeout: 5 * time.Second}})
		done := make(chan error, 1)
		s.HandleChats("a-01", arc.ChatHandlerFunc(func(_ context.Context, _ *arc.ChatTurn, out *arc.ChatWriter) error {
			for {
				if err := out.Send(strings.Repeat("x", 1000)); err != nil {
					done <- err
					return err
				}
			}
		}))
		mem := arctest.NewServer(t, s)
		res := open(t, t.Context(), mem, streamed("a-01", "c", "x"))
		start := time.Now()
		require.Error(t, <-done)
		require.LessOrEqual(t, time.Since(start), 11*time.Second)
		_ = res.Body.Close()
	})
}

// ARC-011, ARC-D72: the server works without HTTP, message by message.
func TestUnaryWithoutStreams(t *testing.T) {
	// A transport that cannot stream gets it all at once.
	s := newServer(t, nil)
	s.HandleChats("a-01", arctest.ScriptedChat("a", "b"))
	a := s.ServeMessage(t.Context(), &arc.ServerRequest{Data: []byte(streamed("a-01", "c", "x"))}, nil)
	res, err := arc.DecodeResponse(a.Data, "")
	require.NoError(t, err)
	require.Equal(t, "ab", chatOf(t, res).Message.Text())
}

func TestWriterFaults(t *testing.T) {
	s := newServer(t, nil)
	var kept *arc.ChatWriter
	s.HandleChats("a-01", arc.ChatHandlerFunc(func(_ context.Context, _ *arc.ChatTurn, out *arc.ChatWriter) error {
		kept = out
		err := out.SendMessage(&arc.Message{Parts: []arc.Part{{Type: arc.PartTypeData, Data: json.RawMessage(`{`)}}})
		if err == nil {
			return nil // a caller without a stream: the answer as a whole fails
		}
		return out.Send("went on")
	}))
	require.ErrorIs(t, startChat(s, "a-01", "c", "x").Error, arc.ErrInternal)
	rec := post(s, streamed("a-01", "d", "x"))
	require.Contains(t, rec.Body.String(), "went on")
	require.Contains(t, rec.Body.String(), "event: done")
	require.Error(t, kept.Send("too late"))
}

func TestLongReply(t *testing.T) {
	s := newServer(t, &arc.ServerOptions{Limits: arc.Limits{MaxOutput: 10}})
	chat := arctest.ScriptedChat("12345", "67890", "1")
	s.HandleChats("a-01", chat)
	s.Register(arc.Agent{AgentInfo: arc.AgentInfo{AgentID: "b-01"}, ChatHandler: chat, StatelessChats: true})
	require.ErrorIs(t, startChat(s, "a-01", "c", "x").Error, arc.ErrInternal)
	require.Contains(t, post(s, streamed("a-01", "c", "x")).Body.String(), "event: error")
	require.Contains(t, post(s, streamed("b-01", "c", "x")).Body.String(), "event: done")
}

// ARC-D62: the option that refuses messages of role system.
func TestRefuseSystem(t *testing.T) {
	s := newServer(t, &arc.ServerOptions{Auth: arc.Auth{RejectSystemRole: true}})
	s.Register(arc.Agent{AgentInfo: arc.AgentInfo{AgentID: "a-01"}, ChatHandler: arctest.EchoChat(), TaskHandler: arctest.ScriptedTask()})
	for _, method := range []string{"chat.start", "task.create"} {
		body := strings.Replace(call(method, "a-01", `{"initialMessage":`+hello("x")+`}`), `"user"`, `"system"`, 1)
		require.Equal(t, "initialMessage.role", fault(t, post(s, body), arc.ErrInvalidParams).Field())
	}
}

func TestResume(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := arc.MustServer(&arc.ServerOptions{Persistence: arc.Persistence{EnableResume: true}})
		s.HandleChats("a-01", arc.ChatHandlerFunc(func(ctx context.Context, turn *arc.ChatTurn, out *arc.ChatWriter) error {
			if turn.Message.Text() == "fail" {
				return arc.Errorf(arc.ErrInvalidChatMessage, "no")
			}
			for i := range 5 {
				if err := out.Send(fmt.Sprint(i)); err != nil {
					return err
				}
				time.Sleep(time.Second)
				if err := context.Cause(ctx); err != nil {
					return err
				}
			}
			return nil
		}))
		mem := arctest.NewServer(t, s)
		body := streamed("a-01", "c", "x")
		ctx, cancel := context.WithCancel(t.Context())
		r := arc.NewStreamReader(open(t, ctx, mem, body).Body, 0, nil)
		ev, err := r.Next()
		require.NoError(t, err)
		require.NotEmpty(t, ev.ID)
		cancel() // the connection breaks; the handler continues
		time.Sleep(2500 * time.Millisecond)
		text, last, err := readStream(arc.NewStreamReader(open(t, t.Context(), mem, body, "Last-Event-ID", ev.ID).Body, 0, nil))
		require.NoError(t, err)
		require.Equal(t, "1234", text)
		require.True(t, last.Done)
		// It can be read again while the window lasts, by the same request only.
		text, _, err = readStream(arc.NewStreamReader(open(t, t.Context(), mem, body, "Last-Event-ID", ev.ID).Body, 0, nil))
		require.NoError(t, err)
		require.Equal(t, "1234", text)
		for _, other := range []string{strings.Replace(body, "r1", "r2", 1), strings.Replace(body, "ui-01", "ui-02", 1)} {
			res := open(t, t.Context(), mem, other, "Last-Event-ID", ev.ID)
			require.Equal(t, arc.MediaType, res.Header.Get("Content-Type"))
		}
		res := open(t, t.Context(), mem, body, "Last-Event-ID", "stream-x.y")
		require.Equal(t, arc.MediaType, res.Header.Get("Content-Type"))
		// An error before the first event is a plain answer (ARC-D23).
		res = open(t, t.Context(), mem, streamed("a-01", "d", "fail"))
		require.Equal(t, arc.MediaType, res.Header.Get("Content-Type"))
		time.Sleep(2 * time.Hour)
		res = open(t, t.Context(), mem, body, "Last-Event-ID", ev.ID)
		require.Equal(t, arc.MediaType, res.Header.Get("Content-Type"))
	})
}

// A stream continues at another process for its whole length, not only for the retention time.
func TestResumeElsewhere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := store.NewMemory()
		var mems []*arctest.Server
		for range 2 {
			s := arc.MustServer(&arc.ServerOptions{Persistence: arc.Persistence{EnableResume: true, StreamRetention: time.Minute, Store: db}})
			s.HandleChats("a-01", arc.ChatHandlerFunc(func(ctx context.Context, turn *arc.ChatTurn, out *arc.ChatWriter) error {
				for i := range 5 {
					if err := out.Send(fmt.Sprint(i)); err != nil {
						return err
					}
					time.Sleep(50 * time.Second)
				}
				return nil
			}))
			mems = append(mems, arctest.NewServer(t, s))
		}
		body := streamed("a-01", "c", "x")
		r := arc.NewStreamReader(open(t, t.Context(), mems[0], body).Body, 0, nil)
		ev, err := r.Next()
		require.NoError(t, err)
		var reading sync.WaitGroup
		defer reading.Wait()
		reading.Go(func() { _, _, _ = readStream(r) })
		text, last, err := readStream(arc.NewStreamReader(open(t, t.Context(), mems[1], body, "Last-Event-ID", ev.ID).Body, 0, nil))
		require.NoError(t, err)
		require.Equal(t, "1234", text)
		require.True(t, last.Done)
	})
}

// A handler whose reader does not come back is ended, by default after 5 min.
func TestResumeAbandoned(t *testing.T) {
	for option, want := range map[time.Duration]time.Duration{-1: 5 * time.Minute, 0: 5 * time.Minute, time.Minute: time.Minute} {
		synctest.Test(t, func(t *testing.T) {
			s := arc.MustServer(resumable(option))
			var endTime time.Time
			s.HandleChats("a-01", arc.ChatHandlerFunc(func(ctx context.Context, _ *arc.ChatTurn, out *arc.ChatWriter) error {
				_ = out.Send("x")
				<-ctx.Done()
				endTime = time.Now()
				return ctx.Err()
			}))
			mem := arctest.NewServer(t, s)
			ctx, cancel := context.WithCancel(t.Context())
			_, err := arc.NewStreamReader(open(t, ctx, mem, streamed("a-01", "c", "x")).Body, 0, nil).Next()
			require.NoError(t, err)
			cancel()
			synctest.Wait()
			left := time.Now()
			time.Sleep(2 * want)
			synctest.Wait()
			require.Equal(t, want, endTime.Sub(left))
		})
	}
}

// An ended chat is kept for 24 h by default. Then its id is free.
func TestEndedChatIsKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer(t, nil)
		s.HandleChats("a-01", counting(0))
		chatOf(t, startChat(s, "a-01", "c", "x"))
		require.Nil(t, endChat(s, "a-01", "c").Error)
		time.Sleep(24*time.Hour - time.Second)
		require.Equal(t, arc.ErrChatAlreadyClosed, say(s, "a-01", "c", "x").Error.Code)
		time.Sleep(2 * time.Second)
		require.Equal(t, arc.ErrChatNotFound, say(s, "a-01", "c", "x").Error.Code)
		chatOf(t, startChat(s, "a-01", "c", "x"))
	})
}

// A chat of a group has the same instance for longer than a month.
func TestLongChatOfGroup(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer(t, &arc.ServerOptions{Timing: arc.Timing{ChatIdleTimeout: -1}})
		for _, id := range []string{"a-01", "a-02"} {
			s.Register(arc.Agent{AgentInfo: arc.AgentInfo{AgentID: id}, Group: "g", ChatHandler: counting(0)})
		}
		for n := range 6 {
			chatOf(t, startChat(s, "g", fmt.Sprint(n), "x"))
		}
		time.Sleep(31 * 24 * time.Hour)
		for n := range 2 { // chats of both instances
			require.Equal(t, arc.ErrInvalidParams, startChat(s, "g", fmt.Sprint(n), "x").Error.Code)
			require.Equal(t, "so far 2", chatOf(t, say(s, "g", fmt.Sprint(n+2), "y")).Message.Text())
			require.Nil(t, endChat(s, "g", fmt.Sprint(n+4)).Error)
		}
	})
}

// A chat or a task that has been removed binds its id no longer to an instance that takes no calls.
func TestRemovedWorkOfGroupHasNoInstance(t *testing.T) {
	for name, leave := range map[string]func(s *arc.Server, agent string){
		"removed":   func(s *arc.Server, agent string) { s.Unregister(agent) },
		"unhealthy": func(s *arc.Server, agent string) { s.SetHealthy(agent, false) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newServer(t, nil)
				for _, id := range []string{"a-01", "a-02"} {
					s.Register(arc.Agent{AgentInfo: arc.AgentInfo{AgentID: id}, Group: "g", ChatHandler: counting(0), TaskHandler: arctest.ScriptedTask()})
				}
				owner := startChat(s, "g", "c", "x").ResponseAgent
				task := createTask(t, s, "g", "x")
				info := call("task.info", "g", `{"taskId":"`+task+`"}`)
				synctest.Wait()
				s.Register(arc.Agent{AgentInfo: arc.AgentInfo{AgentID: "a-03"}, Group: "g", ChatHandler: counting(0), TaskHandler: arctest.ScriptedTask()})
				leave(s, owner)
				leave(s, answer(t, post(s, info)).ResponseAgent)
				require.Equal(t, arc.ErrAgentNotAvailable, say(s, "g", "c", "x").Error.Code)
				fault(t, post(s, info), arc.ErrAgentNotAvailable)
				time.Sleep(25 * time.Hour)
				fault(t, post(s, info), arc.ErrTaskNotFound)
				require.Equal(t, arc.ErrChatNotFound, say(s, "g", "c", "x").Error.Code)
				res := startChat(s, "g", "c", "x")
				require.Nil(t, res.Error)
				require.Equal(t, "a-03", res.ResponseAgent)
				require.Equal(t, "so far 2", chatOf(t, say(s, "g", "c", "y")).Message.Text())
			})
		})
	}
}

// A handler that passes nil gets an error and may continue.
func TestNilOfHandlerIsError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer(t, nil)
		var errs []error
		s.HandleTasks("a-01", arc.TaskHandlerFunc(func(ctx context.Context, run *arc.TaskRun) error {
			errs = append(errs, run.AddMessage(ctx, nil), run.AddArtifact(ctx, nil))
			return nil
		}))
		s.HandleChats("a-01", arc.ChatHandlerFunc(func(_ context.Context, _ *arc.ChatTurn, out *arc.ChatWriter) error {
			errs = append(errs, out.SendMessage(nil))
			return out.Send("hello")
		}))
		id := createTask(t, s, "a-01", "x")
		synctest.Wait()
		require.Equal(t, arc.TaskCompleted, taskOf(t, s, "a-01", id).Status)
		require.Equal(t, "hello", chatOf(t, startChat(s, "a-01", "c", "x")).Message.Text())
		require.Len(t, errs, 3)
		for _, err := range errs {
			require.ErrorContains(t, err, ": nil")
		}
	})
}
