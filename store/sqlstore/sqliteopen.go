// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package sqlstore

import (
	"context"
	"database/sql"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/fivewire/fivewire/store"
)

// smallFile is the size in bytes up to which Open compares indexes and tables whatever the end of
// the last process was.
const smallFile = 4 << 20

func openSQLite(ctx, life context.Context, path string, o *Options, waits *waiters) (_ engine, err error) {
	if path == "" || strings.HasPrefix(path, ":memory:") {
		return nil, fmt.Errorf("%w: no path of a file; store.NewMemory keeps state in memory", store.ErrInvalid)
	}
	if path, err = filepath.Abs(strings.TrimPrefix(path, "//")); err != nil {
		return nil, err
	}
	path = resolved(path)
	s := &sqliteDB{opts: o, ctx: life, waits: waits, path: path, behind: make(chan struct{}, 1), reserve: make(chan struct{}, 1), stopMarks: make(chan struct{})}
	s.queue = newCombiner(s.run)
	step, err := s.open(ctx)
	if err != nil {
		_ = s.close()
		if cause, ok := errors.AsType[*fs.PathError](err); ok && cause.Path == path {
			err = cause.Err
		}
		return nil, fmt.Errorf("%s: %s: %w", path, step, s.readError(err))
	}
	s.hasOpened = true
	s.marks.Go(s.keepMark)
	return s, nil
}

// resolved returns the path of the file that a link names. SQLite keeps its log next to that file, and so are the mark
// and the lock of its users, whatever name they use.
func resolved(path string) string {
	isLink := false
	for range 40 { // a longer chain of links fails to open
		to, err := os.Readlink(path)
		if err != nil {
			break
		}
		if folder, _ := filepath.Split(path); !filepath.IsAbs(to) {
			to = folder + to // not cleaned, since the folder may be a link
		}
		path, isLink = to, true
	}
	folder, name := filepath.Split(path)
	if real, err := filepath.EvalSymlinks(folder); isLink && err == nil {
		path = filepath.Join(real, name)
	}
	return path
}

// open opens the files. The step names the operation that fails.
func (s *sqliteDB) open(ctx context.Context) (step string, err error) {
	if err := s.openFiles(); err != nil {
		return "open", err
	}
	alone, err := s.lock(ctx)
	if err != nil {
		return "lock", err
	}
	last, err := s.marker.load()
	if err != nil && !s.opts.AcceptLoss {
		return "read high-water mark", err
	}
	// The files are inspected before SQLite changes them.
	isUnclean := alone && s.isSuspect(last)
	if err := s.connect(); err != nil {
		return "open", err
	}
	// The first process to open a new file changes its format, and others fail in that time.
	if err := s.patiently(ctx, func() error { return s.migrate(ctx) }); err != nil {
		return "migrate", err
	}
	if err := s.moveAll(ctx); err != nil {
		return "migrate", err
	}
	if err := s.check(ctx, isUnclean); err != nil {
		return "check", err
	}
	if err := s.compare(ctx, last); err != nil {
		return "compare with high-water mark", err
	}
	if err := tryLock(s.marker.file, false); err != nil {
		return "lock", err
	}
	if s.isReadOnly {
		s.opts.Logger.WarnContext(ctx, "sqlstore: read-only file opened", "path", s.path)
	} else {
		if err := s.refill(ctx); err != nil {
			s.opts.Logger.WarnContext(ctx, "sqlstore: no reserve for a full disk", "err", err)
		}
	}
	return "prepare", s.prepare(ctx)
}

