// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package proc

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/fivewire/fivewire/a2e"
)

// markName is the variable that identifies the descendants of a process.
const markName = "FIVEWIRE_PROCESS"

// A Command is a program to be started, for a [Policy].
type Command struct {
	Path string   // absolute
	Args []string // with the name of the program
	Env  []string // "NAME=value"
	Dir  string   // empty means the folder of the host

	Principal *a2e.Principal // nil for an anonymous agent
}

// A Policy decides whether an allowed program is started. It may change the command. An error that
// is not an [*a2e.Error] is logged, and the agent gets unauthorized with the reason not_allowed.
type Policy interface {
	CheckCommand(ctx context.Context, c *Command) error
}

// A PolicyFunc is a [Policy].
type PolicyFunc func(ctx context.Context, c *Command) error

// CheckCommand calls f.
func (f PolicyFunc) CheckCommand(ctx context.Context, c *Command) error { return f(ctx, c) }

// defaultEnv are the variables that a request may set by default.
func defaultEnv() []string {
	return []string{"LANG", "LC_*", "TZ", "TERM", "COLUMNS", "LINES", "NO_COLOR"}
}

// dangerousEnv are variables by which many programs run other code. Only their full names permit them.
func dangerousEnv() []string {
	return []string{"PATH", "IFS", "ENV", "BASH_ENV", "BASH_FUNC_*", "SHELLOPTS", "BASHOPTS", "PS4", "LD_*", "DYLD_*",
		"GCONV_PATH", "GLIBC_TUNABLES", "LOCPATH", "NLSPATH", "PYTHON*", "PERL*", "RUBY*", "NODE_*", "JAVA_TOOL_OPTIONS",
		"_JAVA_OPTIONS", "JDK_JAVA_OPTIONS", "GIT_*", "SSH_*", "EDITOR", "VISUAL", "PAGER", "LESSOPEN", "MANPAGER"}
}

// matches reports whether a name is in a list of names, of which an asterisk at the end matches any rest.
func matches(list []string, name string) bool {
	return slices.ContainsFunc(list, func(entry string) bool {
		prefix, isPattern := strings.CutSuffix(entry, "*")
		return entry == name || isPattern && strings.HasPrefix(name, prefix)
	})
}

// allowsEnv reports whether a request may set a variable.
func (m *manager) allowsEnv(name string) bool {
	switch {
	case name == markName:
		return false
	case slices.Contains(m.opts.AllowedEnv, name):
		return true
	}
	return matches(m.opts.AllowedEnv, name) && !matches(dangerousEnv(), name)
}

// environment returns the variables of a process.
func (m *manager) environment(r *SpawnRequest) ([]string, error) {
	env := []string{}
	for _, name := range m.opts.InheritedEnv {
		if value, ok := os.LookupEnv(name); ok {
			env = append(env, name+"="+value)
		}
	}
	for _, v := range r.Env {
		switch {
		case v.Name == "" || strings.ContainsAny(v.Name, "=\x00") || strings.IndexByte(v.Value, 0) >= 0:
			return nil, a2e.SchemaViolation("env", a2e.ReasonValue)
		case !m.allowsEnv(v.Name):
			return nil, notAllowed("env."+v.Name, "the variable is not allowed here")
		}
		env = append(env, v.Name+"="+v.Value)
	}
	return env, nil
}

// notAllowed returns the error of a command that the host refuses.
func notAllowed(field, text string) *a2e.Error {
	err := failure(a2e.ErrUnauthorized, text)
	err.Field, err.Reason = field, "not_allowed"
	return err
}

// check returns the command to start after the decision of the policy.
func (m *manager) check(ctx context.Context, s *a2e.Session, c *Command) (*exec.Cmd, error) {
	if m.opts.Policy != nil {
		c.Principal = s.Principal()
		err := m.opts.Policy.CheckCommand(ctx, c)
		if _, isAnswer := errors.AsType[*a2e.Error](err); err != nil && !isAnswer {
			refused := notAllowed("cmd", "the command is not allowed here")
			refused.Cause = err
			err = refused
		}
		if err != nil {
			return nil, err
		}
		if !filepath.IsAbs(c.Path) {
			return nil, fmt.Errorf("proc: policy: path %q is not absolute", c.Path)
		}
	}
	if len(m.launcher) > 0 {
		args := append(slices.Clone(m.launcher), c.Path)
		if len(c.Args) > 0 {
			args = append(args, c.Args[1:]...)
		}
		c.Path, c.Args = m.launcher[0], args
	}
	return &exec.Cmd{Path: c.Path, Args: c.Args, Dir: c.Dir, Env: c.Env}, nil
}

// Bubblewrap returns a launcher that runs each command in a sandbox of the program bwrap: without
// network, with separate namespaces, which end with it, and with an empty /tmp. It finds the programs
// and libraries of the system, which it cannot change, and only the given folders of the host. They
// should be those of AllowedDirs. A signal ends the sandbox at once.
func Bubblewrap(dirs ...string) []string {
	args := []string{"bwrap", "--unshare-all", "--die-with-parent", "--new-session", "--cap-drop", "ALL", "--ro-bind", "/usr", "/usr"}
	for _, dir := range []string{"/bin", "/sbin", "/lib", "/lib64", "/etc/alternatives", "/etc/ld.so.cache"} {
		args = append(args, "--ro-bind-try", dir, dir)
	}
	args = append(args, "--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp")
	for _, dir := range dirs {
		args = append(args, "--bind", dir, dir)
	}
	return append(args, "--")
}
