// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

// Package testkit has tests that hold for the options of every protocol package.
package testkit

import (
	"cmp"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

const module = "github.com/fivewire/fivewire"

// A field is an exported field of options or of one of its groups.
type field struct {
	path   string // from the options, such as Limits.MaxMessage
	parent reflect.Type
	reflect.StructField
	index []int // of each struct on the path
}

// fields returns the fields of a struct, those of its groups in their place.
func fields(t reflect.Type, prefix string, index []int) []field {
	var list []field
	for i := range t.NumField() {
		f := t.Field(i)
		if !f.IsExported() {
			continue
		}
		at := append(append([]int{}, index...), i)
		if group, ok := groupOf(f.Type); ok {
			list = append(list, fields(group, prefix+f.Name+".", at)...)
			continue
		}
		list = append(list, field{path: prefix + f.Name, parent: t, StructField: f, index: at})
	}
	return list
}

// groupOf returns the struct of a group: a struct of the module, or a pointer to one without
// unexported fields.
func groupOf(t reflect.Type) (reflect.Type, bool) {
	isPointer := t.Kind() == reflect.Pointer
	if isPointer {
		t = t.Elem()
	}
	if t.Kind() != reflect.Struct || !strings.HasPrefix(t.PkgPath(), module) {
		return nil, false
	}
	for f := range t.Fields() {
		if isPointer && !f.IsExported() {
			return nil, false
		}
	}
	return t, true
}

// value returns the field of options, and makes the groups on its path.
func (f *field) value(options reflect.Value) reflect.Value {
	v := options
	for _, i := range f.index {
		if v.Kind() == reflect.Pointer {
			if v.IsNil() {
				v.Set(reflect.New(v.Type().Elem()))
			}
			v = v.Elem()
		}
		v = v.Field(i)
	}
	return v
}

// set sets a number.
func (f *field) set(options any, n int64) {
	v := f.value(reflect.ValueOf(options))
	if v.CanFloat() {
		v.SetFloat(float64(n))
		return
	}
	v.SetInt(n)
}

func numbers(t reflect.Type, except []string) []field {
	var list []field
	for _, f := range fields(t, "", nil) {
		if slices.Contains(except, f.path) {
			continue
		}
		switch f.Type {
		case reflect.TypeFor[int](), reflect.TypeFor[int64](), reflect.TypeFor[float64](), reflect.TypeFor[time.Duration]():
			list = append(list, f)
		}
	}
	return list
}

// Numbers runs use with each number of the options at 0 and at -1, and with all at -1. It fails if
// neither the comment of a number nor that of its struct states the meaning of zero and of negative
// values. The function base returns the other options; except lists the paths of numbers that do
// not bound anything.
func Numbers[O any](t *testing.T, base func() *O, use func(t *testing.T, o *O), except ...string) {
	t.Helper()
	list := numbers(reflect.TypeFor[O](), except)
	if len(list) == 0 {
		t.Fatalf("%T has no numbers", *new(O))
	}
	for _, f := range list {
		if fault := undocumented(&f); fault != "" {
			t.Error(fault)
		}
		for _, n := range []int64{0, -1} {
			t.Run(fmt.Sprintf("%s=%d", f.path, n), func(t *testing.T) {
				o := base()
				f.set(o, n)
				use(t, o)
			})
		}
	}
	t.Run("all=-1", func(t *testing.T) {
		o := base()
		for _, f := range list {
			f.set(o, -1)
		}
		use(t, o)
	})
}

// undocumented returns the fault of the comment of a number, or "".
func undocumented(f *field) string {
	comment := strings.ToLower(commentsOf(f.parent.PkgPath())[f.parent.Name()+"."+f.Name])
	for _, word := range []string{"zero", "negative"} {
		if !strings.Contains(comment, word) {
			return fmt.Sprintf("comment of %s.%s: no word %q", f.parent, f.Name, word)
		}
	}
	return ""
}

var comments struct {
	mu sync.Mutex
	of map[string]map[string]string // by package, then by Type.Field
}

// commentsOf returns the comments of the fields of all structs in a package of the main module.
func commentsOf(pkg string) map[string]string {
	comments.mu.Lock()
	defer comments.mu.Unlock()
	if comments.of[pkg] == nil {
		list := map[string]string{}
		names, err := filepath.Glob(filepath.Join(root(), filepath.FromSlash(strings.TrimPrefix(pkg, module)), "*.go"))
		if err != nil {
			panic(err)
		}
		for _, name := range names {
			file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.ParseComments)
			if err != nil {
				panic(err)
			}
			addComments(list, file)
		}
		if comments.of == nil {
			comments.of = map[string]map[string]string{}
		}
		comments.of[pkg] = list
	}
	return comments.of[pkg]
}

func addComments(list map[string]string, file *ast.File) {
	ast.Inspect(file, func(n ast.Node) bool {
		decl, ok := n.(*ast.GenDecl)
		if !ok {
			return true
		}
		for _, s := range decl.Specs {
			spec, ok := s.(*ast.TypeSpec)
			if !ok {
				continue
			}
			st, ok := spec.Type.(*ast.StructType)
			if !ok {
				continue
			}
			for _, f := range st.Fields.List {
				for _, name := range f.Names {
					list[spec.Name.Name+"."+name.Name] = decl.Doc.Text() + spec.Doc.Text() + f.Doc.Text() + f.Comment.Text()
				}
			}
		}
		return false
	})
}

// root returns the folder of the main module, above the working directory of a test.
func root() string {
	dir, err := os.Getwd()
	for err == nil {
		text, readErr := os.ReadFile(filepath.Join(dir, "go.mod"))
		if readErr == nil && strings.HasPrefix(string(text), "module "+module+"\n") {
			return dir
		}
		if dir == filepath.Dir(dir) {
			break
		}
		dir = filepath.Dir(dir)
	}
	panic(cmp.Or(err, fmt.Errorf("testkit: no go.mod of %s", module)))
}
