// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package altar

import (
	"cmp"
	"strings"
)

// ProtocolVersion is the version of the specification that this package speaks
// (ALT-001). Its status is DRAFT.
const ProtocolVersion = "1.0.0"

// A semver is a version of Semantic Versioning 2.0.0 without its build. The
// numbers are decimal text without leading zeros, because they have no bound.
type semver struct {
	major, minor, patch string
	pre                 string
}

func parseSemver(s string) (v semver, ok bool) {
	s, build, hasBuild := strings.Cut(s, "+")
	if hasBuild && !dotted(build, false) {
		return v, false
	}
	core, pre, hasPre := strings.Cut(s, "-")
	if hasPre && !dotted(pre, true) {
		return v, false
	}
	parts := strings.Split(core, ".")
	if len(parts) == 2 && !hasPre && !hasBuild {
		parts = append(parts, "0") // ALT-D17
	}
	if len(parts) != 3 {
		return v, false
	}
	for _, p := range parts {
		if !numeric(p) || len(p) > 1 && p[0] == '0' {
			return v, false
		}
	}
	return semver{parts[0], parts[1], parts[2], pre}, true
}

func dotted(s string, pre bool) bool {
	for id := range strings.SplitSeq(s, ".") {
		if id == "" || pre && numeric(id) && len(id) > 1 && id[0] == '0' {
			return false
		}
		for i := range len(id) {
			c := id[i]
			if !('0' <= c && c <= '9' || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || c == '-') {
				return false
			}
		}
	}
	return true
}

func numeric(s string) bool {
	for i := range len(s) {
		if s[i] < '0' || s[i] > '9' {
			return false
		}
	}
	return s != ""
}

func compareNumbers(a, b string) int {
	return cmp.Or(cmp.Compare(len(a), len(b)), cmp.Compare(a, b))
}

func (v semver) compare(w semver) int {
	if c := cmp.Or(compareNumbers(v.major, w.major), compareNumbers(v.minor, w.minor), compareNumbers(v.patch, w.patch)); c != 0 {
		return c
	}
	switch {
	case v.pre == w.pre:
		return 0
	case v.pre == "":
		return 1
	case w.pre == "":
		return -1
	}
	a, b := strings.Split(v.pre, "."), strings.Split(w.pre, ".")
	for i := range min(len(a), len(b)) {
		x, y := a[i], b[i]
		c := 0
		switch nx, ny := numeric(x), numeric(y); {
		case nx && ny:
			c = compareNumbers(x, y)
		case nx:
			c = -1
		case ny:
			c = 1
		default:
			c = cmp.Compare(x, y)
		}
		if c != 0 {
			return c
		}
	}
	return cmp.Compare(len(a), len(b))
}

func (v semver) String() string {
	s := v.major + "." + v.minor + "." + v.patch
	if v.pre != "" {
		s += "-" + v.pre
	}
	return s
}

// negotiate returns the common version of a Host and a Runtime: the lower of the two, as
// MAJOR.MINOR.PATCH with its pre-release, if any (ALT-D17). Versions with different MAJOR, or for
// MAJOR 0 different MINOR, are refused with reason unsupported_version, invalid version texts with
// invalid_version.
func negotiate(host, runtime string) (string, error) {
	h, ok1 := parseSemver(host)
	r, ok2 := parseSemver(runtime)
	if !ok1 || !ok2 {
		return "", formFault(reasonInvalidVersion, "", "protocol_version is not a semantic version")
	}
	if h.major != r.major || h.major == "0" && h.minor != r.minor {
		e := formFault(reasonUnsupportedVersion, "", "the protocol versions are not compatible")
		list := append(appendString([]byte{'['}, host), ']')
		return "", e.with("supported", list)
	}
	if r.compare(h) < 0 {
		return r.String(), nil
	}
	return h.String(), nil
}
