// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

// Package natsstore keeps the state of package store in NATS JetStream, on a
// cluster that many processes share:
//
//	s, err := natsstore.Open(ctx, "nats://a:4222,nats://b:4222,nats://c:4222", nil)
//	...
//	defer s.Close()
//	srv := arc.NewServer(&arc.ServerOptions{Store: s})
//
// Package natsstore/embedded runs the server inside the process, for development
// and for services on one machine. Only who imports that links the server.
// Servers need version 2.12 or later with JetStream.
//
// # What survives what
//
// The end of any process: everything that was acknowledged. The loss of one
// server of three: everything, and calls wait for a new leader, mostly a few
// seconds. Power loss: everything with the embedded server and on others that
// are configured with "sync_interval: always"; without that the default of NATS
// is to tell the disk every two minutes, and a power loss that meets two of
// three servers, or the only one, may take what was acknowledged since.
//
// A new store in a cluster has three replicas unless Options.Replicas says
// otherwise.
//
// # What a call may rely on
//
// Every write is conditional where the contract of store says so, and the
// condition is checked by the leader in the order of its log. Every read asks the
// leader too, never a replica that may lag behind. One thing it cannot know: a
// leader that a network split has cut off goes on answering for up to ten
// seconds, to those who are on its side of the split, with what was there before
// it. It cannot store anything then, so what is decided by Create, Update, Delete
// with a revision, or Append with an id is right in any case.
//
// A call that gets no answer is repeated until Options.CallTimeout has passed. The
// servers recognise what they have stored before, so that nothing is done twice.
// In the rare case that an answer was lost and another caller changed the same
// key since, the call fails and says that it may have taken effect.
//
// Time is that of the servers: each process compares its clock with theirs, once
// a minute, so that what expires does so for all at once, within the time that
// one answer takes. The clocks of the servers themselves have to agree.
//
// # Limits
//
// A value may be as long as one message less 4 KiB: with the default of NATS
// (max_payload) 1 MiB less 4 KiB, with the embedded server 8 MiB less 4 KiB. See
// [Store.MaxValue]. Keys, stream names and ids may be anything that package store
// allows.
//
// List holds all the names it is about to yield, and costs what lies in the
// folder of its prefix: a folder is what ends with a slash. Values are fetched
// while the loop runs.
//
// A key that was created with a ttl and expires without having been changed is
// removed by the servers some seconds later. Other expired keys, and expired
// records, are removed by one of the processes every ten minutes
// (Options.SweepInterval); if none runs, they stay. A sweep reads the headers of all that
// is there, and takes at most a fiftieth of the time.
//
// # Measured
//
// With "go test -bench . -benchtime 500x" on two cores shared with other work,
// values of 1 KB, best of seven; calls in a second, and the time in which half of
// them and 99 of a hundred were answered, in milliseconds. "cluster" is three
// servers on that one machine and its one disk, which always syncs.
//
//	             embedded, 1 caller     embedded, 16          cluster, 1           cluster, 16
//	create        1771  0.22 / 6.8      1313  8.2 / 42        872  0.91 / 6.4      4576  3.1 / 11
//	get          37868  0.02 / 0.14    55752  0.02 / 4.3     9887  0.08 / 0.51    16049  0.85 / 3.6
//	update        2715  0.35 / 0.59     3065  5.2 / 10       1431  0.64 / 1.0     10923  1.4 / 2.2
//	append        3127  0.25 / 3.0      3492  3.6 / 21        767  0.90 / 8.8      5093  3.1 / 4.7
//	  one log     1914  0.27 / 3.5      2128  5.4 / 39        701  0.92 / 11       5528  2.4 / 8.3
//	read 10       2948  0.24 / 3.2      3352  3.4 / 20       1115  0.72 / 3.3       890   13 / 55
//
// The embedded server syncs the disk once for each write, so that more callers do
// not write faster; the log of a cluster is synced once for many. Reads from a
// cluster all go to one leader.
//
// # How it is kept
//
// Two JetStream streams, named after Options.StreamPrefix: one with a subject for each
// key, of which the last message counts, and one for all logs. Nothing else may
// write to them. Both refuse new messages when they are full, and forget
// nothing. An administrator may change the number of their replicas, their
// placement and their size. Who makes one replica three gives processes that are
// running two minutes to notice: until then they may read from one of the new
// replicas, which may lag behind.
package natsstore
