// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"bytes"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/coder/websocket"

	"github.com/fivewire/fivewire/internal/strictjson"
)

func accpLiveProtocol() liveProtocol {
	return liveProtocol{
		open:    map[string]func(T, *Input, *liveServer) (Step, error){"http-script": accpOpenLiveHTTP, "ws-script": accpOpenLiveSocket},
		fixture: func(string, strictjson.Value) string { return "desk" },
		notLive: func(_, _ strictjson.Value) string { return "" },
		shared:  "desk",
		needsOwn: func(step strictjson.Value) bool { // its runs are counted
			return bytes.Contains(step, []byte("execute")) || bytes.Contains(step, []byte("req:transaction"))
		},
	}
}

// An accpTranslation is between the texts of a script and those of a run: ids that the other side
// chooses stand for those of the script in the order in which they appear, times are real, and each run
// has its own sessions.
type accpTranslation struct {
	ahead  int64         // of the real clock, in seconds
	suffix string        // of session ids
	nextID func() string // of the script

	mu  sync.Mutex
	ids []string // pairs of an id of the other side and the id of the script; guarded by mu
}

func newACCPTranslation(prefix, suffix string) *accpTranslation {
	return &accpTranslation{ahead: time.Now().Unix() - accpStart.Unix(), suffix: suffix, nextID: accpIDs(prefix)}
}

var (
	accpIDText      = regexp.MustCompile(`\bmid:([^,\]\[]+)`)
	accpSessionText = regexp.MustCompile(`\bsid:[0-9A-Za-z_-]+`)
	accpTimeText    = regexp.MustCompile(`(\bts"?:)(\d{10})\b`)
)

// toRun translates a text of the script.
func (x *accpTranslation) toRun(text []byte) []byte {
	x.mu.Lock()
	defer x.mu.Unlock()
	back := make([]string, 0, len(x.ids))
	for i := 0; i < len(x.ids); i += 2 {
		back = append(back, x.ids[i+1], x.ids[i])
	}
	out := accpSessionText.ReplaceAll([]byte(strings.NewReplacer(back...).Replace(string(text))), []byte("${0}"+x.suffix))
	return moveACCPTimes(out, x.ahead)
}

// learn remembers the ids of frames that the other side sent.
func (x *accpTranslation) learn(frames []byte) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, m := range accpIDText.FindAllSubmatch(frames, -1) {
		isNew := true
		for i := 0; i < len(x.ids); i += 2 {
			isNew = isNew && x.ids[i] != string(m[1])
		}
		if isNew {
			x.ids = append(x.ids, string(m[1]), x.nextID())
		}
	}
}

// toScript translates a text of the other side.
func (x *accpTranslation) toScript(text []byte) []byte {
	x.mu.Lock()
	defer x.mu.Unlock()
	out := strings.NewReplacer(x.ids...).Replace(string(text))
	if x.suffix != "" {
		out = strings.ReplaceAll(out, x.suffix, "")
	}
	return moveACCPTimes([]byte(out), -x.ahead)
}

// received is learn and toScript.
func (x *accpTranslation) received(frames []byte) []byte {
	x.learn(frames)
	return x.toScript(frames)
}

// moveACCPTimes adds seconds to the times of a text.
func moveACCPTimes(text []byte, seconds int64) []byte {
	return accpTimeText.ReplaceAllFunc(text, func(b []byte) []byte {
		m := accpTimeText.FindSubmatch(b)
		ts, _ := strconv.ParseInt(string(m[2]), 10, 64) // ten digits
		return strconv.AppendInt(m[1], ts+seconds, 10)
	})
}

// newServerTranslation returns the translation of one run against a server.
func newServerTranslation() *accpTranslation {
	return newACCPTranslation("5e", "u"+strconv.FormatInt(time.Now().UnixNano(), 36))
}

func accpOpenLiveHTTP(_ T, _ *Input, s *liveServer) (Step, error) {
	x := newServerTranslation()
	s.rewrite = x.toRun
	return accpPost(rewriteAnswers(s, x.received)), s.start(nil)
}

func accpOpenLiveSocket(t T, _ *Input, s *liveServer) (Step, error) {
	if err := s.start(nil); err != nil {
		return nil, err
	}
	x := newServerTranslation()
	d := &accpSocket{
		rewrite: x.toRun, restore: x.received,
		wait: func() { time.Sleep(quiet) },
		dial: func() (*websocket.Conn, error) { return accpDial(s.base, s.client.Transport) },
	}
	t.Cleanup(d.close)
	return d.step, d.open()
}
