// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package arc

import "time"

// A RetryPolicy specifies how an operation is repeated: after random delays below a
// bound that doubles.
type RetryPolicy struct {
	MaxAttempts   int           // zero is the default of the operation; a negative value disables retries
	Base          time.Duration // first bound; zero is the default of the operation; a negative value disables delays
	Max           time.Duration // largest bound; zero is the default of the operation; a negative value removes it
	MaxRetryAfter time.Duration // longest delay that a server requests; zero is the default of the operation; a negative value means none
}
