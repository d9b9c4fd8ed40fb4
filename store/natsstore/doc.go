// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

// Package natsstore keeps the state of package store in NATS JetStream.
package natsstore
