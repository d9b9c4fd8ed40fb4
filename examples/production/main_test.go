// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/arc"
)

const (
	asProgram = "PRODUCTION_PROGRAM" // makes the test binary the program
	token     = "a-token-of-a-caller-of-the-test-0123456789"
	agent     = "digest-01"
	tasks     = 6 // for each instance
)

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" {
		main()
		return
	}
	os.Exit(m.Run())
}

// A backend makes digests after its gate has opened, one for each key.
type backend struct {
	*httptest.Server
	gate    chan struct{}
	mu      sync.Mutex
	waiting map[string]int // requests by text
	effects map[string]int // by text
	keys    map[string]string
}

func newBackend(t *testing.T) *backend {
	b := &backend{gate: make(chan struct{}), waiting: map[string]int{}, effects: map[string]int{}, keys: map[string]string{}}
	b.Server = httptest.NewServer(b)
	t.Cleanup(b.Close)
	return b
}

func (b *backend) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	text, key := string(body), r.Header.Get("Idempotency-Key")
	b.mu.Lock()
	b.waiting[text]++
	b.mu.Unlock()
	if key == "" && !strings.HasPrefix(text, "wait") { // a word of a chat
		fmt.Fprint(w, "digest of "+text)
		return
	}
	select {
	case <-b.gate:
	case <-r.Context().Done():
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if key == "" {
		fmt.Fprint(w, "digest of "+text)
		return
	}
	if b.keys[key] == "" {
		b.keys[key] = text
		b.effects[text]++
	}
	fmt.Fprint(w, "digest of "+b.keys[key])
}

// requested reports whether the backend has had n requests for each text.
func (b *backend) requested(n int, texts ...string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, text := range texts {
		if b.waiting[text] < n {
			return false
		}
	}
	return true
}

// An instance is a process that runs the program.
type instance struct {
	*exec.Cmd
	addr     string
	out, log bytes.Buffer
	logged   chan struct{}
}

// A service is two instances on one store.
type service struct {
	one, two *instance
	backend  *backend
}

func startService(t *testing.T, args ...string) *service {
	dir := t.TempDir()
	tokens := filepath.Join(dir, "tokens.txt")
	require.NoError(t, os.WriteFile(tokens, []byte("planner "+token+"\n"), 0o600))
	b := newBackend(t)
	args = append([]string{"-addr", "localhost:0", "-store", filepath.Join(dir, "state.db"), "-tokens", tokens,
		"-backend", b.URL, "-lease", "2s", "-drain", "0s", "-grace", "1m", "-telemetry"}, args...)
	return &service{one: start(t, args), two: start(t, args), backend: b}
}

func start(t *testing.T, args []string) *instance {
	t.Helper()
	exe, err := os.Executable()
	require.NoError(t, err)
	p := &instance{Cmd: exec.Command(exe, args...), logged: make(chan struct{})}
	p.Env = append(os.Environ(), asProgram+"=1")
	p.Stdout = &p.out
	log, err := p.StderrPipe()
	require.NoError(t, err)
	require.NoError(t, p.Start())
	t.Cleanup(func() {
		if p.ProcessState == nil {
			_ = p.Process.Kill()
			_ = p.wait()
		}
	})
	lines := bufio.NewScanner(io.TeeReader(log, &p.log))
	for p.addr == "" && lines.Scan() {
		if m := regexp.MustCompile(`"url":"http://([^/]+)/`).FindStringSubmatch(lines.Text()); m != nil {
			p.addr = m[1]
		}
	}
	go func() {
		defer close(p.logged)
		for lines.Scan() {
		}
	}()
	require.NotEmpty(t, p.addr, "the program does not serve")
	return p
}

// wait waits for the end of the process and of its log.
func (p *instance) wait() error {
	<-p.logged
	return p.Wait()
}

// probe returns the status of a probe, as an orchestrator sees it.
func (p *instance) probe(path string) (int, error) {
	c := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: 10 * time.Second}
	res, err := c.Get("http://" + p.addr + path)
	if err != nil {
		return 0, err
	}
	return res.StatusCode, res.Body.Close()
}

