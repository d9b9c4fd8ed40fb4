// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package sqlstore

import (
	"bytes"
	"cmp"
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/fivewire/fivewire/internal/option"
	"github.com/fivewire/fivewire/store"
)

// errBad makes database/sql throw a connection away.
var errBad = driver.ErrBadConn

// Statements of SQLite run without the context of the caller: the driver would start a goroutine for
// each that can end.

// await returns the result of do, or the error of ctx if that ends first, as it does while the disk
// hangs. Nothing that do uses may belong to the caller. The group counts do until its end.
func await[T any](ctx context.Context, group *sync.WaitGroup, do func() (T, error)) (T, error) {
	type result struct {
		value T
		err   error
	}
	done := make(chan result, 1)
	group.Go(func() {
		value, err := do()
		done <- result{value, err}
	})
	select {
	case r := <-done:
		return r.value, r.err
	case <-ctx.Done():
		var none T
		return none, ctx.Err()
	}
}

// blob is a copy of value that is not null in the database.
func blob(value []byte) []byte {
	if len(value) == 0 {
		return []byte{}
	}
	return bytes.Clone(value)
}

// moment is a column of expiry as a time.
func moment(micros sql.NullInt64) time.Time {
	if !micros.Valid {
		return time.Time{}
	}
	return time.UnixMicro(micros.Int64)
}

// damagedEntry is the error of a row whose checksum does not match, or whose columns have other types.
func (s *sqliteDB) damagedEntry(key string, rev store.Revision, cause error) error {
	return &store.CorruptError{Path: s.path, Key: key, Position: uint64(rev), Cause: cause}
}

func (s *sqliteDB) damagedRecord(stream string, seq uint64, cause error) error {
	return &store.CorruptError{Path: s.path, Stream: stream, Position: seq, Cause: cause}
}

// entry reads a row of rev, expires, sum, key and value. The second result is false for an expired one.
func (s *sqliteDB) entry(now int64, scan func(...any) error, key string) (e store.Entry, alive bool, err error) {
	var expires sql.NullInt64
	var rev, sum int64
	e.Key = key
	if err := scan(&rev, &expires, &sum, &e.Key, &e.Value); err != nil {
		return e, false, err
	}
	e.Revision, e.Expires = store.Revision(rev), moment(expires)
	if expires.Valid && expires.Int64 <= now {
		if !livesUntil(sum, e.Key, expires) {
			return e, false, s.damagedEntry(e.Key, e.Revision, nil)
		}
		return e, false, nil
	}
	if sum != entrySum(e.Key, rev, expires, e.Value) {
		return e, false, s.damagedEntry(e.Key, e.Revision, nil)
	}
	return e, true, nil
}

func (s *sqliteDB) get(ctx context.Context, key string) (store.Entry, error) {
	return await(ctx, &s.reads, func() (store.Entry, error) { return s.getNow(key) })
}

func (s *sqliteDB) getNow(key string) (store.Entry, error) {
	now, given := s.micro(), s.given.Load()
	e, alive, err := s.entry(now, s.readers.get.QueryRowContext(context.Background(), key, now).Scan, key)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return store.Entry{}, cmp.Or(s.checkEnd(given), store.ErrNotFound)
	case err != nil:
		return store.Entry{}, s.readError(err)
	case e.Key != key:
		return store.Entry{}, s.damagedEntry(key, e.Revision, nil)
	case !alive:
		return store.Entry{}, store.ErrNotFound
	}
	return e, nil
}

// alive returns the revision of a key that has not expired, else zero, and whether there is a row.
func (t *tx) alive(key string) (rev int64, exists bool, err error) {
	var expires sql.NullInt64
	var sum int64
	exists, err = t.row(`SELECT rev, expires, sum FROM entries WHERE key = ?1`, []any{key}, &rev, &expires, &sum)
	switch {
	case err != nil || !exists:
		return 0, false, err
	case !livesUntil(sum, key, expires):
		return 0, true, t.db.damagedEntry(key, store.Revision(rev), nil)
	case expires.Valid && expires.Int64 <= t.now:
		return 0, true, nil
	}
	return rev, true, nil
}

// put stores an entry. The key has a row if exists is true.
func (t *tx) put(key string, exists bool, value []byte, ttl int64) (rev int64, err error) {
	if rev, err = t.next(); err != nil {
		return 0, err
	}
	text := `INSERT INTO entries (key, rev, expires, sum, value) VALUES (?1, ?2, ?3, ?4, ?5)`
	if exists {
		text = `UPDATE entries SET rev = ?2, expires = ?3, sum = ?4, value = ?5 WHERE key = ?1`
	}
	expires := t.expires(ttl)
	_, err = t.exec(text, key, rev, expires, entrySum(key, rev, expires, value), value)
	return rev, err
}

