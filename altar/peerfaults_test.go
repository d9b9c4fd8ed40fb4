// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package altar

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// A panickingStream is a byte stream of a program whose methods panic.
type panickingStream struct {
	net.Conn
	reads, writes bool
}

func (s *panickingStream) Read(p []byte) (int, error) {
	if s.reads {
		panic("a secret")
	}
	return s.Conn.Read(p)
}

func (s *panickingStream) Write(p []byte) (int, error) {
	if s.writes {
		panic("a secret")
	}
	return s.Conn.Write(p)
}

func (s *panickingStream) Close() error {
	_ = s.Conn.Close()
	panic("a secret")
}

// A byte stream that panics ends its connection alone, at each side (ALT-D34).
func TestPanicOfStreamEndsConnectionAlone(t *testing.T) {
	for _, name := range []string{"Read", "Write", "Close"} {
		t.Run(name, func(t *testing.T) {
			h := testHost(t, nil)
			stream := func() (near, far io.ReadWriteCloser) {
				a, b := net.Pipe()
				return &panickingStream{Conn: a, reads: name == "Read", writes: name == "Write"}, b
			}
			near, far := stream()
			served := make(chan error, 1)
			go func() { served <- h.Serve(context.Background(), NewStreamConn(near, nil), testUser) }()
			go func() { // a peer that ends after one answer
				_, _ = io.WriteString(far, `{"type":"Ping"}`+"\n")
				_, _ = far.Read(make([]byte, 1))
				_ = far.Close()
			}()
			<-served
			require.Zero(t, h.Stats().Connections)

			c := must(NewClient(func(context.Context) (Conn, error) {
				near, far := stream()
				go func() { _ = h.Serve(context.Background(), NewStreamConn(far, nil), testUser) }()
				return NewStreamConn(near, nil), nil
			}, nil))
			if err := c.Ping(t.Context()); name != "Close" {
				require.ErrorIs(t, err, ErrDisconnected)
			}
			require.NoError(t, c.Close())

			local, remote := stream()
			go func() { _, _ = io.Copy(io.Discard, remote) }()
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			_ = testRuntime("r1", nil).Run(ctx, NewStreamConn(local, nil))
		})
	}
}

type panickingTransport struct{}

func (panickingTransport) RoundTrip(*http.Request) (*http.Response, error) { panic("a secret") }

func TestPanicOfRoundTripperEndsConnectionAlone(t *testing.T) {
	c := must(NewClient(func(ctx context.Context) (Conn, error) {
		return DialHTTP(ctx, "http://127.0.0.1:1", &HTTPDialOptions{HTTPClient: &http.Client{Transport: panickingTransport{}}})
	}, nil))
	require.ErrorIs(t, c.Ping(t.Context()), ErrDisconnected)
	require.NoError(t, c.Close())
}

// A Runtime in the process of its Host answers more requests than its queue holds.
func TestRuntimeInProcessAnswersMoreRequestsThanQueued(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := testHost(t, &HostOptions{Limits: Limits{RuntimeQueueLimit: 4}})
		w := connect(t, h, testUser)
		for i := range 20 {
			w.session(fmt.Sprint("s", i))
		}
		ctx, cancel := context.WithCancel(t.Context())
		result := make(chan error, 1)
		conn, err := h.Dial(testService)
		require.NoError(t, err)
		go func() { result <- testRuntime("r1", &RuntimeOptions{DisableStanding: true}).Run(ctx, conn) }()
		time.Sleep(time.Second)
		w.send(add("i", "s19"))
		require.Equal(t, "3", string(next[*ToolResult](w).Payload))
		cancel()
		require.NoError(t, <-result)
	})
}

// blockedConn is a connection of a program whose Close does not return.
type blockedConn struct {
	*scripted
	release chan struct{}
}

func (c blockedConn) Close() error {
	<-c.release
	return c.scripted.Close()
}

func TestClientCloseLeavesConnectionWhoseCloseBlocks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		conn := blockedConn{newScripted(func(Message) {}), make(chan struct{})}
		c := must(NewClient(func(context.Context) (Conn, error) { return conn, nil }, nil))
		go func() { _ = c.Ping(context.Background()) }()
		synctest.Wait()
		start := time.Now()
		closed := make(chan error, 1)
		go func() { closed <- c.Close() }()
		select {
		case err := <-closed:
			require.NoError(t, err)
			require.LessOrEqual(t, time.Since(start), 2*time.Second)
		case <-time.After(time.Minute):
			t.Error("Close does not return")
		}
		close(conn.release)
	})
}

// A call that cannot be sent holds no memory until its Timeout.
func TestUnsentCallHoldsNothing(t *testing.T) {
	h := testHost(t, nil)
	c := must(NewClient(func(context.Context) (Conn, error) {
		near, far := net.Pipe()
		go func() { _ = h.Serve(context.Background(), NewStreamConn(far, nil), testUser) }()
		return NewStreamConn(near, &StreamConnOptions{MaxOutput: 1000}), nil
	}, nil))
	defer func() { require.NoError(t, c.Close()) }()
	s := must(c.CreateSession(t.Context(), nil))
	large := textIn{strings.Repeat("x", 1<<20)}
	const n = 60
	size := heapOf(n, func() {
		for range n {
			_, err := s.Call(t.Context(), "math/add", large, &CallOptions{Timeout: time.Hour})
			require.ErrorIs(t, err, ErrTooLarge)
		}
	})
	require.Less(t, size, int64(100<<10))
}
