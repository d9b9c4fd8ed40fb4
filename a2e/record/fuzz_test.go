// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package record_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/a2e/record"
)

// A recording with any message has a vector, which is JSON with as many answers as steps, or is refused.
func FuzzVector(f *testing.F) {
	for _, line := range []string{`{"type":"ping","id":"p1"}`, `{"type":"handshake/req","agent_caps":["limits"],"limits":{"max_depth":1}}`,
		`{"type":"tool/call/req","id":"6690c3cb9ddc41fb8ea915ee0f61b676"}`, `{"type":"error","req_id":"6690c3cb9ddc41fb8ea915ee0f61b676"}`,
		`{"type":"shutdown"}`, `{"type":"tool/event","req_id":"c1","seq":0}`, `{`, `[]`} {
		f.Add(line, line)
	}
	f.Fuzz(func(t *testing.T, one, two string) {
		for _, role := range []string{record.RoleHost, record.RoleAgent} {
			r := &record.Recording{Role: role, Lines: []record.Line{{Text: one, Sent: role == record.RoleAgent}, {Text: two, Sent: role == record.RoleHost},
				{Text: one, Sent: true, Time: 1e9}}}
			text, err := r.Vector()
			if err != nil {
				require.True(t, strings.HasPrefix(err.Error(), "record: message "), err)
				continue
			}
			var file struct {
				Cases []struct {
					In, Want struct{ Steps []json.RawMessage }
				}
			}
			require.NoError(t, json.Unmarshal(text, &file))
			require.Len(t, file.Cases, 1)
			require.Len(t, file.Cases[0].Want.Steps, len(file.Cases[0].In.Steps))
		}
	})
}
