// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package interop_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// If mandatory is set, a peer that cannot be prepared fails the tests. Otherwise the tests use the peers that are already
// prepared, so that go test requires only Go.
var mandatory = os.Getenv("CI") == "true" || os.Getenv("FIVEWIRE_INTEROP") == "1"

func peersDir() string {
	if d := os.Getenv("FIVEWIRE_PEERS"); d != "" {
		return d
	}
	return filepath.Join(os.TempDir(), fmt.Sprintf("fivewire-peers-%d", os.Getuid()))
}

type preparation struct {
	once sync.Once
	err  error
}

var preparations = map[string]*preparation{"python": {}, "node": {}, "rust": {}, "chromium": {}}

func (p *preparation) run(name string) error {
	p.once.Do(func() {
		out, err := exec.Command("bash", "./prepare", name).CombinedOutput()
		if err != nil {
			p.err = fmt.Errorf("%w: %s", err, bytes.TrimSpace(out))
		}
	})
	return p.err
}

func TestMain(m *testing.M) {
	switch os.Getenv("FIVEWIRE_INTEROP_CHILD") { // peers start this program as a server of theirs
	case "a2e":
		os.Exit(serveA2EHost())
	case "mcp":
		os.Exit(serveMCPDesk())
	}
	flag.Parse()
	if mandatory && flag.Lookup("test.run").Value.String() == "" {
		for name, p := range preparations { // side by side: one waits for the network while another compiles
			go p.run(name)
		}
	}
	os.Exit(m.Run())
}

// peers returns the folder with the prepared peers. It skips or fails the test if the named peer is not prepared.
func peers(t testing.TB, name string) string {
	t.Helper()
	if !mandatory {
		if _, err := os.Stat(filepath.Join(peersDir(), name+".stamp")); err != nil {
			t.Skipf("the peer is not prepared: run conformance/interop/prepare %s, or set FIVEWIRE_INTEROP=1", name)
		}
	}
	if err := preparations[name].run(name); err != nil {
		if mandatory {
			t.Fatalf("the peer cannot be prepared: %v", err)
		}
		t.Skipf("the peer cannot be prepared: %v", err)
	}
	return peersDir()
}

// A peer is a process of another implementation. It reads requests as lines of JSON.
type peer struct {
	t     testing.TB
	name  string
	in    io.WriteCloser
	lines chan []byte
	mu    sync.Mutex
}

// A fault is an exception of a peer, as its users see it.
type fault struct {
	Class   string          `json:"class"`
	Code    json.RawMessage `json:"code"`
	Message string          `json:"message"`
	Details json.RawMessage `json:"details"`
}

func (f *fault) String() string { return fmt.Sprintf("%s %s %s", f.Class, f.Code, f.Message) }

// python starts one of the programs in peers/python.
func python(t testing.TB, program string) *peer {
	t.Helper()
	dir := peers(t, "python")
	bin := filepath.Join(dir, "python", "bin", "python")
	cmd := exec.Command(bin, "-W", "ignore", filepath.Join("peers", "python", program))
	cmd.Env = append(os.Environ(), "PYTHONPYCACHEPREFIX="+filepath.Join(dir, "pycache"), "PYTHONUTF8=1")
	return start(t, cmd)
}

// node starts one of the programs in peers/node with the installed npm packages.
func node(t testing.TB, program string, args ...string) *peer {
	t.Helper()
	return start(t, nodeCommand(t, program, args...))
}

// nodeCommand copies a program to the folder of the installed packages, since Node resolves imports relative to the file.
func nodeCommand(t testing.TB, program string, args ...string) *exec.Cmd {
	t.Helper()
	dir := filepath.Join(peers(t, "node"), "node")
	run, err := os.MkdirTemp(dir, "run-")
	require.NoError(t, err)
	t.Cleanup(func() { os.RemoveAll(run) })
	files, err := filepath.Glob(filepath.Join("peers", "node", "*.mjs"))
	require.NoError(t, err)
	for _, f := range files {
		text, err := os.ReadFile(f)
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(filepath.Join(run, filepath.Base(f)), text, 0o600))
	}
	return exec.Command(filepath.Join(peersDir(), "bin", "node"), append([]string{filepath.Join(run, program)}, args...)...)
}

