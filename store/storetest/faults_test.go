// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package storetest

import (
	"bytes"
	"context"
	"errors"
	"hash/fnv"
	"iter"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fivewire/fivewire/store"
	"golang.org/x/text/unicode/norm"
)

// A fault is an engine with one mistake that its author may make, and the tests that must detect
// it.
type fault struct {
	name  string
	make  func(s store.Store) store.Store // s is a sound engine, and empty
	suite Suite
	fails []string // these at least
	alone bool     // it brings its process down
}

var faults = []fault{
	{name: "sound", make: func(s store.Store) store.Store { return s }},

	{name: "create overwrites", make: func(s store.Store) store.Store { return createOverwrites{s} },
		fails: []string{"KV/CreateGet", "KV/CreateRace", "Values/Empty", "Model/Random"}},
	{name: "create has two winners", make: func(s store.Store) store.Store { return twoWinners{s} },
		fails: []string{"KV/CreateRace", "KV/ExpiredRace"}},
	{name: "update ignores revision", make: func(s store.Store) store.Store { return lostUpdate{s} },
		fails: []string{"KV/Update", "KV/UpdateRace", "KV/Counter", "KV/Revisions", "Model/Random"}},
	{name: "update looks, then writes", make: func(s store.Store) store.Store { return racyUpdate{s} },
		fails: []string{"KV/UpdateRace", "KV/Counter", "Model/Concurrent"}},
	{name: "update creates", make: func(s store.Store) store.Store { return updateCreates{s} },
		fails: []string{"KV/Update", "KV/Delete", "KV/ExpiredIsAbsent"}},
	{name: "update at zero forces", make: func(s store.Store) store.Store { return updateForces{s} },
		fails: []string{"KV/Update", "Model/Random"}},
	{name: "revision is a hash of the value", make: func(s store.Store) store.Store { return hashRevision{s} },
		fails: []string{"KV/Update", "KV/Revisions"}},
	{name: "delete ignores revision", make: func(s store.Store) store.Store { return deleteForces{s} },
		fails: []string{"KV/Delete", "KV/DeleteRace", "KV/Revisions", "Model/Random"}},
	{name: "delete of nothing fails", make: func(s store.Store) store.Store { return deleteFails{s} },
		fails: []string{"KV/Delete", "KV/ExpiredIsAbsent", "Model/Random"}},
	{name: "ttl ignored", make: func(s store.Store) store.Store { return otherTTL{s, func(time.Duration) time.Duration { return 0 }} },
		fails: []string{"KV/Expiry", "KV/ExpiredIsAbsent", "KV/UpdateTTL", "Log/Expiry", "Log/ExpiryMixed", "IDs/ForgottenByExpiry", "Wait/Expired"}},
	{name: "ttl halved", make: func(s store.Store) store.Store {
		return otherTTL{s, func(ttl time.Duration) time.Duration { return ttl / 2 }}
	}, fails: []string{"KV/Expiry", "KV/UpdateTTL", "Log/Expiry", "IDs/KnownAfterAck", "IDs/ForgottenByExpiry"}},
	{name: "ttl in whole seconds", make: func(s store.Store) store.Store {
		return otherTTL{s, func(ttl time.Duration) time.Duration { return (ttl + time.Second - 1).Truncate(time.Second) }}
	}, fails: []string{"KV/Expiry", "KV/UpdateTTL", "Log/Expiry", "Log/Positions", "IDs/ForgottenByExpiry"}},
	{name: "ttl in milliseconds, rounded down", make: func(s store.Store) store.Store {
		return otherTTL{s, func(ttl time.Duration) time.Duration { return ttl.Truncate(time.Millisecond) }}
	}, fails: []string{"Limits/ShortTTL"}},
	{name: "update keeps the ttl", make: func(s store.Store) store.Store { return updateKeepsTTL{s} },
		fails: []string{"KV/UpdateTTL", "Model/Random"}},
	{name: "times missing", make: func(s store.Store) store.Store { return noTimes{s} },
		fails: []string{"KV/CreateGet", "List/Entries", "Log/AppendRead", "Model/Random"}},

	{name: "list of the expired", make: func(s store.Store) store.Store { return &listsExpired{Store: s, all: store.NewMemory()} },
		fails: []string{"KV/Expiry", "KV/ExpiredIsAbsent", "Model/Random"}},
	{name: "list in reverse", make: func(s store.Store) store.Store { return listReversed{s} },
		fails: []string{"List/Prefix", "List/Entries", "List/Many", "List/WhileWriting", "Model/Random"}},
	{name: "list folds case", make: func(s store.Store) store.Store { return listFolded{s} },
		fails: []string{"List/Prefix", "Values/Names"}},
	{name: "list by offset", make: func(s store.Store) store.Store { return listByOffset{s} },
		fails: []string{"List/CallsInside", "List/WhileWriting"}},
	{name: "list keeps the only connection", make: func(s store.Store) store.Store { return &oneConnection{s, make(chan bool, 1)} },
		fails: []string{"List/CallsInside"}},
	{name: "list keeps its connection when left", make: func(s store.Store) store.Store { return &leakyList{s, make(chan bool, 8)} },
		fails: []string{"List/Break"}},
	{name: "list ends silently", make: func(s store.Store) store.Store { return listSilent{s} },
		fails: []string{"Context/Ended", "Context/ListCancelled", "Limits/Prefix"}},
	{name: "list goes on after an error", make: func(s store.Store) store.Store { return listGoesOn{s} },
		fails: []string{"Context/Ended", "Limits/Prefix"}},

	{name: "keys trimmed", make: func(s store.Store) store.Store { return otherNames{s, strings.TrimSpace} },
		fails: []string{"List/Prefix", "Values/Names"}},
	{name: "keys folded", make: func(s store.Store) store.Store { return otherNames{s, strings.ToLower} },
		fails: []string{"List/Prefix", "Log/Apart", "IDs/Duplicate", "Values/Names", "Wait/Silent"}},
	{name: "keys normalised", make: func(s store.Store) store.Store { return otherNames{s, norm.NFC.String} },
		fails: []string{"Log/Apart", "Values/Names"}},
	{name: "keys cut", make: func(s store.Store) store.Store {
		return otherNames{s, func(name string) string { return strings.ToValidUTF8(name[:min(len(name), 255)], "") }}
	}, fails: []string{"Values/Names", "Limits/Names"}},
	{name: "keys share their names with streams", make: func(s store.Store) store.Store { return &sharedNames{Store: s} },
		fails: []string{"Log/Apart"}},
	{name: "values not copied", make: func(s store.Store) store.Store { return &aliases{Store: s, values: map[string][]byte{}} },
		fails: []string{"Values/Copied"}},
	{name: "buffers used again", make: func(s store.Store) store.Store { return &oneBuffer{Store: s} },
		fails: []string{"Values/Copied"}},
	{name: "empty values absent", make: func(s store.Store) store.Store { return emptyAbsent{s} },
		fails: []string{"Values/Empty"}},
	{name: "values are text", make: func(s store.Store) store.Store { return textValues{s} },
		fails: []string{"Values/Bytes", "Values/Big"}},
	{name: "values of 1 MiB", make: func(s store.Store) store.Store { return smallValues{s} },
		fails: []string{"Values/Big"}},
	{name: "values of 1 MiB, but limited later", make: func(s store.Store) store.Store { return s }, suite: Suite{MaxValue: 1 << 20},
		fails: []string{"Limits/Value"}},
	{name: "no limits", make: func(s store.Store) store.Store { return noLimits{s} },
		fails: []string{"Limits/Names", "Limits/IDs", "Limits/Prefix", "Limits/Value", "Limits/TTL", "Sub/Limits"}},
	{name: "context ignored", make: func(s store.Store) store.Store { return noContext{s} },
		fails: []string{"Context/Ended"}},

	{name: "records in reverse", make: func(s store.Store) store.Store { return readReversed{s} },
		fails: []string{"Log/AppendRead", "Log/Cursor", "Log/Concurrent", "Model/Random"}},
	{name: "records appear late", make: func(s store.Store) store.Store { return &appearLate{Store: s, hidden: map[uint64]bool{}} },
		fails: []string{"Log/Concurrent"}},
	{name: "cursor included", make: func(s store.Store) store.Store { return cursorIncluded{s} },
		fails: []string{"Log/Cursor", "Log/Concurrent", "Wait/PingPong"}},
	{name: "limit ignored", make: func(s store.Store) store.Store { return otherLimit{s, func(int) int { return 1000 }} },
		fails: []string{"Log/Limit", "Model/Random"}},
	{name: "limit of ten", make: func(s store.Store) store.Store {
		return otherLimit{s, func(limit int) int { return min(max(limit, 1), 10) }}
	}, fails: []string{"Log/Limit", "Log/Ack"}},
	{name: "limit before filter", make: func(s store.Store) store.Store { return &limitFirst{Store: s, acked: map[string]map[uint64]bool{}} },
		fails: []string{"Log/Limit", "Log/Drain"}},
	{name: "ack does nothing", make: func(s store.Store) store.Store { return ackNothing{s} },
		fails: []string{"Log/Ack", "Log/Drain", "Log/Limit", "IDs/ForgottenByAck", "Wait/There"}},
	{name: "ack takes all before", make: func(s store.Store) store.Store { return ackUpTo{s} },
		fails: []string{"Log/Ack", "Model/Random"}},
	{name: "ack of unknown fails", make: func(s store.Store) store.Store { return ackFails{s} },
		fails: []string{"Log/Ack", "Model/Random"}},
	{name: "ack stops at unknown", make: func(s store.Store) store.Store { return ackStops{s} },
		fails: []string{"Log/Ack"}},
	{name: "ack in every stream", make: func(s store.Store) store.Store { return &ackEverywhere{Store: s} },
		fails: []string{"Log/AckOfOthers"}},
	{name: "positions used again", make: func(s store.Store) store.Store { return &positionsAgain{Store: s, base: map[string]uint64{}} },
		fails: []string{"Log/Positions", "Model/Random"}},
	{name: "expire does nothing", make: func(s store.Store) store.Store { return expireNothing{s} },
		fails: []string{"Log/Expire", "Log/ExpireNow", "Log/Positions", "IDs/Expire", "IDs/ExpireLater"}},
	{name: "expire leaves ids", make: func(s store.Store) store.Store { return expireLeavesIDs{s} },
		fails: []string{"IDs/Expire", "Model/Random"}},
	{name: "ack writes what is left when all is gone", make: func(s store.Store) store.Store { return lateAck{s} },
		fails: []string{"Model/Concurrent"}},
	{name: "expire only shortens", make: func(s store.Store) store.Store { return expireShortens{s} },
		fails: []string{"Log/Expire", "IDs/ExpireLater"}},
	{name: "expire for what comes", make: func(s store.Store) store.Store { return &expireSticks{Store: s, ttl: map[string]time.Duration{}} },
		fails: []string{"Log/Expire", "Model/Random"}},

	{name: "ids ignored", make: func(s store.Store) store.Store { return noIDs{s} },
		fails: []string{"Log/AppendRead", "IDs/Duplicate", "IDs/DuplicateRace", "IDs/KnownAfterAck", "Values/Names", "Model/Random"}},
	{name: "ids looked up, then added", make: func(s store.Store) store.Store { return &lateIDs{Store: s, ids: map[string]uint64{}} },
		fails: []string{"IDs/DuplicateRace"}},
	{name: "ids known for ever", make: func(s store.Store) store.Store { return &eternalIDs{Store: s, ids: map[string]uint64{}} },
		fails: []string{"IDs/ForgottenByAck", "IDs/ForgottenByExpiry", "IDs/ForgottenRace", "IDs/Expire", "Wait/Expired"}},
	{name: "ids forgotten by ack", make: func(s store.Store) store.Store {
		return &ackForgets{Store: s, ids: map[uint64]string{}, uses: map[string]string{}}
	}, fails: []string{"IDs/KnownAfterAck", "Wait/Duplicate", "Model/Random"}},
	{name: "ids of all streams", make: func(s store.Store) store.Store { return &globalIDs{Store: s, ids: map[string]uint64{}} },
		fails: []string{"Log/Apart", "IDs/Duplicate", "Sub/Apart"}},
	{name: "duplicate without position", make: func(s store.Store) store.Store { return noPosition{s} },
		fails: []string{"IDs/Duplicate", "IDs/DuplicateRace", "Model/Random"}},
	{name: "duplicate renews the ttl", make: func(s store.Store) store.Store { return duplicateRenews{s} },
		fails: []string{"IDs/TTLOfFirst", "Model/Random"}},

	{name: "wait never wakes", make: func(s store.Store) store.Store { return waitNever{s} },
		fails: []string{"Wait/There", "Wait/Wakes", "Wait/Many", "Wait/PingPong", "Log/Concurrent"}},
	{name: "wait always returns", make: func(s store.Store) store.Store { return waitAlways{s} },
		fails: []string{"Wait/There", "Wait/Cursor", "Wait/Silent", "Wait/Cancel", "Wait/Expired"}},
	{name: "wait for any stream", make: func(s store.Store) store.Store { return &waitSignal{Store: s} },
		fails: []string{"Wait/Silent"}},
	{name: "wait loses wake-ups", make: func(s store.Store) store.Store { return &waitSignal{Store: s, check: true, gap: 1} },
		fails: []string{"Wait/PingPong"}},
	{name: "wait wakes one", make: func(s store.Store) store.Store { return &waitSignal{Store: s, check: true, one: true} },
		fails: []string{"Wait/Many"}},
	{name: "wait gives up with others", make: func(s store.Store) store.Store { return &waitTogether{Store: s} },
		fails: []string{"Wait/CancelOne"}},
	{name: "wait ends on duplicates", make: func(s store.Store) store.Store { return &waitSignal{Store: s, duplicates: true} },
		fails: []string{"Wait/Duplicate"}},
	{name: "wait sees the expired", make: func(s store.Store) store.Store { return &waitExpired{Store: s, last: map[string]uint64{}} },
		fails: []string{"Wait/Expired", "Wait/There"}},
	{name: "wait ignores its context", make: func(s store.Store) store.Store { return waitForEver{s} },
		fails: []string{"Log/Concurrent"}, alone: true},

	{name: "peer sees nothing", make: func(s store.Store) store.Store { return s },
		suite: Suite{Peer: func(*testing.T, store.Store) store.Store { return store.NewMemory() }},
		fails: []string{"KV/CreateRace", "KV/UpdateRace", "KV/Counter", "List/WhileWriting", "Log/Concurrent", "IDs/DuplicateRace", "Wait/Wakes", "Wait/PingPong"}},
	{name: "peer wakes nobody", make: func(s store.Store) store.Store { return &waitSignal{Store: s, check: true} },
		suite: Suite{Peer: func(_ *testing.T, s store.Store) store.Store {
			return &waitSignal{Store: s.(*waitSignal).Store, check: true}
		}},
		fails: []string{"Wait/Wakes", "Wait/PingPong"}},
	{name: "nothing survives", make: func(s store.Store) store.Store { return s },
		suite: Suite{Reopen: func(*testing.T, store.Store) store.Store { return store.NewMemory() }},
		fails: []string{"Reopen/KV", "Reopen/Log", "Reopen/Expiry"}},
	{name: "counters do not survive", make: func(s store.Store) store.Store { return s },
		suite: Suite{Reopen: copied},
		fails: []string{"Reopen/KV", "Reopen/Log"}},
}

