// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package discovery

import (
	"context"
	"io"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/arc"
)

// A docPeer serves documents by URL.
type docPeer struct {
	mu       sync.Mutex
	docs     map[string]reaction
	requests []string
	auth     []string
	hold     time.Duration
}

func (p *docPeer) RoundTrip(req *http.Request) (*http.Response, error) {
	p.mu.Lock()
	p.requests = append(p.requests, req.Method+" "+req.URL.String())
	p.auth = append(p.auth, req.Header.Get("Authorization"))
	do := p.docs[req.URL.String()]
	p.mu.Unlock()
	if p.hold > 0 {
		select {
		case <-time.After(p.hold):
		case <-req.Context().Done():
			return nil, req.Context().Err()
		}
	}
	if do == nil {
		do = reply(404, "text/plain", "no")
	}
	return do(req, nil)
}

type reaction = func(*http.Request, []byte) (*http.Response, error)

// reply answers with a text and header fields.
func reply(status int, media, text string, header ...string) reaction {
	return func(req *http.Request, _ []byte) (*http.Response, error) {
		h := http.Header{"Content-Type": {media}}
		for i := 0; i < len(header); i += 2 {
			h.Set(header[i], header[i+1])
		}
		return &http.Response{StatusCode: status, Header: h, Body: io.NopCloser(strings.NewReader(text)),
			ContentLength: int64(len(text)), Request: req}, nil
	}
}

func doc(text string) reaction { return reply(200, "application/json", text) }

func newTestClient(t *testing.T, p http.RoundTripper, opts ClientOptions, endpoints ...string) *Client {
	t.Helper()
	opts.HTTPClient = &http.Client{Transport: p}
	d, err := NewClient(&opts, endpoints...)
	require.NoError(t, err)
	return d
}

const single = `{"agentId":"x","capabilities":["sum"],"status":"active","endpoints":{"arc":"/v1/arc"},"supportedMethods":["task.create"]}`

// ARC-D67: where agents are looked for, and that nothing leads to another origin.
func TestClientPlaces(t *testing.T) {
	tests := []struct {
		name, endpoint string
		docs           map[string]reaction
		requests       []string
		url            string // of the agent found; empty: none
	}{
		{"beside", "https://h.test/v1/arc", map[string]reaction{"https://h.test/v1/agent-info": doc(single)},
			[]string{"GET https://h.test/v1/agent-info"}, "https://h.test/v1/arc"},
		{"beside, with a slash", "https://h.test/arc/", map[string]reaction{"https://h.test/agent-info": doc(single)},
			[]string{"GET https://h.test/agent-info"}, "https://h.test/v1/arc"},
		{"at the root", "https://h.test", map[string]reaction{"https://h.test/agent-info": doc(single)},
			[]string{"GET https://h.test/agent-info"}, "https://h.test/v1/arc"},
		{"under it", "https://h.test/arc", map[string]reaction{"https://h.test/arc/info": doc(single)},
			[]string{"GET https://h.test/agent-info", "GET https://h.test/arc/info"}, "https://h.test/v1/arc"},
		{"under it, as a router has it", "https://h.test/v2/arc", map[string]reaction{"https://h.test/v2/arc/info": doc(`{"router":"r","endpoints":{"arc":"/"},"registeredAgents":{"x":{}}}`)},
			[]string{"GET https://h.test/v2/agent-info", "GET https://h.test/v2/arc/info"}, "https://h.test/v2/arc/"},
		{"beside is something else", "https://h.test/arc", map[string]reaction{"https://h.test/agent-info": doc(`{"hello":1}`), "https://h.test/arc/info": doc(single)},
			[]string{"GET https://h.test/agent-info", "GET https://h.test/arc/info"}, "https://h.test/v1/arc"},
		{"nowhere", "https://h.test/arc", nil, []string{"GET https://h.test/agent-info", "GET https://h.test/arc/info"}, ""},
		{"redirected", "https://h.test/arc", map[string]reaction{"https://h.test/agent-info": reply(307, "", "", "Location", "/agent-info/"), "https://h.test/agent-info/": doc(single)},
			[]string{"GET https://h.test/agent-info", "GET https://h.test/agent-info/"}, "https://h.test/v1/arc"},
		{"redirected away", "https://h.test/arc", map[string]reaction{"https://h.test/agent-info": reply(307, "", "", "Location", "https://evil.test/"), "https://h.test/arc/info": doc(single)},
			[]string{"GET https://h.test/agent-info", "GET https://h.test/arc/info"}, "https://h.test/v1/arc"},
		{"endpoint elsewhere", "https://h.test/arc", map[string]reaction{"https://h.test/agent-info": doc(strings.Replace(single, "/v1/arc", "https://evil.test/arc", 1))},
			[]string{"GET https://h.test/agent-info"}, "https://h.test/arc"},
		{"too large", "https://h.test/arc", map[string]reaction{"https://h.test/agent-info": doc(single + strings.Repeat(" ", 2000)), "https://h.test/arc/info": doc("{}")},
			[]string{"GET https://h.test/agent-info", "GET https://h.test/arc/info"}, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			p := &docPeer{docs: tt.docs}
			d := newTestClient(t, p, ClientOptions{MaxMessage: 1000, TokenSource: arc.StaticTokenSource("tok")}, tt.endpoint)
			got, err := d.Agents(t.Context())
			require.Equal(t, tt.requests, p.requests)
			for _, a := range p.auth {
				require.Equal(t, "Bearer tok", a)
			}
			if tt.url == "" {
				require.Error(t, err)
				require.Empty(t, got)
				return
			}
			require.NoError(t, err)
			require.Len(t, got, 1)
			require.Equal(t, tt.url, got[0].URL)
			require.Equal(t, "x", got[0].AgentID)
		})
	}
}

