// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"path"

	"github.com/fivewire/fivewire/a2e/record"
	"github.com/fivewire/fivewire/internal/command"
)

func prepareInspect(fs *flag.FlagSet) func(context.Context, *command.IO, []string) error {
	session := sessionFlags(fs)
	f := &filter{}
	fs.StringVar(&f.dir, "dir", "", "show messages in one `direction`: in or out")
	fs.StringVar(&f.types, "type", "", "show messages whose type matches a `pattern` such as tool/*/req")
	fs.StringVar(&f.id, "id", "", "show the messages of a request with an `id`")
	isReplay := fs.Bool("replay", false, "play the recorded peer to the program of -url or -exec instead")
	return func(ctx context.Context, s *command.IO, args []string) error {
		if len(args) != 1 {
			return command.Usage("want one FILE")
		}
		if _, err := path.Match(f.types, ""); err != nil || f.dir != "" && f.dir != "in" && f.dir != "out" {
			return command.Usage("want -dir in or out, and a pattern as -type")
		}
		data, err := s.Read(ctx, args[0])
		if err != nil {
			return err
		}
		recording, err := record.Read(bytes.NewReader(data))
		if err != nil {
			return command.CouldNot(err)
		}
		if *isReplay {
			return session.replay(ctx, s, recording)
		}
		return f.show(s, recording)
	}
}

// A filter selects messages. Empty members select all.
type filter struct{ dir, types, id string }

// show prints the messages of a recording that the filter selects.
func (f *filter) show(s *command.IO, r *record.Recording) error {
	for i, line := range r.Lines {
		var m struct {
			Type  string `json:"type"`
			ID    string `json:"id"`
			ReqID string `json:"req_id"`
		}
		_ = json.Unmarshal([]byte(line.Text), &m) // an invalid line has no members
		dir := "in"
		if line.Sent {
			dir = "out"
		}
		isType := f.types == ""
		if !isType {
			isType, _ = path.Match(f.types, m.Type)
		}
		if !isType || f.dir != "" && f.dir != dir || f.id != "" && f.id != m.ID && f.id != m.ReqID {
			continue
		}
		text := fmt.Sprintf("%d %10.6f %-3s %s", i+1, line.Time.Seconds(), dir, line.Text)
		err := s.Print(text, map[string]any{"number": i + 1, "t": line.Time.Microseconds(), "dir": dir, "line": line.Text})
		if err != nil {
			return err
		}
	}
	if r.Truncated {
		fmt.Fprintln(s.Err, "a2e inspect: the recording ends within a line")
	}
	return nil
}

// replay plays the peer of the recorder, and fails at the first difference.
func (c *session) replay(ctx context.Context, s *command.IO, r *record.Recording) error {
	token, err := command.Secret(c.tokenFile, tokenVariable)
	if err != nil {
		return err
	}
	conn, err := c.dial(ctx, s, c.logger(s))
	if err != nil {
		return err
	}
	defer func() { _ = c.close(nil) }() // Replay closes the connection
	if err := record.Replay(ctx, conn, r, &record.ReplayOptions{Token: token}); err != nil {
		return err
	}
	return s.Print(fmt.Sprintf("%d messages as recorded", len(r.Lines)), map[string]any{"messages": len(r.Lines)})
}
