// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package storetest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fivewire/fivewire/store"
)

// testConcurrent runs concurrent callers on a few keys and streams, some of which cancel in the
// middle of a call, and checks that a sequential order of the calls explains all results. The
// effect and the time of a cancelled call are open, as the contract specifies.
func testConcurrent(e *env) {
	episodes := rounds(24)
	if e.Virtual { // and so fast
		episodes *= 12
	}
	for n := range episodes {
		random := rand.New(rand.NewPCG(e.Seed, uint64(n)))
		ctx, cancel := context.WithTimeout(e.Context(), e.Patience)
		ep := &episode{env: e, ctx: ctx, name: fmt.Sprintf("%d/", n)}
		ep.run(random)
		cancel()
		if e.Failed() {
			e.Fatalf("in episode %d with seed %d, whose calls come in another order each time", n, e.Seed)
		}
	}
}

const (
	episodeCallers = 6
	episodeCalls   = 10 // of each caller
	episodeKeys    = 2
)

// An episode is one history.
type episode struct {
	*env
	ctx  context.Context
	name string // before all keys and streams of it

	clock   atomic.Int64 // counts calls and returns
	values  atomic.Int64 // so that each value is written once
	latency atomic.Int64 // of the calls, about

	mu      sync.Mutex // guards the fields below
	results []callResult
	revs    []store.Revision // seen somewhere
	seqs    []uint64
}

// A callResult is a call with its result.
type callResult struct {
	call, done int64
	kind       string
	key        string // or the stream
	id, value  string
	ttl        time.Duration
	rev        store.Revision // requested, or returned by a read
	seq        uint64         // likewise
	limit      int
	err        error
	got        uint64 // revision or position that a write got
	records    []store.Record
}

func (ep *episode) run(random *rand.Rand) {
	var callers []*rand.Rand
	for range episodeCallers {
		callers = append(callers, rand.New(rand.NewPCG(random.Uint64(), 0)))
	}
	ep.together(len(callers), func(i int) {
		for range episodeCalls {
			ep.act(callers[i], ep.at(i))
		}
	})
	// The final state shows the effects of the calls before.
	for i := range episodeKeys {
		ep.do(ep.s, callResult{kind: "Get", key: fmt.Sprint(ep.name, i)}, 0)
	}
	for _, kind := range []string{"Read", "Append", "Read"} {
		ep.do(ep.peer, callResult{kind: kind, key: ep.name, id: "1", limit: 1000, value: ep.value()}, 0)
	}
	if !ep.Failed() {
		ep.explainKeys()
		ep.explainStream()
	}
}

func (ep *episode) value() string { return fmt.Sprint("value-", ep.values.Add(1)) }

// act does something at random.
func (ep *episode) act(random *rand.Rand, s store.Store) {
	pick := func(n int) int { return random.IntN(n) }
	c := callResult{key: fmt.Sprint(ep.name, pick(episodeKeys)), value: ep.value()}
	if pick(2) == 0 {
		c.ttl = time.Hour
	}
	ep.mu.Lock()
	if len(ep.revs) > 0 {
		c.rev = ep.revs[len(ep.revs)-1-pick(min(4, len(ep.revs)))]
	}
	if len(ep.seqs) > 0 {
		c.seq = ep.seqs[len(ep.seqs)-1-pick(min(4, len(ep.seqs)))]
	}
	ep.mu.Unlock()
	switch pick(20) {
	case 0, 1:
		c.kind = "Create"
	case 2, 3, 4:
		c.kind = "Update"
	case 5:
		c.kind = "Delete"
	case 6:
		c.kind, c.rev = "Delete", 0
	case 7, 8:
		c.kind = "Get"
	case 9:
		c.kind, c.key = "List", ep.name
	case 10, 11, 12, 13:
		c.kind, c.key, c.id = "Append", ep.name, []string{"", "1", "1", "2"}[pick(4)]
	case 14, 15:
		c.kind, c.key, c.limit = "Read", ep.name, 1+pick(5)
	case 16, 17, 18:
		c.kind, c.key = "Ack", ep.name
	case 19:
		c.kind, c.key, c.ttl = "Expire", ep.name, []time.Duration{0, 0, 2 * time.Hour}[pick(3)]
	}
	var patience time.Duration
	if !ep.Virtual && pick(6) == 0 {
		patience = time.Duration(1 + random.Int64N(2*ep.latency.Load()+1))
	}
	if ep.Virtual {
		time.Sleep(time.Duration(pick(3))) // lets other calls run in between
	}
	ep.do(s, c, patience)
}

