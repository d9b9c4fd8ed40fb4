// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package sparing

import (
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func TestTooLarge(t *testing.T) {
	calls := 0
	big := &Transport{Pause: time.Hour, Next: roundTrip(func(*http.Request) (*http.Response, error) {
		calls++
		w := httptest.NewRecorder()
		w.WriteString(strings.Repeat("x", MaxDocument+1))
		return w.Result(), nil
	})}
	for range 3 {
		_, err := (&http.Client{Transport: big}).Get("https://login.example/keys")
		require.ErrorIs(t, err, ErrTooLarge)
	}
	require.Equal(t, 1, calls)
}

// TestPause: within the pause there is one request for a URL, whose answer or
// error stands; behind it there is a new one.
func TestPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var fault error
		calls := 0
		client := &http.Client{Transport: &Transport{Pause: time.Minute, Next: roundTrip(func(r *http.Request) (*http.Response, error) {
			calls++
			if fault != nil {
				return nil, fault
			}
			w := httptest.NewRecorder()
			w.Header().Set("X-Path", r.URL.Path)
			w.WriteHeader(http.StatusTeapot)
			w.WriteString("the body")
			return w.Result(), nil
		})}}
		get := func(path string) {
			t.Helper()
			res, err := client.Get("https://login.example" + path)
			require.NoError(t, err)
			body, err := io.ReadAll(res.Body)
			require.NoError(t, err)
			require.Equal(t, "the body "+path, string(body)+" "+res.Header.Get("X-Path"))
			require.Equal(t, http.StatusTeapot, res.StatusCode)
		}
		get("/a")
		get("/a")
		require.Equal(t, 1, calls)
		get("/b")
		require.Equal(t, 2, calls)
		time.Sleep(time.Minute)
		fault = errors.New("connection refused")
		for range 2 {
			_, err := client.Get("https://login.example/a")
			require.ErrorIs(t, err, fault)
		}
		require.Equal(t, 3, calls)
		time.Sleep(time.Minute)
		fault = nil
		get("/a")
		require.Equal(t, 4, calls)
	})
}
