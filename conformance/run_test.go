// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// errBroken is not a refusal.
var errBroken = errors.New("something broke")

// fakeProtocol has one operation for each outcome that a runner must distinguish.
func fakeProtocol() Protocol {
	return Protocol{Name: "fake", Ops: map[string]Op{
		"echo": func(_ T, in *Input) (Answer, error) {
			return Answer{"json": in.Raw("json")}, nil
		},
		"upper": func(_ T, in *Input) (Answer, error) {
			return Answer{"text": strings.ToUpper(string(in.Wire("wire"))), "mode": Optional(in.StringOr("mode", "plain"))}, nil
		},
		"refuse": func(_ T, in *Input) (Answer, error) {
			f := NewFailure(in.StringOr("code", ""), errors.New("the reason"))
			f.Fields = Answer{"field": in.StringOr("field", "")}
			if in.Has("number") {
				f.Fields["code"] = in.Int("number")
			}
			return nil, fmt.Errorf("wrapped: %w", f)
		},
		"badRefusal": func(T, *Input) (Answer, error) {
			return nil, &Failure{Code: "x", Fields: Answer{"ratio": 0.5}}
		},
		"break":     func(T, *Input) (Answer, error) { return nil, errBroken },
		"panic":     func(T, *Input) (Answer, error) { panic("at the disco") },
		"badAnswer": func(T, *Input) (Answer, error) { return Answer{"json": raw(`{"a":1,"a":2}`)}, nil },
		"nothing":   func(T, *Input) (Answer, error) { return nil, nil },
		"nil":       nil,
		"script":    Script{Start: fakeStart, OwnReferences: []string{"OWN"}, Open: openFake}.Run,
		"noStart":   Script{Open: openFake}.Run,
		"noOpen":    Script{}.Run,
		"tooEarly":  Script{Start: time.Date(1999, 1, 1, 0, 0, 0, 0, time.UTC), Open: openFake}.Run,
		"cannotOpen": Script{Open: func(*testing.T, *Input) (Step, error) {
			return nil, errBroken
		}}.Run,
		"startFromInput": func(t T, in *Input) (Answer, error) {
			return Script{Start: in.Time("now"), Open: openFake}.Run(t, in)
		},
	}}
}

var fakeStart = time.Date(2024, 1, 15, 10, 30, 0, 0, time.UTC)

// openFake is a fixture with a clock, a counter of ids and a queue that
// delivers what is put in after a second.
func openFake(t *testing.T, in *Input) (Step, error) {
	var (
		mu        sync.Mutex
		delivered []string
		count     int
		work      sync.WaitGroup
	)
	prefix := in.StringOr("prefix", "id")
	t.Cleanup(work.Wait)
	return func(step *Input) (Answer, error) {
		switch do := step.String("do"); do {
		case "time":
			return Answer{"json": time.Now().UTC().Format(time.RFC3339Nano)}, nil
		case "new":
			count++
			return Answer{"json": fmt.Sprintf("%s-%d", prefix, count)}, nil
		case "say":
			return Answer{"text": step.String("wire")}, nil
		case "put":
			text := step.String("wire")
			work.Go(func() {
				time.Sleep(time.Second)
				mu.Lock()
				defer mu.Unlock()
				delivered = append(delivered, text)
			})
			synctest.Wait()
			return Answer{}, nil
		case "out":
			mu.Lock()
			defer mu.Unlock()
			out := delivered
			delivered = nil
			return Answer{"out": Default(out, []string{})}, nil
		case "sleep":
			time.Sleep(time.Minute)
			return Answer{}, nil
		case "refuse":
			return nil, NewFailure("no", nil)
		case "panic":
			panic("in a step")
		case "leak":
			go func() { <-make(chan int) }()
			return Answer{}, nil
		case "bad":
			return Answer{"x": 0.5}, nil
		case "want steps":
			return Answer{"in": step.Objects("steps")}, nil
		default:
			step.Fail("do", "unknown word %q", do)
			return Answer{}, nil
		}
	}, nil
}

