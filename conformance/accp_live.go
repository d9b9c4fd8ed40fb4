// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"context"
	"net/http"
	"strconv"
	"time"

	"github.com/coder/websocket"

	"github.com/fivewire/fivewire/internal/strictjson"
)

func accpLiveProtocol() liveProtocol {
	return liveProtocol{
		open:    map[string]func(T, *Input, *liveServer) (Step, error){"http-script": accpOpenLiveHTTP, "ws-script": accpOpenLiveSocket},
		fixture: func(string, strictjson.Value) string { return "desk" },
		notLive: func(_, _ strictjson.Value) string { return "" },
		serve: func(string, string) (http.Handler, func() error, error) {
			s, err := newACCPDesk()
			if err != nil {
				return nil, nil, err
			}
			return s, func() error { return s.Shutdown(context.Background()) }, nil
		},
	}
}

// accpRealTimes returns the function that moves the times of frames from the clock of the
// scripts to the real one.
func accpRealTimes() func([]byte) []byte {
	ahead := time.Now().Unix() - accpStart.Unix()
	return func(text []byte) []byte {
		return clockValue.ReplaceAllFunc(text, func(b []byte) []byte {
			ts, _ := strconv.ParseInt(string(b[len("ts:"):]), 10, 64) // ten digits
			return strconv.AppendInt([]byte("ts:"), ts+ahead, 10)
		})
	}
}

func accpOpenLiveHTTP(_ T, _ *Input, s *liveServer) (Step, error) {
	s.rewrite = accpRealTimes()
	return accpPost(s), s.start(nil)
}

func accpOpenLiveSocket(t T, _ *Input, s *liveServer) (Step, error) {
	if err := s.start(nil); err != nil {
		return nil, err
	}
	d := &accpSocket{
		rewrite: accpRealTimes(),
		wait:    func() { time.Sleep(quiet) },
		dial:    func() (*websocket.Conn, error) { return accpDial(s.base, s.client.Transport) },
	}
	t.Cleanup(d.close)
	return d.step, d.open()
}
