// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package sqlstore

import (
	"context"
	"database/sql"
	"embed"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"modernc.org/sqlite"

	"github.com/fivewire/fivewire/store"
)

//go:embed migrations/*.sql
var migrations embed.FS

// migration returns the statements that lead to a version, the first being 1.
func migration(database string, version int) (string, error) {
	text, err := migrations.ReadFile(fmt.Sprintf("migrations/%s%d.sql", database, version))
	return string(text), err
}

const (
	sqliteVersion = 3 // of the tables
	sqliteMoving  = 2 // rows of version 1 are moving to the tables of version 3

	// sqliteApp marks a database file as one of this package.
	sqliteApp = 0x46775354

	// Result codes of SQLite.
	sqliteBusy     = 5
	sqliteReadOnly = 8
	sqliteIO       = 10
	sqliteCorrupt  = 11
	sqliteFull     = 13
	sqliteNoFile   = 26
)

// sqliteDB is the engine on SQLite. There is one writer, which is the limit of SQLite: callers queue
// for it in the process, where queueing is fair and cheap, and one transaction serves all queued
// calls.
type sqliteDB struct {
	opts    *Options
	path    string          // absolute
	ctx     context.Context // of the store
	waits   *waiters
	db      *sql.DB // for reading, and where connections come from
	readers readers
	reads   sync.WaitGroup // calls that read, also after the end of their context
	queue   *combiner[func(*tx) error]

	writing sync.Mutex // guards the fields below
	conn    *sql.Conn  // nil after it failed
	stmts   map[string]*sql.Stmt
	highest int64 // the highest position that this process has read or given

	reserve chan struct{} // holds an element while a call uses the file of the reserve
	isSpent atomic.Bool   // the reserve is in use

	marker     *marker
	hasOpened  bool
	isReadOnly bool          // the disk takes no writes
	given      atomic.Int64  // the highest position that is on the disk
	marked     atomic.Int64  // the highest position in the mark
	behind     chan struct{} // holds an element while given is above marked
	stopMarks  chan struct{} // closed by close
	marks      sync.WaitGroup
}

// readers are the statements that need no writer.
type readers struct {
	get, page, read, has, news, last *sql.Stmt
}

