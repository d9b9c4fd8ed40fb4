// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

//go:build !unix

package main

// isRunning is false: without process groups nothing is promised.
func isRunning(int) bool { return false }
