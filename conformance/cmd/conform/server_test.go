// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/conformance"
)

// serverVariable makes the test binary a server under test. Its value is the fault, or "none".
const serverVariable = "CONFORM_TEST_SERVER"

// A rewriter changes the requests and responses of a server.
type rewriter struct {
	http.Handler
	request  func([]byte) []byte
	response func([]byte) []byte
}

func (h *rewriter) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	if h.request != nil {
		body = h.request(body)
	}
	r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
	if h.response == nil {
		h.Handler.ServeHTTP(w, r)
		return
	}
	rec := httptest.NewRecorder()
	h.Handler.ServeHTTP(rec, r)
	for name, values := range rec.Header() {
		w.Header()[name] = values
	}
	w.Header().Del("Content-Length")
	w.WriteHeader(rec.Code)
	_, _ = w.Write(h.response(rec.Body.Bytes()))
}

// serverFaults are deliberate mistakes of a server.
var serverFaults = map[string]func(http.Handler) http.Handler{
	"none": func(h http.Handler) http.Handler { return h },
	"loses a cancel": func(h http.Handler) http.Handler {
		return &rewriter{Handler: h, request: func(b []byte) []byte {
			return bytes.Replace(b, []byte(`"task.cancel"`), []byte(`"task.info"`), 1)
		}}
	},
	"done after an error": func(h http.Handler) http.Handler {
		return &rewriter{Handler: h, response: func(b []byte) []byte {
			if bytes.Contains(b, []byte("event: error")) {
				b = append(b, "event: done\ndata: {\"chatId\":\"c\",\"status\":\"CLOSED\"}\n\n"...)
			}
			return b
		}}
	},
	"never answers": func(http.Handler) http.Handler {
		return http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
	},
}

// TestServer is the server under test, in a test binary that is started as one.
func TestServer(t *testing.T) {
	name := os.Getenv(serverVariable)
	if name == "" {
		t.Skip("the conform command runs this")
	}
	h, end, err := conformance.NewFixture("arc", os.Getenv("CONFORM_FIXTURE"), os.Getenv("CONFORM_SINK"))
	require.NoError(t, err)
	defer func() { _ = end() }()
	s := httptest.NewServer(serverFaults[name](h))
	fmt.Fprintf(testeeOutput, "{\"url\":%q}\n", s.URL+"/arc")
	select {}
}

func conformServer(t *testing.T, fault string, args ...string) (status int, stdout, stderr string) {
	t.Helper()
	t.Setenv(testeeVariable, "server")
	t.Setenv(serverVariable, fault)
	var out, errs bytes.Buffer
	args = append(append([]string{"server", "-protocol", "arc", "-o", "json"}, args...), "--", os.Args[0], "-test.run", "^TestServer$")
	status = run(args, &out, &errs)
	return status, out.String(), errs.String()
}

// The server of package arc passes in real time, and three in four of all cases of a
// server can run so.
func TestServerOwnPackage(t *testing.T) {
	all, live := 0, 0
	for _, c := range conformance.Embedded().Cases() {
		if c.Protocol == "arc" && c.Op == "serve_script" {
			all++
			if c.NotLive(maxSlowWait, "") == "" {
				live++
			}
		}
	}
	require.GreaterOrEqual(t, live*4, all*3, "%d of %d cases", live, all)
	status, stdout, stderr := conformServer(t, "none", "-baseline", baseline)
	require.Equal(t, exitPassed, status, stdout+stderr)
	require.Contains(t, stdout, "10 cases did not run: several processes")
}

// A server with a mistake fails a case that names the broken requirement.
func TestServerFindsFaults(t *testing.T) {
	for _, tt := range []struct{ fault, suite, requirement string }{
		{"loses a cancel", "conduct", "ARC-098"},
		{"done after an error", "own-server", "ARC-D22"},
		{"never answers", "conduct", "ARC-070"},
	} {
		t.Run(tt.fault, func(t *testing.T) {
			status, stdout, stderr := conformServer(t, tt.fault, "-suite", tt.suite, "-timeout", "3s")
			require.Equal(t, exitFailed, status, stderr)
			var report struct {
				Requirements []conformance.RequirementReport
			}
			require.NoError(t, json.Unmarshal([]byte(stdout), &report))
			var failed []string
			for _, q := range report.Requirements {
				if q.Verdict == conformance.StatusFailed {
					failed = append(failed, q.ID)
				}
			}
			require.Contains(t, failed, tt.requirement)
		})
	}
}

// A server that runs already is tested with the cases of its fixture.
func TestServerURL(t *testing.T) {
	h, end, err := conformance.NewFixture("arc", "auth", "")
	require.NoError(t, err)
	defer func() { _ = end() }()
	s := httptest.NewServer(h)
	defer s.Close()
	var out, errs bytes.Buffer
	args := []string{"server", "-protocol", "arc", "-baseline", baseline, "-url", s.URL + "/arc", "-fixture", "auth"}
	require.Equal(t, exitPassed, run(args, &out, &errs), out.String()+errs.String())
	require.Contains(t, out.String(), "cases did not run: own option")
}

func TestServerErrors(t *testing.T) {
	for _, tt := range []struct {
		sentence string
		args     []string
	}{
		{"server mode needs one -protocol", []string{"server", "--", "true"}},
		{"the servers of a2e cannot be tested", []string{"server", "-protocol", "a2e", "--", "true"}},
		{"-url: only in server mode", []string{"codec", "-url", "http://127.0.0.1:1", "--", "true"}},
	} {
		var out, errs bytes.Buffer
		require.Equal(t, exitNotRun, run(tt.args, &out, &errs))
		require.Contains(t, errs.String(), tt.sentence)
	}
	var out, errs bytes.Buffer
	start := time.Now()
	require.Equal(t, exitFailed, run([]string{"server", "-protocol", "arc", "-suite", "conduct", "--", "true"}, &out, &errs))
	require.Contains(t, out.String(), `the server wrote "" to its standard output`)
	require.Less(t, time.Since(start), 10*time.Second)
	require.False(t, strings.Contains(out.String(), "panic"))
}
