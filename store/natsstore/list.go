// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package natsstore

import (
	"context"
	"iter"
	"slices"
	"strings"
	"sync"

	"github.com/fivewire/fivewire/store"
)

const (
	// listAhead is how many entries List fetches at once.
	listAhead = 64

	// listOverlap is by how much two pages of subjects overlap.
	listOverlap = 1000
)

// List implements [store.KV]. It holds the names of all keys to yield, and fetches their values a
// few dozen ahead of the loop. Its cost depends on the folder of the last slash of the prefix: List
// of "a/b" reads all names below "a/".
func (s *Store) List(ctx context.Context, prefix string) iter.Seq2[store.Entry, error] {
	return func(yield func(store.Entry, error) bool) {
		if err := ctx.Err(); err != nil {
			yield(store.Entry{}, err)
			return
		}
		if err := store.ValidateID("prefix", prefix); err != nil {
			yield(store.Entry{}, err)
			return
		}
		keys, err := s.keys(ctx, prefix)
		if err != nil {
			yield(store.Entry{}, err)
			return
		}
		ahead := 8 // a loop that stops early shall not have fetched much
		for len(keys) > 0 {
			n := min(len(keys), ahead)
			entries, err := s.entriesOf(ctx, keys[:n])
			for _, e := range entries {
				if !yield(e, nil) {
					return
				}
			}
			if err != nil {
				yield(store.Entry{}, err)
				return
			}
			keys, ahead = keys[n:], min(2*ahead, listAhead)
		}
	}
}

// keys returns the keys with that prefix in order, some of which may be deleted
// or expired.
func (s *Store) keys(ctx context.Context, prefix string) ([]string, error) {
	ctx, end, err := s.beginIntact(ctx)
	if err != nil {
		return nil, err
	}
	defer end()
	base := s.kv.prefix + "k."
	subjects, err := s.subjects(ctx, s.kv, base+folder(prefix)+">")
	if err != nil {
		return nil, err
	}
	keys := make([]string, 0, len(subjects))
	for _, subject := range subjects {
		if key, ok := keyOf(strings.TrimPrefix(subject, base)); ok && strings.HasPrefix(key, prefix) {
			keys = append(keys, key)
		}
	}
	slices.Sort(keys)
	return keys, nil
}

// subjects returns the subjects that match filter. The server returns pages of a list that it sorts
// for each request, so that a concurrent removal would move a subject out of the next page.
// Therefore the pages overlap, and the overlap is checked.
func (s *Store) subjects(ctx context.Context, a *area, filter string) ([]string, error) {
	var all []string
	for offset, step := 0, listOverlap; ; {
		page, err := s.info(ctx, a, filter, offset)
		if err != nil {
			return nil, err
		}
		slices.Sort(page.subjects)
		if offset > 0 && (len(page.subjects) == 0 || page.subjects[0] > all[len(all)-1]) {
			offset = max(0, min(offset, page.total)-step)
			step *= 4
			continue
		}
		for _, subject := range page.subjects {
			if len(all) == 0 || subject > all[len(all)-1] {
				all = append(all, subject)
			}
		}
		if offset+len(page.subjects) >= page.total {
			return all, nil
		}
		offset, step = offset+max(1, len(page.subjects)-listOverlap), listOverlap
	}
}

// entriesOf fetches the entries of existing keys in that order, up to the first failure.
func (s *Store) entriesOf(ctx context.Context, keys []string) ([]store.Entry, error) {
	ctx, end, err := s.beginIntact(ctx)
	if err != nil {
		return nil, err
	}
	defer end()
	found := make([]*stored, len(keys))
	faults := make([]error, len(keys))
	var wg sync.WaitGroup
	now := s.clock.now()
	for i, key := range keys {
		wg.Go(func() { found[i], faults[i] = s.fetch(ctx, s.kv, lastOf(s.keySubject(key))) })
	}
	wg.Wait()
	entries := make([]store.Entry, 0, len(keys))
	for i, m := range found {
		if faults[i] != nil {
			return entries, faults[i]
		}
		if isThere(m, now) {
			entries = append(entries, s.entry(keys[i], m))
		}
	}
	return entries, nil
}
