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

var modelTests = []test{
	{"Random", testRandom},
	{"Concurrent", testConcurrent},
}

// testRandom runs random calls, one after another. Where time is exact, entries and records expire between the calls.
func testRandom(e *env) {
	episodes := rounds(24)
	if e.Virtual {
		episodes *= 6
	}
	e.episodes(episodes, 1, 80, 12)
}

// testConcurrent runs concurrent callers on a few keys and streams, some of which cancel in the
// middle of a call. The effect and the time of a cancelled call are open, as the contract specifies.
func testConcurrent(e *env) {
	episodes := rounds(24)
	if e.Virtual { // and so fast
		episodes *= 12
	}
	e.episodes(episodes, 6, 10, 2)
}

// episodes checks that a sequential order of the calls of each episode explains all results by the model of the contract.
func (e *env) episodes(count, callers, calls, keys int) {
	for n := range count {
		random := rand.New(rand.NewPCG(e.Seed, uint64(n)))
		ctx, cancel := context.WithTimeout(e.Context(), e.Patience)
		ep := &episode{env: e, ctx: ctx, name: fmt.Sprintf("%d/", n), callers: callers, calls: calls, keys: keys}
		ep.run(random)
		cancel()
		if e.Failed() {
			e.Fatalf("in episode %d with seed %d; concurrent calls come in another order each time", n, e.Seed)
		}
	}
}

// An episode is one history.
type episode struct {
	*env
	ctx  context.Context
	name string // before all keys and streams of it

	callers, calls, keys int // calls are those of each caller

	clock   atomic.Int64 // counts calls and returns
	values  atomic.Int64 // so that each value is written once
	latency atomic.Int64 // of the calls, about

	mu      sync.Mutex // guards the fields below
	results []callResult
	revs    []store.Revision // seen somewhere
	seqs    []uint64
}

// answers are the errors that are results of a call.
var answers = map[string][]error{
	"Create": {store.ErrExists}, "Update": {store.ErrNotFound, store.ErrConflict}, "Delete": {store.ErrConflict},
	"Get": {store.ErrNotFound}, "Append": {store.ErrDuplicate},
}

// A callResult is a call with its result.
type callResult struct {
	call, done int64
	when       time.Time // of the call; while it runs, nothing expires
	kind       string
	key        string // or the stream
	id, value  string
	ttl        time.Duration
	rev        store.Revision // requested, or returned by a read
	seq        uint64         // likewise; of Read, the position after which it begins
	limit      int
	err        error
	got        uint64    // revision or position that a write got
	expires    time.Time // of an entry that Get or List returns
	records    []store.Record
}

// expiry is when the entry or record of a write expires. Zero means never.
func (c callResult) expiry() time.Time {
	if c.ttl == 0 {
		return time.Time{}
	}
	return c.when.Add(c.ttl)
}

func isExpired(expires, now time.Time) bool { return !expires.IsZero() && !now.Before(expires) }

func (ep *episode) run(random *rand.Rand) {
	var callers []*rand.Rand
	for range ep.callers {
		callers = append(callers, rand.New(rand.NewPCG(random.Uint64(), 0)))
	}
	ep.together(len(callers), func(i int) {
		for range ep.calls {
			ep.act(callers[i], ep.at(i))
		}
	})
	// The final state shows the effects of the calls before.
	for i := range ep.keys {
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
	isAlone := ep.callers == 1
	c := callResult{key: fmt.Sprint(ep.name, pick(ep.keys)), value: ep.value()}
	if pick(2) == 0 {
		c.ttl = ep.pickTTL(random)
	}
	ep.mu.Lock()
	if len(ep.revs) > 0 {
		c.rev = ep.revs[len(ep.revs)-1-pick(min(4, len(ep.revs)))]
	}
	if len(ep.seqs) > 0 {
		c.seq = ep.seqs[len(ep.seqs)-1-pick(min(4, len(ep.seqs)))]
	}
	ep.mu.Unlock()
	if isAlone && pick(3) == 0 {
		c.rev = []store.Revision{0, c.rev - min(c.rev, 1), c.rev + 1}[pick(3)]
	}
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
		c.kind, c.key = "List", ep.name+[]string{"", "", "1", "11", "x"}[pick(5)]
	case 10, 11, 12, 13:
		c.kind, c.key, c.id = "Append", ep.name, []string{"", "1", "1", "2"}[pick(4)]
	case 14, 15:
		c.kind, c.key, c.limit = "Read", ep.name, 1+pick(5)
		if !isAlone || pick(3) == 0 {
			c.seq = 0
		}
	case 16, 17, 18:
		c.kind, c.key = "Ack", ep.name
	case 19:
		c.kind, c.key, c.ttl = "Expire", ep.name, []time.Duration{0, 0, 2 * ep.pickTTL(random)}[pick(3)]
	}
	var patience time.Duration
	if !ep.Virtual && !isAlone && pick(6) == 0 {
		patience = time.Duration(1 + random.Int64N(2*ep.latency.Load()+1))
	}
	if ep.Virtual {
		pause := time.Nanosecond // lets other calls run in between
		if isAlone {
			pause = ep.TTL / 16
		}
		time.Sleep(time.Duration(pick(3)) * pause)
	}
	ep.do(s, c, patience)
}

