// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"errors"
	"fmt"
	"math"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fivewire/fivewire/internal/budget"
	"github.com/fivewire/fivewire/internal/guard"
	"github.com/fivewire/fivewire/internal/httpx"
)

// Guests bounds the requests of callers without a secret in each minute since the start (AIR-D71). A
// refused caller receives the time until the next minute.
type Guests struct {
	perSender, perAddress int
	start                 time.Time

	mu     sync.Mutex
	minute int64
	counts map[string]int // guarded by mu
}

// maxGuests bounds the counters of one minute. Further ones share one, so invented names gain
// nothing.
const maxGuests = 100_000

// NewGuests returns the counters of a server.
func NewGuests(perSender, perAddress int) *Guests {
	return &Guests{perSender: perSender, perAddress: perAddress, start: time.Now()}
}

// Address counts a request of an address and returns the delay of a refused one.
func (g *Guests) Address(addr string) time.Duration { return g.count("a"+addr, g.perAddress) }

// Sender counts an envelope of an unverified sender, or of an authenticated secret, and returns the
// delay of a refused one.
func (g *Guests) Sender(addr, from string) time.Duration {
	return g.count("s"+addr+"\x00"+from, g.perSender)
}

func (g *Guests) count(key string, limit int) time.Duration {
	if limit == math.MaxInt {
		return 0
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	passed := time.Since(g.start) // under the lock, so that minutes do not go back
	minute := int64(passed / time.Minute)
	if g.counts == nil || minute != g.minute {
		g.counts, g.minute = make(map[string]int), minute
	}
	if _, counted := g.counts[key]; !counted && len(g.counts) >= maxGuests {
		key = key[:1]
	}
	if g.counts[key] >= limit {
		return time.Minute - passed%time.Minute
	}
	g.counts[key]++
	return 0
}

// Address returns the address of a caller without its port, for IPv6 the /64: that of the connection,
// or the result of clientAddr.
func Address(r *http.Request, clientAddr func(*http.Request) string) (string, error) {
	addr := r.RemoteAddr
	if clientAddr != nil {
		err := guard.Call("ClientAddr", func() error {
			addr = clientAddr(r)
			return nil
		})
		if err != nil {
			return "", err
		}
	}
	return budget.Anonymous(addr), nil
}

// A ProxyWarning finds the first request that a proxy has forwarded.
type ProxyWarning struct{ isFound atomic.Bool }

// First reports whether these are the headers of the first forwarded request.
func (p *ProxyWarning) First(h http.Header) bool {
	if h["Forwarded"] == nil && h["X-Forwarded-For"] == nil && h["X-Real-Ip"] == nil {
		return false
	}
	return p.isFound.CompareAndSwap(false, true)
}

// ProxyMessage is the log record of a ProxyWarning.
const ProxyMessage = "air: forwarded request counted for the address of its proxy, ClientAddr is not set"

// UsageLimit returns the limit of a Usage: -1 for no bound.
func UsageLimit(n, none int64) int64 {
	if n == none {
		return -1
	}
	return n
}

// OverBudget returns the text for the peer of a *budget.Error, and the delay before its next attempt:
// a minute for kept data (AIR-D86).
func OverBudget(err error) (message string, delay time.Duration) {
	var b *budget.Error
	if !errors.As(err, &b) {
		return "over budget", time.Minute
	}
	delay = b.RetryAfter
	if b.Resource <= budget.Items {
		delay = time.Minute
	}
	return fmt.Sprintf("over budget: resource %s, scope %s", b.Resource, b.Scope), delay
}

// Allow sets the methods of a path.
func Allow(w http.ResponseWriter, method string) { w.Header().Set("Allow", method+", OPTIONS") }

// Preflight answers OPTIONS for a path with one method, and else sets the CORS headers (AIR-D88). It
// reports whether it has answered.
func Preflight(o *httpx.Origins, w http.ResponseWriter, r *http.Request, method string) bool {
	if r.Method != http.MethodOptions {
		return o.CORS(w, r)
	}
	Allow(w, method)
	if !o.CORS(w, r) {
		w.WriteHeader(http.StatusNoContent)
	}
	return true
}

// Origins returns the web pages that may use a server (AIR-D88).
func Origins(origins, hosts []string) httpx.Origins {
	return httpx.Origins{
		AllowedOrigins: slices.Clone(origins), AllowedHosts: slices.Clone(hosts),
		Methods: "GET, POST, OPTIONS",
		Headers: "Content-Type, X-A2A-Version, X-Agent-Secret, Signature, Signature-Input, Content-Digest",
		Expose:  "Retry-After", MaxAge: 24 * time.Hour,
	}
}
