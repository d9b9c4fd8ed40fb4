// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

// Package sample builds the inputs that the benchmarks of several packages share,
// so that their figures can be compared.
package sample

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
)

// A Message is an RPC request between agents, in the shape of an ARC task.create.
type Message struct {
	ARC          string `json:"arc"`
	ID           string `json:"id"`
	Method       string `json:"method"`
	RequestAgent string `json:"requestAgent"`
	TargetAgent  string `json:"targetAgent"`
	TraceID      string `json:"traceId,omitempty"`
	Params       Params `json:"params"`
}

// Params are the parameters of a [Message].
type Params struct {
	Initial  Turn    `json:"initialMessage"`
	Priority string  `json:"priority,omitempty"`
	Seq      int64   `json:"seq"`
	Score    float64 `json:"score"`
	Final    bool    `json:"final"`
	History  []Turn  `json:"history,omitempty"`
}

// A Turn is one message of a conversation.
type Turn struct {
	Role      string `json:"role"`
	Parts     []Part `json:"parts"`
	Timestamp string `json:"timestamp,omitempty"`
}

// A Part is one piece of a [Turn].
type Part struct {
	Type    string `json:"type"`
	Content string `json:"content"`
	Tokens  int64  `json:"tokens,omitempty"`
}

const text = "Please summarise the quarterly report, list every risk with its owner, and mark \"blocked\" items; " +
	"keep figures exact and cite the page of each of them. "

// New returns a message whose compact JSON is about size bytes.
func New(size int) Message {
	m := Message{
		ARC: "1.0", ID: "msg_abc123", Method: "task.create",
		RequestAgent: "finance-analyzer-01", TargetAgent: "document-processor-03",
		Params: Params{
			Initial:  Turn{Role: "user", Parts: []Part{{Type: "TextPart", Content: "Process report 7"}}},
			Priority: "HIGH", Seq: 9007199254740993, Score: 0.925, Final: true,
		},
	}
	if size > 400 {
		m.TraceID = "trace_report_20240115_abc123"
	}
	for i := 0; len(Encode(m)) < size-100; i++ {
		t := Turn{Role: "agent", Timestamp: "2026-05-28T09:00:00.000Z"}
		n := size - 100 - len(Encode(m))
		c := text + text
		if n < len(c)+120 {
			c = strings.Repeat("x", max(1, n-120))
		}
		if i%4 == 3 {
			c = "분기 보고서를 요약하고 위험 항목을 나열하세요. " + c[:len(c)/2]
		}
		t.Parts = []Part{{Type: "TextPart", Content: c, Tokens: int64(40 + i)}}
		m.Params.History = append(m.Params.History, t)
	}
	return m
}

// Encode returns v as compact JSON without HTML escapes. It panics if v is nothing
// that JSON can say.
func Encode(v any) []byte {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		panic(err)
	}
	return bytes.TrimRight(b.Bytes(), "\n")
}

// Sizes are the message sizes that tables of results quote.
var Sizes = [...]struct {
	Name string
	N    int
}{{"300B", 300}, {"2KB", 2 << 10}, {"64KB", 64 << 10}}

// Envelope returns an AIR envelope of about size bytes, its members unsorted as a
// sender would write them. Its strings are ASCII unless korean is set.
func Envelope(size int, korean bool) []byte {
	word := "Translate the English article to Korean, machine-verified quality. "
	if korean {
		word = "영어 기사를 한국어로 번역하고 품질을 기계로 검증합니다. "
	}
	env := func(desc string, items int) string {
		var b strings.Builder
		b.WriteString(`{"id":"018fde3a-1234-4abc-8def-aabbccddeeff",` +
			`"from":"did:wba:agentidentityregistry.org:agents:AIR-S1EN-D3RA-GNT0",` +
			`"to":"did:wba:agentidentityregistry.org:agents:AIR-A1B2-C3D4-E5F6",` +
			`"timestamp":"2026-05-28T09:00:00.000Z",` +
			`"thread_id":"018fde3a-5678-4abc-9012-aabbccddeeff",` +
			`"nonce":"r4nd0mN0nc3-abc123xyz789",` +
			`"body":{"type":"Offer","price":{"currency":"USD","amount_cents":9007199254740993},` +
			`"expires_at":"2026-05-28T10:00:00.000Z","items":[{"sku":"a-1","qty":3}`)
		for i := range items {
			fmt.Fprintf(&b, `,{"sku":"item-%d","qty":%d,"note":%q,"delivery":{"zone":"EU","days":%d}}`, i, i+1, word, i%9)
		}
		fmt.Fprintf(&b, `],"description":%q},"signature":null}`, desc)
		return b.String()
	}
	items := 0
	for len(env(word, items+1)) < size*9/10 && size > 2000 {
		items++
	}
	desc := word
	for len(env(desc+word, items)) < size {
		desc += word
	}
	return []byte(env(desc, items))
}
