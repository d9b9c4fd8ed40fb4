// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package natsstore

import (
	"context"
	"errors"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/fivewire/fivewire/store"
)

// Headers of messages of a store.
const (
	lifeHeader = "Fivewire-TTL" // nanoseconds from the time of storing; absent: no expiry
	goneHeader = "Fivewire-Deleted"
)

// A key is the last message of its subject, and its revision is the number of that message. A
// deletion is a message too, so that the leader checks the condition of each write against the
// writes that it has accepted.
//
// A message that replaces another one removes it once it is stored. If a server is killed in
// between, both exist, and the older one must not become visible when the newer one expires.
// Therefore the servers remove by ttl only messages that replaced nothing; all others are purged,
// which removes older messages too.

func (s *Store) keySubject(key string) string {
	return string(appendTokens([]byte(s.kv.prefix+"k."), key))
}

// expires returns when m expires; zero for never.
func (m *stored) expires() int64 {
	text := m.header.Get(lifeHeader)
	if text == "" {
		return 0
	}
	ttl, err := strconv.ParseInt(text, 10, 64)
	if err != nil || ttl <= 0 {
		return m.at // a hand has been at it
	}
	return after(m.at, time.Duration(ttl))
}

// isThere reports whether m is a key that is neither deleted nor expired. The time now precedes the
// read of m: at a later time m may have expired while a replacement in time has not.
func isThere(m *stored, now int64) bool {
	return m != nil && m.header.Get(goneHeader) == "" && alive(m.expires(), now)
}

func alive(expires, now int64) bool { return expires == 0 || now < expires }

func lifeOf(ttl time.Duration) nats.Header {
	h := nats.Header{}
	if ttl != 0 {
		h[lifeHeader] = []string{strconv.FormatInt(int64(ttl), 10)}
	}
	return h
}

// entry is m as the caller sees it.
func (s *Store) entry(key string, m *stored) store.Entry {
	expires := m.expires()
	s.entries.put(m.seq, expires)
	return store.Entry{Key: key, Value: m.value, Revision: store.Revision(m.seq), Expires: moment(expires)}
}

// enter checks what all methods check, and lets the call in.
func (s *Store) enter(ctx context.Context, what, name string) (context.Context, func(), error) {
	if err := ctx.Err(); err != nil {
		return nil, nil, err
	}
	if err := store.ValidateName(what, name); err != nil {
		return nil, nil, err
	}
	return s.beginIntact(ctx)
}

// enterWrite is enter for a call that stores a value.
func (s *Store) enterWrite(ctx context.Context, what, name string, value []byte, ttl time.Duration) (context.Context, func(), error) {
	if err := ctx.Err(); err != nil {
		return nil, nil, err
	}
	if err := store.ValidateName(what, name); err != nil {
		return nil, nil, err
	}
	if err := s.checkValue(value); err != nil {
		return nil, nil, err
	}
	if err := store.ValidateTTL(ttl); err != nil {
		return nil, nil, err
	}
	return s.beginIntact(ctx)
}

// put writes the message of a key.
func (s *Store) put(ctx context.Context, subject string, value []byte, ttl time.Duration, last uint64) (store.Revision, error) {
	h := lifeOf(ttl)
	switch {
	case last != 0:
		h[rollupHeader] = []string{"sub"}
	case ttl != 0:
		h[ttlHeader] = []string{serverTTL(ttl)}
	}
	// The server's expiry is later than this by the time of transit. An entry that the cache takes
	// for expired is read again.
	expires := after(s.clock.now(), ttl)
	seq, err := s.publish(ctx, s.kv, subject, h, value, condition{subject, last})
	if err != nil {
		return 0, err
	}
	s.entries.put(seq, expires)
	return store.Revision(seq), nil
}

