// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// An option of AIR is one of the words that its operation lists, or absent; any
// other word would be a case that shows something else than it says.
func TestAIRWords(t *testing.T) {
	const (
		seed     = `"seedHex":"0000000000000000000000000000000000000000000000000000000000000000"`
		self     = `"now":"2026-05-01T00:00:00Z","self":{"did":"did:wba:agentidentityregistry.org:agents:AIR-S1EN-D3RA-GNT0",` + seed + `}`
		inbox    = `"fixture":{` + self + `%s},"steps":[]`
		poll     = `"fixture":{` + self + `,"endpoint":"https://relay.example/inbox/a"%s},"steps":[]`
		send     = `"fixture":{"now":"2026-05-01T00:00:00Z"%s},"steps":[]`
		profiles = "spec interop deployed"
	)
	for _, tt := range []struct{ op, in, at, member, words string }{
		{"sign", `"envelope":"{}",` + seed + `%s`, "in", "form", "spec deployed"},
		{"verify", `"envelope":"{}","publicKey":"z"%s`, "in", "accept", "spec deployed both"},
		{"validate", `"envelope":"{}"%s`, "in", "profile", profiles},
		{"compose", `"from":"","to":"","id":"","timestamp":"","threadId":"","nonce":"","body":"{}",` + seed + `%s`, "in", "profile", profiles},
		{"air_id", `"text":""%s`, "in", "profile", profiles},
		{"did", `"text":""%s`, "in", "profile", profiles},
		{"discover", `"document":"{}","did":""%s`, "in", "dialect", "spec deployed auto"},
		{"inbox_script", inbox, "in.fixture", "profile", profiles},
		{"inbox_script", `"fixture":{` + self + `},"steps":[{"deliver":"{}"%s}]`, "in.steps[0]", "via", "push pull"},
		{"send_script", send, "in.fixture", "profile", "spec deployed"},
		{"poll_script", poll, "in.fixture", "profile", profiles},
		{"poll_script", poll, "in.fixture", "dialect", "spec deployed auto"},
	} {
		t.Run(tt.op+" "+tt.member, func(t *testing.T) {
			message := func(option string) string {
				want := `{}`
				if strings.HasSuffix(tt.op, "_script") {
					want = `{"steps":[]}`
					if strings.Contains(tt.in, "deliver") {
						want = `{"steps":[{}]}`
					}
				}
				text := fmt.Sprintf(`{"id":"air-words-001","doc":"d","ref":"AIR-001","op":%q,"in":{%s},"want":%s}`, tt.op, fmt.Sprintf(tt.in, option), want)
				s := Load(folder(map[string]string{"air/words.json": `{"format":1,"protocol":"air","suite":"words","spec":"AIR","cases":[` + text + `]}`}), "mine")
				require.Empty(t, s.Errors())
				var res Result
				executor{protocols: map[string]Protocol{"air": AIR()}}.execute(t, s.Cases()[0], &res)
				return res.Message
			}
			fault := tt.at + "." + tt.member + ": unknown"
			for _, word := range strings.Fields(tt.words) {
				require.NotContains(t, message(fmt.Sprintf(`,%q:%q`, tt.member, word)), tt.at+"."+tt.member)
			}
			require.NotContains(t, message(""), tt.at+"."+tt.member)
			require.Equal(t, fault+": Spec", message(fmt.Sprintf(`,%q:"Spec"`, tt.member)))
		})
	}
}
