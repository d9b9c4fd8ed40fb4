// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

//go:build !unix

package sqlstore

import "os"

// tryLock does nothing: every Open then takes itself for the only one, and
// checks a file that another process uses.
func tryLock(*os.File, bool) error { return nil }