// copied has the data of s as far as Get and Read show it.
func copied(t *testing.T, s store.Store) store.Store {
	dst := store.NewMemory()
	for e, err := range s.List(t.Context(), "") {
		if err == nil {
			_, _ = dst.Create(t.Context(), e.Key, e.Value, remaining(e.Expires))
		}
	}
	for _, stream := range []string{"s", "emptied", "expired"} {
		records, _ := s.Read(t.Context(), stream, 0, 100)
		for _, r := range records {
			_, _ = dst.Append(t.Context(), stream, r.ID, r.Value, remaining(r.Expires))
		}
	}
	return dst
}

func remaining(expires time.Time) time.Duration {
	if expires.IsZero() {
		return 0
	}
	return time.Until(expires)
}

// ---- KV ----

type createOverwrites struct{ store.Store }

func (s createOverwrites) Create(ctx context.Context, key string, value []byte, ttl time.Duration) (store.Revision, error) {
	rev, err := s.Store.Create(ctx, key, value, ttl)
	if errors.Is(err, store.ErrExists) {
		e, _ := s.Get(ctx, key)
		return s.Update(ctx, key, value, e.Revision, ttl)
	}
	return rev, err
}

type twoWinners struct{ store.Store }

func (s twoWinners) Create(ctx context.Context, key string, value []byte, ttl time.Duration) (store.Revision, error) {
	if _, err := s.Get(ctx, key); !errors.Is(err, store.ErrNotFound) {
		return s.Store.Create(ctx, key, value, ttl)
	}
	time.Sleep(time.Nanosecond)
	return createOverwrites(s).Create(ctx, key, value, ttl)
}

