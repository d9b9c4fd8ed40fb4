// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package fivewire_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Every package and every exported identifier that a user can reach has a doc comment, and every file names its
// copyright holder. A comment on a group of constants or variables covers all of them.
func TestDocumented(t *testing.T) {
	files, isDocumented := 0, map[string]bool{}
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && path != "." && (strings.HasPrefix(d.Name(), ".") || strings.HasPrefix(d.Name(), "_") || d.Name() == "testdata") {
			return filepath.SkipDir
		}
		if d.IsDir() || !strings.HasSuffix(path, ".go") {
			return nil
		}
		files++
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		if !strings.HasPrefix(string(text), "// Copyright 2026 The Fivewire Authors\n// SPDX-License-Identifier: Apache-2.0\n\n") {
			t.Errorf("%s lacks the two lines that every file begins with", path)
		}
		if strings.HasSuffix(path, "_test.go") {
			return nil
		}
		set := token.NewFileSet()
		f, err := parser.ParseFile(set, path, text, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		isDocumented[filepath.Dir(path)] = isDocumented[filepath.Dir(path)] || f.Doc != nil
		for _, missing := range undocumented(f) {
			t.Errorf("%s: %s has no doc comment", set.Position(missing.Pos()), missing.Name)
		}
		return nil
	})
	require.NoError(t, err)
	for dir, ok := range isDocumented {
		if !ok {
			t.Errorf("%s has no package comment", dir)
		}
	}
	require.Greater(t, files, 100)
}

// undocumented returns the exported names of a file that have no comment.
func undocumented(f *ast.File) (missing []*ast.Ident) {
	if f.Name.Name == "main" {
		return nil
	}
	for _, decl := range f.Decls {
		switch d := decl.(type) {
		case *ast.FuncDecl:
			if d.Name.IsExported() && d.Doc == nil && reachable(d.Recv) {
				missing = append(missing, d.Name)
			}
		case *ast.GenDecl:
			for _, spec := range d.Specs {
				switch s := spec.(type) {
				case *ast.TypeSpec:
					if s.Name.IsExported() && d.Doc == nil && s.Doc == nil {
						missing = append(missing, s.Name)
					}
				case *ast.ValueSpec:
					for _, name := range s.Names {
						if name.IsExported() && d.Doc == nil && s.Doc == nil && s.Comment == nil {
							missing = append(missing, name)
						}
					}
				}
			}
		}
	}
	return missing
}

// reachable reports whether a method belongs to an exported type. Methods that
// make a type an error or a Stringer need no words.
func reachable(recv *ast.FieldList) bool {
	if recv == nil {
		return true
	}
	t := recv.List[0].Type
	if star, ok := t.(*ast.StarExpr); ok {
		t = star.X
	}
	if generic, ok := t.(*ast.IndexExpr); ok {
		t = generic.X
	}
	name, ok := t.(*ast.Ident)
	return ok && name.IsExported()
}

func TestUndocumentedFindsThem(t *testing.T) {
	const text = `package p
func A() {}
// B is fine.
func B() {}
func c() {}
type D struct{}
func (D) E() {}
func (*f) G() {}
type f struct{}
// Fine, all of them.
const (
	H = 1
	I = 2
)
var J = 1
`
	f, err := parser.ParseFile(token.NewFileSet(), "p.go", text, parser.ParseComments)
	require.NoError(t, err)
	var names []string
	for _, m := range undocumented(f) {
		names = append(names, m.Name)
	}
	require.Equal(t, []string{"A", "D", "E", "J"}, names)
}
