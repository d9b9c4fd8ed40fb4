// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package sqlstore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// Backup writes a copy of an SQLite database to a new file, as it is at one moment while others
// write. The copy is complete in one file and is on the disk when Backup returns. An existing file
// is refused with [fs.ErrExist]. A database of PostgreSQL is refused with [errors.ErrUnsupported]:
// pg_dump copies it.
//
// A process that ends during a backup leaves a file whose name is path, ".partial-" and a number. It
// does not disturb later backups, and may be removed.
//
// To restore, stop all processes, remove the database with its -wal and -shm, keep its -mark, put
// the copy in its place, and open it with Options.AcceptLoss: positions that were given after the
// backup are then not given again.
func (s *Store) Backup(ctx context.Context, path string) error {
	in, end, err := s.enterLong(ctx)
	if err != nil {
		return err
	}
	defer end()
	return s.methodError(ctx, "backup", s.engine.backup(in, path))
}

func (s *sqliteDB) backup(ctx context.Context, path string) (err error) {
	if path, err = filepath.Abs(path); err != nil {
		return err
	}
	if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
		return errors.Join(&fs.PathError{Op: "backup", Path: path, Err: fs.ErrExist}, err)
	}
	// SQLite accepts an empty file, and keeps its mode. The name is new: SQLite would apply the journal of
	// a backup that a crash ended, and another backup may still write.
	f, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+".partial-*")
	if err != nil {
		return err
	}
	temporary := f.Name()
	defer func() { _ = os.Remove(temporary) }() // its other name remains
	if err := f.Close(); err != nil {
		return err
	}
	if _, err := s.db.ExecContext(ctx, `VACUUM INTO ?1`, temporary); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	if err := unmark(ctx, temporary); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	if err := syncFile(temporary); err != nil {
		return err
	}
	// Unlike a rename, a link fails if another backup was faster.
	if err := os.Link(temporary, path); err != nil {
		return err
	}
	syncFolder(path)
	return nil
}

// unmark lets Open make a mark for a copy.
func unmark(ctx context.Context, path string) (err error) {
	db, err := sql.Open("sqlite", sqliteURI(path, nil))
	if err != nil {
		return err
	}
	s := &sqliteDB{path: path, db: db, opts: &Options{}}
	return errors.Join(s.change(ctx, func(r *stateRow) { r.marked = 0 }), db.Close())
}
