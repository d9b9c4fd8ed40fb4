// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package memory

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fivewire/fivewire/a2e"
	"github.com/fivewire/fivewire/a2e/internal/wire"
	"github.com/fivewire/fivewire/internal/option"
	"github.com/fivewire/fivewire/internal/strictjson"
	"github.com/fivewire/fivewire/store"
)

// Tiers of an [Entry] (A2E-090).
const (
	TierWorking  = "working"  // of the session
	TierEpisodic = "episodic" // of the agent, kept
	TierSemantic = "semantic" // of all agents
)

var tiers = [...]string{TierWorking, TierEpisodic, TierSemantic}

// Options adjusts the memory plugin. The zero value is right for one process.
type Options struct {
	// Name is the name of the plugin. Empty means "memory".
	Name string

	// Store keeps the episodic and the semantic tier. Nil means memory of the
	// process, which ends with it.
	Store store.KV

	// MaxEntries bounds the entries of each tier of each namespace, and MaxBytes their bytes of
	// JSON. Zero means 10,000 entries and 8 MiB; a negative value removes the bound.
	MaxEntries, MaxBytes int

	// MaxMemories bounds the memories that a session opens. Zero means 100; a negative value
	// removes the bound.
	MaxMemories int

	// OwnerID returns the owner of the episodic tier. Nil means the OwnerID of the session.
	OwnerID func(s *a2e.Session) string

	// Ranker returns the indexes of the entries that match a query, the best match first. Nil means
	// that every word of the query begins a word of the texts of an entry, its key or its tags.
	Ranker func(ctx context.Context, entries []*Entry, query string) ([]int, error)
}

// NewPlugin returns a plugin that keeps memories in three tiers (A2E-D46).
func NewPlugin(opts *Options) (*a2e.Plugin, error) {
	k := &keeper{}
	if opts != nil {
		k.opts = *opts
	}
	k.opts.Name = cmp.Or(k.opts.Name, Capability)
	if k.opts.Store == nil {
		k.opts.Store = store.NewMemory()
	}
	k.opts.MaxEntries = option.Count(k.opts.MaxEntries, 10000)
	k.opts.MaxBytes = option.Count(k.opts.MaxBytes, 8<<20)
	k.opts.MaxMemories = option.Count(k.opts.MaxMemories, 100)
	if k.opts.OwnerID == nil {
		k.opts.OwnerID = (*a2e.Session).OwnerID
	}
	if k.opts.Ranker == nil {
		k.opts.Ranker = func(_ context.Context, entries []*Entry, query string) ([]int, error) {
			return rank(entries, query), nil
		}
	}
	return &a2e.Plugin{
		Name: k.opts.Name, Capability: Capability, Types: Types(),
		Open: func(s *a2e.Session) (any, error) {
			return &memories{working: store.NewMemory(), owner: sync.OnceValue(func() string { return k.opts.OwnerID(s) })}, nil
		},
		Routes: []a2e.Route{
			a2e.NewRoute("memory/init/req", k.init),
			a2e.NewRoute("memory/store/req", k.store),
			a2e.NewRoute("memory/retrieve/req", k.retrieve),
			a2e.NewRoute("memory/forget/req", k.forget),
		},
	}, nil
}

type keeper struct {
	opts Options
	last atomic.Int64 // position of the newest entry
}

// position returns the position of a new entry in the order of insertion over all tiers.
func (k *keeper) position() int64 {
	for {
		last := k.last.Load()
		next := max(last+1, time.Now().UnixNano())
		if k.last.CompareAndSwap(last, next) {
			return next
		}
	}
}

const (
	maxEntry  = 1 << 20 // bytes of an entry
	maxAnswer = 4 << 20 // bytes of the entries of an answer
)

// memories are those that one session has opened.
type memories struct {
	working store.KV
	owner   func() string

	mu   sync.Mutex
	list []memory // the id of the first is mem-1
}

type memory struct{ namespace, scope string }

func (k *keeper) init(_ context.Context, call *a2e.Call, r *InitRequest) (*InitResponse, error) {
	m := call.PluginState().(*memories)
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.list) >= k.opts.MaxMemories {
		return nil, a2e.Errorf(a2e.ErrMemoryFull, "too many memories in one session")
	}
	m.list = append(m.list, memory{namespace: r.Namespace, scope: scopeText(r.Scope)})
	return &InitResponse{MemoryID: "mem-" + strconv.Itoa(len(m.list)), Namespace: r.Namespace}, nil
}

// scopeText is the same for equal scopes, whatever their order.
func scopeText(scope a2e.OrderedObject[string]) string {
	sorted := slices.Clone(scope)
	slices.SortFunc(sorted, func(a, b a2e.Member[string]) int { return strings.Compare(a.Name, b.Name) })
	var b strings.Builder
	for _, m := range sorted {
		fmt.Fprintf(&b, "%q=%q;", m.Name, m.Value)
	}
	return b.String()
}

