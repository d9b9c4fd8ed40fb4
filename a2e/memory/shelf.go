// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package memory

import (
	"context"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/fivewire/fivewire/a2e/internal/wire"
	"github.com/fivewire/fivewire/internal/guard"
	"github.com/fivewire/fivewire/internal/retry"
	"github.com/fivewire/fivewire/internal/strictjson"
	"github.com/fivewire/fivewire/store"
)

const (
	newsKept = 128            // changes that a shelf announces to other processes
	newsTTL  = 24 * time.Hour // of the announcements
	newsItem = 24             // bytes: the hash and the stamp
	newsWait = time.Minute    // until an announced change is in the store
	parallel = 16             // writes at a time

	conflictPause    = 2 * time.Millisecond // before the first repetition of a write after a conflict
	maxConflictPause = 100 * time.Millisecond
)

// A shelf is one tier of one memory: a row for each entry, an index in memory, and, if other processes
// may use the store, a row with the last changes, from which the index follows theirs.
type shelf struct {
	kv       store.KV
	prefix   string
	isShared bool
	busy     chan struct{} // full while the shelf is written or follows others
	owner    string        // empty for the semantic tier
	users    int           // sessions; guarded by the lock of the keeper
	bytes    int64         // in the pool; guarded by the lock of the keeper

	mu       sync.Mutex // guards everything below
	index    *index     // nil until it is loaded
	isStale  bool       // the index must be loaded again
	news     news       // to which the index is current
	doubtful map[hash]doubt

	unannounced []announcement
	written     news // by this process, the latest
}

// A doubt is a row to be read again: an announced change that is not in the store yet, or a write with
// an unknown outcome.
type doubt struct {
	stamp int64
	until time.Time
}

// news are the last changes of a shelf. Seq counts all changes from an arbitrary start.
type news struct {
	revision store.Revision
	seq      uint64
	changes  []announcement
}

// An announcement is a change of an entry. The stamp of a removal is odd.
type announcement struct {
	hash  hash
	stamp int64
}

// A write adds an entry, replaces it, or, without a text, removes it.
type write struct {
	document
	text   []byte
	ttl    time.Duration
	isDone bool

	selects func(text []byte) bool // of a removal: the entries that it is for; nil means all
}

func newShelf(kv store.KV, prefix string, isShared bool) *shelf {
	return &shelf{kv: kv, prefix: prefix, isShared: isShared, busy: make(chan struct{}, 1), doubtful: map[hash]doubt{}}
}

func (s *shelf) rowKey(h hash) string { return s.prefix + "/e/" + hex.EncodeToString(h[:]) }

// parseHash reads the end of the key of a row.
func parseHash(text string) (h hash, ok bool) {
	b, err := hex.DecodeString(text)
	if err != nil || len(b) != len(h) {
		return h, false
	}
	return hash(b), true
}

