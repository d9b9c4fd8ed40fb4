// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fivewire/fivewire/conformance"
)

// self is the command that starts the test binary as a testee with a fault, or "none", or as a server under test with the path of
// another server and a fault.
func self(test string, args ...string) []string {
	return append([]string{os.Args[0], "-test.run", "^" + test + "$"}, args...)
}

// testeeOutput is the standard output of a testee, which the testing package does not use.
var testeeOutput = os.Stdout

func TestMain(m *testing.M) {
	if flag.Parse(); flag.NArg() > 0 {
		os.Stdout = os.Stderr
		os.Exit(m.Run())
	}
	if err := flag.Set("test.parallel", "6"); err != nil { // they wait most of the time
		panic(err)
	}
	var err error
	if programs, err = os.MkdirTemp("", "conform-"); err != nil {
		panic(err)
	}
	status := m.Run()
	_ = os.RemoveAll(programs)
	os.Exit(status)
}

// A fault is a deliberate mistake of a testee. Both functions may be nil.
type fault struct {
	request  func(*line) // changes what the testee reads
	response func(*line) // changes what it writes
	output   func(io.Writer, int, []byte) error
}

// A line is one message, and the operation that it belongs to.
type line struct {
	op      string
	members map[string]json.RawMessage
}

// wire changes the text of in.wire.
func (l *line) wire(change func(string) string) {
	in := map[string]json.RawMessage{}
	var text string
	if json.Unmarshal(l.members["in"], &in) != nil || json.Unmarshal(in["wire"], &text) != nil {
		return
	}
	in["wire"], _ = json.Marshal(change(text))
	l.members["in"], _ = json.Marshal(in)
}

// accept turns a refusal into an answer.
func (l *line) accept(answer string) {
	if l.members["refusal"] != nil {
		delete(l.members, "refusal")
		l.members["answer"] = json.RawMessage(answer)
	}
}

var faults = map[string]fault{
	"none": {},
	"sends no token": {request: func(l *line) {
		l.members["client"] = bytes.Replace(l.members["client"], []byte(`"token"`), []byte(`"other"`), 1)
	}},
	"takes a cut stream for a whole one": {response: func(l *line) {
		l.members["outcomes"] = bytes.Replace(l.members["outcomes"], []byte("truncated"), []byte("done"), 1)
	}},
	"accepts the answer to another request": {response: func(l *line) {
		l.members["outcomes"] = bytes.Replace(l.members["outcomes"], []byte("id_mismatch"), []byte("ok"), 1)
	}},
	"no client": {},
	"loses a cancel": {request: func(l *line) {
		l.members["do"] = bytes.Replace(l.members["do"], []byte(`{"cancel":"c`), []byte(`{"cancel":"other c`), 1)
	}},
	"never connects": {request: func(l *line) {
		if l.members["url"] != nil {
			l.members["url"] = json.RawMessage(`"http://127.0.0.1:1"`)
		}
	}},
	"takes a lost answer for a refusal": {response: func(l *line) {
		l.members["outcomes"] = bytes.Replace(l.members["outcomes"], []byte(`"mayHaveRun":true`), []byte(`"mayHaveRun":false`), 1)
	}},
	"takes a refusal for a delivery": {response: func(l *line) {
		l.members["outcomes"] = bytes.Replace(l.members["outcomes"], []byte(`"result":"forbidden"`), []byte(`"result":"delivered"`), 1)
	}},
	"last duplicate wins": {request: func(l *line) {
		l.wire(func(text string) string {
			d := json.NewDecoder(strings.NewReader(text))
			d.UseNumber()
			var v map[string]any
			if l.op != "decode_request" || d.Decode(&v) != nil || d.More() {
				return text
			}
			b, _ := json.Marshal(v)
			return string(b)
		})
	}},
	"id through a float": {response: func(l *line) {
		var a map[string]json.RawMessage
		var id string
		if json.Unmarshal(l.members["answer"], &a) != nil || json.Unmarshal(a["idRaw"], &id) != nil {
			return
		}
		var f float64
		if json.Unmarshal([]byte(id), &f) == nil {
			b, _ := json.Marshal(f)
			a["idRaw"], _ = json.Marshal(string(b))
			l.members["answer"], _ = json.Marshal(a)
		}
	}},
	"ignores the version": {request: func(l *line) {
		l.wire(func(text string) string {
			return regexp.MustCompile(`"arc":\s*"[^"]*"`).ReplaceAllString(text, `"arc":"1.0"`)
		})
	}},
	"accepts a low-order key": {response: func(l *line) {
		if l.op == "to_x25519" {
			l.accept(`{"x25519PublicHex":"0000000000000000000000000000000000000000000000000000000000000000"}`)
		}
	}},
	"SSE with LF only": {request: func(l *line) {
		if l.op == "sse_decode" {
			l.wire(func(text string) string { return strings.ReplaceAll(text, "\r", " ") })
		}
	}},
	"done after an error": {response: func(l *line) {
		if l.op == "sse_encode" {
			l.accept(`{"json":[]}`)
		}
	}},
	"never answers": {output: func(w io.Writer, n int, b []byte) error {
		if n > 0 {
			return nil
		}
		_, err := w.Write(b)
		return err
	}},
	"crashes": {output: func(w io.Writer, n int, b []byte) error {
		if n > 0 {
			fmt.Fprintln(os.Stderr, "something went wrong")
			os.Exit(7)
		}
		_, err := w.Write(b)
		return err
	}},
	"hangs": {output: func(w io.Writer, n int, b []byte) error {
		if n > 0 {
			time.Sleep(time.Hour)
		}
		_, err := w.Write(b)
		return err
	}},
	"no JSON": {output: func(w io.Writer, n int, b []byte) error {
		if n > 0 {
			b = []byte("here is the answer\n")
		}
		_, err := w.Write(b)
		return err
	}},
	"unknown operation": {output: func(w io.Writer, _ int, b []byte) error {
		_, err := w.Write(bytes.Replace(b, []byte(`"sign"`), []byte(`"sing"`), 1))
		return err
	}},
	"no low-order operation": {output: func(w io.Writer, _ int, b []byte) error {
		_, err := w.Write(bytes.Replace(b, []byte(`"to_x25519",`), nil, 1))
		return err
	}},
	"leaves a child": {output: func(w io.Writer, n int, b []byte) error {
		if n == 0 {
			cmd := exec.Command("sleep", "600")
			if err := cmd.Start(); err != nil {
				return err
			}
			if err := os.WriteFile(os.Getenv("CONFORM_TEST_PID"), fmt.Append(nil, cmd.Process.Pid), 0o600); err != nil {
				return err
			}
		}
		_, err := w.Write(b)
		return err
	}},
}

