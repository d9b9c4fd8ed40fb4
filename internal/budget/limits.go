// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package budget

import (
	"cmp"
	"log/slog"
	"math"
	"net/netip"
	"runtime/debug"

	"github.com/fivewire/fivewire/internal/option"
)

// A Resource is something that callers hold. An item in bytes counts its length and 64.
type Resource uint8

const (
	Memory          Resource = iota // bytes in memory
	Storage                         // bytes in a durable store
	Items                           // live objects: tasks, chats, sessions, mailboxes, subscriptions
	Work                            // running handlers
	Waiting                         // handlers that wait in Acquire
	Unauthenticated                 // connections and sessions before authentication
	Requests                        // started requests; counted, not held
	numResources    = iota
)

// String returns the name in errors and log records.
func (r Resource) String() string {
	return [...]string{"memory", "storage", "items", "work", "waiting", "unauthenticated", "requests"}[r]
}

// A Limit bounds the use of one session, of one principal and of all. Zero means the
// default; a negative value removes the bound. Without a bound of a principal, one
// principal may take all that is free.
type Limit struct{ Session, Principal, All int64 }

// Limits are the options of a Budget.
type Limits struct {
	Memory          Limit   // zero means 16 MiB, 64 MiB, the lesser of 256 MiB and GOMEMLIMIT/3
	Storage         Limit   // zero means 256 MiB, 1 GiB, no bound
	Items           Limit   // zero means 1,000, 10,000, 100,000
	Work            Limit   // zero means 64, 256, 1,024
	Waiting         Limit   // zero means 256, 1,024, 8,192
	Unauthenticated Limit   // zero means no bound, 16 for a client address, 256
	RequestRate     float64 // of a principal, per second; zero means no bound
	RequestBurst    int     // zero means the requests of one second, at least one
	Logger          *slog.Logger
}

const none = math.MaxInt64 // no bound

// withDefaults returns the bounds of a session, a principal, all, the anonymous, and
// none.
func (l *Limits) withDefaults() (bounds [5][numResources]int64) {
	l.Logger = cmp.Or(l.Logger, slog.Default())
	if l.RequestBurst <= 0 {
		l.RequestBurst = int(max(1, min(l.RequestRate, math.MaxInt32)))
	}
	memory := max(1, min(256<<20, debug.SetMemoryLimit(-1)/3))
	for r, t := range [numResources][2]Limit{
		Memory:          {l.Memory, {16 << 20, 64 << 20, memory}},
		Storage:         {l.Storage, {256 << 20, 1 << 30, none}},
		Items:           {l.Items, {1_000, 10_000, 100_000}},
		Work:            {l.Work, {64, 256, 1_024}},
		Waiting:         {l.Waiting, {256, 1_024, 8_192}},
		Unauthenticated: {l.Unauthenticated, {none, 16, 256}},
	} {
		bounds[0][r] = option.Or(t[0].Session, t[1].Session, none)
		bounds[1][r] = option.Or(t[0].Principal, t[1].Principal, none)
		bounds[2][r] = option.Or(t[0].All, t[1].All, none)
		bounds[4][r] = none
		switch all := bounds[2][r]; {
		case all == none:
			bounds[3][r] = bounds[1][r]
		case r == int(Unauthenticated):
			bounds[3][r] = all
		default:
			bounds[3][r] = all - all/2
		}
	}
	return bounds
}

const anonymous = "\x00anonymous " // no name has a NUL

// Anonymous returns the principal of an unauthenticated caller at an address, with or
// without a port: the address or, for IPv6, its /64. Other texts share a principal.
func Anonymous(addr string) string {
	if addr == "" {
		return anonymous + "invalid IP"
	}
	ip := netip.Addr{}
	if ap, err := netip.ParseAddrPort(addr); err == nil {
		ip = ap.Addr()
	} else {
		ip, _ = netip.ParseAddr(addr)
	}
	name := append(make([]byte, 0, 64), anonymous...)
	if ip = ip.Unmap().WithZone(""); ip.Is6() {
		return string(netip.PrefixFrom(ip, 64).Masked().AppendTo(name))
	} else if ip.IsValid() {
		return string(ip.AppendTo(name))
	}
	return anonymous + ip.String()
}