// ran returns the result of one case of the fake protocol with that op, in, and
// want or wantErr.
func ran(t *testing.T, op, rest string, failures ...KnownFailure) Result {
	t.Helper()
	return runOne(t, fakeProtocol(), op, rest, failures...)
}

// runOne returns the result of the case <protocol>-demo-001 with that op, in,
// and want or wantErr.
func runOne(t *testing.T, p Protocol, op, rest string, failures ...KnownFailure) Result {
	t.Helper()
	id := p.Name + "-demo-001"
	text := fmt.Sprintf(`{"format":1,"protocol":%q,"suite":"demo","spec":"s","cases":[{"id":%q,"doc":"d","ref":"r","op":%q,%s}]}`,
		p.Name, id, op, rest)
	s := Load(folder(map[string]string{p.Name + "/demo.json": text}), "mine")
	require.Empty(t, s.Errors())
	x := executor{protocols: map[string]Protocol{p.Name: p}, failures: map[string]string{}}
	for _, k := range failures {
		x.failures[k.ID] = k.String()
	}
	var res Result
	x.execute(t, s.Cases()[0], &res)
	require.GreaterOrEqual(t, res.Seconds, 0.0)
	require.Equal(t, id, res.ID)
	return res
}

func TestExecute(t *testing.T) {
	tests := []struct {
		name    string
		op      string
		rest    string
		message string // of the failure; empty if the case passes
	}{
		{name: "echo", op: "echo", rest: `"in":{"json":{"a":1}},"want":{"json":{"a":1.0}}`},
		{name: "echo wrong", op: "echo", rest: `"in":{"json":{"a":1}},"want":{"json":{"a":2}}`, message: "want.json.a: want 2, got 1"},
		{name: "wire", op: "upper", rest: `"in":{"wire":"é\u0000"},"want":{"text":"É\u0000"}`},
		{name: "wire base64", op: "upper", rest: `"in":{"wireB64":"YWI="},"want":{"text":"AB"}`},
		{name: "wire broken base64", op: "upper", rest: `"in":{"wireB64":"YWI"},"want":{"text":"AB"}`, message: "in.wireB64: not base64"},
		{name: "wire twice", op: "upper", rest: `"in":{"wireB64":"YWI=","wire":"ab"},"want":{"text":"AB"}`, message: "in.wire: stands beside wireB64"},
		{name: "wire missing", op: "upper", rest: `"in":{},"want":{"text":""}`, message: "in.wire: missing"},
		{name: "unknown input", op: "upper", rest: `"in":{"wire":"a","mood":"x"},"want":{"text":"A"}`, message: "in.mood: the operation does not know this member"},
		{name: "wrong type", op: "upper", rest: `"in":{"wire":7},"want":{"text":""}`, message: "in.wire: want a string, not 7"},
		{name: "extra answer", op: "upper", rest: `"in":{"wire":"a"},"want":{}`, message: `want.text: want (absent), got "A"`},
		{name: "answer not UTF-8", op: "upper", rest: `"in":{"wireB64":"//8="},"want":{"text":"??"}`, message: "want.text: "},
		{name: "wanted refusal", op: "upper", rest: `"in":{"wire":"a"},"wantErr":"bad"`, message: `want the refusal "bad", got the answer {"mode":"plain","text":"A"}`},

		{name: "refusal", op: "refuse", rest: `"in":{"code":"bad"},"wantErr":"bad"`},
		{name: "other code", op: "refuse", rest: `"in":{"code":"worse"},"wantErr":"bad"`, message: "wantErr: want \"bad\", got \"worse\"\nthe implementation's error: want (nothing), got the reason"},
		{name: "no code", op: "refuse", rest: `"in":{},"wantErr":"bad"`, message: "a refusal without code"},
		{name: "fields", op: "refuse", rest: `"in":{"code":"bad","field":"f"},"wantErr":{"field":"f","code":"bad"}`},
		{name: "fewer fields", op: "refuse", rest: `"in":{"code":"bad","field":"f"},"wantErr":{"field":"f"}`},
		{name: "other field", op: "refuse", rest: `"in":{"code":"bad","field":"f"},"wantErr":{"field":"g"}`, message: `wantErr.field: want "g", got "f"`},
		{name: "more fields", op: "refuse", rest: `"in":{"code":"bad"},"wantErr":{"code":"bad","status":400}`, message: "wantErr.status: want 400, got (absent)"},
		{name: "number code", op: "refuse", rest: `"in":{"number":-32600},"wantErr":{"code":-32600}`},
		{name: "number is no text", op: "refuse", rest: `"in":{"number":-32600},"wantErr":"-32600"`, message: `wantErr: want "-32600", got -32600`},
		{name: "unwanted refusal", op: "refuse", rest: `"in":{"code":"bad"},"want":{}`, message: "want an answer, got a refusal: wrapped: refused as bad field=: the reason"},
		{name: "refusal with unknown input", op: "refuse", rest: `"in":{"code":"bad","mood":1},"wantErr":"bad"`, message: "in.mood: the operation does not know this member"},
		{name: "refusal that cannot be", op: "badRefusal", rest: `"in":{},"wantErr":"x"`, message: "failure.ratio: an answer cannot hold a float64"},

		{name: "broken", op: "break", rest: `"in":{},"want":{}`, message: "something broke"},
		{name: "broken is no refusal", op: "break", rest: `"in":{},"wantErr":"something broke"`, message: "something broke"},
		{name: "panic", op: "panic", rest: `"in":{},"wantErr":"at the disco"`, message: "panic: at the disco"},
		{name: "bad answer", op: "badAnswer", rest: `"in":{},"want":{"json":"$any"}`, message: "answer.json: the answer is not strict JSON: member name given twice"},
		{name: "no answer", op: "nothing", rest: `"in":{},"want":{}`},
		{name: "no answer but wanted", op: "nothing", rest: `"in":{},"want":{"a":1}`, message: "want.a: want 1, got (absent)"},
		{name: "unknown op", op: "dance", rest: `"in":{},"want":{}`, message: `protocol "fake" has no operation "dance"`},
		{name: "nil op", op: "nil", rest: `"in":{},"want":{}`, message: `protocol "fake" has no operation "nil"`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			res := ran(t, tt.op, tt.rest)
			if tt.message == "" {
				require.Equal(t, StatusPassed, res.Status, res.Message)
				require.Empty(t, res.Message)
				return
			}
			require.Equal(t, StatusFailed, res.Status)
			require.Contains(t, res.Message, tt.message)
			require.NotEmpty(t, res.In)
			require.True(t, (res.Want == nil) != (res.WantErr == nil))
		})
	}
}

