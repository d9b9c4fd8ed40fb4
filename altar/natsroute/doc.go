// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

// Package natsroute routes ALTAR calls between Hosts over NATS: a client of one Host
// calls the tools of Runtimes that are connected to another Host.
//
// # Usage
//
//	nc, err := nats.Connect("nats://a:4222,nats://b:4222,nats://c:4222")
//	...
//	cluster, err := natsroute.NewCluster(nc, nil)
//	...
//	host, err := altar.NewHost(manifest, &altar.HostOptions{ID: "host-1", Auth: auth, Cluster: cluster})
//	...
//	go cluster.Serve(ctx, host, "host-1")
//
// A call runs on a Runtime of the client's Host if possible, and otherwise on a Runtime
// that another Host offers. Hosts publish their offers and a heartbeat. After
// four missed heartbeats a Host is treated as failed: its offers are removed, and its
// calls end like those of a disconnected Runtime.
//
// # Security
//
// Hosts trust each other about the identity of the caller. The permissions of NATS must
// restrict the subjects that begin with Options.SubjectPrefix to Hosts, and the
// connection should use TLS.
//
// # State
//
// A call is sent once, so it runs at most once. After a lost frame in either direction
// the call is joined at the Host that runs it and never started again. A call that could
// not be sent, or that the other Host refused, may be sent to another Runtime. A call
// whose Host has failed ends with RUNTIME_UNAVAILABLE, unless its contract is idempotent:
// then the Host may run it again (ALT-D24).
//
// Streams are complete and in order: frames are counted, and a gap is filled by joining
// again. The frames in flight are bounded, and their bytes. A client that does not read
// holds the tool, as with a local Runtime (ALT-D37). A cancellation is forwarded; if it
// is lost, the call ends like a call of a disconnected client. Host.Shutdown finishes
// forwarded calls first.
//
// # Conformance
//
// The specification does not define routing between Hosts. The parameters of a forwarded
// call must fit into one NATS message (1 MiB by default); longer parameters are refused
// with INVALID_PARAMETERS. Results and chunks are bounded by Options.MaxMessage.
//
// # Deviations
//
// None.
package natsroute
