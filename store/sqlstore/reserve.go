// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package sqlstore

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
)

const (
	reserveSuffix = "-reserve"
	reserveSize   = 1 << 20

	// checkpointPages is the length of the log in pages of 4 KiB at which SQLite moves it to the
	// database. A full disk still has room for that in the reserve.
	checkpointPages = 200
)

// isFull reports whether err says that the disk is full. SQLite reports so also for its companion
// files, as an I/O error.
func isFull(err error) bool { return isSQLite(err, sqliteFull) || isSQLite(err, sqliteIO) }

// free is write for a call that makes room. On a full disk it uses the space of the reserve.
func (s *sqliteDB) free(ctx context.Context, do func(*tx) error) error {
	err := s.write(ctx, 0, do)
	if !isFull(err) || s.isReadOnly {
		return err
	}
	if err := s.lockReserve(ctx); err != nil {
		return err
	}
	defer s.unlockReserve()
	if removeErr := os.Remove(s.path + reserveSuffix); removeErr != nil && !errors.Is(removeErr, fs.ErrNotExist) {
		return errors.Join(err, removeErr)
	}
	s.isSpent.Store(true)
	s.checkpoint(ctx)
	err = s.write(ctx, 0, do)
	s.refillLocked(ctx)
	return err
}

// grow is write for a call that needs room. It is refused until the reserve is whole again, so that
// the reserve is left for calls that make room.
func (s *sqliteDB) grow(ctx context.Context, size int, do func(*tx) error) error {
	if s.isSpent.Load() {
		if err := s.refill(ctx); err != nil {
			return fmt.Errorf("disk is full: %w", err)
		}
	}
	err := s.write(ctx, size, do)
	if !isFull(err) || s.isReadOnly {
		return err
	}
	s.checkpoint(ctx) // an empty log may make room
	return s.write(ctx, size, do)
}

// checkpoint moves the log to the database, up to the first page that does not fit or that a reader needs.
func (s *sqliteDB) checkpoint(ctx context.Context) {
	_, _ = s.db.ExecContext(ctx, `PRAGMA wal_checkpoint(TRUNCATE)`)
}

// lockReserve waits for the calls that use the reserve, but not longer than its caller.
func (s *sqliteDB) lockReserve(ctx context.Context) error {
	select {
	case s.reserve <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (s *sqliteDB) unlockReserve() { <-s.reserve }

// refill makes the reserve if it is absent.
func (s *sqliteDB) refill(ctx context.Context) error {
	if err := s.lockReserve(ctx); err != nil {
		return err
	}
	defer s.unlockReserve()
	return s.refillLocked(ctx)
}

// refillLocked is refill for a caller that has locked the reserve.
func (s *sqliteDB) refillLocked(ctx context.Context) error {
	path := s.path + reserveSuffix
	if info, err := os.Stat(path); err == nil && info.Size() == reserveSize {
		s.isSpent.Store(false)
		return nil
	}
	s.checkpoint(ctx)
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(make([]byte, reserveSize))
	if err = errors.Join(err, f.Close()); err != nil {
		_ = os.Remove(path)
		return err
	}
	s.isSpent.Store(false)
	return nil
}
