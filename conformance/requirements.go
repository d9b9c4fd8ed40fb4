// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/fivewire/fivewire/internal/strictjson"
)

// Requirements are the numbered demands on the implementation of a protocol:
// those of its specification, and the decisions where that is silent.
type Requirements struct {
	Protocol string

	ids      []string            // requirements, then decisions
	sections map[string][]string // of the specification, by requirement; not all have any
}

// RequirementsOf returns the list for one of the five protocols.
func RequirementsOf(protocol string) (*Requirements, error) {
	return readRequirements(testdata, "testdata/"+requirementsFolder, protocol)
}

func readRequirements(fsys fs.FS, dir, protocol string) (*Requirements, error) {
	file := dir + "/" + protocol + ".json"
	data, err := fs.ReadFile(fsys, file)
	if err != nil {
		return nil, err
	}
	v, err := strictjson.Check(data, strictjson.Options{})
	if err != nil {
		return nil, positioned(file, data, err)
	}
	q := &Requirements{Protocol: protocol, sections: make(map[string][]string)}
	r := reader{value: v}
	r.equals("protocol", protocol, "the file name")
	list, decisions := r.get("requirements"), r.get("decisions")
	if err := r.done(); err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	for e := list.Elements(); e.Next(); {
		er := reader{value: e.Value}
		id := er.text("id")
		for s := er.optional("sections").Elements(); s.Next(); {
			text, _ := s.Value.Text()
			q.sections[id] = append(q.sections[id], text)
		}
		if err := er.done(); err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		q.ids = append(q.ids, id)
	}
	for e := decisions.Elements(); e.Next(); {
		id, _ := e.Value.Text()
		q.ids = append(q.ids, id)
	}
	for i, id := range q.ids {
		if !isRequirement.MatchString(id) || slices.Contains(q.ids[:i], id) {
			return nil, fmt.Errorf("%s: %q is no requirement id, or stands twice", file, id)
		}
	}
	if len(q.ids) == 0 {
		return nil, fmt.Errorf("%s: the list is empty", file)
	}
	return q, nil
}

// IDs returns the ids of all requirements and decisions.
func (q *Requirements) IDs() []string { return slices.Clone(q.ids) }

var (
	isRequirement = regexp.MustCompile(`^(?:[A-Z][A-Z0-9]*-D?|D-)[0-9]{2,3}$`)

	// One id (ARC-036, ARC-D05, D-05), or a range of them (ARC-020..026).
	inText = regexp.MustCompile(`\b((?:[A-Z][A-Z0-9]*-D?|D-))([0-9]{2,3})(?:\.\.([0-9]{2,3}))?\b`)

	// A section of a specification, perhaps with numbered rules in it: 4.3.1, 5.2.2 R4 R5.
	aSection = regexp.MustCompile(`(?:^|[\s,§])(\d+(?:\.\d+)*)((?: R\d+)*)`)
)

// requirementIDs returns the ids that stand in a text.
func requirementIDs(text string) []string {
	var ids []string
	for _, m := range inText.FindAllStringSubmatch(text, -1) {
		first, _ := strconv.Atoi(m[2]) // two or three digits
		last := first
		if m[3] != "" {
			last, _ = strconv.Atoi(m[3])
		}
		for n := first; n <= last; n++ {
			ids = append(ids, fmt.Sprintf("%s%0*d", m[1], len(m[2]), n))
		}
	}
	return ids
}

// sectionsIn returns the sections that a ref names.
func sectionsIn(ref string) []string {
	var out []string
	for _, m := range aSection.FindAllStringSubmatch(inText.ReplaceAllString(ref, ""), -1) {
		rules := strings.Fields(m[2])
		if len(rules) == 0 {
			out = append(out, m[1])
		}
		for _, rule := range rules {
			out = append(out, m[1]+" "+rule)
		}
	}
	return out
}

// Coverage says which requirements of a protocol are shown to hold.
type Coverage struct {
	Protocol string
	Total    int

	ByCase []string // a case names them
	ByTest []string // a Go test names them, and no case does

	// BySection are named by nothing, but a case refers to the section of the
	// specification where they stand. That is a hint, not a proof.
	BySection []string

	// Uncovered are all others.
	Uncovered []string

	// Unknown are ids of this protocol that a case or a Go test names, with the
	// place, but that no requirement has.
	Unknown []string
}

// Missing returns the requirements that nothing proves.
func (c *Coverage) Missing() []string { return slices.Concat(c.BySection, c.Uncovered) }

// Cover finds out which requirements cases and Go tests name. Tests holds the
// sources of the tests by file name, see [TestSources]. Cases that are known to
// fail are to be left out, because they prove nothing.
func (q *Requirements) Cover(cases []*Case, tests map[string]string) *Coverage {
	c := &Coverage{Protocol: q.Protocol, Total: len(q.ids)}
	byCase, byTest, bySection := make(map[string]bool), make(map[string]bool), make(map[string]bool)
	families := make(map[string]bool)
	for _, id := range q.ids {
		families[family(id)] = true
	}
	mark := func(into map[string]bool, text, place string) {
		for _, id := range requirementIDs(text) {
			id = q.qualified(id)
			if slices.Contains(q.ids, id) {
				into[id] = true
			} else if families[family(id)] {
				c.Unknown = append(c.Unknown, id+" in "+place)
			}
		}
	}
	for _, one := range cases {
		if one.Protocol != q.Protocol {
			continue
		}
		mark(byCase, one.Ref, one.ID)
		for _, s := range sectionsIn(one.Ref) {
			bySection[s] = true
		}
	}
	for file, text := range tests {
		mark(byTest, text, file)
	}
	slices.Sort(c.Unknown)
	for _, id := range q.ids {
		switch {
		case byCase[id]:
			c.ByCase = append(c.ByCase, id)
		case byTest[id]:
			c.ByTest = append(c.ByTest, id)
		case slices.ContainsFunc(q.sections[id], func(s string) bool { return bySection[s] }):
			c.BySection = append(c.BySection, id)
		default:
			c.Uncovered = append(c.Uncovered, id)
		}
	}
	return c
}

// qualified returns the full id of a decision that a reference cites without
// its protocol: D-05 in a case of ARC is ARC-D05. Other ids stay as they are.
func (q *Requirements) qualified(id string) string {
	number, short := strings.CutPrefix(id, "D-")
	if !short {
		return id
	}
	for _, other := range q.ids {
		if prefix := family(other); strings.HasSuffix(prefix, "-D") {
			return prefix + number
		}
	}
	return id
}

// family returns an id without its number.
func family(id string) string { return strings.TrimRight(id, "0123456789") }

// TestSources returns the Go test files of a package folder and of those below
// it, by name. A folder that does not exist has none.
func TestSources(dir string) (map[string]string, error) {
	sources := make(map[string]string)
	err := filepath.WalkDir(dir, func(file string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(file, "_test.go") {
			return err
		}
		text, err := os.ReadFile(file)
		sources[file] = string(text)
		return err
	})
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	return sources, err
}
