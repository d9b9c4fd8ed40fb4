// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

// Package altar implements the Altar Protocol Specification (ATAP) 1.0.0 DRAFT:
// a Host that routes validated tool calls of clients to Runtimes.
package altar
