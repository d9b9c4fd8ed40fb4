// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

// Package mcpbridge connects A2E hosts to real MCP servers through the official SDK.
package mcpbridge
