// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package memory_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/fivewire/fivewire/a2e"
	"github.com/fivewire/fivewire/a2e/a2etest"
	"github.com/fivewire/fivewire/a2e/memory"
	"github.com/fivewire/fivewire/internal/kit"
	"github.com/fivewire/fivewire/store"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func connect(t *testing.T, kv store.KV, agent string, opts *memory.Options) (*memory.Client, string) {
	o := memory.Options{Store: kv}
	if opts != nil {
		o = *opts
		o.Store = kv
	}
	c := a2etest.Connect(t, a2etest.NewHost(t, nil).AddPlugin(a2etest.Must(memory.NewPlugin(&o))), &a2e.ClientOptions{AgentID: agent})
	m, err := memory.NewClient(c)
	require.NoError(t, err)
	r := new(memory.InitRequest)
	r.Scope = a2e.OrderedObject[string]{{Name: "user", Value: "u1"}}
	resp, err := m.Init(t.Context(), r, nil)
	require.NoError(t, err)
	require.True(t, *resp.Success)
	return m, resp.MemoryID
}

func put(t *testing.T, m *memory.Client, id string, entries ...string) *memory.StoreResponse {
	r := &memory.StoreRequest{MemoryID: id}
	for _, e := range entries {
		r.Entries = append(r.Entries, json.RawMessage(e))
	}
	resp, err := m.Store(t.Context(), r, nil)
	if refused, ok := errors.AsType[*memory.StoreError](err); ok {
		require.Equal(t, resp.Errors, refused.Refused)
		require.Equal(t, resp.Stored, refused.Stored)
		return resp
	}
	require.NoError(t, err)
	require.Empty(t, resp.Errors)
	return resp
}

func get(t *testing.T, m *memory.Client, id string, change func(*memory.RetrieveRequest)) *memory.RetrieveResponse {
	r := new(memory.RetrieveRequest)
	r.MemoryID = id
	if change != nil {
		change(r)
	}
	resp, err := m.Retrieve(t.Context(), r, nil)
	require.NoError(t, err)
	return resp
}

// Working memory ends with the session, episodic memory belongs to the agent, semantic memory is
// shared by all agents (A2E-090).
func TestTiers(t *testing.T) {
	kv := store.NewMemory()
	m, id := connect(t, kv, "ann", nil)
	resp := put(t, m, id, `{"key":{"k":1},"content":"w","tier":"working"}`, `{"key":{"k":1},"content":"e","tier":"episodic"}`,
		`{"key":{"k":1},"content":"s","tier":"semantic"}`, `{"key":{"k":1},"content":1,"tier":"other"}`, `{"key":{"k":2}}`)
	require.Len(t, resp.Stored, 3)
	require.Equal(t, []string{"entries[3].tier: value", "entries[4].content: required"}, resp.Errors)
	require.EqualValues(t, 3, get(t, m, id, nil).Total)
	same, id2 := connect(t, kv, "ann", nil)
	require.EqualValues(t, 2, get(t, same, id2, nil).Total)
	other, id3 := connect(t, kv, "bob", nil)
	found := get(t, other, id3, nil)
	require.EqualValues(t, 1, found.Total)
	require.Contains(t, string(found.Entries[0]), `"content":"s"`)
}

