// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package webhook

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/arc"
)

func TestTaskWatcherSeveral(t *testing.T) {
	w := NewTaskWatcher("u", nil)
	_, a, stopA := w.Watch("t")
	_, b, stopB := w.Watch("t")
	require.NoError(t, w.ServeNotification(t.Context(), &arc.Notification{TaskID: "t"}))
	require.Len(t, a, 1)
	require.Len(t, b, 1)
	stopA()
	stopA()
	<-b
	require.NoError(t, w.ServeNotification(t.Context(), &arc.Notification{TaskID: "t"}))
	require.Len(t, b, 1)
	stopB()
	require.Empty(t, w.watches)
}