// openFiles creates the database and its mark if they are absent, and finds out whether the disk
// is read-only.
func (s *sqliteDB) openFiles() error {
	if err := s.findLost(); err != nil {
		return err
	}
	// The file must be readable only for its owner, and SQLite would create it readable for all.
	// Its companion files get the same mode.
	f, err := os.OpenFile(s.path, os.O_RDWR|os.O_CREATE, 0o600)
	if errors.Is(err, syscall.EROFS) || errors.Is(err, fs.ErrPermission) {
		s.isReadOnly = true
		cause := err
		if f, err = os.Open(s.path); errors.Is(err, fs.ErrNotExist) {
			err = cause // a new file cannot be created
		}
	}
	if err != nil {
		return err
	}
	isOther := isForeign(f)
	if err := f.Close(); err != nil {
		return err
	}
	if isOther {
		return errForeign
	}
	flag := os.O_RDWR | os.O_CREATE
	if s.isReadOnly {
		flag = os.O_RDONLY
	}
	f, err = os.OpenFile(s.path+markSuffix, flag, 0o600)
	if err != nil {
		return err
	}
	s.marker = &marker{path: f.Name(), file: f}
	return nil
}

var errForeign = errors.New("the file is a database of something else")

// isForeign reports whether a file is a database of another program, which SQLite must not change. A database of this
// package whose tables are only in the log is empty.
func isForeign(f io.ReaderAt) bool {
	page := make([]byte, 105)
	if _, err := f.ReadAt(page, 0); err != nil || string(page[:16]) != "SQLite format 3\x00" {
		return false // new or damaged
	}
	app, tables := binary.BigEndian.Uint32(page[68:]), binary.BigEndian.Uint16(page[103:])
	return app != sqliteApp && (app != 0 || tables > 0)
}

// findLost reports a database that is missing although its mark exists, before a new database is created.
func (s *sqliteDB) findLost() error {
	if info, err := os.Stat(s.path); s.opts.AcceptLoss || err == nil && info.Size() > 0 {
		return nil
	}
	f, err := os.Open(s.path + markSuffix)
	if err != nil {
		return nil // openFiles reports it
	}
	defer f.Close()
	m := &marker{path: f.Name(), file: f}
	last, err := m.load()
	if err == nil && last.last > 0 {
		err = &store.LossError{Path: s.path, Want: last.last}
	}
	return err
}

// lock takes the lock of the users of the database: the exclusive one if there is no other user,
// else the shared one.
func (s *sqliteDB) lock(ctx context.Context) (alone bool, err error) {
	for {
		if tryLock(s.marker.file, true) == nil {
			return true, nil
		}
		if tryLock(s.marker.file, false) == nil {
			return false, nil
		}
		select {
		case <-time.After(5 * time.Millisecond):
		case <-ctx.Done():
			return false, ctx.Err()
		}
	}
}

// isSuspect reports whether the last process did not end in order, something else has changed the
// file since, or the file is small enough for a comparison of indexes and tables at each Open.
func (s *sqliteDB) isSuspect(last mark) bool {
	if wal, err := os.Stat(s.path + "-wal"); err == nil && wal.Size() > 0 {
		return true
	}
	info, err := os.Stat(s.path)
	return err != nil || info.Size() <= smallFile || !last.matches(s.path)
}

// connect opens the pool of connections.
func (s *sqliteDB) connect() (err error) {
	synchronous := "synchronous(FULL)"
	if s.opts.AsyncCommit {
		synchronous = "synchronous(NORMAL)"
	}
	query := url.Values{"_pragma": {
		"busy_timeout(1000)", "cache_size(-8000)", "fullfsync(1)", "checkpoint_fullfsync(1)",
		"journal_mode(WAL)", "journal_size_limit(67108864)", fmt.Sprintf("wal_autocheckpoint(%d)", checkpointPages), "temp_store(MEMORY)", synchronous,
	}}
	if s.isReadOnly {
		query = readOnlyQuery(s.path)
	}
	if s.db, err = sql.Open("sqlite", sqliteURI(s.path, query)); err != nil {
		return err
	}
	conns := s.opts.MaxConns
	if conns <= 0 {
		conns = defaultConns
	}
	s.db.SetMaxOpenConns(conns + 1) // one writes
	s.db.SetMaxIdleConns(conns + 1)
	return nil
}

func sqliteURI(path string, query url.Values) string {
	return "file:" + (&url.URL{Path: filepath.ToSlash(path)}).EscapedPath() + "?" + query.Encode()
}

