// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package engines

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/store"
	"github.com/fivewire/fivewire/store/natsstore"
	"github.com/fivewire/fivewire/store/natsstore/embedded"
	"github.com/fivewire/fivewire/store/sqlstore"
)

// A place is where the state of one test is.
type place struct {
	memory store.Store // if it is in this process
	name   string      // else: what openPlace opens, in this process or another

	isWired bool // each process has a wire to the server
}

func (p *place) isSQLite() bool { return strings.HasPrefix(p.name, "sqlite") }

// engine returns the name of the engine.
func (p *place) engine() string {
	kind, _, _ := strings.Cut(p.name, " ")
	return map[string]string{"": "Memory", "sqlite": "SQLite", "postgres": "PostgreSQL", "nats": "NATS"}[kind]
}

// open opens the store again, until the end of the test.
func (p *place) open(t *testing.T) store.Store {
	t.Helper()
	if p.memory != nil {
		return p.memory
	}
	s, err := openPlace(t.Context(), p.name)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.(io.Closer).Close()) })
	return s
}

func openPlace(ctx context.Context, name string) (store.Store, error) {
	kind, rest, _ := strings.Cut(name, " ")
	switch kind {
	case "sqlite":
		return sqlstore.Open(ctx, rest, nil)
	case "postgres":
		schema, url, _ := strings.Cut(rest, " ")
		return sqlstore.Open(ctx, url, &sqlstore.Options{Schema: schema})
	case "nats":
		return natsstore.Open(ctx, rest, nil)
	case "embedded":
		return embedded.Open(ctx, rest, nil)
	}
	return nil, errors.New("no engine of that name")
}

// engines are what every test runs on.
var engines = []struct {
	name   string
	shared bool // by processes
	create func(t *testing.T) *place
}{
	{"Memory", false, func(*testing.T) *place { return &place{memory: store.NewMemory()} }},
	{"SQLite", true, func(t *testing.T) *place { return &place{name: "sqlite " + filepath.Join(t.TempDir(), "state.db")} }},
	{"PostgreSQL", true, postgres},
	{"NATS", true, func(t *testing.T) *place {
		srv, err := embedded.Start(t.TempDir(), &embedded.Options{Listen: "127.0.0.1:0"})
		require.NoError(t, err)
		t.Cleanup(srv.Shutdown)
		return &place{name: "nats " + srv.URL()}
	}},
}

const postgresEnv = "FIVEWIRE_POSTGRES"

func postgres(t *testing.T) *place {
	url := os.Getenv(postgresEnv)
	if url == "" {
		t.Skipf("needs PostgreSQL: %s is not set; eval \"$(.ci/postgres start)\" starts one and sets it", postgresEnv)
	}
	schema := fmt.Sprintf("test_%016x", rand.Uint64())
	t.Cleanup(func() {
		conn, err := pgx.Connect(context.Background(), url)
		require.NoError(t, err)
		defer conn.Close(context.Background())
		for range 5 { // the transactions of killed processes may still hold locks, which is a deadlock
			if _, err = conn.Exec(context.Background(), "DROP SCHEMA IF EXISTS "+schema+" CASCADE"); err == nil {
				break
			}
		}
		require.NoError(t, err)
	})
	return &place{name: "postgres " + schema + " " + url}
}

// each runs a test on every engine.
func each(t *testing.T, test func(t *testing.T, p *place)) {
	for _, e := range engines {
		t.Run(e.name, func(t *testing.T) { test(t, e.create(t)) })
	}
}

// eachShared runs a test on every engine that processes share.
func eachShared(t *testing.T, test func(t *testing.T, p *place)) {
	for _, e := range engines {
		if e.shared {
			t.Run(e.name, func(t *testing.T) { test(t, e.create(t)) })
		}
	}
}

// soon waits for a required event.
func soon(t *testing.T, what string, happened func() bool) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); !happened(); time.Sleep(5 * time.Millisecond) {
		require.True(t, time.Now().Before(deadline), "does not happen: %s", what)
	}
}

// A front is a proxy of the instances of a service: a request goes to the current instance, and is
// cut off when that instance stops.
type front struct {
	*httptest.Server
	instance  atomic.Value // string: its address
	transport *http.Transport
}

func newFront(t *testing.T) *front {
	f := &front{transport: &http.Transport{}}
	f.Server = httptest.NewServer(f)
	t.Cleanup(func() {
		f.CloseClientConnections()
		f.Close()
		f.transport.CloseIdleConnections()
	})
	return f
}

// put puts another instance in front.
func (f *front) put(address string) { f.instance.Store(address) }

func (f *front) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	u := url.URL{Scheme: "http", Host: f.instance.Load().(string), Path: r.URL.Path, RawQuery: r.URL.RawQuery}
	req, err := http.NewRequestWithContext(r.Context(), r.Method, u.String(), bytes.NewReader(body))
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	req.Header = r.Header.Clone()
	res, err := f.transport.RoundTrip(req)
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	defer res.Body.Close()
	for name, values := range res.Header {
		w.Header()[name] = values
	}
	w.WriteHeader(res.StatusCode)
	piece := make([]byte, 4096)
	for {
		n, err := res.Body.Read(piece)
		if n > 0 {
			_, _ = w.Write(piece[:n])
			_ = http.NewResponseController(w).Flush()
		}
		if errors.Is(err, io.EOF) {
			return
		}
		if err != nil {
			panic(http.ErrAbortHandler)
		}
	}
}

