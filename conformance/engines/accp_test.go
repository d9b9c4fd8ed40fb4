// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package engines

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/accp"
	"github.com/fivewire/fivewire/accp/profile"
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
					sent, err := s.Send(ctx, &accp.Message{Intent: "ping", Op: "heartbeat"})
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
		sent, err := later.Send(ctx, &accp.Message{Intent: "ping", Op: "heartbeat"})
		require.NoError(t, err)
		require.Greater(t, sent.Message.Meta.Seq.N, total)
	})
}

// accpChild serves transactions, which it logs when they begin, and state.
func accpChild(_ context.Context, s store.Store) error {
	srv, err := accpDesk(s)
	if err != nil {
		return err
	}
	return serveChild(srv)
}

func accpDesk(s store.Store) (*accp.Server, error) {
	srv, err := accp.NewServer("server", &accp.ServerOptions{Auth: accp.Auth{AllowAnonymous: true}, Logger: quiet,
		Persistence: accp.Persistence{Store: store.Sub(s, "accp/"), InstanceID: os.Getenv(instanceEnv)}})
	if err != nil {
		return nil, err
	}
	srv.Handle(accp.IntentReq, profile.OpTransaction, accp.HandlerFunc(func(ctx context.Context, w *accp.ReplyWriter, m *accp.Message) error {
		// A write whose context ends may be made although it fails: such a transaction is not run again.
		if _, err := s.Append(ctx, "runs", accp.NewID(), []byte(m.Params.Text("transaction_id")), 0); err != nil {
			return err
		}
		time.Sleep(rand.N(20 * time.Millisecond))
		return w.SendResult(accp.Params{{Key: "token", Value: accp.String(accp.NewID())}})
	}))
	srv.Handle(accp.IntentReq, "note", accp.HandlerFunc(func(_ context.Context, w *accp.ReplyWriter, m *accp.Message) error { return w.SendResult(nil) }))
	return srv, nil
}

const accpAgentEnv = "ENGINES_ACCP_AGENT" // name and URL

// accpClient returns the client of an agent. The session of the first agent is stored, others have no memory.
func accpClient(s store.Store, name, url string, hc *http.Client) (*accp.Client, error) {
	o := &accp.ClientOptions{SessionID: "of_" + name, HTTPClient: hc, Logger: quiet,
		Timing: accp.ClientTiming{Timeout: 5 * time.Second}, Retry: &accp.RetryPolicy{MaxAttempts: 6, Base: 50 * time.Millisecond}}
	if name == accpAgents[0] {
		o.Session.Persistence.Store = store.Sub(s, "agents/")
	}
	return accp.NewClient(url, name, o)
}

var accpAgents = []string{"agent0", "agent1"}