func TestExecuteScript(t *testing.T) {
	tests := []struct {
		name    string
		op      string
		rest    string
		message string
	}{
		{name: "virtual time", op: "script", rest: `"in":{"steps":[{"do":"time"},{"do":"time","at":250},{"do":"time"},{"do":"time","at":86400000}]},
			"want":{"steps":[{"json":"2024-01-15T10:30:00Z"},{"json":"2024-01-15T10:30:00.25Z"},{"json":"2024-01-15T10:30:00.25Z"},{"json":"2024-01-16T10:30:00Z"}]}`},
		{name: "start of the bubble", op: "noStart", rest: `"in":{"steps":[{"do":"time"}]},"want":{"steps":[{"json":"2000-01-01T00:00:00Z"}]}`},
		{name: "start from the input", op: "startFromInput", rest: `"in":{"now":"2026-05-01T00:00:00Z","steps":[{"do":"time","at":1}]},"want":{"steps":[{"json":"2026-05-01T00:00:00.001Z"}]}`},
		{name: "start no time", op: "startFromInput", rest: `"in":{"now":"today","steps":[]},"want":{"steps":[]}`, message: `in.now: want an RFC 3339 timestamp, not "today"`},
		{name: "start too early", op: "tooEarly", rest: `"in":{"steps":[]},"want":{"steps":[]}`, message: "before the clock of the bubble"},
		{name: "timers that are due have run", op: "script", rest: `"in":{"steps":[{"do":"put","wire":"a"},{"do":"out","at":999},{"do":"out","at":1000},{"do":"out","at":2000}]},
			"want":{"steps":[{},{},{"out":["a"]},{}]}`},
		{name: "the clock keeps what a step waited", op: "script", rest: `"in":{"steps":[{"do":"sleep"},{"do":"time"}]},"want":{"steps":[{},{"json":"2024-01-15T10:31:00Z"}]}`},
		{name: "at before the clock", op: "script", rest: `"in":{"steps":[{"do":"sleep"},{"do":"time","at":1000}]},"want":{"steps":[{},{"json":"$time"}]}`, message: "in.steps[1].at: lies 59s before the clock"},
		{name: "at below zero", op: "script", rest: `"in":{"steps":[{"do":"time","at":-1}]},"want":{"steps":[{"json":"$time"}]}`, message: "in.steps[0].at: want 0 to"},
		{name: "at so late that its nanoseconds begin anew", op: "script", rest: `"in":{"steps":[{"do":"time","at":18446744073710}]},"want":{"steps":[{"json":"$time"}]}`, message: "in.steps[0].at: want 0 to"},
		{name: "at no number", op: "script", rest: `"in":{"steps":[{"do":"time","at":"1"}]},"want":{"steps":[{"json":"$time"}]}`, message: `in.steps[0].at: want an integer, not "1"`},
		{name: "remembered", op: "script", rest: `"in":{"prefix":"t","steps":[{"do":"new"},{"do":"new"},{"do":"say","wire":"x${a}y${b}${OWN}"},{"do":"say","wire":"$get:b"}]},
			"want":{"steps":[{"json":"$set:a"},{"json":"$set:b"},{"text":"xt-1yt-2${OWN}"},{"text":"t-2"}]}`},
		{name: "not yet remembered", op: "script", rest: `"in":{"steps":[{"do":"say","wire":"${a}"},{"do":"new"}]},"want":{"steps":[{"text":"${a}"},{"json":"$set:a"}]}`, message: `in.steps[0].wire: nothing is remembered under "a"`},
		{name: "wrong step", op: "script", rest: `"in":{"steps":[{"do":"new"},{"do":"new"},{"do":"panic"}]},"want":{"steps":[{"json":"id-1"},{"json":"id-3"},{}]}`, message: `want.steps[1].json: want "id-3", got "id-2"`},
		{name: "extra in a step", op: "script", rest: `"in":{"steps":[{"do":"new"}]},"want":{"steps":[{}]}`, message: `want.steps[0].json: want (absent), got "id-1"`},
		{name: "unknown member of a step", op: "script", rest: `"in":{"steps":[{"do":"new","mood":1}]},"want":{"steps":[{"json":"$any"}]}`, message: "in.steps[0].mood: the operation does not know this member"},
		{name: "unknown word", op: "script", rest: `"in":{"steps":[{"do":"dance"}]},"want":{"steps":[{}]}`, message: `in.steps[0].do: unknown word "dance"`},
		{name: "unknown member of the input", op: "script", rest: `"in":{"mood":1,"steps":[{"do":"new"}]},"want":{"steps":[{"json":"$any"}]}`, message: "in.mood: the operation does not know this member"},
		{name: "refusal in a step", op: "script", rest: `"in":{"steps":[{"do":"refuse"}]},"want":{"steps":[{}]}`, message: "want an answer, got a refusal: in.steps[0]: refused as no"},
		{name: "panic in a step", op: "script", rest: `"in":{"steps":[{"do":"panic"}]},"want":{"steps":[{}]}`, message: "panic: in a step"},
		{name: "leak", op: "script", rest: `"in":{"steps":[{"do":"leak"}]},"want":{"steps":[{}]}`, message: "blocked goroutines remain"},
		{name: "bad answer", op: "script", rest: `"in":{"steps":[{"do":"bad"}]},"want":{"steps":[{"x":0.5}]}`, message: "want.steps[0].x: an answer cannot hold a float64"},
		{name: "fewer steps wanted", op: "script", rest: `"in":{"steps":[{"do":"new"}]},"want":{"steps":[]}`, message: "want.steps has 0 steps, in.steps 1"},
		{name: "more steps wanted", op: "script", rest: `"in":{"steps":[]},"want":{"steps":[{}]}`, message: "want.steps has 1 steps, in.steps 0"},
		{name: "steps no list", op: "script", rest: `"in":{"steps":{}},"want":{"steps":[]}`, message: "in.steps: want a list"},
		{name: "step no object", op: "script", rest: `"in":{"steps":[1]},"want":{"steps":[{}]}`, message: "in.steps[0]: want an object"},
		{name: "no steps", op: "script", rest: `"in":{},"want":{"steps":[]}`, message: "in.steps: missing"},
		{name: "want no steps", op: "script", rest: `"in":{"steps":[]},"want":{}`, message: "want.steps: want a list"},
		{name: "wanted step no object", op: "script", rest: `"in":{"steps":[{}]},"want":{"steps":[1]}`, message: "want.steps[0]: want an object"},
		{name: "want more than steps", op: "script", rest: `"in":{"steps":[]},"want":{"steps":[],"json":1}`, message: "want.json: a script wants steps only"},
		{name: "wantErr", op: "script", rest: `"in":{"steps":[]},"wantErr":"x"`, message: "a script must have want"},
		{name: "no Open", op: "noOpen", rest: `"in":{"steps":[]},"want":{"steps":[]}`, message: "the script has no Open"},
		{name: "Open fails", op: "cannotOpen", rest: `"in":{"steps":[]},"want":{"steps":[]}`, message: "opening the fixture: something broke"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			res := ran(t, tt.op, tt.rest)
			if tt.message == "" {
				require.Equal(t, StatusPassed, res.Status, res.Message)
				return
			}
			require.Equal(t, StatusFailed, res.Status)
			require.Contains(t, res.Message, tt.message)
		})
	}
}

