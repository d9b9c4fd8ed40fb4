// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

// Package debugpage shows the state of a server to its operator: whether it is ready, which bounds
// are in use, and which handlers ignore the end of their context.
package debugpage

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"text/tabwriter"
	"time"

	"github.com/fivewire/fivewire/internal/budget"
	"github.com/fivewire/fivewire/internal/guard"
	"github.com/fivewire/fivewire/internal/life"
)

// A Server is what a page shows. Its functions are called once for each request.
type Server struct {
	Name  string                  // title of the page
	Ready func() error            // nil means always ready
	Usage func() []budget.Usage   // nil means no table
	Stuck func() []life.StuckWork // nil means none
}

// Rows returns f as the function of a [Server], for the Usage type of any package.
func Rows[U ~struct {
	Resource, Scope string
	Used, Limit     int64
}](f func() []U) func() []budget.Usage {
	return func() []budget.Usage { return Table[budget.Usage](f()) }
}

// Table returns a table of use with the rows of another package.
func Table[To, From ~struct {
	Resource, Scope string
	Used, Limit     int64
}](table []From) (rows []To) {
	for _, u := range table {
		rows = append(rows, To(u))
	}
	return rows
}

// A page is the state of a server, and its form in JSON.
type page struct {
	Name  string   `json:"name"`
	Ready bool     `json:"ready"`
	Error string   `json:"error,omitempty"`
	Usage []usage  `json:"usage"`
	Stuck []string `json:"stuck,omitempty"`
}

type usage struct {
	Resource string `json:"resource"`
	Scope    string `json:"scope"`
	Used     int64  `json:"used"`
	Limit    *int64 `json:"limit"` // null means no bound
}

// Handler returns a handler of GET requests for the page: text, or JSON with the query format=json.
// The status is 200 if the server is ready and 503 otherwise, so the page also serves probes. It
// names no principal. It authenticates no caller, so it belongs on an address of the operator.
func Handler(s Server) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet && r.Method != http.MethodHead {
			w.Header().Set("Allow", "GET, HEAD")
			http.Error(w, "only GET is allowed", http.StatusMethodNotAllowed)
			return
		}
		var p page
		if err := guard.Call("debug page", func() error { p = s.page(); return nil }); err != nil {
			http.Error(w, "page not available", http.StatusInternalServerError)
			return
		}
		body, contentType := p.text(), "text/plain; charset=utf-8"
		if r.URL.Query().Get("format") == "json" {
			contentType = "application/json"
			body, _ = json.Marshal(p) // texts and numbers
		}
		h := w.Header()
		h.Set("Content-Type", contentType)
		h.Set("Cache-Control", "no-store")
		h.Set("X-Content-Type-Options", "nosniff")
		if !p.Ready {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
		_, _ = w.Write(body) // an error means that the reader has disconnected
	})
}

func (s *Server) page() page {
	p := page{Name: s.Name, Ready: true, Usage: []usage{}}
	if s.Ready != nil {
		if err := s.Ready(); err != nil {
			p.Ready, p.Error = false, err.Error()
		}
	}
	if s.Usage != nil {
		for _, u := range s.Usage() {
			row := usage{Resource: u.Resource, Scope: u.Scope, Used: u.Used}
			if u.Limit >= 0 {
				row.Limit = &u.Limit
			}
			p.Usage = append(p.Usage, row)
		}
	}
	if s.Stuck != nil {
		for _, w := range s.Stuck() {
			p.Stuck = append(p.Stuck, fmt.Sprintf("%s, %s", w.What, w.Duration.Round(time.Second)))
		}
	}
	return p
}

func (p *page) text() []byte {
	var b bytes.Buffer
	state := "ready"
	if !p.Ready {
		state = "not ready: " + p.Error
	}
	fmt.Fprintf(&b, "%s: %s\n\n", p.Name, state)
	t := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "RESOURCE\tSCOPE\tUSED\tLIMIT\tPERCENT")
	for _, u := range p.Usage {
		limit, percent := "none", "-"
		if u.Limit != nil {
			limit, percent = fmt.Sprint(*u.Limit), fmt.Sprintf("%.1f", 100*float64(u.Used)/float64(max(*u.Limit, 1)))
		}
		fmt.Fprintf(t, "%s\t%s\t%d\t%s\t%s\n", u.Resource, u.Scope, u.Used, limit, percent)
	}
	_ = t.Flush() // to memory
	if len(p.Stuck) > 0 {
		fmt.Fprintln(&b, "\nHandlers that ignore the end of their context:")
	}
	for _, s := range p.Stuck {
		fmt.Fprintln(&b, s)
	}
	return b.Bytes()
}
