// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package webhook_test

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync"
	"time"

	"github.com/fivewire/fivewire/arc"
	"github.com/fivewire/fivewire/arc/webhook"
)

// A program that keeps the newest state of each task. A late notification does not replace a newer one.
func ExampleReceiver() {
	type state struct {
		at     time.Time
		status string
	}
	var mu sync.Mutex
	tasks := map[string]state{}
	handler := arc.NotificationHandlerFunc(func(_ context.Context, n *arc.Notification) error {
		at, err := n.Timestamp.Time()
		if err != nil {
			return err
		}
		mu.Lock()
		defer mu.Unlock()
		if !at.Before(tasks[n.TaskID].at) {
			tasks[n.TaskID] = state{at, n.Data.Status}
		}
		return nil
	})
	receiver, err := webhook.NewReceiver(handler, []arc.WebhookSecret{"secret"}, nil)
	if err != nil {
		panic(err)
	}

	now := time.Now()
	deliver(receiver, "2", now, arc.EventTaskCompleted, "COMPLETED")
	deliver(receiver, "1", now.Add(-time.Minute), arc.EventTaskStarted, "WORKING") // its first attempts failed
	fmt.Println(tasks["t-1"].status)
	// Output: COMPLETED
}

// deliver sends a notification as a server does.
func deliver(h http.Handler, id string, at time.Time, event arc.Event, status string) {
	n := arc.Notification{TaskID: "t-1", Event: event, Timestamp: arc.NewTimestamp(at),
		Data: arc.NotificationData{Status: status, Message: "news"}}
	params, err := n.MarshalJSON()
	if err != nil {
		panic(err)
	}
	body, err := arc.AppendRequest(nil, &arc.Request{ID: arc.ID(`"` + id + `"`), Method: arc.MethodTaskNotification,
		RequestAgent: "worker-01", TargetAgent: "ui-01", Params: params})
	if err != nil {
		panic(err)
	}
	req := httptest.NewRequest(http.MethodPost, "/hook", bytes.NewReader(body))
	req.Header.Set("Content-Type", arc.MediaType)
	req.Header.Set("X-ARC-Signature", webhook.Sign([]byte("secret"), body))
	h.ServeHTTP(httptest.NewRecorder(), req)
}
