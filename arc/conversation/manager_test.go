// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package conversation_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/arc"
	"github.com/fivewire/fivewire/arc/conversation"
)

// A chatPeer is a small server of chats, one at a time per chat.
type chatPeer struct {
	mu        sync.Mutex
	open      map[string]bool
	started   int
	running   map[string]int
	stateless bool
	refuseEnd bool
	exitEnd   bool // ends the goroutine of the caller instead
	log       []string
}

func (p *chatPeer) RoundTrip(req *http.Request) (*http.Response, error) {
	body, err := io.ReadAll(req.Body)
	if err != nil {
		return nil, err
	}
	_ = req.Body.Close()
	r, err := arc.DecodeRequest(body)
	if err != nil {
		return nil, err
	}
	var params struct {
		ChatID string `json:"chatId"`
		Stream bool   `json:"stream"`
	}
	if err := json.Unmarshal(r.Params, &params); err != nil {
		return nil, err
	}
	if p.exitEnd && r.Method == arc.MethodChatEnd {
		runtime.Goexit()
	}
	id, streamed := params.ChatID, params.Stream
	p.mu.Lock()
	p.log = append(p.log, r.TargetAgent+" "+r.Method)
	fail := arc.Code(0)
	switch {
	case r.Method == arc.MethodChatStart:
		p.started++
		id = fmt.Sprintf("%s-%d", r.TargetAgent, p.started)
		p.open[id] = !p.stateless
	case !p.open[id]:
		fail = arc.ErrChatNotFound
	case p.refuseEnd && r.Method == arc.MethodChatEnd:
		fail = arc.ErrPermissionDenied
	case r.Method == arc.MethodChatEnd:
		delete(p.open, id)
	}
	p.running[id]++
	if p.running[id] > 1 {
		fail = arc.ErrChatBufferOverflow
	}
	p.mu.Unlock()
	time.Sleep(time.Second)
	p.mu.Lock()
	p.running[id]--
	status := "ACTIVE"
	if !p.open[id] {
		status = "CLOSED"
	}
	p.mu.Unlock()
	text, media := `"result":{"type":"chat","chat":{"chatId":"`+id+`","status":"`+status+
		`","message":{"role":"agent","parts":[{"type":"TextPart","content":"hi"}]}}},"error":null}`, arc.MediaType
	switch head := `{"arc":"1.0","id":` + string(r.ID) + `,"responseAgent":"b","targetAgent":"a",`; {
	case fail != 0:
		text = fmt.Sprintf(`%s"result":null,"error":{"code":%d,"message":"m"}}`, head, fail)
	case streamed:
		media = "text/event-stream"
		text = "event: stream\ndata: {\"chatId\":\"" + id + "\",\"message\":\"hi\"}\n\nevent: done\ndata: {\"chatId\":\"" +
			id + "\",\"status\":\"" + status + "\",\"done\":true}\n\n"
	default:
		text = head + text
	}
	return &http.Response{StatusCode: http.StatusOK, Header: http.Header{"Content-Type": {media}}, ContentLength: -1,
		Body: io.NopCloser(strings.NewReader(text)), Request: req}, nil
}

func (p *chatPeer) forget() {
	p.mu.Lock()
	defer p.mu.Unlock()
	clear(p.open)
}

func newTestManager(t *testing.T, p *chatPeer, opts *conversation.Options) *conversation.Manager {
	t.Helper()
	c, err := arc.NewClient("https://b.test/arc", "a", &arc.ClientOptions{HTTPClient: &http.Client{Transport: p}})
	require.NoError(t, err)
	m, err := conversation.NewManager(c, opts)
	require.NoError(t, err)
	return m
}

// collect ranges over a stream and returns its error.
func collect(events iter.Seq2[*arc.ChatEvent, error]) error {
	for _, err := range events {
		if err != nil {
			return err
		}
	}
	return nil
}

func newChatPeer() *chatPeer { return &chatPeer{open: map[string]bool{}, running: map[string]int{}} }

// Unary and streamed turns share a chat, which begins, expires, begins again and
// ends.
func TestManager(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newChatPeer()
		v := newTestManager(t, p, &conversation.Options{EndReason: "bye"})
		ctx := t.Context()
		say := func(streamed bool) string {
			t.Helper()
			if streamed {
				id := ""
				for ev, err := range v.Stream(ctx, "b", arc.UserText("x"), nil) {
					require.NoError(t, err)
					id = ev.ChatID
				}
				return id
			}
			chat, err := v.Send(ctx, "b", arc.UserText("x"), nil)
			require.NoError(t, err)
			require.Equal(t, "hi", chat.Message.Text())
			return chat.ID
		}
		require.Equal(t, "b-1", say(true))
		require.Equal(t, "b-1", say(false))
		require.Equal(t, "b-1", say(true))
		p.forget()
		require.Equal(t, "b-2", say(true), "began anew, streamed")
		p.forget()
		require.Equal(t, "b-3", say(false), "began anew")
		id, err := v.ChatID(ctx, "b")
		require.NoError(t, err)
		require.Equal(t, "b-3", id)
		require.NoError(t, v.End(ctx, "b", "enough"))
		require.NoError(t, v.End(ctx, "b", "enough"), "there is none now")
		require.Equal(t, "b-4", say(false))

		for range v.Stream(ctx, "b", arc.UserText("x"), nil) {
			break // ends the turn, not the chat
		}
		require.Equal(t, "b-4", say(false))
		require.NoError(t, v.Close(ctx))
		require.Empty(t, p.open)
		_, err = v.Send(ctx, "b", arc.UserText("x"), nil)
		require.ErrorIs(t, err, arc.ErrClosed)
		for _, err := range v.Stream(ctx, "new", arc.UserText("x"), nil) {
			require.ErrorIs(t, err, arc.ErrClosed)
		}
		_, err = v.ChatID(ctx, "b")
		require.ErrorIs(t, err, arc.ErrClosed)
		require.ErrorIs(t, v.End(ctx, "b", ""), arc.ErrClosed)
		require.NoError(t, v.Close(ctx))
	})
}

