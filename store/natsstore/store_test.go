// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package natsstore_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/store"
	"github.com/fivewire/fivewire/store/natsstore"
	"github.com/fivewire/fivewire/store/natsstore/embedded"
)

// fast is for tests that are about something else than the disk.
var fast = &embedded.Options{SyncInterval: time.Minute}

func openOn(t *testing.T, srv *embedded.Server, opts *natsstore.Options) (*natsstore.Store, *nats.Conn) {
	t.Helper()
	nc, err := srv.Conn()
	require.NoError(t, err)
	t.Cleanup(nc.Close)
	s, err := natsstore.New(t.Context(), nc, opts)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	return s, nc
}

func TestClose(t *testing.T) {
	srv := startEmbedded(t, fast)
	s, nc := openOn(t, srv, nil)
	waiting := make(chan error, 1)
	go func() { waiting <- s.Wait(context.Background(), "s", 0) }()
	require.Eventually(t, func() bool { return nc.NumSubscriptions() > 1 }, time.Minute, time.Millisecond)
	closing := make(chan error, 1)
	go func() { closing <- s.Close() }()
	require.NoError(t, s.Close())
	require.NoError(t, <-closing)
	require.ErrorIs(t, <-waiting, store.ErrClosed)

	_, err := s.Get(t.Context(), "k")
	require.ErrorIs(t, err, store.ErrClosed)
	_, err = s.Create(t.Context(), "k", nil, 0)
	require.ErrorIs(t, err, store.ErrClosed)
	_, err = s.Append(t.Context(), "s", "", nil, 0)
	require.ErrorIs(t, err, store.ErrClosed)
	require.ErrorIs(t, s.Wait(t.Context(), "s", 0), store.ErrClosed)
	for _, err := range s.List(t.Context(), "") {
		require.ErrorIs(t, err, store.ErrClosed)
	}
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = s.Get(cancelled, "k")
	require.ErrorIs(t, err, context.Canceled)
	require.False(t, nc.IsClosed(), "the connection is the caller's")

	// A store whose connection is closed is as good as closed.
	s, nc = openOn(t, srv, nil)
	nc.Close()
	_, err = s.Get(t.Context(), "k")
	require.ErrorIs(t, err, store.ErrClosed)
	require.ErrorIs(t, s.Wait(t.Context(), "s", 0), store.ErrClosed)
}

func TestNames(t *testing.T) {
	srv := startEmbedded(t, fast)
	a, nc := openOn(t, srv, &natsstore.Options{StreamPrefix: "a"})
	b, _ := openOn(t, srv, &natsstore.Options{StreamPrefix: "b"})
	_, err := a.Create(t.Context(), "k", []byte("a"), 0)
	require.NoError(t, err)
	_, err = b.Get(t.Context(), "k")
	require.ErrorIs(t, err, store.ErrNotFound)
	for _, name := range []string{"a.b", "a b", "*", strings.Repeat("a", 65)} {
		_, err := natsstore.New(t.Context(), nc, &natsstore.Options{StreamPrefix: name})
		require.ErrorIs(t, err, store.ErrInvalid, name)
	}

	// A stream of that name that belongs to no store is not changed.
	js, err := jetstream.New(nc)
	require.NoError(t, err)
	_, err = js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "c_kv", Subjects: []string{"c.kv.>"}})
	require.NoError(t, err)
	_, err = natsstore.New(t.Context(), nc, &natsstore.Options{StreamPrefix: "c"})
	require.ErrorIs(t, err, store.ErrInvalid)

	// Three replicas need three servers.
	_, err = natsstore.New(t.Context(), nc, &natsstore.Options{StreamPrefix: "d", Replicas: 3})
	require.Error(t, err)
}