// Episodic memory belongs to the principal, whatever agent id a session claims, and else to the token
// with the agent id (A2E-D22).
func TestEpisodicMemoryIsOfItsPrincipal(t *testing.T) {
	keys := a2etest.Must(a2e.APIKeyAuthenticator(map[string]*a2e.Principal{"key of ann": {ID: "ann"}, "key of bob": {ID: "bob"}}))
	kv := store.NewMemory()
	total := func(auth a2e.Auth, token, agent string) int64 {
		c := a2etest.Connect(t, a2etest.NewHost(t, &a2e.HostOptions{Auth: auth}, a2etest.Must(memory.NewPlugin(&memory.Options{Store: kv}))),
			&a2e.ClientOptions{AgentID: agent, Token: token})
		m, err := memory.NewClient(c)
		require.NoError(t, err)
		opened, err := m.Init(t.Context(), nil, nil)
		require.NoError(t, err)
		n := get(t, m, opened.MemoryID, nil).Total
		put(t, m, opened.MemoryID, `{"key":{"k":1},"content":"secret","tier":"episodic"}`)
		return n
	}
	keyed, anonymous := a2e.Auth{Authenticator: keys}, a2e.Auth{AllowAnonymous: true}
	require.EqualValues(t, 0, total(keyed, "key of ann", "writer"))
	require.EqualValues(t, 1, total(keyed, "key of ann", "reader"))
	require.EqualValues(t, 0, total(keyed, "key of bob", "writer"))
	require.EqualValues(t, 0, total(anonymous, "", "writer"))
	require.EqualValues(t, 1, total(anonymous, "", "writer"))
	require.EqualValues(t, 0, total(anonymous, "one", "writer"))
	require.EqualValues(t, 1, total(anonymous, "one", "writer"))
	require.EqualValues(t, 0, total(anonymous, "two", "writer"))
}

// All filters hold together; the total counts before the limit (A2E-092, A2E-D46).
func TestRetrieve(t *testing.T) {
	m, id := connect(t, store.NewMemory(), "ann", nil)
	put(t, m, id, `{"key":{"k":1},"content":{"text":"red apple"},"tier":"episodic","tags":["fruit"],"score":0.5,"own":true}`,
		`{"key":{"k":2},"content":"green apple","tier":"episodic","tags":["fruit","green"]}`,
		`{"key":{"k":3},"content":"brick","tier":"episodic"}`)
	require.EqualValues(t, 2, get(t, m, id, func(r *memory.RetrieveRequest) { r.Query = "APPLE" }).Total)
	found := get(t, m, id, func(r *memory.RetrieveRequest) { r.Tags, r.Limit = []string{"fruit", "x"}, 1 })
	require.EqualValues(t, 2, found.Total)
	require.Len(t, found.Entries, 1)
	require.Contains(t, string(found.Entries[0]), `"own":true`)
	require.EqualValues(t, 1, get(t, m, id, func(r *memory.RetrieveRequest) { r.Query, r.MinScore = "apple", 0.6 }).Total)
	require.EqualValues(t, 0, get(t, m, id, func(r *memory.RetrieveRequest) { r.Tier = "working" }).Total)
	// Storing an equal key again replaces in place.
	put(t, m, id, `{"key":{"k":1.0},"content":"new","tier":"episodic"}`)
	found = get(t, m, id, nil)
	require.EqualValues(t, 3, found.Total)
	require.Contains(t, string(found.Entries[0]), `"content":"new"`)
	r := new(memory.ForgetRequest)
	r.MemoryID = id
	resp, err := m.Forget(t.Context(), r, nil)
	require.NoError(t, err)
	require.Zero(t, resp.Deleted, "forgetting names keys or tags (A2E-093)")
	r.Keys = []json.RawMessage{json.RawMessage(`{"k":3}`)}
	resp, err = m.Forget(t.Context(), r, nil)
	require.NoError(t, err)
	require.EqualValues(t, 1, resp.Deleted)
}

// Entries expire after their ttl, and a full memory reports an error (A2E-094, A2E-153).
func TestLimits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, id := connect(t, store.NewMemory(), "ann", &memory.Options{MaxEntries: 2, MaxMemories: 1})
		put(t, m, id, `{"key":{"k":1},"content":1,"tier":"working","ttl":5}`, `{"key":{"k":2},"content":1,"tier":"working"}`)
		_, err := m.Store(t.Context(), &memory.StoreRequest{MemoryID: id, Entries: []json.RawMessage{
			json.RawMessage(`{"key":{"k":3},"content":1,"tier":"working"}`)}}, nil)
		require.ErrorIs(t, err, a2e.ErrMemoryFull)
		time.Sleep(6 * time.Second)
		require.EqualValues(t, 1, get(t, m, id, nil).Total)
		put(t, m, id, `{"key":{"k":3},"content":1,"tier":"working"}`)
		_, err = m.Init(t.Context(), nil, nil)
		require.ErrorIs(t, err, a2e.ErrMemoryFull)
		for _, id := range []string{"mem-2", "mem-01", "x", ""} {
			_, err = m.Retrieve(t.Context(), &memory.RetrieveRequest{MemoryID: id}, nil)
			require.ErrorIs(t, err, a2e.ErrMemoryNotFound)
		}
	})
}

