// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// A Mutant is a defect that an invariant finds. Its edits replace text that a file has once; the new text
// applies if isMutant(Name).
type Mutant struct {
	Name      string `json:"name"`
	Profile   string `json:"profile"`
	Invariant string `json:"invariant"`
	Seed      uint64 `json:"seed"`             // the lowest one whose run fails
	IsRare    bool   `json:"isRare,omitempty"` // no run of the short form fails
	Edits     []struct {
		File string `json:"file"`
		Old  string `json:"old"`
		New  string `json:"new"`
	} `json:"edits"`
}

const (
	mutantVariable = "FIVEWIRE_MUTANT"
	mutantSeeds    = 2000

	mutantFile = `package %s

import "os"

var mutant = os.Getenv("` + mutantVariable + `")

func isMutant(name string) bool { return mutant == name }
`
)

var failurePattern = regexp.MustCompile(`seed (0x[0-9a-f]+) violates (\w+):`)

// Mutants requires that the invariants of the profiles of a package find each mutant of testdata/mutants.json
// within 2,000 seeds. It builds the tests of the package once, with an overlay that has all mutants, and chooses a
// mutant by an environment variable. Unless the run is a long one, a mutant gets 300 seeds, its kept seed first. A long
// run finds the first seed of each, and keeps it in the file.
func Mutants(t *testing.T, module string) {
	text, err := os.ReadFile(filepath.Join("testdata", "mutants.json"))
	var mutants []Mutant
	if err == nil {
		err = json.Unmarshal(text, &mutants)
	}
	if err != nil {
		t.Fatal(err)
	}
	binary := buildMutants(t, module, mutants)
	limit := 300
	isLong := os.Getenv("FIVEWIRE_LONG") != ""
	if isLong {
		limit = mutantSeeds
	}
	for i, m := range mutants {
		t.Run(m.Name, func(t *testing.T) {
			if m.IsRare && limit < mutantSeeds {
				t.Skip("found in long runs only")
			}
			if isLong {
				m.Seed = 0
			}
			cmd := exec.Command(binary, "-test.run", "^TestSeed$/^"+m.Profile+"$", "-test.timeout", "10m", "-events", "0", "-only", m.Invariant,
				"-first", strconv.FormatUint(m.Seed, 10))
			cmd.Env = append(os.Environ(), mutantVariable+"="+m.Name, "SIM_SEEDS="+strconv.Itoa(limit))
			out, _ := cmd.CombinedOutput()
			found := failurePattern.FindSubmatch(out)
			switch {
			case found == nil:
				t.Errorf("mutant %s: no seed of %d finds it, want %s\n%s", m.Name, limit, m.Invariant, tail(out))
			case string(found[2]) != m.Invariant:
				t.Errorf("mutant %s: seed %s finds %s, want %s", m.Name, found[1], found[2], m.Invariant)
			default:
				t.Logf("%s: %s by seed %s", m.Name, m.Invariant, found[1])
				mutants[i].Seed, _ = strconv.ParseUint(string(found[1]), 0, 64)
			}
		})
	}
	if isLong && !t.Failed() {
		keepMutants(t, mutants)
	}
}

// keepMutants writes testdata/mutants.json.
func keepMutants(t *testing.T, mutants []Mutant) {
	t.Helper()
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	e.SetIndent("", " ")
	err := e.Encode(mutants)
	if err == nil {
		err = os.WriteFile(filepath.Join("testdata", "mutants.json"), b.Bytes(), 0o600)
	}
	if err != nil {
		t.Error(err)
	}
}

func tail(out []byte) []byte { return out[max(0, len(out)-2000):] }

// buildMutants builds the tests of the package in the working directory with all mutants.
func buildMutants(t *testing.T, module string, mutants []Mutant) string {
	t.Helper()
	dir := t.TempDir()
	overlay := map[string]string{}
	texts := map[string]string{}
	for _, m := range mutants {
		for _, e := range m.Edits {
			path := filepath.Join(module, filepath.FromSlash(e.File))
			if texts[path] == "" {
				text, err := os.ReadFile(path)
				if err != nil {
					t.Fatal(err)
				}
				texts[path] = string(text)
			}
			if n := strings.Count(texts[path], e.Old); n != 1 {
				t.Fatalf("mutant %s: %s has the text %d times, want once: %s", m.Name, e.File, n, e.Old)
			}
			texts[path] = strings.Replace(texts[path], e.Old, e.New, 1)
		}
	}
	for path, text := range texts {
		_, after, _ := strings.Cut(text, "\npackage ")
		name, _, _ := strings.Cut(after, "\n")
		added := filepath.Join(filepath.Dir(path), "zz_mutant.go")
		for file, content := range map[string]string{path: text, added: fmt.Sprintf(mutantFile, name)} {
			copied := filepath.Join(dir, fmt.Sprintf("%d.go", len(overlay)))
			if overlay[file] != "" {
				continue
			}
			overlay[file] = copied
			if err := os.WriteFile(copied, []byte(content), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	list, err := json.Marshal(map[string]any{"Replace": overlay})
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, "overlay.json"), list, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	binary := filepath.Join(dir, "mutants.test")
	out, err := exec.Command("go", "test", "-c", "-overlay", filepath.Join(dir, "overlay.json"), "-o", binary, ".").CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return binary
}
