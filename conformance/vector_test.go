// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/require"
)

// oneCase is a case without fault, of protocol fake and suite demo.
const oneCase = `{"id":"fake-demo-001","doc":"d","ref":"FAKE-001","op":"echo","in":{},"want":{}}`

// vectorFile returns a file of protocol fake and suite demo.
func vectorFile(cases ...string) string {
	return `{"format":1,"protocol":"fake","suite":"demo","spec":"Fake 1.0","cases":[` + strings.Join(cases, ",") + `]}`
}

func folder(files map[string]string) fs.FS {
	m := fstest.MapFS{}
	for name, text := range files {
		m[name] = &fstest.MapFile{Data: []byte(text)}
	}
	return m
}

func TestLoad(t *testing.T) {
	s := Load(folder(map[string]string{
		"fake/demo.json":   vectorFile(oneCase, strings.Replace(oneCase, "001\"", "002\"", 1)),
		"fake/README.md":   "not a vector file",
		"README.md":        "neither",
		".git/config.json": "hidden",
		"fake/.hidden":     "hidden",
		"else/a-b.json": `{"format":1.0,"protocol":"else","suite":"a-b","spec":"s","cases":[
			{"id":"else-a-b-001","doc":"d","ref":"§6","op":"o","in":{"x":1},"wantErr":{"code":-1}}]}`,
	}), "mine")
	require.Empty(t, s.Errors())
	var ids []string
	for _, c := range s.Cases() {
		ids = append(ids, c.ID)
	}
	require.ElementsMatch(t, []string{"fake-demo-001", "fake-demo-002", "else-a-b-001"}, ids)
	only := s.Filter(func(c *Case) bool { return c.Protocol == "else" }).Cases()
	require.Len(t, only, 1)
	require.Equal(t, "a-b", only[0].Suite)
	require.Equal(t, "mine/else/a-b.json", only[0].Source)
	require.Equal(t, "§6", only[0].Ref)
}