func TestClientFind(t *testing.T) {
	many := `{"server":"s","endpoints":{"arc":"/arc"},"registeredAgents":{"y":{"status":"active","supportedMethods":["chat.start"],"capabilities":["talk"]},"z":{"status":"down"}}}`
	p := &docPeer{docs: map[string]reaction{"https://h.test/agent-info": doc(single), "https://i.test/agent-info": doc(many)}}
	d := newTestClient(t, p, ClientOptions{}, "https://h.test/arc", "https://i.test/arc", "https://down.test/arc")
	tests := []struct {
		q    AgentQuery
		want string
	}{
		{AgentQuery{Capability: "talk"}, "y"},
		{AgentQuery{Method: "task.create"}, "x"},
		{AgentQuery{Status: "active"}, "x y"},
		{AgentQuery{AgentID: "z"}, "z"},
		{AgentQuery{}, "x y z"},
	}
	for _, tt := range tests {
		got, err := d.Find(t.Context(), tt.q)
		require.NoError(t, err, "one endpoint that is down does not matter")
		ids := []string{}
		for _, a := range got {
			ids = append(ids, a.AgentID)
		}
		require.Equal(t, tt.want, strings.Join(ids, " "))
	}
	all, err := d.Agents(t.Context())
	require.Len(t, all, 3)
	var h *arc.HTTPError
	require.ErrorAs(t, err, &h)
	require.ErrorContains(t, err, "down.test")
	_, err = d.Find(t.Context(), AgentQuery{AgentID: "none"})
	require.ErrorAs(t, err, &h, "it may be there")

	all[0].Capabilities[0] = "changed"
	got, err := d.Find(t.Context(), AgentQuery{Capability: "sum"})
	require.NoError(t, err)
	require.Len(t, got, 1, "the cache is nobody else's")
}

