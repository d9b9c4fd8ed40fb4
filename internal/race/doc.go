// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

// Package race tells tests whether the race detector is on, which allocates
// where the program does not.
package race
