// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package arc_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// A function whose name ends in Locked needs the lock of its caller, and releases only locks that it has taken itself.
func TestLockedFunctionsKeepLock(t *testing.T) {
	checked := 0
	for _, pattern := range []string{"*.go", "internal/engine/*.go"} {
		files, err := filepath.Glob(pattern)
		require.NoError(t, err)
		for _, name := range files {
			parsed, err := parser.ParseFile(token.NewFileSet(), name, nil, 0)
			require.NoError(t, err)
			for _, decl := range parsed.Decls {
				fn, ok := decl.(*ast.FuncDecl)
				if !ok || !strings.HasSuffix(fn.Name.Name, "Locked") {
					continue
				}
				checked++
				locks := calls(fn.Body, "Lock")
				for lock := range calls(fn.Body, "Unlock") {
					require.Contains(t, locks, lock, "%s releases a lock of its caller", fn.Name.Name)
				}
			}
		}
	}
	require.Greater(t, checked, 20)
}

// calls returns the operands of the method of that name in a function.
func calls(body ast.Node, method string) map[string]bool {
	found := map[string]bool{}
	ast.Inspect(body, func(n ast.Node) bool {
		if sel, ok := n.(*ast.SelectorExpr); ok && strings.EqualFold(sel.Sel.Name, method) {
			found[types.ExprString(sel.X)] = true
		}
		return true
	})
	return found
}
