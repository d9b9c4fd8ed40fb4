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
	"math"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fivewire/fivewire/a2e"
	"github.com/fivewire/fivewire/a2e/internal/wire"
	"github.com/fivewire/fivewire/internal/guard"
	"github.com/fivewire/fivewire/internal/option"
	"github.com/fivewire/fivewire/internal/strictjson"
	"github.com/fivewire/fivewire/store"
)

// Tiers of an [Entry] (A2E-090).
const (
	TierWorking  = "working"  // of the session in its process
	TierEpisodic = "episodic" // of the agent, kept
	TierSemantic = "semantic" // of all agents
)

var tiers = [...]string{TierWorking, TierEpisodic, TierSemantic}

// Options adjusts the memory plugin. The zero value is right for one process.
type Options struct {
	// Name is the name of the plugin. Empty means "memory".
	Name string

	// Store keeps the episodic and the semantic tier: one row for each entry. Several processes may
	// share it. Nil means memory of the process, which ends with it and is bounded: all tiers together have at most
	// twice the bytes of a full tier, and an owner leaves as much free for others as it has.
	Store store.KV

	// MaxEntries bounds the entries of each tier of each namespace, and MaxBytes their bytes of
	// JSON; the working tiers of a session have them together, within the Limits of the host. Zero means 100,000
	// entries and 64 MiB; a negative value removes the bound.
	MaxEntries, MaxBytes int

	// MaxMemories bounds the memories that a session opens. Zero means 100; a negative value
	// removes the bound. Their namespaces and scopes may have 1 MiB in all.
	MaxMemories int

	// MaxQueryWords bounds the distinct words of a query. Zero means 32; a negative value removes
	// the bound.
	MaxQueryWords int

	// OwnerID returns the owner of the episodic tier. Nil means the OwnerID of the session.
	OwnerID func(s *a2e.Session) string

	// Ranker returns the indexes of the entries that match a query, the best match first, for example
	// by embeddings. It gets all entries of the tiers in question. Nil means that every word of the
	// query begins a word of the texts of an entry, its key or its tags, found by an index in memory.
	Ranker func(ctx context.Context, entries []*Entry, query string) ([]int, error)
}

// NewPlugin returns a plugin that keeps memories in three tiers (A2E-D46).
func NewPlugin(opts *Options) (*a2e.Plugin, error) {
	k := &keeper{shelves: map[string]*shelf{}}
	if opts != nil {
		k.opts = *opts
	}
	k.opts.Name = cmp.Or(k.opts.Name, Capability)
	if k.isShared = k.opts.Store != nil; !k.isShared {
		k.opts.Store = store.NewMemory()
	}
	k.opts.MaxEntries = option.Count(k.opts.MaxEntries, 100000)
	k.opts.MaxBytes = option.Count(k.opts.MaxBytes, 64<<20)
	k.opts.MaxMemories = option.Count(k.opts.MaxMemories, 100)
	k.opts.MaxQueryWords = option.Count(k.opts.MaxQueryWords, 32)
	if k.opts.OwnerID == nil {
		k.opts.OwnerID = (*a2e.Session).OwnerID
	}
	return &a2e.Plugin{
		Name: k.opts.Name, Capability: Capability, Types: Types(),
		Open: func(s *a2e.Session) (any, error) {
			return &memories{
				session: s, working: map[string]*shelf{}, shelves: map[string]*shelf{},
				owner: sync.OnceValue(func() string { return k.opts.OwnerID(s) }),
			}, nil
		},
		Close:    func(state any) { k.close(state.(*memories)) },
		Snapshot: &a2e.PluginSnapshot{Save: save, Restore: restore, ForSession: true},
		Routes: []a2e.Route{
			a2e.NewRoute("memory/init/req", k.init),
			a2e.NewRoute("memory/store/req", k.store),
			a2e.NewRoute("memory/retrieve/req", k.retrieve),
			a2e.NewRoute("memory/forget/req", k.forget),
		},
	}, nil
}

type keeper struct {
	opts     Options
	isShared bool
	last     atomic.Int64 // position of the newest entry

	mu      sync.Mutex
	shelves map[string]*shelf // of sessions, and idle ones
	idle    []*shelf          // of the store, without a session, the oldest first
	pool    pool              // of the shelves in memory
}

