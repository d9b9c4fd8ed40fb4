// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package air_test

// childMain runs the part of a test that is a process of its own.
func childMain() bool { return false }
