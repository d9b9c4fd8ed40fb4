// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package accp_test

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/accp"
)

func TestClientRefusesTooManySessions(t *testing.T) {
	_, err := accp.NewClient("http://127.0.0.1/accp/v1/frames", "tester", &accp.ClientOptions{MaxConcurrent: math.MaxInt})
	require.ErrorContains(t, err, "MaxConcurrent")
}
