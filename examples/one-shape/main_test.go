// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"io"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestTry(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	var out strings.Builder
	require.NoError(t, run(t.Context(), []string{"-try"}, &out, io.Discard))
	require.Equal(t, "arc   3 words\na2e   3 words\naltar 3 words\naccp  3 words\nair   3 words\n", out.String())
}
