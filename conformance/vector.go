// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"bytes"
	"cmp"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/fivewire/fivewire/internal/strictjson"
)

// A Case is one case of a vector file.
type Case struct {
	ID       string
	Doc      string // one line: what the case shows
	Ref      string // section of the specification, or requirement ids
	Op       string
	Protocol string
	Suite    string
	Source   string // the file it was read from

	text    strictjson.Value // the whole case
	in      strictjson.Value
	want    strictjson.Value // exactly one of want and wantErr is set
	wantErr strictjson.Value
}

// A Set holds the cases of one or more folders, and the faults found in reading
// them. [Run] fails for every fault.
type Set struct {
	cases  []*Case
	faults []error
}

// Cases returns the cases in the order of protocols, suites and files.
func (s *Set) Cases() []*Case { return slices.Clone(s.cases) }

// Errors returns the faults of the folders.
func (s *Set) Errors() []error { return slices.Clone(s.faults) }

// Filter returns the cases that keep selects, such as those of a protocol, a suite
// or an operation. It keeps every fault, because a file that cannot be read may
// hold cases of any protocol.
func (s *Set) Filter(keep func(*Case) bool) *Set {
	out := &Set{faults: slices.Clone(s.faults)}
	for _, c := range s.cases {
		if keep(c) {
			out.cases = append(out.cases, c)
		}
	}
	return out
}

//go:embed testdata
var testdata embed.FS

const (
	knownFailuresFile  = "known-failures.json"
	requirementsFolder = "requirements"
)

// Embedded returns the vectors that this package carries.
func Embedded() *Set {
	sub, err := fs.Sub(testdata, "testdata")
	if err != nil {
		return &Set{faults: []error{err}}
	}
	return load(sub, "embedded", knownFailuresFile, requirementsFolder, operationsFolder)
}

// Open returns the vectors of a folder on disk, laid out as
// <protocol>/<suite>.json.
func Open(dir string) *Set { return Load(os.DirFS(dir), dir) }

// Load returns the vectors of a folder. The name stands for the folder in
// messages.
func Load(fsys fs.FS, name string) *Set { return load(fsys, name) }

// Merge puts sets together. A case in several sets with equal content is kept
// once; the same id with other content is a fault.
func Merge(sets ...*Set) *Set {
	out := &Set{}
	byID := make(map[string]*Case)
	for _, s := range sets {
		out.faults = append(out.faults, s.faults...)
		for _, c := range s.cases {
			first, ok := byID[c.ID]
			switch {
			case !ok:
				byID[c.ID] = c
				out.cases = append(out.cases, c)
			case !strictjson.EqualText(first.text, c.text):
				out.fault("%s: %s stands in %s with other content", c.Source, c.ID, first.Source)
			}
		}
	}
	slices.SortStableFunc(out.cases, func(a, b *Case) int {
		return cmp.Or(strings.Compare(a.Protocol, b.Protocol), strings.Compare(a.Suite, b.Suite))
	})
	return out
}

func (s *Set) fault(format string, args ...any) {
	s.faults = append(s.faults, fmt.Errorf(format, args...))
}

// load reads a folder. Everything in it that is not a vector file in its place
// is a fault, but for hidden files, for files that do not look like a vector file
// by their name (such as a README), and for the names in skip.
func load(fsys fs.FS, name string, skip ...string) *Set {
	s := &Set{}
	entries, err := fs.ReadDir(fsys, ".")
	if err != nil {
		s.fault("%s: %w", name, cause(err))
		return s
	}
	for _, e := range entries {
		if slices.Contains(skip, e.Name()) || hidden(e.Name()) {
			continue
		}
		dir, err := isDir(fsys, e.Name())
		switch {
		case err != nil:
			s.fault("%s: %w", name, err)
		case dir:
			s.readProtocol(fsys, name, e.Name())
		case isVectorFile(e.Name()):
			s.fault("%s: a vector file must stand in the folder of its protocol", path.Join(name, e.Name()))
		}
	}
	if len(s.cases) == 0 && len(s.faults) == 0 {
		s.fault("%s: there are no vectors", name)
	}
	s.refuseRepeated()
	return s
}

