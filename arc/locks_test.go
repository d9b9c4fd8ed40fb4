// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package arc_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// A function whose name ends in Locked needs the lock of its caller, and does not release it.
func TestLockedFunctionsKeepLock(t *testing.T) {
	files, err := os.ReadDir(".")
	require.NoError(t, err)
	checked := 0
	for _, f := range files {
		if !strings.HasSuffix(f.Name(), ".go") || strings.HasSuffix(f.Name(), "_test.go") {
			continue
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), f.Name(), nil, 0)
		require.NoError(t, err)
		for _, decl := range parsed.Decls {
			fn, ok := decl.(*ast.FuncDecl)
			if !ok || !strings.HasSuffix(fn.Name.Name, "Locked") {
				continue
			}
			checked++
			ast.Inspect(fn.Body, func(n ast.Node) bool {
				if call, ok := n.(*ast.SelectorExpr); ok {
					require.NotEqual(t, "Unlock", call.Sel.Name, "%s releases a lock", fn.Name.Name)
				}
				return true
			})
		}
	}
	require.Greater(t, checked, 20)
}
