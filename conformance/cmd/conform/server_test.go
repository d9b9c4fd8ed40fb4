// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"cmp"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/conformance"
	"github.com/fivewire/fivewire/internal/race"
)

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
	"loses a cancel": func(h http.Handler) http.Handler {
		return &rewriter{Handler: h, request: func(b []byte) []byte {
			return bytes.Replace(b, []byte(`"task.cancel"`), []byte(`"task.info"`), 1)
		}}
	},
	"reads a token in the body": func(h http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			body, err := io.ReadAll(r.Body)
			if err != nil {
				return
			}
			var members struct{ Token string }
			if json.Unmarshal(body, &members) == nil && members.Token != "" {
				r.Header.Set("Authorization", "Bearer "+members.Token)
			}
			r.Body = io.NopCloser(bytes.NewReader(body))
			h.ServeHTTP(w, r)
		})
	},
	"done after an error": func(h http.Handler) http.Handler {
		return &rewriter{Handler: h, response: func(b []byte) []byte {
			if bytes.Contains(b, []byte("event: error")) {
				b = append(b, "event: done\ndata: {\"chatId\":\"c\",\"status\":\"CLOSED\"}\n\n"...)
			}
			return b
		}}
	},
	"ignores the name of the host": func(h http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			r.Host = "localhost"
			r.Header.Del("Origin")
			h.ServeHTTP(w, r)
		})
	},
	"mixes the sessions": func(h http.Handler) http.Handler {
		var first atomic.Value
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if id := r.Header.Get("X-Session-Id"); id != "" && !first.CompareAndSwap(nil, id) {
				r.Header.Set("X-Session-Id", first.Load().(string))
			}
			h.ServeHTTP(w, r)
		})
	},
	"takes every caller for an administrator": func(h http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			r.Header.Set("Authorization", "Bearer tok-user-1")
			h.ServeHTTP(w, r)
		})
	},
	"sends a stream as JSON": func(h http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			r.Header.Set("Accept", "application/json")
			h.ServeHTTP(w, r)
		})
	},
	"runs a repeated request twice": func(h http.Handler) http.Handler {
		var count atomic.Int64
		return &rewriter{Handler: h, request: func(b []byte) []byte {
			return bytes.Replace(b, []byte("mid:00000000"), fmt.Appendf(nil, "mid:%08d", count.Add(1)), 1)
		}}
	},
	"answers before the write is stored": func(h http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Method == http.MethodPost && !strings.Contains(r.URL.Path, "/ack") {
				w.Header().Set("Content-Type", "application/json")
				w.WriteHeader(http.StatusAccepted)
				fmt.Fprint(w, `{"status":"queued","envelope_id":"e","seq":1}`)
				return
			}
			h.ServeHTTP(w, r)
		})
	},
	"forgets a replay": func(h http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			rec := httptest.NewRecorder()
			h.ServeHTTP(rec, r)
			if rec.Code == http.StatusConflict {
				rec.Code = http.StatusOK
			}
			w.WriteHeader(rec.Code)
			_, _ = w.Write(rec.Body.Bytes())
		})
	},
	"never answers": func(http.Handler) http.Handler {
		return http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
	},
}

// programs is the folder of the programs that build builds.
var programs string

var build = sync.OnceValue(func() error {
	out, err := exec.Command("go", "build", "-o", programs+string(filepath.Separator), "../../fixtures/...").CombinedOutput()
	if err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	return nil
})

// program returns the path of a program of the folder fixtures.
func program(t *testing.T, protocol string) string {
	t.Helper()
	require.NoError(t, build())
	return filepath.Join(programs, protocol)
}

// startProgram starts a server with the environment, and returns its URL and the function that ends it.
func startProgram(path string, env ...string) (url string, end func(), err error) {
	cmd := exec.Command(path)
	cmd.Env, cmd.Stderr = append(os.Environ(), env...), os.Stderr
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		return "", nil, err
	}
	var started struct{ URL string }
	err = json.NewDecoder(out).Decode(&started)
	return started.URL, func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }, err
}

// TestServer is a server with a mistake, in a test binary that is started as one: a proxy of the right one.
func TestServer(t *testing.T) {
	if flag.NArg() == 0 {
		t.Skip("the conform command runs this")
	}
	path, name := flag.Arg(0), flag.Arg(1)
	base, end, err := startProgram(path)
	require.NoError(t, err)
	defer end()
	target, err := url.Parse(base)
	require.NoError(t, err)
	s := httptest.NewServer(serverFaults[name](httputil.NewSingleHostReverseProxy(target)))
	fmt.Fprintf(testeeOutput, "{\"url\":%q}\n", s.URL)
	select {}
}

