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

// A CallbackFault is why a [CallbackPolicy] refuses a URL.
type CallbackFault string

// The faults, in the order in which they are looked for.
const (
	callbackSyntax   CallbackFault = "syntax"   // not an absolute URL in plain ASCII
	callbackScheme   CallbackFault = "scheme"   // neither https nor, where allowed, http
	callbackUserinfo CallbackFault = "userinfo" // a user name or password
	callbackFragment CallbackFault = "fragment" // a fragment
	callbackHost     CallbackFault = "host"     // a local name, or a malformed address
	callbackAddress  CallbackFault = "address"  // an address that is not public
)

// Error names the fault.
func (f CallbackFault) Error() string { return "arc: callback URL refused: " + string(f) }

// Validate returns nil or a [CallbackFault]. The addresses are those that the host's
// name resolves to, where they are known; the address that is really dialled has
// to be checked again.
func (p CallbackPolicy) Validate(rawURL string, addresses ...netip.Addr) error {
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

func (p CallbackPolicy) guard() *netguard.Guard {
	return &netguard.Guard{AllowLoopback: p.AllowPrivate, AllowPrivate: p.AllowPrivate}
}

func faultOf(err error) CallbackFault {
	var e *netguard.Error
	if errors.As(err, &e) && e.Reason == netguard.ReasonHost {
		return callbackHost
	}
	return callbackAddress
}
