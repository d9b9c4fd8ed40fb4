// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

// Package fivewire is the root of a module that speaks five agent protocols.
package fivewire