// some returns the list, and with the race detector its first elements: each process of these tests takes
// long to start then.
func some[E any](list ...E) []E {
	if race.Enabled {
		return list[:2]
	}
	return list
}

func conformServer(t *testing.T, protocol, fault string, args ...string) (status int, stdout, stderr string) {
	t.Helper()
	server := []string{program(t, protocol)}
	if fault != "none" {
		server = self("TestServer", server[0], fault)
	}
	var out, errs bytes.Buffer
	args = slices.Concat([]string{"server", "-protocol", protocol, "-o", "json"}, args, []string{"--"}, server)
	status = run(args, nil, &out, &errs)
	return status, out.String(), errs.String()
}

// The servers of this module pass in real time, and most of the cases of a server can run so.
func TestServerOwnPackage(t *testing.T) {
	readme, err := os.ReadFile("../../README.md")
	require.NoError(t, err)
	var allOf5, liveOf5 atomic.Int64
	for _, tt := range []struct {
		protocol  string
		ops       []string
		live, all int // at least so many of so many cases
		note      string
		suite     string // the one suite with the race detector
		transport string
	}{
		{"arc", []string{"serve_script"}, 3, 4, "11 cases did not run: several processes", "conduct", ""},
		{"a2e", []string{"host_script", "http_script"}, 3, 4, "2 cases did not run: several processes", "http", ""},
		{"a2e", []string{"host_script", "http_script"}, 3, 5, "own option, ", "lifecycle", "stdio"},
		{"altar", []string{"host_script"}, 3, 4, "2 cases did not run: several processes", "scripts", ""},
		{"altar", []string{"host_script"}, 3, 5, "own option, ", "scripts", "tcp"},
		{"accp", []string{"http-script", "ws-script"}, 3, 4, "8 cases did not run: clock", "http", ""},
		{"air", []string{"inbox_script", "relay_script"}, 2, 3, "6 cases did not run: several processes", "conduct", ""},
	} {
		t.Run(tt.protocol+" "+tt.transport, func(t *testing.T) {
			t.Parallel()
			all, live := 0, 0
			for _, c := range conformance.Embedded().Cases() {
				if c.Protocol == tt.protocol && slices.Contains(tt.ops, c.Op) {
					all++
					if c.NotLive(maxSlowWait, conformance.LiveOptions{Transport: tt.transport}) == "" {
						live++
					}
				}
			}
			require.GreaterOrEqual(t, live*tt.all, all*tt.live, "%d of %d cases", live, all)
			if tt.transport == "" {
				allOf5.Add(int64(all))
				liveOf5.Add(int64(live))
			}
			require.Regexp(t, fmt.Sprintf("(?m)^\\| `%s` .*\\| %d of %d \\|$", tt.protocol, live, all), string(readme))
			args := []string{"-baseline", baseline, "-transport", tt.transport}
			if race.Enabled {
				args = append(args, "-suite", tt.suite)
			}
			status, stdout, stderr := conformServer(t, tt.protocol, "none", args...)
			require.Equal(t, exitPassed, status, stdout+stderr)
			if !race.Enabled {
				require.Contains(t, stdout, tt.note)
			}
		})
	}
	t.Cleanup(func() { // after the parallel tests
		require.GreaterOrEqual(t, liveOf5.Load()*4, allOf5.Load()*3, "%d of %d cases", liveOf5.Load(), allOf5.Load())
	})
}

// A server with a mistake fails a case that names the broken requirement.
func TestServerFindsFaults(t *testing.T) {
	type fault struct{ protocol, fault, suite, requirement string }
	for _, tt := range some([]fault{
		{"accp", "runs a repeated request twice", "http", "ACCP-D72"},
		{"a2e", "mixes the sessions", "http", "A2E-D61"},
		{"arc", "loses a cancel", "conduct", "ARC-098"},
		{"arc", "reads a token in the body", "conduct", "ARC-168"},
		{"arc", "done after an error", "server", "ARC-D22"},
		{"arc", "never answers", "conduct", "ARC-070"},
		{"a2e", "ignores the name of the host", "http-edges", "A2E-D41"},
		{"altar", "takes every caller for an administrator", "host", "ALT-D20"},
		{"altar", "sends a stream as JSON", "host", "ALT-D05"},
		{"accp", "never answers", "http", "ACCP-154"},
		{"air", "answers before the write is stored", "relay", "AIR-D60"},
		{"air", "forgets a replay", "receiving", "AIR-042"},
	}...) {
		t.Run(tt.protocol+" "+tt.fault, func(t *testing.T) {
			t.Parallel() // most of it is waiting
			status, stdout, stderr := conformServer(t, tt.protocol, tt.fault, "-suite", tt.suite, "-timeout", "1500ms")
			require.Equal(t, exitFailed, status, stderr)
			require.Contains(t, failedRequirements(t, stdout), tt.requirement)
		})
	}
}

