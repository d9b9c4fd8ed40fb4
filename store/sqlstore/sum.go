// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package sqlstore

import (
	"database/sql"
	"encoding/binary"
	"hash/crc32"
)

// A checksum of a row has two halves. The upper half is the CRC32C of the columns that never
// change while the row exists. The lower half is that of the name and the expiry, so that Expire
// changes all rows of a stream without reading their values, and a sweep checks what it removes.
const lowerHalf = 1<<32 - 1

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// A summer is a CRC32C of fields. Each text is preceded by its length, so that no two lists of
// fields have the same bytes.
type summer uint32

func (s summer) number(n int64) summer {
	var b [8]byte
	binary.LittleEndian.PutUint64(b[:], uint64(n))
	return summer(crc32.Update(uint32(s), castagnoli, b[:]))
}

func (s summer) bytes(b []byte) summer {
	return summer(crc32.Update(uint32(s.number(int64(len(b)))), castagnoli, b))
}

func (s summer) text(t string) summer { return s.bytes([]byte(t)) }

// The kinds of rows, as the first field of each checksum.
const (
	sumEntry = iota + 1
	sumRecord
	sumID
	sumLife
	sumState
)

func sumOf(kind int64) summer { return summer(0).number(kind) }

// lifeSum is the lower half of a checksum.
func lifeSum(name string, expires sql.NullInt64) int64 {
	s := sumOf(sumLife).text(name)
	if expires.Valid {
		s = s.number(expires.Int64)
	}
	return int64(s)
}

func joined(upper summer, name string, expires sql.NullInt64) int64 {
	return int64(uint64(upper)<<32) | lifeSum(name, expires)
}

// livesUntil reports whether the lower half of sum matches.
func livesUntil(sum int64, name string, expires sql.NullInt64) bool {
	return sum&lowerHalf == lifeSum(name, expires)
}

func entrySum(key string, rev int64, expires sql.NullInt64, value []byte) int64 {
	return joined(sumOf(sumEntry).text(key).number(rev).bytes(value), key, expires)
}

func recordSum(stream string, seq int64, id string, at int64, expires sql.NullInt64, value []byte) int64 {
	return joined(sumOf(sumRecord).text(stream).number(seq).text(id).number(at).bytes(value), stream, expires)
}

func idSum(stream, id string, seq int64, expires sql.NullInt64) int64 {
	return joined(sumOf(sumID).text(stream).text(id).number(seq), stream, expires)
}
