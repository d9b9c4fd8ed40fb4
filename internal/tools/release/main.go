// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

// Release prepares a release of all modules of this repository, without a
// network and without pushing anything.
//
//	release VERSION          set versions, commit and tag
//	release -proxy DIR       write the released modules as a file tree for GOPROXY
//
// All modules have the same version. The go.sum file of a nested module needs
// the hashes of the modules of this repository that it requires. They are
// computed from the files that the commit will contain, required modules first.
package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
)

const root = "github.com/fivewire/fivewire"

var validVersion = regexp.MustCompile(`^v(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)(-[0-9A-Za-z.-]+)?$`)

func main() {
	proxy := flag.String("proxy", "", "write the modules of the released commit as a module proxy into `dir`")
	flag.Usage = func() {
		fmt.Fprintln(os.Stderr, "usage: release VERSION\n       release -proxy DIR")
		flag.PrintDefaults()
	}
	flag.Parse()
	var err error
	switch {
	case *proxy != "" && flag.NArg() == 0:
		err = publish(*proxy)
	case *proxy == "" && flag.NArg() == 1:
		err = release(flag.Arg(0), time.Now())
	default:
		flag.Usage()
		os.Exit(2)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "release:", err)
		os.Exit(1)
	}
}

// A module is a module of this repository.
type module struct {
	dir     string   // relative to the top of the repository
	path    string   // import path
	own     []string // required modules of this repository
	version string   // of the modules in own
}

// tag returns the name of the tag of a version: that of a nested module begins with its folder.
func (m *module) tag(version string) string {
	if m.dir == "." {
		return version
	}
	return m.dir + "/" + version
}

func run(name string, args ...string) ([]byte, error) {
	cmd := exec.Command(name, args...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w\n%s", name, strings.Join(args, " "), err, stderr.Bytes())
	}
	return out, nil
}

// modules returns all modules, each after the modules that it requires.
func modules() ([]*module, error) {
	out, err := run("git", "ls-files", "go.mod", "*/go.mod", ":!.ci") // whose module has the tools
	if err != nil {
		return nil, err
	}
	var list []*module
	for file := range strings.Lines(string(out)) {
		m, err := readModule(strings.TrimSpace(file))
		if err != nil {
			return nil, err
		}
		list = append(list, m)
	}
	return sorted(list)
}

func readModule(file string) (*module, error) {
	out, err := run("go", "mod", "edit", "-json", file)
	if err != nil {
		return nil, err
	}
	var mod struct {
		Module  struct{ Path string }
		Require []struct{ Path, Version string }
		Replace []struct{ Old struct{ Path string } }
	}
	if err := json.Unmarshal(out, &mod); err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	m := &module{dir: filepath.Dir(file), path: mod.Module.Path}
	want := root
	if m.dir != "." {
		want += "/" + m.dir
	}
	if m.path != want {
		return nil, fmt.Errorf("%s: the module path is %s, want %s", file, m.path, want)
	}
	if len(mod.Replace) > 0 {
		return nil, fmt.Errorf("%s: replaces %s, which its users would not see", file, mod.Replace[0].Old.Path)
	}
	for _, r := range mod.Require {
		if !isOwn(r.Path) {
			continue
		}
		if m.version != "" && m.version != r.Version {
			return nil, fmt.Errorf("%s: requires versions %s and %s of this repository", file, m.version, r.Version)
		}
		m.own = append(m.own, r.Path)
		m.version = r.Version
	}
	return m, nil
}

// sorted orders modules so that required modules come first.
func sorted(list []*module) ([]*module, error) {
	var done []*module
	isDone := func(path string) bool {
		return slices.ContainsFunc(done, func(m *module) bool { return m.path == path })
	}
	for len(done) < len(list) {
		before := len(done)
		for _, m := range list {
			if !isDone(m.path) && !slices.ContainsFunc(m.own, func(p string) bool { return !isDone(p) }) {
				done = append(done, m)
			}
		}
		if len(done) == before {
			return nil, errors.New("modules require each other in a circle, or a required module does not exist")
		}
	}
	return done, nil
}

