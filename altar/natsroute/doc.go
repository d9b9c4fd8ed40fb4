// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

// Package natsroute routes ALTAR calls between Hosts over NATS: a client of one
// Host calls the tools of Runtimes that are connected to another.
//
//	nc, err := nats.Connect("nats://a:4222,nats://b:4222,nats://c:4222")
//	...
//	router, err := natsroute.NewCluster(nc, nil)
//	...
//	host, err := altar.NewHost(manifest, authorizer, &altar.HostOptions{ID: "host-1", Remote: router})
//	...
//	go router.Serve(ctx, host, "host-1")
//
// A call goes to a Runtime of the client's own Host where there is one, else to
// one that another Host offers. Hosts tell each other what they offer, and show
// every heartbeat that they are alive; one that is silent for four of them is
// given up, its offers are gone, and calls that run there end as those of a
// Runtime that is gone.
//
// # What is promised
//
// A call is sent once, and so runs at most once: what gets lost afterwards, in
// either direction, is asked for again by joining the call where it runs, never
// by starting it anew. A call that could not be sent, or that the other Host
// refused, may go to another Runtime; one whose Host is gone ends with
// RUNTIME_UNAVAILABLE, unless its contract is idempotent: then the Host may run
// it elsewhere, as altar says (ALT-D24).
//
// Streams keep their order, and miss nothing: frames are counted, and a gap is
// filled by joining again. A window bounds what is under way; a client that does
// not read ends its stream with slow_consumer, as it does with a Runtime of its
// own Host. To cancel a call cancels it there. If that gets lost too, the call
// ends there like one whose client is gone.
//
// A call that a Host was running when it was shut down with Host.Shutdown is
// answered first.
//
// # Trust
//
// Hosts believe each other who the caller is: only Hosts may publish and
// subscribe to the subjects that begin with Options.SubjectPrefix, which the permissions
// of NATS ensure, and the connection should be TLS.
//
// # Limits
//
// The parameters of a forwarded call have to fit into one message of NATS (1 MiB
// unless the servers are configured otherwise); longer ones are refused as
// INVALID_PARAMETERS. Results and chunks may be as long as Options.MaxMessage.
package natsroute