func TestClientCache(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &docPeer{hold: time.Second, docs: map[string]reaction{"https://h.test/agent-info": doc(single)}}
		d := newTestClient(t, p, ClientOptions{CacheTTL: time.Minute}, "https://h.test/arc")
		var wg sync.WaitGroup
		for range 10 {
			wg.Go(func() {
				if got, err := d.Agents(t.Context()); err != nil || len(got) != 1 {
					t.Error(got, err)
				}
			})
		}
		wg.Wait()
		require.Len(t, p.requests, 1, "one asks for all")
		time.Sleep(time.Minute - 1)
		_, err := d.Agents(t.Context())
		require.NoError(t, err)
		require.Len(t, p.requests, 1)
		time.Sleep(time.Nanosecond)
		_, err = d.Agents(t.Context())
		require.NoError(t, err)
		require.Len(t, p.requests, 2)
		d.Invalidate()
		_, err = d.Agents(t.Context())
		require.NoError(t, err)
		require.Len(t, p.requests, 3)

		d.Invalidate()
		p.hold = time.Hour
		begin := time.Now()
		_, err = d.Agents(t.Context())
		require.ErrorIs(t, err, arc.ErrTimeout)
		require.Equal(t, 10*time.Second, time.Since(begin))
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err = d.Agents(ctx)
		require.ErrorIs(t, err, context.DeadlineExceeded)
	})
}

// The callers that wait for a silent endpoint share one timeout, but not the end of the context of another caller.
func TestSilentEndpointDelaysCallersOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		peer := &docPeer{hold: time.Hour}
		d := newTestClient(t, peer, ClientOptions{}, "https://a.example/arc")
		canceled, cancel := context.WithCancel(t.Context())
		first := make(chan error, 1)
		go func() {
			_, err := d.Agents(canceled)
			first <- err
		}()
		synctest.Wait()
		errs := make(chan error, 5)
		for range cap(errs) {
			go func() {
				_, err := d.Agents(t.Context())
				errs <- err
			}()
		}
		time.Sleep(5 * time.Second)
		cancel()
		require.ErrorIs(t, <-first, context.Canceled)
		start := time.Now()
		for range cap(errs) {
			require.ErrorIs(t, <-errs, arc.ErrTimeout)
		}
		require.Equal(t, 10*time.Second, time.Since(start))
		_, err := d.Agents(t.Context())
		require.ErrorIs(t, err, arc.ErrTimeout)
		require.Equal(t, 20*time.Second, time.Since(start), "a later caller asks again")
	})
}

// A token source that ends its goroutine fails a search: without an error, it would have found that there are no agents.
func TestTokenSourceThatEndsItsGoroutineFailsSearch(t *testing.T) {
	source := arc.TokenSourceFunc(func(context.Context, string) (string, error) {
		runtime.Goexit()
		return "", nil
	})
	d := newTestClient(t, &docPeer{}, ClientOptions{TokenSource: source}, "https://a.example/arc")
	for range 2 {
		_, err := d.Find(t.Context(), AgentQuery{})
		require.ErrorContains(t, err, "runtime.Goexit called")
	}
}

func TestNewClient(t *testing.T) {
	_, err := NewClient(nil, "http://h.test/arc")
	require.ErrorContains(t, err, "https")
	d, err := NewClient(nil)
	require.NoError(t, err)
	got, err := d.Agents(t.Context())
	require.NoError(t, err)
	require.Empty(t, got)
	require.NoError(t, d.Close())
}

const goodCard = `{"name":"Sum","description":"Adds","version":"1.2.3","url":"https://h.test/arc","provider":{"organization":"O","contact":"c","website":"w"},` +
	`"visibility":"public","capabilities":{"streaming":true,"pushNotifications":false,"fileUpload":true,"multimodal":false},` +
	`"authentication":{"schemes":["oauth2"],"scopes":["arc.agent.caller"]},"skills":[{"name":"add","description":"d"}],` +
	`"metadata":{"tags":["m"],"category":"math","popularity":4.5,"lastUpdated":"2024-01-15T10:30:00Z"}}`

func TestAgentCard(t *testing.T) {
	c, err := DecodeAgentCard([]byte(goodCard))
	require.NoError(t, err)
	require.NoError(t, c.Validate())
	out, err := c.MarshalJSON()
	require.NoError(t, err)
	require.JSONEq(t, goodCard, string(out))

	built, err := DecodeAgentCard([]byte(`{"schema":"s","agentId":"sum-01","methods":["task.create"],"apiUrl":"https://h.test/arc","skills":["add"]}`))
	require.NoError(t, err)
	require.Equal(t, "sum-01", built.Name)
	require.Equal(t, "https://h.test/arc", built.URL)
	require.Equal(t, []string{"task.create"}, built.Methods)
	require.Equal(t, []CardSkill{{Name: "add"}}, built.Skills)
	require.ErrorIs(t, built.Validate(), ErrInvalidCard)

	for _, text := range []string{``, `[]`, `{}`, `{"name":""}`, `{"name":"a","name":"b"}`} {
		_, err := DecodeAgentCard([]byte(text))
		require.ErrorIs(t, err, ErrInvalidCard, text)
	}
}