// start runs a peer until the test ends, and shows what it complained about if the test failed.
func start(t testing.TB, cmd *exec.Cmd) *peer {
	t.Helper()
	p := &peer{t: t, name: filepath.Base(cmd.Args[len(cmd.Args)-1]), lines: make(chan []byte, 1)}
	var complaints bytes.Buffer
	cmd.Stderr = &complaints
	in, err := cmd.StdinPipe()
	require.NoError(t, err)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	p.in = in
	read := make(chan struct{})
	go func() {
		defer close(read)
		defer close(p.lines)
		for r := bufio.NewReader(out); ; {
			line, err := r.ReadBytes('\n')
			if err != nil {
				return
			}
			p.lines <- line
		}
	}()
	t.Cleanup(func() {
		in.Close()
		stop := time.AfterFunc(5*time.Second, func() { _ = cmd.Process.Kill() })
		for range p.lines {
		}
		<-read
		_ = cmd.Wait()
		stop.Stop()
		if t.Failed() && complaints.Len() > 0 {
			t.Logf("%s said: %s", p.name, tail(complaints.String(), 1500))
		}
	})
	return p
}

func tail(s string, n int) string {
	if len(s) > n {
		return "..." + s[len(s)-n:]
	}
	return s
}

// A request is one request to a peer; "op" names the operation.
type request map[string]any

// try lets the peer do something, which may fail.
func (p *peer) try(r request) (json.RawMessage, *fault) {
	p.t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	line, err := json.Marshal(r)
	require.NoError(p.t, err)
	_, err = p.in.Write(append(line, '\n'))
	require.NoError(p.t, err, "%s is gone", p.name)
	select {
	case line, ok := <-p.lines:
		require.True(p.t, ok, "%s ended without an answer to %v", p.name, r["op"])
		var a struct {
			OK    json.RawMessage `json:"ok"`
			Error *fault          `json:"error"`
		}
		require.NoError(p.t, json.Unmarshal(line, &a), "%s", line)
		return a.OK, a.Error
	case <-time.After(2 * time.Minute):
		require.FailNow(p.t, "no answer in time", "%s to %v", p.name, r["op"])
		return nil, nil
	}
}

// do lets the peer do something that must succeed.
func (p *peer) do(r request) json.RawMessage {
	p.t.Helper()
	out, f := p.try(r)
	if f != nil {
		require.FailNow(p.t, "the peer failed", "%s: %v", r["op"], f)
	}
	return out
}

// into is do with a result of a known shape.
func (p *peer) into(dst any, r request) {
	p.t.Helper()
	out := p.do(r)
	require.NoError(p.t, json.Unmarshal(out, dst), "%s", out)
}

// fails lets the peer do something that must fail, and returns how.
func (p *peer) fails(r request) *fault {
	p.t.Helper()
	out, f := p.try(r)
	require.NotNil(p.t, f, "%v succeeded: %s", r["op"], out)
	return f
}

// shape renders JSON for comparison: members are sorted, and the values of the members in vary are replaced by "*".
func shape(t testing.TB, data []byte, vary ...string) string {
	t.Helper()
	d := json.NewDecoder(bytes.NewReader(data))
	d.UseNumber()
	var v any
	require.NoError(t, d.Decode(&v), "%s", data)
	var walk func(v any) any
	walk = func(v any) any {
		switch v := v.(type) {
		case map[string]any:
			for k := range v {
				varies := false
				for _, name := range vary {
					varies = varies || k == name
				}
				if varies && v[k] != nil {
					v[k] = "*"
					continue
				}
				v[k] = walk(v[k])
			}
		case []any:
			for i := range v {
				v[i] = walk(v[i])
			}
		}
		return v
	}
	var b strings.Builder
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	require.NoError(t, e.Encode(walk(v)))
	return strings.TrimSpace(b.String())
}

const (
	waitFor = 30 * time.Second
	tick    = 10 * time.Millisecond
)

// member returns one member of an object, compact and with its own members in order.
func member(t testing.TB, data []byte, name string) string {
	t.Helper()
	var m map[string]json.RawMessage
	require.NoError(t, json.Unmarshal(data, &m), "%s", data)
	require.Contains(t, m, name, "%s", data)
	return shape(t, m[name])
}

func readAll(t testing.TB, r io.Reader) string {
	t.Helper()
	b, err := io.ReadAll(r)
	require.NoError(t, err)
	return string(b)
}
