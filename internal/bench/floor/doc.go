// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

// Package floor holds the simplest code that still does a whole job correctly.
//
// What it costs is the base that benchmarks measure real packages against, with
// package pair: a single strict pass, no allocation where buffers can be used
// again. It is no library. Its errors say nothing, nothing is configurable, and
// its limits are good enough for the input of benchmarks only.
package floor