// client returns a client of some instances behind one name: a connection goes to the first that is ready, or else to
// the last.
func client(t *testing.T, token string, instances ...*instance) *arc.Client {
	t.Helper()
	dial := func(ctx context.Context, network, _ string) (net.Conn, error) {
		last := len(instances) - 1
		for _, p := range instances[:last] {
			if status, err := p.probe("/readyz"); err == nil && status == http.StatusOK {
				return new(net.Dialer).DialContext(ctx, network, p.addr)
			}
		}
		return new(net.Dialer).DialContext(ctx, network, instances[last].addr)
	}
	opts := &arc.ClientOptions{Idempotent: true, Retry: &arc.RetryPolicy{MaxAttempts: 10},
		MaxResumes: 10, HTTPClient: &http.Client{Transport: &http.Transport{DialContext: dial, DisableKeepAlives: true}}}
	if token != "" {
		opts.TokenSource = arc.StaticTokenSource(token)
	}
	c, err := arc.NewClient("http://localhost/arc", "planner-01", opts)
	require.NoError(t, err)
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// create creates tasks and returns their ids by text.
func create(ctx context.Context, t *testing.T, c *arc.Client, name string) (ids map[string]string, texts []string) {
	t.Helper()
	ids = make(map[string]string)
	for i := range tasks {
		text := fmt.Sprintf("text %d for %s", i, name)
		task, err := c.CreateTask(ctx, agent, &arc.CreateTaskParams{InitialMessage: arc.UserText(text)}, nil)
		require.NoError(t, err)
		ids[text], texts = task.ID, append(texts, text)
	}
	return ids, texts
}

// requireResults waits for the end of tasks. Each has one result, of one effect.
func (s *service) requireResults(ctx context.Context, t *testing.T, c *arc.Client, ids map[string]string) {
	t.Helper()
	for text, id := range ids {
		outcome, err := c.WaitTask(ctx, agent, id, &arc.WaitOptions{MaxPollInterval: time.Second})
		require.NoError(t, err)
		require.Equal(t, arc.TaskCompleted, outcome.Task.Status, text)
		require.Len(t, outcome.Task.Artifacts, 1, text)
		require.Equal(t, "digest of "+text, outcome.Task.Artifacts[0].Parts[0].Content)
	}
	s.backend.mu.Lock()
	defer s.backend.mu.Unlock()
	for text := range ids {
		require.Equal(t, 1, s.backend.effects[text], text)
	}
}

// An instance that has to end while its tasks run becomes unready, finishes the tasks, and only then refuses
// connections. The other one serves the callers.
func TestTermination(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	s := startService(t)
	ids, texts := create(ctx, t, client(t, token, s.one), "one")
	more, others := create(ctx, t, client(t, token, s.two), "two")
	require.Eventually(t, func() bool { return s.backend.requested(1, append(texts, others...)...) }, time.Minute, time.Millisecond)

	require.NoError(t, s.one.Process.Signal(syscall.SIGTERM))
	require.Eventually(t, func() bool {
		status, err := s.one.probe("/readyz")
		require.NoError(t, err, "a connection is refused before readiness ends")
		return status == http.StatusServiceUnavailable
	}, time.Minute, time.Millisecond)
	status, err := s.one.probe("/healthz")
	require.NoError(t, err)
	require.Equal(t, http.StatusOK, status, "a process that shuts down is alive")
	c := client(t, token, s.one, s.two)
	later, _ := create(ctx, t, c, "the name")

	close(s.backend.gate)
	require.NoError(t, s.one.wait(), "%s", &s.one.log)
	_, err = s.one.probe("/readyz")
	require.ErrorIs(t, err, syscall.ECONNREFUSED)
	for _, m := range []map[string]string{ids, more, later} {
		s.requireResults(ctx, t, c, m)
	}
	for _, text := range texts {
		require.False(t, s.backend.requested(2, text), "another instance began a task that was finished")
	}
	require.Contains(t, s.one.out.String(), `"TraceID"`, "no spans")
	require.Contains(t, s.one.out.String(), `"Metrics"`, "no metrics")
}

// An instance is unready for the time of -drain and accepts tasks until a second signal ends it.
func TestDrain(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	s := startService(t, "-drain", "1h")
	close(s.backend.gate)
	require.NoError(t, s.one.Process.Signal(syscall.SIGTERM))
	require.Eventually(t, func() bool {
		status, err := s.one.probe("/readyz")
		require.NoError(t, err)
		return status == http.StatusServiceUnavailable
	}, time.Minute, time.Millisecond)
	c := client(t, token, s.one)
	ids, _ := create(ctx, t, c, "one")
	s.requireResults(ctx, t, c, ids)
	require.NoError(t, s.one.Process.Signal(syscall.SIGTERM))
	require.ErrorContains(t, s.one.wait(), "signal: terminated")
}

// The tasks of an instance that was killed, or that had no time to finish them, continue in the other one.
func TestTasksContinueElsewhere(t *testing.T) {
	for name, c := range map[string]struct {
		signal os.Signal
		args   []string
	}{
		"killed":       {signal: syscall.SIGKILL},
		"out of grace": {signal: syscall.SIGTERM, args: []string{"-grace", "1ms"}},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			s := startService(t, c.args...)
			ids, texts := create(ctx, t, client(t, token, s.one), "one")
			more, others := create(ctx, t, client(t, token, s.two), "two")
			require.Eventually(t, func() bool { return s.backend.requested(1, append(texts, others...)...) }, time.Minute, time.Millisecond)
			require.NoError(t, s.one.Process.Signal(c.signal))
			require.Error(t, s.one.wait())
			require.Eventually(t, func() bool { return s.backend.requested(2, texts...) }, time.Minute, time.Millisecond)
			close(s.backend.gate)
			both := client(t, token, s.one, s.two)
			s.requireResults(ctx, t, both, ids)
			s.requireResults(ctx, t, both, more)
		})
	}
}

