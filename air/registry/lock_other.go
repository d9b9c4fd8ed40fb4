// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

//go:build !unix || aix || solaris

package registry

import (
	"context"
)

// lockFolder does nothing on systems without advisory locks.
func lockFolder(context.Context, string) (unlock func(), err error) { return func() {}, nil }
