// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package proc

import (
	"bytes"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// killTime bounds the search for the descendants of an ended process.
const killTime = 100 * time.Millisecond

// killMarked kills the processes with a variable in their environment, until none is left.
func killMarked(mark string) {
	for start := time.Now(); killOnce(mark) > 0 && time.Since(start) < killTime; {
		time.Sleep(time.Millisecond)
	}
}

func killOnce(mark string) (killed int) {
	for pid, found := range marks() {
		if found != mark {
			continue
		}
		p, err := os.FindProcess(pid) // keeps the process apart from a later one with its number
		if err != nil {
			continue
		}
		if markOf(pid) == mark {
			_ = p.Kill()
			killed++
		}
		_ = p.Release()
	}
	return killed
}

// countMarks returns the number of processes with each mark.
func countMarks() map[string]int {
	counts := map[string]int{}
	for _, mark := range marks() {
		counts[mark]++
	}
	return counts
}

// marks returns the marked processes of the system.
func marks() map[int]string {
	found := map[int]string{}
	list, _ := filepath.Glob("/proc/[0-9]*")
	for _, dir := range list {
		pid, err := strconv.Atoi(filepath.Base(dir))
		if err != nil || pid == os.Getpid() {
			continue
		}
		if mark := markOf(pid); mark != "" {
			found[pid] = mark
		}
	}
	return found
}

// markOf returns the variable that marks a process, or "".
func markOf(pid int) string {
	env, _ := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/environ")
	for variable := range bytes.SplitSeq(env, []byte{0}) {
		if bytes.HasPrefix(variable, []byte(markName+"=")) {
			return string(variable)
		}
	}
	return ""
}

// restrict sets the limits that the system enforces.
func (l *Limits) restrict(pid int) error {
	for resource, n := range map[int]int64{unix.RLIMIT_AS: l.MaxMemory, unix.RLIMIT_FSIZE: l.MaxFileSize,
		unix.RLIMIT_NOFILE: l.MaxFiles, unix.RLIMIT_CPU: max(int64(l.MaxCPUTime/time.Second), 1)} {
		var limit unix.Rlimit
		if err := unix.Prlimit(pid, resource, nil, &limit); err != nil {
			return err
		}
		limit.Max, limit.Cur = min(limit.Max, uint64(n)), min(limit.Cur, uint64(n))
		if err := unix.Prlimit(pid, resource, &limit, nil); err != nil {
			return err
		}
	}
	return nil
}
