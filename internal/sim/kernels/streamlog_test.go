// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package kernels

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/fivewire/fivewire/internal/lease"
	"github.com/fivewire/fivewire/internal/sim"
	"github.com/fivewire/fivewire/internal/streamlog"
)

const user = "user"

// A logs value is the model of the profile: streams, their items and their ends.
type logs struct {
	w     *sim.World
	nodes []*sim.Node

	mu      sync.Mutex // guards all below
	streams []*modelStream
}

type modelStream struct {
	id       string
	node     *streamer
	w        *streamlog.Writer
	appended int
	isBusy   bool // a client has the writer
	isFinal  bool // Finish was called
	isStored bool // and returned nil
	top      int  // the last item that a reader got
}

// A streamer is one instance of a node.
type streamer struct {
	epoch
	*streamlog.Table
}

func (s *streamer) Close() { s.epoch.Close() }

// playStreamlog lets three nodes write streams, and read those of all.
func playStreamlog(w *sim.World) {
	m := &logs{w: w}
	m.nodes = startNodes(w, 3, func(v *sim.View) (sim.Instance, error) {
		e, err := acquire(v)
		if err != nil {
			return nil, err
		}
		return &streamer{e, streamlog.New(v.Store, e.Lease, prefix)}, nil
	})
	w.Play(40*time.Second, 4, 2*time.Second, func(c *sim.Client) {
		k, ok := pick[*streamer](c.Rand, m.nodes)
		switch n := c.IntN(10); {
		case !ok:
		case n < 1:
			m.create(c, k)
		case n < 6:
			m.write(c)
		default:
			m.read(c, k)
		}
	})
	w.Settle()
	m.checkEnds()
	m.checkWindow()
	m.checkMemory()
}

func (m *logs) create(c *sim.Client, k *streamer) {
	m.mu.Lock()
	s := &modelStream{id: fmt.Sprint("s", len(m.streams)), node: k, isBusy: true}
	m.streams = append(m.streams, s)
	m.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	_, _ = m.w.Call(c.ID, "create "+s.id, func() (string, error) {
		w, err := k.Create(ctx, s.id, user, streamlog.Options{Resumable: true, Retention: time.Hour})
		m.mu.Lock()
		defer m.mu.Unlock()
		s.w, s.isBusy = w, err != nil
		return "", err
	})
}

func (m *logs) pick(c *sim.Client) *modelStream {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.streams) == 0 {
		return nil
	}
	return m.streams[c.IntN(len(m.streams))]
}

func item(id string, n int) string { return fmt.Sprint(id, " item ", n) }

// write appends items to a stream, or ends it. One client at a time writes a stream.
func (m *logs) write(c *sim.Client) {
	s := m.pick(c)
	if s == nil {
		return
	}
	m.mu.Lock()
	isFree := !s.isBusy
	s.isBusy = true
	m.mu.Unlock()
	if !isFree {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	for range c.IntN(8) {
		n, err := s.w.Append(ctx, []byte(item(s.id, s.appended+1)))
		if err != nil {
			return // it stays busy
		}
		s.appended++
		if int(n) != s.appended && !s.node.IsCrashed() {
			m.w.Failf("S1", s.node.Node.Name(), "item %d of %s got the number %d", s.appended, s.id, n)
		}
	}
	isEnd := c.IntN(3) == 0
	ctx, cancel = context.WithTimeout(context.Background(), 45*time.Second)
	defer cancel()
	m.mu.Lock()
	s.isBusy, s.isFinal = isEnd, isEnd && !s.node.IsCrashed()
	m.mu.Unlock()
	if isEnd {
		_, err := m.w.Call(c.ID, "finish "+s.id, func() (string, error) { return "", s.w.Finish(ctx, nil) })
		m.mu.Lock()
		s.isStored = err == nil
		m.mu.Unlock()
	}
}

// read reads a stream from a node and holds the items to S1 and S2.
func (m *logs) read(c *sim.Client, k *streamer) {
	s := m.pick(c)
	if s == nil {
		return
	}
	m.mu.Lock()
	at := c.IntN(s.top + 1)
	m.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), time.Duration(1+c.IntN(8))*time.Second)
	defer cancel()
	_, _ = m.w.Call(c.ID, fmt.Sprintf("read %s after %d", s.id, at), func() (string, error) {
		err := m.follow(ctx, s, k, at, c.IntN(4) > 0)
		return "", err
	})
}

