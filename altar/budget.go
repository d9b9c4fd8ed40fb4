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

	"github.com/fivewire/fivewire/altar/internal/core"
	"github.com/fivewire/fivewire/internal/auth"
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
	return debugpage.Table[Usage](h.budget.Usage())
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
func principalKey(p core.Principal, addr string) string {
	if p == (core.Principal{}) {
		return budget.Anonymous(addr)
	}
	return auth.Name(p.Tenant, p.Name)
}

func (hc *hostConn) budgetKey() string { return principalKey(hc.principal().principal(), hc.addr) }

// overBudget returns the error of a refused reservation for the peer (ALT-D35), or nil.
func overBudget(code Code, reason Reason, err error) *Error {
	full, ok := errors.AsType[*budget.Error](err)
	if !ok {
		return nil
	}
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
	e := Errorf(code, reason, "too many resources in use: %s of the %s, bounded by %s", full.Resource, full.Scope, limit)
	e.Cause = err
	for _, m := range [][2]string{{"limit", limit}, {"resource", full.Resource.String()}, {"scope", full.Scope}} {
		e = e.with(m[0], strictjson.AppendString(nil, m[1]))
	}
	return e.with("retry_after_ms", strconv.AppendInt(nil, full.RetryAfter.Milliseconds(), 10))
}
