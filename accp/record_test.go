// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package accp_test

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/accp"
	"github.com/fivewire/fivewire/internal/kit"
	"github.com/fivewire/fivewire/store"
)

// A session with the same store continues after a restart: numbers, replays, cancelled chains,
// checkpoints, shared state (ACCP-066, ACCP-067, ACCP-096, ACCP-D24, ACCP-D26, ACCP-D28, ACCP-D45).
func TestSessionSurvives(t *testing.T) {
	kv := store.NewMemory()
	open := func() *accp.Session {
		return session(t, &accp.SessionOptions{Persistence: accp.Persistence{Store: kv}})
	}
	s := open()
	first := frame("req:a{k:1}", 1)
	receive(t, s, first)
	receive(t, s, frame("cancel:a{}", 2, "cid:c1"))
	receive(t, s, frame("sync:state{v:7|state:{phase:plan}}", 3))
	_, err := s.Send(t.Context(), msg("done", "a", text("result", "good")))
	require.NoError(t, err)
	_, err = s.Sync(t.Context(), accp.Params{text("phase", "run")})
	require.NoError(t, err)
	cp := s.Checkpoints()
	require.Len(t, cp, 1)

	s = open()
	_, err = s.Receive(t.Context(), first)
	require.ErrorIs(t, err, accp.ErrDuplicate)
	require.NoError(t, s.Reload(t.Context()))
	require.Equal(t, cp, s.Checkpoints())
	require.Contains(t, strings.Join(s.ModelContext(1000, 0).Lines, "\n"), "result=good")
	require.Equal(t, "cancelled", receive(t, s, frame("req:a{}", 6, "cid:c1")).Reason)
	require.True(t, s.IsCancelled("c1"))
	_, err = s.Receive(t.Context(), frame("req:a{}", 3))
	require.ErrorIs(t, err, accp.ErrDuplicate)
	_, err = s.Receive(t.Context(), frame("req:a{}", 99))
	require.ErrorIs(t, err, accp.ErrSequenceGap)
	v, state := s.State()
	require.EqualValues(t, 8, v)
	require.Equal(t, "run", state.Text("phase"))
	sent, err := s.Send(t.Context(), msg("done", "b", text("result", "better")))
	require.NoError(t, err)
	require.EqualValues(t, 100, sent.Message.Meta.Seq.N)
	got, err := s.Resolve(t.Context(), "warm."+cp[0].ID)
	require.NoError(t, err)
	require.True(t, got.Equal(accp.String(cp[0].Summary)))

	// Another side, or another id, has separate numbers; a session without id stores nothing.
	other, err := accp.NewSession("other", "s1", &accp.SessionOptions{Persistence: accp.Persistence{Store: kv}})
	require.NoError(t, err)
	sent, err = other.Send(t.Context(), msg("req", "a"))
	require.NoError(t, err)
	require.EqualValues(t, 1, sent.Message.Meta.Seq.N)
	for range 2 {
		none, err := accp.NewSession("server", "", &accp.SessionOptions{Persistence: accp.Persistence{Store: kv}})
		require.NoError(t, err)
		sent, err = none.Send(t.Context(), msg("req", "a"))
		require.NoError(t, err)
		require.EqualValues(t, 1, sent.Message.Meta.Seq.N)
		require.NoError(t, none.Put(t.Context(), accp.ScopeCold, "k", accp.Int(1), 0))
		none, err = accp.NewSession("server", "", &accp.SessionOptions{Persistence: accp.Persistence{Store: kv}})
		require.NoError(t, err)
		_, err = none.Resolve(t.Context(), "cold.k")
		require.ErrorIs(t, err, accp.ErrRefNotFound, "what has no name is nobody else's (ACCP-133)")
	}
}

