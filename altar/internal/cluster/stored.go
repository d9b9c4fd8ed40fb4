// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/fivewire/fivewire/internal/lease"
	"github.com/fivewire/fivewire/internal/randid"
	"github.com/fivewire/fivewire/internal/retry"
	"github.com/fivewire/fivewire/internal/streamlog"
	"github.com/fivewire/fivewire/store"
)

const (
	prefix = "altar/peer/" // of the streams

	hostsTopic = "altar/hosts" // of greetings
	openTopic  = "altar/open"  // of openings

	refreshInterval = 5 * time.Second // between two reads of the leases
	openTimeout     = 5 * time.Second
)

// A Stored is the [Network] of one Host, which reaches the other Hosts on its store. They know each other by their
// leases, and greet each other: a Host with another Network has a lease too. A stream is one stream of package streamlog
// for each direction.
type Stored struct {
	db    store.Log
	lease func(ctx context.Context) (*lease.Lease, error)

	mu    sync.Mutex // guards all below
	table *streamlog.Table
	own   *member // nil: not joined
}

// NewStored returns a Network. It joins with the lease of its Host, which has no other streams.
func NewStored(db store.Log, l func(ctx context.Context) (*lease.Lease, error)) *Stored {
	return &Stored{db: db, lease: l}
}

// A greeting notifies another Host that the sender has joined, or leaves.
type greeting struct {
	Owner   lease.Owner `json:"owner"` // the sender
	IsReply bool        `json:"reply,omitzero"`
	IsBye   bool        `json:"bye,omitzero"`
}

// An opening asks another Host to accept a stream, or says that it has.
type opening struct {
	Owner  lease.Owner `json:"owner"` // the sender
	Stream string      `json:"stream"`
	IsDone bool        `json:"done,omitzero"`
}

// A member is a Host that has joined, and its list of the others.
type member struct {
	l       *lease.Lease
	table   *streamlog.Table
	ctx     context.Context // ends when the Host leaves
	accept  func(from string, s io.ReadWriteCloser)
	changed chan struct{} // a Host has greeted; capacity 1
	work    sync.WaitGroup

	mu        sync.Mutex               // guards all below
	others    map[string]lease.Owner   // by name
	greetings map[lease.Owner]bool     // greeted by this Host
	present   map[lease.Owner]bool     // have greeted this Host
	waiting   map[string]chan struct{} // for the acceptance of a stream
	owner     lease.Owner              // in the greetings
}

// Join implements [Network].
func (n *Stored) Join(ctx context.Context, _ string, peers func(ids []string), accept func(from string, s io.ReadWriteCloser)) error {
	l, err := n.lease(ctx)
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancel(ctx)
	m := &member{l: l, ctx: ctx, accept: accept, changed: make(chan struct{}, 1), others: map[string]lease.Owner{},
		greetings: map[lease.Owner]bool{}, present: map[lease.Owner]bool{}, waiting: map[string]chan struct{}{}}
	n.mu.Lock()
	if n.table == nil {
		n.table = streamlog.New(n.db, l, prefix)
	}
	m.table, n.own = n.table, m
	n.mu.Unlock()
	l.Listen(hostsTopic, m.greeted)
	l.Listen(openTopic, m.requested)
	defer func() {
		n.mu.Lock()
		n.own = nil
		n.mu.Unlock()
		m.mu.Lock() // no other stream is accepted
		stop()
		m.mu.Unlock()
		m.work.Wait()
		m.depart()
	}()
	for ctx.Err() == nil {
		m.refresh(peers)
		t := time.NewTimer(refreshInterval)
		select {
		case <-m.changed:
		case <-t.C:
		case <-ctx.Done():
		}
		t.Stop()
	}
	return nil
}

// nameOf returns the name of an owner, which is the ID of its Host unless that has odd characters or is long.
func nameOf(o lease.Owner) string { return string(o[:max(0, strings.LastIndexByte(string(o), '@'))]) }

