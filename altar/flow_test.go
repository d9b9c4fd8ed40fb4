// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package altar

import (
	"context"
	"encoding/json"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fivewire/fivewire/internal/race"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// countingRuntime has a stream tool that counts the sent chunks and the ended calls.
func countingRuntime(id string) (rt *Runtime, sent, calls *atomic.Int64) {
	rt, sent, calls = testRuntime(id, nil), new(atomic.Int64), new(atomic.Int64)
	rt.names["count"].stream = StreamHandlerFunc(func(_ context.Context, call *ToolCall, out *ChunkWriter) error {
		defer calls.Add(1)
		var in countIn
		if err := call.Decode(&in); err != nil {
			return err
		}
		for i := range in.N {
			if err := out.Send(i); err != nil {
				return err
			}
			sent.Add(1)
		}
		return nil
	})
	return rt, sent, calls
}

// A reader that stops holds the tool, and no other call; when it continues, it gets all chunks
// (ALT-D37).
func TestSlowReaderHoldsTheTool(t *testing.T) {
	for _, tr := range transports[:2] {
		t.Run(tr.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				rt, sent, _ := countingRuntime("r1")
				s := start(t, tr.dial, nil, rt)
				sess := newSession(t, s)
				n := int64(0)
				for payload, err := range sess.Stream(t.Context(), "count", countIn{3000}, nil) {
					require.NoError(t, err)
					var got int64
					require.NoError(t, json.Unmarshal(payload, &got))
					require.Equal(t, n, got)
					if n++; n%1000 == 1 {
						time.Sleep(time.Minute) // longer than the time limit of the contract
						synctest.Wait()
						require.LessOrEqual(t, sent.Load(), n+maxClientCredit+64, "the tool is ahead")
						sum, err := CallAs[int64](t.Context(), sess, "math/add", addIn{1, 2}, nil)
						require.NoError(t, err)
						require.Equal(t, int64(3), sum)
						other := 0
						for _, err := range sess.Stream(t.Context(), "count", countIn{500}, nil) {
							require.NoError(t, err)
							other++
						}
						require.Equal(t, 500, other)
						sent.Add(-500)
					}
				}
				require.Equal(t, int64(3000), n)
			})
		})
	}
}

// A tool as fast as it can be and a reader that pauses: everything arrives once, in order, over
// every transport.
func TestFastToolOverTransports(t *testing.T) {
	total := int64(20_000)
	if race.Enabled {
		total = 4000
	}
	for _, tr := range transports {
		t.Run(tr.name, func(t *testing.T) {
			rt, _, _ := countingRuntime("r1")
			s := start(t, tr.dial, nil, rt)
			sess, err := s.c.CreateSession(t.Context(), nil)
			require.NoError(t, err)
			n := int64(0)
			for payload, err := range sess.Stream(t.Context(), "count", countIn{total}, nil) {
				require.NoError(t, err)
				var got int64
				require.NoError(t, json.Unmarshal(payload, &got))
				require.Equal(t, n, got)
				if n++; n%2000 == 0 {
					time.Sleep(time.Millisecond)
				}
			}
			require.Equal(t, total, n)
		})
	}
}

// Streams whose readers pause together need more memory than their principal has: they wait, and lose nothing
// (ALT-D38).
func TestPausingReadersShareMemory(t *testing.T) {
	const chunks = 100
	for name, tt := range map[string]struct {
		limits                     Limits
		sessions, perSession, size int
	}{
		"session":      {Limits{MaxMemoryPerSession: 1 << 20}, 1, 30, 1000},
		"principal":    {Limits{MaxMemoryPerPrincipal: 2 << 20}, 10, 4, 4000},
		"all":          {Limits{MaxMemory: 4 << 20}, 10, 4, 4000},
		"large chunks": {Limits{}, 1, 30, 30_000},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				rt := testRuntime("r1", nil)
				text := strings.Repeat("x", tt.size)
				rt.names["count"].stream = StreamHandlerFunc(func(_ context.Context, _ *ToolCall, out *ChunkWriter) error {
					for range chunks {
						if err := out.Send(text); err != nil {
							return err
						}
					}
					return nil
				})
				s := start(t, pipeTransport, &HostOptions{Limits: tt.limits}, rt)
				var wg sync.WaitGroup
				for i := range tt.sessions {
					sess := newSession(t, s)
					for range tt.perSession {
						wg.Go(func() {
							n := 0
							for _, err := range sess.Stream(t.Context(), "count", countIn{1}, nil) {
								if !assert.NoError(t, err, "session %d", i) {
									return
								}
								if n++; n%20 == 0 {
									time.Sleep(time.Minute)
								}
							}
							assert.Equal(t, chunks, n)
						})
					}
				}
				wg.Wait()
				synctest.Wait()
				require.Zero(t, usage(s.h, "memory", "all").Used)
			})
		})
	}
}