type lostUpdate struct{ store.Store }

func (s lostUpdate) Update(ctx context.Context, key string, value []byte, rev store.Revision, ttl time.Duration) (store.Revision, error) {
	e, err := s.Get(ctx, key)
	time.Sleep(time.Nanosecond)
	for err == nil {
		rev, err = s.Store.Update(ctx, key, value, e.Revision, ttl)
		if !errors.Is(err, store.ErrConflict) {
			break
		}
		e, err = s.Get(ctx, key)
	}
	return rev, err
}

type racyUpdate struct{ store.Store }

func (s racyUpdate) Update(ctx context.Context, key string, value []byte, rev store.Revision, ttl time.Duration) (store.Revision, error) {
	if e, err := s.Get(ctx, key); err != nil || e.Revision != rev {
		return s.Store.Update(ctx, key, value, rev, ttl)
	}
	return lostUpdate(s).Update(ctx, key, value, rev, ttl)
}

type updateCreates struct{ store.Store }

func (s updateCreates) Update(ctx context.Context, key string, value []byte, rev store.Revision, ttl time.Duration) (store.Revision, error) {
	got, err := s.Store.Update(ctx, key, value, rev, ttl)
	if errors.Is(err, store.ErrNotFound) {
		return s.Create(ctx, key, value, ttl)
	}
	return got, err
}

