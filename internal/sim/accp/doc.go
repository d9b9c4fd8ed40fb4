// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

// Package accp has the simulation profile of package accp, in its tests.
package accp
