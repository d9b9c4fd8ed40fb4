// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"bytes"
	"encoding/json"
	"encoding/xml"
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func sampleReport() *Report {
	return &Report{
		Started: time.Date(2026, 5, 1, 12, 30, 0, 0, time.UTC),
		Seconds: 1.25,
		Errors:  []string{"further/arc/x.json:3:1: not valid JSON"},
		Results: []Result{
			{ID: "fake-two-001", Protocol: "fake", Suite: "two", Doc: "passes", Ref: "FAKE-001", Op: "echo", Source: "mine/fake/two.json", Status: StatusPassed, Seconds: 0.5},
			{
				ID: "fake-one-001", Protocol: "fake", Suite: "one", Doc: "fails <b>&", Ref: "D-05", Op: "echo", Source: "mine/fake/one.json", Status: StatusFailed, Seconds: 0.25,
				Message:     "want.json.a: want \"<script>\", got 2\nmore",
				Differences: []Difference{{Path: "want.json.a", Want: `"<script>"`, Got: "2"}},
				In:          raw(`{"json": "\u0000"}`), Want: raw(`{"json": {"a": "<script>"}}`), Got: []json.RawMessage{raw(`{"a": 2}`)},
			},
			{
				ID: "else-one-001", Protocol: "else", Suite: "one", Doc: "is known", Ref: "§6", Op: "x", Source: "mine/else/one.json", Status: StatusKnownFailure, Reason: "not yet",
				Message: "something broke \x01", In: raw(`{}`), WantErr: raw(`"bad"`), Got: []json.RawMessage{raw(`{}`), raw(`{"b": 1}`)},
			},
		},
	}
}

func TestReportCounts(t *testing.T) {
	r := sampleReport()
	require.False(t, r.Passed())
	require.Equal(t, Counts{Passed: 1, Failed: 1, Known: 1}, r.Counts())
	require.Equal(t, 3, r.Counts().Cases())
	ps := r.Protocols()
	require.Len(t, ps, 2)
	require.Equal(t, "else", ps[0].Protocol)
	require.Equal(t, Counts{Known: 1}, ps[0].Counts)
	require.Equal(t, "one", ps[1].Suites[0].Suite)
	require.Equal(t, Counts{Failed: 1}, ps[1].Suites[0].Counts)
	require.Equal(t, "fake-two-001", r.Results[0].ID, "the order of the run stays")

	require.False(t, (&Report{}).Passed(), "nothing ran")
	fine := &Report{Results: []Result{{Status: StatusPassed}, {Status: StatusKnownFailure}}}
	require.True(t, fine.Passed())
	fine.Errors = []string{"x"}
	require.False(t, fine.Passed())
	require.Equal(t, 1, (&Report{Results: []Result{{}}}).Counts().Failed, "a case without status did not pass")
}

func TestWriteText(t *testing.T) {
	var b bytes.Buffer
	require.NoError(t, sampleReport().WriteText(&b))
	require.Equal(t, `                                passed  failed  known  not supported
  else                               0       0      1              0
    one                              0       0      1              0
  fake                               1       1      0              0
    one                              0       1      0              0
    two                              1       0      0              0
  all                                1       1      1              0

FAULT further/arc/x.json:3:1: not valid JSON

FAILED fake-one-001: fails <b>& (D-05)
    want.json.a: want "<script>", got 2
    more

KNOWN FAILURE else-one-001: not yet
    something broke `+"\x01\n", b.String())
}

func TestWriteJSON(t *testing.T) {
	var b bytes.Buffer
	require.NoError(t, sampleReport().WriteJSON(&b))
	var got map[string]any
	require.NoError(t, json.Unmarshal(b.Bytes(), &got))
	for name, want := range map[string]any{"format": 1.0, "started": "2026-05-01T12:30:00Z", "seconds": 1.25, "ok": false, "passed": 1.0, "failed": 1.0, "known": 1.0} {
		require.Equal(t, want, got[name], name)
	}
	require.Equal(t, []any{"further/arc/x.json:3:1: not valid JSON"}, got["faults"])
	suite := got["protocols"].([]any)[1].(map[string]any)["suites"].([]any)[0].(map[string]any)
	require.Equal(t, "one", suite["suite"])
	require.Equal(t, 1.0, suite["failed"])
	res := suite["results"].([]any)[0].(map[string]any)
	require.Equal(t, "fake-one-001", res["id"])
	require.Equal(t, "failed", res["status"])
	require.Equal(t, map[string]any{"a": "<script>"}, res["want"].(map[string]any)["json"])
	require.NotContains(t, res, "reason")

	b.Reset()
	require.NoError(t, (&Report{}).WriteJSON(&b))
	require.NoError(t, json.Unmarshal(b.Bytes(), &got))
	require.Equal(t, []any{}, got["faults"])
	require.Equal(t, []any{}, got["protocols"])
}

