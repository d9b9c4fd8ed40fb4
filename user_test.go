// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package fivewire_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// A program that imports arc alone takes in none of the modules that the nested
// ones bring: neither into the program nor into the list of modules that the go
// command loads for it.
func TestUserOfOnePackage(t *testing.T) {
	root, err := os.Getwd()
	require.NoError(t, err)
	sums, err := os.ReadFile("go.sum")
	require.NoError(t, err)
	dir := t.TempDir()
	for name, text := range map[string]string{
		"go.mod":  "module user\n\ngo 1.26.0\n\nrequire " + module + " v0.0.0\n\nreplace " + module + " => " + root + "\n",
		"go.sum":  string(sums),
		"main.go": "package main\n\nimport \"" + module + "/arc\"\n\nfunc main() { arc.NewServer(nil) }\n",
	} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o666))
	}
	run := func(args ...string) string {
		cmd := exec.Command("go", args...)
		cmd.Dir = dir
		cmd.Env = append(os.Environ(), "GOWORK=off", "GOFLAGS=-mod=mod")
		cmd.Stderr = os.Stderr
		out, err := cmd.Output()
		require.NoError(t, err, "go %s", strings.Join(args, " "))
		return string(out)
	}

	linked := strings.Fields(run("list", "-deps", "-f", "{{with .Module}}{{.Path}}{{end}}", "."))
	require.Contains(t, linked, module)
	for _, m := range linked {
		require.True(t, m == "user" || m == module || slices.Contains(requirements, m), "a program that uses arc holds %s", m)
	}

	loaded := strings.Fields(run("list", "-m", "-f", "{{.Path}}", "all"))
	require.Contains(t, loaded, module)
	engines := regexp.MustCompile(`nats-io|sqlite|jackc|modernc|wazero|modelcontextprotocol|a2aproject|go-oidc|go-jose|oauth2|tiktoken|opentelemetry|openai|anthropic|genai`)
	for _, m := range loaded {
		require.NotRegexp(t, engines, m, "a program that uses arc loads it")
	}
}

// Five plugins of a2e need nothing that a plugin of a user cannot have: copies of them build in another module.
func TestPluginsBuildInOtherModules(t *testing.T) {
	root, err := os.Getwd()
	require.NoError(t, err)
	sums, err := os.ReadFile("go.sum")
	require.NoError(t, err)
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "go.sum"), sums, 0o666))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "go.mod"), []byte("module user\n\ngo 1.26.0\n"), 0o666))
	// In a workspace the packages of this module are compiled already.
	require.NoError(t, os.WriteFile(filepath.Join(dir, "go.work"), []byte("go 1.26.0\n\nuse (\n\t.\n\t"+root+"\n)\n"), 0o666))
	for _, name := range []string{"learn", "planning", "skills", "subagents", "toolkits"} {
		require.NoError(t, os.CopyFS(filepath.Join(dir, name), os.DirFS(filepath.Join("a2e", name))))
	}
	cmd := exec.Command("go", "build", "./...")
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GOWORK="+filepath.Join(dir, "go.work"))
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
}
