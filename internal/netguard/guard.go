// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package netguard

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
	"unicode/utf8"
)

// ErrForbidden is what every [Error] matches.
var ErrForbidden = errors.New("netguard: forbidden")

// A Reason names the rule that a host or URL breaks.
type Reason string

const (
	// ReasonHost: a name that stands for this host or its network, or no name.
	ReasonHost Reason = "host"

	// ReasonAddress: an address that is not public.
	ReasonAddress Reason = "address"

	// ReasonURL: text that is not an absolute URL, or a URL with a fragment.
	ReasonURL Reason = "url"

	// ReasonScheme: a scheme other than https and wss, or an unencrypted one to
	// another host.
	ReasonScheme Reason = "scheme"

	// ReasonUserinfo: a user name or password in the URL.
	ReasonUserinfo Reason = "userinfo"

	// ReasonPort: a port outside 1 to 65535.
	ReasonPort Reason = "port"
)

// An Error reports a host, address or URL that a [Guard] refuses. It matches
// [ErrForbidden].
type Error struct {
	Host   string // the name or address; empty if the URL has none
	Reason Reason
}

// Error names the refused host or address. It shows nothing else of a URL, which
// may hold a secret.
func (e *Error) Error() string {
	switch e.Reason {
	case ReasonAddress:
		return fmt.Sprintf("netguard: address %s is not allowed", e.Host)
	case ReasonURL:
		return "netguard: not an absolute URL without a fragment"
	case ReasonScheme, ReasonUserinfo, ReasonPort:
		return fmt.Sprintf("netguard: %s of the URL of host %q is not allowed", e.Reason, e.Host)
	}
	return fmt.Sprintf("netguard: host %q is not allowed", e.Host)
}

// Is reports whether target is [ErrForbidden].
func (e *Error) Is(target error) bool { return target == ErrForbidden }

// A Guard decides which hosts outgoing connections may reach. The zero value,
// and a nil Guard, allow public addresses only. A Guard may be used by several
// goroutines as long as none changes its fields.
type Guard struct {
	// AllowLoopback allows this host as well: the loopback addresses, the unspecified
	// ones, which lead to this host, too, and the names under localhost.
	AllowLoopback bool

	// AllowPrivate allows all other addresses, and names of any kind but those under
	// localhost.
	AllowPrivate bool

	// Lookup resolves names, for tests. Nil means the system's resolver. The
	// network is "ip", "ip4" or "ip6".
	Lookup func(ctx context.Context, network, host string) ([]netip.Addr, error)
}

const (
	dialTimeout   = 10 * time.Second
	headerTimeout = 60 * time.Second
	fallbackDelay = 300 * time.Millisecond // of the next address of a host, as in package net
	pingTimeout   = 15 * time.Second       // of the silence of an HTTP/2 connection, and then of the wait for an answer
)

// Addr returns an [*Error] unless connections to addr are allowed.
func (g *Guard) Addr(addr netip.Addr) error {
	if Public(addr) {
		return nil
	}
	var allowed bool
	switch {
	case g == nil || !addr.IsValid():
	case loopback(addr):
		allowed = g.AllowLoopback
	default:
		allowed = g.AllowPrivate
	}
	if !allowed {
		return &Error{Host: addr.String(), Reason: ReasonAddress}
	}
	return nil
}

// Host returns an [*Error] unless host, the host of a URL without its port, is
// allowed. It resolves nothing: an allowed name may still resolve to a forbidden
// address. Brackets around an IPv6 address and one final dot are ignored.
//
// Names with an empty label never pass: no host has one, but some resolvers take
// 127.0.0.1.. for an address. Names under localhost, local and internal do not
// pass, nor do the other ways of writing an IPv4 address that some resolvers know,
// such as 2130706433, 0x7f.1 or 127.0.0.01.
func (g *Guard) Host(host string) error {
	name, addr := parse(host)
	if addr.IsValid() {
		return g.Addr(addr)
	}
	var allowed bool
	switch {
	case name == "" || name[0] == '.' || name[len(name)-1] == '.' || strings.Contains(name, ".."): // no name
	case under(name, "localhost"):
		allowed = g != nil && g.AllowLoopback
	case under(name, "local"), under(name, "internal"), numeric(name):
		allowed = g != nil && g.AllowPrivate
	default:
		allowed = true
	}
	if !allowed {
		return &Error{Host: host, Reason: ReasonHost}
	}
	return nil
}