const (
	maxEntry  = 1 << 20   // bytes of an entry
	maxAnswer = 4 << 20   // bytes of the entries of an answer
	maxIdle   = 128 << 20 // bytes of the entries of indexes without a session
	maxNames  = 1 << 20   // bytes of the namespaces and scopes of a session
)

// position returns the position of a new entry in the order of insertion over all tiers: even numbers.
func (k *keeper) position() int64 {
	for {
		last := k.last.Load()
		next := max(last+2, time.Now().UnixNano()&^1)
		if k.last.CompareAndSwap(last, next) {
			return next
		}
	}
}

// memories are those that one session has opened.
type memories struct {
	session *a2e.Session
	owner   func() string
	storing sync.Mutex // held while working entries are stored

	workingBytes int64 // that the session reserves; guarded by storing

	mu      sync.Mutex        // guards everything below
	list    []memory          // the id of the first is mem-1
	size    int               // bytes of list
	working map[string]*shelf // by prefix
	shelves map[string]*shelf // of the keeper, by prefix
}

type memory struct{ namespace, scope string }

func (m memory) size() int { return len(m.namespace) + len(m.scope) }

// addLocked adds a memory. m.mu must be held.
func (m *memories) addLocked(which memory) {
	m.list = append(m.list, which)
	m.size += which.size()
}

// savedMemories is the snapshot of the memories of a session. Their working entries end with the process.
type savedMemories struct {
	Memories [][2]string `json:"memories"` // namespaces and scopes
}

func save(_ context.Context, state any) (json.RawMessage, error) {
	m := state.(*memories)
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.list) == 0 {
		return nil, nil
	}
	var out savedMemories
	for _, which := range m.list {
		out.Memories = append(out.Memories, [2]string{which.namespace, which.scope})
	}
	return guard.Encode(out)
}

func restore(_ context.Context, state any, object json.RawMessage) error {
	var in savedMemories
	if err := json.Unmarshal(object, &in); err != nil {
		return err
	}
	m := state.(*memories)
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, which := range in.Memories {
		m.addLocked(memory{namespace: which[0], scope: which[1]})
	}
	return nil
}