func (s *sqliteDB) create(ctx context.Context, key string, value []byte, ttl int64) (store.Revision, error) {
	var rev int64
	value = blob(value)
	err := s.grow(ctx, len(value), func(t *tx) error {
		found, exists, err := t.alive(key)
		if err != nil {
			return err
		}
		if found != 0 {
			return store.ErrExists
		}
		rev, err = t.put(key, exists, value, ttl)
		return err
	})
	if err != nil {
		return 0, err
	}
	return store.Revision(rev), nil
}

func (s *sqliteDB) update(ctx context.Context, key string, value []byte, rev, ttl int64) (store.Revision, error) {
	var next int64
	value = blob(value)
	err := s.grow(ctx, len(value), func(t *tx) error {
		found, _, err := t.alive(key)
		switch {
		case err != nil:
			return err
		case found == 0:
			return store.ErrNotFound
		case found != rev:
			return store.ErrConflict
		}
		next, err = t.put(key, true, value, ttl)
		return err
	})
	if err != nil {
		return 0, err
	}
	return store.Revision(next), nil
}

func (s *sqliteDB) delete(ctx context.Context, key string, rev int64) error {
	return s.free(ctx, func(t *tx) error {
		if rev != 0 {
			found, _, err := t.alive(key)
			switch {
			case err != nil:
				return err
			case found == 0:
				return nil
			case found != rev:
				return store.ErrConflict
			}
		}
		_, err := t.exec(`DELETE FROM entries WHERE key = ?1`, key)
		return err
	})
}

func (s *sqliteDB) page(ctx context.Context, from, to string, limit int) ([]store.Entry, error) {
	return await(ctx, &s.reads, func() ([]store.Entry, error) { return s.pageNow(ctx, from, to, limit) })
}

func (s *sqliteDB) pageNow(ctx context.Context, from, to string, limit int) ([]store.Entry, error) {
	now, given := s.micro(), s.given.Load()
	rows, err := s.readers.page.QueryContext(context.Background(), from, to, now)
	if err != nil {
		return nil, s.readError(err)
	}
	defer rows.Close()
	var entries []store.Entry
	size := 0
	for len(entries) < limit && size < listBytes && ctx.Err() == nil && rows.Next() {
		e, alive, err := s.entry(now, rows.Scan, "")
		if err != nil {
			return nil, s.readError(err)
		}
		if alive {
			entries = append(entries, e)
			size += len(e.Value)
		}
	}
	if len(entries) == limit || size >= listBytes {
		return entries, nil
	}
	return entries, s.end(ctx, rows, given)
}