type updateForces struct{ store.Store }

func (s updateForces) Update(ctx context.Context, key string, value []byte, rev store.Revision, ttl time.Duration) (store.Revision, error) {
	if rev == 0 {
		return lostUpdate(s).Update(ctx, key, value, rev, ttl)
	}
	return s.Store.Update(ctx, key, value, rev, ttl)
}

type hashRevision struct{ store.Store }

func hashOf(value []byte) store.Revision {
	h := fnv.New64a()
	h.Write(value)
	return store.Revision(h.Sum64() | 1)
}

func (s hashRevision) Get(ctx context.Context, key string) (store.Entry, error) {
	e, err := s.Store.Get(ctx, key)
	if err == nil {
		e.Revision = hashOf(e.Value)
	}
	return e, err
}

func (s hashRevision) Create(ctx context.Context, key string, value []byte, ttl time.Duration) (store.Revision, error) {
	rev, err := s.Store.Create(ctx, key, value, ttl)
	if err == nil {
		rev = hashOf(value)
	}
	return rev, err
}

// real translates a revision back.
func (s hashRevision) real(ctx context.Context, key string, rev store.Revision) store.Revision {
	if e, err := s.Store.Get(ctx, key); err == nil && hashOf(e.Value) == rev {
		return e.Revision
	}
	return rev
}

func (s hashRevision) Update(ctx context.Context, key string, value []byte, rev store.Revision, ttl time.Duration) (store.Revision, error) {
	rev, err := s.Store.Update(ctx, key, value, s.real(ctx, key, rev), ttl)
	if err == nil {
		rev = hashOf(value)
	}
	return rev, err
}

func (s hashRevision) Delete(ctx context.Context, key string, rev store.Revision) error {
	return s.Store.Delete(ctx, key, s.real(ctx, key, rev))
}

type deleteForces struct{ store.Store }

func (s deleteForces) Delete(ctx context.Context, key string, _ store.Revision) error {
	return s.Store.Delete(ctx, key, 0)
}

type deleteFails struct{ store.Store }

func (s deleteFails) Delete(ctx context.Context, key string, rev store.Revision) error {
	if _, err := s.Get(ctx, key); err != nil {
		return err
	}
	return s.Store.Delete(ctx, key, rev)
}

type otherTTL struct {
	store.Store
	f func(time.Duration) time.Duration
}

func (s otherTTL) Create(ctx context.Context, key string, value []byte, ttl time.Duration) (store.Revision, error) {
	return s.Store.Create(ctx, key, value, s.f(ttl))
}

func (s otherTTL) Update(ctx context.Context, key string, value []byte, rev store.Revision, ttl time.Duration) (store.Revision, error) {
	return s.Store.Update(ctx, key, value, rev, s.f(ttl))
}

func (s otherTTL) Append(ctx context.Context, stream, id string, value []byte, ttl time.Duration) (uint64, error) {
	return s.Store.Append(ctx, stream, id, value, s.f(ttl))
}

type updateKeepsTTL struct{ store.Store }

func (s updateKeepsTTL) Update(ctx context.Context, key string, value []byte, rev store.Revision, ttl time.Duration) (store.Revision, error) {
	if e, err := s.Get(ctx, key); err == nil {
		ttl = remaining(e.Expires)
	}
	return s.Store.Update(ctx, key, value, rev, ttl)
}

type noTimes struct{ store.Store }

func (s noTimes) Get(ctx context.Context, key string) (store.Entry, error) {
	e, err := s.Store.Get(ctx, key)
	e.Expires = time.Time{}
	return e, err
}

func (s noTimes) List(ctx context.Context, prefix string) iter.Seq2[store.Entry, error] {
	return func(yield func(store.Entry, error) bool) {
		for e, err := range s.Store.List(ctx, prefix) {
			e.Expires = time.Time{}
			if !yield(e, err) {
				return
			}
		}
	}
}

func (s noTimes) Read(ctx context.Context, stream string, after uint64, limit int) ([]store.Record, error) {
	records, err := s.Store.Read(ctx, stream, after, limit)
	for i := range records {
		records[i].Time, records[i].Expires = time.Time{}, time.Time{}
	}
	return records, err
}

// ---- List ----

// all collects what List of s yields.
func all(ctx context.Context, s store.Store, prefix string) (entries []store.Entry, err error) {
	for e, err := range s.List(ctx, prefix) {
		if err != nil {
			return entries, err
		}
		entries = append(entries, e)
	}
	return entries, nil
}

type listsExpired struct {
	store.Store
	all *store.Memory
}

func (s *listsExpired) Create(ctx context.Context, key string, value []byte, ttl time.Duration) (store.Revision, error) {
	rev, err := s.Store.Create(ctx, key, value, ttl)
	if err == nil {
		_ = s.all.Delete(ctx, key, 0)
		_, _ = s.all.Create(ctx, key, value, 0)
	}
	return rev, err
}

func (s *listsExpired) Delete(ctx context.Context, key string, rev store.Revision) error {
	err := s.Store.Delete(ctx, key, rev)
	if err == nil {
		_ = s.all.Delete(ctx, key, 0)
	}
	return err
}

func (s *listsExpired) List(ctx context.Context, prefix string) iter.Seq2[store.Entry, error] {
	return s.all.List(ctx, prefix)
}

type listReversed struct{ store.Store }

func (s listReversed) List(ctx context.Context, prefix string) iter.Seq2[store.Entry, error] {
	return func(yield func(store.Entry, error) bool) {
		entries, err := all(ctx, s.Store, prefix)
		for _, e := range slices.Backward(entries) {
			if !yield(e, nil) {
				return
			}
		}
		if err != nil {
			yield(store.Entry{}, err)
		}
	}
}

type listFolded struct{ store.Store }

