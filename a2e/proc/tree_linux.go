// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package proc

import (
	"bytes"
	"os"
	"path/filepath"
	"strconv"
	"time"
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
	list, _ := filepath.Glob("/proc/[0-9]*")
	for _, dir := range list {
		pid, err := strconv.Atoi(filepath.Base(dir))
		if err != nil || pid == os.Getpid() {
			continue
		}
		p, err := os.FindProcess(pid) // keeps the process apart from a later one with its number
		if err != nil {
			continue
		}
		env, _ := os.ReadFile(filepath.Join(dir, "environ"))
		if bytes.Contains(env, []byte(mark+"\x00")) {
			_ = p.Kill()
			killed++
		}
		_ = p.Release()
	}
	return killed
}
