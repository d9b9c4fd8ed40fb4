// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package accp_test

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"iter"
	"math"
	"net/url"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/accp"
	"github.com/fivewire/fivewire/store"
)

// A meddler is a store in which something happens just before a call.
type meddler struct {
	store.KV
	before func(op, key string) error // guarded by nothing: set before use
}

func (m *meddler) Create(ctx context.Context, key string, value []byte, ttl time.Duration) (store.Revision, error) {
	if err := m.before("create", key); err != nil {
		return 0, err
	}
	return m.KV.Create(ctx, key, value, ttl)
}

func (m *meddler) Update(ctx context.Context, key string, value []byte, rev store.Revision, ttl time.Duration) (store.Revision, error) {
	if err := m.before("update", key); err != nil {
		return 0, err
	}
	return m.KV.Update(ctx, key, value, rev, ttl)
}

func (m *meddler) Delete(ctx context.Context, key string, rev store.Revision) error {
	if err := m.before("delete", key); err != nil {
		return err
	}
	return m.KV.Delete(ctx, key, rev)
}

func keysOf(t testing.TB, kv store.KV) []string {
	t.Helper()
	var keys []string
	for e, err := range kv.List(t.Context(), "") {
		require.NoError(t, err)
		keys = append(keys, e.Key)
	}
	return keys
}

// Whatever version a peer begins with, the session can be read again (ACCP-D45).
func TestStateVersionsSurvive(t *testing.T) {
	for _, v := range []int64{math.MinInt64, -5, 0, math.MaxInt64} {
		kv := store.NewMemory()
		s := session(t, &accp.SessionOptions{Store: kv})
		receive(t, s, frame(fmt.Sprintf("sync:state{v:%d|delta:{k:1}}", v), 1))
		s = session(t, &accp.SessionOptions{Store: kv})
		receive(t, s, frame("ping:heartbeat{}", 2))
		got, state := s.State()
		require.Equal(t, v, got)
		require.Len(t, state, 1)
		sent, err := s.Sync(t.Context(), accp.Params{text("k", "v")})
		if v == math.MaxInt64 {
			require.ErrorIs(t, err, accp.ErrInternal, "there is no higher version")
			got, _ = s.State()
			require.Equal(t, v, got)
			continue
		}
		require.NoError(t, err)
		require.Contains(t, string(sent.Frames[0]), fmt.Sprintf("v:%d}", v+1))
	}
}

// A frame that names what came before a thousand times is delivered with one copy
// of it, and refused if it names too much (ACCP-137).
func TestReferencesThatMultiply(t *testing.T) {
	s := session(t, &accp.SessionOptions{DisableAutoCheckpoint: true})
	big := accp.String(strings.Repeat("x", 4<<20))
	for i := range 20 {
		require.NoError(t, s.Put(t.Context(), accp.ScopeCold, fmt.Sprint("k", i), big, 0))
	}
	refs := func(n, of int) string {
		var b strings.Builder
		for i := range n {
			fmt.Fprintf(&b, ",$cold.k%d", i%of)
		}
		return "req:a{x:[" + b.String()[1:] + "]}"
	}
	r := receive(t, s, frame(refs(4000, 1), 1))
	v, _ := r.Message.Params.Get("x")
	require.Equal(t, 4000, v.Len())
	for _, x := range v.Elements() {
		require.True(t, x.Equal(big))
	}
	receive(t, s, frame(refs(15, 15), 2))
	_, err := s.Receive(t.Context(), frame(refs(20, 20), 3))
	require.ErrorIs(t, err, accp.ErrBudgetExceeded)
}

// No name of a session leads to what another one stored, however it is written
// (ACCP-133).
func TestLongNamesDoNotMeet(t *testing.T) {
	kv := store.NewMemory()
	var long, short string
	for i := 0; short == ""; i++ {
		long = fmt.Sprint(strings.Repeat("x", 300), i)
		sum := sha256.Sum256([]byte(long))
		name := "%" + hex.EncodeToString(sum[:])
		if raw, err := url.PathUnescape(name); err == nil && url.PathEscape(raw) == name {
			short = raw // what a naive key of the long name would be for
		}
	}
	open := func(id string) *accp.Session {
		s, err := accp.NewSession("server", id, &accp.SessionOptions{Store: kv})
		require.NoError(t, err)
		return s
	}
	require.NoError(t, open(long).Put(t.Context(), accp.ScopeCold, "secret", accp.Int(1), 0))
	_, err := open(short).Resolve(t.Context(), "cold.secret")
	require.ErrorIs(t, err, accp.ErrRefNotFound)
	_, err = open(long).Resolve(t.Context(), "cold.secret")
	require.NoError(t, err)
}

