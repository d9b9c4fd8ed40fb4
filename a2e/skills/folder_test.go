// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package skills_test

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/a2e"
	"github.com/fivewire/fivewire/a2e/a2etest"
	"github.com/fivewire/fivewire/a2e/skills"
)

const skillFile = "---\nname: pdf-forms # short\ndescription: >\n  Fills forms:\n  \"quickly\"\nversion: '1.2'\ntags: [pdf, \"two words\"]\n" +
	"category: documents\nmetadata:\n  author: someone\n---\n\n# Forms\n\nRun scripts/fill.py.\n"

func writeFolder(t *testing.T, files map[string]string) string {
	dir := t.TempDir()
	for name, text := range files {
		require.NoError(t, os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o700))
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	return dir
}

// A folder is disclosed step by step: its description, its instructions, its files (A2E-D70).
func TestFolderIsDisclosedStepByStep(t *testing.T) {
	dir := writeFolder(t, map[string]string{"SKILL.md": skillFile, "scripts/fill.py": "print(1)\n", "logo.png": "\xff\x00"})
	skill, err := skills.LoadFolder(dir, "")
	require.NoError(t, err)
	set := a2etest.Must(skills.NewSet(nil)).Add(skill)
	c, err := skills.NewClient(a2etest.Connect(t, a2etest.NewHost(t, nil, set.Plugin()), nil))
	require.NoError(t, err)
	list, err := c.Discover(t.Context(), &skills.DiscoverRequest{FilterTags: []string{"two words"}, FilterCategories: []string{"documents"}}, nil)
	require.NoError(t, err)
	require.Len(t, list.Skills, 1)
	d := list.Skills[0]
	require.Equal(t, []string{"pdf-forms", `Fills forms: "quickly"`, "1.2"}, []string{d.Name, d.Description, d.Version})
	require.Nil(t, d.Instructions)
	call := func(arguments string) string {
		answer, err := c.Call(t.Context(), &skills.CallRequest{Name: "pdf-forms", Arguments: json.RawMessage(arguments)}, nil)
		require.NoError(t, err)
		return string(answer.Data.Data)
	}
	require.NoError(t, os.WriteFile(filepath.Join(dir, "scripts/fill.py"), []byte("changed"), 0o600)) // after the pin was checked
	require.JSONEq(t, `{"instructions":"# Forms\n\nRun scripts/fill.py.","files":["SKILL.md","logo.png","scripts/fill.py"]}`, call(`{}`))
	require.JSONEq(t, `{"text":"print(1)\n"}`, call(`{"file":"scripts/fill.py"}`))
	require.JSONEq(t, `{"base64":"/wA="}`, call(`{"file":"logo.png"}`))
	for _, arguments := range []string{`{"file":"../SKILL.md"}`, `{"file":"/etc/passwd"}`, `{"file":""}`} {
		_, err = c.Call(t.Context(), &skills.CallRequest{Name: "pdf-forms", Arguments: json.RawMessage(arguments)}, nil)
		require.ErrorIs(t, err, a2e.ErrSkill, arguments)
	}
	_, err = c.Call(t.Context(), &skills.CallRequest{Name: "pdf-forms", Arguments: json.RawMessage(`{"run":"scripts/fill.py"}`)}, nil)
	require.Error(t, err)
}

// A pinned folder with another content is not loaded.
func TestFolderIsPinned(t *testing.T) {
	dir := writeFolder(t, map[string]string{"SKILL.md": skillFile, "b/x": "1", "b.txt": "2"})
	lines := ""
	for _, file := range [][2]string{{"SKILL.md", skillFile}, {"b.txt", "2"}, {"b/x", "1"}} {
		lines += fmt.Sprintf("%x %s\n", sha256.Sum256([]byte(file[1])), file[0])
	}
	want := fmt.Sprintf("%x", sha256.Sum256([]byte(lines)))
	sum, err := skills.FolderSum(dir)
	require.NoError(t, err)
	require.Equal(t, want, sum)
	_, err = skills.LoadFolder(dir, strings.ToUpper(sum))
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "b", "y"), nil, 0o600))
	_, err = skills.LoadFolder(dir, sum)
	require.ErrorContains(t, err, "pinned")
}

// The name of a file does not imitate other lines of the sum, and is a text that the agent can get.
func TestFolderHasPlainNames(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("no such names")
	}
	whole := writeFolder(t, map[string]string{"SKILL.md": skillFile, "a": "1", "b": "2"})
	sum, err := skills.FolderSum(whole)
	require.NoError(t, err)
	for _, name := range []string{fmt.Sprintf("a\n%x b", sha256.Sum256([]byte("2"))), "a\xff"} {
		dir := writeFolder(t, map[string]string{"SKILL.md": skillFile})
		if os.WriteFile(filepath.Join(dir, name), []byte("1"), 0o600) != nil {
			continue // a file system that refuses the name
		}
		for _, pin := range []string{sum, ""} {
			_, err = skills.LoadFolder(dir, pin)
			require.ErrorContains(t, err, "name", "%q", name)
		}
	}
}

