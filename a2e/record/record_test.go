// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package record_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/fivewire/fivewire/a2e"
	"github.com/fivewire/fivewire/a2e/a2etest"
	"github.com/fivewire/fivewire/a2e/catalogue"
	"github.com/fivewire/fivewire/a2e/record"
	"github.com/fivewire/fivewire/a2e/subagents"
	"github.com/fivewire/fivewire/a2e/tools"
	"github.com/fivewire/fivewire/internal/testkit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const token = "correct-horse"

// newHost returns a host with a tool that sleeps for half an hour and fails from the third call on.
func newHost(t *testing.T, w io.Writer, answer string) *a2e.Host {
	set := a2etest.Must(tools.NewSet(nil))
	calls := 0
	tools.AddTool(set, "work", "Works", func(ctx context.Context, _ *a2e.Call, in struct {
		Text string `json:"text"`
	}) (string, error) {
		time.Sleep(time.Hour / 2)
		if calls++; calls > 2 {
			return "", a2e.Errorf(a2e.ErrTool, "disk is full")
		}
		return answer + in.Text, nil
	}, nil)
	opts := &a2e.HostOptions{Auth: a2e.Auth{Authenticator: a2etest.KeyAuthenticator(token)}}
	if w != nil {
		opts.Record = func(string) io.Writer { return w }
	}
	return a2etest.NewHost(t, opts, set.Plugin())
}

// useHost is the program of an agent.
func useHost(ctx context.Context, rw io.ReadWriteCloser, w io.Writer) error {
	c, err := a2e.NewClient(rw, &a2e.ClientOptions{
		AgentID: "ann", Token: token, Capabilities: []string{"tools"}, Types: catalogue.Types(), Record: w,
	})
	if err != nil {
		return err
	}
	if _, err = c.Connect(ctx); err == nil {
		for i := range 3 {
			_, err = a2e.CallAs[tools.CallResponse](ctx, c, "tool/call/req", &tools.CallRequest{
				ToolName: "work", Arguments: fmt.Appendf(nil, `{"text":"%d"}`, i), Timeout: 3600,
			}, &a2e.CallOptions{Timeout: 2 * time.Hour})
		}
	}
	return errors.Join(err, c.Close())
}

// session makes a recording at both ends.
func session(t *testing.T) (atHost, atAgent *record.Recording) {
	var hostFile, agentFile bytes.Buffer
	agent, host := a2e.Pipe()
	served := make(chan error, 1)
	h := newHost(t, &hostFile, "done ")
	go func() { served <- h.Serve(t.Context(), host) }()
	_ = useHost(t.Context(), agent, &agentFile)
	require.NoError(t, <-served)
	require.NoError(t, h.Shutdown(t.Context()))
	synctest.Wait()
	for _, file := range []string{hostFile.String(), agentFile.String()} {
		require.NotContains(t, file, token)
		require.Contains(t, file, "***")
		require.Contains(t, file, "disk is full")
	}
	return a2etest.Must(record.Read(&hostFile)), a2etest.Must(record.Read(&agentFile))
}

// The recording of a failed session is a test of a host: it passes with the same host, and names the
// line and the member that a changed host answers in another way (A2E-D69).
func TestRecordingIsATestOfAHost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		recording, _ := session(t)
		require.Equal(t, record.RoleHost, recording.Role)
		require.False(t, recording.Truncated)
		replay := func(answer string, opts *record.ReplayOptions) error {
			agent, host := a2e.Pipe()
			served := make(chan error, 1)
			go func() { served <- newHost(t, nil, answer).Serve(t.Context(), host) }()
			started := time.Now()
			err := record.Replay(t.Context(), agent, recording, opts)
			<-served
			if err == nil {
				require.GreaterOrEqual(t, time.Since(started), 3*time.Hour/2)
			}
			return err
		}
		require.NoError(t, replay("done ", &record.ReplayOptions{Token: token}))
		var different *record.Difference
		require.ErrorAs(t, replay("changed ", &record.ReplayOptions{Token: token}), &different)
		require.Contains(t, different.Path, "data")
		require.Contains(t, different.Want, "done 0")
		require.Contains(t, different.Got, "changed 0")
		require.Contains(t, recording.Lines[different.Line-1].Text, "done 0")
		require.True(t, recording.Lines[different.Line-1].Sent)
		require.NoError(t, replay("changed ", &record.ReplayOptions{Token: token, Ignore: []string{different.Path}}))
		require.ErrorAs(t, replay("done ", nil), &different) // the token is not in the recording
		require.Equal(t, "session_id", different.Path)
	})
}

