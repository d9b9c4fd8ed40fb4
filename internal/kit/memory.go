// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package kit

import "runtime"

// Heap returns the bytes of the objects that the program can reach.
func Heap() int64 {
	heap, _ := reachable()
	return heap
}

// HeapAndStacks returns the bytes of the objects that the program can reach, and of the stacks of its goroutines.
func HeapAndStacks() int64 {
	heap, stacks := reachable()
	return heap + stacks
}

// reachable collects garbage until nothing more is freed: a pool keeps its buffers for one more collection, and a
// finalizer its object.
func reachable() (heap, stacks int64) {
	var m runtime.MemStats
	for round, low := 0, uint64(0); round < 10; round++ {
		runtime.GC()
		runtime.ReadMemStats(&m)
		if round >= 2 && m.HeapAlloc >= low {
			break
		}
		low = m.HeapAlloc
	}
	return int64(m.HeapAlloc), int64(m.StackInuse)
}
