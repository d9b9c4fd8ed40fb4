// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package outbox_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/internal/guard"
	"github.com/fivewire/fivewire/internal/outbox"
	"github.com/fivewire/fivewire/internal/state"
	"github.com/fivewire/fivewire/store"
)

// FuzzStoredBytesLoseNoItem has the law that any bytes of a sender record, an item and a dead letter lose no item:
// each is sent once with its data, is a dead letter with its bytes, or waits.
func FuzzStoredBytesLoseNoItem(f *testing.F) {
	item := state.EncodeWith(outbox.Item{ID: "a"}, []byte("data\nof a"))
	letter := state.EncodeWith(outbox.Letter{Item: outbox.Item{ID: "l", Attempt: 3}, Reason: "r"}, []byte("data of l"))
	f.Add([]byte(`{"Owner":"o@1","Mode":"gone","Puts":1,"Bytes":80,"Attempt":2,"Delay":5,"Last":"down"}`), item, letter)
	f.Add([]byte(`{"Seq":1,"Puts":9223372036854775807,"Sent":-1,"Bytes":-1}`), []byte("\x01{}\n"), []byte{})
	f.Add([]byte(`{"Delay":9000000000000000000,"Next":"2200-01-01T00:00:00Z"}`), []byte("\x01[]\n"), []byte("\x02{}\n"))
	f.Add([]byte(`{"Owner":"a/b"}`), []byte("no line"), []byte("\x01{}"))
	f.Fuzz(func(t *testing.T, record, item, letter []byte) {
		synctest.Test(t, func(t *testing.T) { checkStored(t, record, item, letter) })
	})
}

func checkStored(t *testing.T, record, item, letter []byte) {
	db, r := store.NewMemory(), always(outbox.Done())
	letterKey := "x/outbox/dead/" + state.Join("k/letters") + "/00000000000000000001"
	for key, value := range map[string][]byte{senderKey("k/1"): record, letterKey: letter} {
		_, err := store.Modify(t.Context(), db, key, 0, func(store.Entry, bool) ([]byte, error) {
			return append([]byte{}, value...), nil
		})
		require.NoError(t, err)
	}
	seq, err := db.Append(t.Context(), "x/outbox/items/"+state.Join("k/1"), "=a", item, 0)
	require.NoError(t, err)
	n := startNode(t, db, slow, func(c *config) { c.Logger = slog.New(panicFinder{slog.DiscardHandler, t}) })
	n.Send("k", r.send)

	errOwn := n.Own(t.Context(), "k/1")
	time.Sleep(time.Hour)
	var stored struct {
		Seq   uint64
		Delay time.Duration
	}
	_ = json.Unmarshal(record, &stored)
	_, data, _ := bytes.Cut(item, []byte("\n"))
	isWaiting := waiting(t, db, "k/1") > 0
	isSent := len(r.ids()) > 0
	isLetter := false
	for l, err := range n.Dead(t.Context()) {
		isLetter = isLetter || err == nil && l.Stream == "k/1" && bytes.Equal(l.Data, item)
	}
	switch {
	case errOwn != nil || stored.Delay > time.Hour && !isSent && !isLetter:
		require.True(t, isWaiting && !isSent && !isLetter, "item without a sender: %v", errOwn)
	case seq <= stored.Seq: // it has left the queue
		require.False(t, isSent || isLetter || isWaiting, "item sent before")
	case isSent:
		require.Len(t, r.ids(), 1)
		require.Equal(t, string(data), string(r.item(0).Data))
		require.False(t, isLetter || isWaiting, "item sent")
	default:
		require.True(t, isLetter && !isWaiting, "item not sent")
	}

	_, data, _ = bytes.Cut(letter, []byte("\n"))
	err = n.Redeliver(t.Context(), "k/letters", 1)
	time.Sleep(time.Hour)
	e, errGet := db.Get(t.Context(), letterKey)
	if err != nil {
		require.NoError(t, errGet)
		e, err = store.Content(e)
		require.NoError(t, err)
		require.Equal(t, string(letter), string(e.Value), "letter after Redeliver failed")
		return
	}
	require.ErrorIs(t, errGet, store.ErrNotFound)
	last := r.item(len(r.ids()) - 1)
	require.Equal(t, "k/letters", last.Stream)
	require.Equal(t, string(data), string(last.Data))
}

// A panicFinder fails the test at a record of a panic.
type panicFinder struct {
	slog.Handler
	t *testing.T
}

func (h panicFinder) Enabled(context.Context, slog.Level) bool { return true }

func (h panicFinder) Handle(_ context.Context, r slog.Record) error {
	r.Attrs(func(a slog.Attr) bool {
		err, _ := a.Value.Any().(error)
		_, isPanic := errors.AsType[*guard.PanicError](err)
		require.False(h.t, isPanic, "%v", err)
		return true
	})
	return nil
}
