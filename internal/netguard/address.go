// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package netguard

import "net/netip"

// Public reports whether addr is a globally reachable unicast address by the
// special-purpose address registries of IANA, read strictly: a block that is
// mostly special counts as special, and only the IPv6 blocks that are allocated
// for global unicast count as public. Of an IPv4-mapped address and of one under the
// well-known translation prefix 64:ff9b::/96 the embedded IPv4 address decides.
// An address with a zone is never public, nor is the zero Addr.
func Public(addr netip.Addr) bool {
	if !addr.IsValid() || addr.Zone() != "" {
		return false
	}
	addr = embedded(addr)
	if addr.Is6() && !global6.Contains(addr) {
		return false
	}
	for _, p := range special {
		if p.Contains(addr) {
			return false
		}
	}
	return true
}

// loopback reports whether a connection to addr ends on this host. That is also
// so for the unspecified address, which systems take for the loopback address.
func loopback(addr netip.Addr) bool {
	return isLocal(embedded(addr))
}

func isLocal(addr netip.Addr) bool {
	return addr.IsLoopback() || addr.IsUnspecified() || addr.Is4() && addr.As4()[0] == 0
}

// embedded returns the IPv4 address that a router or the system would make of
// addr, or addr itself, without its zone: where an address leads does not depend
// on that, and [netip] takes no address with a zone for the unspecified one or for
// a part of a prefix.
func embedded(addr netip.Addr) netip.Addr {
	addr = addr.WithZone("")
	if translated.Contains(addr) {
		b := addr.As16()
		return netip.AddrFrom4([4]byte(b[12:]))
	}
	return addr.Unmap()
}

var (
	global6    = netip.MustParsePrefix("2000::/3")
	translated = netip.MustParsePrefix("64:ff9b::/96")
)

// special holds the special blocks of IPv4 and, within 2000::/3, of IPv6. The
// others of IPv6 (the unspecified and loopback addresses, IPv4-compatible ones,
// 64:ff9b:1::/48, 100::/64, 100:0:0:1::/64, 5f00::/16, fc00::/7, fe80::/10,
// fec0::/10, ff00::/8) lie outside of it.
var special = [...]netip.Prefix{
	netip.MustParsePrefix("0.0.0.0/8"),       // this network
	netip.MustParsePrefix("10.0.0.0/8"),      // private
	netip.MustParsePrefix("100.64.0.0/10"),   // shared by carriers
	netip.MustParsePrefix("127.0.0.0/8"),     // loopback
	netip.MustParsePrefix("169.254.0.0/16"),  // link-local, metadata services
	netip.MustParsePrefix("172.16.0.0/12"),   // private
	netip.MustParsePrefix("192.0.0.0/24"),    // IETF assignments
	netip.MustParsePrefix("192.0.2.0/24"),    // documentation
	netip.MustParsePrefix("192.88.99.0/24"),  // 6to4 relay
	netip.MustParsePrefix("192.168.0.0/16"),  // private
	netip.MustParsePrefix("198.18.0.0/15"),   // benchmarks
	netip.MustParsePrefix("198.51.100.0/24"), // documentation
	netip.MustParsePrefix("203.0.113.0/24"),  // documentation
	netip.MustParsePrefix("224.0.0.0/3"),     // multicast, reserved, broadcast
	netip.MustParsePrefix("2001::/23"),       // IETF assignments, Teredo, ORCHID
	netip.MustParsePrefix("2001:db8::/32"),   // documentation
	netip.MustParsePrefix("2002::/16"),       // 6to4
	netip.MustParsePrefix("3fff::/20"),       // documentation
}
