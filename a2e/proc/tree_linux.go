// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package proc

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// killTime bounds the search for the descendants of an ended process.
const killTime = 100 * time.Millisecond

// killMarked kills the processes with a variable in their environment, until none is left.
func killMarked(mark string) { killAll(func(found string) bool { return found == mark }) }

// killOrphans kills the processes of hosts that have ended without their processes, such as by a signal
// (A2E-D67).
func killOrphans() {
	killAll(func(mark string) bool {
		id, _, _ := strings.Cut(strings.TrimPrefix(mark, markName+"="), ".")
		return hasEnded(id)
	})
}

// killAll kills the processes with the marks that isWanted selects, until none is left.
func killAll(isWanted func(mark string) bool) {
	for start := time.Now(); killOnce(isWanted) > 0 && time.Since(start) < killTime; {
		time.Sleep(time.Millisecond)
	}
}

func killOnce(isWanted func(mark string) bool) (killed int) {
	for pid, found := range marks() {
		if !isWanted(found) {
			continue
		}
		p, err := os.FindProcess(pid) // keeps the process apart from a later one with its number
		if err != nil {
			continue
		}
		if markOf(pid) == found {
			_ = p.Kill()
			killed++
		}
		_ = p.Release()
	}
	return killed
}

// hostID returns the identity of a running host: its namespace, its number and its start in ticks. It is "" for an
// ended process, and if it cannot be read.
func hostID(pid int) string {
	namespace, _ := os.Readlink("/proc/self/ns/pid")
	stat, _ := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	_, fields, _ := strings.Cut(string(stat[bytes.LastIndexByte(stat, ')')+1:]), " ") // behind the name
	list := strings.Fields(fields)
	if namespace == "" || len(list) < 20 || list[0] == "Z" {
		return ""
	}
	return fmt.Sprintf("%s-%d-%s", strings.Trim(namespace, "pid:[]"), pid, list[19])
}

// hasEnded reports whether a host of the namespace of this process has ended. A host that cannot be seen counts as
// running.
func hasEnded(id string) bool {
	var namespace, start uint64
	var pid int
	n, _ := fmt.Sscanf(id, "%d-%d-%d", &namespace, &pid, &start)
	own := hostID(os.Getpid())
	if n < 3 || pid <= 0 || !strings.HasPrefix(own, fmt.Sprintf("%d-", namespace)) {
		return false
	}
	if found := hostID(pid); found != "" {
		return found != id
	}
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	return err == nil && bytes.Contains(stat, []byte(") Z ")) || errors.Is(unix.Kill(pid, 0), unix.ESRCH)
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

// launcher returns a launcher that sets the limits before the program runs, or nil without the program
// prlimit. A limit of the system that is lower stays.
func (l *Limits) launcher() []string {
	path, err := resolve("prlimit")
	if err != nil {
		return nil
	}
	args := []string{path}
	for name, resource := range map[string]int{"as": unix.RLIMIT_AS, "fsize": unix.RLIMIT_FSIZE, "nofile": unix.RLIMIT_NOFILE, "cpu": unix.RLIMIT_CPU} {
		var limit unix.Rlimit
		n := l.values()[resource]
		if n == math.MaxInt64 || unix.Getrlimit(resource, &limit) != nil {
			continue
		}
		args = append(args, fmt.Sprintf("--%s=%d", name, min(limit.Max, uint64(n))))
	}
	return append(args, "--")
}

// values returns the limits that the system enforces, by resource.
func (l *Limits) values() map[int]int64 {
	return map[int]int64{unix.RLIMIT_AS: l.MaxMemory, unix.RLIMIT_FSIZE: l.MaxFileSize, unix.RLIMIT_NOFILE: l.MaxFiles,
		unix.RLIMIT_CPU: max(int64(l.MaxCPUTime/time.Second), 1)}
}

// restrictTree sets the limits of the processes that were started before their parent had its limits. A process
// has no mark while it begins another program, so the second search without a change is the last one.
func (l *Limits) restrictTree(mark string) {
	start := time.Now()
	for quiet := 0; quiet < 2 && time.Since(start) < killTime; quiet++ {
		for pid, found := range marks() {
			if found != mark {
				continue
			}
			if changed, err := l.restrict(pid); changed && err == nil {
				quiet = -1
			}
		}
	}
}

// restrict sets the limits that the system enforces, and reports whether one was higher.
func (l *Limits) restrict(pid int) (changed bool, err error) {
	for resource, n := range l.values() {
		var limit unix.Rlimit
		if err := unix.Prlimit(pid, resource, nil, &limit); err != nil {
			return changed, err
		}
		if limit.Max <= uint64(n) && limit.Cur <= uint64(n) {
			continue
		}
		limit.Max, limit.Cur = min(limit.Max, uint64(n)), min(limit.Cur, uint64(n))
		if err := unix.Prlimit(pid, resource, &limit, nil); err != nil {
			return changed, err
		}
		changed = true
	}
	return changed, nil
}