// follow reads a stream after an item until its end or that of ctx.
func (m *logs) follow(ctx context.Context, s *modelStream, k *streamer, at int, closes bool) error {
	r, err := k.Read(ctx, s.id, user, uint64(at))
	if errors.Is(err, streamlog.ErrAhead) && !k.IsCrashed() {
		m.w.Failf("S1", k.Node.Name(), "stream %s ends before item %d, which a reader got", s.id, at)
	}
	if err != nil {
		return err
	}
	if closes {
		defer r.Close()
	}
	for {
		items, err := r.Next(ctx, make([]streamlog.Item, 0, 3))
		for _, it := range items {
			at++
			if int(it.N) != at || string(it.Data) != item(s.id, at) {
				m.w.Failf("S1", k.Node.Name(), "stream %s: got item %d %q, want %d", s.id, it.N, it.Data, at)
			}
		}
		m.mu.Lock()
		s.top = max(s.top, at)
		isFinal, top, appended := s.isFinal, s.top, s.appended
		m.mu.Unlock()
		switch {
		case err == nil:
			continue
		case errors.Is(err, io.EOF) && !isFinal:
			m.w.Failf("S2", k.Node.Name(), "stream %s: end after item %d without Finish", s.id, at)
		case errors.Is(err, io.EOF) && (at < top || at != appended):
			m.w.Failf("S2", k.Node.Name(), "stream %s: end after item %d of %d", s.id, at, appended)
		}
		return err
	}
}

// checkEnds requires that a reader gets every stream of a failed or ended writer to its end: S2 and S5.
func (m *logs) checkEnds() {
	k, ok := m.nodes[1].Instance().(*streamer)
	if !ok {
		m.w.Failf("S5", "n1", "node does not start")
		return
	}
	for _, s := range m.streams {
		if s.w == nil || !s.isStored && !s.node.IsCrashed() {
			continue
		}
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		err := m.follow(ctx, s, k, 0, true)
		cancel()
		var cut *streamlog.CutError
		isEnded := errors.Is(err, io.EOF) || errors.As(err, &cut)
		switch {
		case s.isStored && !errors.Is(err, io.EOF):
			m.w.Failf("S5", "n1", "finished stream %s: %v", s.id, err)
		case !isEnded:
			m.w.Failf("S2", "n1", "stream %s of a failed process: %v", s.id, err)
		}
	}
}

// checkWindow holds a writer to S3 while a reader is slow, and to S4 after the reader's process has failed.
func (m *logs) checkWindow() {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	k, ok := m.nodes[0].Instance().(*streamer)
	other, isUp := m.nodes[2].Instance().(*streamer)
	if !ok || !isUp {
		return
	}
	const window = 4
	o := streamlog.Options{Window: window * 256, Retain: 100_000, SlowTimeout: 8 * time.Second, Resumable: true}
	w, err := k.Create(ctx, "last", user, o)
	var local, remote *streamlog.Reader
	if err == nil {
		local, err = k.Read(ctx, "last", user, 0)
	}
	if err == nil {
		remote, err = other.Read(ctx, "last", user, 0)
	}
	if err != nil {
		if !errors.Is(err, lease.ErrLost) {
			m.w.Failf("S5", "n0", "last stream: %v", err)
		}
		return
	}
	_ = m.w.Sleep(ctx, 2*time.Second)
	const total = 40
	got := 0
	done := make(chan struct{})
	go func() {
		defer close(done)
		for err := error(nil); err == nil && got < total; {
			var items []streamlog.Item
			items, err = local.Next(ctx, make([]streamlog.Item, 0, 2))
			m.mu.Lock()
			for _, it := range items {
				got++
				if int(it.N) != got {
					m.w.Failf("S1", "n0", "got item %d, want %d", it.N, got)
				}
			}
			m.mu.Unlock()
			_ = m.w.Sleep(ctx, 10*time.Millisecond)
		}
	}()
	for n := 1; n <= total; n++ {
		if n == 10 {
			_, _ = remote.Next(ctx, make([]streamlog.Item, 0, 1))
			m.nodes[2].Crash()
		}
		if _, err := w.Append(ctx, []byte("x")); err != nil {
			m.w.Failf("S4", "n0", "append %d after the failure of a reader: %v", n, err)
			break
		}
		m.mu.Lock()
		if ahead := n - got; ahead > window+2 { // two may not be counted yet
			m.w.Failf("S3", "n0", "writer is %d items ahead of a reader, want at most %d", ahead, window)
		}
		m.mu.Unlock()
	}
	<-done
	if got != total {
		m.w.Failf("S5", "n0", "a reader that reads got %d of %d items", got, total)
	}
	local.Close()
	m.removeLast(ctx, k, w, total)
}

