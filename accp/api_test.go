// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package accp_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/accp"
)

// The JSON form of values and messages tells all types apart.
func TestJSONForm(t *testing.T) {
	in := `{"from":"a","intent":"req","op":"x","payload":{"n":null,"b":true,"i":12345678901234567890,"d":{"$dec":"1.5"},"s":"é","r":{"$ref":"ctx.k"},"l":[1,[]],"m":{"k":{}}},` +
		`"meta":{"mid":"49679033e07c","seq":1,"ts":2,"cid":"c","aid":"m","sid":"s","ttl":3,"trace":"t"}}`
	var m accp.Message
	require.NoError(t, m.UnmarshalJSON([]byte(in)))
	out, err := json.Marshal(&m)
	require.NoError(t, err)
	require.JSONEq(t, in, string(out))
	params, err := json.Marshal(m.Params)
	require.NoError(t, err)
	var p accp.Params
	require.NoError(t, p.UnmarshalJSON(params))
	require.True(t, p.Equal(m.Params))
	v, err := json.Marshal(accp.Map(m.Params...))
	require.NoError(t, err)
	require.JSONEq(t, string(params), string(v))
	for _, bad := range []string{`[]`, `5`, `{"a":`, `{"a":1,"a":2}`, `{"a":{"$dec":"x"}}`, `{"a":{"$ref":5}}`} {
		require.Error(t, p.UnmarshalJSON([]byte(bad)), bad)
	}
	for _, bad := range []string{`[]`, `{"from":1}`, `{"from":"a","intent":"req","op":"x","payload":[]}`,
		`{"from":"a","intent":"req","op":"x","meta":{"seq":"1"}}`, `{"from":"a","intent":"req","op":"x","meta":{"seq":-1}}`, `{`} {
		require.Error(t, new(accp.Message).UnmarshalJSON([]byte(bad)), bad)
	}
}

func TestValueAccess(t *testing.T) {
	d, err := accp.Decimal("-0.10")
	require.NoError(t, err)
	require.Equal(t, accp.KindDecimal, d.Kind())
	_, ok := accp.String("ctx.k").Ref()
	require.False(t, ok)
	ref, ok := accp.Ref("ctx.k").Ref()
	require.True(t, ok)
	require.Equal(t, "ctx.k", ref)
	require.Nil(t, accp.Array(accp.Int(1)).Entries())
	require.Equal(t, accp.KindNull, accp.Null().Kind())
	_, err = accp.Decimal("1e5")
	require.ErrorIs(t, err, accp.ErrInvalidType)
	n := 0
	for range accp.Map(text("a", "b")).Elements() {
		n++
	}
	require.Zero(t, n)
	for in, want := range map[string]string{"1.2345675": "1.234568", "1.2345665": "1.234566", "-0.0000004": "0.0", "007.10": "7.1", "5": "5.0",
		"999999.9999999": "1000000.0", "0.00000050000000000000001": "0.000001"} {
		v, err := accp.Decimal(in)
		require.NoError(t, err)
		got, err := new(accp.Codec).AppendValue(nil, v)
		require.NoError(t, err)
		require.Equal(t, want, string(got))
	}
	v, err := accp.Decimal("1.2345675")
	require.NoError(t, err)
	_, err = (&accp.Codec{RejectRounding: true}).AppendValue(nil, v)
	require.ErrorIs(t, err, accp.ErrInvalidType)
	_, err = accp.Decimal("x")
	require.ErrorIs(t, err, accp.ErrInvalidType)
}

// Values print as frames have them.
func TestValuesPrintTheirText(t *testing.T) {
	dec, err := accp.Decimal("1.50")
	require.NoError(t, err)
	p := accp.Params{text("s", "a b"), {Key: "n", Value: accp.Int(-3)}, {Key: "d", Value: dec}, {Key: "r", Value: accp.Ref("ctx.k")},
		{Key: "z"}, {Key: "m", Value: accp.Map(text("k", "true"))}, {Key: "l", Value: accp.Array(accp.Bool(true))}, {Key: "bad", Value: accp.Ref("..")}}
	require.Equal(t, `[{s \_a_b} {n -3} {d 1.5} {r $ctx.k} {z ~} {m {k:\etrue}} {l [true]} {bad (reference)}]`, fmt.Sprint(p))
}

