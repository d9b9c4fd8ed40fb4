// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package sqlstore

import (
	"bytes"
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/fivewire/fivewire/store"
)

// errBad makes database/sql throw a connection away.
var errBad = driver.ErrBadConn

// Statements of SQLite never wait for long, so they run without the context of
// the caller: the driver would start a goroutine for each that can end.

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

func (s *sqliteDB) get(_ context.Context, key string) (store.Entry, error) {
	e := store.Entry{Key: key}
	var expires sql.NullInt64
	err := s.readers.get.QueryRowContext(context.Background(), key, s.micro()).Scan(&e.Value, &e.Revision, &expires)
	if errors.Is(err, sql.ErrNoRows) {
		return store.Entry{}, store.ErrNotFound
	}
	if err != nil {
		return store.Entry{}, err
	}
	e.Expires = moment(expires)
	return e, nil
}

func (s *sqliteDB) create(ctx context.Context, key string, value []byte, ttl int64) (store.Revision, error) {
	var rev int64
	value = blob(value)
	err := s.write(ctx, len(value), func(t *tx) (err error) {
		if rev, err = t.next(); err != nil {
			return err
		}
		n, err := t.exec(`INSERT INTO entries (key, rev, expires, value) VALUES (?1, ?2, ?3, ?4)
			ON CONFLICT (key) DO UPDATE SET rev = excluded.rev, expires = excluded.expires, value = excluded.value
			WHERE expires <= ?5`, key, rev, t.expires(ttl), value, t.now)
		if err != nil || n > 0 {
			return err
		}
		t.unused()
		return store.ErrExists
	})
	if err != nil {
		return 0, err
	}
	return store.Revision(rev), nil
}

func (s *sqliteDB) update(ctx context.Context, key string, value []byte, rev, ttl int64) (store.Revision, error) {
	var next int64
	value = blob(value)
	err := s.write(ctx, len(value), func(t *tx) (err error) {
		if next, err = t.next(); err != nil {
			return err
		}
		n, err := t.exec(`UPDATE entries SET rev = ?1, expires = ?2, value = ?3
			WHERE key = ?4 AND rev = ?5 AND (expires IS NULL OR expires > ?6)`, next, t.expires(ttl), value, key, rev, t.now)
		if err != nil || n > 0 {
			return err
		}
		t.unused()
		return t.differs(key, store.ErrNotFound)
	})
	if err != nil {
		return 0, err
	}
	return store.Revision(next), nil
}

// differs is the answer where key does not have the revision asked for: absent
// if there is nothing alive.
func (t *tx) differs(key string, absent error) error {
	var one int
	ok, err := t.row(`SELECT 1 FROM entries WHERE key = ?1 AND (expires IS NULL OR expires > ?2)`, []any{key, t.now}, &one)
	switch {
	case err != nil:
		return err
	case ok:
		return store.ErrConflict
	}
	return absent
}

func (s *sqliteDB) delete(ctx context.Context, key string, rev int64) error {
	return s.write(ctx, 0, func(t *tx) error {
		if rev == 0 {
			_, err := t.exec(`DELETE FROM entries WHERE key = ?1`, key)
			return err
		}
		n, err := t.exec(`DELETE FROM entries WHERE key = ?1 AND rev = ?2`, key, rev)
		if err != nil || n > 0 {
			return err
		}
		return t.differs(key, nil)
	})
}

func (s *sqliteDB) page(_ context.Context, from, to string, limit int) ([]store.Entry, error) {
	rows, err := s.readers.page.QueryContext(context.Background(), from, to, s.micro(), limit)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var entries []store.Entry
	for rows.Next() {
		var e store.Entry
		var expires sql.NullInt64
		if err := rows.Scan(&e.Value, &e.Revision, &expires, &e.Key); err != nil {
			return nil, err
		}
		e.Expires = moment(expires)
		entries = append(entries, e)
	}
	return entries, rows.Err()
}

