// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package engines

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/accp"
	"github.com/fivewire/fivewire/store"
)

// accpSession is one process's part of a session.
func accpSession(t *testing.T, s store.Store) *accp.Session {
	session, err := accp.NewSession("server", "s1", &accp.SessionOptions{Persistence: accp.Persistence{Store: store.Sub(s, "accp/")}})
	require.NoError(t, err)
	return session
}

// TestACCPSession: several processes are one side of a session. Each number is
// given once, each frame is taken by one of them, and they share the tiers.
func TestACCPSession(t *testing.T) {
	each(t, func(t *testing.T, p *place) {
		ctx := t.Context()
		sessions := []*accp.Session{accpSession(t, p.open(t)), accpSession(t, p.open(t)), accpSession(t, p.open(t))}
		const each = 8
		var mu sync.Mutex
		numbers := map[int64]int{}
		var wg sync.WaitGroup
		for _, s := range sessions {
			wg.Go(func() {
				for range each {
					sent, err := s.Send(ctx, &accp.Message{Intent: accp.IntentPing, Op: "heartbeat"})
					if err != nil {
						t.Error(err)
						return
					}
					mu.Lock()
					numbers[sent.Message.Meta.Seq.N]++
					mu.Unlock()
				}
			})
		}
		wg.Wait()
		total := int64(each * len(sessions))
		for n := int64(1); n <= total; n++ {
			require.Equal(t, 1, numbers[n], "number %d", n)
		}
		for n := total + 1; n <= total+each; n++ {
			frame := fmt.Appendf(nil, "@a>ping:heartbeat{}[mid:%012x,seq:%d,ts:%d]", 0xa0000+n, n, time.Now().Unix())
			var accepted atomic.Int64
			for _, s := range sessions {
				wg.Go(func() {
					if _, err := s.Receive(ctx, frame); err == nil {
						accepted.Add(1)
					} else if !errors.Is(err, accp.ErrDuplicate) {
						t.Error(err)
					}
				})
			}
			wg.Wait()
			require.EqualValues(t, 1, accepted.Load(), "frame %d", n)
		}
		for i, scope := range []accp.Scope{accp.ScopeWarm, accp.ScopeCold} {
			require.NoError(t, sessions[i].Put(ctx, scope, fmt.Sprint("k", i), accp.String("shared"), 0))
		}
		for i, ref := range []string{"warm.k0", "cold.k1"} {
			v, err := sessions[2].Resolve(ctx, ref)
			require.NoError(t, err, ref)
			text, _ := v.Text()
			require.Equal(t, "shared", text, i)
		}

		// A later process continues at the same state.
		later := accpSession(t, p.open(t))
		sent, err := later.Send(ctx, &accp.Message{Intent: accp.IntentPing, Op: "heartbeat"})
		require.NoError(t, err)
		require.Greater(t, sent.Message.Meta.Seq.N, total)
	})
}

// accpChild serves transactions, which it logs when they begin, and state.
func accpChild(ctx context.Context, s store.Store) error {
	srv, err := accp.NewServer("server", &accp.ServerOptions{Auth: accp.Auth{AllowAnonymous: true}, Logger: quiet,
		Persistence: accp.Persistence{Store: store.Sub(s, "accp/")}})
	if err != nil {
		return err
	}
	srv.Handle(accp.IntentReq, accp.OpTransaction, accp.HandlerFunc(func(ctx context.Context, w *accp.ReplyWriter, m *accp.Message) error {
		if _, err := s.Append(ctx, "runs", accp.NewID(), []byte(m.Params.Text("transaction_id")), 0); err != nil {
			return err
		}
		time.Sleep(rand.N(20 * time.Millisecond))
		return w.SendResult(accp.Params{{Key: "token", Value: accp.String(accp.NewID())}})
	}))
	srv.Handle(accp.IntentReq, "note", accp.HandlerFunc(func(_ context.Context, w *accp.ReplyWriter, m *accp.Message) error { return w.SendResult(nil) }))
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	fmt.Println(l.Addr())
	return http.Serve(l, srv)
}

// An accpAgent makes transactions and changes the shared state of its session. After an error it begins
// another life, without memory.
type accpAgent struct {
	url, name string
	tokens    map[string]string // of the acknowledged transactions
	unknown   int               // transactions that ended with E9999
	updates   [2]int64          // acknowledged, and tried
}

func (a *accpAgent) client(t *testing.T) *accp.Client {
	c, err := accp.NewClient(a.url, a.name, &accp.ClientOptions{SessionID: "of_" + a.name, HTTPClient: own(t), Logger: quiet,
		Timing: accp.ClientTiming{Timeout: 5 * time.Second}, Retry: &accp.RetryPolicy{MaxAttempts: 6, Base: 50 * time.Millisecond}})
	require.NoError(t, err)
	return c
}

func pay(ctx context.Context, c *accp.Client, id string) (token string, err error) {
	m, err := accp.NewMessage(accp.IntentReq, accp.OpTransaction, accp.SchemaTransaction, struct {
		ID string `accp:"transaction_id"`
	}{id})
	if err != nil {
		return "", err
	}
	m, err = c.Call(ctx, m, nil)
	if err != nil {
		return "", err
	}
	return m.Params.Text("token"), nil
}

