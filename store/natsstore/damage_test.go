// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package natsstore_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/store"
	"github.com/fivewire/fivewire/store/natsstore"
	"github.com/fivewire/fivewire/store/natsstore/embedded"
)

const damageCount = 30

// contents reads all entries and records.
func contents(ctx context.Context, s store.Store) (map[string]string, error) {
	got := map[string]string{}
	for e, err := range s.List(ctx, "") {
		if err != nil {
			return nil, err
		}
		got["key "+e.Key] = fmt.Sprint(e.Revision, string(e.Value))
	}
	records, err := s.Read(ctx, "s", 0, 1000)
	for _, r := range records {
		got[fmt.Sprint("record ", r.Seq)] = fmt.Sprint(r.ID, r.Time, string(r.Value))
	}
	return got, err
}

// TestBitFlip: after one changed bit in a block of a stopped server, everything is as before, or Open
// or a read reports damage: nothing is missing or changed silently.
func TestBitFlip(t *testing.T) {
	dir := t.TempDir()
	s, err := embedded.Open(t.Context(), dir, nil)
	require.NoError(t, err)
	for i := range damageCount {
		_, err := s.Create(t.Context(), fmt.Sprint("k", i), fmt.Appendf(nil, "value %d", i), 0)
		require.NoError(t, err)
		_, err = s.Append(t.Context(), "s", fmt.Sprint("id", i), fmt.Appendf(nil, "value %d", i), 0)
		require.NoError(t, err)
	}
	want, err := contents(t.Context(), s)
	require.NoError(t, err)
	require.Len(t, want, 2*damageCount)
	require.NoError(t, s.Close())
	blocks, err := filepath.Glob(filepath.Join(dir, "jetstream", "*", "streams", "*", "msgs", "*.blk"))
	require.NoError(t, err)
	require.Len(t, blocks, 2)
	rng := rand.New(rand.NewPCG(1, 2))
	refused := 0
	for i := range 16 {
		flipped := t.TempDir()
		require.NoError(t, os.CopyFS(flipped, os.DirFS(dir)))
		block, err := filepath.Rel(dir, blocks[i%2])
		require.NoError(t, err)
		block = filepath.Join(flipped, block)
		data, err := os.ReadFile(block)
		require.NoError(t, err)
		bit := rng.IntN(8 * len(data))
		data[bit/8] ^= 1 << (bit % 8)
		require.NoError(t, os.WriteFile(block, data, 0o600))
		s, err := embedded.Open(t.Context(), flipped, &natsstore.Options{})
		if err != nil {
			t.Logf("bit %d of %s: open: %v", bit, filepath.Base(filepath.Dir(filepath.Dir(block))), err)
			require.ErrorIs(t, err, store.ErrCorrupt)
			refused++
			continue
		}
		got, err := contents(t.Context(), s)
		require.NoError(t, s.Close())
		if err != nil {
			t.Logf("bit %d of %s: read: %v", bit, block, err)
			refused++
			continue
		}
		require.Equal(t, want, got, "bit %d of %s", bit, block)
	}
	require.Greater(t, refused, 12)
	t.Logf("%d of 16 refused", refused)
}

// TestOlderCopy: the messages of an earlier time below the mark of today are refused. With AcceptLoss,
// no position or revision is given again.
func TestOlderCopy(t *testing.T) {
	dir, older := t.TempDir(), t.TempDir()
	write := func(s store.Store) (seq uint64, rev store.Revision) {
		for range 10 {
			var err error
			seq, err = s.Append(t.Context(), "s", "", []byte("x"), 0)
			require.NoError(t, err)
			rev, err = s.Create(t.Context(), fmt.Sprint("k", seq), nil, 0)
			require.NoError(t, err)
		}
		return seq, rev
	}
	s, err := embedded.Open(t.Context(), dir, nil)
	require.NoError(t, err)
	have, _ := write(s)
	require.NoError(t, s.Close())
	require.NoError(t, os.CopyFS(older, os.DirFS(dir)))
	s, err = embedded.Open(t.Context(), dir, nil)
	require.NoError(t, err)
	highest, revision := write(s)
	require.NoError(t, s.Close())
	require.NoError(t, os.RemoveAll(filepath.Join(dir, "jetstream")))
	require.NoError(t, os.CopyFS(filepath.Join(dir, "jetstream"), os.DirFS(filepath.Join(older, "jetstream"))))

	report, err := embedded.Verify(dir)
	require.NoError(t, err)
	require.Equal(t, 2, report.Damaged, "%+v", report.Damage)
	require.Equal(t, []int{10, 10}, []int{report.Entries, report.Records})
	_, err = embedded.Open(t.Context(), dir, nil)
	var loss *store.LossError
	require.ErrorAs(t, err, &loss)
	require.EqualValues(t, revision, loss.Want) // the entries are compared first
	s, err = embedded.Open(t.Context(), dir, &natsstore.Options{AcceptLoss: true})
	require.NoError(t, err)
	records, err := s.Read(t.Context(), "s", 0, 100)
	require.NoError(t, err)
	require.Len(t, records, 10)
	require.Equal(t, have, records[9].Seq)
	seq, rev := write(s)
	require.Greater(t, seq-9, highest)
	require.Greater(t, rev-9, revision)
	require.NoError(t, s.Close())
	s, err = embedded.Open(t.Context(), dir, nil)
	require.NoError(t, err)
	require.NoError(t, s.Close())
	report, err = embedded.Verify(dir)
	require.NoError(t, err)
	require.NoError(t, report.Err())
}

