// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package interop_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/a2e"
	"github.com/fivewire/fivewire/a2e/a2etest"
	a2efront "github.com/fivewire/fivewire/a2e/mcpserver"
	"github.com/fivewire/fivewire/a2e/tools"
	"github.com/fivewire/fivewire/altar"
	"github.com/fivewire/fivewire/altar/altartest"
	altarfront "github.com/fivewire/fivewire/altar/mcpserver"
	"github.com/fivewire/fivewire/arc"
	arcfront "github.com/fivewire/fivewire/arc/mcpserver"
)

// The three servers that have tools for MCP clients, with the tools that the conformance package of MCP calls.

// pause is the time of a step of a tool.
const pause = 50 * time.Millisecond

var errExpected = errors.New("this tool intentionally returns an error for testing")

// progress sends three steps.
func progress(send func(text string) error) error {
	for _, step := range []string{"0", "50", "100"} {
		if err := send(step); err != nil {
			return err
		}
		time.Sleep(pause)
	}
	return nil
}

func altarFront(t *testing.T) http.Handler {
	t.Helper()
	m, err := altar.DecodeManifest([]byte(`{"contracts":[
		{"name":"test_simple_text","description":"Returns a text.","parameters":[]},
		{"name":"test_error_handling","description":"Fails.","parameters":[]},
		{"name":"test_tool_with_progress","description":"Reports its progress.","streaming":true,"parameters":[]},
		{"name":"echo","description":"Returns its number.","parameters":[{"name":"n","type":"integer","required":true}]}]}`))
	require.NoError(t, err)
	discard := slog.New(slog.DiscardHandler)
	host, _ := altartest.NewPair(t, &altartest.PairOptions{Manifest: m, Host: &altar.HostOptions{Logger: discard}, Tools: func(rt *altar.Runtime) {
		altar.AddTool(rt, "test_simple_text", func(context.Context, struct{}) (string, error) { return "a simple text", nil })
		altar.AddTool(rt, "test_error_handling", func(context.Context, struct{}) (string, error) { return "", errExpected })
		altar.AddTool(rt, "echo", func(_ context.Context, in number) (number, error) { return in, nil })
		altar.AddStreamTool(rt, "test_tool_with_progress", func(_ context.Context, _ struct{}, out *altar.ChunkWriter) error {
			return progress(func(text string) error { return out.Send(text) })
		})
	}})
	h, err := altarfront.NewHandler(host, &altarfront.Options{AllowAnonymous: true, Logger: discard})
	require.NoError(t, err)
	return h
}

type number struct {
	N int64 `json:"n"`
}

// schema2020 has the keywords that the conformance package looks for in a list of tools.
const schema2020 = `{"$schema":"https://json-schema.org/draft/2020-12/schema","type":"object",` +
	`"$defs":{"address":{"$anchor":"addressDef","type":"object","properties":{"street":{"type":"string"},"city":{"type":"string"}}}},` +
	`"properties":{"name":{"type":"string"},"address":{"$ref":"#/$defs/address"},"contactMethod":{"type":"string","enum":["phone","email"]},` +
	`"phone":{"type":"string"},"email":{"type":"string"}},"allOf":[{"anyOf":[{"required":["phone"]},{"required":["email"]}]}],` +
	`"if":{"properties":{"contactMethod":{"const":"phone"}},"required":["contactMethod"]},"then":{"required":["phone"]},"else":{"required":["email"]},` +
	`"additionalProperties":false}`

