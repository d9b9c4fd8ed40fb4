// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

// Package natsstore implements [store.Store] on NATS JetStream, on a cluster that many processes
// share:
//
//	s, err := natsstore.Open(ctx, "nats://a:4222,nats://b:4222,nats://c:4222", nil)
//	...
//	defer s.Close()
//	srv, err := arc.NewServer(&arc.ServerOptions{Persistence: arc.Persistence{Store: s}})
//
// Package natsstore/embedded runs the server inside the process, for development and for services
// on one machine. Only programs that import it link the server. Servers need version 2.12 or later
// with JetStream.
//
// # Durability
//
// All acknowledged data survives the end of any process. It survives the loss of one server of
// three; calls then wait for a new leader, usually a few seconds. It survives a power loss with the
// embedded server, and with servers configured with "sync_interval: always". Without that setting
// NATS syncs the disk every two minutes, and a power loss of two of three servers, or of the only
// one, may lose the data acknowledged since.
//
// A new store in a cluster has three replicas unless Options.Replicas is set.
//
// # Consistency
//
// Every write is conditional where the contract of package store requires it, and the leader checks
// the condition in the order of its log. Every read goes to the leader too, never to a replica that
// may lag behind. One limit applies: a leader that a network split has isolated continues to answer
// for up to ten seconds, to clients on its side of the split, with its state before the split. It
// cannot store anything during that time. Therefore the results of Create, Update, Delete with a
// revision, and Append with an id are always correct.
//
// A call without a response is repeated until Options.CallTimeout has passed. The servers detect
// duplicates, so that no write is applied twice. If a response was lost and another caller changed
// the same key since, the call fails with an error that it may have taken effect. The servers know an
// attempt for a minute. One that the network delivers later stores nothing while the record of an earlier
// attempt is present or its id is known.
//
// Time is that of the servers: each process compares its clock with theirs once a minute, and before the next call
// after its clock was set or its machine was suspended. An entry thus expires for all processes at once, within the
// duration of one response. The clocks of the servers themselves must agree.
//
// # Damage and loss
//
// Every message has a checksum (CRC32C) of its subject, headers and value, which every read compares. A
// damaged one is a [store.CorruptError]; one that an earlier version stored has no checksum. A store on an
// embedded server keeps the highest position and revision in a file (Options.MarkFile), at most 100 ms
// late, and opens no data that ends before it: it returns a [store.LossError], unless Options.AcceptLoss
// is set. The running store compares the last numbers of the server with its own after each new connection, once
// a minute and at each write. If the server has a lower one, every call but Verify returns the LossError, with
// AcceptLoss too, until the store is opened again. If one of its streams was deleted, each call returns a CorruptError.
//
// A NATS server omits messages that it cannot read, and all later ones of the same block. Therefore the
// embedded server verifies all blocks before it starts, and refuses a damaged folder. The
// command storecheck does the same offline. For servers that run elsewhere, Open can only ask what
// they report: a damaged block of one replica is theirs to repair.
//
// # Limits
//
// The maximum length of a value is that of one message less 4 KiB: with the default of NATS (max_payload) 1 MiB
// less 4 KiB, with the embedded server 8 MiB less 4 KiB. See [Store.MaxValue]. Keys, stream names
// and ids may be any that package store allows. An entry or record that would expire after April 2262 expires then.
//
// List holds the names of all keys to yield. Its cost depends on the size of the folder of its
// prefix; a folder is the part up to the last slash. Values are fetched while the loop runs.
//
// The servers remove a key some seconds after its expiry if it was created with a ttl and never
// changed. One of the processes removes other expired keys and records every ten minutes
// (Options.SweepInterval); while no process runs, they stay. A sweep reads the headers of all
// messages, and takes at most a fiftieth of the time.
//
// # Layout
//
// The store uses two JetStream streams, named after Options.StreamPrefix: one with a subject for
// each key, whose last message counts, and one for all logs. No other program may write to them.
// Both reject new messages when they are full, and drop no old ones. An administrator may change
// the number of their replicas, their placement and their size. Running processes detect a change
// from one replica to three within two minutes: until then they may read from a new replica that
// lags behind.
package natsstore