func TestLongSubjects(t *testing.T) {
	s, _ := openOn(t, startEmbedded(t, fast), nil)
	for _, key := range []string{strings.Repeat("/", store.MaxKey), strings.Repeat("a/", store.MaxKey/2), strings.Repeat(".", store.MaxKey)} {
		_, err := s.Create(t.Context(), key, []byte(key), 0)
		require.NoError(t, err)
		e, err := s.Get(t.Context(), key)
		require.NoError(t, err)
		require.Equal(t, key, string(e.Value))
		n := 0
		for e, err := range s.List(t.Context(), key[:len(key)-1]) {
			require.NoError(t, err)
			require.Equal(t, key, e.Key)
			n++
		}
		require.Equal(t, 1, n)
	}
}

// messages is how many messages a stream of the servers holds.
func messages(t *testing.T, nc *nats.Conn, name string) uint64 {
	t.Helper()
	js, err := jetstream.New(nc)
	require.NoError(t, err)
	stream, err := js.Stream(t.Context(), name)
	require.NoError(t, err)
	info, err := stream.Info(t.Context())
	require.NoError(t, err)
	return info.State.Msgs
}

// TestSweep: any process removes expired entries within one interval.
func TestSweep(t *testing.T) {
	t.Parallel()
	srv := startEmbedded(t, fast)
	s, nc := openOn(t, srv, &natsstore.Options{SweepInterval: -1})
	ctx := t.Context()
	const ttl = 50 * time.Millisecond
	for i := range 40 {
		_, err := s.Append(ctx, "mortal", fmt.Sprint(i), nil, ttl)
		require.NoError(t, err)
		seq, err := s.Append(ctx, "acked", fmt.Sprint(i), nil, ttl)
		require.NoError(t, err)
		require.NoError(t, s.Ack(ctx, "acked", seq))
		_, err = s.Append(ctx, "expired", "", nil, 0)
		require.NoError(t, err)
		_, err = s.Append(ctx, "extended", fmt.Sprint(i), nil, ttl*10)
		require.NoError(t, err)
	}
	require.NoError(t, s.Expire(ctx, "expired", ttl))
	require.NoError(t, s.Expire(ctx, "extended", time.Hour))
	extended, err := s.Read(ctx, "extended", 0, 1000) // those that had not expired by then
	require.NoError(t, err)
	require.NotEmpty(t, extended)
	kept, err := s.Append(ctx, "expired", "", nil, 0)
	require.NoError(t, err)
	require.Greater(t, messages(t, nc, "fivewire_log"), uint64(80), "nobody sweeps yet")

	// Two processes share the work.
	for range 2 {
		openOn(t, srv, natsstore.Forgets(&natsstore.Options{SweepInterval: 200 * time.Millisecond}, time.Millisecond))
	}
	// Those extended, what extends them, and the one kept.
	want := uint64(len(extended) + 2)
	require.Eventually(t, func() bool { return messages(t, nc, "fivewire_log") == want }, time.Minute, 50*time.Millisecond)
	records, err := s.Read(ctx, "extended", 0, 1000)
	require.NoError(t, err)
	require.Len(t, records, len(extended))
	records, err = s.Read(ctx, "expired", 0, 1000)
	require.NoError(t, err)
	require.Len(t, records, 1)
	require.Equal(t, kept, records[0].Seq)
}