func TestLoadFaults(t *testing.T) {
	edit := func(old, new string) map[string]string {
		require.Contains(t, vectorFile(oneCase), old)
		return map[string]string{"fake/demo.json": strings.Replace(vectorFile(oneCase), old, new, 1)}
	}
	tests := []struct {
		name  string
		files map[string]string
		fault string
	}{
		{name: "empty folder", files: nil, fault: "mine: there are no vectors"},
		{name: "no vectors", files: map[string]string{"fake/README.md": ""}, fault: "mine/fake: there are no vectors"},
		{name: "a level too high", files: map[string]string{"demo.json": vectorFile(oneCase)}, fault: "mine/demo.json: a vector file must stand in the folder of its protocol"},
		{name: "a level too low", files: map[string]string{"fake/sub/demo.json": vectorFile(oneCase)}, fault: "mine/fake/sub: a folder below"},
		{name: "bad JSON", files: map[string]string{"fake/demo.json": "{\n  \"format\": 1,\n  oops\n}"}, fault: "mine/fake/demo.json:3:3: not valid JSON"},
		{name: "bad UTF-8", files: map[string]string{"fake/demo.json": vectorFile("\"\xff\"")}, fault: "not valid UTF-8"},
		{name: "byte order mark", files: map[string]string{"fake/demo.json": "\ufeff" + vectorFile(oneCase)}, fault: "mine/fake/demo.json: begins with a byte order mark"},
		{name: "two bytes a character", files: map[string]string{"fake/demo.json": "\xff\xfe{\x00}\x00"}, fault: "mine/fake/demo.json:1:1: not valid UTF-8"},
		{name: "empty file", files: map[string]string{"fake/demo.json": " \n"}, fault: "mine/fake/demo.json: the file is empty"},
		{name: "another ending", files: map[string]string{"fake/demo.json": vectorFile(oneCase), "fake/more.json.bak": ""}, fault: "mine/fake/more.json.bak: the name of a vector file ends in .json"},
		{name: "lines", files: map[string]string{"fake/demo.json": vectorFile(oneCase), "fake/more.JSONL": ""}, fault: "mine/fake/more.JSONL: the name of a vector file ends in .json"},
		{name: "trailing data", files: map[string]string{"fake/demo.json": vectorFile(oneCase) + "{}"}, fault: "more than one value"},
		{name: "lone surrogate", files: edit(`"in":{}`, `"in":{"wire":"\ud800"}`), fault: "not valid JSON"},
		{name: "duplicate name in json", files: edit(`"want":{}`, `"want":{"json":{"a":1,"a":1}}`), fault: "member name given twice (in /cases/0/want/json/a)"},
		{name: "not an object", files: map[string]string{"fake/demo.json": "[]"}, fault: "mine/fake/demo.json: want an object"},
		{name: "format missing", files: edit(`"format":1,`, ""), fault: "format: missing"},
		{name: "format 2", files: edit(`"format":1`, `"format":2`), fault: "format: want 1, not 2"},
		{name: "format text", files: edit(`"format":1`, `"format":"1"`), fault: "format: want 1"},
		{name: "wrong protocol", files: edit(`"protocol":"fake"`, `"protocol":"arc"`), fault: `protocol: "arc" does not agree with the folder`},
		{name: "wrong suite", files: edit(`"suite":"demo"`, `"suite":"Demo"`), fault: `suite: "Demo" does not agree with the file name`},
		{name: "no spec", files: edit(`"spec":"Fake 1.0",`, ""), fault: "spec: missing"},
		{name: "empty spec", files: edit(`"Fake 1.0"`, `""`), fault: "spec: want a string"},
		{name: "unknown file field", files: edit(`"spec"`, `"title":"x","spec"`), fault: `"title": unknown field`},
		{name: "other case of a name", files: edit(`"cases"`, `"Cases"`), fault: `"Cases": unknown field`},
		{name: "cases no list", files: map[string]string{"fake/demo.json": `{"format":1,"protocol":"fake","suite":"demo","spec":"s","cases":{}}`}, fault: "cases: want a list"},
		{name: "no cases", files: map[string]string{"fake/demo.json": vectorFile()}, fault: "cases: the list is empty"},
		{name: "case no object", files: map[string]string{"fake/demo.json": vectorFile("7")}, fault: "cases[0]: want an object"},
		{name: "unknown case field", files: edit(`"in":{}`, `"in":{},"skip":true`), fault: `cases[0] (fake-demo-001): "skip": unknown field`},
		{name: "no doc", files: edit(`"doc":"d",`, ""), fault: "doc: missing"},
		{name: "no ref", files: edit(`"ref":"FAKE-001",`, ""), fault: "ref: missing"},
		{name: "op no string", files: edit(`"op":"echo"`, `"op":1`), fault: "op: want a string"},
		{name: "no in", files: edit(`"in":{},`, ""), fault: "in: missing"},
		{name: "in no object", files: edit(`"in":{}`, `"in":[]`), fault: "in: want an object"},
		{name: "neither want", files: edit(`,"want":{}`, ""), fault: "want exactly one of want and wantErr"},
		{name: "both wants", files: edit(`"want":{}`, `"want":{},"wantErr":"x"`), fault: "want exactly one of want and wantErr"},
		{name: "want no object", files: edit(`"want":{}`, `"want":null`), fault: "want: want an object"},
		{name: "wantErr number", files: edit(`"want":{}`, `"wantErr":3`), fault: "wantErr: want a string or an object"},
		{name: "wantErr empty", files: edit(`"want":{}`, `"wantErr":""`), fault: "wantErr: want a string or an object"},
		{name: "wantErr without fields", files: edit(`"want":{}`, `"wantErr":{ }`), fault: "wantErr: names nothing"},
		{name: "id of another suite", files: edit("fake-demo-001", "fake-other-001"), fault: "id: want fake-demo-NNN"},
		{name: "id of two digits", files: edit("fake-demo-001", "fake-demo-01"), fault: "id: want fake-demo-NNN"},
		{name: "id without number", files: edit("fake-demo-001", "fake-demo-abc"), fault: "id: want fake-demo-NNN"},
		{name: "id twice, equal", files: map[string]string{"fake/demo.json": vectorFile(oneCase, oneCase)}, fault: "fake-demo-001 stands twice in one folder"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := Load(folder(tt.files), "mine")
			require.NotEmpty(t, s.Errors())
			require.Contains(t, fmt.Sprint(s.Errors()), tt.fault)
		})
	}
}

