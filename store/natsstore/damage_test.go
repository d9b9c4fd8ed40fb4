// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package natsstore_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

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
}
