// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package arc_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/arc"
	"github.com/fivewire/fivewire/arc/arctest"
	"github.com/fivewire/fivewire/internal/testkit"
	"github.com/fivewire/fivewire/store"
)

// pieces sends numbered pieces of 1,000 bytes and counts them. It waits after the first.
func pieces(sent *atomic.Int64, limit int) arc.ChatHandlerFunc {
	return func(_ context.Context, _ *arc.ChatTurn, out *arc.ChatWriter) error {
		for n := range limit {
			if err := out.Send(fmt.Sprintf("%-1000d", n)); err != nil {
				return err
			}
			sent.Add(1)
			if n == 0 {
				time.Sleep(time.Second)
			}
		}
		return nil
	}
}

// resumable returns the options of a server with resumable streams.
func resumable(window time.Duration) *arc.ServerOptions {
	return &arc.ServerOptions{Persistence: arc.Persistence{EnableResume: true, StreamRetention: window}}
}

// requireIssue checks that a resumption is refused at once.
func requireIssue(t *testing.T, mem *arctest.Server, body, id, issue string) {
	t.Helper()
	start := time.Now()
	res := open(t, t.Context(), mem, body, "Last-Event-ID", id)
	text, err := io.ReadAll(res.Body)
	require.NoError(t, err)
	require.Zero(t, time.Since(start))
	require.Contains(t, string(text), `"code":-43003`)
	require.Contains(t, string(text), `"issue":"`+issue+`"`)
}

// A reader that takes nothing slows the handler down, with and without resuming, and a reader that
// continues gets everything.
func TestStreamReaderSlowsHandlerDown(t *testing.T) {
	for _, o := range []*arc.ServerOptions{nil, resumable(time.Minute)} {
		synctest.Test(t, func(t *testing.T) {
			const limit = 5000
			var sent atomic.Int64
			s := arc.MustServer(o)
			s.Register(arc.Agent{AgentInfo: arc.AgentInfo{AgentID: "a-01"}, StatelessChats: true, ChatHandler: pieces(&sent, limit)})
			mem := arctest.NewServer(t, s)
			res := open(t, t.Context(), mem, streamed("a-01", "c", "x"))
			synctest.Wait()
			time.Sleep(20 * time.Second)
			require.Less(t, sent.Load(), int64(1000), "the window, and what the connection holds")
			text, last, err := readStream(arc.NewStreamReader(res.Body, 0, nil))
			require.NoError(t, err)
			require.True(t, last.Done)
			require.Len(t, text, 1000*limit)
		})
	}
}

// Without a reader the handler writes until the memory of the stream is full. The resumed reader gets
// all of it. A position that is no longer kept is refused.
func TestResumedStreamHasNoGap(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const limit = 3000
		var sent atomic.Int64
		s := arc.MustServer(resumable(time.Hour))
		s.Register(arc.Agent{AgentInfo: arc.AgentInfo{AgentID: "a-01"}, StatelessChats: true, ChatHandler: pieces(&sent, limit)})
		mem := arctest.NewServer(t, s)
		body := streamed("a-01", "c", "x")
		ctx, cancel := context.WithCancel(t.Context())
		ev, err := arc.NewStreamReader(open(t, ctx, mem, body).Body, 0, nil).Next()
		require.NoError(t, err)
		cancel()
		time.Sleep(time.Minute)
		require.Less(t, sent.Load(), int64(1100), "1 MiB")
		stream, number, _ := strings.Cut(ev.ID, ".")
		require.Equal(t, "1", number)
		requireIssue(t, mem, body, stream+".2000", "ahead")
		for _, id := range []string{stream + ".01", stream + ".0", stream, stream + ".1x", "1" + ev.ID, stream + "x.1", "-", stream + ".99999999999999999999"} {
			requireIssue(t, mem, body, id, "unknown")
		}
		text, last, err := readStream(arc.NewStreamReader(open(t, t.Context(), mem, body, "Last-Event-ID", ev.ID).Body, 0, nil))
		require.NoError(t, err)
		require.Equal(t, fmt.Sprintf("%s.%d", stream, limit+1), last.ID)
		require.Len(t, text, 1000*(limit-1))
		for i := 1; i < limit; i++ {
			require.Equal(t, fmt.Sprintf("%-1000d", i), text[1000*(i-1):1000*i])
		}
		requireIssue(t, mem, body, ev.ID, "gap")
		_, last, err = readStream(arc.NewStreamReader(open(t, t.Context(), mem, body, "Last-Event-ID", last.ID).Body, 0, nil))
		require.NoError(t, err)
		require.True(t, last.Done, "the last event again")
	})
}