// readOnlyQuery is for a database without a writer. Without a log, SQLite needs no companion
// files if it knows that the file does not change.
func readOnlyQuery(path string) url.Values {
	query := url.Values{"mode": {"ro"}, "_pragma": {"busy_timeout(1000)", "temp_store(MEMORY)"}}
	if wal, err := os.Stat(path + "-wal"); err != nil || wal.Size() == 0 {
		query.Set("immutable", "1")
	}
	return query
}

// prepare prepares the statements of readers.
func (s *sqliteDB) prepare(ctx context.Context) (err error) {
	for _, p := range []struct {
		stmt **sql.Stmt
		text string
	}{
		// Go code compares the expiry with its checksum, so the statements do not filter by it. They
		// omit the value of an expired row.
		{&s.readers.get, `SELECT rev, expires, sum, key, CASE WHEN expires <= ?2 THEN NULL ELSE value END FROM entries WHERE key = ?1`},
		{&s.readers.page, `SELECT rev, expires, sum, key, CASE WHEN expires <= ?3 THEN NULL ELSE value END FROM entries
			WHERE key >= ?1 AND key < ?2 ORDER BY key`},
		{&s.readers.read, `SELECT seq, id, time, expires, sum, CASE WHEN expires <= ?3 THEN NULL ELSE value END FROM records
			WHERE stream = ?1 AND seq > ?2 ORDER BY seq`},
		{&s.readers.has, `SELECT seq, expires, sum FROM records WHERE stream = ?1 AND seq > ?2 ORDER BY seq`},
		{&s.readers.news, `SELECT seq, stream FROM records WHERE seq > ?1 ORDER BY seq LIMIT ?2`},
		{&s.readers.last, `SELECT last FROM state`},
	} {
		if *p.stmt, err = s.db.PrepareContext(ctx, p.text); err != nil {
			return err
		}
	}
	return nil
}

// readError converts an error of SQLite that reports damage.
func (s *sqliteDB) readError(err error) error {
	if isSQLite(err, sqliteCorrupt) || isSQLite(err, sqliteNoFile) {
		return &store.CorruptError{Path: s.path, Cause: err}
	}
	return err
}

// inTransaction runs do in a transaction of a separate connection.
func (s *sqliteDB) inTransaction(ctx context.Context, do func(*sql.Conn) error) (err error) {
	conn, err := s.db.Conn(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	if _, err := conn.ExecContext(ctx, "BEGIN IMMEDIATE"); err != nil {
		return err
	}
	if err = do(conn); err == nil {
		_, err = conn.ExecContext(ctx, "COMMIT")
	}
	if err != nil {
		_, _ = conn.ExecContext(context.WithoutCancel(ctx), "ROLLBACK")
	}
	return err
}

// migrate creates or updates the tables, but moves no rows.
func (s *sqliteDB) migrate(ctx context.Context) error {
	version, err := s.version(ctx)
	if err != nil || version >= sqliteMoving {
		return err
	}
	err = s.inTransaction(ctx, func(conn *sql.Conn) error {
		// The version is read again, under the lock.
		version, err := sqliteState(ctx, conn)
		if err != nil || version >= sqliteMoving {
			return err
		}
		state, next := stateRow{}, sqliteVersion
		text, err := migration("sqlite", sqliteVersion)
		if err != nil {
			return err
		}
		if version == 1 {
			rename, err := migration("sqlite", sqliteMoving)
			if err != nil {
				return err
			}
			text, next = rename+text, sqliteMoving
			if err := conn.QueryRowContext(ctx, `SELECT last, swept FROM state`).Scan(&state.last, &state.swept); err != nil {
				return err
			}
		}
		text += fmt.Sprintf("; PRAGMA user_version = %d; PRAGMA application_id = %d", next, sqliteApp)
		if _, err := conn.ExecContext(ctx, text); err != nil {
			return err
		}
		_, err = conn.ExecContext(ctx, `INSERT INTO state (last, swept, marked, sum) VALUES (?1, ?2, 0, ?3)`, state.last, state.swept, state.sum())
		return err
	})
	if isSQLite(err, sqliteReadOnly) {
		return fmt.Errorf("the disk is read-only, and the tables are not of this version: %w", err)
	}
	return err
}

// version returns the version of the tables.
func (s *sqliteDB) version(ctx context.Context) (version int, err error) {
	conn, err := s.db.Conn(ctx)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	return sqliteState(ctx, conn)
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
		return 0, errForeign
	case version < 1:
		return 0, errors.New("the tables have no version")
	case version > sqliteVersion:
		return 0, fmt.Errorf("the tables are of version %d, made by a later version of this package, which knows %d", version, sqliteVersion)
	}
	return version, nil
}