func TestAgentCardValidate(t *testing.T) {
	tests := []struct {
		name   string
		change func(*AgentCard)
		want   string // part of the error; empty: none
	}{
		{"umlauts are one character", func(c *AgentCard) { c.Name = strings.Repeat("ö", 100) }, ""},
		{"name", func(c *AgentCard) { c.Name = strings.Repeat("x", 101) }, "name must"},
		{"description", func(c *AgentCard) { c.Description = "" }, "description must"},
		{"version", func(c *AgentCard) { c.Version = "1.2" }, "version must"},
		{"version with letters", func(c *AgentCard) { c.Version = "1.2.x" }, "version must"},
		{"url", func(c *AgentCard) { c.URL = "http://h.test" }, "url must"},
		{"provider", func(c *AgentCard) { c.Provider.Organization = "" }, "provider.organization"},
		{"visibility", func(c *AgentCard) { c.Visibility = "secret" }, "visibility must"},
		{"scheme", func(c *AgentCard) { c.AuthSchemes = []string{"basic"} }, `"basic" is unknown`},
		{"skill", func(c *AgentCard) { c.Skills = []CardSkill{{}} }, "skills[0]"},
		{"popularity", func(c *AgentCard) { c.Popularity = "5.01" }, "popularity"},
		{"popularity below", func(c *AgentCard) { c.Popularity = "-1" }, "popularity"},
		{"popularity costs nothing", func(c *AgentCard) { c.Popularity = "1e999999999" }, "popularity"},
		{"time", func(c *AgentCard) { c.LastUpdated = "yesterday" }, "lastUpdated"},
		{"unknown", func(c *AgentCard) { c.Extra = arc.Extra{"x": nil} }, `"x" is unknown`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c, err := DecodeAgentCard([]byte(goodCard))
			require.NoError(t, err)
			tt.change(c)
			err = c.Validate()
			if tt.want == "" {
				require.NoError(t, err)
				return
			}
			require.ErrorIs(t, err, ErrInvalidCard)
			require.ErrorContains(t, err, tt.want)
		})
	}
}

func TestClientCard(t *testing.T) {
	p := &docPeer{docs: map[string]reaction{"https://h.test/arc/.well-known/a2a-agent-card.json": doc(goodCard)}}
	d := newTestClient(t, p, ClientOptions{}, "https://h.test/arc", "https://i.test/arc")
	c, err := d.Card(t.Context(), "https://h.test/arc")
	require.NoError(t, err)
	require.Equal(t, "Sum", c.Name)
	var h *arc.HTTPError
	_, err = d.Card(t.Context(), "https://i.test/arc")
	require.ErrorAs(t, err, &h)
	_, err = d.Card(t.Context(), "https://evil.test/arc")
	require.ErrorContains(t, err, "is not an endpoint")
}

// An error names the endpoint without its query, which may be a secret, and callers cannot change the cache.
func TestClientKeepsSecretsAndCache(t *testing.T) {
	d := newTestClient(t, &docPeer{}, ClientOptions{}, "https://b.test/arc?key=secret")
	_, err := d.Agents(t.Context())
	require.ErrorContains(t, err, "arc: discovery at https://b.test/arc: ")
	require.NotContains(t, err.Error(), "secret")

	p := &docPeer{docs: map[string]reaction{"https://b.test/agent-info": doc(strings.Replace(single, `{`, `{"owner":"me",`, 1))}}
	d = newTestClient(t, p, ClientOptions{}, "https://b.test/arc")
	for range 2 {
		agents, err := d.Agents(t.Context())
		require.NoError(t, err)
		require.JSONEq(t, `"me"`, string(agents[0].Extra["owner"]))
		agents[0].Extra["owner"] = []byte(`"other"`)
	}
	require.Len(t, p.requests, 1)
}
