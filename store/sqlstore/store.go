// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package sqlstore

import (
	"cmp"
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

	"github.com/fivewire/fivewire/internal/option"
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
	// absent for every call before that. Zero means 30 seconds, and the minimum is 10 ms.
	SweepInterval time.Duration

	// PollInterval is the interval at which Wait polls for records without a notification. Zero
	// means 5 ms for SQLite, which has no notifications between processes, and 5 seconds for
	// PostgreSQL, where a broken connection or a pooler may lose notifications. The minimum is 1 ms.
	PollInterval time.Duration

	// BusyTimeout is how long a write to SQLite waits for other processes to finish
	// theirs before it fails. Zero means 8 seconds.
	BusyTimeout time.Duration

	// OutageTimeout is how long a call without a deadline waits for a database that does not answer:
	// a server that is stopped or unreachable, or a disk that hangs. The call then ends with
	// [store.ErrUnknown], and so does Wait when it reads the stream. Verify and Backup have no such bound. It also bounds a
	// connection that is being made to PostgreSQL, unless the URL has a connect_timeout. Zero means 10 seconds.
	OutageTimeout time.Duration

	// MarkFile is the file of the high-water mark of PostgreSQL: the highest position and revision given by
	// the processes that use this file. Open returns [store.LossError] if the data of the server ends before
	// it, as after the restoration of an older dump. Empty means none; SQLite always has one, next to its file.
	MarkFile string

	// AcceptLoss opens a database whose end is missing, see [store.LossError], and logs what is
	// lost. Positions and revisions that were given before are not given again.
	AcceptLoss bool

	// Logger receives failures that no call reports: those of a sweep or a listener, which are
	// retried. Nil means slog.Default().
	Logger *slog.Logger

	// now is the clock of SQLite, for tests.
	now func() time.Time
}

const (
	defaultConns  = 16
	defaultSweep  = 30 * time.Second
	minSweep      = 10 * time.Millisecond
	minPoll       = time.Millisecond
	defaultBusy   = 8 * time.Second
	defaultOutage = 10 * time.Second
	defaultRead   = 100 // what Read takes for a limit below 1
	sweepMost     = 500 // rows that one transaction of a sweep removes from a table
	listFirst     = 8   // entries on the first page of List
	listMost      = 512
	listBytes     = 4 << 20         // the values of one page, the last one not counted
	closePatience = 5 * time.Second // for calls that hang in the database
)

// A Store keeps its state in a database. All its methods may be called from any
// number of goroutines; several stores, in one process or in many, may be open
// on one database.
type Store struct {
	engine engine
	waits  *waiters
	log    *slog.Logger
	outage time.Duration // of a call without a deadline

	ctx   context.Context // ends what still runs when Close loses patience
	abort context.CancelFunc
	done  chan struct{} // closed by Close

	mu      sync.Mutex
	closed  bool           // guarded by mu
	calls   sync.WaitGroup // calls in flight; Add only under mu, before closed
	back    sync.WaitGroup // goroutines of the store
	stopped chan struct{}  // closed when Close has done everything
	err     error          // of Close; written before ended
}

var _ store.Store = (*Store)(nil)

// An engine does the work on one kind of database. Its arguments have been checked; times to live
// are in microseconds, and zero means no expiry.
type engine interface {
	get(ctx context.Context, key string) (store.Entry, error)
	create(ctx context.Context, key string, value []byte, ttl int64) (store.Revision, error)
	update(ctx context.Context, key string, value []byte, rev, ttl int64) (store.Revision, error)
	// delete removes the key at any revision if rev is zero.
	delete(ctx context.Context, key string, rev int64) error
	// page returns entries from that key on up to, but without, the other. The page ends early with
	// the entry whose value completes listBytes.
	page(ctx context.Context, from, to string, limit int) ([]store.Entry, error)
	append(ctx context.Context, stream, id string, value []byte, ttl int64) (uint64, error)
	read(ctx context.Context, stream string, after int64, limit int) ([]store.Record, error)
	has(ctx context.Context, stream string, after int64) (bool, error)
	ack(ctx context.Context, stream string, seqs []int64) error
	// expire removes at once if ttl is zero.
	expire(ctx context.Context, stream string, ttl int64) error
	// sweep removes some expired rows and reports whether more may be left.
	sweep(ctx context.Context) (more bool, err error)
	// verify adds what it finds to the report.
	verify(ctx context.Context, r *Report) error
	// backup writes a copy to a new file.
	backup(ctx context.Context, path string) error
	// watch notifies waiters of records that other processes append, until ctx ends.
	watch(ctx context.Context)
	close() error
}

