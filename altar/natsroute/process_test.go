// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package natsroute_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/altar"
	"github.com/fivewire/fivewire/altar/natsroute"
)

const (
	childURL  = "NATSROUTE_TEST_URL" // makes this program a Host with a Runtime
	childHost = "NATSROUTE_TEST_HOST"
	childFile = "NATSROUTE_TEST_FILE" // the log of executed calls
)

type onceIn struct {
	Key string `json:"key"`
}

func child() bool {
	url, id := os.Getenv(childURL), os.Getenv(childHost)
	if url == "" {
		return false
	}
	must := func(err error) {
		if err != nil {
			fmt.Println("failed", err)
			os.Exit(1)
		}
	}
	ran, err := os.OpenFile(os.Getenv(childFile), os.O_APPEND|os.O_WRONLY, 0)
	must(err)
	nc, err := nats.Connect(url)
	must(err)
	r, err := natsroute.NewCluster(nc, &natsroute.Options{Heartbeat: beat})
	must(err)
	m, err := altar.DecodeManifest([]byte(manifest))
	must(err)
	h, err := altar.NewHost(m, &altar.HostOptions{ID: id, Cluster: r, Auth: altar.Auth{Authorizer: altar.AuthorizerFunc(altar.AllowAll), AllowAnonymous: true}})
	must(err)
	rt, err := altar.NewRuntime("runtime-"+id, nil)
	must(err)
	altar.AddTool(rt, "once", func(_ context.Context, in onceIn) (string, error) {
		// One write, so that lines of several processes stay whole.
		if _, err := ran.WriteString(in.Key + " " + id + "\n"); err != nil {
			return "", err
		}
		time.Sleep(5 * time.Millisecond)
		return id, nil
	})
	conn, err := h.Dial(&altar.Principal{ID: "service", Tenant: "acme"})
	must(err)
	go func() { must(rt.Run(context.Background(), conn)) }()
	go func() { // ends with the parent process
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(0)
	}()
	fmt.Println("ready")
	select {}
}

func startChild(t *testing.T, url, id, file string) (kill func()) {
	t.Helper()
	cmd := exec.Command(os.Args[0], "-test.run=^$")
	cmd.Env = append(os.Environ(), childURL+"="+url, childHost+"="+id, childFile+"="+file)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	require.NoError(t, err)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	line, err := bufio.NewReader(out).ReadString('\n')
	require.NoError(t, err)
	require.Equal(t, "ready\n", line)
	kill = sync.OnceFunc(func() {
		require.NoError(t, cmd.Process.Kill())
		_ = in.Close()
		_ = cmd.Wait() // it was killed
	})
	t.Cleanup(kill)
	return kill
}

// TestProcessKilled: a client of this Host calls tools of Runtimes at the Hosts
// of two other processes. One is killed and comes back. Every call gets an
// answer, those that were not at the killed one a good one, and none runs twice.
func TestProcessKilled(t *testing.T) {
	srv := startServer(t)
	file := t.TempDir() + "/ran"
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	a := startHost(t, srv.ClientURL(), "a", &natsroute.Options{Heartbeat: beat})
	kill := startChild(t, srv.ClientURL(), "b", file)
	startChild(t, srv.ClientURL(), "c", file)
	a.offered(t, "once", 2)
	s := a.session(t)

	var mu sync.Mutex
	answered, unknown := map[string]string{}, map[string]bool{}
	var calls atomic.Int64
	ctx, stop := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for n := 0; ctx.Err() == nil; n++ {
				key := fmt.Sprintf("%d-%d", i, n)
				id, err := altar.CallAs[string](t.Context(), s, "once", onceIn{key}, nil)
				mu.Lock()
				switch {
				case err == nil:
					answered[key] = id
				case errors.Is(err, altar.ErrRuntimeUnavailable):
					unknown[key] = true
				default:
					t.Errorf("call %s: %v", key, err)
				}
				mu.Unlock()
				calls.Add(1)
			}
		})
	}
	goesOn := func() {
		t.Helper()
		before := calls.Load()
		require.Eventually(t, func() bool { return calls.Load() > before+200 }, time.Minute, time.Millisecond)
	}
	goesOn()
	kill()
	goesOn()
	a.offered(t, "once", 1)
	startChild(t, srv.ClientURL(), "b", file)
	a.offered(t, "once", 2)
	goesOn()
	stop()
	wg.Wait()

	text, err := os.ReadFile(file)
	require.NoError(t, err)
	ran := map[string]string{}
	by := map[string]int{}
	for line := range strings.Lines(string(text)) {
		key, id, _ := strings.Cut(strings.TrimSpace(line), " ")
		require.Empty(t, ran[key], "call %s ran twice", key)
		ran[key] = id
		by[id]++
	}
	for key, id := range answered {
		require.Equal(t, id, ran[key], "call %s", key)
	}
	for key := range ran {
		require.True(t, answered[key] != "" || unknown[key], "call %s ran and got no answer", key)
	}
	require.LessOrEqual(t, len(unknown), 16, "more than were under way")
	t.Logf("%d answered, %d without an answer that tells, run by %v", len(answered), len(unknown), by)
}
