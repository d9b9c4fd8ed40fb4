// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

//go:build !race

package arc

// raceEnabled tells tests that count allocations.
const raceEnabled = false
