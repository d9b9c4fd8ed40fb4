// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package fivewire_test

import (
	"bytes"
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const module = "github.com/fivewire/fivewire"

var protocols = []string{"arc", "a2e", "altar", "accp", "air"}

// requirements are the modules that the main module may require directly. A large dependency
// belongs into a nested module.
var requirements = []string{
	"filippo.io/edwards25519",                     // curve checks of air
	"github.com/coder/websocket",                  // WebSocket transports
	"github.com/cyberphone/json-canonicalization", // an oracle in the tests of air
	"github.com/go-json-experiment/json",          // the base of the strict reader
	"github.com/google/jsonschema-go",             // schemas of typed tools
	"github.com/mr-tron/base58",                   // keys and signatures of air
	"github.com/stretchr/testify",                 // tests
	"go.uber.org/goleak",                          // tests
	"golang.org/x/crypto",                         // ChaCha20-Poly1305 of air
	"golang.org/x/sync",                           // groups of goroutines
	"golang.org/x/sys",                            // limits of the processes of a2e
	"golang.org/x/text",                           // normalisation of air
	"pgregory.net/rapid",                          // tests
}

// An imported is a package as go list sees it.
type imported struct {
	ImportPath string
	Imports    []string
}

func packages(t *testing.T) []imported {
	t.Helper()
	cmd := exec.Command("go", "list", "-e", "-deps", "-test", "-json=ImportPath,Imports", "./...")
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	require.NoError(t, err)
	var list []imported
	for dec := json.NewDecoder(bytes.NewReader(out)); ; {
		var p imported
		if err := dec.Decode(&p); err == io.EOF {
			break
		} else {
			require.NoError(t, err)
		}
		if strings.HasPrefix(p.ImportPath, module) {
			list = append(list, p)
		}
	}
	require.NotEmpty(t, list, "go list named no package of the module")
	return list
}

// protocolOf returns the protocol that a package belongs to, or "".
func protocolOf(path string) string {
	path, _, _ = strings.Cut(path, " ") // "p [p.test]" is p built for its test
	rest, ok := strings.CutPrefix(path, module+"/")
	if !ok {
		return ""
	}
	first, _, _ := strings.Cut(rest, "/")
	first = strings.TrimSuffix(strings.TrimSuffix(first, ".test"), "_test")
	if slices.Contains(protocols, first) {
		return first
	}
	return ""
}

func under(path, folder string) bool {
	path, _, _ = strings.Cut(path, " ")
	path = strings.TrimSuffix(strings.TrimSuffix(path, ".test"), "_test")
	return path == module+"/"+folder || strings.HasPrefix(path, module+"/"+folder+"/")
}

// isTest reports whether a package is built for a test, "p [p.test]" or "p.test".
func isTest(path string) bool {
	path, _, isVariant := strings.Cut(path, " ")
	return isVariant || strings.HasSuffix(path, ".test")
}

// isStandard reports whether a package belongs to the standard library.
func isStandard(path string) bool {
	first, _, _ := strings.Cut(path, "/")
	return !strings.Contains(first, ".")
}

// The floors of the repository, bottom to top. Imports point down only.
const (
	floorKernels  = iota // of bytes and process
	floorStore           // state
	floorState           // kernels of state
	floorInternal        // of a protocol
	floorProtocol        // a protocol package
	floorAdapters        // packages below a protocol
	floorVectors         // conformance
	floorExamples        // programs, and the tests of the repository
)

// raised are the packages of internal folders that belong to a higher floor.
var raised = map[string]int{
	"internal/journal": floorState, "internal/kerneltest": floorState, "internal/lease": floorState, "internal/once": floorState,
	"internal/outbox": floorState, "internal/state": floorState, "internal/streamlog": floorState, "internal/testkit": floorState,
	"internal/sim": floorState, "internal/sim/kernels": floorState,
	"altar/internal/schema":     floorAdapters, // shared by llm and adm
	"accp/internal/bridge":      floorAdapters, // shared by the bindings
	"accp/internal/bindingtest": floorAdapters, // for the tests of the bindings
}

// floorOf returns the floor of a package of the module.
func floorOf(importPath string) int {
	importPath, _, _ = strings.Cut(importPath, " ")
	rel := strings.TrimPrefix(strings.TrimSuffix(importPath, ".test"), module+"/")
	if floor, ok := raised[rel]; ok {
		return floor
	}
	first, rest, isNested := strings.Cut(rel, "/")
	switch {
	case first == "internal":
		return floorKernels
	case first == "store":
		return floorStore
	case first == "conformance":
		return floorVectors
	case !slices.Contains(protocols, first):
		return floorExamples
	case !isNested:
		return floorProtocol
	case rest == "internal" || strings.HasPrefix(rest, "internal/"):
		return floorInternal
	}
	return floorAdapters
}

// fault returns the rule that an import breaks, or an empty text.
func fault(from, to string) string {
	a, b := protocolOf(from), protocolOf(to)
	switch {
	case a != "" && b != "" && a != b:
		return "a protocol package imports another"
	case b != "" && isTest(from) && under(from, "internal/sim/"+b):
		return "" // the simulation profile of a protocol
	case b != "" && (under(from, "internal") || under(from, "store")):
		return "the ground floor imports a protocol package"
	case under(from, "conformance/fault") && !isTest(from) && to != module+"/store" && !isStandard(to):
		return "the fault kit imports more than store and the standard library"
	case under(to, "internal/kerneltest") && !isTest(from) && !under(from, "internal/kerneltest"):
		return "the tests of the kernels are imported"
	case under(to, "internal/sim") && !isTest(from) && !under(from, "internal/sim"):
		return "the simulation is imported"
	case (under(to, "internal/testkit") || under(to, "accp/internal/bindingtest")) && !isTest(from):
		return "a test helper is imported"
	case under(to, "conformance/fault") && (isTest(from) || under(from, "internal/sim") || under(from, "internal/kerneltest")):
		return "" // tests of every floor may use it
	case under(to, "conformance") && !under(from, "conformance"):
		return "conformance is imported from below"
	case under(to, "examples") && !under(from, "examples"):
		return "an example is imported"
	case !isTest(from) && strings.HasPrefix(to, module+"/") && floorOf(from) < floorOf(to):
		return "an import points up"
	}
	return ""
}

func TestLayers(t *testing.T) {
	for _, p := range packages(t) {
		for _, to := range p.Imports {
			if why := fault(p.ImportPath, to); why != "" {
				t.Errorf("%s: %s imports %s", why, p.ImportPath, to)
			}
		}
	}
}

func TestLayersFindsFaults(t *testing.T) {
	for _, tt := range []struct {
		from, to string
		bad      bool
	}{
		{"arc", "air", true},
		{"arc/arctest", "a2e/tools", true},
		{"arc_test [github.com/fivewire/fivewire/arc.test]", "altar", true},
		{"internal/sse", "arc", true},
		{"store", "arc", true},
		{"store/storetest", "air", true},
		{"arc", "conformance", true},
		{"arc", "examples/quickstart", true},
		{"arc/arctest", "arc", false},
		{"arc", "internal/sse", false},
		{"arc", "store", false},
		{"conformance", "arc", false},
		{"examples/quickstart", "arc", false},
		{"archive", "air", false},
		{"store", "conformance/fault", true},
		{"arc", "conformance/fault", true},
		{"arc", "conformance/faults", true},
		{"store_test [github.com/fivewire/fivewire/store.test]", "conformance/fault", false},
		{"arc [github.com/fivewire/fivewire/arc.test]", "conformance/fault", false},
		{"arc [github.com/fivewire/fivewire/arc.test]", "conformance", true},
		{"internal/sim", "conformance/fault", false},
		{"internal/kerneltest", "conformance/fault", false},
		{"internal/once", "internal/kerneltest", true},
		{"arc", "internal/testkit", true},
		{"arc_test [github.com/fivewire/fivewire/arc.test]", "internal/testkit", false},
		{"internal/sim", "conformance", true},
		{"arc", "internal/sim", true},
		{"internal/sim/kernels", "internal/sim", false},
		{"internal/sim/arc [github.com/fivewire/fivewire/internal/sim/arc.test]", "arc", false},
		{"internal/sim/arc", "arc", true},
		{"internal/sim/air [github.com/fivewire/fivewire/internal/sim/air.test]", "arc", true},
		{"conformance", "conformance/fault", false},
		{"conformance/fault", "store", false},
		{"conformance/fault", "store/storetest", true},
		{"conformance/fault", "internal/randid", true},
		{"conformance/fault", "conformance", true},
		{"conformance/fault_test [github.com/fivewire/fivewire/conformance/fault.test]", "store/storetest", false},
		{"internal/httpx", "store", true},
		{"internal/httpx", "internal/lease", true},
		{"internal/httpx_test [github.com/fivewire/fivewire/internal/httpx.test]", "store", false},
		{"store", "internal/lease", true},
		{"store", "internal/randid", false},
		{"internal/lease", "store", false},
		{"arc/internal/hook", "arc", true},
		{"arc", "arc/internal/hook", false},
		{"arc", "arc/webhook", true},
		{"arc/webhook", "arc", false},
		{"accp/mcpbinding", "accp/internal/bridge", false},
		{"accp", "accp/internal/bridge", true},
	} {
		require.Equal(t, tt.bad, fault(module+"/"+tt.from, module+"/"+tt.to) != "", "%s -> %s", tt.from, tt.to)
	}
	require.Empty(t, fault(module+"/conformance/fault", "math/rand/v2"))
	require.NotEmpty(t, fault(module+"/conformance/fault", "golang.org/x/sync/errgroup"))
}

func TestRequirements(t *testing.T) {
	out, err := exec.Command("go", "mod", "edit", "-json").Output()
	require.NoError(t, err)
	var mod struct {
		Require []struct {
			Path     string
			Indirect bool
		}
	}
	require.NoError(t, json.Unmarshal(out, &mod))
	for _, r := range mod.Require {
		if !r.Indirect && !slices.Contains(requirements, r.Path) {
			t.Errorf("the main module requires %s, which is not on the list", r.Path)
		}
	}
	require.NotEmpty(t, mod.Require)
}
