// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package accp_test

import (
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

var update = flag.Bool("update", false, "write the defaults into the guide")

// optionTypes are the structs of options in the order of the guide.
var optionTypes = []string{"ServerOptions", "ClientOptions", "SessionOptions", "Limits", "Timing", "ClientTiming", "Persistence", "FrameLimits",
	"RetryPolicy", "SummaryOptions"}

var (
	defaultForm = regexp.MustCompile(`(?i)\b(?:zero|nil)(?: and negative values)? means? (.*?)(?:;|\. |\.$|$)`)
	linkForm    = regexp.MustCompile(`\[([\w.]+)\]`)
	idForm      = regexp.MustCompile(` \(ACCP-D\d+\)`)
)

// defaultRows returns a row for each field whose comment states a default.
func defaultRows(name string, fields *ast.FieldList) (rows []string) {
	for _, f := range fields.List {
		text := strings.Join(strings.Fields(f.Doc.Text()+" "+f.Comment.Text()), " ")
		m := defaultForm.FindStringSubmatch(text)
		if m == nil || !f.Names[0].IsExported() {
			continue
		}
		var names []string
		for _, n := range f.Names {
			names = append(names, "`"+n.Name+"`")
		}
		rows = append(rows, fmt.Sprintf("| `%s` | %s | %s |\n", name, strings.Join(names, ", "), idForm.ReplaceAllString(linkForm.ReplaceAllString(m[1], "`$1`"), "")))
	}
	return rows
}

// The guide lists the defaults of all options, as the comments of their fields state them. Run with -args -update to write them.
func TestGuideHasTheDefaults(t *testing.T) {
	byType := map[string][]string{}
	files, err := filepath.Glob("*.go")
	require.NoError(t, err)
	for _, file := range files {
		f, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ParseComments)
		require.NoError(t, err)
		ast.Inspect(f, func(n ast.Node) bool {
			if spec, ok := n.(*ast.TypeSpec); ok && slices.Contains(optionTypes, spec.Name.Name) {
				byType[spec.Name.Name] = defaultRows(spec.Name.Name, spec.Type.(*ast.StructType).Fields)
			}
			return true
		})
	}
	table := "| options | field | default |\n|---|---|---|\n"
	for _, name := range optionTypes {
		require.NotEmpty(t, byType[name], name)
		table += strings.Join(byType[name], "")
	}
	const begin, end = "<!-- defaults -->\n", "<!-- end -->"
	page, err := os.ReadFile("README.md")
	require.NoError(t, err)
	before, rest, ok := strings.Cut(string(page), begin)
	require.True(t, ok)
	_, after, ok := strings.Cut(rest, end)
	require.True(t, ok)
	if *update {
		require.NoError(t, os.WriteFile("README.md", []byte(before+begin+table+end+after), 0o644))
		return
	}
	require.Equal(t, before+begin+table+end+after, string(page), "run go test -run TestGuideHasTheDefaults -args -update")
}
