// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package sqlstore

import (
	"encoding/binary"
	"errors"
	"hash/crc32"
	"io"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/fivewire/fivewire/store"
)

const (
	markSuffix = "-mark"
	markLag    = 100 * time.Millisecond // at most, until a position is in the mark
	markSteps  = 1000                   // positions at most that are not in the mark
	markMagic  = "FWMARK1\n"
	markSlot   = 4096 // bytes between the two slots
	markLength = 8 + 5*8 + 4

	// lossMargin is skipped after an accepted loss, for positions that were not in the mark.
	lossMargin = 1 << 20
	// unknownMargin is skipped if the mark itself is missing.
	unknownMargin = 1 << 40
)

// A mark is the content of the file next to the database: the highest position ever given, and the
// state in which the last process left the database.
type mark struct {
	count   uint64 // of writes; the higher one of two slots counts
	last    uint64
	isClean bool
	size    int64 // of the database after a clean end
	changed int64 // its time of modification
}

// A marker writes a mark to one of two slots in turn, in place and without a sync: a power loss
// leaves one of them whole, and the mark is written after the data is on the disk.
type marker struct {
	path string
	file *os.File // its lock is that of all users of the database

	mu   sync.Mutex
	mark mark // as last written or read; guarded by mu
}

func (m mark) encode() []byte {
	b := make([]byte, 0, markLength)
	b = append(b, markMagic...)
	flags := uint64(0)
	if m.isClean {
		flags = 1
	}
	for _, n := range []uint64{m.count, m.last, flags, uint64(m.size), uint64(m.changed)} {
		b = binary.LittleEndian.AppendUint64(b, n)
	}
	return binary.LittleEndian.AppendUint32(b, crc32.Checksum(b, castagnoli))
}

func decodeMark(b []byte) (m mark, ok bool) {
	if len(b) != markLength || string(b[:8]) != markMagic ||
		binary.LittleEndian.Uint32(b[markLength-4:]) != crc32.Checksum(b[:markLength-4], castagnoli) {
		return mark{}, false
	}
	n := func(i int) uint64 { return binary.LittleEndian.Uint64(b[8+8*i:]) }
	return mark{count: n(0), last: n(1), isClean: n(2)&1 != 0, size: int64(n(3)), changed: int64(n(4))}, true
}

// readMark returns the newer of the two slots. A file without a valid one is damaged.
func readMark(f io.ReaderAt, path string) (m mark, err error) {
	found := false
	for i := range int64(2) {
		b := make([]byte, markLength)
		if _, err := f.ReadAt(b, i*markSlot); err != nil && !errors.Is(err, io.EOF) {
			return mark{}, err
		}
		if slot, ok := decodeMark(b); ok && (!found || slot.count > m.count) {
			m, found = slot, true
		}
	}
	if !found {
		return mark{}, &store.CorruptError{Path: path, Cause: errors.New("no valid mark")}
	}
	return m, nil
}

// load reads the mark. A new file has none.
func (m *marker) load() (read mark, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	info, err := m.file.Stat()
	if err != nil || info.Size() == 0 {
		return mark{}, err
	}
	read, err = readMark(m.file, m.path)
	if err == nil {
		m.mark = read
	}
	return read, err
}

// advance writes that position last was given, unless the mark is as high already.
func (m *marker) advance(last uint64) error {
	return m.write(func(at mark) mark {
		at.last = max(at.last, last)
		at.isClean = false
		return at
	})
}

// write changes the mark. Another process may write at the same time: then the higher position
// is written again.
func (m *marker) write(change func(mark) mark) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	for range 3 {
		at, err := readMark(m.file, m.path)
		if err != nil {
			at = m.mark
		}
		next := change(at)
		if err == nil && next == at {
			return nil
		}
		next.count = at.count + 1
		if err := m.put(next); err != nil {
			return err
		}
		m.mark = next
		if at, err = readMark(m.file, m.path); err == nil && at.last >= next.last {
			return nil
		}
	}
	return nil
}

// put writes a slot. The first write fills both, so that later ones need no space on the disk.
func (m *marker) put(next mark) error {
	slots := []uint64{next.count % 2}
	if next.count == 1 {
		slots = []uint64{0, 1}
	}
	for _, slot := range slots {
		if _, err := m.file.WriteAt(next.encode(), int64(slot)*markSlot); err != nil {
			return err
		}
	}
	return nil
}

// sync puts a new mark and its name on the disk.
func (m *marker) sync() error {
	if err := m.file.Sync(); err != nil {
		return err
	}
	syncFolder(m.path)
	return nil
}

// syncFolder puts the name of a new file on the disk, where the system syncs folders.
func syncFolder(path string) {
	folder, err := os.Open(filepath.Dir(path))
	if err != nil {
		return
	}
	_ = folder.Sync()
	_ = folder.Close()
}

// matches reports whether the database is as a clean end left it.
func (m mark) matches(database string) bool {
	info, err := os.Stat(database)
	return err == nil && m.isClean && info.Size() == m.size && info.ModTime().UnixNano() == m.changed
}
