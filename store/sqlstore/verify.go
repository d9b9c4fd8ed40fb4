// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package sqlstore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/fivewire/fivewire/store"
)

// maxDamage bounds the list of a report.
const maxDamage = 1000

// A Report is the result of a verification. Its JSON form is that of the command storecheck.
type Report struct {
	Path    string    `json:"path"`    // the file, or the schema of PostgreSQL
	Checked time.Time `json:"checked"` // when the verification ended

	Entries int `json:"entries"` // checked rows, expired ones included
	Records int `json:"records"`
	IDs     int `json:"ids"`
	Expired int `json:"expired"` // rows that await a sweep

	Last    uint64   `json:"last"`             // the highest position or revision given
	Mark    uint64   `json:"mark"`             // the high-water mark; on PostgreSQL, the highest given to this process
	Damaged int      `json:"damaged"`          // number of damages
	Damage  []Damage `json:"damage,omitempty"` // the first 1,000 of them
}

// A Damage is one finding of a verification. Empty fields are unknown.
type Damage struct {
	Table    string `json:"table,omitempty"`
	Stream   string `json:"stream,omitempty"`
	Key      string `json:"key,omitempty"`
	ID       string `json:"id,omitempty"`
	Position uint64 `json:"position,omitempty"`
	Problem  string `json:"problem"`
}

// Err returns nil if there is no damage, else a [store.CorruptError] with the first one.
func (r *Report) Err() error {
	if r.Damaged == 0 {
		return nil
	}
	d := r.Damage[0]
	return &store.CorruptError{Path: r.Path, Stream: d.Stream, Key: d.Key, Position: d.Position, Cause: errors.New(strings.TrimSpace(d.Table + " " + d.Problem))}
}

func (r *Report) add(d Damage) {
	r.Damaged++
	if len(r.Damage) < maxDamage {
		r.Damage = append(r.Damage, d)
	}
}

// Verify reads everything and compares it with the checksums, the indexes with the tables, ids
// with records, and positions with the high-water mark. The error says that the verification could
// not be done; what it found is in the report. Calls of others continue, on PostgreSQL and on
// SQLite; the log of SQLite grows until Verify has ended. It has no deadline but that of ctx.
func (s *Store) Verify(ctx context.Context) (*Report, error) {
	in, end, err := s.enterLong(ctx)
	if err != nil {
		return nil, err
	}
	defer end()
	r := &Report{}
	switch err := s.engine.verify(in, r); {
	case errors.Is(err, store.ErrCorrupt): // the rest cannot be read
		r.add(Damage{Problem: err.Error()})
	case err != nil:
		return nil, s.methodError(ctx, "verify", err)
	}
	r.Checked = time.Now()
	return r, nil
}

// VerifyFile is Verify for an SQLite file that no store has open. It changes nothing.
func VerifyFile(ctx context.Context, path string) (*Report, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return nil, err
	}
	path = resolved(path)
	fail := func(err error) (*Report, error) {
		return nil, fmt.Errorf("sqlstore: verify %s: %w", path, err)
	}
	switch info, err := os.Stat(path); {
	case err != nil:
		return fail(err)
	case info.IsDir(): // SQLite would report a fault of the disk
		return fail(syscall.EISDIR)
	}
	s := &sqliteDB{path: path, isReadOnly: true, opts: &Options{}}
	if err := s.connect(); err != nil {
		return fail(err)
	}
	defer s.db.Close()
	if f, err := os.Open(path + markSuffix); err == nil {
		defer f.Close()
		s.marker = &marker{path: f.Name(), file: f}
	}
	r := &Report{}
	switch err := s.readError(s.verify(ctx, r)); {
	case errors.Is(err, store.ErrCorrupt):
		r.add(Damage{Problem: err.Error()})
	case err != nil:
		return fail(err)
	}
	r.Checked = time.Now()
	return r, nil
}

func (s *sqliteDB) verify(ctx context.Context, r *Report) (err error) {
	r.Path = s.path
	var last mark
	if s.marker != nil {
		if last, err = s.marker.load(); err != nil {
			r.add(Damage{Problem: err.Error()})
		}
	}
	r.Mark = last.last
	conn, err := s.db.Conn(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	if version, err := sqliteState(ctx, conn); err != nil {
		return err
	} else if version != sqliteVersion {
		return fmt.Errorf("the tables are of version %d: Open converts them to %d", version, sqliteVersion)
	}
	if _, err := conn.ExecContext(ctx, "BEGIN"); err != nil {
		return err
	}
	defer func() { _, _ = conn.ExecContext(context.WithoutCancel(ctx), "ROLLBACK") }()
	if err := checkTables(ctx, conn, s.path); err != nil {
		return err
	}
	if err := verifySQLite(ctx, conn, r); err != nil {
		return err
	}
	state, err := readState(ctx, conn, s.path)
	if err != nil {
		return err
	}
	if loss := lossOf(s.path, state, last); loss != nil {
		r.add(Damage{Problem: loss.Error()})
	}
	return nil
}

// verifySQLite compares all rows with their checksums, and indexes with tables.
func verifySQLite(ctx context.Context, conn *sql.Conn, r *Report) error {
	rows, err := conn.QueryContext(ctx, fmt.Sprintf(`PRAGMA integrity_check(%d)`, maxDamage))
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		var text string
		if err := rows.Scan(&text); err != nil {
			return err
		}
		if text != "ok" {
			r.add(Damage{Problem: text})
		}
	}
	if err := errors.Join(rows.Err(), rows.Close()); err != nil {
		return err
	}
	state, err := readState(ctx, conn, r.Path)
	if err != nil {
		return err
	}
	r.Last = uint64(state.last)
	v := &verifier{conn: conn, report: r, last: state.last, now: time.Now().UnixMicro()}
	for _, step := range []func(context.Context) error{v.entries, v.records, v.ids, v.orphans} {
		if err := step(ctx); err != nil {
			return err
		}
	}
	return nil
}

