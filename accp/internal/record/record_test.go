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

// A process has one log and the state that it has read or written: the data since the last beginning.
type process struct {
	log   *Log
	db    *faultyLog
	state []string
}

func (p *process) apply(kind Kind, data []byte) error {
	switch kind {
	case Snapshot:
		p.state = strings.Split(string(data), ",")
	case First:
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
			p.log = New(p.db, "s", time.Hour)
			require.NoError(t, p.log.Load(ctx, p.apply))
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
				err := p.log.Append(ctx, Event, []byte(data))
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
					kind := Event
					if len(want) == 1 {
						kind = First
					}
					require.NoError(t, p.apply(kind, []byte(data)))
				}
				require.NoError(t, p.log.Load(ctx, p.apply))
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
				err := p.log.Compact(ctx, []byte(strings.Join(p.state, ",")))
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
				require.NoError(t, p.log.Load(ctx, p.apply))
				read[i] = changes
				require.Equal(t, want, p.state)
			},
			"load": func(t *rapid.T) {
				i := rapid.IntRange(0, 1).Draw(t, "process")
				require.NoError(t, processes[i].log.Load(ctx, processes[i].apply))
				read[i] = changes
				require.Equal(t, want, processes[i].state)
				require.Equal(t, len(want) == 0, processes[i].log.IsEmpty())
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
	l := New(f, "s", time.Hour)
	for i := range 5 {
		require.NoError(t, l.Append(ctx, Event, fmt.Append(nil, i)))
	}
	f.ack = true
	require.ErrorIs(t, l.Compact(ctx, []byte("all")), errStore)
	require.NoError(t, l.Append(ctx, Event, []byte("later")))
	p := &process{}
	require.NoError(t, New(db, "s", time.Hour).Load(ctx, p.apply))
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
			_, err := db.Append(ctx, "s", "x", []byte{format, byte(Event)}, 0)
			require.NoError(t, err)
		},
		"short value": func(db store.Store) {
			_, err := db.Append(ctx, "s", "4", []byte{format}, 0)
			require.NoError(t, err)
		},
		"other format": func(db store.Store) {
			_, err := db.Append(ctx, "s", "4", []byte{format + 1, byte(Event)}, 0)
			require.NoError(t, err)
		},
		"gap": func(db store.Store) {
			_, err := db.Append(ctx, "s", "5", []byte{format, byte(Event)}, 0)
			require.NoError(t, err)
		},
	} {
		db := store.NewMemory()
		l := New(db, "s", time.Hour)
		for i := range 3 {
			require.NoError(t, l.Append(ctx, Event, fmt.Append(nil, i)))
		}
		damage(db)
		require.ErrorIs(t, New(db, "s", time.Hour).Load(ctx, (&process{}).apply), ErrDamaged, name)
	}
	// A process that reads while another process removes entries before a snapshot misses some of them.
	db := store.NewMemory()
	l := New(&faultyLog{Log: db, ack: true}, "s", time.Hour)
	for i := range 3 {
		require.NoError(t, l.Append(ctx, Event, fmt.Append(nil, i)))
	}
	require.ErrorIs(t, l.Compact(ctx, []byte("all")), errStore)
	require.NoError(t, db.Ack(ctx, "s", 2))
	p := &process{}
	require.NoError(t, New(db, "s", time.Hour).Load(ctx, p.apply))
	require.Equal(t, []string{"all"}, p.state)

	db = store.NewMemory()
	_, err := db.Append(ctx, "s", "7", []byte{format + 1, byte(Snapshot)}, 0)
	require.NoError(t, err)
	err = New(db, "s", time.Hour).Load(ctx, (&process{}).apply)
	require.ErrorContains(t, err, "format 2, want 1")
}

// The state exists for at least keep after its last entry, however long it is in use, and for at most
// twice as long. A snapshot is due when the events are longer than the last one.
func TestLifetimeOfTheState(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, db := t.Context(), store.NewMemory()
		const keep = time.Hour
		l, p := New(db, "s", keep), &process{}
		snapshots := 0
		for range 200 {
			require.NoError(t, l.Append(ctx, Event, []byte("x")))
			if l.IsDue() {
				snapshots++
				require.NoError(t, l.Compact(ctx, []byte("all")))
			}
			time.Sleep(keep / 10)
		}
		require.InDelta(t, 20, snapshots, 3)
		time.Sleep(keep * 8 / 10)
		require.NoError(t, New(db, "s", keep).Load(ctx, p.apply))
		require.NotEmpty(t, p.state)
		require.Equal(t, "all", p.state[0])
		time.Sleep(keep + time.Minute)
		p = &process{}
		reopened := New(db, "s", keep)
		require.NoError(t, reopened.Load(ctx, p.apply))
		require.Empty(t, p.state)
		require.True(t, reopened.IsEmpty())

		require.False(t, reopened.IsDue())
		n := 0
		for ; !reopened.IsDue(); n++ {
			require.NoError(t, reopened.Append(ctx, Event, slices.Repeat([]byte("x"), 1000)))
		}
		require.InDelta(t, minBytes/1000, n, 2)
		require.NoError(t, reopened.Compact(ctx, slices.Repeat([]byte("x"), 2*minBytes)))
		for n = 0; !reopened.IsDue(); n++ {
			require.NoError(t, reopened.Append(ctx, Event, slices.Repeat([]byte("x"), 1000)))
		}
		require.InDelta(t, 2*minBytes/1000, n, 2, "the cost of snapshots is that of the events")
	})
}

// After Remove nothing is read, and the next entry begins another state.
func TestRemoveEndsTheState(t *testing.T) {
	ctx, db := t.Context(), store.NewMemory()
	l, p := New(db, "s", time.Hour), &process{}
	for i := range 3 {
		require.NoError(t, l.Append(ctx, Event, fmt.Append(nil, i)))
	}
	require.NoError(t, l.Remove(ctx))
	require.True(t, l.IsEmpty())
	require.NoError(t, l.Append(ctx, Event, []byte("new")))
	require.NoError(t, New(db, "s", time.Hour).Load(ctx, p.apply))
	require.Equal(t, []string{"new"}, p.state)
}