func (s *sqliteDB) append(ctx context.Context, stream, id string, value []byte, ttl int64) (uint64, error) {
	var seq int64
	value = blob(value)
	err := s.write(ctx, len(value), func(t *tx) (err error) {
		if id != "" {
			known, err := t.row(`SELECT seq FROM ids WHERE stream = ?1 AND id = ?2 AND (expires IS NULL OR expires > ?3)`, []any{stream, id, t.now}, &seq)
			if err != nil {
				return err
			}
			if known {
				return store.ErrDuplicate
			}
		}
		if seq, err = t.next(); err != nil {
			return err
		}
		expires := t.expires(ttl)
		if _, err := t.exec(`INSERT INTO records (seq, stream, id, time, expires, value) VALUES (?1, ?2, ?3, ?4, ?5, ?6)`, seq, stream, id, t.now, expires, value); err != nil {
			return err
		}
		if id != "" {
			_, err = t.exec(`INSERT INTO ids (stream, id, seq, expires) VALUES (?1, ?2, ?3, ?4)
				ON CONFLICT (stream, id) DO UPDATE SET seq = excluded.seq, expires = excluded.expires`, stream, id, seq, expires)
		}
		return err
	})
	if err != nil && !errors.Is(err, store.ErrDuplicate) {
		return 0, err
	}
	return uint64(seq), err
}

func (s *sqliteDB) read(_ context.Context, stream string, after int64, limit int) ([]store.Record, error) {
	rows, err := s.readers.read.QueryContext(context.Background(), stream, after, s.micro(), limit)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var records []store.Record
	for rows.Next() {
		var r store.Record
		var at int64
		var expires sql.NullInt64
		if err := rows.Scan(&r.Value, &r.Seq, &r.ID, &at, &expires); err != nil {
			return nil, err
		}
		r.Time, r.Expires = time.UnixMicro(at), moment(expires)
		records = append(records, r)
	}
	return records, rows.Err()
}

func (s *sqliteDB) has(_ context.Context, stream string, after int64) (bool, error) {
	var one int
	err := s.readers.has.QueryRowContext(context.Background(), stream, after, s.micro()).Scan(&one)
	if errors.Is(err, sql.ErrNoRows) {
		return false, nil
	}
	return err == nil, err
}

func (s *sqliteDB) ack(ctx context.Context, stream string, seqs []int64) error {
	return s.write(ctx, 0, func(t *tx) error {
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
	return s.write(ctx, 0, func(t *tx) error {
		for _, table := range []string{"records", "ids"} {
			var err error
			if ttl == 0 {
				_, err = t.exec(`DELETE FROM `+table+` WHERE stream = ?1`, stream)
			} else {
				_, err = t.exec(`UPDATE `+table+` SET expires = ?1 WHERE stream = ?2 AND (expires IS NULL OR expires > ?3)`, t.expires(ttl), stream, t.now)
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
	err = s.write(ctx, 0, func(t *tx) error {
		more = false
		var swept int64
		if _, err := t.row(`SELECT swept FROM state`, nil, &swept); err != nil {
			return err
		}
		// A time to come is that of a clock that was set back.
		if recent := s.opts.SweepInterval.Microseconds() / 2; swept <= t.now && swept > t.now-recent {
			return nil
		}
		for _, table := range []string{"entries", "records", "ids"} {
			which := "rowid"
			if table == "ids" {
				which = "stream, id"
			}
			n, err := t.exec(fmt.Sprintf(`DELETE FROM %[1]s WHERE (%[2]s) IN (SELECT %[2]s FROM %[1]s WHERE expires <= ?1 LIMIT ?2)`, table, which), t.now, sweepMost)
			if err != nil {
				return err
			}
			more = more || n == sweepMost
		}
		if !more {
			_, err := t.exec(`UPDATE state SET swept = ?1`, t.now)
			return err
		}
		return nil
	})
	return more, err
}

// newsMost bounds what one look at the end of the table reads.
const newsMost = 1000

// watch looks for records of other processes while somebody waits. Positions
// rise in the order of transactions, so what is new stands at the end.
func (s *sqliteDB) watch(ctx context.Context) {
	every := s.opts.PollInterval
	if every <= 0 {
		every = 5 * time.Millisecond
	}
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
		case err == nil && streams == nil:
			s.waits.wakeAll()
		default:
			for _, stream := range streams {
				s.waits.wake(stream)
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
	// What is committed after this has higher positions.
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
