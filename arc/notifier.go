// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package arc

import "context"

// A delivery is one notification to one webhook. The body is the complete ARC
// request of ARC-D42, with the same id on every attempt.
type delivery struct {
	ID             string // X-ARC-Delivery
	SubscriptionID string // X-ARC-Subscription
	URL            string
	Event          Event
	Agent          string // the processor, whose token may go with it
	Target         string // the subscriber's requestAgent
	TraceID        string
	Body           []byte
}

// An outcome is how a delivery ended.
type outcome uint8

const (
	outcomeDelivered outcome = iota // a 2xx answer
	outcomeDropped                  // refused, or every attempt failed
	outcomeGone                     // 410: the subscription has ended
	outcomeStopped                  // the context ended; the delivery stays in the outbox
)

// A webhookDeliverer sends notifications. The outbox calls deliver for one
// notification of a subscription at a time, in order, and removes it from the
// outbox when deliver has returned anything but outcomeStopped.
type webhookDeliverer interface {
	// check refuses a callback URL that must not be called (ARC-D45), with an
	// [*Error] that names the field.
	check(ctx context.Context, callbackURL string) error

	// deliver makes all attempts of ARC-D44 and returns after the last one or when
	// ctx ends.
	deliver(ctx context.Context, d *delivery) outcome

	// close gives idle connections back.
	close()
}
