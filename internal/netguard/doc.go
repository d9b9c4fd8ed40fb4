// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

// Package netguard keeps requests that strangers can cause away from addresses
// that are not public: a callback URL or a service endpoint must not reach the
// host itself, its network or a cloud's metadata service.
//
// Names prove nothing, since they may resolve to another address at the next
// look-up. What counts is therefore [Guard.Control], which sees the address that
// is really dialled; [Guard.Host] and [Guard.Resolve] only refuse early what
// would be refused anyway.
package netguard