func pay(ctx context.Context, c *accp.Client, id string) (token string, err error) {
	m, err := accp.NewMessage(accp.IntentReq, profile.OpTransaction, profile.SchemaTransaction, struct {
		ID string `json:"transaction_id"`
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

// accpAgentChild makes transactions and changes the shared state of its session. It logs both before and after, so
// its next life repeats the transaction without an answer.
func accpAgentChild(ctx context.Context, s store.Store) error {
	name, url, _ := strings.Cut(os.Getenv(accpAgentEnv), " ")
	c, err := accpClient(s, name, url, nil)
	if err != nil {
		return err
	}
	requested, err := records(ctx, s, "requested/"+name)
	if err != nil {
		return err
	}
	answered, err := records(ctx, s, "answered/"+name)
	if err != nil {
		return err
	}
	fmt.Println(name)
	log := func(stream, text string) {
		if _, lerr := s.Append(ctx, stream+"/"+name, accp.NewID(), []byte(text), 0); lerr != nil {
			err = lerr
		}
	}
	for err == nil {
		if len(requested) == len(answered) {
			requested = append(requested, fmt.Sprint(name, "_", len(requested)))
			log("requested", requested[len(requested)-1])
		}
		id := requested[len(requested)-1]
		token, perr := pay(ctx, c, id)
		if perr == nil || errors.Is(perr, accp.ErrInternal) {
			answered = append(answered, id)
			log("answered", id+" "+token)
		} else {
			_ = c.Close()
			if c, err = accpClient(s, name, url, nil); err != nil {
				return err
			}
		}
		log("tried", accp.NewID())
		uerr := c.Update(ctx, func(state accp.Params) (accp.Params, error) {
			v, _ := state.Get("n")
			n, _ := v.Int()
			return state.Set("n", accp.Int(n+1)), nil
		})
		if uerr == nil {
			log("changed", accp.NewID())
		}
	}
	return err
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

// TestACCPKilled disturbs servers and agents in turns while agents make transactions, change state and send notes. No
// transaction runs twice, and acknowledged outcomes, states, numbers and messages are stored (ACCP-D71, ACCP-D72).
func TestACCPKilled(t *testing.T) {
	eachDisturbed(t, func(t *testing.T, p *place, d disturbance) {
		ctx, s, f := t.Context(), p.open(t), newFront(t)
		servers := []*child{p.start(t, "accp"), p.start(t, "accp")}
		f.put(servers[0].address)
		url := f.URL + accp.FramesPath
		agents := make([]*child, len(accpAgents))
		for i, name := range accpAgents {
			t.Setenv(accpAgentEnv, name+" "+url)
			agents[i] = p.start(t, "accp agent")
		}
		stop := make(chan struct{})
		var work sync.WaitGroup
		var frames []string
		work.Go(func() { frames = notes(t, url, stop) })
		for round := range d.rounds(t, 8) {
			time.Sleep(150*time.Millisecond + rand.N(150*time.Millisecond))
			i := round / 2 % 2
			if round%2 == 1 {
				t.Setenv(accpAgentEnv, accpAgents[i]+" "+url)
				agents[i] = d.apply(t, p, agents[i], "accp agent")
				continue
			}
			lives := servers[1-i].address
			time.AfterFunc(10*time.Millisecond, func() { f.put(lives) })
			servers[i] = d.apply(t, p, servers[i], "accp")
		}
		for _, name := range accpAgents {
			soon(t, "an answer for "+name, func() bool { return len(count(t, s, "answered/"+name)) > 0 })
		}
		close(stop)
		work.Wait()
		for _, a := range agents {
			a.kill()
		}
		for _, name := range accpAgents {
			checkAgent(t, s, name, url)
		}
		runs := count(t, s, "runs")
		for id, n := range runs {
			require.Equal(t, 1, n, "runs of %s", id)
		}
		for _, name := range accpAgents { // an outcome runs nothing
			for id := range count(t, s, "requested/"+name) {
				c, err := accpClient(s, name, url, own(t))
				require.NoError(t, err)
				if _, err = pay(ctx, c, id); err != nil {
					require.ErrorIs(t, err, accp.ErrInternal)
				}
				require.NoError(t, c.Close())
			}
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
		recordService(t, p, "ACCP", len(servers)+len(agents), d.name, d.rounds(t, 8), len(frames)+len(runs))
		t.Logf("%d notes, %d checkpoints", len(frames), len(checkpoints))
	})
}

// checkAgent checks the outcomes and the state of an agent after its last life, which a kill has ended.
func checkAgent(t *testing.T, s store.Store, name, url string) {
	ctx := t.Context()
	c, err := accpClient(s, name, url, own(t))
	require.NoError(t, err)
	defer func() { require.NoError(t, c.Close()) }()
	tokens, unknown := map[string]string{}, 0
	for line := range count(t, s, "answered/"+name) {
		id, token, _ := strings.Cut(line, " ")
		if token == "" {
			unknown++
		}
		tokens[id] = token
	}
	runs, deadline := count(t, s, "runs"), time.Now().Add(time.Minute)
	for id := range count(t, s, "requested/"+name) {
		token, isAnswered := tokens[id]
		got, err := pay(ctx, c, id)
		for errors.Is(err, accp.ErrTimeout) && time.Now().Before(deadline) { // until the lease of the killed server ends
			got, err = pay(ctx, c, id)
		}
		switch {
		case isAnswered && token != "":
			require.Equal(t, 1, runs[id], id)
			require.NoError(t, err)
			require.Equal(t, token, got, "the outcome of %s", id)
		case err != nil:
			require.ErrorIs(t, err, accp.ErrInternal, id)
		}
	}
	changed, tried := len(count(t, s, "changed/"+name)), len(count(t, s, "tried/"+name))
	sides := map[string]string{"server": "accp/"}
	if name == accpAgents[0] {
		sides[name] = "agents/"
	}
	for self, prefix := range sides {
		session, err := accp.NewSession(self, "of_"+name, &accp.SessionOptions{Persistence: accp.Persistence{Store: store.Sub(s, prefix)}})
		require.NoError(t, err)
		require.NoError(t, session.Reload(ctx))
		_, state := session.State()
		v, _ := state.Get("n")
		n, _ := v.Int()
		require.GreaterOrEqual(t, n, int64(changed), "acknowledged changes at %s", self)
		require.LessOrEqual(t, n, int64(tried), "no change is applied twice")
		t.Logf("%s at %s: %d outcomes, %d unknown, %d of %d changes", name, self, len(tokens), unknown, n, tried)
	}
}
