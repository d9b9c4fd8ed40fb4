// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package proc

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/a2e"
)

// The events that precede the answers to their starts are kept also while one start follows the other without a pause.
func TestEarlyEventsOfManyStartsAreKept(t *testing.T) {
	c := &Client{processes: map[string]*Process{}, early: map[string][]*ReadEvent{}}
	c.begin()
	text := strings.Repeat("x", maxUnread/2)
	for i := range 2 * maxUnreadAll / len(text) {
		id := fmt.Sprint(i)
		c.begin()
		for _, data := range []string{`{"text":"` + text + `"}`, `{"code":0}`} {
			c.take(a2e.NewMessage("proc/read/event", &ReadEvent{ProcID: id, Data: json.RawMessage(data)}))
		}
		p := &Process{ID: id, window: clientWindow, change: make(chan struct{})}
		c.started(id, p)
		require.Equal(t, len(text), p.size(), i)
		require.NotNil(t, p.exit, i)
	}
}
