// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package fivewire_test

import (
	"encoding/json"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// A goIndex holds the names of packages, by their folder.
type goIndex map[string]*goPackage

// A goPackage holds the exported names of a package and the tests of its folder.
type goPackage struct {
	name    string
	names   map[string]bool            // of the package level
	members map[string]map[string]bool // fields and methods, by type
	tests   map[string]bool            // tests, fuzz tests and benchmarks
	flags   map[string]bool            // of commands and tests
}

// A repository is what Markdown files may refer to.
type repository struct {
	index  goIndex
	ids    map[string]bool // decisions, requirements and vectors
	files  []string        // Markdown files
	counts map[string]int  // checked references, by kind
}

// standard are the packages of the standard library that Markdown files refer to.
var standard = []string{"context", "errors", "log/slog", "net/http", "os", "os/signal"}

// foreignNames are names of other programs and of the wire in Markdown files.
var foreignNames = map[string][]string{
	"SECURITY.md":                    {"Origin"},
	"accp/DECISIONS.md":              {"Req"},
	"air/DECISIONS.md":               {"Conflict", "Replay"},
	"altar/DECISIONS.md":             {"Accept", "Infinity", "NaN", "Session_ID"},
	"conformance/OPERATIONS.md":      {"DIDComm"},
	"conformance/interop/README.md":  {"AttributeError", "ConnectionError", "EventSource", "JWTValidator", "NameError", "SSEResponse"},
	"internal/tools/prose/README.md": {"TestCloseUnblocksReaders"},
}

// Each link, id, name and command in Markdown files has a target.
func TestMarkdown(t *testing.T) {
	r := newRepository(t)
	for _, file := range r.files {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		for _, dead := range r.deadReferences(file, string(text)) {
			t.Errorf("%s: %s", file, dead)
		}
	}
	for _, kind := range []string{"link", "id", "name", "command"} {
		require.Greater(t, r.counts[kind], 20, "references of the kind %s", kind)
	}
}

// Each threat of SECURITY.md has a default and tests, and each protocol has tests.
func TestSecurityNamesTests(t *testing.T) {
	text, err := os.ReadFile("SECURITY.md")
	require.NoError(t, err)
	_, threats, ok := strings.Cut(string(text), "## Threats\n")
	require.True(t, ok)
	threats, _, ok = strings.Cut(threats, "\n## ")
	require.True(t, ok)
	rows := regexp.MustCompile(`(?m)^\| (.*) \|$`).FindAllStringSubmatch(threats, -1)
	require.Greater(t, len(rows), 10)
	tests := make(map[string]int)
	for _, row := range rows[1:] {
		cells := strings.Split(row[1], " | ")
		require.Len(t, cells, 3, row[1])
		names := codePattern.FindAllStringSubmatch(cells[2], -1)
		require.NotEmpty(t, names, row[1])
		for _, name := range names {
			require.Regexp(t, `\.(Test|Fuzz)|-\d{3}$`, name[1])
			tests[regexp.MustCompile(`^\w+`).FindString(name[1])]++
		}
	}
	for _, protocol := range protocols {
		require.Greater(t, tests[protocol], 5, protocol)
	}
}

// The entry points of SECURITY.md include each command and each nested module that listens or dials, with a default
// and tests.
func TestSecurityNamesEntryPoints(t *testing.T) {
	text, err := os.ReadFile("SECURITY.md")
	require.NoError(t, err)
	_, points, ok := strings.Cut(string(text), "## Entry points\n")
	require.True(t, ok)
	points, _, _ = strings.Cut(points, "\n## ")
	var names []string
	for _, row := range regexp.MustCompile(`(?m)^\| (.*) \|$`).FindAllStringSubmatch(points, -1)[1:] {
		cells := strings.Split(row[1], " | ")
		require.Len(t, cells, 3, row[1])
		for _, name := range codePattern.FindAllStringSubmatch(cells[0], -1) {
			names = append(names, name[1])
		}
		for _, name := range codePattern.FindAllStringSubmatch(cells[2], -1) {
			require.Regexp(t, `\.(Test|Fuzz)`, name[1])
		}
	}
	var want []string
	for _, pattern := range []string{"*/cmd/*", "*/*/cmd/*", "*/mcp*er", "*/mcpbridge", "*/*bridge", "*/*binding", "*/jwtauth", "*/oauth", "*/natsroute", "*/relay", "*/webhook"} {
		found, err := filepath.Glob(pattern)
		require.NoError(t, err)
		want = append(want, found...)
	}
	slices.Sort(want)
	require.Greater(t, len(want), 15)
	for _, name := range slices.Compact(want) {
		name = filepath.ToSlash(name)
		if name != "conformance/cmd/testee" && !strings.HasPrefix(name, "internal/") && !strings.HasPrefix(name, "examples/") {
			require.Contains(t, names, name)
		}
	}
}

// The promises of SECURITY.md name every invariant that a simulation judges, and no other.
func TestSecurityNamesInvariants(t *testing.T) {
	text, err := os.ReadFile("SECURITY.md")
	require.NoError(t, err)
	_, promises, _ := strings.Cut(string(text), "## Promises\n")
	promises, _, _ = strings.Cut(promises, "\n## ")
	rows := regexp.MustCompile(`(?m)^\| (.*) \|$`).FindAllStringSubmatch(promises, -1)
	require.Greater(t, len(rows), 10)
	named := make(map[string][]string) // by folder
	for _, row := range rows[1:] {
		cells := strings.Split(row[1], " | ")
		require.Len(t, cells, 4, row[1])
		require.Regexp(t, `^\d,\d00$`, cells[3])
		machines := codePattern.FindAllStringSubmatch(cells[2], -1)
		require.NotEmpty(t, machines, row[1])
		named[machines[0][1]] = append(named[machines[0][1]], strings.Fields(cells[1])...)
	}
	files, err := filepath.Glob("internal/sim/*/*_test.go")
	require.NoError(t, err)
	judged := make(map[string][]string)
	for _, file := range files {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		dir := filepath.ToSlash(filepath.Dir(file))
		for _, m := range regexp.MustCompile(`(?:Failf|Bound)\("([A-Z]\d)"`).FindAllStringSubmatch(string(text), -1) {
			if !slices.Contains(judged[dir], m[1]) {
				judged[dir] = append(judged[dir], m[1])
			}
		}
	}
	require.Len(t, named, len(judged))
	for dir, ids := range judged {
		require.ElementsMatch(t, ids, named[dir], dir)
	}
}

// The README names each example.
func TestREADMENamesExamples(t *testing.T) {
	text, err := os.ReadFile("README.md")
	require.NoError(t, err)
	examples, err := filepath.Glob("examples/*/main.go")
	require.NoError(t, err)
	require.NotEmpty(t, examples)
	for _, main := range examples {
		dir := filepath.ToSlash(filepath.Dir(main))
		require.Contains(t, string(text), "]("+dir+"/)")
	}
}

func TestMarkdownReportsDeadReferences(t *testing.T) {
	r := newRepository(t)
	for _, text := range []string{
		"[a](missing.md)", "[a](README.md#missing)", "ARC-D999", "arc-envelope-999", "ARC-999",
		"`ServerOptions.Missing`", "`arc.Missing`", "`arc.ServerOptions.Missing`", "`MaxMissing`", "`arc.TestMissing`",
		"`internal/missing.TestMissing`", "`http.Missing`", "`*arc.Missing`", "`Server.Missing()`",
		"`go test ./missing`", "`go test ./arc -run TestMissing`", "`go test -bench Missing ./arc`", "`go run ./examples/missing`",
		"`go run ./examples/arc-server -missing`", "`bash .ci/missing`", "```sh\n.ci/missing\n```", "```\ngo test ./missing\n```",
		"`go test ./conformance -args -missing x`", "`go test -fuzz FuzzMissing ./arc`",
	} {
		require.NotEmpty(t, r.deadReferences("README.md", text), text)
	}
	for _, text := range []string{
		"[a](README.md#modules)", "[a](https://example.com/missing.md)", "ARC-D53", "arc-envelope-001", "ARC-036",
		"`ServerOptions.Audit`", "`*arc.Error`", "`Server.Close()`", "`http.Server`", "`TOKEN`", "`arc.TestCORS`",
		"`go test -race ./arc`", "`go run ./examples/arc-server -addr localhost:8080`", "```go\nmissing.Missing()\n```",
	} {
		require.Empty(t, r.deadReferences("README.md", text), text)
	}
}

func newRepository(t *testing.T) *repository {
	t.Helper()
	r := &repository{index: make(goIndex), ids: make(map[string]bool), counts: make(map[string]int)}
	require.NoError(t, filepath.WalkDir(".", func(file string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		hidden := strings.HasPrefix(d.Name(), ".") || strings.HasPrefix(d.Name(), "_") || d.Name() == "testdata" || d.Name() == "node_modules"
		if d.IsDir() && file != "." && hidden {
			return filepath.SkipDir
		}
		switch file = filepath.ToSlash(file); {
		case strings.HasSuffix(file, ".md"):
			r.files = append(r.files, file)
		case strings.HasSuffix(file, ".go"):
			return r.index.add(path.Dir(file), file)
		}
		return nil
	}))
	root, err := exec.Command("go", "env", "GOROOT").Output()
	require.NoError(t, err)
	for _, pkg := range standard {
		files, err := filepath.Glob(filepath.Join(strings.TrimSpace(string(root)), "src", filepath.FromSlash(pkg), "*.go"))
		require.NoError(t, err)
		for _, file := range files {
			if !strings.HasSuffix(file, "_test.go") {
				require.NoError(t, r.index.add("std/"+pkg, file))
			}
		}
	}
	r.readIDs(t)
	return r
}

// readIDs reads the ids of decisions, requirements and vectors.
func (r *repository) readIDs(t *testing.T) {
	t.Helper()
	for _, protocol := range protocols {
		text, err := os.ReadFile(protocol + "/DECISIONS.md")
		require.NoError(t, err)
		for _, m := range regexp.MustCompile(`(?m)^## ([A-Z0-9]+-D\d+) `).FindAllStringSubmatch(string(text), -1) {
			r.ids[m[1]] = true
		}
		files, err := filepath.Glob("conformance/testdata/" + protocol + "/*.json")
		require.NoError(t, err)
		for _, file := range append(files, "conformance/testdata/requirements/"+protocol+".json") {
			var list struct {
				Cases, Requirements []struct{ ID string }
			}
			text, err := os.ReadFile(file)
			require.NoError(t, err)
			require.NoError(t, json.Unmarshal(text, &list), file)
			for _, e := range append(list.Cases, list.Requirements...) {
				r.ids[e.ID] = true
			}
		}
	}
}

// add reads the names of a file.
func (x goIndex) add(dir, file string) error {
	f, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
	if err != nil {
		return err
	}
	p := x[dir]
	if p == nil {
		p = &goPackage{names: make(map[string]bool), members: make(map[string]map[string]bool), tests: make(map[string]bool),
			flags: make(map[string]bool)}
		x[dir] = p
	}
	ast.Inspect(f, p.addFlag)
	isTest := strings.HasSuffix(file, "_test.go")
	if !isTest && (p.name == "" || f.Name.Name != "main") { // the standard library has ignored files of package main
		p.name = f.Name.Name
	}
	for _, decl := range f.Decls {
		switch d := decl.(type) {
		case *ast.FuncDecl:
			switch {
			case isTest && d.Recv == nil:
				p.tests[d.Name.Name] = true
			case !isTest && d.Recv == nil:
				p.names[d.Name.Name] = true
			case !isTest:
				p.addMember(receiver(d.Recv), d.Name.Name)
			}
		case *ast.GenDecl:
			if !isTest {
				p.addSpecs(d)
			}
		}
	}
	return nil
}

// addSpecs adds the names of a declaration, with fields and methods of types.
func (p *goPackage) addSpecs(d *ast.GenDecl) {
	for _, spec := range d.Specs {
		switch s := spec.(type) {
		case *ast.ValueSpec:
			for _, name := range s.Names {
				p.names[name.Name] = true
			}
		case *ast.TypeSpec:
			p.names[s.Name.Name] = true
			var list *ast.FieldList
			switch t := s.Type.(type) {
			case *ast.StructType:
				list = t.Fields
			case *ast.InterfaceType:
				list = t.Methods
			default:
				continue
			}
			for _, field := range list.List {
				for _, name := range field.Names {
					p.addMember(s.Name.Name, name.Name)
				}
			}
		}
	}
}

func (p *goPackage) addMember(typ, name string) {
	if p.members[typ] == nil {
		p.members[typ] = make(map[string]bool)
	}
	p.members[typ][name] = true
}

// addFlag adds the name of a flag if a node defines one.
func (p *goPackage) addFlag(n ast.Node) bool {
	call, ok := n.(*ast.CallExpr)
	if !ok {
		return true
	}
	fun, ok := call.Fun.(*ast.SelectorExpr)
	if !ok {
		return true
	}
	at := 0
	if strings.HasSuffix(fun.Sel.Name, "Var") {
		at = 1
	}
	kinds := []string{"Bool", "Duration", "Float64", "Func", "Int", "Int64", "String", "Uint", "Var"}
	if kind := strings.TrimSuffix(fun.Sel.Name, "Var"); (kind == "" || slices.Contains(kinds, kind)) && len(call.Args) > at {
		if name, ok := call.Args[at].(*ast.BasicLit); ok && name.Kind == token.STRING {
			p.flags[strings.Trim(name.Value, "\"`")] = true
		}
	}
	return true
}

// receiver returns the name of the type of a receiver.
func receiver(list *ast.FieldList) string {
	t := list.List[0].Type
	for {
		switch x := t.(type) {
		case *ast.StarExpr:
			t = x.X
		case *ast.IndexExpr:
			t = x.X
		case *ast.IndexListExpr:
			t = x.X
		case *ast.Ident:
			return x.Name
		default:
			return ""
		}
	}
}

var (
	fencePattern = regexp.MustCompile("(?ms)^```([a-z]*)\n(.*?)^```$")
	codePattern  = regexp.MustCompile("`([^`\n]+)`")
	linkPattern  = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	idPattern    = regexp.MustCompile(`\b(?:(?:ARC|A2E|ALT|ACCP|AIR)-D?\d+|(?:arc|a2e|altar|accp|air)-[a-z]+(?:-[a-z]+)*-\d{3})\b`)
	testPattern  = regexp.MustCompile(`\b(?:Test|Fuzz)[A-Z]\w+`)
	namePattern  = regexp.MustCompile(`^\*?(?:([a-z0-9]+(?:/[a-z0-9]+)*)\.)?([A-Z]\w*)(?:\.([A-Z]\w*))?(?:\(\))?$`)
)

// deadReferences returns the references of a text that have no target.
func (r *repository) deadReferences(file, text string) (dead []string) {
	check := func(kind, reference string, ok bool) {
		r.counts[kind]++
		if !ok {
			dead = append(dead, kind+" "+reference)
		}
	}
	for _, m := range fencePattern.FindAllStringSubmatch(text, -1) {
		if m[1] == "" || m[1] == "sh" {
			for _, line := range strings.Split(m[2], "\n") {
				r.checkCommands(file, line, check)
			}
		}
	}
	text = fencePattern.ReplaceAllString(text, "")
	for _, id := range idPattern.FindAllString(text, -1) {
		check("id", id, r.ids[id])
	}
	for _, test := range testPattern.FindAllString(codePattern.ReplaceAllString(text, ""), -1) {
		check("name", test, r.hasName(file, "", test, ""))
	}
	for _, m := range codePattern.FindAllStringSubmatch(text, -1) {
		if n := namePattern.FindStringSubmatch(m[1]); n != nil && regexp.MustCompile(`[a-z]`).MatchString(n[2]) &&
			!slices.Contains(foreignNames[file], n[2]) && file != "CHANGELOG.md" { // with names of earlier versions
			check("name", m[1], r.hasName(file, n[1], n[2], n[3]))
		}
		r.checkCommands(file, m[1], check)
	}
	text = codePattern.ReplaceAllString(text, "")
	for _, m := range linkPattern.FindAllStringSubmatch(text, -1) {
		if !strings.Contains(m[1], "://") {
			check("link", m[1], hasLink(file, m[1]))
		}
	}
	return dead
}

// hasLink reports whether a link has a target: a file or folder, and a heading.
func hasLink(file, link string) bool {
	target, fragment, _ := strings.Cut(link, "#")
	if target == "" {
		target = path.Base(file)
	}
	target = path.Join(path.Dir(file), target)
	if fragment == "" {
		_, err := os.Stat(filepath.FromSlash(target))
		return err == nil
	}
	text, err := os.ReadFile(filepath.FromSlash(target))
	if err != nil {
		return false
	}
	for _, m := range regexp.MustCompile(`(?m)^#+ (.*)$`).FindAllStringSubmatch(string(text), -1) {
		slug := regexp.MustCompile(`[^\w\- ]`).ReplaceAllString(strings.ToLower(m[1]), "")
		if strings.ReplaceAll(slug, " ", "-") == fragment {
			return true
		}
	}
	return false
}

// hasName reports whether a name exists. Without a package it belongs to the protocol
// of the file, to store, or to the standard library; in other files to any package.
func (r *repository) hasName(file, pkg, name, member string) bool {
	first, _, isNested := strings.Cut(file, "/")
	for dir, p := range r.index {
		if pkg != "" && pkg != p.name && pkg != dir {
			continue
		}
		if isNested && pkg == "" && slices.Contains(protocols, first) &&
			dir != first && !strings.HasPrefix(dir, first+"/") && dir != "store" && !strings.HasPrefix(dir, "std/") {
			continue
		}
		if member != "" {
			if p.members[name][member] {
				return true
			}
			continue
		}
		if p.names[name] || p.tests[name] || p.tests["Benchmark"+name] {
			return true
		}
		if pkg == "" {
			for _, members := range p.members {
				if members[name] {
					return true
				}
			}
		}
	}
	return false
}

// checkCommands checks the commands of a line that runs something of the repository.
func (r *repository) checkCommands(file, line string, check func(kind, reference string, ok bool)) {
	line, _, _ = strings.Cut(line, " #")
	for _, command := range regexp.MustCompile(`(?:;|&&| \|) `).Split(line, -1) {
		args := strings.Fields(strings.NewReplacer(`'`, "", `"`, "", "$(", "", ")", "").Replace(command))
		for len(args) > 0 && (args[0] == "bash" || args[0] == "eval" || regexp.MustCompile(`^[A-Z_]+=`).MatchString(args[0])) {
			args = args[1:]
		}
		switch {
		case len(args) == 0:
		case strings.HasPrefix(args[0], ".ci/"), strings.HasPrefix(args[0], "conformance/interop/prepare"), strings.HasPrefix(args[0], "./"):
			if name := r.folder(file, args[0]); !strings.Contains(name, " ") {
				_, err := os.Stat(filepath.FromSlash(name))
				check("command", command, err == nil)
			}
		case args[0] == "go" && len(args) > 2 && slices.Contains([]string{"run", "test", "vet", "build"}, args[1]):
			check("command", command, r.hasCommand(file, args[1], args[2:]))
		}
	}
}

// folder returns a path of a command, relative to the root. Commands run in the root
// or in the folder of their file.
func (r *repository) folder(file, name string) string {
	if name = path.Clean(name); path.Dir(file) != "." {
		if _, err := os.Stat(filepath.FromSlash(path.Join(path.Dir(file), name))); err == nil && r.index[name] == nil {
			return path.Join(path.Dir(file), name)
		}
	}
	return name
}

// hasCommand reports whether the packages, tests and flags of a go command exist.
func (r *repository) hasCommand(file, verb string, args []string) bool {
	var dirs, flags []string
	var patterns []string
	for i := 0; i < len(args); i++ {
		arg := args[i]
		switch name := strings.TrimLeft(arg, "-"); {
		case verb == "run" && len(dirs) > 0, slices.Contains(args[:i], "-args"):
			if strings.HasPrefix(arg, "-") {
				flags = append(flags, name)
			}
		case slices.Contains([]string{"run", "bench", "fuzz", "skip"}, name) && strings.HasPrefix(arg, "-") && i+1 < len(args):
			i++
			if first, _, _ := strings.Cut(args[i], "/"); first != "^$" && first != "." {
				patterns = append(patterns, first)
			}
		case strings.HasPrefix(arg, "./"):
			dirs = append(dirs, arg)
		}
	}
	var packages []*goPackage
	for _, dir := range dirs {
		found := r.packages(r.folder(file, strings.TrimSuffix(dir, "/...")), strings.HasSuffix(dir, "/..."))
		if len(found) == 0 {
			return false
		}
		packages = append(packages, found...)
	}
	has := func(ok func(p *goPackage) bool) bool { return slices.ContainsFunc(packages, ok) }
	for _, name := range flags {
		if !has(func(p *goPackage) bool { return p.flags[name] }) && name != "h" {
			return false
		}
	}
	for _, pattern := range patterns {
		re, err := regexp.Compile(pattern)
		if err != nil || !has(func(p *goPackage) bool {
			for name := range p.tests {
				if re.MatchString(name) {
					return true
				}
			}
			return false
		}) {
			return false
		}
	}
	return true
}

// packages returns the package of a folder, or those of all folders below it.
func (r *repository) packages(dir string, below bool) (list []*goPackage) {
	for d, p := range r.index {
		if d == dir || below && (dir == "." || strings.HasPrefix(d, dir+"/")) {
			list = append(list, p)
		}
	}
	return list
}
