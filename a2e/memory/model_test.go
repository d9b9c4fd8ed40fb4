// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package memory_test

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/a2e"
	"github.com/fivewire/fivewire/a2e/memory"
	"github.com/fivewire/fivewire/store"
)

// A modelEntry is an entry of a reference without an index.
type modelEntry struct {
	key, tier string
	words     []string
	tags      []string
	score     float64
	expires   time.Time
}

// search returns the keys of the entries that match a query, by the formula of A2E-D65.
func search(list []modelEntry, query string) []modelEntry {
	words := slices.Compact(slices.Sorted(strings.FieldsSeq(query)))
	n, total := float64(len(list)), 0
	for _, e := range list {
		total += len(e.words)
	}
	scores := make([]float64, len(list))
	for _, word := range words {
		counts, matching := make([]float64, len(list)), 0.0
		for i, e := range list {
			for _, w := range e.words {
				if strings.HasPrefix(w, word) {
					counts[i]++
				}
			}
			matching += min(counts[i], 1)
		}
		for i, tf := range counts {
			if tf == 0 {
				scores[i] = math.NaN()
			}
			scores[i] += math.Log(1+(n-matching+0.5)/(matching+0.5)) * tf * 2.2 / (tf + 1.2*(0.25+0.75*float64(len(list[i].words))/(float64(total)/n)))
		}
	}
	var order []int
	for i := range list {
		if len(words) > 0 && !math.IsNaN(scores[i]) {
			order = append(order, i)
		}
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(scores[b], scores[a]) })
	var found []modelEntry
	for _, i := range order {
		found = append(found, list[i])
	}
	return found
}

// Two processes that share a store answer as one reference does, whatever is stored, replaced,
// forgotten, expires or is searched, by either of them (A2E-D46, A2E-D65).
func TestMemoriesAnswerAsAReference(t *testing.T) {
	for seed := range uint64(8) {
		synctest.Test(t, func(t *testing.T) {
			runModel(t, rand.New(rand.NewPCG(seed, 1)), nil)
		})
	}
}

// A ranker of the options finds the same through all other conditions.
func TestRankerReplacesTheIndex(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		called := 0
		runModel(t, rand.New(rand.NewPCG(9, 1)), func(_ context.Context, entries []*memory.Entry, query string) ([]int, error) {
			called++
			var list []modelEntry
			place := map[string]int{}
			for i, e := range entries {
				words := append(strings.Fields(strings.Trim(string(e.Content), `"`)), strings.Trim(string(e.Key), `{}"k:`))
				list = append(list, modelEntry{key: e.Tier + string(e.Key), words: append(words, e.Tags...)})
				place[e.Tier+string(e.Key)] = i
			}
			var order []int
			for _, e := range search(list, query) {
				order = append(order, place[e.key])
			}
			return order, nil
		})
		require.Positive(t, called)
	})
}

func runModel(t *testing.T, rng *rand.Rand, ranker func(context.Context, []*memory.Entry, string) ([]int, error)) {
	kv := store.NewMemory()
	opts := &memory.Options{Ranker: ranker, MaxEntries: 20}
	var clients [2]*memory.Client
	var ids [2]string
	for i := range clients {
		clients[i], ids[i] = connect(t, kv, "ann", opts)
	}
	vocabulary := []string{"A", "AB", "ABC", "B", "BA", "C", "7"}
	words := func(n int) (list []string) {
		for range rng.IntN(n) + 1 {
			list = append(list, vocabulary[rng.IntN(len(vocabulary))])
		}
		return list
	}
	tiers := []string{memory.TierEpisodic, memory.TierSemantic}
	var model []modelEntry
	for range 400 {
		time.Sleep(time.Duration(rng.IntN(500)+1) * time.Millisecond)
		synctest.Wait()
		model = slices.DeleteFunc(model, func(e modelEntry) bool { return !e.expires.IsZero() && !e.expires.After(time.Now()) })
		which := rng.IntN(2)
		client, id := clients[which], ids[which]
		number, tier := rng.IntN(30), tiers[rng.IntN(2)]
		key := fmt.Sprintf(`{"k":%d}`, number)
		switch rng.IntN(8) {
		case 0, 1, 2:
			e := modelEntry{key: key, tier: tier, score: float64(rng.IntN(3)), tags: words(2)}
			content := words(6)
			e.words = slices.Concat(content, []string{fmt.Sprint(number)}, e.tags)
			ttl := max(rng.IntN(60)-30, 0)
			if ttl > 0 {
				e.expires = time.Now().Add(time.Duration(ttl) * time.Second)
			}
			tags, _ := json.Marshal(e.tags)
			_, err := client.Store(t.Context(), &memory.StoreRequest{MemoryID: id, Entries: []json.RawMessage{json.RawMessage(fmt.Sprintf(
				`{"key":%s,"content":%q,"tier":%q,"tags":%s,"score":%g,"ttl":%d}`, key, strings.Join(content, " "), tier, tags, e.score, ttl))}}, nil)
			i := slices.IndexFunc(model, func(old modelEntry) bool { return old.key == key && old.tier == tier })
			n := 0
			for _, old := range model {
				if old.tier == tier {
					n++
				}
			}
			switch {
			case i >= 0:
				model[i] = e
			case n >= opts.MaxEntries:
				require.ErrorIs(t, err, a2e.ErrMemoryFull)
				continue
			default:
				model = append(model, e)
			}
			require.NoError(t, err)
		case 3:
			r := &memory.ForgetRequest{MemoryID: id, Tier: tier, Keys: []json.RawMessage{json.RawMessage(key)}}
			if rng.IntN(3) == 0 {
				r.Tags = []string{vocabulary[rng.IntN(len(vocabulary))]}
			}
			answer, err := client.Forget(t.Context(), r, nil)
			require.NoError(t, err)
			before := len(model)
			model = slices.DeleteFunc(model, func(e modelEntry) bool {
				return e.tier == tier && (e.key == key || len(r.Tags) > 0 && slices.Contains(e.tags, r.Tags[0]))
			})
			require.EqualValues(t, before-len(model), answer.Deleted)
		default:
			r := &memory.RetrieveRequest{MemoryID: id, Limit: a2e.Limit(rng.IntN(12) + 1), MinScore: float64(rng.IntN(2))}
			if rng.IntN(4) > 0 {
				r.Query = strings.Join(words(3), " ")
			}
			if rng.IntN(3) == 0 {
				r.Tags = words(2)
			}
			if rng.IntN(3) == 0 {
				r.Tier = tier
			}
			if rng.IntN(4) == 0 {
				for range 5 {
					r.Keys = append(r.Keys, json.RawMessage(fmt.Sprintf(`{ "k": %d.0 }`, rng.IntN(30))))
				}
			}
			checkAnswer(t, client, r, slices.Clone(model))
		}
	}
}

