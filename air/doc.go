// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

// Package air exchanges signed envelopes between agents of the Agent Identity
// Registry.
package air
