// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package httpx

import (
	"bytes"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/internal/race"
)

const jsonType = "application/json"

// exchangeAllocs returns the allocations of a request and its response, client and server, by do
// and serve.
func exchangeAllocs(t *testing.T, serve http.HandlerFunc, do func(c *http.Client, u *url.URL) ([]byte, error)) float64 {
	t.Helper()
	ts := httptest.NewServer(serve)
	defer ts.Close()
	u, err := url.Parse(ts.URL)
	require.NoError(t, err)
	call := func() {
		data, err := do(ts.Client(), u)
		require.NoError(t, err)
		require.Len(t, data, 500)
	}
	for range 20 { // connections and pools
		call()
	}
	return testing.AllocsPerRun(300, call)
}

// A request costs at most three allocations more than with package net/http alone.
func TestRequestAddsAtMostThreeAllocations(t *testing.T) {
	if race.Enabled {
		t.Skip("the race detector allocates")
	}
	body := bytes.Repeat([]byte("x"), 500)
	complete := http.Header{"Content-Type": {jsonType}, "Accept": {jsonType}, "Accept-Encoding": {"identity"}}
	plain := exchangeAllocs(t, func(w http.ResponseWriter, r *http.Request) {
		data, _ := io.ReadAll(r.Body)
		w.Header().Set("Content-Type", jsonType)
		_, _ = w.Write(data)
	}, func(c *http.Client, u *url.URL) ([]byte, error) {
		res, err := c.Do(&http.Request{Method: http.MethodPost, URL: u, Host: u.Host, ContentLength: int64(len(body)),
			Header: complete, Body: io.NopCloser(bytes.NewReader(body))})
		require.NoError(t, err)
		defer res.Body.Close()
		return io.ReadAll(res.Body)
	})

	var client *Client
	header, accept := http.Header{"Content-Type": {jsonType}}, []string{jsonType}
	ours := exchangeAllocs(t, func(w http.ResponseWriter, r *http.Request) {
		_, err := CheckRequest(r, accept, "X-Path")
		var data []byte
		if err == nil {
			data, err = Body(w, r, 1<<20, time.Minute)
		}
		if err == nil {
			err = Respond(w, http.StatusOK, jsonType, data, time.Minute)
		}
		if err != nil {
			t.Error(err)
		}
	}, func(c *http.Client, u *url.URL) ([]byte, error) {
		if client == nil {
			client = NewClient(&ClientOptions{HTTPClient: c})
		}
		data, _, err := client.Fetch(t.Context(), &Request{Op: "test", Method: http.MethodPost, URL: u, Header: header,
			Body: body, Accept: accept})
		return data, err
	})
	require.LessOrEqual(t, ours, plain+3)
	t.Logf("allocations: %v, with net/http alone %v", ours, plain)
}