// find returns the location of each tier of a memory.
func (k *keeper) find(call *a2e.Call, id string) (func(tier string) shelf, error) {
	m := call.PluginState().(*memories)
	m.mu.Lock()
	defer m.mu.Unlock()
	text, ok := strings.CutPrefix(id, "mem-")
	n, err := strconv.Atoi(text)
	if !ok || err != nil || n < 1 || n > len(m.list) || strconv.Itoa(n) != text {
		return nil, a2e.Errorf(a2e.ErrMemoryNotFound, "there is no such memory").With("memory_id", wire.Clip(id))
	}
	which := m.list[n-1]
	return func(tier string) shelf {
		kv, owner := k.opts.Store, ""
		switch tier {
		case TierWorking:
			kv = m.working
		case TierEpisodic:
			owner = m.owner()
		}
		sum := sha256.Sum256(fmt.Appendf(nil, "%q %q %q", owner, which.namespace, which.scope))
		return shelf{kv: kv, key: "a2e/memory/" + tier + "/" + hex.EncodeToString(sum[:])}
	}, nil
}

func (k *keeper) store(ctx context.Context, call *a2e.Call, r *StoreRequest) (*StoreResponse, error) {
	at, err := k.find(call, r.MemoryID)
	if err != nil {
		return nil, err
	}
	records := make([]record, len(r.Entries))
	faults := make([]string, len(r.Entries)) // empty for a stored entry
	byTier := map[string][]int{}
	for i, raw := range r.Entries {
		var v *a2e.Error
		rec, err := k.newRecord(raw)
		switch {
		case err == nil:
			records[i] = *rec
			byTier[rec.Tier] = append(byTier[rec.Tier], i)
		case errors.As(err, &v) && v.Field != "":
			faults[i] = "." + v.Field + ": " + v.Reason
		case errors.As(err, &v):
			faults[i] = ": " + v.Reason
		default:
			return nil, err
		}
	}
	isFull := false
	for _, tier := range tiers {
		if len(byTier[tier]) == 0 {
			continue
		}
		err := at(tier).change(ctx, func(list []record) []record {
			size := 0
			for i := range list {
				size += list[i].size
			}
			for _, i := range byTier[tier] {
				faults[i] = ""
				if list, size = put(list, records[i], size, &k.opts); size < 0 {
					faults[i], size = ": memory_full", -size
					isFull = true
				}
			}
			return list
		})
		if err != nil {
			return nil, err
		}
	}
	resp := &StoreResponse{}
	for i, fault := range faults {
		if fault == "" {
			resp.Stored = append(resp.Stored, records[i].Key)
		} else {
			resp.Errors = append(resp.Errors, "entries["+strconv.Itoa(i)+"]"+fault)
		}
	}
	if isFull && len(resp.Stored) == 0 {
		return nil, a2e.Errorf(a2e.ErrMemoryFull, "the memory is full")
	}
	return resp, nil
}

// newRecord reads an entry of a request.
func (k *keeper) newRecord(raw json.RawMessage) (*record, error) {
	if len(raw) > maxEntry {
		e := a2e.Errorf(a2e.ErrInvalidMessage, "entry is too large")
		e.Reason = a2e.ReasonTooLarge
		return nil, e
	}
	e, err := a2e.DecodeModel[Entry](raw, "")
	switch {
	case err != nil:
		return nil, err
	case !slices.Contains(tiers[:], e.Tier):
		return nil, a2e.SchemaViolation("tier", a2e.ReasonValue)
	case e.TTL < 0:
		return nil, a2e.SchemaViolation("ttl", a2e.ReasonValue)
	}
	rec := &record{Entry: *e, Position: k.position(), size: len(raw)}
	if e.TTL > 0 {
		rec.Expires = time.Now().Add(time.Duration(min(e.TTL, 1<<31)) * time.Second).UnixMicro()
	}
	return rec, nil
}

// put adds a record to a list of size bytes, or replaces the one of its key in place. It returns
// the size, negative if the record is over a bound.
func put(list []record, rec record, size int, o *Options) ([]record, int) {
	i := slices.IndexFunc(list, func(old record) bool { return wire.EqualJSON(old.Key, rec.Key) })
	after := size + rec.size
	if i >= 0 {
		after -= list[i].size
	}
	switch {
	case after > o.MaxBytes || i < 0 && len(list) >= o.MaxEntries:
		return list, -size
	case i >= 0:
		rec.Position = list[i].Position
		list[i] = rec
		return list, after
	}
	return append(list, rec), after
}

