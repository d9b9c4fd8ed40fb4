// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

// Package sqlstore keeps the state of package store in SQLite, which runs in
// the process and needs a file and nothing else, or in PostgreSQL, which many
// processes on many machines share:
//
//	s, err := sqlstore.Open(ctx, "state.db", nil)
//	s, err := sqlstore.Open(ctx, "postgres://user:password@db.example/agents", nil)
//	...
//	defer s.Close()
//	srv := arc.NewServer(&arc.ServerOptions{Store: s})
//
// # What survives
//
// With SQLite, what was acknowledged survives the end of the process at any
// moment and a power loss, as far as the disk keeps what it has confirmed; the
// loss of the disk it does not survive. With PostgreSQL, what was acknowledged
// survives the end of every client and of the server, and a power loss; the
// loss of a node as far as the server is set up to wait for its replicas
// (synchronous_standby_names). Options.AsyncCommit gives up the power loss, and
// nothing else, for speed.
//
// That is the default whatever else is configured: SQLite runs with
// synchronous=FULL, and a PostgreSQL whose synchronous_commit is off is told
// otherwise for the sessions of this package. A server with fsync=off cannot be
// told.
//
// # SQLite
//
// Several stores and several processes on one machine may use one file at once,
// on a local disk: network file systems do not lock as SQLite needs it. The
// file is readable for its owner only if Open makes it. The database is in WAL mode, so readers and the writer do not wait for each
// other. Of writers there is one at a time; the calls of one process that write
// at the same time share a transaction, and so one write to the disk. Between
// processes they take turns, and who gets none within Options.BusyTimeout fails.
//
// Wait learns of what its own process appends at once, and of the rest by
// looking every few milliseconds while somebody waits. Times of expiry are by
// the clock of the machine; if that is set back, things live longer.
//
// # PostgreSQL
//
// Tested with version 15, with a database encoded in UTF-8, and a user that may
// create a schema or finds it created. Everything is in the schema of
// Options.Schema, so several stores fit in one database. What else speaks the
// protocol will do if it has advisory locks that lock, READ COMMITTED that shows
// each statement what was committed before it, and sequences; Open tries the
// first of these when it creates the tables, and refuses a database without. The
// connection has to go to a server that can write, and keep its session: a
// pooler between must not hand it out per transaction.
//
// All times are those of the server, so the clocks of its clients may differ.
// Wait listens on one more connection for notifications; after that one broke,
// everybody who waits looks anew. Calls that only read are repeated after a
// broken connection, for as long as Options.OutageTimeout. A call that writes is
// repeated only if it is certain that it changed nothing; else it returns the error, and nothing is known about it,
// as with any engine: an Append with an id can safely be tried again.
//
// Records of one stream are added one transaction after the other, which is
// what makes positions visible in order; the calls of one process that append
// to the same stream at the same time share one.
//
// # Both
//
// Positions and revisions come from one counter per store: they rise, but not
// by one. What expired is absent at once, and leaves the tables in a sweep in
// the background, whose work all processes share. Values may have the full
// length of store.MaxValue. Times are exact to a microsecond.
//
// # Not yet
//
// Tested on Linux only: SQLite works elsewhere too, but no kill and no full disk
// was tried there. Of PostgreSQL only version 15 was tried, and no failover to a
// replica. What is in the tables is never made smaller on the disk than what it
// once was: that is VACUUM's work, which PostgreSQL does by itself in part, and
// SQLite only when told.
package sqlstore