func (s listFolded) List(ctx context.Context, prefix string) iter.Seq2[store.Entry, error] {
	return func(yield func(store.Entry, error) bool) {
		if _, err := all(ctx, s.Store, prefix); err != nil {
			yield(store.Entry{}, err)
			return
		}
		entries, _ := all(ctx, s.Store, "")
		for _, e := range entries {
			if strings.HasPrefix(strings.ToLower(e.Key), strings.ToLower(prefix)) && !yield(e, nil) {
				return
			}
		}
	}
}

type listByOffset struct{ store.Store }

func (s listByOffset) List(ctx context.Context, prefix string) iter.Seq2[store.Entry, error] {
	return func(yield func(store.Entry, error) bool) {
		for offset := 0; ; offset += 4 {
			entries, err := all(ctx, s.Store, prefix)
			if err != nil {
				yield(store.Entry{}, err)
				return
			}
			if offset >= len(entries) {
				return
			}
			for _, e := range entries[offset:min(offset+4, len(entries))] {
				if !yield(e, nil) {
					return
				}
			}
			time.Sleep(time.Nanosecond)
		}
	}
}

type oneConnection struct {
	store.Store
	busy chan bool
}

func (s *oneConnection) Get(ctx context.Context, key string) (store.Entry, error) {
	select {
	case s.busy <- true:
		defer func() { <-s.busy }()
		return s.Store.Get(ctx, key)
	case <-ctx.Done():
		return store.Entry{}, ctx.Err()
	}
}

func (s *oneConnection) List(ctx context.Context, prefix string) iter.Seq2[store.Entry, error] {
	return func(yield func(store.Entry, error) bool) {
		select {
		case s.busy <- true:
			defer func() { <-s.busy }()
			s.Store.List(ctx, prefix)(yield)
		case <-ctx.Done():
			yield(store.Entry{}, ctx.Err())
		}
	}
}

// leakyList gives back what it took from a pool unless the loop is left early.
type leakyList struct {
	store.Store
	busy chan bool
}

func (s *leakyList) List(ctx context.Context, prefix string) iter.Seq2[store.Entry, error] {
	return func(yield func(store.Entry, error) bool) {
		select {
		case s.busy <- true:
		case <-ctx.Done():
			yield(store.Entry{}, ctx.Err())
			return
		}
		for e, err := range s.Store.List(ctx, prefix) {
			if !yield(e, err) {
				return
			}
		}
		<-s.busy
	}
}

type listSilent struct{ store.Store }

func (s listSilent) List(ctx context.Context, prefix string) iter.Seq2[store.Entry, error] {
	return func(yield func(store.Entry, error) bool) {
		for e, err := range s.Store.List(ctx, prefix) {
			if err != nil || !yield(e, nil) {
				return
			}
		}
	}
}

type listGoesOn struct{ store.Store }

func (s listGoesOn) List(ctx context.Context, prefix string) iter.Seq2[store.Entry, error] {
	return func(yield func(store.Entry, error) bool) {
		for e, err := range s.Store.List(ctx, prefix) {
			if !yield(e, err) {
				return
			}
			if err != nil {
				yield(store.Entry{Key: "more"}, err)
			}
		}
	}
}

// ---- names and values ----

type otherNames struct {
	store.Store
	f func(string) string
}

func (s otherNames) Get(ctx context.Context, key string) (store.Entry, error) {
	return s.Store.Get(ctx, s.f(key))
}

func (s otherNames) Create(ctx context.Context, key string, value []byte, ttl time.Duration) (store.Revision, error) {
	return s.Store.Create(ctx, s.f(key), value, ttl)
}

func (s otherNames) Update(ctx context.Context, key string, value []byte, rev store.Revision, ttl time.Duration) (store.Revision, error) {
	return s.Store.Update(ctx, s.f(key), value, rev, ttl)
}

func (s otherNames) Delete(ctx context.Context, key string, rev store.Revision) error {
	return s.Store.Delete(ctx, s.f(key), rev)
}

func (s otherNames) Append(ctx context.Context, stream, id string, value []byte, ttl time.Duration) (uint64, error) {
	return s.Store.Append(ctx, s.f(stream), s.f(id), value, ttl)
}

func (s otherNames) Read(ctx context.Context, stream string, after uint64, limit int) ([]store.Record, error) {
	return s.Store.Read(ctx, s.f(stream), after, limit)
}

func (s otherNames) Ack(ctx context.Context, stream string, seqs ...uint64) error {
	return s.Store.Ack(ctx, s.f(stream), seqs...)
}

func (s otherNames) Wait(ctx context.Context, stream string, after uint64) error {
	return s.Store.Wait(ctx, s.f(stream), after)
}

func (s otherNames) Expire(ctx context.Context, stream string, ttl time.Duration) error {
	return s.Store.Expire(ctx, s.f(stream), ttl)
}

type sharedNames struct{ store.Store }

func (s *sharedNames) Delete(ctx context.Context, key string, rev store.Revision) error {
	if err := s.Store.Delete(ctx, key, rev); err != nil {
		return err
	}
	return s.Store.Expire(ctx, key, 0)
}

type aliases struct {
	store.Store
	mu     sync.Mutex
	values map[string][]byte
}

func (s *aliases) Create(ctx context.Context, key string, value []byte, ttl time.Duration) (store.Revision, error) {
	rev, err := s.Store.Create(ctx, key, value, ttl)
	if err == nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.values[key] = value
	}
	return rev, err
}

func (s *aliases) Update(ctx context.Context, key string, value []byte, rev store.Revision, ttl time.Duration) (store.Revision, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	rev, err := s.Store.Update(ctx, key, value, rev, ttl)
	if err == nil {
		s.values[key] = value
	}
	return rev, err
}

func (s *aliases) Get(ctx context.Context, key string) (store.Entry, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	e, err := s.Store.Get(ctx, key)
	if err == nil {
		e.Value = s.values[key]
	}
	return e, err
}

type oneBuffer struct {
	store.Store
	buffer []byte
}

func (s *oneBuffer) Read(ctx context.Context, stream string, after uint64, limit int) ([]store.Record, error) {
	records, err := s.Store.Read(ctx, stream, after, limit)
	if len(records) == 1 {
		s.buffer = append(s.buffer[:0], records[0].Value...)
		records[0].Value = s.buffer
	}
	return records, err
}