// The process of a handler fails. Its reader in another process gets an error within a lease and 2 s.
func TestStreamEndsWithItsProcess(t *testing.T) {
	for life := range 7 {
		testStreamEndsWithItsProcess(t, time.Minute+time.Duration(life)*501*time.Millisecond)
	}
}

func testStreamEndsWithItsProcess(t *testing.T, life time.Duration) {
	synctest.Test(t, func(t *testing.T) {
		db := store.NewMemory()
		first := &crashStore{Store: db}
		var mems []*arctest.Server
		for _, db := range []store.Store{first, db} {
			o := resumable(time.Hour)
			o.Persistence.Store, o.Persistence.LeaseTTL = db, 10*time.Second
			s := newServer(t, o)
			s.HandleChats("a-01", arc.ChatHandlerFunc(func(ctx context.Context, _ *arc.ChatTurn, out *arc.ChatWriter) error {
				_ = out.Send("x")
				<-ctx.Done()
				return ctx.Err()
			}))
			mems = append(mems, arctest.NewServer(t, http.HandlerFunc(s.ServeHTTP)))
		}
		body := call("chat.start", "a-01", `{"stream":true,"initialMessage":`+hello("x")+`}`)
		ev, err := arc.NewStreamReader(open(t, t.Context(), mems[0], body).Body, 0, nil).Next()
		require.NoError(t, err)
		time.Sleep(life)
		res := open(t, t.Context(), mems[1], body, "Last-Event-ID", ev.ID)
		first.crash()
		start := time.Now()
		text, err := io.ReadAll(res.Body)
		require.NoError(t, err)
		require.LessOrEqual(t, time.Since(start), 12*time.Second)
		require.Contains(t, string(text), strings.TrimSuffix(ev.ID, "1")+"2")
		require.Contains(t, string(text), `{"chatId":"`+ev.ChatID+`","error":{"code":-41002`)
	})
}

// A process whose option is off takes the streams of a failed process over, too.
func TestStreamTakenOverWithoutResume(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := store.NewMemory()
		first := &crashStore{Store: db}
		o := resumable(time.Hour)
		o.Persistence.Store = first
		s := newServer(t, o)
		s.HandleChats("a-01", arc.ChatHandlerFunc(func(ctx context.Context, _ *arc.ChatTurn, out *arc.ChatWriter) error {
			_ = out.Send("x")
			<-ctx.Done()
			return ctx.Err()
		}))
		mem := arctest.NewServer(t, s)
		open(t, t.Context(), mem, call("chat.start", "a-01", `{"stream":true,"initialMessage":`+hello("x")+`}`))
		synctest.Wait()
		require.Equal(t, 1, countKeys(t, db, "arc/work/"))
		first.crash()
		newServer(t, &arc.ServerOptions{Persistence: arc.Persistence{Store: db}})
		time.Sleep(time.Minute)
		require.Zero(t, countKeys(t, db, "arc/work/"))
	})
}

func countKeys(t *testing.T, db store.Store, prefix string) (n int) {
	for _, err := range db.List(t.Context(), prefix) {
		require.NoError(t, err)
		n++
	}
	return n
}

// A reader that leaves is no failure (ARC-D84).
func TestReaderThatLeavesIsNoFailure(t *testing.T) {
	for _, o := range []*arc.ServerOptions{{}, resumable(time.Minute)} {
		synctest.Test(t, func(t *testing.T) {
			var log testkit.Log
			var outcome atomic.Value
			o.Logger = log.Logger()
			o.Audit = func(_ context.Context, r *arc.AuditRecord) { outcome.Store(r.Outcome + r.Code) }
			s := arc.MustServer(o)
			s.HandleChats("a-01", arc.ChatHandlerFunc(func(ctx context.Context, turn *arc.ChatTurn, out *arc.ChatWriter) error {
				for {
					if err := out.Send("x"); err != nil {
						return fmt.Errorf("not written: %w", err)
					}
					select {
					case <-time.After(time.Second):
					case <-ctx.Done():
						return ctx.Err()
					}
				}
			}))
			mem := arctest.NewServer(t, s)
			ctx, cancel := context.WithCancel(t.Context())
			_, err := arc.NewStreamReader(open(t, ctx, mem, streamed("a-01", "c", "x")).Body, 0, nil).Next()
			require.NoError(t, err)
			cancel()
			time.Sleep(2 * time.Minute)
			require.Equal(t, "canceled", outcome.Load())
			require.NotContains(t, log.String(), "ERROR")
			require.NotContains(t, log.String(), "WARN")
		})
	}
}