// URL parses raw and returns an [*Error] unless [Guard.CheckURL] allows it.
func (g *Guard) URL(raw string, allowInsecure bool) (*url.URL, error) {
	u, err := url.Parse(raw)
	if err != nil || strings.Contains(raw, "#") {
		return nil, &Error{Reason: ReasonURL} // the error of the parser quotes the URL
	}
	if err := g.CheckURL(u, allowInsecure); err != nil {
		return nil, err
	}
	return u, nil
}

// CheckURL returns an [*Error] unless u is an absolute URL that connections may be
// made to: its scheme is https or wss, or else http or ws and the host is this
// host by [Loopback] or allowInsecure is set; it has no user information and no
// fragment; its port is absent or 1 to 65535; [Guard.Host] allows its host.
//
// A host with other than ASCII characters is refused, because clients map some of
// these to other names and addresses.
func (g *Guard) CheckURL(u *url.URL, allowInsecure bool) error {
	host := u.Hostname()
	switch {
	case host == "" || u.Opaque != "" || u.Fragment != "":
		return &Error{Host: host, Reason: ReasonURL}
	case u.User != nil:
		return &Error{Host: host, Reason: ReasonUserinfo}
	case !validPort(u):
		return &Error{Host: host, Reason: ReasonPort}
	case strings.ContainsFunc(host, func(r rune) bool { return r >= utf8.RuneSelf }):
		return &Error{Host: host, Reason: ReasonHost}
	}
	if err := g.Host(host); err != nil {
		return err
	}
	switch u.Scheme {
	case "https", "wss":
		return nil
	case "http", "ws":
		if allowInsecure || Loopback(host) {
			return nil
		}
	}
	return &Error{Host: host, Reason: ReasonScheme}
}

// validPort reports whether the port of u is absent or 1 to 65535.
func validPort(u *url.URL) bool {
	port := u.Port()
	if port == "" {
		return !strings.HasSuffix(u.Host, ":")
	}
	n, err := strconv.ParseUint(port, 10, 16)
	return err == nil && n > 0
}

// Resolve returns the addresses of host, of which there is at least one. If it is
// not allowed itself, or a single one of its addresses is not, it returns an
// [*Error]; if it cannot be resolved, the resolver's error.
func (g *Guard) Resolve(ctx context.Context, host string) ([]netip.Addr, error) {
	if err := g.Host(host); err != nil {
		return nil, err
	}
	addrs, err := g.lookup(ctx, "ip", host)
	if err != nil {
		return nil, err
	}
	for _, a := range addrs {
		if err := g.Addr(a); err != nil {
			return nil, err
		}
	}
	return addrs, nil
}

// Control refuses a connection to an address that is not allowed. It is meant
// for [net.Dialer.ControlContext], where it sees the address that is dialled,
// after all look-ups.
func (g *Guard) Control(_ context.Context, _, address string, _ syscall.RawConn) error {
	ap, err := netip.ParseAddrPort(address)
	if err != nil { // no IP network
		return &Error{Host: address, Reason: ReasonAddress}
	}
	return g.Addr(ap.Addr())
}

// DialContext connects to address, as [net.Dialer.DialContext] does, if both the
// host and the address that it leads to are allowed. It gives up after 10
// seconds.
func (g *Guard) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	if err := g.Host(host); err != nil {
		return nil, err
	}
	d := net.Dialer{Timeout: dialTimeout, ControlContext: g.Control}
	if g == nil || g.Lookup == nil {
		return d.DialContext(ctx, network, address)
	}
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	addrs, err := g.lookup(ctx, "ip"+strings.TrimLeft(network, "tcpud"), host)
	if err != nil {
		return nil, err
	}
	return dialFirst(ctx, d.DialContext, network, addrs, port)
}

// A dialFunc connects to an address, as [net.Dialer.DialContext] does.
type dialFunc = func(ctx context.Context, network, address string) (net.Conn, error)

// wrapDial returns a function that connects by dial, but only if all addresses of
// the host are allowed: dial receives such an address instead of a name. Nil means
// [Guard.DialContext].
func (g *Guard) wrapDial(dial dialFunc) dialFunc {
	if dial == nil {
		return g.DialContext
	}
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		host, port, err := net.SplitHostPort(address)
		if err != nil {
			return nil, err
		}
		addrs, err := g.Resolve(ctx, host)
		if err != nil {
			return nil, err
		}
		return dialFirst(ctx, dial, network, addrs, port)
	}
}

