// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"cmp"
	"encoding/json"
	"encoding/xml"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
)

// A Status is the state of a case that has run.
type Status string

// The states of a case that has run.
const (
	StatusPassed       Status = "passed"
	StatusFailed       Status = "failed"
	StatusKnownFailure Status = "known failure" // failed, as its entry in the list of known failures says
	StatusUnsupported  Status = "not supported" // the implementation does not have the operation
)

// A Result is the outcome of one case.
type Result struct {
	ID       string  `json:"id"`
	Protocol string  `json:"protocol"`
	Suite    string  `json:"suite"`
	Doc      string  `json:"doc"`
	Ref      string  `json:"ref"`
	Op       string  `json:"op"`
	Source   string  `json:"source"`
	Status   Status  `json:"status"`
	Seconds  float64 `json:"seconds"`

	// The rest is there only if the case did not pass.

	Reason      string            `json:"reason,omitempty"`  // of a known failure
	Message     string            `json:"message,omitempty"` // what went wrong
	Differences []Difference      `json:"differences,omitempty"`
	In          json.RawMessage   `json:"in,omitempty"`
	Want        json.RawMessage   `json:"want,omitempty"`
	WantErr     json.RawMessage   `json:"wantErr,omitempty"`
	Got         []json.RawMessage `json:"got,omitempty"` // one, or those of the steps that ran
	Log         []string          `json:"log,omitempty"` // such as what was sent and received
}

// Counts holds the number of cases by status.
type Counts struct {
	Passed int `json:"passed"`
	Failed int `json:"failed"`
	Known  int `json:"known"` // known failures

	Unsupported int `json:"unsupported"`
}

// Cases returns how many cases there were.
func (c Counts) Cases() int { return c.Passed + c.Failed + c.Known + c.Unsupported }

func (c *Counts) add(s Status) {
	switch s {
	case StatusPassed:
		c.Passed++
	case StatusKnownFailure:
		c.Known++
	case StatusUnsupported:
		c.Unsupported++
	default:
		c.Failed++
	}
}

// A SuiteReport holds the results of one suite.
type SuiteReport struct {
	Suite string `json:"suite"`
	Counts
	Results []Result `json:"results"`
}

// A ProtocolReport holds the results of one protocol.
type ProtocolReport struct {
	Protocol string `json:"protocol"`
	Counts
	Suites []SuiteReport `json:"suites"`
}

// A Report holds the results of a run. It contains only the cases that ran: a
// test may select some of them.
type Report struct {
	Started time.Time
	Seconds float64
	Subject string   // the tested implementation; empty for the packages of this module
	Mode    string   // how it was tested, such as codec; empty in a Go test
	Errors  []string // what was wrong with the folders
	Notes   []string // further remarks
	Release string   // of the requirements, as in [FrozenRequirements]; empty for the current ones
	Results []Result // in the order in which they ran
}

// Counts returns the numbers of the whole run.
func (r *Report) Counts() Counts {
	var c Counts
	for _, res := range r.Results {
		c.add(res.Status)
	}
	return c
}

// Passed reports whether nothing failed, at least one case ran, and the folders
// were without fault. Known failures do not count, nor do cases that the
// implementation does not support.
func (r *Report) Passed() bool {
	c := r.Counts()
	return c.Failed == 0 && c.Cases() > c.Unsupported && len(r.Errors) == 0
}

// Protocols returns the results by protocol and suite, in the order of names.
func (r *Report) Protocols() []ProtocolReport {
	sorted := slices.Clone(r.Results)
	slices.SortStableFunc(sorted, func(a, b Result) int {
		return cmp.Or(cmp.Compare(a.Protocol, b.Protocol), cmp.Compare(a.Suite, b.Suite))
	})
	out := []ProtocolReport{}
	for _, res := range sorted {
		if n := len(out); n == 0 || out[n-1].Protocol != res.Protocol {
			out = append(out, ProtocolReport{Protocol: res.Protocol})
		}
		p := &out[len(out)-1]
		if n := len(p.Suites); n == 0 || p.Suites[n-1].Suite != res.Suite {
			p.Suites = append(p.Suites, SuiteReport{Suite: res.Suite})
		}
		s := &p.Suites[len(p.Suites)-1]
		s.Results = append(s.Results, res)
		s.add(res.Status)
		p.add(res.Status)
	}
	return out
}

// A RequirementReport holds the verdict about one requirement or decision.
type RequirementReport struct {
	ID       string   `json:"id"`
	Protocol string   `json:"protocol"`
	Text     string   `json:"text,omitempty"`
	Verdict  Status   `json:"verdict"` // failed if a case failed, then the known failures, passed, not supported
	Cases    []string `json:"cases"`   // that name it and ran
	Failed   []string `json:"failed,omitempty"`
}

