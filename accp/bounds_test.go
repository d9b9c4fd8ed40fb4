// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package accp_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/fivewire/fivewire/accp"
	"github.com/fivewire/fivewire/internal/bench/pair"
	"github.com/fivewire/fivewire/internal/race"
)

// greedy are bodies of frames that make a session hold something. Each %d is a number, and %s is a long text.
var greedy = []string{
	"req:echo{k%d:%s}", "done:plan{k%d:%s}", "wait:plan{k%d:1}", "esc:plan{k:%s}", "comp:plan{k%d:%s}", "cancel:plan{k%d:%s}",
	"sync:state{state:{k%d:%s}|v:%d}", "sync:registry{delta:{S%d:{defaults:{a:%s},fields:[a],name:s,version:1}}|hash:ffffff|v:2}",
	"sync:checkpoint{hash:4fa195981d0ee605|id:cp%d|summary:%s}", "stream:tell{d:%s|idx:%d|schema:ST}", "req:plan{k:[%s,%s,%s]}",
}

// exchangeGreedily posts frames to a server whose sessions are small. No sequence of frames makes a session hold more than
// its bound, and none makes it panic (ACCP-D76).
func exchangeGreedily(t testing.TB, draw func(name string, n int) int, steps int) {
	const limit = 128 << 10
	s := newUserServer(t, accp.ServerOptions{Limits: accp.Limits{MaxMemoryPerSession: limit}})
	for n := range steps {
		body := greedy[draw("body", len(greedy))]
		body = strings.ReplaceAll(body, "%d", fmt.Sprint(n))
		body = strings.ReplaceAll(body, "%s", strings.Repeat("x", 1+draw("length", 30000)))
		sid, more := fmt.Sprint("s", draw("session", 2)), []string{}
		switch draw("metadata", 6) {
		case 0:
			more = []string{fmt.Sprint("cid:c", n)}
		case 1:
			more = []string{"cid:c", "part:1/3"}
		case 2:
			more = []string{"cid:" + strings.Repeat("y", 1+draw("id", 30000))}
		}
		s.seq[sid] += 2
		w := s.postFrame("a", frame(body, s.seq[sid]-1, append(more, "sid:"+sid)...))
		require.NotContains(t, w.Body.String(), "code:E9999", "%.200s", body)
		used, bound := s.used("memory", "session")
		require.LessOrEqual(t, used, bound)
		require.EqualValues(t, limit, bound)
	}
}

func TestNoFramesExceedTheBoundOfASession(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		draw := func(name string, n int) int { return rapid.IntRange(0, n-1).Draw(rt, name) }
		exchangeGreedily(t, draw, draw("steps", 60))
	})
}

func FuzzSession(f *testing.F) {
	f.Add([]byte("0123456789abcdefghijklmnopqrstuvwxyz"))
	f.Fuzz(func(t *testing.T, data []byte) {
		draw := func(_ string, n int) int {
			if len(data) < 2 {
				return 0
			}
			x := int(data[0])<<8 | int(data[1])
			data = data[2:]
			return x % n
		}
		exchangeGreedily(t, draw, min(60, len(data)/8))
	})
}

// Twice the bytes of a frame take at most 2.5 times the time, whatever they are.
func BenchmarkPairTwice(b *testing.B) {
	const n = 16 << 10
	short, long := hostile(n), hostile(2*n)
	for _, name := range slices.Sorted(func(yield func(string) bool) {
		for name := range short {
			if !yield(name) {
				return
			}
		}
	}) {
		decode := func(text string) func(int) {
			frame, c := []byte(text), accp.Codec{}
			return pair.Loop(func() { _, _ = c.Decode(frame) })
		}
		b.Run("input="+strings.ReplaceAll(name, " ", "_")+"/lib=sdk", func(b *testing.B) {
			pair.Ratio(b, decode(long[name]), decode(short[name]))
		})
	}
}

// newViewSession returns a session whose view has n lines.
func newViewSession(t testing.TB, n int) (s *accp.Session, next func()) {
	s = session(t, nil)
	s.ModelContext(1<<30, 1<<29)
	seq := int64(0)
	next = func() {
		seq++
		_, err := s.Receive(t.Context(), frame("req:a{}", seq))
		require.NoError(t, err)
	}
	for range n {
		next()
	}
	return s, next
}

// A call for the context of a model costs its new lines only: after 100,000 frames at most twice the time of a call after
// 100 frames, and one allocation a line, the line itself.
func TestModelContextCostsItsNewLines(t *testing.T) {
	if race.Enabled {
		t.Skip("the race detector takes time and allocates")
	}
	fastest := func(s *accp.Session, next func()) (best time.Duration) {
		for n := range 200 {
			next()
			began := time.Now()
			s.ModelContext(1<<30, 1<<29)
			if took := time.Since(began); n == 0 || took < best {
				best = took
			}
		}
		return best
	}
	few, nextFew := newViewSession(t, 100)
	many, nextMany := newViewSession(t, 100_000)
	many.ModelContext(1<<30, 1<<29) // begins the view, which was above 1 MiB
	var after100, after100000 time.Duration
	for range 5 { // other load may come during one of them
		after100, after100000 = fastest(few, nextFew), fastest(many, nextMany)
		if after100000 <= 2*after100 {
			break
		}
	}
	require.LessOrEqual(t, after100000, 2*after100)

	receive := testing.AllocsPerRun(400, nextFew)
	both := testing.AllocsPerRun(400, func() { nextFew(); few.ModelContext(1<<30, 1<<29) })
	require.LessOrEqual(t, both-receive, 2.0)
	require.Zero(t, testing.AllocsPerRun(400, func() { few.ModelContext(1<<30, 1<<29) }))
}
