// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package fivewire_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// surfaces are the numbers of exported names that the packages may have: package-level
// names and methods of exported types. A maximum above the goal only falls.
var surfaces = map[string]struct{ goal, maximum int }{
	"a2e":   {265, 265},
	"accp":  {250, 250},
	"air":   {230, 230},
	"altar": {190, 190},
	"arc":   {250, 243},
	"store": {40, 40},

	"conformance/fault": {40, 40},
}

// constants are the numbers of exported constants of packages where these are the codes, methods, events, states
// and scopes of a specification. They are not part of surfaces.
var constants = map[string]int{"arc": 89}

// maxOptions bounds the fields of an options struct besides those of optionGroups.
const maxOptions = 15

var optionGroups = []string{"Auth", "Limits", "Timing", "Persistence"}

// stateFiles are the files of state machines in protocol packages. They take what is
// received as arguments.
var stateFiles = []string{
	"a2e/call.go", "a2e/calls.go", "a2e/session.go", "a2e/snapshot.go",
	"accp/chains.go", "accp/checkpoint.go", "accp/end.go", "accp/facts.go", "accp/history.go", "accp/memory.go", "accp/move.go",
	"accp/negotiate.go", "accp/parts.go", "accp/receive.go", "accp/refine.go", "accp/refs.go", "accp/send.go", "accp/session.go",
	"accp/split.go", "accp/state.go", "accp/view.go",
	"air/negotiation.go", "air/ledger.go", "air/thread.go", "air/threads.go",
	"altar/callstream.go", "altar/claims.go", "altar/effects.go", "altar/hostcall.go", "altar/hostruntime.go",
	"altar/hostsession.go",
	"arc/chats.go", "arc/tasks.go",
}

// codecFiles are the files of the codec of accp. They import neither a transport nor a store, so that the codec can be
// used alone.
var codecFiles = []string{"accp/append.go", "accp/chars.go", "accp/codec.go", "accp/decimal.go", "accp/message.go", "accp/meta.go",
	"accp/parse.go", "accp/pipeline.go", "accp/registry.go", "accp/scalar.go", "accp/scan.go", "accp/schema.go", "accp/tokens.go", "accp/value.go"}

func TestCodecImportsNoStore(t *testing.T) {
	for _, file := range codecFiles {
		f, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ImportsOnly)
		require.NoError(t, err)
		for _, imported := range f.Imports {
			path := strings.Trim(imported.Path.Value, `"`)
			require.False(t, isTransport(path) || path == module+"/store" || strings.HasPrefix(path, module+"/accp/"), "%s imports %s", file, path)
		}
	}
}

// transportPackages are the packages below the internal folder of a protocol that may
// import a transport.
var transportPackages = []string{"accp/internal/bindingtest", "air/internal/exchange", "air/internal/server", "air/internal/signature", "altar/internal/transport", "arc/internal/endpoint", "arc/internal/front", "arc/internal/signature"}

// A state machine imports neither net/http nor a transport: the listed files, the
// packages below the internal folder of a protocol, and the kernels of state.
func TestStateMachinesImportNoTransport(t *testing.T) {
	found := make(map[string]int)
	check := func(protocol, file string) {
		if strings.HasSuffix(file, "_test.go") {
			return
		}
		found[protocol]++
		f, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ImportsOnly)
		require.NoError(t, err)
		for _, imported := range f.Imports {
			require.False(t, isTransport(strings.Trim(imported.Path.Value, `"`)), "%s imports %s", file, imported.Path.Value)
		}
	}
	for _, pattern := range stateFiles {
		files, err := filepath.Glob(pattern)
		require.NoError(t, err)
		for _, file := range files {
			check(strings.Split(pattern, "/")[0], file)
		}
	}
	for _, protocol := range protocols {
		require.Positive(t, found[protocol], "no state machine of %s is listed", protocol)
		files, err := filepath.Glob(protocol + "/internal/*/*.go")
		require.NoError(t, err)
		for _, file := range files {
			if !slices.Contains(transportPackages, filepath.ToSlash(filepath.Dir(file))) {
				check(protocol, file)
			}
		}
	}
	for dir, floor := range raised {
		if floor == floorState && dir != "internal/testkit" && dir != "internal/kerneltest" && !strings.HasPrefix(dir, "internal/sim") {
			files, err := filepath.Glob(dir + "/*.go")
			require.NoError(t, err)
			require.NotEmpty(t, files, dir)
			for _, file := range files {
				check("internal", file)
			}
		}
	}
}