func (s *oneBuffer) Append(ctx context.Context, stream, id string, value []byte, ttl time.Duration) (uint64, error) {
	if stream == "s" && len(s.buffer) > 0 && len(s.buffer) == len(value) {
		copy(s.buffer, value)
	}
	return s.Store.Append(ctx, stream, id, value, ttl)
}

type emptyAbsent struct{ store.Store }

func (s emptyAbsent) Get(ctx context.Context, key string) (store.Entry, error) {
	e, err := s.Store.Get(ctx, key)
	if err == nil && len(e.Value) == 0 {
		return store.Entry{}, store.ErrNotFound
	}
	return e, err
}

type textValues struct{ store.Store }

func (s textValues) Create(ctx context.Context, key string, value []byte, ttl time.Duration) (store.Revision, error) {
	return s.Store.Create(ctx, key, bytes.ToValidUTF8(value, []byte("?")), ttl)
}

type smallValues struct{ store.Store }

func (s smallValues) Append(ctx context.Context, stream, id string, value []byte, ttl time.Duration) (uint64, error) {
	if len(value) > 1<<20 {
		return 0, store.ErrInvalid
	}
	return s.Store.Append(ctx, stream, id, value, ttl)
}

type noLimits struct{ store.Store }

// taken accepts what the engine below refuses.
func accept[T any](v, instead T, err error) (T, error) {
	if errors.Is(err, store.ErrInvalid) {
		return instead, nil
	}
	return v, err
}

func (s noLimits) Get(ctx context.Context, key string) (store.Entry, error) {
	e, err := s.Store.Get(ctx, key)
	return accept(e, store.Entry{Key: key, Revision: 1}, err)
}

func (s noLimits) Create(ctx context.Context, key string, value []byte, ttl time.Duration) (store.Revision, error) {
	rev, err := s.Store.Create(ctx, key, value, ttl)
	return accept(rev, 1, err)
}

func (s noLimits) Append(ctx context.Context, stream, id string, value []byte, ttl time.Duration) (uint64, error) {
	seq, err := s.Store.Append(ctx, stream, id, value, ttl)
	return accept(seq, 1, err)
}

func (s noLimits) List(ctx context.Context, prefix string) iter.Seq2[store.Entry, error] {
	return func(yield func(store.Entry, error) bool) {
		for e, err := range s.Store.List(ctx, prefix) {
			if errors.Is(err, store.ErrInvalid) || !yield(e, err) {
				return
			}
		}
	}
}

type noContext struct{ store.Store }

func (s noContext) Get(ctx context.Context, key string) (store.Entry, error) {
	return s.Store.Get(context.WithoutCancel(ctx), key)
}

func (s noContext) Ack(ctx context.Context, stream string, seqs ...uint64) error {
	return s.Store.Ack(context.WithoutCancel(ctx), stream, seqs...)
}

// ---- Log ----

type readReversed struct{ store.Store }

func (s readReversed) Read(ctx context.Context, stream string, after uint64, limit int) ([]store.Record, error) {
	records, err := s.Store.Read(ctx, stream, after, limit)
	slices.Reverse(records)
	return records, err
}

// appearLate commits out of order, as databases do that take the position from
// a sequence and lock nothing.
type appearLate struct {
	store.Store
	mu     sync.Mutex
	n      int
	hidden map[uint64]bool
}

func (s *appearLate) Append(ctx context.Context, stream, id string, value []byte, ttl time.Duration) (uint64, error) {
	s.mu.Lock()
	seq, err := s.Store.Append(ctx, stream, id, value, ttl)
	s.n++
	late := s.n%3 == 0 && err == nil && stream == "s"
	if late {
		s.hidden[seq] = true
	}
	s.mu.Unlock()
	if late {
		time.Sleep(30 * time.Nanosecond)
		s.mu.Lock()
		delete(s.hidden, seq)
		s.mu.Unlock()
	} else {
		time.Sleep(time.Nanosecond)
	}
	return seq, err
}

func (s *appearLate) Read(ctx context.Context, stream string, after uint64, limit int) ([]store.Record, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	records, err := s.Store.Read(ctx, stream, after, limit)
	return slices.DeleteFunc(records, func(r store.Record) bool { return stream == "s" && s.hidden[r.Seq] }), err
}

func (s *appearLate) Wait(ctx context.Context, stream string, after uint64) error {
	for {
		if err := s.Store.Wait(ctx, stream, after); err != nil {
			return err
		}
		if records, err := s.Read(ctx, stream, after, 100); err != nil || len(records) > 0 {
			return err
		}
		time.Sleep(time.Nanosecond)
	}
}

type cursorIncluded struct{ store.Store }

func (s cursorIncluded) Read(ctx context.Context, stream string, after uint64, limit int) ([]store.Record, error) {
	return s.Store.Read(ctx, stream, after-min(after, 1), limit)
}

func (s cursorIncluded) Wait(ctx context.Context, stream string, after uint64) error {
	return s.Store.Wait(ctx, stream, after-min(after, 1))
}

type otherLimit struct {
	store.Store
	f func(int) int
}

func (s otherLimit) Read(ctx context.Context, stream string, after uint64, limit int) ([]store.Record, error) {
	return s.Store.Read(ctx, stream, after, s.f(limit))
}

// limitFirst reads up to limit rows and then omits acknowledged ones.
type limitFirst struct {
	store.Store
	mu    sync.Mutex
	acked map[string]map[uint64]bool
}

func (s *limitFirst) Ack(ctx context.Context, stream string, seqs ...uint64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.acked[stream] == nil {
		s.acked[stream] = map[uint64]bool{}
	}
	for _, seq := range seqs {
		s.acked[stream][seq] = true
	}
	return ctx.Err()
}

func (s *limitFirst) Read(ctx context.Context, stream string, after uint64, limit int) ([]store.Record, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	records, err := s.Store.Read(ctx, stream, after, limit)
	return slices.DeleteFunc(records, func(r store.Record) bool { return s.acked[stream][r.Seq] }), err
}