func a2eFront(t *testing.T) http.Handler {
	t.Helper()
	set, err := tools.NewSet(nil)
	require.NoError(t, err)
	tools.AddTool(set, "test_simple_text", "Returns a text.", func(context.Context, *a2e.Call, struct{}) (string, error) { return "a simple text", nil }, nil)
	tools.AddTool(set, "test_error_handling", "Fails.", func(context.Context, *a2e.Call, struct{}) (string, error) { return "", errExpected }, nil)
	tools.AddTool(set, "echo", "Returns its number.", func(_ context.Context, _ *a2e.Call, in number) (number, error) { return in, nil }, nil)
	tools.AddTool(set, "test_tool_with_progress", "Reports its progress.", func(_ context.Context, call *a2e.Call, _ struct{}) (string, error) {
		return "done", progress(func(text string) error { return call.Emit(a2e.EventProgress, map[string]any{"message": text}) })
	}, nil)
	wide := tools.Definition{Name: "json_schema_2020_12_tool", Description: "Has a schema with many keywords."}
	require.NoError(t, wide.Extra.Set("input_schema", json.RawMessage(schema2020)))
	set.Add(tools.Tool{Definition: wide, Run: func(context.Context, *a2e.Call, json.RawMessage) (any, error) { return 1, nil }})
	header := tools.Definition{Name: "test_headers", Description: "Has a parameter in a header."}
	require.NoError(t, header.Extra.Set("input_schema", json.RawMessage(`{"type":"object","properties":{"region":{"type":"string","x-mcp-header":"Region"}}}`)))
	set.Add(tools.Tool{Definition: header, Run: func(context.Context, *a2e.Call, json.RawMessage) (any, error) { return 1, nil }})
	discard := slog.New(slog.DiscardHandler)
	host := a2etest.NewHost(t, &a2e.HostOptions{Logger: discard}, set.Plugin())
	h, err := a2efront.NewHandler(host, &a2efront.Options{Logger: discard})
	require.NoError(t, err)
	return h
}

// jobs are the agents behind the tools of arcFront.
var jobs = map[string]arc.TaskHandlerFunc{
	"test_simple_text":    answer("a simple text"),
	"test_error_handling": func(context.Context, *arc.TaskRun) error { return errExpected },
	"test_tool_with_progress": func(ctx context.Context, run *arc.TaskRun) error {
		return progress(func(text string) error { return run.AddMessage(ctx, arc.AgentText(text)) })
	},
	"test_image_content":                        parts(arc.ImagePart("image/png", pixel)),
	"test_audio_content":                        parts(arc.AudioPart("audio/wav", pixel)),
	"test_embedded_resource":                    parts(arc.FilePart("a.txt", "text/plain", []byte("a text"))),
	"test_multiple_content_types":               parts(arc.TextPart("three types"), arc.ImagePart("image/png", pixel), arc.FilePart("a.json", "application/json", []byte(`{}`))),
	"test_input_required_result_elicitation":    ask(1),
	"test_input_required_result_request_state":  ask(1),
	"test_input_required_result_multi_round":    ask(2),
	"test_input_required_result_tampered_state": ask(1),
	"test_input_required_result_capabilities":   ask(1),
	"echo": func(ctx context.Context, run *arc.TaskRun) error {
		return run.AddArtifact(ctx, &arc.Artifact{Parts: []arc.Part{run.Message().Parts[1]}})
	},
	"greet": func(ctx context.Context, run *arc.TaskRun) error {
		var in struct{ Name string }
		if err := json.Unmarshal([]byte(run.Message().Parts[1].Content), &in); err != nil {
			return err
		}
		return run.AddMessage(ctx, arc.AgentText("Hello, "+in.Name+"!"))
	},
	"slow_compute": func(ctx context.Context, run *arc.TaskRun) error {
		var in struct{ Seconds int }
		if err := json.Unmarshal([]byte(run.Message().Parts[1].Content), &in); err != nil {
			return err
		}
		select {
		case <-time.After(time.Duration(in.Seconds) * time.Second):
			return run.AddMessage(ctx, arc.AgentText("computed"))
		case <-ctx.Done():
			return ctx.Err()
		}
	},
	"failing_job": func(context.Context, *arc.TaskRun) error {
		time.Sleep(time.Second)
		return arc.Errorf(arc.ErrTaskExecutionFailed, "no paint")
	},
	"protocol_error_job": func(context.Context, *arc.TaskRun) error {
		time.Sleep(time.Second)
		panic("a failure")
	},
	"confirm_delete": func(ctx context.Context, run *arc.TaskRun) error {
		if _, err := run.WaitInput(ctx, "Delete it?"); err != nil {
			return err
		}
		return run.AddMessage(ctx, arc.AgentText("deleted"))
	},
}

var pixel, _ = base64.StdEncoding.DecodeString("iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8BQDwAEhQGAhKmMIQAAAABJRU5ErkJggg==")

// parts is an agent with one artifact.
func parts(list ...arc.Part) arc.TaskHandlerFunc {
	return func(ctx context.Context, run *arc.TaskRun) error {
		return run.AddArtifact(ctx, &arc.Artifact{Parts: list})
	}
}