// isTransport reports whether a package sends or receives messages.
func isTransport(path string) bool {
	switch strings.TrimPrefix(path, module+"/internal/") {
	case "net", "net/http", "httpx", "sse", "wsconn", "github.com/coder/websocket":
		return true
	}
	return false
}

// The packages export at most the names of surfaces.
func TestSurface(t *testing.T) {
	for dir, bounds := range surfaces {
		n, values := 0, 0
		for _, f := range sourceFiles(t, dir) {
			names, others := countExported(f)
			n += names
			values += others
		}
		require.Positive(t, n)
		if maximum, isApart := constants[dir]; isApart {
			require.LessOrEqual(t, values, maximum, "%s exports %d constants", dir, values)
		} else {
			n += values
		}
		require.LessOrEqual(t, n, bounds.maximum, "%s exports %d names", dir, n)
		if n > bounds.goal {
			t.Logf("%s exports %d names, %d above the goal", dir, n, n-bounds.goal)
		}
	}
}

// maxNamespaces bounds the exported names of all namespaces of a2e together. The goal is 300.
const maxNamespaces = 415

func TestSurfaceOfNamespaces(t *testing.T) {
	n := 0
	for _, name := range []string{"chains", "env", "learn", "mcp", "memory", "planning", "proc", "skills", "subagents", "toolkits", "tools"} {
		for _, f := range sourceFiles(t, "a2e/"+name) {
			names, values := countExported(f)
			n += names + values
		}
	}
	require.LessOrEqual(t, n, maxNamespaces, "the namespaces of a2e export %d names", n)
}

// maxKernel bounds the exported names of a kernel, without the methods of standard interfaces.
const maxKernel = 25

var standardMethods = []string{"Error", "Is", "MarshalJSON", "RetryClass", "String", "UnmarshalJSON", "Unwrap"}

func TestKernelsAreNarrow(t *testing.T) {
	for _, name := range []string{"budget", "calls", "guard", "httpx", "journal", "jsonmap", "lazy", "lease", "life", "netguard", "once",
		"outbox", "retry", "seen", "sendq", "state", "streamlog", "wsconn"} {
		n := 0
		for _, f := range sourceFiles(t, "internal/"+name) {
			f.Decls = slices.DeleteFunc(f.Decls, func(decl ast.Decl) bool {
				fn, ok := decl.(*ast.FuncDecl)
				return ok && fn.Recv != nil && slices.Contains(standardMethods, fn.Name.Name)
			})
			names, values := countExported(f)
			n += names + values
		}
		require.Positive(t, n, name)
		require.LessOrEqual(t, n, maxKernel, "%s exports %d names", name, n)
	}
}

// countExported returns the numbers of exported names of a file, without fields: first without constants, then
// constants alone.
func countExported(f *ast.File) (n, constants int) {
	for _, decl := range f.Decls {
		switch d := decl.(type) {
		case *ast.FuncDecl:
			if d.Name.IsExported() && reachable(d.Recv) {
				n++
			}
		case *ast.GenDecl:
			for _, spec := range d.Specs {
				switch s := spec.(type) {
				case *ast.TypeSpec:
					if s.Name.IsExported() {
						n++
					}
				case *ast.ValueSpec:
					for _, name := range s.Names {
						switch {
						case !name.IsExported():
						case d.Tok == token.CONST:
							constants++
						default:
							n++
						}
					}
				}
			}
		}
	}
	return n, constants
}

