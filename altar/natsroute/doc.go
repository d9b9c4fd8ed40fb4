// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

// Package natsroute connects ALTAR Hosts over NATS: a client of one Host calls the tools of
// Runtimes that are connected to another Host.
//
// # Usage
//
//	nc, err := nats.Connect("nats://a:4222,nats://b:4222,nats://c:4222")
//	...
//	cluster, err := natsroute.NewCluster(nc, nil)
//	...
//	host, err := altar.NewHost(manifest, &altar.HostOptions{ID: "host-1", Auth: auth, Cluster: cluster})
//
// A call runs on a Runtime of the client's Host if possible, and otherwise on a Runtime of
// another Host. Each Host has a stream of bytes to each other Host and treats the Runtimes
// there like its own. Hosts publish a heartbeat; after four missed heartbeats a
// Host is treated as failed, and its calls end like those of a disconnected Runtime.
//
// # Security
//
// Hosts trust each other about the identity of the caller. The permissions of NATS must
// restrict the subjects that begin with Options.SubjectPrefix, and inboxes, to Hosts, and
// the connection should use TLS.
//
// # State
//
// NATS may lose messages, a stream does not: its frames are numbered, and those that are
// not acknowledged are sent again, also after a lost connection to NATS. So a call is sent
// once and runs at most once, and the chunks of a stream arrive once, in order. The bytes
// in flight are bounded, and a client that does not read holds the tool, as with a local
// Runtime (ALT-D37). A call that the other Host refused, because it shuts down for
// example, may be sent to another Runtime. A call whose Host has failed ends with
// RUNTIME_UNAVAILABLE, unless its contract is idempotent: then the Host may run it again
// (ALT-D24). Host.Shutdown finishes forwarded calls first.
//
// # Conformance
//
// The specification does not define routing between Hosts.
//
// # Deviations
//
// None.
package natsroute
