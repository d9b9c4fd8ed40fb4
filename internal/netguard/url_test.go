// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package netguard

import (
	"net/netip"
	"net/url"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

var urlTests = []struct {
	raw      string
	insecure bool
	guard    *Guard
	reason   Reason // "" if allowed
}{
	{"https://example.com/p?q=1", false, strict, ""},
	{"HTTPS://EXAMPLE.com.:8443/", false, strict, ""},
	{"wss://example.com", false, strict, ""},
	{"https://[2606:4700:4700::1111]:443/", false, strict, ""},
	{"http://example.com", true, strict, ""},
	{"ws://example.com", true, strict, ""},
	{"http://127.0.0.1:80/", false, loop, ""},
	{"ws://localhost:1/", false, loop, ""},
	{"http://0.0.0.0", false, loop, ""},
	{"ws://[::1]:65535/", false, loop, ""},
	{"https://10.0.0.1/", false, priv, ""},
	{"https://xn--bcher-kva.example/", false, strict, ""},

	{"http://example.com", false, both, ReasonScheme},
	{"ws://example.com", false, both, ReasonScheme}, // as http
	{"http://10.0.0.1", false, both, ReasonScheme},
	{"http://localhost.example", false, both, ReasonScheme},
	{"ftp://example.com", true, both, ReasonScheme},
	{"file://localhost/etc/passwd", true, both, ReasonScheme},
	{"//example.com", true, both, ReasonScheme},

	{"https://user@example.com", false, both, ReasonUserinfo},
	{"https://user:secret@example.com", true, both, ReasonUserinfo},
	{"https://@example.com", false, both, ReasonUserinfo},

	{"https://example.com:", false, both, ReasonPort},
	{"https://example.com:0", false, both, ReasonPort},
	{"https://example.com:65536", false, both, ReasonPort},
	{"https://example.com:99999999999999999999", false, both, ReasonPort},

	{"", true, both, ReasonURL},
	{"/path", true, both, ReasonURL},
	{"https:example.com", true, both, ReasonURL},
	{"https:///path", true, both, ReasonURL},
	{"https://:443/", true, both, ReasonURL},
	{"https://example.com/#fragment", true, both, ReasonURL},
	{"https://example.com/#", true, both, ReasonURL},
	{"https://user:se#cret@example.com", true, both, ReasonURL},
	{"https://example.com:http/", true, both, ReasonURL},
	{"https://example.com\\@other.example", true, both, ReasonURL},
	{"https://exa mple.com", true, both, ReasonURL},
	{"https://example.com/\n", true, both, ReasonURL},

	{"https://localhost", false, strict, ReasonHost},
	{"https://metadata.google.internal", false, strict, ReasonHost},
	{"https://0x7f.1", false, strict, ReasonHost},
	{"http://ｌｏｃａｌｈｏｓｔ", true, both, ReasonHost},
	{"https://127。0。0。1", true, both, ReasonHost},
	{"https://example.com..", true, both, ReasonHost},
	{"https://127.0.0.1", false, strict, ReasonAddress},
	{"https://169.254.169.254", false, strict, ReasonAddress},
	{"https://[::ffff:10.0.0.1]", false, strict, ReasonAddress},
	{"https://[fe80::1%25eth0]", false, strict, ReasonAddress},
}

func TestURLRefusals(t *testing.T) {
	for _, tt := range urlTests {
		t.Run(tt.raw, func(t *testing.T) {
			u, err := tt.guard.URL(tt.raw, tt.insecure)
			if tt.reason == "" {
				require.NoError(t, err)
				require.NotEmpty(t, u.Hostname())
				return
			}
			var e *Error
			require.ErrorAs(t, err, &e)
			require.Equal(t, tt.reason, e.Reason, "%v", err)
			require.ErrorIs(t, err, ErrForbidden)
			require.NotContains(t, err.Error(), "cret", "the error shows the password")
			require.Nil(t, u)
		})
	}
}

func FuzzURL(f *testing.F) {
	for _, s := range []string{"https://example.com", "ws://localhost:80/", "http://a:b@c", "https://１.0.0.1"} {
		f.Add(s, false)
	}
	f.Fuzz(func(t *testing.T, raw string, insecure bool) {
		u, err := strict.URL(raw, insecure)
		if err != nil {
			require.ErrorIs(t, err, ErrForbidden)
			return
		}
		require.NoError(t, both.CheckURL(u, insecure), "a guard that allows more refuses %q", raw)
		require.NoError(t, strict.Host(u.Hostname()))
		require.Nil(t, u.User)
		if !insecure {
			require.True(t, u.Scheme == "https" || u.Scheme == "wss", "%q", raw)
		}
		reparsed, err := url.Parse(u.String())
		require.NoError(t, err)
		require.Equal(t, u.Host, reparsed.Host)
		if addr, err := netip.ParseAddr(strings.TrimSuffix(u.Hostname(), ".")); err == nil {
			require.True(t, Public(addr), "%q", raw)
		}
	})
}
