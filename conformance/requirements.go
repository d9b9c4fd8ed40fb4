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
	sections map[string][]string // of the specification, by requirement; optional
	texts    map[string]string   // by id; optional
}

// RequirementsOf returns the list for one of the five protocols.
func RequirementsOf(protocol string) (*Requirements, error) {
	return readRequirements(testdata, "testdata/"+requirementsFolder, protocol, "")
}

// FrozenRequirements returns the list of a protocol at a release, such as v1.0.0, or the list in a
// file whose name ends in .json.
func FrozenRequirements(protocol, release string) (*Requirements, error) {
	if strings.HasSuffix(release, ".json") {
		data, err := os.ReadFile(release)
		if err != nil {
			return nil, err
		}
		return parseRequirements(release, data, protocol)
	}
	q, err := readRequirements(testdata, "testdata/"+requirementsFolder, protocol, "-"+release)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("no requirements of %s are frozen as %q", protocol, release)
	}
	return q, err
}

func readRequirements(fsys fs.FS, dir, protocol, release string) (*Requirements, error) {
	file := dir + "/" + protocol + release + ".json"
	data, err := fs.ReadFile(fsys, file)
	if err != nil {
		return nil, err
	}
	return parseRequirements(file, data, protocol)
}

func parseRequirements(file string, data []byte, protocol string) (*Requirements, error) {
	v, err := strictjson.Check(data, strictjson.Options{})
	if err != nil {
		return nil, positioned(file, data, err)
	}
	q := &Requirements{Protocol: protocol, sections: make(map[string][]string), texts: make(map[string]string)}
	r := reader{value: v}
	r.equals("protocol", protocol, "the file name")
	list, decisions := r.get("requirements"), r.get("decisions")
	if err := r.done(); err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	for _, v := range []strictjson.Value{list, decisions} {
		for e := v.Elements(); e.Next(); {
			if err := q.read(e.Value); err != nil {
				return nil, fmt.Errorf("%s: %w", file, err)
			}
		}
	}
	if len(q.ids) == 0 {
		return nil, fmt.Errorf("%s: the list is empty", file)
	}
	return q, nil
}

// read adds an object with the member id and the optional members sections and
// text.
func (q *Requirements) read(v strictjson.Value) error {
	r := reader{value: v}
	id := r.text("id")
	for s := r.optional("sections").Elements(); s.Next(); {
		text, _ := s.Value.Text()
		q.sections[id] = append(q.sections[id], text)
	}
	if r.optional("text") != nil {
		q.texts[id] = r.text("text")
	}
	if err := r.done(); err != nil {
		return err
	}
	if !isRequirement.MatchString(id) || slices.Contains(q.ids, id) {
		return fmt.Errorf("%q is not a requirement id, or it is a duplicate", id)
	}
	q.ids = append(q.ids, id)
	return nil
}

// Includes reports whether a case names a requirement of the list, or none at all.
func (q *Requirements) Includes(c *Case) bool {
	ids := requirementIDs(c.Ref)
	return len(ids) == 0 || slices.ContainsFunc(ids, func(id string) bool { return slices.Contains(q.ids, q.qualified(id)) })
}

// IDs returns the ids of all requirements and decisions.
func (q *Requirements) IDs() []string { return slices.Clone(q.ids) }

// Text returns the demand in words, or the empty string if the list does not
// hold it.
func (q *Requirements) Text(id string) string { return q.texts[id] }

var (
	isRequirement = regexp.MustCompile(`^(?:[A-Z][A-Z0-9]*-D?|D-)[0-9]{2,3}$`)

	// One id (ARC-036, ARC-D05), or a range of them (ARC-020..026).
	inText = regexp.MustCompile(`\b((?:[A-Z][A-Z0-9]*-D?|D-))([0-9]{2,3})(?:\.\.([0-9]{2,3}))?\b`)

	// A section of a specification, perhaps with numbered rules in it: 4.3.1, 5.2.2 R4 R5.
	aSection = regexp.MustCompile(`(?:^|[\s,§])(\d+(?:\.\d+)*)((?: R\d+)*)`)
)

// requirementIDs returns the ids in a text.
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

// Coverage lists the requirements of a protocol by their proof.
type Coverage struct {
	Protocol string
	Total    int

	ByCase []string // a case names them
	ByTest []string // a Go test names them, and no case does

	// Pending are named by known failures only.
	Pending []string

	// BySection are named by nothing, but a case refers to the section of the
	// specification that holds them. That is a hint, not a proof.
	BySection []string

	// Uncovered are all others.
	Uncovered []string

	// Unknown are ids of this protocol that a case or a Go test names, with the
	// place, but that no requirement has.
	Unknown []string
}

// Missing returns the requirements that nothing proves and no known failure
// names.
func (c *Coverage) Missing() []string { return slices.Concat(c.BySection, c.Uncovered) }

// Cover reports the requirements that cases and Go tests name. Tests holds the
// sources of the tests by file name, see [TestSources]. A case among failures
// proves nothing.
func (q *Requirements) Cover(cases []*Case, tests map[string]string, failures []KnownFailure) *Coverage {
	c := &Coverage{Protocol: q.Protocol, Total: len(q.ids)}
	byCase, byTest, pending, bySection := idSet{}, idSet{}, idSet{}, idSet{}
	fails := idSet{}
	for _, k := range failures {
		fails[k.ID] = true
	}
	for _, one := range cases {
		if one.Protocol != q.Protocol {
			continue
		}
		if fails[one.ID] {
			q.mark(pending, c, one.Ref, one.ID)
			continue
		}
		q.mark(byCase, c, one.Ref, one.ID)
		for _, s := range sectionsIn(one.Ref) {
			bySection[s] = true
		}
	}
	for file, text := range tests {
		q.mark(byTest, c, text, file)
	}
	slices.Sort(c.Unknown)
	for _, id := range q.ids {
		into := &c.Uncovered
		switch {
		case byCase[id]:
			into = &c.ByCase
		case byTest[id]:
			into = &c.ByTest
		case pending[id]:
			into = &c.Pending
		case slices.ContainsFunc(q.sections[id], func(s string) bool { return bySection[s] }):
			into = &c.BySection
		}
		*into = append(*into, id)
	}
	return c
}

type idSet map[string]bool

// mark adds the ids in a text to a set. Those of a family of this protocol that
// no requirement has become unknown ids of c.
func (q *Requirements) mark(into idSet, c *Coverage, text, place string) {
	for _, id := range requirementIDs(text) {
		id = q.qualified(id)
		if slices.Contains(q.ids, id) {
			into[id] = true
		} else if slices.ContainsFunc(q.ids, func(have string) bool { return family(have) == family(id) }) {
			c.Unknown = append(c.Unknown, id+" in "+place)
		}
	}
}

// qualified returns the full id of a decision that a reference cites as "D-" and a
// number, without its protocol. It returns other ids unchanged.
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
