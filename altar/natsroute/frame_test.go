// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package natsroute

import (
	"reflect"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/altar/internal/cluster"
)

// TestCallOnTheWire checks that every field of a forwarded call is transmitted, including future
// fields.
func TestCallOnTheWire(t *testing.T) {
	call := &cluster.Call{
		HostID: "a", RuntimeID: "r", Contract: "math/add", ToolName: "r:math/add", InvocationID: "i-1", SessionID: "s-1",
		SessionTTL: time.Minute, Principal: "user", Tenant: "acme", Parameters: []byte(`{"n":1}`), Metadata: map[string]string{"k": "v"},
		CorrelationID: "c-1", Timeout: time.Second, Attempt: 1, Join: true, ResumeFrom: 7,
	}
	for _, f := range reflect.VisibleFields(reflect.TypeFor[cluster.Call]()) {
		require.False(t, reflect.ValueOf(call).Elem().FieldByIndex(f.Index).IsZero(), "the test has to set %s", f.Name)
	}
	b, err := encodeCall(call, 8, 1<<20)
	require.NoError(t, err)
	var q request
	require.NoError(t, decode(b, &q))
	require.Equal(t, call, q.call())
	require.Equal(t, 8, q.MaxUnacked)
	require.EqualValues(t, 1<<20, q.MaxPayload)
}
