// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package signature

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// The example of the Standard Webhooks specification.
func TestStandardWebhooksExample(t *testing.T) {
	const s = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
	body := []byte(`{"test": 2432232314}`)
	h := http.Header{headerStandardID: {"msg_p5jXN8AQM9LWM0D4loKWxJek"}, headerStandardTime: {"1614265330"},
		headerStandardSignature: {"v0,AAAA v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="}}
	at := time.Unix(1614265330, 0)
	require.True(t, VerifyStandard(h, []string{"old", s}, at, time.Minute, body))
	require.False(t, VerifyStandard(h, []string{s}, at.Add(2*time.Minute), time.Minute, body), "stale")
	require.False(t, VerifyStandard(h, []string{s}, at, time.Minute, append(body, ' ')))
	require.False(t, VerifyStandard(h, []string{""}, at, time.Minute, body))
	h.Set(headerStandardSignature, strings.Repeat("v1,AAAA ", 1000))
	require.False(t, VerifyStandard(h, []string{s}, at, time.Minute, body))
	h.Del(headerStandardTime)
	require.False(t, VerifyStandard(h, []string{s}, at, time.Minute, body))
}