// refresh greets new Hosts, and calls peers if the Hosts that have greeted this one are others than before.
func (m *member) refresh(peers func(ids []string)) {
	owners, err := m.l.Owners(m.ctx)
	if err != nil { // the next call may read them
		return
	}
	own := m.l.Owner()
	next := make(map[string]lease.Owner)
	greetings := make(map[lease.Owner]greeting) // by receiver
	m.mu.Lock()
	if m.owner != own { // a new epoch
		m.owner = own
		clear(m.greetings)
	}
	isOver := func(o lease.Owner, _ bool) bool { return !slices.Contains(owners, o) }
	maps.DeleteFunc(m.greetings, isOver)
	maps.DeleteFunc(m.present, isOver)
	for _, o := range owners {
		if nameOf(o) == nameOf(own) {
			continue
		}
		if m.present[o] {
			next[nameOf(o)] = o
		}
		if !m.greetings[o] {
			m.greetings[o] = true // before its own greeting, which requests another one
			greetings[o] = greeting{Owner: own, IsReply: m.present[o]}
		}
	}
	kept := maps.Clone(m.others) // a Host that has restarted leaves first
	maps.DeleteFunc(kept, func(name string, o lease.Owner) bool { return next[name] != o })
	isLess, isMore := len(kept) < len(m.others), len(next) > len(kept)
	m.others = next
	m.mu.Unlock()
	if isLess {
		peers(slices.Sorted(maps.Keys(kept)))
	}
	if isMore {
		peers(slices.Sorted(maps.Keys(next)))
	}
	for _, o := range slices.Sorted(maps.Keys(greetings)) {
		if m.send(m.ctx, o, hostsTopic, greetings[o]) != nil {
			m.mu.Lock()
			delete(m.greetings, o) // the next call repeats it
			m.mu.Unlock()
		}
	}
}

func (m *member) send(ctx context.Context, to lease.Owner, topic string, v any) error {
	data, err := json.Marshal(v)
	if err == nil {
		err = m.l.Tell(ctx, to, topic, data)
	}
	return err
}

// greeted notes that another Host has joined or leaves.
func (m *member) greeted(data []byte) {
	var g greeting
	if json.Unmarshal(data, &g) != nil || g.Owner == "" {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.present[g.Owner] = true
	switch {
	case g.IsBye:
		delete(m.present, g.Owner)
	case !g.IsReply:
		delete(m.greetings, g.Owner)
	}
	m.raise()
}

func (m *member) raise() {
	select {
	case m.changed <- struct{}{}:
	default:
	}
}

// depart notifies the other Hosts that this Host leaves. Without the message they detect it by the end of the lease.
func (m *member) depart() {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(m.ctx), time.Second)
	defer cancel()
	m.mu.Lock()
	others := slices.Collect(maps.Values(m.others))
	m.mu.Unlock()
	for _, o := range others {
		_ = m.send(ctx, o, hostsTopic, greeting{Owner: m.owner, IsBye: true})
	}
}

// Open implements [Network].
func (n *Stored) Open(ctx context.Context, _, to string) (io.ReadWriteCloser, error) {
	n.mu.Lock()
	m := n.own
	n.mu.Unlock()
	if m == nil {
		return nil, fmt.Errorf("altar: cluster: open stream to Host %q: not joined", to)
	}
	s, err := m.open(ctx, to)
	if err != nil {
		return nil, fmt.Errorf("altar: cluster: open stream to Host %q: %w", to, err)
	}
	return s, nil
}

func (m *member) open(ctx context.Context, to string) (io.ReadWriteCloser, error) {
	ctx, cancel := context.WithTimeout(ctx, openTimeout)
	defer cancel()
	id, accepted := randid.New(""), make(chan struct{})
	m.mu.Lock()
	owner := m.others[to]
	m.waiting[id] = accepted
	m.mu.Unlock()
	defer func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		delete(m.waiting, id)
	}()
	if owner == "" {
		return nil, lease.ErrLost
	}
	w, err := m.table.Create(ctx, id+".to", "", streamOptions)
	if err != nil {
		return nil, err
	}
	err = m.send(ctx, owner, openTopic, opening{Owner: m.l.Owner(), Stream: id})
	if err == nil {
		select {
		case <-accepted:
		case <-ctx.Done():
			err = context.Cause(ctx)
		}
	}
	return m.newStream(ctx, w, id+".from", err)
}