// The window of replays is the same after a restart, also where it is larger than
// the record.
func TestReplayWindowSurvives(t *testing.T) {
	kv := store.NewMemory()
	open := func() *accp.Session {
		s := session(t, &accp.SessionOptions{Persistence: accp.Persistence{Store: kv}, SeqPerSender: true, DisableAutoCheckpoint: true})
		accp.SetReplayWindow(s, 1024)
		return s
	}
	s := open()
	const n = 5000
	for i := int64(1); i <= n; i++ {
		receive(t, s, frame("ping:heartbeat{}", i))
		if i%777 == 0 {
			s = open()
		}
	}
	code := func(i int64) error {
		// From another sender any number is in order, so only the id is refused.
		f := strings.Replace(string(frame("ping:heartbeat{}", i)), "@a>", fmt.Sprintf("@b%d>", i), 1)
		_, err := s.Receive(t.Context(), []byte(f))
		return err
	}
	for i := int64(n); i > n-1024; i-- {
		if i%64 == 0 {
			s = open()
		}
		require.ErrorIs(t, code(i), accp.ErrDuplicate, "%d", i)
	}
	require.NoError(t, code(n-1024), "older than the window")
}

// Sessions of one id in several processes agree: every number is given once, every
// frame is taken once.
func TestSessionInSeveralProcesses(t *testing.T) {
	kv := store.NewMemory()
	var all []*accp.Session
	for range 4 {
		all = append(all, session(t, &accp.SessionOptions{Persistence: accp.Persistence{Store: kv}, DisableAutoCheckpoint: true}))
	}
	var mu sync.Mutex
	seqs := map[int64]int{}
	var wg sync.WaitGroup
	for _, s := range all {
		wg.Go(func() {
			for range 100 {
				sent, err := s.Send(t.Context(), msg("ping", "heartbeat"))
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				seqs[sent.Message.Meta.Seq.N]++
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	require.Len(t, seqs, 400)
	for n := int64(1); n <= 400; n++ {
		require.Equal(t, 1, seqs[n], n)
	}
	for i := int64(401); i < 600; i++ {
		var accepted atomic.Int32
		f := frame("ping:heartbeat{}", i)
		for _, s := range all {
			wg.Go(func() {
				if _, err := s.Receive(t.Context(), f); err == nil {
					accepted.Add(1)
				} else if !errors.Is(err, accp.ErrDuplicate) {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		require.EqualValues(t, 1, accepted.Load())
	}
	// A cancel that one takes ends the work in the others, with their next frame.
	ctx, done := all[0].ChainContext(t.Context(), "c1")
	defer done()
	receive(t, all[1], frame("cancel:a{}", 600, "cid:c1"))
	receive(t, all[0], frame("ping:heartbeat{}", 601))
	require.ErrorIs(t, ctx.Err(), context.Canceled)
	// Deltas in sequence, received by any process.
	for i := int64(1); i <= 20; i++ {
		receive(t, all[i%4], frame(fmt.Sprintf("sync:state{v:%d|delta:{n:%d}}", i, i), 601+i))
	}
	v, _ := all[0].State()
	require.EqualValues(t, 20, v)
}

// flaky is a store that fails when told to.
type flaky struct {
	store.Store
	fail atomic.Bool
	fits func(key string) bool // which keys fail; nil: all
}

var errBroken = errors.New("the disk is full")

func (f *flaky) broken(key string) bool { return f.fail.Load() && (f.fits == nil || f.fits(key)) }

func (f *flaky) Get(ctx context.Context, key string) (store.Entry, error) {
	if f.broken(key) {
		return store.Entry{}, errBroken
	}
	return f.Store.Get(ctx, key)
}

func (f *flaky) Create(ctx context.Context, key string, value []byte, ttl time.Duration) (store.Revision, error) {
	if f.broken(key) {
		return 0, errBroken
	}
	return f.Store.Create(ctx, key, value, ttl)
}

func (f *flaky) Update(ctx context.Context, key string, value []byte, rev store.Revision, ttl time.Duration) (store.Revision, error) {
	if f.broken(key) {
		return 0, errBroken
	}
	return f.Store.Update(ctx, key, value, rev, ttl)
}

func (f *flaky) Append(ctx context.Context, stream, id string, value []byte, ttl time.Duration) (uint64, error) {
	if f.broken(stream) {
		return 0, errBroken
	}
	return f.Store.Append(ctx, stream, id, value, ttl)
}

func (f *flaky) Read(ctx context.Context, stream string, after uint64, limit int) ([]store.Record, error) {
	if f.broken(stream) {
		return nil, errBroken
	}
	return f.Store.Read(ctx, stream, after, limit)
}

func (f *flaky) List(ctx context.Context, prefix string) iter.Seq2[store.Entry, error] {
	if f.broken(prefix) {
		return func(yield func(store.Entry, error) bool) { yield(store.Entry{}, errBroken) }
	}
	return f.Store.List(ctx, prefix)
}

// While the store fails nothing is used up, and afterwards nothing is lost.
func TestStoreFails(t *testing.T) {
	kv := &flaky{Store: store.NewMemory()}
	s := session(t, &accp.SessionOptions{Persistence: accp.Persistence{Store: kv}})
	receive(t, s, frame("req:a{k:1}", 1))
	kv.fail.Store(true)
	f := frame("req:a{l:2}", 2)
	for range 3 {
		_, err := s.Receive(t.Context(), f)
		require.ErrorIs(t, err, accp.ErrInternal)
		require.ErrorIs(t, err, errBroken)
		_, err = s.Send(t.Context(), msg("req", "a"))
		require.ErrorIs(t, err, accp.ErrInternal)
		_, err = s.Sync(t.Context(), accp.Params{text("k", "v")})
		require.ErrorIs(t, err, accp.ErrInternal)
		_, err = s.Checkpoint(t.Context())
		require.ErrorIs(t, err, accp.ErrInternal)
		_, err = s.Resolve(t.Context(), "cold.x")
		require.ErrorIs(t, err, accp.ErrInternal)
		_, err = s.Budget(t.Context())
		require.ErrorIs(t, err, accp.ErrInternal)
		require.ErrorIs(t, s.Put(t.Context(), accp.ScopeCold, "x", accp.Int(1), 0), accp.ErrInternal)
	}
	kv.fail.Store(false)
	receive(t, s, f)
	sent, err := s.Sync(t.Context(), accp.Params{text("k", "v")})
	require.NoError(t, err)
	require.EqualValues(t, 3, sent.Message.Meta.Seq.N)
	v, _ := s.State()
	require.EqualValues(t, 1, v)

	// Only the entries of a checkpoint fail: hot state stays (e.5).
	kv.fits = func(key string) bool { return strings.Contains(key, "/checkpoint/") }
	kv.fail.Store(true)
	before, err := s.Budget(t.Context())
	require.NoError(t, err)
	_, err = s.Checkpoint(t.Context())
	require.ErrorIs(t, err, accp.ErrInternal)
	after, err := s.Budget(t.Context())
	require.NoError(t, err)
	require.Equal(t, before.Hot, after.Hot)
	r := receive(t, s, frame("done:a{m:3}", 4))
	require.ErrorIs(t, r.CheckpointErr, errBroken, "the message is delivered all the same")
	kv.fail.Store(false)
	r = receive(t, s, frame("wait:a{}", 5))
	cp := r.Checkpoint
	require.NotNil(t, cp, "the next frame tries again")
	require.Equal(t, []string{"done"}, cp.Trigger)
	require.Equal(t, 5, cp.Frames)
	require.Nil(t, receive(t, s, frame("wait:a{}", 6)).Checkpoint)
	require.Contains(t, cp.Summary, "a:a.k=1")
	require.Contains(t, cp.Summary, "a:a.m=3")
}

// A damaged record is an error, and nothing is used.
func TestDamagedRecord(t *testing.T) {
	kv := store.NewMemory()
	s := session(t, &accp.SessionOptions{Persistence: accp.Persistence{Store: kv}})
	receive(t, s, frame("req:a{k:1}", 1))
	const stream = "accp/s1/session/server"
	for _, bad := range []string{"", "\x01", "\x01e", "\x01egarbage|", "\x09e{}"} {
		_, err := kv.Append(t.Context(), stream, "2", []byte(bad), 0)
		require.NoError(t, err)
		_, err = session(t, &accp.SessionOptions{Persistence: accp.Persistence{Store: kv}}).Receive(t.Context(), frame("req:a{}", 6))
		require.ErrorIs(t, err, accp.ErrInternal)
		require.ErrorContains(t, err, "damaged entry", "%q", bad)
		records, err := kv.Read(t.Context(), stream, 0, 10)
		require.NoError(t, err)
		require.Len(t, records, 2)
		require.NoError(t, kv.Ack(t.Context(), stream, records[1].Seq))
	}
	_, err := session(t, &accp.SessionOptions{Persistence: accp.Persistence{Store: kv}}).Receive(t.Context(), frame("req:a{}", 2))
	require.NoError(t, err)
	// A missing entry is damage, too.
	records, err := kv.Read(t.Context(), stream, 0, 10)
	require.NoError(t, err)
	_, err = kv.Append(t.Context(), stream, "9", records[1].Value, 0)
	require.NoError(t, err)
	_, err = session(t, &accp.SessionOptions{Persistence: accp.Persistence{Store: kv}}).Receive(t.Context(), frame("req:a{}", 3))
	require.ErrorContains(t, err, "are missing")
}

// The record is compacted, so its size does not grow with the number of frames, and it expires some
// time after the last frame and not before.
func TestRecordIsCompacted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		kv := store.NewMemory()
		s := session(t, &accp.SessionOptions{Persistence: accp.Persistence{Store: kv, Retention: time.Hour}})
		const stream = "accp/s1/session/server"
		for i := int64(1); i <= 3000; i++ {
			receive(t, s, frame("done:a{k:"+strings.Repeat("x", 100)+"}", i))
		}
		records, err := kv.Read(t.Context(), stream, 0, 10000)
		require.NoError(t, err)
		require.Less(t, len(records), 2000)
		for i := range int64(10) {
			time.Sleep(40 * time.Hour)
			receive(t, s, frame("ping:heartbeat{}", 3001+i))
		}
		time.Sleep(48 * time.Hour)
		s = session(t, &accp.SessionOptions{Persistence: accp.Persistence{Store: kv, Retention: time.Hour}})
		_, err = s.Receive(t.Context(), frame("ping:heartbeat{}", 3001))
		require.ErrorIs(t, err, accp.ErrDuplicate)
		time.Sleep(100 * time.Hour)
		records, err = kv.Read(t.Context(), stream, 0, 10)
		require.NoError(t, err)
		require.Empty(t, records)
	})
}

// Hot messages, schemas and announced summaries of the last answered frame survive (ACCP-D71).
func TestHotMessagesAndSchemasSurvive(t *testing.T) {
	kv := store.NewMemory()
	s := session(t, &accp.SessionOptions{Persistence: accp.Persistence{Store: kv}})
	err := s.Registry().Register(accp.Schema{Name: "bug", Code: "BG", Version: 1, Fields: []string{"title"}})
	require.NoError(t, err)
	receive(t, s, frame("req:a{schema:BG|title:x}", 1))
	receive(t, s, frame("sync:checkpoint{hash:4fa195981d0ee605|id:cp0299e42b|summary:a\\:plan.x=one}", 2))
	before, err := s.Budget(t.Context())
	require.NoError(t, err)
	s = session(t, &accp.SessionOptions{Persistence: accp.Persistence{Store: kv}})
	require.NoError(t, s.Reload(t.Context()))
	after, err := s.Budget(t.Context())
	require.NoError(t, err)
	require.Equal(t, before.Hot, after.Hot)
	require.Equal(t, []string{"@a>req:a{schema:BG|title:x}"}, s.ModelContext(100, 0).Lines)
	r := receive(t, s, frame("req:b{schema:BG|x:$warm.cp0299e42b}", 3))
	require.Equal(t, "a:plan.x=one", r.Message.Params.Text("x"))
	require.Equal(t, s.Registry().Codes(), []string{"BG"})
}

// The context of a model has the messages of another process, also those that only a snapshot has, and none of a session that
// another process has ended.
func TestModelContextHasMessagesOfAnotherProcess(t *testing.T) {
	db := store.NewMemory()
	open := func() *accp.Session {
		return session(t, &accp.SessionOptions{Persistence: accp.Persistence{Store: db}, DisableAutoCheckpoint: true})
	}
	wait := func(s *accp.Session, n int) {
		_, err := s.Send(t.Context(), msg("wait", "x", accp.Param{Key: "n", Value: accp.Int(int64(n))}))
		require.NoError(t, err)
	}
	a, b := open(), open()
	wait(a, 0)
	require.Len(t, a.ModelContext(1<<20, 0).Lines, 1)
	for n := range 1000 {
		wait(b, n+1)
	}
	require.NoError(t, a.Reload(t.Context()))
	require.Equal(t, b.ModelContext(1<<20, 0).Lines, a.ModelContext(1<<20, 0).Lines)
	wait(b, 1001)
	require.NoError(t, a.Reload(t.Context()))
	require.Equal(t, 1001, a.ModelContext(1<<20, 0).Stable, "without a gap, the lines stay")

	require.NoError(t, b.End(t.Context(), nil))
	wait(open(), 0)
	require.NoError(t, a.Reload(t.Context()))
	require.Len(t, a.ModelContext(1<<20, 0).Lines, 1)
}

// A checkpoint has the messages of another process, also without own ones.
func TestCheckpointHasMessagesOfAnotherProcess(t *testing.T) {
	o := &accp.SessionOptions{Persistence: accp.Persistence{Store: store.NewMemory()}}
	a, b := session(t, o), session(t, o)
	_, err := a.Checkpoint(t.Context())
	require.NoError(t, err)
	_, err = b.Send(t.Context(), msg("wait", "x"))
	require.NoError(t, err)
	cp, err := a.Checkpoint(t.Context())
	require.NoError(t, err)
	require.Equal(t, 1, cp.Frames)
}

// A smallStore refuses values of more than a mebibyte, as a NATS server does by default.
type smallStore struct{ store.Store }

func (s smallStore) Create(ctx context.Context, key string, value []byte, ttl time.Duration) (store.Revision, error) {
	if len(value) > 1<<20 {
		return 0, fmt.Errorf("%w: value of %d bytes", store.ErrInvalid, len(value))
	}
	return s.Store.Create(ctx, key, value, ttl)
}

// A message whose checkpoint is too long for the store ends no session. The facts and the frames that do not fit are omitted.
func TestCheckpointTooLongForTheStore(t *testing.T) {
	s := session(t, &accp.SessionOptions{Persistence: accp.Persistence{Store: smallStore{store.NewMemory()}}, Budget: accp.BudgetOff,
		Logger: slog.New(slog.DiscardHandler)})
	accp.SetHotLimit(s, 2)
	for i, size := range []int{10, 200_000, 10, 300_000, 10, 10, 10} { // each byte is escaped twice
		sent, err := s.Send(t.Context(), msg("done", fmt.Sprint("x", i), text("t", strings.Repeat(":", size))))
		require.NoError(t, err)
		require.NoError(t, sent.CheckpointErr)
	}
	list := s.Checkpoints()
	require.Len(t, list, 7)
	for i, c := range list {
		_, err := s.Resolve(t.Context(), "warm."+c.ID)
		require.NoError(t, err)
		for ref, hasValue := range map[string]bool{c.ID: i != 3, c.ID + "_facts": i != 1 && i != 3} {
			_, err = s.Resolve(t.Context(), "cold."+ref)
			if hasValue {
				require.NoError(t, err, "checkpoint %d: %s", i, ref)
			} else {
				require.ErrorIs(t, err, accp.ErrRefExpired, "checkpoint %d: %s", i, ref)
			}
		}
	}
}

// The memory of a session for its peers is bounded: ids are kept as marks, without their frames.
func TestMemoryOfASession(t *testing.T) {
	s := session(t, &accp.SessionOptions{Lenient: true, DisableAutoCheckpoint: true, Budget: accp.BudgetOff})
	var streams accp.StreamAssembler
	before := kit.Heap()
	long := strings.Repeat("x", 30000)
	var c accp.Codec
	for i := int64(1); i <= 150; i++ {
		f := fmt.Sprintf("@a>cancel:b{k:%s}[mid:%s%d,seq:%d,cid:%s%d]", long[:20000], long, i, i, long[:10000], i)
		_, err := s.Receive(t.Context(), []byte(f))
		require.NoError(t, err)
		m, err := c.Decode(fmt.Appendf(nil, "@a>stream:b{schema:ST|idx:0|tot:1|done:true|d:%s}[cid:%s%d]", long, long, i))
		require.NoError(t, err)
		_, _, err = streams.Add(m)
		require.NoError(t, err)
		if i%100 == 0 { // hot state is bounded by checkpoints, which are off here
			_, err = s.Checkpoint(t.Context())
			require.NoError(t, err)
		}
	}
	// The frames lie in cold state: that is what is left, and nothing more.
	kept := int64(150 * 60000)
	require.Less(t, kit.Heap()-before, kept*3/2)
	runtime.KeepAlive(s)
	runtime.KeepAlive(&streams)
}
