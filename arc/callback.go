// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package arc

import (
	"errors"
	"net/netip"
	"net/url"
	"strconv"
	"strings"

	"github.com/fivewire/fivewire/internal/netguard"
)

// A CallbackPolicy selects the URLs that webhooks may be sent to (ARC-D45). The
// zero value permits HTTPS to public addresses, so that a subscriber cannot make
// a server connect to its own network.
type CallbackPolicy struct {
	AllowInsecure bool // plain http too
	AllowPrivate  bool // local names, and addresses that are not public
}

// A callbackFault is why a [CallbackPolicy] refuses a URL.
type callbackFault string

// The faults, in the order in which they are looked for.
const (
	callbackSyntax   callbackFault = "syntax"   // not an absolute URL in plain ASCII
	callbackScheme   callbackFault = "scheme"   // neither https nor, where allowed, http
	callbackUserinfo callbackFault = "userinfo" // a user name or password
	callbackFragment callbackFault = "fragment" // a fragment
	callbackPort     callbackFault = "port"     // of a system service
	callbackHost     callbackFault = "host"     // a local name, a malformed address, or an unknown name
	callbackAddress  callbackFault = "address"  // an address that is not public
)

// Error names the fault.
func (f callbackFault) Error() string { return "arc: callback URL refused: " + string(f) }

// validate returns nil or a [callbackFault]. The addresses are those that the host's
// name resolves to, where they are known; the address that is really dialled has
// to be checked again.
func (p CallbackPolicy) validate(rawURL string, addresses ...netip.Addr) error {
	if len(rawURL) > maxCallbackURLLen || strings.ContainsFunc(rawURL, func(r rune) bool { return r <= ' ' || r >= 0x7f || r == '\\' }) {
		return callbackSyntax
	}
	u, err := url.Parse(rawURL)
	if err != nil || u.Scheme == "" || u.Hostname() == "" {
		return callbackSyntax
	}
	host, bracketed := u.Hostname(), strings.Contains(u.Host, "[")
	addr, addrErr := netip.ParseAddr(host)
	if bracketed && (addrErr != nil || addr.Is4()) || !bracketed && strings.ContainsAny(host, "%:") {
		return callbackSyntax
	}
	if port := u.Port(); port != "" {
		if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
			return callbackSyntax
		}
	}
	switch {
	case u.Scheme != "https" && !(p.AllowInsecure && u.Scheme == "http"):
		return callbackScheme
	case u.User != nil:
		return callbackUserinfo
	case strings.Contains(rawURL, "#"):
		return callbackFragment
	case !p.AllowPrivate && isSystemPort(u):
		return callbackPort
	}
	// One more look is due where the connection is made; see [netguard.Guard].
	g := p.guard()
	if err := g.Host(u.Hostname()); err != nil {
		return faultOf(err)
	}
	for _, a := range addresses {
		if err := g.Addr(a); err != nil {
			return faultOf(err)
		}
	}
	return nil
}

// isSystemPort reports whether a valid URL has a port of system services other than the web.
func isSystemPort(u *url.URL) bool {
	port, err := strconv.Atoi(u.Port())
	return err == nil && port < 1024 && port != 443 && (port != 80 || u.Scheme != "http")
}

func (p CallbackPolicy) guard() *netguard.Guard {
	return &netguard.Guard{AllowLoopback: p.AllowPrivate, AllowPrivate: p.AllowPrivate}
}

func faultOf(err error) callbackFault {
	var e *netguard.Error
	if errors.As(err, &e) && e.Reason == netguard.ReasonHost {
		return callbackHost
	}
	return callbackAddress
}