// The stream of an instance that is killed in the middle continues in the other one, and ends there with an error after
// all that was sent.
func TestStreamOfKilledInstance(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	s := startService(t)
	c := client(t, token, s.one, s.two)
	read := func(text string, piece func(n int)) (got string, err error) {
		n := 0
		for event, err := range c.StreamChat(ctx, agent, &arc.StartChatParams{InitialMessage: arc.UserText(text)}, nil) {
			if err != nil {
				return got, err
			}
			got += event.Text
			if event.Message != nil {
				n++
				piece(n)
			}
		}
		return got, nil
	}
	var killed time.Time
	got, err := read("first second wait-third", func(n int) {
		if n < 2 {
			return
		}
		require.Eventually(t, func() bool { return s.backend.requested(1, "wait-third") }, time.Minute, time.Millisecond)
		require.NoError(t, s.one.Process.Kill())
		killed = time.Now()
	})
	require.ErrorIs(t, err, arc.ErrAgentNotAvailable)
	require.Less(t, time.Since(killed), 20*time.Second)
	require.Equal(t, "digest of first\ndigest of second\n", got)
	close(s.backend.gate)
	got, err = read("first second wait-third", func(int) {})
	require.NoError(t, err)
	require.Equal(t, "digest of first\ndigest of second\ndigest of wait-third\n", got)
}

// Callers need a token of the file. No token is in the output.
func TestTokens(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	s := startService(t)
	close(s.backend.gate)
	const wrong = "another-token-of-the-test-that-is-in-no-file"
	for bad, code := range map[string]arc.Code{"": arc.ErrAuthenticationFailed, wrong: arc.ErrTokenInvalid} {
		_, err := client(t, bad, s.one).CreateTask(ctx, agent, &arc.CreateTaskParams{InitialMessage: arc.UserText("x")}, nil)
		require.ErrorIs(t, err, code)
	}
	c := client(t, token, s.one)
	ids, _ := create(ctx, t, c, "one")
	s.requireResults(ctx, t, c, ids)
	require.NoError(t, s.one.Process.Signal(syscall.SIGTERM))
	require.NoError(t, s.one.wait())
	require.Contains(t, s.one.log.String(), "planner", "no audit")
	for _, secret := range []string{token, wrong} {
		require.False(t, strings.Contains(s.one.log.String()+s.one.out.String(), secret), "a token in the output")
	}
}

func TestTokenFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "tokens.txt")
	for _, text := range []string{"", "planner", "planner short", token + " " + token + " x", "a " + token + "\nb " + token, strings.Repeat("x", 1<<17)} {
		require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
		_, err := readTokens(file)
		require.ErrorContains(t, err, "tokens: ")
		require.NotContains(t, err.Error(), token)
	}
}

// A program that is started twice leaves the store to the first one, whose lease it would take with its id.
func TestSecondStartLeavesTheStore(t *testing.T) {
	l, err := net.Listen("tcp", "localhost:0")
	require.NoError(t, err)
	defer l.Close()
	dir := t.TempDir()
	file := filepath.Join(dir, "tokens.txt")
	require.NoError(t, os.WriteFile(file, []byte("planner "+token), 0o600))
	c, err := parse([]string{"-addr", l.Addr().String(), "-tokens", file, "-store", filepath.Join(dir, "state.db"), "-instance", "one"}, io.Discard)
	require.NoError(t, err)
	require.ErrorContains(t, run(t.Context(), c, io.Discard, io.Discard), "listen")
	require.NoFileExists(t, c.store)
}

// The debug page is on a loopback address only.
func TestDebugAddress(t *testing.T) {
	srv, err := arc.NewServer(&arc.ServerOptions{Auth: arc.Auth{AllowAnonymous: true}})
	require.NoError(t, err)
	defer func() { _ = srv.Close() }()
	_, err = serveDebug(":0", srv)
	require.ErrorContains(t, err, "not a loopback address")
	stop, err := serveDebug("localhost:0", srv)
	require.NoError(t, err)
	stop()
}
