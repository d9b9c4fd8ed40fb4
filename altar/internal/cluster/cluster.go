// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

// Package cluster describes how Hosts reach each other.
package cluster

import (
	"context"
	"io"
)

// A Network connects the Hosts of a cluster by byte streams, in which nothing is lost or doubled while they last. Hosts
// trust each other, and each has a unique id.
type Network interface {
	// Join makes a Host known to the others under its id, until ctx ends. It calls peers with the ids of all other
	// Hosts whenever they have changed, and accept with each stream that another Host has opened. Both return at once.
	// Join itself returns when ctx has ended and the Host has left, or with an error.
	Join(ctx context.Context, id string, peers func(ids []string), accept func(from string, s io.ReadWriteCloser)) error

	// Open opens a stream to another Host, as the Host with the id from. A stream ends if the other Host has failed.
	Open(ctx context.Context, from, to string) (io.ReadWriteCloser, error)
}
