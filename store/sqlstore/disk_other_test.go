// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package sqlstore_test

import "testing"

func smallDisk(t *testing.T, _ int) (folder string, readOnly func()) {
	t.Helper()
	t.Skip("mounts a small disk, on Linux only")
	return "", nil
}
