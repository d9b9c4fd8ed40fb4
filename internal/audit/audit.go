// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

// Package audit writes the audit records of all packages to a log in one form.
package audit

import (
	"cmp"
	"context"
	"log/slog"
	"reflect"
	"strings"
)

// common are the fields that each record begins with, besides its Time, which the log has.
var common = []string{"Seq", "Principal", "Peer", "Operation", "Object", "Outcome", "Code", "Duration", "Bytes"}

// Value groups the common fields of a record, a pointer to a struct, and the others.
func Value(record any, others ...slog.Attr) slog.Value {
	v := reflect.ValueOf(record).Elem()
	attrs := make([]slog.Attr, 0, len(common)+len(others))
	for _, name := range common {
		attrs = append(attrs, slog.Any(strings.ToLower(name), v.FieldByName(name).Interface()))
	}
	return slog.GroupValue(append(attrs, others...)...)
}

// Log returns a function that writes each record to l at Info, as a group with the name of the
// package. A nil l means [slog.Default].
func Log[R slog.LogValuer](l *slog.Logger, pkg string) func(context.Context, R) {
	l = cmp.Or(l, slog.Default())
	return func(ctx context.Context, r R) {
		l.LogAttrs(ctx, slog.LevelInfo, pkg+": request handled", slog.Any(pkg, r))
	}
}