// An options struct has at most maxOptions fields besides its groups.
func TestOptionsAreShort(t *testing.T) {
	structs := 0
	for _, pattern := range []string{"a2e", "accp", "air", "altar", "arc"} {
		below, err := filepath.Glob(pattern + "/*")
		require.NoError(t, err)
		for _, dir := range append(below, pattern) {
			for _, f := range sourceFiles(t, dir) {
				for name, n := range optionFields(f) {
					structs++
					require.LessOrEqual(t, n, maxOptions, "fields of %s.%s", f.Name.Name, name)
				}
			}
		}
	}
	require.Greater(t, structs, 20)
}

// optionFields returns the number of exported fields of each options struct of a file.
func optionFields(f *ast.File) map[string]int {
	counts := make(map[string]int)
	for _, decl := range f.Decls {
		d, ok := decl.(*ast.GenDecl)
		if !ok {
			continue
		}
		for _, spec := range d.Specs {
			s, ok := spec.(*ast.TypeSpec)
			if !ok || !s.Name.IsExported() || !strings.HasSuffix(s.Name.Name, "Options") {
				continue
			}
			if t, ok := s.Type.(*ast.StructType); ok {
				counts[s.Name.Name] = 0
				for _, field := range t.Fields.List {
					for _, name := range field.Names {
						if name.IsExported() && !slices.Contains(optionGroups, name.Name) {
							counts[s.Name.Name]++
						}
					}
				}
			}
		}
	}
	return counts
}

// sourceFiles returns the parsed files of a folder, without tests.
func sourceFiles(t *testing.T, dir string) (list []*ast.File) {
	t.Helper()
	files, err := filepath.Glob(dir + "/*.go")
	require.NoError(t, err)
	for _, file := range files {
		if !strings.HasSuffix(file, "_test.go") {
			f, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
			require.NoError(t, err)
			list = append(list, f)
		}
	}
	return list
}

// maxComplexity bounds the branches of a function, plus one, below the folders of branching.
const maxComplexity = 15

var branching = []string{"a2e", "accp", "altar"}

func TestFunctionsAreSimple(t *testing.T) {
	for _, dir := range branching {
		require.NoError(t, filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
			if err != nil || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			f, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
			require.NoError(t, err)
			for _, decl := range f.Decls {
				if fn, ok := decl.(*ast.FuncDecl); ok && fn.Body != nil {
					require.LessOrEqual(t, complexity(fn), maxComplexity, "%s: %s", path, fn.Name.Name)
				}
			}
			return nil
		}))
	}
}

// maxMethods bounds the methods of a type of package accp, so that each part of a session has an owner.
const maxMethods = 40

func TestTypesHaveFewMethods(t *testing.T) {
	methods := make(map[string]int)
	for _, f := range sourceFiles(t, "accp") {
		for _, decl := range f.Decls {
			if fn, ok := decl.(*ast.FuncDecl); ok && fn.Recv != nil {
				recv := fn.Recv.List[0].Type
				if star, ok := recv.(*ast.StarExpr); ok {
					recv = star.X
				}
				methods[recv.(*ast.Ident).Name]++
			}
		}
	}
	require.Contains(t, methods, "Session")
	for name, n := range methods {
		require.LessOrEqual(t, n, maxMethods, "methods of accp.%s", name)
	}
}

// complexity returns the number of branches of a function, plus one.
func complexity(fn *ast.FuncDecl) int {
	n := 1
	ast.Inspect(fn.Body, func(node ast.Node) bool {
		isBranch := false
		switch node := node.(type) {
		case *ast.IfStmt, *ast.ForStmt, *ast.RangeStmt:
			isBranch = true
		case *ast.CaseClause:
			isBranch = node.List != nil
		case *ast.CommClause:
			isBranch = node.Comm != nil
		case *ast.BinaryExpr:
			isBranch = node.Op == token.LAND || node.Op == token.LOR
		}
		if isBranch {
			n++
		}
		return true
	})
	return n
}
