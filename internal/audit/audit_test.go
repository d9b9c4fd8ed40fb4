// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package audit_test

import (
	"bytes"
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/internal/audit"
)

type record struct {
	Seq                                               uint64
	Time                                              time.Time
	Principal, Peer, Operation, Object, Outcome, Code string
	Duration                                          time.Duration
	Bytes                                             int64
	Own                                               string
}

func (r *record) LogValue() slog.Value { return audit.Value(r, slog.String("own", r.Own)) }

func TestLogWritesRecordAsGroup(t *testing.T) {
	r := &record{Seq: 7, Principal: "ann", Peer: "p", Operation: "get", Object: "o", Outcome: "ok", Code: "c",
		Duration: time.Second, Bytes: 3, Own: "x"}
	want := "level=INFO msg=\"arc: request handled\" arc.seq=7 arc.principal=ann arc.peer=p arc.operation=get arc.object=o " +
		"arc.outcome=ok arc.code=c arc.duration=1s arc.bytes=3 arc.own=x\n"
	var text bytes.Buffer
	log := slog.New(slog.NewTextHandler(&text, nil))
	audit.Log[*record](log, "arc")(t.Context(), r)
	require.Contains(t, text.String(), want)
	text.Reset()
	old := slog.Default()
	slog.SetDefault(log)
	defer slog.SetDefault(old)
	audit.Log[*record](nil, "arc")(t.Context(), r)
	require.Contains(t, text.String(), want, "a nil logger is the default")
}