// What sessions without a name send is nobody else's, so they move nothing to a
// shared store (ACCP-133).
func TestNamelessSessionsShareNothing(t *testing.T) {
	kv := store.NewMemory()
	s, err := accp.NewSession("a", "", &accp.SessionOptions{SharedStore: kv})
	require.NoError(t, err)
	long := strings.Repeat("x", 60)
	sent, err := s.Send(t.Context(), msg("req", "b", text("k", long)))
	require.NoError(t, err)
	require.Contains(t, string(sent.Frames[0]), long)
	require.Empty(t, keysOf(t, kv))
}

// Two sides that move different texts to the same address at the same time do not
// write over each other (ACCP-D36).
func TestSharedTextsThatMeet(t *testing.T) {
	kv := store.NewMemory()
	first := true
	m := &meddler{KV: kv, before: func(op, key string) error {
		if op == "create" && first {
			first = false
			_, err := kv.Create(t.Context(), key, append(make([]byte, 8), "theirs"...), 0)
			return err
		}
		return nil
	}}
	s := session(t, &accp.SessionOptions{SharedStore: m})
	sent, err := s.Send(t.Context(), msg("req", "b", text("k", strings.Repeat("x", 60))))
	require.NoError(t, err)
	require.Regexp(t, `\{k:\$cold\.h[0-9a-f]{12}\}`, string(sent.Frames[0]), "a longer address")
	keys := keysOf(t, kv)
	require.Len(t, keys, 2)
	e, err := kv.Get(t.Context(), keys[0])
	require.NoError(t, err)
	require.Equal(t, "theirs", string(e.Value[8:]))
}

// Of several processes each sends what differs from the state as it is, not as it
// last saw it (ACCP-098).
func TestSyncInSeveralProcesses(t *testing.T) {
	kv := store.NewMemory()
	a, b := session(t, &accp.SessionOptions{Store: kv}), session(t, &accp.SessionOptions{Store: kv})
	sync := func(s *accp.Session, v string) []string {
		sent, err := s.Sync(t.Context(), accp.Params{text("k", v)})
		require.NoError(t, err)
		var out []string
		for _, f := range sent.Frames {
			out = append(out, string(f))
		}
		return out
	}
	require.Len(t, sync(a, "one"), 1)
	require.Len(t, sync(b, "two"), 1)
	got := sync(a, "one")
	require.Len(t, got, 1, "b changed it meanwhile")
	require.Contains(t, got[0], "{delta:{k:one}|v:3}")
	require.Empty(t, sync(b, "one"))
}

// After a restart a session shows what it knows before its first frame, once it has
// looked.
func TestRefresh(t *testing.T) {
	kv := store.NewMemory()
	opts := &accp.SessionOptions{Store: kv}
	s := session(t, opts)
	require.NoError(t, s.Reload(t.Context()))
	receive(t, s, frame("sync:state{v:7|delta:{phase:plan}}", 1))
	receive(t, s, frame("done:a{result:good}", 2))
	receive(t, s, frame("cancel:a{}", 3, "cid:c1"))
	cp := s.Checkpoints()
	require.Len(t, cp, 1)

	fresh := session(t, opts)
	ctx, done := fresh.ChainContext(t.Context(), "c1")
	defer done()
	require.NoError(t, fresh.Reload(t.Context()))
	v, state := fresh.State()
	require.EqualValues(t, 7, v)
	require.Equal(t, "plan", state.Text("phase"))
	require.Equal(t, cp, fresh.Checkpoints())
	require.True(t, fresh.IsCancelled("c1"))
	require.Error(t, ctx.Err())
	lines, _ := fresh.ModelContext(1000)
	require.Contains(t, strings.Join(lines, "\n"), "result=good")

	broken := &flaky{KV: kv}
	broken.fail.Store(true)
	require.ErrorIs(t, session(t, &accp.SessionOptions{Store: broken}).Reload(t.Context()), accp.ErrInternal)
	require.NoError(t, session(t, nil).Reload(t.Context()))
}

