// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

// Package natsroute routes ALTAR calls between hosts over NATS subjects.
package natsroute
