// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package altar

import (
	"context"
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"
)

const typedManifest = `{"contracts":[{"name":"pay","parameters":[
	{"name":"cents","type":"integer","required":true},{"name":"memo","type":"string"},
	{"name":"to","type":"object","required":true,"properties":[{"name":"account","type":"string","required":true}]},
	{"name":"extra","type":"object"}]},
	{"name":"one"},{"name":"many","streaming":true}]}`

// A typed tool is held against the contract of the manifest when it is added.
func TestTypedToolsFitTheManifest(t *testing.T) {
	m, err := DecodeManifest([]byte(typedManifest))
	require.NoError(t, err)
	type to struct {
		Account string `json:"account"`
	}
	type right struct {
		Cents int64           `json:"cents"`
		Memo  *string         `json:"memo"`
		To    to              `json:"to"`
		Extra json.RawMessage `json:"extra,omitempty"`
	}
	type wrong struct {
		Cents string   `json:"cents"`
		Memo  string   `json:"memo"`
		To    struct { // without the account
			Name *string `json:"name"`
		} `json:"to"`
		Extra *to    `json:"extra"`
		More  *int64 `json:"more"`
	}
	add := func(f func(r *Runtime)) (text string) {
		r := must(NewRuntime("r", &RuntimeOptions{Manifest: m}))
		defer func() { text, _ = recover().(string) }()
		f(r)
		return ""
	}
	require.Empty(t, add(func(r *Runtime) {
		AddTool(r, "pay", func(context.Context, right) (string, error) { return "", nil })
		r.Handle("one", HandlerFunc(func(context.Context, *ToolCall) (any, error) { return nil, nil }))
		r.HandleStream("many", StreamHandlerFunc(func(context.Context, *ToolCall, *ChunkWriter) error { return nil }))
	}))
	text := add(func(r *Runtime) { AddTool(r, "pay", func(context.Context, wrong) (string, error) { return "", nil }) })
	for _, want := range []string{
		`contract "pay" of the manifest`, "/cents: the contract has integer, the field string", "/memo: optional in the contract",
		"/to/account: no field", "/to/name: no parameter of the contract", "/extra: a free-form object", "/more: no parameter of the contract",
	} {
		require.Contains(t, text, want)
	}
	require.Contains(t, add(func(r *Runtime) { AddTool(r, "other", func(context.Context, right) (string, error) { return "", nil }) }), `no contract "other"`)
	require.Contains(t, add(func(r *Runtime) {
		AddStreamTool(r, "one", func(context.Context, struct{}, *ChunkWriter) error { return nil })
	}), "not streaming")
	_, err = NewRuntime("r", &RuntimeOptions{Manifest: &Manifest{Contracts: []*Contract{{Name: "a"}, {Name: "a"}}}})
	require.ErrorIs(t, err, reasonDuplicateName)
}

// With a manifest every tool checks its parameters, the typed ones by the contract and not by their struct.
func TestManifestChecksParameters(t *testing.T) {
	m, err := DecodeManifest([]byte(`{"contracts":[{"name":"n","parameters":[{"name":"n","type":"integer","required":true}]},{"name":"typed","parameters":[{"name":"n","type":"integer","required":true}]}]}`))
	require.NoError(t, err)
	r := must(NewRuntime("r", &RuntimeOptions{Manifest: m}))
	r.Handle("n", HandlerFunc(func(context.Context, *ToolCall) (any, error) { return nil, nil }))
	AddTool(r, "typed", func(context.Context, struct {
		N *int64 `json:"n"`
	}) (int, error) {
		return 0, nil
	})
	for _, name := range []string{"n", "typed"} {
		_, err := r.names[name].check.Append(nil, []byte(`{}`))
		require.ErrorIs(t, err, reasonMissingRequired, name)
	}
}

// Without a manifest a field without a name in a json tag is an error that names it.
func TestFieldsNeedTags(t *testing.T) {
	type in struct {
		Cents int64
	}
	_, err := ContractOf[in]("pay")
	require.ErrorContains(t, err, "altar.in.Cents: no name in a json tag")
	require.PanicsWithValue(t, err.Error(), func() {
		AddTool(must(NewRuntime("r", nil)), "pay", func(context.Context, in) (string, error) { return "", nil })
	})
}

// The options of a typed call are those of the call.
func TestTypedCallOptions(t *testing.T) {
	s := start(t, pipeTransport, nil, testRuntime("r1", nil))
	sess, err := s.c.CreateSession(t.Context(), nil)
	require.NoError(t, err)
	opts := &CallOptions{InvocationID: "call-1"}
	sum, err := CallAs[int64](t.Context(), sess, "math/add", addIn{1, 2}, opts)
	require.NoError(t, err)
	require.EqualValues(t, 3, sum)
	_, err = CallAs[int64](t.Context(), sess, "math/add", addIn{2, 2}, opts)
	require.ErrorIs(t, err, reasonInvocationIDReused)
	for _, err := range StreamAs[int64](t.Context(), sess, "count", countIn{1}, opts) {
		require.ErrorIs(t, err, reasonInvocationIDReused)
	}
}
