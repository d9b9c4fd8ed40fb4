// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package o200k_test

import (
	"fmt"

	"github.com/fivewire/fivewire/accp"
	"github.com/fivewire/fivewire/accp/tokenizer/o200k"
)

func ExampleCounter() {
	frame := "@planner>req:schedule{pri:high|task:impl_auth_module|when:sprint_14|who:dev_team}[mid:49679033e07c,seq:3,ts:1714000000]"
	budget, err := accp.MeasureFrame([]byte(frame), o200k.Counter{})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(budget.Header, budget.Body, budget.Metadata, budget.Soft)
	// Output: 4 24 20 [metadata]
}
