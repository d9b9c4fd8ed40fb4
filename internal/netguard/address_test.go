// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package netguard

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// blocks is the list of reserved ranges, with the newer registry entries and the
// IPv4-compatible addresses.
var blocks = []string{
	"0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12", "192.0.0.0/24",
	"192.0.2.0/24", "192.88.99.0/24", "192.168.0.0/16", "198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24",
	"224.0.0.0/3",
	"::/96", "64:ff9b:1::/48", "100::/64", "100:0:0:1::/64", "2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20",
	"5f00::/16", "fc00::/7", "fe80::/10", "fec0::/10", "ff00::/8",
}

func listed(addr netip.Addr) bool {
	for _, b := range blocks {
		if netip.MustParsePrefix(b).Contains(addr) {
			return true
		}
	}
	return false
}

// last returns the last address of p.
func last(p netip.Prefix) netip.Addr {
	b := p.Addr().AsSlice()
	for i := p.Bits(); i < len(b)*8; i++ {
		b[i/8] |= 0x80 >> (i % 8)
	}
	addr, _ := netip.AddrFromSlice(b)
	return addr
}

func TestPublicAtTheEdges(t *testing.T) {
	for _, b := range blocks {
		p := netip.MustParsePrefix(b)
		for _, addr := range []netip.Addr{p.Addr(), p.Addr().Next(), last(p).Prev(), last(p)} {
			require.False(t, Public(addr), "%s in %s", addr, b)
			if addr.Is4() {
				require.False(t, Public(netip.AddrFrom16(addr.As16())), "%s mapped", addr)
				require.False(t, Public(translate(addr)), "%s translated", addr)
			}
		}
		for _, addr := range []netip.Addr{p.Addr().Prev(), last(p).Next()} {
			if addr.Is4() || global6.Contains(addr) {
				require.Equal(t, !listed(addr), Public(addr), "%s beside %s", addr, b)
			}
		}
	}
}

func translate(addr netip.Addr) netip.Addr {
	b := translated.Addr().As16()
	v4 := addr.As4()
	copy(b[12:], v4[:])
	return netip.AddrFrom16(b)
}

func TestPublic(t *testing.T) {
	tests := []struct {
		addr string
		want bool
	}{
		{"93.184.216.34", true},
		{"8.8.8.8", true},
		{"1.1.1.1", true},
		{"192.31.196.1", true}, // special, yet globally reachable by the registry
		{"11.0.0.0", true},
		{"2606:4700:4700::1111", true},
		{"2a00:1450:4001:81b::200e", true},
		{"2620:4f:8000::1", true},
		{"2001:200::1", true},
		{"::ffff:8.8.8.8", true},
		{"64:ff9b::8.8.8.8", true},
		{"64:ff9b::10.0.0.1", false},
		{"64:ff9b::169.254.169.254", false},
		{"64:ff9b:0:0:1::8.8.8.8", false}, // not under the /96
		{"::ffff:127.0.0.1", false},
		{"::ffff:169.254.169.254", false},
		{"::ffff:0:8.8.8.8", false}, // SIIT, not mapped
		{"::8.8.8.8", false},
		{"::", false},
		{"::1", false},
		{"0.0.0.0", false},
		{"127.0.0.1", false},
		{"127.255.255.254", false},
		{"169.254.169.254", false},
		{"100.100.100.200", false},
		{"192.0.0.192", false},
		{"255.255.255.255", false},
		{"fd00:ec2::254", false},
		{"fe80::1", false},
		{"fe80::1%eth0", false},
		{"2606:4700:4700::1111%eth0", false},
		{"::ffff:8.8.8.8%eth0", false},
		{"4000::1", false}, // not allocated
		{"1fff:ffff:ffff:ffff:ffff:ffff:ffff:ffff", false},
	}
	for _, tt := range tests {
		require.Equal(t, tt.want, Public(netip.MustParseAddr(tt.addr)), tt.addr)
	}
	require.False(t, Public(netip.Addr{}))
}

func TestPublicAgreesWithList(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		v4 := netip.AddrFrom4([4]byte(rapid.SliceOfN(rapid.Byte(), 4, 4).Draw(t, "IPv4")))
		require.Equal(t, !listed(v4), Public(v4), v4)
		require.Equal(t, Public(v4), Public(netip.AddrFrom16(v4.As16())), v4)
		require.Equal(t, Public(v4), Public(translate(v4)), v4)

		b := [16]byte(rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(t, "IPv6"))
		v6 := netip.AddrFrom16(b)
		if listed(v6) {
			require.False(t, Public(v6), v6)
		}
		b[0] = 0x20 | b[0]&0x1f
		v6 = netip.AddrFrom16(b)
		require.Equal(t, !listed(v6), Public(v6), v6)
	})
}

func FuzzPublic(f *testing.F) {
	for _, s := range []string{"10.0.0.1", "8.8.8.8", "::1", "::ffff:10.0.0.1", "64:ff9b::a00:1", "2001:db8::1", "fe80::1%a"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		addr, err := netip.ParseAddr(s)
		if err != nil || !Public(addr) {
			return
		}
		require.Empty(t, addr.Zone())
		require.False(t, listed(addr) || addr.IsPrivate() || addr.IsLoopback() || addr.IsMulticast() || addr.IsLinkLocalUnicast() || addr.IsUnspecified())
		require.True(t, addr.IsGlobalUnicast())
		require.False(t, loopback(addr))
	})
}
