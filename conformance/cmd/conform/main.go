// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

// Command conform tests an implementation of arc, a2e, altar, accp or air, in any
// language.
//
//	conform codec [flags] -- ./my-implementation
//	conform server -protocol NAME [flags] -- ./my-server
//	conform client -protocol NAME [flags] -- ./my-client
//	conform vector <recording >case.json
//
// In codec mode the implementation is a child process that answers one line of JSON with
// one line of JSON. The file OPERATIONS.md of package conformance describes both. In server
// mode it is a server with the fixtures of the folder fixtures, or one server that runs
// already (-url). In client mode it is a child process that calls the
// servers of this command. Vector makes a case of the recording of an A2E session.
//
// The exit status is 0 if all cases passed, 1 if some failed or none ran, and 2 if the run was not
// possible.
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fivewire/fivewire/a2e/record"
	"github.com/fivewire/fivewire/conformance"
	"github.com/fivewire/fivewire/internal/command"
)

func main() { os.Exit(run(os.Args[1:], os.Stdin, os.Stdout, os.Stderr)) }

// The exit statuses.
const (
	exitPassed = iota
	exitFailed
	exitNotRun
)

// A list is a flag that may be repeated.
type list []string

func (l *list) String() string     { return strings.Join(*l, ",") }
func (l *list) Set(s string) error { *l = append(*l, s); return nil }

// words returns the elements of a list whose values are separated by commas.
func (l list) words() []string {
	var out []string
	for _, s := range l {
		for word := range strings.SplitSeq(s, ",") {
			if word = strings.TrimSpace(word); word != "" {
				out = append(out, word)
			}
		}
	}
	return out
}

// A config holds the flags.
type config struct {
	vectors, reports       list
	protocols, suites, ops list
	baseline, badge        string
	requirements           string
	output, require        string
	timeout                time.Duration
	url, fixture, sink     string
	transport              string
	fresh                  bool
	slow                   bool
	mode                   string
	command                []string
	running                *running
}

// A running is the implementation under test.
type running struct {
	groups command.Groups         // of its processes
	testee atomic.Pointer[testee] // that has started; nil before, and in server mode
}

const usage = `Usage: conform codec [flags] -- COMMAND [argument...]
       conform server -protocol NAME [flags] -- COMMAND [argument...]
       conform server -protocol NAME [flags] -url URL
       conform client -protocol NAME [flags] -- COMMAND [argument...]
       conform vector <RECORDING >FILE

Tests an implementation of arc, a2e, altar, accp or air in any language.
In codec mode COMMAND answers one line of JSON on its standard input with one
line of JSON on its standard output, see conformance/OPERATIONS.md. In server
mode COMMAND starts a server and prints its URL, see conformance/fixtures. In
client mode it calls servers of conform, see conformance/CLIENT.md.

Vector makes a case of a recording of an A2E session, for -vectors.

Flags:
`