// A server that is closed ends its streams with an error, not as finished.
func TestCloseEndsStreamWithError(t *testing.T) {
	for _, o := range []*arc.ServerOptions{nil, resumable(time.Minute)} {
		synctest.Test(t, func(t *testing.T) {
			s := arc.MustServer(o)
			s.HandleChats("a-01", arc.ChatHandlerFunc(func(ctx context.Context, _ *arc.ChatTurn, out *arc.ChatWriter) error {
				_ = out.Send("x")
				<-ctx.Done()
				return ctx.Err()
			}))
			mem := arctest.NewServer(t, http.HandlerFunc(s.ServeHTTP))
			r := arc.NewStreamReader(open(t, t.Context(), mem, streamed("a-01", "c", "x")).Body, 0, nil)
			_, err := r.Next()
			require.NoError(t, err)
			require.NoError(t, s.Close())
			_, err = r.Next()
			require.ErrorIs(t, err, arc.ErrAgentNotAvailable)
		})
	}
}

// ARC-D13: a piece above 16 MiB is an error for the handler, and nothing is sent of it.
func TestStreamRefusesLargePiece(t *testing.T) {
	s := newServer(t, &arc.ServerOptions{Limits: arc.Limits{MaxMemoryPerPrincipal: -1, MaxMemory: -1}})
	s.Register(arc.Agent{AgentInfo: arc.AgentInfo{AgentID: "a-01"}, StatelessChats: true,
		ChatHandler: arc.ChatHandlerFunc(func(_ context.Context, _ *arc.ChatTurn, out *arc.ChatWriter) error {
			require.ErrorIs(t, out.Send(strings.Repeat("x", 16<<20)), arc.ErrTooLarge)
			return out.Send("small")
		})})
	text, last, err := readStream(arc.NewStreamReader(post(s, streamed("a-01", "c", "x")).Body, 0, nil))
	require.NoError(t, err)
	require.Equal(t, "small", text)
	require.True(t, last.Done)
}

// ARC-D48: a repeated request gets the stream of the first one, and an error that a later attempt
// does not meet is no answer.
func TestRepeatedStream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := resumable(time.Minute)
		o.Persistence.ResultTTL = 10 * time.Minute
		s := newServer(t, o)
		var runs atomic.Int64
		s.HandleChats("a-01", arc.ChatHandlerFunc(func(_ context.Context, turn *arc.ChatTurn, out *arc.ChatWriter) error {
			n := runs.Add(1)
			switch turn.Message.Text() {
			case "busy":
				return arc.Errorf(arc.ErrAgentNotAvailable, "busy %d", n)
			case "no":
				return arc.Errorf(arc.ErrInvalidChatMessage, "no %d", n)
			}
			return out.Send(fmt.Sprint("run ", n))
		}))
		start := func(text string) string {
			return post(s, call("chat.start", "a-01", `{"stream":true,"initialMessage":`+hello(text)+`}`)).Body.String()
		}
		first := start("x")
		require.Contains(t, first, "run 1")
		require.Equal(t, first, start("x"))
		require.Contains(t, start("busy"), "busy 2")
		require.Contains(t, start("busy"), "busy 3")
		require.Contains(t, start("no"), "no 4")
		require.Contains(t, start("no"), "no 4")
		time.Sleep(2 * time.Minute)
		require.Contains(t, start("x"), `"issue":"unknown"`)
		time.Sleep(10 * time.Minute)
		require.Contains(t, start("x"), "run 5")
	})
}

// ARC-D69: methods of the older dialect are unknown.
func TestOlderDialectIsUnknown(t *testing.T) {
	s := newServer(t, nil)
	s.HandleChats("a-01", arctest.EchoChat())
	for _, method := range []string{"stream.start", "stream.message", "stream.end", "task.get"} {
		fault(t, post(s, call(method, "a-01", `{"streamId":"c","initialMessage":`+hello("x")+`}`)), arc.ErrMethodNotFound)
	}
}

// A repeater of streams has two processes with one store, the first of which may crash.
func newStreamRepeater(t *testing.T, handler arc.ChatHandlerFunc) (dying *crashStore, servers []*arc.Server) {
	db := store.NewMemory()
	dying = &crashStore{Store: db}
	for _, db := range []store.Store{dying, db} {
		o := resumable(time.Minute)
		o.Persistence.Store, o.Persistence.ResultTTL, o.Persistence.LeaseTTL = db, 10*time.Minute, 3*time.Second
		s := newServer(t, o)
		s.HandleChats("a-01", handler)
		servers = append(servers, s)
	}
	return dying, servers
}