// dialFirst connects to the first address that accepts, of at least one. It begins with the next one when an
// address fails, and after the fallbackDelay.
func dialFirst(ctx context.Context, dial dialFunc, network string, addrs []netip.Addr, port string) (net.Conn, error) {
	type result struct {
		conn net.Conn
		err  error
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	results, returned := make(chan result), make(chan struct{})
	defer close(returned)
	tick := time.NewTicker(fallbackDelay)
	defer tick.Stop()
	waiting := addrs
	begin := func() {
		if len(waiting) == 0 {
			return
		}
		address := net.JoinHostPort(waiting[0].String(), port)
		waiting = waiting[1:]
		tick.Reset(fallbackDelay)
		go func() {
			conn, err := dial(ctx, network, address)
			select {
			case results <- result{conn, err}:
			case <-returned:
				if err == nil {
					_ = conn.Close()
				}
			}
		}()
	}
	begin()
	var first error
	for failed := 0; failed < len(addrs); begin() {
		select {
		case <-tick.C:
		case r := <-results:
			if r.err == nil {
				return r.conn, nil
			}
			first = cmp.Or(first, r.err)
			failed++
		}
	}
	return nil, first
}

// Transport returns a new transport whose connections are allowed by g. It uses
// no proxy, since a proxy would connect in its place, and bounds the time to
// connect and to the response's headers, and the size of these. A lost HTTP/2
// connection ends within 30 seconds. The caller may change the transport before use,
// its dialling excepted.
func (g *Guard) Transport() *http.Transport {
	return &http.Transport{
		DialContext:            g.DialContext,
		ForceAttemptHTTP2:      true,
		MaxIdleConns:           100,
		IdleConnTimeout:        90 * time.Second,
		TLSHandshakeTimeout:    dialTimeout,
		ResponseHeaderTimeout:  headerTimeout,
		ExpectContinueTimeout:  time.Second,
		MaxResponseHeaderBytes: 64 << 10,

		// Without pings, a lost HTTP/2 connection takes further requests until TCP fails, after many minutes.
		HTTP2: &http.HTTP2Config{SendPingTimeout: pingTimeout, PingTimeout: pingTimeout},
	}
}

// ChangedTransport is [Guard.Transport] after change, which may set everything. Its dial functions other than
// DialContext have no effect.
func (g *Guard) ChangedTransport(change func(*http.Transport)) *http.Transport {
	t := g.newTransport()
	t.DialContext = nil
	change(t)
	//lint:ignore SA1019 a transport may have the deprecated fields
	t.Dial, t.DialTLS, t.DialTLSContext = nil, nil, nil
	if !g.isOpen() {
		t.DialContext, t.Proxy = g.wrapProxy(t.DialContext, t.Proxy)
	}
	return t
}

// isOpen reports whether g allows all addresses.
func (g *Guard) isOpen() bool { return g != nil && g.AllowLoopback && g.AllowPrivate }

// newTransport returns the transport of a client without one.
func (g *Guard) newTransport() *http.Transport {
	t := g.Transport()
	if g.isOpen() {
		t.Proxy, t.ResponseHeaderTimeout, t.MaxIdleConnsPerHost = http.ProxyFromEnvironment, 0, t.MaxIdleConns
	}
	return t
}

// Client returns a copy of user, or of an empty client, that follows no redirect and
// connects to allowed addresses only. Without a transport it gets [Guard.Transport].
// An [*http.Transport] is copied, and its DialContext receives allowed addresses
// instead of names; it may connect to every proxy that the transport names. The host of a
// request for a proxy is resolved and checked here, unless this host cannot resolve it; the
// proxy may find another address. A transport of another type, or with a Dial, a DialTLS or
// a DialTLSContext, is kept and not guarded: then the caller checks the host of each
// URL, which proves less.
//
// A Guard that allows all addresses keeps every transport, and its own one uses the
// proxy of the environment and does not bound the time to the headers of a response.
//
// Client reports whether the transport is new, so that the caller closes its idle
// connections.
func (g *Guard) Client(user *http.Client) (c http.Client, isNew bool) {
	if user != nil {
		c = *user
	}
	c.CheckRedirect = NoRedirect
	if c.Transport == nil {
		c.Transport = g.newTransport()
		return c, true
	}
	t, ok := c.Transport.(*http.Transport)
	//lint:ignore SA1019 a transport may have the deprecated fields
	if g.isOpen() || !ok || t.Dial != nil || t.DialTLS != nil || t.DialTLSContext != nil {
		return c, false
	}
	t = t.Clone()
	t.DialContext, t.Proxy = g.wrapProxy(t.DialContext, t.Proxy)
	c.Transport = t
	return c, true
}

// wrapProxy returns wrapDial(dial) that connects to the results of proxy, too, and a proxy that
// gets no request for a host that is not allowed.
func (g *Guard) wrapProxy(dial dialFunc, proxy proxyFunc) (dialFunc, proxyFunc) {
	guarded := g.wrapDial(dial)
	if proxy == nil {
		return guarded, nil
	}
	if dial == nil {
		dial = (&net.Dialer{Timeout: dialTimeout}).DialContext
	}
	var proxies sync.Map // by address
	dialed := func(ctx context.Context, network, address string) (net.Conn, error) {
		if _, ok := proxies.Load(address); ok {
			return dial(ctx, network, address)
		}
		return guarded(ctx, network, address)
	}
	return dialed, func(r *http.Request) (*url.URL, error) {
		u, err := proxy(r)
		if err != nil || u == nil {
			return u, err
		}
		if _, err := g.Resolve(r.Context(), r.URL.Hostname()); errors.Is(err, ErrForbidden) {
			return nil, err
		}
		port := u.Port()
		if port == "" {
			port = map[string]string{"https": "443", "socks5": "1080", "socks5h": "1080"}[u.Scheme]
		}
		proxies.Store(net.JoinHostPort(u.Hostname(), cmp.Or(port, "80")), true)
		return u, nil
	}
}

type proxyFunc = func(*http.Request) (*url.URL, error)

// NoRedirect makes an [http.Client], as its CheckRedirect, return a redirect as
// the response that it is. A redirect is a stranger's choice of the next
// address, and would carry the request's headers there.
func NoRedirect(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }

// CheckOrigins returns an error for an allowed origin that no browser can send, since servers compare exactly.
func CheckOrigins(allowed []string) error {
	for _, text := range allowed {
		u, err := url.Parse(text)
		if text != "*" && text != "null" && (err != nil || u.Host == "" || strings.Contains(text, "*") || text != strings.ToLower(u.Scheme+"://"+u.Host)) {
			return fmt.Errorf("AllowedOrigins: %q is not an origin such as https://app.example", text)
		}
	}
	return nil
}

// Loopback reports whether host, the host of a URL without its port, is by its
// very name this host: localhost, a name under it, or a loopback or unspecified address.
func Loopback(host string) bool {
	name, addr := parse(host)
	if addr.IsValid() {
		return isLocal(addr.Unmap())
	}
	return under(name, "localhost")
}

// RequestHost returns the host of a request to a server, without its port. It is not ok
// if the request arrived on a loopback address and the host is neither localhost nor a
// loopback address: a web page can make any other name resolve to a loopback address.
func RequestHost(r *http.Request) (host string, ok bool) {
	host = r.Host
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	local, ok := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
	if !ok {
		return host, true
	}
	ap, err := netip.ParseAddrPort(local.String())
	if err != nil || !ap.Addr().Unmap().IsLoopback() {
		return host, true
	}
	name, addr := parse(host)
	return host, name == "localhost" || addr.Unmap().IsLoopback()
}

func (g *Guard) lookup(ctx context.Context, network, host string) ([]netip.Addr, error) {
	name, addr := parse(host)
	if addr.IsValid() {
		return []netip.Addr{addr}, nil
	}
	resolve := net.DefaultResolver.LookupNetIP
	if g != nil && g.Lookup != nil {
		resolve = g.Lookup
	}
	addrs, err := resolve(ctx, network, host)
	if err == nil && len(addrs) == 0 {
		err = &net.DNSError{Err: "no addresses", Name: name, IsNotFound: true}
	}
	return addrs, err
}

// parse returns host as an address or else as a name in lower case without its
// final dot.
func parse(host string) (name string, addr netip.Addr) {
	if n := len(host); n > 1 && host[0] == '[' && host[n-1] == ']' {
		host = host[1 : n-1]
	}
	name = strings.ToLower(strings.TrimSuffix(host, "."))
	if name == "" || !strings.Contains(name, ":") && (name[len(name)-1] < '0' || name[len(name)-1] > '9') {
		return name, netip.Addr{} // not an address, and the error of the parser needs no memory
	}
	addr, err := netip.ParseAddr(name)
	if err != nil {
		return name, netip.Addr{}
	}
	return name, addr
}

func under(name, parent string) bool {
	rest, ok := strings.CutSuffix(name, parent)
	return ok && (rest == "" || rest[len(rest)-1] == '.')
}

// numeric reports whether all labels of name are numbers, decimal or with 0x. As
// a name no such host exists; as an address it was refused by the parser.
func numeric(name string) bool {
	for label := range strings.SplitSeq(name, ".") {
		digits := "0123456789"
		if hex, ok := strings.CutPrefix(label, "0x"); ok {
			label, digits = hex, "0123456789abcdef"
		}
		if strings.Trim(label, digits) != "" {
			return false
		}
	}
	return true
}
