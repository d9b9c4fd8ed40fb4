// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package sparing

import (
	"errors"
	"fmt"
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

// TestNotJSON: a document that is none, or may be read in two ways, is an error;
// of other answers nobody reads the body.
func TestNotJSON(t *testing.T) {
	for _, body := range []string{"", "<html>", `{"keys":[],"keys":[]}`, `{} {}`, "{\"a\":\"\xff\"}", strings.Repeat("[", 33) + strings.Repeat("]", 33)} {
		status := http.StatusOK
		client := &http.Client{Transport: &Transport{Next: roundTrip(func(*http.Request) (*http.Response, error) {
			w := httptest.NewRecorder()
			w.WriteHeader(status)
			w.WriteString(body)
			return w.Result(), nil
		})}}
		_, err := client.Get("https://login.example/keys")
		require.ErrorIs(t, err, ErrNotJSON, body)
		status = http.StatusNotFound
		res, err := client.Get("https://login.example/keys")
		require.NoError(t, err, body)
		require.Equal(t, http.StatusNotFound, res.StatusCode)
	}
}

// TestHanging: that an issuer does not answer is an answer, from the end of the
// attempt on.
func TestHanging(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		calls := 0
		client := &http.Client{Timeout: 10 * time.Second, Transport: &Transport{Pause: time.Minute, Next: roundTrip(func(r *http.Request) (*http.Response, error) {
			calls++
			<-r.Context().Done()
			return nil, r.Context().Err()
		})}}
		get := func() {
			t.Helper()
			_, err := client.Get("https://login.example/keys")
			require.Error(t, err)
		}
		get()
		time.Sleep(59 * time.Second)
		get()
		require.Equal(t, 1, calls)
		time.Sleep(time.Second)
		get()
		require.Equal(t, 2, calls)
	})
}

// TestForgets: answers that are of no use any more are not kept.
func TestForgets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &Transport{Pause: time.Minute, Next: roundTrip(func(*http.Request) (*http.Response, error) {
			w := httptest.NewRecorder()
			w.WriteString("{}")
			return w.Result(), nil
		})}
		for n := range 100 {
			_, err := (&http.Client{Transport: s}).Get(fmt.Sprint("https://login.example/keys?signature=", n))
			require.NoError(t, err)
			time.Sleep(20 * time.Second)
		}
		require.LessOrEqual(t, len(s.known), 3)
	})
}