// Collected streams that need more memory than there is do not wait for each other: some end, and the others complete.
func TestCollectedStreamsShareMemory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rt := testRuntime("r1", nil)
		text := strings.Repeat("x", 10_000)
		rt.names["count"].stream = StreamHandlerFunc(func(_ context.Context, _ *ToolCall, out *ChunkWriter) error {
			for range 60 {
				if err := out.Send(text); err != nil {
					return err
				}
				time.Sleep(time.Millisecond)
			}
			return nil
		})
		s := start(t, pipeTransport, &HostOptions{Limits: Limits{MaxMemoryPerSession: 1 << 20}}, rt)
		sess := newSession(t, s)
		results := make(chan error)
		for range 3 {
			go func() {
				_, err := sess.Call(t.Context(), "count", countIn{1}, nil)
				results <- err
			}()
		}
		complete := 0
		for range 3 {
			if err := <-results; err == nil {
				complete++
			} else {
				require.ErrorIs(t, err, ReasonOverloaded)
			}
		}
		require.Equal(t, 1, complete)
		synctest.Wait()
		require.Zero(t, usage(s.h, "memory", "all").Used)
	})
}

// The chunks that idle streams keep for repeats refuse no call.
func TestIdleStreamsRefuseNoCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rt := testRuntime("r1", nil)
		text := strings.Repeat("x", 1000)
		rt.names["count"].stream = StreamHandlerFunc(func(ctx context.Context, _ *ToolCall, out *ChunkWriter) error {
			for range 200 {
				if err := out.Send(text); err != nil {
					return err
				}
			}
			<-ctx.Done()
			return nil
		})
		s := start(t, pipeTransport, &HostOptions{Limits: Limits{MaxMemoryPerPrincipal: 4 << 20}, Timing: Timing{CallTimeout: time.Hour}}, rt)
		var wg sync.WaitGroup
		ctx, cancel := context.WithCancel(t.Context())
		for range 30 {
			sess := newSession(t, s)
			wg.Go(func() {
				for _, err := range sess.Stream(ctx, "count", countIn{1}, nil) {
					assert.True(t, err == nil || ctx.Err() != nil, err)
				}
			})
		}
		synctest.Wait()
		_, err := newSession(t, s).Call(t.Context(), "math/add", addIn{1, 2}, nil)
		require.NoError(t, err)
		cancel()
		wg.Wait()
	})
}

// Leaving the loop cancels a tool that waits for credit.
func TestLeavingEndsWaitingTool(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rt, sent, calls := countingRuntime("r1")
		s := start(t, pipeTransport, nil, rt)
		sess := newSession(t, s)
		for range sess.Stream(t.Context(), "count", countIn{5000}, nil) {
			synctest.Wait()
			break
		}
		synctest.Wait()
		require.Equal(t, int64(1), calls.Load())
		require.Less(t, sent.Load(), int64(200))
		require.Zero(t, s.h.Stats().InFlight)
	})
}

// Without connections a Runtime gets no new credit, so a client that returns misses nothing.
func TestReturningReaderMissesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rt, sent, _ := countingRuntime("r1")
		s := start(t, pipeTransport, nil, rt)
		sess := newSession(t, s)
		credit := int64(10)
		call := &ToolCall{InvocationID: "i", SessionID: sess.ID(), ToolName: "count", Parameters: raw(countIn{300}), Credit: &credit}
		conn := must(s.dial(testUser)(t.Context()))
		require.NoError(t, conn.Send(call))
		next := int64(0)
		receive := func() bool {
			m := must(conn.Receive()).(*StreamChunk)
			require.Equal(t, next, m.ChunkID)
			next++
			return m.IsFinal
		}
		for range 10 {
			receive()
		}
		require.NoError(t, conn.Close())
		time.Sleep(20 * time.Second)
		synctest.Wait()
		require.LessOrEqual(t, sent.Load(), int64(10+64))

		conn = must(s.dial(testUser)(t.Context()))
		defer func() { _ = conn.Close() }()
		repeat := *call
		repeat.Credit, repeat.ResumeFrom = nil, next
		require.NoError(t, conn.Send(&repeat))
		for !receive() {
			continue
		}
		require.Equal(t, int64(301), next)
	})
}