func (k *keeper) retrieve(ctx context.Context, call *a2e.Call, r *RetrieveRequest) (*RetrieveResponse, error) {
	at, err := k.find(call, r.MemoryID)
	if err != nil {
		return nil, err
	}
	var list []record
	for _, tier := range tiers {
		if r.Tier != "" && r.Tier != tier {
			continue
		}
		part, _, err := at(tier).read(ctx)
		if err != nil {
			return nil, err
		}
		list = append(list, part...)
	}
	slices.SortStableFunc(list, func(a, b record) int { return cmp.Compare(a.Position, b.Position) })
	entries := make([]*Entry, len(list))
	order := make([]int, len(list))
	for i := range list {
		entries[i], order[i] = &list[i].Entry, i
	}
	if r.Query != "" {
		if order, err = k.opts.Ranker(ctx, entries, r.Query); err != nil {
			return nil, err
		}
	}
	resp := &RetrieveResponse{}
	space := maxAnswer
	for _, i := range order {
		e := entries[i]
		if len(r.Keys) > 0 && !hasKey(r.Keys, e.Key) || len(r.Tags) > 0 && !overlap(r.Tags, e.Tags) || *e.Score < r.MinScore {
			continue
		}
		resp.Total++
		if int64(len(resp.Entries)) >= int64(r.Limit) || space < 0 {
			continue
		}
		raw, err := a2e.EncodeModel(e)
		if err != nil {
			return nil, err
		}
		if space -= len(raw) + 1; space >= 0 {
			resp.Entries = append(resp.Entries, raw)
		}
	}
	return resp, nil
}

func (k *keeper) forget(ctx context.Context, call *a2e.Call, r *ForgetRequest) (*ForgetResponse, error) {
	at, err := k.find(call, r.MemoryID)
	if err != nil {
		return nil, err
	}
	resp := &ForgetResponse{}
	if len(r.Keys) == 0 && len(r.Tags) == 0 || !slices.Contains(tiers[:], r.Tier) {
		return resp, nil
	}
	err = at(r.Tier).change(ctx, func(list []record) []record {
		before := len(list)
		list = slices.DeleteFunc(list, func(rec record) bool {
			return hasKey(r.Keys, rec.Key) || overlap(r.Tags, rec.Tags)
		})
		resp.Deleted = int64(before - len(list))
		return list
	})
	if err != nil {
		return nil, err
	}
	return resp, nil
}

func hasKey(keys []json.RawMessage, key json.RawMessage) bool {
	return slices.ContainsFunc(keys, func(k json.RawMessage) bool { return wire.EqualJSON(k, key) })
}

func overlap(a, b []string) bool {
	return slices.ContainsFunc(a, func(s string) bool { return slices.Contains(b, s) })
}

// A record is a stored entry.
type record struct {
	Entry
	Expires  int64 `json:"expires_us,omitzero" jsonmap:"always"` // 0 never
	Position int64 `json:"position,omitzero" jsonmap:"always"`

	size int // bytes of the entry in its request, or in the store
}

// A shelf is one tier of one memory: a list under one key.
type shelf struct {
	kv  store.KV
	key string
}

func (s shelf) read(ctx context.Context) ([]record, store.Revision, error) {
	entry, err := s.kv.Get(ctx, s.key)
	if errors.Is(err, store.ErrNotFound) {
		return nil, 0, nil
	}
	if err != nil {
		return nil, 0, err
	}
	v, err := strictjson.Check(entry.Value, strictjson.Options{MaxDepth: 10000})
	if err != nil {
		return nil, 0, fmt.Errorf("memory: stored list: %w", err)
	}
	now := time.Now().UnixMicro()
	var list []record
	for e := v.Elements(); e.Next(); {
		rec, err := a2e.DecodeModel[record](json.RawMessage(e.Value), "")
		if err != nil {
			return nil, 0, fmt.Errorf("memory: stored entry: %w", err)
		}
		rec.size = len(e.Value)
		if rec.Expires == 0 || rec.Expires > now {
			list = append(list, *rec)
		}
	}
	return list, entry.Revision, nil
}

// change rewrites the list, and repeats the edit after a revision conflict.
func (s shelf) change(ctx context.Context, edit func([]record) []record) error {
	for {
		list, rev, err := s.read(ctx)
		if err != nil {
			return err
		}
		list = edit(list)
		out := []byte{'['}
		for i := range list {
			raw, err := a2e.EncodeModel(&list[i])
			if err != nil {
				return err
			}
			if i > 0 {
				out = append(out, ',')
			}
			out = append(out, raw...)
		}
		out = append(out, ']')
		if rev == 0 {
			_, err = s.kv.Create(ctx, s.key, out, 0)
		} else {
			_, err = s.kv.Update(ctx, s.key, out, rev, 0)
		}
		if errors.Is(err, store.ErrExists) || errors.Is(err, store.ErrConflict) || errors.Is(err, store.ErrNotFound) {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			continue
		}
		return err
	}
}
