// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package natsstore

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/fivewire/fivewire/store"
)

// The leader publishes the headers of each stored record on a subject of its stream, and waiters
// listen there. Such a message may be lost when a connection or a server fails, or before a new
// subscription has reached all servers. Therefore a waiter also reads by itself, often at first and
// then every few seconds.

const (
	wakeQueue   = 4096             // received messages not yet passed to waiters
	wakeFresh   = 2 * time.Second  // how long interest may take to be known everywhere
	wakeLook    = 4 * time.Second  // interval of a waiter's own reads
	wakeLinger  = 10 * time.Second // lifetime of a subscription without waiters
	wakeLingers = 4096             // to how many streams
)

// wakes are the subscriptions of streams with waiters.
type wakes struct {
	s    *Store
	in   chan *nats.Msg
	quit chan struct{} // closed by Close

	mu   sync.Mutex
	all  map[string]*subscription // by subject; nil when closed; guarded by mu
	idle int                      // subscriptions without waiters; guarded by mu
}

// A wake is one stream. Its fields are guarded by the mutex of wakes.
type subscription struct {
	sub   *nats.Subscription
	since time.Time
	ch    chan struct{} // closed at the next record
	n     int           // number of waiters
	left  time.Time     // when the last one left
}

func (w *wakes) start(s *Store) error {
	w.s = s
	w.in = make(chan *nats.Msg, wakeQueue)
	w.quit = make(chan struct{})
	w.all = map[string]*subscription{}
	connected := s.nc.StatusChanged(nats.CONNECTED)
	s.work.Go(func() {
		defer s.nc.RemoveStatusListener(connected)
		for {
			select {
			case m := <-w.in:
				w.ring(m.Subject)
			case _, ok := <-connected: // messages may have been missed
				if !ok {
					connected = nil
				}
				w.ringAll()
			case <-w.quit:
				w.ringAll()
				w.drop()
				return
			}
		}
	})
	return nil
}

func (w *wakes) close() { close(w.quit) }

func (w *wakes) ring(subject string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if x := w.all[subject]; x != nil {
		close(x.ch)
		x.ch = make(chan struct{})
	}
}

func (w *wakes) ringAll() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, x := range w.all {
		close(x.ch)
		x.ch = make(chan struct{})
	}
}

// drop ends all subscriptions.
func (w *wakes) drop() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, x := range w.all {
		_ = x.sub.Unsubscribe() // fails only with the connection
	}
	w.all = nil
}

// listen begins to wait for a stream.
func (w *wakes) listen(subject string) (*subscription, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.all == nil {
		return nil, store.ErrClosed
	}
	x := w.all[subject]
	if x == nil {
		sub, err := w.s.nc.ChanSubscribe(subject, w.in)
		if err != nil {
			return nil, err
		}
		x = &subscription{sub: sub, since: time.Now(), ch: make(chan struct{})}
		w.all[subject] = x
	} else if x.n == 0 {
		w.idle--
	}
	x.n++
	return x, nil
}

// release ends one wait. The subscription stays for some time, since most waiters return.
func (w *wakes) release(subject string, x *subscription) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if x.n--; x.n > 0 || w.all[subject] != x {
		return
	}
	x.left = time.Now()
	if w.idle++; w.idle > wakeLingers {
		w.forget(subject, x)
	}
}

func (w *wakes) forget(subject string, x *subscription) {
	_ = x.sub.Unsubscribe() // fails only with the connection
	delete(w.all, subject)
	w.idle--
}

// tidy ends the subscriptions without waiters after wakeLinger.
func (w *wakes) tidy() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for subject, x := range w.all {
		if x.n == 0 && time.Since(x.left) > wakeLinger {
			w.forget(subject, x)
		}
	}
}

// next returns the channel closed at the next record, and the time after which to read again.
func (w *wakes) next(x *subscription, looks int) (<-chan struct{}, time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if time.Since(x.since) < wakeFresh {
		return x.ch, min(10*time.Millisecond<<min(looks, 10), wakeFresh)
	}
	return x.ch, wakeLook/2 + rand.N(wakeLook)
}

// Wait implements [store.Log].
func (s *Store) Wait(ctx context.Context, stream string, after uint64) error {
	ctx, end, err := s.enter(ctx, "stream name", stream)
	if err != nil {
		return err
	}
	defer end()
	name := digest(stream)
	subject := s.wakePrefix + name
	x, err := s.wakes.listen(subject)
	if err != nil {
		if s.nc.IsClosed() {
			return store.ErrClosed
		}
		return err
	}
	defer s.wakes.release(subject, x)
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for looks := 0; ; looks++ {
		ch, patience := s.wakes.next(x, looks)
		records, err := s.read(ctx, name, after, 1)
		loss := s.lost.Load()
		switch {
		case loss != nil:
			return *loss
		case errors.Is(err, store.ErrCorrupt):
			return err
		case err == nil && len(records) > 0:
			return nil
		case ctx.Err() != nil:
			return cause(ctx)
		case err != nil && s.nc.IsClosed():
			return store.ErrClosed
		case err != nil:
			// To wait is to be patient: a cluster without leader finds one.
			s.opts.Logger.DebugContext(ctx, "natsstore: wait", "err", err)
		}
		timer.Reset(patience)
		select {
		case <-ch:
		case <-timer.C:
		case <-ctx.Done():
			return cause(ctx)
		case <-s.wakes.quit:
			return store.ErrClosed
		}
	}
}
