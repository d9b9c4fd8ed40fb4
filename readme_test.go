// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package fivewire_test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// imports are the packages that the programs of Markdown files may use.
var imports = []string{"context", "crypto/ed25519", "crypto/rand", "crypto/sha256", "encoding/json", "errors", "fmt", "log", "net",
	"net/http", "net/http/httptest", "os", "os/signal", "strings", "syscall", "time",
	module + "/accp", module + "/accp/profile", module + "/a2e", module + "/a2e/tools", module + "/air", module + "/air/airtest",
	module + "/air/registry", module + "/air/relay", module + "/altar", module + "/arc", module + "/arc/webhook"}

// newMain returns a program whose main function begins with a prologue and has a
// body.
func newMain(body, prologue string) string {
	body = "\t" + prologue + "\n" + body
	code := regexp.MustCompile(`(?m)(^|\s)// .*$`).ReplaceAllString(body, "")
	var b strings.Builder
	b.WriteString("package main\n\nimport (\n")
	for _, path := range imports {
		used := regexp.MustCompile(`(?m)(^|[^\w/.":@])` + filepath.Base(path) + `\.[A-Z]`)
		if path == "log" || used.MatchString(code) {
			fmt.Fprintf(&b, "\t%q\n", path)
		}
	}
	b.WriteString(")\n\nfunc main() {\n" + body + "}\n\n")
	b.WriteString("func must[T any](v T, err error) T {\n\tif err != nil {\n\t\tlog.Fatal(err)\n\t}\n\treturn v\n}\n")
	return b.String()
}

// The README has at most 150 lines and a program for each protocol, of at most 15
// lines and with the documented output.
func TestREADME(t *testing.T) {
	text, err := os.ReadFile("README.md")
	require.NoError(t, err)
	require.LessOrEqual(t, strings.Count(string(text), "\n"), 150)
	blocks := regexp.MustCompile("(?s)```go\n(.*?)// Output: (.*?)\n```").FindAllStringSubmatch(string(text), -1)
	require.Len(t, blocks, len(protocols))
	dir, err := os.MkdirTemp(".", "_readme-")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	for i, block := range blocks {
		body, want := block[1], block[2]
		require.LessOrEqual(t, strings.Count(body, "\n"), 15, body)
		at := filepath.Join(dir, strconv.Itoa(i))
		require.NoError(t, os.Mkdir(at, 0o777))
		require.NoError(t, os.WriteFile(filepath.Join(at, "main.go"), []byte(newMain(body, "ctx := context.Background()")), 0o666))
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
		defer cancel()
		cmd := exec.CommandContext(ctx, "go", "run", "./"+at)
		var stderr bytes.Buffer
		cmd.Stderr = &stderr
		out, err := cmd.Output()
		require.NoError(t, err, "%s", stderr.Bytes())
		require.Equal(t, want, strings.TrimSpace(string(out)))
	}
}