// The ids of subagents and agents match, too, and a request is one whatever its type is called.
func TestRecordingOfSubagents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var hostFile, agentFile bytes.Buffer
		serve := func(rw io.ReadWriteCloser, w io.Writer) chan error {
			crew := a2etest.Must(subagents.NewPlugin(subagents.RunnerFunc(
				func(context.Context, *subagents.Agent, *subagents.Task) (json.RawMessage, error) { return nil, nil }), nil))
			h := a2etest.NewHost(t, &a2e.HostOptions{Record: func(string) io.Writer { return w }}, crew)
			done := make(chan error, 1)
			go func() { done <- h.Serve(t.Context(), rw) }()
			return done
		}
		use := func(rw io.ReadWriteCloser, w io.Writer) error {
			c := a2etest.Must(a2e.NewClient(rw, &a2e.ClientOptions{Capabilities: []string{"multi_agent"}, Types: catalogue.Types(), Record: w}))
			_, err := c.Connect(t.Context())
			require.NoError(t, err)
			crew := a2etest.Must(subagents.NewClient(c))
			worker := a2etest.Must(crew.Spawn(t.Context(), nil, nil))
			_, err = crew.Delegate(t.Context(), &subagents.DelegateRequest{SubagentID: worker.SubagentID, TaskName: "x"}, nil)
			require.NoError(t, err)
			_, err = crew.Await(t.Context(), &subagents.AwaitRequest{SubagentID: worker.SubagentID}, nil)
			require.NoError(t, err)
			return c.Close()
		}
		agent, host := a2e.Pipe()
		done := serve(host, &hostFile)
		require.NoError(t, use(agent, &agentFile))
		require.NoError(t, <-done)
		atHost, atAgent := a2etest.Must(record.Read(&hostFile)), a2etest.Must(record.Read(&agentFile))
		agent, host = a2e.Pipe()
		done = serve(host, io.Discard)
		require.NoError(t, record.Replay(t.Context(), agent, atHost, nil))
		require.NoError(t, <-done)
		agent, host = a2e.Pipe()
		go func() { done <- record.Replay(t.Context(), host, atAgent, nil) }()
		require.NoError(t, use(agent, nil))
		require.NoError(t, <-done)
		_, err := atAgent.Vector()
		require.NoError(t, err)
	})
}

// The recording of an agent is a host for the same agent.
func TestRecordingIsATestOfAnAgent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, recording := session(t)
		require.Equal(t, record.RoleAgent, recording.Role)
		replay := func(use func(rw io.ReadWriteCloser) error) (played, used error) {
			agent, host := a2e.Pipe()
			result := make(chan error, 1)
			go func() { result <- use(agent) }()
			played = record.Replay(t.Context(), host, recording, nil)
			return played, <-result
		}
		played, used := replay(func(rw io.ReadWriteCloser) error { return useHost(t.Context(), rw, nil) })
		require.NoError(t, played)
		require.ErrorContains(t, used, "disk is full")
		played, _ = replay(func(rw io.ReadWriteCloser) error { return rw.Close() })
		var different *record.Difference
		require.ErrorAs(t, played, &different)
		require.Equal(t, 1, different.Line)
		require.Empty(t, different.Got)
		require.ErrorContains(t, different, "end of the connection")
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		_, host := a2e.Pipe()
		require.ErrorIs(t, record.Replay(ctx, host, recording, nil), context.Canceled)
	})
}

// Both ends record over HTTP and WebSocket, too, in the same order.
func TestRecordOverNetworks(t *testing.T) {
	for _, scheme := range []string{"http", "ws"} {
		var atHost, atAgent bytes.Buffer
		h := a2etest.NewHost(t, &a2e.HostOptions{Record: func(peer string) io.Writer {
			require.NotEmpty(t, peer)
			return &atHost
		}}, a2etest.Must(tools.NewSet(nil)).Plugin())
		handler, err := a2e.NewHTTPHandler(h, nil)
		require.NoError(t, err)
		server := httptest.NewServer(handler)
		if scheme == "ws" {
			server.Config.Handler = a2etest.Must(a2e.NewWebSocketHandler(h, nil))
		}
		var rw io.ReadWriteCloser
		if scheme == "ws" {
			rw, err = a2e.DialWebSocket(t.Context(), strings.Replace(server.URL, "http", "ws", 1), nil)
		} else {
			rw, err = a2e.DialHTTP(t.Context(), server.URL, nil)
		}
		require.NoError(t, err)
		c := a2etest.Must(a2e.NewClient(rw, &a2e.ClientOptions{Capabilities: []string{"tools"}, Types: catalogue.Types(), Record: &atAgent}))
		_, err = c.Connect(t.Context())
		require.NoError(t, err)
		for range 3 {
			_, err = c.Call(t.Context(), "tool/list/req", &tools.ListRequest{}, nil)
			require.NoError(t, err)
		}
		require.NoError(t, c.Close())
		require.NoError(t, h.Shutdown(t.Context()))
		server.Close()
		one, two := a2etest.Must(record.Read(&atHost)), a2etest.Must(record.Read(&atAgent))
		require.GreaterOrEqual(t, len(one.Lines), 8)
		for i := range 8 {
			require.Equal(t, one.Lines[i].Text, two.Lines[i].Text)
			require.NotEqual(t, one.Lines[i].Sent, two.Lines[i].Sent)
			require.Equal(t, i%2 == 1, one.Lines[i].Sent)
		}
	}
}

