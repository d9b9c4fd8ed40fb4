// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

// Package engines proves that the five packages keep their promises on every
// engine of package store: its tests run each behaviour that rests on state on
// memory, SQLite, PostgreSQL and NATS, with several instances of a service on
// one store, and with real processes that are killed. It holds no code, and is
// a module of its own for the sake of what it depends on.
package engines
