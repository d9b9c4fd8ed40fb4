// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package record

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/fivewire/fivewire/accp/internal/order"
	"github.com/fivewire/fivewire/accp/internal/tier"
	"github.com/fivewire/fivewire/internal/jsonmap"
	"github.com/fivewire/fivewire/store"
)

var errStore = errors.New("store failed")

// A faultyLog fails its next changes.
type faultyLog struct {
	store.Log
	before, after, ack bool // the next Append fails and does nothing, fails and is done; the next Ack fails
}

func (f *faultyLog) Append(ctx context.Context, stream, id string, value []byte, ttl time.Duration) (uint64, error) {
	if f.before {
		f.before = false
		return 0, errStore
	}
	n, err := f.Log.Append(ctx, stream, id, value, ttl)
	if f.after && err == nil {
		f.after = false
		return 0, errStore
	}
	return n, err
}

func (f *faultyLog) Ack(ctx context.Context, stream string, seqs ...uint64) error {
	if f.ack {
		f.ack = false
		return errStore
	}
	return f.Log.Ack(ctx, stream, seqs...)
}

func logIn(db store.Log, keep time.Duration) *log {
	l := newLog(db, "s", keep)
	return &l
}

func (l *log) put(ctx context.Context, data []byte) error {
	return l.append(ctx, append(entry(kindEvent), data...))
}

func (l *log) putAll(ctx context.Context, data []byte) error {
	return l.compact(ctx, append(entry(kindSnapshot), data...))
}

// A process has one log and the state that it has read or written: the data since the last beginning.
type process struct {
	log   *log
	db    *faultyLog
	state []string
}

func (p *process) apply(k kind, data []byte) error {
	switch k {
	case kindSnapshot:
		p.state = strings.Split(string(data), ",")
	case kindFirst:
		p.state = []string{string(data)}
	default:
		p.state = append(p.state, string(data))
	}
	return nil
}

// All processes with one log agree on its entries: a process that has read all entries can append one,
// lost answers double nothing, and snapshots change no state and leave one entry.
func TestLogAgreesWithModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		ctx, db := context.Background(), store.NewMemory()
		var want []string // the entries in order
		open := func() *process {
			p := &process{db: &faultyLog{Log: db}}
			p.log = logIn(p.db, time.Hour)
			require.NoError(t, p.log.load(ctx, p.apply))
			require.Equal(t, want, p.state)
			return p
		}
		processes := []*process{open(), open()}
		changes, read := 0, []int{0, 0} // of the stream, and the part of them that each process has read
		count := 0
		t.Repeat(map[string]func(*rapid.T){
			"append": func(t *rapid.T) {
				i := rapid.IntRange(0, 1).Draw(t, "process")
				p, data := processes[i], fmt.Sprint(count)
				count++
				fault := rapid.SampledFrom([]string{"", "", "before", "after"}).Draw(t, "fault")
				p.db.before, p.db.after = fault == "before", fault == "after"
				err := p.log.put(ctx, []byte(data))
				p.db.before, p.db.after = false, false
				isStale := read[i] != changes
				switch {
				case fault == "before":
					require.ErrorIs(t, err, errStore)
				case isStale:
					require.ErrorIs(t, err, ErrConflict)
				case fault == "after":
					require.ErrorIs(t, err, errStore)
					want = append(want, data)
					changes++
				default:
					require.NoError(t, err)
					want = append(want, data)
					changes++
					k := kindEvent
					if len(want) == 1 {
						k = kindFirst
					}
					require.NoError(t, p.apply(k, []byte(data)))
				}
				require.NoError(t, p.log.load(ctx, p.apply))
				read[i] = changes
				require.Equal(t, want, p.state)
			},
			"snapshot": func(t *rapid.T) {
				i := rapid.IntRange(0, 1).Draw(t, "process")
				p := processes[i]
				if len(want) == 0 {
					return
				}
				p.db.ack = rapid.Bool().Draw(t, "ack fails")
				isLost := p.db.ack
				err := p.log.putAll(ctx, []byte(strings.Join(p.state, ",")))
				p.db.ack = false
				if read[i] != changes {
					require.ErrorIs(t, err, ErrConflict)
				} else {
					changes++
					records, rerr := db.Read(ctx, "s", 0, 1000)
					require.NoError(t, rerr)
					if isLost {
						require.ErrorIs(t, err, errStore)
					} else {
						require.NoError(t, err)
						require.Len(t, records, 1, "a snapshot replaces all others")
					}
				}
				require.NoError(t, p.log.load(ctx, p.apply))
				read[i] = changes
				require.Equal(t, want, p.state)
			},
			"load": func(t *rapid.T) {
				i := rapid.IntRange(0, 1).Draw(t, "process")
				require.NoError(t, processes[i].log.load(ctx, processes[i].apply))
				read[i] = changes
				require.Equal(t, want, processes[i].state)
				require.Equal(t, len(want) == 0, !processes[i].log.isBegun)
			},
			"crash": func(t *rapid.T) {
				i := rapid.IntRange(0, 1).Draw(t, "process")
				processes[i] = open()
				read[i] = changes
			},
		})
	})
}

