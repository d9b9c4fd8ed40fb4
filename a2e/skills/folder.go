// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package skills

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/fivewire/fivewire/a2e"
)

const (
	folderFile     = "SKILL.md"
	maxFolderFiles = 1000
	maxFolderBytes = 16 << 20
)

var folderName = regexp.MustCompile(`^[a-z0-9-]{1,64}$`)

// LoadFolder returns the skill of a folder with a file SKILL.md: a front matter in YAML with name,
// description, version, tags and category, and instructions below it (A2E-D70). The definition has no
// instructions; a call without arguments returns them with the names of all files, and a call with
// the argument file returns one of these. The skill runs nothing: scripts are for the proc namespace.
//
// The files are read once. Links must not lead out of the folder, and a name with a line feed is refused. With a
// pin, a folder with another [FolderSum] is refused; empty means any content.
func LoadFolder(dir, pin string) (Skill, error) {
	files, err := readFolder(dir)
	if err != nil {
		return Skill{}, fmt.Errorf("skills: load %s: %w", dir, err)
	}
	if sum := sumFiles(files); pin != "" && !strings.EqualFold(pin, sum) {
		return Skill{}, fmt.Errorf("skills: load %s: the sum is %s, not the pinned %s", dir, sum, pin)
	}
	d, instructions, err := parseFolder(files[folderFile])
	if err != nil {
		return Skill{}, fmt.Errorf("skills: load %s: %w", dir, err)
	}
	return Skill{Definition: *d, Run: func(_ context.Context, run *Run) (any, error) {
		var in struct {
			File *string `json:"file"`
		}
		if err := json.Unmarshal(run.Arguments, &in); err != nil {
			return nil, a2e.SchemaViolation("arguments.file", a2e.ReasonValue)
		}
		if in.File == nil {
			return map[string]any{"instructions": instructions, "files": slices.Sorted(maps.Keys(files))}, nil
		}
		content, ok := files[*in.File]
		switch {
		case !ok:
			return nil, failure(a2e.ErrSkill, *in.File, "there is no such file")
		case utf8.Valid(content):
			return map[string]string{"text": string(content)}, nil
		}
		return map[string]string{"base64": base64.StdEncoding.EncodeToString(content)}, nil
	}}, nil
}

// FolderSum returns the SHA-256 of a folder in hexadecimal: of the lines "<SHA-256 of the file> <path>"
// of its files in byte order of the paths.
func FolderSum(dir string) (string, error) {
	files, err := readFolder(dir)
	if err != nil {
		return "", fmt.Errorf("skills: sum of %s: %w", dir, err)
	}
	return sumFiles(files), nil
}

func sumFiles(files map[string][]byte) string {
	sum := sha256.New()
	for _, name := range slices.Sorted(maps.Keys(files)) {
		fmt.Fprintf(sum, "%x %s\n", sha256.Sum256(files[name]), name)
	}
	return hex.EncodeToString(sum.Sum(nil))
}

// readFolder returns the files of a folder by their paths with slashes.
func readFolder(dir string) (map[string][]byte, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	files := map[string][]byte{}
	size := 0
	err = fs.WalkDir(root.FS(), ".", func(name string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		if !utf8.ValidString(name) || strings.Contains(name, "\n") { // which the lines of a sum do not keep apart
			return fmt.Errorf("the name %q has a line feed or is not valid UTF-8", name)
		}
		info, err := root.Stat(name) // of the target of a link, within the folder
		if err != nil {
			return err
		}
		if !info.Mode().IsRegular() {
			return fmt.Errorf("%s is not a file", name)
		}
		f, err := root.Open(name)
		if err != nil {
			return err
		}
		defer f.Close()
		content, err := io.ReadAll(io.LimitReader(f, maxFolderBytes+1))
		files[name] = content
		if size += len(content); size > maxFolderBytes || len(files) > maxFolderFiles {
			return errors.New("the folder is too large")
		}
		return err
	})
	return files, err
}

// parseFolder reads the file SKILL.md.
func parseFolder(text []byte) (d *Definition, instructions string, err error) {
	lines, hasHead := bytes.CutPrefix(bytes.ReplaceAll(text, []byte("\r\n"), []byte("\n")), []byte("---\n"))
	head, rest, hasEnd := bytes.Cut(append(lines, '\n'), []byte("\n---\n")) // the last line may lack its line feed
	if !hasHead || !hasEnd || !utf8.Valid(text) {
		return nil, "", errors.New(folderFile + " has no front matter")
	}
	fields, err := parseFrontMatter(string(head))
	if err != nil {
		return nil, "", err
	}
	field := func(name string) string { return strings.Join(fields[name], " ") }
	d = &Definition{Name: field("name"), Description: field("description"), Version: field("version"), Tags: fields["tags"], Source: "folder"}
	d.InputSchema = json.RawMessage(`{"type":"object","properties":{"file":{"type":"string"}},"additionalProperties":false}`)
	if category := field("category"); category != "" {
		d.Category = &category
	}
	switch n := utf8.RuneCountInString(d.Description); {
	case !folderName.MatchString(d.Name):
		return nil, "", fmt.Errorf("the name %q is not 1 to 64 of a-z, 0-9 and -", d.Name)
	case n < 1 || n > 1024:
		return nil, "", fmt.Errorf("the description has %d characters, want 1 to 1024", n)
	}
	return d, strings.TrimSpace(string(rest)), nil
}

