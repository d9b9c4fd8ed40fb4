// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/conformance/fault"
)

// A webNode is an HTTP server that answers with the body, or a client.
type webNode struct {
	*View
	server *http.Server
	client *http.Client
}

func (n *webNode) Close() {
	if n.server != nil {
		_ = n.server.Close()
	} else {
		n.client.CloseIdleConnections()
	}
}

func startServer(v *View) (Instance, error) {
	l, err := v.Listen("server:80")
	if err != nil {
		return nil, err
	}
	s := &http.Server{ReadTimeout: 20 * time.Second, ErrorLog: log.New(io.Discard, "", 0), Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, err := io.Copy(w, r.Body); err != nil {
			panic(http.ErrAbortHandler) // a cut request has no complete answer
		}
	})}
	go func() { _ = s.Serve(l) }()
	return &webNode{View: v, server: s}, nil
}

func startClient(v *View) (Instance, error) {
	return &webNode{View: v, client: &http.Client{
		Transport: v.RoundTripper(&http.Transport{DialContext: v.Dial, DisableKeepAlives: true}),
	}}, nil
}

func (n *webNode) echo(ctx context.Context, text string) (string, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://server/", strings.NewReader(text))
	if err != nil {
		return "", err
	}
	res, err := n.client.Do(r)
	if err != nil {
		return "", err
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	return string(b), err
}

// playEcho requires that two clients get their answers: without faults always, and otherwise the right ones or errors.
func playEcho(w *World) {
	w.UseNetwork()
	w.Node("s", startServer)
	clients := []*Node{w.Node("a", startClient), w.Node("b", startClient)}
	corrupts := false
	for _, k := range w.swarm.kinds {
		corrupts = corrupts || k == "corrupt"
	}
	echo := func(ctx context.Context, id int, text string) {
		n, ok := clients[id%2].Instance().(*webNode)
		if !ok {
			return
		}
		ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
		defer cancel()
		got, err := w.Call(id, "echo", func() (string, error) { return n.echo(ctx, text) })
		switch {
		case err == nil && got != text && !corrupts:
			w.Failf("echo", n.Node.Name(), "got %d bytes, want %d", len(got), len(text))
		case err != nil && text == "last":
			w.Failf("echo", n.Node.Name(), "after the faults: %v", err)
		}
	}
	w.Play(20*time.Second, 2, time.Second, func(c *Client) {
		echo(context.Background(), c.ID, strings.Repeat("x", c.IntN(200_000)))
	})
	w.Settle()
	echo(context.Background(), 0, "last")
	echo(context.Background(), 1, "last")
}

func TestSeed(t *testing.T) {
	t.Run("echo", func(t *testing.T) { Seeds(t, playEcho) })
}

func TestRunComparesTraces(t *testing.T) {
	for seed := range uint64(20) {
		Run(t, seed, playEcho)
	}
}

// inWorld runs f in a world without faults, with the views of two nodes.
func inWorld(t *testing.T, f func(w *World, a, b *View)) {
	t.Helper()
	Run(t, 1, func(w *World) {
		w.swarm.kinds = nil
		var views []*View
		for _, name := range []string{"a", "b"} {
			n := w.Node(name, func(v *View) (Instance, error) { return idle{v}, nil })
			_ = w.Sleep(context.Background(), time.Millisecond)
			views = append(views, n.Instance().(idle).View)
		}
		f(w, views[0], views[1])
	})
}

type idle struct{ *View }

func (idle) Close() {}

// pair returns the ends of a connection from a to b.
func pair(t *testing.T, a, b *View) (client, server net.Conn) {
	t.Helper()
	l, err := b.Listen("x")
	require.NoError(t, err)
	client, err = a.Dial(context.Background(), "tcp", "x")
	require.NoError(t, err)
	server, err = l.Accept()
	require.NoError(t, err)
	return client, server
}

func TestWindowBlocksWriter(t *testing.T) {
	inWorld(t, func(w *World, a, b *View) {
		client, server := pair(t, a, b)
		defer client.Close()
		defer server.Close()
		require.NoError(t, client.SetWriteDeadline(time.Now().Add(time.Second)))
		total := 0
		for {
			n, err := client.Write(make([]byte, 1000))
			total += n
			if err != nil {
				require.ErrorContains(t, err, "timeout")
				break
			}
		}
		require.Equal(t, window/1000*1000, total)
		_, err := io.ReadFull(server, make([]byte, total))
		require.NoError(t, err)
	})
}

func TestPartitionHasOneDirection(t *testing.T) {
	inWorld(t, func(w *World, a, b *View) {
		client, server := pair(t, a, b)
		defer client.Close()
		defer server.Close()
		w.network.cut("a", "b")
		for _, text := range []string{"first", "second"} {
			_, err := client.Write([]byte(text))
			require.NoError(t, err)
		}
		_, err := server.Write([]byte("back"))
		require.NoError(t, err)
		buf := make([]byte, 11)
		n, err := client.Read(buf)
		require.NoError(t, err)
		require.Equal(t, "back", string(buf[:n]))
		start := w.Now()
		go func() {
			_ = w.Sleep(context.Background(), time.Minute)
			w.network.join("a", "b")
		}()
		_, err = io.ReadFull(server, buf)
		require.NoError(t, err)
		require.Equal(t, "firstsecond", string(buf))
		require.GreaterOrEqual(t, w.Now()-start, time.Minute)
	})
}

func TestCrashResetsConnections(t *testing.T) {
	inWorld(t, func(w *World, a, b *View) {
		client, _ := pair(t, a, b)
		b.Node.Crash()
		_, err := client.Read(make([]byte, 1))
		require.ErrorIs(t, err, errReset.Err)
		_, err = a.Dial(context.Background(), "tcp", "x")
		require.ErrorContains(t, err, "refused")
		_, err = b.Listen("x")
		require.Error(t, err, "listen after the crash")
	})
}

func TestRunReportsViolationAndLeak(t *testing.T) {
	res := run(t, 1, func(w *World) { w.Failf("X", "", "broken") }, nil)
	require.Equal(t, &Failure{"X", "", "broken"}, res.failure)
	res = run(t, 1, func(w *World) { go func() { <-make(chan struct{}) }() }, nil)
	require.Equal(t, leak, res.failure.Invariant)
}

func TestDifferentTracesAreFound(t *testing.T) {
	n := 0
	play := func(w *World) {
		n++
		w.Event("a", "count", fmt.Sprint(n), "")
	}
	one, two := run(t, 1, play, nil), run(t, 1, play, nil)
	require.Contains(t, difference(one.events, two.events), "count")
	require.Empty(t, difference(one.events, one.events))
}

func TestShrinkKeepsNeededFaults(t *testing.T) {
	r := runner{t: t, profile: func(w *World) {
		isHit := false
		for i := range 20 {
			if w.permit(fmt.Sprint("f", i), "fault") && i == 13 {
				isHit = true
			}
		}
		if isHit {
			w.Failf("X", "", "broken")
		}
	}}
	ids, res := r.minimize(1)
	require.Equal(t, []string{"f13"}, ids)
	require.Equal(t, "X", res.failure.Invariant)
	require.Less(t, r.runs, 40)
}

var errStart = errors.New("start")

func TestNodeStartsAgainAfterErrorAndCrash(t *testing.T) {
	var starts atomic.Int64
	res := run(t, 1, func(w *World) {
		w.swarm.kinds = nil
		n := w.Node("a", func(v *View) (Instance, error) {
			if starts.Add(1) == 1 {
				return nil, errStart
			}
			return idle{}, nil
		})
		_ = w.Sleep(context.Background(), 2*time.Second)
		require.NotNil(t, n.Instance())
		n.Crash()
		require.Nil(t, n.Instance())
		n.Restart()
		_ = w.Sleep(context.Background(), time.Second)
		require.NotNil(t, n.Instance())
	}, nil)
	require.Nil(t, res.failure)
	require.EqualValues(t, 3, starts.Load())
}

// The delay of a fault ends at another nanosecond than a context of the same length. Otherwise the runtime would
// choose which of the two comes first.
func TestFaultEndsAtOwnNanosecond(t *testing.T) {
	run(t, 1, func(w *World) {
		n := w.Node("a", startClient)
		for _, f := range []*fault.Fault{{Action: fault.Reorder}, {Action: fault.Hang, Delay: time.Second}} {
			n.permit(f)
			require.Greater(t, f.Delay, time.Second, f.Action)
		}
	}, nil)
}