// patiently repeats do while other processes lock the database.
func (s *sqliteDB) patiently(ctx context.Context, do func() error) error {
	for start := time.Now(); ; {
		err := do()
		if err == nil || !isSQLite(err, sqliteBusy) || time.Since(start) > s.opts.BusyTimeout {
			return err
		}
		// The delay is short and random: a caller with longer delays would lose most turns.
		select {
		case <-time.After(100*time.Microsecond + rand.N(2*time.Millisecond)):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// isSQLite reports whether err has that primary result code.
func isSQLite(err error, code int) bool {
	var e *sqlite.Error
	return errors.As(err, &e) && e.Code()&0xff == code
}

func (s *sqliteDB) close() error {
	s.queue.wait()
	s.reads.Wait()
	s.writing.Lock()
	defer s.writing.Unlock()
	s.drop()
	close(s.stopMarks)
	s.marks.Wait()
	var err error
	if s.db != nil {
		err = s.db.Close()
	}
	if s.marker == nil {
		return err
	}
	if s.hasOpened {
		s.endMark()
	}
	return errors.Join(err, s.marker.file.Close())
}

// micro is the clock in the unit of the tables.
func (s *sqliteDB) micro() int64 { return s.opts.now().UnixMicro() }

// A tx is the transaction of one batch of writes, as one of them sees it.
type tx struct {
	db  *sqliteDB
	now int64
	// state is the row of that table as it will be, and first as it was; both are meaningful if
	// known.
	state, first stateRow
	isKnown      bool
}

// A stateRow is the table state.
type stateRow struct {
	last, swept, marked int64
}

func (r stateRow) sum() int64 {
	return int64(sumOf(sumState).number(r.last).number(r.swept).number(r.marked))
}

// exec runs a statement and returns how many rows it changed.
func (t *tx) exec(text string, args ...any) (int64, error) {
	stmt, err := t.db.stmt(text)
	if err != nil {
		return 0, err
	}
	result, err := stmt.ExecContext(context.Background(), args...)
	if err != nil {
		return 0, err
	}
	return result.RowsAffected()
}

// row reads at most one row and reports whether there was one.
func (t *tx) row(text string, args []any, into ...any) (bool, error) {
	stmt, err := t.db.stmt(text)
	if err != nil {
		return false, err
	}
	err = stmt.QueryRowContext(context.Background(), args...).Scan(into...)
	if errors.Is(err, sql.ErrNoRows) {
		return false, nil
	}
	return err == nil, err
}

// load reads the table state once.
func (t *tx) load() error {
	if t.isKnown {
		return nil
	}
	var sum int64
	r := &t.state
	ok, err := t.row(`SELECT last, swept, marked, sum FROM state`, nil, &r.last, &r.swept, &r.marked, &sum)
	switch {
	case err != nil:
		return err
	case !ok || sum != r.sum():
		return &store.CorruptError{Path: t.db.path, Cause: errors.New("table state")}
	case r.last < t.db.highest:
		return &store.LossError{Path: t.db.path, Have: uint64(r.last), Want: uint64(t.db.highest)}
	}
	t.isKnown, t.first = true, t.state
	return nil
}

// next returns an unused revision or position.
func (t *tx) next() (int64, error) {
	if err := t.load(); err != nil {
		return 0, err
	}
	t.state.last++
	return t.state.last, nil
}

// expires is when what gets ttl now expires, as the tables have it.
func (t *tx) expires(ttl int64) sql.NullInt64 {
	return sql.NullInt64{Int64: t.now + ttl, Valid: ttl != 0}
}

// write runs do in a transaction. If do returns an error of package store, it has changed nothing,
// and the transaction continues with the other tasks.
func (s *sqliteDB) write(ctx context.Context, size int, do func(*tx) error) error {
	_, err := s.queue.do(ctx, s.ctx, "", size, do)
	return err
}

// stmt returns the prepared statement of the writer.
func (s *sqliteDB) stmt(text string) (*sql.Stmt, error) {
	if stmt := s.stmts[text]; stmt != nil {
		return stmt, nil
	}
	stmt, err := s.conn.PrepareContext(context.Background(), text)
	if err != nil {
		return nil, err
	}
	s.stmts[text] = stmt
	return stmt, nil
}

// drop gives up the connection of the writer, whatever its state.
func (s *sqliteDB) drop() {
	if s.conn == nil {
		return
	}
	for _, stmt := range s.stmts {
		_ = stmt.Close()
	}
	// A connection of which nothing is known must not go back to the pool.
	_ = s.conn.Raw(func(any) error { return errBad })
	_ = s.conn.Close()
	s.conn, s.stmts = nil, nil
}

// run does the tasks in one transaction. If one of them makes it fail, each task gets a separate
// transaction.
func (s *sqliteDB) run(ctx context.Context, _ string, tasks []*task[func(*tx) error]) {
	s.writing.Lock()
	defer s.writing.Unlock()
	retry := s.transact(ctx, tasks)
	if !retry || len(tasks) == 1 {
		return
	}
	for i := range tasks {
		s.transact(ctx, tasks[i:i+1])
	}
}

// transact does the tasks in one transaction and sets their errors. It reports whether all were
// rolled back and may be repeated.
func (s *sqliteDB) transact(ctx context.Context, tasks []*task[func(*tx) error]) (undone bool) {
	fail := func(err error) {
		for _, t := range tasks {
			t.err = err
		}
	}
	if err := s.begin(ctx); err != nil {
		fail(err)
		return false // the others would only wait as long
	}
	t := &tx{db: s}
	for _, task := range tasks {
		t.now = s.micro()
		task.err = task.of(t)
		if task.err != nil && !isStore(task.err) {
			fail(task.err)
			return s.rollback()
		}
	}
	if t.state != t.first {
		r := t.state
		if _, err := t.exec(`UPDATE state SET last = ?1, swept = ?2, marked = ?3, sum = ?4`, r.last, r.swept, r.marked, r.sum()); err != nil {
			fail(err)
			return s.rollback()
		}
	}
	if _, err := s.conn.ExecContext(context.Background(), "COMMIT"); err != nil {
		fail(err)
		s.rollback()
		return false
	}
	if t.isKnown {
		s.highest = t.state.last
		s.noteGiven(t.state.last)
	}
	return false
}

func (s *sqliteDB) begin(ctx context.Context) error {
	if s.conn == nil {
		conn, err := s.db.Conn(ctx)
		if err != nil {
			return err
		}
		// Waiting is done better in begin.
		if _, err := conn.ExecContext(ctx, "PRAGMA busy_timeout = 0"); err != nil {
			_ = conn.Raw(func(any) error { return errBad })
			return errors.Join(err, conn.Close())
		}
		s.conn, s.stmts = conn, map[string]*sql.Stmt{}
	}
	return s.patiently(ctx, func() error {
		_, err := s.conn.ExecContext(context.Background(), "BEGIN IMMEDIATE")
		return err
	})
}

// rollback undoes the transaction. The connection goes with it, in case that
// was at fault; closing it undoes what ROLLBACK did not.
func (s *sqliteDB) rollback() bool {
	_, _ = s.conn.ExecContext(context.Background(), "ROLLBACK") // SQLite may have done so itself
	s.drop()
	return true
}

// isStore reports whether err is an error of package store, which is a result and not a failure.
func isStore(err error) bool {
	return errors.Is(err, store.ErrNotFound) || errors.Is(err, store.ErrExists) || errors.Is(err, store.ErrConflict) ||
		errors.Is(err, store.ErrDuplicate)
}
