// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package jsonmap

import (
	"encoding/json"
	"errors"
	"reflect"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/internal/strictjson"
)

// unknownMembers is a type that is defined as [Members].
type unknownMembers Members

type options struct {
	Limit  int64             `json:"limit,omitzero" jsonmap:"default=30"`
	Mode   string            `json:"mode,omitzero" jsonmap:"default=fast"`
	Stream *bool             `json:"stream,omitzero" jsonmap:"default=true"`
	Word   *string           `json:"word,omitzero" jsonmap:"default=a"`
	Quiet  bool              `json:"loud,omitzero" jsonmap:"always,not"`
	Args   json.RawMessage   `json:"args,omitzero" jsonmap:"always,object"`
	List   []json.RawMessage `json:"list,omitzero" jsonmap:"object"`
	Data   json.RawMessage   `json:"data,omitzero" jsonmap:"unset"`
	Extra  unknownMembers
}

func TestOptionsOfMembers(t *testing.T) {
	const defaults = `{"limit":30,"mode":"fast","stream":true,"word":"a","loud":true,"args":{}}`
	require.Equal(t, defaults, write(t, options{}))
	want := options{Limit: 30, Mode: "fast", Stream: new(true), Word: new("a")}
	require.Equal(t, want, parse[options](t, `{}`))
	require.Equal(t, want, parse[options](t, `{"limit":null,"mode":null,"stream":null,"word":null,"args":null,"data":null}`))
	require.Equal(t, defaults, write(t, parse[options](t, defaults)))
	const zeros = `{"limit":5,"mode":"slow","stream":false,"word":"","loud":false,"args":{"a":1},"list":[{},{"b":[]}],"data":0,"x":{"y":1}}`
	require.Equal(t, zeros, write(t, parse[options](t, zeros)), "explicit zeros behind pointers")
	require.Zero(t, parse[options](t, `{"limit":0}`).Limit, "a zero is read as it is")

	first, second := parse[options](t, `{}`), parse[options](t, `{}`)
	*first.Stream = false
	require.True(t, *second.Stream, "values do not share defaults")

	for text, path := range map[string]string{`{"args":[]}`: "args", `{"list":[{},null]}`: "list[1]", `{"list":[1]}`: "list[0]"} {
		var o options
		f := Read(cursor(text), &o)
		require.NotNil(t, f, text)
		require.Equal(t, []any{path, WrongType, "object"}, []any{f.Path, f.Reason, f.Want}, text)
	}
	_, err := Append(nil, options{Args: json.RawMessage(` [1]`)})
	require.EqualError(t, err, "args: wrong type, want object, got array")
	_, err = Append(nil, options{List: []json.RawMessage{json.RawMessage(`{`)}})
	require.ErrorContains(t, err, "list[0]: invalid")
}

// Read uses a slice of dst again, but not one that is the default of other values.
func TestDefaultSliceIsNotShared(t *testing.T) {
	type list struct {
		N []int `json:"n,omitzero" jsonmap:"default=[7]"`
	}
	used := parse[list](t, `{}`)
	require.Equal(t, []int{7}, used.N)
	require.Nil(t, Read(cursor(`{"n":[9]}`), &used))
	require.Equal(t, []int{9}, used.N)
	require.Equal(t, []int{7}, parse[list](t, `{}`).N)
}

func TestCheckRefusesOptions(t *testing.T) {
	for _, v := range []any{
		struct {
			A int `json:"a,omitzero" jsonmap:"default=x"`
		}{}, struct {
			A int `json:"a,omitzero" jsonmap:"default=0"`
		}{}, struct {
			A int `json:"a" jsonmap:"default=1"`
		}{}, struct {
			A int `json:"a,omitzero" jsonmap:"object"`
		}{}, struct {
			A json.RawMessage `json:"a" jsonmap:"unset"`
		}{}, struct {
			A int `json:"a,omitzero" jsonmap:"always,sometimes"`
		}{},
	} {
		require.Error(t, Check(reflect.TypeOf(v)), "%T", v)
	}
}

// A twoForms reads a text as a list of one, except an empty one.
type twoForms struct {
	List []string `json:"list,omitzero" jsonmap:"always"`
	Kind string   `json:"kind,omitzero" jsonmap:"always"`
}

func (f *twoForms) ReadMember(name string, value json.RawMessage) bool {
	var s string
	if name != "list" || json.Unmarshal(value, &s) != nil || s == "" {
		return false
	}
	f.List = []string{s}
	return true
}

