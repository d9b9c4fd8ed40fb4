// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package arc

import (
	"net/http"

	"github.com/fivewire/fivewire/internal/budget"
	"github.com/fivewire/fivewire/internal/debugpage"
)

// A Usage is the use of a resource in one scope: by the principal or the session with
// the highest use, or by all. A Limit of -1 means no bound.
type Usage struct {
	Resource, Scope string
	Used, Limit     int64
}

// Usage returns the present use of the resources of [Limits], and the memory of responses as "output".
func (s *Server) Usage() []Usage {
	list := debugpage.Table[Usage](s.engine.Usage())
	for _, u := range s.output.Usage() {
		if u.Resource == budget.Memory.String() && u.Scope != "session" {
			u.Resource = "output"
			list = append(list, Usage(u))
		}
	}
	return list
}

// DebugHandler returns a handler that shows an operator the result of Ready, the [Usage] table and
// the handlers that ignore the end of their context. Its status is 503 unless the server is ready.
// It authenticates no caller: serve it on an address that only operators reach.
func (s *Server) DebugHandler() http.Handler {
	return debugpage.Handler(debugpage.Server{
		Name: "arc: " + s.opts.ID, Ready: s.Ready, Usage: debugpage.Rows(s.Usage), Stuck: s.life.Stuck,
	})
}
