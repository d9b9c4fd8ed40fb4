// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

// Package sqlstore keeps the state of package store in SQLite or PostgreSQL.
package sqlstore
