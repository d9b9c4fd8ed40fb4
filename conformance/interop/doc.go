// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

// Package interop runs the packages of Fivewire against the public
// implementations of their protocols, and against independent ones where there
// are none. It holds tests only; README.md tells what they found.
package interop
