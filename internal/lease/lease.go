// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

// Package lease makes instances on one store known to each other, finds the
// unfinished work of an instance that has failed, and passes messages between
// instances.
//
// An instance holds a lease, a key with a time to live. Each acquisition of the
// lease is an epoch, and instance and epoch together are an Owner. A record of
// unfinished work names its Owner. An epoch without a lease never has one again.
//
// The lease only permits an attempt. The owner of a record is decided by a
// compare-and-set on the record, since a paused process does not know that its
// lease has expired.
package lease

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/fivewire/fivewire/store"
)

var (
	// ErrLost reports that the epoch is over: the lease was not renewed in time,
	// or another process has the same instance id. It is also the cause of the
	// end of the epoch's Context.
	ErrLost = errors.New("lease: lease lost")

	// ErrClosed reports use after Release.
	ErrClosed = errors.New("lease: released")
)

// Options configure an instance.
type Options struct {
	// Prefix precedes every key and stream name, for example "arc/". Instances
	// with different prefixes do not see each other.
	Prefix string

	// InstanceID is the name of the instance. Zero means a random one. A given
	// one belongs to one live process at a time.
	InstanceID string

	// TTL is the time to live of the lease. Zero means 15 s; a negative value
	// means Private.
	TTL time.Duration

	// Private means that no other Lease uses the store and the prefix while
	// this one does, as with a store in memory or a file with one server. The
	// epoch then lasts until Release, every other owner counts as failed, and
	// nothing waits on the store.
	Private bool

	// Logger gets the log records. Nil means slog.Default().
	Logger *slog.Logger

	// OnLost, if set, is called once, in its own goroutine, when another
	// process has acquired a lease with the same InstanceID.
	OnLost func(ctx context.Context)
}

// An Owner is one epoch of an instance, in the form "instance@epoch". A record of
// unfinished work holds it. The zero Owner is never alive.
type Owner string

// Found is the state of a record that Adopt's function met.
type Found int

// The values of Found. The zero value is none of them.
const (
	// Taken means that the record names the new owner by this call, and the
	// work runs here. Finish has to be called at its end.
	Taken Found = 1 + iota
	// Held means that the record has a live owner, or that the work already
	// runs in this process.
	Held
	// Ended means that the work has ended and everything that follows from its
	// end was repeated.
	Ended
	// Absent means that there is no record. Its Create may still land.
	Absent
)

// A Lease is the membership of one process in the instances of a store. All
// methods are safe for concurrent use. Release ends it and its goroutines.
type Lease struct {
	opts Options
}

// Acquire acquires the lease of the instance and starts to renew it. With a given
// InstanceID it replaces the lease of an earlier process. The context bounds
// Acquire only.
func Acquire(ctx context.Context, db store.Store, o Options) (*Lease, error) {
	return nil, errors.ErrUnsupported
}

// Owner returns the owner of the current epoch, or of the last one if it is over.
// A record gets the Owner that Start returned instead, since another epoch may
// begin between the two calls.
func (l *Lease) Owner() Owner { return "" }

// Context returns the context of the current epoch. It ends with the cause ErrLost
// when the epoch is over and with ErrClosed on Release. After an outage of the
// store a new epoch with another Context begins, and the work of the earlier one
// comes back through the functions of Adopt.
func (l *Lease) Context() context.Context { return nil }

// Start writes the index entry of a work item, before its record is created, and
// returns the owner that the record must name. It fails with ErrLost while no
// epoch is current; after an error the record must not be created.
//
// Starts of one item are counted: each successful Start, and each Adopt function
// that returned Taken, needs one Finish, and the last Finish deletes the entry. So
// a Start whose record exists already is undone by Finish, and a record that is
// created while another goroutine finishes the same id keeps its entry.
func (l *Lease) Start(ctx context.Context, kind, id string) (Owner, error) {
	return "", errors.ErrUnsupported
}

// Finish removes the index entry of a work item of owner, after the record ended
// and everything that follows from its end was done, or after the record was
// certainly not created. A deletion with an unknown outcome is repeated in the
// background. Finish of an epoch that is over does nothing: take-over removes its
// entries.
func (l *Lease) Finish(ctx context.Context, owner Owner, kind, id string) error {
	return errors.ErrUnsupported
}

// Alive reports whether owner holds its lease. Owner must come from a record. True
// is cached for a tenth of TTL, false permanently.
func (l *Lease) Alive(ctx context.Context, owner Owner) (bool, error) {
	return false, errors.ErrUnsupported
}

// Adopt registers the take-over of a kind and starts a round. For each index entry
// of a failed owner f is called, for one id never twice at once. It reads the
// record and, if that is unfinished and its owner is not Alive, whichever owner
// that is, replaces the owner by to with a compare-and-set; a lost one means
// reading again. A record that names to is Taken unless its work runs here: an
// earlier compare-and-set had an unknown outcome.
//
// After an error f is called again in the next round. Its context ends with the
// epoch of to. A later function for the same kind replaces the earlier one.
func (l *Lease) Adopt(kind string, f func(ctx context.Context, id string, from, to Owner) (Found, error)) {
}

// WaitRecovered waits until one round with all kinds registered so far is
// complete: every entry of an owner that had failed before was passed to the
// function of its kind.
func (l *Lease) WaitRecovered(ctx context.Context) error { return errors.ErrUnsupported }

// Tell sends at most 1 KiB of data to the function that an owner registered for
// the topic. The messages of one caller arrive in order, while the owner's epoch
// lives. An error means that the message was not accepted; after an error that is
// none of the store's answers it may still arrive.
func (l *Lease) Tell(ctx context.Context, to Owner, topic string, data []byte) error {
	return errors.ErrUnsupported
}

// Listen registers the function of a topic. All functions are called one after
// the other in one goroutine, so none of them may block. A message for a topic
// without a function is dropped.
func (l *Lease) Listen(topic string, f func(data []byte)) {}

// Release ends the epoch and hands its unfinished work to the other instances at
// once. It waits for the goroutines of the lease. If ctx ends before, the lease
// is left to expire, and Release returns the error of ctx.
func (l *Lease) Release(ctx context.Context) error { return errors.ErrUnsupported }
