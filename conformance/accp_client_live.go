// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/fivewire/fivewire/accp"
	"github.com/fivewire/fivewire/internal/strictjson"
)

func accpClientProtocol() clientProtocol {
	return clientProtocol{
		open: map[string]func(*Input, *clientSession) (Step, error){"client-script": accpOpenLiveClient},
		notLive: func(_, step strictjson.Value) string {
			for a := step.Get("answers").Elements(); a.Next(); {
				if a.Value.Get("unreachable") != nil {
					return "own option" // a port that is closed and then open
				}
			}
			return ""
		},
		own: openOwnACCPClient,
	}
}

// accpLivePeer is the other side of a client under test. The texts of the script have its
// ids and times, and those of the client have other ones.
type accpLivePeer struct {
	*clientSession
	ahead  int64         // of the real clock, in seconds
	nextID func() string // of the script

	mu sync.Mutex
	accpPeer
	ids []string // pairs of an id of the client and the id of the script
}

func accpOpenLiveClient(in *Input, s *clientSession) (Step, error) {
	text := []byte("{")
	for _, name := range []string{"schemas", "hello"} {
		if v := in.value.Get(name); v != nil {
			in.read[name] = true
			if len(text) > 1 {
				text = append(text, ',')
			}
			text = append(append(strictjson.AppendString(text, name), ':'), v...)
		}
	}
	s.settings = append(text, '}')
	p := &accpLivePeer{clientSession: s, ahead: time.Now().Unix() - accpStart.Unix(), nextID: accpIDs("c1")}
	if err := s.serve(p); err != nil {
		return nil, err
	}
	s.url += accp.FramesPath
	return p.step, nil
}

func (p *accpLivePeer) step(in *Input) (Answer, error) {
	p.mu.Lock()
	p.accpPeer = accpPeer{posts: []string{}}
	for _, a := range in.Objects("answers") {
		p.answers = append(p.answers, readACCPAnswer(a))
	}
	p.mu.Unlock()
	action := map[string]json.RawMessage{}
	for _, name := range in.Names() {
		if name != "answers" && name != "at" {
			action[name] = in.Raw(name)
		}
	}
	if err := in.Err(); err != nil {
		return nil, err
	}
	text, err := json.Marshal(action)
	if err != nil {
		return nil, err
	}
	outcome, err := p.do(text)
	if err != nil {
		return nil, err
	}
	if _, err := clientMembers("outcome", outcome, "message", "version", "error"); err != nil {
		return nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return Answer{"frames": p.posts, "json": json.RawMessage(p.move(p.scripted(string(outcome)), -p.ahead))}, mismatch(p.end())
}

var (
	accpIDText   = regexp.MustCompile(`\bmid:([^,\]\[]+)`)
	accpTimeText = regexp.MustCompile(`(\bts"?:)(\d{10})\b`)
)

// move adds seconds to the times of a text.
func (p *accpLivePeer) move(text string, seconds int64) string {
	return accpTimeText.ReplaceAllStringFunc(text, func(s string) string {
		m := accpTimeText.FindStringSubmatch(s)
		ts, _ := strconv.ParseInt(m[2], 10, 64) // ten digits
		return m[1] + strconv.FormatInt(ts+seconds, 10)
	})
}

// scripted returns a text of the client with the ids of the script.
func (p *accpLivePeer) scripted(text string) string {
	return strings.NewReplacer(p.ids...).Replace(text)
}

// learn remembers the ids of a post in the order in which they appear.
func (p *accpLivePeer) learn(text string) {
	for _, m := range accpIDText.FindAllStringSubmatch(text, -1) {
		isNew := true
		for i := 0; i < len(p.ids); i += 2 {
			isNew = isNew && p.ids[i] != m[1]
		}
		if isNew {
			p.ids = append(p.ids, m[1], p.nextID())
		}
	}
}

// ServeHTTP answers a post of the client.
func (p *accpLivePeer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(io.LimitReader(r.Body, 16<<20))
	if err != nil {
		return
	}
	p.t.Logf("received %s %s", r.Method, body)
	p.mu.Lock()
	p.learn(string(body))
	a, err := p.next([]byte(p.scripted(string(body))))
	if err == nil && (r.Method != http.MethodPost || r.URL.Path != accp.FramesPath) {
		p.fault = fmt.Errorf("the request is %s %s", r.Method, r.URL.Path)
	}
	back := make([]string, 0, len(p.ids))
	for i := 0; i < len(p.ids); i += 2 {
		back = append(back, p.ids[i+1], p.ids[i])
	}
	p.mu.Unlock()
	if err != nil || a.lost {
		resetConnection(w)
		return
	}
	if a.body != "" {
		w.Header().Set("Content-Type", accp.MediaType)
	}
	text := p.move(strings.NewReplacer(back...).Replace(a.body), p.ahead)
	p.t.Logf("sent     %d %s", a.status, text)
	w.WriteHeader(a.status)
	_, _ = io.WriteString(w, text)
}

// An accpOwnClient is a client of package accp.
type accpOwnClient struct {
	*accp.Client
	transport *http.Transport
}

func openOwnACCPClient(_ T, url string, settings json.RawMessage, _ func(json.RawMessage)) (Client, error) {
	all, err := fixtureInput("client", string(settings))
	if err != nil {
		return nil, err
	}
	transport := &http.Transport{}
	c, err := newACCPClient(all.Object("client"), url, &http.Client{Transport: transport}, func(*accp.SessionOptions) {})
	return &accpOwnClient{c, transport}, err
}

// Do makes a call or a sync.
func (c *accpOwnClient) Do(action json.RawMessage) (json.RawMessage, error) {
	all, err := fixtureInput("step", string(action))
	if err != nil {
		return nil, err
	}
	a, err := accpAct(all.Object("step"), c.Client)
	if err != nil {
		return nil, err
	}
	return clientOutcome(a)
}

// Close ends the client.
func (c *accpOwnClient) Close() {
	_ = c.Client.Close()
	c.transport.CloseIdleConnections()
}
