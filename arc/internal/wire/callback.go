// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"errors"
	"net/netip"
	"net/url"
	"strconv"
	"strings"

	"github.com/fivewire/fivewire/internal/netguard"
)

// A CallbackPolicy selects the URLs that webhooks may be sent to (ARC-D45).
type CallbackPolicy struct {
	AllowInsecure bool // plain http too
	AllowPrivate  bool // local names, and addresses that are not public
}

// A CallbackFault is why a [CallbackPolicy] refuses a URL.
type CallbackFault string

// The faults, in the order in which they are looked for.
const (
	CallbackSyntax   CallbackFault = "syntax"   // not an absolute URL in plain ASCII
	CallbackScheme   CallbackFault = "scheme"   // neither https nor, where allowed, http
	CallbackUserinfo CallbackFault = "userinfo" // a user name or password
	CallbackFragment CallbackFault = "fragment" // a fragment
	CallbackPort     CallbackFault = "port"     // of a system service
	CallbackHost     CallbackFault = "host"     // a local name, a malformed address, or an unknown name
	CallbackAddress  CallbackFault = "address"  // an address that is not public
)

// Error names the fault.
func (f CallbackFault) Error() string { return "arc: callback URL refused: " + string(f) }

// Validate returns nil or a [CallbackFault]. The addresses are those that the host's
// name resolves to, where they are known; the address that is really dialled has
// to be checked again.
func (p CallbackPolicy) Validate(rawURL string, addresses ...netip.Addr) error {
	if len(rawURL) > MaxCallbackURL || strings.ContainsFunc(rawURL, func(r rune) bool { return r <= ' ' || r >= 0x7f || r == '\\' }) {
		return CallbackSyntax
	}
	u, err := url.Parse(rawURL)
	if err != nil || u.Scheme == "" || u.Hostname() == "" {
		return CallbackSyntax
	}
	host, bracketed := u.Hostname(), strings.Contains(u.Host, "[")
	addr, addrErr := netip.ParseAddr(host)
	if bracketed && (addrErr != nil || addr.Is4()) || !bracketed && strings.ContainsAny(host, "%:") {
		return CallbackSyntax
	}
	if port := u.Port(); port != "" {
		if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
			return CallbackSyntax
		}
	}
	switch {
	case u.Scheme != "https" && !(p.AllowInsecure && u.Scheme == "http"):
		return CallbackScheme
	case u.User != nil:
		return CallbackUserinfo
	case strings.Contains(rawURL, "#"):
		return CallbackFragment
	case !p.AllowPrivate && isSystemPort(u):
		return CallbackPort
	}
	// One more look is due where the connection is made; see [netguard.Guard].
	g := p.Guard()
	if err := g.Host(u.Hostname()); err != nil {
		return FaultOf(err)
	}
	for _, a := range addresses {
		if err := g.Addr(a); err != nil {
			return FaultOf(err)
		}
	}
	return nil
}

// isSystemPort reports whether a valid URL has a port of system services other than the web.
func isSystemPort(u *url.URL) bool {
	port, err := strconv.Atoi(u.Port())
	return err == nil && port < 1024 && port != 443 && (port != 80 || u.Scheme != "http")
}

// Guard returns the guard of the connections.
func (p CallbackPolicy) Guard() *netguard.Guard {
	return &netguard.Guard{AllowLoopback: p.AllowPrivate, AllowPrivate: p.AllowPrivate}
}

// FaultOf returns the fault of an error of package netguard.
func FaultOf(err error) CallbackFault {
	var e *netguard.Error
	if errors.As(err, &e) && e.Reason == netguard.ReasonHost {
		return CallbackHost
	}
	return CallbackAddress
}
