// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package fault_test

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/conformance/fault"
)

// requestFaults are the faults of one request, with the number of times it is served and the result of the client.
var requestFaults = []struct {
	action fault.Action
	served int
	fails  bool
}{
	{fault.Drop, 0, true},
	{fault.ErrorBefore, 0, true},
	{fault.Hang, 0, true},
	{fault.Delay, 1, false},
	{fault.Cut, 1, true},
	{fault.ErrorAfter, 1, true},
	{fault.Duplicate, 2, false},
	{fault.LandLater, 1, true},
	{fault.Truncate, 1, true},
	{fault.Reorder, 1, false},
}

func TestRequestHasFault(t *testing.T) {
	for _, isServer := range []bool{false, true} {
		for _, tt := range requestFaults {
			t.Run(fmt.Sprint(tt.action, " ", isServer), func(t *testing.T) {
				plan := &fault.Plan{Seed: 2, Rules: []fault.Rule{{Action: tt.action, Match: "/a", Delay: time.Millisecond}}}
				defer plan.Close()
				var served atomic.Int64
				handler := http.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					body, _ := io.ReadAll(r.Body)
					served.Add(1)
					_, _ = w.Write([]byte(strings.Repeat(string(body), 5000)))
				}))
				client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
				if isServer {
					handler = fault.Handler(handler, plan)
				} else {
					client.Transport = fault.RoundTripper(client.Transport, plan)
				}
				server := httptest.NewServer(handler)
				defer server.Close()
				for _, path := range []string{"/b", "/a"} {
					served.Store(0)
					res, err := client.Post(server.URL+path, "text/plain", strings.NewReader("x"))
					var body []byte
					if err == nil {
						body, err = io.ReadAll(res.Body)
						res.Body.Close()
					}
					plan.Flush()
					fails, want := tt.fails, tt.served
					if path == "/b" {
						fails, want = false, 1
					}
					require.Equal(t, fails, err != nil, "%s: error %v", path, err)
					require.EqualValues(t, want, served.Load(), "times that %s is served", path)
					if !fails {
						require.Len(t, body, 5000)
					}
				}
			})
		}
	}
}

func TestResponseIsCorrupted(t *testing.T) {
	plan := &fault.Plan{Rules: []fault.Rule{{Action: fault.Corrupt}}}
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, "text") })
	server := httptest.NewServer(handler)
	defer server.Close()
	client := &http.Client{Transport: fault.RoundTripper(&http.Transport{DisableKeepAlives: true}, plan)}
	res, err := client.Get(server.URL)
	require.NoError(t, err)
	body, err := io.ReadAll(res.Body)
	require.NoError(t, err)
	res.Body.Close()
	require.Len(t, body, 4)
	require.NotEqual(t, "text", string(body))
	w := httptest.NewRecorder()
	fault.Handler(handler, plan).ServeHTTP(w, httptest.NewRequest("GET", "/", nil))
	require.Len(t, w.Body.String(), 4)
	require.NotEqual(t, "text", w.Body.String())
}