const (
	childEnv = "ENGINES_CHILD"
	placeEnv = "ENGINES_PLACE"
	crashEnv = "FIVEWIRE_CRASH_ROUNDS" // how often processes are killed

	// previousEnv is the test binary of an earlier version. Each process is then of that one or of this one, by chance.
	previousEnv = "FIVEWIRE_PREVIOUS"
)

// program returns the program of a process.
func program() string {
	if previous := os.Getenv(previousEnv); previous != "" && rand.N(2) == 0 {
		return previous
	}
	return os.Args[0]
}

func crashRounds(t *testing.T, few int) int {
	text := os.Getenv(crashEnv)
	if text == "" {
		return few
	}
	n, err := strconv.Atoi(text)
	require.NoError(t, err, crashEnv)
	return n
}

// childOf returns a service that tests run as a process: it serves on a store and
// prints its address.
func childOf(role string) func(ctx context.Context, s store.Store) error {
	switch role {
	case "a2e":
		return a2eChild
	case "accp":
		return accpChild
	case "accp agent":
		return accpAgentChild
	case "altar":
		return altarChild
	case "altar runtime":
		return altarRuntimeChild
	case "arc":
		return arcChild
	case "agent":
		return agentChild
	case "all":
		return allChild
	case "kernels":
		return kernelsChild
	case "writer":
		return writer
	case "relay":
		return relayChild
	}
	return func(context.Context, store.Store) error { return errors.New("no such service") }
}

func TestMain(m *testing.M) {
	if len(os.Args) >= 4 && os.Args[1] == natsServerArg {
		serveNATS(os.Args[2], os.Args[3], os.Args[4:])
	}
	role := os.Getenv(childEnv)
	if role == "" {
		os.Exit(m.Run())
	}
	go func() { // the end of the test is that of its processes
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(1)
	}()
	ctx := context.Background()
	s, err := openPlace(ctx, os.Getenv(placeEnv))
	if err == nil {
		err = childOf(role)(ctx, s)
	}
	fmt.Fprintln(os.Stderr, role, "ended:", err)
	os.Exit(1)
}

// A child is a service in a separate process.
type child struct {
	cmd     *exec.Cmd
	stdin   io.Closer
	address string
	wire    *wire // to the server of the engine, if the place has wires
	once    sync.Once
}

func (p *place) start(t *testing.T, role string) *child {
	t.Helper()
	c := &child{cmd: exec.Command(program())}
	if p.isWired {
		p, c.wire = p.behindWire(t)
	}
	c.cmd.Env = append(os.Environ(), childEnv+"="+role, placeEnv+"="+p.name)
	c.cmd.Stderr = os.Stderr
	out, err := c.cmd.StdoutPipe()
	require.NoError(t, err)
	c.stdin, err = c.cmd.StdinPipe()
	require.NoError(t, err)
	require.NoError(t, c.cmd.Start())
	t.Cleanup(c.kill)
	line, err := bufio.NewReader(out).ReadString('\n')
	require.NoError(t, err, "the %s does not start", role)
	c.address = strings.TrimSpace(line)
	return c
}

// hang stops the process for d.
func (c *child) hang(d time.Duration) error {
	pid := strconv.Itoa(c.cmd.Process.Pid)
	if err := exec.Command("kill", "-STOP", pid).Run(); err != nil {
		return err
	}
	time.Sleep(d)
	return exec.Command("kill", "-CONT", pid).Run()
}

// A disturbance is a fault of a process of a service. It returns the process that continues the work.
type disturbance struct {
	name   string
	rounds func(t *testing.T, few int) int
	apply  func(t *testing.T, p *place, c *child, role string) *child
}

// kill9 kills a process and starts another one. The other two let others take over before the process continues.
var (
	kill9 = disturbance{"kill -9", crashRounds, func(t *testing.T, p *place, c *child, role string) *child {
		c.kill()
		return p.start(t, role)
	}}
	stopped = disturbance{"stopped for 3 s", func(*testing.T, int) int { return 4 }, func(t *testing.T, _ *place, c *child, _ string) *child {
		if err := c.hang(3 * time.Second); err != nil {
			t.Error(err)
		}
		return c
	}}
	cutOff = disturbance{"cut off from its engine for 3 s", stopped.rounds, func(t *testing.T, _ *place, c *child, _ string) *child {
		if err := c.wire.cut(3*time.Second, toServer, toClient); err != nil {
			t.Error(err)
		}
		return c
	}}
)

// eachDisturbed runs a test with each disturbance, on every engine that processes share. A short run only
// kills processes.
func eachDisturbed(t *testing.T, test func(t *testing.T, p *place, d disturbance)) {
	eachShared(t, func(t *testing.T, p *place) { test(t, p, kill9) })
	if os.Getenv("FIVEWIRE_LONG") == "" || runtime.GOOS == "windows" {
		return
	}
	t.Run("stopped", func(t *testing.T) {
		eachShared(t, func(t *testing.T, p *place) { test(t, p, stopped) })
	})
	t.Run("cut off", func(t *testing.T) {
		for _, e := range engines[2:] {
			t.Run(e.name, func(t *testing.T) {
				p := e.create(t)
				p.isWired = true
				test(t, p, cutOff)
			})
		}
	})
}

// kill ends it the hard way.
func (c *child) kill() {
	c.once.Do(func() {
		_ = c.cmd.Process.Kill()
		_ = c.cmd.Wait()
		_ = c.stdin.Close()
	})
}