// requested accepts a stream of another Host, or notes that it has accepted one.
func (m *member) requested(data []byte) {
	var o opening
	if json.Unmarshal(data, &o) != nil || o.Stream == "" {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	switch accepted := m.waiting[o.Stream]; {
	case o.IsDone && accepted != nil:
		delete(m.waiting, o.Stream)
		close(accepted)
	case !o.IsDone && m.ctx.Err() == nil:
		m.work.Go(func() { m.admit(o) })
	}
}

func (m *member) admit(o opening) {
	ctx, cancel := context.WithTimeout(m.ctx, openTimeout)
	defer cancel()
	w, err := m.table.Create(ctx, o.Stream+".from", "", streamOptions)
	if err != nil {
		return // the other Host tries again
	}
	err = m.send(ctx, o.Owner, openTopic, opening{Owner: m.l.Owner(), Stream: o.Stream, IsDone: true})
	if s, err := m.newStream(ctx, w, o.Stream+".to", err); err == nil {
		m.accept(nameOf(o.Owner), s)
	}
}

// streamOptions keep of a stream what the other Host has not read.
var streamOptions = streamlog.Options{Retain: -1, Retention: -1}

// partSize bounds the bytes of an item of a stream.
const partSize = 64 << 10

// closeTimeout bounds the time in which the end of a stream is stored.
const closeTimeout = time.Second

// A stream is one end of a byte stream between two Hosts.
type stream struct {
	w    *streamlog.Writer
	ctx  context.Context // ends with Close
	stop context.CancelFunc

	turn  chan struct{} // of one Read, or the end, which uses all below; capacity 1
	r     *streamlog.Reader
	buf   []streamlog.Item
	items []streamlog.Item // of buf, not taken
	rest  []byte           // of the item that Read is in
}

// newStream returns an end with its writer and the name of the other direction. It cuts the writer after an error.
func (m *member) newStream(ctx context.Context, w *streamlog.Writer, from string, err error) (*stream, error) {
	var r *streamlog.Reader
	if err == nil {
		r, err = m.table.Read(ctx, from, "", 0)
	}
	if err != nil {
		w.Cut(err)
		return nil, err
	}
	s := &stream{w: w, turn: make(chan struct{}, 1), r: r, buf: make([]streamlog.Item, 0, 16)}
	s.ctx, s.stop = context.WithCancel(m.ctx)
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.ctx.Err() != nil { // the Host has left
		go s.end()
		return nil, context.Cause(m.ctx)
	}
	m.work.Go(s.end)
	return s, nil
}

// end ends both directions after Close, or when the Host leaves.
func (s *stream) end() {
	<-s.ctx.Done()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(s.ctx), closeTimeout)
	defer cancel()
	_ = s.w.Finish(ctx, nil) // or the other Host gets an error
	s.turn <- struct{}{}
	s.r.Close()
}

// Write implements [io.Writer]. It waits while the other Host does not read.
func (s *stream) Write(p []byte) (n int, err error) {
	for part := range slices.Chunk(p, partSize) {
		if _, err := s.w.Append(s.ctx, slices.Clone(part)); err != nil {
			return n, err
		}
		n += len(part)
	}
	return n, nil
}

// Read implements [io.Reader].
func (s *stream) Read(p []byte) (int, error) {
	select {
	case s.turn <- struct{}{}:
	case <-s.ctx.Done():
		return 0, context.Cause(s.ctx)
	}
	defer func() { <-s.turn }()
	for len(s.rest) == 0 {
		if len(s.items) == 0 {
			var err error
			if s.items, err = s.next(); err != nil {
				return 0, err
			}
		}
		s.rest, s.items = s.items[0].Data, s.items[1:]
	}
	n := copy(p, s.rest)
	s.rest = s.rest[n:]
	return n, nil
}

// next waits for items. It repeats reads that fail, until the writer of this end is lost. After an error of the stream it
// cuts the writer; at the end of s.ctx, end finishes it.
func (s *stream) next() ([]streamlog.Item, error) {
	for {
		items, err := s.r.Next(s.ctx, s.buf)
		switch {
		case err == nil:
			return items, nil
		case errors.Is(err, io.EOF), s.ctx.Err() != nil:
			return nil, err
		case isFinal(err):
			s.w.Cut(err)
			return nil, err
		}
		select {
		case <-s.w.Done():
			return nil, err
		default:
		}
		_ = retry.Sleep(s.ctx, retryDelay)
	}
}

// isFinal reports whether Next returns an error of a stream again.
func isFinal(err error) bool {
	_, isCut := errors.AsType[*streamlog.CutError](err)
	_, isGap := errors.AsType[*streamlog.GapError](err)
	return isCut || isGap || errors.Is(err, streamlog.ErrSlowReader) || errors.Is(err, streamlog.ErrUnknown) ||
		errors.Is(err, streamlog.ErrClosed)
}

// retryDelay is the time after which a store that has failed is read again.
const retryDelay = 100 * time.Millisecond

// Close implements [io.Closer]. The other Host reads all written bytes, and then the end.
func (s *stream) Close() error {
	s.stop()
	return nil
}