// Get implements [store.KV].
func (s *Store) Get(ctx context.Context, key string) (store.Entry, error) {
	ctx, end, err := s.enter(ctx, "key", key)
	if err != nil {
		return store.Entry{}, err
	}
	defer end()
	now := s.clock.now()
	m, err := s.fetch(ctx, s.kv, lastOf(s.keySubject(key)))
	if err != nil {
		return store.Entry{}, err
	}
	if !isThere(m, now) {
		return store.Entry{}, store.ErrNotFound
	}
	return s.entry(key, m), nil
}

// Create implements [store.KV].
func (s *Store) Create(ctx context.Context, key string, value []byte, ttl time.Duration) (store.Revision, error) {
	ctx, end, err := s.enterWrite(ctx, "key", key, value, ttl)
	if err != nil {
		return 0, err
	}
	defer end()
	subject := s.keySubject(key)
	last := uint64(0) // most keys that are created were never there
	for {
		rev, err := s.put(ctx, subject, value, ttl, last)
		if !errors.Is(err, errConflict) {
			return rev, err
		}
		now := s.clock.now()
		m, err := s.fetch(ctx, s.kv, lastOf(subject))
		if err != nil {
			return 0, err
		}
		if isThere(m, now) {
			return 0, store.ErrExists
		}
		last = 0
		if m != nil { // deleted or expired
			last = m.seq
		}
	}
}

// Update implements [store.KV].
func (s *Store) Update(ctx context.Context, key string, value []byte, rev store.Revision, ttl time.Duration) (store.Revision, error) {
	ctx, end, err := s.enterWrite(ctx, "key", key, value, ttl)
	if err != nil {
		return 0, err
	}
	defer end()
	subject := s.keySubject(key)
	if expires, ok := s.entries.get(uint64(rev)); !ok || !alive(expires, s.clock.now()) || rev == 0 {
		if err := s.at(ctx, subject, rev); err != nil {
			return 0, err
		}
	}
	next, err := s.put(ctx, subject, value, ttl, uint64(rev))
	if !errors.Is(err, errConflict) {
		return next, err
	}
	if err := s.at(ctx, subject, rev); err != nil {
		return 0, err
	}
	return 0, store.ErrConflict
}

// at checks that the key of subject exists at that revision.
func (s *Store) at(ctx context.Context, subject string, rev store.Revision) error {
	now := s.clock.now()
	m, err := s.fetch(ctx, s.kv, lastOf(subject))
	switch {
	case err != nil:
		return err
	case !isThere(m, now):
		return store.ErrNotFound
	case m.seq != uint64(rev):
		return store.ErrConflict
	}
	return nil
}

// Delete implements [store.KV].
func (s *Store) Delete(ctx context.Context, key string, rev store.Revision) error {
	ctx, end, err := s.enter(ctx, "key", key)
	if err != nil {
		return err
	}
	defer end()
	subject := s.keySubject(key)
	for {
		now := s.clock.now()
		m, err := s.fetch(ctx, s.kv, lastOf(subject))
		switch {
		case err != nil:
			return err
		case !isThere(m, now):
			return nil
		case rev != 0 && m.seq != uint64(rev):
			return store.ErrConflict
		}
		h := nats.Header{goneHeader: {"1"}, rollupHeader: {"sub"}}
		seq, err := s.publish(ctx, s.kv, subject, h, nil, condition{subject, m.seq})
		switch {
		case err == nil:
			// The key is deleted, so its marker may be removed. If this request is lost, a sweep
			// does it.
			_ = s.nc.PublishMsg(&nats.Msg{Subject: purgeAPI + s.kv.name, Reply: s.nc.NewRespInbox(), Data: purgeBody(subject, seq+1)})
			return nil
		case hasCode(err, codeResources, codeStorage, codeMemory, codeStoreFailed):
			// The store is too full for a marker. Purging the message needs no space, but does not
			// make an Update fail that the leader accepted a moment ago; a store this full accepts
			// none.
			return s.purge(ctx, s.kv, subject, m.seq+1)
		case !errors.Is(err, errConflict):
			return err
		}
	}
}
