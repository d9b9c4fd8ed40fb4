// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/fivewire/fivewire/arc"
	"github.com/fivewire/fivewire/arc/discovery"
	"github.com/fivewire/fivewire/arc/internal/endpoint"
	"github.com/fivewire/fivewire/internal/command"
	"github.com/fivewire/fivewire/internal/randid"
	"github.com/fivewire/fivewire/internal/strictjson"
)

// The kinds of findings.
const (
	kindDeviation = "deviation" // the endpoint departs from a decision
	kindOption    = "option"    // the endpoint has a feature that a client has to switch on
)

// A finding is an observation at an endpoint.
type finding struct {
	Kind   string `json:"kind"`
	ID     string `json:"id"` // of the decision
	Text   string `json:"text"`
	Advice string `json:"advice,omitempty"` // the profile or option to set
}

// A report is the result of the verb doctor.
type report struct {
	URL      string    `json:"url"`
	Peer     string    `json:"peer,omitempty"` // the recognized implementation
	Agents   []string  `json:"agents"`
	Requests int       `json:"requests"`
	Findings []finding `json:"findings"`
}

func (r *report) count(kind string) (n int) {
	for _, f := range r.Findings {
		if f.Kind == kind {
			n++
		}
	}
	return n
}

func (r *report) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s: %d deviations, %d options, %d requests", r.URL, r.count(kindDeviation), r.count(kindOption), r.Requests)
	if r.Peer != "" {
		fmt.Fprintf(&b, "\npeer: %s", r.Peer)
	}
	fmt.Fprintf(&b, "\nagents: %s", strings.Join(r.Agents, ", "))
	for _, f := range r.Findings {
		fmt.Fprintf(&b, "\n%s %s: %s", f.Kind, f.ID, f.Text)
		if f.Advice != "" {
			fmt.Fprintf(&b, "\n  %s", f.Advice)
		}
	}
	return b.String()
}

// A doctor sends requests to one endpoint.
type doctor struct {
	report
	http        *http.Client
	target      *url.URL
	self, token string
	agent       string        // receives the requests
	info        arc.AgentInfo // of the agent, if it is known
	prefix      string        // of request ids
}

const (
	maxAnswer   = 1 << 20
	maxDuration = time.Minute
	badToken    = "doctor-invalid-token"
)

func prepareDoctor(fs *flag.FlagSet) func(context.Context, *command.IO, []string) error {
	caller := callerFlags(fs)
	agent := fs.String("agent", "", "also start two chats and two tasks of the agent with this `id`, and end them")
	return func(ctx context.Context, s *command.IO, args []string) error {
		raw, err := command.One(args, "the URL of an endpoint", false)
		if err != nil {
			return err
		}
		token, err := command.Secret(caller.tokenFile, tokenVariable)
		if err != nil {
			return err
		}
		d := &doctor{self: caller.self, token: token, agent: *agent, prefix: randid.New("doctor-")}
		d.report = report{URL: raw, Agents: []string{}, Findings: []finding{}}
		if d.target, err = endpoint.Parse(raw, caller.insecure); err != nil {
			return command.Usage("%w", err)
		}
		ctx, cancel := context.WithTimeout(ctx, maxDuration)
		defer cancel()
		if err := d.run(ctx, *agent != "", caller.insecure); err != nil {
			return command.CouldNot(err)
		}
		if err := s.Print(d.report.String(), &d.report); err != nil {
			return err
		}
		if n := d.count(kindDeviation); n > 0 {
			return fmt.Errorf("%d deviations", n)
		}
		return nil
	}
}

