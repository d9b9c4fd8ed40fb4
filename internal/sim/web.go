// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"io"
	"log"
	"net/http"
	"time"
)

// Serve serves HTTP at an address of the network until the crash of the node. The returned function ends it.
func (v *View) Serve(address string, h http.Handler) (end func(), err error) {
	l, err := v.Listen(address)
	if err != nil {
		return nil, err
	}
	s := &http.Server{Handler: h, ReadHeaderTimeout: 10 * time.Second, ErrorLog: log.New(io.Discard, "", 0)}
	go func() { _ = s.Serve(l) }()
	return func() { _ = s.Close() }, nil
}

// Transport returns a transport over the network of the node. Its requests are doubled and reordered if isDoubled;
// see RoundTripper. The returned function closes its idle connections.
func (v *View) Transport(isDoubled bool) (rt http.RoundTripper, end func()) {
	t := &http.Transport{DialContext: v.Dial, DisableCompression: true, IdleConnTimeout: 20 * time.Second}
	if isDoubled {
		return v.RoundTripper(t), t.CloseIdleConnections
	}
	return t, t.CloseIdleConnections
}