func TestScriptShowsAnswersOfSteps(t *testing.T) {
	res := ran(t, "script", `"in":{"steps":[{"do":"new"},{"do":"new"},{"do":"new"}]},"want":{"steps":[{"json":"$set:a"},{"json":"$get:a"},{}]}`)
	require.Len(t, res.Got, 2, "the steps that ran")
	require.JSONEq(t, `{"json":"id-2"}`, string(res.Got[1]))
	require.Equal(t, []Difference{{Path: "want.steps[1].json", Want: `"$get:a" = "id-1"`, Got: `"id-2"`}}, res.Differences)
}

func TestKnownFailures(t *testing.T) {
	failure := KnownFailure{ID: "fake-demo-001", Reason: "not yet"}
	res := ran(t, "break", `"in":{},"want":{}`, failure)
	require.Equal(t, StatusKnownFailure, res.Status)
	require.Equal(t, "not yet", res.Reason)
	require.Equal(t, "something broke", res.Message)

	res = ran(t, "nothing", `"in":{},"want":{}`, failure)
	require.Equal(t, StatusFailed, res.Status)
	require.Contains(t, res.Message, "known failure (not yet), but it passes")

	res = ran(t, "missing", `"in":{},"want":{}`, failure)
	require.Equal(t, StatusKnownFailure, res.Status, "an operation without code fails like any other case")

	failure.Package, failure.Ref = "fake", "section 3"
	require.Equal(t, "fake, section 3: not yet", ran(t, "break", `"in":{},"want":{}`, failure).Reason)
}

