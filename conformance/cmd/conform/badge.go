// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"strings"

	"github.com/fivewire/fivewire/conformance"
)

// badge returns an image with the result of a run.
func badge(r *conformance.Report) []byte {
	var names []string
	for _, p := range r.Protocols() {
		names = append(names, p.Protocol)
	}
	left := strings.TrimSpace(strings.Join(names, " ") + " conformance")
	n := r.Counts()
	right, color := fmt.Sprintf("%d of %d", n.Passed, n.Cases()), "#c22f3d"
	if r.Passed() {
		color = "#1a7f4b"
		if n.Passed < n.Cases() {
			color = "#9a6700"
		}
	}
	const letter, margin = 7, 10 // width in pixels
	l, w := len(left)*letter+2*margin, len(right)*letter+2*margin
	return fmt.Appendf(nil, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="20" role="img" aria-label="%s: %s">
<rect width="%d" height="20" fill="#3a434c"/><rect x="%d" width="%d" height="20" fill="%s"/>
<g fill="#fff" font-family="Verdana,DejaVu Sans,sans-serif" font-size="11" text-anchor="middle">
<text x="%d" y="14">%s</text><text x="%d" y="14">%s</text></g>
</svg>
`, l+w, left, right, l, l, w, color, l/2, left, l+w/2, right)
}