// pickTTL picks a time to live, a short one where time is exact and no other caller runs.
func (ep *episode) pickTTL(random *rand.Rand) time.Duration {
	if ep.Virtual && ep.callers == 1 {
		return time.Duration(1+random.IntN(16)) * ep.TTL / 4
	}
	return time.Hour
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
	c.when = time.Now()
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
		c.value, c.rev, c.expires = string(entry.Value), entry.Revision, entry.Expires
	case "List":
		all, c.err = ep.listed(ctx, s, c)
	case "Append":
		c.got, c.err = s.Append(ctx, c.key, c.id, []byte(c.value), c.ttl)
	case "Read":
		c.records, c.err = s.Read(ctx, c.key, c.seq, c.limit)
	case "Ack":
		c.err = s.Ack(ctx, c.key, c.seq)
	case "Expire":
		c.err = s.Expire(ctx, c.key, c.ttl)
	}
	c.done = ep.clock.Add(1)
	if len(c.records) > 0 && ep.callers == 1 {
		ep.is("Wait for a record that Read returns", s.Wait(ctx, c.key, c.seq), nil)
	}
	if patience == 0 {
		ep.latency.Store((3*ep.latency.Load() + int64(time.Since(c.when))) / 4)
	}
	isAnswer := func(err error) bool { return errors.Is(c.err, err) }
	switch {
	case c.err == nil || slices.ContainsFunc(answers[c.kind], isAnswer):
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

// listed returns the result of List as one result for each key with its prefix.
func (ep *episode) listed(ctx context.Context, s store.Store, c callResult) (all []callResult, err error) {
	for i := range ep.keys {
		if key := fmt.Sprint(ep.name, i); strings.HasPrefix(key, c.key) {
			all = append(all, callResult{call: c.call, when: c.when, kind: "Get", key: key, err: store.ErrNotFound})
		}
	}
	last := ""
	for entry, err := range s.List(ctx, c.key) {
		if err != nil {
			return all, err
		}
		i := slices.IndexFunc(all, func(r callResult) bool { return r.key == entry.Key })
		if i < 0 || entry.Key <= last {
			ep.Errorf("List of %q yields %q after %q", c.key, entry.Key, last)
			continue
		}
		last = entry.Key
		all[i].value, all[i].rev, all[i].expires, all[i].err = string(entry.Value), entry.Revision, entry.Expires, nil
	}
	return all, nil
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
	expiries := map[string]time.Time{} // by value
	for _, c := range ep.results {
		if c.kind == "Create" || c.kind == "Update" {
			expiries[c.value] = c.expiry()
		}
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
				if want := expiries[c.value]; !ep.isNear(c.expires, want) {
					ep.Errorf("%v: expires %v, want %v", c, c.expires, want)
				}
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
		act := ev.act
		ev.act = func(now string) (string, bool) {
			if isExpired(expiries[now], c.when) {
				now = ""
			}
			return act(now)
		}
		events[c.key] = append(events[c.key], ev)
	}
	for key, all := range events {
		if trouble := explain("", all); trouble != "" {
			ep.Errorf("key %s: %s", key, trouble)
		}
	}
}

// A recordState is the known state of a record and of its id. A life is the number of the call that gave the record its
// expiry, Append or Expire, and zero if it does not expire.
type recordState struct{ n, flags, life rune }

const (
	recordIs    = 1 << iota // not acknowledged
	recordKnown             // its id is
	recordGiven             // an expiry, by an Expire concurrent to an Ack
)

// A streamState is the relevant state of a stream: the records that exist or whose ids are known,
// in the order of appending, and how many records with a known position were appended.
type streamState struct {
	records string // three letters for each
	last    int    // number of the last record appended, by position; -1 before
}

func (s streamState) list() (list []recordState) {
	for letters := []rune(s.records); len(letters) > 0; letters = letters[3:] {
		list = append(list, recordState{letters[0], letters[1], letters[2]})
	}
	return list
}

// with returns the state after a change of all records, without those of which nothing is left.
func (s streamState) with(change func(r *recordState)) streamState {
	var b strings.Builder
	for _, r := range s.list() {
		if change(&r); r.flags&(recordIs|recordKnown) != 0 {
			b.WriteString(string([]rune{r.n, r.flags, r.life}))
		}
	}
	return streamState{b.String(), s.last}
}

// visible returns the record number n if Read sees it.
func (s streamState) visible(n int) (r recordState, ok bool) {
	list := s.list()
	i := slices.IndexFunc(list, func(r recordState) bool { return r.n == rune(n) && r.flags&recordIs != 0 })
	if i < 0 {
		return recordState{}, false
	}
	return list[i], true
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
			if i > 0 && c.records[i-1].Seq >= r.Seq || r.Seq <= c.seq || i >= c.limit {
				ep.Errorf("Read after %d with limit %d returns %d as number %d", c.seq, c.limit, r.Seq, i)
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
	recordWithID := func(now streamState, id string) int {
		for _, r := range now.list() {
			if r.flags&recordKnown != 0 && records[r.n].id == id {
				return int(r.n)
			}
		}
		return -1
	}
	var events []event[streamState]
	// alive is the state at the time of a call.
	alive := func(now streamState, c callResult) streamState {
		return now.with(func(r *recordState) {
			if r.life != 0 && isExpired(ep.results[r.life-1].expiry(), c.when) {
				r.flags = 0
			}
		})
	}
	isAbsent := func(now streamState, c callResult, n int) bool {
		_, ok := alive(now, c).visible(n)
		return !ok
	}
	// sees reports whether the record number n is visible, and without other callers, with that expiry.
	sees := func(now streamState, c callResult, n int, expires time.Time) bool {
		r, ok := alive(now, c).visible(n)
		var want time.Time
		if r.life != 0 {
			want = ep.results[r.life-1].expiry()
		}
		return ok && (ep.callers > 1 || ep.isNear(expires, want))
	}
	for i, c := range ep.results {
		ev := event[streamState]{what: c.String(), call: c.call, done: c.done}
		life := rune(0)
		if c.ttl != 0 {
			life = rune(i + 1)
		}
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
			flags := rune(recordIs)
			if c.id != "" {
				flags |= recordKnown
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
				now.records += string([]rune{rune(n), flags, life})
				return now, true
			}
		case "Ack":
			n := numbered(c.seq)
			change := func(f func(r *recordState)) func(streamState) (streamState, bool) {
				return func(now streamState) (streamState, bool) {
					return now.with(func(r *recordState) {
						if r.n == rune(n) && r.flags&recordIs != 0 {
							f(r)
						}
					}), true
				}
			}
			ev.act = change(func(r *recordState) {
				if r.flags &^= recordIs; r.life == 0 || r.flags&recordGiven != 0 {
					r.flags = 0
				}
			})
			if n >= 0 && records[n].ttl == 0 && slices.ContainsFunc(ep.results, func(o callResult) bool {
				return o.kind == "Expire" && o.ttl != 0 && o.call < c.done && c.call < o.done
			}) {
				events = append(events, event[streamState]{what: "Ack overlooks Expire", call: c.call, done: never,
					act: change(func(r *recordState) { r.flags |= recordGiven })})
			}
		case "Expire":
			ev.act = func(now streamState) (streamState, bool) {
				return now.with(func(r *recordState) {
					if r.life = life; c.ttl == 0 {
						r.flags = 0
					}
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
				if r.seq <= c.seq {
					continue
				}
				if r.seq > end {
					break
				}
				one := event[streamState]{call: c.call, done: c.done, looks: true}
				switch i := slices.IndexFunc(c.records, func(got store.Record) bool { return got.Seq == r.seq }); {
				case i >= 0:
					one.what = fmt.Sprintf("Read sees %d, %s", r.seq, r.value)
					one.act = func(now streamState) (streamState, bool) { return now, sees(now, c, n, c.records[i].Expires) }
				case len(c.records) > 0 && c.records[len(c.records)-1].Seq > r.seq:
					// A cursor has passed the record, so it must not appear later.
					one.what = fmt.Sprintf("Read passes %d, %s", r.seq, r.value)
					one.act = func(now streamState) (streamState, bool) { return now, n <= now.last && isAbsent(now, c, n) }
				case r.call > c.done:
					continue // it was not appended yet
				default:
					one.what = fmt.Sprintf("Read misses %d, %s", r.seq, r.value)
					one.act = func(now streamState) (streamState, bool) { return now, isAbsent(now, c, n) }
				}
				events = append(events, one)
			}
			continue
		default:
			continue
		}
		act := ev.act
		ev.act = func(now streamState) (streamState, bool) { return act(alive(now, c)) }
		events = append(events, ev)
	}
	if trouble := explain(streamState{last: -1}, events); trouble != "" {
		ep.Errorf("stream %s: %s", ep.name, trouble)
	}
}
