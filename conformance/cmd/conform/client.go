// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"

	"github.com/fivewire/fivewire/conformance"
)

// maxClients is the number of cases that run at once in client mode.
const maxClients = 8

// client runs the scripts of a client, against servers of this process.
func (c *config) client() (*conformance.Report, error) {
	set, err := c.set()
	if err != nil {
		return nil, err
	}
	name, err := c.protocol()
	if err != nil {
		return nil, err
	}
	t := &clients{protocol: name}
	protocol, err := conformance.LiveClient(name, c.transport, c.timeout, t.open)
	if err != nil {
		return nil, err
	}
	limit := c.waitLimit()
	if t.testee, err = c.startTestee(); err != nil {
		return nil, err
	}
	defer t.close()
	t.limit += limit // an action may wait
	skipped := make(map[string][]string)
	selected := set.Filter(func(k *conformance.Case) bool {
		why := k.NotLiveClient(limit)
		if why != "" && why != "other side" {
			skipped[why] = append(skipped[why], k.ID)
		}
		return why == ""
	})
	report, err := c.run(set, selected, []conformance.Protocol{protocol}, maxClients)
	if err != nil {
		return nil, err
	}
	report.Subject, report.Mode = strings.TrimSpace(t.Name+" "+t.Version), "client"
	report.Notes = append(report.Notes, notRun(skipped)...)
	return report, nil
}

// clients are the clients of a testee, one for each script.
type clients struct {
	*testee
	protocol string
	opened   atomic.Int64
}

// open returns a client that carries out the actions of a script.
func (t *clients) open(ct conformance.T, url string, settings json.RawMessage, event func(json.RawMessage)) (conformance.Client, error) {
	a := &actor{clients: t, t: ct, url: url, settings: settings, session: fmt.Sprintf("%s/%d", ct.Name(), t.opened.Add(1))}
	t.events.Store(a.session, func(text json.RawMessage) {
		ct.Logf("event    %s", text)
		event(text)
	})
	return a, nil
}

// An actor is one client of a testee.
type actor struct {
	*clients
	t            conformance.T
	url, session string
	settings     json.RawMessage
	actions      atomic.Int64
}

// Do sends an action to the testee.
func (a *actor) Do(action json.RawMessage) (json.RawMessage, error) {
	m := message{ID: fmt.Sprintf("%s/%d", a.session, a.actions.Add(1)), Session: a.session, Protocol: a.protocol,
		URL: a.url, Client: a.settings, Do: []json.RawMessage{action}}
	x := exchange{testee: a.testee, protocol: a.protocol}
	r, text, err := x.send(a.t, m)
	if err != nil {
		return nil, err
	}
	if r["outcomes"] == nil {
		if _, err := x.answer(r, text); err != nil {
			return nil, err
		}
	}
	var outcomes []json.RawMessage
	if err := json.Unmarshal(r["outcomes"], &outcomes); err != nil || len(outcomes) != 1 {
		return nil, errors.New("the reply has not one outcome for one action: " + clip(text))
	}
	return outcomes[0], nil
}

// Close tells the testee that the script has ended.
func (a *actor) Close() {
	a.events.Delete(a.session)
	if p, err := a.process(); err == nil && a.actions.Load() > 0 {
		_ = p.write(message{ID: a.session, End: true}.line())
	}
}
