// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package sse

import (
	"io"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func TestAppendEvent(t *testing.T) {
	tests := []struct {
		name       string
		event, id  string
		data, want string
		err        error
	}{
		{name: "name and JSON", event: "stream", data: `{"a":1}`, want: "event: stream\ndata: {\"a\":1}\n\n"},
		{name: "no name", data: `{}`, want: "data: {}\n\n"},
		{name: "id", id: "7", data: `{}`, want: "id: 7\ndata: {}\n\n"},
		{name: "all", event: "e", id: "7", data: `{}`, want: "event: e\nid: 7\ndata: {}\n\n"},
		{name: "several lines", data: "a\n\nb\n", want: "data: a\ndata: \ndata: b\ndata: \n\n"},
		{name: "no data", want: "data: \n\n"},
		{name: "leading blank survives", event: " e", data: " a", want: "event:  e\ndata:  a\n\n"},
		{name: "LF in the name", event: "a\ndata: b", err: ErrInvalid},
		{name: "CR in the name", event: "a\rb", err: ErrInvalid},
		{name: "LF in the id", id: "a\nb", err: ErrInvalid},
		{name: "CR in the id", id: "a\rb", err: ErrInvalid},
		{name: "NUL in the id", id: "a\x00b", err: ErrInvalid},
		{name: "CR in the data", data: "a\rb", err: ErrInvalid},
		{name: "CRLF in the data", data: "a\r\nb", err: ErrInvalid},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			out, err := AppendEvent([]byte("before"), tt.event, tt.id, []byte(tt.data))
			require.ErrorIs(t, err, tt.err)
			require.Equal(t, "before"+tt.want, string(out))
			if err != nil {
				require.Regexp(t, "^sse: cannot be written: ", err.Error())
			}
		})
	}
}

func TestAppendComment(t *testing.T) {
	out, err := AppendComment([]byte("x"), "keep-alive")
	require.NoError(t, err)
	require.Equal(t, "x: keep-alive\n\n", string(out))
	for _, text := range []string{"a\nb", "a\rb"} {
		out, err = AppendComment([]byte("x"), text)
		require.ErrorIs(t, err, ErrInvalid)
		require.Equal(t, "x", string(out))
	}
}

// Whatever AppendEvent accepts arrives as it was sent, and as one event.
func TestAppendEventRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.StringOf(rapid.RuneFrom([]rune("ab: \n\r\x00é\ufeff")))
		name, id, data := text.Draw(t, "name"), text.Draw(t, "id"), text.Draw(t, "data")
		out, err := AppendEvent(nil, name, id, []byte(data))
		if strings.ContainsAny(name, "\r\n") || strings.ContainsAny(id, "\r\n\x00") || strings.Contains(data, "\r") {
			require.ErrorIs(t, err, ErrInvalid)
			return
		}
		require.NoError(t, err)
		all, err := readAll(NewReader(strings.NewReader(string(out)), nil))
		require.Equal(t, io.EOF, err)
		require.Equal(t, []got{{Name: name, ID: id, Data: data}}, all)
	})
}

func TestAppendAllocs(t *testing.T) {
	buf := make([]byte, 0, 1024)
	data := []byte(`{"chatId":"c1"}`)
	require.Zero(t, testing.AllocsPerRun(100, func() {
		buf, _ = AppendEvent(buf[:0], "stream", "4", data)
		buf, _ = AppendComment(buf, "keep-alive")
	}))
}