// ask is an agent with n questions.
func ask(n int) arc.TaskHandlerFunc {
	return func(ctx context.Context, run *arc.TaskRun) error {
		for range n {
			if _, err := run.WaitInput(ctx, "Is it right?"); err != nil {
				return err
			}
		}
		return run.AddMessage(ctx, arc.AgentText("state-ok"))
	}
}

func answer(text string) arc.TaskHandlerFunc {
	return func(ctx context.Context, run *arc.TaskRun) error { return run.AddMessage(ctx, arc.AgentText(text)) }
}

func arcFront(t *testing.T) http.Handler {
	t.Helper()
	discard := slog.New(slog.DiscardHandler)
	server, err := arc.NewServer(&arc.ServerOptions{Logger: discard, Auth: arc.Auth{AllowAnonymous: true}})
	require.NoError(t, err)
	t.Cleanup(func() { _ = server.Close() })
	var agents []arc.AgentInfo
	for name, job := range jobs {
		server.HandleTasks(name, job)
		agents = append(agents, arc.AgentInfo{AgentID: name, Name: name, Description: "Does " + name + "."})
	}
	slices.SortFunc(agents, func(a, b arc.AgentInfo) int { return strings.Compare(a.AgentID, b.AgentID) })
	h, err := arcfront.NewHandler(server, agents, &arcfront.Options{TaskDelay: 4 * pause, PollInterval: 4 * pause})
	require.NoError(t, err)
	return messages(h)
}

// messages makes the arguments of tools into those of the tools of ARC agents, which all have the same.
func messages(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		var call struct {
			Method string
			Params struct{ Arguments json.RawMessage }
		}
		if json.Unmarshal(body, &call) == nil && call.Method == "tools/call" && call.Params.Arguments != nil {
			body = bytes.Replace(body, call.Params.Arguments, []byte(`{"message":"go","data":`+string(call.Params.Arguments)+`}`), 1)
		}
		r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
		next.ServeHTTP(w, r)
	})
}

// fronts are the servers that have tools for clients of MCP.
var fronts = map[string]func(*testing.T) http.Handler{"altar": altarFront, "a2e": a2eFront, "arc": arcFront}

func serveFront(t *testing.T, name string) string {
	t.Helper()
	server := httptest.NewServer(fronts[name](t))
	t.Cleanup(server.Close)
	return server.URL
}

// toolScenarios are the scenarios of the conformance package for tools; the others are for resources, prompts,
// completion, logs, and sessions. Scenarios of the extension run alone.
var (
	toolScenarios = regexp.MustCompile(`^(server-initialize|server-stateless|ping|tools-.*|json-schema-2020-12|elicitation-.*|dns-rebinding-protection|` +
		`caching|http-.*|input-required-result-.*)$`)
	taskScenarios = []string{"tasks-lifecycle", "tasks-capability-negotiation", "tasks-wire-fields", "tasks-request-state-removal", "tasks-mrtr-input",
		"tasks-request-headers", "tasks-dispatch-and-envelope", "tasks-status-notifications", "tasks-required-task-error", "tasks-mrtr-composition"}
)

// A verdict is one of a check, and names the server, version, scenario and check.
type checkVerdict struct {
	name, message string
	isFailure     bool
}

// runMCPConformance runs scenarios against a server and returns the verdicts of those about tools.
func runMCPConformance(t *testing.T, front, label string, args ...string) (list []checkVerdict) {
	t.Helper()
	dir := t.TempDir()
	program := filepath.Join(peers(t, "node"), "node", "node_modules", "@modelcontextprotocol", "conformance", "dist", "index.js")
	cmd := exec.CommandContext(t.Context(), filepath.Join(peersDir(), "bin", "node"), append([]string{program, "server", "-o", dir}, args...)...)
	out, err := cmd.CombinedOutput() // it fails if a check does
	files, fault := filepath.Glob(filepath.Join(dir, "*", "checks.json"))
	require.NoError(t, fault)
	require.NotEmpty(t, files, "%v: %s", err, out)
	for _, f := range files {
		text, err := os.ReadFile(f)
		require.NoError(t, err)
		var checks []struct{ ID, Status, ErrorMessage string }
		require.NoError(t, json.Unmarshal(text, &checks))
		scenario := regexp.MustCompile(`^server-(.*)-\d{4}-\d\d-\d\dT[^T]*$`).FindStringSubmatch(filepath.Base(filepath.Dir(f)))[1]
		if label != "tasks" && !toolScenarios.MatchString(scenario) {
			continue
		}
		for _, c := range checks {
			if c.Status != "SKIPPED" {
				list = append(list, checkVerdict{strings.Join([]string{front, label, scenario, c.ID}, " "), c.ErrorMessage, c.Status == "FAILURE" || c.Status == "WARNING"})
			}
		}
	}
	return list
}

