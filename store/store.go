// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

// Package store is where servers keep state: tasks, chats, sessions, replay
// windows, relay inboxes. All of it goes through two small interfaces, so a
// service moves from memory to a database or a cluster by changing the one
// line that opens the store.
package store

import (
	"context"
	"errors"
	"iter"
	"time"
)

// Errors of every engine, to be tested with [errors.Is]. Any other error means
// that the engine itself failed and nothing is known about the operation.
var (
	// ErrNotFound reports a key that is absent or expired.
	ErrNotFound = errors.New("store: not found")

	// ErrExists reports a Create of a key that is there already.
	ErrExists = errors.New("store: exists already")

	// ErrConflict reports that a value changed since the revision named.
	ErrConflict = errors.New("store: changed meanwhile")

	// ErrDuplicate reports an Append whose id the stream knows already.
	ErrDuplicate = errors.New("store: duplicate")

	// ErrInvalid reports a key, stream name, id or value outside the limits.
	ErrInvalid = errors.New("store: invalid argument")

	// ErrClosed reports use after the engine was closed.
	ErrClosed = errors.New("store: closed")
)

// Limits that every engine accepts. Keys, stream names and ids are UTF-8 text
// without NUL, compared byte by byte: case, accents and spaces count. Keys and
// stream names are not empty. A value may be empty, and nil is an empty value.
// What breaks these rules is refused with [ErrInvalid].
const (
	MaxKey   = 1024     // bytes of a key, a stream name or an id
	MaxValue = 64 << 20 // bytes of one value; an engine may document less
)

// A Revision identifies one state of one key. It is never zero, and it differs
// from every other revision that the key ever had, deletion in between included.
type Revision uint64

// An Entry is a key with its value. The value is shared: whoever reads it must
// not change it.
type Entry struct {
	Key      string
	Value    []byte
	Revision Revision
	Expires  time.Time // zero: never
}

// KV keeps values under keys. Every method is atomic and may be called from any
// number of goroutines and, where the engine spans them, processes. A change is
// visible to every later call as soon as the method returned, and an engine
// that is durable has then made it so.
//
// A ttl says how long the entry lives from now on; zero means for ever, and a
// negative one is refused with [ErrInvalid]. A key that expired is absent in
// every respect. That is judged when a call begins or later: a change that began
// before the expiry of what it changes may come to be seen after it.
//
// A context that ended before the call makes every method return its error and
// do nothing. If it ends during a call that returns its error, the change may
// have been made or not, or may be made yet: what is on its way to a database
// cannot be called back. The same is true of a call that fails for want of an
// answer. Who has to know tries the change again, with the revision or the id
// that makes it happen once; to look is not enough.
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
	// [ErrConflict]. A rev of zero removes whatever is there. Removing an
	// absent key succeeds.
	Delete(ctx context.Context, key string, rev Revision) error

	// List yields the entries whose key begins with prefix, in ascending
	// byte order of the keys. A key that is there from before the call until
	// after the last entry is yielded exactly once, with a value it had
	// meanwhile; one that comes or goes while List runs may be missing. The
	// loop may call the store, also to change what is listed. The prefix is
	// text as a key is, but may be empty: that lists everything. An error is
	// yielded once and last, beside the zero Entry.
	List(ctx context.Context, prefix string) iter.Seq2[Entry, error]
}

// A Record is one element of a stream. The value is shared: whoever reads it
// must not change it.
type Record struct {
	Seq     uint64 // position in its stream; 1 or more, rising, not always by one
	ID      string // the deduplication id given to Append; may be empty
	Value   []byte
	Time    time.Time // when it was appended, by the clock of the engine
	Expires time.Time // zero: never
}

// Log keeps named streams of records, each in the order of appending. A stream
// needs no creation: it exists while it holds something. Streams and keys are
// apart: a stream may be named like a key. What is said at [KV] of concurrency,
// durability, times to live, contexts and copies holds here too.
type Log interface {
	// Append adds value to the end of stream and returns its position. A
	// record lives for ttl, or for ever if that is zero, unless it is
	// acknowledged before. If id is not empty and the stream knows it
	// already, nothing is added: the answer is the position of the first
	// record with that id and [ErrDuplicate]. An id is known until its record
	// expires, acknowledged or not; that of a record without ttl, until
	// it is acknowledged. Each stream knows its own ids.
	//
	// Positions become visible in order: once a reader has seen one, no
	// record with a lower position appears later.
	Append(ctx context.Context, stream, id string, value []byte, ttl time.Duration) (uint64, error)

	// Read returns up to limit records after the position after, in order,
	// without those that are acknowledged or expired. It does not wait: no
	// records and no error means there are none now. A limit below 1
	// means 100. What is acknowledged while Read runs may be among the records
	// or not, each one for itself.
	Read(ctx context.Context, stream string, after uint64, limit int) ([]Record, error)

	// Ack removes records from the stream for good, several in any order. A
	// position that is unknown or acknowledged already is no error. Of an Expire
	// at the same time it may know or not when it decides whether an id stays
	// known.
	Ack(ctx context.Context, stream string, seqs ...uint64) error

	// Wait returns nil as soon as Read with the same arguments would return
	// a record, and the error of ctx if that ends first. The stream may be one
	// that holds nothing yet. Who shares a stream with other readers may still
	// find it empty after Wait, and waits again.
	Wait(ctx context.Context, stream string, after uint64) error

	// Expire makes everything that is now in stream expire after ttl, whatever
	// was said before, known ids included; zero removes it at once. What is
	// appended later keeps its own ttl. Positions are not used again.
	Expire(ctx context.Context, stream string, ttl time.Duration) error
}

// A Store keeps both kinds of state. [NewMemory] is the default everywhere.
type Store interface {
	KV
	Log
}
