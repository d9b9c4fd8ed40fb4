// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

// Package a2abinding carries ACCP frames over the Agent2Agent protocol.
package a2abinding
