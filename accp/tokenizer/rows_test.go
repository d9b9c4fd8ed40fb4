// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package tokenizer_test

import (
	"encoding/csv"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/accp"
	"github.com/fivewire/fivewire/accp/profile"
	"github.com/fivewire/fivewire/accp/tokenizer/cl100k"
	"github.com/fivewire/fivewire/accp/tokenizer/o200k"
)

type invoice struct {
	ID       int    `json:"id"`
	Customer string `json:"customer"`
	Region   string `json:"region"`
	Amount   string `json:"amount" accp:"dec"`
	Due      string `json:"due"`
	Paid     bool   `json:"paid"`
}

// A table of 50 rows and 6 columns costs at most 1.12 times the tokens of the same rows as CSV
// (ACCP-D77).
func TestTablesCostLittleMoreThanCSV(t *testing.T) {
	customers := []string{"Northwind", "Contoso", "Fabrikam", "Initech", "Umbrella", "Globex", "Acme Tools"}
	regions := []string{"emea", "apac", "amer"}
	var rows []invoice
	var text strings.Builder
	w := csv.NewWriter(&text)
	require.NoError(t, w.Write([]string{"amount", "customer", "due", "id", "paid", "region"}))
	for i := range 50 {
		x := invoice{1000 + 7*i, customers[i%len(customers)], regions[i%len(regions)], fmt.Sprintf("%d.%02d", 100+i*37, 11+i), fmt.Sprintf("2026-%02d-%02d", 1+i%12, 1+i%28), i%3 == 0}
		rows = append(rows, x)
		require.NoError(t, w.Write([]string{x.Amount, x.Customer, x.Due, fmt.Sprint(x.ID), fmt.Sprint(x.Paid), x.Region}))
	}
	w.Flush()
	r := accp.NewRegistry()
	require.NoError(t, r.Register(profile.TableSchema()))
	table, err := profile.TableOf(rows)
	require.NoError(t, err)
	frame, err := (&accp.Codec{Registry: r}).Append(nil, &accp.Message{From: "sales", Intent: accp.IntentDone, Op: "invoices", Params: table})
	require.NoError(t, err)
	for _, c := range []accp.TokenCounter{o200k.Counter{}, cl100k.Counter{}} {
		got, base := c.Count(string(frame)), c.Count(text.String())
		t.Logf("%T: frame %d, CSV %d, ratio %.3f", c, got, base, float64(got)/float64(base))
		require.LessOrEqual(t, float64(got), 1.12*float64(base))
	}
}