func TestRunFaults(t *testing.T) {
	good := Load(folder(map[string]string{"fake/demo.json": vectorFile(oneCase)}), "mine")
	fake := []Protocol{fakeProtocol()}
	require.Empty(t, runFaults(good, fake, nil))
	require.ErrorContains(t, runFaults(&Set{}, fake, nil)[0], "there are no vectors to run")
	require.ErrorContains(t, runFaults(good.Filter(func(*Case) bool { return false }), fake, nil)[0], "there are no vectors to run")
	require.ErrorContains(t, runFaults(good, append(fake, fake...), nil)[0], `protocol "fake" was given twice`)
	require.ErrorContains(t, runFaults(good, fake, []KnownFailure{{ID: "fake-demo-009"}})[0], "fake-demo-009 is not a case")
	bad := Load(folder(nil), "mine")
	require.Len(t, runFaults(Merge(good, bad), fake, nil), 1)
}

func TestRun(t *testing.T) {
	second := strings.NewReplacer("001\"", "002\"", `"echo"`, `"nothing"`).Replace(oneCase)
	third := strings.NewReplacer("001\"", "003\"", `"echo"`, `"break"`).Replace(oneCase)
	other := strings.NewReplacer("demo", "other", `"echo"`, `"nothing"`).Replace(oneCase)
	set := Merge(Load(folder(map[string]string{
		"fake/demo.json":  vectorFile(second, third),
		"fake/other.json": strings.Replace(vectorFile(other), `"suite":"demo"`, `"suite":"other"`, 1),
	}), "mine"))
	require.Empty(t, set.Errors())
	var report *Report
	t.Run("inner", func(t *testing.T) {
		report = Run(t, set, []Protocol{fakeProtocol()}, &Options{KnownFailures: []KnownFailure{{ID: "fake-demo-003", Reason: "broken"}}})
	})
	require.True(t, report.Passed())
	require.Equal(t, Counts{Passed: 2, Known: 1}, report.Counts())
	require.Len(t, report.Protocols(), 1)
	require.Len(t, report.Protocols()[0].Suites, 2)
}

