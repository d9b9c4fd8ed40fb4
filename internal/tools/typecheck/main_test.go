// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// Files for one system, and tests, are checked too.
func TestCheckReportsTypeErrors(t *testing.T) {
	t.Setenv("GOWORK", "off")
	for name, tt := range map[string]struct{ file, text, want string }{
		"correct":      {"a_plan9.go", "package a\n\nfunc f() int { return 1 }\n", ""},
		"other system": {"a_windows.go", "package a\n\nfunc f() int { return \"\" }\n", ""},
		"body":         {"a_plan9.go", "package a\n\nfunc f() int { return \"\" }\n", `cannot use ""`},
		"declaration":  {"a_plan9.go", "package a\n\nvar f missing\n", "undefined: missing"},
		"size":         {"a_plan9.go", "package a\n\nconst f int = 1 << 40\n", "overflows"},
		"test":         {"a_test.go", "package a\n\nimport \"os\"\n\nvar f = os.Missing\n", "undefined: os.Missing"},
		"other test":   {"a_test.go", "package a_test\n\nimport \"a/b\"\n\nvar f = b.Missing\n", "undefined: b.Missing"},
		"syntax":       {"a_plan9.go", "package a\n\nvar f =\n", "expected operand"},
		"import":       {"a_plan9.go", "package a\n\nimport _ \"a/missing\"\n", "missing"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			for file, text := range map[string]string{
				"go.mod": "module a\n\ngo 1.26.0\n", "a.go": "package a\n", "b/b.go": "package b\n", tt.file: tt.text,
			} {
				file = filepath.Join(dir, file)
				require.NoError(t, os.MkdirAll(filepath.Dir(file), 0o777))
				require.NoError(t, os.WriteFile(file, []byte(text), 0o666))
			}
			n, err := check(dir, "plan9/386", []string{"./..."})
			if tt.want == "" {
				require.NoError(t, err)
				require.GreaterOrEqual(t, n, 2)
				return
			}
			require.ErrorContains(t, err, tt.want)
		})
	}
}