// TestRelativeNames: a program may change its directory while a store has names relative to the earlier one.
func TestRelativeNames(t *testing.T) {
	root, other := t.TempDir(), t.TempDir()
	t.Chdir(root)
	s, err := embedded.Open(t.Context(), "data", &natsstore.Options{MarkFile: "mark"})
	require.NoError(t, err)
	t.Chdir(other)
	_, err = s.Create(t.Context(), "k", nil, 0)
	require.NoError(t, err)
	require.NoError(t, s.Close())
	require.FileExists(t, filepath.Join(root, "mark"))
	require.FileExists(t, filepath.Join(root, "data", "fivewire.clean"))
}

// A server that starts again with older data is refused by the open store, for reads, too. Verify reports what is left.
func TestLossWhileOpen(t *testing.T) {
	dir, older, addr := t.TempDir(), t.TempDir(), ""
	start := func() *embedded.Server {
		srv, err := embedded.Start(dir, &embedded.Options{Listen: cmp.Or(addr, "127.0.0.1:0")})
		require.NoError(t, err)
		addr = strings.TrimPrefix(srv.URL(), "nats://")
		return srv
	}
	srv := start()
	s, err := natsstore.Open(t.Context(), srv.URL(), nil)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	appendOne := func() (seq uint64) {
		seq, err := s.Append(t.Context(), "s", "", []byte("x"), 0)
		require.NoError(t, err)
		return seq
	}
	have := appendOne()
	srv.Shutdown()
	require.NoError(t, os.CopyFS(older, os.DirFS(filepath.Join(dir, "jetstream"))))
	srv = start()
	want := appendOne()
	records, err := s.Read(t.Context(), "s", 0, 10)
	require.NoError(t, err)
	require.Len(t, records, 2, "a restart loses nothing")
	waiting := make(chan error, 1)
	go func() { waiting <- s.Wait(t.Context(), "s", want) }()
	srv.Shutdown()
	require.NoError(t, os.RemoveAll(filepath.Join(dir, "jetstream")))
	require.NoError(t, os.CopyFS(filepath.Join(dir, "jetstream"), os.DirFS(older)))
	srv = start()
	t.Cleanup(srv.Shutdown)
	var loss *store.LossError
	require.Eventually(t, func() bool {
		_, err := s.Read(t.Context(), "s", 0, 10)
		return errors.As(err, &loss)
	}, 30*time.Second, 50*time.Millisecond)
	require.Equal(t, []uint64{have, want}, []uint64{loss.Have, loss.Want})
	_, err = s.Get(t.Context(), "k")
	require.ErrorIs(t, err, store.ErrCorrupt)
	select {
	case err := <-waiting:
		require.ErrorAs(t, err, &loss)
	case <-time.After(20 * time.Second):
		t.Error("a waiting call does not return the loss")
	}
	report, err := s.Verify(t.Context())
	require.NoError(t, err)
	require.Equal(t, []int{1, 1}, []int{report.Damaged, report.Records})
}

