// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package tokenizer_test

import (
	"encoding/base64"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/pkoukk/tiktoken-go"
	loader "github.com/pkoukk/tiktoken-go-loader"
	"github.com/stretchr/testify/require"
	oracle "github.com/tiktoken-go/tokenizer"

	"github.com/fivewire/fivewire/accp"
	"github.com/fivewire/fivewire/accp/tokenizer/cl100k"
	"github.com/fivewire/fivewire/accp/tokenizer/internal/bpe"
	"github.com/fivewire/fivewire/accp/tokenizer/o200k"
	"github.com/fivewire/fivewire/internal/race"
)

// A vocabulary has the implementation of this module and two independent ones.
type vocabulary struct {
	name       string
	count      accp.TokenCounter
	oracle     oracle.Codec
	arbiter    func() *tiktoken.Tiktoken
	arbitrated *atomic.Int64 // number of decisions of the arbiter
}

// The published rules that cut texts into pieces.
var rules = map[string]string{
	"o200k_base": `[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?` +
		`|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?` +
		`|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+`,
	"cl100k_base": `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`,
}

// Loading is slow, so it is done once, and for the arbiters only on demand.
var loaded = sync.OnceValues(func() ([]vocabulary, error) {
	out := []vocabulary{{name: "o200k_base", count: o200k.Counter{}}, {name: "cl100k_base", count: cl100k.Counter{}}}
	for i := range out {
		v := &out[i]
		c, err := oracle.Get(oracle.Encoding(v.name))
		if err != nil {
			return nil, err
		}
		v.oracle, v.arbitrated = c, new(atomic.Int64)
		v.arbiter = sync.OnceValue(func() *tiktoken.Tiktoken {
			ranks, err := loader.NewOfflineLoader().LoadTiktokenBpe(v.name + ".tiktoken")
			if err != nil {
				panic(err)
			}
			core, err := tiktoken.NewCoreBPE(ranks, nil, rules[v.name])
			if err != nil {
				panic(err)
			}
			return tiktoken.NewTiktoken(core, nil, nil)
		})
	}
	return out, nil
})

func vocabularies(t testing.TB) []vocabulary {
	t.Helper()
	v, err := loaded()
	require.NoError(t, err)
	return v
}

// check compares our count with that of the first implementation. Where they
// differ, the second one decides, which is much slower: the first one cuts some
// runs of white space with form feeds and vertical tabs in them otherwise than
// the published rule.
func (v *vocabulary) check(t *testing.T, text string) {
	t.Helper()
	want, err := v.oracle.Count(text)
	require.NoError(t, err)
	got := v.count.Count(text)
	if got != want {
		v.arbitrated.Add(1)
		want = len(v.arbiter().EncodeOrdinary(text))
	}
	if got != want {
		t.Fatalf("%s: %d tokens, want %d, in %.2000q", v.name, got, want, text)
	}
}

// A kind makes random texts of one kind.
type kind struct {
	name string
	text func(r *rand.Rand) string
}

func pick[T any](r *rand.Rand, from ...T) T { return from[r.IntN(len(from))] }

// several joins 1 to n texts.
func several(r *rand.Rand, n int, f func() string) string {
	var b strings.Builder
	for range 1 + r.IntN(n) {
		b.WriteString(f())
	}
	return b.String()
}

const prose = `I have completed the analysis of the third quarter sales dataset; it's what they'd asked for, and
we've found that REVENUE is down 12.5% QoQ. "Don't panic," she said -- I'll re-run it. The agents' budget: $1,234,567.89!
Die Überprüfung der Größe läuft; où est-ce qu'il a été déjà? ¿Qué pasó con el año 2024? Это не так просто. 这是一个测试。
日本語のテキストです。한국어 문장입니다. هذا نص عربي. हिन्दी में पाठ। ข้อความภาษาไทย. 👩‍👩‍👧‍👦 family 🏳️‍🌈 ok ½ ² Ⅷ ǅ ʰ ﬀ İ ſ K`

// The ranges from which single characters come.
var ranges = [][2]rune{
	{0, 0x7F}, {0x80, 0x24F}, {0x250, 0x36F}, {0x370, 0x5FF}, {0x600, 0xDFF}, {0xE00, 0x1FFF}, {0x2000, 0x2FFF},
	{0x3000, 0x33FF}, {0x3400, 0x9FFF}, {0xA000, 0xABFF}, {0xAC00, 0xD7FF}, {0xE000, 0xF8FF}, {0xF900, 0xFFFF},
	{0x10000, 0x107FF}, {0x10800, 0x16FFF}, {0x17000, 0x1B2FF}, {0x1BC00, 0x1EFFF}, {0x1F000, 0x1FAFF},
	{0x20000, 0x2FFFF}, {0x30000, 0x3FFFF}, {0x40000, 0xDFFFF}, {0xE0000, 0xEFFFF}, {0xF0000, 0x10FFFF},
}

