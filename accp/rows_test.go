// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package accp_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/accp"
	"github.com/fivewire/fivewire/accp/profile"
)

type order struct {
	ID    int     `json:"id"`
	Name  string  `json:"name"`
	Price string  `json:"price" accp:"dec"`
	Note  *string `json:"note"`
}

// Tables travel from a server to a client that has learned their schema from the greeting, and become the
// structs that they were (ACCP-D77).
func TestTablesBecomeStructs(t *testing.T) {
	note := "late"
	orders := []order{{1, "bolt", "2.5", nil}, {2, "nut", "0.25", &note}}
	r := accp.NewRegistry()
	require.NoError(t, r.Register(profile.TableSchema()))
	d := newDesk(t, &accp.ServerOptions{Session: accp.SessionOptions{Registry: r}})
	d.Handle("req", "orders", accp.HandlerFunc(func(_ context.Context, w *accp.ReplyWriter, _ *accp.Message) error {
		table, err := profile.TableOf(orders)
		if err != nil {
			return err
		}
		return w.SendResult(table)
	}))
	for name, c := range map[string]caller{"http": d.http(t, nil), "websocket": d.dial(t, nil)} {
		answer, err := c.Call(t.Context(), msg("req", "orders"), nil)
		require.NoError(t, err, name)
		require.Equal(t, "TB", answer.Schema())
		back, err := profile.RowsOf[order](answer.Params)
		require.NoError(t, err, name)
		require.Equal(t, orders, back)
		maps, err := profile.RowsOf[map[string]accp.Value](answer.Params)
		require.NoError(t, err)
		require.Len(t, maps[0], 3, "a null is no member")
	}
}

func TestTableForms(t *testing.T) {
	empty, err := profile.TableOf[order](nil)
	require.NoError(t, err)
	rows, err := profile.RowsOf[accp.Params](empty)
	require.NoError(t, err)
	require.Empty(t, rows)
	same := []accp.Params{{{Key: "b", Value: accp.Int(1)}}, {{Key: "a", Value: accp.Bool(true)}}, {}}
	table, err := profile.TableOf(same)
	require.NoError(t, err)
	rows, err = profile.RowsOf[accp.Params](table)
	require.NoError(t, err)
	require.Equal(t, same, rows)
	_, err = profile.TableOf([]int{1})
	require.ErrorIs(t, err, accp.ErrInvalidType)

	one := accp.Array(accp.String("a"))
	for name, bad := range map[string]accp.Params{
		"no rows":         {{Key: "columns", Value: one}},
		"no columns":      {{Key: "rows", Value: accp.Array()}},
		"number":          {{Key: "columns", Value: accp.Array(accp.Int(1))}, {Key: "rows", Value: accp.Array()}},
		"same columns":    {{Key: "columns", Value: accp.Array(accp.String("a"), accp.String("a"))}, {Key: "rows", Value: accp.Array()}},
		"long row":        {{Key: "columns", Value: one}, {Key: "rows", Value: accp.Array(accp.Array(accp.Int(1), accp.Int(2)))}},
		"row of a string": {{Key: "columns", Value: one}, {Key: "rows", Value: one}},
	} {
		_, err := profile.RowsOf[accp.Params](bad)
		require.ErrorIs(t, err, accp.ErrInvalidType, name)
	}
	_, err = profile.RowsOf[order](accp.Params{{Key: "columns", Value: accp.Array(accp.String("id"))},
		{Key: "rows", Value: accp.Array(accp.Array(accp.String("x")))}})
	require.ErrorIs(t, err, accp.ErrInvalidType)
}

func TestRowWithDuplicateKeyIsRefused(t *testing.T) {
	row := accp.Params{{Key: "a", Value: accp.Int(1)}, {Key: "a", Value: accp.Int(2)}}
	_, err := profile.TableOf([]accp.Params{row})
	require.ErrorIs(t, err, accp.ErrParse)
}