// TestAckAfterExpire: an Ack that read before an Expire and writes after it restores no id, neither
// at once nor after the message of the Expire is removed.
func TestAckAfterExpire(t *testing.T) {
	t.Parallel()
	srv := startEmbedded(t, fast)
	s, nc := openOn(t, srv, &natsstore.Options{SweepInterval: -1})
	ctx := t.Context()
	var seqs []uint64
	for i := range 4 {
		seq, err := s.Append(ctx, "s", fmt.Sprint(i), nil, time.Hour)
		require.NoError(t, err)
		seqs = append(seqs, seq)
	}
	require.NoError(t, s.Expire(ctx, "s", 0))
	for i, seq := range seqs {
		require.NoError(t, natsstore.LeaveID(ctx, s, "s", fmt.Sprint(i), seq, time.Now().Add(time.Hour)))
	}
	require.EqualValues(t, 5, messages(t, nc, "fivewire_log"), "with what says that all has ended")
	_, err := s.Append(ctx, "s", "0", nil, 0)
	require.NoError(t, err)

	sweeper, _ := openOn(t, srv, natsstore.Forgets(&natsstore.Options{SweepInterval: 100 * time.Millisecond}, time.Millisecond))
	require.Eventually(t, func() bool { return messages(t, nc, "fivewire_log") == 1 }, time.Minute, 20*time.Millisecond)
	require.NoError(t, sweeper.Close()) // it would remove the message of the next Expire too early
	for i := 1; i < len(seqs); i++ {
		_, err := s.Append(ctx, "s", fmt.Sprint(i), nil, 0)
		require.NoError(t, err)
	}
	_, err = s.Append(ctx, "s", "0", nil, 0)
	require.ErrorIs(t, err, store.ErrDuplicate)

	// Several Expires are one message, which says the same when it is made shorter.
	for i, ttl := range []time.Duration{time.Hour, time.Millisecond} {
		_, err := s.Append(ctx, "t", fmt.Sprint(i), nil, time.Hour)
		require.NoError(t, err)
		require.NoError(t, s.Expire(ctx, "t", ttl))
	}
	seq, err := s.Append(ctx, "t", "later", nil, time.Hour)
	require.NoError(t, err)
	time.Sleep(10 * time.Millisecond) // beyond the ttl of those before
	require.NoError(t, s.Expire(ctx, "t", time.Hour))
	require.NoError(t, natsstore.LeaveID(ctx, s, "t", "0", seq-2, time.Now().Add(time.Hour)))
	_, err = s.Append(ctx, "t", "0", nil, 0)
	require.NoError(t, err)
}

// TestExpireOften: the steps stored for many Expires are bounded, and all of them stay effective.
func TestExpireOften(t *testing.T) {
	t.Parallel()
	s, nc := openOn(t, startEmbedded(t, fast), nil)
	ctx := t.Context()
	var seqs []uint64
	for i := range 40 {
		seq, err := s.Append(ctx, "s", fmt.Sprint(i), nil, time.Duration(1+i%2*100)*300*time.Millisecond)
		require.NoError(t, err)
		seqs = append(seqs, seq)
		require.NoError(t, s.Expire(ctx, "s", time.Hour))
	}
	js, err := jetstream.New(nc)
	require.NoError(t, err)
	stream, err := js.Stream(ctx, "fivewire_log")
	require.NoError(t, err)
	info, err := stream.Info(ctx, jetstream.WithSubjectFilter("fivewire.log.m.>"))
	require.NoError(t, err)
	require.Len(t, info.State.Subjects, 1)
	for subject := range info.State.Subjects {
		m, err := stream.GetLastMsgForSubject(ctx, subject)
		require.NoError(t, err)
		require.Less(t, len(m.Data), 300)
	}
	time.Sleep(700 * time.Millisecond) // beyond the ttl that the records began with
	records, err := s.Read(ctx, "s", 0, 1000)
	require.NoError(t, err)
	require.Len(t, records, len(seqs))
	for i, seq := range seqs {
		got, err := s.Append(ctx, "s", fmt.Sprint(i), nil, 0)
		require.ErrorIs(t, err, store.ErrDuplicate)
		require.Equal(t, seq, got)
	}
}

