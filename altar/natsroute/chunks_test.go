// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package natsroute_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/altar"
	"github.com/fivewire/fivewire/altar/natsroute"
	"github.com/fivewire/fivewire/internal/kit"
)

const serverChild = "NATSROUTE_TEST_SERVER" // makes this program a NATS server

// runServer is the NATS server of startServerProcess. It ends with its standard input.
func runServer() bool {
	if os.Getenv(serverChild) == "" {
		return false
	}
	srv, err := server.NewServer(&server.Options{Host: "127.0.0.1", Port: server.RANDOM_PORT, NoSigs: true, NoLog: true})
	if err != nil {
		fmt.Println("failed", err)
		os.Exit(1)
	}
	srv.Start()
	if !srv.ReadyForConnections(30 * time.Second) {
		fmt.Println("failed")
		os.Exit(1)
	}
	fmt.Println(srv.Addr())
	_, _ = io.Copy(io.Discard, os.Stdin)
	srv.Shutdown()
	return true
}

// startServerProcess starts a NATS server whose memory is not that of the test, and returns its address.
func startServerProcess(t *testing.T) string {
	t.Helper()
	cmd := exec.Command(os.Args[0], "-test.run=^$")
	cmd.Env = append(os.Environ(), serverChild+"=1")
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	require.NoError(t, err)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = in.Close()
		_ = cmd.Wait()
	})
	line, err := bufio.NewReader(out).ReadString('\n')
	require.NoError(t, err)
	require.NotContains(t, line, "failed")
	return strings.TrimSpace(line)
}

// manyChunks is the number of chunks in the tests of memory.
func manyChunks() int64 {
	if os.Getenv("FIVEWIRE_LONG") != "" {
		return 1_000_000
	}
	return 20_000
}

// newChunkRuntime returns a Runtime that sends numbered chunks as fast as it can.
func newChunkRuntime(digits int) *altar.Runtime {
	rt := must(altar.NewRuntime("counter", nil))
	altar.AddStreamTool(rt, "count", func(_ context.Context, in countIn, out *altar.ChunkWriter) error {
		for i := range in.N {
			if err := out.Send(fmt.Sprintf("%0*d", digits, i)); err != nil {
				return err
			}
		}
		return nil
	})
	return rt
}

// A million chunks arrive from another Host in bounded memory, with a reader that sleeps and with one
// that does not (ALT-D37).
func TestManyChunks(t *testing.T) {
	url := "nats://" + startServerProcess(t)
	a, b := startHost(t, url, "a", nil), startHost(t, url, "b", nil)
	b.attach(t, newChunkRuntime(18))
	a.offered(t, "count", 1)
	s := a.session(t)
	for _, pause := range []time.Duration{0, 2 * time.Millisecond} {
		t.Run(fmt.Sprint("pause ", pause), func(t *testing.T) {
			total, before, n := manyChunks(), kit.Heap(), int64(0)
			for text, err := range altar.StreamAs[string](t.Context(), s, "count", countIn{total}, nil) {
				require.NoError(t, err)
				if want := fmt.Sprintf("%018d", n); text != want {
					t.Fatalf("got %s, want %s", text, want)
				}
				n++
				if pause > 0 && n%100 == 0 {
					time.Sleep(pause)
				}
				if n%(total/4) == 0 {
					require.Less(t, kit.Heap()-before, int64(16<<20))
				}
			}
			require.Equal(t, total, n)
		})
	}
}

// A hangUp is a client connection over a pipe that a test cuts.
type hangUp struct {
	mu   sync.Mutex
	last net.Conn // guarded by mu
}

func (u *hangUp) dial(h *altar.Host) altar.Dialer {
	return func(context.Context) (altar.Conn, error) {
		near, far := net.Pipe()
		u.mu.Lock()
		u.last = near
		u.mu.Unlock()
		go func() {
			_ = h.Serve(context.Background(), altar.NewStreamConn(far, nil), &altar.Principal{ID: "user", Tenant: "acme"})
		}()
		return altar.NewStreamConn(near, nil), nil
	}
}

func (u *hangUp) cut() {
	u.mu.Lock()
	defer u.mu.Unlock()
	_ = u.last.Close()
}

// A reader gets each chunk once and in order, in bounded memory, while its connection and those of both
// Hosts to the NATS server are cut.
func TestChunksOverCutConnections(t *testing.T) {
	t.Run("small", func(t *testing.T) { testCutChunks(t, manyChunks(), 18) })
	t.Run("large", func(t *testing.T) { testCutChunks(t, 200, 300<<10) })
}

func testCutChunks(t *testing.T, total int64, digits int) {
	server := startServerProcess(t)
	cuts := []*cutter{newCutter(t, server), newCutter(t, server)}
	o := &natsroute.Options{Heartbeat: time.Second}
	a := startHost(t, "nats://"+cuts[0].l.Addr().String(), "a", o)
	b := startHost(t, "nats://"+cuts[1].l.Addr().String(), "b", o)
	b.attach(t, newChunkRuntime(digits))
	a.offered(t, "count", 1)
	var client hangUp
	c := must(altar.NewClient(client.dial(a.Host), &altar.ClientOptions{Logger: slog.New(slog.DiscardHandler)}))
	defer func() { require.NoError(t, c.Close()) }()
	s, err := c.CreateSession(t.Context(), nil)
	require.NoError(t, err)
	all := 9
	if os.Getenv("FIVEWIRE_LONG") != "" {
		all = 60
	}
	before, n, done := kit.Heap(), int64(0), 0
	for text, err := range altar.StreamAs[string](t.Context(), s, "count", countIn{total}, nil) {
		require.NoError(t, err)
		if want := fmt.Sprintf("%0*d", digits, n); text != want {
			t.Fatalf("got %s, want %s", text[max(0, len(text)-18):], want[digits-18:])
		}
		if n++; n%(total/int64(all+1)) == 0 && done < all {
			switch done++; done % 3 {
			case 0:
				client.cut()
			default:
				cuts[done%3-1].cut()
			}
		}
		if n%(total/4) == 0 {
			require.Less(t, kit.Heap()-before, int64(32<<20))
		}
	}
	require.Equal(t, total, n)
	require.Equal(t, all, done)
}