func (f *twoForms) CheckMember(name string) error {
	if name == "kind" && f.Kind == "" && len(f.List) == 1 {
		return errors.New("no kind")
	}
	return nil
}

func TestStructReadsSecondForms(t *testing.T) {
	require.Equal(t, twoForms{List: []string{"a"}, Kind: "k"}, parse[twoForms](t, `{"kind":"k","list":"a"}`))
	require.Equal(t, twoForms{List: []string{"a", "b"}}, parse[twoForms](t, `{"list":["a","b"]}`))
	for text, path := range map[string]string{`{"kind":"k","list":""}`: "list", `{"list":1}`: "list", `{"list":"a"}`: "kind"} {
		f := Read(cursor(text), new(twoForms))
		require.NotNil(t, f, text)
		require.Equal(t, path, f.Path, "%s: an absent member with the option always is checked", text)
	}
}

// A head reads the member id.
type head struct{ id string }

func (h *head) ReadOther(c *strictjson.Cursor) bool {
	if string(c.Key()) != "id" {
		return false
	}
	h.id, _ = c.Text()
	return true
}

func TestReadRestStoresOtherMembers(t *testing.T) {
	type body struct {
		A     int `json:"a"`
		B     int `json:"b,omitzero"`
		Extra Members
	}
	var h head
	var b body
	var rest Members
	require.Nil(t, ReadRest(cursor(`{"b":2,"x":[ 1 ],"id":"7","a":1,"y":"z"}`), &b, &rest, &h))
	require.Equal(t, body{A: 1, B: 2}, b)
	require.Equal(t, "7", h.id)
	require.Equal(t, `{"x":[1],"y":"z"}`, string(rest.Value()))
	require.Equal(t, "a", ReadRest(cursor(`{"a":true}`), &b, &rest, &h).Path)
	require.Equal(t, WrongType, ReadRest(cursor(`[]`), &b, &rest, &h).Reason)
	require.Equal(t, Malformed, ReadRest(cursor(`{"a":1`), &b, &rest, &h).Reason)
}

func TestFieldFindsMembers(t *testing.T) {
	m := message{header: header{ID: "7"}}
	require.Equal(t, "7", Field(reflect.ValueOf(&m), "id").String())
	Field(reflect.ValueOf(&m), "count").SetInt(3)
	require.EqualValues(t, 3, m.Count)
	require.False(t, Field(reflect.ValueOf(m), "none").IsValid())
	require.False(t, Field(reflect.ValueOf(7), "id").IsValid())
	require.False(t, Field(reflect.ValueOf(struct{ F func() }{}), "F").IsValid())
}

// Raw JSON is as deep as its reader allowed.
func TestAppendWritesDeepRawJSON(t *testing.T) {
	deep := strings.Repeat("[", 9000) + strings.Repeat("]", 9000)
	require.Equal(t, deep, write(t, json.RawMessage(deep)))
	_, err := Append(nil, json.RawMessage("["+strings.Repeat("[", 10000)+strings.Repeat("]", 10000)+"]"))
	require.Error(t, err)
}

// An empty string that was read for a string with a default is written again, and no other zero value.
func TestEmptyStringsAreKept(t *testing.T) {
	type inner struct {
		Kind  string `json:"kind,omitzero" jsonmap:"default=status"`
		Extra Members
	}
	type outer struct {
		Name  string  `json:"name,omitzero" jsonmap:"default=none"`
		Size  int     `json:"size,omitzero" jsonmap:"default=3"`
		Inner []inner `json:"inner,omitzero"`
	}
	for text, want := range map[string]string{
		`{}`:                     `{"name":"none","size":3}`,
		`{"name":null,"size":0}`: `{"name":"none","size":3}`,
		`{"z":1,"name":""}`:      `{"name":"","size":3}`,
		`{"inner":[{"y":1,"kind":""},{"kind":""},{}]}`: `{"name":"none","size":3,"inner":[{"kind":"","y":1},{"kind":""},{"kind":"status"}]}`,
	} {
		var v outer
		var rest Members
		c := strictjson.NewCursor([]byte(text), strictjson.Options{})
		require.Nil(t, ReadRest(c, &v, &rest, nil), text)
		got, err := AppendRest(nil, &v, rest)
		require.NoError(t, err)
		require.Equal(t, want, string(got), text)
		if v.Name == "" {
			v.Name = "new"
			got, err = AppendRest(nil, &v, rest)
			require.NoError(t, err)
			require.Contains(t, string(got), `"name":"new"`)
		}
	}
}
