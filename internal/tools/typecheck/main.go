// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

// Typecheck checks the types of packages and of their tests for another system, from source and
// without code generation. It takes seconds where go vet compiles all dependencies first.
//
//	typecheck windows/amd64 PACKAGES
package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"golang.org/x/sync/errgroup"
)

func main() {
	if len(os.Args) < 3 || !strings.Contains(os.Args[1], "/") {
		fmt.Fprintln(os.Stderr, "usage: typecheck GOOS/GOARCH PACKAGES")
		os.Exit(2)
	}
	n, err := check(".", os.Args[1], os.Args[2:])
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Printf("%d packages have correct types on %s\n", n, os.Args[1])
}

// A listed package is an element of the output of go list. A test variant is another package.
type listed struct {
	ImportPath, Dir string
	GoFiles         []string
	ImportMap       map[string]string
	DepOnly         bool // only the declarations are checked
	Module          *struct{ GoVersion string }
	Error           *struct{ Err string }
}

// check returns the number of packages, or the errors of all.
func check(dir, system string, patterns []string) (int, error) {
	goos, arch, _ := strings.Cut(system, "/")
	args := append([]string{"list", "-e", "-deps", "-test",
		"-json=ImportPath,Dir,GoFiles,ImportMap,DepOnly,Module,Error"}, patterns...)
	cmd := exec.Command("go", args...)
	cmd.Dir, cmd.Env, cmd.Stderr = dir, append(os.Environ(), "GOOS="+goos, "GOARCH="+arch, "CGO_ENABLED=0"), os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return 0, fmt.Errorf("go list: %w", err)
	}
	sizes := types.SizesFor("gc", arch)
	n, done := 0, map[string]*types.Package{"unsafe": types.Unsafe}
	set, list := token.NewFileSet(), json.NewDecoder(bytes.NewReader(out))
	var faults []error
	for {
		p := &listed{}
		err = list.Decode(p)
		switch {
		case errors.Is(err, io.EOF):
			return n, errors.Join(faults...)
		case err == nil && p.Error != nil:
			err = fmt.Errorf("%s: %s", p.ImportPath, p.Error.Err)
		case err == nil && done[p.ImportPath] == nil:
			n++
			done[p.ImportPath], err = p.check(set, sizes, done)
		}
		if err != nil {
			faults = append(faults, err)
		}
	}
}

// check checks a package after its dependencies.
func (p *listed) check(set *token.FileSet, sizes types.Sizes, done map[string]*types.Package) (*types.Package, error) {
	files := make([]*ast.File, len(p.GoFiles))
	var parsing errgroup.Group
	for i, name := range p.GoFiles {
		parsing.Go(func() (err error) {
			if !filepath.IsAbs(name) { // as the main function of a test
				name = filepath.Join(p.Dir, name)
			}
			files[i], err = parser.ParseFile(set, name, nil, parser.SkipObjectResolution)
			return err
		})
	}
	if err := parsing.Wait(); err != nil {
		return nil, err
	}
	var faults []error
	config := types.Config{
		IgnoreFuncBodies: p.DepOnly,
		Sizes:            sizes,
		Error:            func(err error) { faults = append(faults, err) },
		Importer: importer(func(path string) (*types.Package, error) {
			if mapped, ok := p.ImportMap[path]; ok {
				path = mapped
			}
			if done[path] == nil {
				return nil, fmt.Errorf("%s is not listed", path)
			}
			return done[path], nil
		}),
	}
	if p.Module != nil && p.Module.GoVersion != "" {
		config.GoVersion = "go" + p.Module.GoVersion
	}
	path, _, _ := strings.Cut(p.ImportPath, " ") // of a test variant
	checked, _ := config.Check(path, set, files, nil)
	return checked, errors.Join(faults...)
}

type importer func(path string) (*types.Package, error)

// Import returns a checked package.
func (f importer) Import(path string) (*types.Package, error) { return f(path) }
