// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package proc

func killMarked(string) {}

func killOrphans() {}

func hostID(int) string { return "" }

func countMarks() map[string]int { return nil }

func (l *Limits) launcher() []string { return nil }

func (l *Limits) restrictTree(string) {}

func (l *Limits) restrict(int) (bool, error) { return false, nil }