// Requirements returns the requirements that the cases name, in the order of their
// lists.
func (r *Report) Requirements() []RequirementReport {
	out := []RequirementReport{}
	for _, p := range r.Protocols() {
		q, err := r.requirements(p.Protocol)
		if err != nil {
			continue // a protocol of further vectors has none
		}
		cases := make(map[string][]*Result)
		for _, s := range p.Suites {
			for i := range s.Results {
				for _, id := range requirementIDs(s.Results[i].Ref) {
					id = q.qualified(id)
					cases[id] = append(cases[id], &s.Results[i])
				}
			}
		}
		for _, id := range q.ids {
			if len(cases[id]) > 0 {
				out = append(out, requirementReport(q, id, cases[id]))
			}
		}
	}
	return out
}

// requirements returns the list that the report follows.
func (r *Report) requirements(protocol string) (*Requirements, error) {
	if r.Release != "" {
		return FrozenRequirements(protocol, r.Release)
	}
	return RequirementsOf(protocol)
}

func requirementReport(q *Requirements, id string, cases []*Result) RequirementReport {
	rank := []Status{StatusUnsupported, StatusPassed, StatusKnownFailure, StatusFailed}
	out := RequirementReport{ID: id, Protocol: q.Protocol, Text: q.texts[id], Verdict: StatusUnsupported, Cases: []string{}}
	for _, c := range cases {
		out.Cases = append(out.Cases, c.ID)
		if c.Status == StatusFailed {
			out.Failed = append(out.Failed, c.ID)
		}
		if slices.Index(rank, c.Status) > slices.Index(rank, out.Verdict) {
			out.Verdict = c.Status
		}
	}
	return out
}

// requirementsOf returns the requirements with a text that a case names.
func (r *Report) requirementsOf(res *Result) []RequirementReport {
	var out []RequirementReport
	q, err := r.requirements(res.Protocol)
	if err != nil {
		return nil
	}
	for _, id := range requirementIDs(res.Ref) {
		if text := q.texts[q.qualified(id)]; text != "" {
			out = append(out, RequirementReport{ID: q.qualified(id), Text: text})
		}
	}
	return out
}

// Write writes the report to a file, in the format that its name ends in: .txt,
// .json, .xml (JUnit) or .html.
func (r *Report) Write(file string) error {
	write, err := r.format(file)
	if err != nil {
		return err
	}
	f, err := os.Create(file)
	if err != nil {
		return fmt.Errorf("conformance: report: %w", err)
	}
	err = write(f)
	if closing := f.Close(); err == nil {
		err = closing
	}
	if err != nil {
		return fmt.Errorf("conformance: report %s: %w", file, err)
	}
	return nil
}

// format returns the writer for the format that the extension of a file names.
func (r *Report) format(file string) (func(io.Writer) error, error) {
	formats := map[string]func(io.Writer) error{
		".txt": r.WriteText, ".json": r.WriteJSON, ".xml": r.WriteJUnit, ".html": r.WriteHTML,
	}
	write, ok := formats[strings.ToLower(filepath.Ext(file))]
	if !ok {
		return nil, fmt.Errorf("conformance: report %s: the name must end in .txt, .json, .xml or .html", file)
	}
	return write, nil
}