// A query looks for words of texts, numbers, keys and tags, whatever their case, and not for names
// and literals (A2E-D65).
func TestSearchFindsWords(t *testing.T) {
	m, id := connect(t, store.NewMemory(), "ann", nil)
	put(t, m, id, `{"key":{"name":"Alpha 7"},"content":{"title":["one\ntwo","straße"],"n":-1.50,"ok":true,"none":null},"tier":"episodic","tags":["green-Leaf"]}`,
		`{"key":{"name":"beta"},"content":"Ωmega \"stop\" cafe\u0301s","tier":"semantic"}`)
	for query, total := range map[string]int64{
		"two": 1, "ntwo": 0, "ALPHA": 1, "7": 1, "50": 1, "title": 0, "true": 0, "none": 0, "name": 0, "leaf gre": 1,
		"wo": 0, "ωMEGA": 1, `"stop"`: 1, "alpha beta": 0, "STRASSE": 0, "STRAßE": 1, "--": 0, "café": 0, "cafe\u0301": 1, "\u212a": 0,
	} {
		require.Equal(t, total, get(t, m, id, func(r *memory.RetrieveRequest) { r.Query = query }).Total, query)
	}
}

// Rare words and short entries come first; entries over the bounds are refused alone, and an answer
// ends before 4 MiB (A2E-D46, A2E-D65).
func TestSearchRanksAndBounds(t *testing.T) {
	m, id := connect(t, store.NewMemory(), "ann", &memory.Options{MaxEntries: 9, MaxBytes: 16 << 20})
	put(t, m, id, `{"key":{"k":1},"content":"common and many other words","tier":"semantic"}`, `{"key":{"k":2},"content":"common","tier":"working"}`,
		`{"key":{"k":3},"content":"common rare","tier":"episodic"}`, `{"key":{"k":4},"content":"common","tier":"semantic"}`)
	ids := func(query string, limit a2e.Limit) (list []string) {
		for _, raw := range get(t, m, id, func(r *memory.RetrieveRequest) { r.Query, r.Limit = query, limit }).Entries {
			list = append(list, string(raw[:len(`{"key":{"k":1`)])[len(`{"key":{"k":`):])
		}
		return list
	}
	require.Equal(t, []string{"2", "4", "3", "1"}, ids("common", 0))
	require.Equal(t, []string{"3"}, ids("common rare", 0))
	require.Empty(t, ids("common", a2e.LimitZero))
	big := strings.Repeat("x", 1<<20-100)
	put(t, m, id, `{"key":{"k":5},"content":"`+big+`","tier":"working"}`, `{"key":{"k":6},"content":"`+big+`","tier":"working"}`,
		`{"key":{"k":7},"content":"`+big+`","tier":"working"}`, `{"key":{"k":8},"content":"`+big+`","tier":"working"}`)
	found := get(t, m, id, func(r *memory.RetrieveRequest) { r.Tier = "working" })
	require.EqualValues(t, 5, found.Total)
	require.Len(t, found.Entries, 4)
	resp := put(t, m, id, `{"key":{"k":9},"content":"`+big+strings.Repeat("x", 200)+`","tier":"semantic"}`, `{"key":{"k":9},"content":1,"tier":"semantic"}`)
	require.Equal(t, []string{"entries[0]: too_large"}, resp.Errors)
	require.Len(t, resp.Stored, 1)
}