// The values of a front matter are plain or quoted, also with a comment behind them.
func TestFrontMatterValues(t *testing.T) {
	for line, want := range map[string][]string{
		`"a" # c`: {"a"}, `'a' # c`: {"a"}, `'it''s # x' # c`: {"it's # x"}, `"a # \" b"`: {`a # " b`}, `a # b # c`: {"a"}, `a#b`: {"a#b"},
		`a "b" # c`: {`a "b"`}, `a's`: {"a's"}, `["a, b", c]`: {"a, b", "c"}, `[a, 'b, [c]' ] # two`: {"a", "b, [c]"}, `[]`: {}, `[a] b`: {"[a] b"}, `[a, b`: {"[a, b"},
		`"a`: {`"a`}, "\n  - \"a, b\" # c\n  - d": {"a, b", "d"}, "# none\n  - a": {"a"}, "|+\n  a": {"a"}, "> # c\n  a": {"a"},
	} {
		text := "---\nname: a\ndescription: b\ntags: " + line + "\n---\n"
		skill, err := skills.LoadFolder(writeFolder(t, map[string]string{"SKILL.md": text}), "")
		require.NoError(t, err, line)
		require.Equal(t, want, skill.Definition.Tags, line)
	}
}

// A literal block keeps its line breaks and a folded one joins its lines, as in YAML. Comments, quotes and hyphens in a
// block are text.
func TestFrontMatterBlocks(t *testing.T) {
	for block, want := range map[string]string{
		"|\n  Reads a page.\n\n  Use it for:\n    - text # all\n  - \"tables\"\n  # now\n":          "Reads a page.\n\nUse it for:\n  - text # all\n- \"tables\"\n# now",
		">- # folded\n\n  Reads\n  a page.\n\n  Use it:\n    - text\n\n    - tables\n  often\n\n\n": "Reads a page.\nUse it:\n  - text\n\n  - tables\noften",
		"|+\n  a\n\n  \n# comment\n": "a", "|\n    a\n  b\n": "a\nb", ">\n a": "a", "\n  a\n  b": "a b",
	} {
		text := "---\nname: a\ndescription: " + block + "\nversion: 1\n---\n"
		skill, err := skills.LoadFolder(writeFolder(t, map[string]string{"SKILL.md": text}), "")
		require.NoError(t, err, block)
		require.Equal(t, want, skill.Definition.Description, block)
		require.Equal(t, "1", skill.Definition.Version, block)
	}
	_, err := skills.LoadFolder(writeFolder(t, map[string]string{"SKILL.md": "---\nname: a\ndescription: |\n\n---\n"}), "")
	require.ErrorContains(t, err, "the description has 0 characters")
}

// Links within a folder are read, links out of it and files without a valid front matter are refused.
func TestFolderIsRefused(t *testing.T) {
	if runtime.GOOS != "windows" {
		dir := writeFolder(t, map[string]string{"SKILL.md": skillFile, "a": "1"})
		require.NoError(t, os.Symlink("a", filepath.Join(dir, "link")))
		_, err := skills.LoadFolder(dir, "")
		require.NoError(t, err)
		secret := filepath.Join(t.TempDir(), "secret")
		require.NoError(t, os.WriteFile(secret, []byte("secret"), 0o600))
		require.NoError(t, os.Symlink(secret, filepath.Join(dir, "out")))
		_, err = skills.LoadFolder(dir, "")
		require.ErrorContains(t, err, "escapes")
	}
	head := "---\nname: a\ndescription: b\n"
	for _, end := range []string{"---\n", "---", "---\r\n"} { // without instructions, and a last line without line feed
		_, err := skills.LoadFolder(writeFolder(t, map[string]string{"SKILL.md": head + "tags:\n- x\n" + end}), "")
		require.NoError(t, err, end)
	}
	for _, text := range []string{
		"", "name: a\n", head, "---\nname: A b\ndescription: b\n---\n", "---\nname: a\n---\n", head + "name: c\n---\n", head + "x\n---\n", "---\n  x\n---\n",
		"---\nname: a\ndescription: " + strings.Repeat("x", 1025) + "\n---\n", head + "version: \xff\n---\n", "---\nname: " + strings.Repeat("a", 65) + "\ndescription: b\n---\n",
	} {
		_, err := skills.LoadFolder(writeFolder(t, map[string]string{"SKILL.md": text}), "")
		require.Error(t, err, text)
	}
	for _, dir := range []string{t.TempDir(), filepath.Join(t.TempDir(), "absent")} {
		_, err := skills.LoadFolder(dir, "")
		require.Error(t, err)
	}
	big := writeFolder(t, map[string]string{"SKILL.md": skillFile, "big": strings.Repeat("x", 17<<20)})
	_, err := skills.LoadFolder(big, "")
	require.ErrorContains(t, err, "too large")
}