// A stream that ended waits for the credit of its readers: a shutdown, too. The end of the session
// ends them at once.
func TestEndedStreamWaitsForCredit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rt, _, calls := countingRuntime("r1")
		s := start(t, pipeTransport, nil, rt)
		sess := newSession(t, s)
		credit := int64(1)
		call := &ToolCall{InvocationID: "i", SessionID: sess.ID(), ToolName: "count", Parameters: raw(countIn{3}), Credit: &credit}
		conn := must(s.dial(testUser)(t.Context()))
		defer func() { _ = conn.Close() }()
		require.NoError(t, conn.Send(call))
		require.Equal(t, int64(0), must(conn.Receive()).(*StreamChunk).ChunkID)
		synctest.Wait()
		require.Equal(t, int64(1), calls.Load())
		require.Zero(t, s.h.Stats().InFlight)
		require.NoError(t, sess.Destroy(t.Context()))
		end := must(conn.Receive()).(*StreamChunk)
		require.Equal(t, int64(1), end.ChunkID)
		require.Equal(t, reasonSessionDestroyed, end.Error.Reason())
		for _, u := range s.h.Usage() {
			if u.Resource == "memory" {
				require.Zero(t, u.Used, "%+v", u)
			}
		}
	})
}

// A Host that does not know credit ends a stream at the bound of the client, and no other call.
func TestSlowReaderOfHostWithoutCredit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		conn := newScriptedConn(t)
		c := must(NewClient(func(context.Context) (Conn, error) { return conn, nil }, &ClientOptions{MaxQueue: 1000}))
		defer func() { require.NoError(t, c.Close()) }()
		go func() {
			for m := range conn.sent {
				if call, ok := m.(*ToolCall); ok {
					for i := range int64(200) {
						conn.received <- &StreamChunk{InvocationID: call.InvocationID, ChunkID: i, Payload: json.RawMessage(`"0123456789"`)}
					}
				}
			}
		}()
		var last error
		for _, last = range c.Session("s").Stream(t.Context(), "count", nil, nil) {
			synctest.Wait()
		}
		require.ErrorIs(t, last, ErrSlowReader)
	})
}

// A scriptedConn is a connection whose other end a test plays.
type scriptedConn struct {
	sent, received chan Message
	done           chan struct{}
}

func newScriptedConn(t *testing.T) *scriptedConn {
	c := &scriptedConn{sent: make(chan Message, 100), received: make(chan Message, 1000), done: make(chan struct{})}
	t.Cleanup(func() { close(c.sent) })
	return c
}

func (c *scriptedConn) Receive() (Message, error) {
	select {
	case m := <-c.received:
		return m, nil
	case <-c.done:
		return nil, ErrClosed
	}
}

func (c *scriptedConn) Send(m Message) error {
	select {
	case c.sent <- m:
		return nil
	case <-c.done:
		return ErrClosed
	}
}

func (c *scriptedConn) Close() error {
	select {
	case <-c.done:
	default:
		close(c.done)
	}
	return nil
}

// A client that stalls, one that has left, a second slow reader, a collecting reader and a cancelled stream delay no other
// call of the same Runtime and session.
func TestStreamsDelayNoOtherCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rt, _, _ := countingRuntime("r1")
		s := start(t, pipeTransport, nil, rt)
		sess := newSession(t, s)
		stream := func(id string, credit *int64) Conn {
			conn := must(s.dial(testUser)(t.Context()))
			t.Cleanup(func() { _ = conn.Close() })
			require.NoError(t, conn.Send(&ToolCall{InvocationID: id, SessionID: sess.ID(), ToolName: "count", Parameters: raw(countIn{1_000_000}), Credit: credit}))
			synctest.Wait()
			return conn
		}
		none, one := int64(0), int64(1)
		stream("stalled", nil)
		require.NoError(t, stream("left", nil).Close())
		stream("shared", &one)
		stream("shared", &none)
		canceled := stream("canceled", nil)
		require.NoError(t, canceled.Send(&CancelCall{InvocationID: "canceled", SessionID: sess.ID()}))
		collecting := must(s.dial(testUser)(t.Context()))
		t.Cleanup(func() { _ = collecting.Close() })
		require.NoError(t, collecting.Send(&ToolCall{InvocationID: "collected", SessionID: sess.ID(), ToolName: "count",
			Parameters: raw(countIn{1_000_000}), CollectChunks: true}))
		begin := time.Now()
		for range 20 {
			sum, err := CallAs[int64](t.Context(), sess, "math/add", addIn{1, 2}, nil)
			require.NoError(t, err)
			require.Equal(t, int64(3), sum)
			n := 0
			for _, err := range sess.Stream(t.Context(), "count", countIn{500}, nil) {
				require.NoError(t, err)
				n++
			}
			require.Equal(t, 500, n)
		}
		require.Equal(t, begin, time.Now(), "no call waits for a timer")
	})
}