// Sides of a session that share a store make checkpoints beside each other: ids
// are those of the session (ACCP-D40), and nothing is written over.
func TestCheckpointsOfSeveralSides(t *testing.T) {
	kv := store.NewMemory()
	side := func(self string) *accp.Session {
		s, err := accp.NewSession(self, "s1", &accp.SessionOptions{Store: kv})
		require.NoError(t, err)
		return s
	}
	a, b := side("one"), side("two")
	made := map[string]string{} // summary by id
	for i := range 4 {
		s := []*accp.Session{a, b}[i%2]
		sent, err := s.Send(t.Context(), msg("done", "work", text("k", fmt.Sprint("v", i))))
		require.NoError(t, err)
		made[sent.Checkpoint.ID] = sent.Checkpoint.Summary
	}
	require.Len(t, made, 4, "%v", made)
	for id, summary := range made {
		for _, s := range []*accp.Session{a, b, side("three")} {
			v, err := s.Resolve(t.Context(), "warm."+id)
			require.NoError(t, err)
			require.True(t, v.Equal(accp.String(summary)), id)
		}
	}
	again := side("one")
	require.NoError(t, again.Reload(t.Context()))
	require.Equal(t, a.Checkpoints(), again.Checkpoints(), "each side knows its own")
	require.Len(t, again.Checkpoints(), 2)
}

// A checkpoint that another process was making when this one looked is found later,
// in its place.
func TestCheckpointFoundLate(t *testing.T) {
	kv := store.NewMemory()
	begun, finish := make(chan struct{}), make(chan struct{})
	slow := session(t, &accp.SessionOptions{Store: kv, Summarizer: accp.SummarizerFunc(
		func(context.Context, []accp.Fact, []string, int) (string, error) {
			close(begun)
			<-finish
			return "slow", nil
		})})
	other := session(t, &accp.SessionOptions{Store: kv})
	var wg sync.WaitGroup
	wg.Go(func() {
		if _, err := slow.Checkpoint(t.Context()); err != nil {
			t.Error(err)
		}
	})
	<-begun
	cp, err := other.Checkpoint(t.Context())
	require.NoError(t, err)
	require.Equal(t, "cp2", cp.ID)
	ids := func() (ids []string) {
		require.NoError(t, other.Reload(t.Context()))
		for _, cp := range other.Checkpoints() {
			ids = append(ids, cp.ID)
		}
		return ids
	}
	require.Equal(t, []string{"cp2"}, ids())
	close(finish)
	wg.Wait()
	require.Equal(t, []string{"cp1", "cp2"}, ids())
	budget, err := other.Budget(t.Context())
	require.NoError(t, err)
	require.Equal(t, accp.ApproxCounter{}.Count("$warm.cp2"), budget.Hot.Used, "hot state goes on from the newest")
	// Many are found at once, and in order.
	for range 40 {
		_, err = session(t, &accp.SessionOptions{Store: kv}).Checkpoint(t.Context())
		require.NoError(t, err)
	}
	all := ids()
	require.Len(t, all, 42)
	for i, id := range all {
		require.Equal(t, fmt.Sprint("cp", i+1), id)
	}
}

// A session that was ended and begun anew by another process is another one: of the
// old window of replays nothing is left, and all of the new one holds (ACCP-066).
func TestSessionBegunAnewElsewhere(t *testing.T) {
	kv := store.NewMemory()
	opts := &accp.SessionOptions{Store: kv, DisableAutoCheckpoint: true}
	old := session(t, opts)
	for i := int64(1); i <= 20; i++ {
		receive(t, old, frame("ping:heartbeat{}", i))
	}
	require.NoError(t, session(t, opts).End(t.Context(), nil))
	anew := session(t, opts)
	for i := int64(101); i <= 140; i++ {
		receive(t, anew, frame("ping:heartbeat{}", i))
	}
	for i := int64(101); i <= 140; i++ {
		_, err := old.Receive(t.Context(), frame("ping:heartbeat{}", i))
		require.ErrorIs(t, err, accp.ErrDuplicate, "%d", i)
	}
	receive(t, old, frame("ping:heartbeat{}", 141))
	_, err := anew.Receive(t.Context(), frame("ping:heartbeat{}", 141))
	require.ErrorIs(t, err, accp.ErrDuplicate)
}

// A process that slept while others went on writes none of its old pages over
// theirs.
func TestPagesOfASleeper(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		kv := store.NewMemory()
		open := func() *accp.Session {
			s := session(t, &accp.SessionOptions{Store: kv, SeqPerSender: true, DisableAutoCheckpoint: true, Retention: time.Hour})
			accp.SetReplayWindow(s, 1024)
			return s
		}
		sleeper, busy := open(), open()
		n := int64(0)
		ping := func(s *accp.Session) {
			n++
			receive(t, s, frame("ping:heartbeat{}", n))
		}
		for range 1024 {
			ping(sleeper)
		}
		for range 1024 {
			ping(busy)
		}
		time.Sleep(40 * time.Minute) // the sleeper's pages are due to be renewed
		ping(sleeper)
		fresh := open()
		for i := n; i > n-1024; i-- {
			f := strings.Replace(string(frame("ping:heartbeat{}", i)), "@a>", fmt.Sprintf("@b%d>", i), 1)
			_, err := fresh.Receive(t.Context(), []byte(f))
			require.ErrorIs(t, err, accp.ErrDuplicate, "%d of %d", i, n)
		}
	})
}