func (d *doctor) run(ctx context.Context, isActive, insecure bool) error {
	transport := &http.Transport{Proxy: http.ProxyFromEnvironment, DisableCompression: true}
	defer transport.CloseIdleConnections()
	d.http = &http.Client{Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	if err := d.follow(ctx); err != nil {
		return err
	}
	if err := d.discover(ctx, insecure); err != nil {
		return err
	}
	probes := []func(context.Context) error{d.probeHTTP, d.probeTokens, d.probeMessages, d.probeTask}
	if isActive {
		probes = append(probes, d.probeChat, d.probeStream, d.probeTasks)
	}
	for _, probe := range probes {
		if err := probe(ctx); err != nil {
			return err
		}
	}
	d.recognize()
	return nil
}

// deviate adds a deviation.
func (d *doctor) deviate(id, advice, format string, args ...any) {
	f := finding{kindDeviation, id, fmt.Sprintf(format, args...), advice}
	if !slices.Contains(d.Findings, f) {
		d.Findings = append(d.Findings, f)
	}
}

// offer adds an option that the endpoint permits.
func (d *doctor) offer(id, advice, text string) {
	d.Findings = append(d.Findings, finding{kindOption, id, text, advice})
}

// An answer is a response to a request of a doctor.
type answer struct {
	status int
	header http.Header
	media  string
	body   []byte
	arc    *arc.Response // nil if the body is not a response
}

// code returns the error code of the answer, or zero.
func (a *answer) code() arc.Code {
	if a.arc == nil || a.arc.Error == nil {
		return 0
	}
	return a.arc.Error.Code
}

// result returns the result of the answer; nothing if there is none.
func (a *answer) result() strictjson.Value {
	if a.arc == nil {
		return nil
	}
	return parse(a.arc.Result)
}

// parse returns a checked JSON value, or none.
func parse(data []byte) strictjson.Value {
	v, err := strictjson.Check(data, strictjson.Options{})
	if err != nil {
		return nil
	}
	return v
}

// send sends a request, which edit may change. An error is one of the network.
func (d *doctor) send(ctx context.Context, method, body string, edit func(*http.Request)) (*answer, error) {
	req, err := http.NewRequestWithContext(ctx, method, d.target.String(), strings.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", arc.MediaType)
	req.Header.Set("Accept", arc.MediaType+", application/json")
	if d.token != "" {
		req.Header.Set("Authorization", "Bearer "+d.token)
	}
	if edit != nil {
		edit(req)
	}
	d.Requests++
	res, err := d.http.Do(req)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	a := &answer{status: res.StatusCode, header: res.Header}
	a.media, _, _ = strings.Cut(strings.ToLower(res.Header.Get("Content-Type")), ";")
	a.body, err = io.ReadAll(io.LimitReader(res.Body, maxAnswer))
	if err != nil && a.media != "text/event-stream" { // a cut stream is a finding
		return nil, fmt.Errorf("read response: %w", err)
	}
	if a.media != "text/event-stream" {
		a.arc, _ = arc.DecodeResponse(a.body, "")
	}
	return a, nil
}

// request returns an envelope to the agent with a new id. Each pair of an old and a new text is replaced.
func (d *doctor) request(method, params string, replace ...string) string {
	text := fmt.Sprintf(`{"arc":"1.0","id":"%s-%d","method":%q,"requestAgent":%s,"targetAgent":%s,"params":%s}`, d.prefix, d.Requests,
		method, strictjson.AppendString(nil, d.self), strictjson.AppendString(nil, d.agent), params)
	return strings.NewReplacer(replace...).Replace(text)
}

func (d *doctor) post(ctx context.Context, method, params string, replace ...string) (*answer, error) {
	return d.send(ctx, http.MethodPost, d.request(method, params, replace...), nil)
}

// follow finds the endpoint behind a redirect.
func (d *doctor) follow(ctx context.Context) error {
	a, err := d.send(ctx, http.MethodPost, "{}", nil)
	if err != nil || a.status/100 != 3 {
		return err
	}
	to, err := d.target.Parse(a.header.Get("Location"))
	if err != nil || !endpoint.SameOrigin(d.target, to) {
		return fmt.Errorf("%w: status %d leads to %q", arc.ErrRedirect, a.status, a.header.Get("Location"))
	}
	if d.target.RawQuery = ""; a.status == http.StatusTemporaryRedirect || a.status == http.StatusPermanentRedirect {
		d.deviate("ARC-D10", "NewClient with this URL saves a request for each call", "the endpoint redirects to %s", to)
	} else {
		d.deviate("ARC-D14", "NewClient with this URL: the client does not follow this redirect", "status %d redirects to %s", a.status, to)
	}
	d.target = to
	return nil
}

// discover finds the agents and chooses one.
func (d *doctor) discover(ctx context.Context, insecure bool) error {
	o := &discovery.ClientOptions{AllowInsecure: insecure}
	if d.token != "" {
		o.TokenSource = arc.StaticTokenSource(d.token)
	}
	c, err := discovery.NewClient(o, d.target.String())
	if err != nil {
		return err
	}
	defer c.Close()
	agents, err := c.Agents(ctx)
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if err != nil {
		d.deviate("ARC-D67", "name the agents in the program; discovery.Client finds none here", "no agent information: %v", err)
	}
	for i := range agents {
		d.Agents = append(d.Agents, agents[i].AgentID)
		if agents[i].AgentID == d.agent || d.agent == "" && slices.Contains(agents[i].SupportedMethods, arc.MethodTaskInfo) {
			d.agent, d.info = agents[i].AgentID, agents[i].AgentInfo
		}
	}
	switch {
	case d.agent == "" && len(d.Agents) > 0:
		d.agent, d.info = d.Agents[0], agents[0].AgentInfo
	case d.agent == "":
		return errors.New("no agent found: name one with -agent")
	}
	return nil
}

// recognize names the implementation.
func (d *doctor) recognize() {
	has := func(id string) bool {
		return slices.ContainsFunc(d.Findings, func(f finding) bool { return f.ID == id })
	}
	if !has("ARC-D55") || !has("ARC-D12") || !has("ARC-D06") {
		return
	}
	d.Peer = "arc-sdk (Python)"
	d.offer("ARC-D83", "ServerOptions.ProfileFor with ProfilePythonSDK", "clients of the same SDK read only responses with status 200")
	d.offer("ARC-D43", "webhook.ReceiverOptions.AllowPythonSignatures", "its webhooks sign another text than they send")
}
