// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

// Package netguard keeps outgoing connections away from addresses that are not
// public: a callback URL or a service endpoint that a stranger chose must not
// lead to the host itself, its network or the metadata service of a cloud. It is
// also the one rule for the URL of a peer ([Guard.URL]).
//
// A check of a name proves nothing, because the next lookup may return another
// address. The decisive check is [Guard.Control], which sees the dialed address;
// [Guard.URL], [Guard.Host] and [Guard.Resolve] only refuse early.
package netguard