// TestDeletedGo: the servers remove the markers of deletions.
func TestDeletedGo(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("waits for the servers to remove what expired, which they do after ten seconds")
	}
	s, nc := openOn(t, startEmbedded(t, fast), &natsstore.Options{SweepInterval: 100 * time.Millisecond})
	ctx := t.Context()
	for i := range 10 {
		rev, err := s.Create(ctx, fmt.Sprint("replaced-", i), nil, 0)
		require.NoError(t, err)
		_, err = s.Update(ctx, fmt.Sprint("replaced-", i), nil, rev, time.Millisecond)
		require.NoError(t, err)
		_, err = s.Create(ctx, fmt.Sprint("deleted-", i), nil, 0)
		require.NoError(t, err)
		require.NoError(t, s.Delete(ctx, fmt.Sprint("deleted-", i), 0))
		_, err = s.Create(ctx, fmt.Sprint("mortal-", i), nil, time.Millisecond)
		require.NoError(t, err)
	}
	_, err := s.Create(ctx, "kept", nil, 0)
	require.NoError(t, err)
	// The other message is the sweep lease.
	require.Eventually(t, func() bool { return messages(t, nc, "fivewire_kv") <= 2 }, time.Minute, 100*time.Millisecond)
}

// TestManyKeys lists more keys than the server names in one answer.
func TestManyKeys(t *testing.T) {
	if os.Getenv("FIVEWIRE_LONG") == "" {
		t.Skip("writes 210,000 keys: set FIVEWIRE_LONG=1")
	}
	s, nc := openOn(t, startEmbedded(t, fast), nil)
	js, err := jetstream.New(nc, jetstream.WithPublishAsyncMaxPending(1000))
	require.NoError(t, err)
	const n = 210_000
	for i := range n { // as Create writes them, but not one after the other
		_, err := js.PublishAsync(fmt.Sprintf("fivewire.kv.k.many.%07d", i), nil, jetstream.WithStallWait(time.Minute))
		require.NoError(t, err)
	}
	<-js.PublishAsyncComplete()
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { // created and deleted keys shift the pages
		defer close(done)
		for i := 0; ctx.Err() == nil; i++ {
			_ = s.Delete(context.Background(), fmt.Sprintf("many/%07d", i%(n/2)*2), 0)
		}
	}()
	odd := 0
	for e, err := range s.List(t.Context(), "many/") {
		require.NoError(t, err)
		if (e.Key[len(e.Key)-1]-'0')%2 == 1 {
			odd++
		}
	}
	stop()
	<-done
	require.Equal(t, n/2, odd)
}

// TestFull: a full store rejects writes and keeps its content.
func TestFull(t *testing.T) {
	t.Parallel()
	s, _ := openOn(t, startEmbedded(t, &embedded.Options{SyncInterval: time.Minute, MaxStore: 4 << 20}), nil)
	ctx := t.Context()
	value := make([]byte, 256<<10)
	n := 0
	for ; n < 100; n++ {
		if _, err := s.Create(ctx, fmt.Sprint("k", n), value, 0); err != nil {
			require.NotErrorIs(t, err, store.ErrExists)
			break
		}
	}
	require.Less(t, n, 100)
	require.Greater(t, n, 4)
	for i := range n {
		_, err := s.Get(ctx, fmt.Sprint("k", i))
		require.NoError(t, err)
	}
	for i := range n { // what makes room is let in
		require.NoError(t, s.Delete(ctx, fmt.Sprint("k", i), 0))
		_, err := s.Get(ctx, fmt.Sprint("k", i))
		require.ErrorIs(t, err, store.ErrNotFound)
	}
	_, err := s.Create(ctx, "k0", value, 0)
	require.NoError(t, err)
}

