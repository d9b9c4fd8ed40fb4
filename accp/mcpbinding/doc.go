// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

// Package mcpbinding carries ACCP frames over the Model Context Protocol.
package mcpbinding
