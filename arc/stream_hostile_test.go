// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package arc_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/arc"
	"github.com/fivewire/fivewire/arc/arctest"
	"github.com/fivewire/fivewire/internal/kit"
	"github.com/fivewire/fivewire/internal/race"
	"github.com/fivewire/fivewire/store"
)

// A flood is a handler that sends pieces of 1,000 bytes: as many as the message says, or without end. It counts
// what each chat has sent, and the handlers that run.
type flood struct {
	mu      sync.Mutex
	sent    map[string]int // guarded by mu
	running atomic.Int64
}

func (f *flood) ServeChat(ctx context.Context, turn *arc.ChatTurn, out *arc.ChatWriter) error {
	f.running.Add(1)
	defer f.running.Add(-1)
	var n int
	_, _ = fmt.Sscan(turn.Message.Text(), &n)
	for i := 0; i < n || n == 0; i++ {
		if err := out.Send(fmt.Sprintf("%-1000d", i)); err != nil {
			return err
		}
		f.mu.Lock()
		f.sent[turn.ChatID]++
		f.mu.Unlock()
		if err := ctx.Err(); err != nil {
			return err
		}
	}
	return nil
}

// mostSent returns the largest number of pieces of chats whose ids begin with prefix.
func (f *flood) mostSent(prefix string) (count int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for id, n := range f.sent {
		if strings.HasPrefix(id, prefix) {
			count = max(count, n)
		}
	}
	return count
}

// streamModes are the ways to serve a stream, and how many pieces of 1,000 bytes each keeps without a reader.
var streamModes = map[string]struct {
	options  func() *arc.ServerOptions
	retained int
}{
	"plain":     {func() *arc.ServerOptions { return &arc.ServerOptions{} }, 0},
	"resumable": {func() *arc.ServerOptions { return resumable(5 * time.Minute) }, 1 << 20 / 1000},
	"durable": {func() *arc.ServerOptions {
		o := resumable(5 * time.Minute)
		o.Persistence.Store = store.NewMemory()
		return o
	}, 16 << 20 / 1000},
}

// inStreamModes runs f in a bubble for each mode.
func inStreamModes(t *testing.T, f func(t *testing.T, mode string, s *arc.Server, mem *arctest.Server, h *flood)) {
	for name, mode := range streamModes {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, h := arc.MustServer(mode.options()), &flood{sent: map[string]int{}}
				s.Register(arc.Agent{AgentInfo: arc.AgentInfo{AgentID: "a-01"}, StatelessChats: true, ChatHandler: h})
				f(t, name, s, arctest.NewServer(t, s), h)
			})
		})
	}
}

// aheadOfReader bounds the pieces of a stream that its reader has not taken: the window of the stream, and the bytes
// that the writer of the response holds.
const aheadOfReader = (256<<10 + 3*64<<10) / 1000

