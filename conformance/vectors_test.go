// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// listFlag is a flag that may be given several times.
type listFlag []string

func (l *listFlag) String() string     { return strings.Join(*l, string(filepath.ListSeparator)) }
func (l *listFlag) Set(s string) error { *l = append(*l, s); return nil }

var vectorsFlag, reportFlag listFlag

func TestMain(m *testing.M) {
	flag.Var(&vectorsFlag, "vectors", "run the vectors of this folder, or list of folders, too; may be repeated")
	flag.Var(&reportFlag, "report", "write a report to this file (.txt, .json, .xml or .html); may be repeated")
	flag.Parse()
	os.Exit(m.Run())
}

// TestVectors runs the embedded vectors and those of the folders that
// CONFORMANCE_VECTORS and -vectors name, and writes the reports that -report
// asks for.
func TestVectors(t *testing.T) {
	for _, file := range reportFlag {
		_, err := (&Report{}).format(file) // before the work, not after it
		require.NoError(t, err)
	}
	failures, err := KnownFailures()
	require.NoError(t, err)
	further := append([]string{os.Getenv("CONFORMANCE_VECTORS")}, vectorsFlag...)
	set := Merge(Embedded(), OpenList(strings.Join(further, string(filepath.ListSeparator))))
	report := Run(t, set, Builtin(), &Options{KnownFailures: failures})
	var table strings.Builder
	require.NoError(t, report.writeTable(&table))
	t.Log("\n" + table.String())
	for _, file := range reportFlag {
		if !filepath.IsAbs(file) {
			// The working directory is that of the package, but the command was
			// most likely given in the root of the module.
			root, err := ModuleRoot()
			require.NoError(t, err)
			file = filepath.Join(root, file)
		}
		require.NoError(t, report.Write(file))
		t.Logf("the report is %s", file)
	}
}
