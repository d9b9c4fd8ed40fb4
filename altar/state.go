// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package altar

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fivewire/fivewire/internal/randid"
	"github.com/fivewire/fivewire/internal/strictjson"
	"github.com/fivewire/fivewire/store"
)

// overStream tells all Hosts of a store which sessions were destroyed.
const (
	overStream = "altar/over"
	overTTL    = time.Hour
)

func sessionKey(id string) string              { return "altar/session/" + id }
func callKey(session, call string) string      { return "altar/call/" + session + "/" + call }
func ownerKey(runtimeID string) string         { return "altar/runtime/" + runtimeID }
func hostKey(hostID string) string             { return "altar/host/" + hostID }
func (s *state) logError(what string, e error) { s.h.opts.Logger.Error("altar: "+what, "err", e) }

// A state is the part of a Host in a store. Its methods are called without h.mu.
type state struct {
	h *Host
	// instance tells this Host from others, earlier ones of the same ID
	// included.
	instance string
	claims   atomic.Int64 // numbers those of calls
	doubts   sync.Map     // numbers of those that may be in the store although their call did not run

	mu        sync.Mutex
	started   bool           // the lease was written; guarded by mu
	fenced    bool           // another Host has the same ID; guarded by mu
	lease     store.Revision // guarded by mu
	cursor    uint64         // in overStream; guarded by mu
	startDone chan struct{}  // closed by begin
}

func newState(h *Host) *state {
	return &state{h: h, instance: randid.New(""), startDone: make(chan struct{})}
}

func (s *state) db() store.Store { return s.h.opts.Persistence.Store }

func (s *state) context() (context.Context, context.CancelFunc) {
	return context.WithTimeout(s.h.ctx, s.h.opts.Persistence.StoreTimeout)
}

var errFenced = errors.New("altar: Host ID in use by another process")

// begin creates the lease of this Host before any other use of the store.
func (s *state) begin(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.fenced {
		return errFenced
	}
	if s.started {
		return nil
	}
	// Skip the ends of sessions from before this Host had any.
	for {
		list, err := s.db().Read(ctx, overStream, s.cursor, 1000)
		if err != nil {
			return err
		}
		if len(list) == 0 {
			break
		}
		s.cursor = list[len(list)-1].Seq
	}
	for {
		e, err := s.db().Get(ctx, hostKey(s.h.opts.ID))
		switch {
		case errors.Is(err, store.ErrNotFound):
			s.lease, err = s.db().Create(ctx, hostKey(s.h.opts.ID), []byte(s.instance), s.h.opts.Persistence.LeaseTTL)
		case err == nil: // an earlier one, or one that is to be replaced by this
			s.lease, err = s.db().Update(ctx, hostKey(s.h.opts.ID), []byte(s.instance), e.Revision, s.h.opts.Persistence.LeaseTTL)
		}
		if err == nil {
			break
		}
		if !changed(err) {
			return err
		}
	}
	s.started = true
	close(s.startDone)
	return nil
}

// changed reports that another Host changed the record first.
func changed(err error) bool {
	return errors.Is(err, store.ErrExists) || errors.Is(err, store.ErrConflict) || errors.Is(err, store.ErrNotFound)
}

// run renews the lease and follows the ends of sessions until the Host is closed.
func (s *state) run() {
	defer s.h.wg.Done()
	ctx := s.h.ctx
	select {
	case <-s.startDone:
	case <-ctx.Done():
		return
	}
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() { s.listen(ctx) })
	renew, owners := time.NewTicker(s.h.opts.Persistence.LeaseTTL/3), time.NewTicker(s.h.opts.Persistence.TombstoneTTL/4)
	defer renew.Stop()
	defer owners.Stop()
	for {
		select {
		case <-renew.C:
			s.renew()
		case <-owners.C:
			for _, id := range s.h.Runtimes() {
				s.holdOwner(id, s.h.opts.Persistence.TombstoneTTL/4)
			}
		case <-ctx.Done():
			s.releaseLease()
			return
		}
	}
}

func (s *state) renew() {
	ctx, cancel := s.context()
	defer cancel()
	s.mu.Lock()
	defer s.mu.Unlock()
	key := hostKey(s.h.opts.ID)
	rev, err := s.db().Update(ctx, key, []byte(s.instance), s.lease, s.h.opts.Persistence.LeaseTTL)
	if errors.Is(err, store.ErrNotFound) { // too late; other Hosts may have seen the lease expire
		rev, err = s.db().Create(ctx, key, []byte(s.instance), s.h.opts.Persistence.LeaseTTL)
	}
	if errors.Is(err, store.ErrConflict) || errors.Is(err, store.ErrExists) {
		// Perhaps it was this Host, and the answer got lost.
		var e store.Entry
		if e, err = s.db().Get(ctx, key); err == nil {
			if rev = e.Revision; string(e.Value) != s.instance {
				s.fenced = true
				err = errFenced
			}
		}
	}
	if err == nil {
		s.lease, s.fenced = rev, false
	} else if s.h.ctx.Err() == nil {
		s.logError("lease not renewed", err)
	}
}

// releaseLease releases the lease, so that other Hosts can decide about its calls at once.
func (s *state) releaseLease() {
	ctx, cancel := context.WithTimeout(context.Background(), s.h.opts.Persistence.StoreTimeout)
	defer cancel()
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.db().Delete(ctx, hostKey(s.h.opts.ID), s.lease); err != nil && !changed(err) {
		s.logError("lease not released", err)
	}
}

