// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

// Package jwtauth verifies JSON Web Tokens of ALTAR runtimes and clients.
package jwtauth
