// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package catalogue_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/a2e"
	"github.com/fivewire/fivewire/a2e/a2etest"
	"github.com/fivewire/fivewire/a2e/catalogue"
	"github.com/fivewire/fivewire/a2e/chains"
	"github.com/fivewire/fivewire/a2e/env"
	"github.com/fivewire/fivewire/a2e/env/envtest"
	"github.com/fivewire/fivewire/a2e/learn"
	"github.com/fivewire/fivewire/a2e/mcp"
	"github.com/fivewire/fivewire/a2e/memory"
	"github.com/fivewire/fivewire/a2e/planning"
	"github.com/fivewire/fivewire/a2e/proc"
	"github.com/fivewire/fivewire/a2e/skills"
	"github.com/fivewire/fivewire/a2e/subagents"
	"github.com/fivewire/fivewire/a2e/toolkits"
	"github.com/fivewire/fivewire/a2e/tools"
)

// An exchange is one request of the recorded conversation with all that belongs
// to it.
type exchange struct {
	ask    string
	host   []string // messages of the deployed host; its requests are marked by ?
	agent  []string // answers of the deployed agent
	want   string   // members of our answer
	code   string   // or its error
	saves  map[string]string
	number int
}

func conversation(t *testing.T) []exchange {
	f, err := os.Open("testdata/conversation.txt")
	require.NoError(t, err)
	defer f.Close()
	var list []exchange
	n := 0
	for in := bufio.NewScanner(f); in.Scan(); {
		n++
		mark, rest, _ := strings.Cut(in.Text(), " ")
		if mark == "" || mark == "#" {
			continue
		}
		if mark == ">" {
			list = append(list, exchange{ask: rest, number: n, saves: map[string]string{}})
			continue
		}
		x := &list[len(list)-1]
		switch mark {
		case "<":
			x.host = append(x.host, rest)
		case "?":
			x.host = append(x.host, "?"+rest)
		case "+":
			x.agent = append(x.agent, rest)
		case "=":
			x.want = rest
		case "!":
			x.code = rest
		case "@":
			name, path, _ := strings.Cut(rest, "=")
			x.saves[name] = path
		default:
			t.Fatalf("line %d", n)
		}
	}
	require.Greater(t, len(list), 40)
	return list
}

// written expands a line of the recording.
func written(line string, names map[string]string) string {
	line = strings.ReplaceAll(line, "$h", `"id":"`+a2e.NewID()+`","version":"1.0","ts":1795226511.6664674`)
	return regexp.MustCompile(`\$[a-z]+`).ReplaceAllStringFunc(line, func(name string) string {
		if value, ok := names[name[1:]]; ok {
			return value
		}
		return name[1:] // a path of a chain among them is not in names, and has no $ there
	})
}

// grown returns an error for the first part of want that is missing in got.
func grown(want, got any, path string) error {
	switch want := want.(type) {
	case map[string]any:
		o, ok := got.(map[string]any)
		if !ok {
			return fmt.Errorf("%s: %v is no object", path, got)
		}
		for name, inner := range want {
			if err := grown(inner, o[name], path+"."+name); err != nil {
				return err
			}
		}
	case []any:
		l, ok := got.([]any)
		if !ok || len(l) != len(want) {
			return fmt.Errorf("%s: %v, want %v", path, got, want)
		}
		for i := range want {
			if err := grown(want[i], l[i], fmt.Sprint(path, "[", i, "]")); err != nil {
				return err
			}
		}
	case float64:
		if x, ok := got.(float64); !ok || math.Abs(x-want) > 1e-9 {
			return fmt.Errorf("%s: %v, want %v", path, got, want)
		}
	default:
		if got != want {
			return fmt.Errorf("%s: %v, want %v", path, got, want)
		}
	}
	return nil
}

func parsed(t *testing.T, text string) map[string]any {
	var o map[string]any
	require.NoError(t, json.Unmarshal([]byte(text), &o), "%s", text)
	return o
}