// Open returns a memory with typed entries; a refused entry is an error.
func TestOpen(t *testing.T) {
	p := a2etest.Must(memory.NewPlugin(&memory.Options{MaxEntries: 2}))
	m, err := memory.Open(t.Context(), a2etest.Connect(t, a2etest.NewHost(t, nil, p), nil), "")
	require.NoError(t, err)
	one, two := map[string]int{"k": 1}, map[string]int{"k": 2}
	require.NoError(t, m.Remember(t.Context(), one, []string{"red"}, &memory.RememberOptions{Tier: memory.TierSemantic, TTL: time.Hour}))
	require.NoError(t, m.Remember(t.Context(), one, "green apple", &memory.RememberOptions{Tags: []string{"fruit"}}))
	require.NoError(t, m.Remember(t.Context(), two, "blue", nil))
	found, err := m.Recall(t.Context(), one, two)
	require.NoError(t, err)
	require.Len(t, found, 3)
	require.JSONEq(t, `["red"]`, string(found[0].Content))
	require.EqualValues(t, 3600, found[0].TTL)
	require.Equal(t, []string{"fruit"}, found[1].Tags)
	require.NoError(t, m.Remember(t.Context(), two, "blue", &memory.RememberOptions{TTL: time.Millisecond}))
	found, err = m.Recall(t.Context(), two)
	require.NoError(t, err)
	require.EqualValues(t, 1, found[0].TTL, "not without end")
	require.NoError(t, m.Remember(t.Context(), two, "blue", &memory.RememberOptions{TTL: math.MaxInt64}))
	found, err = m.Recall(t.Context(), two)
	require.NoError(t, err)
	require.EqualValues(t, math.MaxInt64/time.Second+1, found[0].TTL)
	found, err = m.Recall(t.Context())
	require.NoError(t, err)
	require.Empty(t, found)
	for query, n := range map[string]int{"apple": 1, "gre": 1, "blue": 0, "missing": 0} {
		found, err = m.Search(t.Context(), query, 1, "fruit")
		require.NoError(t, err)
		require.Len(t, found, n, query)
	}
	var refused *memory.StoreError
	require.ErrorAs(t, m.Remember(t.Context(), one, 1, &memory.RememberOptions{Tier: "other"}), &refused)
	require.Equal(t, []string{"entries[0].tier: value"}, refused.Refused)
	require.ErrorContains(t, refused, "tier: value")
	require.ErrorIs(t, m.Remember(t.Context(), map[string]int{"k": 3}, 1, nil), a2e.ErrMemoryFull)
	require.Error(t, m.Remember(t.Context(), "no object", 1, nil))
	n, err := m.Forget(t.Context(), memory.TierSemantic, one, two)
	require.NoError(t, err)
	require.Equal(t, 1, n)
}

// A host that keeps snapshots for agents gives the memories of a session to no later one, whose bound they would fill.
func TestMemoriesEndWithTheirSession(t *testing.T) {
	h := a2etest.NewHost(t, &a2e.HostOptions{Auth: a2e.Auth{AllowAnonymous: true}, Persistence: a2e.Persistence{Snapshots: store.NewMemory()}})
	h.AddPlugin(a2etest.Must(memory.NewPlugin(&memory.Options{MaxMemories: 1})))
	for range 2 {
		c := a2etest.Connect(t, h, &a2e.ClientOptions{AgentID: "ann"})
		m := a2etest.Must(memory.NewClient(c))
		resp, err := m.Init(t.Context(), &memory.InitRequest{}, nil)
		require.NoError(t, err)
		require.Equal(t, "mem-1", resp.MemoryID)
		require.NoError(t, c.Close())
	}
}

// panickyKV panics in one of its methods.
type panickyKV struct {
	store.KV
	method atomic.Value
}

func (p *panickyKV) call(method string) {
	if p.method.Load() == method {
		panic("defect of the store")
	}
}

func (p *panickyKV) Get(ctx context.Context, key string) (store.Entry, error) {
	if strings.Contains(key, "/e/") {
		p.call("get")
	}
	return p.KV.Get(ctx, key)
}

