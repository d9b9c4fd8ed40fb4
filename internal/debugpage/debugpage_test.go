// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package debugpage

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/internal/budget"
	"github.com/fivewire/fivewire/internal/life"
)

func get(h http.Handler, method, target string) *httptest.ResponseRecorder {
	rec := httptest.NewRecorder()
	h.ServeHTTP(rec, httptest.NewRequest(method, target, nil))
	return rec
}

func TestPageShowsStateOfServer(t *testing.T) {
	var unready error
	h := Handler(Server{
		Name:  "arc server",
		Ready: func() error { return unready },
		Usage: func() []budget.Usage {
			return []budget.Usage{{Resource: "memory", Scope: "all", Used: 64, Limit: 256}, {Resource: "storage", Scope: "all", Used: 7, Limit: -1}}
		},
		Stuck: func() []life.StuckWork { return []life.StuckWork{{What: "task handler", Duration: 90 * time.Second}} },
	})
	rec := get(h, "GET", "/debug")
	require.Equal(t, 200, rec.Code)
	require.Equal(t, "no-store", rec.Header().Get("Cache-Control"))
	require.Equal(t, `arc server: ready

RESOURCE  SCOPE  USED  LIMIT  PERCENT
memory    all    64    256    25.0
storage   all    7     none   -

Handlers that ignore the end of their context:
task handler, 1m30s
`, rec.Body.String())

	unready = errors.New("arc: closed")
	rec = get(h, "GET", "/debug")
	require.Equal(t, 503, rec.Code)
	require.Contains(t, rec.Body.String(), "arc server: not ready: arc: closed\n")
	rec = get(h, "GET", "/debug?format=json")
	require.Equal(t, 503, rec.Code)
	require.Equal(t, "application/json", rec.Header().Get("Content-Type"))
	require.JSONEq(t, `{"name":"arc server","ready":false,"error":"arc: closed","usage":[
		{"resource":"memory","scope":"all","used":64,"limit":256},{"resource":"storage","scope":"all","used":7,"limit":null}],
		"stuck":["task handler, 1m30s"]}`, rec.Body.String())
	rec = get(h, "POST", "/debug")
	require.Equal(t, 405, rec.Code)
	require.Equal(t, "GET, HEAD", rec.Header().Get("Allow"))
}

func TestPageOfEmptyServer(t *testing.T) {
	rec := get(Handler(Server{Name: "x"}), "GET", "/?format=json")
	require.JSONEq(t, `{"name":"x","ready":true,"usage":[]}`, rec.Body.String())
	require.Equal(t, 500, get(Handler(Server{Ready: func() error { panic("ready") }}), "GET", "/").Code)
}