// conversationHost serves every namespace.
func conversationHost(t *testing.T, opts a2e.HostOptions) *a2e.Host {
	bridge := a2etest.Must(mcp.NewBridge(mcp.ConnectorFunc(func(context.Context, *a2e.Session, *mcp.ServerConfig, func(string, json.RawMessage)) (mcp.Server, error) {
		return files{}, nil
	}), &mcp.Options{Authorizer: func(*a2e.Session, *mcp.ServerConfig) bool { return true }}))
	set := a2etest.Must(tools.NewSet(&tools.Options{SessionTools: bridge.Tools}))
	tools.AddTool(set, "echo", "Gibt zurück", func(_ context.Context, call *a2e.Call, in struct {
		Text string `json:"text"`
	}) (any, error) {
		return in, call.Emit(a2e.EventProgress, map[string]int{"pct": 50})
	}, nil)
	tools.AddTool(set, "fail", "", func(context.Context, *a2e.Call, struct{}) (any, error) { return nil, errors.New("boom") }, nil)
	tools.AddTool(set, "ask", "", func(ctx context.Context, call *a2e.Call, _ struct{}) (any, error) {
		m, err := call.Session.Call(ctx, "mcp/root/list/req", &mcp.RootListRequest{ServerID: "fs", MCPRequestID: "7"})
		if err != nil {
			return nil, err
		}
		root, err := a2e.DecodeModel[mcp.Root](m.Body.(*mcp.RootListResponse).Roots[0], "")
		if err != nil {
			return nil, err
		}
		q := new(mcp.SampleRequest)
		q.ServerID, q.MCPRequestID = "fs", "8"
		if m, err = call.Session.Call(ctx, "mcp/sample/req", q); err != nil {
			return nil, err
		}
		return map[string]string{"root": root.URI, "model": m.Body.(*mcp.SampleResponse).Model}, nil
	}, nil)
	kits, err := toolkits.NewPlugin([]toolkits.Toolkit{{Definition: toolkits.Definition{Name: "web", Tools: []string{"search"}}}}, nil)
	require.NoError(t, err)
	procs, err := proc.NewPlugin(&proc.Options{AllowedCommands: []string{"cat"}})
	require.NoError(t, err)
	skill := a2etest.Must(skills.NewSet(nil))
	d := new(skills.Definition)
	d.Name, d.Status = "haiku", skills.StatusPublished
	skill.Add(skills.Skill{Definition: *d, Run: func(_ context.Context, run *skills.Run) (any, error) {
		return run.Arguments, run.Emit(a2e.EventStatus, map[string]string{"message": "thinking"})
	}})
	run := subagents.RunnerFunc(func(context.Context, *subagents.Agent, *subagents.Task) (json.RawMessage, error) {
		return json.RawMessage(`{"answer":1}`), nil
	})
	opts.Auth.Authenticator = a2etest.KeyAuthenticator("s3cret")
	h := a2etest.NewHost(t, &opts).AddPlugin(set.Plugin()).AddPlugin(kits).AddPlugin(a2etest.Must(memory.NewPlugin(nil))).AddPlugin(procs).
		AddPlugin(a2etest.Must(env.NewPlugin(map[string]env.Environment{"counter": envtest.Counter{}}, nil))).AddPlugin(a2etest.Must(learn.NewPlugin(nil))).AddPlugin(skill.Plugin()).
		AddPlugin(a2etest.Must(chains.NewPlugin(&chains.Options{Tool: set.Execute}))).AddPlugin(bridge.Plugin()).AddPlugin(a2etest.Must(planning.NewPlugin(nil))).
		AddPlugin(a2etest.Must(subagents.NewPlugin(run, nil)))
	return h
}

// files is an MCP server with one resource.
type files struct{}

func (files) Info() mcp.ServerInfo { return mcp.ServerInfo{} }
func (files) Resources(context.Context, string) ([]mcp.Resource, string, error) {
	return []mcp.Resource{{URI: "file:///a"}}, "", nil
}
func (files) ReadResource(context.Context, string) ([]mcp.ResourceContent, error) { return nil, nil }
func (files) Subscribe(context.Context, string) error                             { return nil }
func (files) Prompts(context.Context, string) ([]mcp.Prompt, string, error)       { return nil, "", nil }
func (files) Prompt(context.Context, string, json.RawMessage) (string, []mcp.PromptMessage, error) {
	return "", nil, nil
}
func (files) Close() error { return nil }

