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
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
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
	sqliteVersion = 1 // of the tables

	// sqliteApp marks a database file as one of this package.
	sqliteApp = 0x46775354

	// Result codes of SQLite.
	sqliteBusy     = 5
	sqliteReadOnly = 8
)

// sqliteDB is the engine on SQLite. There is one writer, since SQLite has no more:
// callers queue for it in the process, where that is fair and costs nothing,
// and what is in the queue goes into one transaction.
type sqliteDB struct {
	opts    *Options
	ctx     context.Context // of the store
	waits   *waiters
	db      *sql.DB // for reading, and where connections come from
	readers readers
	queue   *combiner[func(*tx) error]

	writing sync.Mutex // held by whoever uses what follows
	conn    *sql.Conn  // nil after it failed
	stmts   map[string]*sql.Stmt
}

// readers are the statements that need no writer.
type readers struct {
	get, page, read, has, news, last *sql.Stmt
}

func openSQLite(ctx, life context.Context, path string, o *Options, waits *waiters) (_ engine, err error) {
	if path == "" || strings.HasPrefix(path, ":memory:") {
		return nil, fmt.Errorf("%w: no path of a file; store.NewMemory keeps state in memory", store.ErrInvalid)
	}
	if path, err = filepath.Abs(strings.TrimPrefix(path, "//")); err != nil {
		return nil, err
	}
	// The state of agents is nobody else's business, and SQLite would let all read
	// a new file. Those beside it get the same mode. An error is better told below.
	if f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600); err == nil {
		_ = f.Close()
	}
	synchronous := "synchronous(FULL)"
	if o.AsyncCommit {
		synchronous = "synchronous(NORMAL)"
	}
	query := url.Values{"_pragma": {
		"busy_timeout(1000)", "cache_size(-8000)", "fullfsync(1)", "checkpoint_fullfsync(1)",
		"journal_mode(WAL)", "journal_size_limit(67108864)", "temp_store(MEMORY)", synchronous,
	}}
	uri := "file:" + (&url.URL{Path: filepath.ToSlash(path)}).EscapedPath() + "?" + query.Encode()
	db, err := sql.Open("sqlite", uri)
	if err != nil {
		return nil, err
	}
	conns := o.MaxConns
	if conns <= 0 {
		conns = defaultConns
	}
	db.SetMaxOpenConns(conns + 1) // one writes
	db.SetMaxIdleConns(conns + 1)
	s := &sqliteDB{opts: o, ctx: life, waits: waits, db: db}
	s.queue = newCombiner(s.run)
	defer func() {
		if err != nil {
			_ = s.close()
		}
	}()
	// The first to open a new file changes its format, and others fail meanwhile.
	if err := s.patiently(ctx, func() error { return s.migrate(ctx, path) }); err != nil {
		return nil, err
	}
	for _, p := range []struct {
		stmt **sql.Stmt
		text string
	}{
		{&s.readers.get, `SELECT value, rev, expires FROM entries WHERE key = ?1 AND (expires IS NULL OR expires > ?2)`},
		{&s.readers.page, `SELECT value, rev, expires, key FROM entries
			WHERE key >= ?1 AND key < ?2 AND (expires IS NULL OR expires > ?3) ORDER BY key LIMIT ?4`},
		{&s.readers.read, `SELECT value, seq, id, time, expires FROM records
			WHERE stream = ?1 AND seq > ?2 AND (expires IS NULL OR expires > ?3) ORDER BY seq LIMIT ?4`},
		{&s.readers.has, `SELECT 1 FROM records
			WHERE stream = ?1 AND seq > ?2 AND (expires IS NULL OR expires > ?3) ORDER BY seq LIMIT 1`},
		{&s.readers.news, `SELECT seq, stream FROM records WHERE seq > ?1 ORDER BY seq LIMIT ?2`},
		{&s.readers.last, `SELECT last FROM state`},
	} {
		if *p.stmt, err = db.PrepareContext(ctx, p.text); err != nil {
			return nil, err
		}
	}
	return s, nil
}