// TestWaitEndsWithoutStreams: a call that waits returns an error if the streams of the store are deleted, even if
// nothing was ever stored in them.
func TestWaitEndsWithoutStreams(t *testing.T) {
	t.Parallel()
	for _, n := range []int{0, 3} {
		t.Run(fmt.Sprint(n, " records"), func(t *testing.T) {
			t.Parallel()
			s, nc := openOn(t, startEmbedded(t, fast), nil)
			var last uint64
			for range n {
				var err error
				last, err = s.Append(t.Context(), "s", "", nil, 0)
				require.NoError(t, err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			waiting := make(chan error, 1)
			go func() { waiting <- s.Wait(ctx, "s", last) }()
			require.Eventually(t, func() bool { return nc.NumSubscriptions() > 1 }, time.Minute, time.Millisecond)
			js, err := jetstream.New(nc)
			require.NoError(t, err)
			for _, stream := range []string{"fivewire_kv", "fivewire_log"} {
				require.NoError(t, js.DeleteStream(t.Context(), stream))
			}
			require.NoError(t, nc.ForceReconnect()) // the store compares its ends then, or once a minute
			var damaged *store.CorruptError
			require.ErrorAs(t, <-waiting, &damaged)
			require.Equal(t, "fivewire_kv", damaged.Path)
			_, err = s.Read(t.Context(), "s", 0, 1)
			require.ErrorAs(t, err, &damaged)
		})
	}
}

// TestVerify: Verify counts what is stored while others write, and names a changed message, a wrong id, and
// the loss of a stream.
func TestVerify(t *testing.T) {
	srv := startEmbedded(t, nil)
	s, err := srv.Open(t.Context(), nil)
	require.NoError(t, err)
	defer s.Close()
	for i := range 40 {
		_, err := s.Create(t.Context(), fmt.Sprint("k/", i), make([]byte, 10_000), 0)
		require.NoError(t, err)
		seq, err := s.Append(t.Context(), "s", fmt.Sprint("id", i), []byte("x"), time.Hour)
		require.NoError(t, err)
		if i%4 == 0 {
			require.NoError(t, s.Ack(t.Context(), "s", seq))
		}
	}
	_, err = s.Append(t.Context(), "s", "", []byte("x"), time.Nanosecond)
	require.NoError(t, err)
	report, err := s.Verify(t.Context())
	require.NoError(t, err)
	require.NoError(t, report.Err())
	require.Equal(t, []int{40, 31, 10, 1}, []int{report.Entries, report.Records, report.IDs, report.Expired})
	require.Equal(t, map[string]uint64{"fivewire_kv": 40, "fivewire_log": 51}, report.Last)

	nc, err := srv.Conn()
	require.NoError(t, err)
	defer nc.Close()
	js, err := jetstream.New(nc)
	require.NoError(t, err)
	change := func(stream string, seq uint64, change func(m *nats.Msg)) {
		st, err := js.Stream(t.Context(), stream)
		require.NoError(t, err)
		old, err := st.GetMsg(t.Context(), seq)
		require.NoError(t, err)
		m := &nats.Msg{Subject: old.Subject, Header: nats.Header{}, Data: old.Data}
		for _, name := range []string{"Fivewire-Sum", "Fivewire-ID", "Fivewire-TTL"} {
			if old.Header[name] != nil {
				m.Header[name] = old.Header[name]
			}
		}
		change(m)
		_, err = js.PublishMsg(t.Context(), m)
		require.NoError(t, err)
	}
	change("fivewire_kv", 7, func(m *nats.Msg) { m.Data[99] ^= 1 })
	change("fivewire_log", 3, func(m *nats.Msg) {
		m.Subject = m.Subject[:len(m.Subject)-1] + "_"
		delete(m.Header, "Fivewire-Sum") // as by an earlier version
	})
	report, err = s.Verify(t.Context())
	require.NoError(t, err)
	require.Equal(t, []natsstore.Damage{
		{Area: "fivewire_kv", Key: "k/6", Position: 41, Problem: "checksum does not match"},
		{Area: "fivewire_log", ID: "id1", Position: 52, Problem: "id differs from that of the subject"},
	}, report.Damage)
	require.ErrorIs(t, report.Err(), store.ErrCorrupt)

	st, err := js.Stream(t.Context(), "fivewire_log")
	require.NoError(t, err)
	require.NoError(t, js.DeleteStream(t.Context(), "fivewire_log"))
	_, err = js.CreateStream(t.Context(), st.CachedInfo().Config)
	require.NoError(t, err)
	report, err = s.Verify(t.Context())
	require.NoError(t, err)
	require.Equal(t, 2, report.Damaged, "%+v", report.Damage)
	require.Contains(t, report.Damage[1].Problem, "positions 1 to 51 are missing")
}

// TestChecksum: a message whose value differs from its checksum is an error that names its position.
func TestChecksum(t *testing.T) {
	srv := startEmbedded(t, nil)
	s, err := srv.Open(t.Context(), nil)
	require.NoError(t, err)
	defer s.Close()
	_, err = s.Create(t.Context(), "k", []byte("x"), 0)
	require.NoError(t, err)
	nc, err := srv.Conn()
	require.NoError(t, err)
	defer nc.Close()
	js, err := jetstream.New(nc)
	require.NoError(t, err)
	stream, err := js.Stream(t.Context(), "fivewire_kv")
	require.NoError(t, err)
	m, err := stream.GetMsg(t.Context(), 1)
	require.NoError(t, err)
	require.NotEmpty(t, m.Header.Get("Fivewire-Sum"))
	header := nats.Header{"Fivewire-Sum": m.Header["Fivewire-Sum"]}
	_, err = js.PublishMsg(t.Context(), &nats.Msg{Subject: m.Subject, Header: header, Data: []byte("y")})
	require.NoError(t, err)
	_, err = s.Get(t.Context(), "k")
	var damaged *store.CorruptError
	require.ErrorAs(t, err, &damaged)
	require.EqualValues(t, 2, damaged.Position)
	require.Equal(t, "fivewire_kv", damaged.Path)

	seq, err := s.Append(t.Context(), "s", "", []byte("x"), 0)
	require.NoError(t, err)
	stream, err = js.Stream(t.Context(), "fivewire_log")
	require.NoError(t, err)
	m, err = stream.GetMsg(t.Context(), seq)
	require.NoError(t, err)
	header = nats.Header{"Fivewire-Sum": m.Header["Fivewire-Sum"]}
	_, err = js.PublishMsg(t.Context(), &nats.Msg{Subject: m.Subject, Header: header, Data: []byte("y")})
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	require.ErrorAs(t, s.Wait(ctx, "s", seq), &damaged)
	require.Equal(t, seq+1, damaged.Position)
}