// brokenWriter fails, panics or hangs at its first use.
type brokenWriter func()

func (b brokenWriter) Write([]byte) (int, error) {
	b()
	return 0, errors.New("disk is full")
}

// A writer that fails, panics or hangs harms no session.
func TestBrokenWriterHarmsNoSession(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hang := make(chan struct{})
		defer close(hang)
		var calls atomic.Int32
		for _, w := range []brokenWriter{func() { calls.Add(1) }, func() { panic("broken") }, func() { <-hang }} {
			started := time.Now()
			agent, host := a2e.Pipe()
			h := newHost(t, w, "")
			go func() { _ = h.Serve(t.Context(), host) }()
			require.ErrorContains(t, useHost(t.Context(), agent, w), "disk is full")
			_ = h.Close()
			require.Less(t, time.Since(started), 3*time.Hour/2+10*time.Second)
		}
		require.EqualValues(t, 2, calls.Load(), "once at each end")
	})
}

// slowWriter takes a while for each write.
type slowWriter struct{ bytes.Buffer }

func (w *slowWriter) Write(b []byte) (int, error) {
	time.Sleep(300 * time.Millisecond)
	return w.Buffer.Write(b)
}

// A recording is complete when Close and Shutdown return.
func TestEndWaitsForTheRecording(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var atHost, atAgent slowWriter
		agent, host := a2e.Pipe()
		h := newHost(t, &atHost, "")
		go func() { _ = h.Serve(t.Context(), host) }()
		require.Error(t, useHost(t.Context(), agent, &atAgent))
		require.Contains(t, atAgent.String(), "shutdown")
		require.NoError(t, h.Shutdown(t.Context()))
		require.Contains(t, atHost.String(), "shutdown")
	})
}

// A program that answers another request than recorded is found by the ids.
func TestReplayMatchesIDs(t *testing.T) {
	id := func(n int) string { return fmt.Sprintf("%032x", n) }
	recording := &record.Recording{Role: record.RoleAgent}
	for _, n := range []int{1, 2, 1, 2} {
		recording.Lines = append(recording.Lines,
			record.Line{Sent: true, Text: `{"type":"t","id":"` + id(n) + `"}`}, record.Line{Text: `{"type":"u","req_id":"` + id(n) + `"}`})
	}
	for _, sent := range [][]int{{7, 8, 7, 8}, {7, 8, 8, 7}, {7, 7, 7, 8}} {
		agent, host := a2e.Pipe()
		go func() {
			for _, n := range sent {
				_, _ = agent.Write([]byte(`{"type":"t","id":"` + id(n) + `"}` + "\n"))
				_, _ = agent.Read(make([]byte, 100))
			}
		}()
		err := record.Replay(t.Context(), host, recording, nil)
		if sent[1] == 8 && sent[2] == 7 {
			require.NoError(t, err)
			continue
		}
		var different *record.Difference
		require.ErrorAs(t, err, &different)
		require.Equal(t, "id", different.Path)
	}
}

// A vector has the labels of a client for the events of a call (A2E-D29): the first event is in order, whatever its
// number.
func TestVectorLabelsEvents(t *testing.T) {
	r := &record.Recording{Role: record.RoleAgent, Lines: []record.Line{{Sent: true, Text: `{"type":"tool/call/req","id":"c"}`}}}
	for _, seq := range []int{7, 8, 8, 7, 10, 11} {
		r.Lines = append(r.Lines, record.Line{Text: fmt.Sprintf(`{"type":"tool/event","req_id":"c","seq":%d}`, seq)})
	}
	var file struct {
		Cases []struct {
			Want struct {
				Steps []struct{ Events []struct{ Order a2e.Order } }
			}
		}
	}
	require.NoError(t, json.Unmarshal(a2etest.Must(r.Vector()), &file))
	var got []a2e.Order
	for _, step := range file.Cases[0].Want.Steps {
		for _, e := range step.Events {
			got = append(got, e.Order)
		}
	}
	require.Equal(t, []a2e.Order{a2e.OrderOK, a2e.OrderOK, a2e.OrderRepeat, a2e.OrderRegress, a2e.OrderGap, a2e.OrderOK}, got)
}

