// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package natsstore

import (
	"context"
	"math"
	"net"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/store"
)

func TestTokens(t *testing.T) {
	for key, want := range map[string]string{
		"a":       "a",
		"a/b":     "a.b",
		"/":       "=.=",
		"//a/":    "=.=.a.=",
		"a.b":     "a=2Eb",
		"=":       "=3D",
		"*>":      "=2A=3E",
		" \t\n":   "=20=09=0A",
		"\u00e9":  "=C3=A9",
		"$KV":     "=24KV",
		"did:x:1": "did:x:1",
	} {
		got := string(appendTokens(nil, key))
		require.Equal(t, want, got)
		back, ok := keyOf(got)
		require.True(t, ok)
		require.Equal(t, key, back)
	}
	for _, bad := range []string{"", "a..b", ".", "a.", "=2", "a=", "=2e", "=ZZ", "a=3"} {
		_, ok := keyOf(bad)
		require.False(t, ok, bad)
	}
	require.Equal(t, "", folder("a"))
	require.Equal(t, "a.", folder("a/b"))
	require.Equal(t, "a.b.", folder("a/b/"))
	require.Equal(t, "=.", folder("/"))
}

func FuzzTokens(f *testing.F) {
	for _, s := range []string{"", "a", "a/b", "/", "=", ".", "\x00\xff", "a=2Fb", "a=/"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, key string) {
		tokens := string(appendTokens([]byte("x."), key))
		if slices.Contains(strings.Split(tokens, "."), "") || strings.ContainsAny(tokens, " *>\t\r\n\x00") {
			t.Fatalf("%q is no subject", tokens)
		}
		if len(tokens) > 3*len(key)+3 {
			t.Fatalf("%d bytes become %d", len(key), len(tokens))
		}
		back, ok := keyOf(tokens[2:])
		if !ok || back != key {
			t.Fatalf("%q comes back as %q", key, back)
		}
	})
}

func TestLifetimes(t *testing.T) {
	l := lifetimes{steps: []step{{seq: 10, at: 100, until: 200}, {seq: 20, at: 150, until: 160}, {seq: 30, at: 300, until: 400}}}
	for _, tt := range []struct {
		what string
		seq  uint64
		own  int64
		want int64
	}{
		{"dead before the first", 5, 90, 90},
		{"dead at the moment of the first", 5, 100, 100},
		{"for ever, shortened twice, dead before the third", 5, 0, 160},
		{"between the first and the second, dead before", 15, 140, 140},
		{"between the first and the second", 15, 155, 160},
		{"after the second, dead before the third", 25, 299, 299},
		{"after the second, extended", 25, 301, 400},
		{"after all", 35, 1000, 1000},
		{"after all, for ever", 35, 0, 0},
	} {
		require.Equal(t, tt.want, l.expiry(tt.seq, tt.own), tt.what)
	}
	all := lifetimes{steps: []step{{seq: 10, at: math.MinInt64, until: 200}}}
	require.EqualValues(t, 200, all.expiry(5, 1), "none was dead, whatever its own ttl says")

	m := &stored{seq: 40, at: 500, value: l.bytes()}
	back := lifetimesOf(m)
	require.Equal(t, append(l.steps, step{40, 500, 500}), back.steps)
}

func TestClock(t *testing.T) {
	now, ms := time.Unix(1_000_000, 0).UnixNano(), int64(time.Millisecond)
	offset, fault := offsetOf(now, now+10*ms, now+7*ms)
	require.Zero(t, offset, "the way explains the difference")
	require.EqualValues(t, 5*time.Millisecond+1, fault)
	offset, _ = offsetOf(now, now+10*ms, now+int64(time.Hour))
	require.InDelta(t, float64(time.Hour), float64(offset), float64(6*time.Millisecond))

	require.EqualValues(t, 0, after(5, 0))
	require.EqualValues(t, int64(math.MaxInt64), after(5, math.MaxInt64))
	require.Equal(t, "11", serverTTL(1))
	require.Equal(t, "12", serverTTL(time.Second+1))
	require.Equal(t, "never", serverTTL(math.MaxInt64))
}

func TestFacts(t *testing.T) {
	var f facts[int]
	for i := range uint64(3 * factsMost) {
		f.put(i, int(i))
		if v, ok := f.get(i - min(i, factsMost-1)); !ok || v != int(i-min(i, factsMost-1)) {
			t.Fatalf("%d is forgotten after %d", i-min(i, factsMost-1), i)
		}
	}
	require.LessOrEqual(t, len(f.now)+len(f.old), 2*factsMost)
	_, ok := f.get(1)
	require.False(t, ok)
}

// TestServerNotLinked: a client of a cluster does not link the server.
func TestServerNotLinked(t *testing.T) {
	out, err := exec.Command("go", "list", "-deps", ".").Output()
	require.NoError(t, err)
	deps := strings.Fields(string(out))
	require.Contains(t, deps, "github.com/nats-io/nats.go")
	for _, dep := range deps {
		require.NotContains(t, dep, "nats-server")
	}
}

// TestPersistEndsInTime: a call without an answer ends as unknown at CallTimeout, and an attempt without a
// connection, which takes as long as a dial, does not extend it.
func TestPersistEndsInTime(t *testing.T) {
	for name, attempt := range map[string]func(ctx context.Context) error{
		"silent server": func(ctx context.Context) error {
			<-ctx.Done()
			return temporary(ctx.Err())
		},
		"no connection": func(context.Context) error {
			time.Sleep(3 * time.Second)
			return temporary(nats.ErrConnectionReconnecting)
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &Store{nc: &nats.Conn{Opts: nats.Options{Timeout: 3 * time.Second}}, opts: Options{CallTimeout: 10 * time.Second}}
				start := time.Now()
				err := s.persist(t.Context(), attempt)
				require.ErrorIs(t, err, store.ErrUnknown)
				require.LessOrEqual(t, time.Since(start), 10*time.Second)
				require.Greater(t, time.Since(start), 6*time.Second)
			})
		})
	}
}

func TestOpenRefusesMissingServers(t *testing.T) {
	_, err := Open(t.Context(), "", nil)
	require.ErrorIs(t, err, store.ErrInvalid)
	_, err = New(t.Context(), nil, nil)
	require.ErrorIs(t, err, store.ErrInvalid)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = Open(ctx, "nats://127.0.0.1:1", nil)
	require.ErrorIs(t, err, context.Canceled)
}

// TestOpenShowsNoPassword: the error of a malformed URL does not have its text.
func TestOpenShowsNoPassword(t *testing.T) {
	for _, server := range []string{"nats://user:sec%ret@127.0.0.1:4222", "nats://user:sec/ret@127.0.0.1:4222", "nats://127.0.0.1:1,nats://user:secret@[::1"} {
		_, err := Open(t.Context(), server, nil)
		require.ErrorIs(t, err, store.ErrInvalid, server)
		require.NotContains(t, err.Error(), "sec")
	}
}

// TestOpenEndsAtSilentServer: the end of the context ends Open, also while a server sends nothing.
func TestOpenEndsAtSilentServer(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	ctx, cancel := context.WithCancel(t.Context())
	opened := make(chan error, 1)
	go func() {
		_, err := Open(ctx, "nats://"+l.Addr().String(), &Options{ConnOptions: []nats.Option{nats.Timeout(time.Hour)}})
		opened <- err
	}()
	conn, err := l.Accept()
	require.NoError(t, err)
	cancel()
	require.ErrorIs(t, <-opened, context.Canceled)
	require.NoError(t, conn.Close())
}
