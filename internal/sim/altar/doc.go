// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

// Package altar has the simulation profile of package altar, in its tests.
package altar