// do makes the call and notes what it told. With a patience it is cancelled by
// then.
func (ep *episode) do(s store.Store, c callResult, patience time.Duration) {
	ctx := ep.ctx
	if patience != 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, patience)
		defer cancel()
	}
	began := time.Now()
	c.call = ep.clock.Add(1)
	var all []callResult
	switch c.kind {
	case "Create":
		rev, err := s.Create(ctx, c.key, []byte(c.value), c.ttl)
		c.got, c.err = uint64(rev), err
	case "Update":
		rev, err := s.Update(ctx, c.key, []byte(c.value), c.rev, c.ttl)
		c.got, c.err = uint64(rev), err
	case "Delete":
		c.err = s.Delete(ctx, c.key, c.rev)
	case "Get":
		var entry store.Entry
		entry, c.err = s.Get(ctx, c.key)
		c.value, c.rev = string(entry.Value), entry.Revision
	case "List":
		for i := range episodeKeys { // each key is one thing told
			all = append(all, callResult{call: c.call, kind: "Get", key: fmt.Sprint(ep.name, i), err: store.ErrNotFound})
		}
		for entry, err := range s.List(ctx, c.key) {
			if err != nil {
				c.err = err
				break
			}
			for i := range all {
				if all[i].key == entry.Key {
					all[i].value, all[i].rev, all[i].err = string(entry.Value), entry.Revision, nil
				}
			}
		}
	case "Append":
		c.got, c.err = s.Append(ctx, c.key, c.id, []byte(c.value), c.ttl)
	case "Read":
		c.records, c.err = s.Read(ctx, c.key, 0, c.limit)
	case "Ack":
		c.err = s.Ack(ctx, c.key, c.seq)
	case "Expire":
		c.err = s.Expire(ctx, c.key, c.ttl)
	}
	c.done = ep.clock.Add(1)
	if patience == 0 {
		ep.latency.Store((3*ep.latency.Load() + int64(time.Since(began))) / 4)
	}
	answer := c.err == nil || errors.Is(c.err, store.ErrNotFound) || errors.Is(c.err, store.ErrExists) ||
		errors.Is(c.err, store.ErrConflict) || errors.Is(c.err, store.ErrDuplicate)
	switch {
	case answer:
	case patience == 0 || !errors.Is(c.err, context.DeadlineExceeded):
		ep.Errorf("%s: %v", c.kind, c.err)
		return
	default:
		c.done = never
	}
	ep.mu.Lock()
	defer ep.mu.Unlock()
	if c.kind == "List" {
		for _, got := range all {
			if got.done = c.done; c.done != never { // otherwise some may not have been read
				ep.note(got)
			}
		}
		return
	}
	ep.note(c)
}

// note records a result for the final check and for later calls.
func (ep *episode) note(c callResult) {
	ep.results = append(ep.results, c)
	if c.done == never {
		return
	}
	switch c.kind {
	case "Get":
		if c.err == nil {
			ep.revs = append(ep.revs, c.rev)
		}
	case "Create", "Update":
		if c.err == nil {
			ep.revs = append(ep.revs, store.Revision(c.got))
		}
	case "Append":
		// The position of a duplicate may be that of a record of which nothing else
		// is known.
		if c.err == nil {
			ep.seqs = append(ep.seqs, c.got)
		}
	case "Read":
		for _, r := range c.records {
			ep.seqs = append(ep.seqs, r.Seq)
		}
	}
}

func (c callResult) String() string {
	switch c.kind {
	case "Create":
		return fmt.Sprintf("Create %s %s: %d, %v", c.key, c.value, c.got, c.err)
	case "Update":
		return fmt.Sprintf("Update %s at %d %s: %d, %v", c.key, c.rev, c.value, c.got, c.err)
	case "Delete":
		return fmt.Sprintf("Delete %s at %d: %v", c.key, c.rev, c.err)
	case "Get":
		return fmt.Sprintf("Get or List of %s: %s at %d, %v", c.key, c.value, c.rev, c.err)
	case "Append":
		return fmt.Sprintf("Append id %q %s %v: %d, %v", c.id, c.value, c.ttl, c.got, c.err)
	case "Ack":
		return fmt.Sprintf("Ack %d: %v", c.seq, c.err)
	case "Expire":
		return fmt.Sprintf("Expire %v: %v", c.ttl, c.err)
	}
	return c.kind
}