// end closes rows that were read to their end, or until the end of ctx.
func (s *sqliteDB) end(ctx context.Context, rows *sql.Rows, given int64) error {
	if err := errors.Join(rows.Err(), rows.Close()); err != nil {
		return s.readError(err)
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	return s.checkEnd(given)
}

// checkEnd compares the last position of the tables with the position that this process had given before it read an absent
// row: the file may have been replaced by an older copy, or overwritten with it.
func (s *sqliteDB) checkEnd(given int64) error {
	var last int64
	if err := s.readers.last.QueryRowContext(context.Background()).Scan(&last); err != nil {
		return s.readError(err)
	}
	if last < given {
		return &store.LossError{Path: s.path, Have: uint64(last), Want: uint64(given)}
	}
	return nil
}

// positionOf returns the position of the record with an id that has not expired, or zero.
func (t *tx) positionOf(stream, id string) (seq int64, err error) {
	var expires sql.NullInt64
	var sum int64
	found, err := t.row(`SELECT seq, expires, sum FROM ids WHERE stream = ?1 AND id = ?2`, []any{stream, id}, &seq, &expires, &sum)
	switch {
	case err != nil || !found:
		return 0, err
	case sum != idSum(stream, id, seq, expires):
		return 0, t.db.damagedRecord(stream, uint64(seq), fmt.Errorf("id %q", id))
	case expires.Valid && expires.Int64 <= t.now:
		return 0, nil
	}
	return seq, nil
}

func (s *sqliteDB) append(ctx context.Context, stream, id string, value []byte, ttl int64) (uint64, error) {
	var seq int64
	value = blob(value)
	err := s.grow(ctx, len(value), func(t *tx) (err error) {
		if id != "" {
			if seq, err = t.positionOf(stream, id); err != nil {
				return err
			}
			if seq != 0 {
				return store.ErrDuplicate
			}
		}
		if seq, err = t.next(); err != nil {
			return err
		}
		expires := t.expires(ttl)
		if _, err := t.exec(`INSERT INTO records (seq, stream, id, time, expires, sum, value) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)`,
			seq, stream, id, t.now, expires, recordSum(stream, seq, id, t.now, expires, value), value); err != nil {
			return err
		}
		if id != "" {
			_, err = t.exec(`INSERT INTO ids (stream, id, seq, expires, sum) VALUES (?1, ?2, ?3, ?4, ?5)
				ON CONFLICT (stream, id) DO UPDATE SET seq = excluded.seq, expires = excluded.expires, sum = excluded.sum`,
				stream, id, seq, expires, idSum(stream, id, seq, expires))
		}
		return err
	})
	if err != nil && !errors.Is(err, store.ErrDuplicate) {
		return 0, err
	}
	return uint64(seq), err
}

func (s *sqliteDB) read(ctx context.Context, stream string, after int64, limit int) ([]store.Record, error) {
	return await(ctx, &s.reads, func() ([]store.Record, error) { return s.readNow(ctx, stream, after, limit) })
}

func (s *sqliteDB) readNow(ctx context.Context, stream string, after int64, limit int) ([]store.Record, error) {
	now, given := s.micro(), s.given.Load()
	rows, err := s.readers.read.QueryContext(context.Background(), stream, after, now)
	if err != nil {
		return nil, s.readError(err)
	}
	defer rows.Close()
	var records []store.Record
	for len(records) < limit && ctx.Err() == nil && rows.Next() {
		r, alive, err := s.record(now, stream, rows.Scan)
		if err != nil {
			return nil, s.readError(err)
		}
		if alive {
			records = append(records, r)
		}
	}
	if len(records) == limit {
		return records, nil
	}
	return records, s.end(ctx, rows, given)
}

// record reads a row of seq, id, time, expires, sum and value.
func (s *sqliteDB) record(now int64, stream string, scan func(...any) error) (r store.Record, alive bool, err error) {
	var at, seq, sum int64
	var expires sql.NullInt64
	if err := scan(&seq, &r.ID, &at, &expires, &sum, &r.Value); err != nil {
		return r, false, err
	}
	r.Seq, r.Time, r.Expires = uint64(seq), time.UnixMicro(at), moment(expires)
	if expires.Valid && expires.Int64 <= now {
		if !livesUntil(sum, stream, expires) {
			return r, false, s.damagedRecord(stream, r.Seq, nil)
		}
		return r, false, nil
	}
	if sum != recordSum(stream, seq, r.ID, at, expires, r.Value) {
		return r, false, s.damagedRecord(stream, r.Seq, nil)
	}
	return r, true, nil
}

func (s *sqliteDB) has(ctx context.Context, stream string, after int64) (bool, error) {
	return await(ctx, &s.reads, func() (bool, error) { return s.hasNow(ctx, stream, after) })
}

func (s *sqliteDB) hasNow(ctx context.Context, stream string, after int64) (bool, error) {
	now, given := s.micro(), s.given.Load()
	rows, err := s.readers.has.QueryContext(context.Background(), stream, after)
	if err != nil {
		return false, s.readError(err)
	}
	defer rows.Close()
	for ctx.Err() == nil && rows.Next() {
		var seq, sum int64
		var expires sql.NullInt64
		if err := rows.Scan(&seq, &expires, &sum); err != nil {
			return false, s.readError(err)
		}
		if !livesUntil(sum, stream, expires) {
			return false, s.damagedRecord(stream, uint64(seq), nil)
		}
		if !expires.Valid || expires.Int64 > now {
			return true, nil
		}
	}
	return false, s.end(ctx, rows, given)
}

func (s *sqliteDB) ack(ctx context.Context, stream string, seqs []int64) error {
	return s.free(ctx, func(t *tx) error {
		for _, seq := range seqs {
			var id string
			ok, err := t.row(`DELETE FROM records WHERE seq = ?1 AND stream = ?2 RETURNING id`, []any{seq, stream}, &id)
			if err != nil {
				return err
			}
			if ok && id != "" {
				if _, err := t.exec(`DELETE FROM ids WHERE stream = ?1 AND id = ?2 AND seq = ?3 AND expires IS NULL`, stream, id, seq); err != nil {
					return err
				}
			}
		}
		return nil
	})
}

func (s *sqliteDB) expire(ctx context.Context, stream string, ttl int64) error {
	return s.free(ctx, func(t *tx) error {
		for _, table := range []string{"records", "ids"} {
			var err error
			if ttl == 0 {
				_, err = t.exec(`DELETE FROM `+table+` WHERE stream = ?1`, stream)
			} else {
				expires := t.expires(ttl)
				_, err = t.exec(`UPDATE `+table+` SET expires = ?1, sum = (sum & ~4294967295) | ?4
					WHERE stream = ?2 AND (expires IS NULL OR expires > ?3)`, expires, stream, t.now, lifeSum(stream, expires))
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
}

// sweep takes turns with other processes: one of them is enough in its time.
func (s *sqliteDB) sweep(ctx context.Context) (more bool, err error) {
	if s.isReadOnly {
		return false, nil
	}
	var isMore bool // no result, since the function may still run after an error
	var damaged error
	err = s.free(ctx, func(t *tx) error {
		isMore, damaged = false, nil
		if err := t.load(); err != nil {
			return err
		}
		// A time to come is that of a clock that was set back.
		recent, swept := s.opts.SweepInterval.Microseconds()/2, t.state.swept
		if swept <= t.now && swept > t.now-recent {
			return nil
		}
		for _, table := range []string{"entries", "records", "ids"} {
			n, err := t.sweep(table)
			if errors.Is(err, store.ErrCorrupt) {
				damaged, err = err, nil
			}
			if err != nil {
				return err
			}
			isMore = isMore || n == sweepMost
		}
		if !isMore {
			t.state.swept = t.now
		}
		return nil
	})
	if err != nil {
		return false, err
	}
	return isMore, damaged
}

// sweep removes expired rows of a table. It keeps a row whose expiry is damaged, and reports it.
func (t *tx) sweep(table string) (removed int, err error) {
	columns, where := "rowid, key", "rowid = ?1"
	switch table {
	case "records":
		columns = "seq, stream"
	case "ids":
		columns, where = "id, stream", "id = ?1 AND stream = ?2"
	}
	stmt, err := t.db.stmt(`SELECT ` + columns + `, expires, sum FROM ` + table + ` WHERE expires <= ?1 LIMIT ?2`)
	if err != nil {
		return 0, err
	}
	rows, err := stmt.QueryContext(context.Background(), t.now, sweepMost)
	if err != nil {
		return 0, err
	}
	defer rows.Close()
	type row struct {
		id   any
		name string
	}
	var expired []row
	var damaged error
	for rows.Next() {
		var r row
		var expires sql.NullInt64
		var sum int64
		if err := rows.Scan(&r.id, &r.name, &expires, &sum); err != nil {
			return 0, err
		}
		if !livesUntil(sum, r.name, expires) {
			damaged = &store.CorruptError{Path: t.db.path, Cause: fmt.Errorf("expiry in %s of %q", table, r.name)}
			continue
		}
		expired = append(expired, r)
	}
	if err := errors.Join(rows.Err(), rows.Close()); err != nil {
		return 0, err
	}
	for _, r := range expired {
		args := []any{r.id, r.name}
		if table != "ids" {
			args = args[:1]
		}
		if _, err := t.exec(`DELETE FROM `+table+` WHERE `+where, args...); err != nil {
			return 0, err
		}
	}
	return len(expired), damaged
}

// newsMost bounds what one look at the end of the table reads.
const newsMost = 1000

// watch polls for records of other processes while a call waits. Positions rise in the order of
// transactions, so new records have the highest positions.
func (s *sqliteDB) watch(ctx context.Context) {
	every := max(option.Or(s.opts.PollInterval, 5*time.Millisecond, 5*time.Millisecond), minPoll)
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	var seen int64
	for failed := false; ; {
		if s.waits.empty() {
			select {
			case <-s.waits.some:
			case <-ctx.Done():
				return
			}
		}
		streams, last, err := s.news(seen)
		switch {
		case err != nil && !failed:
			s.opts.Logger.WarnContext(ctx, "sqlstore: looking for new records fails and will be tried again", "err", err)
		case err == nil && (streams == nil || last < seen): // a fall is a loss, which each waiter then finds
			s.waits.wakeAll()
		default:
			for _, stream := range streams {
				s.waits.notify(stream)
			}
		}
		if failed = err != nil; !failed {
			seen = last
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
	}
}

// news returns the streams that got records after position seen, nil if these
// are too many to tell, and the position up to which that is all.
func (s *sqliteDB) news(seen int64) (streams []string, last int64, err error) {
	// Records committed after this have higher positions.
	if err := s.readers.last.QueryRowContext(context.Background()).Scan(&last); err != nil || last == seen {
		return []string{}, seen, err
	}
	if last-seen > 100*newsMost {
		return nil, last, nil
	}
	rows, err := s.readers.news.QueryContext(context.Background(), seen, newsMost)
	if err != nil {
		return []string{}, seen, err
	}
	defer rows.Close()
	streams = []string{}
	n := 0
	for ; rows.Next(); n++ {
		var seq int64
		var stream string
		if err := rows.Scan(&seq, &stream); err != nil {
			return []string{}, seen, err
		}
		if !slices.Contains(streams, stream) {
			streams = append(streams, stream)
		}
	}
	if n == newsMost {
		streams = nil
	}
	return streams, last, rows.Err()
}
