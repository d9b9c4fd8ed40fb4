// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

// Package arc has the simulation profile of package arc, in its tests.
package arc
