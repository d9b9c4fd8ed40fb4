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
// CONFORMANCE_VECTORS and -vectors name.
func TestVectors(t *testing.T) {
	known, err := KnownFailures()
	require.NoError(t, err)
	set := Merge(Embedded(), OpenList(os.Getenv("CONFORMANCE_VECTORS")+string(filepath.ListSeparator)+vectorsFlag.String()))
	Run(t, set, Builtin(), &Options{Known: known})
}
