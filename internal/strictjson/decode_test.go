// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package strictjson

import (
	stdjson "encoding/json"
	"math/big"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/internal/guard"
)

// An own reads itself, by the method that encoding/json calls.
type own struct{ text string }

func (o *own) UnmarshalJSON(b []byte) error {
	o.text = "<" + string(b) + ">"
	return nil
}

func (o own) MarshalJSON() ([]byte, error) {
	return []byte(strings.TrimSuffix(strings.TrimPrefix(o.text, "<"), ">")), nil
}

type level string

type everything struct {
	Embedded
	*Pointed
	Wait     time.Duration       `json:"wait"`
	At       time.Time           `json:"at"`
	Three    [3]int              `json:"three"`
	Hash     [4]byte             `json:"hash"`
	Bytes    []byte              `json:"bytes"`
	Quoted   int64               `json:"quoted,string"`
	Flag     bool                `json:"flag,string"`
	ByNumber map[int]string      `json:"byNumber"`
	ByLevel  map[level]*int      `json:"byLevel"`
	Own      own                 `json:"own"`
	Big      *big.Int            `json:"big"`
	IP       netip.Addr          `json:"ip"`
	Any      any                 `json:"any"`
	Anys     []any               `json:"anys"`
	Small    int8                `json:"small"`
	Float    float32             `json:"float"`
	Ptr      **int               `json:"ptr"`
	Raw      *stdjson.RawMessage `json:"raw"`
	Plain    string
	Odd      string `json:"odd name,omitempty,unknown"`
	//lint:ignore SA5008 encoding/json takes it for the name "-", which the package below does not like
	Dash string `json:"-,"`
	Left string `json:"-"`
}

type Embedded struct {
	E int `json:"e"`
	F int
}

type Pointed struct {
	G int
}

// Decode reads into a type like encoding/json, with the exceptions
// that it names; the main ones are that names match exactly and numbers stay exact. The two differ in more
// in the underlying package, where a Duration has no form at all.
func TestDecodeLikeEncodingJSON(t *testing.T) {
	for _, text := range []string{
		`{"e":1,"F":2,"G":3}`,
		`{"wait":1500000000}`, `{"wait":"1s"}`, `{"wait":1.5}`,
		`{"at":"2024-01-15T10:30:00.5+02:00"}`, `{"at":"yesterday"}`, `{"at":null}`,
		`{"three":[1,2]}`, `{"three":[1,2,3,4]}`, `{"three":[]}`, `{"three":null}`,
		`{"hash":[1,2,3,4]}`, `{"hash":"AQIDBA=="}`,
		`{"bytes":"aGk="}`, `{"bytes":"aGk"}`, `{"bytes":[104,105]}`, `{"bytes":null}`,
		`{"quoted":"12"}`, `{"quoted":12}`, `{"flag":"true"}`, `{"flag":true}`,
		`{"byNumber":{"1":"a","-2":"b"}}`, `{"byNumber":{"x":"a"}}`, `{"byLevel":{"low":1,"high":null}}`,
		`{"own":{"a":[1]}}`, `{"own":null}`, `{"own":"x"}`,
		`{"big":123456789012345678901234567890}`, `{"big":"5"}`,
		`{"ip":"::1"}`, `{"ip":"nowhere"}`, `{"ip":""}`,
		`{"any":{"a":"b","c":[true,null]}}`, `{"anys":["a",{},[]]}`, `{"any":null}`,
		`{"small":127}`, `{"small":128}`, `{"small":-129}`, `{"small":1.0}`, `{"small":"1"}`,
		`{"float":1e39}`, `{"float":0.1}`,
		`{"ptr":5}`, `{"ptr":null}`, `{"raw":{"b": 1}}`, `{"raw":null}`,
		`{"Plain":null}`, `{"Plain":5}`, `{"Plain":"x"}`,
		`{"odd name":"x"}`, `{"Odd":"x"}`, `{"-":"x"}`, `{"Left":"x"}`,
		`null`, `[]`, `5`, `{}`,
	} {
		n, inner := 7, 8
		in := func() everything {
			p := &inner
			return everything{Plain: "before", Three: [3]int{9, 9, 9}, Small: 3, Any: "before", Own: own{"<before>"}, ByLevel: map[level]*int{"old": &n}, Ptr: &p}
		}
		want, got := in(), in()
		wantErr := stdjson.Unmarshal([]byte(text), &want)
		err := Decode(check(t, text), &got)
		require.Equal(t, wantErr == nil, err == nil, "%s: encoding/json says %v, Decode %v", text, wantErr, err)
		if err == nil {
			require.Equal(t, want, got, text)
		}
	}
}

// Decode reads the output of guard.Encode back.
func TestEncodeDecode(t *testing.T) {
	five := 5
	pointer := &five
	raw := stdjson.RawMessage(`[1]`)
	in := everything{
		Embedded: Embedded{1, 2}, Pointed: &Pointed{3}, Wait: time.Minute, At: time.Date(2026, 1, 2, 3, 4, 5, 6, time.UTC),
		Three: [3]int{1, 2, 3}, Hash: [4]byte{1, 2, 3, 4}, Bytes: []byte{0, 255}, Quoted: 1 << 60, Flag: true,
		ByNumber: map[int]string{-1: "x"}, ByLevel: map[level]*int{"l": &five}, Own: own{`<{"a":1}>`}, Big: big.NewInt(9),
		IP: netip.MustParseAddr("192.0.2.1"), Any: map[string]any{"n": stdjson.Number("1.50")}, Anys: []any{}, Small: -5, Float: 0.25,
		Ptr: &pointer, Raw: &raw, Plain: "p", Odd: "o", Dash: "d",
	}
	text, err := guard.Encode(in)
	require.NoError(t, err)
	var out everything
	require.NoError(t, Decode(check(t, string(text)), &out))
	require.Equal(t, in, out)
}

func TestDecodeTells(t *testing.T) {
	var dst struct {
		A struct {
			B []struct {
				C int `json:"c"`
			} `json:"b"`
		} `json:"a"`
	}
	err := Decode(check(t, `{"a":{"b":[{"c":1},{"c":"x"}]}}`), &dst)
	require.ErrorContains(t, err, "a.b.1.c", "the error says where")
	err = Decode(check(t, `{"a":{"b":5}}`), &dst)
	require.ErrorContains(t, err, "a.b", "the error says where")
}

func TestFaultOf(t *testing.T) {
	for text, want := range map[string]string{
		`{"rows":[{"id":1},{"id":1e30}]}`: "rows.1.id int",
		`{"rows":"x"}`:                    "rows []struct { ID int \"json:\\\"id\\\"\" }",
		`{"addr":"nowhere"}`:              " ",
	} {
		v, err := Check([]byte(text), Options{})
		require.NoError(t, err)
		var dst struct {
			Rows []struct {
				ID int `json:"id"`
			} `json:"rows"`
			Addr netip.Addr `json:"addr"`
		}
		path, goType := FaultOf(Decode(v, &dst))
		require.Equal(t, want, path+" "+goType)
	}
}