// parseFrontMatter reads the part of YAML that front matters use: names with a text or a list of texts,
// plain, quoted, in a block, or on indented lines below. Members of nested objects are skipped.
func parseFrontMatter(text string) (map[string][]string, error) {
	fields := map[string][]string{}
	name := ""
	lines := strings.Split(text, "\n")
	for len(lines) > 0 {
		line := lines[0]
		lines = lines[1:]
		trimmed := strings.TrimSpace(line)
		switch {
		case trimmed == "" || trimmed[0] == '#':
			continue
		case line[0] == ' ' || line[0] == '\t' || strings.HasPrefix(line, "- "):
			if name == "" {
				return nil, fmt.Errorf("the front matter begins with %q", trimmed)
			}
			fields[name] = append(fields[name], unquote(strings.TrimPrefix(trimmed, "- ")))
			continue
		}
		key, value, ok := strings.Cut(line, ":")
		if !ok || value != "" && value[0] != ' ' {
			return nil, fmt.Errorf("%q is not a member of the front matter", trimmed)
		}
		if name = strings.TrimSpace(key); fields[name] != nil {
			return nil, fmt.Errorf("the front matter has %q twice", name)
		}
		value = strings.TrimSpace(value)
		fields[name] = parseValue(value)
		if isBlock(value) {
			var text string
			if text, lines = parseBlock(lines, value[0] == '>'); text != "" {
				fields[name] = []string{text}
			}
		}
	}
	return fields, nil
}

// isBlock reports whether the text of a member is in the lines below.
func isBlock(value string) bool { return value != "" && (value[0] == '|' || value[0] == '>') }

// parseBlock returns the text of a block without the line breaks at its ends, and the lines behind it. If it is folded,
// a line break between two lines with the indentation of the block is a space, or nothing before blank lines.
func parseBlock(lines []string, isFolded bool) (block string, rest []string) {
	var b strings.Builder
	indent, blank, wasText := -1, 0, false
	for i, line := range lines {
		text := strings.TrimLeft(line, " \t")
		if text == "" {
			blank++
			continue
		}
		n := len(line) - len(text)
		if n == 0 {
			return b.String(), lines[i:]
		}
		if indent < 0 {
			indent = n
		}
		isText := isFolded && n <= indent
		switch {
		case b.Len() == 0:
		case isText && wasText && blank == 0:
			b.WriteByte(' ')
		case isText && wasText:
			b.WriteString(strings.Repeat("\n", blank))
		default:
			b.WriteString(strings.Repeat("\n", blank+1))
		}
		b.WriteString(line[min(n, indent):])
		blank, wasText = 0, isText
	}
	return b.String(), nil
}

// parseValue returns the items behind the name of a member, none if they are in the next lines.
func parseValue(value string) []string {
	items := []string{}
	add := func(item string) {
		if item = strings.TrimSpace(item); item != "" {
			items = append(items, unquote(item))
		}
	}
	list, isList := strings.CutPrefix(value, "[")
	for isList {
		item, rest, separator := cutValue(list, ",]#")
		add(item)
		if end, _, _ := cutValue(rest, "#"); separator == ']' && strings.TrimSpace(end) == "" {
			return items
		}
		list, isList = rest, separator == ','
	}
	items = items[:0] // no list, or not of one line
	if text, _, _ := cutValue(value, "#"); !isBlock(text) {
		add(text)
	}
	return items
}

// unquote returns the text of a quoted or plain scalar.
func unquote(s string) string {
	text, _, _ := cutValue(s, "#")
	s = strings.TrimSpace(text)
	if n := len(s); n >= 2 && s[0] == '\'' && s[n-1] == '\'' {
		return strings.ReplaceAll(s[1:n-1], "''", "'")
	}
	if strings.HasPrefix(s, `"`) && json.Unmarshal([]byte(s), &text) == nil {
		return text
	}
	return s
}

// cutValue slices a value around the first of the separators outside of a quoted scalar at its beginning. A '#' is one
// at the beginning and after a space only. Without a separator it returns the whole value and 0.
func cutValue(s, separators string) (before, after string, separator byte) {
	quote := byte(0)
	for i := 0; i < len(s); i++ {
		c := s[i]
		switch {
		case quote == '"' && c == '\\', quote == '\'' && strings.HasPrefix(s[i:], "''"):
			i++
		case quote != 0:
			if c == quote {
				quote = 0
			}
		case strings.IndexByte(separators, c) >= 0 && (c != '#' || i == 0 || s[i-1] == ' ' || s[i-1] == '\t'):
			return s[:i], s[i+1:], c
		case (c == '"' || c == '\'') && strings.TrimSpace(s[:i]) == "":
			quote = c
		}
	}
	return s, "", 0
}
