// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package arc

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// A chatPeer is a small server of chats, one at a time per chat.
type chatPeer struct {
	mu        sync.Mutex
	open      map[string]bool
	begun     int
	running   map[string]int
	stateless bool
	refuseEnd bool
	log       []string
}

func (p *chatPeer) RoundTrip(req *http.Request) (*http.Response, error) {
	body, err := io.ReadAll(req.Body)
	if err != nil {
		return nil, err
	}
	_ = req.Body.Close()
	r, err := DecodeRequest(body)
	if err != nil {
		return nil, err
	}
	v, err := checkJSON(r.Params)
	if err != nil {
		return nil, err
	}
	id, _ := v.Get("chatId").Text()
	streamed, _ := v.Get("stream").Bool()
	p.mu.Lock()
	p.log = append(p.log, r.TargetAgent+" "+r.Method)
	fail := Code(0)
	switch {
	case r.Method == MethodChatStart:
		p.begun++
		id = fmt.Sprintf("%s-%d", r.TargetAgent, p.begun)
		p.open[id] = !p.stateless
	case !p.open[id]:
		fail = ErrChatNotFound
	case p.refuseEnd && r.Method == MethodChatEnd:
		fail = ErrPermissionDenied
	case r.Method == MethodChatEnd:
		delete(p.open, id)
	}
	p.running[id]++
	if p.running[id] > 1 {
		fail = ErrChatBufferOverflow
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
	if fail != 0 {
		return arcFault(200, fail)(req, body)
	}
	if streamed {
		return stream("event: stream\ndata: {\"chatId\":\""+id+"\",\"message\":\"hi\"}\n\nevent: done\ndata: {\"chatId\":\""+id+"\",\"status\":\""+status+"\",\"done\":true}\n\n")(req, bytes.Clone(body))
	}
	return ok(`{"type":"chat","chat":{"chatId":"`+id+`","status":"`+status+`","message":{"role":"agent","parts":[{"type":"TextPart","content":"hi"}]}}}`)(req, body)
}

func (p *chatPeer) forget() {
	p.mu.Lock()
	defer p.mu.Unlock()
	clear(p.open)
}

func newChatPeer() *chatPeer { return &chatPeer{open: map[string]bool{}, running: map[string]int{}} }

// Unary and streamed turns share a chat, which begins, expires, begins again and
// ends.
func TestConversations(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newChatPeer()
		v := NewConversations(newTestClient(t, p, nil), &ConversationOptions{EndReason: "bye"})
		ctx := t.Context()
		say := func(streamed bool) string {
			t.Helper()
			if streamed {
				id := ""
				for ev, err := range v.Stream(ctx, "b", UserText("x")) {
					require.NoError(t, err)
					id = ev.ChatID
				}
				return id
			}
			chat, err := v.Send(ctx, "b", UserText("x"))
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

		for range v.Stream(ctx, "b", UserText("x")) {
			break // the turn is over, the chat is not
		}
		require.Equal(t, "b-4", say(false))
		require.NoError(t, v.Close(ctx))
		require.Empty(t, p.open)
		_, err = v.Send(ctx, "b", UserText("x"))
		require.ErrorIs(t, err, ErrClosed)
		for _, err := range v.Stream(ctx, "new", UserText("x")) {
			require.ErrorIs(t, err, ErrClosed)
		}
		_, err = v.ChatID(ctx, "b")
		require.ErrorIs(t, err, ErrClosed)
		require.ErrorIs(t, v.End(ctx, "b", ""), ErrClosed)
		require.NoError(t, v.Close(ctx))
	})
}

// ARC-D33: an agent without memory gets each message as the first one.
func TestConversationsStateless(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newChatPeer()
		p.stateless = true
		v := NewConversations(newTestClient(t, p, nil), nil)
		for range 2 {
			_, err := v.Send(t.Context(), "b", UserText("x"))
			require.NoError(t, err)
			_, _, err = collect(v.Stream(t.Context(), "b", UserText("x")))
			require.NoError(t, err)
		}
		require.NoError(t, v.Close(t.Context()))
		require.Equal(t, []string{"b chat.start", "b chat.start", "b chat.start", "b chat.start"}, p.log)
	})
}

// Turns with one agent follow each other, those with others do not wait, and one
// chat comes out.
func TestConversationsConcurrent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newChatPeer()
		v := NewConversations(newTestClient(t, p, nil), nil)
		begin := time.Now()
		var wg sync.WaitGroup
		for i := range 10 {
			for _, agent := range []string{"b", "c", "d"} {
				wg.Go(func() {
					var err error
					if i%2 == 0 {
						_, err = v.Send(t.Context(), agent, UserText("x"))
					} else {
						_, _, err = collect(v.Stream(t.Context(), agent, UserText("x")))
					}
					if err != nil {
						t.Error(err)
					}
				})
			}
		}
		wg.Wait()
		require.Equal(t, 10*time.Second, time.Since(begin))
		require.Equal(t, 3, p.begun)

		// Who waits for a turn can leave.
		wg.Go(func() { _, _ = v.Send(t.Context(), "b", UserText("x")) })
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		_, err := v.Send(ctx, "b", UserText("x"))
		require.ErrorIs(t, err, context.DeadlineExceeded)

		// Close waits for the turn that is under way, and refuses the next one.
		wg.Go(func() {
			time.Sleep(time.Millisecond)
			if _, err := v.Send(t.Context(), "b", UserText("x")); err != ErrClosed {
				t.Errorf("after Close: %v", err)
			}
		})
		require.NoError(t, v.Close(t.Context()))
		wg.Wait()
		require.Empty(t, p.open)
	})
}

// Close tells what it could not end, and ends the rest.
func TestConversationsCloseFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newChatPeer()
		v := NewConversations(newTestClient(t, p, nil), nil)
		for _, agent := range []string{"b", "c"} {
			_, err := v.Send(t.Context(), agent, UserText("x"))
			require.NoError(t, err)
		}
		p.refuseEnd = true
		err := v.Close(t.Context())
		require.ErrorIs(t, err, ErrPermissionDenied)
		require.ErrorContains(t, err, `"b"`)
		require.ErrorContains(t, err, `"c"`)
		p.refuseEnd = false
		require.NoError(t, v.Close(t.Context()))
		require.Empty(t, p.open)
	})
}
