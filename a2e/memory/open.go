// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package memory

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/fivewire/fivewire/a2e"
	"github.com/fivewire/fivewire/internal/guard"
)

// A Memory is an open memory of a host. Its keys are values that encoding/json writes as objects. It is
// safe for concurrent use.
type Memory struct {
	client *Client
	id     string
}

// RememberOptions adjust an entry. The zero value is right for most entries.
type RememberOptions struct {
	Tier string        // empty means TierEpisodic
	Tags []string      // a search may be restricted to them
	TTL  time.Duration // rounded up to whole seconds; zero means no end, and a negative value is refused
}

// A StoreError reports the entries that a host refused. The others are stored.
type StoreError struct {
	Refused []string          // the position of each refused entry with the reason
	Stored  []json.RawMessage // the keys of the stored entries
}

// Error lists the refused entries.
func (e *StoreError) Error() string { return "memory: store: " + strings.Join(e.Refused, ", ") }

// Open opens the memory of a namespace. An empty namespace means "default".
func Open(ctx context.Context, c *a2e.Client, namespace string) (*Memory, error) {
	client, err := NewClient(c)
	if err != nil {
		return nil, err
	}
	answer, err := client.Init(ctx, &InitRequest{Namespace: namespace}, nil)
	if err != nil {
		return nil, err
	}
	return &Memory{client: client, id: answer.MemoryID}, nil
}

// Remember stores a value under a key, and replaces an earlier one.
func (m *Memory) Remember(ctx context.Context, key, value any, opts *RememberOptions) error {
	e := &Entry{Tier: TierEpisodic}
	if opts != nil {
		e.Tags, e.TTL = opts.Tags, int64(math.Ceil(opts.TTL.Seconds()))
		if opts.TTL < 0 {
			e.TTL = -1 // which the host refuses
		}
		if opts.Tier != "" {
			e.Tier = opts.Tier
		}
	}
	texts, err := encodeAll(key, value)
	if err != nil {
		return err
	}
	e.Key, e.Content = texts[0], texts[1]
	entry, err := a2e.EncodeModel(e)
	if err != nil {
		return err
	}
	_, err = m.client.Store(ctx, &StoreRequest{MemoryID: m.id, Entries: []json.RawMessage{entry}}, nil)
	return err
}

// Recall returns the entries of keys, of all tiers.
func (m *Memory) Recall(ctx context.Context, keys ...any) ([]*Entry, error) {
	texts, err := encodeAll(keys...)
	if err != nil || len(texts) == 0 {
		return nil, err
	}
	return m.recall(ctx, texts)
}

// recall retrieves keys with several requests if the entries are too large for one answer.
func (m *Memory) recall(ctx context.Context, keys []json.RawMessage) ([]*Entry, error) {
	entries, total, err := m.retrieve(ctx, &RetrieveRequest{Keys: keys, Limit: a2e.Limit(len(tiers) * len(keys))})
	if err != nil || int64(len(entries)) >= total || len(keys) == 1 {
		return entries, err
	}
	entries, err = m.recall(ctx, keys[:len(keys)/2])
	if err != nil {
		return nil, err
	}
	others, err := m.recall(ctx, keys[len(keys)/2:])
	return append(entries, others...), err
}

// Search returns at most limit entries of all tiers that match the words of a query, the best first, and
// have one of the tags. No tags mean any entry. A limit of zero means 10.
func (m *Memory) Search(ctx context.Context, query string, limit int, tags ...string) ([]*Entry, error) {
	entries, _, err := m.retrieve(ctx, &RetrieveRequest{Query: query, Tags: tags, Limit: a2e.Limit(limit)})
	return entries, err
}

// Forget removes the entries of keys from a tier, and returns their number. An empty tier means
// TierEpisodic.
func (m *Memory) Forget(ctx context.Context, tier string, keys ...any) (int, error) {
	texts, err := encodeAll(keys...)
	if err != nil || len(texts) == 0 {
		return 0, err
	}
	answer, err := m.client.Forget(ctx, &ForgetRequest{MemoryID: m.id, Tier: tier, Keys: texts}, nil)
	if err != nil {
		return 0, err
	}
	return int(answer.Deleted), nil
}

// retrieve returns the entries of an answer, and their number before the limit.
func (m *Memory) retrieve(ctx context.Context, r *RetrieveRequest) (entries []*Entry, total int64, err error) {
	r.MemoryID = m.id
	answer, err := m.client.Retrieve(ctx, r, nil)
	if err != nil {
		return nil, 0, err
	}
	for i, raw := range answer.Entries {
		e, err := a2e.DecodeModel[Entry](raw, fmt.Sprintf("entries[%d]", i))
		if err != nil {
			return nil, 0, err
		}
		entries = append(entries, e)
	}
	return entries, answer.Total, nil
}

func encodeAll(values ...any) ([]json.RawMessage, error) {
	var texts []json.RawMessage
	for _, v := range values {
		text, err := guard.Encode(v)
		if err != nil {
			return nil, fmt.Errorf("memory: encode: %w", err)
		}
		texts = append(texts, json.RawMessage(text))
	}
	return texts, nil
}
