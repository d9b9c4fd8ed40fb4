// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/fivewire/fivewire/air"
	"github.com/fivewire/fivewire/arc"
)

const (
	clients = 6
	pause   = 20 * time.Millisecond // between two pieces of work of one client
)

// A tally counts requests and their results.
type tally struct {
	what           string
	sent, answered int
	twice          int
	slowest        time.Duration
}

func (t tally) String() string {
	return fmt.Sprintf("%-5s sent %d, answered %d, lost %d, twice %d, slowest %v",
		t.what, t.sent, t.answered, t.sent-t.answered, t.twice, t.slowest.Round(time.Millisecond))
}

// traffic runs clients for a time and returns their counts when all started work has finished.
func traffic(ctx context.Context, url string, last time.Duration) ([]tally, error) {
	ctx, cancel := context.WithTimeout(ctx, last+15*time.Second)
	defer cancel()
	begin, stop := context.WithTimeout(ctx, last)
	defer stop()
	hc := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64}}
	defer hc.CloseIdleConnections()
	var tasks, mail tally
	var faults [2]error
	var wg sync.WaitGroup
	wg.Go(func() { tasks, faults[0] = haveTasksDone(ctx, begin, url, hc) })
	wg.Go(func() { mail, faults[1] = sendMail(ctx, begin, url, hc) })
	wg.Wait()
	return []tally{tasks, mail}, errors.Join(faults[:]...)
}

// haveTasksDone runs clients that create tasks and wait for the results.
func haveTasksDone(ctx, begin context.Context, url string, hc *http.Client) (tally, error) {
	t := tally{what: "tasks"}
	c, err := arc.NewClient(url+"/arc", "crowd-01", &arc.ClientOptions{
		HTTPClient: hc,
		Retry:      &arc.RetryPolicy{MaxAttempts: 10},
		Idempotent: true, // the server knows a request that comes again
	})
	if err != nil {
		return t, err
	}
	defer func() { _ = c.Close() }()
	var mu sync.Mutex
	var faults []error
	var wg sync.WaitGroup
	ids := map[string]bool{}
	for i := range clients {
		wg.Go(func() {
			for n := 0; begin.Err() == nil; n++ {
				began := time.Now()
				id, err := oneTask(ctx, c, fmt.Sprintf("hello %d from %d", n, i))
				mu.Lock()
				t.sent++
				if err != nil {
					faults = append(faults, err)
				} else {
					t.answered++
				}
				if id != "" && ids[id] {
					t.twice++
				}
				ids[id] = true
				t.slowest = max(t.slowest, time.Since(began))
				mu.Unlock()
				time.Sleep(pause)
			}
		})
	}
	wg.Wait()
	return t, errors.Join(faults...)
}

func oneTask(ctx context.Context, c *arc.Client, text string) (id string, err error) {
	const agent = "shout-01"
	task, err := c.CreateTask(ctx, agent, &arc.CreateTaskParams{InitialMessage: arc.UserText(text)}, nil)
	if err != nil {
		return "", err
	}
	outcome, err := c.WaitTask(ctx, agent, task.ID, &arc.WaitOptions{MaxFailures: 20, MinPollInterval: 50 * time.Millisecond, MaxPollInterval: time.Second})
	if err != nil {
		return task.ID, fmt.Errorf("task %s: %w", task.ID, err)
	}
	for _, a := range outcome.Task.Artifacts {
		if got, err := a.Parts[0].Bytes(); err == nil && string(got) == strings.ToUpper(text) {
			return task.ID, nil
		}
	}
	return task.ID, fmt.Errorf("task %s has no answer", task.ID)
}

// A letter is an envelope in transit.
type letter struct {
	sent  time.Time
	acked bool // by the relay, after it was pulled
}

// A mailbox is one recipient, whom one sender writes to.
type mailbox struct {
	url string
	hc  *http.Client

	mu      sync.Mutex
	letters map[string]*letter // accepted by the relay; guarded by mu
	tally   tally              // guarded by mu
}

