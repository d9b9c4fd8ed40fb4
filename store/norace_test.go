// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

//go:build !race

package store_test

// raceEnabled: the race detector allocates for itself.
const raceEnabled = false