// A stream sends its message once, also if it is ranged over again.
func TestManagerStreamIsUsedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newChatPeer()
		v := newTestManager(t, p, nil)
		events := v.Stream(t.Context(), "b", arc.UserText("x"), nil)
		require.NoError(t, collect(events))
		require.ErrorContains(t, collect(events), "once only")
		require.Equal(t, []string{"b chat.start"}, p.log)
		require.NoError(t, v.Close(t.Context()))
	})
}

// ARC-D33: an agent without memory gets each message as the first one.
func TestManagerStateless(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newChatPeer()
		p.stateless = true
		v := newTestManager(t, p, nil)
		for range 2 {
			_, err := v.Send(t.Context(), "b", arc.UserText("x"), nil)
			require.NoError(t, err)
			err = collect(v.Stream(t.Context(), "b", arc.UserText("x"), nil))
			require.NoError(t, err)
		}
		require.NoError(t, v.Close(t.Context()))
		require.Equal(t, []string{"b chat.start", "b chat.start", "b chat.start", "b chat.start"}, p.log)
	})
}

// Turns with one agent follow each other, those with others do not wait, and one
// chat comes out.
func TestManagerConcurrent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newChatPeer()
		v := newTestManager(t, p, nil)
		begin := time.Now()
		var wg sync.WaitGroup
		for i := range 10 {
			for _, agent := range []string{"b", "c", "d"} {
				wg.Go(func() {
					var err error
					if i%2 == 0 {
						_, err = v.Send(t.Context(), agent, arc.UserText("x"), nil)
					} else {
						err = collect(v.Stream(t.Context(), agent, arc.UserText("x"), nil))
					}
					if err != nil {
						t.Error(err)
					}
				})
			}
		}
		wg.Wait()
		require.Equal(t, 10*time.Second, time.Since(begin))
		require.Equal(t, 3, p.started)

		// A call that waits for a turn ends with its context.
		wg.Go(func() { _, _ = v.Send(t.Context(), "b", arc.UserText("x"), nil) })
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		_, err := v.Send(ctx, "b", arc.UserText("x"), nil)
		require.ErrorIs(t, err, context.DeadlineExceeded)

		// Close waits for the turn in progress, and refuses later turns.
		wg.Go(func() {
			time.Sleep(time.Millisecond)
			if _, err := v.Send(t.Context(), "b", arc.UserText("x"), nil); !errors.Is(err, arc.ErrClosed) {
				t.Errorf("after Close: %v", err)
			}
		})
		require.NoError(t, v.Close(t.Context()))
		wg.Wait()
		require.Empty(t, p.open)
	})
}

// Close reports each chat that it could not end. A second call ends them.
func TestManagerCloseFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newChatPeer()
		v := newTestManager(t, p, nil)
		for _, agent := range []string{"b", "c"} {
			_, err := v.Send(t.Context(), agent, arc.UserText("x"), nil)
			require.NoError(t, err)
		}
		p.refuseEnd = true
		err := v.Close(t.Context())
		require.ErrorIs(t, err, arc.ErrPermissionDenied)
		require.ErrorContains(t, err, `"b"`)
		require.ErrorContains(t, err, `"c"`)
		p.refuseEnd = false
		require.NoError(t, v.Close(t.Context()))
		require.Empty(t, p.open)
	})
}

// Close reports each chat whose end has ended its goroutine. A second call ends them.
func TestManagerCloseReportsEndedGoroutines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newChatPeer()
		v := newTestManager(t, p, nil)
		for n := range 20 {
			_, err := v.Send(t.Context(), fmt.Sprint("agent-", n), arc.UserText("x"), nil)
			require.NoError(t, err)
		}
		p.exitEnd = true
		require.ErrorContains(t, v.Close(t.Context()), "runtime.Goexit called")
		require.Len(t, p.open, 20)
		p.exitEnd = false
		require.NoError(t, v.Close(t.Context()))
		require.Empty(t, p.open)
	})
}

// Close ends the chats of idle agents, however many others are busy.
func TestManagerCloseWithBusyAgents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &chatPeer{open: map[string]bool{}, running: map[string]int{}}
		v := newTestManager(t, p, nil)
		for n := range 100 {
			next, stop := iter.Pull2(v.Stream(t.Context(), fmt.Sprint("busy-", n), arc.UserText("x"), nil))
			defer stop()
			_, err, _ := next()
			require.NoError(t, err)
		}
		chat, err := v.Send(t.Context(), "idle", arc.UserText("x"), nil)
		require.NoError(t, err)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		require.ErrorIs(t, v.Close(ctx), context.DeadlineExceeded)
		require.False(t, p.open[chat.ID])
	})
}
