// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package sse

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestWriterOverHTTP(t *testing.T) {
	ts := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		sw := NewWriter(w, nil)
		defer sw.Close()
		for _, name := range []string{"stream", "stream", "done"} {
			if err := sw.Send(r.Context(), name, "", []byte(`{}`)); err != nil {
				t.Error(err)
			}
		}
	}))
	defer ts.Close()
	res, err := ts.Client().Get(ts.URL)
	require.NoError(t, err)
	defer res.Body.Close()
	require.Equal(t, http.StatusOK, res.StatusCode)
	require.Equal(t, "text/event-stream", res.Header.Get("Content-Type"))
	require.Equal(t, "no-cache", res.Header.Get("Cache-Control"))
	require.Equal(t, "no", res.Header.Get("X-Accel-Buffering"))
	all, _ := readAll(NewReader(res.Body, nil))
	require.Equal(t, []got{{Name: "stream", Data: "{}"}, {Name: "stream", Data: "{}"}, {Name: "done", Data: "{}"}}, all)
}