// ARC-D48: a request whose process failed runs again in the same chat, which keeps its message once.
func TestRepeatedStreamOfDeadProcess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var runs atomic.Int64
		dying, servers := newStreamRepeater(t, func(ctx context.Context, turn *arc.ChatTurn, out *arc.ChatWriter) error {
			messages, err := turn.History(ctx)
			require.NoError(t, err)
			n := runs.Add(1)
			_ = out.Send(fmt.Sprintf("run %d after %d", n, len(messages)))
			if n == 1 {
				<-ctx.Done()
			}
			return ctx.Err()
		})
		body := call("chat.start", "a-01", `{"stream":true,"initialMessage":`+hello("x")+`}`)
		ev, err := arc.NewStreamReader(open(t, t.Context(), arctest.NewServer(t, servers[0]), body).Body, 0, nil).Next()
		require.NoError(t, err)
		require.Equal(t, "run 1 after 0", ev.Text)
		dying.crash()
		time.Sleep(10 * time.Second)
		second := post(servers[1], body).Body.String()
		require.Contains(t, second, "run 2 after 0")
		require.Contains(t, second, ev.ChatID)
		require.Equal(t, second, post(servers[1], body).Body.String())
		next := post(servers[1], call("chat.message", "a-01", `{"stream":true,"chatId":"`+ev.ChatID+`","message":`+hello("y")+`}`))
		require.Contains(t, next.Body.String(), "run 3 after 2")
	})
}

// The stored answer of a process that failed before it ended the claim is streamed again.
func TestRepeatedStreamOfStoredAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var runs atomic.Int64
		db := store.NewMemory()
		dying := &crashingStore{crashStore: crashStore{Store: db}, at: inAnswer}
		dying.now.Store(true)
		var servers []*arc.Server
		for _, db := range []store.Store{dying, db} {
			o := resumable(time.Minute)
			o.Persistence.Store, o.Persistence.ResultTTL, o.Persistence.LeaseTTL = db, 10*time.Minute, 3*time.Second
			s := newServer(t, o)
			s.HandleChats("a-01", arc.ChatHandlerFunc(func(_ context.Context, _ *arc.ChatTurn, out *arc.ChatWriter) error {
				return out.Send(fmt.Sprint("run ", runs.Add(1)))
			}))
			servers = append(servers, s)
		}
		body := call("chat.start", "a-01", `{"chatId":"c","stream":true,"initialMessage":`+hello("x")+`}`)
		abandon(t, servers[0], body)
		second := post(servers[1], body).Body.String()
		require.Contains(t, second, "run 1")
		require.Contains(t, second, "event: done")
		require.EqualValues(t, 1, runs.Load())
	})
}

// A request that is repeated at another process before its turn has come follows the stream of the first one.
func TestRepeatedStreamBeforeItsTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var runs atomic.Int64
		goOn := make(chan struct{})
		_, servers := newStreamRepeater(t, func(_ context.Context, turn *arc.ChatTurn, out *arc.ChatWriter) error {
			if turn.Message.Text() == "slow" {
				<-goOn
			}
			return out.Send(fmt.Sprint("run ", runs.Add(1)))
		})
		post(servers[0], call("chat.start", "a-01", `{"chatId":"c","initialMessage":`+hello("x")+`}`))
		ask := func(s *arc.Server, text string) chan string {
			answer := make(chan string, 1)
			body := call("chat.message", "a-01", `{"chatId":"c","stream":true,"message":`+hello(text)+`}`)
			go func() { answer <- post(s, body).Body.String() }()
			synctest.Wait()
			return answer
		}
		slow := ask(servers[0], "slow")
		first := ask(servers[0], "y")
		second := ask(servers[1], "y")
		time.Sleep(5 * time.Second)
		close(goOn)
		require.Contains(t, <-slow, "run 2")
		answer := <-first
		require.Contains(t, answer, "run 3")
		require.Equal(t, answer, <-second)
		require.EqualValues(t, 3, runs.Load())
	})
}

// The partial answer of an attempt whose process ended is not the answer of the request.
func TestRepeatedStreamAfterClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var runs atomic.Int64
		_, servers := newStreamRepeater(t, func(ctx context.Context, _ *arc.ChatTurn, out *arc.ChatWriter) error {
			n := runs.Add(1)
			_ = out.Send(fmt.Sprint("run ", n))
			if n == 1 {
				<-ctx.Done()
			}
			return ctx.Err()
		})
		body := call("chat.start", "a-01", `{"stream":true,"initialMessage":`+hello("x")+`}`)
		first := make(chan string, 1)
		go func() { first <- post(servers[0], body).Body.String() }()
		synctest.Wait()
		require.NoError(t, servers[0].Close())
		require.Contains(t, <-first, "-41002")
		second := post(servers[1], body).Body.String()
		require.Contains(t, second, "run 2")
		require.Contains(t, second, "event: done")
	})
}
