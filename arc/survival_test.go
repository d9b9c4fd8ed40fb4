// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package arc_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fivewire/fivewire/arc"
	"github.com/fivewire/fivewire/arc/arctest"
	"github.com/fivewire/fivewire/internal/kit"
	"github.com/fivewire/fivewire/internal/race"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

// heap watches how large the heap gets.
func heap(t *testing.T) (peak func() uint64) {
	var maxHeap atomic.Uint64
	stop, done := make(chan struct{}), make(chan struct{})
	measure := func() {
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		maxHeap.Store(max(maxHeap.Load(), m.HeapAlloc))
	}
	runtime.GC()
	go func() {
		defer close(done)
		tick := time.NewTicker(20 * time.Millisecond)
		defer tick.Stop()
		for {
			measure()
			select {
			case <-tick.C:
			case <-stop:
				return
			}
		}
	}()
	return func() uint64 {
		close(stop)
		<-done
		return maxHeap.Load()
	}
}

// survivor streams 300 pieces, or pieces without end.
func survivor(dropped, whole *atomic.Int32) arc.Agent {
	return arc.Agent{AgentInfo: arc.AgentInfo{AgentID: "a-01"}, StatelessChats: true,
		ChatHandler: arc.ChatHandlerFunc(func(_ context.Context, turn *arc.ChatTurn, out *arc.ChatWriter) error {
			piece := strings.Repeat("x", 1000)
			for i := 0; i < survivorPieces || turn.Message.Text() == "endless"; i++ {
				if err := out.Send(piece); err != nil {
					dropped.Add(1)
					return err
				}
			}
			whole.Add(1)
			return nil
		})}
}

const survivorPieces = 300

// Readers that take all, readers that take nothing, readers that vanish. Time is
// virtual, so that a busy machine makes no reader slow.
func TestSurviveSlowReaders(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const streams = 200
		var dropped, whole atomic.Int32
		s := arc.MustServer(nil)
		s.Register(survivor(&dropped, &whole))
		mem := arctest.NewServer(t, s)
		var wg sync.WaitGroup
		for i := range streams {
			wg.Go(func() {
				text := "endless"
				if i%4 < 2 {
					text = "all"
				}
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				r := arc.NewStreamReader(open(t, ctx, mem, streamed("a-01", fmt.Sprintf("c%d", i), text)).Body, 0, nil)
				switch i % 4 {
				case 0, 1: // reads all
					text, last, err := readStream(r)
					if err != nil || len(text) != survivorPieces*1000 || !last.Done {
						t.Errorf("stream %d: %d bytes, %v", i, len(text), err)
					}
				case 2: // takes nothing
					time.Sleep(5 * time.Minute)
					if _, _, err := readStream(r); !errors.Is(err, arc.ErrTruncated) {
						t.Errorf("stream %d: a dropped stream must not look finished: %v", i, err)
					}
				case 3: // vanishes
					if _, err := r.Next(); err != nil {
						t.Error(err)
					}
				}
			})
		}
		time.Sleep(10 * time.Second) // all streams have ended except those of the clients that do not read
		synctest.Wait()
		if dropped.Load() != streams/4 || whole.Load() != streams/2 {
			t.Errorf("dropped %d, whole %d", dropped.Load(), whole.Load())
		}
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		if m.HeapAlloc > 128<<20 {
			t.Errorf("%d bytes for %d stuck streams", m.HeapAlloc, streams/4)
		}
		wg.Wait()
		if dropped.Load() != streams/2 {
			t.Errorf("dropped %d", dropped.Load())
		}
	})
}

// Over real connections: readers that take all, and readers that vanish.
func TestSurviveStreams(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	streams := int32(200)
	if race.Enabled {
		streams = 40
	}
	var dropped, whole atomic.Int32
	s := arc.MustServer(nil)
	s.Register(survivor(&dropped, &whole))
	ts := httptest.NewServer(s)
	client := &http.Client{Transport: &http.Transport{}}
	defer func() {
		client.CloseIdleConnections()
		ts.Close()
		require.NoError(t, s.Close())
	}()
	peak := heap(t)
	var wg sync.WaitGroup
	for i := range streams {
		wg.Go(func() {
			text := "all"
			if i%4 == 3 {
				text = "endless"
			}
			ctx, cancel := context.WithCancel(context.Background())
			defer cancel()
			req, err := http.NewRequestWithContext(ctx, http.MethodPost, ts.URL+"/arc", strings.NewReader(streamed("a-01", fmt.Sprintf("c%d", i), text)))
			if err != nil {
				t.Error(err)
				return
			}
			req.Header.Set("Content-Type", arc.MediaType)
			res, err := client.Do(req)
			if err != nil {
				t.Error(err)
				return
			}
			defer res.Body.Close()
			r := arc.NewStreamReader(res.Body, 0, nil)
			if text == "endless" {
				if _, err := r.Next(); err != nil {
					t.Error(err)
				}
				return
			}
			got, last, err := readStream(r)
			if err != nil || len(got) != survivorPieces*1000 || !last.Done {
				t.Errorf("stream %d: %d bytes, %v", i, len(got), err)
			}
		})
	}
	wg.Wait()
	require.Less(t, peak(), uint64(256<<20))
	require.Eventually(t, func() bool { return dropped.Load() == streams/4 && whole.Load() == 3*streams/4 }, 30*time.Second, 10*time.Millisecond)
}

