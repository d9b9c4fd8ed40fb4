// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestARCClientStepWithoutRequestHasNoSent runs calls whose peer receives
// zero, one or two requests.
func TestARCClientStepWithoutRequestHasNoSent(t *testing.T) {
	const (
		dial  = `{"fail":"dial"}`
		reset = `{"fail":"reset"}`
		ok    = `{"status":200,"contentType":"application/arc+json","body":` +
			`"{\"arc\":\"1.0\",\"id\":${ID},\"responseAgent\":\"a-01\",\"targetAgent\":\"ui-01\",\"result\":{}}"}`
		lost = `"outcome":"network_error","attempts":3`
		json = `"outcome":"ok","json":{},"attempts":1`
	)
	for _, tt := range []struct{ name, replies, want, difference string }{
		{name: "not named", replies: dial + "," + dial + "," + dial, want: lost},
		{name: "no request", replies: dial + "," + dial + "," + dial, want: lost + `,"sent":{}`,
			difference: "want.steps[0].sent: want {}, got (absent)"},
		{name: "cut request", replies: reset + "," + dial + "," + dial, want: lost + `,"sent":{"url":"https://arc.test/arc"}`},
		{name: "request", replies: ok, want: json + `,"sent":{"url":"https://arc.test/arc"}`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			method := "task.info"
			if tt.name == "request" {
				method = "debug.echo"
			}
			res := runOne(t, ARC(), "client_script", fmt.Sprintf(`"in":{"client":{"requestAgent":"ui-01"},"steps":[{"call":`+
				`{"method":%q,"target":"a-01","params":"{\"taskId\":\"t\"}"},"replies":[%s]}]},"want":{"steps":[{%s}]}`,
				method, tt.replies, tt.want))
			require.Equal(t, tt.difference, res.Message)
		})
	}
}
