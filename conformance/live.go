// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"fmt"
	"net/http"
	"time"
)

// A Starter starts a server under test with a fixture, and returns its URL. It is
// ended by the Cleanup of t. Deliveries of the server to https://HOST/PATH have to go
// to sink/HOST/PATH.
type Starter func(t T, fixture, sink string) (url string, err error)

// LiveServer returns the scripts of a protocol for a server that runs in real time, in
// another process. Each case has its own server. A request fails after the time limit.
func LiveServer(protocol string, limit time.Duration, start Starter) (Protocol, error) {
	open := map[string]func(T, *Input, time.Duration, Starter) (Step, error){"arc": arcOpenLive}[protocol]
	op := map[string]string{"arc": "serve_script"}[protocol]
	if open == nil {
		return Protocol{}, fmt.Errorf("conformance: the servers of %s cannot be tested", protocol)
	}
	script := Script{Settle: 2 * time.Second, Live: func(t T, in *Input) (Step, error) { return open(t, in, limit, start) }}
	return Protocol{Name: protocol, Ops: map[string]Op{op: script.Run}}, nil
}

// NewFixture returns a server of this module with a fixture, and the function that ends
// it. Deliveries to https://HOST/PATH go to sink/HOST/PATH.
func NewFixture(protocol, fixture, sink string) (http.Handler, func() error, error) {
	if protocol != "arc" {
		return nil, nil, fmt.Errorf("conformance: there are no fixtures of %s", protocol)
	}
	return newARCFixture(fixture, sink)
}

// NotLive returns why a case cannot run against a server in real time: "clock",
// "several processes", "own option" or "other side", or the empty string if it can. A case
// that waits longer than limit needs another clock. With a fixture, the only server has it,
// and its webhooks cannot be seen.
func (c *Case) NotLive(limit time.Duration, fixture string) string {
	if c.Protocol != "arc" || c.Op != "serve_script" {
		return "other side"
	}
	own, _ := c.in.Get("fixture").Text()
	switch {
	case own == "pair":
		return "several processes"
	case fixture != "" && own != fixture:
		return "own option"
	}
	waits := false
	for e := c.in.Get("steps").Elements(); e.Next(); {
		switch {
		case e.Value.Get("stop") != nil || e.Value.Get("start") != nil:
			return "several processes"
		case fixture != "" && (e.Value.Get("sink") != nil || e.Value.Get("deliveries") != nil):
			return "own option"
		}
		at, _ := e.Value.Get("at").Int()
		waits = waits || time.Duration(at)*time.Millisecond > limit
	}
	if waits {
		return "clock"
	}
	return ""
}
