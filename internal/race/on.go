// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

//go:build race

package race

// Enabled reports whether the race detector is on.
const Enabled = true
