// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package fivewire_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// The programs of the README compile, and are short.
func TestREADME(t *testing.T) {
	text, err := os.ReadFile("README.md")
	require.NoError(t, err)
	var packages []string
	dir, err := os.MkdirTemp(".", "_readme-")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	for _, block := range regexp.MustCompile("(?s)```go\n(package main.*?)```").FindAllStringSubmatch(string(text), -1) {
		at := filepath.Join(dir, strconv.Itoa(len(packages)))
		packages = append(packages, "./"+at)
		require.NoError(t, os.Mkdir(at, 0o777))
		require.NoError(t, os.WriteFile(filepath.Join(at, "main.go"), []byte(block[1]), 0o666))
		body := block[1][strings.Index(block[1], "func main"):]
		require.LessOrEqual(t, strings.Count(body, "\n"), 20, "a program of the README has at most 20 lines of its own")
	}
	require.NotEmpty(t, packages)
	out, err := exec.Command("go", append([]string{"vet"}, packages...)...).CombinedOutput()
	require.NoError(t, err, "%s", out)
}

// What the README and its neighbours point to is there, and no example is left out.
func TestLinks(t *testing.T) {
	links := make(map[string]bool)
	for _, file := range []string{"README.md", "CONTRIBUTING.md", "CHANGELOG.md", "conformance/README.md"} {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		for _, m := range regexp.MustCompile(`\]\(([^)#]+)[^)]*\)`).FindAllStringSubmatch(string(text), -1) {
			if strings.Contains(m[1], "://") {
				continue
			}
			to := filepath.Join(filepath.Dir(file), filepath.FromSlash(m[1]))
			links[filepath.ToSlash(to)] = true
			_, err := os.Stat(to)
			require.NoError(t, err, "%s points to %s", file, m[1])
		}
	}
	examples, err := filepath.Glob("examples/*")
	require.NoError(t, err)
	require.NotEmpty(t, examples)
	for _, dir := range examples {
		require.True(t, links[filepath.ToSlash(dir)], "the README does not name %s", dir)
	}
}
