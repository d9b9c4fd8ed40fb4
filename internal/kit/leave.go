// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package kit

import (
	"context"
	"io"
	"net/http"
	"strings"
	"testing"
)

// CheckLeaves fails unless the responses of a handler end their connection from the shutdown on, and not before: a
// client whose request a server refuses then reaches another server behind the same address.
func CheckLeaves(t *testing.T, h http.Handler, path string, shutdown func(ctx context.Context) error) {
	t.Helper()
	checkLeaves(t, h, shutdown, func(url string) (*http.Request, error) {
		return http.NewRequestWithContext(t.Context(), http.MethodGet, url+path, http.NoBody)
	})
}

// CheckPostLeaves is CheckLeaves with a POST of JSON that succeeds before the shutdown.
func CheckPostLeaves(t *testing.T, h http.Handler, header http.Header, body string, shutdown func(ctx context.Context) error) {
	t.Helper()
	checkLeaves(t, h, shutdown, func(url string) (*http.Request, error) {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, strings.NewReader(body))
		if err == nil {
			req.Header = header.Clone()
			req.Header.Set("Content-Type", "application/json")
			req.Header.Set("Accept", "application/json, text/event-stream")
		}
		return req, err
	})
}

func checkLeaves(t *testing.T, h http.Handler, shutdown func(ctx context.Context) error, request func(url string) (*http.Request, error)) {
	t.Helper()
	web := Serve(t, "kit", http.HandlerFunc(h.ServeHTTP)) // the caller closes h
	leaves := func() (status int, isLast bool) {
		req, err := request("http://localhost")
		if err != nil {
			t.Fatal(err)
		}
		res, err := web.Client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = res.Body.Close() }()
		if _, err := io.Copy(io.Discard, res.Body); err != nil {
			t.Fatal(err)
		}
		if req.Method == http.MethodGet {
			return http.StatusOK, res.Close
		}
		return res.StatusCode, res.Close
	}
	if status, isLast := leaves(); isLast || status != http.StatusOK {
		t.Error("the connection ended before the shutdown, or the request failed:", status)
	}
	if err := shutdown(t.Context()); err != nil {
		t.Error(err)
	}
	if _, isLast := leaves(); !isLast {
		t.Error("the connection continues after the shutdown")
	}
}