// explainKeys checks the histories of the keys. The state of one is the value
// that it has, none being absent: each is written once.
func (ep *episode) explainKeys() {
	revisions := map[string]store.Revision{} // by value
	values := map[string]string{}            // by key and revision
	learn := func(c callResult, rev store.Revision) {
		other, ok := revisions[c.value]
		at := fmt.Sprint(c.key, " at ", rev)
		if rev == 0 || ok && other != rev || values[at] != "" && values[at] != c.value {
			ep.Errorf("%v: that revision is of %q, and that value was at revision %d", c, values[at], other)
		}
		revisions[c.value], values[at] = rev, c.value
	}
	events := map[string][]event[string]{}
	for _, c := range ep.results {
		ev := event[string]{what: c.String(), call: c.call, done: c.done}
		// No value has the revision zero, but of some it may not be known.
		at := func(value string) bool { return value != "" && c.rev != 0 && revisions[value] == c.rev }
		switch c.kind {
		case "Get":
			if c.done == never {
				continue
			}
			if c.err == nil {
				learn(c, c.rev)
			}
			ev.looks = true
			ev.act = func(now string) (string, bool) { return now, now == c.value && (now == "") == (c.err != nil) }
		case "Create":
			if c.err == nil {
				learn(c, store.Revision(c.got))
			}
			ev.looks = errors.Is(c.err, store.ErrExists)
			ev.act = func(now string) (string, bool) {
				switch {
				case ev.looks:
					return now, now != ""
				case now == "":
					return c.value, true
				}
				return now, c.done == never
			}
		case "Update":
			if c.err == nil {
				learn(c, store.Revision(c.got))
			}
			absent, conflict := errors.Is(c.err, store.ErrNotFound), errors.Is(c.err, store.ErrConflict)
			ev.looks = absent || conflict
			ev.act = func(now string) (string, bool) {
				switch {
				case absent:
					return now, now == ""
				case conflict:
					return now, now != "" && !at(now)
				case at(now):
					return c.value, true
				}
				return now, c.done == never
			}
		case "Delete":
			ev.looks = errors.Is(c.err, store.ErrConflict)
			ev.act = func(now string) (string, bool) {
				switch {
				case ev.looks:
					return now, now != "" && c.rev != 0 && !at(now)
				case now == "" || c.rev == 0 || at(now):
					return "", true
				}
				return now, c.done == never
			}
		default:
			continue
		}
		events[c.key] = append(events[c.key], ev)
	}
	for key, all := range events {
		if trouble := explain("", all); trouble != "" {
			ep.Errorf("key %s: %s", key, trouble)
		}
	}
}

// The known state of a record or of its id.
const (
	recordIs     = 1 << iota // not acknowledged
	recordKnown              // its id is
	recordMortal             // it has a ttl
	recordGiven              // by an Expire concurrent to an Ack
	recordBits   = 4
)

// A streamState is the relevant state of a stream: the records that exist or whose ids are known,
// in the order of appending, one letter for each, and how many records with a known position were
// appended.
type streamState struct {
	records string
	last    int // number of the last record appended, by position; -1 before
}