// alive reports whether the Host of a record may still run the call.
func (s *state) alive(ctx context.Context, r *callRecord) (bool, error) {
	if r.Instance == s.instance {
		return false, nil // this Host would know
	}
	e, err := s.db().Get(ctx, hostKey(r.Host))
	if errors.Is(err, store.ErrNotFound) {
		return false, nil
	}
	return err == nil && string(e.Value) == r.Instance, err
}

// listen follows the sessions that other Hosts destroyed.
func (s *state) listen(ctx context.Context) {
	s.mu.Lock()
	after := s.cursor
	s.mu.Unlock()
	for ctx.Err() == nil {
		err := s.db().Wait(ctx, overStream, after)
		var list []store.Record
		if err == nil {
			list, err = s.db().Read(ctx, overStream, after, 100)
		}
		for _, rec := range list {
			after = rec.Seq
			if instance, id, ok := strings.Cut(string(rec.Value), " "); ok && instance != s.instance {
				s.h.destroyedElsewhere(id)
			}
		}
		if err != nil && ctx.Err() == nil {
			s.logError("ended sessions not read", err)
			t := time.NewTimer(time.Second) // an engine that fails at once must not keep us busy
			select {
			case <-t.C:
			case <-ctx.Done():
			}
			t.Stop()
		}
	}
}

// putSession keeps a new session. The id may be taken: [store.ErrExists].
func (s *state) putSession(id string, r *sessionRecord) error {
	ctx, cancel := s.context()
	defer cancel()
	if err := s.begin(ctx); err != nil {
		return err
	}
	value, err := strictjson.Encode(r)
	if err == nil {
		_, err = s.db().Create(ctx, sessionKey(id), value, time.Duration(r.TTL)+s.h.opts.Persistence.TombstoneTTL)
	}
	return err
}

// session returns a live session, or nil.
func (s *state) session(id string) (*sessionRecord, store.Revision, error) {
	if !validIdentifier(id) {
		return nil, 0, nil
	}
	ctx, cancel := s.context()
	defer cancel()
	if err := s.begin(ctx); err != nil {
		return nil, 0, err
	}
	e, err := s.db().Get(ctx, sessionKey(id))
	if errors.Is(err, store.ErrNotFound) {
		return nil, 0, nil
	}
	if err != nil {
		return nil, 0, err
	}
	r := &sessionRecord{}
	if err := readRecord(e.Value, r); err != nil {
		return nil, 0, err
	}
	if r.Over || !time.Now().Before(time.Unix(0, r.Expires)) {
		return nil, 0, nil
	}
	return r, e.Revision, nil
}

// changeSession rewrites the record of a live session. It does nothing if there
// is none.
func (s *state) changeSession(id string, change func(r *sessionRecord)) error {
	for {
		r, rev, err := s.session(id)
		if r == nil || err != nil {
			return err
		}
		change(r)
		value, err := strictjson.Encode(r)
		if err != nil {
			return err
		}
		ctx, cancel := s.context()
		_, err = s.db().Update(ctx, sessionKey(id), value, rev, max(time.Until(time.Unix(0, r.Expires)), 0)+s.h.opts.Persistence.TombstoneTTL)
		cancel()
		if err == nil || !changed(err) {
			return err
		}
	}
}

// endSession marks a session as ended and notifies the other Hosts.
func (s *state) endSession(id string) error {
	err := s.changeSession(id, func(r *sessionRecord) {
		r.Over, r.Expires = true, time.Now().UnixNano()
	})
	if err != nil {
		return err
	}
	ctx, cancel := s.context()
	defer cancel()
	_, err = s.db().Append(ctx, overStream, "", []byte(s.instance+" "+id), overTTL)
	return err
}

// own makes a runtime id that of a principal, and reports false if it is
// another's (ALT-D16).
func (s *state) own(runtimeID string, p principal) (bool, error) {
	ctx, cancel := s.context()
	defer cancel()
	if err := s.begin(ctx); err != nil {
		return false, err
	}
	ttl := s.h.opts.Persistence.TombstoneTTL + s.h.opts.Persistence.TombstoneTTL/2
	value, err := strictjson.Encode(&ownerRecord{p.name, p.tenant})
	for err == nil {
		if _, err = s.db().Create(ctx, ownerKey(runtimeID), value, ttl); err == nil {
			return true, nil
		}
		if !errors.Is(err, store.ErrExists) {
			break
		}
		var e store.Entry
		if e, err = s.db().Get(ctx, ownerKey(runtimeID)); err == nil {
			var r ownerRecord
			if err = readRecord(e.Value, &r); err != nil {
				break
			}
			if (principal{r.Tenant, r.Name}) != p {
				return false, nil
			}
			if _, err = s.db().Update(ctx, ownerKey(runtimeID), value, e.Revision, ttl); err == nil {
				return true, nil
			}
		}
		if changed(err) {
			err = nil
		}
	}
	return false, err
}

// holdOwner makes the owner of a runtime id keep it for ForgetAfter and a while.
func (s *state) holdOwner(runtimeID string, more time.Duration) {
	ctx, cancel := s.context()
	defer cancel()
	e, err := s.db().Get(ctx, ownerKey(runtimeID))
	if err == nil {
		_, err = s.db().Update(ctx, ownerKey(runtimeID), e.Value, e.Revision, s.h.opts.Persistence.TombstoneTTL+more)
	}
	if err != nil && !changed(err) && s.h.ctx.Err() == nil {
		s.logError("Runtime owner not recorded", err)
	}
}