func (s *Set) readProtocol(fsys fs.FS, name, protocol string) {
	folder := path.Join(name, protocol)
	entries, err := fs.ReadDir(fsys, protocol)
	if err != nil {
		s.fault("%s: %w", name, err)
		return
	}
	files, before := 0, len(s.faults)
	for _, e := range entries {
		if hidden(e.Name()) {
			continue
		}
		file := path.Join(protocol, e.Name())
		dir, err := isDir(fsys, file)
		switch {
		case err != nil:
			s.fault("%s: %w", name, err)
		case dir:
			s.fault("%s: a folder below that of a protocol", path.Join(name, file))
		case isVectorFile(e.Name()):
			files++
			s.readFile(fsys, name, file)
		case strings.Contains(strings.ToLower(e.Name()), ".json"):
			s.fault("%s: the name of a vector file ends in .json", path.Join(name, file))
		}
	}
	if files == 0 && len(s.faults) == before {
		s.fault("%s: there are no vectors", folder)
	}
}

// cause returns an error without its path, which is relative to the folder.
func cause(err error) error {
	if e, ok := errors.AsType[*fs.PathError](err); ok {
		return e.Err
	}
	return err
}

func hidden(name string) bool       { return strings.HasPrefix(name, ".") }
func isVectorFile(name string) bool { return strings.EqualFold(path.Ext(name), ".json") }

func isDir(fsys fs.FS, name string) (bool, error) {
	info, err := fs.Stat(fsys, name) // follows a symbolic link, unlike the entry
	if err != nil {
		return false, err
	}
	return info.IsDir(), nil
}

func (s *Set) readFile(fsys fs.FS, name, file string) {
	source := path.Join(name, file)
	data, err := fs.ReadFile(fsys, file)
	if err != nil {
		s.fault("%s: %w", name, err)
		return
	}
	v, err := strictjson.Check(data, strictjson.Options{MaxDepth: maxDepth})
	switch {
	case err == nil:
	case bytes.HasPrefix(data, []byte("\ufeff")):
		s.fault("%s: begins with a byte order mark; a vector file has none", source)
		return
	case len(bytes.TrimSpace(data)) == 0:
		s.fault("%s: the file is empty", source)
		return
	default:
		s.faults = append(s.faults, positioned(source, data, err))
		return
	}
	protocol, suite := path.Dir(file), strings.TrimSuffix(path.Base(file), ".json")
	if err := s.parseFile(v, source, protocol, suite); err != nil {
		s.fault("%s: %w", source, err)
	}
}

// positioned turns the offset of an error into line and column.
func positioned(source string, data []byte, err error) error {
	var fault *strictjson.Error
	if !errors.As(err, &fault) {
		return fmt.Errorf("%s: %w", source, err)
	}
	before := data[:min(fault.Offset, len(data))]
	line := bytes.Count(before, []byte{'\n'}) + 1
	column := len(before) - bytes.LastIndexByte(before, '\n')
	at := ""
	if fault.Pointer != "" {
		at = " (in " + fault.Pointer + ")"
	}
	return fmt.Errorf("%s:%d:%d: %s%s", source, line, column, fault.Kind, at)
}

func (s *Set) parseFile(v strictjson.Value, source, protocol, suite string) error {
	r := reader{value: v}
	format := r.get("format")
	r.equals("protocol", protocol, "the folder")
	r.equals("suite", suite, "the file name")
	r.text("spec")
	cases := r.get("cases")
	if err := r.done(); err != nil {
		return err
	}
	if n, ok := format.Int(); !ok || n != 1 {
		return fmt.Errorf("format: want 1, not %s", clip(string(format)))
	}
	if !cases.IsArray() {
		return errors.New("cases: want a list")
	}
	n := 0
	for e := cases.Elements(); e.Next(); n++ {
		c, err := parseCase(e.Value, source, protocol, suite)
		if err != nil {
			s.fault("%s: cases[%d]%s: %w", source, n, named(e.Value), err)
			continue
		}
		s.cases = append(s.cases, c)
	}
	if n == 0 {
		return errors.New("cases: the list is empty")
	}
	return nil
}

func named(v strictjson.Value) string {
	if id, ok := v.Get("id").Text(); ok {
		return " (" + id + ")"
	}
	return ""
}

var caseNumber = regexp.MustCompile(`^[0-9]{3}$`)

