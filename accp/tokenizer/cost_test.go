// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package tokenizer_test

import (
	"encoding/json"
	"os"
	"os/exec"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	oracle "github.com/tiktoken-go/tokenizer"

	"github.com/fivewire/fivewire/accp"
	"github.com/fivewire/fivewire/accp/tokenizer/cl100k"
	"github.com/fivewire/fivewire/accp/tokenizer/o200k"
	"github.com/fivewire/fivewire/internal/bench/pair"
	"github.com/fivewire/fivewire/internal/race"
)

const sampleFrame = `@planner>req:schedule{pri:high|task:impl_auth_module|when:sprint_14|who:\@dev_team}` +
	`[mid:49679033e07c,seq:3,ts:1714000000,cid:corr123,sid:abc-session]`

const sampleJSON = `{"msg_id":"49679033e07c","sequence":3,"timestamp":1714000000,"correlation_id":"corr123","session_id":"abc-session",` +
	`"from":"planner","intent":"request","operation":"schedule","payload":{"target":"@dev_team","when":"sprint_14",` +
	`"task":"implement_auth_module","priority":"high"}}`

var samples = []struct{ name, text string }{
	{"frame", sampleFrame},
	{"json", sampleJSON},
	{"nl2KB", strings.Repeat("I have completed the analysis of the third quarter sales dataset. The findings are that revenue is down "+
		"12 percent quarter over quarter, the enterprise segment is declining, and churn has risen by 3.2 percent. ", 10)},
}

func TestCountAllocatesNothing(t *testing.T) {
	for _, c := range []accp.TokenCounter{o200k.Counter{}, cl100k.Counter{}} {
		texts := []string{prose}
		if !race.Enabled { // which empties the pool of working memory for long pieces
			texts = append(texts, strings.Repeat("z", 1000), strings.Repeat("ж", 30000))
		}
		for _, s := range samples {
			texts = append(texts, s.text)
		}
		for _, text := range texts {
			c.Count(text) // the first one makes the working memory for long pieces
			require.Zero(t, testing.AllocsPerRun(50, func() { c.Count(text) }), "%.40s", text)
		}
	}
}

// The time for 16 times the text is far below 256 times, even without a boundary between pieces.
// Caches and other load make it more than 16 times.
func TestCountIsNearLinear(t *testing.T) {
	n := 1 << 14
	if race.Enabled {
		n = 1 << 11
	}
	fastest := func(text string) time.Duration {
		var times []time.Duration
		for range 3 {
			began := time.Now()
			o200k.Counter{}.Count(text)
			times = append(times, time.Since(began))
		}
		return slices.Min(times)
	}
	for _, unit := range []string{"a", "=", " ", "\n", "中", "\u0301", "🙂", "qz", "'", "A", "\r\n\t", " \u0301", "Aʰ"} {
		var short, long time.Duration
		for range 20 { // other load may come during the long text only
			short = max(fastest(strings.Repeat(unit, n)), 100*time.Microsecond)
			if long = fastest(strings.Repeat(unit, 16*n)); long < 16*8*short {
				break
			}
		}
		require.Less(t, long, 16*8*short, "%q", unit)
	}
}

// The first count is the first of a process, so this test runs itself again.
func TestFirstCount(t *testing.T) {
	const flag = "FIVEWIRE_FIRST_COUNT"
	if os.Getenv(flag) != "" {
		var before, after runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&before)
		began := time.Now()
		n := o200k.Counter{}.Count("hello world")
		took := time.Since(began)
		runtime.GC()
		runtime.ReadMemStats(&after)
		_ = json.NewEncoder(os.Stderr).Encode(map[string]int64{"first": int64(n), "ns": took.Nanoseconds(), "live": int64(after.HeapAlloc) - int64(before.HeapAlloc)})
		return
	}
	var out []byte
	var got struct{ First, NS, Live int64 }
	for try := range 5 { // on a busy machine the one count may be interrupted
		cmd := exec.Command(os.Args[0], "-test.run=^TestFirstCount$")
		cmd.Env = append(os.Environ(), flag+"=1", "GODEBUG=inittrace=1")
		var err error
		out, err = cmd.CombinedOutput()
		require.NoError(t, err, "%s", out)
		line := regexp.MustCompile(`\{"first".*\}`).Find(out)
		require.NoError(t, json.Unmarshal(line, &got))
		t.Logf("try %d: first count after %v, %d bytes of heap", try, time.Duration(got.NS), got.Live)
		require.EqualValues(t, 2, got.First)
		require.Less(t, got.Live, int64(100<<10))
		if time.Duration(got.NS) < 20*time.Millisecond {
			break
		}
	}
	require.Less(t, time.Duration(got.NS), 20*time.Millisecond)

	// The packages of this module have no noticeable init functions.
	for _, m := range regexp.MustCompile(`init (github.com/fivewire/\S+) @\S+ ms, (\S+) ms clock, (\d+) bytes`).FindAllSubmatch(out, -1) {
		ms, err := strconv.ParseFloat(string(m[2]), 64)
		require.NoError(t, err)
		if !race.Enabled {
			require.Less(t, ms, 10.0, "%s", m[0]) // far below 0.1 on a quiet machine
		}
		size, err := strconv.Atoi(string(m[3]))
		require.NoError(t, err)
		require.Less(t, size, 100<<10, "%s", m[0])
	}
}

// lookups returns a function that does what no counter can do without: one look
// into the whole vocabulary for each token, with the tokens known beforehand.
func lookups(b *testing.B, c oracle.Codec, name, text string) func() {
	vocabulary := map[string]uint{}
	for rank, token := range tokensOf(b, name) {
		vocabulary[token] = uint(rank)
	}
	_, tokens, err := c.Encode(text)
	require.NoError(b, err)
	sum := uint(0)
	return func() {
		for _, t := range tokens {
			sum += vocabulary[t]
		}
	}
}

func BenchmarkCount(b *testing.B) {
	for _, v := range vocabularies(b) {
		for _, s := range samples {
			for lib, f := range map[string]func(){
				"sdk":         func() { v.count.Count(s.text) },
				"tiktoken-go": func() { _, _ = v.oracle.Count(s.text) },
				"pkoukk":      func() { v.arbiter().EncodeOrdinary(s.text) },
				"lookup":      lookups(b, v.oracle, v.name, s.text),
			} {
				b.Run("text="+s.name+"/enc="+v.name+"/lib="+lib, func(b *testing.B) {
					b.ReportAllocs()
					b.SetBytes(int64(len(s.text)))
					for b.Loop() {
						f()
					}
				})
			}
		}
	}
}

// The base is one lookup in a map of the vocabulary for each token; for
// tiktoken-go it is our count, which has to be at least four times as fast.
func BenchmarkPairCount(b *testing.B) {
	for _, v := range vocabularies(b) {
		for _, s := range samples {
			base := lookups(b, v.oracle, v.name, s.text)
			count := func() { v.count.Count(s.text) }
			b.Run("text="+s.name+"/enc="+v.name+"/lib=sdk/base=lookup", func(b *testing.B) {
				pair.Ratio(b, pair.Loop(count), pair.Loop(base))
			})
			b.Run("text="+s.name+"/enc="+v.name+"/lib=tiktoken-go/base=sdk", func(b *testing.B) {
				pair.Ratio(b, pair.Loop(func() { _, _ = v.oracle.Count(s.text) }), pair.Loop(count))
			})
		}
	}
}