func TestSurviveBigBodies(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	s := arc.MustServer(nil)
	s.Handle("a-01", "debug.echo", arc.HandlerFunc(echo))
	ts := httptest.NewServer(s)
	client := &http.Client{Transport: &http.Transport{}}
	peak := heap(t)
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			body := io.Reader(&dribble{n: 100 << 20})
			req, err := http.NewRequest(http.MethodPost, ts.URL+"/arc", body)
			if err != nil {
				t.Error(err)
				return
			}
			req.ContentLength = -1
			if i%2 == 0 {
				req.ContentLength = 100 << 20
			}
			req.Header.Set("Content-Type", arc.MediaType)
			res, err := client.Do(req)
			if err != nil {
				return // the server closed the connection while we still wrote
			}
			defer res.Body.Close()
			if res.StatusCode != 413 {
				t.Errorf("status %d", res.StatusCode)
			}
		})
	}
	wg.Wait()
	require.Less(t, peak(), uint64(400<<20))
	// It keeps serving.
	res, err := client.Post(ts.URL+"/arc", arc.MediaType, strings.NewReader(call("debug.echo", "a-01", "{}")))
	require.NoError(t, err)
	require.Equal(t, 200, res.StatusCode)
	require.NoError(t, res.Body.Close())
	client.CloseIdleConnections()
	ts.Close()
	require.NoError(t, s.Close())
}

// A body that stops arriving is given up after its time, 60 s by default.
func TestStuckBody(t *testing.T) {
	for option, want := range map[time.Duration]time.Duration{0: time.Minute, 7 * time.Second: 7 * time.Second} {
		synctest.Test(t, func(t *testing.T) {
			mem := arctest.NewServer(t, arc.MustServer(&arc.ServerOptions{Timing: arc.Timing{ReadTimeout: option}}))
			r, w := io.Pipe()
			defer w.Close()
			req, err := http.NewRequest(http.MethodPost, mem.URL, r)
			require.NoError(t, err)
			req.Header.Set("Content-Type", arc.MediaType)
			start := time.Now()
			go func() { _, _ = w.Write([]byte("{")) }()
			res, err := mem.HTTPClient.Do(req)
			if err == nil {
				require.Equal(t, 400, res.StatusCode)
				_ = res.Body.Close()
			}
			require.Equal(t, want, time.Since(start))
		})
	}
}

// silence never answers.
type silence struct{ requests atomic.Int32 }

func (s *silence) RoundTrip(req *http.Request) (*http.Response, error) {
	s.requests.Add(1)
	<-req.Context().Done()
	return nil, req.Context().Err()
}

func TestSurviveSilentWebhook(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dead := &silence{}
		h := &hooks{}
		o := h.options()
		o.Transport = dead
		var letters atomic.Int32
		o.OnDeadLetter = func(context.Context, arc.DeadLetter) { letters.Add(1) }
		s := newServer(t, &arc.ServerOptions{Webhook: o})
		s.HandleTasks("a-01", arctest.ScriptedTask(arctest.Sleep(time.Second)))
		for i := range 50 {
			id := createTask(t, s, "a-01", "x")
			subscribe(t, s, "a-01", id, fmt.Sprintf("https://dead%d.test/", i), `["TASK_COMPLETED"]`)
		}
		time.Sleep(2 * time.Second)
		id := createTask(t, s, "a-01", "x")
		time.Sleep(2 * time.Second)
		require.Equal(t, arc.TaskCompleted, taskOf(t, s, "a-01", id).Status)
		time.Sleep(24 * time.Hour)
		require.Equal(t, int32(50), letters.Load())
		require.Equal(t, int32(450), dead.requests.Load())
	})
}

// Requests with invented ids and names do not grow the memory of the server without bound.
func TestStrangersLeaveNothing(t *testing.T) {
	s := newServer(t, &arc.ServerOptions{Limits: arc.Limits{RequestRate: 1000, RequestBurst: 1000}})
	s.Register(arc.Agent{AgentInfo: arc.AgentInfo{AgentID: "a-01"}, Group: "g", TaskHandler: arctest.ScriptedTask(), ChatHandler: arctest.EchoChat()})
	probe := func(n int) {
		for i := range n {
			body := call("task.info", "g", fmt.Sprintf(`{"taskId":"%0200d"}`, i))
			post(s, strings.Replace(body, "ui-01", fmt.Sprintf("ui-%0100d", i), 1))
			post(s, call("chat.message", "g", fmt.Sprintf(`{"chatId":"%0200d","message":%s}`, i, hello("x"))))
		}
	}
	probe(1000)
	before := kit.Heap()
	many := 20_000
	if race.Enabled {
		many = 4000
	}
	probe(many)
	require.Less(t, int64(kit.Heap())-int64(before), int64(12<<20))
}

func TestEventsAreOrdered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &hooks{}
		s := newServer(t, &arc.ServerOptions{Webhook: h.options()})
		s.HandleTasks("a-01", arc.TaskHandlerFunc(func(ctx context.Context, run *arc.TaskRun) error {
			if _, err := run.WaitInput(ctx, "go"); err != nil {
				return err
			}
			var wg sync.WaitGroup
			for range 8 {
				wg.Go(func() {
					for range 50 {
						if err := run.AddProgress(ctx, "p"); err != nil {
							t.Error(err)
						}
					}
				})
			}
			wg.Wait()
			return nil
		}))
		id := createTask(t, s, "a-01", "x")
		synctest.Wait()
		subscribe(t, s, "a-01", id, "https://one.test/", `["NEW_MESSAGE","TASK_COMPLETED","TASK_RESUMED"]`)
		require.Nil(t, send(s, "a-01", id, "go").Error)
		time.Sleep(time.Minute)
		synctest.Wait()
		got := h.take()
		require.Len(t, got, 403)
		require.Equal(t, "one.test TASK_RESUMED WORKING", got[1])
		require.Equal(t, "one.test TASK_COMPLETED COMPLETED", got[402])
		require.Equal(t, 401, bytes.Count([]byte(strings.Join(got, "\n")), []byte("NEW_MESSAGE")))
	})
}
