// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package embedded

import (
	"os"

	"golang.org/x/sys/windows"
)

// lockFile takes the exclusive lock of a file without waiting. It ends with the process.
func lockFile(f *os.File) error {
	const flags = windows.LOCKFILE_EXCLUSIVE_LOCK | windows.LOCKFILE_FAIL_IMMEDIATELY
	return windows.LockFileEx(windows.Handle(f.Fd()), flags, 0, 1, 0, new(windows.Overlapped))
}