func (s *shelf) lock(ctx context.Context) error {
	select {
	case s.busy <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (s *shelf) unlock() { <-s.busy }

// refresh makes the index current.
func (s *shelf) refresh(ctx context.Context) error {
	latest, err := s.readNews(ctx)
	if err != nil || s.isCurrent(latest) {
		return err
	}
	if err := s.lock(ctx); err != nil {
		return err
	}
	defer s.unlock()
	return s.follow(ctx)
}

func (s *shelf) isCurrent(latest news) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	isKnown := len(s.doubtful) == 0 && len(s.unannounced) == 0
	return s.index != nil && !s.isStale && isKnown && latest.revision == s.news.revision
}

// follow reads the changed rows. The caller has locked the shelf.
func (s *shelf) follow(ctx context.Context) error {
	s.announceLate(ctx)
	latest, err := s.readNews(ctx)
	if err != nil || s.isCurrent(latest) {
		return err
	}
	s.mu.Lock()
	isBehind := s.index == nil || s.isStale || !s.noteLocked(latest)
	s.mu.Unlock()
	if isBehind {
		if err := s.load(ctx, latest); err != nil {
			return err
		}
	}
	return s.readDoubtful(ctx)
}

// noteLocked finds the changes that the index has not, and reports whether the news have all. s.mu must
// be held.
func (s *shelf) noteLocked(latest news) bool {
	missed := latest.seq - s.news.seq
	if missed > uint64(len(latest.changes)) {
		return false
	}
	s.news = latest
	for _, c := range latest.changes[uint64(len(latest.changes))-missed:] {
		doc, isThere := s.index.find(c.hash)
		isRemoval := c.stamp&1 == 1
		if isRemoval && isThere || !isRemoval && (!isThere || s.index.docs[doc].stamp < c.stamp) {
			s.doubtful[c.hash] = doubt{c.stamp, time.Now().Add(newsWait)}
		}
	}
	return true
}

// load reads all rows.
func (s *shelf) load(ctx context.Context, latest news) error {
	x := &index{}
	prefix := s.prefix + "/e/"
	for e, err := range s.kv.List(ctx, prefix) {
		if err != nil {
			return err
		}
		if h, ok := parseHash(strings.TrimPrefix(e.Key, prefix)); ok {
			x.putRow(h, e)
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.index, s.isStale = x, false
	s.news.seq = latest.seq - uint64(len(latest.changes)) // changes whose rows may have been written since
	s.noteLocked(latest)
	return nil
}

// putRow adds a row of the store.
func (x *index) putRow(h hash, e store.Entry) {
	d, text, ok := readRow(h, e)
	if !ok {
		return
	}
	if entry, err := wire.CheckJSON(text); err == nil {
		x.put(d, entry)
	}
}

// readDoubtful reads the doubtful rows again.
func (s *shelf) readDoubtful(ctx context.Context) error {
	s.mu.Lock()
	list := make([]announcement, 0, len(s.doubtful))
	for h, d := range s.doubtful {
		list = append(list, announcement{h, d.stamp})
	}
	s.mu.Unlock()
	rows := make([]store.Entry, len(list))
	errs := each(len(list), func(i int) error {
		var err error
		rows[i], err = s.kv.Get(ctx, s.rowKey(list[i].hash))
		if errors.Is(err, store.ErrNotFound) {
			return nil
		}
		return err
	})
	if err := errors.Join(errs...); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, a := range list {
		d, _, isThere := readRow(a.hash, rows[i])
		if isThere {
			s.index.putRow(a.hash, rows[i])
		} else {
			s.index.removeHash(a.hash)
		}
		isRemoval := a.stamp&1 == 1
		if isRemoval && !isThere || isThere && d.stamp >= a.stamp || time.Now().After(s.doubtful[a.hash].until) {
			delete(s.doubtful, a.hash)
		}
	}
	return nil
}

// each calls f with the numbers below n, several at a time, and returns the errors.
func each(n int, f func(i int) error) []error {
	errs := make([]error, n)
	call := func(i int) {
		guard.Run("store", func() error { return f(i) }, func(err error) { errs[i] = err })
	}
	if n == 1 {
		call(0)
		return errs
	}
	var g errgroup.Group
	g.SetLimit(parallel)
	for i := range n {
		g.Go(func() error { call(i); return nil })
	}
	_ = g.Wait()
	return errs
}

// apply makes changes of different entries, and returns as soon as all readers find them. The caller
// has locked the shelf.
func (s *shelf) apply(ctx context.Context, writes []write) error {
	if len(writes) == 0 {
		return nil
	}
	var done chan error
	if s.isShared {
		s.mu.Lock()
		for i := range writes {
			s.unannounced = append(s.unannounced, announcement{writes[i].hash, writes[i].stamp})
		}
		s.mu.Unlock()
		done = make(chan error, 1)
		go guard.Run("store", func() error { return s.announce(ctx) }, func(err error) { done <- err })
	}
	errs := each(len(writes), func(i int) error { return s.write(ctx, &writes[i]) })
	var err error
	if s.isShared {
		err = <-done
		errs = append(errs, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range writes {
		w := &writes[i]
		switch {
		case errs[i] != nil:
			s.doubtful[w.hash] = doubt{w.stamp, time.Now().Add(newsWait)}
		case w.text == nil:
			s.index.removeHash(w.hash)
		default:
			if entry, err := wire.CheckJSON(w.text); err == nil {
				s.index.put(w.document, entry)
			}
		}
	}
	s.isStale = err == nil && !s.noteLocked(s.written)
	return errors.Join(errs...)
}

// write writes the row of an entry over the revision that it was read with, or over the latest one.
func (s *shelf) write(ctx context.Context, w *write) error {
	key := s.rowKey(w.hash)
	for conflicts := 1; ; conflicts++ {
		var err error
		revision := w.revision
		switch {
		case w.text == nil:
			err = s.kv.Delete(ctx, key, revision)
		case revision == 0:
			revision, err = s.kv.Create(ctx, key, appendRow(nil, &w.document, w.text), w.ttl)
		default:
			revision, err = s.kv.Update(ctx, key, appendRow(nil, &w.document, w.text), revision, w.ttl)
		}
		if err == nil {
			w.revision, w.isDone = revision, true
			return nil
		}
		if !isConflict(err) {
			return err
		}
		if err := pause(ctx, conflicts); err != nil {
			return err
		}
		e, err := s.kv.Get(ctx, key)
		if err != nil && !errors.Is(err, store.ErrNotFound) {
			return err
		}
		old, text, isThere := readRow(w.hash, e)
		w.revision = old.revision
		switch {
		case w.text == nil && (!isThere || w.selects != nil && !w.selects(text)):
			return nil
		case isThere:
			w.position, w.stamp = old.position, max(w.stamp, old.stamp+2)
		}
	}
}

// pause waits after conflicts in a row with other processes.
func pause(ctx context.Context, conflicts int) error {
	return retry.Sleep(ctx, retry.Delay(conflicts, conflictPause, maxConflictPause))
}

func isConflict(err error) bool {
	return errors.Is(err, store.ErrExists) || errors.Is(err, store.ErrConflict) || errors.Is(err, store.ErrNotFound)
}

// announceLate announces the changes of an earlier request that could not. If it fails, the next use of the shelf does.
// The caller has locked the shelf.
func (s *shelf) announceLate(ctx context.Context) {
	s.mu.Lock()
	n := len(s.unannounced)
	s.mu.Unlock()
	if n > 0 && s.announce(ctx) == nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.isStale = s.isStale || !s.noteLocked(s.written)
	}
}

// announce adds the unannounced changes to the news, and sets s.written.
func (s *shelf) announce(ctx context.Context) error {
	s.mu.Lock()
	n, list := s.news, s.unannounced
	s.mu.Unlock()
	for conflicts := 1; ; conflicts++ {
		next := news{seq: n.seq + uint64(len(list)), changes: slices.Concat(n.changes, list)}
		next.changes = next.changes[max(len(next.changes)-newsKept, 0):]
		var err error
		if n.revision == 0 {
			next.revision, err = s.kv.Create(ctx, s.prefix+"/news", next.encode(), newsTTL)
		} else {
			next.revision, err = s.kv.Update(ctx, s.prefix+"/news", next.encode(), n.revision, newsTTL)
		}
		switch {
		case err == nil:
			s.mu.Lock()
			defer s.mu.Unlock()
			s.written, s.unannounced = next, nil
			return nil
		case !isConflict(err):
			return err
		}
		if err := pause(ctx, conflicts); err != nil {
			return err
		}
		if n, err = s.readNews(ctx); err != nil {
			return err
		}
	}
}

// readNews returns the latest news. Without any, they begin at the present time, so that no number of a
// change comes twice.
func (s *shelf) readNews(ctx context.Context) (news, error) {
	if !s.isShared {
		return news{}, nil
	}
	e, err := s.kv.Get(ctx, s.prefix+"/news")
	if err != nil && !errors.Is(err, store.ErrNotFound) {
		return news{}, err
	}
	if len(e.Value) < 8 {
		return news{seq: uint64(time.Now().UnixNano())}, nil
	}
	n := news{revision: e.Revision, seq: binary.BigEndian.Uint64(e.Value)}
	for b := e.Value[8:]; len(b) >= newsItem; b = b[newsItem:] {
		n.changes = append(n.changes, announcement{hash(b), int64(binary.BigEndian.Uint64(b[len(hash{}):]))})
	}
	return n, nil
}

func (n *news) encode() []byte {
	b := binary.BigEndian.AppendUint64(nil, n.seq)
	for _, c := range n.changes {
		b = append(b, c.hash[:]...)
		b = binary.BigEndian.AppendUint64(b, uint64(c.stamp))
	}
	return b
}

// size returns the bytes of the entries in memory, also of expired ones. It is 0 without entries.
func (s *shelf) size() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.index == nil || s.index.count == 0 && len(s.unannounced) == 0 {
		return 0
	}
	return shelfBytes + s.index.bytes + int64(s.index.count)*entryBytes
}

// use returns the number of the entries and their bytes.
func (s *shelf) use() (count int, size int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.index == nil {
		return 0, 0
	}
	s.index.expire(time.Now().UnixMicro())
	return s.index.count, s.index.bytes
}

// store adds entries, and returns the numbers of those that are over a bound of the options or need more bytes than are
// granted.
func (s *shelf) store(ctx context.Context, entries []numberedWrite, o *Options, granted int64) (refused []int, err error) {
	if err := s.lock(ctx); err != nil {
		return nil, err
	}
	defer s.unlock()
	if err := s.follow(ctx); err != nil {
		return nil, err
	}
	var writes []write
	places := map[hash]int{} // in writes
	s.mu.Lock()
	s.index.expire(time.Now().UnixMicro())
	count, size := s.index.count, s.index.bytes
	for _, e := range entries {
		w := e.write
		place, isTwice := places[w.hash]
		var old document
		if doc, ok := s.index.find(w.hash); isTwice {
			old = writes[place].document
		} else if ok {
			old = s.index.docs[doc]
		}
		isNew := !isTwice && old.revision == 0
		growth := int64(w.size) - int64(old.size)
		needed := growth
		if isNew {
			needed += entryBytes
		}
		if count == 0 {
			needed += shelfBytes
		}
		if size+growth > int64(o.MaxBytes) || isNew && count >= o.MaxEntries || needed > granted {
			refused = append(refused, e.number)
			continue
		}
		size += growth
		granted -= needed
		if isNew {
			count++
		} else {
			w.position, w.revision, w.stamp = old.position, old.revision, max(w.stamp, old.stamp+2)
		}
		if isTwice {
			writes[place] = w
		} else {
			places[w.hash] = len(writes)
			writes = append(writes, w)
		}
	}
	s.mu.Unlock()
	return refused, s.apply(ctx, writes)
}

// forget removes the entries that have one of the keys or tags, and returns their number.
func (s *shelf) forget(ctx context.Context, keys map[hash]bool, tags []string, stamp int64) (n int, err error) {
	if err := s.lock(ctx); err != nil {
		return 0, err
	}
	defer s.unlock()
	if err := s.follow(ctx); err != nil {
		return 0, err
	}
	var writes []write
	s.mu.Lock()
	s.index.expire(time.Now().UnixMicro())
	for h := range keys {
		if doc, ok := s.index.find(h); ok {
			d := s.index.docs[doc]
			writes = append(writes, write{document: document{hash: h, revision: d.revision, stamp: max(stamp, d.stamp|1)}})
		}
	}
	for doc := range s.index.tagged(tags) {
		if d := s.index.docs[doc]; !keys[d.hash] {
			writes = append(writes, write{
				document: document{hash: d.hash, revision: d.revision, stamp: max(stamp, d.stamp|1)},
				selects:  func(text []byte) bool { return overlap(tagsOf(text), tags) },
			})
		}
	}
	s.mu.Unlock()
	err = s.apply(ctx, writes)
	for i := range writes {
		if writes[i].isDone {
			n++
		}
	}
	return n, err
}

// tagsOf returns the tags in the text of an entry.
func tagsOf(text []byte) (tags []string) {
	for e := strictjson.Value(text).Get("tags").Elements(); e.Next(); {
		tag, _ := e.Value.Text()
		tags = append(tags, tag)
	}
	return tags
}