type ackNothing struct{ store.Store }

func (s ackNothing) Ack(ctx context.Context, _ string, _ ...uint64) error { return ctx.Err() }

type ackUpTo struct{ store.Store }

func (s ackUpTo) Ack(ctx context.Context, stream string, seqs ...uint64) error {
	if len(seqs) == 0 {
		return s.Store.Ack(ctx, stream)
	}
	records, err := s.Read(ctx, stream, 0, 1000)
	if err != nil {
		return err
	}
	for _, r := range records {
		if r.Seq <= slices.Max(seqs) {
			seqs = append(seqs, r.Seq)
		}
	}
	return s.Store.Ack(ctx, stream, seqs...)
}

type ackFails struct{ store.Store }

func (s ackFails) Ack(ctx context.Context, stream string, seqs ...uint64) error {
	records, err := s.Read(ctx, stream, 0, 1000)
	if err != nil {
		return err
	}
	for _, seq := range seqs {
		if !slices.ContainsFunc(records, func(r store.Record) bool { return r.Seq == seq }) {
			return store.ErrNotFound
		}
	}
	return s.Store.Ack(ctx, stream, seqs...)
}

type ackStops struct{ store.Store }

func (s ackStops) Ack(ctx context.Context, stream string, seqs ...uint64) error {
	for _, seq := range seqs {
		before, _ := s.Read(ctx, stream, 0, 1000)
		if err := s.Store.Ack(ctx, stream, seq); err != nil {
			return err
		}
		if after, _ := s.Read(ctx, stream, 0, 1000); len(after) == len(before) {
			return nil
		}
	}
	return s.Store.Ack(ctx, stream)
}

type ackEverywhere struct {
	store.Store
	mu      sync.Mutex
	streams []string
}

func (s *ackEverywhere) Append(ctx context.Context, stream, id string, value []byte, ttl time.Duration) (uint64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.streams = append(s.streams, stream)
	return s.Store.Append(ctx, stream, id, value, ttl)
}

func (s *ackEverywhere) Ack(ctx context.Context, stream string, seqs ...uint64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, other := range s.streams {
		if err := s.Store.Ack(ctx, other, seqs...); err != nil {
			return err
		}
	}
	return s.Store.Ack(ctx, stream, seqs...)
}

// positionsAgain counts from 1 whenever the stream is empty.
type positionsAgain struct {
	store.Store
	mu   sync.Mutex
	base map[string]uint64
}

func (s *positionsAgain) Append(ctx context.Context, stream, id string, value []byte, ttl time.Duration) (uint64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	records, err := s.Store.Read(ctx, stream, 0, 1)
	if err != nil {
		return 0, err
	}
	seq, err := s.Store.Append(ctx, stream, id, value, ttl)
	if len(records) == 0 && err == nil {
		s.base[stream] = seq - 1
	}
	return seq - s.base[stream], err
}

func (s *positionsAgain) Read(ctx context.Context, stream string, after uint64, limit int) ([]store.Record, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if after+s.base[stream] < after {
		return nil, nil
	}
	records, err := s.Store.Read(ctx, stream, after+s.base[stream], limit)
	for i := range records {
		records[i].Seq -= s.base[stream]
	}
	return records, err
}

func (s *positionsAgain) Ack(ctx context.Context, stream string, seqs ...uint64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	seqs = slices.Clone(seqs)
	for i := range seqs {
		seqs[i] += s.base[stream]
	}
	return s.Store.Ack(ctx, stream, seqs...)
}

type expireNothing struct{ store.Store }

func (s expireNothing) Expire(ctx context.Context, _ string, _ time.Duration) error { return ctx.Err() }

type expireLeavesIDs struct{ store.Store }

func (s expireLeavesIDs) Expire(ctx context.Context, stream string, ttl time.Duration) error {
	records, err := s.Read(ctx, stream, 0, 1000)
	if ttl != 0 || err != nil {
		return s.Store.Expire(ctx, stream, ttl)
	}
	for _, r := range records {
		if err := s.Ack(ctx, stream, r.Seq); err != nil {
			return err
		}
	}
	return nil
}

// lateAck stores the ids of acknowledged records in a separate step.
type lateAck struct{ store.Store }

func (s lateAck) Ack(ctx context.Context, stream string, seqs ...uint64) error {
	records, _ := s.Read(ctx, stream, 0, 1000)
	err := s.Store.Ack(ctx, stream, seqs...)
	time.Sleep(30 * time.Nanosecond)
	for _, r := range records {
		if err == nil && slices.Contains(seqs, r.Seq) && r.ID != "" && !r.Expires.IsZero() {
			if seq, err := s.Append(ctx, stream, r.ID, nil, remaining(r.Expires)); err == nil {
				_ = s.Store.Ack(ctx, stream, seq)
			}
		}
	}
	return err
}

type expireShortens struct{ store.Store }

func (s expireShortens) Expire(ctx context.Context, stream string, ttl time.Duration) error {
	if ttl >= time.Minute {
		return ctx.Err()
	}
	return s.Store.Expire(ctx, stream, ttl)
}

type expireSticks struct {
	store.Store
	mu  sync.Mutex
	ttl map[string]time.Duration
}

func (s *expireSticks) Append(ctx context.Context, stream, id string, value []byte, ttl time.Duration) (uint64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if other := s.ttl[stream]; other > 0 {
		ttl = other
	}
	return s.Store.Append(ctx, stream, id, value, ttl)
}

func (s *expireSticks) Expire(ctx context.Context, stream string, ttl time.Duration) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ttl[stream] = ttl
	return s.Store.Expire(ctx, stream, ttl)
}

// ---- ids ----

type noIDs struct{ store.Store }

func (s noIDs) Append(ctx context.Context, stream, _ string, value []byte, ttl time.Duration) (uint64, error) {
	return s.Store.Append(ctx, stream, "", value, ttl)
}

type lateIDs struct {
	store.Store
	mu  sync.Mutex
	ids map[string]uint64
}