// moveAll moves the rows of version 1 in batches, one transaction each. If it is interrupted, the
// next Open continues.
func (s *sqliteDB) moveAll(ctx context.Context) error {
	for done := false; !done; {
		err := s.patiently(ctx, func() error {
			version, err := s.version(ctx)
			if done = err == nil && version == sqliteVersion; done || err != nil {
				return err
			}
			return s.inTransaction(ctx, func(conn *sql.Conn) (err error) {
				if version, err := sqliteState(ctx, conn); err != nil || version == sqliteVersion {
					return err
				}
				return moveBatch(ctx, conn)
			})
		})
		if err != nil {
			return err
		}
	}
	return nil
}

const (
	moveMost  = 500     // rows of a batch
	moveBytes = 4 << 20 // of values, about
)

// moveBatch moves some rows, or drops the old tables if there are none.
func moveBatch(ctx context.Context, conn *sql.Conn) error {
	for _, move := range []func(context.Context, *sql.Conn) (int, error){moveEntries, moveRecords, moveIDs} {
		if n, err := move(ctx, conn); err != nil || n > 0 {
			return err
		}
	}
	_, err := conn.ExecContext(ctx, fmt.Sprintf(`DROP TABLE old_entries; DROP TABLE old_records; DROP TABLE old_ids; DROP TABLE old_state;
		PRAGMA user_version = %d`, sqliteVersion))
	return err
}

// moveRows reads old rows with scan, which returns the arguments of both statements.
func moveRows(ctx context.Context, conn *sql.Conn, query string, move func(scan func(...any) error) (size int, insert, remove []any, err error),
	insert, remove string,
) (n int, err error) {
	rows, err := conn.QueryContext(ctx, query, moveMost)
	if err != nil {
		return 0, err
	}
	defer rows.Close()
	var inserts, removes [][]any
	for size := 0; size < moveBytes && rows.Next(); {
		bytes, in, out, err := move(rows.Scan)
		if err != nil {
			return 0, err
		}
		size += bytes
		inserts, removes = append(inserts, in), append(removes, out)
	}
	if err := errors.Join(rows.Err(), rows.Close()); err != nil {
		return 0, err
	}
	for i := range inserts {
		if _, err := conn.ExecContext(ctx, insert, inserts[i]...); err != nil {
			return 0, err
		}
		if _, err := conn.ExecContext(ctx, remove, removes[i]...); err != nil {
			return 0, err
		}
	}
	return len(inserts), nil
}

func moveEntries(ctx context.Context, conn *sql.Conn) (int, error) {
	return moveRows(ctx, conn, `SELECT rowid, key, rev, expires, value FROM old_entries ORDER BY rowid LIMIT ?1`,
		func(scan func(...any) error) (int, []any, []any, error) {
			var rowid, rev int64
			var key string
			var expires sql.NullInt64
			var value []byte
			err := scan(&rowid, &key, &rev, &expires, &value)
			value = blob(value)
			return len(value), []any{key, rev, expires, entrySum(key, rev, expires, value), value}, []any{rowid}, err
		},
		`INSERT INTO entries (key, rev, expires, sum, value) VALUES (?1, ?2, ?3, ?4, ?5)`, `DELETE FROM old_entries WHERE rowid = ?1`)
}