// parse returns the configuration, or [flag.ErrHelp] if the arguments ask for help, which it writes.
func parse(args []string, stdout, stderr io.Writer) (*config, error) {
	c := &config{}
	fs := flag.NewFlagSet("conform", flag.ContinueOnError)
	fs.SetOutput(io.Discard)
	help := func(w io.Writer) {
		fmt.Fprint(w, usage)
		fs.SetOutput(w)
		fs.PrintDefaults()
	}
	fs.Var(&c.vectors, "vectors", "run the vectors of this folder too, as the variable CONFORMANCE_VECTORS does; may be repeated")
	fs.Var(&c.reports, "report", "write a report to this file (.txt, .json, .xml for JUnit, or .html); may be repeated")
	fs.Var(&c.protocols, "protocol", "run only these protocols, separated by commas")
	fs.Var(&c.suites, "suite", "run only these suites, separated by commas")
	fs.Var(&c.ops, "op", "run only these operations, separated by commas")
	fs.StringVar(&c.baseline, "baseline", "", "read known failures from this file; one that passes fails the run")
	fs.StringVar(&c.requirements, "requirements", "", "follow the requirements of this release, such as v1.0.0, or of a file of one protocol (.json)")
	fs.StringVar(&c.badge, "badge", "", "write a badge to this file (.svg)")
	fs.StringVar(&c.output, "o", "text", "print the report as text or json")
	fs.StringVar(&c.require, "require", "", `"all" makes unsupported operations failures`)
	fs.DurationVar(&c.timeout, "timeout", 10*time.Second, "the longest time without an answer")
	fs.StringVar(&c.url, "url", "", "server mode: test the server at this URL")
	fs.StringVar(&c.fixture, "fixture", "", "server mode with -url: the fixture of the server (default: open for arc, {} for a2e and altar, desk for accp, "+
		"a relay with all mailboxes for air)")
	fs.StringVar(&c.sink, "sink", "", "server mode with -url: listen at this address for the requests of the server, whose CONFORM_SINK is http://ADDRESS")
	fs.StringVar(&c.transport, "transport", "", "server and client mode: connections whose messages are lines, by stdio (servers of a2e) or tcp (a2e and altar)")
	fs.BoolVar(&c.fresh, "fresh", false, "server mode: start a server for each case")
	fs.BoolVar(&c.slow, "slow", false, "server and client mode: run the cases that wait for more than 3 s, too")
	if len(args) == 0 {
		help(stderr)
		return nil, errors.New("a mode is missing")
	}
	err := flag.ErrHelp
	if !slices.Contains([]string{"-h", "-help", "--help", "help"}, args[0]) {
		err = fs.Parse(args[1:])
	}
	switch {
	case errors.Is(err, flag.ErrHelp):
		help(stdout)
		return nil, err
	case err != nil:
		help(stderr)
		return nil, err
	}
	c.mode, c.command = args[0], fs.Args()
	if strings.HasPrefix(c.url, "tcp://") {
		c.transport = "tcp"
	}
	switch {
	case c.mode == "vector":
		return nil, errors.New("vector reads a recording from its standard input, and takes no arguments")
	case !slices.Contains([]string{"codec", "server", "client"}, c.mode):
		return nil, fmt.Errorf("unknown mode %q; there are: codec, server, client, vector", c.mode)
	case c.url != "" && (c.mode != "server" || len(c.command) > 0):
		return nil, errors.New("-url: only in server mode, and without a command")
	case (c.sink != "" || c.fixture != "") && c.url == "":
		return nil, errors.New("-sink and -fixture: only with -url")
	case c.transport != "" && c.transport != "stdio" && c.transport != "tcp":
		return nil, fmt.Errorf("-transport %s: want stdio or tcp", c.transport)
	case c.transport != "" && c.mode == "codec", c.transport == "stdio" && (c.mode != "server" || c.url != ""):
		return nil, fmt.Errorf("-transport %s: not in this mode", c.transport)
	case c.url == "" && len(c.command) == 0:
		return nil, fmt.Errorf("the command of the implementation is missing: conform %s -- COMMAND", c.mode)
	case c.output != "text" && c.output != "json":
		return nil, fmt.Errorf("-o %s: want text or json", c.output)
	case c.require != "" && c.require != "all":
		return nil, fmt.Errorf("-require %s: want all", c.require)
	case c.timeout <= 0:
		return nil, errors.New("-timeout: want more than 0")
	}
	for _, file := range c.reports {
		if !slices.Contains([]string{".txt", ".json", ".xml", ".html"}, strings.ToLower(filepath.Ext(file))) {
			return nil, fmt.Errorf("-report %s: the name must end in .txt, .json, .xml or .html", file)
		}
	}
	return c, nil
}

// vector makes a file of vectors of a recording.
func vector(in io.Reader, out io.Writer) error {
	recording, err := record.Read(in)
	if err != nil {
		return err
	}
	text, err := recording.Vector()
	if err == nil {
		_, err = out.Write(text)
	}
	return err
}

func run(args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	if len(args) == 1 && args[0] == "vector" {
		if err := vector(stdin, stdout); err != nil {
			fmt.Fprintln(stderr, "conform:", err)
			return exitNotRun
		}
		return exitPassed
	}
	c, err := parse(args, stdout, stderr)
	if errors.Is(err, flag.ErrHelp) {
		return exitPassed
	}
	if err == nil {
		c.running = &running{}
		defer c.running.groups.OnInterrupt(c.running.interrupt)()
	}
	var report *conformance.Report
	if err == nil {
		report, err = map[string]func() (*conformance.Report, error){"codec": c.codec, "server": c.server, "client": c.client}[c.mode]()
	}
	if err == nil {
		err = c.write(report, stdout)
	}
	if err != nil {
		fmt.Fprintln(stderr, "conform:", err)
		return exitNotRun
	}
	if !report.Passed() {
		if counts := report.Counts(); counts.Cases() == counts.Unsupported {
			fmt.Fprintln(stderr, "conform: no case ran: the implementation supports none of them")
		}
		return exitFailed
	}
	return exitPassed
}

// codec runs the cases without a server against a child process.
func (c *config) codec() (*conformance.Report, error) {
	set, err := c.set()
	if err != nil {
		return nil, err
	}
	t, err := c.startTestee()
	if err != nil {
		return nil, err
	}
	defer t.close()
	protocols := c.protocols.words()
	if len(protocols) == 0 {
		protocols = t.Protocols
	}
	others := 0
	selected := set.Filter(func(c *conformance.Case) bool {
		if !slices.Contains(protocols, c.Protocol) {
			return false
		}
		if strings.HasSuffix(c.Op, "script") && !t.operations[c.Protocol].Has(c.Op) {
			others++
			return false
		}
		return true
	})
	report, err := c.run(set, selected, t.bind(selected.Cases()), maxOpen)
	if err != nil {
		return nil, err
	}
	report.Subject = strings.TrimSpace(t.Name + " " + t.Version)
	report.Mode = "codec"
	if others > 0 {
		report.Notes = append(report.Notes, fmt.Sprintf("%d script cases need a server or a client, not a codec", others))
	}
	return report, nil
}