func character(r *rand.Rand) string {
	in := pick(r, ranges...)
	return string(in[0] + r.Int32N(in[1]-in[0]+1))
}

func kinds(vocabulary []string) []kind {
	words := strings.Fields(prose)
	name := func(r *rand.Rand) string {
		return pick(r, "status", "q3_sales", "impl_auth_module", "a", "X9", "deadline", "who", "ent_seg", "churn", "$cold.h49679033")
	}
	var value func(r *rand.Rand, depth int) accp.Value
	value = func(r *rand.Rand, depth int) accp.Value {
		switch r.IntN(8) {
		case 0:
			return accp.Int(r.Int64() >> r.IntN(64))
		case 1:
			d, _ := accp.Decimal(fmt.Sprintf("%d.%d", r.IntN(1000), r.IntN(10000)))
			return d
		case 2:
			return accp.Bool(r.IntN(2) == 0)
		case 3:
			return accp.Value{}
		case 4:
			if depth < 3 {
				return accp.Array(value(r, depth+1), value(r, depth+1))
			}
		case 5:
			if depth < 3 {
				return accp.Map(accp.Param{Key: "k", Value: value(r, depth+1)}, accp.Param{Key: "rev", Value: value(r, depth+1)})
			}
		}
		return accp.String(several(r, 4, func() string { return pick(r, words...) + pick(r, "", " ", "_") }))
	}
	return []kind{
		{"prose", func(r *rand.Rand) string {
			return several(r, 40, func() string { return pick(r, words...) + pick(r, " ", " ", " ", "\n", "  ", "") })
		}},
		{"frame", func(r *rand.Rand) string {
			m := &accp.Message{From: "planner", Intent: accp.IntentReq, Op: "schedule", Meta: &accp.Meta{
				MID: fmt.Sprintf("%012x", r.Uint64()>>16), Seq: accp.NewOptionalInt(r.Int64N(1000)), TS: accp.NewOptionalInt(1.7e9 + r.Int64N(1e8)), SID: name(r)}}
			for i := range r.IntN(8) {
				m.Params = append(m.Params, accp.Param{Key: fmt.Sprintf("k%d", i), Value: value(r, 0)})
			}
			frame, err := new(accp.Codec).AppendRaw(nil, m)
			if err != nil {
				panic(err)
			}
			return string(frame)
		}},
		{"JSON", func(r *rand.Rand) string {
			b, err := value(r, 0).AppendJSON([]byte(`{"` + name(r) + `": `))
			if err != nil {
				panic(err)
			}
			return string(b) + pick(r, "}", "\n}", "\r\n}\r\n")
		}},
		{"code", func(r *rand.Rand) string {
			return several(r, 30, func() string {
				return pick(r, "func ", "if err != nil {\n\t\treturn nil, err\n\t}\n", "    ", "\t", "//// ", "x := ", "a[i]", "()", ";\r\n", "\n\n\n",
					"http://example.com/a/b?c=d#e", "camelCaseName", "HTTPServer", "SCREAMING_CASE", "0x1F", "3.14159e-10", "*/\n", "\\\"", "<|endoftext|>")
			})
		}},
		{"white space", func(r *rand.Rand) string {
			return several(r, 24, func() string {
				return pick(r, " ", "  ", "\n", "\r\n", "\r", "\t", "\v", "\f", "\u0085", "\u00a0", "\u2003", "\u3000", "a", "B", "1", "!", "/", "\u0301")
			})
		}},
		{"apostrophes", func(r *rand.Rand) string {
			return several(r, 12, func() string {
				return pick(r, "'", "'s", "'S", "'t", "'LL", "'lL", "'re", "'Ve", "'vE", "'d", "'M", "'l", "’s", "it", "IT", "É", "中", "\u0301", " ", "1", "!")
			})
		}},
		{"cases", func(r *rand.Rand) string { // capitals, small letters, and those that are neither
			return several(r, 20, func() string {
				return pick(r, "A", "b", "ǅ", "ʰ", "中", "ª", "\u0301", "\u20dd", "É", "ß", "AB", "cd", " ", "-", "'s", "9")
			})
		}},
		{"numbers", func(r *rand.Rand) string {
			return several(r, 20, func() string {
				return pick(r, "0", "7", "12", "999", "4096", ".", ",", "-", " ", "½", "²", "٣", "Ⅷ", "e", "𝟘")
			})
		}},
		{"hexadecimal", func(r *rand.Rand) string {
			return several(r, 4, func() string { return fmt.Sprintf(pick(r, "%x", "%X", "%016x"), r.Uint64()) })
		}},
		{"base64", func(r *rand.Rand) string {
			b := make([]byte, r.IntN(300))
			for i := range b {
				b[i] = byte(r.Uint32())
			}
			return base64.StdEncoding.EncodeToString(b)
		}},
		{"all of Unicode", func(r *rand.Rand) string { return several(r, 60, func() string { return character(r) }) }},
		{"one script", func(r *rand.Rand) string {
			in := pick(r, ranges...)
			return several(r, 60, func() string { return string(in[0]+r.Int32N(in[1]-in[0]+1)) + pick(r, "", "", "", " ") })
		}},
		{"runs", func(r *rand.Rand) string {
			return several(r, 3, func() string {
				return strings.Repeat(pick(r, "a", "Z", "ab", "=", "-", " ", "0", "é", "中", "한", "🙂", "\u0301", "\n", "ha"), 1+r.IntN(400))
			})
		}},
		{"tokens", func(r *rand.Rand) string { // in any order, so that pieces are cut and merged otherwise
			return several(r, 30, func() string { return pick(r, vocabulary...) })
		}},
		{"letters", func(r *rand.Rand) string {
			return several(r, 120, func() string { return string(rune('a' + r.IntN(26))) })
		}},
		{"not UTF-8", func(r *rand.Rand) string {
			return several(r, 30, func() string {
				return pick(r, "\xff", "\xc3", "\xe4\xb8", "\xf0\x9f\x99", "\xed\xa0\x80", "\xc0\x80", "a", " ", "中", "1", "\n", string([]byte{byte(r.Uint32())}))
			})
		}},
	}
}