// A process that is killed between its snapshot and the removal of the earlier entries leaves those
// entries. The next process that reads removes them.
func TestLoadRemovesReplacedEntries(t *testing.T) {
	ctx, db := t.Context(), store.NewMemory()
	f := &faultyLog{Log: db}
	l := logIn(f, time.Hour)
	for i := range 5 {
		require.NoError(t, l.put(ctx, fmt.Append(nil, i)))
	}
	f.ack = true
	require.ErrorIs(t, l.putAll(ctx, []byte("all")), errStore)
	require.NoError(t, l.put(ctx, []byte("later")))
	p := &process{}
	require.NoError(t, logIn(db, time.Hour).load(ctx, p.apply))
	require.Equal(t, []string{"all", "later"}, p.state)
	records, err := db.Read(ctx, "s", 0, 100)
	require.NoError(t, err)
	require.Len(t, records, 2, "the snapshot and the entry after it")
}

// Damage is an error and no other state.
func TestLoadReportsDamage(t *testing.T) {
	ctx := t.Context()
	for name, damage := range map[string]func(db store.Store){
		"missing entry": func(db store.Store) { require.NoError(t, db.Ack(ctx, "s", 2)) },
		"other id": func(db store.Store) {
			_, err := db.Append(ctx, "s", "x", []byte{format, byte(kindEvent)}, 0)
			require.NoError(t, err)
		},
		"short value": func(db store.Store) {
			_, err := db.Append(ctx, "s", "4", []byte{format}, 0)
			require.NoError(t, err)
		},
		"other format": func(db store.Store) {
			_, err := db.Append(ctx, "s", "4", []byte{format + 1, byte(kindEvent)}, 0)
			require.NoError(t, err)
		},
		"gap": func(db store.Store) {
			_, err := db.Append(ctx, "s", "5", []byte{format, byte(kindEvent)}, 0)
			require.NoError(t, err)
		},
	} {
		db := store.NewMemory()
		l := logIn(db, time.Hour)
		for i := range 3 {
			require.NoError(t, l.put(ctx, fmt.Append(nil, i)))
		}
		damage(db)
		require.ErrorIs(t, logIn(db, time.Hour).load(ctx, (&process{}).apply), ErrDamaged, name)
	}
	// A process that reads while another process removes entries before a snapshot misses some of them.
	db := store.NewMemory()
	l := logIn(&faultyLog{Log: db, ack: true}, time.Hour)
	for i := range 3 {
		require.NoError(t, l.put(ctx, fmt.Append(nil, i)))
	}
	require.ErrorIs(t, l.putAll(ctx, []byte("all")), errStore)
	require.NoError(t, db.Ack(ctx, "s", 2))
	p := &process{}
	require.NoError(t, logIn(db, time.Hour).load(ctx, p.apply))
	require.Equal(t, []string{"all"}, p.state)

	db = store.NewMemory()
	_, err := db.Append(ctx, "s", "7", []byte{format + 1, byte(kindSnapshot)}, 0)
	require.NoError(t, err)
	err = logIn(db, time.Hour).load(ctx, (&process{}).apply)
	require.ErrorContains(t, err, "format 3, want 2")
}