// One mistake is reported once.
func TestLoadFaultsOnce(t *testing.T) {
	for _, files := range []map[string]string{
		{"fake/demo.json": "{"},
		{"fake/demo.json": vectorFile()},
		{"fake/demo.json": vectorFile("7")},
		{"demo.json": vectorFile(oneCase)},
		{"fake/sub/demo.json": vectorFile(oneCase)},
		{"fake/README.md": ""},
	} {
		require.Len(t, Load(folder(files), "mine").Errors(), 1, files)
	}
}

func TestLoadKeepsGoodCases(t *testing.T) {
	bad := strings.Replace(oneCase, `"in":{}`, `"in":[]`, 1)
	good := strings.Replace(oneCase, "001\"", "002\"", 1)
	s := Load(folder(map[string]string{"fake/demo.json": vectorFile(bad, good)}), "mine")
	require.Len(t, s.Errors(), 1)
	require.Len(t, s.Cases(), 1)
	require.Len(t, s.Filter(func(c *Case) bool { return c.Protocol == "fake" }).Errors(), 1, "a filter must not hide faults")
}

type brokenFS struct{ fs.FS }

func (b brokenFS) Open(name string) (fs.File, error) {
	if name == "." {
		return b.FS.Open(name)
	}
	return nil, fs.ErrPermission
}

func TestLoadUnreadable(t *testing.T) {
	s := Load(brokenFS{folder(map[string]string{"fake/demo.json": vectorFile(oneCase)})}, "mine")
	require.ErrorIs(t, s.Errors()[0], fs.ErrPermission)
	s = Open(filepath.Join(t.TempDir(), "missing"))
	require.ErrorIs(t, s.Errors()[0], fs.ErrNotExist)
}

func TestMerge(t *testing.T) {
	load := func(name, one string) *Set {
		return Load(folder(map[string]string{"fake/demo.json": vectorFile(one)}), name)
	}
	first := load("first", oneCase)
	shuffled := `{ "want":{}, "in":{}, "op":"ec\u0068o", "ref":"FAKE-001", "doc":"d", "id":"fake-demo-001" }`
	same := Merge(first, load("second", shuffled))
	require.Empty(t, same.Errors())
	require.Len(t, same.Cases(), 1, "equal content runs once")
	require.Equal(t, "first/fake/demo.json", same.Cases()[0].Source)

	other := Merge(first, load("second", strings.Replace(oneCase, `"doc":"d"`, `"doc":"e"`, 1)))
	require.Len(t, other.Errors(), 1)
	require.ErrorContains(t, other.Errors()[0], "second/fake/demo.json: fake-demo-001 stands in first/fake/demo.json with other content")

	one := load("first", strings.Replace(oneCase, `"in":{}`, `"in":{"ts":1}`, 1))
	dot := load("second", strings.Replace(oneCase, `"in":{}`, `"in":{"ts":1.0}`, 1))
	require.Len(t, Merge(one, dot).Errors(), 1, "how a number is written can be the point of a case")
}

func TestEmbedded(t *testing.T) {
	s := Embedded()
	require.Empty(t, s.Errors())
	require.NotEmpty(t, s.Cases())
	_, err := KnownFailures()
	require.NoError(t, err)
}

func writeFolder(t *testing.T, dir string, files map[string]string) {
	t.Helper()
	for name, text := range files {
		file := filepath.Join(dir, filepath.FromSlash(name))
		require.NoError(t, os.MkdirAll(filepath.Dir(file), 0o755))
		require.NoError(t, os.WriteFile(file, []byte(text), 0o644))
	}
}