// A message does not change with the memory of its frame.
func TestMessagesOwnTheirMemory(t *testing.T) {
	var c accp.Codec
	var f accp.Frame
	require.NoError(t, c.DecodeFrame([]byte(`@a>req:tool{args:{x:[1,2]}|tool:w\:b|n:-1.5}[mid:49679033e07c,seq:1,ts:2]`), &f))
	require.Equal(t, 3, len(f.Message().Params))
	m := f.Message()
	require.NoError(t, c.DecodeFrame([]byte(`@b>done:y{}`), &f))
	require.Equal(t, "w:b", m.Params.Text("tool"), "a message does not change with its frame")
	require.Zero(t, len(f.Message().Params))
	require.Error(t, c.DecodeFrame([]byte(`@b>done:y{`), &f))

	text := []byte("@a>req:x{k:first|l:\\u{41}b}[mid:49679033E07C,seq:1,ts:2,trace:\\_a_b]")
	m, err := c.DecodeRaw(text)
	require.NoError(t, err)
	for i := range text {
		text[i] = '#'
	}
	require.Equal(t, []string{"first", "Ab", "49679033e07c", "a b"}, []string{m.Params.Text("k"), m.Params.Text("l"), m.Meta.MID, m.Meta.Ext.Text("trace")})
}

// Decoding with the envelope checks it, and the chain where one is needed (ACCP-046,
// ACCP-D19, ACCP-D22).
func TestDecodeEnvelope(t *testing.T) {
	var c accp.Codec
	meta := "[mid:49679033e07c,seq:1,ts:2]"
	m, err := c.DecodeEnvelope([]byte("@a>req:schedule{schema:TA|t:x}" + meta))
	require.NoError(t, err)
	require.Equal(t, "medium", m.Params.Text("priority"))
	for frame, code := range map[string]accp.Code{
		"junk": accp.ErrParse, "@a>req:x{}": accp.ErrParse, "@a>req:x{}[mid:49679033e07c,ts:2]": accp.ErrParse,
		"@a>req:x{}[mid:49679033e07c,seq:2]": accp.ErrParse, "@a>req:x{}[mid:4967,seq:1,ts:2]": accp.ErrInvalidType,
		"@a>req:x{schema:ZZ}" + meta: accp.ErrUnknownSchema, "@a>req:x{amt:x|schema:TX}" + meta: accp.ErrInvalidType,
		"@a>end:x{schema:ST}" + meta: accp.ErrParse, "@a>cancel:x{}" + meta: accp.ErrParse,
	} {
		_, err := c.DecodeEnvelope([]byte(frame))
		require.ErrorIs(t, err, code, frame)
	}
}

// The error of a frame without its envelope names each missing field, and the option for frames of the draft.
func TestMissingEnvelopeIsNamed(t *testing.T) {
	for frame, text := range map[string]string{
		"@a>req:x{}":                         "metadata without mid, seq, ts; Decode reads frames without envelope",
		"@a>req:x{}[mid:49679033e07c]":       "metadata without seq, ts; Decode reads",
		"@a>req:x{}[mid:49679033e07c,ts:2]":  "metadata without seq; Decode reads",
		"@a>req:x{}[mid:49679033e07c,seq:2]": "metadata without ts; Lenient accepts",
		"@a>req:x{}[mid:4967,seq:1,ts:2]":    "mid must be 12 hex digits, unless Lenient is set",
		"@a>req:x{}[mid:abcd,seq:1,ttl:2]":   "metadata without ts; Decode reads",
	} {
		_, err := new(accp.Codec).DecodeEnvelope([]byte(frame))
		require.ErrorContains(t, err, text, frame)
	}
	for _, frame := range []string{"@a>req:x{}[mid:49679033e07c,seq:2]", "@a>req:x{}[mid:4967,seq:1,ts:2]"} {
		_, err := (&accp.Codec{Lenient: true}).DecodeEnvelope([]byte(frame))
		require.NoError(t, err, "as the error says")
	}
}

func TestSessionAccess(t *testing.T) {
	s := session(t, nil)
	require.Equal(t, "s1", s.ID())
	err := s.Registry().Register(accp.Schema{Code: "x"})
	require.ErrorIs(t, err, accp.ErrInvalidType)
	hello, err := s.AnnounceRegistry(t.Context())
	require.NoError(t, err)
	other, err := accp.NewSession("other", "s1", nil)
	require.NoError(t, err)
	reply, isSynced, err := other.ReceiveRegistry(t.Context(), hello.Frames[0])
	require.NoError(t, err)
	require.True(t, isSynced)
	require.NotNil(t, reply)
	_, _, err = s.ReceiveRegistry(t.Context(), []byte(strings.Replace(string(reply.Frames[0]), "sync:registry", "ack:x", 1)))
	require.ErrorIs(t, err, accp.ErrInvalidIntent)
}