// Readers that stay connected and take nothing, and readers that vanish, cost bounded memory and are dropped within
// 37.5 s. Until then their handlers wait. They end at once, or after the time that a resumable stream has without a
// reader. Other readers are not affected.
func TestStalledReadersAreDropped(t *testing.T) {
	inStreamModes(t, func(t *testing.T, mode string, s *arc.Server, mem *arctest.Server, h *flood) {
		retained, n := streamModes[mode].retained, 20
		if mode == "durable" {
			n = 1
		}
		heap, start := kit.Heap(), time.Now()
		limited, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		var stalled []*arc.StreamReader
		for i := range n {
			stalled = append(stalled, arc.NewStreamReader(open(t, limited, mem, streamed("a-01", fmt.Sprint("stalled-", i), "0")).Body, 0, nil))
			ctx, cancel := context.WithCancel(t.Context())
			r := arc.NewStreamReader(open(t, ctx, mem, streamed("a-01", fmt.Sprint("vanished-", i), "0")).Body, 0, nil)
			_, err := r.Next()
			require.NoError(t, err)
			cancel()
		}
		synctest.Wait()
		require.Zero(t, time.Since(start))
		for i := range 2 { // not delayed by the others
			text, last, err := readStream(arc.NewStreamReader(open(t, t.Context(), mem, streamed("a-01", fmt.Sprint("honest-", i), "3000")).Body, 0, nil))
			require.NoError(t, err)
			require.Len(t, text, 3000*1000)
			require.True(t, last.Done)
		}
		require.Zero(t, time.Since(start))

		time.Sleep(29 * time.Second)
		require.LessOrEqual(t, h.mostSent("stalled"), aheadOfReader, "the handler waits for its reader")
		require.LessOrEqual(t, h.mostSent("vanished"), max(retained, aheadOfReader), "the handler waits for a reader")
		time.Sleep(9 * time.Second)
		require.LessOrEqual(t, h.mostSent("stalled"), max(retained, aheadOfReader))
		if mode == "plain" {
			require.Zero(t, h.running.Load())
		} else {
			require.EqualValues(t, 2*n, h.running.Load(), "a reader may return")
			require.Greater(t, h.mostSent("stalled"), aheadOfReader, "it is no longer attached")
		}
		if !race.Enabled {
			require.Less(t, kit.Heap()-heap, int64(2*n*(max(retained*1000, 256<<10)*3/2+64<<10))+8<<20)
		}
		time.Sleep(5*time.Minute + time.Second)
		synctest.Wait()
		require.Zero(t, h.running.Load())
		time.Sleep(11 * time.Minute)
		synctest.Wait()
		requireNothingUsed(t, s)
		for _, r := range stalled { // each was sent a part of its stream
			text, _, err := readStream(r)
			require.ErrorIs(t, err, arc.ErrTruncated)
			require.LessOrEqual(t, len(text), aheadOfReader*1000)
		}
		if !race.Enabled && mode != "durable" { // a store in memory without writes keeps expired records
			require.Less(t, kit.Heap()-heap, int64(8<<20), "nothing is left")
		}
	})
}

// A reader that vanishes while its stream is idle is noticed by the comments.
func TestVanishedReaderOfIdleStream(t *testing.T) {
	for _, o := range []*arc.ServerOptions{{}, resumable(time.Minute)} {
		synctest.Test(t, func(t *testing.T) {
			s := arc.MustServer(o)
			done := make(chan time.Time, 1)
			s.HandleChats("a-01", arc.ChatHandlerFunc(func(ctx context.Context, _ *arc.ChatTurn, out *arc.ChatWriter) error {
				if err := out.Send("x"); err != nil {
					return err
				}
				<-ctx.Done()
				done <- time.Now()
				return ctx.Err()
			}))
			mem := arctest.NewServer(t, s)
			start, limit := time.Now(), 15*time.Second+30*time.Second // the comment, and its time
			if o.Persistence.EnableResume {
				limit += time.Minute
			}
			_, err := arc.NewStreamReader(open(t, t.Context(), mem, streamed("a-01", "c", "x")).Body, 0, nil).Next()
			require.NoError(t, err)
			time.Sleep(limit + 15*time.Second + time.Second) // the comment may be the second one
			require.Len(t, done, 1)
			require.GreaterOrEqual(t, (<-done).Sub(start), 30*time.Second)
		})
	}
}

// A transport whose reader takes nothing does not retain the handler either.
func TestStalledSinkIsDropped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, h := newServer(t, nil), &flood{sent: map[string]int{}}
		s.Register(arc.Agent{AgentInfo: arc.AgentInfo{AgentID: "a-01"}, StatelessChats: true, ChatHandler: h})
		sink, done := make(stalledSink), make(chan struct{})
		go func() {
			defer close(done)
			s.ServeMessage(t.Context(), &arc.ServerRequest{Data: []byte(streamed("a-01", "c", "0"))}, func() arc.EventSink { return sink })
		}()
		time.Sleep(38 * time.Second)
		synctest.Wait()
		require.Zero(t, h.running.Load())
		require.LessOrEqual(t, h.mostSent("c"), aheadOfReader)
		close(sink)
		<-done
	})
}

// A stalledSink accepts nothing until it is closed, whatever its context.
type stalledSink chan struct{}

func (s stalledSink) Send(context.Context, string, string, []byte) error {
	<-s
	return errors.New("closed")
}

func (s stalledSink) Discard() bool { return false }

