// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

// Package kernels has the profiles of the kernels of state: lease, once, outbox, streamlog and journal.
package kernels
