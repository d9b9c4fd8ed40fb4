// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package sqlstore

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"math"
	"math/rand/v2"
	"strings"
	"sync"
	"time"

	"github.com/fivewire/fivewire/store"
)

// Options adjusts a [Store]. The zero value is right for production.
type Options struct {
	// AsyncCommit acknowledges writes before they are on the disk: some times
	// faster, and a power loss, or a crash of the machine, takes the last
	// moments along. The end of this process still takes nothing.
	AsyncCommit bool

	// Schema is where PostgreSQL keeps the tables. It is created if it is
	// absent. Stores of different schemas have nothing in common. Empty means
	// "fivewire". SQLite ignores it: there it is the file that counts.
	Schema string

	// MaxConns bounds the connections to PostgreSQL, with one more that
	// listens, and the concurrent readers of SQLite. Zero means what
	// pool_max_conns in the URL says, else 16.
	MaxConns int

	// SweepInterval is how often what has expired is removed from the disk. It is
	// absent for every call before that. Zero means 30 seconds.
	SweepInterval time.Duration

	// PollInterval is how often Wait looks for records that nobody told it of. Zero
	// means 5 ms for SQLite, where that is how it learns of the records of
	// other processes, and 5 seconds for PostgreSQL, which tells it, except when
	// a connection breaks at the wrong moment or a pooler between swallows
	// notifications.
	PollInterval time.Duration

	// BusyTimeout is how long a write to SQLite waits for other processes to finish
	// theirs before it fails. Zero means 30 seconds.
	BusyTimeout time.Duration

	// OutageTimeout is how long a call waits for a PostgreSQL that cannot be reached,
	// as far as it is certain that nothing is done twice. Zero means 15 seconds.
	OutageTimeout time.Duration

	// Logger is told what no call reports: a sweep or a listener that fails and
	// tries again. Nil is silent.
	Logger *slog.Logger

	// now is the clock of SQLite, for tests.
	now func() time.Time
}

const (
	defaultConns  = 16
	defaultSweep  = 30 * time.Second
	defaultBusy   = 30 * time.Second
	defaultOutage = 15 * time.Second
	defaultRead   = 100 // what Read takes for a limit below 1
	sweepMost     = 500 // rows that one transaction of a sweep removes from a table
	listFirst     = 8   // entries on the first page of List
	listMost      = 512
	listBytes     = 4 << 20         // about so much is on one page
	closePatience = 5 * time.Second // for calls that hang in the database
)

// A Store keeps its state in a database. All its methods may be called from any
// number of goroutines; several stores, in one process or in many, may be open
// on one database.
type Store struct {
	engine engine
	waits  *waiters
	log    *slog.Logger

	ctx   context.Context // ends what still runs when Close loses patience
	abort context.CancelFunc
	done  chan struct{} // closed by Close

	mu     sync.Mutex
	closed bool           // guarded by mu
	calls  sync.WaitGroup // calls in flight; Add only under mu, before closed
	back   sync.WaitGroup // goroutines of the store
	ended  chan struct{}  // closed when Close has done everything
	err    error          // of Close; written before ended
}

var _ store.Store = (*Store)(nil)

// An engine does the work on one kind of database. What it is given has been
// checked; times to live are in microseconds, and zero means for ever.
type engine interface {
	get(ctx context.Context, key string) (store.Entry, error)
	create(ctx context.Context, key string, value []byte, ttl int64) (store.Revision, error)
	update(ctx context.Context, key string, value []byte, rev, ttl int64) (store.Revision, error)
	// delete removes whatever is there if rev is zero.
	delete(ctx context.Context, key string, rev int64) error
	// page returns entries from that key on up to, but without, the other.
	page(ctx context.Context, from, to string, limit int) ([]store.Entry, error)
	append(ctx context.Context, stream, id string, value []byte, ttl int64) (uint64, error)
	read(ctx context.Context, stream string, after int64, limit int) ([]store.Record, error)
	has(ctx context.Context, stream string, after int64) (bool, error)
	ack(ctx context.Context, stream string, seqs []int64) error
	// expire removes at once if ttl is zero.
	expire(ctx context.Context, stream string, ttl int64) error
	// sweep removes some of what has expired and tells whether more may be left.
	sweep(ctx context.Context) (more bool, err error)
	// watch wakes those who wait for what others append, until ctx ends.
	watch(ctx context.Context)
	close() error
}