// 64 readers that take 8 KiB a second get all of their streams, and hold their handlers back. The memory does not
// depend on the length of the streams.
func TestSlowReadersGetAll(t *testing.T) {
	inStreamModes(t, func(t *testing.T, mode string, s *arc.Server, mem *arctest.Server, h *flood) {
		const pieces, rate = 600, 8 << 10
		n := 64
		if race.Enabled {
			n = 12
		}
		heap, start := kit.Heap(), time.Now()
		var wg sync.WaitGroup
		for i := range n {
			body := open(t, t.Context(), mem, streamed("a-01", fmt.Sprintf("slow-%02d", i), fmt.Sprint(pieces))).Body
			wg.Go(func() {
				text, last, err := readStream(arc.NewStreamReader(&slowBody{body, rate}, 0, nil))
				if err != nil || len(text) != pieces*1000 || !last.Done {
					t.Errorf("reader %d: %d bytes, %v", i, len(text), err)
				}
			})
		}
		time.Sleep(5 * time.Second)
		require.LessOrEqual(t, h.mostSent("slow"), 6*rate/1000+aheadOfReader, "the handlers wait")
		if !race.Enabled {
			require.Less(t, kit.Heap()-heap, int64(n)*(2<<20))
		}
		text, _, err := readStream(arc.NewStreamReader(open(t, t.Context(), mem, streamed("a-01", "honest", "2000")).Body, 0, nil))
		require.NoError(t, err)
		require.Len(t, text, 2000*1000)
		require.Equal(t, 5*time.Second, time.Since(start))
		wg.Wait()
		require.Greater(t, time.Since(start), time.Minute)
		time.Sleep(time.Second)
		require.Zero(t, h.running.Load())
	})
}

// A slowBody is read at a number of bytes a second.
type slowBody struct {
	io.ReadCloser
	rate int
}

func (b *slowBody) Read(p []byte) (int, error) {
	time.Sleep(time.Second)
	n, err := io.ReadAtLeast(b.ReadCloser, p[:min(len(p), b.rate)], min(len(p), b.rate))
	if errors.Is(err, io.ErrUnexpectedEOF) {
		err = io.EOF
	}
	return n, err
}

// Of two readers of one stream, one takes nothing: the other waits for at most 37.5 s, and gets everything. So it is
// in another process.
func TestStalledReaderDelaysOtherReaderOfStream(t *testing.T) {
	for name, servers := range map[string]int{"one process": 1, "two processes": 2} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				const limit = 3000
				db := store.NewMemory()
				var mems []*arctest.Server
				var sent atomic.Int64
				for range servers {
					o := resumable(5 * time.Minute)
					if servers > 1 {
						o.Persistence.Store = db
					}
					s := newServer(t, o)
					s.Register(arc.Agent{AgentInfo: arc.AgentInfo{AgentID: "a-01"}, StatelessChats: true, ChatHandler: pieces(&sent, limit)})
					mems = append(mems, arctest.NewServer(t, http.HandlerFunc(s.ServeHTTP)))
				}
				body := streamed("a-01", "c", "x")
				first := arc.NewStreamReader(open(t, t.Context(), mems[0], body).Body, 0, nil)
				ev, err := first.Next()
				require.NoError(t, err)
				stalled := arc.NewStreamReader(open(t, t.Context(), mems[servers-1], body, "Last-Event-ID", ev.ID).Body, 0, nil)
				start := time.Now()
				text, last, err := readStream(first)
				require.NoError(t, err)
				require.True(t, last.Done)
				require.Len(t, text, (limit-1)*1000)
				require.GreaterOrEqual(t, time.Since(start), 20*time.Second, "the stalled reader held the handler back")
				require.LessOrEqual(t, time.Since(start), 60*time.Second)
				_, lastOf, err := readStream(stalled)
				require.ErrorIs(t, err, arc.ErrTruncated)
				if lastOf != nil { // it may come back
					ev = lastOf
				}
				res := open(t, t.Context(), mems[servers-1], body, "Last-Event-ID", ev.ID)
				if servers > 1 {
					_, last, err = readStream(arc.NewStreamReader(res.Body, 0, nil))
					require.NoError(t, err)
					require.True(t, last.Done)
				} else { // 1 MiB of 3 is kept
					got, err := io.ReadAll(res.Body)
					require.NoError(t, err)
					require.Contains(t, string(got), `"issue":"gap"`)
				}
			})
		})
	}
}
