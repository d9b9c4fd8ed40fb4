// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package fivewire_test

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"io/fs"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// A function whose name ends in Locked does not release the lock of its caller. An error is found by errors.As and
// errors.Is, since it may be wrapped. A log record has a context.
func TestStyle(t *testing.T) {
	files := 0
	require.NoError(t, filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && path != "." && (strings.HasPrefix(d.Name(), ".") || strings.HasPrefix(d.Name(), "_") || d.Name() == "testdata") {
			return filepath.SkipDir
		}
		if d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return nil
		}
		files++
		set := token.NewFileSet()
		f, err := parser.ParseFile(set, path, nil, parser.SkipObjectResolution)
		require.NoError(t, err)
		for pos, reason := range styleFaults(f) {
			t.Errorf("%s: %s", set.Position(pos), reason)
		}
		return nil
	}))
	require.Greater(t, files, 100)
}

var (
	loggerName = regexp.MustCompile(`(?i)(^|\.)(s?log|\w*logger)$`)
	errorName  = regexp.MustCompile(`^(\w+\.)?[eE]rr([A-Z]\w*)?$`)
)

// styleFaults returns the faults of a file by their positions.
func styleFaults(f *ast.File) map[token.Pos]string {
	faults := make(map[token.Pos]string)
	for _, decl := range f.Decls {
		if fn, ok := decl.(*ast.FuncDecl); ok && fn.Body != nil && strings.HasSuffix(fn.Name.Name, "Locked") {
			foreignUnlocks(fn, faults)
		}
	}
	ast.Inspect(f, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.FuncDecl:
			return n.Name.Name != "Is" // the method of an error
		case *ast.TypeAssertExpr:
			if n.Type != nil && types.ExprString(n.Type) == "*Error" {
				faults[n.Pos()] = "an error may be wrapped: use errors.As"
			}
		case *ast.BinaryExpr:
			isEqual := n.Op == token.EQL || n.Op == token.NEQ
			if isEqual && errorName.MatchString(types.ExprString(n.X)) && errorName.MatchString(types.ExprString(n.Y)) {
				faults[n.Pos()] = "an error may be wrapped: use errors.Is"
			}
		case *ast.CallExpr:
			fun, ok := n.Fun.(*ast.SelectorExpr)
			if ok && types.ExprString(fun.X) == "atomic" && strings.HasSuffix(fun.Sel.Name, "nt64") {
				faults[n.Pos()] = "a 64-bit value may be unaligned on a 32-bit processor: use a type of sync/atomic"
			}
			if !ok || !loggerName.MatchString(types.ExprString(fun.X)) {
				break
			}
			switch fun.Sel.Name {
			case "Debug", "Info", "Warn", "Error":
				faults[n.Pos()] = fmt.Sprintf("%s has no context", fun.Sel.Name)
			}
			for _, arg := range n.Args {
				if key, ok := arg.(*ast.BasicLit); ok && key.Value == `"error"` {
					faults[arg.Pos()] = "the key of an error is err"
				}
			}
		}
		return true
	})
	return faults
}

// foreignUnlocks finds the releases of locks that the function has not taken.
func foreignUnlocks(fn *ast.FuncDecl, faults map[token.Pos]string) {
	own := make(map[string]bool)
	ast.Inspect(fn.Body, func(n ast.Node) bool {
		if _, isFunc := n.(*ast.FuncLit); isFunc {
			return false
		}
		call, ok := n.(*ast.CallExpr)
		if !ok {
			return true
		}
		fun, ok := call.Fun.(*ast.SelectorExpr)
		if !ok {
			return true
		}
		switch lock := types.ExprString(fun.X); fun.Sel.Name {
		case "Lock", "TryLock", "RLock", "TryRLock":
			own[lock] = true
		case "Unlock", "RUnlock":
			if !own[lock] {
				faults[call.Pos()] = fn.Name.Name + " releases the lock of its caller"
			}
		}
		return true
	})
}

func TestStyleFaultsFindsThem(t *testing.T) {
	const text = `package p
func (s *s) aLocked() {
	s.mu.Unlock()
	s.other.Lock()
	s.other.Unlock()
	go func() { s.mu.Unlock() }()
}
func b() {
	_ = err.(*Error)
	_ = err == ErrFull || io.EOF == err || err != nil
	_ = cause != store.ErrClosed
	s.opts.Logger.Warn("x", "err", err)
	slog.ErrorContext(ctx, "x", "error", err)
	log.InfoContext(ctx, "x", "err", err)
	t.Error("x")
	s.mu.Unlock()
	atomic.AddUint64(&s.n, 1)
}
`
	set := token.NewFileSet()
	f, err := parser.ParseFile(set, "p.go", text, 0)
	require.NoError(t, err)
	lines := make(map[int]string)
	for pos, reason := range styleFaults(f) {
		lines[set.Position(pos).Line] = reason
	}
	require.Equal(t, map[int]string{
		3:  "aLocked releases the lock of its caller",
		9:  "an error may be wrapped: use errors.As",
		10: "an error may be wrapped: use errors.Is",
		12: "Warn has no context",
		13: "the key of an error is err",
		17: "a 64-bit value may be unaligned on a 32-bit processor: use a type of sync/atomic",
	}, lines)
}
