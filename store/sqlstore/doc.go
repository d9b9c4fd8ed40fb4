// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

// Package sqlstore implements [store.Store] on SQLite, which runs in the process and needs only a
// file, or on PostgreSQL, which many processes on many machines share:
//
//	s, err := sqlstore.Open(ctx, "state.db", nil)
//	s, err := sqlstore.Open(ctx, "postgres://user:password@db.example/agents", nil)
//	...
//	defer s.Close()
//	srv, err := arc.NewServer(&arc.ServerOptions{Persistence: arc.Persistence{Store: s}})
//
// # Durability
//
// With SQLite, acknowledged data survives the end of the process at any moment, and a power loss if
// the disk keeps the writes that it has confirmed; it does not survive the loss of the disk. With
// PostgreSQL, acknowledged data survives the end of every client and of the server, and a power
// loss. It survives the loss of a node if the server waits for its replicas
// (synchronous_standby_names). Options.AsyncCommit trades durability on power loss, and nothing
// else, for speed.
//
// These are the defaults whatever else is configured: SQLite runs with synchronous=FULL, and for a
// PostgreSQL with synchronous_commit off, the sessions of this package set it to on. The setting
// fsync=off of a server cannot be overridden.
//
// # SQLite
//
// Several stores and several processes on one machine may use one file at once, on a local disk:
// network file systems do not provide the locks that SQLite needs. The file is readable only for
// its owner if Open creates it. The database is in WAL mode, so that readers and the writer do not
// wait for each other. There is one writer at a time; concurrent writing calls of one process share
// a transaction, and so one write to the disk. Processes take turns, and a call that gets no turn
// within Options.BusyTimeout fails.
//
// Wait detects records of the same process at once, and records of other processes by polling every
// few milliseconds while a call waits. Expiry follows the clock of the machine; if it is set back,
// entries live longer.
//
// # Damage and loss
//
// Every row of both databases has a checksum (CRC32C), which is compared at every read. A damaged row is a
// [store.CorruptError]; the others are served. With SQLite, Open compares all indexes and rows if the file is
// smaller than 4 MiB, was not closed in order, or was written by something else since. [Store.Verify]
// and the command storecheck compare them at any time. Damage in an index of a larger file, which the
// file system did not notice, may hide a row until then.
//
// Next to an SQLite file, the file with the suffix -mark contains the highest position and revision that was given. Open
// returns a [store.LossError] if the database ends before it: if it was truncated, removed, replaced
// by an older copy, or copied without its log. Options.AcceptLoss accepts the loss. The mark is at
// most 100 ms and 1,000 positions behind, with AsyncCommit one second: a smaller loss is not noticed. While the
// store is open, a write, and a read that finds fewer rows than it may return, compare the database with the highest
// position that the process was given.
//
// With PostgreSQL, Options.MarkFile is such a file, on the machine of the process. Without it, too, each new
// connection is compared with the positions that the process was given, and a call that gets one of them again returns
// a [store.LossError].
//
// A copy of the file without its -wal lacks everything since the last checkpoint, which may be
// all of it. Use [Store.Backup], which writes a complete copy while the store is in use, or copy the
// file after all processes have closed it.
//
// # Full and read-only disks
//
// Next to an SQLite file, 1 MiB is in reserve in the file with the suffix -reserve. On a full disk, Ack,
// Delete and Expire use it, so that a full queue can be emptied; other writes fail until the reserve is
// whole again. A file on a read-only disk, or without the permission to write it, serves reads; Open logs it.
//
// # PostgreSQL
//
// The package is tested with version 15, with a database encoded in UTF-8, and a user that may
// create a schema or finds it created. All tables are in the schema of Options.Schema, so several
// stores fit in one database. Another server of the same protocol is suitable if it has working
// advisory locks, READ COMMITTED that shows each statement everything committed before it, and
// sequences. The server should have checksums of its pages (initdb --data-checksums): without them, a bit that changes in the
// header of a row hides the row. Open tests the advisory locks when it creates the tables, and rejects a database
// without them. The connection must go to a server that accepts writes, and must keep its session:
// a pooler in between must not assign it per transaction.
//
// All times are those of the server, so the clocks of its clients may differ. Wait listens for
// notifications on one more connection; after that connection broke, all waiters read again. Calls
// that only read are repeated after a broken connection, for at most Options.OutageTimeout. A call
// without a deadline ends then, also if the server hangs. A call
// that writes is repeated only if it certainly changed nothing. Otherwise it returns the error, and
// its outcome is unknown, as with any engine: an Append with an id can safely be repeated.
//
// Appends to one stream run in one transaction after another, which makes positions visible in
// order. Concurrent appends of one process to the same stream share a transaction.
//
// # Both
//
// Positions and revisions come from one counter per store: they rise, but not by one. Expired
// entries are absent at once, and a sweep in the background removes them from the tables; the
// processes share its work. Values may have the full length of store.MaxValue. Times are exact to a
// microsecond.
//
// # Limitations
//
// The package is tested on Linux only: SQLite runs elsewhere too, but kills and full disks are not
// tested there. PostgreSQL is tested in version 15 only, without a failover to a replica. The
// tables do not shrink on the disk. VACUUM shrinks them, which PostgreSQL runs by itself in part,
// and SQLite only on request.
package sqlstore