// Open opens the database, creates what it lacks and returns a store on it. A
// database that starts with postgres:// or postgresql:// is a URL of PostgreSQL,
// whose password may be in the variable PGPASSWORD or in a file of PGPASSFILE;
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
	o.SweepInterval = max(option.Or(o.SweepInterval, defaultSweep, defaultSweep), minSweep)
	if o.BusyTimeout <= 0 {
		o.BusyTimeout = defaultBusy
	}
	if o.OutageTimeout <= 0 {
		o.OutageTimeout = defaultOutage
	}
	o.Logger = cmp.Or(o.Logger, slog.Default())
	if o.now == nil {
		o.now = time.Now
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	s := &Store{waits: newWaiters(), log: o.Logger, outage: o.OutageTimeout, done: make(chan struct{}), stopped: make(chan struct{})}
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
		<-s.stopped
		return s.err
	}
	close(s.done)
	impatient := time.AfterFunc(closePatience, s.abort)
	s.calls.Wait()
	s.back.Wait()
	s.err = s.engine.close()
	impatient.Stop()
	s.abort()
	close(s.stopped)
	return s.err
}

// enter begins a call, which has a deadline at the latest. The returned function ends it.
func (s *Store) enter(ctx context.Context) (context.Context, func(), error) {
	in, end, err := s.enterLong(ctx)
	if err != nil {
		return nil, nil, err
	}
	in, cancel := s.bounded(in)
	return in, func() {
		cancel()
		end()
	}, nil
}

// bounded is ctx with a deadline.
func (s *Store) bounded(ctx context.Context) (context.Context, context.CancelFunc) {
	if _, ok := ctx.Deadline(); ok {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, s.outage)
}

// enterLong begins a call without a bound.
func (s *Store) enterLong(ctx context.Context) (context.Context, func(), error) {
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

// methodError converts an error of an engine to that of a method. Errors of package store are
// returned as they are, and an ended context takes precedence.
func (s *Store) methodError(ctx context.Context, what string, err error) error {
	switch {
	case err == nil || isStore(err):
		return err
	case ctx.Err() != nil:
		return ctx.Err()
	case s.ctx.Err() != nil:
		return store.ErrClosed
	case noLonger(err):
		return fmt.Errorf("sqlstore: %s: no answer within %v: %w", what, s.outage, store.ErrUnknown)
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
	return e, s.methodError(ctx, "get", err)
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
	return rev, s.methodError(ctx, "create", err)
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
	return next, s.methodError(ctx, "update", err)
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
	return s.methodError(ctx, "delete", s.engine.delete(in, key, revision(rev)))
}

// revision converts rev to a number of the database: one beyond its range matches no key, as -1
// does.
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
			size := 0
			for _, e := range entries {
				if !yield(e, nil) {
					return
				}
				size += len(e.Value)
			}
			if len(entries) < limit && size < listBytes {
				return
			}
			from = after(entries[len(entries)-1].Key)
			// As many as this page lets expect to be of good size.
			limit = max(1, min(listMost, 4*limit, listBytes*len(entries)/(size+1)))
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
	return entries, s.methodError(ctx, "list", err)
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
		s.waits.notify(stream)
	}
	return seq, s.methodError(ctx, "append", err)
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
	return records, s.methodError(ctx, "read", err)
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
	inRange := make([]int64, 0, len(seqs))
	for _, seq := range seqs {
		if seq != 0 && seq <= math.MaxInt64 {
			inRange = append(inRange, int64(seq))
		}
	}
	if len(inRange) == 0 {
		return nil
	}
	return s.methodError(ctx, "acknowledge", s.engine.ack(in, stream, inRange))
}

// Wait implements [store.Log].
func (s *Store) Wait(ctx context.Context, stream string, after uint64) error {
	in, end, err := s.enterLong(ctx)
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
			asking, cancel := s.bounded(in)
			found, err := s.engine.has(asking, stream, int64(after))
			cancel()
			if found || err != nil {
				s.waits.release(stream, w)
				return s.methodError(ctx, "wait", err)
			}
		}
		select {
		case <-w.ch:
		case <-ctx.Done():
			s.waits.release(stream, w)
			return ctx.Err()
		case <-s.done:
			s.waits.release(stream, w)
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
	return s.methodError(ctx, "expire", s.engine.expire(in, stream, micros(ttl)))
}

// sweep removes expired rows until ctx ends. The interval is random, so that processes started
// together do not sweep at the same time.
func (s *Store) sweep(ctx context.Context, every time.Duration) {
	for {
		select {
		case <-time.After(every/2 + rand.N(every)):
		case <-ctx.Done():
			return
		}
		for more := true; more && ctx.Err() == nil; {
			var err error
			in, cancel := s.bounded(ctx)
			more, err = s.engine.sweep(in)
			cancel()
			if err != nil && ctx.Err() == nil {
				s.log.WarnContext(ctx, "sqlstore: sweep failed", "err", err)
				break
			}
		}
	}
}

// noLonger reports whether err comes from an ended context.
func noLonger(err error) bool {
	return errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
}
