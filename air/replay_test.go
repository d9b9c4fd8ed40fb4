// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package air

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// The window agrees with a list that is searched from end to end, whatever happens
// in whatever order: nothing alive is forgotten, nothing dead is in the way
// (AIR-113, AIR-D43, AIR-D58).
func TestReplayWindowModel(t *testing.T) {
	type item struct {
		triple, id, thread string
		until              time.Time
	}
	rapid.Check(t, func(t *rapid.T) {
		w := &ReplayWindow{PerThread: 3, Total: 6}
		var list []item
		now := time.Unix(1e9, 0)
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			now = now.Add(time.Duration(rapid.SampledFrom([]int{0, 0, 1, 300, 999, 1000, 2500, 400000}).Draw(t, "pause")) * time.Millisecond)
			alive := list[:0]
			for _, it := range list {
				if !it.until.Before(now) {
					alive = append(alive, it)
				}
			}
			list = alive
			thread := fmt.Sprint("t", rapid.IntRange(0, 2).Draw(t, "thread"))
			it := item{
				triple: thread + fmt.Sprint(rapid.IntRange(0, 5).Draw(t, "nonce")), thread: thread,
				id:    fmt.Sprint(rapid.IntRange(0, 5).Draw(t, "id")),
				until: now.Add(time.Duration(rapid.IntRange(0, 5000).Draw(t, "life")) * time.Millisecond),
			}
			k := replayKeys("from", it.thread, it.triple, it.id)
			if rapid.IntRange(0, 5).Draw(t, "op") == 0 {
				for i, old := range list {
					if old.triple == it.triple {
						w.forget(replayKeys("from", old.thread, old.triple, old.id))
						list = append(list[:i:i], list[i+1:]...)
						break
					}
				}
				continue
			}
			var want error
			inThread := 0
			for _, old := range list {
				if old.triple == it.triple || old.id == it.id {
					want = errReplayed
				}
				if old.thread == it.thread {
					inThread++
				}
			}
			if want == nil && (inThread >= 3 || len(list) >= 6) {
				want = errExhausted
			}
			if got := w.record(k, it.until, now, true); got != want {
				t.Fatalf("at %v: got %v, want %v", now, got, want)
			}
			if want == nil {
				list = append(list, it)
			}
		}
		// In the end everything goes.
		w.mu.Lock()
		w.expire(now.Add(time.Hour).UnixMilli())
		w.mu.Unlock()
		require.Zero(t, w.Len())
		require.Zero(t, w.seen.len())
		require.Zero(t, w.names.len())
		require.Zero(t, w.threads.len())
		require.Empty(t, w.due)
	})
}

func TestReplayWindowAlone(t *testing.T) {
	var w ReplayWindow
	until := time.Now().Add(time.Minute)
	require.NoError(t, w.Record("a", "t", "n", "i", until))
	require.ErrorIs(t, w.Record("a", "t", "n", "j", until), ErrReplay)
	require.ErrorIs(t, w.Record("a", "u", "n", "i", until), ErrReplay)
	require.NoError(t, w.Record("a", "u", "n", "j", until))
	require.NoError(t, w.Record("b", "t", "n", "i", until))
	require.Equal(t, 3, w.Len())
	w.Forget("a", "t", "n", "i")
	w.Forget("a", "t", "n", "i")
	require.NoError(t, w.Record("a", "t", "n", "i", until))
}

// The table agrees with a map, whatever is put and removed. Names that differ only
// where it does not look crowd in one place.
func TestReplayTableModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var table replayTable
		table.start()
		model := make(map[replayKey]uint32)
		crowded := rapid.Bool().Draw(t, "crowded")
		for i := range rapid.IntRange(1, 200).Draw(t, "steps") {
			var k replayKey
			k[0] = byte(rapid.IntRange(0, 60).Draw(t, "name"))
			if crowded {
				k[4], k[8] = k[0], k[0] // they cancel out: every name has the same home but for the first byte
				k[0] = 0
			}
			if _, ok := model[k]; ok || rapid.IntRange(0, 4).Draw(t, "absent") == 0 {
				table.remove(&k)
				delete(model, k)
			} else {
				table.put(&k, uint32(i)+1)
				model[k] = uint32(i) + 1
			}
			require.Equal(t, len(model), table.len())
			for k, v := range model {
				require.Equal(t, v, table.get(&k))
			}
			none := replayKey{99}
			require.Zero(t, table.get(&none))
		}
		for k := range model {
			table.remove(&k)
		}
		require.Zero(t, table.len())
	})
}