// The servers pass the scenarios for tools of the conformance package of MCP but the listed ones, and fail those.
func TestMCPConformance(t *testing.T) {
	t.Parallel() // it waits most of the time
	peers(t, "node")
	text, err := os.ReadFile(filepath.Join("peers", "node", "mcp_known.json"))
	require.NoError(t, err)
	var exceptions []struct{ Checks, Reason string }
	require.NoError(t, json.Unmarshal(text, &exceptions))
	var list []checkVerdict
	for front := range fronts {
		url := serveFront(t, front)
		for _, version := range []string{"2025-06-18", "2025-11-25", "2026-07-28"} {
			list = append(list, runMCPConformance(t, front, version, "--url", url, "--suite", "all", "--spec-version", version)...)
		}
		for _, scenario := range taskScenarios {
			if front == "arc" {
				list = append(list, runMCPConformance(t, front, "tasks", "--url", url, "--scenario", scenario)...)
			}
		}
	}
	require.Greater(t, len(list), 200)
	failures := map[int]int{}
	var patterns []*regexp.Regexp
	for _, k := range exceptions {
		patterns = append(patterns, regexp.MustCompile("^("+k.Checks+")$"))
	}
	for _, v := range list {
		i := slices.IndexFunc(patterns, func(p *regexp.Regexp) bool { return p.MatchString(v.name) })
		if strings.HasSuffix(v.name, " wire-schema-valid") {
			i = -1 // of each scenario, also of those whose other checks fail
		}
		switch {
		case v.isFailure && i < 0:
			t.Errorf("%s: %s", v.name, v.message)
		case v.isFailure:
			failures[i]++
		case i >= 0:
			t.Errorf("%s passes, and is listed as %q", v.name, exceptions[i].Checks)
		}
	}
	for i, k := range exceptions {
		if failures[i] == 0 {
			t.Errorf("no check is %q", k.Checks)
		}
	}
}

// The clients of the official npm packages list and call the tools in each version of the protocol.
func TestMCPFrontsNPMClients(t *testing.T) {
	for front := range fronts {
		url := serveFront(t, front)
		for _, c := range []struct{ program, mode, version string }{
			{"mcp_client.mjs", "", "2025-11-25"}, {"mcp_client_v2.mjs", "legacy", "2025-11-25"}, {"mcp_client_v2.mjs", "auto", "2026-07-28"},
		} {
			t.Run(front+" "+c.program+" "+c.mode, func(t *testing.T) {
				p := node(t, c.program)
				var hello struct{ Version string }
				p.into(&hello, request{"op": "connect", "url": url, "mode": c.mode})
				require.Equal(t, c.version, hello.Version)
				var list []struct{ Name string }
				p.into(&list, request{"op": "tools"})
				require.Contains(t, list, struct{ Name string }{"test_simple_text"})
				var result struct {
					IsError bool
					Content []struct{ Text string }
				}
				p.into(&result, request{"op": "call", "name": "test_simple_text", "args": request{}})
				require.False(t, result.IsError)
				require.Equal(t, "a simple text", result.Content[0].Text)
				p.into(&result, request{"op": "call", "name": "echo", "args": request{"n": int64(9007199254740991)}})
				require.JSONEq(t, `{"n":9007199254740991}`, result.Content[0].Text)
				p.into(&result, request{"op": "call", "name": "test_error_handling", "args": request{}})
				require.True(t, result.IsError)
				f := p.fails(request{"op": "call", "name": "none", "args": request{}})
				require.Equal(t, "-32602", string(f.Code))
				p.do(request{"op": "close"})
			})
		}
	}
}
