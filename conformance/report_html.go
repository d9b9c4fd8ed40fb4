// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	_ "embed"
	"fmt"
	"html/template"
	"io"
	"strings"
)

//go:embed report.html.tmpl
var reportPage string

// WriteHTML writes the report as one page that needs no other file and runs no
// script.
func (r *Report) WriteHTML(w io.Writer) error {
	page, err := template.New("report").Funcs(template.FuncMap{
		"upper":   strings.ToUpper,
		"percent": percent,
		"cases": func(n int) string {
			if n == 1 {
				return "1 case"
			}
			return fmt.Sprintf("%d cases", n)
		},
		"duration": func(seconds float64) string {
			if seconds < 10 {
				return fmt.Sprintf("%.2f s", seconds)
			}
			return fmt.Sprintf("%.0f s", seconds)
		},
		"raw":      func(text []byte) string { return shorten(string(text), maxShown) },
		"passed":   func(s Status) bool { return s == StatusPassed },
		"isFailed": func(s Status) bool { return s == StatusFailed },
	}).Parse(reportPage)
	if err != nil {
		return err
	}
	return page.Execute(w, r)
}

// maxShown bounds one text on the page, which a browser has to open; the report in
// JSON has all of it.
const maxShown = 64 << 10

// percent never rounds up to 100.
func percent(part, whole int) string {
	if whole == 0 {
		return "0"
	}
	return fmt.Sprintf("%.1f", float64(part*1000/whole)/10)
}
