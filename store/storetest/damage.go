// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package storetest

import (
	"strings"

	"github.com/fivewire/fivewire/store"
)

var damageTests = []test{
	{"Value", testDamageValue},
}

// testDamageValue: a changed value is an error of Open or of each call that reads it.
func testDamageValue(e *env) {
	if e.Damage == nil {
		e.Skip("damage is not tested")
	}
	value := strings.Repeat("a value that occurs nowhere else ", 4)
	e.create("damaged", value, 0)
	e.append("s", "id", value, 0)
	s, err := e.Damage(e.T, e.s, []byte(value))
	if err != nil {
		e.is("Open of damaged data", err, store.ErrCorrupt)
		return
	}
	_, err = s.Get(e.ctx, "damaged")
	e.is("Get of a damaged entry", err, store.ErrCorrupt)
	_, err = s.Read(e.ctx, "s", 0, 0)
	e.is("Read of a damaged record", err, store.ErrCorrupt)
	for _, err := range s.List(e.ctx, "") {
		e.is("List of a damaged entry", err, store.ErrCorrupt)
	}
}