// The state exists for at least keep after its last entry, however long it is in use, and for at most
// twice as long. A snapshot is due when the events are longer than the last one.
func TestLifetimeOfTheState(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, db := t.Context(), store.NewMemory()
		const keep = time.Hour
		l, p := logIn(db, keep), &process{}
		snapshots := 0
		for range 200 {
			require.NoError(t, l.put(ctx, []byte("x")))
			if l.isDue() {
				snapshots++
				require.NoError(t, l.putAll(ctx, []byte("all")))
			}
			time.Sleep(keep / 10)
		}
		require.InDelta(t, 20, snapshots, 3)
		time.Sleep(keep * 8 / 10)
		require.NoError(t, logIn(db, keep).load(ctx, p.apply))
		require.NotEmpty(t, p.state)
		require.Equal(t, "all", p.state[0])
		time.Sleep(keep + time.Minute)
		p = &process{}
		reopened := logIn(db, keep)
		require.NoError(t, reopened.load(ctx, p.apply))
		require.Empty(t, p.state)
		require.True(t, !reopened.isBegun)

		require.False(t, reopened.isDue())
		n := 0
		for ; !reopened.isDue(); n++ {
			require.NoError(t, reopened.put(ctx, slices.Repeat([]byte("x"), 1000)))
		}
		require.InDelta(t, minBytes/1000, n, 2)
		require.NoError(t, reopened.putAll(ctx, slices.Repeat([]byte("x"), 2*minBytes)))
		for n = 0; !reopened.isDue(); n++ {
			require.NoError(t, reopened.put(ctx, slices.Repeat([]byte("x"), 1000)))
		}
		require.InDelta(t, 2*minBytes/1000, n, 2, "the cost of snapshots is that of the events")
	})
}

// Without a snapshot, because it is too long for the store, a session in use continues at the same cost, and its entries do
// not expire.
func TestEventsWithoutSnapshot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const keep = time.Hour
		ctx, f := t.Context(), &faultyLog{Log: store.NewMemory()}
		l, attempts := logIn(f, keep), 0
		for range 1000 {
			require.NoError(t, l.put(ctx, slices.Repeat([]byte("x"), 1000)))
			if l.isDue() {
				attempts++
				f.before = true
				require.ErrorIs(t, l.putAll(ctx, []byte("all")), errStore)
			}
			time.Sleep(keep / 100)
		}
		require.InDelta(t, 10, attempts, 4, "when the events have doubled, and once in their life")
		p := &process{}
		require.NoError(t, logIn(f, keep).load(ctx, p.apply))
		require.Len(t, p.state, 1000)
	})
}

// After Remove nothing is read, and the next entry begins another state.
func TestRemoveEndsTheState(t *testing.T) {
	ctx, db := t.Context(), store.NewMemory()
	l, p := logIn(db, time.Hour), &process{}
	for i := range 3 {
		require.NoError(t, l.put(ctx, fmt.Append(nil, i)))
	}
	require.NoError(t, l.remove(ctx))
	require.True(t, !l.isBegun)
	require.NoError(t, l.put(ctx, []byte("new")))
	require.NoError(t, logIn(db, time.Hour).load(ctx, p.apply))
	require.Equal(t, []string{"new"}, p.state)
}

// A memory is a machine that keeps all events.
type memory struct {
	numbers order.State
	tiers   tier.State
	state   []string
	schemas string
	resets  int
}

func (m *memory) Reset() {
	m.numbers, m.tiers, m.state, m.schemas = order.New(100, false), tier.State{}, nil, ""
	m.resets++
}

func (m *memory) Restore(s *Snapshot, _ bool) (err error) {
	bounds := order.New(100, false)
	m.numbers, err = s.Numbers(&bounds)
	m.tiers, m.state, m.schemas = s.Tiers, []string{s.State}, s.Schemas
	return err
}

func (m *memory) Apply(e *Event) error {
	e.ApplyNumbers(&m.numbers)
	m.tiers.Apply(&e.Tiers)
	m.state = append(m.state, fmt.Sprint(e.Version, e.State, e.Delta))
	m.schemas = e.Schemas + m.schemas
	return nil
}