// A host of this module understands every message of a deployed agent, in every namespace and
// profile, and answers with the members that the agent's models need (P-01, P-02, P-03, P-11, P-12,
// P-14, P-15, P-21, P-30).
func TestConversationHostRole(t *testing.T) {
	for name, opts := range map[string]a2e.HostOptions{"plain": {}, "version and ASCII": {Dialect: a2e.Dialect{WriteVersion: true, EscapeNonASCII: true}}} {
		t.Run(name, func(t *testing.T) {
			agent, host := a2e.Pipe()
			served := make(chan error, 1)
			h := conversationHost(t, opts)
			go func() { served <- h.Serve(t.Context(), host) }()
			in := bufio.NewReader(agent)
			names := map[string]string{}
			for _, x := range conversation(t) {
				ask := written(x.ask, names)
				id := parsed(t, ask)["id"].(string)
				_, err := io.WriteString(agent, ask+"\n")
				require.NoError(t, err)
				replies, events := x.agent, 0
				for {
					line, err := in.ReadBytes('\n')
					require.NoError(t, err, "line %d", x.number)
					m := parsed(t, string(line))
					require.Equal(t, "1.0", m["a2e"])
					if opts.EscapeNonASCII {
						require.Equal(t, "1.0", m["version"])
						require.Equal(t, -1, bytes.IndexFunc(line, func(r rune) bool { return r > 0x7e }), "%s", line)
					}
					kind := a2e.TypeOf[struct{}](m["type"].(string)).Kind
					if kind == a2e.KindRequest { // the host asks
						names["asked"] = m["id"].(string)
						_, err := io.WriteString(agent, written(replies[0], names)+"\n")
						require.NoError(t, err)
						replies = replies[1:]
						continue
					}
					if kind == a2e.KindEvent {
						if m["req_id"] == id {
							require.EqualValues(t, events, m["seq"])
							events++
						}
						continue
					}
					require.Equal(t, id, m["req_id"], "line %d: %s", x.number, line)
					if x.code != "" {
						require.Equal(t, x.code, m["code"], "line %d: %s", x.number, line)
						break
					}
					require.NotEqual(t, "error", m["type"], "line %d: %s", x.number, line)
					require.NoError(t, grown(parsed(t, written(x.want, names)), m, "answer"), "line %d: %s", x.number, line)
					for name, path := range x.saves {
						value := any(m)
						for step := range strings.SplitSeq(path, ".") {
							value = value.(map[string]any)[step]
						}
						names[name] = value.(string)
					}
					break
				}
				require.Empty(t, replies, "line %d", x.number)
			}
			_, err := io.WriteString(agent, written(`{"type":"shutdown",$h,"timeout":10}`+"\n", nil))
			require.NoError(t, err)
			require.NoError(t, <-served)
			require.Zero(t, h.Stats().Dropped)
		})
	}
}

// A strict host refuses that dialect with a reason (A2E-D02).
func TestConversationStrictHost(t *testing.T) {
	codec := a2e.NewCodec(catalogue.Types()...)
	codec.Strict, codec.Host = true, true
	for _, x := range conversation(t) {
		_, err := codec.Decode([]byte(written(x.ask, nil)))
		var e *a2e.Error
		require.ErrorAs(t, err, &e)
		require.Equal(t, a2e.ErrSchemaViolation, e.Code)
		require.Equal(t, "a2e", e.Field)
	}
}

// An agent of this module talks to a deployed host, in every namespace and
// profile: each answer arrives typed and belongs to its call (P-01, P-03, P-10,
// P-13, P-15, P-16, P-17, P-18, P-19, P-20, P-22, P-23, P-24, P-31).
func TestConversationAgentRole(t *testing.T) {
	for name, tt := range map[string]struct {
		opts a2e.ClientOptions
		talk func(line string) string
	}{
		"plain":             {a2e.ClientOptions{Dialect: a2e.Dialect{AllowNonFinite: true}}, func(line string) string { return line }},
		"version and ASCII": {a2e.ClientOptions{Dialect: a2e.Dialect{AllowNonFinite: true, EscapeNonASCII: true, WriteVersion: true}}, func(line string) string { return line }},
		"noisy": {a2e.ClientOptions{Dialect: a2e.Dialect{AllowNonFinite: true}, SkipNonJSON: true, StripPrefix: "line: "}, func(line string) string {
			return "A2E_SUBPROCESS_HOST_READY\nline: " + line + "\nsent"
		}},
	} {
		t.Run(name, func(t *testing.T) { talkToDeployedHost(t, tt.opts, tt.talk) })
	}
}