// Secrets are replaced in any message, also in an invalid one (A2E-151, A2E-D69).
func TestRecordHidesSecrets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var file bytes.Buffer
		agent, host := a2e.Pipe()
		go func() { _ = newHost(t, &file, "").Serve(t.Context(), host) }()
		for _, line := range []string{
			`{"a2e":"1.0","type":"handshake/req","id":"1","ts":1,"agent_id":"a","agent_caps":[],"auth_token":"hunter2"}`,
			`{"a2e":"1.0","type":"handshake/req","auth_token":"hunter2"`,
			`{"a2e":"1.0","type":"toolkit/configure/req","id":"2","ts":1,"config":{"a":["hunter2",{"b":"hunter2"}],"n":7}}`,
			`{"a2e":"1.0","type":"mcp/server/register/req","id":"3","ts":1,"config":{"env":{"K":"hunter2"},"Headers":{"X":"hunter2"},"name":"visible"}}`,
		} {
			_, err := agent.Write([]byte(line + "\n"))
			require.NoError(t, err)
		}
		synctest.Wait()
		require.NoError(t, agent.Close())
		synctest.Wait()
		require.NotContains(t, file.String(), "hunter2")
		require.Contains(t, file.String(), "visible")
		recording := a2etest.Must(record.Read(&file))
		var in []string
		for _, line := range recording.Lines {
			if !line.Sent {
				in = append(in, line.Text)
			}
		}
		require.Equal(t, "***", in[1])
		require.Equal(t, `{"a2e":"1.0","type":"toolkit/configure/req","id":"2","ts":1,"config":{"a":["***",{"b":"***"}],"n":"***"}}`, in[2])
	})
}

// Read refuses other files, and reads the file of a killed recorder.
func TestRead(t *testing.T) {
	head := `{"a2e_record":1,"role":"host","started":1.5}` + "\n"
	line := `{"t":1500,"dir":"in","line":"{}"}` + "\n"
	r, err := record.Read(strings.NewReader(head + line + `{"t":16`))
	require.NoError(t, err)
	require.Equal(t, &record.Recording{Role: "host", Started: time.UnixMicro(1500000), Truncated: true,
		Lines: []record.Line{{Time: 1500 * time.Microsecond, Text: "{}"}}}, r)
	for _, text := range []string{"", "x\n", `{"a2e_record":2,"role":"host"}` + "\n", `{"a2e_record":1,"role":"x"}` + "\n",
		head + `{"t":1,"dir":"up","line":""}` + "\n", head + `{"t":1,"dir":"in"}` + "\n"} {
		_, err := record.Read(strings.NewReader(text))
		require.Error(t, err, text)
	}
}

func TestDifferenceNamesPlace(t *testing.T) {
	require.EqualError(t, &record.Difference{Line: 2, Path: "data.name", Want: `"a"`, Got: `"b"`}, `record: line 2: data.name: want "a", got "b"`)
	require.EqualError(t, &record.Difference{Line: 1, Want: "{}"}, "record: line 1: the message: want {}, got the end of the connection")
}

// Replay ends with its context, also while the program reads nothing.
func TestReplayEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &record.Recording{Role: record.RoleHost, Lines: []record.Line{{Text: strings.Repeat("x", 8<<20)}, {Text: "y"}}}
		player, program := a2e.Pipe()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		require.ErrorIs(t, record.Replay(ctx, player, r, nil), context.DeadlineExceeded)
		require.NoError(t, program.Close())
	})
}

// The time of a replay grows with the number of messages, not with its square.
func TestReplayOfManyMessages(t *testing.T) {
	testkit.RequireLess(t, 20, 500, 5000, func(n int) time.Duration {
		r := &record.Recording{Role: record.RoleAgent}
		for i := range n {
			id := fmt.Sprintf("%032x", i)
			r.Lines = append(r.Lines, record.Line{Sent: true, Text: `{"id":"` + id + `"}`}, record.Line{Text: `{"req_id":"` + id + `"}`})
		}
		player, program := a2e.Pipe()
		var work sync.WaitGroup
		work.Go(func() {
			answers := bufio.NewReader(program)
			for i := range n {
				id := fmt.Sprintf("%032x", n+i)
				_, err := fmt.Fprintf(program, "{\"id\":%q}\n", id)
				assert.NoError(t, err)
				answer, err := answers.ReadString('\n')
				assert.NoError(t, err)
				assert.Contains(t, answer, id)
			}
		})
		start := time.Now()
		require.NoError(t, record.Replay(t.Context(), player, r, nil))
		work.Wait()
		require.NoError(t, program.Close())
		return time.Since(start)
	})
}