// explainStream checks the history of the stream. The result of Read counts as one read for each
// record, not as a snapshot.
func (ep *episode) explainStream() {
	// Records by number, those with a position first, in its order.
	appends := map[string]callResult{} // by value
	seqs := map[string]uint64{}        // by value, as far as they are known
	for _, c := range ep.results {
		if c.kind == "Append" {
			if appends[c.value] = c; c.err == nil {
				seqs[c.value] = c.got
			}
		}
	}
	for _, c := range ep.results {
		for i, r := range c.records {
			a, ok := appends[string(r.Value)]
			if seq, isKnown := seqs[string(r.Value)]; !ok || isKnown && seq != r.Seq || a.id != r.ID || errors.Is(a.err, store.ErrDuplicate) {
				ep.Errorf("Read returns %q with id %q at %d, of which is known: %v", r.Value, r.ID, r.Seq, a)
			}
			if i > 0 && c.records[i-1].Seq >= r.Seq {
				ep.Errorf("Read returns %d after %d", r.Seq, c.records[i-1].Seq)
			}
			seqs[string(r.Value)] = r.Seq
		}
	}
	type record struct {
		callResult
		seq uint64
	}
	var records []record
	for value, seq := range seqs {
		records = append(records, record{appends[value], seq})
	}
	slices.SortFunc(records, func(a, b record) int { return int(int64(a.seq - b.seq)) })
	for i := 1; i < len(records); i++ {
		if records[i].seq == records[i-1].seq {
			ep.Errorf("position %d came twice: %v and %v", records[i].seq, records[i].callResult, records[i-1].callResult)
		}
	}
	placed := len(records)
	for value, a := range appends {
		if _, isKnown := seqs[value]; !isKnown && a.done == never {
			records = append(records, record{callResult: a})
		}
	}
	if ep.Failed() {
		return
	}
	numbered := func(seq uint64) int {
		return slices.IndexFunc(records[:placed], func(r record) bool { return r.seq == seq })
	}
	// flags of a record in a state, and a state with others
	flags := func(now streamState, n int) rune {
		for _, letter := range now.records {
			if int(letter)>>recordBits == n {
				return letter & (1<<recordBits - 1)
			}
		}
		return 0
	}
	with := func(now streamState, change func(n int, flags rune) rune) streamState {
		var b strings.Builder
		for _, letter := range now.records {
			n := letter >> recordBits
			if f := change(int(n), letter&(1<<recordBits-1)); f&(recordIs|recordKnown) != 0 {
				b.WriteRune(n<<recordBits | f)
			}
		}
		return streamState{b.String(), now.last}
	}
	recordWithID := func(now streamState, id string) int {
		for _, letter := range now.records {
			if n := int(letter) >> recordBits; letter&recordKnown != 0 && records[n].id == id {
				return n
			}
		}
		return -1
	}
	var events []event[streamState]
	for _, c := range ep.results {
		ev := event[streamState]{what: c.String(), call: c.call, done: c.done}
		switch c.kind {
		case "Append":
			if errors.Is(c.err, store.ErrDuplicate) {
				ev.looks = true
				ev.act = func(now streamState) (streamState, bool) {
					n := recordWithID(now, c.id)
					// The position of a record that no call returned is unknown.
					return now, n >= 0 && (n >= placed || records[n].seq == c.got)
				}
				break
			}
			n := slices.IndexFunc(records, func(r record) bool { return r.value == c.value })
			f := rune(recordIs)
			if c.id != "" {
				f |= recordKnown
			}
			if c.ttl != 0 {
				f |= recordMortal
			}
			ev.act = func(now streamState) (streamState, bool) {
				if c.id != "" && recordWithID(now, c.id) >= 0 {
					return now, c.done == never
				}
				if n < placed {
					if n <= now.last {
						return now, false
					}
					now.last = n
				}
				now.records += string(rune(n)<<recordBits | f)
				return now, true
			}
		case "Ack":
			n := numbered(c.seq)
			change := func(f func(rune) rune) func(streamState) (streamState, bool) {
				return func(now streamState) (streamState, bool) {
					return with(now, func(i int, flags rune) rune {
						if i != n || flags&recordIs == 0 {
							return flags
						}
						return f(flags)
					}), true
				}
			}
			ev.act = change(func(flags rune) rune {
				if flags &^= recordIs; flags&recordMortal == 0 || flags&recordGiven != 0 {
					return 0
				}
				return flags
			})
			if n >= 0 && records[n].ttl == 0 && slices.ContainsFunc(ep.results, func(o callResult) bool {
				return o.kind == "Expire" && o.ttl != 0 && o.call < c.done && c.call < o.done
			}) {
				events = append(events, event[streamState]{what: "Ack overlooks Expire", call: c.call, done: never,
					act: change(func(flags rune) rune { return flags | recordGiven })})
			}
		case "Expire":
			ev.act = func(now streamState) (streamState, bool) {
				return with(now, func(_ int, f rune) rune {
					if c.ttl == 0 {
						return 0
					}
					return f | recordMortal
				}), true
			}
		case "Read":
			if c.done == never {
				continue
			}
			end := uint64(never)
			if len(c.records) == c.limit {
				end = c.records[c.limit-1].Seq
			}
			for n, r := range records[:placed] {
				if r.seq > end {
					break
				}
				one := event[streamState]{call: c.call, done: c.done, looks: true}
				switch i := slices.IndexFunc(c.records, func(got store.Record) bool { return got.Seq == r.seq }); {
				case i >= 0:
					one.what = fmt.Sprintf("Read sees %d, %s", r.seq, r.value)
					one.act = func(now streamState) (streamState, bool) { return now, flags(now, n)&recordIs != 0 }
				case len(c.records) > 0 && c.records[len(c.records)-1].Seq > r.seq:
					// A cursor has passed the record, so it must not appear later.
					one.what = fmt.Sprintf("Read passes %d, %s", r.seq, r.value)
					one.act = func(now streamState) (streamState, bool) { return now, n <= now.last && flags(now, n)&recordIs == 0 }
				case r.call > c.done:
					continue // it was not appended yet
				default:
					one.what = fmt.Sprintf("Read misses %d, %s", r.seq, r.value)
					one.act = func(now streamState) (streamState, bool) { return now, flags(now, n)&recordIs == 0 }
				}
				events = append(events, one)
			}
			continue
		default:
			continue
		}
		events = append(events, ev)
	}
	if trouble := explain(streamState{last: -1}, events); trouble != "" {
		ep.Errorf("stream %s: %s", ep.name, trouble)
	}
}
