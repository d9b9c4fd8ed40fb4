// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

// Package floor holds the simplest code that still does a whole job correctly.
//
// Its cost is the base that benchmarks measure real packages against, with package pair: a single
// strict pass, no allocation where buffers can be reused. It is not a library. Its errors carry no
// detail, nothing is configurable, and its limits suit the input of benchmarks only.
package floor