func event(n int64) *Event {
	e := &Event{Sender: fmt.Sprint("agent", n%3), Seq: n, IsStarted: n > 2, Seen: order.MarkOf(fmt.Sprintf("%012x", n)), IsChange: n%2 == 0,
		Version: n, Delta: `{k:\"\u{1F600}}`, Schemas: "{}"}
	e.Tiers.Hot = &tier.Message{Text: "@a>req:x{k:\u00e9\\n}\n@a>req:x{}", Tokens: 9}
	switch n % 4 {
	case 1:
		e.Cancelled, e.IsExact = order.MarkOf("chain"), true
		e.Tiers.Peer = &tier.Announcement{Hash: "h", ID: "cp1", Summary: "s"}
		e.Tiers.Before, e.Tiers.BeforeTokens = &tier.Checkpoint{Summary: tier.Summary{ID: fmt.Sprint("cp", n), Text: "t", Tokens: 2}, Hash: "h",
			Trigger: []string{"done"}, Frames: 3, Refined: tier.Summary{ID: "cp7", Text: "r"}, Until: 5, Bytes: 6}, 4
		e.Tiers.Maximum = 2
	case 2:
		e.State, e.Delta = "{}", ""
		e.Tiers.Void, e.Tiers.Drop = "cp9", true
	case 3:
		e.Tiers.After, e.Tiers.Maximum = &tier.Checkpoint{Summary: tier.Summary{ID: fmt.Sprint("cp", n)}}, 2
		e.Tiers.Refine, e.Tiers.Refined = fmt.Sprint("cp", n), &tier.Summary{ID: "cp8"}
	}
	return e
}

// A process that reads a record has the state of its writer, also after a snapshot.
func TestReopenedSessionIsTheSame(t *testing.T) {
	ctx, db := t.Context(), store.NewMemory()
	o := Options{Stream: "accp/s/session/a", Sides: "accp/s/side/", Self: "a", Keep: time.Hour}
	s, m := New(db, o), &memory{}
	m.Reset()
	require.NoError(t, second(s.Load(ctx, m)))
	for n := int64(1); n < 40; n++ {
		e := event(n)
		require.NoError(t, s.Append(ctx, e))
		require.NoError(t, m.Apply(e))
		if n == 20 {
			all := &Snapshot{Version: n, State: "{}", Schemas: m.schemas, Tiers: m.tiers}
			all.SetNumbers(&m.numbers)
			require.NoError(t, s.Compact(ctx, all))
			m.state = []string{"{}"}
		}
		other := &memory{}
		reopened := New(db, o)
		require.NoError(t, second(reopened.Load(ctx, other)))
		isLoaded, err := reopened.Load(ctx, other)
		require.NoError(t, err)
		require.False(t, isLoaded, "nothing has changed")
		require.Equal(t, m.state, other.state)
		require.Equal(t, m.schemas, other.schemas)
		require.Equal(t, fields(&m.numbers), fields(&other.numbers))
		m.tiers.Recount()
		other.tiers.Recount()
		require.Equal(t, text(t, &m.tiers), text(t, &other.tiers))
	}
	behind, m2 := New(db, o), &memory{}
	require.NoError(t, second(behind.Load(ctx, m2)))
	require.NoError(t, s.Append(ctx, event(40)))
	require.ErrorIs(t, behind.Append(ctx, event(40)), ErrConflict)
	isLoaded, err := behind.Load(ctx, m2)
	require.NoError(t, err)
	require.True(t, isLoaded)

	side := New(db, Options{Stream: "accp/s/session/b", Sides: "accp/s/side/", Self: "b", Keep: time.Hour})
	require.NoError(t, side.Append(ctx, event(1)))
	hasOther, err := s.Remove(ctx)
	require.NoError(t, err)
	require.True(t, hasOther)
	hasOther, err = side.Remove(ctx)
	require.NoError(t, err)
	require.False(t, hasOther)
}

func second[T any](_ T, err error) error { return err }

func fields(o *order.State) (out []any) {
	for name, n := range o.Last.All() {
		out = append(out, name, n)
	}
	return append(out, o.IsStarted, o.High, o.Seen.Marks(), o.Cancelled.Marks(), o.Changes.Marks())
}

func text(t *testing.T, s *tier.State) string {
	out, err := jsonmap.Append(nil, s)
	require.NoError(t, err)
	return string(out)
}

func TestDamagedEntriesAreReported(t *testing.T) {
	ctx := t.Context()
	for _, value := range []string{"", "{", `{"seq":"x"}`, `{"senders":[],"seen":"AAA="}`} {
		for _, k := range []kind{kindFirst, kindSnapshot} {
			db := store.NewMemory()
			_, err := db.Append(ctx, "s", "1", append(entry(k), value...), 0)
			require.NoError(t, err)
			_, err = New(db, Options{Stream: "s", Keep: time.Hour}).Load(ctx, &memory{})
			if k == kindFirst && strings.HasPrefix(value, `{"senders`) {
				continue // unknown members are skipped
			}
			require.ErrorIs(t, err, ErrDamaged, "%c %s", k, value)
		}
	}
}