func parseCase(v strictjson.Value, source, protocol, suite string) (*Case, error) {
	if !v.IsObject() {
		return nil, errors.New("want an object")
	}
	r := reader{value: v}
	c := &Case{
		ID: r.text("id"), Doc: r.text("doc"), Ref: r.text("ref"), Op: r.text("op"),
		Protocol: protocol, Suite: suite, Source: source,
		text: v, in: r.get("in"), want: r.optional("want"), wantErr: r.optional("wantErr"),
	}
	if err := r.done(); err != nil {
		return nil, err
	}
	number, ok := strings.CutPrefix(c.ID, protocol+"-"+suite+"-")
	switch {
	case !ok || !caseNumber.MatchString(number):
		return nil, fmt.Errorf("id: want %s-%s-NNN", protocol, suite)
	case !c.in.IsObject():
		return nil, errors.New("in: want an object")
	case (c.want == nil) == (c.wantErr == nil):
		return nil, errors.New("want exactly one of want and wantErr")
	case c.want != nil && !c.want.IsObject():
		return nil, errors.New("want: want an object")
	case c.wantErr != nil && !c.wantErr.IsObject():
		if text, ok := c.wantErr.Text(); !ok || text == "" {
			return nil, errors.New("wantErr: want a string or an object")
		}
	}
	if names := c.wantErr.Members(); c.wantErr.IsObject() && !names.Next() {
		return nil, errors.New("wantErr: names nothing")
	}
	return c, nil
}

// refuseRepeated makes a repeated id in one folder a fault, with equal content
// or not: ids are unique in a set.
func (s *Set) refuseRepeated() {
	seen := make(map[string]*Case)
	s.cases = slices.DeleteFunc(s.cases, func(c *Case) bool {
		first, ok := seen[c.ID]
		if ok {
			s.fault("%s: %s stands twice in one folder (also in %s)", c.Source, c.ID, first.Source)
			return true
		}
		seen[c.ID] = c
		return false
	})
}

// A reader takes the members of an object of the format and keeps the first
// fault: one that is missing, of another type, or unknown.
type reader struct {
	value strictjson.Value
	names []string
	err   error
}

func (r *reader) optional(name string) strictjson.Value {
	r.names = append(r.names, name)
	return r.value.Get(name)
}

func (r *reader) get(name string) strictjson.Value {
	v := r.optional(name)
	if v == nil && r.err == nil {
		r.err = fmt.Errorf("%s: missing", name)
	}
	return v
}

func (r *reader) text(name string) string {
	v := r.get(name)
	s, ok := v.Text()
	if (!ok || s == "") && r.err == nil {
		r.err = fmt.Errorf("%s: want a string that is not empty", name)
	}
	return s
}

func (r *reader) equals(name, want, what string) {
	if s := r.text(name); s != want && r.err == nil {
		r.err = fmt.Errorf("%s: %q does not agree with %s", name, s, what)
	}
}

func (r *reader) done() error {
	if !r.value.IsObject() {
		return errors.New("want an object")
	}
	for m := r.value.Members(); m.Next(); {
		if !slices.Contains(r.names, string(m.Name)) {
			return fmt.Errorf("%q: unknown field", m.Name)
		}
	}
	return r.err
}

// Resolve finds a folder by a path that may be relative: first from the working
// directory, then from the root of the module around it. A test runs in the
// folder of its package, but people name folders from where they call go test,
// which mostly is the root.
func Resolve(dir string) (string, error) {
	if filepath.IsAbs(dir) {
		return filepath.Clean(dir), nil
	}
	here, err := filepath.Abs(dir)
	if err != nil {
		return "", err
	}
	if _, err := os.Stat(here); err == nil {
		return here, nil
	}
	root, err := ModuleRoot()
	if err != nil {
		return here, nil // reading it reports the fault
	}
	there := filepath.Join(root, dir)
	if _, err := os.Stat(there); err != nil {
		return "", fmt.Errorf("%s: no such folder, neither in the working directory nor in %s", dir, root)
	}
	return there, nil
}

// ModuleRoot returns the nearest folder above the working directory that holds
// a go.mod.
func ModuleRoot() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir, nil
		}
		up := filepath.Dir(dir)
		if up == dir {
			return "", errors.New("no go.mod in the working directory or above")
		}
		dir = up
	}
}

// OpenList returns the vectors of folders given in the platform's path-list
// syntax, as in the environment variable CONFORMANCE_VECTORS. See [Resolve] for
// relative paths.
func OpenList(list string) *Set {
	var sets []*Set
	var seen []string
	for _, dir := range filepath.SplitList(list) {
		if dir == "" {
			continue
		}
		found, err := Resolve(dir)
		if err != nil {
			sets = append(sets, &Set{faults: []error{err}})
			continue
		}
		if !slices.Contains(seen, found) {
			seen = append(seen, found)
			sets = append(sets, Open(found))
		}
	}
	return Merge(sets...)
}
