// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

// Package interop runs the packages of Fivewire against the public implementations of their
// protocols, and against independent ones where no public implementation exists. It contains tests
// only; README.md lists their results.
package interop