// A server that runs already is tested with the cases of its fixture, any number of times.
func TestServerURL(t *testing.T) {
	const inbox = `{"server":"inbox","self":{"did":"did:wba:agentidentityregistry.org:agents:AIR-A1B2-C3D4-E5F6",` +
		`"seedHex":"3e23e8160039594a33894f6564e1b1348bbd7a0088d42c4acb73eeaed59c009d"},"profile":"interop"}`
	type server struct {
		protocol, suite, fixture string
		minCases                 int
		transport                string
	}
	for _, tt := range some([]server{
		{"accp", "http", "", 8, ""}, {"air", "relaying", "", 60, ""}, {"air", "receiving", inbox, 20, ""},
		{"arc", "conduct,server,server-edges", "auth", 13, ""}, {"arc", "conduct,server,server-edges", "", 50, ""},
		{"a2e", "http,http-edges,host-edges", "", 8, ""}, {"altar", "identities,scripts", "", 20, ""}, {"altar", "host", "", 15, "tcp"},
	}...) {
		t.Run(tt.protocol, func(t *testing.T) {
			t.Parallel() // most of it is waiting
			free, err := net.Listen("tcp", "127.0.0.1:0")
			require.NoError(t, err)
			sink := free.Addr().String()
			url, end, err := startProgram(program(t, tt.protocol), "CONFORM_SINK=http://"+sink, "CONFORM_TRANSPORT="+tt.transport,
				"CONFORM_FIXTURE="+cmp.Or(tt.fixture, conformance.SharedFixture(tt.protocol)))
			require.NoError(t, err)
			defer end()
			require.NoError(t, free.Close()) // the program has another port
			if tt.transport == "" {
				url += "/path"
			}
			args := []string{"server", "-protocol", tt.protocol, "-baseline", baseline, "-suite", tt.suite, "-url", url, "-fixture", tt.fixture, "-sink", sink, "-o", "json"}
			runs := 2
			if tt.protocol == "altar" { // takes long
				runs = 1
			}
			for range runs { // with the same ids of chats, sessions, messages and agents in the cases
				var out, errs bytes.Buffer
				require.Equal(t, exitPassed, run(args, nil, &out, &errs), out.String()+errs.String())
				var report struct{ Passed int }
				require.NoError(t, json.Unmarshal(out.Bytes(), &report))
				require.GreaterOrEqual(t, report.Passed, tt.minCases)
			}
		})
	}
}

func TestServerErrors(t *testing.T) {
	for _, tt := range []struct {
		sentence string
		args     []string
	}{
		{"server mode needs one -protocol", []string{"server", "--", "true"}},
		{"-sink and -fixture: only with -url", []string{"server", "-protocol", "air", "-sink", "127.0.0.1:1", "--", "true"}},
		{"name the address where it finds them by -sink", []string{"server", "-protocol", "air", "-url", "http://127.0.0.1:1"}},
		{"client mode needs one -protocol", []string{"client", "--", "true"}},
		{"-transport pipe: want stdio or tcp", []string{"server", "-protocol", "a2e", "-transport", "pipe", "--", "true"}},
		{"-transport stdio: not in this mode", []string{"client", "-protocol", "a2e", "-transport", "stdio", "--", "true"}},
		{"the servers of arc are not tested by tcp", []string{"server", "-protocol", "arc", "-transport", "tcp", "--", "true"}},
		{"the clients of arc are not tested by tcp", []string{"client", "-protocol", "arc", "-transport", "tcp", "--", "true"}},
		{"-url: only in server mode", []string{"codec", "-url", "http://127.0.0.1:1", "--", "true"}},
		{"no server at http://127.0.0.1:1: ", []string{"server", "-protocol", "arc", "-url", "http://127.0.0.1:1"}},
		{`want one such as http://localhost:8080, got "localhost:8080"`, []string{"server", "-protocol", "arc", "-url", "localhost:8080"}},
		{"no server at http://127.0.0.1:1: ", []string{"server", "-protocol", "arc", "--", "echo", `{"url":"http://127.0.0.1:1"}`}},
		{`the server wrote "" to its standard output`, []string{"server", "-protocol", "arc", "--", "true"}},
		{"the server did not print its URL within 100ms", []string{"server", "-protocol", "arc", "-timeout", "100ms", "--", "sleep", "60"}},
		{"the server cannot be started: ", []string{"server", "-protocol", "arc", "--", "./missing"}},
	} {
		var out, errs bytes.Buffer
		require.Equal(t, exitNotRun, run(tt.args, nil, &out, &errs))
		require.Contains(t, errs.String(), tt.sentence)
	}
}

