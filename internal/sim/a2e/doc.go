// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

// Package a2e has the simulation profile of package a2e, in its tests.
package a2e
