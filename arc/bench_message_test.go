// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package arc

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/internal/bench/pair"
	"github.com/fivewire/fivewire/internal/jsonmap"
	"github.com/fivewire/fivewire/internal/strictjson"
)

// mappedMessage is a [Message] for package jsonmap.
type mappedMessage struct {
	Role      string          `json:"role"`
	Parts     []mappedPart    `json:"parts"`
	Timestamp string          `json:"timestamp,omitzero"`
	AgentID   string          `json:"agentId,omitzero"`
	Extra     jsonmap.Members `json:"-"`
}

type mappedPart struct {
	Type     string          `json:"type"`
	Content  string          `json:"content"`
	MIMEType string          `json:"mimeType,omitzero"`
	Filename string          `json:"filename,omitzero"`
	Size     json.Number     `json:"size,omitzero"`
	Encoding string          `json:"encoding,omitzero"`
	Width    json.Number     `json:"width,omitzero"`
	Height   json.Number     `json:"height,omitzero"`
	Duration json.Number     `json:"duration,omitzero"`
	Extra    jsonmap.Members `json:"-"`
}

const mappedText = `{"role":"user","parts":[{"type":"TextPart","content":"Process report 7"},` +
	`{"type":"FilePart","content":"cmVwb3J0","mimeType":"application/pdf","filename":"report.pdf","encoding":"base64"}],` +
	`"timestamp":"2026-05-28T09:00:00.000Z","agentId":"finance-analyzer-01"}`

// The reader and the writer of messages are written by hand. The ratio is that of their time to
// the time of jsonmap.
func BenchmarkPairMessage(b *testing.B) {
	text := []byte(mappedText)
	o := strictjson.Options{MaxDepth: maxDepth, LoneSurrogates: true}
	read := func() *Message {
		v, err := checkJSON(text)
		if err != nil {
			b.Fatal(err)
		}
		r := newReader(false)
		defer r.free()
		return r.message(v)
	}
	c := strictjson.NewCursor(nil, o)
	mapped := func() *mappedMessage {
		c.Reset(text, o)
		m := new(mappedMessage)
		if f := jsonmap.Read(c, m); f != nil {
			b.Fatal(f)
		}
		return m
	}
	b.Run("op=read", func(b *testing.B) {
		pair.Ratio(b, pair.Loop(func() { read() }), pair.Loop(func() { mapped() }))
	})

	m, mm := read(), mapped()
	buf := make([]byte, 0, 1024)
	write := func() []byte {
		w := writer{b: buf}
		w.message(m)
		return w.b
	}
	writeMapped := func() []byte {
		out, err := jsonmap.Append(buf, mm)
		if err != nil {
			b.Fatal(err)
		}
		return out
	}
	require.Equal(b, mappedText, string(write()))
	require.Equal(b, mappedText, string(writeMapped()))
	b.Run("op=write", func(b *testing.B) {
		pair.Ratio(b, pair.Loop(func() { write() }), pair.Loop(func() { writeMapped() }))
	})
}

// The memory of readers and of results is used again. The ratio is that of the time without to the
// time with that.
func BenchmarkPairReuse(b *testing.B) {
	text := strictjson.Value(mappedText)
	m := new(reader).message(text)
	b.Run("op=read", func(b *testing.B) {
		pair.Ratio(b,
			pair.Loop(func() { new(reader).message(text) }),
			pair.Loop(func() {
				r := newReader(false)
				r.message(text)
				r.free()
			}))
	})
	b.Run("op=write", func(b *testing.B) {
		pair.Ratio(b,
			pair.Loop(func() { new(ready).message(m) }),
			pair.Loop(func() {
				w := newReady()
				w.message(m)
				w.free()
			}))
	})
}
