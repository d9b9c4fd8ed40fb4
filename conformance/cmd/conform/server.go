// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"os/exec"
	"slices"
	"strings"
	"time"

	"github.com/fivewire/fivewire/conformance"
	"github.com/fivewire/fivewire/internal/command"
)

const (
	maxWait     = 3 * time.Second // of a case without -slow
	maxSlowWait = 4 * time.Minute
	maxServers  = 8 // that run at once
	maxSlow     = 16
)

// reasons explain why a case does not run against a server.
var reasons = []struct{ word, text string }{
	{"clock", "wait too long, or for moments that a real clock cannot distinguish (-slow runs some of them)"},
	{"several processes", "end and start processes that share a store"},
	{"private state", "inspect the server, or change it from within"},
	{"own option", "need a fixture or a connection that is unavailable here"},
}

// protocol returns the one protocol of server and client mode.
func (c *config) protocol() (string, error) {
	protocols := c.protocols.words()
	if len(protocols) != 1 {
		return "", fmt.Errorf("%s mode needs one -protocol", c.mode)
	}
	return protocols[0], nil
}

// server runs the scripts of a server in real time.
func (c *config) server() (*conformance.Report, error) {
	set, err := c.set()
	if err != nil {
		return nil, err
	}
	name, err := c.protocol()
	if err != nil {
		return nil, err
	}
	if c.url != "" && c.sink == "" && name == "air" {
		return nil, errors.New("-url: a server of air asks for documents; name the address where it finds them by -sink")
	}
	o := conformance.LiveOptions{Start: c.startServer, Limit: c.timeout, Fresh: c.fresh, SinkAddress: c.sink, Transport: c.transport}
	if c.url != "" {
		o.Fixture = cmp.Or(c.fixture, conformance.SharedFixture(name))
	}
	protocol, end, err := conformance.LiveServer(name, o)
	if err != nil {
		return nil, err
	}
	defer end()
	limit := c.waitLimit()
	skipped := make(map[string][]string)
	selected := set.Filter(func(k *conformance.Case) bool {
		why := k.NotLive(limit, o)
		if why != "" {
			skipped[why] = append(skipped[why], k.ID)
		}
		return why == ""
	})
	parallel := maxServers
	if c.slow { // most of them wait
		parallel = maxSlow
	}
	if c.url != "" {
		parallel = 1
	}
	if err := c.ready(cmp.Or(o.Fixture, conformance.SharedFixture(name))); err != nil {
		return nil, err
	}
	report, err := c.run(set, selected, []conformance.Protocol{protocol}, parallel)
	if err != nil {
		return nil, err
	}
	report.Subject, report.Mode = c.url, "server"
	if c.url == "" {
		report.Subject = strings.Join(c.command, " ")
	}
	report.Notes = append(report.Notes, notRun(skipped)...)
	return report, nil
}

// ready returns an error if no case can run: the server does not start, or accepts no connection.
func (c *config) ready(fixture string) error {
	s, err := c.startServer(fixture, "http://127.0.0.1:1")
	if err != nil {
		return err
	}
	defer s.End()
	if s.Conn != nil {
		return nil
	}
	u, err := url.Parse(s.URL)
	if err != nil {
		return fmt.Errorf("the URL of the server: %w", err)
	}
	if u.Hostname() == "" || !slices.Contains([]string{"http", "https", "tcp"}, u.Scheme) {
		return fmt.Errorf("the URL of the server: want one such as http://localhost:8080, got %q", u.Redacted())
	}
	port := u.Port()
	if port == "" {
		port = map[string]string{"https": "443"}[u.Scheme]
	}
	conn, err := net.DialTimeout("tcp", net.JoinHostPort(u.Hostname(), cmp.Or(port, "80")), c.timeout)
	if err != nil {
		return fmt.Errorf("no server at %s: %w", u.Redacted(), err)
	}
	return conn.Close()
}

// waitLimit is the longest time that a case may wait.
func (c *config) waitLimit() time.Duration {
	if c.slow {
		return maxSlowWait
	}
	return maxWait
}

// notRun describes the cases that did not run, by reason.
func notRun(skipped map[string][]string) []string {
	var notes []string
	for _, r := range reasons {
		if ids := skipped[r.word]; len(ids) > 0 {
			slices.Sort(ids)
			notes = append(notes, fmt.Sprintf("%d cases did not run: %s, they %s: %s", len(ids), r.word, r.text, strings.Join(ids, " ")))
		}
	}
	return notes
}

// startServer returns the server of -url, or starts the command for one case.
func (c *config) startServer(fixture, sink string) (*conformance.Started, error) {
	if c.url != "" {
		return &conformance.Started{URL: c.url, End: func() {}}, nil
	}
	stderr := &tail{}
	cmd := exec.Command(c.command[0], c.command[1:]...)
	cmd.Env = append(cmd.Environ(), "CONFORM_FIXTURE="+fixture, "CONFORM_SINK="+sink, "CONFORM_TRANSPORT="+c.transport)
	cmd.Stderr = stderr
	cmd.WaitDelay = exitTime
	command.OwnGroup(cmd)
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	var in io.WriteCloser
	if c.transport == "stdio" {
		if in, err = cmd.StdinPipe(); err != nil {
			return nil, err
		}
	}
	remove, err := c.running.groups.Start(cmd, cmd.Start)
	if err != nil {
		return nil, fmt.Errorf("the server cannot be started: %w", err)
	}
	end := func() {
		command.KillGroup(cmd)
		_ = cmd.Wait()
		remove()
	}
	if in != nil {
		return &conformance.Started{Conn: stdio{out, in}, End: end}, nil
	}
	first := make(chan []byte, 1)
	go func() {
		line, _ := bufio.NewReaderSize(out, 64<<10).ReadSlice('\n')
		first <- slices.Clone(line)
	}()
	var line []byte
	select {
	case line = <-first:
	case <-time.After(c.timeout):
		end()
		return nil, fmt.Errorf("the server did not print its URL within %v", c.timeout)
	}
	var started struct {
		URL string `json:"url"`
	}
	if err := json.Unmarshal(line, &started); err != nil || started.URL == "" {
		end()
		return nil, fmt.Errorf(`the server wrote %q to its standard output, want {"url":...}; standard error: %s`, clip(line), stderr)
	}
	return &conformance.Started{URL: started.URL, End: end}, nil
}

// A stdio is the connection to a server by its standard input and output.
type stdio struct {
	io.ReadCloser
	in io.WriteCloser
}

func (s stdio) Write(b []byte) (int, error) { return s.in.Write(b) }
func (s stdio) CloseWrite() error           { return s.in.Close() }
func (s stdio) Close() error                { return errors.Join(s.in.Close(), s.ReadCloser.Close()) }