func (p *panickyKV) Create(ctx context.Context, key string, value []byte, ttl time.Duration) (store.Revision, error) {
	p.call("create")
	return p.KV.Create(ctx, key, value, ttl)
}

func (p *panickyKV) Update(ctx context.Context, key string, value []byte, r store.Revision, ttl time.Duration) (store.Revision, error) {
	p.call("update")
	return p.KV.Update(ctx, key, value, r, ttl)
}

// A panic of the store is an internal error of one request, and the memory continues.
func TestStorePanics(t *testing.T) {
	kv := &panickyKV{KV: store.NewMemory()}
	m, id := connect(t, kv, "ann", nil)
	put := func(first, n int) error {
		r := &memory.StoreRequest{MemoryID: id}
		for i := range n {
			r.Entries = append(r.Entries, fmt.Appendf(nil, `{"key":{"k":%d},"content":"word","tier":"semantic"}`, first+i))
		}
		_, err := m.Store(t.Context(), r, nil)
		return err
	}
	search := &memory.RetrieveRequest{MemoryID: id, Query: "word"}
	require.NoError(t, put(0, 3))
	for n := 1; n <= 3; n++ {
		for _, method := range []string{"create", "update"} {
			kv.method.Store(method)
			requireInternal(t, put(map[string]int{"create": 100}[method], n))
			kv.method.Store("get")
			_, err := m.Retrieve(t.Context(), search, nil)
			requireInternal(t, err)
			kv.method.Store("")
			require.EqualValues(t, 3, get(t, m, id, func(r *memory.RetrieveRequest) { r.Query = "word" }).Total)
		}
	}
	require.NoError(t, put(0, 4))
	require.EqualValues(t, 4, get(t, m, id, func(r *memory.RetrieveRequest) { r.Query = "word" }).Total)
}

func requireInternal(t *testing.T, err error) {
	t.Helper()
	var e *a2e.Error
	require.ErrorAs(t, err, &e)
	require.Equal(t, a2e.ReasonInternal, e.Reason, err)
}

// The distinct words of a query are bounded, because each costs a part of the index.
func TestQueryWords(t *testing.T) {
	for _, bound := range []int{0, 3, -1} {
		m, id := connect(t, store.NewMemory(), "ann", &memory.Options{MaxQueryWords: bound})
		search := func(words int) error {
			var query []string
			for i := range words {
				query = append(query, fmt.Sprintf("w%d W%d", i, i))
			}
			_, err := m.Retrieve(t.Context(), &memory.RetrieveRequest{MemoryID: id, Query: strings.Join(query, " ")}, nil)
			return err
		}
		limit := map[int]int{0: 32, 3: 3, -1: 1000}[bound]
		require.NoError(t, search(limit))
		if bound >= 0 {
			var e *a2e.Error
			require.ErrorAs(t, search(limit+1), &e)
			require.Equal(t, a2e.ErrSchemaViolation, e.Code)
			require.Equal(t, "query", e.Field)
			require.Equal(t, a2e.ReasonTooLarge, e.Reason)
		}
	}
}

// The namespaces and scopes of the memories of a session are bounded in bytes.
func TestNamespacesAreBoundedInBytes(t *testing.T) {
	m, _ := connect(t, store.NewMemory(), "ann", nil)
	long := strings.Repeat("n", 600<<10)
	init := func(r *memory.InitRequest) error {
		_, err := m.Init(t.Context(), r, nil)
		return err
	}
	require.NoError(t, init(&memory.InitRequest{Namespace: long}))
	require.ErrorIs(t, init(&memory.InitRequest{Namespace: long}), a2e.ErrMemoryFull)
	require.ErrorIs(t, init(&memory.InitRequest{Scope: a2e.OrderedObject[string]{{Name: "user", Value: long}}}), a2e.ErrMemoryFull)
	require.NoError(t, init(&memory.InitRequest{Namespace: "short"}))
}