func conformClient(t *testing.T, protocol, fault string, args ...string) (status int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	args = slices.Concat([]string{"client", "-protocol", protocol, "-o", "json"}, args, []string{"--"}, self("TestTestee", fault))
	status = run(args, nil, &out, &errs)
	return status, out.String(), errs.String()
}

// The clients of this module pass against servers in another process, and most of the cases of a client can
// run so.
func TestClientOwnPackage(t *testing.T) {
	readme, err := os.ReadFile("../../README.md")
	require.NoError(t, err)
	var allOf5, liveOf5 atomic.Int64
	for _, tt := range []struct {
		protocol string
		ops      []string
		note     string

		transport string
	}{
		{"arc", []string{"client_script"}, "7 cases did not run: own option", ""},
		{"a2e", []string{"client_script"}, "4 cases did not run: clock", ""},
		{"a2e", []string{"client_script"}, "4 cases did not run: clock", "tcp"},
		{"altar", []string{"runtime_script"}, "3 cases did not run: clock", ""},
		{"altar", []string{"runtime_script"}, "3 cases did not run: clock", "tcp"},
		{"accp", []string{"client-script"}, "1 cases did not run: own option", ""},
		{"air", []string{"send_script", "poll_script"}, "2 cases did not run: several processes", ""},
	} {
		t.Run(tt.protocol+" "+tt.transport, func(t *testing.T) {
			t.Parallel()
			all, live, slow := 0, 0, 0
			for _, c := range conformance.Embedded().Cases() {
				if c.Protocol != tt.protocol || !slices.Contains(tt.ops, c.Op) {
					continue
				}
				all++
				if c.NotLiveClient(maxSlowWait) == "" {
					slow++
				}
				if c.NotLiveClient(maxWait) == "" {
					live++
				}
			}
			require.GreaterOrEqual(t, slow*4, all*3, "%d of %d cases", slow, all)
			require.Regexp(t, fmt.Sprintf("(?m)^\\| `%s` .*`CLIENT.md.*\\| %d of %d \\|$", tt.protocol, slow, all), string(readme))
			if tt.transport == "" {
				allOf5.Add(int64(all))
				liveOf5.Add(int64(live))
			}
			status, stdout, stderr := conformClient(t, tt.protocol, "none", "-baseline", baseline, "-transport", tt.transport)
			require.Equal(t, exitPassed, status, stdout+stderr)
			require.Contains(t, stdout, tt.note)
			require.Contains(t, stdout, fmt.Sprintf(`"passed": %d`, live))
		})
	}
	t.Cleanup(func() { // after the parallel tests
		require.GreaterOrEqual(t, liveOf5.Load()*4, allOf5.Load()*3, "%d of %d cases", liveOf5.Load(), allOf5.Load())
	})
}

// A client with a mistake fails a case that names the broken requirement.
func TestClientFindsFaults(t *testing.T) {
	type fault struct{ protocol, fault, suite, requirement string }
	for _, tt := range some([]fault{
		{"accp", "takes a lost answer for a refusal", "client", "ACCP-D29"},
		{"arc", "sends no token", "client", "ARC-020"},
		{"arc", "takes a cut stream for a whole one", "client", "ARC-D24"},
		{"arc", "accepts the answer to another request", "client", "ARC-D03"},
		{"a2e", "loses a cancel", "client", "A2E-D38"},
		{"altar", "never connects", "runtime", "ALT-112"},
		{"air", "takes a refusal for a delivery", "delivering", "AIR-D47"},
	}...) {
		t.Run(tt.protocol+" "+tt.fault, func(t *testing.T) {
			t.Parallel() // most of it is waiting
			status, stdout, stderr := conformClient(t, tt.protocol, tt.fault, "-suite", tt.suite, "-timeout", "3s")
			require.Equal(t, exitFailed, status, stderr)
			require.Contains(t, failedRequirements(t, stdout), tt.requirement)
		})
	}
	status, stdout, stderr := conformClient(t, "arc", "no client")
	require.Equal(t, exitFailed, status, stdout+stderr)
	require.Contains(t, stdout, `"unsupported": 11`)
	_, _, stderr = conformClient(t, "arc", "none", "-suite", "server")
	require.Contains(t, stderr, "the selection is empty")
}

// failedRequirements returns the requirements that a report counts as failed.
func failedRequirements(t *testing.T, stdout string) []string {
	t.Helper()
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
	return failed
}