// WriteText writes a table of protocols and suites, and the cases that did not
// pass.
func (r *Report) WriteText(w io.Writer) error {
	if r.Subject != "" {
		if _, err := fmt.Fprintf(w, "%s, %s mode\n\n", r.Subject, r.Mode); err != nil {
			return err
		}
	}
	if err := r.writeTable(w); err != nil {
		return err
	}
	var b strings.Builder
	for _, note := range r.Notes {
		fmt.Fprintf(&b, "\n%s\n", note)
	}
	for _, fault := range r.Errors {
		fmt.Fprintf(&b, "\nFAULT %s\n", fault)
	}
	for _, res := range r.Results {
		switch res.Status {
		case StatusFailed:
			fmt.Fprintf(&b, "\nFAILED %s: %s (%s)\n%s\n", res.ID, res.Doc, res.Ref, indentLines(res.Message))
			for _, q := range r.requirementsOf(&res) {
				fmt.Fprintf(&b, "    %s: %s\n", q.ID, q.Text)
			}
			for _, line := range res.Log {
				fmt.Fprintf(&b, "    %s\n", clip(line))
			}
		case StatusKnownFailure:
			fmt.Fprintf(&b, "\nKNOWN FAILURE %s: %s\n%s\n", res.ID, res.Reason, indentLines(res.Message))
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func (r *Report) writeTable(w io.Writer) error {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	row := func(name string, c Counts) {
		fmt.Fprintf(tw, "%-28s\t%d\t%d\t%d\t%d\t\n", name, c.Passed, c.Failed, c.Known, c.Unsupported)
	}
	fmt.Fprintf(tw, "%-28s\tpassed\tfailed\tknown\tnot supported\t\n", "")
	for _, p := range r.Protocols() {
		row(p.Protocol, p.Counts)
		for _, s := range p.Suites {
			row("  "+s.Suite, s.Counts)
		}
	}
	row("all", r.Counts())
	return tw.Flush()
}

func indentLines(s string) string {
	return "    " + strings.ReplaceAll(strings.TrimSpace(s), "\n", "\n    ")
}

// WriteJSON writes the whole report as one JSON object.
func (r *Report) WriteJSON(w io.Writer) error {
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	faults := r.Errors
	if faults == nil {
		faults = []string{}
	}
	return enc.Encode(struct {
		Format  int       `json:"format"`
		Subject string    `json:"subject,omitempty"`
		Mode    string    `json:"mode,omitempty"`
		Started time.Time `json:"started"`
		Seconds float64   `json:"seconds"`
		OK      bool      `json:"ok"`
		Counts
		Faults       []string            `json:"faults"`
		Notes        []string            `json:"notes,omitempty"`
		Requirements []RequirementReport `json:"requirements"`
		Protocols    []ProtocolReport    `json:"protocols"`
	}{
		1, r.Subject, r.Mode, r.Started, r.Seconds, r.Passed(), r.Counts(), faults, r.Notes,
		r.Requirements(), r.Protocols(),
	})
}

type (
	junitSuites struct {
		XMLName  xml.Name     `xml:"testsuites"`
		Name     string       `xml:"name,attr"`
		Tests    int          `xml:"tests,attr"`
		Failures int          `xml:"failures,attr"`
		Errors   int          `xml:"errors,attr"`
		Skipped  int          `xml:"skipped,attr"`
		Time     string       `xml:"time,attr"`
		Suites   []junitSuite `xml:"testsuite"`
	}
	junitSuite struct {
		Name     string      `xml:"name,attr"`
		Tests    int         `xml:"tests,attr"`
		Failures int         `xml:"failures,attr"`
		Errors   int         `xml:"errors,attr"`
		Skipped  int         `xml:"skipped,attr"`
		Time     string      `xml:"time,attr"`
		Stamp    string      `xml:"timestamp,attr"`
		Cases    []junitCase `xml:"testcase"`
	}
	junitCase struct {
		Class   string      `xml:"classname,attr"`
		Name    string      `xml:"name,attr"`
		Time    string      `xml:"time,attr"`
		Failure *junitFault `xml:"failure"`
		Error   *junitFault `xml:"error"`
		Skipped *junitFault `xml:"skipped"`
	}
	junitFault struct {
		Message string `xml:"message,attr"`
		Text    string `xml:",chardata"`
	}
)

// WriteJUnit writes the report in the XML format that build servers read. A
// known failure appears as a skipped case, because the format has no word for
// it; a fault of the folders is an error.
func (r *Report) WriteJUnit(w io.Writer) error {
	seconds := func(s float64) string { return strconv.FormatFloat(s, 'f', 3, 64) }
	stamp := r.Started.Format("2006-01-02T15:04:05")
	counts := r.Counts()
	doc := junitSuites{
		Name: "conformance", Tests: counts.Cases() + len(r.Errors), Failures: counts.Failed,
		Errors: len(r.Errors), Skipped: counts.Known + counts.Unsupported, Time: seconds(r.Seconds),
	}
	if n := len(r.Errors); n > 0 {
		s := junitSuite{Name: "folders", Tests: n, Errors: n, Time: seconds(0), Stamp: stamp}
		for i, fault := range r.Errors {
			s.Cases = append(s.Cases, junitCase{
				Class: "folders", Name: "fault-" + strconv.Itoa(i+1), Time: seconds(0),
				Error: &junitFault{Message: fault, Text: fault},
			})
		}
		doc.Suites = append(doc.Suites, s)
	}
	for _, p := range r.Protocols() {
		for _, suite := range p.Suites {
			s := junitSuite{
				Name: p.Protocol + "." + suite.Suite, Tests: suite.Cases(), Failures: suite.Failed,
				Skipped: suite.Known + suite.Unsupported, Stamp: stamp,
			}
			total := 0.0
			for _, res := range suite.Results {
				total += res.Seconds
				c := junitCase{Class: s.Name, Name: res.ID, Time: seconds(res.Seconds)}
				switch res.Status {
				case StatusFailed:
					text := strings.Join(append([]string{res.Message}, res.Log...), "\n")
					c.Failure = &junitFault{Message: res.Doc + " (" + res.Ref + ")", Text: text}
				case StatusUnsupported:
					c.Skipped = &junitFault{Message: "not supported", Text: res.Message}
				case StatusKnownFailure:
					c.Skipped = &junitFault{Message: "known failure: " + res.Reason, Text: res.Message}
				}
				s.Cases = append(s.Cases, c)
			}
			s.Time = seconds(total)
			doc.Suites = append(doc.Suites, s)
		}
	}
	if _, err := io.WriteString(w, xml.Header); err != nil {
		return err
	}
	enc := xml.NewEncoder(w)
	enc.Indent("", "  ")
	if err := enc.Encode(doc); err != nil {
		return err
	}
	_, err := io.WriteString(w, "\n")
	return err
}