func TestWriteJUnit(t *testing.T) {
	var b bytes.Buffer
	require.NoError(t, sampleReport().WriteJUnit(&b))
	require.True(t, strings.HasPrefix(b.String(), "<?xml "))
	var doc junitSuites
	require.NoError(t, xml.Unmarshal(b.Bytes(), &doc))
	require.Equal(t, []int{4, 1, 1, 1}, []int{doc.Tests, doc.Failures, doc.Errors, doc.Skipped})
	require.Equal(t, "1.250", doc.Time)
	require.Len(t, doc.Suites, 4)
	require.Equal(t, "further/arc/x.json:3:1: not valid JSON", doc.Suites[0].Cases[0].Error.Message)
	require.Equal(t, "else.one", doc.Suites[1].Name)
	require.Equal(t, "known failure: not yet", doc.Suites[1].Cases[0].Skipped.Message)
	require.Equal(t, "something broke \ufffd", doc.Suites[1].Cases[0].Skipped.Text)
	failed := doc.Suites[2].Cases[0]
	require.Equal(t, []string{"fake.one", "fake-one-001", "0.250"}, []string{failed.Class, failed.Name, failed.Time})
	require.Equal(t, "fails <b>& (D-05)", failed.Failure.Message)
	require.Contains(t, failed.Failure.Text, "<script>")
	require.Nil(t, doc.Suites[3].Cases[0].Failure)
	require.Equal(t, "2026-05-01T12:30:00", doc.Suites[3].Stamp)
	require.Equal(t, "0.500", doc.Suites[3].Time)
}

func TestWriteHTML(t *testing.T) {
	var b bytes.Buffer
	require.NoError(t, sampleReport().WriteHTML(&b))
	page := b.String()
	for _, want := range []string{
		"<title>Failed: conformance report</title>", "further/arc/x.json:3:1: not valid JSON",
		"fails &lt;b&gt;&amp;", "&#34;&lt;script&gt;&#34;", "fake-one-001", "known failure", "not yet", "fake-two-001", "1.25 s",
		"1 May 2026, 12:30 UTC", "got, by step", "prefers-color-scheme: dark", `width:50.0%`,
	} {
		require.Contains(t, page, want)
	}
	require.NotContains(t, page, "<script")
	require.NotContains(t, page, "ZgotmplZ", "a value that the template engine refused")
	require.Empty(t, regexp.MustCompile(`(src|href)="[^#]|@import|url\(`).FindString(page), "the page needs no other file")

	b.Reset()
	fine := &Report{Seconds: 75, Results: []Result{{ID: "a-b-001", Protocol: "a", Suite: "b", Status: StatusPassed}}}
	require.NoError(t, fine.WriteHTML(&b))
	require.Contains(t, b.String(), "<title>Passed: conformance report</title>")
	require.Contains(t, b.String(), "75 s")
	require.Contains(t, b.String(), "100.0 % of 1 case passed")
}

// A page must stay small enough to be opened, however large a vector is.
func TestWriteHTMLShortens(t *testing.T) {
	long := json.RawMessage(`"` + strings.Repeat("x", 10<<20) + `"`)
	r := &Report{Results: []Result{{ID: "a-b-001", Protocol: "a", Suite: "b", Status: StatusFailed, In: long, Want: long, Got: []json.RawMessage{long}}}}
	var b strings.Builder
	require.NoError(t, r.WriteHTML(&b))
	require.Less(t, b.Len(), 1<<20)
	require.Contains(t, b.String(), "(10485762 bytes)")
}

func TestPercent(t *testing.T) {
	require.Equal(t, "99.9", percent(9999, 10000), "nearly all is not all")
	require.Equal(t, "100.0", percent(3, 3))
	require.Equal(t, "0", percent(0, 0))
}

func TestWriteReport(t *testing.T) {
	dir := t.TempDir()
	for name, begins := range map[string]string{"r.txt": "    ", "r.json": "{", "r.xml": "<?xml", "R.HTML": "<!DOCTYPE html>"} {
		file := filepath.Join(dir, name)
		require.NoError(t, sampleReport().Write(file))
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		require.True(t, strings.HasPrefix(string(text), begins), name)
	}
	require.ErrorContains(t, sampleReport().Write(filepath.Join(dir, "r.pdf")), "must end in")
	require.NoFileExists(t, filepath.Join(dir, "r.pdf"))
	require.ErrorIs(t, sampleReport().Write(filepath.Join(dir, "no", "r.txt")), os.ErrNotExist)
}

var errFull = errors.New("the disk is full")

// fullWriter fails after n bytes.
type fullWriter struct{ n int }

func (w *fullWriter) Write(p []byte) (int, error) {
	if w.n -= len(p); w.n < 0 {
		return 0, errFull
	}
	return len(p), nil
}

func TestWriteReportErrors(t *testing.T) {
	for _, n := range []int{0, 40, 400} {
		r := sampleReport()
		for range 200 {
			r.Results = append(r.Results, r.Results[1])
		}
		require.ErrorIs(t, r.WriteText(&fullWriter{n}), errFull)
		require.ErrorIs(t, r.WriteJSON(&fullWriter{n}), errFull)
		require.ErrorIs(t, r.WriteJUnit(&fullWriter{n}), errFull)
		require.ErrorIs(t, r.WriteHTML(&fullWriter{n}), errFull)
	}
}
