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
	checkLeaves(t, h, shutdown, func() (*http.Request, error) {
		return http.NewRequestWithContext(t.Context(), http.MethodGet, "http://localhost"+path, http.NoBody)
	})
}

// CheckPostLeaves is CheckLeaves with a POST of JSON, which has to succeed before the shutdown. It returns the status after
// it.
func CheckPostLeaves(t *testing.T, h http.Handler, header http.Header, body string, shutdown func(ctx context.Context) error) int {
	t.Helper()
	before, after := checkLeaves(t, h, shutdown, func() (*http.Request, error) {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://localhost", strings.NewReader(body))
		if err == nil {
			req.Header = header.Clone()
			req.Header.Set("Content-Type", "application/json")
			req.Header.Set("Accept", "application/json, text/event-stream")
		}
		return req, err
	})
	if before != http.StatusOK {
		t.Error("the request before the shutdown failed:", before)
	}
	return after
}

// checkLeaves returns the statuses before and after the shutdown.
func checkLeaves(t *testing.T, h http.Handler, shutdown func(ctx context.Context) error, request func() (*http.Request, error)) (before, after int) {
	t.Helper()
	web := Serve(t, "kit", http.HandlerFunc(h.ServeHTTP)) // the caller closes h
	send := func() (status int, isLast bool) {
		req, err := request()
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
		return res.StatusCode, res.Close
	}
	before, isLast := send()
	if isLast {
		t.Error("the connection ended before the shutdown")
	}
	if err := shutdown(t.Context()); err != nil {
		t.Error(err)
	}
	if after, isLast = send(); !isLast {
		t.Error("the connection continues after the shutdown")
	}
	return before, after
}
