// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

//go:build unix

package sqlstore

import (
	"os"
	"syscall"
)

// tryLock takes a lock of a file without waiting, an exclusive or a shared one in place of an earlier one.
// It ends with the process.
func tryLock(f *os.File, exclusive bool) error {
	how := syscall.LOCK_SH
	if exclusive {
		how = syscall.LOCK_EX
	}
	return syscall.Flock(int(f.Fd()), how|syscall.LOCK_NB)
}