func TestOpenList(t *testing.T) {
	root := t.TempDir()
	second := strings.Replace(oneCase, "001\"", "002\"", 1)
	writeFolder(t, root, map[string]string{
		"go.mod":                      "module example.com/x\n",
		"pkg/near/fake/demo.json":     vectorFile(oneCase),
		"far/fake/demo.json":          vectorFile(second),
		"vectors/nested/x/readme.txt": "",
	})
	t.Chdir(filepath.Join(root, "pkg"))
	list := strings.Join([]string{"", "near", "far", filepath.Join(root, "far"), "near" + string(filepath.Separator)}, string(filepath.ListSeparator))
	s := OpenList(list)
	require.Empty(t, s.Errors(), "the same folder by three names is read once")
	require.Len(t, s.Cases(), 2)

	require.Empty(t, OpenList("").Errors(), "no list is no fault")
	missing := OpenList("nowhere")
	require.Len(t, missing.Errors(), 1)
	require.ErrorContains(t, missing.Errors()[0], "neither in the working directory nor in")
	require.NotEmpty(t, OpenList(filepath.Join(root, "vectors")).Errors())
}

func TestOpenListOutsideModule(t *testing.T) {
	t.Chdir(t.TempDir()) // the temporary folder has no go.mod above
	_, err := ModuleRoot()
	require.Error(t, err)
	require.NotEmpty(t, OpenList("nowhere").Errors())
}

func TestOpenFollowsLinks(t *testing.T) {
	root := t.TempDir()
	writeFolder(t, root, map[string]string{"real/demo.json": vectorFile(oneCase)})
	require.NoError(t, os.Mkdir(filepath.Join(root, "set"), 0o755))
	if err := os.Symlink(filepath.Join(root, "real"), filepath.Join(root, "set", "fake")); err != nil {
		t.Skip("no symbolic links here")
	}
	s := Open(filepath.Join(root, "set"))
	require.Empty(t, s.Errors())
	require.Len(t, s.Cases(), 1)
}

func TestReadKnownFailures(t *testing.T) {
	read := func(text string) ([]KnownFailure, error) {
		return readKnownFailures("k.json", []byte(text))
	}
	failures, err := read(`[{"id":"a-b-001","package":"arc","ref":"ARC-D73, ARC-036, section 7.2, section g","reason":"not yet"},
		{"id":"a-b-002","package":"air/relay","ref":"AIR-D86","reason":"x"}]`)
	require.NoError(t, err)
	require.Equal(t, []KnownFailure{
		{ID: "a-b-001", Package: "arc", Ref: "ARC-D73, ARC-036, section 7.2, section g", Reason: "not yet"},
		{ID: "a-b-002", Package: "air/relay", Ref: "AIR-D86", Reason: "x"},
	}, failures)
	entry := func(id, pkg, ref, reason string) string {
		return fmt.Sprintf(`{"id":%q,"package":%q,"ref":%q,"reason":%q}`, id, pkg, ref, reason)
	}
	good := entry("a-b-001", "arc", "ARC-D73", "x")
	for _, text := range []string{
		`{}`, `[`, `[1]`, `[{"id":"a-b-001","reason":"x"}]`,
		`[` + entry("a-b-001", "arc", "ARC-D73", "") + `]`,
		`[` + strings.Replace(good, `}`, `,"until":"never"}`, 1) + `]`,
		`[` + good + `,` + good + `]`,
		`[` + entry("a-b-002", "arc", "ARC-D73", "x") + `,` + good + `]`,
		`[` + entry("a-b-001", "", "ARC-D73", "x") + `]`,
		`[` + entry("a-b-001", "/arc", "ARC-D73", "x") + `]`,
		`[` + entry("a-b-001", "arc", "D-73", "x") + `]`,
		`[` + entry("a-b-001", "arc", "ARC-D73 and more", "x") + `]`,
		`[` + entry("a-b-001", "arc", "7.2", "x") + `]`,
		`[` + entry("a-b-001", "arc", "ARC-D73", "two\nlines") + `]`,
	} {
		_, err := read(text)
		require.Error(t, err, text)
	}
	missing := filepath.Join(t.TempDir(), "k.json")
	_, err = ReadKnownFailures(missing)
	require.ErrorIs(t, err, fs.ErrNotExist)
	require.ErrorContains(t, err, missing)
}