// The counts are those of another implementation, for texts of every kind.
func TestExact(t *testing.T) {
	const each = 650
	for _, v := range vocabularies(t) {
		t.Run(v.name, func(t *testing.T) {
			t.Parallel()
			tokens := tokensOf(t, v.name)
			total, arbitrated := 0, v.arbitrated.Load()
			for i, k := range kinds(tokens) {
				r := rand.New(rand.NewPCG(uint64(i), 1))
				for range each {
					v.check(t, k.text(r))
					total++
				}
			}
			require.GreaterOrEqual(t, total, 10000)
			require.Less(t, v.arbitrated.Load()-arbitrated, int64(total/50))
		})
	}
}

// Every character of Unicode alone, between letters of either case, after a space, and among its
// neighbors.
func TestExactCharacters(t *testing.T) {
	patterns := []string{"B%cb ", "%c", "%cx", " %cA", "%c\n1"}
	if race.Enabled {
		patterns = patterns[:1] // the other implementations become very slow
	}
	for _, v := range vocabularies(t) {
		t.Run(v.name, func(t *testing.T) {
			t.Parallel()
			for block := rune(0); block <= utf8.MaxRune; block += 256 {
				uniform := block >= 0x20000 && block < 0xE0000 || block >= 0xF0000
				if uniform && block>>8%16 != 0 {
					continue // nearly all of such a plane has one class, and classes have a separate test
				}
				for _, pattern := range patterns {
					var b strings.Builder
					for i := range rune(256) {
						fmt.Fprintf(&b, pattern, block+i)
					}
					v.check(t, b.String())
				}
			}
		})
	}
}

// The classes are those of the standard library, as long as that has the version of
// Unicode that they were made of.
func TestClasses(t *testing.T) {
	if unicode.Version != bpe.UnicodeVersion {
		t.Skipf("the tables are of Unicode %s, this Go has %s", bpe.UnicodeVersion, unicode.Version)
	}
	for r := rune(0); r <= utf8.MaxRune; r++ {
		if got, want := bpe.ClassOf(r), bpe.Classify(r); got != want {
			t.Fatalf("%U has class %d, want %d", r, got, want)
		}
	}
}

// Long pieces without a boundary are counted as the short ones are.
func TestExactLongPieces(t *testing.T) {
	for _, v := range vocabularies(t) {
		for _, unit := range []string{"a", "ab", "=", " ", "中", "🙂", "\u0301", "xyzzy", "\xff"} {
			for _, n := range []int{47, 48, 49, 50, 127, 128, 129, 1000, 10000} {
				v.check(t, strings.Repeat(unit, n))
			}
		}
		r := rand.New(rand.NewPCG(7, 7))
		letters := make([]byte, 20000)
		for i := range letters {
			letters[i] = 'a' + byte(r.IntN(26))
		}
		v.check(t, string(letters))
	}
}

func FuzzExact(f *testing.F) {
	vs := vocabularies(f)
	for _, s := range []string{"", "a", prose, "@a>req:plan{k:v}[mid:000000000001,seq:1,ts:1]", "'s'T \n \t", "\xff中\u0301A"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		for _, v := range vs {
			v.check(t, text)
		}
	})
}