func talkToDeployedHost(t *testing.T, opts a2e.ClientOptions, talk func(string) string) {
	list := conversation(t)
	agent, host := a2e.Pipe()
	turn := make(chan *exchange, 1)
	played := make(chan error, 1)
	go func(opts a2e.ClientOptions) { played <- playHost(host, turn, opts, talk) }(opts)
	opts.Types = catalogue.Types()
	c := a2etest.Must(a2e.NewClient(agent, &opts))
	for _, msgType := range []string{"proc/read/event", "mcp/server/push"} {
		c.OnPush(msgType, func(m *a2e.Message) { require.NotNil(t, m.Body) })
	}
	c.Handle("mcp/root/list/req", func(context.Context, *a2e.Message) (any, error) {
		return &mcp.RootListResponse{Roots: []json.RawMessage{json.RawMessage(`{"uri":"file:///home"}`)}}, nil
	})
	codec := a2e.NewCodec(catalogue.Types()...)
	codec.Host = true
	for i := range list {
		x := &list[i]
		m, err := codec.Decode([]byte(written(x.ask, nil)))
		require.NoError(t, err)
		turn <- x
		if r, ok := m.Body.(*a2e.HandshakeRequest); ok {
			_, err = a2etest.Handshake(t.Context(), c, r)
			require.NoError(t, err)
			require.True(t, c.PeerInfo().VersionMember)
			require.True(t, c.HasCapability("env"))
			continue
		}
		msgType, body := m.Type, m.Body
		if msgType == "env/plan/resp" { // the canonical type of this project
			msgType = "env/plan/req"
		}
		last := parsed(t, strings.ReplaceAll(written(x.host[len(x.host)-1], nil), "NaN", "null"))
		events := 0
		for _, line := range x.host {
			if line[0] != '?' && strings.Contains(line, `"req_id":"$id"`) && a2e.TypeOf[struct{}](parsed(t, strings.ReplaceAll(written(line, nil), "NaN", "0"))["type"].(string)).Kind == a2e.KindEvent {
				events++
			}
		}
		seen := 0
		answer, err := c.Call(t.Context(), msgType, body, &a2e.CallOptions{OnEvent: func(e a2e.Event) {
			seen++
			require.NotNil(t, e.Body)
		}})
		require.Equal(t, events, seen, "line %d", x.number)
		if last["type"] == "error" {
			var e *a2e.Error
			require.ErrorAs(t, err, &e, "line %d", x.number)
			require.True(t, e.Remote)
			require.EqualValues(t, last["code"], e.Code)
			if strings.HasPrefix(e.Message, "Unknown type") {
				require.ErrorIs(t, err, a2e.ErrUnsupported)
			}
			continue
		}
		require.NoError(t, err, "line %d", x.number)
		require.NotNil(t, answer.Body, "line %d", x.number)
		require.EqualValues(t, last["type"], answer.Type)
		text, err := codec.Append(nil, answer)
		require.NoError(t, err)
		delete(last, "version") // it stays, behind the members of the model
		delete(last, "req_id")
		delete(last, "id")
		require.NoError(t, grown(normalize(last), parsed(t, string(text)), "answer"), "line %d: %s", x.number, text)
	}
	require.Zero(t, c.Stats().Dropped)
	close(turn)
	require.NoError(t, c.Close())
	require.NoError(t, <-played)
}

// normalize drops nulls, which mean absent members, and the odd defaults of that SDK, which are
// read as their meaning (A2E-D20).
func normalize(v any) any {
	switch v := v.(type) {
	case map[string]any:
		out := map[string]any{}
		for name, inner := range v {
			if inner == nil || name == "provider_config" || name == "arguments" {
				continue
			}
			out[name] = normalize(inner)
		}
		return out
	case []any:
		out := []any{}
		for _, inner := range v {
			out = append(out, normalize(inner))
		}
		return out
	}
	return v
}

// playHost is the deployed host: it answers as recorded.
func playHost(rw io.ReadWriteCloser, turn <-chan *exchange, opts a2e.ClientOptions, talk func(string) string) error {
	defer rw.Close()
	in := bufio.NewReader(rw)
	read := func() (map[string]any, error) {
		line, err := in.ReadBytes('\n')
		if err != nil {
			return nil, err
		}
		if opts.EscapeNonASCII && bytes.IndexFunc(line, func(r rune) bool { return r > 0x7e }) >= 0 {
			return nil, fmt.Errorf("not ASCII: %s", line)
		}
		var m map[string]any
		if err := json.Unmarshal(line, &m); err != nil {
			return nil, err
		}
		if opts.WriteVersion != (m["version"] == "1.0") {
			return nil, fmt.Errorf("version: %s", line)
		}
		return m, nil
	}
	for x := range turn {
		m, err := read()
		if err != nil {
			return err
		}
		names := map[string]string{"id": m["id"].(string)}
		for _, line := range x.host {
			ask, isAsk := strings.CutPrefix(line, "?")
			text := written(ask, names)
			if _, err := io.WriteString(rw, talk(text)+"\n"); err != nil {
				return err
			}
			if !isAsk {
				continue
			}
			var q map[string]any
			if err := json.Unmarshal([]byte(text), &q); err != nil {
				return err
			}
			answer, err := read()
			if err != nil {
				return err
			}
			if answer["req_id"] != q["id"] || answer["mcp_request_id"] != q["mcp_request_id"] {
				return fmt.Errorf("%v in answer to %v", answer, q)
			}
		}
	}
	_, err := read() // the shutdown
	return err
}
