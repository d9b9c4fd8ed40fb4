// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package altar

import (
	"cmp"
	"errors"
	"log/slog"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/fivewire/fivewire/internal/budget"
	"github.com/fivewire/fivewire/internal/debugpage"
	"github.com/fivewire/fivewire/internal/strictjson"
)

func (l *Limits) budget(log *slog.Logger) budget.Limits {
	return budget.Limits{
		Memory:          budget.Limit{Session: l.MaxMemoryPerSession, Principal: l.MaxMemoryPerPrincipal, All: l.MaxMemory},
		Storage:         budget.Limit{Session: l.MaxStoragePerSession, Principal: l.MaxStoragePerPrincipal, All: l.MaxStorage},
		Items:           budget.Limit{Session: -1, Principal: l.MaxItemsPerPrincipal, All: l.MaxItems},
		Work:            budget.Limit{Session: cmp.Or(l.MaxConcurrentPerSession, 1024), Principal: cmp.Or(l.MaxConcurrentPerPrincipal, 4096), All: cmp.Or(l.MaxConcurrent, 65_536)},
		Waiting:         budget.Limit{Session: l.QueueLimitPerSession, Principal: l.QueueLimitPerPrincipal, All: l.QueueLimit},
		Unauthenticated: budget.Limit{Session: -1, Principal: l.MaxUnauthenticatedPerAddress, All: l.MaxUnauthenticated},
		RequestRate:     l.RequestRate, RequestBurst: l.RequestBurst, Logger: log,
	}
}

// A Usage is the use of a resource in one scope: by the principal or the session with the highest
// use, or by all. A Limit of -1 means no bound.
type Usage struct {
	Resource, Scope string
	Used, Limit     int64
}

// Usage returns the present use of the resources of [Limits].
func (h *Host) Usage() []Usage {
	return budget.Rows[Usage](h.budget.Usage())
}

// DebugHandler returns a handler that shows an operator the result of Ready, the [Usage] table and
// the handlers that ignore the end of their context. Its status is 503 unless the host is ready.
// It authenticates no caller: serve it on an address that only operators reach.
func (h *Host) DebugHandler() http.Handler {
	return debugpage.Handler(debugpage.Server{
		Name: "altar: " + h.opts.ID, Ready: h.Ready, Usage: debugpage.Rows(h.Usage), Stuck: h.life.Stuck,
	})
}

// principalKey returns the name of a principal in the budget. Anonymous callers are principals by
// their address.
func principalKey(p principal, addr string) string {
	if p == (principal{}) {
		return budget.Anonymous(addr)
	}
	return strconv.Quote(p.tenant) + "/" + p.name
}

func (hc *hostConn) budgetKey() string { return principalKey(hc.identity.principal(), hc.addr) }

// overBudget returns the error of a refused reservation for the peer (ALT-D35), or nil.
func overBudget(code Code, reason Reason, err error) *Error {
	full, ok := errors.AsType[*budget.Error](err)
	if !ok {
		return nil
	}
	e := Errorf(code, reason, "too many resources in use: %s of the %s", full.Resource, full.Scope)
	e.Cause = err
	limit := map[budget.Resource]string{
		budget.Memory: "MaxMemory", budget.Items: "MaxItems", budget.Work: "MaxConcurrent", budget.Unauthenticated: "MaxUnauthenticated", budget.Requests: "RequestRate",
	}[full.Resource]
	switch {
	case full.Resource == budget.Requests || full.Scope == "all":
	case full.Resource == budget.Unauthenticated:
		limit += "PerAddress"
	default:
		limit += "Per" + strings.ToUpper(full.Scope[:1]) + full.Scope[1:]
	}
	for _, m := range [][2]string{{"limit", limit}, {"resource", full.Resource.String()}, {"scope", full.Scope}} {
		e = e.with(m[0], strictjson.AppendString(nil, m[1]))
	}
	return e.with("retry_after_ms", strconv.AppendInt(nil, full.RetryAfter.Milliseconds(), 10))
}

// A tombstones holds ids that must not be used again until a time: at most so many of a principal, and
// in all. Beyond that the oldest is forgotten, of the principal or of all.
type tombstones struct {
	perPrincipal, max int
	byID              map[string]tombstone
	queues            map[principal]*idQueue
	all               idQueue
	seq               uint64
}

type tombstone struct {
	p     principal
	until time.Time
	seq   uint64
}

// An idQueue holds ids in order. Ids that are not in the table any longer are skipped.
type idQueue struct {
	ids  []queuedID
	live int
}

type queuedID struct {
	id  string
	seq uint64 // of the tombstone
}

func newTombstones(perPrincipal, limit int) tombstones {
	return tombstones{perPrincipal: perPrincipal, max: limit, byID: make(map[string]tombstone), queues: make(map[principal]*idQueue)}
}

func (t *tombstones) add(id string, p principal, until time.Time) {
	t.forget(id)
	q := t.queues[p]
	if q == nil {
		q = &idQueue{}
		t.queues[p] = q
	}
	t.seq++
	t.byID[id] = tombstone{p, until, t.seq}
	for _, q := range []*idQueue{q, &t.all} {
		q.ids = append(q.ids, queuedID{id, t.seq})
		q.live++
	}
	if q.live > t.perPrincipal {
		t.forgetFirst(q)
	}
	if t.all.live > t.max {
		t.forgetFirst(&t.all)
	}
	t.compact(q)
	t.compact(&t.all)
}

// forgetFirst forgets the oldest id of a queue.
func (t *tombstones) forgetFirst(q *idQueue) {
	for len(q.ids) > 0 {
		first := q.ids[0]
		q.ids = q.ids[1:]
		if t.byID[first.id].seq == first.seq {
			t.forget(first.id)
			return
		}
	}
}

func (t *tombstones) forget(id string) {
	one, ok := t.byID[id]
	if !ok {
		return
	}
	delete(t.byID, id)
	t.all.live--
	if q := t.queues[one.p]; q != nil {
		if q.live--; q.live == 0 {
			delete(t.queues, one.p)
		}
	}
}

// compact removes skipped ids when they are more than half of a queue.
func (t *tombstones) compact(q *idQueue) {
	if len(q.ids) < 64 || len(q.ids) < 2*q.live {
		return
	}
	kept := make([]queuedID, 0, q.live)
	for _, one := range q.ids {
		if t.byID[one.id].seq == one.seq {
			kept = append(kept, one)
		}
	}
	q.ids = kept
}

// has reports whether an id is remembered, and forgets the expired ones.
func (t *tombstones) has(id string, now time.Time) bool {
	for len(t.all.ids) > 0 {
		first := t.all.ids[0]
		one := t.byID[first.id]
		if one.seq == first.seq && now.Before(one.until) {
			break
		}
		if one.seq == first.seq {
			t.forget(first.id)
		}
		t.all.ids = t.all.ids[1:]
	}
	_, ok := t.byID[id]
	return ok
}
