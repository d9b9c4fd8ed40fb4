// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

// Package interop runs the packages of this module against the public implementations of their protocols.
package interop
