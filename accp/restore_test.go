// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package accp_test

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/accp"
	"github.com/fivewire/fivewire/store"
)

// A meddler is a store in which something happens just before a call.
type meddler struct {
	store.Store
	before func(op, key string) error // guarded by nothing: set before use
}

func (m *meddler) Create(ctx context.Context, key string, value []byte, ttl time.Duration) (store.Revision, error) {
	if err := m.before("create", key); err != nil {
		return 0, err
	}
	return m.Store.Create(ctx, key, value, ttl)
}

func (m *meddler) Update(ctx context.Context, key string, value []byte, rev store.Revision, ttl time.Duration) (store.Revision, error) {
	if err := m.before("update", key); err != nil {
		return 0, err
	}
	return m.Store.Update(ctx, key, value, rev, ttl)
}

func (m *meddler) Delete(ctx context.Context, key string, rev store.Revision) error {
	if err := m.before("delete", key); err != nil {
		return err
	}
	return m.Store.Delete(ctx, key, rev)
}

func (m *meddler) Append(ctx context.Context, stream, id string, value []byte, ttl time.Duration) (uint64, error) {
	if err := m.before("append", stream); err != nil {
		return 0, err
	}
	return m.Store.Append(ctx, stream, id, value, ttl)
}

// sessionKeys returns the keys of sessions: those without the outcomes of requests.
func sessionKeys(t testing.TB, kv store.KV) []string {
	t.Helper()
	return slices.DeleteFunc(keysOf(t, kv), func(key string) bool {
		return strings.HasPrefix(key, "accp/once/") || strings.HasPrefix(key, "accp/lease/") || strings.HasPrefix(key, "accp/owner/")
	})
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

// A frame that names what came before a thousand times is delivered with one copy
// of it, and refused if it names too much (ACCP-137).
func TestReferencesThatMultiply(t *testing.T) {
	s := session(t, &accp.SessionOptions{DisableAutoCheckpoint: true, MaxMemory: -1})
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
		s, err := accp.NewSession("server", id, &accp.SessionOptions{Persistence: accp.Persistence{Store: kv}})
		require.NoError(t, err)
		return s
	}
	require.NoError(t, open(long).Put(t.Context(), accp.ScopeCold, "secret", accp.Int(1), 0))
	_, err := open(short).Resolve(t.Context(), "cold.secret")
	require.ErrorIs(t, err, accp.ErrRefNotFound)
	_, err = open(long).Resolve(t.Context(), "cold.secret")
	require.NoError(t, err)
}

// Sessions without id cannot protect their data, so they move nothing to a shared store (ACCP-133).
func TestNamelessSessionsShareNothing(t *testing.T) {
	kv := store.NewMemory()
	s, err := accp.NewSession("a", "", &accp.SessionOptions{Persistence: accp.Persistence{SharedStore: kv}})
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
	m := &meddler{Store: kv, before: func(op, key string) error {
		if op == "create" && first {
			first = false
			_, err := kv.Create(t.Context(), key, append(make([]byte, 8), "theirs"...), 0)
			return err
		}
		return nil
	}}
	s := session(t, &accp.SessionOptions{Persistence: accp.Persistence{SharedStore: m}})
	sent, err := s.Send(t.Context(), msg("req", "b", text("k", strings.Repeat("x", 60))))
	require.NoError(t, err)
	require.Regexp(t, `\{k:\$cold\.h[0-9a-f]{12}\}`, string(sent.Frames[0]), "a longer address")
	keys := keysOf(t, kv)
	require.Len(t, keys, 2)
	e, err := kv.Get(t.Context(), keys[0])
	require.NoError(t, err)
	require.Equal(t, "theirs", string(e.Value[8:]))
}

// Each of several processes sends the difference to the current state, not to its last known one
// (ACCP-098).
func TestSyncInSeveralProcesses(t *testing.T) {
	kv := store.NewMemory()
	a, b := session(t, &accp.SessionOptions{Persistence: accp.Persistence{Store: kv}}), session(t, &accp.SessionOptions{Persistence: accp.Persistence{Store: kv}})
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
	require.Contains(t, got[0], "|delta:{k:one}|v:3}")
	require.Empty(t, sync(b, "one"))
}

// A process whose hot state is full makes a checkpoint first, which loads the changes of another process. An earlier
// decision is void: a frame is accepted once, and a number is sent once (ACCP-D24, ACCP-D26).
func TestCheckpointBeforeAMessageOfAnotherProcess(t *testing.T) {
	long := strings.Repeat("some words of a task ", 26)
	open := func() (a, b *accp.Session) {
		kv := store.NewMemory()
		a, b = session(t, &accp.SessionOptions{Persistence: accp.Persistence{Store: kv}}), session(t, &accp.SessionOptions{Persistence: accp.Persistence{Store: kv}})
		receive(t, b, frame("req:plan{task:"+strings.ReplaceAll(long, " ", "-")+"}", 1))
		used, err := b.Budget(t.Context())
		require.NoError(t, err)
		require.Greater(t, used.Hot.Used, 250, "half of hot state")
		return a, b
	}
	next := frame("req:plan{task:"+strings.ReplaceAll(long, " ", "-")+"}", 2)
	a, b := open()
	receive(t, a, next)
	_, err := b.Receive(t.Context(), next)
	require.ErrorIs(t, err, accp.ErrDuplicate)

	a, b = open()
	one, err := a.Send(t.Context(), msg("req", "plan", text("task", long)))
	require.NoError(t, err)
	two, err := b.Send(t.Context(), msg("req", "plan", text("task", long)))
	require.NoError(t, err)
	last := one.Message.Meta.Seq.N + int64(len(one.Frames)) - 1
	require.Equal(t, last+1, two.Message.Meta.Seq.N)
}