func moveRecords(ctx context.Context, conn *sql.Conn) (int, error) {
	return moveRows(ctx, conn, `SELECT seq, stream, id, time, expires, value FROM old_records ORDER BY seq LIMIT ?1`,
		func(scan func(...any) error) (int, []any, []any, error) {
			var seq, at int64
			var stream, id string
			var expires sql.NullInt64
			var value []byte
			err := scan(&seq, &stream, &id, &at, &expires, &value)
			value = blob(value)
			return len(value), []any{seq, stream, id, at, expires, recordSum(stream, seq, id, at, expires, value), value}, []any{seq}, err
		},
		`INSERT INTO records (seq, stream, id, time, expires, sum, value) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)`, `DELETE FROM old_records WHERE seq = ?1`)
}

func moveIDs(ctx context.Context, conn *sql.Conn) (int, error) {
	return moveRows(ctx, conn, `SELECT stream, id, seq, expires FROM old_ids LIMIT ?1`,
		func(scan func(...any) error) (int, []any, []any, error) {
			var seq int64
			var stream, id string
			var expires sql.NullInt64
			err := scan(&stream, &id, &seq, &expires)
			return len(id), []any{stream, id, seq, expires, idSum(stream, id, seq, expires)}, []any{stream, id}, err
		},
		`INSERT INTO ids (stream, id, seq, expires, sum) VALUES (?1, ?2, ?3, ?4, ?5)`, `DELETE FROM old_ids WHERE stream = ?1 AND id = ?2`)
}

