// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
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
	t := &actor{protocol: name}
	protocol, err := conformance.LiveClient(name, t.do)
	if err != nil {
		return nil, err
	}
	if t.testee, err = startTestee(c.command, c.timeout); err != nil {
		return nil, err
	}
	defer t.close()
	defer c.closeOnSignal(t.child)()
	var skipped []string
	selected := set.Filter(func(k *conformance.Case) bool {
		why := k.NotLiveClient()
		if why == "own option" {
			skipped = append(skipped, k.ID)
		}
		return why == ""
	})
	report, err := c.run(set, selected, []conformance.Protocol{protocol}, maxClients)
	if err != nil {
		return nil, err
	}
	report.Subject, report.Mode = strings.TrimSpace(t.Name+" "+t.Version), "client"
	if len(skipped) > 0 {
		slices.Sort(skipped)
		report.Notes = append(report.Notes, fmt.Sprintf("%d cases did not run: own option, they need a port that is closed at first: %s",
			len(skipped), strings.Join(skipped, " ")))
	}
	return report, nil
}

// An actor is a testee that carries out actions.
type actor struct {
	*testee
	protocol string
	actions  atomic.Int64
}

func (t *actor) do(ct conformance.T, url string, settings, action json.RawMessage) (json.RawMessage, error) {
	m := message{ID: fmt.Sprintf("%s/%d", ct.Name(), t.actions.Add(1)), Protocol: t.protocol, URL: url, Client: settings, Do: []json.RawMessage{action}}
	x := exchange{testee: t.testee, protocol: t.protocol}
	r, text, err := x.send(ct, m)
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
