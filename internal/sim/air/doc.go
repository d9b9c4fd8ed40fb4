// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

// Package air has the simulation profile of package air, in its tests.
package air