// A verifier reads the tables of SQLite without their indexes.
type verifier struct {
	conn   *sql.Conn
	report *Report
	last   int64
	now    int64
}

// each calls row for each row of a query. A row that cannot be scanned is damaged.
func (v *verifier) each(ctx context.Context, table, query string, row func(scan func(...any) error) (Damage, error)) error {
	rows, err := v.conn.QueryContext(ctx, query, v.now)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		d, err := row(rows.Scan)
		if err != nil {
			d.Problem = err.Error()
		}
		if d.Problem != "" {
			d.Table = table
			v.report.add(d)
		}
	}
	return rows.Err()
}

// problem judges a row.
func (v *verifier) problem(isTyped, isWhole bool, position int64, expires sql.NullInt64) string {
	if expires.Valid && expires.Int64 <= v.now {
		v.report.Expired++
	}
	switch {
	case !isWhole:
		return "checksum does not match"
	case !isTyped:
		return "type of a column"
	case position > v.last:
		return "position above the last one"
	}
	return ""
}

func (v *verifier) entries(ctx context.Context) error {
	return v.each(ctx, "entries", `SELECT key, rev, expires, sum, value,
		typeof(key) = 'text' AND typeof(rev) = 'integer' AND typeof(value) = 'blob' FROM entries NOT INDEXED WHERE ?1 = ?1`,
		func(scan func(...any) error) (Damage, error) {
			var key string
			var rev, sum int64
			var expires sql.NullInt64
			var value []byte
			var isTyped bool
			err := scan(&key, &rev, &expires, &sum, &value, &isTyped)
			v.report.Entries++
			return Damage{Key: key, Position: uint64(rev), Problem: v.problem(isTyped, sum == entrySum(key, rev, expires, value), rev, expires)}, err
		})
}

func (v *verifier) records(ctx context.Context) error {
	return v.each(ctx, "records", `SELECT seq, stream, id, time, expires, sum, value,
		typeof(stream) = 'text' AND typeof(id) = 'text' AND typeof(value) = 'blob' FROM records NOT INDEXED WHERE ?1 = ?1`,
		func(scan func(...any) error) (Damage, error) {
			var stream, id string
			var seq, at, sum int64
			var expires sql.NullInt64
			var value []byte
			var isTyped bool
			err := scan(&seq, &stream, &id, &at, &expires, &sum, &value, &isTyped)
			v.report.Records++
			isWhole := sum == recordSum(stream, seq, id, at, expires, value)
			return Damage{Stream: stream, ID: id, Position: uint64(seq), Problem: v.problem(isTyped, isWhole, seq, expires)}, err
		})
}

func (v *verifier) ids(ctx context.Context) error {
	return v.each(ctx, "ids", `SELECT stream, id, seq, expires, sum,
		typeof(stream) = 'text' AND typeof(id) = 'text' AND typeof(seq) = 'integer' FROM ids NOT INDEXED WHERE ?1 = ?1`,
		func(scan func(...any) error) (Damage, error) {
			var stream, id string
			var seq, sum int64
			var expires sql.NullInt64
			var isTyped bool
			err := scan(&stream, &id, &seq, &expires, &sum, &isTyped)
			v.report.IDs++
			isWhole := sum == idSum(stream, id, seq, expires)
			return Damage{Stream: stream, ID: id, Position: uint64(seq), Problem: v.problem(isTyped, isWhole, seq, expires)}, err
		})
}

// orphans finds records whose id is not known, and ids that no record or expiry explains. A sweep
// removes expired rows from one table after the other.
func (v *verifier) orphans(ctx context.Context) error {
	for _, query := range []string{
		`SELECT stream, id, seq, 'id is not known' FROM records r WHERE id <> '' AND (expires IS NULL OR expires > ?1)
			AND NOT EXISTS (SELECT 1 FROM ids i WHERE i.stream = r.stream AND i.id = r.id AND i.seq = r.seq)`,
		`SELECT stream, id, seq, 'record is missing' FROM ids i WHERE expires IS NULL
			AND NOT EXISTS (SELECT 1 FROM records r WHERE r.seq = i.seq AND r.stream = i.stream)`,
	} {
		err := v.each(ctx, "ids", query, func(scan func(...any) error) (d Damage, err error) {
			err = scan(&d.Stream, &d.ID, &d.Position, &d.Problem)
			return d, err
		})
		if err != nil {
			return err
		}
	}
	return nil
}