// After a restart a session shows what it knows before its first frame, once it has
// looked.
func TestRefresh(t *testing.T) {
	kv := store.NewMemory()
	opts := &accp.SessionOptions{Persistence: accp.Persistence{Store: kv}}
	s := session(t, opts)
	require.NoError(t, s.Reload(t.Context()))
	receive(t, s, frame("sync:state{v:7|state:{phase:plan}}", 1))
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
	require.Contains(t, strings.Join(fresh.ModelContext(1000, 0).Lines, "\n"), "result=good")

	broken := &flaky{Store: kv}
	broken.fail.Store(true)
	require.ErrorIs(t, session(t, &accp.SessionOptions{Persistence: accp.Persistence{Store: broken}}).Reload(t.Context()), accp.ErrInternal)
	require.NoError(t, session(t, nil).Reload(t.Context()))
}

// Sides of a session that share a store make checkpoints concurrently: ids belong to the session
// (ACCP-D40), and no entry is overwritten.
func TestCheckpointsOfSeveralSides(t *testing.T) {
	kv := store.NewMemory()
	side := func(self string) *accp.Session {
		s, err := accp.NewSession(self, "s1", &accp.SessionOptions{Persistence: accp.Persistence{Store: kv}})
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
	reopened := side("one")
	require.NoError(t, reopened.Reload(t.Context()))
	require.Equal(t, a.Checkpoints(), reopened.Checkpoints(), "each side knows its own")
	require.Len(t, reopened.Checkpoints(), 2)
}

// After another process has ended a session and started a new one with the id, nothing of the old
// replay window remains, and all of the new one applies (ACCP-066).
func TestSessionReplacedByAnotherProcess(t *testing.T) {
	kv := store.NewMemory()
	opts := &accp.SessionOptions{Persistence: accp.Persistence{Store: kv}, DisableAutoCheckpoint: true}
	old := session(t, opts)
	for i := int64(1); i <= 20; i++ {
		receive(t, old, frame("ping:heartbeat{}", i))
	}
	require.NoError(t, session(t, opts).End(t.Context(), nil))
	renewed := session(t, opts)
	for i := int64(101); i <= 140; i++ {
		receive(t, renewed, frame("ping:heartbeat{}", i))
	}
	for i := int64(101); i <= 140; i++ {
		_, err := old.Receive(t.Context(), frame("ping:heartbeat{}", i))
		require.ErrorIs(t, err, accp.ErrDuplicate, "%d", i)
	}
	receive(t, old, frame("ping:heartbeat{}", 141))
	_, err := renewed.Receive(t.Context(), frame("ping:heartbeat{}", 141))
	require.ErrorIs(t, err, accp.ErrDuplicate)
}

// A part of the registry exchange that could not be sent counts as not sent.
func TestHelloThatFails(t *testing.T) {
	answers := 0
	kv := &meddler{Store: store.NewMemory(), before: func(op, key string) error {
		if op != "append" {
			return nil
		}
		if answers++; answers == 2 { // the frame was taken, its answer is not
			return errBroken
		}
		return nil
	}}
	s := session(t, &accp.SessionOptions{Persistence: accp.Persistence{Store: kv}})
	hello := func(seq int64) []byte {
		return frame("sync:registry{hash:"+accp.NewRegistry().Hash()[:12]+"|v:1}", seq)
	}
	_, _, err := s.ReceiveRegistry(t.Context(), hello(1))
	require.ErrorIs(t, err, errBroken)
	reply, isSynced, err := s.ReceiveRegistry(t.Context(), hello(2))
	require.NoError(t, err)
	require.NotNil(t, reply, "the hello that the peer waits for")
	require.True(t, isSynced)
	reply, _, err = s.ReceiveRegistry(t.Context(), hello(4))
	require.NoError(t, err)
	require.Nil(t, reply)
}

// While hot state is full because checkpoints fail, what ends work or keeps a
// connection alive still passes, and the first frame after the failure makes room.
func TestHotStateThatIsFull(t *testing.T) {
	kv := &flaky{Store: store.NewMemory(), fits: func(key string) bool { return strings.Contains(key, "/checkpoint/") }}
	s := session(t, &accp.SessionOptions{Persistence: accp.Persistence{Store: kv}})
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