func checkAnswer(t *testing.T, client *memory.Client, r *memory.RetrieveRequest, list []modelEntry) {
	list = slices.DeleteFunc(list, func(e modelEntry) bool { return r.Tier != "" && e.tier != r.Tier })
	if r.Query != "" {
		list = search(list, r.Query)
	}
	want := []string{}
	for _, e := range list {
		isKey := len(r.Keys) == 0 || slices.ContainsFunc(r.Keys, func(k json.RawMessage) bool {
			return strings.NewReplacer(" ", "", ".0", "").Replace(string(k)) == e.key
		})
		isTagged := len(r.Tags) == 0 || slices.ContainsFunc(r.Tags, func(tag string) bool { return slices.Contains(e.tags, tag) })
		if isKey && isTagged && e.score >= r.MinScore {
			want = append(want, e.key+e.tier)
		}
	}
	answer, err := client.Retrieve(t.Context(), r, nil)
	require.NoError(t, err)
	require.EqualValues(t, len(want), answer.Total, "%+v", r)
	got := []string{}
	for _, raw := range answer.Entries {
		e, err := a2e.DecodeModel[memory.Entry](raw, "")
		require.NoError(t, err)
		got = append(got, string(e.Key)+e.Tier)
	}
	require.Equal(t, want[:min(len(want), int(r.Limit))], got, "%+v", r)
}

// A search finds the same entries in the same order as the reference, whatever the texts, the tag and the query
// are. Names of members are not searched (A2E-D65).
func FuzzSearch(f *testing.F) {
	f.Add("one two\nTwo three 7\ntwo\n\nO'ne 0", "straße", "two o")
	f.Add("ſtop K\nstop k\n\u212a2", "ΣΑΣ", "S\u212a σας")
	f.Add("cafe\u0301 e\u0301te\ncafé été", "-- true null", "cafe ca CAF")
	f.Add("a a a a\na b\nab aba abab", "a", "a ab a")
	f.Fuzz(func(t *testing.T, texts, tag, query string) {
		lines := strings.Split(texts, "\n")
		words := foldedWords(query)
		isValid := utf8.ValidString(texts) && utf8.ValidString(tag) && utf8.ValidString(query)
		if !isValid || len(lines) > 20 || len(texts) > 10_000 || len(tag) > 1000 || len(query) > 200 || len(words) > 32 || query == "" {
			return
		}
		m, id := connect(t, store.NewMemory(), "ann", nil)
		r := &memory.StoreRequest{MemoryID: id}
		var list []modelEntry
		for i, line := range lines {
			e := modelEntry{key: fmt.Sprintf(`{"k":%d}`, i), tier: memory.TierSemantic, words: append(foldedWords(line), fmt.Sprint(i))}
			if i == 0 {
				e.tags, e.words = []string{tag}, append(e.words, foldedWords(tag)...)
			}
			raw, err := json.Marshal(map[string]any{"key": json.RawMessage(e.key), "tier": e.tier, "tags": slices.Concat([]string{}, e.tags),
				"content": map[string]any{query: []any{line, true, nil}}})
			require.NoError(t, err)
			r.Entries = append(r.Entries, raw)
			list = append(list, e)
		}
		_, err := m.Store(t.Context(), r, nil)
		require.NoError(t, err)
		found := search(list, strings.Join(words, " "))
		answer, err := m.Retrieve(t.Context(), &memory.RetrieveRequest{MemoryID: id, Query: query, Limit: 100}, nil)
		require.NoError(t, err)
		require.EqualValues(t, len(found), answer.Total)
		for i, raw := range answer.Entries {
			e, err := a2e.DecodeModel[memory.Entry](raw, "")
			require.NoError(t, err)
			require.Equal(t, found[i].key, string(e.Key))
		}
	})
}

// foldedWords returns the words of a text, with the smallest of the runes that are equal under simple case folding.
func foldedWords(text string) []string {
	words := strings.FieldsFunc(text, func(r rune) bool { return !unicode.IsLetter(r) && !unicode.IsMark(r) && !unicode.IsDigit(r) })
	for i, word := range words {
		words[i] = strings.Map(func(r rune) rune {
			for next := unicode.SimpleFold(r); next != r; next = unicode.SimpleFold(next) {
				if next < r {
					r = next
				}
			}
			return r
		}, word)
	}
	return words
}
