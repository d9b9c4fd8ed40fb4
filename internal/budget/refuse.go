// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package budget

import (
	"context"
	"fmt"
	"hash/maphash"
	"log/slog"
	"maps"
	"math"
	"strings"
	"time"
)

const (
	period     = time.Minute // of log records
	maxRecords = 1_000       // in a period
	maxBuckets = 100_000     // other principals share one
)

// An Error is a refused reservation. Scope is "session", "principal" or "all", Limit
// and Used are its bound and its use. If a principal must leave room for others, Limit
// is its share. RetryAfter, from 1 s to 60 s, estimates the end of the oldest holds.
type Error struct {
	Resource    Resource
	Scope       string
	Limit, Used int64
	RetryAfter  time.Duration
}

// Error names the resource, the scope, the limit and the use.
func (e *Error) Error() string {
	return fmt.Sprintf("budget: %v: limit of %s reached: %d of %d used", e.Resource, e.Scope, e.Used, e.Limit)
}

// refuseLocked returns the error for n units that an account lacks room for, and how
// many units must be released. b.mu must be held.
func (b *Budget) refuseLocked(s *Scope, full *account, r Resource, n int64) (e *Error, lack int64) {
	t, p := &full.use[r], s.parent
	free := full.bounds[r] - t.used
	e = &Error{Resource: r, Scope: full.scope, Limit: full.bounds[r], Used: t.used}
	lack = n - free
	if lack <= 0 { // too much for one principal
		used := p.use[r].used
		e.Scope, e.Limit, e.Used = p.scope, (free+used)/2, used
		lack = 2*n + used - free
	}
	// How long the release of n units took, or the age of the oldest holds.
	passed := time.Since(b.start) - t.since
	e.retryAfter(float64(passed) * float64(n) / float64(max(t.freed, n)))
	if passed > time.Minute {
		t.since += passed / 2
		t.freed /= 2
	}
	return e, lack
}

func (e *Error) retryAfter(ns float64) {
	e.RetryAfter = time.Duration(min(max(ns, float64(time.Second)), float64(time.Minute)))
}

// A record is what one log record in a period is about.
type record struct {
	resource         Resource
	scope, principal string
}

// logged logs an error, if it is the first of its kind in a period, and returns it.
func (b *Budget) logged(s *Scope, e *Error) error {
	key := record{e.Resource, e.Scope, strings.TrimPrefix(s.principal, "\x00")}
	b.mu.Lock()
	now := time.Since(b.start)
	if now >= b.nextPeriod {
		clear(b.records)
		b.nextPeriod = now + period
	}
	isFirst := !b.records[key] && len(b.records) < maxRecords
	if isFirst {
		b.records[key] = true
	}
	b.mu.Unlock()
	if isFirst {
		b.limits.Logger.LogAttrs(context.Background(), slog.LevelWarn, "budget: reservation refused",
			slog.String("resource", e.Resource.String()), slog.String("scope", e.Scope),
			slog.String("principal", key.principal), slog.Int64("limit", e.Limit), slog.Int64("used", e.Used))
	}
	return e
}

// countRequests takes n tokens from the bucket of a principal.
func (b *Budget) countRequests(s *Scope, n int64) error {
	if b.limits.RequestRate <= 0 {
		return nil
	}
	interval, burst := float64(time.Second)/b.limits.RequestRate, int64(b.limits.RequestBurst)
	key := maphash.String(b.seed, s.principal)
	b.mu.Lock()
	now := time.Since(b.start)
	if len(b.buckets) >= maxBuckets && now >= b.nextSweep {
		b.nextSweep = now + time.Second
		maps.DeleteFunc(b.buckets, func(_ uint64, at time.Duration) bool { return at <= now })
	}
	if _, ok := b.buckets[key]; !ok && len(b.buckets) >= maxBuckets {
		key = 0
	}
	full := max(b.buckets[key], now)
	lack := float64(full-now) + float64(n-burst)*interval // ns
	if lack <= 0 {
		b.buckets[key] = full + time.Duration(float64(n)*interval)
	}
	b.mu.Unlock()
	if lack <= 0 {
		return nil
	}
	e := &Error{Resource: Requests, Scope: s.parent.scope, Limit: burst, Used: burst}
	e.retryAfter(lack)
	return b.logged(s, e)
}

// A Usage is the use of a resource in one scope: by the session or the principal with
// the highest use, or by all. A Limit of -1 means no bound.
type Usage struct {
	Resource, Scope string
	Used, Limit     int64
}

// Usage returns the present use of each resource, except the requests, in the scopes
// "session", "principal" and "all".
func (b *Budget) Usage() []Usage {
	var list []Usage
	add := func(r Resource, scope string, used, limit int64) {
		if limit == math.MaxInt64 {
			limit = -1
		}
		list = append(list, Usage{Resource: r.String(), Scope: scope, Used: used, Limit: limit})
	}
	for i, u := range b.usage() {
		r := Resource(i)
		add(r, "session", u.used.Session, u.limit.Session)
		add(r, "principal", u.used.Principal, u.limit.Principal)
		add(r, "all", u.used.All, u.limit.All)
	}
	return list
}

// usage is the use of one resource. No bound is math.MaxInt64.
type usage struct{ limit, used Limit }

func (b *Budget) usage() []usage {
	b.mu.Lock()
	defer b.mu.Unlock()
	list := make([]usage, Requests)
	for r := range list {
		list[r].limit = Limit{b.bounds[0][r], b.bounds[1][r], b.bounds[2][r]}
		list[r].used.All = b.all.use[r].used
		for _, p := range b.principals {
			if p := p.Value(); p != nil {
				list[r].used.Principal = max(list[r].used.Principal, p.use[r].used)
			}
		}
		for key, s := range b.scopes {
			if s := s.Value(); s != nil && key.session != "" {
				list[r].used.Session = max(list[r].used.Session, s.use[r].used)
			}
		}
	}
	return list
}