// The working entries of a session are bounded together, because they are in the memory of the process.
func TestWorkingTiersAreBoundedTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, one := connect(t, store.NewMemory(), "ann", &memory.Options{MaxEntries: 3, MaxBytes: 1000})
		second, err := m.Init(t.Context(), &memory.InitRequest{Namespace: "other"}, nil)
		require.NoError(t, err)
		two := second.MemoryID
		entry := func(key int, tier, pad string) string {
			return fmt.Sprintf(`{"key":{"k":%d},"content":%q,"tier":%q,"ttl":5}`, key, pad, tier)
		}
		put(t, m, one, entry(1, "working", ""), entry(2, "working", ""))
		refused := put(t, m, two, entry(1, "working", ""), entry(2, "working", ""), entry(1, "episodic", ""), entry(2, "episodic", ""))
		require.Equal(t, []string{"entries[1]: memory_full"}, refused.Errors)
		require.Empty(t, put(t, m, two, entry(1, "working", "again")).Errors, "in the place of the entry")
		long := strings.Repeat("x", 800)
		require.Len(t, put(t, m, two, entry(1, "working", long), entry(3, "episodic", "")).Errors, 1)
		time.Sleep(6 * time.Second)
		put(t, m, two, entry(1, "working", long))
		require.Len(t, put(t, m, one, entry(1, "working", long), entry(3, "episodic", "")).Errors, 1)
	})
}

func key(n int) map[string]int { return map[string]int{"k": n} }

// Without a store, all tiers are bounded together, and an owner leaves room for others.
func TestMemoriesWithoutStoreAreBoundedTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := a2etest.Must(memory.NewPlugin(&memory.Options{MaxEntries: 4, MaxBytes: 1000})) // 6,096 bytes in all
		h := a2etest.NewHost(t, nil, p)
		// fill stores one entry in each of many namespaces, in a session for each one, and returns the number of those stored.
		fill := func(agent, tier string) (n int) {
			for i := range 10 {
				c := a2etest.Connect(t, h, &a2e.ClientOptions{AgentID: agent})
				m, err := memory.Open(t.Context(), c, fmt.Sprint(i))
				require.NoError(t, err)
				err = m.Remember(t.Context(), key(1), agent, &memory.RememberOptions{Tier: tier, TTL: time.Hour})
				if err == nil {
					n++
				} else {
					require.ErrorIs(t, err, a2e.ErrMemoryFull)
				}
				require.NoError(t, c.Close())
				synctest.Wait()
			}
			return n
		}
		require.Equal(t, 2, fill("ann", memory.TierEpisodic))
		require.Equal(t, 2, fill("ann", memory.TierEpisodic), "in the place of the entries")
		require.Equal(t, 1, fill("bob", memory.TierEpisodic))
		require.Zero(t, fill("eve", memory.TierSemantic))
		time.Sleep(2 * time.Hour)
		require.Equal(t, 2, fill("eve", memory.TierSemantic))
		m, err := memory.Open(t.Context(), a2etest.Connect(t, h, &a2e.ClientOptions{AgentID: "eve"}), "0")
		require.NoError(t, err)
		_, err = m.Forget(t.Context(), memory.TierSemantic, key(1))
		require.NoError(t, err)
		require.Equal(t, 1, fill("bob", memory.TierEpisodic))
		require.Equal(t, 1, fill("ann", memory.TierEpisodic))
	})
}

