// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"archive/zip"
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// files returns the files of a module by their names in its archive, in order. A module
// without a license has that of the repository, as modules of the go command have.
func files(m *module) (map[string]string, []string, error) {
	out, err := run("git", "ls-files", "-z", "--", m.dir)
	if err != nil {
		return nil, nil, err
	}
	all := strings.Split(strings.TrimRight(string(out), "\x00"), "\x00")
	var nested []string // folders of other modules in this one
	for _, f := range all {
		dir := path.Dir(f)
		if path.Base(f) == "go.mod" && dir != m.dir {
			nested = append(nested, dir+"/")
		}
	}
	names := map[string]string{}
	for _, f := range all {
		if slices.ContainsFunc(nested, func(dir string) bool { return strings.HasPrefix(f, dir) }) {
			continue
		}
		info, err := os.Lstat(f)
		if err != nil {
			return nil, nil, err
		}
		if !info.Mode().IsRegular() {
			continue
		}
		names[strings.TrimPrefix(f, strings.TrimSuffix(m.dir+"/", "./"))] = f
	}
	if _, ok := names["LICENSE"]; !ok {
		names["LICENSE"] = "LICENSE"
	}
	order := make([]string, 0, len(names))
	for name := range names {
		order = append(order, name)
	}
	slices.Sort(order)
	return names, order, nil
}

// sums returns the two lines of go.sum for a module: the hash of its files and of its go.mod.
func sums(m *module, version string) (string, error) {
	names, order, err := files(m)
	if err != nil {
		return "", err
	}
	var all, mod bytes.Buffer
	for _, name := range order {
		data, err := os.ReadFile(names[name])
		if err != nil {
			return "", err
		}
		sum := sha256.Sum256(data)
		fmt.Fprintf(&all, "%x  %s@%s/%s\n", sum, m.path, version, name)
		if name == "go.mod" {
			fmt.Fprintf(&mod, "%x  go.mod\n", sum)
		}
	}
	return fmt.Sprintf("%s %s %s\n%s %s/go.mod %s\n",
		m.path, version, hash(all.Bytes()), m.path, version, hash(mod.Bytes())), nil
}

// hash is the "h1" hash of a list of hashes.
func hash(list []byte) string {
	sum := sha256.Sum256(list)
	return "h1:" + base64.StdEncoding.EncodeToString(sum[:])
}

// publish writes the modules of the checked-out release as files for GOPROXY=file://DIR.
func publish(dir string) error {
	version, err := checkedOutVersion()
	if err != nil {
		return err
	}
	list, err := modules()
	if err != nil {
		return err
	}
	for _, m := range list {
		if err := publishModule(filepath.Join(dir, filepath.FromSlash(m.path), "@v"), m, version); err != nil {
			return fmt.Errorf("%s: %w", m.path, err)
		}
	}
	return nil
}

func checkedOutVersion() (string, error) {
	out, err := run("git", "tag", "--points-at", "HEAD")
	if err != nil {
		return "", err
	}
	for tag := range strings.Lines(string(out)) {
		if tag = strings.TrimSpace(tag); validVersion.MatchString(tag) {
			return tag, nil
		}
	}
	return "", fmt.Errorf("HEAD has no version tag")
}

func publishModule(dir string, m *module, version string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	info, err := json.Marshal(map[string]any{"Version": version, "Time": time.Unix(0, 0).UTC()})
	if err != nil {
		return err
	}
	mod, err := os.ReadFile(filepath.Join(m.dir, "go.mod"))
	if err != nil {
		return err
	}
	archive, err := archive(m, version)
	if err != nil {
		return err
	}
	for name, data := range map[string][]byte{
		"list": []byte(version + "\n"), version + ".info": info, version + ".mod": mod, version + ".zip": archive,
	} {
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o644); err != nil {
			return err
		}
	}
	return nil
}

func archive(m *module, version string) ([]byte, error) {
	names, order, err := files(m)
	if err != nil {
		return nil, err
	}
	var buf bytes.Buffer
	w := zip.NewWriter(&buf)
	for _, name := range order {
		data, err := os.ReadFile(names[name])
		if err != nil {
			return nil, err
		}
		f, err := w.Create(m.path + "@" + version + "/" + name)
		if err != nil {
			return nil, err
		}
		if _, err := f.Write(data); err != nil {
			return nil, err
		}
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return buf.Bytes(), nil
}
