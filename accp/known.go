// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package accp

import (
	"cmp"
	"context"
	"errors"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
)

// scopeInfo holds what is known about checkpoints, beside their entries. No
// reference leads there. Sides of a session that share a store have different ones.
func (s *Session) scopeInfo() Scope { return Scope("info/" + s.self) }

// A knownCheckpoint is one that was made and has not expired when it was read.
type knownCheckpoint struct {
	CheckpointInfo
	n     int64 // of its id
	until int64 // when its entries expire, in Unix milliseconds; 0: never
}

// A sought checkpoint was not there: it is being made, or is that of another side.
type sought struct {
	n     int64
	until time.Time // the first look after that is the last one
}

const (
	maxMissing = 64              // checkpoints that are looked for again
	seekFor    = 2 * time.Minute // each of them, which is longer than making one takes
	listFrom   = 16              // unknown checkpoints from which on they are listed
)

func checkpointID(n int64) string { return "cp" + strconv.FormatInt(n, 10) }

// saveInfo keeps what is known about a checkpoint.
func (s *Session) saveInfo(ctx context.Context, cp *CheckpointInfo) error {
	if !s.durable() {
		return nil
	}
	trigger := make([]Value, len(cp.Trigger))
	for i, t := range cp.Trigger {
		trigger[i] = String(t)
	}
	return s.private().put(ctx, s.id, s.scopeInfo(), cp.ID, Map(Param{"frames", Int(int64(cp.Frames))},
		Param{"summary", String(cp.Summary)}, Param{"tokens", Int(int64(cp.SummaryTokens))}, Param{"trigger", Array(trigger...)}), s.opts.Retention)
}

// learn adds a checkpoint to those that are known, in the order of their numbers. The
// oldest are forgotten when they expire; all of them are not looked at each time.
func (s *Session) learn(k knownCheckpoint) {
	for len(s.checkpoints) > 0 && past(s.checkpoints[0].until) {
		s.checkpoints[0] = knownCheckpoint{}
		s.checkpoints = s.checkpoints[1:]
	}
	at, found := slices.BinarySearchFunc(s.checkpoints, k.n, func(o knownCheckpoint, n int64) int { return cmp.Compare(o.n, n) })
	if !found {
		s.checkpoints = slices.Insert(s.checkpoints, at, k)
	}
}

// loadCheckpoints reads what is known about checkpoints that others made. One that
// is being made while this looks is found the next time.
func (s *Session) loadCheckpoints(ctx context.Context) error {
	now := time.Now()
	look, missing := slices.Clone(s.missing), []sought(nil)
	giveUp := now.Add(seekFor)
	found := func(n int64, v Value, until int64, err error) error {
		switch {
		case errors.Is(err, ErrRefExpired):
			return nil
		case err != nil:
			return err
		}
		s.learn(knownCheckpoint{infoOf(n, v), n, until})
		if len(s.hot) == 0 && n >= s.hotAt {
			s.refer(n)
		}
		return nil
	}
	if s.made-s.looked < listFrom {
		for n := s.looked + 1; n <= s.made; n++ {
			look = append(look, sought{n, giveUp})
		}
	} else {
		listed, err := s.listCheckpoints(ctx, found)
		if err != nil {
			return err
		}
		for n := max(s.looked, s.made-maxMissing) + 1; n <= s.made; n++ {
			if !listed[n] {
				missing = append(missing, sought{n, giveUp})
			}
		}
	}
	for _, x := range look {
		v, until, err := s.private().getUntil(ctx, s.id, s.scopeInfo(), checkpointID(x.n))
		if errors.Is(err, ErrRefNotFound) {
			if now.Before(x.until) {
				missing = append(missing, x)
			}
			continue
		}
		if err := found(x.n, v, until, err); err != nil {
			return err
		}
	}
	slices.SortFunc(missing, func(a, b sought) int { return cmp.Compare(a.n, b.n) })
	s.missing = missing[max(0, len(missing)-maxMissing):]
	s.looked = s.made
	return nil
}

// listCheckpoints reads all that come after those looked for, in any order.
func (s *Session) listCheckpoints(ctx context.Context, found func(int64, Value, int64, error) error) (map[int64]bool, error) {
	t := s.private()
	prefix := t.space(s.id, s.scopeInfo()) + "cp"
	listed := map[int64]bool{}
	for e, err := range t.kv.List(ctx, prefix) {
		if err != nil {
			return nil, err
		}
		n, perr := strconv.ParseInt(strings.TrimPrefix(e.Key, prefix), 10, 64)
		if perr != nil || n <= s.looked || n > s.made {
			continue
		}
		listed[n] = true
		v, until, err := t.decode(e.Value, s.scopeInfo(), checkpointID(n))
		if err := found(n, v, until, err); err != nil {
			return nil, err
		}
	}
	return listed, nil
}

// highestCheckpoint returns the highest number of the checkpoints of the session,
// whoever made them.
func (s *Session) highestCheckpoint(ctx context.Context) (int64, error) {
	highest := int64(0)
	t := s.private()
	for _, scope := range []Scope{ScopeWarm, ScopeCold} { // cold: those that were not finished
		prefix := t.space(s.id, scope) + "cp"
		for e, err := range t.kv.List(ctx, prefix) {
			if err != nil {
				return 0, err
			}
			digits, _ := strings.CutSuffix(strings.TrimPrefix(e.Key, prefix), "_facts")
			if n, err := strconv.ParseInt(digits, 10, 64); err == nil && n < math.MaxInt64 {
				highest = max(highest, n)
			}
		}
	}
	return highest, nil
}

func infoOf(n int64, v Value) CheckpointInfo {
	p := v.Entries()
	info := CheckpointInfo{ID: checkpointID(n), Summary: p.Text("summary")}
	number := func(key string) int {
		v, _ := p.Get(key)
		n, _ := v.Int()
		return int(n)
	}
	info.Frames, info.SummaryTokens = number("frames"), number("tokens")
	trigger, _ := p.Get("trigger")
	for _, t := range trigger.Elements() {
		name, _ := t.Text()
		info.Trigger = append(info.Trigger, name)
	}
	return info
}

// refer makes hot state the reference to a checkpoint.
func (s *Session) refer(n int64) {
	s.hotAt = n
	s.hotUsed = s.opts.TokenCounter.Count("$warm." + checkpointID(n))
}

// infos returns the checkpoints that have not expired.
func (s *Session) infos() []CheckpointInfo {
	var out []CheckpointInfo
	for _, k := range s.checkpoints {
		if !past(k.until) {
			out = append(out, k.CheckpointInfo)
		}
	}
	return out
}