// sendMail has senders push envelopes and recipients pull and acknowledge them.
func sendMail(ctx, begin context.Context, url string, hc *http.Client) (tally, error) {
	var wg sync.WaitGroup
	boxes, faults := make([]*mailbox, clients), make([]error, 2*clients)
	for i := range boxes {
		airID := fmt.Sprintf("AIR-B0B0-0000-%04d", i)
		b := &mailbox{url: url + "/inbox/" + airID, hc: hc, letters: map[string]*letter{}}
		boxes[i] = b
		pushed := make(chan struct{})
		wg.Go(func() {
			defer close(pushed)
			faults[i] = b.push(ctx, begin, fmt.Sprintf("AIR-A11C-0000-%04d", i), airID)
		})
		wg.Go(func() { faults[clients+i] = b.fetch(ctx, pushed) })
	}
	wg.Wait()
	sum := tally{what: "mail"}
	for _, b := range boxes {
		sum.sent += b.tally.sent
		sum.answered += b.tally.answered
		sum.twice += b.tally.twice
		sum.slowest = max(sum.slowest, b.tally.slowest)
	}
	return sum, errors.Join(faults...)
}

func (b *mailbox) push(ctx, begin context.Context, from, to string) error {
	const method = "did:wba:agentidentityregistry.org:agents:"
	me, err := air.GenerateIdentity(method + from)
	if err != nil {
		return err
	}
	thread := air.NewID()
	for n := 0; begin.Err() == nil; n++ {
		e, err := air.NewEnvelope(&air.Draft{
			From: me.DID(), To: method + to, Time: time.Now(), ID: air.NewID(), ThreadID: thread,
			Body: &air.Offer{Description: fmt.Sprint("letter ", n), Price: air.MinorUnits(1, "USD"), Expires: time.Now().Add(time.Hour)},
		}, me.Signer(), nil)
		if err != nil {
			return err
		}
		b.mu.Lock()
		b.tally.sent++
		b.letters[e.ID] = &letter{sent: time.Now()}
		b.mu.Unlock()
		// An envelope may be pushed again until the relay says that it has it.
		if _, err := b.ask(ctx, http.MethodPost, "", e.Bytes()); err != nil {
			return err
		}
		time.Sleep(pause)
	}
	return nil
}

// fetch pulls and acknowledges until over is closed and nothing is left.
func (b *mailbox) fetch(ctx context.Context, pushed <-chan struct{}) error {
	for {
		last := false
		select {
		case <-pushed:
			last = true
		default:
		}
		body, err := b.ask(ctx, http.MethodGet, "/pull", nil)
		if err != nil {
			return err
		}
		var page struct {
			Envelopes []struct {
				ID string `json:"id"`
			} `json:"envelopes"`
		}
		if err := json.Unmarshal(body, &page); err != nil { // our own relay
			return err
		}
		if len(page.Envelopes) == 0 {
			if last {
				return nil
			}
			time.Sleep(pause)
			continue
		}
		var ids []string
		b.mu.Lock()
		for _, e := range page.Envelopes {
			if l := b.letters[e.ID]; l != nil && l.acked {
				b.tally.twice++
			}
			ids = append(ids, e.ID)
		}
		b.mu.Unlock()
		ack, err := json.Marshal(map[string][]string{"envelope_ids": ids})
		if err != nil {
			return err
		}
		if _, err := b.ask(ctx, http.MethodPost, "/ack", ack); err != nil {
			return err
		}
		b.mu.Lock()
		for _, id := range ids {
			if l := b.letters[id]; l != nil && !l.acked {
				l.acked = true
				b.tally.answered++
				b.tally.slowest = max(b.tally.slowest, time.Since(l.sent))
			}
		}
		b.mu.Unlock()
	}
}

// ask sends a request, again and again if it gets no answer.
func (b *mailbox) ask(ctx context.Context, method, path string, body []byte) ([]byte, error) {
	for {
		answer, status, err := b.once(ctx, method, path, body)
		switch {
		case err == nil && status < 300:
			return answer, nil
		case err == nil && status < 500 && status != http.StatusTooManyRequests:
			return nil, fmt.Errorf("%s %s%s: %d %s", method, b.url, path, status, answer)
		case ctx.Err() != nil:
			return nil, ctx.Err()
		}
		time.Sleep(pause)
	}
}

func (b *mailbox) once(ctx context.Context, method, path string, body []byte) (answer []byte, status int, err error) {
	req, err := http.NewRequestWithContext(ctx, method, b.url+path, bytes.NewReader(body))
	if err != nil {
		return nil, 0, err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("X-A2A-Version", "v1")
	res, err := b.hc.Do(req)
	if err != nil {
		return nil, 0, err
	}
	answer, err = io.ReadAll(io.LimitReader(res.Body, 4<<20))
	return answer, res.StatusCode, errors.Join(err, res.Body.Close())
}