func release(version string, now time.Time) error {
	if !validVersion.MatchString(version) {
		return fmt.Errorf("%q is not a version such as v0.99.0", version)
	}
	status, err := run("git", "status", "--porcelain")
	if err != nil {
		return err
	}
	if len(status) > 0 {
		return fmt.Errorf("the work tree has changes:\n%s", status)
	}
	list, err := modules()
	if err != nil {
		return err
	}
	for _, m := range list {
		if _, err := run("git", "rev-parse", "-q", "--verify", "refs/tags/"+m.tag(version)); err == nil {
			return fmt.Errorf("tag %s exists", m.tag(version))
		}
	}
	// These files are in the archive of the main module: they change before it is hashed.
	if err := writeChangelog("CHANGELOG.md", version, now); err != nil {
		return err
	}
	if err := replaceInWorkspace(list, version); err != nil {
		return err
	}
	if err := freezeRequirements("conformance/testdata/requirements", version); err != nil {
		return err
	}
	if err := setVersions(list, version); err != nil {
		return err
	}
	if _, err := run("git", "commit", "-q", "-a", "-m", "all: release "+version); err != nil {
		return err
	}
	for _, m := range list {
		if _, err := run("git", "tag", "-a", "-m", m.path+" "+version, m.tag(version)); err != nil {
			return err
		}
		fmt.Println(m.tag(version))
	}
	return nil
}

// setVersions writes the version of required modules into go.mod files, and the hashes of
// these and of the modules that they require into go.sum files.
func setVersions(list []*module, version string) error {
	hashes := map[string]string{}  // lines of go.sum, by module
	needs := map[string][]string{} // modules of this repository, also indirect ones, by module
	for _, m := range list {
		args := []string{"mod", "edit"}
		lines := ""
		for _, path := range m.own {
			args = append(args, "-require="+path+"@"+version)
			needs[m.path] = append(append(needs[m.path], path), needs[path]...)
		}
		slices.Sort(needs[m.path])
		needs[m.path] = slices.Compact(needs[m.path])
		for _, path := range needs[m.path] {
			lines += hashes[path]
		}
		if len(m.own) > 0 {
			if _, err := run("go", append(args, filepath.Join(m.dir, "go.mod"))...); err != nil {
				return err
			}
			if err := writeSums(filepath.Join(m.dir, "go.sum"), lines); err != nil {
				return err
			}
		}
		lines, err := sums(m, version)
		if err != nil {
			return err
		}
		hashes[m.path] = lines
	}
	return nil
}

// writeSums replaces the lines of go.sum for modules of this repository.
func writeSums(file, lines string) error {
	data, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	var before, after []string
	for line := range strings.Lines(string(data)) {
		path, _, _ := strings.Cut(line, " ")
		switch {
		case isOwn(path):
		case path < root:
			before = append(before, line)
		default:
			after = append(after, line)
		}
	}
	own := slices.Sorted(strings.Lines(lines))
	return os.WriteFile(file, []byte(strings.Join(slices.Concat(before, own, after), "")), 0o644)
}

// isOwn reports whether a module belongs to this repository.
func isOwn(path string) bool { return path == root || strings.HasPrefix(path, root+"/") }

// replaceInWorkspace makes go.work use the folders for the version that modules require
// of each other: the go command would fetch it otherwise.
func replaceInWorkspace(list []*module, version string) error {
	args := []string{"work", "edit"}
	for _, m := range list {
		for _, other := range list {
			if slices.Contains(other.own, m.path) {
				args = append(args, "-dropreplace="+m.path+"@"+other.version,
					"-replace="+m.path+"@"+version+"="+workspacePath(m.dir))
				break
			}
		}
	}
	_, err := run("go", args...)
	return err
}

func workspacePath(dir string) string {
	if dir == "." {
		return "."
	}
	return "./" + dir
}

// freezeRequirements copies the lists of requirements under the name of the version.
func freezeRequirements(dir, version string) error {
	files, err := filepath.Glob(filepath.Join(dir, "*.json"))
	if err != nil {
		return err
	}
	for _, file := range files {
		name := strings.TrimSuffix(file, ".json")
		if strings.Contains(filepath.Base(name), "-") {
			continue // of an earlier release
		}
		data, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		if err := os.WriteFile(name+"-"+version+".json", data, 0o644); err != nil {
			return err
		}
	}
	_, err = run("git", "add", dir)
	return err
}

// writeChangelog gives the entries under "Unreleased" the version and the date.
func writeChangelog(file, version string, now time.Time) error {
	data, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	const head = "## Unreleased\n"
	if !bytes.Contains(data, []byte(head)) {
		return fmt.Errorf("%s: no heading %q", file, strings.TrimSpace(head))
	}
	heading := fmt.Sprintf("%s\n## %s, %s\n", head, version, now.UTC().Format(time.DateOnly))
	return os.WriteFile(file, bytes.Replace(data, []byte(head), []byte(heading), 1), 0o644)
}