func (a *accpAgent) work(t *testing.T, stop <-chan struct{}) {
	ctx := context.Background()
	c := a.client(t)
	defer func() { _ = c.Close() }()
	for n := 0; ; n++ {
		select {
		case <-stop:
			return
		default:
		}
		id := fmt.Sprint(a.name, "_", n)
		for isOpen := true; isOpen; {
			token, err := pay(ctx, c, id)
			switch {
			case err == nil:
				a.tokens[id], isOpen = token, false
			case errors.Is(err, accp.ErrInternal):
				a.unknown++
				isOpen = false
			default:
				_ = c.Close()
				c = a.client(t)
			}
		}
		a.updates[1]++
		err := c.Update(ctx, func(state accp.Params) (accp.Params, error) {
			v, _ := state.Get("n")
			n, _ := v.Int()
			return state.Set("n", accp.Int(n+1)), nil
		})
		if err == nil {
			a.updates[0]++
		}
	}
}

// notes posts frames of one session, each until it is answered, and returns those that were.
func notes(t *testing.T, url string, stop <-chan struct{}) (frames []string) {
	hc := own(t)
	for seq, n := int64(1), 1; ; n++ {
		select {
		case <-stop:
			return frames
		default:
		}
		frame := fmt.Sprintf("@writer>req:note{k:note%d}[mid:%012x,seq:%d,ts:%d,sid:notes]", n, n, seq, time.Now().Unix())
		for {
			answer, err := postFrame(hc, url, frame)
			if err != nil {
				continue
			}
			if strings.Contains(answer, "done:note") {
				frames = append(frames, frame)
			} else if !strings.Contains(answer, "code:E3002") && !strings.Contains(answer, "code:E3003") {
				t.Errorf("%s is answered by %s", frame, answer)
			}
			seq += 2
			if m, err := new(accp.Codec).Decode([]byte(answer)); err == nil {
				seq = m.Meta.Seq.N + 1
			}
			break
		}
	}
}

func postFrame(hc *http.Client, url, frame string) (string, error) {
	res, err := hc.Post(url, accp.MediaType, strings.NewReader(frame))
	if err != nil {
		return "", err
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	return strings.TrimSpace(string(body)), err
}

// TestACCPKilled kills servers while agents make transactions, change state and send notes. No transaction
// runs twice, and acknowledged outcomes, states, numbers and messages are stored (ACCP-D71, ACCP-D72).
func TestACCPKilled(t *testing.T) {
	eachShared(t, func(t *testing.T, p *place) {
		ctx, s, f := t.Context(), p.open(t), newFront(t)
		servers := []*child{p.start(t, "accp"), p.start(t, "accp")}
		f.put(servers[0].address)
		url := f.URL + accp.FramesPath
		stop := make(chan struct{})
		var work sync.WaitGroup
		var agents []*accpAgent
		for i := range 2 {
			a := &accpAgent{url: url, name: fmt.Sprint("agent", i), tokens: map[string]string{}}
			agents = append(agents, a)
			work.Go(func() { a.work(t, stop) })
		}
		var frames []string
		work.Go(func() { frames = notes(t, url, stop) })
		for round := range crashRounds(t, 6) {
			time.Sleep(150*time.Millisecond + rand.N(150*time.Millisecond))
			servers[round%2].kill()
			f.put(servers[1-round%2].address)
			servers[round%2] = p.start(t, "accp")
		}
		close(stop)
		work.Wait()

		runs := count(t, s, "runs")
		for id, n := range runs {
			require.Equal(t, 1, n, "runs of %s", id)
		}
		for _, a := range agents {
			require.NotEmpty(t, a.tokens)
			c := a.client(t)
			for id, token := range a.tokens {
				require.Equal(t, 1, runs[id], id)
				got, err := pay(ctx, c, id)
				require.NoError(t, err)
				require.Equal(t, token, got, "the outcome of %s", id)
			}
			require.NoError(t, c.Close())
			session, err := accp.NewSession("server", "of_"+a.name, &accp.SessionOptions{Persistence: accp.Persistence{Store: store.Sub(s, "accp/")}})
			require.NoError(t, err)
			require.NoError(t, session.Reload(ctx))
			_, state := session.State()
			v, _ := state.Get("n")
			n, _ := v.Int()
			require.GreaterOrEqual(t, n, a.updates[0], "acknowledged changes")
			require.LessOrEqual(t, n, a.updates[1], "no change is applied twice")
			t.Logf("%s: %d outcomes, %d unknown, %d of %d changes", a.name, len(a.tokens), a.unknown, n, a.updates[1])
		}
		require.Equal(t, runs, count(t, s, "runs"), "an outcome runs nothing")

		require.NotEmpty(t, frames)
		session, err := accp.NewSession("server", "notes", &accp.SessionOptions{Persistence: accp.Persistence{Store: store.Sub(s, "accp/")}})
		require.NoError(t, err)
		require.NoError(t, session.Reload(ctx))
		var history strings.Builder
		for _, line := range session.ModelContext(1<<20, 1<<20).Lines {
			history.WriteString(line + "\n")
		}
		checkpoints := session.Checkpoints()
		for _, c := range checkpoints {
			v, err := session.Resolve(ctx, "cold."+c.ID)
			require.NoError(t, err)
			for _, x := range v.Elements() {
				text, _ := x.Text()
				history.WriteString(text + "\n")
			}
		}
		hc := own(t)
		for _, frame := range frames[max(0, len(frames)-200):] { // older checkpoints are dropped
			head, _, _ := strings.Cut(frame, "[")
			require.Contains(t, history.String(), head, "an answered message")
			answer, err := postFrame(hc, url, frame)
			require.NoError(t, err)
			require.Contains(t, answer, "code:E3002", "a number that was used")
		}
		t.Logf("%d notes, %d checkpoints", len(frames), len(checkpoints))
	})
}
