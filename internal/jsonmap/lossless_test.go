// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package jsonmap

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/internal/strictjson"
)

type extras map[string]json.RawMessage

type piece struct {
	Type    string          `json:"type"`
	Content string          `json:"content"`
	Data    json.RawMessage `json:"-" jsonmap:"other=content"`
	Size    json.Number     `json:"size,omitempty"`
	Extra   extras          `json:"-" jsonmap:"extra"`
}

// MarshalJSON and UnmarshalJSON are for encoding/json.
func (p piece) MarshalJSON() ([]byte, error) { return Append(nil, p) }

func (p *piece) UnmarshalJSON(text []byte) error {
	if f := Read(cursor(string(text)), p); f != nil {
		return f
	}
	return nil
}

type lossless struct {
	Role  string          `json:"role"`
	Parts []piece         `json:"parts"`
	Time  string          `json:"time,omitempty"`
	Meta  json.RawMessage `json:"meta,omitempty" jsonmap:"object,unset"`
	Sub   *piece          `json:"sub,omitempty"`
	Extra extras          `json:"-" jsonmap:"extra"`
}

// A lossless struct writes all members that it has read.
func TestLosslessStruct(t *testing.T) {
	for _, text := range []string{
		`{"role":"user","parts":[{"type":"TextPart","content":"x"}]}`,
		`{"role":"user","parts":[{"type":"DataPart","content":{"a":1.0}},{"type":"y","content":true,"size":7,"z":[]}],"time":"t","meta":{"m":"\ud800"},"x":"\udfff"}`,
		`{"role":"user","parts":[],"time":""}`,
		`{"role":"user","parts":[],"meta":[],"time":7}`,
		`{"parts":"none","role":5}`,
		`{"parts":[{"type":"a","content":"b"},3],"role":""}`,
		`{"role":"","parts":[],"sub":{"type":"a","content":[1]}}`,
		`{"role":"","parts":[],"sub":[]}`,
	} {
		var got lossless
		require.Nil(t, Read(strictjson.NewCursor([]byte(text), strictjson.Options{LoneSurrogates: true}), &got))
		require.JSONEq(t, text, write(t, got), text)
		byJSON, err := json.Marshal(got.Parts)
		require.NoError(t, err)
		var second []piece
		require.NoError(t, json.Unmarshal(byJSON, &second))
	}
	got := parse[lossless](t, `{"parts":[{"content":[1]},{"content":"b","Extra":2}],"sub":null,"a":1,"role":2}`)
	require.Equal(t, lossless{Parts: []piece{{Data: json.RawMessage("[1]")}, {Content: "b", Extra: extras{"Extra": json.RawMessage("2")}}},
		Extra: extras{"a": json.RawMessage("1"), "role": json.RawMessage("2")}}, got)

	text := []byte(`{"meta":{"a":1},"x":[2]}`)
	var kept lossless
	require.Nil(t, Read(cursor(string(text)), &kept))
	clear(text)
	require.Equal(t, `{"a":1}`, string(kept.Meta), "values are copied")

	require.Equal(t, `{"role":"user","parts":[],"a":{},"z":1}`, write(t, lossless{Role: "user",
		Extra: extras{"z": json.RawMessage("1"), "a": json.RawMessage("{ }"), "role": json.RawMessage(`"x"`)}}), "a set field has precedence")
	_, err := Append(nil, lossless{Extra: extras{"x": json.RawMessage("{")}})
	require.ErrorContains(t, err, "x: invalid")
	var f *Fault
	_, err = Append(nil, []lossless{{Parts: []piece{{Content: "\xff"}}}})
	require.ErrorAs(t, err, &f)
	require.Equal(t, "[0].parts[0].content", f.Path)
	require.NotNil(t, Read(cursor("[]"), &lossless{}))
}
