// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package memory

import (
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
	"time"

	"github.com/fivewire/fivewire/a2e"
	"github.com/fivewire/fivewire/a2e/internal/wire"
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

	// MaxEntries bounds each tier of each namespace; zero means 10,000.
	MaxEntries int

	// MaxBytes bounds the same in bytes of JSON; zero means 8 MiB.
	MaxBytes int

	// MaxMemories bounds the memories that a session opens; zero means 100.
	MaxMemories int

	// OwnerID says whose the episodic tier is. Nil means the agent id of the
	// session, which an agent chooses freely unless an authenticator checks it.
	OwnerID func(s *a2e.Session) string

	// Matcher decides whether an entry fits a query. Nil means that every word
	// of the query stands in its content, key or tags, ignoring case.
	Matcher func(e *Entry, query string) bool
}

// NewPlugin returns a plugin that keeps memories in three tiers (A2E-D46).
func NewPlugin(opts *Options) *a2e.Plugin {
	k := &keeper{}
	if opts != nil {
		k.opts = *opts
	}
	if k.opts.Name == "" {
		k.opts.Name = Capability
	}
	if k.opts.Store == nil {
		k.opts.Store = store.NewMemory()
	}
	setDefault(&k.opts.MaxEntries, 10000)
	setDefault(&k.opts.MaxBytes, 8<<20)
	setDefault(&k.opts.MaxMemories, 100)
	if k.opts.OwnerID == nil {
		k.opts.OwnerID = (*a2e.Session).AgentID
	}
	if k.opts.Matcher == nil {
		k.opts.Matcher = matches
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
	}
}

func setDefault(v *int, def int) {
	if *v <= 0 {
		*v = def
	}
}

type keeper struct{ opts Options }

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
		return nil, a2e.NewError(a2e.ErrMemoryFull, "too many memories in one session")
	}
	m.list = append(m.list, memory{namespace: r.Namespace, scope: scopeText(r.Scope)})
	return &InitResponse{MemoryID: "mem-" + strconv.Itoa(len(m.list)), Namespace: r.Namespace, Success: true}, nil
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

// find returns where a tier of a memory is kept.
func (k *keeper) find(call *a2e.Call, id string) (func(tier string) shelf, error) {
	m := call.PluginState().(*memories)
	m.mu.Lock()
	defer m.mu.Unlock()
	text, ok := strings.CutPrefix(id, "mem-")
	n, err := strconv.Atoi(text)
	if !ok || err != nil || n < 1 || n > len(m.list) || strconv.Itoa(n) != text {
		return nil, a2e.NewError(a2e.ErrMemoryNotFound, "there is no such memory").With("memory_id", wire.Clip(id))
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
		return shelf{kv: kv, key: "a2e/memory/" + tier + "/" + hex.EncodeToString(sum[:]), opts: &k.opts}
	}, nil
}

func (k *keeper) store(ctx context.Context, call *a2e.Call, r *StoreRequest) (*StoreResponse, error) {
	at, err := k.find(call, r.MemoryID)
	if err != nil {
		return nil, err
	}
	resp := &StoreResponse{}
	good := map[string][]record{}
	for i, raw := range r.Entries {
		e, err := a2e.DecodeModel[Entry](raw, "")
		if err == nil && !slices.Contains(tiers[:], e.Tier) {
			err = a2e.SchemaViolation("tier", a2e.ReasonValue)
		}
		if err == nil && e.TTL < 0 {
			err = a2e.SchemaViolation("ttl", a2e.ReasonValue)
		}
		if err != nil {
			var v *a2e.Error
			errors.As(err, &v)
			resp.Errors = append(resp.Errors, strings.TrimSuffix(fmt.Sprintf("entries[%d].%s", i, v.Field), ".")+": "+v.Reason)
			continue
		}
		rec := record{Entry: *e}
		if e.TTL > 0 {
			rec.Expires = time.Now().Add(time.Duration(min(e.TTL, 1<<31)) * time.Second).UnixMicro()
		}
		good[e.Tier] = append(good[e.Tier], rec)
		resp.Stored = append(resp.Stored, e.Key)
	}
	for _, tier := range tiers {
		if len(good[tier]) == 0 {
			continue
		}
		err := at(tier).change(ctx, func(list []record) []record {
			for _, rec := range good[tier] {
				i := slices.IndexFunc(list, func(old record) bool { return a2e.EqualJSON(old.Key, rec.Key) })
				if i >= 0 {
					list[i] = rec // in place
				} else {
					list = append(list, rec)
				}
			}
			return list
		})
		if err != nil {
			return nil, err
		}
	}
	return resp, nil
}

func (k *keeper) retrieve(ctx context.Context, call *a2e.Call, r *RetrieveRequest) (*RetrieveResponse, error) {
	at, err := k.find(call, r.MemoryID)
	if err != nil {
		return nil, err
	}
	resp := &RetrieveResponse{}
	for _, tier := range tiers {
		if r.Tier != "" && r.Tier != tier {
			continue
		}
		list, _, err := at(tier).read(ctx)
		if err != nil {
			return nil, err
		}
		for i := range list {
			e := &list[i].Entry
			if len(r.Keys) > 0 && !hasKey(r.Keys, e.Key) || len(r.Tags) > 0 && !overlap(r.Tags, e.Tags) ||
				e.Score < r.MinScore || r.Query != "" && !k.opts.Matcher(e, r.Query) {
				continue
			}
			resp.Total++
			if int64(len(resp.Entries)) < r.Limit {
				raw, err := a2e.EncodeModel(e)
				if err != nil {
					return nil, err
				}
				resp.Entries = append(resp.Entries, raw)
			}
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
	return slices.ContainsFunc(keys, func(k json.RawMessage) bool { return a2e.EqualJSON(k, key) })
}

func overlap(a, b []string) bool {
	return slices.ContainsFunc(a, func(s string) bool { return slices.Contains(b, s) })
}

func matches(e *Entry, query string) bool {
	text := strings.ToLower(string(e.Key) + " " + string(e.Content) + " " + strings.Join(e.Tags, " "))
	for _, word := range strings.Fields(strings.ToLower(query)) {
		if !strings.Contains(text, word) {
			return false
		}
	}
	return true
}

// A record is an entry as it is kept.
type record struct {
	Entry
	Expires int64 `a2e:"expires_us"` // 0 never
}

// A shelf is one tier of one memory: a list under one key.
type shelf struct {
	kv   store.KV
	key  string
	opts *Options
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
		if rec.Expires == 0 || rec.Expires > now {
			list = append(list, *rec)
		}
	}
	return list, entry.Revision, nil
}

// change rewrites the list, again if somebody else did so meanwhile.
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
		if len(list) > s.opts.MaxEntries || len(out) > s.opts.MaxBytes {
			return a2e.NewError(a2e.ErrMemoryFull, "the memory is full")
		}
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