// What could not be sent of the exchange of registries counts as not sent (e.6).
func TestHelloThatFails(t *testing.T) {
	writes := 0
	kv := &meddler{KV: store.NewMemory(), before: func(op, key string) error {
		if writes++; writes == 2 { // the frame was taken, its answer is not
			return errBroken
		}
		return nil
	}}
	s := session(t, &accp.SessionOptions{Store: kv})
	hello := func(seq int64) []byte {
		return frame("sync:registry{hash:"+accp.NewRegistry().Hash()[:12]+"|v:1}", seq)
	}
	_, err := s.ReceiveRegistry(t.Context(), hello(1))
	require.ErrorIs(t, err, errBroken)
	n, err := s.ReceiveRegistry(t.Context(), hello(2))
	require.NoError(t, err)
	require.NotNil(t, n.Reply, "the hello that the peer waits for")
	require.True(t, n.Synced)
	n, err = s.ReceiveRegistry(t.Context(), hello(4))
	require.NoError(t, err)
	require.Nil(t, n.Reply)
}

// While hot state is full because checkpoints fail, what ends work or keeps a
// connection alive still passes, and the first frame after the failure makes room.
func TestHotStateThatIsFull(t *testing.T) {
	kv := &flaky{KV: store.NewMemory(), fits: func(key string) bool { return strings.Contains(key, "/cold/") }}
	s := session(t, &accp.SessionOptions{Store: kv})
	accp.SetHotLimit(s, 200)
	kv.fail.Store(true)
	n := int64(0)
	next := func(body string, more ...string) []byte {
		n++
		return frame(body, n, more...)
	}
	for range 200 {
		receive(t, s, next("ack:x{}"))
	}
	_, err := s.Receive(t.Context(), next("req:a{}"))
	require.ErrorIs(t, err, accp.ErrInternal)
	_, err = s.Send(t.Context(), msg("req", "a"))
	require.ErrorIs(t, err, accp.ErrInternal)
	receive(t, s, next("ping:heartbeat{}"))
	ctx, done := s.ChainContext(t.Context(), "c1")
	defer done()
	require.Equal(t, accp.OutcomeCancelled, receive(t, s, next("cancel:a{}", "cid:c1")).Outcome)
	require.Error(t, ctx.Err())
	_, err = s.SendError(t.Context(), err, frame("req:a{}", 1))
	require.NoError(t, err)
	n++
	kv.fail.Store(false)
	receive(t, s, next("req:a{}"))
	cp := s.Checkpoints()
	require.Len(t, cp, 1)
	require.Equal(t, 202, cp[0].Frames, "nothing was lost")
}

// counted is a store that counts what is read from it.
type counted struct {
	store.KV
	gets, lists int
}

func (c *counted) Get(ctx context.Context, key string) (store.Entry, error) {
	c.gets++
	return c.KV.Get(ctx, key)
}

func (c *counted) List(ctx context.Context, prefix string) iter.Seq2[store.Entry, error] {
	c.lists++
	return c.KV.List(ctx, prefix)
}

// Two sides that have a store in common and make checkpoints in turns do not list
// all of them for each, and processes of one side do not look for ever for those of
// the other.
func TestCostOfSeveralSides(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		kv := &counted{KV: store.NewMemory()}
		side := func(self string) *accp.Session {
			s, err := accp.NewSession(self, "s1", &accp.SessionOptions{Store: kv})
			require.NoError(t, err)
			return s
		}
		one, two, again := side("one"), side("two"), side("one")
		for range 12 {
			for _, s := range []*accp.Session{one, two, again} {
				_, err := s.Checkpoint(t.Context())
				require.NoError(t, err)
			}
		}
		require.Zero(t, kv.lists)
		require.Len(t, two.Checkpoints(), 12)
		for _, s := range []*accp.Session{one, again} {
			require.NoError(t, s.Reload(t.Context()))
			require.Len(t, s.Checkpoints(), 24)
		}
		time.Sleep(time.Hour)
		for _, s := range []*accp.Session{one, again} {
			require.NoError(t, s.Reload(t.Context()), "the last look")
		}
		for range 4 {
			for _, s := range []*accp.Session{one, again} {
				kv.gets = 0
				_, err := s.Send(t.Context(), msg("ping", "heartbeat"))
				require.NoError(t, err)
				require.LessOrEqual(t, kv.gets, 1)
			}
		}
	})
}