func TestLocked(t *testing.T) {
	dir := t.TempDir()
	inUse, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer func() { require.NoError(t, inUse.Close()) }()
	srv, err := embedded.Start(dir, nil)
	require.NoError(t, err)
	_, err = embedded.Start(dir, nil)
	require.ErrorIs(t, err, embedded.ErrLocked)
	srv.Shutdown()
	srv.Shutdown()
	srv, err = embedded.Start(dir, nil)
	require.NoError(t, err)
	srv.Shutdown()

	_, err = embedded.Start("", nil)
	require.Error(t, err)
	_, err = embedded.Start(dir, &embedded.Options{Listen: "nonsense"})
	require.Error(t, err)
	for _, o := range []*embedded.Options{
		{Listen: inUse.Addr().String()},
		{Listen: "127.0.0.1:0", Cluster: &embedded.Cluster{Node: "node", Listen: inUse.Addr().String(), Peers: []string{inUse.Addr().String()}}},
	} {
		_, err = embedded.Start(dir, o)
		require.ErrorContains(t, err, "address already in use")
	}
	_, err = embedded.Start(dir, &embedded.Options{Cluster: &embedded.Cluster{Node: "node"}})
	require.ErrorContains(t, err, "needs an address") // not a port without a password on all networks
	_, err = embedded.Start(dir, &embedded.Options{Cluster: &embedded.Cluster{}})
	require.Error(t, err)
	_, err = embedded.Start(dir, &embedded.Options{MaxPayload: 1 << 30})
	require.Error(t, err)
}

// TestUnreachable: a call to an unreachable server fails with the reason.
func TestUnreachable(t *testing.T) {
	t.Parallel()
	srv := startEmbedded(t, fast)
	s, _ := openOn(t, srv, &natsstore.Options{SweepInterval: -1})
	natsstore.GivesUpAfter(s, 300*time.Millisecond)
	srv.Shutdown()
	_, err := s.Create(t.Context(), "k", nil, 0)
	require.ErrorContains(t, err, "no answer for 300ms")
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	_, err = s.Get(ctx, "k")
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.ErrorIs(t, s.Wait(ctx, "s", 0), context.DeadlineExceeded)
	_, err = natsstore.Open(t.Context(), "nats://127.0.0.1:1", nil)
	require.True(t, errors.Is(err, nats.ErrNoServers), err)
}

// TestClockOfProcessJumps: an entry exists as long as by the clock of the servers, although the clock of the process
// is set, or its monotonic clock stops while the machine is suspended.
func TestClockOfProcessJumps(t *testing.T) {
	srv := startEmbedded(t, nil)
	var steadyJump, wallJump atomic.Int64
	s, err := srv.Open(t.Context(), natsstore.Clocks(&natsstore.Options{}, func() (steady, wall int64) {
		now := time.Now().UnixNano()
		return now + steadyJump.Load(), now + wallJump.Load()
	}))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	for _, jump := range []struct {
		name         string
		steady, wall time.Duration
	}{{"set forward", 0, time.Hour}, {"set back", 0, -time.Hour}, {"suspended", -time.Hour, 0}} {
		_, err := s.Create(t.Context(), jump.name+" lives", nil, 10*time.Minute)
		require.NoError(t, err)
		expired, err := s.Create(t.Context(), jump.name+" expired", nil, 1)
		require.NoError(t, err)
		_, err = s.Append(t.Context(), jump.name, "", nil, 10*time.Minute)
		require.NoError(t, err)
		steadyJump.Store(int64(jump.steady))
		wallJump.Store(int64(jump.wall))
		_, err = s.Get(t.Context(), jump.name+" lives")
		require.NoError(t, err, jump.name)
		records, err := s.Read(t.Context(), jump.name, 0, 0)
		require.NoError(t, err)
		require.Len(t, records, 1, jump.name)
		_, err = s.Update(t.Context(), jump.name+" expired", nil, expired, 0)
		require.ErrorIs(t, err, store.ErrNotFound, jump.name)
	}
}

func TestNilLoggerIsDefault(t *testing.T) {
	s, _ := openOn(t, startEmbedded(t, fast), nil)
	require.Same(t, slog.Default(), natsstore.LoggerOf(s))
}

func TestSweepIntervalHasMinimum(t *testing.T) {
	srv := startEmbedded(t, fast)
	for opt, want := range map[time.Duration]time.Duration{0: 10 * time.Minute, 1: 10 * time.Millisecond, time.Second: time.Second} {
		s, _ := openOn(t, srv, &natsstore.Options{SweepInterval: opt})
		require.Equal(t, want, natsstore.SweepIntervalOf(s))
	}
}