// The working tiers of all sessions of a principal share its bounds of the host.
func TestWorkingTiersOfPrincipalAreBoundedTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := a2etest.NewHost(t, &a2e.HostOptions{Auth: a2e.Auth{Authenticator: a2etest.KeyAuthenticator("key")}, Limits: a2e.Limits{MaxMemoryPerPrincipal: 4 << 20}},
			a2etest.Must(memory.NewPlugin(nil)))
		open := func() (*a2e.Client, *memory.Memory) {
			c := a2etest.Connect(t, h, &a2e.ClientOptions{Token: "key"})
			m, err := memory.Open(t.Context(), c, "")
			require.NoError(t, err)
			return c, m
		}
		remember := func(m *memory.Memory, n int) error {
			return m.Remember(t.Context(), key(n), strings.Repeat("x", 1<<20-1024), &memory.RememberOptions{Tier: memory.TierWorking, TTL: time.Hour})
		}
		first, one := open()
		_, two := open()
		for i := range 2 {
			require.NoError(t, remember(one, i))
			require.NoError(t, remember(two, i))
		}
		var e *a2e.Error
		require.ErrorAs(t, remember(one, 3), &e)
		require.Equal(t, a2e.ReasonOverloaded, e.Reason)
		_, err := two.Forget(t.Context(), memory.TierWorking, key(0))
		require.NoError(t, err)
		require.NoError(t, remember(one, 3))
		require.Error(t, remember(two, 3))
		require.NoError(t, first.Close())
		time.Sleep(time.Minute)
		for i := range 3 {
			require.NoError(t, remember(two, 10+i))
		}
		require.Error(t, remember(two, 20))
		time.Sleep(2 * time.Hour)
		require.NoError(t, remember(two, 20), "the others have expired")
		require.NoError(t, h.Close())
		time.Sleep(time.Minute)
		for _, u := range h.Usage() {
			require.Zero(t, u.Used, "%+v", u)
		}
	})
}

// Memories without entries take no space after their sessions, however many there are.
func TestEmptyMemoriesAreNotKept(t *testing.T) {
	h := a2etest.NewHost(t, nil, a2etest.Must(memory.NewPlugin(&memory.Options{Store: store.NewMemory(), MaxMemories: -1})))
	session := func(n int) {
		c := a2etest.Connect(t, h, nil)
		m := a2etest.Must(memory.NewClient(c))
		for i := range 1000 {
			resp, err := m.Init(t.Context(), &memory.InitRequest{Namespace: fmt.Sprint(n, "/", i)}, nil)
			require.NoError(t, err)
			_, err = m.Retrieve(t.Context(), &memory.RetrieveRequest{MemoryID: resp.MemoryID}, nil)
			require.NoError(t, err)
		}
		require.NoError(t, c.Close())
		require.Eventually(t, func() bool { return len(h.Sessions()) == 0 }, time.Minute, time.Millisecond)
	}
	session(0)
	before := kit.Heap()
	for n := range 10 {
		session(n + 1)
	}
	require.Less(t, kit.Heap()-before, int64(2<<20))
	runtime.KeepAlive(h)
}

// Recall returns all entries, also if they are too large for one answer.
func TestRecallOfLargeEntries(t *testing.T) {
	agent := a2etest.Connect(t, a2etest.NewHost(t, nil, a2etest.Must(memory.NewPlugin(nil))), nil)
	m, err := memory.Open(t.Context(), agent, "")
	require.NoError(t, err)
	large := strings.Repeat("x", 900<<10)
	var keys []any
	for i := range 7 {
		keys = append(keys, map[string]int{"n": i})
		require.NoError(t, m.Remember(t.Context(), keys[i], large, nil))
	}
	entries, err := m.Recall(t.Context(), keys...)
	require.NoError(t, err)
	require.Len(t, entries, 7)
}

// A time to live that is over is refused, and not taken for none.
func TestNegativeTTLIsRefused(t *testing.T) {
	agent := a2etest.Connect(t, a2etest.NewHost(t, nil, a2etest.Must(memory.NewPlugin(nil))), nil)
	m, err := memory.Open(t.Context(), agent, "")
	require.NoError(t, err)
	for _, ttl := range []time.Duration{-time.Nanosecond, -time.Hour, math.MinInt64} {
		require.Error(t, m.Remember(t.Context(), map[string]int{}, 1, &memory.RememberOptions{TTL: ttl}), ttl)
	}
	require.NoError(t, m.Remember(t.Context(), map[string]int{}, 1, &memory.RememberOptions{TTL: math.MaxInt64}))
	entries, err := m.Recall(t.Context(), map[string]int{})
	require.NoError(t, err)
	require.Len(t, entries, 1)
}
