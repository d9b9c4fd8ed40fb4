// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package a2e

import (
	"fmt"
	"os"
	"sync"
)

// A RotatingFile is a file for an [AuditLog] that begins anew when it is full and
// keeps the ones before as name.1, name.2 and so on, name.1 being the latest
// (A2E-146). It may be used by several goroutines.
type RotatingFile struct {
	path    string
	max     int64
	backups int

	mu   sync.Mutex
	file *os.File
	size int64
}

// OpenRotatingFile opens or makes the file. Zero maxBytes and backups mean 10 MiB
// and 5. Only the owner may read it.
func OpenRotatingFile(path string, maxBytes int64, backups int) (*RotatingFile, error) {
	r := &RotatingFile{path: path, max: maxBytes, backups: backups}
	if r.max <= 0 {
		r.max = 10 << 20
	}
	if r.backups <= 0 {
		r.backups = 5
	}
	if err := r.open(); err != nil {
		return nil, err
	}
	return r, nil
}

func (r *RotatingFile) open() error {
	f, err := os.OpenFile(r.path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("a2e: audit file: %w", err)
	}
	info, err := f.Stat()
	if err != nil {
		_ = f.Close()
		return fmt.Errorf("a2e: audit file: %w", err)
	}
	r.file, r.size = f, info.Size()
	return nil
}

// Write appends b, which is never split over two files.
func (r *RotatingFile) Write(b []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.file == nil {
		return 0, os.ErrClosed
	}
	if r.size > 0 && r.size+int64(len(b)) > r.max {
		if err := r.rotate(); err != nil {
			return 0, err
		}
	}
	n, err := r.file.Write(b)
	r.size += int64(n)
	return n, err
}

func (r *RotatingFile) rotate() error {
	if err := r.file.Close(); err != nil {
		return err
	}
	r.file = nil
	name := func(i int) string { return fmt.Sprintf("%s.%d", r.path, i) }
	_ = os.Remove(name(r.backups)) // it may not be there
	for i := r.backups - 1; i >= 1; i-- {
		_ = os.Rename(name(i), name(i+1)) // nor that
	}
	if err := os.Rename(r.path, name(1)); err != nil {
		_ = r.open() // better a file that is too long than none
		return err
	}
	return r.open()
}

// Close closes the file.
func (r *RotatingFile) Close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.file == nil {
		return nil
	}
	err := r.file.Close()
	r.file = nil
	return err
}