// TestRunFails runs this test binary again, on folders that must fail it.
func TestRunFails(t *testing.T) {
	self, err := os.Executable()
	require.NoError(t, err)
	dir := t.TempDir()
	writeFolder(t, dir, map[string]string{
		"unknown/fake/demo.json": vectorFile(oneCase),
		"empty/README.md":        "",
		"broken/arc/x.json":      "{",
		"op/arc/x.json": `{"format":1,"protocol":"arc","suite":"x","spec":"s","cases":[
			{"id":"arc-x-001","doc":"d","ref":"f","op":"no_such_operation","in":{},"want":{}}]}`,
	})
	run := func(filter, env string, args ...string) (string, error) {
		cmd := exec.Command(self, append([]string{"-test.run=" + filter}, args...)...)
		cmd.Env = append(os.Environ(), "CONFORMANCE_VECTORS="+env)
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	at := func(name string) string { return filepath.Join(dir, name) }

	out, err := run("^TestVectors$/^fake$", at("unknown"))
	require.Error(t, err)
	require.Contains(t, out, "--- FAIL: TestVectors/fake/demo/fake-demo-001")
	require.Contains(t, out, `there is no implementation of protocol "fake" here`)

	out, err = run("^TestVectors$/^nothing$", "", "-vectors", at("empty")+string(filepath.ListSeparator)+at("broken"), "-vectors", at("gone"))
	require.Error(t, err)
	require.Contains(t, out, "empty: there are no vectors")
	require.Contains(t, out, "x.json:1:2: not valid JSON")
	require.Contains(t, out, at("gone")+": no such file")

	report := filepath.Join(dir, "report.json")
	out, err = run("^TestVectors$/^arc$/^x$", at("op"), "-report", report)
	require.Error(t, err)
	require.Contains(t, out, "--- FAIL: TestVectors/arc/x/arc-x-001")
	text, err := os.ReadFile(report)
	require.NoError(t, err)
	var written struct {
		OK        bool
		Failed    int
		Protocols []struct{ Suites []struct{ Suite string } }
	}
	require.NoError(t, json.Unmarshal(text, &written))
	require.False(t, written.OK)
	require.Equal(t, 1, written.Failed)
	require.Equal(t, "x", written.Protocols[0].Suites[0].Suite)

	out, err = run("^TestVectors$/^arc$/^x$", at("op"), "-report", filepath.Join(dir, "report.doc"))
	require.Error(t, err)
	require.Contains(t, out, "the name must end in .txt, .json, .xml or .html")
	require.NotContains(t, out, "arc-x-001", "this is said before the vectors run")

	out, err = run("^TestVectors$/^arc$/^streem$", "")
	require.Error(t, err)
	require.Contains(t, out, "cases has run: -run or -skip leaves none")
}

// TestOpThatEndsTheTest shows that an operation that calls FailNow still leaves
// a result. It runs in a separate process, because the test fails.
func TestOpThatEndsTheTest(t *testing.T) {
	const variable = "CONFORMANCE_TEST_FAILNOW"
	if os.Getenv(variable) == "" {
		self, err := os.Executable()
		require.NoError(t, err)
		cmd := exec.Command(self, "-test.run=^TestOpThatEndsTheTest$", "-test.v")
		cmd.Env = append(os.Environ(), variable+"=1")
		out, err := cmd.CombinedOutput()
		require.Error(t, err)
		require.Contains(t, string(out), "the operation ended the test instead of returning an error")
		require.Contains(t, string(out), "fake-demo-002 passed")
		return
	}
	set := Load(folder(map[string]string{"fake/demo.json": vectorFile(
		strings.Replace(oneCase, `"echo"`, `"end"`, 1),
		strings.NewReplacer("001\"", "002\"", `"echo"`, `"nothing"`).Replace(oneCase),
		strings.NewReplacer("001\"", "003\"", `"echo"`, `"endInScript"`, `"in":{},"want":{}`, `"in":{"steps":[{}]},"want":{"steps":[{}]}`).Replace(oneCase),
	)}), "mine")
	fake := fakeProtocol()
	fake.Ops["end"] = func(t T, _ *Input) (Answer, error) { t.(*testing.T).FailNow(); return nil, nil }
	fake.Ops["endInScript"] = Script{Open: func(t *testing.T, _ *Input) (Step, error) {
		return func(*Input) (Answer, error) { t.FailNow(); return nil, nil }, nil
	}}.Run
	report := Run(t, set, []Protocol{fake}, nil)
	for _, res := range report.Results {
		t.Log(res.ID, res.Status)
	}
}

func newTestInput(t *testing.T, text string) *Input {
	t.Helper()
	return newInput("in", mustCheck(t, text), &caseRun{memory: memory{}})
}

func TestInput(t *testing.T) {
	in := newTestInput(t, `{"s":"x","n":-7,"big":9007199254740993,"b":true,"list":["a","b"],"ints":[1,2e0],"raw":{ "a" : 1.0 },
		"o":{"k":"v","deep":{"x":null}},"os":[{"i":1},{"i":2}],"at":"2024-01-15T10:30:00.5+01:00","chunksB64":["YQ==",""],
		"raws":[1.0,"x",{}],"h":{"x-a":"1","x-c":["3","4"],"Content-Type":null},"none":null}`)
	require.Equal(t, "x", in.String("s"))
	require.Equal(t, "x", in.StringOr("s", "y"))
	require.Equal(t, "y", in.StringOr("absent", "y"))
	require.Equal(t, -7, in.Int("n"))
	require.Equal(t, 5, in.IntOr("absent", 5))
	require.Equal(t, int64(9007199254740993), in.Int64Or("big", 0))
	require.True(t, in.Bool("b"))
	require.False(t, in.Bool("absent"))
	require.True(t, in.BoolOr("absent", true))
	require.Equal(t, []string{"a", "b"}, in.Strings("list"))
	require.Equal(t, []string{"a", "b"}, in.StringsOr("list"))
	require.Nil(t, in.StringsOr("absent"))
	require.Equal(t, []int64{1, 2}, in.Ints("ints"))
	require.Equal(t, `{ "a" : 1.0 }`, string(in.Raw("raw")))
	require.Nil(t, in.Raw("absent"))
	require.Equal(t, []json.RawMessage{raw("1.0"), raw(`"x"`), raw("{}")}, in.RawList("raws"))
	require.Equal(t, []string{"k", "deep"}, in.Object("o").Names())
	require.False(t, in.ObjectOr("absent").Has("k"))
	os := in.Objects("os")
	require.Len(t, os, 2)
	require.Equal(t, 2, os[1].Int("i"))
	require.True(t, time.Date(2024, 1, 15, 9, 30, 0, 5e8, time.UTC).Equal(in.Time("at")))
	require.Equal(t, [][]byte{[]byte("a"), {}}, in.BytesList("chunksB64"))
	_, ok := in.WireOr("absent")
	require.False(t, ok)
	header := http.Header{"Content-Type": {"text/plain"}, "X-B": {"2"}}
	in.SetHeaders("h", header)
	in.SetHeaders("absent", header)
	require.Equal(t, http.Header{"X-A": {"1"}, "X-B": {"2"}, "X-C": {"3", "4"}}, header)
	require.True(t, in.Has("none"))
	require.False(t, in.IsNull("absent"))
	require.False(t, in.IsNull("s"))
	require.EqualError(t, in.unread(), "in.none: the operation does not know this member")
	require.True(t, in.IsNull("none"))
	require.EqualError(t, in.unread(), "in.o.k: the operation does not know this member")
	require.NoError(t, in.Err())
}

func TestInputFaults(t *testing.T) {
	const text = `{"s":"x","n":1.5,"huge":1e30,"list":["a",1],"o":{},"null":null,"b64":["!"],"mixed":[{},[]]}`
	tests := []struct {
		read func(*Input)
		err  string
	}{
		{func(in *Input) { in.String("absent") }, "in.absent: missing"},
		{func(in *Input) { in.String("null") }, "in.null: want a string, not null"},
		{func(in *Input) { in.StringOr("n", "") }, "in.n: want a string, not 1.5"},
		{func(in *Input) { in.Int("n") }, "in.n: want an integer, not 1.5"},
		{func(in *Input) { in.Int("huge") }, "in.huge: want an integer, not 1e30"},
		{func(in *Input) { in.Bool("s") }, `in.s: want a boolean, not "x"`},
		{func(in *Input) { in.Strings("list") }, "in.list[1]: want a string, not 1"},
		{func(in *Input) { in.Ints("list") }, `in.list[0]: want an integer, not "a"`},
		{func(in *Input) { in.Strings("o") }, "in.o: want a list, not {}"},
		{func(in *Input) { in.Object("list") }, `in.list: want an object, not ["a",1]`},
		{func(in *Input) { in.Objects("mixed") }, "in.mixed[1]: want an object, not []"},
		{func(in *Input) { in.BytesList("b64") }, "in.b64: not base64: illegal base64 data at input byte 0"},
		{func(in *Input) { in.Object("o").Int("x") }, "in.o.x: missing"},
		{func(in *Input) { in.SetHeaders("o", nil); in.Fail("s", "odd %d", 1) }, "in.s: odd 1"},
	}
	for _, tt := range tests {
		t.Run(tt.err, func(t *testing.T) {
			in := newTestInput(t, text)
			tt.read(in)
			require.EqualError(t, in.Err(), tt.err)
			in.Fail("later", "is not kept")
			require.EqualError(t, in.Err(), tt.err)
		})
	}
}

func TestFailure(t *testing.T) {
	f := &Failure{Code: "bad", Fields: Answer{"status": 400, "field": "x"}, Err: errBroken}
	require.EqualError(t, f, "refused as bad field=x status=400: something broke")
	require.ErrorIs(t, f, errBroken)
	require.EqualError(t, &Failure{}, "refused")
	require.EqualError(t, &Failure{Fields: Answer{"field": json.RawMessage(`"x"`)}}, `refused field="x"`)
}