// A filter changes the lines of a testee. Each write of a testee is one line.
type filter struct {
	fault
	in    *bufio.Reader
	rest  []byte
	ops   sync.Map // names of operations by id
	lines atomic.Int64
}

func (f *filter) Read(b []byte) (int, error) {
	if len(f.rest) == 0 {
		text, err := f.in.ReadBytes('\n')
		if err != nil {
			return 0, err
		}
		f.rest = f.change(text, f.request)
	}
	n := copy(b, f.rest)
	f.rest = f.rest[n:]
	return n, nil
}

func (f *filter) Write(b []byte) (int, error) {
	text := f.change(b, f.response)
	n := int(f.lines.Add(1)) - 1
	if f.output != nil {
		return len(b), f.output(testeeOutput, n, text)
	}
	_, err := testeeOutput.Write(text)
	return len(b), err
}

func (f *filter) change(text []byte, change func(*line)) []byte {
	l := line{}
	if json.Unmarshal(text, &l.members) != nil {
		return text
	}
	id := string(l.members["id"])
	if json.Unmarshal(l.members["op"], &l.op) == nil {
		f.ops.Store(id, l.op)
	}
	if change == nil {
		return text
	}
	if op, ok := f.ops.Load(id); ok {
		l.op = op.(string)
	}
	change(&l)
	text, _ = json.Marshal(l.members)
	return append(text, '\n')
}

// TestTestee is the testee, in a test binary that is started as one.
func TestTestee(t *testing.T) {
	name := flag.Arg(0)
	if name == "" {
		t.Skip("the conform command runs this")
	}
	f, ok := faults[name]
	if !ok {
		t.Fatal("unknown fault", name)
	}
	pipes := &filter{fault: f, in: bufio.NewReaderSize(os.Stdin, 1<<20)}
	testee := &conformance.Testee{Name: "broken", Version: "1", Protocols: conformance.Builtin(),
		Clients: conformance.BuiltinClients()}
	if name == "no client" {
		testee.Clients = nil
	}
	if err := testee.Serve(t, pipes, pipes); err != nil {
		t.Fatal(err)
	}
}