// check compares the definitions of the tables with those of this package, and if the file is
// suspect, all indexes with the tables and all rows with their checksums.
func (s *sqliteDB) check(ctx context.Context, isSuspect bool) (err error) {
	conn, err := s.db.Conn(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	if err := checkTables(ctx, conn, s.path); err != nil || !isSuspect {
		return err
	}
	report := &Report{Path: s.path}
	if err := verifySQLite(ctx, conn, report); err != nil {
		return err
	}
	return report.Err()
}

// checkTables compares the definitions of the tables with those of this package.
func checkTables(ctx context.Context, conn *sql.Conn, path string) error {
	var encoding string
	if err := conn.QueryRowContext(ctx, `PRAGMA encoding`).Scan(&encoding); err != nil {
		return err
	}
	if encoding != "UTF-8" {
		return &store.CorruptError{Path: path, Cause: fmt.Errorf("encoding %s", encoding)}
	}
	text, err := migration("sqlite", sqliteVersion)
	if err != nil {
		return err
	}
	want := make(map[string]bool)
	for statement := range strings.SplitSeq(text, ";\n") {
		if _, create, ok := strings.Cut("\n"+statement, "\nCREATE "); ok {
			want["CREATE "+create] = true
		}
	}
	rows, err := conn.QueryContext(ctx, `SELECT sql FROM sqlite_master WHERE sql IS NOT NULL`)
	if err != nil {
		return err
	}
	defer rows.Close()
	got := make(map[string]bool)
	for rows.Next() {
		var definition string
		if err := rows.Scan(&definition); err != nil {
			return err
		}
		got[definition] = true
	}
	if err := rows.Err(); err != nil {
		return err
	}
	if !maps.Equal(got, want) {
		return &store.CorruptError{Path: path, Cause: errors.New("definitions of tables")}
	}
	return nil
}

// compare compares the highest position of the tables with the mark, and makes a mark if there is
// none yet.
func (s *sqliteDB) compare(ctx context.Context, last mark) error {
	conn, err := s.db.Conn(ctx)
	if err != nil {
		return err
	}
	state, err := readState(ctx, conn, s.path)
	if err := errors.Join(err, conn.Close()); err != nil {
		return err
	}
	if loss := lossOf(s.path, state, last); loss != nil {
		if !s.opts.AcceptLoss {
			return loss
		}
		s.opts.Logger.WarnContext(ctx, "sqlstore: loss of data accepted", "err", loss)
		if state.last, err = s.skip(ctx, state, last); err != nil {
			return err
		}
	}
	s.highest = state.last
	s.given.Store(state.last)
	s.marked.Store(state.last)
	if s.isReadOnly {
		return nil
	}
	if err := s.marker.advance(uint64(state.last)); err != nil {
		return err
	}
	if state.marked == 1 && last.count > 0 {
		return nil
	}
	if err := s.marker.sync(); err != nil {
		return err
	}
	return s.change(ctx, func(r *stateRow) { r.marked = 1 })
}

// lossOf returns the loss that a mark shows, or nil.
func lossOf(path string, state stateRow, last mark) error {
	switch {
	case last.last > uint64(state.last):
		return &store.LossError{Path: path, Have: uint64(state.last), Want: last.last}
	case state.marked == 1 && last.count == 0:
		return &store.LossError{Path: path, Have: uint64(state.last)}
	}
	return nil
}

// skip passes all positions that may have been given before a loss.
func (s *sqliteDB) skip(ctx context.Context, state stateRow, last mark) (position int64, err error) {
	margin := int64(lossMargin)
	if last.count == 0 {
		margin = unknownMargin
	}
	err = s.change(ctx, func(r *stateRow) {
		r.last = max(r.last, state.last, int64(last.last)) + margin
		position = r.last
	})
	return position, err
}

// change changes the table state.
func (s *sqliteDB) change(ctx context.Context, do func(*stateRow)) error {
	return s.patiently(ctx, func() error {
		return s.inTransaction(ctx, func(conn *sql.Conn) error {
			r, err := readState(ctx, conn, s.path)
			if err != nil {
				return err
			}
			do(&r)
			_, err = conn.ExecContext(ctx, `UPDATE state SET last = ?1, swept = ?2, marked = ?3, sum = ?4`, r.last, r.swept, r.marked, r.sum())
			return err
		})
	})
}

func readState(ctx context.Context, conn *sql.Conn, path string) (r stateRow, err error) {
	var sum int64
	err = conn.QueryRowContext(ctx, `SELECT last, swept, marked, sum FROM state`).Scan(&r.last, &r.swept, &r.marked, &sum)
	if errors.Is(err, sql.ErrNoRows) || err == nil && sum != r.sum() {
		err = &store.CorruptError{Path: path, Cause: errors.New("table state")}
	}
	return r, err
}

// noteGiven has the mark written: at once if it is too many positions behind, else soon.
func (s *sqliteDB) noteGiven(last int64) {
	s.given.Store(last)
	if last-s.marked.Load() >= markSteps && !s.opts.AsyncCommit {
		s.writeMark(last)
	}
	if last > s.marked.Load() {
		select {
		case s.behind <- struct{}{}:
		default:
		}
	}
}

func (s *sqliteDB) writeMark(last int64) {
	if s.opts.AsyncCommit {
		// The mark must not be on the disk before the data.
		if err := syncFile(s.path + "-wal"); err != nil {
			s.opts.Logger.WarnContext(s.ctx, "sqlstore: high-water mark not written", "err", err)
			return
		}
	}
	if err := s.marker.advance(uint64(last)); err != nil {
		s.opts.Logger.WarnContext(s.ctx, "sqlstore: high-water mark not written", "err", err)
		return
	}
	s.marked.Store(last)
}

func syncFile(path string) error {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

// keepMark writes the mark a little later than the positions, until close.
func (s *sqliteDB) keepMark() {
	lag := markLag
	if s.opts.AsyncCommit {
		lag *= 10 // each one syncs the disk
	}
	for {
		select {
		case <-s.behind:
		case <-s.stopMarks:
			return
		}
		select {
		case <-time.After(lag):
		case <-s.stopMarks:
			return
		}
		if last := s.given.Load(); last > s.marked.Load() {
			s.writeMark(last)
		}
	}
}

// endMark writes the last position, and in what state the database is left.
func (s *sqliteDB) endMark() {
	if s.isReadOnly {
		return
	}
	size, changed := int64(-1), int64(0)
	if _, err := os.Stat(s.path + "-wal"); errors.Is(err, fs.ErrNotExist) {
		if info, err := os.Stat(s.path); err == nil {
			size, changed = info.Size(), info.ModTime().UnixNano()
		}
	}
	err := s.marker.write(func(m mark) mark {
		m.last = max(m.last, uint64(s.given.Load()))
		m.isClean, m.size, m.changed = size >= 0, size, changed
		return m
	})
	if err != nil {
		s.opts.Logger.WarnContext(s.ctx, "sqlstore: high-water mark not written", "err", err)
	}
}