// set returns the cases that the flags select, of all protocols unless -protocol is
// given.
func (c *config) set() (*conformance.Set, error) {
	folders := append([]string{os.Getenv("CONFORMANCE_VECTORS")}, c.vectors...)
	set := conformance.Merge(conformance.Embedded(), conformance.OpenList(strings.Join(folders, string(filepath.ListSeparator))))
	for _, flag := range []struct {
		name  string
		words []string
		of    func(*conformance.Case) string
	}{
		{"protocol", c.protocols.words(), func(c *conformance.Case) string { return c.Protocol }},
		{"suite", c.suites.words(), func(c *conformance.Case) string { return c.Suite }},
		{"op", c.ops.words(), func(c *conformance.Case) string { return c.Op }},
	} {
		for _, word := range flag.words {
			if !slices.ContainsFunc(set.Cases(), func(c *conformance.Case) bool { return flag.of(c) == word }) {
				return nil, fmt.Errorf("-%s %s: no case has it", flag.name, word)
			}
		}
		if len(flag.words) > 0 {
			set = set.Filter(func(c *conformance.Case) bool { return slices.Contains(flag.words, flag.of(c)) })
		}
	}
	return set, nil
}

// run runs the selected cases. Entries of the baseline for other cases of the set are
// not considered.
func (c *config) run(
	set, selected *conformance.Set, protocols []conformance.Protocol, parallel int,
) (*conformance.Report, error) {
	if len(selected.Cases()) == 0 && len(set.Errors()) == 0 {
		return nil, errors.New("the selection is empty: no case has this protocol, suite and operation")
	}
	selected, later, err := c.frozen(selected)
	if err != nil {
		return nil, err
	}
	opts := &conformance.Options{Parallel: parallel}
	if c.baseline != "" {
		failures, err := conformance.ReadKnownFailures(c.baseline)
		if err != nil {
			return nil, fmt.Errorf("-baseline: %w", err)
		}
		all := conformance.Merge(conformance.Embedded(), set)
		has := func(s *conformance.Set, id string) bool {
			return slices.ContainsFunc(s.Cases(), func(c *conformance.Case) bool { return c.ID == id })
		}
		opts.KnownFailures = slices.DeleteFunc(failures, func(k conformance.KnownFailure) bool {
			return !has(selected, k.ID) && has(all, k.ID)
		})
	}
	dir, err := os.MkdirTemp("", "conform-")
	if err != nil {
		return nil, err
	}
	t := &caseT{dir: dir}
	defer t.finish()
	report := conformance.Run(t, selected, protocols, opts)
	report.Release = c.requirements
	if later > 0 {
		report.Notes = append(report.Notes, fmt.Sprintf("%d cases did not run: their requirements are later than %s", later, c.requirements))
	}
	if c.require == "all" {
		for i := range report.Results {
			if r := &report.Results[i]; r.Status == conformance.StatusUnsupported {
				r.Status = conformance.StatusFailed
				r.Message = "not supported, but -require all is set: " + r.Message
			}
		}
	}
	return report, nil
}

// frozen omits the cases that the release of -requirements does not include, and counts them.
func (c *config) frozen(set *conformance.Set) (*conformance.Set, int, error) {
	if c.requirements == "" {
		return set, 0, nil
	}
	lists := make(map[string]*conformance.Requirements)
	for _, k := range set.Cases() {
		if lists[k.Protocol] != nil {
			continue
		}
		list, err := conformance.FrozenRequirements(k.Protocol, c.requirements)
		if err != nil {
			return nil, 0, fmt.Errorf("-requirements: %w", err)
		}
		lists[k.Protocol] = list
	}
	kept := set.Filter(func(k *conformance.Case) bool { return lists[k.Protocol].Includes(k) })
	if len(kept.Cases()) == 0 {
		return nil, 0, fmt.Errorf("-requirements %s: the selection is empty", c.requirements)
	}
	return kept, len(set.Cases()) - len(kept.Cases()), nil
}

// interrupt ends the implementation and this process.
func (r *running) interrupt() {
	if t := r.testee.Load(); t != nil {
		t.close()
	}
	r.groups.Kill()
	os.Exit(exitNotRun)
}

func (c *config) write(r *conformance.Report, stdout io.Writer) error {
	for _, file := range c.reports {
		if err := r.Write(file); err != nil {
			return err
		}
	}
	if c.badge != "" {
		if err := os.WriteFile(c.badge, badge(r), 0o644); err != nil {
			return err
		}
	}
	if c.output == "json" {
		return r.WriteJSON(stdout)
	}
	return r.WriteText(stdout)
}

// A caseT is the surroundings of a run.
type caseT struct {
	dir string

	mu       sync.Mutex
	cleanups []func()
	dirs     int
}

func (t *caseT) Name() string        { return "conform" }
func (t *caseT) Logf(string, ...any) {}

func (t *caseT) TempDir() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.dirs++
	dir := filepath.Join(t.dir, fmt.Sprint(t.dirs))
	if err := os.Mkdir(dir, 0o700); err != nil {
		return t.dir
	}
	return dir
}

func (t *caseT) Cleanup(f func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.cleanups = append(t.cleanups, f)
}

func (t *caseT) finish() {
	for _, f := range slices.Backward(t.cleanups) {
		f()
	}
	_ = os.RemoveAll(t.dir)
}