func (s *lateIDs) Append(ctx context.Context, stream, id string, value []byte, ttl time.Duration) (uint64, error) {
	s.mu.Lock()
	seq, ok := s.ids[stream+"\x00"+id]
	s.mu.Unlock()
	if ok && id != "" {
		return seq, store.ErrDuplicate
	}
	time.Sleep(time.Nanosecond)
	seq, err := s.Store.Append(ctx, stream, "", value, ttl)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ids[stream+"\x00"+id] = seq
	return seq, err
}

type eternalIDs struct {
	store.Store
	mu  sync.Mutex
	ids map[string]uint64
}

func (s *eternalIDs) Append(ctx context.Context, stream, id string, value []byte, ttl time.Duration) (uint64, error) {
	return s.append(ctx, stream, id, stream+"\x00"+id, value, ttl)
}

func (s *eternalIDs) append(ctx context.Context, stream, id, key string, value []byte, ttl time.Duration) (uint64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if seq, ok := s.ids[key]; ok && id != "" && ctx.Err() == nil {
		return seq, store.ErrDuplicate
	}
	seq, err := s.Store.Append(ctx, stream, id, value, ttl)
	if err == nil {
		s.ids[key] = seq
	}
	return seq, err
}

type globalIDs eternalIDs

func (s *globalIDs) Append(ctx context.Context, stream, id string, value []byte, ttl time.Duration) (uint64, error) {
	return (*eternalIDs)(s).append(ctx, stream, id, id, value, ttl)
}

// ackForgets uses another id below after every Ack.
type ackForgets struct {
	store.Store
	mu   sync.Mutex
	ids  map[uint64]string
	uses map[string]string
}

func (s *ackForgets) Append(ctx context.Context, stream, id string, value []byte, ttl time.Duration) (uint64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	seq, err := s.Store.Append(ctx, stream, s.uses[id]+id, value, ttl)
	if err == nil {
		s.ids[seq] = id
	}
	return seq, err
}

func (s *ackForgets) Ack(ctx context.Context, stream string, seqs ...uint64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, seq := range seqs {
		if id := s.ids[seq]; id != "" {
			s.uses[id] += "+"
		}
	}
	return s.Store.Ack(ctx, stream, seqs...)
}

type noPosition struct{ store.Store }

func (s noPosition) Append(ctx context.Context, stream, id string, value []byte, ttl time.Duration) (uint64, error) {
	seq, err := s.Store.Append(ctx, stream, id, value, ttl)
	if err != nil {
		seq = 0
	}
	return seq, err
}

type duplicateRenews struct{ store.Store }

func (s duplicateRenews) Append(ctx context.Context, stream, id string, value []byte, ttl time.Duration) (uint64, error) {
	seq, err := s.Store.Append(ctx, stream, id, value, ttl)
	if errors.Is(err, store.ErrDuplicate) && ttl != 0 {
		_ = s.Expire(ctx, stream, ttl)
	}
	return seq, err
}

// ---- Wait ----

type waitNever struct{ store.Store }

func (s waitNever) Wait(ctx context.Context, _ string, _ uint64) error {
	<-ctx.Done()
	return ctx.Err()
}

type waitAlways struct{ store.Store }

func (s waitAlways) Wait(context.Context, string, uint64) error { return nil }

type waitForEver struct{ store.Store }

func (s waitForEver) Wait(context.Context, string, uint64) error { select {} }

// waitSignal ends Wait by a signal from Append, with typical mistakes.
type waitSignal struct {
	store.Store
	check      bool          // check that the signal is for this stream and cursor
	duplicates bool          // signal duplicates too, and end Wait for them
	one        bool          // notify only one waiter
	gap        time.Duration // between the read and the beginning of the wait

	mu      sync.Mutex
	waiting []chan string
}

func (s *waitSignal) Append(ctx context.Context, stream, id string, value []byte, ttl time.Duration) (uint64, error) {
	seq, err := s.Store.Append(ctx, stream, id, value, ttl)
	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil && !s.duplicates {
		return seq, err
	}
	for i, ch := range s.waiting {
		ch <- stream
		if s.one {
			s.waiting = slices.Delete(s.waiting, i, i+1)
			return seq, err
		}
	}
	s.waiting = nil
	return seq, err
}

func (s *waitSignal) Wait(ctx context.Context, stream string, after uint64) error {
	for {
		if records, err := s.Read(ctx, stream, after, 1); err != nil || len(records) > 0 {
			return err
		}
		time.Sleep(s.gap)
		ch := make(chan string, 1)
		s.mu.Lock()
		s.waiting = append(s.waiting, ch)
		s.mu.Unlock()
		if s.gap == 0 {
			if records, err := s.Read(ctx, stream, after, 1); err != nil || len(records) > 0 {
				return err
			}
		}
		select {
		case signal := <-ch:
			if !s.check && !s.duplicates || s.duplicates && signal == stream {
				return nil
			}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// waitTogether lets all wait with the context of the first.
type waitTogether struct {
	store.Store
	mu  sync.Mutex
	ctx map[string]context.Context
}

func (s *waitTogether) Wait(ctx context.Context, stream string, after uint64) error {
	s.mu.Lock()
	if s.ctx == nil {
		s.ctx = map[string]context.Context{}
	}
	if first := s.ctx[stream]; first == nil || first.Err() != nil {
		s.ctx[stream] = ctx
	}
	first := s.ctx[stream]
	s.mu.Unlock()
	both, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(first, cancel)()
	return s.Store.Wait(both, stream, after)
}

// waitExpired remembers only how far the stream goes.
type waitExpired struct {
	store.Store
	mu   sync.Mutex
	last map[string]uint64
}

func (s *waitExpired) Append(ctx context.Context, stream, id string, value []byte, ttl time.Duration) (uint64, error) {
	seq, err := s.Store.Append(ctx, stream, id, value, ttl)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.last[stream] = max(s.last[stream], seq)
	return seq, err
}

func (s *waitExpired) Wait(ctx context.Context, stream string, after uint64) error {
	s.mu.Lock()
	last := s.last[stream]
	s.mu.Unlock()
	if last > after && ctx.Err() == nil {
		return nil
	}
	return s.Store.Wait(ctx, stream, after)
}
