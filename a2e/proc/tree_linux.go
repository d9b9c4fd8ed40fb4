// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package proc

import (
	"bytes"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"time"
	"unsafe"
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
	for resource, n := range map[int]int64{syscall.RLIMIT_AS: l.MaxMemory, syscall.RLIMIT_FSIZE: l.MaxFileSize,
		syscall.RLIMIT_NOFILE: l.MaxFiles, syscall.RLIMIT_CPU: max(int64(l.MaxCPUTime/time.Second), 1)} {
		if err := restrict(pid, resource, uint64(n)); err != nil {
			return err
		}
	}
	return nil
}

// restrict lowers one limit of a process.
func restrict(pid, resource int, n uint64) error {
	var limit syscall.Rlimit
	if err := prlimit(pid, resource, nil, &limit); err != nil {
		return err
	}
	limit.Max = min(limit.Max, n)
	limit.Cur = min(limit.Cur, n)
	return prlimit(pid, resource, &limit, nil)
}

func prlimit(pid, resource int, limit, old *syscall.Rlimit) error {
	_, _, errno := syscall.RawSyscall6(syscall.SYS_PRLIMIT64, uintptr(pid), uintptr(resource),
		uintptr(unsafe.Pointer(limit)), uintptr(unsafe.Pointer(old)), 0, 0)
	if errno != 0 {
		return errno
	}
	return nil
}
