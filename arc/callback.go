// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package arc

// A CallbackPolicy selects the URLs that webhooks may be sent to (ARC-D45). The
// zero value permits HTTPS to public addresses, so that a subscriber cannot make
// a server connect to its own network.
type CallbackPolicy struct {
	AllowInsecure bool // plain http too
	AllowPrivate  bool // local names, and addresses that are not public
}