// Open opens the database, creates what it lacks and returns a store on it. A
// database that starts with postgres:// or postgresql:// is a URL of PostgreSQL;
// everything else is the path of an SQLite file, which may have sqlite: before
// it. Nil options mean the zero [Options].
//
// Tables made by an earlier version of this package are brought up to date,
// by one of the processes that open at once; a database that a later version
// made is refused.
func Open(ctx context.Context, database string, opts *Options) (*Store, error) {
	var o Options
	if opts != nil {
		o = *opts
	}
	if o.Schema == "" {
		o.Schema = "fivewire"
	}
	if o.SweepInterval <= 0 {
		o.SweepInterval = defaultSweep
	}
	if o.BusyTimeout <= 0 {
		o.BusyTimeout = defaultBusy
	}
	if o.OutageTimeout <= 0 {
		o.OutageTimeout = defaultOutage
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.now == nil {
		o.now = time.Now
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	s := &Store{waits: newWaiters(), log: o.Logger, done: make(chan struct{}), ended: make(chan struct{})}
	s.ctx, s.abort = context.WithCancel(context.Background())
	var err error
	switch scheme, _, ok := strings.Cut(database, "://"); {
	case scheme == "postgres" || scheme == "postgresql":
		s.engine, err = openPostgres(ctx, s.ctx, database, &o, s.waits)
	case ok && scheme != "sqlite":
		err = fmt.Errorf("%w: no database of scheme %q", store.ErrInvalid, scheme)
	default:
		s.engine, err = openSQLite(ctx, s.ctx, strings.TrimPrefix(database, "sqlite:"), &o, s.waits)
	}
	if err != nil {
		s.abort()
		return nil, fmt.Errorf("sqlstore: open: %w", err)
	}
	back, stop := context.WithCancel(s.ctx)
	s.back.Go(func() {
		<-s.done
		stop()
	})
	s.back.Go(func() { s.engine.watch(back) })
	s.back.Go(func() { s.sweep(back, o.SweepInterval) })
	return s, nil
}

// Close ends what waits with [store.ErrClosed], lets calls that work finish, and
// closes the database. It returns when no goroutine of the store is left. It may
// be called more than once, but not from the Logger.
func (s *Store) Close() error {
	s.mu.Lock()
	first := !s.closed
	s.closed = true
	s.mu.Unlock()
	if !first {
		<-s.ended
		return s.err
	}
	close(s.done)
	impatient := time.AfterFunc(closePatience, s.abort)
	s.calls.Wait()
	s.back.Wait()
	s.err = s.engine.close()
	impatient.Stop()
	s.abort()
	close(s.ended)
	return s.err
}

// enter begins a call. What it returns ends it.
func (s *Store) enter(ctx context.Context) (context.Context, func(), error) {
	if err := ctx.Err(); err != nil {
		return nil, nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, nil, store.ErrClosed
	}
	s.calls.Add(1)
	joined, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(s.ctx, cancel)
	return joined, func() {
		stop()
		cancel()
		s.calls.Done()
	}, nil
}

// fault makes the error of an engine that of a method. The errors of package
// store say all, and whose context ended wants to hear that.
func (s *Store) fault(ctx context.Context, what string, err error) error {
	switch {
	case err == nil, err == store.ErrNotFound, err == store.ErrExists, err == store.ErrConflict, err == store.ErrDuplicate:
		return err
	case ctx.Err() != nil:
		return ctx.Err()
	case s.ctx.Err() != nil:
		return store.ErrClosed
	}
	return fmt.Errorf("sqlstore: %s: %w", what, err)
}

// Get implements [store.KV].
func (s *Store) Get(ctx context.Context, key string) (store.Entry, error) {
	in, end, err := s.enter(ctx)
	if err != nil {
		return store.Entry{}, err
	}
	defer end()
	if err := store.ValidateName("key", key); err != nil {
		return store.Entry{}, err
	}
	e, err := s.engine.get(in, key)
	return e, s.fault(ctx, "get", err)
}

// Create implements [store.KV].
func (s *Store) Create(ctx context.Context, key string, value []byte, ttl time.Duration) (store.Revision, error) {
	in, end, err := s.enter(ctx)
	if err != nil {
		return 0, err
	}
	defer end()
	if err := checkWrite("key", key, value, ttl); err != nil {
		return 0, err
	}
	rev, err := s.engine.create(in, key, value, micros(ttl))
	return rev, s.fault(ctx, "create", err)
}

// Update implements [store.KV].
func (s *Store) Update(ctx context.Context, key string, value []byte, rev store.Revision, ttl time.Duration) (store.Revision, error) {
	in, end, err := s.enter(ctx)
	if err != nil {
		return 0, err
	}
	defer end()
	if err := checkWrite("key", key, value, ttl); err != nil {
		return 0, err
	}
	next, err := s.engine.update(in, key, value, revision(rev), micros(ttl))
	return next, s.fault(ctx, "update", err)
}

// Delete implements [store.KV].
func (s *Store) Delete(ctx context.Context, key string, rev store.Revision) error {
	in, end, err := s.enter(ctx)
	if err != nil {
		return err
	}
	defer end()
	if err := store.ValidateName("key", key); err != nil {
		return err
	}
	return s.fault(ctx, "delete", s.engine.delete(in, key, revision(rev)))
}

// revision is rev as the database has it: one beyond its numbers is none of any
// key, as -1 is.
func revision(rev store.Revision) int64 {
	if rev > math.MaxInt64 {
		return -1
	}
	return int64(rev)
}

// List implements [store.KV]. It holds nothing in the database while its loop
// runs.
func (s *Store) List(ctx context.Context, prefix string) iter.Seq2[store.Entry, error] {
	return func(yield func(store.Entry, error) bool) {
		limit := listFirst
		for from, to := prefix, above(prefix); ; {
			entries, err := s.page(ctx, prefix, from, to, limit)
			if err != nil {
				yield(store.Entry{}, err)
				return
			}
			size := 1
			for _, e := range entries {
				if !yield(e, nil) {
					return
				}
				size += len(e.Key) + len(e.Value)
			}
			if len(entries) < limit {
				return
			}
			from = after(entries[len(entries)-1].Key)
			// As many as this page lets expect to be of good size.
			limit = max(1, min(listMost, 4*limit, listBytes*len(entries)/size))
		}
	}
}

func (s *Store) page(ctx context.Context, prefix, from, to string, limit int) ([]store.Entry, error) {
	in, end, err := s.enter(ctx)
	if err != nil {
		return nil, err
	}
	defer end()
	if err := store.ValidateID("prefix", prefix); err != nil {
		return nil, err
	}
	entries, err := s.engine.page(in, from, to, limit)
	return entries, s.fault(ctx, "list", err)
}

// Append implements [store.Log].
func (s *Store) Append(ctx context.Context, stream, id string, value []byte, ttl time.Duration) (uint64, error) {
	in, end, err := s.enter(ctx)
	if err != nil {
		return 0, err
	}
	defer end()
	if err := checkWrite("stream name", stream, value, ttl); err != nil {
		return 0, err
	}
	if err := store.ValidateID("id", id); err != nil {
		return 0, err
	}
	seq, err := s.engine.append(in, stream, id, value, micros(ttl))
	if err == nil {
		s.waits.wake(stream)
	}
	return seq, s.fault(ctx, "append", err)
}

// Read implements [store.Log].
func (s *Store) Read(ctx context.Context, stream string, after uint64, limit int) ([]store.Record, error) {
	in, end, err := s.enter(ctx)
	if err != nil {
		return nil, err
	}
	defer end()
	if err := store.ValidateName("stream name", stream); err != nil {
		return nil, err
	}
	if limit < 1 {
		limit = defaultRead
	}
	if after >= math.MaxInt64 { // beyond the numbers of a database
		return nil, nil
	}
	records, err := s.engine.read(in, stream, int64(after), limit)
	return records, s.fault(ctx, "read", err)
}

// Ack implements [store.Log].
func (s *Store) Ack(ctx context.Context, stream string, seqs ...uint64) error {
	in, end, err := s.enter(ctx)
	if err != nil {
		return err
	}
	defer end()
	if err := store.ValidateName("stream name", stream); err != nil {
		return err
	}
	known := make([]int64, 0, len(seqs))
	for _, seq := range seqs {
		if seq != 0 && seq <= math.MaxInt64 {
			known = append(known, int64(seq))
		}
	}
	if len(known) == 0 {
		return nil
	}
	return s.fault(ctx, "acknowledge", s.engine.ack(in, stream, known))
}

// Wait implements [store.Log].
func (s *Store) Wait(ctx context.Context, stream string, after uint64) error {
	in, end, err := s.enter(ctx)
	if err != nil {
		return err
	}
	defer end()
	if err := store.ValidateName("stream name", stream); err != nil {
		return err
	}
	for {
		w := s.waits.join(stream)
		if after < math.MaxInt64 { // else nothing can come
			found, err := s.engine.has(in, stream, int64(after))
			if found || err != nil {
				s.waits.leave(stream, w)
				return s.fault(ctx, "wait", err)
			}
		}
		select {
		case <-w.ch:
		case <-ctx.Done():
			s.waits.leave(stream, w)
			return ctx.Err()
		case <-s.done:
			s.waits.leave(stream, w)
			return store.ErrClosed
		}
	}
}

// Expire implements [store.Log].
func (s *Store) Expire(ctx context.Context, stream string, ttl time.Duration) error {
	in, end, err := s.enter(ctx)
	if err != nil {
		return err
	}
	defer end()
	if err := store.ValidateName("stream name", stream); err != nil {
		return err
	}
	if err := store.ValidateTTL(ttl); err != nil {
		return err
	}
	return s.fault(ctx, "expire", s.engine.expire(in, stream, micros(ttl)))
}

// sweep removes what has expired until ctx ends. Of processes that started
// together not all come at once.
func (s *Store) sweep(ctx context.Context, every time.Duration) {
	for {
		select {
		case <-time.After(every/2 + rand.N(every)):
		case <-ctx.Done():
			return
		}
		for more := true; more && ctx.Err() == nil; {
			var err error
			if more, err = s.engine.sweep(ctx); err != nil && ctx.Err() == nil {
				s.log.WarnContext(ctx, "sqlstore: sweep fails and will be tried again", "err", err)
				break
			}
		}
	}
}

// noLonger tells whether err comes from a context that ended.
func noLonger(err error) bool {
	return errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
}