// removeLast ends the last stream and removes it.
func (m *logs) removeLast(ctx context.Context, k *streamer, w *streamlog.Writer, total int) {
	n, err := w.Sync(ctx)
	if err == nil && (int(n) != total || w.Size() < int64(total) || w.Credit() < 1) {
		m.w.Failf("S3", "n0", "stream of %d items: %d stored, %d bytes, space for %d", total, n, w.Size(), w.Credit())
	}
	if err == nil {
		err = w.Finish(ctx, []byte("x"))
	}
	if err == nil {
		m.requireDone(ctx, w)
		err = k.Remove(ctx, "last")
	}
	if err == nil {
		_ = m.w.Sleep(ctx, time.Second)
		_, err = k.Read(ctx, "last", user, 0)
		if err == nil {
			m.w.Failf("S3", "n0", "a stream that was removed can be read")
		}
	}
	if !errors.Is(err, streamlog.ErrUnknown) && !errors.Is(err, lease.ErrLost) {
		m.w.Failf("S5", "n0", "end of the last stream: %v", err)
	}
}

// requireDone requires the end of a stream before that of ctx.
func (m *logs) requireDone(ctx context.Context, w *streamlog.Writer) {
	select {
	case <-w.Done():
	case <-ctx.Done():
		m.w.Failf("S5", "", "stream does not end")
	}
}

// checkMemory holds a stream in memory to S3, S4 and S5: one of its readers does not read.
func (m *logs) checkMemory() {
	const window, total = 4, 40
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	t := streamlog.New(nil, nil, "")
	w, err := t.Create(ctx, "m", user, streamlog.Options{Window: window * 256, Retain: -1, SlowTimeout: 2 * time.Second, Grace: time.Second})
	var readers [2]*streamlog.Reader
	for i := range readers {
		if err == nil {
			readers[i], err = t.Read(ctx, "m", user, 0)
		}
	}
	if err != nil {
		m.w.Failf("S5", "", "stream in memory: %v", err)
		return
	}
	for n := 1; n <= total; n++ {
		if _, err := w.Append(ctx, []byte("x")); err != nil {
			m.w.Failf("S4", "", "append %d in memory: %v", n, err)
		}
		items, err := readers[0].Next(ctx, nil)
		if err != nil || len(items) != 1 || int(items[0].N) != n {
			m.w.Failf("S5", "", "item %d in memory: got %d items, %v", n, len(items), err)
		}
	}
	var gap *streamlog.GapError
	if _, err := t.Read(ctx, "m", user, 1); !errors.As(err, &gap) {
		m.w.Failf("S1", "", "item 2 in memory is not retained: got %v", err)
	}
	if _, err := readers[1].Next(ctx, nil); !errors.Is(err, streamlog.ErrSlowReader) {
		m.w.Failf("S4", "", "reader in memory that did not read: got %v", err)
	}
	readers[0].Close()
	m.requireDone(ctx, w)
	if _, err := w.Append(ctx, nil); !errors.Is(err, streamlog.ErrNoReader) {
		m.w.Failf("S3", "", "append in memory without a reader: %v", err)
	}
}