// patiently repeats what other processes keep from happening.
func (s *sqliteDB) patiently(ctx context.Context, do func() error) error {
	for begun := time.Now(); ; {
		err := do()
		if err == nil || !isSQLite(err, sqliteBusy) || time.Since(begun) > s.opts.BusyTimeout {
			return err
		}
		// Short and random: who waits longer between two looks waits longest.
		select {
		case <-time.After(100*time.Microsecond + rand.N(2*time.Millisecond)):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// isSQLite tells whether err has that primary result code.
func isSQLite(err error, code int) bool {
	var e *sqlite.Error
	return errors.As(err, &e) && e.Code()&0xff == code
}

// migrate creates or updates the tables.
func (s *sqliteDB) migrate(ctx context.Context, path string) (err error) {
	conn, err := s.db.Conn(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	version, err := sqliteState(ctx, conn)
	if err != nil || version == sqliteVersion {
		return err
	}
	if _, err := conn.ExecContext(ctx, "BEGIN IMMEDIATE"); err != nil {
		if isSQLite(err, sqliteReadOnly) {
			return fmt.Errorf("%s is read-only and has no tables yet: %w", filepath.Base(path), err)
		}
		return err
	}
	defer func() {
		if err != nil {
			_, _ = conn.ExecContext(context.WithoutCancel(ctx), "ROLLBACK")
		}
	}()
	// Once more, now that nobody else can.
	if version, err = sqliteState(ctx, conn); err != nil {
		return err
	}
	for version < sqliteVersion {
		version++
		text, err := migration("sqlite", version)
		if err != nil {
			return err
		}
		text += fmt.Sprintf("; PRAGMA user_version = %d; PRAGMA application_id = %d", version, sqliteApp)
		if _, err := conn.ExecContext(ctx, text); err != nil {
			return fmt.Errorf("migration %d: %w", version, err)
		}
	}
	_, err = conn.ExecContext(ctx, "COMMIT")
	return err
}

// sqliteState returns the version of the tables, 0 for an empty file.
func sqliteState(ctx context.Context, conn *sql.Conn) (version int, err error) {
	var app, tables int
	err = conn.QueryRowContext(ctx, `SELECT (SELECT user_version FROM pragma_user_version),
		(SELECT application_id FROM pragma_application_id), (SELECT count(*) FROM sqlite_master)`).Scan(&version, &app, &tables)
	switch {
	case err != nil:
		return 0, err
	case version == 0 && app == 0 && tables == 0:
		return 0, nil
	case app != sqliteApp:
		return 0, errors.New("the file is a database of something else")
	case version > sqliteVersion:
		return 0, fmt.Errorf("the tables are of version %d, made by a later version of this package, which knows %d", version, sqliteVersion)
	}
	return version, nil
}

func (s *sqliteDB) close() error {
	s.queue.wait()
	s.writing.Lock()
	defer s.writing.Unlock()
	s.drop()
	return s.db.Close()
}

// micro is the clock in the unit of the tables.
func (s *sqliteDB) micro() int64 { return s.opts.now().UnixMicro() }

// A tx is the transaction of one batch of writes, as one of them sees it.
type tx struct {
	db  *sqliteDB
	now int64
	// last is the position given last, and first what it was before; both are
	// meaningful if known.
	last, first int64
	known       bool
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

// row reads at most one row and tells whether there was one.
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

// next returns a number that is no revision or position yet.
func (t *tx) next() (int64, error) {
	if !t.known {
		if ok, err := t.row(`SELECT last FROM state`, nil, &t.last); err != nil {
			return 0, err
		} else if !ok {
			return 0, errors.New("the table state is empty")
		}
		t.known, t.first = true, t.last
	}
	t.last++
	return t.last, nil
}

// unused takes back what next returned a moment ago: a write that changed
// nothing must not cost a write to the disk.
func (t *tx) unused() { t.last-- }

// expires is when what gets ttl now expires, as the tables have it.
func (t *tx) expires(ttl int64) any {
	if ttl == 0 {
		return nil
	}
	return t.now + ttl
}

// write has do done in a transaction. If do returns an error of package store,
// it has changed nothing, and the others in the transaction go on.
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

// run does the tasks in one transaction. If that fails for the sake of one of
// them, the others must not suffer from it: then each gets its own.
func (s *sqliteDB) run(ctx context.Context, _ string, tasks []*task[func(*tx) error]) {
	s.writing.Lock()
	defer s.writing.Unlock()
	again := s.transact(ctx, tasks)
	if !again || len(tasks) == 1 {
		return
	}
	for i := range tasks {
		s.transact(ctx, tasks[i:i+1])
	}
}

// transact does the tasks in one transaction and sets their errors. It tells
// whether all are undone and may be tried again.
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
	if t.last != t.first {
		if _, err := t.exec(`UPDATE state SET last = ?1`, t.last); err != nil {
			fail(err)
			return s.rollback()
		}
	}
	if _, err := s.conn.ExecContext(context.Background(), "COMMIT"); err != nil {
		fail(err)
		s.rollback()
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

// isStore tells whether err is an answer and no failure.
func isStore(err error) bool {
	return err == store.ErrNotFound || err == store.ErrExists || err == store.ErrConflict || err == store.ErrDuplicate
}
