// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

// Package engines proves that the five packages keep their guarantees on every engine of package
// store: its tests run each behavior that depends on state on memory, SQLite, PostgreSQL and NATS,
// with several instances of a service on one store, and with real processes that are killed. It
// contains tests only, and is a separate module because of its dependencies.
package engines