func (k *keeper) init(_ context.Context, call *a2e.Call, r *InitRequest) (*InitResponse, error) {
	m := call.PluginState().(*memories)
	m.mu.Lock()
	defer m.mu.Unlock()
	which := memory{namespace: strings.Clone(r.Namespace), scope: scopeText(r.Scope)} // does not retain the message
	if len(m.list) >= k.opts.MaxMemories || m.size+which.size() > maxNames {
		return nil, a2e.Errorf(a2e.ErrMemoryFull, "too many memories in one session")
	}
	m.addLocked(which)
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

// find returns the memory of an id.
func (m *memories) find(id string) (memory, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	text, ok := strings.CutPrefix(id, "mem-")
	n, err := strconv.Atoi(text)
	if !ok || err != nil || n < 1 || n > len(m.list) || strconv.Itoa(n) != text {
		return memory{}, a2e.Errorf(a2e.ErrMemoryNotFound, "there is no such memory").With("memory_id", wire.Clip(id))
	}
	return m.list[n-1], nil
}

// shelf returns a tier of a memory.
func (k *keeper) shelf(m *memories, which memory, tier string) *shelf {
	owner := ""
	if tier == TierEpisodic {
		owner = m.owner()
	}
	sum := sha256.Sum256(fmt.Appendf(nil, "%q %q %q", owner, which.namespace, which.scope))
	prefix := "a2e/memory/" + tier + "/" + hex.EncodeToString(sum[:])
	m.mu.Lock()
	defer m.mu.Unlock()
	if tier == TierWorking {
		s := m.working[prefix]
		if s == nil {
			s = newShelf(store.NewMemory(), prefix, false)
			m.working[prefix] = s
		}
		return s
	}
	s := m.shelves[prefix]
	if s == nil {
		s = k.open(prefix, owner)
		m.shelves[prefix] = s
	}
	return s
}

// open returns a shelf of the store for one more session.
func (k *keeper) open(prefix, owner string) *shelf {
	k.mu.Lock()
	defer k.mu.Unlock()
	s := k.shelves[prefix]
	if s == nil {
		s = newShelf(k.opts.Store, prefix, k.isShared)
		s.owner = owner
		k.shelves[prefix] = s
	} else if s.users == 0 {
		k.idle = slices.DeleteFunc(k.idle, func(i *shelf) bool { return i == s })
	}
	s.users++
	return s
}

// close keeps the indexes of an ended session for later ones, those of the store within a bound.
func (k *keeper) close(m *memories) {
	m.mu.Lock()
	defer m.mu.Unlock()
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, s := range m.shelves {
		s.users--
		switch {
		case s.users == 0 && k.isShared && s.size() == 0:
			delete(k.shelves, s.prefix)
		case s.users == 0 && k.isShared:
			k.idle = append(k.idle, s)
		case s.users == 0:
			k.recountLocked(s)
		}
	}
	clear(m.shelves)
	size := int64(0)
	for i := len(k.idle) - 1; i >= 0; i-- {
		if size += k.idle[i].size(); size > maxIdle {
			for _, s := range k.idle[:i+1] {
				delete(k.shelves, s.prefix)
			}
			k.idle = slices.Delete(k.idle, 0, i+1)
			return
		}
	}
}

func (k *keeper) store(ctx context.Context, call *a2e.Call, r *StoreRequest) (*StoreResponse, error) {
	m := call.PluginState().(*memories)
	which, err := m.find(r.MemoryID)
	if err != nil {
		return nil, err
	}
	keys := make([]json.RawMessage, len(r.Entries))
	faults := make([]string, len(r.Entries)) // empty for a stored entry
	byTier := map[string][]numberedWrite{}
	for i, raw := range r.Entries {
		var v *a2e.Error
		e, w, err := k.newWrite(raw)
		switch {
		case err == nil:
			keys[i] = e.Key
			byTier[e.Tier] = append(byTier[e.Tier], numberedWrite{write: w, number: i})
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
		refused, err := k.storeTier(ctx, m, which, tier, byTier[tier])
		if err != nil {
			return nil, err
		}
		for _, i := range refused {
			faults[i], isFull = ": memory_full", true
		}
	}
	resp := &StoreResponse{}
	for i, fault := range faults {
		if fault == "" {
			resp.Stored = append(resp.Stored, keys[i])
		} else {
			resp.Errors = append(resp.Errors, "entries["+strconv.Itoa(i)+"]"+fault)
		}
	}
	if isFull && len(resp.Stored) == 0 {
		return nil, a2e.Errorf(a2e.ErrMemoryFull, "the memory is full")
	}
	return resp, nil
}

// storeTier adds entries to a tier, and returns the numbers of those that are over a bound.
func (k *keeper) storeTier(ctx context.Context, m *memories, which memory, tier string, entries []numberedWrite) ([]int, error) {
	s := k.shelf(m, which, tier)
	needed := int64(0)
	for _, e := range entries {
		needed += entryBytes + int64(e.size)
	}
	switch {
	case len(entries) == 0:
		return nil, nil
	case tier == TierWorking:
		return k.storeWorking(ctx, m, s, entries, needed)
	case k.isShared:
		return s.store(ctx, entries, &k.opts, math.MaxInt64)
	}
	granted := k.reserve(s.owner, needed+shelfBytes)
	defer k.recount(s, granted)
	return s.store(ctx, entries, &k.opts, granted)
}

// storeWorking stores working entries, which need so many bytes of the session.
func (k *keeper) storeWorking(ctx context.Context, m *memories, s *shelf, entries []numberedWrite, needed int64) ([]int, error) {
	if m.session.Reserve(needed) != nil {
		m.recount() // entries may have expired
		if err := m.session.Reserve(needed); err != nil {
			return nil, err
		}
	}
	m.storing.Lock()
	defer func() {
		change := m.recountLocked() - needed
		m.storing.Unlock()
		_ = m.session.Reserve(change)
	}()
	left := k.opts
	count, size := m.workingBesides(s)
	left.MaxEntries, left.MaxBytes = left.MaxEntries-count, left.MaxBytes-size
	return s.store(ctx, entries, &left, math.MaxInt64)
}

// recount releases the bytes of removed working entries.
func (m *memories) recount() {
	m.storing.Lock()
	change := m.recountLocked()
	m.storing.Unlock()
	_ = m.session.Reserve(change)
}

// recountLocked counts the bytes of the working entries, and returns their change. m.storing must be held.
func (m *memories) recountLocked() int64 {
	count, size := m.workingBesides(nil)
	used := int64(size) + int64(count)*entryBytes
	change := used - m.workingBytes
	m.workingBytes = used
	return change
}

// workingBesides returns the entries and bytes of the working tiers but one.
func (m *memories) workingBesides(one *shelf) (count, size int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, s := range m.working {
		if s != one {
			n, b := s.use()
			count, size = count+n, size+int(b)
		}
	}
	return count, size
}

// A numberedWrite is a write of an entry of a request.
type numberedWrite struct {
	write
	number int
}

// newWrite reads an entry of a request.
func (k *keeper) newWrite(raw json.RawMessage) (*Entry, write, error) {
	if len(raw) > maxEntry {
		e := a2e.Errorf(a2e.ErrInvalidMessage, "entry is too large")
		e.Reason = a2e.ReasonTooLarge
		return nil, write{}, e
	}
	e, err := a2e.DecodeModel[Entry](raw, "")
	switch {
	case err != nil:
		return nil, write{}, err
	case !slices.Contains(tiers[:], e.Tier):
		return nil, write{}, a2e.SchemaViolation("tier", a2e.ReasonValue)
	case e.TTL < 0:
		return nil, write{}, a2e.SchemaViolation("ttl", a2e.ReasonValue)
	}
	h, err := hashOf(e.Key)
	if err != nil {
		return nil, write{}, err
	}
	text, err := a2e.EncodeModel(e)
	if err != nil {
		return nil, write{}, err
	}
	at := k.position()
	w := write{document: document{hash: h, position: at, stamp: at, score: *e.Score, size: uint32(len(text))}, text: text}
	if e.TTL > 0 {
		w.ttl = time.Duration(min(e.TTL, math.MaxInt32)) * time.Second
		w.expires = time.Now().Add(w.ttl).UnixMicro()
	}
	return e, w, nil
}

// hashOf returns the same value for equal keys.
func hashOf(key json.RawMessage) (hash, error) {
	v, err := wire.CheckJSON(key)
	if err != nil {
		return hash{}, a2e.SchemaViolation("key", a2e.ReasonValue)
	}
	sum := sha256.Sum256(strictjson.AppendCanonical(nil, v))
	return hash(sum[:len(hash{})]), nil
}

func (k *keeper) retrieve(ctx context.Context, call *a2e.Call, r *RetrieveRequest) (*RetrieveResponse, error) {
	m := call.PluginState().(*memories)
	which, err := m.find(r.MemoryID)
	if err != nil {
		return nil, err
	}
	r.Tags = sortedTags(r.Tags)
	var shelves []*shelf
	for _, tier := range tiers {
		if r.Tier == "" || r.Tier == tier {
			shelves = append(shelves, k.shelf(m, which, tier))
		}
	}
	switch {
	case r.Query != "" && k.opts.Ranker != nil:
		return rankedBy(ctx, shelves, r, k.opts.Ranker)
	case r.Query == "" && len(r.Keys) > 0:
		return byKey(ctx, shelves, r)
	}
	words := queryWords(r.Query)
	if len(words) > k.opts.MaxQueryWords {
		return nil, a2e.SchemaViolation("query", a2e.ReasonTooLarge)
	}
	return byIndex(ctx, shelves, r, words)
}

func (k *keeper) forget(ctx context.Context, call *a2e.Call, r *ForgetRequest) (*ForgetResponse, error) {
	m := call.PluginState().(*memories)
	which, err := m.find(r.MemoryID)
	if err != nil {
		return nil, err
	}
	if len(r.Keys) == 0 && len(r.Tags) == 0 || !slices.Contains(tiers[:], r.Tier) {
		return &ForgetResponse{}, nil
	}
	s := k.shelf(m, which, r.Tier)
	n, err := s.forget(ctx, hashes(r.Keys), sortedTags(r.Tags), k.position()|1)
	switch {
	case r.Tier == TierWorking:
		m.recount()
	case !k.isShared:
		k.recount(s, 0)
	}
	if err != nil {
		return nil, err
	}
	return &ForgetResponse{Deleted: int64(n)}, nil
}

// hashes returns those of the keys that are JSON, each once.
func hashes(keys []json.RawMessage) map[hash]bool {
	set := map[hash]bool{}
	for _, key := range keys {
		if h, err := hashOf(key); err == nil {
			set[h] = true
		}
	}
	return set
}

// sortedTags returns the distinct tags.
func sortedTags(tags []string) []string { return slices.Compact(slices.Sorted(slices.Values(tags))) }

// overlap reports whether one of the tags is among the sorted ones.
func overlap(tags, sorted []string) bool {
	return slices.ContainsFunc(tags, func(tag string) bool {
		_, found := slices.BinarySearch(sorted, tag)
		return found
	})
}
