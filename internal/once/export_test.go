// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package once

import "fmt"

// Usage returns the bytes and the number of the outcomes in memory, of all or of a
// principal, and the greater number of slots in the queue. It fails if the counts are
// not those of the entries.
func (t *Table) Usage(principal string) (bytes, count, slots int, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	q := &t.all
	if principal != "" {
		q = t.principals[principal]
	}
	if q == nil {
		return 0, 0, 0, nil
	}
	for _, e := range q.entries {
		if e != nil && e.own != nil {
			bytes += e.cost()
			count++
			if t.entries[name{e.key.Principal, e.key.Scope, e.key.ID}] != e {
				err = fmt.Errorf("%q has no entry", e.key.ID)
			}
		}
	}
	if q.bytes != bytes || q.count != count {
		err = fmt.Errorf("counted %d bytes of %d outcomes, want %d of %d", q.bytes, q.count, bytes, count)
	}
	return q.bytes, q.count, len(q.entries), err
}

// Names returns the number of names and principals in memory.
func (t *Table) Names() (names, principals int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.entries), len(t.principals)
}
