// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package arc

import (
	"fmt"
	"strconv"

	"github.com/fivewire/fivewire/arc/internal/wire"
	"github.com/fivewire/fivewire/internal/jsonmap"
	"github.com/fivewire/fivewire/internal/strictjson"
)

// A writer appends JSON. It records the first error, which is always invalid raw
// JSON of the caller.
type writer struct {
	b   []byte
	err error
}

// open begins an object and returns where, for extra.
func (w *writer) open() int {
	w.b = append(w.b, '{')
	return len(w.b) - 1
}

func (w *writer) close() { w.b = append(w.b, '}') }

func (w *writer) key(name string) {
	if w.b[len(w.b)-1] != '{' {
		w.b = append(w.b, ',')
	}
	w.b = append(w.b, '"')
	w.b = append(w.b, name...)
	w.b = append(w.b, '"', ':')
}

func (w *writer) text(name, s string) {
	w.key(name)
	w.b = strictjson.AppendString(w.b, s)
}

func (w *writer) optText(name, s string) {
	if s != "" {
		w.text(name, s)
	}
}

func (w *writer) flag(name string, v bool) {
	w.key(name)
	if v {
		w.b = append(w.b, "true"...)
	} else {
		w.b = append(w.b, "false"...)
	}
}

// raw writes JSON of the caller's, checked and without white space.
func (w *writer) raw(name string, v []byte) {
	w.key(name)
	w.value(name, v)
}

func (w *writer) value(name string, v []byte) {
	c, err := wire.Check(v)
	if err != nil {
		if w.err == nil {
			w.err = fmt.Errorf("arc: %s: %w", name, err)
		}
		return
	}
	w.b = strictjson.AppendCompact(w.b, c)
}

func (w *writer) optRaw(name string, v []byte) {
	if v != nil {
		w.raw(name, v)
	}
}

// array writes an array.
func array[T any](w *writer, name string, items []T, write func(*writer, *T)) {
	w.key(name)
	w.b = append(w.b, '[')
	for i := range items {
		if i > 0 {
			w.b = append(w.b, ',')
		}
		write(w, &items[i])
	}
	w.b = append(w.b, ']')
}

func (w *writer) message(m *Message) { w.object("message", m) }

// object writes a value of jsonmap.
func (w *writer) object(name string, v any) {
	b, err := jsonmap.Append(w.b, v)
	if err != nil && w.err == nil {
		w.err = fmt.Errorf("arc: %s: %w", name, err)
	}
	w.b = b
}

// element writes a text of an array.
func element[T ~string](w *writer, s *T) { w.b = strictjson.AppendString(w.b, *s) }

func (w *writer) error(e *Error) {
	w.open()
	w.key("code")
	w.b = appendInt(w.b, int64(e.Code))
	w.text("message", e.Message)
	w.optRaw("details", e.Details)
	w.close()
}

func (w *writer) optError(e *Error) {
	if e != nil {
		w.key("error")
		w.error(e)
	}
}

// encode runs write on a fresh writer and returns its bytes.
func encode(write func(w *writer)) ([]byte, error) {
	w := writer{b: make([]byte, 0, 128)}
	write(&w)
	if w.err != nil {
		return nil, w.err
	}
	return w.b, nil
}

func appendInt(b []byte, n int64) []byte { return strconv.AppendInt(b, n, 10) }
