// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

// Package store defines the two interfaces through which servers keep state:
// tasks, chats, sessions, replay windows, relay inboxes. A service moves from
// memory to a database or a cluster by changing the line that opens the store.
package store

import (
	"context"
	"errors"
	"iter"
	"time"
)

// Errors of every engine, to be tested with [errors.Is]. Any other error means
// that the engine failed and the outcome of the operation is unknown.
var (
	// ErrNotFound reports a key that is absent or expired.
	ErrNotFound = errors.New("store: not found")

	// ErrExists reports a Create of a key that already exists.
	ErrExists = errors.New("store: key exists")

	// ErrConflict reports that the revision of a value is not the given one.
	ErrConflict = errors.New("store: revision conflict")

	// ErrDuplicate reports an Append whose id is already known to the stream.
	ErrDuplicate = errors.New("store: duplicate")

	// ErrInvalid reports a key, stream name, id or value outside the limits.
	ErrInvalid = errors.New("store: invalid argument")

	// ErrClosed reports the use of a closed engine.
	ErrClosed = errors.New("store: closed")
)

// Limits that every engine accepts. Keys, stream names and ids are UTF-8 text
// without NUL, compared byte by byte: case, accents and spaces count. Keys and
// stream names are not empty. A value may be empty, and nil is an empty value.
// An argument that breaks these rules is refused with [ErrInvalid].
const (
	MaxKey   = 1024     // bytes of a key, a stream name or an id
	MaxValue = 64 << 20 // bytes of one value; an engine may document less
)

// A Revision identifies one state of one key. It is never zero, and it differs
// from every other revision that the key ever had, deletion in between included.
type Revision uint64

// An Entry is a key with its value. The value is shared: readers must not
// change it.
type Entry struct {
	Key      string
	Value    []byte
	Revision Revision
	Expires  time.Time // zero: never
}

// KV keeps values under keys. Every method is atomic and safe for concurrent
// use by goroutines and, where the engine spans them, by processes. When a
// method returns, its change is visible to every later call and, in a durable
// engine, durable.
//
// A ttl is the remaining lifetime of the entry. Zero means no expiry; a
// negative ttl is refused with [ErrInvalid]. An expired key is absent in every
// respect. Expiry is judged when a call starts or later: a change that started
// before the expiry of its entry may become visible after it.
//
// If its context has ended before the call, a method does nothing and returns
// the error of the context. If the context ends during the call, or no response
// arrives, the outcome is unknown: the change may have been made, may not have
// been made, or may still be made. To find out, repeat the operation with the
// same revision or id; reading is not enough. [Modify] and [Persist] do this.
//
// Values are copied: an engine keeps no reference to a slice it was given.
type KV interface {
	// Get returns the entry of key, or [ErrNotFound].
	Get(ctx context.Context, key string) (Entry, error)

	// Create stores value under a key that is absent. Of several callers
	// at once exactly one succeeds; the others get [ErrExists].
	Create(ctx context.Context, key string, value []byte, ttl time.Duration) (Revision, error)

	// Update replaces the value of key if its revision is still rev, else it
	// returns [ErrConflict], or [ErrNotFound] if the key is absent. The ttl
	// replaces the earlier one. No key has a revision of zero.
	Update(ctx context.Context, key string, value []byte, rev Revision, ttl time.Duration) (Revision, error)

	// Delete removes key if its revision is still rev, else it returns
	// [ErrConflict]. A rev of zero matches every revision. Removing an
	// absent key succeeds.
	Delete(ctx context.Context, key string, rev Revision) error

	// List yields the entries whose key begins with prefix, in ascending
	// byte order of the keys. A key that exists from before the call until
	// after the last entry is yielded exactly once, with a value of that time;
	// a key that is created or deleted while List runs may be missing. The loop
	// may call the store, also to change listed keys. An empty prefix lists
	// everything. An error is yielded once and last, with the zero Entry.
	List(ctx context.Context, prefix string) iter.Seq2[Entry, error]
}

// A Record is one element of a stream. The value is shared: readers must not
// change it.
type Record struct {
	Seq     uint64 // position in its stream; 1 or more, rising, not always by one
	ID      string // the deduplication id given to Append; may be empty
	Value   []byte
	Time    time.Time // when it was appended, by the clock of the engine
	Expires time.Time // zero: never
}

// Log keeps named streams of records, each in the order of appending. A stream
// needs no creation: it exists while it holds records or known ids. A stream and
// a key may have the same name. The rules of [KV] for concurrency, durability,
// lifetimes, contexts and copies apply to Log too.
type Log interface {
	// Append adds value to the end of stream and returns its position. A
	// record is kept for ttl, or without expiry if ttl is zero, unless it is
	// acknowledged earlier. If id is not empty and already known to the
	// stream, nothing is added: Append returns the position of the first
	// record with that id and [ErrDuplicate]. An id is known until its record
	// expires, acknowledged or not; the id of a record without ttl, until
	// the record is acknowledged. Ids are separate for each stream.
	//
	// Positions become visible in order: once a reader has seen one, no
	// record with a lower position appears later.
	Append(ctx context.Context, stream, id string, value []byte, ttl time.Duration) (uint64, error)

	// Read returns up to limit records after the position after, in order,
	// without acknowledged and expired ones. It does not wait: no records and
	// no error means that the stream has none. A limit below 1 means 100. A
	// record that is acknowledged while Read runs may or may not be returned.
	Read(ctx context.Context, stream string, after uint64, limit int) ([]Record, error)

	// Ack removes records from the stream permanently, several in any order.
	// An unknown or already acknowledged position is not an error. A
	// concurrent Expire may or may not affect whether an id stays known.
	Ack(ctx context.Context, stream string, seqs ...uint64) error

	// Wait returns nil as soon as Read with the same arguments would return
	// a record, and the error of ctx if that ends first. The stream may
	// be empty. A caller that shares a stream with other readers may still
	// find it empty after Wait, and calls Wait again.
	Wait(ctx context.Context, stream string, after uint64) error

	// Expire makes all current records and known ids of stream expire after
	// ttl, in place of their earlier ttl; zero removes them at once. Records
	// appended later keep their own ttl. Positions are not used again.
	Expire(ctx context.Context, stream string, ttl time.Duration) error
}

// A Store keeps both kinds of state. [NewMemory] is the default everywhere.
type Store interface {
	KV
	Log
}
